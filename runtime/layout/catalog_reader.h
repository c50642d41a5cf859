// SPDX-License-Identifier: Apache-2.0
// Reading the catalog: lock-free, without allocation, callable from any thread and from signal
// handlers. See catalog_layout.h for what is mapped and why nothing here can fault.
//
// No length, number or reference in the mapped files is believed, and each is read once: whoever runs as the
// job's owner can write them, and neither a task nor the agent may then read or write elsewhere. What the
// header says for good is copied when it is opened (CatalogFacts). A file that its owner makes shorter ends
// in SIGBUS, as with any mapping.
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

// A value of the shared mapping, read once.
template <typename T>
T read_once(const T& value) {
  return __atomic_load_n(&value, __ATOMIC_RELAXED);
}

// What the header says for good: a private copy, range-checked. Texts end in a NUL.
struct CatalogFacts {
  uint64_t boot_time, stage_wait_max, stage_wait_ns;
  uint64_t user_namespace, space;
  uint32_t check_at_open, serve_metadata, stages_again, user, groups;
  uint32_t root_count, prefix_count, tier_count;
  struct {
    uint64_t dev;
  } roots[kMaxRoots];
  struct {
    uint64_t dev, ino;
    uint32_t len, unsafe;
    char name[sizeof TierPath::name];
    char path[kPathBytes];
  } tiers[kMaxTiers];
  Prefix prefixes[kMaxPrefixes];
};

// Copies a text of `len` bytes if that fits with its NUL, and has no other.
inline bool take_text(const char* from, uint32_t len, char* to) {
  if (len >= kPathBytes) return false;
  memcpy(to, from, len);
  to[len] = '\0';
  return memchr(to, '\0', len) == nullptr;
}

inline bool take_prefix(const Prefix& from, uint32_t roots, Prefix* to) {
  to->dev = read_once(from.dev);
  to->ino = read_once(from.ino);
  to->root = read_once(from.root);
  to->len = read_once(from.len);
  to->below_len = read_once(from.below_len);
  return to->root < roots && to->len > 0 && take_text(from.path, to->len, to->path) && to->path[0] == '/' &&
         take_text(from.below, to->below_len, to->below);
}

// False: it is not a header that the agent made.
inline bool take_facts(const CatalogHeader& h, CatalogFacts* f) {
  f->boot_time = read_once(h.boot_time);
  f->stage_wait_max = read_once(h.stage_wait_max);
  f->stage_wait_ns = read_once(h.stage_wait_ns);
  f->user_namespace = read_once(h.user_namespace);
  f->space = read_once(h.space);
  f->check_at_open = read_once(h.check_at_open);
  f->serve_metadata = read_once(h.serve_metadata);
  f->stages_again = read_once(h.stages_again);
  f->user = read_once(h.user);
  f->groups = read_once(h.groups);
  f->root_count = read_once(h.root_count);
  f->prefix_count = read_once(h.prefix_count);
  f->tier_count = read_once(h.tier_count);
  if (f->root_count > kMaxRoots || f->prefix_count > kMaxPrefixes || f->tier_count > kMaxTiers) return false;
  for (uint32_t i = 0; i < f->root_count; ++i) f->roots[i].dev = read_once(h.roots[i].dev);
  for (uint32_t i = 0; i < f->tier_count; ++i) {
    f->tiers[i].dev = read_once(h.tiers[i].dev);
    f->tiers[i].ino = read_once(h.tiers[i].ino);
    f->tiers[i].len = read_once(h.tiers[i].len);
    f->tiers[i].unsafe = read_once(h.tiers[i].unsafe);
    if (!take_text(h.tiers[i].path, f->tiers[i].len, f->tiers[i].path)) return false;
    memcpy(f->tiers[i].name, h.tiers[i].name, sizeof f->tiers[i].name - 1);
  }
  for (uint32_t i = 0; i < f->prefix_count; ++i)
    if (!take_prefix(h.prefixes[i], f->root_count, &f->prefixes[i])) return false;
  return true;
}

// The catalog of one run directory. All members are usable while the agent writes; the object may be
// shared by all threads. Mappings stay for the life of the process (a forked child inherits them).
class CatalogReader {
 public:
  constexpr CatalogReader() = default;
  CatalogReader(const CatalogReader&) = delete;
  CatalogReader& operator=(const CatalogReader&) = delete;

