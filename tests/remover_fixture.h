// SPDX-License-Identifier: Apache-2.0
// What the tests of the remover share: a job's removals, and what is left of them.
#pragma once

#include <utility>

#include "tests/faulty_os.h"
#include "tests/node_fixture.h"

namespace monarch {

inline constexpr int kLong = 60000;  // ms
inline const std::string kName = "c.1.0.n1", kRemoval = "c.1.0.n1.9000000000000000000",
                         kAside = ".removed.c.1.0.n1.9000000000000000000";

class RemoverTest : public NodeTest {
 protected:
  bool remove(std::vector<Removal> removals, int patience_ms) const {
    return remove_in_background(state_, std::move(removals), patience_ms);
  }
  std::vector<Removal> aside_one(const JobRecord& r) const { return set_aside(state_, begin_one(r)); }
  std::vector<Removal> removal_of(const JobRecord& r) const {
    std::vector<Removal> one;
    one.push_back({r, state_.make_removal(r).take()});
    return one;
  }
  // Once its time has come.
  std::vector<Removal> due() const {
    JobRecord r = *state_.read_removal(kRemoval);
    r.next_try = 0;
    EXPECT_TRUE(state_.write_removal(r).ok());
    return unattended_removals(state_);
  }
  std::optional<uint64_t> occupied(size_t tier = 0) const {
    const Result<JobRecord> r = state_.read_removal(kRemoval);
    return r.ok() ? r->tiers.at(tier).occupied : std::nullopt;
  }
  // A copy of 1 MiB in the job's directory at `path`, which cannot be removed as long as a Stuck lives.
  static void fill_stuck(const std::string& path) {
    std::filesystem::create_directories(path);
    std::ofstream(path + "/stuck") << noise(kMiB, 2);
  }
  struct Stuck {
    Intercept removes{Call::kUnlinkat, [](Arguments& a) { return std::string(a.path) == "stuck" ? EIO : 0; }};
  };
};

}  // namespace monarch
