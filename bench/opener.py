# SPDX-License-Identifier: Apache-2.0
"""Opens files, and tells how long each open takes.

    opener.py < LINES     each line is a JSON list of paths; for each, a line of JSON: a list of microseconds
"""
import json
import os
import sys
import time


def microseconds(path):
    begin = time.perf_counter()
    file = os.open(path, os.O_RDONLY)
    taken = (time.perf_counter() - begin) * 1e6
    os.close(file)
    return taken


for line in sys.stdin:
    print(json.dumps([microseconds(path) for path in json.loads(line)]), flush=True)
