// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/catalog.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "runtime/base/log.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/space.h"
#include "runtime/metadata/run_file.h"

namespace monarch {
namespace {

constexpr int64_t kSecond = 1000000000;

uint64_t round8(uint64_t bytes) { return (bytes + 7) & ~uint64_t{7}; }

// Whether `path` can be kept in a field of kPathBytes.
bool fits_path(const std::string& path) { return path.size() < kPathBytes; }

// A segment is allocated in so many pieces, so that the newest one takes little more than is in it.
constexpr uint64_t kPiecesOfSegment = 16;
static_assert(kFirstSegmentBytes % kPiecesOfSegment == 0);

// The first empty slot of a table from `start` on; one behind the table if its owner has filled them all.
template <typename Slot>
uint64_t free_slot(const std::atomic<Slot>* table, uint64_t mask, uint64_t start) {
  for (uint64_t i = start & mask, probes = 0; probes <= mask; i = (i + 1) & mask, ++probes)
    if (table[i].load(std::memory_order_relaxed) == 0) return i;
  return mask + 1;
}

bool allocate_piece(int fd, uint64_t from, uint64_t to) {
  int rc;
  do {
    rc = ::fallocate(fd, 0, static_cast<off_t>(from), static_cast<off_t>(to - from));
  } while (rc != 0 && errno == EINTR);
  return rc == 0;
}

}  // namespace

Catalog::Catalog(std::string run_dir, uint64_t max_entries)
    : run_dir_(std::move(run_dir)), max_entries_(max_entries) {}

Catalog::~Catalog() {
  const MutexLock hold(lock_);
  for (const auto& [address, bytes] : mappings_) ::munmap(address, bytes);
  for (const auto& bits : entry_bits_) std::free(bits.load(std::memory_order_relaxed));
}

char* Catalog::make_file(const std::string& name, uint64_t bytes) {
  Fd fd;
  return make_file(name, bytes, bytes, &fd);
}

char* Catalog::make_file(const std::string& name, uint64_t bytes, uint64_t allocated, Fd* file) {
  const std::string path = run_dir_ + "/" + name;
  Result<Fd> begun = begin_run_file(path);
  // An agent that was killed had begun it, and nobody has seen it.
  if (!begun.ok() && begun.error().code == EEXIST && resumed_ && ::truncate(path.c_str(), 0) == 0)
    begun = begin_run_file(path);
  if (!begun.ok()) {
    errno = begun.error().code;
    return nullptr;
  }
  Fd fd = begun.take();
  const bool made =
      ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 && allocate_piece(fd.get(), 0, allocated);
  void* address = made ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0) : MAP_FAILED;
  if (address == MAP_FAILED) {
    drop_run_file(fd, path);
    return nullptr;
  }
  mappings_.emplace_back(address, bytes);
  *file = std::move(fd);
  return static_cast<char*>(address);
}

Result<std::unique_ptr<Catalog>> Catalog::create(const std::string& run_dir,
                                                 const std::vector<RootView>& roots,
                                                 const std::vector<PrefixView>& prefixes,
                                                 const std::vector<TierView>& tiers,
                                                 const ReadPolicy& policy) {
  if (roots.size() > kMaxRoots || prefixes.size() > kMaxPrefixes || tiers.size() > kMaxTiers)
    return bad_input("too many datasets or tiers for one job");
  std::unique_ptr<Catalog> catalog(new Catalog(run_dir, policy.max_entries));
  const MutexLock hold(catalog->lock_);
  const auto no_space = [&](const char* what) { return errno_error("make " + run_dir + "/" + what); };
  auto* h = reinterpret_cast<CatalogHeader*>(catalog->make_file("catalog", sizeof(CatalogHeader)));
  if (!h) return no_space("catalog");
  catalog->header_ = h;
  std::memcpy(h->magic, kCatalogMagic, sizeof h->magic);
  h->version = kCatalogVersion;
  h->bytes = sizeof(CatalogHeader);
  h->boot_time = static_cast<uint64_t>(::time(nullptr));
  h->stage_wait_max = policy.stage_wait_max;
  h->stage_wait_ns = policy.stage_wait_ns;
  h->check_at_open = policy.check_at_open ? 1 : 0;
  h->stages_again = policy.stages_again ? 1 : 0;
  h->serve_metadata = policy.serve_metadata ? 1 : 0;
  h->user = ::geteuid();
  h->groups = own_groups();
  catalog->roots_ = static_cast<uint32_t>(roots.size());
  h->user_namespace = namespace_inode("/proc/self/ns/user");
  h->space = own_space();
  for (const RootView& r : roots) h->roots[h->root_count++].dev = r.dev;
  for (const PrefixView& p : prefixes) {
    if (!fits_path(p.path) || !fits_path(p.below))
      return Error{ENAMETOOLONG, "dataset path " + p.path + " is too long"};
    Prefix& prefix = h->prefixes[h->prefix_count++];
    prefix.dev = p.dev;
    prefix.ino = p.ino;
    prefix.root = p.root;
    prefix.len = static_cast<uint32_t>(p.path.size());
    prefix.below_len = static_cast<uint32_t>(p.below.size());
    std::memcpy(prefix.path, p.path.c_str(), p.path.size() + 1);
    std::memcpy(prefix.below, p.below.c_str(), p.below.size() + 1);
  }
  for (const TierView& t : tiers) {
    if (!fits_path(t.path)) return Error{ENAMETOOLONG, "tier path " + t.path + " is too long"};
    TierPath& tier = h->tiers[h->tier_count++];
    tier.dev = t.dev;
    tier.ino = t.ino;
    tier.unsafe = t.unsafe ? 1 : 0;
    tier.len = static_cast<uint32_t>(t.path.size());
    std::memcpy(tier.name, t.name.c_str(), std::min(t.name.size(), sizeof tier.name - 1));
    std::memcpy(tier.path, t.path.c_str(), t.path.size() + 1);
  }
  catalog->index_ = reinterpret_cast<std::atomic<uint64_t>*>(
      catalog->make_file("index.0", index_slots(0) * sizeof(uint64_t)));
  catalog->inodes_ = reinterpret_cast<std::atomic<uint32_t>*>(
      catalog->make_file("inodes.0", index_slots(0) * sizeof(uint32_t)));
  if (!catalog->index_ || !catalog->inodes_) return no_space("index.0");
  h->ready.store(1, std::memory_order_release);
  if (!catalog->reader_.open(catalog->run_dir_.c_str())) return no_space("catalog");
  return catalog;
}

