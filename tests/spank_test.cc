// SPDX-License-Identifier: Apache-2.0
// What the SPANK plugin does. What it does inside the real Slurm is slurm.t's.
#include <sys/file.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <regex>
#include <sstream>

#include "runtime/base/fd.h"
#include "tests/hanging_fs.h"
#include "tests/private_mounts.h"
#include "tests/spank_fixture.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

// ---- options

TEST_F(SpankPlugin, RegistersItsOptionsWhereAJobIsSubmittedOrRuns) {
  for (const spank_context_t context :
       {S_CTX_LOCAL, S_CTX_REMOTE, S_CTX_ALLOCATOR, S_CTX_SLURMD, S_CTX_JOB_SCRIPT, S_CTX_ERROR}) {
    load();
    init(context);
    const bool known = context == S_CTX_LOCAL || context == S_CTX_REMOTE || context == S_CTX_ALLOCATOR;
    EXPECT_EQ(fake_.options.size(), known ? 10u : 0u) << context;
  }
}

TEST_F(SpankPlugin, TakesDatasetsThatCanBeOne) {
  init(S_CTX_LOCAL);
  std::string sixteen;
  for (int i = 0; i < 16; ++i) sixteen += (i ? ":/d" : "/d") + std::to_string(i);
  const std::string longest = "/" + std::string(4094, 'a');
  for (const std::string& value :
       {std::string("/data"), std::string("/a:/b"), std::string("/a:"), std::string("/.a"),
        std::string("/a."), std::string("/./a"), std::string("/..a:/x"), std::string("/a/."), sixteen,
        longest, scratch_.path()})
    EXPECT_EQ(option("monarch-dataset", value.c_str()), ESPANK_SUCCESS) << value;
  EXPECT_EQ(said(), "");
}

TEST_F(SpankPlugin, RefusesDatasetsThatCannot) {
  init(S_CTX_LOCAL);
  std::string seventeen, too_long;
  for (int i = 0; i < 17; ++i) seventeen += (i ? ":/d" : "/d") + std::to_string(i);
  for (int i = 0; i < 5; ++i) too_long += (i ? ":/" : "/") + std::string(4000, 'a');
  const std::pair<std::string, std::string> cases[] = {
      {"", "no path given"},
      {too_long, "too long"},
      {seventeen, "more than 16 paths"},
      {"/" + std::string(4095, 'a'), "longer than 4095"},
      {"/", "whole root directory"},
      {"/./.", "whole root directory"},
      {"/a:/./", "whole root directory"},
      {"relative", "not an absolute path; write it from / on"},
      {"/a::/b", "not an absolute path (is ':' part of a name?"},
      {"/a:b", "not an absolute path (is ':' part of a name?"},
  };
  for (const auto& [value, text] : cases) {
    forget_said();
    EXPECT_EQ(option("monarch-dataset", value.c_str(), 1), ESPANK_BAD_ARG) << value;
    EXPECT_EQ(said(), "") << "on a node nobody reads it";
    EXPECT_EQ(option("monarch-dataset", value.c_str()), ESPANK_BAD_ARG) << value;
    EXPECT_TRUE(has(said(), text)) << value << ": " << said();
  }
  EXPECT_EQ(option("monarch-dataset", nullptr), ESPANK_BAD_ARG);
  fake_.context = S_CTX_REMOTE;
  hook("init_post_opt");
  EXPECT_EQ(arguments(), "") << "none of them is wanted";
}

TEST_F(SpankPlugin, RefusesAPathWithAColonThatIsThere) {
  init(S_CTX_LOCAL);
  scratch_.dir("a:/tmp");
  const std::string value = scratch_ / "a:/tmp";
  EXPECT_EQ(option("monarch-dataset", value.c_str()), ESPANK_BAD_ARG);
  EXPECT_TRUE(has(said(), "make a symbolic link")) << said();
  EXPECT_EQ(option("monarch-dataset", value.c_str(), 1), ESPANK_SUCCESS) << "two paths, as was submitted";
}

TEST_F(SpankPlugin, TakesOnlyKnownValuesOfTheOtherOptions) {
  init(S_CTX_LOCAL);
  struct Option {
    const char* name;
    std::vector<std::string> good, bad;
  };
  const std::string a(1023, 'a'), zeros(61, '0');
  const Option cases[] = {
      {"monarch-check", {"error", "warn", "off"}, {"", "on", "warning"}},
      {"monarch-prefetch", {"auto", "all", "off"}, {"", "al", "on", "auto|all", "all ", "offf"}},
      {"monarch-consistency", {"job", "open"}, {"", "jo", "none", "job|open", "opens"}},
      {"monarch-tiers",
       {"nvme", "nvme,ram", "a-b_C0", a.substr(512)},
       {"", ",", "a,", ",a", "a,,b", "a b", "a=b", "a.b", a.substr(511)}},
      {"monarch-wait",
       {"none", "full", "1%", "80%", "100%"},
       {"", "0%", "101%", "80", "%", "08%", "-1%", "80%%", "all", "99999999999999999999%"}},
      {"monarch-wait-timeout", {"1", "600", "604800"}, {"", "0", "01", "-1", "604801", "1s", " 1"}},
      {"monarch-capacity",
       {"1", "1.5t", "10G:20G", "10GiB:10GB,require", "0:1K", "10G:require", "1G:2G:require", "1." + zeros},
       {"", "0", "10G:", ":10G", "10G:5G", "10X", "10G,", "-1", "10%", "0.5", "10 ", "1e5", "1G:2G:3G",
        "require", "10G:require:", "9P9", "1.0" + zeros}},
      {"monarch-exclude",
       {"*.log", "*.log:raw/*", ":a:", "[a-z]?", "/data/x", a},
       {"", ":", "::", "a b", "a\tb", "a\n", a + "a"}},
  };
  for (const Option& o : cases) {
    SCOPED_TRACE(o.name);
    forget_said();
    for (const std::string& value : o.good) EXPECT_EQ(option(o.name, value.c_str()), ESPANK_SUCCESS) << value;
    EXPECT_EQ(said(), "");
    for (const std::string& value : o.bad) {
      forget_said();
      EXPECT_EQ(option(o.name, value.c_str(), 1), ESPANK_BAD_ARG) << value;
      EXPECT_EQ(said(), "") << "on a node nobody reads it";
      EXPECT_EQ(option(o.name, value.c_str()), ESPANK_BAD_ARG) << value;
      EXPECT_TRUE(has(said(), std::string("--") + o.name + ": ")) << said();
      EXPECT_TRUE(has(said(), value.size() > 60 ? "" : value)) << "what is too long is not told: " << said();
    }
    EXPECT_EQ(option(o.name, nullptr), ESPANK_BAD_ARG);
  }
}

TEST_F(SpankPlugin, HandsTheOtherOptionsToItsHelpers) {
  ::setenv("SLURM_JOB_ID", "7", 1);
  fake_.context = S_CTX_JOB_SCRIPT;
  fake_.given = {{"monarch-dataset", "/data"}, {"monarch-tiers", "a,b"}, {"monarch-prefetch", "all"}};
  hook("job_prolog");
  EXPECT_EQ(told_helper("MONARCH_JOB_DATASETS"), "/data");
  EXPECT_EQ(told_helper("MONARCH_JOB_OPTIONS"), "prefetch=all tiers=a,b");
  EXPECT_FALSE(has(arguments(), "/data") || has(arguments(), "prefetch")) << "all can read a command line";
  load();
  fake_.given = {{"monarch-dataset", "/data"}, {"monarch-wait", "80%"}, {"monarch-wait-timeout", "60"}};
  hook("job_prolog");
  EXPECT_EQ(told_helper("MONARCH_JOB_OPTIONS"), "wait=80% wait_timeout=60");
  load();
  fake_.given = {{"monarch-consistency", "open"}};
  hook("job_prolog");
  EXPECT_EQ(arguments(), "") << "no dataset";
}

TEST_F(SpankPlugin, NamesWordsOfPlugstackConfThatItDoesNotKnow) {
  char word[] = "colour=red";
  for (const spank_context_t users : {S_CTX_LOCAL, S_CTX_ALLOCATOR}) {
    fake_.context = users;
    call("init", {word});
    EXPECT_EQ(said(), "") << "it is no concern of the user's";
  }
  fake_.context = S_CTX_REMOTE;
  call("init", {word});
  EXPECT_TRUE(has(said(), "unknown word 'colour=red'")) << said();
  forget_said();
  hook("init");
  EXPECT_EQ(said(), "");
}

