// SPDX-License-Identifier: Apache-2.0
// What copying whole files and copying chunks share.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "runtime/base/os.h"
#include "runtime/base/result.h"
#include "runtime/layout/board_layout.h"
#include "runtime/placement/source.h"
#include "runtime/store/store.h"

namespace monarch {

// Errors of copy() that lie with the source or the tier; anything else stopped it on purpose.
inline constexpr const char* kSource = "source: ";

inline bool is_source_error(const Error& error) { return error.text.rfind(kSource, 0) == 0; }

// Whether the file still has the size and mtime that `before` says, and a name.
inline bool unchanged(const SourceFile& source, const struct stat& before) {
  struct stat now;
  return source.values(&now) && now.st_nlink > 0 && now.st_size == before.st_size &&
         same_time(now.st_mtim, before.st_mtim);
}

// Less than half of the file occupies space: then its copy has holes, too. (A file system that compresses
// says little of its files less strongly.) What are holes is told by reading: SEEK_DATA was wrong on more
// than one file system, and would cost bytes.
inline bool is_sparse(const struct stat& st) {
  constexpr int64_t kBytesPerBlock = 512;
  return st.st_blocks * kBytesPerBlock < st.st_size / 2;
}

struct Verdict {
  AgentCounter counter;
  uint64_t word;
};

// What becomes of a file whose source failed in the middle.
inline Verdict verdict_on_read(const Error& error) {
  if (error.code == ESTALE || error.code == ENODATA)
    return {AgentCounter::dropped_files, state_word(State::kDropped, Reason::kChanged)};
  // Such a file may be opened only once its copy is begun.
  if (error.code == EACCES || error.code == EPERM)
    return {AgentCounter::pass_files, state_word(State::kPass, Reason::kUnreadable)};
  return {AgentCounter::source_errors, state_word(State::kPass, Reason::kSourceError)};
}

// Why an open of the source that failed with `error` makes the file one that is never staged.
inline uint64_t verdict_on_open(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return state_word(State::kPass, Reason::kMissing);
    case ELOOP:
      return state_word(State::kPass, Reason::kSymlink);
    case EXDEV:
      return state_word(State::kPass, Reason::kOtherDevice);
    case EACCES:
    case EPERM:
      return state_word(State::kPass, Reason::kUnreadable);
    default:
      return state_word(State::kPass, Reason::kSourceError);
  }
}

}  // namespace monarch
