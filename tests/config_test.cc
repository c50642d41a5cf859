// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/base/paths.h"
#include "runtime/config/show.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

class ConfigFile : public ::testing::Test {
 protected:
  Result<Config> load(const std::string& text) {
    file_ = scratch_.file("monarch.conf", text);
    return load_config(file_);
  }
  // The error of a file with this text, without the file's name; "" if there is none.
  std::string error_of(const std::string& text) {
    const Result<Config> config = load(text);
    if (config.ok()) return "";
    const std::string& whole = config.error().text;
    EXPECT_EQ(whole.rfind(file_ + ":", 0), 0u) << whole;
    return whole.substr(std::min(whole.size(), file_.size() + 1));
  }
  // All errors of such a file, a line each: SECTION.KEY, if it is of one, and the text.
  std::string errors_of(const std::string& text) {
    ConfigTrace trace;
    const Result<Config> config = load_config(scratch_.file("monarch.conf", text), &trace);
    EXPECT_EQ(config.ok() ? "" : config.error().text, trace.errors.empty() ? "" : trace.errors[0].error.text);
    std::string all;
    for (const ConfigError& e : trace.errors) {
      const std::string place = (scratch_ / "monarch.conf:") + std::to_string(e.line) + ": ";
      EXPECT_EQ(e.error.text.rfind(place, 0), 0u) << e.error.text;
      all += std::to_string(e.line) + " " + e.key + " " + e.error.text.substr(place.size()) + "\n";
    }
    return all;
  }

  Scratch scratch_;
  std::string file_;
};

TEST_F(ConfigFile, ReadsEveryKey) {
  const Result<Config> config = load(
      "# a comment\n"
      "[tier.ram]\n"
      "path = /dev/shm//x/\n"
      "quota = 1.5G\n"
      "medium = ram\n"
      "min_free = 10%\n"
      "\n"
      "[tier.nvme]\n"
      "path=/scratch\n"
      "quota=80%\n"
      "medium=nvme\n"
      "driver=tmpfs\n"
      "charge=job\n"
      "share=equal\n"
      "min_free=2G\n"
      "[agent]\n"
      "threads = 3\n"
      "walk_threads = 2\n"
      "watch_directories = 77\n"
      "stage_wait_max = 8M ; how much an open waits for\n"
      "stage_wait = 0\n"
      "stage_again = 7\n"
      "prefetch = off\n"
      "prefetch_burst = 3G\n"
      "prefetch_patience = 0\n"
      "consistency = open\n"
      "metadata = pass\n"
      "pfs_bandwidth = 2G\n"
      "pfs_opens = 5000\n"
      "pfs_stats = 1\n"
      "tier_bandwidth = none\n"
      "background_io = idle\n"
      "log = /var/log/monarchd.log\n"
      "memory_max = 512M\nlog_level = debug\n");
  ASSERT_TRUE(config.ok()) << config.error().text;
  ASSERT_EQ(config->tiers.size(), 2u);
  const TierConfig &ram = config->tiers[0], &nvme = config->tiers[1];
  EXPECT_EQ(ram.name, "ram");
  EXPECT_EQ(ram.path, "/dev/shm/x");
  EXPECT_EQ(ram.quota.of(1), uint64_t{3} << 29);
  EXPECT_EQ(ram.medium, Medium::kRam);
  EXPECT_EQ(ram.min_free.of(1000), 100u);
  EXPECT_EQ(nvme.name, "nvme");
  EXPECT_EQ(nvme.path, "/scratch");
  EXPECT_EQ(nvme.quota.of(1000), 800u);
  EXPECT_EQ(nvme.medium, Medium::kNvme);
  EXPECT_EQ(nvme.kind, TierConfig::Kind::kTmpfs);
  EXPECT_EQ(ram.kind, TierConfig::Kind::kDirectory);
  EXPECT_EQ(nvme.charge, TierConfig::Charge::kJob);
  EXPECT_EQ(ram.charge, TierConfig::Charge::kNode);
  EXPECT_EQ(nvme.min_free.of(1), uint64_t{2} << 30);
  EXPECT_EQ(config->agent.threads, 3);
  EXPECT_EQ(config->agent.walk_threads, 2);
  EXPECT_EQ(config->agent.watch_directories, 77);
  EXPECT_EQ(config->agent.stage_wait_max, 8u << 20);
  EXPECT_EQ(config->agent.stage_wait, 0);
  EXPECT_EQ(config->agent.stage_again, 7);
  EXPECT_EQ(config->agent.prefetch, AgentConfig::Prefetch::kOff);
  EXPECT_EQ(config->agent.prefetch_burst, uint64_t{3} << 30);
  EXPECT_EQ(config->agent.prefetch_patience, 0);
  EXPECT_EQ(config->agent.consistency, AgentConfig::Consistency::kOpen);
  EXPECT_EQ(config->agent.metadata, AgentConfig::Metadata::kPass);
  EXPECT_EQ(config->agent.pfs_bandwidth, uint64_t{2} << 30);
  EXPECT_EQ(config->agent.pfs_opens, 5000u);
  EXPECT_EQ(config->agent.pfs_stats, 1u);
  EXPECT_EQ(config->agent.tier_bandwidth, 0u);
  EXPECT_EQ(config->agent.background_io, AgentConfig::Io::kIdle);
  EXPECT_EQ(config->agent.memory_max, uint64_t{512} << 20);
  EXPECT_EQ(config->agent.log, "/var/log/monarchd.log");
  EXPECT_EQ(config->agent.log_level, "debug");
}

TEST_F(ConfigFile, ReadsWhatThereIsToPeers) {
  const Result<Config> none = load("");
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->peer.enabled);
  EXPECT_EQ(none->peer.network, "");
  EXPECT_EQ(none->peer.first_port, 64000);
  EXPECT_EQ(none->peer.last_port, 64999);
  EXPECT_EQ(none->peer.bandwidth, 0u);
  EXPECT_FALSE(none->peer.encrypt);
  const Result<Config> all = load(
      "[peer]\nenabled = on\nnetwork = 10.1.0.0/16\nports = 1024-65535\nbandwidth = 1.5G\nencrypt = on\n");
  ASSERT_TRUE(all.ok()) << all.error().text;
  EXPECT_TRUE(all->peer.enabled);
  EXPECT_EQ(all->peer.network, "10.1.0.0/16");
  EXPECT_EQ(all->peer.first_port, 1024);
  EXPECT_EQ(all->peer.last_port, 65535);
  EXPECT_EQ(all->peer.bandwidth, uint64_t{3} << 29);
  EXPECT_TRUE(all->peer.encrypt);
  const Result<Config> other =
      load("[peer]\nenabled = off\nnetwork = fd00::/128\nports = 7000-7000\nbandwidth = 0\nencrypt = off\n");
  ASSERT_TRUE(other.ok()) << other.error().text;
  EXPECT_FALSE(other->peer.enabled || other->peer.encrypt);
  EXPECT_EQ(other->peer.network, "fd00::/128");
  EXPECT_EQ(other->peer.last_port, 7000);
}