TEST_F(SpankPlugin, HandsOnWhatPlugstackConfSaysOfTheConfiguration) {
  words_.push_back("agent.prefetch=off");
  words_.push_back("policy.partition.gpu.enabled=off");
  step();
  EXPECT_EQ(said(), "");
  EXPECT_TRUE(has(arguments(), " --set agent.prefetch=off --set policy.partition.gpu.enabled=off "))
      << arguments();
  for (int i = 2; i < 32; ++i) words_.push_back("a.b=" + std::to_string(i));
  step();
  EXPECT_EQ(said(), "");
  EXPECT_TRUE(has(arguments(), " --set a.b=31 ") && has(arguments(), " --reply-fd 3")) << arguments();
  words_.push_back("a.b=32");
  step();
  EXPECT_TRUE(has(said(), "too many words: 'a.b=32'")) << said();
}

TEST_F(SpankPlugin, HandsTwinsOfOptionsToSlurm) {
  ::setenv("MONARCH_IO_OPT_DATASET", "/data", 1);
  ::setenv("MONARCH_IO_OPT_NO_MONARCH", "", 1);
  const std::pair<std::string, std::string> twins[] = {{"PREFETCH", "prefetch"},
                                                       {"CONSISTENCY", "consistency"},
                                                       {"TIERS", "tiers"},
                                                       {"WAIT", "wait"},
                                                       {"WAIT_TIMEOUT", "wait_timeout"}};
  for (const auto& [name, twin] : twins) ::setenv(("MONARCH_IO_OPT_" + name).c_str(), twin.c_str(), 1);
  init(S_CTX_REMOTE);
  hook("init_post_opt");
  EXPECT_FALSE(::getenv(kDatasetVariable)) << "not on a node";
  EXPECT_STREQ(::getenv("MONARCH_IO_OPT_DATASET"), "/data");
  load();
  init(S_CTX_LOCAL);
  EXPECT_STREQ(::getenv(kDatasetVariable), "/data");
  EXPECT_STREQ(::getenv(kRefusedVariable), "");
  for (const auto& [name, twin] : twins)
    EXPECT_STREQ(::getenv(("SLURM_SPANK__SLURM_SPANK_OPTION_monarch_monarch_" + twin).c_str()), twin.c_str());
  ::setenv(kDatasetVariable, "/other", 1);
  load();
  init(S_CTX_ALLOCATOR);
  EXPECT_STREQ(::getenv(kDatasetVariable), "/other") << "what is there stays";
  hook("init_post_opt");
  EXPECT_FALSE(::getenv("MONARCH_IO_OPT_DATASET") || ::getenv("MONARCH_IO_OPT_NO_MONARCH"));
}

TEST_F(SpankPlugin, RefusesATwinThatNeedsAValue) {
  ::setenv("MONARCH_IO_OPT_DATASET", "", 1);
  EXPECT_EQ(in_child([&] { return init(S_CTX_ALLOCATOR), 7; }), 1);
  EXPECT_TRUE(has(said(), "MONARCH_IO_OPT_DATASET is set to nothing")) << said();
}

TEST_F(SpankPlugin, AJobSubmittedInAJobDoesNotInheritItsMonarch) {
  const std::string lib = scratch_ / "libmonarch_preload.so";
  const auto is_inherited = [&](const char* job, spank_context_t context) {
    load();
    ::setenv(kDatasetVariable, "/data", 1);
    ::setenv("LD_PRELOAD", (lib + ":/other.so").c_str(), 1);
    ::setenv("MONARCH_IO_RUN_DIR", "/run/x", 1);
    job ? ::setenv("SLURM_JOB_ID", job, 1) : ::unsetenv("SLURM_JOB_ID");
    init(context);
    EXPECT_EQ(::getenv(kDatasetVariable) != nullptr, ::getenv("MONARCH_IO_RUN_DIR") != nullptr);
    return ::getenv(kDatasetVariable) != nullptr;
  };
  for (const spank_context_t context : {S_CTX_LOCAL, S_CTX_REMOTE})
    EXPECT_TRUE(is_inherited("7", context)) << "a step is of the same job";
  EXPECT_TRUE(is_inherited(nullptr, S_CTX_ALLOCATOR));
  EXPECT_FALSE(is_inherited("7", S_CTX_ALLOCATOR));
  EXPECT_STREQ(::getenv("LD_PRELOAD"), "/other.so");
  ::setenv("LD_PRELOAD", lib.c_str(), 1);
  for (int i = 0; i < 2; ++i) {
    init(S_CTX_ALLOCATOR);
    EXPECT_FALSE(::getenv("LD_PRELOAD")) << "without one nothing is to be dropped";
  }
}

// ---- submission

TEST_F(SpankPlugin, RefusesWhatCannotBeRead) {
  const std::string data = scratch_.dir("data"), absent = scratch_ / "absent",
                    file = scratch_.file("file", "");
  const std::pair<std::string, std::string> cases[] = {
      {absent, "/absent: No such file or directory; is it spelled right?"},
      {data + "," + data, "No such file or directory; separate several directories by ':'"},
      {data + ":" + absent, "/absent: No such file"},
      {absent + ":" + data, "/absent: No such file"},
      {file, "name the directory that the files are in"},
      {file + "/below", ""},
      {"/proc/self/../..", "it is the root directory"},
      {"/" + std::string(300, 'a'), "add --monarch-check=off"},
  };
  for (const auto& [dataset, text] : cases) {
    EXPECT_EQ(submit(dataset), 1) << dataset;
    EXPECT_TRUE(has(said(), text)) << dataset << ": " << said();
  }
  EXPECT_EQ(submit(absent, S_CTX_LOCAL), 1);
}

TEST_F(SpankPlugin, RefusesToWaitForWhatIsNotStaged) {
  const auto submits = [&](const char* prefetch, const char* wait, spank_context_t context) {
    return submit_with({{"monarch-check", "off"},
                        {"monarch-dataset", "/data"},
                        {"monarch-prefetch", prefetch},
                        {"monarch-wait", wait}},
                       context) == 0;
  };
  for (const spank_context_t context : {S_CTX_ALLOCATOR, S_CTX_LOCAL}) {
    EXPECT_FALSE(submits("off", "80%", context));
    EXPECT_TRUE(has(said(), "--monarch-wait=80% waits for what --monarch-prefetch=off")) << said();
    EXPECT_TRUE(submits("off", "none", context));
    EXPECT_TRUE(submits("auto", "80%", context));
  }
  ::setenv("SLURM_JOB_ID", "7", 1);
  EXPECT_TRUE(submits("off", "80%", S_CTX_LOCAL)) << "a step, which has its job's";
}

TEST_F(SpankPlugin, WarnsOfOptionsWithoutADataset) {
  const auto warns = [&](const Options& options, spank_context_t context) {
    EXPECT_EQ(submit_with(options, context), 0) << "the administrator may have set one";
    EXPECT_TRUE(said().empty() ||
                has(said(), "info: warning: monarch: options without --monarch-dataset=PATH"))
        << said();
    return !said().empty();
  };
  const Options wait = {{"monarch-wait", "full"}};
  for (const spank_context_t context : {S_CTX_ALLOCATOR, S_CTX_LOCAL}) {
    EXPECT_TRUE(warns(wait, context));
    EXPECT_FALSE(warns({{"no-monarch", nullptr}}, context));
    EXPECT_FALSE(warns({}, context));
  }
  ::setenv("MONARCH_IO_OPT_PREFETCH", "all", 1);
  EXPECT_FALSE(warns(wait, S_CTX_ALLOCATOR)) << "for all jobs of a user";
  ::unsetenv("MONARCH_IO_OPT_PREFETCH");
  ::setenv("SLURM_JOB_ID", "7", 1);
  EXPECT_FALSE(warns(wait, S_CTX_LOCAL)) << "a step, which has its job's";
  EXPECT_TRUE(warns(wait, S_CTX_ALLOCATOR)) << "another job";
}

TEST_F(SpankPlugin, WarnsOrSaysNothingWhereTheUserWantsIt) {
  const std::string absent = scratch_ / "absent";
  const auto submit_checked = [&](const char* check) {
    return submit_with({{"monarch-check", check}, {"monarch-dataset", absent.c_str()}});
  };
  EXPECT_EQ(submit_checked("warn"), 0);
  EXPECT_TRUE(has(said(), "info: warning: --monarch-dataset: ")) << said();
  EXPECT_EQ(submit_checked("off"), 0);
  EXPECT_EQ(said(), "");
  EXPECT_EQ(submit_with({{"monarch-dataset", absent.c_str()}, {"no-monarch", nullptr}}), 0);
  EXPECT_EQ(said(), "") << "a job without Monarch";
  ::setenv("SLURM_JOB_ID", "7", 1);
  EXPECT_EQ(submit(absent, S_CTX_LOCAL), 0) << "the job was checked";
  EXPECT_EQ(submit(absent), 1) << "another job";
}

