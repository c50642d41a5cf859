// SPDX-License-Identifier: Apache-2.0
// A program that root's helper runs beside what else it does, for what that prints.
#pragma once

#include <sys/types.h>

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
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();  // kills it, unless it has ended; one that hangs in the kernel is left to init

  // Whether it was started.
  const Status& started() const { return started_; }
  // Its wait status, once it has ended; *said: what it printed. ETIMEDOUT: it took longer, and is killed;
  // EFBIG: it prints more than `most` bytes.
  Result<int> end(int patience_ms, size_t most, std::string* said, Clock& clock);
  // What it prints, if it ends with status 0 within that time; else as end(), or ECHILD: it failed.
  Result<std::string> output(int patience_ms, size_t most, Clock& clock);

 private:
  pid_t pid_ = -1;
  Fd output_;
  Status started_;
};

}  // namespace monarch
