# SPDX-License-Identifier: Apache-2.0
"""loader.py START WORKERS DIRECTORY: two epochs of images by PyTorch's DataLoader."""

import glob
import sys

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

start, workers, root = sys.argv[1], int(sys.argv[2]), sys.argv[3]


class Images(Dataset):
    def __init__(self):
        self.paths = sorted(glob.glob(f"{glob.escape(root)}/*.png"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as stream:
            pixels = Image.open(stream).convert("L").tobytes()
        return torch.tensor([i, len(pixels), sum(pixels)])


def main():
    torch.set_num_threads(1)
    loader = DataLoader(Images(), 4, num_workers=workers, multiprocessing_context=start)
    for epoch in range(2):
        for batch in loader:
            print(epoch, batch.tolist())


if __name__ == "__main__":
    main()
