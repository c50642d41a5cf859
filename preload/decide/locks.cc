// SPDX-License-Identifier: Apache-2.0
// Locks that are shared, such as HDF5 takes of each file that it reads, cost the PFS nothing until somebody
// has wanted the file alone: such a one sets the file's bit on the board first, then locks, and then looks.
#include "preload/decide/locks.h"

#include <sys/file.h>

#include "preload/decide/opens.h"
#include "preload/next/kernel.h"
#include "preload/resolve/originals.h"
#include "preload/resolve/names.h"
#include "preload/resolve/roots.h"
#include "runtime/layout/space.h"
#include "preload/resolve/words.h"

namespace monarch::preload {
namespace {

bool takes(int operation) { return (operation & (LOCK_SH | LOCK_EX)) != 0; }
bool excludes(int operation) { return (operation & LOCK_EX) != 0; }

// What is open as a descriptor: a copy, or a file on the PFS that may have some.
struct Locked {
  Original copied;   // without an entry: no copy
  uint64_t bit = 0;  // of the file's; 0: no file of a dataset
};

Locked locked_by(const Client& c, int fd) {
  Locked locked;
  struct statx st;
  if (!look_at(fd, STATX_TYPE | STATX_INO | STATX_SIZE | STATX_MTIME | kMountId, &st) ||
      !S_ISREG(st.stx_mode))
    return locked;
  uint64_t ino = st.stx_ino;
  if (is_copy(st, &locked.copied))
    ino = locked.copied.identity->pfs_ino;
  else if (!may_be_below_root(c.catalog.facts(), st))
    return locked;
  locked.bit = uint64_t{1} << mark_of_inode(ino) % 64;
  return locked;
}

// Calls `use` with a descriptor of each copy of the file on the PFS that is open as `fd`.
template <typename Use>
void each_copy(const Client& c, int fd, Use use) {
  Room room;
  RelPath path;
  if (!resolve_open(c, fd, &room, &path)) return;
  Found found = c.catalog.find(path);
  for (int i = 0; found && i <= kMostAgain; ++i) {
    if (const Identity* identity = c.catalog.any_identity_of(*found.entry)) {
      const Own copy(open_copy(c, found.ref, identity->tier.load(std::memory_order_acquire)));
      if (copy.fd >= 0) use(copy.fd);
    }
    const Ref next = again_of(found.entry->state.load(std::memory_order_acquire));
    found = next != 0 ? Found{next, c.catalog.entry(next)} : Found{};
  }
}

// What flock(2) says of the other one: 0, or the first error. Without a lock left there.
int lock_beside(const Client& c, int fd, const Locked& locked, int operation) {
  int error = 0;
  const auto lock = [&](int other) {
    if (error == 0 && syscall(SYS_flock, other, operation) != 0) error = errno;
  };
  if (!locked.copied.entry) {
    each_copy(c, fd, lock);
  } else if (const Own file(open_original(locked.copied, O_RDONLY | O_NONBLOCK)); file.fd >= 0) {
    lock(file.fd);
  }
  return error;
}

}  // namespace

void will_lock(int fd, int operation) {
  Client* c = client();
  if (!c || !excludes(operation)) return;
  if (const uint64_t bit = locked_by(*c, fd).bit) c->board->header.locked.fetch_or(bit);
}

RARE bool has_locked(int fd, int operation) {
  const Client* c = client();
  if (!c || !takes(operation) || c->board->header.locked.load() == 0) return false;
  const KeepErrno errno_stays;
  bool found = false;
  if ((c->board->header.locked.load() & locked_by(*c, fd).bit) != 0)
    (void)each_lock(
        fd, [&](const Lock& lock) { found |= lock.kind == 'F' && lock.writes == excludes(operation); });
  return found;
}

RARE bool is_locked_beside(int fd, int operation) {
  const Client* c = client();
  if (!c || !takes(operation) || c->board->header.locked.load() == 0) return false;
  const KeepErrno errno_stays;
  const Locked locked = locked_by(*c, fd);
  return (c->board->header.locked.load() & locked.bit) != 0 &&
         lock_beside(*c, fd, locked, operation | LOCK_NB) == EWOULDBLOCK;
}

RARE bool wait_for_lock_beside(int fd, int operation) {
  const Client* c = client();
  const int saved = errno;
  const int error = c ? lock_beside(*c, fd, locked_by(*c, fd), operation) : 0;
  errno = error == EINTR ? EINTR : saved;
  return error != EINTR;
}

}  // namespace monarch::preload
