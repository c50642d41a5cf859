// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/ledger.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "runtime/base/escape.h"
#include "runtime/base/log.h"
#include "runtime/base/memory.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/size.h"
#include "runtime/hierarchy/discovery.h"
#include "runtime/hierarchy/grant.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/node/accounting.h"
#include "runtime/node/job_dirs.h"
#include "runtime/node/memory_tier.h"
#include "runtime/node/owners_files.h"
#include "runtime/node/shares.h"

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
  const auto names = [&](const char* below) {
    Result<std::vector<std::string>> found = state.list(below);
    all.whole &= found.ok();
    return found.ok() ? found.take() : std::vector<std::string>();
  };
  for (const std::string& key : names("jobs")) add(state.read_record(key), &all.jobs);
  for (const std::string& removal : names("removing")) add(state.read_removal(removal), &all.removals);
  return all;
}

constexpr uint64_t kBlock = 4096;
constexpr mode_t kForAgents = 0644;

// How long ago the file was written; -1: it is not there.
int64_t age_ms(const StateDir& state, const std::string& below) {
  struct stat st;
  if (::stat((state.path() + "/" + below).c_str(), &st) != 0) return -1;
  const int64_t written = int64_t{st.st_mtim.tv_sec} * 1000 + st.st_mtim.tv_nsec / 1000000;
  return std::max<int64_t>(0, os::clock_ns(CLOCK_REALTIME) / 1000000 - written);
}

std::string quotas_text(const JobRecord& record) {
  std::vector<Grant> grants;
  for (const TierRecord& t : record.tiers) grants.push_back({t.name, t.told()});
  return grant_text(grants);
}

bool is_told(const StateDir& state, const JobRecord& record) {
  const Result<std::string> told = state.read(record.grants());
  return told.ok() && *told == quotas_text(record);
}

// ---- the memory of jobs that a tier is charged to

bool is_charged(const JobRecord& record) {
  return std::any_of(record.tiers.begin(), record.tiers.end(),
                     [](const TierRecord& t) { return t.room.has_value(); });
}

// In the job's directory: its control group, or an empty line; and once it was said in the log that there is
// none, a second one.
std::string memory_file(const JobOnNode& job) { return "jobs/" + job.key() + "/memory"; }

std::string memory_group(const StateDir& state, const JobRecord& record) {
  const Result<std::string> noted = state.read(memory_file(record.job));
  return noted.ok() ? noted->substr(0, noted->find('\n')) : "";
}

// Whether the job is one that begins: afterwards it is looked for seldom.
bool is_early(const StateDir& state, const JobRecord& record) {
  return age_ms(state, "jobs/" + record.job.key() + "/serves") < patience::kLookAgainSeconds * 1000;
}

bool memory_look_is_due(const StateDir& state, const JobRecord& record) {
  if (!is_charged(record) || !is_running(record.agent) || !memory_group(state, record).empty()) return false;
  const int64_t last = age_ms(state, memory_file(record.job));
  return last < 0 || last > patience::kLookAgainSeconds * 1000 || is_early(state, record);
}

// Of a job between two steps nothing is known: all stays as it is.
void follow_memory(const StateDir& state, JobRecord* record) {
  if (!is_charged(*record)) return;
  const std::string group = memory_group(state, *record);
  if (group.empty()) return;
  const Result<uint64_t> used = memory_used(group);
  if (!used.ok()) return;
  for (TierRecord& t : record->tiers)
    if (t.room)
      t.room =
          next_room(*t.room, record->memory, *used, std::min(t.limit, t.most), state.clock().now_ms() / 1000);
}

uint64_t most_of(const TierRecord& t) { return t.room ? std::min(t.most, t.room->bytes) : t.most; }

bool is_asked(const JobRecord& record) {
  return std::any_of(record.tiers.begin(), record.tiers.end(),
                     [](const TierRecord& t) { return t.asked.has_value(); });
}

