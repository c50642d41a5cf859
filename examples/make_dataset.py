#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Write scikit-learn's handwritten digits as an image-folder dataset.

    make_dataset.py DIR [--files N] [--size PIXELS] [--seed S]

DIR/train/<digit>/<n>.png and DIR/val/<digit>/<n>.png: N grey PNG files, a fifth of them for
validation, each an enlarged, shifted, rotated and noisy copy of one of the 1,797 originals.  No
original is in both parts.  The same arguments give the same bytes.  DIR must be absent or empty.
Prints {"files": N, "bytes": TOTAL} when done.
"""
import argparse
import io
import json
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

VALIDATION_SHARE = 5  # every fifth original and every fifth file


def augmented(original, size, rng):
    """One copy of an 8x8 original as a size x size image."""
    angle = math.radians(rng.uniform(-12, 12))
    scale = 8 / size * rng.uniform(0.9, 1.1)
    cos, sin = math.cos(angle) * scale, math.sin(angle) * scale
    shift_x, shift_y = rng.uniform(-0.8, 0.8, 2)
    half = size / 2
    digit = Image.fromarray((original * (255 / 16)).astype(np.uint8))
    digit = digit.transform(
        (size, size), Image.AFFINE, resample=Image.BICUBIC,
        data=(cos, sin, 4 - cos * half - sin * half + shift_x,
              -sin, cos, 4 + sin * half - cos * half + shift_y))
    noisy = np.asarray(digit, dtype=np.float64) + rng.normal(0, 12, (size, size))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def write_file(task):
    path, original, size, seed = task
    image = io.BytesIO()
    augmented(original, size, np.random.default_rng(seed)).save(image, "PNG")
    with open(path, "xb") as file:
        file.write(image.getbuffer())
    return image.getbuffer().nbytes


def plan(root, files, size, seed):
    """Yield (path, original, size, seed) of each file."""
    digits = load_digits()
    originals = np.arange(len(digits.images))
    held_out = originals % VALIDATION_SHARE == 0
    parts = {"train": originals[~held_out], "val": originals[held_out]}
    drawn = {"train": 0, "val": 0}
    for number in range(files):
        part = "val" if number % VALIDATION_SHARE == 0 else "train"
        source = parts[part][drawn[part] % len(parts[part])]
        drawn[part] += 1
        path = os.path.join(root, part, str(digits.target[source]), f"{number:06}.png")
        yield path, digits.images[source], size, (seed, number)


def main():
    parser = argparse.ArgumentParser(description="Write the digits dataset as PNG files.")
    parser.add_argument("dir")
    parser.add_argument("--files", type=int, default=6000)
    parser.add_argument("--size", type=int, default=64, help="pixels a side (default 64)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    if os.path.isdir(args.dir) and os.listdir(args.dir):
        sys.exit(f"make_dataset: {args.dir} is not empty; name a new directory")
    for part in ("train", "val"):
        for digit in range(10):
            os.makedirs(os.path.join(args.dir, part, str(digit)))
    with ThreadPoolExecutor(8) as pool:  # hides the latency of a parallel file system
        sizes = list(pool.map(write_file, plan(args.dir, args.files, args.size, args.seed)))
    print(json.dumps({"files": len(sizes), "bytes": sum(sizes)}))


if __name__ == "__main__":
    main()
