// SPDX-License-Identifier: Apache-2.0
// A descriptor that was opened on a copy before the job changed the file goes back to the PFS: from then on
// it is one of the PFS's file, at the same position, with the same flags and this process's locks. It does so
// when it is used next, by a call that hooks see; what was mapped from it stays the copy.
// Duplicates in this process move with it, and all move before it forks. Those of other processes move when
// they use them, and then have a position of their own.
// In a process of several threads, what another thread reads or closes unseen stays as it is until a call is
// made on it: what a stream reads, and what came by no hook (is_in_sight()), with all its duplicates.
#pragma once

#include "preload/decide/changes.h"
#include "preload/decide/descriptors.h"
#include "preload/resolve/originals.h"

namespace monarch::preload {

// Before a call that reads, maps or locks what is open as `fd`. One load and a comparison unless the job
// changed something since this was asked last of `fd`. errno stays as it is.
void look_for_change(int fd);
inline void follow_changes(int fd) {
  if (__builtin_expect(!is_tier(class_of(fd)), 1)) return;
  const uint32_t marks = the_client.board->header.marks.load(std::memory_order_acquire);
  if (__builtin_expect(may_have_changed(fd, marks), 0)) look_for_change(fd);
}
// Before the process takes a lock of a range of what is open as `fd`, on the PFS by now. It loses that when
// it closes a descriptor of the same file: so all of that file's go back while there is no such lock.
void follow_changes_to_lock(int fd);
// Before it is mapped: a map does not go back. So that of a file that the job wrote before is the PFS's.
void follow_changes_to_map(int fd);
// A child of vfork(2) has its parent's hints: what it does before exec(2) leaves them as they are.
enum class Hints { kSet, kStay };
// Of all descriptors, before a child gets them, and of those that are kept over exec(2), which may be of a
// program without the library.
void follow_all_changes(Hints hints = Hints::kSet);
// Whether the job changed the file since it was copied.
bool has_changed(const Original& original);
// Which descriptors a program gets: those that are kept over exec(2), or what actions of posix_spawn(3) say;
// or those that it has, and its parent has not.
enum class Given { kKept, kAny, kOwn };
// Before a program without the library gets descriptors, or is served no more: copies' go back. But by one
// that its parent has read from, and has open as well, that may read on at the position that they share: it
// stays.
void give_all_back(Given given, Hints hints);
// Of a process that has attached: what it has inherited of copies, and of other files of the dataset, whose
// opens are counted unless its parent has done so.
void find_open_files();
// Of a descriptor that is open on this copy. Whether it is the PFS's now.
bool follow_change(int fd, const Original& original);
// Of a descriptor that was opened for reading, but by no decision: by a link to another (/proc/self/fd/N), a
// handle, or an open that might have made a file. Its open is counted; a copy's goes back as above.
void opened_undecided(int fd);

// Before a call that changes what is open as `fd`: the file is marked, and a copy's descriptor goes back to
// the PFS. False, with errno: it cannot, and the call must not be made.
bool will_change_open(Change change, int fd);
// The same of what (dirfd, path) leads to, which may be a descriptor: fchownat(fd, "", ..., AT_EMPTY_PATH),
// utimensat(fd, nullptr, ...). By a link to a copy's descriptor, of any process (chmod("/dev/fd/N")), *path
// becomes one to the file on the PFS, for as long as `instead` is there.
struct Instead {
  int fd = -1;
  char link[kFdLinkBytes] = {};
  Instead() = default;
  Instead(const Instead&) = delete;
  Instead& operator=(const Instead&) = delete;
  ~Instead() { (void)Own(fd); }
};
bool may_change(Change change, int dirfd, const char** path, int flags, Instead* instead);
// Of an open for writing by such a link. The kernel refuses it (EACCES), since nobody may
// write a copy; but not to root, whose O_TRUNC would empty it. *path becomes a link to the file on the PFS,
// which is marked, if it led to a copy: `instead` then has a descriptor. False, with errno: there is none to
// be had.
bool write_instead(int dirfd, const char** path, Instead* instead);
inline bool is_refused_to_write(int flags) { return (flags & O_TRUNC) == 0 || syscall(SYS_geteuid) != 0; }
// Before a call that only the PFS's file can answer, or a program that is to run: a copy's descriptor goes
// back to the PFS if it can.
void give_back(int fd);
// The same of all descriptors here of the copy that original_meant() says.
void give_back_meant(int dirfd, const char* path, int flags, Hints hints);
// Before a call that a file system does between two files of its own: if the PFS has `beside`.
void give_back_beside(int fd, int beside);

}  // namespace monarch::preload
