// SPDX-License-Identifier: Apache-2.0
// The walk, with the placement that it feeds.
#include "runtime/metadata/walker.h"

#include <fcntl.h>

#include "tests/placement_fixture.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

TEST_F(PlacementTest, TheWalkTellsTypesApart) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  scratch_.file("pfs/d/f", "x");
  fs::create_symlink("d/f", pfs_ + "/link");
  ASSERT_EQ(::mkfifo((pfs_ + "/fifo").c_str(), 0600), 0);
  start();
  walk();
  ASSERT_TRUE(placed_at_last("d/f"));
  EXPECT_EQ(word("fifo"), state_word(State::kPass, Reason::kNotRegular));
  EXPECT_EQ(word("link"), state_word(State::kPass, Reason::kSymlink));
  EXPECT_EQ(word("d"), state_word(State::kPass, Reason::kNotRegular));
  EXPECT_EQ(counter(AgentCounter::walk_files), 1u);
}

TEST_F(PlacementTest, TheWalkSaysWhenItIsNotComplete) {
  scratch_.file("pfs/good/f", "x");
  scratch_.file("pfs/bad/f", "x");
  start();
  Intercept opens(Call::kOpenBeneath, [](Arguments& a) {
    return (a.flags & O_DIRECTORY) && std::string(a.path) == "bad" ? EACCES : 0;
  });
  start_walk();
  ASSERT_TRUE(eventually(
      [&] { return counter(AgentCounter::walk_errors) == 1 && counter(AgentCounter::walk_dirs) == 2; }));
  walker_->stop();
  EXPECT_FALSE(walked()) << "absent paths may exist";
  EXPECT_TRUE(catalog_->reader().find(rel("good/f")));
  EXPECT_FALSE(catalog_->reader().find(rel("bad/f")));
}

// The names in a listing, with a letter for the type.
std::vector<std::string> listed(const CatalogReader& reader, const RelPath& path) {
  std::vector<std::string> names;
  const Listing* listing = reader.listing(path);
  Ref block = 0;
  for (uint32_t i = 0; listing && i < listing->count; ++i) {
    const ListedName* name = reader.listed_name(*listing, &block, i);
    const Ref entry = name ? name->entry : 0;
    const Entry* e = entry == kDot || entry == kDotDot ? nullptr : reader.entry(entry);
    names.push_back(e               ? std::string(e->name, e->name_len) + "/" + std::to_string(e->type.load())
                    : entry == kDot ? "."
                                    : "..");
  }
  return names;
}

std::vector<std::string> read_directory(const std::string& path) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(path.c_str());
  while (const dirent* e = dir ? ::readdir(dir) : nullptr) {
    const std::string name = e->d_name;
    names.push_back(name == "." || name == ".." ? name : name + "/" + std::to_string(e->d_type));
  }
  if (dir) ::closedir(dir);
  return names;
}

TEST_F(PlacementTest, TheWalkKeepsWhatDirectoriesHoldOnceTheyAreQuiet) {
  for (int i = 0; i < 30; ++i) scratch_.file("pfs/d/f" + std::to_string(i), "x");
  fs::create_symlink("d/f1", pfs_ + "/link");
  ASSERT_EQ(::mkfifo((pfs_ + "/d/fifo").c_str(), 0600), 0);
  scratch_.file("pfs/young/f", "x");
  const timespec later[2] = {{0, UTIME_OMIT}, {::time(nullptr) + 3600, 0}};  // however long the walk takes
  ASSERT_EQ(::utimensat(AT_FDCWD, (pfs_ + "/young").c_str(), later, 0), 0);
  struct stat st;
  ASSERT_EQ(::stat((pfs_ + "/d").c_str(), &st), 0);
  start();
  placement_->demand(rel("d"));  // asked for before the walk: a directory nevertheless
  placement_->demand(rel("d/f3"));
  walk();
  ASSERT_TRUE(eventually([&] { return walked(); }));
  const CatalogReader& reader = catalog_->reader();
  ASSERT_NE(reader.listing(rel("d")), nullptr);
  EXPECT_EQ(listed(reader, rel("d")), read_directory(pfs_ + "/d"));
  EXPECT_EQ(reader.listing(rel("d"))->ino, st.st_ino);
  EXPECT_EQ(reader.listing(rel("d"))->dev, st.st_dev);
  EXPECT_EQ(listed(reader, rel("young")), read_directory(pfs_ + "/young")) << "its clock is an hour ahead";
  EXPECT_EQ(reader.listing(rel("d/fifo")), nullptr);
}

