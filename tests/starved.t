#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""What a job that cannot be served costs the PFS beyond what it costs by itself, as the PFS counts it: little, after the burst that
prefetch may read before it is known."""

import os
import subprocess

import e2e
from e2e import equal, ok, scratch

FILES, SIZE, EPOCHS = 400, 20000, 3
META = ("lookup", "getattr", "opendir", "readdir", "other")
WITHIN = 1.02
# The walk, which no starved job gets back: the dataset and its directories are each opened, read to the end (two calls) and asked for its
# values twice, and once more where they changed within a day.
DIRECTORIES, PER_DIRECTORY = 9, 10
# Reads a list of files as a loader does, that often.
READER = """
import os, sys, time
names = open(sys.argv[1]).read().split()
for epoch in range(int(sys.argv[2])):
    for i, name in enumerate(names):
        os.stat(name)
        with open(name, 'rb') as file:
            file.read()
"""

pfs = names = None


def begin():
    global pfs, names
    source = scratch("data")
    for i in range(FILES):
        e2e.write(f"{source}/d{i % 8}/{i}", os.urandom(SIZE))
    pfs = e2e.SlowFs(source, f"{source}.pfs")
    names = f"{scratch()}/names"
    e2e.write(names, "\n".join(sorted(f"{pfs.mount}/d{i % 8}/{i}" for i in range(FILES))))


def counted(what):
    """What the PFS counts while something is done: opens, bytes, metadata calls."""
    pfs.command("reset")
    what()
    counters = pfs.counters()
    return {"opens": counters["open"], "bytes": counters["read_bytes"], "metadata": sum(counters.get(name, 0) for name in META)}


def read(env=None, words=()):
    result = subprocess.run([*words, "/usr/bin/python3", "-c", READER, names, str(EPOCHS)], env=env, check=False)
    equal(result.returncode, 0, "the reader ends well")


def run(keys, quota, words=(), meanwhile=None):
    tier = scratch("tier")
    config = f"{scratch()}/monarch.conf"
    e2e.write(config, f"[tier.nvme]\npath = {tier}\nquota = {quota}\nmin_free = 0\n[agent]\n{keys}")
    job = e2e.Job(["--config", config, "--dataset", pfs.mount])
    if meanwhile:
        meanwhile(job)
    env = {name.decode(): value.decode() for name, value in job.env.items()}
    read(env, words)
    job.end()


def compare(name, keys, quota, **more):
    burst = {"metadata": DIRECTORIES * PER_DIRECTORY if "= off" not in keys else 0}
    before = counted(read)
    ours = counted(lambda: run(keys, quota, **more))
    after = counted(read)  # what the kernel still has of a file's values, it does not ask for: it differs from time to time
    for what, by_itself in ((what, max(before[what], after[what])) for what in before):
        bound = WITHIN * by_itself + burst.get(what, 0)
        print(f"# {name}: {what} {ours[what]} native {by_itself} ratio {ours[what] / by_itself:.3f}")
        ok(ours[what] <= bound, f"{name}: PFS {what} are within {WITHIN} of the job's own and the burst", ours[what], by_itself, bound)


def costs_little():
    tenth = f"{FILES * SIZE // 10}"
    compare("a tier with room for a tenth", "prefetch = auto\n", tenth)
    compare("a tier with room for no file", "prefetch = auto\n", "16K")
    compare("no prefetch, a tier with room for a tenth", "prefetch = off\n", tenth)
    compare("a program without the library", "prefetch = auto\nprefetch_burst = 0\n", "100M", words=["env", "-u", "LD_PRELOAD"])
    compare("an agent that was killed", "prefetch = off\n", "100M", meanwhile=lambda job: os.kill(job.agent(), 9))


e2e.skip_all_if(e2e.why_no_slowfs())
begin()
e2e.main(costs_little)
