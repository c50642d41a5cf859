// SPDX-License-Identifier: Apache-2.0
// Directories of root's that one user may enter.
#pragma once

#include <sys/types.h>

#include <string>

namespace monarch {

enum class LetIn {
  kEnter,  // by names that the user knows
  kList,
};

// Gives the directory at `path`, root's, an access control list (acl(5)): root may do all, `uid` what `how`
// says, and nobody else anything. False: errno says why.
bool let_in(const std::string& path, uid_t uid, LetIn how);

}  // namespace monarch
