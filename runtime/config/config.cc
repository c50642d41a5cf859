// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ini.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>

#include "runtime/base/escape.h"
#include "runtime/base/log.h"
#include "runtime/base/nearest.h"
#include "runtime/base/number.h"
#include "runtime/base/paths.h"
#include "runtime/base/size.h"
#include "runtime/config/keys.h"
#include "runtime/config/policy_keys.h"
#include "runtime/config/show.h"
#include "runtime/config/values.h"
#include "runtime/layout/catalog_layout.h"

namespace monarch {

Result<uint64_t> parse_rate(const std::string& text) {
  if (text == "none" || text == "0") return uint64_t{0};
  Result<uint64_t> rate = parse_size(text);
  if (rate.ok() && *rate == 0) return bad_input("'" + text + "' is less than 1; write none for no limit");
  return rate;
}

Result<uint64_t> parse_number(const std::string& text) {
  Result<uint64_t> number = parse_rate(text);
  if (number.ok() || parse_size(text).ok()) return number;
  return bad_input("'" + text + "' is not a number; write for example 5000, or none");
}

Result<bool> parse_switch(const std::string& text) {
  if (text == "on") return true;
  if (text == "off") return false;
  return bad_input("'" + text + "' is none of on, off");
}

Result<std::string> parse_path(const std::string& text) {
  if (text.empty() || text[0] != '/') return bad_input("path '" + text + "' is not absolute");
  if ((text + "/").find("/../") != std::string::npos)
    return bad_input("path '" + text + "': name the directory without '..'");
  if (!is_utf8(text)) return bad_input("path '" + escaped(text) + "' is not UTF-8");
  return absolute_path(text);
}

size_t comment_in(const std::string& text) {
  for (size_t i = 1; i < text.size(); ++i)
    if ((text[i] == '#' || text[i] == ';') && std::isspace(static_cast<unsigned char>(text[i - 1]))) return i;
  return std::string::npos;
}

Error unknown_key(const std::string& key, const std::string& section, const std::vector<std::string>& known) {
  return bad_input("unknown key '" + key + "' in [" + section + "]" + did_you_mean(nearest(key, known)) +
                   fmt::format("; known are {}", fmt::join(known, ", ")));
}

std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; bytes != 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return std::to_string(bytes) + kUnits[unit];
}

std::string quota_text(const Quota& quota) {
  return quota.percent < 0 ? size_text(quota.bytes) : fmt::format("{}%", quota.percent);
}

std::string rate_text(uint64_t rate) { return rate == 0 ? "none" : size_text(rate); }
std::string switch_text(bool on) { return on ? "on" : "off"; }

