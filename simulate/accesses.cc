// SPDX-License-Identifier: Apache-2.0
#include "simulate/accesses.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace monarch::simulate {

// splitmix64.
uint64_t Random::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint32_t Random::below(uint32_t n) { return static_cast<uint32_t>(((next() >> 32) * n) >> 32); }

double Random::normal() {
  const double u = static_cast<double>((next() >> 11) + 1) * 0x1p-53;
  const double v = static_cast<double>(next() >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

void Random::shuffle(std::vector<uint32_t>* values) {
  uint32_t* data = values->data();
  for (auto n = static_cast<uint32_t>(values->size()); n > 1; --n) std::swap(data[n - 1], data[below(n)]);
}

Accesses::Accesses(const Dataset& dataset, uint32_t nodes)
    : batch_(dataset.batch), sizes_(dataset.samples), reads_(nodes) {
  Random random(dataset.seed);
  for (float& size : sizes_)
    size = static_cast<float>(std::max(0.0, dataset.mean + dataset.deviation * random.normal()));
  total_ = std::accumulate(sizes_.begin(), sizes_.end(), 0.0);
  const bool is_all = dataset.reads == Dataset::Reads::kAll;
  const size_t batches = sizes_.size() / (is_all ? batch_ : batch_ * nodes);
  for (std::vector<uint32_t>& reads : reads_) reads.reserve(batches * batch_ * dataset.epochs);
  std::vector<uint32_t> order(sizes_.size());
  std::iota(order.begin(), order.end(), 0);
  for (uint32_t epoch = 0; epoch < dataset.epochs; ++epoch) {
    if (is_all) {
      for (std::vector<uint32_t>& reads : reads_) {
        random.shuffle(&order);
        reads.insert(reads.end(), order.begin(), order.begin() + static_cast<ptrdiff_t>(batches * batch_));
      }
      continue;
    }
    random.shuffle(&order);
    auto at = order.begin();
    for (size_t batch = 0; batch < batches; ++batch)
      for (std::vector<uint32_t>& reads : reads_) {
        reads.insert(reads.end(), at, at + static_cast<ptrdiff_t>(batch_));
        at += static_cast<ptrdiff_t>(batch_);
      }
  }
}

}  // namespace monarch::simulate
