// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

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
  // What such a file comes to: by SECTION.KEY what stands behind "key = ", lines of a list with '|' between.
  std::map<std::string, std::string> shown(const std::string& text,
                                           const std::vector<std::string>& words = {}) {
    const Result<Config> config = load_config(with_words(scratch_.file("monarch.conf", text), words));
    EXPECT_TRUE(config.ok()) << config.error().text;
    std::map<std::string, std::string> all;
    if (!config.ok()) return all;
    for (const ConfigValue& v : values_of(*config))
      if (v.values) all[v.section + "." + v.key] = fmt::format("{}", fmt::join(*v.values, "|"));
    return all;
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
  struct Key {
    std::string section, key, value, shown;  // nothing: as it is written
  };
  const Key keys[] = {
      {"tier.ram", "path", "/dev/shm//x/", "/dev/shm/x"},
      {"tier.ram", "quota", "1.5G", "1536M"},
      {"tier.ram", "medium", "ram", ""},
      {"tier.ram", "min_free", "10%", ""},
      {"tier.nvme", "path", "/scratch", ""},
      {"tier.nvme", "quota", "80%", ""},
      {"tier.nvme", "medium", "nvme", ""},
      {"tier.nvme", "driver", "tmpfs", ""},
      {"tier.nvme", "charge", "job", ""},
      {"tier.nvme", "share", "equal", ""},
      {"tier.nvme", "min_free", "2G", ""},
      {"tier.nvme", "job_capacity", "20%", ""},
      {"agent", "threads", "3", ""},
      {"agent", "walk_threads", "2", ""},
      {"agent", "watch_directories", "77", ""},
      {"agent", "stage_wait_max", "8M ; how much an open waits for", "8M"},
      {"agent", "stage_wait", "0", ""},
      {"agent", "stage_again", "7", ""},
      {"agent", "prefetch", "off", ""},
      {"agent", "prefetch_burst", "3G", ""},
      {"agent", "prefetch_patience", "0", ""},
      {"agent", "consistency", "open", ""},
      {"agent", "metadata", "pass", ""},
      {"agent", "pfs_bandwidth", "2G", ""},
      {"agent", "pfs_opens", "5000", ""},
      {"agent", "pfs_stats", "1", ""},
      {"agent", "tier_bandwidth", "none", ""},
      {"agent", "background_io", "idle", ""},
      {"agent", "memory_max", "512M", ""},
      {"agent", "log", "/var/log/monarchd.log", ""},
      {"agent", "log_level", "debug", ""},
      {"peer", "enabled", "off", ""},
      {"peer", "network", "10.1.0.0/16", ""},
      {"peer", "ports", "1024-65535", ""},
      {"peer", "bandwidth", "1.5G", "1536M"},
      {"peer", "encrypt", "on", ""},
      {"accounting", "account", "log", ""},
      {"policy", "enabled", "on", ""},
      {"policy", "allow_users", "alice, 17\nallow_users=bob", "alice|17|bob"},
      {"policy", "deny_users", "", ""},
      {"policy", "allow_groups", "a,b", "a|b"},
      {"policy", "deny_groups", "c", ""},
      {"policy", "allow_datasets", "/x//:/y\nallow_datasets = /z, too", "/x|/y|/z, too"},
      {"policy", "deny_datasets", "/x/y/.", "/x/y"},
      {"policy", "default_dataset", "/d:/e\ndefault_dataset = /f", "/d|/e|/f"},
      {"policy", "default_options", "prefetch=off wait=none", ""},
      {"policy", "deny_options", "wait,tiers", "wait|tiers"},
      {"policy", "max_prefetch", "auto", ""},
      {"policy", "max_wait", "0", ""},
      {"policy", "tiers", "nvme,ram", "nvme, ram"},
      {"policy", "job_capacity", "2G", ""},
      {"policy", "max_files", "10M", ""},
      {"policy", "pfs_bandwidth", "1G", ""},
      {"policy", "pfs_opens", "100", ""},
      {"policy", "pfs_stats", "none", ""},
      {"policy.partition.GPU.a", "enabled", "off", ""},
      {"policy.qos.high", "max_files", "none", ""},
  };
  std::string text = "# a comment\n";
  for (const Key& k : keys) text += "[" + k.section + "]\n  " + k.key + " = " + k.value + "\n";
  std::map<std::string, std::string> all = shown(text);
  for (const Key& k : keys) {
    const std::string name = k.section + "." + k.key;
    EXPECT_TRUE(all.contains(name)) << name;
    EXPECT_EQ(all[name], k.shown.empty() ? k.value : k.shown) << name;
  }
  EXPECT_FALSE(all.contains("policy.qos.high.deny_users")) << "what is not set is not";
  EXPECT_TRUE(shown("[policy.account.Phys]\nmax_files = 1\n").contains("policy.account.phys.max_files"))
      << "as Slurm compares them";
  EXPECT_EQ(shown("[peer]\nnetwork = fd00::/128\nports=7000-7000\n")["peer.network"], "fd00::/128");
}

