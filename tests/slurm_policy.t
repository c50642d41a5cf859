#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What monarch.conf allows jobs of a real Slurm by partition, account, QOS, user, group and dataset: each job runs and ends well, and
who has no Monarch is told why, once."""

import glob
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab  # pylint: disable=wrong-import-position
from e2e import contains, equal, ok, scratch, wait_until
from slurm_lab import USER, Cluster, Dataset

WITHOUT = "monarch: the job runs without Monarch on "
HERE = "echo library=${LD_PRELOAD##*/}"
SERVED, NOT_SERVED = "library=libmonarch_preload.so", "library="

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
    cluster.up("--nodes", "2", "--prolog-flags", "Contain", "--slurm-conf", f"{scratch()}/extra.conf")


def configure(policy):
    cluster.configure(f"[tier.nvme]\npath = {cluster.tier}\nquota = 256M\n[tier.ssd]\npath = {cluster.new_tier('ssd')}\nquota = 64M\n{policy}")


def run(name, *options, dataset="", script=HERE):
    """A job's output; it ends well."""
    job = cluster.submit([f"--monarch-dataset={dataset or data.path}", "--nodes=1", *options], script)
    equal(cluster.wait(job), "COMPLETED", f"{name}: how Slurm says that it ended")
    return job, cluster.output(job).decode()


def served(name, *options, **more):
    job, out = run(name, *options, **more)
    equal(out.split("\n")[:1], [SERVED], f"{name}: it has Monarch, and nothing is told")
    return job


def refused(name, why, *options, **more):
    job, out = run(name, *options, **more)
    equal(out.count(WITHOUT), 1, f"{name}: that it has none is told once")
    ok(re.search(WITHOUT + r"node\d: " + why, out), f"{name}: and why", out)
    ok(NOT_SERVED in out.split("\n"), f"{name}: its programs have no library", out)
    equal(cluster.calls_for(job).count("--epilog"), 1, f"{name}: its end is one as of all jobs")
    return job


def by_job():
    """By what slurmctld says of the job."""
    for kind, name, option, other in (("partition", "closed", "--partition=closed", "--partition=main"),
                                      ("account", "Students", "--account=students", "--account=lab"),
                                      ("qos", "long", "--qos=long", "--qos=normal")):
        text = {"qos": "with QOS long"}.get(kind, f"of {kind} {name.lower()}")
        configure(f"[policy.{kind}.{name}]\nenabled = off\n")
        refused(f"{kind} off", rf"the administrator has switched it off for jobs {text} \(monarch.conf: \[policy.{kind}.{name.lower()}\] enabled = off\)\n",
                option)
        served(f"another {kind}", other)
        configure(f"[policy]\nenabled = off\n[policy.{kind}.{name}]\nenabled = on\n")
        served(f"{kind} on", option)
        refused(f"not the {kind}", rf"the administrator has switched it off for jobs \(monarch.conf: \[policy\] enabled = off\); it is on for {kind} {name if kind == 'partition' else name.lower()}\n", other)


def by_user():
    for text, why in ((f"deny_users = root, {USER}", f"user {USER} may not use it"), (f"deny_users = {cluster.user.pw_uid}", "user "),
                      ("allow_users = root", f"user {USER} is not among"), (f"deny_groups = {USER}", f"user {USER} is in group {USER}"),
                      (f"allow_users = {USER}\ndeny_groups = {cluster.user.pw_gid}", "user ")):
        configure(f"[policy]\n{text}\n")
        refused(text.replace("\n", "; "), why)
    configure(f"[policy]\ndeny_users = root\nallow_groups = {USER}\n")
    served("a group that is allowed")


