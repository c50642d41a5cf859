#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""What users of a real Slurm ask for besides their datasets, and what monarch.conf allows them by partition, account and QOS: each job
runs and ends well, and who has no Monarch is told why, once."""

import os
import re

import e2e
import slurm_lab
from e2e import contains, equal, ok, scratch, wait_until
from slurm_lab import USER, Cluster, Dataset

WITHOUT = "monarch: the job runs without Monarch on "
HERE = "echo library=${LD_PRELOAD##*/}"
SERVED, NOT_SERVED = "library=libmonarch_preload.so", "library="
SHOW = "cat $MONARCH_IO_RUN_DIR/agent.conf"

cluster = data = None


def begin():
    global cluster, data
    cluster = Cluster()
    with open(f"{scratch()}/extra.conf", "w", encoding="utf-8") as file:
        file.write("AccountingStorageEnforce=associations,qos\n"
                   "PartitionName=closed Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=5\n")
    up()
    for words in (["add", "account", "students", "parent=lab"], ["add", "qos", "long"], ["add", "user", USER, "account=students"],
                  ["modify", "user", USER, "set", "qos=normal,long"]):
        code, out, err = cluster.execute(["sacctmgr", "-i", *words], root=True)
        if code != 0:
            raise RuntimeError(f"sacctmgr {words}: {out} {err}")
    data = Dataset(scratch())


def up():
    cluster.up("--nodes", "2", "--cpus", "4", "--prolog-flags", "Contain", "--slurm-conf", f"{scratch()}/extra.conf")


def configure(policy):
    cluster.configure(f"[tier.nvme]\npath = {cluster.tier}\nquota = 256M\n[tier.ssd]\npath = {cluster.new_tier('ssd')}\nquota = 64M\n{policy}")


def plain(name, *options, script=HERE, env=None):
    """A job and its output; it ends well."""
    job = cluster.submit(["--nodes=1", *options], script, env=env)
    equal(cluster.wait(job), "COMPLETED", f"{name}: how Slurm says that it ended")
    return job, cluster.output(job).decode()


def run(name, *options, **more):
    return plain(name, f"--monarch-dataset={data.path}", *options, **more)


def served(name, option):
    equal(run(name, option)[1].split("\n")[:1], [SERVED], f"{name}: it has Monarch, and nothing is told")


def refused(name, why, *options):
    job, out = run(name, *options)
    equal(out.count(WITHOUT), 1, f"{name}: that it has none is told once")
    ok(re.search(WITHOUT + r"node\d: " + why, out), f"{name}: and why", out)
    ok(NOT_SERVED in out.split("\n"), f"{name}: its programs have no library", out)
    equal(cluster.calls_for(job).count("--epilog"), 1, f"{name}: its end is one as of all jobs")


def by_job():
    """By what slurmctld says of the job. How it is told is policy_test.cc's."""
    off = r"the administrator has switched it off for jobs.* \(monarch.conf: \[policy{}\] enabled = off\)"
    for kind, name, option, other in (("partition", "closed", "--partition=closed", "--partition=main"),
                                      ("account", "Students", "--account=students", "--account=lab"),
                                      ("qos", "long", "--qos=long", "--qos=normal")):
        configure(f"[policy.{kind}.{name}]\nenabled = off\n")
        refused(f"{kind} off", off.format(rf"\.{kind}.{name.lower()}"), option)
        served(f"another {kind}", other)
        configure(f"[policy]\nenabled = off\n[policy.{kind}.{name}]\nenabled = on\n")
        served(f"{kind} on", option)
        refused(f"not the {kind}", off.format(""), other)


def of_liars():
    """The job's environment is the user's."""
    configure("[policy.partition.closed]\nenabled = off\n[policy.account.students]\nenabled = off\n[policy.qos.long]\nenabled = off\n")
    lies = {"SLURM_JOB_PARTITION": "main", "SLURM_JOB_ACCOUNT": "lab", "SLURM_JOB_QOS": "normal", "SLURM_JOB_USER": "root", "USER": "root"}
    told = ",".join(f"{name}={value}" for name, value in lies.items())
    refused("a lie at submission", "the administrator has switched it off for jobs of partition closed", "--partition=closed", f"--export=ALL,{told}")
    step = " ".join(f"{name}={value}" for name, value in lies.items()) + f" srun --monarch-dataset={data.path} sh -c '{HERE}'"
    out = plain("a lie to srun", "--partition=closed", "--account=students", script=step)[1]
    contains(out, ["the administrator has switched it off for jobs of account students"], "a lie to srun: helps nobody")
    equal(out.count(WITHOUT), 1, "a lie to srun: that is told once")