TEST_F(ConfigFile, WhatIsWrongOfPeersIsToldWithTheRemedy) {
  const auto with = [&](const std::string& line) { return error_of("[peer]\n" + line + "\n"); };
  EXPECT_EQ(with("port = 1"),
            "2: unknown key 'port' in [peer] (did you mean ports?); known are enabled, network, ports, "
            "bandwidth, encrypt");
  EXPECT_EQ(with("enabled = yes"), "2: enabled: 'yes' is none of on, off");
  EXPECT_EQ(with("encrypt = 1"), "2: encrypt: '1' is none of on, off");
  EXPECT_EQ(with("encrypt = on\nencrypt = on"), "3: 'encrypt' is given twice in [peer]");
  EXPECT_EQ(with("bandwidth = fast").rfind("2: ", 0), 0u);
  for (const char* network :
       {"10.1.0.0", "10.1.0.0/", "10.1.0.0/33", "10.1.0.0/0", "10.1/16", "/16", "fd00::/129", "ib0/16", ""})
    EXPECT_EQ(with(std::string("network = ") + network),
              std::string("2: network '") + network +
                  "' is not ADDRESS/BITS; write for example network = 10.1.0.0/16");
  for (const char* ports :
       {"64000", "64000-", "-64999", "1023-2000", "2000-1999", "65000-65536", "64000-64999-65000", "a-b"})
    EXPECT_EQ(with(std::string("ports = ") + ports),
              std::string("2: ports '") + ports +
                  "' are not FIRST-LAST, from 1024 to 65535; write for example ports = 64000-64999");
}

TEST_F(ConfigFile, ReadsThePolicy) {
  const Result<Config> config = load(
      "[tier.a]\npath = /a\nquota = 1G\njob_capacity = 20%\n[tier.b]\npath = /b\nquota = 1G\n"
      "[policy]\nenabled = on\nallow_users = alice, 17\nallow_users=bob\ndeny_users =\nallow_groups = a,b\n"
      "deny_groups = c\nallow_datasets = /x//:/y\nallow_datasets = /z, too\ndeny_datasets = /x/y/.\n"
      "default_dataset = /d:/e\ndefault_dataset = /f\ndefault_options = prefetch=off wait=none\n"
      "deny_options = wait,tiers\nmax_prefetch = auto\nmax_wait = 0\n"
      "tiers = b,a\njob_capacity = 2G\nmax_files = 10M\npfs_bandwidth = 1G\npfs_opens = 100\npfs_stats = "
      "none\n"
      "[policy.partition.GPU.a]\nenabled = off\n[policy.account.Phys]\nmax_files = "
      "none\n[policy.qos.high]\n");
  ASSERT_TRUE(config.ok()) << config.error().text;
  EXPECT_EQ(config->tiers[0].job_capacity.percent, 20);
  EXPECT_EQ(config->tiers[1].job_capacity.percent, 100) << "the whole";
  ASSERT_EQ(config->policies.size(), 4u);
  using List = std::vector<std::string>;
  const PolicyKeys& keys = config->policies[0].keys;
  EXPECT_TRUE(keys.enabled.value());
  EXPECT_EQ(keys.allow_users.value(), (List{"alice", "17", "bob"}));
  EXPECT_EQ(keys.deny_users.value(), List{});
  EXPECT_EQ(keys.allow_groups.value(), (List{"a", "b"}));
  EXPECT_EQ(keys.deny_groups.value(), List{"c"});
  EXPECT_EQ(keys.allow_datasets.value(), (List{"/x", "/y", "/z, too"}));
  EXPECT_EQ(keys.deny_datasets.value(), List{"/x/y"});
  EXPECT_EQ(keys.tiers.value(), (List{"b", "a"}));
  EXPECT_EQ(keys.job_capacity->bytes, uint64_t{2} << 30);
  EXPECT_EQ(keys.max_files.value(), uint64_t{10} << 20);
  EXPECT_EQ(keys.pfs_bandwidth.value(), uint64_t{1} << 30);
  EXPECT_EQ(keys.pfs_opens.value(), 100u);
  EXPECT_EQ(keys.pfs_stats.value(), 0u);
  EXPECT_EQ(keys.default_dataset.value(), (List{"/d", "/e", "/f"}));
  EXPECT_EQ(keys.default_options.value(), "prefetch=off wait=none");
  EXPECT_EQ(keys.deny_options.value(), (List{"wait", "tiers"}));
  EXPECT_EQ(keys.max_prefetch.value(), "auto");
  EXPECT_EQ(keys.max_wait.value(), 0);
  EXPECT_EQ(config->policies[1].title(), "policy.partition.GPU.a");
  EXPECT_FALSE(config->policies[1].keys.enabled.value());
  EXPECT_FALSE(config->policies[1].keys.deny_users || config->policies[1].keys.max_files);
  EXPECT_EQ(config->policies[2].title(), "policy.account.phys") << "as Slurm compares them";
  EXPECT_EQ(config->policies[2].keys.max_files.value(), 0u);
  EXPECT_EQ(config->policies[3].title(), "policy.qos.high");
}

