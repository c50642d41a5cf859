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
import time

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


def fails(name, words, parts, want=1, remedy=None, **options):
    """One line on standard error that names the subcommand, has these parts and ends with the remedy, and nothing else."""
    code, out, err = ctl(*words, **options)
    ok(code == want and out == "" and err.startswith("monarchctl") and err.count("\n") == 1,
       f"refused in one line: {name}", f"exit code {code}", out, err)
    contains(err, parts, f"the message tells: {name}")
    if remedy:
        ok(err.endswith(f"; {remedy}\n"), f"the message says what to do: {name}", f"want: {remedy}", err)
    else:
        ok(re.search(r"['(]monarchctl |--\w|\b(name|see|give|write|mend|make|add|run|remove|as root)\b|[?]", err.split(": ", 1)[-1]), f"the message says what to do: {name}", err)


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


DISK = "is on the root file system; is its disk mounted?"  # of tiers in scratch directories, if these are there


def without_disk(text):
    return "".join(line for line in text.splitlines(keepends=True) if DISK not in line)


def config_check():
    tier = scratch("checked")
    good = written("good.conf", f"[tier.a]\npath = {tier}\nquota = 10%\n")
    code, out, err = ctl("config", "check", good)
    ok(code == 0 and err == "" and "warning" not in without_disk(out), "config check of a valid file", out, err)
    contains(out, [good, "valid: 1 tier, 0 sections of policy\n"], "it says what is there")
    equal([w for w in as_json("config", "check", good)[1].get("warnings", [None]) if DISK not in w], [], "--json: no warnings")
    for name, text, line, key, parts in [
            ("a bad value", "[agent]\n\nthreads = many\n", 3, ("agent", "threads"), ["'many' is not a number from 1 to 256", "mend threads in [agent]"]),
            ("an unknown key", "[peer]\nportz = 1\n", 2, ("peer", "portz"), ["known are enabled"]),
            ("an unknown section", "[agnet]\n", 1, (None, None), ["known are [accounting]", "monarch.conf(5)"]),
            ("no quota", f"[agent]\n[tier.a]\npath = {tier}\n", 2, (None, None), ["write for example quota = 100G"]),
            ("a key of no section", "threads = 1\n", 1, ("", "threads"), ["stands before the first [section]; see monarch.conf(5)"]),
            ("a line that is none", "[agent]\nthreads = 2\nhello\n", 3, (None, None), ["neither [section]"]),
            ("a tier of policy", "[policy]\ntiers = x\n", 2, (None, None), ["no section [tier.x]; add it"]),
            ("names with colons", "[policy]\nallow_users = a:b\n", 2, ("policy", "allow_users"), ["separated by ',', not by ':'", "mend allow_users in [policy]"]),
            ("a key mistyped", "[agent]\nthread = 2\n", 2, ("agent", "thread"), ["(did you mean threads?)"])]:
        file = written("bad.conf", text)
        fails(name, ["config", "check", file], [f"{file}:{line}: ", *parts])
        code, told, _ = as_json("config", "check", file)
        equal((code, told.get("valid"), [(e["line"], e["section"], e["key"]) for e in told.get("errors", [])]), (1, False, [(line, *key)]),
              f"--json tells file, line and key: {name}")
        fails(f"config show, {name}", ["config", "show", file], [f"{file}:{line}: "])
    bad = written("several.conf", f"[agent]\nthreads = x\nhello\n[tier.a]\npath = {tier} # NVMe\n")
    told = [f"{bad}:2: threads: 'x' is not a number from 1 to 256; mend threads in [agent], see monarch.conf(5)",
            f"{bad}:3: neither [section], key = value nor a comment; see monarch.conf(5)",
            f"{bad}:4: [tier.a] has no quota; write for example quota = 100G; see monarch.conf(5)"]
    equal(ctl("config", "check", bad), (1, "", "".join(f"monarchctl config check: {line}\n" for line in told)), "all errors are told, each in a line")
    equal([e["line"] for e in as_json("config", "check", bad)[1].get("errors", [])], [2, 3, 4], "and so in JSON")
    told = ctl("tiers", "--config", bad)[2]
    contains(told, [f"{bad}:2: "], "elsewhere the first")
    ok(told.count("\n") == 1, "and no more", told)
    commented = written("commented.conf", f"[tier.a] # first\npath = {tier} # NVMe\nquota = 10%\t# of it\n")
    code, out, err = ctl("config", "check", commented)
    ok(code == 0 and err == "" and "warning" not in without_disk(out), "a # after a blank begins a comment", out, err)
    fails("no file", ["config", "check", f"{tier}/none"], ["No such file"], remedy="name a file that is there")
    os.makedirs(f"{tier}/conf")
    written("checked/conf/slurm.conf", "ClusterName=c\n")
    plugstack = written("checked/conf/plugstack.conf", f"optional spank_monarch.so config={tier}/conf/monarch.conf log=syslog agent.threads=3 policy.enabled=off\n")
    env = e2e.native_environment(SLURM_CONF=f"{tier}/conf/slurm.conf")
    fails("the default file is not there", ["config", "check"], [f"{tier}/conf/monarch.conf: No such file"], remedy="make it (it may be empty), or name another one", env=env)
    own = written("checked/conf/monarch.conf", "[agent]\nthreads = 2\nwalk_threads = 2\n")
    code, out, err = ctl("config", "check", env=env)
    ok(code == 0 and out.startswith(f"{own}, with 2 words of {plugstack}: valid: 0 tiers"), "config check with the words of the plugin's line", out, err)
    told = as_json("config", "check", env=env)[1]
    equal((told.get("valid"), told.get("words")), (True, ["agent.threads=3", "policy.enabled=off"]), "and as JSON", told)
    equal(as_json("config", "check", own, env=env)[1].get("words"), [], "without them where a file is named")
    sources = {"threads": ("3", "plugstack.conf"), "walk_threads": ("2", "file"), "enabled": ("off", "plugstack.conf"), "max_files": (None, "default")}
    for words, more in ([], {}), (["--set", "agent.threads=7"], {"threads": ("7", "--set")}):
        values = as_json("config", "show", *words, env=env)[1].get("values", [])
        shown = {v["key"]: (v["value"], v["source"]) for v in values if v["section"] in ("agent", "policy")}
        equal({key: shown.get(key, (None, "default")) if key != "max_files" else sources[key] for key in sources}, {**sources, **more}, f"config show with the words of the plugin's line {words}", shown)
    contains(ctl("config", "show", env=env)[1], [f"; {plugstack}\n", f"; {own}:3\n"], "as text")
    ok(plugstack not in ctl("config", "show", own, env=env)[1], "config show FILE: without them")
    written("checked/conf/plugstack.conf", f"optional spank_monarch.so config={own} polcy.enabled=off\n")
    fails("a bad word in the plugin's line", ["config", "check"], ["polcy.enabled=off: "], remedy=f"mend the word in {plugstack}", env=env)
    on_root = next((path for path in ("/etc", "/usr", "/opt") if os.stat(path).st_dev == os.stat("/").st_dev), None)
    for path, where, more, count in [(on_root, "on the root file system", "", 1), ("/dev/shm", "elsewhere", "", 0), (on_root, "with driver = tmpfs", "driver = tmpfs\n", 0)]:
        if path and os.stat("/dev/shm").st_dev != os.stat("/").st_dev:
            warnings = as_json("config", "check", written("disk.conf", f"[tier.a]\npath = {path}\nquota = 1M\n{more}"))[1].get("warnings", [])
            equal([w for w in warnings if "root file system" in w], [f"tier a: {path} {DISK}"] * count, f"a tier {where}", warnings)
    fails("others can write it", ["config", "check", written("open.conf", "", 0o666)], ["run chmod go-w"])
    fails("a bad word", ["config", "check", good, "--set", "agent.threads=0"], ["plugstack.conf: agent.threads=0: ", "mend threads"])
    fails("no verb", ["config"], ["see 'monarchctl config --help'"], want=2)
    fails("a verb mistyped", ["config", "chek", good], ["monarchctl config: there is no subcommand 'chek' (did you mean check?); see 'monarchctl config --help'"], want=2)
    fails("no such subcommand", ["frobnicate"], ["monarchctl: there is no subcommand 'frobnicate'; see 'monarchctl --help'"], want=2)
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
    equal(len([w for w in told.get("warnings", []) if DISK not in w]), 7 - (os.geteuid() != 0), "and no more", told)


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
    contains(ctl("status", name)[1], ["agent-died", "the others from the PFS"], "it says what that means")
    os.truncate(f"{run_dir}/board", 100)
    equal(job_of(as_json("status")[1], name).get("state"), "unknown", "a board that is none")
    process.communicate(b"\n", timeout=e2e.PATIENCE)
    equal(process.returncode, 0, "the run whose board was cut ends, with the command's exit code")
    a_run = "a run is on the node where it was started, until its command ends"
    fails("a run that is not there", ["status", name], [f"no job {name} with Monarch on this node"], remedy=f"'monarchctl status' lists those that are, and {a_run}")
    fails("report: a run that is not there", ["report", name], [f"no job {name}"], remedy="name one that 'monarchctl status' lists, or a file of 'monarchctl run --report'")
    fails("a job that is not there", ["status", "1"], ["no job 1"], remedy="'monarchctl status' lists those that are, and 'squeue -j 1' tells the job's nodes")
    for name in "4711_3", "run.", "run.x", "job", "-1":
        fails(f"no job: {name}", ["status", name], ["see 'monarchctl status --help'", *(["squeue -O JobID"] if name[0] != "-" else [])], want=2)
    fails("no subcommand", ["stauts", "4711"], ["monarchctl: there is no subcommand 'stauts' (did you mean status?); see 'monarchctl --help'"], want=2)
    fails("no configuration", ["tiers", "--config", f"{scratch()}/none.conf"], ["none.conf: No such file"], remedy="name another one by --config FILE")
    fails("a configuration that is wrong", ["tiers", "--config", written("tiers.bad", "[agent]\nthreads = x\n")], ["tiers.bad:2: "], remedy="mend it, or name another one by --config FILE")
    equal([j for j in as_json("status")[1]["jobs"] if j["job"] == name], [], "after its end it is not there")


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

    for cluster in "one", "two":
        start(cluster)

    def alive():
        return sorted(job["cluster"] for job in as_json("status", *where)[1].get("jobs", []) if job["job"] == number and job["state"] in ("running", "staging-in", "staged-in"))

    ok(e2e.wait_until(lambda: alive() == ["one", "two"]), "jobs of one number", alive())
    equal(sorted(re.findall(rf"^{number}(\S*) ", ctl("status", *where)[1], flags=re.M)), ["@one", "@two"], "status: their lines name their clusters")
    both = [f"2 clusters have or had a job {number} on this node", f"{number}@one or {number}@two"]
    for source in "job", "kept":
        fails(f"report: which of them is not told: {source}", ["report", number, *where], both)
        equal({name: (job.get("name"), job.get("cluster"), job.get("source")) for name, job in told(("@one", "@two")).items()},
              {"@one": (number, "one", source), "@two": (number, "two", source)}, f"report JOBID@CLUSTER: that one: {source}")
        if source == "job":
            for cluster in "one", "two":
                monarchd("--epilog", cluster, "--account-program", "")
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
    os.rename(line, f"{base}/quoted name")
    written("node/slurm.conf", f'Include slurm.conf\nInclude none.conf\nClusterName=c-1\nPlugStackConfig=/none\nINCLUDE %c.conf # all nodes\n')
    written("node/c-1.conf", f'plugstackconfig=\\\n"{base}/quoted name"\n')
    equal(job_of(as_json("status", env=slurm_conf)[1], number).get("state"), "staged-in", "a file that slurm.conf includes names the file")
    run_dir = job["run_dir"]
    os.chmod(state, 0o777)
    fails("status: a state directory that anybody may change", ["status", *where], [state])
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
    for name, text in [("bin/scontrol", "#!/bin/sh\n[ $2 = config ] || exec echo 'PartitionName=main AllowGroups=ALL Nodes=n[1-2]'\ncat <<'E'\nConfiguration data as of now\n" +
                        "".join(f"{key:<23} = {value}\n" for key, value in values.items()) + "E\n"),
                       ("bin/sacctmgr", f"#!/bin/sh\n{sacctmgr}\n"), ("bin/getenforce", f"#!/bin/sh\n{selinux}\n"),
                       ("conf/plugstack.conf", "# nothing else\ninclude more/*.conf\n"),
                       ("conf/more/monarch.conf", plugstack or "optional spank_monarch.so config={config} state_dir={state}\n")]:
        written(f"fake/{name}", text.format(config=f"{base}/monarch.conf", state=f"{base}/state") if "/more/" in name else text, 0o755)
    os.makedirs(f"{base}/tier", exist_ok=True)
    os.chmod(f"{base}/tier", 0o1777)
    written("fake/monarch.conf", f"[tier.t]\npath = {base}/tier\nquota = 1G\n")
    return e2e.native_environment(PATH=f"{base}/bin:{os.environ['PATH']}")


