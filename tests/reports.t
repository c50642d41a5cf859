#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Reports of jobs: what root's epilog keeps of a job that has ended, for whom, for how long, whatever the job's owner does; and the page
that `monarchctl report --html` makes of it."""

import contextlib
import glob
import json
import os
import pathlib
import re
import stat
import time

import e2e
import one_node
from e2e import TOOL, contains, equal, ok, scratch
from one_node import FIRST, OTHER, UID, as_root, as_user


class Node(one_node.Node):
    def kept(self, user="*"):
        return sorted(int(os.path.basename(path).split(".")[1]) - FIRST for path in glob.glob(f"{self.state}/reports/{user}/*"))

    def report(self, job, *words, before=()):
        code, out, err = e2e.execute([*before, "/usr/bin/env", "PATH=/nowhere", TOOL, "report", str(job), "--state-dir", self.state, *words], cwd="/")
        return code, out.decode(), err


def kept():
    with contextlib.closing(Node("kept")) as n:
        job = FIRST + 1
        n.read(n.start(job))
        code, out, err = n.report(job, "--json")
        live = json.loads(out or "{}")
        equal((code, live.get("source"), live.get("opens"), live.get("rule")), (0, "job", 30, "good"), "a job that runs, in epoch 1", err)
        n.end(job)
        for who, before in (("root", ()), ("its owner", as_user(UID))):
            code, out, err = n.report(job, "--json", before=before)
            told = json.loads(out or "{}")
            equal((code, told.get("source"), told.get("state"), told.get("opens"), told.get("opens_tier"), told.get("nodes"), told.get("rule")),
                  (0, "kept", "ended", 30, 30, 1, "read-once"), f"the report of a job that has ended, for {who}", out, err)
        times = {kind: took["timed"] for kind, took in told["open_times"].items()}
        ok(times["pfs"] == 0 and 0 < times["tier"] + times["waited"] <= 30, "how long its opens took", told)
        ok(told["samples"] > 0 and told["staged_seconds"] == told["settled_seconds"] and told["most_per_second"]["from_pfs"] > 0 and told["most_per_second"]["from_tiers"] > 0,
           "its times and rates", told)
        (path,) = glob.glob(f"{n.state}/reports/{UID}/*")
        st, top = os.stat(path), os.path.dirname(path)
        named = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        equal((named.get("uid"), named.get("datasets")), (UID, [n.data]), "whose it is, and what it reads")
        equal((os.path.basename(path), st.st_uid, stat.S_IMODE(st.st_mode)), (f"c-1.{job}.0.n1.x.json", 0, 0o644), "the file is root's")
        saved = scratch("saved")
        os.chown(saved, UID, UID)
        code, out, err = n.report(job, "--save", saved, before=as_user(UID))
        copy = f"{saved}/{os.path.basename(path)}"
        equal((code, pathlib.Path(copy).read_bytes(), os.stat(copy).st_uid), (0, pathlib.Path(path).read_bytes(), UID), "its owner copies it by --save", err)
        os.unlink(copy)
        os.symlink(f"{saved}/target", copy)
        code, out, err = n.report(job, "--save", saved)
        equal((code, os.path.islink(copy), os.listdir(saved)), (0, False, [os.path.basename(path)]),
              "--save: root, where a user has put a link", err)
        for what, uid, program in (
                ("another user cannot list", OTHER, f"os.listdir({top!r})"), ("nor read", OTHER, f"open({path!r})"),
                ("nor see who has some", OTHER, f"os.listdir({os.path.dirname(top)!r})"),
                ("but not make it grow", UID, f"open({path!r}, 'a')"), ("nor remove it", UID, f"os.unlink({path!r})"),
                ("nor put a link there", UID, f"os.symlink('/etc/shadow', {top + '/x'!r})"),
                ("nor open the directory to others", UID, f"os.chmod({top!r}, 0o777)")):
            last = e2e.execute([*as_user(uid), "/usr/bin/python3", "-c", f"import os\n{program}"], cwd="/")[2].strip().splitlines()[-1:]
            ok(last and last[0].startswith("PermissionError"), f"reports: {what}", last)


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
        half = f"{n.state}/reports/{UID}/c-1.1.0.n1.x.json.new"
        with open(half, "w", encoding="utf-8"):
            os.utime(half, (time.time() - 3600,) * 2)
        n.configure("report_size = none\n")
        n.start(FIRST + 8)
        n.end(FIRST + 8)
        equal(glob.glob(f"{n.state}/reports/*/*"), [], "report_size = none: nothing is kept, nor what a killed helper left half")


# ---- the page

EVIL = "\"><script>document.title='evil'</script><img src=x onerror=\"document.title='evil'\"><style>*{display:none}</style>&amp;"


@e2e.unless(e2e.why_no_fuse)
def locked():
    """A directory of reports that keeps whoever writes there waiting, as its user can: the job's end goes on."""
    with contextlib.closing(Node("locked")) as n:
        first, second = FIRST + 31, FIRST + 32
        n.start(first)
        n.end(first)
        n.start(second)
        with e2e.unanswering_mount(f"{n.state}/reports/{UID}", 0):
            n.end(second)
            ok(e2e.wait_until(lambda: not os.listdir(f"{n.tier}/monarch")), "its copies are removed", os.listdir(f"{n.tier}/monarch"))
            contains(one_node.text_of(n.log), ["no report is kept: not through after "], "that there is no report is told")


