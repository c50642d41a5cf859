// SPDX-License-Identifier: Apache-2.0
// streams FILE...: reads files by std::ifstream: by lines, by read(), and again after seekg().  Built with
// libstdc++ and with libc++.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

namespace {

constexpr uint32_t kFactor = 31;

uint32_t sum_of(const std::string& text) {
  uint32_t sum = 0;
  for (const char c : text) sum = sum * kFactor + static_cast<unsigned char>(c);
  return sum;
}

bool read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return false;
  uint32_t lines = 0;
  for (std::string line; std::getline(stream, line); ++lines) {
  }
  stream.clear();
  stream.seekg(0, std::ios::end);
  const auto size = static_cast<size_t>(stream.tellg());
  stream.seekg(0);
  std::string all(size, '\0');
  stream.read(all.data(), static_cast<std::streamsize>(size));
  std::ifstream again(path, std::ios::binary);
  const std::string other{std::istreambuf_iterator<char>(again), {}};
  std::cout << path << ' ' << size << ' ' << lines << ' ' << sum_of(all) << ' ' << (all == other) << '\n';
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (!read_file(argv[i])) return 2;
  }
  return 0;
}
