// SPDX-License-Identifier: Apache-2.0
#include "preload/resolve/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "preload/resolve/roots.h"

namespace monarch::preload {

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
        return is_same_directory(header, k) ? Where::kAbove : Where::kOutside;
    return Where::kOutside;
  }
  const Prefix& prefix = header.prefixes[i];
  if (!is_same_directory(header, static_cast<uint32_t>(i))) return Where::kOutside;
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

bool pfs_path(const Client& c, const RelPath& path, char* out) {
  const char* root = root_path(c, path.root);
  if (!root) return false;
  const size_t len = strlen(root);
  memcpy(out, root, len);
  out[len] = '/';
  memcpy(out + len + 1, path.path, path.len);
  out[len + 1 + path.len] = '\0';
  return true;
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
