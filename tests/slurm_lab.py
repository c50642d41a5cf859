# SPDX-License-Identifier: Apache-2.0
"""Slurm with Monarch's plugin, for end-to-end tests: a cluster in the scratch directory, its jobs, and what they leave.

Tests run what is installed, since programs know where others are; `make install` brings that up to date first.
"""

import contextlib
import fcntl
import glob
import json
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import time

import e2e
from e2e import BUILD, SANITIZER, SOURCE, equal, ok, scratch, wait_until

PATIENCE = 300 * e2e.SLOW  # seconds that a job may take to begin and end before it counts as hung
USER = "monarchlab"
MOST_LATE, MOST_IN_VAIN = 4, 5  # agents, and percent of all opens, in a run of a test program
HELD = "touch half.$SLURM_JOB_ID; while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.05; done"  # in a script: until Cluster.go()
CLOSING = re.compile(rb"^monarch: (?:on \S+, one of \d+ nodes: )?(?:read \d|no program has|what the job read is).*\n", re.M)
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY"}


def quoted(script):
    """As one word of a shell."""
    return "'" + script.replace("'", "'\\''") + "'"


def install_prefix(build=BUILD):
    return re.search(r"^prefix = (.*)$", e2e.text_in(f"{build}/Makefile"), re.MULTILINE).group(1)


def plugin_release():
    """Of the Slurm that the plugin was built for, or "" without one."""
    if not os.path.exists(f"{BUILD}/spank_monarch.so"):
        return ""
    number = int(re.search(r"SLURM_VERSION_NUMBER (0x\w+)", e2e.text_in("/usr/include/slurm/slurm_version.h"))[1], 16)
    return f"{number >> 16 & 255}.{number >> 8 & 255:02}"


def why_no_slurm():
    """Why the tests cannot run here; make distcheck, whose tree is read-only, is such a place."""
    if os.geteuid() != 0:
        return "needs root"
    if SANITIZER:
        return "Slurm cannot load an instrumented plugin"
    if not os.stat(SOURCE).st_mode & stat.S_IWUSR or not install_prefix().startswith(BUILD + "/"):
        return "nothing can be installed: configure with --prefix below the build directory, as dev/build does"
    missing = [c for c in ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "sbatch") if not shutil.which(c)]
    return f"not installed: {', '.join(missing)} (run dev/deps slurm)" if missing else ""


