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

// Whose pauses of a second and more do not take that long: they count as what they take, or as whole.
class HastyClock final : public Clock {
 public:
  enum class Pauses { kShort, kCountAsWhole };
  // A wait for a descriptor takes as long as it would once `event` holds.
  explicit HastyClock(Pauses pauses, std::function<bool()> event = {})
      : patient_(std::move(event)), pauses_(pauses) {}
  int64_t now_ns() override { return patient_.now_ns() + skipped_ns_; }
  void sleep_until(int64_t until_ns) override {
    constexpr int64_t kSecondNs = 1'000'000'000, kShorter = 20;
    const int64_t left = until_ns - now_ns();
    if (left < kSecondNs) return patient_.sleep_until(until_ns - skipped_ns_);
    patient_.sleep_until(patient_.now_ns() + left / kShorter);
    if (pauses_ == Pauses::kCountAsWhole) skipped_ns_ += left - left / kShorter;
  }
  void wait_until(Condition* condition, MutexLock* hold, int64_t until_ns) override {
    patient_.wait_until(condition, hold, until_ns - skipped_ns_);
  }
  bool poll_until(int fd, short events, int64_t until_ns) override {
    return patient_.poll_until(fd, events, until_ns - skipped_ns_);
  }

 private:
  PatientClock patient_;
  const Pauses pauses_;
  std::atomic<int64_t> skipped_ns_{0};
};

class RemoverTest : public NodeTest {
 protected:
  bool remove(std::vector<Removal> removals, int patience_ms) const {
    return remove_in_background(state_, std::move(removals), patience_ms);
  }
  std::vector<Removal> aside_one(const JobRecord& r) const { return set_aside(state_, begin_one(r)); }
  // From now on; at most once.
  void hasten(HastyClock::Pauses pauses, std::function<bool()> event = {}) {
    hasty_.emplace(pauses, std::move(event));
    state_ = StateDir::open(state_.path(), *hasty_).take();
  }
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

 private:
  std::optional<HastyClock> hasty_;
};

}  // namespace monarch
