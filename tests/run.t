#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`monarchctl run`: exit codes, refusals, the report, who dies when, and a failing PFS."""

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import BUILD, contains, equal, memory, monarch_run, ok, options, read_all, scratch, skip, wait_until

FILES = 40


def tree(name, files=FILES, **more):
    """A dataset of its own: its path, its bytes and what read_all prints of it natively."""
    path = scratch(name)
    size = e2e.make_tree(path, files, **more)
    return path, size, e2e.execute(read_all(path))[:2]


def shared_dataset():
    path = f"{scratch()}/dataset"
    return path if os.path.isdir(path) else tree("dataset")[0]


def usual(name):
    """Options for the shared dataset and a tier of its own, and that tier's path."""
    tier = scratch(f"tier.{name}")
    return options([shared_dataset()], {"t": (tier, "1G")}), tier


# ---- the command line


def exit_codes():
    words, tier = usual("codes")
    plain = scratch("codes") + "/plain"
    with open(plain, "w", encoding="utf-8"):
        pass
    for want, what, command in [
        (0, "a command that succeeds", ["true"]),
        (7, "a command that fails", ["sh", "-c", "exit 7"]),
        (137, "a command that SIGKILL ends", ["sh", "-c", "kill -KILL $$"]),
        (143, "a command that SIGTERM ends", ["sh", "-c", "kill -TERM $$"]),
        (126, "a file that is no program", [plain]),
        (126, "a directory", [scratch()]),
        (127, "no such command", ["no-such-command"]),
        (127, "no such file", ["/no/such/command"]),
    ]:
        code, _, err = monarch_run(words, command, env=e2e.environment(PATH="/usr/bin:/bin"))
        equal(code, want, f"exit code {want}: {what}", err)
        if code in (126, 127):
            remedy = "give the path of a program, or the name of one in $PATH" if code == 127 else "name a program, or make it executable (chmod +x)"
            if os.path.isdir(command[0]):
                remedy = "it is a directory: give --dataset before each dataset's directory, and the command after --"
            ok(err.startswith(f"monarchctl run: {command[0]}: ") and err.endswith(f"; {remedy}\n"), f"exit code {want}: {what}: the message names it, and tells what to do", err)
    equal(os.listdir(tier), [], "the tier is empty afterwards")


def help_and_version():
    code, out, _ = e2e.execute([f"{BUILD}/monarchctl", "version"])
    ok(code == 0 and out.startswith(b"monarchctl ") and out.endswith(b"\n"), "version", out)
    equal(e2e.execute([f"{BUILD}/monarchctl", "--version"])[:2], (code, out), "--version prints the same")
    code, out, err = e2e.execute([f"{BUILD}/monarchctl", "--help"])
    equal((code, err), (0, ""), "--help")
    contains(out.decode(), ["run", "version"], "--help names the subcommands")
    code, out, err = e2e.execute([f"{BUILD}/monarchctl", "run", "--help"])
    equal((code, err), (0, ""), "run --help")
    contains(out.decode(), ["--dataset", "--tier", "NAME:PATH:SIZE", "--config", "--report", "126", "127"],
             "run --help tells options and exit codes")
    contains(" ".join(out.decode().split()), ["Where the agent cannot start, the command runs without Monarch.",
                                              "125 if an option or the configuration is wrong, or the report cannot be written,"], "and what becomes of the command")
    equal(e2e.execute([f"{BUILD}/monarchctl", "frobnicate"])[0], 2, "exit code 2: no such subcommand")
    equal(e2e.execute([f"{BUILD}/monarchctl"])[0], 2, "exit code 2: no subcommand")


def refused(name, words, parts, before=(), command=("echo", "ran")):
    code, out, err = monarch_run(words, command, before=before)
    ok(code == 125 and out == b"" and err.startswith("monarchctl run: ") and err.count("\n") == 1,
       f"refused in one line: {name}", f"exit code {code}", out, err)
    contains(err, parts, f"the message tells: {name}")


def without_agent():
    """Limits under which no agent starts: the command runs all the same, and nothing is left."""
    dataset, tier = shared_dataset(), scratch("limited.tier")
    for limit in "-f 100", "-v 100000":
        words = ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", f"{BUILD}/monarchctl", "run", *options([dataset], {"t": (tier, "1G")})]
        code, out, err = e2e.execute([*words, "--", "sh", "-c", "echo ran $MONARCH_IO_RUN_DIR; exit 3"])
        if e2e.SANITIZER and limit.startswith("-v"):
            skip(f"ulimit {limit}", "a sanitizer needs more")
            continue
        equal((code, out), (3, b"ran\n"), f"ulimit {limit}: the command runs", err)
        contains(err, ["monarchctl run: ", "; the command runs without Monarch"], f"ulimit {limit}: the message tells")
        equal(os.listdir(tier), [], f"ulimit {limit}: nothing is left")


