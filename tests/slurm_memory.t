#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""A tier in memory that is charged to the job, on a real Slurm which limits each job's memory: the job's program may allocate nearly all
that the job has, is not killed, and the copies make way for it; afterwards they come back."""

import glob
import hashlib
import json
import os
import re
import subprocess
import sys

import e2e
import slurm_lab
from e2e import equal, ok, scratch, wait_until
from slurm_lab import Cluster

MIB = 1 << 20
JOB, MARGIN, QUOTA = 400 * MIB, 32 * MIB, 1024 * MIB
FILES, FILE = 480, MIB  # of the dataset: more than the job has
BALLAST = 250 * MIB

# Reads all files over and over, and compares, until it is told to do the next thing: to allocate, to free, to end. Says when it has.
PROGRAM = """
import hashlib, json, os, sys
data, sums, out = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3]
wrong, reads, ballast = [], 0, None
def say(what): open(out + '/' + what, 'w').close()
def read():
    global reads
    for name in sorted(sums):
        with open(data + '/' + name, 'rb') as file:
            if hashlib.blake2b(file.read()).hexdigest() != sums[name]: wrong.append(name)
        reads += 1
def read_until(what):
    while not os.path.exists(out + '/' + what): read()
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


def begin():
    global cluster, data
    cluster = Cluster()
    cluster.configure(f"[tier.ram]\npath = {cluster.tier}\ndriver = tmpfs\nmedium = ram\ncharge = job\nquota = {QUOTA}\n"
                      "[agent]\nprefetch_burst = 2G\n")
    data = scratch("data")
    sums = {}
    for number in range(FILES):
        block = f"{number:04}".encode() * (FILE // 4)
        e2e.write(f"{data}/{number:04}", block)
        sums[f"{number:04}"] = hashlib.blake2b(block).hexdigest()
    for path, text in ("sums", json.dumps(sums)), ("program.py", PROGRAM), ("extra.conf", "TaskPlugin=task/cgroup\n"):
        e2e.write(f"{scratch()}/{path}", text)
    subprocess.run(["chmod", "-R", "a+rX", data, f"{scratch()}/sums", f"{scratch()}/program.py"], check=True)
    cluster.up("--nodes", "1", "--prolog-flags", "Contain", "--slurm-conf", f"{scratch()}/extra.conf",
               "--cgroup-line", "ConstrainRAMSpace=yes")


def tell(what):
    """Has the program do it, and waits until that is done."""
    e2e.write(f"{cluster.out}/way/{what}", b"")
    return has("allocated" if what == "allocate" else "freed")


def has(what):
    return wait_until(lambda: os.path.exists(f"{cluster.out}/way/{what}"), 120)


def granted(job):
    """How much of the tier the job's agent uses at most now."""
    told = json.loads(e2e.execute([f"{e2e.BUILD}/monarchctl", "status", str(job), "--json", "--state-dir", cluster.state])[1])
    return next(t["granted"] for t in told["jobs"][0]["tiers"] if t["name"] == "ram")


def copies(job):
    """How much of the job's tmpfs is used."""
    node = cluster.node_names[0]
    path = next(glob.iglob(f"{cluster.tier}/{node}/monarch/lab.{job}.0.{node}.*"), "/none")
    if not os.path.ismount(path):
        return 0
    fs = os.statvfs(path)
    return (fs.f_blocks - fs.f_bfree) * fs.f_frsize


def makes_way():
    out, fits = f"{cluster.out}/way", JOB - BALLAST
    os.mkdir(out)
    os.chown(out, cluster.user.pw_uid, cluster.user.pw_gid)
    job = cluster.submit([f"--mem={JOB // MIB}M", f"--monarch-dataset={data}"],
                         f"exec /usr/bin/python3 {scratch()}/program.py {data} {scratch()}/sums {out} {BALLAST}")
    ok(has("begun"), "a job begins", cluster.jobs(job))
    ok(wait_until(lambda: copies(job) > 250 * MIB, 120), "its copies take what it leaves", copies(job), cluster.log_of(job))
    ok(copies(job) <= JOB - MARGIN, "which is less than the job has, with a margin", copies(job))
    ok(tell("allocate"), "its program gets nearly all that the job has", cluster.state_of(job))
    ok(wait_until(lambda: copies(job) <= fits and granted(job) <= fits - MARGIN // 2), "the copies make way, and no more is theirs",
       granted(job))
    equal(cluster.state_of(job), "RUNNING", "the job is not killed")
    ok(tell("free"), "the program frees its memory")
    ok(wait_until(lambda: copies(job) > 180 * MIB), "they come back", copies(job), granted(job))
    e2e.write(f"{out}/end", b"")
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


e2e.skip_all_if(why_not())
begin()
try:
    e2e.main(makes_way)
finally:
    cluster.down()
