// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/metrics.h"

#include "runtime/node/identity.h"
#include "tests/node_fixture.h"

namespace monarch {
namespace {

class MetricsTest : public NodeTest {
 protected:
  static JobCounters counters(uint64_t staged) {
    JobCounters c{};
    c.magic = kJobCountersMagic;
    c.agent[static_cast<uint32_t>(AgentCounter::staged_files)] = staged;
    return c;
  }
  // A job that has begun so many seconds ago.
  JobRecord begin(uint32_t job, uint64_t seconds = 0) const {
    JobRecord r = record(job);
    const auto uptime = static_cast<uint64_t>(os::clock_ns(CLOCK_BOOTTIME) / 1000000000);
    r.agent.start_time = (uptime - std::min(seconds, uptime)) * static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
    EXPECT_TRUE(state_.lock_job(r.job, true, 0).ok());
    EXPECT_TRUE(state_.write_record(r).ok());
    return r;
  }
  uint64_t told(const std::string& name, const MetricLabels& labels = {}) const {
    const Result<std::vector<Metric>> all = node_metrics(&state_, {});
    EXPECT_TRUE(all.ok());
    for (const Metric& metric : *all)
      for (const MetricSample& sample : metric.samples)
        if (metric.name == name && sample.labels == labels) return sample.value;
    ADD_FAILURE() << "no " << name;
    return 0;
  }
  uint64_t staged() const { return told("monarch_staged_files_total"); }
  uint64_t ended(const char* counters) const {
    return told("monarch_jobs_ended_total", {{"counters", counters}});
  }
};

TEST_F(MetricsTest, AnEndThatIsNotedTwiceCountsOnce) {
  JobRecord job = begin(1);
  const JobRecord other = begin(2), lost = begin(3);
  const JobCounters seven = counters(7), nine = counters(9), two = counters(2);
  for (const JobCounters* c : {&seven, &seven, &two}) {
    EXPECT_TRUE(note_end(state_, job, c).ok());
    EXPECT_EQ(staged(), 7u) << "nor does one that tells less";
    EXPECT_EQ(ended("read"), 0u) << "its record is there still";
  }
  ++job.serial;
  ASSERT_TRUE(state_.write_record(job).ok());
  EXPECT_EQ(ended("read"), 1u);
  EXPECT_TRUE(note_end(state_, job, &seven).ok());
  EXPECT_EQ(staged(), 14u) << "the next run of a job is another";
  ASSERT_TRUE(state_.remove_job(job.job.key()).ok());
  EXPECT_TRUE(note_end(state_, other, &nine).ok());
  EXPECT_EQ(staged(), 23u);
  EXPECT_EQ(ended("read"), 2u);
  ASSERT_TRUE(state_.remove_job(other.job.key()).ok());
  EXPECT_TRUE(note_end(state_, lost, nullptr).ok());
  ASSERT_TRUE(state_.remove_job(lost.job.key()).ok());
  EXPECT_EQ(staged(), 23u);
  EXPECT_EQ(ended("read"), 3u);
  EXPECT_EQ(ended("lost"), 1u);
}

TEST_F(MetricsTest, WhatNoNodeCanCountIsNotBelieved) {
  constexpr uint64_t kSecond = uint64_t{1} << 41;
  const JobRecord young = begin(1), old = begin(2, 1000);
  for (const uint64_t most : {kMostCount, UINT64_MAX, 100 * kSecond}) {
    const JobCounters c = counters(most);
    EXPECT_TRUE(note_end(state_, young, &c).ok());
    EXPECT_EQ(staged(), 0u) << most;
  }
  const JobCounters c = counters(100 * kSecond);
  EXPECT_TRUE(note_end(state_, old, &c).ok());
  EXPECT_EQ(staged(), 100 * kSecond) << "in a thousand seconds";
}

TEST_F(MetricsTest, WhatADiskHasSpoiltBeginsAnew) {
  const JobRecord job = begin(1);
  const JobCounters seven = counters(7);
  EXPECT_TRUE(note_end(state_, job, &seven).ok());
  const Result<std::string> whole = state_.read("metrics");
  ASSERT_TRUE(whole.ok());
  for (const std::string& spoilt :
       {std::string(), std::string("[]"), whole->substr(0, whole->size() / 2), std::string("{\"ended\":[1]}"),
        std::string("{\"ended\":[[\"x\",{\"y\":1},2]],\"jobs\":[]}"),
        std::string("{\"ended\":{},\"jobs\":[3]}")}) {
    ASSERT_TRUE(state_.write("metrics", spoilt).ok());
    EXPECT_EQ(staged(), 0u) << spoilt;
  }
}

TEST_F(MetricsTest, EachJobHasItsState) {
  JobRecord running = begin(1), died = begin(2);
  running.agent = died.agent = *identify(::getpid());
  ++died.agent.start_time;
  ASSERT_TRUE(state_.write_record(running).ok() && state_.write_record(died).ok());
  const char* const others[] = {R"({"wanted": "/data"})", R"({"failed": "0 boot"})",
                                R"({"failed": "0 boot", "refused": true})", "{"};
  for (size_t i = 0; i < std::size(others); ++i)
    scratch_.file("state/jobs/c." + std::to_string(i + 3) + ".n1/record.json", others[i]);
  for (const char* state : {"running", "agent_died", "pending", "failed", "refused", "unknown"})
    EXPECT_EQ(told("monarch_jobs", {{"state", state}}), 1u) << state;
  EXPECT_EQ(told("monarch_sacct_lines_waiting"), 0u);
  ASSERT_TRUE(state_.write("spool/c.1.0.n1.1.1.json", "").ok());
  EXPECT_EQ(told("monarch_sacct_lines_waiting"), 1u);
}

TEST_F(MetricsTest, EveryFallbackHasItsReason) {
  constexpr const char* kNames[] = {
#define X(name, doc) #name,
      MONARCH_TASK_COUNTERS(X)
#undef X
  };
  for (const Fallback& f : kFallbacks)
    EXPECT_EQ(std::string("fallback_") + f.name, kNames[static_cast<uint32_t>(f.counter)]);
  const auto is_one = [](const char* name) { return std::string(name).starts_with("fallback_"); };
  EXPECT_EQ(std::count_if(std::begin(kNames), std::end(kNames), is_one), std::ssize(kFallbacks));
}

}  // namespace
}  // namespace monarch
