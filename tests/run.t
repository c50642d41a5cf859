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
    path, program = "give the path of a program, or the name of one in $PATH", "name a program, or make it executable (chmod +x)"
    for want, what, command, remedy in [
        (0, "a command that succeeds", ["true"], ""),
        (7, "a command that fails", ["sh", "-c", "exit 7"], ""),
        (137, "a command that SIGKILL ends", ["sh", "-c", "kill -KILL $$"], ""),
        (126, "a file that is no program", [plain], program),
        (126, "a directory", [scratch()], "it is a directory: give --dataset before each dataset's directory, and the command after --"),
        (127, "no such command", ["no-such-command"], path),
        (127, "no such file", ["/no/such/command"], path),
    ]:
        code, _, err = monarch_run(words, command, env=e2e.environment(PATH="/usr/bin:/bin"))
        equal(code, want, f"exit code {want}: {what}", err)
        if remedy:
            ok(err.startswith(f"monarchctl run: {command[0]}: ") and err.endswith(f"; {remedy}\n"), f"exit code {want}: {what}: the message names it, and tells what to do", err)
    equal(os.listdir(tier), [], "the tier is empty afterwards")


def refused(name, words, parts, before=(), command=("echo", "ran")):
    code, out, err = monarch_run(words, command, before=before)
    missing = [part for part in parts if part not in err]
    ok(code == 125 and out == b"" and err.startswith("monarchctl run: ") and err.count("\n") == 1 and not missing,
       f"refused in one line: {name}", f"exit code {code}", out, err, f"missing: {missing}")


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
    """One of each kind: the rules are config_test.cc's."""
    dataset = shared_dataset()
    base, tier, below = scratch("refusals"), scratch("refusals/tier"), scratch("dataset/below")
    tiers, none, plain, file = {"t": (tier, "1G")}, f"{base}/none", f"{base}/plain", f"{base}/bad.conf"
    nodes, key, open_key = f"{base}/nodes", f"{base}/key", f"{base}/open_key"
    for path, text, mode in (plain, b"", 0o644), (nodes, b"127.0.0.1:7000\n[::1]:7001\n", 0o644), (key, b"k" * 32, 0o600), (open_key, b"k" * 32, 0o640), \
                            (file, b"[agent]\nthread = 3\n", 0o666):
        with open(path, "wb") as out:
            out.write(text)
        os.chmod(path, mode)
    os.symlink(below, f"{base}/to-below")
    usual_words = options([dataset], tiers)
    for name, words, parts in [
        ("no dataset", ["--tier", f"t:{tier}:1G"], ["--dataset"]),
        ("an unknown option", [*usual_words, "--frobnicate"], ["--frobnicate"]),
        ("one of two datasets missing", options([dataset, none], tiers), ["dataset", none, "No such file", "name its directory"]),
        ("/ as the dataset", options(["/"], tiers), ["dataset /"]),
        ("a tier in the dataset by a symlink", options([dataset], {"t": (f"{base}/to-below", "1G")}),
         ["tier t", "to-below", "lies inside the", dataset]),
        ("a missing tier", options([dataset], {"t": (none, "1G")}), ["tier t", none, "No such file", "make it"]),
        ("datasets as sbatch takes them", options([f"{dataset}:{dataset}"], tiers), ["No such file", "give --dataset for each directory"]),
        ("a tier that is a file", options([dataset], {"t": (plain, "1G")}), ["tier t", plain, "not a directory; name one"]),
        ("a tier without a size", ["--dataset", dataset, "--tier", f"t{tier}"], [f"t{tier}", "NAME:PATH:SIZE"]),
        ("a share above 100%", options([dataset], {"t": (tier, "101%")}), ["tier", tier, "101%", "; write for example 50%"]),
        ("a tier given twice", [*usual_words, "--tier", f"t:{base}:1G"], ["tier 't' is given twice; give each a name of its own"]),
        ("a report that cannot be written", [*usual_words, "--report", f"{none}/r"], ["--report", f"{none}/r", "No such file", "name a file that you can write"]),
        ("a missing config", [*usual_words, "--config", none], [none, "No such file", "; name another one, or leave out --config"]),
        ("a config that others can write", [*usual_words, "--config", file], [file, "chmod go-w"]),
        ("peers without an index", [*usual_words, "--peers", nodes, "--peer-key", key], ["--peer-index"]),
        ("a key without peers", [*usual_words, "--peer-key", key], ["--peers"]),
        ("a line that is no peer", [*usual_words, "--peers", key, "--peer-index", "0", "--peer-key", key], [f"--peers {key}:1: ", "ADDRESS:PORT"]),
        ("an index that is too large", [*usual_words, "--peers", nodes, "--peer-index", "2", "--peer-key", key], ["--peer-index 2", "has 2 nodes"]),
        ("a key that others can read", [*usual_words, "--peers", nodes, "--peer-index", "0", "--peer-key", open_key], [open_key, "chmod 600"]),
        ("a key that is too short", [*usual_words, "--peers", nodes, "--peer-index", "0", "--peer-key", plain], ["--peer-key", plain]),
    ]:
        refused(name, words, parts)
    equal(os.listdir(tier), [], "nothing is left of what was refused")
    os.rmdir(below)


