#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""monarchctl's subcommands that look at a node, a configuration or a report: as text, as JSON, and their errors."""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import e2e
from e2e import BUILD, SOURCE, contains, equal, ok, scratch

TOOL = f"{BUILD}/monarchctl"


def ctl(*words, before=(), **options):
    """(exit code, standard output, standard error)"""
    code, out, err = e2e.execute([*before, TOOL, *words], **options)
    return code, out.decode(), err


def as_json(*words, **options):
    code, out, err = ctl(*words, "--json", **options)
    try:
        return code, json.loads(out), err
    except json.JSONDecodeError:
        return code, {}, f"{out!r} {err}"


def fails(name, words, parts, want=1, **options):
    """One line on standard error that names the subcommand and has these parts, and nothing else."""
    code, out, err = ctl(*words, **options)
    ok(code == want and out == "" and err.startswith("monarchctl") and err.count("\n") == 1,
       f"refused in one line: {name}", f"exit code {code}", out, err)
    contains(err, parts, f"the message tells: {name}")
    ok(re.search(r"; |['(]monarchctl |--\w|\b(name|see|give|as root)\b|[?]", err), f"the message says what to do: {name}", err)


def written(name, text, mode=0o644):
    path = f"{scratch()}/{name}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


# Every key has a value that is not its default, and lists are in several lines.
WHOLE = """[tier.fast]
path = {tier}
quota = 1536K
share = equal
job_capacity = 30%
medium = nvme
driver = tmpfs
charge = job
min_free = 0.5%
[agent]
threads = 3
walk_threads = 2
watch_directories = 0
stage_wait_max = 8M
stage_wait = 0
stage_again = 7
prefetch = off
prefetch_burst = 3G
prefetch_patience = 7
consistency = open
metadata = pass
pfs_bandwidth = 1234567
pfs_opens = 5000
pfs_stats = 1
tier_bandwidth = 1G
background_io = idle
max_files = 77
memory_max = 512M
run_size = none
log = /var/log/x.log
log_level = debug
[peer]
enabled = off
network = fd00::/64
ports = 2000-3000
bandwidth = 1M
encrypt = on
[accounting]
account = spool
spool_days = 1
spool_lines = 2
report_days = 3
report_size = 5M
[policy]
enabled = off
allow_users = a, b
allow_users = c
deny_users = d
allow_groups =
deny_groups = e
allow_datasets = /x:/y
deny_datasets = /x/z
tiers = fast
job_capacity = 1G
max_files = 5
pfs_bandwidth = 1K
pfs_opens = none
pfs_stats = 3
default_dataset = /d:/e
default_options = prefetch=off wait=none
deny_options = wait, tiers
max_prefetch = auto
max_wait = 60
[policy.partition.GPU]
enabled = on
"""


def values_of(told):
    return {(v["section"], v["key"]): v["value"] for v in told.get("values", [])}


def config_show():
    file = written("whole.conf", WHOLE.format(tier=scratch("fast")))
    code, told, err = as_json("config", "show", file)
    equal((code, err, told.get("file")), (0, "", file), "config show --json")
    values = values_of(told)
    lines = WHOLE.splitlines()
    wrong = [v for v in told["values"] if not v["section"].startswith("policy.") and
             (v["source"] != "file" or not lines[v["line"] - 1].startswith(v["key"] + " ="))]
    equal(wrong, [], "each value has the line that it is from")
    equal({key: values.get(key) for key in [("tier.fast", "quota"), ("tier.fast", "min_free"), ("agent", "stage_wait_max"),
                                            ("agent", "run_size"), ("agent", "pfs_bandwidth"), ("policy", "pfs_opens"),
                                            ("policy", "allow_users"), ("policy", "allow_groups"), ("policy", "tiers")]},
          {("tier.fast", "quota"): "1536K", ("tier.fast", "min_free"): "0.5%", ("agent", "stage_wait_max"): "8M",
           ("agent", "run_size"): "none", ("agent", "pfs_bandwidth"): "1234567", ("policy", "pfs_opens"): "none",
           ("policy", "allow_users"): ["a", "b", "c"], ("policy", "allow_groups"): [], ("policy", "tiers"): "fast"},
          "values are exact")
    empty = written("empty.conf", "")
    code, told, err = as_json("config", "show", empty)
    defaults = values_of(told)
    equal({v["source"] for v in told.get("values", [])}, {"default"}, "of an empty file, all are defaults", err)
    equal([key for key, value in defaults.items() if value == values[key] and value is not None], [],
          "the file of this test says something else than the default of each key")
    keys = set()
    for name in "config", "policy_keys":
        with open(f"{SOURCE}/runtime/config/{name}.cc", encoding="utf-8") as source:
            keys.update(re.findall(r'key == "(\w+)"', source.read()))
    with open(f"{SOURCE}/runtime/config/policy_keys.cc", encoding="utf-8") as source:
        keys.update(re.findall(r'"((?:allow|deny)_\w+)"[,}]', source.read()))
    equal(keys ^ {key for _, key in values}, set(), "every key is shown")
    for name, first in ("whole", file), ("empty", empty):
        code, text, err = ctl("config", "show", first)
        again = written(f"{name}.again", text)
        equal((code, err, values_of(as_json("config", "show", again)[1])), (0, "", values_of(as_json("config", "show", first)[1])),
              f"what it prints of the {name} one is a file that means the same", text)
    contains(ctl("config", "show", file)[1], [f"; {file}:{1 + lines.index('threads = 3')}\n"], "a line tells where its value is from")
    code, told, err = as_json("config", "show", file, "--set", "agent.threads=9")
    equal([(v["value"], v["source"], v["line"]) for v in told.get("values", []) if v["key"] == "threads"], [("9", "--set", None)],
          "--set goes before the file", err)
    ok("\033" not in ctl("config", "show", file)[1], "no colours but on a terminal")


def on_terminal(*words, **environment):
    """What a terminal gets, as `script` made one."""
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm", **environment}
    run = subprocess.run(["script", "-qec", " ".join([TOOL, *words]), "/dev/null"], env=env, capture_output=True, check=False,
                         stdin=subprocess.DEVNULL, timeout=e2e.PATIENCE)
    return run.stdout.decode()


def colours():
    file = written("colours.conf", "")
    ok("\033[32m" in on_terminal("config", "check", file), "colours on a terminal")
    ok("\033" not in on_terminal("config", "check", file, NO_COLOR="1"), "none with NO_COLOR")
    ok("\033" not in on_terminal("config", "check", file, TERM="dumb"), "none on a dumb terminal")


def config_check():
    tier = scratch("checked")
    good = written("good.conf", f"[tier.a]\npath = {tier}\nquota = 10%\n")
    code, out, err = ctl("config", "check", good)
    ok(code == 0 and err == "" and "warning" not in out, "config check of a valid file", out, err)
    contains(out, [good, "valid", "1 tiers"], "it says what is there")
    equal(as_json("config", "check", good)[:2][1].get("warnings"), [], "--json: no warnings")
    for name, text, line, key, parts in [
            ("a bad value", "[agent]\n\nthreads = many\n", 3, ("agent", "threads"), ["'many' is not a number from 1 to 256", "mend threads in [agent]"]),
            ("an unknown key", "[peer]\nportz = 1\n", 2, ("peer", "portz"), ["known are enabled"]),
            ("an unknown section", "[agnet]\n", 1, (None, None), ["known are [accounting]", "monarch.conf(5)"]),
            ("no quota", f"[agent]\n[tier.a]\npath = {tier}\n", 2, (None, None), ["write for example quota = 100G"]),
            ("a key of no section", "threads = 1\n", 1, ("", "threads"), ["stands before the first [section]; see monarch.conf(5)"]),
            ("a line that is none", "[agent]\nthreads = 2\nhello\n", 3, (None, None), ["neither [section]"]),
            ("a tier of policy", "[policy]\ntiers = x\n", 2, (None, None), ["no section [tier.x]; add it"]),
            ("an error before a line that is none", "[agent]\nthreads = x\nhello\n", 2, ("agent", "threads"), ["'x' is not"])]:
        file = written("bad.conf", text)
        fails(name, ["config", "check", file], [f"{file}:{line}: ", *parts])
        code, told, _ = as_json("config", "check", file)
        equal((code, told.get("valid"), told.get("line"), told.get("section"), told.get("key")), (1, False, line, *key),
              f"--json tells file, line and key: {name}")
        fails(f"config show, {name}", ["config", "show", file], [f"{file}:{line}: "])
    fails("no file", ["config", "check", f"{tier}/none"], ["No such file", "which may be empty"])
    fails("others can write it", ["config", "check", written("open.conf", "", 0o666)], ["run chmod go-w"])
    fails("a bad word", ["config", "check", good, "--set", "agent.threads=0"], ["plugstack.conf: agent.threads=0: ", "mend threads"])
    fails("no verb", ["config"], ["see 'monarchctl config --help'"], want=2)
    fails("no such option", ["config", "check", "--frob"], ["there is no option --frob; see 'monarchctl config check --help'"], want=2)
    fails("an option mistyped", ["run", "--dataset", "/", "--teir=x", "--", "true"], ["there is no option --teir (did you mean --tier?);"], want=125)
    fails("one that is needed, mistyped", ["run", "--datset", "/", "--", "true"], ["there is no option --datset (did you mean --dataset?);"], want=125)
    fails("no --", ["run", "--dataset", "/", "sh", "-c", "true"], ["there is no option -c; put -- before the command;"], want=125)
    fails("an option of the command's", ["run", "--", "true", "--frob"], ["--dataset is required; see"], want=125)
    os.mkdir(f"{tier}/open")
    os.chmod(f"{tier}/open", 0o777)
    doubtful = written("doubtful.conf", "".join(f"[tier.{name}]\npath = {path}\nquota = {quota}\n" for name, path, quota in [
        ("a", f"{tier}/none", "1G"), ("b", good, "1G"), ("c", f"{tier}/open", "1G"), ("d", tier, "1P")]) +
                       "[policy]\nallow_users = root, nosuch, 4711\n[policy.partition.gpu]\ndeny_groups = root, norsuch\n")
    if os.geteuid() == 0:
        os.chown(doubtful, 65534, 65534)
        code, told, err = as_json("config", "check", doubtful, before=e2e.NOBODY)
    else:
        code, told, err = as_json("config", "check", doubtful)
    equal(code, 0, "what a job will lack is a warning", err)
    contains("\n".join(told.get("warnings", [])), ["run chown root", "none: No such file", "not a directory; name one", "run chmod +t",
                                                   "the quota of 1.00P is more than the file system has",
                                                   "[policy] allow_users: this node knows no user nosuch",
                                                   "[policy.partition.gpu] deny_groups: this node knows no group norsuch"], "the warnings tell")
    equal(len(told.get("warnings", [])), 7 - (os.geteuid() != 0), "and no more", told)


