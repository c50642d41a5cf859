// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/state.h"

#include <linux/magic.h>
#include <sys/file.h>
#include <sys/sysmacros.h>

#include "tests/faulty_os.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

constexpr uid_t kNobody = 65534;

TEST(PlainName, IsWhatCanBePartOfAFileName) {
  for (const char* good : {"a", "Cluster-1.x_y", "0", "a.b"}) EXPECT_TRUE(is_plain_name(good)) << good;
  for (const char* bad : {"", ".", "..", ".a", "a/b", "a b", "a\n", "\xc3\xa9"})
    EXPECT_FALSE(is_plain_name(bad)) << bad;
  EXPECT_TRUE(is_plain_name(std::string(255, 'a')));
  EXPECT_FALSE(is_plain_name(std::string(256, 'a')));
}

TEST(JobNames, AreRefusedWhereTheLongestOfTheirFilesWouldNotFit) {
  const JobOnNode most = {UINT32_MAX, std::string(100, 'n'), std::string(60, 'c')};
  EXPECT_TRUE(check_names(most).ok());
  JobRecord record;
  record.job = most;
  record.serial = UINT64_MAX;
  record.name =
      most.cluster + "." + std::to_string(UINT32_MAX) + "." + std::to_string(UINT32_MAX) + "." + most.node;
  EXPECT_TRUE(is_plain_name("ffffffffffffffff.ffffffffffffffff." + record.removal())) << "a control group";
  EXPECT_TRUE(is_plain_name(record.removal() + ".9999999999.json.new")) << "in the spool";
  const Status longer = check_names({1, most.node + "n", most.cluster});
  EXPECT_EQ(longer.error().code, ENAMETOOLONG);
  EXPECT_TRUE(has(longer.error().text, "161 characters")) << longer.error().text;
}

template <class T>
int code_of(const Result<T>& result) {
  return result.ok() ? 0 : result.error().code;
}

class StateTest : public StateDirTest {
 protected:
  JobRecord record(uint32_t job = 7) const {
    JobRecord r;
    r.job = {job, "n1", "c"};
    r.name = "c." + std::to_string(job) + ".0.n1";
    r.user = {kNobody, kNobody, {}};
    r.agent = {12, 34};
    r.boot = "boot";
    r.run_dir = "/run/x";
    r.serial = 99;
    return r;
  }

  // What comes of record.json with one thing in it that is not as it was written.
  Status with(const std::string& was, const std::string& is) {
    EXPECT_TRUE(state_.write_record(record()).ok());
    std::string text = contents(path_ + "/jobs/c.7.n1/record.json");
    const size_t at = text.find(was);
    EXPECT_NE(at, std::string::npos) << was << " in " << text;
    if (at != std::string::npos) text.replace(at, was.size(), is);
    scratch_.file("state/jobs/c.7.n1/record.json", text);
    const Result<JobRecord> read = state_.read_record("c.7.n1");
    return read.ok() ? Status() : Status(read.error());
  }

  const std::string path_ = scratch_ / "state";
};

TEST_F(StateTest, EachDirectoryHasControlGroupsOfItsOwnWhateverItsPath) {
  const std::string first = state_.cgroup_prefix();
  EXPECT_EQ(StateDir::open(path_)->cgroup_prefix(), first);
  EXPECT_EQ(StateDir::open(path_ + "/../state")->cgroup_prefix(), first);
  // What another mount namespace has at that path.
  fs::rename(path_, scratch_ / "other");
  const std::string second = StateDir::open(path_)->cgroup_prefix();
  EXPECT_NE(second, first);
  EXPECT_EQ(StateDir::open(scratch_ / "other")->cgroup_prefix(), first);
}

