// SPDX-License-Identifier: Apache-2.0
// Reading the catalog: lock-free, without allocation, callable from any thread and from signal
// handlers. See catalog_layout.h for what is mapped and why nothing here can fault.
#pragma once

#include <string.h>

#include "runtime/layout/catalog_layout.h"
#include "runtime/layout/path_hash.h"
#include "runtime/layout/shared_map.h"

namespace monarch {

// A path below a root, split at its last slash, with its hash.
struct RelPath {
  uint32_t root;
  const char* path;
  uint32_t len;
  uint32_t dir_len;  // bytes before the last slash; 0 if there is none
  uint32_t hash;
};

inline RelPath rel_path(uint32_t root, const char* path, size_t len) {
  size_t slash = len;
  while (slash > 0 && path[slash - 1] != '/') --slash;
  return RelPath{root, path, static_cast<uint32_t>(len), static_cast<uint32_t>(slash ? slash - 1 : 0),
                 path_hash(root, path, len)};
}

// An entry and the reference that names it; empty if there is none.
struct Found {
  Ref ref = 0;
  const Entry* entry = nullptr;
  explicit operator bool() const { return entry != nullptr; }
};

// The catalog of one run directory. All members are usable while the agent writes; the object may be
// shared by all threads. Mappings stay for the life of the process (a forked child inherits them).
class CatalogReader {
 public:
  constexpr CatalogReader() = default;
  CatalogReader(const CatalogReader&) = delete;
  CatalogReader& operator=(const CatalogReader&) = delete;

