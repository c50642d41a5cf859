#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reports of jobs: what root's epilog keeps of a job that has ended, for whom, for how long, whatever the job's owner does; and the page
that `monarchctl report --html` makes of it, as a browser shows it."""

import contextlib
import glob
import json
import os
import pathlib
import re
import shutil
import stat
import struct
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import one_node  # pylint: disable=wrong-import-position
from e2e import contains, equal, ok, scratch  # pylint: disable=wrong-import-position
from one_node import FIRST, OTHER, TOOL, UID, as_root, as_user  # pylint: disable=wrong-import-position


class Node(one_node.Node):
    def kept(self, user="*"):
        return sorted(int(os.path.basename(path).split(".")[1]) - FIRST for path in glob.glob(f"{self.state}/reports/{user}/*"))

    def report(self, job, *words, before=()):
        code, out, err = e2e.execute([*before, "/usr/bin/env", "PATH=/nowhere", TOOL, "report", str(job), "--state-dir", self.state, *words], cwd="/")
        return code, out.decode(), err


def tried(uid, program):
    """What a program in Python ends with, run by that user."""
    return e2e.execute([*as_user(uid), "/usr/bin/python3", "-c", f"import os\n{program}"], cwd="/")[2].strip().splitlines()[-1:]


def kept():
    with contextlib.closing(Node("kept")) as n:
        job = FIRST + 1
        n.read(n.start(job))
        code, out, err = n.report(job, "--json")
        live = json.loads(out or "{}")
        equal((code, live.get("source"), live.get("opens")), (0, "job", 30), "a job that runs", err)
        code, out, err = n.report(job, "--save", scratch())
        ok((code, out) == (1, "") and "here: --save copies what a node keeps of a job that has ended" in err, "--save: a job that runs", out, err)
        n.end(job)
        told = {}
        for who, before in (("root", ()), ("its owner", as_user(UID))):
            code, out, err = n.report(job, "--json", before=before)
            told = json.loads(out or "{}")
            equal((code, told.get("source"), told.get("state"), told.get("opens"), told.get("opens_tier"), told.get("nodes")),
                  (0, "kept", "ended", 30, 30, 1), f"the report of a job that has ended, for {who}", out, err)
        times = {kind: took["timed"] for kind, took in told["open_times"].items()}
        ok(times["pfs"] == 0 and 0 < times["tier"] + times["waited"] <= 30, "how long its opens took", told)
        ok(told["samples"] > 0 and 0 < told["staged_seconds"] < 60 and told["staged_seconds"] == told["settled_seconds"], "its times", told)
        ok(told["most_per_second"]["from_pfs"] > 0 and told["most_per_second"]["from_tiers"] > 0, "its rates", told)
        contains(n.report(job)[1], [f"Job         {job} of cluster c-1 (ended)", "fully staged after 0:00:0", "from the PFS, "], "the same as text")
        code, out, err = n.report(job, before=as_user(OTHER))
        equal((code, out), (1, ""), "another user has none", err)
        (path,) = glob.glob(f"{n.state}/reports/{UID}/*")
        st, top = os.stat(path), os.path.dirname(path)
        equal((os.path.basename(path), st.st_uid, stat.S_IMODE(st.st_mode)), (f"c-1.{job}.0.n1.x.json", 0, 0o644), "the file is root's")
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        equal((report["ended"]["job"], report["ended"]["node"], report["series"]["staged"][-1]),
              (job, "n1.x", report["agent"]["dataset_bytes"]), "what is in it", report)
        saved = scratch("saved")
        os.chown(saved, UID, UID)
        code, out, err = n.report(job, "--save", saved, before=as_user(UID))
        copy = f"{saved}/{os.path.basename(path)}"
        equal((code, pathlib.Path(copy).read_bytes(), os.stat(copy).st_uid), (0, pathlib.Path(path).read_bytes(), UID), "its owner copies it by --save", err)
        equal(json.loads(e2e.execute([TOOL, "report", copy, "--json"])[1])["samples"], told["samples"], "which is a report")
        for what, put in ("a link", lambda to: os.symlink(f"{saved}/target", to)), ("a FIFO", os.mkfifo):
            os.unlink(copy)
            put(copy)
            code, out, err = n.report(job, "--save", saved)
            equal((code, os.path.islink(copy), os.path.isfile(copy), os.listdir(saved)), (0, False, True, [os.path.basename(path)]), f"--save: root, where a user has put {what}", err)
        for what, words, why in (("no directory", ["--save", f"{saved}/none"], "no directory; make it first"), ("one of root's", ["--save", "/"], "name a directory that you can write to")):
            code, out, err = n.report(job, *words, before=as_user(UID))
            ok((code, out) == (1, "") and why in err, f"--save: {what}", code, out, err)
        for what, uid, program, error in (
                ("another user cannot list", OTHER, f"os.listdir({top!r})", "PermissionError"), ("nor read", OTHER, f"open({path!r})", "PermissionError"),
                ("nor see who has some", OTHER, f"os.listdir({os.path.dirname(top)!r})", "PermissionError"),
                ("its owner can read", UID, f"open({path!r}).read(), os.listdir({top!r})", None),
                ("but not make it grow", UID, f"open({path!r}, 'a')", "PermissionError"), ("nor remove it", UID, f"os.unlink({path!r})", "PermissionError"),
                ("nor change its mode", UID, f"os.chmod({path!r}, 0o777)", "PermissionError"), ("nor put a link there", UID, f"os.symlink('/etc/shadow', {top + '/x'!r})", "PermissionError"),
                ("nor open the directory to others", UID, f"os.chmod({top!r}, 0o777)", "PermissionError")):
            last = tried(uid, program)
            ok(last == [] if error is None else last and last[0].startswith(error), f"reports: {what}", last)


HOSTILE = {
    "a FIFO": os.mkfifo,
    "a link to what only root reads": lambda path: os.symlink("/etc/shadow", path),
    "a link to itself": lambda path: os.symlink(path, path),
    "a directory": os.mkdir,
    "nothing": lambda path: None,
    "an empty file": lambda path: open(path, "wb").close(),  # pylint: disable=consider-using-with
    "a terabyte": lambda path: (open(path, "wb").close(), os.truncate(path, 1 << 40)),  # pylint: disable=consider-using-with
    "numbers that no agent has": lambda path: spoil(path, b"\xff"),
    "times that go back": lambda path: turn_back(path),  # pylint: disable=unnecessary-lambda
}
WHOLE = b""


def spoil(path, what):
    """The series as it was, from its first sample on other bytes."""
    with open(path, "wb") as file:
        file.write(WHOLE[:48] + (what * len(WHOLE))[:len(WHOLE) - 48])


def turn_back(path):
    """Only the time of the first sample is another one."""
    with open(path, "wb") as file:
        file.write(WHOLE[:48] + struct.pack("<Q", 1 << 40) + WHOLE[56:])


def hostile_series():
    """What the owner leaves instead of the agent's series."""
    global WHOLE  # pylint: disable=global-statement
    with contextlib.closing(Node("hostile")) as n:
        for number, (what, make) in enumerate(HOSTILE.items(), start=1):
            job = FIRST + number
            run_dir = n.start(job)
            n.read(run_dir)
            with open(f"{n.state}/jobs/c-1.{job}.n1.x/record.json", encoding="utf-8") as file:
                os.kill(json.load(file)["pid"], 9)  # it would write another
            with open(f"{run_dir}/series", "rb") as file:
                WHOLE = file.read()
            ok(len(WHOLE) >= 48 + 160, "there was a series", len(WHOLE))
            os.unlink(f"{run_dir}/series")
            make(f"{run_dir}/series")
            if os.path.lexists(f"{run_dir}/series"):
                os.lchown(f"{run_dir}/series", UID, UID)
            n.end(job)
            code, out, err = n.report(job, "--json")
            told = json.loads(out or "{}")
            equal((code, told.get("source"), told.get("opens_tier"), told.get("samples")), (0, "kept", 30, 0),
                  f"root believes no series: {what}", out, err)