# ---- status


def job_of(told, name):
    return next((job for job in told.get("jobs", []) if job["job"] == name), {})


def awaited(name, state, words=(), **options):
    """The job in `status --json`, once it has that state."""
    found = {}

    def look():
        found.update(job_of(as_json("status", *words, **options)[1], name))
        return found.get("state") == state

    ok(e2e.wait_until(look), f"{name} gets {state}", found)
    return found


def status_of_run():
    dataset, tier = scratch("status.data"), scratch("status.tier")
    size = e2e.make_tree(dataset, 40)
    script = 'find "$1" -type f -exec cat {} + >/dev/null; cat "$1/new" 2>/dev/null; echo up; read x'
    process = e2e.start([TOOL, "run", *e2e.options([dataset], {"t": (tier, "1G")}), "--", "sh", "-c", script, "sh", dataset],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=e2e.environment())
    equal(process.stdout.readline(), b"up\n", "a run with Monarch")
    name = f"run.{process.pid}"
    job = awaited(name, "staged-in")
    equal((job["files"], job["bytes"]["staged"], job["bytes"]["all"], job["bytes"]["estimated"]),
          ({"staged": 40, "all": 40, "percent": 100}, size, size, False), "status: all is staged")
    equal((job["opens_tier"], [t["name"] for t in job["tiers"]], job["tiers"][0]["placed_bytes"], job["tiers"][0]["granted"]),
          (40, ["t"], size, 1 << 30), "status: opens and the tier")
    # As long as the walk goes on, the agent is asked for it.
    absent = [reason for reason in ("absent", "pass") if job["fallbacks"][reason]]
    ok(job["opens"] > 40 and sum(job["fallbacks"].values()) == job["opens"] - 40 and bool(absent),
       "status: each open on the PFS has its reason", job)
    code, out, err = ctl("status", name)
    equal((code, err), (0, ""), "status JOBID")
    contains(out, ["staged-in", "40 of 40 (100%)", f"on the PFS: fallback_{absent[0]}", "GRANTED", "1.00G"], "it tells files, fallbacks and tiers")
    code, out, err = ctl("status")
    ok(code == 0 and re.search(rf"^{re.escape(name)} .* 100% .* staged-in$", out, flags=re.M), "status lists the job in a line", out, err)
    if os.geteuid() == 0 and not e2e.why_not_nobody():
        equal(job_of(as_json("status", before=e2e.NOBODY)[1], name), {}, "another user does not see it")
        someone = ["setpriv", "--reuid=64321", "--regid=64321", "--clear-groups"]
        equal(ctl("status", before=someone)[1], "no job with Monarch on this node that is user 64321's\n", "nor is that user told that there is none")
    run_dir = e2e.run_dirs(process.pid)[0]
    agent = e2e.children(process.pid, "monarchd")[0]
    e2e.wait_until(lambda: os.path.exists(f"{run_dir}/series"))
    os.kill(agent, 9)
    job = awaited(name, "agent-died")
    equal(job["files"]["staged"], 40, "after the agent's death the numbers are there")
    contains(ctl("status", name)[1], ["agent-died", "the rest from the PFS"], "it says what that means")
    os.truncate(f"{run_dir}/board", 100)
    equal(job_of(as_json("status")[1], name).get("state"), "unknown", "a board that is none")
    process.communicate(b"\n", timeout=e2e.PATIENCE)
    equal(process.returncode, 0, "the run whose board was cut ends, with the command's exit code")
    fails("a job that is not there", ["status", name], [f"no job {name}", "monarchctl status"])
    for name in "4711_3", "run.", "run.x", "job", "-1":
        fails(f"no job: {name}", ["status", name], ["see 'monarchctl status --help'", *(["squeue -O JobID"] if name[0] != "-" else [])], want=2)
    fails("no subcommand", ["stauts", "4711"], ["there is no subcommand 'stauts'; see 'monarchctl --help'"], want=2)
    fails("no configuration", ["tiers", "--config", f"{scratch()}/none.conf"], ["none.conf: No such file", "--config FILE"])
    equal([j for j in as_json("status")[1]["jobs"] if j["job"] == name], [], "after its end it is not there")


def status_of_a_failed_file():
    """One file that no tier can take: the rest is staged, and that is all."""
    dataset, tier = scratch("failed.data"), scratch("failed.tier")
    size = e2e.make_tree(dataset, 10)
    with open(f"{dataset}/zzz", "wb") as file:
        os.truncate(file.fileno(), 62 << 20)
    script = 'find "$1" -type f -exec cat {} + >/dev/null; echo up; read x'
    limit = ["prlimit", f"--fsize={60 << 20}"]
    process = e2e.start([*limit, TOOL, "run", *e2e.options([dataset], {"t": (tier, "1G")}), "--", "sh", "-c", script, "sh", dataset],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=e2e.environment())
    equal(process.stdout.readline(), b"up\n", "a run with Monarch")
    job = awaited(f"run.{process.pid}", "staged-in")
    equal((job.get("files"), job.get("bytes", {}).get("staged"), job.get("bytes", {}).get("estimated")),
          ({"staged": 10, "all": 11, "percent": 100 * 10 / 11}, size, False), "a file that a tier cannot take is settled, too")
    process.communicate(b"\n", timeout=e2e.PATIENCE)
    equal(process.returncode, 0, "the run ends")


def places_of_node(name):
    """For jobs of a user as root's helpers begin them: the scratch directory, and in it the paths of state, tier and dataset."""
    base = scratch(name)
    os.chmod(base, 0o755)
    state, tier, data = (f"{base}/{part}" for part in ("state", "tier", "data"))
    os.mkdir(tier)
    os.chmod(tier, 0o1777)
    return base, state, tier, data


def jobs_of_two_clusters():
    """A machine that is a node of two clusters, with jobs of one number, one after the other."""
    if os.geteuid() != 0:
        return e2e.skip("jobs of two clusters", "needs root")
    if why := e2e.why_not_nobody():
        return e2e.skip("jobs of two clusters", why)
    base, state, tier, data = places_of_node("two")
    number, where = str(os.getpid() * 10 + 8), ["--state-dir", state]
    for cluster, files in ("one", 10), ("two", 20):
        e2e.make_tree(f"{data}.{cluster}", files)
        subprocess.run(["chmod", "-R", "a+rX", f"{data}.{cluster}"], check=True)
    config = written("two/monarch.conf", f"[tier.nvme]\npath = {tier}\nquota = 100M\nmin_free = 0\n")

    def monarchd(hook, cluster, *more):
        code, out, err = e2e.execute([f"{BUILD}/monarchd", hook, *where, "--job", number, "--cluster", cluster, "--node", "n1", "--log", f"{base}/log",
                                      "--config", config, *more])
        equal(code, 0, f"{hook} of cluster {cluster}", out, err)

    def told(what):
        return {name: as_json("report", f"{number}{name}", *where)[1] for name in what}

    def start(cluster):
        monarchd("--start", cluster, "--uid", "65534", "--gid", "65534", "--datasets", f"{data}.{cluster}")

    start("one")
    awaited(number, "staged-in", where)
    contains(ctl("report", number, *where)[1], [f"Job         {number} of cluster one (staged-in)"], "report: whose job it is")
    ok(re.search(rf"^{number} ", ctl("status", *where)[1], flags=re.M), "status: one that is alone has its number only")
    start("two")
    def alive():
        return sorted(job["cluster"] for job in as_json("status", *where)[1].get("jobs", []) if job["job"] == number and job["state"] in ("running", "staging-in", "staged-in"))

    ok(e2e.wait_until(lambda: alive() == ["one", "two"]), "jobs of one number", alive())
    for words in ["status"], ["top", "--batch", "--count", "1"]:
        lines = re.findall(rf"^{number}(\S*) ", ctl(*words, *where)[1], flags=re.M)
        equal(sorted(lines), ["@one", "@two"], f"{words[0]}: their lines name their clusters")
    contains(ctl("status", number, *where)[1], [f"Job         {number} of cluster one on node n1", f"Job         {number} of cluster two on node n1"],
             "status JOBID: both")
    out = ctl("status", f"{number}@two", *where)[1]
    ok("cluster two" in out and "cluster one" not in out, "status JOBID@CLUSTER: that one", out)
    fails("status: a cluster that has none", ["status", f"{number}@three", *where], [f"no job {number}@three", f"'squeue -j {number}'"])
    for name in f"{number}@", "x@one":
        fails(f"status {name}", ["status", name, *where], ["no job"], want=2 if name[0] == "x" else 1)
    both = [f"2 clusters have or had a job {number} on this node", f"{number}@one or {number}@two"]
    fails("report: which of them is not told", ["report", number, *where], both)
    equal({name: (job.get("name"), job.get("cluster"), job.get("source")) for name, job in told(("@one", "@two")).items()},
          {"@one": (number, "one", "job"), "@two": (number, "two", "job")}, "report JOBID@CLUSTER: that one")
    monarchd("--epilog", "one", "--account-program", "")
    fails("report: one that has ended beside another", ["report", number, *where], both)
    monarchd("--epilog", "two", "--account-program", "")
    fails("report: two that have ended", ["report", number, *where], both)
    equal({name: (job.get("cluster"), job.get("source")) for name, job in told(("@one", "@two")).items()},
          {"@one": ("one", "kept"), "@two": ("two", "kept")}, "report JOBID@CLUSTER: the kept one of each")
    contains(ctl("report", f"{number}@one", *where)[1], [f"Job         {number} of cluster one (ended)"], "as text")
    contains(ctl("report", f"{number}@one", "--html", "-", *where)[1], [f"<title>Job {number} of cluster one (ended)"], "as a page")
    return None