// Was asked, and has not given back in time.
bool is_late(const StateDir& state, const JobRecord& record) {
  return is_asked(record) && age_ms(state, record.grants()) > patience::kLookAgainSeconds * 1000;
}

// In the job's directory; written at each look for what a late one gives back.
std::string late_file(const JobRecord& record) { return "jobs/" + record.job.key() + "/late"; }

// Whether what the job has given back is to be looked for: seldom, of who is late.
bool look_is_due(const StateDir& state, const JobRecord& record) {
  if (!is_asked(record)) return false;
  const int64_t last = age_ms(state, late_file(record));
  return !is_late(state, record) || last < 0 || last > patience::kLookAgainSeconds * 1000;
}

// What is to be charged to that file system: a tier's disk may have been replaced, and one that was away may
// be back before the removal has looked at it again.
uint64_t charged_to(const std::string& file_system, const TierRecord& t) {
  const bool is_back = t.away && is_file_system_id(file_system) && t.file_system == file_system;
  return is_back ? t.left_over() : t.charged();
}

Leftovers leftovers(const Ledger& all, const std::string& path, const std::string& file_system) {
  Leftovers left;
  for (const JobRecord& record : all.removals) {
    const bool is_stuck = record.given_up > 0 && record.away_since == 0;
    for (const TierRecord& t : record.tiers)
      if (t.path == path) (is_stuck ? left.stuck : left.coming) += charged_to(file_system, t);
  }
  return left;
}

void divide_tier(const StateDir& state, const Ledger& all, const std::string& path,
                 std::vector<JobRecord>* jobs) {
  std::vector<TierRecord*> tiers;
  std::vector<Claim> claims;
  uint64_t limit = 0;
  std::string file_system;
  for (JobRecord& record : *jobs) {
    for (TierRecord& t : record.tiers) {
      if (t.path != path) continue;
      const bool lives = record.agent.pid == 0 || is_running(record.agent);
      tiers.push_back(&t);
      claims.push_back(
          {t.quota, t.told(), t.share, t.reserved, t.equal, lives, is_late(state, record), most_of(t)});
      if (lives) limit = t.limit;  // as who began last was told it
      if (lives) file_system = t.file_system;
    }
  }
  divide(limit, leftovers(all, path, file_system), &claims);
  for (size_t i = 0; i < claims.size(); ++i) {
    if (!claims[i].lives) continue;
    tiers[i]->quota = claims[i].quota;
    tiers[i]->reserved = claims[i].reserved;
    tiers[i]->asked.reset();
    if (claims[i].told < claims[i].quota) tiers[i]->asked = claims[i].told;
  }
}

// The jobs, in the order in which they began, with what each should have and be told.
std::vector<JobRecord> divided(const StateDir& state, const Ledger& all) {
  std::vector<JobRecord> jobs = all.jobs;
  std::sort(jobs.begin(), jobs.end(),
            [](const JobRecord& a, const JobRecord& b) { return a.serial < b.serial; });
  for (JobRecord& record : jobs) follow_memory(state, &record);
  std::set<std::string> paths;
  for (const JobRecord& record : jobs)
    for (const TierRecord& t : record.tiers) paths.insert(t.path);
  for (const std::string& path : paths) divide_tier(state, all, path, &jobs);
  return jobs;
}

bool same(const JobRecord& a, const JobRecord& b) {
  return std::equal(a.tiers.begin(), a.tiers.end(), b.tiers.begin(), b.tiers.end(),
                    [](const TierRecord& x, const TierRecord& y) {
                      return x.quota == y.quota && x.reserved == y.reserved && x.asked == y.asked &&
                             x.room == y.room;
                    });
}

