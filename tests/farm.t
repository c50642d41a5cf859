#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Fifty jobs beside each other on two nodes of a real Slurm, while agents, stores, keepers, slurmstepds and slurmd are killed at
random: who ends well has read right bytes; afterwards nothing is left, the nodes are idle, and a job has its whole share again."""

import contextlib
import glob
import os
import random
import re
import signal
import threading

import e2e
import slurm_lab
from e2e import equal, ok, scratch, wait_until
from slurm_lab import Cluster, Dataset

JOBS, BESIDE, CPUS, QUOTA = 50, 6, 8, 64 << 20
SEED = int(os.environ.get("MONARCH_TEST_SEED", "7"))
# As in slurm_life.t; a slurmd that comes back tells slurmctld of the jobs that it has not.
LINES = "MessageTimeout=5\nSlurmdTimeout=30\nTCPTimeout=2\nEpilogMsgTime=100\nKillWait=5\nBatchStartTimeout=10\nUnkillableStepTimeout=30\n"
cluster = data = slurmd = None


def begin():
    global cluster, data
    e2e.write(f"{scratch()}/farm.conf", LINES)
    cluster = Cluster()
    cluster.configure(f"[tier.nvme]\npath = {cluster.tier}\nquota = {QUOTA}\nmedium = nvme\n")
    cluster.up("--nodes", "2", "--cpus", str(CPUS), "--prolog-flags", "Contain", "--slurm-conf", f"{scratch()}/farm.conf")
    data = Dataset(scratch())


def processes(pattern):
    """The pids of this cluster's processes with such a title."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            title = e2e.bytes_in(path).replace(b"\0", b" ").decode(errors="replace")
            environment = e2e.bytes_in(path.replace("cmdline", "environ"))
            if re.search(pattern, title) and (cluster.state in title or os.fsencode(cluster.conf) in environment):
                yield int(path.split("/")[2])


def restart_slurmd():
    """That of the first node is killed, and started until it is there: its port may be taken for a while by what it has started."""
    global slurmd
    log = f"{os.path.dirname(cluster.conf)}/../log/slurmd@{cluster.node_names[0]}.log"
    with contextlib.suppress(OSError):  # it has ended by itself
        slurmd = cluster.kill("slurmd", signal.SIGKILL)
    before = e2e.text_in(log).count("slurmd started on")

    def is_there():
        cluster.restart(slurmd)
        return wait_until(lambda: e2e.text_in(log).count("slurmd started on") > before or cluster.has_ended("slurmd")) and not cluster.has_ended("slurmd")
    if not wait_until(is_there):
        raise RuntimeError("slurmd does not start: " + e2e.text_in(log)[-2000:])


def are_idle():
    if cluster.has_ended("slurmd"):
        restart_slurmd()
    return set(cluster.nodes().values()) == {"idle"}


class Killer(threading.Thread):
    """Kills something of what runs, again and again."""

    VICTIMS = {"an agent": r"monarchd .*--run-dir", "a store": r"monarchd --store", "a keeper": r"monarchd --keep", "a slurmstepd": r"^slurmstepd: \[\d"}

    def __init__(self, numbers):
        super().__init__()
        self.numbers, self.over, self.killed, self.failed = numbers, threading.Event(), {}, None

    def run(self):
        deck = []  # of kinds, each in its turn
        try:
            while not self.over.wait(self.numbers.uniform(0.1, 1.5)):
                deck = deck or self.numbers.sample([*self.VICTIMS, "an agent", "a store", "slurmd"], 7)
                what = deck[-1]
                if self.kill(what):
                    deck.pop()
                    self.killed[what] = self.killed.get(what, 0) + 1
        except Exception as error:  # pylint: disable=broad-except
            self.failed = error

    def kill(self, what):
        """False: there is none now."""
        if what == "slurmd":
            restart_slurmd()
            return True
        found = sorted(processes(self.VICTIMS[what]))
        if not found:
            return False
        victim = self.numbers.choice(found)
        with contextlib.suppress(OSError):
            # The sleep(1) of an extern step has the pipe to slurmd, which would wait for its end for ever.
            with open(f"/proc/{victim}/task/{victim}/children", encoding="ascii") as children:
                waits = [pid for pid in map(int, children.read().split()) if e2e.bytes_in(f"/proc/{pid}/cmdline").startswith(b"sleep\0001000000")]
            for pid in [victim, *waits]:
                os.kill(pid, signal.SIGKILL)
            return True
        return False

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def submit(numbers):
    """A job that reads all three times, maybe on both nodes: its id, and how often its output has all checksums."""
    nodes = numbers.choice([1, 1, 1, 2])
    text = f"srun -Q -N2 -n2 sh -c {slurm_lab.quoted(data.read(3))}" if nodes == 2 else data.read(3)
    code, out, err = cluster.execute(["sbatch", "--parsable", "--no-requeue", "--output=%j", f"-N{nodes}", f"-c{numbers.choice([1, 2, 4])}", "--mem=10",
                                      f"--monarch-dataset={data.path}", "--wrap=" + text])
    if code != 0:
        raise RuntimeError(f"sbatch: exit code {code}: {err}")
    return int(out), 3 * nodes


