#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Descriptors that a program holds while another one of the job changes the file, also by another of its names, and of
files that were staged again: they show what they show natively."""

import glob
import os
import shutil

import e2e
from e2e import PYTHON, equal, ok, options, scratch, skip

BEGIN = """
import ctypes, fcntl, mmap, os, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
root = sys.argv[1]
f, other = root + '/f', root + '/other'
def sh(text): return subprocess.run(['bash', '-c', text, 'bash', root], stdout=subprocess.PIPE).stdout
def append(text): sh('printf %s ' + text + ' >>"$1/f"')
class Request(ctypes.Structure):
    _fields_ = [('fd', ctypes.c_int), ('what', ctypes.c_int), ('_1', ctypes.c_int), ('buffer', ctypes.c_void_p), ('bytes', ctypes.c_size_t),
                ('_2', ctypes.c_char * 96), ('at', ctypes.c_long), ('_3', ctypes.c_char * 32)]
    def __init__(self, fd, at, what):
        self.data = ctypes.create_string_buffer(50)
        super().__init__(fd=fd, at=at, what=what, buffer=ctypes.addressof(self.data), bytes=20)
    def wait(self):
        while libc.aio_error(ctypes.byref(self)) == 115: time.sleep(0.001)
        return libc.aio_return(ctypes.byref(self)), self.data.raw
