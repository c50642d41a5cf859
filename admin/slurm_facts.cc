// SPDX-License-Identifier: Apache-2.0
#include "admin/slurm_facts.h"

#include <elf.h>
#include <glob.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "admin/bounded.h"
#include "admin/jobs.h"
#include "runtime/node/identity.h"
#include "runtime/node/job_facts.h"

namespace monarch::admin {
namespace {

constexpr char kPlugin[] = "spank_monarch.so";
constexpr int kMostDepth = 8;  // of includes
constexpr int kPartsPatienceMs = 2000, kSacctPatienceMs = 10000;

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line.substr(0, line.find('#')));
  return {std::istream_iterator<std::string>(in), {}};
}

std::string beside(const std::string& file, const std::string& path) {
  return path[0] == '/' ? path : file.substr(0, file.rfind('/') + 1) + path;
}

// Into *found, the first line, and where there is another.
Status find_in(const std::string& file, int depth, std::optional<PluginLine>* found) {
  std::ifstream in(file);
  if (!in) return errno_error("read " + file);
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> words = words_of(line);
    if (words.size() < 2) continue;
    if (words[0] == "include" && depth < kMostDepth) {
      const std::string pattern = beside(file, words[1]);
      glob_t files{};
      const std::unique_ptr<glob_t, void (*)(glob_t*)> end(&files, &::globfree);
      (void)::glob(pattern.c_str(), 0, nullptr, &files);
      for (size_t i = 0; i < files.gl_pathc; ++i) MONARCH_TRY(find_in(files.gl_pathv[i], depth + 1, found));
      continue;
    }
    const std::string& plugin = words[1];
    if ((words[0] != "optional" && words[0] != "required") || plugin.substr(plugin.rfind('/') + 1) != kPlugin)
      continue;
    if (*found)
      (*found)->again = file;
    else
      *found = PluginLine{file, plugin, {words.begin() + 2, words.end()}, ""};
  }
  return {};
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// KEY=VALUE, with or without blanks around the "=" and quotes around the value; `at` goes on behind it.
// False: there is no more in the line.
bool take_pair(const std::string& line, size_t* at, std::string* key, std::string* value) {
  constexpr char kBlanks[] = " \t";
  const size_t is = line.find('=', *at);
  if (is == std::string::npos) return false;
  key->clear();
  if (const size_t last = is == 0 ? is : line.find_last_not_of(kBlanks, is - 1); last < is) {
    const size_t first = line.find_last_of(kBlanks, last) + 1;
    *key = lower_case(line.substr(first, last + 1 - first));
  }
  const size_t begin = std::min(line.find_first_not_of(kBlanks, is + 1), line.size());
  const bool is_quoted = line[begin] == '"';
  *at = std::min(is_quoted ? line.find('"', begin + 1) : line.find_first_of(kBlanks, begin), line.size());
  *value = line.substr(begin + is_quoted, *at - begin - is_quoted);
  return true;
}

// Those of `values`, by their names in lower case, that a file in slurm.conf's form sets, with what it
// includes. As Slurm reads it: the last one counts, a backslash joins lines, a name that does not begin with
// "/" is in the directory of the file that includes it, and %c in it is the cluster's name, which comes
// before.
void read_values(const std::string& file, int depth, std::map<std::string, std::string>* values) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    for (std::string more; !line.empty() && line.back() == '\\' && std::getline(in, more);)
      line.replace(line.size() - 1, 1, more);
    line.resize(std::min(line.size(), line.find('#')));
    const std::vector<std::string> words = words_of(line);
    if (words.size() > 1 && lower_case(words[0]) == "include") {
      std::string name = words[1];
      if (const size_t at = name.find("%c"); at != std::string::npos)
        name.replace(at, 2, (*values)["clustername"]);
      if (depth < kMostDepth) read_values(beside(file, name), depth + 1, values);
      continue;
    }
    std::string key, value;
    for (size_t at = 0; take_pair(line, &at, &key, &value);)
      if (const auto wanted = values->find(key); wanted != values->end()) wanted->second = value;
  }
}

// `bytes` of the file at `offset`, or nullptr.
const char* bytes_at(const std::string& file, uint64_t offset, uint64_t bytes) {
  return offset <= file.size() && bytes <= file.size() - offset ? file.data() + offset : nullptr;
}

template <typename T>
bool take(const std::string& file, uint64_t offset, T* to) {
  const char* from = bytes_at(file, offset, sizeof(T));
  if (from) std::memcpy(to, from, sizeof(T));
  return from != nullptr;
}

Result<std::string> ask(std::vector<std::string> words, const std::string& name, int patience_ms) {
  const size_t at = name.find('@');
  words.insert(words.end(), {"-j", name.substr(0, at)});
  if (at != std::string::npos) words.insert(words.end(), {"-M", name.substr(at + 1)});
  return ask_program(words, patience_ms);
}

// Of lines NAME|NUMBER those whose name is a part's of that job.
std::vector<JobPart> parts_in(const std::string& answer, const std::string& job) {
  std::vector<JobPart> parts;
  std::istringstream in(answer);
  for (std::string line; std::getline(in, line);) {
    const size_t end = std::min(line.find('|'), line.size());
    const std::string name = line.substr(0, end), number = line.substr(std::min(end + 1, line.size()));
    const bool is_part = name.find_first_of("_+") != std::string::npos && name.starts_with(job) &&
                         (name.size() == job.size() || name[job.size()] == '_' || name[job.size()] == '+');
    if (is_part && is_number(number)) parts.push_back({name, number});
  }
  return parts;
}

}  // namespace

std::map<std::string, std::string> parse_show_config(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const size_t is = line.find(" = ");
    if (is == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_first_of(" =")), value = line.substr(is + 3);
    values[key] = value.substr(0, value.find_last_not_of(" \t") + 1);
  }
  return values;
}

