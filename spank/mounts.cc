// SPDX-License-Identifier: Apache-2.0
// The run directory's file system in a job that has a mount namespace of its own (JobContainerType): Slurm
// makes that before the run directory is mounted, so its tasks do not see the mount. slurmstepd, where it is
// in slurmd's namespace, takes a clone of the mount; each task, as root, attaches it in the job's, where no
// task has done so yet.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

// The same on all architectures; older headers lack them.
constexpr long kOpenTree = 428, kMoveMount = 429, kMountSetattr = 442;
constexpr unsigned kClone = 1, kFromEmptyPath = 0x4, kToEmptyPath = 0x40;
struct MountAttributes {
  uint64_t set = 0, clear = 0, propagation = 0, user_namespace = 0;
};

constexpr char kNamespace[] = "MONARCH_MOUNT_NAMESPACE";

int clone = -1;      // a mount of the run directory that is attached nowhere
struct stat parent;  // the directory that the run directory is in

int clone_mount(int fd) {
  return static_cast<int>(syscall(kOpenTree, fd, "", kClone | AT_EMPTY_PATH | O_CLOEXEC));
}

bool is_same(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// The directory above, which is root's; its path's last part goes to *name. -1: there is none.
int open_above(const char* path, char (&above)[kPathBytes], const char** name) {
  snprintf(above, sizeof above, "%s", path);
  char* slash = strrchr(above, '/');
  if (!slash) return -1;
  *slash = '\0';
  *name = slash + 1;
  return open(above, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// Without asking the file system, which may be one that the job's owner has mounted there.
bool are_of_one_device(int fd, int other) {
  struct statx one, two;
  constexpr int kFlags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  return statx(fd, "", kFlags, 0, &one) == 0 && statx(other, "", kFlags, 0, &two) == 0 &&
         one.stx_dev_major == two.stx_dev_major && one.stx_dev_minor == two.stx_dev_minor;
}

// Whether what is open is a tmpfs that root has mounted for a run directory (runtime/node/mounts.h),
// likewise.
bool is_run_dir_mount(int fd) {
  char path[64], line[kPathBytes + 512];
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
  int id = -1, other = 0;
  FILE* in = fopen(path, "re");
  while (in && fgets(line, sizeof line, in) && sscanf(line, "mnt_id: %d", &id) != 1) {
  }
  if (in) fclose(in);
  bool is = false;
  in = id >= 0 ? fopen("/proc/self/mountinfo", "re") : nullptr;
  while (in && fgets(line, sizeof line, in))
    if (sscanf(line, "%d ", &other) == 1 && other == id) is = strstr(line, " - tmpfs monarch ") != nullptr;
  if (in) fclose(in);
  return is;
}

// What the job mounts there stays in its namespace.
void make_private(int mount_fd) {
  const MountAttributes attributes = {0, 0, MS_PRIVATE, 0};
  syscall(kMountSetattr, mount_fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes);
}

// Of this process, as the kernel shows it.
constexpr size_t kNamespaceRoom = 64;
bool name_namespace(char (&text)[kNamespaceRoom]) {
  const ssize_t n = readlink("/proc/self/ns/mnt", text, sizeof text - 1);
  if (n > 0) text[n] = '\0';
  return n > 0;
}

}  // namespace

void note_namespace() {
  char text[kNamespaceRoom];
  if (name_namespace(text)) setenv(kNamespace, text, 1);
}

bool can_hand_on_mounts() {
  char own[kNamespaceRoom];
  return name_namespace(own) && strcmp(own, trusted(kNamespace)) == 0;
}

void clone_run_dir_mount(const char* run_dir) {
  char above[kPathBytes];
  const char* name = nullptr;
  const int in = clone < 0 ? open_above(run_dir, above, &name) : -1;
  if (in < 0) return;
  const int fd = openat(in, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0 && fstat(in, &parent) == 0 && is_run_dir_mount(fd)) clone = clone_mount(fd);
  if (clone >= 0) make_private(clone);
  if (fd >= 0) close(fd);
  close(in);
}

// In a namespace whose /run is the user's own, the path may lead anywhere: only the directory that the node
// has is mounted on, and only where nothing is.
void attach_run_dir_mount(const char* run_dir) {
  char now[kNamespaceRoom];
  if (clone < 0 || !name_namespace(now) || strcmp(now, trusted(kNamespace)) == 0) return;
  struct stat st;
  char above[kPathBytes];
  const char* name = nullptr;
  const int in = open_above(run_dir, above, &name);
  const int on = in >= 0 && fstat(in, &st) == 0 && is_same(st, parent)
                     ? openat(in, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                     : -1;
  if (on >= 0 && are_of_one_device(on, in) &&
      syscall(kMoveMount, clone, "", on, "", kFromEmptyPath | kToEmptyPath) == 0)
    make_private(clone);
  if (on >= 0) close(on);
  if (in >= 0) close(in);
}

}  // namespace monarch::spank
