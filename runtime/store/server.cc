// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/store/store.h"

namespace monarch {
namespace {

constexpr int64_t kLookNs = 1'000'000'000;
constexpr uint64_t kBlockBytes = 4096;  // what a name counts at least
constexpr uint64_t kMostBlocks = UINT32_MAX;
// File systems allocate in larger pieces than are written.
constexpr uint64_t kAllocationSlack = 64 << 20;

uint64_t blocks_for(uint64_t bytes) { return std::max<uint64_t>(1, (bytes + kBlockBytes - 1) / kBlockBytes); }

// Holes count nothing.
uint64_t blocks_of(const struct stat& st) {
  constexpr uint64_t kBytesPerBlock = 512;
  return std::min(blocks_for(static_cast<uint64_t>(st.st_size)),
                  blocks_for(static_cast<uint64_t>(st.st_blocks) * kBytesPerBlock));
}

bool is_time(const timespec& t) { return t.tv_nsec >= 0 && t.tv_nsec < 1'000'000'000; }

bool is_valid(const StoreAsk& ask) {
  return ask.kind >= 1 && ask.kind <= kLastAskKind && ask.slot < kStoreSlots && ask.zero == 0 &&
         ask.bytes <= kMostBlocks * kBlockBytes && is_time(ask.atime) && is_time(ask.mtime);
}

int set_times(const Fd& file, const StoreAsk& ask) {
  const timespec times[2] = {ask.atime, ask.mtime};
  struct stat st;
  if (os::futimens(file.get(), times) != 0 || os::fstat(file.get(), &st) != 0) return errno;
  return same_time(st.st_mtim, ask.mtime) ? 0 : EOVERFLOW;
}

struct SlotName {
  explicit SlotName(uint32_t slot) { std::snprintf(text, sizeof text, "new/%u", slot); }
  char text[16];
};

bool send(int answers, const StoreServer::Answer& answer) {
  iovec bytes = {const_cast<StoreTold*>(&answer.told), sizeof answer.told};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (answer.fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    *CMSG_FIRSTHDR(&message) = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &answer.fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(answers, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == sizeof answer.told;
}

}  // namespace

Status confine_store() {
  ::umask(0);
  for (const int s : {SIGPIPE, SIGXFSZ, SIGIO}) ::signal(s, SIG_IGN);  // calls tell; SIGIO: of leases
  const rlimit files = {4 * kStoreSlots, 4 * kStoreSlots};
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) return errno_error("limit descriptors");
  for (unsigned long capability = 0; ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0;) ++capability;
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 ||
      ::syscall(SYS_capset, &header, none) != 0 || ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
    return errno_error("give up root's rights");
  return {};
}

StoreServer::StoreServer(Fd directory, std::string tier, Granted granted, Clock& clock)
    : directory_(std::move(directory)),
      tier_(std::move(tier)),
      grant_(std::move(granted)),
      clock_(clock),
      next_look_ns_(clock.now_ns() + kLookNs) {
  read_granted();
  refuses_ = prepare();
}

int StoreServer::prepare() {
  constexpr mode_t kNoListing = 0711;
  std::vector<std::string> names = {"part"};
  for (uint32_t bucket = 0; bucket < copies_.size(); ++bucket) {
    char name[kCopyNameBytes];
    copy_name(bucket, name);
    names.emplace_back(name, 2);
  }
  for (const std::string& name : names)
    if (os::mkdirat(directory_.get(), name.c_str(), kNoListing) != 0) return errno;
  tmpfile_ = renew(0) == 0;
  if (!tmpfile_ && os::mkdirat(directory_.get(), "new", 0700) != 0) return errno;
  if (const int error = tmpfile_ ? 0 : renew(0); error != 0) return error;
  StoreAsk ask;
  ask.mtime = {1, 123456789};
  const int error = set_times(slots_[0], ask);
  return error == EOVERFLOW ? EOPNOTSUPP : error;
}

bool StoreServer::serve(int requests, int answers) {
  // Few answers wait for one who does not take them: descriptors on their way count for all of root's.
  constexpr int kLeast = 1;
  ::setsockopt(answers, SOL_SOCKET, SO_SNDBUF, &kLeast, sizeof kLeast);
  ::shutdown(answers, SHUT_RD);
  for (;;) {
    const bool asked = clock_.poll_until(requests, POLLIN, next_look_ns_);
    if (clock_.now_ns() >= next_look_ns_ && !look()) return false;
    if (!asked) continue;
    StoreAsk ask;
    const ssize_t n = ::read(requests, &ask, sizeof ask);
    if (n == 0) return true;
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof ask) {
      spdlog::error("tier {}: the store of a job ends: its agent sent a part of a request", tier_);
      return false;
    }
    if (!send(answers, answer(ask))) return true;
  }
}

StoreServer::Answer StoreServer::answer(const StoreAsk& ask) {
  Answer answer;
  reopened_.reset();
  answer.told.error = is_valid(ask) ? handle(ask, &answer.fd) : EINVAL;
  answer.told.slot = ask.slot;
  answer.told.used = used_blocks() * kBlockBytes;
  answer.told.granted = granted_;
  return answer;
}

int StoreServer::handle(const StoreAsk& ask, int* fd) {
  const auto kind = static_cast<AskKind>(ask.kind);
  const bool fills = kind == AskKind::kPublish || kind == AskKind::kPart;
  if (kind != AskKind::kNew && kind != AskKind::kRoom && ask.ref == 0) return EINVAL;
  int error = 0;
  switch (kind) {
    case AskKind::kNew:
      error = renew(ask.slot);
      break;
    case AskKind::kPublish:
      error = publish(ask);
      break;
    case AskKind::kPart:
      error = part(ask);
      break;
    case AskKind::kFinish:
      return finish(ask);
    case AskKind::kReopen:
      error = reopen(ask.ref);
      *fd = reopened_.get();
      return error;
    case AskKind::kLink:
      return link(ask.ref, ask.other);
    case AskKind::kLook:
      return look_at(ask.ref);
    case AskKind::kRemove:
      return remove(ask.ref);
    case AskKind::kRoom:
      read_granted();
      return 0;
  }
  if (error == 0 && fills) (void)renew(ask.slot);  // else the agent asks for one
  if (error == 0) *fd = slots_[ask.slot].get();
  return error;
}

// By buckets in turn: a file system may place a file near its directory.
int StoreServer::renew(uint32_t slot) {
  if (refuses_ != 0) return refuses_;
  constexpr mode_t kMode = 0644;
  slots_[slot].reset();
  char bucket[kCopyNameBytes];
  copy_name(slot, bucket);
  bucket[2] = '\0';
  const SlotName name(slot);
  if (!tmpfile_) os::unlinkat(directory_.get(), name.text, 0);
  slots_[slot] =
      Fd(tmpfile_ ? os::openat(directory_.get(), bucket, O_TMPFILE | O_RDWR | O_CLOEXEC, kMode)
                  : os::openat(directory_.get(), name.text, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, kMode));
  return slots_[slot] ? 0 : errno;
}

int StoreServer::name_slot(const StoreAsk& ask, const char* name, uint64_t blocks, Names* names) {
  if (!has_room(blocks)) return EDQUOT;
  if (const int error = remove(ask.ref); error != 0) return error;
  char self[32];
  std::snprintf(self, sizeof self, "/proc/self/fd/%d", slots_[ask.slot].get());
  const SlotName slot(ask.slot);
  if ((tmpfile_ ? os::linkat(AT_FDCWD, self, directory_.get(), name, AT_SYMLINK_FOLLOW)
                : os::linkat(directory_.get(), slot.text, directory_.get(), name, 0)) != 0)
    return errno;
  if (!tmpfile_) os::unlinkat(directory_.get(), slot.text, 0);
  slots_[ask.slot].reset();
  names->push_back({ask.ref, static_cast<uint32_t>(blocks)});
  named_ += blocks;
  return 0;
}

int StoreServer::publish(const StoreAsk& ask) {
  const Fd& file = slots_[ask.slot];
  struct stat st;
  if (!file) return EINVAL;
  if (os::fstat(file.get(), &st) != 0) return errno;
  if (static_cast<uint64_t>(st.st_size) != ask.bytes) return EINVAL;
  if (const int error = set_times(file, ask); error != 0) return error;
  char name[kCopyNameBytes];
  copy_name(ask.ref, name);
  return name_slot(ask, name, blocks_of(st), &copies(ask.ref));
}

int StoreServer::part(const StoreAsk& ask) {
  if (!slots_[ask.slot]) return EINVAL;
  char name[kPartNameBytes];
  part_name(ask.ref, name);
  return name_slot(ask, name, blocks_for(ask.bytes), &parts_);
}

StoreServer::Names* StoreServer::find(Ref ref, std::string* name) {
  char copy[kCopyNameBytes], part[kPartNameBytes];
  copy_name(ref, copy);
  part_name(ref, part);
  for (Names* names : {&copies(ref), &parts_}) {
    // What was named last is removed first.
    const auto at = std::find_if(names->rbegin(), names->rend(), [&](const Name& n) { return n.ref == ref; });
    if (at == names->rend()) continue;
    std::swap(*at, names->back());
    *name = names == &parts_ ? part : copy;
    return names;
  }
  return nullptr;
}

int StoreServer::finish(const StoreAsk& ask) {
  std::string part;
  if (find(ask.ref, &part) != &parts_) return ENOENT;
  const Fd file(os::openat(directory_.get(), part.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st;
  if (!file || os::fstat(file.get(), &st) != 0) return errno;
  if (static_cast<uint64_t>(st.st_size) != ask.bytes) return EINVAL;
  const uint64_t before = parts_.back().blocks, blocks = blocks_of(st);
  if (blocks > before && !has_room(blocks - before)) return EDQUOT;
  if (const int error = set_times(file, ask); error != 0) return error;
  char copy[kCopyNameBytes];
  copy_name(ask.ref, copy);
  if (os::linkat(directory_.get(), part.c_str(), directory_.get(), copy, 0) != 0) return errno;
  if (os::unlinkat(directory_.get(), part.c_str(), 0) != 0) {
    const int error = errno;
    os::unlinkat(directory_.get(), copy, 0);
    return error;
  }
  parts_.pop_back();
  copies(ask.ref).push_back({ask.ref, static_cast<uint32_t>(blocks)});
  named_ = named_ - before + blocks;
  return 0;
}

int StoreServer::reopen(Ref ref) {
  std::string part;
  if (find(ref, &part) != &parts_) return ENOENT;
  reopened_ = Fd(os::openat(directory_.get(), part.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  return reopened_ ? 0 : errno;
}

int StoreServer::link(Ref ref, Ref other) {
  std::string copy;
  if (other == 0 || other == ref) return EINVAL;
  if (find(ref, &copy) != &copies(ref)) return ENOENT;
  if (!has_room(1)) return EDQUOT;
  if (const int error = remove(other); error != 0) return error;
  char name[kCopyNameBytes];
  copy_name(other, name);
  if (os::linkat(directory_.get(), copy.c_str(), directory_.get(), name, 0) != 0) return errno;
  copies(other).push_back({other, 1});
  ++named_;
  return 0;
}

int StoreServer::look_at(Ref ref) {
  std::string name;
  if (!find(ref, &name)) return is_left(ref) ? EBUSY : 0;
  const Fd file(os::openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return errno;
  return os::is_open_elsewhere(file.get()) ? EBUSY : 0;
}

int StoreServer::remove(Ref ref) {
  std::string name;
  Names* const names = find(ref, &name);
  if (!names) return 0;
  if (leaving_.size() >= kMostLeaving && is_left(0) && leaving_.size() >= kMostLeaving) return EBUSY;
  Fd file(os::openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return errno;
  if (os::unlinkat(directory_.get(), name.c_str(), 0) != 0) return errno;
  const uint64_t blocks = names->back().blocks;
  names->pop_back();
  leave(ref, blocks, std::move(file));
  return 0;
}

// A file with other names takes its space still.
void StoreServer::leave(Ref ref, uint64_t blocks, Fd file) {
  struct stat st = {};
  if (os::fstat(file.get(), &st) == 0 && st.st_nlink > 0) {
    shared_[st.st_ino] += blocks;
    return;
  }
  if (const auto others = shared_.extract(st.st_ino)) blocks += others.mapped();
  named_ -= blocks;
  if (!os::is_open_elsewhere(file.get())) return;
  leaving_.push_back({ref, blocks, std::move(file)});
  leaving_blocks_ += blocks;
}

bool StoreServer::is_left(Ref ref) {
  bool left = false;
  std::erase_if(leaving_, [&](const Leaving& file) {
    if (ref != 0 && file.ref != ref) return false;
    if (os::is_open_elsewhere(file.file.get())) return left = true, false;
    leaving_blocks_ -= file.blocks;
    return true;
  });
  return left;
}

bool StoreServer::has_room(uint64_t blocks) {
  const auto fits = [&] { return (used_blocks() + blocks) * kBlockBytes <= granted_; };
  if (fits()) return true;
  is_left(0);
  read_granted();
  return fits();
}

// It only grows.
void StoreServer::read_granted() { granted_ = std::max(granted_, grant_()); }

bool StoreServer::look() {
  constexpr uint64_t kBytesPerBlock = 512;
  next_look_ns_ = clock_.now_ns() + kLookNs;
  is_left(0);
  uint64_t held = 0;
  struct stat st;
  for (const Fd& file : slots_)
    if (file && os::fstat(file.get(), &st) == 0) held += static_cast<uint64_t>(st.st_blocks) * kBytesPerBlock;
  const auto most = [&] { return granted_ - std::min(granted_, named_ * kBlockBytes) + kAllocationSlack; };
  if (held > most()) read_granted();
  if (held <= most()) return true;
  for (const Fd& file : slots_)
    if (file) os::ftruncate(file.get(), 0);
  spdlog::error("tier {}: the store of a job ends: its agent has {} bytes in files without a name, of {}",
                tier_, held, granted_);
  return false;
}

}  // namespace monarch
