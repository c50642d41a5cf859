#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""What users ask for besides their datasets, on a real Slurm: by option, by twin and in the script, for each kind of job."""

import os
import re
import subprocess

import e2e
import slurm_lab
from e2e import contains, equal, ok, scratch
from slurm_lab import Cluster

FILES = 20
SHOW = "cat $MONARCH_IO_RUN_DIR/agent.conf"

cluster = data = None


def begin():
    global cluster, data
    cluster = Cluster()
    configure(f"[tier.ssd]\npath = {cluster.new_tier('other')}\nquota = 100M\nmin_free = 0\n")
    cluster.up("--nodes", "1", "--cpus", "4", "--prolog-flags", "Contain")
    data = scratch("data")
    e2e.make_tree(data, FILES)
    subprocess.run(["chmod", "-R", "a+rX", data], check=True)


def configure(more):
    cluster.configure(f"[tier.nvme]\npath = {cluster.tier}\nquota = 100M\nmin_free = 0\n{more}")


def conf_of(text):
    """What the agent's own configuration says, as a job shows it: its keys, and its tiers in their order."""
    keys = dict(re.findall(r"^(\w+) = (.*)$", text.split("[tier.")[0], flags=re.M))
    return keys, re.findall(r"^\[tier\.(\w+)\]", text, flags=re.M)


def job(*options, script=SHOW, env=None):
    """A batch job's output, and its id."""
    number = cluster.submit([f"--monarch-dataset={data}", *options], script, env=env)
    equal(cluster.wait(number), "COMPLETED", f"{options or env}: how the job ends", cluster.output(number))
    return cluster.output(number).decode(), number


def by_option():
    keys, tiers = conf_of(job("--monarch-prefetch=all", "--monarch-consistency=open", "--monarch-tiers=ssd,nvme")[0])
    equal((keys["prefetch"], keys["prefetch_burst"], keys["consistency"], tiers), ("auto", "4096P", "open", ["ssd", "nvme"]),
          "options: what the agent is told")
    out = job("--monarch-tiers=nvme", script=f"{SHOW}; env | grep -c MONARCH_IO_OPT; true",
              env={"MONARCH_IO_OPT_PREFETCH": "off", "MONARCH_IO_OPT_TIERS": "ssd"})[0]
    keys, tiers = conf_of(out)
    equal((keys["prefetch"], tiers, out.splitlines()[-1]), ("off", ["nvme"], "0"),
          "twins: the option comes before its twin, and no task sees one")


def in_a_step():
    """srun alone, and a step of a job that has no dataset."""
    command = ["srun", "--exclusive", f"--monarch-dataset={data}", "--monarch-tiers=ssd", "sh", "-c", SHOW]
    code, out, err = cluster.execute(command)
    equal((code, conf_of(out.decode())[1]), (0, ["ssd"]), "srun: what the agent is told", err)
    number = cluster.submit([], f"srun --monarch-dataset={data} --monarch-prefetch=off sh -c '{SHOW}'")
    equal(cluster.wait(number), "COMPLETED", "a step's option: how the job ends")
    equal(conf_of(cluster.output(number).decode())[0]["prefetch"], "off", "a step's option: what the agent is told")


def told(text):
    """What Monarch told a job in its output."""
    return [line for line in text.splitlines() if line.startswith("monarch: ")]


def waits():
    """The batch script begins with all staged, and a step of it does not wait once more; so do both tasks of an srun of its own."""
    show = "grep -E '^(state|percent|staged_files)=' $MONARCH_IO_STATE | paste -s -d ' '"
    out, number = job("--export=NONE", "--monarch-wait=full", script=f"{show}; srun /bin/true")
    contains(out, [f"state=staged-in percent=100 staged_files={FILES}\n"], "all is staged when the script begins")
    equal([re.sub(r" after \d+ s \(20 files, [^)]*\)", "", line) for line in told(out) if " or in " not in line],
          ["monarch: node1: 100% of the dataset is staged: the job begins"], "it is told once")
    equal(cluster.calls_for(number).count("--epilog"), 1, "the job is ended")
    code, out, err = cluster.execute(["srun", "-n2", "--exclusive", f"--monarch-dataset={data}", "--monarch-wait=100%", "sh", "-c", show])
    last = [line for line in told(err) if "no program has used the dataset" in line]
    equal((code, sorted(out.decode().splitlines()), len(last), len(told(err))), (0, 2 * [f"state=staged-in percent=100 staged_files={FILES}"], 1, 2),
          "srun: each task waits, and one tells, also at the end", err)