namespace {

Result<int> parse_count(const std::string& text, int least, int most) {
  const std::optional<int> n = to_number<int>(text);
  if (!n || *n < least || *n > most)
    return bad_input("'" + text + "' is not a number from " + std::to_string(least) + " to " +
                     std::to_string(most));
  return *n;
}

Result<uint64_t> parse_burst(const std::string& text) {
  if (text == "auto") return uint64_t{AgentConfig::kBurstAuto};
  Result<uint64_t> burst = text == "0" ? uint64_t{0} : parse_size(text);
  if (burst.ok()) return burst;
  return bad_input("'" + text + "' is neither auto, 0 nor a size like 512M or 10G");
}

Result<uint64_t> parse_memory_max(const std::string& text) {
  constexpr uint64_t kLeast = 64 << 20;  // with less the kernel kills it before it is ready
  if (text == "auto") return AgentConfig::kMemoryAuto;
  Result<uint64_t> size = parse_rate(text);
  if (size.ok() && *size != 0 && *size < kLeast) return bad_input("memory_max is at least 64M, none or auto");
  return size;
}

Result<uint64_t> parse_run_size(const std::string& text) {
  constexpr uint64_t kLeast = 4 << 20;  // a board, a catalog's first segments and a log
  Result<uint64_t> size = parse_rate(text);
  if (size.ok() && *size != 0 && *size < kLeast) return bad_input("run_size is at least 4M, or none");
  return size;
}

// ADDRESS/BITS, of version 4 or 6.
Result<std::string> parse_network(const std::string& text) {
  const size_t slash = text.find('/');
  const std::string address = text.substr(0, slash);
  unsigned char bytes[sizeof(in6_addr)];
  const int most = ::inet_pton(AF_INET, address.c_str(), bytes) == 1    ? 32
                   : ::inet_pton(AF_INET6, address.c_str(), bytes) == 1 ? 128
                                                                        : 0;
  if (slash == std::string::npos || most == 0 || !parse_count(text.substr(slash + 1), 1, most).ok())
    return bad_input("network '" + text + "' is not ADDRESS/BITS; write for example network = 10.1.0.0/16");
  return text;
}

// FIRST-LAST, of those that need no privilege.
Result<PeerConfig::Ports> parse_ports(const std::string& text) {
  constexpr int kLeast = 1024, kMost = 65535;
  const size_t dash = text.find('-');
  const Result<int> first = parse_count(text.substr(0, dash), 1, kMost);
  const Result<int> last =
      dash == std::string::npos ? bad_input("") : parse_count(text.substr(dash + 1), 1, kMost);
  if (!first.ok() || !last.ok() || *first < kLeast || *last < *first)
    return bad_input("ports '" + text +
                     "' are not FIRST-LAST, from 1024 to 65535; write for example ports = 64000-64999");
  return PeerConfig::Ports{static_cast<uint16_t>(*first), static_cast<uint16_t>(*last)};
}

Result<std::string> parse_log_level(const std::string& text) {
  MONARCH_TRY(check_log_level(text));
  return text;
}

Result<std::string> parse_text(const std::string& text) { return text; }
std::optional<std::string> text_if_any(const std::string& text) {
  if (text.empty()) return {};
  return text;
}

std::string burst_text(uint64_t burst) {
  return burst == AgentConfig::kBurstAuto ? "auto" : size_text(burst);
}
std::string memory_text(uint64_t memory) {
  return memory == AgentConfig::kMemoryAuto ? "auto" : rate_text(memory);
}
std::string ports_text(const PeerConfig::Ports& ports) {
  return fmt::format("{}-{}", ports.first, ports.last);
}

template <typename Section, typename Place>
Key<Section> count_key(const char* name, Place place, int least, int most) {
  return key_of<Section>(
      name, place, [=](const std::string& text) { return parse_count(text, least, most); },
      [](int n) { return std::to_string(n); });
}
template <typename E, typename Section, typename Place>
Key<Section> name_key(const char* name, Place place) {
  return key_of<Section>(name, place, &parse_name<E>, [](E value) { return std::string(name_of(value)); });
}

bool good_name(const std::string& name) {
  return !name.empty() && name.size() < sizeof(TierPath::name) &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
             std::string::npos;
}

const std::string kTierSection = "tier.";
constexpr size_t kMostErrors = 100;  // with more it is another kind of file
constexpr char kNoLine[] = "neither [section], key = value nor a comment";

// What inih's callbacks share while a file is read.
struct Reading {
  std::string file;
  FILE* stream = nullptr;
  int line = 0;
  bool understood = true;  // whether anything was made of that line
  uint64_t least_quota = 0;
  Config config;
  ConfigTrace* trace = nullptr;
  std::set<std::string> given;  // "section.key", of those that words say
  std::vector<int> tier_lines;  // where each tier began
  bool skips = false;           // the keys of the section, which was refused
  bool has_skipped = false;     // one of the sections

