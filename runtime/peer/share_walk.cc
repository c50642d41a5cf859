// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/share_walk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/layout/catalog_reader.h"
#include "runtime/metadata/board.h"

namespace monarch {
namespace {

constexpr NodeIndex kChildren = 8;
constexpr NodeIndex kLookedAt = 2;  // nodes that the first one asks whether they have begun without it
// Of a part, and of an entry of the log: two parts always fit.
constexpr size_t kPartBytes = 16 << 10, kEntryBytes = 32 << 10;
static_assert(kEntryBytes + kPartBytes + 2 * kMostPeerPath <= List::kMostParts);
constexpr size_t kNameBytes = 11;  // of a NameInList beside the name
constexpr size_t kHeadBytes = 42;  // of a ListPart beside path and names

bool is_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// Some file systems have longer names, or types of their own: whoever follows reads such a directory by
// itself.
bool fits_in_list(const WalkedDirectory& directory) {
  return std::all_of(directory.names.begin(), directory.names.end(), [](const WalkedName& name) {
    return name.name.size() <= NameInList::kMostBytes && name.type <= NameInList::kLastType;
  });
}

bool is_part(const ListPart& part) {
  const std::string& path = part.path;
  if (path.size() >= kPathBytes || (!path.empty() && !is_clean_relative(path.data(), path.size())))
    return false;
  for (const NameInList& name : part.names)
    if (!is_name(name.name)) return false;
  return true;
}

}  // namespace

// ---- the log

void ShareWalk::seal() {
  std::string bytes = encode_body(open_);
  log_bytes_ += bytes.size();
  log_.push_back(std::move(bytes));
  open_.parts.clear();
  open_bytes_ = 0;
}

void ShareWalk::add_part(ListPart part) {
  const MutexLock hold(lock_);
  open_bytes_ += kHeadBytes + part.path.size();
  for (const NameInList& name : part.names) open_bytes_ += kNameBytes + name.name.size();
  open_.parts.push_back(std::move(part));
  if (open_bytes_ >= kEntryBytes) seal();
}

// Who is not told reads by itself, so what a log has no room for is left out, and nothing else ends. The lock
// is held for a part at a time: the thread that answers waits for it.
void ShareWalk::read(const WalkedDirectory& directory) {
  size_t all = kHeadBytes + directory.path.size();
  for (const WalkedName& name : directory.names) all += kNameBytes + name.name.size();
  {
    const MutexLock hold(lock_);
    ++progress_;
    if (log_bytes_ + open_bytes_ + all > options_.most_log || !fits_in_list(directory)) return;
  }
  ListPart head;
  head.root = directory.root;
  head.path = directory.path;
  head.listing = static_cast<uint8_t>(directory.listing);
  head.inode = directory.ino;
  head.mtime_ns = directory.mtime_ns;
  head.ctime_ns = directory.ctime_ns;
  ListPart part = head;
  size_t bytes = 0;
  for (const WalkedName& name : directory.names) {
    if (bytes >= kPartBytes) {
      head.before += part.names.size();
      add_part(std::exchange(part, head));
      bytes = 0;
    }
    part.names.push_back({name.name, name.type, name.ino});
    bytes += kNameBytes + name.name.size();
  }
  part.last = 1;
  add_part(std::move(part));
}

void ShareWalk::reads() {
  const MutexLock hold(lock_);
  ++progress_;
}

void ShareWalk::ended() {
  const MutexLock hold(lock_);
  state_ = WalkState::kEnded;
}

List ShareWalk::answer(const Walk& question) {
  const MutexLock hold(lock_);
  List list;
  list.log = options_.log;
  list.progress = progress_;
  const uint64_t from = question.log == options_.log ? question.from : 0;
  if (from >= log_.size() && !open_.parts.empty()) seal();
  const bool more = from < log_.size();
  if (more) list.parts = log_[from];
  list.next = more ? from + 1 : log_.size();
  const bool all = list.next == log_.size() && open_.parts.empty();
  list.state = state_ == WalkState::kEnded && !all ? WalkState::kWalks : state_;
  return list;
}

// ---- what others tell

bool ShareWalk::take(NodeIndex from, ListPart* part) {
  if (!is_part(*part)) return false;
  Incomplete& coming = incomplete_[from];
  WalkedDirectory& directory = coming.directories[{part->root, part->path}];
  if (part->before == 0) {
    coming.names -= std::min(coming.names, directory.names.size());
    directory = {part->root,  part->path,     static_cast<WalkedDirectory::Listed>(part->listing),
                 part->inode, part->mtime_ns, part->ctime_ns,
                 {}};
  }
  // No log has so many.
  const bool too_many = coming.names > options_.most_log / kNameBytes ||
                        coming.directories.size() > options_.most_log / kHeadBytes;
  if (directory.names.size() != part->before || too_many) {
    incomplete_.erase(from);
    return false;
  }
  coming.names += part->names.size();
  for (NameInList& name : part->names)
    directory.names.push_back({std::move(name.name), name.type, name.inode});
  if (part->last == 0) return true;
  // Told on only if it was new: two nodes that follow each other for a moment come to an end.
  if (walker_->enter(directory)) read(directory);
  coming.names -= std::min(coming.names, directory.names.size());
  coming.directories.erase({part->root, part->path});
  return true;
}

void ShareWalk::take(NodeIndex from, const List& list) {
  std::optional<ListParts> parts = list.parts.empty() ? ListParts() : decode<ListParts>(list.parts);
  bool right = parts.has_value();
  for (size_t i = 0; right && i < parts->parts.size(); ++i) right = take(from, &parts->parts[i]);
  if (!right) options_.wrong(from);
}

Result<List> ShareWalk::ask(NodeIndex node) {
  Walk& place = places_[node];
  Result<List> list = options_.ask(node, place);
  if (!list.ok() || list->state == WalkState::kNone) return list;
  place = {list->log, list->next};
  return list;
}

Result<List> ShareWalk::ask_up(NodeIndex walker, Up up, NodeIndex* asked) {
  NodeIndex place = (options_.own + options_.nodes - walker) % options_.nodes;
  Result<List> list = Error{EAGAIN, "not asked"};
  do {
    place = (place - 1) / kChildren;
    *asked = (walker + place) % options_.nodes;
    list = ask(*asked);
    if (list.ok() && list->state != WalkState::kNone) return list;
  } while (up == Up::kAnyOf && place != 0);
  return list.ok() || place != 0 ? Result<List>(Error{EAGAIN, "it has no walk"}) : std::move(list);
}

// ---- who walks

// As it is told: two nodes that follow each other hear nothing new.
bool ShareWalk::note_progress(uint64_t progress) {
  const MutexLock hold(lock_);
  return std::exchange(progress_, progress) != progress;
}

bool ShareWalk::is_stopping() {
  const MutexLock hold(lock_);
  return stopping_;
}

bool ShareWalk::nap(int ms) {
  for (int left = ms; left > 0 && !is_stopping(); left -= patience::kPeerSoonMs)
    clock_.sleep_ns(std::min(left, patience::kPeerSoonMs) * int64_t{1'000'000});
  return !is_stopping();
}

// Not whoever follows: it may have come to follow this node.
std::optional<NodeIndex> ShareWalk::walks_already() {
  for (NodeIndex i = 1; i <= kLookedAt && i < options_.nodes; ++i) {
    const NodeIndex node = (options_.own + i) % options_.nodes;
    const Result<List> list = ask(node);
    if (!list.ok()) continue;
    take(node, *list);
    if (list->state == WalkState::kWalks || list->state == WalkState::kEnded) return node;
  }
  return {};
}

ShareWalk::End ShareWalk::follow() {
  const int64_t begun = clock_.now_ms();
  int64_t heard = begun;
  NodeIndex walker = 0;
  bool looked = false, gone = false;
  for (;;) {
    if (walker == options_.own) {
      const std::optional<NodeIndex> other = looked ? std::nullopt : walks_already();
      if (!other) return End::kAlone;
      walker = *other;
      looked = true;
      heard = clock_.now_ms();
    }
    // A parent that is not told anything, or hangs, is passed over; one that starts a moment later is not, or
    // all would ask the node that walks.
    NodeIndex asked = walker;
    const bool straight = clock_.now_ms() - heard > options_.silence_ms / 2;
    const Up up = clock_.now_ms() - begun > options_.start_ms ? Up::kAnyOf : Up::kParent;
    const Result<List> list = straight ? ask(walker) : ask_up(walker, up, &asked);
    const bool more = list.ok() && !list->parts.empty();
    if (list.ok()) {
      take(asked, *list);
      gone = false;
      if (note_progress(list->progress) || more) heard = clock_.now_ms();
      if (list->state == WalkState::kEnded) {
        spdlog::info("walk: node {} has told what is in the directories", asked);
        return End::kTold;
      }
    } else {
      const int code = list.error().code;
      gone |= code != ETIMEDOUT && code != EAGAIN && code != ECONNRESET;
    }
    const int64_t now = clock_.now_ms();
    if ((gone && now - begun > options_.start_ms) || now - heard > options_.silence_ms) {
      walker = walker < options_.own ? walker + 1 : options_.own;
      gone = false;
      heard = now;
    } else if (!nap(more ? 0 : options_.nap_ms)) {
      return End::kStopped;
    }
  }
}

void ShareWalk::run(int threads) {
  const End end = follow();
  if (end == End::kStopped) return;
  if (end == End::kAlone) spdlog::info("walk: this node reads the directories");
  {
    const MutexLock hold(lock_);
    state_ = end == End::kTold ? WalkState::kEnded : WalkState::kWalks;
  }
  walker_->start(threads, this);
}

void ShareWalk::start(Walker* walker, int threads) {
  walker_ = walker;
  const MutexLock hold(lock_);
  state_ = WalkState::kFollows;
  const int error = os::start_thread(&thread_, [this, threads] { run(threads); });
  if (error != 0) spdlog::warn("walk: no thread: {}", std::strerror(error));
}

void ShareWalk::stop() {
  {
    const MutexLock hold(lock_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace monarch
