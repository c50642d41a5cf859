#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""monarchctl metrics: what Prometheus is told of a node's jobs while they run and after they have ended, whatever their owners do; the file
for node_exporter; the socket; the dashboard for Grafana."""

import contextlib
import glob
import json
import os
import re
import shutil
import socket
import subprocess
import threading

import e2e
import one_node
from e2e import BUILD, SOURCE, TOOL, equal, ok, scratch, wait_until
from one_node import FIRST, UID, as_root, as_user

DASHBOARD = f"{SOURCE}/etc/grafana/monarch.json"
TIERS = '{source="tier",tier="nvme"}'
PFS = '{source="pfs",tier=""}'


def numbers(text):
    """{name{labels}: number}"""
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if not line.startswith("#")}


def counters_in(text):
    names = set(re.findall(r"^# TYPE (\w+) counter$", text, flags=re.M))
    return {series: value for series, value in numbers(text).items() if re.match(r"\w+", series)[0] in names}


class Node(one_node.Node):
    """Each look is also one at whether a counter went back since the last."""

    def __init__(self, name):
        super().__init__(name)
        self.last = {}

    def metrics(self, *words, before=()):
        return e2e.execute([*before, TOOL, "metrics", "--state-dir", self.state, "--config", self.config, *words], cwd="/")

    def text(self):
        code, out, err = self.metrics()
        if code != 0 or err:
            ok(False, "metrics are told", code, err)
        return out.decode()

    def look(self, what):
        """The numbers now."""
        text = self.text()
        counters = counters_in(text)
        back = [f"{series}: {value} to {counters.get(series)}" for series, value in self.last.items() if counters.get(series, -1) < value]
        equal(back, [], f"{what}: no counter goes back")
        self.last = counters
        return numbers(text)

    def size(self):
        return sum(os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(self.data) for name in names)


def some(told, want, name):
    equal({series: told.get(series) for series in want}, want, name, told)


def promtool(text, name):
    if not shutil.which("promtool"):
        return e2e.skip(f"{name}: promtool check metrics", "no promtool (Debian: prometheus)")
    process = e2e.start(["promtool", "check", "metrics"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    code, out, err = e2e.finish(process, text=text.encode())
    return equal((code, out, err), (0, b"", ""), f"{name}: promtool has nothing to say against the metrics")


# ---- while jobs run, and after


def version():
    return json.loads(e2e.execute([TOOL, "version", "--json"])[1])["version"]


def lives():
    """Jobs begin, read and end, looked at or not."""
    with contextlib.closing(Node("lives")) as n:
        size, files = n.size(), 30
        told = n.look("no job")
        equal([series for series, value in told.items() if value != 0], [f'monarch_build_info{{version="{version()}"}}'], "no job: all is 0, but for the version")
        equal(n.metrics(before=as_user(UID))[:2], (1, b""), "another user is told nothing")
        n.configure(tier="job_capacity = 10%\n")
        run_dir = n.start(FIRST + 1)
        staged = {'monarch_staging_bytes_total{source="pfs"}': size, "monarch_staged_bytes_total": size, "monarch_staged_files_total": files}
        some(n.look("staged"), {**staged, 'monarch_jobs{state="running"}': 1, "monarch_jobs_unread": 0, "monarch_read_bytes_total" + TIERS: 0,
                                'monarch_tier_placed_bytes{tier="nvme"}': size, 'monarch_tier_limit_bytes{tier="nvme"}': 100 << 20,
                                'monarch_tier_reserved_bytes{tier="nvme"}': n.record(FIRST + 1)["tiers"][0]["quota"],
                                'monarch_jobs_ended_total{counters="read"}': 0}, "a job that has staged all")
        equal([n.last[f'monarch_staging_seconds_total{{source="{source}"}}'] > 0 for source in ("pfs", "peer")], [True, False], "and the time of that, by source")
        n.read(run_dir)
        read = {"monarch_read_bytes_total" + TIERS: size, "monarch_opens_total" + TIERS: files, "monarch_opens_total" + PFS: 0}
        some(n.look("read"), {**staged, **read}, "a job that has read all")
        n.end(FIRST + 1)
        some(n.look("ended"), {**staged, **read, 'monarch_jobs{state="running"}': 0, 'monarch_jobs_ended_total{counters="read"}': 1,
                               'monarch_jobs_ended_total{counters="lost"}': 0}, "what it has counted stays when it has ended")
        for cluster in "c-1", "other":  # which share the state directory
            n.read(n.start(FIRST + 2, cluster))
        some(n.look("two clusters"), {'monarch_jobs{state="running"}': 2, "monarch_opens_total" + TIERS: 3 * files}, "jobs of two clusters with one number")
        for cluster in "c-1", "other":
            n.end(FIRST + 2, cluster)
        jobs = [FIRST + number for number in range(3, 8)]
        for job in jobs:
            n.read(n.start(job))
        n.end_at_once(*jobs)
        told = n.look("at once")
        late = told['monarch_jobs_ended_total{counters="lost"}']  # a busy machine: an epilog does not wait for them
        equal(told['monarch_jobs_ended_total{counters="read"}'] + late, 8, "epilogs at once: each job has ended once", told)
        ok(late or (told["monarch_opens_total" + TIERS], told["monarch_staged_files_total"]) == (8 * files, 8 * files),
           "jobs that nobody has looked at, and epilogs at once, lose nothing", told)
        promtool(n.text(), "after jobs")


# ---- what owners do


def hanging(n):
    """Processes of root's on that node that are in the kernel, and stay there."""
    found = []
    for path in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError), open(f"{path}/cmdline", "rb") as command, open(f"{path}/stat", encoding="utf-8", errors="replace") as stat:
            if n.state.encode() in command.read() and stat.read().rpartition(")")[2].split()[0] == "D":
                found.append(os.path.basename(path))
    return found