def stat(fd): s = os.fstat(fd); return s.st_size, oct(s.st_mode), s.st_nlink, s.st_ino == os.stat(f).st_ino
"""
FILE = b"".join(b"line %d\n" % i for i in range(200))

# What holds a descriptor, and what it then shows. True: the descriptor has to go back to the PFS.
CASES = {
    "tail -F": (True, "p = subprocess.Popen(['tail', '-n', '1', '-F', f], stdout=-1, stderr=-3); print(p.stdout.readline()); sh('echo new >>\"$1/f\"');"
                      "print(p.stdout.readline()); p.kill(); p.wait()"),
    "copy_file_range": (True, "s = os.open(f, 0); append('new'); o = os.open(sys.argv[2] + '/o', os.O_RDWR | os.O_CREAT | os.O_TRUNC);"
                              "print(os.copy_file_range(s, o, 9999, 1680), os.pread(o, 9999, 0))"),
    "lio_listio": (True, "s, t = os.open(f, 0), os.open(f, 0); append('new'); r = Request(s, 1685, 0); q = Request(t, 1683, 2)\n"
                         "l = (ctypes.c_void_p * 3)(ctypes.addressof(r), None, ctypes.addressof(q)); print(libc.lio_listio(0, l, 3, None), r.wait(), q.what)\n"
                         "print(os.pread(t, 10, 1685), libc.lio_listio(7, l, 3, None))"),
    "a map to run": (True, "s = os.open(f, 0); m = mmap.mmap(s, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC);"
                           "print(any(line.rstrip().endswith(f) for line in open('/proc/self/maps')), bytes(m[:9]))"),
    "what is left to read": (True, "s = os.open(f, 0); os.read(s, 10); append('new'); print(fcntl.ioctl(s, 0x541b, bytes(4)))"),
    "a stream's fstat, then its bytes": (True, "libc.fopen.restype = ctypes.c_void_p; s = ctypes.c_void_p(libc.fopen(f.encode(), b'r'));"
                                               "append('new'); print(stat(libc.fileno(s))); b = ctypes.create_string_buffer(9999);"
                                               "print(libc.fread(b, 1, 9999, s), b.raw[1680:1700])"),
    "what only some file systems know": (True, "s = os.open(f, 0); os.read(s, 50); b = [bytearray(20)]; print(os.preadv(s, b, 7, os.RWF_NOWAIT), b)\n"
                                               "try: print(fcntl.fcntl(s, fcntl.F_GET_SEALS))\nexcept OSError as e: print(e.errno)"),
    "a stream's number, and a duplicate of it": (True, "libc.fopen.restype = ctypes.c_void_p; n = libc.fileno(ctypes.c_void_p(libc.fopen(f.encode(), b'r')));"
                                                       "d = os.dup(n); append('new'); print(os.pread(n, 9, 1685), os.read(d, 5), os.read(n, 5))"),
    "flags": (True, "s = os.open(f, os.O_RDONLY | os.O_NONBLOCK | os.O_APPEND); os.set_inheritable(s, True); append('new'); os.read(s, 5);"
                    "print(fcntl.fcntl(s, 3) & 0o6000, os.get_inheritable(s), os.get_inheritable(os.open(f, 0)))"),
    "a duplicate by a socket": (True, "import socket; a, b = socket.socketpair(); s = os.open(f, 0); socket.send_fds(a, [b'x'], [s]);"
                                      "d = socket.recv_fds(b, 1, 1)[1][0]; append('new'); print(os.read(d, 10), os.read(s, 5), os.read(d, 5));"
                                      "print(os.lseek(s, 0, 1), os.lseek(d, 0, 1))"),
    "kept over exec": (True, "s = os.open(f, 0); os.set_inheritable(s, True)\n"
                             "print(subprocess.run(['bash', '-c', 'printf new >>\"$1/f\"; tail -c 5', 'bash', root], stdin=s, stdout=-1).stdout)"),
    "a child that reads on": (True, "s = os.open(f, 0); os.read(s, 10); append('new')\n"
                                    "if os.fork() == 0: print(os.read(s, 5), flush=True); os._exit(0)\n"
                                    "os.wait(); print(os.read(s, 5), os.lseek(s, 0, 1))"),
    "a program that reads on": (True, "s = os.open(f, 0); os.read(s, 10); append('new')\n"
                                      "p = os.posix_spawn('/usr/bin/dd', ['dd', 'bs=5', 'count=1', 'status=none'], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, s, 0)]);"
                                      "os.waitpid(p, 0); print(os.read(s, 5), os.lseek(s, 0, 1))"),
    "a child of vfork without the library": (True, "s = os.open(f, 0); os.read(s, 10); append('new'); e = {'PATH': os.environ['PATH'], 'MONARCH_IO_DISABLE': '1'}\n"
                                                   "print(subprocess.run(['dd', 'bs=5', 'count=1', 'status=none'], stdin=s, stdout=-1, env=e).stdout, os.read(s, 5))"),
    "another's place in a child of vfork": (True, "s = os.open(f, 0); os.dup2(s, 0); os.close(s); os.read(0, 5); subprocess.run(['true'], stdin=subprocess.DEVNULL);"
                                                  "append('new'); print(os.pread(0, 10, 1685))"),
    "ranges locked before": (True, "s = os.open(f, 0); fcntl.lockf(s, fcntl.LOCK_SH, 10, 100); fcntl.lockf(s, fcntl.LOCK_SH, 5, 300); append('new')\n"
                                   "os.pread(s, 1, 0)\n"
                                   "if os.fork() == 0:\n  w = os.open(f, os.O_RDWR)\n"
                                   "  for n, at in (10, 90), (1, 109), (1, 110), (5, 295), (1, 304), (1, 99):\n"
                                   "    try: fcntl.lockf(w, fcntl.LOCK_EX | fcntl.LOCK_NB, n, at); print('free', n, at)\n"
                                   "    except OSError as e: print('held', n, at)\n"
                                   "  sys.stdout.flush(); os._exit(0)\nos.wait()"),
    "what stays open": (True, "s = os.open(f, 0); append('new'); print(os.pread(s, 9, 1685), sorted(os.listdir('/proc/self/fd')))"),
    "a lease": (True, "import signal; s = os.open(f, 0); print(fcntl.fcntl(s, fcntl.F_SETLEASE, fcntl.F_RDLCK))\n"
                      "def give_up(*_): print('given up'); fcntl.fcntl(s, fcntl.F_SETLEASE, fcntl.F_UNLCK)\n"
                      "signal.signal(signal.SIGIO, give_up); append('new'); print(os.pread(s, 9, 1685), fcntl.fcntl(s, fcntl.F_GETLEASE))"),
    "a thread with descriptors of its own": (True,
        "d, e, r = os.open(root, 0), os.open(root + '/sub', 0), os.open(f, 0)\n"
        "def look(): n = os.open('f', 0, dir_fd=d); print(os.read(n, 30), stat(n)[0], os.stat('f', dir_fd=d).st_size)\n"
        "def own(): print(libc.unshare(0x400)); os.dup2(e, d); look(); w = os.open('f', os.O_WRONLY, dir_fd=d); os.write(w, b'NEW'); look(); os.close(r)\n"
        "t = threading.Thread(target=own); t.start(); t.join(); look(); print(open(root + '/sub/f').read(9)); append('new'); print(os.pread(r, 9, 1685))"),
    "another in its place, perhaps of the same inode": (False, "s = os.open(f, 0); os.read(s, 5); n = os.fstat(s).st_ino; os.unlink(f)\n"
                                                               "for i in range(1000):\n"
                                                               "  t = f'{root}/{i}'; open(t, 'w').write('another' * 99)\n"
                                                               "  if os.stat(t).st_ino == n: break\n"
                                                               "os.rename(t, f); print(os.read(s, 20), os.pread(s, 9, 50), os.fstat(s).st_size, open(f).read(9))"),
}


# What is done by a link to a descriptor that may be a copy's, or by the descriptor itself, where that is not a read.
LINKED = """
link = '/proc/self/fd/%d' % (s := os.open(f, 0))
def attempt(act):
    try: print(act())
    except OSError as e: print(e.errno)