def limits():
    with contextlib.closing(Node("limits")) as n:
        jobs = [FIRST + number for number in range(1, 7)]
        for job in jobs:
            n.start(job)
        n.end_at_once(*jobs)
        equal(n.kept(), [1, 2, 3, 4, 5, 6], "epilogs at once lose no report")
        paths = sorted(glob.glob(f"{n.state}/reports/{UID}/*"))
        for age, path in enumerate(reversed(paths)):
            os.utime(path, (time.time() - 3600 * age - 10,) * 2)
        size = max(os.stat(path).st_blocks * 512 for path in paths)
        n.configure(f"report_size = {3 * size}\n")
        n.start(FIRST + 7)
        with open(paths[0], "rb") as held:
            n.end(FIRST + 7)
            equal(os.fstat(held.fileno()).st_blocks, 0, "who has an old one open keeps no space of it")
        left = n.kept()
        ok(7 in left and 1 not in left and len(left) >= 3 and left == list(range(8 - len(left), 8)) and
           sum(os.stat(path).st_blocks * 512 for path in glob.glob(f"{n.state}/reports/*/*")) <= 3 * size, "report_size: the oldest go", left)
        for path in glob.glob(f"{n.state}/reports/*/*"):
            os.utime(path, (time.time() - 2 * 86400 - 10,) * 2)
        half = f"{n.state}/reports/{UID}/c-1.1.0.n1.x.json.new"
        with open(half, "w", encoding="utf-8"):
            os.utime(half, (time.time() - 3600,) * 2)
        n.configure("report_days = 2\n")
        n.start(FIRST + 8)
        n.end(FIRST + 8)
        equal(n.kept(), [8], "report_days: what is older goes, and what a killed helper left half")
        n.configure("report_size = none\n")
        n.start(FIRST + 9)
        n.end(FIRST + 9)
        equal(glob.glob(f"{n.state}/reports/*"), [], "report_size = none: nothing is kept")