// ---- going on with what an agent that was killed has left
//
// Each store that it made is there. Of what it was making, records behind used_bytes are made anew.

char* Catalog::open_file(const std::string& name, uint64_t bytes, Fd* file) {
  Fd fd(::open((run_dir_ + "/" + name).c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat st;
  if (!fd || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode) ||
      static_cast<uint64_t>(st.st_size) != bytes)
    return nullptr;
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return nullptr;
  mappings_.emplace_back(address, bytes);
  *file = std::move(fd);
  return static_cast<char*>(address);
}

bool Catalog::open_header(const std::vector<RootView>& roots, const std::vector<TierView>& tiers) {
  Fd file;
  auto* h = reinterpret_cast<CatalogHeader*>(open_file("catalog", sizeof(CatalogHeader), &file));
  if (!h || std::memcmp(h->magic, kCatalogMagic, sizeof h->magic) != 0 || h->version != kCatalogVersion ||
      h->bytes != sizeof(CatalogHeader) || h->ready.load(std::memory_order_acquire) == 0 ||
      h->space != own_space() || h->user != ::geteuid() || h->root_count != roots.size() ||
      h->tier_count != tiers.size())
    return false;
  for (size_t i = 0; i < roots.size(); ++i)
    if (h->roots[i].dev != roots[i].dev) return false;
  for (size_t i = 0; i < tiers.size(); ++i)
    if (h->tiers[i].dev != tiers[i].dev || h->tiers[i].ino != tiers[i].ino) return false;
  header_ = h;
  roots_ = static_cast<uint32_t>(roots.size());
  return true;
}

bool Catalog::open_indices() {
  Fd file;
  index_generation_ = header_->index_generation.load();
  inode_generation_ = header_->inode_generation.load();
  if (index_generation_ >= kMaxGenerations || inode_generation_ >= kMaxGenerations) return false;
  const uint64_t slots = index_slots(index_generation_), inode_slots = index_slots(inode_generation_);
  index_ = reinterpret_cast<std::atomic<uint64_t>*>(
      open_file("index." + std::to_string(index_generation_), slots * sizeof(uint64_t), &file));
  inodes_ = reinterpret_cast<std::atomic<uint32_t>*>(
      open_file("inodes." + std::to_string(inode_generation_), inode_slots * sizeof(uint32_t), &file));
  if (!index_ || !inodes_) return false;
  for (uint64_t i = 0; i < slots; ++i) index_used_ += index_[i].load(std::memory_order_relaxed) != 0;
  for (uint64_t i = 0; i < inode_slots; ++i) inodes_used_ += inodes_[i].load(std::memory_order_relaxed) != 0;
  added_ = header_->entry_count.load();
  return true;
}

bool Catalog::open_segments(Space space, uint64_t used) {
  const auto number = static_cast<uint32_t>(space);
  SpaceState& s = spaces_[number];
  if (used <= s.used) return true;
  const uint32_t last = segment_of(used - 1);
  for (uint32_t k = 0; k <= last; ++k) {
    char* base = k < kMaxSegments ? open_file(std::string(kSpaceNames[number]) + "." + std::to_string(k),
                                              segment_bytes(k), &s.newest)
                                  : nullptr;
    if (!base) return false;
    segments_[number][k].store(base, std::memory_order_release);
  }
  const uint64_t piece = segment_bytes(last) / kPiecesOfSegment;
  s.allocated = (used - segment_start(last) + piece - 1) / piece * piece;
  s.used = used;
  ends_[number].store(used, std::memory_order_release);
  return true;
}

// The last one may be in the index, and not yet in used_bytes.
uint64_t Catalog::find_entries_end() const {
  uint64_t end = header_->used_bytes[static_cast<uint32_t>(Space::kEntries)].load();
  const uint64_t slots = index_slots(index_generation_);
  for (uint64_t i = 0; i < slots; ++i)
    if (const uint64_t slot = index_[i].load(std::memory_order_relaxed); slot != 0)
      end = std::max(end, (slot & UINT32_MAX) * 8 + sizeof(Entry));
  return end;
}

bool Catalog::resume_entries() {
  const uint64_t slots = index_slots(index_generation_);
  uint64_t end = spaces_[static_cast<uint32_t>(Space::kEntries)].used;
  for (uint64_t i = 0; i < slots; ++i) {
    const auto ref = static_cast<Ref>(index_[i].load(std::memory_order_relaxed));
    const auto* e = ref ? record<Entry>(Space::kEntries, ref) : nullptr;
    if (ref && !e) return false;
    if (!e) continue;
    end = std::max(end, uint64_t{ref} * 8 + round8(sizeof(Entry) + e->name_len));
    resume_directory(e->dir);
    resume_entry(ref);
  }
  if (!open_segments(Space::kEntries, end)) return false;
  end_entries();
  return true;
}

void Catalog::resume_directory(Ref ref) {
  const auto* d = record<DirPath>(Space::kDirs, ref);
  const uint32_t len = d ? read_once(d->len) : 0;
  if (!d || !at(Space::kDirs, ref, sizeof(DirPath) + len)) return;
  const uint32_t hash = path_hash(d->root, d->path, len);
  const auto [first, last] = directories_.equal_range(hash);
  if (std::none_of(first, last, [ref](const auto& known) { return known.second == ref; }))
    directories_.emplace(hash, ref);
}

// And those by which it was replaced. One that was to replace it, and was still in work, is forgotten.
void Catalog::resume_entry(Ref ref) {
  note_entry(ref);
  const Ref next = again_of(record<Entry>(Space::kEntries, ref)->state.load());
  if (!next || !record<Entry>(Space::kEntries, next) || again_[ref].turn == kMostAgain) return;
  const int turn = again_[ref].turn + 1;
  again_[ref].next = next;
  again_[next].turn = turn;
  resume_entry(next);
}

Result<std::unique_ptr<Catalog>> Catalog::resume(const std::string& run_dir,
                                                 const std::vector<RootView>& roots,
                                                 const std::vector<TierView>& tiers,
                                                 const ReadPolicy& policy) {
  std::unique_ptr<Catalog> catalog(new Catalog(run_dir, policy.max_entries));
  const MutexLock hold(catalog->lock_);
  catalog->resumed_ = true;
  bool whole = catalog->open_header(roots, tiers) && catalog->open_indices() &&
               catalog->open_segments(Space::kEntries, catalog->find_entries_end());
  for (const Space space : {Space::kDirs, Space::kIdents, Space::kChunks, Space::kLists})
    whole = whole &&
            catalog->open_segments(space, catalog->header_->used_bytes[static_cast<uint32_t>(space)].load());
  if (!whole || !catalog->resume_entries() || !catalog->reader_.open(catalog->run_dir_.c_str()))
    return Error{EINVAL, run_dir + ": there is no catalog of these datasets and tiers to go on with"};
  return catalog;
}

char* Catalog::at(Space space, Ref ref, uint64_t bytes) {
  const uint64_t offset = uint64_t{ref} * 8;
  if (ref == 0 || offset + bytes > ends_[static_cast<uint32_t>(space)].load(std::memory_order_acquire))
    return nullptr;
  const uint32_t k = segment_of(offset);
  if (offset + bytes > segment_start(k) + segment_bytes(k)) return nullptr;
  char* base = segments_[static_cast<uint32_t>(space)][k].load(std::memory_order_acquire);
  return base ? base + (offset - segment_start(k)) : nullptr;
}

bool Catalog::allocate_in_segment(Space space, uint32_t k, uint64_t end) {
  const auto number = static_cast<uint32_t>(space);
  SpaceState& s = spaces_[number];
  std::atomic<char*>& segment = segments_[number][k];
  const uint64_t piece = segment_bytes(k) / kPiecesOfSegment;
  const uint64_t wanted = (end + piece - 1) / piece * piece;
  if (!segment.load(std::memory_order_relaxed)) {
    char* base = make_file(std::string(kSpaceNames[number]) + "." + std::to_string(k), segment_bytes(k),
                           wanted, &s.newest);
    if (!base) return false;
    s.allocated = wanted;
    segment.store(base, std::memory_order_release);
  }
  if (wanted > s.allocated && !allocate_piece(s.newest.get(), s.allocated, wanted)) return false;
  s.allocated = std::max(s.allocated, wanted);
  return true;
}

Ref Catalog::allocate(Space space, uint64_t bytes) {
  const auto number = static_cast<uint32_t>(space);
  SpaceState& s = spaces_[number];
  bytes = round8(bytes);
  uint64_t offset = s.used;
  uint32_t k = segment_of(offset);
  while (k < kMaxSegments && offset + bytes > segment_start(k) + segment_bytes(k)) {
    // What is left over stays zero.
    if (offset > segment_start(k) && !allocate_in_segment(space, k, segment_bytes(k))) return 0;
    offset = segment_start(++k);
  }
  if (k >= kMaxSegments || !allocate_in_segment(space, k, offset + bytes - segment_start(k))) return 0;
  s.used = offset + bytes;
  ends_[number].store(s.used, std::memory_order_release);
  // That of the entries tells how far they are complete: end_entries() stores it.
  if (space != Space::kEntries) header_->used_bytes[number].store(s.used, std::memory_order_relaxed);
  return static_cast<Ref>(offset / 8);
}

Ref Catalog::directory(uint32_t root, const char* path, uint32_t len) {
  const uint32_t hash = path_hash(root, path, len);
  const auto [first, last] = directories_.equal_range(hash);
  for (auto known = first; known != last; ++known) {
    const auto* d = reinterpret_cast<const DirPath*>(at(Space::kDirs, known->second, sizeof(DirPath) + len));
    if (d && d->root == root && d->len == len && std::memcmp(d->path, path, len) == 0) return known->second;
  }
  const Ref ref = allocate(Space::kDirs, sizeof(DirPath) + len);
  if (!ref) return 0;
  auto* d = record<DirPath>(Space::kDirs, ref);
  d->len = len;
  d->root = root;
  std::memcpy(d->path, path, len);
  directories_.emplace(hash, ref);
  return ref;
}

Ref Catalog::add(const RelPath& path, uint8_t type) {
  const auto settled = [&](const Found& found) {
    return found && (type == DT_UNKNOWN || found.entry->type.load(std::memory_order_relaxed) != DT_UNKNOWN);
  };
  if (const Found found = reader_.find(path); settled(found)) return found.ref;
  const MutexLock hold(lock_);
  const Found found = reader_.find(path);
  if (!found) return add_locked(path, type);
  if (!settled(found)) set_type(found.ref, type);
  return found.ref;
}

// A task asked for the path before the walk saw it. Devices and FIFOs stay of unknown type: whoever stages
// them looks before it opens.
void Catalog::set_type(Ref ref, uint8_t type) {
  Entry& e = entry(ref);
  const bool file = e.identity.load(std::memory_order_relaxed) != 0;
  if (type == DT_REG || (!file && (type == DT_DIR || type == DT_LNK)))
    e.type.store(type, std::memory_order_release);
}

Ref Catalog::add_blocks(const std::vector<NameInDirectory>& names) {
  Ref first = 0;
  ListBlock* last = nullptr;
  for (size_t at = 0; at < names.size(); at += kNamesInBlock) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(kNamesInBlock, names.size() - at));
    const Ref ref = allocate(Space::kLists, sizeof(ListBlock) + count * sizeof(ListedName));
    if (!ref) return 0;
    auto* block = record<ListBlock>(Space::kLists, ref);
    block->first = static_cast<uint32_t>(at);
    block->count = count;
    for (uint32_t i = 0; i < count; ++i) {
      const NameInDirectory& name = names[at + i];
      block->names[i] = {name.entry,
                         {static_cast<uint32_t>(name.ino), static_cast<uint32_t>(name.ino >> 32)}};
    }
    if (last) last->next = ref;
    if (!first) first = ref;
    last = block;
  }
  return first;
}