TEST_F(StateTest, WhatIsInTheWayOnATierIsToldWithARemedy) {
  const std::string tier = scratch_.dir("tier"), jobs = tier + "/monarch";
  const std::string no_directory = "no directory; remove it";
  const std::pair<const char*, std::string> cases[] = {
      {"", ""},
      {": >monarch", no_directory},
      {": >monarch; chown 65534 monarch", ""},  // a user's gives way
      {"ln -s .. monarch", no_directory},
      {"mkdir monarch", ""},
      {"mkdir -m 777 monarch", "can write"},
      {"mkdir -m 720 monarch", "can write"},
      {"mkdir monarch; mount -t tmpfs -o mode=711 none monarch", "a mount point; unmount it"}};
  for (const auto& [make, error] : cases) {
    ASSERT_EQ(std::system(("cd " + tier + "; " + make).c_str()), 0) << make;
    const Status s = check_tier_jobs(tier);
    EXPECT_EQ(s.ok(), error.empty()) << make;
    EXPECT_TRUE(s.ok() || has(s.error().text, error)) << make << ": " << s.error().text;
    ::umount2(jobs.c_str(), MNT_DETACH);
    fs::remove(jobs);
  }
}

TEST_F(StateTest, WhatAKilledHelperHadHalfWrittenIsForgotten) {
  const JobRecord job = record(9);
  for (const std::string& name :
       {job.grants(), job.grants() + ".new", std::string("spool/old.new"), std::string("spool/fresh.new")})
    scratch_.file("state/" + name, "");
  const timespec then[2] = {{::time(nullptr) - 100, 0}, {::time(nullptr) - 100, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (path_ + "/spool/old.new").c_str(), then, 0), 0);
  state_.forget_rests();
  EXPECT_EQ(names_in(path_ + "/spool"), std::vector<std::string>{"fresh.new"});
  state_.forget_grants(job);
  EXPECT_TRUE(names_in(path_ + "/grants").empty());
}

TEST_F(StateTest, OfARunGoesAllButTheNotes) {
  JobRecord job = record(9);
  job.notes = {
      "/data\xff\x01", "tiers=ram", {"key", "n[1-2]"}, true, true, "facts", {"0", true, "why", "what"},
      "told"};
  job.serves = "/data/key";
  const std::string dir = "jobs/" + job.job.key();
  const Result<Fd> lock = state_.lock_job(job.job, true, 0);
  ASSERT_TRUE(state_.write_record(job).ok());
  EXPECT_TRUE(state_.make_removal(job).ok());
  EXPECT_FALSE(has(contents(path_ + "/removing/" + job.removal() + "/record.json"), "key"));
  EXPECT_TRUE(has(contents(path_ + "/" + dir + "/record.json"), "/data\xc3\xbf\xc4\x81")) << "no six for one";
  EXPECT_TRUE(state_.forget_run(job).ok());
  EXPECT_EQ(*state_.list(dir), std::vector<std::string>{"record.json"});
  EXPECT_EQ(state_.read_record("c.9.n1").error().code, ENOENT);
  const JobNotes left = state_.read_notes("c.9.n1");
  EXPECT_EQ(left.datasets + left.options + left.peers.key + left.peers.nodes + left.facts + left.told,
            "/data\xff\x01tiers=ramkeyn[1-2]factstold");
  EXPECT_EQ(left.failure.run + left.failure.reason + left.failure.tried, "0whywhat");
  EXPECT_TRUE(left.by_default && left.no_default && left.failure.refused);
  EXPECT_FALSE(lock_if_free(path_ + "/" + dir)) << "its lock is held still";
  scratch_.dir("state/" + dir + "/record.json.new");
  EXPECT_EQ(state_.forget_run(job).error().code, EISDIR) << "what was there stays";
}