def refusals():
    dataset = shared_dataset()
    base = scratch("refusals")
    tier = scratch("refusals/tier")
    tiers = {"t": (tier, "1G")}
    plain = f"{base}/plain"
    with open(plain, "w", encoding="utf-8"):
        pass
    inside = scratch("refusals/tier/inside")
    below = scratch("dataset/below")
    for link, target in ("to-inside", inside), ("to-below", below), ("to-dataset", dataset):
        os.symlink(target, f"{base}/{link}")
    none = f"{base}/none"
    none_inside = "lies inside the"
    for name, words, parts in [
        ("no dataset", ["--tier", f"t:{tier}:1G"], ["--dataset"]),
        ("an unknown option", [*options([dataset], tiers), "--frobnicate"], ["--frobnicate"]),
        ("a missing dataset", options([none], tiers), ["dataset", none, "No such file", "name its directory"]),
        ("one of two datasets missing", options([dataset, none], tiers), ["dataset", none, "No such file"]),
        ("a dataset that is a file", options([plain], tiers), ["dataset", plain, "not a directory"]),
        ("an empty dataset path", options([""], tiers), ["dataset", "empty", "; name its directory"]),
        ("/ as the dataset", options(["/"], tiers), ["dataset /"]),
        ("a dataset in a tier", options([inside], tiers), [inside, none_inside, "tier t", tier]),
        ("a dataset that is a tier", options([tier], tiers), [tier, none_inside, "tier t"]),
        ("a dataset in a tier by a symlink", options([f"{base}/to-inside"], tiers),
         [f"{base}/to-inside", none_inside, "tier t"]),
        ("a tier in the dataset", options([dataset], {"t": (below, "1G")}), ["tier t", below, none_inside, dataset]),
        ("a tier in the dataset by a symlink", options([dataset], {"t": (f"{base}/to-below", "1G")}),
         ["tier t", "to-below", none_inside, dataset]),
        ("a tier in a dataset that a symlink names", options([f"{base}/to-dataset"], {"t": (below, "1G")}),
         ["tier t", below, none_inside, "to-dataset"]),
        ("a missing tier", options([dataset], {"t": (none, "1G")}), ["tier t", none, "No such file", "make it"]),
        ("datasets as sbatch takes them", options([f"{dataset}:{dataset}"], tiers), ["No such file", "give --dataset for each directory"]),
        ("a tier that is a file", options([dataset], {"t": (plain, "1G")}), ["tier t", plain, "not a directory; name one"]),
        ("a tier without a size", ["--dataset", dataset, "--tier", f"t{tier}"], [f"t{tier}", "NAME:PATH:SIZE"]),
        ("a bad size", options([dataset], {"t": (tier, "10X")}), ["tier", tier, "10X", "size"]),
        ("an empty size", options([dataset], {"t": (tier, "")}), ["tier", tier, "size"]),
        ("a negative size", options([dataset], {"t": (tier, "-1G")}), ["tier", tier, "-1G", "size"]),
        ("a share above 100%", options([dataset], {"t": (tier, "101%")}), ["tier", tier, "101%", "; write for example 50%"]),
        ("a bad tier name", options([dataset], {"a b": (tier, "1G")}), ["a b", "the name may hold letters, digits, - and _, at most 31; name it for example ssd"]),
        ("a tier given twice", [*options([dataset], tiers), "--tier", f"t:{base}:1G"], ["tier 't' is given twice; give each a name of its own"]),
        ("a report that cannot be written", [*options([dataset], tiers), "--report", f"{none}/r"],
         ["--report", f"{none}/r", "No such file", "name a file that you can write"]),
        ("a missing config", [*options([dataset], tiers), "--config", none], [none, "No such file", "; name another one, or leave out --config"]),
        ("17 datasets", options([scratch(f"refusals/many/{n}") for n in range(17)], tiers), ["more than 16 datasets; name a directory that holds several"]),
    ]:
        refused(name, words, parts)
    nodes, key, open_key = f"{base}/nodes", f"{base}/key", f"{base}/open_key"
    for file, text, mode in (nodes, b"127.0.0.1:7000\n[::1]:7001\n", 0o644), (key, b"k" * 32, 0o600), (open_key, b"k" * 32, 0o640):
        with open(file, "wb") as out:
            out.write(text)
        os.chmod(file, mode)
    for name, words, parts in [
        ("peers without an index", ["--peers", nodes, "--peer-key", key], ["--peer-index"]),
        ("peers without a key", ["--peers", nodes, "--peer-index", "0"], ["--peer-key"]),
        ("an index without peers", ["--peer-index", "0"], ["--peers"]),
        ("a key without peers", ["--peer-key", key], ["--peers"]),
        ("a missing file of peers", ["--peers", none, "--peer-index", "0", "--peer-key", key], ["--peers", none, "No such file"]),
        ("a line that is no peer", ["--peers", key, "--peer-index", "0", "--peer-key", key], [f"--peers {key}:1: ", "ADDRESS:PORT"]),
        ("an index that is too large", ["--peers", nodes, "--peer-index", "2", "--peer-key", key], ["--peer-index 2", "has 2 nodes"]),
        ("an index that is none", ["--peers", nodes, "--peer-index", "-1", "--peer-key", key], ["--peer-index"]),
        ("a missing key", ["--peers", nodes, "--peer-index", "0", "--peer-key", none], ["--peer-key", none, "No such file"]),
        ("a key that others can read", ["--peers", nodes, "--peer-index", "0", "--peer-key", open_key], [open_key, "chmod 600"]),
        ("a key that is too long", ["--peers", nodes, "--peer-index", "0", "--peer-key", plain], ["--peer-key", plain]),
    ]:
        refused(name, [*options([dataset], tiers), *words], parts)
    for name, text, parts in [
        ("an unknown key", "[agent]\nthreads = 2\nthread = 3\n", [":3: ", "'thread'"]),
        ("an unknown section", "[agents]\nthreads = 2\n", [":1: ", "[agents]"]),
        ("an unknown tier key", f"[tier.a]\npath = {tier}\nquota = 1G\nsize = 1G\n", [":4: ", "'size'", "[tier.a]"]),
        ("a bad value", "# comment\n[agent]\nthreads = many\n", [":3: ", "'many'"]),
        ("a bad quota", f"[tier.a]\npath = {tier}\nquota = lots\n", [":3: ", "'lots'"]),
        ("a tier without a path", "[agent]\nthreads = 2\n[tier.a]\nquota = 1G\n", [":3: ", "[tier.a]", "path"]),
        ("a line that is nothing", "[agent]\nthreads\n", [":2: "]),
    ]:
        file = f"{base}/{name.replace(' ', '-')}.conf"
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
        refused(f"{name} in the config", [*options([dataset], tiers), "--config", file], [file + parts[0], *parts[1:]])
    os.chmod(file, 0o666)
    refused("a config that others can write", [*options([dataset], tiers), "--config", file], [file, "chmod go-w"])
    equal(os.listdir(tier), ["inside"], "nothing is left of what was refused")
    os.rmdir(below)


