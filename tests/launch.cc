// SPDX-License-Identifier: Apache-2.0
// launch HOW PROGRAM ARGUMENT...: starts the program by one member of the exec family, with an environment
// that holds nothing. For tests/environment.t.
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace {

char* bare[] = {nullptr};

int finish(pid_t pid) {
  int status = -1;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

// What the tests use has one argument.
int by_list(const char* how, char** words) {
  if (strcmp(how, "execl") == 0) return execl(words[0], words[0], words[1], nullptr);
  if (strcmp(how, "execlp") == 0) return execlp(words[0], words[0], words[1], nullptr);
  return execle(words[0], words[0], words[1], nullptr, bare);
}

int spawn(const char* how, char** words) {
  pid_t pid = 0;
  const int error = how[11] == 'p' ? posix_spawnp(&pid, words[0], nullptr, nullptr, words, bare)
                                   : posix_spawn(&pid, words[0], nullptr, nullptr, words, bare);
  return error == 0 ? finish(pid) : 98;
}

int by_vfork(char** words) {
  const pid_t pid = vfork();
  if (pid == 0) {
    execve(words[0], words, bare);
    _exit(97);
  }
  return finish(pid);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 96;
  const char* how = argv[1];
  char** words = argv + 2;
  if (strncmp(how, "posix_spawn", 11) == 0) return spawn(how, words);
  if (strcmp(how, "vfork") == 0) return by_vfork(words);
  if (strcmp(how, "execle") == 0) return by_list(how, words);
  if (strcmp(how, "execve") == 0) execve(words[0], words, bare);
  if (strcmp(how, "execvpe") == 0) execvpe(words[0], words, bare);
  if (strcmp(how, "fexecve") == 0) fexecve(open(words[0], O_RDONLY), words, bare);
  if (strcmp(how, "fexecve, cloexec") == 0) fexecve(open(words[0], O_RDONLY | O_CLOEXEC), words, bare);
  if (strcmp(how, "execveat") == 0) execveat(AT_FDCWD, words[0], words, bare, 0);
  if (strcmp(how, "execveat, descriptor") == 0)
    execveat(open(words[0], O_RDONLY), "", words, bare, AT_EMPTY_PATH);
  if (strcmp(how, "no environment") == 0) execve(words[0], words, nullptr);
  environ = bare;
  if (strcmp(how, "execv") == 0) execv(words[0], words);
  if (strcmp(how, "execvp") == 0) execvp(words[0], words);
  return by_list(how, words);
}
