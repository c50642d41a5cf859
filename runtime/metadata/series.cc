// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/series.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

#include "runtime/metadata/board.h"
#include "runtime/metadata/run_file.h"

namespace monarch {
namespace {

// The dataset, as far as the agent has listed it; files that nobody has looked at yet are taken for as large
// as the others.
struct Listed {
  uint64_t bytes;
  bool estimated;
};
Listed listed_of(const Board& board) {
  const auto count = [&](AgentCounter c) { return total(board, c); };
  const uint64_t bytes = count(AgentCounter::dataset_bytes), found = count(AgentCounter::walk_files);
  const uint64_t others = count(AgentCounter::pass_files) + count(AgentCounter::source_errors) +
                          count(AgentCounter::tier_errors) + count(AgentCounter::dropped_files);
  const uint64_t sized = count(AgentCounter::sized_files), all = found - std::min(found, others);
  return {bytes_of_all(bytes, sized, all), sized < all};
}

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
  return write_sealed(run_dir, kSeriesFile, &series, static_cast<size_t>(series.bytes()));
}

Result<Series> read_series(const std::string& run_dir) {
  const std::string path = run_dir + "/" + kSeriesFile;
  Series series;
  const Result<size_t> size = read_sealed(path, &series, sizeof series);
  if (!size.ok()) return size.error();
  if (!plausible(series) || series.bytes() != *size) return Error{EINVAL, path + ": no series"};
  return series;
}

uint64_t bytes_of_all(uint64_t bytes, uint64_t known, uint64_t all) {
  if (known == 0 || all <= known) return bytes;
  const double sum = static_cast<double>(bytes), mean = sum / static_cast<double>(known);
  const double guess = sum + mean * static_cast<double>(all - known);
  // As a double, the bound is one more.
  return guess < static_cast<double>(kMostCount) ? static_cast<uint64_t>(guess) : kMostCount;
}

void close_series(const Board& board, Series* series, Clock& clock) {
  const auto now = static_cast<uint64_t>(clock.now_ms());
  const Sample before = series->count > 0 ? series->samples[series->count - 1] : Sample();
  const uint64_t ms = std::max(before.ms, now - std::min(now, series->began_ms));
  Sample last = sample_of(board, ms, before);
  if (series->settled_ms == 0) {  // since the agent looked last, the board alone knows
    const Listed listed = listed_of(board);
    last.dataset_bytes = listed.estimated ? std::max(last.dataset_bytes, listed.bytes) : listed.bytes;
    const uint64_t placed =
        std::accumulate(std::begin(last.placed_bytes), std::end(last.placed_bytes), uint64_t{0});
    last.staged_bytes = std::max(last.staged_bytes, std::min(placed, last.dataset_bytes));
  }
  append(last, series);
}

AtWork at_work(const Series& series) {
  AtWork all;
  for (uint64_t i = 1; i < series.count; ++i) {
    const Sample &now = series.samples[i], &before = series.samples[i - 1];
    if (now.opens_pfs == 0 && now.opens_tier == 0) continue;
    all.ms += now.ms - before.ms;
    if (now.read_bytes_pfs > before.read_bytes_pfs) all.pfs_ms += now.ms - before.ms;
  }
  return all;
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