def peers():
    """The agent is told of its peers, and gets the key by a pipe."""
    dataset, base = shared_dataset(), scratch("peers")
    nodes, key, secret = f"{base}/nodes", f"{base}/key", bytes(range(200, 232))
    with open(nodes, "w", encoding="utf-8") as out:
        out.write("127.0.0.1:7000\n127.0.0.1:7001\n")
    with open(key, "wb") as out:
        out.write(secret)
    os.chmod(key, 0o600)
    words = [*options([dataset], {"t": (scratch("peers/tier"), "1G")}), "--peers", nodes, "--peer-index", "1", "--peer-key", key]
    code, out, err = monarch_run(words, ["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null; cat /proc/self/environ"])
    equal((code, err), (0, ""), "peers: the agent starts, and the command runs")
    told = "\0".join(["--peers", nodes, "--peer-index", "1", "--peer-identity", "run", "--peer-key-fd", ""]).encode()
    equal((out.count(told), out.count(secret)), (1, 0), "peers: the agent is told of them, by a pipe of the key")


@functools.cache
def incomplete():
    """A tree whose libmonarch_peers.so is no library."""
    parts = scratch("incomplete")
    for name in ("monarchctl", "monarchd"):
        shutil.copy(f"{BUILD}/{name}", parts)
    os.symlink(f"{BUILD}/libmonarch_preload.so", f"{parts}/libmonarch_preload.so")
    with open(f"{parts}/libmonarch_peers.so", "w", encoding="utf-8") as out:
        out.write("none\n" * 1000)
    return parts


class Incomplete(e2e.Job):
    """One of that tree."""

    def __init__(self, words):
        self.program = f"{incomplete()}/monarchctl"
        super().__init__(words)


def peers_library():
    """What peers need is loaded for those who have some, from where Monarch is; who cannot load it goes on alone."""
    dataset, size, native = tree("helped")
    base = scratch("helpers")
    nodes, key = f"{base}/nodes", f"{base}/key"
    with contextlib.ExitStack() as ports, open(nodes, "w", encoding="utf-8") as out:
        for _ in range(2):
            taken = ports.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            out.write(f"127.0.0.1:{taken.getsockname()[1]}\n")
    with open(key, "wb") as out:
        out.write(bytes(range(32)))
    os.chmod(key, 0o600)

    def alone(name):
        return options([dataset], {"t": (scratch(f"tier.{name}"), "1G")})

    def helped(name, index):
        return [*alone(name), "--peers", nodes, "--peer-index", str(index), "--peer-key", key]

    def loaded(job):
        with open(f"/proc/{job.agent()}/maps", encoding="utf-8") as maps:
            text = maps.read()
        return [name for name in ("/libmonarch_peers.so", "/libssl.so", "/libcrypto.so", "/libevent") if name in text]

    job = e2e.Job(alone("alone"))
    equal(loaded(job), [], "no peers: nothing is loaded for them")
    job.end()
    jobs = [e2e.Job(helped(f"helped{index}", index)) for index in range(2)]
    equal([len(loaded(job)) for job in jobs], [4, 4], "peers: what they need is loaded")
    for job in jobs:
        equal(job.run(read_all(dataset))[:2], native, "peers: the bytes are right")
    reports = [job.end()["agent"] for job in jobs]
    ok(sum(report["peer_files"] for report in reports) > 0, "peers: they get files from each other", reports)
    job = Incomplete(helped("incomplete", 0))
    equal(job.run(read_all(dataset))[:2], native, "no library for peers: the bytes are right")
    with open(f"{job.run_dir}/monarchd.log", encoding="utf-8") as log:
        contains([line for line in log if "no peers" in line][0], [f"load {incomplete()}/libmonarch_peers.so: "],
                 "no library for peers: the log says so")
    equal(job.end()["agent"]["staged_bytes"], size, "no library for peers: what is read is staged as on one node")
    job = Incomplete(helped("idle", 0))
    time.sleep(1)
    equal(job.end()["agent"]["staged_files"], 0, "no library for peers: nothing else is, as each node would read all of it")
    code, _, err = e2e.execute([job.program, "run", *helped("told", 0), "--", "true"])
    ok(code == 0 and err.startswith("monarchctl run: this node gets no files from the job's other nodes: load ") and err.count("\n") == 1,
       "no library for peers: the user is told once", code, err)


LIST = "give yourself the right to list it (chmod), or ask its owner"


def ordinary_user():
    dataset = shared_dataset()
    tier = scratch("tier.nobody")
    before = []
    if os.geteuid() == 0:
        before = e2e.NOBODY
        if why := e2e.why_not_nobody():
            return skip("refusals for an ordinary user", why)
        refused("a tier that the user cannot write", options([dataset], {"t": (tier, "1G")}),
                [f"tier t ({tier}): you cannot write to it: Permission denied; name a directory that you can write to"], before)
        os.chown(tier, 65534, 65534)
    closed = scratch("closed")
    os.chmod(closed, 0)
    tiers = {"t": (tier, "1G")}
    refused("a dataset that the user cannot list", options([closed], tiers), [f"dataset {closed}: you cannot list it: Permission denied; {LIST}"], before)
    refused("a dataset that the user cannot reach", options([f"{closed}/x"], tiers),
            [f"dataset {closed}/x: Permission denied; {LIST}"], before)
    code, out, err = monarch_run(options([dataset], tiers), read_all(dataset), before=before)
    equal((code, out), e2e.execute(read_all(dataset))[:2], "an ordinary user's run reads the right bytes", err)
    return equal(os.listdir(tier), [], "and leaves nothing")


def group_directory():
    """A tier's directory that hands its group down gives the run's that bit, too."""
    words, tier = usual("group")
    os.chmod(tier, 0o2700)
    equal(monarch_run(words, ["true"])[::2], (0, ""), "a run on a tier whose directory hands its group down")
    equal(os.listdir(tier), [], "leaves nothing")


def changed_modes():
    """A command gives the run's directory on a tier another mode."""
    words, tier = usual("modes")
    equal(monarch_run(words, ["sh", "-c", f"cat {shared_dataset()}/0000.bin >{os.devnull}; chmod -R 755 {tier}"])[::2], (0, ""), "a command that changes modes on the tier")
    equal(os.listdir(tier), [], "nothing is left")


