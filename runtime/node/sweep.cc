// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/sweep.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/remove_tree.h"
#include "runtime/node/account_for.h"
#include "runtime/node/life.h"
#include "runtime/node/memory_tier.h"
#include "runtime/node/removal.h"
#include "runtime/node/slurmstepds.h"

namespace monarch {
namespace {

constexpr int64_t kClockSlackSeconds = 60;  // of the clock, which may have been set after the boot

int64_t boot_time() {
  std::ifstream in("/proc/stat");
  for (std::string word; in >> word;) {
    int64_t seconds = 0;
    if (word == "btime" && in >> seconds) return seconds;
  }
  return 0;
}

bool before_this_boot(const struct stat& st) { return st.st_ctim.tv_sec + kClockSlackSeconds < boot_time(); }

bool is_dead(const JobRecord& record) {
  if (record.boot != boot_id()) return true;
  return !is_running(record.agent) && !has_slurmstepd(record.job.job);
}

// `text` without `first` before it and `last` behind it; "" if it does not have them.
std::string between(const std::string& text, const std::string& first, const std::string& last) {
  if (text.size() < first.size() + last.size() || !text.starts_with(first) || !text.ends_with(last))
    return "";
  return text.substr(first.size(), text.size() - first.size() - last.size());
}

// Of CLUSTER.JOB.NODE with the cluster and node of `own`, whose names may hold dots; 0 if it is no such key.
uint32_t job_of_key(const std::string& key, const JobOnNode& own) {
  const std::string middle = between(key, own.cluster + ".", "." + own.node);
  const bool number = !middle.empty() && middle.find_first_not_of("0123456789") == std::string::npos;
  return number ? static_cast<uint32_t>(std::strtoul(middle.c_str(), nullptr, 10)) : 0;
}

// A cluster's name may have numbers in it, too: any of them may be the job's.
bool may_be_of(const std::string& key, const std::vector<Slurmstepd>& all) {
  return std::any_of(all.begin(), all.end(), [&](const Slurmstepd& s) {
    return key.find("." + std::to_string(s.job) + ".") != std::string::npos;
  });
}

// A record that cannot be read: what the job has goes with what no record names, once it has ended.
void forget_spoilt(const StateDir& state, const JobOnNode& own, const std::string& key, const Fd& lock,
                   const Error& error) {
  const uint32_t job = job_of_key(key, own);
  struct stat st;
  const bool old = ::fstat(lock.get(), &st) == 0 && before_this_boot(st);
  if (!old && is_old_note(state, key)) return forget_note(state, key, lock);
  if (!old && (error.code != EINVAL || job == 0 || has_slurmstepd(job))) return;
  if (error.code == EINVAL) spdlog::warn("{}: the job's directories are removed by their names", error.text);
  (void)state.remove_job(key).ok();
}

// `until_ms`: when it is too late to account for one.
void sweep_job(const StateDir& state, const JobOnNode& own, const std::string& key, int64_t until_ms,
               std::vector<Removal>* out) {
  Fd lock = lock_if_free(state.path() + "/jobs/" + key);
  if (!lock) return;
  Result<JobRecord> record = state.read_record(key);
  if (!record.ok()) return forget_spoilt(state, own, key, lock, record.error());
  if (!is_dead(*record)) return;
  const bool counts = record->boot == boot_id();
  if (counts && state.clock().now_ms() >= until_ms) return;
  spdlog::info("JobId={} node={} swept: nothing of it runs any more", record->job.job, record->job.node);
  if (counts)
    if (const Status kept = finish(
            state, *record, account_for(state, &*record, kShortPatience, look_at_agent(state, &*record)));
        !kept.ok())
      spdlog::warn("JobId={} {}", record->job.job, kept.error().text);
  out->push_back({record.take(), std::move(lock)});
}

// What a record accounts for, by the names of its directories.
Result<std::set<std::string>> known_names(const StateDir& state) {
  std::set<std::string> known;
  const Result<std::vector<std::string>> jobs = state.list("jobs");
  if (!jobs.ok()) return jobs.error();
  for (const std::string& key : *jobs)
    if (const Result<JobRecord> r = state.read_record(key); r.ok()) known.insert(r->removal());
  const Result<std::vector<std::string>> removals = state.list("removing");
  if (!removals.ok()) return removals.error();
  for (const std::string& name : *removals) {
    const Result<JobRecord> r = state.read_removal(name);
    if (r.ok() || r.error().code != EINVAL) known.insert(name);
  }
  return known;
}

// Whose directories are looked for. A tier's file system may be shared by nodes and clusters, by intent or
// not: those of one cluster's node, whose names may hold dots; or, at boot and on file systems that no other
// machine has, those of all that were made before.
struct Wanted {
  const JobOnNode* own;  // nullptr: of earlier boots
  uint32_t ended = 0;    // a job that is over, though a process of Slurm's may be there still
};

// Of a text that begins with JOB.RESTART: the job, and the rest; 0: it does not.
uint32_t job_at(const char* text, const char** rest) {
  char digits[11];
  int length = 0;
  if (std::sscanf(text, "%10[0-9].%*[0-9]%n", digits, &length) != 1 || length == 0 || digits[0] == '0')
    return 0;
  *rest = text + length;
  return static_cast<uint32_t>(std::strtoul(digits, nullptr, 10));
}

// CLUSTER.JOB.RESTART.NODE: whose it is; job 0 if it is no such name, or not wanted.
JobOnNode job_of(const std::string& name, const Wanted& wanted) {
  const char* rest = "";
  if (wanted.own) {
    const std::string middle = between(name, wanted.own->cluster + ".", "." + wanted.own->node);
    const uint32_t job = job_at(middle.c_str(), &rest);
    return {*rest == '\0' ? job : 0, wanted.own->node, wanted.own->cluster};
  }
  for (size_t dot = name.find('.', 1); dot != std::string::npos; dot = name.find('.', dot + 1))
    if (const uint32_t job = job_at(name.c_str() + dot + 1, &rest);
        job != 0 && rest[0] == '.' && rest[1] != '\0')
      return {job, rest + 1, name.substr(0, dot)};
  return {};
}

// Of NAME.SERIAL; 0: it is none.
std::pair<std::string, uint64_t> parts_of(const std::string& removal) {
  const size_t dot = std::min(removal.rfind('.'), removal.size());
  const std::string digits = dot < removal.size() ? removal.substr(dot + 1) : "";
  const uint64_t serial = std::strtoull(digits.c_str(), nullptr, 10);
  if (std::to_string(serial) != digits) return {"", 0};
  return {removal.substr(0, dot), serial};
}

// The record that a directory of this name would have, if such a job has, or had, it. Job 0: it is no such
// name.
JobRecord named(const std::string& name, const Wanted& wanted) {
  constexpr uint64_t kLeastSerial = 1'000'000'000'000'000'000;  // of the year 2001: a node is not called so
  JobRecord record;
  std::tie(record.name, record.serial) = parts_of(name);
  record.layout = 2;
  if (record.serial >= kLeastSerial && is_plain_name(record.name)) record.job = job_of(record.name, wanted);
  return record;
}

// A directory that no record names may be in one place, or on several tiers.
using Unrecorded = std::map<std::string, JobRecord>;

// What it can have of the file system at most, until it is measured.
uint64_t used_at_most(int directory) {
  struct statfs fs {};
  (void)os::fstatfs(directory, &fs);
  return (fs.f_blocks - fs.f_bfree) * static_cast<uint64_t>(fs.f_bsize);
}

void add_unrecorded(const StateDir& state, const Wanted& wanted, int jobs, const std::string& tier,
                    const std::string& name, Unrecorded* found) {
  constexpr int kLook = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  JobRecord record = named(name, wanted);
  const Fd dir(os::openat(jobs, name.c_str(), kLook));
  // What something else is mounted on is not asked whose it is.
  const bool memory = dir && os::mount_id(dir.get()) != os::mount_id(jobs);
  struct stat st;
  if (!dir || (memory && !is_of_job_tmpfs(dir.get())) || os::fstat(dir.get(), &st) != 0) return;
  if (!wanted.own && !before_this_boot(st)) return;
  if (found->count(name) == 0) {
    record.boot = boot_id();
    record.run_dir = state.path() + "/run/" + name;
    (*found)[name] = std::move(record);
  }
  if (tier.empty()) return;
  TierRecord t;
  t.path = tier;
  t.kind = memory ? TierConfig::Kind::kTmpfs : TierConfig::Kind::kDirectory;
  t.quota = used_at_most(memory ? dir.get() : jobs);
  (*found)[name].tiers.push_back(std::move(t));
}

std::vector<std::string> names_in(int directory, const Wanted& wanted) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(os::fdopendir(::dup(directory)), &::closedir);
  while (const dirent* e = dir ? os::readdir(dir.get()) : nullptr)
    if (named(e->d_name, wanted).job.job != 0) names.push_back(e->d_name);
  return names;
}

// The directories of all jobs, as names and descriptors: run/ (""), and one on each tier.
std::vector<std::pair<std::string, Fd>> all_places(const StateDir& state,
                                                   const std::vector<std::string>& tiers) {
  std::vector<std::pair<std::string, Fd>> places;
  const std::string runs = state.path() + "/run";
  places.emplace_back("", Fd(::open(runs.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  for (const std::string& tier : tiers)
    if (Result<Fd> jobs = open_tier_jobs(tier); jobs.ok()) places.emplace_back(tier, jobs.take());
  return places;
}

// What lies there without a record may be a job's that runs: Slurm says so, or an agent in the group of
// another state directory, such as the one that was there before.
bool has_live_job(const StateDir& state, const JobRecord& record) {
  const Cgroups groups;
  const std::vector<std::string> all = groups.names("");
  const auto is_its = [&](const std::string& group) {
    const size_t serial = group.rfind('.');
    return serial != std::string::npos && group.substr(0, serial).ends_with("." + record.name) &&
           !group.starts_with(state.cgroup_prefix()) && !groups.processes(group).empty();
  };
  return std::any_of(all.begin(), all.end(), is_its) || has_slurmstepd(record.job.job);
}

std::vector<Removal> take(const StateDir& state, const Wanted& wanted,
                          const std::vector<std::string>& tiers) {
  const std::vector<std::pair<std::string, Fd>> places = all_places(state, tiers);
  std::vector<std::vector<std::string>> names;
  bool any = false;
  for (const auto& [tier, jobs] : places) {
    names.push_back(jobs ? names_in(jobs.get(), wanted) : std::vector<std::string>());
    any |= !names.back().empty();
  }
  std::vector<Removal> taken;
  if (!any) return taken;
  // Read after the names: a record is there before the directories. Two that look at the same time would both
  // find them.
  const Result<Fd> lock = state.lock_ledger(patience::kBriefMs);
  if (!lock.ok()) return taken;
  const Result<std::set<std::string>> known = known_names(state);
  if (!known.ok()) return taken;
  Unrecorded found;
  for (size_t i = 0; i < places.size(); ++i)
    for (const std::string& name : names[i])
      if (known->count(name) == 0)
        add_unrecorded(state, wanted, places[i].second.get(), places[i].first, name, &found);
  std::string all;
  for (auto& [name, record] : found) {
    if (record.job.job != wanted.ended && has_live_job(state, record)) continue;
    Result<Fd> held = state.make_removal(record);
    if (held.ok()) {
      all += (all.empty() ? "" : ", ") + name;
      taken.push_back({std::move(record), held.take()});
    } else {
      spdlog::warn("{}: {}", name, held.error().text);
    }
  }
  if (!all.empty())
    spdlog::warn("{} have no record any more: what they occupy counts until it is removed", all);
  return taken;
}

}  // namespace

std::vector<Removal> take_unrecorded(const StateDir& state, const JobOnNode& own,
                                     const std::vector<std::string>& tiers, uint32_t ended) {
  return take(state, {&own, ended}, tiers);
}

std::vector<Removal> take_of_earlier_boots(const StateDir& state, const std::vector<std::string>& tiers) {
  return take(state, {nullptr}, tiers);
}

bool is_old_note(const StateDir& state, const std::string& key) {
  const std::string dir = state.path() + "/jobs/" + key;
  const Result<JobRecord> record = state.read_record(key);
  struct stat st;
  if (record.ok() || record.error().code != ENOENT || ::stat(dir.c_str(), &st) != 0) return false;
  std::error_code unread;
  if (std::filesystem::is_empty(dir, unread)) return true;
  const bool fails = !state.read_notes(key).failure.run.empty();
  return st.st_mtim.tv_sec + (fails ? patience::kFailedSeconds : patience::kLongestRetrySeconds) <
         ::time(nullptr);
}

void forget_note(const StateDir& state, const std::string& key, const Fd& lock) {
  if (::rmdir((state.path() + "/jobs/" + key).c_str()) == 0) return;
  const Result<std::vector<Slurmstepd>> all = slurmstepds();
  if (!all.ok()) return;
  if (may_be_of(key, *all))
    ::futimens(lock.get(), nullptr);
  else if (is_old_note(state, key))
    (void)state.remove_job(key).ok();
}

std::vector<std::string> dead_jobs(const StateDir& state) {
  std::vector<std::string> dead;
  for (const std::string& key : state.jobs()) {
    const Fd lock = lock_if_free(state.path() + "/jobs/" + key);
    const Result<JobRecord> record = lock ? state.read_record(key) : Result<JobRecord>(Error{EAGAIN, ""});
    const auto is_over = [&] {
      const Result<std::vector<Slurmstepd>> all = slurmstepds();
      return all.ok() && !may_be_of(key, *all);
    };
    if (record.ok() ? is_dead(*record) : lock && is_old_note(state, key) && is_over()) dead.push_back(key);
  }
  return dead;
}

void sweep(const StateDir& state, const JobOnNode& own) {
  state.forget_rests();
  std::vector<Removal> removals = unattended_removals(state), dead;
  const int64_t until_ms = state.clock().now_ms() + patience::kLeastMs;
  for (const std::string& key : state.jobs())
    if (key != own.key()) sweep_job(state, own, key, until_ms, &dead);
  std::vector<Removal> aside = set_aside(state, std::move(dead));
  std::move(aside.begin(), aside.end(), std::back_inserter(removals));
  sweep_cgroups(state);
  remove_in_background(state, std::move(removals), 0);
}

}  // namespace monarch
