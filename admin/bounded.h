// SPDX-License-Identifier: Apache-2.0
// Questions to what may hang: a file system, a daemon, another program.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/node/child.h"

namespace monarch::admin {

// Asks in a child and a process group of its own, beside what else the caller does.
class Question {
 public:
  explicit Question(const std::function<std::string()>& ask);

  // What `ask` returned, if it has within that time of the question. ETIMEDOUT; ECHILD: the child ended
  // early.
  Result<std::string> answer(int patience_ms);

 private:
  int64_t asked_ms_;
  Child child_;
};

// In a Question: runs a program, found as a shell would, without LD_PRELOAD. What it prints, standard error
// included, at most 1 MiB of it; *status as of waitpid(2), 127 << 8 if there is no such program.
std::string run_program(const std::vector<std::string>& words, int* status);

// What such a program prints, asked in a child. ETIMEDOUT; ECHILD: it failed, and the text is its first line.
Result<std::string> ask_program(const std::vector<std::string>& words, int patience_ms);

}  // namespace monarch::admin
