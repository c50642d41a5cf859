#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""8 processes with 8 threads read files of 0 B to 40 MiB in all ways, over tiers smaller than the dataset, while the PFS
fails. Every byte is checked. That the agent is killed meanwhile: faults.t.

Takes 30 s, with MONARCH_TEST_ALL=1 600 s. `stress.t SEED` repeats a run, as far as its processes allow.
"""

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time

import e2e
from e2e import equal, memory, ok, options, scratch, wait_until

SEED = int((sys.argv[1:] + [os.environ.get("MONARCH_TEST_SEED") or random.SystemRandom().getrandbits(32)])[0])
SECONDS = 600 if os.environ.get("MONARCH_TEST_ALL") == "1" else 30
FILES = 300
# Reads files of the mount that sys.argv[1] names by 8 threads until the end, each time one by another way. Who compares has the file as it is at sys.argv[2].
READER = """
import errno, json, os, random, sys, threading, time
mount, source, seconds, seed = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
names = sorted(os.path.relpath(os.path.join(d, n), source) for d, _, found in os.walk(source) for n in found)
counts, lock, end = dict(files=0, bytes=0, errors=0, wrong=[]), threading.Lock(), time.monotonic() + seconds
def check(name, what, got, at, wanted, whole):
    with lock: counts["bytes"] += len(got)
    if got != whole[at:at + len(got)] or not got and at < len(whole) and wanted: counts["wrong"].append((name, what, at, len(got), len(whole)))
    return got
def by_read(random, fd, name, whole):
    at, n = 0, random.randrange(1, 1 << 18)
    while part := check(name, "read", os.read(fd, n), at, n, whole): at += len(part)
def by_pread(random, fd, name, whole):
    for _ in range(random.randrange(1, 9)):
        at, n = random.randrange(len(whole) + 1), random.randrange(1, 1 << 18)
        check(name, "pread", os.pread(fd, n, at), at, n, whole)
def by_preadv(random, fd, name, whole):
    at, parts = random.randrange(len(whole) + 1), [bytearray(random.randrange(1, 1 << 17)) for _ in range(2)]
    n = os.preadv(fd, parts, at)
    check(name, "preadv", bytes(parts[0] + parts[1])[:n], at, 1, whole)
def by_dup(random, fd, name, whole):
    copy = os.dup(fd)
    try: by_pread(random, copy, name, whole)
    finally: os.close(copy)
def by_fork(random, fd, name, whole):
    if (pid := os.fork()) == 0:
        got, at = b"", random.randrange(len(whole) + 1)
        try: got = os.pread(fd, 100000, at)
        except OSError: pass
        os._exit(got != whole[at:at + len(got)])
    if os.waitpid(pid, 0)[1] != 0: counts["wrong"].append((name, "fork"))
def by_stream(random, fd, name, whole):
    with open(f"{mount}/{name}", "rb") as stream: check(name, "a stream", stream.read(1 << 18), 0, 1, whole)
def run(number):
    numbers = random.Random(f"{seed} {number}")
    while time.monotonic() < end and not counts["wrong"]:
        name = numbers.choice(names)
        with open(f"{source}/{name}", "rb") as stream: whole = stream.read()
        try:
            fd = os.open(f"{mount}/{name}", os.O_RDONLY)
            try:
                if os.fstat(fd).st_size != len(whole): counts["wrong"].append((name, "fstat"))
                for way in numbers.choices((by_read, by_pread, by_preadv, by_dup, by_fork, by_stream), (6, 6, 3, 3, 1, 3), k=2):
                    way(numbers, fd, name, whole)
                    os.lseek(fd, 0, os.SEEK_SET)
            finally: os.close(fd)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ESTALE): counts["wrong"].append((name, str(error)))
            with lock: counts["errors"] += 1
        with lock: counts["files"] += 1
threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(counts))
"""
ROUND = 4
FAULTS = ("eio-every", "eio-open-every", "estale-every", "estale-open-every")
CALM = [f"set {name} 0" for name in (*FAULTS, "open-us", "read-us", "meta-us", "hang", "bw-mib")]


def faults(numbers):
    """Settings for the PFS until the next ones: one fault or delay, or none."""
    every = numbers.randrange(20, 300)
    choices = [[f"set {name} {every}"] for name in FAULTS] * 2
    choices += [["set open-us 20000"], ["set read-us 5000"], ["set meta-us 3000"], ["set bw-mib 30"], [],
                ["set hang-every 200", "set hang 1"]]
    return CALM + numbers.choice(choices)


def shake(pfs, numbers, until):
    pfs.command(*CALM, f"set {numbers.choice(FAULTS)} 20")
    while not pfs.counters()["faults"] and not until.wait(0.1):  # a busy machine may take long to get to the first
        pass
    while not until.wait(numbers.uniform(0.1, 1)):
        pfs.command(*faults(numbers))
    pfs.command(*CALM)


def make(path, numbers):
    """Empty files, those around a page and a MiB, small ones, and a few large ones."""
    sizes = [40 << 20, 0, 1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1]
    sizes += [numbers.randrange(2 << 20, 10 << 20) if i % 40 == 0 else numbers.randrange(1 << 20 if i % 8 == 0 else 1 << 16) for i in range(FILES - len(sizes))]
    for number, size in enumerate(sizes):
        os.makedirs(f"{path}/d{number % 7}", exist_ok=True)
        e2e.write(f"{path}/d{number % 7}/f{number}", numbers.randbytes(size))


def read(job, pfs, source, seconds, seed):
    """What 8 processes counted."""
    processes = [e2e.start(["/usr/bin/python3", "-c", READER, pfs.mount, source, str(seconds), f"{seed} {i}"], env=job.env, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE) for i in range(8)]
    results = [e2e.finish(process, seconds + 2 * e2e.PATIENCE) for process in processes]
    counts = [json.loads(out) if code == 0 else {"files": 0, "bytes": 0, "errors": 0, "wrong": [(code, err)]} for code, out, err in results]
    files, size, failed = (sum(count[name] for count in counts) for name in ("files", "bytes", "errors"))
    wrong = [one for count in counts for one in count["wrong"]]
    ok(not wrong and files > 0 and size > 0, f"{files} files, {size >> 20} MiB: each byte and size is right", wrong[:5])
    return failed


@contextlib.contextmanager
def beside(work, *arguments):
    """A thread that does `work` meanwhile, and is told by an event when to end."""
    until = threading.Event()
    thread = threading.Thread(target=work, args=(*arguments, until))
    thread.start()
    try:
        yield
    finally:
        until.set()
        thread.join()


def one_round(kind, seconds, pfs, source, tiers, numbers):
    """A job that begins with empty tiers. The report and what the program counted."""
    words = [f"stage_wait_max = {numbers.choice(['1M', '4M', '64M'])}", f"prefetch = {numbers.choice(['on', 'off'])}",
             f"consistency = {numbers.choice(['job', 'open'])}"]
    config = f"{scratch()}/stress.conf"
    e2e.write(config, "\n".join(["[agent]", *words, ""]))
    pfs.command(*CALM, "set open-us 500", "set bw-mib 300", "reset")
    job = e2e.Job([*options([pfs.mount], tiers), "--config", config], **e2e.sanitizer_log())
    seed = numbers.getrandbits(32)
    if kind == "faults":
        with beside(shake, pfs, numbers):
            errors = read(job, pfs, source, seconds, seed)
        seen = pfs.counters()
        ok(0 < seen["faults"] >= errors, f"{words}: no error but the PFS's own reached the programs", errors, seen)
    else:
        errors = read(job, pfs, source, seconds, seed)
        equal(errors, 0, f"{words}, {kind}: no errors")
    report = job.end()
    ok(all(level["placed_bytes"] <= quota for level, (_, quota) in zip(report["tiers"], tiers.values())),
       f"{kind}: within the quotas", report["tiers"])
    ok(report["opens_tier"] > 0 and report["tasks"]["opens_pfs"] > 0, f"{kind}: tiers and the PFS were in use", report)
    ok(wait_until(lambda: not e2e.traces(job.pid, *[path for path, _ in tiers.values()])), f"{kind}: nothing is left",
       e2e.traces(job.pid))
    equal(e2e.sanitizer_found(), "", f"{kind}: sanitizers found nothing")


@e2e.unless(e2e.why_no_slowfs)
def stress():
    numbers = random.Random(SEED)
    source = scratch("data")
    make(source, numbers)
    size = sum(os.path.getsize(f"{d}/{name}") for d, _, names in os.walk(source) for name in names)
    tiers = {"disk": (scratch("tier"), size // 3)}
    if fast := memory("tier"):
        tiers = {"ram": (fast, size // 5), **tiers}
    pfs = e2e.SlowFs(source, f"{source}.pfs")
    end = time.monotonic() + SECONDS
    for kind in itertools.cycle(["no faults", "faults", "faults"]):
        left = end - time.monotonic()
        if left < 2:
            break
        one_round(kind, int(min(max(SECONDS // 10, ROUND), left)), pfs, source, tiers, numbers)
    return pfs.close()


print(f"# seed {SEED}", flush=True)
sys.argv[1:] = []
e2e.main(stress)
