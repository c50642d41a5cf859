#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""The program matrix: which programs Monarch serves from a tier.

Each program runs natively, cold (a fresh agent, nothing staged) and placed (the same agent, all staged): it has to
print, write and return the same, and the counters of the PFS have to be what its row claims.  `--table` prints the
rows, which doc/coverage.md has; MONARCH_TEST_ALL=1 asks for the calls too; `tests/matrix.t GROUP...` runs those
groups only.
"""

import dataclasses
import functools
import hashlib
import os
import re
import shutil
import sys
import time
from typing import Callable

import e2e
from e2e import PYTHON, SOURCE, equal, ok, options, scratch, skip

sys.path.insert(0, f"{SOURCE}/tests/matrix")
import datasets  # pylint: disable=wrong-import-position

WHOLE = bool(os.environ.get("MONARCH_TEST_ALL"))
HERE = f"{SOURCE}/tests/matrix"
TRIES = 3  # of a program whose opens gave up to wait
SLOW = 4  # what starts slowly may take so much longer than other programs

# ---- the table


@dataclasses.dataclass(frozen=True)
class Case:
    """What a command may refer to."""
    root: str  # the dataset
    out: str  # a place to write to

    @property
    def bins(self):
        return self.matching(".bin")

    def matching(self, suffix):
        return sorted(f"{self.root}/{name}" for name in os.listdir(self.root) if name.endswith(suffix))


@dataclasses.dataclass(frozen=True)
class Row:
    """A program, and the claim about it."""
    name: str
    opens: str  # the C library's functions by which it opens a dataset's files, and ...
    reads: str  # ... reads them; in parentheses what is not such a call
    data: str  # a function of datasets.py, with its argument after a blank
    command: Callable[[Case], list]
    needs: tuple = ()  # commands; "python:" modules; "build:" programs made here
    cold: str = "staged"  # once, for all opens; or the PFS, as natively
    placed: str = "tier"  # or the PFS, as natively
    marks: tuple = ()  # files that it opens for writing, which stay on the PFS
    changes: bool = False  # whether it makes other files, and removes them

    def line(self, group_name):
        return f"| {self.name} | {self.opens} | {self.reads} | {self.cold} | {self.placed} | matrix.t {group_name} |"


PFS = {"cold": "PFS", "placed": "PFS"}
FILES = "files"
CONVERT = "/usr/bin/convert"  # Debian's, which the table is about
LIBRARY = ("build:namespace", "build:library")


def shell(script, *words):
    return ["sh", "-c", script, "sh", *words]


def each_file(command):
    return lambda case: shell(f'find "$1" -type f -print0 | LC_ALL=C sort -z | xargs -0 {command}', case.root)


def python(script, *words):
    return [PYTHON, f"{HERE}/{script}", *words]


def formats(what):
    return lambda case: python("formats.py", what, case.root)


def built(name, *words):
    return lambda case: [*program(name), *words, *case.bins]


VERIFY = ("--rw=read", "--bs=64k", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0")


def fio(engine):
    """Reads what fio's own checksums are in, and prints how much and which errors; times it leaves out."""
    def command(case):
        return shell("""
            file=$1 engine=$2 out=$3
            shift 3
            fio --name=x --filename="$file" --readonly --ioengine="$engine" --size=1m --output-format=json --output="$out" "$@"
            status=$?
            sed -nE '/"(error|io_bytes|total_ios)"/p' "$out"
            rm -f "$out"
            exit $status""", f"{case.root}/verified", engine, case.out, *VERIFY)
    return command


def git(case):
    return shell("""
        git() { command git -c safe.directory='*' --git-dir="$1/it.git" "$2" "$3"; }
        git "$1" log -p && git "$1" fsck --full""", case.root)


def convert(case):
    return shell("""
        "$2" "$1"/0*.png "$1"/radial.jpg -append ppm:- | md5sum
        for f in "$1"/*.png; do "$2" "$f" -format "%# %wx%h\\n" info:-; done""", case.root, CONVERT)


