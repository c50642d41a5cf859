// SPDX-License-Identifier: Apache-2.0
// The space family: calls after which a path may lead elsewhere for this process, or less may be read.
#include <sched.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#include "preload/decide/returns.h"
#include "preload/next/next.h"
#include "preload/resolve/paths.h"
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

// Beside root, nobody restricts himself without a word of this first. All that takes calls is done before.
void will_restrict_itself(bool gives_all = false) {
  const Client* c = client();
  if (c) (void)c->catalog.map_identities();
  for (uint32_t i = 0; c && i < c->catalog.facts().prefix_count; ++i)
    (void)is_same_directory(c->catalog.facts(), i);
  if (c && (gives_all || c->board->header.marks.load(std::memory_order_acquire) != 0))
    give_all_back(Given::kOwn, Hints::kSet);  // what was written may be written again
  for (int fd = 0; fd < static_cast<int>(kDescriptors); ++fd)
    if (class_of(fd) == kLarge) opened_on_pfs(fd, 0);
  restrict_program();
}

bool may_be_served() { return !is_vfork_child() && the_client.program != Program::kRestricted; }

// All hints by a descriptor's number are its threads' together.
void will_have_tables() {
  if (!may_be_served() || threads() == Threads::kOne) return;
  will_restrict_itself(true);
  threads_have_tables();
}

}  // namespace

HOOK(int, chroot, (const char* path) noexcept, moved, path)
EXPORT int unshare(int flags) noexcept {
  if ((flags & CLONE_FILES) != 0) will_have_tables();
  return moved(Hook::unshare, flags);
}
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
EXPORT int prctl(int option, ...) noexcept {
  unsigned long words[4];
  va_list list;
  va_start(list, option);
  for (unsigned long& word : words) word = va_arg(list, unsigned long);
  va_end(list);
  if ((option == PR_SET_NO_NEW_PRIVS || option == PR_SET_SECCOMP) && may_be_served()) will_restrict_itself();
  return call_next<int>(Hook::prctl, option, words[0], words[1], words[2], words[3]);
}
HOOK_AFTER(will_change_capabilities(), int, capset, (void* header, const void* sets) noexcept, header, sets)

}  // namespace monarch::preload
