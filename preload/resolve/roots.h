// SPDX-License-Identifier: Apache-2.0
// What this process knows of the dataset's roots: whether their paths lead to them here, what is mounted
// below them, and whether it may be told what the agent saw. Facts are kept until forget_directories(); a
// call of the kernel's that failed is none.
#pragma once

#include "preload/client/client.h"

namespace monarch::preload {

// Whether the directory at prefix number `number` is the one that the agent saw, in this mount namespace.
bool is_same_directory(const CatalogFacts& facts, uint32_t number);
// The absolute path of a root; nullptr: this process does not see it.
const char* root_path(const Client& client, uint32_t root);
// Whether what `st` tells of (its kMountId, too) can be below a root: it is on a root's device, or seen by a
// root's mount, whose files are on other devices in a btrfs subvolume and on an overlay of several layers.
bool may_be_below_root(const CatalogFacts& facts, const struct statx& st);
// Whether the process runs as the agent's user, in its user namespace.
bool same_user(const Client& client);
// Whether files that not all may read are as open to the thread as to the agent: by its groups, or, in a job
// of root's, by its capabilities.
bool same_groups(const Client& client);
// A thread is about to change its capabilities.
void will_change_capabilities();

// Before a process attaches, in a mount namespace other than the agent's, such as a container's: has the
// facts say where the roots and the copies' directories are there, if they are mounted elsewhere.
void see_from_here(CatalogFacts* facts);
// The process may see other directories from now on under the roots' paths.
void forget_directories();
// How often that was called.
uint32_t times_forgotten();

// Which mounts the process saw when may_be_hidden() was asked last.
enum class Space : unsigned char { kUnseen, kOfAgent, kOfOther };
extern std::atomic<Space> mount_space;
// Whether those were the agent's: there nobody but root can mount anything over a tier.
inline bool sees_agents_mounts() { return mount_space.load(std::memory_order_acquire) == Space::kOfAgent; }
// Whether something that the agent does not see may be mounted below the path's root: what that hides is not
// the dataset's here. Never in the agent's mount namespace. In another one the mounts are looked at when this
// is asked first, after forget_mounts(), and again once a second; a root of which something was hidden once
// stays so. True also where they cannot be told (no /proc). errno stays as it is.
bool is_hidden(const CatalogFacts& facts, const RelPath& path);
inline bool may_be_hidden(const Client& client, const RelPath& path) {
  return __builtin_expect(!sees_agents_mounts(), 0) && is_hidden(client.catalog.facts(), path);
}
// Whether a tier's path leads to the directory that the agent has its copies in. Changes errno.
bool is_tier_there(const CatalogFacts& facts, uint32_t tier);
// The process may be in another mount namespace from now on, or see other mounts.
void forget_mounts();

}  // namespace monarch::preload