  // Maps the header; several threads may do it at once, with the same `dir`, which must outlive the reader.
  // False if there is no ready catalog of this version.
  bool open(const char* dir) {
    auto* h = static_cast<const CatalogHeader*>(map_shared(dir, "catalog", sizeof(CatalogHeader), false));
    if (!h) return false;
    const CatalogHeader* none = nullptr;
    if (memcmp(h->magic, kCatalogMagic, sizeof kCatalogMagic) != 0 || h->version != kCatalogVersion ||
        h->bytes != sizeof(CatalogHeader) || !h->ready.load(std::memory_order_acquire)) {
      syscall(SYS_munmap, h, sizeof(CatalogHeader));
      return false;
    }
    if (!__atomic_load_n(&dir_, __ATOMIC_RELAXED)) __atomic_store_n(&dir_, dir, __ATOMIC_RELAXED);
    if (!__atomic_compare_exchange_n(&header_, &none, h, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
      syscall(SYS_munmap, h, sizeof(CatalogHeader));  // another thread was first
    return true;
  }

  const CatalogHeader& header() const { return *header_; }

  // The entry of a path; empty: not (yet) in the catalog, or a mapping failed.
  Found find(const RelPath& path) const {
    uint64_t mask;
    const std::atomic<uint64_t>* slots = index(&mask);
    for (uint64_t i = path.hash & mask, probes = 0; slots && probes <= mask; i = (i + 1) & mask, ++probes) {
      const uint64_t slot = slots[i].load(std::memory_order_acquire);
      if (slot == 0) return {};
      if (slot >> 32 != path.hash) continue;
      const Ref ref = static_cast<Ref>(slot);
      const Entry* e = entry(ref);
      if (e && same_path(*e, path)) return {ref, e};
    }
    return {};
  }

  // The identity whose copy has inode `ino` on tier `tier`, or nullptr.
  const Identity* find_copy(uint32_t tier, uint64_t ino) const {
    const uint32_t generation = header_->inode_generation.load(std::memory_order_acquire);
    auto* slots =
        static_cast<const std::atomic<uint32_t>*>(table("inodes", inodes_, generation, sizeof(uint32_t)));
    if (!slots) return nullptr;
    const uint64_t mask = index_slots(generation) - 1;
    for (uint64_t i = inode_hash(tier, ino) & mask, probes = 0; probes <= mask;
         i = (i + 1) & mask, ++probes) {
      const Ref ref = slots[i].load(std::memory_order_acquire);
      if (ref == 0) return nullptr;
      const auto* id = static_cast<const Identity*>(at(Space::kIdents, ref, sizeof(Identity)));
      if (id && id->tier_ino == ino && id->tier.load(std::memory_order_acquire) == tier) return id;
    }
    return nullptr;
  }

  // Maps what find_copy() needs for all copies that there are by now, so that it needs no descriptor later.
  void map_identities() const {
    const uint32_t generation = header_->inode_generation.load(std::memory_order_acquire);
    const uint32_t idents = last_segment(Space::kIdents), dirs = last_segment(Space::kDirs);
    const uint32_t all = generation << 16 | idents << 8 | dirs | 1u << 31;
    if (identities_mapped_.load(std::memory_order_relaxed) == all) return;
    for (uint32_t k = 0; k <= idents; ++k) segment(Space::kIdents, k);
    for (uint32_t k = 0; k <= dirs; ++k) segment(Space::kDirs, k);
    table("inodes", inodes_, generation, sizeof(uint32_t));
    identities_mapped_.store(all, std::memory_order_relaxed);
  }

  const Entry* entry(Ref ref) const {
    return static_cast<const Entry*>(at(Space::kEntries, ref, sizeof(Entry)));
  }
  const DirPath* dir(Ref ref) const {
    return static_cast<const DirPath*>(at(Space::kDirs, ref, sizeof(DirPath)));
  }
  const Identity* identity(Ref ref) const {
    return static_cast<const Identity*>(at(Space::kIdents, ref, sizeof(Identity)));
  }
  const Attributes* attributes(Ref ref) const {
    return static_cast<const Attributes*>(at(Space::kDirs, ref, sizeof(Attributes)));
  }

  // The Chunks record, wholly mapped, or nullptr.
  const Chunks* chunks(Ref ref) const {
    const auto* c = static_cast<const Chunks*>(at(Space::kChunks, ref, sizeof(Chunks)));
    return c && at(Space::kChunks, ref, sizeof(Chunks) + (uint64_t{c->count} + 63) / 64 * 8) ? c : nullptr;
  }

  // The identity of a file, as the agent saw it; nullptr: it has none, or is a directory.
  const Identity* identity_of(const Entry& e) const {
    const Identity* id = any_identity_of(e);
    return id && id->tier.load(std::memory_order_relaxed) != kNoCopy ? id : nullptr;
  }
  // What a task saw of it; nullptr: nothing, or the agent knows better.
  const SeenFile* seen_file(const Entry& e) const {
    const Ref ref = e.identity.load(std::memory_order_acquire);
    const Identity* id = any_identity_of(e);
    return id && id->tier.load(std::memory_order_relaxed) == kNoCopy
               ? static_cast<const SeenFile*>(at(Space::kIdents, ref, sizeof(SeenFile)))
               : nullptr;
  }
  // Either of them.
  const Identity* any_identity_of(const Entry& e) const {
    const Ref ref = e.identity.load(std::memory_order_acquire);
    return e.type.load(std::memory_order_relaxed) == kDirectoryType ? nullptr : identity(ref);
  }
  // Has the processor fetch what find() and identity_of() of this entry will read, if that is mapped already.
  void expect(const Entry& e) const {
    const uint32_t generation = header_->index_generation.load(std::memory_order_acquire);
    if (generation >= kMaxGenerations) return;
    const auto* slots =
        static_cast<const std::atomic<uint64_t>*>(index_[generation].load(std::memory_order_acquire));
    if (slots) __builtin_prefetch(&slots[e.hash & (index_slots(generation) - 1)]);
    const uint64_t offset = uint64_t{e.identity.load(std::memory_order_relaxed)} * 8;
    const uint32_t k = segment_of(offset);
    if (k >= kMaxSegments || e.type.load(std::memory_order_relaxed) == kDirectoryType) return;
    const auto& place = segments_[static_cast<uint32_t>(Space::kIdents)][k];
    if (const auto* base = static_cast<const char*>(place.load(std::memory_order_acquire)))
      __builtin_prefetch(base + (offset - segment_start(k)));
  }
  // Whether there is an entry `ref` with this hash.
  bool is_entry(Ref ref, uint32_t hash) const {
    uint64_t mask;
    const std::atomic<uint64_t>* slots = index(&mask);
    for (uint64_t i = hash & mask, probes = 0; slots && probes <= mask; i = (i + 1) & mask, ++probes) {
      const uint64_t slot = slots[i].load(std::memory_order_acquire);
      if (slot == 0) return false;
      if (slot == index_slot(hash, ref)) return true;
    }
    return false;
  }

  // What the walk read of the directory `path`, which may be a root (the empty path); nullptr: it has no
  // listing, or not all that belongs to it can be mapped. Later calls on it need no descriptor.
  const Listing* listing(const RelPath& path) const {
    Ref ref = 0;
    if (path.len == 0) {
      ref = header_->roots[path.root].listing.load(std::memory_order_acquire);
    } else if (const Found found = find(path)) {
      ref = found.entry->identity.load(std::memory_order_acquire);
      if (found.entry->type.load(std::memory_order_relaxed) != kDirectoryType) return nullptr;
    }
    const auto* listing = static_cast<const Listing*>(at(Space::kLists, ref, sizeof(Listing)));
    return listing && map_listings() ? listing : nullptr;
  }
  // The block of a listing, wholly mapped, or nullptr.
  const ListBlock* list_block(Ref ref) const {
    const auto* b = static_cast<const ListBlock*>(at(Space::kLists, ref, sizeof(ListBlock)));
    return b && at(Space::kLists, ref, sizeof(ListBlock) + uint64_t{b->count} * sizeof(ListedName)) ? b
                                                                                                    : nullptr;
  }

  // What path_of() needs, and a byte for a NUL; 0: it has no path.
  size_t path_bytes(const Entry& e) const {
    const DirPath* d = dir(e.dir);
    return d && uint64_t{d->len} + 1 + e.name_len < kPathBytes ? size_t{d->len} + 1 + e.name_len + 1 : 0;
  }
  // Writes the path of an entry, relative to its root, to `out` (path_bytes()) and describes it.
  bool path_of(const Entry& e, char* out, RelPath* path) const {
    const DirPath* d = dir(e.dir);
    if (!d || uint64_t{d->len} + 1 + e.name_len >= kPathBytes) return false;
    memcpy(out, d->path, d->len);
    size_t n = d->len;
    if (n > 0) out[n++] = '/';
    memcpy(out + n, e.name, e.name_len);
    *path = RelPath{e.root, out, static_cast<uint32_t>(n + e.name_len), d->len, e.hash};
    return true;
  }

  // Whether `e` is the entry of `path`.
  bool same_path(const Entry& e, const RelPath& path) const {
    const uint32_t name_at = path.dir_len ? path.dir_len + 1 : 0;
    if (e.root != path.root || e.name_len != path.len - name_at) return false;
    if (memcmp(e.name, path.path + name_at, e.name_len) != 0) return false;
    const DirPath* d = dir(e.dir);
    return d && d->len == path.dir_len && memcmp(d->path, path.path, d->len) == 0;
  }

 private:
  static constexpr uint8_t kDirectoryType = 4;  // DT_DIR, for which <dirent.h> would be needed

  // Whether all names that listings lead to by now are mapped.
  bool map_listings() const {
    const uint32_t lists = last_segment(Space::kLists), entries = last_segment(Space::kEntries);
    const uint32_t all = lists << 8 | entries | 1u << 31;
    if (__builtin_expect(listings_mapped_.load(std::memory_order_acquire) == all, 1)) return true;
    for (uint32_t k = 0; k <= lists; ++k)
      if (!segment(Space::kLists, k)) return false;
    const bool any = header_->entry_count.load(std::memory_order_relaxed) != 0;
    for (uint32_t k = 0; any && k <= entries; ++k)
      if (!segment(Space::kEntries, k)) return false;
    if (any) listings_mapped_.store(all, std::memory_order_release);
    return true;
  }

  // The record at `ref`, of at least `bytes`; nullptr for 0 or if its segment cannot be mapped. (A record
  // never crosses the end of its segment.)
  const void* at(Space space, Ref ref, size_t bytes) const {
    if (ref == 0) return nullptr;
    const uint64_t offset = uint64_t{ref} * 8;
    const uint32_t k = segment_of(offset);
    if (k >= kMaxSegments || offset + bytes > segment_start(k) + segment_bytes(k)) return nullptr;
    const void* base = segment(space, k);
    return base ? static_cast<const char*>(base) + (offset - segment_start(k)) : nullptr;
  }

  const void* segment(Space space, uint32_t k) const {
    const auto s = static_cast<uint32_t>(space);
    return mapped(kSpaceNames[s], &segments_[s][k], k, segment_bytes(k));
  }
  // The segment that the space has grown to.
  uint32_t last_segment(Space space) const {
    const uint64_t used = header_->used_bytes[static_cast<uint32_t>(space)].load(std::memory_order_relaxed);
    const uint32_t k = used ? segment_of(used - 1) : 0;
    return k < kMaxSegments ? k : kMaxSegments - 1;
  }

  // The slots of paths, and their number less one; nullptr: they cannot be mapped.
  const std::atomic<uint64_t>* index(uint64_t* mask) const {
    const uint32_t generation = header_->index_generation.load(std::memory_order_acquire);
    *mask = index_slots(generation) - 1;
    return static_cast<const std::atomic<uint64_t>*>(table("index", index_, generation, sizeof(uint64_t)));
  }

  const void* table(const char* name, std::atomic<const void*>* generations, uint32_t g, size_t slot) const {
    return g < kMaxGenerations ? mapped(name, &generations[g], g, index_slots(g) * slot) : nullptr;
  }

  // The mapping kept in `place`, made by the first caller that needs it.
  const void* mapped(const char* name, std::atomic<const void*>* place, uint32_t number,
                     uint64_t bytes) const {
    const void* base = place->load(std::memory_order_acquire);
    return __builtin_expect(base != nullptr, 1) ? base : map_first(name, place, number, bytes);
  }
  __attribute__((noinline, cold)) const void* map_first(const char* name, std::atomic<const void*>* place,
                                                        uint32_t number, uint64_t bytes) const {
    char file[32];
    size_t n = 0;
    while (name[n]) {
      file[n] = name[n];
      ++n;
    }
    file[n++] = '.';
    if (number >= 10) file[n++] = static_cast<char>('0' + number / 10);
    file[n++] = static_cast<char>('0' + number % 10);
    file[n] = '\0';
    const void* base = map_shared(dir_, file, bytes, false);
    if (!base) return nullptr;
    const void* other = nullptr;
    if (place->compare_exchange_strong(other, base, std::memory_order_acq_rel)) return base;
    syscall(SYS_munmap, base, bytes);  // another thread was first
    return other;
  }

  const char* dir_ = nullptr;
  const CatalogHeader* header_ = nullptr;
  mutable std::atomic<const void*> segments_[kSpaces][kMaxSegments] = {};
  mutable std::atomic<const void*> index_[kMaxGenerations] = {};
  mutable std::atomic<const void*> inodes_[kMaxGenerations] = {};
  mutable std::atomic<uint32_t> identities_mapped_{0};  // how far map_identities() got
  mutable std::atomic<uint32_t> listings_mapped_{0};    // how far map_listings() got
};

}  // namespace monarch
