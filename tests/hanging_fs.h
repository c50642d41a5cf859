// SPDX-License-Identifier: Apache-2.0
// Processes that hang, file systems that make them hang in the kernel, and what such a process keeps locked
// there.
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <optional>

#include "tests/private_mounts.h"
#include "tests/scratch.h"

namespace monarch {

// Waits until a process is in a call of the kernel's, and does not come out at once.
inline bool is_soon_in_kernel(pid_t process) {
  return eventually([=] {
    long call = -1;  // "running", or -1 at a fault
    return (std::ifstream("/proc/" + std::to_string(process) + "/syscall") >> call) && call >= 0;
  });
}

// The state of a process in /proc/PID/stat; X: there is none.
inline char state_of(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  return std::getline(in, line) ? line.at(line.rfind(')') + 2) : 'X';
}

// Whether it was killed, and may need some time yet to end; or there is none.
inline bool is_killed(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  uint64_t pending = 0;
  for (std::string word; in >> word;)
    if (word == "SigPnd:" && in >> std::hex >> pending) return (pending >> (SIGKILL - 1) & 1) != 0;
  return true;
}

// A process that is made to hang, which all that are forked know of.
class Hung {
 public:
  [[noreturn]] void here() const {
    ::alarm(200);  // where who would kill it was killed before: it is not left behind
    for (*pid_ = ::getpid();;) ::pause();
  }
  bool has_begun() const { return *pid_ != 0; }
  pid_t pid() const { return *pid_; }  // of the last one that was made to; 0: none was
  // It does, and has not been killed.
  bool now() const {
    return has_begun() && state_of(*pid_) != 'Z' && state_of(*pid_) != 'X' && !is_killed(*pid_);
  }

 private:
  const Shared<std::atomic<pid_t>> pid_;
};

// What a server of FUSE answers to a request: so many bytes that it has put there, or -errno, or nothing.
using FuseAnswer = std::function<std::optional<int>(const fuse_in_header& request, char* bytes)>;

[[noreturn]] inline void serve_fuse(int fd, const FuseAnswer& answer) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  alignas(fuse_in_header) char request[1 << 17];
  while (::read(fd, request, sizeof request) > 0) {
    const auto* in = reinterpret_cast<const fuse_in_header*>(request);
    alignas(8) char room[sizeof(fuse_out_header) + 256] = {};
    auto* header = reinterpret_cast<fuse_out_header*>(room);
    std::optional<int> bytes;
    if (in->opcode == FUSE_INIT) {
      fuse_init_out init = {};
      init.major = FUSE_KERNEL_VERSION;
      init.minor = FUSE_KERNEL_MINOR_VERSION;
      init.max_write = 4096;
      std::memcpy(room + sizeof *header, &init, sizeof init);
      bytes = sizeof init;
    } else {
      bytes = answer(*in, room + sizeof *header);
    }
    if (!bytes) continue;
    header->error = std::min(*bytes, 0);
    header->len = static_cast<uint32_t>(sizeof *header) + static_cast<uint32_t>(std::max(*bytes, 0));
    header->unique = in->unique;
    (void)!::write(fd, room, header->len);
  }
  ::_exit(0);
}

// While it lives, whoever opens a file below `directory` hangs, also once it is killed: the server has taken
// the request, and does not answer. To be made in a mount namespace of the test's own.
class HangingFs {
 public:
  explicit HangingFs(const std::string& directory, const std::string& more = "") {
    const int fd = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
    const std::string options = "fd=" + std::to_string(fd) + ",rootmode=40000,user_id=0,group_id=0" + more;
    is_mounted_ = ::mount("test", directory.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0;
    if (is_mounted_ && (server_ = ::fork()) == 0)
      serve_fuse(fd, [this](const fuse_in_header&, char*) {
        ++*asked_;
        return std::nullopt;
      });
    ::close(fd);
  }
  HangingFs(const HangingFs&) = delete;
  HangingFs& operator=(const HangingFs&) = delete;
  ~HangingFs() {
    if (server_ > 0) end_child(server_);
  }
  bool is_mounted() const { return is_mounted_; }
  // Whoever asked hangs now.
  bool is_asked() const { return asked() > 0; }
  int asked() const { return *asked_; }

 private:
  const Shared<std::atomic<int>> asked_;
  bool is_mounted_ = false;
  pid_t server_ = -1;
};

// Keeps a directory locked in the kernel, for reading, as anybody can who can list it: the list is to be
// copied to memory that is a map of a file, which nobody reads. `file` is an empty one, to mount on. To be
// made in a mount namespace of the test's own.
class LockedDirectory {
 public:
  explicit LockedDirectory(const std::string& file) {
    const int fd = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
    const std::string options = "fd=" + std::to_string(fd) + ",rootmode=100000,user_id=0,group_id=0";
    if (::mount("test", file.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) return;
    if ((server_ = ::fork()) == 0)
      serve_fuse(fd, [this](const fuse_in_header& in, char* bytes) { return answer(in, bytes); });
    ::close(fd);
    const int map = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat st;
    (void)::fstat(map, &st);  // until somebody asks it is empty
    memory_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, map, 0);
    ::close(map);
  }
  LockedDirectory(const LockedDirectory&) = delete;
  LockedDirectory& operator=(const LockedDirectory&) = delete;
  ~LockedDirectory() { end(); }
  bool is_ready() const { return memory_ != MAP_FAILED; }
  // From now on. Of the calling process, which may be another one by now.
  void lock(int directory) const {
    if (const pid_t pid = ::fork(); pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, 0);
      ::syscall(SYS_getdents64, directory, memory_, kBytes);
      ::_exit(0);
    } else {
      // The page is asked for once, whoever else waits for it.
      EXPECT_TRUE(eventually([&] { return is_read_->load(); }) && is_soon_in_kernel(pid));
    }
  }
  // Unlocks all: who waits for the file is told that it cannot be read.
  void end() {
    if (server_ <= 0) return;
    end_child(server_);
    server_ = -1;
  }

 private:
  static constexpr size_t kBytes = 4096;

  std::optional<int> answer(const fuse_in_header& request, char* bytes) const {
    if (request.opcode == FUSE_READ) {
      *is_read_ = true;
      return {};
    }
    if (request.opcode == FUSE_OPEN) return sizeof(fuse_open_out);
    if (request.opcode != FUSE_GETATTR) return -ENOSYS;
    fuse_attr_out attributes = {};
    attributes.attr_valid = 3600;
    attributes.attr.ino = 1;
    attributes.attr.mode = S_IFREG | 0600;
    attributes.attr.nlink = 1;
    attributes.attr.size = kBytes;
    std::memcpy(bytes, &attributes, sizeof attributes);
    return sizeof attributes;
  }

  pid_t server_ = -1;
  const Shared<std::atomic<bool>> is_read_;
  void* memory_ = MAP_FAILED;
};

// In mounts of the test's own; where there is no such directory to be had, nothing is done.
inline void with_locked_directory(const Scratch& scratch,
                                  const std::function<void(PrivateMounts*, LockedDirectory*)>& body) {
  in_private_mounts(scratch, [&](PrivateMounts* m) {
    LockedDirectory locked(scratch.file("file", ""));
    if (locked.is_ready()) body(m, &locked);
  });
}

// Whether `work`, by a process of its own, is soon done, and true. One that hangs is left to whoever unlocks.
inline bool is_soon_done(const std::function<bool()>& work) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(work() ? 0 : 1);
  int status = -1;
  return eventually([&] { return ::waitpid(pid, &status, WNOHANG) != 0; }) && status == 0;
}

}  // namespace monarch
