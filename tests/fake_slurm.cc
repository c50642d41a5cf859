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

void say(const char* kind, const char* format, va_list arguments) {
  char text[20000];
  ::vsnprintf(text, sizeof text, format, arguments);
  ::dprintf(slurm->said, "%s%s\n", kind, text);
}

}  // namespace
}  // namespace monarch

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
spank_context_t spank_context() { return monarch::slurm->context; }
spank_err_t spank_option_register(spank_t, spank_option* option) {
  monarch::slurm->options.push_back(*option);
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}
spank_err_t spank_option_getopt(spank_t, spank_option* option, char** value) {
  const auto found = monarch::slurm->given.find(option->name);
  if (found == monarch::slurm->given.end()) return static_cast<spank_err_t>(ESPANK_ERROR);
  *value = found->second.data();
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}
spank_err_t spank_get_item(spank_t, spank_item_t item, ...) {
  va_list places;
  va_start(places, item);
  uint32_t* place = va_arg(places, uint32_t*);
  int* count = item == S_JOB_SUPPLEMENTARY_GIDS ? va_arg(places, int*) : nullptr;
  va_end(places);
  if (count) {
    if (monarch::slurm->groups.empty()) return static_cast<spank_err_t>(ESPANK_ERROR);
    *reinterpret_cast<gid_t**>(place) = monarch::slurm->groups.data();
    *count = static_cast<int>(monarch::slurm->groups.size());
    return static_cast<spank_err_t>(ESPANK_SUCCESS);
  }
  if (item == S_JOB_ALLOC_CORES && !(monarch::slurm->cores.empty() && !monarch::slurm->no_cores)) {
    *reinterpret_cast<char**>(place) = monarch::slurm->no_cores ? nullptr : monarch::slurm->cores.data();
    return static_cast<spank_err_t>(ESPANK_SUCCESS);
  }
  if (item == S_JOB_ALLOC_MEM && monarch::slurm->memory != 0) {
    *reinterpret_cast<uint64_t*>(place) = monarch::slurm->memory;
    return static_cast<spank_err_t>(ESPANK_SUCCESS);
  }
  const auto found = monarch::slurm->items.find(item);
  if (found == monarch::slurm->items.end()) return static_cast<spank_err_t>(ESPANK_ERROR);
  *place = found->second;
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}
spank_err_t spank_getenv(spank_t, const char* name, char* out, int room) {
  const auto found = monarch::slurm->environment.find(name);
  if (found == monarch::slurm->environment.end()) return static_cast<spank_err_t>(ESPANK_ENV_NOEXIST);
  if (::snprintf(out, static_cast<size_t>(room), "%s", found->second.c_str()) >= room)
    return static_cast<spank_err_t>(ESPANK_NOSPACE);
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}
spank_err_t spank_setenv(spank_t, const char* name, const char* value, int) {
  monarch::slurm->environment[name] = value;
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}
spank_err_t spank_job_control_setenv(spank_t, const char* name, const char* value, int) {
  monarch::slurm->controlled[name] = value;
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}
spank_err_t spank_unsetenv(spank_t, const char* name) {
  monarch::slurm->environment.erase(name);
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}
}
#pragma GCC visibility pop
