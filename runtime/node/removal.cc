// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/removal.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <map>
#include <sstream>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/remove_tree.h"
#include "runtime/node/await.h"
#include "runtime/node/job_dirs.h"
#include "runtime/node/life.h"
#include "runtime/node/memory_tier.h"
#include "runtime/node/mounts.h"
#include "runtime/node/owner.h"
#include "runtime/node/probe.h"
#include "runtime/node/slurmstepds.h"

namespace monarch {
namespace {

constexpr int kMostDetached = 10;  // times that an owner may mount something anew meanwhile

// In a child that may hang or outlive its parent: leaves of what is open what it needs (`kept`), and the log
// (a file that is appended to, or a socket). Locks of a hook's, and pipes that somebody reads to their end,
// are not to live as long.
void leave_open(const std::vector<int>& kept) {
  std::vector<int> open;
  {
    const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir("/proc/self/fd"), &::closedir);
    while (const dirent* e = dir ? ::readdir(dir.get()) : nullptr)
      if (e->d_name[0] != '.') open.push_back(std::atoi(e->d_name));
  }
  for (const int fd : open) {
    struct stat st;
    if (fd < 3 || std::find(kept.begin(), kept.end(), fd) != kept.end() || ::fstat(fd, &st) != 0) continue;
    const bool is_log =
        S_ISSOCK(st.st_mode) || (S_ISREG(st.st_mode) && (::fcntl(fd, F_GETFL) & O_APPEND) != 0);
    if (!is_log) ::close(fd);
  }
}

[[noreturn]] void child_as(const User& user, int tell, const std::function<bool(int)>& work) {
  constexpr int kTellFd = 3;
  ::dup2(tell, kTellFd);
  ::syscall(SYS_close_range, kTellFd + 1u, ~0u, 0u);  // root's log and locks
  if (!leave_standard_streams()) ::_exit(1);
  User plain = user;
  plain.groups.clear();
  ::_exit(become(plain).ok() && work(kTellFd) ? 0 : 1);
}

// Whether what the job has there is on a file system that is not mounted now: it may come back. `jobs` is
// TIER/monarch. Where file systems have no id (FUSE), the one that is there may be another of its type: not
// if it has TIER/monarch, which stays for good where a job was.
bool is_away(const Result<Fd>& jobs, const TierRecord& tier) {
  if (tier.file_system.empty() || tier.occupied == uint64_t{0}) return false;
  if (file_system_at(tier.path) != tier.file_system) return true;
  return !is_file_system_id(tier.file_system) && !jobs.ok() && jobs.error().code == ENOENT;
}

// Whether what the job has there is in memory since this boot. It is used still where something was mounted
// over the tier's path: nobody sees it then, and it is charged as what could not be removed.
bool holds_memory(const JobRecord& record, const TierRecord& tier) {
  return tier.kind == TierConfig::Kind::kTmpfs && record.boot == boot_id();
}

// Whether the job has its directory there, under any of its names.
bool has_directory(const Result<Fd>& jobs, const JobRecord& record) {
  if (!jobs.ok()) return jobs.error().code != ENOENT;
  for (const std::string& name : {record.on_tier(), record.aside()})
    if (Fd(os::openat(jobs->get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC)) || errno != ENOENT)
      return true;
  return false;
}

// Where a job has its directories: on its tiers, and behind the last one run/.
std::string place_path(const StateDir& state, const JobRecord& record, size_t place) {
  return place < record.tiers.size() ? record.tiers[place].path + "/monarch" : state.path() + "/run";
}

// What an attempt at each of a job's places came to.
struct Outcome {
  Status first;              // error, but for what is missing; it names the place
  std::vector<size_t> left;  // the places with such an error
  std::vector<size_t> away;  // of those, the tiers that are away
  size_t silent = 0;         // and how many do not answer
};

// Calls `what` with the directory of all jobs in each place from `first` on, and its number. A tier that is
// away is an error, and so is one that is known not to answer.
using Answers = std::map<std::string, bool>;  // by a tier's path

Outcome in_each_place(const StateDir& state, const JobRecord& record, const Answers& answers,
                      const std::function<Status(int, size_t)>& what, size_t first = 0) {
  Outcome outcome;
  const auto note = [&](size_t place, const Status& s) {
    if (s.ok() || s.error().code == ENOENT) return;
    outcome.left.push_back(place);
    if (outcome.first.ok()) outcome.first = s;
  };
  const auto in_place = [&](int jobs, size_t place) -> Status {
    Status s = what(jobs, place);
    if (s.ok()) return s;
    return Error{s.error().code, place_path(state, record, place) + ": " + s.error().text};
  };
  for (size_t place = first; place < record.tiers.size(); ++place) {
    const TierRecord& t = record.tiers[place];
    if (const auto known = answers.find(t.path); known != answers.end() && !known->second) {
      ++outcome.silent;
      note(place, Error{ETIMEDOUT,
                        t.path + ": does not answer within " + std::to_string(patience::kStuckMs) + " ms"});
      continue;
    }
    const Result<Fd> jobs = open_tier_jobs(t.path);
    if (!has_directory(jobs, record) && is_away(jobs, t)) {
      if (!holds_memory(record, t)) outcome.away.push_back(place);
      note(place, Error{ENODEV, t.path + ": the job's file system is not mounted there any more"});
    } else {
      note(place, jobs.ok() ? in_place(jobs->get(), place) : Status(jobs.error()));
    }
  }
  const size_t run = record.tiers.size();
  const std::string path = place_path(state, record, run);
  const Fd runs(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  note(run, runs ? in_place(runs.get(), run) : Status(errno_error("open " + path)));
  return outcome;
}

// What is root's on a tier has a name of its own from the beginning.
Status rename_all_aside(const StateDir& state, const JobRecord& record) {
  const size_t first = record.has_roots_tiers() ? record.tiers.size() : 0;
  return in_each_place(
             state, record, {}, [&](int jobs, size_t) { return rename_aside(jobs, record); }, first)
      .first;
}

// Whether another run of the job has made directories of that name by now.
bool name_is_taken(const StateDir& state, const JobRecord& record) {
  const Result<JobRecord> now = state.read_record(record.job.key());
  return now.ok() && now->name == record.name && now->serial != record.serial;
}

// In the removal's directory of the state: set_aside() could not rename all.
constexpr char kUnmoved[] = "/unmoved";

// Renames the directories of these jobs aside, by a child; which of them it is through with in time. A child
// that hangs in the kernel stays behind.
std::vector<bool> rename_in_time(const StateDir& state, const std::vector<const JobRecord*>& records) {
  std::vector<bool> done(records.size(), false);
  int ends[2];
  if (records.empty() || ::pipe2(ends, O_CLOEXEC) != 0) return done;
  const Fd in(ends[0]);
  Fd tell(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return done;
  if (pid == 0) {
    leave_open({tell.get()});
    for (const JobRecord* record : records) {
      const Status moved = rename_all_aside(state, *record);
      if (!moved.ok()) spdlog::warn("JobId={} {}", record->job.job, moved.error().text);
      const char said = moved.ok() ? 1 : 0;
      (void)!::write(tell.get(), &said, 1);
    }
    ::_exit(0);
  }
  tell.reset();
  const int64_t until_ms = state.clock().now_ms() + patience::kHookStepMs;
  for (size_t i = 0; i < done.size();) {
    if (!readable_until(state.clock(), until_ms, in.get())) break;
    char said = 0;
    const ssize_t n = ::read(in.get(), &said, 1);
    if (n != 1) break;  // it has died
    done[i++] = said != 0;
  }
  if (end_child(state.clock(), pid, until_ms) == ChildEnd::kHangs) leave_behind(state, pid);
  return done;
}

// An owner's directory.
struct Owners {
  Fd dir;               // itself, or the tmpfs that is mounted there
  bool memory = false;  // the latter
};

Result<Owners> open_owners(const OwnersPlace& place, const JobRecord& record) {
  for (int round = 0; round < kMostDetached; ++round) {
    Fd dir(os::openat(place.in(), place.name().c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!dir) return errno_error("open " + place.path());
    if (os::mount_id(dir.get()) == os::mount_id(place.in())) return Owners{std::move(dir), false};
    if (is_of_job_tmpfs(dir.get())) return Owners{std::move(dir), true};
    if (detach_mounts(place.in(), place.name(), record.user.uid, Detach::kUsers) == 0) break;
  }
  return Error{EBUSY, place.path() + ": something is mounted there that no user mounted"};
}

// Of a start that was killed before it gave the directory to the job's owner: all in it is root's own.
bool is_roots(int directory) {
  struct stat st;
  return os::fstat(directory, &st) == 0 && st.st_uid == 0;
}

bool remove_empty(int in, const std::string& name) {
  return os::unlinkat(in, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
}

std::string removal_of(const JobRecord& record) { return "removing/" + record.removal(); }

// The same of a directory that its owner can keep locked in the kernel: then nobody can kill who removes it.
bool remove_empty_in_time(const StateDir& state, const JobRecord& record, const OwnersPlace& place) {
  const InTime child = start_in_time(state, patience::kStuckMs, {place.in()},
                                     [&] { return remove_empty(place.in(), place.name()); });
  return ends_in_time(state, child, removal_of(record));
}

// run_for_owner(); one that hangs is noted.
Result<std::string> do_for_owner(const StateDir& state, const JobRecord& record, FileRights rights, int fd,
                                 int patience_ms, const std::function<std::string(int)>& work) {
  pid_t left_behind = -1;
  Result<std::string> done =
      run_for_owner(record.user, rights, fd, patience_ms, work, &left_behind, state.clock());
  if (left_behind > 0) note_hanging(state, removal_of(record), left_behind);
  return done;
}

// What `work` says, in a child of root's, which has `kept` open: a device may hang.
Result<std::string> do_in_time(const StateDir& state, const JobRecord& record, const std::vector<int>& kept,
                               int patience_ms, const std::function<std::string()>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe");
  const Fd in(ends[0]);
  Fd tell(ends[1]);
  std::vector<int> open = kept;
  open.push_back(tell.get());
  const InTime child = start_in_time(state, patience_ms, open, [&] {
    std::string said = work();
    said.resize(std::min<size_t>(said.size(), PIPE_BUF));
    return said.empty() || ::write(tell.get(), said.data(), said.size()) > 0;
  });
  tell.reset();
  (void)readable_until(state.clock(), child.until_ms, in.get());
  if (!ends_in_time(state, child, removal_of(record)))
    return Error{ETIMEDOUT, fmt::format("not through after {} ms", patience_ms)};
  std::string said(PIPE_BUF, '\0');
  const ssize_t n = ::read(in.get(), said.data(), said.size());
  said.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return said;
}

// What one attempt came to.
struct Attempt {
  bool late = false;                // there was more to remove than time
  Status error;                     // of what stays
  uint64_t files = 0;               // that stay, as far as they were counted
  bool counted = false;             // all of them
  std::optional<uint64_t> charged;  // what is to be charged from now on; nothing: as before
};

constexpr char kNone[] = ".removed";

// Also waits until nobody has the directory locked in the kernel: its owner can, for as long as a list of it
// is copied to memory that a file system of the owner's has to bring. Unlike rmdir(2) of it, it has nothing
// else locked meanwhile.
std::string empty(int directory, Pages pages) {
  const Status s = empty_directory(directory, pages);
  os::unlinkat(directory, kNone, AT_REMOVEDIR);
  return s.ok() ? "" : s.error().text;
}

uint64_t used_in(int directory) {
  struct statfs fs;
  return os::fstatfs(directory, &fs) == 0 ? (fs.f_blocks - fs.f_bfree) * static_cast<uint64_t>(fs.f_bsize)
                                          : 0;
}

constexpr uint64_t kLittle = 256 << 10;  // of a run directory: root's files in it cannot be given back
constexpr uint64_t kFewFiles = 1024;     // a MiB or so of the kernel's memory

// A tmpfs keeps its memory while anything in it is open: it is detached when it is empty in truth. `left` is
// what could not be removed. What stays cannot grow beyond what is charged.
Attempt remove_memory(const OwnersPlace& place, const JobRecord& record, int root,
                      const Result<std::string>& left, bool is_run) {
  Attempt attempt;
  attempt.late = !left.ok() && left.error().code == ETIMEDOUT;
  const Result<InTmpfs> rest = close_tmpfs(root, is_run ? Closed::kFiles : Closed::kAll);
  if (!rest.ok()) {
    attempt.error = Error{EBUSY, place.path() + ": " + rest.error().text};
    return attempt;
  }
  if (rest->bytes <= (is_run ? kLittle : 0) && rest->files <= kFewFiles) {
    detach_mounts(place.in(), place.name(), record.user.uid, Detach::kAll);
    attempt.charged = 0;
    if (!remove_empty(place.in(), place.name())) attempt.error = errno_error("remove " + place.path());
    return attempt;
  }
  attempt.charged = rest->bytes;
  const std::string why = left.ok() ? *left : left.error().text;
  attempt.error =
      Error{EBUSY, fmt::format("{}: {} bytes of memory are used still: {}", place.path(), rest->bytes,
                               why.empty() ? "files that were removed are open" : why)};
  return attempt;
}

std::string measure(int directory, int patience_ms) {
  const Usage usage = measure_tree(directory, patience_ms);
  return fmt::format("{} {} {}", usage.bytes, usage.files, usage.complete ? 1 : 0);
}

// What is too large or too deep to be measured is charged as before.
void measure_rest(const StateDir& state, int directory, const JobRecord& record, Attempt* attempt) {
  if (hangs(state, removal_of(record))) return;  // who looks would, too
  const int patience_ms = attempt->late ? patience::kStuckMs : patience::kMeasureMs;
  const int in_all_ms = patience_ms + patience::kStuckMs;
  const Result<std::string> text =
      is_roots(directory)
          ? do_in_time(state, record, {directory}, in_all_ms, [=] { return measure(directory, patience_ms); })
          : do_for_owner(state, record, FileRights::kLook, directory, in_all_ms,
                         [=](int fd) { return measure(fd, patience_ms); });
  if (!text.ok()) return;
  uint64_t bytes = 0;
  std::istringstream words(*text);
  words >> bytes >> attempt->files >> attempt->counted;
  if (attempt->counted) attempt->charged = bytes;
}

// The owner's directory, as far as it can be removed in the time of an attempt. Of a run directory's files
// tasks that outlive the job have mappings.
Attempt remove_owners(const StateDir& state, const OwnersPlace& place, const JobRecord& record, bool is_run,
                      int patience_ms) {
  Attempt attempt;
  for (int round = 0;; ++round) {
    attempt = {};
    const Result<Owners> owners = open_owners(place, record);
    if (!owners.ok() && owners.error().code == ENOENT) break;
    if (!owners.ok()) {
      attempt.error = owners.error();
      return attempt;
    }
    const int dir = owners->dir.get();
    if (!owners->memory && is_roots(dir)) {
      attempt.error = remove_tree(place.in(), place.name());
      if (attempt.error.ok()) break;
      return attempt;
    }
    const Pages pages = !owners->memory ? Pages::kKeep : is_run ? Pages::kZero : Pages::kCut;
    const Result<std::string> left = do_for_owner(state, record, FileRights::kOwner, dir, patience_ms,
                                                  [=](int fd) { return empty(fd, pages); });
    if (owners->memory) return remove_memory(place, record, dir, left, is_run);
    if (left.ok() && remove_empty_in_time(state, record, place)) break;
    attempt.late = !left.ok() && left.error().code == ETIMEDOUT;
    if (!attempt.late && round < kMostDetached && !hangs(state, removal_of(record)) &&
        detach_mounts(place.in(), place.name(), record.user.uid, Detach::kUsers) > 0)
      continue;
    const std::string why = left.ok() ? *left : left.error().text;
    attempt.error = Error{ENOTEMPTY, place.path() + ": " + (why.empty() ? "not empty" : why)};
    measure_rest(state, dir, record, &attempt);
    return attempt;
  }
  attempt.charged = 0;
  return attempt;
}

// The job's directory `name` in `jobs`, likewise. What is left in root's is root's own: releases before 0.2.0
// made the directory that they gave to the owner in its place, and one of their starts may have been killed.
Attempt remove_job_dir(const StateDir& state, int jobs, const JobRecord& record, const std::string& name,
                       bool is_run, int patience_ms) {
  const OwnersPlace place(jobs, name);
  Attempt attempt = remove_owners(state, place, record, is_run, patience_ms);
  if (attempt.error.ok() && place.has_roots_above()) attempt.error = remove_tree(jobs, name);
  return attempt;
}

// The job's directory on a tier, as far as it can be removed in the time of an attempt, where all in it is
// root's: nobody else can put anything into it, mount on it or lock it. Who has a file of it open keeps that.
Attempt remove_roots(const StateDir& state, int jobs, const JobRecord& record, int patience_ms) {
  Attempt attempt;
  const std::string name = record.removal();
  const Fd dir(os::openat(jobs, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir && errno != ENOENT) attempt.error = errno_error("open " + name);
  if (!dir && attempt.error.ok()) attempt.charged = 0;
  if (!dir) return attempt;
  const bool memory = os::mount_id(dir.get()) != os::mount_id(jobs);
  if (memory && !is_of_job_tmpfs(dir.get())) {
    attempt.error = Error{EBUSY, name + ": something is mounted there that Monarch has not mounted"};
    return attempt;
  }
  const Result<std::string> left = do_in_time(state, record, {jobs, dir.get()}, patience_ms, [&] {
    const Status s = memory ? empty_directory(dir.get(), Pages::kCut) : remove_tree(jobs, name);
    return s.ok() ? "" : s.error().text;
  });
  if (memory) return remove_memory(OwnersPlace(jobs, name), record, dir.get(), left, false);
  attempt.charged = 0;
  if (left.ok() && left->empty()) return attempt;
  attempt.charged.reset();
  attempt.late = !left.ok() && left.error().code == ETIMEDOUT;
  attempt.error = Error{ENOTEMPTY, name + ": " + (left.ok() ? *left : left.error().text)};
  measure_rest(state, dir.get(), record, &attempt);
  return attempt;
}

// What is under way in remove_all().
struct UnderWay {
  Removal removal;
  std::vector<uint64_t> least;   // files that an attempt left, in each place
  std::vector<int> patience_ms;  // of the next one
  bool told = false;
  bool progress = false;
  bool away = false;               // all that is left is on tiers that are, or that do not answer
  bool lives = false;              // the job does
  std::vector<size_t> left;        // places where something is
  std::vector<std::string> names;  // that it has in each place
};

// Whether a large tree gets smaller: by a tenth at least, since its owner may be filling it.
bool gets_smaller(const Attempt& attempt, uint64_t* least) {
  if (!attempt.late) return false;
  if (!attempt.counted) return true;
  if (attempt.files >= *least - *least / 10) return false;
  *least = attempt.files;
  return true;
}

// What lies there without a record may be a job's that runs: Slurm says so, or an agent in the group of
// another state directory, such as the one that was there before.
bool has_live_job(const StateDir& state, const JobRecord& record) {
  if (!record.unrecorded) return false;
  const Cgroups groups;
  const std::vector<std::string> all = groups.names("");
  const auto is_its = [&](const std::string& group) {
    const size_t serial = group.rfind('.');
    return serial != std::string::npos && group.substr(0, serial).ends_with("." + record.name) &&
           !group.starts_with(state.cgroup_prefix()) && !groups.processes(group).empty();
  };
  return std::any_of(all.begin(), all.end(), is_its) || has_slurmstepd(record.job.job);
}

// Of a job that lives: what it occupies.
Attempt measure_only(const StateDir& state, int jobs, const JobRecord& record) {
  Attempt attempt;
  attempt.error = Error{EBUSY, record.on_tier() + ": its job lives"};
  attempt.late = true;
  const OwnersPlace place(jobs, record.on_tier());
  Result<Owners> there = Owners{Fd(), false};
  if (record.has_roots_tiers()) {
    constexpr int kLook = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    there->dir = Fd(os::openat(jobs, record.on_tier().c_str(), kLook));
    there->memory = there->dir && is_of_job_tmpfs(there->dir.get());
  } else {
    there = open_owners(place, record);
  }
  if (!there.ok() || !there->dir) return attempt;
  if (there->memory)
    attempt.charged = used_in(there->dir.get());
  else
    measure_rest(state, there->dir.get(), record, &attempt);
  return attempt;
}

// A process that hangs there may be of an attempt before, or have read what the job counts while it ran.
void note_that_it_hangs(UnderWay* work) {
  const JobRecord& record = work->removal.record;
  if (work->left.empty())
    for (size_t place = 0; place < work->names.size(); ++place) work->left.push_back(place);
  if (work->told || record.given_up > 0 || work->lives) return;
  spdlog::warn("JobId={} clean up: waits for a process that hangs in the kernel in what the job left",
               record.job.job);
  work->told = true;
}

// Notes which tiers are away; of one that does not answer nobody knows. True: that has changed.
bool note_away(const Outcome& outcome, const Answers& answers, JobRecord* record) {
  bool changed = false;
  for (size_t place = 0; place < record->tiers.size(); ++place) {
    TierRecord& tier = record->tiers[place];
    if (const auto known = answers.find(tier.path); known != answers.end() && !known->second) continue;
    const bool away = std::find(outcome.away.begin(), outcome.away.end(), place) != outcome.away.end();
    changed |= tier.away != away;
    tier.away = away;
  }
  return changed;
}

// True: nothing is left, and the record is gone, too.
bool attempt_removal(const StateDir& state, const Answers& answers, UnderWay* work) {
  JobRecord& record = work->removal.record;
  Cgroups(state.clock()).end(state.cgroup_of(record), 0);
  // Otherwise what has that name is the next run's, though it may not have said so yet.
  const bool unmoved = is_unmoved(state, record);
  work->lives =
      (unmoved || record.has_roots_tiers()) && !name_is_taken(state, record) && has_live_job(state, record);
  work->progress = false;
  const size_t places = record.tiers.size() + 1;
  work->least.resize(places, UINT64_MAX);
  work->patience_ms.resize(places, patience::kAttemptMs);
  work->names.assign(places, unmoved && !name_is_taken(state, record) ? record.name : record.aside());
  if (record.has_roots_tiers()) std::fill_n(work->names.begin(), places - 1, record.removal());
  bool changed = false;
  const auto attempt = [&](int jobs, size_t place) -> Status {
    std::string& name = work->names[place];
    const bool is_run = place == record.tiers.size(), of_root = !is_run && record.has_roots_tiers();
    if (!of_root && unmoved && !work->lives && !name_is_taken(state, record)) {
      // What keeps it where it is, as a mount on a directory that a release before 0.2.0 made, or an XFS
      // project id of one: it is emptied there.
      Status moved = rename_aside(jobs, record);
      if (!moved.ok() && moved.error().code != EXDEV && moved.error().code != EBUSY) return moved;
      if (moved.ok()) name = record.aside();
    }
    int& patience_ms = work->patience_ms[place];
    const Attempt now = work->lives ? measure_only(state, jobs, record)
                        : of_root   ? remove_roots(state, jobs, record, patience_ms)
                                    : remove_job_dir(state, jobs, record, name, is_run, patience_ms);
    work->progress |= gets_smaller(now, &work->least[place]);
    // The way down a chain of directories may take longer than that.
    if (now.late && !now.counted) patience_ms = std::min(2 * patience_ms, patience::kLongestAttemptMs);
    if (!is_run && now.charged) {
      TierRecord& tier = record.tiers[place];
      const uint64_t bytes = tier.quota > 0 ? std::min(*now.charged, tier.quota) : *now.charged;
      changed |= tier.occupied != bytes;
      tier.occupied = bytes;
    }
    if (TierRecord* tier = is_run || now.error.ok() ? nullptr : &record.tiers[place];
        tier && !tier->file_system.empty()) {  // an id may change from one mount to the next
      const std::string here = file_system_of(jobs);
      changed |= tier->file_system != here;
      tier->file_system = here;
    }
    return now.error;
  };
  if (hangs(state, removal_of(record))) {  // nothing that may hang, too, is tried
    note_that_it_hangs(work);
    return false;
  }
  const Outcome outcome = in_each_place(state, record, answers, attempt);
  const Status& s = outcome.first;
  work->left = outcome.left;
  if (s.ok()) {
    if (record.unrecorded && !name_is_taken(state, record))
      ::unlink((state.path() + "/" + record.grants()).c_str());
    (void)remove_tree(AT_FDCWD, state.path() + "/" + removal_of(record)).ok();
    return true;
  }
  work->away = outcome.away.size() + outcome.silent == outcome.left.size();
  changed |= note_away(outcome, answers, &record);
  if (const int64_t now = os::realtime_s(); outcome.left != outcome.away) {
    if (record.away_since > 0) record.given_up = 0, changed = true;  // since then it was not tried
    record.away_since = 0;
  } else if (record.away_since == 0 || record.away_since > now) {
    record.away_since = now;
    spdlog::warn("JobId={} clean up: {}: its files are not charged, and are looked for for {} s",
                 record.job.job, s.error().text, kAwaySeconds);
    work->told = true;
  } else if (record.away_since + kAwaySeconds <= now) {
    spdlog::warn("JobId={} clean up: {}: its files are not looked for any longer", record.job.job,
                 s.error().text);
    (void)remove_tree(AT_FDCWD, state.path() + "/" + removal_of(record)).ok();
    return true;
  }
  if (changed) (void)state.write_removal(record).ok();
  if (!work->told && record.given_up == 0 && !work->lives)
    spdlog::warn("JobId={} clean up: {}", record.job.job, s.error().text);
  work->told |= !work->lives;
  return false;
}

void give_up(const StateDir& state, const UnderWay& work) {
  JobRecord record = work.removal.record;
  if (work.lives) {
    record.next_try = os::realtime_s() + patience::kLookAgainSeconds;
    (void)state.write_removal(record).ok();
    return;
  }
  const int64_t delay = work.away ? patience::kRetrySeconds
                                  : std::min(patience::kLongestRetrySeconds,
                                             patience::kRetrySeconds << std::min(record.given_up, 16u));
  if (record.given_up++ == 0 && record.away_since == 0) {
    uint64_t bytes = 0;
    for (const TierRecord& t : record.tiers) bytes += t.charged();
    std::string paths;
    for (const size_t place : work.left)
      paths += (paths.empty() ? "" : ", ") + place_path(state, record, place) + "/" + work.names[place];
    spdlog::error("JobId={} clean up: what could not be removed is left as {}, charged with {} bytes",
                  record.job.job, paths, bytes);
  }
  record.next_try = os::realtime_s() + delay;
  (void)state.write_removal(record).ok();
}

// Which of the tiers where something is to be removed answer now.
Answers tiers_that_answer(const StateDir& state, const std::vector<UnderWay>& under_way) {
  Answers answers;
  for (const UnderWay& work : under_way)
    for (const TierRecord& t : work.removal.record.tiers) answers[t.path] = false;
  std::vector<std::string> paths;
  for (const auto& [path, answered] : answers) paths.push_back(path);
  const std::vector<bool> answered = probe(state, paths, patience::kStuckMs);
  for (size_t i = 0; i < paths.size(); ++i) answers[paths[i]] = answered[i];
  return answers;
}

using Find = std::function<std::vector<Removal>()>;

[[noreturn]] void remove_all(const StateDir& state, std::vector<Removal> removals, const Find& find,
                             HelperCgroup::Enters enters) {
  ::setsid();
  ::signal(SIGHUP, SIG_IGN);
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int fd = 0; fd < 3; ++fd) ::dup2(null.get(), fd);  // nobody is to wait for the end of its output
  std::vector<int> locks;
  for (const Removal& r : removals) locks.push_back(r.lock.get());
  leave_open(locks);
  std::vector<UnderWay> under_way;
  bool away = false;
  {
    const HelperCgroup group(state, enters);
    if (find) removals = find();
    for (Removal& r : removals) under_way.emplace_back().removal = std::move(r);
    Clock& clock = state.clock();
    const int64_t begin = clock.now_ms();
    int pause_s = 1;
    for (int64_t end = begin + patience::kTriesMs; !under_way.empty();
         clock.sleep_ns(int64_t{pause_s} * 1'000'000'000)) {
      const Answers answers = tiers_that_answer(state, under_way);
      std::erase_if(under_way, [&](UnderWay& work) {
        const bool gone = attempt_removal(state, answers, &work);
        const bool waits = work.lives || work.removal.record.away_since > 0;
        if (!gone && waits) give_up(state, work);
        away |= !gone && waits && !work.lives;
        return gone || waits;
      });
      const bool progress =
          std::any_of(under_way.begin(), under_way.end(), [](const UnderWay& w) { return w.progress; });
      if (progress) end = std::min(clock.now_ms() + patience::kTriesMs, begin + patience::kLongestRemovalMs);
      if (under_way.empty() || clock.now_ms() >= end) break;
      pause_s = progress ? 1 : std::min(2 * pause_s, patience::kLongestRestSeconds);
    }
  }
  for (const UnderWay& work : under_way) give_up(state, work);
  ::_exit(under_way.empty() && !away ? 0 : 1);
}

bool is_due(const JobRecord& record) {
  const int64_t now = os::realtime_s();
  return record.next_try <= now ||
         record.next_try > now + patience::kLongestRetrySeconds;  // the clock may have been set
}

}  // namespace

Status note_unmoved(const StateDir& state, const JobRecord& record) {
  return state.write(removal_of(record) + kUnmoved, "");
}

void note_moved(const StateDir& state, const JobRecord& record) {
  ::unlink((state.path() + "/" + removal_of(record) + kUnmoved).c_str());
}

bool is_unmoved(const StateDir& state, const JobRecord& record) {
  return state.read(removal_of(record) + kUnmoved).ok();
}

Status rename_aside(int jobs, const JobRecord& record) {
  if (os::renameat(jobs, record.name.c_str(), jobs, record.aside().c_str()) == 0 || errno == ENOENT)
    return {};
  return errno_error("set aside " + record.name);
}

ChildAs::ChildAs(const User& user, const std::function<bool(int)>& work, Clock& clock) : clock_(&clock) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  in_ = Fd(ends[0]);
  const Fd tell(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) child_as(user, tell.get(), work);
}

bool ChildAs::finish(int64_t until_ms, void* out, size_t bytes) {
  if (pid_ < 0) return false;
  size_t got = 0;
  // No more than that: the child is its owner's, who can write into the pipe without an end.
  for (bool open = true; open && got < bytes;) {
    // What has come by then is read, however long another child was waited for.
    if (!readable_until(*clock_, until_ms, in_.get())) break;
    const ssize_t n = ::read(in_.get(), static_cast<char*>(out) + got, bytes - got);
    if (n <= 0)
      open = n < 0 && errno == EINTR;
    else
      got += static_cast<size_t>(n);
  }
  const ChildEnd end = end_child(*clock_, pid_, until_ms);
  if (end == ChildEnd::kHangs) left_behind_ = pid_;
  return end == ChildEnd::kGood && got == bytes;
}

bool run_as(const User& user, int patience_ms, void* out, size_t bytes, const std::function<bool(int)>& work,
            Clock& clock) {
  ChildAs child(user, work, clock);
  return child.finish(clock.now_ms() + patience_ms, out, bytes);
}

InTime start_in_time(const StateDir& state, int patience_ms, const std::vector<int>& kept,
                     const std::function<bool()>& work) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    leave_open(kept);
    ::_exit(leave_standard_streams() && work() ? 0 : 1);
  }
  return {pid, state.clock().now_ms() + patience_ms};
}

bool ends_in_time(const StateDir& state, const InTime& child, const std::string& of) {
  if (child.pid < 0) return false;
  const ChildEnd end = end_child(state.clock(), child.pid, child.until_ms);
  if (end == ChildEnd::kHangs) {
    leave_behind(state, child.pid);
    if (!of.empty()) note_hanging(state, of, child.pid);
  }
  return end == ChildEnd::kGood;
}

namespace {

// The record of a job from jobs/ to removing/, where the lock that is returned is; none: somebody else
// removes it already. Not by rename(2), which from one directory to another waits for all such of its file
// system: whoever can write in two directories of that, such as one in run/, can keep one of them from its
// end, by a lock of the other directory. It may be in both. `forget`: takes it out of jobs/.
Result<Fd> move_record(const StateDir& state, const JobRecord& record, bool moved,
                       const std::function<Status()>& forget) {
  const std::string to = removal_of(record);
  Result<Fd> lock = state.make_removal(record);
  const bool is_new = lock.ok();
  if (!is_new && lock.error().code != ENOTEMPTY && lock.error().code != EEXIST) return lock;
  if (!is_new) lock = lock_if_free(state.path() + "/" + to);  // one was killed in the middle
  Status noted = moved ? Status() : note_unmoved(state, record);
  if (noted.ok()) noted = copy_hanging(state, "jobs/" + record.job.key(), to);
  if (noted.ok()) ::unlink((state.path() + "/" + record.grants()).c_str());
  if (noted.ok()) noted = forget();
  if (noted.ok()) return lock;
  if (is_new) (void)remove_tree(AT_FDCWD, state.path() + "/" + to).ok();
  return noted.error();
}

// Where the state's file system is full, which only the removal may change: the job's directory itself
// becomes the removal's, with its lock. A child renames it, since that may wait (above).
bool becomes_removal(const StateDir& state, const JobRecord& record) {
  const std::string from = state.path() + "/jobs/" + record.job.key(),
                    to = state.path() + "/" + removal_of(record);
  const InTime child = start_in_time(state, patience::kHookStepMs, {}, [&] {
    return os::renameat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0;
  });
  if (!ends_in_time(state, child)) return false;
  ::unlink((state.path() + "/" + record.grants()).c_str());
  return true;
}

bool is_full(const Error& error) { return error.code == ENOSPC || error.code == EDQUOT; }

}  // namespace

std::vector<Removal> set_aside(const StateDir& state, std::vector<Removal> jobs) {
  std::vector<const JobRecord*> records;
  for (const Removal& r : jobs) records.push_back(&r.record);
  const std::vector<bool> moved = rename_in_time(state, records);
  std::vector<Removal> aside;
  for (size_t i = 0; i < jobs.size(); ++i) {
    JobRecord& record = jobs[i].record;
    Result<Fd> lock =
        move_record(state, record, moved[i], [&] { return state.remove_job(record.job.key()); });
    if (!lock.ok() && is_full(lock.error()) && moved[i] && becomes_removal(state, record))
      lock = std::move(jobs[i].lock);
    if (!lock.ok())
      spdlog::warn("JobId={} clean up is left to the next job: {}", record.job.job, lock.error().text);
    else if (*lock)
      aside.push_back({std::move(record), lock.take()});
  }
  return aside;
}

Result<std::vector<Removal>> set_run_aside(const StateDir& state, const JobRecord& last) {
  const bool moved = rename_in_time(state, {&last}).front();
  Result<Fd> lock = move_record(state, last, moved, [&] { return state.forget_run(last.job.key()); });
  if (!lock.ok()) return lock.error();
  std::vector<Removal> aside;
  if (*lock) aside.push_back({last, lock.take()});
  return aside;
}

Status remove_job_files(const StateDir& state, const JobRecord& record) {
  const bool moved = rename_in_time(state, {&record}).front();
  Result<Fd> lock = state.make_removal(record);
  if (!lock.ok()) return lock.error();
  if (!moved) MONARCH_TRY(note_unmoved(state, record));
  std::vector<Removal> removals;
  removals.push_back({record, lock.take()});
  remove_in_background(state, std::move(removals), patience::kHookStepMs);
  return {};
}

bool remove_in_background(const StateDir& state, std::vector<Removal> removals, int patience_ms) {
  if (removals.empty()) return true;
  const pid_t pid = ::fork();
  if (pid < 0) return false;
  const auto enters = patience_ms > 0 ? HelperCgroup::Enters::kIfLeftBehind : HelperCgroup::Enters::kNow;
  if (pid == 0) remove_all(state, std::move(removals), {}, enters);
  if (patience_ms <= 0) return false;
  const std::optional<int> status = await_child(state.clock(), pid, state.clock().now_ms() + patience_ms);
  if (!status) leave_behind(state, pid);
  return status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0;
}

void find_and_remove(const StateDir& state, const Find& find) {
  if (::fork() == 0) remove_all(state, {}, find, HelperCgroup::Enters::kNow);
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
    } else if (!record.ok() && (record.error().code == ENOENT || record.error().code == EINVAL)) {
      (void)remove_tree(AT_FDCWD, dir).ok();
    }
  }
  return found;
}

}  // namespace monarch
