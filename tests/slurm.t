#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""The chain of a Slurm job, from sbatch --monarch-dataset to the line in sacct, on a PFS whose servers count.

Most tests submit a job, and look at it after all have been submitted: Slurm runs as many at a time as it has nodes.
Each says what its job should cost the PFS; the servers must have counted the sum.
"""

import contextlib
import glob
import hashlib
import math
import os
import re
import signal

import e2e
import slurm_lab
import slurm_rows
from e2e import contains, equal, ok, scratch, wait_until
from slurm_lab import HELD, Cluster, Dataset, bytes_of, fields, quoted, size_text

cluster = pfs = ledger = None
late_by_design = 0  # agents
variant = ""  # of Slurm's configuration, in the names of tests
UNSET, ALLOC = "PrologFlags unset, proctrack/cgroup: ", "PrologFlags=Alloc: "
TASK_ENV = "; echo preload=$LD_PRELOAD; env | grep ^MONARCH_IO_ || true"


def begin():
    global cluster, pfs, ledger
    pfs = e2e.GlusterFs()
    cluster = Cluster(more="[peer]\nenabled = off\n")  # nodes with peers: slurm_key.t
    cluster.up("--nodes", "5", "--prolog-flags", "Contain")
    ledger = Ledger()


# ---- what a job costs the PFS


class Ledger:
    """What the servers should have counted since it was made, as [least, most]; most grows with the opens that
    waited in vain, each of which reads a file beside the agent, and has no bound where an agent was late."""

    def __init__(self):
        self.opens, self.bytes = [0, 0], [0, 0]
        self.before, self.timeouts, self.late = pfs.counters(), cluster.timeouts(), cluster.late_agents()

    def expect(self, opens, read_bytes):
        for total, part in (self.opens, opens), (self.bytes, read_bytes):
            total[0] += part
            total[1] += part

    def check(self, name):
        now, vain = pfs.counters(), cluster.timeouts() - self.timeouts
        if vain:
            print(f"# {name}: {vain} opens waited in vain")
            self.opens[1] += vain
            self.bytes[1] += vain * Dataset.largest
        if late := cluster.late_agents() - self.late:
            print(f"# {name}: {late} agents were late")
            self.opens[1] = self.bytes[1] = math.inf
        # A page that the kernel drops between its reading ahead and the read is read again; no file is opened for that.
        few_pages = 4 * 4096
        bytes_read = self.bytes[0], self.bytes[1] + few_pages
        for what, key, (least, most) in ("opens", "open", self.opens), ("bytes read", "read_bytes", bytes_read):
            got = now[key] - self.before[key]
            ok(least <= got <= most, f"{name}: {what} that the PFS's servers counted", f"{got}: not {least} to {most}", *self.told())

    @staticmethod
    def told():
        """What root's log and the jobs' outputs say of jobs that were not served, or of agents that did not go on."""
        lines = [line for path in (cluster.log, *glob.glob(f"{cluster.out}/[0-9]*")) for line in e2e.text_in(path).splitlines()]
        return [line for line in lines if re.search(r"^monarch: |warning: |error: | agent started", line)]


def dataset():
    """A dataset on the PFS; making it opens and reads nothing there."""
    return Dataset(pfs.mount)


def local_dataset():
    """One that is not on the PFS, for jobs of which an unknown part is staged."""
    return Dataset(scratch())


def check_line(name, job, data, times):
    """The line in sacct of a job of one node that read all of the dataset that often."""
    line = cluster.comment(job)
    got = fields(line)
    ok(line.startswith("monarch=1 ") and len(line) <= 255, f"{name}: the line in sacct", line)
    vain = cluster.timeouts(job)  # each of these opens read its file on the PFS, and it may not have been staged either
    if vain:
        print(f"# {name}: {vain} opens waited in vain")
    if cluster.late_agents(job) and got.get("counters") == "lost":  # so late that the job had ended: nobody has counted
        equal((got.get("nodes"), got.get("err")), ("1/1", "1"), f"{name}: of all nodes, by an agent that came too late", line)
        return
    equal((got.get("nodes"), got.get("err")), ("1/1", "0"), f"{name}: of all nodes asked, without errors", line)
    if cluster.late_agents(job):
        print(f"# {name}: an agent was late")
        return
    spared, read = map(bytes_of, got.get("pfs", "0/0").split("/"))
    part = vain * Dataset.largest
    ok(about(read, times * data.bytes) and about(spared, data.bytes - part, data.bytes + part), f"{name}: its bytes", line)
    ok(about(bytes_of(got.get("nvme", "0")), data.bytes - part, data.bytes), f"{name}: what was placed", line)
    ok(100 * (data.FILES - vain) / data.FILES - 1 <= int(got.get("staged", "0%").rstrip("%")) <= 100, f"{name}: what was staged", line)
    more = 100 * vain / (times * data.FILES)
    # Each directory once; twice if it changed within a day.
    meta = [100 * ((data.FILES + dirs) / (times * data.FILES) - 1) for dirs in (0, 2 * data.directories)]
    ok(meta[0] - more - 1 <= int(got.get("meta", "999%").rstrip("%")) <= meta[1] + more + 1,
       f"{name}: its saving of metadata calls", line)
    hits = float(got.get("hit", "-1").rstrip("%"))
    opens = times * (data.FILES + 1)  # find's of the dataset's root, too, while that is not listed yet
    ok(100 * (times - 1) * data.FILES / opens - more - 0.1 <= hits <= 100 and got.get("ops", "")[-1:] == "%", f"{name}: its hits", line)


def check_closing(name, job, why=""):
    """A job's output ends with one line, whose numbers are those of the line in sacct."""
    if cluster.late_agents(job):
        print(f"# {name}: an agent was late")
        return
    spared, read = fields(cluster.comment(job)).get("pfs", "0/0").split("/")
    want = rf"monarch: read {read}, {spared} of it from the PFS{why}(; \d+ s of waiting for files)?; report on \S+: monarchctl report {job}\n"
    equal([re.fullmatch(want, line) is not None for line in cluster.closing(job)], [True], f"{name}: the line at its output's end",
          cluster.closing(job), want)