  // 0 for `where`: of no line, but of a word. `key`: SECTION.KEY, if it is of one.
  void fail(int where, const std::string& text, const std::string& key = "") {
    const std::string place = where > 0 ? file + ":" + std::to_string(where) : "plugstack.conf";
    trace->errors.push_back({where, key, bad_input(place + ": " + text)});
  }
  bool has_refused(const std::string& key) const {
    return std::any_of(trace->errors.begin(), trace->errors.end(),
                       [&](const ConfigError& e) { return e.key == key; });
  }
};

std::string name_of(const std::string& section, const std::string& key) {
  return canonical_section(section) + "." + key;
}

// The tier of section [tier.NAME], or nullptr.
TierConfig* find_tier(Config* config, const std::string& section) {
  for (TierConfig& t : config->tiers)
    if (kTierSection + t.name == section) return &t;
  return nullptr;
}

// What may have been meant; empty: nothing is near.
std::string nearest_section(const std::string& section) {
  const size_t dot = section.find('.'), second = section.find('.', dot + 1);
  std::vector<std::string> known = {"accounting", "agent", "peer", "policy"};
  if (dot != std::string::npos) known.push_back(kTierSection + section.substr(dot + 1));
  for (const char* prefix : {"policy.partition.", "policy.account.", "policy.qos."})
    if (second != std::string::npos) known.push_back(prefix + section.substr(second + 1));
  return nearest(section, known);
}

Error unknown_section(const std::string& section) {
  const std::string meant = nearest_section(section);
  return bad_input("unknown section [" + section + "]" +
                   did_you_mean(meant.empty() ? "" : "[" + meant + "]") +
                   "; known are [accounting], [agent], [peer], [tier.NAME], [policy], "
                   "[policy.partition.NAME], [policy.account.NAME] and [policy.qos.NAME]");
}

Status begin_section(Reading* in, const std::string& section) {
  if (section == "agent" || section == "accounting" || section == "peer" || find_tier(&in->config, section) ||
      find_policy(&in->config, section))
    return {};
  if (is_policy_section(section)) {
    add_policy(&in->config, section);
    return {};
  }
  if (section.rfind(kTierSection, 0) != 0) return unknown_section(section);
  TierConfig fresh;
  fresh.name = section.substr(kTierSection.size());
  MONARCH_TRY(add_tier(&in->config, std::move(fresh)));
  in->tier_lines.push_back(in->line);
  return {};
}

Status set_key(Reading* in, const std::string& section, const std::string& key, const std::string& value) {
  PolicySection* policy = find_policy(&in->config, section);
  const std::string name = name_of(section, key);
  if (in->given.count(name)) return {};
  const bool again = !in->trace->lines.insert_or_assign(name, in->line).second;
  if (again && !(policy && is_list_of_policy(key)))
    return bad_input("'" + key + "' is given twice in [" + section + "]");
  if (policy && key == "tiers") policy->tiers_line = in->line;
  if (policy) return set_key(policy_keys(), policy->title(), key, value, &policy->keys);
  if (section.empty())
    return bad_input("'" + key + "' stands before the first [section]; write for example [agent] above it");
  if (section == "agent") return set_key(agent_keys(), section, key, value, &in->config.agent);
  if (section == "accounting") return set_key(accounting_keys(), section, key, value, &in->config);
  if (section == "peer") return set_key(peer_keys(), section, key, value, &in->config.peer);
  TierConfig* tier = find_tier(&in->config, section);
  if (!tier) return unknown_section(section);
  MONARCH_TRY(set_key(tier_keys(), section, key, value, tier));
  const Quota& quota = tier->quota;
  if (key == "quota" &&
      (quota.percent < 0 ? quota.bytes < in->least_quota : quota.percent == 0 && in->least_quota))
    return bad_input("quota = " + value + " has no room for any file; write for example quota = 100G");
  return {};
}

// Called by inih once per key. (Debian's inih does not pass the line, so the reader below counts them.)
int on_key(void* user, const char* section, const char* key, const char* value) {
  auto* in = static_cast<Reading*>(user);
  in->understood = true;
  if (in->skips) return 1;
  const Status s = set_key(in, section, key, value);
  if (s.ok()) return 1;
  const std::string& why = s.error().text;
  in->fail(in->line, why.find(key) == std::string::npos ? key + (": " + why) : why, name_of(section, key));
  return 1;
}

// inih tells keys only: a section without any would go unnoticed.
void look_for_section(Reading* in, const char* line) {
  const char* end = *line == '[' ? std::strchr(line, ']') : nullptr;
  if (!end) return;
  in->understood = true;
  const Status s = begin_section(in, std::string(line + 1, end));
  in->skips = !s.ok();
  in->has_skipped |= in->skips;
  if (in->skips) in->fail(in->line, s.error().text);
}

// Of a line that is longer than inih takes.
void skip_rest(FILE* stream) {
  for (int c = 0; c != '\n' && c != EOF;) c = std::fgetc(stream);
}

// inih goes by the line, and tells of the first only that it could make nothing of.
char* read_line(char* buffer, int bytes, void* stream) {
  constexpr char kBlanks[] = " \t\n\v\f\r";
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  auto* in = static_cast<Reading*>(stream);
  if (!in->understood) in->fail(in->line, kNoLine);
  in->understood = true;
  ++in->line;
  if (in->trace->errors.size() >= kMostErrors || !std::fgets(buffer, bytes, in->stream)) return nullptr;
  std::string line = buffer;
  if (line.size() + 1 == static_cast<size_t>(bytes) && line.back() != '\n') {
    in->fail(in->line, "the line is longer than " + std::to_string(bytes - 2) + " bytes");
    skip_rest(in->stream);
    line.clear();
  }
  if (in->line == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
  line.erase(0, line.find_first_not_of(kBlanks));  // to inih it would continue the value above
  line.erase(std::min(comment_in(line), line.size()));
  in->understood = line.empty() || line[0] == '#' || line[0] == ';';
  look_for_section(in, line.c_str());
  std::memcpy(buffer, line.c_str(), line.size() + 1);
  return buffer;
}

// SECTION.KEY=VALUE
struct Word {
  std::string text, section, key, value;
};

Result<std::vector<Word>> parse_words(const std::string& lines) {
  std::vector<Word> words;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    Word word;
    word.text = lines.substr(at, end - at);
    at = end + 1;
    const size_t is = word.text.find('='), dot = word.text.rfind('.', is);
    if (is == std::string::npos || dot == std::string::npos || dot == 0 || dot + 1 == is)
      return bad_input("plugstack.conf: " + word.text +
                       ": is not SECTION.KEY=VALUE, as agent.prefetch=off is");
    word.section = word.text.substr(0, dot);
    word.key = word.text.substr(dot + 1, is - dot - 1);
    word.value = word.text.substr(is + 1);
    words.push_back(std::move(word));
  }
  return words;
}

// With the file read.
void set_words(Reading* in, const std::vector<Word>& words) {
  in->given.clear();
  for (const Word& word : words) {
    Status s;
    if (word.section.rfind(kTierSection, 0) == 0 && !find_tier(&in->config, word.section))
      s = bad_input(in->file + " has no section [" + word.section + "]; add it");
    else
      s = begin_section(in, word.section);
    const bool is_of_key = s.ok();
    if (s.ok()) s = set_key(in, word.section, word.key, word.value);
    if (!s.ok())
      in->fail(0, word.text + ": " + s.error().text, is_of_key ? name_of(word.section, word.key) : "");
  }
}

}  // namespace

