// SPDX-License-Identifier: Apache-2.0
#include "preload/decide/returns.h"

#include <linux/kcmp.h>
#include <sys/file.h>
#include <sys/resource.h>

#include "preload/next/kernel.h"
#include "preload/resolve/paths.h"
#include "preload/resolve/words.h"

namespace monarch::preload {
namespace {

// Puts what is open as `own` in the place of `fd` and of its duplicates here, however they came.
void replace(int fd, int own, Hints hints) {
  const long self = syscall(SYS_getpid);
  const auto put = [own, hints](int to) {
    const long flags = syscall(SYS_fcntl, to, F_GETFD);
    if (flags < 0 || syscall(SYS_dup3, own, to, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) < 0) return;
    if (hints == Hints::kSet && class_of(to) != kNone) opened_on_pfs(to, 0);
  };
  each_descriptor([&](int other) {
    if (other != fd && syscall(SYS_kcmp, self, self, KCMP_FILE, fd, other) == 0) put(other);
  });
  put(fd);
}

// Of a range, by F_SETLK or F_OFD_SETLK.
void take_range(int fd, int command, const Lock& lock) {
  struct flock range = {};
  range.l_type = lock.writes ? F_WRLCK : F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(lock.first);
  range.l_len = lock.last != 0 ? static_cast<off_t>(lock.last - lock.first + 1) : 0;
  syscall(SYS_fcntl, fd, command, &range);
}

// One that belongs to what is open, not to the process.
void take_lock_of_file(int fd, const Lock& lock) {
  if (lock.kind == 'F') syscall(SYS_flock, fd, (lock.writes ? LOCK_EX : LOCK_SH) | LOCK_NB);
  if (lock.kind == 'O') take_range(fd, F_OFD_SETLK, lock);
}

// 0: done; ESTALE: the copy is what the descriptor is open on, as long as nothing else changes; else: not
// now. Locks of what is open are taken on the PFS before those on the copy go. Closing a descriptor gives up
// the process's locks on the file: so those that it has are taken last.
APART int try_to_go_back(const Client& c, int fd, const Original& original, Hints hints) {
  const long flags = syscall(SYS_fcntl, fd, F_GETFL);
  const long at = syscall(SYS_lseek, fd, 0, SEEK_CUR);
  if (flags < 0 || ((flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_RDONLY)) return ESTALE;
  const int own = open_original(original, (flags & O_PATH) != 0 ? O_PATH : O_RDONLY | O_NONBLOCK);
  if (own < 0) return errno;
  syscall(SYS_fcntl, own, F_SETFL, flags);
  syscall(SYS_lseek, own, at, SEEK_SET);
  constexpr size_t kMostLocks = 16;
  Lock kept[kMostLocks];
  size_t n = 0;
  each_lock(fd, [&](const Lock& lock) {
    take_lock_of_file(own, lock);
    if (lock.kind == 'P' && n < kMostLocks) kept[n++] = lock;
  });
  each_lock(own, [&](const Lock& lock) {  // by another descriptor, until `own` is closed
    if (lock.kind == 'P' && n < kMostLocks) kept[n++] = lock;
  });
  replace(fd, own, hints);
  syscall(SYS_close, own);
  for (size_t i = 0; i < n; ++i) take_range(fd, F_SETLK, kept[i]);
  count(c.board, TaskCounter::returned);
  return 0;
}

// A program that has all the descriptors that it may have lends some for the moment.
int go_back_alone(const Client& c, int fd, const Original& original, Hints hints) {
  constexpr rlim64_t kLent = 4;
  int error = try_to_go_back(c, fd, original, hints);
  struct rlimit64 limit;
  if (error == EMFILE && syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit) == 0 &&
      limit.rlim_max - limit.rlim_cur >= kLent) {
    const struct rlimit64 more = {limit.rlim_cur + kLent, limit.rlim_max};
    syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &more, nullptr);
    error = try_to_go_back(c, fd, original, hints);
    syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, nullptr);
  }
  return error;
}

// Threads that share the position go on from where the others were: one of them moves it, while none reads. A
// child of vfork(2) has descriptors of its own.
int go_back(int fd, const Original& original, Hints hints = Hints::kSet) {
  const Client* c = client();
  if (!c) return ESTALE;
  const KeepErrno errno_stays;
  const bool shared = hints == Hints::kSet && static_cast<unsigned>(fd) < kDescriptors;
  Original now;
  int error = 0;
  if (shared) wait_to_move(fd);
  if (original_of_descriptor(fd, &now) && now.identity->tier_ino == original.identity->tier_ino)
    error = go_back_alone(*c, fd, now, hints);
  if (shared) end_move(fd);
  return error;
}