bool Catalog::add_listing(const RelPath& path, const struct stat& st,
                          const std::vector<NameInDirectory>& names) {
  const MutexLock hold(lock_);
  const Found found = path.len ? reader_.find(path) : Found{};
  if (path.len && (!found || found.entry->type.load(std::memory_order_relaxed) != DT_DIR)) return false;
  const Ref blocks = add_blocks(names);
  if (!blocks && !names.empty()) return false;
  const Ref ref = allocate(Space::kLists, sizeof(Listing));
  if (!ref) return false;
  auto* listing = record<Listing>(Space::kLists, ref);
  *listing = {st.st_dev, st.st_ino, ns_of(st.st_mtim), ns_of(st.st_ctim), static_cast<uint32_t>(names.size()),
              blocks};
  (path.len ? entry(found.ref).identity : header_->roots[path.root].listing)
      .store(ref, std::memory_order_release);
  return true;
}

Ref Catalog::add_again(Ref before) {
  const std::string text = path_of(before);
  if (text.empty()) return 0;
  const RelPath path = rel_path(root_of(before), text.data(), text.size());
  const MutexLock hold(lock_);
  Again& again = again_[before];
  if (again.next) return move(again.next, again_word(before), anew_word(before)) ? again.next : 0;
  const Ref ref = again.turn < kMostAgain ? make_entry(path, DT_REG, anew_word(before)) : 0;
  if (!ref) return 0;
  again_[ref].turn = again.turn + 1;
  note_entry(ref);
  again.next = ref;
  end_entries();
  return ref;
}

