// SPDX-License-Identifier: Apache-2.0
// All that the library hooks, and what it deliberately does not.
#pragma once

// X(symbol, family). The exports are compared with this list by tests/exports.t.
//
// open   A dataset file that is whole on a tier is opened there; a small one that is not yet there is
//        waited for; all else is the PFS. The fortified __..._2 forms are what gcc makes of open with
//        -D_FORTIFY_SOURCE (tar, for one). openat2 is new in glibc 2.43, and the tar beside that extracts by
//        it. fopen and freopen open inside libc, so they are hooks of their own. An open for writing marks
//        the file as changed; mkstemp and its kin open inside libc, and the file is marked once it has its
//        name. What a child of posix_spawn is to open for writing is marked when it is told so, by where the
//        path leads then: after a later chdir among the child's actions a relative path may lead elsewhere,
//        unmarked.
// change What a path leads to is changed: the file is marked first (decide/changes.h), then the PFS does it.
//        mv uses renameat2, sed and git rename, C's remove() calls unlink inside libc.
// descriptor  What fchmod and kin change, or ask, of a tier's copy concerns the file on the PFS; for an ioctl
//        of the file system's, and for a handle, the descriptor goes back there.
// stat   fstat of a tier's copy answers with the PFS file's identity, or cp and tar would notice the
//        difference. __fxstat... are what programs built before glibc 2.33 call.
// path   What the catalog knows of a file is answered without the PFS (decide/attributes.h); so is fstatat
//        of a path, but not statx: who calls it mostly wants times of birth. __xstat... are what programs
//        built before glibc 2.33 call.
// link   /proc/self/fd/N of a tier's copy names the dataset's file, as long as that has its name.
// directory  The names in a directory come from the catalog as long as its times say that it has not changed
//        (decide/listings.h).
// exec   Programs started with an empty environment keep LD_PRELOAD and MONARCH_IO_*.
// space  After chroot, setns and mount a path may lead elsewhere: the roots are looked at again. After capset
//        root may read less, and after prctl (PR_SET_NO_NEW_PRIVS) any program: it is served no more.
// count  What came back is added up per tier and PFS, for the report and sacct; of large files it comes from
//        their chunks (decide/large.h). Before that, a descriptor whose file the job changed goes back to
//        the PFS (decide/returns.h).
// lock   So it does before a lock, which other programs of the job hold on the PFS's file, and before its end
//        is looked for; before a lease always. fcntl also tells of duplicates. A stream of a large file moves
//        to the copy before it is read from elsewhere (decide/large.h).
// fork   So do all, that parent and child go on sharing their positions, and that programs without the
//        library read the PFS's file. system, popen and forkpty start a child inside libc.
// clang-format off
#define MONARCH_HOOKS(X)                                                                                \
  X(open, open) X(open64, open) X(openat, open) X(openat64, open) X(__open_2, open) X(__open64_2, open) \
  X(__openat_2, open) X(__openat64_2, open) X(__open, open) X(__open64, open) X(creat, open)            \
  X(creat64, open) X(mkstemp, open) X(mkstemp64, open) X(mkostemp, open) X(mkostemp64, open)            \
  X(mkstemps, open) X(mkstemps64, open) X(mkostemps, open) X(mkostemps64, open)                         \
  X(open_by_handle_at, open) X(posix_spawn_file_actions_addopen, open) X(fopen, open) X(fopen64, open)  \
  X(fdopen, open) X(freopen, open) X(freopen64, open) X(openat2, open)                                  \
  X(rename, change) X(renameat, change) X(renameat2, change) X(unlink, change) X(unlinkat, change)      \
  X(remove, change) X(link, change) X(linkat, change) X(lchmod, change)                                 \
  X(truncate, change) X(truncate64, change) X(chmod, change) X(fchmodat, change) X(chown, change)       \
  X(lchown, change) X(fchownat, change) X(utime, change) X(utimes, change) X(lutimes, change)           \
  X(futimesat, change) X(utimensat, change) X(setxattr, change) X(lsetxattr, change)                    \
  X(removexattr, change) X(lremovexattr, change)                                                        \
  X(fchmod, descriptor) X(fchown, descriptor) X(futimens, descriptor) X(futimes, descriptor)            \
  X(fsetxattr, descriptor) X(fgetxattr, descriptor) X(flistxattr, descriptor)                           \
  X(fremovexattr, descriptor) X(fstatfs, descriptor) X(fstatfs64, descriptor) X(fstatvfs, descriptor)   \
  X(fstatvfs64, descriptor) X(ioctl, descriptor) X(name_to_handle_at, descriptor)                       \
  X(fstat, stat) X(fstat64, stat) X(__fxstat, stat) X(__fxstat64, stat) X(fstatat, stat)                \
  X(fstatat64, stat) X(__fxstatat, stat) X(__fxstatat64, stat) X(statx, stat)                           \
  X(stat, path) X(stat64, path) X(lstat, path) X(lstat64, path) X(__xstat, path) X(__xstat64, path)     \
  X(__lxstat, path) X(__lxstat64, path) X(access, path) X(euidaccess, path) X(eaccess, path)            \
  X(faccessat, path)                                                                                    \
  X(readlink, link) X(readlinkat, link) X(__readlink_chk, link) X(__readlinkat_chk, link)               \
  X(realpath, link) X(__realpath_chk, link) X(canonicalize_file_name, link)                             \
  X(opendir, directory) X(fdopendir, directory) X(closedir, directory) X(readdir, directory)            \
  X(readdir64, directory) X(readdir_r, directory) X(readdir64_r, directory) X(telldir, directory)       \
  X(seekdir, directory) X(rewinddir, directory) X(dirfd, directory)                                     \
  X(execve, exec) X(execv, exec) X(execvp, exec) X(execvpe, exec) X(execl, exec) X(execlp, exec)        \
  X(execle, exec) X(fexecve, exec) X(execveat, exec) X(posix_spawn, exec) X(posix_spawnp, exec)         \
  X(fork, fork) X(_Fork, fork) X(vfork, fork) X(__vfork, fork) X(system, fork) X(popen, fork)           \
  X(forkpty, fork)                                                                                      \
  X(chroot, space) X(unshare, space) X(setns, space) X(mount, space) X(umount, space) X(umount2, space) \
  X(move_mount, space) X(capset, space) X(prctl, space)                                                                 \
  X(read, count) X(__read_chk, count) X(readv, count) X(pread, count) X(pread64, count)                 \
  X(__pread_chk, count) X(__pread64_chk, count) X(preadv, count) X(preadv64, count) X(preadv2, count)   \
  X(preadv64v2, count) X(sendfile, count) X(sendfile64, count) X(copy_file_range, count)                \
  X(splice, count) X(aio_read, count) X(aio_read64, count) X(lio_listio, count) X(lio_listio64, count)  \
  X(mmap, count)                                                                                        \
  X(mmap64, count) X(close, count) X(dup, count) X(dup2, count) X(dup3, count)                          \
  X(fcntl, lock) X(fcntl64, lock) X(flock, lock) X(lockf, lock) X(lockf64, lock) X(lseek, lock)         \
  X(lseek64, lock) X(fseek, lock) X(fseeko, lock) X(fseeko64, lock) X(rewind, lock) X(fsetpos, lock)    \
  X(fsetpos64, lock)

