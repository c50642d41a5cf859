#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Names of files: whatever way a program writes one, it gets the file that it would get natively; and the ways
that tell which file it is without opening it on the PFS get the tier's copy."""

import os
import shutil

import e2e
from e2e import PYTHON, equal, ok, options, scratch, skip


# Opens each of the names on stdin (NUL-separated), relative to what the first lines prepare.
PROBE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
root = os.fsencode(sys.argv[1])
def show(name, dir_fd=None):
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=dir_fd)
        try: print(os.pread(fd, 100, 0), os.fstat(fd).st_ino)
        except OSError as e: print("read", e.errno)
        os.close(fd)
    except (OSError, ValueError) as e: print("open", getattr(e, "errno", "value"))
"""


class Tree:
    """A dataset with one file, whose bytes tell its path, per kind of name."""

    def __init__(self):
        self.root = f"{scratch()}/data"
        for path in ("f", "sub/f", "sub/deep/f", "real/f", "real/inner/f", "held/f", "odd/ space ", "odd/new\nline", "odd/..x",
                     "odd/...", "odd/-n", "odd/caf\u00e9", "odd/back\\slash", "odd/*", "odd/" + "x" * 255, "odd/\udcff\udc80\x01"):
            self.write(path)
        long = "/".join("d" * 200 for _ in range(18))
        os.makedirs(f"{self.root}/short")
        here = os.getcwd()  # deeper than one path may be long
        os.chdir(f"{self.root}/short")
        for part in long.split("/"):
            os.mkdir(part)
            os.chdir(part)
        e2e.write("f", "the long one")
        os.chdir(here)
        self.long = f"{self.root}/short/{long}/f"
        os.symlink("f", f"{self.root}/to-f")
        os.symlink("real", f"{self.root}/to-real")
        os.symlink("../sub/f", f"{self.root}/real/up")
        os.symlink("real/inner", f"{self.root}/inner")
        os.symlink("loop", f"{self.root}/loop")
        os.symlink(self.root, f"{scratch()}/alias")
        self.write("f", f"{scratch()}/outside")  # what a wrong reading of ".." would find
        self.write("x", f"{scratch()}")

    def write(self, path, root=None):
        root = root or self.root
        e2e.write(f"{root}/{path}", f"{root[-7:]} {path}")


_tree = _job = None


def tree():
    global _tree, _job
    if _tree is None:
        _tree = Tree()
        _job = e2e.Job(options([_tree.root], {"t": (scratch("tier"), "1G")}))
        _job.run(e2e.read_all(_tree.root))
    return _tree, _job


def both(name, text, tier=None, job=None, root=None):
    """Runs a probe natively and in the job; `tier`: how many of its opens are the tier's."""
    t, usual = tree()
    job = job or usual
    log = f"{scratch()}/log"
    e2e.write(log, b"")
    command = [PYTHON, "-c", PROBE + text, root or t.root, scratch()]
    native = e2e.execute(command)
    got = e2e.execute(command, env={**job.env, b"MONARCH_IO_LOG": os.fsencode(log)})
    equal(got[:2], native[:2], f"{name}: as natively", got[2], native[2])
    if tier is not None:
        lines = e2e.text_in(log).splitlines()
        equal(sum(line.endswith(": tier t") for line in lines), tier, f"{name}: from the tier", lines)
    return native[1].decode(errors="replace")


def absolute():
    both("plain", "show(root + b'/f'); show(root + b'/sub/deep/f')", 2)
    both("a slash at the end", "for n in (b'/f/', b'/f/.', b'/sub/f//', b'/sub/', b'', b'/', b'/.'): show(root + n)", 0)
    both("odd names", "for n in sorted(os.listdir(root + b'/odd')): show(root + b'/odd/' + n)", 10)
    both("what is not there", "for n in (b'/g', b'/f/g', b'/sub/g', b'/sub/f/../f', b'/' + b'y' * 256, b'x'): show(root + n)", 0)
    both("almost the root", "show(root + b'2/f'); show(root[:-1] + b'/f')", 0)
    both("no name", "print(libc.open(None, 0), ctypes.get_errno()); print(libc.openat(-100, None, 0), ctypes.get_errno());"
         "print(libc.open(ctypes.c_void_p(1), 0), ctypes.get_errno()); show(b'')", 0)


