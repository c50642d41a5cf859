// SPDX-License-Identifier: Apache-2.0
// What the unit at boot has done, before slurmd starts: a job that ran when the node went down has no epilog,
// and the next job with Monarch may come late, or never.
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace monarch {

// Makes, before users can be in the way, what all jobs have in common on those tiers and among control
// groups. Removes, in the background, what jobs of earlier boots left on the tiers of `config`, as
// load_config() takes it, or on those that are discovered if it names none; and what their records name, if
// the state directory outlived the boot. Leaves alone what a file system holds that another machine may have
// mounted, and what was made since the boot. Waits 2 s at most for a tier. A configuration that is not there
// is no error: no job has Monarch then.
Status sweep_at_boot(const std::string& state_dir, const std::string& config);

}  // namespace monarch
