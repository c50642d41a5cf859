// SPDX-License-Identifier: Apache-2.0
//
// stress - many processes and threads that read files in all ways, and check every byte.
//
//   stress make DIR FILES           make the files; what they hold follows from number and offset
//   stress run DIR FILES SECONDS SEED [PROCESSES [THREADS]]   read them (8 and 8)
//   stress check FD NUMBER SEED     read the open file FD, which is file NUMBER (for `run`, after exec)
//
// An error of EIO or ESTALE is counted: the PFS may give those. Any other, a wrong byte, a wrong size or a
// file that ends too early is printed, and the exit code is 1. `run` ends with one line of JSON.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr size_t kBuffer = 256 * kKiB;
constexpr unsigned kProcesses = 8, kThreads = 8;
constexpr int kPfsFailed = 3;  // exit code of `check`

// What all processes count.
struct Totals {
  std::atomic<uint64_t> files{0}, bytes{0}, eio{0}, estale{0}, faults{0}, wrong{0}, forks{0};
};
Totals* totals;

// ---- what the files hold

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

uint64_t word_of(uint64_t number, uint64_t index) { return mixed(mixed(number) ^ index); }

char byte_of(uint64_t number, uint64_t offset) {
  return static_cast<char>(word_of(number, offset / 8) >> (offset % 8 * 8));
}

// Empty ones, those around a page, small ones, and a few large ones.
uint64_t size_of(uint64_t number) {
  constexpr std::array<uint64_t, 8> kEdges = {0, 1, 4095, 4096, 4097, kMiB - 1, kMiB, kMiB + 1};
  constexpr uint64_t kLargeEvery = 40, kMiddleEvery = 8;
  const uint64_t random = mixed(number * 3 + 1);
  if (number == 0) return 40 * kMiB;
  if (number % kLargeEvery == 0) return 2 * kMiB + random % (8 * kMiB);
  if (number % kMiddleEvery == 0) return random % kMiB;
  if (number <= kEdges.size()) return kEdges[number - 1];
  return random % (64 * kKiB);
}

std::string path_of(const std::string& dir, uint64_t number) {
  constexpr uint64_t kDirectories = 7;
  return dir + "/d" + std::to_string(number % kDirectories) + "/f" + std::to_string(number);
}

void fill(uint64_t number, uint64_t offset, char* to, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) to[i] = byte_of(number, offset + i);
}

// Where the bytes differ from the file's; `bytes` if nowhere. `offset` may be any.
size_t first_wrong(uint64_t number, uint64_t offset, const char* got, size_t bytes) {
  size_t i = 0;
  for (; i < bytes && (offset + i) % 8 != 0; ++i)
    if (got[i] != byte_of(number, offset + i)) return i;
  for (; i + 8 <= bytes; i += 8) {
    const uint64_t want = word_of(number, (offset + i) / 8);
    if (std::memcmp(got + i, &want, sizeof want) != 0) break;
  }
  for (; i < bytes; ++i)
    if (got[i] != byte_of(number, offset + i)) return i;
  return bytes;
}

int make(const std::string& dir, uint64_t files) {
  std::vector<char> buffer(kBuffer);
  for (uint64_t n = 0; n < files; ++n) {
    const std::string path = path_of(dir, n);
    ::mkdir(path.substr(0, path.rfind('/')).c_str(), 0755);
    FILE* out = std::fopen(path.c_str(), "w");
    if (!out) return 1;
    for (uint64_t at = 0; at < size_of(n); at += kBuffer) {
      const size_t bytes = std::min<uint64_t>(kBuffer, size_of(n) - at);
      fill(n, at, buffer.data(), bytes);
      if (std::fwrite(buffer.data(), 1, bytes, out) != bytes) return 1;
    }
    if (std::fclose(out) != 0) return 1;
  }
  return 0;
}

// ---- one file

void wrong(uint64_t number, const char* what, const std::string& how) {
  ++totals->wrong;
  std::fprintf(stderr, "file %" PRIu64 " of %" PRIu64 " bytes: %s: %s\n", number, size_of(number), what,
               how.c_str());
}

// A call that failed with `error`: the PFS may have done it.
void failed(uint64_t number, const char* what, int error) {
  if (error == EIO) {
    ++totals->eio;
  } else if (error == ESTALE) {
    ++totals->estale;
  } else {
    wrong(number, what, std::strerror(error));
  }
}

// What a call returned for [offset, offset + wanted) of the file; false: no more can be expected of it.
bool check(uint64_t number, const char* what, uint64_t offset, const char* got, ssize_t bytes,
           size_t wanted) {
  if (bytes < 0) {
    failed(number, what, errno);
    return false;
  }
  const uint64_t left = size_of(number) - std::min(offset, size_of(number));
  if (static_cast<uint64_t>(bytes) > left || (bytes == 0 && wanted > 0 && left > 0)) {
    wrong(number, what, std::to_string(bytes) + " bytes at " + std::to_string(offset));
    return false;
  }
  const auto size = static_cast<size_t>(bytes);
  if (const size_t at = first_wrong(number, offset, got, size); at != size) {
    wrong(number, what, "a wrong byte at " + std::to_string(offset + at));
    return false;
  }
  totals->bytes += size;
  return bytes > 0;
}

