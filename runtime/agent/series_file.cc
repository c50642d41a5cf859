// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/series_file.h"

#include <time.h>

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/base/os.h"

namespace monarch {

void SeriesFile::begin() {
  const int64_t ago_ns = clock_.now_ns() - began_ns_;
  series_.magic = kSeriesMagic;
  series_.began = static_cast<uint64_t>((os::clock_ns(CLOCK_REALTIME) - ago_ns) / 1000000000);
  series_.began_ms = static_cast<uint64_t>(began_ns_ / 1000000);
  append({}, &series_);
}

void SeriesFile::look(const StagedSoFar& staged) {
  if (series_.magic == 0) begin();
  const auto now = static_cast<uint64_t>(clock_.now_ms());
  const uint64_t ms = now - std::min(now, series_.began_ms), count = series_.count;
  const bool has_settled = staged.settled && series_.settled_ms == 0,
             is_whole = staged.whole && series_.whole_ms == 0;
  const bool is_due = count == 1 || ms - series_.samples[count - 1].ms >= pause_ms_;
  if (!is_due && !has_settled && !is_whole) return;
  if (has_settled) series_.settled_ms = std::max<uint64_t>(ms, 1);
  if (is_whole) series_.whole_ms = std::max<uint64_t>(ms, 1);
  Sample sample = sample_of(*board_, ms, {});
  sample.staged_bytes = staged.bytes;
  sample.dataset_bytes = staged.all_bytes;
  append(sample, &series_);
  if (series_.count == count && !has_settled && !is_whole) return;
  if (series_.count < count) pause_ms_ *= 2;
  if (const Status written = write_series(run_dir_, series_); !written.ok())
    spdlog::debug("{}", written.error().text);  // the next one may be
}

}  // namespace monarch
