// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/nodes_report.h"

#include <algorithm>

#include "runtime/config/config.h"

namespace monarch {
namespace {
struct Field {
  const char* name;
  uint64_t NodeTold::*value;
};
constexpr Field kFields[] = {{"files", &NodeTold::files},
                             {"opens_tier", &NodeTold::opens_tier},
                             {"pfs_bytes", &NodeTold::pfs_bytes},
                             {"peer_bytes", &NodeTold::peer_bytes},
                             {"served_bytes", &NodeTold::served_bytes}};

bool read_number(const Json& object, const char* name, uint64_t* number) {
  const Json& at = object[name];
  if (!at.is_number_unsigned() || at.number() > kMostCount) return false;
  *number = at.number();
  return true;
}

bool read_counts(const Json& object, NodeTold* told) {
  bool good = std::all_of(std::begin(kFields), std::end(kFields),
                          [&](const Field& f) { return read_number(object, f.name, &(told->*f.value)); });
  uint64_t opens = 0;
  good &= read_number(object, "opens", &opens) && opens >= told->opens_tier;
  told->opens_pfs = opens - std::min(opens, told->opens_tier);
  const Json &ended = object["ended"], &placed = object["placed_bytes"];
  if (!good || !ended.is_bool() || !placed.is_object()) return false;
  told->ended = ended.boolean() ? 1 : 0;
  return std::all_of(placed.members().begin(), placed.members().end(), [&](const auto& member) {
    const Result<Medium> medium = parse_name<Medium>(member.first);
    return medium.ok() &&
           read_number(placed, member.first.c_str(), &told->placed_bytes[static_cast<uint32_t>(*medium)]);
  });
}

bool read_line(const Json& object, NodeLine* line) {
  if (!object.is_object()) return false;
  const Json *name = object.find("node"), *ago = object.find("told_seconds_ago");
  if (!name || !name->is_string() || !ago) return false;
  name->text().copy(line->told.name, sizeof line->told.name - 1);
  if (ago->is_null()) return true;
  uint64_t seconds = 0;
  if (!read_number(object, "told_seconds_ago", &seconds) || !read_counts(object, &line->told)) return false;
  line->seconds_ago = seconds;
  return true;
}

// The first node's line.
NodeTold told_of_first(const NodeTold& written, const NodeCounts& own) {
  NodeTold first = told_of(own);
  std::copy(std::begin(written.name), std::end(written.name), first.name);
  first.told_ms = written.told_ms;
  first.ended = written.ended;
  if (std::all_of(std::begin(own.placed_bytes), std::end(own.placed_bytes),
                  [](uint64_t n) { return n == 0; }))
    std::copy(std::begin(written.placed_bytes), std::end(written.placed_bytes), first.placed_bytes);
  return first;
}

}  // namespace

std::vector<NodeLine> node_lines(const NodesTold& nodes, const NodeCounts& own, Clock& clock) {
  const auto now = static_cast<uint64_t>(clock.now_ms());
  std::vector<NodeLine> lines;
  if (nodes.count > 0) lines.push_back({told_of_first(nodes.told[0], own), 0});
  for (uint64_t i = 1; i < nodes.count; ++i) {
    const NodeTold& told = nodes.told[i];
    lines.push_back({told, {}});
    if (told.told_ms != 0) lines.back().seconds_ago = (now - std::min(now, told.told_ms)) / 1000;
  }
  return lines;
}

Json placed_json(const uint64_t (&by_medium)[kMedia]) {
  Json placed = Json::object();
  for (uint32_t i = 0; i < kMedia; ++i)
    if (by_medium[i] > 0) placed[name_of(static_cast<Medium>(i))] = by_medium[i];
  return placed;
}

Json by_node(const std::vector<NodeLine>& lines) {
  Json all = Json::array();
  for (const NodeLine& line : lines) {
    const NodeTold& told = line.told;
    Json node = {{"node", told.name}, {"told_seconds_ago", line.seconds_ago}};
    if (line.seconds_ago) {
      const uint64_t opens = told.opens_tier + told.opens_pfs;
      node.update(
          {{"ended", told.ended == 1}, {"placed_bytes", placed_json(told.placed_bytes)}, {"opens", opens}});
      for (const Field& f : kFields) node[f.name] = told.*f.value;
      node["hit"] = opens ? static_cast<double>(told.opens_tier) / static_cast<double>(opens) : 0.0;
    }
    all.push_back(node);
  }
  return all;
}

Result<std::vector<NodeLine>> node_lines_of(const Json& by_node) {
  const Error none = bad_input("by_node is none of Monarch's");
  if (!by_node.is_array() || by_node.size() > kMostNodesTold) return none;
  std::vector<NodeLine> lines(by_node.size());
  for (size_t i = 0; i < lines.size(); ++i)
    if (!read_line(by_node.at(i), &lines[i])) return none;
  return lines;
}

}  // namespace monarch
