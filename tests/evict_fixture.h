// SPDX-License-Identifier: Apache-2.0
// Root lowers a tier's quota, of a placement in this process.
#pragma once

#include <numeric>

#include "tests/placement_fixture.h"

namespace monarch {

inline constexpr uint64_t kBlock = 4096;
inline constexpr uint64_t kBytes = 5000, kSpace = 2 * kBlock;  // of a small file, and of its copy
inline constexpr uint64_t kNoFit = state_word(State::kNoFit), kPlaced = state_word(State::kPlaced),
                          kHeld = state_word(State::kNoFit, Reason::kEvicted);

class EvictTest : public PlacementTest {
 protected:
  EvictTest() { ::signal(SIGIO, SIG_IGN); }  // of leases, as the agent ignores it

  void start() {
    PlacementTest::start();
    for (size_t i = 0; i < tiers_.size(); ++i) placement_->set_quota(i, tier(i).quota());
  }
  static std::string name(int i) { return "f" + std::to_string(i); }
  void make(int files) {
    for (int i = 0; i < files; ++i) make(name(i), i);
  }
  void make(const std::string& path, int seed) {
    scratch_.file("pfs/" + path, noise(kBytes, static_cast<uint64_t>(seed)));
    const timespec times[2] = {{4000000000, 0}, {1000000000, 0}};  // reading it changes no atime
    ::utimensat(AT_FDCWD, (pfs_ + "/" + path).c_str(), times, 0);
  }
  // All of them, in this order.
  void place(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) ASSERT_EQ(demand(path), kPlaced) << path;
    ASSERT_TRUE(eventually([&] { return is_idle(); }));
  }
  void place_all(int files) {
    std::vector<std::string> paths;
    for (int i = 0; i < files; ++i) paths.push_back(name(i));
    place(paths);
  }
  // Starts with so many files that are placed.
  void start_with(int files) {
    make(files);
    start();
    place_all(files);
  }
  // A file with these names.
  void make_linked(const std::vector<std::string>& paths) {
    make(paths[0], 1);
    for (size_t i = 1; i < paths.size(); ++i)
      std::filesystem::create_hard_link(pfs_ + "/" + paths[0], pfs_ + "/" + paths[i]);
  }
  Ref ref_of(const std::string& path) const { return catalog_->reader().find(rel(path)).ref; }
  // Whether this process has something open whose path begins so, but for what has no name.
  static bool is_open(const std::string& path) {
    std::error_code closed;
    for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd"))
      if (std::filesystem::read_symlink(fd, closed).string().find(path) == 0 &&
          std::filesystem::hard_link_count(fd, closed) != 0)
        return true;
    return false;
  }
  // No copy is kept open by the agent.
  bool is_idle() const {
    for (const Tier& t : hierarchy_->tiers())
      if (is_open(t.copies_path() + "/")) return false;
    return true;
  }
  void set_quota(uint64_t quota, size_t number = 0) {
    if (placement_->set_quota(number, quota)) placement_->room_grew();
    placement_->keep_to_quotas();
  }
  // And what is removed for it is removed.
  bool keeps_to(uint64_t quota, size_t number = 0) {
    return eventually([&] { return tier(number).used() <= quota; }) && quiet();
  }
  std::vector<int> placed(int files) {
    std::vector<int> found;
    for (int i = 0; i < files; ++i)
      if (state(name(i)) == State::kPlaced) found.push_back(i);
    return found;
  }
  static std::vector<int> numbers(int from, int to) {
    std::vector<int> all(static_cast<size_t>(to - from));
    std::iota(all.begin(), all.end(), from);
    return all;
  }
  Fd open_copy(const std::string& path) { return Fd(::open(copy_of(path).c_str(), O_RDONLY | O_CLOEXEC)); }
  // What a task finds by the descriptor of a copy.
  const Entry* entry_of(const Fd& copy) {
    struct stat st;
    if (::fstat(copy.get(), &st) != 0) return nullptr;
    const Identity* id = catalog_->reader().find_copy(0, st.st_ino);
    return id ? catalog_->reader().entry(id->entry) : nullptr;
  }
  static uint64_t inode_of(const Fd& copy) {
    struct stat st = {};
    EXPECT_EQ(::fstat(copy.get(), &st), 0);
    return st.st_ino;
  }
  bool is_gone(const std::string& path) {
    return eventually([&] { return state(path) == State::kNoFit && word(path) != kHeld; });
  }
};

}  // namespace monarch