TEST_F(ConfigFile, WhatIsWrongOfThePolicyIsToldWithTheRemedy) {
  const auto with = [&](const std::string& line) { return error_of("[policy.qos.a]\n" + line + "\n"); };
  EXPECT_EQ(
      with("on = off").rfind("2: unknown key 'on' in [policy.qos.a]; known are enabled, allow_users, ", 0),
      0u);
  EXPECT_EQ(with("enabled = no"), "2: enabled: 'no' is none of on, off");
  EXPECT_EQ(with("enabled = on\nenabled = on"), "3: 'enabled' is given twice in [policy.qos.a]");
  EXPECT_EQ(with("enabled = on\n[policy.qos.A]\nenabled = off"),
            "4: 'enabled' is given twice in [policy.qos.A]");
  EXPECT_EQ(with("deny_datasets = /a:b"), "2: deny_datasets: path 'b' is not absolute");
  EXPECT_EQ(with("allow_datasets = /a/../b"),
            "2: allow_datasets: path '/a/../b': name the directory without '..'");
  for (const char* list : {"/a, /b", "/a,/b", "/a:/b , \t/c"})
    EXPECT_EQ(
        with("deny_datasets = " + std::string(list)),
        "2: deny_datasets: paths are separated by ':', not by ','; write for example /lustre/a:/lustre/b");
  EXPECT_EQ(with("deny_datasets = /a,b:/c,"), "") << "a name may have a comma";
  for (const char* key : {"allow_users", "deny_users", "allow_groups", "deny_groups", "tiers"})
    EXPECT_EQ(
        with(std::string(key) + " = a:b"),
        std::string("2: ") + key + ": names are separated by ',', not by ':'; write for example one, two");
  EXPECT_EQ(with("tiers = "), "2: tiers names none; write for example tiers = nvme, ssd, or enabled = off");
  EXPECT_EQ(with("tiers = a, b, a"), "2: tiers names a twice");
  EXPECT_EQ(with("\ntiers = a"), "3: tiers names a, but there is no section [tier.a]; add it");
  EXPECT_EQ(with("job_capacity = 4095"),
            "2: job_capacity = 4095 has no room for any file; write for example job_capacity = 50%");
  EXPECT_EQ(with("job_capacity = 0%"),
            "2: job_capacity = 0% has no room for any file; write for example job_capacity = 50%");
  EXPECT_EQ(with("max_files = many").rfind("2: ", 0), 0u);
  EXPECT_EQ(with("default_dataset = data"), "2: default_dataset: path 'data' is not absolute");
  EXPECT_EQ(with("default_options = prefetch=on"),
            "2: default_options = prefetch=on: option 'prefetch=on' is not known to this version of Monarch; "
            "write for example default_options = prefetch=off consistency=open, of prefetch, consistency, "
            "tiers, wait, wait_timeout, capacity, exclude");
  EXPECT_EQ(
      with("deny_options = tiers, colour"),
      "2: deny_options names 'colour'; known are prefetch, consistency, tiers, wait, wait_timeout, capacity, "
      "exclude");
  EXPECT_EQ(with("max_prefetch = on"), "2: max_prefetch 'on' is none of all, auto, off");
  for (const char* wait : {"604801", "1h", "-1", "9999999", ""})
    EXPECT_EQ(with("max_wait = " + std::string(wait)),
              "2: max_wait '" + std::string(wait) +
                  "' is not a number of seconds from 0 to 604800, which is a week");
  for (const char* section : {"policies", "policy.partition", "policy.qos.", "policy.user.a", "tier", ""})
    EXPECT_EQ(
        error_of(std::string("[") + section + "]\n"),
        std::string("1: unknown section [") + section +
            "]; known are [accounting], [agent], [peer], [tier.NAME], [policy], [policy.partition.NAME], "
            "[policy.account.NAME] and [policy.qos.NAME]");
}

TEST_F(ConfigFile, AllErrorsAreFoundAtOnce) {
  EXPECT_EQ(errors_of("[agent]\nthreads = 2\n"), "");
  EXPECT_EQ(
      errors_of("threads = 1\nhello\n[agent]\nthreads = x\nprefetch = off\nprefetch = on\n\nwalk_threads\n"
                "stage_wait = 601\nlog = /" +
                std::string(400, 'l') +
                "\nhttp\n[agnet]\nthreads = 1\nfoo\n[peer]\nencrypt = yes\n[peers]\nencrypt = yes\n[tier.a]\n"
                "path = a\n[tier.b]\n[tier.c]\npath = b\nquota = 0\n[tier.d]\ndriver = tmpsf\ncharge = job\n"
                "[policy]\ntiers = e\nend"),
      "1 .threads 'threads' stands before the first [section]\n"
      "2  neither [section], key = value nor a comment\n"
      "4 agent.threads threads: 'x' is not a number from 1 to 256\n"
      "6 agent.prefetch 'prefetch' is given twice in [agent]\n"
      "8  neither [section], key = value nor a comment\n"
      "9 agent.stage_wait stage_wait: '601' is not a number from 0 to 600\n"
      "10  the line is longer than 198 bytes\n"
      "11  neither [section], key = value nor a comment\n"
      "12  unknown section [agnet] (did you mean [agent]?); known are [accounting], [agent], [peer], "
      "[tier.NAME], [policy], [policy.partition.NAME], [policy.account.NAME] and [policy.qos.NAME]\n"
      "14  neither [section], key = value nor a comment\n"
      "16 peer.encrypt encrypt: 'yes' is none of on, off\n"
      "17  unknown section [peers] (did you mean [peer]?); known are [accounting], [agent], [peer], "
      "[tier.NAME], [policy], [policy.partition.NAME], [policy.account.NAME] and [policy.qos.NAME]\n"
      "20 tier.a.path path 'a' is not absolute\n"
      "23 tier.c.path path 'b' is not absolute\n"
      "24 tier.c.quota quota = 0 has no room for any file; write for example quota = 100G\n"
      "26 tier.d.driver driver 'tmpsf' is none of directory, tmpfs\n"
      "30  neither [section], key = value nor a comment\n"
      "19  [tier.a] has no quota; write for example quota = 100G\n"
      "21  [tier.b] has no path; write for example path = /scratch\n"
      "21  [tier.b] has no quota; write for example quota = 100G\n"
      "25  [tier.d] has no path; write for example path = /scratch\n"
      "25  [tier.d] has no quota; write for example quota = 100G\n")
      << "and nothing that follows from what is refused";
  EXPECT_EQ(errors_of("[tier.a]\npath = /a\nquota = 1G\ncharge = job\n[policy]\ntiers = b\n[policy.qos.x]\n"
                      "tiers = c\n"),
            "4  [tier.a]: charge = job is for driver = tmpfs only; write driver = tmpfs, or charge = node\n"
            "6  tiers names b, but there is no section [tier.b]; add it\n"
            "8  tiers names c, but there is no section [tier.c]; add it\n");
  std::string many = "[tier.a]\n";
  for (int i = 0; i < 10000; ++i) many += "no key\n";
  const std::string errors = errors_of(many);
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 100) << "a file that is something else";
}

