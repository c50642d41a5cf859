#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make deb and make rpm: packages are installed into a fresh root, a job runs with what they brought, they are upgraded while another
one runs, removed and purged. MONARCH_TEST_ALL=1: they are built for that."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab  # pylint: disable=wrong-import-position
from e2e import BUILD, SOURCE, contains, equal, ok, scratch, wait_until  # pylint: disable=wrong-import-position

PACKAGES = f"{BUILD}/packages"
root = ""  # a copy of this machine's file system: what is changed there stays there


def why_not():
    if os.environ.get("MONARCH_TEST_ALL") != "1":
        return "builds Monarch twice: with MONARCH_TEST_ALL=1"
    missing = [word for word in ("dpkg-buildpackage", "dh", "lintian", "rpmbuild") if not shutil.which(word)]
    return slurm_lab.why_no_slurm() or (f"not installed: {', '.join(missing)} (run dev/deps package)" if missing else "")


def build():
    """The packages, and what they hold."""
    for form in "deb", "rpm":
        code, out, err = e2e.execute(["make", "-C", BUILD, form], 3000)
        ok(code == 0, f"make {form}", (out + err.encode() if isinstance(err, str) else out + err)[-3000:])
    code, out, err = e2e.execute(["lintian", "--fail-on", "error", "--tag-display-limit", "0", *glob.glob(f"{PACKAGES}/*.deb")], 600)
    equal(code, 0, "lintian has no errors", out, err)
    listed = {}
    for path in glob.glob(f"{PACKAGES}/*.deb"):
        name = os.path.basename(path).partition("_")[0]
        listed[name] = [line.split()[-1] for line in e2e.execute(["dpkg-deb", "-c", path])[1].decode().splitlines()]
    ok({"monarch", "monarch-doc"} < set(listed) and any(re.fullmatch(r"monarch-slurm\d\d\.\d\d", name) for name in listed),
       "agent, plugin and documents are packages, the plugin's has the Slurm release in its name", *listed)
    plugin = next((files for name, files in listed.items() if name.startswith("monarch-slurm")), [])
    ok("./usr/lib/slurm/spank_monarch.so" in plugin and not any("spank_monarch.so" in line for line in listed.get("monarch", [])),
       "the plugin is in its own package only")
    ok("monarch-dbgsym" in listed, "debug symbols are apart", *listed)
    installed = {os.path.relpath(f"{directory}/{name}", slurm_lab.install_prefix())
                 for directory, _, names in os.walk(slurm_lab.install()) for name in names}
    packed = {line.removeprefix("./").removeprefix("usr/").removesuffix(".gz") for files in listed.values() for line in files}
    equal(sorted(path for path in installed if path not in packed), [], "all that make install installs is in one of them")
    rpms = [line for path in glob.glob(f"{PACKAGES}/*.rpm") for line in e2e.execute(["rpm", "-qpl", path])[1].decode().splitlines()]
    equal([path for path in ("/usr/sbin/monarchd", "/usr/bin/monarchctl", "/usr/lib/slurm/spank_monarch.so", "/usr/lib/monarch/libmonarch_preload.so",
                             "/usr/libexec/monarch/monarch_account") if path not in rpms], [], "the rpms have the same programs")


def make_root():
    """This machine's files, without what its own mounts hold."""
    global root
    root = scratch("root")
    upper, work = scratch("upper"), scratch("work")
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root], check=True)
    for name in ("proc", "sys", "dev"):
        subprocess.run(["mount", "--rbind", f"/{name}", f"{root}/{name}"], check=True)
        subprocess.run(["mount", "--make-rslave", f"{root}/{name}"], check=True)
    for name in ("run", "tmp", "var/tmp"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "none", f"{root}/{name}"], check=True)
    for own in SOURCE, BUILD:  # they may be on a file system of their own
        if not os.path.isdir(root + own):
            os.makedirs(root + own)
            subprocess.run(["mount", "--bind", own, root + own], check=True)


def inside(*command, seconds=600, **more):
    return e2e.execute(["chroot", root, *command], seconds, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive",
                                                                 "HOME": "/root", **more})


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


def check(name, conf, job, sums):
    wait_until(lambda: state_of(conf, job) in slurm_lab.ENDED, slurm_lab.PATIENCE)
    with open(f"{root}/srv/lab/home/{job}", encoding="utf-8") as file:
        equal((state_of(conf, job), file.read()), ("COMPLETED", sums), f"{name}: the job ends, its bytes are right")
    def line():
        return as_user(conf, "sacct", "-X", "-n", "-P", "-o", "SystemComment", "-j", job)[1].decode()
    wait_until(lambda: "monarch=1" in line(), slurm_lab.PATIENCE)
    contains(line(), ["monarch=1 ", "hit=100.0%"], f"{name}: the line in sacct")


