#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""What Slurm's control groups do to jobs with Monarch, and those to them: the system's Slurm with groups of version 1, and the
one that is installed in the directory MONARCH_TEST_SLURM, a newer one, with version 2."""

import functools
import glob
import hashlib
import json
import os
import re
import shutil
import sys
import time

import e2e
import slurm_lab
import slurm_rows
from e2e import BUILD, contains, equal, ok, scratch, state_of, text_in, wait_until
from slurm_lab import HELD, Cluster, Dataset, bytes_of, fields, size_text

NEWER = os.environ.get("MONARCH_TEST_SLURM", "")
ALL = os.environ.get("MONARCH_TEST_ALL") == "1"
cluster = data = None


def hierarchies():
    mounts = [line.split() for line in text_in("/proc/self/mountinfo").splitlines()]
    return [w[4] for w in mounts if w[w.index("-") + 1] in ("cgroup", "cgroup2") and w[3] == "/"]


def without_lateness(out):
    """Where processors are emulated a helper of root's may be late; then the job runs without Monarch, and says so first."""
    late = rb"^monarch: the job runs without Monarch on \S+: its helper did not answer\n"
    return re.sub(late, b"", out) if e2e.SLOW > 1 else out


class Lab(Cluster):
    """A cluster whose daemons may be in a namespace with groups of version 2 alone; its root is then a group of the lab's here."""

    def begin(self, *options):
        self.up("--proctrack", "cgroup", *options)
        pids = [daemon["pid"] for name, daemon in self.status()["daemons"].items() if name.startswith("slurmd@")]
        found = re.search(r"^0::(/monarch-lab-[0-9a-f]+)/system", text_in(f"/proc/{pids[0]}/cgroup"), re.MULTILINE)
        self.roots = [base + (found.group(1) if found else "") for base in hierarchies()]
        os.makedirs(self.state, 0o755, exist_ok=True)
        state = os.stat(self.state)
        self.key = f"{state.st_dev:x}.{state.st_ino:x}."

    def version(self):
        return "Slurm " + self.execute(["scontrol", "--version"])[1].decode().split()[-1]

    def groups(self, whose=""):
        """Monarch's own."""
        return [path for root in self.roots for path in glob.glob(f"{root}/monarch/{self.key}{whose}*")]

    def step_groups(self):
        """Slurm's, of jobs and steps."""
        found = []
        for root in self.roots:
            for node in self.node_names:
                found += glob.glob(f"{root}/slurm_{node}/uid_*/job_*")
                found += [path for path in glob.glob(f"{root}/system.slice/{node}_slurmstepd.scope/*/")
                          if os.path.basename(path.rstrip("/")) not in ("slurmd", "system")]
        return found

    def agent(self, job):
        """Its pid."""
        wait_until(lambda: self.record(job), slurm_lab.PATIENCE)
        return self.record(job)["pid"]

    def complaints(self):
        """What slurmstepd says when something of a step is left."""
        lines = [line for log in glob.glob(f"{self._dir}/log/slurmd@*.log") for line in text_in(log).splitlines()]
        return [line for line in lines if re.search(r"giving up|not responding|[Dd]evice or resource busy|unkillable|drain", line)]

    def srun(self, *options):
        """A job of one step that reads the dataset twice; its id and output."""
        code, out, err = self.execute(["srun", "--exclusive", "-n1", "-w", self.node_names[0], *options,
                                       "sh", "-c", data.read(2) + "; echo job $SLURM_JOB_ID"])
        out, _, job = out.rpartition(b"job ")
        if code != 0:
            raise RuntimeError(f"srun: exit code {code}: {err}")
        return int(job), out

    def sbatch(self, *options):
        job = self.submit(["-w", self.node_names[0], *options], data.read(2))
        self.wait(job)
        return job, self.output(job)

    def row(self, count, kind, *options):
        """Jobs in a row: [(id, seconds until its node is free again)]; and what others than the dataset's bytes they printed."""
        ended, wrong = [], []
        for _ in range(count):
            begin = time.monotonic()
            job, out = kind(*options)
            self.wait(job)
            wait_until(lambda: self.nodes()[self.node_names[0]] == "idle", slurm_lab.PATIENCE)
            ended.append((job, time.monotonic() - begin))
            if without_lateness(out) != data.sums * 2:
                wrong.append(out.decode(errors="replace"))
        return ended, wrong

    def leaves_its_own(self):
        """Whether all that is left are empty groups of which Slurm says that it failed to leave them itself, as 24.11 does now and
        then, also for jobs without Monarch: before it removes them, slurmstepd moves itself to another one."""
        left = self.step_groups()
        logs = "".join(text_in(log) for log in glob.glob(f"{self._dir}/log/slurmd@*.log"))
        jobs = {word[4:] for path in left for word in path.split("/") if word.startswith("job_")}
        empty = not any(text_in(procs) for path in left for procs in glob.glob(f"{path}/**/cgroup.procs", recursive=True))
        return empty and all(f"[{job}.extern] error: Unable to move pid" in logs for job in jobs)

    def gone(self, name):
        """Three TAP lines: what is left of jobs that have ended."""
        self.nothing_left(name)
        own = wait_until(lambda: not self.step_groups()) or self.leaves_its_own()
        ok(wait_until(lambda: not self.groups()) and own, f"{name}: no control group is left, of Slurm's neither", *self.groups(), *self.step_groups())
        if self.step_groups() and own:
            print(f"# {name}: slurmstepd could not remove its groups: {len(self.step_groups())}")


