# SPDX-License-Identifier: Apache-2.0
"""The datasets of matrix.t: each function fills a directory, deterministically; what it needs may not be installed."""

import io
import os
import random
import subprocess
import tarfile
import zipfile

def write(path, data):
    with open(path, "wb") as out:
        out.write(data)


def run(*command, **more):
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)


def files(path):
    numbers = random.Random(7)
    for i in range(20):
        write(f"{path}/{i:02}.bin", numbers.randbytes(20000 - i * 37))
    write(f"{path}/lines.txt", b"".join(b"line %d\n" % (i * 7 % 97) for i in range(500)))


def tools(path):
    """Of all that names and files can be."""
    files(path)
    for i, name in enumerate((b"with space", b"new\nline", b"caf\xc3\xa9", b"latin1-\xe9\xff", b"-n", b"'\"$(x)`", b"x" * 255, b"empty")):
        write(os.path.join(os.fsencode(path), name), b"%d " % i + name if i < 7 else b"")
    write(f"{path}/large", random.Random(9).randbytes(5 << 20))
    for i, mode in enumerate((0o644, 0o600, 0o444, 0o755)):
        write(f"{path}/{i}.txt", b"".join(b"line %d\n" % (i * n % 97) for n in range(200)))
        os.chmod(f"{path}/{i}.txt", mode)
        os.utime(f"{path}/{i}.txt", ns=(10**18 + i, 10**18 - i * 10**16 - 123456789))
    os.symlink("3.txt", f"{path}/to-file")
    os.symlink("nowhere", f"{path}/dangling")


def archives(path):
    numbers = random.Random(8)
    members = [(f"{i:03}.{suffix}", numbers.randbytes(3000 + 100 * i)) for i in range(12) for suffix in ("jpg", "cls")]
    for name in "plain.tar", "packed.tar.gz", "shard-0.tar", "shard-1.tar":
        with tarfile.open(f"{path}/{name}", "w:gz" if name.endswith("gz") else "w") as archive:
            for member, data in members:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    with zipfile.ZipFile(f"{path}/archive.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members:
            archive.writestr(member, data)


def arrays(path):
    import numpy
    raw = numpy.arange(50000, dtype="f4").reshape(250, 200)
    raw.tofile(f"{path}/raw.f4")
    numpy.save(f"{path}/array.npy", numpy.arange(30000).reshape(300, 100))
    numpy.savez_compressed(f"{path}/arrays.npz", a=raw[:50], b=raw[50:60])
    numpy.savetxt(f"{path}/table.txt", raw[:20])


def weights(path):
    arrays(path)
    import torch
    torch.manual_seed(3)
    torch.save({"layer.weight": torch.rand(120, 84), "layer.bias": torch.rand(120)}, f"{path}/model.pt")


def images(path):
    from PIL import Image
    for i in range(12):
        Image.linear_gradient("L").rotate(30 * i).save(f"{path}/{i:02}.png")
    Image.radial_gradient("L").save(f"{path}/radial.jpg", quality=90)


def tables(path):
    import pandas
    frame = pandas.DataFrame({"n": range(2000), "x": [i / 7 for i in range(2000)], "s": [f"row {i % 13}" for i in range(2000)]})
    frame.to_csv(f"{path}/table.csv", index=False)
    frame.to_pickle(f"{path}/table.pickle")
    frame.to_json(f"{path}/table.json.gz", orient="records", lines=True)


def hdf(path):
    import h5py
    import numpy
    values = numpy.arange(40000, dtype="i4").reshape(400, 100)
    with h5py.File(f"{path}/data.h5", "w") as file:
        file["plain"] = values
        file["plain"].attrs["unit"] = "none"
        file.create_dataset("packed", data=values, chunks=(20, 100), compression="gzip")


def bases(path):
    import sqlite3
    base = sqlite3.connect(f"{path}/base.sqlite")
    base.execute("create table numbers (n integer primary key, name text)")
    base.executemany("insert into numbers values (?, ?)", [(i, f"name {i % 17}") for i in range(5000)])
    base.commit()
    base.close()


def lightning(path):
    import lmdb
    with lmdb.open(f"{path}/base.lmdb", map_size=1 << 22, lock=False) as base, base.begin(write=True) as transaction:
        for i in range(300):
            transaction.put(b"%04d" % i, b"%d" % i * 50)


def repository(path):
    """A bare one, packed; dates and names are fixed."""
    env = {**os.environ, "HOME": path, "GIT_CONFIG_NOSYSTEM": "1", "GIT_DIR": f"{path}/it.git", "TZ": "UTC",
           **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
              for what, value in (("NAME", "a"), ("EMAIL", "a@b"), ("DATE", "1700000000 +0000"))}}
    run("git", "init", "-q", "--bare", "-b", "main", f"{path}/it.git", env=env)
    stream = b"".join(b"commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 2\nc\nM 644 inline f%d\ndata %d\n%s\n"
                      % (1700000000 + i, i % 5, len(text), text) for i in range(40) for text in [b"text %d\n" % i * 200])
    run("git", "fast-import", "--quiet", env=env, input=stream)
    run("git", "gc", "-q", env=env)
    run("rm", "-rf", f"{path}/it.git/hooks", f"{path}/it.git/description")
