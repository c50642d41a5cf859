// SPDX-License-Identifier: Apache-2.0
// A child that runs beside what else the caller does, for what it prints: another program, or a function,
// which may hang in a file system or a daemon.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace monarch {

class Program {
 public:
  // Does not wait. `words[0]` is the program's path; its environment has PATH, and SLURM_CONF if `slurm_conf`
  // is not empty.
  Program(std::vector<std::string> words, const std::string& slurm_conf);
  // Of this process: prints what `ask` returns. Does not wait.
  explicit Program(const std::function<std::string()>& ask);
  Program(Program&& other) noexcept;
  Program& operator=(Program&&) = delete;
  // Kills it, with its process group if it has made one, unless it has ended; one that hangs in the kernel is
  // left to init.
  ~Program();

  // Whether it was started.
  const Status& started() const { return started_; }
  // Its wait status, once it has ended; *said: what it printed. ETIMEDOUT: it took longer, and is killed;
  // EFBIG: it prints more than `most` bytes.
  Result<int> end(int patience_ms, size_t most, std::string* said, Clock& clock);
  // What it prints, if it ends with status 0 within that time; else as end(), or ECHILD: it failed.
  Result<std::string> output(int patience_ms, size_t most, Clock& clock);

 private:
  Fd open_pipe();  // the end that it prints to
  pid_t pid_ = -1;
  Fd output_;
  Status started_;
};

}  // namespace monarch
