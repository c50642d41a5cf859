// SPDX-License-Identifier: Apache-2.0
#include "admin/node_rows.h"

#include <algorithm>
#include <cctype>

#include "admin/job_text.h"
#include "admin/jobs.h"
#include "admin/output.h"
#include "runtime/base/size.h"
#include "runtime/config/config.h"

namespace monarch::admin {
namespace {

std::string when(const NodeLine& line) {
  if (line.told.ended == 1) return "all";
  return *line.seconds_ago == 0 ? "now" : time_text(*line.seconds_ago) + " ago";
}

void add(NodeTold* sum, const NodeTold& n) {
  sum->files = sum_of_counts(sum->files, n.files);
  for (uint32_t i = 0; i < kMedia; ++i)
    sum->placed_bytes[i] = sum_of_counts(sum->placed_bytes[i], n.placed_bytes[i]);
  sum->opens_tier = sum_of_counts(sum->opens_tier, n.opens_tier);
  sum->opens_pfs = sum_of_counts(sum->opens_pfs, n.opens_pfs);
  sum->pfs_bytes = sum_of_counts(sum->pfs_bytes, n.pfs_bytes);
  sum->peer_bytes = sum_of_counts(sum->peer_bytes, n.peer_bytes);
  sum->served_bytes = sum_of_counts(sum->served_bytes, n.served_bytes);
}

}  // namespace

uint64_t told_count(const std::vector<NodeLine>& lines) {
  return static_cast<uint64_t>(
      std::count_if(lines.begin(), lines.end(), [](const NodeLine& line) { return line.seconds_ago; }));
}

std::vector<std::vector<std::string>> node_rows(const std::vector<NodeLine>& lines, uint64_t nodes) {
  NodeTold sum;
  for (const NodeLine& line : lines) add(&sum, line.told);
  std::vector<uint32_t> media;
  for (uint32_t i = 0; i < kMedia; ++i)
    if (sum.placed_bytes[i] > 0) media.push_back(i);
  std::vector<std::string> heading = {"NODE", "FILES"};
  for (const uint32_t i : media) {
    heading.emplace_back(name_of(static_cast<Medium>(i)));
    for (char& c : heading.back()) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  heading.insert(heading.end(), {"OPENS", "HIT", "PFS", "PEERS", "SERVED", "TOLD"});
  std::vector<std::vector<std::string>> rows = {heading};
  const auto add_row = [&](const std::string& name, const NodeTold& n, const std::string& told) {
    const uint64_t opens = n.opens_tier + n.opens_pfs;
    std::vector<std::string> row = {name, std::to_string(n.files)};
    for (const uint32_t i : media) row.push_back(format_size(n.placed_bytes[i]));
    row.insert(row.end(),
               {std::to_string(opens), percent_text(percent(n.opens_tier, opens), false),
                format_size(n.pfs_bytes), format_size(n.peer_bytes), format_size(n.served_bytes), told});
    rows.push_back(row);
  };
  for (const NodeLine& line : lines) {
    if (line.seconds_ago) {
      add_row(word(line.told.name), line.told, when(line));
      continue;
    }
    rows.emplace_back(heading.size(), "-");
    rows.back()[0] = word(line.told.name);
    rows.back().back() = "nothing yet";
  }
  add_row("all", sum, "nodes=" + std::to_string(told_count(lines)) + "/" + std::to_string(nodes));
  return rows;
}

}  // namespace monarch::admin
