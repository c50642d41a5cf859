// SPDX-License-Identifier: Apache-2.0
// A child that runs beside what else the caller does, for what it says: another program, or a function, which
// may hang in a file system or a daemon.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/node/identity.h"

namespace monarch {

// In a child that may hang, and so outlive its parent: standard input, output and error are /dev/null's,
// whoever reads those of the parent to their end. False: they are not.
bool leave_standard_streams();
// Likewise: leaves of what is open what it needs (`kept`), and the log (a file that is appended to, or a
// socket). Locks of a hook's, and pipes that somebody reads to their end, are not to live as long.
void leave_open(const std::vector<int>& kept);

class Child {
 public:
  // Writes what it says to that descriptor. Its child ends with status 0 if it returns true.
  using Work = std::function<bool(int)>;
  // Do not wait. `words[0]` is the program's path; its environment has PATH, and SLURM_CONF if `slurm_conf`
  // is not empty.
  Child(std::vector<std::string> words, const std::string& slurm_conf);
  // It has nothing else open but the log, and `kept`.
  explicit Child(const Work& work, std::vector<int> kept = {});
  // As that user, and with nothing else open.
  Child(const User& user, const Work& work);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  // Kills it, with its process group if it has made one, unless it has ended.
  ~Child();

  // Whether it was started.
  const Status& started() const { return started_; }
  // Once. Its wait status, when it has ended; *said: what has come of it, `most` bytes and no more.
  // ETIMEDOUT: it took longer than until `until_ms`, or says more, and is killed.
  Result<int> end(int64_t until_ms, size_t most, std::string* said, Clock& clock);
  // What it says, if it ends with status 0 within that time; else as end(), or ECHILD: it failed.
  Result<std::string> output(int patience_ms, size_t most, Clock& clock);
  // True: it ended with status 0 in time, and has said exactly so many bytes.
  bool fill(int64_t until_ms, void* out, size_t bytes, Clock& clock);
  // The child, if it hangs in the kernel though it was killed; or -1. It is left to init.
  pid_t left_behind() const { return left_behind_; }

 private:
  Fd open_pipe();  // the end that it writes to
  bool forks();    // in the child
  pid_t pid_ = -1, left_behind_ = -1;
  Fd output_;
  Status started_;
};

// Writes all of it.
bool say(int to, const std::string& text);

}  // namespace monarch