def page_ends():
    """A name that ends with its page, where nothing is mapped behind it."""
    both("a name that ends with its page", """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
pages = libc.mmap(None, 8192, 3, 0x22, -1, 0)
libc.mprotect(pages + 4096, 4096, 0)
file = root + b'/f'
for name in [file[:n] for n in range(1, len(file) + 1)] + [b'/' * n + file for n in range(1, 9)] + [b'/dev/shm/' + b'.' * n for n in range(9)]:
    at = pages + 4096 - len(name) - 1
    ctypes.memmove(at, name + b'\\0', len(name) + 1)
    fd = libc.open(ctypes.c_void_p(at), 0)
    print(fd >= 0 or ctypes.get_errno(), os.path.isfile(name) and os.read(fd, 100))
    if fd >= 0: os.close(fd)
""", 9)


def long_names():
    t, _ = tree()
    equal(both("4096 bytes", f"""
show(os.fsencode({t.long!r}))
for n in (4093, 4094, 4095, 4096, 4097, 5000, 9000): show(root + b'/' * (n - len(root) - 1) + b'f')
for n in (4095, 4096): show(b'/.' * ((n - len(root) - 2) // 2) + b'/' * ((n - len(root)) % 2) + root + b'/f')
for n in (4095, 4096):
    os.chdir(root)
    show(b'./' * ((n - 1) // 2) + b'f' * (n - (n - 1) // 2 * 2))
""").count("open 36"), 6, "and some are too long")

def parents():
    both("..", "for n in (b'/sub/../f', b'/../data/f', b'/to-real/../f', b'/to-real/../sub/f', b'/inner/../f', b'/real/../x',"
         "b'/../x', b'/real/inner/../../f', b'/..//outside/f', b'/to-real/inner/../up'): show(root + n)", 7)
    both("symbolic links inside", "for n in (b'/to-f', b'/to-real/f', b'/to-real/inner/f', b'/real/up', b'/inner/f', b'/loop',"
         "b'/loop/f', b'/to-f/', b'/to-real/'): show(root + n)", 5)
    both("a link outside that leads elsewhere from one open to the next", """
link = os.fsencode(sys.argv[2]) + b'/turns'
for to in (root, root + b'/real', root + b'/../outside', root, b'nowhere', root + b'/sub/f'):
    os.symlink(to, link); show(link + b'/f'); show(link); os.unlink(link)
""", 3)
    both("symbolic links that are not to be followed", """
for n in (b'/to-f', b'/to-real/f', b'/real/up', b'/f'):
    try: print(os.read(os.open(root + n, os.O_RDONLY | os.O_NOFOLLOW), 100))
    except OSError as e: print(e.errno)
""", 1)


NAMED = """
import subprocess
libc.realpath.restype = libc.canonicalize_file_name.restype = ctypes.c_char_p
fd = os.open(root + b'/held/f', os.O_RDONLY)
other = os.open(root + b'/sub', os.O_RDONLY)
os.dup2(fd, 0)
def ask(name):
    name, out = os.fsencode(name), ctypes.create_string_buffer(5000)
    for size in 5000, 7, 0: print(libc.readlink(name, out, size), out.value[:size], end=' ')
    for size in 5000, 7: print(libc.readlinkat(other, name, out, size), out.value[:size], end=' ')
    print(libc.__readlink_chk(name, out, 4999, 5000), libc.__readlinkat_chk(-100, name, out, 4999, 5000), end=' ')
    print(libc.realpath(name, None), libc.realpath(name, out), libc.__realpath_chk(name, out, 5000) and out.value, libc.canonicalize_file_name(name))
for n in f'/proc/self/fd/{fd}', f'/proc/{os.getpid()}/fd/{fd}', f'/dev/fd/{fd}', '/dev/stdin', '/proc/self/fd/0', f'/proc/self/fd/{other}':
    ask(n)
    print(os.path.realpath(n), os.path.samefile(n, os.path.realpath(n)))
for n in '/proc/self/fd/999', f'/proc/1/fd/{fd}', '/proc/self/fd/03', '', root, '/proc/self/fd/0/x', f'/proc//fd/{fd}', '/proc/self/exe': ask(n)
for command in ('readlink', '/dev/fd/0'), ('readlink', '-f', '/dev/stdin'), ('realpath', '/proc/self/fd/0'):
    print(subprocess.run(command, stdin=fd, stdout=subprocess.PIPE).stdout)
"""


