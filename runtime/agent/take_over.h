// SPDX-License-Identifier: Apache-2.0
// What an agent does before it goes on for one that was killed, with its board, its catalog and its copies.
#pragma once

#include <functional>

#include "runtime/base/throttle.h"
#include "runtime/hierarchy/hierarchy.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/change_watch.h"
#include "runtime/metadata/dataset.h"

namespace monarch {

// An error: another agent lives, or the one before has ended in order.
Status may_take_over(const Board& board);

// Before tasks take the agent for alive. Counts the copies that stay, begins anew what was in work, removes
// other copies, and has opens compare with the PFS, until all was once (compare_placed()).
void take_over(Catalog* catalog, Hierarchy* hierarchy, Board* board);

// While no agent lived nobody noticed changes by programs without the library: watches the directories of
// all known files, and marks those that are not as tasks are told, or as they were copied.
void compare_placed(Catalog* catalog, const Dataset& dataset, ChangeWatch* watch, Board* board,
                    Throttle* stats, const std::function<bool()>& stopping);

}  // namespace monarch