def status_of_slurm():
    """As root's helpers begin a job, without Slurm."""
    if os.geteuid() != 0:
        return e2e.skip("jobs of Slurm", "needs root")
    if why := e2e.why_not_nobody():
        return e2e.skip("jobs of Slurm", why)
    base, state, tier, data = places_of_node("node")
    e2e.make_tree(data, 30)
    subprocess.run(["chmod", "-R", "a+rX", data], check=True)
    config, log = written("node/monarch.conf", f"[tier.nvme]\npath = {tier}\nquota = 100M\nmin_free = 0\n"), f"{base}/log"
    number = str(os.getpid() * 10 + 7)
    where, words = ["--state-dir", state], ["--state-dir", state, "--job", number, "--cluster", "c-1", "--node", "n1.x", "--log", log]
    equal(as_json("status", *where)[1].get("jobs") is not None and os.path.exists(state), False, "status makes no state directory")
    code, out, err = e2e.execute([f"{BUILD}/monarchd", "--prolog", *words, "--datasets", data])
    equal(code, 0, "a prolog", err)
    equal(awaited(number, "pending", where)["node"], "n1.x", "the prolog's job")
    start = ["--start", *words, "--config", config, "--uid", "65534", "--gid", "65534", "--datasets"]
    e2e.execute([f"{BUILD}/monarchd", *start, f"{base}/none"])
    job = awaited(number, "failed", where)
    contains(job.get("reason") or "", ["/none: No such file"], "a job without an agent, and why")
    code, out, err = e2e.execute([f"{BUILD}/monarchd", *start, data])
    equal(code, 0, "a job", out, err)
    job = awaited(number, "staged-in", where)
    equal((job["user"], job["cluster"], job["node"], job["files"]["staged"], job["tiers"][0]["name"]),
          ("nobody", "c-1", "n1.x", 30, "nvme"), "root sees the user's job")
    slurm_conf = {"SLURM_CONF": written("node/slurm.conf", "ClusterName=c-1\n")}
    equal(job_of(as_json("status", env=slurm_conf)[1], number), {}, "no plugstack.conf: root's state directory is the default one")
    written("node/plugstack.conf", f"include {base}/plug*.d/*\n")
    os.mkdir(f"{base}/plugs.d")
    line = written("node/plugs.d/monarch", f"optional /lib/spank_monarch.so config={config} state_dir={state}\n")
    for words_of in (["status"], ["top", "--count", "1"]):
        told = ctl(*words_of, "--json", env=slurm_conf)[1]
        equal(job_of(json.loads(told.split("\n")[0] if words_of[0] == "top" else told), number).get("state"), "staged-in",
              f"{words_of[0]}: the state directory that plugstack.conf names")
    equal([t["path"] for t in as_json("tiers", env=slurm_conf)[1]["tiers"] if t["chosen"]], [tier], "tiers: the configuration that it names")
    contains(ctl("config", "check", env=slurm_conf)[1], [config], "config check: likewise")
    os.rename(line, f"{base}/elsewhere")
    for how in ("plugstackconfig={}", "ClusterName=c-1 PlugStackConfig = {} # that one", "PLUGSTACKCONFIG= {}"):
        written("node/slurm.conf", f"# PlugStackConfig=/none\n{how.format(base + '/elsewhere')}\n")
        equal(job_of(as_json("status", env=slurm_conf)[1], number).get("state"), "staged-in", f"{how} names the file")
    os.mkdir(f"{base}/sub")
    quoted = f"{base}/quoted name"
    shutil.copy(f"{base}/elsewhere", quoted)
    written("node/sub/c-1.conf", f"PlugStackConfig=/none\nPlugStackConfig=\\\n\"{quoted}\"\n")
    written("node/sub/a.conf", "include %c.conf\n")
    for how in ("Include sub/a.conf", f"INCLUDE {base}/sub/a.conf # all nodes", "PlugStackConfig=/none\ninclude sub/a.conf"):
        written("node/slurm.conf", f"ClusterName=c-1\n{how}\n")
        equal(job_of(as_json("status", env=slurm_conf)[1], number).get("state"), "staged-in", f"{how}: a file that slurm.conf includes names the file")
    written("node/slurm.conf", "Include slurm.conf\nInclude none.conf\nClusterName=c-1\n")
    os.rename(f"{base}/elsewhere", line)
    equal(job_of(as_json("status", env=slurm_conf)[1], number).get("state"), "staged-in", "one that includes itself, and what is not there")
    run_dir = job["run_dir"]
    os.chmod(state, 0o777)
    fails("status: a state directory that anybody may change", ["status", *where], [state])
    fails("report: likewise", ["report", number, *where], [state])
    os.chmod(state, 0o755)
    job = awaited(number, "staged-in", where, before=e2e.NOBODY)
    equal((job["cluster"], job["node"], job["files"]["staged"]), ("c-1", "n1.x", 30), "so does its owner")
    with open(f"{state}/jobs/c-1.{number}.n1.x/record.json", encoding="utf-8") as record:
        os.kill(json.load(record)["pid"], 9)
    awaited(number, "agent-died", where)
    equal(job_of(as_json("status", before=e2e.NOBODY)[1], number), {}, "no process tells the owner of it")
    task = e2e.start([*e2e.NOBODY, "sleep", "100"], env={"PATH": "/usr/bin:/bin", "MONARCH_IO_RUN_DIR": run_dir})
    awaited(number, "agent-died", where, before=e2e.NOBODY)
    e2e.end(task)
    board = f"{run_dir}/board"
    with open(board, "rb") as file:
        whole = bytearray(file.read())
    spoilt = whole[:]
    spoilt[:1 << 16] = whole[:64] + b"\xff" * ((1 << 16) - 64)
    for name, make in [("numbers that no agent has", None), ("a FIFO", os.mkfifo),
                       ("a link to what only root reads", lambda path: os.symlink("/etc/shadow", path))]:
        if make:
            os.remove(board)
            make(board)
        else:
            with open(board, "wb") as file:
                file.write(spoilt)
        job = job_of(as_json("status", *where, seconds=20)[1], number)
        equal((job.get("state"), "files" in job), ("unknown", False), f"root believes nothing: {name}", job)
    os.remove(board)
    equal(job_of(as_json("status", *where)[1], number).get("state"), "allocating", "no board yet")
    code, _, err = e2e.execute([f"{BUILD}/monarchd", "--epilog", *words, "--config", config, "--account-program", ""])
    equal(code, 0, "its epilog", err)
    ok(e2e.wait_until(lambda: as_json("status", *where)[1].get("jobs") is not None and
                      not job_of(as_json("status", *where)[1], number)), "and it is gone")
    return None


# ---- doctor


SLURM = {"PrologFlags": "Alloc,Contain", "ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/affinity,task/cgroup",
         "JobContainerType": "job_container/none", "AccountingStorageType": "accounting_storage/slurmdbd"}


def plugin_release():
    """Of the Slurm that the plugin was built for, or "" without one."""
    if not os.path.exists(f"{BUILD}/spank_monarch.so"):
        return ""
    with open("/usr/include/slurm/slurm_version.h", encoding="utf-8") as header:
        number = int(re.search(r"SLURM_VERSION_NUMBER (0x\w+)", header.read())[1], 16)
    return f"{number >> 16 & 255}.{number >> 8 & 255:02}"


def fake_slurm(release, changes=None, plugstack=None, sacctmgr="exit 0", selinux="exit 127"):
    """Programs that answer as Slurm's; the environment with which they are found, and plugstack.conf."""
    base = scratch("fake")
    os.makedirs(f"{base}/bin", exist_ok=True)
    os.makedirs(f"{base}/conf/more", exist_ok=True)
    values = {**SLURM, **(changes or {}), "SLURM_CONF": f"{base}/conf/slurm.conf", "SLURM_VERSION": f"{release}.3-1", "PluginDir": BUILD}
    for name, text in [("bin/scontrol", "#!/bin/sh\ncat <<'E'\nConfiguration data as of now\n" +
                        "".join(f"{key:<23} = {value}\n" for key, value in values.items()) + "E\n"),
                       ("bin/sacctmgr", f"#!/bin/sh\n{sacctmgr}\n"), ("bin/getenforce", f"#!/bin/sh\n{selinux}\n"),
                       ("conf/plugstack.conf", "# nothing else\ninclude more/*.conf\n"),
                       ("conf/more/monarch.conf", plugstack or "optional spank_monarch.so config={config} state_dir={state}\n")]:
        written(f"fake/{name}", text.format(config=f"{base}/monarch.conf", state=f"{base}/state") if "/more/" in name else text, 0o755)
    os.makedirs(f"{base}/tier", exist_ok=True)
    os.chmod(f"{base}/tier", 0o1777)
    written("fake/monarch.conf", f"[tier.t]\npath = {base}/tier\nquota = 1G\n")
    return e2e.native_environment(PATH=f"{base}/bin:{os.environ['PATH']}")


def findings(told, level=None):
    return [(c["check"], c["level"], c["text"], c["remedy"]) for c in told.get("checks", []) if level in (None, c["level"])]


def has(found, check, level, parts, name):
    """Whether there is such a finding, and its remedy, if it is not ok."""
    some = [f for f in found if f[:2] == (check, level) and all(part in f"{f[2]} -> {f[3]}" for part in parts)]
    ok(some and (level in ("ok", "skip") or some[0][3]), f"doctor: {name}", *found)


