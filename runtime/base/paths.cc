// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/paths.h"

#include <unistd.h>

#include <climits>

#include "runtime/base/os.h"

namespace monarch {

Result<std::string> absolute_path(std::string_view path) {
  if (path.empty()) return bad_input("an empty path");
  std::string full;
  if (path[0] != '/') {
    char cwd[PATH_MAX];
    if (!getcwd(cwd, sizeof cwd)) return errno_error("get the working directory");
    full = std::string(cwd) + "/";
  }
  full += path;
  std::string out;
  for (size_t i = 0; i < full.size();) {
    size_t end = full.find('/', i);
    if (end == std::string::npos) end = full.size();
    const std::string_view part(full.data() + i, end - i);
    if (!part.empty() && part != ".") (out += '/') += part;
    i = end + 1;
  }
  return out.empty() ? std::string("/") : out;
}

Result<std::string> real_path(const std::string& path) {
  char out[PATH_MAX];
  if (!os::realpath(path.c_str(), out)) return errno_error(path);
  return std::string(out);
}

std::string part_of_monarch(const char* name, const char* from_bin, const char* installed) {
  char self[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self - 1);
  if (n > 0) {
    self[n] = '\0';
    const std::string dir = std::string(self).substr(0, std::string(self).rfind('/'));
    for (const std::string& path : {dir + "/" + name, dir + "/../" + from_bin + "/" + name})
      if (::access(path.c_str(), R_OK) == 0) return real_path(path).ok() ? *real_path(path) : path;
  }
  return std::string(installed) + "/" + name;
}

bool is_below(std::string_view path, std::string_view dir) {
  if (dir == "/") return true;
  return path.substr(0, dir.size()) == dir && (path.size() == dir.size() || path[dir.size()] == '/');
}

}  // namespace monarch