# ---- the page

EVIL = "\"><script>document.title='evil'</script><img src=x onerror=\"document.title='evil'\"><style>*{display:none}</style>&amp;"


def locked():
    """A directory of reports that keeps whoever writes there waiting, as its user can: the job's end goes on."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return e2e.skip("locked", "no /dev/fuse")
    with contextlib.closing(Node("locked")) as n:
        first, second = FIRST + 31, FIRST + 32
        n.start(first)
        n.end(first)
        n.start(second)
        with e2e.unanswering_mount(f"{n.state}/reports/{UID}", 0):
            n.end(second)
            ok(e2e.wait_until(lambda: not os.listdir(f"{n.tier}/monarch")), "its copies are removed", os.listdir(f"{n.tier}/monarch"))
            contains(one_node.text_of(n.log), ["no report is kept: it is not written within "], "that there is no report is told")
    return None


def a_report():
    """One of two nodes, whose numbers are easy to find again in the picture."""
    with open(f"{e2e.SOURCE}/runtime/layout/board_layout.h", encoding="utf-8") as file:
        names = file.read().split("MONARCH_AGENT_COUNTERS(X)")
    tasks, agent = ({name: 0 for name in re.findall(r"X\((\w+),", part)} for part in names[:2])
    tasks["read_bytes_pfs"] = 10 << 20
    agent.update(agent_bytes_pfs=90 << 20, dataset_bytes=100 << 20, staged_files=9, peer_bytes=5 << 20)
    seconds = list(range(0, 101, 10))
    grows = [min(n, 50) << 20 for n in seconds]
    flat = [0] * len(seconds)
    series = {"began": 1700000000, "settled_seconds": 50.5, "staged_seconds": None, "milliseconds": [1000 * s for s in seconds],
              "tasks_pfs": flat, "tasks_tier": [s << 20 for s in seconds], "agent_pfs": grows, "from_peers": [n // 10 for n in grows], "to_peers": flat,
              "opened_pfs": flat, "opened_tier": seconds, "waited": flat, "waited_ns": flat, "staged": grows,
              "dataset": [100 << 20] * len(seconds), "placed": [grows, flat]}
    tier = {"opens": 100, "read_calls": 9, "read_bytes": 300 << 20, "placed_bytes": 50 << 20, "granted": 60 << 20}
    counts = {"opens": 100, "opens_tier": 90, "hit": 0.9, "tasks": tasks, "agent": agent, "open_times": {"tier": {}, "waited": {}, "pfs": {"0.5": 7}}}
    took = {"tier": {"1": 30, "2": 60, "4": 10}, "waited": {"4096": 5, "8192": 15}, "pfs": {"512": 1, "more": 1}}
    job = {**counts, "open_times": took, "nodes": 2, "nodes_told": 2, "opens": 150, "read_calls_tier": 20, "read_bytes_tier": 700 << 20, "placed_bytes": {"nvme": 99 << 20}}
    return {"version": "x", **counts, "tiers": [{"name": EVIL, **tier}, {"name": "two", **{**tier, "read_bytes": 0, "placed_bytes": 0}}], "job": job, "series": series}


def written(name, text):
    path = f"{scratch()}/{name}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def rows_of(html, section):
    """The cells of a section's table."""
    (part,) = re.findall(rf'<section id="{section}">(.*?)</section>', html, flags=re.S)
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", line) for line in re.findall(r"<tr>(.*?)</tr>", part, flags=re.S)]


