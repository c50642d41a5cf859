#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Faults: of the PFS, the tiers, the agent, the tasks, the clock, descriptors; and what must hold in spite of them.

Each is injected in mid-run. Bytes are right, waits are bounded (asserted with a margin of 10), the counters say what
happened, nothing is left. MONARCH_TEST_ALL=1 asks for more rounds, MONARCH_TEST_SEED=N for those of an earlier run.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
import random
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import BUILD, contains, equal, memory, monarch_run, ok, options, read_all, scratch, skip, wait_until

ALL = os.environ.get("MONARCH_TEST_ALL") == "1"
SEED = int(os.environ.get("MONARCH_TEST_SEED") or random.SystemRandom().getrandbits(32))
MARGIN = 30
MIB = 1 << 20
ROOT = os.geteuid() == 0
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
PYTHON = "/usr/bin/python3"

# Reads files by pread in pieces, back to front, and prints their checksums.
PREAD = """
import hashlib, os, sys
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    size, piece, parts = os.fstat(fd).st_size, 1 << 18, {}
    for at in range((size - 1) // piece * piece, -1, -piece):
        parts[at] = b''
        while len(parts[at]) < min(piece, size - at):
            got = os.pread(fd, min(piece, size - at) - len(parts[at]), at + len(parts[at]))
            if not got:
                sys.exit('short')
            parts[at] += got
    print(hashlib.sha256(b''.join(parts[at] for at in sorted(parts))).hexdigest())
"""


