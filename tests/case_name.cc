// SPDX-License-Identifier: Apache-2.0
// A process of the unit tests, and what it forks, bears its case's name (comm in /proc): what is left behind
// says whose it is.
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include "runtime/base/log.h"

namespace {

class NamesProcess : public testing::EmptyTestEventListener {
  // The first who logs makes what all use, in a library that a thread sanitizer does not see into.
  void OnTestProgramStart(const testing::UnitTest&) override { monarch::spdlog::debug("begins"); }
  void OnTestStart(const testing::TestInfo& test) override { ::prctl(PR_SET_NAME, test.name()); }
};

const bool names = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new NamesProcess);
  return true;
}();

}  // namespace
