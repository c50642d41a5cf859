// SPDX-License-Identifier: Apache-2.0
#include "preload/resolve/names.h"

#include "preload/next/kernel.h"
#include "preload/resolve/roots.h"
#include "runtime/layout/space.h"

namespace monarch::preload {
namespace {

// Directories, by the hash of their text, whose files were found elsewhere: kEnough times in a row, and they
// are not looked at any more, since most opens of a program are of no dataset. What is forgotten, or taken
// for another, is read from the PFS or looked at again.
constexpr uint32_t kElsewhere = 512, kEnough = 3;
std::atomic<uint32_t> elsewhere[kElsewhere];  // the hash, with the count in its lowest bits

struct Directory {
  std::atomic<uint32_t>* slot;
  uint32_t tag;
};

// Sooner than path_hash(), which is made for many more names.
inline uint32_t text_hash(const char* text, size_t len) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  uint64_t hash = len, word = 0;
  const char* const end = text + len;
  for (; end - text > static_cast<ptrdiff_t>(sizeof word); text += sizeof word) {
    memcpy(&word, text, sizeof word);
    hash = (hash ^ word) * kOdd;
  }
  if (len >= sizeof word)
    memcpy(&word, end - sizeof word, sizeof word);
  else
    while (text < end) word = word << 8 | static_cast<unsigned char>(*text++);
  hash = (hash ^ word) * kOdd;
  return static_cast<uint32_t>((hash ^ hash >> 29) * kOdd >> 32);
}

// Beside may_read_below().
__attribute__((hot)) Directory directory_of(const char* path) {
  const char* slash = strrchr(path, '/');
  const uint32_t hash = text_hash(path, slash ? static_cast<size_t>(slash - path) : 0);
  return {&elsewhere[hash >> 2 & (kElsewhere - 1)], (hash | 1u << 31) & ~kEnough};
}

bool led_elsewhere(const Directory& directory) {
  return directory.slot->load(std::memory_order_relaxed) == (directory.tag | kEnough);
}

void note(const Directory& directory, bool below) {
  const uint32_t seen = directory.slot->load(std::memory_order_relaxed);
  const uint32_t times = (seen & ~kEnough) == directory.tag ? seen & kEnough : 0;
  const uint32_t now = directory.tag | (below ? 0 : times < kEnough ? times + 1 : kEnough);
  if (now != seen) directory.slot->store(now, std::memory_order_relaxed);
}

// No dataset, and its files' descriptors cost something.
bool of_kernel(const char* path) {
  return begins(path, "/dev/") || begins(path, "/proc/") || begins(path, "/sys/");
}

// What the kernel says.
APART bool ask_kernel(const Client& c, int dirfd, const char* path, Room* room, RelPath* result) {
  const KeepErrno errno_stays;
  const Own file(open_own(dirfd, path, O_PATH));
  return resolve_open(c, file.fd, room, result);
}

}  // namespace

APART bool resolve_open(const Client& c, int fd, Room* room, RelPath* result) {
  Room longer;
  struct statx st;
  return fd >= 0 && look_at(fd, STATX_TYPE | kMountId, &st) && may_be_below_root(c.catalog.facts(), st) &&
         path_of_descriptor(fd, room) > 0 && resolve(c, AT_FDCWD, room->text(), &longer, result) &&
         keep_text(&longer, room, result);
}

__attribute__((hot)) bool may_read_below(const Client& client, const char* path) {
  return may_be_below(client, path) ||
         (!of_kernel(path) && client.program != Program::kRestricted && !led_elsewhere(directory_of(path)));
}

bool resolve_to_read(const Client& client, int dirfd, const char* path, Room* room, RelPath* result) {
  const Relation where = locate(client, dirfd, path, room, result);
  if (where != Relation::kOutside) return where == Relation::kBelow;
  const Directory directory = directory_of(path);
  if (led_elsewhere(directory)) return false;
  const bool below = ask_kernel(client, dirfd, path, room, result);
  note(directory, below);
  return below;
}

bool follow_links(const Client& client, const RelPath& path, Room* room, RelPath* result) {
  Room text;
  const char* full = pfs_path(client, path, &text);
  return full && ask_kernel(client, AT_FDCWD, full, room, result) && result->hash != path.hash;
}

}  // namespace monarch::preload
