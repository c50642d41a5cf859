// SPDX-License-Identifier: Apache-2.0
// Marks are set before the call, on the board, and never taken back in this job; whoever opens the file after
// the call returned sees them, whatever the agent is doing with the file meanwhile. For an open that does not
// empty the file, they are set before its caller has the descriptor.
//
//   the path      tells of a file under its own name; also of one that the catalog does not know yet
//   the inode     tells of a file changed under another name: a hard link, another mount of the PFS
//   a number      of an inode whose file lost its last name (preload/resolve/originals.h)
//   a directory   renamed, or with another mode: nothing below its path is served any more. One mark, however
//                 many files there are; hits look at the directories above them only once there is such a
//                 mark
//   closed        the root, or a directory above it, was renamed: nothing is served any more in this job
//
// A name that leads below a root by "..", a symbolic link or another mount is not seen in the text. So a file
// that may be below a root is asked for its path (/proc/self/fd), which the kernel gives without symbolic
// links.
#include "preload/decide/changes.h"

#include <dirent.h>

#include "preload/next/kernel.h"
#include "preload/resolve/originals.h"
#include "preload/resolve/paths.h"
#include "preload/resolve/roots.h"
#include "runtime/layout/space.h"

namespace monarch::preload {
namespace {

// What stands between a file and its data: how a call names what it changes.
struct Object {
  int dirfd;
  const char* path;  // "" with AT_EMPTY_PATH: dirfd itself
  int flags;
};

bool look(const Object& object, struct statx* st) {
  return ask_statx(object.dirfd, object.path, object.flags | AT_STATX_DONT_SYNC,
                   kToKnowCopy | STATX_BTIME | STATX_NLINK | kMountId, st);
}

uint32_t mark_of(const struct statx& st) { return mark_of_inode(st.stx_ino); }

// Whether the kernel knows the directory by this path, too.
bool is_true_path(const char* path) {
  Room room;
  return true_path(AT_FDCWD, path, 0, &room) > 0 && strcmp(room.text(), path) == 0;
}

// Whether all roots of the device are seen by the mount, at paths that are known: then what it shows at a
// path that is not below a root is outside. It may show a root of another mount at any path.
bool shows_roots(const CatalogFacts& facts, uint64_t dev, uint64_t mount) {
  static_assert(kMaxRoots <= 32);
  uint32_t seen = 0;
  for (uint32_t i = 0; mount != 0 && i < facts.prefix_count; ++i) {
    const Prefix& prefix = facts.prefixes[i];
    struct statx st;
    if (prefix.below_len == 0 && prefix.dev == dev && look({AT_FDCWD, prefix.path, 0}, &st) &&
        mount_id(st) == mount && st.stx_ino == prefix.ino && is_true_path(prefix.path))
      seen |= 1u << prefix.root;
  }
  for (uint32_t i = 0; i < facts.root_count; ++i)
    if (facts.roots[i].dev == dev && (seen >> i & 1) == 0) return false;
  return true;
}

// Whether the mark is new. Other nodes know it only by the kinds that there were when it was told.
bool set_mark(Client* c, uint32_t mark, Changed kind) {
  const bool known = is_invalid(*c->board, mark);
  const bool told = known && (c->board->header.changed.load(std::memory_order_acquire) & kind) != 0;
  set_invalid(c->board, mark, kind);
  if (!told) tell_change(c->board);
  return !known;
}

void mark_as(Client* c, uint32_t mark, Changed kind) {
  if (set_mark(c, mark, kind)) count(c->board, TaskCounter::invalidations);
}

void mark_path(Client* c, const RelPath& path) { mark_as(c, path.hash, kChangedFiles); }

void close_all(Client* c) {
  if (c->board->header.closed.exchange(kRootChanged, std::memory_order_acq_rel) == kRootChanged) return;
  count(c->board, TaskCounter::invalidations);
  tell_change(c->board);
}

bool below_changed_directory(const Client& c, const RelPath& path) {
  return any_above(path, [&](const RelPath& directory) { return is_invalid(*c.board, directory.hash); });
}

bool leads_to_root(Relation where) { return where == Relation::kRoot || where == Relation::kAbove; }

// What a change of a directory does to the files below it. One that is replaced or removed was empty.
bool concerns_directories(Change change) { return change == Change::kAccess || change == Change::kName; }

// The last name goes of a file. Other processes may not be told its time of birth.
bool frees_number(Change change, const struct statx& st) {
  return change == Change::kReplaced && S_ISREG(st.stx_mode) && st.stx_nlink <= 1;
}

// What is on a root's device: by its path without symbolic links, and by its inode, since a file whose path
// is marked may have another one below a root by a bind mount.
APART void mark_true_path(Client* c, Change change, const Object& object, const struct statx& st) {
  const bool file = !S_ISDIR(st.stx_mode), alone = !file || st.stx_nlink == 1;
  Room path, room;
  RelPath rel;
  const size_t len = true_path(object.dirfd, object.path, object.flags, &path);
  const Relation where = len > 0 ? locate(*c, AT_FDCWD, path.text(), &room, &rel) : Relation::kOutside;
  if (where == Relation::kBelow && file) (void)set_mark(c, mark_of(st), kChangedInodes);
  if (where == Relation::kBelow) mark_as(c, rel.hash, file ? kChangedFiles : kChangedDirectories);
  if (leads_to_root(where)) close_all(c);
  if (where != Relation::kOutside && alone) return;
  // Outside by the roots' mount: no file of a dataset, unless it has another name there.
  if (len > 0 && alone && shows_roots(c->catalog.facts(), device_of(st), mount_id(st))) return;
  if (file) mark_as(c, mark_of(st), kChangedInodes);
  if (!file && change == Change::kName) close_all(c);
}

void mark_inode(Client* c, Change change, const Object& object, const struct statx& st) {
  const bool file = S_ISREG(st.stx_mode) || S_ISLNK(st.stx_mode);
  if ((!file && !(S_ISDIR(st.stx_mode) && concerns_directories(change))) ||
      !may_be_below_root(c->catalog.facts(), st))
    return;
  if (frees_number(change, st)) (void)set_mark(c, mark_of_freed(st.stx_ino), kChangedInodes);
  mark_true_path(c, change, object, st);
}

void mark_open(Client* c, Change change, int fd) {
  const Object open = {fd, "", AT_EMPTY_PATH};
  struct statx st;
  if (look(open, &st)) mark_inode(c, change, open, st);
}

// A copy is never written: `fd`, on one, is opened anew on the PFS, and the file is the PFS's from now on.
APART bool write_to_original(Client* c, const Original& copied, int fd, int flags) {
  const int saved = errno;
  mark_as(c, copied.entry->hash, kChangedFiles);
  const Own own(
      on_original(copied, [&](const char* link) { return open_own(AT_FDCWD, link, flags & ~O_CREAT); }));
  if (own.fd < 0) return false;
  mark_open(c, Change::kContent, own.fd);  // also under its other names
  syscall(SYS_dup3, own.fd, fd, flags & O_CLOEXEC);
  errno = saved;
  return true;
}

// Who opens a database's journal, index or lock file for writing has the database live: others may change it
// at any time, and tell each other by maps, which no hook sees.
APART void mark_database(Client* c, const RelPath& file) {
  constexpr struct {
    const char *tail, *instead;
  } kBeside[] = {{"-wal", ""}, {"-shm", ""}, {"-journal", ""}, {"-lock", ""}, {"lock.mdb", "data.mdb"}};
  for (const auto& beside : kBeside) {
    const size_t tail = strlen(beside.tail);
    if (file.len < tail || memcmp(file.path + file.len - tail, beside.tail, tail) != 0) continue;
    Room room;
    const size_t kept = file.len - tail, bytes = kept + strlen(beside.instead);
    char* text = bytes > 0 ? room.take(bytes) : nullptr;
    if (!text) continue;
    memcpy(text, file.path, kept);
    memcpy(text + kept, beside.instead, bytes - kept);
    mark_path(c, rel_path(file.root, text, bytes));
  }
}

struct Located {
  Relation where;
  uint32_t hash;  // of the path, where it is kBelow, perhaps with a slash
};

// What the text of the path tells, without a call to the PFS.
APART Located mark_text(Client* c, int dirfd, const char* path) {
  Room room;
  RelPath rel;
  const Relation where = locate(*c, dirfd, path, &room, &rel);
  if (where != Relation::kBelow && where != Relation::kBelowSlash) return {where, 0};
  mark_path(c, rel);
  mark_database(c, rel);
  return {Relation::kBelow, rel.hash};
}

// The dataset's file whose copy a path leads to by a link to a descriptor (/proc/PID/fd/N, of any process).
APART Original copy_at(const Object& object, const struct statx& st) {
  Original copied;
  struct statx link;
  if ((object.flags & AT_SYMLINK_NOFOLLOW) != 0 || !is_copy(st, &copied) ||
      !look({object.dirfd, object.path, AT_SYMLINK_NOFOLLOW}, &link) || !S_ISLNK(link.stx_mode))
    return {};
  const Own own(open_own(object.dirfd, object.path, O_PATH));
  if (own.fd >= 0) choose_name(own.fd, &copied);
  return copied;
}

APART Original mark_named(Client* c, Change change, const Object& object, const Located& found) {
  struct statx st;
  if (!look(object, &st)) return {};
  if (const Original copied = copy_at(object, st); copied.entry) return copied;
  const bool named = change == Change::kName || (change == Change::kReplaced && S_ISLNK(st.stx_mode));
  // The path of a root may be a symbolic link on another device.
  if (leads_to_root(found.where) && named) close_all(c);
  if (found.where == Relation::kBelow && S_ISDIR(st.stx_mode) && concerns_directories(change))
    mark_as(c, found.hash, kChangedDirectories);
  mark_inode(c, change, object, st);
  return {};
}

}  // namespace

Original will_change(Change change, int dirfd, const char* path, int flags) {
  Client* c = client(Retry::kAtOnce);
  if (!c || unreadable(path) || !*path) return {};
  const KeepErrno errno_stays;
  const Located found = mark_text(c, dirfd, path);
  return mark_named(c, change, {dirfd, path, flags & AT_SYMLINK_NOFOLLOW}, found);
}

RARE Original copy_led_to(int dirfd, const char* path) {
  const Client* c = client(Retry::kAtOnce);
  const Object object = {dirfd, path, 0};
  struct statx st;
  const KeepErrno errno_stays;
  return c && !unreadable(path) && look(object, &st) ? copy_at(object, st) : Original();
}

void will_open_to_write(int dirfd, const char* path, int flags) {
  constexpr int kNew = O_CREAT | O_EXCL;
  if ((flags & O_TRUNC) == 0 || (flags & kNew) == kNew || unreadable(path)) return;
  if (Client* c = client(Retry::kAtOnce)) (void)mark_text(c, dirfd, path);
}

void changes_descriptor(Change change, int fd) {
  Client* c = client(Retry::kAtOnce);
  if (!c) return;
  const KeepErrno errno_stays;
  mark_open(c, change, fd);
}

bool opened_to_write(int fd, int dirfd, const char* path, int flags) {
  Client* c = client(Retry::kAtOnce);
  const int saved = errno;
  const Object opened = {fd, "", AT_EMPTY_PATH};
  Original copied;
  struct statx st;
  if (c && path) (void)mark_text(c, dirfd, path);
  if (c && look(opened, &st)) {
    is_copy(st, &copied) ? choose_name(fd, &copied) : mark_inode(c, Change::kContent, opened, st);
  }
  errno = saved;
  return !copied.entry || write_to_original(c, copied, fd, flags);
}

APART void mark_what_is_open(Client* c) {
  const KeepErrno errno_stays;
  const auto mark = [c](int fd) {
    const long flags = syscall(SYS_fcntl, fd, F_GETFL);
    if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_RDONLY) return;
    mark_open(c, Change::kContent, fd);
  };
  each_descriptor(mark);
}