def file(path=f): r = os.open(path, 0); return os.pread(r, 30, 0), os.fstat(r).st_size, oct(os.fstat(r).st_mode), os.fstat(r).st_nlink
def same(path): return os.path.samestat(os.stat(path), os.stat(f)), os.stat(path).st_mtime, os.stat(path).st_uid, os.fstat(s).st_mtime
"""
LINKS = {
    "written, if it is new": (False, "attempt(lambda: os.write(os.open(link, os.O_WRONLY | os.O_CREAT | os.O_EXCL), b'ZZZ')); print(file())"),
    "another number": (False, "link = link.replace('fd/', 'fd/0')\nfor n in 0, 1: attempt(lambda: os.open(link, n))\nattempt(lambda: os.truncate(link, 1)); print(file())"),
    "its name, by the descriptor": (True, "attempt(lambda: libc.linkat(s, b'', -100, root.encode() + b'/new', 0x1000)); print(same(root + '/new'), file())"),
    "read anew, by a path beside it, changed without a fork of ours": (True, "p = subprocess.Popen(['sh', '-c', 'read go; printf new >>\"$1/f\"', 'sh', root], stdin=-1)\n"
        "n = os.open('/dev/shm/../fd/%d' % s, 0); os.read(n, 10); p.communicate(b'go\\n'); print(os.pread(n, 10, 1685), os.read(n, 4))"),
    "read anew, by a stream": (True, "n = open(link, 'rb', 0); libc.fopen.restype = ctypes.c_void_p; t = ctypes.c_void_p(libc.fopen(link.encode(), b'r'));"
                                     "append('new'); print(stat(libc.fileno(t)), stat(n.fileno()))"),
    "appended to, by a shell": (True, "print(sh('exec 3<\"$1/f\"; echo app >>/dev/fd/3; echo x | tee -a /dev/fd/3; tail -n 2 \"$1/f\"; tail -c 3 <&3'))"),
    "changed by a link in the dataset": (True, "i = root + '/in'; os.symlink('/dev/stdin', i); os.dup2(s, 0); os.truncate(i, 50); os.chmod(i, 0o604); os.utime(i, (5, 5));"
                                               "print(file(), same(f), os.fstat(s).st_size)"),
    "what a child writes to": (True, "p = os.posix_spawn('/bin/echo', ['echo', 'NEW'], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, link, os.O_WRONLY | os.O_TRUNC, 0)]);"
                                     "os.waitpid(p, 0); print(file(), os.pread(s, 30, 0))"),
    "another mode of a stream": (True, "libc.fopen.restype = libc.freopen.restype = ctypes.c_void_p; t = ctypes.c_void_p(libc.fopen(f.encode(), b'r'))\n"
                                       "for mode in b'r+', b'r', b'a':\n  t = ctypes.c_void_p(libc.freopen(None, mode, t)); print(libc.fputs(b'QQ', t), libc.fflush(t), file())"),
    "written by a child, which keeps no descriptor of ours": (False, "n = len(os.listdir('/proc/self/fd'))\nif os.fork() == 0:\n"
        "  os.close(s); link = '/proc/%d/fd/%d' % (os.getppid(), s); os.truncate(link, 9); os.chmod(link, 0o600); os.close(os.open(link, os.O_WRONLY))\n"
        "  os._exit(n - len(os.listdir('/proc/self/fd')))\nprint(os.wait()[1], file())"),
    "run": (True, "w = os.open(other, os.O_WRONLY | os.O_TRUNC); os.write(w, b'#!/bin/sh\\necho run $#'); os.close(w); os.chmod(other, 0o755)\n"
                  "print(subprocess.run(['/proc/self/fd/%d' % (n := os.open(other, 0)), 'a'], pass_fds=[n], stdout=-1).stdout)"),
    "looked at, by threads' names of it": (False, "t = '%d/fd' % threading.get_native_id(); names = ['%s/%d' % (n, s) for n in ('/proc/thread-self/fd', '/proc/self/task/' + t,"
        "'/proc/%d/task/' % os.getpid() + t, '/proc/self/task/7%d/fd' % 10**7, '/proc/1/task/1/fd', '/proc/task/' + t, '/proc/self/task//fd')]\n"
        "for n in names: attempt(lambda: (same(n), file(n))); print(os.access(n, os.R_OK))\n"
        "append('new')\nfor n in names: attempt(lambda: (os.stat(n).st_size, os.path.samestat(os.stat(n), os.stat(f))))"),
    "no descriptor is left": (True, "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1])); append('new')\n"
                                    "try:\n  while True: last = os.dup(0)\nexcept OSError: print(last, os.pread(s, 10, 1685), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"),
}
HINTS = 65536
BEYOND = {"a number beyond the hints": (False, f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({HINTS + 1000}, max({HINTS + 1000}, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
while os.dup(0) < {HINTS}: pass
h, i = os.open(f, 0), open(f, 'rb')
append('new'); print(h, os.pread(h, 10, 1685), os.fstat(h).st_size, i.read()[-3:])
""")}
# A program without the library that gets a copy's descriptor.
OUTSIDE = """
s = os.open(f, 0)
def given(*command): print(subprocess.run(command, env={'PATH': os.environ['PATH']}, stdin=s, stdout=-1, stderr=-2).stdout)
def values(): given('stat', '-c', '%a %Y', f)
"""
GIVEN = {
    "its values": "given('stat', '-L', '-c', '%a %h %s %Y', '/dev/stdin')",
    "its mode is changed": "given('chmod', '604', '/proc/self/fd/0'); values()",
    "its time is changed": "given('touch', '-d', '@1600000000', '/proc/self/fd/0'); values()",
    "it is written": "given('sh', '-c', 'printf NEW 1<>/proc/self/fd/0'); given('head', '-c', '9', f)",
    "it is written, and read here": "given('sh', '-c', 'printf NEW 1<>/proc/self/fd/0'); print(open(f).read(9))",
    "by env": "print(subprocess.run(['env', '-i', 'A=b', 'stat', '-c', '%a', '-'], stdin=s, stdout=-1).stdout)",
    "of no job": "print(subprocess.run(['env', '-u', 'MONARCH_IO_RUN_DIR', 'stat', '-c', '%a', '-'], stdin=s, stdout=-1).stdout)",
    "by posix_spawn": "os.waitpid(os.posix_spawn('/bin/chmod', ['chmod', '604', '/proc/self/fd/0'], {'A': 'b'}, file_actions=[(os.POSIX_SPAWN_DUP2, s, 0)]), 0); values()",
    "by system": "os.dup2(s, 0); os.environ.pop('LD_PRELOAD', None); print(os.system('chmod 604 /proc/self/fd/0')); values()",
    "the position is shared": "os.dup2(s, 0); print(os.read(0, 10), subprocess.run(['env', '-i', '/bin/dd', 'bs=10', 'count=1', 'status=none'], stdout=-1).stdout, os.read(0, 10))",
}
# A program without the library that gets a changed descriptor, in each way in which it may be started.
STARTED = """
os.write(os.open(f, os.O_WRONLY), b'NEW'); os.dup2(s, 0); command = b'busybox head -n 1'
args = b'busybox', b'busybox', b'head', b'-n', b'1', None
def wait(pid): libc.execlp(*args) if pid == 0 else print(os.waitpid(pid, 0)[1])
"""
STARTS = {
    "by system": "print(libc.system(command))",
    "by popen": "libc.popen.restype = ctypes.c_void_p; libc.pclose.argtypes = [ctypes.c_void_p]; libc.pclose(libc.popen(command, b'w'))",
    "by fork": "wait(libc.fork())",
    "by _Fork": "wait(libc._Fork() if hasattr(libc, '_Fork') else os.fork())",
    "by vfork": "print(subprocess.run(command.split(), stdin=s).returncode)",
    "by exec": "libc.execlp(*args)",
}


