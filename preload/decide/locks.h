// SPDX-License-Identifier: Apache-2.0
// flock(2) where some of a file's descriptors are open on the copy and others on the PFS's file: each is
// locked on what it is open on, where its lock stays as long as natively, and whoever locks one of the two
// looks for locks of others on the other one. Tasks of other nodes do so on the PFS's file only.
#pragma once

namespace monarch::preload {

// Before flock(fd, operation): tells those that share a lock by another descriptor to look here, too.
void will_lock(int fd, int operation);
// Before it: whether that has the lock by now. Then it keeps it, whoever is looking.
bool has_locked(int fd, int operation);
// After it: whether somebody's lock, taken on the other one, is in the way of this. It is then to be given
// up. errno stays as it is.
bool is_locked_beside(int fd, int operation);
// With no lock held: waits until it is not, as flock(2). False, with errno: a signal came.
bool wait_for_lock_beside(int fd, int operation);

}  // namespace monarch::preload
