// SPDX-License-Identifier: Apache-2.0
#include "tests/quiet.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace monarch {
namespace {

std::vector<std::string> threads() {
  std::vector<std::string> found;
  std::error_code ended;
  for (std::filesystem::directory_iterator at("/proc/self/task", ended), end; !ended && at != end;
       at.increment(ended))
    found.push_back(at->path().filename());
  return found;
}

// A sanitizer's own, which looks at something now and then.
const std::vector<std::string> there_before = threads();

bool is_sanitizers(const std::string& thread) {
  return thread != std::to_string(::getpid()) &&
         std::find(there_before.begin(), there_before.end(), thread) != there_before.end();
}

}  // namespace

bool others_sleep() {
  struct Thread {
    std::string switches;  // how often it has left a processor
    bool polls;
  };
  using All = std::map<std::string, Thread>;
  // Nothing: one does not sleep.
  const auto look = []() -> std::optional<All> {
    All all;
    const std::string own = std::to_string(::gettid());
    for (const std::string& thread : threads()) {
      if (thread == own || is_sanitizers(thread)) continue;
      const std::string directory = "/proc/self/task/" + thread;
      std::ifstream status(directory + "/status"), call(directory + "/syscall");
      std::string line, switches;
      char state = '\0';
      bool is_kernels = false;  // it works for io_uring, and sleeps when it has nothing to do
      while (std::getline(status, line)) {
        if (line.rfind("Name:\tiou-", 0) == 0) is_kernels = true;
        if (line.rfind("State:", 0) == 0) state = line.at(7);
        if (has(line, "voluntary_ctxt_switches:")) switches += line;
      }
      long number = -1;
      call >> number;
      if (state == '\0') continue;  // it has ended
      if (state != 'S' || (number == SYS_io_uring_enter && !is_kernels)) return {};
      all[thread] = {switches, number == SYS_clock_nanosleep || number == SYS_nanosleep};
    }
    return all;
  };
  const std::optional<All> before = look();
  if (!before) return false;
  bool sleep = false;
  (void)eventually(
      [&] {
        const std::optional<All> now = look();
        if (!now || now->size() != before->size()) return true;
        bool have_polled = true;
        for (const auto& [thread, then] : *before) {
          const auto found = now->find(thread);
          if (found == now->end() || found->second.polls != then.polls) return true;
          const bool same = found->second.switches == then.switches;
          if (!same && !then.polls) return true;
          have_polled &= !then.polls || !same;
        }
        sleep = have_polled;
        return sleep;
      },
      std::chrono::seconds(1));
  return sleep;
}

int64_t sleeps_of(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  int64_t sleeps = -1;
  for (std::string word; status >> word;)
    if (word == "voluntary_ctxt_switches:") status >> sleeps;
  return sleeps;
}

}  // namespace monarch
