// SPDX-License-Identifier: Apache-2.0
// The space family: calls after which a path may lead elsewhere for this process, or less may be read.
#include <sched.h>
#include <sys/mount.h>

#include "preload/next/next.h"
#include "preload/resolve/roots.h"

namespace monarch::preload {
namespace {

// The call, by which the run directory may come out of sight too: what is mapped before stays.
template <typename... Arguments>
int moved(Hook hook, Arguments... arguments) {
  client();
  const int result = call_next<int>(hook, arguments...);
  if (result == 0) {
    forget_directories();
    forget_mounts();
  }
  return result;
}

}  // namespace

HOOK(int, chroot, (const char* path) noexcept, moved, path)
HOOK(int, unshare, (int flags) noexcept, moved, flags)
HOOK(int, setns, (int fd, int type) noexcept, moved, fd, type)
HOOK(int, mount,
     (const char* source, const char* target, const char* type, unsigned long flags,
      const void* data) noexcept,
     moved, source, target, type, flags, data)
HOOK(int, umount, (const char* target) noexcept, moved, target)
HOOK(int, umount2, (const char* target, int flags) noexcept, moved, target, flags)
// Since glibc 2.36; older ones reach the kernel by syscall(2) alone.
HOOK(int, move_mount, (int from, const char* source, int to, const char* target, unsigned flags) noexcept,
     moved, from, source, to, target, flags)
HOOK_AFTER(will_change_capabilities(), int, capset, (void* header, const void* sets) noexcept, header, sets)

}  // namespace monarch::preload
