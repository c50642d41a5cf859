// SPDX-License-Identifier: Apache-2.0
// An operating system that fails on demand: linked into the unit tests instead of runtime/base/os.cc. Every
// call of os.h goes to the system, unless a test has put an Intercept on it.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

struct tcp_info;

namespace monarch {

enum class Call {
  kOpenBeneath,
  kOpenat,
  kFstat,
  kFstatResult,
  kPread,
  kPwrite,
  kSendfile,
  kConnectionInfoResult,
  kFallocate,
  kFtruncate,
  kFinishSync,  // sync_range that waits
  kDropPages,   // told of, cannot fail
  kFutimens,
  kLinkat,
  kRenameat,
  kUnlinkat,
  kMkdirat,
  kFstatvfs,
  kFstatfsResult,
  kFstatat,
  kWatch,  // inotify_add_watch
  kChmod,  // by path or descriptor
  kFdopendir,
  kReaddir,
  kReaddirResult,
  kUringSubmit,
  kUringResult,  // of a write
  kStartThread,
  kCount
};

// What an Intercept sees of a call; what does not belong to the call is empty.
struct Arguments {
  int fd = -1;                 // file or directory; for linkat and renameat, where the new name goes
  const char* path = nullptr;  // for linkat and renameat, the new name
  int flags = 0;
  size_t bytes = 0;  // of pread, pwrite, sendfile and kUringResult: may be lowered, which makes the call
                     // short; of kUringSubmit: how many entries, likewise
  off_t offset = 0;
  struct statvfs* fs = nullptr;    // of fstatvfs: what the system said, may be changed
  struct stat* st = nullptr;       // of kFstatResult: likewise
  struct statfs* disk = nullptr;   // of kFstatfsResult: likewise
  struct dirent* name = nullptr;   // of kReaddirResult: likewise
  struct tcp_info* tcp = nullptr;  // of kConnectionInfoResult: likewise
};

// While it lives, `handler` is called before each call of this kind, in the calling thread (kFstatvfs,
// kFstatResult, kFstatfsResult, kReaddirResult, kConnectionInfoResult: after it). It returns 0, or
// nothing, to let the call go on, or the errno with which it fails. One Intercept per kind at a time. The
// destructor waits for handlers that are running.
class Intercept {
 public:
  using Handler = std::function<int(Arguments&)>;
  Intercept(Call call, Handler handler);
  template <class F>
  requires std::is_void_v<std::invoke_result_t<F&, Arguments&>> Intercept(Call call, F look)
      : Intercept(call, Handler([look = std::move(look)](Arguments& a) mutable {
                    look(a);
                    return 0;
                  })) {}
  // Each call fails with `error`.
  Intercept(Call call, int error);
  Intercept(const Intercept&) = delete;
  Intercept& operator=(const Intercept&) = delete;
  ~Intercept();

 private:
  const Call call_;
};

// While it lives, calls of this kind that `picks` picks wait until go_on(), then end with `error`, or go on.
class Held {
 public:
  explicit Held(Call call, int error = 0, std::function<bool(const Arguments&)> picks = {});
  ~Held() { go_on(); }
  void go_on();
  bool is_reached() const { return reached_ > 0; }
  int reached() const { return reached_; }  // how many have come here

 private:
  int wait(const Arguments& arguments);

  const int error_;
  const std::function<bool(const Arguments&)> picks_;
  std::atomic<bool> goes_on_{false};
  std::atomic<int> reached_{0};
  const Intercept calls_;
};

// While it lives, os::clock_ns is ahead by `seconds`, but for what threads have computed.
class LaterBy {
 public:
  explicit LaterBy(int64_t seconds);
  LaterBy(const LaterBy&) = delete;
  LaterBy& operator=(const LaterBy&) = delete;
  ~LaterBy();

 private:
  const int64_t ns_;
};

// The system's own calls that have a behaviour of their own to test; see os.h.
namespace real_os {
int open_beneath(int dirfd, const char* path, int flags, mode_t mode);
}

}  // namespace monarch
