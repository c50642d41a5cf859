// SPDX-License-Identifier: Apache-2.0
// What the tests of the remover share: a job's removals, and what is left of them.
#pragma once

#include <fcntl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/node/removal.h"
#include "tests/faulty_os.h"
#include "tests/node_fixture.h"

namespace monarch {

inline constexpr int kLong = 60000;  // ms
inline const std::string kName = "c.1.0.n1", kRemoval = "c.1.0.n1.1000", kAside = ".removed.c.1.0.n1.1000";

class RemoverTest : public NodeTest {
 protected:
  bool remove(std::vector<Removal> removals, int patience_ms) const {
    return remove_in_background(state_, std::move(removals), patience_ms);
  }
  std::vector<Removal> aside_one(const JobRecord& r) const { return set_aside(state_, begin_one(r)); }
  void nothing_is_left() const {
    EXPECT_TRUE(on_tier().empty());
    EXPECT_TRUE(runs().empty());
    EXPECT_TRUE(jobs().empty());
    EXPECT_TRUE(in_removing().empty());
    EXPECT_TRUE(names_in(state_.path() + "/grants").empty());
  }
  std::optional<uint64_t> occupied(size_t tier = 0) const {
    const Result<JobRecord> r = state_.read_removal(kRemoval);
    return r.ok() ? r->tiers.at(tier).occupied : std::nullopt;
  }
  Fd tier_jobs() const { return Fd(::open((scratch_ / "tier/monarch").c_str(), O_RDONLY | O_DIRECTORY)); }
  // Renaming fails so on the tier, as where a directory has an XFS project of its own.
  Intercept::Handler on_tier_alone(int error) const {
    struct stat jobs {};
    EXPECT_EQ(::stat((scratch_ / "tier/monarch").c_str(), &jobs), 0);
    return [=](Arguments& a) {
      struct stat st;
      return ::fstat(a.fd, &st) == 0 && st.st_ino == jobs.st_ino && st.st_dev == jobs.st_dev ? error : 0;
    };
  }
};

}  // namespace monarch