def doctor():
    if e2e.SANITIZER:
        return e2e.skip("doctor", "an instrumented library cannot be loaded by itself")
    code, out, err = ctl("doctor", before=["/usr/bin/env", "PATH=/nowhere"])
    ok(err == "" and re.search(r"^skip plugin     there is no Slurm", out, flags=re.M), "doctor where there is no Slurm", code, out, err)
    release = plugin_release()
    if not release:
        return e2e.skip("doctor with Slurm", "the plugin is not built")
    env = fake_slurm(release)
    code, told, err = as_json("doctor", env=env)
    equal((code, told.get("failed"), err), (0, 0, ""), "doctor of a good node", *findings(told))
    good = findings(told)
    for check, part in [("agent", "monarchd, version"), ("library", "libmonarch_preload.so"), ("peers", "libmonarch_peers.so"),
                        ("plugin", f"spank_monarch.so, for Slurm {release}"), ("config", "fake/monarch.conf"),
                        ("state", "fake/state is made when"), ("tiers", "fake/tier"), ("slurmdbd", "slurmdbd answers"),
                        *(("slurm", f"{key} = {value}") for key, value in SLURM.items())]:
        has(good, check, "ok", [part], f"{check} is good")
    for check in "io_uring", "openat2", "pidfd", "cgroups", "containers":
        ok([f for f in good if f[0] == check and f[1] in ("ok", "warn")], f"doctor: it looks for {check}")
    if os.geteuid() == 0 and not e2e.why_not_nobody():
        os.chmod(f"{scratch('fake')}/monarch.conf", 0o600)
        os.makedirs(f"{scratch('fake')}/state")
        code, told, err = as_json("doctor", env=env, before=e2e.NOBODY)
        equal(code, 0, "doctor as a user", err, *findings(told))
        has(findings(told), "config", "skip", ["only root can read it"], "a user cannot read the configuration")
        has(findings(told), "state", "skip", ["only root can see it"], "a user cannot see the state")
        os.chmod(f"{scratch('fake')}/state", 0o777)
        has(findings(as_json("doctor", env=env)[1]), "state", "FAIL", ["not only root can write it", "chmod go-w"], "a state directory that all can write")
        os.rmdir(f"{scratch('fake')}/state")
        os.chmod(f"{scratch('fake')}/monarch.conf", 0o644)
    for key, value, parts in [("PrologFlags", "(null)", ["PrologFlags=Contain"]), ("PrologFlags", "Alloc", ["PrologFlags=Contain"]), ("ProctrackType", "proctrack/linuxproc", ["proctrack/cgroup"]),
                              ("TaskPlugin", "task/none", ["task/cgroup"]), ("JobContainerType", "job_container/tmpfs", ["job_container.conf"]),
                              ("AccountingStorageType", "accounting_storage/none", ["slurmdbd"])]:
        code, told, err = as_json("doctor", env=fake_slurm(release, {key: value}))
        has(findings(told), "slurm", "warn", [f"{key} = {value}", *parts], f"{key} = {value}")
        equal(code, 0, f"a warning is no failure: {key}")
    for selinux, level, parts in [("exit 127", "ok", ["no SELinux"]), ("echo Permissive", "ok", ["SELinux: Permissive"]),
                                  ("echo Enforcing", "warn", ["SELinux: Enforcing", "setenforce 0", "ausearch"])]:
        has(findings(as_json("doctor", env=fake_slurm(release, selinux=selinux))[1]), "selinux", level, parts, f"SELinux: {selinux}")
    env = fake_slurm(release, selinux="echo Enforcing")
    relabels = 'for f; do case $f in *_preload.so|*spank_monarch.so) echo "Would relabel $f from a:b:user_home_t:s0 to a:b:lib_t:s0" ;; esac; done'
    for script, level, parts in [("exit 127", "skip", ["no restorecon"]), ("echo no policy >&2; exit 1", "skip", ["SELinux labels"]), ("exit 0", "ok", ["SELinux labels"]),
                                 (relabels, "warn", ["libmonarch_preload.so from a:b:user_home_t", "restorecon -v /"]),
                                 (relabels, "warn", ["spank_monarch.so from a:b:user_home_t", "restorecon -v /"])]:
        written("fake/bin/restorecon", f"#!/bin/sh\n{script}\n", 0o755)
        has(findings(as_json("doctor", env=env)[1]), "selinux", level, parts, f"labels: {script[:20]}")
    os.remove(f"{scratch('fake')}/bin/restorecon")
    hooks = scratch("enroot")
    env = {**fake_slurm(release), "ENROOT_SYSCONF_PATH": hooks}
    if not shutil.which("enroot"):
        has(findings(as_json("doctor", env=env)[1]), "containers", "ok", ["no enroot"], "no enroot, no hook")
    written("fake/bin/enroot", "#!/bin/sh\n", 0o755)
    has(findings(as_json("doctor", env=env)[1]), "containers", "warn", [f"{hooks}/hooks.d/50-monarch.sh: No such file", "install -m 755", f" {hooks}/hooks.d/"],
        "enroot without the hook")
    os.mkdir(f"{hooks}/hooks.d")
    written("enroot/hooks.d/50-monarch.sh", "#!/bin/sh\n", 0o644)
    has(findings(as_json("doctor", env=env)[1]), "containers", "warn", ["cannot be run", "chmod 755"], "a hook that cannot be run")
    os.chmod(f"{hooks}/hooks.d/50-monarch.sh", 0o755)
    has(findings(as_json("doctor", env=env)[1]), "containers", "ok", ["enroot's hook"], "enroot's hook is there")
    os.remove(f"{scratch('fake')}/bin/enroot")
    code, told, err = as_json("doctor", env=fake_slurm("99.11"))
    has(findings(told), "plugin", "FAIL", [f"built for Slurm {release}, and this is 99.11.3", "--with-slurm"], "a plugin for another release")
    equal(code, 1, "exit code 1")
    for line, parts in [("optional /nowhere/spank_monarch.so\n", ["/nowhere/spank_monarch.so: No such file"]),
                        (f"optional {written('spank_monarch.so', 'x')}\n", ["not a 64-bit ELF object"]),
                        ("optional other.so\n", ["has no line for spank_monarch.so", "add: optional"])]:
        has(findings(as_json("doctor", env=fake_slurm(release, plugstack=line))[1]), "plugin", "FAIL", parts, f"plugstack.conf: {parts[0]}")
    code, told, err = as_json("doctor", env=fake_slurm(release, sacctmgr="sleep 100"), seconds=60)
    has(findings(told), "slurmdbd", "FAIL", ["no answer in 5 s"], "a daemon that hangs")
    ok(not e2e.execute(["pgrep", "-fx", f"/bin/sh {scratch('fake')}/bin/sacctmgr.*"])[1], "and nothing of the question is left")
    has(findings(as_json("doctor", env=fake_slurm(release, sacctmgr="echo no connection; exit 1"))[1]), "slurmdbd", "warn",
        ["no connection"], "slurmdbd is away")
    env = fake_slurm(release, plugstack="optional spank_monarch.so config={config} agent.threads=0\n")
    has(findings(as_json("doctor", env=env)[1]), "config", "FAIL", ["agent.threads=0"], "a word of plugstack.conf")
    written("fake/bad.conf", f"[tier.t]\npath = {scratch('fake')}/none\nquota = 1G\n[peer]\nenabled = on\n")
    code, told, err = as_json("doctor", "--config", f"{scratch('fake')}/bad.conf", env=fake_slurm(release))
    has(findings(told), "tiers", "FAIL", ["none", "No such file"], "a tier that is not there")
    has(findings(told), "peers", "ok", ["libmonarch_peers.so"], "the peers' library")
    # What is beside the program is looked at first.
    moved = scratch("moved")
    for part in "monarchctl", "monarchd":
        os.link(f"{BUILD}/{part}", f"{moved}/{part}") if os.stat(BUILD).st_dev == os.stat(moved).st_dev else shutil.copy2(f"{BUILD}/{part}", moved)
    written("moved/libmonarch_preload.so", "x" * 4096)
    written("moved/libmonarch_peers.so", "x" * 4096)
    code, out, _ = e2e.execute([f"{moved}/monarchctl", "doctor", "--json", "--config", f"{scratch('fake')}/bad.conf"], env=fake_slurm(release))
    found = findings(json.loads(out))
    has(found, "library", "FAIL", ["cannot be loaded"], "a damaged library")
    has(found, "peers", "FAIL", ["libmonarch_peers.so", "enabled = off in [peer]"], "a damaged library of peers")
    return None


# ---- report


def a_report(opens=100, opens_tier=90, tasks=None, agent=None, read_bytes=3000, placed=1000):
    """As `run --report` writes it."""
    return {"version": "0", "opens": opens, "opens_tier": opens_tier, "hit": 0.9,
            "tiers": [{"name": "t", "opens": opens_tier, "read_calls": 300, "read_bytes": read_bytes, "placed_bytes": placed, "granted": 5000}],
            "tasks": {"opens_pfs": opens - opens_tier, "read_bytes_pfs": 0, **(tasks or {})},
            "agent": {"agent_bytes_pfs": 1000, "dataset_bytes": 1000, "staged_files": 30, "prefetch_files": 30, "agent_reads_pfs": 30,
                      "agent_opens_pfs": 30, "walk_dirs": 2, "walk_files": 30, **(agent or {})}}


# What each rule of advice holds for, and what it says.
RULES = [
    ("nothing-attached", {"opens": 0, "opens_tier": 0}, ["although 30 files were staged", "MONARCH_IO_LOG"]),
    ("agent-died", {"tasks": {"fallback_no_agent": 10}}, ["10 opens", "memory_max"]),
    ("tier-failed", {"tasks": {"fallback_tier_error": 1}}, ["a tier failed 1 time:"]),
    ("pfs-failed", {"agent": {"source_errors": 2}}, ["2 files could not be read"]),
    ("tier-too-small", {"agent": {"no_fit_files": 3, "dataset_bytes": 1000 + (40 << 30)}}, ["too small by 40.0G for 3 files", "--exclusive"]),
    ("excluded", {"tasks": {"fallback_excluded": 10}}, ["MONARCH_IO_EXCLUDE"]),
    ("mounts", {"tasks": {"fallback_mount": 10}}, ["container-args"]),
    ("large-files", {"tasks": {"fallback_large": 10}}, ["10 opens of large files", "--monarch-wait=full"]),
    ("slow-staging", {"tasks": {"fallback_timeout": 10}}, ["--monarch-prefetch=all"]),
    ("written", {"tasks": {"fallback_invalid": 10}}, ["the job had written"]),
    ("changed", {"tasks": {"fallback_dropped": 10}}, ["changed on the PFS"]),
    ("never-opened", {"agent": {"staged_files": 500, "prefetch_files": 500}}, ["400 files were staged and not opened", "--monarch-prefetch=off"]),
    ("read-once", {"read_bytes": 1000}, ["about once"]),
    ("good", {}, ["90 opens of 100 were served"]),
]


