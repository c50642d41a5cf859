// SPDX-License-Identifier: Apache-2.0
// The variables of the job, as the process got them, and how they reach the programs that it starts.
//
// They are copied before main, so that nothing the program does to its environment matters. A program started
// with a cleared or replaced environment gets them back; one that finds another run directory there, or an
// empty one, is somebody's choice and stays as it is. MONARCH_IO_DISABLE is how to start a program without.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "preload/environment.h"
#include "preload/preload.h"

// See init.cc.
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
constexpr char kRunDir[] = "MONARCH_IO_RUN_DIR=";
constexpr size_t kSavedBytes = 16384;

enum class Saving : int { kNot, kNow, kDone };
std::atomic<Saving> saving{Saving::kNot};
char text[kSavedBytes];
size_t text_used = 0;
const char* saved[kSavedVariables];
size_t saved_count = 0;
char library[kPathBytes];  // as the linker loaded it; empty: not to be named

bool begins(const char* s, const char* with) { return strncmp(s, with, strlen(with)) == 0; }

void save(const char* variable) {
  const size_t bytes = strlen(variable) + 1;
  if (saved_count == kSavedVariables || bytes > sizeof text - text_used) return;
  saved[saved_count++] = static_cast<const char*>(memcpy(text + text_used, variable, bytes));
  text_used += bytes;
}

// The entry of `environment` that sets what `variable` (NAME=...) sets; nullptr: none.
const char* same_variable(char* const* environment, const char* variable) {
  const auto name = static_cast<size_t>(strchr(variable, '=') + 1 - variable);
  for (char* const* e = environment; e && *e; ++e)
    if (strncmp(*e, variable, name) == 0) return *e;
  return nullptr;
}

// salloc and its kin drop the variables on purpose (spank/task.cc): what they start belongs to another job.
bool starts_jobs() {
  const char* name = program_invocation_short_name;
  return name && (strcmp(name, "salloc") == 0 || strcmp(name, "sbatch") == 0 || strcmp(name, "srun") == 0);
}

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

}  // namespace

bool save_environment() {
  if (!environ) return false;
  Saving seen = Saving::kNot;
  if (!saving.compare_exchange_strong(seen, Saving::kNow)) return seen == Saving::kDone;
  for (char** e = environ; e && *e; ++e)
    if (begins(*e, kOurs) && !begins(*e + strlen(kOurs), kOptions)) save(*e);
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&save_environment), &info) != 0 && info.dli_fname &&
      info.dli_fname[0] == '/' && strlen(info.dli_fname) < sizeof library)
    memcpy(library, info.dli_fname, strlen(info.dli_fname) + 1);
  saving.store(Saving::kDone, std::memory_order_release);
  return true;
}

const char* saved_variable(const char* name) {
  const size_t len = strlen(name);
  for (size_t i = 0; i < saved_count; ++i)
    if (strncmp(saved[i], name, len) == 0 && saved[i][len] == '=') return saved[i] + len + 1;
  return nullptr;
}

ChildEnvironment::ChildEnvironment(char* const* given) : given_(given) {
  if (saving.load(std::memory_order_acquire) != Saving::kDone || !library[0]) return;
  preload_ = same_variable(given, kPreload);
  const bool listed = preload_ && lists_library(preload_ + strlen(kPreload));
  const int before = errno;
  const bool there = syscall(SYS_faccessat, AT_FDCWD, library, R_OK) == 0;
  errno = before;
  if (there && is_attached() && !starts_jobs()) {
    add_variables();
    if (!listed && belongs_) change_ = Change::kAdd;
  } else if (listed && !there) {  // another root directory: the linker would complain
    change_ = Change::kRemove;
  }
  list_bytes_ = (preload_ ? strlen(preload_) : strlen(kPreload)) + 1 + strlen(library) + 1;
}

void ChildEnvironment::add_variables() {
  const char* run_dir = nullptr;
  for (size_t i = 0; i < saved_count; ++i) {
    if (begins(saved[i], kRunDir)) run_dir = saved[i];
    if (!same_variable(given_, saved[i])) add_[adds_++] = saved[i];
  }
  const char* had = run_dir ? same_variable(given_, run_dir) : nullptr;
  belongs_ = run_dir && (!had || strcmp(had, run_dir) == 0);
  if (!belongs_) adds_ = 0;  // another job's, or none on purpose
}

size_t ChildEnvironment::bytes() const {
  if (adds_ == 0 && change_ == Change::kNone) return 0;
  size_t entries = 0;
  for (char* const* e = given_; e && *e; ++e) ++entries;
  const size_t all = (entries + adds_ + 2) * sizeof(char*) + list_bytes_;
  return all <= kMostBytes ? all : 0;
}

char** ChildEnvironment::build(void* room) const {
  auto** out = static_cast<char**>(room);
  size_t n = 0;
  for (char* const* e = given_; e && *e; ++e)
    if (change_ == Change::kNone || *e != preload_) out[n++] = *e;
  for (size_t i = 0; i < adds_; ++i) out[n++] = const_cast<char*>(add_[i]);
  if (change_ == Change::kNone) {
    out[n] = nullptr;
    return out;
  }
  char* list = reinterpret_cast<char*>(out + n + 2);
  const size_t name = strlen(kPreload);
  memcpy(list, kPreload, name + 1);
  if (change_ == Change::kRemove) {
    without_library(preload_ + name, list + name);
  } else {
    const size_t len = preload_ ? strlen(preload_) : name;
    if (preload_) memcpy(list, preload_, len + 1);
    size_t at = len;
    if (at > name) list[at++] = ':';
    memcpy(list + at, library, strlen(library) + 1);
  }
  if (list[name]) out[n++] = list;
  out[n] = nullptr;
  return out;
}

}  // namespace monarch::preload
