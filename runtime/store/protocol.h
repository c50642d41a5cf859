// SPDX-License-Identifier: Apache-2.0
// What an agent asks root's store of a tier (server.h), and what that answers: numbers of fixed size.
// Requests go through a pipe, which carries no descriptors, answers through a SOCK_SEQPACKET socket, one for
// each request in order, with a descriptor beside those that give a file.
#pragma once

#include <time.h>

#include <cstdint>

namespace monarch {

enum class AskKind : uint32_t {
  kNew = 1,  // slot: a nameless file in it, in place of the one there
  kPublish,  // slot, ref, bytes, times: its file is the entry's copy, of so many bytes; kNew follows
  kPart,     // slot, ref, bytes: its file is the entry's partial copy, and will take so many; kNew follows
  kFinish,   // ref, bytes, times: the partial copy is whole
  kReopen,   // ref: the partial copy, for writing
  kLink,     // ref, other: the entry's copy is the other entry's, too
  kLook,     // ref: EBUSY if somebody has its copy open, or had, and has still, when its name was removed
  kRemove,   // ref: takes its name away
  kRoom,     // reads anew how much root grants
};
inline constexpr auto kLastAskKind = static_cast<uint32_t>(AskKind::kRoom);

// Files that are being made at a time: an agent has as many as copy threads.
inline constexpr uint32_t kStoreSlots = 512;

struct StoreAsk {
  uint32_t kind = 0, slot = 0, ref = 0, other = 0;
  uint64_t bytes = 0, zero = 0;
  timespec atime = {}, mtime = {};
};
static_assert(sizeof(StoreAsk) == 64);

struct StoreTold {
  int32_t error = 0;               // an errno value; 0: done
  uint32_t slot = 0;               // that was asked for
  uint64_t used = 0, granted = 0;  // bytes: what names count, and removed files that are open; the most
};
static_assert(sizeof(StoreTold) == 24);

}  // namespace monarch
