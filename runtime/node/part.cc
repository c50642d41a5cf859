// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/part.h"

#include <sys/stat.h>

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/base/number.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/size.h"

namespace monarch {
namespace {

constexpr size_t kMostBytes = 64;
std::string known_file(const JobOnNode& job) { return "cores." + job.cluster + "." + job.node; }

uint32_t parse_cores(const std::string& text) {
  const size_t end = text.find('\n');
  return end == std::string::npos ? 0 : to_number<uint32_t>(text.substr(0, end)).value_or(0);
}

// Of 0, nothing is known.
double fraction(uint64_t part, uint64_t whole) {
  return part == 0 || whole == 0 ? 1 : std::min(1.0, static_cast<double>(part) / static_cast<double>(whole));
}

// How many jobs there will be is not known at a job's start: kEqual is as kCpus.
double part_of(TierConfig::Share share, const NodePart& part) {
  const bool has_all_cores = part.node_cores != 0 && part.cores >= part.node_cores;
  if (has_all_cores || share == TierConfig::Share::kWhole) return 1;
  return share == TierConfig::Share::kMemory ? fraction(part.memory, part.node_memory)
                                             : fraction(part.cores, part.node_cores);
}

}  // namespace

uint64_t share_of(const TierConfig& tier, const NodePart& part) {
  const uint64_t quota = tier.quota.bytes;
  const double of_node = part_of(tier.share, part);
  uint64_t share = of_node >= 1 ? quota : static_cast<uint64_t>(of_node * static_cast<double>(quota));
  if (tier.job_capacity.percent != 100) share = std::min(share, tier.job_capacity.of(quota));
  if (tier.charge == TierConfig::Charge::kJob) share = std::min(share, part.memory);
  return share == quota ? quota : std::max(share / kSpaceBlock, uint64_t{1}) * kSpaceBlock;
}

CoresQuestion::CoresQuestion(const StateDir& state, const JobOnNode& job, const OfCluster& cluster)
    : state_(state), job_(job) {
  struct stat st;
  const int64_t now = os::realtime_s();
  if (::stat((state.path() + "/" + known_file(job)).c_str(), &st) == 0 && st.st_mtim.tv_sec <= now &&
      now - st.st_mtim.tv_sec < patience::kBelievedSeconds) {
    const Result<std::string> known = state.read(known_file(job));
    known_ = known.ok() ? parse_cores(*known) : 0;
  }
  if (known_ == 0 && !cluster.account_program.empty())
    program_.emplace(std::vector<std::string>{cluster.account_program, "--cores", job.node},
                     cluster.slurm_conf);
}

uint32_t CoresQuestion::answer(int patience_ms) {
  if (!program_) return known_;
  const Result<std::string> said = program_->output(patience_ms, kMostBytes, state_.clock());
  known_ = said.ok() ? parse_cores(*said) : 0;
  program_.reset();
  if (known_ == 0)
    spdlog::warn("JobId={} may use the whole quotas, as the cores of {} are not known: {}", job_.job,
                 job_.node, said.ok() ? "monarch_account --cores prints no number" : said.error().text);
  else if (const Status s = state_.write(known_file(job_), *said); !s.ok())
    spdlog::debug("JobId={} {}", job_.job, s.error().text);
  return known_;
}

}  // namespace monarch