def page_of_report():
    """The page itself: one file, which loads nothing, in which an owner's text is text."""
    file, page = written(f"{EVIL.replace('/', '.')}.json"[:200], json.dumps(a_report())), f"{scratch()}/page.html"
    code, out, err = e2e.execute([TOOL, "report", file, "--html", page])
    equal(code, 0, "report --html", err)
    contains(out.decode(), ["nothing was left to stage ahead after 0:00:50, 50.0% staged", "the PFS was read for 0:00:50 of 0:01:40", "1.00M/s from the PFS"], "the report itself is told, too")
    with open(page, encoding="utf-8") as stream:
        html = stream.read()
    lowered = html.lower()
    equal([part for part in ("<script", "<img", "<link", "http:", "https:", "url(", "@import", "src=x onerror=\"", "<style>*") if part in lowered], [],
          "it loads nothing, and an owner's text is text")
    contains(html, ["prefers-color-scheme: dark", 'name="viewport"', "Content-Security-Policy", "&lt;script&gt;"], "what it has")
    equal(lowered.count("<style>"), 1, "one style")
    code, out, err = e2e.execute([TOOL, "report", file, "--html", "-"])
    equal((code, out.decode()), (0, html), "to standard output, alone", err)
    code, out, err = e2e.execute([TOOL, "report", file, "--html", file])
    ok(code == 2 and "would overwrite the report; name another file" in err and os.path.getsize(file) == len(json.dumps(a_report())), "the report itself is not overwritten", err)
    code, out, err = e2e.execute([TOOL, "report", file, "--html", "/nowhere/x"])
    ok(code == 1 and "/nowhere/x" in err and err.count("\n") == 1, "a file that cannot be written", err)
    for what, change in (("too many samples", {"milliseconds": list(range(100000))}), ("a column that is too short", {"staged": [1]}), ("text", {"staged": ["x"] * 11}),
                         ("time that goes back", {"milliseconds": list(range(11, 0, -1))}), ("a huge number", {"staged": [1 << 61] * 11}), ("no column", {"waited": None}),
                         ("tiers that are not there", {"placed": [[0] * 11] * 3}), ("a negative time", {"staged_seconds": -1})):
        report = a_report()
        report["series"].update(change)
        code, out, err = e2e.execute([TOOL, "report", written("bad.json", json.dumps(report)), "--html", page])
        ok(code == 1 and "its series is none of Monarch's" in err, f"a series that is none: {what}", code, err)
    row = {"node": EVIL[:60], "told_seconds_ago": 0, "ended": False, "files": 5, "placed_bytes": {"nvme": 49 << 20}, "opens": 100, "opens_tier": 90,
           "pfs_bytes": 77 << 20, "peer_bytes": 5 << 20, "served_bytes": 0, "hit": 0.9}
    report = a_report()
    report["job"]["by_node"] = [row, {**row, "node": "n2", "told_seconds_ago": 7, "ended": True, "placed_bytes": {"ram": 3}}, {"node": "n3", "told_seconds_ago": None}]
    file = written("nodes.json", json.dumps(report))
    html = e2e.execute([TOOL, "report", file, "--html", "-"])[1].decode()
    rows = rows_of(html, "nodes")
    equal(rows[0], ["NODE", "FILES", "NVME", "RAM", "OPENS", "HIT", "PFS", "PEERS", "SERVED", "TOLD"], "a report of each node: the headings of its table")
    equal([line[1:] for line in rows[1:]], [["5", "49.0M", "0", "100", "90%", "77.0M", "5.00M", "0", "now"], ["5", "0", "3", "100", "90%", "77.0M", "5.00M", "0", "all"],
                                            ["-"] * 8 + ["nothing yet"], ["10", "49.0M", "3", "200", "90%", "154M", "10.0M", "0", "nodes=2/2"]], "and a line for each, and one for all", html[-2000:])
    ok("&lt;script&gt;" in rows[1][0] and "<script" not in html, "a node's name is text", rows[1][0])
    equal(json.loads(e2e.execute([TOOL, "report", file, "--json"])[1])["by_node"], report["job"]["by_node"], "as JSON it is what was told")
    for what, change in (("a name that is none", {"node": 7}), ("a medium that is none", {"placed_bytes": {"tape": 1}}), ("text", {"files": "x"}), ("a huge number", {"pfs_bytes": 1 << 61}),
                         ("fewer opens than hits", {"opens": 1}), ("a negative number", {"served_bytes": -1}), ("a lost field", {"ended": None}), ("a time that is none", {"told_seconds_ago": "x"})):
        report["job"]["by_node"] = [{**row, **change}]
        code, out, err = e2e.execute([TOOL, "report", written("bad.json", json.dumps(report))])
        ok(code == 1 and "by_node is none of Monarch's" in err, f"nodes that are none: {what}", code, err)
    report["job"]["by_node"] = [row] * 1025
    code, out, err = e2e.execute([TOOL, "report", written("bad.json", json.dumps(report))])
    ok(code == 1 and "by_node is none of Monarch's" in err, "nodes that are none: too many", code, err)
    rows = rows_of(html, "opens")
    equal((rows[0], rows[1], rows[3], rows[-1], len(rows)),
          (["Took", "of tiers&#39; copies", "that waited", "on the PFS"], ["less than 1us", "30", "0", "0"], ["less than 4us", "10", "0", "0"], ["2.1s or more", "0", "0", "1"], 24), "how long opens took, in numbers, of all nodes")
    contains(html, ['aria-label="opens of tiers&#39; copies, 100 timed: half took less than 2us, 99% less than 4us"', 'aria-label="opens on the PFS, 2 timed: half took less than 512us, more than 1% took 2.1s or more"'], "and in words")
    report = a_report()
    report["job"]["open_times"] = {"tier": {}, "waited": {}, "pfs": {}}
    none = e2e.execute([TOOL, "report", written("none.json", json.dumps(report)), "--html", "-"])[1].decode()
    del report["job"]["open_times"]
    old = e2e.execute([TOOL, "report", written("old.json", json.dumps(report)), "--html", "-"])[1].decode()
    equal(['id="opens"' in html, 'id="nodes"' in none, 'id="opens"' in none, 'id="nodes"' in old, 'id="opens"' in old], [True, True, False, True, False],
          "where there were none, or an older release wrote the report, they are left out")
    report = a_report()
    del report["series"]
    code, out, err = e2e.execute([TOOL, "report", written("bare.json", json.dumps(report)), "--html", "-"])
    contains(out.decode(), ["How it went over time is not known"], "a report without a series")


