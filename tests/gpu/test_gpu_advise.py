"""Changes that only a GPU can take, made in steps that run there: right ones are proven, wrong ones are refused."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from opscope.advise.changes.listed import BY_NAME
from opscope.advise.comparing import Comparing, Finalist, exact_part
from opscope.advise.messages import Time, Turn, VariantJob, Work, Worked
from opscope.advise.search import ChangeNames
from opscope.advise.session import Session
from opscope.measuring.pinning import fastest_cores
from opscope.record.configuration import Configuration
from tests.command import opscope as command

pytestmark = pytest.mark.gpu

STEPS = '''
import torch
import torch.nn.functional as F
from torch import nn

COUNT = 0


def parts(convolves=False, dropout=0.0):
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(dropout))]
    front = [nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(256, 64)] if convolves else []
    model = nn.Sequential(*front, *layers, nn.Linear(64, 10)).cuda()
    x = torch.randn(16, 3, 8, 8, device="cuda") if convolves else torch.randn(16, 64, device="cuda")
    return model, x, torch.randint(0, 10, (16,), device="cuda")


def training(convolves: bool = False, dropout: float = 0.0):
    model, x, labels = parts(convolves, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.mask = nn.Linear(32, 96), torch.tril(torch.ones(16, 16, device="cuda"))

    def forward(self, x):
        q, k, v = self.qkv(x).split(32, dim=2)
        q, k, v = (one.view(4, 16, 2, 16).transpose(1, 2) for one in (q, k, v))
        weights = (q @ k.transpose(-2, -1) / 4.0).masked_fill(self.mask == 0, float("-inf"))
        return x + (F.softmax(weights, dim=-1) @ v).transpose(1, 2).reshape(4, 16, 32)


def attending():
    """Attention written out, a vocabulary of an odd size, and a number that no one looks at in the step."""
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), Attention(), nn.Linear(32, 1001)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, words = torch.randn(4, 16, 32, device="cuda"), torch.randint(0, 1001, (64,), device="cuda")

    def step():
        loss = F.cross_entropy(model(x).view(64, -1), words)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def inference():
    model, x, _ = parts()
    model.eval()

    def step():
        with torch.no_grad():
            return model(x)

    return step


def keeping():
    """Keeps each output, which a graph would overwrite."""
    model, x, _ = parts()
    model.eval()
    kept = {}

    def step():
        with torch.no_grad():
            x.mul_(1.01)
            kept["last"] = kept.get("new")
            kept["new"] = model(x)

    return step


def counting():
    model, x, _ = parts()

    def step():
        global COUNT
        COUNT += 1
        with torch.no_grad():
            return model(x * COUNT)

    return step
'''


LOADING = """
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.rows = torch.randn(4096, 2048)
    def __len__(self):
        return 1_000_000_000
    def __getitems__(self, indices):
        return self.rows[: 1024]