with open(f"{BUILD}/Makefile", encoding="utf-8") as makefile:
    PREFIX = re.search(r"^prefix = (.*)$", makefile.read(), flags=re.M)[1]


def shared(name):
    """What `make install` puts there."""
    return f"{PREFIX}/share/monarch/{name}"


seen = {"bad": 0, "without remedy": []}  # of all that doctor has found in these tests


def findings(told, level=None):
    bad = [c for c in told.get("checks", []) if c["level"] in ("warn", "FAIL")]
    seen["bad"] += len(bad)
    seen["without remedy"] += [c for c in bad if not c["remedy"]]
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
    fails("doctor: wrong usage", ["doctor", "node1"], ["node1"], want=2, remedy="see 'monarchctl doctor --help'")
    release = plugin_release()
    if not release:
        return e2e.skip("doctor with Slurm", "the plugin is not built")
    env = fake_slurm(release)
    code, told, err = as_json("doctor", env=env)
    equal((code, told.get("failed"), err), (0, 0, ""), "doctor of a good node", *findings(told))
    good = findings(told)
    for check, part in [("agent", "monarchd, version"), ("library", "libmonarch_preload.so"), ("peers", "libmonarch_peers.so"),
                        ("plugin", f"spank_monarch.so, for Slurm {release}"), ("config", "fake/monarch.conf"),
                        ("state", "fake/state is made when"), ("tiers", "fake/tier"), ("slurmdbd", "it answers"),
                        *(("slurm", f"{key} = {value}") for key, value in SLURM.items())]:
        has(good, check, "ok", [part], f"{check} is good")
    for check in "io_uring", "kernel", "cgroups", "containers":
        ok([f for f in good if f[0] == check and f[1] in ("ok", "warn")], f"doctor: it looks for {check}")
    slurm_conf = written("fake/conf/slurm.conf", "ClusterName=c\n")
    for script in "sleep 100", "exit 1":
        away = {**fake_slurm(release, plugstack="optional spank_monarch.so config={config} state_dir={state} logg=x\n"), "SLURM_CONF": slurm_conf}
        written("fake/bin/scontrol", f"#!/bin/sh\n{script}\n", 0o755)
        code, told, err = as_json("doctor", env=away)
        equal((code, err), (0, ""), f"doctor while slurmctld is away: {script}", *findings(told))
        for check, level, part in [("config", "ok", "fake/monarch.conf"), ("state", "ok", "fake/state is made when"), ("tiers", "ok", "fake/tier"),
                                   ("plugin", "skip", "names spank_monarch.so; slurmctld, which knows PluginDir, does not answer"), ("plugin", "warn", "nobody reads: logg=x"),
                                   ("slurm", "skip", "slurmctld does not answer"), ("slurmdbd", "skip", "does not answer")]:
            has(findings(told), check, level, [part], f"{check} while slurmctld is away: {script}")
    env = fake_slurm(release)
    if os.geteuid() == 0 and not e2e.why_not_nobody():
        os.chmod(f"{scratch('fake')}/monarch.conf", 0o600)
        os.makedirs(f"{scratch('fake')}/state")
        code, told, err = as_json("doctor", env=env, before=e2e.NOBODY)
        equal(code, 0, "doctor as a user", err, *findings(told))
        has(findings(told), "config", "skip", ["only root can read it"], "a user cannot read the configuration")
        has(findings(told), "state", "skip", ["only root can see the contents of"], "a user cannot see the state")
        os.chmod(f"{scratch('fake')}/state", 0o777)
        has(findings(as_json("doctor", env=env)[1]), "state", "FAIL", ["not only root can write it", "chmod go-w"], "a state directory that all can write")
        os.chmod(f"{scratch('fake')}/state", 0o755)
        os.makedirs(f"{scratch('fake')}/state/jobs")
        os.chown(f"{scratch('fake')}/state/jobs", 65534, 65534)
        has(findings(as_json("doctor", env=env)[1]), "state", "FAIL", ["state/jobs: not a directory that root alone can write -> remove it"], "another user's directory in it")
        shutil.rmtree(f"{scratch('fake')}/state")
        os.makedirs(f"{scratch('fake')}/state")
        os.rmdir(f"{scratch('fake')}/state")
        os.chmod(f"{scratch('fake')}/monarch.conf", 0o644)
    for mode, level, parts in [(0o755, "warn", [f"users can list {scratch('fake')}/logs", "mkdir -m 711 /var/log/monarch"]), (0o711, "ok", ["/logs/log"])]:
        os.makedirs(f"{scratch('fake')}/logs", exist_ok=True)
        os.chmod(f"{scratch('fake')}/logs", mode)
        line = "optional spank_monarch.so config={config} log=" + f"{scratch('fake')}/logs/log\n"
        has(findings(as_json("doctor", env=fake_slurm(release, plugstack=line))[1]), "log", level, parts, f"the log's directory has mode {mode:o}")
    for key, value, parts in [("PrologFlags", "(null)", ["PrologFlags=Contain"]), ("PrologFlags", "Alloc", ["PrologFlags=Contain"]), ("ProctrackType", "proctrack/linuxproc", ["proctrack/cgroup"]),
                              ("TaskPlugin", "task/none", ["task/cgroup"]), ("JobContainerType", "job_container/tmpfs", ["job_container.conf"]),
                              ("AccountingStorageType", "accounting_storage/none", ["slurmdbd"])]:
        code, told, err = as_json("doctor", env=fake_slurm(release, {key: value}))
        has(findings(told), "slurm", "warn", [f"{key} is not set:" if value == "(null)" else f"{key} = {value}", *parts], f"{key} = {value}")
        equal(code, 0, f"a warning is no failure: {key}")
    has(findings(as_json("doctor", env=fake_slurm(release, selinux="echo Enforcing"))[1]), "selinux", "warn", ["Enforcing: Monarch was not tried"], "SELinux")
    hooks = scratch("enroot")
    env = {**fake_slurm(release), "ENROOT_SYSCONF_PATH": hooks}
    written("fake/bin/enroot", "#!/bin/sh\n", 0o755)
    has(findings(as_json("doctor", env=env)[1]), "containers", "warn", [f"{hooks}/hooks.d/50-monarch.sh: No such file", f" -> install -m 755 {shared('enroot/50-monarch.sh')} {hooks}/hooks.d/"],
        "enroot without the hook")
    os.remove(f"{scratch('fake')}/bin/enroot")
    code, told, err = as_json("doctor", env=fake_slurm("99.11"))
    has(findings(told), "plugin", "FAIL", [f"built for Slurm {release}, and this is 99.11.3", "--with-slurm"], "a plugin for another release")
    equal(code, 1, "exit code 1")
    code, out, err = ctl("doctor", env=fake_slurm("99.11"))
    ok(code == 1 and re.search(r"^FAIL plugin     .*/spank_monarch.so is built for .*\n {16}-> build Monarch for it: configure --with-slurm=PREFIX$", out, flags=re.M),
       "as text: a line, and the remedy below it", out, err)
    for line, parts in [("optional /nowhere/spank_monarch.so\n", ["/nowhere/spank_monarch.so: No such file", f" -> write its path there; 'make install' puts it to {PREFIX}/lib/slurm"]),
                        (f"optional {written('spank_monarch.so', 'x')}\n", ["not a 64-bit ELF object"]),
                        ("optional other.so\n", ["has no line for spank_monarch.so", "add: optional"])]:
        has(findings(as_json("doctor", env=fake_slurm(release, plugstack=line))[1]), "plugin", "FAIL", parts, f"plugstack.conf: {parts[0]}")
    code, told, err = as_json("doctor", env=fake_slurm(release, sacctmgr="sleep 100"), seconds=60)
    has(findings(told), "slurmdbd", "FAIL", ["no answer in 5 s"], "a daemon that hangs")
    ok(not e2e.execute(["pgrep", "-fx", f"/bin/sh {scratch('fake')}/bin/sacctmgr.*"])[1], "and nothing of the question is left")
    has(findings(as_json("doctor", env=fake_slurm(release, sacctmgr="echo no connection; exit 1"))[1]), "slurmdbd", "warn",
        ["no connection"], "slurmdbd is away")
    env = fake_slurm(release, plugstack="optional spank_monarch.so config={config} agent.threads=0\n")
    has(findings(as_json("doctor", env=env)[1]), "config", "FAIL", ["agent.threads=0", f" -> mend the word in {scratch('fake')}/conf/more/monarch.conf"], "a word of plugstack.conf")
    env = fake_slurm(release, plugstack="optional spank_monarch.so config={config} policy.enabled=off\n")
    has(findings(as_json("doctor", env=env)[1]), "config", "warn", [f"jobs go without Monarch: [policy] enabled = off, by a word in {scratch('fake')}/conf/more/monarch.conf -> enabled = on there"], "switched off by a word")
    written("fake/bad.conf", f"[tier.t]\npath = {scratch('fake')}/none\nquota = 1G\n[peer]\nenabled = on\n")
    code, told, err = as_json("doctor", "--config", f"{scratch('fake')}/bad.conf", env=fake_slurm(release))
    none = f"{scratch('fake')}/none"
    equal([f[2:] for f in findings(told, "FAIL") if f[0] == "tiers"], [(f"tier t: {none}: configured, but {none}: No such file or directory", f"install -d -m 1777 -o root {none}")],
          "doctor: a tier that is not there is one failure")
    closed = scratch("fake/closed")
    os.chmod(closed, 0o700)
    written("fake/closed.conf", f"[tier.t]\npath = {closed}\nquota = 1G\n")
    has(findings(as_json("doctor", "--config", f"{scratch('fake')}/closed.conf", env=fake_slurm(release))[1]), "tiers", "warn", [f"users cannot enter {closed} -> chmod o+x that directory"],
        "a tier that users cannot enter")
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
    equal((seen["bad"] > 20, seen["without remedy"]), (True, []), "each warn and FAIL in these tests has a remedy", seen["bad"])
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
    ("tier-too-small", {"agent": {"no_fit_files": 3, "dataset_bytes": 1000 + (40 << 30)}}, ["too small by 40.0G for 3 files", "ask for a larger part of the node (--exclusive, more cores) or for more nodes with [peer], or name fewer directories. A larger part does not help if --monarch-capacity, the administrator's job_capacity or a full disk bounds"]),
    ("excluded", {"tasks": {"fallback_excluded": 10}}, ["MONARCH_IO_EXCLUDE"]),
    ("mounts", {"tasks": {"fallback_mount": 10}}, ["container-args"]),
    ("large-files", {"tasks": {"fallback_large": 10}}, ["10 opens of large files", "--monarch-wait=full"]),
    ("slow-staging", {"tasks": {"fallback_timeout": 10}}, ["--monarch-prefetch=all"]),
    ("written", {"tasks": {"fallback_invalid": 10}}, ["the job had written"]),
    ("changed", {"tasks": {"fallback_dropped": 10}}, ["changed on the PFS"]),
    ("never-opened", {"agent": {"staged_files": 500, "prefetch_files": 500}}, ["400 files were staged and not opened", "--monarch-prefetch=off"]),
    ("read-once", {"read_bytes": 1000}, ["the job read each file about once, so the PFS is spared nothing: keep its epochs in one job"]),
    ("good", {}, ["90 opens of 100 were served"]),
]