def about(got, least, most=None):
    """Whether a number of three digits is that, or between those."""
    return 0.994 * least <= got <= 1.006 * (least if most is None else most)


def check_job(name, job, data, times, state="COMPLETED"):
    """A batch job that read all of the dataset that often and printed nothing else."""
    equal(cluster.wait(job), state, f"{name}: how Slurm says that it ended")
    equal(cluster.output(job), data.sums * times, f"{name}: the bytes are right")


# ---- jobs of every kind


def one_node():
    data = dataset()
    job = cluster.submit([f"--monarch-dataset={data.path}"], data.read(3))
    ledger.expect(data.FILES, data.bytes)
    yield
    check_job(f"{variant}one node", job, data, 3)
    check_line(f"{variant}one node", job, data, 3)
    check_closing(f"{variant}one node", job)
    starts = 1 if variant in (UNSET, ALLOC) else 2  # the extern step comes with Contain
    equal(cluster.calls_for(job), ["--prolog", *["--start"] * starts, "--epilog"], f"{variant}one node: what ran as root",
          cluster.log_of(job))


def salloc():
    data = dataset()
    process = cluster.start(["salloc", "--exclusive", "-J", "salloc", f"--monarch-dataset={data.path}",
                             "srun", "sh", "-c", data.read(2) + "; echo job $SLURM_JOB_ID"])
    ledger.expect(data.FILES, data.bytes)
    yield
    code, out, err = e2e.finish(process, slurm_lab.PATIENCE)
    out, _, job = out.rpartition(b"job ")
    equal((code, out), (0, data.sums * 2), f"{variant}salloc and srun: the bytes are right", err)
    cluster.wait(int(job))
    check_line(f"{variant}salloc and srun", int(job), data, 2)


def scancel():
    data = dataset()
    job = cluster.submit([f"--monarch-dataset={data.path}"], data.read() + "; touch half.$SLURM_JOB_ID; sleep 600")
    ledger.expect(data.FILES, data.bytes)
    yield
    cluster.held(job)
    cluster.execute(["scancel", str(job)])
    equal(cluster.wait(job), "CANCELLED", f"{variant}scancel: how Slurm says that it ended")
    contains(cluster.output(job).decode(), [data.sums.decode()], f"{variant}scancel: the bytes are right")
    check_line(f"{variant}scancel", job, data, 1)


def requeue():
    data = dataset()
    script = data.read() + '; [ "$SLURM_RESTART_COUNT" ] || { touch first.$SLURM_JOB_ID; sleep 600; }'
    job = cluster.submit(["--requeue", "--open-mode=append", f"--monarch-dataset={data.path}"], script)
    ledger.expect(2 * data.FILES, 2 * data.bytes)
    yield
    cluster.wait_running(job, f"first.{job}")
    cluster.requeue(job)
    equal(cluster.wait(job), "COMPLETED", "requeue: how Slurm says that it ended")
    equal(cluster.output(job).count(data.sums), 2, "requeue: the bytes are right, both times", cluster.output(job))
    check_line("requeue", job, data, 1)


