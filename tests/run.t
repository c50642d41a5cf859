#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""`monarchctl run`: exit codes, refusals, the report, who dies when, and a PFS that hangs."""

import json
import os
import signal
import socket
import subprocess
import time

import e2e
from e2e import BUILD, contains, equal, memory, monarch_run, ok, options, read_all, scratch, wait_until

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
    e2e.write(plain, b"")
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
    tier = scratch("limited.tier")
    for limit in ["-f 100"] + ["-v 100000"] * (not e2e.SANITIZER):  # which needs more
        words = ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", f"{BUILD}/monarchctl", "run",
                 *options([shared_dataset()], {"t": (tier, "1G")})]
        # It runs until the agent, which is the other child, is gone.
        script = "until [ $(wc -w </proc/$PPID/task/$PPID/children) = 1 ]; do sleep 0.01; done; echo ran $MONARCH_IO_RUN_DIR; exit 3"
        code, out, err = e2e.execute([*words, "--", "sh", "-c", script])
        equal((code, out, os.listdir(tier)), (3, b"ran\n", []), f"ulimit {limit}: the command runs, and nothing is left", err)
        contains(err, ["monarchctl run: ", "; the command runs without Monarch"], f"ulimit {limit}: the message tells")
        ok("needs more" not in err, f"ulimit {limit}: nobody waits for an agent that has ended", err)


def refusals():
    """One of each kind: the rules are those of config_test.cc, and for peers of agent_parts_test.cc."""
    dataset = shared_dataset()
    base, tier, below = scratch("refusals"), scratch("refusals/tier"), scratch("dataset/below")
    tiers, none, plain, file = {"t": (tier, "1G")}, f"{base}/none", f"{base}/plain", f"{base}/bad.conf"
    e2e.write(plain, b"")
    e2e.write(file, b"[agent]\nthread = 3\n", 0o666)
    os.symlink(below, f"{base}/to-below")
    usual_words = options([dataset], tiers)
    for name, words, parts in [
        ("no dataset", ["--tier", f"t:{tier}:1G"], ["--dataset"]),
        ("one of two datasets missing", options([dataset, none], tiers), ["dataset", none, "No such file", "name its directory"]),
        ("a tier in the dataset by a symlink", options([dataset], {"t": (f"{base}/to-below", "1G")}),
         ["tier t", "to-below", "lies inside the", dataset]),
        ("a missing tier", options([dataset], {"t": (none, "1G")}), ["tier t", none, "No such file", "make it"]),
        ("datasets as sbatch takes them", options([f"{dataset}:{dataset}"], tiers), ["No such file", "give --dataset for each directory"]),
        ("a tier that is a file", options([dataset], {"t": (plain, "1G")}), ["tier t", plain, "not a directory; name one"]),
        ("a tier without a size", ["--dataset", dataset, "--tier", f"t{tier}"], [f"t{tier}", "NAME:PATH:SIZE"]),
        ("a share above 100%", options([dataset], {"t": (tier, "101%")}), ["tier", tier, "101%", "; write for example 50%"]),
        ("a report that cannot be written", [*usual_words, "--report", f"{none}/r"], ["--report", f"{none}/r", "No such file", "name a file that you can write"]),
        ("a config that others can write", [*usual_words, "--config", file], [file, "chmod go-w"]),
        ("peers without an index", [*usual_words, "--peers", plain, "--peer-key", plain], ["--peer-index"]),
    ]:
        refused(name, words, parts)
    equal(os.listdir(tier), [], "nothing is left of what was refused")
    os.rmdir(below)


