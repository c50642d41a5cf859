#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Another user on the node, and a job's owner who writes catalog and board: what tasks then read is the PFS's."""

import glob
import mmap
import os
import random
import struct
import time

import e2e
from e2e import equal, ok, options, scratch, wait_until

TRUE, FALSE = b"the dataset's own bytes\n", b"what another user wrote\n"
GROUP, OTHER_GROUP = 54321, 54322
# Opens its argument now, and for each line that it reads; prints what it got, and where from.
READER = e2e.OPENED_AS + """
import os, sys
def look():
    try:
        fd = os.open(sys.argv[1], os.O_RDONLY)
    except OSError as error:
        return print(error.errno, flush=True)
    name = opened_as(fd)
    print("PFS" if name == sys.argv[1] else "copy", os.read(fd, 1 << 20), flush=True)
    with open(sys.argv[1], "rb") as stream:
        print(stream.read(), flush=True)
look()
for line in sys.stdin: look()
"""


def data(name, content=TRUE):
    root = scratch(f"{name}.data")
    e2e.write(f"{root}/f", content)
    return root


def open_tier(name):
    tier = scratch(f"{name}.tier")
    os.chmod(tier, 0o1777)
    return tier


def staged(tier):
    return glob.glob(f"{tier}/monarch-run.*/??/*")


def reader(job_env, file, before):
    """A program with the job's environment, to be asked again."""
    return e2e.start([*before, "/usr/bin/python3", "-c", READER, file], env={**job_env, b"PYTHONMALLOC": b"malloc"},
                     stdin=e2e.subprocess.PIPE, stdout=e2e.subprocess.PIPE)


def ask(process):
    process.stdin.write(b"again\n")
    process.stdin.flush()
    return [process.stdout.readline().decode().strip() for _ in range(2)]


def why_not():
    return "needs root" if os.geteuid() != 0 else e2e.why_not_nobody()


def forge(directory):
    """Another user's files in the place of copies, with their sizes and times."""
    for copy in glob.glob(f"{directory}/??/*"):
        st = os.stat(copy)
        e2e.write(copy, FALSE.ljust(st.st_size)[:st.st_size])
        os.utime(copy, ns=(st.st_atime_ns, st.st_mtime_ns))
        os.chmod(copy, 0o644)
    for opened in [directory, *glob.glob(f"{directory}/*")]:
        os.chmod(opened, 0o755)


@e2e.unless(why_not)
def taken_run_directory():
    """The name of a run directory is another user's by now, with a catalog and copies of that user's making."""
    root, tier = data("taken"), open_tier("taken")
    job = e2e.Job(options([root], {"t": (tier, "1G")}))
    job.run(["cat", f"{root}/f"])
    ok(wait_until(lambda: staged(tier)), "another user's agent stages the same dataset")
    forge(os.path.dirname(os.path.dirname(staged(tier)[0])))
    os.chmod(job.run_dir, 0o755)
    for name in os.listdir(job.run_dir):
        os.chmod(f"{job.run_dir}/{name}", 0o666 if name == "board" else 0o644)
    log = f"{scratch()}/taken.log"
    with open(log, "wb"):
        os.chmod(log, 0o666)
    env = {**job.env, b"MONARCH_IO_LOG": os.fsencode(log)}
    equal(e2e.execute([*e2e.NOBODY, "cat", f"{root}/f"], env=env)[:2], (0, TRUE), "a program that was told that directory reads the PFS")
    ok("another user's" in e2e.text_in(log), "and its log says why")
    equal(job.run(["cat", f"{root}/f"])[1], TRUE, "its owner's programs, too, once others have access to it")
    os.chmod(job.run_dir, 0o700)
    equal(job.run(["cat", f"{root}/f"])[1], TRUE, "and where others can write the board")
    for name in os.listdir(job.run_dir):
        os.chmod(f"{job.run_dir}/{name}", 0o600)
    equal(job.run(["cat", f"{root}/f"])[1], FALSE.ljust(len(TRUE))[:len(TRUE)], "and the copy was there to be read")
    job.end()


def copy_in_use(root, tier):
    """A job of nobody's, its task that holds the copy open, the task's answer, and the copies' directory."""
    job = e2e.Job(options([root], {"t": (tier, "1G")}), before=e2e.NOBODY)
    job.run([*e2e.NOBODY, "cat", f"{root}/f"])
    ok(wait_until(lambda: staged(tier)), "a file is staged")
    task = reader(job.env, f"{root}/f", e2e.NOBODY)
    answer = [task.stdout.readline().decode().strip() for _ in range(2)]
    equal(answer, [f"copy {TRUE!r}", repr(TRUE)], "a task reads the copy")
    return job, task, answer, os.path.dirname(os.path.dirname(staged(tier)[0]))


