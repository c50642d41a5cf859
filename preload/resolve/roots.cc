// SPDX-License-Identifier: Apache-2.0
#include "preload/resolve/roots.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "runtime/layout/groups.h"

namespace monarch::preload {
namespace {

enum : unsigned char { kUnknown, kSame, kOther, kSameForGood };
std::atomic<unsigned char> prefix_checked[kMaxPrefixes];
std::atomic<unsigned char> user_checked;
std::atomic<uint32_t> forgotten;

uint64_t user_namespace() { return namespace_inode("/proc/self/ns/user"); }

bool has_capability(uint32_t capability, bool effective) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
  if (syscall(SYS_capget, &header, sets) != 0) return true;
  const struct __user_cap_data_struct& set = sets[CAP_TO_INDEX(capability)];
  return ((effective ? set.effective : set.permitted) & CAP_TO_MASK(capability)) != 0;
}

// Whether the process is this user's and can become another's by a namespace only, which hooks/space.cc sees:
// then nobody has to ask the kernel again.
bool stays_user(uint32_t user) {
  uid_t real, effective, kept;
  return user != 0 && syscall(SYS_getresuid, &real, &effective, &kept) == 0 && real == user &&
         effective == user && kept == user && !has_capability(CAP_SETUID, false);
}

std::atomic<unsigned char> groups_checked;

bool stays_in_groups() {
  gid_t real, effective, kept;
  return syscall(SYS_getresgid, &real, &effective, &kept) == 0 && real == effective && kept == effective &&
         !has_capability(CAP_SETGID, false);
}

// In a user namespace made by an ordinary user: its groups stay what they were, whatever they are called
// there.
bool keeps_groups() {
  const long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/setgroups", O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return false;
  char text[4] = "";
  const long n = syscall(SYS_read, static_cast<int>(fd), text, sizeof text);
  syscall(SYS_close, static_cast<int>(fd));
  return n == sizeof text && memcmp(text, "deny", sizeof text) == 0;
}

bool equal_groups(const JobFacts& facts) { return facts.groups == 0 || own_groups() == facts.groups; }

unsigned char look_at_groups(const JobFacts& facts) {
  if (user_namespace() != facts.user_namespace) return keeps_groups() ? kSameForGood : kOther;
  if (stays_in_groups()) return equal_groups(facts) ? kSameForGood : kOther;
  // Groups decide nothing for who may read all.
  const bool all = has_capability(CAP_DAC_OVERRIDE, true) || has_capability(CAP_DAC_READ_SEARCH, true);
  return all ? kSameForGood : kSame;
}

}  // namespace

uint64_t namespace_inode(const char* link) {
  struct statx st;
  return syscall(SYS_statx, AT_FDCWD, link, 0, STATX_INO, &st) == 0 ? st.stx_ino : 0;
}

bool is_same_directory(const JobFacts& facts, uint32_t number) {
  const Prefix& prefix = facts.prefixes[number];
  std::atomic<unsigned char>& checked = prefix_checked[number];
  unsigned char seen = checked.load(std::memory_order_relaxed);
  if (seen == kUnknown) {
    const int saved = errno;
    struct statx st;
    const long rc = syscall(SYS_statx, AT_FDCWD, prefix.path, AT_STATX_DONT_SYNC, STATX_INO, &st);
    errno = saved;
    if (rc != 0) return false;
    const uint64_t dev = gnu_dev_makedev(st.stx_dev_major, st.stx_dev_minor);
    seen = dev == prefix.dev && st.stx_ino == prefix.ino ? kSame : kOther;
    checked.store(seen, std::memory_order_relaxed);
  }
  return seen == kSame;
}

bool on_root_device(const JobFacts& facts, uint64_t dev) {
  for (uint32_t i = 0; i < facts.root_count; ++i)
    if (facts.roots[i].dev == dev) return true;
  return false;
}

const char* root_path(const Client& client, uint32_t root) {
  const JobFacts& facts = client.catalog.facts();
  for (uint32_t i = 0; i < facts.prefix_count; ++i) {
    const Prefix& prefix = facts.prefixes[i];
    if (prefix.root == root && prefix.below_len == 0 && is_same_directory(facts, i)) return prefix.path;
  }
  return nullptr;
}

bool same_user(const Client& client) {
  const JobFacts& facts = client.catalog.facts();
  unsigned char seen = user_checked.load(std::memory_order_relaxed);
  if (__builtin_expect(seen == kUnknown, 0)) {
    const int saved = errno;
    const uint64_t space = user_namespace();
    seen = space != facts.user_namespace ? kOther : stays_user(facts.user) ? kSameForGood : kSame;
    errno = saved;
    if (space == 0) return false;
    user_checked.store(seen, std::memory_order_relaxed);
  }
  if (__builtin_expect(seen == kSameForGood, 1)) return true;
  // As setfsuid(2) tells it, which is the effective one unless that call changed it.
  return seen == kSame && static_cast<uint32_t>(syscall(SYS_setfsuid, -1)) == facts.user;
}

bool same_groups(const Client& client) {
  const JobFacts& facts = client.catalog.facts();
  unsigned char seen = groups_checked.load(std::memory_order_relaxed);
  if (__builtin_expect(seen == kUnknown, 0)) {
    const int saved = errno;
    seen = look_at_groups(facts);
    errno = saved;
    groups_checked.store(seen, std::memory_order_relaxed);
  }
  if (__builtin_expect(seen == kSameForGood, 1)) return true;
  return seen == kSame && equal_groups(facts);
}

uint32_t times_forgotten() { return forgotten.load(std::memory_order_acquire); }

void forget_directories() {
  forgotten.fetch_add(1, std::memory_order_acq_rel);
  user_checked.store(kUnknown, std::memory_order_relaxed);
  groups_checked.store(kUnknown, std::memory_order_relaxed);
  for (std::atomic<unsigned char>& checked : prefix_checked)
    checked.store(kUnknown, std::memory_order_relaxed);
}

}  // namespace monarch::preload
