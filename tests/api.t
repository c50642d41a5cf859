#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""libmonarch: programs that call it, linked statically and dynamically, within a job and without."""

import os
import shutil

import e2e
from e2e import BUILD, SOURCE, equal, ok, options, scratch, skip

# Does what its arguments say, one after the other, and prints what it got.
CALLS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libmonarch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void tell(ssize_t n, const char *bytes, int more) {
  if (n < 0)
    printf("-1 %s\n", strerrorname_np(errno));
  else
    printf("%zd %.*s%s%d\n", n, (int)n, bytes, n ? " " : "", more);
}
int main(int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    const char *path = argv[i] + 2;
    char buf[64];
    struct monarch_counts stats;
    if (*argv[i] == 'r') {
      tell(monarch_read(path, buf, 8, 2), buf, 0);
    } else if (*argv[i] == 'o') {
      const int fd = monarch_open(path);
      tell(fd < 0 ? -1 : read(fd, buf, sizeof buf), buf, fcntl(fd, F_GETFD));
    } else if (*argv[i] == 'w') {
      const int fd = open(path, O_WRONLY);
      printf("%zd\n", pwrite(fd, "changed!!!", 10, 0));
      close(fd);
    } else if (*argv[i] == 'f') {
      tell(monarch_wait(atof(path), 100000), "", 0);
    } else {
      const int result = monarch_stats(&stats, sizeof stats);
      tell(result, "", 0);
      if (result == 0) printf("%d %d %d\n", (int)stats.files, (int)stats.staged_files, (int)stats.opens_tier);
    }
  }
}
"""


def built(name, source, *words, compiler="cc"):
    """The program, linked so."""
    program = f"{scratch('programs')}/{name}"
    code, out, err = e2e.execute([compiler, "-o", program, source, f"-I{SOURCE}/api", *words], env=dict(os.environ, LC_ALL="C"))
    ok(code == 0, f"{name} compiles", out, err)
    return program


def programs(name, source):
    """Of a source in C: one linked statically, and one linked with the shared library."""
    if e2e.SANITIZER:
        skip(name, "a sanitizer's program is not linked statically")
        return []
    linked = scratch("linked")
    if not os.path.lexists(f"{linked}/libmonarch.so"):
        os.symlink(f"{BUILD}/libmonarch.so.1", f"{linked}/libmonarch.so")
    return [built(f"{name}-static", source, "-static", f"{BUILD}/api/libmonarch.a"),
            built(f"{name}-shared", source, f"-L{linked}", "-lmonarch", f"-Wl,-rpath,{BUILD}")]


def calls():
    source = f"{scratch('programs')}/calls.c"
    e2e.write(source, CALLS.encode())
    return programs("calls", source)


def examples():
    """The examples in C, static and shared, and in Fortran."""
    found = programs("read", f"{SOURCE}/examples/read.c")
    if found and shutil.which("gfortran"):
        return [*found, built("read-fortran", f"{SOURCE}/examples/read.f90", f"{BUILD}/api/libmonarch.a", compiler="gfortran")]
    skip("read-fortran", "no gfortran" if found else "a sanitizer's program is not linked statically")
    return found


def files():
    """The examples print natively, and in a job, what is in the files; in a job all of it comes from the tier."""
    path = scratch("examples")
    size = e2e.make_tree(path, 12, 200000)
    names = sorted(os.path.join(d, name) for d, _, found in os.walk(path) for name in found)
    want = "".join(f"{len(data)} {sum(data)}\n" for data in map(e2e.bytes_in, names)).encode()
    for program in examples():
        name = os.path.basename(program)
        equal(e2e.execute([program, *names])[:2], (0, want), f"{name}: right bytes without a job")
        job = e2e.Job(options([path], {"t": (scratch(f"tier.{name}"), "1G")}, "--wait=full"))
        equal(job.run([program, *names]), (0, want, ""), f"{name}: right bytes in a job, which takes the hint")
        report = job.end()
        equal(report["tasks"]["opens_pfs"], 0, f"{name}: no open goes to the PFS", report)
        equal(sum(tier["read_bytes"] for tier in report["tiers"]), size, f"{name}: what it reads of the tier is counted", report)


def lines(result):
    """What a program has printed, which was to end well."""
    code, out, err = result
    return out.decode().splitlines() if code == 0 else [f"exit code {code}: {err}"]


def errors():
    """Errors are those of open(2) and pread(2), and the rest says that there is no job; in one it is answered."""
    path = scratch("errors")
    for i in range(3):
        e2e.write(f"{path}/{i}", b"%d123456789" % i)
    plain = [f"r={path}/none", f"r={path}", f"r={path}/1", f"o={path}/2"]
    want = ["-1 ENOENT", "-1 EISDIR", "8 23456789 0", "10 2123456789 1"]
    for program in calls():
        name = os.path.basename(program)
        equal(lines(e2e.execute([program, *plain, "f=0.5", "f=7", "s="])), [*want, "-1 ENOTCONN", "-1 EINVAL", "-1 ENOTCONN"], f"{name}: without a job")
        job = e2e.Job(options([path], {"t": (scratch(f"tier.{name}"), "1G")}))
        equal(lines(job.run([program, "f=1", "s=", *plain, "f=7"])), ["0 0", "0 0", "3 3 0", *want, "-1 EINVAL"], f"{name}: in a job")
        job.end()


def changes():
    """A program without hooks reads what it wrote itself, as do all that come after it."""
    for program in calls():
        name = os.path.basename(program)
        path = scratch(f"changes.{name}")
        file = e2e.write(f"{path}/file", b"0123456789")
        job = e2e.Job(options([path], {"t": (scratch(f"tier.{name}"), "1G")}, "--wait=full"))
        read = lines(job.run([program, f"r={file}", f"w={file}", f"r={file}", f"o={file}"]))
        equal(read, ["8 23456789 0", "10", "8 anged!!! 0", "10 changed!!! 1"], f"{name}: it reads what it wrote")
        equal(lines(job.run([program, f"r={file}"])), ["8 anged!!! 0"], f"{name}: so does the next one")
        ok(job.end()["opens_tier"] > 0, f"{name}: before that it read the tier's copy")


e2e.main(files, errors, changes)