def a_report():
    """One of two nodes, whose numbers are easy to find again in the picture."""
    names = e2e.text_in(f"{e2e.SOURCE}/runtime/layout/board_layout.h").split("MONARCH_AGENT_COUNTERS(X)")
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
    return e2e.write(f"{scratch()}/{name}", text)


def rows_of(html, section):
    """The cells of a section's table."""
    (part,) = re.findall(rf'<section id="{section}">(.*?)</section>', html, flags=re.S)
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", line) for line in re.findall(r"<tr>(.*?)</tr>", part, flags=re.S)]


def page_of(name, report):
    """What `report --html -` makes of it."""
    code, out, err = e2e.execute([TOOL, "report", written(name, json.dumps(report)), "--html", "-"])
    equal(code, 0, "report --html", err)
    return out.decode()


def refused(what, report, why):
    code, out, err = e2e.execute([TOOL, "report", written("bad.json", json.dumps(report))])
    ok(code == 1 and why in err, f"{why}: {what}", code, out, err)


def page_of_report():
    """The page itself: one file, which loads nothing, in which an owner's text is text."""
    file, page = written(f"{EVIL.replace('/', '.')}.json"[:200], json.dumps(a_report())), f"{scratch()}/page.html"
    code, out, err = e2e.execute([TOOL, "report", file, "--html", page])
    equal(code, 0, "report --html", err)
    contains(out.decode(), ["nothing was left to stage ahead after 0:00:50, 50.0% staged"], "the report itself is told, too")
    report = a_report()
    del report["job"]
    report["agent"].update(dataset_bytes=50 << 20, agent_bytes_pfs=190 << 20)
    report["tasks"]["wait_ns"] = 9 * 10**9
    contains(e2e.execute([TOOL, "report", written("part.json", json.dumps(report))])[1].decode(), ["50.0M placed of about 100M;", ", 50.0% staged",
             "~9.0% of 0:01:40 in opens, all threads together; programs read from the PFS in ~0.0% at most; each byte once from the PFS would be ~50.0% less\n"],
             "what is placed, and how much of all that is, agree; and the job's time in I/O")
    html = pathlib.Path(page).read_text(encoding="utf-8")
    lowered = html.lower()
    equal([part for part in ("<script", "<img", "<link", "http:", "https:", "url(", "@import", "src=x onerror=\"", "<style>*") if part in lowered], [],
          "it loads nothing, and an owner's text is text")
    contains(html, ["Content-Security-Policy", "&lt;script&gt;"], "what it has")
    code, out, err = e2e.execute([TOOL, "report", file, "--html", file])
    ok(code == 2 and "would overwrite the report; name another file" in err and os.path.getsize(file) == len(json.dumps(a_report())), "the report itself is not overwritten", err)
    for what, change in (("too many samples", {"milliseconds": list(range(100000))}),
                         ("a column that is too short", {"staged": [1]}),
                         ("a huge number", {"staged": [1 << 61] * 11}), ("tiers that are not there", {"placed": [[0] * 11] * 3})):
        report = a_report()
        report["series"].update(change)
        refused(what, report, "its series is none of Monarch's")
    row = {"node": EVIL[:60], "told_seconds_ago": 0, "ended": False, "files": 5, "placed_bytes": {"nvme": 49 << 20}, "opens": 100, "opens_tier": 90,
           "pfs_bytes": 77 << 20, "peer_bytes": 5 << 20, "served_bytes": 0, "hit": 0.9}
    report = a_report()
    report["job"]["by_node"] = [row, {**row, "node": "n2", "told_seconds_ago": 7, "ended": True, "placed_bytes": {"ram": 3}}, {"node": "n3", "told_seconds_ago": None}]
    html = page_of("nodes.json", report)
    rows = rows_of(html, "nodes")
    equal([line[1:] for line in rows], [["FILES", "NVME", "RAM", "OPENS", "HIT", "PFS", "PEERS", "SERVED", "TOLD"], ["5", "49.0M", "0", "100", "90%", "77.0M", "5.00M", "0", "now"],
                                        ["5", "0", "3", "100", "90%", "77.0M", "5.00M", "0", "all"], ["-"] * 8 + ["nothing yet"], ["10", "49.0M", "3", "200", "90%", "154M", "10.0M", "0", "nodes=2/2"]],
          "a report of each node: a line for each, and one for all", html[-2000:])
    ok("&lt;script&gt;" in rows[1][0] and "<script" not in html, "a node's name is text", rows[1][0])
    for what, nodes in (("a name that is none", [{**row, "node": 7}]), ("a huge number", [{**row, "pfs_bytes": 1 << 61}]),
                        ("too many", [row] * 1025)):
        report["job"]["by_node"] = nodes
        refused(what, report, "by_node is none of Monarch's")
    equal(rows_of(html, "opens")[-1], ["~2.1s or more", "0", "0", "1"], "how long opens took, in numbers, of all nodes")
    report = {**a_report(), "uid": 0, "datasets": ["/lustre/x", EVIL]}
    html = page_of("about.json", report)
    (about,) = re.findall('<p class="about">(.*?)</p>', html)
    ok(about.startswith("/lustre/x, ") and "&lt;script&gt;" in about and re.search(r", 2 nodes, of root, 2023-11-1\d \d\d:\d\d, 0:01:40 long, ended$", about),
       "its heading", about)
    cards = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", html))
    equal([cards.get(name) for name in ("Spared the PFS", "Dataset staged", "Staging time")], ["85.9%", "99.0%", "0:00:50"], "its big numbers, of the whole job", cards)
    for what, wrong in ("a user", {"uid": "root"}), ("datasets", {"datasets": [7, {}]}), ("datasets that are none", {"datasets": "x"}):
        contains(page_of("wrong.json", {**a_report(), **wrong}), ['<p class="about">2 nodes, 2023-11-1'], f"left out: {what}")
    report = a_report()
    del report["job"]["open_times"], report["series"]
    old = page_of("old.json", report)
    ok('id="opens"' not in old and "How it went over time is not known" in old,
       "of an older release, what it did not write is left out")


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
    equal(re.findall(r'<section id="([^"]*)">', html), [name for part in ("pfs", "copies", "staged", "fill", "opens") for name in (part, f"{part}-2")] + ["nodes"], "curves of each")
    equal(rows_of(html, "nodes")[1:], [["n2", "100", "90.0%", "100M", "300M", "5.00M", "50.0M"], ["n10", "100", "90.0%", "100M", "300M", "5.00M", "50.0M"],
                                       ["all", "200", "90.0%", "200M", "600M", "10.0M", "100M"]], "a line for each, and the sums")
    axes = [re.findall(r'<text text-anchor="end"[^>]*>([^<]*)</text>', part) for part in re.findall(r'<section id="copies[^>]*>(.*?)</section>', html, flags=re.S)]
    ok(len(axes) == 2 and axes[0] == axes[1] and axes[0][4] == "20.0M/s", "equal axes, so that they can be compared", axes)
    told = json.loads(e2e.execute([TOOL, "report", second, tenth, "--json"])[1])
    equal((told["name"], told["nodes"], told["nodes_told"], told["opens"], told["bytes_pfs"]), ("7", 3, 2, 200, 200 << 20), "as JSON")
    alone = "n2 only, of 3 nodes"
    first, page = (e2e.execute([TOOL, "report", second, *more])[1].decode() for more in ((), ("--html", "-")))
    ok(first.splitlines()[0].endswith(f", {alone}") and f'<p class="about">{alone}, ' in page, "one of them alone says so in its first line, and in the page", first, page[-3000:])
    equal([line[0] for line in rows_of(page, "nodes")[1:]], ["this node"], "and has no line of others")
    told = json.loads(e2e.execute([TOOL, "report", second, "--json"])[1])
    equal((told["node"], told["nodes"], told["nodes_told"], told["epochs"]), ("n2", 3, 1, None), "and in JSON")
    bare = written("bare.json", json.dumps(a_report()))
    other = "is of another job, or of another run of it, than"
    for what, given, code, why in (("another job's", [second, of_node("n3", job=8)], 1, other),
                                   ("another run's", [second, of_node("n3", restart=1)], 1, other),
                                   ("another cluster's", [second, of_node("n3", cluster="x")], 1, other),
                                   ("the same node's", [second, second], 1, "node n2 has been named before"),
                                   ("one of no node", [second, bare], 1, "it names no node; name files that"),
                                   ("a job", [second, "7"], 2, "name one job, or the files of its nodes"),
                                   ("the page is one of them", [second, tenth, "--html", tenth], 2,
                                    "would overwrite the report")):
        got, out, err = e2e.execute([TOOL, "report", *given])
        ok((got, out) == (code, b"") and why in err and err.count("\n") == 1, f"several reports, one of which is wrong: {what}", got, out, err)