// A thread's own.
struct Reader {
  explicit Reader(uint64_t seed) : random(seed), buffer(kBuffer) {}
  uint64_t pick(uint64_t n) { return n == 0 ? 0 : random() % n; }
  std::mt19937_64 random;
  std::vector<char> buffer;
};

using Way = void (*)(Reader*, int fd, uint64_t number);

void by_read(Reader* r, int fd, uint64_t number) {
  const size_t piece = 1 + r->pick(kBuffer);
  for (uint64_t at = 0;;) {
    const ssize_t got = ::read(fd, r->buffer.data(), piece);
    if (!check(number, "read", at, r->buffer.data(), got, piece)) return;
    at += static_cast<uint64_t>(got);
  }
}

void by_seek(Reader* r, int fd, uint64_t number) {
  const uint64_t at = r->pick(size_of(number) + 1);
  if (::lseek(fd, static_cast<off_t>(at), SEEK_SET) != static_cast<off_t>(at))
    wrong(number, "lseek", "failed");
  const ssize_t got = ::read(fd, r->buffer.data(), kBuffer);
  check(number, "lseek, read", at, r->buffer.data(), got, kBuffer);
}

void by_pread(Reader* r, int fd, uint64_t number) {
  for (uint64_t i = 1 + r->pick(8); i > 0; --i) {
    const uint64_t at = r->pick(size_of(number) + 1);
    const size_t bytes = 1 + r->pick(kBuffer);
    const ssize_t got = ::pread(fd, r->buffer.data(), bytes, static_cast<off_t>(at));
    check(number, "pread", at, r->buffer.data(), got, bytes);
  }
}

void by_preadv(Reader* r, int fd, uint64_t number) {
  const uint64_t at = r->pick(size_of(number) + 1);
  const size_t half = 1 + r->pick(kBuffer / 2);
  const iovec parts[2] = {{r->buffer.data(), half}, {r->buffer.data() + half, half}};
  const ssize_t got = ::preadv(fd, parts, 2, static_cast<off_t>(at));
  check(number, "preadv", at, r->buffer.data(), got, 2 * half);
}

// The pages are taken by process_vm_readv, which fails where a load would end the program.
void by_mmap(Reader* r, int fd, uint64_t number) {
  const uint64_t size = size_of(number);
  if (size == 0) return;
  void* map = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (map == MAP_FAILED) return failed(number, "mmap", errno);
  for (uint64_t i = 1 + r->pick(4); i > 0; --i) {
    const uint64_t at = r->pick(size);
    const size_t bytes = std::min<uint64_t>(1 + r->pick(kBuffer), size - at);
    const iovec to{r->buffer.data(), bytes}, from{static_cast<char*>(map) + at, bytes};
    const ssize_t got = ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0);
    if (got != static_cast<ssize_t>(bytes)) {
      ++totals->faults;  // pages that could not be read
    } else {
      check(number, "mmap", at, r->buffer.data(), got, bytes);
    }
  }
  ::munmap(map, size);
}

void by_dup(Reader* r, int fd, uint64_t number) {
  const int copy = r->pick(2) == 0 ? ::dup(fd) : ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return failed(number, "dup", errno);
  (r->pick(2) == 0 ? by_pread : by_read)(r, copy, number);
  ::close(copy);
}

void wait_for(pid_t child, uint64_t number, const char* what) {
  int status = 0;
  if (child < 0) return failed(number, what, errno);
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  ++totals->forks;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kPfsFailed) {
    ++totals->eio;
    return;
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    wrong(number, what, "wait status " + std::to_string(status));
}

// The child of a process with threads: no allocation, no stdio unless something is wrong.
void by_fork(Reader* r, int fd, uint64_t number) {
  const pid_t child = ::fork();
  if (child == 0) {
    by_pread(r, fd, number);
    ::_exit(0);  // what was wrong has been counted
  }
  wait_for(child, number, "fork");
}

void by_exec(Reader* r, int fd, uint64_t number) {
  char words[3][24];
  std::snprintf(words[0], sizeof words[0], "%d", fd);
  std::snprintf(words[1], sizeof words[1], "%" PRIu64, number);
  std::snprintf(words[2], sizeof words[2], "%" PRIu64, r->random());
  const pid_t child = ::fork();
  if (child == 0) {
    ::fcntl(fd, F_SETFD, 0);
    ::execl("/proc/self/exe", "stress", "check", words[0], words[1], words[2], nullptr);
    ::_exit(126);
  }
  wait_for(child, number, "exec");
}

