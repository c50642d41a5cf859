// SPDX-License-Identifier: Apache-2.0
//
// send_loop - moves a file from one node to another as plainly as sockets allow: what a link carries, and
// what that costs, to compare with.
//
//   send_loop --serve PORT FILE              sends FILE to all who connect, by sendfile(2)
//   send_loop --get HOST PORT BYTES [COPY]   gets BYTES of it in pieces of 1 MiB, with their XXH3 computed,
//                                            and writes them to COPY
//
// --serve prints a line once it listens, and serves until it is ended.  --get begins at once; with
// --until-line it goes on until a line comes on standard input.  Prints a JSON line: bytes, seconds, cpu
// (processor seconds of this process).
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace {

constexpr size_t kPiece = 1 << 20;

[[noreturn]] void die(const char* what) {
  fprintf(stderr, "send_loop: %s: %s\n", what, strerror(errno));
  exit(1);
}

// Again and again, from the begin to the end, until the other side hangs up.
void send_all(int socket, int file, off_t bytes) {
  for (;;) {
    for (off_t at = 0; at < bytes;) {
      if (::sendfile(socket, file, &at, static_cast<size_t>(bytes - at)) > 0) continue;
      ::close(socket);
      return;
    }
  }
}

[[noreturn]] void serve(uint16_t port, const char* path) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  struct stat st;
  if (file < 0 || ::fstat(file, &st) != 0 || st.st_size == 0) die(path);
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || ::listen(listener, 16) != 0)
    die("listen");
  puts("listening");
  fflush(stdout);
  for (;;) {
    const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0) std::thread(send_all, socket, file, st.st_size).detach();
  }
}

int dial(const char* host, const char* port) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host, port, &hints, &found) != 0) die(host);
  const int socket = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0 || ::connect(socket, found->ai_addr, found->ai_addrlen) != 0) die("connect");
  ::freeaddrinfo(found);
  return socket;
}

bool line_has_come() {
  pollfd at = {STDIN_FILENO, POLLIN, 0};
  return ::poll(&at, 1, 0) == 1;
}

void receive(int socket, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::recv(socket, to, bytes, 0);
    if (n <= 0) die("receive");
    to += n;
    bytes -= static_cast<size_t>(n);
  }
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

void get(int socket, uint64_t most, const char* path, bool until_line) {
  const int copy = path ? ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
  if (path && copy < 0) die(path);
  std::vector<char> buffer(kPiece);
  uint64_t done = 0, sum = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (until_line ? !line_has_come() : done < most) {
    const size_t n = until_line ? kPiece : std::min<uint64_t>(kPiece, most - done);
    receive(socket, buffer.data(), n);
    sum ^= XXH3_64bits(buffer.data(), n);
    if (copy >= 0 && ::pwrite(copy, buffer.data(), n, static_cast<off_t>(done)) != static_cast<ssize_t>(n))
      die("write");
    done += n;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  printf("{\"bytes\": %" PRIu64 ", \"seconds\": %.6f, \"cpu\": %.6f, \"sum\": %" PRIu64 "}\n", done,
         taken.count(), seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime), sum);
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::signal(SIGPIPE, SIG_IGN);
  std::vector<const char*> words(argv + 1, argv + argc);
  const bool until_line = !words.empty() && std::string_view(words.back()) == "--until-line";
  if (until_line) words.pop_back();
  const std::string_view what = words.empty() ? "" : words[0];
  if (what == "--serve" && words.size() == 3) serve(static_cast<uint16_t>(atoi(words[1])), words[2]);
  if (what != "--get" || words.size() < 4 || words.size() > 5) {
    fprintf(stderr, "usage: send_loop --serve PORT FILE | --get HOST PORT BYTES [COPY] [--until-line]\n");
    return 2;
  }
  get(dial(words[1], words[2]), strtoull(words[3], nullptr, 10), words.size() == 5 ? words[4] : nullptr,
      until_line);
}