Ref Catalog::add_locked(const RelPath& path, uint8_t type) {
  if (added_ >= max_entries_) return 0;
  const bool stageable = type == DT_REG || type == DT_UNKNOWN;
  const Ref ref = make_entry(
      path, type,
      stageable ? state_word(State::kKnown)
                : state_word(State::kPass, type == DT_LNK ? Reason::kSymlink : Reason::kNotRegular));
  if (!ref || !index_entry(path.hash, ref)) return 0;
  ++added_;
  return ref;
}

Ref Catalog::make_entry(const RelPath& path, uint8_t type, uint64_t state) {
  const uint32_t name_at = path.dir_len ? path.dir_len + 1 : 0;
  if (path.len - name_at > std::numeric_limits<uint16_t>::max()) return 0;
  const Ref dir = directory(path.root, path.path, path.dir_len);
  if (!dir) return 0;
  const Ref ref = allocate(Space::kEntries, sizeof(Entry) + path.len - name_at);
  if (!ref) return 0;
  auto* e = record<Entry>(Space::kEntries, ref);
  e->state.store(state, std::memory_order_relaxed);
  e->size.store(0, std::memory_order_relaxed);
  e->mtime.store(0, std::memory_order_relaxed);
  e->identity.store(0, std::memory_order_relaxed);
  e->dir = dir;
  e->hash = path.hash;
  e->name_len = static_cast<uint16_t>(path.len - name_at);
  e->root = static_cast<uint8_t>(path.root);
  e->type.store(type, std::memory_order_relaxed);
  std::memcpy(e->name, path.path + name_at, path.len - name_at);
  return ref;
}

