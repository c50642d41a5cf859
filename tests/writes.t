#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""A job that changes its dataset: every later open, in all its processes, sees what the PFS has, by whatever
program, call or name the change was made; and what did not change is served from the tier as before."""

import ast
import fnmatch
import glob
import os
import re
import shutil
import signal
import subprocess
import sys

import e2e
from e2e import PYTHON, equal, ok, options, read_all, scratch, skip

STAT = """
import os, sys
for d, _, names in sorted(os.walk(sys.argv[1])):
    for n in sorted(names):
        f = os.path.join(d, n)
        if os.path.islink(f): continue
        with open(f, "rb") as s: a = os.fstat(s.fileno())
        b = os.stat(f)
        print(f, list(a)[:7] + [a.st_mtime_ns, a.st_ctime_ns], list(a)[:7] == list(b)[:7],
              (a.st_mtime_ns, a.st_ctime_ns) == (b.st_mtime_ns, b.st_ctime_ns))
"""

# Reads a file, runs a command, prints the file.
AROUND = """
import os, subprocess, sys
first = open(sys.argv[1], "rb").read()
subprocess.run(sys.argv[2:], check=True)
os.write(1, open(sys.argv[1], "rb").read())
"""


class Placed:
    """A dataset that a job has read once, so that all of it is on the tier. Nothing tells the agent what the hooks miss."""

    def __init__(self, name, files=24, more=None):
        self.root = scratch(f"{name}.data")
        self.outside = scratch(f"{name}.outside")  # on the same file system
        e2e.make_tree(self.root, files)
        more = e2e.config(watch_directories=0) if more is None else more
        self.job = e2e.Job(options([self.root], {"t": (scratch(f"{name}.tier"), "1G")}, *more))
        self.same("before")

    def files(self):
        names = [os.path.join(d, n) for d, _, found in os.walk(self.root) for n in found]
        return [name for name in names if not os.path.islink(name)]

    def same(self, name):
        """Whether the job reads what there is, and has it from the PFS or the tier."""
        return equal(self.job.run(read_all(self.root))[:2], e2e.execute(read_all(self.root))[:2], name)

    def change(self, name, script, *words):
        """Runs a shell script in the job, with the root as $1 and the directory outside as $2."""
        got = self.job.run(["bash", "-ec", script, "bash", self.root, self.outside, *words])
        ok(got[0] == 0, f"{name}: done", got)
        self.same(f"{name}: the new bytes")

    def done(self, name, unchanged):
        """`unchanged` files, at least, are still served from the tier."""
        before = self.job.run([PYTHON, "-c", STAT, self.root])
        natively = e2e.execute([PYTHON, "-c", STAT, self.root])
        equal(before[1], natively[1], f"{name}: fstat as natively")
        ok(b"False" not in natively[1] and natively[1].count(b"\n") == len(self.files()), f"{name}: fstat as stat",
           natively)
        counters = self.job.end()
        ok(counters["opens_tier"] >= 2 * unchanged, f"{name}: what did not change is the tier's", counters)
        return counters


# ---- programs

BY_PROGRAMS = {
    "mv -f within the dataset": 'mv -f "$1/0004.bin" "$1/0008.bin"',
    "mv back and forth": 'mv "$1/0012.bin" "$1/x"; echo other >"$1/0012.bin"; mv "$1/x" "$1/0016.bin"',
    "cp over a file": 'cp "$1/0020.bin" "$1/b/d1/0001.bin"',
    "cp --remove-destination": 'cp --remove-destination "$1/0020.bin" "$1/c/d2/deep/0002.bin" || '
                               'cp --remove-destination "$1/0020.bin" "$1/b/d1/0001.bin"',
    "sed -i": 'printf "one\\n" >"$1/text"; cat "$1/text"; sed -i s/one/two/ "$1/text"',
    "perl -i": 'perl -i -pe s/two/three/ "$1/text"',
    "rsync": 'mkdir "$2/r"; echo synced >"$2/r/0020.bin"; rsync -a "$2/r/" "$1/"',
    "rsync --inplace": 'echo synced in place >"$2/r/0020.bin"; rsync -a --inplace "$2/r/" "$1/"',
    "tar x": 'mkdir "$2/t"; echo from an archive >"$2/t/0020.bin"; tar -C "$2/t" -c 0020.bin | tar -C "$1" -x',
    "truncate": 'truncate -s 3 "$1/a/d3/deep/0003.bin" 2>/dev/null || truncate -s 3 "$1/0020.bin"',
    "rm": 'rm "$1/0020.bin"; if cat "$1/0020.bin" 2>/dev/null; then exit 1; fi',
    "rm, then another file": 'echo again >"$1/0020.bin"',
    "tee -a, >>, <>": 'echo 1 | tee -a "$1/0020.bin"; echo 2 >>"$1/0020.bin"; echo x 1<>"$1/0020.bin"',
    "ln -f": 'echo linked >"$2/l"; ln -f "$2/l" "$1/0020.bin"',
    "ln -sf": 'ln -sf ../nowhere "$1/0020.bin"; if cat "$1/0020.bin" 2>/dev/null; then exit 1; fi; rm "$1/0020.bin"',
    "patch": 'printf "a\\nb\\n" >"$1/p"; cat "$1/p" >/dev/null; printf "1c1\\n< a\\n---\\n> c\\n" | patch -s "$1/p"',
}


def by_programs():
    placed = Placed("programs")
    for name, script in BY_PROGRAMS.items():
        program = name.split()[0].rstrip(",")
        if program in ("rsync", "patch", "perl") and not shutil.which(program):
            skip(name, f"{program} is not installed")
            continue
        if program == "rsync" and "tsan" in e2e.SANITIZER:
            skip(name, "ThreadSanitizer ends it for its signal handlers")
            continue
        placed.change(name, script)
    placed.done("programs", 10)


# ---- names

NAMES = {
    "os.rename by dir_fd": "open(out + '/n', 'w').write('renamed'); o = os.open(out, 0); r = os.open(root, 0);"
                           "os.rename('n', os.path.basename(f), src_dir_fd=o, dst_dir_fd=r)",
    "mmap": "fd = os.open(f, os.O_RDWR); m = mmap.mmap(fd, 0); m[0:4] = b'mmap'; m.flush(); m.close(); os.close(fd)",
    "chdir, then a relative name": "os.chdir(root); open(os.path.basename(f), 'w').write('relative')",
    "fchdir, then a relative name": "os.fchdir(os.open(root, 0)); os.truncate('./' + os.path.basename(f), 7)",
    "a name with ..": "open(os.path.join(out, '..', os.path.relpath(f, os.path.dirname(root))), 'w').write('dots')",
    "a symbolic link elsewhere": "os.symlink(f, out + '/s'); open(out + '/s', 'w').write('by symlink')",
    "a symbolic link in the dataset": "os.symlink(f, root + '/s'); open(root + '/s', 'a').write('by symlink')",
    "a linked directory": "os.symlink(root, out + '/d'); os.truncate(out + '/d/' + os.path.basename(f), 9)",
    "rename by a linked directory": "open(out + '/v', 'w').write('by directory');"
                                    "os.rename(out + '/v', out + '/d/' + os.path.basename(f))",
    "a hard link made before": "open(out + '/hard', 'r+').write('by hard link')",
    "a hard link made in the job": "os.link(f, out + '/h'); open(out + '/h', 'a').write('by new hard link')",
    "/proc/self/fd of a PFS descriptor": "fd = os.open(f, os.O_PATH); open(f'/proc/self/fd/{fd}', 'w').write('by fd')",
    "a directory in exchange for another": "d = root + '/sub'; os.mkdir(out + '/x'); open(out + '/x/f', 'w').write('exchanged');"
                                           "libc.renameat2(-100, (out + '/x').encode(), -100, d.encode(), 2);"
                                           "assert open(d + '/f').read() == 'exchanged'",
    "utimensat by dir_fd": "os.utime(os.path.basename(f), ns=(1, 2), dir_fd=os.open(root, 0))",
}


def by_names():
    """What by_each_function has by one name each."""
    root, outside = scratch("names.data"), scratch("names.outside")
    for i in range(len(NAMES) + 10):
        e2e.write(f"{root}/name{i:02}", f"the old bytes {i}\n" * 50)
    os.link(f"{root}/name{list(NAMES).index('a hard link made before'):02}", f"{outside}/hard")
    os.mkdir(f"{root}/sub")
    e2e.write(f"{root}/sub/f", "the old bytes\n")
    placed = Placed("names", 4)
    for i, (name, text) in enumerate(NAMES.items()):
        script = f"import ctypes, mmap, os, sys; libc = ctypes.CDLL(None); root, out, f = sys.argv[1:]; {text}"
        file = f"{placed.root}/name{i:02}"
        got = placed.job.run([PYTHON, "-c", script, placed.root, placed.outside, file])
        ok(got[0] == 0, f"{name}: done", got)
        placed.same(f"{name}: the new bytes")
    counters = placed.done("names", 10)
    ok(counters["tasks"]["invalidations"] >= len(NAMES) - 2, "names: counted", counters["tasks"])


# ---- every function of the C library that opens for writing, creates or changes by a name

# What each does to the file f in its directory d; a descriptor `fd` is written to once more after the file was read by
# its name. After a colon: in which way.
FUNCTIONS = {
    **{n: f"fd = libc.{n}(f, 1)" for n in ("open", "open64", "__open", "__open64", "__open_2", "__open64_2")},
    **{n: f"fd = libc.{n}(-100, f, 1)" for n in ("openat", "openat64", "__openat_2", "__openat64_2")},
    **{n: f"fd = libc.{n}(f, 0o644)" for n in ("creat", "creat64")},
    **{n: f"fd = libc.fileno(stream(libc.{n}, f, b'r+'))" for n in ("fopen", "fopen64")},
    **{n: f"fd = libc.fileno(stream(libc.{n}, f, b'w', stream(libc.fopen, b'/dev/null', b'r')))"
       for n in ("freopen", "freopen64")},
    **{n: f"fd = libc.{n}(d + b'/new.XXXXXX')" for n in ("mkstemp", "mkstemp64")},
    **{n: f"fd = libc.{n}(d + b'/new.XXXXXX', os.O_APPEND)" for n in ("mkostemp", "mkostemp64")},
    **{n: f"fd = libc.{n}(d + b'/new.XXXXXX.x', 2)" for n in ("mkstemps", "mkstemps64")},
    **{n: f"fd = libc.{n}(d + b'/new.XXXXXX.x', 2, os.O_APPEND)" for n in ("mkostemps", "mkostemps64")},
    "mkstemp: by a name with ..": "fd = libc.mkstemp(d + b'/../' + os.path.basename(d) + b'/new.XXXXXX')",
    "open: O_EXCL by a name with ..": "fd = libc.open(d + b'/../' + os.path.basename(d) + b'/new', 0o301, 0o644)",
    "fopen: wx by a name with ..": "fd = libc.fileno(stream(libc.fopen, d + b'/../' + os.path.basename(d) + b'/new', b'wx'))",
    "creat: a descriptor's name": "fd = libc.creat(b'/proc/self/fd/%d' % os.open(f, 0), 0o600)",
    "open_by_handle_at": "h = (ctypes.c_uint * 34)(128, 0); m = ctypes.c_int(); libc.name_to_handle_at(-100, f, h, ctypes.byref(m), 0);"
                         "fd = libc.open_by_handle_at(os.open(d, 0), h, 1)",
    "posix_spawn_file_actions_addopen": "spawn(f, os.O_WRONLY | os.O_TRUNC)",
    "posix_spawn_file_actions_addopen: a relative name": "os.chdir(d); spawn(b'f', os.O_RDWR); os.chdir('/')",
    "posix_spawn_file_actions_addopen: a symbolic link": "os.symlink(f, d + b'-link'); spawn(d + b'-link', os.O_RDWR)",
    "posix_spawn_file_actions_addopen: a new file": "spawn(d + b'/new', os.O_WRONLY | os.O_CREAT)",
    "rename": "libc.rename(f, d + b'/g')",
    "renameat": "libc.renameat(-100, d + b'/g', -100, f)",
    "renameat2": "libc.renameat2(-100, d + b'/g', -100, f, 2)",
    **{n: f"libc.{n}(f)" for n in ("unlink", "remove")},
    "unlinkat": "libc.unlinkat(-100, f, 0)",
    "rmdir": "libc.rmdir(d + b'/empty')",
    "link": "libc.link(f, d + b'/new')",
    "linkat": "libc.linkat(-100, f, -100, d + b'/new', 0)",
    "linkat: a file without a name": "fd = os.open(d, os.O_TMPFILE | os.O_RDWR); libc.linkat(fd, b'', -100, d + b'/new', 0x1000)",
    "symlink": "libc.symlink(b'f', d + b'/new')",
    "symlinkat": "libc.symlinkat(b'f', -100, d + b'/new')",
    **{n: f"libc.{n}(d + b'/new', 0o755)" for n in ("mkdir", "mkfifo")},
    **{n: f"libc.{n}(-100, d + b'/new', 0o755)" for n in ("mkdirat", "mkfifoat")},
    "mkdtemp": "libc.mkdtemp(d + b'/new.XXXXXX')",
    "mknod": "libc.mknod(d + b'/new', 0o100644, 0)",
    "mknodat": "libc.mknodat(-100, d + b'/new', 0o100644, 0)",
    "__xmknod": "libc.__xmknod(0, d + b'/new', 0o100644, ctypes.byref(ctypes.c_long()))",
    "__xmknodat": "libc.__xmknodat(0, -100, d + b'/new', 0o100644, ctypes.byref(ctypes.c_long()))",
    **{n: f"libc.{n}(f, ctypes.c_long(3))" for n in ("truncate", "truncate64")},
    **{n: f"libc.{n}(f, 0o640)" for n in ("chmod", "lchmod")},
    "fchmodat": "libc.fchmodat(-100, f, 0o640, 0)",
    "fchmod": "libc.fchmod(os.open(f, 0), 0o640)",
    **{n: f"libc.{n}(f, -1, group)" for n in ("chown", "lchown")},
    "fchownat": "libc.fchownat(-100, f, -1, group, 0)",
    "fchown": "libc.fchown(os.open(f, 0), -1, group)",
    **{n: f"libc.{n}(f, None)" for n in ("utime", "utimes", "lutimes")},
    **{n: f"libc.{n}(-100, f, None, 0)" for n in ("futimesat", "utimensat")},
    **{n: f"libc.{n}(os.open(f, 0), None)" for n in ("futimes", "futimens")},
    **{n: f"libc.{n}(f, b'user.a', b'1', 1, 0)" for n in ("setxattr", "lsetxattr")},
    **{n: f"libc.setxattr(f, b'user.a', b'1', 1, 0); libc.{n}(f, b'user.a')" for n in ("removexattr", "lremovexattr")},
    "fsetxattr": "libc.fsetxattr(os.open(f, 0), b'user.a', b'1', 1, 0)",
    "fremovexattr": "libc.setxattr(f, b'user.a', b'1', 1, 0); libc.fremovexattr(os.open(f, 0), b'user.a')",
}
NAMES_ONLY = set("mkdir mkdirat mkdtemp mkfifo mkfifoat mknod mknodat __xmknod __xmknodat rmdir symlink symlinkat".split())
SOUNDS_LIKE_IT = "open|creat|temp|tmp|mkno|mkdir|mkfifo|link|ch(mod|own)|trunc|utim|xattr|rename|remove|rmdir|bind|acct"
NO_CASE = {
    "opens or asks, and changes nothing": "catopen dlopen dlmopen iconv_open opendir fdopendir fts_open fts64_open readlink* __readlink* "
                                          "*getxattr *listxattr open_tree fsopen pidfd_open",
    "by a descriptor that was opened for writing": "fdopen _IO_fdopen ftruncate ftruncate64 xdrstdio_create openpty",
    "makes a name only": "mktemp tempnam tmpnam tmpnam_r",
    "a file without a name, in /tmp": "tmpfile tmpfile64",
    "no file": "pthread_* __pthread_* argz_* auth* clnt* svc* xdr* envz_* epoll_* fmemopen fopencookie getutmp* hcreate* memfd_create "
               "open_memstream open_wmemstream thrd_create timer_create timerfd_create tss_create __rpc_* bind*textdomain* bindresvport "
               "_IO_link_in _IO_un_link _IO_remove_marker create_module",
    "of /dev, or the system's own": "mq_* __mq_* sem_* shm_* posix_openpt openlog logwtmp updwtmp* utmpname utmpxname acct",
    "a socket, which nobody opens; its directory's times tell": "bind",
    "starts a shell, which has the hooks": "popen _IO_popen _IO_proc_open",
    "for the C++ library of 1999; no header declares them": "_IO_fopen _IO_file_fopen _IO_file_open",
}
EACH_FUNCTION = """
import ctypes, os, re, sys, time
libc = ctypes.CDLL(None)
libc.mkdtemp.restype = libc.fopen.restype = libc.fopen64.restype = libc.freopen.restype = libc.freopen64.restype = ctypes.c_void_p
def stream(call, *words): return ctypes.c_void_p(call(*words))
def spawn(path, flags):
    actions = [(os.POSIX_SPAWN_OPEN, 1, path, flags, 0o644)]
    os.waitpid(os.posix_spawn("/bin/echo", ["echo", "changed by the child"], os.environ, file_actions=actions), 0)