def peers_library():
    """What peers need is loaded for those who have some, from where Monarch is. That they share files is peers.t's."""
    dataset, size, native = tree("helped")
    base, parts = scratch("helpers"), scratch("incomplete")
    nodes, key = f"{base}/nodes", f"{base}/key"
    with socket.socket() as taken, open(nodes, "w", encoding="utf-8") as out:
        taken.bind(("127.0.0.1", 0))
        out.write(f"127.0.0.1:{taken.getsockname()[1]}\n127.0.0.1:1\n")
    e2e.write(key, bytes(range(32)))
    os.chmod(key, 0o600)
    alone = options([dataset], {"t": (scratch("tier.helped"), "1G")})
    helped = [*alone, "--peers", nodes, "--peer-index", "0", "--peer-key", key]
    for words, count in (alone, 0), (helped, 4):
        job = e2e.Job(words)
        maps = e2e.bytes_in(f"/proc/{job.agent()}/maps")
        loaded = [name for name in (b"/libmonarch_peers.so", b"/libssl.so", b"/libcrypto.so", b"/libevent") if name in maps]
        equal(len(loaded), count, "what peers need is loaded where there are some", loaded)
        shown = [e2e.bytes_in(f"/proc/{job.agent()}/{name}") for name in ("cmdline", "environ")]
        ok(not any(bytes(range(1, 32)) in text for text in shown), "the key is in no command line nor environment", shown)
        job.end()


LIST = "give yourself the right to list it (chmod), or ask its owner"


@e2e.unless(e2e.why_not_ordinary)
def ordinary_user():
    dataset, tier, before = shared_dataset(), scratch("tier.nobody"), e2e.ORDINARY
    if before:
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
    equal(os.listdir(tier), [], "and leaves nothing")


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


@e2e.unless(e2e.why_not_root, e2e.why_not_nobody)
def squatter():
    """Another user has a directory in the place of a run's, where all can make some, as soon as the run's name is seen."""
    words, tier = usual("squatter")
    os.chmod(tier, 0o1777)
    squats = e2e.start(["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", "/usr/bin/python3", "-c", SQUATS, tier], stdout=subprocess.PIPE)
    equal(squats.stdout.readline(), b"up\n", "another user waits for runs to begin")
    runs = [monarch_run(words, ["true"], before=e2e.NOBODY, env=e2e.environment(MONARCH_IO_QUIET="1"))[::2] for _ in range(5)]
    e2e.end(squats)
    equal(runs, [(0, "")] * 5, "each has Monarch all the same")
    return equal([name for name in os.listdir(tier) if os.stat(f"{tier}/{name}").st_uid == 65534], [], "and leaves nothing of its own")


def user_environment():
    own = ":".join([*e2e.SANITIZER.split(), "libm.so.6"])
    code, out, err = monarch_run(usual("environment")[0], ["sh", "-c", 'echo "$LD_PRELOAD"'],
                                 env={**e2e.environment(), "LD_PRELOAD": own})
    equal((code, out.decode()), (0, f"{own}:{os.path.realpath(BUILD)}/libmonarch_preload.so\n"),
          "the user's LD_PRELOAD stays, ours is last", err)


# ---- the report


@e2e.unless(e2e.why_no_slowfs)
def report():
    source, size, native = tree("report.src")
    pfs = e2e.SlowFs(source, f"{scratch()}/report.pfs", "--open-us", "200")
    tier = memory("tier.report") or scratch("tier.report")
    code, out, err, counters = monarch_run(options([pfs.mount], {"t": (tier, "1G")}), read_all(pfs.mount), report=True)
    equal((code, out), (0, native[1].replace(source.encode(), pfs.mount.encode())), "the report: the bytes are right", err)
    seen, agent, tasks = pfs.counters(), counters["agent"], counters["tasks"]
    equal([counters[key] for key in ("opens", "opens_tier", "hit")] + [tasks["opens_pfs"], *(t["opens"] for t in counters["tiers"])], [FILES, FILES, 1, 0, FILES],
          "each open is one of the tier")
    equal((agent["staged_files"], agent["staged_bytes"], agent["dataset_bytes"], counters["tiers"][0]["placed_bytes"]), (FILES, size, size, size),
          "staged, placed and dataset are all")
    equal((agent["demand_files"] + agent["prefetch_files"], agent["walk_files"], agent["agent_opens_pfs"], agent["agent_bytes_pfs"]), (FILES, FILES, FILES, size),
          "the agent walked, opened and read each file once")
    equal([name for name, count in tasks.items() if name.startswith("fallback_") and count], [], "no open on the PFS, and no reason for one")
    equal((seen["open"], seen["read_bytes"]), (FILES, size), "the PFS counted one open and read per file")
    equal(os.listdir(tier), [], "the tier is empty afterwards")
    return pfs.close()


