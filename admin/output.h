// SPDX-License-Identifier: Apache-2.0
// How all subcommands print.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace monarch::admin {

inline constexpr int kFailure = 1, kUsage = 2;
inline constexpr char kDefaultConfig[] = SYSCONFDIR "/monarch/monarch.conf";
inline constexpr char kDefaultState[] = RUNSTATEDIR "/monarch";

// "monarchctl COMMAND: text" to standard error, on one line; returns kFailure.
int fail(const char* command, const std::string& text);
inline int fail(const char* command, const Error& error) { return fail(command, error.text); }
inline Error with_remedy(Error error, const std::string& remedy) {
  error.text += "; " + remedy;
  return error;
}
// Whether the operating system's reason is the last word of the text, which so has no remedy yet.
inline bool lacks_remedy(const Error& error) { return error.text.ends_with(std::strerror(error.code)); }
inline Error with_remedy_if_none(Error error, const std::string& remedy) {
  return lacks_remedy(error) ? with_remedy(std::move(error), remedy) : error;
}
// Of a dataset that cannot be looked at for that reason.
const char* remedy_for_dataset(int code);

// In ASCII: what others chose may be for a terminal to obey. Bytes that are not UTF-8, as paths may have, are
// replaced.
void print_json(const Json& json);
// Null for "".
inline Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

// Writes a page or a picture; "-" is standard output.
Status write_page(const std::string& file, const std::string& text);

// Whether all that was printed has been taken. errno: why not, as far as it is known.
bool is_output_written();

// One word in a line of a table; "-" for nothing.
std::string word(const std::string& text);
// Columns are as wide as they have to be; the last one may have any text of one line.
void print_table(const std::vector<std::vector<std::string>>& rows);

// Of a job: what the text is about, "" for more of the same, and the text.
void print_fact(const char* what, const std::string& text);

// "1 file", "2 files"; `several`: where that is not `one` and an s.
std::string counted(uint64_t n, const char* one, const char* several = nullptr);

// "1:02:03"
std::string time_text(uint64_t seconds);

// On a terminal, unless NO_COLOR is set or the terminal is dumb; elsewhere the text as it is.
enum class Colour { kGood, kDoubtful, kBad, kHeading };
std::string paint(Colour colour, const std::string& text);

}  // namespace monarch::admin