def of_kinds():
    """A job of several partitions is in the one that it runs in; tasks of arrays and components are jobs of their own."""
    configure("[policy.partition.closed]\nenabled = off\n")
    refused("several partitions", r"the administrator has switched it off for jobs of partition closed", "--partition=main,closed")
    job = cluster.submit([f"--monarch-dataset={data.path}", "--nodes=1", "--array=0-1", "--partition=closed", "--output=%A_%a"], HERE)
    equal(cluster.wait(job), "COMPLETED", "an array: how Slurm says that it ended")
    for task in range(2):
        equal(cluster.output(f"{job}_{task}").decode().count(WITHOUT), 1, f"an array: task {task} is told")
    code, out, err = cluster.execute(["salloc", "--quiet", "--nodes=1", "--exclusive", "--partition=main", f"--monarch-dataset={data.path}", ":",
                                      "--nodes=1", "--exclusive", "--partition=closed", f"--monarch-dataset={data.path}",
                                      "srun", "--het-group=0,1", "--label", "sh", "-c", HERE])
    equal(code, 0, "a heterogeneous job: exit code")
    equal(sorted(out.decode().split("\n")), ["", "0: " + SERVED, "1: " + NOT_SERVED], "a heterogeneous job: each component by its own partition")
    equal(err.count(WITHOUT), 1, "a heterogeneous job: the second is told")


def of_liars():
    """The job's environment is the user's."""
    configure("[policy.partition.closed]\nenabled = off\n[policy.account.students]\nenabled = off\n[policy.qos.long]\nenabled = off\n")
    lies = {"SLURM_JOB_PARTITION": "main", "SLURM_JOB_ACCOUNT": "lab", "SLURM_JOB_QOS": "normal", "SLURM_JOB_USER": "root", "USER": "root"}
    told = ",".join(f"{name}={value}" for name, value in lies.items())
    refused("a lie at submission", "the administrator has switched it off for jobs of partition closed", "--partition=closed", f"--export=ALL,{told}")
    step = " ".join(f"{name}={value}" for name, value in lies.items()) + f" srun --monarch-dataset={data.path} sh -c '{HERE}'"
    job = cluster.submit(["--nodes=1", "--partition=closed", "--account=students"], step)
    equal(cluster.wait(job), "COMPLETED", "a lie to srun: how Slurm says that it ended")
    out = cluster.output(job).decode()
    contains(out, ["the administrator has switched it off for jobs of account students"], "a lie to srun: helps nobody")
    equal(out.count(WITHOUT), 1, "a lie to srun: that is told once")


def by_dataset():
    secret = f"{scratch('private')}/secret"
    os.makedirs(secret, exist_ok=True)
    subprocess.run(["chmod", "-R", "a+rX", scratch("private")], check=True)
    link, way = f"{scratch('links')}/link", f"{scratch('links')}/way"
    for name, target in (link, secret), (way, scratch("private")):
        if not os.path.islink(name):
            os.symlink(target, name)
    configure(f"[policy]\ndeny_datasets = {secret}\n")
    for name, path in (("a denied dataset", secret), ("a link to one", link), ("one below a link", f"{way}/secret"),
                       ("one by ..", f"{scratch('links')}/../private/secret")):
        refused(name, "dataset .* is excluded by the administrator", dataset=path)
    os.makedirs(f"{secret}/below", exist_ok=True)
    subprocess.run(["chmod", "-R", "a+rX", secret], check=True)
    refused("a directory in one", f"dataset .* is in {secret}, which the administrator excludes", dataset=f"{secret}/below")
    refused("what holds a denied dataset", f"dataset .* holds {secret}, which", dataset=scratch("private"))
    served("another dataset")
    configure(f"[policy]\nallow_datasets = {scratch('links')}/way\nallow_datasets = /nowhere\n")
    served("an allowed dataset, by a link", dataset=secret)
    refused("another than the allowed", f"dataset {data.path} is in none of the directories that the administrator allows: ")


def limits():
    configure("[policy]\nmax_files = 100\npfs_opens = 50\n[policy.qos.long]\ntiers = ssd\njob_capacity = 25%\nmax_files = 10\n")
    script = f"{data.read(2)}; touch read; while [ ! -e go ]; do sleep 0.1; done"
    job = cluster.submit([f"--monarch-dataset={data.path}", "--nodes=1", "--qos=long"], script)
    cluster.wait_running(job, "read")
    (conf,) = glob.glob(f"{cluster.state}/run/lab.{job}.*/files/agent.conf")
    with open(conf, encoding="utf-8") as file:
        text = file.read()
    for line in "max_files = 10", "pfs_opens = 50":
        contains(text, [f"\n{line}\n"], f"limits: the agent is told {line}")
    (node,) = [record["NodeList"] for record in cluster.jobs(job)]
    tiers = cluster.record(job, node)["tiers"]
    equal([(t["name"], t["quota"], t["reserved"]) for t in tiers], [("ssd", 16 << 20, 16 << 20)], "limits: one tier, and a quarter of its quota")
    with open(f"{cluster.out}/go", "w", encoding="utf-8"):
        pass
    equal(cluster.wait(job), "COMPLETED", "limits: how Slurm says that it ended")
    ok(cluster.output(job).startswith(data.sums), "limits: what it read is right")
    os.unlink(f"{cluster.out}/go")