def config(**keys):
    """The option for a configuration file with these keys of [agent]."""
    path = f"{scratch('config')}/{random.getrandbits(64):x}.conf"
    with open(path, "w", encoding="utf-8") as out:
        out.write("[agent]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()))
    return ["--config", path]


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as out:
        out.write(data)


def noise(bytes_, seed=1):
    return random.Random(seed).randbytes(bytes_)


def sums(*paths):
    return "".join(e2e.sum_of(path) + "\n" for path in paths).encode()


@contextlib.contextmanager
def slow(source, *words):
    """The directory as a PFS; a test without one is skipped by its caller."""
    pfs = e2e.SlowFs(source, f"{source}.pfs", *words)
    try:
        yield pfs
    finally:
        pfs.command("set match", *[f"set {key} 0" for key in ("hang", "eio-every", "estale-every", "short-every")],
                    "release")
        pfs.close()


def at_rest(pfs):
    """Waits until nothing has reached the PFS for a while."""
    seen = [pfs.counters(), time.monotonic()]

    def quiet():
        now = pfs.counters()
        if now != seen[0]:
            seen[:] = now, time.monotonic()
        return time.monotonic() - seen[1] > 0.3

    ok(wait_until(quiet), "the PFS comes to rest", seen[0])


def nothing_left(job, name, *tiers):
    ok(wait_until(lambda: not e2e.traces(job.pid, *tiers), 5), f"{name}: nothing is left",
       e2e.traces(job.pid, *tiers))


# ---- the PFS


def pfs_errors():
    """EIO, ESTALE and short reads that strike the agent, in a whole file's copy and in a chunk's."""
    if why := e2e.why_no_slowfs():
        return skip("errors of the PFS", why)
    source, tier = scratch("errors"), scratch("tier.errors")
    small, large = f"{source}/small", f"{source}/large"
    write(small, noise(100000))
    write(large, noise(5 * MIB + 123))
    native = sums(small, large)
    with slow(source) as pfs:
        words = [*options([pfs.mount], {"t": (tier, "1G")}), *config(prefetch="off", stage_wait_max="1M")]
        names = [f"{pfs.mount}/small", f"{pfs.mount}/large"]
        for fault, counter, reason in (("eio-every", "source_errors", "fallback_pass"),
                                       ("estale-every", "dropped_files", "fallback_dropped")):
            job, out = e2e.Job(words), b""
            for name in names:
                pfs.command("set fault-limit 1", f"set {fault} 1", "reset")
                code, text, err = job.run([PYTHON, "-c", PREAD, name])
                out += text
                equal((code, pfs.counters()["faults"]), (0, 1), f"{fault}: it struck once, not the program", err)
            equal(out, native, f"{fault}: the bytes are right")
            equal(job.run([PYTHON, "-c", PREAD, *names])[1], native, f"{fault}: the next time, too")
            report = job.end()
            # Of the large one, the demanded chunk is read once; one of several in flight is read again.
            given_up = report["agent"][counter]
            equal((given_up >= 1, given_up + report["agent"]["staged_files"]), (True, 2), f"{fault}: given up", report)
            ok(report["tasks"][reason] >= given_up and report["tasks"]["chunk_fallbacks"] >= given_up - 1,
               f"{fault}: counted", report)
            nothing_left(job, fault, tier)
            # For good: the program sees what it sees natively.
            pfs.command("set fault-limit 0")
            for name in names:
                want = e2e.execute([PYTHON, "-c", PREAD, name])
                got = monarch_run(words, [PYTHON, "-c", PREAD, name])
                equal((got[0], got[1], got[2].splitlines()[-1:]), (want[0], want[1], want[2].splitlines()[-1:]),
                      f"{fault} for ever: the program's error is the PFS's")
            pfs.command(f"set {fault} 0")
        pfs.command("set short-every 3")
        code, out, err, report = monarch_run(words, [PYTHON, "-c", PREAD, *names], report=True)
        equal((code, out), (0, native), "short reads: the bytes are right", err)
        equal(report["tasks"]["read_bytes_pfs"], 0, "short reads: all came from the tier")
    return None


def all_threads_hang():
    """As many requests hang as there are copy threads: opens wait in vain once, not each."""
    if why := e2e.why_no_slowfs():
        return skip("all copy threads hang", why)
    source, tier, threads, others = scratch("hang"), scratch("tier.hang"), 2, 40
    for i in range(threads):
        write(f"{source}/hang{i}", noise(1000, i))
    for i in range(others):
        write(f"{source}/other/{i}", noise(1000, 100 + i))
    native = e2e.execute(read_all(source))[1]
    with slow(source, "--hang", "forever", "--match", "hang", "--fault-limit", str(threads)) as pfs:
        job = e2e.Job([*options([pfs.mount], {"t": (tier, "1G")}), *config(prefetch="off", threads=threads)])
        first = [e2e.start(["cat", f"{pfs.mount}/hang{i}"], env=job.env, **PIPES) for i in range(threads)]
        ok(wait_until(lambda: pfs.counters()["hanging"] == threads), "all threads hang")
        begin = time.monotonic()
        code, out, err = job.run(read_all(pfs.mount))
        took = time.monotonic() - begin
        equal((code, out.replace(pfs.mount.encode(), source.encode())), (0, native), "all threads hang: right bytes",
              err)
        equal([e2e.finish(reader)[:2] for reader in first], [(0, noise(1000, i)) for i in range(threads)],
              "all threads hang: who waits for them, too")
        equal(pfs.counters()["hanging"], threads, "while they hang")
        # One in vain each 5 s, of a second: without that, each of the 42 would wait.
        ok(took < MARGIN * 2, f"all threads hang: {others + threads} opens are soon done", f"{took:.1f} s")
        pfs.command("set hang 0", "release")
        ok(wait_until(lambda: tier_of(job, f"{pfs.mount}/other/1", tier), MARGIN * 5),
           "when the PFS answers again, files are placed")
        report = job.end()
        ok(1 <= report["tasks"]["fallback_timeout"] and report["tasks"]["wait_ns"] < MARGIN * 2 * 10**9,
           "all threads hang: waits are counted", report["tasks"])
        nothing_left(job, "all threads hang", tier)
    return None


WHERE = e2e.OPENED_AS + "import os, sys; print(opened_as(os.open(sys.argv[1], os.O_RDONLY)))"


def tier_of(job, path, tier):
    """Whether an open of `path` in the job gets a copy on `tier`."""
    code, out, err = job.run([PYTHON, "-c", WHERE, path])
    if code != 0:
        raise RuntimeError(err)
    return out.decode().startswith(tier + "/")


CHANGES = {
    "shrinks": lambda path: os.truncate(path, 1000),
    "grows": lambda path: append(path, b"more" * 500),
    "is replaced": lambda path: replace(path, noise(2 * MIB, 77)),
    "is replaced by one of its size": lambda path: replace(path, noise(os.path.getsize(path), 78)),
    "vanishes": os.unlink,
}


def append(path, data):
    with open(path, "ab") as out:
        out.write(data)


def replace(path, data):
    write(path + ".new", data)
    os.rename(path + ".new", path)


def changed_while_copied():
    if why := e2e.why_no_slowfs():
        return skip("files that change while they are copied", why)
    source, tier = scratch("changing"), scratch("tier.changing")
    for i in range(len(CHANGES)):
        write(f"{source}/{i}", noise(3 * MIB, i))
    with slow(source, "--read-us", "500000") as pfs:
        # As by another node: of changes on this one the kernel tells.
        job = e2e.Job([*options([pfs.mount], {"t": (tier, "1G")}), *config(prefetch="off", watch_directories="0")])
        paths = [f"{pfs.mount}/{i}" for i in range(len(CHANGES))]
        readers = [e2e.start(["cat", path], env=job.env, **PIPES) for path in paths]
        ok(wait_until(lambda: pfs.counters()["read"] >= len(paths)), "all are being copied")
        for path, change in zip(paths, CHANGES.values()):
            change(path)
        pfs.command("set read-us 0")
        results = [e2e.finish(reader) for reader in readers]
        for name, path, (code, out, _) in zip(CHANGES, paths, results):
            if os.path.exists(path):
                equal((code, hashlib.sha256(out).hexdigest()), (0, e2e.sum_of(path)),
                      f"a file that {name} while it is copied: the program gets the new bytes")
            else:
                equal((code, out), (1, b""), f"a file that {name} while it is copied: the program is told")
        equal(job.run(["cat", paths[1]])[1], open(paths[1], "rb").read(), "and the next one")
        report = job.end()
        equal((report["agent"]["dropped_files"], report["opens_tier"], report["tiers"][0]["placed_bytes"]),
              (len(CHANGES), 0, 0), "files that change while they are copied: all were dropped", report)
        ok(report["tasks"]["fallback_dropped"] >= len(CHANGES), "and it is counted", report["tasks"])
        nothing_left(job, "files that change", tier)
    return None


# Reads from one descriptor, a step for each line on standard input.
STEPS = """
import hashlib, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
for line in sys.stdin:
    out = []
    for at in line.split():
        got = os.pread(fd, 100000, int(at))
        out.append(f'{len(got)} {hashlib.sha256(got).hexdigest()}')
    print('; '.join(out), flush=True)
"""


def changed_between_chunks():
    """The descriptor goes on as natively: with what its own file, also a replaced one, now holds."""
    if why := e2e.why_no_slowfs():
        return skip("files that change between their chunks", why)
    source, tier = scratch("chunks"), scratch("tier.chunks")
    for i in range(len(CHANGES)):
        write(f"{source}/{i}", noise(24 * MIB, i))
    with slow(source) as pfs:
        job = e2e.Job([*options([pfs.mount], {"t": (tier, "1G")}),
                       *config(prefetch="off", threads=3, stage_wait_max="64K", pfs_bandwidth="8M")])
        paths = [f"{pfs.mount}/{i}" for i in range(len(CHANGES))]
        native = [e2e.start([PYTHON, "-c", STEPS, path], **PIPES) for path in paths]
        staged = [e2e.start([PYTHON, "-c", STEPS, path], env=job.env, **PIPES) for path in paths]

        def step(line):
            for process in native + staged:
                process.stdin.write(line)
                process.stdin.flush()
            return [[process.stdout.readline() for process in group] for group in (native, staged)]

        want, got = step(f"0 {MIB + 5}\n".encode())
        equal(got, want, "before: the bytes are right")
        for path, change in zip(paths, CHANGES.values()):
            change(path)
        time.sleep(1.1)  # the kernel knows old sizes and times for a second
        wants, gots = zip(*[step(f"0 {23 * MIB} {5 * MIB + 1} {MIB + 5}\n".encode()) for _ in range(2)])
        for i, name in enumerate(CHANGES):
            equal([got[i] for got in gots], [want[i] for want in wants],
                  f"a file that {name} between its chunks: the same as natively")

        def held():
            seen = pfs.counters()
            return seen["open"] + seen["create"] - seen["release"]

        ok(wait_until(lambda: held() == len(native + staged)), "the agent has closed them", pfs.counters())
        for process in native + staged:
            e2e.finish(process, text=b"")
        for name, path in zip(CHANGES, paths):
            if os.path.exists(path):
                equal(job.run([PYTHON, "-c", PREAD, path])[1], sums(path),
                      f"a file that {name} between its chunks: a new open gets the new bytes")
        report = job.end()
        equal(report["agent"]["dropped_files"], len(CHANGES), "files that change between chunks: all were dropped",
              report)
        nothing_left(job, "files that change between chunks", tier)
    return None


# ---- tiers


class Disk:
    """A tier of its own that can be taken away: a tmpfs, or a Btrfs with a quota."""

    def __init__(self, name, quota=False):
        self.mount = self.path = scratch(f"tier.{name}")
        if quota:
            image = scratch(f"image.{name}") + "/btrfs"
            with open(image, "wb") as file:
                file.truncate(256 * MIB)
            self._call("mkfs.btrfs", "-q", image)
            self._call("mount", "-o", "loop", image, self.mount)
            self._call("btrfs", "quota", "enable", self.mount)
            self.path = f"{self.mount}/tier"
            self._call("btrfs", "subvolume", "create", self.path)
            self.group = "0/" + e2e.execute(["btrfs", "inspect-internal", "rootid", self.path])[1].decode().strip()
        else:
            self._call("mount", "-t", "tmpfs", "-o", "size=64M", "monarch-test", self.mount)
        self.rival = f"{self.path}/rival"

    @staticmethod
    def _call(*command):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def read_only(self):
        ok(wait_until(lambda: e2e.execute(["mount", "-o", "remount,ro", self.path])[0] == 0), "remounted")

    def read_write(self):
        self._call("mount", "-o", "remount,rw", self.path)

    def fill(self):
        with open(self.rival, "wb") as rival, contextlib.suppress(OSError):
            while rival.write(bytes(MIB)):
                rival.flush()

    def empty(self):
        os.unlink(self.rival)

    def limit(self):
        """No more than what is there by now."""
        self._call("sync", "-f", self.path)
        self._call("btrfs", "qgroup", "limit", "1M", self.group, self.mount)
        try:
            with open(self.rival, "wb") as rival:
                rival.write(bytes(2 * MIB))
                os.fsync(rival.fileno())
        except OSError as error:
            equal(error.errno, errno.EDQUOT, "a tier over its quota: that is what it says")
        else:
            ok(False, "a tier over its quota: it takes nothing more")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.rival)

    def unlimit(self):
        self._call("btrfs", "qgroup", "limit", "none", self.group, self.mount)

    def close(self):
        self._call("umount", self.mount)


