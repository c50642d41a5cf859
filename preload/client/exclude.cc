// SPDX-License-Identifier: Apache-2.0
#include "preload/client/exclude.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "preload/client/room.h"

namespace monarch::preload {
namespace {

const char* last_component(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

// Matches one character against the "[...]" at `p`; *end is behind it. fnmatch(3) allocates.
bool in_set(const char* p, const char* stop, char c, const char** end) {
  const char* q = p + 1;
  const bool negated = q < stop && (*q == '!' || *q == '^');
  q += negated;
  bool found = false;
  for (const char* first = q; q < stop && (*q != ']' || q == first); ++q) {
    if (q + 2 < stop && q[1] == '-' && q[2] != ']') {
      found |= q[0] <= c && c <= q[2];
      q += 2;
    } else {
      found |= *q == c;
    }
  }
  if (q >= stop) {  // no closing bracket: an ordinary one
    *end = p + 1;
    return c == '[';
  }
  *end = q + 1;
  return found != negated;
}

// Whether one character of the pattern at `p`, which is not '*', matches `c`; *end is behind it.
bool matches_one(const char* p, const char* stop, char c, const char** end) {
  if (*p == '[') return in_set(p, stop, c, end);
  const bool quoted = *p == '\\' && p + 1 < stop;
  *end = p + 1 + quoted;
  return (*p == '?' && !quoted) || p[quoted] == c;
}

// The pattern is [p, stop). '*' matches slashes too.
bool matches(const char* p, const char* stop, const char* s) {
  const char *star = nullptr, *retry = nullptr;
  for (;;) {
    const char* end;
    if (p < stop && *p == '*') {
      star = ++p;
      retry = s;
    } else if (*s && p < stop && matches_one(p, stop, *s, &end)) {
      p = end;
      ++s;
    } else if (!*s && p == stop) {
      return true;
    } else if (!star || !*retry) {
      return false;
    } else {
      p = star;
      s = ++retry;
    }
  }
}

// Calls `test` with each glob until it returns true.
template <typename Test>
bool any_glob(const char* list, Test test) {
  while (*list) {
    const size_t n = strcspn(list, ":");
    if (n > 0 && test(list, list + n)) return true;
    list += n + (list[n] == ':');
  }
  return false;
}

__attribute__((noinline)) bool matches_absolute(const Client& c, const RelPath& path, const char* p,
                                                const char* stop) {
  Room room;
  const JobFacts& facts = c.catalog.facts();
  for (uint32_t i = 0; i < facts.prefix_count; ++i) {
    const Prefix& prefix = facts.prefixes[i];
    if (prefix.root != path.root || prefix.below_len != 0) continue;
    char* full = room.take(prefix.len + 1 + path.len + 1);
    if (!full) return true;
    memcpy(full, prefix.path, prefix.len);
    full[prefix.len] = '/';
    memcpy(full + prefix.len + 1, path.path, path.len);
    full[prefix.len + 1 + path.len] = '\0';
    if (matches(p, stop, full)) return true;
  }
  return false;
}

}  // namespace

bool excludes_program(const char* list) {
  Room room;
  char* exe = room.take(kPathBytes);
  const int saved = errno;
  const long n = !exe ? -1 : syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", exe, kPathBytes - 1);
  errno = saved;
  if (n <= 0) return false;
  exe[n] = '\0';
  return any_glob(list, [&](const char* p, const char* stop) {
    return matches(p, stop, memchr(p, '/', static_cast<size_t>(stop - p)) ? exe : last_component(exe));
  });
}

bool excludes_file(const Client& c, const RelPath& path) {
  Room room;  // the text may be a part of a longer one
  char* rel = room.take(path.len + 1);
  if (!rel) return true;
  memcpy(rel, path.path, path.len);
  rel[path.len] = '\0';
  return any_glob(c.exclude, [&](const char* p, const char* stop) {
    if (*p == '/') return matches_absolute(c, path, p, stop);
    return matches(p, stop, memchr(p, '/', static_cast<size_t>(stop - p)) ? rel : last_component(rel));
  });
}

}  // namespace monarch::preload
