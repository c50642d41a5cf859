// SPDX-License-Identifier: Apache-2.0
// monarchd: the node agent. This file only reads the command line; see agent/.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "build_config.h"
#include "runtime/agent/agent.h"

namespace {

// As the user's helper the agent is what the kernel should kill first, not the training.
void prefer_for_oom() { std::ofstream("/proc/self/oom_score_adj") << "1000\n"; }

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Monarch's node agent: stages one job's dataset into this node's tiers.", "monarchd");
  monarch::AgentOptions options;
  std::vector<std::string> tiers;
  std::string config;
  app.set_version_flag("--version", std::string("monarchd ") + PACKAGE_VERSION);
  app.add_option("--config", config, "configuration, monarch.conf(5)");
  app.add_option("--dataset", options.datasets, "directory of the dataset; may be given several times")
      ->required()
      ->allow_extra_args(false);
  app.add_option("--tier", tiers, "NAME:PATH:SIZE, added after the configuration's tiers")->allow_extra_args(false);
  app.add_option("--run-dir", options.run_dir, "directory for the catalog, the board and the log")->required();
  app.add_option("--job-dir", options.job_dir, "name of the job's directory on each tier")->required();
  app.add_option("--ready-fd", options.ready_fd, "descriptor that is told \"ready\" or an error");
  app.add_option("--lifeline-fd", options.lifeline_fd, "descriptor whose end of file ends the agent");
  CLI11_PARSE(app, argc, argv);

  const auto fail = [](const monarch::Error& error) {
    std::fprintf(stderr, "monarchd: %s\n", error.text.c_str());
    return 2;
  };
  if (!config.empty()) {
    monarch::Result<monarch::Config> loaded = monarch::load_config(config);
    if (!loaded.ok()) return fail(loaded.error());
    options.config = loaded.take();
  }
  for (const std::string& text : tiers) {
    monarch::Result<monarch::TierConfig> tier = monarch::parse_tier_option(text);
    if (!tier.ok()) return fail(tier.error());
    if (const monarch::Status s = monarch::add_tier(&options.config, tier.take()); !s.ok()) return fail(s.error());
  }
  monarch::Result<std::vector<std::string>> roots = monarch::check_paths(options.config, options.datasets);
  if (!roots.ok()) return fail(roots.error());
  options.datasets = roots.take();
  prefer_for_oom();
  return monarch::run_agent(options);
}
