// SPDX-License-Identifier: Apache-2.0
// Directory streams whose names come from the catalog's listing of the directory.
#pragma once

#include <dirent.h>

namespace monarch::preload {

// For opendir(3) of `path` or fdopendir(3) of `fd`. nullptr: libc is to make one; errno is then as it was.
DIR* open_listed(const char* path);
DIR* open_listed(int fd);
// closedir(3), of any stream.
int close_directory(DIR* dir);

struct Stream;
// What *dir is: such a stream; nullptr: libc's, which *dir then is.
Stream* stream_of(DIR** dir);
// As readdir(3), or into `out`.
struct dirent64* next_name(Stream* stream, struct dirent64* out);
long position_of(const Stream& stream);
void seek(Stream* stream, long position);
// Afterwards it is libc's.
void rewind(Stream* stream);
// As dirfd(3): from then on a descriptor as open(2) gives.
int descriptor_of(Stream* stream);

}  // namespace monarch::preload