const Keys<AgentConfig>& agent_keys() {
  using A = AgentConfig;
  static const Keys<A> keys = {count_key<A>("threads", &A::threads, 1, 256),
                               count_key<A>("walk_threads", &A::walk_threads, 1, 64),
                               count_key<A>("watch_directories", &A::watch_directories, 0, 1 << 20),
                               key_of<A>("stage_wait_max", &A::stage_wait_max, &parse_size, &size_text),
                               count_key<A>("stage_wait", &A::stage_wait, 0, 600),
                               count_key<A>("stage_again", &A::stage_again, 0, 86400),
                               name_key<A::Prefetch, A>("prefetch", &A::prefetch),
                               key_of<A>("prefetch_burst", &A::prefetch_burst, &parse_burst, &burst_text),
                               count_key<A>("prefetch_patience", &A::prefetch_patience, 0, 86400),
                               name_key<A::Consistency, A>("consistency", &A::consistency),
                               name_key<A::Metadata, A>("metadata", &A::metadata),
                               key_of<A>("pfs_bandwidth", &A::pfs_bandwidth, &parse_rate, &rate_text),
                               key_of<A>("pfs_opens", &A::pfs_opens, &parse_number, &rate_text),
                               key_of<A>("pfs_stats", &A::pfs_stats, &parse_number, &rate_text),
                               key_of<A>("tier_bandwidth", &A::tier_bandwidth, &parse_rate, &rate_text),
                               name_key<A::Io, A>("background_io", &A::background_io),
                               key_of<A>("max_files", &A::max_files, &parse_number, &rate_text),
                               key_of<A>("memory_max", &A::memory_max, &parse_memory_max, &memory_text),
                               key_of<A>("run_size", &A::run_size, &parse_run_size, &rate_text),
                               key_of<A>("log", &A::log, &parse_text, &text_if_any),
                               key_of<A>("log_level", &A::log_level, &parse_log_level, &text_if_any)};
  return keys;
}

