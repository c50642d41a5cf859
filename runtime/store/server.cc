// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server.h"

#include <dirent.h>
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
#include <memory>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/remove_tree.h"
#include "runtime/store/store.h"

namespace monarch {
namespace {

constexpr uint64_t kBlockBytes = 4096;  // what a name counts at least
constexpr uint64_t kMostBytes = UINT32_MAX * kBlockBytes;
// File systems allocate in larger pieces than are written.
constexpr uint64_t kAllocationSlack = 64 << 20;

uint64_t blocks_for(uint64_t bytes) { return std::max<uint64_t>(1, (bytes + kBlockBytes - 1) / kBlockBytes); }
uint64_t allocated(const struct stat& st) { return static_cast<uint64_t>(st.st_blocks) * 512; }
// Holes count nothing.
uint64_t blocks_of(const struct stat& st) {
  return std::min(blocks_for(static_cast<uint64_t>(st.st_size)), blocks_for(allocated(st)));
}

bool is_time(const timespec& t) { return t.tv_nsec >= 0 && t.tv_nsec < 1'000'000'000; }

bool is_valid(const StoreAsk& ask) {
  const auto kind = static_cast<AskKind>(ask.kind);
  return ask.kind >= 1 && ask.kind <= kLastAskKind && ask.slot < kStoreSlots && ask.zero == 0 &&
         ask.bytes <= kMostBytes && is_time(ask.atime) && is_time(ask.mtime) &&
         (ask.ref != 0 || kind == AskKind::kNew || kind == AskKind::kRoom);
}

// For a file that is whole: of that size, it gets its times.
int seal(const Fd& file, const StoreAsk& ask, struct stat* st) {
  const timespec times[2] = {ask.atime, ask.mtime};
  if (os::fstat(file.get(), st) != 0) return errno;
  if (static_cast<uint64_t>(st->st_size) != ask.bytes) return EINVAL;
  if (os::futimens(file.get(), times) != 0 || os::fstat(file.get(), st) != 0) return errno;
  return same_time(st->st_mtim, ask.mtime) ? 0 : EOVERFLOW;
}

std::string slot_name(uint32_t slot) { return "new/" + std::to_string(slot); }

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
  return ::sendmsg(answers, &message, MSG_NOSIGNAL) == sizeof answer.told;
}

}  // namespace

Status confine_store() {
  ::umask(0);
  for (const int s : {SIGPIPE, SIGXFSZ, SIGIO}) ::signal(s, SIG_IGN);  // calls tell; SIGIO: of leases
  const rlimit files = {2 * kStoreSlots, 2 * kStoreSlots};
  (void)::setrlimit(RLIMIT_NOFILE, &files);
  for (unsigned long capability = 0; ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0;) ++capability;
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 ||
      ::syscall(SYS_capset, &header, none) != 0 || ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
    return errno_error("give up root's rights");
  return {};
}

StoreServer::StoreServer(Fd directory, std::string tier, std::function<uint64_t()> granted, Clock& clock)
    : directory_(std::move(directory)),
      tier_(std::move(tier)),
      grant_(std::move(granted)),
      clock_(clock),
      next_look_ns_(clock.now_ns() + patience::kLookNs) {
  read_granted();
  refuses_ = prepare();
}

int StoreServer::prepare() {
  std::vector<std::string> names = {"part"};
  for (uint32_t bucket = 0; bucket < copies_.size(); ++bucket)
    names.push_back(path(copies(bucket), bucket).substr(0, 2));
  for (const std::string& name : names)
    if (os::mkdirat(directory_.get(), name.c_str(), 0711) != 0 && errno != EEXIST) return errno;
  for (const char* left : {"part", "new"}) {
    const Fd dir(os::openat(directory_.get(), left, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!dir && errno == ENOENT) continue;
    if (const Status emptied = empty_directory(dir.get()); !emptied.ok()) return emptied.error().code;
  }
  std::set<ino_t> files;
  for (uint32_t bucket = 0; bucket < copies_.size(); ++bucket)
    if (const int error = take_over(bucket, &files); error != 0) return error;
  tmpfile_ = renew(0) == 0;
  if (!tmpfile_ && ((os::mkdirat(directory_.get(), "new", 0700) != 0 && errno != EEXIST) || renew(0) != 0))
    return errno;
  StoreAsk ask;
  ask.mtime = {1, 123456789};
  struct stat st, directory;
  const int error = seal(slots_[0], ask, &st);
  if (error != 0) return error == EOVERFLOW ? EOPNOTSUPP : error;
  if (os::fstat(directory_.get(), &directory) != 0) return errno;
  return st.st_dev == directory.st_dev ? 0 : EXDEV;
}

// Of a file with several names the others count as link() has them count.
int StoreServer::take_over(uint32_t bucket, std::set<ino_t>* files) {
  const std::string below = path(copies(bucket), bucket).substr(0, 3);
  Fd fd(os::openat(directory_.get(), below.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(fd ? os::fdopendir(fd.get()) : nullptr, &::closedir);
  if (!dir) return errno;
  (void)fd.release();
  while (const dirent* e = os::readdir(dir.get())) {
    const std::string name = below + e->d_name;
    const Ref ref = name.size() + 1 == kCopyNameBytes ? entry_of_copy(name.c_str()) : 0;
    struct stat st;
    if (ref == 0) continue;
    if (os::fstatat(directory_.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return errno;
    const uint64_t blocks = files->insert(st.st_ino).second ? blocks_of(st) : 1;
    copies_[bucket].push_back({ref, static_cast<uint32_t>(blocks)});
    named_ += blocks;
  }
  return 0;
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
    if (n != sizeof ask) {
      spdlog::error("tier {}: a job's store ends: its agent sent a part of a request", tier_);
      return false;
    }
    if (!send(answers, answer(ask))) return true;
  }
}

StoreServer::Answer StoreServer::answer(const StoreAsk& ask) {
  reopened_.reset();
  Answer answer;
  const int error = is_valid(ask) ? handle(ask) : EINVAL;
  const auto kind = static_cast<AskKind>(ask.kind);
  if (error == 0 && kind == AskKind::kReopen) answer.fd = reopened_.get();
  if (error == 0 && kind <= AskKind::kPart) answer.fd = slots_[ask.slot].get();
  answer.told = {error, ask.slot, (named_ + leaving_blocks_) * kBlockBytes, granted_};
  return answer;
}

int StoreServer::handle(const StoreAsk& ask) {
  switch (static_cast<AskKind>(ask.kind)) {
    case AskKind::kNew:
      return renew(ask.slot);
    case AskKind::kPublish:
      return publish(ask);
    case AskKind::kPart:
      return name_slot(ask, blocks_for(ask.bytes), &parts_);
    case AskKind::kFinish:
      return finish(ask);
    case AskKind::kReopen:
      return reopen(ask.ref);
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
  return EINVAL;
}

// In the buckets by turns: a file system may place a file near its directory.
int StoreServer::renew(uint32_t slot) {
  if (refuses_ != 0) return refuses_;
  const std::string named = slot_name(slot), bucket = path(copies(slot), slot).substr(0, 2);
  slots_[slot].reset();
  if (!tmpfile_) os::unlinkat(directory_.get(), named.c_str(), 0);
  slots_[slot] =
      Fd(tmpfile_ ? os::openat(directory_.get(), bucket.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0644)
                  : os::openat(directory_.get(), named.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644));
  return slots_[slot] ? 0 : errno;
}

int StoreServer::publish(const StoreAsk& ask) {
  struct stat st;
  if (!slots_[ask.slot]) return EINVAL;
  if (const int error = seal(slots_[ask.slot], ask, &st); error != 0) return error;
  return name_slot(ask, blocks_of(st), copies(ask.ref));
}

// The slot is filled again at once, if that can be: else the agent asks for it.
int StoreServer::name_slot(const StoreAsk& ask, uint64_t blocks, Names* names) {
  const Fd& file = slots_[ask.slot];
  if (!file) return EINVAL;
  const int error =
      tmpfile_ ? give_name({AT_FDCWD, "/proc/self/fd/" + std::to_string(file.get()), AT_SYMLINK_FOLLOW},
                           names, ask.ref, blocks)
               : give_name({directory_.get(), slot_name(ask.slot)}, names, ask.ref, blocks);
  if (error == 0) (void)renew(ask.slot);
  return error;
}

int StoreServer::give_name(const From& from, Names* names, Ref ref, uint64_t blocks) {
  if (!has_room(blocks)) return EDQUOT;
  const std::string name = path(names, ref);
  const auto link = [&] {
    const int rc = os::linkat(from.directory, from.name.c_str(), directory_.get(), name.c_str(), from.flags);
    return rc == 0 ? 0 : errno;
  };
  int error = link();
  if (error == EEXIST && (error = remove(ref)) == 0) error = link();
  if (error != 0) return error;
  names->push_back({ref, static_cast<uint32_t>(blocks)});
  named_ += blocks;
  return 0;
}

int StoreServer::finish(const StoreAsk& ask) {
  if (find(ask.ref) != &parts_) return ENOENT;
  const std::string part = path(&parts_, ask.ref), copy = path(copies(ask.ref), ask.ref);
  const Fd file(os::openat(directory_.get(), part.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return errno;
  struct stat st;
  if (const int error = seal(file, ask, &st); error != 0) return error;
  const uint64_t before = parts_.back().blocks, blocks = blocks_of(st);
  if (blocks > before && !has_room(blocks - before)) return EDQUOT;
  if (os::linkat(directory_.get(), part.c_str(), directory_.get(), copy.c_str(), 0) != 0) return errno;
  if (os::unlinkat(directory_.get(), part.c_str(), 0) != 0) {
    const int error = errno;
    os::unlinkat(directory_.get(), copy.c_str(), 0);
    return error;
  }
  parts_.pop_back();
  copies(ask.ref)->push_back({ask.ref, static_cast<uint32_t>(blocks)});
  named_ += blocks - before;
  return 0;
}

int StoreServer::reopen(Ref ref) {
  if (find(ref) != &parts_) return ENOENT;
  reopened_ = Fd(os::openat(directory_.get(), path(&parts_, ref).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  return reopened_ ? 0 : errno;
}

int StoreServer::link(Ref ref, Ref other) {
  if (other == 0 || other == ref) return EINVAL;
  if (find(ref) != copies(ref)) return ENOENT;
  return give_name({directory_.get(), path(copies(ref), ref)}, copies(other), other, 1);
}

int StoreServer::look_at(Ref ref) {
  const Names* const names = find(ref);
  if (!names) return is_leaving(ref) ? EBUSY : 0;
  const Fd file(os::openat(directory_.get(), path(names, ref).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return errno;
  return os::is_open_elsewhere(file.get()) ? EBUSY : 0;
}

// A file with other names takes its space still.
int StoreServer::remove(Ref ref) {
  Names* const names = find(ref);
  if (!names) return 0;
  const std::string name = path(names, ref);
  Fd file(os::openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (leaving_.size() >= kMostLeaving) is_leaving(0);
  if (file && leaving_.size() >= kMostLeaving && os::is_open_elsewhere(file.get())) return EBUSY;
  if ((!file || os::unlinkat(directory_.get(), name.c_str(), 0) != 0) && errno != ENOENT) return errno;
  struct stat st = {};
  (void)os::fstat(file.get(), &st);
  uint64_t blocks = names->back().blocks;
  names->pop_back();
  if (st.st_nlink > 0) {
    shared_[st.st_ino] += blocks;
    return 0;
  }
  if (const auto others = shared_.extract(st.st_ino)) blocks += others.mapped();
  named_ -= blocks;
  if (!file || !os::is_open_elsewhere(file.get())) return 0;
  leaving_.push_back({ref, blocks, std::move(file)});
  leaving_blocks_ += blocks;
  return 0;
}

std::string StoreServer::path(const Names* names, Ref ref) const {
  char copy[kCopyNameBytes], part[kPartNameBytes];
  copy_name(ref, copy);
  part_name(ref, part);
  return names == &parts_ ? part : copy;
}

StoreServer::Names* StoreServer::find(Ref ref) {
  for (Names* names : {copies(ref), &parts_}) {
    const auto at = std::find_if(names->rbegin(), names->rend(), [&](const Name& n) { return n.ref == ref; });
    if (at == names->rend()) continue;
    std::swap(*at, names->back());
    return names;
  }
  return nullptr;
}

bool StoreServer::is_leaving(Ref ref) {
  bool left = false;
  std::erase_if(leaving_, [&](const Leaving& one) {
    if (ref != 0 && one.ref != ref) return false;
    if (os::is_open_elsewhere(one.file.get())) return left = true, false;
    leaving_blocks_ -= one.blocks;
    return true;
  });
  return left;
}

bool StoreServer::has_room(uint64_t blocks) {
  const auto fits = [&] { return (named_ + leaving_blocks_ + blocks) * kBlockBytes <= granted_; };
  if (fits()) return true;
  is_leaving(0);
  read_granted();
  return fits();
}

// It only grows.
void StoreServer::read_granted() { granted_ = std::max(granted_, grant_()); }

bool StoreServer::look() {
  next_look_ns_ = clock_.now_ns() + patience::kLookNs;
  is_leaving(0);
  uint64_t held = 0;
  struct stat st;
  for (const Fd& file : slots_)
    if (file && os::fstat(file.get(), &st) == 0) held += allocated(st);
  const auto most = [&] { return granted_ - std::min(granted_, named_ * kBlockBytes) + kAllocationSlack; };
  if (held > most()) read_granted();
  if (held <= most()) return true;
  for (const Fd& file : slots_)
    if (file) os::ftruncate(file.get(), 0);
  spdlog::error("tier {}: a job's store ends: its agent has {} bytes in files without a name, of {} granted",
                tier_, held, granted_);
  return false;
}

}  // namespace monarch
