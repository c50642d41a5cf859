#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What users ask for besides their datasets, on a real Slurm: by option, by twin and in the script, for each kind of job; and told where a node
cannot give it."""

import json
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab  # pylint: disable=wrong-import-position
from e2e import SOURCE, contains, equal, ok, scratch
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


def listed():
    """By sbatch, salloc and srun, under what plugins provide: the manual's options, each with a line of text."""
    manual = set(re.findall(r"\\-\\-((?:no\\-)?monarch(?:\\-[a-z\\-]+)?)", e2e.text_in(f"{SOURCE}/doc/monarch.7")))
    names = {name.replace("\\-", "-") for name in manual}
    for command in "sbatch", "salloc", "srun":
        code, out, err = cluster.execute([command, "--help"])
        found = dict(re.findall(r"^ +--((?:no-)?monarch[a-z-]*)(?:=\S+)?\s+(.*)", out.decode().partition("Options provided by plugins:")[2], flags=re.M))
        equal((code, set(found)), (0, names), f"{command} --help lists the manual's options", out.decode()[-3000:], err)
        ok(all(len(text) > 10 for text in found.values()), f"{command} --help says what they do", found)


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


def capacity():
    """Less than it needs: without Monarch, or not at all, as the job wants it; and never more than it wants."""
    out, _ = job("--monarch-capacity=1K:64K")
    equal((conf_of(out)[1], re.findall(r"^quota = (.*)$", out, flags=re.M)), (["nvme"], ["64K"]), "no more than MAX is taken")
    out, _ = job("--monarch-capacity=1T", script=f"echo ran; echo $MONARCH_IO_RUN_DIR; ls {data} >/dev/null")
    why = "node1 has 200M of its tiers for the job now, less than the 1.00T that --monarch-capacity asks for"
    equal(out, f"monarch: the job runs without Monarch on node1: {why}\nran\n\n", "less than MIN: without Monarch, and it is told")
    number = cluster.submit([f"--monarch-dataset={data}", "--monarch-capacity=1T,require"], "echo ran")
    equal((cluster.wait(number), cluster.output(number).decode()), ("FAILED", f"monarch: the job fails, as --monarch-capacity has ,require, on node1: {why}\n"),
          "less than MIN with ,require: the job fails before it begins, and is told why")


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


def reported():
    """The job's user has its report in the file that was named, or root's log says why not."""
    read, name = f"find {data} -type f -exec cat {{}} + >/dev/null", f"{cluster.out}/report.%j.json"
    ready = "--monarch-wait=full"  # of a job that ends before its agent is there nothing is counted
    jobs = [job(ready, f"--monarch-report={name}", script=read)[1], job(ready, script=read, env={"MONARCH_IO_OPT_REPORT": name})[1]]
    for number in jobs:
        file = name.replace("%j", str(number))
        ok(e2e.wait_until(lambda file=file: os.path.exists(file)), "a report: it is there once the job has ended", cluster.log_of(number))
        told = json.loads(e2e.execute([f"{e2e.BUILD}/monarchctl", "report", "--json", file])[1])
        equal((told["source"], told["nodes_told"], told["opens"], os.stat(file).st_uid), ("file", 1, FILES, os.stat(f"{cluster.out}/{number}").st_uid),
              "a report: what it tells, and whose it is")
    number = job(ready, f"--monarch-report={cluster.state}/report", script=read)[1]
    ok(e2e.wait_until(lambda: "its report is not in" in cluster.log_of(number)), "a report where the user cannot write: the log says so", cluster.log_of(number))
    equal(os.path.exists(f"{cluster.state}/report"), False, "and there is none")


def only_some_tiers():
    """The job goes on with what there is, and its output says so once, though it has several steps."""
    out, _ = job("--monarch-tiers=ram,ssd", script=f"srun true; srun true; {SHOW}")
    equal(conf_of(out)[1], ["ssd"], "a tier that the node has not: the others are used")
    equal(told(out), ["monarch: node1 has no tier ram; it has nvme,ssd"], "a tier that the node has not: it is told once")


def leaves_nothing():
    cluster.nothing_left("all jobs", scratch("other"))


e2e.skip_all_if(slurm_lab.why_no_slurm())
begin()
e2e.main(listed, by_option, in_a_step, only_some_tiers, capacity, excluded, reported, waits, waits_in_vain, unused, leaves_nothing)