const Keys<PeerConfig>& peer_keys() {
  using P = PeerConfig;
  static const Keys<P> keys = {key_of<P>("enabled", &P::enabled, &parse_switch, &switch_text),
                               key_of<P>("network", &P::network, &parse_network, &text_if_any),
                               key_of<P>("ports", &P::ports, &parse_ports, &ports_text),
                               key_of<P>("bandwidth", &P::bandwidth, &parse_rate, &rate_text),
                               key_of<P>("encrypt", &P::encrypt, &parse_switch, &switch_text)};
  return keys;
}

const Keys<Config>& accounting_keys() {
  static const Keys<Config> keys = {
      name_key<Accounting, Config>("account", &Config::accounting),
      count_key<Config>(
          "spool_days", [](auto& c) -> auto& { return c.spool.spool_days; }, 1, 3650),
      count_key<Config>(
          "spool_lines", [](auto& c) -> auto& { return c.spool.spool_lines; }, 1, 1000000),
      count_key<Config>(
          "report_days", [](auto& c) -> auto& { return c.reports.report_days; }, 1, 3650),
      key_of<Config>(
          "report_size", [](auto& c) -> auto& { return c.reports.report_size; }, &parse_rate, &rate_text)};
  return keys;
}

const Keys<TierConfig>& tier_keys() {
  using T = TierConfig;
  static const Keys<T> keys = {key_of<T>("path", &T::path, &parse_path, &text_if_any),
                               key_of<T>("quota", &T::quota, &parse_quota, &quota_text),
                               name_key<T::Share, T>("share", &T::share),
                               key_of<T>("job_capacity", &T::job_capacity, &parse_job_capacity, &quota_text),
                               name_key<Medium, T>("medium", &T::medium),
                               name_key<T::Kind, T>("driver", &T::kind),
                               name_key<T::Charge, T>("charge", &T::charge),
                               key_of<T>("min_free", &T::min_free, &parse_quota, &quota_text)};
  return keys;
}

Result<Quota> parse_quota(const std::string& text) {
  Quota quota;
  if (text.empty() || text.back() != '%') {
    MONARCH_TRY(assign(parse_size(text), &quota.bytes));
    return quota;
  }
  quota.percent = to_number<double>(std::string_view(text).substr(0, text.size() - 1)).value_or(-1);
  if (!(quota.percent >= 0 && quota.percent <= 100))
    return bad_input("'" + text + "' is not a share from 0% to 100%; write for example 50%");
  return quota;
}

Result<Quota> parse_job_capacity(const std::string& text) {
  Result<Quota> capacity = parse_quota(text);
  if (capacity.ok() && (capacity->percent < 0 ? capacity->bytes < kSpaceBlock : capacity->percent == 0))
    return bad_input("job_capacity = " + text +
                     " has no room for any file; write for example job_capacity = 50%");
  return capacity;
}