def why_no_btrfs():
    with open("/proc/filesystems", encoding="ascii") as known:
        if "btrfs" not in known.read().split():
            return "this kernel has no Btrfs"
    if not shutil.which("mkfs.btrfs"):
        return "Btrfs needs btrfs-progs (dev/deps)"
    return "" if e2e.execute(["losetup", "-f"])[0] == 0 else "no loop device is to be had"


def tiers_recover():
    """A rival fills a tier, a tier turns read-only, its quota is used up: the rest is the PFS's until the tier
    takes files again."""
    if not ROOT:
        return skip("tiers that recover", "mounting needs root")
    dataset, files, size = scratch("recover"), 30, MIB
    for i in range(files):
        write(f"{dataset}/{i:02}", noise(size, i))
    paths = [f"{dataset}/{i:02}" for i in range(files)]
    native = e2e.execute(read_all(dataset))[1]
    faults = {"filled by a rival": (Disk.fill, Disk.empty), "read-only": (Disk.read_only, Disk.read_write),
              "over its quota": (Disk.limit, Disk.unlimit)}
    if why_no_btrfs():
        skip("a tier over its quota", why_no_btrfs())
        del faults["over its quota"]
    cases = {}
    for name in faults:
        tier = Disk(name.replace(" ", "-"), name == "over its quota")
        cases[name] = tier, e2e.Job([*options([dataset], {"t": (tier.path, "60M")}), *config(prefetch="off")])
    for name, (tier, job) in cases.items():
        job.run(["cat", *paths[:10]])
        faults[name][0](tier)
        begin = time.monotonic()
        equal(job.run(read_all(dataset))[:2], (0, native), f"a tier {name}: the bytes are right")
        ok(time.monotonic() - begin < MARGIN, f"a tier {name}: nothing waits for it")
    since = time.monotonic()
    for name, (tier, job) in cases.items():
        faults[name][1](tier)
    yield
    time.sleep(max(0.0, since + 10.5 - time.monotonic()))
    for name, (tier, job) in cases.items():
        ok(wait_until(lambda at=tier, of=job: tier_of(of, paths[-1], at.path)), f"a tier {name}: it takes files again")
        equal(job.run(read_all(dataset))[:2], (0, native), f"a tier {name}: the bytes are right afterwards")
        report = job.end()
        equal((report["agent"]["staged_files"], report["tiers"][0]["placed_bytes"]), (files, files * size),
              f"a tier {name}: all is placed in the end", report)
        ok(report["tasks"]["fallback_no_fit"] >= 20, f"a tier {name}: what it did not take is counted", report["tasks"])
        ok(report["agent"]["no_fit_files" if name == "filled by a rival" else "tier_errors"] >= 1,
           f"a tier {name}: and why", report["agent"])
        nothing_left(job, f"a tier {name}", tier.path)
        tier.close()


def tier_removed():
    dataset, tier = scratch("removed"), scratch("tier.removed")
    e2e.make_tree(dataset, 40)
    write(f"{dataset}/large", noise(8 * MIB))
    native = e2e.execute(read_all(dataset))[1]
    job = e2e.Job([*options([dataset], {"t": (tier, "1G")}), *config(prefetch="off", stage_wait_max="1M")])
    half = e2e.execute(["sh", "-c", 'find "$1" -type f | sort | head -20', "sh", dataset])[1].decode().split()
    job.run(["cat", *half])
    held = e2e.start([PYTHON, "-c", STEPS, f"{dataset}/large"], env=job.env, **PIPES)
    plain = e2e.start([PYTHON, "-c", STEPS, f"{dataset}/large"], **PIPES)
    out = []
    for line in (b"0 3000000\n", b"1 3000001 7000000\n"):
        for process in (held, plain):
            process.stdin.write(line)
            process.stdin.flush()
        out.append([held.stdout.readline(), plain.stdout.readline()])
        subprocess.run(["rm", "-rf", *[f"{tier}/{name}" for name in os.listdir(tier)]], check=True)
    equal([got for got, _ in out], [want for _, want in out], "a tier removed: chunks of an open file are right")
    for _ in range(2):
        equal(job.run(read_all(dataset))[:2], (0, native), "a tier removed: the bytes are right")
    for process in (held, plain):
        e2e.finish(process, text=b"")
    report = job.end()
    ok(report["tasks"]["fallback_tier_error"] >= 20 and report["agent"]["tier_errors"] >= 1,
       "a tier removed: it is counted", report)
    nothing_left(job, "a tier removed", tier)


# ---- the agent and the tasks


def streams_without_agent():
    """What a stream reads inside libc counts by the file's size, also where the agent never looked at the file."""
    source = scratch("streams")
    e2e.make_tree(source, 20)
    names = [os.path.join(top, name) for top, _, found in os.walk(source) for name in found]
    job = e2e.Job([*options([source], {"t": (scratch("tier.streams"), "1G")}), *config(prefetch="off")])
    os.kill(job.agent(), 9)
    env = {name.decode(): value.decode() for name, value in job.env.items()}
    equal(subprocess.run(["md5sum", *names], env=env, stdout=subprocess.DEVNULL, check=False).returncode, 0, "streams without an agent: they are read")
    tasks = job.end()["tasks"]
    equal((tasks["opens_pfs"], tasks["read_bytes_pfs"], tasks["read_calls_pfs"]), (20, sum(map(os.path.getsize, names)), 20), "streams without an agent: their bytes count", tasks)