# The same, where it is another for `monarchctl run`.
RUN_RULES = [
    ("tier-too-small", {"agent": {"no_fit_files": 3, "dataset_bytes": 1000 + (40 << 30)}}, ["too small by 40.0G for 3 files: give them more by --tier NAME:PATH:SIZE"]),
    ("large-files", {"tasks": {"fallback_large": 10}}, ["10 opens of large files", "--wait full"]),
    ("slow-staging", {"tasks": {"fallback_timeout": 10}}, ["--wait full begins when all is staged"]),
    ("never-opened", {"agent": {"staged_files": 500, "prefetch_files": 500}}, ["400 files were staged and not opened", "prefetch = off in a --config"]),
]


def report_of_file():
    for ended, rule, what, parts in [(True, *of) for of in RULES] + [(False, *of) for of in RUN_RULES]:
        file = written("report.json", json.dumps({**a_report(**what), **({"ended": {"job": 1}} if ended else {})}))
        code, told, err = as_json("report", file)
        equal((code, told.get("rule"), err), (0, rule, ""), f"advice: {rule}", told.get("advice"))
        contains(told.get("advice", ""), parts, f"advice: {rule}: what to do")
        contains(ctl("report", file)[1], [told.get("advice", "?")], f"advice: {rule}, as text")
    died = as_json("report", written("died.json", json.dumps({**a_report(), "ended": {"job": 1, "agent_died": True}})))[1]
    equal((died.get("rule"), "the agent had died" in died.get("advice", "")), ("agent-died", True), "of a job whose agent died while few programs noticed")
    with open(f"{SOURCE}/admin/advice.cc", encoding="utf-8") as source:
        equal(re.findall(r'^    \{"([\w-]+)",', source.read(), flags=re.M), [rule for rule, _, _ in RULES],
              "each rule has its case, in this order")
    for what, want in ({"opens": 0, "opens_tier": 0, "agent": {"staged_files": 1}}, "although 1 file was staged:"), \
                      ({"opens": 10, "opens_tier": 9, "tasks": {"fallback_invalid": 1}}, "1 open was of a file that the job had written:"), \
                      ({"opens": 10, "opens_tier": 9, "tasks": {"fallback_dropped": 1}}, "1 open was of a file that changed"), \
                      ({"opens": 1, "opens_tier": 1, "agent": {"staged_files": 1}}, "1 open of 1 was served"):
        contains(as_json("report", written("one.json", json.dumps(a_report(**what))))[1].get("advice", ""), [want], f"one of it: {want}")
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
    whole["job"]["agent"]["dataset_bytes"] = 4000
    told = as_json("report", written("nodes.json", json.dumps(whole)))[1]
    equal((told["epochs"], told["bound_percent"]), (None, None), "of several nodes, how often the dataset was read is not known")
    ok("the dataset was read" not in ctl("report", f"{scratch()}/nodes.json")[1], "nor told")
    contains(ctl("report", f"{scratch()}/nodes.json")[1], [", 4 nodes\n"], "as text")
    own = a_report(tasks={"waited_hits": 3, "fallback_large": 2})
    file = written("own.json", json.dumps({**own, "job": {**own, "nodes": 4, "read_calls_tier": 0, "read_bytes_tier": 0, "placed_bytes": {"nvme": own["tiers"][0]["placed_bytes"]}}}))
    contains(ctl("report", file)[1], [", this node's numbers of 4 nodes\n", "90 (90.0%), of which 3 waited for it\n"], "of several nodes, where the others' numbers are not known; and opens that waited")
    told = as_json("report", file)[1]
    equal((told["waited_hits"], told["fallbacks"]), (3, {"large": 2}), "and why opens went to the PFS")
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
    fails("report: no name", ["report", ""], ["which one?"], want=2)
    for what, path, why in ("no file", "/nowhere/x", "No such file or directory"), ("a directory", scratch(), "Is a directory"):
        fails(f"report: {what}", ["report", path], [f"read {path}: {why};"], remedy="name a file that 'monarchctl run --report' has written, or a job's number")
    fails("report: no argument", ["report"], ["FILE|JOBID is required", "--help"], want=2)
    contains(ctl("report", "--help")[1], ["FILE|JOBID"], "report: its help says what it takes")


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
    ok(0 < told["open_times"]["tier"]["timed"] < 90 and told["open_times"]["tier"]["median_below_us"] <= told["open_times"]["tier"]["p99_below_us"],
       "report of a real run: of its tier's copies some were timed", told)
    equal((told.get("rule"), told.get("bytes_pfs"), told.get("bytes_read"), told.get("epochs")),
          ("good", counters["agent"]["agent_bytes_pfs"], 3 * counters["agent"]["dataset_bytes"], 3), "report of a real run", told)
    file, reading = f"{scratch()}/both.json", ["sh", "-c", 'find "$1" -type f -exec cat {} + >/dev/null; exit 3', "sh", dataset]
    code, out, err = ctl("run", *e2e.options([dataset], {"t": (tier, "1G")}), "--json", "--report", file, "--", *reading, env=e2e.environment())
    with open(file, encoding="utf-8") as stream:
        equal((code, err, json.loads(out)), (3, "", json.load(stream)), "run --json, beside a file: both have the report, and the exit code is the command's")
    with open("/dev/full", "wb") as full:  # as a pipe that nobody reads, or a full disk
        run = subprocess.run([TOOL, "run", *e2e.options([dataset], {"t": (tier, "1G")}), "--json", "--", "true"], stdout=full, stderr=subprocess.PIPE,
                             env=e2e.environment(), check=False)
    equal((run.returncode, run.stderr.decode().count("write the report: No space left on device; name a file by --report\n")), (125, 1),
          "run --json: that it cannot be written is told", run.stderr)
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
    run_dir = re.search(r"^# (.*)", conf)[1]
    own = ".".join(os.path.basename(run_dir).split(".")[:3])  # monarch-run.UID.PID
    places = [run_dir, *(f"{t['path']}/{own}.*" for t in chosen["tiers"] if t["chosen"])]
    equal([path for place in places for path in glob.glob(place)], [], "nothing is left")
    with tempfile.TemporaryDirectory(dir=next(t["path"] for t in chosen["tiers"] if t["chosen"])) as inside:
        code, out, err = ctl("run", "--dataset", inside, "--", "true", env=e2e.environment())
        contains(err, [f"tier {names[0]}: not used: ", "it is there already"], "a tier that holds the dataset is not used")
        equal(code, 125 if len(names) == 1 else 0, "and the others are, if there are any", err)
    return None