def defaults():
    """A job that names no dataset has that of its partition, unless it declines; others have none, and are told nothing."""
    ask = f"{HERE}; grep -E '^(prefetch|consistency) = ' $MONARCH_IO_RUN_DIR/agent.conf; cat $MONARCH_IO_RUN_DIR/datasets"
    configure(f"[policy.partition.closed]\ndefault_dataset = {data.path}\ndefault_options = prefetch=off consistency=open\n")
    for words, prefetch in (([], "off"), (["--monarch-prefetch=auto"], "auto")):
        job, out = plain(f"by default {words}", "--partition=closed", *words, script=ask)
        equal(out.rstrip("\n"), f"{SERVED}\nprefetch = {prefetch}\nconsistency = open\n{data.path}",
              f"by default {words}: it has the partition's dataset")
        equal(cluster.calls_for(job).count("--epilog"), 1, f"by default {words}: the job is ended")
    for name, words in (("--no-monarch", ["--partition=closed", "--no-monarch"]), ("another partition", ["--partition=main"])):
        job, out = plain(name, *words, script=f"srun sh -c '{HERE}'; {HERE}")
        equal(out, 2 * f"{NOT_SERVED}\n", f"{name}: none, and nothing is told")
        equal(cluster.calls_for(job).count("--start"), int("no-monarch" not in name), f"{name}: it is asked once at most")
    code, out, err = cluster.execute(["srun", "--nodes=2", "--partition=closed", "sh", "-c", HERE])
    equal((code, out.decode()), (0, 2 * f"{SERVED}\n"), "srun by default: both nodes have it", err)
    code, out, err = cluster.execute(["srun", "-Q", "--partition=closed", "sh", "-c", HERE], root=True)
    equal((code, out.decode(), err), (0, f"{NOT_SERVED}\n", ""), "root's job by default: none, and nothing is told")
    configure("[policy.partition.closed]\ndefault_dataset = /nowhere\n")
    job, out = plain("a default that is not there", "--partition=closed")
    equal(out, f"{NOT_SERVED}\n", "a default that is not there: nobody who did not ask is told")
    contains(cluster.log_of(job), ["/nowhere"], "a default that is not there: the log says so")


# ---- options of sbatch and srun: what each of them has the agent do is start_test.cc's


def conf_of(text):
    """What the agent's own configuration says, as a job shows it: its keys, and its tiers in their order."""
    keys = dict(re.findall(r"^(\w+) = (.*)$", text.split("[tier.")[0], flags=re.M))
    return keys, re.findall(r"^\[tier\.(\w+)\]", text, flags=re.M)


def by_option():
    """By option and by twin; hints are for the steps with Monarch."""
    configure("")
    hints = 'echo "$0 $MONARCH_IO_HINTS $PYTHONPATH"'
    out = run("options", "--monarch-prefetch=all", "--monarch-consistency=open", "--monarch-tiers=ssd,nvme", "--monarch-hints=torch", "--monarch-exclude=*.x:a",
              script=f"{SHOW}; cat $MONARCH_IO_RUN_DIR/exclude; PYTHONPATH=$PYTHONPATH:/own; echo; srun sh -c '{hints}' step; srun --no-monarch sh -c '{hints}' without")[1]
    keys, tiers = conf_of(out)
    equal((keys["prefetch"], keys["prefetch_burst"], keys["consistency"], tiers), ("auto", "4096P", "open", ["ssd", "nvme"]),
          "options: what the agent is told")
    contains(out, ["*.x:a", f"step torch {cluster.prefix}/share/monarch/python:/own\n", "without  /own\n"], "options: what is excluded, and hints in a step and in one without")
    out = run("twins", "--monarch-tiers=nvme", script=f"{SHOW}; env | grep -c MONARCH_IO_OPT; true",
              env={"MONARCH_IO_OPT_PREFETCH": "off", "MONARCH_IO_OPT_TIERS": "ssd"})[1]
    keys, tiers = conf_of(out)
    equal((keys["prefetch"], tiers, out.splitlines()[-1]), ("off", ["nvme"], "0"),
          "twins: the option comes before its twin, and no task sees one")


def told(text):
    """What Monarch told a job in its output."""
    return [line for line in text.splitlines() if line.startswith("monarch: ")]


def waits():
    """The batch script begins with all staged, and a step of it does not wait once more; so do both tasks of an srun of its own. A job that
    waits in vain can be cancelled."""
    show = "grep -E '^(state|percent|staged_files)=' $MONARCH_IO_STATE | paste -s -d ' '"
    staged = f"state=staged-in percent=100 staged_files={data.FILES}"
    job, out = run("a wait", "--export=NONE", "--monarch-wait=full", script=f"{show}; srun /bin/true")
    contains(out, [f"{staged}\n"], "all is staged when the script begins")
    equal([re.sub(r" after \d+ s \(\d+ files, [^)]*\)", "", line) for line in told(out) if " or in " not in line],
          ["monarch: node1: 100% of the dataset is staged: the job begins"], "it is told once")
    equal(cluster.calls_for(job).count("--epilog"), 1, "the job is ended")
    code, out, err = cluster.execute(["srun", "-N1", "-n2", "--exclusive", f"--monarch-dataset={data.path}", "--monarch-wait=100%", "sh", "-c", show])
    last = [line for line in told(err) if "no program has used the dataset" in line]
    equal((code, out.decode().splitlines(), len(last), len(told(err))), (0, 2 * [staged], 1, 2), "srun: each task waits, and one tells, also at the end", err)
    configure("[agent]\npfs_bandwidth = 1K\n")
    job = cluster.submit(["-N1", f"--monarch-dataset={data.path}", "--monarch-wait=full"], "touch began")
    ok(wait_until(lambda: os.path.exists(f"{cluster.out}/{job}") and b"the job begins at 100%, or in 1" in cluster.output(job)), "a job that waits says so")
    cluster.execute(["scancel", str(job)])
    equal((cluster.wait(job), os.path.exists(f"{cluster.out}/began")), ("CANCELLED", False), "scancel ends a job that waits, and its script has not begun")


def leaves_nothing():
    cluster.nothing_left("all jobs", f"{scratch()}/ssd")


e2e.skip_all_if(slurm_lab.why_no_slurm())
begin()
e2e.main(by_option, waits, by_job, of_liars, defaults, leaves_nothing)
