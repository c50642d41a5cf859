// SPDX-License-Identifier: Apache-2.0
#include "preload/resolve/originals.h"

#include "preload/next/kernel.h"
#include "preload/resolve/paths.h"

namespace monarch::preload {
namespace {

// Whether what is there is a copy, by a call; errno stays as it is.
bool seen_as_copy(int dirfd, const char* path, int flags, Original* original) {
  const KeepErrno errno_stays;
  struct statx st;
  return ask_statx(dirfd, path, flags | AT_STATX_DONT_SYNC, kToKnowCopy | STATX_BTIME, &st) &&
         is_copy(st, original);
}

// Whether the path, which is not empty, ends as a link to a descriptor does: in a number, or in stdin, stdout
// or stderr. That is known sooner than what strstr(3) finds.
bool ends_as_link(const char* path) {
  const char* end = path + strlen(path);
  if (end[-1] >= '0' && end[-1] <= '9') return true;
  return end - path > 6 &&
         (begins(end - 5, "stdin") || begins(end - 6, "stdout") || begins(end - 6, "stderr"));
}

constexpr unsigned kToKnowOriginal = STATX_BASIC_STATS | STATX_BTIME;
int64_t birth(const struct statx& st) { return (st.stx_mask & STATX_BTIME) != 0 ? ns_of(st.stx_btime) : 0; }

// When the file that was copied was born at the latest: before its ctime, or a little later, since these
// times may be of two clocks, a server's and a client's; but not after the copy as well.
int64_t born_before(const Original& original) {
  constexpr int64_t kSkewNs = 2000000000;
  const int64_t changed = read_once(original.identity->ctime), copied = original.copied;
  if (copied == 0 || copied > changed + kSkewNs) return changed + kSkewNs;
  return copied > changed ? copied : changed;
}

bool was_freed(const Original& original) {
  const uint32_t change = change_of(original.entry->state.load(std::memory_order_acquire));
  return is_changed_since(*the_client.board, mark_of_freed(original.identity->pfs_ino), change);
}

// Whether it has all values that were copied, by which it is known where its number did not stay (FUSE).
bool is_as_copied(const struct statx& st, const Original& original) {
  return st.stx_size == original.entry->size.load(std::memory_order_relaxed) &&
         ns_of(st.stx_mtime) == original.entry->mtime.load(std::memory_order_relaxed) &&
         ns_of(st.stx_ctime) == read_once(original.identity->ctime) &&
         tells_changes(st.stx_ctime, client()->catalog.facts().boot_time);
}

// Whether this is the file that was copied, changed or not. Of one that is gone another may have the inode's
// number, and a copy that is open does not prevent that; but it was born later.
bool is_original(const struct statx& st, const Original& original) {
  if (device_of(st) != original.attributes->dev) return false;
  if (st.stx_ino != original.identity->pfs_ino) return is_as_copied(st, original);
  const int64_t born = birth(st);
  return born != 0 ? born <= born_before(original) : !was_freed(original);
}

int open_proved(int dirfd, const char* path, int flags, const Original& original) {
  const int fd = open_own(dirfd, path, flags);
  struct statx st;
  if (fd >= 0 && look_at(fd, kToKnowOriginal, &st) && is_original(st, original)) return fd;
  if (fd >= 0 || errno == ENOENT || errno == ENOTDIR) errno = ESTALE;
  return not_opened(fd);
}

// What `open` opens of the names in a directory that lead to this inode; -1: none.
template <typename Open>
int open_numbered(int dir, uint64_t ino, Open open) {
  constexpr int kMostReads = 256;  // some 8,000 names
  int fd = -1;
  each_entry(dir, kMostReads, [&](const dirent64& e) {
    if (fd < 0 && e.d_ino == ino) fd = open(e.d_name);
  });
  return fd;
}

RelPath above(const RelPath& path) {
  uint32_t len = path.len;
  while (len > 0 && path.path[len - 1] != '/') --len;
  return rel_path(path.root, path.path, len > 0 ? len - 1 : 0);
}

// The directory that had this path when it was listed, by whatever name the one above has it now.
int open_listed(const Client& c, const RelPath& path) {
  Room room;
  const char* full = pfs_path(c, path, &room);
  const int fd = full ? open_own(AT_FDCWD, full, O_RDONLY | O_DIRECTORY) : -1;
  const Listing* listing = path.len > 0 ? c.catalog.listing(path) : nullptr;
  struct statx st;
  if (!listing || (fd >= 0 && look_at(fd, STATX_INO, &st) && st.stx_ino == read_once(listing->ino)))
    return fd;
  (void)not_opened(fd);
  const Own dir(open_listed(c, above(path)));
  return open_numbered(dir.fd, read_once(listing->ino), [&](const char* name) {
    return open_own(dir.fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  });
}

// By another name, or in a directory that has another.
RARE int open_renamed(const Original& original, int flags) {
  Room room;
  RelPath path;
  if (!path_of(client()->catalog, *original.entry, &room, &path)) return -1;
  const Own dir(open_listed(*client(), above(path)));
  return open_numbered(dir.fd, original.identity->pfs_ino, [&](const char* name) {
    return open_proved(dir.fd, name, flags | O_NOFOLLOW, original);
  });
}

}  // namespace

bool is_copy(const struct statx& st, Original* original) {
  const bool found = (st.stx_mask & kToKnowCopy) == kToKnowCopy && S_ISREG(st.stx_mode) &&
                     original_of(device_of(st), st.stx_ino, st.stx_size, ns_of(st.stx_mtime), original);
  if (found) original->copied = birth(st);
  return found;
}

bool original_of(uint64_t dev, uint64_t ino, uint64_t size, int64_t mtime, Original* original) {
  const Client* c = client();
  *original = {};
  for (uint32_t tier = 0; c && tier < c->catalog.facts().tier_count; ++tier) {
    const bool may_be = c->catalog.facts().tiers[tier].dev == dev;
    const Identity* identity = may_be ? c->catalog.find_copy(tier, ino) : nullptr;
    const Entry* entry = identity ? c->catalog.entry(identity->entry) : nullptr;
    const Attributes* attributes = entry ? c->catalog.attributes(identity->attributes) : nullptr;
    if (!attributes || entry->size.load(std::memory_order_relaxed) != size ||
        entry->mtime.load(std::memory_order_relaxed) != mtime)
      continue;
    *original = {entry, identity, attributes, 0};
    return true;
  }
  return false;
}

// By the kernel's name of the copy, of which only the end counts: the tier's own path may be a symbolic link,
// or another one here.
RARE void choose_name(int fd, Original* original) {
  if (read_once(original->attributes->nlink) < 2) return;
  const KeepErrno errno_stays;
  const CatalogReader& catalog = client()->catalog;
  Room room;
  const size_t len = path_of_descriptor(fd, &room);
  const char* const text = room.text();
  if (len < kCopyNameBytes || text[len - kCopyNameBytes] != '/') return;
  const Ref ref = entry_of_copy(text + len - (kCopyNameBytes - 1));
  const Entry* entry = ref ? catalog.entry(ref) : nullptr;
  const Identity* identity = entry ? catalog.identity_of(*entry) : nullptr;
  const Attributes* attributes = identity ? catalog.attributes(identity->attributes) : nullptr;
  if (attributes && identity->tier.load(std::memory_order_acquire) == original->identity->tier &&
      read_once(identity->tier_ino) == read_once(original->identity->tier_ino))
    *original = {entry, identity, attributes, original->copied};
}

bool original_of_descriptor(int fd, Original* original) {
  if (!client() || !seen_as_copy(fd, "", AT_EMPTY_PATH, original)) return false;
  choose_name(fd, original);
  return true;
}

bool is_empty_path(const char* path, int flags) {
  return (flags & AT_EMPTY_PATH) != 0 && (unreadable(path) || *path == '\0');
}

bool is_of_descriptor(const char* path, int flags) {
  return is_empty_path(path, flags) ||
         (!unreadable(path) && (flags & AT_SYMLINK_NOFOLLOW) == 0 && may_link_to_descriptor(path));
}

bool original_meant(int dirfd, const char* path, int flags, Original* original) {
  if (is_empty_path(path, flags)) return original_of_descriptor(dirfd, original);
  return is_of_descriptor(path, flags) && client() && seen_as_copy(dirfd, path, 0, original);
}

__attribute__((hot)) bool has_link_to_descriptor(const char* path) {
  if (!ends_as_link(path)) return false;
  if (begins(path, "/dev/shm/")) return strstr(path, "/../");  // where datasets and tiers may be
  return strstr(path, "/fd/") || strstr(path, "/dev/std");
}

bool is_file_of(const CatalogReader& catalog, const Entry& e, const struct statx& st) {
  const Identity* id = catalog.identity_of(e);
  const Attributes* attributes = id ? catalog.attributes(id->attributes) : nullptr;
  return attributes && st.stx_ino == id->pfs_ino && device_of(st) == attributes->dev &&
         st.stx_size == e.size.load(std::memory_order_relaxed) &&
         ns_of(st.stx_mtime) == e.mtime.load(std::memory_order_relaxed);
}

// Who puts mtime back cannot put ctime back.
bool is_unchanged_file_of(const Client& client, const Entry& e, const struct statx& st) {
  const Identity* id = client.catalog.identity_of(e);
  return id && ns_of(st.stx_ctime) == id->ctime &&
         tells_changes(st.stx_ctime, client.catalog.facts().boot_time) && is_file_of(client.catalog, e, st);
}

const char* path_of_original(const Original& original, Room* room) {
  const Client* c = client();
  Room relative;
  RelPath path;
  return c && path_of(c->catalog, *original.entry, &relative, &path) ? pfs_path(*c, path, room) : nullptr;
}

int open_original(const Original& original, int flags) {
  Room room;
  const char* path = path_of_original(original, &room);
  int fd = path ? open_proved(AT_FDCWD, path, flags, original) : -1;
  if (fd >= 0 || (path && errno != ESTALE)) return fd;
  if (path && !was_freed(original)) fd = open_renamed(original, flags);
  if (fd < 0) errno = ESTALE;
  return fd;
}

RARE const char* path_without_descriptor(const Original& original, Room* room) {
  if (errno != EMFILE && errno != ENFILE) return nullptr;
  const KeepErrno errno_stays;
  const char* path = path_of_original(original, room);
  struct statx st;
  const bool proved = path && ask_statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, kToKnowOriginal, &st) &&
                      is_original(st, original);
  return proved ? path : nullptr;
}

}  // namespace monarch::preload
