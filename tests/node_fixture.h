// SPDX-License-Identifier: Apache-2.0
// A node with one tier, and jobs of a user's on it, as root's helpers make them.
#pragma once

#include "runtime/node/cgroup.h"
#include "runtime/node/removal.h"
#include "runtime/node/state.h"
#include "tests/hanging_fs.h"
#include "tests/logged.h"
#include "tests/manual_clock.h"

namespace monarch {

// Root's state directory, and nothing in it.
class StateDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    std::filesystem::permissions(scratch_.path(), std::filesystem::perms(0755));
    Result<StateDir> state = StateDir::open(scratch_ / "state", clock_);
    ASSERT_TRUE(state.ok()) << state.error().text;
    state_ = state.take();
  }
  // What is recorded of that job, and a change to it.
  JobRecord recorded(const JobOnNode& job) const { return *state_.read_job(job); }
  void change(const JobOnNode& job, const std::function<void(JobRecord*)>& change) const {
    (void)state_.lock_job(job, true, 0).ok();
    JobRecord record = recorded(job);
    change(&record);
    EXPECT_TRUE(state_.write_record(record).ok());
  }
  // What `body` logs.
  std::string logged(const std::function<void()>& body) const { return monarch::logged(scratch_, body); }

  const Scratch scratch_;
  PatientClock clock_;
  StateDir state_;
};

class NodeTest : public StateDirTest {
 protected:
  static constexpr uid_t kUid = 65534;
  static constexpr uint64_t kSerial = 9'000'000'000'000'000'000;

  void SetUp() override {
    StateDirTest::SetUp();
    make_tier("tier");
  }
  void TearDown() override {
    if (::geteuid() != 0) return;
    end_children();
    for (const std::string& run : runs())
      ::umount2((state_.path() + "/run/" + run).c_str(), MNT_DETACH);  // a start's
  }