def run_refuses():
    """Each line says what to do."""
    data, tier = scratch("refuse.data"), scratch("refuse.tier")
    os.mkdir(f"{tier}/below")
    for name, words, parts in [("the root directory", ["--dataset", "/", "--tier", f"t:{tier}:1G"], ["dataset /: ", "name one below it"]),
                               ("a dataset on the tier", ["--dataset", f"{tier}/below", "--tier", f"t:{tier}:1G"], ["lies inside the tier t", "name another dataset or tier"]),
                               ("a configuration that is wrong", ["--dataset", data, "--tier", f"t:{tier}:1G", "--config", written("run.bad", "[agent]\nthreads = x\n")],
                                ["run.bad:2: ", "; mend it, or leave out --config"])]:
        fails(f"run: {name}", ["run", *words, "--", "true"], parts, want=125)
    usual, plain = ["--dataset", data, "--tier", f"t:{tier}:1G"], written("refuse.plain", "")
    for name, words, parts, remedy in [
            ("a tier given twice", [*usual, "--tier", f"t:{data}:1G"], ["tier 't' is given twice"], "give each a name of its own"),
            ("a tier that is no directory", ["--dataset", data, "--tier", f"t:{plain}:1G"], [f"tier t ({plain}): not a directory"], "name one"),
            ("a tier that is not there", ["--dataset", data, "--tier", f"t:{data}/none:1G"], [f"tier t ({data}/none): No such file"], "make it, or name another one"),
            ("a tier's name", ["--dataset", data, "--tier", f"a b:{tier}:1G"], ["the name may hold letters, digits, - and _, at most 31"], "name it for example ssd"),
            ("a tier of 0", ["--dataset", data, "--tier", f"t:{tier}:0"], [f"--tier t:{tier}:0 has no room for any file"], f"write for example t:{tier}:10G"),
            ("a tier of 0%", ["--dataset", data, "--tier", f"t:{tier}:0%"], [f"--tier t:{tier}:0% has no room for any file"], f"write for example t:{tier}:10G"),
            ("a tier without a path", ["--dataset", data, "--tier", "t::1G"], ["tier 't::1G' has no path"], "write for example ssd:/scratch:100G"),
            ("a dataset that is not there", ["--dataset", f"{data}/none"], [f"dataset {data}/none: No such file"], "name its directory"),
            ("below a file", ["--dataset", f"{plain}/x"], [f"dataset {plain}/x: Not a directory"], "name its directory"),
            ("a configuration that is not there", [*usual, "--config", f"{data}/none"], ["none: No such file"], "name another one, or leave out --config")]:
        fails(f"run: {name}", ["run", *words, "--", "true"], parts, want=125, remedy=remedy)
    path = "give the path of a program, or the name of one in $PATH"
    for command, want, why, remedy in ("/nope", 127, "No such file or directory", path), ("nope", 127, "No such file or directory", path), \
                                      (plain, 126, "Permission denied", "name a program, or make it executable (chmod +x)"):
        fails(f"run: {why}", ["run", *usual, "--", command], [f"monarchctl run: {command}: {why};"], want=want, remedy=remedy, env=e2e.environment())
    two = ["run", *usual, tier]
    fails("run: two directories behind one --dataset", [*two, "--", "true"], [f"{tier} stands before --, and is of no option; give --dataset before each"], want=125)
    fails("run: the same without --", [*two, "true"], [f"monarchctl run: {tier}: Permission denied; it is a directory: give --dataset before each"], want=126, env=e2e.environment())
    fails("run: --report without a name", ["run", *usual, "--report", "--", "true"], ["--report: "], want=125, remedy=None)
    e2e.make_tree(data, 3)
    code, out, err = ctl("run", "--dataset", data, "--tier", f"t:{tier}:10", "--", "sh", "-c", 'cat "$1"/*.bin >/dev/null', "sh", data, env=e2e.environment())
    equal((code, err), (0, "monarchctl run: the tiers had no room for any file of the dataset; give them more by --tier NAME:PATH:SIZE\n"), "run: a tier without room says so")
    if os.geteuid() == 0 and not e2e.why_not_nobody():
        os.chmod(data, 0o700)
        fails("run: a tier that the user cannot write", ["run", "--dataset", "/usr/share", "--tier", f"t:{tier}:1G", "--", "true"],
              [f"tier t ({tier}): you cannot write to it: Permission denied"], want=125, remedy="name a directory that you can write to", before=e2e.NOBODY)
        fails("run: a dataset that the user cannot list", ["run", "--dataset", data, "--", "true"], [f"dataset {data}: you cannot list it: Permission denied"],
              want=125, remedy="give yourself the right to list it (chmod), or ask its owner", before=e2e.NOBODY)


