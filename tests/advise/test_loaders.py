"""Data loaders as they are heard of: how far ahead they are, what is replayed, who draws random numbers."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEGIN = """
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from opscope.advise.loaders import Loaders
from opscope.advise.messages import ReplayBatches
torch.manual_seed(0)
"""


def run(text: str) -> None:
    """Run code in a process of its own: listening to loaders lasts for the rest of it."""
    done = subprocess.run(
        (sys.executable, "-c", BEGIN + text), cwd=ROOT / "src", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.torch
def test_loaders_that_are_made_anew_are_known_to_be_ahead() -> None:
    run(
        """
loaders = Loaders(); loaders.listen()
before = loaders.reads()
for _ in range(2):
    for batch in DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2, prefetch_factor=3):
        pass
read = loaders.read_since(before)
assert [one.prefetched for one in read] == [6, 6], read
assert [one.workers_now for one in read] == [2, 2]
assert read[0].key == read[1].key
"""
    )


@pytest.mark.torch
def test_batches_are_replayed_as_they_were_and_as_many() -> None:
    run(
        """
loaders = Loaders(replay=ReplayBatches.MEMORY); loaders.listen()
class Rows(Dataset):
    def __len__(self): return 20
    def __getitem__(self, index): return {"x": torch.full((2,), float(index)), "y": index}
loader = DataLoader(Rows(), batch_size=2)
first = [{name: value.clone() for name, value in batch.items()} for batch in loader]
for epoch in range(3):
    count = 0
    for batch in loader:
        wanted = [one for one in first if torch.equal(one["y"], batch["y"])]
        assert wanted and all(torch.equal(batch["x"], one["x"]) for one in wanted), batch
        batch.pop("y")
        batch["x"].div_(2.0)
        count += 1
    assert count == 10
"""
    )


@pytest.mark.torch
def test_batches_of_inference_mode_are_replayed_too() -> None:
    run(
        """
loaders = Loaders(replay=ReplayBatches.MEMORY); loaders.listen()
loader = DataLoader(TensorDataset(torch.ones(20, 3)), batch_size=2)
with torch.inference_mode():
    assert all(batch[0].is_inference() for batch in loader)
for (batch,) in loader:
    batch.sub_(0.5)
    assert torch.equal(batch, torch.full((2, 3), 0.5))
"""
    )


@pytest.mark.torch
def test_loaders_of_one_function_are_not_mixed() -> None:
    run(
        """
loaders = Loaders(replay=ReplayBatches.MEMORY); loaders.listen()
def made(value, size):
    return DataLoader(TensorDataset(torch.full((40, 3), value)), batch_size=size)
small, large = made(1.0, 2), made(2.0, 4)
for _ in range(3):
    assert all(batch[0].shape == (2, 3) for batch in small)
    assert all(batch[0].shape == (4, 3) for batch in large)
"""
    )


@pytest.mark.torch
def test_what_a_dataset_draws_is_the_same_with_workers() -> None:
    run(
        """
loaders = Loaders(seeded=True); loaders.listen()
class Noisy(Dataset):
    def __len__(self): return 12
    def __getitem__(self, index): return torch.rand(2) + index
def batches(workers):
    return [one.clone() for one in DataLoader(Noisy(), batch_size=3, num_workers=workers)]
alone, state = batches(0), torch.get_rng_state()
for one, other in zip(alone, batches(2)):
    assert torch.equal(one, other)
assert len(set(map(float, torch.stack(alone).frac().flatten()))) > 12
"""
    )


@pytest.mark.torch
def test_workers_are_added_where_there_are_fewer() -> None:
    run(
        """
from torch.utils.data import IterableDataset
loaders = Loaders(); loaders.workers = 2; loaders.listen()
class Endless(IterableDataset):
    def __iter__(self):
        yield torch.ones(2)
rows = TensorDataset(torch.ones(4, 2))
assert DataLoader(rows).num_workers == 2
assert DataLoader(rows, num_workers=1).num_workers == 2
assert DataLoader(rows, num_workers=3).num_workers == 3
assert DataLoader(Endless()).num_workers == 0
assert [one.workers for one in loaders.made] == [0, 1, 3, 0]
"""
    )


@pytest.mark.torch
def test_a_batch_is_opened_anew_but_for_its_long_lists() -> None:
    run(
        """
loaders = Loaders(replay=ReplayBatches.MEMORY); loaders.listen()
class Boxes(Dataset):
    def __len__(self): return 20
    def __getitem__(self, index): return {"x": torch.ones(2), "boxes": [{"at": i} for i in range(500)]}
def together(samples): return {"x": torch.stack([one["x"] for one in samples]), "boxes": [s["boxes"] for s in samples]}
loader, seen = DataLoader(Boxes(), batch_size=2, collate_fn=together), []
for epoch in range(3):
    for batch in loader:
        assert batch["x"].shape == (2, 2)
        boxes = batch.pop("boxes")
        assert [len(one) for one in boxes] == [500, 500]
        seen.append(id(boxes[0]))
        boxes.clear()
assert set(seen[-10:]) == set(seen[-20:-10]) and len(set(seen[-10:])) == 8  # the long lists themselves
"""
    )


@pytest.mark.torch
def test_workers_make_a_few_batches_and_then_send_those() -> None:
    run(
        """
import os, tempfile
loaders = Loaders(replay=ReplayBatches.FETCHED); loaders.listen()
made = tempfile.mkdtemp()
class Counted(Dataset):
    def __len__(self): return 400
    def __getitem__(self, index):
        open(f"{made}/{index}", "w").close()
        return torch.full((3,), float(index))
count = 0
for batch in DataLoader(Counted(), batch_size=4, num_workers=1):
    assert batch.shape == (4, 3) and batch.is_shared()
    count += 1
assert count == 100
assert len(os.listdir(made)) == 32  # eight batches of four
"""
    )


@pytest.mark.torch
def test_workers_that_start_anew_are_told_and_made_to_persist() -> None:
    run(
        """
loaders = Loaders(); loaders.listen()
rows = TensorDataset(torch.ones(4, 2))
for options in ({}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}):
    DataLoader(rows, **options)
assert [one.restarts for one in loaders.made] == [False, True, False]
loaders.persist = True
assert [DataLoader(rows, **options).persistent_workers for options in ({}, {"num_workers": 1})] == [False, True]
"""
    )
