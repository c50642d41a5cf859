// SPDX-License-Identifier: Apache-2.0
// From what a program passes to open(2) to a path below a dataset root.
#include <string.h>
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

// If `path` (absolute) leads below `prefix`, its rest, at the first byte of a component; else nullptr.
const char* rest_below(const char* path, const Prefix& prefix) {
  // Most paths say by their first byte that differs that they lead elsewhere. What differs by a slash or a
  // "." may lead below nevertheless.
  const char *p = path, *q = prefix.path;
  while (*p == *q && *q) {
    ++p;
    ++q;
  }
  if (*q == '\0') return *p == '/' ? next_component(p) : nullptr;
  if (*p != '/' && *p != '.') return nullptr;
  p = path;
  for (q = prefix.path; *q; ++q) {
    if (*p != *q) return nullptr;
    p = *p == '/' ? next_component(p) : p + 1;
  }
  return *p == '/' ? next_component(p) : nullptr;
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
  if (*rest == '\0') return Where::kAbove;
  size_t len = prefix.below_len;
  memcpy(buffer, prefix.below, len);
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

const char* root_path(const Client& client, uint32_t root) {
  const CatalogHeader& header = client.catalog.header();
  for (uint32_t i = 0; i < header.prefix_count; ++i) {
    const Prefix& prefix = header.prefixes[i];
    if (prefix.root == root && prefix.below_len == 0 && same_directory(prefix, &prefix_checked[i]))
      return prefix.path;
  }
  return nullptr;
}

void forget_directories() {
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
