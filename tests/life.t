#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""When an agent ends or rests though no hook says so: a job whose slurmstepds are gone, one that is suspended, one whose
run directory is gone. Processes that look like slurmstepds stand for Slurm."""

import contextlib
import glob
import os
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import one_node  # pylint: disable=wrong-import-position
from e2e import contains, equal, ok, wait_until  # pylint: disable=wrong-import-position
from one_node import UID  # pylint: disable=wrong-import-position

GRACE = 10  # seconds that an epilog has
JOB = 900000000 + os.getpid() % 90000000  # no other test's slurmstepd has it


def state_of(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="surrogateescape") as file:
            return file.read().rpartition(")")[2].split()[0]
    return "X"


def running(pid):
    return state_of(pid) not in "ZX"


class Node(one_node.Node):
    def start(self, job):
        """What `monarchd --start` answers."""
        ends = os.pipe()
        process = e2e.start([*self.words("--start", job), "--uid", str(UID), "--gid", str(UID), "--datasets", self.data, "--reply-fd", str(ends[1])],
                            pass_fds=[ends[1]], stdin=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin"})
        os.close(ends[1])
        with os.fdopen(ends[0], encoding="utf-8") as answer:
            line = answer.readline()
        process.wait(e2e.PATIENCE)
        return line

    def noted(self, job, name):
        return os.path.exists(f"{self.state}/jobs/c-1.{job}.n1.x/{name}")

    def left(self):
        return glob.glob(f"{self.state}/jobs/*") + glob.glob(f"{self.state}/removing/*") + glob.glob(f"{self.state}/run/*") + \
            glob.glob(f"{self.tier}/monarch/*", include_hidden=True)


@contextlib.contextmanager
def node(name):
    made = Node(name)
    try:
        yield made
    finally:
        made.close()


def slurmstepd(job, step="batch", task=False):
    """A process that looks like a slurmstepd of root's, with a task or without."""
    program = "import subprocess,time; subprocess.Popen(['sleep','600']); time.sleep(600)" if task else "import time; time.sleep(600)"
    process = e2e.start(["bash", "-c", f"exec -a 'slurmstepd: [{job}.{step}]' /usr/bin/python3 -c \"{program}\""],
                        stdin=subprocess.DEVNULL)

    def begun():
        with open(f"/proc/{process.pid}/cmdline", encoding="utf-8") as file:
            return file.read().startswith("slurmstepd") and (not task or e2e.children(process.pid, "sleep"))
    wait_until(begun)
    return process


def no_epilog():
    """A job whose slurmstepds are gone, and to which no epilog comes; one that never had an extern or batch step stays."""
    with node("no_epilog") as n:
        stepds = [slurmstepd(JOB, "extern"), slurmstepd(JOB + 1, "batch"), slurmstepd(JOB + 2, "0")]
        for job in range(3):
            contains(n.start(JOB + job), ["ready "], f"a job starts in {('the extern step', 'a batch script', 'a step')[job]}")
        agents = [n.record(JOB + job)["pid"] for job in range(3)]
        equal([n.noted(JOB + job, "anchored") for job in range(3)], [True, True, False], "which of them have a slurmstepd for the whole job")
        e2e.end(stepds[0])
        e2e.end(stepds[2])
        begin = time.monotonic()
        ok(wait_until(lambda: n.noted(JOB, "alone") and n.noted(JOB + 2, "alone")), "the keeper sees those without a slurmstepd")
        ok(wait_until(lambda: not running(agents[0])), "an agent ends whose job is over")
        took = time.monotonic() - begin
        ok(took > GRACE / 2, "not before an epilog had its turn", f"{took:.1f} s")
        ok(wait_until(lambda: not [p for p in n.left() if f".{JOB}." in p]), "and what was the job's is gone", n.left())
        with open(n.log, encoding="utf-8") as log:
            text = log.read()
        contains(text, [f"JobId={JOB} node=n1.x is over", f"JobId={JOB} node=n1.x monarch=1 "], "the log has why, and the job's line")
        ok(running(agents[1]) and not n.noted(JOB + 1, "alone"), "a job with a slurmstepd goes on")
        ok(running(agents[2]), "a job that may be between two steps goes on")
        again = slurmstepd(JOB + 2, "1")
        ok(wait_until(lambda: not n.noted(JOB + 2, "alone")), "and is not alone any more with its next step")
        for process in (stepds[1], again):
            e2e.end(process)


def suspended():
    """While all that a job's slurmstepds run is stopped, so is its agent."""
    with node("suspended") as n:
        stepds = [slurmstepd(JOB + 3, "batch", True), slurmstepd(JOB + 3, "0", True)]
        tasks = [e2e.children(stepd.pid, "sleep")[0] for stepd in stepds]
        n.start(JOB + 3)
        agent = n.record(JOB + 3)["pid"]
        os.kill(tasks[0], signal.SIGSTOP)
        time.sleep(3)
        ok(state_of(agent) != "T", "an agent goes on while one task of its job does")
        os.kill(tasks[1], signal.SIGSTOP)
        ok(wait_until(lambda: state_of(agent) == "T"), "it rests while none does")
        os.kill(tasks[1], signal.SIGCONT)
        ok(wait_until(lambda: state_of(agent) != "T"), "it goes on with them")
        os.kill(tasks[1], signal.SIGSTOP)
        wait_until(lambda: state_of(agent) == "T")
        n.end(JOB + 3)
        ok(wait_until(lambda: not running(agent) and not n.left()), "ends its agent", n.left())
        for task in tasks:
            os.kill(task, signal.SIGKILL)
        for stepd in stepds:
            e2e.end(stepd)


def run_dir_gone():
    """An agent whose run directory somebody removed, or put another in its place, ends."""
    with node("run_dir") as n:
        n.start(JOB + 4)
        record = n.record(JOB + 4)
        subprocess.run(["umount", "-l", record["run_dir"]], check=True)
        ok(wait_until(lambda: not running(record["pid"])), "an agent ends whose run directory is no longer mounted")
        with open(n.config, "w", encoding="utf-8") as file:
            file.write(f"[tier.nvme]\npath = {n.tier}\nquota = 10M\nmin_free = 0\n[agent]\nrun_size = none\n")
        for job, other in ((JOB + 5, False), (JOB + 7, True)):
            n.start(job)
            record = n.record(job)
            os.rename(record["run_dir"], f"{n.dir}/moved.{job}")
            if other:
                os.mkdir(record["run_dir"])
            ok(wait_until(lambda record=record: not running(record["pid"])), f"an agent ends whose run directory {'was replaced' if other else 'is gone'}")


if os.geteuid() != 0:
    print("1..0 # SKIP needs root")
    sys.exit(0)
e2e.main(no_epilog, suspended, run_dir_gone)