# Makes a directory of each run's name in the tier as soon as the run directory is seen.
SQUATS = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
libc.inotify_add_watch(watch, b"/dev/shm", 0x100)
print("up", flush=True)
while True:
    events = os.read(watch, 65536)
    while events:
        end = 16 + struct.unpack_from("=iIII", events)[3]
        name, events = events[16:end].rstrip(bytes(1)), events[end:]
        if name.startswith(b"monarch-run.65534."):
            try:
                os.mkdir(os.path.join(sys.argv[1].encode(), name))
            except FileExistsError:
                pass
"""


def squatter():
    """Another user has a directory in the place of a run's, where all can make some, as soon as the run's name is seen."""
    if os.geteuid() != 0:
        return skip("another user squats", "needs root")
    if why := e2e.why_not_nobody():
        return skip("another user squats", why)
    words, tier = usual("squatter")
    os.chmod(tier, 0o1777)
    squats = e2e.start(["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", "/usr/bin/python3", "-c", SQUATS, tier], stdout=subprocess.PIPE)
    equal(squats.stdout.readline(), b"up\n", "another user waits for runs to begin")
    runs = [monarch_run(words, ["true"], before=e2e.NOBODY)[::2] for _ in range(5)]
    e2e.end(squats)
    equal(runs, [(0, "")] * 5, "each has Monarch all the same")
    return equal([name for name in os.listdir(tier) if os.stat(f"{tier}/{name}").st_uid == 65534], [], "and leaves nothing of its own")


def user_environment():
    words, _ = usual("environment")
    own = "libm.so.6"
    env = e2e.environment()
    env["LD_PRELOAD"] = f"{e2e.SANITIZER}:{own}" if e2e.SANITIZER else own
    code, out, err = monarch_run(words, ["sh", "-c", 'echo "$LD_PRELOAD"; grep -c libm.so /proc/self/maps'], env=env)
    preload, count = out.decode().splitlines()
    equal((code, preload), (0, f"{env['LD_PRELOAD']}:{os.path.realpath(BUILD)}/libmonarch_preload.so"),
          "the user's LD_PRELOAD stays, ours comes last", err)
    ok(int(count) > 0, "and the user's library is loaded")


# ---- the report


def check_report(name, report, files, size):
    """What holds for any run that read each of `files` once and placed them all."""
    agent, tasks = report["agent"], report["tasks"]
    equal(report["opens"], report["opens_tier"] + tasks["opens_pfs"], f"{name}: opens = tier + PFS")
    equal(report["opens_tier"], sum(t["opens"] for t in report["tiers"]), f"{name}: tier opens are the tiers' sum")
    equal((agent["staged_files"], agent["staged_bytes"], agent["dataset_bytes"]), (files, size, size),
          f"{name}: staged and dataset are all")
    equal(sum(t["placed_bytes"] for t in report["tiers"]), size, f"{name}: placed bytes")
    equal(agent["demand_files"] + agent["prefetch_files"], files, f"{name}: demand + prefetch = staged")
    equal((agent["walk_files"], agent["agent_opens_pfs"], agent["agent_bytes_pfs"]), (files, files, size),
          f"{name}: the agent walked, opened and read each file once")
    equal(sum(v for k, v in tasks.items() if k.startswith("fallback_")), tasks["opens_pfs"],
          f"{name}: each open on the PFS has a reason")


def report():
    if why := e2e.why_no_slowfs():
        return skip("the report", why)
    source, size, native = tree("report.src")
    pfs = e2e.SlowFs(source, f"{scratch()}/report.pfs", "--open-us", "200")
    want = native[1].replace(source.encode(), pfs.mount.encode())
    twice = ["sh", "-c", 'cd "$1" && find . -type f -exec cat {} + -exec cat {} +', "sh"]
    for kind, tier in ("disk", scratch("tier.report")), ("tmpfs", memory("tier.report")):
        if tier is None:
            skip("the report, tmpfs", "no /dev/shm")
            continue
        pfs.command("reset")
        words = options([pfs.mount], {"t": (tier, "1G")})
        code, out, err, counters = monarch_run(words, read_all(pfs.mount), report=True)
        equal((code, out), (0, want), f"{kind}: the bytes are right", err)
        seen = pfs.counters()
        check_report(kind, counters, FILES, size)
        equal((counters["opens"], counters["opens_tier"], counters["hit"]), (FILES, FILES, 1),
              f"{kind}: each open is one of the tier")
        equal((seen["open"], seen["read_bytes"]), (FILES, size), f"{kind}: the PFS counted one open and read per file")
        equal(os.listdir(tier), [], f"{kind}: the tier is empty afterwards")
    pfs.command("reset")
    config = f"{scratch()}/no-prefetch.conf"
    with open(config, "w", encoding="utf-8") as out:
        out.write("[agent]\nprefetch = off\n")
    half = f"{pfs.mount}/a"
    code, _, err, counters = monarch_run([*options([pfs.mount], {"t": (tier, "1G")}), "--config", config],
                                         [*twice, half], report=True)
    files = sum(len(names) for _, _, names in os.walk(f"{source}/a"))
    seen = pfs.counters()
    equal((code, counters["agent"]["staged_files"], counters["agent"]["demand_files"], counters["opens_tier"]),
          (0, files, files, 2 * files), "without prefetch only what is opened is staged, once", err)
    equal((seen["open"], seen["read_bytes"]), (files, counters["agent"]["staged_bytes"]),
          "and the PFS counted the same")
    code, _, err, counters = monarch_run(words, read_all(pfs.mount), report=True,
                                         env=e2e.environment(MONARCH_IO_DISABLE="1"))
    equal((code, counters["opens"], counters["hit"]), (0, 0, 0), "MONARCH_IO_DISABLE=1: nothing is redirected", err)
    # Once the job has written the file, the tier serves it no more.
    name = next(f"{d}/{names[0]}" for d, _, names in os.walk(pfs.mount) if names)
    code, _, err, counters = monarch_run(words, ["sh", "-c", 'cat "$1" >/dev/null; : >>"$1"; cat "$1" "$1" "$1" >/dev/null',
                                                 "sh", name], report=True)
    equal((code, counters["opens"], counters["opens_tier"], counters["hit"]), (0, 4, 1, 0.25),
          "one open of four is one of the tier", err)
    return pfs.close()


# What opens of the files that a job is given take; in C, fopen is another function.
OPENS = """
import ctypes, os, sys
def opened(path, times=1):
    for _ in range(times):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            print(error.errno)