Way way(Reader* r) {
  constexpr Way kWays[] = {by_read, by_seek, by_pread, by_pread, by_preadv, by_mmap, by_dup};
  constexpr uint64_t kForkEvery = 64;  // they cost more than the rest
  const uint64_t n = r->pick(kForkEvery);
  if (n < 2) return n == 0 ? by_fork : by_exec;
  return kWays[r->pick(std::size(kWays))];
}

void check_size(int fd, uint64_t number) {
  struct stat st;
  if (::fstat(fd, &st) != 0) return failed(number, "fstat", errno);
  if (static_cast<uint64_t>(st.st_size) != size_of(number))
    wrong(number, "fstat", std::to_string(st.st_size) + " bytes");
}

void by_stream(Reader* r, const std::string& path, uint64_t number) {
  FILE* in = std::fopen(path.c_str(), "r");
  if (!in) return failed(number, "fopen", errno);
  errno = 0;
  const size_t got = std::fread(r->buffer.data(), 1, kBuffer, in);
  if (got < std::min<uint64_t>(kBuffer, size_of(number)) && std::ferror(in)) {
    failed(number, "fread", errno);
  } else {
    check(number, "fread", 0, r->buffer.data(), static_cast<ssize_t>(got), kBuffer);
  }
  std::fclose(in);
}

void read_one(Reader* r, const std::string& dir, uint64_t number) {
  constexpr uint64_t kStreamEvery = 10;
  const std::string path = path_of(dir, number);
  ++totals->files;
  if (r->pick(kStreamEvery) == 0) return by_stream(r, path, number);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed(number, "open", errno);
  check_size(fd, number);
  for (uint64_t i = r->pick(3); i > 0; --i) {
    way(r)(r, fd, number);
    ::lseek(fd, 0, SEEK_SET);
  }
  if (size_of(number) <= kMiB || r->pick(4) == 0) by_read(r, fd, number);
  ::close(fd);
}

// ---- all

struct Load {
  std::string dir;
  uint64_t files = 0, seed = 0;
  std::chrono::steady_clock::time_point end;
  unsigned threads = kThreads;
};

void read_many(const Load& load, uint64_t seed) {
  Reader reader(seed);
  while (std::chrono::steady_clock::now() < load.end && totals->wrong == 0)
    read_one(&reader, load.dir, reader.pick(load.files));
}

int be_process(const Load& load, unsigned process) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < load.threads; ++i)
    threads.emplace_back([&, i] { read_many(load, mixed(load.seed ^ mixed(process * 1000 + i))); });
  for (std::thread& t : threads) t.join();
  return 0;
}

int run(const Load& load, unsigned processes) {
  std::vector<pid_t> children;
  for (unsigned p = 0; p < processes; ++p) {
    const pid_t child = ::fork();
    if (child == 0) std::exit(be_process(load, p));
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 1;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0) std::fprintf(stderr, "a process ended with wait status %d\n", status);
    good = good && status == 0;
  }
  const Totals& t = *totals;
  std::printf("{\"files\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"eio\": %" PRIu64 ", \"estale\": %" PRIu64
              ", \"page_faults\": %" PRIu64 ", \"wrong\": %" PRIu64 ", \"forks\": %" PRIu64 "}\n",
              t.files.load(), t.bytes.load(), t.eio.load(), t.estale.load(), t.faults.load(), t.wrong.load(),
              t.forks.load());
  return good && t.wrong == 0 ? 0 : 1;
}

// After exec, where the parent's totals are out of reach.
int check_descriptor(int fd, uint64_t number, uint64_t seed) {
  Reader reader(seed);
  check_size(fd, number);
  by_pread(&reader, fd, number);
  if (totals->wrong != 0) return 1;
  return totals->eio + totals->estale == 0 ? 0 : kPfsFailed;
}

bool make_totals() {
  void* memory = ::mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  totals = new (memory) Totals;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto number = [&](size_t i) { return std::strtoull(words[i].c_str(), nullptr, 10); };
  if (!make_totals()) return 2;
  if (words.size() == 3 && words[0] == "make") return make(words[1], number(2));
  if (words.size() == 4 && words[0] == "check")
    return check_descriptor(static_cast<int>(number(1)), number(2), number(3));
  if (words.size() < 5 || words[0] != "run") {
    std::fprintf(stderr, "see the head of tests/stress.cc\n");
    return 2;
  }
  Load load{words[1], number(2), number(4),
            std::chrono::steady_clock::now() + std::chrono::seconds(number(3)),
            words.size() > 6 ? static_cast<unsigned>(number(6)) : kThreads};
  return run(load, words.size() > 5 ? static_cast<unsigned>(number(5)) : kProcesses);
}
