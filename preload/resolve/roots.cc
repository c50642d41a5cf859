// SPDX-License-Identifier: Apache-2.0
#include "preload/resolve/roots.h"

#include <linux/capability.h>

#include "preload/client/room.h"
#include "preload/next/kernel.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/space.h"

namespace monarch::preload {
namespace {

enum Fact : unsigned char { kUnknown, kSame, kOther, kSameForGood };
std::atomic<Fact> prefix_checked[kMaxPrefixes];
std::atomic<uint64_t> prefix_mount[kMaxPrefixes];  // of those that are kSameForGood; 0: not known
std::atomic<Fact> user_checked, groups_checked;
std::atomic<bool> capabilities_vary;  // a thread changed its own
std::atomic<uint32_t> forgotten;

// What `look` finds out once, unless it is kUnknown; kSame is for now only: `ask` each time.
template <typename Look, typename Ask>
bool holds(std::atomic<Fact>* checked, Look look, Ask ask) {
  Fact seen = checked->load(std::memory_order_relaxed);
  if (__builtin_expect(seen == kUnknown, 0)) {
    const KeepErrno errno_stays;
    seen = look();
    checked->store(seen, std::memory_order_relaxed);
  }
  if (__builtin_expect(seen == kSameForGood, 1)) return true;
  return seen == kSame && ask();
}

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

bool stays_in_groups() {
  gid_t real, effective, kept;
  return syscall(SYS_getresgid, &real, &effective, &kept) == 0 && real == effective && kept == effective &&
         !has_capability(CAP_SETGID, false);
}

// In a user namespace made by an ordinary user: its groups stay what they were, whatever they are called
// there.
bool keeps_groups() {
  const Own file(open_own(AT_FDCWD, "/proc/self/setgroups", O_RDONLY));
  char text[4] = "";
  return syscall(SYS_read, file.fd, text, sizeof text) == sizeof text &&
         memcmp(text, "deny", sizeof text) == 0;
}

bool equal_groups(const CatalogFacts& facts) { return facts.groups == 0 || own_groups() == facts.groups; }

bool reads_all() {
  return has_capability(CAP_DAC_OVERRIDE, true) || has_capability(CAP_DAC_READ_SEARCH, true);
}

// Groups decide nothing for who may read all, as root's agent may: by capabilities, which count for this
// namespace's files only.
bool equal_rights(const CatalogFacts& facts) {
  return reads_all() || (facts.user != 0 && equal_groups(facts));
}

// Once.
void say_other(uint32_t prefix, const char* path) {
  static std::atomic<uint32_t> said{0};
  const char* log = the_client.log;
  if (log && (said.fetch_or(1u << prefix, std::memory_order_relaxed) >> prefix & 1) == 0)
    write_line(log, {"not redirected: ", path, " is another directory than the agent's"});
}

Fact look_at_groups(const CatalogFacts& facts) {
  const bool root = facts.user == 0;
  if (user_namespace() != facts.user_namespace) return !root && keeps_groups() ? kSameForGood : kOther;
  if (!root && stays_in_groups()) return equal_groups(facts) ? kSameForGood : kOther;
  return reads_all() && !capabilities_vary.load(std::memory_order_relaxed) ? kSameForGood : kSame;
}

// What opens of the path lead to: what translates the paths of system calls may not know statx(2) (PRoot
// before 5.2). What is mounted there when it is first used is, by "/.".
APART bool look_into(const char* path, struct statx* st) {
  Room room;
  const size_t len = strlen(path);
  char* const text = room.take(len + sizeof "/.");
  if (!text) return false;
  memcpy(text, path, len);
  memcpy(text + len, "/.", sizeof "/.");
  const Own directory(open_own(AT_FDCWD, text, O_PATH));
  return directory.fd >= 0 && look_at(directory.fd, STATX_INO | kMountId, st);
}

}  // namespace

bool is_same_directory(const CatalogFacts& facts, uint32_t number) {
  const Prefix& prefix = facts.prefixes[number];
  const auto look = [&] {
    struct statx st;
    if (!look_into(prefix.path, &st)) return kUnknown;
    prefix_mount[number].store(mount_id(st), std::memory_order_relaxed);
    if (device_of(st) == prefix.dev && st.stx_ino == prefix.ino) return kSameForGood;
    say_other(number, prefix.path);
    return kOther;
  };
  return holds(&prefix_checked[number], look, [] { return true; });
}

bool may_be_below_root(const CatalogFacts& facts, const struct statx& st) {
  for (uint32_t i = 0; i < facts.root_count; ++i)
    if (facts.roots[i].dev == device_of(st)) return true;
  const uint64_t mount = mount_id(st);
  for (uint32_t i = 0; mount != 0 && i < facts.prefix_count; ++i)
    if (facts.prefixes[i].below_len == 0 && is_same_directory(facts, i) &&
        prefix_mount[i].load(std::memory_order_relaxed) == mount)
      return true;
  return false;
}

const char* root_path(const Client& client, uint32_t root) {
  const CatalogFacts& facts = client.catalog.facts();
  for (uint32_t i = 0; i < facts.prefix_count; ++i) {
    const Prefix& prefix = facts.prefixes[i];
    if (prefix.root == root && prefix.below_len == 0 && is_same_directory(facts, i)) return prefix.path;
  }
  return nullptr;
}

bool same_user(const Client& client) {
  const CatalogFacts& facts = client.catalog.facts();
  const auto look = [&] {
    const uint64_t space = user_namespace();
    return space == 0                      ? kUnknown
           : space != facts.user_namespace ? kOther
           : stays_user(facts.user)        ? kSameForGood
                                           : kSame;
  };
  // As setfsuid(2) tells it, which is the effective one unless that call changed it.
  return holds(&user_checked, look,
               [&] { return static_cast<uint32_t>(syscall(SYS_setfsuid, -1)) == facts.user; });
}

bool same_groups(const Client& client) {
  const CatalogFacts& facts = client.catalog.facts();
  return holds(
      &groups_checked, [&] { return look_at_groups(facts); }, [&] { return equal_rights(facts); });
}

void will_change_capabilities() {
  capabilities_vary.store(true, std::memory_order_relaxed);
  groups_checked.store(kUnknown, std::memory_order_relaxed);
}

uint32_t times_forgotten() { return forgotten.load(std::memory_order_acquire); }

void forget_directories() {
  forgotten.fetch_add(1, std::memory_order_acq_rel);
  user_checked.store(kUnknown, std::memory_order_relaxed);
  groups_checked.store(kUnknown, std::memory_order_relaxed);
  for (std::atomic<Fact>& checked : prefix_checked) checked.store(kUnknown, std::memory_order_relaxed);
}

}  // namespace monarch::preload
