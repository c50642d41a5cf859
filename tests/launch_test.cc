// SPDX-License-Identifier: Apache-2.0
// How root starts an agent, with one that this program plays where it would execute monarchd; tests/node.t
// has real ones.
#include "runtime/node/launch.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include "runtime/node/job_dirs.h"
#include "runtime/node/life.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

constexpr int kReadyFd = 3;

class LaunchTest : public NodeTest {
 protected:
  void SetUp() override {
    NodeTest::SetUp();
    if (!can_trap()) GTEST_SKIP() << "no system call can be trapped here";
  }
  // What the agent says, in these parts; then it ends, or waits to be killed.
  struct Agent {
    std::vector<std::string> says;
    bool ends = false;
  };
  static constexpr int kPatienceMs = 60000;  // of a launch whose agent answers

  // Instead of an agent, which would be executed.
  static CallHandler play(const Agent& agent) {
    return [=](CallArguments) -> int {
      for (const std::string& part : agent.says) {
        (void)!::write(kReadyFd, part.data(), part.size());
        while (is_unread(kReadyFd)) ::sched_yield();  // so that it comes in parts
      }
      while (!agent.ends) ::pause();
      ::_exit(0);
    };
  }
  // Of an agent that is about to be executed.
  static std::string words_of(CallArguments a) {
    std::string words;
    for (char** word = reinterpret_cast<char**>(a[1]); *word; ++word) words += std::string(" ") + *word;
    return words;
  }
  [[noreturn]] static void says(const std::string& text) {
    (void)!::write(kReadyFd, text.data(), text.size());
    ::_exit(0);
  }
  // Whether a pipe has bytes that nobody has read.
  static bool is_unread(int pipe) {
    int bytes = 0;
    return ::ioctl(pipe, FIONREAD, &bytes) == 0 && bytes > 0;
  }
  // What `body` says in a child where these calls are trapped.
  std::string with(long call, const CallHandler& handler, const std::function<std::string()>& body) const {
    const int status = in_child([&] {
      ::alarm(600);
      if (!before_call(call, handler)) return kNoTraps;
      const int before = open_descriptors();
      std::string found = body();
      if (open_descriptors() != before) found += ", descriptors are left";
      scratch_.file("found", found);
      return 0;
    });
    return status == 0 ? contents(scratch_ / "found") : "status " + std::to_string(status);
  }
  // What became of a launch; the error, and what it leaves.
  std::string launch(int patience_ms = kPatienceMs, const std::vector<gid_t>& groups = {},
                     const AgentPeers* peers = nullptr) const {
    JobRecord r = record(1);
    r.user.groups = groups;
    const Removal job = begin(r);
    const Result<std::string> s = launch_agent(state_, 0, patience_ms, peers, {}, &r);
    if (s.ok()) {
      const bool recorded = state_.read_record(r.job.key())->agent.pid == r.agent.pid;
      const bool runs = is_running(r.agent);
      Cgroups().end(state_.cgroup_of(r), 10000);
      ::kill(r.agent.pid, SIGKILL);
      wait_children();
      return (!recorded ? "not recorded" : runs ? "it runs" : "it has ended") + (s->empty() ? "" : ", " + *s);
    }
    std::string text = s.error().text;
    if (::waitpid(-1, nullptr, WNOHANG) != -1) text += ", a process is left";
    if (!Cgroups().names(state_.cgroup_of(r)).empty()) text += ", its group is left";
    return text;
  }
  std::string launched(const Agent& agent, int patience_ms = kPatienceMs) const {
    return with(SYS_execve, play(agent), [&] { return launch(patience_ms); });
  }
};

TEST_F(LaunchTest, AnAgentSaysWhetherItIsReady) {
  using Says = std::vector<std::string>;
  EXPECT_EQ(launched({Says{"ready\n"}}), "it runs");
  EXPECT_EQ(launched({Says{"rea", "dy\n"}}), "it runs") << "in two parts";
  EXPECT_EQ(launched({Says{"ready\tno library\n"}}), "it runs, no library") << "why it has no peers";
  EXPECT_EQ(launched({Says{}}, 0), "it runs") << "it may be ready later";
  EXPECT_EQ(launched({Says{"no tier\n"}}), "no tier") << "and is killed";
  EXPECT_EQ(launched({Says{"no ", "tier\n"}}), "no tier");
  EXPECT_EQ(launched({Says{"no tier"}, true}), "no tier");
  EXPECT_EQ(launched({Says{}, true}), "the agent ended before it was ready");
  EXPECT_EQ(launched({Says{std::string(5000, 'x')}}), "the agent's answer has no end");
}

