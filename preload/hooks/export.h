// SPDX-License-Identifier: Apache-2.0
#pragma once

// Before the definition of a hook. preload.map says the same to the linker.
#define MONARCH_EXPORT extern "C" __attribute__((visibility("default")))