TEST_F(SpankPlugin, RefusesADatasetThatTheTiersShare) {
  const std::string tier = scratch_.dir("fast/tier"), data = scratch_.dir("data");
  scratch_.dir("fast/tier/below");
  scratch_.dir("fast/tierra");
  std::filesystem::create_symlink(scratch_ / "fast", scratch_ / "link");
  for (const std::string& line : {"path = " + tier, "\t path\t:\t" + tier + "// ; of NVMe",
                                  "path=" + tier + "\t# of NVMe", "path=" + tier + " \t\r"}) {
    SCOPED_TRACE(line);
    scratch_.file("monarch.conf", "; path = " + data + "\n[tier]\nkind = disk\npathos = " + data + "\npathx" +
                                      data + "\ncost = " + data + "\npath = relative\npath =\n" + line +
                                      "\n");
    EXPECT_EQ(submit(scratch_ / "fast"), 1);
    EXPECT_TRUE(has(said(), "it holds " + tier + ", where")) << said();
    for (const std::string& dataset : {scratch_ / "link", tier, tier + "/below"})
      EXPECT_EQ(submit(dataset), 1) << dataset;
    EXPECT_TRUE(has(said(), "it lies in " + tier + ", where")) << said();
    for (const std::string& dataset : {data, scratch_ / "fast/tierra"})
      EXPECT_EQ(submit(dataset), 0) << said();
  }
  EXPECT_EQ(submit(scratch_.file("fast/tier/file", "")), 1);
  EXPECT_TRUE(has(said(), "name the directory that the files are in")) << said();
  const auto refuses = [&](const std::string& path, const std::string& dataset) {
    scratch_.file("monarch.conf", "path = " + path + "\n");
    return submit(dataset) == 1;
  };
  EXPECT_TRUE(refuses(scratch_ / "link/tier", scratch_ / "fast")) << "however its path is written";
  EXPECT_TRUE(refuses(data + "/absent", data)) << "nodes have it, this host has not";
  EXPECT_FALSE(refuses("/", data)) << "what holds all keeps nobody from submitting";
  EXPECT_FALSE(refuses("/" + std::string(5000, 'a'), data)) << "no path of a tier";
}

TEST_F(SpankPlugin, AFileSystemThatHangsDoesNotHangTheSubmission) {
  ASSERT_EQ(::mkfifo((scratch_ / "monarch.conf").c_str(), 0600), 0);  // opened by nobody else: that hangs
  EXPECT_EQ(submit(scratch_.dir("data")), 0);
  EXPECT_TRUE(has(said(), "did not answer within 2 s")) << said();
  load();
  init(S_CTX_ALLOCATOR);
  option("monarch-dataset", (scratch_ / "data").c_str());
  hook("init_post_opt");
  EXPECT_TRUE(has(said(), "did not answer within 2 s")) << said();
  EXPECT_TRUE(eventually([] { return ::waitpid(-1, nullptr, WNOHANG) != 0; })) << "what looked is killed";
}

// As an ordinary user with such a limit, in a child; a child of its own that has ended is still its own
// afterwards.
int with_limit(__rlimit_resource_t resource, const std::function<void()>& body) {
  return in_child([&] {
    const pid_t other = ::fork();
    if (other == 0) ::_exit(0);
    siginfo_t ended;
    ::waitid(P_PID, static_cast<id_t>(other), &ended, WEXITED | WNOWAIT);
    const int next = ::dup(STDIN_FILENO);
    ::close(next);
    const rlim_t most = resource == RLIMIT_NPROC ? 0 : static_cast<rlim_t>(next);
    const rlimit limit = {most, most};
    if (::geteuid() == 0 && ::setresuid(54321, 54321, 54321) != 0) return 3;
    if (::setrlimit(resource, &limit) != 0) return 4;
    body();
    return ::waitpid(other, nullptr, WNOHANG) == other ? 0 : 5;
  });
}

TEST_F(SpankPlugin, AShortageLeavesTheCheckOutAndStartsNothing) {
  ::chmod(scratch_.path().c_str(), 0777);
  for (const spank_context_t context : {S_CTX_ALLOCATOR, S_CTX_REMOTE}) {
    load();
    init(context);
    option("monarch-dataset", (scratch_ / "absent").c_str(), context == S_CTX_REMOTE);
    for (const auto resource : {RLIMIT_NOFILE, RLIMIT_NPROC})
      EXPECT_EQ(with_limit(resource, [&] { function("init_post_opt")(nullptr, 0, nullptr); }), 0) << resource;
    EXPECT_EQ(arguments(), "");
    if (context == S_CTX_ALLOCATOR) {
      EXPECT_EQ(said(), "");
    }
  }
}

// ---- prolog and epilog

TEST_F(SpankPlugin, ThePrologNotesWhatTheJobWants) {
  ::setenv("SLURM_JOB_ID", "7", 1);
  ::setenv("SLURM_CONF", "/etc/slurm.conf", 1);
  fake_.context = S_CTX_JOB_SCRIPT;
  hook("job_prolog");
  EXPECT_EQ(arguments(), "") << "nothing";
  fake_.given = {{"monarch-dataset", "/data"}, {"monarch-check", "off"}};
  hook("job_prolog");
  EXPECT_EQ(arguments(), "--prolog --config " + (scratch_ / "monarch.conf") + " --state-dir " +
                             (scratch_ / "state") + " --log " + (scratch_ / "log") +
                             " --job 7 --cluster cluster --node n1\n");
  EXPECT_EQ(told_helper("MONARCH_JOB_DATASETS"), "/data");
  EXPECT_TRUE(has("\n" + read("variables"), "\nSLURM_CONF=/etc/slurm.conf\n")) << read("variables");
  EXPECT_FALSE(has(read("variables"), "SLURMD_NODENAME")) << "nothing else of slurmd's";
  load();
  fake_.given["no-monarch"] = "";
  hook("job_prolog");
  EXPECT_EQ(arguments(), "") << "refused";
  load();
  fake_.given = {{"monarch-dataset", "relative"}};
  hook("job_prolog");
  EXPECT_EQ(arguments() + said(), "") << "no dataset";
}

TEST_F(SpankPlugin, PrologAndEpilogNeedAJobAndANode) {
  fake_.given = {{"monarch-dataset", "/data"}};
  scratch_.dir("state/jobs/cluster.7.n1");
  scratch_.dir("state/jobs/cluster..n1");
  scratch_.dir("state/jobs/cluster.7.");
  hook("job_prolog");
  hook("job_epilog");
  ::setenv("SLURM_JOB_ID", "7", 1);
  ::unsetenv("SLURMD_NODENAME");
  hook("job_prolog");
  hook("job_epilog");
  EXPECT_EQ(arguments(), "");
  ::setenv("SLURMD_NODENAME", "n1", 1);
  hook("job_epilog");
  EXPECT_TRUE(arguments().starts_with("--epilog ")) << arguments();
  EXPECT_EQ(told_helper("MONARCH_JOB_DATASETS"), "none");
  load();
  ::setenv("SLURM_JOB_ID", "8", 1);
  hook("job_epilog");
  EXPECT_EQ(arguments(), "") << "Monarch had nothing to do with that job";
}

TEST_F(SpankPlugin, TheClusterIsTheOneThatSlurmRead) {
  ::setenv("SLURM_JOB_ID", "7", 1);
  ::setenv("SLURM_CLUSTER_NAME", "said", 1);
  scratch_.dir("state/jobs/said.7.n1");
  hook("job_epilog");
  EXPECT_TRUE(has(arguments(), "--cluster said ")) << arguments();
  std::string name = "read";
  slurm_conf.cluster_name = name.data();
  scratch_.dir("state/jobs/read.7.n1");
  hook("job_epilog");
  EXPECT_TRUE(has(arguments(), "--cluster read ")) << arguments();
}