def files_of_monarch():
    found = subprocess.run(["find", *(f"{root}/{name}" for name in ("usr", "etc", "lib", "var/lib")), "-xdev", "-name", "*monarch*", "-not", "-path", f"{root}/var/lib/dpkg/*"],
                           stdout=subprocess.PIPE, check=False).stdout.decode().split()
    return sorted(path.removeprefix(root) for path in found if not os.path.lexists(path.removeprefix(root)))


def life():
    """Installed, used, upgraded in mid-job, removed, purged."""
    make_root()
    debs = [path for path in glob.glob(f"{PACKAGES}/*.deb") if "dbgsym" not in path]
    shutil.copytree(PACKAGES, f"{root}/srv/packages")
    before = inside("sh", "-c", "find /etc -name '*slurm*' -exec ls -ld --time-style=+%s {} + 2>/dev/null")[1]
    code, out, err = inside("dpkg", "-i", *(f"/srv/packages/{os.path.basename(path)}" for path in debs))
    ok(code == 0, "dpkg -i", out, err)
    equal(inside("sh", "-c", "find /etc -name '*slurm*' -exec ls -ld --time-style=+%s {} + 2>/dev/null")[1], before, "no configuration of Slurm's is changed")
    contains(inside("monarchctl", "version", "--json")[1].decode(), ["version"], "monarchctl runs")
    os.makedirs(f"{root}/srv/data")
    for number in range(20):
        with open(f"{root}/srv/data/{number:02}", "wb") as file:
            file.write(os.urandom(50000))
    os.makedirs(f"{root}/srv/tier", 0o1777)
    os.chmod(f"{root}/srv/tier", 0o1777)
    os.makedirs(f"{root}/etc/monarch", exist_ok=True)
    with open(f"{root}/etc/monarch/monarch.conf", "w", encoding="utf-8") as file:
        file.write("[tier.nvme]\npath = /srv/tier\nquota = 100M\nmedium = nvme\n")
    sums = inside("sh", "-c", "md5sum /srv/data/*")[1].decode()
    code, out, err = lab("up", "--nodes", "1", "--prolog-flags", "Contain", "--plugstack-line", "optional /usr/lib/slurm/spank_monarch.so log=/srv/log")
    try:
        ok(code == 0, "Slurm starts with the installed plugin", out, err)
        conf = json.loads(lab("status", "--json")[1])["slurm_conf"]
        check("installed", conf, submit(conf, "md5sum /srv/data/*"), sums)
        job = submit(conf, "md5sum /srv/data/*; touch half; while [ ! -e go ]; do sleep 0.05; done; md5sum /srv/data/*")
        wait_until(lambda: os.path.exists(f"{root}/srv/lab/home/half"), slurm_lab.PATIENCE)
        newer = []
        for path in debs:  # the same with a higher version
            name = f"/srv/newer.{os.path.basename(path)}"
            inside("sh", "-c", f"dpkg-deb -R /srv/packages/{os.path.basename(path)} /srv/unpacked && sed -i -E 's/^(Version: .*)/\\1+1/; s/\\(= ([^)]*)\\)/(= \\1+1)/' "
                   f"/srv/unpacked/DEBIAN/control && dpkg-deb -b /srv/unpacked {name}; rm -rf /srv/unpacked")
            newer.append(name)
        code, out, err = inside("dpkg", "-i", *newer)
        ok(code == 0, "an upgrade while a job runs", out, err)
        with open(f"{root}/srv/lab/home/go", "w", encoding="utf-8"):
            pass
        check("upgraded in mid-job", conf, job, sums * 2)
        check("after the upgrade", conf, submit(conf, "md5sum /srv/data/*"), sums)
        equal(os.listdir(f"{root}/srv/tier/monarch"), [], "nothing is left on the tier")
    finally:
        lab("down")
    names = [os.path.basename(path).partition("_")[0] for path in debs]
    code, out, err = inside("dpkg", "-r", *names)
    ok(code == 0, "dpkg -r", out, err)
    ok(os.path.exists(f"{root}/etc/monarch/monarch.conf"), "the administrator's configuration stays")
    code, out, err = inside("dpkg", "-P", *names)
    ok(code == 0, "dpkg -P", out, err)
    shutil.rmtree(f"{root}/etc/monarch")
    shutil.rmtree(f"{root}/var/lib/monarch", ignore_errors=True)
    equal(files_of_monarch(), [], "purged: nothing of the packages is left")


if reason := why_not():
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)
e2e.main(build, life)
