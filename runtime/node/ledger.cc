// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/ledger.h"

#include <spdlog/spdlog.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/memory.h"
#include "runtime/hierarchy/discovery.h"
#include "runtime/layout/catalog_layout.h"

namespace monarch {
namespace {

// Bytes that all but the job `key` have of the tier at `path`. What is being removed counts by what it still
// occupies, once its remover has said how much that is.
uint64_t taken_by_others(const StateDir& state, const std::string& key, const std::string& path) {
  uint64_t sum = 0;
  // jobs/ first: a record that goes to removing/ meanwhile is then seen there, or in both.
  for (const std::string& other : state.jobs()) {
    const Result<JobRecord> record = other != key ? state.read_record(other) : Error{};
    for (size_t i = 0; record.ok() && i < record->tiers.size(); ++i)
      if (record->tiers[i].path == path) sum += record->tiers[i].quota;
  }
  for (const std::string& removal : state.removals()) {
    const Result<JobRecord> record = state.read_removal(removal);
    for (size_t i = 0; record.ok() && i < record->tiers.size(); ++i)
      if (record->tiers[i].path == path) sum += record->tiers[i].occupied.value_or(record->tiers[i].quota);
  }
  return sum;
}

}  // namespace

std::vector<TierConfig> tiers_for(const JobOnNode& job, const Config& config) {
  std::vector<TierConfig> wanted = config.tiers;
  if (wanted.empty()) {
    Result<std::vector<Candidate>> found = discover({});
    if (found.ok()) {
      wanted = chosen(*found);
    } else {
      spdlog::warn("JobId={} discovery of tiers: {}", job.job, found.error().text);
    }
  }
  std::vector<TierConfig> tiers;
  for (TierConfig tier : wanted) {
    struct statvfs fs;
    if (::statvfs(tier.path.c_str(), &fs) != 0) {
      spdlog::warn("JobId={} tier {} ({}): {}", job.job, tier.name, tier.path, std::strerror(errno));
      continue;
    }
    const bool memory = tier.kind == TierConfig::Kind::kTmpfs;
    tier.quota = Quota{tier.quota.of(memory ? total_memory() : uint64_t{fs.f_blocks} * fs.f_frsize), -1};
    if (memory) tier.min_free = Quota{};  // nobody else is on it
    if (tiers.size() < kMaxTiers) tiers.push_back(std::move(tier));
  }
  return tiers;
}

Status reserve(const StateDir& state, std::vector<TierConfig>* tiers, JobRecord* record, int patience_ms) {
  const Result<Fd> lock = state.lock_ledger(patience_ms);
  if (!lock.ok())
    spdlog::warn("JobId={} begins without space on the tiers: {}", record->job.job, lock.error().text);
  record->tiers.clear();
  for (TierConfig& tier : *tiers) {
    const uint64_t limit = tier.quota.bytes;
    const uint64_t taken = lock.ok() ? taken_by_others(state, record->job.key(), tier.path) : limit;
    tier.quota.bytes = limit - std::min(limit, taken);
    record->tiers.push_back(
        {tier.name, medium_name(tier.medium), tier.path, tier.kind, tier.quota.bytes, limit, {}});
  }
  return state.write_record(*record);
}

}  // namespace monarch
