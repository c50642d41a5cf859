// SPDX-License-Identifier: Apache-2.0
#include "preload/resolve/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/resolve/paths.h"
#include "preload/resolve/roots.h"
#include "preload/resolve/words.h"

namespace monarch::preload {
namespace {

constexpr int64_t kLookNs = 1000000000;  // how soon a mount that another process makes is noticed

enum : unsigned char { kUnknown, kOfAgent, kOther };
std::atomic<unsigned char> space{kUnknown};
std::atomic<int64_t> look_at{0};  // monotonic

// The hashes of the paths below roots on which something is mounted. They only become more, so that nobody
// waits for who adds to them.
constexpr uint32_t kMostMounts = 64;
std::atomic<uint32_t> mounts[kMostMounts];
std::atomic<uint32_t> mount_count{0};  // above kMostMounts: there may be one on any path

void hide_all() { mount_count.store(kMostMounts + 1, std::memory_order_release); }

bool is_mount(uint32_t hash) {
  const uint32_t count = mount_count.load(std::memory_order_acquire);
  if (count > kMostMounts) return true;
  for (uint32_t i = 0; i < count; ++i)
    if (mounts[i].load(std::memory_order_relaxed) == hash) return true;
  return false;
}

void add_mount(uint32_t hash) {
  if (is_mount(hash)) return;
  const uint32_t i = mount_count.fetch_add(1, std::memory_order_acq_rel);
  if (i < kMostMounts)
    mounts[i].store(hash, std::memory_order_relaxed);
  else
    hide_all();
}

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

// The prefix's path as this namespace names it, in `room`; its length, 0 if it cannot be had.
size_t true_path(const Prefix& prefix, Room* room) {
  const long fd = syscall(SYS_openat, AT_FDCWD, prefix.path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) return 0;
  const size_t len = path_of_descriptor(static_cast<int>(fd), room);
  syscall(SYS_close, fd);
  return len;
}

void add_mount(const Prefix& prefix, const char* rest) {
  Room room;
  const size_t below = prefix.below_len, bytes = strlen(rest);
  char* text = room.take(below + 1 + bytes + 1);
  if (!text) return hide_all();
  memcpy(text, prefix.below, below);
  text[below] = '/';
  memcpy(text + below + 1, rest, bytes + 1);
  const size_t slash = below == 0 ? 1 : 0;
  add_mount(path_hash(prefix.root, text + slash, below + 1 + bytes - slash));
}

// Adds what is mounted below the prefix. False: that cannot be told.
bool add_mounts(const Prefix& prefix) {
  constexpr int kPoint = 4;  // of the words of a line
  Room path;
  const size_t all = true_path(prefix, &path);
  const size_t len = all == 1 ? 0 : all;  // "/"
  return all > 0 && each_word("/proc/self/mountinfo", [&](int number, char* point) {
           if (number != kPoint) return;
           unescape(point);
           if (strncmp(point, path.text(), len) == 0 && point[len] == '/' && point[len + 1])
             add_mount(prefix, point + len + 1);
         });
}

bool look_at_mounts(const JobFacts& facts) {
  forget_directories();
  for (uint32_t i = 0; i < facts.prefix_count; ++i)
    if (is_same_directory(facts, i) && !add_mounts(facts.prefixes[i])) return false;
  return true;
}

bool is_below_mount(const RelPath& path) {
  if (mount_count.load(std::memory_order_acquire) == 0) return false;
  return is_mount(path.hash) || any_above(path, [](const RelPath& above) { return is_mount(above.hash); });
}

__attribute__((noinline, cold)) bool look(const JobFacts& facts, const RelPath& path) {
  const int saved = errno;
  unsigned char seen = space.load(std::memory_order_acquire);
  const uint64_t own = seen == kUnknown ? namespace_inode("/proc/self/ns/mnt") : 0;
  const int64_t now = monotonic_ns();
  if (own != 0 && own == facts.mount_namespace) {
    space.store(seen = kOfAgent, std::memory_order_release);
  } else if (seen == kUnknown || now >= look_at.load(std::memory_order_relaxed)) {
    const bool told = look_at_mounts(facts);
    look_at.store(now + kLookNs, std::memory_order_relaxed);
    space.store(seen = told ? kOther : kUnknown, std::memory_order_release);
  }
  errno = saved;
  return seen == kUnknown || (seen == kOther && is_below_mount(path));
}

}  // namespace

bool may_be_hidden(const Client& client, const RelPath& path) {
  return __builtin_expect(space.load(std::memory_order_acquire) != kOfAgent, 0) &&
         look(client.catalog.facts(), path);
}

void forget_mounts() { space.store(kUnknown, std::memory_order_release); }

}  // namespace monarch::preload