group = os.getgroups()[-1] if os.geteuid() else 12
root, functions = os.fsencode(sys.argv[1]), eval(sys.argv[2])
began = time.time_ns() - 600 * 10**9
def shown(name):
    st = os.lstat(name)
    got = [re.sub(rb"new[.].{6}", b"new", os.path.basename(name)), oct(st.st_mode), st.st_nlink, st.st_gid,
           st.st_mtime_ns > began, st.st_ctime_ns > changed_at]
    if st.st_mode & 0o170000 == 0o100000:
        with open(name, "rb") as s: got += [st.st_size, s.read(), os.listxattr(name)]
    return got
def look(): return {n: sorted(shown(os.path.join(root, b"%d" % i, e)) for e in os.listdir(root + b"/%d" % i))
                    for i, n in enumerate(functions)}
changed_at = time.time_ns()
look()
time.sleep(0.5)
before, fds = look(), {}
changed_at = time.time_ns() - 20 * 10**6
for i, (n, text) in enumerate(functions.items()):
    scope = {**globals(), "d": root + b"/%d" % i, "f": root + b"/%d/f" % i}
    try: exec(text, scope)
    except Exception as e: print(n, e, file=sys.stderr)
    if scope.get("fd", -1) >= 0: fds[n] = scope["fd"]
