// SPDX-License-Identifier: Apache-2.0
// What is fuzzed: each target gives an input to a parser, and traps where what came out breaks its contract.
// dev/fuzz makes inputs; tests/fuzz_test.cc gives the kept ones, tests/fuzz/TARGET/*, in the unit tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "runtime/base/fd.h"

namespace monarch::fuzz {

void board(const uint8_t* data, size_t size);     // rings that tasks write, against the agent's end of them;
                                                  // while they write: tests/hostile.t everything
void config(const uint8_t* data, size_t size);    // monarch.conf
void counters(const uint8_t* data, size_t size);  // the board's counters, as root's child reads them
void messages(const uint8_t* data, size_t size);  // what peers say
void mounts(const uint8_t* data, size_t size);    // the mount table, in discovery
void options(const uint8_t* data, size_t size);   // the plugin's options, their twins, plugstack.conf's words
void record(const uint8_t* data, size_t size);    // record.json
void store(const uint8_t* data, size_t size);     // what an agent asks of root's store

// Those that need root, since the state directory is root's; without it they are skipped, by name. dev/fuzz
// reads this line.
inline constexpr const char* kNeedRoot[] = {"record"};

// The same as messages(); of which types there are some that are whole.
std::set<uint16_t> types_of_messages(const uint8_t* data, size_t size);

inline std::string text_of(const uint8_t* data, size_t size) {
  return std::string(reinterpret_cast<const char*>(data), size);
}

// The contract; with the place, since inputs are looked at later.
#define FUZZ_CHECK(condition)                                                           \
  do {                                                                                  \
    if (condition) break;                                                               \
    std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
    std::abort();                                                                       \
  } while (false)

// A private directory that ends with the process.
class Directory {
 public:
  Directory();
  ~Directory();
  const std::string& path() const { return path_; }
  // Writes a file there, 0600.
  void write(const std::string& name, const void* data, size_t size) const;

 private:
  std::string path_;
};

}  // namespace monarch::fuzz
