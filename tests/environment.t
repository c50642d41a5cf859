#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""The environment: programs keep Monarch however they are started, beside what else is preloaded, and users can
switch it off, exclude programs and files, and read in a log what became of each open."""

import os
import re
import shutil
import subprocess
import stat

import e2e
from e2e import BUILD, SOURCE, equal, ok, options, scratch, skip

# HOW PROGRAM ARGUMENT: starts the program by one member of the exec family, with an environment that holds nothing.
LAUNCH = ["/usr/bin/python3", "-c", """
import ctypes, os, sys
libc, how, words = ctypes.CDLL(None), sys.argv[1], [os.fsencode(word) for word in sys.argv[2:]]
name, args, bare = words[0], (ctypes.c_char_p * 3)(*words, None), (ctypes.c_char_p * 1)(None)
flags = os.O_RDONLY | (os.O_CLOEXEC if how.endswith("cloexec") else 0)
if how in ("execve", "execvpe"): getattr(libc, how)(name, args, bare)
if how == "no environment": libc.execve(name, args, None)
if how == "execle": libc.execle(name, *words, None, bare)
if how.startswith("fexecve"):
    fd = os.open(name, flags)
    os.set_inheritable(fd, not flags & os.O_CLOEXEC)
    libc.fexecve(fd, args, bare)
if how == "execveat": libc.execveat(-100, name, args, bare, 0)
if how == "execveat, descriptor":
    fd = os.open(name, flags)
    os.set_inheritable(fd, True)
    libc.execveat(fd, b"", args, bare, 0x1000)
if how.startswith("posix_spawn"):
    pid = ctypes.c_int()
    sys.exit(getattr(libc, how)(ctypes.byref(pid), name, None, None, args, bare) or os.waitstatus_to_exitcode(os.waitpid(pid.value, 0)[1]))
