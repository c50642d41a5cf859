// SPDX-License-Identifier: Apache-2.0
// Memory that lacks on demand: the operator new of the unit tests' program asks here.
#pragma once

namespace monarch {

// Of what the calling thread allocates from now on, the `n`th (from 1) throws std::bad_alloc, and that one
// alone; 0: none does.
void lack_memory_at(int n);
// How often that has come to pass, in all threads.
int times_memory_lacked();

}  // namespace monarch
