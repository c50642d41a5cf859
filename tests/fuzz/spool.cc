// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "runtime/node/spool.h"
#include "tests/fuzz/targets.h"

namespace monarch::fuzz {

void spool(const uint8_t* data, size_t size) {
  static const Directory at;
  static const std::unique_ptr<StateDir> state = [] {
    Result<StateDir> opened = StateDir::open(at.path());
    FUZZ_CHECK(opened.ok());
    return std::make_unique<StateDir>(opened.take());
  }();
  at.write("spool/a.1.1.json", data, size);
  (void)flush(*state, {"/nonexistent", ""}, SpoolConfig(), Lines::kAll).ok();
}

}  // namespace monarch::fuzz
