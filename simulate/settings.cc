// SPDX-License-Identifier: Apache-2.0
#include "simulate/settings.h"

#include <ini.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "runtime/base/number.h"
#include "runtime/config/keys.h"
#include "runtime/config/values.h"

namespace monarch::simulate {
namespace {

constexpr char kTier[] = "tier.";
constexpr double kMostReads = 2e9;  // each takes 4 bytes of memory

Result<double> parse_amount(const std::string& text, double least) {
  const std::optional<double> amount = to_number<double>(text);
  if (amount && *amount >= least && *amount <= 1e12) return *amount;
  return bad_input("'" + text + "' is not a number from " + (least == 0 ? "0" : "0.000001") +
                   " to 1000000000000; write it without a unit");
}

Result<uint32_t> parse_count(const std::string& text, uint32_t most) {
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
    const Result<double> rate =
        parse_amount(colon == std::string::npos ? point : point.substr(colon + 1), 1e-6);
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

template <typename Section>
Key<Section> amount(const char* name, double Section::*place, double least = 1e-6) {
  const auto set = [=](const std::string& text, Section* section) {
    return assign(parse_amount(text, least), &(section->*place));
  };
  return {name, set, nullptr};
}
template <typename Section>
Key<Section> count(const char* name, uint32_t Section::*place, uint32_t most) {
  const auto set = [=](const std::string& text, Section* section) {
    return assign(parse_count(text, most), &(section->*place));
  };
  return {name, set, nullptr};
}
template <typename Section>
Key<Section> curve(const char* name, Curve Section::*place) {
  const auto set = [=](const std::string& text, Section* section) {
    return assign(parse_curve(text), &(section->*place));
  };
  return {name, set, nullptr};
}

Status set_seed(const std::string& text, Dataset* dataset) {
  const std::optional<uint64_t> seed = to_number<uint64_t>(text);
  if (!seed) return bad_input("'" + text + "' is not a whole number");
  dataset->seed = *seed;
  return {};
}

const Keys<Machine> kMachineKeys = {
    count("nodes", &Machine::nodes, UINT16_MAX), amount("compute", &Machine::compute),
    amount("preprocess", &Machine::preprocess), amount("network", &Machine::network)};
const Keys<Machine> kPfsKeys = {curve("rate", &Machine::pfs), amount("link", &Machine::pfs_link)};
const Keys<Tier> kTierKeys = {amount("capacity", &Tier::capacity, 0), count("threads", &Tier::threads, 1024),
                              curve("read", &Tier::read), curve("write", &Tier::write)};
const Keys<Dataset> kDatasetKeys = {
    count("samples", &Dataset::samples, INT32_MAX), amount("mean", &Dataset::mean),
    amount("deviation", &Dataset::deviation, 0),    count("epochs", &Dataset::epochs, 1000000),
    count("batch", &Dataset::batch, INT32_MAX),     {"seed", &set_seed, nullptr}};

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
  const auto lacks = [](const char* key, const char* example) {
    return bad_input(std::string("no file has ") + key + "; add for example " + example);
  };
  if (machine.compute == 0) return lacks("compute of [machine]", "compute = 100");
  if (machine.preprocess == 0) return lacks("preprocess of [machine]", "preprocess = 200");
  if (machine.network == 0) return lacks("network of [machine]", "network = 10000");
  if (machine.pfs.empty()) return lacks("rate of [pfs]", "rate = 1:500 4:1500");
  if (dataset.samples == 0) return lacks("samples of [dataset]", "samples = 10000");
  if (dataset.mean == 0) return lacks("mean of [dataset]", "mean = 0.1");
  if (machine.pfs_link == 0) machine.pfs_link = std::numeric_limits<double>::infinity();
  if (machine.staging.read.empty()) return lacks("read of [staging]", "read = 20000");
  if (machine.staging.write.empty()) machine.staging.write = machine.staging.read;
  for (Tier& tier : machine.tiers) {
    if (tier.read.empty()) return lacks(("read of [tier." + tier.name + "]").c_str(), "read = 1:500 4:2000");
    if (tier.write.empty()) tier.write = tier.read;
  }
  if (dataset.samples / machine.nodes < dataset.batch)
    return bad_input(
        "the dataset has fewer samples than a batch of all nodes; make batch of [dataset] smaller");
  if (static_cast<double>(dataset.samples) * dataset.epochs > kMostReads)
    return bad_input("more than 2000000000 reads; take a part of the samples, and of each tier's capacity");
  return {};
}

}  // namespace monarch::simulate