TEST_F(StateTest, IsRootsAlone) {
  const std::string made = scratch_ / "new", file = scratch_.file("file", ""), link = scratch_ / "link";
  const mode_t before = ::umask(0077);
  EXPECT_TRUE(ensure_root_directory(made, 0755).ok());
  ::umask(before);
  EXPECT_EQ(mode_of(made), 0755u) << "whatever the umask";
  EXPECT_TRUE(ensure_root_directory(made, 0700).ok()) << "one that is there";
  EXPECT_EQ(ensure_root_directory(scratch_ / "missing/new", 0755).error().code, ENOENT);
  ASSERT_EQ(::symlink(made.c_str(), link.c_str()), 0);
  for (const std::string& path : {file, link})
    EXPECT_EQ(ensure_root_directory(path, 0755).error().code, EPERM) << path;
  for (const mode_t mode : {0775u, 0757u}) {
    ASSERT_EQ(::chmod(made.c_str(), mode), 0);
    EXPECT_EQ(ensure_root_directory(made, 0755).error().code, EPERM) << mode;
  }
  ASSERT_EQ(::chmod(made.c_str(), 0755), 0);
  ASSERT_EQ(::chown(made.c_str(), kNobody, 0), 0);
  EXPECT_EQ(ensure_root_directory(made, 0755).error().code, EPERM);
}

// As all can of /run, and could of what earlier releases made.
TEST_F(StateTest, WhoKeepsTheDirectoryAboveLockedHoldsUpNoHelper) {
  with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
    locked->lock(::open(scratch_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    m->check(is_soon_done([&] { return StateDir::open(path_).ok(); }), "it is opened");
  });
}

TEST_F(StateTest, UsersCannotListIt) {
  ASSERT_EQ(::chmod(path_.c_str(), 0755), 0);
  ASSERT_TRUE(StateDir::open(path_).ok());
  EXPECT_EQ(mode_of(path_), 0711u) << "nor keep it locked in the kernel";
  const std::string others = scratch_.dir("others");
  ASSERT_EQ(::chmod(others.c_str(), 0755), 0);
  ASSERT_TRUE(StateDir::open(others).ok());
  EXPECT_EQ(mode_of(others), 0755u) << "what nothing of ours is in may be a mistake";
}

TEST_F(StateTest, IsNoneOnAFileSystemThatNodesMayShare) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  const auto answer = [](const fuse_in_header& in, char* bytes) -> std::optional<int> {
    if (in.opcode == FUSE_STATFS) return sizeof(fuse_statfs_out);
    if (in.opcode != FUSE_GETATTR) return -ENOSYS;
    fuse_attr_out attributes = {};
    attributes.attr.ino = 1;
    attributes.attr.mode = S_IFDIR | 0711;
    std::memcpy(bytes, &attributes, sizeof attributes);
    return sizeof attributes;
  };
  scratch_.dir("shared");
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    const int fd = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
    const std::string options = "fd=" + std::to_string(fd) + ",rootmode=40000,user_id=0,group_id=0";
    m->check(::mount("test", (scratch_ / "shared").c_str(), "fuse", 0, options.c_str()) == 0, "mount");
    const pid_t server = ::fork();
    if (server == 0) serve_fuse(fd, answer);
    const Result<StateDir> state = StateDir::open(scratch_ / "shared");
    m->check(!state.ok() && state.error().code == EREMOTE, state.ok() ? "it is one" : state.error().text);
    end_child(server);
  });
}

TEST_F(StateTest, HasNoRoomOnAFileSystemThatIsFullOrReadOnly) {
  EXPECT_TRUE(check_state_room(scratch_ / "not/yet/there").ok());
  scratch_.dir("full");
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    for (const auto& [options, told] :
         std::map<std::string, std::string>{{"size=32k", "K free; remove what fills it, or name another"},
                                            {"size=1m,nr_inodes=8", "has only 7 inodes free; "},
                                            {"ro", "is mounted read-only; mount it read-write, or name"}}) {
      const unsigned long flags = options == "ro" ? MS_RDONLY : 0;
      const char* const data = options == "ro" ? "" : options.c_str();
      m->check(::mount("none", (scratch_ / "full").c_str(), "tmpfs", flags, data) == 0, options);
      for (const char* below : {"full", "full/a/b"})
        m->check(check_state_room(scratch_ / below).error().text.find(told) != std::string::npos, told);
    }
  });
}