def defaults():
    """A job that names no dataset has that of its partition, unless it declines; others have none, and are told nothing."""
    ask = f"{HERE}; grep -E '^(prefetch|consistency) = ' $MONARCH_IO_RUN_DIR/agent.conf; cat $MONARCH_IO_RUN_DIR/datasets"
    configure(f"[policy.partition.closed]\ndefault_dataset = {data.path}\ndefault_options = prefetch=off consistency=open\n")
    for words, prefetch in (([], "off"), (["--monarch-prefetch=auto"], "auto")):
        job = cluster.submit(["--nodes=1", "--partition=closed", *words], ask)
        equal(cluster.wait(job), "COMPLETED", f"by default {words}: how Slurm says that it ended")
        equal(cluster.output(job).decode().rstrip("\n"), f"{SERVED}\nprefetch = {prefetch}\nconsistency = open\n{data.path}",
              f"by default {words}: it has the partition's dataset")
        equal(cluster.calls_for(job).count("--epilog"), 1, f"by default {words}: the job is ended")
    for name, words in (("--no-monarch", ["--partition=closed", "--no-monarch"]), ("another partition", ["--partition=main"])):
        job = cluster.submit(["--nodes=1", *words], f"srun sh -c '{HERE}'; {HERE}")
        equal(cluster.wait(job), "COMPLETED", f"{name}: how Slurm says that it ended")
        equal(cluster.output(job).decode(), 2 * f"{NOT_SERVED}\n", f"{name}: none, and nothing is told")
        equal(cluster.calls_for(job).count("--start"), int("no-monarch" not in name), f"{name}: it is asked once at most")
    code, out, err = cluster.execute(["srun", "--nodes=2", "--partition=closed", "sh", "-c", HERE])
    equal((code, out.decode()), (0, 2 * f"{SERVED}\n"), "srun by default: both nodes have it", err)
    code, out, err = cluster.execute(["srun", "-Q", "--partition=closed", "sh", "-c", HERE], root=True)
    equal((code, out.decode(), err), (0, f"{NOT_SERVED}\n", ""), "root's job by default: none, and nothing is told")
    configure("[policy.partition.closed]\ndefault_dataset = /nowhere\n")
    job = cluster.submit(["--nodes=1", "--partition=closed"], HERE)
    equal(cluster.wait(job), "COMPLETED", "a default that is not there: how Slurm says that it ended")
    equal(cluster.output(job).decode(), f"{NOT_SERVED}\n", "a default that is not there: nobody who did not ask is told")
    contains(cluster.log_of(job), ["/nowhere"], "a default that is not there: the log says so")


def bounds():
    """What users ask for is theirs as far as the administrator lets them."""
    configure("[policy.qos.long]\nmax_prefetch = auto\nmax_wait = 0\ndeny_options = consistency\n")
    script = "grep -E '^(prefetch|prefetch_burst|consistency) = ' $MONARCH_IO_RUN_DIR/agent.conf"
    words = ["--monarch-prefetch=all", "--monarch-consistency=open"]
    job, out = run("beyond bounds", "--qos=long", *words, script=script)
    told = [line for line in out.split("\n") if line.startswith("monarch: ")]
    equal(len(told), 1, "beyond bounds: it is told once")
    contains(out, ["prefetch = auto\nprefetch_burst = auto\nconsistency = job\n", "--monarch-prefetch is at most auto here",
                   "--monarch-consistency has no effect here (monarch.conf: [policy.qos.long] deny_options)"], "beyond bounds: what it has")
    _, out = run("within bounds", "--qos=normal", *words, script=script)
    contains(out, ["consistency = open\n"], "within bounds: what it has")
    ok("monarch: " not in out, "within bounds: nothing is told", out)


