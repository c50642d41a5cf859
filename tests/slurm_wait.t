#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""--monarch-wait on a real Slurm with several nodes that get files from each other, and with processes tracked by control groups: each
node's tasks begin once its part is staged, and a job that waits can be cancelled."""

import os
import re
import shlex
import subprocess
import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab  # pylint: disable=wrong-import-position
from e2e import contains, equal, ok, scratch, wait_until
from slurm_lab import Cluster

FILES = 40
SHOW = "grep -E '^(state|percent|files|staged_files)=' $MONARCH_IO_STATE | paste -s -d ' '"

cluster = data = None


def begin():
    global cluster, data
    cluster = Cluster()
    configure()
    cluster.up("--nodes", "2", "--cpus", "2", "--prolog-flags", "Contain", "--proctrack", "cgroup")
    data = scratch("data")
    e2e.make_tree(data, FILES)
    subprocess.run(["chmod", "-R", "a+rX", data], check=True)


def configure(more=""):
    cluster.configure(f"[tier.nvme]\npath = {cluster.tier}\nquota = 100M\nmin_free = 0\n[agent]\n{more}")


def told(text):
    return [line for line in text.splitlines() if line.startswith("monarch: ") and "the job begins at" not in line]


def whole():
    """Each node waits for what is its to stage; both together have all."""
    number = cluster.submit(["-N2", f"--monarch-dataset={data}", "--monarch-wait=full"], f"srun -N2 -n2 sh -c {shlex.quote(SHOW)}")
    equal(cluster.wait(number), "COMPLETED", "two nodes: how the job ends", cluster.output(number))
    out = cluster.output(number).decode()
    found = re.findall(r"state=staged-in percent=100 files=(\d+) staged_files=(\d+)", out)
    equal((len(found), sum(int(files) for files, _ in found), all(files == there for files, there in found)), (2, FILES, True),
          "two nodes: both are staged when their tasks begin", out)
    line = [text for text in told(out) if "100% of the dataset is staged" in text]
    equal((len(line), cluster.node_names[0] in "".join(line)), (1, True), "two nodes: the first tells", out)
    code, out, err = cluster.execute(["srun", "-N2", "-n2", "--exclusive", f"--monarch-dataset={data}", "--monarch-wait=100%", "sh", "-c", SHOW])
    equal((code, out.decode().count("state=staged-in percent=100")), (0, 2), "srun alone: both nodes wait", out, err)


def cancelled():
    """scancel, and a time limit, end a job of two nodes that waits; its nodes are idle and clean soon after."""
    configure("pfs_bandwidth = 2K\n")
    for name, script in (("batch", "touch began"), ("steps", f"srun -N2 -n2 {sys.executable} -c \"open('began', 'w')\"")):
        number = cluster.submit(["-N2", f"--monarch-dataset={data}", "--monarch-wait=full"], script)
        wait_until(lambda: os.path.exists(f"{cluster.out}/{number}") and b"the job begins at 100%" in cluster.output(number), 60)
        contains(cluster.output(number).decode(), ["the job begins at 100%"], f"{name}: it says that it waits")
        cluster.execute(["scancel", str(number)])
        equal(cluster.wait(number, 30), "CANCELLED", f"{name}: scancel ends it")
        ok(not os.path.exists(f"{cluster.out}/began"), f"{name}: no program of it has begun")
        equal(cluster.calls_for(number).count("--epilog"), 2, f"{name}: both nodes end it")
        ok(wait_until(lambda: set(cluster.nodes().values()) == {"idle"}, 30), f"{name}: the nodes are idle", cluster.nodes())
    process = cluster.start(["srun", "-N2", "-n2", "--exclusive", f"--monarch-dataset={data}", "--monarch-wait=full", "touch", "began"])
    wait_until(lambda: cluster.execute(["squeue", "-h", "-t", "R", "-o", "%A"])[1].strip(), 30)
    number = int(cluster.execute(["squeue", "-h", "-t", "R", "-o", "%A"])[1])
    wait_until(lambda: all(cluster.record(number, node) for node in cluster.node_names), 30)
    cluster.execute(["scancel", str(number)])
    code, _, _ = e2e.finish(process, 30)
    ok(code not in (0, "hung") and not os.path.exists(f"{cluster.out}/began"), "srun: scancel ends it while both nodes wait", code)
    configure()


def leaves_nothing():
    cluster.nothing_left("all jobs")


if reason := slurm_lab.why_no_slurm():
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)
begin()
e2e.main(whole, cancelled, leaves_nothing)