  // Kills what this process has started, and what they have; a killed helper leaves its control group.
  void end_children() const {
    for (const pid_t child : children()) ::kill(child, SIGKILL);
    wait_children();
    eventually([&] {
      Cgroups().kill(state_.helpers_cgroup());
      Cgroups().remove_if_empty(state_.helpers_cgroup());
      return Cgroups().names(state_.cgroup_prefix()).empty();
    });
  }
  static void wait_children() {
    while (::waitpid(-1, nullptr, 0) > 0) continue;
  }
  static std::vector<pid_t> children() {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream in(entry.path() / "stat");
      std::string line, state;
      pid_t parent = 0;
      if (!std::getline(in, line) || line.rfind(')') == std::string::npos) continue;
      std::istringstream(line.substr(line.rfind(')') + 1)) >> state >> parent;
      if (parent == ::getpid()) found.push_back(std::stoi(entry.path().filename()));
    }
    return found;
  }
  // A large process, as under a sanitizer, takes its time to end once it is killed.
  static bool no_child_is_left() {
    return eventually([] {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;
      return children().empty();
    });
  }
  static long children_in_state(char state) {
    const std::vector<pid_t> all = children();
    return std::count_if(all.begin(), all.end(), [=](pid_t pid) { return state_of(pid) == state; });
  }
  static bool has_child_in_state(char state) { return children_in_state(state) > 0; }
  // Those that have not ended.
  static long children_that_run() {
    const std::vector<pid_t> all = children();
    return std::count_if(all.begin(), all.end(), [](pid_t pid) { return state_of(pid) != 'Z'; });
  }
  // A process that does nothing, and ends with this one.
  static pid_t start_idle() {
    const pid_t pid = ::fork();
    if (pid == 0) idle();
    return pid;
  }
  // What looks like a step's slurmstepd, with a child for each character of `tasks`: 'r' runs, 'z' has ended.
  // Ends with this process, too.
  struct Stepd {
    pid_t pid;
    std::vector<pid_t> tasks;
  };
  static Stepd start_stepd(uint32_t job, const std::string& step, const std::string& tasks = "") {
    const std::string title = "slurmstepd: [" + std::to_string(job) + "." + step + "]";
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const Fd in(ends[0]), out(ends[1]);
    Stepd made{::fork(), {}};
    if (made.pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const char kind : tasks) {
        const pid_t task = ::fork();
        if (task == 0 && kind == 'z') ::_exit(0);
        if (task == 0) idle();
        (void)!::write(out.get(), &task, sizeof task);
      }
      ::execl("/bin/sleep", title.c_str(), "600", nullptr);
      ::_exit(127);
    }
    for (size_t i = 0; i < tasks.size(); ++i) {
      pid_t task = 0;
      EXPECT_EQ(::read(in.get(), &task, sizeof task), static_cast<ssize_t>(sizeof task));
      made.tasks.push_back(task);
      // One that runs waits: whoever stops it before it is to end with its parent leaves it for ever.
      EXPECT_TRUE(eventually([&] { return state_of(task) == (tasks[i] == 'z' ? 'Z' : 'S'); }));
    }
    const std::string cmdline = "/proc/" + std::to_string(made.pid) + "/cmdline";
    EXPECT_TRUE(eventually([&] { return contents(cmdline).starts_with(title); }));
    return made;
  }
  [[noreturn]] static void idle() {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }

  std::string make_tier(const std::string& name) const {
    scratch_.dir(name + "/monarch");
    std::filesystem::permissions(scratch_ / (name + "/monarch"), std::filesystem::perms(0711));
    return scratch_ / name;
  }
  TierRecord tier(const std::string& name, uint64_t quota) const {
    return {name, "nvme", scratch_ / name, TierConfig::Kind::kDirectory, quota, quota};
  }
  JobRecord record(uint32_t job) const {
    JobRecord r;
    r.job = {job, "n1", "c"};
    r.name = "c." + std::to_string(job) + ".0.n1";
    r.user = {kUid, kUid, {}};
    r.boot = boot_id();
    r.serial = kSerial;
    r.layout = 2;
    r.run_dir = state_.run_dir(r);
    r.tiers = {tier("tier", 100 * kMiB)};
    return r;
  }

  // What asks Slurm, from now on: it notes its words, and does that.
  void says(const std::string& body) {
    program_ =
        scratch_.file("program", "#!/bin/sh\necho \"$*\" >>" + (scratch_ / "asked") + "\n" + body + "\n");
    ::chmod(program_.c_str(), 0755);
  }
  // A directory of the user's with a file in it.
  static void fill(const std::string& path) {
    std::filesystem::create_directory(path);
    std::ofstream(path + "/data") << noise(8192, 1);
    for (const std::string& p : {path, path + "/data"}) EXPECT_EQ(::chown(p.c_str(), kUid, kUid), 0) << p;
  }
  // A job's run directory: root's, with a file of the user's in it.
  static void fill_run(const std::string& path) {
    fill(path);
    EXPECT_TRUE(::chown(path.c_str(), 0, 0) == 0 && ::chmod(path.c_str(), 0711) == 0) << path;
  }
  // The same on a tier, where all in it is root's. Returns a copy of 8 KiB.
  static std::string fill_with_copies(const std::string& path) {
    std::filesystem::create_directories(path + "/07");
    std::filesystem::permissions(path, std::filesystem::perms(0710));
    std::ofstream(path + "/07/00000007") << noise(8192, 1);
    return path + "/07/00000007";
  }

  // The job's directories and record, and the lock on the latter.
  Removal begin(const JobRecord& r) const {
    Result<Fd> lock = state_.lock_job(r.job, true, 0);
    EXPECT_TRUE(lock.ok() && state_.write_record(r).ok() && state_.write(r.grants(), "").ok());
    for (const TierRecord& t : r.tiers) {
      const std::string dir = t.path + "/monarch/" + r.on_tier();
      r.has_roots_tiers() ? (void)fill_with_copies(dir) : fill(dir);
    }
    r.has_roots_tiers() ? fill_run(r.run_dir) : fill(r.run_dir);
    return {r, lock.ok() ? lock.take() : Fd()};
  }
  std::vector<Removal> begin_one(const JobRecord& r) const {
    std::vector<Removal> jobs;
    jobs.push_back(begin(r));
    return jobs;
  }
  // Whether somebody is at work on it.
  bool is_locked(const std::string& below) const { return !lock_if_free(state_.path() + "/" + below); }

  std::vector<std::string> on_tier() const { return names_in(scratch_ / "tier/monarch"); }
  std::vector<std::string> runs() const { return names_in(state_.path() + "/run"); }
  std::vector<std::string> jobs() const { return names_in(state_.path() + "/jobs"); }
  std::vector<std::string> in_removing() const { return names_in(state_.path() + "/removing"); }
  void nothing_is_left() const {
    EXPECT_TRUE(on_tier().empty());
    EXPECT_TRUE(runs().empty());
    EXPECT_TRUE(jobs().empty());
    EXPECT_TRUE(in_removing().empty());
    EXPECT_TRUE(names_in(state_.path() + "/grants").empty());
  }
  bool exists(const std::string& path) const {
    return std::filesystem::exists(std::filesystem::symlink_status(path));
  }

  using Names = std::vector<std::string>;

  std::string program_;
};

}  // namespace monarch
