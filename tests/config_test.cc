// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config.h"

#include <fmt/format.h>

#include <map>
#include <sstream>

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
  // All errors of such a file: the line and SECTION.KEY, if it is of one.
  std::string errors_of(const std::string& text) {
    ConfigTrace trace;
    const Result<Config> config = load_config(scratch_.file("monarch.conf", text), &trace);
    EXPECT_EQ(config.ok() ? "" : config.error().text, trace.errors.empty() ? "" : trace.errors[0].error.text);
    std::string all;
    for (const ConfigError& e : trace.errors) {
      const std::string place = (scratch_ / "monarch.conf:") + std::to_string(e.line) + ": ";
      EXPECT_EQ(e.error.text.rfind(place, 0), 0u) << e.error.text;
      all += std::to_string(e.line) + " " + e.key + ", ";
    }
    return all;
  }

  Scratch scratch_;
  std::string file_;
};

TEST_F(ConfigFile, ReadsEveryKey) {
  const std::pair<std::string, std::string> as_written[] = {
      {"tier.ram", "medium=ram min_free=10%"},
      {"tier.nvme",
       "path=/scratch quota=80% medium=nvme driver=tmpfs charge=job share=equal min_free=2G "
       "job_capacity=20%"},
      {"agent",
       "threads=3 walk_threads=2 watch_directories=77 stage_wait=0 stage_again=7 prefetch=off "
       "prefetch_burst=3G prefetch_patience=0 consistency=open metadata=pass pfs_bandwidth=2G "
       "pfs_opens=5000 pfs_stats=1 tier_bandwidth=none background_io=idle memory_max=512M "
       "log=/var/log/a.log log_level=debug"},
      {"peer", "enabled=off network=10.1.0.0/16 ports=1024-65535 encrypt=on"},
      {"accounting", "account=log"},
      {"policy",
       "enabled=on deny_users= deny_groups=c max_prefetch=auto max_wait=0 closing_line=off job_capacity=2G "
       "max_files=10M "
       "pfs_bandwidth=1G pfs_opens=100 pfs_stats=none"},
      {"policy.partition.GPU.a", "enabled=off"},
      {"policy.qos.high", "max_files=none"},
  };
  struct Key {
    std::string section, key, value, shown;
  };
  std::vector<Key> keys = {
      {"tier.ram", "path", "/dev/shm//x/", "/dev/shm/x"},
      {"tier.ram", "quota", "1.5G", "1536M"},
      {"agent", "stage_wait_max", "8M ; how much an open waits for", "8M"},
      {"peer", "bandwidth", "1.5G", "1536M"},
      {"policy", "allow_users", "alice, 17\nallow_users=bob", "alice|17|bob"},
      {"policy", "allow_groups", "a,b", "a|b"},
      {"policy", "allow_datasets", "/x//:/y\nallow_datasets = /z, too", "/x|/y|/z, too"},
      {"policy", "deny_datasets", "/x/y/.", "/x/y"},
      {"policy", "default_dataset", "/d:/e\ndefault_dataset = /f", "/d|/e|/f"},
      {"policy", "deny_options", "wait,tiers", "wait|tiers"},
      {"policy", "default_options", "prefetch=off wait=none", "prefetch=off wait=none"},
      {"policy", "tiers", "nvme,ram", "nvme, ram"},
  };
  for (const auto& [section, lines] : as_written) {
    std::istringstream in(lines);
    for (std::string key, value; std::getline(in, key, '=') && std::getline(in, value, ' ');)
      keys.push_back({section, key, value, value});
  }
  std::string text = "# a comment\n";
  for (const Key& k : keys) text += "[" + k.section + "]\n  " + k.key + " = " + k.value + "\n";
  std::map<std::string, std::string> all = shown(text);
  for (const Key& k : keys) {
    EXPECT_TRUE(all.contains(k.section + "." + k.key)) << k.key;
    EXPECT_EQ(all[k.section + "." + k.key], k.shown) << k.key;
  }
  EXPECT_FALSE(all.contains("policy.qos.high.deny_users")) << "what is not set is not";
  EXPECT_TRUE(shown("[policy.account.Phys]\nmax_files = 1\n").contains("policy.account.phys.max_files"))
      << "as Slurm compares them";
  EXPECT_EQ(shown("[peer]\nnetwork = fd00::/128\nports=7000-7000\n")["peer.network"], "fd00::/128");
}

