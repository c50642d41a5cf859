// SPDX-License-Identifier: Apache-2.0
// A directory for one test, and what tests do with files and privileges there.
#pragma once

#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace monarch {

constexpr uint64_t kMiB = 1 << 20;

// A new directory below TMPDIR (or /tmp), removed with all that is in it. Its path has no symbolic link.
class Scratch {
 public:
  explicit Scratch(const std::filesystem::path& base = std::filesystem::temp_directory_path()) {
    std::string name = std::filesystem::canonical(base) / "monarch-test.XXXXXX";
    if (!::mkdtemp(name.data())) ADD_FAILURE() << "mkdtemp " << name << ": " << strerror(errno);
    path_ = name;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code failed;  // what is still mounted below, for one
    std::filesystem::remove_all(path_, failed);
    if (failed) ADD_FAILURE() << "left behind: " << path_ << ": " << failed.message();
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // Makes a directory of this user's alone (and those above it) or a file with this content; returns the
  // path.
  std::string dir(const std::string& name) const {
    std::filesystem::create_directories(*this / name);
    std::filesystem::permissions(*this / name, std::filesystem::perms::owner_all);
    return *this / name;
  }
  std::string file(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(*this / name).parent_path());
    std::ofstream out(*this / name, std::ios::binary | std::ios::trunc);
    out << content;
    if (!out.flush()) ADD_FAILURE() << "write " << *this / name;
    return *this / name;
  }

 private:
  std::string path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) ADD_FAILURE() << "read " << path << ": " << strerror(errno);
  std::string all, block(1 << 16, '\0');  // by blocks: large files are read so without the optimizer
  do {
    in.read(block.data(), static_cast<std::streamsize>(block.size()));
    all.append(block, 0, static_cast<size_t>(in.gcount()));
  } while (in);
  return all;
}

// `size` bytes that differ between seeds, and from place to place in the file.
inline std::string noise(size_t size, uint64_t seed) {
  std::string out(size + sizeof(uint64_t), '\0');
  uint64_t x = seed * 2 + 1;
  for (size_t at = 0; at < size; at += sizeof x) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = x ^ x >> 29;
    std::memcpy(&out[at], &word, sizeof word);
  }
  out.resize(size);
  return out;
}

// How many times slower than others this machine is said to be.
inline int slowness() {
  const char* slow = std::getenv("MONARCH_TEST_SLOW");
  return slow ? std::max(1, std::atoi(slow)) : 1;
}

// Polls until `condition` holds; false if it does not within `limit`, which is meant for a hang, not for
// speed. The one place where a unit test waits for time to pass.
inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::seconds limit = std::chrono::seconds(60)) {
  const auto end = std::chrono::steady_clock::now() + limit * slowness();
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Of the link, if it is one; a failure if there is none.
inline struct stat stat_of(const std::string& path) {
  struct stat st {};
  EXPECT_EQ(::lstat(path.c_str(), &st), 0) << path;
  return st;
}

inline mode_t mode_of(const std::string& path) { return stat_of(path).st_mode & 07777; }

inline std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Kills a child, and waits for its end.
inline void end_child(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

inline int open_descriptors() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// `count` threads that each run `body` with their number.
class Threads {
 public:
  Threads(uint32_t count, const std::function<void(uint32_t)>& body) {
    threads_.reserve(count);
    for (uint32_t i = 0; i < count; ++i) threads_.emplace_back(body, i);
  }
  ~Threads() { join(); }
  void join() {
    for (std::thread& t : threads_) t.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

// One that a process shares with those that it forks.
template <typename T>
class Shared {
 public:
  Shared()
      : room_(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        value_(room_ == MAP_FAILED ? nullptr : new (room_) T()) {
    if (!value_) ADD_FAILURE() << "mmap: " << strerror(errno);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() {
    if (value_) ::munmap(room_, sizeof(T));
  }
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  void* const room_;
  T* const value_;
};

// Runs `body` in a child process and returns its exit status; 128 + N if signal N ended it.
inline int in_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// As in_child, as a user without privileges (for root: uid and gid 65534).
inline int as_nobody(const std::function<int()>& body) {
  return in_child([&] {
    if (::geteuid() == 0 && (::setgroups(0, nullptr) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0))
      return 99;
    return body();
  });
}

// Runs `body` in a thread that sees a tmpfs of `bytes` at `mount_point`, which nobody else sees and which
// ends with the thread. False if the caller may not mount.
inline bool with_tmpfs(const std::string& mount_point, size_t bytes, const std::function<void()>& body) {
  bool mounted = false;
  std::thread([&] {
    const std::string size = "mode=0700,size=" + std::to_string(bytes);
    mounted = ::unshare(CLONE_NEWNS) == 0 &&
              ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              ::mount("tmpfs", mount_point.c_str(), "tmpfs", 0, size.c_str()) == 0;
    if (mounted) body();
  }).join();
  return mounted;
}

}  // namespace monarch