bool is_changed_in_place(const Client& c, const Entry& entry) {
  const uint32_t kinds = c.board->header.changed.load(std::memory_order_acquire);
  if (__builtin_expect(kinds == 0, 1)) return false;
  const uint32_t change = change_of(entry.state.load(std::memory_order_acquire));
  if ((kinds & kChangedFiles) != 0 && is_changed_since(*c.board, entry.hash, change)) return true;
  if ((kinds & kChangedInodes) == 0) return false;
  const Identity* id = c.catalog.any_identity_of(entry);
  return id && is_changed_since(*c.board, mark_of_inode(id->pfs_ino), change);
}

APART Found staged_again(const Client& c, const RelPath& path) {
  const uint32_t kinds = c.board->header.changed.load(std::memory_order_acquire);
  if ((kinds & kChangedDirectories) != 0 && below_changed_directory(c, path)) return {};
  const Found found = c.catalog.newest(c.catalog.find(path), path);
  const bool serves = found && change_of(found.entry->state.load(std::memory_order_acquire)) != 0;
  return serves && !is_changed_in_place(c, *found.entry) ? found : Found{};
}

APART void has_changed_name(int dirfd, const char* path) {
  Client* c = client();
  if (!c || unreadable(path) || c->catalog.facts().stages_again == 0) return;
  const KeepErrno errno_stays;
  (void)mark_text(c, dirfd, path);
}

bool is_marked(const Client& c, const RelPath& path, const Entry* entry, uint32_t kinds) {
  if ((kinds & kChangedFiles) != 0 && is_invalid(*c.board, path.hash)) return true;
  if ((kinds & kChangedDirectories) != 0 && below_changed_directory(c, path)) return true;
  return entry && is_changed_in_place(c, *entry);
}

}  // namespace monarch::preload