def status_told(n, job):
    """Its state and the reason; read to the end of what is written, which nobody keeps open."""
    code, out, err = e2e.execute([TOOL, "status", "--state-dir", n.state, "--json"], cwd="/")
    told = [(j["state"], j.get("reason") or "") for j in json.loads(out or "{}").get("jobs", []) if j["job"] == str(job)]
    ok(code == 0 and len(told) == 1, "status is told", code, err, out)
    return told[0] if told else ("", "")


def move_run_dir(n, job, to):
    """Has the record name another one; returns what it named."""
    path = f"{n.state}/jobs/c-1.{job}.n1.x/record.json"
    record = json.loads(e2e.text_in(path))
    e2e.write(path, json.dumps({**record, "run_dir": to}))
    return record["run_dir"]


@e2e.unless(e2e.why_no_fuse)
def mounted():
    """What an owner has mounted on a job's files takes requests and answers none: nothing of root's asks it."""
    with contextlib.closing(Node("mounted")) as n:
        job = FIRST + 45
        run_dir = n.start(job)
        n.look("before")
        with e2e.unanswering_mount(f"{run_dir}/board", UID, ",rootmode=100000"):
            some(n.look("the board"), {"monarch_jobs_unread": 1, "monarch_staged_files_total": 30}, "something is mounted on the board: metrics")
            state, reason = status_told(n, job)
            ok(state == "unknown" and "mounted a file system" in reason, "something is mounted on the board: status", state, reason)
            ok(wait_until(lambda: not hanging(n)), "something is mounted on the board: no process hangs", hanging(n))
        some(n.look("gone"), {"monarch_jobs_unread": 0}, "nothing is mounted there any more")
        with e2e.unanswering_mount(f"{run_dir}/board", UID, ",rootmode=100000"):
            n.end(job)
            ok(wait_until(lambda: not hanging(n)), "something is mounted on the board: no process hangs after the epilog", hanging(n))
        job = FIRST + 46
        n.start(job)
        n.look("another")
        elsewhere = f"{n.dir}/elsewhere"
        os.mkdir(elsewhere)
        run_dir = move_run_dir(n, job, f"{elsewhere}/run")
        with e2e.unanswering_mount(elsewhere, 0, ",allow_other"):
            for look in range(3):
                some(n.look("hangs"), {"monarch_jobs_unread": 1}, f"what root has mounted hangs: look {look} at the metrics, to their end")
                equal(status_told(n, job)[0], "unknown", f"what root has mounted hangs: look {look} at the status, to its end")
            equal(len(hanging(n)), 1, "of what reads the job's files one hangs", hanging(n))
        move_run_dir(n, job, run_dir)
        ok(wait_until(lambda: not hanging(n)), "it answers again: none hangs", hanging(n))
        some(n.look("answers"), {"monarch_jobs_unread": 0}, "and the job's counters are read")
        n.end(job)


