// SPDX-License-Identifier: Apache-2.0
// What the catalog knows of a file without asking the PFS.
#pragma once

#include <sys/stat.h>

#include "preload/resolve/roots.h"

namespace monarch::preload {

struct Values {
  const Identity* identity;  // the record of the file: all but size and mtime
  const Attributes* attributes;
  uint64_t size;
  int64_t mtime;
  bool opened;  // the agent could open it for reading
};
// A file of which no task has told yet what the PFS says.
struct Unknown {
  Ref entry = 0;  // 0: nothing is to be told
  uint32_t hash = 0;
};
// What an answer takes beside the values themselves.
enum Need : unsigned {
  kRealUser = 1,  // the real user id is the effective one
  kReadable = 2,  // the agent could open the file for reading
};
// Whether the path leads to a file that is known; else the PFS is to be asked. Counts which of the two, below
// a root. `flags`: AT_SYMLINK_NOFOLLOW; `needs`: Need. errno stays as it is.
bool known_values(int dirfd, const char* path, int flags, unsigned needs, Values* values, Unknown* unknown);
// Tells the agent what the PFS said. Does not wait.
void tell(const Unknown& unknown, const struct stat& st);
// Whether this process may be told what the agent saw of the file or directory: no mark, exclusion or other
// user is in the way.
bool may_be_told(const Client& client, const RelPath& path);

}  // namespace monarch::preload