for again in range(2):
    look()
    time.sleep(0.5)
    for n, fd in fds.items(): os.write(fd, b"written")
after = look()
print({n: (before[n] != after[n], n in fds, after[n]) for n in functions})
"""


def by_each_function():
    """What the C library has of them is taken from its own list of symbols."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        libc = next(line.split()[-1] for line in maps if "/libc.so" in line or "/libc-2" in line)
    out = e2e.execute(["nm", "-D", "--defined-only", libc])[1].decode()
    found = {line.split()[2].split("@")[0] for line in out.splitlines() if line.split()[1] in "TWi" and "PRIVATE" not in line}
    some = {name for name in found if re.search(SOUNDS_LIKE_IT, name)}
    left_out = [pattern for patterns in NO_CASE.values() for pattern in patterns.split()]
    cases = {name.split(":")[0] for name in FUNCTIONS}
    equal(sorted(name for name in some - cases if not any(fnmatch.fnmatchcase(name, pattern) for pattern in left_out)), [],
          "each function of the C library that may change a file by its name has a case here, or a reason")
    hooked = set(re.findall(r"X\((\w+), ", e2e.text_in(f"{e2e.SOURCE}/preload/hooks.h")))
    equal(sorted(cases - hooked - NAMES_ONLY), [], "and a hook, unless its directory's times tell all")
    functions = {name: text for name, text in FUNCTIONS.items() if name.split(":")[0] in found}
    outputs = []
    config = e2e.config(prefetch="off", watch_directories=0)
    for kind in "native", "job":
        root = scratch(f"functions.{kind}")
        for i in range(len(functions)):
            os.makedirs(f"{root}/{i}/empty")
            for name in "fg":
                e2e.write(f"{root}/{i}/{name}", f"the old bytes of {name}\n")
                os.utime(f"{root}/{i}/{name}", (10**9, 10**9))
        command = [PYTHON, "-c", EACH_FUNCTION, root, repr(functions)]
        if kind == "job":
            job = e2e.Job(options([root], {"t": (scratch("functions.tier"), "1G")}, *config))
            outputs.append(job.run(command))
            copies = {e2e.bytes_in(os.path.join(d, n)) for d, _, names in os.walk(scratch("functions.tier")) for n in names}
            counters = job.end()
        else:
            outputs.append(e2e.execute(command))
    if not ok(all(code == 0 for code, _, _ in outputs), "each function: they ran", outputs):
        return
    native, job = ast.literal_eval(outputs[0][1].decode()), ast.literal_eval(outputs[1][1].decode())
    for name, (changed, opened, state) in native.items():
        if not changed or opened != ("fd =" in functions[name]):
            skip(name, "it fails here")
        else:
            equal(job[name], (changed, opened, state), f"{name}: changed natively, read so")
    ok(sum(changed for changed, _, _ in native.values()) > len(FUNCTIONS) * 0.7, "most of them can be called here", outputs[0])
    equal(copies - {b"", *(f"the old bytes of {name}\n".encode() for name in "fg")}, set(), "each function: no copy is changed")
    ok(counters["opens_tier"] > len(functions), "each function: the old bytes were the tier's", counters)


