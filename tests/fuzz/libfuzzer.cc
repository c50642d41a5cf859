// SPDX-License-Identifier: Apache-2.0
// One target, as libFuzzer calls it.
#include <spdlog/spdlog.h>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerInitialize(int*, char***);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  monarch::fuzz::FUZZ_TARGET(data, size);
  return 0;
}