def has_ended(job):
    return set(cluster.state_of(job).split(",")) <= slurm_lab.ENDED


def cancel(jobs):
    """A launch that a killed slurmd did not hear, this Slurm does not tell it again."""
    lost = [str(job) for job in jobs if not has_ended(job)]
    print(f"# jobs that Slurm has lost: {lost}")
    cluster.execute(["scancel", *lost])


def fifty():
    numbers = random.Random(SEED)
    jobs, running = {}, []
    with Killer(random.Random(SEED)) as killer:
        for _ in range(JOBS):
            if not wait_until(lambda: len(running) < BESIDE or any(map(has_ended, running)), 60):
                cancel(running)
                wait_until(lambda: any(map(has_ended, running)))
            running = [job for job in running if not has_ended(job)]
            job, times = submit(numbers)
            jobs[job] = times
            running.append(job)
    print(f"# killed: {killer.killed}")
    ok(killer.failed is None and len(killer.killed) == 5, "something of each kind was killed", killer.killed, killer.failed)
    # What slurmd has lost of its jobs it tells as it begins.
    restart_slurmd()
    equal(len(jobs), JOBS, "all jobs were submitted")
    if not wait_until(lambda: all(map(has_ended, jobs)), 60):
        cancel(jobs)
    ok(wait_until(lambda: all(map(has_ended, jobs)), slurm_lab.PATIENCE), "all jobs end", {job: cluster.state_of(job) for job in jobs if not has_ended(job)})
    states = {job: cluster.state_of(job) for job in jobs}
    print(f"# states: {sorted(states.values())}")
    sums = data.sums.splitlines()
    output = {job: cluster.output(job) if os.path.exists(f"{cluster.out}/{job}") else b"" for job in jobs}  # one that never began has none
    wrong = [job for job in jobs if {line for line in output[job].splitlines() if re.match(rb"[0-9a-f]{32} ", line)} - {*sums}]
    equal(wrong, [], "no job has read wrong bytes", *(output[job][-1000:] for job in wrong[:2]))
    short = [job for job, state in states.items() if state == "COMPLETED" and len(output[job].splitlines()) < jobs[job] * len(sums)]
    equal(short, [], "who is said to have ended well has read all", *(cluster.said_of(job) for job in short[:2]))
    ok(sum(state == "COMPLETED" for state in states.values()) > JOBS // 4, "many end well", states)
    ok(wait_until(are_idle, slurm_lab.PATIENCE), "the nodes are idle", cluster.nodes())
    cluster.nothing_left("after all")


def next_one():
    """Each node's next job has the whole quota, and is served."""
    for node in cluster.node_names:
        job = cluster.submit(["-w", node, f"--monarch-dataset={data.path}"], f"{data.read()}; {slurm_lab.HELD}; {data.read()}")
        cluster.held(job)
        wait_until(lambda job=job, node=node: cluster.record(job, node))
        equal(cluster.record(job, node)["tiers"][0]["quota"], QUOTA, f"{node}: the next job has its whole share")
        cluster.go(job)
        equal((cluster.wait(job), cluster.output(job)), ("COMPLETED", data.sums * 2), f"{node}: its bytes are right", cluster.said_of(job))
        ok(cluster.is_served(job), f"{node}: it is served", cluster.why(job))
    cluster.nothing_left("the next job")
    for pid in processes(r"^slurmstepd: \[\d|^sleep 1000000"):  # of extern steps, which nobody ends whose slurmd was killed as they began
        os.kill(pid, signal.SIGKILL)


e2e.skip_all_if(slurm_lab.why_no_slurm())
begin()
e2e.main(fifty, next_one)
