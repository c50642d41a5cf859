// SPDX-License-Identifier: Apache-2.0
// Where the files of a dataset come from when they are staged.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>

#include "runtime/base/os.h"
#include "runtime/base/result.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/placement/copier.h"

namespace monarch {

// A file of the dataset that is open for copying. Several threads may copy parts of it at a time.
class SourceFile {
 public:
  virtual ~SourceFile() = default;
  // A descriptor of the file on the PFS, which may be one of O_PATH; -1: there is none.
  virtual int fd() const = 0;
  // What the PFS says of it; where it was not asked, what it has said to another node. False: errno says why.
  virtual bool values(struct stat* st) const { return os::fstat(fd(), st) == 0; }
  // Copies a part of it; `range.source` is filled in. Errors as of Copier::copy(); ECANCELED: the entry was
  // given up meanwhile.
  virtual Status copy(CopyRange range, Copier* copier) = 0;
};

// How soon a file is needed.
enum class Need {
  kNow,    // a task waits for it
  kLater,  // nobody does: at the admin's rates
  kAnew,   // the same, and as the PFS has it now, since the job has changed it
};

// All members may be called from any thread.
class Source {
 public:
  virtual ~Source() = default;
  // Opens the file of an entry, which has this path below its root. nullptr: errno says why.
  virtual std::unique_ptr<SourceFile> open(Ref ref, const std::string& path, Need need,
                                           const Copier& copier) = 0;
  // So many files more than there are copy threads may come at a time, since they do not come from the PFS.
  virtual int more_at_a_time() const { return 0; }
  // Whether this node is to stage the entry though nobody has asked for it.
  virtual bool is_ours(Ref ref) = 0;
  // The copy of an entry is whole, and has its name on the tier.
  virtual void copied(Ref ref, int tier) = 0;
  // An entry has no copy, or has it no longer, and none is being made.
  virtual void given_up(Ref ref) = 0;
};

}  // namespace monarch
