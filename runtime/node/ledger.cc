// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/ledger.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "runtime/base/escape.h"
#include "runtime/base/log.h"
#include "runtime/base/memory.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/size.h"
#include "runtime/hierarchy/discovery.h"
#include "runtime/hierarchy/grant.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/node/job_dirs.h"
#include "runtime/node/job_memory.h"
#include "runtime/node/memory_tier.h"

namespace monarch {
namespace {

// All records, as they are now; the jobs in the order in which they began.
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
  const auto names = [&](const char* below) {
    Result<std::vector<std::string>> found = state.list(below);
    all.whole &= found.ok();
    return found.ok() ? found.take() : std::vector<std::string>();
  };
  for (const std::string& key : names("jobs")) add(state.read_record(key), &all.jobs);
  for (const std::string& removal : names("removing")) add(state.read_removal(removal), &all.removals);
  std::sort(all.jobs.begin(), all.jobs.end(),
            [](const JobRecord& a, const JobRecord& b) { return a.serial < b.serial; });
  return all;
}

constexpr mode_t kForAgents = 0644;

int64_t seconds_since(int64_t when) { return std::max<int64_t>(0, os::realtime_s() - when); }

// ---- where the memory of jobs counts that a tier is charged to

bool is_charged(const JobRecord& record) {
  return std::any_of(record.tiers.begin(), record.tiers.end(), [](const TierRecord& t) { return t.to_job; });
}

// Whether the job is one that begins: afterwards it is looked for seldom.
bool is_early(const JobRecord& record) {
  return seconds_since(static_cast<int64_t>(record.serial / 1'000'000'000)) < patience::kLookAgainSeconds;
}

bool memory_look_is_due(const JobRecord& record) {
  return is_charged(record) && is_running(record.agent) && record.memory_group.empty() &&
         (seconds_since(record.memory_looked) > patience::kLookAgainSeconds || is_early(record));
}

// Looks at all processes, so the ledger must not be locked.
void find_memory_groups(const StateDir& state) {
  for (const JobRecord& seen : read_ledger(state).jobs) {
    if (!memory_look_is_due(seen)) continue;
    std::optional<LockedJob> locked = state.lock_run(seen);
    if (!locked) continue;
    JobRecord& record = locked->record;
    look_for_memory_group(&record);
    const bool say = record.memory_group.empty() && !record.memory_told && !is_early(record);
    record.memory_told |= say;
    (void)state.write_record(record).ok();
    if (say)
      spdlog::warn(
          "JobId={} node={} goes without the tier that is charged to it: no control group of the job's "
          "counts its memory; set TaskPlugin=task/cgroup in slurm.conf and ConstrainRAMSpace=yes in "
          "cgroup.conf, or charge = node in monarch.conf",
          record.job.job, record.job.node);
  }
}

// ---- what is free

struct Free {
  uint64_t bytes = 0;    // of a tier's quota
  uint64_t removed = 0;  // that, once the removals of ended jobs are over
};

// The quota is what who began last was told.
Free free_of(const Ledger& all, const std::string& path) {
  uint64_t limit = 0, granted = 0, removing = 0;
  for (const JobRecord& record : all.jobs) {
    for (const TierRecord& t : record.tiers) {
      if (t.path != path) continue;
      granted += t.quota;
      if (record.agent.pid == 0 || is_running(record.agent)) limit = t.limit;
    }
  }
  for (const JobRecord& record : all.removals)
    for (const TierRecord& t : record.tiers)
      if (t.path == path) removing += t.charged();
  return {sub_sat(limit, granted + removing), sub_sat(limit, granted)};
}

// Grants what is free. Nobody knows what the job of a spoilt record has.
void raise(Ledger* all) {
  for (JobRecord& record : all->jobs)
    if (all->whole && is_running(record.agent))
      for (TierRecord& t : record.tiers)
        if (t.quota < t.share) t.quota += std::min(t.share - t.quota, free_of(*all, t.path).bytes);
}

// ---- who is told

std::string granted_text(const JobRecord& record) {
  Grants grants;
  for (const TierRecord& t : record.tiers) grants.tiers.push_back({t.name, t.quota});
  if (is_charged(record)) {
    grants.memory = record.memory;
    grants.memory_group = record.memory_group;
  }
  return grants_text(grants);
}

bool is_told(const StateDir& state, const JobRecord& record) {
  const Result<std::string> told = state.read(record.grants());
  return told.ok() && *told == granted_text(record);
}

// What `record` has more than `before`, which has the same tiers.
uint64_t growth(const JobRecord& before, const JobRecord& record) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < record.tiers.size(); ++i) bytes += record.tiers[i].quota - before.tiers[i].quota;
  return bytes;
}

Status resize_memory(const JobRecord& record, const TierRecord& tier) {
  const Result<Fd> jobs = open_tier_jobs(tier.path);
  if (!jobs.ok()) return jobs.error();
  return resize_tmpfs(jobs->get(), record.on_tier(), tier.quota);
}

// The space is recorded before anything is told of it. What fails is tried again: it was not told then.
void change_to(const StateDir& state, const JobRecord& planned) {
  const std::optional<LockedJob> locked = state.lock_run(planned);
  if (!locked || !is_running(locked->record.agent) || locked->record.tiers.size() != planned.tiers.size())
    return;
  JobRecord record = locked->record;
  record.tiers = planned.tiers;
  const uint64_t more = growth(locked->record, record);
  if (more == 0 && is_told(state, record)) return;
  Status s = more > 0 ? state.write_record(record) : Status();
  for (const TierRecord& t : record.tiers)
    if (s.ok() && t.kind == TierConfig::Kind::kTmpfs) s = resize_memory(record, t);
  if (s.ok()) s = tell_granted(state, record);
  if (!s.ok()) return spdlog::warn("JobId={} share of the tiers: {}", record.job.job, s.error().text);
  if (more > 0)
    spdlog::info("JobId={} node={} has {} more of the tiers: ended jobs have left it", record.job.job,
                 record.job.node, format_size(more));
}

}  // namespace

