// SPDX-License-Identifier: Apache-2.0
#include "tests/logged.h"

#include <spdlog/spdlog.h>

namespace monarch::spdlog {

std::shared_ptr<::spdlog::logger> default_logger() { return ::spdlog::default_logger(); }
void set_default_logger(std::shared_ptr<::spdlog::logger> logger) {
  ::spdlog::set_default_logger(std::move(logger));
}

}  // namespace monarch::spdlog