TEST_F(ConfigFile, AWordThatIsNearAKnownOneIsTold) {
  const auto has = [&](const std::string& text, const std::string& meant) {
    const std::string error = error_of(text), told = " (did you mean " + meant + "?); known are ";
    EXPECT_NE(error.find(meant.empty() ? "; known are " : told), std::string::npos) << error;
    EXPECT_EQ(error.find("did you mean") == std::string::npos, meant.empty()) << error;
  };
  has("[agent]\nthread = 1\n", "threads");
  has("[agent]\nperfetch = off\n", "prefetch");
  has("[agent]\ncolour = red\n", "");
  has("[peer]\nport = 1-2\n", "ports");
  has("[accounting]\nacount = log\n", "account");
  has("[tier.a]\nqouta = 1G\n", "quota");
  has("[policy.qos.a]\nallow_user = a\n", "allow_users");
  has("[teir.a]\n", "[tier.a]");
  has("[tier]\n", "");
  has("[Policy]\n", "[policy]");
  has("[policy.patition.GPU.a]\n", "[policy.partition.GPU.a]");
  has("[polcy.qos.x]\n", "[policy.qos.x]");
  has("[policy.qos.]\n", "");
}

TEST_F(ConfigFile, ACommentMayStandBehindSomething) {
  const Result<Config> config = load(
      "[tier.a] # the first\npath = /a # of NVMe\nquota = 1G\t; all\n[tier.b]; other\npath = /b#b;c\n"
      "quota = 2G #\n[agent]\nlog = # none\n[policy]\ndeny_users = a, b #, c ; d\n");
  ASSERT_TRUE(config.ok()) << config.error().text;
  EXPECT_EQ(config->tiers[0].path, "/a");
  EXPECT_EQ(config->tiers[0].quota.bytes, uint64_t{1} << 30);
  EXPECT_EQ(config->tiers[1].path, "/b#b;c") << "no blank stands before it";
  EXPECT_EQ(config->tiers[1].quota.bytes, uint64_t{2} << 30);
  EXPECT_EQ(config->agent.log, "");
  EXPECT_EQ(config->policies[0].keys.deny_users.value(), (std::vector<std::string>{"a", "b"}));
  for (const char* line : {"threads # = 3", "[tier.a # b]", "[policy ;]"})
    EXPECT_EQ(error_of("[agent]\n" + std::string(line) + "\n"),
              "2: neither [section], key = value nor a comment");
}

TEST_F(ConfigFile, BlankLinesAreThoseOfAnySystem) {
  EXPECT_EQ(error_of("\xef\xbb\xbf\r\n[agent]\r\n \f\r\n\t\v[peer]\r\n\r\nencrypt = on\r\n"), "");
  EXPECT_EQ(error_of("\xef\xbb\xbf [agent]\nthreads = x\n"), "2: threads: 'x' is not a number from 1 to 256");
}

TEST_F(ConfigFile, WordsGoBeforeWhatItSays) {
  const std::string file = scratch_.file(
      "monarch.conf",
      "[tier.a]\npath = /a\nquota = 1G\n[agent]\nthreads = 2\nprefetch = off\n[policy]\ndeny_users = a, b\n");
  const Result<Config> config = load_config(with_words(
      file, {"agent.threads=3", "tier.a.quota=50%", "policy.deny_users=c", "policy.deny_users=d",
             "policy.qos.X.y.enabled=off", "policy.tiers=a", "peer.enabled=on", "accounting.account=log"}));
  ASSERT_TRUE(config.ok()) << config.error().text;
  EXPECT_EQ(config->agent.threads, 3);
  EXPECT_EQ(config->agent.prefetch, AgentConfig::Prefetch::kOff) << "as the file says";
  EXPECT_EQ(config->tiers[0].quota.percent, 50);
  ASSERT_EQ(config->policies.size(), 2u);
  EXPECT_EQ(config->policies[0].keys.deny_users.value(), (std::vector<std::string>{"c", "d"}));
  EXPECT_EQ(config->policies[1].title(), "policy.qos.x.y");
  EXPECT_TRUE(config->peer.enabled);
  EXPECT_EQ(config->accounting, Accounting::kLog);
  const auto wrong = [&](const std::string& word) {
    const Result<Config> changed = load_config(with_words(file, {word}));
    return changed.ok() ? "" : changed.error().text;
  };
  EXPECT_EQ(wrong("agent.threads=many"),
            "plugstack.conf: agent.threads=many: 'many' is not a number from 1 to 256");
  EXPECT_EQ(wrong("agent.thread=1")
                .rfind("plugstack.conf: agent.thread=1: unknown key 'thread' in [agent] (did you mean "
                       "threads?); known",
                       0),
            0u);
  EXPECT_EQ(
      wrong("agnet.threads=1")
          .rfind("plugstack.conf: agnet.threads=1: unknown section [agnet] (did you mean [agent]?); known",
                 0),
      0u);
  EXPECT_EQ(wrong("tier.b.quota=1G"),
            "plugstack.conf: tier.b.quota=1G: " + file + " has no section [tier.b]; add it");
  EXPECT_EQ(
      wrong("tier.a.quota=0"),
      "plugstack.conf: tier.a.quota=0: quota = 0 has no room for any file; write for example quota = 100G");
  EXPECT_EQ(wrong("policy.tiers=b"),
            "plugstack.conf: policy: tiers names b, but there is no section [tier.b]; add it");
  for (const char* word : {"agent", "agent.threads", ".threads=1", "agent.=1", "=1"})
    EXPECT_EQ(wrong(word), std::string("plugstack.conf: ") + word +
                               ": is not SECTION.KEY=VALUE, as agent.prefetch=off is");
  EXPECT_EQ(load_config(with_words(file, {"agent.threads=3", "agent.threads=4"})).error().text,
            "plugstack.conf: agent.threads=4: 'threads' is given twice in [agent]");
  ConfigTrace trace;
  EXPECT_FALSE(
      load_config(with_words(file, {"agent.threads=x", "agent.prefetch=on", "peer.encrypt=x", "peers.x=y"}),
                  &trace)
          .ok());
  std::vector<std::string> keys;
  for (const ConfigError& e : trace.errors) keys.push_back(e.key + " " + std::to_string(e.line));
  EXPECT_EQ(keys, (std::vector<std::string>{"agent.threads 0", "peer.encrypt 0", " 0"})) << "all of them";
}