def agent_killed():
    """At random points of a run of many threads that read, map and pread."""
    if why := e2e.why_no_slowfs():
        return skip("the agent killed", why)
    source, tier = scratch("killed"), scratch("tier.killed")
    e2e.make_tree(source, 100)
    for i in range(4):
        write(f"{source}/large{i}", noise(3 * MIB, i))
    numbers, rounds, served = random.Random(SEED), 50 if ALL else 10, 0
    with slow(source, "--open-us", "3000", "--cache") as pfs:
        reader = [f"{BUILD}/bench/io_reader", pfs.mount, "--threads", "4", "--checksum"]
        want = {access: json.loads(e2e.execute([*reader, "--epochs", "1", "--access", access])[1])["checksum"]
                for access in ("read", "pread", "mmap")}
        results = []
        for i in range(rounds):
            words = [*options([pfs.mount], {"t": (tier, "1G")}), *config(stage_wait_max=numbers.choice(["1M", "64M"]))]
            access = numbers.choice(list(want))
            command = [*reader, "--epochs", "3", "--access", access]
            # Every other one early: all may be placed long before the last of them.
            file, delay = f"{scratch()}/killed.{i}.json", numbers.uniform(0, 0.4 if i % 2 else 0.02)
            process = e2e.start([f"{BUILD}/monarchctl", "run", *words, "--report", file, "--", "sh", "-c",
                                 'echo up; exec "$@"', "sh", *command], env=e2e.environment(), **PIPES)
            process.stdout.readline()
            agents = e2e.children(process.pid, "monarchd")  # none: a slow machine has seen the end of it
            time.sleep(delay)
            with contextlib.suppress(ProcessLookupError):
                for agent in agents:
                    os.kill(agent, 9)
            begin = time.monotonic()
            code, out, err = e2e.finish(process)
            epochs = [json.loads(line) for line in out.splitlines()]
            with open(file, encoding="utf-8") as stream:
                served += 0 < json.load(stream)["tasks"]["fallback_no_agent"]
            good = (code == 0 and {(e["checksum"], e["failures"]) for e in epochs} == {(want[access], 0)} and len(epochs) == 3
                    and time.monotonic() - begin < MARGIN * 2 and not e2e.traces(process.pid, tier))
            if not good:
                results.append((i, delay, access, code, epochs, err, e2e.traces(process.pid, tier)))
        equal(results, [], f"the agent killed at {rounds} random points: right bytes, at once, nothing left (seed {SEED})")
        ok(served > 0, "the agent killed: some of the runs were hit before their end")
    return None


def agent_without_memory():
    """The agent gets no more memory, while tasks open what takes some of it: each directory is kept in mind."""
    source, tier, log = scratch("no_memory"), scratch("tier.no_memory"), f"{scratch()}/no_memory.log"
    for i in range(4000):
        write(f"{source}/a directory of a long name, number {i:04}/file", noise(100, i))
    reads = f"find {source} -type f | sort | tr '\\n' '\\0' | xargs -0 cat | sha256sum"
    want = e2e.execute(["sh", "-c", reads])[1]
    words = [*options([source], {"t": (tier, "1G")}), *config(log=log, prefetch="off", metadata="pass")]
    process = e2e.start([f"{BUILD}/monarchctl", "run", *words, "--", "sh", "-c", f"echo up; read begin; {reads}"],
                        env=e2e.environment(), **PIPES)
    up = process.stdout.readline()
    agents = e2e.children(process.pid, "monarchd")
    for agent in agents:
        resource.prlimit(agent, resource.RLIMIT_DATA, (0, 0))
    code, out, err = e2e.finish(process, text=b"begin\n")
    equal((up, len(agents), code, out, e2e.traces(process.pid, tier)), (b"up\n", 1, 0, want, []),
          "no memory for the agent: the command reads right bytes to its end, and nothing is left")
    with open(log, encoding="utf-8") as stream:
        text = stream.read()
    # libnuma says so itself, where it is the first one that has none.
    ok("no memory is left: the agent ends" in text or "Out of memory" in err, "no memory for the agent: it says so as it ends", err, text)


def tasks_killed():
    """More of them than the ring has slots, anywhere between a request and its answer."""
    if why := e2e.why_no_slowfs():
        return skip("tasks killed", why)
    source, tier, kills, wave = scratch("tasks"), scratch("tier.tasks"), 320 if ALL else 160, 16
    for i in range(kills):
        write(f"{source}/{i}", noise(2000, i))
    native = e2e.execute(read_all(source))[1]
    numbers = random.Random(SEED)
    with slow(source, "--open-us", "10000") as pfs:
        job = e2e.Job([*options([pfs.mount], {"t": (tier, "1G")}), *config(prefetch="off", threads=4)])
        for first in range(0, kills, wave):
            readers = [subprocess.Popen(["cat", f"{pfs.mount}/{i}"], env=job.env, stdout=subprocess.DEVNULL)
                       for i in range(first, first + wave)]
            for reader in numbers.sample(readers, wave):
                time.sleep(numbers.uniform(0, 0.004))
                reader.kill()
            for reader in readers:
                reader.wait()
        code, out, err = job.run(read_all(pfs.mount))
        equal((code, out.replace(pfs.mount.encode(), source.encode())), (0, native),
              f"{kills} tasks killed: the bytes are right (seed {SEED})", err)
        seen = pfs.counters()
        report = job.end()
        equal((report["agent"]["staged_files"], report["tasks"]["fallback_ring_full"],
               report["tasks"]["fallback_timeout"]), (kills, 0, 0), f"{kills} tasks killed: all is served", report)
        equal(seen["open"], kills, f"{kills} tasks killed: each file was opened once")
        ok(report["agent"]["requests"] > wave, "and some had asked", report["agent"])
        nothing_left(job, "tasks killed", tier)
    return None


def descriptors_short():
    """In the agent: what it cannot open is put off. In tasks: they have as many as natively."""
    dataset, tier = scratch("limit"), scratch("tier.limit")
    e2e.make_tree(dataset, 30)
    write(f"{dataset}/large", noise(3 * MIB))
    native = e2e.execute(read_all(dataset))[1]
    job = e2e.Job([*options([dataset], {"t": (tier, "1G")}), *config(prefetch="off", stage_wait_max="1M")])
    agent = job.agent()
    soft, hard = resource.prlimit(agent, resource.RLIMIT_NOFILE)
    equal(soft, hard, "the agent raises its limit of descriptors")
    job.run(["cat", f"{dataset}/0000.bin"])  # the catalog begins with the first file
    resource.prlimit(agent, resource.RLIMIT_NOFILE, (3, hard))  # no new one can be had
    begin = time.monotonic()
    equal(job.run(read_all(dataset))[:2], (0, native), "an agent without descriptors: the bytes are right")
    equal(job.run([PYTHON, "-c", PREAD, f"{dataset}/large"])[1], sums(f"{dataset}/large"), "and those of chunks")
    ok(time.monotonic() - begin < MARGIN * 2, "an agent without descriptors: nothing waits for it")
    resource.prlimit(agent, resource.RLIMIT_NOFILE, (hard, hard))
    yield
    ok(wait_until(lambda: tier_of(job, f"{dataset}/0004.bin", tier)), "with descriptors again: files are placed")
    equal(job.run(read_all(dataset))[:2], (0, native), "with descriptors again: the bytes are right")
    want = e2e.execute(["sh", "-c", 'ulimit -n 16; exec "$@"', "sh", *read_all(dataset)])
    equal(job.run(["sh", "-c", 'ulimit -n 16; exec "$@"', "sh", *read_all(dataset)])[:2], want[:2], "ulimit -n 16")
    script = ("import os, sys\nfds = []\ntry:\n while True: fds.append(os.open(sys.argv[1], os.O_RDONLY))\n"
              "except OSError as e:\n print(len(fds), fds[-1], e.errno, len(os.read(fds[-1], 1 << 20)))")
    command = ["sh", "-c", 'ulimit -n 16; exec "$@"', "sh", PYTHON, "-c", script]
    for name in ("0000.bin", "large"):
        equal(job.run([*command, f"{dataset}/{name}"])[:2], e2e.execute([*command, f"{dataset}/{name}"])[:2],
              f"a task has as many descriptors as natively: {name}")
    report = job.end()
    ok(report["agent"]["put_off_files"] >= 30, "what was put off is counted", report["agent"])
    equal((report["agent"]["source_errors"], report["agent"]["tier_errors"], report["agent"]["staged_files"] >= 30),
          (0, 0, True), "and was no error", report["agent"])
    nothing_left(job, "descriptors short", tier)


