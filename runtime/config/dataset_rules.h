// SPDX-License-Identifier: Apache-2.0
// Which directories the administrator lets be datasets.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/config/config.h"

namespace monarch {

// An error's code, which is no errno: a job is turned away by the administrator's rules, or by what it asks
// for itself. Nothing has failed.
inline constexpr int kRefused = 4096;
// What the agent says of it to who started it begins so.
inline constexpr char kRefusedWord[] = "refused\t";

// Whether a denied directory is above, at or below `path`, absolute and clean; kRefused, with a text for the
// user, who calls it `given`. Looks at no file.
Status check_denied(const DatasetRules& rules, const std::string& path, const std::string& given);

// The same, and whether an allowed directory is above or at it, of a directory by its real path. Rules are
// compared as they are, and as what they lead to: so it looks at files, with the caller's rights.
Status check_rules(const DatasetRules& rules, const std::string& real, const std::string& given);

}  // namespace monarch
