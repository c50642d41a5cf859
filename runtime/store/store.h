// SPDX-License-Identifier: Apache-2.0
// The files of a job's copies on one tier, and their names.
#pragma once

#include <sys/stat.h>
#include <time.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/layout/catalog_layout.h"

namespace monarch {

inline bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

// Why a file system cannot hold copies: EXDEV, it shows files on another device than their directory; else it
// does not keep nanoseconds of times.
inline Error no_tier(const std::string& place, int why) {
  if (why == EXDEV)
    return Error{EOPNOTSUPP, place +
                                 ": its file system shows files on another device than their directory, "
                                 "and cannot be a tier"};
  return Error{EOPNOTSUPP,
               place + ": its file system does not keep nanoseconds of times, and cannot be a tier"};
}

// Makes the files of copies in the job's directory, names them and removes them. The bytes are the caller's
// to write. All members may be called from any thread.
//
// A copy has the name copy_name; one that gets its bytes in parts lies under part_name until it is whole. So
// whatever has a copy's name is complete. Errors name the tier.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // An empty file for reading and writing, which no reader finds. Entry 0 is nobody's: a file to try the
  // tier.
  virtual Result<Fd> create(Ref entry) = 0;
  // Gives up a file of create() that will not be published. The caller has closed it.
  virtual void discard(Ref entry) = 0;
  // Gives a whole file the times of its source, by which fstat in a task knows it again, and its final name,
  // in place of a file that has been left there. From then on nobody can open it for writing. *made: what the
  // tier says of it. EOVERFLOW: the tier's file system does not keep such a time.
  virtual Status publish(const Fd& file, Ref entry, const struct stat& source, struct stat* made) = 0;
  // The same for a copy that gets its bytes in parts, and has a name at once: `space` is what it will take.
  virtual Result<Fd> create_part(Ref entry, uint64_t space) = 0;
  virtual Result<Fd> open_part(Ref entry) = 0;  // one of create_part(), for writing
  virtual Status publish_part(const Fd& file, Ref entry, const struct stat& source, struct stat* made) = 0;
  // Gives a published copy the name of another entry, too. False: that cannot be, errno says why.
  virtual bool link(Ref copy, Ref entry) = 0;
  // Takes the entry's name away, of a copy or of a partial one. False: it is there still, and takes its
  // space.
  virtual bool remove(Ref entry) = 0;

  // Keeps a copy's inode, so that no other file gets its number; is_open() does not count it.
  virtual Fd hold(Fd file) const = 0;
  // Whether somebody else has the entry's copy open, which is held at `held`, or that cannot be told; also
  // once its name is removed.
  virtual bool is_open(Ref entry, const Fd& held) = 0;

  // What the job's names count on the tier, and may; nothing: the store does not count.
  struct Room {
    uint64_t used = 0, granted = 0;  // bytes
  };
  virtual Result<std::optional<Room>> room() = 0;
  // It has ended: no call succeeds any more, and copies stay as they are.
  virtual bool has_ended() const = 0;
};

}  // namespace monarch
