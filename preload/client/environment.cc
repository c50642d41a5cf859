// SPDX-License-Identifier: Apache-2.0
// The variables of the job, as the process got them, and how they reach the programs that it starts.
//
// They are copied before main, so that nothing the program does to its environment matters.
#include "preload/client/environment.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "preload/client/client.h"

// See next/next.cc.
#if defined(__x86_64__)
__asm__(".symver dladdr, dladdr@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dladdr, dladdr@GLIBC_2.17");
#endif

extern "C" char** environ;

namespace monarch::preload {
namespace {

constexpr char kOurs[] = "MONARCH_IO_";
constexpr char kOptions[] = "OPT_";  // after that: sbatch's, never for tasks
constexpr char kPreload[] = "LD_PRELOAD=";
constexpr char kDisable[] = "MONARCH_IO_DISABLE=";
constexpr size_t kSavedBytes = 16384;
constexpr size_t kNames = 512;

// Who copies them: nobody yet, a process, or it is done. A child of fork(2) whose parent was at it does it
// again.
constexpr long kNobody = 0, kSaved = -1;
std::atomic<long> saver{kNobody};
char text[kSavedBytes];
size_t text_used = 0;
const char* saved[kSavedVariables];
size_t saved_count = 0;
uint32_t names[kNames];  // hashes of the variables' names that the process got
size_t name_count = 0;
char library[kPathBytes];  // as the linker loaded it; empty: not to be named

bool begins(const char* s, const char* with) { return strncmp(s, with, strlen(with)) == 0; }

void save(const char* variable) {
  const size_t bytes = strlen(variable) + 1;
  if (saved_count == kSavedVariables || bytes > sizeof text - text_used) return;
  saved[saved_count++] = static_cast<const char*>(memcpy(text + text_used, variable, bytes));
  text_used += bytes;
}

// A hash of the name in NAME=VALUE.
uint32_t name_hash(const char* variable) {
  uint32_t hash = 2166136261;  // FNV-1a
  for (; *variable && *variable != '='; ++variable)
    hash = (hash ^ static_cast<unsigned char>(*variable)) * 16777619;
  return hash;
}

bool had(const char* variable) {
  const uint32_t hash = name_hash(variable);
  for (size_t i = 0; i < name_count; ++i)
    if (names[i] == hash) return true;
  return false;
}

// Whether nothing of what the process got is left, and nothing in it is about Monarch.
bool is_cleared(char* const* environment) {
  for (char* const* e = environment; e && *e; ++e)
    if (begins(*e, kPreload) || begins(*e, kOurs) || had(*e)) return false;
  return true;
}

bool disables(const char* value) { return *value && strcmp(value, "0") != 0; }

// The words of an LD_PRELOAD are separated by colons and spaces.
size_t word_length(const char* s) { return strcspn(s, ": "); }

bool lists_library(const char* list) {
  for (const size_t own = strlen(library); *list; list += list[0] != '\0') {
    const size_t n = word_length(list);
    if (n == own && memcmp(list, library, n) == 0) return true;
    list += n;
  }
  return false;
}

// `list` without the library.
void without_library(const char* list, char* out) {
  const size_t own = strlen(library);
  char* const begin = out;
  while (*list) {
    const size_t n = word_length(list);
    if (n > 0 && (n != own || memcmp(list, library, n) != 0)) {
      if (out != begin) *out++ = ':';
      memcpy(out, list, n);
      out += n;
    }
    list += n + (list[n] != '\0');
  }
  *out = '\0';
}

// Another thread is at it, before main. Bounded, since it may be the code that a signal interrupted.
bool is_saved_soon() {
  constexpr int kSlices = 40;
  constexpr timespec kSlice{0, 50000};
  const int before = errno;
  for (int i = 0; i < kSlices && saver.load(std::memory_order_acquire) != kSaved; ++i)
    syscall(SYS_nanosleep, &kSlice, nullptr);
  errno = before;
  return saver.load(std::memory_order_acquire) == kSaved;
}

}  // namespace

bool save_environment() {
  if (!environ) return false;
  long seen = saver.load(std::memory_order_acquire);
  if (seen == kSaved) return true;
  const long self = syscall(SYS_getpid);
  if (seen == self || !saver.compare_exchange_strong(seen, self)) return is_saved_soon();
  text_used = saved_count = name_count = 0;
  for (char** e = environ; *e; ++e)
    if (begins(*e, kOurs) && !begins(*e + strlen(kOurs), kOptions)) save(*e);
  for (char** e = environ; *e && name_count < kNames; ++e) names[name_count++] = name_hash(*e);
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&save_environment), &info) != 0 && info.dli_fname &&
      info.dli_fname[0] == '/' && strlen(info.dli_fname) < sizeof library)
    memcpy(library, info.dli_fname, strlen(info.dli_fname) + 1);
  saver.store(kSaved, std::memory_order_release);
  return true;
}

const char* saved_variable(const char* name) {
  const size_t len = strlen(name);
  for (size_t i = 0; i < saved_count; ++i)
    if (strncmp(saved[i], name, len) == 0 && saved[i][len] == '=') return saved[i] + len + 1;
  return nullptr;
}

bool is_disabled() {
  const char* value = saved_variable("MONARCH_IO_DISABLE");
  return value && disables(value);
}

ChildEnvironment::ChildEnvironment(char* const* given) : given_(given) {
  if (saver.load(std::memory_order_acquire) != kSaved || !library[0]) return;
  bool disabled = false;
  for (char* const* e = given; e && *e; ++e) {
    if (begins(*e, kPreload) && !preload_) preload_ = *e;
    if (begins(*e, kDisable)) disabled = disables(*e + strlen(kDisable));
  }
  const bool listed = preload_ && lists_library(preload_ + strlen(kPreload));
  const bool cleared = !preload_ && is_cleared(given);
  if (!listed && !cleared) return;
  const int before = errno;
  const bool there = syscall(SYS_faccessat, AT_FDCWD, library, R_OK) == 0;
  errno = before;
  if (cleared && there && is_attached()) change_ = Change::kRestore;
  if (listed && (disabled || !there)) change_ = Change::kRemove;  // not there: the linker would complain
}

size_t ChildEnvironment::bytes() const {
  if (change_ == Change::kNone) return 0;
  size_t entries = 0;
  for (char* const* e = given_; e && *e; ++e) ++entries;
  const size_t list = (preload_ ? strlen(preload_) : strlen(kPreload) + strlen(library)) + 1;
  const size_t all = (entries + saved_count + 2) * sizeof(char*) + list;
  return all <= kMostBytes ? all : 0;
}

char** ChildEnvironment::build(void* room) const {
  auto** out = static_cast<char**>(room);
  size_t n = 0;
  for (char* const* e = given_; e && *e; ++e)
    if (*e != preload_) out[n++] = *e;
  if (change_ == Change::kRestore)
    for (size_t i = 0; i < saved_count; ++i) out[n++] = const_cast<char*>(saved[i]);
  char* list = reinterpret_cast<char*>(out + n + 2);
  const size_t name = strlen(kPreload);
  memcpy(list, kPreload, name + 1);
  if (change_ == Change::kRestore) {
    memcpy(list + name, library, strlen(library) + 1);
  } else {
    without_library(preload_ + name, list + name);
  }
  if (list[name]) out[n++] = list;
  out[n] = nullptr;
  return out;
}

}  // namespace monarch::preload