def run_waits():
    """The command begins once so much is staged, or when no more is, with a bar on a terminal."""
    dataset, tier = scratch("wait.data"), scratch("wait.tier")
    for number in range(40):
        with open(f"{dataset}/{number}", "wb") as file:
            file.write(bytes([number]) * 100000)
    begins = r"monarchctl run: (\d+)% of the dataset is staged after \d+ s \((\d+) files?, [^)]*\): (.*)\n"
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
        fails(f"--wait {word}", ["run", "--dataset", dataset, f"--wait={word}", "--", "true"], ["--wait: ", "none, full, or 1% to 100%, such as 50%"], want=125)
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
    fails("version: wrong usage", ["version", "--short"], ["there is no option --short"], want=2, remedy="see 'monarchctl version --help'")


def container_args():
    for tool in "bwrap", "pyxis":
        fails(f"container-args {tool} outside of a job", ["container-args", tool], ["monarchctl container-args: this is no task of a job with Monarch"], want=1,
              remedy="call it in the script of a job that was submitted with --monarch-dataset, or in a command of monarchctl run", env=e2e.native_environment())
    fails("container-args: no such tool", ["container-args", "docker"], ["docker"], want=2, remedy="see 'monarchctl container-args --help'")


def tiers():
    path = scratch("tiers.tier")
    out = ctl("tiers", "--config", written("tiers.conf", f"[tier.a]\npath = {path}\nquota = 1G\n"))[1]
    lines = [line.split() for line in out.splitlines()]
    equal(lines[:1], [["PATH", "DEVICE", "MEDIUM", "FSTYPE", "SIZE", "FREE", "NUMA", "CHOSEN", "REASON"]], "tiers: the heading")
    equal([line[0] for line in lines if len(line) > 7 and line[7] == "yes"], [path], "tiers: a line below it", out)
    config = written("tiers.part.conf", f"[tier.a]\npath = {path}\nquota = 1G\n[tier.b]\npath = {path}.none\nquota = 1G\n")
    for words in [], ["--json"]:
        code, out, err = ctl("tiers", "--config", config, *words)
        equal((code, err), (4, f"monarchctl tiers: 1 of the 2 tiers that {config} names cannot be used on this node, for the reasons above; "
                            "'monarchctl doctor' tells how to mend that\n"), f"tiers: one cannot be used {words}", out)