TEST_F(StateTest, IsMadeWithItsParentsAndRefusedIfAnyOfItIsAnothers) {
  const mode_t before = ::umask(0077);
  const Result<StateDir> deep = StateDir::open(scratch_ / "a/b/c");
  ::umask(before);
  ASSERT_TRUE(deep.ok()) << deep.error().text;
  for (const auto& [name, mode] : {std::pair("a", 0755u), {"a/b", 0755u}, {"a/b/c", 0711u}})
    EXPECT_EQ(mode_of(scratch_ / name), mode) << name;
  for (const char* name : {"", "/jobs", "/removing", "/grants", "/run", "/spool"}) {
    const std::string part = path_ + name;
    ASSERT_EQ(::chown(part.c_str(), kNobody, 0), 0);
    const Result<StateDir> state = StateDir::open(path_);
    ASSERT_FALSE(state.ok()) << part;
    EXPECT_EQ(state.error().code, EPERM);
    ASSERT_EQ(::chown(part.c_str(), 0, 0), 0);
  }
  EXPECT_TRUE(StateDir::open(path_).ok());
}

TEST_F(StateTest, ALockIsThatOfTheDirectoryThatIsThere) {
  const std::string dir = scratch_.dir("locked");
  Fd first = lock_if_free(dir);
  ASSERT_TRUE(first);
  EXPECT_FALSE(lock_if_free(dir)) << "another has it";
  first.reset();
  EXPECT_TRUE(lock_if_free(dir));
  EXPECT_FALSE(lock_if_free(scratch_ / "missing"));
  ASSERT_EQ(::symlink(dir.c_str(), (scratch_ / "link").c_str()), 0);
  EXPECT_FALSE(lock_if_free(scratch_ / "link"));
  scratch_.file("file", "");
  EXPECT_FALSE(lock_if_free(scratch_ / "file"));
}

TEST_F(StateTest, AJobsDirectoryIsMadeOnlyIfThatIsWanted) {
  const JobOnNode job{7, "n1", "c"};
  EXPECT_EQ(state_.lock_job(job, false, 0).error().code, ENOENT);
  EXPECT_FALSE(fs::exists(path_ + "/jobs/c.7.n1"));
  Result<Fd> lock = state_.lock_job(job, true, 0);
  ASSERT_TRUE(lock.ok()) << lock.error().text;
  EXPECT_EQ(state_.jobs(), std::vector<std::string>{"c.7.n1"});
  EXPECT_EQ(state_.lock_job(job, true, 0).error().code, ETIMEDOUT);
  EXPECT_EQ(state_.lock_job(job, false, 20).error().code, ETIMEDOUT);
  clock_.at_pause(3, [&] { lock = Fd(); });
  EXPECT_TRUE(state_.lock_job(job, false, 30000).ok()) << "it is waited for";

  fs::remove(path_ + "/jobs/c.7.n1");
  scratch_.file("state/jobs/c.7.n1", "");
  EXPECT_EQ(state_.lock_job(job, true, 0).error().code, ENOTDIR);
  fs::remove(path_ + "/jobs/c.7.n1");
  ASSERT_EQ(::symlink((scratch_.dir("other")).c_str(), (path_ + "/jobs/c.7.n1").c_str()), 0);
  EXPECT_FALSE(state_.lock_job(job, true, 0).ok());
}