def waits_in_vain():
    """A PFS that gives little: the time ends the wait, and so does scancel."""
    configure("[agent]\npfs_bandwidth = 1K\n")
    out, _ = job("--monarch-wait=full", "--monarch-wait-timeout=3", script="grep ^state= $MONARCH_IO_STATE")
    contains(out, ["the time of --monarch-wait-timeout is over; staging goes on\nstate=staging-in\n"], "the time is over: the job begins")
    number = cluster.submit([f"--monarch-dataset={data}", "--monarch-wait=full"], "touch began")
    ok(e2e.wait_until(lambda: os.path.exists(f"{cluster.out}/{number}") and b"the job begins at 100%, or in 1" in cluster.output(number)), "a job that waits says so")
    cluster.execute(["scancel", str(number)])
    equal((cluster.wait(number), os.path.exists(f"{cluster.out}/began")), ("CANCELLED", False), "scancel ends a job that waits, and its script has not begun")


def unused():
    """A batch script whose program is not served: prefetch stops, and the job is told once, in its output."""
    configure("[agent]\nprefetch_patience = 1\npfs_opens = 2\n")
    out, number = job(script="until grep -q '^unused=1' $MONARCH_IO_STATE; do sleep 0.1; done; grep -E '^(state|unused)=' $MONARCH_IO_STATE")
    equal(out, "state=suspended\nunused=1\n", "unused: prefetch stops")
    equal([re.match("monarch: no program has used the dataset .* monarchctl container-args", line) is not None for line in cluster.closing(number)], [True],
          "unused: it is told once", cluster.closing(number))


def excluded():
    """What is excluded is read on the PFS, and is no part of what is waited for; hints are for the steps with Monarch."""
    names = sorted(os.path.relpath(f"{d}/{f}", data) for d, _, files in os.walk(data) for f in files)
    hints = 'echo "$0 $MONARCH_IO_HINTS $PYTHONPATH"'
    out, number = job("--monarch-wait=full", f"--monarch-exclude=nothing:{names[0]}", "--monarch-hints=torch", env={"MONARCH_IO_LOG": f"{cluster.out}/log"},
                      script=f"grep -E '^(percent|files)=' $MONARCH_IO_STATE; {e2e.BUILD}/monarchctl status $SLURM_JOB_ID; cat {data}/{names[0]} {data}/{names[1]} >/dev/null; "
                             f"PYTHONPATH=$PYTHONPATH:/own; srun sh -c '{hints}' step; srun --no-monarch sh -c '{hints}' without")
    contains(out, [f"step torch {cluster.prefix}/share/monarch/python:/own\n", "without  /own\n"], "hints: in a step and in one without")
    contains(out, [f"percent=100\nfiles={FILES - 1}\n", f"{FILES - 1} of {FILES - 1} (100%)\n", "State       staged-in\n"], "excluded: the others are staged, and are all there is")
    contains(cluster.comment(number), [" staged=100% "], "excluded: what is excluded is no part of sacct's share")
    lines = e2e.text_in(f"{cluster.out}/log")
    ok(re.search(rf"{names[0]}: PFS", lines) and re.search(rf"{names[1]}: tier nvme", lines), "excluded: where they are read", lines)
    equal(cluster.log_of(number).count("runs without"), 0, "excluded: with Monarch")


def leaves_nothing():
    cluster.nothing_left("all jobs", scratch("other"))


e2e.skip_all_if(slurm_lab.why_no_slurm())
begin()
e2e.main(by_option, in_a_step, excluded, waits, waits_in_vain, unused, leaves_nothing)