TEST(AgentConfig, RatesAreDividedByTheJobsNodes) {
  AgentConfig agent;
  agent.pfs_bandwidth = 1000;
  agent.prefetch_burst = 1000;
  agent.pfs_opens = 3;
  agent.tier_bandwidth = 500;
  agent.divide_rates(4);
  EXPECT_EQ(agent.pfs_bandwidth, 250u);
  EXPECT_EQ(agent.prefetch_burst, 250u);
  EXPECT_EQ(agent.pfs_opens, 1u) << "0 would be no limit";
  EXPECT_EQ(agent.pfs_stats, 0u) << "there is none";
  EXPECT_EQ(agent.tier_bandwidth, 500u) << "is a node's own";
}

TEST_F(ConfigFile, HasDefaults) {
  const Result<Config> config = load("[tier.a]\npath = /a\nquota = 1G\n");
  ASSERT_TRUE(config.ok()) << config.error().text;
  EXPECT_EQ(config->agent.prefetch, AgentConfig::Prefetch::kAuto);
  EXPECT_EQ(config->agent.prefetch_burst, AgentConfig::kBurstAuto);
  EXPECT_GE(config->agent.threads, 1);
  EXPECT_EQ(config->agent.stage_wait_max, 64u << 20);
  EXPECT_EQ(config->agent.stage_wait, 1);
  EXPECT_EQ(config->agent.stage_again, 5);
  EXPECT_EQ(config->tiers[0].medium, Medium::kSsd);
  EXPECT_EQ(config->tiers[0].min_free.of(100), 5u);
  EXPECT_TRUE(load("").ok());
}

TEST_F(ConfigFile, TheSampleIsGood) {
  const char* tree = std::getenv("MONARCH_SRCDIR");
  if (!tree) GTEST_SKIP() << "MONARCH_SRCDIR is not set";
  std::string text = contents(std::string(tree) + "/etc/monarch.conf.sample");
  const Result<Config> config = load(text);
  ASSERT_TRUE(config.ok()) << config.error().text;
  EXPECT_FALSE(config->tiers.empty());
}

TEST_F(ConfigFile, OneTierInMemoryIsChargedToJobs) {
  const std::string a = "[tier.a]\npath = /a\nquota = 1G\n";
  const std::string charged = a + "charge = job\ndriver = tmpfs\n";
  EXPECT_TRUE(load(charged).ok()) << "in any order";
  EXPECT_TRUE(load(a + "charge = node\n").ok());
  EXPECT_EQ(error_of(a + "charge = user\n"), "4: charge 'user' is none of node, job");
  const std::string only =
      "4: [tier.a]: charge = job is for driver = tmpfs only; write driver = tmpfs, or charge = node";
  EXPECT_EQ(error_of(a + "charge = job\n"), only);
  EXPECT_EQ(error_of(a + "charge = job\nmedium = ram\n"), only) << "whatever is at its path";
  EXPECT_EQ(error_of(a + "charge = job\ndriver = directory\n"), only);
  EXPECT_EQ(
      error_of(charged + "[tier.b]\npath = /b\nquota = 1G\ndriver = tmpfs\ncharge = job\n"),
      "10: [tier.b]: charge = job, as [tier.a] has: a job has one such tier; write charge = node in one of "
      "them");
  EXPECT_TRUE(load(a).ok());
  EXPECT_EQ(load_config(with_words(file_, {"tier.a.charge=job"})).error().text,
            "plugstack.conf: " + only.substr(3));
}

TEST_F(ConfigFile, ErrorsNameFileAndLine) {
  const std::string tier = "[tier.a]\npath = /a\nquota = 1G\n";  // lines 1 to 3
  EXPECT_EQ(error_of(tier + "speed = 3\n"),
            "4: unknown key 'speed' in [tier.a]; known are path, quota, share, job_capacity, medium, driver, "
            "charge, min_free");
  EXPECT_EQ(error_of("\n[agent]\n# a comment\ncolour = red\n").rfind("4: unknown key 'colour' in [agent]", 0),
            0u);
  EXPECT_EQ(error_of("[agnet]\nthreads = 3\n"),
            "1: unknown section [agnet] (did you mean [agent]?); known are [accounting], [agent], [peer], "
            "[tier.NAME], [policy], "
            "[policy.partition.NAME], [policy.account.NAME] and [policy.qos.NAME]");
  EXPECT_EQ(error_of("threads = 3\n"), "1: 'threads' stands before the first [section]");
  EXPECT_EQ(error_of(tier + "no equals sign\n"), "4: neither [section], key = value nor a comment");
  EXPECT_EQ(error_of("[agent\nthreads = 3\n").rfind("1: ", 0), 0u);
  EXPECT_EQ(error_of("[agent]\nthreads = 0\n"), "2: threads: '0' is not a number from 1 to 256");
  EXPECT_EQ(error_of("[agent]\nthreads = 257\n").rfind("2: ", 0), 0u);
  EXPECT_EQ(error_of("[agent]\nthreads = 3x\n").rfind("2: ", 0), 0u);
  EXPECT_EQ(error_of("[agent]\nthreads =\n").rfind("2: ", 0), 0u);
  EXPECT_EQ(error_of("[agent]\nwalk_threads = 65\n").rfind("2: ", 0), 0u);
  EXPECT_EQ(error_of("[agent]\nwatch_directories = -1\n").rfind("2: ", 0), 0u);
  EXPECT_EQ(error_of("[agent]\nwatch_directories = 0\n"), "");
  EXPECT_EQ(error_of("[agent]\nprefetch = maybe\n"), "2: prefetch: 'maybe' is none of auto, on, off");
  EXPECT_EQ(error_of("[agent]\nprefetch_burst = much\n"),
            "2: prefetch_burst: 'much' is neither auto, 0 nor a size like 512M or 10G");
  EXPECT_EQ(error_of("[agent]\nprefetch_burst = 0\n"), "");
  EXPECT_EQ(error_of("[agent]\nprefetch_patience = long\n"),
            "2: prefetch_patience: 'long' is not a number from 0 to 86400");
  for (const char* key_and_value : {"consistency = close", "metadata = ask", "pfs_bandwidth = fast",
                                    "pfs_opens = -1", "background_io = high"}) {
    const std::string line = key_and_value, key = line.substr(0, line.find(' '));
    EXPECT_EQ(error_of("[agent]\n" + line + "\n").rfind("2: " + key + ": '", 0), 0u) << line;
  }
  for (const char* key : {"pfs_opens", "pfs_stats", "max_files"})
    for (const char* section : {"agent", "policy"})
      EXPECT_EQ(error_of("[" + std::string(section) + "]\n" + key + " = -5\n"),
                std::string("2: ") + key + ": '-5' is not a number; write for example 5000, or none")
          << section;
  for (const std::string below : {"0.5", "0K", "-0"})
    for (const char* line :
         {"[agent]\npfs_opens = ", "[agent]\npfs_bandwidth = ", "[accounting]\nreport_size = "})
      EXPECT_NE(error_of(line + below + "\n").find("'" + below + "' is "), std::string::npos)
          << line << below;
  EXPECT_EQ(error_of("[agent]\npfs_opens = 0.5\n"),
            "2: pfs_opens: '0.5' is less than 1; write none for no limit");
  EXPECT_NE(error_of("[agent]\nstage_wait = 601\n"), "");
  EXPECT_NE(error_of("[agent]\nstage_wait = 1s\n"), "");
  EXPECT_NE(error_of("[agent]\nstage_again = 86401\n"), "");
  EXPECT_EQ(error_of("[agent]\nstage_wait_max = lots\n").rfind("2: stage_wait_max: 'lots' is not a size", 0),
            0u);
  EXPECT_EQ(error_of("[tier.a]\npath = scratch\n"), "2: path 'scratch' is not absolute");
  EXPECT_EQ(error_of("[tier.a]\npath =\n").rfind("2: ", 0), 0u);
  EXPECT_EQ(error_of("[tier.a]\npath = /a\nquota = 101%\n"),
            "3: quota: '101%' is not a share from 0% to 100%; write for example 50%");
  EXPECT_EQ(error_of("[tier.a]\nshare = half\n"), "2: share 'half' is none of cpus, memory, equal, whole");
  EXPECT_EQ(error_of("[tier.a]\nmedium = tape\n"), "2: medium 'tape' is none of nvme, ssd, hdd, ram");
  EXPECT_EQ(error_of("[tier.a b]\npath = /a\n").rfind("1: tier name 'a b'", 0), 0u);
  EXPECT_EQ(error_of("[tier.]\npath = /a\n").rfind("1: tier name ''", 0), 0u);
  EXPECT_EQ(error_of("[tier." + std::string(32, 'n') + "]\npath = /a\n").rfind("1: tier name", 0), 0u);
}

