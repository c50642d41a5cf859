// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/acl.h"

#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/xattr.h>

#include <cstdint>

namespace monarch {
namespace {

// As on disk: little-endian, and sorted by tag.
struct OnDisk {
  posix_acl_xattr_header header;
  posix_acl_xattr_entry entries[5];
};

}  // namespace

bool let_in(const std::string& path, uid_t uid, LetIn how) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  constexpr uint16_t kAll = ACL_READ | ACL_WRITE | ACL_EXECUTE;
  const uint16_t its = how == LetIn::kList ? ACL_READ | ACL_EXECUTE : ACL_EXECUTE;
  const auto nobody = static_cast<uint32_t>(ACL_UNDEFINED_ID);
  const OnDisk acl = {{POSIX_ACL_XATTR_VERSION},
                      {{ACL_USER_OBJ, kAll, nobody},
                       {ACL_USER, its, uid},
                       {ACL_GROUP_OBJ, 0, nobody},
                       {ACL_MASK, its, nobody},
                       {ACL_OTHER, 0, nobody}}};
  return ::setxattr(path.c_str(), "system.posix_acl_access", &acl, sizeof acl, 0) == 0;
}

}  // namespace monarch