std::atomic<uint64_t>* Catalog::entry_bits(uint32_t segment) const {
  return entry_bits_[segment].load(std::memory_order_acquire);
}

void Catalog::note_entry(Ref ref) {
  const uint32_t k = segment_of(uint64_t{ref} * 8);
  std::atomic<uint64_t>* bits = entry_bits(k);
  if (!bits) {  // the kernel gives the memory as the bits are set
    bits = static_cast<std::atomic<uint64_t>*>(std::calloc(segment_bytes(k) / 512, sizeof(uint64_t)));
    if (!bits) no_memory_is_left();
    entry_bits_[k].store(bits, std::memory_order_release);
  }
  const uint64_t bit = ref - segment_start(k) / 8;
  bits[bit / 64].fetch_or(uint64_t{1} << (bit % 64), std::memory_order_release);
}

bool Catalog::is_entry(Ref ref) {
  if (!at(Space::kEntries, ref, sizeof(Entry))) return false;
  const uint32_t k = segment_of(uint64_t{ref} * 8);
  const uint64_t bit = ref - segment_start(k) / 8;
  const std::atomic<uint64_t>* bits = entry_bits(k);
  return bits && (bits[bit / 64].load(std::memory_order_acquire) >> (bit % 64) & 1) != 0;
}

bool Catalog::index_entry(uint32_t hash, Ref ref) {
  uint32_t generation = index_generation_;
  uint64_t slots = index_slots(generation);
  if ((index_used_ + 1) * 4 > slots * 3) {
    if (generation + 1 == kMaxGenerations) return false;
    auto* larger = reinterpret_cast<std::atomic<uint64_t>*>(
        make_file("index." + std::to_string(generation + 1), 2 * slots * sizeof(uint64_t)));
    if (!larger) return false;
    const uint64_t mask = 2 * slots - 1;
    for (uint64_t i = 0; i < slots; ++i) {
      const uint64_t slot = index_[i].load(std::memory_order_relaxed);
      if (slot == 0) continue;
      uint64_t j = free_slot(larger, mask, slot >> 32);
      if (j <= mask) larger[j].store(slot, std::memory_order_relaxed);
    }
    index_ = larger;
    slots *= 2;
    index_generation_ = ++generation;
    header_->index_generation.store(generation, std::memory_order_release);
  }
  const uint64_t mask = slots - 1;
  const uint64_t i = free_slot(index_, mask, hash);
  if (i > mask) return false;
  note_entry(ref);
  index_[i].store(index_slot(hash, ref), std::memory_order_release);
  ++index_used_;
  header_->entry_count.fetch_add(1, std::memory_order_relaxed);
  end_entries();
  return true;
}

