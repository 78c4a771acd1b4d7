"""Loading: which stage a function belongs to, and whether steps wait for their data."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from opscope.advise.stages import LoadingStage, ProfiledFunction, RunningFunction, named_stage, stage_of_each
from tests.command import opscope

LOADERS = Path(__file__).parents[2] / "benchmarks" / "scripts" / "loaders.py"
USERS = "/home/someone/train.py"
GET, READ = RunningFunction("__getitem__", USERS, 3), RunningFunction("read_image", USERS, 9)
AUGMENT, HELPER = RunningFunction("random_crop", USERS, 20), RunningFunction("helper", USERS, 30)
FETCH = RunningFunction("fetch", "/usr/lib/python3/dist-packages/torch/utils/data/_utils/fetch.py", 49)
SLEEP, DECOMPRESS = (
    RunningFunction("<built-in method time.sleep>"),
    RunningFunction("<built-in method zlib.decompress>"),
)
STREAM = RunningFunction("<method 'read' of '_io.BufferedReader' objects>")


@pytest.mark.parametrize(
    ("function", "stage"),
    [
        (READ, LoadingStage.READ),
        (AUGMENT, LoadingStage.TRANSFORM),
        (GET, None),
        (FETCH, None),  # PyTorch's function says nothing of the user's
        (STREAM, LoadingStage.READ),
        (DECOMPRESS, LoadingStage.DECODE),
        (SLEEP, None),
        (RunningFunction("load", "/x/site-packages/torch/serialization.py", 1), LoadingStage.READ),
        (RunningFunction("load", "/x/site-packages/PIL/ImageFile.py", 1), LoadingStage.DECODE),
        (
            RunningFunction("forward", "/x/site-packages/torchvision/transforms/v2/_geometry.py", 1),
            LoadingStage.TRANSFORM,
        ),
        (RunningFunction("parse_record", USERS, 1), LoadingStage.DECODE),
    ],
)
def test_functions_name_their_stage(function: RunningFunction, stage: LoadingStage | None) -> None:
    assert named_stage(function) is stage


def test_time_belongs_to_what_names_a_stage_or_calls_what_does_not() -> None:
    entries = [
        ProfiledFunction(FETCH, 1.0),
        ProfiledFunction(GET, 2.0, {FETCH: 2.0}),
        ProfiledFunction(READ, 0.5, {GET: 0.5}),
        # Three quarters of the sleep are the reader's, the rest is in __getitem__ itself.
        ProfiledFunction(SLEEP, 8.0, {READ: 6.0, GET: 2.0}),
        ProfiledFunction(AUGMENT, 3.0, {GET: 3.0}),
        ProfiledFunction(HELPER, 1.0, {AUGMENT: 1.0}),
        ProfiledFunction(DECOMPRESS, 4.0, {GET: 4.0}),
    ]
    assert stage_of_each(entries) == pytest.approx(
        {
            (LoadingStage.SAMPLE, FETCH): 1.0,
            (LoadingStage.SAMPLE, GET): 2.0 + 2.0,
            (LoadingStage.READ, READ): 0.5 + 6.0,
            (LoadingStage.TRANSFORM, AUGMENT): 3.0 + 1.0,
            (LoadingStage.DECODE, GET): 4.0,
        }
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_time_is_lost_or_made_whoever_calls_whom(seed: int) -> None:
    draw = random.Random(seed)
    functions = [GET, READ, AUGMENT, HELPER, FETCH, SLEEP, DECOMPRESS, STREAM]
    entries = []
    for function in functions:  # in circles too
        callers = {one: draw.random() for one in functions if draw.random() < 0.4}
        entries.append(ProfiledFunction(function, draw.random(), callers))
    assert sum(stage_of_each(entries).values()) == pytest.approx(sum(entry.own_s for entry in entries))


def proven(kind: str) -> dict[str, Any]:
    done = opscope("advise", "--only", "input", "--format", "json", "--", str(LOADERS), kind)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["results"] == []
    found: dict[str, Any] = document["input"]
    return found


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stage", "function", "workers"),
    [
        ("store", "read", "fetch_object", 0),
        ("parse_lines", "decode", "parse", 0),
        ("augment_worker", "transform", "augment", 1),
    ],
)
def test_the_slow_stage_is_named(kind: str, stage: str, function: str, workers: int) -> None:
    found = proven(kind)
    assert found["workers"] == workers
    costs = {one["stage"]: one for one in found["stages"]}
    assert next(iter(costs)) == stage
    assert costs[stage]["function"] == function
    assert costs[stage]["file"] == str(LOADERS)
    assert costs[stage]["step_ns"] == pytest.approx(costs[stage]["batch_ns"] / max(1, workers))
    assert found["batches"] == pytest.approx(1, abs=0.2)
    assert found["ratio"] > 0


@pytest.mark.torch
def test_a_step_without_a_loader_has_no_loading_to_try(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "workloads" / "scripts" / "kinds.py"
    done = opscope("advise", "--only", "input", "--", str(script), "accumulation")
    assert done.returncode == 1
    assert "takes no batches from a DataLoader" in done.stderr