TEST_F(ConfigFile, AllErrorsAreFoundAtOnce) {
  EXPECT_EQ(errors_of("[agent]\nthreads = 2\n"), "");
  EXPECT_EQ(errors_of("threads = 1\n[agent]\nthreads = x\nprefetch = off\nprefetch = on\nwalk_threads\n"
                      "[agnet]\nthreads = 1\n[tier.a]\npath = a\n[tier.b]\n[tier.c]\npath = /c\nquota = 0\n"
                      "[tier.d]\ndriver = tmpsf\ncharge = job\n[policy]\ntiers = e\n"),
            "1 .threads, 3 agent.threads, 5 agent.prefetch, 6 , 7 , 10 tier.a.path, 14 tier.c.quota, "
            "16 tier.d.driver, 9 , 11 , 11 , 15 , 15 , ")
      << "and nothing that follows from what is refused";
  EXPECT_EQ(errors_of("[tier.a]\npath = /a\nquota = 1G\ncharge = job\n[policy]\ntiers = b\n[policy.qos.x]\n"
                      "tiers = c\n"),
            "4 , 6 , 8 , ");
  std::string many = "[tier.a]\n";
  for (int i = 0; i < 10000; ++i) many += "no key\n";
  const std::string errors = errors_of(many);
  EXPECT_EQ(std::count(errors.begin(), errors.end(), ','), 100) << "a file that is something else";
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
    EXPECT_TRUE(has(error, meant.empty() ? "; known are " : told)) << error;
    EXPECT_EQ(has(error, "did you mean"), !meant.empty()) << error;
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
  const std::string file = scratch_ / "monarch.conf";
  for (const std::string word : {"agent.threads=many", "agent.thread=1", "agnet.threads=1", "tier.b.quota=1G",
                                 "tier.a.quota=0", "agent", "agent.threads", ".threads=1", "agent.=1", "=1"})
    EXPECT_TRUE(
        load_config(with_words(file, {word})).error().text.starts_with("plugstack.conf: " + word + ": "))
        << word;
  EXPECT_TRUE(
      load_config(with_words(file, {"policy.tiers=b"})).error().text.starts_with("plugstack.conf: policy"));
  ConfigTrace trace;
  EXPECT_FALSE(load_config(with_words(file, {"agent.threads=x", "agent.prefetch=on", "peer.encrypt=x",
                                             "peers.x=y", "agent.log=/a", "agent.log=/b"}),
                           &trace)
                   .ok());
  std::vector<std::string> keys;
  for (const ConfigError& e : trace.errors) keys.push_back(e.key + " " + std::to_string(e.line));
  EXPECT_EQ(keys, (std::vector<std::string>{"agent.threads 0", "peer.encrypt 0", " 0", "agent.log 0"}))
      << "all of them";
}

TEST(AgentConfig, RatesAreDividedByTheJobsNodes) {
  AgentConfig agent;
  agent.pfs_bandwidth = agent.prefetch_burst = agent.tier_bandwidth = 1000;
  agent.pfs_opens = 3;
  agent.divide_rates(4);
  EXPECT_EQ(agent.pfs_bandwidth, 250u);
  EXPECT_EQ(agent.prefetch_burst, 250u);
  EXPECT_EQ(agent.pfs_opens, 1u) << "0 would be no limit";
  EXPECT_EQ(agent.pfs_stats, 0u) << "there is none";
  EXPECT_EQ(agent.tier_bandwidth, 1000u) << "is a node's own";
}

TEST_F(ConfigFile, OneTierInMemoryIsChargedToJobs) {
  const std::string a = "[tier.a]\npath = /a\nquota = 1G\n", charged = a + "charge = job\ndriver = tmpfs\n";
  for (const std::string& good : {a, charged, a + "charge = node\n"}) EXPECT_EQ(error_of(good), "") << good;
  for (const char* bad : {"", "medium = ram\n", "driver = directory\n"})
    EXPECT_TRUE(error_of(a + "charge = job\n" + bad).starts_with("4: [tier.a]: charge = job is for ")) << bad;
  EXPECT_TRUE(error_of(charged + "[tier.b]\npath = /b\nquota = 1G\ndriver = tmpfs\ncharge = job\n")
                  .starts_with("10: [tier.b]: charge = job, as [tier.a] has"));
  (void)load(a);
  EXPECT_TRUE(
      load_config(with_words(file_, {"tier.a.charge=job"})).error().text.starts_with("plugstack.conf: "));
}

