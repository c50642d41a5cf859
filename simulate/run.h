// SPDX-License-Identifier: Apache-2.0
// A run of a training job: seconds and bytes, by where samples came from.
#pragma once

#include <string>
#include <vector>

#include "simulate/accesses.h"
#include "simulate/model.h"
#include "simulate/plan.h"

namespace monarch::simulate {

// By source: the node's own tiers first, then other nodes, then the PFS.
struct Outcome {
  std::string refusal;  // why the policy cannot run; all else is then 0
  // The parts of the run: before training; computing; waiting for samples of each source. The latter two are
  // those of the slowest node of each batch, since all nodes end a batch together.
  double seconds = 0, staging = 0, computing = 0;
  std::vector<double> waiting;
  std::vector<double> read;  // MB that were read for the computation, on all nodes
  double pfs = 0;            // MB from the PFS in all, copies included
  double coverage = 1;       // part of the dataset's samples that are read
};

// kNopfs: as in the simulator of the NoPFS paper, each thread has the whole of its node's share of the PFS,
// and of the network, and its fixed part of a tier. kNone: threads that read at the same time share these.
enum class Compat { kNone, kNopfs };

// Takes one or two seconds for a million reads.
Outcome run(const Machine& machine, const Accesses& accesses, const Policy& policy, Compat compat);

}  // namespace monarch::simulate