# ---- the file for node_exporter


def textfile():
    with contextlib.closing(Node("textfile")) as n:
        directory, canary = f"{n.dir}/exporter", f"{n.dir}/canary"
        path = f"{directory}/monarch.prom"
        code, _, err = n.metrics("--textfile", directory)
        ok(code == 1 and "No such file" in err and "name the directory" in err and err.count("\n") == 1, "a directory that is not there", code, err)
        os.mkdir(directory)
        e2e.write(canary, "untouched")
        os.symlink(canary, path)
        run_dir = n.start(FIRST + 71)
        code, out, err = n.metrics("--textfile", directory)
        equal((code, out, err, one_node.text_of(canary)), (0, b"", "", "untouched"), "it is written, and no link is followed")
        st = os.lstat(path)
        equal((os.listdir(directory), st.st_uid, oct(st.st_mode)), (["monarch.prom"], 0, "0o100644"), "the file is there alone")
        equal(numbers(one_node.text_of(path)), numbers(n.text()), "and says the same")
        n.read(run_dir)
        writers = [e2e.start([TOOL, "metrics", "--state-dir", n.state, "--config", n.config, "--textfile", directory]) for _ in range(10)]
        faults, last = [], {}
        while any(writer.poll() is None for writer in writers):  # as node_exporter reads it
            now = counters_in(one_node.text_of(path))
            faults.extend(series for series, value in last.items() if now.get(series, -1) < value)
            last.update(now)
        equal(({writer.wait() for writer in writers}, faults), ({0}, []), "many write at once; whoever reads it meanwhile has it whole, and no counter goes back")
        equal(counters_in(one_node.text_of(path))["monarch_opens_total" + TIERS], 30, "and says what came last")


# ---- the socket


def unit(name):
    """A unit of systemd's as it is installed: {section.key: value}"""
    return dict(re.findall(r"^(\w+)=(.*)$", e2e.text_in(f"{BUILD}/etc/{name}"), flags=re.M))


@contextlib.contextmanager
def served(n):
    """The path of a socket that is served as the units say: a process for each connection, which is its standard input and output."""
    words = unit("monarch-metrics@.service")["ExecStart"].split()
    equal((os.path.basename(words[0]), words[0][0], words[1:]), ("monarchctl", "-", ["metrics", "$OPTIONS", "--http"]), "the unit's command")
    words.remove("$OPTIONS")  # which is empty unless a drop-in says otherwise
    equal((unit("monarch-metrics.socket")["Accept"], unit("monarch-metrics@.service")["StandardInput"]), ("yes", "socket"), "a process for each connection")
    path = f"{n.dir}/socket"
    command = [TOOL, *words[1:], "--state-dir", n.state, "--config", n.config]
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(path)
        listener.listen(8)
        listener.settimeout(0.05)
        done = threading.Event()

        def accept():
            while not done.is_set():
                with contextlib.suppress(TimeoutError):
                    connection = listener.accept()[0]
                    connection.setblocking(True)
                    with connection:
                        e2e.start(command, stdin=connection, stdout=connection, stderr=subprocess.DEVNULL, env={})
        thread = threading.Thread(target=accept)
        thread.start()
        stack.callback(thread.join)
        stack.callback(done.set)
        yield path


