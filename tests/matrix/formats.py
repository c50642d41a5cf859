# SPDX-License-Identifier: Apache-2.0
"""formats.py WHAT DIRECTORY: reads the files of matrix.t's datasets with a package, and prints checksums."""

import glob
import hashlib
import io
import mmap
import os
import socket
import subprocess
import sys

root = sys.argv[2]


def files():
    return sorted(path for path in glob.glob(os.path.join(glob.escape(os.fsencode(root)), b"*")) if os.path.isfile(path) and not os.path.islink(path))


def show(name, data):
    print(name, len(data), hashlib.sha256(data).hexdigest())


def matching(pattern):
    return sorted(glob.glob(f"{glob.escape(root)}/{pattern}"))


def numpy_load():
    import numpy
    show("load", numpy.load(f"{root}/array.npy").tobytes())
    with numpy.load(f"{root}/arrays.npz") as arrays:
        for name in arrays.files:
            show(name, arrays[name].tobytes())


def numpy_memmap():
    import numpy
    show("memmap", numpy.memmap(f"{root}/raw.f4", "f4", "r", 400, (200, 200)).tobytes())
    show("mmap_mode", numpy.load(f"{root}/array.npy", mmap_mode="r")[::3].tobytes())


def numpy_fromfile():
    import numpy
    show("path", numpy.fromfile(f"{root}/raw.f4", "f4").tobytes())
    with open(f"{root}/raw.f4", "rb") as stream:
        stream.seek(4000)
        show("stream", numpy.fromfile(stream, "f4", 500, offset=400).tobytes())
        show("position", b"%d" % stream.tell())
    show("text", numpy.loadtxt(f"{root}/table.txt").tobytes())


def pillow():
    from PIL import Image
    for path in matching("*.png") + matching("*.jpg"):
        with Image.open(path) as image:
            show(f"{path} {image.size}", image.convert("RGB").tobytes())


def pandas():
    import pandas as pd
    for more in {}, {"memory_map": True}, {"engine": "python"}, {"chunksize": 100}:
        frame = pd.read_csv(f"{root}/table.csv", **more)
        frame = pd.concat(frame) if "chunksize" in more else frame
        show(f"csv {more}", frame.to_csv().encode())
    show("pickle", pd.read_pickle(f"{root}/table.pickle").to_csv().encode())
    show("json", pd.read_json(f"{root}/table.json.gz", lines=True).to_csv().encode())


def h5py():
    import h5py as hdf
    with hdf.File(f"{root}/data.h5", "r") as file:
        for name in "plain", "packed":
            show(name, file[name][:].tobytes())
            show(f"part of {name}", file[name][10:90:7, 5].tobytes())
        print(dict(file["plain"].attrs))


def torch():
    import torch as t
    model = t.load(f"{root}/model.pt", map_location="cpu")
    for name, values in sorted(model.items()):
        show(name, values.numpy().tobytes())
    show("from_file", t.from_file(f"{root}/raw.f4", shared=False, size=10000).numpy().tobytes())


def zipfile():
    import zipfile as z
    with z.ZipFile(f"{root}/archive.zip") as archive:
        print(archive.testzip())
        for name in archive.namelist():
            show(name, archive.read(name))


def tarfile():
    import tarfile as t
    for path in matching("*.tar") + matching("*.tar.gz"):
        with t.open(path) as archive:
            for member in archive:
                show(member.name, archive.extractfile(member).read())


def samples(stream):
    """A tar archive's files, grouped by what is before the dot, as they come: what webdataset does."""
    import tarfile as t
    group, key = {}, None
    with t.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            base, suffix = member.name.split(".", 1)
            if group and base != key:
                yield key, group
                group = {}
            key = base
            group[suffix] = archive.extractfile(member).read()
    yield key, group


def tar_stream():
    for path in matching("shard-*.tar"):
        with open(path, "rb") as stream:
            for key, group in samples(stream):
                show(f"{key} {sorted(group)}", b"".join(group[suffix] for suffix in sorted(group)))
        with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as process:
            for key, group in samples(io.BufferedReader(process.stdout)):
                show(f"{key} by a pipe", b"".join(group[suffix] for suffix in sorted(group)))


def sqlite():
    import sqlite3
    base = sqlite3.connect(f"file:{root}/base.sqlite?mode=ro", uri=True)
    show("rows", repr(base.execute("select name, sum(n), count(*) from numbers group by name order by name").fetchall()).encode())
    base.execute("pragma mmap_size=100000000")
    show("mapped", repr(base.execute("select * from numbers where n % 7 = 3").fetchall()).encode())


def sqlite_default():
    import sqlite3
    base = sqlite3.connect(f"{root}/base.sqlite")
    show("rows", repr(base.execute("select * from numbers where n % 5 = 3").fetchall()).encode())


def lmdb():
    import lmdb as l
    with l.open(f"{root}/base.lmdb", readonly=True, lock=False) as base, base.begin() as transaction:
        for key, value in transaction.cursor():
            show(key.decode(), value)


def read_all():
    for path in files():
        with open(path, "rb") as stream:
            show(path, stream.read())


def mmap_all():
    for path in files():
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_size:
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    show(path, mapped[:])


def sendfile():
    for path in matching("*.txt"):
        one, other = socket.socketpair()
        with one, open(path, "rb") as stream:
            os.sendfile(one.fileno(), stream.fileno(), 5, 1 << 16)
        show(path, other.makefile("rb").read())


def children():
    for path in matching("*.txt"):
        show(path, subprocess.run(["cat", path], stdout=subprocess.PIPE, check=True).stdout)
        with open(path, "rb") as stream:
            stream.seek(100)
            show(path, subprocess.run(["cat"], stdin=stream, stdout=subprocess.PIPE, check=True).stdout)


def read():
    for path in matching("*.bin"):
        with open(path, "rb") as stream:
            show(path, stream.read())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
