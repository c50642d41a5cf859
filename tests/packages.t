#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make deb and make rpm: packages are installed into a fresh root, a job runs with what they brought, they are upgraded while another
one runs, removed and purged. MONARCH_TEST_ALL=1: they are built for that."""

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab  # pylint: disable=wrong-import-position
from e2e import BUILD, SOURCE, contains, equal, ok, scratch, wait_until  # pylint: disable=wrong-import-position

PACKAGES = f"{BUILD}/packages"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
root = ""  # a copy of this machine's file system: what is changed there stays there


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
        with open(path, "rb") as file:
            found[os.path.basename(path)] = hashlib.sha256(file.read()).hexdigest()
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
    with open("/usr/include/slurm/slurm_version.h", encoding="utf-8") as header:
        number = int(re.search(r"SLURM_VERSION_NUMBER (0x\w+)", header.read())[1], 16)
    slurm = f"{number >> 16 & 255:02}.{number >> 8 & 255:02}"
    plugin = f"monarch-slurm{slurm}"
    equal(sorted(listed), sorted(["monarch", "monarch-dbgsym", "monarch-doc", plugin, f"{plugin}-dbgsym"]),
          "agent, plugin and documents are packages, and their debug symbols; the plugin's has the Slurm release in its name")
    ok("./usr/lib/slurm/spank_monarch.so" in listed[plugin] and not any("spank_monarch.so" in line for line in listed["monarch"]), "the plugin is in its own package only")
    installed = {os.path.relpath(f"{directory}/{name}", slurm_lab.install_prefix())
                 for directory, _, names in os.walk(slurm_lab.install()) for name in names}
    packed = {re.sub(r"^\./(usr/)?|(?<=\.[1578])\.gz$", "", line) for files in listed.values() for line in files}
    equal(sorted(path for path in installed if path not in packed), [], "all that make install installs is in one of them, under its own name")
    rpms = {}
    for path in glob.glob(f"{PACKAGES}/*.rpm"):
        rpms[e2e.execute(["rpm", "-qp", "--qf", "%{NAME}", path])[1].decode()] = e2e.execute(["rpm", "-qpl", path])[1].decode().splitlines()
    equal(sorted(name for name in rpms if "debug" not in name), ["monarch", "monarch-doc", plugin], "the rpms are the same packages")
    symbols = " ".join(rpms["monarch-debuginfo"])
    equal([name for name in ("monarchd", "monarchctl", "libmonarch_preload.so", "spank_monarch.so") if not re.search(rf"/{re.escape(name)}-\S*\.debug", symbols)], [],
          "debug symbols are an rpm of their own")
    packed = {re.sub(r"^/(usr/)?|(?<=\.[1578])\.gz$", "", line) for files in rpms.values() for line in files}
    equal(sorted(path for path in installed if path not in packed), [], "the rpms have all of it, too")


def reproduced():
    """The same tarball gives the same packages: built in another directory, by the compiler without a cache."""
    first = hashes(PACKAGES, "*.deb")
    ok(len(first) == 5, "there are packages to compare with", first)
    again = scratch("again")
    elsewhere = scratch("elsewhere")
    run("the packages are built once more", "sh", "-ec", f"umask 077; exec {SOURCE}/dev/package deb {release()[0]} {again}", CXX="g++", TMPDIR=elsewhere, TZ="Asia/Tokyo",
        LC_ALL="C")
    equal(hashes(again, "*.deb"), first, "they are the same, byte for byte")


def make_root():
    """This machine's files, without what its own mounts hold."""
    global root
    root = scratch("root")
    upper, work = scratch("upper"), scratch("work")
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root], check=True)
    for name in ("proc", "sys", "dev"):
        subprocess.run(["mount", "--rbind", f"/{name}", f"{root}/{name}"], check=True)
        subprocess.run(["mount", "--make-rslave", f"{root}/{name}"], check=True)
    for name, mode in ("run", "755"), ("tmp", "1777"), ("var/tmp", "1777"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode={mode}", "none", f"{root}/{name}"], check=True)
    for own in SOURCE, BUILD:  # they may be on a file system of their own
        if not os.path.isdir(root + own):
            os.makedirs(root + own)
            subprocess.run(["mount", "--bind", own, root + own], check=True)


def inside(*command, seconds=600, **more):
    return e2e.execute(["chroot", root, *command], seconds, env={**ENVIRONMENT, **more})


def lab(*words):
    return inside(f"{SOURCE}/dev/lab", "slurm", *words, "--dir", "/srv/lab")


def as_user(conf, *command):
    return inside("setpriv", "--reuid=monarchlab", "--regid=monarchlab", "--init-groups", *command, SLURM_CONF=conf, HOME="/srv/lab/home")


def state_of(conf, job):
    return re.search(r"JobState=(\S+)", as_user(conf, "scontrol", "-o", "show", "job", job)[1].decode()).group(1)


def submit(conf, text):
    code, out, err = as_user(conf, "sbatch", "--parsable", "--chdir=/srv/lab/home", "--output=/srv/lab/home/%j", "--monarch-dataset=/srv/data", f"--wrap={text}")
    if code != 0:
        raise RuntimeError(f"sbatch: {code}: {err}")
    return out.decode().strip()


def check(name, conf, job, sums, line):
    wait_until(lambda: state_of(conf, job) in slurm_lab.ENDED, slurm_lab.PATIENCE)
    with open(f"{root}/srv/lab/home/{job}", encoding="utf-8") as file:
        equal((state_of(conf, job), file.read()), ("COMPLETED", sums), f"{name}: the job ends, its bytes are right")
    def comment():
        return as_user(conf, "sacct", "-X", "-n", "-P", "-o", "SystemComment", "-j", job)[1].decode()
    wait_until(lambda: "monarch=1" in comment(), slurm_lab.PATIENCE)
    contains(comment(), ["monarch=1 ", line], f"{name}: the line in sacct")
    ok(wait_until(lambda: not os.listdir(f"{root}/srv/tier/monarch")), f"{name}: nothing is left on the tier", *os.listdir(f"{root}/srv/tier/monarch"))


def files_of_monarch():
    found = subprocess.run(["find", *(f"{root}/{name}" for name in ("usr", "etc", "lib", "var", "run", "srv/tier")), "-xdev", "-name", "*monarch*",
                            "-not", "-path", f"{root}{scratch()}*"], stdout=subprocess.PIPE, check=False).stdout.decode().split()
    found = [path.removeprefix(root) for path in found]
    return sorted(path for path in found if path != "/run/monarch-lab" and (path.startswith("/run/") or not os.path.lexists(path)))


def other(debs, version):
    """The same packages with another version, in which \\2 is their own; their paths in the root."""
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


@contextlib.contextmanager
def told_to_systemd(name, want):
    """As on a system that runs systemd: what it is told meanwhile, by a program in the place of systemctl."""
    asked = f"{root}/srv/systemctl.asked"
    os.makedirs(f"{root}/run/systemd/system")
    shutil.move(f"{root}/usr/bin/systemctl", f"{root}/srv/systemctl")
    with open(f"{root}/usr/bin/systemctl", "w", encoding="utf-8") as file:
        file.write('#!/bin/sh\necho "$*" >>/srv/systemctl.asked\n')
    os.chmod(f"{root}/usr/bin/systemctl", 0o755)
    try:
        yield
    finally:
        shutil.move(f"{root}/srv/systemctl", f"{root}/usr/bin/systemctl")
        os.rmdir(f"{root}/run/systemd/system")
    with open(asked, "a+", encoding="utf-8") as file:
        file.seek(0)
        equal(sorted(set(file.read().splitlines())), want, f"{name}: what systemd is told")
    os.remove(asked)


def configuration():
    """What Slurm and systemd would follow: contents, owners, modes and times."""
    return inside("sh", "-c", "find /etc -name '*slurm*' -o -path '*/systemd/*' | sort | xargs ls -ld --time-style=full-iso; find /etc -name '*slurm*' -type f | sort | xargs cat")[1]


def life():
    """Installed, used, upgraded in mid-job, twice, removed, purged."""
    make_root()
    shutil.copytree(PACKAGES, f"{root}/srv/packages", ignore=shutil.ignore_patterns("*.rpm", "*dbgsym*"))
    new = [f"/srv/packages/{name}" for name in os.listdir(f"{root}/srv/packages")]
    equal(len(new), 3, "there are packages")
    old = other(new, "0.1.99")
    slurms = configuration()
    with told_to_systemd("fresh", ["--system daemon-reload"]):
        install("fresh", *old)
    equal(configuration(), slurms, "no configuration of Slurm's or systemd's is changed")
    contains(inside("dpkg-query", "-W", "monarch")[1].decode(), ["0.1.99"], "the older version is installed")
    inside("systemctl", "enable", "monarch-sweep.service", "monarch-metrics.socket", "monarch-metrics-textfile.timer")
    ok(os.path.islink(f"{root}/etc/systemd/system/multi-user.target.wants/monarch-sweep.service"), "the administrator enables the units")
    equal(stat.filemode(os.stat(f"{root}/run/monarch").st_mode), "drwx--x--x", "the directory in /run is there")

    os.makedirs(f"{root}/srv/data")
    for number in range(20):
        with open(f"{root}/srv/data/{number:02}", "wb") as file:
            file.write(os.urandom(50000))
    os.makedirs(f"{root}/srv/tier")
    os.chmod(f"{root}/srv/tier", 0o1777)
    with open(f"{root}/etc/monarch/monarch.conf", "w", encoding="utf-8") as file:
        file.write("[tier.nvme]\npath = /srv/tier\nquota = 100M\nmedium = nvme\n")
    sums = inside("sh", "-c", "md5sum /srv/data/*")[1].decode()
    home = f"{root}/srv/lab/home"
    with open(f"{root}/usr/share/monarch/plugstack.conf.d/spank_monarch.conf", encoding="utf-8") as file:
        line = next(text for text in file.read().splitlines() if not text.startswith("#"))
    code, out, err = lab("up", "--nodes", "1", "--prolog-flags", "Contain", "--plugstack-line", line)
    try:
        ok(code == 0, "Slurm starts with the installed plugin's line", out.decode(), err)
        conf = json.loads(lab("status", "--json")[1])["slurm_conf"]

        def long_job(name):
            """A job that reads all, waits for a file, and reads all again; and what lets it go on."""
            job = submit(conf, f"md5sum /srv/data/*; touch {name}; while [ ! -e {name}.go ]; do sleep 0.05; done; md5sum /srv/data/*")
            ok(wait_until(lambda: os.path.exists(f"{home}/{name}"), slurm_lab.PATIENCE), f"{name}: the job has read all")
            return job
        check("installed", conf, submit(conf, "md5sum /srv/data/*"), sums, "hit=100.0%")
        job = long_job("older")
        install("an upgrade from the version before while a job runs", *new)
        with open(f"{home}/older.go", "w", encoding="utf-8"):
            pass
        check("upgraded from the version before in mid-job", conf, job, sums * 2, "hit=100.0%")
        check("after that upgrade", conf, submit(conf, "md5sum /srv/data/*"), sums, "hit=100.0%")
        job = long_job("newer")
        with told_to_systemd("an upgrade", ["--system daemon-reload"]):
            install("an upgrade to a later version while a job runs", *other(new, "\\2+1"))
        code, out, err = inside("dpkg", "-r", *names(new))
        ok(code != 0 and "jobs use Monarch on this node" in err, "monarch cannot be removed while a job runs", code, out.decode(), err)
        install("what was removed", *other(new, "\\2+1"))
        with open(f"{home}/newer.go", "w", encoding="utf-8"):
            pass
        check("upgraded in mid-job", conf, job, sums * 2, "hit=100.0%")
    finally:
        lab("down")
    code, out, err = inside("dpkg", "-r", *names(new))
    ok(code == 0, "dpkg -r", out.decode(), err)
    ok(os.path.exists(f"{root}/etc/monarch/monarch.conf"), "the administrator's configuration stays")
    ok(not os.path.exists(f"{root}/srv/tier/monarch"), "the tier has no directory of root's any more")
    code, out, err = inside("dpkg", "-P", *names(new))
    ok(code == 0, "dpkg -P", out.decode(), err)
    equal(files_of_monarch(), [], "purged: nothing of Monarch is left")
    equal(inside("dpkg-query", "-W", "monarch*")[1].decode().strip(), "", "dpkg knows nothing of it any more")


def names(debs):
    return sorted(os.path.basename(path).partition("_")[0] for path in debs)


if reason := why_not():
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)
e2e.main(tarball, build, reproduced, life)
