// SPDX-License-Identifier: Apache-2.0
// A process of ours that gets no more memory ends. The job goes on without it, and there is nothing that it
// would have to take back first.
#pragma once

#include <string>

namespace monarch {

// From now on the process ends at once, by SIGABRT and without a core, where operator new finds no memory.
// The log gets one line: that no memory is left, and `then`, what ends and what is done without it; standard
// error, if no log was opened, with the program's name. Both texts stay where they are; the last call counts.
// Children of fork(2) do the same.
void end_without_memory(const char* program, const char* then);

// Ends the process so, whatever memory there is: for memory that is not operator new's.
[[noreturn]] void no_memory_is_left();

// Where the line goes: the log's file, "stderr", "syslog" or "off", as open_log() has it, or its descriptor.
// For open_log(), while there are no other threads.
void tell_lack_of_memory_in(const std::string& log);
void tell_lack_of_memory_in(int log);

}  // namespace monarch
