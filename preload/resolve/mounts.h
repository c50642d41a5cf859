// SPDX-License-Identifier: Apache-2.0
// What is mounted below a root in this process's mount namespace: what that hides is not the dataset's here.
#pragma once

#include "preload/client/client.h"
#include "preload/next/kernel.h"

namespace monarch::preload {

// Whether something that the agent does not see may be mounted below the path's root. Never in the agent's
// mount namespace. In another one the mounts are looked at when this is asked first, after forget_mounts(),
// and again once a second; a root of which something was hidden once stays so. True also where they cannot be
// told (no /proc). errno stays as it is.
bool may_be_hidden(const Client& client, const RelPath& path);

// STATX_MNT_ID and STATX_MNT_ID_UNIQUE, whichever the kernel knows; the latter is no other mount's ever.
inline constexpr unsigned kMountId = 0x1000 | 0x4000;
// The mount that a statx with kMountId told of; 0: the kernel does not tell. libc's header may be too old to
// name it.
inline uint64_t mount_id(const struct statx& st) {
  constexpr size_t kAt = 0x90;
  uint64_t id = 0;
  if ((st.stx_mask & kMountId) != 0) memcpy(&id, reinterpret_cast<const char*>(&st) + kAt, sizeof id);
  return id;
}

// The process may be in another mount namespace from now on, or see other mounts.
void forget_mounts();

}  // namespace monarch::preload
