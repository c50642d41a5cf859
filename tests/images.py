# SPDX-License-Identifier: Apache-2.0
"""Root file systems for containers, for end-to-end tests: a few programs and what they need."""

import os
import re
import shutil
import subprocess

from e2e import BUILD, scratch, write

PROGRAMS = ["sh", "find", "sort", "xargs", "md5sum", "env", "true", "readlink", "ls", "sleep", "mkdir"]


def libraries(program):
    out = subprocess.run(["ldd", program], stdout=subprocess.PIPE, check=True).stdout.decode()
    return re.findall(r"(/[^ ]+) \(0x", out)


def new_image(name, programs):
    """A root file system with those programs and what they need."""
    image = scratch(name)
    for directory in "proc", "dev", "tmp", "etc", "sys", "run", "home", "root", "usr/bin", "var/tmp":
        os.makedirs(f"{image}/{directory}", exist_ok=True)
    os.symlink("usr/bin", f"{image}/bin")
    for name in "passwd", "group", "hosts", "resolv.conf", "hostname", "localtime":
        write(f"{image}/etc/{name}", b"")
    for program in programs:
        shutil.copy(program, f"{image}/usr/bin/{os.path.basename(program)}")
    # Those of the preload library are parts of each glibc.
    for program in *programs, f"{BUILD}/libmonarch_preload.so":
        for library in libraries(program):
            os.makedirs(image + os.path.dirname(library), exist_ok=True)
            shutil.copy(os.path.realpath(library), image + library)
    return image


def glibc_image(name):
    programs = [os.path.realpath(shutil.which(program)) for program in PROGRAMS]
    image = new_image(name, programs)
    for program, real in zip(PROGRAMS, programs):
        if os.path.basename(real) != program:
            os.symlink(os.path.basename(real), f"{image}/usr/bin/{program}")
    return image


MUSL = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char** argv) {
  char bytes[65536];
  for (int i = 1; i < argc; ++i) {
    int fd = open(argv[i], O_RDONLY);
    for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) > 0;) fwrite(bytes, 1, (size_t)n, stdout);
    close(fd);
  }
  return 0;
}
"""


def why_no_musl():
    return "" if shutil.which("musl-gcc") else "no musl-gcc"


def musl_image(name):
    """An image with /bin/cat alone, of musl's."""
    image, program = scratch(name), f"{scratch()}/{name}.cat"
    write(f"{program}.c", MUSL)
    subprocess.run(["musl-gcc", "-o", program, f"{program}.c"], check=True)
    for directory in "proc", "dev", "run", "lib", "bin":
        os.makedirs(f"{image}/{directory}")
    shutil.copy(program, f"{image}/bin/cat")
    loader = re.search(r"interpreter (\S+?),", subprocess.run(["file", program], stdout=subprocess.PIPE, check=True).stdout.decode())[1]
    shutil.copy(os.path.realpath(loader), image + loader)
    return image


def with_shell(image):
    """With a static sh, as pyxis needs one, whatever the image's C library."""
    shutil.copy(shutil.which("busybox") or "", f"{image}/bin/sh")
    return image
