// SPDX-License-Identifier: Apache-2.0
// Which node reads which sample when: each epoch is a new random order of all samples. A batch of the job is
// as many of the next samples as its nodes take together, a run of them for each node. Where each node reads
// all samples, it has an order of its own. The samples that do not fill the last batch are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulate/model.h"

namespace monarch::simulate {

class Accesses {
 public:
  // As many as `dataset` and `nodes` say; there are none if a batch of the job is larger than the dataset.
  Accesses(const Dataset& dataset, uint32_t nodes);

  size_t nodes() const { return reads_.size(); }
  size_t batch() const { return batch_; }  // of a node
  size_t samples() const { return sizes_.size(); }
  double size(uint32_t sample) const { return static_cast<double>(sizes_[sample]); }
  double total() const { return total_; }
  // What a node reads, over all epochs.
  const std::vector<uint32_t>& of(size_t node) const { return reads_[node]; }
  const std::vector<std::vector<uint32_t>>& all() const { return reads_; }

 private:
  size_t batch_;
  double total_ = 0;
  std::vector<float> sizes_;
  std::vector<std::vector<uint32_t>> reads_;
};

// The same order for the same seed, whatever the C++ library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint32_t below(uint32_t n);
  double normal();
  void shuffle(std::vector<uint32_t>* values);

 private:
  uint64_t next();
  uint64_t state_;
};

}  // namespace monarch::simulate