# ---- options


def no_option():
    data = dataset()
    job = cluster.submit([], data.read(2) + TASK_ENV)
    ledger.expect(2 * data.FILES, 2 * data.bytes)
    yield
    equal(cluster.wait(job), "COMPLETED", f"{variant}no option: how Slurm says that it ended")
    equal(cluster.output(job), data.sums * 2 + b"preload=\n", f"{variant}no option: the bytes are right, the environment is as without")
    equal(cluster.calls_for(job), [], f"{variant}no option: nothing of Monarch's runs")
    equal(cluster.comment(job, 0), "", f"{variant}no option: no line in sacct")


def inner_srun():
    data = dataset()
    job = cluster.submit([], f"true{TASK_ENV}; srun --monarch-dataset={data.path} sh -c "
                         f"{quoted(data.read(2))}; true{TASK_ENV}")
    ledger.expect(data.FILES, data.bytes)
    yield
    equal(cluster.wait(job), "COMPLETED", f"{variant}option on one srun: how Slurm says that it ended")
    equal(cluster.output(job), b"preload=\n" + data.sums * 2 + b"preload=\n",
          f"{variant}option on one srun: the bytes are right, that step alone has Monarch")
    check_line(f"{variant}option on one srun", job, data, 2)


# ---- at submission


def submission():
    """What sbatch accepts and refuses, and how it says so, by one of each kind; no job begins. The rules are spank_test.cc's."""
    data = local_dataset()
    wrong, closed = (f"{scratch()}/{name}" for name in ("wrong", "closed"))
    os.mkdir(closed, 0o700)
    before = cluster.execute(["squeue", "-h", "-a", "-o", "%A"])[1]

    def submit(name, parts, *words, accepted=False, command=("sbatch", "--hold", "--parsable", "--wrap=true"), **env):
        """With the parts in what is said; without parts nothing is said."""
        code, out, err = cluster.execute([command[0], *words, *command[1:]], **env)
        what = f"{command[0]} {'accepts' if accepted else 'refuses'} {name}"
        ok(code == 0 if accepted else code not in (0, "hung") and out == b"", what, code, out, err)
        contains(err, parts, f"{what}: what it says")
        ok(parts or not err, f"{what}: it says no more", err)
        if accepted:
            cluster.execute(["scancel", out.decode().strip() or "0"])

    for name, value, parts in [
            ("a path that does not exist", wrong, [wrong, "No such file", "--monarch-check=off"]),
            ("a directory that the user cannot read", closed, [closed, "Permission denied", "permission to list it"]),
            ("a directory that holds a tier", os.path.dirname(cluster.tier), [cluster.tier, "holds", "that does not"])]:
        submit(name, ["--monarch-", *parts], f"--monarch-dataset={value}")
    submit("an unknown --monarch-check", ["error, warn, off"], f"--monarch-dataset={data.path}", "--monarch-check=maybe")
    submit("a path that does not exist, from the environment", [wrong, "No such file"], env={"MONARCH_IO_OPT_DATASET": wrong})
    for command in ("salloc", "-I", "true"), ("srun", "-I", "true"):
        submit("a path that does not exist", [wrong, "No such file"], f"--monarch-dataset={wrong}", command=command)
    equal(cluster.execute(["squeue", "-h", "-a", "-o", "%A"])[1], before, "nothing that was refused is in the queue")
    for name, words, parts, env in [
            ("two directories", [f"--monarch-dataset={data.path}:{local_dataset().path}"], [], {}),
            ("a wrong path, --monarch-check=warn", [f"--monarch-dataset={wrong}", "--monarch-check=warn"], [wrong, "No such file", "warning"], {}),
            ("a wrong path, check off by the environment", [f"--monarch-dataset={wrong}"], [], {"MONARCH_IO_OPT_CHECK": "off"}),
            ("a wrong path, --no-monarch", [f"--monarch-dataset={wrong}", "--no-monarch"], [], {})]:
        submit(name, parts, *words, accepted=True, env=env)


# ---- faults, one at a time


def agent_of(job):
    """Waits for the agent of a job that was submitted; its record and its node."""
    wait_until(lambda: glob.glob(f"{cluster.state}/jobs/lab.{job}.*"), slurm_lab.PATIENCE)
    node = glob.glob(f"{cluster.state}/jobs/lab.{job}.*")[0].partition(f"/lab.{job}.")[2]
    wait_until(lambda: cluster.record(job, node))
    return cluster.record(job, node), node


