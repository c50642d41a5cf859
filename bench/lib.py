# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the programs, file systems to measure on with their counters, tables.

dev/bench sets MONARCH_BENCH_SCRATCH, a private directory that it removes with all mounts and processes
in it, and MONARCH_BUILD, the build directory.
"""
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
MIB = 1 << 20
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def progress(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def die(text):
    sys.exit(f"bench: error: {text}")


def scratch():
    path = os.environ.get("MONARCH_BENCH_SCRATCH")
    return path or die("MONARCH_BENCH_SCRATCH is not set: run this by dev/bench")


def program(name):
    """The path of a built program, by its path in the build directory."""
    path = os.path.join(os.environ.get("MONARCH_BUILD", os.path.join(TOP, "build")), name)
    return path if os.access(path, os.X_OK) else die(f"{path} is missing: run dev/build")


def die_with_parent():
    """Get SIGTERM when the parent process dies, however it dies."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def start(command, **options):
    return subprocess.Popen(command, preexec_fn=die_with_parent, **options)


class SlowFs:
    """A slowfs mount.  `source` is the directory behind it, which costs no latency to fill."""

    DESCRIPTION = "slowfs (open {open_us} us, read {read_us} us, metadata {meta_us} us, {bw_mib} MiB/s)"
    COUNTERS = {"opens": ["open"], "reads": ["read"], "bytes": ["read_bytes"], "stats": ["lookup", "getattr"]}

    def __init__(self, directory, delays):
        self.source = os.path.join(directory, "slowfs-source")
        self.mount = os.path.join(directory, "slowfs")
        self.description = self.DESCRIPTION.format(**delays)
        os.makedirs(self.source)
        os.makedirs(self.mount)
        settings = [f"--{name.replace('_', '-')}={value}" for name, value in delays.items()]
        self.process = start([program("tests/slowfs"), "--foreground", *settings, self.source, self.mount])
        end = time.monotonic() + 10
        while not os.path.ismount(self.mount):
            if self.process.poll() is not None or time.monotonic() > end:
                die("slowfs did not mount: is /dev/fuse there, and fuse3 installed?")
            time.sleep(0.02)

    def counters(self):
        with open(os.path.join(self.mount, ".slowfs"), encoding="ascii") as file:
            values = dict(line.split() for line in file if not line.startswith("set "))
        return {ours: sum(int(values[name]) for name in theirs) for ours, theirs in self.COUNTERS.items()}

    def close(self):
        self.process.terminate()
        self.process.wait()


class Gluster:
    """A dev/lab pfs.  `source` is the mount itself.  The counters are the sums of its servers' own; a
    lookup may be asked of several servers."""

    COUNTERS = {"opens": ["open"], "reads": ["read"], "bytes": ["read_bytes"], "stats": ["lookup", "stat", "fstat"]}

    def __init__(self, directory, latency_us):
        self.directory = os.path.join(directory, "pfs")
        self.description = f"GlusterFS (open and read {latency_us} us)"
        self.mount = self.source = self._lab("up", "--latency-us", str(latency_us)).strip()

    def _lab(self, command, *options):
        return subprocess.run([os.path.join(TOP, "dev/lab"), "pfs", command, "--dir", self.directory, *options],
                              check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout

    def counters(self):
        values = json.loads(self._lab("counters", "--json"))
        return {ours: sum(values[name] for name in theirs) for ours, theirs in self.COUNTERS.items()}

    def close(self):
        self._lab("down")


def difference(after, before):
    return {name: after[name] - before[name] for name in after}


def format_table(header, alignment, rows):
    """Aligned columns; `alignment` has an l or r for each.  None is shown as a dash."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["  ".join(cell.ljust(width) if side == "l" else cell.rjust(width)
                       for cell, width, side in zip(row, widths, alignment)).rstrip() for row in cells]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)
