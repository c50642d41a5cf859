// SPDX-License-Identifier: Apache-2.0
#include "tests/lack_of_memory.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace monarch {
namespace {

constinit thread_local int still = 0;  // until one fails
std::atomic<int> times{0};

void* allocate(size_t bytes) noexcept {
  if (still > 0 && --still == 0) {
    ++times;
    return nullptr;
  }
  return std::malloc(bytes > 0 ? bytes : 1);
}

void* allocate_or_throw(size_t bytes) {
  if (void* memory = allocate(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void lack_memory_at(int n) { still = n; }
int times_memory_lacked() { return times; }

}  // namespace monarch

// All of them: a sanitizer's own would not belong to these.
void* operator new(size_t bytes) { return monarch::allocate_or_throw(bytes); }
void* operator new[](size_t bytes) { return monarch::allocate_or_throw(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return monarch::allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return monarch::allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
