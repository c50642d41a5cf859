// SPDX-License-Identifier: Apache-2.0
// The store of an agent that has the job's directory for itself: copies are the user's own.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "runtime/store/store.h"

namespace monarch {

class LocalStore final : public Store {
 public:
  // In `directory`, an open one that outlives it, whose path is `path`. Error: tasks would not know a copy on
  // this file system again.
  static Result<std::unique_ptr<Store>> open(int directory, const std::string& path, const std::string& tier);

  Result<Fd> create(Ref entry) override;
  void discard(Ref entry) override;
  Status publish(const Fd& file, Ref entry, const struct stat& source, struct stat* made) override;
  Result<Fd> create_part(Ref entry, uint64_t space) override;
  Result<Fd> open_part(Ref entry) override;
  Status publish_part(const Fd& file, Ref entry, const struct stat& source, struct stat* made) override;
  bool link(Ref copy, Ref entry) override;
  bool remove(Ref entry) override;
  Fd hold(Fd file) const override { return file; }
  bool is_open(Ref entry, const Fd& held) override;
  Result<std::optional<Room>> room() override { return std::optional<Room>(); }
  bool has_ended() const override { return false; }

 private:
  LocalStore(int directory, std::string path, std::string tier)
      : directory_(directory), path_(std::move(path)), tier_(std::move(tier)) {}
  Error failed(const std::string& what) const { return errno_error("tier " + tier_ + ": " + what); }
  Fd open_nameless() const;
  Status keeps_what_tells_copies() const;
  Status seal(const Fd& file, const struct stat& source, struct stat* made) const;
  Status ensure_bucket(Ref entry);
  // Makes the entry's directory of copies anew if somebody has removed it. False: it is there, or the job's
  // whole directory is gone.
  bool restore_bucket(Ref entry);
  Fd open_new(Ref entry);
  Fd open_new_part(const char* name);
  // A new name for a file: linkat(2), or renameat(2) where there is no O_TMPFILE. -1 and errno.
  int name_copy(const Fd& file, const char* name);
  int name_over(const Fd& file, const char* name);
  bool unlink(const char* name);

  const int directory_;
  const std::string path_, tier_;
  bool tmpfile_ = true;                    // the file system has O_TMPFILE
  std::atomic<uint64_t> buckets_[4] = {};  // which of the 256 directories of copies exist
};

}  // namespace monarch
