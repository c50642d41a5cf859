# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: the programs, file systems to measure on with their counters, datasets, readers.

dev/bench sets MONARCH_BENCH_SCRATCH, a private directory that it removes with all mounts and processes
in it, and MONARCH_BUILD, the build directory.
"""
import argparse
import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

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

    def __init__(self, directory, delays, source=None, page_cache=False):
        self.page_cache = page_cache  # of the node, for its files' data
        self.source = source or os.path.join(directory, "slowfs-source")
        self.mount = os.path.join(directory, "slowfs")
        self.description = self.DESCRIPTION.format(**delays) + (" with a page cache" if page_cache else "")
        os.makedirs(self.source)
        os.makedirs(self.mount)
        settings = [f"--{name.replace('_', '-')}={value}" for name, value in delays.items()] + ["--keep-cache"] * page_cache
        self.process = start([program("tests/slowfs"), "--foreground", *settings, self.source, self.mount])
        end = time.monotonic() + 10
        while not os.path.ismount(self.mount):
            if self.process.poll() is not None or time.monotonic() > end:
                die("slowfs did not mount: is /dev/fuse there, and fuse3 installed?")
            time.sleep(0.02)
        # Opened again by its descriptor, the control file costs no lookup, which would be counted.
        self.control = os.open(os.path.join(self.mount, ".slowfs"), os.O_PATH)

    def counters(self):
        with open(f"/proc/self/fd/{self.control}", encoding="ascii") as file:
            values = dict(line.split() for line in file if not line.startswith("set "))
        return {ours: sum(int(values[name]) for name in theirs) for ours, theirs in self.COUNTERS.items()}

    def close(self):
        os.close(self.control)
        self.process.terminate()
        self.process.wait()


class Gluster:
    """A dev/lab pfs.  `source` is the mount itself.  The counters are the sums of its servers' own; a
    lookup may be asked of several servers."""
    page_cache = False

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


# ---------------------------------------------------------------- datasets

@dataclass(frozen=True)
class Workload:
    files: int
    size: int
    access: str
    request_kib: int


SMALL, MIDDLE, LARGE = (2500, 110 << 10), (16, 50 * MIB), (8, 100 * MIB)
WORKLOADS = {
    "small": Workload(*SMALL, "read", 1024),
    "small-pread": Workload(*SMALL, "pread", 1024),
    "small-mmap": Workload(*SMALL, "mmap", 1024),
    "middle-read": Workload(*MIDDLE, "read", 256),
    "middle-mmap": Workload(*MIDDLE, "mmap", 256),
    "large": Workload(*LARGE, "pread", 256),
    "large-read": Workload(*LARGE, "read", 256),
    "large-mmap": Workload(*LARGE, "mmap", 256),
}
FILES_IN_FOLDER = 250


def write_dataset(directory, workload, scale):
    """Write the workload's files; scale sets their number, but no fewer than four.  Returns bytes."""
    count = max(4, round(workload.files * scale))
    for number in range(count):
        folder = os.path.join(directory, f"{number // FILES_IN_FOLDER:03}")
        os.makedirs(folder, exist_ok=True)
        content = random.Random(number)
        with open(os.path.join(folder, f"{number:06}.bin"), "wb") as file:
            for offset in range(0, workload.size, MIB):
                file.write(content.randbytes(min(MIB, workload.size - offset)))
    return count * workload.size


FILES_IN_EMPTY_FOLDER = 1000


def empty_file(number):
    """The path, below its dataset, of a file of make_empty_files."""
    return f"{number // FILES_IN_EMPTY_FOLDER // 100:02}/{number // FILES_IN_EMPTY_FOLDER:04}/n{number:07}.jpg"


def make_empty_files(directory, count):
    for number in range(count):
        path = os.path.join(directory, empty_file(number))
        if number % FILES_IN_EMPTY_FOLDER == 0:
            os.makedirs(os.path.dirname(path))
        os.mknod(path)