def page_of_nodes():
    """A page of several nodes, from what each of them keeps."""
    def of_node(node, dataset=100, **more):
        report = {**a_report(), "ended": {"job": 7, "cluster": "lab", "node": node, "restart": 0, "nodes": 3, "at": 1700000100, "agent_died": False, **more}}
        del report["job"]
        report["tiers"][0]["name"] = f"nvme-of-{node}"
        report["series"]["tasks_tier"] = [n * dataset // 100 for n in report["series"]["tasks_tier"]]
        files.append(written(f"{len(files)}.json", json.dumps(report)))
        return files[-1]
    files = []
    tenth, second = of_node("n10", dataset=1000), of_node("n2")
    code, out, err = e2e.execute([TOOL, "report", tenth, second, "--html", "-"])
    html = out.decode()
    equal(code, 0, "a page of two nodes", err)
    equal(re.findall(r'<section id="([^"]*)">\n<h2>([^<]*)</h2>', html),
          [("throughput", "Read per second on n2"), ("throughput-2", "Read per second on n10"), ("staged", "Staged part of the dataset on n2"),
           ("staged-2", "Staged part of the dataset on n10"), ("fill", "Fill of the tiers on n2"), ("fill-2", "Fill of the tiers on n10"),
           ("opens", "How long opens took on n2"), ("opens-2", "How long opens took on n10"), ("nodes", "Nodes")], "curves of each, in the order of their names")
    equal(rows_of(html, "nodes")[1:], [["n2", "100", "90.0%", "100M", "300M", "5.00M", "50.0M"], ["n10", "100", "90.0%", "100M", "300M", "5.00M", "50.0M"],
                                       ["all", "200", "90.0%", "200M", "600M", "10.0M", "100M"]], "a line for each, and the sums")
    contains(html, ["Job 7 of cluster lab (ended)", "<dt>Numbers of</dt><dd>2 of 3 nodes</dd>", "200M instead of 620M"], "what it is of")
    axes = [re.findall(r'<text text-anchor="end"[^>]*>([^<]*)</text>', part) for part in re.findall(r'<section id="throughput[^>]*>(.*?)</section>', html, flags=re.S)]
    ok(len(axes) == 2 and axes[0] == axes[1] and axes[0][4] == "20.0M/s", "equal axes, so that they can be compared", axes)
    code, out, err = e2e.execute([TOOL, "report", second, tenth])
    contains(out.decode(), ["Job         7 of cluster lab (ended), 2 of 3 nodes", "200M instead of 620M", "n10 ", "all "], "as text")
    code, out, err = e2e.execute([TOOL, "report", second, tenth, "--json"])
    told = json.loads(out)
    equal((code, told["name"], told["nodes"], told["opens"], told["bytes_pfs"], told["samples"]), (0, "7", 2, 200, 200 << 20, 0), "as JSON")
    evil = of_node(EVIL)
    html = e2e.execute([TOOL, "report", second, evil, "--html", "-"])[1].decode()
    ok("&lt;script&gt;" in html and "<script" not in html, "a node's name is text")
    bare = written("bare.json", json.dumps(a_report()))
    silent = written("silent.json", json.dumps({**json.loads(pathlib.Path(tenth).read_text(encoding="utf-8")), "series": None}))
    for what, given, code, why in (("another job's", [second, of_node("n3", job=8)], 1, "is of another job, or of another run of it, than"),
                                   ("another run's", [second, of_node("n3", restart=1)], 1, "is of another job, or of another run of it, than"),
                                   ("another cluster's", [second, of_node("n3", cluster="x")], 1, "is of another job, or of another run of it, than"),
                                   ("the same node's", [second, second], 1, "node n2 has been named before"), ("one of no node", [second, bare], 1, "it names no node; name files that"),
                                   ("a negative job", [second, of_node("n3", job=-1)], 1, "it names no node"), ("a node that is none", [second, of_node("n3", cluster=7)], 1, "it names no node"),
                                   ("a spoilt series", [second, silent], 1, "its series is none of Monarch's"), ("no file", [second, "/nowhere"], 1, "/nowhere: No such file"),
                                   ("a job", [second, "7"], 2, "name one job, or the files of its nodes"), ("the page is one of them", [second, tenth, "--html", tenth], 2, "would overwrite the report"),
                                   ("a file, to be saved", [second, "--save", scratch()], 2, "--save copies what a node keeps of a job that has ended")):
        got, out, err = e2e.execute([TOOL, "report", *given])
        ok((got, out) == (code, b"") and why in err and err.count("\n") == 1, f"several reports, one of which is wrong: {what}", got, out, err)


def browse(page, *words):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{scratch()}/shot.png")
    home = scratch("browser")
    return e2e.execute(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={home}", "--no-first-run",
                        *words, f"file://{page}"], seconds=4 * e2e.PATIENCE, env=e2e.native_environment(HOME=home))