namespace {

// A directory's files may be others', too, and nothing binds a job to its quota there; and of two such tiers
// each would take what the other has.
void check_charges(Reading* in) {
  const TierConfig* first = nullptr;
  for (const TierConfig& tier : in->config.tiers) {
    if (tier.charge != TierConfig::Charge::kJob) continue;
    const std::string section = kTierSection + tier.name, title = "[" + section + "]";
    if (in->has_refused(section + ".driver")) continue;
    std::string why;
    if (tier.kind != TierConfig::Kind::kTmpfs)
      why = title + ": charge = job is for driver = tmpfs only; write driver = tmpfs, or charge = node";
    else if (first)
      why = title + ": charge = job, as [tier." + first->name +
            "] has: a job has one such tier; write charge = node in one of them";
    first = &tier;
    if (!why.empty()) in->fail(in->trace->lines.at(section + ".charge"), why);
  }
}

// What is wrong with a tier by itself, or beside those before it.
void check_tier(Reading* in, size_t i) {
  const std::vector<TierConfig>& tiers = in->config.tiers;
  const std::string section = kTierSection + tiers[i].name;
  const auto fail = [&](const std::string& why) { in->fail(in->tier_lines[i], "[" + section + "] " + why); };
  if (!in->trace->lines.count(section + ".path")) fail("has no path; write for example path = /scratch");
  if (!in->trace->lines.count(section + ".quota")) fail("has no quota; write for example quota = 100G");
  for (size_t j = 0; j < i && !tiers[i].path.empty(); ++j)
    if (tiers[j].path == tiers[i].path)
      return fail("has the path of [tier." + tiers[j].name + "]; each has a directory of its own");
}

// What is only seen at the file's end. Of what has been refused, nothing is said that follows from that.
void check_whole(Reading* in) {
  for (size_t i = 0; i < in->config.tiers.size(); ++i) check_tier(in, i);
  check_charges(in);
  if (in->has_skipped) return;  // it may be the tier that is named
  for (const PolicySection& policy : in->config.policies)
    if (const Status s = check_policy(in->config, policy); !s.ok())
      in->fail(policy.tiers_line, (policy.tiers_line > 0 ? "" : policy.title() + ": ") + s.error().text);
}

Result<Config> read_config(const std::string& source, uint64_t least_quota, ConfigTrace* trace) {
  const size_t words_at = std::min(source.find('\n'), source.size());
  const std::string file = source.substr(0, words_at);
  const Result<std::vector<Word>> words = parse_words(source.substr(std::min(words_at + 1, source.size())));
  if (!words.ok()) return words.error();
  std::unique_ptr<FILE, int (*)(FILE*)> stream(std::fopen(file.c_str(), "re"), &std::fclose);
  if (!stream) return errno_error("read " + file);
  struct stat st;
  if (::fstat(fileno(stream.get()), &st) != 0) return errno_error("read " + file);
  if (S_ISDIR(st.st_mode)) return errno_error("read " + file, EISDIR);
  if (S_ISREG(st.st_mode) && (st.st_mode & (S_IWGRP | S_IWOTH)))
    return Error{EPERM, file + ": group or others can write it; run chmod go-w " + file};
  if (S_ISREG(st.st_mode) && st.st_uid != 0 && st.st_uid != ::geteuid())
    return Error{EPERM, file + ": it is user " + std::to_string(st.st_uid) + "'s; run chown root " + file};
  Reading in;
  in.file = file;
  in.stream = stream.get();
  in.least_quota = least_quota;
  in.trace = trace;
  for (const Word& word : *words) in.given.insert(name_of(word.section, word.key));
  const int bad_line = ini_parse_stream(&read_line, &in, &on_key, &in);
  if (std::ferror(stream.get())) return errno_error("read " + file, EIO);
  if (bad_line < 0) return Error{ENOMEM, "read " + file + ": inih ran out of memory"};
  if (bad_line > 0 && trace->errors.empty()) in.fail(bad_line, kNoLine);
  in.line = 0;
  if (trace->errors.size() < kMostErrors) {
    set_words(&in, *words);
    check_whole(&in);
  }
  if (!trace->errors.empty()) return trace->errors.front().error;
  return std::move(in.config);
}

}  // namespace

Result<Config> load_config(const std::string& source) {
  ConfigTrace trace;
  return load_config(source, &trace);
}

Result<Config> load_config(const std::string& source, ConfigTrace* trace) {
  Result<Config> config = read_config(source, kSpaceBlock, trace);
  if (!config.ok() && trace->errors.empty()) trace->errors.push_back({0, "", config.error()});
  return config;
}

std::string with_words(const std::string& file, const std::vector<std::string>& words) {
  std::string source = file;
  for (const std::string& word : words) source += "\n" + word;
  return source;
}

Result<Config> load_agent_conf(const std::string& file) {
  ConfigTrace trace;
  return read_config(file, 0, &trace);
}

Config load_config_or_defaults(const std::string& source) {
  Result<Config> config = load_config(source);
  return config.ok() ? config.take() : Config();
}

const TierConfig* same_directory(const std::vector<TierConfig>& tiers, const TierConfig& tier) {
  struct stat own, other;
  if (::stat(tier.path.c_str(), &own) != 0) return nullptr;
  for (const TierConfig& t : tiers)
    if (::stat(t.path.c_str(), &other) == 0 && own.st_dev == other.st_dev && own.st_ino == other.st_ino)
      return &t;
  return nullptr;
}

