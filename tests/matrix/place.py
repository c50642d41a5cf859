# SPDX-License-Identifier: Apache-2.0
"""place.py SECONDS FILE...: opens and reads files until each is opened on a tier; fails when that takes too long."""

import os
import sys
import time

CHUNK = 1 << 20
end = time.monotonic() + float(sys.argv[1])


def on_tier(path):
    """Asks for a file, and whether it was opened elsewhere than where its path leads."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if os.readlink(f"/proc/self/fd/{fd}") != os.path.realpath(path):
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
