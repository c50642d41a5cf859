#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What users ask for besides their datasets, on a real Slurm: by option, by twin and in the script, for each kind of job; refused at
submission where it makes no sense, and told where a node cannot give it."""

import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab  # pylint: disable=wrong-import-position
from e2e import contains, equal, ok, scratch
from slurm_lab import Cluster

FILES = 20
SHOW = "cat $MONARCH_IO_RUN_DIR/agent.conf"

cluster = data = None


def begin():
    global cluster, data
    cluster = Cluster()
    other = cluster.new_tier("other")
    cluster.configure(f"[tier.nvme]\npath = {cluster.tier}\nquota = 100M\nmin_free = 0\n"
                      f"[tier.ssd]\npath = {other}\nquota = 100M\nmin_free = 0\n")
    cluster.up("--nodes", "1", "--cpus", "4", "--prolog-flags", "Contain")
    data = scratch("data")
    e2e.make_tree(data, FILES)
    subprocess.run(["chmod", "-R", "a+rX", data], check=True)


def conf_of(text):
    """What the agent's own configuration says, as a job shows it: its keys, and its tiers in their order."""
    keys = dict(re.findall(r"^(\w+) = (.*)$", text.split("[tier.")[0], flags=re.M))
    return keys, re.findall(r"^\[tier\.(\w+)\]", text, flags=re.M)


def job(*options, script=SHOW, env=None):
    """A batch job's output, and its id."""
    number = cluster.submit([f"--monarch-dataset={data}", *options], script, env=env)
    equal(cluster.wait(number), "COMPLETED", f"{options or env}: how the job ends", cluster.output(number))
    return cluster.output(number).decode(), number


def as_configured():
    keys, tiers = conf_of(job()[0])
    equal((keys["prefetch"], keys["prefetch_burst"], keys["consistency"], tiers), ("auto", "auto", "job", ["nvme", "ssd"]),
          "without options all is as configured")


def by_option():
    for words, key, want in ((["--monarch-prefetch=off"], "prefetch", "off"), (["--monarch-prefetch=auto"], "prefetch", "auto"),
                             (["--monarch-consistency=open"], "consistency", "open")):
        equal(conf_of(job(*words)[0])[0][key], want, f"{words[0]}: what the agent is told")
    keys, _ = conf_of(job("--monarch-prefetch=all")[0])
    ok(keys["prefetch"] == "auto" and int(keys["prefetch_burst"]) == 1 << 62, "--monarch-prefetch=all: no bound", keys)
    equal(conf_of(job("--monarch-tiers=ssd,nvme")[0])[1], ["ssd", "nvme"], "--monarch-tiers: their order")


def by_twin():
    keys, tiers = conf_of(job(env={"MONARCH_IO_OPT_PREFETCH": "off", "MONARCH_IO_OPT_CONSISTENCY": "open", "MONARCH_IO_OPT_TIERS": "ssd"})[0])
    equal((keys["prefetch"], keys["consistency"], tiers), ("off", "open", ["ssd"]), "twins: what the agent is told")
    equal(conf_of(job("--monarch-tiers=nvme", env={"MONARCH_IO_OPT_TIERS": "ssd"})[0])[1], ["nvme"], "the option comes before its twin")
    shown = job("--monarch-tiers=nvme", script="env | grep -c MONARCH_IO_OPT; true", env={"MONARCH_IO_OPT_TIERS": "ssd"})
    equal(shown[0].strip(), "0", "no task sees a twin")


def in_a_step():
    """srun alone, and a step of a job that has no dataset."""
    command = ["srun", "--exclusive", f"--monarch-dataset={data}", "--monarch-tiers=ssd", "sh", "-c", SHOW]
    code, out, err = cluster.execute(command)
    equal((code, conf_of(out.decode())[1]), (0, ["ssd"]), "srun: what the agent is told", err)
    number = cluster.submit([], f"srun --monarch-dataset={data} --monarch-prefetch=off sh -c '{SHOW}'")
    equal(cluster.wait(number), "COMPLETED", "a step's option: how the job ends")
    equal(conf_of(cluster.output(number).decode())[0]["prefetch"], "off", "a step's option: what the agent is told")


def only_some_tiers():
    """The job goes on with what there is, and its output says so once, though it has several steps."""
    out, _ = job("--monarch-tiers=ram,ssd", script=f"srun true; srun true; {SHOW}")
    equal(conf_of(out)[1], ["ssd"], "a tier that the node has not: the others are used")
    told = [line for line in out.splitlines() if line.startswith("monarch: ")]
    equal(told, ["monarch: node1 has no tier ram; it has nvme,ssd"], "a tier that the node has not: it is told once")


def no_tier():
    out, number = job("--monarch-tiers=ram", script=f"find {data} -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum")
    told = [line for line in out.splitlines() if line.startswith("monarch: ")]
    equal(told, ["monarch: the job runs without Monarch on node1: node1 has no tier ram; it has nvme,ssd: name one of these in "
                 "--monarch-tiers, or leave it out"], "no tier is left: it is told")
    equal(len(out.splitlines()), FILES + 1, "no tier is left: the job runs all the same")
    contains(cluster.log_of(number), ["has no tier ram"], "no tier is left: the admin's log")


def prefetch_of_the_admin():
    cluster.configure(f"[tier.nvme]\npath = {cluster.tier}\nquota = 100M\nmin_free = 0\n[agent]\nprefetch = off\n")
    out, _ = job("--monarch-prefetch=all")
    equal(conf_of(out)[0]["prefetch"], "off", "what the admin switched off stays off")
    contains(out, ["monarch: --monarch-prefetch=all has no effect on node1"], "what the admin switched off: it is told")


def refused():
    before = cluster.execute(["squeue", "-h", "-a", "-o", "%A"])[1]
    for word, parts in (("--monarch-prefetch=on", ["auto, all, off", "'on'"]), ("--monarch-consistency=never", ["job, open"]),
                        ("--monarch-tiers=a,,b", ["separated by commas", "monarchctl tiers"])):
        for command in (["sbatch", "--wrap=true"], ["salloc", "true"], ["srun", "true"]):
            code, out, err = cluster.execute([command[0], f"--monarch-dataset={data}", word, *command[1:]])
            ok(code not in (0, "hung") and not out, f"{command[0]} refuses {word}", code, out, err)
            contains(err, [word.split("=", maxsplit=1)[0], *parts], f"{command[0]} refuses {word}: the message")
        name = "MONARCH_IO_OPT_" + word.split("=", maxsplit=1)[0].rsplit("-", maxsplit=1)[1].upper()
        for value in word.split("=")[1], "":
            code, out, err = cluster.execute(["sbatch", f"--monarch-dataset={data}", "--wrap=true"], env={name: value})
            ok(code not in (0, "hung") and not out, f"sbatch refuses {name}={value}", code, out, err)
    equal(cluster.execute(["squeue", "-h", "-a", "-o", "%A"])[1], before, "nothing that was refused is in the queue")


def leaves_nothing():
    cluster.nothing_left("all jobs", scratch("other"))


if reason := slurm_lab.why_no_slurm():
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)
begin()
e2e.main(as_configured, by_option, by_twin, in_a_step, only_some_tiers, no_tier, refused, prefetch_of_the_admin, leaves_nothing)
