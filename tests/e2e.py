# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share.

A test is a function that calls ok() and its kin; main() runs the functions given to it and prints TAP.  One
that raises fails, and the next runs.  One that yields goes on there after all others have run.  `tests/X.t
NAME...` runs only the functions named; MONARCH_TEST_CORE=1 those that tests/core has of this script.

All of a run lives in scratch(): processes started here end with it, and what a killed run left goes at the
next one's start.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import glob
import hashlib
import inspect
import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback

BUILD = os.environ["MONARCH_BUILDDIR"]
SOURCE = os.environ["MONARCH_SRCDIR"]
TOOL = f"{BUILD}/monarchctl"
SANITIZER = os.environ.get("SAN_RT", "")
SLOW = int(os.environ.get("MONARCH_TEST_SLOW", "1"))  # how many times slower than others this machine is
PATIENCE = (300 if SANITIZER else 120) * SLOW  # seconds that anything may take before it counts as hung
PYTHON = "/usr/bin/python3"  # not another one in PATH, which may lack packages
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
ORDINARY = NOBODY if os.geteuid() == 0 else []  # what makes a user of whoever runs the tests

# ---- results

_count = 0
_failed = 0


def ok(good, name, *details):
    """One TAP line; the details are shown if it failed."""
    global _count, _failed
    _count += 1
    print(("ok" if good else "not ok"), _count, "-", name.replace("#", "\\#").replace("\n", " "), flush=True)
    if not good:
        _failed += 1
        for detail in details:
            for line in str(detail).splitlines()[:40]:
                print("#  ", line[:2000], flush=True)
    return good


def equal(got, want, name, *details):
    return ok(got == want, name, f"got:  {got!r}", f"want: {want!r}", *details)


def contains(text, parts, name):
    missing = [part for part in parts if part not in text]
    return ok(not missing, name, f"missing: {missing}", f"in: {text!r}")


def skip(name, why):
    global _count
    _count += 1
    print(f"ok {_count} - {name} # SKIP {why}", flush=True)


def core(script):
    """The functions of a script that tests/core names."""
    with open(f"{SOURCE}/tests/core", encoding="utf-8") as file:
        words = [line.partition(" - ")[0].split() for line in file if line.strip() and not line.startswith("#")]
    return [name for found, *names in words if found == script for name in names]


def unless(*why_nots):
    """Decorates a test: it is skipped where one of these functions has a reason."""
    def decorate(test):
        @functools.wraps(test)
        def run(*words):
            why = next(filter(None, (why_not() for why_not in why_nots)), "")
            return skip(test.__name__, why) if why else test(*words)
        return run
    return decorate


def skip_all_if(why):
    """Ends the script with nothing done if there is a reason."""
    if why:
        print(f"1..0 # SKIP {why}")
        sys.exit(0)


def main(*tests):
    if named := sys.argv[1:] or (os.environ.get("MONARCH_TEST_CORE") == "1" and core(os.path.basename(sys.argv[0]))):
        known = {**vars(sys.modules["__main__"]), **{test.__name__: test for test in tests}}
        if missing := [name for name in named if not callable(known.get(name))]:
            sys.exit(f"{sys.argv[0]} has no test {missing}")
        tests = [known[name] for name in named]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))
    together(*tests)
    print(f"1..{_count}")
    sys.exit(1 if _failed else 0)


def together(*tests):
    """Runs tests; those that yield go on after all others have run."""
    suspended = []
    for test in tests:
        with _failure_of(test):
            if not inspect.isgeneratorfunction(test):
                test()
                continue
            suspended.append((test, test()))
            next(suspended[-1][1])
    for test, rest in suspended:
        with _failure_of(test):
            next(rest, None)


