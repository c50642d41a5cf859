// SPDX-License-Identifier: Apache-2.0
// What values of monarch.conf(5) mean, for the files that read its sections.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "runtime/base/result.h"
#include "runtime/config/config.h"

namespace monarch {

// So many bytes, opens or the like (per second); 0 for no limit.
Result<uint64_t> parse_rate(const std::string& text);
Result<bool> parse_switch(const std::string& text);
// Of a directory: absolute, without "..", clean.
Result<std::string> parse_path(const std::string& text);
Result<Quota> parse_job_capacity(const std::string& text);

// Puts a parsed value in its place; hands on the error otherwise.
template <typename T, typename Place>
Status assign(Result<T> parsed, Place* place) {
  if (!parsed.ok()) return parsed.error();
  *place = std::move(*parsed);
  return {};
}

}  // namespace monarch
