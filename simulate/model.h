// SPDX-License-Identifier: Apache-2.0
// What is simulated: a machine and a dataset. Sizes are in MB, rates in MB/s, times in seconds.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace monarch::simulate {

// The rate that so many threads or nodes have together: linear between its points, constant outside.
class Curve {
 public:
  Curve() = default;
  // In ascending order of their first, which is at least 1.
  explicit Curve(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {}
  double at(double n) const;
  double each(double n) const { return at(n) / n; }
  bool empty() const { return points_.empty(); }

 private:
  std::vector<std::pair<double, double>> points_;
};

struct Tier {
  std::string name;
  double capacity = 0;
  uint32_t threads = 1;  // that copy into it
  Curve read, write;     // by threads
};

struct Machine {
  uint32_t nodes = 1;
  double compute = 0;       // of a node
  double preprocess = 0;    // of a thread
  Curve network;            // of a node and each direction, by its threads that receive
  double pfs_link = 0;      // of a node
  Curve pfs;                // by nodes that read
  double pfs_open = 0;      // of a sample, before its first byte comes
  uint32_t per_host = 1;    // so many nodes share the processors of a host, which bound network and tiers
  double lost_every = 0;    // seconds after which a node, each in its turn, begins anew with empty tiers
  Tier staging;             // the buffer before the computation; `threads` read samples into it
  std::vector<Tier> tiers;  // the fastest first
};

struct Dataset {
  uint32_t samples = 0;
  double mean = 0, deviation = 0;  // of their sizes, normal and cut at 0
  uint32_t epochs = 1;
  uint32_t batch = 1;  // samples of a node
  uint32_t seed = 1;
  enum class Reads { kPart, kAll } reads = Reads::kPart;  // of each node in an epoch
};

}  // namespace monarch::simulate
