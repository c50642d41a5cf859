// SPDX-License-Identifier: Apache-2.0
//
// io_reader - reads a dataset as training programs do, and times the epochs.
//
//   io_reader DIR [OPTION...]
//     --access WAY               how a file is read: read, readv, pread, mmap, stdio, sendfile (default read)
//     --request KIB              bytes per call, in KiB (default 256)
//     --held                     files stay open from epoch to epoch
//     --threads N                reader threads in each process (default 1)
//     --processes N              processes that share the files of an epoch (default 1)
//     --epochs N                 (default 3)
//     --part I/N                 the I-th of N parts of each epoch's order (default 1/1)
//     --compute MBPS             so many MB are computed per second, one file after the other (default: at
//     once)
//     --seed N                   of the order of files, which differs from epoch to epoch (default 1)
//     --checksum                 hash all bytes; the same files read alike give the same sum
//     --check                    after the last epoch, one more in which all bytes are hashed
//     --wakes N                  another thread reads each file: N times one thread wakes another on the way
//                                there and back (2 or more)
//     --pause                    before each epoch wait for a line on standard input
//
// Each epoch opens every regular file below DIR, or its part of them, once: open, fstat, all bytes, close.
// The files are listed beforehand, and processes and threads are started, so that an epoch's time runs from
// its first open to its last close and the end of the computation.  mmap touches each page once, or every
// byte with --checksum.
//
// Prints one JSON line per epoch: epoch, seconds, cpu (processor seconds of all readers), files, bytes,
// failures, and with --checksum checksum.
// Exits with 1 if a file could not be read whole, 2 on wrong usage.
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

enum class Access { kRead, kReadv, kPread, kMmap, kStdio, kSendfile };
constexpr std::string_view kAccesses[] = {"read", "readv", "pread", "mmap", "stdio", "sendfile"};

struct Options {
  std::string dir;
  Access access = Access::kRead;
  size_t request = 256 << 10;
  unsigned threads = 1;
  unsigned processes = 1;
  unsigned epochs = 3;
  unsigned part = 1, parts = 1;
  uint64_t compute = 0;
  uint64_t seed = 1;
  unsigned wakes = 0;
  bool checksum = false;
  bool check = false;
  bool pause = false;
  bool held = false;
};

// What all processes share.  The coordinator writes all of it while every reader waits at `start`.
struct Shared {
  pthread_barrier_t start, end;
  std::atomic<size_t> next;  // index into order of the next file to read
  std::atomic<uint64_t> files, bytes, checksum, failures, cpu_ns;
  std::atomic<int64_t> computed_ns;  // when what was read will have been computed
};

Options options;
unsigned all_epochs() { return options.epochs + (options.check ? 1 : 0); }
std::vector<std::string> files;
Shared* shared;
uint32_t* order;  // numbers of files, in the epoch's order; shared too

// Of the order, where a part begins.
size_t begin_of(unsigned part) { return files.size() * (part - 1) / options.parts; }

[[noreturn]] void die(const std::string& what) {
  fprintf(stderr, "io_reader: %s\n", what.c_str());
  exit(2);
}

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void compute(uint64_t bytes) {
  if (options.compute == 0) return;
  const auto takes = static_cast<int64_t>(bytes * 1000 / options.compute);
  int64_t begin = shared->computed_ns;
  while (!shared->computed_ns.compare_exchange_weak(begin, std::max(begin, now_ns()) + takes)) {
  }
}

// ---------------------------------------------------------------- reading one file

uint64_t mix(uint64_t v) {
  v = (v ^ (v >> 32)) * 0x9e3779b97f4a7c15u;
  return v ^ (v >> 29);
}

uint64_t hash(const char* data, size_t size, uint64_t seed) {
  uint64_t h = mix(seed + size);
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    memcpy(&word, data, 8);
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
  }
  uint64_t rest = 0;
  memcpy(&rest, data, size);
  return mix(h ^ rest);
}

struct Digest {
  uint64_t seed = 0;  // stands for the file
  uint64_t sum = 0;
  bool wanted = false;

  void add(const char* data, size_t size, uint64_t offset) {
    if (wanted) sum += hash(data, size, seed + mix(offset + 1));
  }
};