// clang-format on
// Deliberately not hooked:
// fread and the rest of stdio, close_range
//        The descriptor that open returned is a plain one of the kernel's, so they are right as they are.
// mkdir, rmdir, symlink, mkfifo, mknod, mkdtemp, bind, tmpfile
//        They change a directory's names only, which its times tell (decide/listings.h), or nothing.
// ftruncate, write, fallocate
//        Need a descriptor that was opened for writing.
// wordexp
//        Starts a shell with the program's own environment, as system and popen do: it has all, unless the
//        program itself has cleared that: setenv(3) here would allocate, and race with the program's threads.
// scandir, glob, ftw, nftw, fts_open
//        Read directories and ask for values inside libc, so they ask the PFS. What programs list a dataset
//        by is readdir; written anew, these had to allocate and to be as libc's in every detail.
// dlopen  A library opened with RTLD_DEEPBIND finds libc's functions before the hooks, as it asked to: what
//        it opens is on the PFS.
// pidfd_spawn, pidfd_spawnp
//        Of glibc 2.39. No program of tasks is known to call them; and one that looks for them by a weak
//        symbol would find the hook beside an older libc, too.
// clone  A child with its parent's memory and its own descriptors is to be made by vfork.
// dlmopen  A namespace of its own has a libc of its own, and none of the hooks.
// syscall  Reads by it are right, from the PFS, and changes by it are not noticed.
