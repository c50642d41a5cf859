// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/client.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/os.h"

namespace monarch {
namespace {

StoreAsk ask_of(AskKind kind, Ref ref) {
  StoreAsk ask;
  ask.kind = static_cast<uint32_t>(kind);
  ask.ref = ref;
  return ask;
}

StoreAsk ask_whole(AskKind kind, Ref ref, const struct stat& source) {
  StoreAsk ask = ask_of(kind, ref);
  ask.bytes = static_cast<uint64_t>(source.st_size);
  ask.atime = source.st_atim;
  ask.mtime = source.st_mtim;
  return ask;
}

template <typename Call>
ssize_t retried(Call call) {
  ssize_t rc;
  do {
    rc = call();
  } while (rc < 0 && errno == EINTR);
  return rc;
}

}  // namespace

Result<std::unique_ptr<Store>> StoreClient::open(const StoreEnds& ends) {
  std::unique_ptr<StoreClient> store(new StoreClient(ends));
  for (uint32_t slot = kStoreSlots; slot-- > 0;) store->unused_.push_back(slot);
  MONARCH_TRY(store->create(0));
  store->discard(0);
  return std::unique_ptr<Store>(std::move(store));
}

Error StoreClient::failed(const std::string& what, int error) const {
  return errno_error("tier " + tier_ + ": " + what, error);
}

bool StoreClient::exchange(const StoreAsk& ask, StoreTold* told, Fd* file) const {
  if (retried([&] { return ::write(requests_.get(), &ask, sizeof ask); }) != sizeof ask) return false;
  iovec bytes = {told, sizeof *told};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = retried([&] { return ::recvmsg(answers_.get(), &message, MSG_CMSG_CLOEXEC); });
  if (const cmsghdr* header = n < 0 ? nullptr : CMSG_FIRSTHDR(&message);
      header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    *file = Fd(fd);
  }
  return n == sizeof *told && told->slot == ask.slot;
}

// EPIPE: it has ended.
StoreTold StoreClient::ask(const StoreAsk& ask, Fd* file) {
  StoreTold told;
  Fd came;
  if (!ended_ && exchange(ask, &told, &came)) {
    if (file) *file = std::move(came);
    return told;
  }
  if (!ended_.exchange(true))
    spdlog::error("tier {}: root's store of it has ended: it takes no more copies", tier_);
  told.error = EPIPE;
  return told;
}

// The descriptor is lost where this process has too many.
int StoreClient::ask_for_slot(const StoreAsk& ask) {
  const StoreTold told = this->ask(ask, &pool_[ask.slot]);
  return told.error;
}

Result<Fd> StoreClient::create(Ref entry) {
  const MutexLock hold(lock_);
  if (unused_.empty()) return failed("create a copy", EAGAIN);
  StoreAsk ask = ask_of(AskKind::kNew, 0);
  ask.slot = unused_.back();
  Fd& file = pool_[ask.slot];
  if (const int error = file ? 0 : ask_for_slot(ask); error != 0) return failed("create a copy", error);
  if (!file) return failed("create a copy", EMFILE);
  unused_.pop_back();
  in_use_[entry] = ask.slot;
  return std::move(file);
}

// A new file in its place frees what it takes.
void StoreClient::discard(Ref entry) {
  const MutexLock hold(lock_);
  const auto at = in_use_.find(entry);
  if (at == in_use_.end()) return;
  StoreAsk ask = ask_of(AskKind::kNew, 0);
  ask.slot = at->second;
  (void)ask_for_slot(ask);
  unused_.push_back(ask.slot);
  in_use_.erase(at);
}

Status StoreClient::publish(const Fd& file, Ref entry, const struct stat& source, struct stat* made) {
  {
    const MutexLock hold(lock_);
    const auto at = in_use_.find(entry);
    StoreAsk ask = ask_whole(AskKind::kPublish, entry, source);
    ask.slot = at->second;
    if (const int error = ask_for_slot(ask); error != 0) return failed("publish a copy", error);
    unused_.push_back(ask.slot);
    in_use_.erase(at);
  }
  if (os::fstat(file.get(), made) != 0) return failed("look at a copy", errno);
  return {};
}

Result<Fd> StoreClient::create_part(Ref entry, uint64_t space) {
  Result<Fd> file = create(entry);
  if (!file.ok()) return file;
  {
    const MutexLock hold(lock_);
    StoreAsk ask = ask_of(AskKind::kPart, entry);
    ask.slot = in_use_[entry];
    ask.bytes = space;
    const int error = ask_for_slot(ask);
    if (error == 0) {
      unused_.push_back(ask.slot);
      in_use_.erase(entry);
      return file;
    }
    file = failed("create a partial copy", error);
  }
  discard(entry);
  return file;
}

Result<Fd> StoreClient::open_part(Ref entry) {
  const MutexLock hold(lock_);
  Fd file;
  const StoreTold told = ask(ask_of(AskKind::kReopen, entry), &file);
  if (told.error != 0) return failed("open a partial copy", told.error);
  if (!file) return failed("open a partial copy", EMFILE);
  return file;
}

Status StoreClient::publish_part(const Fd& file, Ref entry, const struct stat& source, struct stat* made) {
  {
    const MutexLock hold(lock_);
    const StoreTold told = ask(ask_whole(AskKind::kFinish, entry, source));
    if (told.error != 0) return failed("publish a large copy", told.error);
  }
  if (os::fstat(file.get(), made) != 0) return failed("look at a copy", errno);
  return {};
}

bool StoreClient::link(Ref copy, Ref entry) {
  const MutexLock hold(lock_);
  StoreAsk ask = ask_of(AskKind::kLink, copy);
  ask.other = entry;
  errno = this->ask(ask).error;
  return errno == 0;
}

bool StoreClient::remove(Ref entry) {
  const MutexLock hold(lock_);
  errno = ask(ask_of(AskKind::kRemove, entry)).error;
  return errno == 0;
}

// By a descriptor that opens nothing.
Fd StoreClient::hold(Fd file) const {
  const std::string self = "/proc/self/fd/" + std::to_string(file.get());
  return Fd(file ? os::openat(AT_FDCWD, self.c_str(), O_PATH | O_CLOEXEC) : -1);
}

bool StoreClient::is_open(Ref entry, const Fd&) {
  const MutexLock hold(lock_);
  return ask(ask_of(AskKind::kLook, entry)).error != 0;
}

Result<std::optional<Store::Room>> StoreClient::room() {
  const MutexLock hold(lock_);
  const StoreTold told = ask(ask_of(AskKind::kRoom, 0));
  if (told.error != 0) return failed("ask for room", told.error);
  return std::optional<Room>({told.used, told.granted});
}

}  // namespace monarch