# A file with three names: each shows what it shows natively, whatever becomes of the others.
NAMED = """
import shutil
a, b, c = (root + '/' + name for name in ('a', 'sub/b', 'sub/c'))
def sh(text): return subprocess.run(['sh', '-c', text, 'sh', root], stdout=subprocess.PIPE).stdout
def show(*what):
    for w in what:
        try:
            fd = w if isinstance(w, int) else os.open(w, 0)
            s = os.fstat(fd)
            print(os.pread(fd, 20, 0), s.st_size, s.st_nlink, oct(s.st_mode), [os.path.exists(n) and os.path.samestat(s, os.stat(n)) for n in (a, b, c)])
            if fd != w: os.close(fd)
        except OSError as e: print(e.errno)
"""
NAMES = {
    "read": "show(a, b, c, a)",
    "held by two names, the first is removed, then changed": "f, g = os.open(a, 0), os.open(b, 0); os.unlink(a); sh('printf NEW 1<>\"$1/sub/c\"'); show(g, b, c, a)",
    "another file gets the first name, then changed": "f, g = os.open(a, 0), os.open(b, 0); sh('echo other >\"$1/n\"; mv \"$1/n\" \"$1/a\"; printf NEW 1<>\"$1/sub/b\"');"
                                                      "show(g, a, b, c)",
    "the first name is another one": "g = os.open(b, 0); os.rename(a, root + '/elsewhere'); show(g, b, c, a, root + '/elsewhere'); sh('echo x >>\"$1/elsewhere\"'); show(g, b, c)",
    "locked": "f, g = os.open(a, 0), os.open(b, 0); fcntl.flock(f, fcntl.LOCK_EX)\n"
              "try: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB); print('both')\nexcept OSError as e: print(e.errno)",
    "mapped": "m = mmap.mmap(os.open(b, 0), 0, prot=1); print(m[:20]); m = mmap.mmap(os.open(c, 0), 0, prot=1); print(m[-20:])",
    "found by programs": "print(sh('cd \"$1\" && find . -samefile a | sort; find . -links +1 -type f | sort; stat -c %h a sub/b; diff a sub/b && cmp a sub/c && echo same'))",
}
SERVED = e2e.OPENED_AS + """
import os, sys
print(all(opened_as(os.open(f, 0)).startswith(sys.argv[1]) for f in sys.argv[2:]))
"""


