// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/removal.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

#include "runtime/base/argv.h"
#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/remove_tree.h"
#include "runtime/node/await.h"
#include "runtime/node/life.h"
#include "runtime/node/memory_tier.h"
#include "runtime/node/probe.h"

namespace monarch {
namespace {

// Where a job has its directories: on its tiers, and behind the last one run/.
std::string place_path(const StateDir& state, const JobRecord& record, size_t place) {
  return place < record.tiers.size() ? record.tiers[place].path + "/monarch" : state.path() + "/run";
}

// The directory of all jobs there.
Result<Fd> open_place(const StateDir& state, const JobRecord& record, size_t place) {
  if (place < record.tiers.size()) return open_tier_jobs(record.tiers[place].path);
  const std::string path = place_path(state, record, place);
  Fd runs(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return runs ? Result<Fd>(std::move(runs)) : errno_error("open " + path);
}

// What the attempts at all of a job's places came to.
struct Outcome {
  Status first;              // error; it names the place
  std::vector<size_t> left;  // the places where something stays
  size_t silent = 0;         // and how many do not answer
  bool late = false;         // there was more to remove than time
};

std::string removal_of(const JobRecord& record) { return "removing/" + record.removal(); }

// What one attempt at a place came to.
struct Attempt {
  bool late = false;                // there was more to remove than time
  Status error;                     // of what stays; ENOENT: nothing does
  std::optional<uint64_t> charged;  // what is to be charged from now on; nothing: as before
};

constexpr uint64_t kFewFiles = 1024;  // a MiB or so of the kernel's memory

bool remove_empty(int in, const std::string& name) {
  return os::unlinkat(in, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
}

// A tmpfs keeps its memory while anything in it is open: it is detached when it is empty in truth. `left` is
// what could not be removed. What stays cannot grow beyond what is charged.
Attempt remove_memory(int jobs, const std::string& name, int root, const Result<std::string>& left) {
  Attempt attempt;
  attempt.late = !left.ok() && left.error().code == ETIMEDOUT;
  const Result<InTmpfs> rest = close_tmpfs(root);
  if (!rest.ok()) {
    attempt.error = Error{EBUSY, name + ": " + rest.error().text};
    return attempt;
  }
  if (rest->bytes == 0 && rest->files <= kFewFiles) {
    detach(jobs, name);
    attempt.charged = 0;
    if (!remove_empty(jobs, name)) attempt.error = errno_error("remove " + name);
    return attempt;
  }
  attempt.charged = rest->bytes;
  const std::string why = left.ok() ? *left : left.error().text;
  attempt.error = Error{EBUSY, fmt::format("{}: {} bytes of memory are used still: {}", name, rest->bytes,
                                           why.empty() ? "files that were removed are open" : why)};
  return attempt;
}

// What is too large to be measured is charged as before.
void measure_rest(const StateDir& state, int directory, JobRecord* record, Attempt* attempt) {
  if (hangs(*record)) return;  // who looks would, too
  const int patience_ms = attempt->late ? patience::kStuckMs : patience::kMeasureMs;
  const auto measure = [=]() -> std::string {
    const Usage usage = measure_tree(directory, patience_ms);
    return usage.complete ? std::to_string(usage.bytes) : "";
  };
  const Result<std::string> bytes =
      said_in_time(state, patience_ms + patience::kStuckMs, {directory}, measure, record);
  if (bytes.ok() && !bytes->empty()) attempt->charged = std::strtoull(bytes->c_str(), nullptr, 10);
}

// The job's directory on a tier, as far as it can be removed in the time of an attempt, where all in it is
// root's: nobody else can put anything into it, mount on it or lock it. Who has a file of it open keeps that.
Attempt remove_roots(const StateDir& state, int jobs, JobRecord* record, int patience_ms) {
  Attempt attempt;
  const std::string name = record->removal();
  const Fd dir(os::openat(jobs, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir && errno != ENOENT) attempt.error = errno_error("open " + name);
  if (!dir && attempt.error.ok()) attempt.charged = 0;
  if (!dir) return attempt;
  const bool memory = os::mount_id(dir.get()) != os::mount_id(jobs);
  if (memory && !is_of_job_tmpfs(dir.get())) {
    attempt.error = Error{EBUSY, name + ": something is mounted there that Monarch has not mounted"};
    return attempt;
  }
  const auto remove = [&]() -> std::string {
    const Status s = memory ? empty_directory(dir.get(), Contents::kCut) : remove_tree(jobs, name);
    return s.ok() ? "" : s.error().text;
  };
  const Result<std::string> left = said_in_time(state, patience_ms, {jobs, dir.get()}, remove, record);
  if (memory) return remove_memory(jobs, name, dir.get(), left);
  attempt.charged = 0;
  if (left.ok() && left->empty()) return attempt;
  attempt.charged.reset();
  attempt.late = !left.ok() && left.error().code == ETIMEDOUT;
  attempt.error = Error{ENOTEMPTY, name + ": " + (left.ok() ? *left : left.error().text)};
  measure_rest(state, dir.get(), record, &attempt);
  return attempt;
}

// A file of the owner's in the run directory `dir`. Tasks that outlive the job may have it mapped: it keeps
// its size, and reads as zeros.
Status remove_run_file(int dir, const std::string& name) {
  constexpr int kMostMounts = 10;  // that the owner makes meanwhile
  constexpr off_t kPage = 0xffff;  // or more
  for (int i = 0; i < kMostMounts; ++i) {
    detach(dir, name);
    const Fd file(os::openat(dir, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat st;
    if (file && os::mount_id(file.get()) == os::mount_id(dir) && os::fstat(file.get(), &st) == 0) {
      const std::string itself = "/proc/self/fd/" + std::to_string(file.get());
      const Fd writes(os::openat(AT_FDCWD, itself.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
      const off_t whole = (st.st_size | kPage) + 1;  // of part of a page the kernel frees nothing
      (void)os::fallocate(writes.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, whole);
    }
    if (os::unlinkat(dir, name.c_str(), 0) == 0 || errno == ENOENT) return {};
    if (errno != EBUSY) break;
  }
  return errno_error("remove " + name);
}

std::string remove_run_dir(int runs, const std::string& name, int dir) {
  Status first;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(os::fdopendir(::dup(dir)), &::closedir);
  while (const dirent* e = list ? os::readdir(list.get()) : nullptr) {
    const std::string file = e->d_name;
    if (file == "." || file == "..") continue;
    if (Status s = remove_run_file(dir, file); !s.ok() && first.ok()) first = s;
  }
  detach(runs, name);
  if (remove_empty(runs, name)) return "";
  return first.ok() ? errno_error("remove " + name).text : name + ": " + first.error().text;
}

// By why something is left; "": nothing is.
Attempt attempt_of(const Result<std::string>& left) {
  Attempt attempt;
  if (!left.ok()) attempt.error = left.error();
  if (left.ok() && !left->empty()) attempt.error = Error{EBUSY, *left};
  if (attempt.error.ok()) attempt.charged = 0;
  return attempt;
}

// The job's run directory. Who has a file of it open keeps that, but not what was in it.
Attempt remove_run(const StateDir& state, int runs, JobRecord* record) {
  Attempt attempt;
  const std::string name = record->removal();
  const Fd dir(os::openat(runs, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir && errno == ENOENT) return attempt;
  if (!dir) attempt.error = errno_error("open " + name);
  if (!dir) return attempt;
  return attempt_of(said_in_time(
      state, patience::kStuckMs, {runs, dir.get()}, [&] { return remove_run_dir(runs, name, dir.get()); },
      record));
}

// In a child: the job's directories of layout 1 in the directory at `path`, which is `jobs`. They are the
// owner's, or in root's of that name one is. What is empty is removed by its path, and so nothing else.
std::string remove_old(int jobs, const std::string& path, const JobRecord& record) {
  constexpr char kOwners[] = "/files", kNone[] = "/.removed";
  const std::string aside = ".removed." + record.removal();
  std::vector<std::string> names = {aside}, words = {"rm", "-rf", "--one-file-system", "--"};
  if (!record.run_dir.ends_with("/" + aside)) names.push_back(record.name);
  for (const std::string& name : names) {
    detach(jobs, name);
    detach(jobs, name + kOwners);
    words.push_back(path + "/" + name);
  }
  const pid_t owner = ::fork();
  if (owner == 0) {
    ::syscall(SYS_close_range, 3u, ~0u, 0u);  // root's log
    if (!become({record.user.uid, record.user.gid, {}}).ok()) ::_exit(1);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const std::string& word : words) ::rmdir((word + kNone).c_str());  // may wait, as root should not
    ::execv("/bin/rm", argv_of(words).data());
    ::_exit(1);
  }
  while (owner > 0 && ::waitpid(owner, nullptr, 0) < 0 && errno == EINTR) continue;
  std::string left;
  for (const std::string& name : names) {
    (void)remove_empty(jobs, name + kOwners);
    if (!remove_empty(jobs, name)) left = name + ": not empty; what its owner could not remove is left";
  }
  return left;
}

Attempt attempt_at(const StateDir& state, size_t place, int patience_ms, JobRecord* record) {
  const Result<Fd> jobs = open_place(state, *record, place);
  if (!jobs.ok()) return {false, jobs.error(), {}};
  const std::string path = place_path(state, *record, place);
  const auto old = [&] { return remove_old(jobs->get(), path, *record); };
  Attempt now = !record->has_roots_tiers()
                    ? attempt_of(said_in_time(state, patience_ms, {jobs->get()}, old, record))
                : place == record->tiers.size() ? remove_run(state, jobs->get(), record)
                                                : remove_roots(state, jobs->get(), record, patience_ms);
  if (!now.error.ok()) now.error = Error{now.error.error().code, path + ": " + now.error.error().text};
  return now;
}

// By a tier's path, whether it answers now.
using Answers = std::map<std::string, bool>;

Outcome attempt_removal(const StateDir& state, const Answers& answers, int patience_ms, JobRecord* record) {
  Cgroups(state.clock()).end(state.cgroup_of(*record), 0);
  Outcome outcome;
  const bool stuck = hangs(*record);  // nothing that may hang, too, is tried
  for (size_t place = 0; place <= record->tiers.size(); ++place) {
    TierRecord* const tier = place < record->tiers.size() ? &record->tiers[place] : nullptr;
    const bool silent = tier && !answers.at(tier->path);
    Attempt now;
    if (stuck)
      now.error = Error{EBUSY, "waits for a process that hangs in the kernel in what the job left"};
    else if (silent)
      now.error =
          Error{ETIMEDOUT, fmt::format("{}: does not answer within {} ms", tier->path, patience::kStuckMs)};
    else
      now = attempt_at(state, place, patience_ms, record);
    if (tier && now.charged)
      tier->occupied = tier->quota > 0 ? std::min(*now.charged, tier->quota) : *now.charged;
    if (now.error.ok() || now.error.error().code == ENOENT) continue;
    outcome.left.push_back(place);
    outcome.silent += silent;
    outcome.late |= now.late;
    if (outcome.first.ok()) outcome.first = now.error;
  }
  return outcome;
}

void put_off(const StateDir& state, const Outcome& outcome, JobRecord* record) {
  if (record->given_up == 0)
    spdlog::warn("JobId={} clean up: {}", record->job.job, outcome.first.error().text);
  if (record->given_up == kTriesUntilNamed) {
    uint64_t bytes = 0;
    for (const TierRecord& t : record->tiers) bytes += t.charged();
    std::string paths;
    for (const size_t place : outcome.left)
      paths += (paths.empty() ? "" : ", ") + place_path(state, *record, place) + "/" + record->on_tier();
    spdlog::error("JobId={} clean up: what could not be removed is left as {}, charged with {} bytes",
                  record->job.job, paths, bytes);
  }
  const bool silent = outcome.silent == outcome.left.size();
  const int64_t delay = silent ? patience::kRetrySeconds : int64_t{1} << std::min(record->given_up, 16u);
  record->next_try = os::realtime_s() + std::min(delay, patience::kLongestRetrySeconds);
  ++record->given_up;
  (void)state.write_removal(*record).ok();
}

// Which of the tiers where something is to be removed answer now.
Answers tiers_that_answer(const StateDir& state, const std::vector<Removal>& removals) {
  Answers answers;
  for (const Removal& removal : removals)
    for (const TierRecord& t : removal.record.tiers) answers[t.path] = false;
  std::vector<std::string> paths;
  for (const auto& [path, answered] : answers) paths.push_back(path);
  const std::vector<bool> answered = probe(state, paths, patience::kStuckMs);
  for (size_t i = 0; i < paths.size(); ++i) answers[paths[i]] = answered[i];
  return answers;
}

bool remove_all(const StateDir& state, std::vector<Removal> removals) {
  bool all_gone = true;
  int patience_ms = patience::kAttemptMs;
  const int64_t end = state.clock().now_ms() + patience::kLongestRemovalMs;
  while (!removals.empty()) {
    const Answers answers = tiers_that_answer(state, removals);
    std::erase_if(removals, [&](Removal& removal) {
      JobRecord& record = removal.record;
      const Outcome outcome = attempt_removal(state, answers, patience_ms, &record);
      if (outcome.late && state.clock().now_ms() < end) {
        (void)state.write_removal(record).ok();
        return false;
      }
      if (outcome.left.empty()) {
        state.forget_grants(record);
        (void)remove_tree(AT_FDCWD, state.path() + "/" + removal_of(record)).ok();
      } else {
        put_off(state, outcome, &record);
      }
      all_gone &= outcome.left.empty();
      return true;
    });
    patience_ms = std::min(2 * patience_ms, patience::kLongestAttemptMs);
  }
  return all_gone;
}

bool is_due(const JobRecord& record) {
  const int64_t now = os::realtime_s();
  return record.next_try <= now ||
         record.next_try > now + patience::kLongestRetrySeconds;  // the clock may have been set
}

}  // namespace

namespace {

// The record of a job from jobs/ to removing/, where the lock that is returned is; none: somebody else
// removes it already. Not by rename(2), which from one directory to another waits for all such of its file
// system: whoever can write in two directories of that, such as one in run/, can keep one of them from its
// end, by a lock of the other directory. It may be in both. `forget`: takes it out of jobs/.
Result<Fd> move_record(const StateDir& state, const JobRecord& record,
                       const std::function<Status()>& forget) {
  Result<Fd> lock = state.make_removal(record);
  if (!lock.ok() && !state.read_removal(record.removal()).ok()) return lock;
  state.forget_grants(record);
  const Status noted = forget();
  if (noted.ok()) return lock.ok() ? lock.take() : Fd();
  if (lock.ok()) (void)remove_tree(AT_FDCWD, state.path() + "/" + removal_of(record)).ok();
  return noted.error();
}

// Where the state's file system is full, which only the removal may change: the job's directory itself
// becomes the removal's, with its lock. A child renames it, since that may wait (above).
bool becomes_removal(const StateDir& state, const JobRecord& record) {
  const std::string from = state.path() + "/jobs/" + record.job.key(),
                    to = state.path() + "/" + removal_of(record);
  const Result<std::string> why_not = said_in_time(state, patience::kHookStepMs, {}, [&] {
    const bool is = os::renameat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0;
    return std::string(is ? "" : "it cannot be renamed");
  });
  if (!why_not.ok() || !why_not->empty()) return false;
  state.forget_grants(record);
  return true;
}

bool is_full(const Error& error) { return error.code == ENOSPC || error.code == EDQUOT; }

}  // namespace

std::vector<Removal> set_aside(const StateDir& state, std::vector<Removal> jobs) {
  std::vector<Removal> aside;
  for (Removal& job : jobs) {
    JobRecord& record = job.record;
    Result<Fd> lock = move_record(state, record, [&] { return state.remove_job(record.job.key()); });
    if (!lock.ok() && is_full(lock.error()) && becomes_removal(state, record)) lock = std::move(job.lock);
    if (!lock.ok())
      spdlog::warn("JobId={} clean up is left to the next job: {}", record.job.job, lock.error().text);
    else if (*lock)
      aside.push_back({std::move(record), lock.take()});
  }
  return aside;
}

Result<std::vector<Removal>> set_run_aside(const StateDir& state, const JobRecord& run) {
  Result<Fd> lock = move_record(state, run, [&] { return state.forget_run(run); });
  if (!lock.ok()) return lock.error();
  std::vector<Removal> aside;
  if (*lock) aside.push_back({run, lock.take()});
  return aside;
}

bool remove_in_background(const StateDir& state, std::vector<Removal> removals, int patience_ms) {
  if (removals.empty()) return true;
  std::vector<int> locks;
  for (const Removal& r : removals) locks.push_back(r.lock.get());
  const auto enters = patience_ms > 0 ? HelperCgroup::Enters::kIfLeftBehind : HelperCgroup::Enters::kNow;
  const pid_t pid =
      in_background(state, enters, locks, [&] { return remove_all(state, std::move(removals)); });
  if (pid < 0 || patience_ms <= 0) return false;
  const std::optional<int> status = await_child(state.clock(), pid, state.clock().now_ms() + patience_ms);
  if (!status) leave_behind(state, pid);
  return status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0;
}

void find_and_remove(const StateDir& state, const std::function<std::vector<Removal>()>& find) {
  in_background(state, HelperCgroup::Enters::kNow, {}, [&] { return remove_all(state, find()); });
}

// The record goes last of all that is the job's, but not last of its directory: a remover that was killed
// between the two, or a power failure, leaves a directory that names nothing.
std::vector<Removal> unattended_removals(const StateDir& state) {
  std::vector<Removal> found;
  for (const std::string& name : state.removals()) {
    const std::string dir = state.path() + "/removing/" + name;
    Fd lock = lock_if_free(dir);
    if (!lock) continue;
    Result<JobRecord> record = state.read_removal(name);
    if (record.ok() && is_due(*record)) {
      found.push_back({record.take(), std::move(lock)});
    } else if (!record.ok() && (record.error().code == ENOENT || record.error().code == EINVAL) &&
               is_rest(dir)) {
      (void)remove_tree(AT_FDCWD, dir).ok();
    }
  }
  return found;
}

}  // namespace monarch