def drop_pages(directory):
    """Write the files below directory back and drop them from the page cache."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def memory():
    """A tmpfs to write to, or None.  The usual place of tiers here: on disks, what other programs write and
    removed lately changes the figures more than Monarch does.  (ext4 without a journal looks at each inode
    that was removed in the last minutes when it makes a new one.)"""
    return "/dev/shm" if os.path.ismount("/dev/shm") and os.access("/dev/shm", os.W_OK) else None


def make_tier_directory(elsewhere):
    """Where tiers and local copies live: a new directory in `elsewhere`, to which scratch/tier links."""
    path = os.path.join(scratch(), "tier")
    if os.path.realpath(elsewhere) == os.path.realpath(scratch()):
        os.makedirs(path)
        return path
    made = tempfile.mkdtemp(prefix="monarch-bench-tier.", dir=elsewhere)
    os.symlink(made, path)  # so that dev/bench removes it, whatever happens
    return made


@contextlib.contextmanager
def prepared_dataset(name, pfs, tier_directory, scale):
    """The workload's dataset on the PFS: its path there, `pfs`, and behind it, `source`; `local` and `tier`, of which
    nothing is there yet; and `bytes`."""
    source = os.path.join(pfs.source, name)
    dataset = {"pfs": os.path.join(pfs.mount, name), "source": source, "local": os.path.join(tier_directory, "local"),
               "tier": os.path.join(tier_directory, "tier")}
    dataset["bytes"] = write_dataset(source, WORKLOADS[name], scale)
    yield dataset
    shutil.rmtree(source)


@contextlib.contextmanager
def local_copy(source, local):
    """A new copy for each round, made as the agent makes its copies: how a file's pages lie in memory makes a tenth
    of difference."""
    shutil.copytree(source, local, copy_function=copy_allocated)
    yield
    shutil.rmtree(local)


def copy_allocated(source, copy):
    with open(source, "rb", buffering=0) as readable, open(copy, "wb", buffering=0) as writable:
        size = os.fstat(readable.fileno()).st_size
        if size > 0:
            os.posix_fallocate(writable.fileno(), 0, size)
        while content := readable.read(MIB):
            writable.write(content)
    shutil.copystat(source, copy)


# ---------------------------------------------------------------- commands that wait for a line

class Stepped:
    """A command that does one step for each line that it gets, and answers with one line."""

    def __init__(self, command, **options):
        self.command = command
        self.process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)

    def ask(self, line=""):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            die(f"no answer (exit code {self.process.wait()}) from: {' '.join(self.command)}")
        return line

    def step(self, line=""):
        self.ask(line)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        if self.process.wait() != 0:
            die(f"exit code {self.process.returncode} of: {' '.join(self.command)}")


def reader_command(directory, workload, threads, processes, epochs, *more):
    """bench/io_reader, which reads one epoch for each line; with "--check", one more that hashes all bytes."""
    return [program("bench/io_reader"), directory, "--pause",
            "--access", workload.access, "--request", str(workload.request_kib), "--threads", str(threads),
            "--processes", str(processes), "--epochs", str(epochs), *more]


NOBODY = 65534


def as_user(*directories):
    """What runs a command as a job is run, by a user who is not root; `directories` become his.  Nothing if this
    process is not root, or the programs are out of his reach."""
    words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    reaches = [*words, "test", "-x", program("monarchctl")]
    if os.geteuid() != 0 or subprocess.run(reaches, check=False).returncode != 0:
        return []
    for directory in directories:
        os.chown(directory, NOBODY, NOBODY)
    return words


class Monarch:
    """`monarchctl run` around a command.  Makes `tier`, a directory, and removes it in the end."""

    def __init__(self, dataset, tier, tier_bytes, agent=(), user=()):
        """`agent`: KEY = VALUE lines for the configuration's [agent].  `user`: of as_user()."""
        self.tier = tier
        name = f"monarch.{os.path.basename(tier)}"
        self.report_file, config = (os.path.join(scratch(), name + end) for end in (".json", ".conf"))
        os.makedirs(tier)
        if user:
            os.chown(tier, NOBODY, NOBODY)
        with open(config, "w", encoding="ascii") as file:
            file.write("\n".join(["[agent]", *agent]) + "\n")
        os.chmod(config, 0o644)
        self.prefix = [*user, program("monarchctl"), "run", "--config", config, "--dataset", dataset,
                       "--tier", f"bench:{tier}:{tier_bytes}", "--report", self.report_file, "--"]

    def report(self):
        """The counters, once the command has ended."""
        with open(self.report_file, encoding="utf-8") as file:
            return json.load(file)

    def remove(self):
        shutil.rmtree(self.tier)


