// SPDX-License-Identifier: Apache-2.0
#include "simulate/settings.h"

#include <ini.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/base/number.h"
#include "runtime/config/keys.h"
#include "runtime/config/values.h"

namespace monarch::simulate {
namespace {

constexpr char kTier[] = "tier.";
constexpr double kMostReads = 3e8;  // each takes up to 20 bytes of memory

Result<double> parse_amount(const std::string& text, double least) {
  const std::optional<double> amount = to_number<double>(text);
  if (amount && *amount >= least && *amount <= 1e12) return *amount;
  return bad_input("'" + text + "' is not a number from " + (least == 0 ? "0" : "0.000001") +
                   " to 1000000000000; write it without a unit");
}
Result<double> from_0(const std::string& text) { return parse_amount(text, 0); }
Result<double> above_0(const std::string& text) { return parse_amount(text, 1e-6); }

template <uint32_t most>
Result<uint32_t> up_to(const std::string& text) {
  const std::optional<uint32_t> count = to_number<uint32_t>(text);
  if (count && *count >= 1 && *count <= most) return *count;
  return bad_input("'" + text + "' is not a number from 1 to " + std::to_string(most));
}

// "1:66 2:86", or a rate that is the same for any number.
Result<Curve> parse_curve(const std::string& text) {
  std::vector<std::pair<double, double>> points;
  for (const std::string& point : split_list(text, ' ')) {
    const size_t colon = point.find(':');
    const Result<double> n =
        colon == std::string::npos ? Result<double>(1.0) : parse_amount(point.substr(0, colon), 1);
    const Result<double> rate = above_0(colon == std::string::npos ? point : point.substr(colon + 1));
    if (!n.ok() || !rate.ok() || (!points.empty() && *n <= points.back().first)) {
      points.clear();
      break;
    }
    points.emplace_back(*n, *rate);
  }
  if (!points.empty()) return Curve(points);
  return bad_input("'" + text +
                   "' is not NUMBER:RATE with ascending numbers; write for example 1:500 4:1500");
}

Result<Dataset::Reads> parse_reads(const std::string& text) {
  if (text == "part") return Dataset::Reads::kPart;
  if (text == "all") return Dataset::Reads::kAll;
  return bad_input("'" + text + "' is neither part nor all");
}

template <typename Section, typename Value>
Key<Section> key(const char* name, Value Section::*place, Result<Value> (*parse)(const std::string&)) {
  const auto set = [=](const std::string& text, Section* section) {
    return assign(parse(text), &(section->*place));
  };
  return {name, set, nullptr};
}

const Keys<Machine> kMachineKeys = {key("nodes", &Machine::nodes, &up_to<UINT16_MAX>),
                                    key("compute", &Machine::compute, &above_0),
                                    key("preprocess", &Machine::preprocess, &above_0),
                                    key("network", &Machine::network, &parse_curve),
                                    key("per_host", &Machine::per_host, &up_to<UINT16_MAX>),
                                    key("lost_every", &Machine::lost_every, &above_0)};
const Keys<Machine> kPfsKeys = {key("rate", &Machine::pfs, &parse_curve),
                                key("link", &Machine::pfs_link, &above_0),
                                key("open", &Machine::pfs_open, &from_0)};
const Keys<Tier> kTierKeys = {
    key("capacity", &Tier::capacity, &from_0), key("threads", &Tier::threads, &up_to<1024>),
    key("read", &Tier::read, &parse_curve), key("write", &Tier::write, &parse_curve)};
const Keys<Dataset> kDatasetKeys = {
    key("samples", &Dataset::samples, &up_to<INT32_MAX>), key("mean", &Dataset::mean, &above_0),
    key("deviation", &Dataset::deviation, &from_0),       key("epochs", &Dataset::epochs, &up_to<1000000>),
    key("batch", &Dataset::batch, &up_to<INT32_MAX>),     key("seed", &Dataset::seed, &up_to<INT32_MAX>),
    key("reads", &Dataset::reads, &parse_reads)};

Tier* tier_of(const std::string& section, Settings* settings) {
  if (section == "staging") return &settings->machine.staging;
  for (Tier& tier : settings->machine.tiers)
    if (section == kTier + tier.name) return &tier;
  return nullptr;
}

Status set_key(const std::string& section, const std::string& key, const std::string& value,
               Settings* settings) {
  if (section == "machine") return monarch::set_key(kMachineKeys, section, key, value, &settings->machine);
  if (section == "pfs") return monarch::set_key(kPfsKeys, section, key, value, &settings->machine);
  if (section == "dataset") return monarch::set_key(kDatasetKeys, section, key, value, &settings->dataset);
  if (Tier* tier = tier_of(section, settings)) return monarch::set_key(kTierKeys, section, key, value, tier);
  return bad_input("unknown section [" + section +
                   "]; name one of [machine], [pfs], [staging], [tier.NAME] and [dataset]");
}

// A file while inih reads it.
struct Reading {
  std::string_view left;
  int line = 0;
  Settings* settings;
  Status status;  // the first error, and its line
  int bad_line = 0;