def streamed(path):
    fopen = ctypes.CDLL(None).fopen
    fopen.restype = ctypes.c_void_p
    if not fopen(os.fsencode(path), b"r"):
        sys.exit("fopen")
"""


def open_times():
    """How long opens took, by what became of them. One processor runs them all, so that which ones are timed is known."""
    if why := e2e.why_no_slowfs():
        return skip("how long opens took", why)
    source, _, _ = tree("times.src", 192)
    pfs = e2e.SlowFs(source, f"{scratch()}/times.pfs", "--open-us", "3000")
    files = sorted(f"{d}/{name}" for d, _, names in os.walk(pfs.mount) for name in names if name != ".slowfs")
    config = f"{scratch()}/times.conf"
    with open(config, "w", encoding="utf-8") as out:
        out.write("[agent]\nprefetch = off\n")
    job = e2e.Job([*options([pfs.mount], {"t": (scratch("tier.times"), "1G")}), "--config", config])

    def program(text, **more):
        return e2e.execute(["taskset", "-c", str(min(os.sched_getaffinity(0))), "/usr/bin/python3", "-c", f"{OPENS}\nfiles = {files!r}\n{text}"],
                           env={**job.env, **more})

    directory = os.path.dirname(files[0])
    results = [program(f"opened({directory!r})\nfor f in files: opened(f)")]
    results += [program("for f in files: opened(f, 3)")]
    results += [program(f"opened({directory!r}, 2)\nstreamed(files[0])")]
    results += [program(f"for f in files: opened(f)\nstreamed(files[0])\nopened({pfs.mount + '/none'!r})", MONARCH_IO_EXCLUDE="*")]
    equal([(code, out) for code, out, _ in results], [(0, b"")] * 3 + [(0, b"2\n")], "programs that open files", *(err for _, _, err in results))
    report = job.end()
    n, tasks, times = len(files), report["tasks"], report["open_times"]
    equal((report["opens_tier"], tasks["opens_pfs"], tasks["waits"] - n in (0, 1)), (4 * n + 1, n + 2, True), "what they opened", report)
    equal({kind: sum(buckets.values()) for kind, buckets in times.items()},
          {"tier": sum(1 for opens in range(n, 4 * n + 1) if opens % 64 == 0), "waited": tasks["waits"], "pfs": tasks["opens_pfs"]},
          "of the tier's opens one of 64 is timed, of the others all; a directory is no file", times)
    slow = {kind: sum(count for bound, count in times[kind].items() if bound == "more" or float(bound) > 3000) for kind in ("waited", "pfs")}
    ok(slow["waited"] >= n and slow["pfs"] >= n + 1, "an open on the PFS, and one that waits for what is copied from there, takes as long as the PFS", times)
    return pfs.close()


# ---- paths


def paths():
    one, _, _ = tree("paths/one", 6)
    two, _, _ = tree("paths/two", 4)
    os.symlink(one, f"{scratch('paths')}/link")
    link = f"{scratch('paths')}/link"
    tier = scratch("tier.paths")
    file = "c/d2/0002.bin"
    below, name = os.path.split(file)
    top = below.split("/", maxsplit=1)[0]

    def reads(what, datasets, command, opens, cwd=scratch("paths")):
        native = e2e.execute(command, cwd=cwd)
        code, out, err, counters = monarch_run(options(datasets, {"t": (tier, "1G")}), command, report=True, cwd=cwd)
        equal((code, out), native[:2], f"{what}: the bytes are right", err)
        equal((counters["opens_tier"], counters["tasks"]["opens_pfs"]), (opens, 0), f"{what}: from the tier")

    reads("two datasets", [one, two], read_all(one, two), 10)
    reads("nested datasets", [one, f"{one}/{top}"], read_all(one), 6)
    reads("nested datasets, the inner first", [f"{one}/{top}", one], read_all(one), 6)
    reads("the same dataset twice", [one, one], read_all(one), 6)
    reads("a dataset by a symlink, read by it", [link], read_all(f"{link}/"), 6)
    reads("a dataset by a symlink, read by its real path", [link], read_all(one), 6)
    reads("a relative dataset", ["one"], read_all(one), 6)
    reads("an unclean dataset", [f"{scratch('paths')}//./one/"], read_all(one), 6)
    unclean = scratch('paths')
    for spelled in (f"{one}//{file}", f"{one}/./{file}", f"{unclean}//one/{file}", f"{unclean}/.//./one/{file}",
                    f"/{one}/{below}/.//./{name}", f"one/{file}", f"./one/{file}", f"link/{file}", f"{link}/{file}"):
        reads(f"cat {spelled.replace(scratch(), '')}", [link], ["cat", spelled], 1)
    reads("relative in the dataset", [one], ["cat", name], 1, cwd=f"{one}/{below}")
    reads("relative after chdir", [one], ["sh", "-c", f"cd one/{below} && cat {name} ./{name}"], 2)
    # Resolved by the PFS, because ".." after a symlink is not text: right bytes, whoever serves them.
    native = e2e.execute(["cat", f"{one}/{below}/../../{file}"])
    equal(monarch_run(options([one], {"t": (tier, "1G")}), ["cat", f"{one}/{below}/../../{file}"])[:2], native[:2],
          "a path with ..: the bytes are right")


# ---- signals and deaths


def started(words, script, **more):
    """A run of a shell script that is to print "up" first."""
    process = e2e.start([f"{BUILD}/monarchctl", "run", *words, "--", "sh", "-c", script], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=e2e.environment(), **more)
    line = process.stdout.readline()
    if line != b"up\n":
        raise RuntimeError(f"{line!r} {e2e.finish(process)}")
    return process


def ends(process, want, name, tier, seconds=e2e.PATIENCE):
    code, _, err = e2e.finish(process, seconds)
    equal(code, want, name, err)
    ok(wait_until(lambda: not e2e.traces(process.pid, tier), 5), f"{name}: nothing is left",
       e2e.traces(process.pid, tier))


def signals():
    words, tier = usual("signals")
    stay = "echo up; while :; do sleep 0.02; done"
    for number, script, want, name in [
        (signal.SIGTERM, "echo up; exec sleep 60", 143, "SIGTERM ends the command"),
        (signal.SIGTERM, f"trap 'exit 9' TERM; {stay}", 9, "a command that handles SIGTERM"),
        (signal.SIGHUP, f"trap 'exit 10' HUP; {stay}", 10, "a command that handles SIGHUP"),
        (signal.SIGUSR1, f"trap 'exit 11' USR1; {stay}", 11, "a command that handles SIGUSR1"),
        (signal.SIGUSR2, f"trap 'exit 12' USR2; {stay}", 12, "a command that handles SIGUSR2"),
    ]:
        process = started(words, script)
        process.send_signal(number)
        ends(process, want, name, tier)
    process = started(words, "echo up; exec sleep 60")
    os.killpg(process.pid, signal.SIGINT)
    ends(process, 130, "Ctrl-C ends the command", tier)
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    deaf = monarch_run(words, ["sh", "-c", "exit 5"], before=["/usr/bin/python3", "-c", ignore])
    equal(deaf[0], 5, "a caller that ignores SIGCHLD", deaf[2])
    process = started(words, f"trap 'exit 13' INT; {stay}")
    os.killpg(process.pid, signal.SIGINT)
    ends(process, 13, "a command that handles Ctrl-C", tier)
    process = started(words, "echo up; exec sleep 60")
    wait_until(lambda: e2e.children(process.pid, "sleep"))  # "up" comes before the exec
    os.kill(e2e.children(process.pid, "sleep")[0], signal.SIGKILL)
    ends(process, 137, "the command killed", tier)


def monarchctl_killed():
    dataset, _, native = tree("killed.ctl")
    tier = scratch("tier.killed.ctl")
    words = options([dataset], {"t": (tier, "1G")})
    first = f"{dataset}/0000.bin"
    process = started(words, f'exec 3<{first}; echo up; read -r _; cat <&3 | md5sum; ' +
                      " ".join(f"'{word}'" for word in read_all(dataset)))
    with open(first, "rb") as stream:
        whole = e2e.execute(["md5sum"], stdin=stream)[1]
    os.kill(process.pid, signal.SIGKILL)
    ok(wait_until(lambda: not e2e.traces(process.pid, tier), 5),
       "monarchctl killed: agent, run directory and copies are gone within 5 s", e2e.traces(process.pid, tier))
    out, err = process.communicate(b"\n", timeout=e2e.PATIENCE)
    equal(out, whole + native[1], "monarchctl killed: the command reads on, and right", err.decode())


def monarchd_slow_to_end():
    """A stopped one stands for one that has more to remove than it can in the time it gets."""
    dataset, _, _ = tree("slow.end")
    tier = scratch("tier.slow.end")
    process = started(options([dataset], {"t": (tier, "1G")}), f"cat '{dataset}/0000.bin' >/dev/null; echo up; read -r _; exit 3")
    os.kill(e2e.children(process.pid, "monarchd")[0], signal.SIGSTOP)
    out, err = process.communicate(b"\n", timeout=e2e.PATIENCE)
    equal((process.returncode, out), (3, b""), "an agent slow to end: the command's exit status", err)
    contains(err.decode(), ["needs more than 5 s to end"], "an agent slow to end: the user is told")
    ok(b"ended by signal" not in err, "an agent slow to end: that it was ended is no failure", err)
    equal(e2e.traces(process.pid, tier), [], "an agent slow to end: nothing is left")


def monarchd_killed():
    if why := e2e.why_no_slowfs():
        return skip("monarchd killed", why)
    source, size, native = tree("killed.agent.src", 120)
    pfs = e2e.SlowFs(source, f"{scratch()}/killed.agent.pfs", "--open-us", "500000")  # seconds in which to kill
    tier = scratch("tier.killed.agent")
    want = native[1].replace(source.encode(), pfs.mount.encode())
    words = options([pfs.mount], {"t": (tier, "1G")})
    file = f"{scratch()}/killed.json"
    process = e2e.start([f"{BUILD}/monarchctl", "run", *words, "--report", file, "--", *read_all(pfs.mount)],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=e2e.environment())
    wait_until(lambda: pfs.counters()["open"] >= 30)
    os.kill(e2e.children(process.pid, "monarchd")[0], signal.SIGKILL)
    pfs.command("set open-us 0")
    code, out, err = e2e.finish(process)
    equal((code, out), (0, want), "monarchd killed in mid-epoch: the output is right", err)
    contains(err, ["the agent was ended by signal 9"], "monarchd killed in mid-epoch: the user is told")
    equal(e2e.traces(process.pid, tier), [], "monarchd killed in mid-epoch: nothing is left")
    with open(file, encoding="utf-8") as stream:
        counters = e2e.json.load(stream)
    ok(counters["opens"] == 120 and 0 < counters["opens_tier"] < 120
       and counters["tasks"]["fallback_no_agent"] == counters["tasks"]["opens_pfs"]
       and counters["agent"]["staged_bytes"] < size,
       "monarchd killed in mid-epoch: what was placed stayed in use, the rest was the PFS's", counters)

    # An open that waits for a file whose staging hangs.
    pfs.command("set open-us 0", "set hang-killable 1", "set fault-limit 1", "set hang forever", "set match 0000.bin")
    job = e2e.Job(options([pfs.mount], {"t": (tier, "1G")}))
    ok(wait_until(lambda: pfs.counters()["hanging"] == 1), "staging hangs")
    reader = e2e.start(["cat", f"{pfs.mount}/0000.bin"], env=job.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.2)
    ok(reader.poll() is None, "an open waits for it")
    os.kill(job.agent(), signal.SIGKILL)
    code, out, _ = e2e.finish(reader)
    with open(f"{source}/0000.bin", "rb") as stream:
        equal((code, out), (0, stream.read()), "an open that waited when monarchd was killed: right bytes")
    counters = job.end()
    equal(counters["tasks"]["fallback_no_agent"], 1, "and it is counted")
    equal(e2e.traces(job.pid, tier), [], "nothing is left")
    return pfs.close()


def swept():
    """Both killed: the next run of the user sweeps what is older than 10 s and has no owner."""
    words, tier = usual("swept")
    live = e2e.Job(words)
    dead = e2e.Job(words)
    os.kill(dead.agent(), signal.SIGKILL)
    dead.kill()
    begin = time.monotonic()
    e2e.wait_until(lambda: len(e2e.traces(dead.pid, tier)) == 2)  # the agent has ended
    left = e2e.traces(dead.pid, tier)
    equal(len(left), 2, "both killed: run directory and copies are left", left)
    monarch_run(words, ["true"])
    equal(e2e.traces(dead.pid, tier), left, "a run at once leaves young directories alone")
    yield
    time.sleep(max(0.0, begin + 11.5 - time.monotonic()))
    equal(monarch_run(words, ["true"])[0], 0, "a run 10 s later")
    equal(e2e.traces(dead.pid, tier), [], "sweeps them")
    equal(len(e2e.traces(live.pid, tier)), 3, "but not those of a run that lives")
    path = f"{shared_dataset()}/0000.bin"
    with open(path, "rb") as stream:
        equal(live.run(["cat", path])[:2], (0, stream.read()), "which serves on")
    equal(live.end()["opens_tier"], 1, "from its tier")
    equal(os.listdir(tier), [], "the tier is empty in the end")


def side_by_side():
    dataset, size, native = tree("beside")
    tier = scratch("tier.beside")
    words = options([dataset], {"t": (tier, "1G")})
    jobs = [e2e.Job(words), e2e.Job(words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    readers = [e2e.start(read_all(dataset), env=job.env, **pipes) for job in jobs]
    equal([e2e.finish(reader)[:2] for reader in readers], [native, native], "two runs on one tier: right bytes")
    equal(len(os.listdir(tier)), 2, "each has a directory of its own")
    check_report("the first of two", jobs[0].end(), FILES, size)
    equal(jobs[1].run(read_all(dataset))[:2], native, "the end of one leaves the other alone")
    equal(jobs[1].end()["opens_tier"], 2 * FILES, "which is served by its tier")


# ---- tiers


def used(path):
    """Bytes of disk or memory below a directory."""
    return 512 * sum(os.lstat(f"{d}/{n}").st_blocks for d, _, names in os.walk(path) for n in names)


def quotas():
    dataset, size, native = tree("quotas", 60)
    for kind, tier in ("disk", scratch("tier.quota")), ("tmpfs", memory("tier.quota")):
        if tier is None:
            skip("quotas, tmpfs", "no /dev/shm")
            continue
        quota = size // 2
        job = e2e.Job(options([dataset], {"t": (tier, quota)}))
        equal([job.run(read_all(dataset))[:2] for _ in range(2)], [native, native],
              f"{kind}: a quota of half the dataset: right bytes")
        ok(0 < used(tier) <= quota, f"{kind}: the quota holds", f"{used(tier)} of {quota}")
        counters = job.end()
        placed = counters["tiers"][0]["placed_bytes"]
        ok(quota * 0.6 < placed <= quota, f"{kind}: it is used", f"{placed} of {quota}")
        ok(counters["agent"]["staged_files"] < 60 and counters["agent"]["no_fit_files"] > 0
           and counters["opens_tier"] >= 2 * counters["agent"]["demand_files"]
           and counters["tasks"]["fallback_no_fit"] == counters["tasks"]["opens_pfs"] > 0,
           f"{kind}: some files are on the tier, the others on the PFS", counters)
    tier = scratch("tier.quota")
    code, out, err, counters = monarch_run(options([dataset], {"t": (tier, 1)}), read_all(dataset), report=True)
    equal((code, out), native, "quota for no file: right bytes", err)
    equal((counters["agent"]["staged_files"], counters["opens_tier"], counters["tasks"]["opens_pfs"]), (0, 0, 60),
          "quota for no file: all from the PFS")
    second = scratch("tier.quota2")
    code, out, err, counters = monarch_run(options([dataset], {"fast": (tier, size // 4), "slow": (second, "1G")}),
                                           read_all(dataset), report=True)
    equal((code, out), native, "two tiers: right bytes", err)
    check_report("two tiers", counters, 60, size)
    ok(size // 8 < counters["tiers"][0]["placed_bytes"] <= size // 4 and counters["opens_tier"] == 60,
       "two tiers: the first is filled first", counters["tiers"])
    equal([counters["tiers"][i]["name"] for i in range(2)], ["fast", "slow"], "two tiers: by name")


# ---- a failing PFS


def failing_pfs():
    if why := e2e.why_no_slowfs():
        return skip("a failing PFS", why)
    source, _, native = tree("faults.src", 12)
    pfs = e2e.SlowFs(source, f"{scratch()}/faults.pfs", "--match", "0000.bin")
    want = native[1].replace(source.encode(), pfs.mount.encode())
    tier = scratch("tier.faults")
    words = options([pfs.mount], {"t": (tier, "1G")})
    bad = ["cat", f"{pfs.mount}/0000.bin"]
    for fault in ("eio-every", "eio-open-every", "estale-every", "estale-open-every"):
        pfs.command(f"set {fault} 1")
        broken = e2e.execute(bad)
        ok(broken[0] == 1, f"{fault} 1: natively the read fails", broken)
        equal(monarch_run(words, bad), broken, f"{fault} 1: the program sees what it sees natively")
        rest = monarch_run(words, read_all(f"{pfs.mount}/a", f"{pfs.mount}/b"))
        equal(rest[:2], e2e.execute(read_all(f"{pfs.mount}/a", f"{pfs.mount}/b"))[:2], f"{fault} 1: the rest is right")
        pfs.command(f"set {fault} 0")
    for fault in ("eio-every", "estale-every", "estale-open-every"):
        pfs.command("set fault-limit 1", f"set {fault} 1")
        code, out, err = monarch_run(words, read_all(pfs.mount))
        equal((code, out), (0, want), f"{fault} for the agent only: the bytes are right", err)
        pfs.command(f"set {fault} 0", "set fault-limit 0")
    pfs.command("set match", "set short-every 2")
    code, out, err = monarch_run(words, read_all(pfs.mount))
    equal((code, out), (0, want), "short reads: the bytes are right", err)
    pfs.command("set short-every 0")
    return pfs.close()


def hanging_pfs():
    if why := e2e.why_no_slowfs():
        return skip("a hanging PFS", why)
    source, _, native = tree("hang.src", 12)
    pfs = e2e.SlowFs(source, f"{scratch()}/hang.pfs", "--match", "0000.bin", "--fault-limit", "1", "--hang", "forever")
    want = native[1].replace(source.encode(), pfs.mount.encode())
    tier = scratch("tier.hang")
    process = e2e.start([f"{BUILD}/monarchctl", "run", *options([pfs.mount], {"t": (tier, "1G")}), "--",
                         *read_all(pfs.mount)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=e2e.environment())
    code, out, err = e2e.finish(process, 15)
    equal((code, out), (0, want), "the agent hangs in the PFS: the command reads the right bytes and ends", err)
    equal(pfs.counters()["hanging"], 1, "while the agent hangs")
    equal([t for t in e2e.traces(process.pid, tier) if "/" in t], [], "no directory is left")
    pfs.command("release")
    ok(wait_until(lambda: not e2e.traces(process.pid, tier)), "and no agent once the PFS answers")
    return pfs.close()


def before_the_epoch():
    """Here, because GlusterFS gives such times as 0 now and then."""
    dataset, _, _ = tree("old", 4)
    os.utime(f"{dataset}/0000.bin", ns=(-10**17 - 1, -10**18 - 123456789))
    job = e2e.Job(options([dataset], {"t": (scratch("tier.old"), "1G")}))
    script = "import os, sys; print(os.fstat(os.open(sys.argv[1], os.O_RDONLY)).st_mtime_ns, os.fstat(0).st_mtime_ns)"
    with open(f"{dataset}/0000.bin", "rb") as stream:
        equal(job.run(["/usr/bin/python3", "-c", script, f"{dataset}/0000.bin"], stdin=stream)[:2],
              (0, b"%d %d\n" % ((-10**18 - 123456789,) * 2)), "a time before the epoch")
    equal(job.end()["opens_tier"], 1, "a time before the epoch: from the tier")


def first_opens():
    """Threads that open their first files at the same time: none of these opens goes to the PFS."""
    threads, rounds = 16, 8
    path, _, _ = tree("first", threads)
    command = [f"{BUILD}/bench/io_reader", path, "--threads", str(threads), "--epochs", "1"]
    seen = set()
    for _ in range(rounds):
        code, _, err, report = monarch_run(options([path], {"t": (scratch("tier.first"), "1G")}), command, report=True)
        seen.add((code, report["opens_tier"], report["agent"]["agent_opens_pfs"]))
    equal(seen, {(0, threads, threads)}, "the first opens of many threads are all served from the tier", err)


def slow_pfs():
    """Files that take longer than a second each, from the very first: the opens wait for them."""
    if why := e2e.why_no_slowfs():
        return skip("a slow PFS", why)
    source, files, size = scratch("slow.source"), 3, 8 << 20
    for i in range(files):
        with open(f"{source}/{i}", "wb") as out:
            out.write(bytes([i]) * size)
    pfs = e2e.SlowFs(source, scratch() + "/slow.pfs", "--bw-mib", "8")
    try:
        before = pfs.counters()["read_bytes"]
        words = options([pfs.mount], {"t": (scratch("tier.slow"), "1G")})
        code, _, err, report = monarch_run(words, [f"{BUILD}/bench/io_reader", pfs.mount, "--threads", str(files),
                                                   "--epochs", "1"], report=True)
        equal((code, report["opens_tier"], report["tasks"]["fallback_timeout"]), (0, files, 0),
              "a slow PFS: the opens wait for what is being copied", err)
        equal(pfs.counters()["read_bytes"] - before, files * size, "and each byte is read once")
    finally:
        pfs.close()


def written_by_the_job():
    dataset, _, _ = tree("written", 8)
    tier = scratch("tier.written")
    job = e2e.Job(options([dataset], {"t": (tier, "1G")}))
    native = e2e.execute(read_all(dataset))[:2]
    equal(job.run(read_all(dataset))[:2], native, "before: the bytes are right")
    names = [line.split("  ", 1)[1] for line in native[1].decode().splitlines()]
    for name, how, script in zip(names, ("truncated", "appended to", "opened r+", "opened O_RDWR"), (
            "open(f, 'w').write('new')", "open(f, 'a').write('more')", "open(f, 'r+').write('NEW')",
            "os.write(os.open(f, os.O_RDWR), b'N')")):
        code, _, err = job.run(["/usr/bin/python3", "-c", f"import os, sys; f = sys.argv[1]; {script}", name])
        with open(name, "rb") as stream:
            equal((code, *job.run(["cat", name])[:2]), (0, 0, stream.read()),
                  f"a file {how}: others see the new bytes", err)
    job.run(["sh", "-c", 'echo shell > "$1"; echo new > "$2"', "sh", names[4], f"{dataset}/fresh"])
    equal(job.run(["cat", names[4], f"{dataset}/fresh"])[1], b"shell\nnew\n", "files that a shell wrote")
    equal(job.run(read_all(dataset))[:2], e2e.execute(read_all(dataset))[:2], "after: all bytes are right")
    counters = job.end()
    equal((counters["tasks"]["invalidations"], counters["tasks"]["fallback_invalid"]), (6, 12), "and it is counted")


e2e.main(swept, exit_codes, help_and_version, refusals, without_agent, peers, peers_library, ordinary_user, group_directory, changed_modes, squatter, user_environment, report, open_times, paths, signals,
         monarchctl_killed, monarchd_slow_to_end, monarchd_killed, side_by_side, quotas, failing_pfs, hanging_pfs, before_the_epoch, first_opens,
         slow_pfs, written_by_the_job)
