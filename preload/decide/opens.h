// SPDX-License-Identifier: Apache-2.0
// Where a read-only open of a dataset's file goes.
#pragma once

#include <stddef.h>

#include "preload/client/client.h"
#include "preload/client/room.h"

namespace monarch::preload {

// When an open began, of CLOCK_MONOTONIC, and as which kind its time is counted on the board.
struct OpenTime {
  int64_t since_ns;  // 0: it is not counted
  OpenKind kind;
};
struct Answer {
  bool placed = false;  // a whole copy is on tier number `tier`; else the PFS
  uint32_t tier = 0;
  uint32_t marks = 0;                        // see opened_on_tier()
  Ref copy = 0;                              // its Entry
  uint64_t bytes = 0;                        // the file's size; 0 if it is not known
  Ref large = 0;                             // the Entry, if reads with an offset may be served from chunks
  TaskCounter why = TaskCounter::opens_pfs;  // not placed: the reason
  OpenTime time{0, OpenKind::kTier};         // for count_open_time(), once it is open, or has failed
};
struct Opening {
  bool follows = true;  // symbolic links, also as the last of the path
  bool stream = false;  // it is read inside libc, where no chunk serves it
  bool native = false;  // only the PFS's file can be opened so
};
// May wait, bounded, while the agent stages the file. `copy` receives the path of a whole copy.
Answer find_copy(Client* client, const RelPath& path, Room* copy, Opening opening);

// Whether what was opened as that copy is the copy: once the agent is gone, so may be the copies, and another
// user may have made a directory of that name. Costs a call only then, and on tiers where others can do so at
// any time; errno stays as it is. A number beyond the hints is not, since it would not follow changes.
bool is_the_copy(const Client& client, const Answer& answer, int fd);

// A descriptor of the copy of an entry on a tier, for the caller to close; -1: it cannot be opened, or
// another user has put something there. Changes errno.
int open_copy(const Client& client, Ref ref, uint32_t tier, bool whole = true);

// Counts, and logs, what became of the open of a copy. On failure (`error`: errno, 0 if something else was
// opened) the PFS is tried next, and *answer says so.
void count_copy_opened(Client* client, const RelPath& path, const Answer& answer);
void count_copy_failed(Client* client, const RelPath& path, int error, Answer* answer);
// The same of an open on the PFS that nothing was decided about.
void count_undecided(Client* client, const RelPath& path);

// Counts how long an open took that returns now; errno stays as it is.
void add_open_time(Client* client, const OpenTime& time);
inline void count_open_time(Client* client, const OpenTime& time) {
  if (__builtin_expect(time.since_ns != 0, 0)) add_open_time(client, time);
}

}  // namespace monarch::preload