def links_to_descriptors():
    both("names of a descriptor", NAMED, 1)


def relative():
    both("after chdir", "for d in (b'', b'/sub', b'/sub/deep', b'/real/inner'):\n os.chdir(root + d)\n for n in (b'f', b'./f', b'.//f'):"
         " show(n)", 12)
    both("after chdir by a symbolic link", "os.chdir(root + b'/to-real'); show(b'f'); show(b'inner/f'); show(b'../f')", 3)
    both("from above", "os.chdir(root + b'/..'); show(b'data/f'); show(b'./data//sub/./f'); show(b'data2/f'); show(b'alias/f');"
         "os.chdir('/'); show(root[1:] + b'/f')", 4)
    both("openat", "r = os.open(root, os.O_RDONLY); s = os.open(root + b'/sub', os.O_PATH); u = os.open(root + b'/..', 0);"
         "a = os.open(root + b'/to-real', 0)\n"
         "for d, n in ((r, b'f'), (r, b'sub/f'), (s, b'f'), (s, b'./deep/f'), (u, b'data/f'), (a, b'f'), (u, root + b'/f'),"
         "(9, root + b'/f')): show(n, d)", 8)
    both("a directory that is gone", "d = os.path.join(os.fsencode(sys.argv[2]), b'gone'); os.mkdir(d); os.chdir(d); os.rmdir(d);"
         "show(b'f'); show(b'../data/f'); show(b'../x'); show(b'.')", 1)


def other_roots():
    """A dataset given by a symbolic link, and by a bind mount."""
    t, _ = tree()
    job = e2e.Job(options([f"{scratch()}/alias"], {"t": (scratch("tier.alias"), "1G")}))
    text = "for n in (b'/f', b'/sub/f'): show(root + n); show(os.path.realpath(root) + n)\nos.chdir(root); show(b'f')"
    both("given by a symbolic link", text, 5, job, root=f"{scratch()}/alias")
    both("the real path of one given by a symbolic link", text, 5, job)
    job.end()
    both("a symbolic link that was not given", "show(root + b'/f'); show(root + b'/../alias/f'); os.chdir(root); show(b'f')", 3,
         root=f"{scratch()}/alias")
    other = scratch("bound")
    if os.geteuid() != 0 or e2e.execute(["mount", "--bind", t.root, other])[0] != 0:
        return skip("a bind mount", "cannot mount")
    try:
        job = e2e.Job(options([other], {"t": (scratch("tier.bound"), "1G")}))
        both("given by a bind mount", text, 5, job, root=other)
        both("the other mount of one given by a bind mount", "show(root + b'/f')", 0, job)
        job.end()
        both("a bind mount that was not given", text, 0, root=other)
    finally:
        e2e.execute(["umount", other])
    return None


CHROOT = """
show(root + b'/f')
new = os.fsencode(sys.argv[2]) + b'/newroot'
inside, outside = os.open(root, 0), os.open('/', 0)
os.chroot(new)
show(root + b'/f')
show(b'f', inside)
show(root[1:] + b'/f', outside)
os.chdir('/')
show(root[1:] + b'/f')
os.fchdir(inside)
show(b'f')
show(b'sub/f')
"""


@e2e.unless(e2e.why_not_root)
def namespaces():
    t, job = tree()
    t.write("f", f"{scratch()}/newroot/{t.root}")
    e2e.write(f"{scratch()}/newroot/{t.root}/f", "in the new root")
    text = both("chroot", CHROOT, 1)
    ok(text.count("in the new root") == 2, "chroot: it is seen", text)
    # A program in another root, where neither the library nor the run directory is.
    new, cat = f"{scratch()}/newroot", shutil.which("busybox")
    if not cat or e2e.SANITIZER:
        return skip("a program in another root", "no busybox, or a sanitizer that is not there")
    shutil.copy(cat, f"{new}/busybox")
    for command in (["chroot", new, "/busybox", "cat", f"{t.root}/f"],
                    ["env", "-i", "/usr/sbin/chroot", new, "/busybox", "cat", f"{t.root}/f"]):
        equal(job.run(command), e2e.execute(command), "a program in another root: as natively, and no message")
    private = ["unshare", "-m", "sh", "-c", f"mount --bind {scratch()}/outside {t.root} && exec cat {t.root}/f"]
    return equal(job.run(private), (0, b"outside f", ""), "a program in a mount namespace of its own")


