#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Train a LeNet-like network on an image-folder dataset, as make_dataset.py writes it.

    train_lenet.py DIR [--epochs N] [--workers N] [--seed S] [--epoch-hook CMD]

An ordinary PyTorch program: it knows nothing of where the files come from.  Each epoch opens every
file of DIR/train and DIR/val exactly once.  The same seed gives the same accuracy, whatever the
number of workers and the speed of the storage.

Prints one JSON line per epoch: epoch, seconds, files, bytes, loss, accuracy (of validation).
--epoch-hook runs a shell command after each epoch, with the epoch's number in $EPOCH, while no file
of the dataset is in use; its time is not counted.
"""
import argparse
import json
import os
import random
import subprocess
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

IMAGE_SIZE = 32


class ImageFolder(Dataset):
    """The image files below root/<class>/; gives (image, class number, size of the file)."""

    def __init__(self, root):
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [(os.path.join(folder, name), number)
                        for number, label in enumerate(self.classes)
                        for folder, _, names in os.walk(os.path.join(root, label))
                        for name in names]
        self.samples.sort()

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            image = Image.open(file).convert("L").resize((IMAGE_SIZE, IMAGE_SIZE), Image.BILINEAR)
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 127.5 - 1)
        return pixels.unsqueeze(0), label, size


def lenet(classes):
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, classes))


def make_deterministic(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def run_epoch(model, optimizer, train, val):
    """Train and validate once.  Returns files, bytes, mean training loss, accuracy."""
    files = size_sum = 0
    loss_sum = correct = 0.0
    model.train()
    for images, labels, sizes in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(labels)
        files += len(labels)
        size_sum += int(sizes.sum())
    model.eval()
    with torch.no_grad():
        for images, labels, sizes in val:
            correct += (model(images).argmax(1) == labels).sum().item()
            files += len(labels)
            size_sum += int(sizes.sum())
    return files, size_sum, loss_sum / len(train.dataset), correct / len(val.dataset)


def main():
    parser = argparse.ArgumentParser(description="Train a LeNet-like network on image folders.")
    parser.add_argument("dir")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epoch-hook", metavar="CMD")
    args = parser.parse_args()

    make_deterministic(args.seed)
    train_set = ImageFolder(os.path.join(args.dir, "train"))
    val_set = ImageFolder(os.path.join(args.dir, "val"))
    order = torch.Generator().manual_seed(args.seed)
    train = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers,
                       generator=order)
    val = DataLoader(val_set, args.batch_size, num_workers=args.workers)
    model = lenet(len(train_set.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    for epoch in range(1, args.epochs + 1):
        start = time.monotonic()
        files, size, loss, accuracy = run_epoch(model, optimizer, train, val)
        seconds = time.monotonic() - start
        print(json.dumps({"epoch": epoch, "seconds": round(seconds, 3), "files": files,
                          "bytes": size, "loss": round(loss, 6), "accuracy": accuracy}), flush=True)
        if args.epoch_hook:
            subprocess.run(args.epoch_hook, shell=True, check=True,
                           env={**os.environ, "EPOCH": str(epoch)})


if __name__ == "__main__":
    main()
