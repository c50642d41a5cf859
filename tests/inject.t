#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""An error in any one system call of a program, its own or the library's: it ends by itself, shows no wrong byte, and
the job reads what it wrote."""

import concurrent.futures
import os
import shutil

import e2e
from e2e import equal, ok, options, scratch

ALL = bool(os.environ.get("MONARCH_TEST_ALL"))
FILES = 12
CALLS = {"statx": "EIO", "newfstatat": "EIO", "openat": "EMFILE", "readlink": "EIO", "readlinkat": "EIO", "fcntl": "EINVAL",
         "lseek": "EIO", "mmap": "ENOMEM", "getdents64": "EIO", "read": "EIO", "pread64": "EIO", "close": "EIO",
         "getcwd": "ENOENT", "getgroups": "EPERM"}
# Without pipes: strace makes no call that fails, and who reads from one that was not closed waits.
READERS = {
    "md5sum": 'md5sum "$@"',
    "md5sum, other names": 'cd "${1%/*}" && md5sum ../data/0 ./1 link',
    "cat": 'cat "$@"',
    "cp": 'for f; do cp "$f" "$OUT" && cat "$OUT" || exit; done',
    "tail": 'tail -qn 1 "$@"',
    "find": 'find "${1%/*}" -type f -printf "%f %s %m %n %T@\\n" >"$OUT"; sort "$OUT"',
}
# They change $1; $2 is another file that they may take.
WRITERS = {
    "append": 'echo new >>"$1"',
    "empty": 'echo new >"$1"',
    "dd": 'printf XXX >"$OUT"; dd if="$OUT" of="$1" bs=1 seek=2 conv=notrunc status=none',
    "mv": 'mv "$2" "$1"',
    "truncate": 'truncate -s 3 "$1"',
    "by a link": 'exec 3<"$1"; echo new >/dev/fd/3',
    "chmod, touch": 'chmod 600 "$1"; touch -d @77 "$1"',
}


def make(root, name, files):
    for i in range(files):
        e2e.write(f"{root}/{name}/{i}", "".join(f"{name} {i} line {n}\n" for n in range(20 + i)))
        os.utime(f"{root}/{name}/{i}", (1.5e9, 1.5e9))


def injected(number, call, error, when, command, env):
    """Exit code, output and whether the call came to pass, with its `when`-th one in each process failing."""
    log = f"{scratch('log')}/{number}"
    words = ["timeout", "-k", "5", "60", "strace", "-f", "-qq", "-o", log, "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"]
    code, out, err = e2e.execute([*words, *command], env={**env, b"OUT": os.fsencode(f"{log}.out")})
    happened = "INJECTED" in e2e.text_in(log)
    for path in log, f"{log}.out":
        if os.path.exists(path):
            os.unlink(path)
    return code, out, err, happened


LOADERS = "error while loading shared libraries", "cannot allocate TLS data structures"


def ended_badly(code, call, when, err):
    """By a signal, or by the time limit. The loader's first map is the loader's own."""
    return (code < 0 and (call, when) != ("mmap", 1)) or (code >= 124 and not any(text in err for text in LOADERS))


def times():
    """Which calls fail: each, or one of eight."""
    return range(1, 200) if ALL else range(2, 60, 8)


def of_each_call(test):
    """Calls test(call, error, when) as long as it says that there is such a call."""
    def one(call):
        for when in times():
            if not test(call, CALLS[call], when):
                return
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in pool.map(one, CALLS):
            pass


def readers():
    root, bad, runs = scratch("readers"), [], [0]
    make(root, "data", FILES)
    os.symlink("2", f"{root}/data/link")
    job = e2e.Job(options([f"{root}/data"], {"t": (scratch("readers.tier"), "1G")}))
    job.run(e2e.read_all(f"{root}/data"))
    for name, text in READERS.items():
        command = ["sh", "-c", text, "sh", *(f"{root}/data/{i}" for i in range(FILES))]
        native = e2e.execute(command, env={**e2e.native_environment(), b"OUT": os.fsencode(scratch("out") + "/f")})[1]
        lines = set(native.splitlines(True))

        def test(call, error, when):
            code, out, err, happened = injected(f"{name}.{call}", call, error, when, command, job.env)
            runs[0] += 1
            # A write of a part of a line is followed by an error.
            wrong = [line for line in out.splitlines(True) if line not in lines and line.endswith(b"\n")]
            if wrong or (code == 0 and not err and out != native) or ended_badly(code, call, when, err):
                bad.append((name, call, when, code, wrong[:2], err[-200:]))
            return happened
        of_each_call(test)
    equal(bad, [], f"readers: an error or the right bytes, in {runs[0]} runs")
    ok(runs[0] > 10 * len(READERS), "readers: there were calls that failed", runs)
    report = job.end()
    ok(report["opens_tier"] > runs[0], "readers: they were served by the tier", report)


def writers():
    root, bad, number = scratch("writers"), [], [0]
    most = len(WRITERS) * len(CALLS) * len(times())
    make(root, "data", most)
    make(root, "other", most)
    job = e2e.Job(options([f"{root}/data"], {"t": (scratch("writers.tier"), "1G")}))
    job.run(e2e.read_all(f"{root}/data"))
    done = []
    for name, text in WRITERS.items():
        def test(call, error, when):
            number[0] += 1
            mine = number[0] - 1
            command = ["sh", "-c", text, "sh", f"{root}/data/{mine}", f"{root}/other/{mine}"]
            code, _, err, happened = injected(f"{name}.{call}", call, error, when, command, job.env)
            done.append((name, call, when, mine))
            if ended_badly(code, call, when, err):
                bad.append((name, call, when, code, err[-200:]))
            return happened
        of_each_call(test)
    equal(bad, [], f"writers: each of {len(done)} ended by itself")
    command = ["sh", "-c", 'cd "$1" && md5sum * && stat -c "%n %s %Y %a" *', "sh", f"{root}/data"]
    native, got = e2e.execute(command)[1].splitlines(), job.run(command)[1].splitlines()
    wrong = {int(a.split()[1 if len(a.split()) == 2 else 0]) for a, b in zip(native, got) if a != b}
    equal((len(got), [entry for entry in done if entry[3] in wrong]), (len(native), []), "writers: the job reads what they wrote")
    report = job.end()
    ok(report["tasks"]["invalidations"] > len(done) / 3, "writers: they changed files", report["tasks"])


e2e.skip_all_if("strace under a sanitizer" if e2e.SANITIZER else "" if shutil.which("strace") else "no strace")
e2e.main(readers, writers)
