// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/series.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/metadata/board.h"

namespace monarch {
namespace {

constexpr char kNew[] = "series.new";

bool is_equal_but_for_time(Sample a, const Sample& b) {
  a.ms = b.ms;
  return a == b;
}

}  // namespace

Sample sample_of(const Board& board, uint64_t ms, const Sample& before) {
  Sample s;
  s.ms = ms;
  s.read_bytes_pfs = total(board, TaskCounter::read_bytes_pfs);
  s.opens_pfs = total(board, TaskCounter::opens_pfs);
  s.waits = total(board, TaskCounter::waits);
  s.wait_ns = total(board, TaskCounter::wait_ns);
  s.agent_bytes_pfs = total(board, AgentCounter::agent_bytes_pfs);
  s.peer_bytes = total(board, AgentCounter::peer_bytes);
  s.served_bytes = total(board, AgentCounter::served_bytes);
  for (uint32_t i = 0; i < kMaxTiers; ++i) {
    const TierTotals tier = tier_totals(board, i);
    s.read_bytes_tier += tier.read_bytes;
    s.opens_tier += tier.opens;
    s.placed_bytes[i] = tier.placed_bytes;
  }
  s.staged_bytes = before.staged_bytes;
  s.dataset_bytes = before.dataset_bytes;
  return s;
}

void append(const Sample& sample, Series* series) {
  uint64_t& n = series->count;
  Sample* all = series->samples;
  if (n >= 2 && is_equal_but_for_time(all[n - 1], sample) && is_equal_but_for_time(all[n - 2], sample)) {
    all[n - 1].ms = sample.ms;
    return;
  }
  if (n == kSamples) {
    for (uint64_t i = 0; 2 * i < kSamples; ++i) all[i] = all[2 * i];
    n = (kSamples + 1) / 2;
  }
  all[n++] = sample;
}

Status write_series(int run_dir, const Series& series) {
  const Fd file(::openat(run_dir, kNew, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  const auto bytes = static_cast<size_t>(series.bytes());
  if (file && ::write(file.get(), &series, bytes) == static_cast<ssize_t>(bytes) &&
      ::renameat(run_dir, kNew, run_dir, kSeriesFile) == 0)
    return {};
  const Error error = errno_error(kSeriesFile);
  ::unlinkat(run_dir, kNew, 0);
  return error;
}

Result<Series> read_series(const std::string& run_dir) {
  const std::string path = run_dir + "/" + kSeriesFile;
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat st;
  if (!fd || ::fstat(fd.get(), &st) != 0) return errno_error("read " + path);
  if (!S_ISREG(st.st_mode) || st.st_size < 0 || static_cast<size_t>(st.st_size) > sizeof(Series))
    return Error{EINVAL, path + ": no series"};
  Series series;
  const auto bytes = static_cast<size_t>(st.st_size);
  for (size_t done = 0; done < bytes;) {
    const ssize_t n =
        ::pread(fd.get(), reinterpret_cast<char*>(&series) + done, bytes - done, static_cast<off_t>(done));
    if (n <= 0) return errno_error("read " + path, n < 0 ? errno : EIO);
    done += static_cast<size_t>(n);
  }
  if (!plausible(series) || series.bytes() != bytes) return Error{EINVAL, path + ": no series"};
  return series;
}

void close_series(const Board& board, Series* series) {
  const auto now = static_cast<uint64_t>(os::clock_ns(CLOCK_MONOTONIC) / 1000000);
  const Sample before = series->count > 0 ? series->samples[series->count - 1] : Sample();
  const uint64_t ms = std::max(before.ms, now - std::min(now, series->began_ms));
  append(sample_of(board, ms, before), series);
}

bool plausible(const Series& s) {
  if (s.magic != kSeriesMagic || s.count > kSamples) return false;
  for (const uint64_t word : {s.began, s.began_ms, s.settled_ms, s.whole_ms})
    if (word > kMostCount) return false;
  constexpr size_t kWords = sizeof(Sample) / sizeof(uint64_t);
  for (uint64_t i = 0; i < s.count; ++i) {
    uint64_t words[kWords];
    std::memcpy(words, &s.samples[i], sizeof words);
    if (!std::all_of(words, words + kWords, [](uint64_t n) { return n <= kMostCount; })) return false;
    if (i > 0 && s.samples[i].ms < s.samples[i - 1].ms) return false;
  }
  return true;
}

}  // namespace monarch
