// SPDX-License-Identifier: Apache-2.0
// Whoever runs as the job's owner can write catalog and board: neither a task nor the agent may then read or
// write anything else. And a run directory that is not this user's alone is not believed at all.
#include <dirent.h>
#include <fcntl.h>

#include <atomic>
#include <random>

#include "runtime/layout/groups.h"
#include "runtime/metadata/board.h"
#include "tests/catalog_fixture.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

// ---- whose directory it is

class RunDirectoryTest : public ::testing::Test {
 protected:
  bool opens() const {
    CatalogReader reader;
    return reader.open(run_.c_str());
  }
  const Scratch scratch_;
  const std::string run_ = scratch_.dir("run");
  const std::unique_ptr<Catalog> catalog_ = make_catalog(run_);
};

TEST_F(RunDirectoryTest, IsTheUsersAlone) {
  EXPECT_TRUE(opens());
  for (const mode_t mode : {0701, 0710, 0720, 0702, 0777}) {
    ASSERT_EQ(::chmod(run_.c_str(), mode), 0);
    EXPECT_FALSE(opens()) << std::oct << mode;
  }
  ASSERT_EQ(::chmod(run_.c_str(), 0700), 0);
  for (const mode_t mode : {0620, 0602, 0640, 0604}) {
    ASSERT_EQ(::chmod((run_ + "/catalog").c_str(), mode), 0);
    EXPECT_FALSE(opens()) << "a catalog that others have access to, " << std::oct << mode;
  }
  ASSERT_EQ(::chmod((run_ + "/catalog").c_str(), 0600), 0);
  EXPECT_TRUE(opens());
  fs::create_symlink(run_, scratch_ / "link");
  CatalogReader reader;
  EXPECT_FALSE(reader.open((scratch_ / "link").c_str())) << "a symbolic link, which anybody can make";
}

TEST_F(RunDirectoryTest, IsNotAnotherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  for (const std::string& path : {run_, run_ + "/catalog"}) {
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    EXPECT_FALSE(opens()) << path;
    ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
  }
  EXPECT_TRUE(opens());
  // Another user's directory above it, who can put any of ours in its place.
  ASSERT_EQ(::chown(scratch_.path().c_str(), 1234, 1234), 0);
  EXPECT_FALSE(opens());
  ASSERT_EQ(::chmod(scratch_.path().c_str(), 01777), 0);
  EXPECT_TRUE(opens()) << "a sticky one";
}

TEST_F(RunDirectoryTest, StaysTheOneThatWasFirst) {
  catalog_->add(rel("f"), DT_REG);
  RunDirectory dir{run_.c_str()};
  CatalogReader reader;
  ASSERT_NE(map_shared(&dir, "catalog", sizeof(CatalogHeader), false), nullptr);
  ASSERT_TRUE(reader.open(dir));
  fs::rename(run_, scratch_ / "old");
  const auto other = make_catalog(scratch_.dir("run"));
  other->add(rel("f"), DT_REG);
  EXPECT_FALSE(reader.find(rel("f"))) << "it took what is in another directory of that name";
  fs::rename(run_, scratch_ / "other");
  fs::rename(scratch_ / "old", run_);
  EXPECT_TRUE(reader.find(rel("f")));
}

TEST(Groups, AreASet) {
  EXPECT_NE(own_groups(), 0u);
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const auto hash = [](std::vector<gid_t> groups, gid_t effective) {
    uint32_t sum = 0;
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    in_child([&] {
      if (::setgroups(groups.size(), groups.data()) != 0 || ::setegid(effective) != 0) return 1;
      const uint32_t own = own_groups();
      return ::write(ends[1], &own, sizeof own) == sizeof own ? 0 : 1;
    });
    EXPECT_EQ(::read(ends[0], &sum, sizeof sum), ssize_t{sizeof sum});
    ::close(ends[0]);
    ::close(ends[1]);
    return sum;
  };
  EXPECT_EQ(hash({5, 6, 7}, 5), hash({7, 6}, 5));
  EXPECT_EQ(hash({7, 6, 6}, 5), hash({6, 5}, 7));
  EXPECT_NE(hash({6}, 5), hash({6, 7}, 5));
  EXPECT_NE(hash({}, 5), hash({}, 6));
  EXPECT_EQ(hash(std::vector<gid_t>(kMostGroups, 5), 6), hash({5}, 6)) << "the same one many times";
  EXPECT_EQ(hash(std::vector<gid_t>(kMostGroups + 1, 5), 6), 0u) << "more than are compared";
}

