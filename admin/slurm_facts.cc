// SPDX-License-Identifier: Apache-2.0
#include "admin/slurm_facts.h"

#include <elf.h>
#include <glob.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

namespace monarch::admin {
namespace {

constexpr char kPlugin[] = "spank_monarch.so";
constexpr int kMostDepth = 8;  // of includes

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line.substr(0, line.find('#')));
  return {std::istream_iterator<std::string>(in), {}};
}

Result<std::optional<PluginLine>> find_in(const std::string& file, int depth) {
  std::ifstream in(file);
  if (!in) return errno_error("read " + file);
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> words = words_of(line);
    if (words.size() < 2) continue;
    if (words[0] == "include" && depth < kMostDepth) {
      const std::string pattern =
          words[1][0] == '/' ? words[1] : file.substr(0, file.rfind('/') + 1) + words[1];
      glob_t found{};
      const std::unique_ptr<glob_t, void (*)(glob_t*)> end(&found, &::globfree);
      (void)::glob(pattern.c_str(), 0, nullptr, &found);
      for (size_t i = 0; i < found.gl_pathc; ++i) {
        Result<std::optional<PluginLine>> below = find_in(found.gl_pathv[i], depth + 1);
        if (!below.ok() || *below) return below;
      }
      continue;
    }
    const std::string& plugin = words[1];
    if ((words[0] != "optional" && words[0] != "required") || plugin.substr(plugin.rfind('/') + 1) != kPlugin)
      continue;
    PluginLine found{file, plugin, {words.begin() + 2, words.end()}};
    return std::optional<PluginLine>(std::move(found));
  }
  return std::optional<PluginLine>();
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
  for (const std::string& w : words)
    if (w.rfind(key + "=", 0) == 0) return w.substr(key.size() + 1);
  return "";
}

std::vector<std::string> PluginLine::settings() const {
  std::vector<std::string> all;
  for (const std::string& w : words)
    if (w.find('.') < w.find('=')) all.push_back(w);
  return all;
}

std::string plugstack_of(const std::string& slurm_conf) {
  constexpr char kKey[] = "plugstackconfig";
  constexpr size_t kKeyBytes = sizeof kKey - 1;
  std::ifstream in(slurm_conf);
  for (std::string line; std::getline(in, line);) {
    // KEY=VALUE, several in a line, with or without blanks around the "=".
    std::string text;
    for (const std::string& word : words_of(line)) text += (text.empty() ? "" : " ") + word;
    for (size_t at = 0; at != std::string::npos; at = text.find(' ', at + 1)) {
      const char* key = text.c_str() + at + (at > 0);
      if (::strncasecmp(key, kKey, kKeyBytes) != 0) continue;
      const char* value = key + kKeyBytes;
      value += *value == ' ';
      if (*value++ != '=') continue;
      value += *value == ' ';
      if (*value == '/') return {value, std::strcspn(value, " ")};
    }
  }
  return slurm_conf.substr(0, slurm_conf.rfind('/') + 1) + "plugstack.conf";
}

Result<std::optional<PluginLine>> find_plugin_line(const std::string& plugstack) {
  return find_in(plugstack, 0);
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

std::string release_of(uint32_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "%u.%02u", number >> 16 & 0xff, number >> 8 & 0xff);
  return text;
}

std::string release_of(const std::string& version) {
  const size_t dot = version.find('.');
  return dot == std::string::npos ? version : version.substr(0, version.find('.', dot + 1));
}

}  // namespace monarch::admin
