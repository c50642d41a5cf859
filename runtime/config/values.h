// SPDX-License-Identifier: Apache-2.0
// What values of monarch.conf(5) mean, for the files that read its sections.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"

namespace monarch {

// So many bytes (per second); 0 for no limit.
Result<uint64_t> parse_rate(const std::string& text);
// So many files, calls or the like (per second); 0 for no limit.
Result<uint64_t> parse_number(const std::string& text);
Result<bool> parse_switch(const std::string& text);
// Of a directory: absolute, without "..", clean.
Result<std::string> parse_path(const std::string& text);
Result<Quota> parse_job_capacity(const std::string& text);
// The words between separators, without the blanks around them and without empty ones.
std::vector<std::string> split_list(const std::string& text, char separator);
Error unknown_key(const std::string& key, const std::string& section, const std::vector<std::string>& known);

// As parse_size(), parse_quota() and these read them; exactly, unlike format_size().
std::string size_text(uint64_t bytes);
std::string quota_text(const Quota& quota);
std::string rate_text(uint64_t rate);
std::string switch_text(bool on);

// Puts a parsed value in its place; hands on the error otherwise.
template <typename T, typename Place>
Status assign(Result<T> parsed, Place* place) {
  if (!parsed.ok()) return parsed.error();
  *place = std::move(*parsed);
  return {};
}

}  // namespace monarch
