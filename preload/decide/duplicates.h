// SPDX-License-Identifier: Apache-2.0
// Which descriptors of this process are duplicates: open on the same description of a file, with one
// position.
#pragma once

namespace monarch::preload {

// A filter of system calls may end the program for a rare one.
bool is_unfiltered();

// How duplicates are told: by kcmp(2), or, where that is filtered, refused or missing, by a lock that one
// takes of a byte which no file has, and that the other then has, too. Changes errno.
enum class Comparison { kCall, kLock };
Comparison comparison();
// By kcmp(2); true also if that fails, but for a number that is not open. Changes errno.
bool may_be_duplicates(int fd, int other);
// The same of this descriptor and the parent process's of that number; true also where kcmp(2) is not to be
// had.
bool may_be_parents(int fd);
// Of two that are open for reading; false if one is not open. Changes errno.
bool are_duplicates(int fd, int other, Comparison how);

}  // namespace monarch::preload
