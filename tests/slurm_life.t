#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""The life of a site: Slurm's daemons are killed and started again, the configuration is
read anew, while jobs with Monarch run and end. That Monarch is replaced meanwhile: packages.t."""

import os
import re
import signal
import time

import e2e
import slurm_lab
from e2e import contains, equal, ok, scratch, wait_until
from slurm_lab import HELD, Cluster, Dataset

# Slurm's own retries are minutes apart: slurmctld asks a node that did not answer each MessageTimeout, and has what a
# job's end lost told again by the next ping.
LINES = "MessageTimeout=5\nSlurmdTimeout=30\nTCPTimeout=2\nEpilogMsgTime=100\nKillWait=5\nBatchStartTimeout=10\n"
KINDS = ("munged", "slurmdbd", "slurmctld", "slurmd")  # in the order in which they need each other
cluster = data = None


class Site(Cluster):
    """One whose daemons are killed and started again."""

    def save(self, job):
        """Has slurmctld save what it knows of jobs, which it may do late: killed, it would run a job anew whose beginning it forgot."""
        now = time.time()
        def saved():
            self.execute(["scontrol", "update", f"jobid={job}", f"comment={time.time()}"], root=True)
            return wait_until(lambda: os.stat(self.saved_state()).st_mtime > now, 1)
        wait_until(saved, 60)

    def works(self):
        """Waits until all nodes are idle again."""
        return wait_until(lambda: self.nodes() and set(self.nodes().values()) == {"idle"}, slurm_lab.PATIENCE)


def submit(*options):
    """A job that reads, waits, and reads again."""
    job = cluster.submit(["-w", cluster.node_names[0], "--no-requeue", f"--monarch-dataset={data.path}", *options],
                         f"{data.read()}; {HELD}; {data.read()}")
    cluster.held(job)
    return job


def check(name, job, lines=("monarch=1 ",)):
    """It ended well, is accounted, and has left nothing."""
    begin = time.monotonic()
    equal((cluster.wait(job), cluster.output(job)), ("COMPLETED", data.sums * 2), f"{name}: the job ends, its bytes are right", cluster.jobs(job))
    ok(cluster.works(), f"{name}: its node is free, and not drained", cluster.nodes())
    contains(cluster.comment(job, slurm_lab.PATIENCE), lines, f"{name}: the line in sacct")
    cluster.nothing_left(name)
    print(f"# {name}: {time.monotonic() - begin:.1f} s until all that")


def next_job(name):
    job = submit()
    cluster.go(job)
    check(f"{name}, the next job", job, ["monarch=1 ", "hit="])


def reconfigured():
    """monarch.conf and Slurm's configuration are read anew in mid-job."""
    job = submit()
    cluster.configure("[tier.nvme]\npath = nowhere\n")
    equal(cluster.execute(["scontrol", "reconfigure"], root=True)[0], 0, "scontrol reconfigure")
    cluster.go(job)
    check("reconfigured", job)
    job = cluster.submit(["-w", cluster.node_names[0], f"--monarch-dataset={data.path}"], data.read(2))
    equal((cluster.wait(job), cluster.output(job).endswith(data.sums * 2)), ("COMPLETED", True), "with a wrong monarch.conf jobs run", cluster.jobs(job))
    cluster.configure()
    next_job("reconfigured")


def configless():
    """slurmd has its configuration, plugstack.conf included, from slurmctld."""
    conf = f"{scratch()}/configless.conf"
    e2e.write(conf, LINES + "SlurmctldParameters=enable_configless\n")
    cluster.down()
    cluster.up("--prolog-flags", "Contain", "--nodes", "1", "--slurm-conf", conf)
    name, command, env = cluster.kill("slurmd")
    slurmctld = cluster.kill("slurmctld")
    with open(cluster.conf, "r+", encoding="utf-8") as file:
        text = re.sub(r"(?m)^PlugStackConfig=.*\n", "", file.read())  # it is beside slurm.conf
        file.seek(0)
        file.write(text)
        file.truncate()
    cluster.restart(slurmctld)
    # What slurmd needs before it has its configuration, and where it keeps that, are the machine's own.
    places = 'mkdir -p /run/slurm /run/munge; mount -t tmpfs none /run/slurm; mount -t tmpfs none /run/munge; ln -s "$0" /run/munge/munge.socket.2; exec "$@"'
    socket = re.search(r"(?m)^AuthInfo=socket=(.*)$", text).group(1)
    env.pop(b"SLURM_CONF")
    env[b"MONARCH_LAB"] = os.fsencode(cluster.conf)
    port = re.search(r"(?m)^SlurmctldPort=(\d+)", text).group(1)
    command = ["unshare", "-m", "sh", "-c", places, socket, *command, "--conf-server", f"127.0.0.1:{port}"]
    cluster.restart((name, command, env))
    time.sleep(1)
    if not cluster.works():
        ok(False, "configless: slurmd starts", cluster.nodes())
        return
    next_job("configless")


def daemons_killed():
    """Slurm's daemons are killed while a job runs, one and all, and started again: the job ends well, and so does the next."""
    for kinds in (*((kind,) for kind in KINDS), KINDS):
        job = submit()
        cluster.save(job)
        killed = [cluster.kill(kind, signal.SIGKILL) for kind in kinds]
        for daemon in killed:
            cluster.restart(daemon)
        cluster.go(job)
        check(f"{', '.join(kinds)} killed in mid-job", job)
    next_job("daemons killed")


e2e.skip_all_if(slurm_lab.why_no_slurm())
e2e.write(f"{scratch()}/life.conf", LINES)
cluster = Site()
data = Dataset(scratch())
cluster.up("--prolog-flags", "Contain", "--nodes", "1", "--slurm-conf", f"{scratch()}/life.conf")
e2e.main(reconfigured, daemons_killed, configless)
