// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/patience.h"
#include "runtime/hierarchy/grant.h"

namespace monarch {

// Watches the file by which root tells quotas, which grow. Costs an idle agent nothing where inotify(7) is to
// be had; else a look every kLookMs. One thread.
class GrantWatch {
 public:
  static constexpr int kLookMs = patience::kIdleLookNs / 1'000'000;
  // `file` empty: there is none.
  explicit GrantWatch(std::string file);
  // Readable when there may be something new; -1: nothing tells.
  int fd() const { return notify_.get(); }
  // How long to wait for that before look() is called all the same, as poll(2) takes it.
  int wait_ms() const { return file_.empty() || watching_ ? -1 : kLookMs; }
  // What is granted now, if it is another text than at the last look.
  std::optional<Grants> look();

 private:
  const std::string file_;
  Fd notify_;
  bool watching_ = false;
  std::string seen_;
};

}  // namespace monarch