ctypes.c_void_p.in_dll(libc, "environ").value = ctypes.addressof(bare)
libc.execv(name, args) if how == "execv" else libc.execvp(name, args) if how == "execvp" else getattr(libc, how)(name, *words, None)
"""]
CAT = shutil.which("cat")
ENV = shutil.which("env")
_job = None


def placed():
    """A job that has read a file, the file, and the bytes."""
    global _job
    if _job is None:
        root = scratch("data")
        e2e.make_tree(root, 12)
        shutil.copy(CAT, f"{root}/program")
        e2e.write(f"{root}/script", f"#!/bin/sh\nexec {CAT} \"$1\"\n", 0o755)
        _job = e2e.Job(options([root], {"t": (scratch("tier"), "1G")}), USER_SETTING="1")
        _job.run(e2e.read_all(root))
        _job.root = root
    return _job, f"{_job.root}/0000.bin", e2e.bytes_in(f"{_job.root}/0000.bin")


def with_env(job, **more):
    return {**job.env, **{os.fsencode(name): os.fsencode(value) for name, value in more.items()}}


def logged(job, command, stdin=subprocess.DEVNULL, **more):
    """What a command did, and its lines in the log, which shows whether a program has Monarch."""
    log = f"{scratch()}/log"
    e2e.write(log, b"")
    result = e2e.execute(command, stdin=stdin, env=with_env(job, **{"MONARCH_IO_LOG": log, **more}))
    return result[:2], e2e.text_in(log).splitlines(), result[2]


def variables(out):
    return dict(line.split("=", 1) for line in out.decode().splitlines())


# ---- exec


@e2e.unless(lambda: e2e.SANITIZER and "without its own variables the sanitizer's runtime is not found")
def started():
    job, file, data = placed()
    for how in (*"execve execv execvp execvpe execl execlp execle fexecve execveat posix_spawn posix_spawnp".split(), "fexecve, cloexec", "execveat, descriptor", "no environment"):
        result, lines, err = logged(job, [*LAUNCH, how, CAT, file])
        equal(result, (0, data), f"{how}: the bytes", err)
        equal([line.split("] ")[1] for line in lines], [f"{file}: tier t"], f"{how}: from the tier")
        got = variables(job.run([*LAUNCH, how, ENV, "-u_"])[1])
        equal(sorted(got), ["LD_PRELOAD", "MONARCH_IO_RUN_DIR", "MONARCH_IO_STATE"], f"{how}: nothing else comes back", got)
    # A program that is itself a file of the dataset, by its descriptor.
    for how in "fexecve", "fexecve, cloexec", "execveat, descriptor":
        for program in "program", "script":
            command = [*LAUNCH, how, f"{job.root}/{program}", file]
            got, want = job.run(command), e2e.execute(command)
            equal(got[:2], want[:2], f"{how}: a {program} of the dataset", got, want)
    for name, command in {
        "env -i": [ENV, "-i", CAT, file],
        "python, env={}": ["/usr/bin/python3", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], env={}, check=True)", CAT, file],
    }.items():
        result, lines, err = logged(job, command)
        equal((result, len([line for line in lines if line.endswith(f"{file}: tier t")])), ((0, data), 1), name, err, lines)


@e2e.unless(lambda: e2e.SANITIZER and "without its own variables the sanitizer's runtime is not found")
def left_alone():
    """What is in an environment on purpose stays."""
    job, file, data = placed()
    for name, words in {
        "another run directory": [f"MONARCH_IO_RUN_DIR={scratch('empty')}"],
        "an environment of its own": ["-i", f"PATH={os.environ['PATH']}"],
        "another LD_PRELOAD": ["-i", "LD_PRELOAD=libm.so.6"],
    }.items():
        result, lines, err = logged(job, [ENV, *words, CAT, file])
        equal((result, any("tier" in line for line in lines)), ((0, data), False), f"{name}: the PFS's bytes", err, lines)
    # Launchers and sanitizers look at the variable itself.
    for name, words in {"env -u LD_PRELOAD": ["-u", "LD_PRELOAD"], "MONARCH_IO_DISABLE": ["MONARCH_IO_DISABLE=1"]}.items():
        got = variables(job.run([ENV, *words, ENV, "-u_"])[1])
        equal((got.get("LD_PRELOAD"), got["MONARCH_IO_RUN_DIR"]), (None, job.run_dir), f"{name}: the library does not come back", got)
    both = with_env(job, LD_PRELOAD=f"libm.so.6:{job.env[b'LD_PRELOAD'].decode()}")
    got = variables(e2e.execute([ENV, "MONARCH_IO_DISABLE=1", ENV, "-u_"], env=both)[1])
    equal(got["LD_PRELOAD"], "libm.so.6", "MONARCH_IO_DISABLE: what else is preloaded stays")
    again = 'if [ "$LD_PRELOAD" ]; then TRIES=$((TRIES + 1)); export TRIES; unset LD_PRELOAD; [ "$TRIES" -gt 9 ] || exec sh -c "$0" "$0"; fi; exec env'
    got = variables(job.run(["sh", "-c", again, again])[1])
    equal(got.get("TRIES"), "1", "a launcher that starts itself again without LD_PRELOAD does so once")
    for off, served in ("yes", False), ("0", True), ("", True):
        result, lines, _ = logged(job, [CAT, file], MONARCH_IO_DISABLE=off)
        equal((result, any("tier" in line for line in lines)), ((0, data), served), f"MONARCH_IO_DISABLE={off}", lines)


def stale():
    """The variables of a job that is over."""
    root = scratch("stale.data")
    e2e.make_tree(root, 4)
    file = f"{root}/0000.bin"
    data = e2e.bytes_in(file)
    job = e2e.Job(options([root], {"t": (scratch("tier.stale"), "1G")}))
    job.end()
    result, lines, err = logged(job, [CAT, file])
    equal((result, err), ((0, data), ""), "a job that is over: the PFS, and no message")
    ok(lines and all("not redirected" in line for line in lines), "which its log says", lines)
    result, again, err = logged(job, [ENV, "-i", CAT, file])
    equal((result, err, len(again)), ((0, data), "", len(lines)), "and its variables are handed to nobody", again)


@e2e.unless(e2e.why_not_root)
def set_user_id():
    job, file, data = placed()
    program = f"{scratch('suid')}/cat"
    shutil.copy(CAT, program)
    os.chown(program, 65534, 65534)
    os.chmod(program, 0o4755)
    if not os.stat(program).st_mode & stat.S_ISUID or os.statvfs(program).f_flag & os.ST_NOSUID:
        return skip("set-user-id", "nosuid here")
    result, lines, err = logged(job, [program, file])
    equal((result, lines, err), ((0, data), [], ""), "a set-user-id program goes without")
    shutil.copy(shutil.which("stat"), program)
    os.chmod(program, 0o4755)
    given = f"{job.root}/0004.bin"  # which counts as changed from then on
    result, _, err = logged(job, ["sh", "-c", 'exec "$0" -c %a - <"$1"', program, given])
    return equal(result, (0, b"%o\n" % stat.S_IMODE(os.stat(given).st_mode)), "what it is given is the PFS's", err)


# ---- beside others


READ_IT = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"


@e2e.unless(lambda: e2e.SANITIZER and "the sanitizer's runtime has to be the first", lambda: not shutil.which("cc") and "no C compiler")
def beside_others():
    """Beside a library like Darshan's, which wraps what opens, reads and maps, and looks at the descriptors."""
    job, file, data = placed()
    ours = job.env[b"LD_PRELOAD"].decode()
    tracer, trace = f"{scratch('trace')}/tracer.so", f"{scratch('trace')}/log"
    equal(e2e.execute(["cc", "-shared", "-fPIC", "-o", tracer, f"{SOURCE}/tests/matrix/trace.c", "-ldl"])[0], 0, "a tracer is built")
    for order in f"{tracer}:{ours}", f"{ours}:{tracer}":
        for command in [CAT, file], ["/usr/bin/python3", "-c", READ_IT, file]:
            result, lines, err = logged(job, command, LD_PRELOAD=order, TRACE_ROOT=os.path.dirname(file), TRACE_LOG=trace)
            name = f"{os.path.basename(command[0])} beside a tracer"
            equal((result, [line.split("] ")[1] for line in lines]), ((0, data), [f"{file}: tier t"]), name, err)
            seen = e2e.text_in(trace)
            ok(re.search("^open ", seen, re.M) and re.search("^read read$", seen, re.M), f"{name}, which sees its calls on the dataset's file", seen)
            os.unlink(trace)


