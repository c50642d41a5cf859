// SPDX-License-Identifier: Apache-2.0
// The space family: calls after which a path may lead elsewhere for this process.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "preload/next/next.h"
#include "preload/resolve/mounts.h"
#include "preload/resolve/roots.h"

namespace monarch::preload {
namespace {

// The call, by which the run directory may come out of sight too: what is mapped before stays.
template <typename Function, typename... Arguments>
int moved(Hook hook, Function* /*its type*/, Arguments... arguments) {
  client();
  const int result = next<Function>(hook)(arguments...);
  if (result == 0) {
    forget_directories();
    forget_mounts();
  }
  return result;
}

}  // namespace

EXPORT int chroot(const char* path) noexcept { return moved(Hook::chroot, &chroot, path); }
EXPORT int unshare(int flags) noexcept { return moved(Hook::unshare, &unshare, flags); }
EXPORT int setns(int fd, int type) noexcept { return moved(Hook::setns, &setns, fd, type); }
EXPORT int mount(const char* source, const char* target, const char* type, unsigned long flags,
                 const void* data) noexcept {
  return moved(Hook::mount, &mount, source, target, type, flags, data);
}
EXPORT int umount(const char* target) noexcept { return moved(Hook::umount, &umount, target); }
EXPORT int umount2(const char* target, int flags) noexcept {
  return moved(Hook::umount2, &umount2, target, flags);
}

}  // namespace monarch::preload
