// SPDX-License-Identifier: Apache-2.0
// The globs of MONARCH_IO_EXCLUDE and --monarch-exclude.
#pragma once

#include <string.h>

namespace monarch {

// Whether the one character that the pattern at `p`, which is not '*', stands for is `c`; *end is behind it.
// fnmatch(3) allocates.
inline bool glob_matches_one(const char* p, const char* stop, char c, const char** end) {
  const bool quoted = *p == '\\' && p + 1 < stop;
  const bool negated = p + 1 < stop && (p[1] == '!' || p[1] == '^');
  const char* q = p + 1 + negated;  // a ']' there is one of the set
  const auto* last = *p == '[' && q + 1 < stop
                         ? static_cast<const char*>(memchr(q + 1, ']', static_cast<size_t>(stop - q - 1)))
                         : nullptr;
  if (!last) {  // a '[' that is not closed is an ordinary one
    *end = p + 1 + quoted;
    return (*p == '?' && !quoted) || p[quoted] == c;
  }
  *end = last + 1;
  bool found = false;
  for (; q < last; ++q) {
    const bool range = q + 2 < last && q[1] == '-';
    found |= range ? q[0] <= c && c <= q[2] : q[0] == c;
    if (range) q += 2;
  }
  return found != negated;
}

// The pattern is [p, stop). '*' matches slashes too.
inline bool glob_matches(const char* p, const char* stop, const char* s) {
  const char *star = nullptr, *retry = nullptr, *end;
  for (;;) {
    if (p < stop && *p == '*') {
      star = ++p;
      retry = s;
    } else if (*s && p < stop && glob_matches_one(p, stop, *s, &end)) {
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

// Whether one of the globs matches a path, of which `below` is the part below its dataset.
inline bool any_glob_matches(const char* globs, const char* path, const char* below) {
  const char* slash = strrchr(below, '/');
  for (const char *p = globs, *stop; *p; p = stop + (*stop == ':')) {
    stop = p + strcspn(p, ":");
    const char* text = *p == '/'                                                 ? path
                       : memchr(p, '/', static_cast<size_t>(stop - p)) || !slash ? below
                                                                                 : slash + 1;
    if (p < stop && glob_matches(p, stop, text)) return true;
  }
  return false;
}

}  // namespace monarch