def take_over(own, tier, task):
    """Another user makes the copies' directory anew, for a moment; the job's own is tier/old meanwhile."""
    os.rename(own, f"{tier}/old")
    e2e.subprocess.run(["cp", "-a", f"{tier}/old", own], check=True)
    e2e.subprocess.run(["chown", "-R", "0:0", own], check=True)
    forge(own)
    equal(ask(task), [f"PFS {TRUE!r}", repr(TRUE)], "the task reads the PFS where another user made the directory")
    e2e.subprocess.run(["rm", "-rf", own], check=True)
    os.rename(f"{tier}/old", own)


@e2e.unless(why_not)
def taken_copies():
    """The copies' directory is another user's by now: agent and monarchctl were killed, and a task goes on."""
    tier = open_tier("copies")
    job, task, answer, own = copy_in_use(data("copies"), tier)
    agent = job.agent()
    job.kill_all()
    wait_until(lambda: not os.path.exists(f"/proc/{agent}/maps") or not open(f"/proc/{agent}/cmdline", "rb").read())
    equal(ask(task), answer, "and goes on when its agent was killed")
    take_over(own, tier, task)
    equal(ask(task), answer, "and its own copy again")
    e2e.end(task)
    e2e.subprocess.run(["rm", "-rf", job.run_dir, own], check=True)


@e2e.unless(why_not)
def open_directory():
    """A tier that all can write, without the sticky bit: the directory is taken while the job runs."""
    tier = open_tier("open")
    os.chmod(tier, 0o777)
    job, task, _, own = copy_in_use(data("open"), tier)
    take_over(own, tier, task)
    e2e.end(task)
    job.end()


@e2e.unless(why_not)
def groups():
    """A program in other groups than the agent may read what the PFS would let it read."""
    root, tier = data("groups"), open_tier("groups")
    os.chown(f"{root}/f", 0, GROUP)
    os.chmod(f"{root}/f", 0o640)

    def user(*of):
        return ["setpriv", "--reuid=65534", "--regid=65534", f"--groups={','.join(map(str, of))}" if of else "--clear-groups"]
    job = e2e.Job(options([root], {"t": (tier, "1G")}), before=user(GROUP))
    command = ["sh", "-c", 'cat "$1"; stat -c %s "$1"', "sh", f"{root}/f"]
    equal(e2e.execute([*user(GROUP), *command], env=job.env)[:2], (0, TRUE + b"%d\n" % len(TRUE)), "the owner's group reads the file")
    ok(wait_until(lambda: staged(tier)), "which is staged")
    for of in (GROUP,), (OTHER_GROUP, GROUP), (), (OTHER_GROUP,):
        native = e2e.execute([*user(*of), *command])
        equal(e2e.execute([*user(*of), *command], env=job.env)[:2], native[:2], f"groups {of}: as natively", native)
    process = reader(job.env, f"{root}/f", user(OTHER_GROUP, GROUP))
    equal(process.stdout.readline().decode().strip(), f"copy {TRUE!r}", "who may read the file reads the copy, in whatever groups")
    e2e.end(process)
    inside = ["unshare", "-r", "cat", f"{root}/f"]
    equal(e2e.execute([*user(GROUP), *inside], env=job.env)[:2], e2e.execute([*user(GROUP), *inside])[:2], "in a user namespace")
    job.end()


# Opens its argument, gives up what lets root read it, in a thread first, and opens it again each time; then takes it back.
LOSES_RIGHTS = e2e.OPENED_AS + """
import ctypes, os, struct, sys, threading
libc, header = ctypes.CDLL(None, use_errno=True), struct.pack("<Ii", 0x20080522, 0)
def change(keep):
    sets = ctypes.create_string_buffer(24)
    if libc.capget(header, sets) != 0: sys.exit("capget")
    words = list(struct.unpack("<6I", sets.raw))
    words[0] = words[0] & ~6 if not keep else words[1]
    if libc.capset(header, struct.pack("<6I", *words)) != 0: sys.exit("capset")
def look(who):
    try:
        fd = os.open(sys.argv[1], os.O_RDONLY)
        print(who, os.read(fd, 100), file=sys.stdout)
        print("PFS" if opened_as(fd) == sys.argv[1] else "copy", file=sys.stderr)
        os.close(fd)
    except OSError as error:
        print(who, error.errno)
    print(os.access(sys.argv[1], os.R_OK))
def lose():
    change(False)
    look("thread without")
look("all")
thread = threading.Thread(target=lose)
thread.start()
thread.join()
look("main")
change(False)
look("main without")
change(True)
look("main again")
"""