def make(root):
    """The files of a case."""
    os.makedirs(f"{root}/sub")
    for name in "f", "other", "a":
        e2e.write(f"{root}/{name}", FILE)
        os.utime(f"{root}/{name}", (1.5e9, 1.5e9))
    e2e.write(f"{root}/sub/f", FILE[5:])
    for name in "sub/b", "sub/c":
        os.link(f"{root}/a", f"{root}/{name}")


def same_in_job(kind, cases, begin, tier="", before=lambda job, root: None, **keys):
    """Each case natively and in a job that has read all, after before(job, the dataset)."""
    tier = tier or scratch(f"{kind}.tier")
    roots = [f"{scratch()}/{kind}.{how}/data" for how in ("native", "job")]
    for number in range(len(cases)):
        for root in roots:
            make(f"{root}/{number}")
    job = e2e.Job(options([roots[1]], {"t": (tier, "1G")}, *e2e.config(**keys)))
    job.run(e2e.read_all(roots[1]))
    before(job, roots[1])
    back = 0
    for number, (name, (goes, text)) in enumerate(cases.items()):
        command = [PYTHON, "-c", begin + text]
        native = e2e.execute([*command, f"{roots[0]}/{number}", scratch(f"{kind}.out.native")])
        got = job.run([*command, f"{roots[1]}/{number}", scratch(f"{kind}.out.job")])
        equal(got, native, f"{name}: as natively")
        ok(native[0] == 0, f"{name}: the case holds", native)
        back += goes
    report = job.end()
    ok(report["opens_tier"] > len(cases) and report["tasks"]["returned"] >= back, f"{kind}: each of {back} descriptors went back to the PFS", report["tasks"])


