"""Loops with loaders that are slow in one stage, or healthy: ``loaders.py KIND [--fixed] [--workers N]``."""

import argparse
import json
import os
import tempfile
import time
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("--fixed", action="store_true", help="with the slow stage at no cost")
parser.add_argument("--workers", type=int)
parser.add_argument("--persist", action="store_true", help="workers, whatever the kind says")
args = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
SLOW = 0 if args.fixed else 1
FEATURES = 64
PACKED = zlib.compress(os.urandom(40_000) + bytes(400_000))
TEXT = json.dumps([{"id": i, "values": list(range(20))} for i in range(60)])


def files(size):
    folder = tempfile.mkdtemp(prefix="loaders-")
    for i in range(8):
        with open(f"{folder}/{i}.bin", "wb") as file:
            file.write(os.urandom(size))
    return folder


class Samples(Dataset):
    """Samples that cost nothing but one stage."""

    length = 1_000_000

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((FEATURES,), float(index % 7))


class ReadsFiles(Samples):
    """Samples read from files."""

    def __init__(self):
        self.folder = files(3_000_000)

    def __getitem__(self, index):
        if SLOW:
            with open(f"{self.folder}/{index % 8}.bin", "rb") as file:
                file.read()
        return super().__getitem__(index)


class ReadsStore(Samples):
    """As from a store behind a network."""

    def fetch_object(self, index):
        if SLOW:
            time.sleep(0.002)
        return index

    def __getitem__(self, index):
        return super().__getitem__(self.fetch_object(index))


class Decompresses(Samples):
    """Samples that are packed."""

    def __getitem__(self, index):
        if SLOW:
            zlib.decompress(PACKED)
        return super().__getitem__(index)


class Parses(Samples):
    """Samples in JSON."""

    def __getitem__(self, index):
        if SLOW:
            json.loads(TEXT)
        return super().__getitem__(index)


def augment(sample):
    total = 0
    for i in range(12_000):
        total += i & 3
    return sample + total % 2


class Transforms(Samples):
    """Samples that are changed."""

    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return self.transform(sample) if SLOW else sample


def blur(sample):
    image = torch.ones(1, 1, 160, 160)
    for _ in range(3):
        image = nn.functional.avg_pool2d(image, 9, 1, 4)
    return sample + image.mean() * 0


def pad_to_longest(samples):
    if not SLOW:
        return PADDED
    rows = []
    for sample in samples:
        row = [0.0] * FEATURES
        for _ in range(30):
            for place, value in enumerate(sample.tolist()):
                row[place] = value
        rows.append(row)
    return torch.tensor(rows)


PADDED = torch.ones(8, FEATURES)


class Objects(Samples):
    """Returns Python objects, which go from a worker to the process one by one."""

    def __getitem__(self, index):
        return {"x": super().__getitem__(index), "boxes": OBJECTS if SLOW else []}


OBJECTS = [{"box": [float(i), 1.0, 2.0, 3.0], "label": f"name {i}"} for i in range(1_500)]


def of_objects(samples):
    return {"x": torch.stack([one["x"] for one in samples]), "boxes": [one["boxes"] for one in samples]}


class FewSamples(Samples):
    """Epochs of a few batches."""

    length = 64


class Lines(IterableDataset):
    """A stream of samples in JSON."""

    def __iter__(self):
        while True:
            yield self.parse(TEXT)

    def parse(self, text):
        if SLOW:
            json.loads(text)
        return torch.ones(FEATURES)


class CheapLines(IterableDataset):
    """A stream of samples."""

    def __iter__(self):
        while True:
            yield torch.ones(FEATURES)


def loader(dataset, workers=0, **options):
    workers = workers if args.workers is None else args.workers
    if workers and (args.persist or "persistent_workers" not in options):
        options["persistent_workers"] = True
    if not workers:
        options.pop("persistent_workers", None)
    shuffled = {} if isinstance(dataset, IterableDataset) else {"shuffle": True}
    return DataLoader(dataset, batch_size=8, num_workers=workers, **shuffled, **options)


# What is slow, or None, and how it is loaded.
KINDS = {
    "files": ("read", lambda: loader(ReadsFiles())),
    "store": ("read", lambda: loader(ReadsStore())),
    "store_workers": ("read", lambda: loader(ReadsStore(), 2)),
    "decompress": ("decode", lambda: loader(Decompresses())),
    "parse": ("decode", lambda: loader(Parses())),
    "parse_lines": ("decode", lambda: loader(Lines())),
    "augment": ("transform", lambda: loader(Transforms(augment))),
    "augment_worker": ("transform", lambda: loader(Transforms(augment), 1)),
    "blur": ("transform", lambda: loader(Transforms(blur))),
    "collate": ("collate", lambda: loader(Samples(), collate_fn=pad_to_longest)),
    "objects": ("send", lambda: loader(Objects(), 1, collate_fn=of_objects)),
    "short_epochs": ("start", lambda: loader(FewSamples(), 1, persistent_workers=not SLOW)),
    "memory": (None, lambda: loader(torch.utils.data.TensorDataset(torch.randn(20_000, FEATURES)))),
    "cheap": (None, lambda: loader(Samples())),
    "cheap_worker": (None, lambda: loader(Samples(), 1)),
    "cheap_lines": (None, lambda: loader(CheapLines())),
    "hidden_store": (None, lambda: loader(ReadsStore(), 2)),
    "hidden_decode": (None, lambda: loader(Parses(), 1)),
    "cheap_collate": (None, lambda: loader(Samples(), collate_fn=torch.stack)),
    "few_long_epochs": (None, lambda: loader(FewSamples(), 1)),
    "prefetched": (None, lambda: loader(ReadsStore(), 2, prefetch_factor=8)),
    "large_batch_memory": (None, lambda: loader(torch.utils.data.TensorDataset(torch.randn(20_000, FEATURES)), 1)),
}
# Layers of the model: training takes long enough to hide loading that takes a while.
_LONG = {"hidden_store": 40, "hidden_decode": 40, "prefetched": 40}


def main():
    slow, load = KINDS[args.kind]
    width, layers = (256, 4) if slow else (1024, _LONG.get(args.kind, 16))
    model = nn.Sequential(nn.Linear(FEATURES, width), *(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = load()
    while True:
        for batch in batches:
            x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