def state_directory():
    """One that --state-dir names and that is not there: after a boot there may be none."""
    none, file = f"{scratch()}/no.state", written("file.state", "")
    for words in ["status"], ["report", "4711"], ["clean", "--dry-run"], ["flush"], ["plan", scratch("tiers.tier"), "--capacity", "1G"]:
        err = ctl(*words, "--state-dir", none)[2]
        contains(err, [f"monarchctl {words[0]}: --state-dir {none}: No such file or directory: it counts as empty; check the name"], f"{words[0]}: a state directory that is not there")
        fails(f"{words[0]}: a state directory that is none", [*words, "--state-dir", file], [f"--state-dir {file}: Not a directory; name root's state directory"], want=2)


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
    sacct(good.replace("err=0", "err=1"))
    contains(as_json("report", "4711", env=env)[1].get("advice", ""), ["1 error inside Monarch"], "one error")
    sacct(good.replace("err=0", "err=1 agent=died"))
    equal(as_json("report", "4711", env=env)[1].get("rule"), "agent-died", "advice by sacct's line")
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

    told = as_json("clean", "--dry-run", tier)[1]
    ok(ours(told) == [] and told["young"] >= 1, "what is younger than 10 s may be just beginning", told)
    contains(ctl("clean", "--dry-run", tier)[1], ["younger than 10 s, and left alone: run it again then\n"], "the same as text")
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
    program = ["--account-program", written("left/account", f"#!/bin/sh\necho \"$@\" >>{base}/lines\n", 0o755)]
    equal([monarchd("--start", n, "--uid", "65534", "--gid", "65534", "--datasets", data, *program) for n in ids], [0, 0], "two jobs")
    equal(found("--dry-run")[1], [], "jobs that live are not left behind")
    with open(f"{state}/jobs/c.{ids[0]}.n1/record.json", encoding="utf-8") as record:
        os.kill(json.load(record)["pid"], 9)
    dead = [("job", f"c.{ids[0]}.n1")]
    ok(e2e.wait_until(lambda: found("--dry-run")[1] == dead), "clean --dry-run names the job whose agent and slurmstepds are gone")
    ok(os.path.exists(f"{tier}/monarch/c.{ids[0]}.0.n1"), "and removes nothing")
    equal(found(), (0, dead, ""), "clean removes it")
    equal((os.listdir(f"{tier}/monarch"), os.listdir(f"{state}/jobs"), os.listdir(f"{state}/removing")),
          ([f"c.{ids[1]}.0.n1"], [f"c.{ids[1]}.n1"], []), "and leaves the job that lives")
    equal(monarchd("--epilog", ids[1], *program), 0, "an epilog whose line is spooled, beside that of the job that was removed")
    code, out, err = ctl("flush", *where, "--config", config)
    equal((code, out), (0, "2 lines for sacct waited, none does now\n"), "flush", err)
    with open(f"{base}/lines", encoding="utf-8") as lines:
        equal(lines.read().count("monarch=1 hit="), 2, "wrote the lines")
    equal(as_json("flush", *where, "--config", config)[:2][1].get("waited"), 0, "nothing waits any more")
    for words in ["flush", *where], ["metrics", *where]:
        fails(f"{words[0]}: a configuration that is not there", [*words, "--config", "/nowhere/c"], ["/nowhere/c: No such file or directory; "], remedy="name another one by --config FILE")
        fails(f"{words[0]}: a configuration with an error", [*words, "--config", written("bad.conf", "[agent]\nthreads = 0\n")], ["bad.conf:2: "], remedy="mend it, or name another one by --config FILE")
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
    os.symlink(data, f"{scratch('plan.link')}/to")
    for name, datasets in ("twice", [data, f"{data}/"]), ("in another one", [f"{data}/d5", data]), ("by another name", [f"{scratch('plan.link')}/to", f"{data}/d4/deep"]):
        again = as_json("plan", *datasets, "--capacity", "1G")[1]
        equal([again.get(key) for key in ("files", "bytes", "directories", "links", "pfs_without")], [told[key] for key in ("files", "bytes", "directories", "links", "pfs_without")],
              f"plan: a dataset that is given {name} counts once")
    apart = as_json("plan", f"{data}/d5", f"{data}/d4/deep", "--capacity", "1G")[1]
    equal((apart.get("files"), apart.get("directories")), (2, 3), "plan: datasets beside each other count each")

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
    contains(out, ["8 files, 23.1M, in 16 directories; 1 link, device or mount point is never staged; 1 is a further name of another\n",
                   "Read from the PFS in 10 epochs on 2 nodes:\n", "capacity", "with [peer] enabled = off", "90.0%"], "plan as text")
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
        contains(err, ["1 file or directory cannot be looked at, and these numbers are of the rest; the first: ", "shut: Permission denied"], "and says which")
        fails("plan: a dataset that cannot be listed", ["plan", shut, "--capacity", "1G"], ["shut: you cannot list it: Permission denied"],
              remedy="give yourself the right to list it (chmod), or ask its owner", before=e2e.NOBODY)
        os.chmod(shut, 0o755)
    told = as_json("plan", *words, "--rate", "100")[1]
    ok(told["seconds"] * 100 >= told["calls"] * 0.98, "--rate: no more calls than that", told["calls"], told["seconds"])
    ok("files" in on_terminal("plan", *words, "--rate", "100").split("\n")[0], "on a terminal it tells how far it is")
    state = ["--state-dir", scratch("plan.state")]
    contains(ctl("plan", *words, *state)[1], ["How long staging takes is told with --like JOBID|FILE", "no report of one is kept here"], "staging time needs a rate")
    equal([as_json("plan", *words, *state)[1][key] for key in ("pfs_bytes_per_second", "like", "staging_seconds")], [None] * 3, "as JSON")

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
    kept = f"{scratch('plan.state')}/reports/{os.geteuid()}"
    os.makedirs(kept)
    fails("plan: --like a job that is not kept", ["plan", *words, *state, "--like", "4711"], ["--like: no report of job 4711", "ended on this node"])
    for cluster, rate in ("one", 100000), ("two", 200000):
        written(f"plan.state/reports/{os.geteuid()}/{cluster}.4711.0.n1.json", json.dumps(as_fast(rate, 0)))
    equal(as_json("plan", *words, *state, "--like", "4711@two")[1].get("pfs_bytes_per_second"), 200000, "--like a job whose report is kept")
    fails("plan: --like one of two", ["plan", *words, *state, "--like", "4711"], ["4711@one or 4711@two"])
    reports = f"plan.state/reports/{os.geteuid()}"
    for seconds, name, report in (3, "two.4712.0.n1", as_fast(400000, 0)), (2, "two.4713.0.n1", as_fast(0, 0)), (1, "two.4714.0.n1", None):
        later = time.time() + 100 - seconds
        os.utime(written(f"{reports}/{name}.json", json.dumps(report)), (later, later))
    told = as_json("plan", *words, *state)[1]
    equal([told.get("pfs_bytes_per_second"), told.get("like")], [400000, "4712@two"], "without --like: the last job that tells a rate")
    contains(ctl("plan", *words, *state)[1], ["391K/s from the PFS, as job 4712@two did at most, the last one here; if that read from another file system, name one by --like"], "as text")
    equal(as_json("plan", *words, *state, "--like", "4711@one")[1].get("like"), "4711@one", "--like names another")
    for name, text, parts in ("none", "x", ["not a report"]), ("slow", json.dumps(as_fast(0, 0)), ["does not tell a rate"]):
        fails(f"plan: --like {name}", ["plan", *words, "--like", written(f"like.{name}", text)], ["--like: ", *parts])
    fails("plan: --like a file that is not there", ["plan", *words, "--like", f"{data}/none"], ["No such file", "run --report"])
    above = os.path.dirname(data)
    code, told, err = as_json("plan", data, "--config", written("plan.above", f"[tier.a]\npath = {scratch('plan.a')}\nquota = 1M\n[tier.up]\npath = {above}\nquota = 2M\n"))
    equal((code, [t["name"] for t in told.get("tiers", [])]), (0, ["a"]), "plan: a tier that the dataset lies in does not count", err)
    contains(err, [f"monarchctl plan: tier up does not count: dataset {data} lies inside the tier up ({above})"], "and it says so")
    code, out, err = ctl("plan", data, "--config", written("plan.only", f"[tier.up]\npath = {above}\nquota = 2M\n"))
    ok(code == 1 and out == "" and err.endswith("this node has no tier for the dataset; say how much a node has for the job: --capacity SIZE\n"), "plan: no other tier", out, err)
    for none in "0", "0G":
        fails(f"plan: --capacity {none}", ["plan", data, "--capacity", none], ["--capacity: has no room for any file"], want=2)
    fails("plan: no dataset", ["plan", f"{data}/none"], ["No such file"], remedy="name its directory")
    fails("plan: the root directory", ["plan", "/"], ["dataset /: the whole root directory cannot be a dataset"], remedy="name one below it")
    fails("plan: a file", ["plan", f"{data}/d4/name"], ["not a directory; name the directory it is in"])
    fails("plan: --capacity", ["plan", data, "--capacity", "lots"], ["--capacity: "], want=2)
    fails("plan: --config", ["plan", data, "--config", "/nowhere/x"], ["/nowhere/x: No such file"], remedy="name another one by --config FILE, or give --capacity SIZE")
    fails("plan: --config that is wrong", ["plan", data, "--config", written("plan.bad", "[agent]\nthreads = x\n")], ["plan.bad:2: "],
          remedy="mend it, name another one by --config FILE, or give --capacity SIZE")
    contains(ctl("plan", f"{data}/d1/deep", "--capacity", "1G", "--epochs", "1")[1], ["1 file, 1, in 1 directory\n", " in 1 epoch on 1 node:\n"], "one of each")
    contains(ctl("plan", scratch("plan.nothing"), "--capacity", "1G")[1], ["0 files, 0", "with Monarch     0      -"], "an empty dataset spares nothing")
    for rate in "fast", "-5":
        fails(f"plan: --rate {rate}", ["plan", data, "--rate", rate], [f"--rate: '{rate}' is not a number;"], want=2, remedy="write for example 5000, or none")
    for rate in "0.5", "-0":
        equal(ctl("plan", data, "--rate", rate)[0], 2, f"plan: --rate {rate} is no number, and not without a limit")
    fails("plan: --nodes", ["plan", data, "--nodes", "0"], ["at least 1"], want=2, remedy="leave them out, or give 1 or more")


