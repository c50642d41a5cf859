// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/sweep.h"

#include <dirent.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <set>

#include "runtime/base/os.h"
#include "runtime/base/remove_tree.h"
#include "runtime/node/life.h"
#include "runtime/node/mounts.h"
#include "runtime/node/removal.h"
#include "runtime/node/slurmstepds.h"

namespace monarch {
namespace {

constexpr int64_t kClockSlackSeconds = 60;  // of the clock, which may have been set after the boot
constexpr char kAside[] = ".removed.";

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

void sweep_job(const StateDir& state, const std::string& key, std::vector<Removal>* out) {
  const std::string dir = state.path() + "/jobs/" + key;
  Fd lock = lock_if_free(dir);
  if (!lock) return;
  Result<JobRecord> record = state.read_record(key);
  if (!record.ok()) {
    struct stat st;  // noted by the prolog, and nothing more
    if (::fstat(lock.get(), &st) == 0 && before_this_boot(st)) (void)remove_tree(AT_FDCWD, dir).ok();
    return;
  }
  if (!is_dead(*record)) return;
  spdlog::info("JobId={} node={} swept: nothing of it runs any more", record->job.job, record->job.node);
  out->push_back({record.take(), std::move(lock)});
}

// What a record accounts for, by its name on a tier.
std::set<std::string> known_names(const StateDir& state) {
  std::set<std::string> known;
  for (const std::string& key : state.jobs())
    if (const Result<JobRecord> r = state.read_record(key); r.ok()) known.insert({r->name, r->aside()});
  for (const std::string& name : state.removals()) known.insert(kAside + name);
  return known;
}

// `text` without `first` before it and `last` behind it; "" if it does not have them.
std::string between(const std::string& text, const std::string& first, const std::string& last) {
  if (text.size() < first.size() + last.size() || !text.starts_with(first) || !text.ends_with(last))
    return "";
  return text.substr(first.size(), text.size() - first.size() - last.size());
}

// CLUSTER.JOB.RESTART.NODE of this cluster and node, which may hold dots: the job; 0 if it is no such name. A
// tier's file system may be shared by nodes and clusters, by intent or not.
uint32_t job_of(const std::string& name, const JobOnNode& own) {
  static const std::regex kMiddle(R"(([1-9][0-9]{0,9})\.[0-9]+)");
  const std::string middle = between(name, own.cluster + ".", "." + own.node);
  std::smatch parts;
  return std::regex_match(middle, parts, kMiddle)
             ? static_cast<uint32_t>(std::strtoul(parts[1].str().c_str(), nullptr, 10))
             : 0;
}

bool is_orphan(int jobs, const std::string& name, const JobOnNode& own, const std::set<std::string>& known) {
  if (known.count(name)) return false;
  if (name.starts_with(kAside)) {
    const std::string removal = name.substr(sizeof kAside - 1);  // NAME.SERIAL
    const size_t serial = removal.rfind('.');
    return serial != std::string::npos &&
           removal.find_first_not_of("0123456789", serial + 1) == std::string::npos &&
           job_of(removal.substr(0, serial), own) != 0;
  }
  const uint32_t job = is_plain_name(name) ? job_of(name, own) : 0;
  if (job == 0) return false;
  // What a user mounted there, of this boot therefore, may hang.
  const Fd dir(os::openat(jobs, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st;
  if (!dir || os::mount_id(dir.get()) != os::mount_id(jobs) || os::fstat(dir.get(), &st) != 0) return false;
  return before_this_boot(st) && !has_slurmstepd(job);
}

// The state directory is often lost with the memory that it is in, and the tiers are not.
std::vector<std::string> orphans(const std::string& tier, const JobOnNode& own,
                                 const std::set<std::string>& known) {
  std::vector<std::string> found;
  const Result<Fd> jobs = open_tier_jobs(tier);
  if (!jobs.ok()) return found;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(::dup(jobs->get())), &::closedir);
  while (const dirent* e = dir ? ::readdir(dir.get()) : nullptr) {
    const std::string name = e->d_name;
    if (name != "." && name != ".." && is_orphan(jobs->get(), name, own, known)) found.push_back(name);
  }
  return found;
}

// The record that such a directory would have, with the user whose it is. Nobody knows its quota: it is
// charged by what is left of it, if anything is.
Result<JobRecord> record_of(const StateDir& state, int jobs, const std::string& tier, const JobOnNode& own,
                            const std::string& name) {
  const Fd dir(os::openat(jobs, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st {};
  if (!dir) return errno_error("open " + name);
  JobRecord record;
  record.serial = static_cast<uint64_t>(os::clock_ns(CLOCK_REALTIME));
  record.name = name;
  if (name.rfind(kAside, 0) == 0) {
    const size_t dot = name.rfind('.');
    record.name = name.substr(sizeof kAside - 1, dot - (sizeof kAside - 1));
    record.serial = std::strtoull(name.c_str() + dot + 1, nullptr, 10);
    if (record.aside() != name) return Error{EINVAL, tier + "/monarch/" + name + ": not a name of ours"};
  }
  // Whose it is, unless something is mounted there that could not be detached: that is not asked.
  if ((os::mount_id(dir.get()) == os::mount_id(jobs) || is_of_job_tmpfs(dir.get())) &&
      os::fstat(dir.get(), &st) != 0)
    return errno_error(name);
  record.job = {job_of(record.name, own), own.node, own.cluster};
  record.user.uid = st.st_uid;
  record.user.gid = st.st_gid;
  record.boot = boot_id();
  record.run_dir = state.run_dir(record.name);  // which it had
  record.tiers.emplace_back().path = tier;
  return record;
}

void take_orphans(const StateDir& state, const std::string& tier, const JobOnNode& own,
                  const std::vector<std::string>& names, std::vector<Removal>* out) {
  const Result<Fd> jobs = names.empty() ? Result<Fd>(Fd()) : open_tier_jobs(tier);
  if (names.empty() || !jobs.ok()) return;
  spdlog::info("tier {}: {} left over directories are removed", tier, names.size());
  for (const std::string& name : names) {
    detach_mounts(jobs->get(), name, kUnknownOwner, Detach::kUsers);
    Result<JobRecord> record = record_of(state, jobs->get(), tier, own, name);
    Result<Fd> lock = record.ok() ? state.make_removal(*record) : Result<Fd>(record.error());
    if (lock.ok() && name != record->aside())
      if (const Status aside = rename_aside(jobs->get(), *record); !aside.ok()) lock = aside.error();
    if (lock.ok()) {
      out->push_back({record.take(), lock.take()});
    } else if (lock.error().code != ENOENT && lock.error().code != EEXIST) {
      spdlog::warn("tier {}: {}", tier, lock.error().text);
    }
  }
}

}  // namespace

void sweep(const StateDir& state, const JobOnNode& own, const std::vector<std::string>& tiers) {
  std::vector<Removal> removals = unattended_removals(state), dead;
  for (const std::string& key : state.jobs())
    if (key != own.key()) sweep_job(state, key, &dead);
  std::vector<Removal> aside = set_aside(state, std::move(dead));
  std::move(aside.begin(), aside.end(), std::back_inserter(removals));
  sweep_cgroups(state);
  if (removals.empty() && tiers.empty()) return;
  find_and_remove(state, std::move(removals), [&](std::vector<Removal>* found) {
    const std::set<std::string> known = known_names(state);
    for (const std::string& tier : tiers) take_orphans(state, tier, own, orphans(tier, own, known), found);
  });
}

}  // namespace monarch
