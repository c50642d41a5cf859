#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose owner does the worst to all that root's epilog could read, follow or remove.

After each: the node is idle, nothing of the job is left, nothing outside was touched, the epilog was quick, and
there is a line in sacct, if only to say that the counters were lost.
"""

import glob
import os
import pwd
import re
import signal
import sys

import e2e
import slurm_lab
from e2e import equal, ok, scratch, wait_until
from slurm_lab import Cluster, Dataset, tree_state

QUOTA = 256 << 20  # of the tier, in the configuration of slurm_lab
cluster = data = before = None

# Opens its argument; says as what, and by which descriptor.
OPENS = e2e.OPENED_AS + '''
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print(opened_as(fd), fd, sep="\\n", flush=True)
sys.stdin.read()
'''
# The job's program: `hostile.py CASE`, with RUN_DIR its directory, JOB_DIR root's on the tier, OUT its own, CANARY root's.
PROGRAM = f"OPENS = {OPENS!r}\n" + r'''
import fcntl, os, subprocess, sys, time
run, job, out, canary = (os.environ[name] for name in ("RUN_DIR", "JOB_DIR", "OUT", "CANARY"))
board = run + "/board"
files = [f"{run}/{name}" for name in ("board", "catalog", "state", "series", "monarchd.log", "entries.0", "told")]


def survivor(work):
    """Runs `work` again and again in a process that outlives the job."""
    if os.fork():
        return
    os.setsid()
    for name in list(os.environ):
        if name.startswith("SLURM"):
            del os.environ[name]
    if os.fork():
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    with open(f"{out}/pid.{os.path.basename(run)}", "w") as file:
        file.write(str(os.getpid()))
    while True:
        try:
            work()
        except OSError:
            pass


def kill_helpers():
    # This cluster's: others that run beside it have the same user.
    state = os.path.dirname(os.path.dirname(run))
    subprocess.run(["pkill", "-STOP", "-u", str(os.getuid()), "-f", "monarchd .*" + state])


def try_all():
    """What the owner can do to the run directory and, on the tier, to the job's directory and to a copy that it has open."""
    os.environ.pop("MONARCH_IO_DISABLE")
    reader = subprocess.Popen(["/usr/bin/python3", "-c", OPENS, os.environ["FILE"]], stdout=subprocess.PIPE, stdin=subprocess.PIPE,
                              env={**os.environ, "LD_PRELOAD": os.environ["LIBRARIES"]})
    copy = reader.stdout.readline().decode().strip()
    by_fd, bucket = f"/proc/{reader.pid}/fd/{reader.stdout.readline().decode().strip()}", os.path.dirname(copy)
    tier = os.path.dirname(os.path.dirname(job))
    assert copy.startswith(job + "/"), copy
    tries = {
        "run: list": lambda: os.listdir(run), "run: mkdir": lambda: os.mkdir(f"{run}/d"), "run: create": lambda: os.open(f"{run}/f", os.O_CREAT | os.O_WRONLY),
        "run: rename": lambda: os.rename(board, f"{run}/b"), "run: unlink": lambda: os.unlink(board), "run: link": lambda: os.link(board, f"{run}/b"),
        "run: link elsewhere": lambda: os.link(canary, f"{run}/c"), "run: symlink": lambda: os.symlink(canary, f"{run}/l"),
        "run: chmod": lambda: os.chmod(run, 0o777), "run: rename itself": lambda: os.rename(run, run + ".mine"), "run: chown": lambda: os.chown(board, 0, -1),
        "list": lambda: os.listdir(job), "list a bucket": lambda: os.listdir(bucket),
        "lock": lambda: os.open(job, os.O_RDONLY | os.O_DIRECTORY), "mkdir": lambda: os.mkdir(f"{job}/d"),
        "create": lambda: os.open(f"{bucket}/f", os.O_CREAT | os.O_WRONLY), "nameless": lambda: os.open(bucket, os.O_TMPFILE | os.O_RDWR),
        "rename": lambda: os.rename(copy, f"{bucket}/f"), "rename the directory": lambda: os.rename(job, f"{job}.mine"),
        "unlink": lambda: os.unlink(copy), "rmdir": lambda: os.rmdir(bucket), "symlink": lambda: os.symlink("/", f"{bucket}/l"),
        "chmod": lambda: os.chmod(copy, 0o777), "chmod the directory": lambda: os.chmod(job, 0o777), "times": lambda: os.utime(copy),
        "chown": lambda: os.chown(copy, os.getuid(), -1), "link": lambda: os.link(copy, f"{tier}/linked"),
        "link the open one": lambda: os.link(by_fd, f"{tier}/linked", follow_symlinks=True), "write": lambda: os.open(copy, os.O_WRONLY),
        "write the open one": lambda: os.open(by_fd, os.O_WRONLY), "truncate": lambda: os.truncate(copy, 0),
        "xattr": lambda: os.setxattr(copy, "user.x", b"x"), "noatime": lambda: os.open(copy, os.O_RDONLY | os.O_NOATIME),
        "lease": lambda: fcntl.fcntl(os.open(copy, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK), "execute": lambda: os.execv(copy, [copy]),
    }
    done = []
    for name, attempt in tries.items():
        try:
            attempt()
            done.append(name)
        except OSError:
            pass
    with open(f"{out}/done.{os.environ['SLURM_JOB_ID']}", "w") as file:
        file.write(str(done))
    reader.communicate(b"")


def case(name):
    if name == "counters that are huge":
        with open(board, "r+b") as file:
            file.seek(320)
            file.write((b"\xff" * 5 + b"\x00" * 3) * 3000)
    elif name == "all files are cut":
        for path in files:
            os.truncate(path, 0)
    elif name == "no file has a mode":
        for path in files:
            os.chmod(path, 0)
    elif name == "all is tried":
        try_all()
    elif name == "the agent is stopped":
        subprocess.run(["pkill", "-STOP", "-u", str(os.getuid()), "-f", "monarchd .*--run-dir " + run])
    elif name == "a process writes to all files again":
        def write():
            for path in files:
                with open(path, "r+b") as file:
                    file.write(os.urandom(65536))
        survivor(write)
    elif name == "a process stops all helpers":
        survivor(kill_helpers)
    else:
        raise ValueError(name)


case(sys.argv[1])
if sys.argv[1].startswith("a process "):
    time.sleep(0.5)
'''

LOST, KEPT, EITHER = "counters=lost", "hit=", "monarch=1"
CASES = {
    "counters that are huge": EITHER, "all files are cut": LOST, "no file has a mode": EITHER,
    "all is tried": KEPT, "the agent is stopped": KEPT, "a process writes to all files again": EITHER,
}


def outside():
    """What no job may change: root's canary, the system's secrets, root's own state."""
    system = [(path, st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
              for path in ("/etc", "/etc/shadow", cluster.state, f"{cluster.state}/jobs", f"{cluster.state}/run", cluster.tier)
              for st in [os.stat(path)]]
    # Others of the machine's make and rename files in /etc, and the cluster in its own.
    return tree_state(f"{scratch()}/canary") + [entry if entry[0] == "/etc/shadow" else entry[:4] for entry in system]


def begin():
    global cluster, data, before
    cluster = Cluster()
    cluster.up("--nodes", "4", "--prolog-flags", "Contain")
    canary = scratch("canary/sub/sub")
    for directory in (canary, f"{scratch()}/canary", f"{scratch()}/canary/sub"):
        for name in ("file", "board", "record.json"):
            e2e.write(f"{directory}/{name}", "untouched")
    e2e.write(f"{scratch()}/hostile.py", PROGRAM)
    data = Dataset(scratch())
    # A first job makes what root makes once.
    cluster.wait(cluster.submit([f"--monarch-dataset={data.path}"], "true"))
    wait_until(lambda: not cluster.left())
    before = outside()


def submit(name):
    script = (f'{data.read()}; export RUN_DIR=$MONARCH_IO_RUN_DIR OUT={cluster.out} CANARY={scratch()}/canary '
              f'FILE=$(find {data.path} -type f -size +0 | head -n 1) LIBRARIES=$LD_PRELOAD; '
              f'export JOB_DIR=$(tail -n 1 $RUN_DIR/directories); '
              f'export MONARCH_IO_DISABLE=1; unset LD_PRELOAD; /usr/bin/python3 {scratch()}/hostile.py "{name}"')
    # What is cut before the agent has it in use is not cut.
    return cluster.submit([f"--monarch-dataset={data.path}", "--monarch-wait=full"], script)


def check(name, job, line_part):
    state, output = cluster.wait(job), re.sub(rb"(?m)^monarch: .*\n", b"", cluster.output(job))
    equal(state, "COMPLETED", f"{name}: how Slurm says that it ended", output[len(data.sums):])
    equal(output[:len(data.sums)], data.sums, f"{name}: the bytes are right")
    line = cluster.comment(job)
    ok(line.startswith("monarch=1 ") and line_part in line and len(line) <= 255, f"{name}: the line in sacct", line)
    print(f"# {cluster.epilog_ms(job)} ms; {line}")

    def left():
        return [path for path in cluster.left() if f".{job}." in path]
    wait_until(lambda: not left(), 30)  # in the background, if it is much
    equal(left()[:5], [], f"{name}: nothing is left", cluster.log_of(job)[-2000:])


def end_survivors():
    for file in glob.glob(f"{cluster.out}/pid.*"):
        with open(file, encoding="utf-8") as text:
            try:
                os.kill(int(text.read()), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                pass
        os.unlink(file)


def hostile_owner():
    jobs = {name: submit(name) for name in CASES}
    for name, job in jobs.items():
        check(name, job, CASES[name])
    ok(not [name for name in CASES if name.startswith("a process ") and not glob.glob(f"{cluster.out}/pid.*.{jobs[name]}.*")],
       "the processes outlived their jobs")
    end_survivors()
    done = e2e.text_in(f"{cluster.out}/done.{jobs['all is tried']}")
    equal(done, "[]", "the owner can do nothing but read copies and write to the run directory's files")
    equal(outside(), before, "nothing outside was touched")
    cluster.nothing_left("all hostile jobs")


def helpers_stopped():
    """A process of the user's stops each helper that runs as the user; alone, since it stops those of all jobs."""
    name = "a process stops all helpers"
    job = submit(name)
    check(name, job, EITHER)
    end_survivors()
    equal(outside(), before, f"{name}: nothing outside was touched")
    wait_until(lambda: not cluster.processes())
    cluster.nothing_left(name)


def next_job():
    """A job of another user's on all nodes, after all that: it has all of each one's tier."""
    job = cluster.submit(["--nodes=4", "--uid=nobody", "--output=/dev/null", f"--monarch-dataset={data.path}"],
                         f"while [ ! -e {cluster.out}/go.$SLURM_JOB_ID ]; do sleep 0.05; done", root=True)
    wait_until(lambda: all(cluster.record(job, node) for node in cluster.node_names), slurm_lab.PATIENCE)
    records = [cluster.record(job, node) for node in cluster.node_names]
    cluster.go(job)
    equal([(record["uid"], record["tiers"][0]["quota"]) for record in records], [(pwd.getpwnam("nobody").pw_uid, QUOTA)] * 4,
          "a job of another user's starts on each node, and has the whole quota of each", cluster.log_of(job))
    equal(cluster.wait(job), "COMPLETED", "it ends")
    cluster.nothing_left("the next job")


e2e.skip_all_if(slurm_lab.why_no_slurm())
begin()
e2e.main(hostile_owner, helpers_stopped, next_job)
