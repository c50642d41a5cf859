// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/peer_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/peer/fetch.h"
#include "runtime/placement/copying.h"

namespace monarch {
namespace {

constexpr int kMostFailures = 3;  // of nodes, before the PFS is asked
// How long nothing of a file may come from the node that reads it: it has no more of it yet, or others get it
// before. Meanwhile the home is asked again and again; it sends another node to the PFS once the reader's
// lease has ended. Who read it there earlier, too, would make a slow PFS slower.
constexpr int64_t kMsNs = 1'000'000;
constexpr int64_t kPatienceNs = patience::kPeerRetryMs * kMsNs,
                  kAskAgainNs = patience::kPeerConnectMs * kMsNs;
constexpr int64_t kNapNs = patience::kPeerNapMs * kMsNs, kLongestNapNs = patience::kPeerLongestNapMs * kMsNs;
constexpr int64_t kTellEveryNs = Directory::kLeaseNs / 4;

// Another thread gave the file up, while this one had it still.
Error given_up_error() { return Error{ECANCELED, "it was given up meanwhile"}; }

// Whether somebody waits for it.
Purpose purpose_of(const CopyRange& range, const Copier& copier) {
  return !range.paced || copier.hurried() ? Purpose::kDemand : Purpose::kPrefetch;
}

// The nodes that follow read it by this, whatever flags the writer's has. nullptr: none can follow.
std::shared_ptr<Fd> open_again(int copy) {
  const std::string path = "/proc/self/fd/" + std::to_string(copy);
  Fd fd(os::openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC, 0));
  return fd ? std::make_shared<Fd>(std::move(fd)) : nullptr;
}

}  // namespace