  void fail(const Status& error) {
    if (!status.ok()) return;
    status = error;
    bad_line = line;
  }
};

char* read_line(char* buffer, int bytes, void* stream) {
  auto* in = static_cast<Reading*>(stream);
  if (in->left.empty()) return nullptr;
  const size_t end = std::min(in->left.find('\n'), in->left.size() - 1) + 1;
  std::string_view line = in->left.substr(0, end);
  in->left.remove_prefix(end);
  ++in->line;
  line.remove_prefix(
      std::min(line.find_first_not_of(" \t\r\n"), line.size()));  // inih would take it for more of a value
  line = line.substr(0, line.find_first_of("#;"));
  const size_t most = static_cast<size_t>(bytes) - 1;
  if (line.size() > most) in->fail(bad_input("the line is longer than " + std::to_string(most) + " bytes"));
  buffer[line.copy(buffer, most)] = '\0';
  return buffer;
}

int on_key(void* user, const char* section, const char* key, const char* value) {
  auto* in = static_cast<Reading*>(user);
  const std::string name = section;
  if (name.starts_with(kTier) && name.size() > std::strlen(kTier) && !tier_of(name, in->settings))
    in->settings->machine.tiers.emplace_back().name = name.substr(std::strlen(kTier));
  const Status status = set_key(name, key, value, in->settings);
  if (!status.ok()) in->fail(status);
  return 1;
}

}  // namespace

Status read_settings(const std::string& file, const std::string& text, Settings* settings) {
  Reading in{text, 0, settings, {}};
  const int bad_line = ini_parse_stream(&read_line, &in, &on_key, &in);
  if (bad_line < 0) return Error{ENOMEM, "read " + file + ": inih ran out of memory"};
  const bool is_no_line = bad_line > 0 && (in.status.ok() || bad_line < in.bad_line);
  const std::string why =
      is_no_line ? "neither [section], key = value nor a comment; mend the line" : in.status.error().text;
  if (!is_no_line && in.status.ok()) return {};
  return bad_input(file + ":" + std::to_string(is_no_line ? bad_line : in.bad_line) + ": " + why);
}

Status change_setting(const std::string& key, const std::string& value, Settings* settings) {
  const size_t dot = key.rfind('.');
  if (dot == std::string::npos)
    return bad_input("'" + key + "' is not SECTION.KEY; write for example machine.nodes");
  return set_key(key.substr(0, dot), key.substr(dot + 1), value, settings);
}

Status complete(Settings* settings) {
  Machine& machine = settings->machine;
  const Dataset& dataset = settings->dataset;
  const struct {
    bool is_there;
    const char *key, *example;
  } needed[] = {{machine.compute > 0, "compute of [machine]", "compute = 100"},
                {machine.preprocess > 0, "preprocess of [machine]", "preprocess = 200"},
                {!machine.network.empty() || machine.nodes == 1, "network of [machine]", "network = 10000"},
                {!machine.pfs.empty(), "rate of [pfs]", "rate = 1:500 4:1500"},
                {!machine.staging.read.empty(), "read of [staging]", "read = 20000"},
                {dataset.samples > 0, "samples of [dataset]", "samples = 10000"},
                {dataset.mean > 0, "mean of [dataset]", "mean = 0.1"}};
  for (const auto& [is_there, key, example] : needed)
    if (!is_there) return bad_input(std::string("no file has ") + key + "; add for example " + example);
  for (const Tier& tier : machine.tiers)
    if (tier.read.empty())
      return bad_input("[tier." + tier.name + "] has no read; add for example read = 1:500 4:2000");
  if (machine.pfs_link == 0) machine.pfs_link = std::numeric_limits<double>::infinity();
  if (machine.staging.write.empty()) machine.staging.write = machine.staging.read;
  for (Tier& tier : machine.tiers)
    if (tier.write.empty()) tier.write = tier.read;
  const bool is_all = dataset.reads == Dataset::Reads::kAll;
  if (dataset.samples / (is_all ? 1 : machine.nodes) < dataset.batch)
    return bad_input(
        "the dataset has fewer samples than a batch of all nodes; make batch of [dataset] smaller");
  if (static_cast<double>(dataset.samples) * dataset.epochs * (is_all ? machine.nodes : 1) > kMostReads)
    return bad_input("more than 300000000 reads; take a part of the samples, and of each tier's capacity");
  return {};
}

}  // namespace monarch::simulate
