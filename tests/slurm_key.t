#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""How the agents of a job's nodes get its key and the list of its nodes in a real Slurm, that nobody else gets the key, and that
the PFS is asked once."""

import contextlib
import glob
import json
import os
import re
import signal
import stat
import subprocess

import e2e
import slurm_lab
from e2e import equal, ok, scratch, wait_until
from slurm_lab import Cluster, Dataset, quoted

cluster = data = None
SEEN = "{ env | grep -ci monarch_key || true; }"
WAITS = f"{SEEN} >$SLURM_JOB_ID.$SLURM_PROCID; touch on.$SLURM_JOB_ID.$SLURM_PROCID; " \
        "while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.05; done"


def begin():
    global cluster, data
    cluster = Cluster()
    begin_, rest = e2e.text_in(cluster.monarchd).split("\n", 1)
    e2e.write(cluster.monarchd, f'{begin_}\necho "$1 ${{MONARCH_JOB_KEY:+key}} $MONARCH_JOB_NODES $*" >>{scratch()}/told\n{rest}')
    cluster.up("--nodes", "6", "--prolog-flags", "Contain")
    data = Dataset(scratch())


def read(path):
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def nodes_of(job):
    return cluster.execute(["scontrol", "show", "hostnames", cluster.jobs(job)[0]["NodeList"]])[1].decode().split()


def check_agents(name, job):
    """Each node's agent runs with the same key and list; returns the key. That they have it shows where they share."""
    nodes = nodes_of(job)
    equal(len(nodes), 2, f"{name}: two nodes")
    for node in nodes:
        wait_until(lambda node=node: cluster.record(job, node))
    notes = [[cluster.record(job, node)[member] for member in ("peer_key", "peer_nodes")] for node in nodes]
    ok(re.fullmatch("[0-9a-f]{64}", notes[0][0]), f"{name}: root has noted a key", notes)
    equal(notes[1], notes[0], f"{name}: the same on the other node")
    for index, node in enumerate(nodes):
        modes = [stat.S_IMODE(os.stat(f"{cluster.state}/jobs/lab.{job}.{node}{file}").st_mode) for file in ("/record.json", "")]
        equal(modes, [0o600, 0o700], f"{name}: the note is root's alone on node {index}")
        record = cluster.record(job, node)
        equal(read(record["run_dir"] + "/peers").decode(), "".join(f"{n} 127.0.0.1\n" for n in nodes), f"{name}: node {index} has the list in Slurm's order")
        # Slurm 22.05 tells slurmstepd of no restart.
        words = read(f"/proc/{record['pid']}/cmdline").decode().split("\0")
        arguments = dict(zip(words, words[1:]))
        equal((arguments.get("--peer-index"), arguments.get("--peer-identity")), (str(index), f"lab.{job}.0"),
              f"{name}: the agent of node {index} knows its place")
    return notes[0][0]