std::vector<TierConfig> discovered_tiers(const JobOnNode& job) {
  const Result<std::vector<Candidate>> found = discover({});
  if (found.ok()) return chosen(*found);
  spdlog::warn("JobId={} discovery of tiers: {}", job.job, found.error().text);
  return {};
}

std::vector<TierConfig> tiers_for(const JobOnNode& job, const Config& config) {
  const std::vector<TierConfig> wanted = config.tiers.empty() ? discovered_tiers(job) : config.tiers;
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
    if (comment_in(tier.path) != std::string::npos) {  // of the agent's configuration, where it goes
      spdlog::warn("JobId={} tier {}: the path {} has a blank before # or ;: the job goes without it",
                   job.job, tier.name, tier.path);
      continue;
    }
    const bool memory = tier.kind == TierConfig::Kind::kTmpfs;
    tier.quota = Quota{tier.quota.of(memory ? total_memory() : uint64_t{fs.f_blocks} * fs.f_frsize), -1};
    if (memory) tier.min_free = Quota{};  // nobody else is on it
    if (tiers.size() < kMaxTiers) tiers.push_back(std::move(tier));
  }
  return tiers;
}

Result<std::vector<uint64_t>> grant_shares(const StateDir& state, const NodePart& part,
                                           std::vector<TierConfig>* tiers, JobRecord* record,
                                           int patience_ms) {
  record->tiers.clear();
  record->memory = part.memory;
  for (TierConfig& tier : *tiers) {
    TierRecord t{tier.name, name_of(tier.medium), tier.path, tier.kind, 0, tier.quota.bytes};
    t.share = share_of(tier, part);
    t.to_job = tier.charge == TierConfig::Charge::kJob;
    record->tiers.push_back(std::move(t));
    tier.quota.bytes = 0;
  }
  const Result<Fd> lock = state.lock_ledger(patience_ms);
  if (!lock.ok()) {
    spdlog::warn("JobId={} begins without space on the tiers: {}", record->job.job, lock.error().text);
    MONARCH_TRY(state.write_record(*record));
    return std::vector<uint64_t>();
  }
  Ledger all = read_ledger(state);
  std::erase_if(all.jobs, [&](const JobRecord& r) { return r.job.key() == record->job.key(); });
  all.jobs.push_back(*record);  // it begins last, whatever the clock says
  std::vector<uint64_t> capacity;
  for (size_t i = 0; i < tiers->size(); ++i) {
    TierRecord& t = record->tiers[i];
    const Free free = free_of(all, t.path);
    t.quota = (*tiers)[i].quota.bytes = std::min(t.share, free.bytes);
    capacity.push_back(std::min(t.share, free.removed));
  }
  MONARCH_TRY(state.write_record(*record));
  return capacity;
}

void look_for_memory_group(JobRecord* record) {
  record->memory_group = find_memory_group(record->job.job);
  record->memory_looked = os::realtime_s();
}

Status tell_granted(const StateDir& state, const JobRecord& record) {
  return state.write(record.grants(), granted_text(record), kForAgents);
}

bool can_grant(const StateDir& state) {
  const Ledger now = read_ledger(state);
  Ledger planned = now;
  raise(&planned);
  for (size_t i = 0; i < now.jobs.size(); ++i) {
    const JobRecord& record = now.jobs[i];
    if (is_running(record.agent) &&
        (!is_told(state, record) || memory_look_is_due(record) || growth(record, planned.jobs[i]) > 0))
      return true;
  }
  return false;
}

void grant(const StateDir& state) {
  find_memory_groups(state);
  const Result<Fd> ledger = state.lock_ledger(patience::kBriefMs);
  if (!ledger.ok()) return;
  Ledger all = read_ledger(state);
  raise(&all);
  for (const JobRecord& planned : all.jobs) change_to(state, planned);
}

}  // namespace monarch