def text_of(path):
    with open(path, "rb") as file:
        return file.read()


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
    """What peers need is loaded for those who have some, from where Monarch is; the key is passed by a pipe."""
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
    shown = [text_of(f"/proc/{job.agent()}/{name}") for job in jobs for name in ("cmdline", "environ")]
    ok(not any(bytes(range(1, 32)) in text for text in shown), "peers: the key is in no command line nor environment", shown)
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
    return pfs.close()


# ---- paths


# ---- signals and deaths


def started(words, script, **more):
    """A run of a shell script that is to print "up" first."""
    process = e2e.start([f"{BUILD}/monarchctl", "run", *words, "--", "sh", "-c", script], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=e2e.environment(), **more)
    line = process.stdout.readline()
    if line != b"up\n":
        raise RuntimeError(f"{line!r} {e2e.finish(process)}")
    return process


def ends(process, want, name, tier):
    code, _, err = e2e.finish(process)
    equal(code, want, name, err)
    ok(wait_until(lambda: not e2e.traces(process.pid, tier)), f"{name}: nothing is left", e2e.traces(process.pid, tier))


def signals():
    words, tier = usual("signals")
    stay = "echo up; while :; do sleep 0.02; done"
    for number, script, want, name in [
        (signal.SIGTERM, "echo up; exec sleep 60", 143, "SIGTERM ends the command"),
        (signal.SIGTERM, f"trap 'exit 9' TERM; {stay}", 9, "a command that handles SIGTERM"),
        (signal.SIGHUP, f"trap 'exit 10' HUP; {stay}", 10, "a command that handles SIGHUP"),
        (signal.SIGUSR1, f"trap 'exit 11' USR1; {stay}", 11, "a command that handles SIGUSR1"),
        (signal.SIGINT, "echo up; exec sleep 60", 130, "Ctrl-C ends the command"),
        (signal.SIGINT, f"trap 'exit 13' INT; {stay}", 13, "a command that handles Ctrl-C"),
    ]:
        process = started(words, script)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        ends(process, want, name, tier)
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    deaf = monarch_run(words, ["sh", "-c", "exit 5"], before=["/usr/bin/python3", "-c", ignore])
    equal(deaf[0], 5, "a caller that ignores SIGCHLD", deaf[2])
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
    ok(wait_until(lambda: not e2e.traces(process.pid, tier)),
       "monarchctl killed: agent, run directory and copies are gone", e2e.traces(process.pid, tier))
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
    e2e.wait_until(lambda: len(e2e.traces(dead.pid, tier)) == 2)  # the agent has ended
    left = e2e.traces(dead.pid, tier)
    equal(len(left), 2, "both killed: run directory and copies are left", left)
    yield
    ok(wait_until(lambda: monarch_run(words, ["true"])[0] == 0 and not e2e.traces(dead.pid, tier)), "a run more than 10 s later sweeps them", e2e.traces(dead.pid, tier))
    equal(len(e2e.traces(live.pid, tier)), 3, "but not those of a run that lives")
    path = f"{shared_dataset()}/0000.bin"
    with open(path, "rb") as stream:
        equal(live.run(["cat", path])[:2], (0, stream.read()), "which serves on")
    equal(live.end()["opens_tier"], 1, "from its tier")
    equal(os.listdir(tier), [], "the tier is empty in the end")


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
    code, out, err = e2e.finish(process)
    equal((code, out), (0, want), "the agent hangs in the PFS: the command reads the right bytes and ends", err)
    equal(pfs.counters()["hanging"], 1, "while the agent hangs")
    equal([t for t in e2e.traces(process.pid, tier) if "/" in t], [], "no directory is left")
    pfs.command("release")
    ok(wait_until(lambda: not e2e.traces(process.pid, tier)), "and no agent once the PFS answers")
    return pfs.close()


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


e2e.main(swept, exit_codes, refusals, without_agent, peers_library, ordinary_user, squatter, user_environment, report,
         signals, monarchctl_killed, monarchd_slow_to_end, monarchd_killed, quotas, failing_pfs, hanging_pfs, written_by_the_job)
