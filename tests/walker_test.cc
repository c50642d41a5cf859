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

}  // namespace
}  // namespace monarch
