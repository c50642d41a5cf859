// SPDX-License-Identifier: Apache-2.0
// From what a program passes to open(2) to a path below a dataset root.
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "preload/preload.h"

namespace monarch::preload {

bool on_root_device(const CatalogHeader& header, uint64_t dev) {
  for (uint32_t i = 0; i < header.root_count; ++i)
    if (header.roots[i].dev == dev) return true;
  return false;
}

void fd_link(int fd, char* out) {
  memcpy(out, kFdLinks, sizeof kFdLinks - 1);
  size_t digits = 1;
  for (int n = fd; n >= 10; n /= 10) ++digits;
  char* end = out + sizeof kFdLinks - 1 + digits;
  *end = '\0';
  for (size_t i = 0; i < digits; ++i, fd /= 10) *--end = static_cast<char>('0' + fd % 10);
}

namespace {

// Past slashes and "." components. `p` is at a '/'; the result is at the first byte of a component, or at
// the end of the path.
const char* next_component(const char* p) {
  for (;;) {
    while (*p == '/') ++p;
    if (p[0] != '.' || (p[1] != '/' && p[1] != '\0')) return p;
    ++p;
  }
}

// If `path` (absolute) is `prefix` or leads below it, its rest, at the first byte of a component; else
// nullptr.
const char* rest_below(const char* path, const Prefix& prefix) {
  // Most paths say by their first byte that differs that they lead elsewhere. What differs by a slash or a
  // "." may lead below nevertheless.
  const char *p = path, *q = prefix.path;
  while (*p == *q && *q) {
    ++p;
    ++q;
  }
  if (*q == '\0') return *p == '/' ? next_component(p) : *p == '\0' ? p : nullptr;
  if (*p != '/' && *p != '.') return nullptr;
  p = path;
  for (q = prefix.path; *q; ++q) {
    if (*p != *q) return nullptr;
    p = *p == '/' ? next_component(p) : p + 1;
  }
  return *p == '/' ? next_component(p) : *p == '\0' ? p : nullptr;
}

// Whether `path` (absolute) is the prefix's own or leads to a directory above it.
bool leads_to(const char* path, const Prefix& prefix) {
  const char* q = prefix.path;
  for (const char* p = path;;) {
    p = next_component(p);
    if (*p == '\0') return true;
    if (*q == '\0') return false;
    for (++q; *q && *q != '/'; ++p, ++q)
      if (*p != *q) return false;
    if (*p == '\0') return true;
    if (*p != '/') return false;
  }
}

// What a path is, read as text.
enum class Text { kClean, kSlash, kUnclear };

// Appends the components of `rest` to buffer[*at], with single slashes. kSlash: the path ends in a slash or
// "."; kUnclear: it has a ".." or is too long.
Text append_clean(const char* rest, char* buffer, size_t* at) {
  for (;;) {
    const char* end = rest;
    while (*end && *end != '/') ++end;
    const auto len = static_cast<size_t>(end - rest);
    if (len == 2 && rest[0] == '.' && rest[1] == '.') return Text::kUnclear;
    if (*at + len + 1 >= kRelPathBytes) return Text::kUnclear;
    if (*at > 0) buffer[(*at)++] = '/';
    memcpy(buffer + *at, rest, len);
    *at += len;
    if (*end == '\0') return Text::kClean;
    rest = next_component(end);
    if (*rest == '\0') return Text::kSlash;
  }
}

enum : unsigned char { kUnknown, kSame, kOther, kSameForGood };
std::atomic<unsigned char> prefix_checked[kMaxPrefixes];

// Whether the directory at the prefix is the one that the agent saw, in this mount namespace.
bool same_directory(const Prefix& prefix, std::atomic<unsigned char>* checked) {
  unsigned char seen = checked->load(std::memory_order_relaxed);
  if (seen == kUnknown) {
    const int saved = errno;
    struct statx st;
    const long rc = syscall(SYS_statx, AT_FDCWD, prefix.path, AT_STATX_DONT_SYNC, STATX_INO, &st);
    errno = saved;
    const uint64_t dev = rc == 0 ? gnu_dev_makedev(st.stx_dev_major, st.stx_dev_minor) : 0;
    seen = rc == 0 && dev == prefix.dev && st.stx_ino == prefix.ino ? kSame : kOther;
    checked->store(seen, std::memory_order_relaxed);
  }
  return seen == kSame;
}

std::atomic<unsigned char> user_checked;

bool in_namespace(const CatalogHeader& header) {
  struct statx st;
  return syscall(SYS_statx, AT_FDCWD, "/proc/self/ns/user", 0, STATX_INO, &st) == 0 &&
         st.stx_ino == header.user_namespace;
}

// Whether the process is this user's and can become another's by a namespace only, which hooks_space.cc sees:
// then nobody has to ask the kernel again.
bool stays_user(uint32_t user) {
  uid_t real, effective, kept;
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct capabilities[_LINUX_CAPABILITY_U32S_3];
  return user != 0 && syscall(SYS_getresuid, &real, &effective, &kept) == 0 && real == user &&
         effective == user && kept == user && syscall(SYS_capget, &header, capabilities) == 0 &&
         (capabilities[CAP_TO_INDEX(CAP_SETUID)].permitted & CAP_TO_MASK(CAP_SETUID)) == 0;
}

#ifdef STATX_MNT_ID
constexpr uint32_t kMountId = STATX_MNT_ID;
#else
constexpr uint32_t kMountId = 0;
#endif

struct Mount {
  std::atomic<unsigned char> checked;
  std::atomic<uint32_t> mask;
  std::atomic<uint64_t> attributes_mask;
  std::atomic<uint64_t> mount;
  std::atomic<bool> lazy_times;
};
Mount mounts[kMaxRoots];

// What statx(2) says of the root by each of its paths in this mount namespace; false: not the same.
bool learn_mount(const CatalogHeader& header, uint32_t root, MountValues* values) {
  // What the kernel itself knows of any file.
  constexpr uint64_t kMountRoot = 0x2000, kAutomount = 0x1000, kDax = 0x200000;  // STATX_ATTR_...
  constexpr uint64_t kOfAny = kMountRoot | kAutomount | kDax;
  bool known = false, lazy_times = false;
  *values = {};
  for (uint32_t i = 0; i < header.prefix_count; ++i) {
    const Prefix& prefix = header.prefixes[i];
    if (prefix.root != root || !same_directory(prefix, &prefix_checked[i])) continue;
    struct statx st;
    if (syscall(SYS_statx, AT_FDCWD, prefix.path, 0, STATX_BASIC_STATS, &st) != 0) return false;
#ifdef STATX_MNT_ID
    const MountValues now = {st.stx_mask, st.stx_attributes_mask, st.stx_mnt_id, false};
#else
    const MountValues now = {st.stx_mask, ~uint64_t{0}, 0,
                             false};  // built where the kernel's fields are not known
#endif
    struct statx other;  // file systems that keep times lazily leave them out unless they are asked for
    if (syscall(SYS_statx, AT_FDCWD, prefix.path, 0, STATX_TYPE, &other) != 0 ||
        other.stx_mask != st.stx_mask)
      lazy_times = true;
    const bool same = now.mask == values->mask && now.attributes_mask == values->attributes_mask &&
                      now.mount == values->mount;
    if ((known && !same) || (now.mask & ~(STATX_BASIC_STATS | kMountId)) != 0 ||
        (now.attributes_mask & ~kOfAny) != 0)
      return false;
    *values = now;
    values->lazy_times = lazy_times;
    known = true;
  }
  return known;
}

// The prefix that `path` (absolute) is below, and the rest of the path; -1 if there is none.
int find_prefix(const CatalogHeader& header, const char* path, const char** rest) {
  for (uint32_t i = 0; i < header.prefix_count; ++i)
    if ((*rest = rest_below(path, header.prefixes[i]))) return static_cast<int>(i);
  return -1;
}

Where locate_absolute(const CatalogHeader& header, const char* path, char* buffer, RelPath* result) {
  const char* rest;
  const int i = find_prefix(header, path, &rest);
  if (i < 0) {
    for (uint32_t k = 0; k < header.prefix_count; ++k)
      if (leads_to(path, header.prefixes[k]))
        return same_directory(header.prefixes[k], &prefix_checked[k]) ? Where::kAbove : Where::kOutside;
    return Where::kOutside;
  }
  const Prefix& prefix = header.prefixes[i];
  if (!same_directory(prefix, &prefix_checked[i])) return Where::kOutside;
  size_t len = prefix.below_len;
  memcpy(buffer, prefix.below, len);
  if (*rest == '\0') {
    *result = rel_path(prefix.root, buffer, len);
    return Where::kRoot;
  }
  const Text text = append_clean(rest, buffer, &len);
  if (text == Text::kUnclear) return Where::kOutside;
  *result = rel_path(prefix.root, buffer, len);
  return text == Text::kClean ? Where::kBelow : Where::kBelowSlash;
}

// The absolute path of the directory `dirfd`, as this mount namespace names it; 0 if it has none or cannot
// hold dataset files.
size_t directory_path(const CatalogHeader& header, int dirfd, char* out, size_t room) {
  if (dirfd == AT_FDCWD) {
    const long n = syscall(SYS_getcwd, out, room);  // counts the NUL; "(unreachable)..." outside the root
    return n > 1 && out[0] == '/' ? static_cast<size_t>(n) - 1 : 0;
  }
  struct statx st;
  if (syscall(SYS_statx, dirfd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) != 0) return 0;
  const uint64_t dev = gnu_dev_makedev(st.stx_dev_major, st.stx_dev_minor);
  if (!on_root_device(header, dev)) return 0;
  return path_of_descriptor(dirfd, out, room);
}

// Too long for the kernel (ENAMETOOLONG), however short it would be without its doubled slashes.
bool too_long(const char* path) { return strnlen(path, kPathBytes) == kPathBytes; }

// A relative path: the joined one has up to twice the bytes, and room on the stack for this call only.
__attribute__((noinline)) Where locate_relative(const CatalogHeader& header, int dirfd, const char* path,
                                                char* buffer, RelPath* result) {
  const size_t more = strnlen(path, kPathBytes);
  if (more == 0 || more == kPathBytes) return Where::kOutside;
  const int saved = errno;
  char full[2 * kPathBytes];
  size_t len = directory_path(header, dirfd, full, kPathBytes);
  errno = saved;
  if (len == 0) return Where::kOutside;
  if (len > 1) full[len++] = '/';
  memcpy(full + len, path, more + 1);
  return locate_absolute(header, full, buffer, result);
}

}  // namespace

bool may_be_below(const Client& client, const char* path) {
  const char* rest;
  return path[0] != '/' || find_prefix(client.catalog.header(), path, &rest) >= 0;
}

Where locate(const Client& client, int dirfd, const char* path, char* buffer, RelPath* result) {
  const CatalogHeader& header = client.catalog.header();
  if (path[0] != '/') return locate_relative(header, dirfd, path, buffer, result);
  return too_long(path) ? Where::kOutside : locate_absolute(header, path, buffer, result);
}

bool resolve(const Client& client, int dirfd, const char* path, char* buffer, RelPath* result) {
  return locate(client, dirfd, path, buffer, result) == Where::kBelow;
}

bool resolve_directory(const Client& client, int dirfd, const char* path, char* buffer, RelPath* result) {
  const Where where = locate(client, dirfd, path, buffer, result);
  return where != Where::kOutside && where != Where::kAbove;
}

const char* root_path(const Client& client, uint32_t root) {
  const CatalogHeader& header = client.catalog.header();
  for (uint32_t i = 0; i < header.prefix_count; ++i) {
    const Prefix& prefix = header.prefixes[i];
    if (prefix.root == root && prefix.below_len == 0 && same_directory(prefix, &prefix_checked[i]))
      return prefix.path;
  }
  return nullptr;
}

bool same_user(const Client& client) {
  const CatalogHeader& header = client.catalog.header();
  unsigned char seen = user_checked.load(std::memory_order_relaxed);
  if (__builtin_expect(seen == kUnknown, 0)) {
    const int saved = errno;
    seen = !in_namespace(header) ? kOther : stays_user(header.user) ? kSameForGood : kSame;
    errno = saved;
    user_checked.store(seen, std::memory_order_relaxed);
  }
  if (__builtin_expect(seen == kSameForGood, 1)) return true;
  return seen == kSame && static_cast<uint32_t>(syscall(SYS_geteuid)) == header.user;
}

bool mount_values(const Client& client, uint32_t root, MountValues* values) {
  Mount& kept = mounts[root];
  unsigned char seen = kept.checked.load(std::memory_order_acquire);
  if (__builtin_expect(seen == kUnknown, 0)) {
    const int saved = errno;
    seen = learn_mount(client.catalog.header(), root, values) ? kSame : kOther;
    errno = saved;
    kept.mask.store(values->mask, std::memory_order_relaxed);
    kept.attributes_mask.store(values->attributes_mask, std::memory_order_relaxed);
    kept.mount.store(values->mount, std::memory_order_relaxed);
    kept.lazy_times.store(values->lazy_times, std::memory_order_relaxed);
    kept.checked.store(seen, std::memory_order_release);
  }
  values->mask = kept.mask.load(std::memory_order_relaxed);
  values->attributes_mask = kept.attributes_mask.load(std::memory_order_relaxed);
  values->mount = kept.mount.load(std::memory_order_relaxed);
  values->lazy_times = kept.lazy_times.load(std::memory_order_relaxed);
  return seen == kSame;
}

void forget_directories() {
  user_checked.store(kUnknown, std::memory_order_relaxed);
  for (Mount& mount : mounts) mount.checked.store(kUnknown, std::memory_order_relaxed);
  for (std::atomic<unsigned char>& checked : prefix_checked)
    checked.store(kUnknown, std::memory_order_relaxed);
}

size_t path_of_descriptor(int fd, char* out, size_t room) {
  char link[kFdLinkBytes];
  fd_link(fd, link);
  const long n = syscall(SYS_readlinkat, AT_FDCWD, link, out, room);
  constexpr char kDeleted[] = " (deleted)";
  constexpr long kDeletedLen = sizeof kDeleted - 1;
  if (n <= 0 || static_cast<size_t>(n) >= room || out[0] != '/') return 0;
  if (n >= kDeletedLen && memcmp(out + n - kDeletedLen, kDeleted, kDeletedLen) == 0) return 0;
  out[n] = '\0';
  return static_cast<size_t>(n);
}

}  // namespace monarch::preload