def state_of(job):
    return dict(line.split("=", 1) for line in e2e.text_in(f"{job.run_dir}/state").splitlines())


def hints():
    """One file is prefetched at a time, so that those have room that the job has named first."""
    source, tier, tool = scratch("hints.src"), scratch("hints.tier"), f"{BUILD}/monarchctl"
    names = [f"below/{i:02}" for i in range(20)]
    for name in names:
        e2e.write(f"{source}/{name}", os.urandom(1 << 20))
    named = names[7:] + names[:7]
    absolute = e2e.write(f"{scratch()}/absolute", "".join(f"{source}/./{name}\n" for name in named[:2]))
    paths = e2e.write(f"{scratch()}/paths", "".join(f"{name}\n" for name in ["none", *named[2:], "below"]))
    wrong = e2e.write(f"{scratch()}/wrong", f"below\n{scratch()}\n")
    numbers = e2e.write(f"{scratch()}/numbers", "2\n1\nx\n-1\n99\n")
    words, missing = options([source], {"t": (tier, "8M")}), f"{wrong}.not"
    run = monarch_run([*words, *e2e.config(prefetch="off")], [tool, "hint", paths], env=e2e.environment(MONARCH_IO_QUIET=""))
    equal(run, (1, b"", "monarchctl hint: prefetch = off in the job's configuration: nothing is staged ahead\n"), "hint: where it is of no use")
    equal(e2e.execute([tool, "hint", paths]), (1, b"", "monarchctl hint: this is no task of a job with Monarch; call it in one, or give --job\n"), "hint: outside of a job")
    job = e2e.Job([*words, *e2e.config(prefetch="auto", prefetch_burst=0, threads=3)])
    told = "monarchctl hint: {} no file of the dataset, the first is line {}\n".format
    for what, command, want in [
        ("no line that is of use", [wrong], (1, b"", told("2 lines name", "1: below"))),
        ("a file that is not there", [missing], (1, b"", f"monarchctl hint: read {missing}: No such file or directory; name a file that you can read, or - for standard input\n")),
        ("absolute paths", [absolute], (0, b"2 accesses told\n", "")),
        ("numbers of a list", ["--list", paths, numbers], (0, b"2 accesses told\n", told("3 lines name", "3: x"))),
    ]:
        equal(job.run([tool, "hint", *command]), want, f"hint: {what}")
    equal(e2e.execute([tool, "hint", "--epoch", "1", "--job", f"run.{job.pid}", paths]), (0, b"18 accesses told\n", told("2 lines name", "1: none")), "hint: from outside")
    settled = lambda: sum(int(state_of(job)[key]) for key in ("staged_files", "no_room")) == len(names)
    ok(wait_until(settled), "hints: all that has room is staged", state_of(job))
    program = e2e.OPENED_AS + """
import sys
for path in sys.argv[2:]:
    with open(path, "rb") as file:
        if opened_as(file.fileno()).startswith(sys.argv[1]):
            print(path)
"""
    code, out, err = job.run(["/usr/bin/python3", "-c", program, tier, *[f"{source}/{name}" for name in names]])
    status = json.loads(job.run([tool, "status", "--json", f"run.{job.pid}"])[1])["jobs"][0]
    placed = set(os.path.relpath(path, source) for path in out.decode().split())
    counters = job.end()["agent"]
    ok(code == 0 and 4 < len(placed) < len(names), "hints: a part has room", err, out)
    equal(placed, set(named[:len(placed)]), "hints: what is used first")
    equal(counters["prefetch_files"], len(placed), "hints: and nothing else was staged")
    ok(status["hinted_files"] == counters["hinted_files"] >= len(placed), "hints: which is counted", status, counters)


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