TEST_F(SpankPlugin, AStepEndsTheJobOnlyWhereItStandsForTheEpilog) {
  scratch_.dir("state/jobs/cluster.0.n1");
  scratch_.dir("state/jobs/cluster.7.n1");
  const auto ends = [&](spank_context_t context, const std::map<spank_item, uint32_t>& items) {
    load();
    init(context);
    fake_.items = items;
    hook("exit");
    return has(arguments(), "--epilog");
  };
  EXPECT_FALSE(ends(S_CTX_REMOTE, {{S_JOB_ID, 7}, {S_JOB_STEPID, kExternStep}})) << "slurmd runs the epilog";
#ifdef PROLOG_FLAG_RUN_IN_JOB
  slurm_conf.prolog_flags |= PROLOG_FLAG_RUN_IN_JOB;
  EXPECT_TRUE(ends(S_CTX_REMOTE, {{S_JOB_ID, 7}, {S_JOB_STEPID, kExternStep}}));
  EXPECT_FALSE(ends(S_CTX_LOCAL, {{S_JOB_ID, 7}, {S_JOB_STEPID, kExternStep}}));
  EXPECT_FALSE(ends(S_CTX_REMOTE, {{S_JOB_ID, 7}, {S_JOB_STEPID, 0}}));
  EXPECT_FALSE(ends(S_CTX_REMOTE, {{S_JOB_ID, 7}}));
  EXPECT_FALSE(ends(S_CTX_REMOTE, {{S_JOB_STEPID, kExternStep}}));
#endif
}

// ---- the start

TEST_F(SpankPlugin, AStepStartsTheAgentOnce) {
  fake_.groups = {100, 4294967294};
  fake_.items[S_SLURM_RESTART_COUNT] = 2;
  step({{S_JOB_NNODES, 4}, {S_JOB_NODEID, 3}});
  const std::string once = arguments();
  EXPECT_TRUE(once.starts_with("--start ") &&
              once.ends_with(" --job 7 --cluster cluster --node n1 --restart 2 --uid 1000 --gid 100 --groups "
                             "100,4294967294 --nodes 4 --node-id 3 --tasks --reply-fd 3\n"))
      << once;
  hook("init_post_opt");
  EXPECT_EQ(arguments(), once) << "Slurm hands over srun's options twice";
  EXPECT_EQ(read("variables").find("SLURM"), std::string::npos) << read("variables");
  EXPECT_EQ(said(), "");
  EXPECT_EQ(told(), "");
  EXPECT_EQ(fake_.environment["LD_PRELOAD"], scratch_ / "libmonarch_preload.so");
  EXPECT_EQ(fake_.environment["MONARCH_IO_RUN_DIR"], scratch_ / "run");
}

TEST_F(SpankPlugin, TheJobsPartOfTheNodeIsThatOfItsCredential) {
  fake_.memory = uint64_t{5} << 32;
  using namespace std::string_literals;
  const std::pair<std::string, const char*> lists[] = {{"0", "1"},        {"0-3", "4"},        {"0-3,7", "5"},
                                                       {"1,3,5-6", "4"},  {"12-10", ""},       {"x", ""},
                                                       {"0-2000000", ""}, {"0-3\0005-6"s, "4"}};
  for (const auto& [list, count] : lists) {
    fake_.cores = list;
    step();
    const std::string cores = *count ? std::string(" --cores ") + count : "";
    EXPECT_TRUE(has(arguments(), " --node-id 0" + cores + " --memory 21474836480 --tasks ")) << arguments();
  }
  fake_.no_cores = true;
  fake_.environment["SLURM_CPUS_ON_NODE"] = "8";
  step();
  EXPECT_FALSE(has(arguments(), "--cores")) << arguments();
}

TEST_F(SpankPlugin, NothingIsStartedElsewhere) {
  for (const spank_context_t context : {S_CTX_SLURMD, S_CTX_JOB_SCRIPT, S_CTX_LOCAL}) {
    load();
    note();
    init(S_CTX_REMOTE);
    option("monarch-dataset", scratch_.path().c_str(), 1);
    fake_.context = context;
    fake_.environment["MONARCH_IO_OPT_CHECK"] = "off";
    for (const uint32_t number : {0u, kExternStep}) {
      fake_.items[S_JOB_STEPID] = number;
      for (const char* name : {"init_post_opt", "task_post_fork", "task_init", "exit"}) hook(name);
    }
    EXPECT_EQ(arguments(), "") << context;
    EXPECT_EQ(fake_.environment.size(), 1u) << "nothing is a task's there: " << context;
  }
}

TEST_F(SpankPlugin, WithoutAnItemNothingIsStarted) {
  for (const spank_item item : {S_JOB_ID, S_JOB_UID, S_JOB_GID}) {
    const uint32_t value = fake_.items[item];
    fake_.items.erase(item);
    step();
    EXPECT_EQ(arguments() + said(), "") << item;
    EXPECT_EQ(told(), "") << item;
    fake_.items[item] = value;
  }
  step({{S_JOB_UID, 0}});
  EXPECT_EQ(arguments(), "");
  EXPECT_TRUE(has(said(), "is root's")) << said();
  EXPECT_EQ(told(), "monarch: the job runs without Monarch on n1: it is root's\n");
}

TEST_F(SpankPlugin, WhatIsMissingHasADefault) {
  fake_.items.erase(S_JOB_STEPID);
  step();
  EXPECT_TRUE(has(arguments(), " --restart 0 --uid 1000 --gid 100 --nodes 1 --node-id 0 --reply-fd 3\n"))
      << arguments() << said();
  const std::pair<const char*, const char*> counts[] = {
      {"5", "5"}, {"0", "1"}, {"x", "1"}, {"999999", "999999"}, {"1000000", "1"}};
  for (const auto& [text, nodes] : counts) {
    step({}, {{"SLURM_JOB_NUM_NODES", text}});
    EXPECT_TRUE(has(arguments(), std::string(" --nodes ") + nodes + " ")) << arguments();
  }
  step({{S_JOB_NNODES, 3}}, {{"SLURM_JOB_NUM_NODES", "5"}});
  EXPECT_TRUE(has(arguments(), " --nodes 3 ")) << "the item is the trusted one";
}

TEST_F(SpankPlugin, GroupsThatHaveNoRoomAreLeftOut) {
  fake_.groups.assign(10000, 4000000000);
  step();
  const std::string all = arguments();
  ASSERT_TRUE(has(all, "--groups ")) << all << said() << told();
  const size_t begin = all.find("--groups ") + 9;
  const std::string groups = all.substr(begin, all.find(' ', begin) - begin);
  EXPECT_GT(groups.size(), 65000u);
  EXPECT_LT(groups.size(), 65536u);
  EXPECT_EQ((groups.size() + 1) % 11, 0u) << "the last one is whole";
}

TEST_F(SpankPlugin, TheFirstNodeTellsUnlessItsStepHasNoOutputAndOnlyAStepWithTasksCanWait) {
  struct Step {
    uint32_t node, id;
    bool tells, has_tasks;
  };
  for (const Step& s : {Step{0, 0, true, true}, {1, 0, false, true}, {0, kExternStep, false, false}}) {
    step({{S_JOB_NODEID, s.node}, {S_JOB_STEPID, s.id}});
    EXPECT_EQ(has(arguments(), " --tell "), s.tells) << arguments();
    EXPECT_EQ(has(arguments(), " --tasks "), s.has_tasks) << arguments();
  }
}

TEST_F(SpankPlugin, TellsWhereJobsHaveMountsOfTheirOwn) {
  for (std::string type : {"", "job_container/none", "namespace/none", "job_container/tmpfs"}) {
    namespace_type(slurm_conf) = type.data();
    step();
    EXPECT_EQ(has(arguments(), " --own-mounts "), type.ends_with("tmpfs")) << type;
  }
}

TEST_F(SpankPlugin, WithoutAnOptionWhatThePrologNotedIsStarted) {
  const auto starts = [&](const char* hook_name, const std::map<spank_item, uint32_t>& items) {
    load();
    init(S_CTX_REMOTE);
    fake_.items = items;
    fake_.items[S_JOB_UID] = 1000;
    fake_.items[S_JOB_GID] = 100;
    hook(hook_name);
    hook(hook_name);
    const std::string all = arguments();
    EXPECT_EQ(told_helper("MONARCH_JOB_DATASETS"), "none") << "monarchd knows them";
    return std::count(all.begin(), all.end(), '\n');
  };
  const std::map<spank_item, uint32_t> ordinary = {{S_JOB_ID, 7}, {S_JOB_STEPID, 0}};
  const std::map<spank_item, uint32_t> external = {{S_JOB_ID, 7}, {S_JOB_STEPID, kExternStep}};
  EXPECT_EQ(starts("init_post_opt", ordinary), 0) << "nothing noted";
  EXPECT_EQ(starts("task_post_fork", external), 0) << "nothing noted";
  note();
  EXPECT_EQ(starts("init_post_opt", ordinary), 1);
  EXPECT_EQ(starts("init_post_opt", external), 0) << "there it is done once its tasks are";
  EXPECT_EQ(starts("task_post_fork", external), 1);
  EXPECT_EQ(starts("task_post_fork", ordinary), 0);
  for (const char* name : {"init_post_opt", "task_post_fork"}) {
    EXPECT_EQ(starts(name, {{S_JOB_ID, 7}}), 0) << name;
    scratch_.file("state/jobs/cluster.0.n1/wanted", "");
    EXPECT_EQ(starts(name, {{S_JOB_STEPID, 0}}) + starts(name, {{S_JOB_STEPID, kExternStep}}), 0) << name;
  }
}

