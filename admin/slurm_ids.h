// SPDX-License-Identifier: Apache-2.0
// Jobs of Slurm's that have several names: elements of an array (4711_3) and components of a heterogeneous
// job (4711+1), each of which has a number of its own, by which all of Monarch knows it.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace monarch::admin {

// What sacct prints of a job, NUMBER or NUMBER@CLUSTER, with '=' before it, or with '!' where it fails.
Result<std::string> ask_sacct(const std::string& name, const char* fields);

struct JobPart {
  std::string name, number;  // "4711_3", "4712"
};
// Those of a job that squeue knows, or else sacct; none: it has none, or neither tells within seconds.
std::vector<JobPart> parts_of(const std::string& name);

// "4711_1, 4711_2 ..."
std::string names_of(const std::vector<JobPart>& parts);

// The name by the part's own number; as it is where it names no part, or nobody tells.
std::string by_own_number(const std::string& name);

}  // namespace monarch::admin