struct File {
  int fd = -1;
  FILE* stream = nullptr;  // of kStdio
};
std::vector<File> held;  // with --held, by number

// As read(2), by the way asked for.
ssize_t read_some(const File& file, char* buffer, size_t size, uint64_t offset, bool shown) {
  switch (options.access) {
    case Access::kRead:
      return read(file.fd, buffer, size);
    case Access::kReadv: {
      const iovec parts[] = {{buffer, size / 2}, {buffer + size / 2, size - size / 2}};
      return readv(file.fd, parts, 2);
    }
    case Access::kStdio: {
      const size_t n = fread(buffer, 1, size, file.stream);
      return n == 0 && ferror(file.stream) ? -1 : static_cast<ssize_t>(n);
    }
    case Access::kSendfile:
      static const int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);
      if (!shown) return sendfile(sink, file.fd, nullptr, size);
      [[fallthrough]];
    default:
      return pread(file.fd, buffer, size, static_cast<off_t>(offset));
  }
}

// Fill `buffer` from `offset` on.  Returns bytes read, less than `size` only at the end of the file, or -1.
ssize_t fill(const File& file, char* buffer, size_t size, uint64_t offset, bool shown) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = read_some(file, buffer + done, size - done, offset + done, shown);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(done);
}

// Both return the bytes read: `size`, or less with errno set where the file could not be read whole.
uint64_t read_by_calls(const File& file, uint64_t size, char* buffer, Digest* digest) {
  uint64_t offset = 0;
  while (offset < size) {
    const size_t want = std::min<uint64_t>(options.request, size - offset);
    errno = ENODATA;
    const ssize_t n = fill(file, buffer, want, offset, digest->wanted);
    if (n < 0) break;
    digest->add(buffer, static_cast<size_t>(n), offset);
    offset += static_cast<uint64_t>(n);
    if (static_cast<size_t>(n) < want) break;
  }
  return offset;
}

uint64_t read_by_mmap(int fd, uint64_t size, Digest* digest) {
  if (size == 0) return 0;
  void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (map == MAP_FAILED) return 0;
  const char* data = static_cast<const char*>(map);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t offset = 0; offset < size; offset += page) {
    static_cast<void>(*static_cast<const volatile char*>(data + offset));
  }
  digest->add(data, size, 0);
  munmap(map, size);
  return size;
}

// Only an epoch's first failures are told.
void count_failure(const char* what, const std::string& path) {
  const int error = errno;
  if (shared->failures++ < 5) fprintf(stderr, "io_reader: %s %s: %s\n", what, path.c_str(), strerror(error));
}

bool open_file(const std::string& path, File* file) {
  if (options.access == Access::kStdio) {
    file->stream = fopen(path.c_str(), "re");
    file->fd = file->stream ? fileno(file->stream) : -1;
  } else {
    file->fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }
  return file->fd >= 0;
}

void read_file(size_t number, bool checksum, char* buffer) {
  const std::string& path = files[number];
  File own;
  File& file = options.held ? held[number] : own;
  const bool first = file.fd < 0;
  struct stat st {};
  if ((first && !open_file(path, &file)) || fstat(file.fd, &st) < 0)
    return count_failure("cannot open", path);
  if (!first && file.stream) rewind(file.stream);
  if (!first && !file.stream) lseek(file.fd, 0, SEEK_SET);
  const uint64_t size = static_cast<uint64_t>(st.st_size);
  Digest digest;
  digest.wanted = checksum;
  if (checksum) digest.seed = hash(path.data() + options.dir.size(), path.size() - options.dir.size(), 0);
  const uint64_t done = options.access == Access::kMmap ? read_by_mmap(file.fd, size, &digest)
                                                        : read_by_calls(file, size, buffer, &digest);
  if (done < size) count_failure("cannot read the whole of", path);
  if (!options.held && file.stream) fclose(file.stream);
  if (!options.held && !file.stream) close(file.fd);
  compute(done);
  shared->files++;
  shared->bytes += done;
  shared->checksum += digest.sum;
}

// ---------------------------------------------------------------- epochs

uint64_t thread_cpu_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