TEST_F(ConfigFile, WhatIsWrongOfPeersIsToldWithTheRemedy) {
  const auto with = [&](const std::string& line) { return error_of("[peer]\n" + line + "\n"); };
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

TEST_F(ConfigFile, WhatIsWrongOfThePolicyIsToldWithTheRemedy) {
  const std::string commas =
      "deny_datasets: paths are separated by ':', not by ','; write for example /lustre/a:/lustre/b";
  const std::pair<std::string, std::string> cases[] = {
      {"on = off", "unknown key 'on' in [policy.qos.a]; known are enabled, allow_users, "},
      {"enabled = on\n[policy.qos.A]\nenabled = off", "'enabled' is given twice in [policy.qos.A]"},
      {"deny_datasets = /a:b", "deny_datasets: path 'b' is not absolute"},
      {"allow_datasets = /a/../b", "allow_datasets: path '/a/../b': name the directory without '..'"},
      {"deny_datasets = /a, /b", commas},
      {"deny_datasets = /a,/b", commas},
      {"deny_datasets = /a:/b , \t/c", commas},
      {"deny_datasets = /a,b:/c,", ""},
      {"tiers = ", "tiers names none; write for example tiers = nvme, ssd, or enabled = off"},
      {"tiers = a, b, a", "tiers names a twice"},
      {"tiers = a", "tiers names a, but there is no section [tier.a]; add it"},
      {"job_capacity = 4095", "job_capacity = 4095 has no room for any file; write for example job_capacity"},
      {"job_capacity = 0%", "job_capacity = 0% has no room for any file"},
      {"max_files = many", "max_files: 'many' is not a number"},
      {"default_dataset = data", "default_dataset: path 'data' is not absolute"},
      {"default_options = prefetch=on",
       "default_options = prefetch=on: option 'prefetch=on' is not known to this version of Monarch; write "
       "for "
       "example default_options = prefetch=off consistency=open, of prefetch, consistency, "},
      {"deny_options = tiers, colour",
       "deny_options names 'colour'; known are prefetch, consistency, tiers, "},
      {"max_prefetch = on", "max_prefetch 'on' is none of all, auto, off"},
      {"max_wait = 604801", "max_wait '604801' is not a number of seconds from 0 to 604800, which is a week"},
      {"max_wait = 1h", "max_wait '1h' is not a number"},
      {"max_wait = -1", "max_wait '-1' is not a number"},
      {"max_wait = ", "max_wait '' is not a number"},
  };
  for (const auto& [line, error] : cases) {
    const std::string told = error_of("[policy.qos.a]\n" + line + "\n");
    EXPECT_EQ(told.substr(std::min(told.size(), told.find(' ') + 1)).substr(0, error.size()), error) << line;
    EXPECT_EQ(told.empty(), error.empty()) << told;
  }
  for (const char* key : {"allow_users", "deny_users", "allow_groups", "deny_groups", "tiers"})
    EXPECT_EQ(
        error_of(std::string("[policy]\n\n") + key + " = a:b\n"),
        std::string("3: ") + key + ": names are separated by ',', not by ':'; write for example one, two");
  for (const char* section : {"policies", "policy.partition", "policy.qos.", "policy.user.a", "tier", ""})
    EXPECT_EQ(
        error_of(std::string("[") + section + "]\n"),
        std::string("1: unknown section [") + section +
            "]; known are [accounting], [agent], [peer], [tier.NAME], [policy], [policy.partition.NAME], "
            "[policy.account.NAME] and [policy.qos.NAME]");
}

TEST_F(ConfigFile, AllErrorsAreFoundAtOnce) {
  EXPECT_EQ(errors_of("[agent]\nthreads = 2\n"), "");
  EXPECT_EQ(errors_of("threads = 1\n[agent]\nthreads = x\nprefetch = off\nprefetch = on\nwalk_threads\n"
                      "[agnet]\nthreads = 1\n[tier.a]\npath = a\n[tier.b]\n[tier.c]\npath = /c\nquota = 0\n"
                      "[tier.d]\ndriver = tmpsf\ncharge = job\n[policy]\ntiers = e\n"),
            "1 .threads 'threads' stands before the first [section]\n"
            "3 agent.threads threads: 'x' is not a number from 1 to 256\n"
            "5 agent.prefetch 'prefetch' is given twice in [agent]\n"
            "6  neither [section], key = value nor a comment\n"
            "7  unknown section [agnet] (did you mean [agent]?); known are [accounting], [agent], [peer], "
            "[tier.NAME], [policy], [policy.partition.NAME], [policy.account.NAME] and [policy.qos.NAME]\n"
            "10 tier.a.path path 'a' is not absolute\n"
            "14 tier.c.quota quota = 0 has no room for any file; write for example quota = 100G\n"
            "16 tier.d.driver driver 'tmpsf' is none of directory, tmpfs\n"
            "9  [tier.a] has no quota; write for example quota = 100G\n"
            "11  [tier.b] has no path; write for example path = /scratch\n"
            "11  [tier.b] has no quota; write for example quota = 100G\n"
            "15  [tier.d] has no path; write for example path = /scratch\n"
            "15  [tier.d] has no quota; write for example quota = 100G\n")
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
  const std::pair<const char*, std::string> cases[] = {
      {"[agent]\nthread = 1\n", "threads"},
      {"[agent]\nperfetch = off\n", "prefetch"},
      {"[agent]\ncolour = red\n", ""},
      {"[peer]\nport = 1-2\n", "ports"},
      {"[accounting]\nacount = log\n", "account"},
      {"[tier.a]\nqouta = 1G\n", "quota"},
      {"[policy.qos.a]\nallow_user = a\n", "allow_users"},
      {"[teir.a]\n", "[tier.a]"},
      {"[tier]\n", ""},
      {"[Policy]\n", "[policy]"},
      {"[policy.patition.GPU.a]\n", "[policy.partition.GPU.a]"},
      {"[polcy.qos.x]\n", "[policy.qos.x]"},
      {"[policy.qos.]\n", ""},
  };
  for (const auto& [text, meant] : cases) {
    const std::string error = error_of(text), told = " (did you mean " + meant + "?); known are ";
    EXPECT_NE(error.find(meant.empty() ? "; known are " : told), std::string::npos) << error;
    EXPECT_EQ(error.find("did you mean") == std::string::npos, meant.empty()) << error;
  }
}

TEST_F(ConfigFile, ACommentMayStandBehindSomething) {
  auto all = shown(
      "[tier.a] # the first\npath = /a # of NVMe\nquota = 1G\t; all\n[tier.b]; other\npath = /b#b;c\n"
      "quota = 2G #\n[agent]\nlog = # none\n[policy]\ndeny_users = a, b #, c ; d\n");
  EXPECT_EQ(all["tier.a.path"] + " " + all["tier.a.quota"], "/a 1G");
  EXPECT_EQ(all["tier.b.path"] + " " + all["tier.b.quota"], "/b#b;c 2G") << "no blank stands before it";
  EXPECT_FALSE(all.contains("agent.log"));
  EXPECT_EQ(all["policy.deny_users"], "a|b");
  for (const char* line : {"threads # = 3", "[tier.a # b]", "[policy ;]"})
    EXPECT_EQ(error_of("[agent]\n" + std::string(line) + "\n"),
              "2: neither [section], key = value nor a comment");
}

TEST_F(ConfigFile, WordsGoBeforeWhatItSays) {
  const std::string text =
      "[tier.a]\npath = /a\nquota = 1G\n[agent]\nthreads = 2\nprefetch = off\n[policy]\ndeny_users = a, b\n";
  auto all = shown(text, {"agent.threads=3", "tier.a.quota=50%", "policy.deny_users=c", "policy.deny_users=d",
                          "policy.qos.X.y.enabled=off", "policy.tiers=a", "accounting.account=log"});
  const std::pair<const char*, const char*> is[] = {
      {"agent.threads", "3"},       {"agent.prefetch", "off"}, {"tier.a.quota", "50%"},
      {"policy.deny_users", "c|d"}, {"policy.tiers", "a"},     {"policy.qos.x.y.enabled", "off"},
      {"accounting.account", "log"}};
  for (const auto& [key, value] : is) EXPECT_EQ(all[key], value) << key;
  const std::string file = scratch_ / "monarch.conf",
                    form = ": is not SECTION.KEY=VALUE, as agent.prefetch=off is";
  const std::pair<std::string, std::string> wrong[] = {
      {"agent.threads=many", ": 'many' is not a number from 1 to 256"},
      {"agent.thread=1", ": unknown key 'thread' in [agent] (did you mean threads?); known"},
      {"agnet.threads=1", ": unknown section [agnet] (did you mean [agent]?); known"},
      {"tier.b.quota=1G", ": " + file + " has no section [tier.b]; add it"},
      {"tier.a.quota=0", ": quota = 0 has no room for any file; write for example quota = 100G"},
      {"agent", form},
      {"agent.threads", form},
      {".threads=1", form},
      {"agent.=1", form},
      {"=1", form},
  };
  for (const auto& [word, error] : wrong)
    EXPECT_TRUE(
        load_config(with_words(file, {word})).error().text.starts_with("plugstack.conf: " + word + error))
        << word;
  EXPECT_EQ(load_config(with_words(file, {"policy.tiers=b"})).error().text,
            "plugstack.conf: policy: tiers names b, but there is no section [tier.b]; add it");
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

TEST_F(ConfigFile, TheSampleIsGood) {
  const char* tree = std::getenv("MONARCH_SRCDIR");
  if (!tree) GTEST_SKIP() << "MONARCH_SRCDIR is not set";
  const Result<Config> config = load(contents(std::string(tree) + "/etc/monarch.conf.sample"));
  ASSERT_TRUE(config.ok()) << config.error().text;
  EXPECT_FALSE(config->tiers.empty());
}

TEST_F(ConfigFile, OneTierInMemoryIsChargedToJobs) {
  const std::string a = "[tier.a]\npath = /a\nquota = 1G\n", charged = a + "charge = job\ndriver = tmpfs\n";
  const std::string only =
      "4: [tier.a]: charge = job is for driver = tmpfs only; write driver = tmpfs, or charge = node";
  const std::pair<std::string, std::string> cases[] = {
      {charged, ""},
      {a + "charge = node\n", ""},
      {a + "charge = user\n", "4: charge 'user' is none of node, job"},
      {a + "charge = job\n", only},
      {a + "charge = job\nmedium = ram\n", only},
      {a + "charge = job\ndriver = directory\n", only},
      {charged + "[tier.b]\npath = /b\nquota = 1G\ndriver = tmpfs\ncharge = job\n",
       "10: [tier.b]: charge = job, as [tier.a] has: a job has one such tier; write charge = node in one of "
       "them"},
  };
  for (const auto& [text, error] : cases) EXPECT_EQ(error_of(text), error) << text;
  EXPECT_TRUE(load(a).ok());
  EXPECT_EQ(load_config(with_words(file_, {"tier.a.charge=job"})).error().text,
            "plugstack.conf: " + only.substr(3));
}

TEST_F(ConfigFile, ErrorsNameFileAndLine) {
  const std::string tier = "[tier.a]\npath = /a\nquota = 1G\n";  // lines 1 to 3
  const std::string unknown =
      "unknown section [agnet] (did you mean [agent]?); known are [accounting], [agent], [peer], "
      "[tier.NAME], [policy], [policy.partition.NAME], [policy.account.NAME] and [policy.qos.NAME]";
  const std::pair<std::string, std::string> cases[] = {
      {tier + "speed = 3\n",
       "4: unknown key 'speed' in [tier.a]; known are path, quota, share, job_capacity"},
      {"\n[agent]\n# a comment\ncolour = red\n", "4: unknown key 'colour' in [agent]"},
      {"[agnet]\nthreads = 3\n", "1: " + unknown},
      {tier + "[agnet]\n", "4: " + unknown},
      {"\xef\xbb\xbf[agnet]\n" + tier, "1: " + unknown},
      {"  [agnet] # a comment\n[agent]\n" + tier, "1: " + unknown},
      {"threads = 3\n", "1: 'threads' stands before the first [section]"},
      {tier + "no equals sign\n", "4: neither [section], key = value nor a comment"},
      {"[agent\nthreads = 3\n", "1: "},
      {tier + "[tier.b]\n", "4: [tier.b] has no path; write for example path = /scratch"},
      {"[tier.b]\n" + tier, "1: [tier.b] has no path; write for example path = /scratch"},
      {"[tier.a]\n\npath = /a\n", "1: [tier.a] has no quota"},
      {"[tier.a b]\npath = /a\n", "1: tier name 'a b'"},
      {"[tier.]\npath = /a\n", "1: tier name ''"},
      {"[tier." + std::string(32, 'n') + "]\npath = /a\n", "1: tier name"},
      {"[agent]\nthreads = 3\nthreads = 3\n", "3: 'threads' is given twice in [agent]"},
      {"[agent]\nthreads = 3\n" + tier + "[agent]\nthreads = 4\n", "7: 'threads' is given twice in [agent]"},
      {tier + "[tier.b]\npath = /b\nquota = 1G\n" + tier, "8: 'path' is given twice in [tier.a]"},
      {tier + "[tier.b]\nquota = 1G\npath = /a/\n",
       "4: [tier.b] has the path of [tier.a]; each has a directory of its own"},
      {"[agent]\n" + tier + "[agent]\n# [agnet]\n", ""},
      {"\xef\xbb\xbf\r\n[agent]\r\n \f\r\n\t\v[peer]\r\n\r\nencrypt = on\r\n", ""},
      {"\xef\xbb\xbf [agent]\nthreads = x\n", "2: threads: 'x' is not a number from 1 to 256"},
      {tier + "[tier.b]\npath = /b\nquota = 0.1%\n", ""},
  };
  for (const auto& [text, error] : cases) {
    const std::string told = error_of(text);
    EXPECT_EQ(told.substr(0, error.size()), error) << text;
    EXPECT_EQ(told.empty(), error.empty()) << told;
  }
}

TEST_F(ConfigFile, EachKeyHasItsRange) {
  struct Case {
    std::string section, line, error;
  };
  std::vector<Case> cases = {
      {"agent", "threads = 0", "threads: '0' is not a number from 1 to 256"},
      {"agent", "threads = 257", "threads: '257' is not"},
      {"agent", "threads = 3x", "threads: '3x' is not"},
      {"agent", "threads =", "threads: '' is not"},
      {"agent", "walk_threads = 65", "walk_threads: '65' is not"},
      {"agent", "watch_directories = -1", "watch_directories: '-1' is not"},
      {"agent", "watch_directories = 0", ""},
      {"agent", "prefetch = maybe", "prefetch: 'maybe' is none of auto, on, off"},
      {"agent", "prefetch_burst = much",
       "prefetch_burst: 'much' is neither auto, 0 nor a size like 512M or 10G"},
      {"agent", "prefetch_burst = 0", ""},
      {"agent", "prefetch_patience = long", "prefetch_patience: 'long' is not a number from 0 to 86400"},
      {"agent", "consistency = close", "consistency: 'close'"},
      {"agent", "metadata = ask", "metadata: 'ask'"},
      {"agent", "pfs_bandwidth = fast", "pfs_bandwidth: 'fast'"},
      {"agent", "background_io = high", "background_io: 'high'"},
      {"agent", "pfs_opens = 0.5", "pfs_opens: '0.5' is less than 1; write none for no limit"},
      {"agent", "stage_wait = 601", "stage_wait: '601' is not"},
      {"agent", "stage_wait = 1s", "stage_wait: '1s' is not"},
      {"agent", "stage_again = 86401", "stage_again: '86401' is not"},
      {"agent", "stage_wait_max = lots", "stage_wait_max: 'lots' is not a size"},
      {"agent", "memory_max = 63M", "memory_max is at least 64M, none or auto"},
      {"agent", "memory_max = 1", "memory_max is at least 64M, none or auto"},
      {"agent", "memory_max = 64M", ""},
      {"agent", "memory_max = none", ""},
      {"agent", "memory_max = auto", ""},
      {"agent", "log_level = loud", "log_level 'loud' is none of trace, debug, info, warning, error, off"},
      {"tier.a", "path = scratch", "path 'scratch' is not absolute"},
      {"tier.a", "path =", "path '' is not absolute"},
      {"tier.a", "path = /a\xff", "path '/a\\xff' is not UTF-8"},
      {"tier.a", "quota = 101%", "quota: '101%' is not a share from 0% to 100%; write for example 50%"},
      {"tier.a", "quota = 4095", "quota = 4095 has no room for any file; write for example quota = 100G"},
      {"tier.a", "quota = 0%", "quota = 0% has no room for any file; write for example quota = 100G"},
      {"tier.a", "share = half", "share 'half' is none of cpus, memory, equal, whole"},
      {"tier.a", "medium = tape", "medium 'tape' is none of nvme, ssd, hdd, ram"},
      {"peer", "enabled = yes", "enabled: 'yes' is none of on, off"},
      {"peer", "bandwidth = fast", "bandwidth: 'fast'"},
  };
  for (const std::string section : {"agent", "policy"})
    for (const std::string key : {"pfs_opens", "pfs_stats", "max_files"})
      cases.push_back(
          {section, key + " = -5", key + ": '-5' is not a number; write for example 5000, or none"});
  for (const std::string below : {"0.5", "0K", "-0"})
    for (const auto& [section, key] : {std::pair<std::string, std::string>("agent", "pfs_opens"),
                                       {"agent", "pfs_bandwidth"},
                                       {"accounting", "report_size"}})
      cases.push_back({section, key + " = " + below, key + ": '" + below + "' is "});
  for (const Case& c : cases)
    EXPECT_EQ(error_of("[" + c.section + "]\n" + c.line + "\n").substr(0, c.error.size() + 3),
              c.error.empty() ? "" : "2: " + c.error)
        << c.section << c.line;
}

TEST_F(ConfigFile, HoldsEightTiersAndNoMore) {
  std::string text;
  for (int i = 0; i < 8; ++i)
    text += "[tier.t" + std::to_string(i) + "]\npath = /" + std::to_string(i) + "\nquota = 1G\n";
  EXPECT_EQ(error_of(text), "");
  EXPECT_EQ(error_of(text + "[tier.t8]\npath = /a\n"), "25: more than 8 tiers; remove one");
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
  if (::geteuid() != 0) GTEST_SKIP() << "the rest needs root";
  fs::permissions(file_, fs::perms::owner_read);
  ASSERT_EQ(::chown(file_.c_str(), 65534, 65534), 0);
  const Result<Config> config = load_config(file_);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, EPERM);
  EXPECT_NE(config.error().text.find("user 65534's; run chown root " + file_), std::string::npos);
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
  EXPECT_EQ(load_config(scratch_.path()).error().code, EISDIR);
}

TEST(TierOption, HoldsNamePathAndSize) {
  struct Case {
    std::string option, name, path;
    uint64_t quota;  // of a thousand bytes
  };
  for (const Case& c : {Case{"ssd:/scratch/x/:100G", "ssd", "/scratch/x", uint64_t{100} << 30},
                        {"a:/s:50%", "a", "/s", 500},
                        {"ssd:/scratch/a:b::c:1G", "ssd", "/scratch/a:b::c", uint64_t{1} << 30},
                        {"a:x:1G", "a", *absolute_path("x"), uint64_t{1} << 30}}) {
    const Result<TierConfig> tier = parse_tier_option(c.option);
    ASSERT_TRUE(tier.ok()) << tier.error().text;
    EXPECT_EQ(tier->name, c.name);
    EXPECT_EQ(tier->path, c.path);
    EXPECT_EQ(tier->quota.of(1000), c.quota);
    EXPECT_EQ(tier->medium, Medium::kSsd);
  }
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

TEST_F(CheckPaths, DatasetsAndTiersAreDirectoriesAndNeitherLiesInTheOther) {
  const std::string missing = scratch_ / "missing", file = scratch_.file("file", "x");
  const std::string below_data = scratch_.dir("data/in"), below_tier = scratch_.dir("tier/in");
  fs::create_directory_symlink("/", scratch_ / "slash");
  fs::create_directory_symlink("data/in", scratch_ / "tier-link");
  fs::create_directory_symlink("tier/in", scratch_ / "data-link");
  struct Case {
    std::string dataset, tier;
    int code;
    std::string of, text;
  };
  const Case cases[] = {
      {missing, tier_, ENOENT, "dataset " + missing, ""},
      {file, tier_, ENOTDIR, "dataset " + file, "not a directory"},
      {"", tier_, EINVAL, "dataset", ""},
      {"/", tier_, EINVAL, "", "root directory"},
      {scratch_ / "slash", tier_, EINVAL, "", "root directory"},
      {data_, missing, ENOENT, "tier t0 (" + missing + ")", ""},
      {data_, file, ENOTDIR, "tier t0", "not a directory; name one"},
      {data_, below_data, EINVAL, "tier t0", "inside the dataset " + data_},
      {below_tier, tier_, EINVAL, "dataset " + below_tier, "inside the tier t0"},
      {data_, data_, EINVAL, "", ""},
      {data_, scratch_ / "tier-link", EINVAL, "", "inside the dataset"},
      {scratch_ / "data-link", tier_, EINVAL, "", "inside the tier"},
      {data_, tier_ + "/../data/in", EINVAL, "", "inside the dataset"},
  };
  for (const Case& c : cases) {
    const auto result = check({c.dataset}, {c.tier});
    ASSERT_FALSE(result.ok()) << c.dataset << " " << c.tier;
    EXPECT_EQ(result.error().code, c.code) << result.error().text;
    for (const std::string& part : {c.of, c.text})
      EXPECT_NE(result.error().text.find(part), std::string::npos)
          << result.error().text << " lacks " << part;
  }
  EXPECT_TRUE(check({data_}, {scratch_.dir("data-tier")}).ok())
      << "only the beginning of the name is the same";
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

}  // namespace
}  // namespace monarch