BY_DIRECTORY = """
d = os.open(root + b'/up/in', os.O_PATH)
show(b'f', d)
os.rename(root + b'/up', root + b'/gone')
os.makedirs(root + b'/up/in')
open(root + b'/up/in/f', 'w').write('another')
show(b'f', d)
show(b'f', os.open(root + b'/up/in', os.O_PATH))
"""


def by_directory():
    """openat(2), by the descriptor of a directory that was used before, while one above is renamed."""
    roots, log = [f"{scratch()}/by/{how}" for how in ("native", "job")], f"{scratch()}/log.by"
    for root in roots:
        e2e.write(f"{root}/up/in/f", "in")
    command = [PYTHON, "-c", PROBE.replace(", os.fstat(fd).st_ino", "") + BY_DIRECTORY]
    job = e2e.Job(options([roots[1]], {"t": (scratch("tier.by"), "1G")}, *e2e.config(watch_directories=0)))
    job.run(e2e.read_all(roots[1]))
    native, got = e2e.execute([*command, roots[0]]), e2e.execute([*command, roots[1]],
                                                                 env={**job.env, b"MONARCH_IO_LOG": os.fsencode(log)})
    job.end()
    equal(got, native, "a directory above is renamed: as natively")
    equal((native[0], e2e.text_in(log).count(": tier t\n")), (0, 1), "a directory above is renamed: from the tier before")


def mounted_below():
    """What was mounted below the dataset before the job is the PFS's, and a dataset's if it is named."""
    data, tier = scratch("mounted"), scratch("tier.mounted")
    beside = os.path.dirname(e2e.write(f"{scratch('beside')}/f", b"bind"))
    for name in "bind", "tmpfs":
        os.makedirs(f"{data}/{name}")
    before = ["unshare", "-m", "sh", "-ec", 'mount --bind "$2" "$1/bind"; mount -t tmpfs none "$1/tmpfs"; echo tmpfs >"$1/tmpfs/f"; shift 2; exec "$@"', "sh", data, beside]
    if e2e.execute([*before, "true"])[0] != 0:
        return skip("mounts below a dataset", "mounting needs root")
    files = [f"{data}/{name}/f" for name in ("bind", "tmpfs")]
    log = f"{scratch()}/log.mounted"
    for named, became in ([data], "PFS, fallback_pass"), ([data, f"{data}/bind", f"{data}/tmpfs"], "tier t"):
        e2e.write(log, b"")
        job = e2e.Job(options(named, {"t": (tier, "1G")}), before)
        if named == [data]:
            told = f"{job.run_dir}/monarchd.log"
            ok(e2e.wait_until(lambda told=told: e2e.text_in(told).count("is a mount") == 2), "mounts below a dataset: the agent's log names them")
        for _ in range(2):
            got = e2e.execute(["nsenter", "-m", "-t", str(job.pid), "cat", *files], env={**job.env, b"MONARCH_IO_LOG": log.encode()})
            equal(got[:2], (0, b"bindtmpfs\n"), f"mounts below a dataset, {len(named)} named: the bytes", got)
        lines = [line.split("] ")[1] for line in e2e.text_in(log).splitlines()]
        equal(lines, [f"{file}: {became}" for file in files] * 2, "and their opens")
        tasks = job.end()["tasks"]
        equal(sum(n for name, n in tasks.items() if name.startswith("fallback_")), tasks["opens_pfs"], "each of them in one counter", tasks)
    return None


e2e.main(absolute, page_ends, long_names, parents, links_to_descriptors, relative, other_roots, namespaces, by_directory, mounted_below)
