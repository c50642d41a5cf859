// SPDX-License-Identifier: Apache-2.0
// Files that the job wrote, staged again once they were left alone for stage_again seconds.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/os.h"
#include "tests/placement_fixture.h"

namespace monarch {
namespace {

class AgainTest : public PlacementTest {
 protected:
  AgainTest() { config_.stage_again = 1; }

  void write(const std::string& name, const std::string& text) {
    set_invalid(board_->get(), rel(name).hash);
    scratch_.file("pfs/" + name, text);
  }
  Found newest(const std::string& name) {
    return catalog_->reader().newest(catalog_->reader().find(rel(name)), rel(name));
  }
  // Opens the file, as tasks do, until it is staged again; for `seconds` at most.
  bool comes(const std::string& name, int seconds = 20) {
    const int64_t end = os::clock_ns(CLOCK_MONOTONIC) + seconds * int64_t{1000000000};
    const Ref before = newest(name).ref;
    for (bool first = true; first || os::clock_ns(CLOCK_MONOTONIC) < end; first = false) {
      placement_->demand(rel(name));
      if (const Found now = newest(name); now && now.ref != before) return serves(name, now);
      ::usleep(50000);
    }
    return false;
  }
  bool serves(const std::string& name, const Found& found) {
    const uint64_t state = found.entry->state.load();
    return state_of(state) == State::kPlaced && change_of(state) != 0 &&
           !is_changed_since(*board_->get(), rel(name).hash, change_of(state)) &&
           contents(path_of_copy(tier(tier_of(state)), found.ref)) == contents(pfs_ + "/" + name);
  }
};

TEST_F(AgainTest, WhatIsLeftAlone) {
  scratch_.file("pfs/f", noise(300000, 1));
  start();
  EXPECT_EQ(state_of(demand("f")), State::kPlaced);
  for (const uint32_t seed : {2, 3}) {
    write("f", noise(100000 * seed, seed));
    EXPECT_TRUE(comes("f"));
    EXPECT_EQ(word("f"), again_word(again_of(word("f"))))
        << "who has the first copy open finds the first entry";
  }
  EXPECT_EQ(counter(AgentCounter::staged_again), 2u);
  struct stat copy;
  const Found found = newest("f");
  ASSERT_EQ(::stat(path_of_copy(tier(), found.ref).c_str(), &copy), 0);
  const Identity* id = catalog_->reader().find_copy(0, copy.st_ino);
  ASSERT_NE(id, nullptr);
  EXPECT_EQ(catalog_->reader().entry(id->entry), found.entry);
}

TEST_F(AgainTest, WhatTheJobMade) {
  start();
  placement_->demand(rel("new"));
  EXPECT_TRUE(settles("new"));
  write("new", noise(5000, 1));
  EXPECT_TRUE(comes("new"));
}

TEST_F(AgainTest, NotWhatIsMarkedAgain) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  demand("f");
  write("f", noise(1000, 2));
  ASSERT_TRUE(comes("f"));
  const Found found = newest("f");
  write("f", noise(1000, 3));
  EXPECT_FALSE(serves("f", found));
  EXPECT_TRUE(comes("f"));
}

TEST_F(AgainTest, NotWhatIsWrittenWhileItIsCopied) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  demand("f");
  write("f", noise(1000, 2));
  std::atomic<int> copied{0};
  {
    const Intercept marks(Call::kPwrite, [&](Arguments&) {
      set_invalid(board_->get(), rel("f").hash);
      ++copied;
      return 0;
    });
    EXPECT_FALSE(comes("f", 3));
  }
  EXPECT_GT(copied, 0);
  EXPECT_EQ(counter(AgentCounter::staged_again), 0u);
  EXPECT_TRUE(comes("f"));
}

TEST_F(AgainTest, NotWhileSomebodyMayWrite) {
  scratch_.file("pfs/f", noise(8192, 1));
  start();
  demand("f");
  write("f", noise(8192, 2));
  Fd writer(::open((pfs_ + "/f").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(comes("f", 3)) << "it is open for writing";
  void* map = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  writer.reset();
  EXPECT_FALSE(comes("f", 3)) << "it is mapped for writing";
  ::munmap(map, 4096);
  EXPECT_TRUE(comes("f"));
}

TEST_F(AgainTest, NotWhatHasAnotherName) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  demand("f");
  write("f", noise(1000, 2));
  ASSERT_EQ(::link((pfs_ + "/f").c_str(), (pfs_ + "/g").c_str()), 0);
  EXPECT_FALSE(comes("f", 3));
}

TEST_F(AgainTest, NotWithoutAnEnd) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  demand("f");
  for (int i = 0; i < kMostAgain; ++i) {
    write("f", noise(1000, static_cast<uint32_t>(i) + 2));
    EXPECT_TRUE(comes("f")) << i;
  }
  write("f", noise(1000, 9));
  EXPECT_FALSE(comes("f", 3));
  EXPECT_EQ(counter(AgentCounter::staged_again), static_cast<uint64_t>(kMostAgain));
}

TEST_F(AgainTest, NotUnlessItIsWanted) {
  config_.stage_again = 0;
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  demand("f");
  write("f", noise(1000, 2));
  EXPECT_FALSE(comes("f", 2));
}

}  // namespace
}  // namespace monarch
