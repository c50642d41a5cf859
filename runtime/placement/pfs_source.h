// SPDX-License-Identifier: Apache-2.0
// The PFS, as the only source of a dataset's files.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/dataset.h"
#include "runtime/placement/source.h"

namespace monarch {

class PfsSource : public Source {
 public:
  // All outlive it.
  PfsSource(Catalog* catalog, const Dataset* dataset, Board* board, Rates* rates)
      : catalog_(catalog), dataset_(dataset), board_(board), rates_(rates) {}

  std::unique_ptr<SourceFile> open(Ref ref, const std::string& path, Need need,
                                   const Copier& copier) override;
  bool is_ours(Ref) override { return true; }
  void copied(Ref, int) override {}
  void given_up(Ref) override {}

  // Opens the file for reading. Empty: errno says why. `waits` is called again and again while it waits for a
  // rate.
  Fd open_for_reading(Ref ref, const std::string& path, Need need, const Copier& copier,
                      const std::function<void()>& waits = nullptr) const;

 private:
  Catalog* const catalog_;
  const Dataset* const dataset_;
  Board* const board_;
  Rates* const rates_;
};

}  // namespace monarch
