// SPDX-License-Identifier: Apache-2.0
#include "admin/wait.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "admin/output.h"
#include "runtime/agent/progress.h"
#include "runtime/base/os.h"
#include "runtime/base/size.h"

namespace monarch::admin {
namespace {

constexpr int kLookMs = 200;
constexpr int kCells = 20;  // of the bar: with the numbers a line has less than 80 columns

// The agent's file, line by line; empty: it has told nothing yet.
class StateFile {
 public:
  explicit StateFile(const std::string& file) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);)
      if (const size_t at = line.find('='); at != std::string::npos)
        values_[line.substr(0, at)] = line.substr(at + 1);
  }
  std::string text(const char* key) const {
    const auto at = values_.find(key);
    return at == values_.end() ? "" : at->second;
  }
  uint64_t number(const char* key) const { return std::strtoull(text(key).c_str(), nullptr, 10); }

 private:
  std::map<std::string, std::string> values_;
};

// Why there is nothing more to wait for; "": there is.
std::string why_over(const StateFile& told) {
  const std::string state = told.text("state");
  if (state.empty() || state == "staging-in") return "";
  if (state == "staged-in")
    return "no more can be: " + counted(told.number("no_room"), "file has", "files have") + " no room, " +
           std::to_string(told.number("failed")) + " cannot be staged";
  if (state == "teardown") return "the agent has ended";
  return "no more is staged ahead, as prefetch = off in the configuration";
}

// "69.0M of 246M staged, 12.7M/s, about 0:00:14 left"
std::string progress_line(const StateFile& told) {
  const uint64_t staged = told.number("staged_bytes"), all = told.number("all_bytes"),
                 rate = told.number("rate");
  std::string text = format_size(staged) + (all > 0 ? " of " + format_size(all) : "") + " staged";
  if (rate > 0) text += ", " + format_size(rate) + "/s";
  if (rate > 0 && all > staged) text += ", about " + time_text((all - staged) / rate) + " left";
  return text;
}

void draw(const StateFile& told) {
  const auto percent = static_cast<int>(std::min<uint64_t>(told.number("percent"), 100));
  const int full = kCells * percent / 100;
  std::fprintf(stderr, "\r\033[K[%s%s] %3d%%  %s", std::string(full, '#').c_str(),
               std::string(kCells - full, ' ').c_str(), percent, progress_line(told).c_str());
}

}  // namespace

void wait_until_staged(const std::string& run_dir, StagingWait wait, const std::function<bool()>& lives) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const int64_t begin = os::monotonic_ms();
  std::string why;
  for (;;) {
    const bool alive = lives();  // before its last word is read
    const StateFile told(run_dir + "/" + kStateFile);
    const int64_t ms = os::monotonic_ms() - begin;
    const bool enough = told.number("percent") >= static_cast<uint64_t>(wait.percent);
    if (!enough) why = why_over(told);
    if (!enough && why.empty() && !alive) why = "the agent has ended";
    if (!enough && why.empty() && ms >= wait.seconds * int64_t{1000})
      why = "the time of --wait-timeout is over; staging goes on";
    if (terminal) draw(told);
    if (enough || !why.empty()) {
      if (terminal) std::fprintf(stderr, "\r\033[K");
      fail("run", fmt::format("{}% of the dataset is staged after {} s ({}, {}): {}", told.number("percent"),
                              ms / 1000, counted(told.number("staged_files"), "file"),
                              format_size(told.number("staged_bytes")), enough ? "the command begins" : why));
      return;
    }
    ::usleep(kLookMs * 1000);
  }
}

}  // namespace monarch::admin