TEST_F(ConfigFile, ASectionWithoutKeysIsNoticed) {
  const std::string tier = "[tier.a]\npath = /a\nquota = 1G\n";
  const std::string unknown =
      "unknown section [agnet] (did you mean [agent]?); known are [accounting], [agent], [peer], "
      "[tier.NAME], [policy], "
      "[policy.partition.NAME], [policy.account.NAME] and [policy.qos.NAME]";
  EXPECT_EQ(error_of(tier + "[agnet]\n"), "4: " + unknown);
  EXPECT_EQ(error_of("\xef\xbb\xbf[agnet]\n" + tier), "1: " + unknown);
  EXPECT_EQ(error_of("  [agnet] # a comment\n[agent]\n" + tier), "1: " + unknown);
  EXPECT_EQ(error_of(tier + "[tier.b]\n"), "4: [tier.b] has no path; write for example path = /scratch");
  EXPECT_EQ(error_of("[tier.b]\n" + tier), "1: [tier.b] has no path; write for example path = /scratch");
  EXPECT_EQ(error_of("[agent]\n" + tier + "[agent]\n# [agnet]\n"), "");
}

TEST_F(ConfigFile, NothingIsGivenTwice) {
  const std::string tier = "[tier.a]\npath = /a\nquota = 1G\n";
  EXPECT_EQ(error_of("[agent]\nthreads = 3\nthreads = 3\n"), "3: 'threads' is given twice in [agent]");
  EXPECT_EQ(error_of("[agent]\nthreads = 3\n" + tier + "[agent]\nthreads = 4\n"),
            "7: 'threads' is given twice in [agent]");
  EXPECT_EQ(error_of(tier + "[tier.b]\npath = /b\nquota = 1G\n" + tier),
            "8: 'path' is given twice in [tier.a]");
}

TEST_F(ConfigFile, ATierNeedsPathAndQuota) {
  EXPECT_EQ(error_of("[agent]\nthreads = 1\n[tier.a]\nquota = 1G\n"),
            "3: [tier.a] has no path; write for example path = /scratch");
  EXPECT_EQ(error_of("[tier.a]\n\npath = /a\n").rfind("1: [tier.a] has no quota", 0), 0u);
}

TEST_F(ConfigFile, HoldsEightTiersAndNoMore) {
  std::string text;
  for (int i = 0; i < 8; ++i)
    text += "[tier.t" + std::to_string(i) + "]\npath = /" + std::to_string(i) + "\nquota = 1G\n";
  EXPECT_EQ(error_of(text), "");
  EXPECT_EQ(error_of(text + "[tier.t8]\npath = /a\n"), "25: more than 8 tiers; remove one");
}

TEST_F(ConfigFile, KeysMayBeIndented) {
  const Result<Config> config =
      load("[tier.a]\n  path = /a\n\tquota = 1G\n  # a comment\n[agent]\n threads = 1\n");
  ASSERT_TRUE(config.ok()) << config.error().text;
  EXPECT_EQ(config->tiers[0].path, "/a");
  EXPECT_EQ(config->agent.threads, 1);
}

TEST_F(ConfigFile, NoLineIsCutShort) {
  // What lies behind the reader's limit could pass for a line of its own, even for a comment.
  for (const std::string rest : {"#0", ";0", "=0", "threads=2", " ", "\nthreads=2"}) {
    for (size_t length = 170; length < 220; ++length) {
      const std::string path = "/" + std::string(length, 'l');
      const bool ends = rest[0] == ' ' || rest[0] == '\n';
      const Result<Config> config = load("[agent]\nlog=" + path + rest + "\n");
      const std::string got = config.ok() ? config->agent.log : config.error().text;
      EXPECT_TRUE(got == (ends ? path : path + rest) || got.rfind(file_ + ":2: the line is longer", 0) == 0)
          << length << " '" << rest << "': " << got;
      EXPECT_TRUE(config.ok() || length > 180) << got;
    }
  }
}

