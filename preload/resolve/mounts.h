// SPDX-License-Identifier: Apache-2.0
// What is mounted below a root in this process's mount namespace: what that hides is not the dataset's here.
#pragma once

#include "preload/client/client.h"

namespace monarch::preload {

// Whether something that the agent does not see may be mounted over the path, or over a directory above it.
// Never in the agent's mount namespace. In another one the mounts are looked at when this is asked first,
// after forget_mounts(), and again once a second; what was hidden once stays so. True also where they cannot
// be told (no /proc). errno stays as it is.
bool may_be_hidden(const Client& client, const RelPath& path);

// The process may be in another mount namespace from now on, or see other mounts.
void forget_mounts();

}  // namespace monarch::preload