# Locks on what was opened as a copy and as the PFS's file ("c", as flock(1) does), in each pair, by descriptors of this
# process and of a child; waiting, interrupted, and by a shell whose descriptor outlives the program that locked it.
LOCKS_BESIDE = """
import fcntl, os, signal, subprocess, sys, time
f = sys.argv[1]
flags = {"o": os.O_RDONLY, "c": os.O_RDONLY | os.O_CREAT}
kinds = {"S": fcntl.LOCK_SH, "X": fcntl.LOCK_EX}
def attempt(fd, kind):
    try: fcntl.flock(fd, kind | fcntl.LOCK_NB); return True
    except BlockingIOError: return False
for one in "oc":
    for first in "SX":
        for other in "oc":
            for second in "SX":
                a, b = os.open(f, flags[one]), os.open(f, flags[other])
                got = [attempt(a, kinds[first]), attempt(b, kinds[second]), attempt(a, kinds[second]), attempt(b, fcntl.LOCK_SH)]
                fcntl.flock(a, fcntl.LOCK_UN)
                print(one + first, other + second, got, attempt(b, fcntl.LOCK_EX))
                os.close(a), os.close(b)
for one, other in ("oc", "co", "oo"):
    a, b = os.open(f, flags[one]), os.open(f, flags[other])
    fcntl.flock(a, fcntl.LOCK_EX)
    pid = os.fork()
    if pid == 0:
        os.close(a)
        b = os.open(f, flags[other])
        fcntl.flock(b, fcntl.LOCK_SH)
        os._exit(0 if os.path.exists(sys.argv[2]) else 1)
    time.sleep(0.3)
    print("waits", os.waitpid(pid, os.WNOHANG)[0])
    open(sys.argv[2], "w").close()
    fcntl.flock(a, fcntl.LOCK_UN)
    print("until it is free", os.waitpid(pid, 0)[1])
    os.unlink(sys.argv[2])
    class Rings(Exception): pass
    def ring(*_): raise Rings
    signal.signal(signal.SIGALRM, ring)
    fcntl.flock(a, fcntl.LOCK_EX)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try: fcntl.flock(b, fcntl.LOCK_EX); print("it got it")
    except Rings: print("interrupted")
    print("and has nothing", attempt(a, fcntl.LOCK_EX))
    os.close(a), os.close(b)
shell = '(flock -n 9 && flock -n "$1" echo both; flock -n -s "$1" echo shared; flock -u 9; flock -n "$1" echo free) 9<"$1";' \\
        ' flock -n "$1" echo end'
print(subprocess.run(["bash", "-c", shell, "-", f], stdout=subprocess.PIPE).stdout)
"""

