# SPDX-License-Identifier: Apache-2.0
"""place.py SECONDS FILE...: opens and reads files until each is opened on a tier; fails when that takes too long."""

import ctypes
import os
import sys
import time

CHUNK = 1 << 20
end = time.monotonic() + float(sys.argv[1])


def opened_as(fd):
    """The kernel's name of what is open, which the library does not tell."""
    text = ctypes.create_string_buffer(4096)
    number = 267 if os.uname().machine == "x86_64" else 78
    length = ctypes.CDLL(None).syscall(number, -100, b"/proc/self/fd/%d" % fd, text, 4096)
    return os.fsdecode(text.raw[:length])


def on_tier(path):
    """Asks for a file, and whether it was opened elsewhere than where its path leads."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if opened_as(fd) != os.path.realpath(path):
            return True
        for at in range(0, os.fstat(fd).st_size, CHUNK):
            os.pread(fd, CHUNK, at)
        return False
    finally:
        os.close(fd)


for name in sys.argv[2:]:
    while not on_tier(name):
        if time.monotonic() > end:
            sys.exit(f"{name} is not placed")
        time.sleep(0.02)