model = torch.nn.Linear(2048, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for batch in DataLoader(Rows(), batch_size=1024, collate_fn=lambda rows: rows):
    optimizer.zero_grad()
    model(batch.to("cuda")).square().mean().backward()
    optimizer.step()
"""


def proven(source: Path, function: str, *changes: tuple[str, ...], **settings: object) -> dict[tuple[str, ...], object]:
    """Return for each combination of changes what comparison says of it, without timing anything."""
    job = VariantJob(configuration=Configuration(f"{source}:{function}", dict(settings)), device="cuda")
    with Session(job, width=4, timeout_s=100) as session:
        (worker,) = session.build([job])
        assert worker.built is not None, worker.broken
        facts = worker.built.facts
        for names in changes:
            assert [BY_NAME[name].refuses(facts) for name in names] == [None] * len(names)
        finalists: dict[ChangeNames, Finalist] = {}
        for names in changes:
            part = exact_part(names)
            of_part = replace(job, changes=part) if part and part != names else None
            finalists[names] = (replace(job, changes=names), of_part)
        said = Comparing(session, job, lambda _: None).proofs(finalists, facts)
    return {names: (one.right, one.reason) for names, one in said.items()}


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("steps") / "steps.py"
    path.write_text(STEPS)
    return path


def test_graphs_and_lower_precision_of_training_are_right(steps: Path) -> None:
    changes = [
        ("cuda_graph",),
        ("fused_optimizer", "cuda_graph"),
        ("compile", "cuda_graph"),
        ("compile_reduce_overhead",),
        ("tf32",),
        ("autocast_bf16", "cuda_graph"),
        ("autocast_fp16",),
    ]
    found = proven(steps, "training", *changes)
    assert {names: said for names, said in found.items() if not said[0]} == {}


def test_a_graph_draws_other_numbers_in_each_replay(steps: Path) -> None:
    assert proven(steps, "training", ("cuda_graph",), dropout=0.2)[("cuda_graph",)][0] is True


def test_changes_of_convolutions_are_right(steps: Path) -> None:
    found = proven(steps, "training", ("cudnn_benchmark",), ("channels_last",), convolves=True)
    assert {names: said for names, said in found.items() if not said[0]} == {}


def test_fused_attention_padding_and_numbers_that_are_not_waited_for_are_right(steps: Path) -> None:
    changes = [
        ("fused_attention",),
        ("padded_products",),
        ("deferred_items",),
        ("deferred_items", "cuda_graph"),
        ("fused_attention", "autocast_bf16", "padded_products", "compile", "deferred_items", "cuda_graph"),
    ]
    found = proven(steps, "attending", *changes)
    assert {names: said for names, said in found.items() if not said[0]} == {}


def test_changes_of_inference_are_right(steps: Path) -> None:
    changes = [("cuda_graph",), ("weights_fp16",), ("weights_bf16", "compile_reduce_overhead"), ("inference_mode",)]
    found = proven(steps, "inference", *changes)
    assert {names: said for names, said in found.items() if not said[0]} == {}


def test_outputs_that_the_program_keeps_must_not_be_overwritten(steps: Path) -> None:
    (right, reason) = proven(steps, "keeping", ("compile_reduce_overhead",))[("compile_reduce_overhead",)]
    assert right is False
    assert "overwritten" in reason


def test_a_step_that_counts_is_no_graph(steps: Path) -> None:
    done = command("advise", "--dry-run", f"{steps}:counting")
    assert done.returncode == 0, done.stderr
    assert "not cuda_graph: the step changes COUNT" in done.stdout


def test_copies_of_batches_are_found_apart_from_loading(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADING)
    done = command("advise", "--only", "input", "--format", "json", str(script))
    assert done.returncode == 0, done.stderr
    proof = json.loads(done.stdout)["input"]
    # Eight megabytes a batch, from memory that is not pinned, for a step of a tenth of a millisecond.
    assert proof["copies"]["blamed"], proof
    assert proof["copies"]["from_pinned_ns"] is not None
    assert "copy" in [one["stage"] for one in proof["stages"]]
    assert "pinned memory and non-blocking copies" in [one["change"] for one in proof["others"]]


def test_threads_are_pinned_while_a_step_is_timed_and_then_free(steps: Path) -> None:
    job = VariantJob(configuration=Configuration(f"{steps}:training"), device="cuda")
    pair = fastest_cores()
    assert pair is not None
    assert pair[0] != pair[1]
    with Session(job, width=1, timeout_s=100) as session:
        (worker,) = session.build([job])
        turns = [worker.ask(Time(0.05, cores), Turn, 100) for cores in (pair, None)]
    assert all(one is not None and one.step_ns > 0 for one in turns)


def test_the_device_works_for_less_than_a_step(steps: Path) -> None:
    """The step launches small kernels: a GPU of this kind waits for them, and cannot work for longer than the step."""
    job = VariantJob(configuration=Configuration(target=f"{steps}:training"), device="cuda")
    with Session(job, width=2, timeout_s=120) as session:
        scout, timed = session.build([job, job])
        (worked,) = session.ask_each([(scout, Work(3))], Worked)
        (turn,) = session.ask_each([(timed, Time(0.5))], Turn)
    assert worked is not None
    assert worked.device_ns is not None
    assert turn is not None
    assert 0 < worked.device_ns < turn.step_ns