void Catalog::end_entries() {
  const uint64_t used = spaces_[static_cast<uint32_t>(Space::kEntries)].used;
  entries_end_.store(used, std::memory_order_release);
  header_->used_bytes[static_cast<uint32_t>(Space::kEntries)].store(used, std::memory_order_release);
}

bool Catalog::index_identity(uint32_t tier, uint64_t ino, Ref ref) {
  uint64_t slots = index_slots(inode_generation_);
  if ((inodes_used_ + 1) * 4 > slots * 3) {
    // As large as the path index is by now: few generations, little space in old ones.
    const uint32_t next = std::max(inode_generation_ + 1, index_generation_);
    if (next >= kMaxGenerations) return false;
    const uint64_t wanted = index_slots(next);
    auto* larger = reinterpret_cast<std::atomic<uint32_t>*>(
        make_file("inodes." + std::to_string(next), wanted * sizeof(uint32_t)));
    if (!larger) return false;
    inodes_used_ = 0;
    for (uint64_t i = 0; i < slots; ++i) {
      const Ref old = inodes_[i].load(std::memory_order_relaxed);
      if (old == 0) continue;
      const auto* id = record<Identity>(Space::kIdents, old);
      const uint32_t of_tier = id ? id->tier.load(std::memory_order_relaxed) : kNoTier;
      if (of_tier == kNoTier) continue;
      const uint64_t j = free_slot(larger, wanted - 1, inode_hash(of_tier, id->tier_ino));
      if (j < wanted) larger[j].store(old, std::memory_order_relaxed), ++inodes_used_;
    }
    inodes_ = larger;
    slots = wanted;
    inode_generation_ = next;
    header_->inode_generation.store(next, std::memory_order_release);
  }
  // A copy that had this inode before is gone.
  uint64_t slot = slots, i = inode_hash(tier, ino) & (slots - 1), probes = 0;
  for (; probes < slots; i = (i + 1) & (slots - 1), ++probes) {
    const Ref there = inodes_[i].load(std::memory_order_relaxed);
    if (there == 0) break;
    auto* id = record<Identity>(Space::kIdents, there);
    uint32_t of_tier = id ? id->tier.load(std::memory_order_relaxed) : kNoTier;
    if (of_tier == tier && there != ref && id->tier_ino == ino) {
      id->tier.store(kNoTier, std::memory_order_release);
      of_tier = kNoTier;
    }
    if (of_tier == kNoTier && slot == slots) slot = i;
  }
  if (slot == slots && probes == slots) return false;
  if (slot == slots) slot = i, ++inodes_used_;
  inodes_[slot].store(ref, std::memory_order_release);
  return true;
}

void Catalog::forget_copy(Ref identity) {
  auto* id = record<Identity>(Space::kIdents, identity);
  const uint32_t tier = id ? id->tier.load(std::memory_order_relaxed) : kNoTier;
  if (tier == kNoTier || tier == kNoCopy) return;
  id->tier.store(kNoTier, std::memory_order_release);
  const uint64_t mask = index_slots(inode_generation_) - 1;
  for (uint64_t i = inode_hash(tier, id->tier_ino) & mask, probes = 0; probes <= mask;
       i = (i + 1) & mask, ++probes) {
    const Ref there = inodes_[i].load(std::memory_order_relaxed);
    if (there == identity) inodes_[i].store(kDeadSlot, std::memory_order_release);
    if (there == identity || there == 0) return;
  }
}

// An entry whose copies come and go takes no more room each time, as long as the file is the same.
Ref Catalog::identity_for(Ref ref, const struct stat& source) {
  const Entry& e = entry(ref);
  const Ref before = reader_.identity_of(e) ? e.identity.load(std::memory_order_relaxed) : 0;
  auto* id = before ? record<Identity>(Space::kIdents, before) : nullptr;
  if (!id) return add_identity(ref, source);
  forget_copy(before);
  const Ref attributes = attributes_of(source);
  Identity now{};
  fill(&now, ref, attributes, source);
  const bool same = attributes && id->entry == ref && id->attributes == attributes &&
                    id->pfs_ino == now.pfs_ino && id->atime == now.atime && id->ctime == now.ctime &&
                    id->blocks == now.blocks;
  return same ? before : add_identity(ref, source);
}

