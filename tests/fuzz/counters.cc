// SPDX-License-Identifier: Apache-2.0
// A board of the owner's, as the child of root's reads it; then numbers as root gets them from that child.
#include <cstring>
#include <vector>

#include "runtime/node/job_report.h"
#include "runtime/node/open_times.h"
#include "tests/fuzz/targets.h"

namespace monarch::fuzz {
namespace {

void check_line(const JobCounters& counters) {
  if (!plausible(counters)) return;
  JobRecord record;
  record.nodes = 4000000000u;
  for (const char* medium : {"nvme", "ram", "ssd", "hdd", "nvme", "ram", "ssd", "hdd", "nvme"}) {
    TierRecord tier;
    tier.name = "t";
    tier.medium = medium;
    tier.path = "/x";
    record.tiers.push_back(tier);
  }
  OpenTimes times = counters.open_times;
  add(&times, counters.others.open_times);
  FUZZ_CHECK(open_times_of(*Json::parse(open_times_json(times).dump())).ok());
  for (const OpenKind kind : kAllOpenKinds) {
    const std::optional<uint64_t> median = within_ns(times, kind, 50), most = within_ns(times, kind, 99);
    FUZZ_CHECK(timed(times, kind) <= kMostCount && (!most || (median && *median <= *most)));
  }
  const std::string line = comment_line(record, &counters);
  FUZZ_CHECK(line.size() <= 255);
  for (const char c : line) FUZZ_CHECK(c >= ' ' && c <= '~' && c != '\'' && c != '"' && c != '\\');
}

}  // namespace

void counters(const uint8_t* data, size_t size) {
  static const Directory at;
  static std::vector<uint8_t> file(sizeof(Board));
  // The first byte: how the file's size is wrong, and where the rest of the input lies in it.
  const uint8_t how = size > 0 ? data[0] : 0;
  if (size > 0) ++data, --size;
  std::fill(file.begin(), file.end(), uint8_t{0});
  auto* board = reinterpret_cast<Board*>(file.data());
  const size_t place = how & 1 ? offsetof(Board, shards) : 0;
  std::memcpy(file.data() + place, data, std::min(size, file.size() - place));
  if (how & 2) {
    board->header.magic = kBoardMagic;
    board->header.version = kBoardVersion;
    board->header.bytes = sizeof(Board);
  }
  at.write("board", file.data(), how & 4 ? std::min<size_t>(size, file.size()) : file.size());
  if (const Result<JobAccount> read = read_account(at.path()); read.ok()) check_line(read->counters);

  JobCounters told{};
  std::memcpy(static_cast<void*>(&told), data, std::min(size, sizeof told));
  if (how & 8) told.magic = kJobCountersMagic;
  check_line(told);
}

}  // namespace monarch::fuzz
