#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A tier in memory that is charged to the job, on a real Slurm which limits each job's memory: the job's program may allocate nearly all
that the job has, is not killed, and the copies make way for it; afterwards they come back."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab
from e2e import equal, ok, scratch, wait_until
from slurm_lab import Cluster

MIB = 1 << 20
JOB, MARGIN, QUOTA = 400 * MIB, 32 * MIB, 1024 * MIB
FILES, FILE = 480, MIB  # of the dataset: more than the job has
BALLAST = 250 * MIB
MAKES_WAY, COMES_BACK = 15, 60  # seconds that a loaded machine may take

# Reads all files over and over, and compares, until it is told to do the next thing: to allocate, to free, to end. Says when it has.
PROGRAM = """
import hashlib, json, os, sys, time
data, sums, out = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3]
wrong, reads, ballast = [], 0, None
def say(what):
    with open(out + '/' + what + '.new', 'w') as file: file.write(repr(time.time()))
    os.rename(out + '/' + what + '.new', out + '/' + what)
def told(what): return os.path.exists(out + '/' + what)
def read():
    global reads
    for name in sorted(sums):
        with open(data + '/' + name, 'rb') as file:
            if hashlib.blake2b(file.read()).hexdigest() != sums[name]: wrong.append(name)
        reads += 1
def read_until(what):
    while not told(what): read()
say('begun')
read_until('allocate')
ballast = bytearray(int(sys.argv[4]))
for at in range(0, len(ballast), 4096): ballast[at] = 1
say('allocated')
read_until('free')
ballast = None
say('freed')
read_until('end')
read()
print(json.dumps([reads, len(wrong), wrong[:3]]))
"""

cluster = data = None


def configure(more=""):
    cluster.configure(f"[tier.ram]\npath = {cluster.tier}\ndriver = tmpfs\nmedium = ram\ncharge = job\nquota = {QUOTA}\n{more}"
                      f"[agent]\nprefetch_burst = 2G\n")


def begin():
    global cluster, data
    cluster = Cluster()
    data = scratch("data")
    sums = {}
    for number in range(FILES):
        block = f"{number:04}".encode() * (FILE // 4)
        with open(f"{data}/{number:04}", "wb") as file:
            file.write(block)
        sums[f"{number:04}"] = hashlib.blake2b(block).hexdigest()
    for path, text in ("sums", json.dumps(sums)), ("program.py", PROGRAM):
        with open(f"{scratch()}/{path}", "w", encoding="utf-8") as file:
            file.write(text)
    subprocess.run(["chmod", "-R", "a+rX", data, f"{scratch()}/sums", f"{scratch()}/program.py"], check=True)
    configure()


def up(*options, conf):
    with open(f"{scratch()}/extra.conf", "w", encoding="utf-8") as file:
        file.write(conf)
    cluster.up("--nodes", "1", "--prolog-flags", "Contain", "--slurm-conf", f"{scratch()}/extra.conf", *options)


def submit(out, *options):
    os.mkdir(out)
    os.chown(out, cluster.user.pw_uid, cluster.user.pw_gid)
    return cluster.submit([f"--mem={JOB // MIB}M", f"--monarch-dataset={data}", *options],
                          f"exec /usr/bin/python3 {scratch()}/program.py {data} {scratch()}/sums {out} {BALLAST}")


def tell(out, what):
    with open(f"{out}/{what}", "w", encoding="utf-8"):
        pass


def said(out, what):
    """When it was done; None: not yet."""
    try:
        with open(f"{out}/{what}", encoding="utf-8") as file:
            return float(file.read())
    except FileNotFoundError:
        return None


def granted(job):
    """How much of the tier the job's agent uses at most now."""
    told = json.loads(e2e.execute([f"{e2e.BUILD}/monarchctl", "status", str(job), "--json", "--state-dir", cluster.state])[1])
    return next(t["granted"] for t in told["jobs"][0]["tiers"] if t["name"] == "ram")


class Copies:
    """How much of the job's tmpfs is used, every 10 ms."""

    def __init__(self, job):
        self.path = f"{cluster.tier}/{cluster.node_names[0]}/monarch/lab.{job}.0.{cluster.node_names[0]}/files"
        self.seen = []  # (time, bytes)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def now(self):
        fs = os.statvfs(self.path)
        return (fs.f_blocks - fs.f_bfree) * fs.f_frsize if os.path.ismount(self.path) else 0

    def _watch(self):
        while not self._over.wait(0.01):
            try:
                self.seen.append((time.time(), self.now()))
            except OSError:
                pass

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def most(self):
        return max((size for _, size in self.seen), default=0)

    def within(self, size, since):
        """Seconds from `since` until they took no more than that and stayed so; None: they do."""
        over = [when for when, used in self.seen if used > size]
        return max(0.0, over[-1] - since) if over and over[-1] < self.seen[-1][0] else None if over else 0.0


def makes_way():
    up("--cgroup-line", "ConstrainRAMSpace=yes", conf="TaskPlugin=task/cgroup\n")
    out = f"{cluster.out}/way"
    job = submit(out)
    ok(wait_until(lambda: said(out, "begun"), 120), "a job begins", cluster.jobs(job))
    with Copies(job) as copies:
        ok(wait_until(lambda: copies.most() > 250 * MIB, 120), "its copies take what it leaves", copies.most(), cluster.log_of(job))
        ok(copies.most() <= JOB - MARGIN, "which is less than the job has, with a margin", copies.most())
        tell(out, "allocate")
        ok(wait_until(lambda: said(out, "allocated"), 120), "its program gets nearly all that the job has", cluster.state_of(job))
        fits = JOB - BALLAST
        ok(wait_until(lambda: copies.now() <= fits, MAKES_WAY), "the copies make way", copies.now())
        time.sleep(0.1)
        print(f"# from the end of the allocation to the release: {copies.within(fits, said(out, 'allocated')):.2f} s")
        ok(wait_until(lambda: granted(job) <= fits - MARGIN // 2, MAKES_WAY), "and no more is theirs", granted(job))
        equal(cluster.state_of(job), "RUNNING", "the job is not killed")
        kept = len(copies.seen)
        tell(out, "free")
        ok(wait_until(lambda: said(out, "freed"), 120), "the program frees its memory")
        ok(max(size for _, size in copies.seen[kept:]) <= fits, "until then they had not come back")
        ok(wait_until(lambda: copies.now() > 180 * MIB, COMES_BACK), "they come back", copies.now(), granted(job))
        tell(out, "end")
        equal(cluster.wait(job), "COMPLETED", "how Slurm says that it ended")
    reads, wrong, first = json.loads(cluster.output(job).decode().splitlines()[-1])
    ok(reads > 2 * FILES and wrong == 0, "all bytes were right", reads, wrong, first)
    ok(re.search(r" hit=[\d.]+%.* evicted=\d+", cluster.comment(job)), "sacct says that copies were removed", cluster.comment(job))
    cluster.nothing_left("a job whose copies made way")


def why_not():
    if reason := slurm_lab.why_no_slurm():
        return reason
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        if not any(" - cgroup " in line and re.search(r"[ ,]memory(,|$)", line.strip()) for line in mounts):
            return "no memory controller of version 1 is mounted"
    return ""


if reason := why_not():
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)
begin()
try:
    e2e.main(makes_way)
finally:
    cluster.down()
