// SPDX-License-Identifier: Apache-2.0
// From what a program passes to open(2) to a path below a dataset root.
#include <string.h>
#include <sys/sysmacros.h>

#include "preload/preload.h"

namespace monarch::preload {
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

// If `path` (absolute) leads below `prefix`, its rest, at the first byte of a component; else nullptr.
const char* rest_below(const char* path, const Prefix& prefix) {
  const char* p = path;
  for (const char* q = prefix.path; *q; ++q) {
    if (*p != *q) return nullptr;
    p = *p == '/' ? next_component(p) : p + 1;
  }
  return *p == '/' ? next_component(p) : nullptr;
}

// Appends the components of `rest` to buffer[at], with single slashes. Returns the new length, 0 if the
// path has a "..", ends in a slash or "." or is too long.
size_t append_clean(const char* rest, char* buffer, size_t at) {
  if (*rest == '\0') return 0;
  for (;;) {
    const char* end = rest;
    while (*end && *end != '/') ++end;
    const auto len = static_cast<size_t>(end - rest);
    if (len == 2 && rest[0] == '.' && rest[1] == '.') return 0;
    if (at + len + 1 >= kRelPathBytes) return 0;
    if (at > 0) buffer[at++] = '/';
    memcpy(buffer + at, rest, len);
    at += len;
    if (*end == '\0') return at;
    rest = next_component(end);
    if (*rest == '\0') return 0;
  }
}

enum : unsigned char { kUnknown, kSame, kOther };
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

bool resolve_absolute(const CatalogHeader& header, const char* path, char* buffer, RelPath* result) {
  for (uint32_t i = 0; i < header.prefix_count; ++i) {
    const Prefix& prefix = header.prefixes[i];
    const char* rest = rest_below(path, prefix);
    if (!rest) continue;
    memcpy(buffer, prefix.below, prefix.below_len);
    const size_t len = append_clean(rest, buffer, prefix.below_len);
    if (len == 0 || !same_directory(prefix, &prefix_checked[i])) return false;
    *result = rel_path(prefix.root, buffer, len);
    return true;
  }
  return false;
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
  bool on_root_device = false;
  for (uint32_t i = 0; i < header.root_count; ++i) on_root_device |= header.roots[i].dev == dev;
  if (!on_root_device) return 0;
  char link[32] = "/proc/self/fd/";
  size_t at = strlen(link), digits = 1;
  for (int n = dirfd; n >= 10; n /= 10) ++digits;
  for (size_t i = 0; i < digits; ++i, dirfd /= 10)
    link[at + digits - 1 - i] = static_cast<char>('0' + dirfd % 10);
  link[at + digits] = '\0';
  const long n = syscall(SYS_readlinkat, AT_FDCWD, link, out, room);
  constexpr char kDeleted[] = " (deleted)";
  constexpr long kDeletedLen = sizeof kDeleted - 1;
  if (n <= 0 || static_cast<size_t>(n) >= room || out[0] != '/') return 0;
  if (n >= kDeletedLen && memcmp(out + n - kDeletedLen, kDeleted, kDeletedLen) == 0) return 0;
  out[n] = '\0';
  return static_cast<size_t>(n);
}

}  // namespace

bool resolve(const Client& client, int dirfd, const char* path, char* buffer, RelPath* result) {
  const CatalogHeader& header = client.catalog.header();
  if (path[0] == '/') return resolve_absolute(header, path, buffer, result);
  if (path[0] == '\0') return false;
  const int saved = errno;
  char full[2 * kPathBytes];
  size_t len = directory_path(header, dirfd, full, kPathBytes);
  errno = saved;
  const size_t more = strlen(path);
  if (len == 0 || len + 1 + more >= sizeof full) return false;
  if (len > 1) full[len++] = '/';
  memcpy(full + len, path, more + 1);
  return resolve_absolute(header, full, buffer, result);
}

}  // namespace monarch::preload
