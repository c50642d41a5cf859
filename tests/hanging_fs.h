// SPDX-License-Identifier: Apache-2.0
// A file system that makes processes hang in the kernel.
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace monarch {

// While it lives, whoever opens a file below `directory` hangs, also once it is killed: the server has taken
// the request, and does not answer. To be made in a mount namespace of the test's own.
class HangingFs {
 public:
  explicit HangingFs(const std::string& directory, const std::string& more = "") {
    const int fd = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
    const std::string options = "fd=" + std::to_string(fd) + ",rootmode=40000,user_id=0,group_id=0" + more;
    is_mounted_ = ::mount("test", directory.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0;
    if (is_mounted_ && (server_ = ::fork()) == 0) serve(fd);
    ::close(fd);
  }
  HangingFs(const HangingFs&) = delete;
  HangingFs& operator=(const HangingFs&) = delete;
  ~HangingFs() {
    if (server_ <= 0) return;
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
  }
  bool is_mounted() const { return is_mounted_; }

 private:
  [[noreturn]] static void serve(int fd) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    alignas(fuse_in_header) char request[1 << 17];
    while (::read(fd, request, sizeof request) > 0) {
      const auto* in = reinterpret_cast<const fuse_in_header*>(request);
      if (in->opcode != FUSE_INIT) continue;
      struct {
        fuse_out_header header;
        fuse_init_out init;
      } out = {};
      out.header.len = sizeof out;
      out.header.unique = in->unique;
      out.init.major = FUSE_KERNEL_VERSION;
      out.init.minor = FUSE_KERNEL_MINOR_VERSION;
      out.init.max_write = 4096;
      (void)!::write(fd, &out, sizeof out);
    }
    ::_exit(0);
  }

  bool is_mounted_ = false;
  pid_t server_ = -1;
};

}  // namespace monarch