# ---- completion


def help_of(*words):
    """The options and the subcommands that --help tells."""
    text = ctl(*words, "--help")[1]
    below = text.split("Subcommands:")[1] if "Subcommands:" in text else ""
    return set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", text, flags=re.M)), re.findall(r"^  ([\w-]+)  ", below, flags=re.M)


# bash-completion sources the file that has the command's name, and bash calls the function that the file gave to `complete`.
BASH = """
. "$0/monarchctl"
given=$(complete -p monarchctl)
given=${given##*-F }
COMP_WORDS=(monarchctl "$@") COMP_CWORD=$#
"${given%% *}" monarchctl "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf "%s\\n" "${COMPREPLY[@]}"
"""


def completed(*words):
    """What bash offers for the last word."""
    code, out, err = e2e.execute(["bash", "-c", BASH, f"{SOURCE}/etc/completions/bash", *words], cwd=scratch("empty"))
    return set(out.decode().split()) if (code, err) == (0, "") else {code, err}


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
    directory, name = f"{SOURCE}/etc/completions/bash", os.path.basename(TOOL)
    equal(os.listdir(directory), [name], "bash: bash-completion finds the file by the command's name")
    _, given, err = e2e.execute(["bash", "-c", '. "$0"; complete -p "$1"', f"{directory}/{name}", name])
    equal((given.decode().split()[-1:], err), ([name], ""), "bash: it completes that command", given)
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


e2e.main(config_show, config_check, clean_of_runs, runs_that_hang, status_of_run, jobs_of_two_clusters, status_of_slurm, doctor, report_of_file, report_of_run, run_without_tier, run_refuses, run_waits, version, container_args, tiers, state_directory, report_of_sacct,
         clean_and_flush_of_jobs, plan, completion)