// Removed, or made anew, between the moments that it is opened and locked.
TEST_F(StateTest, ALockOnWhatHasLostItsNameIsNone) {
  const JobOnNode job{7, "n1", "c"};
  const std::string dir = path_ + "/jobs/c.7.n1";
  for (const bool anew : {false, true}) {
    const auto locked = [&](const std::function<Fd()>& lock) {
      EXPECT_TRUE(state_.lock_job(job, true, 0).ok());
      return in_child([&] {
        bool done = false;
        const auto replace = [&](CallArguments) {
          if (std::exchange(done, true)) return 0;
          fs::rename(dir, scratch_ / "before");
          if (anew) fs::create_directory(dir);
          return 0;
        };
        if (!before_call(SYS_flock, replace)) return 99;
        const Fd held = lock();
        fs::remove(scratch_ / "before");
        struct stat its, there;
        if (!held) return 1;
        return ::fstat(held.get(), &its) == 0 && ::stat(dir.c_str(), &there) == 0 &&
                       its.st_ino == there.st_ino
                   ? 0
                   : 2;
      });
    };
    const auto lock_job = [&](bool make, int patience_ms) {
      Result<Fd> lock = state_.lock_job(job, make, patience_ms);
      return lock.ok() ? lock.take() : Fd();
    };
    const int status = locked([&] { return lock_if_free(dir); });
    if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
    EXPECT_EQ(status, 1) << anew;
    EXPECT_EQ(locked([&] { return lock_job(false, 0); }), 1) << anew;
    EXPECT_EQ(locked([&] { return lock_job(true, 0); }), 1) << anew << ": there is no time for another try";
    EXPECT_EQ(locked([&] { return lock_job(true, 30000); }), 0) << anew;
  }
}

TEST_F(StateTest, TheLedgersLockIsWaitedForWithABound) {
  Result<Fd> lock = state_.lock_ledger(0);
  ASSERT_TRUE(lock.ok());
  const int64_t begin = clock_.now_ms();
  EXPECT_EQ(state_.lock_ledger(40).error().code, ETIMEDOUT);
  EXPECT_GE(clock_.now_ms() - begin, 40);
  clock_.at_pause(3, [&] { lock = Fd(); });
  EXPECT_TRUE(state_.lock_ledger(30000).ok());
  fs::remove(path_ + "/ledger");
  ASSERT_EQ(::symlink((scratch_.file("file", "")).c_str(), (path_ + "/ledger").c_str()), 0);
  EXPECT_EQ(state_.lock_ledger(0).error().code, ELOOP);
}

TEST_F(StateTest, ListsPlainNamesAndSaysWhatItCannotRead) {
  for (const char* name : {"a.1.n", ".hidden", "b c", "x~"}) scratch_.dir(std::string("state/jobs/") + name);
  const Result<std::vector<std::string>> found = state_.list("jobs");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, std::vector<std::string>{"a.1.n"});
  EXPECT_EQ(state_.list("missing").error().code, ENOENT);
  fs::remove_all(path_ + "/jobs");
  EXPECT_TRUE(state_.jobs().empty());
}

TEST_F(StateTest, AFileIsWrittenWholeAndNeverThroughALink) {
  const mode_t before = ::umask(0077);
  ASSERT_TRUE(state_.write("file", "text", 0644).ok());
  ::umask(before);
  EXPECT_EQ(mode_of(path_ + "/file"), 0644u);
  EXPECT_EQ(*state_.read("file"), "text");
  ASSERT_TRUE(state_.write("file", std::string(10000, 'x')).ok()) << "longer than what is read at once";
  EXPECT_EQ(*state_.read("file"), std::string(10000, 'x'));

  const std::string foreign = scratch_.file("foreign", "foreign");
  ASSERT_EQ(::symlink(foreign.c_str(), (path_ + "/link.new").c_str()), 0);
  EXPECT_EQ(state_.write("link", "mine").error().code, ELOOP);
  EXPECT_EQ(contents(foreign), "foreign");
  ASSERT_EQ(::symlink(foreign.c_str(), (path_ + "/link").c_str()), 0);
  EXPECT_EQ(state_.read("link").error().code, ELOOP);

  EXPECT_EQ(state_.write("missing/file", "").error().code, ENOENT);
  EXPECT_EQ(state_.read("missing").error().code, ENOENT);
  EXPECT_EQ(state_.read("jobs").error().code, EISDIR);
  EXPECT_EQ(state_.write("jobs", "").error().code, EISDIR) << "in the place of a directory";
  if (::access("/dev/full", W_OK) == 0) {
    ASSERT_EQ(::mknod((path_ + "/full.new").c_str(), S_IFCHR | 0600, makedev(1, 7)), 0);
    EXPECT_EQ(state_.write("full", "text").error().code, ENOSPC);
    EXPECT_FALSE(fs::exists(path_ + "/full")) << "not half of it";
  }
}