TEST_F(ConfigFile, IsRefusedIfOthersCanWriteIt) {
  file_ = scratch_.file("monarch.conf", "");
  for (const auto mode : {fs::perms::group_write, fs::perms::others_write}) {
    fs::permissions(file_, fs::perms::owner_read | fs::perms::owner_write | mode);
    const Result<Config> config = load_config(file_);
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().code, EPERM);
    EXPECT_NE(config.error().text.find("chmod go-w " + file_), std::string::npos);
  }
}

TEST_F(ConfigFile, IsRootsOrTheReaders) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  file_ = scratch_.file("monarch.conf", "");
  ASSERT_EQ(::chown(file_.c_str(), 65534, 65534), 0);
  const Result<Config> config = load_config(file_);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, EPERM);
  EXPECT_NE(config.error().text.find("user 65534's; run chown root " + file_), std::string::npos);
}

TEST_F(ConfigFile, WhatCannotWorkIsTold) {
  for (const char* quota : {"0", "0%", "100", "4095"})
    EXPECT_EQ(
        error_of("[tier.a]\npath = /a\nquota = " + std::string(quota) + "\n"),
        "3: quota = " + std::string(quota) + " has no room for any file; write for example quota = 100G");
  EXPECT_EQ(error_of("[tier.a]\npath = /a\nquota = 4096\n[tier.b]\npath = /b\nquota = 0.1%\n"), "");
  EXPECT_EQ(error_of("[tier.a]\npath = /a\nquota = 1G\n[tier.b]\nquota = 1G\npath = /a/\n"),
            "4: [tier.b] has the path of [tier.a]; each has a directory of its own");
  for (const char* size : {"1", "1M", "63M"})
    EXPECT_EQ(error_of("[agent]\nmemory_max = " + std::string(size) + "\n"),
              "2: memory_max is at least 64M, none or auto");
  for (const char* size : {"64M", "none", "0", "auto"})
    EXPECT_EQ(error_of("[agent]\nmemory_max = " + std::string(size) + "\n"), "") << size;
  EXPECT_EQ(error_of("[agent]\n\nlog_level = loud\n"),
            "3: log_level 'loud' is none of trace, debug, info, warning, error, off");
  EXPECT_EQ(error_of("[tier.a]\npath = /a\xff\nquota = 1G\n"), "2: path '/a\\xff' is not UTF-8");
}

TEST_F(ConfigFile, AnAgentsQuotaMayBeNothingForNow) {
  file_ = scratch_.file("agent.conf", "[tier.a]\npath = /a\nquota = 0\n");
  EXPECT_TRUE(load_agent_conf(file_).ok());
  EXPECT_FALSE(load_config(file_).ok());
}

TEST(Tiers, OfOneDirectoryAreKnownByWhateverPath) {
  const Scratch scratch;
  fs::create_directory(scratch / "a");
  fs::create_directory(scratch / "b");
  fs::create_directory_symlink(scratch / "a", scratch / "link");
  TierConfig a, b, link, missing;
  a.path = scratch / "a";
  b.path = scratch / "b";
  link.path = scratch / "link";
  missing.path = scratch / "missing";
  const std::vector<TierConfig> before = {missing, b, a};
  EXPECT_EQ(same_directory(before, link), &before[2]);
  EXPECT_EQ(same_directory({a, missing}, b), nullptr);
  EXPECT_EQ(same_directory({missing}, missing), nullptr);
}

TEST_F(ConfigFile, ThatCannotBeReadIsAnError) {
  EXPECT_EQ(load_config(scratch_ / "missing").error().code, ENOENT);
  const Result<Config> directory = load_config(scratch_.path());
  ASSERT_FALSE(directory.ok());
  EXPECT_EQ(directory.error().code, EISDIR);
}

TEST(TierOption, HoldsNamePathAndSize) {
  const Result<TierConfig> tier = parse_tier_option("ssd:/scratch/x/:100G");
  ASSERT_TRUE(tier.ok()) << tier.error().text;
  EXPECT_EQ(tier->name, "ssd");
  EXPECT_EQ(tier->path, "/scratch/x");
  EXPECT_EQ(tier->quota.of(1), uint64_t{100} << 30);
  EXPECT_EQ(tier->medium, Medium::kSsd);
  EXPECT_EQ(parse_tier_option("a:/s:50%")->quota.of(1000), 500u);
}

TEST(TierOption, ThePathMayHoldColons) {
  const Result<TierConfig> tier = parse_tier_option("ssd:/scratch/a:b::c:1G");
  ASSERT_TRUE(tier.ok()) << tier.error().text;
  EXPECT_EQ(tier->path, "/scratch/a:b::c");
  EXPECT_EQ(tier->quota.of(1), uint64_t{1} << 30);
}

TEST(TierOption, ARelativePathIsMadeAbsolute) {
  EXPECT_EQ(parse_tier_option("a:x:1G")->path, *absolute_path("x"));
}

TEST(TierOption, IsRamOnTmpfs) {
  Scratch scratch;
  Medium medium = Medium::kSsd;
  if (!with_tmpfs(scratch.path(), 1 << 20,
                  [&] { medium = parse_tier_option("a:" + scratch.path() + ":1G")->medium; }))
    GTEST_SKIP() << "mounting needs root";
  EXPECT_EQ(medium, Medium::kRam);
}

TEST(TierOption, SaysWhatIsWrong) {
  for (const char* bad : {"", "ssd", "ssd:/scratch", "ssd::1G", ":/scratch:1G", "a b:/scratch:1G",
                          "ssd:/scratch:", "ssd:/scratch:much", "ssd:/scratch:200%", "ssd:/scratch:-1"}) {
    const Result<TierConfig> tier = parse_tier_option(bad);
    EXPECT_FALSE(tier.ok()) << bad;
    if (tier.ok()) continue;
    EXPECT_NE(tier.error().text.find("tier '" + std::string(bad) + "'"), std::string::npos)
        << tier.error().text;
    EXPECT_NE(tier.error().text.find("for example"), std::string::npos) << tier.error().text;
  }
}

TEST(TierOption, AddsAfterTheConfigurationsTiers) {
  Config config;
  ASSERT_TRUE(add_tier(&config, *parse_tier_option("a:/a:1G")).ok());
  ASSERT_TRUE(add_tier(&config, *parse_tier_option("b:/b:1G")).ok());
  EXPECT_EQ(add_tier(&config, *parse_tier_option("a:/c:1G")).error().text,
            "tier 'a' is given twice; give each a name of its own");
  ASSERT_EQ(config.tiers.size(), 2u);
  EXPECT_EQ(config.tiers[1].name, "b");
}