class PeerSource::File : public SourceFile {
 public:
  File(PeerSource* source, Ref ref, std::string path, Need need, Fd fd, std::optional<struct stat> told)
      : source_(source), ref_(ref), path_(std::move(path)), need_(need), fd_(std::move(fd)), told_(told) {
    const MutexLock hold(source_->lock_);
    source_->open_.insert({ref_, this});
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() override {
    const MutexLock hold(source_->lock_);
    source_->open_.erase({ref_, this});
  }

  int fd() const override { return fd_.get(); }
  bool values(struct stat* st) const override EXCLUDES(opening_);
  Status copy(CopyRange range, Copier* copier) override;

 private:
  Status begin(const CopyRange& range);
  Status begin(const FileKey& key) REQUIRES(lock_);
  // kOk, or what went wrong with the nodes; `*tier` with this one's tier. `*came`: bytes that are there.
  // `*followed`: some from a node that was still reading the file.
  Fetched get(const Peers::Route& route, const CopyRange& range, Copier* copier, uint64_t* came, Status* tier,
              bool* followed);
  Status open_on_pfs(const Copier& copier, const std::function<void()>& waits) EXCLUDES(opening_);
  Status read(CopyRange range, Copier* copier);
  // That the file, of which the PFS says this, is what was told of it.
  Status check_told(const struct stat& st) const;
  Status look_again() const;

  PeerSource* const source_;
  const Ref ref_;
  const std::string path_;
  const Need need_;
  const Fd fd_;  // O_PATH; none if another node has told of the file
  const std::optional<struct stat> told_;
  mutable Mutex opening_;
  Fd on_pfs_ GUARDED_BY(opening_);  // once a part of it was read there
  std::atomic<bool> end_is_known_{false};
  Mutex lock_;
  std::shared_ptr<Transfer> transfer_ GUARDED_BY(lock_);
  std::shared_ptr<Holdings::Coming> coming_ GUARDED_BY(lock_);
  std::shared_ptr<Fd> copy_ GUARDED_BY(lock_);
  FileIdentity identity_ GUARDED_BY(lock_);
  bool names_ GUARDED_BY(lock_) = false;  // it has several
};

bool PeerSource::File::values(struct stat* st) const {
  const MutexLock hold(opening_);
  if (told_ && !on_pfs_) {
    *st = *told_;
    return true;
  }
  return os::fstat(told_ ? on_pfs_.get() : fd_.get(), st) == 0;
}

// Those who follow this node find the file before its home tells them to.
Status PeerSource::File::begin(const CopyRange& range) {
  const MutexLock hold(lock_);
  if (transfer_) return {};
  struct stat st;
  if (!values(&st)) return errno_error(std::string(kSource) + "stat");
  if (static_cast<uint64_t>(st.st_size) != range.file_bytes)
    return Error{ESTALE, std::string(kSource) + "it has another size now"};
  identity_ = identity_of(st);
  copy_ = open_again(range.copy);
  // By the same number another device below the root may have another file.
  const uint32_t root = source_->catalog_->root_of(ref_);
  names_ = st.st_nlink > 1 && st.st_dev == source_->dataset_->roots[root].dev;
  return begin(names_ ? key_of_inode(root, st.st_ino) : file_key(root, path_));
}

// Nobody would end what begins after it was given up.
Status PeerSource::File::begin(const FileKey& key) {
  const MutexLock hold(source_->lock_);
  if (source_->open_.count({ref_, this}) == 0) return given_up_error();
  std::shared_ptr<Transfer> transfer = source_->transfer_of(ref_, key);
  coming_ = source_->holdings_->begin(ref_, identity_, names_, copy_);
  transfer_ = std::move(transfer);
  return {};
}

Status PeerSource::File::check_told(const struct stat& st) const {
  if (is_same_file(identity_of(st), identity_of(*told_))) return {};
  return Error{ESTALE, std::string(kSource) + "it has changed"};
}

Status PeerSource::File::look_again() const {
  const Fd file = source_->look_up(ref_, path_);
  struct stat st;
  if (!file || os::fstat(file.get(), &st) != 0) return errno_error(std::string(kSource) + "stat");
  return check_told(st);
}

Status PeerSource::File::copy(CopyRange range, Copier* copier) {
  // Another node could read it, so there is nothing to find out.
  if (range.file_bytes == 0) return told_ ? Status() : read(std::move(range), copier);
  MONARCH_TRY(begin(range));
  std::shared_ptr<Transfer> transfer;
  {
    const MutexLock hold(lock_);
    transfer = transfer_;
  }
  const CopyRange all = range;
  const uint64_t end = range.offset + range.bytes;
  Clock& clock = source_->clock_;
  int64_t moved_ns = clock.now_ns();
  int64_t asked_ns = moved_ns;
  int64_t nap_ns = kNapNs;
  bool sent_here = false;  // since no other node has it as it is
  // Who reads the file knows at the end only that nobody has changed it, and this node has not looked at it.
  bool followed = false;
  for (int failures = 0; failures < kMostFailures && !copier->is_stopping();) {
    const std::optional<Peers::Route> route = source_->route(transfer.get());
    if (!route) return given_up_error();
    sent_here = route->how == Peers::Route::How::kRead;
    if (route->how != Peers::Route::How::kGet) break;
    uint64_t came = 0;
    Status tier;
    const Fetched fetched = get(*route, range, copier, &came, &tier, &followed);
    if (!tier.ok()) return tier;
    if (fetched == Fetched::kOk && came >= range.bytes) return followed && told_ ? look_again() : Status();
    sent_here = fetched == Fetched::kChanged || fetched == Fetched::kRefused;
    if (sent_here) break;
    if (fetched == Fetched::kWrong) {
      range = all;
      range.sparse = false;  // where there are zeros now, wrong bytes may stand
    } else if (came > 0) {
      range.offset += came;
      range.bytes = end - range.offset;
      asked_ns = moved_ns = clock.now_ns();
      nap_ns = kNapNs;
    }
    const bool later = fetched == Fetched::kBusy || fetched == Fetched::kNotYet || fetched == Fetched::kOk;
    // A reader that answers badly, or not at all, may still be reading: its home knows for how long.
    const bool follows = route->follow && fetched != Fetched::kWrong;
    if (!later && !follows) {
      ++failures;
      forget(transfer.get());
    } else if (came == 0) {
      const int64_t now = clock.now_ns();
      if (now - moved_ns > kPatienceNs) break;
      if (!later || now - asked_ns > kAskAgainNs) {
        forget(transfer.get());
        asked_ns = now;
      }
      clock.sleep_ns(nap_ns);
      // Who is busy is not to be busy with answers.
      if (fetched == Fetched::kBusy || !later) nap_ns = std::min(2 * nap_ns, kLongestNapNs);
    }
  }
  if (!sent_here && !copier->is_stopping()) source_->note_again(transfer.get());
  return read(std::move(range), copier);
}

Fetched PeerSource::File::get(const Peers::Route& route, const CopyRange& range, Copier* copier,
                              uint64_t* came, Status* tier, bool* followed) {
  FileIdentity own;
  FileKey key;
  Get get;
  std::shared_ptr<Holdings::Coming> coming;
  {
    const MutexLock hold(lock_);
    own = identity_;
    key = transfer_->key;
    coming = coming_;
    if (names_) get.inode = own.inode;
  }
  get.root = source_->catalog_->root_of(ref_);
  get.path = path_;
  get.offset = range.offset;
  // What has a rate is asked for in pieces, each once it may come: a sender does not wait for who is slow.
  const auto give_up = [copier] { return copier->hurried() || copier->is_stopping(); };
  const bool paced = range.paced && source_->rate_.limits();
  const uint64_t bytes = paced ? std::min(kPieceBytes, range.bytes) : range.bytes;
  if (paced && !source_->rate_.wait(bytes, give_up)) source_->rate_.take(bytes);
  get.bytes = range.offset + bytes == range.file_bytes ? 0 : bytes;
  get.follow = Follow::kYes;
  get.purpose = purpose_of(range, *copier);
  Fetched fetched = Fetched::kUnreachable;
  Status put_there;
  *tier = copier->write(range, [&](char* room, const Copier::Put& put) -> Status {
    const Receiver receiver = {[&](const FileIdentity& theirs) {
                                 *followed |= theirs.check == 0;
                                 return is_same_file(own, theirs);
                               },
                               [&](uint64_t offset, const char*, size_t piece, uint64_t check) {
                                 if (!paced) source_->rate_.take(piece);
                                 put_there = put(offset, piece);
                                 if (!put_there.ok()) return false;
                                 source_->holdings_->piece(coming.get(), offset / kPieceBytes, check);
                                 add(source_->board_, AgentCounter::peer_bytes, piece);
                                 *came += piece;
                                 return true;
                               }};
    fetched = source_->peers_->get(key, route, get, room, receiver);
    return put_there;
  });
  return fetched;
}

// A place among those who read the PFS at a time. A lease does not end while others are before, as long as
// these move: the PFS hangs for none of them.
class PeerSource::Reader {
 public:
  Reader(PeerSource* source, Transfer* transfer, const Copier& copier) : source_(source) {
    uint64_t moves = source->moves_;
    MutexLock hold(source->reading_);
    while (source->reads_ >= source->readers_ && !copier.is_stopping()) {
      source->clock_.wait_until(&source->read_, &hold, source->clock_.now_ns() + kLongestNapNs);
      if (const uint64_t now = source->moves_; transfer && now != moves) {
        moves = now;
        hold.unlock();
        source->note_progress(transfer);
        hold.lock();
      }
    }
    ++source->reads_;
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() {
    const MutexLock hold(source_->reading_);
    --source_->reads_;
    source_->read_.notify_one();
  }

 private:
  PeerSource* const source_;
};

// The file is what was examined: it may have been replaced since.
Status PeerSource::File::open_on_pfs(const Copier& copier, const std::function<void()>& waits) {
  const MutexLock hold(opening_);
  if (on_pfs_) return {};
  Fd file = source_->pfs_->open_for_reading(ref_, path_, need_, copier, waits);
  if (!file) return errno_error(std::string(kSource) + "open");
  struct stat st, seen{};
  if (told_) seen = *told_;
  if (os::fstat(file.get(), &st) != 0 || (!told_ && os::fstat(fd_.get(), &seen) != 0))
    return errno_error(std::string(kSource) + "stat");
  if (told_) MONARCH_TRY(check_told(st));
  if (st.st_dev != seen.st_dev || st.st_ino != seen.st_ino)
    return Error{ESTALE, std::string(kSource) + "it was replaced"};
  on_pfs_ = std::move(file);
  return {};
}

Status PeerSource::File::read(CopyRange range, Copier* copier) {
  std::shared_ptr<Transfer> transfer;
  std::shared_ptr<Holdings::Coming> coming;
  {
    const MutexLock hold(lock_);
    transfer = transfer_;
    coming = coming_;
  }
  const Reader reader(source_, transfer.get(), *copier);
  if (transfer)
    range.waits = [&] {
      ++source_->moves_;
      source_->note_progress(transfer.get());
    };
  MONARCH_TRY(open_on_pfs(*copier, range.waits));
  {
    const MutexLock hold(opening_);
    range.source = on_pfs_.get();  // it stays
  }
  if (transfer) {
    const MutexLock hold(transfer->lock);
    if (transfer->ended) return given_up_error();
    transfer->read_here = true;
  }
  if (transfer)
    range.copied = [&](uint64_t offset, std::string_view piece) {
      source_->holdings_->piece(coming.get(), offset / kPieceBytes,
                                check_of_piece(piece.data(), piece.size()));
      ++source_->moves_;
      source_->note_progress(transfer.get());
    };
  range.end_is_known = end_is_known_;
  MONARCH_TRY(copier->copy(range));
  end_is_known_ = true;
  return {};
}

std::unique_ptr<SourceFile> PeerSource::open(Ref ref, const std::string& path, Need need,
                                             const Copier& copier) {
  if (need == Need::kAnew) return pfs_->open(ref, path, need, copier);
  if (const std::optional<struct stat> told = told_->values(ref))
    return std::make_unique<File>(this, ref, path, need, Fd(), told);
  Fd fd = look_up(ref, path);
  if (!fd) return nullptr;
  return std::make_unique<File>(this, ref, path, need, std::move(fd), std::nullopt);
}

Fd PeerSource::look_up(Ref ref, const std::string& path) const {
  return Fd(
      os::open_beneath(dataset_->roots[catalog_->root_of(ref)].fd.get(), path.c_str(), O_PATH | O_CLOEXEC));
}

FileKey PeerSource::key_of(Ref ref) { return file_key(catalog_->root_of(ref), catalog_->path_of(ref)); }

bool PeerSource::is_ours(Ref ref) { return peers_->is_home(key_of(ref)); }

std::shared_ptr<PeerSource::Transfer> PeerSource::transfer_of(Ref ref, const FileKey& key) {
  std::shared_ptr<Transfer>& transfer = transfers_[ref];
  if (!transfer) {
    transfer = std::make_shared<Transfer>();
    transfer->key = key;
  }
  return transfer;
}

std::shared_ptr<PeerSource::Transfer> PeerSource::end_transfer(Ref ref,
                                                               const std::optional<FileIdentity>& held) {
  const auto at = transfers_.find(ref);
  if (at == transfers_.end()) return nullptr;
  std::shared_ptr<Transfer> transfer = std::move(at->second);
  transfers_.erase(at);
  const MutexLock hold(transfer->lock);
  transfer->ended = true;
  transfer->held = held;
  return transfer;
}

// While a thread asks for all; the others wait for what it has heard, or for their turn if it could not.
class PeerSource::Asking {
 public:
  explicit Asking(Transfer* transfer) : transfer_(transfer) {}
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  ~Asking() {
    const MutexLock hold(transfer_->lock);
    transfer_->asks = false;
    transfer_->answered.notify_all();
  }