// A running job's record, with its lock. Who holds that starts or ends the job; what waits for it waits for
// the ledger.
struct Locked {
  Fd lock;
  JobRecord record;
};
std::optional<Locked> lock_running(const StateDir& state, const JobRecord& seen) {
  Result<Fd> lock = state.lock_job(seen.job, false, 0);
  if (!lock.ok()) return {};
  Result<JobRecord> record = state.read_record(seen.job.key());
  if (!record.ok() || record->serial != seen.serial || !is_running(record->agent)) return {};
  return Locked{lock.take(), record.take()};
}

// Looks at all processes, so the ledger must not be locked.
void find_memory_groups(const StateDir& state) {
  for (const JobRecord& record : read_ledger(state).jobs) {
    if (!memory_look_is_due(state, record)) continue;
    const std::optional<Locked> locked = lock_running(state, record);
    if (!locked) continue;
    const std::string group = find_memory_group(record.job.job);
    const Result<std::string> noted = state.read(memory_file(record.job));
    const bool said = noted.ok() && *noted == "\n\n";
    const bool say = group.empty() && !said && !is_early(state, record);
    (void)state.write(memory_file(record.job), group + (said || say ? "\n\n" : "\n")).ok();
    if (say)
      spdlog::warn(
          "JobId={} node={} goes without the tier that is charged to it: no control group of the job's "
          "counts its memory; set TaskPlugin=task/cgroup in slurm.conf and ConstrainRAMSpace=yes in "
          "cgroup.conf, or charge = node in monarch.conf",
          record.job.job, record.job.node);
  }
}

Status resize_memory(const JobRecord& record, const TierRecord& tier, uint64_t bytes) {
  const Result<Fd> jobs = open_tier_jobs(tier.path);
  if (!jobs.ok()) return jobs.error();
  const OwnersPlace place(jobs->get(), record.name);
  return resize_tmpfs(place.in(), place.name(), bytes);
}

// The space is recorded before anything is told of it. What fails is tried again: it was not told then.
void change_to(const StateDir& state, const JobRecord& planned) {
  const std::optional<Locked> locked = lock_running(state, planned);
  if (!locked || locked->record.tiers.size() != planned.tiers.size()) return;
  const JobRecord& now = locked->record;
  const bool is_new = !same(now, planned);
  if (!is_new && is_told(state, now)) return;
  JobRecord record = now;
  record.tiers = planned.tiers;
  Status s = is_new ? state.write_record(record) : Status();
  for (const TierRecord& t : record.tiers)
    if (s.ok() && t.kind == TierConfig::Kind::kTmpfs) s = resize_memory(record, t, t.quota);
  if (s.ok() && !is_told(state, record)) s = tell_quotas(state, record);
  uint64_t more = 0, back = 0, own_more = 0, own_back = 0;  // what is due to the job's own memory apart
  for (size_t i = 0; i < record.tiers.size(); ++i) {
    const TierRecord &t = record.tiers[i], &was = now.tiers[i];
    const bool grew = t.room && was.room && t.room->bytes > was.room->bytes;
    const bool is_most = t.room && t.told() == t.room->bytes;
    (grew ? own_more : more) += t.quota - was.quota;
    (is_most ? own_back : back) += was.told() - std::min(was.told(), t.told());
  }
  if (!s.ok()) return spdlog::warn("JobId={} share of the tiers: {}", record.job.job, s.error().text);
  if (more > 0)
    spdlog::info("JobId={} node={} has {} more of the tiers: other jobs gave it back", record.job.job,
                 record.job.node, format_size(more));
  if (back > 0)
    spdlog::info("JobId={} node={} is asked to give back {} of the tiers: other jobs have it reserved",
                 record.job.job, record.job.node, format_size(back));
  if (own_more > 0)
    spdlog::info("JobId={} node={} has {} more of the tiers: its own memory leaves it", record.job.job,
                 record.job.node, format_size(own_more));
  if (own_back > 0)
    spdlog::info("JobId={} node={} is asked to give back {} of the tiers: its own memory needs it",
                 record.job.job, record.job.node, format_size(own_back));
}

// ---- what is given back

struct GivenBack {
  uint64_t serial;
  GrantedBytes granted;
};