def node(way):
    return lambda case: ["node", f"{HERE}/reader.js", way, *case.bins]


def namespace(where):
    return lambda case: [*program("namespace"), where, *program("library"), *case.bins]


def preloaded(library):
    return lambda case: shell('LD_PRELOAD="$1${LD_PRELOAD:+:$LD_PRELOAD}" exec "$2" "$3" read "$4"', library, PYTHON,
                              f"{HERE}/formats.py", case.root)


def ranks(way, count):
    run = ["mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "-n", str(count)]
    return lambda c: [*run, *program("ranks"), way, *c.bins]


SYSTEM = (
    Row("gzip", "open, openat", "read", FILES, lambda c: ["gzip", "-c", *c.bins], ("gzip",)),
    Row("perl", "open64", "read", FILES, lambda c: ["perl", f"{HERE}/reader.pl", *c.bins], ("perl",)),
    Row("git log, git fsck", "__open64_2, fopen64, open64", "mmap64, pread64, read", "repository", git, ("git",)),
    Row("ImageMagick's convert", "fdopen, open", "fread", "images", convert, (CONVERT, "python:PIL")),
    Row("fio, psync", "open64", "pread64", "verified", fio("psync"), ("fio",)),
    Row("fio, mmap", "open64", "mmap64", "verified", fio("mmap"), ("fio",)),
    Row("fio, libaio", "open64", "(io_submit)", "verified", fio("libaio"), ("fio",)),
    Row("fio, io_uring", "open64", "(io_uring)", "verified", fio("io_uring"), ("fio",)),
)

TOOLS = (
    Row("cat", "open, openat", "read", "tools", each_file("cat")),
    Row("cp -a", "open", "copy_file_range, read", "tools", lambda c: ["cp", "-a", c.root, c.out]),
    Row("tar c", "__openat_2", "read", "tools", lambda c: ["tar", "-C", os.path.dirname(c.root), "-c", os.path.basename(c.root)]),
    Row("md5sum", "fopen, openat", "(fread_unlocked)", "tools", each_file("md5sum")),
    Row("grep -r", "openat", "read", "tools", lambda c: ["grep", "-rc", "line 1", c.root]),
    Row("find -exec", "open, openat", "read", "tools", lambda c: ["find", c.root, "-name", "1*.txt", "-exec", "head", "-n", "3", "{}", ";"]),
    Row("dd", "open", "read", "tools", lambda c: shell('dd if="$1/large" bs=65537 skip=3 count=50 status=none; dd if="$1/1.txt" bs=1 count=99 status=none', c.root)),
    Row("head -c", "open, openat", "read", "tools", each_file("head -c 100")),
    Row("rsync -a", "openat", "read", "tools", lambda c: ["rsync", "-a", f"{c.root}/", c.out], ("rsync",)),
    Row("bash redirection", "open", "read", "tools", lambda c: ["bash", "-c", """
        for f in "$1"/*.txt; do read -r a b < "$f"; mapfile -t all < "$f"; echo "$a $b ${#all[@]}"; done
        exec 5< "$1/large"; md5sum <&5""", "bash", c.root]),
    Row("tail, wc, sort, diff, sed, awk", "fdopen, fopen, open", "read", "tools", lambda c: shell("""
        cd "$1"; tail -c 50 *.txt; wc *.txt; sort 1*.txt | uniq -c; sed -n 5,9p 3.txt; awk 'NR % 20 == 0' *.txt; diff 1.txt 2.txt; true""", c.root)),
    Row("Python open().read()", "open64", "read", "tools", formats("read_all")),
    Row("Python mmap", "open64", "mmap64", "tools", formats("mmap_all")),
    Row("Python sendfile", "open64", "sendfile64", "tools", formats("sendfile")),
    Row("Python subprocess", "open, open64", "read", "tools", formats("children")),
)

LANGUAGES = (
    Row("C++ ifstream, libstdc++", "fopen64", "read", FILES, built("libstdc++"), ("build:libstdc++",)),
    Row("C++ ifstream, libc++", "fopen", "fread", FILES, built("libc++"), ("build:libc++",)),
    Row("Rust: fs::read, BufReader, mmap", "open64", "mmap, pread64, read", FILES, built("rust"), ("build:rust",)),
    Row("Java: FileInputStream, FileChannel, map, RandomAccessFile", "open64", "mmap64, pread64, read", FILES, built("java"),
        ("build:java", "java")),
    Row("Node.js: readFileSync", "open64", "read", FILES, node("sync"), ("node",)),
    Row("Node.js: createReadStream", "open64", "read", FILES, node("stream"), ("node",)),
    Row("Node.js: fs.promises", "open64", "pread64, read", FILES, node("promises"), ("node",)),
)

UNSEEN = (
    Row("C, static", "(open of its own)", "(read)", FILES, built("c static", "open"), ("build:c static",), **PFS),
    Row("C, syscall(2)", "(syscall)", "read", FILES, built("c", "syscall"), ("build:c",), **PFS),
    Row("C, opened by io_uring", "(io_uring)", "(io_uring)", FILES, built("uring", "open"), ("build:uring",), **PFS),
    Row("C, read by io_uring", "open", "(io_uring)", FILES, built("uring", "read"), ("build:uring",)),
    Row("C, musl", "open", "read", FILES, built("musl", "open"), ("build:musl",)),
    Row("C, musl, static", "(open of its own)", "(read)", FILES, built("musl static", "open"), ("build:musl static",), **PFS),
    Row("busybox-static cat", "(open of its own)", "(read)", FILES, lambda c: ["busybox", "cat", *c.bins], ("static:busybox",),
        **PFS),
    Row("busybox-static cat, of what a shell opened", "open64", "(read)", FILES,
        lambda c: shell('for f; do busybox cat <"$f"; done', *c.bins), ("static:busybox",)),
    Row("Rust, static", "(open64 of its own)", "(mmap, pread64, read)", FILES, built("rust static"), ("build:rust static",), **PFS),
    Row("Go: os.ReadFile, bufio", "(system calls of its own)", "(system calls)", FILES, built("go"), ("build:go",), **PFS),
    Row("C, dlopen", "open", "read", FILES, namespace("here"), LIBRARY),
    Row("C, dlmopen", "(open of another C library)", "(read)", FILES, namespace("apart"), LIBRARY, **PFS),
)

DATABASES = (
    Row("sqlite3 -readonly", "open64", "pread64", "bases",
        lambda c: ["sqlite3", "-readonly", f"{c.root}/base.sqlite", "select name, sum(n) from numbers group by name"],
        ("sqlite3",)),
    Row("Python sqlite3, mode=ro", "open64", "mmap64, pread64", "bases", formats("sqlite"), ("python:sqlite3",)),
    Row("Python sqlite3, which opens for writing", "(open64 for writing)", "pread64", "bases", formats("sqlite_default"),
        ("python:sqlite3",), marks=("base.sqlite",), **PFS),
    Row("Python lmdb, lock=False", "open", "mmap, pread", "lightning", formats("lmdb"), ("python:lmdb",)),
    Row("h5ls, h5dump", "open", "pread", "hdf",
        lambda c: shell('h5ls -rv "$1/data.h5"; h5dump "$1/data.h5" | md5sum', c.root), ("h5dump", "python:h5py")),
    Row("h5py", "open", "pread", "hdf", formats("h5py"), ("python:h5py",)),
)

PYTHON_FORMATS = (
    Row("numpy.load", "fdopen, open64", "fread, read", "arrays", formats("numpy_load"), ("python:numpy",)),
    Row("numpy.memmap", "open64", "mmap64, read", "arrays", formats("numpy_memmap"), ("python:numpy",)),
    Row("numpy.fromfile, loadtxt", "fdopen, open64", "fread, read", "arrays", formats("numpy_fromfile"), ("python:numpy",)),
    Row("PIL", "open64", "read", "images", formats("pillow"), ("python:PIL",)),
    Row("pandas: CSV, memory_map, pickle, JSON", "open64", "mmap64, read", "tables", formats("pandas"), ("python:pandas",)),
    Row("zipfile", "open64", "read", "archives", formats("zipfile")),
    Row("tarfile", "open64", "read", "archives", formats("tarfile")),
    Row("tar streams, as webdataset reads them", "open, open64", "read", "archives", formats("tar_stream")),
    Row("Python with jemalloc in LD_PRELOAD", "open64", "read", FILES, preloaded("libjemalloc.so.2"), ("library:libjemalloc.so.2",)),
    Row("Python with tcmalloc in LD_PRELOAD", "open64", "read", FILES, preloaded("libtcmalloc_minimal.so.4"),
        ("library:libtcmalloc_minimal.so.4",)),
)
TORCH = ("python:torch", "python:PIL")
LEARNING = (
    Row("torch.load, from_file", "open64", "mmap64, read", "weights", formats("torch"), ("python:torch",)),
    Row("PyTorch DataLoader, fork", "open64", "read", "images", lambda c: python("loader.py", "fork", "2", c.root), TORCH),
)


MPI = ("build:ranks", "mpirun")
PARALLEL = (
    Row("mpirun, 4 ranks, pread", "open", "pread", FILES, ranks("posix", 4), MPI),
    Row("mpirun, 4 ranks, MPI-IO", "open (and for writing, a lock test beside the file: PFS)", "pread", FILES, ranks("mpiio", 4), MPI,
        changes=True),
)

GROUPS = {"system": SYSTEM, "tools": TOOLS, "languages": LANGUAGES, "unseen": UNSEEN, "databases": DATABASES, "python_formats": PYTHON_FORMATS,
          "learning": LEARNING, "parallel": PARALLEL}

# ---- what they need

BUILDS = {
    "c": ("reader.c", ["cc", "-O2", "-o"]),
    "c static": ("reader.c", ["cc", "-O2", "-static", "-o"]),
    "musl": ("reader.c", ["musl-gcc", "-O2", "-o"]),
    "musl static": ("reader.c", ["musl-gcc", "-O2", "-static", "-o"]),
    "uring": ("uring.c", ["cc", "-O2", "-o"], ["-luring"]),
    "namespace": ("namespace.c", ["cc", "-O2", "-o"], ["-ldl"]),
    "library": ("library.c", ["cc", "-O2", "-shared", "-fPIC", "-o"]),
    "libstdc++": ("streams.cc", ["c++", "-O2", "-o"]),
    "libc++": ("streams.cc", ["clang++", "-O2", "-std=c++17", "-stdlib=libc++", "-o"]),
    "rust": ("reader.rs", ["rustc", "-O", "-o"]),
    "rust static": ("reader.rs", ["rustc", "-O", "-C", "target-feature=+crt-static", "-o"]),
    "go": ("reader.go", ["go", "build", "-o"]),
    "java": ("Reader.java", ["javac", "-d"]),
    "trace": ("trace.c", ["cc", "-O1", "-shared", "-fPIC", "-o"], ["-ldl"]),
    "ranks": ("ranks.c", ["mpicc", "-O2", "-o"]),
}


@functools.cache
def build(name):
    """Compiles a program: (its command, why not)."""
    source, command, *libraries = BUILDS[name]
    target = f"{scratch('programs')}/{name.replace(' ', '-')}"
    if not shutil.which(command[0]):
        return None, f"{command[0]} is not installed"
    env = e2e.native_environment(GOCACHE=scratch("go"), GOFLAGS="-mod=mod", GO111MODULE="off", GOPATH=scratch("gopath"))
    code, _, err = e2e.execute([*command, target, f"{HERE}/{source}", *sum(libraries, [])], SLOW * e2e.PATIENCE, env=env)
    if code != 0:
        return None, f"{command[0]} failed: {' '.join(err.split())[:200]}"
    return (("java", "-XX:TieredStopAtLevel=1", "-cp", target, "Reader") if name == "java" else (target,)), ""


def program(name):
    return build(name)[0]


def is_static(command):
    path = shutil.which(command)
    return path and b"statically linked" in e2e.execute(["file", "-L", path])[1]


def why_not(need):
    """Why what a program needs is not there; empty if it is."""
    kind, _, name = need.rpartition(":")
    if kind == "build":
        return build(name)[1]
    if kind == "python":
        code = e2e.execute([PYTHON, "-c", f"import {name}"])[0]
        return "" if code == 0 else f"Python's {name} is not installed"
    if kind == "static":
        return "" if is_static(name) else f"no static {name} is installed"
    if kind == "library":
        return f"{name} is not installed" if e2e.execute(["true"], env={"LD_PRELOAD": name})[2] else ""
    return "" if shutil.which(name) else f"{name} is not installed"


def verified(path):
    """A file that fio wrote, with checksums in it."""
    e2e.execute(["fio", "--name=x", f"--filename={path}/verified", "--rw=write", "--bs=64k", "--ioengine=psync", "--verify=crc32c",
                 "--do_verify=0", "--verify_state_save=0", "--size=1m", "--output=/dev/null"],
                cwd=scratch("work"))


@functools.cache
def dataset(words, source):
    """Fills a dataset's directory; its name."""
    name, *arguments = words.split()
    directory = "-".join(words.split())
    os.mkdir(f"{source}/{directory}")
    (verified if name == "verified" else getattr(datasets, name))(f"{source}/{directory}", *arguments)
    return directory


# ---- the runs


@functools.cache
def pfs():
    source = scratch("source")
    return source, e2e.SlowFs(source, f"{scratch()}/mount", "--cache")


def counters():
    now = pfs()[1].counters()
    return now["open"], now["read_bytes"]


class Outcome:
    """What one run of a program did, and what of it reached the PFS."""

    def __init__(self, command, case, run):
        before = counters()
        code, out, err = run(command(case), seconds=SLOW * e2e.PATIENCE, cwd=scratch("work"))
        self.moved = tuple(after - was for after, was in zip(counters(), before))  # opens and bytes
        self.seen = (code, len(out), hashlib.sha256(out).hexdigest(), err, e2e.written(case.out))
        self.tail = "" if b"\0" in out[-500:] else out[-500:]
        shutil.rmtree(case.out, ignore_errors=True)

    def check(self, native, name):
        return ok(self.seen == native.seen, name, f"got:  {self.seen} {self.tail}", f"want: {native.seen} {native.tail}")


def regular_files(root, marks):
    found = [os.path.join(directory, name) for directory, _, names in os.walk(root) for name in names]
    return [name for name in found if os.path.relpath(name, root) not in marks and not os.path.islink(name)]


@dataclasses.dataclass(frozen=True)
class Runs:
    """What a program did with Monarch."""
    cold: Outcome
    unplaced: tuple  # exit code and message of place.py
    placed: Outcome
    moved: tuple  # opens and bytes of the PFS in all of that
    report: dict

    @property
    def late(self):
        """Whether an open did not wait to the end, as on a machine that has no time for the agent."""
        return self.report["tasks"]["fallback_timeout"] > 0


def run_with_monarch(row, case, files):
    before = counters()
    job = e2e.Job(options([case.root], {"t": (scratch("tier"), "1G")}, *e2e.config(prefetch="off")))
    cold = Outcome(row.command, case, job.run)
    unplaced = job.run(python("place.py", str(e2e.PATIENCE), *files), seconds=2 * e2e.PATIENCE)[::2]
    placed = Outcome(row.command, case, job.run)
    return Runs(cold, unplaced, placed, tuple(after - was for after, was in zip(counters(), before)), job.end())


def check_counters(row, report, files):
    """What Monarch's own counters say: opens by the program beside those of place.py, and changes."""
    if row.placed == "PFS":  # an open for writing counts as a change
        equal(report["opens"], files, f"{row.name}: Monarch counts none of its opens", report)
    else:
        ok(report["opens_tier"] > files, f"{row.name}: Monarch counts its opens of the tier", report)
    equal(report["tasks"]["invalidations"] > 0, bool(row.marks or row.changes), f"{row.name}: what it opens for writing counts",
          report)


def check(row):
    """The three runs of a program; None if it did not run."""
    for need in row.needs:
        if why := why_not(need):
            return skip(row.name, why)
    source, server = pfs()
    case = Case(f"{server.mount}/{dataset(row.data, source)}", f"{scratch('out')}/out")
    # Without Monarch, but with what a sanitizer needs: not every program bears it.
    native = Outcome(row.command, case, functools.partial(e2e.execute, env=e2e.environment()))
    if e2e.SANITIZER and (native.seen[0] != 0 or native.seen[3]):
        return skip(row.name, "it does not bear the sanitizer's runtime")
    if not ok(native.seen[0] == 0 and native.moved > (0, 0), f"{row.name}: natively the PFS sees it", native.seen, native.tail,
              native.moved):
        return None
    files = regular_files(case.root, row.marks)
    size = sum(os.stat(file).st_size for file in files)
    for _ in range(TRIES):
        runs = run_with_monarch(row, case, files)
        if not runs.late or not runs.cold.seen == runs.placed.seen == native.seen:
            break
    cold, placed, moved, report = runs.cold, runs.placed, runs.moved, runs.report
    cold.check(native, f"{row.name}: cold as natively")
    if not equal(runs.unplaced, (0, ""), f"{row.name}: all is placed"):
        return None
    placed.check(native, f"{row.name}: placed as natively")
    by_pfs = [native.moved if source == "PFS" else (0, 0) for source in (row.cold, row.placed)]
    equal(placed.moved, by_pfs[1], f"{row.name}: placed, from the {row.placed}", report)
    if row.cold == "PFS":
        equal(cold.moved, native.moved, f"{row.name}: cold, from the PFS, as natively", report)
    equal(moved, tuple(map(sum, zip((len(files), size), *by_pfs))), f"{row.name}: each file was staged once", report)
    check_counters(row, report, len(files))
    return case


def calls(text):
    """The functions that a column names."""
    return sorted(filter(None, re.sub(r" ?\(.*?\)", "", text).split(", ")))


def trace(row, case):
    """Which functions of the C library a program calls, natively."""
    log = f"{scratch('trace')}/log"
    if os.path.exists(log):
        os.unlink(log)
    e2e.execute(row.command(case), SLOW * e2e.PATIENCE, cwd=scratch("work"),
                env=e2e.environment(LD_PRELOAD=program("trace")[0], TRACE_ROOT=case.root, TRACE_LOG=log))
    shutil.rmtree(case.out, ignore_errors=True)
    lines = e2e.text_in(log).split("\n") if os.path.exists(log) else []
    for kind, column in ("open", row.opens), ("read", row.reads):
        found = sorted({line.split()[1] for line in lines if line.startswith(kind + " ")})
        equal(found, calls(column), f"{row.name}: the calls that {kind}")


def run_group(rows):
    for row in rows:
        begin = time.monotonic()
        case = check(row)
        if case and WHOLE and not e2e.SANITIZER:
            trace(row, case)
        print(f"# {row.name}: {time.monotonic() - begin:.1f} s", flush=True)


def why_not_sanitized(name):
    if e2e.SANITIZER and name in ("learning", "parallel"):
        return "takes too long with a sanitizer"
    if "tsan" in e2e.SANITIZER and name in ("system", "tools", "languages", "unseen"):
        return "programs with threads, which are not built for ThreadSanitizer"
    return ""


def group(name):
    def test():
        if why := why_not_sanitized(name):
            return skip(name, why)
        return run_group(GROUPS[name])
    test.__name__ = name
    return test


if __name__ == "__main__":
    if sys.argv[1:] == ["--table"]:
        print("\n".join(row.line(name) for name, rows in GROUPS.items() for row in rows))
        sys.exit()
    e2e.skip_all_if(e2e.why_no_slowfs())
    e2e.main(*[group(name) for name in GROUPS])