def drawings():
    """What the page has without a program in it."""
    html = page_of("drawn.json", a_report())
    lines = re.findall(r'<polyline class="line (c\d)" points="([^"]*)"', html)
    equal([(kind, len(points.split())) for kind, points in lines], [("c0", 11), ("c1", 11), ("c2", 11), ("c3", 11), ("c1", 11), ("c2", 11)], "its curves", html[-3000:])
    # 60M of an axis of 80M.
    quotas = re.findall(r'<polyline class="quota (c\d)" points="[\d.]*,([\d.]*) ', html)
    equal(quotas, [("c1", "52.0"), ("c2", "52.0")], "the quotas of its tiers", html[-3000:])
    heights = [float(point.split(",")[1]) for point in lines[3][1].split()] if len(lines) > 3 else []
    ok(heights and heights[0] == 172.0 and heights[-1] == heights[5] == 92.0, "half of the dataset is half of the height", heights)
    bars = re.findall(r'<rect class="bar (c\d)" x="([\d.]*)" y="([\d.]*)" width="([\d.]*)" height="([\d.]*)"', html)
    equal([kind for kind, *_ in bars], ["c1"] * 3 + ["c4"] * 2 + ["c0"] * 2, "its histograms of how long opens took", html[-3000:])
    # 60 of 100 are three fifths of the height; the last bucket ends where the axis does.
    equal((bars[1][1:], bars[-1][1:3]), (("95.3", "48.0", "13.2", "54.0"), ("413.8", "12.0")), "a bar's place is its bucket, its height its part of the opens of its kind", bars)


e2e.main(as_root(kept), as_root(limits), as_root(locked), page_of_report, page_of_nodes, drawings)