TEST_F(SpankPlugin, WithoutADatasetTheAdministratorsIsAskedForWhereThereIsOne) {
  const auto starts = [&](uint32_t step_id, uint32_t uid = 1000, const char* declines = nullptr) {
    load();
    init(S_CTX_REMOTE);
    fake_.items = {
        {S_JOB_ID, 7}, {S_JOB_STEPID, step_id}, {S_JOB_UID, uid}, {S_JOB_GID, 100}, {S_TASK_ID, 0}};
    if (declines) option(declines, "", 1);
    option("monarch-prefetch", "off", 1);
    hook("init_post_opt");
    hook("init_post_opt");
    return arguments();
  };
  for (const char* text :
       {"", "# default_dataset = /x\n", "default_datasets = /x\n", "no_default_dataset = /x\n"}) {
    scratch_.file("monarch.conf", std::string("[policy.partition.a]\n") + text);
    EXPECT_EQ(starts(0), "") << text;
  }
  for (const std::string& text : {std::string("default_dataset = /x\n"), std::string(" \tdefault_dataset:/x"),
                                  std::string(2000, '#') + "\ndefault_dataset=/x\n"}) {
    scratch_.file("monarch.conf", "[policy.partition.a]\n" + text);
    const std::string asked = starts(0);
    EXPECT_EQ(std::count(asked.begin(), asked.end(), '\n'), 1) << text;
    EXPECT_TRUE(has(asked, "--tasks")) << asked;
    EXPECT_EQ(told_helper("MONARCH_JOB_OPTIONS") + told_helper("MONARCH_JOB_DATASETS"), "prefetch=offnone");
  }
  EXPECT_EQ(starts(kExternStep), "") << "which does not see who declines";
  EXPECT_EQ(starts(0, 0), "") << "root's jobs";
  EXPECT_EQ(said(), "") << "likewise";
  EXPECT_EQ(starts(0, 1000, "no-monarch"), "");
  helper("echo 'tell there is none' >&3");
  (void)starts(0);
  EXPECT_EQ(told(), "") << "nobody has asked for it";
  scratch_.file("state/jobs/cluster.7.n1/no_default", "");
  EXPECT_EQ(starts(0), "") << "it was asked before";
  std::filesystem::remove(scratch_ / "state/jobs/cluster.7.n1/no_default");
  scratch_.file("monarch.conf", "");
  words_.emplace_back("policy.partition.a.b.default_dataset=/x");
  EXPECT_TRUE(has(starts(0), "--start"));
}

// ---- answers

TEST_F(SpankPlugin, AnAnswerThatIsNoneMakesNoTaskUseIt) {
  const std::string run = scratch_ / "run", lib = scratch_ / "libmonarch_preload.so";
  const std::string long_path = std::string(4200, '/') + "tmp";
  for (const std::string& answer :
       {std::string("ready"), "ready " + run, "ready  " + lib, "ready " + run + " ",
        "readyx" + run + " " + lib, "ready " + run + "/absent " + lib, "ready " + run + " " + lib + "/absent",
        "ready " + long_path + " " + lib, "ready " + run + " " + long_path, std::string("\377\1 nonsense"),
        std::string("ready \t"), std::string(20000, 'x')}) {
    scratch_.file("answer", answer + "\n");
    helper("/bin/cat $here/answer >&3");
    step();
    const std::string text = told();
    EXPECT_TRUE(text.empty() || has(text, ": its programs do not see ")) << answer << text;
    EXPECT_TRUE(fake_.environment.empty()) << answer;
  }
}

TEST_F(SpankPlugin, AHelperThatDoesNotAnswerIsToldByTheFirstStep) {
  const std::string text = "monarch: the job runs without Monarch on n1: its helper did not answer\n";
  for (const char* body : {"exit 1", "kill -9 $$", "echo >&3"}) {
    helper(body);
    step();
    EXPECT_TRUE(has(said(), "info: monarch: JobId=7 runs without Monarch on this node: its helper"))
        << said();
    EXPECT_EQ(told(), text) << body;
  }
  for (const uint32_t later : {1u, kExternStep}) {
    step({{S_JOB_STEPID, later}});
    EXPECT_EQ(told(), "");
  }
  fake_.items.erase(S_JOB_STEPID);
  step();
  EXPECT_EQ(told(), "");
  for (const uint32_t number : {0u, kBatchStep}) {
    step({{S_JOB_STEPID, number}}, {{"ENVIRONMENT", "BATCH"}});
    EXPECT_EQ(told(), number == kBatchStep ? text : "");
  }
  std::filesystem::remove(scratch_ / "monarchd");
  step({{S_JOB_STEPID, 0}});
  EXPECT_EQ(told(), text) << "there is none";
}

TEST_F(SpankPlugin, AHelperThatHangsIsKilledWithItsChild) {
  helper("sleep 1000 &\necho $! > $here/child\nprintf 'ready /run' >&3\nwait");
  step();
  EXPECT_TRUE(has(said(), "monarchd --start took longer than 3000 ms")) << said();
  if (read("child").empty()) GTEST_SKIP() << "the machine is too busy for a shell's start in 3 s";
  const pid_t child = std::stoi(read("child"));
  EXPECT_TRUE(eventually([&] {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string pid, name, state;
    return !(stat >> pid >> name >> state) || state == "Z" || state == "X";
  }));
  EXPECT_TRUE(has(told(), "its helper did not answer")) << "half a line is none";
}

// The control groups of root's helpers of a state directory; gone at its end.
class HelpersGroups {
 public:
  explicit HelpersGroups(const std::string& state_dir) {
    struct stat state;
    EXPECT_EQ(::stat(state_dir.c_str(), &state), 0);
    char group[100];
    std::snprintf(group, sizeof group, "/monarch/%lx.%lx.helpers", static_cast<unsigned long>(state.st_dev),
                  static_cast<unsigned long>(state.st_ino));
    group_ = group;
    mounts_ = {"/sys/fs/cgroup"};
    for (const auto& entry : std::filesystem::directory_iterator("/sys/fs/cgroup"))
      mounts_.push_back(entry.path());
    std::erase_if(mounts_, [](const std::string& path) {
      return ::access((path + "/cgroup.procs").c_str(), W_OK) != 0 ||
             (::mkdir((path + "/monarch").c_str(), 0711) != 0 && errno != EEXIST);
    });
  }
  HelpersGroups(const HelpersGroups&) = delete;
  HelpersGroups& operator=(const HelpersGroups&) = delete;
  ~HelpersGroups() {
    for (const std::string& path : mounts_)
      EXPECT_TRUE(eventually([&] { return ::rmdir((path + group_).c_str()) == 0 || errno == ENOENT; }))
          << path << group_ << ": " << std::strerror(errno) << ": "
          << contents(path + group_ + "/cgroup.procs");
  }
  // Also where there are none.
  bool have(const std::string& pid) const {
    return mounts_.empty() || has(contents("/proc/" + pid + "/cgroup"), group_);
  }

 private:
  std::string group_;
  std::vector<std::string> mounts_;
};

TEST_F(SpankPlugin, AHelperThatHangsInTheKernelIsNotWaitedFor) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  scratch_.dir("pfs");
  helper("/bin/cat $here/pfs/file &\necho $$ $! > $here/pids\nread x < $here/pfs/file");
  const HelpersGroups groups(scratch_.dir("state"));
  in_private_mounts(scratch_, [&](PrivateMounts* mounts) {
    const HangingFs pfs(scratch_ / "pfs");
    mounts->check(pfs.is_mounted(), "mount");
    step();
    mounts->check(has(said(), "monarchd --start took longer than 3000 ms"), said());
    std::istringstream pids(read("pids"));
    for (std::string pid; pids >> pid;)
      mounts->check(groups.have(pid), "it has left the step's groups: " + pid);
  });
}