void Catalog::retire(Ref ref) {
  const Entry& e = entry(ref);
  const MutexLock hold(lock_);
  if (reader_.identity_of(e)) forget_copy(e.identity.load(std::memory_order_relaxed));
}

Ref Catalog::attributes_of(const struct stat& st) {
  Attributes wanted{};
  wanted.dev = st.st_dev;
  wanted.mode = st.st_mode;
  wanted.uid = st.st_uid;
  wanted.gid = st.st_gid;
  wanted.nlink = static_cast<uint32_t>(st.st_nlink);
  wanted.blksize = static_cast<uint32_t>(st.st_blksize);
  // Files of a dataset are much alike: the newest ones first, and not more than a few.
  const size_t newest = attributes_.size();
  for (size_t i = 0; i < std::min<size_t>(newest, 64); ++i) {
    const Ref ref = attributes_[newest - 1 - i];
    if (std::memcmp(record<Attributes>(Space::kDirs, ref), &wanted, sizeof wanted) == 0) return ref;
  }
  const Ref ref = allocate(Space::kDirs, sizeof(Attributes));
  if (!ref) return 0;
  std::memcpy(record<Attributes>(Space::kDirs, ref), &wanted, sizeof wanted);
  attributes_.push_back(ref);
  return ref;
}

Entry& Catalog::entry(Ref ref) { return is_entry(ref) ? *record<Entry>(Space::kEntries, ref) : *nobodys_; }

uint32_t Catalog::root_of(Ref ref) {
  const uint32_t root = read_once(entry(ref).root);
  return root < roots_ ? root : 0;
}

std::string Catalog::path_of(Ref ref) {
  const Entry* e = is_entry(ref) ? reader_.entry(ref) : nullptr;
  std::string text(e ? reader_.path_bytes(*e) : 0, '\0');
  RelPath path;
  if (text.empty() || !reader_.path_of(*e, text.data(), text.size(), &path)) return {};
  text.resize(path.len);
  return text;
}

bool Catalog::move(Ref ref, uint64_t from, uint64_t to) {
  return entry(ref).state.compare_exchange_strong(from, to, std::memory_order_acq_rel);
}

Ref Catalog::add_identity(Ref ref, const struct stat& source) {
  const Ref attributes = attributes_of(source);
  const Ref own = attributes ? allocate(Space::kIdents, sizeof(Identity)) : 0;
  if (!own) return 0;
  fill(record<Identity>(Space::kIdents, own), ref, attributes, source);
  return own;
}

void Catalog::fill(Identity* id, Ref entry, Ref attributes, const struct stat& source) {
  id->pfs_ino = source.st_ino;
  id->atime = ns_of(source.st_atim);
  id->ctime = ns_of(source.st_ctim);
  id->entry = entry;
  id->attributes = attributes;
  id->blocks = static_cast<uint32_t>(std::min<uint64_t>(static_cast<uint64_t>(source.st_blocks), 0xffffffff));
  id->tier.store(kNoTier, std::memory_order_relaxed);
}

bool Catalog::add_seen(const Seen& seen) {
  if (!is_entry(seen.entry) || !reader_.is_entry(seen.entry, seen.hash)) return false;
  const FileValues& values = seen.values;
  Entry& e = entry(seen.entry);
  const uint8_t type = e.type.load(std::memory_order_relaxed);
  if ((type != DT_REG && type != DT_LNK) || static_cast<uint32_t>(DTTOIF(type)) != (values.mode & S_IFMT) ||
      values.dev != header_->roots[root_of(seen.entry)].dev)
    return false;
  struct stat st {};
  st.st_dev = values.dev;
  st.st_ino = values.ino;
  st.st_mode = values.mode;
  st.st_uid = values.uid;
  st.st_gid = values.gid;
  st.st_nlink = values.nlink;
  st.st_blksize = values.blksize;
  st.st_blocks = static_cast<blkcnt_t>(values.blocks);
  st.st_atim = {values.atime / kSecond, values.atime % kSecond};
  st.st_ctim = {values.ctime / kSecond, values.ctime % kSecond};
  const MutexLock hold(lock_);
  if (e.identity.load(std::memory_order_relaxed) != 0 ||
      state_of(e.state.load(std::memory_order_relaxed)) == State::kDropped)
    return false;
  const Ref attributes = attributes_of(st);
  const Ref own = attributes ? allocate(Space::kIdents, sizeof(SeenFile)) : 0;
  if (!own) return false;
  auto* file = record<SeenFile>(Space::kIdents, own);
  fill(&file->identity, seen.entry, attributes, st);
  file->size = values.size;
  file->mtime = values.mtime;
  file->identity.tier.store(kNoCopy, std::memory_order_relaxed);
  e.identity.store(own, std::memory_order_release);
  return true;
}

