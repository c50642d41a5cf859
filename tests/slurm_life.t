#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The life of a site: Slurm's daemons are killed and started again at any moment, the configuration is
read anew, Monarch is replaced, while jobs with Monarch run and end. MONARCH_TEST_ALL=1: more of each."""

import contextlib
import glob
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab  # pylint: disable=wrong-import-position
from e2e import contains, equal, ok, scratch, wait_until  # pylint: disable=wrong-import-position
from slurm_lab import HELD, Cluster, Dataset  # pylint: disable=wrong-import-position

ALL = os.environ.get("MONARCH_TEST_ALL") == "1"
# Slurm's own retries are minutes apart: slurmctld asks a node that did not answer each MessageTimeout, and has what a
# job's end lost told again by the next ping.
LINES = "MessageTimeout=5\nSlurmdTimeout=30\nTCPTimeout=2\nEpilogMsgTime=100\nKillWait=5\nBatchStartTimeout=10\n"
KINDS = ("slurmctld", "slurmd", "slurmdbd", "munged")
cluster = data = None


class Site(Cluster):
    """One whose daemons can be killed and started again."""

    def __init__(self, **more):
        super().__init__(**more)
        self._again = {}  # daemon: its process, where this test has started it

    def name_of(self, kind):
        return f"slurmd@{self.node_names[0]}" if kind == "slurmd" else kind

    def kill(self, kind, how=signal.SIGKILL):
        """Kills a daemon; what restart() is to be given."""
        name = self.name_of(kind)
        process = self._again.pop(name, None)
        pid = process.pid if process else self.status()["daemons"][name]["pid"]
        with open(f"/proc/{pid}/cmdline", "rb") as line, open(f"/proc/{pid}/environ", "rb") as environment:
            command = line.read().split(b"\0")[:-1]
            env = dict(word.split(b"=", 1) for word in environment.read().split(b"\0") if b"=" in word)
        if kind == "munged":
            command = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", *command]
        os.kill(pid, how)
        wait_until(lambda: process.poll() is not None if process else not os.path.exists(f"/proc/{pid}"))
        return name, command, env

    def save(self, job):
        """Has slurmctld save what it knows of jobs, which it may do late: killed, it would run a job anew whose beginning it forgot."""
        with open(self.conf, encoding="utf-8") as file:
            state = re.search(r"(?mi)^StateSaveLocation=(.*)$", file.read()).group(1)
        now = time.time()
        def saved():
            self.execute(["scontrol", "update", f"jobid={job}", f"comment={time.time()}"], root=True)
            return wait_until(lambda: os.stat(f"{state}/job_state").st_mtime > now, 1)
        wait_until(saved, 60)

    def restart(self, killed):
        name, command, env = killed
        self._again[name] = e2e.start(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def restart_all(self, killed):
        """As systemd does it: in the order in which they need each other. slurmctld ends where it has saved nothing and slurmdbd
        does not answer yet, and is started again until it stays."""
        def stays(daemon):
            try:
                self._again[daemon[0]].wait(1.5)
            except subprocess.TimeoutExpired:
                return True
            self.restart(daemon)
            return False
        order = ["munged", "slurmdbd", "slurmctld", "slurmd"]
        for daemon in sorted(killed, key=lambda daemon: order.index(daemon[0].partition("@")[0])):
            self.restart(daemon)
            if daemon[0] == "slurmctld":
                wait_until(lambda daemon=daemon: stays(daemon), 60)

    def forgot(self, job):
        """Whether slurmctld knows of no such job: it was killed before it had saved it."""
        return "Invalid job id" in self.execute(["scontrol", "show", "job", str(job)])[2]

    def works(self):
        """Waits until all nodes are idle again."""
        return wait_until(lambda: self.nodes() and set(self.nodes().values()) == {"idle"}, slurm_lab.PATIENCE)

    def down(self):
        for process in self._again.values():
            e2e.end(process)
        self._again.clear()
        super().down()


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
    cluster.configure(f"[tier.nvme]\npath = {cluster.tier}\nquota = 1M\nmedium = nvme\n")
    equal(cluster.execute(["scontrol", "reconfigure"], root=True)[0], 0, "scontrol reconfigure")
    cluster.go(job)
    check("reconfigured", job)
    cluster.configure("[tier.nvme]\npath = nowhere\n")
    equal(cluster.execute(["scontrol", "reconfigure"], root=True)[0], 0, "scontrol reconfigure")
    job = cluster.submit(["-w", cluster.node_names[0], f"--monarch-dataset={data.path}"], data.read(2))
    equal((cluster.wait(job), cluster.output(job).endswith(data.sums * 2)), ("COMPLETED", True), "with a wrong monarch.conf jobs run", cluster.jobs(job))
    cluster.configure()
    next_job("reconfigured")


def replaced():
    """Monarch is replaced in mid-job, as a package manager does: by files of the same names. The job keeps its agent."""
    job = submit()
    for directory, _, names in os.walk(cluster.prefix):
        for name in names:
            path = f"{directory}/{name}"
            if os.path.islink(path) or not re.search(r"/(bin|sbin|lib|libexec)/", path):
                continue
            shutil.copy2(path, path + ".new")
            os.rename(path + ".new", path)
    cluster.go(job)
    check("Monarch is replaced in mid-job", job)


def other_version():
    """The job's agent is of a version whose files this one does not read: what begins then reads the PFS, and the epilog cleans."""
    job = submit()
    run = cluster.record(job)["run_dir"]
    for name in "board", "catalog":
        with open(f"{run}/{name}", "r+b") as file:
            magic, version = struct.unpack("<QI", file.read(12))
            ok(magic and 0 < version < 1000, f"another version: {name} has one", version)
            file.seek(8)
            file.write(struct.pack("<I", version + 1))
    cluster.go(job)
    equal((cluster.wait(job), cluster.output(job)), ("COMPLETED", data.sums * 2), "another version: the job ends, its bytes are right", cluster.jobs(job))
    wait_until(lambda: " monarch=1 " in cluster.log_of(job))
    contains(cluster.log_of(job), ["counters=lost"], "another version: the line tells that its counters cannot be read")
    cluster.nothing_left("another version")