TEST_F(ConfigFile, ErrorsNameFileAndLine) {
  const std::string tier = "[tier.a]\npath = /a\nquota = 1G\n";  // lines 1 to 3
  const std::pair<std::string, std::string> cases[] = {
      {tier + "speed = 3\n", "4: unknown key 'speed' in [tier.a]"},
      {"[agnet]\nthreads = 3\n", "1: unknown section [agnet]"},
      {"\xef\xbb\xbf[agnet]\n" + tier, "1: unknown section [agnet]"},
      {"  [agnet] # a comment\n[agent]\n" + tier, "1: unknown section [agnet]"},
      {"[policies]\n", "1: unknown section"},
      {"[policy.partition]\n", "1: unknown section"},
      {"[policy.user.a]\n", "1: unknown section"},
      {"[]\n", "1: unknown section"},
      {"threads = 3\n", "1: 'threads' stands before the first [section]"},
      {tier + "no equals sign\n", "4: neither [section], key = value nor a comment"},
      {"[agent\nthreads = 3\n", "1: "},
      {tier + "[tier.b]\n", "4: [tier.b] has no path"},
      {"[tier.b]\n" + tier, "1: [tier.b] has no path"},
      {"[tier.a]\n\npath = /a\n", "1: [tier.a] has no quota"},
      {"[tier.a b]\npath = /a\n", "1: tier name 'a b'"},
      {"[tier.]\npath = /a\n", "1: tier name ''"},
      {"[tier." + std::string(32, 'n') + "]\npath = /a\n", "1: tier name"},
      {"[agent]\nthreads = 3\n" + tier + "[agent]\nthreads = 4\n", "7: 'threads' is given twice in [agent]"},
      {"[policy.qos.a]\nenabled = on\n[policy.qos.A]\nenabled = off\n", "4: 'enabled' is given twice"},
      {tier + "[tier.b]\nquota = 1G\npath = /a/\n", "4: [tier.b] has the path of [tier.a]"},
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
      {"tier.a", "share = half", "share: 'half' is none of cpus, memory, equal, whole"},
      {"tier.a", "medium = tape", "medium: 'tape' is none of nvme, ssd, hdd, ram"},
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
  const auto refused = [&](const std::string& remedy) {
    const Result<Config> config = load_config(file_);
    return !config.ok() && config.error().code == EPERM && has(config.error().text, remedy);
  };
  for (const auto mode : {fs::perms::group_write, fs::perms::others_write}) {
    fs::permissions(file_, fs::perms::owner_read | fs::perms::owner_write | mode);
    EXPECT_TRUE(refused("chmod go-w " + file_));
  }
  if (::geteuid() != 0) GTEST_SKIP() << "the rest needs root";
  fs::permissions(file_, fs::perms::owner_read);
  ASSERT_EQ(::chown(file_.c_str(), 65534, 65534), 0);
  EXPECT_TRUE(refused("run chown root " + file_));
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
    EXPECT_EQ(std::tuple(tier->name, tier->path, tier->quota.of(1000)), std::tuple(c.name, c.path, c.quota));
    EXPECT_EQ(tier->medium, Medium::kSsd);
  }
}

TEST(TierOption, IsRamOnTmpfs) {
  Scratch scratch;
  const auto parse = [&] {
    EXPECT_EQ(parse_tier_option("a:" + scratch.path() + ":1G")->medium, Medium::kRam);
  };
  if (!with_tmpfs(scratch.path(), 1 << 20, parse)) GTEST_SKIP() << "mounting needs root";
}

TEST(TierOption, SaysWhatIsWrong) {
  for (const std::string bad :
       {"", "ssd", "ssd:/scratch", "ssd::1G", ":/scratch:1G", "a b:/scratch:1G",
        "ssd:/scratch:", "ssd:/scratch:much", "ssd:/scratch:200%", "ssd:/scratch:-1"}) {
    const Result<TierConfig> tier = parse_tier_option(bad);
    EXPECT_TRUE(!tier.ok() && has(tier.error().text, "tier '" + bad + "'")) << bad;
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

TEST_F(CheckPaths, DatasetsAndTiersAreDirectoriesAndNeitherLiesInTheOther) {
  const std::string missing = scratch_ / "missing", file = scratch_.file("file", "x");
  const std::string below_data = scratch_.dir("data/in"), below_tier = scratch_.dir("tier/in");
  fs::create_directory_symlink("/", scratch_ / "slash");
  fs::create_directory_symlink("data/in", scratch_ / "tier-link");
  fs::create_directory_symlink("tier/in", scratch_ / "data-link");
  struct Case {
    std::string dataset, tier;
    int code;
    std::string text;
  };
  const Case cases[] = {
      {missing, tier_, ENOENT, "dataset " + missing},
      {file, tier_, ENOTDIR, "dataset " + file},
      {"", tier_, EINVAL, "dataset"},
      {"/", tier_, EINVAL, "root directory"},
      {scratch_ / "slash", tier_, EINVAL, "root directory"},
      {data_, missing, ENOENT, "tier t0 (" + missing + ")"},
      {data_, file, ENOTDIR, "tier t0"},
      {data_, below_data, EINVAL, "inside the dataset " + data_},
      {below_tier, tier_, EINVAL, "inside the tier t0"},
      {data_, data_, EINVAL, ""},
      {data_, scratch_ / "tier-link", EINVAL, "inside the dataset"},
      {scratch_ / "data-link", tier_, EINVAL, "inside the tier"},
      {data_, tier_ + "/../data/in", EINVAL, "inside the dataset"},
  };
  for (const Case& c : cases) {
    const auto result = check({c.dataset}, {c.tier});
    ASSERT_FALSE(result.ok()) << c.dataset << " " << c.tier;
    EXPECT_EQ(result.error().code, c.code) << result.error().text;
    EXPECT_TRUE(has(result.error().text, c.text)) << result.error().text;
  }
  EXPECT_TRUE(check({data_}, {scratch_.dir("data-tier")}).ok())
      << "only the beginning of the name is the same";
  fs::create_directory_symlink("data", scratch_ / "link");
  EXPECT_EQ(*check({data_ + "//./", scratch_ / "link"}, {tier_}),
            (std::vector<std::string>{data_, scratch_ / "link"}))
      << "a link stays what the user calls it";
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