// What the agents of jobs that are asked say. Numbers of their owners': each is compared with what was asked.
// Takes a while, so the ledger must not be locked.
std::vector<GivenBack> ask_agents(const StateDir& state, int board_ms) {
  std::vector<JobRecord> asked;
  for (JobRecord& record : read_ledger(state).jobs)
    if (look_is_due(state, record) && is_running(record.agent)) asked.push_back(std::move(record));
  std::vector<GivenBack> given;
  const int64_t begin = state.clock().now_ms();
  for (size_t i = 0; i < asked.size() && state.clock().now_ms() - begin < patience::kStuckMs; ++i) {
    const JobRecord& record = asked[(i + static_cast<size_t>(begin / 1000)) % asked.size()];
    if (is_late(state, record)) {
      if (age_ms(state, late_file(record)) < 0)
        spdlog::warn("JobId={} node={} does not give back what it is asked for: other jobs go without it",
                     record.job.job, record.job.node);
      (void)state.write(late_file(record), "").ok();
    }
    GrantedBytes granted{};
    const bool told = read_as_owner(state, record, board_ms, &granted, sizeof granted, [&](int fd) {
      const Result<GrantedBytes> read = read_granted(record.run_dir);
      return read.ok() && ::write(fd, &*read, sizeof *read) == sizeof *read;
    });
    if (!told || granted.magic != kGrantedMagic) std::fill_n(granted.bytes, kMaxTiers, UINT64_MAX);
    given.push_back({record.serial, granted});
  }
  return given;
}

// With the ledger locked. What an agent said before it has seen what it is asked for may be of an earlier
// time. The kernel does not make a tmpfs smaller than what is in it.
void take_back_from(const StateDir& state, const GrantedBytes& granted, JobRecord* seen) {
  std::optional<Locked> locked = lock_running(state, *seen);
  if (!locked || age_ms(state, locked->record.grants()) < patience::kBriefMs) return;
  JobRecord& record = locked->record;
  uint64_t back = 0;
  for (size_t i = 0; i < record.tiers.size() && i < kMaxTiers; ++i) {
    TierRecord& t = record.tiers[i];
    if (!t.asked) continue;
    uint64_t now = t.quota;
    if (t.kind == TierConfig::Kind::kDirectory)
      now = granted.bytes[i];
    else if (resize_memory(record, t, *t.asked).ok())
      now = *t.asked;
    if (now < *t.asked || now >= t.quota) continue;
    back += t.quota - now;
    t.quota = now;
    if (now == *t.asked) t.asked.reset();
  }
  if (back == 0 || !state.write_record(record).ok()) return;
  ::unlink((state.path() + "/" + late_file(record)).c_str());
  spdlog::info("JobId={} node={} has given back {} of the tiers", record.job.job, record.job.node,
               format_size(back));
  *seen = record;
}

void take_back(const StateDir& state, const std::vector<GivenBack>& given, Ledger* all) {
  for (JobRecord& record : all->jobs)
    for (const GivenBack& g : given)
      if (g.serial == record.serial) take_back_from(state, g.granted, &record);
}

// Others are asked at once for what the new job has reserved; the keeper does the rest.
void ask_others(const StateDir& state, const Ledger& all, const std::vector<JobRecord>& planned,
                const JobRecord& fresh) {
  for (JobRecord job : planned) {
    const auto now = std::find_if(all.jobs.begin(), all.jobs.end(),
                                  [&](const JobRecord& r) { return r.job.key() == job.job.key(); });
    if (job.job.key() == fresh.job.key() || !is_running(job.agent)) continue;
    for (size_t i = 0; i < job.tiers.size(); ++i) {
      const TierRecord was = now->tiers[i];
      const uint64_t told = job.tiers[i].told();
      const std::optional<MemoryRoom> room = job.tiers[i].room;
      job.tiers[i] = was;
      job.tiers[i].room = room;
      if (told < was.told()) job.tiers[i].asked = told;
    }
    if (!same(*now, job)) change_to(state, job);
  }
}