def descendants(pid):
    found = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        for child in map(int, file.read().split()):
            found += [child, *descendants(child)]
    return found


def files_below(dataset):
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(dataset) for name in names)


def agent_of(process):
    """The pid of the agent that the `monarchctl run` starts."""
    end = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < end:
        for pid in descendants(process.pid):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="ascii") as file:
                if file.read().strip() == "monarchd":
                    return pid
        time.sleep(0.001)
    return die("no agent: did monarchctl start one?")


# ---------------------------------------------------------------- what an agent costs

SHARED_FILES = ("board", "catalog", "chunks", "dirs", "entries", "idents", "index", "inodes")  # of the run directory


def own_bytes(pid):
    """Resident bytes of a process without the mappings of the run directory."""
    total, counted = 0, True
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if not words[0].endswith(":"):  # a mapping: addresses, permissions, offset, device, inode, path
                path = words[5] if len(words) > 5 else ""
                counted = os.path.basename(path).split(".")[0] not in SHARED_FILES or "/monarch-" not in path
            elif words[0] == "Rss:" and counted:
                total += int(words[1]) * 1024
    return total


class MemoryWatch(threading.Thread):
    """The most bytes of its own that an agent had."""

    def __init__(self, pid):
        super().__init__()
        self.pid, self.most, self.over = pid, 0, threading.Event()
        self.start()

    def run(self):
        with contextlib.suppress(OSError):  # it has ended
            while not self.over.wait(0.05):
                self.most = max(self.most, own_bytes(self.pid))

    def end(self):
        self.over.set()
        self.join()
        return self.most


def cpu_seconds(pid):
    """Of a process so far, by user and by system."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Busy:
    """How much of the machine's processors is in use: a context, with `share` when it has ended."""

    def __enter__(self):
        self.begin, self.share = self._now(), 0.0
        return self

    def __exit__(self, *_):
        used, whole = (after - before for after, before in zip(self._now(), self.begin))
        self.share = used / whole if whole else 0.0

    @staticmethod
    def _now():
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(word) for word in file.readline().split()[1:9]]
        return sum(fields) - fields[3] - fields[4], sum(fields)


# ---------------------------------------------------------------- arguments

def words(known):
    def split(text):
        unknown = [word for word in text.split(",") if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]}: not one of {', '.join(known)}")
        return text.split(",")
    return split


def positive(kind):
    def convert(text):
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text}: must be above 0")
        return value
    convert.__name__ = kind.__name__
    return convert


def numbers(kind):
    return lambda text: [positive(kind)(word) for word in text.split(",")]


def arguments(name, description, runs, scale=None, slowfs=True):
    """A parser with what all benchmarks know.  `runs` and `scale` are defaults."""
    parser = argparse.ArgumentParser(prog=f"dev/bench {name}", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--json", action="store_true", help="print all results and parameters as JSON")
    add("--plot", metavar="FILE", help="draw the figures; the name's end says how (.png, .svg)")
    add("--runs", type=positive(int), default=runs, help=f"rounds, whose median counts (default {runs})")
    add("--tier-dir", metavar="DIR", default=memory() or os.environ.get("MONARCH_BENCH_SCRATCH"),
        help="where tier and local copy are made (default: /dev/shm, if it is a tmpfs)")
    if scale:
        add("--scale", type=positive(float), default=scale, help=f"number of files, as a factor (default {scale:g})")
    if slowfs:
        add("--open-us", type=int, default=500, help="slowfs: latency of an open (default 500)")
        add("--read-us", type=int, default=400, help="slowfs: latency of a read (default 400)")
        add("--meta-us", type=int, default=200, help="slowfs: latency of lookup, getattr, readdir (default 200)")
        add("--bw-mib", type=int, default=200, help="slowfs: bandwidth in MiB/s; 0: unlimited (default 200)")
    return parser


def slowfs(args, source=None, page_cache=False):
    delays = {name: getattr(args, name) for name in ("open_us", "read_us", "meta_us", "bw_mib")}
    return SlowFs(scratch(), delays, source, page_cache)
