// SPDX-License-Identifier: Apache-2.0
// What the SPANK plugin does. What it does inside the real Slurm is slurm.t's.
#include <sys/file.h>

#include "runtime/base/fd.h"
#include "tests/hanging_fs.h"
#include "tests/private_mounts.h"
#include "tests/spank_fixture.h"

namespace monarch {
namespace {

// ---- options

TEST_F(SpankPlugin, RefusesAPathWithAColonThatIsThere) {
  init(S_CTX_LOCAL);
  scratch_.dir("a:/tmp");
  const std::string value = scratch_ / "a:/tmp";
  EXPECT_EQ(option("monarch-dataset", value.c_str()), ESPANK_BAD_ARG);
  EXPECT_TRUE(has(said(), "make a symbolic link")) << said();
  EXPECT_EQ(option("monarch-dataset", value.c_str(), 1), ESPANK_SUCCESS) << "two paths, as was submitted";
}

TEST_F(SpankPlugin, TakesOnlyKnownValuesOfItsOptions) {
  init(S_CTX_LOCAL);
  struct Option {
    const char* name;
    std::vector<std::string> good, bad;
  };
  const std::string a(1023, 'a'), zeros(61, '0'), longest = "/" + std::string(4094, 'a');
  std::string sixteen, too_long;
  for (int i = 0; i < 16; ++i) sixteen += (i ? ":/d" : "/d") + std::to_string(i);
  for (int i = 0; i < 5; ++i) too_long += (i ? ":/" : "/") + std::string(4000, 'a');
  const Option cases[] = {
      {"monarch-dataset",
       {"/data", "/a:/b", "/a:", "/.a", "/a.", "/./a", "/..a:/x", "/a/.", sixteen, longest, scratch_.path()},
       {"", too_long, sixteen + ":/d", longest + "a", "/", "/./.", "/a:/./", "relative", "/a::/b", "/a:b"}},
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
      {"monarch-hints", {"torch", "off"}, {"", "on", "torch|off"}},
      {"monarch-report",
       {"/r", "/home/x/r.%j.json", "/" + a.substr(1)},
       {"", "r", "/", "/r/", "/a b", "/" + a}},
  };
  for (const Option& o : cases) {
    SCOPED_TRACE(o.name);
    for (const std::string& value : o.good) EXPECT_EQ(option(o.name, value.c_str()), ESPANK_SUCCESS) << value;
    EXPECT_EQ(said(), "");
    for (const std::string& value : o.bad) {
      EXPECT_EQ(option(o.name, value.c_str(), 1), ESPANK_BAD_ARG) << value;
      EXPECT_EQ(said(), "") << "on a node nobody reads it";
      EXPECT_EQ(option(o.name, value.c_str()), ESPANK_BAD_ARG) << value;
      EXPECT_TRUE(has(said(), std::string("--") + o.name + ": ")) << said();
      if (value.size() <= 60 && std::string(o.name) != "monarch-dataset") {
        EXPECT_TRUE(has(said(), value)) << "what is too long is not told: " << said();
      }
      forget_said();
    }
    EXPECT_EQ(option(o.name, nullptr), ESPANK_BAD_ARG);
    forget_said();
  }
}

TEST_F(SpankPlugin, HandsTheOtherOptionsToItsHelpers) {
  prolog({{"monarch-dataset", "/data"},
          {"monarch-prefetch", "all"},
          {"monarch-consistency", "open"},
          {"monarch-tiers", "a,b"},
          {"monarch-wait", "80%"},
          {"monarch-wait-timeout", "60"},
          {"monarch-capacity", "1G,require"},
          {"monarch-exclude", "*.log"},
          {"monarch-hints", "torch"},
          {"monarch-report", "/r.%j"}});
  EXPECT_EQ(told_helper("MONARCH_JOB_DATASETS"), "/data");
  EXPECT_EQ(told_helper("MONARCH_JOB_OPTIONS"),
            "prefetch=all consistency=open tiers=a,b wait=80% wait_timeout=60 capacity=1G,require "
            "exclude=*.log hints=torch report=/r.%j");
  EXPECT_FALSE(has(arguments(), "/data") || has(arguments(), "prefetch")) << "all can read a command line";
}

TEST_F(SpankPlugin, HandsOnWordsOfPlugstackConfAndNamesThoseThatItDoesNotKnow) {
  char word[] = "colour=red";
  for (const spank_context_t context : {S_CTX_LOCAL, S_CTX_ALLOCATOR, S_CTX_REMOTE}) {
    fake_.context = context;
    call("init", {word});
    EXPECT_EQ(has(said(), "unknown word 'colour=red'"), context == S_CTX_REMOTE) << "no concern of users";
  }
  for (int i = 1; i < 32; ++i) words_.push_back("a.b=" + std::to_string(i));
  words_.emplace_back("policy.partition.gpu.enabled=off");
  step();
  EXPECT_EQ(said(), "");
  EXPECT_TRUE(has(arguments(), " --set a.b=31 --set policy.partition.gpu.enabled=off ")) << arguments();
  words_.emplace_back("a.b=32");
  step();
  EXPECT_TRUE(has(said(), "too many words: 'a.b=32'")) << said();
}

TEST_F(SpankPlugin, HandsTwinsOfOptionsToSlurm) {
  const auto variable = [](const std::string& twin) {
    return ::getenv(("SLURM_SPANK__SLURM_SPANK_OPTION_monarch_" + twin).c_str());
  };
  const std::pair<const char*, const char*> twins[] = {{"DATASET", "monarch_dataset"},
                                                       {"PREFETCH", "monarch_prefetch"},
                                                       {"CONSISTENCY", "monarch_consistency"},
                                                       {"TIERS", "monarch_tiers"},
                                                       {"WAIT", "monarch_wait"},
                                                       {"WAIT_TIMEOUT", "monarch_wait_timeout"},
                                                       {"REPORT", "monarch_report"}};
  for (const auto& [name, twin] : twins) ::setenv((std::string("MONARCH_IO_OPT_") + name).c_str(), twin, 1);
  ::setenv("MONARCH_IO_OPT_NO_MONARCH", "", 1);
  init(S_CTX_REMOTE);
  hook("init_post_opt");
  EXPECT_FALSE(::getenv(kDatasetVariable)) << "not on a node";
  EXPECT_STREQ(::getenv("MONARCH_IO_OPT_DATASET"), "monarch_dataset");
  load();
  init(S_CTX_LOCAL);
  for (const auto& [name, twin] : twins) EXPECT_STREQ(variable(twin), twin);
  EXPECT_STREQ(::getenv(kRefusedVariable), "");
  ::setenv(kDatasetVariable, "/other", 1);
  load();
  init(S_CTX_ALLOCATOR);
  EXPECT_STREQ(::getenv(kDatasetVariable), "/other") << "what is there stays";
  hook("init_post_opt");
  EXPECT_FALSE(::getenv("MONARCH_IO_OPT_DATASET") || ::getenv("MONARCH_IO_OPT_NO_MONARCH"));
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
    ::setenv("PYTHONPATH", "/opt/monarch/python:/own", 1);
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
  EXPECT_STREQ(::getenv("PYTHONPATH"), "/own");
  ::setenv("PYTHONPATH", "/opt/monarch/python", 1);
  ::setenv("LD_PRELOAD", lib.c_str(), 1);
  for (int i = 0; i < 2; ++i) {
    init(S_CTX_ALLOCATOR);
    EXPECT_FALSE(::getenv("LD_PRELOAD") || ::getenv("PYTHONPATH")) << "without one nothing is to be dropped";
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

TEST_F(SpankPlugin, RefusesOrWarnsAsTheOptionsSay) {
  const std::string absent = scratch_ / "absent", data = scratch_.dir("data");
  const std::pair<std::string, const char*> of_absent = {"monarch-dataset", absent.c_str()},
                                            of_data = {"monarch-dataset", data.c_str()};
  struct Submission {
    Options options;
    int status;
    const char* said;       // "": nothing is
    const char* as_a_step;  // likewise; its job was checked
  };
  const char* no_dataset = "info: warning: monarch: options without --monarch-dataset=PATH";
  const Submission cases[] = {
      {{of_data, {"monarch-prefetch", "off"}, {"monarch-wait", "80%"}},
       1,
       "--monarch-wait=80% waits for",
       ""},
      {{of_data, {"monarch-prefetch", "off"}, {"monarch-wait", "none"}}, 0, "", ""},
      {{of_data, {"monarch-prefetch", "auto"}, {"monarch-wait", "80%"}}, 0, "", ""},
      {{{"monarch-wait", "full"}}, 0, no_dataset, ""},
      {{{"no-monarch", nullptr}}, 0, "", ""},
      {{}, 0, "", ""},
      {{of_absent}, 1, "/absent: No such file", ""},
      {{of_absent, {"monarch-check", "warn"}}, 0, "info: warning: --monarch-dataset: ", ""},
      {{of_absent, {"monarch-check", "off"}}, 0, "", ""},
      {{of_absent, {"no-monarch", nullptr}}, 0, "", ""},
  };
  for (const char* job : {"", "7"})
    for (const spank_context_t context : {S_CTX_ALLOCATOR, S_CTX_LOCAL})
      for (const Submission& s : cases) {
        *job ? ::setenv("SLURM_JOB_ID", job, 1) : ::unsetenv("SLURM_JOB_ID");
        const bool is_step = *job && context == S_CTX_LOCAL;
        const std::string text = is_step ? s.as_a_step : s.said;
        EXPECT_EQ(submit_with(s.options, context), is_step ? 0 : s.status) << text;
        EXPECT_TRUE(text.empty() ? said().empty() : has(said(), text)) << text << ": " << said();
      }
  ::setenv("MONARCH_IO_OPT_PREFETCH", "all", 1);
  EXPECT_EQ(submit_with({{"monarch-wait", "full"}}), 0);
  EXPECT_EQ(said(), "") << "for all jobs of a user";
}

TEST_F(SpankPlugin, RefusesADatasetThatTheTiersShare) {
  const std::string tier = scratch_.dir("fast/tier"), data = scratch_.dir("data");
  scratch_.dir("fast/tier/below");
  scratch_.dir("fast/tierra");
  std::filesystem::create_symlink(scratch_ / "fast", scratch_ / "link");
  const auto refuses = [&](const std::string& lines, const std::string& dataset) {
    scratch_.file("monarch.conf", lines + "\n");
    return submit(dataset) == 1;
  };
  const std::string others = "; path = " + data + "\n[tier]\nkind = disk\npathos = " + data + "\npathx" +
                             data + "\ncost = " + data + "\npath = relative\npath =\n";
  for (const std::string& line : {"path = " + tier, "\t path\t:\t" + tier + "// ; of NVMe",
                                  "path=" + tier + "\t# of NVMe", "path=" + tier + " \t\r"}) {
    SCOPED_TRACE(line);
    EXPECT_TRUE(refuses(others + line, scratch_ / "fast"));
    EXPECT_TRUE(has(said(), "it holds " + tier + ", where")) << said();
    for (const std::string& dataset : {scratch_ / "link", tier, tier + "/below"})
      EXPECT_TRUE(refuses(others + line, dataset)) << dataset;
    EXPECT_TRUE(has(said(), "it lies in " + tier + ", where")) << said();
    for (const std::string& dataset : {data, scratch_ / "fast/tierra"})
      EXPECT_FALSE(refuses(others + line, dataset)) << said();
  }
  EXPECT_TRUE(refuses("path = " + (scratch_ / "link/tier"), scratch_ / "fast"))
      << "however its path is written";
  EXPECT_TRUE(refuses("path = " + data + "/absent", data)) << "nodes have it, this host has not";
  EXPECT_FALSE(refuses("path = /", data)) << "what holds all keeps nobody from submitting";
  EXPECT_FALSE(refuses("path = /" + std::string(5000, 'a'), data)) << "no path of a tier";
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

// ---- prolog and epilog

TEST_F(SpankPlugin, ThePrologNotesWhatTheJobWants) {
  ::setenv("SLURM_CONF", "/etc/slurm.conf", 1);
  for (const auto& given : {std::map<std::string, std::string>{},
                            {{"monarch-consistency", "open"}},
                            {{"monarch-dataset", "/data"}, {"no-monarch", ""}},
                            {{"monarch-dataset", "relative"}}}) {
    prolog(given);
    EXPECT_EQ(arguments() + said(), "") << given.size();
  }
  prolog({{"monarch-dataset", "/data"}, {"monarch-check", "off"}});
  EXPECT_EQ(arguments(), "--prolog --config " + (scratch_ / "monarch.conf") + " --state-dir " +
                             (scratch_ / "state") + " --log " + (scratch_ / "log") +
                             " --job 7 --cluster cluster --node n1\n");
  EXPECT_EQ(told_helper("MONARCH_JOB_DATASETS"), "/data");
  EXPECT_TRUE(has("\n" + read("variables"), "\nSLURM_CONF=/etc/slurm.conf\n")) << read("variables");
  EXPECT_FALSE(has(read("variables"), "SLURMD_NODENAME")) << "nothing else of slurmd's";
}

TEST_F(SpankPlugin, PrologAndEpilogNeedAJobAndANode) {
  fake_.given = {{"monarch-dataset", "/data"}};
  for (const char* job : {"cluster.7.n1", "cluster..n1", "cluster.7.", "said.7.n1", "read.7.n1"})
    scratch_.dir(std::string("state/jobs/") + job);
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
  ::setenv("SLURM_CLUSTER_NAME", "said", 1);
  hook("job_epilog");
  EXPECT_TRUE(has(arguments(), "--cluster said ")) << arguments();
  std::string name = "read";
  slurm_conf.cluster_name = name.data();
  hook("job_epilog");
  EXPECT_TRUE(has(arguments(), "--cluster read "))
      << "the cluster is the one that Slurm read: " << arguments();
  load();
  ::setenv("SLURM_JOB_ID", "8", 1);
  hook("job_epilog");
  EXPECT_EQ(arguments(), "") << "Monarch had nothing to do with that job";
}

TEST_F(SpankPlugin, AStepEndsTheJobOnlyWhereItStandsForTheEpilog) {
  scratch_.dir("state/jobs/cluster.0.n1");
  scratch_.dir("state/jobs/cluster.7.n1");
  const auto ends = [&](spank_context_t context, const Items& items) {
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
  EXPECT_FALSE(has(read("variables"), "SLURM")) << read("variables");
  EXPECT_EQ(said() + told(), "");
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

TEST_F(SpankPlugin, WithoutAnItemNothingIsStartedOrADefaultIsTaken) {
  for (const spank_item item : {S_JOB_ID, S_JOB_UID, S_JOB_GID}) {
    const uint32_t value = fake_.items[item];
    fake_.items.erase(item);
    step();
    EXPECT_EQ(arguments() + said() + told(), "") << item;
    fake_.items[item] = value;
  }
  for (const auto& [text, nodes] :
       {std::pair("5", " 5 "), {"0", " 1 "}, {"x", " 1 "}, {"999999", " 999999 "}, {"1000000", " 1 "}}) {
    step({}, {{"SLURM_JOB_NUM_NODES", text}});
    EXPECT_TRUE(has(arguments(), std::string(" --nodes") + nodes)) << arguments();
  }
  step({{S_JOB_NNODES, 3}}, {{"SLURM_JOB_NUM_NODES", "5"}});
  EXPECT_TRUE(has(arguments(), " --nodes 3 ")) << "the item is the trusted one";
  step({{S_JOB_UID, 0}});
  EXPECT_EQ(arguments(), "");
  EXPECT_EQ(told(), "monarch: the job runs without Monarch on n1: it is root's\n");
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
  for (std::string type : {"", "job_container/none", "namespace/none", "job_container/tmpfs"}) {
    namespace_type(slurm_conf) = type.data();
    step();
    EXPECT_EQ(has(arguments(), " --own-mounts "), type.ends_with("tmpfs")) << type;
  }
}

TEST_F(SpankPlugin, WithoutAnOptionWhatThePrologNotedIsStarted) {
  const Items ordinary = {{S_JOB_ID, 7}, {S_JOB_STEPID, 0}},
              external = {{S_JOB_ID, 7}, {S_JOB_STEPID, kExternStep}};
  const auto starts = [&](const char* hook_name, const Items& items) {
    load();
    init(S_CTX_REMOTE);
    fake_.items = items;
    fake_.items[S_JOB_UID] = 1000;
    fake_.items[S_JOB_GID] = 100;
    hook(hook_name);
    hook(hook_name);
    const std::string all = arguments();
    return std::count(all.begin(), all.end(), '\n');
  };
  EXPECT_EQ(starts("init_post_opt", ordinary) + starts("task_post_fork", external), 0) << "nothing noted";
  note();
  scratch_.file("state/jobs/cluster.0.n1/record.json", R"({"wanted": "/data"})");
  EXPECT_EQ(starts("init_post_opt", ordinary), 1);
  EXPECT_EQ(told_helper("MONARCH_JOB_DATASETS"), "none") << "monarchd knows them";
  EXPECT_EQ(starts("init_post_opt", external), 0) << "there it is done once its tasks are";
  EXPECT_EQ(starts("task_post_fork", external), 1);
  EXPECT_EQ(starts("task_post_fork", ordinary), 0);
  for (const char* name : {"init_post_opt", "task_post_fork"})
    for (const auto& items : {Items{{S_JOB_ID, 7}}, {{S_JOB_STEPID, 0}}, {{S_JOB_STEPID, kExternStep}}})
      EXPECT_EQ(starts(name, items), 0) << name;
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
    const std::string asked = arguments();
    EXPECT_LE(std::count(asked.begin(), asked.end(), '\n'), 1);
    return has(asked, "--tasks");
  };
  for (const auto& [text, asks] : {std::pair("", false),
                                   {"# default_dataset = /x\n", false},
                                   {"default_datasets = /x\n", false},
                                   {"no_default_dataset = /x\n", false},
                                   {"default_dataset = /x\n", true},
                                   {" \tdefault_dataset:/x", true}}) {
    scratch_.file("monarch.conf", "[policy.partition.a]\n" + std::string(2000, '#') + "\n" + text);
    EXPECT_EQ(starts(0), asks) << text;
  }
  EXPECT_EQ(told_helper("MONARCH_JOB_OPTIONS") + told_helper("MONARCH_JOB_DATASETS"), "prefetch=offnone");
  EXPECT_FALSE(starts(kExternStep)) << "which does not see who declines";
  EXPECT_FALSE(starts(0, 0)) << "root's jobs";
  EXPECT_EQ(said(), "") << "likewise";
  EXPECT_FALSE(starts(0, 1000, "no-monarch"));
  helper("echo 'tell there is none' >&3");
  EXPECT_TRUE(starts(0));
  EXPECT_EQ(told(), "") << "nobody has asked for it";
  record(R"("no_default": true,)");
  EXPECT_FALSE(starts(0)) << "it was asked before";
  record(R"("told": "\"no_default\": \"wanted\":",)");
  EXPECT_TRUE(starts(0)) << "what is in a text is no member";
  scratch_.file("monarch.conf", "");
  words_.emplace_back("policy.partition.a.b.default_dataset=/x");
  EXPECT_TRUE(starts(0));
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

TEST_F(SpankPlugin, WhatAHelperTellsIsToldOnceByTheFirstStep) {
  struct Case {
    std::string body;  // of the helper
    uint32_t step, task;
    std::map<std::string, std::string> environment;
    std::string told;
  };
  const std::string without = "monarch: the job runs without Monarch on n1: ",
                    silent = without + "its helper did not answer\n",
                    tuesday = "echo 'tell it is Tuesday' >&3",
                    ready = "printf 'ready %s %s\\tnot served\\n' $here/run $here/libmonarch_preload.so >&3";
  for (const Case& c : {Case{"kill -9 $$", 0, 0, {}, silent},
                        {"echo >&3", 0, 0, {}, silent},
                        {"exit 1", 0, 0, {}, silent},
                        {"exit 1", 1, 0, {}, ""},
                        {"exit 1", kExternStep, 0, {}, ""},
                        {"exit 1", 0, 0, {{"ENVIRONMENT", "BATCH"}}, ""},
                        {"exit 1", kBatchStep, 0, {{"ENVIRONMENT", "BATCH"}}, silent},
                        {tuesday, 0, 0, {}, without + "it is Tuesday\n"},
                        {tuesday, 0, 1, {}, ""},
                        {tuesday, 0, 0, {{"MONARCH_IO_QUIET", "1"}}, ""},
                        {tuesday, 0, 0, {{"MONARCH_IO_QUIET", std::string(100, '1')}}, ""},
                        {"echo 'off it is Tuesday' >&3", 0, 0, {}, ""},
                        {"echo 'once it is Tuesday' >&3", 0, 0, {}, without + "it is Tuesday\n"},
                        {"echo 'once it is Tuesday' >&3", 1, 0, {}, ""},
                        {ready, 0, 0, {}, "monarch: not served\n"},
                        {ready, 0, 0, {{"SLURM_HET_SIZE", "2"}}, ""}}) {  // of a component that nobody asked
    SCOPED_TRACE(c.body + " " + std::to_string(c.step));
    helper(c.body);
    step({{S_JOB_STEPID, c.step}, {S_TASK_ID, c.task}}, c.environment);
    const std::string why = c.body == ready ? "" : has(c.body, "Tuesday") ? "it is Tuesday" : "its helper";
    const bool is_logged = c.body != ready && (c.body != "exit 1" || c.told == silent);
    EXPECT_EQ(has(said(), "info: monarch: JobId=7 runs without Monarch on this node: " + why), is_logged)
        << said();
    EXPECT_EQ(told(), c.told);
    EXPECT_EQ(fake_.environment.contains("MONARCH_IO_RUN_DIR"), c.body == ready);
  }
  note();
  step({}, {}, {});
  EXPECT_EQ(said(), "") << "who gave no option is not told by each step";
  std::filesystem::remove(scratch_ / "monarchd");
  step({{S_JOB_STEPID, 0}, {S_TASK_ID, 0}});
  EXPECT_EQ(told(), silent) << "there is none";
}

TEST_F(SpankPlugin, AHelperThatHangsIsKilledWithItsChild) {
  helper("sleep 1000 &\necho $! > $here/child\nprintf 'ready /run' >&3\nwait");
  step();
  EXPECT_TRUE(has(said(), "monarchd --start took longer than 7500 ms")) << said();
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
    mounts->check(has(said(), "monarchd --start took longer than 7500 ms"), said());
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
}

// ---- tasks

TEST_F(SpankPlugin, TasksThatDoNotSeeTheAgentAreToldOnce) {
  step();
  for (const char* what : {"libmonarch_preload.so", "run"}) {
    std::filesystem::remove_all(scratch_ / what);
    EXPECT_EQ(told(), "monarch: the job runs without Monarch on n1: its programs do not see " +
                          (scratch_ / what) + " (a private /tmp or a container?)\n");
  }
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
  SpankWait() : agent_(::open((scratch_ / "run/board").c_str(), O_RDONLY | O_CLOEXEC)) {
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
  static std::string timeless(std::string text) {
    const size_t at = text.find("after "), end = text.find(" s ", at);
    return end == std::string::npos ? text : text.replace(at, end - at, "after 0");
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
  step_that_waits("100 60");
  tell("staged-in", 10, "no_room=2\nfailed=0\n");
  EXPECT_TRUE(has(told(), "no more can be: 2 files have no room")) << "though there may come room";
  step_that_waits("80 60");
  for (const char* before : {"staging-in", "staged-in"}) {
    tell(before, 10, "no_room=2\nfailed=0\n");
    const AtLook later(5, [&] { tell(before, 81); });
    EXPECT_EQ(timeless(told()), line("81", "the job begins"));
  }
  EXPECT_EQ(fake_.environment["MONARCH_IO_STATE"], scratch_ / "run/state");
  tell("staging-in", 42);
  agent_.reset();
  EXPECT_TRUE(has(told(), "its agent has ended\n"));
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
  scratch_.file("run/began", "1");
  hook("user_init");
  EXPECT_EQ(read("run/began"), "1") << "an earlier step was the first";
  scratch_.file("run/began", "");
  tell("staging-in", 80);
  step_that_waits("80 600");
  hook("user_init");
  EXPECT_GT(began_in_ms(), 0) << "at the wait's end at the latest";
  EXPECT_EQ(timeless(told()), line("80", "the job begins"));
  EXPECT_LE(began_in_ms(), 0) << "the wait is over";
}

// As monarchd --close has it, by the last task of the first step on the first node.
TEST_F(SpankPlugin, TellsAtTheEndWhatThePfsWasSpared) {
  helper("[ \"$1\" != --close ] || echo 'read 7M' >&3");
  const auto told_by = [&](const Items& items, const std::map<std::string, std::string>& environment = {}) {
    fake_.items.erase(S_JOB_LOCAL_TASK_COUNT);
    step(items, environment);
    return told("task_exit");
  };
  const Items batch = {{S_JOB_STEPID, kBatchStep}, {S_JOB_NODEID, 0}};
  const std::string line = "monarch: read 7M\n";
  EXPECT_EQ(told_by(batch), "") << "it has no agent";
  record(R"("closing_line": true,)");
  EXPECT_EQ(told_by(batch), line);
  EXPECT_TRUE(has(arguments(), "--job 7 --cluster cluster --node n1 --reply-fd 3")) << arguments();
  EXPECT_EQ(told_by(batch, {{"MONARCH_IO_QUIET", ""}}), "");
  EXPECT_EQ(told_by({{S_JOB_STEPID, kBatchStep}, {S_JOB_NODEID, 1}}), "") << "another node";
  EXPECT_EQ(told_by({{S_JOB_STEPID, 0}, {S_JOB_NODEID, 0}}), line) << "srun";
  EXPECT_EQ(told_by({{S_JOB_STEPID, 0}}, {{"ENVIRONMENT", "BATCH"}}), "") << "the batch script tells";
  EXPECT_EQ(told_by({{S_JOB_STEPID, 3}}), "") << "a later step";
  EXPECT_EQ(told_by({{S_JOB_STEPID, 0}, {S_JOB_LOCAL_TASK_COUNT, 2}}), "") << "another task runs";
  EXPECT_EQ(told("task_exit"), line) << "the last task";
  record("");
  EXPECT_EQ(told_by(batch), "") << "switched off";
  record(R"("closing_line": true,)");
  step({}, {}, {{"no-monarch", nullptr}});
  EXPECT_EQ(told("task_exit"), "") << "--no-monarch";
  helper("[ \"$1\" != --close ] || exec sleep 600");
  seconds_a_look = 1;
  EXPECT_EQ(told_by(batch), "") << "a helper that hangs is not waited for";
  seconds_a_look = 0;
  EXPECT_TRUE(has(said(), "--close took longer than 1000 ms")) << said();
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
    mounts->check(is_soon_done([&] { return leaves_one_behind({"user_init", "task_post_fork"}); }), "hooks");
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
  for (const int percent : {1, 100}) {
    tell("staging-in", percent);
    const pid_t pid = ::fork();
    if (pid == 0) {  // as slurmstepd's child is
      sigset_t term, now;
      ::sigemptyset(&term);
      ::sigaddset(&term, SIGTERM);
      ::sigprocmask(SIG_BLOCK, &term, nullptr);
      ::signal(SIGTERM, SIG_IGN);
      const auto handler = [](int) {};
      ::signal(SIGHUP, handler);
      function("task_init")(nullptr, 0, nullptr);
      ::sigprocmask(SIG_BLOCK, nullptr, &now);
      const bool blocked = ::sigismember(&now, SIGTERM) == 1 && ::sigismember(&now, SIGHUP) == 0;
      ::_exit(blocked && ::signal(SIGHUP, SIG_DFL) == +handler ? 0 : 1);
    }
    if (percent == 1) {
      EXPECT_TRUE(is_soon_in_kernel(pid)) << "it waits";
      EXPECT_EQ(::kill(pid, SIGTERM), 0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(WIFSIGNALED(status), percent == 1);
    EXPECT_TRUE(percent == 1 || status == 0) << "afterwards all is as it was";
  }
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
  const auto told_slowly = [&] {
    seconds_a_look = 7;
    std::string text = told();
    seconds_a_look = 0;
    return text;
  };
  EXPECT_TRUE(has(told_slowly(), "(0 files, 0 bytes): its agent has told nothing for 60 s\n"));
  tell("staging-in", 1, "all_bytes=10240\nrate=512\n");
  step_that_waits("100 100");
  const std::string all = told_slowly();
  EXPECT_TRUE(has(all, "the time of --monarch-wait-timeout is over; staging goes on\n")) << all;
  EXPECT_TRUE(has(all, "monarch: n1: 2.0K of 10.0K staged, 512 bytes/s, about 0:00:16 left; the job begins"))
      << all;
  const auto lines = std::count(all.begin(), all.end(), '\n');
  EXPECT_TRUE(lines > 3 && lines < 7) << "ever more seldom: " << all;
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

TEST_F(SpankPlugin, WithHintsPythonLooksForThePackageFirst) {
  const auto path = [&](const std::string& before) {
    step({}, {{"PYTHONPATH", before}});
    EXPECT_EQ(told(), "");
    EXPECT_EQ(fake_.environment["MONARCH_IO_HINTS"],
              fake_.environment["PYTHONPATH"] == before ? "" : "torch");
    return fake_.environment["PYTHONPATH"];
  };
  const std::string ours = scratch_.dir("monarch/python");
  EXPECT_EQ(path("/own"), "/own");
  helper(
      "printf 'ready %s %s\\t\\t0 0\\t%s\\n' $here/run $here/libmonarch_preload.so $here/monarch/python >&3");
  EXPECT_EQ(path(""), ours);
  EXPECT_EQ(path(":/own:"), ours + "::/own:") << "the working directory stays in it";
  EXPECT_EQ(path("/old/monarch/python:/own"), ours + ":/own");
  std::filesystem::remove(ours);
  EXPECT_EQ(path("/own"), "/own") << "the task does not see it";
}

TEST_F(SpankPlugin, AStepThatIsToGoWithoutDoes) {
  const auto after = [&](const char* list) {
    for (const char* name : {"MONARCH_IO_OPT_DATASET", "MONARCH_IO_OPT_NO_MONARCH", "MONARCH_IO_OPT_CHECK"})
      fake_.environment[name] = "x";
    fake_.environment["MONARCH_IO_RUN_DIR"] = "/run/x";
    fake_.environment["PYTHONPATH"] = "/x/monarch/python:/own";
    if (list) fake_.environment["LD_PRELOAD"] = list;
    hook("task_init");
    for (const auto& [name, value] : fake_.environment)
      EXPECT_FALSE(name.starts_with("MONARCH_IO_OPT_")) << name;
    const std::string run = fake_.environment.contains("MONARCH_IO_RUN_DIR") ? "kept " : "";
    EXPECT_EQ(fake_.environment["PYTHONPATH"] == "/own", run.empty());
    return run + (fake_.environment.contains("LD_PRELOAD") ? fake_.environment["LD_PRELOAD"] : "none");
  };
  helper("echo off >&3");
  step();
  EXPECT_EQ(after("/a.so:/x/libmonarch_preload.so"), "/a.so") << "srun's, whose agent this task has not";
  EXPECT_EQ(after("/x/libmonarch_preload.so"), "none");
  EXPECT_EQ(after(nullptr), "none");
  for (const bool is_refused : {false, true}) {
    step({}, {}, is_refused ? Options{{"no-monarch", nullptr}} : Options());
    EXPECT_EQ(after("/x/libmonarch_preload.so"), is_refused ? "none" : "kept /x/libmonarch_preload.so")
        << "not Slurm's: monarchctl run";
  }
}

}  // namespace
}  // namespace monarch
