// SPDX-License-Identifier: Apache-2.0
// ranks mpiio|posix FILE...: each rank reads all of each file, by MPI-IO or by pread(2); the first prints a line for
// each file and rank.
#include <fcntl.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sums.h"

enum { kChunk = 1 << 16 };
static char buffer[kChunk];

static uint32_t by_mpi(const char* path, uint64_t* size) {
  MPI_File file;
  MPI_Offset end = 0;
  uint32_t sum = 0;
  if (MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file) != MPI_SUCCESS) MPI_Abort(MPI_COMM_WORLD, 3);
  MPI_File_get_size(file, &end);
  for (MPI_Offset at = 0; at < end; at += kChunk) {
    int part = end - at < kChunk ? (int)(end - at) : kChunk;
    if (MPI_File_read_at(file, at, buffer, part, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS) MPI_Abort(MPI_COMM_WORLD, 4);
    sum = sum_of(sum, buffer, (size_t)part);
  }
  MPI_File_close(&file);
  *size = (uint64_t)end;
  return sum;
}

static uint32_t by_pread(const char* path, uint64_t* size) {
  int fd = open(path, O_RDONLY);
  uint32_t sum = 0;
  ssize_t got;
  *size = 0;
  if (fd < 0) MPI_Abort(MPI_COMM_WORLD, 5);
  while ((got = pread(fd, buffer, kChunk, (off_t)*size)) > 0) {
    sum = sum_of(sum, buffer, (size_t)got);
    *size += (uint64_t)got;
  }
  close(fd);
  return sum;
}

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  uint32_t* sums = calloc((size_t)ranks, sizeof *sums);
  for (int i = 2; i < argc; ++i) {
    uint64_t size;
    uint32_t sum = strcmp(argv[1], "mpiio") == 0 ? by_mpi(argv[i], &size) : by_pread(argv[i], &size);
    MPI_Gather(&sum, 1, MPI_UINT32_T, sums, 1, MPI_UINT32_T, 0, MPI_COMM_WORLD);
    for (int r = 0; rank == 0 && r < ranks; ++r) print_sum(argv[i], size, sums[r]);
  }
  free(sums);
  MPI_Finalize();
  return 0;
}
