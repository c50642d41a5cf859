// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/ledger.h"

#include <spdlog/spdlog.h>
#include <sys/statvfs.h>

#include <algorithm>

#include "runtime/base/memory.h"
#include "runtime/hierarchy/discovery.h"
#include "runtime/layout/catalog_layout.h"

namespace monarch {
namespace {

// Bytes that other jobs on this node have reserved on the tier at `path`, those that are being removed
// included.
uint64_t reserved_by_others(const StateDir& state, const JobOnNode& job, const std::string& path) {
  uint64_t sum = 0;
  const auto add = [&](const Result<JobRecord>& other) {
    if (!other.ok() || other->job.node != job.node) return;  // slurmd -N: several nodes on this machine
    for (const TierRecord& t : other->tiers)
      if (t.path == path) sum += t.quota;
  };
  for (const std::string& key : state.jobs())
    if (key != job.key()) add(state.read_record(key));
  for (const std::string& removal : state.removals()) add(state.read_removal(removal));
  return sum;
}

}  // namespace

std::vector<TierConfig> share_of(const StateDir& state, const JobOnNode& job, const Config& config) {
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
    const uint64_t quota = tier.quota.of(memory ? total_memory() : uint64_t{fs.f_blocks} * fs.f_frsize);
    const uint64_t taken = reserved_by_others(state, job, tier.path);
    tier.quota = Quota{quota - std::min(quota, taken), -1};
    if (memory) tier.min_free = Quota{};  // nobody else is on it
    if (tiers.size() < kMaxTiers) tiers.push_back(std::move(tier));
  }
  return tiers;
}

}  // namespace monarch
