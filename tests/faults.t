#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Faults of the PFS, a tier and the agent, and files that others change; and what must hold in spite of them.

Each is injected in mid-run. Bytes are right, waits are bounded, the counters say what happened, nothing is left.
MONARCH_TEST_ALL=1 asks for more rounds, MONARCH_TEST_SEED=N for those of an earlier run.
"""

import contextlib
import json
import os
import random
import resource
import subprocess
import time

import e2e
from e2e import BUILD, PYTHON, config, equal, monarch_run, ok, options, read_all, scratch, wait_until, write

ALL = os.environ.get("MONARCH_TEST_ALL") == "1"
SEED = int(os.environ.get("MONARCH_TEST_SEED") or random.SystemRandom().getrandbits(32))
MIB = 1 << 20
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

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
    ok(wait_until(lambda: not e2e.traces(job.pid, *tiers)), f"{name}: nothing is left", e2e.traces(job.pid, *tiers))


# ---- the PFS


@e2e.unless(e2e.why_no_slowfs)
def pfs_errors():
    """EIO, ESTALE and short reads that strike the agent, in a whole file's copy and in a chunk's."""
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
            pfs.command(f"set {fault} 0")
        for fault in "eio-every", "eio-open-every", "estale-every", "estale-open-every":
            pfs.command("set fault-limit 0", f"set {fault} 1")
            for name in names:
                want = e2e.execute([PYTHON, "-c", PREAD, name])
                got = monarch_run(words, [PYTHON, "-c", PREAD, name], env=e2e.environment(MONARCH_IO_QUIET=""))
                equal((want[0], got[0], got[1], got[2].splitlines()[-1:]), (1, want[0], want[1], want[2].splitlines()[-1:]),
                      f"{fault} for ever: the program's error is the PFS's")
            pfs.command(f"set {fault} 0")
        for percent in 0, 50, 99, 200:
            pfs.command(f"set size-percent {percent}")
            os.utime(small), os.utime(large)
            code, out, err, report = monarch_run(words, ["sha256sum", *names, *names], report=True)
            equal((code, b"".join(line[:64] + b"\n" for line in out.splitlines())), (0, native * 2),
                  f"a size of {percent} % of the length: the bytes are right", err)
            equal(report["agent"]["staged_files"], 0, f"a size of {percent} % of the length: no copy is made", report)
        pfs.command("set size-percent 100")
        pfs.command("set short-every 3")
        code, out, err, report = monarch_run(words, [PYTHON, "-c", PREAD, *names], report=True)
        equal((code, out), (0, native), "short reads: the bytes are right", err)
        equal(report["tasks"]["read_bytes_pfs"], 0, "short reads: all came from the tier")


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


@e2e.unless(e2e.why_no_slowfs)
def changed_between_chunks():
    """The descriptor goes on as natively: with what its own file, also a replaced one, now holds."""
    source, tier = scratch("chunks"), scratch("tier.chunks")
    for i in range(len(CHANGES)):
        write(f"{source}/{i}", noise(24 * MIB, i))
    with slow(source) as pfs:
        job = e2e.Job([*options([pfs.mount], {"t": (tier, "1G")}),
                       *config(prefetch="off", threads=3, stage_wait_max="64K", pfs_bandwidth="2M")])
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


# ---- tiers


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
    told = e2e.execute(["cat", half[0]], env={**job.env, "MONARCH_IO_LOG": "stderr"})[2]
    ok(told.endswith(f"{half[0]}: PFS, fallback_tier_error\n"), "a tier removed: the log says what became of an open", told)
    for _ in range(2):
        equal(job.run(read_all(dataset))[:2], (0, native), "a tier removed: the bytes are right")
    for process in (held, plain):
        e2e.finish(process, text=b"")
    report = job.end()
    ok(report["tasks"]["fallback_tier_error"] >= 20 and report["agent"]["tier_errors"] >= 1,
       "a tier removed: it is counted", report)
    nothing_left(job, "a tier removed", tier)


def copies_removed():
    """By a cleaner of the node's: no fault of the tier. They are made again, as long as there is room."""
    dataset, tier = scratch("cleaned"), scratch("tier.cleaned")
    e2e.make_tree(dataset, 20)
    native = e2e.execute(read_all(dataset))[:2]
    job = e2e.Job([*options([dataset], {"t": (tier, "1G")}), *config(prefetch="off", stage_again=1)])
    files = job.run(["find", dataset, "-type", "f"])[1].decode().split()
    equal(job.run(read_all(dataset))[:2], native, "copies removed: the bytes are right before that")

    def became(log=f"{scratch()}/log.cleaned"):
        write(log, b"")
        equal(e2e.execute(read_all(dataset), env={**job.env, b"MONARCH_IO_LOG": log.encode()})[:2], native, "copies removed: the bytes are right")
        lines = e2e.text_in(log).splitlines()
        return sorted({line.rpartition(": ")[2] for line in lines if not line.endswith("PFS, opens_pfs")})

    equal(became(), ["tier t"], "copies removed: all were served")
    subprocess.run(["find", tier, "-type", "f", "-delete"], check=True)
    equal(became(), ["PFS, fallback_dropped"], "copies removed: the log says what became of their opens")
    ok(wait_until(lambda: became() == ["tier t"]), "copies removed: they are made again")
    with open(f"{job.run_dir}/monarchd.log", encoding="utf-8") as log:
        equal(log.read().count("another program removes copies"), 1, "copies removed: the agent's log says so, once")
    report = job.end()
    tasks, agent = report["tasks"], report["agent"]
    equal((tasks["fallback_tier_error"], agent["tier_errors"], agent["staged_again"]), (0, 0, len(files)),
          "copies removed: no fault of the tier", report)
    equal((tasks["fallback_dropped"] >= len(files), sum(n for name, n in tasks.items() if name.startswith("fallback_"))),
          (True, tasks["opens_pfs"]), "copies removed: each open is in one counter", report)
    nothing_left(job, "copies removed", tier)


