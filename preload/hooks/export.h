// SPDX-License-Identifier: Apache-2.0
#pragma once

// Before the definition of a hook. What is exported at all hooks.h says to the linker.
#define MONARCH_EXPORT extern "C" __attribute__((visibility("default")))
