// SPDX-License-Identifier: Apache-2.0
// The files of a job's copies on one tier, and their names.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/layout/catalog_layout.h"

namespace monarch {

// Makes the files of copies in the job's directory, names them and removes them; counts no space, and writes
// no bytes. All members may be called from any thread.
//
// A copy has the name copy_name; one that gets its bytes in parts lies under part_name until it is whole. So
// whatever has a copy's name is complete.
class Store {
 public:
  Store() = default;
  // In the open `directory`, whose path is `path`; errors name `tier`.
  Store(Fd directory, std::string path, const std::string& tier);
  Store(Store&& other) noexcept;  // only before it is shared between threads
  Store& operator=(Store&& other) noexcept;

  int directory() const { return directory_.get(); }

  // An empty file for reading and writing, which has no name yet, or one that no reader looks for.
  Result<Fd> create(Ref entry);
  // Gives up a file of create() that will not be published.
  void discard(Ref entry);
  // Gives the file its final name, in place of a file that has been left there.
  Status publish(const Fd& file, Ref entry);
  // Gives a published copy the name of another entry, too. False: that cannot be, errno says why.
  bool link(Ref copy, Ref entry);
  // A published copy, for reading. Empty: errno says why.
  Fd open_copy(Ref entry) const;
  // Removes a published copy, or a name of one. False: it is there still, and takes its space.
  bool remove(Ref entry);

  // The same for a partial copy.
  Result<Fd> create_part(Ref entry);
  Result<Fd> open_part(Ref entry);  // one of create_part(), for writing
  Status publish_part(Ref entry);
  bool remove_part(Ref entry);

  // A file that is no copy's, without a name. Empty: errno says why.
  Fd open_nameless() const;

 private:
  Error failed(const std::string& what) const { return errno_error("tier " + tier_ + ": " + what); }
  Status ensure_bucket(Ref entry);
  // Makes the entry's directory of copies anew if somebody has removed it. False: it is there, or the job's
  // whole directory is gone.
  bool restore_bucket(Ref entry);
  Fd open_new(Ref entry);
  Fd open_new_part(const char* name);
  // A new name for a file: linkat(2), or renameat(2) where there is no O_TMPFILE. -1 and errno.
  int name_copy(const Fd& file, const char* name);
  int name_over(const Fd& file, const char* name);

  Fd directory_;
  std::string path_, tier_;
  bool tmpfile_ = true;                    // the file system has O_TMPFILE
  std::atomic<uint64_t> buckets_[4] = {};  // which of the 256 directories of copies exist
};

}  // namespace monarch