# A lock that a program took on the shell's descriptor, and one of an open file description, are held while the file is
# changed and the descriptors that have them go back to the PFS.
LOCKS_KEPT = """
import fcntl, os, struct, subprocess, sys
f = sys.argv[1]
shell = 'exec 9<"$1"; flock 9; echo more >>"$1"; /bin/true; for i in 1 2; do flock -n "$1" echo both; flock -n -s "$1" echo both;' \\
        ' head -c 1 <&9 | wc -c; done; flock -u 9; flock -n "$1" echo free'
print(subprocess.run(["bash", "-c", shell, "-", f], stdout=subprocess.PIPE).stdout)
f, SETLK = sys.argv[2], 37  # F_OFD_SETLK
whole = lambda kind: struct.pack("hhqqixxxx", kind, os.SEEK_SET, 0, 0, 0)
a = os.open(f, os.O_RDONLY)
fcntl.fcntl(a, SETLK, whole(fcntl.F_RDLCK))
w = os.open(f, os.O_RDWR)
os.write(w, b"new")
print(os.read(a, 3))
def attempt():
    try: fcntl.fcntl(w, SETLK, whole(fcntl.F_WRLCK)); print("got")
    except BlockingIOError: print("excluded")
attempt()
os.close(a)
attempt()
"""


def locks_beside():
    root = scratch("beside.data")
    e2e.make_tree(root, 2)
    job = e2e.Job(options([root], {"t": (e2e.memory("beside.tier") or scratch("beside.tier"), "1G")}))
    command = [PYTHON, "-c", LOCKS_BESIDE, f"{root}/0000.bin", f"{scratch('beside.out')}/told"]
    native = e2e.execute(command)
    equal(native[0], 0, "locks on a copy and on its file: natively", native)
    equal(job.run(command), native, "locks on a copy and on its file exclude each other as on one file")
    ended = job.end()
    ok(ended["opens_tier"] >= 16 and "invalidations" not in ended, "the copy serves on", ended)


def locks_kept():
    results = []
    for run in ("natively", "served"):
        root = scratch(f"kept.{run}")
        e2e.make_tree(root, 2)
        files = [f"{root}/0000.bin", f"{root}/b/0001.bin"]
        command = [PYTHON, "-c", LOCKS_KEPT, *files]
        if run == "natively":
            results.append(e2e.execute(command))
            equal(results[0][0], 0, "locks over a change: natively", results[0])
            continue
        job = e2e.Job(options([root], {"t": (scratch("kept.tier"), "1G")}))
        job.run(["cat", *files])
        results.append(job.run(command))
        ok(job.end()["tasks"]["returned"] >= 2, "descriptors with locks go back")
    equal(results[1], results[0], "locks are held over a change of the file, whoever took them")