# ---- the agent and the tasks


@e2e.unless(e2e.why_no_slowfs)
def agent_killed():
    """Before the first open, and at random points of a run of many threads that read, map and pread."""
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
            # In the first one nothing is placed before a task opens it, and no task does before the agent is killed.
            words = [*options([pfs.mount], {"t": (tier, "1G")}),
                     *config(stage_wait_max=numbers.choice(["1M", "64M"]), prefetch="auto" if i else "off")]
            access = numbers.choice(list(want))
            command = [*reader, "--epochs", "3", "--access", access]
            # Every other one early: all may be placed long before the last of them.
            file, delay = f"{scratch()}/killed.{i}.json", numbers.uniform(0, 0.4 if i % 2 else 0.02) if i else 0
            process = e2e.start([f"{BUILD}/monarchctl", "run", *words, "--report", file, "--", "sh", "-c",
                                 "echo up; " + ("" if i else "read begin; ") + 'exec "$@"', "sh", *command],
                                env=e2e.environment(), **PIPES)
            process.stdout.readline()
            agents = e2e.children(process.pid, "monarchd")  # none: a slow machine has seen the end of it
            time.sleep(delay)
            if i == 0:
                e2e.kill_agents(process.pid)
            with contextlib.suppress(ProcessLookupError):
                for agent in agents:
                    os.kill(agent, 9)
            code, out, err = e2e.finish(process, text=b"begin\n")
            epochs = [json.loads(line) for line in out.splitlines()]
            served += 0 < json.loads(e2e.text_in(file))["tasks"]["fallback_no_agent"]
            good = (code == 0 and {(e["checksum"], e["failures"]) for e in epochs} == {(want[access], 0)} and len(epochs) == 3
                    and not e2e.traces(process.pid, tier))
            if not good:
                results.append((i, delay, access, code, epochs, err, e2e.traces(process.pid, tier)))
        equal(results, [], f"the agent killed at {rounds} random points: right bytes, nothing left (seed {SEED})")
        ok(served > 0, "the agent killed: what is opened afterwards is counted")


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
    text = e2e.text_in(log)
    # libnuma says so itself, where it is the first one that has none, and so does a sanitizer.
    ok("no memory is left: the agent ends" in text or "Out of memory" in err or (e2e.SANITIZER and ("Failed to mmap" in text + err or "failed to allocate" in text + err)), "no memory for the agent: it says so as it ends", err, text)


# ---- what must hold without faults, too


def changed_by_others():
    """By somebody who does not run under Monarch, after it was placed; a large file in part."""
    kinds = ("changed", "alike", "gone", "same", "in place", "large")
    sizes = {**dict.fromkeys(kinds, 5000), "large": 5 * MIB}
    new = {"changed": noise(5000, 0) + b"more", "alike": noise(5000, 9), "gone": b"", "in place": noise(5000, 8),
           "large": noise(5 * MIB, 8)}
    for consistency in "open", "job":
        dataset, tier = scratch(f"others.{consistency}"), scratch(f"tier.others.{consistency}")
        old = {name: noise(sizes[name], i) for i, name in enumerate(kinds)}
        for name, data in old.items():
            write(f"{dataset}/{name}", data)
        keys = {"consistency": consistency, "watch_directories": "0", "stage_wait_max": "64K", "prefetch": "off"}
        job = e2e.Job([*options([dataset], {"t": (tier, "3M")}), *config(**keys)])
        cat = lambda name, of=job, at=dataset: of.run(["cat", f"{at}/{name}"])[1]  # noqa: E731
        equal([[cat(name) == old[name] for name in kinds] for _ in range(2)], 2 * [6 * [True]], f"{consistency}: before")
        append(f"{dataset}/changed", b"more")
        os.unlink(f"{dataset}/gone")
        for name in "alike", "in place", "large":
            st = os.stat(f"{dataset}/{name}")
            if name == "alike":
                replace(f"{dataset}/{name}", new[name])
            else:
                with open(f"{dataset}/{name}", "r+b") as file:
                    file.write(new[name])
            os.utime(f"{dataset}/{name}", ns=(st.st_atime_ns, st.st_mtime_ns))
        want = {**old, **new} if consistency == "open" else {name: data for name, data in old.items()
                                                             if name != "large"}  # old in part
        for name, data in want.items():
            ok([cat(name) == data for _ in range(2)] == [True, True],
               f"consistency = {consistency}: {name}: the {'new' if consistency == 'open' else 'old'} bytes")
        report = job.end()
        counted = [report["tasks"][name] for name in ("invalidations", "fallback_dropped", "fallback_invalid")]
        ok(min(counted) >= 4 if consistency == "open" else counted == [0, 0, 0], f"consistency = {consistency}: it is counted",
           report)


