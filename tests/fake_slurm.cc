// SPDX-License-Identifier: Apache-2.0
// What the SPANK plugin calls of Slurm, for tests that load it.
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "tests/spank_fixture.h"

namespace monarch {

FakeSpank* slurm;
int seconds_a_look;
std::function<void()> at_a_look;

namespace {

constexpr auto kOk = static_cast<spank_err_t>(ESPANK_SUCCESS);
constexpr auto kMissing = static_cast<spank_err_t>(ESPANK_ERROR);

void say(const char* kind, const char* format, va_list arguments) {
  char text[20000];
  ::vsnprintf(text, sizeof text, format, arguments);
  ::dprintf(slurm->said, "%s%s\n", kind, text);
}

}  // namespace
}  // namespace monarch

using monarch::slurm;

#pragma GCC visibility push(default)  // for the plugin
extern "C" {
slurm_conf_t slurm_conf;

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static std::atomic<int64_t> ahead{0};
  const auto status = static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  if (status == 0 && clock == CLOCK_MONOTONIC) now->tv_sec += ahead += monarch::seconds_a_look;
  if (clock == CLOCK_MONOTONIC && monarch::at_a_look) monarch::at_a_look();
  return status;
}

void slurm_error(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  monarch::say("error: ", format, arguments);
  va_end(arguments);
}
void slurm_info(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  monarch::say("info: ", format, arguments);
  va_end(arguments);
}
spank_context_t spank_context() { return slurm->context; }
spank_err_t spank_option_register(spank_t, spank_option* option) {
  slurm->options.push_back(*option);
  return monarch::kOk;
}
spank_err_t spank_option_getopt(spank_t, spank_option* option, char** value) {
  const auto found = slurm->given.find(option->name);
  if (found == slurm->given.end()) return monarch::kMissing;
  *value = found->second.data();
  return monarch::kOk;
}
spank_err_t spank_get_item(spank_t, spank_item_t item, ...) {
  va_list places;
  va_start(places, item);
  void* place = va_arg(places, void*);
  int* count = item == S_JOB_SUPPLEMENTARY_GIDS ? va_arg(places, int*) : nullptr;
  va_end(places);
  const auto found = slurm->items.find(item);
  if (count && !slurm->groups.empty()) {
    *static_cast<gid_t**>(place) = slurm->groups.data();
    *count = static_cast<int>(slurm->groups.size());
  } else if (item == S_JOB_ALLOC_CORES && (slurm->no_cores || !slurm->cores.empty())) {
    *static_cast<char**>(place) = slurm->no_cores ? nullptr : slurm->cores.data();
  } else if (item == S_JOB_ALLOC_MEM && slurm->memory != 0) {
    *static_cast<uint64_t*>(place) = slurm->memory;
  } else if (found != slurm->items.end()) {
    *static_cast<uint32_t*>(place) = found->second;
  } else {
    return monarch::kMissing;
  }
  return monarch::kOk;
}
spank_err_t spank_getenv(spank_t, const char* name, char* out, int room) {
  const auto found = slurm->environment.find(name);
  if (found == slurm->environment.end()) return static_cast<spank_err_t>(ESPANK_ENV_NOEXIST);
  const bool fits = ::snprintf(out, static_cast<size_t>(room), "%s", found->second.c_str()) < room;
  return fits ? monarch::kOk : static_cast<spank_err_t>(ESPANK_NOSPACE);
}
spank_err_t spank_setenv(spank_t, const char* name, const char* value, int) {
  slurm->environment[name] = value;
  return monarch::kOk;
}
spank_err_t spank_job_control_setenv(spank_t, const char* name, const char* value, int) {
  slurm->controlled[name] = value;
  return monarch::kOk;
}
spank_err_t spank_unsetenv(spank_t, const char* name) {
  slurm->environment.erase(name);
  return monarch::kOk;
}
}
#pragma GCC visibility pop