@e2e.unless(lambda: os.geteuid() != 0 and "cannot mount")
def by_mount():
    """By another mount of the same file system; and where the root is that other mount, by the place that it shows."""
    # The dataset's name, what is mounted, where, and by which of both the job writes.
    for name, real, bound, written in ("mount", "mount.data", "mount.other",
                                       "mount.other"), ("bound", "bound.real", "bound.data", "bound.real"):
        equal(e2e.execute(["mount", "--bind", scratch(real), scratch(bound)])[0], 0, f"{bound}: mounted")
        placed = Placed(name)
        placed.change(f"write by {written}", 'echo by mount >"$3/0000.bin"', scratch(written))
        placed.change(f"mv by {written}", 'echo moved >"$3/n"; mv -f "$3/n" "$3/0004.bin"', scratch(written))
        placed.done(written, 10)
        e2e.execute(["umount", scratch(bound)])


def on_another_device():
    """An overlay of two file systems: its files are on other devices than its directories."""
    low, root, outside, top = (scratch(f"over.{name}") for name in ("low", "data", "outside", "top"))
    upper, work = f"{top}/upper", f"{top}/work"
    for directory in (upper, work):
        os.mkdir(directory)
    if os.geteuid() != 0 or e2e.execute(["mount", "-t", "tmpfs", "over", low])[0] != 0:
        return skip("another device", "cannot mount")
    try:
        e2e.make_tree(low, 24)
        if e2e.execute(["mount", "-t", "overlay", "-o", f"lowerdir={low},upperdir={upper},workdir={work}", "over", root])[0] != 0:
            return skip("another device", "no overlay here")
        job = e2e.Job(options([root], {"t": (scratch("over.tier"), "1G")}, *e2e.config(watch_directories=0)))
        os.symlink(root, f"{outside}/link")
        script = """
import fcntl, os, sys
root, link = sys.argv[1:]
for number in 0, 4, 8, 12:
    name = f"/{number:04}.bin"
    first, written = open(root + name, "rb"), open(link + name, "r+b")
    first.read()
    fcntl.flock(written, fcntl.LOCK_EX)
    written.write(b"new %d" % number)
    written.close()
    print(open(root + name, "rb").read(6))
first = open(root + "/0016.bin", "rb")
fcntl.flock(first, fcntl.LOCK_EX)
try: print(fcntl.flock(open(link + "/0016.bin", "rb"), fcntl.LOCK_EX | fcntl.LOCK_NB))
except BlockingIOError: print("blocked")
"""
        equal(job.run(read_all(root))[:2], e2e.execute(read_all(root))[:2], "another device: the bytes")
        got = job.run([PYTHON, "-c", script, root, f"{outside}/link"])
        ok(got[0] == 0 and got[1].count(b"b'new ") == 4 and got[1].endswith(b"blocked\n"),
           "another device: what is written by a link is read, and locks exclude", got)
        equal(job.run(read_all(root))[:2], e2e.execute(read_all(root))[:2], "another device: the bytes afterwards")
        ok(job.end()["opens_tier"] >= 24, "another device: files are served")
    finally:
        e2e.execute(["umount", root])
        e2e.execute(["umount", low])
    return None


def directories():
    placed = Placed("directories", 48)
    placed.change("mv of a directory", 'mv "$1/a/d3" "$1/a/moved"; if cat "$1"/a/d3/*.bin 2>/dev/null; then exit 1; fi')
    placed.change("another in its place", 'mkdir -p "$2/a/d3"; cp -r "$1/a/moved/." "$2/a/d3";'
                  'for f in $(find "$2/a/d3" -type f); do echo new >"$f"; done; mv "$2/a/d3" "$1/a/d3"')
    placed.change("mv of a directory by a link", 'ln -s "$1/c" "$2/c"; d=$(ls "$1/c" | head -n 1); mv "$2/c/$d" "$2/c/gone"')
    placed.change("mv into a directory of the dataset", 'echo x >"$2/into"; mv "$2/into" "$1/b"; echo x >"$2/into2"; mv "$2/into2" "$1"')
    placed.change("mv of a directory elsewhere", 'mkdir "$2/e"; mv "$2/e" "$2/f"')
    counters = placed.done("directories", 10)
    equal(counters["tasks"]["fallback_no_agent"], 0, "directories: nothing was closed")
    for name, script in {
        "mv of the root": 'mv "$1" "$1.old"; mkdir "$1"; echo other >"$1/0000.bin"',
        "mv of a directory above": 'p=$(dirname "$1"); mv "$p" "$p.old"; mkdir -p "$1"; echo other >"$1/0000.bin"',
    }.items():
        above = scratch("above")
        root = f"{above}/{len(name)}/data"
        e2e.make_tree(root, 8)
        job = e2e.Job(options([root], {"t": (scratch("tier.above"), "1G")}))
        code, out, err = job.run([PYTHON, "-c", AROUND, f"{root}/0000.bin", "bash", "-ec", script, "bash", root])
        equal((code, out), (0, e2e.bytes_in(f"{root}/0000.bin")), f"{name}: the new bytes, in a process that read the old ones", err)
        equal(job.run(read_all(root))[:2], e2e.execute(read_all(root))[:2], f"{name}: the new bytes in another")
        equal(job.end()["opens_tier"], 1, f"{name}: the old ones were the tier's")
    real, link = scratch("link.1"), f"{scratch()}/link"
    second = scratch("link.2")
    e2e.make_tree(real, 4)
    e2e.make_tree(second, 4, seed=2)
    os.symlink(real, link)
    job = e2e.Job(options([link], {"t": (scratch("tier.link"), "1G")}))
    code, out, err = job.run([PYTHON, "-c", AROUND, f"{link}/0000.bin", "ln", "-sfn", second, link])
    equal((code, out), (0, e2e.bytes_in(f"{second}/0000.bin")), "a root by a symbolic link that leads elsewhere now", err)
    equal(job.end()["opens_tier"], 1, "a root by a symbolic link: it was the tier's before")


