// SPDX-License-Identifier: Apache-2.0
#include "preload/next/kernel.h"
#include "preload/resolve/paths.h"
#include "preload/resolve/roots.h"
#include "preload/resolve/words.h"

namespace monarch::preload {
namespace {

constexpr int64_t kLookNs = 1000000000;  // how soon a mount that another process makes is noticed

enum : unsigned char { kUnknown, kOfAgent, kOther };
std::atomic<unsigned char> space{kUnknown};
std::atomic<int64_t> next_look{0};  // monotonic

// Roots, as bits, below which something is mounted. They only become more, so that nobody waits for who adds
// to them.
std::atomic<uint32_t> hidden{0};
static_assert(kMaxRoots <= 32);

// mountinfo writes white space and backslashes as three octal digits.
void unescape(char* text) {
  char* out = text;
  for (const char* p = text; *p; ++p, ++out) {
    *out = *p;
    if (p[0] != '\\' || !p[1] || !p[2] || !p[3]) continue;
    *out = static_cast<char>((p[1] - '0') << 6 | (p[2] - '0') << 3 | (p[3] - '0'));
    p += 3;
  }
  *out = '\0';
}

// Hides the root if something is mounted below the prefix. False: that cannot be told.
bool look_below(const Prefix& prefix) {
  constexpr int kPoint = 4;  // of the words of a line
  Room path;
  const size_t all = true_path(AT_FDCWD, prefix.path, 0, &path);
  const size_t len = all == 1 ? 0 : all;  // "/"
  return all > 0 && each_word("/proc/self/mountinfo", [&](int number, char* point) {
           if (number != kPoint) return;
           unescape(point);
           if (strncmp(point, path.text(), len) == 0 && point[len] == '/' && point[len + 1])
             hidden.fetch_or(1u << prefix.root, std::memory_order_release);
         });
}

bool look_at_mounts(const JobFacts& facts) {
  forget_directories();
  for (uint32_t i = 0; i < facts.prefix_count; ++i)
    if (is_same_directory(facts, i) && !look_below(facts.prefixes[i])) return false;
  return true;
}

RARE bool look(const JobFacts& facts, const RelPath& path) {
  const KeepErrno errno_stays;
  unsigned char seen = space.load(std::memory_order_acquire);
  const uint64_t own = seen == kUnknown ? namespace_inode("/proc/self/ns/mnt") : 0;
  const int64_t now = monotonic_ns();
  if (own != 0 && own == facts.mount_namespace) {
    space.store(seen = kOfAgent, std::memory_order_release);
  } else if (seen == kUnknown || now >= next_look.load(std::memory_order_relaxed)) {
    const bool told = look_at_mounts(facts);
    next_look.store(now + kLookNs, std::memory_order_relaxed);
    space.store(seen = told ? kOther : kUnknown, std::memory_order_release);
  }
  return seen == kUnknown ||
         (seen == kOther && (hidden.load(std::memory_order_acquire) >> path.root & 1) != 0);
}

}  // namespace

bool may_be_hidden(const Client& client, const RelPath& path) {
  return __builtin_expect(space.load(std::memory_order_acquire) != kOfAgent, 0) &&
         look(client.catalog.facts(), path);
}

void forget_mounts() { space.store(kUnknown, std::memory_order_release); }

}  // namespace monarch::preload