# ---- the user's settings


def exclusions():
    job, file, data = placed()
    other = next(os.path.join(d, n) for d, _, names in os.walk(f"{job.root}/a") for n in names)
    for globs, excluded in {
        "c[a-b]t": (True, True), "x:*/cat": (True, True), os.path.realpath(CAT): (True, True), "ca": (False, False),
        "0000.*": (True, False), "*.BIN": (False, False), os.path.relpath(other, job.root): (False, True), f"{job.root}/a/*": (False, True),
        "::": (False, False), "[": (False, False),
    }.items():
        result, lines, err = logged(job, [CAT, file, other], MONARCH_IO_EXCLUDE=globs)
        equal((result[0], result[1][:len(data)], [line.endswith("PFS, fallback_excluded") for line in lines]), (0, data, list(excluded)), f"MONARCH_IO_EXCLUDE={globs}", lines, err)
    if not e2e.SANITIZER:
        result, lines, _ = logged(job, [*LAUNCH, "execve", CAT, file], MONARCH_IO_EXCLUDE="cat")
        ok(lines[0].endswith("fallback_excluded"), "a child in a cleared environment is excluded too", lines)
    # What an excluded program writes, the others see.
    logged(job, ["tee", f"{job.root}/0004.bin"], MONARCH_IO_EXCLUDE="tee")
    equal(job.run([CAT, f"{job.root}/0004.bin"])[1], b"", "what an excluded program writes is seen by others")


@e2e.unless(lambda: "" if shutil.which("proot") else "no proot")
def translated():
    """PRoot translates the paths of system calls, but in old releases not statx's: another directory at the dataset's path is that one."""
    dataset, other = scratch("translated.data"), scratch("translated.other")
    for directory in (dataset, other):
        for name in "ab":
            e2e.write(f"{directory}/{name}", f"{directory}'s {name}")
    read = ["sh", "-c", 'cat "$0/a"; cd "$0" && cat b; ls', dataset]
    moved = ["proot", "-b", f"{other}:{dataset}", *read]
    native = e2e.execute(moved)
    job = e2e.Job(options([dataset], {"t": (scratch("translated.tier"), "1G")}, "--wait", "full"))
    equal(job.run(moved), native, "another directory by PRoot: as natively")
    equal(job.run(["proot", *read]), e2e.execute(read), "the dataset's own: likewise")
    job.end()