TEST_F(StateTest, ARecordIsReadAsItWasWritten) {
  ASSERT_TRUE(state_.lock_job(record().job, true, 0).ok());
  const std::string file = path_ + "/jobs/c.7.n1/record.json";
  JobRecord r = record();
  ASSERT_TRUE(state_.write_record(r).ok());
  Result<JobRecord> read = state_.read_record("c.7.n1");
  ASSERT_TRUE(read.ok()) << read.error().text;
  EXPECT_FALSE(read->peers || !read->first_node) << "what it does not say is not so";
  EXPECT_EQ(read->memory + read->given_up, 0u);
  EXPECT_EQ(read->next_try, 0);
  EXPECT_FALSE(has(contents(file), "given_up")) << "of removals alone";
  r.restart = 3;
  r.nodes = 5;
  r.first_node = false;
  r.peers = true;
  r.tiers.push_back({"nvme", "nvme", "/tier", TierConfig::Kind::kDirectory, 10, 20, {}, 15});
  r.tiers.push_back({"ram", "ram", "/ram", TierConfig::Kind::kTmpfs, 30, 40, 5});
  r.tiers[1].to_job = true;
  r.memory = uint64_t{1} << 40;
  r.serves = "/data\xff:/m\u00fc\x80";
  r.no_peers = r.remark = r.report_file = r.memory_group = "\"no_default\": ";
  r.wait_percent = 80;
  r.wait_until_ms = r.alone_since = r.memory_looked = r.submit = r.start = 7;
  r.next_ask = -1;
  r.user.groups = {5, 6};
  r.anchors = r.stepd = r.hanging = {{7, 8}, {9, 10}};
  r.late = r.closing_line = r.hints = r.suspended = r.memory_told = r.shared_group = r.stopping =
      r.accounted = true;
  for (const bool is_removal : {false, true}) {
    if (is_removal) {
      r.given_up = 2;
      r.next_try = 1234567890123;
    }
    ASSERT_TRUE(state_.write_record(r).ok());
    const std::string text = contents(file);
    read = state_.read_record("c.7.n1");
    ASSERT_TRUE(read.ok()) << read.error().text;
    ASSERT_TRUE(state_.write_record(*read).ok());
    EXPECT_EQ(contents(file), text) << "nothing of it is lost";
    EXPECT_EQ(read->job.key(), "c.7.n1");
    EXPECT_EQ(read->serves, r.serves);
    EXPECT_FALSE(has(text, "\"no_default\":")) << "the plugin looks for that";
    EXPECT_TRUE(read->anchors == r.anchors && read->user.groups == r.user.groups);
    ASSERT_EQ(read->tiers.size(), 2u);
    const TierRecord &nvme = read->tiers[0], &ram = read->tiers[1];
    EXPECT_EQ(nvme.charged(), 10u);
    EXPECT_EQ(nvme.share, 15u);
    EXPECT_TRUE(!nvme.occupied && !nvme.to_job && ram.to_job);
    EXPECT_EQ(ram.quota, 30u);
    EXPECT_EQ(ram.charged(), 5u);
  }
  r.tiers[0].path = "/tier\xff";
  EXPECT_EQ(state_.write_record(r).error().code, EINVAL) << "not UTF-8";
}

