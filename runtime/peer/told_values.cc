// SPDX-License-Identifier: Apache-2.0
//
// A value may come after the mark of a change that it does not show: the two come from different nodes, by
// different connections, and a node may tell of a file just before it hears that the job has changed it. That
// does no harm, in whichever order they come:
// - A mark is for good: in a job of several nodes no file is staged again, so nothing takes a mark back.
// - Tasks look at the marks after they have found values, at each answer. A value brings its inode, so it is
//   known by the mark of that, too, which is all that tells of a change under another name.
// - What is marked here is neither entered nor told; and who is met hears of all marks there and then.
// So a node serves a value that is too old exactly as long as one of its own: until it hears of the mark.
#include "runtime/peer/told_values.h"

#include <dirent.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "runtime/base/mountinfo.h"
#include "runtime/metadata/board.h"
#include "runtime/peer/changes.h"

namespace monarch {
namespace {

constexpr size_t kMostLog = 16 << 20;    // values that are told of
constexpr size_t kMostBytes = 48 << 10;  // of a message; one path more always fits
constexpr size_t kMostOnTheirWay = 16;   // nodes that are told at a time
constexpr int64_t kSecondNs = 1'000'000'000, kMsNs = 1'000'000;
constexpr int64_t kLateNs =
    patience::kPeerSlowMs * kMsNs;  // who has not heard it then does not keep the others waiting
constexpr int64_t kAwayNs =
    patience::kPeerSlowMs * kMsNs;  // who was away is looked for again, if there is something to tell
constexpr int64_t kMountsNs = patience::kPeerRestMs * kMsNs;
constexpr size_t kFileBytes = 87;  // of a ToldFile beside its path
static_assert(kMostBytes + kFileBytes + kMostPeerPath + 16 <= kMostBody);

// As the kernel says it, also before 1970.
timespec time_of(int64_t ns) {
  const int64_t rest = (ns % kSecondNs + kSecondNs) % kSecondNs;
  return {(ns - rest) / kSecondNs, rest};
}

}  // namespace

ToldValues::ToldValues(ToldValuesOptions options, Clock& clock)
    : options_(std::move(options)), clock_(clock), nodes_(options_.nodes) {
  nodes_.at(options_.own).away = true;
}

// ---- what this node tells

void ToldValues::learned(Ref ref) {
  if (!is_shared()) return;
  {
    const MutexLock hold(lock_);
    if (log_.size() + fresh_.size() >= kMostLog) return;
    fresh_.push_back(ref);
    if (std::exchange(ringing_, true)) return;
  }
  ring_later();
}

// More nodes, more messages: each gets them the more seldom, some in a millisecond in all.
void ToldValues::ring_later() {
  options_.ring_after(std::max(options_.gather_ms, static_cast<int>(options_.nodes)));
}

// Of a copy that is not published yet there are no values: it may be on its way to its device.
void ToldValues::rings() {
  bool again = false;
  {
    const int64_t now = clock_.now_ns();
    const MutexLock hold(lock_);
    ringing_ = false;
    std::vector<Ref> unpublished;
    for (const Ref ref : fresh_) {
      const Entry& e = options_.catalog->entry(ref);
      const bool waits = state_of(e.state.load(std::memory_order_acquire)) == State::kStaging &&
                         e.identity.load(std::memory_order_acquire) == 0;
      (waits ? unpublished : log_).push_back(ref);
    }
    fresh_.swap(unpublished);
    again = !fresh_.empty();
    for (NodeIndex node = 0; node < options_.nodes; ++node)
      if (node != options_.own && now - nodes_[node].since_ns > kAwayNs) nodes_[node].away = false;
  }
  tell_on();
  if (again) options_.ring_after(10 * options_.gather_ms);
}

std::optional<NodeIndex> ToldValues::next_node(int64_t now_ns) {
  size_t on_their_way = 0;
  for (const Node& node : nodes_) on_their_way += node.asked != 0 && now_ns - node.since_ns < kLateNs;
  for (NodeIndex i = 0; on_their_way < kMostOnTheirWay && i < options_.nodes; ++i) {
    const Node& node = nodes_[turn_ = (turn_ + 1) % options_.nodes];
    if (!node.away && node.asked == 0 && node.told < log_.size()) return turn_;
  }
  return {};
}

void ToldValues::tell_on() {
  for (;;) {
    std::optional<NodeIndex> node;
    {
      const MutexLock hold(lock_);
      node = next_node(clock_.now_ns());
    }
    if (!node) return;
    tell(*node);
  }
}

void ToldValues::tell(NodeIndex node) {
  std::vector<Ref> refs;
  uint64_t at = 0;
  {
    const MutexLock hold(lock_);
    at = nodes_[node].told;
    const uint64_t end = std::min<uint64_t>(log_.size(), at + Told::kMost);
    refs.assign(log_.begin() + static_cast<ptrdiff_t>(at), log_.begin() + static_cast<ptrdiff_t>(end));
  }
  Told told;
  size_t bytes = 0;
  for (const Ref ref : refs) {
    if (bytes > kMostBytes) break;
    ++at;
    std::optional<ToldFile> file = file_of(ref);
    if (!file) continue;
    bytes += kFileBytes + file->path.size();
    told.files.push_back(std::move(*file));
  }
  told.turn = at;
  std::string message = encode(told);
  {
    const MutexLock hold(lock_);
    Node& n = nodes_[node];
    if (told.files.empty()) {
      n.told = at;
      return;
    }
    n.asked = at;
    n.since_ns = clock_.now_ns();
  }
  options_.tell(node, std::move(message));
}

std::optional<ToldFile> ToldValues::file_of(Ref ref) {
  const CatalogReader& reader = options_.catalog->reader();
  const Entry& e = options_.catalog->entry(ref);
  const uint64_t word = e.state.load(std::memory_order_acquire);
  const State state = state_of(word);
  const SeenFile* seen = reader.seen_file(e);
  const Identity* id = seen                                                ? &seen->identity
                       : state == State::kPlaced || state == State::kLarge ? reader.identity_of(e)
                                                                           : nullptr;
  const Attributes* attributes = id ? reader.attributes(id->attributes) : nullptr;
  constexpr uint32_t kTooMany = 0xffffffff;
  if (!attributes || state == State::kDropped || id->blocks == kTooMany || attributes->nlink == 0) return {};
  ToldFile file;
  file.root = options_.catalog->root_of(ref);
  file.path = options_.catalog->path_of(ref);
  if (file.path.empty() || file.path.size() >= kMostPeerPath ||
      attributes->dev != options_.dataset->roots[file.root].dev)
    return {};
  file.read = !seen && state == State::kPlaced ? 1 : 0;
  file.mode = attributes->mode;
  file.user = attributes->uid;
  file.group = attributes->gid;
  file.links = attributes->nlink;
  file.block_bytes = attributes->blksize;
  file.inode = id->pfs_ino;
  file.bytes = seen ? seen->size : e.size.load(std::memory_order_acquire);
  file.blocks = id->blocks;
  file.atime_ns = id->atime;
  file.mtime_ns = seen ? seen->mtime : e.mtime.load(std::memory_order_acquire);
  file.ctime_ns = id->ctime;
  const RelPath path = rel_path(file.root, file.path.data(), file.path.size());
  if (e.state.load(std::memory_order_acquire) != word || is_marked(*options_.board, path, file.inode))
    return {};
  return file;
}

// ---- who is there

void ToldValues::met(NodeIndex node, uint64_t incarnation) {
  {
    const MutexLock hold(lock_);
    Node& n = nodes_.at(node);
    if (std::exchange(n.incarnation, incarnation) != incarnation) n.told = 0;
    n.asked = 0;
    n.away = false;
  }
  tell_on();
}

void ToldValues::gone(NodeIndex node) {
  const MutexLock hold(lock_);
  Node& n = nodes_.at(node);
  n.asked = 0;
  n.away = true;
  n.since_ns = clock_.now_ns();
}

void ToldValues::heard(NodeIndex node, const Heard& heard) {
  {
    const MutexLock hold(lock_);
    Node& n = nodes_.at(node);
    if (n.asked == 0 || n.asked != heard.turn) return;  // it was told twice
    n.told = std::exchange(n.asked, 0);
  }
  tell_on();
}

// ---- what others tell

bool ToldValues::take(const Told& told) {
  const int64_t now = clock_.now_ns();
  return std::all_of(told.files.begin(), told.files.end(),
                     [&](const ToldFile& file) { return take(file, now); });
}

// What this node could not have learned by itself is not entered: below what is mounted here the PFS has
// other files, and where times have no fractions of a second what was changed since the job began may be
// changed again without a sign.
bool ToldValues::take(const ToldFile& file, int64_t now_ns) {
  if (file.root >= options_.dataset->roots.size() || file.path.size() >= kPathBytes ||
      !is_clean_relative(file.path.data(), file.path.size()) ||
      (!S_ISREG(file.mode) && !S_ISLNK(file.mode)) || file.links == 0)
    return false;
  const RelPath path = rel_path(file.root, file.path.data(), file.path.size());
  if (!is_shared() || is_marked(*options_.board, path, file.inode) ||
      !tells_changes(time_of(file.ctime_ns), options_.catalog->header().boot_time) ||
      has_mounts(file.root, now_ns))
    return true;
  const Ref ref = options_.catalog->add(path, static_cast<uint8_t>(IFTODT(file.mode)));
  if (ref == 0) return true;
  const Seen seen = {
      ref,
      path.hash,
      {options_.dataset->roots[file.root].dev, file.inode, file.bytes, file.blocks, file.atime_ns,
       file.mtime_ns, file.ctime_ns, file.mode, file.user, file.group, file.links, file.block_bytes, 0}};
  if (!options_.catalog->add_seen(seen) || file.read == 0 || !S_ISREG(file.mode)) return true;
  const MutexLock hold(lock_);
  if (read_.size() <= ref / 64) read_.resize(std::max<size_t>(2 * read_.size(), ref / 64 + 1));
  read_[ref / 64] |= uint64_t{1} << (ref % 64);
  return true;
}

// What is not known counts as mounted.
bool ToldValues::has_mounts(uint32_t root, int64_t now_ns) {
  const MutexLock hold(lock_);
  if (looked_ns_ && now_ns - *looked_ns_ < kMountsNs) return mounted_[root];
  looked_ns_ = now_ns;
  const std::vector<DatasetRoot>& roots = options_.dataset->roots;
  std::ifstream in(options_.mounts);
  mounted_.assign(roots.size(), !in);
  MountLine mount;
  for (std::string line; std::getline(in, line);)
    for (size_t i = 0; parse_mount_line(line, &mount) && i < roots.size(); ++i)
      if (mount.point.starts_with(roots[i].path + "/")) mounted_[i] = true;
  return mounted_[root];
}

bool ToldValues::are_told(Ref ref) {
  const MutexLock hold(lock_);
  return ref / 64 < read_.size() && (read_[ref / 64] >> (ref % 64) & 1) != 0;
}

std::optional<struct stat> ToldValues::values(Ref ref) {
  if (!are_told(ref)) return {};
  const CatalogReader& reader = options_.catalog->reader();
  const SeenFile* seen = reader.seen_file(options_.catalog->entry(ref));
  const Attributes* attributes = seen ? reader.attributes(seen->identity.attributes) : nullptr;
  const std::string text = options_.catalog->path_of(ref);
  const uint32_t root = options_.catalog->root_of(ref);
  if (!attributes ||
      is_marked(*options_.board, rel_path(root, text.data(), text.size()), seen->identity.pfs_ino))
    return {};
  struct stat st {};
  st.st_dev = options_.dataset->roots[root].dev;
  st.st_ino = seen->identity.pfs_ino;
  st.st_mode = attributes->mode;
  st.st_nlink = attributes->nlink;
  st.st_uid = attributes->uid;
  st.st_gid = attributes->gid;
  st.st_size = static_cast<off_t>(seen->size);
  st.st_blksize = attributes->blksize;
  st.st_blocks = seen->identity.blocks;
  st.st_atim = time_of(seen->identity.atime);
  st.st_mtim = time_of(seen->mtime);
  st.st_ctim = time_of(seen->identity.ctime);
  if (st.st_size < 0 || !S_ISREG(st.st_mode)) return {};  // the job's owner wrote that
  return st;
}

}  // namespace monarch
