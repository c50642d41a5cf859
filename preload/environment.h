// SPDX-License-Identifier: Apache-2.0
// What of the environment reaches the programs that a process starts.
#pragma once

#include <stddef.h>

namespace monarch::preload {

// Copies the process's MONARCH_IO_* variables, once. False: another thread is at it, or libc is not yet set
// up.
bool save_environment();
// The value that the process got; nullptr: it did not. After save_environment().
const char* saved_variable(const char* name);

inline constexpr size_t kSavedVariables = 16;

// The environment for a program to be started with `given`, which is that plus what it lacks: LD_PRELOAD with
// this library, and MONARCH_IO_*. Where the library is not to be found, as after chroot(2), minus the
// library. Async-signal-safe and without allocation, for children of vfork(2): the caller gives the room on
// its stack.
class ChildEnvironment {
 public:
  explicit ChildEnvironment(char* const* given);
  // How much room build() needs; 0: `given` is right as it is, or too large for the stack (kMostBytes).
  size_t bytes() const;
  // What is returned lies in `room`, and points to `given`'s strings.
  char** build(void* room) const;

 private:
  static constexpr size_t kMostBytes = 24 * 1024;
  enum class Change { kNone, kAdd, kRemove };

  void add_variables();

  char* const* given_;
  bool belongs_ = false;  // to this process's job
  const char* add_[kSavedVariables];
  size_t adds_ = 0;
  const char* preload_ = nullptr;  // the entry for LD_PRELOAD
  Change change_ = Change::kNone;  // of that entry
  size_t list_bytes_ = 0;
};

// Whether the process belongs to a job (or may yet come to: the agent is starting).
bool is_attached();

}  // namespace monarch::preload