def by_calls():
    same_in_job("calls", CASES, BEGIN)


def staged_again():
    """Files that the job wrote, once they are left alone. When: again_test.cc."""
    def write(job, root):
        files = sorted(glob.glob(f"{root}/*/f"))
        job.run(["sh", "-c", 'for f; do cat "$f" >"$0"; cat "$0" >"$f"; done', f"{scratch()}/content", *files])
        served = [PYTHON, "-c", SERVED, scratch("again.tier"), *files]
        equal(job.run(served)[1], b"False\n", "what the job wrote is the PFS's at first")
        ok(e2e.wait_until(lambda: job.run(served)[1] == b"True\n"), "left alone, it is the tier's")
    same_in_job("again", CASES, BEGIN, before=write, stage_again=1)


def by_names():
    os.symlink(scratch("names.tier"), f"{scratch()}/link")
    os.mkdir(f"{scratch()}/link/to")  # the kernel has other names for the copies
    same_in_job("names", {name: (False, text) for name, text in NAMES.items()}, BEGIN + NAMED, f"{scratch()}/link/to")


def by_links():
    many = e2e.execute(["prlimit", f"--nofile={HINTS + 1000}", "true"])[0] == 0
    if not many:
        skip(*BEYOND, "no process may have so many descriptors")
    same_in_job("links", {**LINKS, **(BEYOND if many else {})}, BEGIN + LINKED)


@e2e.unless(lambda: e2e.execute(["busybox", "true"])[0] != 0 and "no busybox")
def by_started_programs():
    return same_in_job("started", {name: (True, STARTED + text) for name, text in STARTS.items()}, BEGIN + LINKED)


def given_to_others():
    same_in_job("given", {name: (True, text) for name, text in GIVEN.items()}, BEGIN + OUTSIDE, watch_directories=0)


def gone():
    """A copy's file that is not to be had any more is not written, and neither is what has its name."""
    root = f"{scratch()}/gone.data"
    make(root)
    job = e2e.Job(options([root], {"t": (scratch("gone.tier"), "1G")}))
    job.run(e2e.read_all(root))
    text = "os.rename(other, f)\nfor flags in 1, 1 | os.O_TRUNC: attempt(lambda: os.open(link, flags))\n" \
           "for act in (lambda: os.truncate(link, 2)), (lambda: os.chmod(link, 0)), (lambda: os.fchmod(s, 0)): attempt(act)\n" \
           "print(os.pread(s, 9, 0) == open(f, 'rb').read(9), file()[1:])"
    got = job.run([PYTHON, "-c", BEGIN + LINKED + text, root])
    equal(got[:2], (0, b"116\n" * 5 + b"True (%d, '0o100644', 1)\n" % len(FILE)), "what has the name of a file that is gone stays as it is", got)
    job.end()


