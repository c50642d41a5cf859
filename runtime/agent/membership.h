// SPDX-License-Identifier: Apache-2.0
// What an agent knows of the agents on its job's other nodes when it starts: who they are, where they can be,
// and the key that proves them. It comes from root's helper, or from `monarchctl run --peers`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/peer/job.h"

namespace monarch {

struct NodeAddress {
  std::string name;             // in Slurm; elsewhere the address
  std::string host;             // numeric, or "-", which cannot be reached
  std::vector<uint16_t> ports;  // its agent listens on the first of them that was free
};

struct PeerMembership {
  std::vector<NodeAddress> nodes;  // by index; this one's own among them
  NodeIndex own = 0;
  JobKey key{};
  std::string identity;  // names the key: CLUSTER.JOB.RESTART
};

// The ports that a job's agents try, in this order: all from `first` to `last`, but at most 16, from one that
// the job's identity says, so that jobs which share nodes seldom meet.
std::vector<uint16_t> ports_of(const std::string& identity, uint16_t first, uint16_t last);

// One node in each line, node 0 first: NAME ADDRESS, of a node that listens on one of `ports`, or
// ADDRESS:PORT, with [ADDRESS]:PORT for version 6. At least two. Errors name the line.
Result<std::vector<NodeAddress>> parse_nodes(const std::string& text, const std::vector<uint16_t>& ports);
// The same of a file.
Result<std::vector<NodeAddress>> read_nodes(const std::string& file, const std::vector<uint16_t>& ports);

// 32 bytes and the end of file from `fd`, which is closed.
Result<JobKey> take_key(int fd);
// The same from a file, which is refused if others than its owner can read it.
Result<JobKey> read_key_file(const std::string& file);

// As the agent's command line has it.
struct PeerArguments {
  std::string file;  // of parse_nodes()
  uint32_t index = 0;
  std::string identity;
  int key_fd = -1;
};
// Reads the file, and the key from its descriptor.
Result<PeerMembership> read_membership(const PeerArguments& arguments, const PeerConfig& config);

}  // namespace monarch
