// SPDX-License-Identifier: Apache-2.0
#include "admin/jobs.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>

#include "admin/output.h"
#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/config/values.h"
#include "runtime/hierarchy/tier.h"
#include "runtime/layout/shared_map.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/run_file.h"
#include "runtime/node/identity.h"
#include "runtime/node/job_facts.h"
#include "runtime/node/life.h"
#include "runtime/node/owners_files.h"
#include "runtime/node/removal.h"
#include "runtime/node/state.h"

namespace monarch::admin {

namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int kReadPatienceMs = 1000;
constexpr size_t kMostChildren = 64;  // at a time
constexpr size_t kMostRuns = 64;      // of a user: anybody can make directories that look like theirs
constexpr int64_t kLeftAloneNs = 30 * kSecondNs;
constexpr useconds_t kBetweenLooksUs = 1000000;

// monarch-run.UID.PID.RANDOM
bool name_run(const std::string& name, Job* job) {
  const std::string prefix = kUserDirPrefix;
  if (name.rfind(prefix, 0) != 0) return false;
  const std::vector<std::string> parts = split_list(name.substr(prefix.size()), '.');
  if (parts.size() != 3 || !is_number(parts[0]) || !is_number(parts[1])) return false;
  job->id = "run." + parts[1];
  return true;
}

// Takes cluster, id, and node from CLUSTER.JOB.NODE, or with a number before the node if `restart` is not
// nullptr.
bool name_parts(const std::string& name, uint32_t* restart, Job* job) {
  for (size_t at = name.find('.', 1); at != std::string::npos; at = name.find('.', at + 1)) {
    const char* const rest = name.c_str() + at;
    uint32_t id;
    int end = 0;  // of what is before the node
    (void)(restart ? std::sscanf(rest, ".%u.%u.%n", &id, restart, &end)
                   : std::sscanf(rest, ".%u.%n", &id, &end));
    if (end == 0) continue;
    job->id = std::to_string(id);
    job->cluster = name.substr(0, at);
    job->node = name.substr(at + static_cast<size_t>(end));
    return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error))
    if (const std::string name = at->path().filename(); !name.starts_with('.')) names.insert(name);
  return {names.begin(), names.end()};
}

bool name_slurm(const std::string& name, Job* job) { return name_parts(name, &job->restart, job); }