def in_a_row(name, count=4):
    """Jobs with Monarch are right and staged, end as soon as those without, and leave nothing."""
    for what, kind in ("srun", cluster.srun), ("sbatch", cluster.sbatch):
        control, _ = cluster.row(count, kind)
        jobs, wrong = cluster.row(count, kind, f"--monarch-dataset={data.path}")
        took = {words: [f"{seconds:.2f}" for _, seconds in row] for words, row in (("without", control), ("with Monarch", jobs))}
        print(f"# {name}, {what}: jobs took {took} s, epilogs {[cluster.epilog_ms(job) for job, _ in jobs]} ms")
        ok(not wrong, f"{name}, {what}: the bytes are right", *wrong)
        for job, _ in jobs:
            wait_until(lambda job=job: " monarch=1 " in cluster.log_of(job), slurm_lab.PATIENCE)
        lines = [fields(cluster.log_of(job).rpartition(" monarch=1 ")[2]) for job, _ in jobs]
        staged = [bytes_of(line.get("nvme", "0")) for line in lines]
        ok(all(staged), f"{name}, {what}: their datasets were staged, each with the room that the last one had", *lines)
        calls = [cluster.calls_for(job).count("--epilog") for job, _ in jobs]
        equal(calls, [1] * count, f"{name}, {what}: each was ended on its node, once")
        ok(not any("no epilog came" in cluster.log_of(job) for job, _ in jobs), f"{name}, {what}: and not because nobody else did")
        contains(cluster.comment(jobs[-1][0]), ["monarch=1 "], f"{name}, {what}: the line in sacct")
    cluster.gone(name)
    equal(cluster.complaints(), [], f"{name}: Slurm's log has no complaint")


def few_in_a_row(name):
    in_a_row(name, 4 if ALL else 2)


def two_steps(name):
    """An agent that began in the first srun of an allocation lives on for the second."""
    name += ", two steps"
    script = f'srun -n1 "$@"; {HELD}; srun -n1 "$@"; echo job $SLURM_JOB_ID'
    process = cluster.start(["salloc", "-Q", "--exclusive", "-w", cluster.node_names[0], f"--monarch-dataset={data.path}",
                             "sh", "-c", script, "sh", "sh", "-c", data.read()])
    wait_until(lambda: glob.glob(f"{cluster.state}/jobs/*/record.json"), slurm_lab.PATIENCE)
    job = int(os.path.basename(os.path.dirname(glob.glob(f"{cluster.state}/jobs/*/record.json")[0])).split(".")[1])
    agent = cluster.agent(job)
    cluster.held(job)
    # Where it was in the step's group, Slurm killed it with what the step left.
    ok(not wait_until(lambda: state_of(agent) in "XZ", 3 * e2e.SLOW), f"{name}: the agent lives between them")
    cluster.go(job)
    code, out, err = e2e.finish(process, slurm_lab.PATIENCE)
    out = out.rpartition(b"job ")[0]
    equal((code, out), (0, data.sums * 2), f"{name}: the bytes are right", err)
    cluster.wait(job)
    wait_until(lambda: " monarch=1 " in cluster.log_of(job))
    line = cluster.log_of(job)
    equal(line.count("agent started"), 1, f"{name}: one agent serves both", line)
    spared = fields(line.rpartition(" monarch=1 ")[2]).get("pfs")
    ok(cluster.timeouts(job) or spared == f"{size_text(data.bytes)}/{size_text(2 * data.bytes)}",
       f"{name}: the second step reads what the first staged", line)
    cluster.gone(name)


