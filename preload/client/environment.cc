// SPDX-License-Identifier: Apache-2.0
// The variables of the job, as the process got them, and how they reach the programs that it starts.
// They are copied before main, so that nothing the program does to its environment matters.
#include "preload/client/environment.h"

#include <dlfcn.h>

#include "preload/client/client.h"
#include "preload/next/kernel.h"

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
constexpr char kRunDir[] = "MONARCH_IO_RUN_DIR=";
constexpr size_t kSavedBytes = 16384;
constexpr size_t kSavedVariables = 16;

// Who copies them: nobody yet, a process, or it is done. A child of fork(2) whose parent was at it does it
// again.
constexpr long kNobody = 0, kSaved = -1;
std::atomic<long> saver{kNobody};
char text[kSavedBytes];
size_t text_used = 0;
char* saved[kSavedVariables + 1];  // those of Monarch's, and LD_PRELOAD with the library alone
size_t saved_count = 0;
const char* library = "";  // as the linker loaded it; empty: not to be named

bool begins(const char* s, const char* with) { return strncmp(s, with, strlen(with)) == 0; }

// The copy; nullptr: there is no more room.
char* save(const char* name, const char* value) {
  const size_t first = strlen(name), bytes = first + strlen(value) + 1;
  if (saved_count == kSavedVariables || bytes > sizeof text - text_used) return nullptr;
  char* copy = saved[saved_count++] = text + text_used;
  memcpy(copy, name, first);
  memcpy(copy + first, value, bytes - first);
  text_used += bytes;
  return copy;
}

bool disables(const char* value) { return value && *value && strcmp(value, "0") != 0; }

// Whether `list`, an LD_PRELOAD, whose words are separated by colons and spaces, has the library; `out`,
// unless it is nullptr, receives the list without that.
bool without_library(const char* list, char* out) {
  const size_t own = strlen(library);
  const char* const begin = out;
  bool listed = false;
  for (size_t n; *list; list += n + (list[n] != '\0')) {
    n = strcspn(list, ": ");
    const bool is_library = n == own && memcmp(list, library, n) == 0;
    listed |= is_library;
    if (!out || n == 0 || is_library) continue;
    if (out != begin) *out++ = ':';
    memcpy(out, list, n);
    out += n;
  }
  if (out) *out = '\0';
  return listed;
}

}  // namespace

bool save_environment() {
  if (!environ) return false;
  long seen = saver.load(std::memory_order_acquire);
  if (seen == kSaved) return true;
  const long self = syscall(SYS_getpid);
  if (seen == self || !saver.compare_exchange_strong(seen, self)) return false;
  text_used = saved_count = 0;
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&save_environment), &info) != 0 && info.dli_fname &&
      info.dli_fname[0] == '/')
    if (const char* preload = save(kPreload, info.dli_fname)) library = preload + strlen(kPreload);
  for (char** e = environ; *e; ++e)
    if (begins(*e, kOurs) && !begins(*e + strlen(kOurs), kOptions)) save(*e, "");
  saved[saved_count] = nullptr;
  saver.store(kSaved, std::memory_order_release);
  return true;
}

const char* saved_variable(const char* name) {
  const size_t len = strlen(name);
  for (size_t i = 0; i < saved_count; ++i)
    if (strncmp(saved[i], name, len) == 0 && saved[i][len] == '=' && saved[i][len + 1])
      return saved[i] + len + 1;
  return nullptr;
}

bool is_disabled() { return disables(saved_variable("MONARCH_IO_DISABLE")); }

bool has_hooks() { return true; }

ChildEnvironment::ChildEnvironment(char* const* given) : given_(given) {
  if (saver.load(std::memory_order_acquire) != kSaved || !library[0] || (given && unreadable(given))) return;
  bool disabled = false, same_run = false;
  const char* run = saved_variable("MONARCH_IO_RUN_DIR");
  for (char* const* e = given; e && *e; ++e) {
    if (begins(*e, kPreload) && !preload_) preload_ = *e;
    if (begins(*e, kDisable)) disabled = disables(*e + strlen(kDisable));
    if (begins(*e, kRunDir)) same_run = run && strcmp(*e + strlen(kRunDir), run) == 0;
  }
  const bool listed = preload_ && without_library(preload_ + strlen(kPreload), nullptr);
  const bool cleared = !given || !*given;
  if (!listed && !cleared) return;
  const KeepErrno errno_stays;
  const Own found(open_own(AT_FDCWD, library, O_RDONLY));  // access(2) does not tell what Landlock refuses
  const bool there = found.fd >= 0 || errno == EMFILE || errno == ENFILE;
  if (cleared && there && is_attached()) given_ = saved;
  removes_ = listed && (disabled || !there);  // not there: the linker would complain
  has_library_ = (listed && same_run && !removes_) || given_ == saved;
}

size_t ChildEnvironment::bytes() const {
  if (!removes_) return 0;
  size_t entries = 0;
  while (given_[entries]) ++entries;
  const size_t all = (entries + 1) * sizeof(char*) + strlen(preload_) + 1;
  return all <= kMostBytes ? all : 0;
}

char* const* ChildEnvironment::build(void* room) const {
  if (!room) return given_;
  auto** out = static_cast<char**>(room);
  size_t n = 0;
  for (char* const* e = given_; *e; ++e)
    if (*e != preload_) out[n++] = *e;
  char* list = reinterpret_cast<char*>(out + n + 2);
  const size_t name = strlen(kPreload);
  memcpy(list, kPreload, name + 1);
  (void)without_library(preload_ + name, list + name);
  if (list[name]) out[n++] = list;
  out[n] = nullptr;
  return out;
}

}  // namespace monarch::preload