def asked(path, request):
    """The answer's first line, its fields and its body."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(e2e.PATIENCE)
        client.connect(path)
        with contextlib.suppress(BrokenPipeError):
            client.sendall(request)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return lines[0], dict(line.split(": ", 1) for line in lines[1:] if ": " in line), body.decode()


def by_socket():
    with contextlib.closing(Node("socket")) as n, served(n) as path:
        n.start(FIRST + 81)
        text = n.text()
        first, fields, body = asked(path, b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
        equal((first, fields["Content-Type"], int(fields["Content-Length"])), ("HTTP/1.1 200 OK", "text/plain; version=0.0.4; charset=utf-8", len(body)), "an answer")
        equal(numbers(body), numbers(text), "it is the same")
        for what, request, want in (("HEAD", b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
                                    ("another path", b"GET /etc/shadow HTTP/1.1\r\n\r\n", "404"),
                                    ("another method", b"DELETE /metrics HTTP/1.1\r\n\r\n", "405"),
                                    ("no HTTP", b"\0\xff\r\n\r\n", "400"), ("one who does not go on", b"GET /metr", "400"), ("a head without an end", b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 2000, None)):
            first = asked(path, request)[0]
            ok(want is None or first.startswith(f"HTTP/1.1 {want} "), f"{what}: {want or 'no answer'}", first)
        with socket.socket(socket.AF_UNIX) as client:  # goes away before the answer
            client.connect(path)
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        equal(asked(path, b"GET /metrics HTTP/1.1\r\n\r\n")[0], "HTTP/1.1 200 OK", "one who goes away harms nobody")


def units():
    """What the units say, as systemd understands it."""
    equal((unit("monarch-metrics.socket")["SocketMode"], unit("monarch-metrics.socket")["ListenStream"].endswith("/monarch/metrics.sock")), ("0660", True),
          "the socket is root's and a group's")
    if not shutil.which("systemd-analyze"):
        return e2e.skip("systemd-analyze verify", "no systemd-analyze (Debian: systemd)")
    directory = scratch("units")
    for path in glob.glob(f"{BUILD}/etc/monarch-*.*"):
        e2e.write(f"{directory}/{os.path.basename(path)}", re.sub(r"(ExecStart=-?)\S*/(\w+)", rf"\g<1>{BUILD}/\2", one_node.text_of(path)))
    shutil.copy(f"{directory}/monarch-metrics@.service", f"{directory}/monarch-metrics@1.service")
    _, out, err = e2e.execute(["systemd-analyze", "verify", "--man=no", *glob.glob(f"{directory}/*[!@].*")])
    faults = [line for line in (out.decode() + err).splitlines() if "monarch" in line]
    return equal(faults, [], "systemd has nothing to say against the units")


@e2e.unless(lambda: "MONARCH_VM_BOOT" not in os.environ and "installs units: run by tests/vm.t")
def by_systemd():
    """The units at work, on a machine of dev/lab vm (tests/vm.t): what they may not do there does not keep them from a job's counters."""
    with contextlib.closing(Node("systemd")) as n:
        n.read(n.begin(FIRST + 95))
        directory = scratch("collector")
        for path in glob.glob(f"{BUILD}/etc/monarch-metrics*.*"):
            text = re.sub(r"(ExecStart=-?)\S*/monarchctl metrics", rf"\g<1>{TOOL} metrics --state-dir {n.state} --config {n.config}", e2e.text_in(path))
            e2e.write(f"/run/systemd/system/{os.path.basename(path)}", re.sub(r"(ListenStream=).*", rf"\g<1>{n.dir}/metrics.sock", re.sub(r"(DIRECTORY=).*", rf"\g<1>{directory}", text)))
        for words in (("daemon-reload",), ("start", "monarch-metrics.socket", "monarch-metrics-textfile.timer")):
            code, out, err = e2e.execute(["systemctl", *words], 4 * e2e.PATIENCE)
            equal(code, 0, f"systemctl {words[0]}", out.decode(), err)

        def is_whole(text):
            told = numbers(text)
            return told.get("monarch_jobs_unread") == 0 and told["monarch_opens_total" + TIERS] + told["monarch_opens_total" + PFS] == 30
        for _ in range(3):
            first, _, body = asked(f"{n.dir}/metrics.sock", b"GET /metrics HTTP/1.1\r\n\r\n")
            ok(first == "HTTP/1.1 200 OK" and is_whole(body), "by the socket comes what the job has counted", first, body)
        code, out, err = e2e.execute([*as_user(UID), "curl", "-sS", "--unix-socket", f"{n.dir}/metrics.sock", "http://node/metrics"])
        ok(code != 0 and out == b"", "another user may not ask", code, out, err)
        ok(wait_until(lambda: os.path.exists(f"{directory}/monarch.prom"), 4 * e2e.PATIENCE), "the timer has it written")
        text = e2e.text_in(f"{directory}/monarch.prom")
        ok(is_whole(text), "so it does in the file", text)
        journal = e2e.execute(["systemctl", "list-units", "--all", "--plain", "--no-legend", "monarch-metrics@*"])[1].decode()
        ok(wait_until(lambda: not e2e.execute(["systemctl", "list-units", "--all", "--plain", "--no-legend", "monarch-metrics@*"])[1]), "no unit of a request stays", journal)
        equal(e2e.execute(["systemctl", "stop", "monarch-metrics.socket", "monarch-metrics-textfile.timer"])[0], 0, "they stop")
        equal(os.path.exists(f"{n.dir}/metrics.sock"), False, "the socket goes with its unit")