def suspended(name):
    """An agent rests while its job is suspended, and goes on with it."""
    name += ", suspended"
    job = cluster.submit(["-w", cluster.node_names[0], f"--monarch-dataset={data.path}"],
                         f"{data.read()}; {HELD}; {data.read()}")
    cluster.held(job)
    agent = cluster.agent(job)
    ok(state_of(agent) not in "TX", f"{name}: the agent runs", state_of(agent))
    for verb, rests in ("suspend", True), ("resume", False):
        code, _, err = cluster.execute(["scontrol", verb, str(job)], root=True)
        equal(code, 0, f"{name}: scontrol {verb}", err)
        ok(wait_until(lambda rests=rests: (state_of(agent) == "T") == rests), f"{name}: the agent {'rests' if rests else 'goes on'}", state_of(agent))
    cluster.go(job)
    equal((cluster.wait(job), cluster.output(job)), ("COMPLETED", data.sums * 2), f"{name}: the job ends, its bytes are right")
    cluster.gone(name)


def rows(name):
    """Lines for sacct find the rows of their runs."""
    slurm_rows.array_rows(cluster, f"{name}, ")
    slurm_rows.rows_of_runs(cluster, f"{name}, ")


def memory(name):
    """What is staged in RAM is not the job's memory."""
    name += ", memory"
    big = scratch("big")
    for number in range(37):
        e2e.write(f"{big}/{number}", os.urandom(4 << 20))
    cluster.configure(f"[tier.ram]\npath = {cluster.tier}\ndriver = tmpfs\nmedium = ram\nquota = 256M\n")
    program = f"touch begun.$SLURM_JOB_ID; cat {big}/* >/dev/null; cat {big}/* >/dev/null; exec python3 -c 'print(len(bytes(40 << 20)))'"
    job = cluster.submit(["-w", cluster.node_names[0], "--mem=100M", f"--monarch-dataset={big}"], program)
    equal((cluster.wait(job), cluster.output(job)), ("COMPLETED", b"41943040\n"), f"{name}: a job of 100 MiB with 148 MiB staged in RAM ends well",
          cluster.jobs(job))
    wait_until(lambda: " monarch=1 " in cluster.log_of(job))
    staged = fields(cluster.log_of(job).rpartition(" monarch=1 ")[2]).get("ram", "0")
    ok(bytes_of(staged) > 100 << 20, f"{name}: most of it was staged", cluster.log_of(job))
    over = cluster.submit(["-w", cluster.node_names[0], "--mem=100M"], "exec python3 -c 'print(len(bytearray(b\"1\" * (150 << 20))))'")
    equal(cluster.wait(over), "OUT_OF_MEMORY", f"{name}: its limit is one: a program of more is killed")
    cluster.configure()
    shutil.rmtree(big)
    cluster.gone(name)


MIB = 1 << 20
JOB, MARGIN, BALLAST = 400 * MIB, 32 * MIB, 250 * MIB
# Reads all files over and over, and compares, until it is told to do the next thing: to allocate, to free, to end. Says when it has.
PROGRAM = """
import hashlib, json, os, sys
data, sums, out = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3]
wrong, reads, ballast = [], 0, None
def say(what): open(out + '/' + what, 'w').close()
def read():
    global reads
    for name in sorted(sums):
        with open(data + '/' + name, 'rb') as file:
            if hashlib.blake2b(file.read()).hexdigest() != sums[name]: wrong.append(name)
        reads += 1
def read_until(what):
    while not os.path.exists(out + '/' + what): read()
say('begun')
read_until('allocate')
ballast = bytearray(int(sys.argv[4]))
for at in range(0, len(ballast), 4096): ballast[at] = 1
say('allocated')
read_until('free')
ballast = None
say('freed')
read_until('end')
read()
print(json.dumps([reads, len(wrong), wrong[:3]]))
"""


def granted(job):
    """How much of the tier the job's agent uses at most now."""
    told = json.loads(e2e.execute([f"{BUILD}/monarchctl", "status", str(job), "--json", "--state-dir", cluster.state])[1])
    return next(t["granted"] for t in told["jobs"][0]["tiers"] if t["name"] == "ram")