bool hashed(unsigned epoch) { return options.checksum || epoch > options.epochs; }

// Threads in a row that wake each other; the last one reads.
class Relay {
 public:
  explicit Relay(unsigned wakes) : turns_(wakes) {
    for (sem_t& turn : turns_) sem_init(&turn, 0, 0);
    for (size_t i = 1; i < turns_.size(); i++) threads_.emplace_back([this, i] { pass(i); });
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  ~Relay() {
    ends_ = true;
    if (turns_.size() > 1) sem_post(&turns_[1]);
    for (std::thread& thread : threads_) thread.join();
  }
  void read(size_t number, bool checksum, char* buffer) {
    if (turns_.size() < 2) return read_file(number, checksum, buffer);
    number_ = number;
    checksum_ = checksum;
    buffer_ = buffer;
    sem_post(&turns_[1]);
    wait(&turns_[0]);
  }

 private:
  static void wait(sem_t* turn) {
    while (sem_wait(turn) != 0) {
    }
  }
  void pass(size_t i) {
    const bool last = i + 1 == turns_.size();
    for (bool ends = false; !ends;) {
      wait(&turns_[i]);
      ends = ends_;
      if (last && !ends) read_file(number_, checksum_, buffer_);
      sem_post(&turns_[last ? 0 : i + 1]);
    }
  }

  std::vector<sem_t> turns_;  // the reader's first
  std::vector<std::thread> threads_;
  size_t number_ = 0;
  bool checksum_ = false;
  char* buffer_ = nullptr;
  std::atomic<bool> ends_{false};
};

void read_epochs() {
  std::vector<char> buffer(options.request);
  Relay relay(options.wakes);
  for (unsigned epoch = 1; epoch <= all_epochs(); epoch++) {
    const bool checksum = hashed(epoch);
    pthread_barrier_wait(&shared->start);
    const uint64_t cpu_before = thread_cpu_ns();
    for (size_t i; (i = shared->next++) < begin_of(options.part + 1);)
      relay.read(order[i], checksum, buffer.data());
    shared->cpu_ns += thread_cpu_ns() - cpu_before;
    pthread_barrier_wait(&shared->end);
  }
}

// The same order with every C++ library, unlike std::shuffle.
void shuffle(uint64_t seed) {
  std::iota(order, order + files.size(), 0u);
  std::mt19937_64 random(seed);
  for (size_t i = files.size(); i > 1; i--) std::swap(order[i - 1], order[random() % i]);
}

void print_epoch(unsigned epoch, double seconds) {
  printf("{\"epoch\": %u, \"seconds\": %.6f, \"cpu\": %.6f, \"files\": %" PRIu64 ", \"bytes\": %" PRIu64
         ", \"failures\": %" PRIu64,
         epoch, seconds, static_cast<double>(shared->cpu_ns) * 1e-9, shared->files.load(),
         shared->bytes.load(), shared->failures.load());
  if (hashed(epoch)) printf(", \"checksum\": \"%016" PRIx64 "\"", shared->checksum.load());
  printf("}\n");
  fflush(stdout);
}

bool wait_for_line() {
  int c;
  while ((c = getchar()) != '\n' && c != EOF) {
  }
  return c == '\n';
}

uint64_t coordinate_epochs() {
  uint64_t failures = 0;
  for (unsigned epoch = 1; epoch <= all_epochs(); epoch++) {
    if (options.pause && !wait_for_line()) _exit(1);
    shuffle(options.seed * 1000003 + epoch);
    shared->next = begin_of(options.part);
    shared->files = shared->bytes = shared->checksum = shared->failures = shared->cpu_ns = 0;
    const auto begin = std::chrono::steady_clock::now();
    pthread_barrier_wait(&shared->start);
    pthread_barrier_wait(&shared->end);
    std::this_thread::sleep_for(std::chrono::nanoseconds(shared->computed_ns - now_ns()));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    print_epoch(epoch, seconds.count());
    failures += shared->failures;
  }
  return failures;
}

// ---------------------------------------------------------------- start

unsigned long number(const char* text) {
  char* end = nullptr;
  errno = 0;
  const unsigned long value = strtoul(text, &end, 10);
  if (end == text || *end || errno || value == 0 || value > 1ul << 30) {
    die(std::string("not a positive number: ") + text);
  }
  return value;
}

Access access_named(std::string_view name) {
  const auto* found = std::find(std::begin(kAccesses), std::end(kAccesses), name);
  if (found == std::end(kAccesses)) die("--access: see the head of bench/io_reader.cc");
  return static_cast<Access>(found - std::begin(kAccesses));
}

void parse(int argc, char** argv) {
  static const option known[] = {
      {"access", 1, nullptr, 'a'},    {"request", 1, nullptr, 'r'}, {"threads", 1, nullptr, 't'},
      {"processes", 1, nullptr, 'p'}, {"epochs", 1, nullptr, 'e'},  {"seed", 1, nullptr, 's'},
      {"checksum", 0, nullptr, 'c'},  {"check", 0, nullptr, 'k'},   {"pause", 0, nullptr, 'w'},
      {"held", 0, nullptr, 'h'},      {"wakes", 1, nullptr, 'v'},   {"part", 1, nullptr, 'n'},
      {"compute", 1, nullptr, 'm'},   {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
    switch (c) {
      case 'a':
        options.access = access_named(optarg);
        break;
      case 'r':
        options.request = number(optarg) << 10;
        break;
      case 't':
        options.threads = static_cast<unsigned>(number(optarg));
        break;
      case 'p':
        options.processes = static_cast<unsigned>(number(optarg));
        break;
      case 'e':
        options.epochs = static_cast<unsigned>(number(optarg));
        break;
      case 'm':
        options.compute = number(optarg);
        break;
      case 'v':
        options.wakes = static_cast<unsigned>(number(optarg));
        break;
      case 's':
        options.seed = number(optarg);
        break;
      case 'n':
        if (sscanf(optarg, "%u/%u", &options.part, &options.parts) != 2 || options.part - 1 >= options.parts)
          die(std::string("--part: not I/N with I from 1 to N: ") + optarg);
        break;
      case 'c':
        options.checksum = true;
        break;
      case 'k':
        options.check = true;
        break;
      case 'w':
        options.pause = true;
        break;
      case 'h':
        options.held = true;
        break;
      default:
        die("see the head of bench/io_reader.cc for the options");
    }
  }
  if (argc - optind != 1) die("name one directory");
  options.dir = argv[optind];
}

// Types come from readdir: no file is stat-ed.
void list_files() {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::recursive_directory_iterator it(options.dir, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_regular_file(error)) files.push_back(it->path().string());
  }
  if (error) die("cannot list " + options.dir + ": " + error.message());
  if (files.empty()) die("no files below " + options.dir);
  held.resize(files.size());
  std::sort(files.begin(), files.end());
}

void create_shared() {
  const size_t size = sizeof(Shared) + files.size() * sizeof(uint32_t);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die(std::string("mmap: ") + strerror(errno));
  shared = new (memory) Shared{};
  order = reinterpret_cast<uint32_t*>(shared + 1);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  const unsigned parties = options.threads * options.processes + 1;
  pthread_barrier_init(&shared->start, &attributes, parties);
  pthread_barrier_init(&shared->end, &attributes, parties);
}

std::vector<std::thread> start_readers() {
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < options.threads; i++) readers.emplace_back(read_epochs);
  return readers;
}

void fork_processes() {
  // A lost process would leave the others at the barrier for ever.
  signal(SIGCHLD, [](int) {
    int status = 0;
    while (waitpid(-1, &status, WNOHANG) > 0) {
      if (status != 0) _exit(1);
    }
  });
  const pid_t parent = getpid();
  for (unsigned i = 1; i < options.processes; i++) {
    const pid_t pid = fork();
    if (pid < 0) die(std::string("fork: ") + strerror(errno));
    if (pid > 0) continue;
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    for (auto& reader : start_readers()) reader.join();
    _exit(0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  parse(argc, argv);
  list_files();
  create_shared();
  fork_processes();
  auto readers = start_readers();
  const uint64_t failures = coordinate_epochs();
  for (auto& reader : readers) reader.join();
  return failures ? 1 : 0;
}