  // Maps the header, and copies what it says for good; several threads may do it at once, and none waits for
  // another. `dir` must outlive the reader. False if there is no ready catalog of this version.
  bool open(const char* dir) { return open(RunDirectory{dir}); }
  // The same of a directory of which something was mapped before. `adapt` may change the facts before anybody
  // sees them.
  bool open(RunDirectory at, void (*adapt)(CatalogFacts*) = nullptr) {
    auto* h = static_cast<const CatalogHeader*>(map_shared(&at, "catalog", sizeof(CatalogHeader), false));
    if (!h) return false;
    Opened* mine = nullptr;
    const Opened* none = nullptr;
    const bool good = memcmp(h->magic, kCatalogMagic, sizeof kCatalogMagic) == 0 &&
                      h->version == kCatalogVersion && h->bytes == sizeof(CatalogHeader) &&
                      h->ready.load(std::memory_order_acquire) && (mine = room_for_opened()) &&
                      take_facts(*h, &mine->facts);
    if (good) mine->header = h, mine->dir = at;
    if (good && adapt) adapt(&mine->facts);
    const bool first =
        good && __atomic_compare_exchange_n(&opened_, &none, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (!first) syscall(SYS_munmap, h, sizeof(CatalogHeader));
    if (!first && mine) syscall(SYS_munmap, mine, sizeof(Opened));
    return good;
  }

  const CatalogFacts& facts() const { return opened().facts; }
  // What changes while the job runs.
  bool walked(uint32_t root) const {
    return header().roots[root].walked.load(std::memory_order_acquire) != 0;
  }
  bool tier_failed(uint32_t tier) const {
    return header().tiers[tier].failed.load(std::memory_order_relaxed) != 0;
  }

  // The entry of a path; empty: not (yet) in the catalog, or a mapping failed.
  Found find(const RelPath& path) const {
    uint64_t mask;
    const std::atomic<uint64_t>* slots = index(&mask);
    for (uint64_t i = path.hash & mask, probes = 0; slots && probes <= mask; i = (i + 1) & mask, ++probes) {
      const uint64_t slot = slots[i].load(std::memory_order_acquire);
      if (slot == 0) return {};
      if (slot >> 32 != path.hash) continue;
      const Ref ref = static_cast<Ref>(slot);
      if (const Entry* e = entry_of(ref, path)) return {ref, e};
    }
    return {};
  }

  // What `found`, of that path, is by now, if it was staged again.
  Found newest(Found found, const RelPath& path) const {
    for (int i = 0; found && i < kMostAgain; ++i) {
      const Ref next = again_of(found.entry->state.load(std::memory_order_acquire));
      if (next == 0) break;
      found = {next, entry_of(next, path)};
    }
    return found;
  }

  // The identity whose copy has inode `ino` on tier `tier`, or nullptr.
  const Identity* find_copy(uint32_t tier, uint64_t ino) const {
    uint32_t generation = header().inode_generation.load(std::memory_order_acquire);
    auto* slots =
        static_cast<const std::atomic<uint32_t>*>(table("inodes", inodes_, generation, sizeof(uint32_t)));
    // Where it cannot be mapped, an older one has what map_identities() found.
    while (!slots && generation < kMaxGenerations && generation-- > 0)
      slots = static_cast<const std::atomic<uint32_t>*>(inodes_[generation].load(std::memory_order_acquire));
    if (!slots) return nullptr;
    const uint64_t mask = index_slots(generation) - 1;
    for (uint64_t i = inode_hash(tier, ino) & mask, probes = 0; probes <= mask;
         i = (i + 1) & mask, ++probes) {
      const Ref ref = slots[i].load(std::memory_order_acquire);
      if (ref == 0) return nullptr;
      const auto* id = static_cast<const Identity*>(at(Space::kIdents, ref, sizeof(Identity)));
      if (id && read_once(id->tier_ino) == ino && id->tier.load(std::memory_order_acquire) == tier) return id;
    }
    return nullptr;
  }

  // Maps what find_copy() needs for all copies that there are by now, so that it needs no descriptor and no
  // memory later. False: not all can be mapped.
  bool map_identities() const {
    const uint32_t generation = header().inode_generation.load(std::memory_order_acquire);
    const uint32_t idents = last_segment(Space::kIdents), dirs = last_segment(Space::kDirs);
    const uint32_t all = generation << 16 | idents << 8 | dirs | 1u << 31;
    if (__builtin_expect(identities_mapped_.load(std::memory_order_acquire) == all, 1)) return true;
    if (!table("inodes", inodes_, generation, sizeof(uint32_t))) return false;
    for (uint32_t k = 0; k <= idents; ++k)
      if (!segment(Space::kIdents, k)) return false;
    for (uint32_t k = 0; k <= dirs; ++k)
      if (!segment(Space::kDirs, k)) return false;
    identities_mapped_.store(all, std::memory_order_release);
    return true;
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

  // The entry and how long its name is, wholly mapped, or nullptr.
  const Entry* named_entry(Ref ref, uint32_t* name_len) const {
    const Entry* e = entry(ref);
    if (!e) return nullptr;
    *name_len = read_once(e->name_len);
    return at(Space::kEntries, ref, sizeof(Entry) + *name_len) ? e : nullptr;
  }

  // The Chunks record without its bits, or nullptr.
  const Chunks* chunks(Ref ref) const {
    return static_cast<const Chunks*>(at(Space::kChunks, ref, sizeof(Chunks)));
  }
  // Whether chunk `n` is in the partial copy.
  bool has_chunk(Ref ref, uint32_t n) const {
    const auto* c =
        static_cast<const Chunks*>(at(Space::kChunks, ref, sizeof(Chunks) + (uint64_t{n} / 64 + 1) * 8));
    return c && n < read_once(c->count) &&
           (c->bits[n / 64].load(std::memory_order_acquire) >> (n % 64) & 1) != 0;
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
  // Has the processor fetch what find() of this hash will read first, if that is mapped already.
  void expect(uint32_t hash) const {
    const uint32_t generation = header().index_generation.load(std::memory_order_acquire);
    if (generation >= kMaxGenerations) return;
    const auto* slots =
        static_cast<const std::atomic<uint64_t>*>(index_[generation].load(std::memory_order_acquire));
    if (slots) __builtin_prefetch(&slots[hash & (index_slots(generation) - 1)]);
  }
  // The same of find() and identity_of() of this entry.
  void expect(const Entry& e) const {
    expect(e.hash);
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
      ref = header().roots[path.root].listing.load(std::memory_order_acquire);
    } else if (const Found found = find(path)) {
      ref = found.entry->identity.load(std::memory_order_acquire);
      if (found.entry->type.load(std::memory_order_relaxed) != kDirectoryType) return nullptr;
    }
    const auto* listing = static_cast<const Listing*>(at(Space::kLists, ref, sizeof(Listing)));
    return listing && map_listings() ? listing : nullptr;
  }
  // Name `number` of a listing, or nullptr. `*block` is where an earlier name was, or 0; it becomes the block
  // that holds the name.
  const ListedName* listed_name(const Listing& listing, Ref* block, uint32_t number) const {
    Ref ref = *block;
    const ListBlock* b = list_block(ref);
    if (!b || number < read_once(b->first)) b = list_block(ref = read_once(listing.blocks));
    for (uint64_t least = 0; b; b = list_block(ref = read_once(b->next))) {
      const uint32_t first = read_once(b->first), count = read_once(b->count);
      if (first < least || number < first) return nullptr;
      if (number - first >= count) {
        least = uint64_t{first} + 1;  // so it ends, whatever the blocks say
        continue;
      }
      *block = ref;
      const uint64_t end = sizeof(ListBlock) + (uint64_t{number} - first + 1) * sizeof(ListedName);
      return at(Space::kLists, ref, end) ? &b->names[number - first] : nullptr;
    }
    return nullptr;
  }

  // What path_of() needs at least, and a byte for a NUL; 0: it has no path.
  size_t path_bytes(const Entry& e) const {
    const DirPath* d = dir(read_once(e.dir));
    if (!d) return 0;
    const uint64_t bytes = uint64_t{read_once(d->len)} + 1 + read_once(e.name_len);
    return bytes < kMostPathBytes ? bytes + 1 : 0;
  }
  // Writes the path of an entry, relative to its root, to `out`, of `bytes`, and describes it. False also if
  // it takes more: the lengths may have been changed since path_bytes().
  bool path_of(const Entry& e, char* out, size_t bytes, RelPath* path) const {
    const DirPath* d = dir(read_once(e.dir));
    if (!d) return false;
    const uint32_t dir_len = read_once(d->len), name_len = read_once(e.name_len), root = read_once(e.root);
    if (uint64_t{dir_len} + 1 + name_len >= bytes || root >= facts().root_count ||
        room(Space::kDirs, d) < sizeof(DirPath) + dir_len ||
        room(Space::kEntries, &e) < sizeof(Entry) + name_len)
      return false;
    memcpy(out, d->path, dir_len);
    size_t n = dir_len;
    if (n > 0) out[n++] = '/';
    memcpy(out + n, e.name, name_len);
    *path = RelPath{root, out, static_cast<uint32_t>(n + name_len), dir_len, read_once(e.hash)};
    return true;
  }

 private:
  static constexpr uint64_t kMostPathBytes = 1 << 17;  // of a path in the catalog: no longer one is believed
  static constexpr uint8_t kDirectoryType = 4;         // DT_DIR, for which <dirent.h> would be needed

  // The entry at `ref`, if it is that of `path`. A name that does not fit there is not the path's.
  const Entry* entry_of(Ref ref, const RelPath& path) const {
    const uint32_t name_at = path.dir_len ? path.dir_len + 1 : 0, name_len = path.len - name_at;
    const auto* e = static_cast<const Entry*>(at(Space::kEntries, ref, sizeof(Entry) + name_len));
    if (!e || e->root != path.root || e->name_len != name_len ||
        memcmp(e->name, path.path + name_at, name_len) != 0)
      return nullptr;
    const auto* d =
        static_cast<const DirPath*>(at(Space::kDirs, read_once(e->dir), sizeof(DirPath) + path.dir_len));
    return d && d->len == path.dir_len && memcmp(d->path, path.path, path.dir_len) == 0 ? e : nullptr;
  }

  const ListBlock* list_block(Ref ref) const {
    return static_cast<const ListBlock*>(at(Space::kLists, ref, sizeof(ListBlock)));
  }

  // How many bytes there are from `record`, which is in the space, to the end of its segment.
  uint64_t room(Space space, const void* record) const {
    for (uint32_t k = 0; k < kMaxSegments; ++k) {
      const auto base = reinterpret_cast<uintptr_t>(
          segments_[static_cast<uint32_t>(space)][k].load(std::memory_order_acquire));
      const uint64_t offset = reinterpret_cast<uintptr_t>(record) - base;
      if (base != 0 && offset < segment_bytes(k)) return segment_bytes(k) - offset;
    }
    return 0;
  }

  // Whether all names that listings lead to by now are mapped.
  bool map_listings() const {
    const uint32_t lists = last_segment(Space::kLists), entries = last_segment(Space::kEntries);
    const uint32_t all = lists << 8 | entries | 1u << 31;
    if (__builtin_expect(listings_mapped_.load(std::memory_order_acquire) == all, 1)) return true;
    for (uint32_t k = 0; k <= lists; ++k)
      if (!segment(Space::kLists, k)) return false;
    const bool any = header().entry_count.load(std::memory_order_relaxed) != 0;
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
    const uint64_t used = header().used_bytes[static_cast<uint32_t>(space)].load(std::memory_order_relaxed);
    const uint32_t k = used ? segment_of(used - 1) : 0;
    return k < kMaxSegments ? k : kMaxSegments - 1;
  }

  // The slots of paths, and their number less one; nullptr: they cannot be mapped.
  const std::atomic<uint64_t>* index(uint64_t* mask) const {
    const uint32_t generation = header().index_generation.load(std::memory_order_acquire);
    *mask = generation < kMaxGenerations ? index_slots(generation) - 1 : 0;
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
    RunDirectory dir = opened().dir;
    const void* base = map_shared(&dir, file, bytes, false);
    if (!base) return nullptr;
    const void* other = nullptr;
    if (place->compare_exchange_strong(other, base, std::memory_order_acq_rel)) return base;
    syscall(SYS_munmap, base, bytes);  // another thread was first
    return other;
  }

  // What the first thread that opened it found; never changed again.
  struct Opened {
    const CatalogHeader* header;
    RunDirectory dir;
    CatalogFacts facts;
  };
  static Opened* room_for_opened() {
    const long map = syscall(SYS_mmap, nullptr, sizeof(Opened), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    return map == -1 ? nullptr : reinterpret_cast<Opened*>(map);
  }
  const Opened& opened() const { return *__atomic_load_n(&opened_, __ATOMIC_ACQUIRE); }
  const CatalogHeader& header() const { return *opened().header; }

  const Opened* opened_ = nullptr;
  mutable std::atomic<const void*> segments_[kSpaces][kMaxSegments] = {};
  mutable std::atomic<const void*> index_[kMaxGenerations] = {};
  mutable std::atomic<const void*> inodes_[kMaxGenerations] = {};
  mutable std::atomic<uint32_t> identities_mapped_{0};  // how far map_identities() got
  mutable std::atomic<uint32_t> listings_mapped_{0};    // how far map_listings() got
};

}  // namespace monarch
