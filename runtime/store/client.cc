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

StoreAsk ask_for(AskKind kind, Ref ref = 0) {
  StoreAsk ask;
  ask.kind = static_cast<uint32_t>(kind);
  ask.ref = ref;
  return ask;
}

StoreAsk ask_whole(AskKind kind, Ref ref, const struct stat& source) {
  StoreAsk ask = ask_for(kind, ref);
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
  Result<Fd> file = store->create(0);
  if (!file.ok() && (file.error().code == EOPNOTSUPP || file.error().code == EXDEV))
    return no_tier("tier " + ends.tier, file.error().code);
  if (!file.ok()) return file.error();
  file->reset();
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

int StoreClient::ask(const StoreAsk& ask, Fd* file, Room* room) {
  StoreTold told;
  Fd came;
  if (!ended_ && exchange(ask, &told, &came)) {
    *file = std::move(came);
    if (room) *room = {told.used, told.granted};
    return told.error;
  }
  if (!ended_.exchange(true))
    spdlog::error("tier {}: root's store of it has ended: it takes no more copies", tier_);
  return EPIPE;
}

Status StoreClient::ask_alone(const char* what, const StoreAsk& ask, Fd* file, Room* room) {
  const MutexLock hold(lock_);
  Fd none;
  const int error = this->ask(ask, file ? file : &none, room);
  return error == 0 ? Status() : Status(failed(what, error));
}

Result<Fd> StoreClient::create(Ref entry) {
  const MutexLock hold(lock_);
  if (unused_.empty()) return failed("create a copy", EAGAIN);
  StoreAsk ask = ask_for(AskKind::kNew);
  ask.slot = unused_.back();
  Fd& file = pool_[ask.slot];
  if (const int error = file ? 0 : this->ask(ask, &file); error != 0) return failed("create a copy", error);
  if (!file) return failed("create a copy", EMFILE);  // it was lost on its way
  unused_.pop_back();
  in_use_[entry] = ask.slot;
  return Fd(std::move(file));
}

Status StoreClient::end_slot(const char* what, Ref entry, StoreAsk ask) {
  const MutexLock hold(lock_);
  const auto at = in_use_.find(entry);
  if (at == in_use_.end()) return failed(what, EBADF);
  ask.slot = at->second;
  const bool is_named = static_cast<AskKind>(ask.kind) != AskKind::kNew;
  if (const int error = this->ask(ask, &pool_[ask.slot]); error != 0 && is_named) return failed(what, error);
  unused_.push_back(ask.slot);
  in_use_.erase(at);
  return {};
}

// A new file in the slot frees what is in it.
void StoreClient::discard(Ref entry) { (void)end_slot("give up a copy", entry, ask_for(AskKind::kNew)).ok(); }

Status StoreClient::publish(const Fd& file, Ref entry, const struct stat& source, struct stat* made) {
  MONARCH_TRY(end_slot("publish a copy", entry, ask_whole(AskKind::kPublish, entry, source)));
  return os::fstat(file.get(), made) == 0 ? Status() : Status(failed("look at a copy", errno));
}

Result<Fd> StoreClient::create_part(Ref entry, uint64_t space) {
  Result<Fd> file = create(entry);
  if (!file.ok()) return file;
  StoreAsk ask = ask_for(AskKind::kPart, entry);
  ask.bytes = space;
  const Status named = end_slot("create a partial copy", entry, ask);
  if (named.ok()) return file;
  discard(entry);
  return named.error();
}

Result<Fd> StoreClient::open_part(Ref entry) {
  Fd file;
  MONARCH_TRY(ask_alone("open a partial copy", ask_for(AskKind::kReopen, entry), &file));
  if (!file) return failed("open a partial copy", EMFILE);
  return file;
}

Status StoreClient::publish_part(const Fd& file, Ref entry, const struct stat& source, struct stat* made) {
  MONARCH_TRY(ask_alone("publish a large copy", ask_whole(AskKind::kFinish, entry, source)));
  return os::fstat(file.get(), made) == 0 ? Status() : Status(failed("look at a copy", errno));
}

bool StoreClient::link(Ref copy, Ref entry) {
  StoreAsk ask = ask_for(AskKind::kLink, copy);
  ask.other = entry;
  const Status linked = ask_alone("link a copy", ask);
  errno = linked.error().code;
  return linked.ok();
}

bool StoreClient::remove(Ref entry) {
  return ask_alone("remove a copy", ask_for(AskKind::kRemove, entry)).ok();
}

// By a descriptor that opens nothing.
Fd StoreClient::hold(Fd file) const {
  const std::string self = "/proc/self/fd/" + std::to_string(file.get());
  return Fd(file ? os::openat(AT_FDCWD, self.c_str(), O_PATH | O_CLOEXEC) : -1);
}

bool StoreClient::is_open(Ref entry, const Fd&) {
  return !ask_alone("look at a copy", ask_for(AskKind::kLook, entry)).ok();
}

Result<std::optional<Store::Room>> StoreClient::room() {
  Room room;
  MONARCH_TRY(ask_alone("ask for room", ask_for(AskKind::kRoom), nullptr, &room));
  return std::optional<Room>(room);
}

}  // namespace monarch