SQLITE = """
r = sqlite3.connect(f'file:{root}/w.db?mode=ro', uri=True, isolation_level=None, timeout=2)
def q():
    try: return r.execute('select count(*), sum(a), max(length(b)) from t').fetchall()
    except Exception as e: return type(e).__name__ + ': ' + str(e)
print('first', q())
w = subprocess.Popen([sys.executable, '-u', '-c', '''
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=5)
for line in sys.stdin:
    try: c.execute(line.strip()); print('done', flush=True)
    except Exception as e: print('ERR', e, flush=True)
''', root + '/w.db'], stdin=-1, stdout=-1, text=True)
def W(s): w.stdin.write(s + '\\n'); w.stdin.flush(); return w.stdout.readline().strip()
print(W('begin immediate'), W("update t set b=b||'zz'"), W('insert into t values(100000,"n")'))
print('during', q())
print(W('commit'), 'after commit', q())
print(W('pragma wal_checkpoint(truncate)'), 'after checkpoint', q())
print(W("insert into t select a+1, b from t"), 'after 2nd', q())
print('integrity', r.execute('pragma integrity_check').fetchall()[:2])
w.stdin.close(); w.wait()
print(q())
c = sqlite3.connect(root + '/w.db'); c.execute('insert into t values(5, 5)'); c.commit(); print(q()); c.close(); print(q())
"""
LMDB = """
r = lmdb.open(root + '/x', readonly=True)
print(r.begin().stat()['entries'])
subprocess.run([sys.executable, '-c', "import lmdb, sys; e = lmdb.open(sys.argv[1], map_size=1 << 24)\\nwith e.begin(write=True) as t: t.put(b'new', b'v')", root + '/x'])
print(r.begin().stat()['entries'], r.begin().get(b'new'), r.begin().get(b'5') is not None)
"""


def databases():
    """Readers that stay open while the job writes."""
    for name, module, make, text in (
            ("SQLite, rollback journal", "sqlite3", "c = sqlite3.connect(root + '/w.db')", SQLITE),
            ("SQLite, WAL", "sqlite3", "c = sqlite3.connect(root + '/w.db'); c.execute('pragma journal_mode=wal')", SQLITE),
            ("LMDB", "lmdb", "e = lmdb.open(root + '/x', map_size=1 << 24)\n"
                             "with e.begin(write=True) as t:\n  for i in range(1000): t.put(b'%d' % i, b'v' * 500)", LMDB)):
        if e2e.execute([PYTHON, "-c", f"import {module}"])[0] != 0:
            skip(name, f"no {module}")
            continue
        roots = [f"{scratch()}/{name.replace(' ', '_')}.{how}" for how in ("native", "job")]
        if module == "sqlite3":
            make += "\nc.execute('create table t(a, b)')\n" \
                    "for i in range(3000): c.execute('insert into t values(?, ?)', (i, '0' * 50))\nc.commit(); c.close()"
        command = [PYTHON, "-c", f"import {module}" + BEGIN + make]
        for root in roots:
            os.makedirs(root)
            equal(e2e.execute([*command, root])[0], 0, f"{name}: made")
        job = e2e.Job(options([roots[1]], {"t": (scratch("tier"), "1G")}))
        job.run(e2e.read_all(roots[1]))
        command = [PYTHON, "-c", f"import {module}" + BEGIN + text]
        equal(job.run([*command, roots[1]]), e2e.execute([*command, roots[0]]), f"{name}: as natively")
        ok(job.end()["tasks"]["returned"] > 0, f"{name}: the reader's descriptor went back to the PFS")
        shutil.rmtree(roots[1])


e2e.main(by_calls, staged_again, by_names, by_links, by_started_programs, given_to_others, gone, databases)