Result<TierConfig> parse_tier_option(const std::string& text) {
  const size_t first = text.find(':');
  const size_t last = text.rfind(':');
  if (first == std::string::npos || first == last)
    return bad_input("tier '" + text + "' is not NAME:PATH:SIZE, for example ssd:/scratch:100G");
  TierConfig tier;
  tier.name = text.substr(0, first);
  if (!good_name(tier.name))
    return bad_input("tier '" + text + "': the name may hold letters, digits, - and _, at most 31; " +
                     "name it for example ssd");
  if (last == first + 1)
    return bad_input("tier '" + text + "' has no path; write for example ssd:/scratch:100G");
  MONARCH_TRY(assign(absolute_path(text.substr(first + 1, last - first - 1)), &tier.path));
  const Status quota = assign(parse_quota(text.substr(last + 1)), &tier.quota);
  if (!quota.ok()) return bad_input("tier '" + text + "': " + quota.error().text);
  struct statfs fs;
  if (::statfs(tier.path.c_str(), &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC))
    tier.medium = Medium::kRam;
  return tier;
}

Status add_tier(Config* config, TierConfig tier) {
  if (!good_name(tier.name))
    return bad_input("tier name '" + tier.name +
                     "': letters, digits, - and _, at most 31; write for example [tier.ssd]");
  for (const TierConfig& t : config->tiers)
    if (t.name == tier.name)
      return bad_input("tier '" + tier.name + "' is given twice; give each a name of its own");
  if (config->tiers.size() == kMaxTiers)
    return bad_input("more than " + std::to_string(kMaxTiers) + " tiers; remove one");
  config->tiers.push_back(std::move(tier));
  return {};
}

Result<std::vector<std::string>> check_paths(const Config& config, const std::vector<std::string>& datasets) {
  std::vector<std::string> roots, real_roots;
  for (const std::string& given : datasets) {
    Result<std::string> path = absolute_path(given);
    if (!path.ok()) return bad_input("dataset: " + path.error().text + "; name its directory");
    struct stat st;
    if (::stat(path->c_str(), &st) != 0) return errno_error("dataset " + *path);
    if (!S_ISDIR(st.st_mode))
      return Error{ENOTDIR, "dataset " + *path + ": not a directory; name the directory it is in"};
    if (::access(path->c_str(), R_OK | X_OK) != 0)
      return errno_error("dataset " + *path + ": you cannot list it");
    Result<std::string> real = real_path(*path);
    if (!real.ok()) return real.error();
    if (*real == "/")
      return bad_input("dataset " + *path +
                       ": the whole root directory cannot be a dataset; name one below it");
    roots.push_back(path.take());
    real_roots.push_back(real.take());
  }
  if (roots.size() > kMaxRoots)
    return bad_input("more than " + std::to_string(kMaxRoots) +
                     " datasets; name a directory that holds several");
  for (const TierConfig& tier : config.tiers) {
    struct stat st;
    const std::string what = "tier " + tier.name + " (" + tier.path + ")";
    if (::stat(tier.path.c_str(), &st) != 0) return errno_error(what);
    if (!S_ISDIR(st.st_mode)) return Error{ENOTDIR, what + ": not a directory; name one"};
    Result<std::string> real = real_path(tier.path);
    if (!real.ok()) return real.error();
    for (size_t i = 0; i < roots.size(); ++i) {
      if (is_below(*real, real_roots[i]))
        return bad_input(what + " lies inside the dataset " + roots[i] + "; choose a directory outside it");
      if (is_below(real_roots[i], *real))
        return bad_input("dataset " + roots[i] + " lies inside the " + what +
                         "; it is there already, so name another dataset or tier");
    }
  }
  return roots;
}

Status check_writable(const Config& config) {
  for (const TierConfig& tier : config.tiers)
    if (::access(tier.path.c_str(), W_OK | X_OK) != 0)
      return errno_error("tier " + tier.name + " (" + tier.path + "): you cannot write to it");
  for (const TierConfig& tier : config.tiers) {
    struct statfs fs;
    if (tier.kind == TierConfig::Kind::kTmpfs && ::statfs(tier.path.c_str(), &fs) == 0 &&
        fs.f_type != TMPFS_MAGIC)
      return bad_input("tier " + tier.name + ": driver = tmpfs, but " + tier.path +
                       " is on no tmpfs, and only root can mount one; name a directory such as /dev/shm");
  }
  return {};
}

}  // namespace monarch