// The PFS's clock is an hour behind: what it changed just now looks old. But a change within a tick of that
// clock would not show.
TEST_F(PlacementTest, TheWalkMeasuresQuietByTheDirectorysOwnClock) {
  const LaterBy hour(3600);
  scratch_.file("pfs/d/f", "x");
  const auto begin = std::chrono::steady_clock::now();
  start();
  start_walk();
  ASSERT_TRUE(eventually([&] { return catalog_->reader().listing(rel("d")) != nullptr; }));
  struct stat st;
  ASSERT_EQ(::stat((pfs_ + "/d").c_str(), &st), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::nanoseconds(quiet_ns(st)));
  EXPECT_GE(quiet_ns(st), 100000000);
  st.st_ctim.tv_nsec = 0;
  EXPECT_GE(quiet_ns(st), 2000000000) << "its clock may tick once a second";
  EXPECT_EQ(listed(catalog_->reader(), rel("d")), read_directory(pfs_ + "/d"));
  ASSERT_TRUE(eventually([&] { return walked(); }));
}

TEST_F(PlacementTest, TheWalkReadsAgainWhatChangedMeanwhile) {
  scratch_.file("pfs/d/f", "x");
  start();
  start_walk();
  ASSERT_TRUE(eventually([&] { return static_cast<bool>(catalog_->reader().find(rel("d/f"))); }));
  scratch_.file("pfs/d/g", "x");
  ASSERT_TRUE(eventually([&] { return walked(); }));
  const Listing* listing = catalog_->reader().listing(rel("d"));
  if (listing) {
    EXPECT_EQ(listed(catalog_->reader(), rel("d")), read_directory(pfs_ + "/d"));
  }
}

TEST_F(PlacementTest, TheWalkKeepsNoListingsThatNobodyReads) {
  config_.metadata = AgentConfig::Metadata::kPass;
  scratch_.file("pfs/d/f", "x");
  ::usleep(2200000);
  start();
  walk();
  ASSERT_TRUE(eventually([&] { return walked(); }));
  EXPECT_EQ(catalog_->reader().listing(rel("d")), nullptr);
}

TEST_F(PlacementTest, DemandsAndTheWalkMeet) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  std::vector<std::string> files, directories;
  for (uint32_t i = 0; i < 400; ++i) {
    const std::string dir = "a" + std::to_string(i % 20) + "/b" + std::to_string(i % 40);
    files.push_back(dir + "/f" + std::to_string(i));
    directories.push_back(dir);
    scratch_.file("pfs/" + files.back(), noise(i, i));
  }
  start();
  start_walk();
  Threads(3, [&](uint32_t t) {
    for (size_t i = 0; i < files.size(); ++i) {
      const size_t n = (i * (t + 1) * 7 + t) % files.size();
      placement_->demand(rel(directories[n]));
      placement_->demand(rel(files[n]));
    }
  }).join();
  for (const std::string& file : files) ASSERT_TRUE(placed_at_last(file)) << file;
  ASSERT_TRUE(eventually([&] { return walked(); }));
  for (const std::string& dir : directories) {
    ASSERT_TRUE(settles(dir));
    EXPECT_EQ(word(dir), state_word(State::kPass, Reason::kNotRegular)) << dir;
  }
  placement_->stop();
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), files.size());
  EXPECT_EQ(counter(AgentCounter::staged_files), files.size());
  EXPECT_EQ(files_on(), static_cast<int>(files.size()));
  for (const std::string& file : files) EXPECT_EQ(contents(copy_of(file)), contents(pfs_ + "/" + file));
}

// Half a directory is no directory: what readdir(3) did not tell may be there.
TEST_F(PlacementTest, AWalkThatFailsInTheMiddleOfADirectoryIsNotComplete) {
  for (int i = 0; i < 5; ++i) scratch_.file("pfs/f" + std::to_string(i), "x");
  for (const int error : {EIO, ENOMEM, ESTALE}) {
    SCOPED_TRACE(error);
    if (!placement_) start();
    const uint64_t before = counter(AgentCounter::walk_errors);
    std::atomic<int> calls{0};
    Intercept fault(Call::kReaddir, [&](Arguments&) { return ++calls == 4 ? error : 0; });
    start_walk();
    ASSERT_TRUE(eventually([&] { return counter(AgentCounter::walk_errors) == before + 1; }));
    walker_->stop();
    EXPECT_FALSE(walked()) << "absent paths may exist";
    EXPECT_EQ(catalog_->reader().listing(rel("")), nullptr);
  }
}

TEST_F(PlacementTest, ADirectoryThatCannotBeListedMakesTheWalkIncomplete) {
  scratch_.file("pfs/d/f", "x");
  start();
  std::atomic<int> calls{0};
  Intercept fault(Call::kFdopendir, [&](Arguments&) { return ++calls == 2 ? EIO : 0; });
  start_walk();
  ASSERT_TRUE(eventually([&] { return counter(AgentCounter::walk_errors) == 1; }));
  walker_->stop();
  EXPECT_FALSE(walked());
}

// For lack of threads the walk is slower, or there is none.
TEST_F(PlacementTest, AWalkWithoutThreadsIsNotComplete) {
  scratch_.file("pfs/f", "x");
  start();
  Intercept none(Call::kStartThread, EAGAIN);
  start_walk();
  EXPECT_EQ(demand("f") & 0xff, static_cast<uint64_t>(State::kPlaced)) << "what is asked for is staged";
  EXPECT_FALSE(walked());
}

}  // namespace
}  // namespace monarch
