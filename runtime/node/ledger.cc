// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/ledger.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/escape.h"
#include "runtime/base/memory.h"
#include "runtime/base/os.h"
#include "runtime/base/size.h"
#include "runtime/hierarchy/discovery.h"
#include "runtime/hierarchy/grant.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/node/memory_tier.h"

namespace monarch {
namespace {

// All records, as they are now.
struct Ledger {
  std::vector<JobRecord> jobs, removals;
  bool whole = true;  // no record is spoilt
};

Ledger read_ledger(const StateDir& state) {
  Ledger all;
  const auto add = [&all](Result<JobRecord> record, std::vector<JobRecord>* to) {
    all.whole &= record.ok() || record.error().code != EINVAL;
    if (record.ok()) to->push_back(record.take());
  };
  // jobs/ first: a record that goes to removing/ meanwhile is then seen there, or in both.
  for (const std::string& key : state.jobs()) add(state.read_record(key), &all.jobs);
  for (const std::string& removal : state.removals()) add(state.read_removal(removal), &all.removals);
  return all;
}

// Bytes that all but the job `key` have of the tier at `path`. What is being removed counts by what it still
// occupies, once its remover has said how much that is.
uint64_t taken_by_others(const Ledger& all, const std::string& key, const std::string& path) {
  uint64_t sum = 0;
  for (const JobRecord& record : all.jobs)
    for (const TierRecord& t : record.tiers)
      if (t.path == path && record.job.key() != key) sum += t.quota;
  for (const JobRecord& record : all.removals)
    for (const TierRecord& t : record.tiers)
      if (t.path == path) sum += t.occupied.value_or(t.quota);
  return sum;
}

constexpr int kGrantPatienceMs = 200;      // the keeper comes again in a second
constexpr uint64_t kLeastGrant = 1 << 20;  // less is not worth an agent's looking again, but for the last
constexpr mode_t kForAgents = 0644;

std::string quotas_text(const JobRecord& record) {
  std::vector<Grant> grants;
  for (const TierRecord& t : record.tiers) grants.push_back({t.name, t.quota});
  return grant_text(grants);
}

bool is_told(const StateDir& state, const JobRecord& record) {
  const Result<std::string> told = state.read(record.grants());
  return told.ok() && *told == quotas_text(record);
}

// How much more of the tier the job can have now. Nothing while nobody knows what another one has.
uint64_t room_for(const Ledger& all, const JobRecord& record, const TierRecord& tier) {
  if (tier.quota >= tier.limit || !all.whole) return 0;
  const uint64_t taken = taken_by_others(all, record.job.key(), tier.path) + tier.quota;
  const uint64_t room = tier.limit - std::min(tier.limit, taken);
  return room >= std::min(kLeastGrant, tier.limit - tier.quota) ? room : 0;
}

// The space is reserved before anything is told of it. What fails is tried again: it was not told then.
void grant_to(const StateDir& state, const Ledger& all, JobRecord* record) {
  uint64_t more = 0;
  for (TierRecord& tier : record->tiers) {
    const uint64_t room = room_for(all, *record, tier);
    tier.quota += room;
    more += room;
  }
  if (more == 0 && is_told(state, *record)) return;
  Status s = state.write_record(*record);
  for (const TierRecord& t : record->tiers) {
    if (!s.ok() || t.kind != TierConfig::Kind::kTmpfs) continue;
    const Result<Fd> jobs = open_tier_jobs(t.path);
    s = jobs.ok() ? resize_tmpfs(*jobs, record->name, t.quota) : Status(jobs.error());
  }
  if (s.ok()) s = tell_quotas(state, *record);
  if (more == 0) return;
  if (!s.ok()) return spdlog::warn("JobId={} more space: {}", record->job.job, s.error().text);
  spdlog::info("JobId={} node={} has {} more of the tiers: other jobs gave it back", record->job.job,
               record->job.node, format_size(more));
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
    const Fd dir(os::openat(AT_FDCWD, tier.path.c_str(), O_PATH | O_CLOEXEC));
    if (!dir || os::fstatvfs(dir.get(), &fs) != 0) {
      spdlog::warn("JobId={} tier {} ({}): {}", job.job, tier.name, tier.path, std::strerror(errno));
      continue;
    }
    if (const TierConfig* same = same_directory(tiers, tier)) {
      spdlog::warn("JobId={} tier {} ({}) is the directory of tier {}: the job goes without it", job.job,
                   tier.name, tier.path, same->name);
      continue;
    }
    if (!is_utf8(tier.path)) {
      spdlog::warn("JobId={} tier {}: the path {} is not UTF-8: the job goes without it", job.job, tier.name,
                   tier.path);
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
  std::vector<std::string> file_systems;
  for (const TierConfig& tier : *tiers) file_systems.push_back(file_system_at(tier.path));
  const Result<Fd> lock = state.lock_ledger(patience_ms);
  const Ledger all = read_ledger(state);
  if (!lock.ok())
    spdlog::warn("JobId={} begins without space on the tiers: {}", record->job.job, lock.error().text);
  record->tiers.clear();
  for (size_t i = 0; i < tiers->size(); ++i) {
    TierConfig& tier = (*tiers)[i];
    const uint64_t limit = tier.quota.bytes;
    const uint64_t taken = lock.ok() ? taken_by_others(all, record->job.key(), tier.path) : limit;
    tier.quota.bytes = limit - std::min(limit, taken);
    record->tiers.push_back({tier.name,
                             medium_name(tier.medium),
                             tier.path,
                             tier.kind,
                             tier.quota.bytes,
                             limit,
                             {},
                             file_systems[i]});
  }
  return state.write_record(*record);
}

Status tell_quotas(const StateDir& state, const JobRecord& record) {
  return state.write(record.grants(), quotas_text(record), kForAgents);
}

bool can_grant(const StateDir& state) {
  const Ledger all = read_ledger(state);
  return std::any_of(all.jobs.begin(), all.jobs.end(), [&](const JobRecord& record) {
    return is_running(record.agent) &&
           (!is_told(state, record) ||
            std::any_of(record.tiers.begin(), record.tiers.end(),
                        [&](const TierRecord& tier) { return room_for(all, record, tier) > 0; }));
  });
}

void grant(const StateDir& state) {
  const Result<Fd> ledger = state.lock_ledger(kGrantPatienceMs);
  if (!ledger.ok()) return;
  Ledger all = read_ledger(state);
  std::sort(all.jobs.begin(), all.jobs.end(),
            [](const JobRecord& a, const JobRecord& b) { return a.serial < b.serial; });
  for (JobRecord& seen : all.jobs) {
    // Who holds it starts or ends the job; what waits for it waits for the ledger.
    const Result<Fd> lock = state.lock_job(seen.job, false, 0);
    Result<JobRecord> record = lock.ok() ? state.read_record(seen.job.key()) : Error{};
    if (record.ok() && record->serial == seen.serial && is_running(record->agent)) {
      grant_to(state, all, &*record);
      seen = record.take();
    }
  }
}

}  // namespace monarch
