// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "tests/fuzz/targets.h"

namespace monarch::fuzz {

Directory::Directory() {
  const char* base = ::getenv("TMPDIR");
  std::string name = std::string(base ? base : "/tmp") + "/monarch-fuzz.XXXXXX";
  FUZZ_CHECK(::mkdtemp(name.data()));
  path_ = name;
}

Directory::~Directory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void Directory::write(const std::string& name, const void* data, size_t size) const {
  const Fd fd(::open((path_ + "/" + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  FUZZ_CHECK(fd && ::write(fd.get(), data, size) == static_cast<ssize_t>(size));
}

}  // namespace monarch::fuzz
