// SPDX-License-Identifier: Apache-2.0
#include "preload/decide/moves.h"

#include <linux/kcmp.h>
#include <signal.h>

#include "preload/decide/changes.h"
#include "preload/decide/chunks.h"
#include "preload/decide/descriptors.h"
#include "preload/decide/opens.h"
#include "preload/decide/waiting.h"
#include "preload/next/kernel.h"
#include "preload/resolve/originals.h"
#include "preload/resolve/paths.h"
#include "preload/resolve/words.h"

namespace monarch::preload {
namespace {

// A filter of system calls may end the program for a rare one.
bool is_unfiltered() {
  bool unfiltered = false;
  return each_word("/proc/self/status",
                   [&](int, const char* word) { unfiltered |= strcmp(word, "Seccomp:\t0") == 0; }) &&
         unfiltered;
}

bool has_duplicate(int fd) {
  const long self = syscall(SYS_getpid);
  bool found = false;
  each_descriptor([&](int other) {
    const long order = other == fd ? 1 : syscall(SYS_kcmp, self, self, KCMP_FILE, fd, other);
    found |= order == 0 || (order < 0 && errno != EBADF);  // an error leaves it open
  });
  return found;
}

// Anybody's lock on an inode of that number; true also if it cannot be told.
bool may_be_locked(uint64_t ino) {
  constexpr int kInode = 5;
  bool found = false;
  return !each_word("/proc/locks", [&](int number, const char* word) {
    const char* colon = number == kInode ? strrchr(word, ':') : nullptr;
    found |= colon && number_in(colon + 1) == ino;
  }) || found;
}

// With calls on the position kept away.
bool move(Client* client, int fd, Ref ref) {
  const uint32_t marks = client->board->header.marks.load(std::memory_order_acquire);
  const Entry* e = client->catalog.entry(ref);
  const Identity* identity = client->catalog.identity_of(*e);
  const long flags = syscall(SYS_fcntl, fd, F_GETFL), kept = syscall(SYS_fcntl, fd, F_GETFD);
  if (!identity || flags < 0 || kept < 0 || (flags & (O_DIRECT | O_ASYNC)) != 0 || !is_unfiltered() ||
      has_duplicate(fd) || may_be_locked(identity->pfs_ino))
    return false;
  const Own copy(open_whole(client, fd, ref));
  const long at = syscall(SYS_lseek, fd, off_t{0}, SEEK_CUR);
  if (copy.fd < 0 || at < 0 || syscall(SYS_fcntl, copy.fd, F_SETFL, flags) != 0 ||
      syscall(SYS_lseek, copy.fd, at, SEEK_SET) != at ||
      syscall(SYS_dup3, copy.fd, fd, (kept & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) != fd)
    return false;
  opened_on_tier(fd, tier_of(e->state.load(std::memory_order_acquire)), marks);
  count(client->board, TaskCounter::moved);
  return true;
}

bool is_whole(const Client& client, Ref ref) {
  const Entry* e = client.catalog.entry(ref);
  return e && state_of(e->state.load(std::memory_order_acquire)) == State::kPlaced;
}

}  // namespace

bool wait_for_whole(Client* client, int fd, Ref ref) {
  const Entry* e = client->catalog.entry(ref);
  const KeepErrno errno_stays;
  Room room;
  RelPath path;
  return e && seems_source(client->catalog, *e, fd) && path_of(client->catalog, *e, &room, &path) &&
         request_whole(client->board, client->catalog, path, *e);
}

int open_whole(Client* client, int fd, Ref ref) {
  const Entry* e = client->catalog.entry(ref);
  const uint64_t word = e ? e->state.load(std::memory_order_acquire) : 0;
  if (state_of(word) != State::kPlaced || client->board->header.closed.load(std::memory_order_relaxed) != 0 ||
      is_changed_in_place(*client, *e))
    return -1;
  const KeepErrno errno_stays;
  Original original;
  const int copy = is_source(client->catalog, *e, fd) ? open_copy(*client, tier_of(word), ref, true) : -1;
  if (copy >= 0 && original_of_descriptor(copy, &original) && original.entry == e) return copy;
  return not_opened(copy);
}

bool move_to_copy(Client* client, int fd, bool stream) {
  const Ref ref = large_file(fd);
  if (!is_whole(*client, ref) || !is_alone(fd) || is_used_by_stream(fd) != stream) return false;
  const KeepErrno errno_stays;
  constexpr uint64_t kAll = ~uint64_t{0};
  uint64_t before = 0;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &kAll, &before, sizeof before);
  bool moved = false;
  if (begin_move(fd)) {
    moved = move(client, fd, ref);
    if (!moved) never_moves(fd);
    end_move(fd);
  }
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof before);
  return moved;
}

void move_stream(FILE* stream) {
  const int fd = fileno_unlocked(stream);
  if (__builtin_expect(fd < 0 || class_of(fd) != kLarge, 1)) return;
  Client* c = client();
  if (!c) return;
  if (ftrylockfile(stream) != 0) return;
  (void)move_to_copy(c, fd, true);
  funlockfile(stream);
}

}  // namespace monarch::preload
