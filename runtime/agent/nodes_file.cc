// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/nodes_file.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/base/patience.h"

namespace monarch {

void NodesFile::look() {
  const int64_t now = clock_.now_ns();
  const MutexLock hold(lock_);
  if (ended_ || (looked_ns_ != 0 && now - looked_ns_ < patience::kNodesFileNs)) return;
  looked_ns_ = now;
  write();
}

void NodesFile::end() {
  const MutexLock hold(lock_);
  ended_ = true;
  write();
}

void NodesFile::write() {
  std::vector<NodeTold> told = peers_->told();
  if (told.empty()) return;
  told[0].ended = ended_ ? 1 : 0;
  const size_t count = std::min<size_t>(told.size(), kMostNodesTold);
  for (size_t i = 0; i < std::min(count, names_.size()); ++i)
    names_[i].copy(told[i].name, sizeof told[i].name - 1);
  if (nodes_ && nodes_->count == count && std::equal(nodes_->told, nodes_->told + count, told.begin()))
    return;
  if (!nodes_) nodes_ = std::make_unique<NodesTold>();
  nodes_->magic = kNodesToldMagic;
  nodes_->nodes = told.size();
  nodes_->count = count;
  std::copy_n(told.begin(), count, nodes_->told);
  if (const Status written = write_nodes_told(run_dir_, *nodes_); !written.ok()) {
    spdlog::debug("{}", written.error().text);  // the next one may be
    nodes_->count = 0;
  }
}

}  // namespace monarch