namespace {

// Whether it is the caller's; an agent's directory in /proc is root's, since its owner may not trace it.
bool is_callers(const std::string& pid) {
  std::ifstream in("/proc/" + pid + "/status");
  for (std::string word; in >> word;)
    if (uid_t uid = 0; word == "Uid:" && in >> uid) return uid == ::geteuid();
  return false;
}

// Directories that may be a run directory of the caller's: of monarchd's command lines, and of the
// environment of the caller's processes.
std::set<std::string> told_by_processes() {
  std::set<std::string> found;
  const std::string variable = "MONARCH_IO_RUN_DIR=";
  for (const std::string& pid : names_in("/proc")) {
    if (!is_number(pid) || !is_callers(pid)) continue;  // what others name may hang
    const auto words_of = [&](const char* file) {
      std::ifstream in("/proc/" + pid + "/" + file, std::ios::binary);
      return split_list(std::string(std::istreambuf_iterator<char>(in), {}), '\0');
    };
    const std::vector<std::string> words = words_of("cmdline");
    const bool is_agent = !words.empty() && ("/" + words[0]).ends_with("/monarchd");
    for (size_t i = 0; is_agent && i + 1 < words.size(); ++i)
      if (words[i] == "--run-dir") found.insert(words[i + 1]);
    for (const std::string& word : words_of("environ"))
      if (word.rfind(variable, 0) == 0) found.insert(word.substr(variable.size()));
  }
  return found;
}

// The directories of `monarchctl run`, by whomever. A base that has two names is looked into once.
std::set<std::string> run_directories() {
  std::set<std::string> found;
  std::set<std::pair<dev_t, ino_t>> bases;
  for (const std::string& base : run_bases()) {
    struct stat st;
    if (::stat(base.c_str(), &st) != 0 || !bases.emplace(st.st_dev, st.st_ino).second) continue;
    for (const std::string& name : names_in(base))
      if (name.rfind(kUserDirPrefix, 0) == 0) found.insert(base + "/" + name);
  }
  return found;
}

// Of a job of Slurm's, NAME.SERIAL, the NAME.
std::string without_serial(const std::string& name) {
  constexpr size_t kDigits = 19;
  const size_t dot = std::min(name.rfind('.'), name.size());
  return name.size() - dot == kDigits + 1 && is_number(name.substr(dot + 1)) ? name.substr(0, dot) : name;
}

// As the caller, who trusts what is the caller's alone.
std::optional<Job> own_job(const std::string& run_dir) {
  if (run_dir.empty() || run_dir[0] != '/') return {};
  Job job;
  RunDirectory dir{run_dir.c_str()};
  int fd = -1;
  if (!open_run_dir(run_dir).ok()) return {};  // another user's may be one that hangs
  const std::string name = without_serial(run_dir.substr(run_dir.rfind('/') + 1));
  if ((!name_run(name, &job) && !name_slurm(name, &job)) ||
      open_run_directory(&dir, &fd) != RunDirectoryIs::kOwn)
    return {};
  ::close(fd);
  job.run_dir = run_dir;
  job.uid = ::geteuid();
  job.gid = ::getegid();
  return job;
}

std::vector<Job> own_jobs() {
  std::set<std::string> directories = told_by_processes();
  directories.merge(run_directories());
  std::vector<Job> jobs;
  for (const std::string& directory : directories)
    if (std::optional<Job> job = own_job(directory)) jobs.push_back(std::move(*job));
  return jobs;
}

Job job_of(const JobRecord& record) {
  Job job;
  job.id = std::to_string(record.job.job);
  job.cluster = record.job.cluster;
  job.node = record.job.node;
  job.uid = record.user.uid;
  job.gid = record.user.gid;
  job.nodes = record.nodes;
  job.restart = record.restart;
  job.run_dir = record.run_dir;
  job.key = record.job.key();
  return job;
}

// CLUSTER.JOB.NODE, of which there is no record; the name of the node may have dots.
Job job_of_key(const StateDir& state, const std::string& key) {
  Job job;
  if (!name_parts(key, nullptr, &job)) job.id = key;
  const NotedFailure failure = state.read_notes(key).failure;
  job.state = failure.run.empty() ? JobState::kPending
              : failure.refused   ? JobState::kRefused
                                  : JobState::kFailed;
  job.reason = failure.reason;
  return job;
}

// What is read as another user, which `own` is not. What somebody has mounted there is not asked, not even
// whose it is.
std::vector<Job> jobs_of_users() {
  std::vector<Job> jobs;
  std::map<uid_t, size_t> of_user;
  for (const std::string& directory : run_directories()) {
    Job job;
    struct stat st;
    if (!name_run(directory.substr(directory.rfind('/') + 1), &job)) continue;
    const Result<Fd> dir = open_run_dir(directory);
    if (!dir.ok() || ::fstat(dir->get(), &st) != 0 || ++of_user[st.st_uid] > kMostRuns) continue;
    job.run_dir = directory;
    job.uid = st.st_uid;
    job.gid = st.st_gid;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Result<std::vector<Job>> all_jobs(const std::string& state_dir) {
  std::vector<Job> jobs = jobs_of_users();
  if (::access((state_dir + "/jobs").c_str(), F_OK) != 0) return jobs;
  const Result<StateDir> state = StateDir::open(state_dir);
  if (!state.ok()) return with_remedy_if_none(state.error(), "see 'monarchctl doctor'");
  for (const std::string& key : state->jobs()) {
    const Result<JobRecord> record = state->read_record(key);
    jobs.push_back(record.ok() ? job_of(*record) : job_of_key(*state, key));
    if (!record.ok() && record.error().code != ENOENT) {
      jobs.back().state = JobState::kUnknown;
      jobs.back().reason = record.error().text;
    }
  }
  for (const std::string& removal : state->removals()) {
    const Result<JobRecord> record = state->read_removal(removal);
    if (!record.ok()) continue;
    jobs.push_back(job_of(*record));
    uint64_t charged = 0;
    for (const TierRecord& tier : record->tiers) charged += tier.charged();
    jobs.back().run_dir.clear();
    jobs.back().state = JobState::kTeardown;
    jobs.back().reason = "its copies are being removed";
    if (record->given_up > kTriesUntilNamed)
      jobs.back().reason = "its remains cannot be removed yet (tried " + counted(record->given_up, "time") +
                           ", charged with " + counted(charged, "byte") + "); see the log of root's helpers";
  }
  return jobs;
}

bool is_hanging(const StateDir& state, const std::string& key) {
  const Result<JobRecord> record = state.read_record(key);
  return record.ok() && hangs(*record);
}

constexpr char kHangs[] = "its owner's files cannot be read in a second";

// Root as the owner. What a child of the owner's hands on is believed only as far as plausible() goes.
class Look {
 public:
  explicit Look(Job* job) : job_(job) {
    if (::geteuid() != 0 || job->uid == 0) return;
    child_.emplace(User{job->uid, job->gid, {}}, [job](int fd) {
      const Result<JobStatus> read = read_status(job->run_dir);
      const Told tell{read.ok() ? 0 : read.error().code, read.ok() ? *read : JobStatus{}};
      return ::write(fd, &tell, sizeof tell) == sizeof tell;
    });
  }
  // False: it hangs.
  bool finish(int64_t until_ms) {
    const Result<JobStatus> read = child_ ? told(until_ms) : read_status(job_->run_dir);
    if (read.ok() && plausible(*read)) {
      job_->status = *read;
      return true;
    }
    job_->reason = read.ok() ? "the numbers in its owner's files are none of an agent's" : read.error().text;
    const bool none = !read.ok() && read.error().code == ENOENT;
    job_->state = none ? JobState::kAllocating : JobState::kUnknown;
    return job_->reason != kHangs;
  }
  pid_t left_behind() const { return child_ ? child_->left_behind() : -1; }

 private:
  struct Told {
    int64_t error;
    JobStatus status;
  };
  Result<JobStatus> told(int64_t until_ms) {
    Told told{};
    if (!child_->fill(until_ms, &told, sizeof told, system_clock())) return Error{EIO, kHangs};
    if (told.error == 0) return told.status;
    if (told.error == EXDEV) return Error{EXDEV, "its owner has mounted a file system on its files"};
    return errno_error("read " + job_->run_dir + "/board",
                       told.error > 0 && told.error < 4096 ? static_cast<int>(told.error) : EIO);
  }

  Job* const job_;
  std::optional<Child> child_;
};

uint64_t copied(const JobStatus& status) {
  return status.counters[AgentCounter::agent_bytes_pfs] + status.counters[AgentCounter::peer_bytes];
}

JobState state_of(const JobStatus& status, bool moved) {
  if (!status.alive) return status.closed ? JobState::kTeardown : JobState::kAgentDied;
  if (moved) return JobState::kStagingIn;
  if (status.walked &&
      settled_files(own_counts(status.counters)) >= status.counters[AgentCounter::walk_files])
    return JobState::kStagedIn;
  return JobState::kRunning;
}

// In a place of run directories, a tier of `monarchctl run` has a directory of the same UID and PID, without
// a board. One that is alone may be of a run that begins.
void drop_tiers(std::vector<Job>* jobs) {
  for (size_t i = jobs->size(); i-- > 0;) {
    const Job& job = (*jobs)[i];
    if (job.state != JobState::kAllocating || !is_run(job.id)) continue;
    const auto of_it = std::count_if(jobs->begin(), jobs->end(), [&](const Job& other) {
      return other.id == job.id && other.uid == job.uid;
    });
    if (of_it > 1) jobs->erase(jobs->begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace

const StateLooks& looks_of(JobState state) {
  static constexpr StateLooks kStates[] = {
      {"pending", Colour::kDoubtful}, {"allocating", Colour::kDoubtful}, {"staging-in", Colour::kDoubtful},
      {"staged-in", Colour::kGood},   {"running", Colour::kGood},        {"teardown", Colour::kDoubtful},
      {"failed", Colour::kBad},       {"refused", Colour::kDoubtful},    {"agent-died", Colour::kBad},
      {"unknown", Colour::kBad}};
  return kStates[static_cast<size_t>(state)];
}

void JobWatch::look_at(std::vector<Job>* jobs) {
  const int64_t now = os::clock_ns(CLOCK_MONOTONIC);
  const bool noted = std::any_of(jobs->begin(), jobs->end(), [](const Job& job) { return !job.key.empty(); });
  const Result<StateDir> state =
      noted ? StateDir::open(state_dir_) : Result<StateDir>(Error{ENOENT, state_dir_ + ": no job's"});
  std::vector<Job*> wanted;
  for (Job& job : *jobs) {
    if (job.run_dir.empty()) continue;
    const auto alone = left_alone_ns_.find(job.run_dir);
    if ((alone != left_alone_ns_.end() && alone->second > now) ||
        (state.ok() && !job.key.empty() && is_hanging(*state, job.key)))
      job.reason = kHangs;  // and is kUnknown
    else
      wanted.push_back(&job);
  }
  for (size_t begin = 0; begin < wanted.size(); begin += kMostChildren) {
    const size_t end = std::min(begin + kMostChildren, wanted.size());
    const int64_t until_ms = os::monotonic_ms() + kReadPatienceMs;
    std::vector<Look> looks;
    looks.reserve(end - begin);
    for (size_t i = begin; i < end; ++i) looks.emplace_back(wanted[i]);
    for (size_t i = begin; i < end; ++i) {
      Look& look = looks[i - begin];
      if (!look.finish(until_ms)) left_alone_ns_[wanted[i]->run_dir] = now + kLeftAloneNs;
      if (state.ok() && !wanted[i]->key.empty() && look.left_behind() > 0)
        if (Result<JobRecord> record = state->read_record(wanted[i]->key); record.ok())
          note_hanging_reader(*state, &*record, look.left_behind());
    }
  }
}

Result<std::vector<Job>> JobWatch::look() {
  Result<std::vector<Job>> found = ::geteuid() == 0 ? all_jobs(state_dir_) : own_jobs();
  if (!found.ok()) return found.error();
  std::vector<Job> jobs = found.take();
  look_at(&jobs);
  const int64_t now = os::clock_ns(CLOCK_MONOTONIC);
  std::map<std::string, Seen> seen;
  for (Job& job : jobs) {
    const auto before = seen_.find(job.run_dir);
    const bool known = !job.run_dir.empty() && before != seen_.end();
    if (known && job.state == JobState::kAllocating) {  // it has no board any more
      job.state = JobState::kTeardown;
      job.reason = "it ended just now";
    }
    if (!job.status) continue;
    seen[job.run_dir] = {*job.status, now};
    const uint64_t copies = copied(*job.status), then = known ? copied(before->second.status) : copies;
    const int64_t ns = known ? std::max(now - before->second.ns, int64_t{1}) : 0;
    if (known && job.status->alive)
      job.bytes_per_second = static_cast<uint64_t>(static_cast<double>(copies - std::min(then, copies)) *
                                                   kSecondNs / static_cast<double>(ns));
    job.state = state_of(*job.status,
                         known && (copies > then || job.status->progress != before->second.status.progress));
  }
  drop_tiers(&jobs);
  seen_ = std::move(seen);
  std::erase_if(left_alone_ns_, [&](const auto& one) { return one.second <= now; });
  return jobs;
}

bool may_copy(const std::vector<Job>& jobs) {
  return std::any_of(jobs.begin(), jobs.end(),
                     [](const Job& job) { return job.status && job.status->alive; });
}

Result<std::vector<Job>> find_jobs(const std::string& state_dir) {
  JobWatch watch(state_dir);
  Result<std::vector<Job>> jobs = watch.look();
  if (!jobs.ok() || !may_copy(*jobs)) return jobs;
  ::usleep(kBetweenLooksUs);
  return watch.look();
}

JobRecord owners_part(const Job& job) {
  JobRecord record;
  record.user = {job.uid, job.gid, {}};
  record.run_dir = job.run_dir;
  return record;
}

std::vector<NodeLine> nodes_of(const Job& job) {
  if (!job.status || job.status->counters.nodes <= 1) return {};
  std::unique_ptr<NodesTold> told;
  if (::geteuid() != 0 || job.uid == 0) {
    if (Result<std::unique_ptr<NodesTold>> read = read_nodes_told(job.run_dir); read.ok()) told = read.take();
  } else {
    JobRecord record = owners_part(job);
    told = read_nodes_told_as(nullptr, &record, kReadPatienceMs);
  }
  return told ? node_lines(*told, own_counts(job.status->counters)) : std::vector<NodeLine>();
}

bool is_named(const Job& job, const std::string& name) {
  const size_t at = name.find('@');
  return job.id == name.substr(0, at) && (at == std::string::npos || job.cluster == name.substr(at + 1));
}

std::string name_of(const Job& job, const std::vector<Job>& jobs) {
  const bool is_only = std::none_of(jobs.begin(), jobs.end(), [&](const Job& other) {
    return other.id == job.id && other.cluster != job.cluster;
  });
  return is_only ? job.id : job.id + "@" + job.cluster;
}

std::optional<double> percent(uint64_t part, const std::optional<uint64_t>& whole) {
  if (!whole || *whole == 0) return {};
  return 100.0 * static_cast<double>(std::min(part, *whole)) / static_cast<double>(*whole);
}

Progress progress_of(const Job& job) {
  Progress p;
  if (!job.status) return p;
  uint64_t placed = 0;
  for (const uint64_t bytes : job.status->counters.placed_bytes) placed += bytes;
  const Staged staged = staged_of(own_counts(job.status->counters), placed);
  static_cast<Staged&>(p) = job.status->walked ? staged : Staged{staged.files, staged.bytes, {}, {}};
  if (job.state == JobState::kStagingIn && p.all_bytes && job.bytes_per_second.value_or(0) > 0)
    p.eta_seconds = (*p.all_bytes - p.bytes + *job.bytes_per_second - 1) / *job.bytes_per_second;
  return p;
}

std::vector<std::string> run_bases() {
  std::vector<std::string> bases = {"/dev/shm", "/tmp"};
  const char* dir = ::getenv("TMPDIR");
  if (dir && *dir && dir != bases[0] && dir != bases[1]) bases.push_back(dir);
  return bases;
}

std::string user_name(uid_t uid) {
  const passwd* entry = ::getpwuid(uid);
  return entry ? entry->pw_name : std::to_string(uid);
}

}  // namespace monarch::admin