std::string PluginLine::word(const std::string& key) const {
  std::string last;
  for (const std::string& w : words)
    if (w.rfind(key + "=", 0) == 0) last = w.substr(key.size() + 1);
  return last;
}

std::vector<std::string> PluginLine::settings() const {
  std::vector<std::string> all;
  for (const std::string& w : words)
    if (w.find('.') < w.find('=')) all.push_back(w);
  return all;
}

std::vector<std::string> PluginLine::unknown() const {
  const std::vector<std::string> known = settings();
  std::vector<std::string> all;
  for (const std::string& w : words) {
    const std::string key = w.substr(0, w.find('='));
    const bool named = key == "config" || key == "state_dir" || key == "monarchd" || key == "log";
    if (!(named && key.size() < w.size()) && std::find(known.begin(), known.end(), w) == known.end())
      all.push_back(w);
  }
  return all;
}

std::string plugstack_of(const std::string& slurm_conf) {
  std::map<std::string, std::string> values = {{"clustername", ""}, {"plugstackconfig", ""}};
  read_values(slurm_conf, 0, &values);
  const std::string& named = values["plugstackconfig"];
  return named.rfind('/', 0) == 0 ? named : beside(slurm_conf, "plugstack.conf");
}

Result<std::optional<PluginLine>> find_plugin_line(const std::string& plugstack) {
  std::optional<PluginLine> found;
  MONARCH_TRY(find_in(plugstack, 0, &found));
  return found;
}

Result<uint32_t> number_in(const std::string& path, const std::string& symbol) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return errno_error("read " + path);
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  Elf64_Ehdr head;
  if (!take(file, 0, &head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
      head.e_ident[EI_CLASS] != ELFCLASS64)
    return bad_input(path + ": not a 64-bit ELF object");
  std::vector<Elf64_Shdr> sections;
  for (uint32_t i = 0; i < head.e_shnum; ++i) {
    Elf64_Shdr section;
    if (!take(file, head.e_shoff + uint64_t{i} * sizeof section, &section))
      return bad_input(path + ": cut short");
    sections.push_back(section);
  }
  for (const Elf64_Shdr& table : sections) {
    if (table.sh_type != SHT_DYNSYM || table.sh_link >= sections.size()) continue;
    const Elf64_Shdr& texts = sections[table.sh_link];
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym found;
      if (!take(file, table.sh_offset + at, &found)) return bad_input(path + ": cut short");
      const char* name = bytes_at(file, texts.sh_offset + found.st_name, symbol.size() + 1);
      if (!name || std::memcmp(name, symbol.c_str(), symbol.size() + 1) != 0 ||
          found.st_shndx >= sections.size())
        continue;
      const Elf64_Shdr& home = sections[found.st_shndx];
      uint32_t number = 0;
      if (home.sh_type == SHT_NOBITS ||
          !take(file, home.sh_offset + (found.st_value - home.sh_addr), &number))
        break;
      return number;
    }
  }
  return bad_input(path + ": exports no " + symbol);
}

std::optional<int64_t> oldest_slurmd() {
  timespec now, since_boot;
  ::clock_gettime(CLOCK_REALTIME, &now);
  ::clock_gettime(CLOCK_BOOTTIME, &since_boot);
  std::optional<int64_t> oldest;
  for (const std::string& pid : names_in("/proc")) {
    const std::string dir = "/proc/" + pid;
    struct stat st;
    std::string name;
    if (!is_number(pid) || ::stat(dir.c_str(), &st) != 0 || st.st_uid != 0) continue;
    if (!std::getline(std::ifstream(dir + "/comm"), name) || name != "slurmd") continue;
    const Result<ProcessId> one = identify(std::atoi(pid.c_str()));
    if (!one.ok()) continue;
    const auto age = since_boot.tv_sec - static_cast<int64_t>(one->start_time) / ::sysconf(_SC_CLK_TCK);
    oldest = std::min(oldest.value_or(now.tv_sec), now.tv_sec - age);
  }
  return oldest;
}

std::string release_of(uint32_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "%u.%02u", number >> 16 & 0xff, number >> 8 & 0xff);
  return text;
}

std::string release_of(const std::string& version) {
  const size_t dot = version.find('.');
  return dot == std::string::npos ? version : version.substr(0, version.find('.', dot + 1));
}

Result<std::string> ask_sacct(const std::string& name, const char* fields) {
  return ask({"sacct", "-nPX", "-o", fields}, name, kSacctPatienceMs);
}

std::vector<JobPart> parts_of(const std::string& name) {
  const std::string job = name.substr(0, name.find('@'));
  Result<std::string> answer = ask({"squeue", "-hr", "-t", "all", "-o", "%i|%A"}, name, kPartsPatienceMs);
  if (!answer.ok() || answer->empty())
    answer = ask({"sacct", "-nPX", "-o", "JobID,JobIDRaw"}, name, kPartsPatienceMs);
  return parts_in(answer.ok() ? *answer : "", job);
}

std::string names_of(const std::vector<JobPart>& parts) {
  constexpr size_t kMost = 16;
  std::string names;
  for (size_t i = 0; i < std::min(kMost, parts.size()); ++i) names += (i ? ", " : "") + parts[i].name;
  return names + (parts.size() > kMost ? " ..." : "");
}

std::string by_own_number(const std::string& name) {
  const size_t at = std::min(name.find('@'), name.size());
  const std::string own = name.substr(0, at);
  if (own.find_first_of("_+") == std::string::npos) return name;
  for (const JobPart& part : parts_of(name))
    if (part.name == own) return part.number + name.substr(at);
  return name;
}

}  // namespace monarch::admin