def install(slurm=""):
    """Installs what was built, or is built now for the Slurm in that directory, below the build directory; the prefix.
    MONARCH_TEST_INSTALLED=1: that has been done, by who started a slow machine to run the tests in."""
    build = f"{BUILD}/slurm" if slurm == os.environ.get("MONARCH_TEST_SLURM") else f"{BUILD}/slurm.{os.path.basename(slurm)}"
    if os.environ.get("MONARCH_TEST_INSTALLED") == "1":
        return install_prefix(build if slurm else BUILD)
    if slurm:
        result = subprocess.run([f"{SOURCE}/dev/build", "--dir", build, "--", f"--with-slurm={slurm}"], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"dev/build --with-slurm={slurm}: " + result.stdout.decode()[-3000:])
        return install_prefix(build)
    with open(f"{BUILD}/.install.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        result = subprocess.run(["make", "-C", BUILD, "INSTALL=install -C", "install"], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, env=env, check=False)
    if result.returncode != 0:
        raise RuntimeError("make install: " + result.stdout.decode()[-3000:])
    return install_prefix()


class Cluster:
    """Slurm on this machine, each of its nodes with a tier of its own; a file or directory of each below scratch()."""

    def __init__(self, slurm="", name="", peers=None, more=""):
        """`slurm`: the directory where a Slurm is installed; "": the system's. `name`: of a directory below scratch() for all of it.
        `peers`: the peers_lab.Peers that it runs on; else all nodes are at 127.0.0.1. `more`: what monarch.conf says beside its tier."""
        self.slurm, self._name, self._peers, self._more = slurm, name, peers, more
        self._at_hub = peers.at("hub") if peers else []
        self.prefix = install(slurm)
        self.tier = self.new_tier("tier")
        base = scratch(name)
        self.state = f"{base}/state"
        self.log = f"{base}/monarchd.log"
        self.monarchd = f"{base}/monarchd"  # notes each run by the plugin, and how long epilogs take, in `calls`
        self.calls = f"{base}/calls"
        self.before, self.after = [], []  # lines of plugstack.conf before the plugin's and behind it; each up() sets them
        self.path = ""  # a directory whose programs slurmd finds, too
        self.words = ""  # more of the plugin's words in plugstack.conf; each up() sets them
        self.config = f"{base}/monarch.conf"
        self.configure()
        self.install_monarchd()
        self._dir = f"{base}/slurm"
        self._again = {}  # daemon: its process, where restart() has started it

    def up(self, *options):
        """Starts it, or changes its options."""
        line = (f"optional {self.prefix}/lib/slurm/spank_monarch.so config={self.config} state_dir={self.state} "
                f"monarchd={self.monarchd} log={self.log} {self.words}".rstrip())
        result = subprocess.run(
            [f"{SOURCE}/dev/lab", "slurm", "up", "--dir", self._dir, *(word for own in (*self.before, line, *self.after) for word in ("--plugstack-line", own)),
             *(["--path", self.path] if self.path else []),
             *(["--slurm", self.slurm] if self.slurm else []), *(["--peers", self._peers.directory] if self._peers else []), *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900 * e2e.SLOW, check=False)
        if result.returncode != 0:
            raise RuntimeError("dev/lab slurm up: " + result.stdout.decode()[-3000:])
        if own := self._again.pop("slurmdbd", None):
            e2e.end(own)
        self.conf = self.status()["slurm_conf"]
        self.user = pwd.getpwnam(USER)
        self.out = scratch(f"{self._name}/out" if self._name else "out")
        os.chown(self.out, self.user.pw_uid, self.user.pw_gid)
        self.node_names = sorted(self.nodes())
        for node in self.node_names:  # whose is {tier}/NODE, which the plugin's monarchd makes of {tier} in the configuration
            self.new_tier(f"tier/{node}")

    def down(self):
        for process in self._again.values():
            e2e.end(process)
        self._again.clear()
        subprocess.run([f"{SOURCE}/dev/lab", "slurm", "down", "--dir", self._dir], stdout=subprocess.DEVNULL, check=False)

    def status(self):
        result = subprocess.run([f"{SOURCE}/dev/lab", "slurm", "status", "--dir", self._dir, "--json"],
                                stdout=subprocess.PIPE, check=False)
        return json.loads(result.stdout)

    def kill(self, kind, how=signal.SIGTERM):
        """Ends one of Slurm's daemons, "slurmd" that of the first node; what restart() is to be given."""
        name = f"slurmd@{self.node_names[0]}" if kind == "slurmd" else kind
        process = self._again.pop(name, None)
        pid = process.pid if process else self.status()["daemons"][name]["pid"]
        with open(f"/proc/{pid}/cmdline", "rb") as line, open(f"/proc/{pid}/environ", "rb") as environment:
            command = line.read().split(b"\0")[:-1]
            env = dict(word.split(b"=", 1) for word in environment.read().split(b"\0") if b"=" in word)
        if kind == "munged":
            command = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", *command]
        os.kill(pid, how)
        wait_until(lambda: process.poll() is not None if process else not os.path.exists(f"/proc/{pid}"))
        return name, [*self._at_hub, *command], env

    def has_ended(self, kind):
        """Whether a daemon that was started again has ended."""
        process = self._again[f"slurmd@{self.node_names[0]}" if kind == "slurmd" else kind]
        return process.poll() is not None

    def restart(self, killed, *more):
        name, command, env = killed
        self._again[name] = e2e.start([*command, *more], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)

    def saved_state(self):
        """Where slurmctld saves what it knows of jobs."""
        return re.search(r"(?mi)^StateSaveLocation=(.*)$", e2e.text_in(self.conf)).group(1) + "/job_state"

    def forget_jobs(self):
        """Restarts slurmctld without what it knows of jobs: their ids begin anew."""
        slurmctld = self.kill("slurmctld")
        for name in glob.glob(f"{self.saved_state()}*"):
            os.unlink(name)
        self.restart(slurmctld, "-c")
        del self._again["slurmctld"]  # the next up() sees to it
        wait_until(lambda: self.nodes() and set(self.nodes().values()) <= {"idle"}, 60)

    def rows(self, job):
        """The SystemComment of each of a job's rows in the database, in the order of their submission."""
        _, out, _ = self.execute(["sacct", "-D", "-X", "-n", "-P", "-S", "2020-01-01", "-o", "JobIDRaw,Submit,SystemComment", "-j", str(job)])
        rows = [line.split("|") for line in out.decode().splitlines()]
        return [row[2] for row in sorted(rows, key=lambda row: row[1]) if row[0] == str(job)]

    # ---- Monarch on the nodes

    def new_tier(self, name):
        path = scratch(f"{self._name}/{name}" if self._name else name)
        os.chmod(path, 0o1777)
        return path

    def configure(self, text=None):
        """Writes monarch.conf, which each job's beginning reads."""
        e2e.write(self.config, text or f"[tier.nvme]\npath = {self.tier}\nquota = 256M\nmedium = nvme\n{self._more}")

    def install_monarchd(self):
        with open(self.monarchd, "w", encoding="utf-8") as file:
            file.write(f"""#!/bin/sh
echo "$*" >>{self.calls}
node=${{*#* --node }} node=${{node%% *}}
for word; do
    shift
    if [ "$word" = {self.config} ] && [ -e "$word" ]; then
        mkdir -p {self.state}.conf.$node
        word={self.state}.conf.$node/monarch.conf
        sed 's|^path = {self.tier}$|&/'"$node|" {self.config} >"$word.$$"
        chmod --reference={self.config} "$word.$$"
        mv "$word.$$" "$word"
    fi
    set -- "$@" "$word"
done
[ "$1" = --epilog ] || exec {self.prefix}/sbin/monarchd "$@"
begin=$(date +%s%3N)
{self.prefix}/sbin/monarchd "$@"
code=$?
echo "took $(($(date +%s%3N) - begin)) $*" >>{self.calls}
exit $code
""")
        os.chmod(self.monarchd, 0o755)

    def _calls(self, job):
        with contextlib.suppress(FileNotFoundError), open(self.calls, encoding="utf-8") as file:
            return [line.split() for line in file if f" --job {job} " in line]
        return []

    def calls_for(self, job):
        """How the plugin ran monarchd for that job: --prolog, --start, --epilog."""
        return [words[0] for words in self._calls(job) if words[0] not in ("took", "--close")]

    def epilog_ms(self, job):
        """How long each of the job's epilogs took."""
        return [int(words[1]) for words in self._calls(job) if words[0] == "took"]

    def log_of(self, job):
        with contextlib.suppress(FileNotFoundError), open(self.log, encoding="utf-8") as file:
            return "".join(line for line in file if f"JobId={job} " in line)
        return ""

    def timeouts(self, job=None):
        """How many opens of a job, or of all, waited in vain and read the PFS, by the jobs' own counters."""
        with contextlib.suppress(FileNotFoundError), open(self.log, encoding="utf-8") as file:
            found = [re.search(r" JobId=(\d+) .* timeouts=(\d+)$", line) for line in file]
            return sum(int(m.group(2)) for m in found if m and job in (None, int(m.group(1))))
        return 0

    def reports_of(self, job):
        """What root keeps of a job's nodes, by file."""
        for path in glob.glob(f"{self.state}/reports/*/*.{job}.*.json"):
            yield os.path.basename(path), json.loads(e2e.text_in(path))

    def is_served(self, job):
        """Whether its line tells of no error, and its reports of no open that read the PFS, unless opens waited in vain on a busy
        machine. An open that waited for its copy is no hit in the line."""
        reports = [report for _, report in self.reports_of(job)]
        served = bool(reports) and all(report["opens"] == report["opens_tier"] > 0 for report in reports)
        return bool(re.search(r" monarch=1 .* err=0\b", self.log_of(job))) and (served or self.timeouts(job) > 0)

    def why(self, job):
        """What the log and its kept report tell of a job, for a line that fails."""
        text = self.log_of(job)
        for name, report in self.reports_of(job):
            counters = {key: value for whose in ("tasks", "agent") for key, value in report[whose].items() if value}
            text += f"{name}: {counters}\n"
        return text

    def late_agents(self, job=None):
        """How many agents of a job, or of all, a slow machine made later than jobs wait for: their programs read the PFS
        until then, and nobody counts that."""
        with contextlib.suppress(FileNotFoundError), open(self.log, encoding="utf-8") as file:
            found = [re.search(r" JobId=(\d+) the agent is not ready after ", line) for line in file]
            return sum(job in (None, int(m.group(1))) for m in found if m)
        return 0

    def opens(self):
        """How many opens of all jobs were counted, by the reports that root keeps of them."""
        total = 0
        for path in glob.glob(f"{self.state}/reports/*/*.json"):
            total += json.loads(e2e.text_in(path))["opens"]
        return total

    def mostly_in_time(self, name, by_design=0):
        """Two TAP lines about all of a run: each test by itself lets agents be late and opens wait in vain, as they may where a machine
        is busy for a moment. `by_design`: how many agents a test has made late."""
        late, vain, opens = self.late_agents() - by_design, self.timeouts(), self.opens()
        print(f"# {name}: {late} agents were late, {vain} of {opens} opens waited in vain")
        if e2e.SLOW > 1:
            e2e.skip(f"{name}: agents and opens are in time", "a slow machine")
            return
        ok(late <= MOST_LATE, f"{name}: at most {MOST_LATE} agents are late", late)
        ok(100 * vain <= MOST_IN_VAIN * opens, f"{name}: at most {MOST_IN_VAIN} % of all opens wait in vain", f"{vain} of {opens}")

    def record(self, job, node=""):
        """What root noted of the job on a node, the first if none is named; None before the agent is there."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            record = json.loads(e2e.text_in(f"{self.state}/jobs/lab.{job}.{node or self.node_names[0]}/record.json"))
            return record if record.get("pid") else None
        return None

    # ---- jobs

    def start(self, command, root=False, env=None, **more):
        """As e2e.start, as the job's user with a small environment and with pipes."""
        who = [] if root else ["setpriv", f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--init-groups"]
        path = f"{self.slurm}/bin:" if self.slurm else ""
        env = {"PATH": f"{path}/usr/local/bin:/usr/bin:/bin:/usr/sbin", "LC_ALL": "C.UTF-8", "SLURM_CONF": self.conf,
               "HOME": self.out, "USER": "root" if root else USER, **(env or {})}
        return e2e.start([*self._at_hub, *who, *command], cwd=self.out, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, **more)

    def execute(self, command, seconds=PATIENCE, **more):
        """Runs it to its end; as e2e.execute."""
        return e2e.finish(self.start(command, **more), seconds)

    def submit(self, options, script, **more):
        """Submits a batch script, by its text; the job's id."""
        code, out, err = self.execute(["sbatch", "--parsable", "--exclusive", "--output=%j", *options,
                                       "--wrap=" + script], **more)
        if code != 0:
            raise RuntimeError(f"sbatch: exit code {code}: {err}")
        return int(out)

    def jobs(self, job):
        """Slurm's records of a job, or of each of an array."""
        out = self.execute(["scontrol", "-o", "show", "job", str(job)])[1].decode()
        return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in out.splitlines()]

    def state_of(self, job):
        return ",".join(sorted({record["JobState"] for record in self.jobs(job)}))

    def wait(self, job, seconds=PATIENCE):
        """Waits for the end of a job, its epilogs included; its state."""
        wait_until(lambda: set(self.state_of(job).split(",")) <= ENDED, seconds)
        return self.state_of(job)

    def wait_running(self, job, file):
        """Waits until a running job has made a file in its output directory."""
        if not wait_until(lambda: os.path.exists(f"{self.out}/{file}"), PATIENCE):
            raise RuntimeError(f"job {job} did not get there: {self.jobs(job)}\n{self.said_of(job)}")

    def held(self, job):
        """Waits until its script has come to HELD."""
        self.wait_running(job, f"half.{job}")

    def go(self, job):
        """Lets a script with HELD go on."""
        e2e.write(f"{self.out}/go.{job}", b"")

    def requeue(self, job):
        """Has a job that runs begin anew: Slurm would wait two minutes. A node refuses credentials of the second in which it ended the job."""
        code, _, err = self.execute(["scontrol", "requeue", str(job)])
        equal(code, 0, "scontrol requeue", err)
        wait_until(lambda: self.state_of(job) == "PENDING" and self.epilog_ms(job), PATIENCE)
        ended = int(time.time())
        wait_until(lambda: int(time.time()) > ended, PATIENCE)

        def begun():
            self.execute(["scontrol", "update", f"jobid={job}", "starttime=now"], root=True)
            return self.state_of(job) not in ("PENDING", "CONFIGURING")
        wait_until(begun, PATIENCE)

    def said_of(self, job):
        """The last lines of Slurm's logs about a job, and what it wrote."""
        lines = []
        for path in glob.glob(f"{self._dir}/log/slurm*.log"):
            with open(path, encoding="utf-8", errors="replace") as file:
                lines += [f"{os.path.basename(path)}: {line.rstrip()}" for line in file if re.search(rf"\b{job}\b", line)][-20:]
        with contextlib.suppress(OSError):
            lines.append(self.output(job).decode(errors="replace")[-2000:])
        return "\n".join(lines)

    def output(self, job):
        """What it printed, without its closing()."""
        return CLOSING.sub(b"", e2e.bytes_in(f"{self.out}/{job}"))

    def closing(self, job):
        """The lines by which Monarch tells what the PFS was spared; one if it comes to that."""
        return [line.decode() for line in CLOSING.findall(e2e.bytes_in(f"{self.out}/{job}"))]

    def comment(self, job, seconds=30):
        """The job's SystemComment, once there is one."""
        def read():
            code, out, err = self.execute(["sacct", "-X", "-n", "-P", "-o", "JobIDRaw,SystemComment", "-j", str(job)])
            if code != 0:
                return f"sacct: {err}"
            return dict(line.split("|", 1) for line in out.decode().splitlines()).get(str(job), "")
        wait_until(read, seconds)
        return read()

    # ---- what is left

    def processes(self):
        """Monarch's processes that belong to this cluster."""
        found = subprocess.run(["pgrep", "-a", "-f", f"^[^ ]*monarchd .*{self.state}"], stdout=subprocess.PIPE,
                               check=False)
        return found.stdout.decode().splitlines()

    def left(self, *tiers):
        """All that jobs which have ended left on the nodes, where nothing should be."""
        places = [f"{self.state}/jobs", f"{self.state}/removing", f"{self.state}/run", f"{self.state}/spool", self.tier, *tiers]
        found = subprocess.run(["find", *places, "-mindepth", "1", "-maxdepth", "3"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, check=False).stdout.decode(errors="surrogateescape")
        left = [p for p in found.splitlines()
                if not re.search(r"^/node[-a-z]*\d(/monarch)?$", p.removeprefix(self.tier)) and p not in [f"{tier}/monarch" for tier in tiers]]
        left += e2e.mounts_below(self.tier) + e2e.mounts_below(self.state) + self.processes()
        running = self.execute(["squeue", "-h", "-a", "-o", "%A"])[1].decode().split()
        return [p for p in left if not any(f"/lab.{job}." in p for job in running)]

    def nodes(self):
        """{node: state}, with the reason if there is one."""
        out = self.execute(["sinfo", "-h", "-N", "-o", "%N %T %E"])[1].decode()
        return {name: state if reason == "none" else f"{state} ({reason})"
                for name, state, reason in (line.split(" ", 2) for line in out.splitlines())}

    def nothing_left(self, name, *tiers):
        """Two TAP lines."""
        wait_until(lambda: not self.left(*tiers))
        left = self.left(*tiers)
        equal(left, [], f"{name}: nothing is left on the nodes")
        wait_until(lambda: set(self.nodes().values()) <= {"idle", "allocated"})
        ok(set(self.nodes().values()) <= {"idle", "allocated"}, f"{name}: no node is drained", self.nodes())


class Dataset:
    """A copy of one tree of files, on a PFS or elsewhere, and what reading all of it prints."""

    FILES = 40
    largest = 0  # bytes; of each dataset, since all are copies of one
    _count = 0

    def __init__(self, parent):
        Dataset._count += 1
        self.path = f"{parent}/data{Dataset._count}"
        model = f"{scratch()}/model"
        if not os.path.isdir(model):
            e2e.make_tree(model, self.FILES)
            subprocess.run(["chmod", "-R", "a+rX", model], check=True)
        subprocess.run(["cp", "-r", model, self.path], check=True)
        sizes = [os.path.getsize(f"{d}/{f}") for d, _, files in os.walk(model) for f in files]
        self.bytes, Dataset.largest = sum(sizes), max(sizes)
        self.directories = sum(1 for _ in os.walk(model))
        self.sums = e2e.execute(e2e.read_all(model))[1].replace(model.encode(), self.path.encode())

    def read(self, times=1):
        """Shell code that reads all files that often and prints checksums."""
        return f"for n in {' '.join(map(str, range(times)))}; do " \
               f"find '{self.path}' -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum; done"


def fields(line):
    """{name: value} of a line in sacct."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def size_text(number):
    """As Monarch writes sizes."""
    if number < 1024:
        return str(number)
    value, units = number / 1024, "KMGTPE"
    while value >= 999.5:
        value, units = value / 1024, units[1:]
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{units[0]}"


def bytes_of(text):
    """The number that size_text made into text, to three digits."""
    unit = " KMGTPE".find(text[-1])
    return float(text[:-1]) * 1024**unit if unit > 0 else int(text)


def tree_state(path):
    """All that stat tells of a tree, but access times."""
    return sorted((p, st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
                  for p in [path, *glob.glob(f"{path}/**", recursive=True, include_hidden=True)] for st in [os.lstat(p)])