// What a job has on its tier, a store for it, and an agent; what the agent says.
class LaunchStoreTest : public LaunchTest {
 protected:
  static constexpr int kTierFd = 3, kRequestFd = 4, kAnswerFd = 5, kAgentsAnswers = 7;
  // Instead of both.
  static int play_both(CallArguments a) {
    const std::string words = words_of(a);
    if (!has(words, " --tier-fd ")) play_agent(words);
    const bool sees_tier = ::faccessat(kTierFd, "07", F_OK, 0) == 0;
    const bool nothing_else = ::fcntl(kAnswerFd + 1, F_GETFD) < 0;
    char byte;
    const bool deaf = ::recv(kAnswerFd, &byte, 1, MSG_DONTWAIT) == 0;
    const std::string said = words + (sees_tier ? "|tier" : "|") + (nothing_else ? "|" : "|another") +
                             (deaf ? "|deaf" : "|") + (::geteuid() == 0 ? "|root" : "|");
    (void)!::write(kAnswerFd, said.data(), said.size());
    while (::read(kRequestFd, &byte, 1) == 1) continue;
    ::_exit(0);
  }
  [[noreturn]] static void play_agent(const std::string& words) {
    char answer[1024];
    const ssize_t n = ::read(kAgentsAnswers, answer, sizeof answer);
    const size_t at = words.find(" --store ");
    std::string said = "ready\t" + (at == std::string::npos ? "" : words.substr(at)) + "|" +
                       std::string(answer, static_cast<size_t>(std::max<ssize_t>(n, 0))) +
                       (::fcntl(kAgentsAnswers + 1, F_GETFD) < 0 ? "\n" : "|another\n");
    (void)!::write(kReadyFd, said.data(), said.size());
    for (;;) ::pause();
  }
};

TEST_F(LaunchStoreTest, HasThreeDescriptorsAndTellsTheAgentAndEndsWithIt) {
  const std::string said = with(SYS_execve, play_both, [&] {
    JobRecord r = record(1);
    r.layout = 2;
    const Removal job = begin(r);
    std::vector<JobDir> dirs;
    dirs.push_back({"tier", Fd(::open((scratch_ / ("tier/monarch/" + r.removal())).c_str(), O_RDONLY))});
    std::vector<StartedStore> stores = start_stores(state_, 0, dirs, r);
    const Result<std::string> s = launch_agent(state_, 0, kPatienceMs, nullptr, std::move(stores), &r);
    ::kill(r.agent.pid, SIGKILL);
    wait_children();
    Cgroups().end(state_.cgroup_of(r), kPatienceMs);
    return s.ok() ? *s : s.error().text;
  });
  EXPECT_EQ(said,
            " --store tier:6:7| monarchd --store tier --tier-fd 3 --request-fd 4 --answer-fd 5 --grants " +
                state_.path() + "/" + record(1).grants() + "|tier||deaf|root");
}

TEST_F(LaunchStoreTest, WhereNoneCanBeStartedTheTierIsLeftOut) {
  const auto fails = [](CallArguments) { return EMFILE; };
  const std::string said = with(SYS_socketpair, fails, [&] {
    JobRecord r = record(1);
    std::vector<JobDir> dirs;
    dirs.push_back({"tier", Fd(::open(scratch_.path().c_str(), O_RDONLY))});
    size_t started = 1;
    const std::string log = logged([&] { started = start_stores(state_, 0, dirs, r).size(); });
    Cgroups().remove_if_empty(state_.cgroup_of(r));
    return std::to_string(started) + log;
  });
  EXPECT_EQ(said.substr(0, 1), "0");
  EXPECT_TRUE(has(said, "JobId=1 tier tier: its store cannot be started: socketpair")) << said;
}