// The second tier is charged to the job, and its agent does not make way by itself.
TEST_F(StateTest, AnOlderRecordsJobHasWhatItHasGot) {
  ASSERT_TRUE(state_.lock_job(record().job, true, 0).ok());
  std::ofstream(path_ + "/jobs/c.7.n1/record.json")
      << R"({"job":7,"node":"n1","restart":0,"cluster":"c","name":"c.7.0.n1","uid":1,"gid":1,)"
         R"("pid":5,"start_time":6,"boot":"b","run_dir":"/r","tiers":[{"name":"t",)"
         R"("medium":"nvme","path":"/s","quota":5},{"name":"u","medium":"ram","path":"/u","quota":5,)"
         R"("share":9,"reserved":4,"asked":4,"room":4}],"serial":7,"nodes":1,"first_node":true})";
  const Result<JobRecord> old = state_.read_record("c.7.n1");
  ASSERT_TRUE(old.ok()) << old.error().text;
  for (const TierRecord& tier : old->tiers)
    EXPECT_TRUE(tier.quota == 5 && tier.share == 5 && !tier.to_job) << tier.name;
}

TEST_F(StateTest, ASpoiltRecordIsNoRecord) {
  ASSERT_TRUE(state_.lock_job(record().job, true, 0).ok());
  EXPECT_TRUE(with("\"c.7.0.n1\"", "\"other\"").ok()) << "this would be seen";
  const std::vector<std::pair<std::string, std::string>> spoilt = {
      {"\"c.7.0.n1\"", "\"\""},
      {"\"c.7.0.n1\"", "\"..\""},
      {"\"c.7.0.n1\"", "\"../../etc\""},
      {"\"c.7.0.n1\"", "\"a\\u0000b\""},
      {"\"cluster\": \"c\"", "\"cluster\": \"../c\""},
      {"\"node\": \"n1\"", "\"node\": \"n/1\""},
      {"\"/run/x\"", "\"run/x\""},
      {"\"/run/x\"", "\"\""},
      {"\"/run/x\"", "\"/run\\u0000x\""},
      {"\"pid\": 12", "\"pid\": -1"},
      {"\"pid\": 12", "\"pid\": \"12\""},
      {"\"pid\": 12", "\"pid\": 12.5"},
      {"\"serial\": 99", "\"serial\": 2e99"},
      {"\"serial\"", "\"cereal\""},
      {"{", "["},
      {"{", "x{"},
  };
  for (const auto& [was, is] : spoilt) EXPECT_EQ(with(was, is).error().code, EINVAL) << is;
  scratch_.file("state/jobs/c.7.n1/record.json", "[]");
  EXPECT_EQ(state_.read_record("c.7.n1").error().code, EINVAL);
  EXPECT_EQ(state_.read_record("c.8.n1").error().code, ENOENT);
}

TEST_F(StateTest, ARemovalIsLockedBeforeItIsSeen) {
  Result<Fd> lock = state_.make_removal(record());
  ASSERT_TRUE(lock.ok()) << lock.error().text;
  EXPECT_EQ(state_.removals(), std::vector<std::string>{"c.7.0.n1.99"});
  EXPECT_FALSE(lock_if_free(path_ + "/removing/c.7.0.n1.99"));
  EXPECT_EQ(state_.read_removal("c.7.0.n1.99")->name, "c.7.0.n1");
  EXPECT_FALSE(state_.make_removal(record()).ok()) << "one of that name is there";
  EXPECT_FALSE(fs::exists(path_ + "/removing/.new.c.7.0.n1.99")) << "what failed leaves nothing behind";
  JobRecord bad = record(8);
  bad.run_dir = "/\xff";
  EXPECT_EQ(state_.make_removal(bad).error().code, EINVAL);
  EXPECT_FALSE(fs::exists(path_ + "/removing/.new." + bad.removal()));
  scratch_.dir("state/removing/.new." + record(9).removal());
  EXPECT_TRUE(state_.make_removal(record(9)).ok()) << "who made that was killed";
}

}  // namespace
}  // namespace monarch