TEST_F(SpankPlugin, AHelperAnswersWhateverDescriptorsThereAre) {
  EXPECT_EQ(in_child([&] {
              ::close(STDIN_FILENO);
              ::close(STDOUT_FILENO);
              step();  // its pipe has these numbers
              hook("task_init");
              return fake_.environment.contains("MONARCH_IO_RUN_DIR") ? 0 : 1;
            }),
            0);
  helper("/bin/ls -l /proc/$$/fd > $here/descriptors");
  fake_.given = {{"monarch-dataset", "/data"}};
  EXPECT_EQ(in_child([&] {
              ::setenv("SLURM_JOB_ID", "7", 1);
              ::dup2(STDERR_FILENO, 3);
              hook("job_prolog");
              return 0;
            }),
            0);
  EXPECT_TRUE(has(read("descriptors"), " 2 -> ") && !has(read("descriptors"), " 3 -> "))
      << read("descriptors");
}

TEST_F(SpankPlugin, TheHelperHasNothingOfSlurmds) {
  helper(
      "/bin/ls -l /proc/$$/fd > $here/descriptors; pwd > $here/cwd\n"
      "while read -r line; do echo \"$line\"; done < /proc/self/status > $here/status\n"
      "echo off >&3");
  sigset_t blocked, old;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &blocked, &old);
  ::signal(SIGUSR2, SIG_IGN);
  const int other = ::dup2(STDERR_FILENO, 77);
  step();
  ::close(other);
  ::signal(SIGUSR2, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &old, nullptr);
  EXPECT_FALSE(has(read("descriptors"), " 77 -> ")) << read("descriptors");
  EXPECT_TRUE(has(read("descriptors"), " 2 -> /dev/null")) << read("descriptors");
  EXPECT_TRUE(has(read("descriptors"), " 3 -> pipe:")) << read("descriptors");
  EXPECT_TRUE(has(read("status"), "SigBlk:\t0000000000000000")) << read("status");
  const std::string status = read("status");
  const size_t ignored = status.find("SigIgn:");
  ASSERT_NE(ignored, std::string::npos);
  // 32 and 33 are the C library's own, which it does not let anybody change.
  constexpr uint64_t kOfLibc = uint64_t{3} << 31;
  EXPECT_EQ(std::stoull(status.substr(ignored + 7), nullptr, 16) & ~kOfLibc, 0u) << status;
  EXPECT_EQ(read("cwd"), "/\n");
}

// ---- tasks

TEST_F(SpankPlugin, WhyAJobGoesWithoutIsToldOnce) {
  helper("echo 'tell it is Tuesday' >&3");
  step();
  EXPECT_EQ(told(), "monarch: the job runs without Monarch on n1: it is Tuesday\n");
  EXPECT_TRUE(has(said(), "on this node: it is Tuesday")) << said();
  fake_.environment["MONARCH_IO_QUIET"] = "1";
  EXPECT_EQ(told(), "");
  fake_.environment["MONARCH_IO_QUIET"] = std::string(100, '1');
  EXPECT_EQ(told(), "");
  fake_.environment.clear();
  fake_.items[S_TASK_ID] = 1;
  EXPECT_EQ(told(), "");
  fake_.items.erase(S_TASK_ID);
  EXPECT_EQ(told(), "");
  helper("echo 'off it was told' >&3");
  fake_.items[S_TASK_ID] = 0;
  step();
  EXPECT_EQ(told(), "");
  EXPECT_TRUE(has(said(), "on this node: it was told")) << said();
  load();
  note();
  init(S_CTX_REMOTE);
  hook("init_post_opt");
  EXPECT_EQ(said(), "") << "who gave no option is not told by each step";
}

TEST_F(SpankPlugin, DatasetsThatTheAgentDoesNotServeAreTold) {
  helper("printf 'ready %s %s\\tnot served\\n' $here/run $here/libmonarch_preload.so >&3");
  step();
  EXPECT_EQ(told(), "monarch: not served\n");
  EXPECT_EQ(fake_.environment["MONARCH_IO_RUN_DIR"], scratch_ / "run");
  fake_.environment["SLURM_HET_SIZE"] = "2";
  EXPECT_EQ(told(), "") << "of a component that nobody asked";
}

TEST_F(SpankPlugin, TasksThatDoNotSeeTheAgentAreToldOnce) {
  const auto text = [&](const char* what) {
    return "monarch: the job runs without Monarch on n1: its programs do not see " + (scratch_ / what) +
           " (a private /tmp or a container?)\n";
  };
  step();
  std::filesystem::remove(scratch_ / "libmonarch_preload.so");
  EXPECT_EQ(told(), text("libmonarch_preload.so"));
  std::filesystem::remove(scratch_ / "run");
  EXPECT_EQ(told(), text("run"));
  step({{S_JOB_STEPID, 1}});
  EXPECT_EQ(told(), "") << "a later step";
  step({{S_JOB_STEPID, 0}, {S_TASK_ID, 1}});
  EXPECT_EQ(told(), "");
}

TEST_F(SpankPlugin, APluginThatStartsContainersFindsTheRunDirectoryInTheStep) {
  std::map<std::string, std::string> environment = {{"MONARCH_IO_PRELOAD", "/of/the/batch/script.so"}};
  step({}, environment);
  EXPECT_EQ(fake_.environment["MONARCH_IO_RUN_DIR"], scratch_ / "run");
  EXPECT_FALSE(fake_.environment.contains("MONARCH_IO_PRELOAD"));
  environment["LD_PRELOAD"] = "/a.so:/opt/libmonarch_preload.so /b.so";
  step({}, environment);
  EXPECT_EQ(fake_.environment["MONARCH_IO_PRELOAD"], "/a.so:/b.so");
  helper("echo 'off no tier' >&3");
  step({}, environment);
  EXPECT_EQ(fake_.environment, (std::map<std::string, std::string>{{"LD_PRELOAD", "/a.so:/b.so"}}));
}

TEST_F(SpankPlugin, InAContainerTheLibraryIsWhereItsHookHasPutIt) {
  const std::string there = scratch_ / "other/libmonarch_preload.so";
  scratch_.dir("other");
  step();
  std::filesystem::rename(scratch_ / "libmonarch_preload.so", there);
  std::filesystem::rename(scratch_ / "run", scratch_ / "other/run");
  fake_.environment["MONARCH_IO_RUN_DIR"] = scratch_ / "other/run";
  fake_.environment["LD_PRELOAD"] = "/a.so:/absent/libmonarch_preload.so:" + there;
  EXPECT_EQ(told(), "");
  EXPECT_EQ(fake_.environment["LD_PRELOAD"], "/a.so:" + there);
  EXPECT_EQ(fake_.environment["MONARCH_IO_RUN_DIR"], scratch_ / "other/run");
  EXPECT_EQ(fake_.environment["MONARCH_IO_STATE"], scratch_ / "other/run/state");
  std::filesystem::remove(there);
  EXPECT_TRUE(has(told(), "do not see " + (scratch_ / "run"))) << read("stderr");
  EXPECT_EQ(fake_.environment["LD_PRELOAD"], "/a.so");
}

TEST_F(SpankPlugin, DirectoriesThatTasksDoNotSeeAreToldWhereJobsHaveMountsOfTheirOwn) {
  scratch_.file("run/directories", scratch_.path() + "\n" + (scratch_ / "absent") + "\n/absent\n");
  std::string type = "job_container/tmpfs";
  step();
  EXPECT_EQ(told(), "");
  namespace_type(slurm_conf) = type.data();
  step();
  EXPECT_TRUE(has(told(), "n1 do not see " + (scratch_ / "absent") + " (")) << read("stderr");
  EXPECT_EQ(fake_.environment["MONARCH_IO_RUN_DIR"], scratch_ / "run") << "what they see is served";
  step({{S_TASK_ID, 1}});
  EXPECT_EQ(told(), "");
  for (const std::string& list :
       {std::string(), std::string("/absent"), std::string(70000, 'x'), scratch_.path() + "\n"}) {
    scratch_.file("run/directories", list);
    step({{S_TASK_ID, 0}});
    EXPECT_EQ(told(), "") << list.size();
  }
  namespace_type(slurm_conf) = nullptr;
}