@contextlib.contextmanager
def _failure_of(test):
    begin = time.monotonic()
    try:
        yield
    except Exception:  # pylint: disable=broad-except
        ok(False, f"{test.__name__} ran to its end", traceback.format_exc())
    print(f"# {test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


def group_names(state):
    """How the names begin of the control groups that root's side makes for a state directory."""
    st = os.stat(state)
    return f"{st.st_dev:x}.{st.st_ino:x}."


def remove_groups(state, names=""):
    """The control groups that root's side has made for a state directory, which a test is about to remove, or has removed: then by their
    `names`. They are empty, or about to be: what was killed leaves its group a moment later."""
    def gone(group):
        with contextlib.suppress(OSError):
            os.rmdir(group)
        return not os.path.exists(group)

    with contextlib.suppress(OSError):
        names = names or group_names(state)
        for group in glob.glob(f"/sys/fs/cgroup/monarch/{names}*") + glob.glob(f"/sys/fs/cgroup/*/monarch/{names}*"):
            wait_until(lambda group=group: gone(group), 3)


def wait_until(condition, seconds=PATIENCE):
    """Whether `condition()` became true within that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


# ---- scratch

_scratch = None


def scratch(name=""):
    """The run's directory, on a disk; `name`: a new directory in it."""
    global _scratch
    if _scratch is None:
        _scratch = _make_scratch()
    path = _scratch
    if name:
        path = f"{_scratch}/{name}"
        os.makedirs(path, exist_ok=True)
    return path


def memory(name):
    """As scratch(name), on a tmpfs; None if there is none."""
    if not os.path.ismount("/dev/shm") or not os.access("/dev/shm", os.W_OK):
        return None
    path = f"/dev/shm/{os.path.basename(scratch())}/{name}"
    os.makedirs(path)
    return path


def _make_scratch():
    base = os.path.realpath(os.environ.get("TMPDIR") or "/var/tmp")
    prefix = f"monarch-test-{os.path.basename(sys.argv[0])}."
    base_fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(base_fd, fcntl.LOCK_EX)  # a new one is not locked at once
    for left in glob.glob(f"{base}/{prefix}*"):
        if os.stat(left).st_uid == os.geteuid() and _lock(left) is not None:
            _remove_scratch(left)
    path = tempfile.mkdtemp(prefix=prefix, dir=base)
    os.chmod(path, 0o755)
    _lock(path)  # the descriptor is kept as long as we live
    os.close(base_fd)
    atexit.register(_end_run, path)
    return path


def _lock(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd
    except BlockingIOError:
        os.close(fd)
        return None


def _end_run(path):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for process in list(_processes):
        end(process)
    _remove_scratch(path)


def _remove_scratch(path):
    for lab in filter(os.path.isdir, (f"{path}/slurm", *glob.glob(f"{path}/*/slurm"))):
        subprocess.run([f"{SOURCE}/dev/lab", "slurm", "down", "--dir", lab], stdout=subprocess.DEVNULL, check=False)
    for lab in filter(os.path.isdir, (f"{path}/peers/net", *glob.glob(f"{path}/*/peers/net"))):
        subprocess.run([f"{SOURCE}/dev/lab", "peers", "down", os.path.dirname(lab)], check=False)
    if os.path.isdir(f"{path}/pfs"):
        _lab_pfs("down", path)
    for point in sorted(mounts_below(path), reverse=True):
        unmount = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
        subprocess.run([*unmount, point], stderr=subprocess.DEVNULL, check=False)
    for jobs in (found for depth in ("", "*/", "*/*/") for found in glob.glob(f"{path}/{depth}jobs")):
        remove_groups(os.path.dirname(jobs))
    subprocess.run(["rm", "-rf", "--one-file-system", path, f"/dev/shm/{os.path.basename(path)}"], check=False)


def mounts_below(path):
    """Where something is mounted below that directory."""
    with open("/proc/self/mountinfo", "rb") as file:
        points = [re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split(b" ")[4]) for line in file]
    return [os.fsdecode(point) for point in points if point.startswith(os.fsencode(path) + b"/")]


# ---- processes

_processes = []


def sanitizer_log():
    """Environment with which sanitizers write to files, also of processes whose standard error is lost, such as agents'."""
    path = f"log_path={scratch('sanitizer')}/log"
    return {name: ":".join(filter(None, (os.environ.get(name), path)))
            for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")}


def sanitizer_found():
    """What they wrote."""
    text = ""
    for log in glob.glob(f"{scratch('sanitizer')}/log*"):
        text += bytes_in(log).decode(errors="replace")
    return text


def native_environment(**more):
    """The environment of programs without Monarch, and of Monarch's own that start no others."""
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    env.pop("LD_PRELOAD", None)
    return {**env, **more}


def environment(**more):
    """The environment for `monarchctl run`: what a sanitizer needs comes first in the user's own LD_PRELOAD."""
    return native_environment(**{**({"LD_PRELOAD": SANITIZER} if SANITIZER else {}), **more})


def start(command, **options):
    """Starts a process in a group of its own, which ends with this one at the latest."""
    process = subprocess.Popen(["setpriv", "--pdeathsig=KILL", *command], start_new_session=True, **options)
    _processes.append(process)
    return process


def end(process):
    """Ends a process and its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process in _processes:
        _processes.remove(process)


def execute(command, seconds=PATIENCE, **options):
    """Runs a command to its end, natively unless `env` says otherwise: (exit code, stdout, stderr); the code is "hung"
    when it takes longer."""
    options = {"stdin": subprocess.DEVNULL, "env": native_environment(), **options}
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    return finish(process, seconds)


def finish(process, seconds=PATIENCE, text=None):
    """As execute, for a process that was started with pipes."""
    try:
        out, err = process.communicate(text, timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            out, err = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:  # held open by a process in another group
            out, err = b"", b"its output is still open"
        code = "hung"
    _processes.remove(process)
    return code, out, err.decode(errors="replace")


def state_of(pid):
    """The letter that the kernel has for what a process does; X without one."""
    with contextlib.suppress(OSError):
        return text_in(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
    return "X"


def running(pid):
    return state_of(pid) not in "ZX"


def children(pid, name):
    """Pids of the children of a process that have that name."""
    found = subprocess.run(["pgrep", "-P", str(pid), "-x", name], stdout=subprocess.PIPE, check=False).stdout
    return [int(child) for child in found.split()]


# ---- Monarch


def kill_agents(pid, before=lambda: None):
    """The agent of the `monarchctl run` with that pid, and then the one that goes on for it; `before()` each."""
    killed = set()

    def kill_new():
        for agent in set(children(pid, "monarchd")) - killed:
            before()
            os.kill(agent, signal.SIGKILL)
            killed.add(agent)
        return len(killed) == 2
    wait_until(kill_new)


def options(datasets, tiers, *more):
    """Options of `monarchctl run`; tiers as {NAME: (PATH, SIZE)}."""
    words = [word for dataset in datasets for word in ("--dataset", dataset)]
    words += [word for name, (path, size) in tiers.items() for word in ("--tier", f"{name}:{path}:{size}")]
    return [*words, *more]


def monarch_run(words, command, report=False, before=(), **more):
    """`monarchctl run WORDS -- COMMAND`; as execute, and with `report` the report as a fourth."""
    if not report:
        return execute([*before, TOOL, "run", *words, "--", *command], **{"env": environment(), **more})
    file = f"{scratch()}/report.{random.getrandbits(64):x}"
    result = monarch_run([*words, "--report", file], command, before=before, **more)
    return (*result, json.loads(text_in(file)))


def config(**keys):
    """The option for a configuration file with these keys of [agent]."""
    text = "[agent]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())
    return ["--config", write(f"{scratch('config')}/{random.getrandbits(64):x}.conf", text, 0o644)]


class Job:
    """A `monarchctl run` whose command waits, so that programs can be run in its environment from here."""

    program = TOOL

    def __init__(self, words, before=(), **env):
        self._report = f"{scratch('report' if before else '')}/report.{random.getrandbits(64):x}"
        if before:
            os.chmod(os.path.dirname(self._report), 0o1777)
        command = ["sh", "-c", 'env -0; printf "\\0"; read -r _; exit 0']
        self._process = start(
            [*before, self.program, "run", *words, "--report", self._report, "--", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**env))
        self.pid = self._process.pid
        text = b""
        while not text.endswith(b"\0\0"):
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise RuntimeError("monarchctl run: " + finish(self._process)[2])
            text += more
        self.env = dict(word.split(b"=", 1) for word in text[:-2].split(b"\0"))
        self.run_dir = self.env[b"MONARCH_IO_RUN_DIR"].decode()

    def run(self, command, **more):
        return execute(command, env=self.env, **more)

    def agent(self):
        return children(self.pid, "monarchd")[0]

    def now(self):
        """What `monarchctl report` tells of it now."""
        return json.loads(execute([TOOL, "report", f"run.{self.pid}", "--json"])[1])

    def kill(self):
        """Kills monarchctl and the command at once."""
        end(self._process)

    def kill_all(self):
        """And the agent: nobody cleans up."""
        agent = self.agent()
        os.kill(agent, signal.SIGSTOP)
        self.kill()
        os.kill(agent, signal.SIGKILL)

    def end(self):
        """Ends it; the report."""
        code, _, err = finish(self._process)
        if code != 0:
            raise RuntimeError(f"monarchctl run: exit code {code}: {err}")
        return json.loads(text_in(self._report))


def run_dirs(pid):
    """Run directories that `monarchctl run` with that pid made."""
    bases = {"/dev/shm", "/tmp", os.environ.get("TMPDIR") or "/tmp"}
    return [d for base in bases for d in glob.glob(f"{base}/monarch-run.*.{pid}.*")]


def traces(pid, *tiers):
    """What is left of the `monarchctl run` with that pid: directories and agents."""
    left = run_dirs(pid) + [d for tier in tiers for d in glob.glob(f"{tier}/monarch-run.*.{pid}.*")]
    agents = subprocess.run(["pgrep", "-f", rf"^[^ ]*monarchd .*/monarch-run\.[0-9]+\.{pid}\."],
                            stdout=subprocess.PIPE, check=False).stdout.split()
    return left + [f"monarchd {agent.decode()}" for agent in agents]


# ---- data


def write(path, data=b"x", mode=None):
    """A new file of that text, or of those bytes, and the directories above it; its path."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as out:
        out.write(data if isinstance(data, bytes) else data.encode(errors="surrogateescape"))
    if mode is not None:
        os.chmod(path, mode)
    return path


def bytes_in(path):
    with open(path, "rb") as stream:
        return stream.read()


def text_in(path):
    return bytes_in(path).decode(errors="surrogateescape")


def make_tree(path, files, most=30000, seed=1):
    """Files of random bytes in nested directories; the number of bytes."""
    numbers = random.Random(seed)
    total = 0
    for i in range(files):
        directory = os.path.join(path, *["abc"[i % 3], f"d{i % 7}", "deep"][: i % 4])
        os.makedirs(directory, exist_ok=True)
        size = numbers.randrange(1, most)
        write(f"{directory}/{i:04}.bin", numbers.randbytes(size))
        total += size
    return total


# For a program's text: opened_as(fd), the kernel's name of what is open, which the library does not tell: of a copy, the tier's.
OPENED_AS = f"""
import ctypes as _ctypes, os as _os
def opened_as(fd):
    text = _ctypes.create_string_buffer(4096)
    length = _ctypes.CDLL(None).syscall({267 if os.uname().machine == "x86_64" else 78}, -100, b"/proc/self/fd/%d" % fd, text, 4096)
    return _os.fsdecode(text.raw[:length])
"""


def read_all(*directories):
    """A command that opens each regular file below the directories once and prints checksums."""
    return ["sh", "-c", 'find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum', "sh", *directories]


def written(path):
    """What a program left at its place to write to: names, stat and contents."""
    if not os.path.lexists(path):
        return []
    names = [path] + [os.path.join(d, n) for d, dirs, files in os.walk(path) for n in dirs + files]
    result = []
    for name in sorted(names):
        st = os.lstat(name)
        if stat.S_ISREG(st.st_mode):
            content = sum_of(name)
        else:
            content = os.readlink(name) if stat.S_ISLNK(st.st_mode) else ""
        result.append((os.path.relpath(name, path), st.st_mode, st.st_uid, st.st_gid, st.st_nlink, content,
                       None if stat.S_ISDIR(st.st_mode) else st.st_size))
    return result


def sum_of(path):
    return hashlib.sha256(bytes_in(path)).hexdigest()


# ---- parallel file systems


def why_not_root():
    return "" if os.geteuid() == 0 else "needs root"


def why_not_nobody():
    """Why root cannot run the programs as user nobody, if so."""
    return "" if execute([*NOBODY, "test", "-x", TOOL])[0] == 0 else f"user nobody cannot reach {BUILD}"


def why_not_ordinary():
    return why_not_nobody() if ORDINARY else ""


def why_no_fuse():
    return "" if os.access("/dev/fuse", os.R_OK | os.W_OK) else "no /dev/fuse"


def why_no_slowfs():
    return why_no_fuse() if os.access(f"{BUILD}/tests/slowfs", os.X_OK) else "slowfs is not built (no fuse3)"


class SlowFs:
    """A directory, shown by tests/slowfs as a PFS with faults and counters."""

    def __init__(self, source, mount, *words):
        os.makedirs(mount, exist_ok=True)
        self.mount = mount
        self._process = start(["setpriv", "--pdeathsig=TERM", f"{BUILD}/tests/slowfs", "--foreground", *words, source,
                               mount], stdin=subprocess.DEVNULL)
        wait_until(lambda: os.path.ismount(mount) or self._process.poll() is not None)
        if not os.path.ismount(mount):
            raise RuntimeError(f"slowfs did not mount {mount}")

    def command(self, *lines):
        """Commands for its control file."""
        with open(f"{self.mount}/.slowfs", "wb", buffering=0) as control:
            control.write("".join(line + "\n" for line in lines).encode())

    def counters(self):
        with open(f"{self.mount}/.slowfs", encoding="utf-8") as control:
            pairs = [line.split() for line in control if not line.startswith("set ")]
        return {name: int(value) for name, value in pairs}

    def close(self):
        self._process.terminate()
        self._process.wait(PATIENCE)
        _processes.remove(self._process)


def hanging_mount(path, uid, more=""):
    """Root's: FUSE there, as fusermount mounts it for that user. Nobody serves it: what asks it hangs until the descriptor that is returned
    is closed."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id={uid},group_id={uid}{more}".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"test", os.fsencode(path), b"fuse", 6, options) != 0:
        error = ctypes.get_errno()
        os.close(fd)
        raise OSError(error, "mount FUSE")
    return fd


_TAKES_REQUESTS = """
import os, struct, sys
fuse = int(sys.argv[1])
while True:
    try:
        request = os.read(fuse, 1 << 17)
    except OSError:  # it is unmounted
        break
    _, opcode, number = struct.unpack_from("=IIQ", request)
    if opcode == 26:  # FUSE_INIT
        os.write(fuse, struct.pack("=IiQ4I2H2I2HI28x", 80, 0, number, 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0))
"""


@contextlib.contextmanager
def unanswering_mount(path, uid, more=""):
    """The same of a server that takes each request, and answers none: who asks it cannot be killed as long as this lasts."""
    fd = hanging_mount(path, uid, more=more)
    with subprocess.Popen([sys.executable, "-c", _TAKES_REQUESTS, str(fd)], pass_fds=[fd], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        os.close(fd)
        try:
            yield
        finally:
            server.kill()
            subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL, check=False)


def _lab_pfs(command, directory):
    result = subprocess.run([f"{SOURCE}/dev/lab", "pfs", command, "--dir", f"{directory}/pfs", "--json"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * PATIENCE, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"dev/lab pfs {command}: {result.stderr.decode()}")
    return result.stdout.decode()


class GlusterFs:
    """GlusterFS in the scratch directory, with the counters of its servers."""

    def __init__(self):
        self.mount = _lab_pfs("up", scratch()).strip()

    def counters(self):
        return json.loads(_lab_pfs("counters", scratch()))


def why_no_glusterfs():
    if os.geteuid() != 0:
        return "needs root"
    if not os.access(f"{SOURCE}/dev/lab", os.X_OK):
        return "no dev/lab"
    found = subprocess.run(["sh", "-c", "command -v glusterfs"], stdout=subprocess.DEVNULL, check=False)
    return "" if found.returncode == 0 else "GlusterFS is not installed"
