// SPDX-License-Identifier: Apache-2.0
// runtime/store: what root's store answers, what the owner of a job can do to it, and its faults. What an
// agent does with it is tested by the tests of tiers and placement (tests/store.t).
#include "runtime/store/store.h"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/xattr.h>

#include <optional>

#include "tests/faulty_os.h"
#include "tests/logged.h"
#include "tests/quiet.h"
#include "tests/stores.h"
#include "tests/tiers.h"

namespace monarch {
namespace {

constexpr uint64_t kUnit = 4096, kShare = 100 * kUnit;
constexpr Ref kCopied = 0xabcd, kAnother = 0xbeef;
constexpr timespec kSourceTime = {1234567, 123456789};

StoreAsk ask_for(AskKind kind, Ref ref = 0, uint32_t slot = 0, uint64_t bytes = 0, Ref other = 0) {
  StoreAsk ask;
  ask.kind = static_cast<uint32_t>(kind);
  ask.slot = slot;
  ask.ref = ref;
  ask.other = other;
  ask.bytes = bytes;
  ask.mtime = kSourceTime;
  return ask;
}

// By its answers alone.
class StoreTest : public ::testing::TestWithParam<const char*> {
 protected:
  StoreTest() { ::signal(SIGIO, SIG_IGN); }
  StoreServer& server() {
    if (!server_) {
      const Intercept opens(Call::kOpenat, [](Arguments& a) {
        return std::string(GetParam()) != "Tmpfile" && (a.flags & O_TMPFILE) == O_TMPFILE ? EOPNOTSUPP : 0;
      });
      server_.emplace(
          Fd(::open(job_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), "ssd", [this] { return granted_; },
          clock_);
    }
    return *server_;
  }
  int ask(const StoreAsk& ask) {
    const StoreServer::Answer answer = server().answer(ask);
    came_ = Fd(answer.fd < 0 ? -1 : ::fcntl(answer.fd, F_DUPFD_CLOEXEC, 0));
    used_ = answer.told.used / kUnit;
    EXPECT_EQ(answer.told.slot, ask.slot);
    return answer.told.error;
  }
  // A new file of a slot, with that in it.
  Fd fill(uint32_t slot, const std::string& content) {
    EXPECT_EQ(ask(ask_for(AskKind::kNew, 0, slot)), 0);
    EXPECT_EQ(::pwrite(came_.get(), content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
    return std::move(came_);
  }
  // A copy; the descriptor that its agent has of it.
  Fd publish(Ref ref, const std::string& content) {
    Fd file = fill(7, content);
    EXPECT_EQ(ask(ask_for(AskKind::kPublish, ref, 7, content.size())), 0);
    return file;
  }
  std::string path_of(Ref ref) const {
    char name[kCopyNameBytes];
    copy_name(ref, name);
    return job_ + "/" + name;
  }
  int names() const {
    int names = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(job_))
      names += !entry.is_directory() && entry.path().parent_path().filename() != "new";
    return names;
  }
  static struct stat look(const std::string& path) {
    struct stat st = {};
    EXPECT_EQ(::stat(path.c_str(), &st), 0) << path;
    return st;
  }

  ManualClock clock_;
  Scratch scratch_;
  const std::string job_ = scratch_.dir("job");
  uint64_t granted_ = kShare;
  std::optional<StoreServer> server_;
  Fd came_;            // with the last answer
  uint64_t used_ = 0;  // blocks, by the last answer
};
INSTANTIATE_TEST_SUITE_P(FileSystems, StoreTest, ::testing::Values("Tmpfile", "NoTmpfile"),
                         [](const auto& info) { return std::string(info.param); });

// ---- what it does

TEST_P(StoreTest, ACopyHasItsTimesAndOthersRead) {
  const mode_t old = ::umask(0);
  publish(kCopied, "content");
  ::umask(old);
  const struct stat copy = look(path_of(kCopied));
  EXPECT_EQ(contents(path_of(kCopied)), "content");
  EXPECT_EQ(copy.st_mode, S_IFREG | 0644u);
  EXPECT_EQ(copy.st_nlink, 1u);
  EXPECT_TRUE(same_time(copy.st_mtim, kSourceTime));
  EXPECT_EQ(look(job_ + "/cd").st_mode, S_IFDIR | 0711u);
  EXPECT_EQ(look(job_ + "/part").st_mode, S_IFDIR | 0711u);
  EXPECT_EQ(names(), 1);
  ASSERT_TRUE(came_) << "the slot has a new file";
  struct stat st;
  ASSERT_EQ(::fstat(came_.get(), &st), 0);
  EXPECT_EQ(st.st_size, 0);
  EXPECT_NE(st.st_ino, copy.st_ino);
  EXPECT_EQ(ask(ask_for(AskKind::kPublish, kAnother, 7)), 0);
  EXPECT_EQ(look(path_of(kAnother)).st_ino, st.st_ino) << "and that is the next copy";
}

TEST_P(StoreTest, WrongFieldsAreRefusedAndNameNothing) {
  fill(0, "content");
  const StoreAsk right = ask_for(AskKind::kPublish, kCopied, 0, 7);
  const auto refused = [&](int error, const std::function<void(StoreAsk*)>& change) {
    StoreAsk wrong = right;
    change(&wrong);
    const int got = ask(wrong);
    return got == error && !came_ && names() == 0 && used_ == 0;
  };
  const auto kind = [](AskKind value) { return static_cast<uint32_t>(value); };
  EXPECT_TRUE(refused(EINVAL, [](StoreAsk* a) { a->kind = 0; }));
  EXPECT_TRUE(refused(EINVAL, [](StoreAsk* a) { a->kind = kLastAskKind + 1; }));
  EXPECT_TRUE(refused(EINVAL, [](StoreAsk* a) { a->slot = kStoreSlots; }));
  EXPECT_TRUE(refused(EINVAL, [](StoreAsk* a) { a->slot = 1; })) << "nothing is in it";
  EXPECT_TRUE(refused(EINVAL, [](StoreAsk* a) { a->ref = 0; }));
  EXPECT_TRUE(refused(EINVAL, [](StoreAsk* a) { a->zero = 1; }));
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{6}, uint64_t{8}, UINT64_MAX})
    EXPECT_TRUE(refused(EINVAL, [&](StoreAsk* a) { a->bytes = bytes; })) << bytes;
  for (const long ns : {UTIME_NOW, UTIME_OMIT, -1l, 1'000'000'000l}) {
    EXPECT_TRUE(refused(EINVAL, [&](StoreAsk* a) { a->mtime.tv_nsec = ns; })) << ns;
    EXPECT_TRUE(refused(EINVAL, [&](StoreAsk* a) { a->atime.tv_nsec = ns; })) << ns;
  }
  EXPECT_TRUE(refused(EINVAL, [&](StoreAsk* a) { a->kind = kind(AskKind::kPart), a->slot = 1; }));
  EXPECT_TRUE(refused(EINVAL, [&](StoreAsk* a) { a->kind = kind(AskKind::kLink); }));
  EXPECT_TRUE(refused(EINVAL, [&](StoreAsk* a) { a->kind = kind(AskKind::kLink), a->other = kCopied; }));
  EXPECT_TRUE(refused(ENOENT, [&](StoreAsk* a) { a->kind = kind(AskKind::kLink), a->other = kAnother; }));
  EXPECT_TRUE(refused(ENOENT, [&](StoreAsk* a) { a->kind = kind(AskKind::kFinish); }));
  EXPECT_TRUE(refused(ENOENT, [&](StoreAsk* a) { a->kind = kind(AskKind::kReopen); }));
  EXPECT_EQ(ask(right), 0) << "the file was not touched";
  EXPECT_EQ(ask(ask_for(AskKind::kFinish, kCopied, 0, 7)), ENOENT) << "it is no partial copy";
}

TEST_P(StoreTest, APartialCopyHasACopysNameOnceItIsWhole) {
  const std::string part = job_ + "/part/0000abcd";
  fill(3, "");
  EXPECT_EQ(ask(ask_for(AskKind::kPart, kCopied, 3, 10 * kUnit)), 0);
  EXPECT_TRUE(came_) << "a new file for the slot";
  EXPECT_EQ(used_, 10u) << "what it will take";
  EXPECT_EQ(ask(ask_for(AskKind::kReopen, kCopied)), 0);
  ASSERT_EQ(::pwrite(came_.get(), "whole", 5, 0), 5);
  EXPECT_EQ(contents(part), "whole");
  EXPECT_EQ(ask(ask_for(AskKind::kLink, kCopied, 0, 0, kAnother)), ENOENT) << "no copy yet";
  EXPECT_EQ(ask(ask_for(AskKind::kFinish, kCopied, 0, 4)), EINVAL) << "of another size";
  EXPECT_EQ(ask(ask_for(AskKind::kFinish, kCopied, 0, 5)), 0);
  EXPECT_EQ(contents(path_of(kCopied)), "whole");
  EXPECT_TRUE(same_time(look(path_of(kCopied)).st_mtim, kSourceTime));
  EXPECT_EQ(names(), 1);
  EXPECT_EQ(used_, 1u);
}

// ---- what it counts

TEST_P(StoreTest, CountsWholeBlocksOfWhatIsThere) {
  publish(1, "");
  EXPECT_EQ(used_, 1u) << "a name";
  publish(2, noise(kUnit, 1));
  publish(3, noise(kUnit + 1, 1));
  EXPECT_EQ(used_, 4u);
  const Fd sparse = fill(7, "");
  ASSERT_EQ(::ftruncate(sparse.get(), 50 * kUnit), 0);
  EXPECT_EQ(ask(ask_for(AskKind::kPublish, 4, 7, 50 * kUnit)), 0);
  EXPECT_EQ(used_, 5u) << "holes take nothing";
  for (const Ref ref : {1u, 2u, 3u}) EXPECT_EQ(ask(ask_for(AskKind::kRemove, ref)), 0);
  EXPECT_EQ(used_, 1u);
  EXPECT_EQ(ask(ask_for(AskKind::kRemove, 1)), 0) << "it is gone already";
  EXPECT_EQ(used_, 1u);
}

TEST_P(StoreTest, MoreThanIsGrantedGetsNoName) {
  granted_ = 3 * kUnit;
  publish(kCopied, noise(kUnit, 1));
  const Fd file = fill(1, noise(2 * kUnit + 1, 1));
  EXPECT_EQ(ask(ask_for(AskKind::kPublish, kAnother, 1, 2 * kUnit + 1)), EDQUOT);
  EXPECT_EQ(ask(ask_for(AskKind::kPart, kAnother, 1, 2 * kUnit + 1)), EDQUOT);
  EXPECT_EQ(names(), 1);
  EXPECT_EQ(used_, 1u);
  granted_ = 4 * kUnit;
  EXPECT_EQ(ask(ask_for(AskKind::kPublish, kAnother, 1, 2 * kUnit + 1)), 0) << "it looks by itself";
  EXPECT_EQ(ask(ask_for(AskKind::kLink, kAnother, 0, 0, 5)), EDQUOT) << "a name counts, too";
  EXPECT_EQ(ask(ask_for(AskKind::kRemove, kCopied)), 0);
  EXPECT_EQ(ask(ask_for(AskKind::kLink, kAnother, 0, 0, 5)), 0);
  granted_ = 0;
  EXPECT_EQ(ask(ask_for(AskKind::kRoom)), 0);
  EXPECT_EQ(server().answer(ask_for(AskKind::kRoom)).told.granted, 4 * kUnit) << "it only grows";
}

TEST_P(StoreTest, AFileCountsUntilItHasNoName) {
  publish(kCopied, noise(10 * kUnit, 1));
  EXPECT_EQ(ask(ask_for(AskKind::kLink, kCopied, 0, 0, kAnother)), 0);
  EXPECT_EQ(used_, 11u);
  EXPECT_EQ(ask(ask_for(AskKind::kRemove, kCopied)), 0);
  EXPECT_EQ(used_, 11u) << "its bytes are there";
  EXPECT_EQ(ask(ask_for(AskKind::kRemove, kAnother)), 0);
  EXPECT_EQ(used_, 0u);
}

TEST_P(StoreTest, ARemovedFileCountsWhileSomebodyHasIt) {
  publish(kCopied, noise(10 * kUnit, 1));
  EXPECT_EQ(ask(ask_for(AskKind::kLook, kCopied)), 0);
  Fd reader(::open(path_of(kCopied).c_str(), O_RDONLY | O_CLOEXEC));
  const Fd held(::open(path_of(kCopied).c_str(), O_PATH | O_CLOEXEC));
  void* const map = ::mmap(nullptr, kUnit, PROT_READ, MAP_SHARED, reader.get(), 0);
  EXPECT_EQ(ask(ask_for(AskKind::kLook, kCopied)), EBUSY);
  EXPECT_EQ(ask(ask_for(AskKind::kRemove, kCopied)), 0);
  EXPECT_EQ(names(), 0);
  reader.reset();
  EXPECT_EQ(ask(ask_for(AskKind::kLook, kCopied)), EBUSY) << "it is mapped";
  publish(kCopied, noise(5 * kUnit, 1));
  EXPECT_EQ(used_, 15u);
  ::munmap(map, kUnit);
  granted_ = 0;
  EXPECT_EQ(ask(ask_for(AskKind::kPart, kAnother, 7, kShare - 5 * kUnit)), 0) << "it looks by itself";
  EXPECT_EQ(used_, kShare / kUnit);
}

TEST_P(StoreTest, WhatAStoreBeforeHasNamedCounts) {
  publish(kCopied, std::string(2 * kUnit, 'x'));
  EXPECT_EQ(ask(ask_for(AskKind::kLink, kCopied, 0, 0, kAnother)), 0);
  fill(3, "part");
  EXPECT_EQ(ask(ask_for(AskKind::kPart, 1, 3, kUnit)), 0);
  EXPECT_EQ(used_, 4u);
  server_.reset();
  EXPECT_EQ(ask(ask_for(AskKind::kRoom)), 0);
  EXPECT_EQ(used_, 3u) << "a partial copy is removed";
  for (const Ref ref : {kCopied, kAnother}) EXPECT_EQ(ask(ask_for(AskKind::kRemove, ref)), 0);
  EXPECT_EQ(used_, 0u);
  EXPECT_EQ(names(), 0);
}

TEST_P(StoreTest, ACopyReplacesTheOneBefore) {
  const Fd kept = publish(kCopied, "before");
  publish(kCopied, "content");
  EXPECT_EQ(contents(path_of(kCopied)), "content");
  EXPECT_EQ(used_, 2u) << "the agent has it open";
  publish(kAnother, "other");
  EXPECT_EQ(ask(ask_for(AskKind::kLink, kCopied, 0, 0, kAnother)), 0);
  EXPECT_EQ(contents(path_of(kAnother)), "content");
}

TEST_P(StoreTest, RemembersSoManyOpenFilesThatAreRemoved) {
  std::vector<Fd> kept;
  granted_ = 1000 * kUnit;
  for (Ref ref = 1; ref <= 257; ++ref) {
    kept.push_back(publish(ref, ""));
    EXPECT_EQ(ask(ask_for(AskKind::kRemove, ref)), ref <= 256 ? 0 : EBUSY) << ref;
  }
  EXPECT_EQ(names(), 1) << "one that cannot be remembered has its name still";
  publish(258, "").reset();
  EXPECT_EQ(ask(ask_for(AskKind::kRemove, 258)), 0) << "nobody has it open";
  kept[5].reset();
  EXPECT_EQ(ask(ask_for(AskKind::kRemove, 257)), 0);
  EXPECT_EQ(used_, 256u);
}

TEST_P(StoreTest, FilesWithoutANameTakeNoMoreThanIsGranted) {
  constexpr off_t kMuch = 200 << 20;
  const auto next = [&] { return clock_.advance_ms(1000), server().look(); };
  granted_ = kMuch;
  const Fd file = fill(0, "");
  ASSERT_EQ(::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, kMuch), 0);
  EXPECT_TRUE(next());
  ASSERT_EQ(::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, 2 * kMuch), 0);
  granted_ = 2 * kMuch;
  EXPECT_TRUE(next()) << "it looks for more";
  EXPECT_EQ(ask(ask_for(AskKind::kPart, kCopied, 1, kMuch)), EINVAL);
  const Fd part = fill(1, "");
  EXPECT_EQ(ask(ask_for(AskKind::kPart, kCopied, 1, kMuch)), 0);
  EXPECT_FALSE(next());
  struct stat st;
  ASSERT_EQ(::fstat(file.get(), &st), 0);
  EXPECT_EQ(st.st_blocks, 0) << "emptied";
}

// ---- faults of the tier

TEST_P(StoreTest, AnErrorOfTheTierIsToldAndLeavesNothing) {
  fill(0, "content");
  const StoreAsk right = ask_for(AskKind::kPublish, kCopied, 0, 7);
  for (const Call call : {Call::kFstat, Call::kFutimens, Call::kLinkat}) {
    const Intercept fails(call, EIO);
    EXPECT_EQ(ask(right), EIO);
    EXPECT_FALSE(came_);
    EXPECT_EQ(names(), 0);
    EXPECT_EQ(used_, 0u);
  }
  {
    const Intercept other(Call::kFstatResult, [](Arguments& a) { return a.st->st_mtim.tv_nsec = 0, 0; });
    EXPECT_EQ(ask(right), EOVERFLOW) << "it does not keep times";
  }
  {
    const Intercept opens(Call::kOpenat, EMFILE);
    EXPECT_EQ(ask(right), 0);
    EXPECT_FALSE(came_) << "the copy is there, and no next file";
    EXPECT_EQ(ask(ask_for(AskKind::kNew)), EMFILE);
    EXPECT_EQ(ask(ask_for(AskKind::kLook, kCopied)), EMFILE);
    EXPECT_EQ(ask(ask_for(AskKind::kRemove, kCopied)), EMFILE);
  }
  {
    const Intercept removals(Call::kUnlinkat, EIO);
    EXPECT_EQ(ask(ask_for(AskKind::kRemove, kCopied)), EIO);
  }
  EXPECT_EQ(contents(path_of(kCopied)), "content");
  EXPECT_EQ(used_, 1u);
}

TEST_P(StoreTest, AFileSystemWithoutNanosecondsIsNoTier) {
  const Intercept times(Call::kFstatResult, [](Arguments& a) { return a.st->st_mtim.tv_nsec = 0, 0; });
  EXPECT_EQ(ask(ask_for(AskKind::kNew)), EOPNOTSUPP);
}

// ---- faults of the agent, and of the store

// A store, and its agent's ends.
class ServedStoreTest : public ::testing::Test {
 protected:
  ServedStoreTest() { ::signal(SIGPIPE, SIG_IGN); }  // as the agent ignores it
  ~ServedStoreTest() override {
    pipes_.asks.reset();
    pipes_.told.reset();
    if (thread_.joinable()) thread_.join();
  }
  void serve() {
    thread_ = std::thread([this] {
      StoreServer server(
          open_directory(), "ssd", [] { return kShare; }, clock_);
      result_ = server.serve(pipes_.requests.get(), pipes_.answers.get()) ? 1 : 0;
      pipes_.requests.reset();
      pipes_.answers.reset();
    });
  }
  Fd open_directory() { return Fd(::open(job_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); }
  bool ends_with(int result) {
    return eventually([&] { return result_ == result; });
  }
  StoreEnds ends() { return {"ssd", pipes_.asks.release(), pipes_.told.release()}; }
  Tier open_tier(const StoreEnds& root) {
    Result<Tier> tier = Tier::open(config_, "job", clock_, &root);
    EXPECT_TRUE(tier.ok()) << tier.error().text;
    return tier.take();
  }

  ManualClock clock_;
  Scratch scratch_;
  const TierConfig config_ = tier_config(scratch_, "ssd", 0);
  const std::string job_ = scratch_.dir("ssd/job");
  StorePipes pipes_;
  std::atomic<int> result_{-1};
  std::thread thread_;
};

TEST_F(ServedStoreTest, EndsAtAPartOfARequest) {
  serve();
  const StoreAsk ask = ask_for(AskKind::kNew);
  ASSERT_EQ(::write(pipes_.asks.get(), &ask, sizeof ask - 1), static_cast<ssize_t>(sizeof ask - 1));
  EXPECT_TRUE(ends_with(0));
}

TEST_F(ServedStoreTest, EndsWhereFilesWithoutANameTakeTooMuch) {
  serve();
  EXPECT_TRUE(eventually(others_sleep));
  const Intercept much(Call::kFstatResult, [](Arguments& a) { return a.st->st_blocks = 1 << 30, 0; });
  clock_.advance_ms(1000);
  EXPECT_TRUE(ends_with(0));
}

TEST_F(ServedStoreTest, TakesNoDescriptors) {
  serve();
  const StoreAsk ask = ask_for(AskKind::kNew);
  ASSERT_EQ(::write(pipes_.asks.get(), &ask, sizeof ask), static_cast<ssize_t>(sizeof ask));
  StoreTold told;
  ASSERT_EQ(::recv(pipes_.told.get(), &told, sizeof told, 0), static_cast<ssize_t>(sizeof told));
  EXPECT_EQ(::send(pipes_.told.get(), &told, sizeof told, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST_F(ServedStoreTest, WaitsForOneWhoTakesNoAnswers) {
  serve();
  ::fcntl(pipes_.asks.get(), F_SETFL, O_NONBLOCK);
  const StoreAsk ask = ask_for(AskKind::kNew);
  EXPECT_TRUE(eventually([&] {
    while (::write(pipes_.asks.get(), &ask, sizeof ask) > 0) continue;
    return others_sleep();
  })) << "it takes no more requests";
  pipes_.told.reset();
  EXPECT_TRUE(ends_with(1));
}

TEST_F(ServedStoreTest, AKilledStoreClosesItsTierForGood) {
  const pid_t store = ::fork();
  if (store == 0) {
    pipes_.asks.reset();
    pipes_.told.reset();
    StoreServer(open_directory(), "ssd", [] {
      return kShare;
    }).serve(pipes_.requests.get(), pipes_.answers.get());
    ::_exit(0);
  }
  pipes_.requests.reset();
  pipes_.answers.reset();
  Tier tier = open_tier(ends());
  ASSERT_TRUE(tier.reserve(1));
  {
    const Result<Fd> file = tier.create(kCopied, 0);
    ASSERT_TRUE(file.ok() && publish(&tier, *file, kCopied).ok());
  }
  const Result<Fd> half = tier.create(kAnother, 0);
  ::kill(store, SIGKILL);
  ASSERT_EQ(::waitpid(store, nullptr, 0), store);
  const std::string log = logged(scratch_, [&] {
    const Status published = publish(&tier, *half, kAnother);
    EXPECT_EQ(published.error().code, EPIPE);
    tier.discard(kAnother);
    tier.close(published.error().text);
    EXPECT_EQ(tier.create(kAnother, 0).error().code, EPIPE);
    EXPECT_FALSE(tier.remove(kCopied));
    EXPECT_TRUE(tier.is_open(kCopied, Fd()));
    clock_.advance_ms(3600 * 1000);
    EXPECT_FALSE(tier.probe());
  });
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_TRUE(tier.closed());
  EXPECT_FALSE(tier.may_recover());
  EXPECT_FALSE(tier.reserve(1));
  EXPECT_TRUE(tier.open_copy(kCopied)) << "copies stay";
}

TEST_F(ServedStoreTest, ConfinedItOwnsFilesAndNothingElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root's rights";
  const std::string others = scratch_.file("others", "");
  ASSERT_TRUE(::chown(others.c_str(), 65534, 65534) == 0 && ::chmod(others.c_str(), 0600) == 0);
  EXPECT_EQ(
      in_child([&] {
        if (!confine_store().ok()) return 1;
        const std::string status = contents("/proc/self/status");
        for (const char* line : {"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
                                 "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n"})
          if (!has(status, line)) return 2;
        if (::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0 || ::geteuid() != 0) return 3;
        if (::open(others.c_str(), O_RDONLY) >= 0 || ::chown(job_.c_str(), 1, 1) == 0) return 4;
        StoreServer server(open_directory(), "ssd", [] { return kShare; });
        for (const StoreAsk& ask :
             {ask_for(AskKind::kNew), ask_for(AskKind::kPublish, kCopied), ask_for(AskKind::kLook, kCopied),
              ask_for(AskKind::kLink, kCopied, 0, 0, kAnother), ask_for(AskKind::kRemove, kCopied)})
          if (server.answer(ask).told.error != 0) return static_cast<int>(10 + ask.kind);
        return 0;
      }),
      0);
}

TEST_F(ServedStoreTest, ATierOverItsShareOpensOnceThereIsMore) {
  StoreThread store(config_, "beside", 2 * kUnit);
  Result<Tier> tier = Tier::open(config_, "beside", clock_, &store.ends());
  ASSERT_TRUE(tier.ok());
  EXPECT_EQ(tier->quota(), 2 * kUnit);
  EXPECT_FALSE(tier->reserve(2 * kUnit + 1));
  tier->set_quota(kShare);  // more than root grants
  ASSERT_TRUE(tier->reserve(3 * kUnit));
  const Result<Fd> file = tier->create(kCopied, 0);
  ASSERT_EQ(::ftruncate(file->get(), 3 * kUnit), 0);
  ASSERT_EQ(::fallocate(file->get(), 0, 0, 3 * kUnit), 0);
  const Status published = publish(&*tier, *file, kCopied);
  EXPECT_EQ(published.error().code, EDQUOT);
  tier->close(published.error().text);
  clock_.advance_ms(10'000);
  EXPECT_FALSE(tier->probe());
  store.grant(3 * kUnit);
  clock_.advance_ms(20'000);
  EXPECT_TRUE(tier->probe());
  EXPECT_TRUE(publish(&*tier, *file, kCopied).ok());
}

TEST_F(ServedStoreTest, ATierThatHangsHoldsUpItsOwnStoreAlone) {
  serve();
  Tier tier = open_tier(ends());
  const TierConfig other = tier_config(scratch_, "other", 0);
  StoreThread store(other, "job", kShare);
  Result<Tier> beside = Tier::open(other, "job", clock_, &store.ends());
  ASSERT_TRUE(beside.ok());
  const Result<Fd> file = tier.create(kCopied, 0), aside = beside->create(kCopied, 0);
  ASSERT_TRUE(file.ok() && aside.ok());
  std::atomic<bool> first{true};
  Held links(Call::kLinkat, 0, [&](const Arguments&) { return first.exchange(false); });
  std::thread hangs([&] { EXPECT_TRUE(publish(&tier, *file, kCopied).ok()); });
  EXPECT_TRUE(eventually([&] { return links.is_reached(); }));
  EXPECT_TRUE(publish(&*beside, *aside, kCopied).ok());
  links.go_on();
  hangs.join();
}

// ---- what the owner of a job can do with the agent's descriptors; with names: slurm_hostile.t

TEST_F(ServedStoreTest, OwnersAttacksFail) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root's files and another user";
  for (const std::string& path : {scratch_.path(), config_.path, job_})
    ASSERT_EQ(::chmod(path.c_str(), 0711), 0);
  const std::string stolen = scratch_.dir("pub") + "/stolen";
  ASSERT_EQ(::chmod((scratch_ / "pub").c_str(), 01777), 0);
  const mode_t old = ::umask(0);
  serve();
  Tier tier = open_tier(ends());
  const Result<Fd> loose = tier.create(kAnother, 0), kept = tier.create(kCopied, 0);
  ASSERT_TRUE(loose.ok() && kept.ok());
  ASSERT_EQ(::pwrite(kept->get(), "content", 7, 0), 7);
  ASSERT_TRUE(publish(&tier, *kept, kCopied).ok());
  ::umask(old);
  const std::string copy = path_of_copy(tier, kCopied), self = "/proc/self/fd/",
                    file = self + std::to_string(loose->get());
  const char *c = copy.c_str(), *f = file.c_str(), *s = stolen.c_str();
  const auto read_only = [c] { return ::open(c, O_RDONLY | O_CLOEXEC); };
  int flags = FS_NODUMP_FL;
  const timespec times[2] = {};
  const struct Attack {
    const char* name;
    int error;
    std::function<long()> run;
  } attacks[] = {
      {"chmod", EPERM, [&] { return ::fchmod(loose->get(), 0777); }},
      {"chown", EPERM, [&] { return ::fchown(loose->get(), 65534, 65534); }},
      {"write a reader", EACCES,
       [&] { return ::open((self + std::to_string(read_only())).c_str(), O_RDWR); }},
      {"open it anew", EACCES, [&] { return ::open(f, O_RDWR); }},
      {"set its times", EPERM, [&] { return ::futimens(loose->get(), times); }},
      {"link it", EPERM, [&] { return ::linkat(AT_FDCWD, f, AT_FDCWD, s, AT_SYMLINK_FOLLOW); }},
      {"give it an attribute", EACCES, [&] { return ::fsetxattr(loose->get(), "user.x", "1", 1, 0); }},
      {"set a copy's flags", EPERM, [&] { return ::ioctl(read_only(), FS_IOC_SETFLAGS, &flags); }},
      {"set its flags", EPERM, [&] { return ::ioctl(loose->get(), FS_IOC_SETFLAGS, &flags); }},
      {"read a copy", 0, [&] { return read_only(); }},
      // A descriptor that was kept can do that still.
      {"write it", 0, [&] { return ::pwrite(kept->get(), "more", 4, 7); }},
  };
  for (const Attack& attack : attacks)
    EXPECT_EQ(as_nobody([&] { return attack.run() >= 0 ? 0 : errno; }), attack.error) << attack.name;
  EXPECT_EQ(contents(copy), "contentmore");
}

}  // namespace
}  // namespace monarch