@e2e.unless(why_not)
def capabilities():
    """A program of root's job that gave up CAP_DAC_OVERRIDE and its kin, or is in another user namespace, may read less."""
    root, tier = data("capabilities"), open_tier("capabilities")
    os.chown(f"{root}/f", 54323, 54323)
    os.chmod(f"{root}/f", 0)
    job = e2e.Job(options([root], {"t": (tier, "1G")}))
    equal(job.run(["cat", f"{root}/f"])[:2], (0, TRUE), "root reads the file")
    ok(wait_until(lambda: staged(tier)), "which is staged")
    equal(job.run(["cat", f"{root}/f"])[:2], (0, TRUE), "and again")
    read = ["sh", "-c", 'cat "$1"; head -c 4 <"$1"; test -r "$1"; echo $?; stat -c %s "$1"', "sh", f"{root}/f"]
    none = "-dac_override,-dac_read_search"
    for what, before in {
        "without both": ["setpriv", "--bounding-set", none, "--inh-caps", none],
        "with one of them": ["setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override"],
        "in a user namespace": ["unshare", "-Ur"],
    }.items():
        native = e2e.execute([*before, *read])
        equal(job.run([*before, *read])[:2], native[:2], f"{what}: as natively", native)
    program = ["/usr/bin/python3", "-c", LOSES_RIGHTS, f"{root}/f"]
    native, got = e2e.execute(program), job.run(program)
    equal(got[:2], native[:2], "one that loses them on its way: as natively", native, got[2])
    equal(got[2].split(), ["copy"] * 3, "and is served while it has them", got[2])
    job.end()


def everything():
    """Random bytes anywhere in catalog and board: programs end well, and the agent lives."""
    root, tier = scratch("everything.data"), open_tier("everything")
    e2e.make_tree(root, 60)
    files = e2e.read_all(root)
    native = e2e.execute(files)
    numbers = random.Random(7)
    job = e2e.Job(options([root], {"t": (tier, "1G")}))
    pid = job.agent()
    job.run(files)
    names = [n for n in sorted(os.listdir(job.run_dir)) if not n.endswith((".log", ".err"))]
    maps = []
    for name in names:
        with open(f"{job.run_dir}/{name}", "r+b") as file:
            if os.fstat(file.fileno()).st_size <= 16:
                continue
            maps.append((name, mmap.mmap(file.fileno(), 0)))
    odd = [0, 1, 8, 255, 4096, 65535, 1 << 20, 1 << 31, (1 << 32) - 1]
    end = time.monotonic() + (120 if os.environ.get("MONARCH_TEST_ALL") == "1" else 6)
    runs = 0
    while time.monotonic() < end:
        for _ in range(300):
            name, target = numbers.choice(maps)
            at = numbers.randrange(min(len(target), numbers.choice([256, 4096, 1 << 30])) - 8) & ~3
            if name == "board" and (at < 128 or 272 <= at < 280):  # whether the agent lives, and its rate: how long opens wait
                continue
            target[at:at + 4] = struct.pack("<I", numbers.choice(odd))
        code = job.run(["sh", "-c", 'find "$1" -type f -exec sh -c \'cat "$@" >/dev/null; ls -l "$@" >/dev/null\' sh {} +', "sh", root],
                       seconds=10 * e2e.PATIENCE)[0]
        # What it is told of names and sizes is the owner's own affair; that it is told something is not.
        if code not in (0, 1):
            ok(False, "programs end well", code)
            break
        runs += 1
    ok(runs > 0, "programs end well", runs)
    print(f"# {runs} runs")
    ok(os.path.exists(f"/proc/{pid}/maps") and job.agent() == pid, "the agent lives")
    equal(e2e.execute(files)[:2], native[:2], "and the dataset is what it was")
    job.kill()
    e2e.subprocess.run(["rm", "-rf", job.run_dir, *glob.glob(f"{tier}/monarch-run.*")], check=False)


e2e.main(taken_run_directory, taken_copies, open_directory, groups, capabilities, everything)
