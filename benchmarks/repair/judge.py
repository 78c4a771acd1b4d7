"""Judge a repaired step: does it return what the original returns, and how long do both and the known repair take?

    python judge.py TASK_FOLDER CANDIDATE.py [--device cpu] [--rounds 15]

Prints one line of JSON. Inputs come from the original and are new for every call, so that nothing can be kept from an
earlier one. The three are timed in turn, in random order, in one process; a call counts with its wait for the device.
Values are compared before and after timing, with seeds that the candidate has not seen.
"""

import argparse
import importlib.util
import json
import random
import statistics
import time
import tomllib
from pathlib import Path
from types import ModuleType

import torch

SEEN, LATER = (1, 2, 3), (1001, 1002, 1003)
LONG_ENOUGH_NS = 20_000_000  # of one sample: shorter steps are called several times
now = time.perf_counter_ns


def module(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def differs(original: ModuleType, candidate: ModuleType, seeds: tuple[int, ...], task: dict, device: str) -> str | None:
    """Return how the values of two steps differ; None if they agree. State that they keep evolves in both."""
    ours, theirs = original.Step(device), candidate.Step(device)
    for seed in seeds:
        wanted = ours(*original.inputs(seed, device))
        found = theirs(*original.inputs(seed, device))
        if not isinstance(found, torch.Tensor) or found.shape != wanted.shape or found.device != wanted.device:
            return f"returns {getattr(found, 'shape', type(found).__name__)}, not a tensor of {tuple(wanted.shape)}"
        if not torch.allclose(found.double(), wanted.double(), rtol=task["relative"], atol=task["absolute"]):
            return f"differs by up to {(found.double() - wanted.double()).abs().max().item():.3g}"
    return None


def sample(step: object, pool: list, device: str, calls: int) -> float:
    wait(device)
    begin = now()
    for number in range(calls):
        step(*pool[number % len(pool)])  # type: ignore[operator]
    wait(device)
    return (now() - begin) / calls


def times(modules: dict[str, ModuleType], device: str, rounds: int) -> dict[str, float]:
    """Return the median time of a call of each, in nanoseconds."""
    steps = {name: one.Step(device) for name, one in modules.items()}
    seeds = random.Random(time.time_ns())
    found: dict[str, list[float]] = {name: [] for name in steps}
    make = modules["original"].inputs
    calls = {}
    for name, step in steps.items():
        pool = [make(seeds.randrange(1 << 30), device)]
        sample(step, pool, device, 1)
        calls[name] = max(1, round(LONG_ENOUGH_NS / max(sample(step, pool, device, 1), 1)))
    for _ in range(rounds):
        for name in seeds.sample(list(steps), len(steps)):
            pool = [make(seeds.randrange(1 << 30), device) for _ in range(min(calls[name], 8))]
            found[name].append(sample(steps[name], pool, device, calls[name]))
    return {name: statistics.median(values) for name, values in found.items()}


def judged(folder: Path, path: Path, device: str, rounds: int) -> dict[str, object]:
    task = tomllib.loads((folder / "task.toml").read_text())
    original, reference = module(folder / "step.py", "original"), module(folder / "repaired.py", "reference")
    try:
        candidate = module(path, "candidate")
        wrong = differs(original, candidate, SEEN, task, device)
        measured = (
            {}
            if wrong
            else times({"original": original, "reference": reference, "candidate": candidate}, device, rounds)
        )
        wrong = wrong or differs(original, candidate, LATER, task, device)
    except Exception as error:  # whatever an agent wrote
        return {"correct": False, "why": f"{type(error).__name__}: {error}"[:300]}
    return {"correct": wrong is None, "why": wrong, **{f"{name}_ns": value for name, value in measured.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("candidate", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)  # other programs on the machine matter less then, and small steps are no slower
    print(json.dumps(judged(given.folder, given.candidate, given.device, given.rounds)))


if __name__ == "__main__":
    main()
