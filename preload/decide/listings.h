// SPDX-License-Identifier: Apache-2.0
// Directory streams whose names come from the catalog's listing of the directory.
#pragma once

#include <dirent.h>

namespace monarch::preload {

// For opendir(3) of `path` or fdopendir(3) of `fd`. nullptr: libc is to make one; errno is then as it was.
DIR* open_listed(int dirfd, const char* path);
DIR* open_listed(int fd);
// closedir(3), of any stream.
int close_directory(DIR* dir);

// What a DIR is: such a stream, or libc's.
class ListedDirectory {
 public:
  explicit ListedDirectory(DIR* dir);
  explicit operator bool() const { return stream_ != nullptr; }
  // libc's, if this is none of ours.
  DIR* real() const { return dir_; }
  // As readdir(3), or into `out`.
  struct dirent64* read(struct dirent64* out) const;
  long position() const;
  void seek(long position) const;
  // Afterwards it may be libc's.
  void rewind() const;
  // As dirfd(3): from then on a descriptor as open(2) gives.
  int descriptor() const;

 private:
  DIR* dir_;
  void* stream_;
};

}  // namespace monarch::preload
