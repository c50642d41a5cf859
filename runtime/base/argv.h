// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace monarch {

// `words` as execve(2) wants them: pointers into the strings, and a null pointer at the end.
inline std::vector<char*> argv_of(std::vector<std::string>& words) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return argv;
}

}  // namespace monarch
