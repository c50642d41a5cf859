// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace monarch {

// A line of /proc/self/mountinfo, see proc_pid_mountinfo(5). Names are as they are, not as they are written
// there. What a user mounts has names of that user's: blanks, line ends, or nothing at all for a source.
struct MountLine {
  int64_t id = 0, parent = 0;
  std::string device;         // "major:minor"
  std::string root, point;    // `root` of the file system is seen at `point`
  std::string options;        // of the mount
  std::string type, source;   // of the file system
  std::string super_options;  // of the file system
};

// False: it is no such line; `out` may be changed all the same.
bool parse_mount_line(const std::string& line, MountLine* out);

// The mount that has this id (os::mount_id) where the calling process is. False: there is none.
bool find_mount(int64_t id, MountLine* out);

// Whether one of `options`, which are separated by commas, is that.
bool has_mount_option(const std::string& options, const std::string& option);

}  // namespace monarch