def halves(data):
    """A script that reads ten files, waits for the file go.JOB, and reads the others and then all; it prints a
    checksum of each of the three parts."""
    return (f"find '{data.path}' -type f -print0 | LC_ALL=C sort -z >all.$SLURM_JOB_ID; "
            "head -z -n10 all.$SLURM_JOB_ID | xargs -0 cat | md5sum; " + HELD +
            "; tail -z -n+11 all.$SLURM_JOB_ID | xargs -0 cat | md5sum; xargs -0 cat <all.$SLURM_JOB_ID | md5sum")


def check_halves(name, job, data):
    equal(cluster.wait(job), "COMPLETED", f"{name}: how Slurm says that it ended")
    content = []
    for line in data.sums.splitlines():
        content.append(e2e.bytes_in(line.split(b"  ", 1)[1].replace(data.path.encode(), f"{scratch()}/model".encode())))
    want = [hashlib.md5(b"".join(part)).hexdigest() for part in (content[:10], content[10:], content)]
    equal([line.split()[0] for line in cluster.output(job).decode().splitlines()], want, f"{name}: the bytes are right")


def agent_killed():
    data = dataset()
    costs = Ledger()
    with open(cluster.config, "a", encoding="utf-8") as file:
        file.write("[agent]\nprefetch = off\n")
    job = cluster.submit([f"--monarch-dataset={data.path}"], halves(data))
    cluster.held(job)
    os.kill(agent_of(job)[0]["pid"], signal.SIGKILL)
    ok(wait_until(lambda: "another one goes on for it" in cluster.log_of(job), slurm_lab.PATIENCE), "agent killed in mid-epoch: there is another one",
       cluster.log_of(job))
    cluster.configure()
    cluster.go(job)
    check_halves("agent killed in mid-epoch", job, data)
    costs.expect(data.FILES, data.bytes)
    costs.check("agent killed in mid-epoch")
    line = fields(cluster.comment(job))
    equal((line.get("pfs"), line.get("nvme"), line.get("nodes")), (f"{size_text(data.bytes)}/{size_text(2 * data.bytes)}", size_text(data.bytes), "1/1"),
          "agent killed in mid-epoch: the line in sacct", line)
    equal((line.get("agent"), line.get("err")), ("died", "1"), "agent killed in mid-epoch: and that it died", line)
    check_closing("agent killed in mid-epoch", job, "; the agent ended early, and another one went on")
    contains(cluster.log_of(job), [": error: JobId", "its agent had died"], "agent killed in mid-epoch: which root's log says")
    cluster.nothing_left("agent killed in mid-epoch")


def agent_process():
    """What the agent is, as a process: the user's, with nothing of root's or Slurm's."""
    data = local_dataset()
    job = cluster.submit([f"--monarch-dataset={data.path}"], halves(data), env={"SECRET": "of the user's"})
    cluster.held(job)
    record, node = agent_of(job)
    proc = f"/proc/{record['pid']}"

    def read(name):
        return e2e.text_in(f"{proc}/{name}")

    status = dict(line.split(":\t", 1) for line in read("status").splitlines())
    groups = " ".join(map(str, sorted(os.getgrouplist(slurm_lab.USER, cluster.user.pw_gid))))
    equal((status["Uid"], status["Gid"], status["Groups"].strip(), status["NoNewPrivs"], status["CapEff"]),
          ("\t".join([str(cluster.user.pw_uid)] * 4), "\t".join([str(cluster.user.pw_gid)] * 4), groups, "1", "0" * 16),
          "the agent is the user's, for good")
    equal(read("environ"), "PATH=/usr/bin:/bin\0", "the agent's environment")
    equal((os.readlink(f"{proc}/cwd"), os.getsid(record["pid"]), read("oom_score_adj").strip()), ("/", record["pid"], "1000"),
          "the agent's directory, session and priority for the OOM killer")
    # pipe, socket: of the store of its tier.
    own = (record["run_dir"], f"{cluster.tier}/{node}/monarch/{record['name']}.", data.path, "anon_inode:", "/dev/null", "pipe:", "socket:")

    def foreign():
        """Descriptors of anything else; what the agent only reads, such as /proc/meminfo, is not there at each look."""
        found = []
        for fd in os.listdir(f"{proc}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.append(os.readlink(f"{proc}/fd/{fd}"))
        return [target for target in found if not target.startswith(own)]

    ok(wait_until(lambda: not foreign()), "the agent's descriptors", foreign())
    equal((int(status["SigBlk"], 16) & 0xffff & ~0x4003, int(status["SigIgn"], 16) & 0x7fffffff), (0, sum(1 << (s - 1) for s in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGIO))),
          "the agent's signals")
    cluster.go(job)
    check_halves("a job whose agent was looked at", job, data)