def report_of_file():
    for rule, what, parts in RULES:
        file = written("report.json", json.dumps(a_report(**what)))
        code, told, err = as_json("report", file)
        equal((code, told.get("rule"), err), (0, rule, ""), f"advice: {rule}", told.get("advice"))
        contains(told.get("advice", ""), parts, f"advice: {rule}: what to do")
        contains(ctl("report", file)[1], [told.get("advice", "?")], f"advice: {rule}, as text")
    with open(f"{SOURCE}/admin/advice.cc", encoding="utf-8") as source:
        equal(re.findall(r'^    \{"([\w-]+)",', source.read(), flags=re.M), [rule for rule, _, _ in RULES],
              "each rule has its case, in this order")
    for fallback in "no_agent", "excluded", "mount", "large", "timeout", "invalid", "dropped":
        few = written("few.json", json.dumps(a_report(tasks={f"fallback_{fallback}": 5})))
        equal(as_json("report", few)[1].get("rule"), "good", f"a twentieth of the opens is not worth a line: {fallback}")
    file = written("report.json", json.dumps(a_report()))
    told = as_json("report", file)[1]
    equal((told["bytes_read"], told["bytes_pfs"], told["epochs"], round(told["spared_percent"], 1), round(told["bound_percent"], 1), told["hit"]),
          (3000, 1000, 3.0, 66.7, 66.7, 0.9), "bytes, epochs and f(E-1)/E")
    contains(ctl("report", file)[1], ["1000 instead of 2.93K: 66.7% less", "42 instead of 100: 58.0% less", "read 3.0 times"], "the same as text")
    code, out, err = ctl("report", "-", stdin=open(file, "rb"))  # pylint: disable=consider-using-with
    contains(out, ["66.7% less"], "a report by standard input")
    whole = {**a_report(), "job": {"nodes": 4, "opens": 400, "opens_tier": 300, "read_calls_tier": 9, "read_bytes_tier": 8000,
                                   "placed_bytes": {"nvme": 1000, "ram": 5}, "tasks": {"opens_pfs": 100}, "agent": {"agent_bytes_pfs": 1000}}}
    told = as_json("report", written("nodes.json", json.dumps(whole)))[1]
    equal((told["nodes"], told["opens"], told["bytes_read"], told["placed_bytes"]), (4, 400, 8000, 1005), "of several nodes, all of them")
    equal(told["open_times"], None, "of a release that did not measure how long opens took")
    ok("Open times" not in ctl("report", f"{scratch()}/nodes.json")[1], "and the line is left out")
    took = {"tier": {"1": 4, "2": 45, "4": 51}, "waited": {"2097152": 98, "more": 2}, "pfs": {"more": 1}}
    whole["job"]["open_times"], whole["open_times"] = took, {"tier": {}, "waited": {}, "pfs": {"0.5": 1}}
    file = written("took.json", json.dumps(whole))
    told = as_json("report", file)[1]["open_times"]
    equal([[told[kind][name] for name in ("timed", "median_below_us", "p99_below_us")] for kind in took], [[100, 4, 4], [100, 2097152, None], [1, None, None]], "how long opens took, on all nodes")
    contains(ctl("report", file)[1], ["Open times  of tiers' copies: half took less than 4us, 99% less than 4us (about one of 64 was timed)\n            that waited: half took less than 2.1s, more than 1% took 2.1s or more\n"
                                      "            on the PFS: more than half took 2.1s or more\n"], "the same as text")
    for what, times in (("text", "x"), ("a kind that lacks", {"tier": {}, "pfs": {}}), ("a bound that is none", {**took, "pfs": {"3": 1}}), ("a huge number", {**took, "pfs": {"2": 1 << 61}})):
        whole["job"]["open_times"] = times
        fails(f"report: open times that are none: {what}", ["report", written("bad.json", json.dumps(whole))], ["open_times is none of Monarch's"])
    for name, text in [("no JSON", "hello"), ("an array", "[]"), ("something else", '{"a": 1}'), ("a number that is none", json.dumps(a_report(opens=-1))),
                       ("a number beyond all", json.dumps(a_report(opens=1 << 62))), ("a text", json.dumps(a_report(tasks={"waits": "x"}))),
                       ("a fraction", json.dumps(a_report(read_bytes=1.5))), ("no counters", '{"tiers": []}'), ("depth", "[" * 100000)]:
        fails(f"report: {name}", ["report", written("bad.json", text)], ["not a report of 'monarchctl run --report'"])
    written("4711", json.dumps(a_report()))
    fails("report: a number is a job's, whatever file has that name", ["report", "4711"], ["job 4711 is not on this node"], cwd=scratch())
    equal(ctl("report", "./4711", cwd=scratch())[0], 0, "report: ./ before it makes it a file")
    odd = written("\u009b31m\u202e.json", json.dumps(a_report()))
    code, out, err = ctl("report", odd, "--json")
    equal((out.isascii(), json.loads(out)["name"]), (True, odd), "JSON has nothing that a terminal would obey", err)
    with e2e.start(["sh", "-c", f"cat {file}; exec yes"], stdout=subprocess.PIPE) as endless:
        fails("report: input without an end", ["report", "-"], ["not a report of 'monarchctl run --report'"], stdin=endless.stdout)
        endless.stdout.close()
    for words in (["status"], ["status", "--json"], ["report", file], ["report", file, "--json"], ["tiers", "--json"], ["metrics"], ["version"], ["--help"]):
        with open("/dev/full", "wb") as full:
            lost = subprocess.run([TOOL, *words], stdout=full, stderr=subprocess.PIPE, env=e2e.environment(), check=False)
        ok(lost.returncode == 1 and lost.stderr.count(b"write to standard output: ") == 1, f"output that is lost is told: {' '.join(words[:1] + words[2:])}", lost)
    fails("report: no file", ["report", "/nowhere/x"], ["No such file", "name a file"])
    fails("report: no argument", ["report"], ["--help"], want=2)


def report_of_run():
    dataset, tier = scratch("report.data"), scratch("report.tier")
    e2e.make_tree(dataset, 30)
    read = ["taskset", "-c", str(min(os.sched_getaffinity(0))), "sh", "-c", 'for i in 1 2 3; do find "$1" -type f -exec cat {} + >/dev/null; done; echo out', "sh", dataset]
    words = ["run", *e2e.options([dataset], {"t": (tier, "1G")}), "--report", "-", "--", *read]
    code, out, err = ctl(*words, env=e2e.environment(), cwd=scratch("cwd"))
    equal((code, err, out[:4], os.listdir(scratch("cwd"))), (0, "", "out\n", []), "run --report -: the command's output comes first, and no file is made")
    counters = json.loads(out[4:])
    equal((counters["opens"], counters["opens_tier"]), (90, 90), "the report is on standard output", out)
    told = as_json("report", written("real.json", out[4:]))[1]
    times, waits = counters["open_times"], counters["tasks"]["waits"]
    equal(({kind: times[kind] for kind in times}, told["open_times"]["waited"]["timed"], [told["open_times"][kind]["one_timed_of"] for kind in ("tier", "waited", "pfs")]),
          ({kind: told["open_times"][kind]["below_us"] for kind in ("tier", "waited", "pfs")}, waits, [64, 1, 1]), "report of a real run: how long opens took", told)
    ok(0 < told["open_times"]["tier"]["timed"] < 90 and told["open_times"]["tier"]["median_below_us"] <= told["open_times"]["tier"]["p99_below_us"],
       "report of a real run: of its tier's copies some were timed", told)
    contains(ctl("report", f"{scratch()}/real.json")[1], ["of tiers' copies: half took less than "], "the same as text")
    equal((told.get("rule"), told.get("bytes_pfs"), told.get("bytes_read"), told.get("epochs")),
          ("good", counters["agent"]["agent_bytes_pfs"], 3 * counters["agent"]["dataset_bytes"], 3), "report of a real run", told)
    equal((told["dataset_bytes"], told["dataset_estimated"]), (counters["agent"]["dataset_bytes"], False), "all of it is known")
    many = scratch("many.data")
    for n in range(60):
        with open(f"{many}/{n}", "wb") as one:
            one.write(os.urandom(100 << 10))
    read[-1] = many
    code, out, err = ctl("run", *e2e.options([many], {"t": (tier, "1M")}), "--wait", "full", "--report", "-", "--", *read, env=e2e.environment())
    told = as_json("report", written("full.json", out[4:]))[1]
    equal((told["rule"], told["dataset_bytes"], told["dataset_estimated"], told["epochs"]), ("tier-too-small", 60 * (100 << 10), True, 3.0),
          "a tier that is too small: what nobody has looked at is taken for as large as the rest", told)
    contains(told["advice"], ["too small by about", f"for {60 - json.loads(out[4:])['agent']['staged_files']} files"], "what lacks")
    contains(ctl("report", f"{scratch()}/full.json")[1], ["placed of about 5.86M"], "as text")
    file, reading = f"{scratch()}/both.json", ["sh", "-c", 'find "$1" -type f -exec cat {} + >/dev/null; exit 3', "sh", dataset]
    code, out, err = ctl("run", *e2e.options([dataset], {"t": (tier, "1G")}), "--json", "--report", file, "--", *reading, env=e2e.environment())
    with open(file, encoding="utf-8") as stream:
        equal((code, err, json.loads(out)), (3, "", json.load(stream)), "run --json, beside a file: both have the report, and the exit code is the command's")
    with open("/dev/full", "wb") as full:  # as a pipe that nobody reads, or a full disk
        run = subprocess.run([TOOL, "run", *e2e.options([dataset], {"t": (tier, "1G")}), "--json", "--", "true"], stdout=full, stderr=subprocess.PIPE,
                             env=e2e.environment(), check=False)
    equal((run.returncode, run.stderr.decode().count("write the report")), (125, 1), "run --json: that it cannot be written is told", run.stderr)
    process = e2e.start([TOOL, "run", *e2e.options([dataset], {"t": (tier, "1G")}), "--", "sh", "-c", 'find "$1" -type f -exec cat {} + >/dev/null; echo; read x',
                         "sh", dataset], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=e2e.environment())
    process.stdout.readline()
    code, told, err = as_json("report", f"run.{process.pid}")
    equal((code, told.get("source"), told.get("opens")), (0, "job", 30), "report of a job that runs", err)
    process.communicate(b"\n", timeout=e2e.PATIENCE)


