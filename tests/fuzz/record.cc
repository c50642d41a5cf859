// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>

#include "runtime/node/state.h"
#include "tests/fuzz/targets.h"

namespace monarch::fuzz {
namespace {

JobOnNode the_job() {
  JobOnNode job;
  job.job = 1;
  job.node = "n";
  return job;
}

}  // namespace

void record(const uint8_t* data, size_t size) {
  static const Directory at;
  static const std::unique_ptr<StateDir> state = [] {
    Result<StateDir> opened = StateDir::open(at.path());
    FUZZ_CHECK(opened.ok());
    std::filesystem::create_directory(at.path() + "/jobs/" + the_job().key());
    return std::make_unique<StateDir>(opened.take());
  }();
  at.write("jobs/" + the_job().key() + "/record.json", data, size);
  Result<JobRecord> read = state->read_record(the_job().key());
  if (!read.ok()) {
    FUZZ_CHECK(!read.error().text.empty());
    return;
  }
  // What is written of it reads the same.
  read->job = the_job();
  FUZZ_CHECK(state->write_record(*read).ok());
  const Result<JobRecord> again = state->read_record(the_job().key());
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again->name == read->name && again->user.uid == read->user.uid &&
             again->agent.pid == read->agent.pid && again->run_dir == read->run_dir &&
             again->tiers.size() == read->tiers.size());
  for (size_t i = 0; i < read->tiers.size(); ++i) {
    const TierRecord &a = read->tiers[i], &b = again->tiers[i];
    FUZZ_CHECK(a.quota == b.quota && a.share == b.share && a.to_job == b.to_job);
  }
  // Root joins these to paths of its own.
  const std::string name = read->name;
  FUZZ_CHECK(!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos);
  FUZZ_CHECK(name.size() == std::string(name.c_str()).size() && read->run_dir[0] == '/' &&
             read->agent.pid >= 0);
}

}  // namespace monarch::fuzz