def limits():
    """Of processes and of the size of files: the agent goes on with what it has."""
    before = e2e.NOBODY if ROOT else []
    if why := before and e2e.why_not_nobody():
        return skip("limits of the agent", why)
    dataset, tier, reports = scratch("limits"), scratch("tier.limits"), scratch("limits.reports")
    e2e.make_tree(dataset, 20)
    write(f"{dataset}/large", noise(3 * MIB))
    os.chmod(tier, 0o777)
    os.chmod(reports, 0o777)
    want = e2e.execute(read_all(dataset))[1]
    words = [*options([dataset], {"t": (tier, "1G")}), *config(prefetch="off")]
    # By then the agent has its copy threads; the one of its write-back is made with the first copy.
    for what, limit, placed in (("no more processes", "--nproc=1:1", 21), ("files of 2 MB", "--fsize=2000000", 20)):
        script = (f'agent=$(pgrep -P $PPID -x monarchd); prlimit {limit} -p "$agent" || exit 3; "$@" && '
                  'grep -q "^State:.[RSD]" "/proc/$agent/status"')
        file = f"{reports}/{placed}"
        code, out, err = monarch_run([*words, "--report", file], ["sh", "-c", script, "sh", *read_all(dataset)],
                                     before=before)
        equal((code, out), (0, want), f"{what}: the agent lives, and the bytes are right", err)
        with open(file, encoding="utf-8") as stream:
            agent = json.load(stream)["agent"]
        equal(agent["staged_files"], placed, f"{what}: what can be placed is", agent)
    return equal(os.listdir(tier), [], "limits: nothing is left")


def absent():
    """Many names that are not there: few of them get to the agent, and what is there still is staged."""
    dataset, tier = scratch("absent"), scratch("tier.absent")
    e2e.make_tree(dataset, 20)
    job = e2e.Job([*options([dataset], {"t": (tier, "1G")}), *config(prefetch="off")])
    script = ("import os, sys\nmissed = 0\nfor i in range(3000):\n try: os.open(f'{sys.argv[1]}/cache/{i:040x}', 0)\n"
              " except FileNotFoundError: missed += 1\nprint(missed)")
    equal(job.run([PYTHON, "-c", script, dataset])[:2], (0, b"3000\n"), "names that are not there: ENOENT")
    equal(job.run(read_all(dataset))[:2], (0, e2e.execute(read_all(dataset))[1]), "files beside them: the bytes are right")
    report = job.end()
    ok(report["agent"]["requests"] < 300, "names that are not there: the agent is not asked for each", report)
    equal(report["agent"]["staged_files"], 20, "names that are not there: what is there is staged", report)
    nothing_left(job, "absent names", tier)


class Faked(e2e.Job):
    """A job whose agent and tasks go by the clock in a file. The agent keeps no LD_PRELOAD, so it is given one."""

    def __init__(self, library, clock, words):
        parts = scratch("faked")
        shutil.copy(f"{BUILD}/monarchctl", parts)
        os.symlink(f"{BUILD}/libmonarch_preload.so", f"{parts}/libmonarch_preload.so")
        write(f"{parts}/monarchd", f'#!/bin/sh\nLD_PRELOAD={library} exec {BUILD}/monarchd "$@"\n'.encode())
        os.chmod(f"{parts}/monarchd", 0o755)
        self.program = f"{parts}/monarchctl"
        super().__init__(words, LD_PRELOAD=library, FAKETIME_TIMESTAMP_FILE=clock, FAKETIME_NO_CACHE="1",
                         FAKETIME_DONT_FAKE_MONOTONIC="1", NO_FAKE_STAT="1")


def clock_jumps():
    library = e2e.execute(["sh", "-c", "ls /usr/lib/*/faketime/libfaketimeMT.so.1"])[1].decode().strip()
    if why := e2e.why_no_slowfs() or ("" if library else "no libfaketime") or (e2e.SANITIZER and "sanitizer"):
        return skip("clock jumps", why)
    source, tier, files = scratch("clock"), scratch("tier.clock"), 60
    e2e.make_tree(source, files)
    native = e2e.execute(read_all(source))[1]
    clock = f"{scratch()}/clock.rc"
    write(clock, b"+0\n")
    with slow(source, "--open-us", "20000") as pfs:
        before = set(glob.glob("/dev/shm/*faketime*"))
        job = Faked(library, clock, [*options([pfs.mount], {"t": (tier, "1G")}), *config(prefetch="off", threads=1)])
        with open(f"/proc/{job.agent()}/maps", encoding="utf-8") as maps:
            contains(maps.read(), ["libfaketime"], "the clock of the agent can be moved")
        reader = e2e.start(read_all(pfs.mount), env=job.env, **PIPES)
        begin = time.monotonic()
        for jump, opens in ((b"+90000000\n", 10), (b"-90000000\n", 25), (b"+3\n", 40)):
            ok(wait_until(lambda n=opens: pfs.counters()["open"] >= n), "in mid-run")
            write(clock, jump)
        code, out, err = e2e.finish(reader)
        took = time.monotonic() - begin
        equal((code, out.replace(pfs.mount.encode(), source.encode())), (0, native), "the clock jumps: right bytes", err)
        ok(took < MARGIN * (files * 0.02 + 1), "the clock jumps: no wait is longer", f"{took:.1f} s")
        report = job.end()
        equal((report["opens_tier"], report["tasks"]["fallback_timeout"], report["agent"]["staged_files"]),
              (files, 0, files), "the clock jumps: all opens are the tier's", report)
        nothing_left(job, "the clock jumps", tier)
        for path in set(glob.glob("/dev/shm/*faketime*")) - before:  # libfaketime leaves those of what it has faked
            if not os.path.exists(f"/proc/{path.rpartition('_')[2]}"):
                os.unlink(path)
    return None


# ---- what must hold without faults, too


