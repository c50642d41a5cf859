// SPDX-License-Identifier: Apache-2.0
// What a policy depends on, of a job that begins on this node: asked as root of slurmctld and of the name
// services, never of the job's environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/node/child.h"
#include "runtime/node/state.h"

namespace monarch {

struct JobFacts {
  User user;
  bool asked = false;  // there are sections of partitions, accounts or QOS
  bool known = false;  // slurmctld has told these:
  std::string partition, account, qos;
  bool named = false;               // these were looked up, as far as a list names users or groups:
  std::string user_name;            // "": the user has none
  std::vector<std::string> groups;  // of those in lists, the user's
};

bool is_number(const std::string& word);

// One question for all that the sections of policy depend on; slurmctld is asked once in a run of the job on
// this node.
class JobQuestion {
 public:
  // `run` tells this run of the job from others. Does not wait, and asks nothing that no section needs.
  JobQuestion(const StateDir& state, const JobOnNode& job, const std::string& run, const User& user,
              const Config& config, const OfCluster& cluster);
  // Waits until a second after the question at most. What is not known then is in the log.
  const JobFacts& answer();
  // For later starts.
  void note(JobNotes* notes) const;

 private:
  bool take(const std::string& text);
  void take_names(const std::string& text);

  const StateDir& state_;
  const JobOnNode job_;
  const std::string run_;
  const int64_t end_ms_;
  JobFacts facts_;
  std::optional<Child> program_;
  std::optional<Child> names_;  // looks names up: a directory service may hang
  bool answered_ = false, is_new_ = false;
};

}  // namespace monarch