def configless():
    """slurmd has its configuration, plugstack.conf included, from slurmctld."""
    conf = f"{scratch()}/configless.conf"
    with open(conf, "w", encoding="utf-8") as file:
        file.write(LINES + "SlurmctldParameters=enable_configless\n")
    cluster.down()
    cluster.up("--prolog-flags", "Contain", "--nodes", "1", "--slurm-conf", conf)
    _, command, env = cluster.kill("slurmd", signal.SIGTERM)
    slurmctld = cluster.kill("slurmctld", signal.SIGTERM)
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
    cluster.restart((cluster.name_of("slurmd"), command, env))
    time.sleep(1)
    if not cluster.works():
        ok(False, "configless: slurmd starts", cluster.nodes())
        return
    next_job("configless")


def pids(*words):
    return [int(pid) for pid in subprocess.run(["pgrep", *words], stdout=subprocess.PIPE, check=False).stdout.split()]


def random_kills():
    """Anything of Slurm's and of Monarch's is killed at any moment of a job; the next job is well."""
    seed = int(os.environ.get("MONARCH_TEST_SEED", time.time_ns() % 1000000))
    draw = random.Random(seed)
    print(f"# MONARCH_TEST_SEED={seed}")
    for number in range(20 if ALL else 3):
        kinds = draw.sample((*KINDS, "monarchd", "slurmstepd"), draw.randint(1, 3))
        moment = draw.uniform(0, 1.5)
        name = f"{number + 1}: {', '.join(kinds)} killed after {moment:.1f} s"
        job = cluster.submit(["-w", cluster.node_names[0], "--no-requeue", f"--monarch-dataset={data.path}"], data.read(2) + "; sleep 0.3")
        time.sleep(moment)
        killed = []
        for kind in kinds:
            if kind in KINDS:
                killed.append(cluster.kill(kind))
                continue
            pattern = f"^[^ ]*monarchd .*{cluster.state}" if kind == "monarchd" else rf"^slurmstepd: \[{job}\."
            for pid in pids("-f", pattern):
                orphans = pids("-P", str(pid))  # a step's own processes: what the extern step waits with outlives its slurmstepd
                for process in [pid, *(orphans if kind == "slurmstepd" else [])]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
        time.sleep(draw.uniform(0, 1))
        cluster.restart_all(killed)
        # A job whose slurmstepd was killed stays with Slurm until its time limit, or until somebody cancels it.
        def over(job=job, may_be_forgotten="slurmctld" in kinds):
            return set(cluster.state_of(job).split(",")) <= slurm_lab.ENDED or (may_be_forgotten and cluster.forgot(job))
        if not wait_until(over, 10 * e2e.SLOW):
            cluster.execute(["scancel", str(job)], root=True)
        ok(wait_until(over, slurm_lab.PATIENCE), f"{name}: the job ends", cluster.jobs(job))
        state = cluster.state_of(job)
        if state == "COMPLETED":
            equal(cluster.output(job), data.sums * 2, f"{name}: its bytes are right")
        comes_again = "slurmctld" in kinds and cluster.forgot(job)
        if comes_again:
            # The id comes again: slurmd would take what a killed slurmstepd left for that job, and drain the node. Its start removes that.
            cluster.restart(cluster.kill("slurmd"))
            wait_until(lambda job=job: not pids("-f", rf"^slurmstepd: \[{job}\."), slurm_lab.PATIENCE)
        if "slurmctld" in kinds:  # it may have begun a job anew whose end it forgot, and slurmd may not
            cluster.execute(["scancel", f"--user={slurm_lab.USER}"], root=True)
        if not cluster.works():  # Slurm itself may take a node for failed whose daemon was away, and wait for an admin
            print(f"# {name}: {cluster.nodes()}")
            cluster.execute(["scontrol", "update", f"nodename={cluster.node_names[0]}", "state=resume"], root=True)
            cluster.works()
        def clean(may_be_forgotten="slurmctld" in kinds):
            for line in glob.glob(f"{cluster.state}/spool/*.json") if may_be_forgotten else []:  # no row of the job's is that run's
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(line)
            return not cluster.left()
        # Lines that wait for slurmdbd are tried ever more seldom. If all of Monarch's was killed behind the job's last hook, nobody is
        # there to clean: the next job's first hook is.
        def unattended(job=job, killed="monarchd" in kinds):
            return killed and not cluster.processes() and cluster.state_of(job) != "RUNNING"
        def looked_after(clean=clean, unattended=unattended):
            return clean() or unattended() and not wait_until(lambda: clean() or cluster.processes(), 10)
        wait_until(looked_after, slurm_lab.PATIENCE)
        if cluster.left() and unattended():
            print(f"# {name}: this is left to the next job: {cluster.left()[:3]}")
        else:
            cluster.nothing_left(name)
        try:
            next_job(name)
        except RuntimeError as error:  # Slurm itself may not start a job whose id it has had before
            if not comes_again:
                raise
            print(f"# {name}: {error}".replace("\n", "\n# "))
            cluster.works()
            next_job(name)


if reason := slurm_lab.why_no_slurm():
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)
with open(f"{scratch()}/life.conf", "w", encoding="utf-8") as lines:
    lines.write(LINES)
cluster = Site()
data = Dataset(scratch())
cluster.up("--prolog-flags", "Contain", "--nodes", "1", "--slurm-conf", f"{scratch()}/life.conf")
e2e.main(reconfigured, replaced, other_version, random_kills, configless)