// ---- lengths, numbers and references

constexpr uint32_t kFiles = 400, kNamed = 60;

// A file of the run directory, mapped once more to be written.
struct Target {
  char* base;
  size_t bytes;
};

std::vector<Target> map_all(const std::string& run_dir) {
  std::vector<Target> all;
  for (const auto& file : fs::directory_iterator(run_dir)) {
    const Fd fd(::open(file.path().c_str(), O_RDWR | O_CLOEXEC));
    const size_t bytes = file.file_size();
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (base != MAP_FAILED) all.push_back({static_cast<char*>(base), bytes});
  }
  return all;
}

class Mutations {
 public:
  explicit Mutations(uint32_t seed) : random_(seed) {}
  uint64_t pick(uint64_t n) { return random_() % n; }
  void write(const Target& target) {
    static constexpr uint64_t kOdd[] = {0,       1,          2,          3,          8,        255,
                                        4095,    4096,       65535,      1 << 20,    1u << 31, ~0u,
                                        ~0u - 1, 0x7fffffff, 1ull << 40, ~0ull >> 1, ~0ull};
    const uint64_t value = pick(10) < 7 ? kOdd[pick(std::size(kOdd))] : random_();
    // Most of what decides is at a file's beginning.
    const size_t most = pick(2) ? target.bytes : std::min<size_t>(target.bytes, 4096);
    const size_t width = size_t{1} << pick(4), at = pick(most / width) * width;
    for (size_t i = 0; i < width; ++i)
      __atomic_store_n(target.base + at + i, static_cast<char>(value >> (8 * i)), __ATOMIC_RELAXED);
  }

 private:
  std::mt19937_64 random_;
};

std::string name_of(uint32_t n) { return "dir" + std::to_string(n % 7) + "/file" + std::to_string(n); }

void fill(Catalog* catalog) {
  std::vector<NameInDirectory> names;
  for (uint32_t n = 0; n < kFiles; ++n) {
    const Ref ref = catalog->add(rel(name_of(n)), DT_REG);
    if (n < kNamed) names.push_back({ref, n});
    struct stat st = source_stat(n + 1);
    st.st_size = int64_t{n} << 20;
    if (n % 4 == 0) catalog->place(ref, n % 2, n + 1, st);
    if (n % 4 == 1) catalog->set_chunk(catalog->start_chunks(ref, n % 2, st), n / 2);
  }
  catalog->add_listing(rel(""), directory_stat(5, 100), names);
}

uint64_t seen = 0;  // what was read, so that it is read

// What the agent does with its catalog.
void use_all(Catalog* catalog, Mutations* random, uint32_t* next) {
  const std::string name = random->pick(3) ? name_of(static_cast<uint32_t>(random->pick(kFiles)))
                                           : "new/" + std::to_string((*next)++);
  const Ref ref = catalog->add(rel(name, static_cast<uint32_t>(random->pick(2))), DT_UNKNOWN);
  Entry& e = catalog->entry(ref);
  struct stat st = source_stat(random->pick(1000));
  st.st_size = static_cast<int64_t>(random->pick(64) << 20);
  seen += catalog->path_of(ref).size() + catalog->root_of(ref);
  ASSERT_LT(catalog->root_of(ref), 2u);
  switch (random->pick(8)) {
    case 0:
      catalog->place(ref, static_cast<uint32_t>(random->pick(2)), random->pick(1000), st);
      break;
    case 1:
      catalog->set_chunk(catalog->start_chunks(ref, 0, st), 3);
      break;
    case 2:
      catalog->set_chunk(chunks_of(e.state.load()), static_cast<uint32_t>(random->pick(1 << 20)));
      catalog->close_chunks(chunks_of(e.state.load()));
      break;
    case 3:
      catalog->drop(ref, State::kNoFit, Reason::kTierError);
      break;
    case 4: {
      Seen told{static_cast<Ref>(random->pick(1 << 14)), static_cast<uint32_t>(random->pick(~0u)), {}};
      if (random->pick(2)) told = {ref, rel(name).hash, {}};
      told.values.mode = S_IFREG | 0644;
      told.values.dev = 1;
      catalog->add_seen(told);
      break;
    }
    case 5:
      catalog->entry(static_cast<Ref>(random->pick(1ull << 32))).state.load();
      break;
    default: {
      uint32_t left = 50;
      catalog->walk(random->pick(1 << 15), [&](Ref at) {
        seen += catalog->path_of(at).size();
        return --left > 0;
      });
    }
  }
}