BESIDE = f"{e2e.BUILD}/tests/beside"
RECORDS = 2000


def threads_beside():
    """What a thread has open, and reads, while another changes the file and has descriptors go back to the PFS."""
    root, out = scratch("beside.records"), scratch("beside.outside")
    config = e2e.config(prefetch="off", stage_wait_max="16K", stage_wait=0)
    cases = e2e.execute([BESIDE])[1].decode().splitlines()
    for case in cases:
        if e2e.SANITIZER and case.startswith("kcmp"):
            skip(case, "the sanitizer needs calls that are forbidden")
            continue
        file, other = f"{root}/{case.replace(' ', '-')}", f"{out}/other"
        e2e.write(file, b"".join(i.to_bytes(4, sys.byteorder) * 16 for i in range(RECORDS)))
        e2e.write(other, b"mine")
        command = [BESIDE, case, file, other]
        native = e2e.execute(command)
        large = case.startswith("large")
        job = e2e.Job([*options([root], {"t": (scratch(f"beside.{case.replace(' ', '-')}.tier"), "1G")}),
                       *(config if large else [])])
        if not large:
            job.run(["cat", file])
        equal(job.run(command), native, f"beside: {case}: as natively")
        counters = job.end()
        equal(counters["tasks"]["moved"], int(large), f"beside: {case}: moved to the copy")
        ok(native[0] == 0 and native[1] and counters["opens_tier"] >= 2, f"beside: {case}: from the tier", native, counters)


OPENAT2 = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
root = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
RESTRICTED = 0x08 | 0x04  # RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS
def openat2(name, flags, mode=0, resolve=0, how=None, size=24):
    ctypes.set_errno(0)
    fd = libc.openat2(root, os.fsencode(name), how or struct.pack("QQQ", flags, mode, resolve), ctypes.c_size_t(size))
    print(name if name[0] != "/" else "link", fd >= 0, ctypes.get_errno())
    return fd
files = sorted(n for n in os.listdir(root) if n.endswith(".bin"))
for i, resolve in enumerate((0, RESTRICTED)):
    held = openat2(files[i], os.O_RDONLY, resolve=resolve)
    print(os.pread(held, 20, 0), os.path.sameopenfile(held, os.open(f"{sys.argv[1]}/{files[i]}", 0)))
    os.write(openat2(files[i], os.O_WRONLY, resolve=resolve), b"NEW")
    print(os.pread(held, 20, 0))
    os.write(openat2(files[i + 2], os.O_WRONLY | os.O_TRUNC, resolve=resolve), b"NEW")
