// SPDX-License-Identifier: Apache-2.0
// Where an open for reading goes.
#pragma once

#include <stddef.h>

#include "preload/client/client.h"
#include "preload/client/room.h"

namespace monarch::preload {

struct Opening {
  bool follows = true;  // symbolic links, also as the last of the path
  bool stream = false;  // it is read inside libc, where no chunk serves it
  bool native = false;  // only the PFS's file can be opened so
};
// When an open began, of CLOCK_MONOTONIC, and as which kind its time is counted on the board.
struct OpenTime {
  int64_t since_ns;  // 0: it is not counted
  OpenKind kind;
};
struct Decision {
  bool placed = false;  // a whole copy is on tier number `tier`; else the PFS
  uint32_t tier = 0;
  uint32_t marks = 0;                        // see opened_on_tier()
  Ref copy = 0;                              // its Entry
  uint64_t bytes = 0;                        // the file's size; 0 if it is not known
  Ref large = 0;                             // the Entry, if reads with an offset may be served from chunks
  TaskCounter why = TaskCounter::opens_pfs;  // not placed: the reason; opens_pfs: it is no file to be counted
  OpenTime time{0, OpenKind::kTier};
};

// An open for reading by a path. The caller opens copy() and says so, or else the path itself; each is then
// in one counter, and in the log. errno stays as it is.
class Reading {
 public:
  // Decides. May wait, bounded, while the agent stages the file.
  Reading(Client* client, int dirfd, const char* path, Opening opening);
  // Whether the path leads below a root. If not, nothing was decided.
  bool is_of_dataset() const { return path_.path != nullptr; }
  const RelPath& path() const { return path_; }
  const Decision& decision() const { return decision_; }
  // The path of the copy that is to be opened; nullptr: the PFS.
  const char* copy() const { return copy_; }
  // What was opened as that; -1, with errno: nothing. False: it is not the copy, and the PFS is tried next:
  // once the agent is gone, so may be the copies, and another user may have made a directory of that name.
  // Costs a call only then, and on tiers where others can do so at any time. A number beyond the hints is
  // not, since it would not follow changes.
  bool has_copy(int fd);
  // The open on the PFS returns.
  void ends() const;

 private:
  Client* const client_;
  RelPath path_ = {};
  const char* copy_ = nullptr;
  Decision decision_;
  Room text_, copy_text_;
};

// A descriptor of the copy of an entry on a tier, for the caller to close; -1: it cannot be opened, or
// another user has put something there. Changes errno.
int open_copy(const Client& client, Ref ref, uint32_t tier, bool whole = true);

// Counts, and logs, an open that nothing was decided about: of a copy on that tier, or on the PFS.
void count_copy_opened(Client* client, const RelPath& path, const Decision& decision);
void count_on_pfs(Client* client, const RelPath& path, Decision* decision);

}  // namespace monarch::preload
