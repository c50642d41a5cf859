// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/serve.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/os.h"
#include "runtime/peer/wire.h"

namespace monarch {
namespace {

constexpr uint64_t kStop = 0;  // the number of no connection
// So many of the files that are sent are such that tasks wait for: the others leave them these places.
constexpr int kForDemand = 4;
constexpr int kPatienceMs = patience::kPeerSilenceMs;  // for some of each piece to be taken by the peer
constexpr int kWaitMs =
    patience::kPeerLongestNapMs / 4;  // for the reader to have a piece: who wants it asks again
// So many at a time get the same file: the others do better with another holder. Who asks for a task, and
// who does not, are counted apart.
constexpr int kMostOfLarge = 2, kMostOfSmall = 8;

}  // namespace

// A place among those that get a file at a time, and among those that get the same one.
class Serve::Turn {
 public:
  Turn(Serve* serve, const FileKey& key, Purpose purpose, uint64_t bytes)
      : serve_(serve), key_(key, purpose) {
    const int most = bytes <= kPieceBytes ? kMostOfSmall : kMostOfLarge;
    const int kept = 1 + (purpose == Purpose::kPrefetch ? kForDemand : 0);
    const auto places = static_cast<uint32_t>(std::max(1, serve->options_.threads - kept));
    const MutexLock hold(serve->lock_);
    const auto at = serve->served_.find(key_);
    const int now = at == serve->served_.end() ? 0 : at->second;
    if (now >= most || serve->serving_ >= places) return;
    ++serve->served_[key_];
    ++serve->serving_;
    got_ = true;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (!got_) return;
    const MutexLock hold(serve_->lock_);
    const auto at = serve_->served_.find(key_);
    if (--at->second == 0) serve_->served_.erase(at);
    --serve_->serving_;
  }
  bool got() const { return got_; }

 private:
  Serve* const serve_;
  const std::pair<FileKey, Purpose> key_;
  bool got_ = false;
};

Serve::Serve(ServeOptions options, Clock& clock) : options_(std::move(options)), clock_(clock) {}

Status Serve::start() {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
  epoll_event event = {EPOLLIN, {.u64 = kStop}};
  if (!epoll_ || !stop_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stop_.get(), &event) != 0)
    return errno_error("prepare to serve peers");
  const MutexLock hold(lock_);
  threads_.reserve(static_cast<size_t>(options_.threads));
  return add_thread();
}

Status Serve::add_thread() {
  std::thread thread;
  if (const int error = os::start_thread(&thread, [this] { run(); }); error != 0)
    return errno_error("start a thread that serves peers", error);
  threads_.push_back(std::move(thread));
  return {};
}

// Where no more can be made, those that there are serve all.
void Serve::add_thread_if_all_work() {
  if (waiting_ > 0) return;
  const MutexLock hold(lock_);
  if (!stopping_ && threads_.size() < static_cast<size_t>(options_.threads)) (void)add_thread().ok();
}

void Serve::stop() {
  stopping_ = true;
  if (stop_) (void)::eventfd_write(stop_.get(), 1);
  std::vector<std::thread> threads;
  {
    const MutexLock hold(lock_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  const MutexLock hold(lock_);
  connections_.clear();
}

void Serve::add(Fd socket, Tls tls) {
  const int fd = socket.get();
  const MutexLock hold(lock_);
  if (stopping_) return;  // hung up on
  if (connections_.size() >= options_.most_connections) hang_up_on_one();
  const uint64_t number = ++numbers_;
  // It is there before the kernel tells of it.
  const auto at = connections_.try_emplace(number).first;
  at->second.socket = std::move(socket);
  at->second.tls = std::move(tls);
  at->second.used = ++uses_;
  epoll_event event = {EPOLLIN | EPOLLONESHOT, {.u64 = number}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) connections_.erase(at);
}

void Serve::hang_up_on_one() {
  auto idlest = connections_.end();
  for (auto at = connections_.begin(); at != connections_.end(); ++at)
    if (!at->second.works && (idlest == connections_.end() || at->second.used < idlest->second.used))
      idlest = at;
  if (idlest != connections_.end()) connections_.erase(idlest);
}

void Serve::run() {
  while (!stopping_) {
    epoll_event event;
    ++waiting_;
    const int n = ::epoll_wait(epoll_.get(), &event, 1, -1);
    --waiting_;
    if (n != 1) continue;
    Connection* connection = nullptr;
    {
      const MutexLock hold(lock_);
      const auto at = connections_.find(event.data.u64);
      if (at == connections_.end()) continue;
      connection = &at->second;
      connection->works = true;
      connection->used = ++uses_;
    }
    const int fd = connection->socket.get();
    add_thread_if_all_work();
    bool goes_on = serve_one(connection);
    // Of what TLS has read already, epoll would not tell.
    while (goes_on && Wire(fd, connection->tls.get()).has_more()) goes_on = serve_one(connection);
    const MutexLock hold(lock_);
    connection->works = false;
    event.events = EPOLLIN | EPOLLONESHOT;
    if (!goes_on || ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0)
      connections_.erase(event.data.u64);
  }
}

bool Serve::serve_one(Connection* connection) {
  Wire wire(connection->socket.get(), connection->tls.get(), clock_);
  char bytes[MessageHeader::kBytes];
  if (!wire.receive(bytes, sizeof bytes, kPatienceMs).ok()) return false;
  const std::optional<MessageHeader> header = decode_header({bytes, sizeof bytes});
  if (!header || header->type != MessageType::kGet) return false;
  std::string body(header->body_bytes, '\0');
  if (!wire.receive(body.data(), body.size(), kPatienceMs).ok()) return false;
  const std::optional<Get> get = decode<Get>(body);
  if (!get) return false;

  Got got;
  const std::unique_ptr<ServedFile> file = options_.open(*get, &got.result);
  if (!file) return wire.send(encode(got), kPatienceMs).ok();
  got.identity = file->identity();
  const Turn turn(this, file_key(get->root, get->path), get->purpose, got.identity.bytes);
  got.result = turn.got() ? GetResult::kOk : GetResult::kBusy;
  const std::optional<uint64_t> end = end_of(*get, got.identity.bytes);
  if (!end) got.result = GetResult::kGone;
  const bool sends = got.result == GetResult::kOk && get->offset < *end;
  if (!wire.send(encode(got), kPatienceMs, sends ? Wire::Then::kMore : Wire::Then::kNothing).ok())
    return false;
  return !sends || send_pieces(connection, get->offset, *end, file.get());
}

bool Serve::send_pieces(Connection* connection, uint64_t begin, uint64_t end, ServedFile* file) {
  Wire wire(connection->socket.get(), connection->tls.get(), clock_);
  for (uint64_t offset = begin; offset < end && !stopping_; offset += kPieceBytes) {
    const uint64_t bytes = std::min(kPieceBytes, end - offset);
    const std::optional<uint64_t> check = file->check(offset / kPieceBytes, kWaitMs);
    const PieceHeader header = {check ? static_cast<uint32_t>(bytes) : 0, check.value_or(0)};
    const Wire::Then then = check ? Wire::Then::kMore : Wire::Then::kNothing;
    if (!wire.send(encode_piece(header), kPatienceMs, then).ok()) return false;
    if (!check) return true;
    if (!wire.send_file(file->copy(), offset, bytes, kPatienceMs).ok()) return false;
    sent_files_ += offset == begin;
    sent_bytes_ += bytes;
  }
  return !stopping_;
}

}  // namespace monarch