def slow_slurmctld():
    """What cannot be asked costs a second at most, and leaves the general section."""
    mode, took, real = f"{scratch()}/mode", f"{scratch()}/took", f"{scratch()}/monarchd.real"
    dead = f"{scratch()}/dead.conf"
    with open(cluster.conf, encoding="utf-8") as file:
        text = file.read()
    with open(dead, "w", encoding="utf-8") as file:
        file.write(re.sub(r"(?m)^SlurmctldPort=.*$", "SlurmctldPort=1", text))
    os.rename(cluster.monarchd, real)
    pid = cluster.status()["daemons"]["slurmctld"]["pid"]
    with open(cluster.monarchd, "w", encoding="utf-8") as file:
        file.write(f"""#!/bin/sh
[ "$1" = --start ] || exec {real} "$@"
mode=$(cat {mode})
[ "$mode" != hangs ] || kill -STOP {pid}
[ "$mode" != "is dead" ] || export SLURM_CONF={dead}
begin=$(date +%s%3N)
{real} "$@"
code=$?
echo $(($(date +%s%3N) - begin)) >>{took}
[ "$mode" != hangs ] || kill -CONT {pid}
exit $code
""")
    os.chmod(cluster.monarchd, 0o755)
    try:
        for state in "answers", "hangs", "is dead":
            with open(mode, "w", encoding="utf-8") as file:
                file.write(state)
            for default, policy in (("on", ""), ("off", "[policy]\nenabled = off\n")):
                if os.path.exists(took):
                    os.unlink(took)
                configure(policy + "[policy.partition.main]\nenabled = " + ("off" if default == "on" else "on") + "\n")
                name = f"slurmctld {state}, default {default}"
                expect_served = (default == "on") == (state != "answers")
                job = served(name) if expect_served else refused(name, "the administrator has switched it off")
                with open(took, encoding="utf-8") as file:
                    times = [int(line) for line in file]
                ok(max(times) < 10000 and (state == "answers" or max(times) >= 1000), f"{name}: its start takes a second longer at most", times)
                ok(all(t < 1000 for t in sorted(times)[:-1]), f"{name}: and is not asked again", times)
                log = cluster.log_of(job)
                equal(log.count("are not known: [policy] holds for it alone"), int(state != "answers"), f"{name}: the log says so once")
    finally:
        os.rename(real, cluster.monarchd)
        with open(dead, "w", encoding="utf-8") as file:  # the keeper asks of those jobs what their starts knew
            file.write(text)


def restart(plugin_words):
    """Not before the database has all jobs' ends: slurmctld would forget them."""
    wait_until(lambda: not os.listdir(f"{cluster.state}/spool"), 60)
    cluster.words = plugin_words
    up()


def words():
    """plugstack.conf goes before monarch.conf."""
    configure("[policy]\nenabled = off\n[agent]\nprefetch = on\n")
    restart("policy.enabled=on agent.prefetch=off policy.partition.closed.enabled=off")
    script = f"{HERE}; touch begun; while [ ! -e go ]; do sleep 0.1; done"
    job = cluster.submit([f"--monarch-dataset={data.path}", "--nodes=1"], script)
    cluster.wait_running(job, "begun")
    (conf,) = glob.glob(f"{cluster.state}/run/lab.{job}.*/files/agent.conf")
    with open(conf, encoding="utf-8") as file:
        contains(file.read(), ["\nprefetch = off\n"], "words of plugstack.conf go before monarch.conf")
    with open(f"{cluster.out}/go", "w", encoding="utf-8"):
        pass
    equal(cluster.wait(job), "COMPLETED", "words of plugstack.conf: how Slurm says that it ended")
    refused("a section of plugstack.conf alone", "the administrator has switched it off for jobs of partition closed", "--partition=closed")
    restart("agent.prefetch=sometimes")
    refused("a word that is wrong", "plugstack.conf: agent.prefetch=sometimes: 'sometimes' is none of auto, on, off")
    restart("")


def leaves_nothing():
    cluster.nothing_left("all jobs", f"{scratch()}/ssd")


if reason := slurm_lab.why_no_slurm():
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)
begin()
e2e.main(by_job, by_user, of_kinds, of_liars, by_dataset, limits, defaults, bounds, slow_slurmctld, words, leaves_nothing)