# ---- what is said of the metrics


def names():
    """The manual, the guide, the dashboard and --json have the metrics that there are, and no others."""
    with contextlib.closing(Node("names")) as n:
        n.start(FIRST + 91)
        text = n.text()
        code, out, err = n.metrics("--json")
        told = json.loads(out)
        in_json = {metric["name"] + ("{" + ",".join(f'{name}="{value}"' for name, value in sorted(sample["labels"].items())) + "}" if sample["labels"] else ""):
                   sample["value"] for metric in told["metrics"] for sample in metric["samples"]}
        equal((code, told["version"], in_json), (0, version(), numbers(text)), "--json says the same", err)
        equal({metric["name"]: (metric["type"], metric["help"]) for metric in told["metrics"]},
              {name: (kind, described) for name, described, _, kind in re.findall(r"^# HELP (\w+) (.*)\n# TYPE (\w+) (\w+)$", text, flags=re.M)}, "types and help, too")
    labels = {}
    for series in numbers(text):
        labels[re.match(r"\w+", series)[0]] = set(re.findall(r'(\w+)="', series))
    equal(set().union(*labels.values()), {"version", "state", "counters", "tier", "source", "operation", "reason", "where"}, "labels are few, and none is a job's")
    ok(len(numbers(text)) < 80, "so are series", len(numbers(text)))
    page = e2e.text_in(f"{SOURCE}/doc/monarchctl.1").split(".SH OUTPUT OF METRICS")[1].split(".SH ")[0]
    equal({name: set(filter(None, of.split(","))) for name, of in re.findall(r'^\.BI? (monarch_\w+)(?: "\{([\w,]+)\}")?$', page, flags=re.M)}, labels,
          "the manual has all, with their labels")
    equal(sorted(set(re.findall(r"\bmonarch_\w+", e2e.text_in(f"{SOURCE}/doc/admin-guide.md").split("### Prometheus")[1].split("\n## ")[0])) - set(labels)), [], "the guide has no others")
    used = set(re.findall(r"\bmonarch_\w+", " ".join(expressions())))
    equal(used, set(labels), "the dashboard has all, and no others")
    for expression in expressions() + queries():
        for name, selected in re.findall(r"\b(monarch_\w+)(?:\{([^}]*)\})?", expression):
            unknown = set(re.findall(r"(\w+)=~?", selected)) - labels[name] - {"instance"}
            values = [series for series in numbers(text) if series.startswith(name) and all(
                f'{label}="{value}"' in series for label, value in re.findall(r'(\w+)="([^"$]*)"', selected))]
            if unknown or not values:
                ok(False, "what is asked for is there", expression, name, selected)
        by = re.findall(r"by \(([\w, ]+)\) \(\w*\(?(monarch_\w+)", expression)
        if any(not set(re.findall(r"\w+", of)) <= labels[name] | {"instance"} for of, name in by):
            ok(False, "what it is summed by is there", expression)


def expressions():
    dashboard = json.loads(e2e.text_in(DASHBOARD))
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def guide_blocks(name):
    with open(f"{SOURCE}/doc/admin-guide.md", encoding="utf-8") as file:
        return [re.sub(r"^    ", "", block, flags=re.M).strip()
                for block in re.findall(rf"<!-- checked by tests/metrics\.t: {name} -->\n\n((?:    [^\n]*\n+)+)", file.read())]


def queries():
    """The guide's expressions of PromQL."""
    return [one for block in guide_blocks("dashboard") for one in re.split(r"\n(?! )", block)]