def changed_by_others():
    """By somebody who does not run under Monarch, after it was placed."""
    for consistency in "open", "job":
        dataset, tier = scratch(f"others.{consistency}"), scratch(f"tier.others.{consistency}")
        names = ["changed", "alike", "gone", "same", "in place"]
        for i, name in enumerate(names):
            write(f"{dataset}/{name}", noise(5000, i))
        job = e2e.Job([*options([dataset], {"t": (tier, "1G")}), *config(consistency=consistency, watch_directories="0")])
        cat = lambda name, of=job, at=dataset: of.run(["cat", f"{at}/{name}"])[:2]  # noqa: E731
        equal([cat(name) for name in names], [(0, noise(5000, i)) for i in range(5)], f"{consistency}: before")
        append(f"{dataset}/changed", b"more")
        st = os.stat(f"{dataset}/alike")
        replace(f"{dataset}/alike", noise(5000, 9))
        os.utime(f"{dataset}/alike", ns=(st.st_atime_ns, st.st_mtime_ns))
        st = os.stat(f"{dataset}/in place")
        with open(f"{dataset}/in place", "r+b") as file:
            file.write(noise(5000, 8))
        os.utime(f"{dataset}/in place", ns=(st.st_atime_ns, st.st_mtime_ns))
        os.unlink(f"{dataset}/gone")
        now = {"changed": (0, noise(5000, 0) + b"more"), "alike": (0, noise(5000, 9)), "gone": (1, b""),
               "same": (0, noise(5000, 3)), "in place": (0, noise(5000, 8))}
        old = {name: (0, noise(5000, i)) for i, name in enumerate(names)}
        for _ in range(2):
            for name in names:
                equal(cat(name), (now if consistency == "open" else old)[name],
                      f"consistency = {consistency}: {name}: the {'new' if consistency == 'open' else 'old'} bytes")
        report = job.end()
        counted = [report["tasks"][name] for name in ("invalidations", "fallback_dropped", "fallback_invalid")]
        equal((counted, report["opens_tier"]), ([4, 4, 4], 7) if consistency == "open" else ([0, 0, 0], 15),
              f"consistency = {consistency}: it is counted")


def large_changed_by_others():
    """The same of a large file of which a part is kept, and that is read from its chunks."""
    for consistency in "open", "job":
        dataset, tier = scratch(f"others.large.{consistency}"), scratch(f"tier.others.large.{consistency}")
        path, size = f"{dataset}/file", 5 * MIB
        write(path, noise(size, 0))
        keys = {"consistency": consistency, "watch_directories": "0", "stage_wait_max": "64K", "prefetch": "off"}
        job = e2e.Job([*options([dataset], {"t": (tier, "3M")}), *config(**keys)])
        sums = [hashlib.sha256(noise(size, i)).hexdigest().encode() + b"\n" for i in range(2)]
        read = lambda of=job, at=path: of.run([PYTHON, "-c", PREAD, at])[:2]  # noqa: E731
        equal([read() for _ in range(2)], 2 * [(0, sums[0])], f"{consistency}, in chunks: before")
        st = os.stat(path)
        with open(path, "r+b") as file:
            file.write(noise(size, 1))
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
        same = [read() == (0, sums[1]) for _ in range(2)]
        equal(same, 2 * [consistency == "open"], f"consistency = {consistency}, in chunks: the new bytes")
        report = job.end()
        ok(report["tiers"][0]["read_bytes"] > 0, f"{consistency}, in chunks: some were read", report)


def changed_in_one_second():
    """On a PFS whose times are in seconds a change in the second of the copy shows in none of them."""
    if why := e2e.why_no_slowfs():
        return skip("a PFS that tells seconds", why)
    source, tier = scratch("seconds"), scratch("tier.seconds")
    for name in "new", "old":
        write(f"{source}/{name}", noise(5000))
    time.sleep(3.5)
    with slow(source, "--attr-ttl", "0", "--whole-seconds", "1") as pfs:
        job = e2e.Job([*options([pfs.mount], {"t": (tier, "1G")}), *config(consistency="open", prefetch="off", metadata="pass")])
        cat = lambda name: job.run(["cat", f"{pfs.mount}/{name}"])[:2]  # noqa: E731
        for i in range(3):
            time.sleep(1.02 - time.time() % 1)
            for n in 2 * i, 2 * i + 1:
                write(f"{source}/new", noise(5000, n))
                equal(cat("new"), (0, noise(5000, n)), f"a PFS that tells seconds: change {n} is seen")
        equal([cat("old") for _ in range(2)], 2 * [(0, noise(5000))], "a PFS that tells seconds: an older file")
        report = job.end()
        ok(report["opens_tier"] >= 2, "a PFS that tells seconds: older files are the tier's", report)
    return None