def run_without_tier():
    """The tiers that `tiers` chooses; this user's and this dataset's are left out."""
    code, chosen, err = as_json("tiers")
    dataset = e2e.memory("data")
    if code == 1 or dataset is None:
        return e2e.skip("run without --tier", "no tier here" if code == 1 else "no /dev/shm")
    e2e.make_tree(dataset, 20)
    show = 'echo "# $MONARCH_IO_RUN_DIR"; cat "$MONARCH_IO_RUN_DIR/agent.conf"; find "$1" -type f -exec cat {} + >/dev/null'
    code, out, err = ctl("run", "--dataset", dataset, "--json", "--", "sh", "-c", show, "sh", dataset, env=e2e.environment())
    conf, report = out.split("\n{", 1)
    report = json.loads("{" + report)
    names = [t["tier"]["name"] for t in chosen["tiers"] if t["chosen"]]
    equal((code, re.findall(r"^\[tier\.(.*)\]$", conf, flags=re.M), [t["name"] for t in report["tiers"]]), (0, names, names), "run without --tier: as `tiers` chooses", err, conf)
    equal([(re.search(rf"\[tier\.{t['tier']['name']}\]\npath = (.*)\n(?:.*\n)*?medium = (.*)", conf).groups()) for t in chosen["tiers"] if t["chosen"]],
          [(t["path"], t["medium"]) for t in chosen["tiers"] if t["chosen"]], "with path and medium", conf)
    ok(report["opens_tier"] > 0 and report["tasks"]["opens_pfs"] == 0, "the files are on it", report)
    said = [re.sub(r"quota [^,]*", "quota SIZE", line) for line in err.splitlines()]
    equal(said, [f"monarchctl run: tier {t['tier']['name']}: {t['path']}, quota SIZE, as 'monarchctl tiers' chooses" for t in chosen["tiers"] if t["chosen"]],
          "and it says so")
    run_dir = re.search(r"^# (.*)", conf)[1]
    own = ".".join(os.path.basename(run_dir).split(".")[:3])  # monarch-run.UID.PID
    places = [run_dir, *(f"{t['path']}/{own}.*" for t in chosen["tiers"] if t["chosen"])]
    equal([path for place in places for path in glob.glob(place)], [], "nothing is left")
    config = written("threads.conf", "[agent]\nthreads = 3\n")
    code, out, err = ctl("run", "--dataset", dataset, "--config", config, "--", "sh", "-c", show, "sh", dataset, env=e2e.environment())
    ok(code == 0 and "threads = 3\n" in out and "[tier." in out, "run --config without tiers: its keys, and the tiers that are chosen", err, out)
    with tempfile.TemporaryDirectory(dir=next(t["path"] for t in chosen["tiers"] if t["chosen"])) as inside:
        code, out, err = ctl("run", "--dataset", inside, "--", "true", env=e2e.environment())
        contains(err, [f"tier {names[0]}: not used: ", "it is there already"], "a tier that holds the dataset is not used")
        equal(code, 125 if len(names) == 1 else 0, "and the others are, if there are any", err)
        ok(len(names) > 1 or "no tier can be chosen on this node, see 'monarchctl tiers'; give --tier NAME:PATH:SIZE" in err, "it says what to do", err)
    return None


def run_refuses():
    """Each line says what to do."""
    data, tier = scratch("refuse.data"), scratch("refuse.tier")
    os.mkdir(f"{tier}/below")
    for name, words, parts in [("the root directory", ["--dataset", "/", "--tier", f"t:{tier}:1G"], ["dataset /: ", "name one below it"]),
                               ("a dataset on the tier", ["--dataset", f"{tier}/below", "--tier", f"t:{tier}:1G"], ["lies inside the tier t", "name another dataset or tier"]),
                               ("a configuration that is not there", ["--dataset", data, "--tier", f"t:{tier}:1G", "--config", f"{data}/none"],
                                ["none: No such file", "leave out --config"])]:
        fails(f"run: {name}", ["run", *words, "--", "true"], parts, want=125)


def run_waits():
    """The command begins once so much is staged, or when no more is, with a bar on a terminal."""
    dataset, tier = scratch("wait.data"), scratch("wait.tier")
    for number in range(40):
        with open(f"{dataset}/{number}", "wb") as file:
            file.write(bytes([number]) * 100000)
    begins = r"monarchctl run: (\d+)% of the dataset is staged after \d+ s \((\d+) files, [^)]*\): (.*)\n"
    slow = written("wait.slow", "[agent]\npfs_bandwidth = 400K\nprefetch_burst = 64K\n")
    off = written("wait.off", "[agent]\nprefetch = off\n")

    def run(size, *words, command=("true",), **options):
        code, out, err = ctl("run", *e2e.options([dataset], {"t": (tier, size)}), *words, "--", *command, env=e2e.environment(), **options)
        found = re.fullmatch(begins, err)
        ok(code == 0 and found, f"run {' '.join(words[:3])}: one line on standard error", code, err)
        return (int(found[1]), int(found[2]), found[3], out) if found else (-1, -1, "", out)

    show = ("sh", "-c", 'grep -E "^(state|percent)=" "$MONARCH_IO_STATE"')
    equal(run("1G", "--wait", "full", command=show), (100, 40, "the command begins", "state=staged-in\npercent=100\n"), "--wait full: all is staged when the command begins")
    percent, files, why, _ = run("1G", "--wait", "10%", "--config", slow)
    ok(10 <= percent < 100 and files < 40 and why == "the command begins", "--wait 10%: it does not wait for more", percent, files, why)
    percent, _, why, _ = run("1M", "--wait", "full")
    ok(percent < 100 and re.fullmatch(r"no more can be: \d+ files have no room, 0 cannot be staged", why), "where there is no room it begins", percent, why)
    equal(run("1G", "--wait", "1%", "--config", off)[0::2][:2], (0, "no more is staged ahead, as prefetch = off in the configuration"), "where nothing is prefetched it begins")
    equal(run("1G", "--wait", "full", "--wait-timeout", "1", "--config", slow)[2], "the time of --wait-timeout is over; staging goes on", "it waits no longer than it may")
    shown = on_terminal("run", *e2e.options([dataset], {"t": (tier, "1G")}), "--wait", "10%", "--config", slow, "--", "true", LD_PRELOAD=e2e.SANITIZER)
    lines = re.split(r"\r\x1b\[K", shown)
    ok(any(re.fullmatch(r"\[#* *\] +\d+%  \d+ files, \S+, \S+/s", line) for line in lines) and re.fullmatch(begins, lines[-1].replace("\r\n", "\n")),
       "on a terminal a bar tells how far it is, and is gone at the end", lines)
    ok(max(map(len, lines[:-1])) < 80, "and fits into a line", lines)
    for name, kill in ("the agent is killed", lambda process: os.kill(e2e.children(process.pid, "monarchd")[0], signal.SIGKILL)), \
                      ("it is interrupted", lambda process: os.killpg(process.pid, signal.SIGINT)):
        process = e2e.start([TOOL, "run", *e2e.options([dataset], {"t": (tier, "1G")}), "--wait", "full", "--config", slow, "--", "echo", "begun"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=e2e.environment())
        e2e.wait_until(lambda: glob.glob(f"{tier}/monarch-run.*.{process.pid}.*/*"))
        kill(process)
        code, out, err = e2e.finish(process)
        if name == "it is interrupted":
            equal((code, out), (-signal.SIGINT, b""), f"{name}: the command does not begin", err)
        else:
            ok(code == 0 and out == b"begun\n" and ": the agent has ended\n" in err, f"{name}: the command begins", code, err)
        ok(e2e.wait_until(lambda: not e2e.traces(process.pid, tier)), f"{name}: nothing is left", e2e.traces(process.pid, tier))
    for word in "0%", "101%", "50", "all", "", "5%%", "-1%":
        fails(f"--wait {word}", ["run", "--dataset", dataset, f"--wait={word}", "--", "true"], ["--wait: ", "none, full, or 1% to 100%"], want=125)
    fails("--wait-timeout 0", ["run", "--dataset", dataset, "--wait-timeout", "0", "--", "true"], ["--wait-timeout: "], want=125)


def version():
    code, out, _ = ctl("version")
    told = as_json("version")[1]
    equal((code, out), (0, f"monarchctl {told.get('version')}\n"), "version, as text and as JSON")
    numbers = {}
    for name, file, constant in (("catalog", "runtime/layout/catalog_layout.h", "kCatalogVersion"),
                                 ("board", "runtime/layout/board_layout.h", "kBoardVersion"), ("peer_messages", "runtime/peer/messages.h", "kPeerVersion")):
        with open(f"{SOURCE}/{file}", encoding="utf-8") as stream:
            numbers[name] = int(re.search(rf"{constant} = (\d+);", stream.read())[1])
    equal({name: told.get(name) for name in numbers}, numbers, "the versions of what parts share")


def report_of_sacct():
    bins = scratch("sacct")
    env = e2e.native_environment(PATH=f"{bins}:{os.environ['PATH']}")

    def sacct(line, end="exit 0"):
        written("sacct/sacct", f"#!/bin/sh\ncat <<'E'\n{line and '4711|' + line}E\n{end}\n", 0o755)

    good = "COMPLETED|other words monarch=1 hit=91.0% pfs=3.81M/7.63M ops=-50% meta=-50% nvme=3.81M staged=100% nodes=1/1 err=0\n"
    sacct(good)
    code, told, err = as_json("report", "4711", env=env)
    equal((code, told.get("source"), told.get("state"), told.get("line", {}).get("pfs"), told.get("rule")),
          (0, "sacct", "COMPLETED", "3.81M/7.63M", "good"), "report of sacct's line", err)
    contains(ctl("report", "4711", env=env)[1], ["Hits        91.0%", "PFS bytes   3.81M/7.63M", "nvme        3.81M"], "the same as text")
    for rule, old, new in [("errors", "err=0", "err=3"), ("nothing-attached", "3.81M/7.63M", "0/0"), ("not-staged", "staged=100%", "staged=60%"),
                           ("few-hits", "91.0%", "12.0%"), ("counters-lost", good.split("words ")[1], "monarch=1 counters=lost nodes=1/1 err=1\n")]:
        sacct(good.replace(old, new))
        equal(as_json("report", "4711", env=env)[1].get("rule"), rule, f"advice by sacct's line: {rule}")
    sacct(good.replace("staged=100% nodes=1/1", "staged=12% peer=1.00M nodes=8/8"))
    equal(as_json("report", "4711", env=env)[1].get("rule"), "good", "of several nodes each holds a part")
    sacct(good, 'echo "$@" >"${0%/*}/asked"')
    ctl("report", "4711@one", env=env)
    with open(f"{bins}/asked", encoding="utf-8") as file:
        equal(file.read(), "-nPX -j 4711 -o JobID,State,SystemComment -M one\n", "report JOBID@CLUSTER: sacct is asked for that cluster's job")
    for rows in "_1|COMPLETED|monarch=1\n4711_2|FAILED|monarch=1\n", "+0|COMPLETED|monarch=1\n4711+1|FAILED|\n":
        written("sacct/sacct", f"#!/bin/sh\ncat <<'E'\n4711{rows}E\n", 0o755)
        fails("report: an array, or a job of components", ["report", "4711"], ["job 4711 has 2 parts", "name one: 4711" + rows[:2]], env=env)
    sacct("RUNNING|\n")
    fails("report: no line", ["report", "4711"], ["no line of Monarch's", "RUNNING"], env=env)
    sacct("")
    fails("report: an unknown job", ["report", "4711"], ["sacct does not know it", "monarchctl status"], env=env)
    fails("report: no sacct", ["report", "4711"], ["there is no sacct here"], before=["/usr/bin/env", "PATH=/nowhere"])
    written("sacct/sacct", "#!/bin/sh\necho no connection\nexit 1\n", 0o755)
    fails("report: sacct fails", ["report", "4711"], ["no connection"], env=env)
    sacct("", "sleep 100")
    fails("report: sacct hangs", ["report", "4711"], ["no answer in 10 s"], env=env)


# ---- clean and flush


def clean_of_runs():
    dataset, tier = scratch("clean.data"), scratch("clean.tier")
    e2e.make_tree(dataset, 5)
    words = [TOOL, "run", *e2e.options([dataset], {"t": (tier, "1G")}), "--", "sh", "-c", 'cat "$1"/*.bin >/dev/null; echo; read x', "sh", dataset]
    runs = [e2e.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=e2e.environment()) for _ in range(2)]
    for run in runs:
        run.stdout.readline()
    os.kill(e2e.children(runs[0].pid, "monarchd")[0], 9)
    e2e.end(runs[0])
    e2e.wait_until(lambda: len(e2e.traces(runs[0].pid, tier)) <= 2)  # the agent dies in its own time
    left = sorted(e2e.traces(runs[0].pid, tier))
    equal(len(left), 2, "a run that was killed with its agent: run directory and copies are left", left)
    left = [path for path in left if path.startswith(tier)]  # others' runs on this machine sweep the place of run directories

    def ours(told):
        return sorted(f["name"] for f in told.get("found", []) if f["name"].startswith(tier))

    equal(ours(as_json("clean", "--dry-run", tier)[1]), [], "what is younger than 10 s may be just beginning")
    yield
    e2e.wait_until(lambda: ours(as_json("clean", "--dry-run", tier)[1]))
    code, told, err = as_json("clean", "--dry-run", tier)
    equal((code, ours(told), {f["removed"] for f in told["found"]}), (0, left, {False}), "clean --dry-run names them", err)
    ok(all(os.path.isdir(path) for path in left), "and removes nothing")
    contains(ctl("clean", "--dry-run", tier)[1], [f"would remove run {path}\n" for path in left], "the same as text")
    code, out, err = ctl("clean", tier)
    equal((code, e2e.traces(runs[0].pid, tier)), (0, []), "clean removes them", err)
    contains(out, [f"removed run {path}\n" for path in left], "and says so")
    equal(len(e2e.traces(runs[1].pid, tier)), 3, "but nothing of a run that lives")
    equal(ours(as_json("clean", tier)[1]), [], "again: nothing")
    runs[1].communicate(b"\n", timeout=e2e.PATIENCE)
    fails("clean: a directory that is not there", ["clean", f"{tier}/none"], ["none: No such file"])


