// SPDX-License-Identifier: Apache-2.0
// What of the environment reaches the programs that a process starts.
#pragma once

#include <stddef.h>

namespace monarch::preload {

// Copies the process's MONARCH_IO_* variables, once. False: another thread is at it, or libc is not yet set
// up.
bool save_environment();
// The value that the process got; nullptr: none, or an empty one. After save_environment().
const char* saved_variable(const char* name);

// Whether this library's hooks see what the process changes. If not, each open compares its file with the
// PFS.
bool has_hooks();

// Whether MONARCH_IO_DISABLE was set for the process.
bool is_disabled();

// The environment for a program to be started with `given`. That is `given` itself, as whoever made it wanted
// it, with two exceptions:
//   empty     nobody decided about Monarch. It is LD_PRELOAD, with this library alone, and MONARCH_IO_*.
//   without   LD_PRELOAD has this library, but MONARCH_IO_DISABLE is set, or the library is not to be found,
//             as after chroot(2): the library is taken out of it.
// Async-signal-safe and without allocation, for children of vfork(2): the caller gives the room on its stack.
class ChildEnvironment {
 public:
  explicit ChildEnvironment(char* const* given);
  // Whether the program will have the library, in this job, if it loads libraries.
  bool has_library() const { return has_library_; }
  // How much room build() needs; 0: none. More than the stack has (kMostBytes) is not asked for: then `given`
  // stays as it is.
  size_t bytes() const;
  // What is returned may lie in `room`, and points to `given`'s strings. `room`: nullptr if it needs none.
  char* const* build(void* room) const;

 private:
  static constexpr size_t kMostBytes = 24 * 1024;

  char* const* given_;
  const char* preload_ = nullptr;  // its entry for LD_PRELOAD
  bool removes_ = false;
  bool has_library_ = false;
};

}  // namespace monarch::preload