def processor_time(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def idle():
    """All is placed and nothing asked for: measured while the other tests run, but for 2 s at least."""
    if why := e2e.why_no_slowfs():
        yield skip("an idle agent", why)
        return
    source, tier, files = scratch("idle"), scratch("tier.idle"), 50
    e2e.make_tree(source, files)
    with slow(source, "--attr-ttl", "86400") as pfs:
        job = e2e.Job(options([pfs.mount], {"t": (tier, "1G")}))
        ok(wait_until(lambda: pfs.counters()["release"] == files), "an idle agent: all is placed")
        at_rest(pfs)
        time.sleep(0.5)
        before, used, begin = pfs.counters(), processor_time(job.agent()), time.monotonic()
        yield
        time.sleep(max(0.0, begin + 2 - time.monotonic()))
        equal(pfs.counters(), before, "an idle agent makes no call on the PFS")
        # Where the kernel samples, a thread that wakes up for a moment may be charged a whole tick: one in 10 s is a thousandth.
        most, ticks = 1 + int(time.monotonic() - begin) // 10, processor_time(job.agent()) - used
        if "tsan" in e2e.SANITIZER:
            skip("an idle agent uses no processor", "ThreadSanitizer has a thread of its own")
        else:
            ok(ticks <= most, "an idle agent uses no processor", f"{ticks} ticks, at most {most}")
        equal(job.end()["agent"]["staged_files"], files, "an idle agent: it had placed all")
        nothing_left(job, "an idle agent", tier)


TOGETHER = """
import hashlib, os, sys
begin_read, begin_write = os.pipe()
for _ in range(16):
    if os.fork() == 0:
        os.close(begin_write)
        os.read(begin_read, 1)
        fd, digest, at = os.open(sys.argv[2], os.O_RDONLY), hashlib.sha256(), 0
        while got := os.pread(fd, 1 << 18, at) if sys.argv[1] == 'pread' else os.read(fd, 1 << 18):
            digest.update(got)
            at += len(got)
        os.write(1, (digest.hexdigest() + '\\n').encode())
        os._exit(0)
os.close(begin_write)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


def once():
    """16 processes open a file that is not placed."""
    if why := e2e.why_no_slowfs():
        return skip("16 processes, one read", why)
    source, tier, size = scratch("once"), scratch("tier.once"), 8 * MIB + 5
    for how in "read", "pread":
        write(f"{source}/{how}", noise(size))
    want = 16 * sums(f"{source}/read")
    with slow(source, "--open-us", "30000", "--read-us", "2000") as pfs:
        for how, keys, opens in (("read", {}, 1), ("pread", {"stage_wait_max": "1M"}, 16 + 2)):
            job = e2e.Job([*options([pfs.mount], {"t": (tier, "1G")}), *config(prefetch="off", **keys)])
            pfs.command("reset")
            code, out, err = job.run([PYTHON, "-c", TOGETHER, how, f"{pfs.mount}/{how}"])
            equal((code, out), (0, want), f"16 processes {how} one file: the bytes are right", err)
            at_rest(pfs)
            seen = pfs.counters()
            equal((seen["open"], seen["read_bytes"]), (opens, size),
                  f"16 processes {how} one file: its bytes are read once")
            report = job.end()
            # A large file is opened to see its size, and again when it is known to be read in chunks.
            equal((report["agent"]["agent_opens_pfs"], report["tasks"]["read_bytes_pfs"]), (1 if how == "read" else 2, 0),
                  f"16 processes {how} one file: counted", report)
    return None


ALL_WHERE = e2e.OPENED_AS + """
import os, sys
for directory, _, names in os.walk(sys.argv[1]):
    for name in names:
        fd = os.open(f'{directory}/{name}', os.O_RDONLY)
        os.read(fd, 1)
        if opened_as(fd).startswith(sys.argv[2] + '/'):
            print(name)
        os.close(fd)
"""


def larger_than_the_tiers():
    if why := e2e.why_no_slowfs():
        return skip("larger than the tiers", why)
    source, tier, files, epochs = scratch("larger"), scratch("tier.larger"), 120, 4
    size = e2e.make_tree(source, files)
    with slow(source) as pfs:
        for prefetch in "on", "off":
            job = e2e.Job([*options([pfs.mount], {"t": (tier, size // 2)}), *config(prefetch=prefetch)])
            job.run([PYTHON, "-c", ALL_WHERE, pfs.mount, tier])
            at_rest(pfs)
            served, opens = [], []
            for _ in range(epochs):
                before = pfs.counters()["open"]
                served.append(sorted(job.run([PYTHON, "-c", ALL_WHERE, pfs.mount, tier])[1].split()))
                opens.append(pfs.counters()["open"] - before)
            ok(files // 4 < len(served[0]) < files, f"prefetch {prefetch}: some are placed", len(served[0]))
            equal(served, epochs * [served[0]], f"prefetch {prefetch}: each epoch is served the same files")
            equal(opens, epochs * [files - len(served[0])], f"prefetch {prefetch}: the rest is opened once, by the task")
            report = job.end()
            ok(report["agent"]["requests"] <= files and report["tasks"]["waits"] <= files,
               f"prefetch {prefetch}: what does not fit is asked for once at most", report)
            ok(report["tasks"]["fallback_no_fit"] >= epochs * (files - len(served[0])), "and counted")
            nothing_left(job, "larger than the tiers", tier)
    return None


CALLS = """
import os, sys
for path in sys.argv[1:]:
    fd, buffer = os.open(path, os.O_RDONLY), bytearray(50000)
    size = os.fstat(fd).st_size
    if size > 1 << 20:
        for at in range(0, size, 100000):
            os.preadv(fd, [buffer, bytearray(50000)], at)
    elif size % 2:
        while os.read(fd, 7000):
            pass
    else:
        for at in range(0, size, 3000):
            os.pread(fd, 3000, at)
    os.close(fd)
"""


def near(got, want):
    return abs(got - want) <= 0.01 * max(got, want)


def traced(log, prefix):
    """Opens, and bytes that reads returned, of files below `prefix`, by strace -f -y."""
    opens = total = 0
    for line in log.splitlines():
        if match := re.search(r"\bopen(?:at)?\(.* = \d+<([^>]*)>$", line):
            opens += match[1].startswith(prefix) and "O_NOFOLLOW" not in line  # the latter: for one chunk
        elif match := re.search(r"\b(?:p?readv?2?|pread64)\(\d+<([^>]*)>.* = (\d+)$", line):
            total += int(match[2]) * match[1].startswith(prefix)
    return opens, total


def counters():
    """Those of the report against strace's and slowfs's."""
    if why := e2e.why_no_slowfs() or (e2e.SANITIZER and "strace under a sanitizer"):
        return skip("counters", why)
    source = scratch("counters")
    e2e.make_tree(source, 150)
    write(f"{source}/large", noise(4 * MIB + 99))
    paths = [f"{d}/{n}" for d, _, names in os.walk(source) for n in names]
    size = sum(os.path.getsize(path) for path in paths)
    with slow(source) as pfs:
        names = [path.replace(source, pfs.mount) for path in paths]
        for what, first in ("all on one tier", size * 2), ("two tiers and the PFS", size // 3):
            tiers = {name: (scratch(f"tier.counters.{name}"), bytes_) for name, bytes_ in
                     (("one", first), ("two", size // 3))}
            job = e2e.Job([*options([pfs.mount], tiers), *config(prefetch="off", stage_wait_max="1M")])
            pfs.command("reset")
            log = f"{scratch()}/strace"
            # strace itself has no library, which would tell it the dataset's names.
            env = dict(job.env)
            command = ["strace", "-f", "-y", "-E", b"LD_PRELOAD=" + env.pop(b"LD_PRELOAD"), "-e",
                       "trace=open,openat,read,pread64,readv,preadv,preadv2", "-o", log]
            code, _, err = e2e.execute([*command, PYTHON, "-c", CALLS * 2, *names], env=env)
            equal(code, 0, f"{what}: the program ran", err)
            at_rest(pfs)
            seen, report = pfs.counters(), job.end()
            with open(log, encoding="utf-8") as stream:
                log = stream.read()
            levels = [(*traced(log, path + "/"), level["opens"], level["read_bytes"])
                      for (path, _), level in zip(tiers.values(), report["tiers"])]
            tasks = report["tasks"]
            levels.append((*traced(log, pfs.mount + "/"), tasks["opens_pfs"], tasks["read_bytes_pfs"]))
            ok(all(near(o, t) and near(b, c) for o, b, t, c in levels), f"{what}: opens and bytes are strace's", levels)
            ok(levels[0][0] > 0 and levels[0][1] > 0 and levels[2][0] > 0, f"{what}: there are some", levels)
            agent = report["agent"]
            ok(near(agent["agent_opens_pfs"] + tasks["opens_pfs"], seen["open"])
               and near(agent["agent_bytes_pfs"] + tasks["read_bytes_pfs"], seen["read_bytes"]),
               f"{what}: what the PFS counted is in the report", seen, report)
    return None


def flat():
    """Descriptors and memory of the agent over 10,000 files."""
    base = memory("flat") or scratch("flat")
    dataset, tier, files = f"{base}/dataset", f"{base}/tier", 10000
    os.makedirs(tier)
    for i in range(files):
        if i % 100 == 0:
            os.makedirs(f"{dataset}/{i // 100:02}")
        with open(f"{dataset}/{i // 100:02}/{i % 100}", "wb") as out:
            out.write(b"x" * 1000)
    job = e2e.Job([*options([dataset], {"t": (tier, "1G")}), *config(prefetch="off")])
    agent = job.agent()

    def now():
        with open(f"/proc/{agent}/status", encoding="utf-8") as status:
            kib = int(re.search(r"RssAnon:\s+(\d+)", status.read())[1])
        return len(os.listdir(f"/proc/{agent}/fd")), kib

    def read(first, last):
        paths = [f"{dataset}/{i:02}" for i in range(first, last)]
        code = job.run(["sh", "-c", 'find "$@" -type f -exec cat {} + > /dev/null', "sh", *paths])[0]
        wait_until(lambda: len(os.listdir(f"/proc/{agent}/fd")) <= before[0], 3)
        return code

    before = (10**6, 0)
    equal(read(0, 10), 0, "1000 files")
    time.sleep(0.2)
    before = now()
    equal(read(10, 100), 0, "10000 files")
    after = now()
    ok(after[0] <= before[0], "descriptors of the agent are flat", before, after)
    if not e2e.SANITIZER:
        ok(after[1] <= before[1] + 4096, "its memory, catalog apart, is flat", before, after)
    report = job.end()
    equal((report["agent"]["staged_files"], report["opens_tier"]), (files, files), "each file was placed")
    nothing_left(job, "10000 files", tier)


# ---- links and types

SHOW = """
import hashlib, os, stat, sys
for root in sys.argv[1:]:
    for directory, directories, names in os.walk(os.fsencode(root)):
        directories.sort()
        for name in sorted(names) + directories:
            path = os.path.join(directory, name)
            show = [path[len(os.fsencode(root)):]]
            try:
                mode = os.stat(path).st_mode
                if not stat.S_ISDIR(mode) and not stat.S_ISSOCK(mode):
                    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                    st = os.fstat(fd)
                    show += [oct(st.st_mode), st.st_size, st.st_ino, st.st_dev, st.st_nlink, st.st_mtime_ns, st.st_rdev]
                    if stat.S_ISREG(mode):
                        show.append(hashlib.sha256(b''.join(iter(lambda: os.read(fd, 1 << 20), b''))).hexdigest())
                    os.close(fd)
            except OSError as e:
                show.append(e.errno)
            print(show)
"""


def make_types(dataset):
    """All kinds of files; the number of those that an ordinary user's agent may place."""
    write(f"{dataset}/plain", noise(1000))
    os.link(f"{dataset}/plain", f"{dataset}/hard")
    write(f"{dataset}/d/inner", noise(2000, 2))
    os.symlink("plain", f"{dataset}/link")
    os.symlink("d", f"{dataset}/link-to-directory")
    os.symlink("/etc/passwd", f"{dataset}/link-out")
    os.symlink("nowhere", f"{dataset}/dangling")
    write(f"{dataset}/empty", b"")
    with open(f"{dataset}/sparse", "wb") as out:
        out.seek(3 * MIB)
        out.write(b"end")
        out.truncate(9 * MIB)
    write(f"{dataset}/unreadable", noise(10))
    write(f"{dataset}/closed/inside", noise(10))
    os.mkfifo(f"{dataset}/fifo")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(f"{dataset}/socket")
    odd = [b"new\nline", b"\xff\xfe", b" ", b"-rf", b"a\\b", b"'\"$(x)", b"\x01\x7f", b"...", "é".encode(), b"n" * 255]
    for i, name in enumerate(odd):
        write(os.path.join(os.fsencode(dataset), name), noise(100, i))
    if ROOT:
        os.mknod(f"{dataset}/null", 0o20666, os.makedev(1, 3))
        os.makedirs(f"{dataset}/mounted")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "monarch-test", f"{dataset}/mounted"], check=True)
        write(f"{dataset}/mounted/there", noise(50))
    os.chmod(f"{dataset}/unreadable", 0)
    os.chmod(f"{dataset}/closed", 0)
    return 5 + len(odd)  # plain, hard, inner, empty, sparse


