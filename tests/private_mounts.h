// SPDX-License-Identifier: Apache-2.0
// Mounts that only a test sees.
#pragma once

#include <fcntl.h>

#include <cstdio>

#include "tests/scratch.h"

namespace monarch {

// In a child process, since mounts are looked up by process: what it mounts nobody else sees, and ends with
// it.
class PrivateMounts {
 public:
  explicit PrivateMounts(const Scratch& scratch) : scratch_(scratch) {}
  bool begin() {
    ::alarm(600);  // what hangs in a file system that nobody serves
    return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  }
  void tmpfs(const std::string& name, const char* source) {
    check(::mount(source, (scratch_ / name).c_str(), "tmpfs", 0, "size=1m,mode=755") == 0, "mount " + name);
  }
  // Nobody serves it: what asks it hangs.
  void fuse(const std::string& name, uid_t uid, const std::string& more = "", const char* mode = "40000") {
    const int fd = ::open("/dev/fuse", O_RDWR);
    const std::string id = std::to_string(uid);
    const std::string options =
        "fd=" + std::to_string(fd) + ",rootmode=" + mode + ",user_id=" + id + ",group_id=" + id + more;
    check(::mount("test", (scratch_ / name).c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0,
          "mount " + name);
  }
  void check(bool good, const std::string& what) {
    if (good) return;
    std::fprintf(stderr, "not so: %s\n", what.c_str());
    failed_ = 1;
  }
  int result() const { return failed_; }
  const Scratch& scratch() const { return scratch_; }

 private:
  const Scratch& scratch_;
  int failed_ = 0;
};

inline void in_private_mounts(const Scratch& scratch, const std::function<void(PrivateMounts*)>& body) {
  const int code = in_child([&] {
    PrivateMounts mounts(scratch);
    if (!mounts.begin()) return 99;
    body(&mounts);
    return mounts.result();
  });
  if (code == 99) GTEST_SKIP() << "cannot mount";
  EXPECT_EQ(code, 0);
}

}  // namespace monarch
