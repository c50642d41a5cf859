// SPDX-License-Identifier: Apache-2.0
// The targets of dev/fuzz with the inputs that are kept: seeds, and what once broke something.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "build_config.h"
#include "runtime/peer/messages.h"
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
    {"store", &fuzz::store},
#ifdef HAVE_SLURM
    {"options", &fuzz::options},
#endif
};

std::string name_of(const ::testing::TestParamInfo<Target>& info) { return info.param.name; }

class FuzzTest : public ::testing::TestWithParam<Target> {};

std::string inputs_of(const char* target) {
  const char* tree = ::getenv("MONARCH_SRCDIR");
  return std::string(tree ? tree : ".") + "/tests/fuzz/seeds/" + target;
}

std::string content_of(const std::filesystem::directory_entry& entry) {
  std::ifstream in(entry.path(), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

TEST_P(FuzzTest, KeptInputs) {
  const bool needs_root =
      std::count(std::begin(fuzz::kNeedRoot), std::end(fuzz::kNeedRoot), std::string(GetParam().name)) != 0;
  if (needs_root && ::geteuid() != 0) GTEST_SKIP() << "needs root, whose the state directory is";
  const std::string dir = inputs_of(GetParam().name);
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    SCOPED_TRACE(entry.path());
    const std::string text = content_of(entry);
    GetParam().run(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    // All that begins as it does, too: ends of input are where parsers read on.
    for (size_t size = 0; size < text.size(); size += std::max<size_t>(1, text.size() / 64))
      GetParam().run(reinterpret_cast<const uint8_t*>(text.data()), size);
    ++seen;
  }
  EXPECT_GT(seen, 0) << dir << " holds no input";
}

// From an input that is refused at once a fuzzer learns little.
TEST(FuzzInputsTest, EachMessageIsAmongThem) {
  std::set<uint16_t> all, known;
  for (const auto& entry : std::filesystem::directory_iterator(inputs_of("messages"))) {
    const std::string text = content_of(entry);
    all.merge(fuzz::types_of_messages(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  }
  for (uint16_t type = 0; type < 100; ++type) {
    MessageHeader header;
    header.type = static_cast<MessageType>(type);
    if (decode_header(encode_message(header, {}))) known.insert(type);
  }
  EXPECT_EQ(all, known);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzTest, ::testing::ValuesIn(kTargets), name_of);

}  // namespace
}  // namespace monarch
