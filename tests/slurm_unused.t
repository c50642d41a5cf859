#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of which no program can be served, on a real Slurm: what their agent costs the PFS ends soon, and they are told why; and jobs that
use their dataset late. The PFS counts."""

import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab  # pylint: disable=wrong-import-position
from e2e import contains, equal, ok, scratch
from slurm_lab import Cluster

FILES = 60
KNOWS = "no program of this job has used its dataset through Monarch"
# What reads all of the dataset, as a static program would: without the library.
READ = "env -u LD_PRELOAD find {} -type f -exec cat {{}} + | md5sum"

cluster = data = pfs = None


def begin():
    global cluster, data, pfs
    cluster = Cluster()
    # Slow enough that prefetch has most before it when the patience of a second is over.
    configure()
    cluster.up("--nodes", "2", "--cpus", "2", "--prolog-flags", "Contain")
    source = scratch("data")
    e2e.make_tree(source, FILES)
    subprocess.run(["chmod", "-R", "a+rX", source], check=True)
    pfs = e2e.SlowFs(source, f"{source}.pfs")
    data = pfs.mount


def configure(more=""):
    cluster.configure(f"[tier.nvme]\npath = {cluster.tier}\nquota = 100M\nmin_free = 0\n"
                      f"[agent]\nprefetch_patience = 1\npfs_opens = 4\n{more}")


def staged():
    """Opens that the PFS has counted."""
    return pfs.counters()["open"]


def job(*options, script, kind=None):
    """A batch job's output."""
    number = cluster.submit([f"--monarch-dataset={data}", *options], script)
    equal(cluster.wait(number), "COMPLETED", f"{kind}: how the job ends", cluster.output(number))
    return cluster.output(number).decode()


def unserved():
    """A batch script whose program is not served: prefetch stops, and the job is told once, in its output."""
    before = staged()
    out = job(script=f"sleep 8; grep -E '^(state|unused)=' $MONARCH_IO_STATE; {READ.format(data)}", kind="unserved")
    contains(out, ["state=suspended\nunused=1\n", "slurmstepd", KNOWS, "monarchctl container-args"], "unserved: it is told")
    equal(out.count(KNOWS), 1, "unserved: it is told once")
    # 4 opens in a second for the second of patience, and what is at work or was made up for; all 60 would be there after 15 s.
    ok(staged() - before <= FILES + 16, "unserved: PFS opens are the job's own and few", staged() - before)


def step():
    """The same for srun alone, whose standard error is a pipe."""
    code, out, err = cluster.execute(["srun", "--exclusive", f"--monarch-dataset={data}", "env", "-u", "LD_PRELOAD", "sleep", "4"])
    equal((code, out), (0, b""), "srun: it runs")
    equal((err.decode() if isinstance(err, bytes) else err).count(KNOWS), 1, "srun: it is told once", err)


def late():
    """A program that begins late: prefetch goes on with its first open, and nobody is told."""
    out = job(script=f"ls {data} >/dev/null; sleep 5; grep ^unused= $MONARCH_IO_STATE; f=$(find {data} -type f | sort | head -n 1); cat $f >/dev/null; "
              f"sleep 1; grep -c ^unused= $MONARCH_IO_STATE; grep ^staged_files= $MONARCH_IO_STATE; sleep 4; "
              f"grep ^staged_files= $MONARCH_IO_STATE", kind="late")
    lines = out.splitlines()
    equal((lines[:2], KNOWS in out), (["unused=1", "0"], False), "late: what the state says before and after the first open", out)
    first, last = (int(line.split("=")[1]) for line in lines[2:4])
    ok(last > first + 4, "late: prefetch goes on", out)


def waits():
    """The time while a job waits for staging is no time of its first task."""
    configure("pfs_bandwidth = none\n")
    out = job("--monarch-wait=full", "--monarch-wait-timeout=6", script=f"grep -E '^(state|unused|staged_files)=' $MONARCH_IO_STATE; cat $(find {data} -type f) >/dev/null",
              kind="waits")
    ok("state=staging-in\n" in out and "unused" not in out, "a job that waits: staging went on meanwhile", out)
    staged_files = int(out.split("staged_files=")[1].split()[0])
    ok(staged_files > 12, "a job that waits: more was staged than in the patience", out)
    configure()


def nobody():
    """An allocation without a task: nothing has begun, and prefetch goes on."""
    allocation = cluster.start(["salloc", "--exclusive", f"--monarch-dataset={data}", "sleep", "8"])
    before = staged()
    time.sleep(6)
    ok(staged() - before > 10, "salloc: prefetch goes on before the first task", staged() - before)
    e2e.finish(allocation)


def switched_off():
    configure("")
    with open(cluster.config, encoding="utf-8") as file:
        text = file.read().replace("prefetch_patience = 1", "prefetch_patience = 0")
    cluster.configure(text)
    out = job(script="sleep 4; grep -E '^(state|unused)=' $MONARCH_IO_STATE", kind="switched off")
    equal(out, "state=staging-in\n", "prefetch_patience = 0: prefetch goes on")
    configure()


def leaves_nothing():
    cluster.nothing_left("all jobs")
    pfs.close()


if reason := slurm_lab.why_no_slurm() or e2e.why_no_slowfs():
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)
begin()
e2e.main(unserved, step, late, waits, nobody, switched_off, leaves_nothing)
