// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/dataset.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "runtime/base/os.h"
#include "runtime/base/paths.h"
#include "runtime/layout/globs.h"

namespace monarch {
namespace {

// By the first names, but those of mount points.
bool numbers_stay(const DatasetRoot& root) {
  constexpr int kNames = 16;
  struct statfs fs;
  if (os::fstatfs(root.fd.get(), &fs) != 0 || fs.f_type != FUSE_SUPER_MAGIC) return true;
  Fd fd(os::openat(root.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(fd ? os::fdopendir(fd.get()) : nullptr, ::closedir);
  if (!dir) return true;  // the walk tells
  (void)fd.release();
  int differ = 0;
  while (const dirent* name = differ < kNames ? os::readdir(dir.get()) : nullptr) {
    struct stat st;
    if (std::string_view(name->d_name) == "." || std::string_view(name->d_name) == ".." ||
        os::fstatat(::dirfd(dir.get()), name->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || st.st_dev != root.dev)
      continue;
    if (st.st_ino == name->d_ino) return true;
    ++differ;
  }
  return differ == 0;
}

// Whether the walk of a root goes to what is `below` it, which is on its device: not to a bind mount.
bool goes_to(const DatasetRoot& root, const std::string& below) {
  return below.empty() ||
         Fd(os::open_beneath(root.fd.get(), below.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) ||
         errno != EXDEV;
}

}  // namespace

Result<Dataset> Dataset::open(const std::vector<std::string>& paths) {
  struct Given {
    std::string path, real;
  };
  std::vector<Given> all;
  for (const std::string& path : paths) {
    Result<std::string> real = real_path(path);
    if (!real.ok()) return Error{real.error().code, "dataset " + real.error().text};
    all.push_back({path, real.take()});
  }
  // Outer directories come before the ones inside them.
  std::stable_sort(all.begin(), all.end(), [](const Given& a, const Given& b) { return a.real < b.real; });

  Dataset dataset;
  const auto add_prefix = [&](uint32_t root, const std::string& path, const std::string& below,
                              const struct stat& st) {
    for (const PrefixView& p : dataset.prefixes)
      if (p.path == path) return;
    dataset.prefixes.push_back({root, path, below, st.st_dev, st.st_ino});
  };
  for (const Given& given : all) {
    DatasetRoot root;
    root.path = given.real;
    root.fd = Fd(os::openat(AT_FDCWD, given.real.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    struct stat st;
    if (!root.fd || os::fstat(root.fd.get(), &st) != 0) return errno_error("dataset " + given.path);
    root.dev = st.st_dev;
    size_t outer = 0;
    std::string below;
    const auto holds = [&](const DatasetRoot& other) {
      if (!is_below(given.real, other.path) || other.dev != root.dev) return false;
      below = given.real.substr(std::min(given.real.size(), other.path.size() + 1));
      return goes_to(other, below);
    };
    while (outer < dataset.roots.size() && !holds(dataset.roots[outer])) ++outer;
    if (outer == dataset.roots.size()) {
      below.clear();
      root.numbers_stay = numbers_stay(root);
      dataset.roots.push_back(std::move(root));
    }
    add_prefix(static_cast<uint32_t>(outer), given.real, below, st);
    add_prefix(static_cast<uint32_t>(outer), given.path, below, st);
  }
  std::stable_sort(dataset.prefixes.begin(), dataset.prefixes.end(),
                   [](const PrefixView& a, const PrefixView& b) { return a.path.size() > b.path.size(); });
  if (dataset.roots.size() > kMaxRoots || dataset.prefixes.size() > kMaxPrefixes)
    return bad_input("more than " + std::to_string(kMaxRoots) + " datasets");
  return dataset;
}

std::vector<RootView> Dataset::root_views() const {
  std::vector<RootView> views;
  for (const DatasetRoot& r : roots) views.push_back({r.dev});
  return views;
}

bool Dataset::excludes(uint32_t root, const std::string& below) const {
  if (exclude.empty()) return false;
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const PrefixView& name) {
    if (name.root != root || !name.below.empty()) return false;
    const std::string full = name.path + "/" + below;
    return any_glob_matches(exclude.c_str(), full.c_str(), full.c_str() + name.path.size() + 1);
  });
}

}  // namespace monarch
