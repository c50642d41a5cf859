// SPDX-License-Identifier: Apache-2.0
// The log of root's helpers, which many processes write. Its directory may be one that users can list, as
// /var/log is: whoever can may keep it locked in the kernel, and who makes or renames a file there hangs. A
// helper waits for no such lock itself: a child does, for a time.
#pragma once

#include <sys/types.h>

#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"

namespace monarch {

class RootLog {
 public:
  // Makes spdlog's default logger write to `file`, as open_log() does, from level info on. A file that is
  // full (kFullLog) becomes older_log() first, once for all processes; those that have it open go on there.
  // If it cannot be had in time, or at all, syslog has the messages, or standard error if there is no
  // /dev/log, and a line says so; one that is full is then written on. Below a second.
  RootLog(std::string state_dir, std::string file, Clock& clock = system_clock());
  // For who lives long: takes the file anew if it was rotated meanwhile, or is full.
  void follow();

 private:
  void note(const Fd& log);
  const std::string state_dir_, file_;
  Clock& clock_;
  dev_t device_ = 0;
  ino_t inode_ = 0;  // 0: the file is not what is written to
};

}  // namespace monarch
