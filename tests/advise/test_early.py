"""On a machine of many cores, what a proof and a patch need starts at once; what is said is the same."""

from pathlib import Path

import pytest

from opscope.advise.edits import Written
from opscope.advise.messages import Loaded
from opscope.advise.search import first_tries
from opscope.advise.trying import Plan, advise
from opscope.documents.advise import Outcome
from opscope.record.configuration import Configuration

SCRIPT = """
import torch

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 192)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) * 64 ** -0.5
        return scores.softmax(-1) @ v

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
model = Attention()
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
x = torch.randn(8, 256, 64)
while True:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.torch
def test_a_patch_stands_as_soon_as_its_proof(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plan = Plan(
        configuration=Configuration(target=str(script)),
        device="cpu",
        only=("fused_attention", "no_anomaly_detection"),
        budget_s=150,
        log=str(tmp_path / "log"),
        width=4,  # on fewer, nothing starts early
    )
    said: list[str] = []
    document = advise(plan, said.append)
    proven = [one for one in document.results if one.verdict is Outcome.PROVEN]
    assert proven, document.results
    best = max(proven, key=lambda one: one.ratio or 0)
    assert best.patch is not None
    assert best.patch.diff is not None, best.patch.reason
    assert "set_detect_anomaly" in best.patch.diff or "scaled_dot_product_attention" in best.patch.diff
    assert best.patch.ratio is not None
    assert best.patch.ratio == best.ratio  # what is proven is the patch
    assert sum(line.startswith("again, in new processes") for line in said) == sum(
        line.startswith("comparing with float64") for line in said
    )


@pytest.mark.slow
@pytest.mark.torch
def test_what_fails_as_a_patch_is_proven_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    fails = Written(
        {str(script): SCRIPT.replace("while True:", "raise ValueError('not so')\nwhile True:")}, "", tmp_path
    )
    monkeypatch.setattr("opscope.advise.trying.written_or_why", lambda *_: fails)
    plan = Plan(
        configuration=Configuration(target=str(script)),
        device="cpu",
        only=("no_anomaly_detection",),
        budget_s=150,
        log=str(tmp_path / "log"),
    )
    document = advise(plan, lambda _: None)
    (best,) = [one for one in document.results if one.verdict is Outcome.PROVEN]
    assert best.patch is not None
    assert best.patch.diff is None
    assert best.patch.reason is not None
    assert "written into the source it fails: ValueError: not so (train.py:" in best.patch.reason


def test_where_launches_are_waited_for_graphs_come_first() -> None:
    possible = ("fused_attention", "tf32", "autocast_bf16", "fused_optimizer", "compile", "compile_reduce_overhead")
    first, second, third, *rest = first_tries(possible, launch_bound=True)
    assert first == ("fused_attention", "tf32", "fused_optimizer", "compile_reduce_overhead")
    assert "autocast_bf16" in second
    assert "compile_reduce_overhead" in second
    assert third == ("fused_attention", "tf32", "fused_optimizer")  # it starts in seconds, and is there to compare with
    assert {first, second, third, *rest} == set(first_tries(possible)) | {
        ("fused_attention", "fused_optimizer", "compile_reduce_overhead")
    }


def test_starting_workers_counts_once_an_epoch() -> None:
    loaded = Loaded(steps=10, waits_ns=[100] * 20, received_ns=[10] * 20, starts_ns=[5000], epoch=500)
    assert loaded.batches == 2
    assert loaded.wait_ns == 200
    assert loaded.start_ns == 10  # a batch: 5,000 ns for 500 of them
    unknown = Loaded(steps=10, waits_ns=[100] * 20, received_ns=[10] * 20, starts_ns=[5000], epoch=None)
    assert unknown.start_ns == 250
    # The loop leaves its epochs after 20 of 500 batches.
    left = Loaded(steps=10, waits_ns=[100] * 40, received_ns=[10] * 40, starts_ns=[4000, 5000, 6000], epoch=500)
    assert left.start_ns == 250
    assert Loaded(steps=0, waits_ns=[], received_ns=[], starts_ns=[], epoch=None).wait_ns == 0