def guide():
    """The commands in the guide name units and keys that there are."""
    rest = [line for block in guide_blocks("guide") for line in block.splitlines()]
    for line in rest:
        words = line.split()
        if words[:3] == ["systemctl", "enable", "--now"]:
            ok("[Install]" in e2e.text_in(f"{BUILD}/etc/{words[3]}"), f"the guide: {line}")
        elif words[0] == "curl":
            listens = unit("monarch-metrics.socket")["ListenStream"]
            ok(words[2] in (listens, "/run/monarch/metrics.sock") and listens.endswith("/monarch/metrics.sock"), f"the guide: {line}", listens)
        elif line.startswith("Environment="):
            ok(line.split("=")[1] in unit("monarch-metrics-textfile.service")["Environment"], f"the guide: {line}")
        else:
            equal(line, "[Service]", "the guide has nothing else")
    ok(len(rest) >= 5 and len(queries()) >= 4, "the guide was looked at", rest, queries())


@e2e.unless(lambda: not shutil.which("promtool") and "no promtool (Debian: prometheus)")
def dashboard():
    """Each expression is PromQL, and that of what the PFS was spared has the right value."""
    panels = json.loads(e2e.text_in(DASHBOARD))["panels"]

    def plain(text):
        return text.replace("$node", ".*").replace("$__rate_interval", "5m").replace("$__range", "1h")
    rules = {"groups": [{"name": "monarch", "rules": [{"record": f"rule:{i}", "expr": plain(expr)} for i, expr in enumerate(expressions() + queries())]}]}
    directory = scratch("rules")
    e2e.write(f"{directory}/rules.yml", json.dumps(rules))
    code, out, err = e2e.execute(["promtool", "check", "rules", f"{directory}/rules.yml"])
    ok(code == 0 and f"{len(expressions() + queries())} rules found" in out.decode(), "its expressions and the guide's are PromQL", out.decode(), err)
    rates = {"monarch_read_bytes_total{source='pfs',tier='',instance='a'}": 10, "monarch_read_bytes_total{source='tier',tier='nvme',instance='a'}": 70,
             "monarch_read_bytes_total{source='tier',tier='ram',instance='b'}": 20, "monarch_staging_bytes_total{source='pfs',instance='a'}": 15,
             "monarch_staging_bytes_total{source='peer',instance='b'}": 1000, "monarch_opens_total{source='pfs',tier='',instance='a'}": 10,
             "monarch_opens_total{source='tier',tier='nvme',instance='b'}": 30, "monarch_build_info{version='1',instance='a'}": 0, "monarch_build_info{version='2',instance='b'}": 0,
             "monarch_tier_placed_bytes{tier='nvme',instance='a'}": 0, "monarch_tier_limit_bytes{tier='nvme',instance='a'}": 0}
    firsts = {"monarch_tier_placed_bytes{tier='nvme',instance='a'}": 3, "monarch_tier_limit_bytes{tier='nvme',instance='a'}": 4,
              "monarch_build_info{version='1',instance='a'}": 1, "monarch_build_info{version='2',instance='b'}": 1}
    wanted = {"Bytes that the PFS was spared": 0.75, "Hits": 0.75, "Nodes with Monarch": 2, "Read by jobs": 6000, "Delivered by the PFS": 1500}
    tests = [{"expr": plain(p["targets"][0]["expr"]), "eval_time": "2h", "exp_samples": [{"value": wanted[p["title"]]}]}
             for p in panels if p["type"] == "stat" and p["title"] in wanted]
    equal(len(tests), len(wanted), "the panels with one number")
    tests.append({"expr": plain(next(p for p in panels if p["title"] == "Fill of tiers")["targets"][0]["expr"]), "eval_time": "2h",
                  "exp_samples": [{"labels": '{tier="nvme"}', "value": 0.75}]})
    with open(f"{directory}/test.yml", "w", encoding="utf-8") as file:
        json.dump({"tests": [{"interval": "1m", "input_series": [{"series": series, "values": f"{firsts.get(series, 0)}+{rate}x180"} for series, rate in rates.items()],
                              "promql_expr_test": tests}]}, file)
    code, out, err = e2e.execute(["promtool", "test", "rules", f"{directory}/test.yml"])
    return equal(code, 0, "its numbers are right", out.decode(), err)


e2e.main(as_root(lives), as_root(mounted), as_root(textfile), as_root(by_socket), units, as_root(by_systemd), as_root(names), guide, dashboard)