 private:
  Transfer* const transfer_;
};

std::optional<Peers::Route> PeerSource::route(Transfer* transfer) {
  {
    MutexLock hold(transfer->lock);
    while (transfer->asks) transfer->answered.wait(&hold);
    if (transfer->ended) return {};
    if (transfer->route) return transfer->route;
    transfer->asks = true;
  }
  const Asking asking(transfer);
  const Peers::Route route = peers_->locate(transfer->key);
  {
    const MutexLock hold(transfer->lock);
    if (!transfer->ended) {
      transfer->route = route;
      transfer->lease = route.lease;
      transfer->told_ns = clock_.now_ns();
      return route;
    }
  }
  // Whoever gave it up could not tell of this lease.
  if (route.how == Peers::Route::How::kRead)
    peers_->done({transfer->key, route.lease, ReadResult::kNotHeld, {}});
  return {};
}

void PeerSource::forget(Transfer* transfer) {
  const MutexLock hold(transfer->lock);
  transfer->route.reset();
}

void PeerSource::note_again(Transfer* transfer) {
  const MutexLock hold(transfer->lock);
  if (!transfer->read_here) add(board_, AgentCounter::dup_files);
  transfer->read_here = true;
}

void PeerSource::note_progress(Transfer* transfer) {
  const MutexLock hold(transfer->lock);
  const int64_t now = clock_.now_ns();
  if (transfer->ended || now - transfer->told_ns < kTellEveryNs) return;
  transfer->told_ns = now;
  peers_->progress(transfer->key);
}

// Of what it has read here the others are told, unless one of them has told this node.
void PeerSource::tell_values(Ref ref) {
  if (!told_->are_told(ref)) told_->learned(ref);
}

void PeerSource::copied(Ref ref, int tier) {
  std::shared_ptr<Transfer> transfer;
  {
    const MutexLock hold(lock_);
    transfer = end_transfer(ref, holdings_->copied(ref, tier));
  }
  bool read_here = true;
  if (transfer) {
    const MutexLock hold(transfer->lock);
    read_here = transfer->read_here;
  }
  if (read_here)
    tell_values(ref);
  else
    add(board_, AgentCounter::peer_files);
  if (transfer) tell_end(transfer.get());
}

void PeerSource::given_up(Ref ref) {
  std::shared_ptr<Transfer> transfer;
  std::optional<FileKey> held;
  {
    const MutexLock hold(lock_);
    for (auto at = open_.lower_bound({ref, nullptr}); at != open_.end() && at->first == ref;)
      at = open_.erase(at);
    transfer = end_transfer(ref, std::nullopt);
    held = holdings_->given_up(ref);
  }
  if (transfer) tell_end(transfer.get());
  if (held) peers_->lost(*held);  // else who asks for it hears so
}

// Others would wait for a reader that has ended, until its lease has, and one of them would read the file
// again.
void PeerSource::tell_end(Transfer* transfer) {
  Done done;
  {
    const MutexLock hold(transfer->lock);
    done = {transfer->key, transfer->lease, transfer->held ? ReadResult::kHeld : ReadResult::kNotHeld,
            transfer->held.value_or(FileIdentity())};
  }
  peers_->done(done);
}

}  // namespace monarch
