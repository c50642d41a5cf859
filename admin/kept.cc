// SPDX-License-Identifier: Apache-2.0
#include "admin/kept.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <system_error>

#include "admin/jobs.h"

namespace monarch::admin {
namespace {

constexpr size_t kMostFile = 16 << 20;

// The names in a directory of root's.
std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(dir, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  return names;
}

}  // namespace

bool names_job(const std::string& what) {
  const std::string id = what.substr(0, what.find('@'));
  const std::string number = is_run(id) ? id.substr(4) : id;
  return !number.empty() && number.find_first_not_of("0123456789_+") == std::string::npos;
}

Result<std::string> read_report(const std::string& name) {
  std::string text;
  std::ifstream file;
  if (name != "-") file.open(name, std::ios::binary);
  if (!file) return errno_error("read " + name);
  std::error_code error;
  if (name != "-" && std::filesystem::is_directory(name, error)) return errno_error("read " + name, EISDIR);
  std::istream& in = name == "-" ? std::cin : file;
  std::vector<char> room(kMostFile);
  in.read(room.data(), static_cast<std::streamsize>(room.size()));
  if (in.bad()) return errno_error("read " + name, EIO);
  text.assign(room.data(), static_cast<size_t>(in.gcount()));
  return text;
}

Result<Json> parse_report(const std::string& text, const std::string& name) {
  std::optional<Json> report = Json::parse(text);
  if (const Json* tiers = report ? report->find("tiers") : nullptr; tiers && tiers->is_array())
    return std::move(*report);
  return bad_input(name + ": not a report of 'monarchctl run --report'; name its FILE, or a job's number");
}

std::vector<Kept> kept_reports(const std::string& state_dir, const std::string& name) {
  const std::string all = state_dir + "/reports", ending = ".json";
  const uid_t self = ::geteuid();
  std::vector<Kept> kept;
  for (const std::string& user : self == 0 ? names_in(all) : std::vector<std::string>{std::to_string(self)})
    for (const std::string& file : names_in(all + "/" + user)) {
      Job of;
      if (!file.ends_with(ending) || !name_slurm(file.substr(0, file.size() - ending.size()), &of) ||
          (!name.empty() && !is_named(of, name)))
        continue;
      std::error_code error;
      const std::string path = all + "/" + user + "/" + file;
      const auto written = std::filesystem::last_write_time(path, error);
      if (!error) kept.push_back({path, of.id, of.cluster, written});
    }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.when > b.when; });
  return kept;
}

Status check_one(const std::string& name, const std::set<std::string>& clusters) {
  if (clusters.size() < 2) return {};
  std::string names;
  for (const std::string& cluster : clusters) names += (names.empty() ? "" : " or ") + name + "@" + cluster;
  return bad_input(std::to_string(clusters.size()) + " clusters have or had a job " + name +
                   " on this node; name " + names);
}

}  // namespace monarch::admin
