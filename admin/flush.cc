// SPDX-License-Identifier: Apache-2.0
// monarchctl flush: has root's helper write the lines that wait for sacct.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "admin/bounded.h"
#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/output.h"
#include "build_config.h"
#include "runtime/base/paths.h"
#include "runtime/node/spool.h"
#include "runtime/node/state.h"

namespace monarch::admin {
namespace {

struct FlushOptions {
  std::string config, state_dir;
  bool json = false;
};

size_t waiting(const std::string& state_dir) {
  if (::access((state_dir + "/spool").c_str(), F_OK) != 0) return 0;
  const Result<StateDir> state = StateDir::open(state_dir);
  return state.ok() ? state->spooled().size() : 0;
}

int flush_verb(const FlushOptions& options) {
  if (::geteuid() != 0) return fail("flush", "the lines that wait for sacct are root's: run it as root");
  if (const Result<Config> config = load_named_config(options.config); !config.ok())
    return fail("flush", config.error());
  const size_t before = waiting(options.state_dir);
  int status = 0;
  if (before > 0) {
    const std::string helper = part_of_monarch("monarchd", "sbin", SBINDIR);
    std::fputs(run_program({helper, "--flush", "--state-dir", options.state_dir, "--config", options.config},
                           &status)
                   .c_str(),
               stderr);
    if (status == 127 << 8) return fail("flush", helper + " cannot be run; see 'monarchctl doctor'");
  }
  const size_t after = waiting(options.state_dir);
  if (options.json)
    print_json({{"version", PACKAGE_VERSION}, {"waited", before}, {"waiting", after}});
  else if (before == 0)
    std::puts("no line for sacct waits");
  else
    std::printf("%s for sacct waited, %s now\n", counted(before, "line").c_str(),
                after == 0 ? "none does" : counted(after, "does", "do").c_str());
  if (status == 0 && after == 0) return 0;
  const bool no_row = WIFEXITED(status) && WEXITSTATUS(status) == kExitNoRow;
  return fail("flush",
              counted(after, "line waits", "lines wait") + " for sacct still: " +
                  (no_row ? "slurmdbd answers, and has no row of these jobs yet, as of one that has just "
                            "ended; run it again in a minute"
                          : "is slurmdbd there ('monarchctl doctor')?"));
}

}  // namespace

void add_flush(CommandLine app, int* status) {
  auto options = std::make_shared<FlushOptions>();
  app.add_flag("--json", options->json, "print as JSON");
  add_config_and_state_dir(app, "configuration", &options->config, &options->state_dir, Missing::kTold);
  app.footer("Exit status: 0 if no line waits any more, 1 if some do, 2 for wrong usage.");
  app.callback([options, status] { *status = flush_verb(*options); });
}

}  // namespace monarch::admin
