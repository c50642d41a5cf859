// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_status.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/metadata/board.h"
#include "runtime/metadata/run_file.h"
#include "runtime/node/state.h"

namespace monarch {
namespace {

// nullptr: there is none of this version (yet).
std::unique_ptr<CatalogHeader> read_header(const std::string& run_dir) {
  auto header = std::make_unique<CatalogHeader>();
  const Result<size_t> size = read_run_file(run_dir + "/catalog", header.get(), sizeof *header);
  if (!size.ok() || *size < sizeof *header) return nullptr;
  const bool good = std::memcmp(header->magic, kCatalogMagic, sizeof kCatalogMagic) == 0 &&
                    header->version == kCatalogVersion && header->bytes == sizeof(CatalogHeader) &&
                    header->ready.load() == 1 && header->root_count <= kMaxRoots &&
                    header->prefix_count <= kMaxPrefixes && header->tier_count <= kMaxTiers;
  return good ? std::move(header) : nullptr;
}

}  // namespace

Result<JobStatus> read_status(const std::string& run_dir) {
  const Result<std::unique_ptr<Board>> read = read_board(run_dir);
  if (!read.ok()) return read.error();
  const Board& board = **read;
  JobStatus s{};
  s.magic = kJobStatusMagic;
  s.counters = counters_of(board);
  for (uint32_t i = 0; i < kMaxTiers; ++i) s.granted[i] = board.granted[i].load();
  s.progress = board.header.progress.load() & kMostCount;
  s.alive = agent_lives(board);
  s.closed = board.header.closed.load() != kServes;
  s.full = board.header.full.load() != 0;
  const std::unique_ptr<CatalogHeader> header = read_header(run_dir);
  if (!header) return s;
  s.walked = std::all_of(header->roots, header->roots + header->root_count,
                         [](const Root& root) { return root.walked.load() == 1; });
  s.datasets = header->root_count;
  for (const Prefix* p = header->prefixes + header->prefix_count; p-- != header->prefixes;)
    if (p->root == 0 && p->below[0] == '\0') std::memcpy(s.dataset, p->path, sizeof s.dataset - 1);
  s.tiers = header->tier_count;
  for (uint32_t i = 0; i < s.tiers; ++i) {
    std::memcpy(s.names[i], header->tiers[i].name, sizeof s.names[i]);
    s.names[i][sizeof s.names[i] - 1] = '\0';
  }
  return s;
}

bool plausible(const JobStatus& s) {
  if (s.magic != kJobStatusMagic || !plausible(s.counters) || s.alive > 1 || s.closed > 1 || s.full > 1 ||
      s.walked > 1 || s.progress > kMostCount || s.tiers > kMaxTiers || s.datasets > kMaxRoots ||
      std::memchr(s.dataset, '\0', sizeof s.dataset) == nullptr)
    return false;
  if (!std::all_of(s.granted, s.granted + kMaxTiers, [](uint64_t n) { return n <= kMostCount; }))
    return false;
  for (uint32_t i = 0; i < s.tiers; ++i)
    if (std::memchr(s.names[i], '\0', sizeof s.names[i]) == nullptr || !is_plain_name(s.names[i]))
      return false;
  return true;
}

}  // namespace monarch
