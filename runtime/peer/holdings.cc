// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/holdings.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/peer/changes.h"
#include "runtime/peer/fetch.h"
#include "runtime/placement/copying.h"

namespace monarch {

FileIdentity identity_of(const struct stat& st) {
  return {static_cast<uint64_t>(st.st_size), ns_of(st.st_mtim), ns_of(st.st_ctim), st.st_ino, 0};
}

bool is_same_file(FileIdentity a, FileIdentity b) {
  a.check = b.check = 0;
  return a == b;
}

class Holdings::FileOnTier : public ServedFile {
 public:
  FileOnTier(Held held, Fd copy) : held_(std::move(held)), copy_(std::move(copy)) {}
  int copy() const override { return copy_.get(); }
  Fd take_copy() { return std::move(copy_); }
  FileIdentity identity() const override { return held_.identity; }
  std::optional<uint64_t> check(uint64_t piece, int) override {
    return held_.all ? held_.all->at(piece) : held_.first;
  }

 private:
  Held held_;
  Fd copy_;
};

// Who asks for a piece does not wait until all of a large copy has been read.
class Holdings::DoubtedFile : public ServedFile {
 public:
  DoubtedFile(Holdings* holdings, Ref ref, const FileKey& key, FileOnTier file)
      : holdings_(holdings), ref_(ref), key_(key), file_(std::move(file)) {}
  int copy() const override { return file_.copy(); }
  FileIdentity identity() const override { return file_.identity(); }
  std::optional<uint64_t> check(uint64_t piece, int) override {
    const std::optional<uint64_t> known = file_.check(piece, 0);
    const uint64_t bytes = file_.identity().bytes, offset = piece * kPieceBytes;
    if (read(offset, std::min(kPieceBytes, bytes - offset)) == known) {
      holdings_->found_right(key_, piece, (bytes + kPieceBytes - 1) / kPieceBytes);
      return known;
    }
    spdlog::error("{}: its copy is not what was read on the PFS: it is not used any more",
                  holdings_->options_.catalog->path_of(ref_));
    holdings_->drop(ref_, file_.take_copy());  // nothing more is sent of it
    return {};
  }

 private:
  std::optional<uint64_t> read(uint64_t offset, uint64_t wanted) {
    buffer_.resize(wanted);
    uint64_t got = 0;
    while (got < wanted) {
      const ssize_t n =
          os::pread(copy(), buffer_.data() + got, wanted - got, static_cast<off_t>(offset + got));
      if (n <= 0) return {};
      got += static_cast<uint64_t>(n);
    }
    return check_of_piece(buffer_.data(), wanted);
  }

  Holdings* const holdings_;
  const Ref ref_;
  const FileKey key_;
  FileOnTier file_;
  std::vector<char> buffer_;
};

class Holdings::FileThatComes : public ServedFile {
 public:
  FileThatComes(Holdings* holdings, std::shared_ptr<Coming> coming, std::shared_ptr<Fd> copy, const Get& get)
      : holdings_(holdings),
        coming_(std::move(coming)),
        copy_(std::move(copy)),
        urgent_(get.follow == Follow::kYes && get.purpose == Purpose::kDemand),
        path_(get.path),
        root_(get.root) {}
  int copy() const override { return copy_->get(); }
  FileIdentity identity() const override { return coming_->identity; }
  std::optional<uint64_t> check(uint64_t piece, int patience_ms) override {
    bool ask = false;
    {
      const MutexLock hold(holdings_->lock_);
      if (coming_->checks.at(piece)) return coming_->checks.at(piece);
      ask = urgent_ && !coming_->wanted.at(piece);
      if (ask) coming_->wanted.at(piece) = true;
    }
    if (ask)
      holdings_->options_.wanted(rel_path(root_, path_.data(), path_.size()), static_cast<uint32_t>(piece));
    return wait(piece, patience_ms);
  }

 private:
  std::optional<uint64_t> wait(uint64_t piece, int patience_ms) {
    Clock& clock = holdings_->clock_;
    const int64_t until = clock.now_ns() + int64_t{patience_ms} * 1000000;
    MutexLock hold(holdings_->lock_);
    while (!coming_->checks.at(piece) && !coming_->ended && clock.now_ns() < until)
      clock.wait_until(&holdings_->grew_, &hold, until);
    return coming_->checks.at(piece);
  }