TEST_F(SpankPlugin, WhatTasksInContainersDoNotSeeIsToldOnceInWhicheverStep) {
  const auto task = [&] { function("task_init_privileged")(nullptr, 0, nullptr); };  // keeps a descriptor
  step({{S_JOB_STEPID, 1}});
  task();
  std::filesystem::remove(scratch_ / "libmonarch_preload.so");
  EXPECT_TRUE(has(told(), "do not see " + (scratch_ / "libmonarch_preload.so"))) << read("stderr");
  EXPECT_EQ(told(), "");
  step({{S_JOB_STEPID, 2}});
  task();
  EXPECT_EQ(told(), "");
}

TEST_F(SpankPlugin, TasksFailWhereTheUserWantsIt) {
  helper("echo 'fail n1 has too little' >&3");
  step();
  const auto run = [&](const char* hook_name) {
    return in_child([&] { return ::alarm(600), function(hook_name)(nullptr, 0, nullptr), 77; });
  };
  EXPECT_EQ(run("task_init"), 1);
  EXPECT_EQ(run("exit"), 77) << "nothing of slurmstepd's own ends";
  EXPECT_TRUE(has(said(), "runs without Monarch on this node: n1 has too little")) << said();
  for (const char* answer : {"tell n1 has too little", "off n1 has too little", "failed"}) {
    helper(std::string("echo '") + answer + "' >&3");
    step();
    EXPECT_EQ(run("task_init"), 77) << answer;
  }
}

// ---- waiting

class SpankWait : public SpankPlugin {
 protected:
  SpankWait() : agent_(::open((scratch_ / "run").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    ::flock(agent_.get(), LOCK_SH);  // as an agent that lives does
  }
  // A step whose answer has that to wait for.
  void step_that_waits(const std::string& wait, const std::map<spank_item, uint32_t>& items = {}) {
    helper("printf 'ready %s %s\\t\\t" + wait + "\\n' $here/run $here/libmonarch_preload.so >&3");
    step(items);
  }
  void tell(const std::string& state, int percent, const std::string& more = "") const {
    scratch_.file("run/state.new", "state=" + state + "\npercent=" + std::to_string(percent) +
                                       "\nfiles=9\nstaged_files=7\nbytes=9999\nstaged_bytes=2048\n" + more);
    ::rename((scratch_ / "run/state.new").c_str(), (scratch_ / "run/state").c_str());
  }
  static std::string line(const std::string& percent, const std::string& end) {
    return "monarch: n1: " + percent + "% of the dataset is staged after 0 s (7 files, 2.0K): " + end + "\n";
  }
  // However long it took.
  static std::string timeless(const std::string& text) {
    return std::regex_replace(text, std::regex("after [0-9]+ s"), "after 0 s");
  }
  // Does something when the plugin looks at the clock for the `number`th time.
  struct AtLook {
    AtLook(int number, const std::function<void()>& what) {
      at_a_look = [=, looks = 0]() mutable {
        if (++looks == number) what();
      };
    }
    AtLook(const AtLook&) = delete;
    AtLook& operator=(const AtLook&) = delete;
    ~AtLook() { at_a_look = {}; }
  };
  Fd agent_;
};

TEST_F(SpankWait, BeginsOnceEnoughIsStagedOrNoMoreWillBe) {
  struct Case {
    const char *wait, *state;
    int percent;
    const char *more, *end;
  };
  const char* const not_ahead = "no more is staged ahead, see --monarch-prefetch in monarch(7)";
  for (const Case& c :
       {Case{"80 60", "staging-in", 80, "", "the job begins"},
        {"100 60", "staged-in", 99, "no_room=0\nfailed=2\n",
         "no more can be: 0 files have no room, 2 cannot be staged"},
        {"100 60", "allocated", 0, "", not_ahead},
        {"100 60", "suspended", 0, "", not_ahead},
        {"100 60", "teardown", 0, "", "its agent has ended"},
        {"100 0", "staging-in", 42, "", "the time of --monarch-wait-timeout is over; staging goes on"}}) {
    tell(c.state, c.percent, c.more);
    step_that_waits(c.wait);
    EXPECT_EQ(timeless(told()), line(std::to_string(c.percent), c.end)) << c.state;
  }
  tell("staging-in", 79);
  step_that_waits("80 60");
  const AtLook later(5, [&] { tell("staging-in", 81); });
  EXPECT_EQ(timeless(told()), line("81", "the job begins"));
  EXPECT_EQ(fake_.environment["MONARCH_IO_STATE"], scratch_ / "run/state");
}

TEST_F(SpankWait, RoomMayCome) {
  step_that_waits("100 60");
  tell("staged-in", 10, "no_room=2\nfailed=0\n");
  {
    const AtLook later(5, [&] { tell("staged-in", 100); });
    EXPECT_EQ(timeless(told()), line("100", "the job begins"));
  }
  tell("staged-in", 10, "no_room=2\nfailed=0\n");
  const std::string all = told();
  EXPECT_TRUE(has(all, "no more can be: 2 files have no room, 0 cannot be staged\n")) << all;
}

TEST_F(SpankWait, AnAgentThatHasEndedIsNotWaitedFor) {
  step_that_waits("100 60");
  tell("staging-in", 42);
  agent_.reset();
  EXPECT_TRUE(has(told(), "its agent has ended\n"));
}

TEST_F(SpankWait, OneTaskTalks) {
  tell("staging-in", 80);
  const std::string over = "the time of --monarch-wait-timeout is over; staging goes on";
  struct Case {
    const char* wait;
    uint32_t node, task;
    std::string end;
  };
  for (const Case& c :
       {Case{"80 60", 1, 0, ""}, {"81 0", 1, 0, over}, {"81 0", 0, 1, ""}, {"81 0", 0, 0, over}}) {
    step_that_waits(c.wait, {{S_JOB_NODEID, c.node}, {S_TASK_ID, c.task}});
    EXPECT_EQ(timeless(told()), c.end.empty() ? "" : line("80", c.end)) << c.wait << c.node << c.task;
  }
  step_that_waits("81 0", {{S_TASK_ID, 0}});
  fake_.environment["MONARCH_IO_QUIET"] = "";
  EXPECT_EQ(told(), "");
  step_that_waits("81 100", {{S_JOB_NODEID, 0}, {S_TASK_ID, 1}});
  seconds_a_look = 7;
  EXPECT_EQ(told(), "") << "nor how it goes";
  seconds_a_look = 0;
}

TEST_F(SpankWait, TheAgentIsToldWhenTheFirstTaskBegins) {
  const auto began_in_ms = [&] {
    const std::string text = read("run/began");
    timespec now;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return text.empty() ? -1 : std::stoll(text) - (now.tv_sec * 1000ll + now.tv_nsec / 1000000);
  };
  step();
  hook("user_init");
  EXPECT_LE(began_in_ms(), 0);
  EXPECT_GT(began_in_ms(), -30000);
  scratch_.file("run/began", "1");
  hook("user_init");
  EXPECT_EQ(read("run/began"), "1") << "an earlier step was the first";
  std::filesystem::remove(scratch_ / "run/began");
  tell("staging-in", 80);
  step_that_waits("80 600");
  hook("user_init");
  EXPECT_GT(began_in_ms(), 500000) << "in ten minutes at the latest";
  EXPECT_EQ(timeless(told()), line("80", "the job begins"));
  EXPECT_LE(began_in_ms(), 0) << "the wait is over";
  std::filesystem::remove(scratch_ / "run/began");
  helper("echo 'off for a reason' >&3");
  step();
  hook("user_init");
  EXPECT_EQ(read("run/began") + read("began"), "") << "without an agent";
}

TEST_F(SpankWait, TellsAtTheEndThatNothingWasUsed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const auto end = [&](const std::map<spank_item, uint32_t>& items = {}) {
    step(items);
    for (const char* path : {"", "run", "run/state"})
      if (::access((scratch_ / path).c_str(), F_OK) == 0)
        (void)!::chown((scratch_ / path).c_str(), 1000, 1000);
    ::chmod(scratch_.path().c_str(), 0755);
    forget_said();
    hook("task_exit");
    return said();
  };
  const std::map<spank_item, uint32_t> batch = {{S_JOB_STEPID, 0xfffffffb}};
  const std::string unused = "no program of this job has used its dataset";
  tell("suspended", 10, "unused=1\n");
  EXPECT_TRUE(has(end(batch), unused));
  EXPECT_FALSE(has(end({{S_JOB_STEPID, 0xfffffffb}, {S_TASK_ID, 1}}), unused)) << "another task";
  EXPECT_FALSE(has(end({{S_JOB_STEPID, 0xfffffffb}, {S_JOB_NODEID, 1}}), unused)) << "another node";
  EXPECT_FALSE(has(end({{S_JOB_STEPID, 3}}), unused)) << "a later step";
  for (const char* more : {"unused=0\n", "", "used=1\n"}) {
    tell("staged-in", 100, more);
    EXPECT_FALSE(has(end(batch), unused)) << more;
  }
  std::filesystem::remove(scratch_ / "run/state");
  ASSERT_EQ(::mkfifo((scratch_ / "run/state").c_str(), 0600), 0);
  EXPECT_FALSE(has(end(batch), unused)) << "nobody waits for who writes it";
}

// Who owns the run directory can mount there what never answers, or keep it locked in the kernel. The hooks
// are slurmstepd's own.
TEST_F(SpankWait, WhoMakesTheRunDirectoryHangHoldsUpNoStep) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  ::chmod(scratch_.path().c_str(), 0755);
  step({{S_JOB_STEPID, kBatchStep}});
  const HelpersGroups groups(scratch_.dir("state"));
  in_private_mounts(scratch_, [&](PrivateMounts* mounts) {
    const HangingFs fs(scratch_ / "run", ",allow_other");
    mounts->check(fs.is_mounted(), "mount");
    const auto leaves_one_behind = [&](const std::vector<std::string>& hooks) {
      for (const std::string& name : hooks) hook(name);
      const std::string self = std::to_string(::getpid());
      std::istringstream pids(contents("/proc/" + self + "/task/" + self + "/children"));
      int hang = 0;
      for (std::string pid; pids >> pid; ++hang)
        if (!groups.have(pid)) return false;
      return hang == 1 && !HasFailure();
    };
    for (const std::vector<std::string>& hooks :
         {std::vector<std::string>{"user_init", "task_post_fork"}, {"task_exit"}})
      mounts->check(is_soon_done([&] { return leaves_one_behind(hooks); }), hooks.front());
  });
}