TEST_F(LaunchTest, WhatItsOwnerHasMountedOnItsDirectoryIsNotAsked) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  const auto repeat = [](CallArguments a) -> int {
    says(words_of(a).find(" --exclude-file ") == std::string::npos ? "no pattern\n" : "a pattern\n");
  };
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    const auto launched_after = [&](const std::function<void(const std::string& run_dir)>& what) {
      return with(SYS_execve, repeat, [&] {
        JobRecord r = record(1);
        const Removal job = begin(r);
        what(r.run_dir.substr(scratch_.path().size() + 1));
        const Result<std::string> s = launch_agent(state_, 0, kPatienceMs, nullptr, {}, &r);
        return s.ok() ? *s : s.error().text;
      });
    };
    m->check(launched_after([](const std::string&) {}) == "no pattern", "none");
    const auto exclude = [&](const std::string& run) { scratch_.file(run + "/" + kExclude, "*.idx"); };
    m->check(launched_after(exclude) == "a pattern", "a pattern");
    const auto mount = [&](const std::string& run) {
      m->fuse(run + "/" + kExclude, kUid, ",allow_other", "100000");
    };
    m->check(launched_after(mount).starts_with("a pattern"), "what is mounted there is not asked");
  });
}

TEST_F(LaunchTest, AnAgentIsToldWhoseItIsAndOfItsPeersAndOfTheKeyByAPipe) {
  constexpr int kKeyFd = 5;
  const auto repeat = [](CallArguments a) -> int {
    std::string words = words_of(a);
    char key[64];
    const ssize_t n = ::read(kKeyFd, key, sizeof key);
    words = words.substr(words.find(" --uid")) + "|" +
            std::string(key, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    words += ::read(kKeyFd, key, 1) <= 0 ? "|end" : "|more";
    for (char** variable = reinterpret_cast<char**>(a[2]); *variable; ++variable)
      words += std::string("|") + *variable;
    says(words + (::fcntl(kKeyFd + 1, F_GETFD) < 0 ? "\n" : "|another\n"));
  };
  AgentPeers peers;
  peers.own = 3;
  peers.identity = "c.1.0";
  peers.key.fill('k');
  const auto told = [&](const std::vector<gid_t>& groups, const AgentPeers* with_these) {
    return with(SYS_execve, repeat, [&] { return launch(kPatienceMs, groups, with_these); });
  };
  const std::string user = " --uid 65534 --gid 65534", rest = "|end|PATH=/usr/bin:/bin";
  EXPECT_EQ(told({}, &peers), user + " --peers " + state_.run_dir(record(1)) +
                                  "/peers --peer-index 3 --peer-identity c.1.0 --peer-key-fd 5|" +
                                  std::string(32, 'k') + rest);
  EXPECT_EQ(told({}, nullptr), user + "|" + rest);
  EXPECT_EQ(told({5, 70000}, nullptr), user + " --groups 5,70000|" + rest);
}

TEST_F(LaunchTest, WithoutAProcessOrAPipeThereIsNoAgentAndNothingLeft) {
  const auto refuse = [](int error) { return [=](CallArguments) { return error; }; };
  EXPECT_EQ(with(SYS_clone, refuse(EAGAIN), [&] { return launch(); }),
            "fork: Resource temporarily unavailable");
  for (int at = 1; at <= 2; ++at) {
    int count = 0;
    EXPECT_EQ(
        with(
            SYS_pipe2, [&](CallArguments) { return ++count == at ? EMFILE : 0; }, [&] { return launch(); }),
        "pipe: Too many open files");
  }
}

bool opens(CallArguments a, const std::string& suffix) {
  return std::string(reinterpret_cast<const char*>(a[1])).ends_with(suffix);
}

TEST_F(LaunchTest, AnAgentWithoutAGroupOfItsOwnIsLogged) {
  const Cgroups groups;
  const std::string group = state_.cgroup_of(record(1));
  if (!groups.make(group, 0).ok()) GTEST_SKIP() << "no control group can be made here";
  groups.remove_if_empty(group);
  // What it executes is killed when it opens a file.
  for (const std::string& file :
       {std::string("/nothing"), group + "/cgroup.procs", std::string("/self/mountinfo")}) {
    const auto refuse = [=](CallArguments a) {
      return opens(a, file) && (a[2] & O_WRONLY || !file.ends_with("procs")) ? EACCES : 0;
    };
    const std::string log = logged([&] {
      EXPECT_EQ(with(SYS_openat, refuse, [&] { return launch(); }), "the agent ended before it was ready");
    });
    EXPECT_EQ(has(log, "has no control group of its own: "), file != "/nothing") << log;
    EXPECT_EQ(recorded(record(1).job).shared_group, file != "/nothing") << "that it died cannot be told then";
  }
}

// Of the calls for which that holds, the `number`th fails.
CallHandler fail(int number, int error, const std::function<bool(CallArguments)>& which) {
  return [=, count = 0](CallArguments a) mutable { return which(a) && ++count == number ? error : 0; };
}
constexpr int kSecond = 2;  // the test itself has written the first one
bool opens_record(CallArguments a) { return opens(a, "/record.json.new"); }

TEST_F(LaunchTest, AnAgentThatCannotBeRecordedDoesNotBegin) {
  const std::string record = state_.path() + "/jobs/c.1.n1/record.json.new";
  EXPECT_EQ(with(SYS_openat, fail(kSecond, EMFILE, &opens_record), [&] { return launch(); }),
            "make " + record + ": Too many open files");
  const std::string unknown =
      with(SYS_openat, fail(1, EMFILE, [](CallArguments a) { return opens(a, "/stat"); }),
           [&] { return launch(); });
  EXPECT_TRUE(unknown.starts_with("no process ") && !has(unknown, "left")) << unknown;
  // A byte; sanitizers write more into pipes of their own, to see whether memory can be read.
  const auto to_agent = [](CallArguments a) {
    struct stat st;
    return a[2] == 1 && ::fstat(static_cast<int>(a[0]), &st) == 0 && S_ISFIFO(st.st_mode);
  };
  EXPECT_EQ(with(SYS_write, fail(1, EIO, to_agent), [&] { return launch(); }),
            "tell the agent to begin: Input/output error");
}

// ---- whether an agent had died before its job ended

class LookAtAgentTest : public NodeTest {
 protected:
  // An agent in a group of its own, with a second thread; its first one ends once it is told to.
  bool start() {
    int ends[2];
    if (!Cgroups().make(state_.cgroup_of(record_), 0).ok() || ::pipe(ends) != 0) return false;
    const pid_t pid = ::fork();
    if (pid == 0) {
      char go;
      ::close(ends[1]);
      std::thread([] { idle(); }).detach();
      (void)!::read(ends[0], &go, 1);
      ::syscall(SYS_exit, 0);  // of this thread alone
    }
    ::close(ends[0]);
    end_first_thread_ = Fd(ends[1]);
    record_.agent = identify(pid).take();
    (void)begin(record_);
    return true;
  }
  void TearDown() override {
    if (::geteuid() == 0) Cgroups().end(state_.cgroup_of(record_), 30000);
    NodeTest::TearDown();
  }

  JobRecord record_ = record(1);
  Fd end_first_thread_;
};

TEST_F(LookAtAgentTest, OneThatLivesEndsWithItsJob) {
  if (!start()) GTEST_SKIP() << "no control group can be made here";
  EXPECT_EQ(look_at_agent(state_, &record_), AgentEnd::kWithJob);
  EXPECT_TRUE(stop_agent(state_, record_, 30000));
  EXPECT_EQ(look_at_agent(state_, &record_), AgentEnd::kWithJob)
      << "it was seen alive, and then killed by root";
}

TEST_F(LookAtAgentTest, OneThatWasKilledHadDied) {
  if (!start()) GTEST_SKIP() << "no control group can be made here";
  EXPECT_TRUE(signal_and_wait(record_.agent, SIGKILL, 30000));
  EXPECT_EQ(look_at_agent(state_, &record_), AgentEnd::kBefore);
  EXPECT_EQ(look_at_agent(state_, &record_), AgentEnd::kBefore) << "whoever asks again finds the same";
}

// A killed process is listed as ended when its first thread has ended; on a busy node the others execute
// something for a while, and the sweep takes the job for dead by then.
TEST_F(LookAtAgentTest, OneWhoseFirstThreadHasEndedHadDied) {
  if (!start()) GTEST_SKIP() << "no control group can be made here";
  end_first_thread_.reset();
  ASSERT_TRUE(eventually([&] { return !is_running(record_.agent); }));
  ASSERT_FALSE(is_ending(record_.agent)) << "this is what the test is about";
  EXPECT_EQ(look_at_agent(state_, &record_), AgentEnd::kBefore);
}

TEST_F(LookAtAgentTest, OneWithoutGroupsOfItsOwnIsNotJudged) {
  if (!start()) GTEST_SKIP() << "no control group can be made here";
  EXPECT_TRUE(signal_and_wait(record_.agent, SIGKILL, 30000));
  record_.shared_group = true;
  EXPECT_EQ(look_at_agent(state_, &record_), AgentEnd::kWithJob) << "Slurm may have ended it";
}

}  // namespace
}  // namespace monarch
