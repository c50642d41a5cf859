// SPDX-License-Identifier: Apache-2.0
// The targets of dev/fuzz with the inputs that are kept: seeds, and what once broke something.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "build_config.h"
#include "tests/fuzz/targets.h"

namespace monarch {
namespace {

struct Target {
  const char* name;
  void (*run)(const uint8_t* data, size_t size);
};
constexpr Target kTargets[] = {
    {"board", &fuzz::board},       {"config", &fuzz::config}, {"counters", &fuzz::counters},
    {"messages", &fuzz::messages}, {"mounts", &fuzz::mounts}, {"record", &fuzz::record},
    {"sizes", &fuzz::sizes},       {"spool", &fuzz::spool},
#ifdef HAVE_SLURM
    {"options", &fuzz::options},
#endif
};

std::string name_of(const ::testing::TestParamInfo<Target>& info) { return info.param.name; }

class FuzzTest : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzTest, KeptInputs) {
  const char* tree = ::getenv("MONARCH_SRCDIR");
  const std::string dir = std::string(tree ? tree : ".") + "/tests/fuzz/seeds/" + GetParam().name;
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    SCOPED_TRACE(entry.path());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    GetParam().run(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    // All that begins as it does, too: ends of input are where parsers read on.
    for (size_t size = 0; size < text.size(); size += std::max<size_t>(1, text.size() / 64))
      GetParam().run(reinterpret_cast<const uint8_t*>(text.data()), size);
    ++seen;
  }
  EXPECT_GT(seen, 0) << dir << " holds no input";
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzTest, ::testing::ValuesIn(kTargets), name_of);

}  // namespace
}  // namespace monarch