def check_secret(name, job, key):
    """Nobody but root, and the owner's agents and submission, can see the key."""
    commands = [path for path in glob.glob("/proc/[0-9]*/cmdline") if key in read(path).decode(errors="replace")]
    equal(commands, [], f"{name}: the key is on no command line")
    users = set()
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if key.encode() in read(path) and os.stat(path).st_uid != 0:
                users.add(os.path.basename(read(path.replace("environ", "cmdline")).decode().split("\0")[0]))
    equal(users, set(), f"{name}: no task's environment has it")
    for who in ["nobody", slurm_lab.USER]:
        shown = subprocess.run(["setpriv", f"--reuid={who}", "--clear-groups", "env", f"SLURM_CONF={cluster.conf}", "scontrol", "show", "job",
                                "-dd", str(job)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout.decode()
        ok(f"JobId={job} " in shown and key not in shown, f"{name}: nor has scontrol for {who}", shown)
    readable = []
    for directory, _, files in os.walk(scratch()):
        for file in files:
            path = f"{directory}/{file}"
            with contextlib.suppress(OSError):
                st = os.lstat(path)
                if stat.S_ISREG(st.st_mode) and st.st_size < 1 << 24 and st.st_dev == os.stat(scratch()).st_dev and (st.st_uid == cluster.user.pw_uid or st.st_mode & 0o044):
                    text = read(path)
                    if key.encode() in text or bytes.fromhex(key) in text:
                        readable.append(path)
    equal(readable, [], f"{name}: nor a file of the owner's, or that others can read")
    ok(not re.search(key, read(cluster.log).decode()), f"{name}: nor the log")


def check_told(name, job, *steps):
    """What the plugin told root's helpers: each node's prolog of both nodes, its extern step of nothing."""
    nodes = cluster.jobs(job)[0]["NodeList"]
    with open(f"{scratch()}/told", encoding="utf-8") as file:
        lines = list(file)
    told = sorted(" ".join(line.split(" ")[:3]) for line in lines if f" --job {job} " in line and not line.startswith("--epilog"))
    equal(told, sorted([f"--prolog key {nodes}"] * 2 + ["--start  "] * 2 + [f"--start {key} {nodes}" for key in steps]),
          f"{name}: where Slurm carries the key")
    equal([line for line in lines if data.path in line], [],
          f"{name}: no command line of root's helpers, which all can read, shows a dataset")


def running(job):
    for task in range(2):
        cluster.wait_running(job, f"on.{job}.{task}")


def batch():
    script = f"{SEEN} >$SLURM_JOB_ID.batch; srun -Q --no-monarch sh -c {quoted(SEEN)} >$SLURM_JOB_ID.without; " \
             f"srun -Q -n2 sh -c {quoted(WAITS)}"
    job = cluster.submit(["-N2", f"--monarch-dataset={data.path}"], script)
    yield
    running(job)
    key = check_agents("sbatch", job)
    check_told("sbatch", job, "key", "", "")  # the batch script's step, and its srun's on each node
    check_secret("sbatch", job, key)
    cluster.go(job)
    equal(cluster.wait(job), "COMPLETED", "sbatch: how Slurm says that it ended", read(f"{cluster.out}/{job}"))
    equal([read(f"{cluster.out}/{job}.{of}") for of in ("0", "1", "batch", "without")], [b"0\n", b"0\n", b"0\n", b"0\n0\n"],
          "sbatch: no task sees it, nor does the batch script, or a step with --no-monarch")


def shares():
    """Both nodes read all files; the PFS is asked for each byte once."""
    if why := e2e.why_no_slowfs():
        e2e.skip("two nodes on a counted PFS", why)
        return
    pfs = e2e.SlowFs(data.path, f"{data.path}.pfs")
    script = f"cd {pfs.mount}; srun -Q -n2 sh -c {quoted('find . -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum')}"
    job = cluster.submit(["-N2", f"--monarch-dataset={pfs.mount}", f"--monarch-report={cluster.out}/report.%j"], script)
    yield
    equal(cluster.wait(job), "COMPLETED", "shares: how Slurm says that it ended", cluster.output(job))
    want = sorted(data.sums.replace(data.path.encode(), b".").splitlines() * 2)
    equal(sorted(cluster.output(job).splitlines()), want, "shares: both nodes read what the PFS has")
    counters = pfs.counters()
    line = slurm_lab.fields(cluster.comment(job))
    # A node that a busy machine made late: those files are read once more, and the line says so.
    late = int(line.get("peererr", 0)) + int(line.get("dup", 0))
    again = counters["read_bytes"] - data.bytes
    ok(again <= 0.005 * data.bytes + late * data.largest and counters["open"] <= data.FILES + late,
       "shares: the PFS is asked for each file once", counters, data.bytes, line, cluster.log_of(job))
    equal(line["err"], "0", "shares: and no errors", line)
    equal((line["nodes"], line["pfs"], line["nvme"]),
          ("2/2", f"{slurm_lab.size_text(counters['read_bytes'])}/{slurm_lab.size_text(2 * data.bytes)}",
           slurm_lab.size_text(2 * data.bytes)), "shares: sacct has what the PFS counted, and what both nodes did", line)
    ok(abs(slurm_lab.bytes_of(line["peer"]) - data.bytes) <= late * data.largest + 0.01 * data.bytes,
       "shares: all else came from the other node", line)
    equal([re.match(r"monarch: on node\d, one of 2 nodes: read ", line) is not None for line in cluster.closing(job)], [True],
          "shares: the output's last line has the first node's numbers, and says so", cluster.closing(job))
    kept = sorted(glob.glob(f"{cluster.state}/reports/*/lab.{job}.*.json"))
    heads = [e2e.execute([f"{e2e.BUILD}/monarchctl", "report", path])[1].decode().splitlines()[0] for path in kept]
    first = [head.endswith("2 nodes") and "only" not in head for head in heads]
    equal(first, [True, False], "shares: the second node's kept report says in its first line that it is of that node only", heads)
    named = f"{cluster.out}/report.{job}"
    ok(wait_until(lambda: os.path.exists(named)) and read(named) == read(kept[0]), "shares: the file that the job names has the first node's report")
    told_by = [json.loads(e2e.execute([f"{e2e.BUILD}/monarchctl", "report", path, "--json"])[1])["by_node"] for path in kept]
    equal([[(row["node"], row["ended"], row["opens"]) for row in rows or []] for rows in told_by],
          [[(path.split(".")[-2], True, data.FILES) for path in kept], []], "shares: the first node's kept report tells of each node, all that it had", kept, told_by)
    ok(wait_until(lambda: len(cluster.epilog_ms(job)) == 2), "shares: both nodes had their epilog", cluster.epilog_ms(job))
    pfs.close()


def loses_a_node():
    """For an agent that is killed another one tells; an epilog that waits for one that hangs does not wait long."""
    yield  # until there are nodes for it
    for name, node, number, nodes in ("an agent is killed", 1, signal.SIGKILL, "2/2"), ("the first agent hangs", 0, signal.SIGSTOP, "1/2"):
        job = cluster.submit(["-N2", f"--monarch-dataset={data.path}"], f"srun -Q -n2 sh -c {quoted(WAITS)}")
        running(job)
        of = nodes_of(job)[node]
        wait_until(lambda job=job, of=of: cluster.record(job, of))
        os.kill(cluster.record(job, of)["pid"], number)
        if number == signal.SIGKILL:
            log = cluster.record(job, of)["run_dir"] + "/monarchd.log"
            ok(wait_until(lambda log=log: read(log).count(b"node 1 of 2") == 2), f"{name}: another one goes on, and has peers", read(log), cluster.log_of(job))
        cluster.go(job)
        equal(cluster.wait(job), "COMPLETED", f"{name}: how Slurm says that it ended")
        equal(slurm_lab.fields(cluster.comment(job))["nodes"], nodes, f"{name}: sacct has what the first node knew")
        ok(wait_until(lambda job=job: len(cluster.epilog_ms(job)) == 2), f"{name}: both nodes had their epilog")


def waits():
    """--monarch-wait: each node waits for what is its to stage; both together have all."""
    show = "grep -E '^(state|percent|files|staged_files)=' $MONARCH_IO_STATE | paste -s -d ' '"
    job = cluster.submit(["-N2", f"--monarch-dataset={data.path}", "--monarch-wait=full"], f"srun -Q -N2 -n2 sh -c {quoted(show)}")
    yield
    equal(cluster.wait(job), "COMPLETED", "two nodes wait: how Slurm says that it ended", cluster.output(job))
    out = cluster.output(job).decode()
    found = re.findall(r"state=staged-in percent=100 files=(\d+) staged_files=(\d+)", out)
    equal((len(found), sum(int(files) for files, _ in found), all(files == there for files, there in found)), (2, data.FILES, True),
          "two nodes wait: both are staged when their tasks begin", out)
    equal(out.count("100% of the dataset is staged"), 1, "two nodes wait: the first tells", out)


def without():
    """Jobs that have no peers: their log says why, in the one line that they have at their start anyhow, and the output once."""
    inner = cluster.submit(["-N2"], f"srun -Q -n2 --monarch-dataset={data.path} sh -c {quoted('ls ' + data.path)} >/dev/null")
    single = cluster.submit([f"--monarch-dataset={data.path}"], "true")
    yield
    for name, job, count, why in [("option on one srun", inner, 2, "no key has come with the job"), ("one node", single, 1, "the job has one node")]:
        equal(cluster.wait(job), "COMPLETED", f"{name}: how Slurm says that it ended", cluster.output(job))
        if b"its helper did not answer" in cluster.output(job):
            e2e.skip(f"{name}: why it has no peers", "a busy machine has made an agent late")
            continue

        def told(job=job, why=why):
            return [f" agent started; no peers: {why}" in line for line in cluster.log_of(job).splitlines() if "peers" in line]
        ok(wait_until(lambda count=count: told() == [True] * count), f"{name}: a line of each node says why", cluster.log_of(job))
        equal(cluster.output(job).count(b" gets no files from the job's other nodes: no key has come with the job"), count - 1,
              f"{name}: the job's output says so once, where others have files", cluster.output(job))
    cluster.nothing_left("all jobs")


e2e.skip_all_if(slurm_lab.why_no_slurm())
begin()
e2e.main(batch, shares, waits, loses_a_node, without)
