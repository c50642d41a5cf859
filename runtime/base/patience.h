// SPDX-License-Identifier: Apache-2.0
// How long Monarch waits for what: each constant with what it bounds, and why that value. Waits that an
// admin or a user sets are in config.h.
#pragma once

#include <cstdint>

namespace monarch::patience {

// ---- runtime/base, metadata, placement, agent

// ---- runtime/peer

// ---- runtime/node, monarchd

}  // namespace monarch::patience
