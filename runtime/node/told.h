// SPDX-License-Identifier: Apache-2.0
// What the plugin tells root's helper by variables of its environment, since all users can read command
// lines.
#pragma once

#include <string>

namespace monarch {

// The variable's value, or "". It is not in the environment afterwards, nor in /proc/PID/environ.
std::string take_told(const char* variable);

}  // namespace monarch