def copies(job):
    """How much of the job's tmpfs is used."""
    node = cluster.node_names[0]
    path = next(glob.iglob(f"{cluster.tier}/{node}/monarch/lab.{job}.0.{node}.*"), "/none")
    if not os.path.ismount(path):
        return 0
    fs = os.statvfs(path)
    return (fs.f_blocks - fs.f_bfree) * fs.f_frsize


def makes_way(name):
    """A tier in memory that is charged to the job: its program may allocate nearly all that the job has, is not killed, and the copies make
    way for it; afterwards they come back."""
    name += ", makes way"
    if "memory" not in ",".join(line.split()[-1] for line in text_in("/proc/self/mountinfo").splitlines() if " - cgroup " in line).split(","):
        e2e.skip(name, "no memory controller of version 1 is mounted")
        return
    big, out, sums = scratch("more"), f"{cluster.out}/way", {}
    for number in map("{:04}".format, range(480)):  # more than the job has
        block = number.encode() * (MIB // 4)
        e2e.write(f"{big}/{number}", block)
        sums[number] = hashlib.blake2b(block).hexdigest()
    for file, text in ("sums", json.dumps(sums)), ("program.py", PROGRAM):
        e2e.write(f"{scratch()}/{file}", text, 0o644)
    cluster.configure(f"[tier.ram]\npath = {cluster.tier}\ndriver = tmpfs\nmedium = ram\ncharge = job\nquota = 1G\n[agent]\nprefetch_burst = 2G\n")
    os.mkdir(out)
    os.chown(out, cluster.user.pw_uid, cluster.user.pw_gid)

    def has(what):
        return wait_until(lambda: os.path.exists(f"{out}/{what}"), 120)
    job = cluster.submit(["-w", cluster.node_names[0], f"--mem={JOB // MIB}M", f"--monarch-dataset={big}"],
                         f"exec /usr/bin/python3 {scratch()}/program.py {big} {scratch()}/sums {out} {BALLAST}")
    ok(has("begun"), f"{name}: a job begins", cluster.jobs(job))
    ok(wait_until(lambda: copies(job) > 250 * MIB, 120), f"{name}: its copies take what it leaves", copies(job), cluster.log_of(job))
    ok(copies(job) <= JOB - MARGIN, f"{name}: which is less than the job has, with a margin", copies(job))
    e2e.write(f"{out}/allocate", b"")
    ok(has("allocated"), f"{name}: its program gets nearly all that the job has", cluster.state_of(job))
    ok(wait_until(lambda: copies(job) <= JOB - BALLAST and granted(job) <= JOB - BALLAST - MARGIN // 2), f"{name}: the copies make way, and no more is theirs", granted(job))
    equal(cluster.state_of(job), "RUNNING", f"{name}: the job is not killed")
    e2e.write(f"{out}/free", b"")
    ok(has("freed"), f"{name}: the program frees its memory")
    ok(wait_until(lambda: copies(job) > 180 * MIB), f"{name}: they come back", copies(job), granted(job))
    e2e.write(f"{out}/end", b"")
    equal(cluster.wait(job), "COMPLETED", f"{name}: how Slurm says that it ended")
    reads, wrong, first = json.loads(cluster.output(job).decode().splitlines()[-1])
    ok(reads > 2 * len(sums) and wrong == 0, f"{name}: all bytes were right", reads, wrong, first)
    ok(re.search(r" hit=[\d.]+%.* evicted=\d+", cluster.comment(job)), f"{name}: sacct says that copies were removed", cluster.comment(job))
    cluster.configure()
    shutil.rmtree(big)
    cluster.gone(name)


def restarts(name):
    """systemd neither ends nor moves the agent when it reads its units again, and when slurmd starts anew or is killed."""
    name += ", restarts"
    job = cluster.submit(["-w", cluster.node_names[0], f"--monarch-dataset={data.path}"],
                         f"{data.read()}; {HELD}; {data.read()}")
    cluster.held(job)
    agent = cluster.agent(job)
    slurmd = cluster.status()["daemons"][f"slurmd@{cluster.node_names[0]}"]["pid"]
    unit = re.search(r"^0::/system\.slice/(monarch-lab-.*\.service)", text_in(f"/proc/{slurmd}/cgroup"), re.MULTILINE).group(1)
    def seen():
        group = cluster.groups("lab.")[0]
        files = [f"{group}/{file}" for file in ("memory.max", "cpuset.cpus") if os.path.exists(f"{group}/{file}")]
        return state_of(agent) not in "XZ", text_in(f"/proc/{agent}/cgroup"), [text_in(file) for file in files]
    before = seen()
    for words in (["daemon-reload"], ["restart", unit], ["kill", "--kill-who=main", "--signal=KILL", unit], ["restart", unit]):
        done = e2e.execute(["systemctl", *words])
        equal(done[0], 0, f"{name}: systemctl {words[0]}", done)
        time.sleep(3)
        equal(seen(), before, f"{name}: the agent stays as it is after systemctl {words[0]}")
    cluster.go(job)
    equal((cluster.wait(job), cluster.output(job)), ("COMPLETED", data.sums * 2), f"{name}: the job ends, its bytes are right")
    cluster.gone(name)


# ---- which Slurm, and how it is configured


def under(flags, options, *tests, where=""):
    """Runs tests with those PrologFlags."""
    cluster.begin("--prolog-flags", flags, "--nodes", "1", *options)
    for test in tests:
        named = functools.partial(test, f"{cluster.version()}, PrologFlags={flags}{where}")
        named.__name__ = f"{test.__name__}, {flags}"
        e2e.together(named)


def constrained():
    """Options with which Slurm limits memory and processors."""
    file = f"{scratch()}/task_cgroup.conf"
    e2e.write(file, "TaskPlugin=task/cgroup\n")
    return ["--slurm-conf", file, "--cgroup-line", "ConstrainRAMSpace=yes", "--cgroup-line", "ConstrainCores=yes"]


def system():
    """The system's Slurm, with what is mounted at /sys/fs/cgroup; and with version 2."""
    global cluster
    cluster = Lab(name="system")
    under("Contain", constrained(), few_in_a_row, suspended, memory, makes_way)
    preload = ["--preload", f"{BUILD}/tests/only_v2.so"] if os.path.isdir("/sys/fs/cgroup/freezer") else []
    under("none", ["--cgroup", "v2", *preload], few_in_a_row, two_steps, suspended)
    cluster.mostly_in_time("Slurm of the system, all jobs")
    cluster.down()


def systemd():
    """The system's Slurm, as sites have it: slurmd is a unit of systemd's, and has it make the scope of its slurmstepds."""
    global cluster
    tests = few_in_a_row, restarts, memory, suspended
    if not os.path.isdir("/run/systemd/system"):
        for test in tests:
            e2e.skip(f"slurmd as a unit of systemd's: {test.__name__.replace('_', ' ')}", "systemd does not run here; tests/vm.t has a machine where it does")
        return
    cluster = Lab(name="systemd")
    under("Contain", [*constrained(), "--systemd", "yes"], *tests, where=", slurmd of systemd")
    cluster.mostly_in_time("slurmd of systemd, all jobs")
    cluster.down()


def newer():
    """That of MONARCH_TEST_SLURM, with version 2."""
    global cluster
    variants = {"Contain,Alloc": (in_a_row, suspended),
                "none": (in_a_row, two_steps, suspended),
                "Contain,Alloc,RunInJob": (in_a_row, suspended, rows)}
    if not NEWER or not os.access(f"{NEWER}/sbin/slurmctld", os.X_OK):
        why = f"there is no {NEWER}/sbin/slurmctld" if NEWER else "MONARCH_TEST_SLURM does not name the directory of a newer Slurm"
        for flags, tests in variants.items():
            for test in tests:
                e2e.skip(f"a newer Slurm, PrologFlags={flags}: {test.__name__.replace('_', ' ')}", why)
        return
    cluster = Lab(NEWER, "newer")
    needed = e2e.execute(["ldd", f"{cluster.prefix}/libexec/monarch/monarch_account"])[1].decode()
    ok(re.search(f"libslurm.so.* => {NEWER}/lib", needed), "monarch_account finds the libslurm of a Slurm in a directory of its own", needed)
    for flags, tests in variants.items():
        under(flags, ["--cgroup", "v2"], *tests)
    cluster.mostly_in_time("a newer Slurm, all jobs")
    cluster.down()


e2e.skip_all_if(slurm_lab.why_no_slurm())
data = Dataset(scratch())
e2e.main(system, systemd, newer)