Ref Catalog::enter_copy(Ref ref, uint32_t tier, uint64_t tier_ino, const struct stat& source) {
  Entry& e = entry(ref);
  if (e.type.load(std::memory_order_relaxed) == DT_DIR) return 0;  // the walk saw one there meanwhile
  // A large file has had its identity since its first chunk.
  const bool large = state_of(e.state.load(std::memory_order_relaxed)) == State::kLarge;
  Ref own = large && reader_.identity_of(e) ? e.identity.load(std::memory_order_relaxed) : 0;
  if (!own) own = identity_for(ref, source);
  auto* id = own ? record<Identity>(Space::kIdents, own) : nullptr;
  if (!id) return 0;
  __atomic_store_n(&id->tier_ino, tier_ino, __ATOMIC_RELAXED);
  id->tier.store(tier, std::memory_order_release);
  return own;
}

bool Catalog::place(Ref ref, uint32_t tier, uint64_t tier_ino, const struct stat& source, uint32_t change) {
  Entry& e = entry(ref);
  const MutexLock hold(lock_);
  const Ref own = enter_copy(ref, tier, tier_ino, source);
  if (!own || !index_identity(tier, tier_ino, own)) return false;
  e.identity.store(own, std::memory_order_release);
  e.state.store(placed_word(tier, change), std::memory_order_release);
  return true;
}

bool Catalog::place_link(Ref ref, uint32_t tier, uint64_t tier_ino, const struct stat& source) {
  Entry& e = entry(ref);
  const MutexLock hold(lock_);
  const Ref own = enter_copy(ref, tier, tier_ino, source);
  if (!own) return false;
  e.identity.store(own, std::memory_order_release);
  e.state.store(placed_word(tier, 0), std::memory_order_release);
  return true;
}

Ref Catalog::start_chunks(Ref ref, uint32_t tier, const struct stat& source) {
  Entry& e = entry(ref);
  const MutexLock hold(lock_);
  if (e.type.load(std::memory_order_relaxed) == DT_DIR) return 0;
  const uint32_t count = chunk_count(static_cast<uint64_t>(source.st_size));
  const Ref chunks = allocate(Space::kChunks, sizeof(Chunks) + (uint64_t{count} + 63) / 64 * 8);
  const Ref own = chunks ? identity_for(ref, source) : 0;
  if (!own) return 0;
  auto* c = record<Chunks>(Space::kChunks, chunks);
  c->entry = ref;
  c->tier = tier;
  c->count = count;
  e.identity.store(own, std::memory_order_release);
  e.state.store(large_word(chunks), std::memory_order_release);
  return chunks;
}

void Catalog::set_chunk(Ref chunks, uint32_t n) {
  const MutexLock hold(lock_);
  auto* c = reinterpret_cast<Chunks*>(
      at(Space::kChunks, chunks, sizeof(Chunks) + (uint64_t{n} / 64 + 1) * sizeof(uint64_t)));
  if (c) c->bits[n / 64].fetch_or(uint64_t{1} << (n % 64), std::memory_order_release);
}

void Catalog::close_chunks(Ref chunks) {
  const MutexLock hold(lock_);
  if (auto* c = record<Chunks>(Space::kChunks, chunks)) c->closed.store(1, std::memory_order_release);
}

void Catalog::set_tier_failed(uint32_t tier, bool failed) {
  header_->tiers[tier].failed.store(failed ? 1 : 0, std::memory_order_release);
}

void Catalog::drop(Ref ref, State state, Reason reason) {
  Entry& e = entry(ref);
  e.state.store(state_word(state, reason), std::memory_order_release);
  retire(ref);
}

// In the order of the entries' bits: what stands in the mapped records is the owner's to change.
uint64_t Catalog::walk(uint64_t cursor, const std::function<bool(Ref)>& visit) {
  uint64_t at = std::max<uint64_t>(cursor, 8) / 8;
  for (uint64_t end; at < (end = entries_end_.load(std::memory_order_acquire) / 8);) {
    const uint32_t k = segment_of(at * 8);
    const uint64_t bit = at - segment_start(k) / 8;
    const std::atomic<uint64_t>* bits = entry_bits(k);
    const uint64_t rest = bits ? bits[bit / 64].load(std::memory_order_acquire) >> (bit % 64) : 0;
    // Not beyond the end: there will be the next entries, and one of them may have its bit already.
    at = std::min(end, at + (rest ? static_cast<uint64_t>(__builtin_ctzll(rest)) : 64 - bit % 64));
    if (rest == 0 || at == end) continue;
    if (!visit(static_cast<Ref>(at))) break;
    ++at;
  }
  return at * 8;
}

void Catalog::set_walked(uint32_t root) { header_->roots[root].walked.store(1, std::memory_order_release); }

}  // namespace monarch