@e2e.unless(e2e.why_no_slowfs)
def changed_in_one_second():
    """On a PFS whose times are in seconds a change in the second of the copy shows in none of them."""
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


RENUMBERED = """
import os, sys
f = f"{sys.argv[1]}/f"
fd = os.open(f, os.O_RDONLY)
with open(f"{sys.argv[1]}/.slowfs", "w") as control: control.write("set shift-numbers 1000")
os.fchmod(fd, 0o604)
print(oct(os.stat(f).st_mode), oct(os.fstat(fd).st_mode), os.read(fd, 3))
"""


@e2e.unless(e2e.why_no_slowfs)
def numbers_that_change():
    """FUSE makes up inode numbers for a PFS that has none, and new ones once it has forgotten these."""
    source = scratch("numbers")
    write(f"{source}/f", b"old")
    for first, text, want in (1000, "import sys; print(open(sys.argv[1] + '/f').read())", b"old\n"), (0, RENUMBERED, b"0o100604 0o100604 b'old'\n"):
        with slow(source, "--attr-ttl", "0", "--shift-numbers", str(first)) as pfs:
            job = e2e.Job([*options([pfs.mount], {"t": (scratch(f"tier.numbers{first}"), "1G")}), *config(prefetch="off")])
            equal(job.run(["cat", f"{pfs.mount}/f"])[1], b"old", f"numbers from {first}: read")
            got = job.run(["/usr/bin/python3", "-c", text, pfs.mount])
            equal(got[:2], (0, want), f"numbers from {first}: as natively", got)
            tasks = job.end()["tasks"]
            equal((tasks["fallback_pass"] > 0, tasks["returned"] > 0), (first > 0, first == 0), f"numbers from {first}: it is counted", tasks)


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


@e2e.unless(e2e.why_no_slowfs)
def larger_than_the_tiers():
    source, tier, files, epochs = scratch("larger"), scratch("tier.larger"), 120, 4
    size = e2e.make_tree(source, files)
    quota = size // 2
    with slow(source) as pfs:
        native = e2e.execute(read_all(pfs.mount))[:2]
        for prefetch in "on", "off":
            job = e2e.Job([*options([pfs.mount], {"t": (tier, quota)}), *config(prefetch=prefetch)])
            job.run([PYTHON, "-c", ALL_WHERE, pfs.mount, tier])
            at_rest(pfs)
            served, opens = [], []
            for _ in range(epochs):
                before = pfs.counters()["open"]
                served.append(sorted(job.run([PYTHON, "-c", ALL_WHERE, pfs.mount, tier])[1].split()))
                opens.append(pfs.counters()["open"] - before)
            equal(job.run(read_all(pfs.mount))[:2], native, f"prefetch {prefetch}: right bytes")
            used = 512 * sum(os.lstat(f"{d}/{name}").st_blocks for d, _, names in os.walk(tier) for name in names)
            ok(0 < used <= quota, f"prefetch {prefetch}: the quota holds", f"{used} of {quota}")
            ok(files // 4 < len(served[0]) < files, f"prefetch {prefetch}: some are placed", len(served[0]))
            equal(served, epochs * [served[0]], f"prefetch {prefetch}: each epoch is served the same files")
            equal(opens, epochs * [files - len(served[0])], f"prefetch {prefetch}: the rest is opened once, by the task")
            report = job.end()
            ok(report["agent"]["requests"] <= files and report["tasks"]["waits"] <= files,
               f"prefetch {prefetch}: what does not fit is asked for once at most", report)
            ok(report["tasks"]["fallback_no_fit"] >= epochs * (files - len(served[0])), "and counted")
            nothing_left(job, "larger than the tiers", tier)


print(f"# seed {SEED}")
e2e.main(pfs_errors, changed_between_chunks, tier_removed, copies_removed, agent_killed, agent_without_memory, changed_by_others,
         changed_in_one_second, numbers_that_change,
         larger_than_the_tiers)