def page_in_browser():
    if not shutil.which("chromium"):
        return e2e.skip("the page in a browser", "no chromium (Debian: chromium)")
    page = f"{scratch()}/seen.html"
    code, _, err = e2e.execute([TOOL, "report", written("seen.json", json.dumps(a_report())), "--html", page])
    equal(code, 0, "a page", err)
    code, out, err = browse(page, "--dump-dom")
    dom = out.decode()
    equal((code, "<title>Job " in dom, "evil</title>" in dom, "<img" in dom, "<script" in dom), (0, True, False, False, False), "the browser's DOM: no text of an owner's does anything", err[-1000:])
    lines = re.findall(r'<polyline class="line (c\d)" points="([^"]*)"', dom)
    equal([(kind, len(points.split())) for kind, points in lines], [("c0", 11), ("c1", 11), ("c2", 11), ("c3", 11), ("c1", 11), ("c2", 11)], "its curves", dom[-3000:])
    heights = [float(point.split(",")[1]) for point in lines[3][1].split()] if len(lines) > 3 else []
    ok(heights and heights[0] == 172.0 and heights[-1] == heights[5] == 92.0, "half of the dataset is half of the height", heights)
    bars = re.findall(r'<rect class="bar (c\d)" x="([\d.]*)" y="([\d.]*)" width="([\d.]*)" height="([\d.]*)"', dom)
    equal([kind for kind, *_ in bars], ["c1"] * 3 + ["c4"] * 2 + ["c0"] * 2, "its histograms of how long opens took", dom[-3000:])
    # 60 of 100 are three fifths of the height; the last bucket ends where the axis does.
    equal((bars[1][1:], bars[-1][1:3]), (("95.3", "48.0", "13.2", "54.0"), ("413.8", "12.0")), "a bar's place is its bucket, its height its part of the opens of its kind", bars)
    contains(dom, ["this node", "the others", "all", "50.0% staged"], "its table and facts")
    return None


e2e.main(as_root(kept), as_root(hostile_series), as_root(limits), as_root(locked), page_of_report, page_of_nodes, page_in_browser)