@e2e.unless(e2e.why_no_slowfs)
def monarchd_killed():
    """While an open waits for a file whose staging hangs. At other moments: faults.t."""
    source = tree("killed.agent.src", 12)[0]
    pfs = e2e.SlowFs(source, f"{scratch()}/killed.agent.pfs", "--hang-killable", "1", "--fault-limit", "1", "--hang", "forever",
                     "--match", "0000.bin")
    tier = scratch("tier.killed.agent")
    process = started(options([pfs.mount], {"t": (tier, "1G")}), f"echo up; exec cat '{pfs.mount}/0000.bin'")
    ok(wait_until(lambda: pfs.counters()["hanging"] == 1), "staging hangs")
    time.sleep(0.2)
    ok(process.poll() is None, "an open waits for it")
    os.kill(e2e.children(process.pid, "monarchd")[0], signal.SIGKILL)
    code, out, err = e2e.finish(process)
    equal((code, out), (0, e2e.bytes_in(f"{source}/0000.bin")), "monarchd killed: the open that waited gets the right bytes")
    contains(err, ["the agent was ended by signal 9"], "monarchd killed: the user is told")
    equal(e2e.traces(process.pid, tier), [], "monarchd killed: nothing is left")
    return pfs.close()


def monarchd_resumed():
    """Meanwhile a program without the library changes a file, and puts the time back."""
    source, tier = tree("resumed.src", 12)[0], scratch("tier.resumed")
    paths = sorted(os.path.join(d, name) for d, _, names in os.walk(source) for name in names)
    job = e2e.Job([*options([source], {"t": (tier, "1G")}), *e2e.config(prefetch="off", stage_again=0)])
    old = job.run(["cat", *paths])[1]
    agent = job.agent()
    os.kill(job.pid, signal.SIGSTOP)  # so that there is no other one until the file has changed
    os.kill(agent, signal.SIGKILL)
    equal(job.run(["cat", *paths])[1], old, "monarchd killed: what is placed is read")
    st = os.stat(paths[3])
    e2e.write(paths[3], e2e.bytes_in(paths[3])[::-1])
    os.utime(paths[3], ns=(st.st_atime_ns, st.st_mtime_ns))
    os.kill(job.pid, signal.SIGCONT)
    log = lambda: e2e.text_in(f"{job.run_dir}/monarchd.log")  # noqa: E731
    ok(wait_until(lambda: "compared with the PFS: 1 have changed" in log()), "another one goes on, and finds the file", log())
    equal(job.run(["cat", *paths])[1], b"".join(map(e2e.bytes_in, paths)), "which is read as it is now")
    report = job.end()
    equal((report["agent"]["staged_files"], report["tasks"]["fallback_invalid"]), (12, 1), "and nothing is staged again", report)


def swept():
    """Both killed: the next run of the user sweeps what is older than 10 s and has no owner."""
    words, tier = usual("swept")
    live = e2e.Job(words)
    dead = e2e.Job(words)
    dead.kill_all()
    e2e.wait_until(lambda: len(e2e.traces(dead.pid, tier)) == 2)  # the agent has ended
    left = e2e.traces(dead.pid, tier)
    equal(len(left), 2, "both killed: run directory and copies are left", left)
    yield
    ok(wait_until(lambda: monarch_run(words, ["true"])[0] == 0 and not e2e.traces(dead.pid, tier)), "a run more than 10 s later sweeps them", e2e.traces(dead.pid, tier))
    equal(len(e2e.traces(live.pid, tier)), 3, "but not those of a run that lives")
    path = f"{shared_dataset()}/0000.bin"
    equal(live.run(["cat", path])[:2], (0, e2e.bytes_in(path)), "which serves on")
    equal(live.end()["opens_tier"], 1, "from its tier")
    equal(os.listdir(tier), [], "the tier is empty in the end")


# ---- a failing PFS


@e2e.unless(e2e.why_no_slowfs)
def hanging_pfs():
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


e2e.main(swept, exit_codes, refusals, without_agent, peers_library, ordinary_user, squatter, user_environment, report, hints, signals,
         monarchctl_killed,
         monarchd_slow_to_end, monarchd_killed, monarchd_resumed, hanging_pfs)
