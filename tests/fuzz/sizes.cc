// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/size.h"

#include <cmath>

#include "runtime/config/config.h"
#include "tests/fuzz/targets.h"

namespace monarch::fuzz {

void sizes(const uint8_t* data, size_t size) {
  const std::string text = text_of(data, size);
  if (const Result<uint64_t> bytes = parse_size(text); bytes.ok()) {
    // What we write, we read, to three digits; E is for what no admin writes.
    const std::string shown = format_size(*bytes);
    FUZZ_CHECK(!shown.empty() && shown.size() <= 6);
    if (shown.back() != 'E') {
      const Result<uint64_t> again = parse_size(shown);
      FUZZ_CHECK(again.ok());
      FUZZ_CHECK(std::abs(static_cast<double>(*again) - static_cast<double>(*bytes)) <=
                 0.006 * static_cast<double>(*bytes));
    }
  }
  if (const Result<Quota> quota = parse_quota(text); quota.ok()) {
    FUZZ_CHECK(quota->percent <= 100);
    for (const uint64_t total : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, uint64_t{1} << 62})
      FUZZ_CHECK(quota->percent < 0 || quota->of(total) <= total);
  }
  if (const Result<TierConfig> tier = parse_tier_option(text); tier.ok())
    FUZZ_CHECK(!tier->name.empty() && !tier->path.empty() && tier->path[0] == '/');
}

}  // namespace monarch::fuzz
