// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "runtime/base/log.h"
#include "tests/scratch.h"

namespace spdlog {
class logger;
}

namespace monarch {

namespace spdlog {  // as in runtime/base/log.h

std::shared_ptr<::spdlog::logger> default_logger();
void set_default_logger(std::shared_ptr<::spdlog::logger> logger);

}  // namespace spdlog

// What `body` logs, in a file that is in `scratch` meanwhile.
inline std::string logged(const Scratch& scratch, const std::function<void()>& body) {
  const auto before = spdlog::default_logger();
  EXPECT_TRUE(open_log(scratch / "log", "info").ok());
  body();
  static std::vector<std::shared_ptr<::spdlog::logger>> kept;  // threads that go on may be using it
  kept.push_back(spdlog::default_logger());
  spdlog::set_default_logger(before);
  std::string text = contents(scratch / "log");
  std::filesystem::remove(scratch / "log");
  return text;
}

}  // namespace monarch