def types():
    dataset, tier = scratch("types"), scratch("tier.types")
    placeable = make_types(dataset)
    os.symlink(dataset, f"{scratch()}/types.link")
    before = e2e.NOBODY if ROOT else []
    if why := before and e2e.why_not_nobody():
        return skip("links and types", why)
    reports = scratch("types.reports")
    for path in (tier, reports):
        os.chown(path, 65534 if ROOT else -1, -1)
    script = [PYTHON, "-c", SHOW * 3]
    for name, datasets, read in (
        ("as it is", [dataset], dataset),
        ("by a symlink", [f"{scratch()}/types.link"], f"{scratch()}/types.link/"),
        ("nested", [f"{dataset}/d", dataset], dataset),
    ):
        want = e2e.execute([*before, *script, read])
        equal(want[0], 0, f"links and types {name}: natively", want[2])
        for prefetch in "on", "off":
            words = [*options(datasets, {"t": (tier, "1G")}), *config(prefetch=prefetch)]
            file = f"{reports}/{name}.{prefetch}"
            code, out, err = monarch_run([*words, "--report", file], [*script, read], before=before)
            with open(file, encoding="utf-8") as stream:
                report = json.load(stream)
            what = f"links and types {name}, prefetch {prefetch}"
            equal((code, out.splitlines()), (0, want[1].splitlines()), f"{what}: the same as natively", err)
            equal(report["agent"]["staged_files"], placeable, f"{what}: regular files are placed, no others", report)
            equal(report["opens_tier"], 3 * (placeable + 1), f"{what}: and used, one also by a link", report)
            equal((report["agent"]["source_errors"], report["agent"]["tier_errors"]), (0, 0), f"{what}: no errors")
    with open(f"{dataset}/plain", "rb") as plain:
        equal(os.fstat(plain.fileno()).st_nlink, 2, "links and types: the dataset is as it was")
    equal(os.listdir(tier), [], "links and types: nothing is left")
    if ROOT:
        subprocess.run(["umount", f"{dataset}/mounted"], check=True)
    return os.chmod(f"{dataset}/closed", 0o700)


def fifos():
    """The agent opens no FIFO, so that nobody who writes to one takes it for a reader."""
    dataset, tier = scratch("fifos"), scratch("tier.fifos")
    write(f"{dataset}/plain", noise(1000))
    os.mkfifo(f"{dataset}/fifo")
    for prefetch in "on", "off":
        job = e2e.Job([*options([dataset], {"t": (tier, "1G")}), *config(prefetch=prefetch)])
        stop, seen = threading.Event(), []

        def knock(until=stop, readers=seen):
            while not until.is_set():
                try:
                    os.close(os.open(f"{dataset}/fifo", os.O_WRONLY | os.O_NONBLOCK))
                    readers.append(time.monotonic())
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        readers.append(error)

        thread = threading.Thread(target=knock)
        thread.start()
        ok(wait_until(lambda: tier_of(job, f"{dataset}/plain", tier)), f"prefetch {prefetch}: the file is placed")
        stop.set()
        thread.join()
        equal(seen, [], f"prefetch {prefetch}: nobody opened the FIFO")
        reader = e2e.start(["cat", f"{dataset}/fifo"], env=job.env, **PIPES)
        write(f"{dataset}/fifo", b"through")
        equal(e2e.finish(reader)[:2], (0, b"through"), f"prefetch {prefetch}: a FIFO works")
        job.end()


print(f"# seed {SEED}")
e2e.main(tiers_recover, descriptors_short, limits, absent, idle, pfs_errors, all_threads_hang, changed_while_copied,
         changed_between_chunks, tier_removed, streams_without_agent, agent_killed, agent_without_memory, tasks_killed, clock_jumps,
         changed_by_others, large_changed_by_others, changed_in_one_second, once, larger_than_the_tiers, counters, flat, types, fifos)