  Holdings* const holdings_;
  const std::shared_ptr<Coming> coming_;
  const std::shared_ptr<Fd> copy_;
  const bool urgent_;
  const std::string path_;
  const uint32_t root_;
};

FileKey Holdings::key_of(Ref ref, bool names, const FileIdentity& identity) const {
  const uint32_t root = options_.catalog->root_of(ref);
  return names ? key_of_inode(root, identity.inode) : file_key(root, options_.catalog->path_of(ref));
}

std::shared_ptr<Holdings::Coming> Holdings::begin(Ref ref, const FileIdentity& identity, bool names,
                                                  const std::shared_ptr<Fd>& copy) {
  const MutexLock hold(lock_);
  // Another name that is whole stays: who follows this one might wait for a node that waits for it.
  if (names) named_.try_emplace(key_of(ref, names, identity), ref);
  std::shared_ptr<Coming> coming;
  if (const auto at = coming_.find(ref); at != coming_.end()) coming = at->second;
  // It was replaced on the PFS since it began: nobody is to take pieces of the one for the other's.
  if (coming && !is_same_file(coming->identity, identity)) {
    coming->ended = true;
    coming_.erase(ref);
    coming.reset();
  }
  if (!coming) {
    coming = std::make_shared<Coming>();
    coming->identity = identity;
    coming->names = names;
    coming->missing = (identity.bytes + kPieceBytes - 1) / kPieceBytes;
    coming->checks.resize(coming->missing);
    coming->wanted.resize(coming->missing);
    coming_.emplace(ref, coming);
  }
  coming->copy = copy;
  grew_.notify_all();
  return coming;
}

void Holdings::piece(Coming* coming, uint64_t number, uint64_t check) {
  const MutexLock hold(lock_);
  if (number >= coming->checks.size()) return;
  std::optional<uint64_t>& known = coming->checks[number];
  if (!known) --coming->missing;
  known = check;
  grew_.notify_all();
}

std::optional<FileIdentity> Holdings::copied(Ref ref, int tier) {
  const MutexLock hold(lock_);
  const auto at = coming_.find(ref);
  if (at == coming_.end()) return {};
  const std::shared_ptr<Coming> coming = at->second;
  coming_.erase(at);
  coming->ended = true;
  grew_.notify_all();
  if (coming->missing > 0) return {};
  std::vector<uint64_t> checks;
  for (const std::optional<uint64_t>& check : coming->checks) checks.push_back(check.value_or(0));
  Held held{coming->identity, tier, coming->names, checks.empty() ? 0 : checks[0], nullptr};
  held.identity.check = check_of(checks);
  if (checks.size() > 1) held.all = std::make_shared<const std::vector<uint64_t>>(std::move(checks));
  const FileIdentity identity = held.identity;
  note_held(ref, std::move(held));
  return identity;
}

FileKey Holdings::forget(Ref ref, bool names, const FileIdentity& identity) {
  const FileKey key = key_of(ref, names, identity);
  const auto named = names ? named_.find(key) : named_.end();
  if (named != named_.end() && named->second == ref) named_.erase(named);
  return key;
}

std::optional<FileKey> Holdings::given_up(Ref ref) {
  const MutexLock hold(lock_);
  if (const auto coming = coming_.extract(ref)) {
    coming.mapped()->ended = true;
    grew_.notify_all();
    const FileKey key = forget(ref, coming.mapped()->names, coming.mapped()->identity);
    look_again(key);
  }
  const auto held = held_.extract(ref);
  if (!held) return {};
  const FileKey key = forget(ref, held.mapped().names, held.mapped().identity);
  --log_of(key).held;
  doubted_.erase(key);
  return key;
}

void Holdings::doubt(const FileKey& key) {
  constexpr size_t kMostDoubts = 1000;
  const MutexLock hold(lock_);
  if (doubted_.size() < kMostDoubts) doubted_[key] = Doubt();
}

void Holdings::look_again(const FileKey& key) {
  const auto at = doubted_.find(key);
  if (at == doubted_.end()) return;
  at->second.looked = false;
  doubts_.notify_all();
}

// Where no thread can be made, what is doubted is still looked at when it is asked for.
void Holdings::look() {
  const MutexLock hold(lock_);
  if (stopping_) return;
  if (!thread_.joinable() && os::start_thread(&thread_, [this] { run(); }) != 0) return;
  doubts_.notify_all();
}

void Holdings::stop() {
  std::thread thread;
  {
    const MutexLock hold(lock_);
    stopping_ = true;
    thread.swap(thread_);
  }
  doubts_.notify_all();
  if (thread.joinable()) thread.join();
}

bool Holdings::is_stopping() {
  const MutexLock hold(lock_);
  return stopping_;
}

void Holdings::run() {
  const auto is_new = [](const auto& doubted) { return !doubted.second.looked; };
  MutexLock hold(lock_);
  while (!stopping_) {
    if (std::none_of(doubted_.begin(), doubted_.end(), is_new)) {
      doubts_.wait(&hold);
      continue;
    }
    std::set<FileKey> keys;
    for (auto& [key, doubt] : doubted_)
      if (!std::exchange(doubt.looked, true)) keys.insert(key);
    hold.unlock();
    look_at(std::move(keys));
    hold.lock();
  }
}

// A key does not tell the path: one look at the shares finds all of them.
void Holdings::look_at(std::set<FileKey> keys) {
  std::set<NodeIndex> shares;
  {
    const MutexLock hold(lock_);
    for (const auto& [ref, coming] : coming_) keys.erase(key_of(ref, coming->names, coming->identity));
  }
  for (const FileKey& key : keys) shares.insert(home_of(key, options_.nodes));
  std::set<FileKey> held;
  for (const NodeIndex share : shares) {
    Gather from;
    from.share = share;
    for (bool ended = false; !ended && !is_stopping();) {
      HeldPage page;
      const std::vector<std::pair<Ref, Held>> some = logged(from, &page);
      for (const auto& [ref, copy] : some) {
        if (copy.identity.bytes == 0) continue;
        const FileKey key = key_of(ref, copy.names, copy.identity);
        if (keys.count(key) == 0) continue;
        held.insert(key);
        look_at(key, ref, copy);
      }
      from.log = page.log;
      from.from = page.from + some.size();
      ended = page.ended;
    }
  }
  const MutexLock hold(lock_);
  if (stopping_) return;
  for (const FileKey& key : keys)
    if (const auto at = doubted_.find(key); at != doubted_.end() && at->second.looked && held.count(key) == 0)
      doubted_.erase(at);
}

void Holdings::look_at(const FileKey& key, Ref ref, const Held& held) {
  Fd copy = options_.hierarchy->tiers()[static_cast<size_t>(held.tier)].open_copy(ref);
  if (!copy) return;
  {
    const MutexLock hold(lock_);
    const auto now = held_.find(ref);
    if (now == held_.end() || now->second.identity != held.identity) return;
  }
  const uint64_t pieces = (held.identity.bytes + kPieceBytes - 1) / kPieceBytes;
  DoubtedFile file(this, ref, key, FileOnTier(held, std::move(copy)));
  for (uint64_t piece = 0; piece < pieces && !is_stopping(); ++piece)
    if (!file.check(piece, 0)) return;
}

Ref Holdings::entry_of(const Get& get, const FileKey& key) {
  if (get.inode != 0) {
    const MutexLock hold(lock_);
    if (const auto at = named_.find(key); at != named_.end()) return at->second;
  }
  return options_.catalog->reader().find(rel_path(get.root, get.path.data(), get.path.size())).ref;
}

std::unique_ptr<ServedFile> Holdings::open(const Get& get, GetResult* why) {
  *why = GetResult::kGone;
  if (get.root >= options_.roots || get.path.size() >= kPathBytes ||
      !is_clean_relative(get.path.data(), get.path.size()))
    return nullptr;
  const RelPath path = rel_path(get.root, get.path.data(), get.path.size());
  const FileKey key = get.inode != 0 ? key_of_inode(get.root, get.inode) : file_key(get.root, get.path);
  const Ref ref = entry_of(get, key);
  Held held;
  std::shared_ptr<Coming> coming;
  std::shared_ptr<Fd> coming_copy;
  bool doubted = false;
  {
    const MutexLock hold(lock_);
    if (const auto at = held_.find(ref); at != held_.end()) {
      held = at->second;
    } else if (const auto comes = coming_.find(ref); comes != coming_.end()) {
      coming = comes->second;
      coming_copy = coming->copy.lock();
    } else {
      return nullptr;
    }
    doubted = doubted_.count(key) != 0;
  }
  // This node's tasks may have marked what the others have not heard of yet.
  const std::string own = options_.catalog->path_of(ref);
  const uint64_t inode = (coming ? coming->identity : held.identity).inode;
  if (is_marked(*options_.board, path, inode) ||
      (own != get.path && is_marked(*options_.board, rel_path(get.root, own.data(), own.size()), inode))) {
    *why = GetResult::kChanged;
    return nullptr;
  }
  if (coming) {
    if (!coming_copy) return nullptr;  // it goes on later
    return std::make_unique<FileThatComes>(this, std::move(coming), std::move(coming_copy), get);
  }
  Fd copy = options_.hierarchy->tiers()[static_cast<size_t>(held.tier)].open_copy(ref);
  if (!copy) {
    if (is_shortage(errno)) *why = GetResult::kBusy;  // it may be sent soon
    return nullptr;
  }
  FileOnTier file(std::move(held), std::move(copy));
  if (doubted) return std::make_unique<DoubtedFile>(this, ref, key, std::move(file));
  return std::make_unique<FileOnTier>(std::move(file));
}

void Holdings::found_right(const FileKey& key, uint64_t piece, uint64_t pieces) {
  const MutexLock hold(lock_);
  const auto at = doubted_.find(key);
  if (at == doubted_.end()) return;
  at->second.right.insert(piece);
  if (at->second.right.size() == pieces) doubted_.erase(at);
}

void Holdings::drop(Ref ref, Fd copy) {
  options_.spoilt(ref, std::move(copy));
  (void)given_up(ref);
}

// Once most of what a log has is gone, it is begun anew.
void Holdings::note_held(Ref ref, Held held) {
  constexpr size_t kFew = 100;
  const FileKey key = key_of(ref, held.names, held.identity);
  Log& log = log_of(key);
  if (log.refs.size() > kFew + 2 * log.held) {
    std::erase_if(log.refs, [now = &held_](Ref old) { return now->count(old) == 0; });
    std::sort(log.refs.begin(), log.refs.end());
    log.refs.erase(std::unique(log.refs.begin(), log.refs.end()), log.refs.end());
    ++log.number;
  }
  if (held.names) named_[key] = ref;
  log.refs.push_back(ref);
  log.held += held_.insert_or_assign(ref, std::move(held)).second;
  look_again(key);
}

std::vector<std::pair<Ref, Holdings::Held>> Holdings::logged(const Gather& gather, HeldPage* page) {
  constexpr uint64_t kMostLooks = 4096;
  std::vector<std::pair<Ref, Held>> some;
  const MutexLock hold(lock_);
  const Log none;
  const auto found = logs_.find(gather.share);
  const Log& log = found == logs_.end() ? none : found->second;
  page->log = log.number;
  page->from = gather.log == log.number ? std::min<uint64_t>(gather.from, log.refs.size()) : 0;
  const uint64_t end = std::min<uint64_t>(page->from + kMostLooks, log.refs.size());
  for (uint64_t at = page->from; at < end; ++at) {
    const auto held = held_.find(log.refs[at]);
    some.emplace_back(log.refs[at], held == held_.end() ? Held() : held->second);
  }
  page->ended = end == log.refs.size();
  return some;
}

HeldPage Holdings::page(const Gather& gather, const std::function<bool(const FileKey&)>& takes) {
  HeldPage page;
  const std::vector<std::pair<Ref, Held>> some = logged(gather, &page);
  page.next = page.from;
  for (const auto& [ref, held] : some) {
    if (page.files.size() == Gathered::kMost) {
      page.ended = false;
      break;
    }
    ++page.next;
    if (held.identity.bytes == 0) continue;  // not held any more; an empty file is no peer's
    const FileKey key = key_of(ref, held.names, held.identity);
    if (takes(key)) page.files.push_back({key, 0, held.identity});
  }
  return page;
}

}  // namespace monarch
