#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""CPython's own tests of files, with their modules, their data and all that they write in the dataset: each has the result that it has
natively, cold and placed. What differs is run once more, both ways, since some depend on the machine's pace."""

import glob
import os
import shutil
import xml.etree.ElementTree

import e2e
from e2e import PYTHON, ok, options, scratch

MODULES = """test_bz2 test_codecs test_compileall test_configparser test_csv test_dbm test_dbm_dumb test_dbm_gnu test_dbm_ndbm test_fcntl test_file
    test_file_eintr test_filecmp test_fileinput test_fileio test_fileutils test_genericpath test_glob test_gzip test_import test_io test_ioctl
    test_largefile test_linecache test_lzma test_mailbox test_memoryio test_mmap test_netrc test_ntpath test_os test_pathlib test_pkgutil test_posix
    test_posixpath test_py_compile test_runpy test_shelve test_shutil test_sqlite3 test_stat test_subprocess test_tarfile test_tempfile
    test_univnewlines test_zipapp test_zipfile test_zipimport test_zipimport_support""".split()
SUITE = next(iter(glob.glob("/usr/lib/python3.*/test/test_os.py")), "")
LONG = 3600 * e2e.SLOW


class Tests:
    """The suite in a directory of its own; `run` runs a command."""

    def __init__(self, name, run):
        self.root, self.run = scratch(name), run
        shutil.copytree(os.path.dirname(SUITE), f"{self.root}/lib/test", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))

    def results(self, modules):
        """By the test's name: what became of it."""
        tmp, report = f"{self.root}/tmp", f"{scratch()}/{os.path.basename(self.root)}.xml"
        shutil.rmtree(tmp, ignore_errors=True)
        os.mkdir(tmp)
        code, out, err = self.run(["env", f"TMPDIR={tmp}", f"PYTHONPATH={self.root}/lib", "PYTHONDONTWRITEBYTECODE=1", PYTHON, "-m", "test", "-j2",
                                   "--timeout", "900", "--junit-xml", report, *modules], seconds=LONG)
        if code == "hung":
            raise RuntimeError((out + err.encode()).decode(errors="replace"))
        cases = xml.etree.ElementTree.parse(report).iter("testcase")
        return {case.get("name"): [child.tag for child in case if not child.tag.startswith("system")] for case in cases}


def different(before, after):
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def compare(native, tests, expected, where):
    got = tests.results(MODULES)
    differ = different(expected, got)
    if differ:
        print(f"# {where}: once more: {' '.join(differ)}", flush=True)
        modules = sorted({name.split(".")[1] for name in differ if name.startswith("test.")}) or MODULES
        first, second = native.results(modules), tests.results(modules)
        differ = [name for name in different(first, second) if name in differ]
    ok(not differ, f"{where}: {len(got)} results as natively", *(f"{name}: {expected.get(name)}, {got.get(name)}" for name in differ))


def run():
    native = Tests("native", e2e.execute)
    expected = native.results(MODULES)
    ok(len(expected) > 3000, "the suite runs natively", len(expected))
    job = None
    tests = Tests("dataset", lambda *words, **more: job.run(*words, **more))
    job = e2e.Job(options([tests.root], {"t": (scratch("tier"), "1G")}, *e2e.config(prefetch="off")))
    compare(native, tests, expected, "cold")
    job.run(e2e.read_all(f"{tests.root}/lib"))
    compare(native, tests, expected, "placed")
    counters = job.end()
    ok(counters["opens_tier"] > 1000, "the tier served the modules", counters)


e2e.skip_all_if("" if SUITE else "libpython3.11-testsuite is not installed")
e2e.main(run)
