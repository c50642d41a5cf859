// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/layout/order_layout.h"
#include "runtime/placement/order.h"

namespace monarch {

// The pieces in `bytes`, until one that makes no sense; *fault says then what is wrong, and is else empty.
std::vector<OrderPiece> parse_order(std::string_view bytes, std::string* fault);

// The agent's side of the letter box (order_layout.h), which it makes unless root has. One thread.
class OrderWatch {
 public:
  explicit OrderWatch(int run_dir);
  // Readable when there may be something new; -1: nothing tells.
  int fd() const { return notify_.get(); }
  // Takes what is there, unless somebody is writing, who will tell. Never waits.
  std::vector<OrderPiece> take();

 private:
  std::string read_all() const;

  Fd file_, notify_;
};

}  // namespace monarch