TEST_F(SpankWait, WhatTheFileSaysIsBelievedWithinBounds) {
  step_that_waits("100 1");
  for (const std::string& text :
       {std::string(), std::string("percent=100\nstate=staged-in\n"), std::string(5000, 'x'),
        "state=" + std::string(2000, 'y'), std::string("state=staging-in\npercent=-\n"),
        std::string("state=staging-in\n\n\npercent\npercent=\n")}) {
    scratch_.file("run/state", text);
    const std::string all = told();
    EXPECT_EQ(has(all, "the agent has told nothing"), !text.starts_with("state=")) << text << ": " << all;
    EXPECT_FALSE(has(all, "the job begins")) << text << ": " << all;
  }
}

TEST_F(SpankWait, ASignalEndsIt) {
  step_that_waits("100 600");
  tell("staging-in", 1);
  const pid_t pid = ::fork();
  if (pid == 0) {  // as slurmstepd's child is
    sigset_t term;
    ::sigemptyset(&term);
    ::sigaddset(&term, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &term, nullptr);
    ::signal(SIGTERM, SIG_IGN);
    function("task_init")(nullptr, 0, nullptr);
    ::_exit(0);
  }
  EXPECT_TRUE(is_soon_in_kernel(pid)) << "it waits";
  EXPECT_EQ(::kill(pid, SIGTERM), 0);
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status));
  tell("staging-in", 100);
  EXPECT_EQ(in_child([&] {
              sigset_t term, now;
              ::sigemptyset(&term);
              ::sigaddset(&term, SIGTERM);
              ::sigprocmask(SIG_BLOCK, &term, nullptr);
              const auto handler = [](int) {};
              ::signal(SIGHUP, handler);
              function("task_init")(nullptr, 0, nullptr);
              ::sigprocmask(SIG_BLOCK, nullptr, &now);
              const bool blocked = ::sigismember(&now, SIGTERM) == 1 && ::sigismember(&now, SIGHUP) == 0;
              return blocked && ::signal(SIGHUP, SIG_DFL) == +handler ? 0 : 1;
            }),
            0)
      << "afterwards all is as it was";
}

TEST_F(SpankWait, ATaskWhoseErrorsNobodyReadsBegins) {
  step_that_waits("100 0");
  tell("staging-in", 1);
  for (const bool is_closed : {false, true}) {  // else it is full
    EXPECT_EQ(in_child([&] {
                int ends[2];
                ::alarm(600);
                ::signal(SIGPIPE, SIG_DFL);
                if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return 99;
                while (!is_closed && ::write(ends[1], ends, sizeof ends) > 0) continue;
                if (is_closed) ::close(ends[0]);
                ::fcntl(ends[1], F_SETFL, 0);
                ::dup2(ends[1], STDERR_FILENO);
                return function("task_init")(nullptr, 0, nullptr);
              }),
              0)
        << is_closed;
  }
}

TEST_F(SpankWait, AnAgentThatTellsNothingIsWaitedForAMinute) {
  step_that_waits("100 600");
  seconds_a_look = 7;
  std::string all = told();
  EXPECT_TRUE(has(all, "(0 files, 0 bytes): its agent has told nothing for 60 s\n")) << all;
  EXPECT_FALSE(has(all, "after 4")) << all;
  seconds_a_look = 0;
  tell("staging-in", 1);
  step_that_waits("100 100");
  seconds_a_look = 7;
  all = told();
  seconds_a_look = 0;
  EXPECT_TRUE(has(all, "the time of --monarch-wait-timeout is over; staging goes on\n")) << all;
  const auto lines = std::count(all.begin(), all.end(), '\n');
  EXPECT_TRUE(has(all, "% of the dataset is staged (7 files, 2.0K); the job begins at 100%, or in ")) << all;
  EXPECT_GT(lines, 3) << all;
  EXPECT_LT(lines, 7) << "ever more seldom: " << all;
}

TEST_F(SpankPlugin, ATasksOwnLibrariesComeFirst) {
  const std::string own = scratch_ / "libmonarch_preload.so";
  const std::pair<std::string, std::string> lists[] = {
      {"", own},
      {"/a.so", "/a.so:" + own},
      {"/a.so /b.so", "/a.so:/b.so:" + own},
      {":/a.so::", "/a.so:" + own},
      {"/old/libmonarch_preload.so:/a.so", "/a.so:" + own},
      {"/a.so:/old/libmonarch_preload.so", "/a.so:" + own},
      {"/libmonarch_preload.so", "/libmonarch_preload.so:" + own},
      {"libmonarch_preload.so.1", "libmonarch_preload.so.1:" + own},
      {"/xlibmonarch_preload.so", "/xlibmonarch_preload.so:" + own},
  };
  for (const auto& [before, after] : lists) {
    step();
    fake_.environment["LD_PRELOAD"] = before;
    EXPECT_EQ(told(), "");
    EXPECT_EQ(fake_.environment["LD_PRELOAD"], after) << before;
  }
}

TEST_F(SpankPlugin, AStepThatIsToGoWithoutDoes) {
  const auto after = [&](const char* list) {
    for (const char* name : {"MONARCH_IO_OPT_DATASET", "MONARCH_IO_OPT_NO_MONARCH", "MONARCH_IO_OPT_CHECK"})
      fake_.environment[name] = "x";
    fake_.environment["MONARCH_IO_RUN_DIR"] = "/run/x";
    if (list) fake_.environment["LD_PRELOAD"] = list;
    hook("task_init");
    for (const auto& [name, value] : fake_.environment)
      EXPECT_FALSE(name.starts_with("MONARCH_IO_OPT_")) << name;
    const std::string run = fake_.environment.contains("MONARCH_IO_RUN_DIR") ? "kept " : "";
    return run + (fake_.environment.contains("LD_PRELOAD") ? fake_.environment["LD_PRELOAD"] : "none");
  };
  helper("echo off >&3");
  step();
  EXPECT_EQ(after("/a.so:/x/libmonarch_preload.so"), "/a.so") << "srun's, whose agent this task has not";
  EXPECT_EQ(after("/x/libmonarch_preload.so"), "none");
  EXPECT_EQ(after(nullptr), "none");
  for (const bool is_refused : {false, true}) {
    load();
    init(S_CTX_REMOTE);
    if (is_refused) option("no-monarch", nullptr, 1);
    hook("init_post_opt");
    EXPECT_EQ(after("/x/libmonarch_preload.so"), is_refused ? "none" : "kept /x/libmonarch_preload.so")
        << "not Slurm's: monarchctl run";
  }
}

}  // namespace
}  // namespace monarch
