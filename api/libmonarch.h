/* SPDX-License-Identifier: Apache-2.0
 *
 * Monarch for programs that call it. A program needs no other library than libc, may be linked statically,
 * and runs without a job of Monarch's, too: then files are read where they are.
 *
 * All functions may be called by any thread at any time; none keeps a lock, a thread or a pointer that it was
 * given. A function that fails returns -1 and sets errno. What is here stays as it is: later versions only
 * add.
 */
#ifndef LIBMONARCH_H
#define LIBMONARCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads up to `n` bytes of the file `path` from byte `offset` on into `buf`, as pread(2) with open(2) and
 * close(2) around it, with their errors. Returns the number of bytes, which is less than `n` only at the end
 * of the file. Waits, bounded, for a file that is just being staged. */
ssize_t monarch_read(const char* path, void* buf, size_t n, int64_t offset);

/* Opens the file for reading. Returns a descriptor, closed on exec, which is the caller's to close(2). Its
 * bytes are those that the file had at the call. Fails as open(2) does, and waits as monarch_read(). In a
 * program without libmonarch_preload.so it may be a copy's: fstat(2) may tell of that, and a lock on it is of
 * no use. */
int monarch_open(const char* path);

/* Of which accesses a hint tells: of this rank in this epoch (both from 0 on), from access number `first` on.
 */
struct monarch_order {
  uint32_t epoch, rank;
  uint64_t first;
};

/* Tells the node's agent that the process will use these `count` files in this order. `order` may be NULL:
 * epoch 0, the rank of $SLURM_PROCID, else 0, from access 0 on. Returns how many of the paths, from the first
 * on, were taken. If that is less than `count`, the agent is behind: tell the rest later. A path that is no
 * known file of the dataset is taken and has no effect. A wrong hint costs time only. Never waits. ENOTCONN:
 * no job. */
ssize_t monarch_hint(const char* const* paths, size_t count, const struct monarch_order* order);

/* The same in two steps, for files that are told of again: to find their numbers, which hold as long as the
 * job and are 0 for what is no known file of the dataset, and to tell by these. `paths`: each with its NUL,
 * one behind the other. */
int monarch_find(const char* paths, size_t count, uint32_t* numbers);
ssize_t monarch_hint_found(const uint32_t* numbers, size_t count, const struct monarch_order* order);

/* Waits until the fraction (0 to 1) of the dataset's bytes is staged on this node, for `timeout_ms`
 * milliseconds at most (negative: without limit). Returns 0 then. ETIMEDOUT: the time is over. ENODATA: no
 * more will be staged. ENOTCONN: no job. EINVAL: no such fraction. */
int monarch_wait(double fraction, int timeout_ms);

/* Of this node and all of the job's processes on it, since the job began. */
struct monarch_counts {
  uint64_t files, bytes;               /* of the dataset, as far as known */
  uint64_t staged_files, staged_bytes; /* of these on this node's tiers */
  uint64_t listed;                     /* 1: all of the dataset's files are known */
  uint64_t opens_tier, opens_pfs;      /* opens of the dataset's files */
  uint64_t read_bytes_tier, read_bytes_pfs;
  uint64_t waits, wait_ns; /* opens that waited for staging; nanoseconds, in sum */
};

/* Fills in `stats`, of which the caller has `bytes` bytes: sizeof *stats. Fields that this library does not
 * know are 0. Returns 0. ENOTCONN: no job. */
int monarch_stats(struct monarch_counts* stats, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