bool has_changed(const Original& original) {
  const Client* c = client();
  return c && is_changed_in_place(*c, *original.entry);
}

// It may have come unseen: by a socket, over exec, as a shell's redirection.
void note_copy(int fd) {
  Original original;
  if (class_of(fd) == kNone && original_of_descriptor(fd, &original))
    opened_on_tier(fd, original.identity->tier.load(std::memory_order_relaxed), kNeverLooked);
}

bool will_change_copy(Change change, int fd, const Original& original) {
  Room room;
  if (const char* path = path_of_original(original, &room))
    will_change(change, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
  const int error = go_back(fd, original);
  if (error != 0) errno = error;
  return error == 0;
}

}  // namespace

bool follow_change(int fd, const Original& original) {
  return has_changed(original) && go_back(fd, original) == 0;
}

void look_for_change(int fd) {
  const uint32_t marks = the_client.board->header.marks.load(std::memory_order_acquire);
  Original original;
  const bool is_copy = original_of_descriptor(fd, &original);
  if (!is_copy && descriptor_marks[fd].load(std::memory_order_relaxed) == kNeverLooked)
    return opened_elsewhere(fd);
  if (!is_copy || !has_changed(original) || go_back(fd, original) == ESTALE)
    descriptor_marks[fd].store(marks, std::memory_order_relaxed);
}

void follow_changes_of_link(int fd) {
  note_copy(fd);
  follow_changes(fd);
}

void follow_changes_to_lock() {
  static std::atomic<uint32_t> followed{0};
  const Client* c = is_attached() ? client() : nullptr;
  const uint32_t marks = c ? c->board->header.marks.load(std::memory_order_acquire) : 0;
  if (marks == followed.load(std::memory_order_relaxed)) return;
  const KeepErrno errno_stays;
  each_descriptor([](int fd) { follow_changes(fd); });
  followed.store(marks, std::memory_order_relaxed);
}

// What the job wrote before it was copied it may write again.
void follow_changes_to_map(int fd) {
  follow_changes(fd);
  Original original;
  if (is_tier(class_of(fd)) && the_client.board->header.changed.load(std::memory_order_relaxed) != 0 &&
      original_of_descriptor(fd, &original) &&
      change_of(original.entry->state.load(std::memory_order_acquire)) != 0)
    (void)go_back(fd, original);
}

void follow_all_changes(Hints hints) {
  shares_descriptors();
  const Client* c = is_attached() ? client() : nullptr;
  if (!c || c->board->header.marks.load(std::memory_order_acquire) == 0) return;
  const KeepErrno errno_stays;
  each_descriptor([hints](int fd) {
    if (hints == Hints::kSet) follow_changes_of_link(fd);
    Original original;
    if ((syscall(SYS_fcntl, fd, F_GETFD) & FD_CLOEXEC) == 0 && original_of_descriptor(fd, &original) &&
        has_changed(original))
      (void)go_back(fd, original, hints);
  });
}

bool will_change_open(Change change, int fd) {
  Original original;
  if (original_of_descriptor(fd, &original)) return will_change_copy(change, fd, original);
  changes_descriptor(change, fd);
  return true;
}

bool may_change(Change change, int dirfd, const char* path, int flags) {
  const int fd = descriptor_meant(dirfd, path, flags);
  if (fd != kNoDescriptor) return will_change_open(change, fd);
  will_change(change, dirfd, path, flags);
  return true;
}

bool will_write_by_link(const char* path) {
  Original original;
  const int fd = unreadable(path) ? -1 : descriptor_of_link(path);
  return fd < 0 || !original_of_descriptor(fd, &original) || will_change_copy(Change::kContent, fd, original);
}

void give_back(int fd, Hints hints) {
  Original original;
  if (original_of_descriptor(fd, &original)) (void)go_back(fd, original, hints);
}

void give_back_beside(int fd, int beside) {
  Original original;
  struct statx st;
  if (original_of_descriptor(fd, &original) && look_at(beside, STATX_INO, &st) &&
      device_of(st) == original.attributes->dev)
    (void)go_back(fd, original);
}

APART void find_open_copies() { each_descriptor(note_copy); }

}  // namespace monarch::preload