def runs_that_hang():
    """Directories that look like anybody's runs, on which a user has mounted a file system for all that hangs."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        return e2e.skip("runs that hang", "needs root and /dev/fuse")
    if why := e2e.why_not_nobody():
        return e2e.skip("runs that hang", why)
    base, mounter, number = scratch("hanging.runs"), 65533, os.getpid()
    os.chmod(base, 0o1777)
    with contextlib.ExitStack() as at_end:
        for uid in 0, mounter, 65534:
            path = f"{base}/monarch-run.{uid}.{number}.abcdef"
            os.mkdir(path)
            os.chown(path, mounter, mounter)
            hang = e2e.hanging_mount(path, mounter, more=",allow_other")
            at_end.callback(subprocess.run, ["umount", "-l", path], check=False)
            at_end.callback(os.close, hang)
        for who, before in ("root", ()), ("another user", e2e.NOBODY):
            code, told, err = as_json("status", "--state-dir", f"{base}/none", before=before, env={"TMPDIR": base})
            equal((code, job_of(told, f"run.{number}")), (0, {}), f"status by {who} asks no file system that another one mounted", err)
            code, told, err = as_json("clean", "--dry-run", "--state-dir", f"{base}/none", before=before, env={"TMPDIR": base})
            equal((code, [f for f in told.get("found", []) if f["name"].startswith(base)]), (0, []), f"nor does clean by {who}", err)
    return None


def clean_and_flush_of_jobs():
    if os.geteuid() != 0:
        return e2e.skip("what jobs of Slurm left", "needs root")
    if why := e2e.why_not_nobody():
        return e2e.skip("what jobs of Slurm left", why)
    base, state, tier, data = places_of_node("left")
    e2e.make_tree(data, 30)
    subprocess.run(["chmod", "-R", "a+rX", data], check=True)
    config = written("left/monarch.conf", f"[tier.nvme]\npath = {tier}\nquota = 100M\nmin_free = 0\n[accounting]\naccount = spool\n")
    where, ids = ["--state-dir", state], [str(os.getpid() * 10 + n) for n in (3, 4)]

    def monarchd(hook, number, *more):
        return e2e.execute([f"{BUILD}/monarchd", hook, *where, "--job", number, "--cluster", "c", "--node", "n1", "--log", f"{base}/log",
                            "--config", config, *more])[0]

    def found(*words):
        code, told, err = as_json("clean", *where, *words)
        return code, [(f["kind"], f["name"]) for f in told.get("found", []) if f["kind"] != "run"], err

    equal(found("--dry-run")[1], [], "no state directory")
    equal([monarchd("--start", n, "--uid", "65534", "--gid", "65534", "--datasets", data) for n in ids], [0, 0], "two jobs")
    equal(found("--dry-run")[1], [], "jobs that live are not left behind")
    with open(f"{state}/jobs/c.{ids[0]}.n1/record.json", encoding="utf-8") as record:
        os.kill(json.load(record)["pid"], 9)
    dead = [("job", f"c.{ids[0]}.n1")]
    ok(e2e.wait_until(lambda: found("--dry-run")[1] == dead), "clean --dry-run names the job whose agent and slurmstepds are gone")
    ok(os.path.exists(f"{tier}/monarch/c.{ids[0]}.0.n1"), "and removes nothing")
    equal(found(), (0, dead, ""), "clean removes it")
    equal((os.listdir(f"{tier}/monarch"), os.listdir(f"{state}/jobs"), os.listdir(f"{state}/removing")),
          ([f"c.{ids[1]}.0.n1"], [f"c.{ids[1]}.n1"], []), "and leaves the job that lives")
    written("left/account", f"#!/bin/sh\necho \"$@\" >>{base}/lines\n", 0o755)
    equal(monarchd("--epilog", ids[1], "--account-program", f"{base}/account"), 0, "an epilog whose line is spooled")
    code, out, err = ctl("flush", *where, "--config", config)
    equal((code, out), (0, "1 lines for sacct waited, 0 wait\n"), "flush", err)
    with open(f"{base}/lines", encoding="utf-8") as lines:
        contains(lines.read(), ["monarch=1 hit="], "wrote the line")
    equal(as_json("flush", *where, "--config", config)[:2][1].get("waited"), 0, "nothing waits any more")
    fails("flush as a user", ["flush"], ["run it as root"], before=e2e.NOBODY)
    return None


# ---- plan


def plan():
    data, shut = scratch("plan.data"), scratch("plan.data/shut")
    sizes = [0, 1, 4096, 4097, 100000, 3 << 20, 20 << 20]
    for i, size in enumerate(sizes):
        os.makedirs(f"{data}/d{i}/deep", exist_ok=True)
        with open(f"{data}/d{i}/deep/{i}", "wb") as file:
            file.truncate(size)
    os.link(f"{data}/d4/deep/4", f"{data}/d4/name")
    os.symlink("/etc", f"{data}/link")
    words = [data, "--capacity", "1G"]
    code, told, err = as_json("plan", *words)
    space = sum((size + 4095) // 4096 * 4096 for size in sizes)
    equal((code, err, told.get("files"), told.get("bytes"), told.get("space"), told.get("links"), told.get("others"), told.get("directories")),
          (0, "", len(sizes) + 1, sum(sizes), space, 1, 1, 2 * len(sizes) + 2), "plan: what is there")
    equal([(b["files"], b["bytes"]) for b in told["sizes"]],
          [(3, 4097), (1, 4097), (1, 100000), (1, 3 << 20), (1, 20 << 20), (0, 0), (0, 0)], "plan: the sizes")
    equal(told["calls"], told["files"] + told["directories"] - 1 + told["others"] + told["directories"] + 1, "a call for each file and two for each directory")
    total = sum(sizes)

    def reads(nodes, epochs, capacity):
        told = as_json("plan", data, "--capacity", str(capacity), "--nodes", str(nodes), "--epochs", str(epochs))[1]
        return told, [told[f"pfs_{how}"] / total if told[f"pfs_{how}"] is not None else None for how in ("without", "alone", "peers")]

    def near(got, want, name):
        return ok(all(g == w or (g is not None and w is not None and abs(g - w) <= 0.005 * max(w, 1)) for g, w in zip(got, want)), name, got, want)

    # What PEERS and the papers have: n(1-(1-1/n)^E) without peers; f(E-1)/E of one node is spared.
    near(reads(64, 90, space)[1], (90, 64 * (1 - (63 / 64) ** 90), 1), "64 nodes, 90 epochs, all fits: 48.5 times without peers, once with them")
    near(reads(1, 10, space)[1], (10, 1, None), "one node: once")
    half = space // 2 // 4096 * 4096
    told, got = reads(1, 4, half)
    near(got, (4, 4 - half / space * 3, None), "one node with room for a half")
    near([told["spared_alone"], told["fits_percent"], told["tiers"][0]["percent"]], [100 * half / space * 3 / 4] + [100 * half / space] * 2, "which is f(E-1)/E")
    tiny = space * 8 // 100
    near(reads(64, 20, tiny)[1], (20, sum(1 - min(tiny // 4096 * 4096 / space, 1 - (63 / 64) ** k) for k in range(20)), 1),
         "64 nodes with room for 8% each")
    near(reads(4, 20, tiny)[1][2:], (20 - 19 * 4 * (tiny // 4096 * 4096) / space,), "4 nodes that have no room for all together")
    code, out, err = ctl("plan", *words, "--nodes", "2")
    contains(out, ["8 files, 23.1M, in 16 directories", "1 links, devices", "capacity", "with [peer] enabled = off", "90.0%"], "plan as text")
    alone = written("alone.conf", "[peer]\nenabled = off\n")
    contains(ctl("plan", *words, "--nodes", "2", "--config", alone)[1], ["with [peer] enabled = on"], "where the configuration has it off")
    equal((code, err), (0, ""), "plan: no bar but on a terminal")
    config = written("plan.conf", f"[tier.a]\npath = {scratch('plan.a')}\nquota = 1M\n[tier.b]\npath = {scratch('plan.b')}\nquota = 2M\n")
    code, told, err = as_json("plan", data, "--config", config)
    equal([(t["name"], t["capacity"], t["filled"]) for t in told.get("tiers", [])], [("a", 1 << 20, 1 << 20), ("b", 2 << 20, 2 << 20)], "tiers are filled in their order", err)
    if os.geteuid() == 0 and not e2e.why_not_nobody():
        os.chmod(shut, 0)
        code, out, err = ctl("plan", *words, before=e2e.NOBODY)
        equal(code, 4, "plan: a part that cannot be listed", out)
        contains(err, ["1 files or directories", "shut: Permission denied"], "and says which")
        fails("plan: a dataset that cannot be listed", ["plan", shut, "--capacity", "1G"], ["shut: Permission denied", "chmod", "owner"], before=e2e.NOBODY)
        os.chmod(shut, 0o755)
    told = as_json("plan", *words, "--rate", "100")[1]
    ok(told["seconds"] * 100 >= told["calls"] * 0.98, "--rate: no more calls than that", told["calls"], told["seconds"])
    ok("files" in on_terminal("plan", *words, "--rate", "100").split("\n")[0], "on a terminal it tells how far it is")
    contains(ctl("plan", *words)[1], ["How long staging takes is told with --like JOBID|FILE"], "staging time needs a rate")
    equal([as_json("plan", *words)[1][key] for key in ("pfs_bytes_per_second", "staging_seconds")], [None, None], "as JSON")

    def as_fast(first, then):
        """A report of a job that read so much per second."""
        ms = [0, 2000, 4000]
        from_pfs = [0, 2 * first, 2 * (first + then)]
        columns = {name: [0] * 3 for name in ("tasks_pfs", "tasks_tier", "from_peers", "to_peers", "opened_pfs", "opened_tier", "waited", "waited_ns", "staged", "dataset")}
        return {**a_report(), "series": {**columns, "milliseconds": ms, "agent_pfs": from_pfs, "placed": [[0] * 3]}}

    like = written("like.json", json.dumps(as_fast(100000, 400000)))
    for nodes, capacity, want in (1, space, total / 4e5), (1, half, total * half / space / 4e5), (4, space, total / 4 / 4e5), (4, half // 4, total * (half // 4 // 4096 * 4096) / space / 4e5):
        told = as_json("plan", data, "--like", like, "--capacity", str(capacity), "--nodes", str(nodes))[1]
        near([told.get("pfs_bytes_per_second"), told.get("staging_seconds")], [400000, want], f"--like: staging on {nodes} nodes with {capacity} each")
    out = ctl("plan", *words, "--like", like)[1]
    contains(out, ["Staging takes about 0:01:01, if the node reads 391K/s from the PFS", f"the job of {like} "], "as text")
    contains(ctl("plan", *words, "--like", like, "--nodes", "2")[1], ["if each node reads"], "of two nodes")
    contains(ctl("plan", *words, "--like", like, "--nodes", "2", "--config", alone)[1], ["epoch by epoch"], "of two that do not get files from each other")
    state = ["--state-dir", scratch("plan.state")]
    kept = f"{scratch('plan.state')}/reports/{os.geteuid()}"
    os.makedirs(kept)
    fails("plan: --like a job that is not kept", ["plan", *words, *state, "--like", "4711"], ["--like: no report of job 4711", "ended on this node"])
    for cluster, rate in ("one", 100000), ("two", 200000):
        written(f"plan.state/reports/{os.geteuid()}/{cluster}.4711.0.n1.json", json.dumps(as_fast(rate, 0)))
    equal(as_json("plan", *words, *state, "--like", "4711@two")[1].get("pfs_bytes_per_second"), 200000, "--like a job whose report is kept")
    fails("plan: --like one of two", ["plan", *words, *state, "--like", "4711"], ["4711@one or 4711@two"])
    for name, text, parts in ("none", "x", ["not a report"]), ("slow", json.dumps(as_fast(0, 0)), ["does not tell a rate"]):
        fails(f"plan: --like {name}", ["plan", *words, "--like", written(f"like.{name}", text)], ["--like: ", *parts])
    fails("plan: --like a file that is not there", ["plan", *words, "--like", f"{data}/none"], ["No such file", "run --report"])
    fails("plan: no dataset", ["plan", f"{data}/none"], ["No such file", "name its directory"])
    fails("plan: a file", ["plan", f"{data}/d4/name"], ["not a directory; name the directory it is in"])
    fails("plan: --capacity", ["plan", data, "--capacity", "lots"], ["--capacity: "], want=2)
    fails("plan: --config", ["plan", data, "--config", "/nowhere/x"], ["/nowhere/x: No such file"])
    contains(ctl("plan", scratch("plan.nothing"), "--capacity", "1G")[1], ["0 files, 0", "with Monarch     0      -"], "an empty dataset spares nothing")
    fails("plan: --rate", ["plan", data, "--rate", "fast"], ["--rate: "], want=2)
    fails("plan: --nodes", ["plan", data, "--nodes", "0"], ["at least 1"], want=2)


# ---- completion


def help_of(*words):
    """The options and the subcommands that --help tells."""
    text = ctl(*words, "--help")[1]
    below = text.split("Subcommands:")[1] if "Subcommands:" in text else ""
    return set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", text, flags=re.M)), re.findall(r"^  ([\w-]+)  ", below, flags=re.M)


def completed(*words):
    """What bash offers for the last word."""
    script = f'. {SOURCE}/etc/completions/bash/monarchctl; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _monarchctl; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return set(e2e.execute(["bash", "-c", script, "bash", "monarchctl", *words], cwd=scratch("empty"))[1].decode().split())


def zsh_options():
    """{subcommand: the options that zsh is told}"""
    with open(f"{SOURCE}/etc/completions/zsh/_monarchctl", encoding="utf-8") as file:
        text = file.read()
    variables = dict(re.findall(r"(\w+)=[\'\"](--[a-z-]+)\[", text))
    found = {}
    for name, body in re.findall(r"^ {16}([\w-]+)\)(.*?);;$", text, flags=re.M | re.S):
        found[name] = set(re.findall(r"[\'\"*](--[a-z-]+)\[", body)) | {variables[v] for v in re.findall(r"\$(\w+)", body) if v in variables}
    return found, set(re.findall(r"^ {8}\'([\w-]+):", text, flags=re.M))


def completion():
    options, commands = help_of()
    equal(completed(""), options | set(commands), "bash: subcommands and options")
    in_zsh, described = zsh_options()
    equal((described, set(in_zsh)), (set(commands), set(commands)), "zsh: subcommands")
    for command in commands:
        options, below = help_of(command)
        for verb in below:
            options |= help_of(command, verb)[0]
            equal(completed(command, verb, "--"), help_of(command, verb)[0], f"bash: options of {command} {verb}")
        want = {"--help"} if below else options
        equal(completed(command, "--") - {"--"}, want, f"bash: options of {command}")
        ok(not below or completed(command, "") == want | set(below), f"bash: what is below {command}")
        equal(in_zsh.get(command), options, f"zsh: options of {command}")
    equal(completed("st"), {"status"}, "bash: a subcommand that has begun")
    equal(completed("container-args", "b"), {"bwrap"}, "bash: a container tool")
    tools = e2e.execute([TOOL, "container-args", "--help"])[1].decode()
    ok(all(tool in tools for tool in completed("container-args", "") - {"--help", "--json"}), "bash: the tools are those of --help", tools)
    os.makedirs(f"{scratch('empty')}/some")
    equal((completed("run", "--dataset", "so"), completed("plan", "so"), completed("run", "--tier", "")), ({"some"}, {"some"}, set()),
          "bash: directories, and what cannot be known")
    ok("md5sum" in completed("run", "--dataset", "x", "--", "md5s"), "bash: the command after --")


e2e.main(config_show, config_check, colours, clean_of_runs, runs_that_hang, status_of_run, status_of_a_failed_file, jobs_of_two_clusters, status_of_slurm, doctor, report_of_file, report_of_run, run_without_tier, run_refuses, run_waits, version, report_of_sacct,
         clean_and_flush_of_jobs, plan, completion)
