// SPDX-License-Identifier: Apache-2.0
// monarchctl container-args: the arguments with which a container tool shows a container what the job's tasks
// need of Monarch. Called in the job, where the environment says where that is.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "admin/commands.h"
#include "admin/output.h"
#include "runtime/base/paths.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/layout/catalog_reader.h"
#include "runtime/metadata/run_file.h"

namespace monarch::admin {
namespace {

constexpr std::string_view kLibrary = "/libmonarch_preload.so";
constexpr char kHook[] = "enroot-hook";

using Arguments = std::vector<std::string>;

// A path that is to be in the container, in general as it is on the node.
struct Bind {
  std::string path;
  bool writable = false, is_file = false;
};

struct ContainerOptions {
  std::string tool;
  bool json = false;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// What LD_PRELOAD names of ours; LD_PRELOAD's separators are colons and blanks.
std::string preloaded_library() {
  const std::string list = variable("LD_PRELOAD");
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find_first_of(": ", at), list.size());
    std::string path = list.substr(at, end - at);
    if (path.ends_with(kLibrary)) return path;
    at = end + 1;
  }
  return "";
}

Result<std::vector<Bind>> binds(const ContainerOptions& options) {
  const std::string run_dir = variable("MONARCH_IO_RUN_DIR");
  std::string library = preloaded_library();
  // pyxis starts enroot without LD_PRELOAD.
  if (library.empty() && options.tool == kHook)
    library = part_of_monarch("libmonarch_preload.so", "lib/monarch", PKGLIBDIR);
  if (run_dir.empty() || library.empty())
    return Error{ENOENT,
                 "this is no task of a job with Monarch; call it in the script of a job that was submitted "
                 "with --monarch-dataset, or in a command of monarchctl run"};
  CatalogReader catalog;
  if (!catalog.open(run_dir.c_str()))
    return Error{ENOENT, run_dir + ": no catalog of this version; is its agent running?"};
  std::vector<Bind> found = {{run_dir, true, false}, {library, false, true}};
  const CatalogFacts& facts = catalog.facts();
  for (uint32_t i = 0; i < facts.tier_count; ++i) found.push_back({facts.tiers[i].path});
  return found;
}

std::string joined(const std::vector<Bind>& binds, const std::string& between) {
  std::string text;
  for (const Bind& b : binds)
    text += (text.empty() ? "" : between) + b.path + ":" + b.path + (b.writable ? "" : ":ro");
  return text;
}

Arguments each(const std::vector<Bind>& binds, const std::string& option) {
  Arguments out;
  for (const Bind& b : binds) out.push_back(option + joined({b}, ""));
  return out;
}

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Arguments for_bwrap(const std::vector<Bind>& binds) {
  Arguments out;
  for (const Bind& b : binds) out.insert(out.end(), {b.writable ? "--bind" : "--ro-bind", b.path, b.path});
  return out;
}

// ch-run(1) makes directories to mount on, no files, and knows no read-only bind mounts.
Arguments for_charliecloud(const std::vector<Bind>& binds) {
  Arguments out;
  for (const Bind& b : binds) {
    const std::string directory = b.is_file ? b.path.substr(0, b.path.rfind('/')) : b.path;
    out.push_back("--bind=" + directory + ":" + directory);
  }
  return out;
}

// Its own environment does not get into the container.
Arguments for_podman(const std::vector<Bind>& binds) {
  return with(each(binds, "--volume="), {"--env=LD_PRELOAD", "--env=MONARCH_IO_*"});
}

Arguments for_enroot(const std::vector<Bind>& binds) {
  return with(each(binds, "--mount="), {"--env=LD_PRELOAD", "--env=MONARCH_IO_RUN_DIR"});
}

// The tool does not hand on LD_PRELOAD.
Arguments for_apptainer(const std::vector<Bind>& binds) {
  return {"--bind=" + joined(binds, ","), "--env=LD_PRELOAD=" + variable("LD_PRELOAD")};
}

Arguments for_pyxis(const std::vector<Bind>& binds) { return {"--container-mounts=" + joined(binds, ",")}; }

// Lines for enroot-mount(1). All is mounted in a tmpfs that enroot has made in each container, so that
// nothing is made in its root file system; the copies' directories are found there, and the hook tells of the
// others. The place has the run directory's name: a job that joins another one's container does not find that
// one's there.
Arguments for_hook(const std::vector<Bind>& binds) {
  const std::string& run_dir = binds.front().path;
  const std::string place = "/var/run/monarch." + run_dir.substr(run_dir.rfind('/') + 1) + "/";
  Arguments out;
  for (const Bind& b : binds) {
    const std::string name = b.writable  ? "run"
                             : b.is_file ? std::string(kLibrary.substr(1))
                                         : "tier" + std::to_string(out.size());
    out.push_back(b.path + " " + place + name + " none x-create=" + (b.is_file ? "file" : "dir") + ",bind," +
                  (b.writable ? "rw" : "ro") + ",nosuid,nodev,private");
  }
  return out;
}

using Writer = Arguments (*)(const std::vector<Bind>&);
const std::map<std::string, Writer>& writers() {
  static const std::map<std::string, Writer> all = {
      {"apptainer", for_apptainer}, {"bwrap", for_bwrap}, {"charliecloud", for_charliecloud},
      {"enroot", for_enroot},       {kHook, for_hook},    {"podman", for_podman},
      {"pyxis", for_pyxis}};
  return all;
}

// What a shell splits, or a tool takes for a separator, cannot be written on a line.
bool is_plain(const std::string& path) {
  return path.find_first_of(" \t\n:,'\"\\$*?[;&|<>()`") == std::string::npos;
}

int container_args(const ContainerOptions& options) {
  const Result<std::vector<Bind>> found = binds(options);
  if (!found.ok()) return fail("container-args", found.error());
  for (const Bind& b : *found)
    if (!is_plain(b.path))
      return fail("container-args",
                  "'" + b.path + "' has blanks, separators or characters of the shell in its name, which " +
                      options.tool + " cannot be told; choose another path for the tier or the installation");
  const Arguments arguments = writers().at(options.tool)(*found);
  if (options.json) {
    std::puts(Json(arguments).dump(2).c_str());
    return 0;
  }
  std::string line;
  for (const std::string& a : arguments) line += (line.empty() ? "" : options.tool == kHook ? "\n" : " ") + a;
  std::puts(line.c_str());
  return 0;
}

}  // namespace

void add_container_args(CommandLine app, int* status) {
  auto options = std::make_shared<ContainerOptions>();
  std::vector<std::string> tools;
  for (const auto& [name, writer] : writers()) tools.push_back(name);
  app.add_option("TOOL", options->tool, "the container tool").required().one_of(tools);
  app.add_flag("--json", options->json, "print a JSON array of the arguments");
  app.footer(
      "In a job's script:  bwrap $(monarchctl container-args bwrap) ... python train.py\n"
      "The dataset must be mounted in the container, too, at whatever path.\n"
      "Exit status: 0, 1 where there is no Monarch, 2 for wrong usage.");
  app.callback([options, status] { *status = container_args(*options); });
}

}  // namespace monarch::admin