os.write(openat2("new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), b"made")
openat2("../none", os.O_RDONLY, resolve=RESTRICTED)
openat2(files[5], os.O_RDONLY, size=8)
for name in *files[:4], "new": print(open(f"{sys.argv[1]}/{name}", "rb").read(20))
"""


@e2e.unless(lambda: e2e.SANITIZER and "sanitizer build")
def by_openat2():
    """As tar of glibc 2.43 does; here it is a library of the test's that comes next."""
    placed = Placed("openat2", files=40)
    twin = f"{scratch()}/openat2.natively"
    shutil.copytree(placed.root, twin, symlinks=True)
    with_it = ["sh", "-c", 'LD_PRELOAD="$LD_PRELOAD:$0" exec "$@"', f"{e2e.BUILD}/tests/openat2.so", PYTHON, "-c", OPENAT2]
    native = e2e.execute([*with_it, twin])
    if b"False 38" in native[1]:
        return skip("openat2", "the kernel has none")
    before = placed.job.run([*with_it, placed.root])
    equal(before[:2], native[:2], "openat2: as natively", before[2], native[2])
    equal(native[0], 0, "openat2: it can be called", native)
    placed.same("openat2: the new bytes")
    return placed.job.end()


UNSEEN_LINK = """
import os, subprocess, sys
fd = os.open(sys.argv[1], 0)
command = f"printf XY 1<>/proc/{os.getpid()}/fd/{fd}"
unseen = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
print(subprocess.run(["sh", "-c", command], env=unseen, stderr=-3).returncode, os.pread(fd, 4, 0))
"""


@e2e.unless(e2e.why_not_ordinary)
def links_of_others():
    """A program without the library that writes by a link to a descriptor is refused: it would write the copy, and the PFS's file
    would never have it. Root is not, by the kernel. What the job itself writes so: held.t."""
    root, tier = scratch("links.data"), scratch("links.tier")
    e2e.write(f"{root}/x", b"hhhh" * 100)
    for path, mode in (root, 0o777), (tier, 0o777), (f"{root}/x", 0o666):
        os.chmod(path, mode)
    job = e2e.Job(options([root], {"t": (tier, "1G")}), before=e2e.ORDINARY)
    job.run([*e2e.ORDINARY, "cat", f"{root}/x"])
    equal(job.run([*e2e.ORDINARY, PYTHON, "-c", UNSEEN_LINK, f"{root}/x"])[:2], (0, b"2 b'hhhh'\n"),
          "a link that is written unseen: refused")
    job.end()


def inherited():
    """What a process had open for writing when it came to the job: its standard output, for one."""
    root, tier = scratch("inherited.data"), scratch("inherited.tier")
    out = f"{root}/out"
    with open(out, "wb") as file:
        script = 'echo one; sleep 1; a=$(wc -c <$0); echo two; b=$(wc -c <$0); echo $a $b >&2'
        done = subprocess.run([e2e.Job.program, "run", *options([root], {"t": (tier, "1G")}), "--", "sh", "-c", script, out],
                              stdout=file, stderr=subprocess.PIPE, check=False, env=e2e.environment(MONARCH_IO_QUIET="1"))
    equal((done.returncode, done.stderr.split()[-2:]), (0, [b"4", b"8"]), "its own output is read as it is", done)


# ---- programs without the library: the kernel tells of what they change (inotify), within a second

UNSEEN = {  # what the kernel tells of is change_watch_test.cc's
    ">>": 'echo more >>"$1/0016.bin"',
    "mv of a directory": 'mv "$1/a/d3" "$1/moved"; mkdir "$1/a/d3"; cp -r "$1/moved/." "$1/a/d3"; find "$1/a/d3" -type f -exec sh -c "echo x >>{}" ";"',
    "rm": 'rm "$1/0008.bin"; if cat "$1/0008.bin" 2>/dev/null; then exit 1; fi',
}
HOLDER = """
import os, sys, time
f = os.open(sys.argv[1], 0)
before = os.pread(f, 1 << 20, 0)
os.spawnve(os.P_WAIT, "/bin/sh", ["sh", "-c", 'echo tail >>"$0"', sys.argv[1]], {"PATH": "/usr/bin:/bin"})
end = time.monotonic() + 20
while os.pread(f, 1 << 20, 0) != before + b"tail\\n" and time.monotonic() < end: time.sleep(0.01)
print(os.pread(f, 1 << 20, 0) == before + b"tail\\n", os.fstat(f).st_size == os.stat(sys.argv[1]).st_size)
"""
SYSTEM = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.unsetenv("LD_PRELOAD")
sys.exit(libc.system(b'echo by system >"%s"' % os.fsencode(sys.argv[1])))
"""


def seen_at_last(placed, name, command):
    got = placed.job.run(command)
    ok(got[0] == 0, f"{name}: done", got)
    native = e2e.execute(read_all(placed.root))[:2]
    ok(e2e.wait_until(lambda: placed.job.run(read_all(placed.root))[:2] == native), f"{name}: noticed")


def unseen():
    placed = Placed("unseen", more=())
    for what, script in UNSEEN.items():
        seen_at_last(placed, what, ["env", "-u", "LD_PRELOAD", "sh", "-ec", script, "sh", placed.root, placed.outside])
    seen_at_last(placed, "system() without LD_PRELOAD", [PYTHON, "-c", SYSTEM, f"{placed.root}/0020.bin"])
    got = placed.job.run([PYTHON, "-c", HOLDER, max(placed.files())])
    equal(got[:2], (0, b"True True\n"), "unseen: a descriptor that is held", got[2])
    placed.done("unseen", 8)


FLOOD = """
import os, sys
for i in range(7000): os.close(os.open(f"{sys.argv[1]}/flood{i}", os.O_WRONLY | os.O_CREAT))
with open(sys.argv[2], "ab") as out: out.write(b"tail")
for i in range(7000): os.unlink(f"{sys.argv[1]}/flood{i}")
"""


def more_than_inotify_tells():
    placed = Placed("flood", more=())
    agent = placed.job.agent()
    os.kill(agent, signal.SIGSTOP)
    try:
        got = e2e.execute([PYTHON, "-c", FLOOD, f"{placed.root}/a", f"{placed.root}/0020.bin"])
    finally:
        os.kill(agent, signal.SIGCONT)
    equal(got[0], 0, "28,000 changes while the agent is stopped", got)
    native = e2e.execute(read_all(placed.root))[:2]
    ok(e2e.wait_until(lambda: placed.job.run(read_all(placed.root))[:2] == native), "the PFS serves all of it")
    placed.job.end()


def before_the_agent():
    """What a process opened for writing before there was an agent."""
    root, tier, run = scratch("early.data"), scratch("early.tier"), scratch("early.run")
    os.chmod(run, 0o700)
    e2e.write(f"{root}/f", b"x" * 100)
    text = """
import os, sys, time
w = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
print("go", flush=True)
sys.stdin.readline()
a = len(open(sys.argv[1], "rb").read())
os.write(w, b"second")
print(a, len(open(sys.argv[1], "rb").read()))
"""
    task = subprocess.Popen([PYTHON, "-c", text, f"{root}/f"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,  # pylint: disable=consider-using-with
                            env=e2e.environment(LD_PRELOAD=f"{e2e.SANITIZER} {e2e.BUILD}/libmonarch_preload.so", MONARCH_IO_RUN_DIR=run))
    with task:
        equal(task.stdout.readline(), b"go\n", "a program begins")
        agent = e2e.start([f"{e2e.BUILD}/monarchd", "--dataset", root, "--tier", f"t:{tier}:1G", "--run-dir", run, "--job-dir", "job"])
        ok(e2e.wait_until(lambda: glob.glob(f"{tier}/job/??/*")), "its file is staged")
        equal(task.communicate(b"\n")[0].split(), [b"100", b"106"], "and what the program goes on to write is read")
    agent.terminate()
    agent.wait(e2e.PATIENCE)


e2e.main(by_programs, by_names, by_each_function, locks_beside, locks_kept, by_mount, on_another_device, directories, threads_beside,
         by_openat2, links_of_others, inherited, unseen, more_than_inotify_tells,
         before_the_agent)
