#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""A program on a real parallel file system: it prints the same natively, while the dataset is being staged, and from the tier, when
the PFS's servers must not notice it at all.  Others, on slowfs, are in matrix.t."""

import os
import sys

import e2e
from e2e import PYTHON, SOURCE, equal, ok, options, scratch


@e2e.unless(e2e.why_no_glusterfs, lambda: e2e.execute([PYTHON, "-c", "import torch, PIL"], 300)[0] != 0 and "no PyTorch")
def data_loader():
    """PyTorch's DataLoader with workers."""
    sys.path.insert(0, f"{SOURCE}/tests/matrix")
    import datasets  # pylint: disable=import-outside-toplevel
    pfs = e2e.GlusterFs()
    root = f"{pfs.mount}/images"
    os.mkdir(root)
    datasets.images(root)
    files = [os.path.join(root, name) for name in sorted(os.listdir(root))]
    command = [PYTHON, f"{SOURCE}/tests/matrix/loader.py", "fork", "2", root]
    code, batches, err = e2e.execute(command)
    ok(code == 0 and batches, "DataLoader: it runs natively", err)

    begin = pfs.counters()
    job = e2e.Job(options([root], {"t": (scratch("tier"), "1G")}))
    equal(job.run(command)[:2], (0, batches), "DataLoader: cold as natively")
    equal(job.run([PYTHON, f"{SOURCE}/tests/matrix/place.py", str(e2e.PATIENCE), *files], seconds=2 * e2e.PATIENCE)[::2], (0, ""), "DataLoader: all is placed")
    before = pfs.counters()
    equal(job.run(command)[:2], (0, batches), "DataLoader: placed as natively")
    after = pfs.counters()
    equal([after[name] - before[name] for name in ("open", "read", "read_bytes")], [0, 0, 0], "DataLoader: placed: the servers see no open and no read")
    report = job.end()
    equal(report["agent"]["agent_opens_pfs"], len(files), "DataLoader: each image was staged once", report)
    # An open that waits in vain reads the PFS, and place.py opens what is not placed.
    equal(before["open"] - begin["open"], len(files) + report["tasks"]["opens_pfs"], "DataLoader: the servers saw these opens and no others", report)


e2e.main(data_loader)