def log():
    job, file, data = placed()
    code, out, err = e2e.execute([CAT, file, "/dev/null"], env=with_env(job, MONARCH_IO_LOG="stderr"))
    equal((code, out), (0, data), "MONARCH_IO_LOG=stderr: the bytes")
    ok(re.fullmatch(rf"monarch\[\d+\] {re.escape(file)}: tier t\n", err), "MONARCH_IO_LOG=stderr: one line", err)
    _, lines, _ = logged(job, ["sh", "-c", f"for i in 1 2 3 4; do for j in 1 2 3 4 5; do {CAT} {file}; done & done; wait"])
    equal(sorted(line.split("] ")[1] for line in lines), [f"{file}: tier t"] * 20, "lines of many processes are whole", lines)
    odd = f"{job.root}/with\nnew line"
    e2e.write(odd, b"x")
    _, lines, _ = logged(job, [CAT, odd, f"{job.root}/absent"])
    ok(len(lines) == 2 and "with?new line: " in lines[0] and ": PFS, fallback_" in lines[1], "why not", lines)
    code, out, err = e2e.execute([CAT, file], env=with_env(job, MONARCH_IO_LOG="/nonexistent/log"))
    equal((code, out, err), (0, data, ""), "a log that cannot be written harms nobody")
    counters = job.end()
    tasks = counters["tasks"]
    ok(tasks["fallback_excluded"] > 0, "exclusions are counted", tasks)
    equal((tasks["fallback_tier_error"], sum(n for name, n in tasks.items() if name.startswith("fallback_"))), (0, tasks["opens_pfs"]), "each open on the PFS is in one counter", tasks)


UNDECIDED = {
    "posix_spawn's actions": "os.waitpid(os.posix_spawn(cat, [cat], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, f, 0, 0)]), 0)",
    "O_NOATIME": "put(os.open(f, os.O_NOATIME))",
    "O_CREAT": "put(os.open(f, os.O_CREAT))",
    "a link to a descriptor": "put(os.open(f'/proc/self/fd/{os.open(f, os.O_PATH)}', 0))",
    "freopen": "libc.freopen(f.encode(), b'r', ctypes.c_void_p.in_dll(libc, 'stdin')), put(0)",
}


def undecided():
    """What no hook sees being opened, or none can serve."""
    job, file, data = placed()
    python = "import ctypes, os, sys; libc, cat, f = ctypes.CDLL(None), *sys.argv[1:]; put = lambda fd: os.write(1, os.read(fd, 1 << 24)); "
    ways = {name: logged(job, ["/usr/bin/python3", "-c", python + text, CAT, file]) for name, text in UNDECIDED.items()}
    with open(file, "rb") as stream:  # the shell's child is its parent's
        ways["standard input"] = logged(job, ["sh", "-c", f"{CAT}; {CAT}"], stdin=stream)
    for name, (result, lines, err) in ways.items():
        equal(result, (0, data), f"{name}: the bytes", err)
        equal([line.split("] ")[1] for line in lines], [f"{file}: PFS, fallback_pass"], f"{name}: the PFS's, and counted once")


# Reads a file, denies itself all files but those below some directories, by Landlock, reads it twice more, and lets a program do so.
DENY = """
import ctypes, os, sys
def call(*words):
    if (got := libc.syscall(*words)) < 0: sys.exit(os.strerror(ctypes.get_errno()))
    return got
def read():
    try: os.write(1, open(sys.argv[1], 'rb').read())
    except OSError as error: os.write(1, error.strerror.encode())
libc, size = ctypes.CDLL(None, use_errno=True), ctypes.c_size_t
READ = (ctypes.c_uint64 * 1)(0x4)
rules = call(444, READ, size(8), 0)
for path in filter(os.path.exists, sys.argv[3:]): call(445, rules, 1, READ[0].to_bytes(8, 'little') + os.open(path, os.O_PATH).to_bytes(4, 'little'), 0)
read()
libc.prctl(38, 1, 0, 0, 0)
call(446, rules, 0)
read(), read()
os.execv(sys.argv[2], sys.argv[2:0:-1])
"""


def denied():
    job, file, _ = placed()
    if e2e.execute(["/usr/bin/python3", "-c", DENY, file, CAT, "/"])[0] != 0:
        return skip("Landlock", "the kernel has none")
    told = "not redirected: this program restricts itself"
    for rules in [], [job.root], [f"{scratch()}/tier"], [job.root, f"{scratch()}/tier"]:
        command = ["/usr/bin/python3", "-c", DENY, file, CAT, "/usr", "/lib", "/lib64", "/etc", BUILD, job.run_dir, *rules]
        result, lines, err = logged(job, command)
        equal(result, e2e.execute(command)[:2], f"Landlock, {len(rules)} rules {rules}: as natively", err)
        equal([line.split("] ")[1].removeprefix(f"{file}: ") for line in lines], ["tier t", told, told], f"Landlock, {rules}: from where")
    return None


e2e.main(started, left_alone, stale, set_user_id, beside_others, exclusions, translated, undecided, denied, log)