TEST(Quota, IsASizeOrAShare) {
  EXPECT_EQ(parse_quota("0%")->of(1000), 0u);
  EXPECT_EQ(parse_quota("100%")->of(1000), 1000u);
  EXPECT_EQ(parse_quota("12.5%")->of(1000), 125u);
  EXPECT_EQ(parse_quota("0")->of(1000), 0u);
  for (const char* bad : {"", "%", "-1%", "100.1%", "nan%", "10 %", "x%", "10%%"})
    EXPECT_FALSE(parse_quota(bad).ok()) << bad;
}

class CheckPaths : public ::testing::Test {
 protected:
  Result<std::vector<std::string>> check(const std::vector<std::string>& datasets,
                                         const std::vector<std::string>& tiers) {
    Config config;
    for (size_t i = 0; i < tiers.size(); ++i) {
      TierConfig tier;
      tier.name = "t" + std::to_string(i);
      tier.path = tiers[i];
      EXPECT_TRUE(add_tier(&config, tier).ok());
    }
    return check_paths(config, datasets);
  }
  // Whether the check fails with `code` and a text that holds all of `parts`.
  ::testing::AssertionResult fails(const Result<std::vector<std::string>>& result, int code,
                                   const std::vector<std::string>& parts) {
    if (result.ok()) return ::testing::AssertionFailure() << "it passed";
    if (result.error().code != code) return ::testing::AssertionFailure() << strerror(result.error().code);
    for (const std::string& part : parts)
      if (result.error().text.find(part) == std::string::npos)
        return ::testing::AssertionFailure() << result.error().text << " lacks " << part;
    return ::testing::AssertionSuccess();
  }

  Scratch scratch_;
  const std::string data_ = scratch_.dir("data"), tier_ = scratch_.dir("tier");
};

TEST_F(CheckPaths, ReturnsCleanAbsoluteDatasets) {
  fs::create_directory_symlink("data", scratch_ / "link");
  const auto roots = check({data_ + "//./", scratch_ / "link"}, {tier_});
  ASSERT_TRUE(roots.ok()) << roots.error().text;
  EXPECT_EQ(*roots, (std::vector<std::string>{data_, scratch_ / "link"}))
      << "a link stays what the user calls it";
}

TEST_F(CheckPaths, ADatasetIsADirectory) {
  EXPECT_TRUE(fails(check({scratch_ / "missing"}, {tier_}), ENOENT, {"dataset " + (scratch_ / "missing")}));
  scratch_.file("file", "x");
  EXPECT_TRUE(fails(check({scratch_ / "file"}, {tier_}), ENOTDIR,
                    {"dataset " + (scratch_ / "file"), "not a directory"}));
  EXPECT_TRUE(fails(check({""}, {tier_}), EINVAL, {"dataset"}));
  EXPECT_TRUE(fails(check({"/"}, {tier_}), EINVAL, {"root directory"}));
  fs::create_directory_symlink("/", scratch_ / "slash");
  EXPECT_TRUE(fails(check({scratch_ / "slash"}, {tier_}), EINVAL, {"root directory"}));
}

TEST_F(CheckPaths, ATierIsADirectory) {
  EXPECT_TRUE(fails(check({data_}, {tier_, scratch_ / "missing"}), ENOENT,
                    {"tier t1 (" + (scratch_ / "missing") + ")"}));
  EXPECT_TRUE(
      fails(check({data_}, {scratch_.file("file", "x")}), ENOTDIR, {"tier t0", "not a directory; name one"}));
}

TEST_F(CheckPaths, TheUserCanListDatasetsAndWriteTiers) {
  fs::permissions(scratch_.path(), static_cast<fs::perms>(0755));
  fs::permissions(data_, static_cast<fs::perms>(0755));
  fs::permissions(tier_, static_cast<fs::perms>(0777));
  fs::permissions(scratch_.dir("closed"), static_cast<fs::perms>(0711));
  const auto as_user = [&](const std::string& data, const std::string& tier) {
    return as_nobody([&] {
      ::chmod((scratch_ / "closed").c_str(), 0311);  // if the tests run as that user
      const auto result = check({data}, {tier});
      if (!result.ok()) return result.error().code;
      Config config;
      EXPECT_TRUE(add_tier(&config, *parse_tier_option("a:" + tier + ":1G")).ok());
      const Status writable = check_writable(config);
      return writable.ok() ? 0 : writable.error().code;
    });
  };
  EXPECT_EQ(as_user(data_, tier_), 0);
  EXPECT_EQ(as_user(scratch_ / "closed", tier_), EACCES);
  if (::geteuid() != 0) return;
  EXPECT_EQ(as_user(data_, scratch_.dir("others")), EACCES) << "a tier that the user cannot write";
}

TEST_F(CheckPaths, NeitherLiesInTheOther) {
  EXPECT_TRUE(
      fails(check({data_}, {scratch_.dir("data/in")}), EINVAL, {"tier t0", "inside the dataset " + data_}));
  EXPECT_TRUE(fails(check({scratch_.dir("tier/in")}, {tier_}), EINVAL,
                    {"dataset " + tier_ + "/in", "inside the tier t0"}));
  EXPECT_TRUE(fails(check({data_}, {data_}), EINVAL, {}));
  EXPECT_TRUE(check({data_}, {scratch_.dir("data-tier")}).ok())
      << "only the beginning of the name is the same";
}

TEST_F(CheckPaths, NeitherLiesInTheOtherThroughLinks) {
  scratch_.dir("data/in");
  scratch_.dir("tier/in");
  fs::create_directory_symlink("data/in", scratch_ / "tier-link");
  fs::create_directory_symlink("tier/in", scratch_ / "data-link");
  EXPECT_TRUE(fails(check({data_}, {scratch_ / "tier-link"}), EINVAL, {"inside the dataset"}));
  EXPECT_TRUE(fails(check({scratch_ / "data-link"}, {tier_}), EINVAL, {"inside the tier"}));
  EXPECT_TRUE(fails(check({data_}, {tier_ + "/../data/in"}), EINVAL, {"inside the dataset"}));
}

}  // namespace
}  // namespace monarch