// `victim` is called so many times, in the long form of the tests 20 times as many.
void attack(const std::string& run_dir, uint32_t seed, int times,
            const std::function<void(Mutations*)>& victim) {
  const char* all = std::getenv("MONARCH_TEST_ALL");
  if (all && *all == '1') times *= 20;
  std::atomic<bool> ends{false};
  const std::vector<Target> targets = map_all(run_dir);
  ASSERT_GE(targets.size(), 6u);
  std::vector<std::string> good;
  for (const Target& t : targets) good.emplace_back(t.base, t.bytes);
  std::thread hostile([&] {
    Mutations mutations(seed);
    for (uint64_t n = 0; !ends; ++n) {
      const size_t at = mutations.pick(targets.size());
      mutations.write(targets[at]);
      if (n % 64 == 0) std::memcpy(targets[at].base, good[at].data(), targets[at].bytes);  // plausible again
    }
  });
  Mutations random(seed + 100);
  while (times-- > 0) victim(&random);
  ends = true;
  hostile.join();
  for (const Target& t : targets) ::munmap(t.base, t.bytes);
}

TEST(HostileCatalog, LeadsTheAgentNotAstray) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Scratch scratch;
    const auto catalog = make_catalog(scratch.path());
    fill(catalog.get());
    uint32_t next = 0;
    attack(scratch.path(), seed, 2000, [&](Mutations* random) { use_all(catalog.get(), random, &next); });
  }
}

// ---- the order in which a board is shown

TEST(BoardInTheMaking, IsMadeWhenAllOfItIs) {
  const auto board = std::make_unique<Board>();
  EXPECT_FALSE(is_made(*board));
  auto* lock = reinterpret_cast<std::atomic<uint32_t>*>(&board->header.agent_lives);
  lock->store(1);
  EXPECT_FALSE(is_made(*board)) << "a processor may show the mutex first";
  lock->store(0);
  board->header.magic.store(kBoardMagic);
  EXPECT_FALSE(is_made(*board)) << "or last";
  lock->store(1);
  EXPECT_TRUE(is_made(*board));
  EXPECT_FALSE(is_this_board(*board)) << "of version 0";
}

// Many boards are made while others look at them: what counts as made is whole. On x86-64 this holds by the
// processor; on aarch64 by the order of the stores.
TEST(BoardInTheMaking, IsSeenWholeOrNotAtAll) {
  constexpr size_t kBoards = 40;
  std::vector<std::unique_ptr<Scratch>> scratch;
  for (size_t i = 0; i < kBoards; ++i) scratch.push_back(std::make_unique<Scratch>());
  std::atomic<int> wrong{0};
  std::atomic<bool> all_read{false};
  std::vector<BoardFile> made;  // outlives the thread that holds their mutexes
  std::thread agent([&] {
    for (size_t i = 0; i < kBoards; ++i) {
      Result<BoardFile> board = BoardFile::create(scratch[i]->path());
      if (!board.ok() || !declare_alive(board->get()).ok()) ++wrong;
      if (board.ok()) made.push_back(board.take());
    }
    while (!all_read) std::this_thread::yield();
  });
  Threads(2, [&](uint32_t) {
    for (size_t i = 0; i < kBoards;) {
      RunDirectory dir{scratch[i]->path().c_str()};
      auto* board = static_cast<Board*>(map_shared(&dir, "board", sizeof(Board), true));
      if (!board) {
        std::this_thread::yield();
        continue;
      }
      while (!is_made(*board)) std::this_thread::yield();
      wrong += !is_this_board(*board) || !agent_lives(*board);
      ::munmap(board, sizeof(Board));
      ++i;
    }
  }).join();
  all_read = true;
  agent.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace monarch