MemoryRoom first_room(Clock& clock, const NodePart& part, uint64_t most) {
  if (!part.memory_used) return {};
  return next_room({}, part.memory, *part.memory_used, most, clock.now_ms() / 1000);
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

Status reserve(const StateDir& state, const NodePart& part, std::vector<TierConfig>* tiers, JobRecord* record,
               int patience_ms) {
  record->tiers.clear();
  record->memory = part.memory;
  for (const TierConfig& tier : *tiers) {
    const uint64_t limit = tier.quota.bytes;
    TierRecord t{tier.name, medium_name(tier.medium), tier.path, tier.kind, 0, limit,
                 {},        file_system_at(tier.path)};
    const double of_node = part_of(tier.share, part);
    const auto bytes = static_cast<uint64_t>(of_node * static_cast<double>(limit));
    if (tier.job_capacity.percent != 100)
      t.most = std::max(tier.job_capacity.of(limit) / kBlock, uint64_t{1}) * kBlock;
    t.share = of_node >= 1 ? limit : std::max(bytes / kBlock, uint64_t{1}) * kBlock;
    t.share = std::min(t.share, t.most);
    t.equal = tier.share == TierConfig::Share::kEqual && !has_all_cores(part);
    if (tier.charge == TierConfig::Charge::kJob)
      t.room = first_room(state.clock(), part, std::min(limit, t.most));
    record->tiers.push_back(std::move(t));
  }
  const Result<Fd> lock = state.lock_ledger(patience_ms);
  if (!lock.ok()) {
    spdlog::warn("JobId={} begins without space on the tiers: {}", record->job.job, lock.error().text);
    for (TierConfig& tier : *tiers) tier.quota.bytes = 0;
    return state.write_record(*record);
  }
  Ledger all = read_ledger(state);
  std::erase_if(all.jobs, [&](const JobRecord& r) { return r.job.key() == record->job.key(); });
  all.jobs.push_back(*record);
  std::vector<JobRecord> jobs = divided(state, all);
  for (const JobRecord& planned : jobs)
    if (planned.job.key() == record->job.key()) record->tiers = planned.tiers;
  for (size_t i = 0; i < tiers->size(); ++i) (*tiers)[i].quota.bytes = record->tiers[i].quota;
  MONARCH_TRY(state.write_record(*record));
  if (all.whole) ask_others(state, all, jobs, *record);
  return {};
}

Status note_memory_group(const StateDir& state, const JobOnNode& job, const std::string& group) {
  return state.write(memory_file(job), group + "\n");
}

Status tell_quotas(const StateDir& state, const JobRecord& record) {
  return state.write(record.grants(), quotas_text(record), kForAgents);
}

bool can_grant(const StateDir& state) {
  const Ledger all = read_ledger(state);
  const std::vector<JobRecord> planned = divided(state, all);
  return std::any_of(planned.begin(), planned.end(), [&](const JobRecord& should) {
    const auto now = std::find_if(all.jobs.begin(), all.jobs.end(),
                                  [&](const JobRecord& r) { return r.job.key() == should.job.key(); });
    return is_running(now->agent) && (!is_told(state, *now) || look_is_due(state, *now) ||
                                      memory_look_is_due(state, *now) || (all.whole && !same(*now, should)));
  });
}

void grant(const StateDir& state, int board_ms) {
  const std::vector<GivenBack> given = ask_agents(state, board_ms);
  find_memory_groups(state);
  const Result<Fd> ledger = state.lock_ledger(patience::kBriefMs);
  if (!ledger.ok()) return;
  Ledger all = read_ledger(state);
  take_back(state, given, &all);
  // Nobody knows what the job of a spoilt record has.
  for (const JobRecord& planned : all.whole ? divided(state, all) : all.jobs) change_to(state, planned);
}

}  // namespace monarch
