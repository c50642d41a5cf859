// SPDX-License-Identifier: Apache-2.0
// The plugin's options with Slurm's symbols made up: the input's lines are an option's value each, then the
// words of plugstack.conf.
// Where nothing is read from.
#define SYSCONFDIR "/nonexistent"
#define RUNSTATEDIR "/nonexistent"
#define SBINDIR "/nonexistent"
#define PKGLIBDIR "/nonexistent"
#define PKGLIBEXECDIR "/nonexistent"
#include "spank/options.cc"  // NOLINT(bugprone-suspicious-include)

#include <algorithm>
#include <vector>

#include "runtime/node/job_options.h"
#include "tests/fuzz/targets.h"

namespace {
std::vector<spank_option> registered;
}  // namespace

extern "C" {
void slurm_error(const char*, ...) {}
spank_err_t spank_option_register(spank_t, spank_option* option) {
  registered.push_back(*option);
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}
spank_err_t spank_option_getopt(spank_t, spank_option*, char**) {
  return static_cast<spank_err_t>(ESPANK_ERROR);
}
spank_err_t spank_unsetenv(spank_t, const char*) { return static_cast<spank_err_t>(ESPANK_ERROR); }
spank_context_t spank_context() { return S_CTX_LOCAL; }
}

namespace monarch::fuzz {

void options(const uint8_t* data, size_t size) {
  if (registered.empty()) spank::register_options(nullptr);
  std::vector<std::string> lines(1);
  for (const char c : text_of(data, size)) {
    if (c == '\n')
      lines.emplace_back();
    else if (c != '\0')
      lines.back() += c;
  }
  spank::request() = {};
  for (size_t i = 0; i < lines.size() && i < 20; ++i) {
    const spank_option& o = registered[i % registered.size()];
    const char* value = o.has_arg ? lines[i].c_str() : nullptr;
    const std::string before = spank::request().datasets;
    const int remote = static_cast<int>(i % 2);
    if (o.cb(o.val, value, remote) == ESPANK_SUCCESS) continue;
    FUZZ_CHECK(before == spank::request().datasets);  // refused: as it was
  }
  const std::string datasets = spank::request().datasets;
  FUZZ_CHECK(datasets.size() < spank::kDatasetBytes);
  FUZZ_CHECK(strpbrk(spank::request().tiers, " =") == nullptr);  // words for monarchd
  FUZZ_CHECK(strlen(spank::job_options()) < spank::kOptionsBytes);
  // monarchd understands what the plugin took, but for too many tiers.
  const std::string tiers = spank::request().tiers;
  FUZZ_CHECK(parse_job_options(spank::job_options()).ok() ||
             std::count(tiers.begin(), tiers.end(), ',') > 63);
  for (size_t at = 0; at < datasets.size(); at = std::min(datasets.find(':', at), datasets.size()) + 1)
    FUZZ_CHECK(datasets[at] == '/');

  std::vector<char*> words;
  for (std::string& line : lines) words.push_back(line.data());
  spank::read_settings(static_cast<int>(words.size()), words.data());
  for (const char* path : {spank::settings().config, spank::settings().state_dir, spank::settings().monarchd})
    FUZZ_CHECK(path);
}

}  // namespace monarch::fuzz
