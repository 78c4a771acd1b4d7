"""Does the comparison refuse what computes something else? Six mistakes, each in ten models of other seeds.

    python benchmarks/advise_planted.py --save benchmarks/results/advise-planted-two-cores.json

Each runs in processes of its own as every change does, without being timed: a mistake need not be fast to be refused.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import planted
import torch
from msgspec.structs import replace
from saved import save
from torch import nn

from opscope.advise import session as sessions
from opscope.advise.comparing import Comparing
from opscope.advise.messages import VariantJob
from opscope.advise.session import Session
from opscope.record.configuration import Configuration

MODELS = 10


def training(number: int = 0) -> Any:
    """A step with new data each time, dropout and a normalisation; ``number`` seeds model and data."""
    generator = torch.Generator().manual_seed(number)
    torch.manual_seed(number)
    width = 16 + 8 * (number % 3)
    model = nn.Sequential(
        nn.Linear(12, width), nn.GELU(), nn.Dropout(0.1 + 0.02 * number), nn.LayerNorm(width), nn.Linear(width, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def step() -> torch.Tensor:
        x, labels = torch.randn(16, 12, generator=generator), torch.randint(0, 5, (16,), generator=generator)
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def keeping(number: int = 0) -> Any:
    """Inference that keeps its last results; ``number`` seeds model and data."""
    generator = torch.Generator().manual_seed(number)
    torch.manual_seed(number)
    model, kept = nn.Sequential(nn.Linear(12, 16 + number), nn.Tanh(), nn.Linear(16 + number, 4)), list[torch.Tensor]()

    def step() -> torch.Tensor:
        with torch.no_grad():
            kept.append(model(torch.randn(8, 12, generator=generator)))
        del kept[:-3]
        return kept[-1]

    return step


def tried(name: str, number: int) -> dict[str, Any]:
    function = "keeping" if planted.MISTAKES[name] is planted.shares_a_buffer else "training"
    job = VariantJob(configuration=Configuration(f"{__file__}:{function}", {"number": number}), device="cpu")
    with Session(job, width=2, timeout_s=120) as session:
        (worker,) = session.build([job])
        if worker.built is None:
            raise SystemExit(f"{function}: {worker.broken}")
        finalists = {(name,): (replace(job, changes=(name,)), None)}
        said = Comparing(session, job, lambda _: None).proofs(finalists, worker.built.facts)[name,]
    return {
        "mistake": planted.MISTAKES[name].__name__,
        "number": number,
        "refused": said.right is False,
        "reason": said.reason,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=MODELS)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    sessions._PRELOADED.append("planted")
    results = []
    for name in planted.MISTAKES:
        for number in range(options.models):
            results.append(tried(name, number))
            print(json.dumps(results[-1]), flush=True)
    refused = {
        one.__name__: sum(result["refused"] for result in results if result["mistake"] == one.__name__)
        for one in planted.MISTAKES.values()
    }
    print(json.dumps(refused))
    if options.save:
        save(options.save, refused=refused, models=options.models, results=results)


if __name__ == "__main__":
    main()