def hanging_in_job():
    """The PFS hangs from before the job on: it begins and ends as without Monarch."""
    global late_by_design
    if why := e2e.why_no_slowfs():
        e2e.skip("a PFS that hangs in a job", why)
        return
    source = local_dataset().path
    hanging = e2e.SlowFs(source, f"{source}.pfs", "--hang-meta", "1", "--attr-ttl", "0")
    hanging.command("set hang forever")  # all but its root directory; who waits for it cannot be killed
    job = cluster.submit([f"--monarch-dataset={hanging.mount}/a", "--monarch-check=off"], "echo ran")
    equal(cluster.wait(job), "COMPLETED", "the PFS hangs: the job begins and ends")
    ok(cluster.output(job).endswith(b"ran\n"), "the PFS hangs: it runs", cluster.output(job))  # behind what a late helper is told of
    begun = cluster.submit([f"--monarch-dataset={hanging.mount}/a", "--monarch-check=off"],
                           f"{HELD}; until grep -q ^state= $MONARCH_IO_STATE; do sleep 0.1; done; find {hanging.mount}/a -type f -exec cat {{}} + >/dev/null")
    cluster.held(begun)
    hanging.command("release")
    cluster.go(begun)
    equal(cluster.wait(begun), "COMPLETED", "the PFS hangs as a job begins: it ends")
    equal(fields(cluster.comment(begun)).get("late"), "1", "the PFS hangs as a job begins: sacct says that its first reads are not counted", cluster.comment(begun))
    ok("more is not counted, as the agent was not ready in time" in "".join(cluster.closing(begun)), "and so does its output", cluster.closing(begun))
    late_by_design += cluster.late_agents(job) + cluster.late_agents(begun)
    wait_until(lambda: set(cluster.nodes().values()) <= {"idle", "allocated"})
    ok(set(cluster.nodes().values()) <= {"idle", "allocated"}, "the PFS hangs: no node is drained", cluster.nodes())
    cluster.nothing_left("the PFS hangs, and answers again")
    hanging.close()


def rows_of_runs():
    yield  # job ids begin anew: the other tests come first
    slurm_rows.rows_of_runs(cluster)


def array_rows():
    slurm_rows.array_rows(cluster)


def no_accounting():
    """AccountingStorageType=none: monarch_account says so, at once."""
    conf = f"{scratch()}/none.conf"
    e2e.write(conf, re.sub(r"(?mi)^AccountingStorage.*\n", "", e2e.text_in(cluster.conf)) + "AccountingStorageType=accounting_storage/none\n")
    account = f"{cluster.prefix}/libexec/monarch/monarch_account"
    for words in (["--times"], ["--begin", "1", "--end", "2", "line"]):
        code, _, err = cluster.execute([account, "--job", "1", "--uid", "1000", *words], root=True, env={"SLURM_CONF": conf})
        equal(code, 3, "no accounting: monarch_account says so", err)


def in_time():
    yield  # after all others
    cluster.mostly_in_time("all jobs", late_by_design)


# ---- the phases


def servers():
    yield
    ledger.check(f"{variant}all jobs so far")
    cluster.nothing_left(f"{variant}all jobs so far")


def basics():
    e2e.together(one_node, scancel, requeue, servers)


def jobs():
    e2e.together(one_node, salloc, scancel, requeue, no_option, inner_srun, servers)


def other_configuration(name, options, *tests):
    global variant, ledger
    variant = name
    last = cluster.submit(["--hold"], "true")
    cluster.up("--nodes", "4", *options)
    first = cluster.submit(["--hold"], "true")
    ok(first > last, f"{variant}no job id comes twice", last, first)
    cluster.execute(["scancel", str(first)])
    ledger = Ledger()
    e2e.together(*tests, servers)


def prolog_flags_unset():
    other_configuration(UNSET, ["--proctrack", "cgroup"], one_node, salloc, scancel, inner_srun, no_option)


def prolog_flags_alloc():
    other_configuration(ALLOC, ["--prolog-flags", "Alloc"], one_node, inner_srun)


e2e.skip_all_if(slurm_lab.why_no_slurm() or e2e.why_no_glusterfs())
begin()
e2e.main(jobs, submission, agent_process, agent_killed, hanging_in_job, array_rows, no_accounting,
         prolog_flags_unset, prolog_flags_alloc, rows_of_runs, in_time)
