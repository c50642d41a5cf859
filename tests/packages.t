#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""make deb and make rpm: packages are installed into a new system of this machine's release, alone, then beside Slurm; a job runs with what
they brought, they are replaced by packages of another version, of the same build, while another one runs, removed and purged.
MONARCH_TEST_ALL=1: they are built for that. The new system comes from the archive that apt knows; without one, a copy of this machine's is used."""

import contextlib
import functools
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess

import e2e
import slurm_lab
from e2e import BUILD, SOURCE, contains, equal, ok, scratch, skip, wait_until

PACKAGES = f"{BUILD}/packages"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
INSTALL = ["install", "-qq", "--yes", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0", "-o", "Dpkg::Options::=--force-unsafe-io"]
# Mounts and processes of a command are in namespaces that end when it is killed, as it is when this test ends.
ENDS_WITH_US = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
root = ""  # another system's files, as they are seen from here; what is changed there stays there
first = 0  # the first process of that system


def why_not():
    if os.environ.get("MONARCH_TEST_ALL") != "1":
        return "builds Monarch several times: with MONARCH_TEST_ALL=1"
    missing = [word for word in ("dpkg-buildpackage", "dh", "lintian", "rpmbuild", "eu-strip") if not shutil.which(word)]
    return slurm_lab.why_no_slurm() or (f"not installed: {', '.join(missing)} (run dev/deps package)" if missing else "")


def run(name, *command, cwd=None, **more):
    """It succeeds, as a test."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    code, out, err = e2e.execute(command, 3000, env={**env, **more}, cwd=cwd)
    return ok(code == 0, name, "\n".join((out.decode(errors="replace") + err).splitlines()[-40:]))


def hashes(directory, pattern):
    found = {}
    for path in glob.glob(f"{directory}/{pattern}"):
        found[os.path.basename(path)] = hashlib.sha256(e2e.bytes_in(path)).hexdigest()
    return found


def release():
    """The tarball of the release, and its version."""
    path = glob.glob(f"{BUILD}/monarch-*.tar.xz")[0]
    return path, os.path.basename(path).removeprefix("monarch-").removesuffix(".tar.xz")


def tarball():
    """The same source gives the same tarball, also from a release that somebody else unpacked."""
    for old in glob.glob(f"{BUILD}/monarch-*.tar.xz"):
        os.unlink(old)
    run("make dist", "make", "-C", BUILD, "dist")
    path, version = release()
    run("make dist of a release elsewhere, with another umask and time zone", "sh", "-ec",
        f"umask 077; tar -xJf {path}; cd monarch-{version}; ./configure --without-slurm; make dist", cwd=scratch("release"), TZ="Asia/Tokyo")
    equal(hashes(f"{scratch()}/release/monarch-{version}", "*.tar.xz"), hashes(BUILD, "monarch-*.tar.xz"), "the tarball is the same")


def build():
    """The packages, and what they hold."""
    for form in "deb", "rpm":
        run(f"make {form}", "make", "-C", BUILD, form)
    run("lintian has neither errors nor warnings", "lintian", "--fail-on", "error,warning", "--tag-display-limit", "0", *glob.glob(f"{PACKAGES}/*.deb"))
    listed = {}
    for path in glob.glob(f"{PACKAGES}/*.deb"):
        lines = e2e.execute(["dpkg-deb", "-c", path])[1].decode().splitlines()
        listed[os.path.basename(path).partition("_")[0]] = [line.partition(" -> ")[0].split()[-1] for line in lines]
    number = int(re.search(r"SLURM_VERSION_NUMBER (0x\w+)", e2e.text_in("/usr/include/slurm/slurm_version.h"))[1], 16)
    slurm = f"{number >> 16 & 255:02}.{number >> 8 & 255:02}"
    plugin = f"monarch-slurm{slurm}"
    equal(sorted(listed), sorted(["libmonarch-dev", "monarch", "monarch-dbgsym", "monarch-doc", plugin, f"{plugin}-dbgsym"]),
          "agent, plugin, documents and files for development are packages, and their debug symbols; the plugin's has the Slurm release in its name")
    ok("./usr/lib/slurm/spank_monarch.so" in listed[plugin] and not any("spank_monarch.so" in line for line in listed["monarch"]), "the plugin is in its own package only")
    installed = {os.path.relpath(f"{directory}/{name}", slurm_lab.install_prefix())
                 for directory, _, names in os.walk(slurm_lab.install()) for name in names}
    packed = {re.sub(r"^\./(usr/)?|(?<=\.[13578])\.gz$", "", line) for files in listed.values() for line in files}
    equal(sorted(path for path in installed if path not in packed), [], "all that make install installs is in one of them, under its own name")
    rpms = {}
    for path in glob.glob(f"{PACKAGES}/*.rpm"):
        rpms[e2e.execute(["rpm", "-qp", "--qf", "%{NAME}", path])[1].decode()] = e2e.execute(["rpm", "-qpl", path])[1].decode().splitlines()
    equal(sorted(name for name in rpms if "debug" not in name), ["libmonarch-devel", "monarch", "monarch-doc", plugin], "the rpms are the same packages")
    symbols = " ".join(rpms["monarch-debuginfo"])
    equal([name for name in ("monarchd", "monarchctl", "libmonarch_preload.so", "spank_monarch.so") if not re.search(rf"/{re.escape(name)}-\S*\.debug", symbols)], [],
          "debug symbols are an rpm of their own")
    packed = {re.sub(r"^/(usr/)?|(?<=\.[13578])\.gz$", "", line) for files in rpms.values() for line in files}
    equal(sorted(path for path in installed if path not in packed), [], "the rpms have all of it, too")


def archive():
    """Lines of sources.list: where apt gets this machine's release from; nothing of others."""
    this = platform.freedesktop_os_release()
    codename = this.get("VERSION_CODENAME", "")
    out = e2e.execute(["apt-get", "indextargets", "--format", "$(CODENAME) deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages",
                       f"Origin: {this['ID'].capitalize()}"])[1].decode()
    return [line.partition(" ")[2] for line in out.splitlines() if re.match(rf"{codename}(-\S*)? ", line)]


def why_no_archive():
    if not shutil.which("mmdebstrap"):
        return "not installed: mmdebstrap (run dev/deps package)"
    if not archive():
        return "apt has no list of this release's packages: run apt-get update"
    patience = [word for kind in ("http", "https") for word in ("-o", f"Acquire::{kind}::Timeout=20")]
    for line in archive():
        _, uri, suite, _ = line.split()
        code, _, err = e2e.execute(["/usr/lib/apt/apt-helper", *patience, "-o", "Acquire::Retries=1", "download-file",
                                    f"{uri}dists/{suite}/InRelease", f"{scratch('archive')}/InRelease"], 200)
        if code != 0:
            return f"the archive that apt knows does not answer: {' '.join(err.split())}"
    return ""


@functools.cache
def new_system():
    """(The directory of) a system of this machine's release that has the essential packages and apt, and whose packages start no
    daemons; or None, and why."""
    if why := why_no_archive():
        return None, why
    made = scratch("new")
    files = {"sources.list": "\n".join(archive()) + "\n", "apt.conf": e2e.execute(["apt-config", "dump", "Acquire"])[1].decode()}
    for name, text in files.items():
        e2e.write(f"{scratch('archive')}/{name}", text)
    # A mirror's proxy and the like stand in apt's configuration, or in the environment.
    code, _, err = e2e.execute([*ENDS_WITH_US, "--mount-proc", "mmdebstrap", "--mode=root", "--variant=minbase", "--skip=cleanup/apt/lists",
                                "--dpkgopt=force-unsafe-io", f"--aptopt={scratch('archive')}/apt.conf", platform.freedesktop_os_release()["VERSION_CODENAME"],
                                made, f"{scratch('archive')}/sources.list"], 1200 * e2e.SLOW, env=e2e.native_environment(TMPDIR=scratch("archive")))
    if code != 0:
        raise RuntimeError(f"mmdebstrap: {code}: {err[-3000:]}")
    for name in "/etc/resolv.conf", "/etc/hosts":
        shutil.copy(name, made + name)
    e2e.write(f"{made}/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")
    os.chmod(f"{made}/usr/sbin/policy-rc.d", 0o755)
    return made, ""


# The first process reaps what others leave.
START = """
mount -t overlay overlay -o "$2" "$1"
cd "$1"
for name in sys dev; do mount --rbind "/$name" "$name"; done
mount -t proc proc proc
mount -t tmpfs -o mode=755 none run
for name in tmp var/tmp; do mount -t tmpfs -o mode=1777 none "$name"; done
pivot_root . .
umount -l .
exec bash -c 'echo; while sleep 1; do :; done'
"""


def no_lab_groups():
    """Removes the control group of the lab in there, which no `down` has done if this test was ended while the lab began."""
    group = f"monarch-lab-{hashlib.sha1(b'/srv/lab').hexdigest()[:8]}"
    left = glob.glob(f"/sys/fs/cgroup/{group}") + glob.glob(f"/sys/fs/cgroup/*/{group}")
    for path in left:
        subprocess.run(["find", path, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+"], stderr=subprocess.DEVNULL, check=False)
    return not any(os.path.exists(path) for path in left)


@contextlib.contextmanager
def another_system(name, lower):
    """It has the files in `lower`, without what is mounted there, and all that is changed; it runs on this machine's kernel and network."""
    global root, first
    at, upper, work = (scratch(f"{name}.{part}") for part in ("root", "upper", "work"))
    process = e2e.start([*ENDS_WITH_US, "sh", "-ec", START, "sh", at,
                         f"lowerdir={lower},upperdir={upper},workdir={work}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=ENVIRONMENT)
    try:
        if process.stdout.readline() != b"\n":
            raise RuntimeError("no root of its own: see what mount says")
        first = e2e.children(process.pid, "bash")[0]
        root = f"/proc/{first}/root"
        yield
    finally:
        e2e.end(process)
        process.stdout.close()
        wait_until(no_lab_groups, 3)


def inside(*command, seconds=600, **more):
    return e2e.execute(["nsenter", f"--target={first}", "--mount", "--pid", *command], seconds, env={**ENVIRONMENT, **more})


def apt(name, *words):
    """It succeeds, as a test."""
    proxies = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
    code, out, err = inside("apt-get", *words, seconds=600 * e2e.SLOW, **proxies)
    return ok(code == 0, name, (out.decode(errors="replace") + err)[-3000:])


def lab(*words):
    return inside("/srv/dev/lab", "slurm", *words, "--dir", "/srv/lab")


def as_user(conf, *command):
    return inside("setpriv", "--reuid=monarchlab", "--regid=monarchlab", "--init-groups", *command, SLURM_CONF=conf, HOME="/srv/lab/home")


def state_of(conf, job):
    return re.search(r"JobState=(\S+)", as_user(conf, "scontrol", "-o", "show", "job", job)[1].decode()).group(1)


def submit(conf, text):
    code, out, err = as_user(conf, "sbatch", "--parsable", "--chdir=/srv/lab/home", "--output=/srv/lab/home/%j", "--monarch-dataset=/srv/data", f"--wrap={text}")
    if code != 0:
        raise RuntimeError(f"sbatch: {code}: {err}")
    return out.decode().strip()


def check(name, conf, job, sums):
    wait_until(lambda: state_of(conf, job) in slurm_lab.ENDED, slurm_lab.PATIENCE)
    out = e2e.text_in(f"{root}/srv/lab/home/{job}").partition("monarch: ")[0]
    equal((state_of(conf, job), out), ("COMPLETED", sums), f"{name}: the job ends, its bytes are right")
    def comment():
        return as_user(conf, "sacct", "-X", "-n", "-P", "-o", "SystemComment", "-j", job)[1].decode()
    wait_until(lambda: "monarch=1" in comment(), slurm_lab.PATIENCE)
    line = comment()
    # On a machine that is busy an open may have waited in vain, and its file been moved to the copy later.
    hit = re.search(r" hit=([\d.]+)% ", line)
    ok(line.startswith("monarch=1 ") and " staged=100% " in line and line.endswith(" err=0\n") and hit and float(hit[1]) >= 50, f"{name}: the line in sacct", line)
    ok(wait_until(lambda: not os.listdir(f"{root}/srv/tier/monarch")), f"{name}: nothing is left on the tier", *os.listdir(f"{root}/srv/tier/monarch"))


def packages():
    """They are in the other system now, without debug symbols: their paths there."""
    shutil.copytree(PACKAGES, f"{root}/srv/packages", ignore=shutil.ignore_patterns("*.rpm", "*dbgsym*", "libmonarch-dev*"))
    found = sorted(f"/srv/packages/{name}" for name in os.listdir(f"{root}/srv/packages"))
    equal(len(found), 3, "there are packages")
    return found


def files():
    """All files of the other system but what apt, dpkg and the linker note for themselves."""
    own = [word for path in ("/var/lib/apt", "/var/lib/dpkg", "/var/cache", "/var/log/apt", "/var/log/dpkg.log", "/srv")
           for word in ("-path", path, "-prune", "-o")]
    return set(inside("find", "/", "/run", "-xdev", *own, "-print")[1].decode(errors="replace").splitlines())


def programs_of(package):
    """What is compiled of a package that is installed: programs and libraries."""
    def is_elf(path):
        if not os.path.isfile(root + path):
            return False
        with open(root + path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    return sorted(path for path in inside("dpkg", "-L", package)[1].decode().splitlines() if is_elf(path))


def alone():
    """Their dependencies are all that they need beside the essential packages; purged, they and those leave nothing."""
    lower, why = new_system()
    if why:
        return skip("alone in a new system", why)
    with another_system("alone", lower):
        debs = packages()
        before = files()
        agent, doc, plugin = names(debs)
        for name, programs in ((doc, []), (agent, ["/usr/bin/monarchctl", "/usr/lib/monarch/libmonarch_preload.so", "/usr/sbin/monarchd"]),
                               (plugin, ["/usr/lib/slurm/spank_monarch.so", "/usr/libexec/monarch/monarch_account"])):
            apt(f"{name}: apt-get install in a new system", *INSTALL, next(path for path in debs if os.path.basename(path).startswith(f"{name}_")))
            found = programs_of(name)
            equal([path for path in programs if path not in found], [], f"{name}: its programs are there", found)
            out = inside("ldd", *found)[1].decode() if found else ""
            equal([path for path in found if f"{path}:\n" not in out], [], f"{name}: ldd looks at each")
            equal([line.strip() for line in out.splitlines() if "not found" in line], [], f"{name}: all libraries are there", out)
        for program in "monarchd", "monarchctl":
            code, out, err = inside(program, "--version")
            ok(code == 0 and release()[1] in out.decode(), f"{program} --version", code, out.decode(), err)
        inside("sh", "-ec", "mkdir /srv/tier /srv/data; for n in 1 2 3 4 5; do head -c 30000 /dev/urandom >/srv/data/$n; done")
        sums = inside("sh", "-c", "md5sum /srv/data/*")[1]
        code, out, err = inside("monarchctl", "run", "--dataset", "/srv/data", "--tier", "t:/srv/tier:10M", "--wait", "full", "--report", "/srv/report", "--",
                                "sh", "-c", "md5sum /srv/data/*")
        equal((code, out), (0, sums), "monarchctl run: the bytes are right", err)
        report = json.loads(e2e.text_in(f"{root}/srv/report"))
        equal((report["opens"], report["opens_tier"]), (5, 5), "monarchctl run: from the tier", report)
        apt("apt-get purge", "purge", "-qq", "--yes", "--auto-remove", "-o", "Dpkg::Use-Pty=0", *names(debs))
        equal(sorted(files() - before), [], "purged: nothing is left of them, nor of what came with them")
        equal(sorted(before - files()), [], "and nothing else is gone")


def files_of_monarch(lower):
    """What of it is in the other system and not in the one that this was made of."""
    found = subprocess.run(["find", *(f"{root}/{name}" for name in ("usr", "etc", "lib", "var", "run", "srv/tier")), "-xdev", "-name", "*monarch*",
                            "-not", "-path", f"{root}{scratch()}*"], stdout=subprocess.PIPE, check=False).stdout.decode().split()
    found = [path.removeprefix(root) for path in found]
    return sorted(path for path in found if path != "/run/monarch-lab" and (path.startswith("/run/") or not os.path.lexists(lower + path)))


def other(debs, version):
    """The same packages, of the same build, with another version on them, in which \\2 is their own; their paths in the root."""
    made = []
    for path in debs:
        name = f"/srv/{len(version)}.{os.path.basename(path)}"
        inside("sh", "-ec", f"dpkg-deb -R {path} /srv/unpacked; sed -i -E 's/^(Version: )(.*)/\\1{version}/; s/(\\(= )([^)]*)/\\1{version}/' "
               f"/srv/unpacked/DEBIAN/control; dpkg-deb -b /srv/unpacked {name}; rm -r /srv/unpacked")
        made.append(name)
    return made


def install(name, *debs):
    code, out, err = inside("dpkg", "-i", *debs)
    ok(code == 0, f"{name}: dpkg -i", out.decode(), err)


def configuration():
    """What Slurm and systemd would follow: contents, owners, modes and times."""
    return inside("sh", "-c", "find /etc -name '*slurm*' -o -path '*/systemd/*' | sort | xargs ls -ld --time-style=full-iso; find /etc -name '*slurm*' -type f | sort | xargs cat")[1]


def life():
    """Installed, used, replaced in mid-job by packages of another version, twice, removed, purged."""
    lower, why = new_system()
    if why:
        skip("beside Slurm in a new system, not in a copy of this machine's", why)
    with another_system("life", lower or "/"):
        if lower:
            slurm = subprocess.run([f"{SOURCE}/dev/deps", "--list", "slurm"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
            apt("a node has systemd and Slurm", *INSTALL, "systemd", *slurm)
        life_in(lower)


def life_in(lower):
    shutil.copytree(f"{SOURCE}/dev", f"{root}/srv/dev")
    new = packages()
    old = other(new, "0.1.99")
    slurms = configuration()
    if lower:
        apt("fresh: apt-get install", *INSTALL, *old)
    else:
        install("fresh", *old)
    equal(configuration(), slurms, "no configuration of Slurm's or systemd's is changed")
    contains(inside("dpkg-query", "-W", "monarch")[1].decode(), ["0.1.99"], "packages of this build with an older version on them are installed")
    inside("systemctl", "enable", "monarch-sweep.service", "monarch-metrics.socket", "monarch-metrics-textfile.timer")
    ok(os.path.islink(f"{root}/etc/systemd/system/multi-user.target.wants/monarch-sweep.service"), "the administrator enables the units")
    equal(stat.filemode(os.stat(f"{root}/run/monarch").st_mode), "drwx--x--x", "the directory in /run is there")

    os.makedirs(f"{root}/srv/data")
    for number in range(20):
        e2e.write(f"{root}/srv/data/{number:02}", os.urandom(50000))
    os.makedirs(f"{root}/srv/tier")
    os.chmod(f"{root}/srv/tier", 0o1777)
    e2e.write(f"{root}/etc/monarch/monarch.conf", "[tier.nvme]\npath = /srv/tier\nquota = 100M\nmedium = nvme\n")
    sums = inside("sh", "-c", "md5sum /srv/data/*")[1].decode()
    home = f"{root}/srv/lab/home"
    line = next(text for text in e2e.text_in(f"{root}/usr/share/monarch/plugstack.conf.d/spank_monarch.conf").splitlines() if not text.startswith("#"))
    code, out, err = lab("up", "--nodes", "1", "--prolog-flags", "Contain", "--plugstack-line", line)
    try:
        ok(code == 0, "Slurm starts with the installed plugin's line", out.decode(), err)
        conf = json.loads(lab("status", "--json")[1])["slurm_conf"]

        def long_job(name):
            """A job that reads all, waits for a file, and reads all again; and what lets it go on."""
            job = submit(conf, f"md5sum /srv/data/*; touch {name}; while [ ! -e {name}.go ]; do sleep 0.05; done; md5sum /srv/data/*")
            ok(wait_until(lambda: os.path.exists(f"{home}/{name}"), slurm_lab.PATIENCE), f"{name}: the job has read all")
            return job
        check("installed", conf, submit(conf, "md5sum /srv/data/*"), sums)
        job = long_job("older")
        install("from a package of an older version to this one while a job runs", *new)
        e2e.write(f"{home}/older.go", b"")
        check("a job in which the packages got another version", conf, job, sums * 2)
        check("a job after that", conf, submit(conf, "md5sum /srv/data/*"), sums)
        job = long_job("newer")
        install("to a package of a later version while a job runs", *other(new, "\\2+1"))
        code, out, err = inside("dpkg", "-r", *names(new))
        ok(code != 0 and "jobs use Monarch on this node" in err, "monarch cannot be removed while a job runs", code, out.decode(), err)
        install("what was removed", *other(new, "\\2+1"))
        e2e.write(f"{home}/newer.go", b"")
        check("a job in which they got a later version", conf, job, sums * 2)
    finally:
        lab("down")
    code, out, err = inside("dpkg", "-r", *names(new))
    ok(code == 0, "dpkg -r", out.decode(), err)
    ok(os.path.exists(f"{root}/etc/monarch/monarch.conf"), "the administrator's configuration stays")
    ok(not os.path.exists(f"{root}/srv/tier/monarch"), "the tier has no directory of root's any more")
    code, out, err = inside("dpkg", "-P", *names(new))
    ok(code == 0, "dpkg -P", out.decode(), err)
    equal(files_of_monarch(lower or ""), [], "purged: nothing of Monarch is left")
    equal(inside("dpkg-query", "-W", "monarch*")[1].decode().strip(), "", "dpkg knows nothing of it any more")


def names(debs):
    return sorted(os.path.basename(path).partition("_")[0] for path in debs)


e2e.skip_all_if(why_not())
e2e.main(tarball, build, alone, life)
