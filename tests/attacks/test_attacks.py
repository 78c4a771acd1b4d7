"""Inputs damaged at random, for every command: no traceback, no half result, and sums that add up.

``make fuzz`` repeats this with other random numbers for as long as you like.
"""

import contextlib
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.measured import Measured
from opscope.base.errors import BadInputError, OpscopeError
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers import parquet
from opscope.readers.reading import read
from opscope.report.trace_document import build_trace_document
from opscope.runs.inputs import measured_of, traces_below
from opscope.trace.schema import SCHEMAS
from tests import tiny
from tests.budget import chance, examples
from tests.command import opscope, started
from tests.conftest import DATA

FUNCTIONS = NativeFunctions.shipped()
EXIT_CODES = (0, 1, 2, 3, 4)
POISON: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, -(2**63), 2**64, 1e308, 0.5, "", "x", "x" * 5_000, "7", "../../etc/passwd",
    "\0", "/", "=1+1", "<script>", "\x1b[2J", "\u202e", [], [[]], {}, {"a": {"b": []}}, [None] * 50,
)  # fmt: skip


def poisoned(value: Any, random_: random.Random) -> Any:
    """Return JSON data with one value somewhere in it, or the whole, replaced by something else."""
    if isinstance(value, dict) and value and random_.random() < 0.95:
        key = random_.choice(list(value))
        if random_.random() < 0.1:
            return {other: item for other, item in value.items() if other != key}
        return {**value, key: poisoned(value[key], random_)}
    if isinstance(value, list) and value and random_.random() < 0.95:
        at = random_.randrange(len(value))
        if random_.random() < 0.1:
            return value[:at] + value[at : at + 1] * random_.choice((0, 2, 40)) + value[at + 1 :]
        return [*value[:at], poisoned(value[at], random_), *value[at + 1 :]]
    return random_.choice(POISON)


def assert_adds_up(analysis: Analysis) -> None:
    assert analysis.accounting.holds
    whole = analysis.accounting.activities_ns
    assert analysis.operators_and_unlinked["self_device_ns"].sum() == whole
    assert analysis.shapes_and_unlinked["self_device_ns"].sum() == whole
    assert analysis.kernels["total_ns"].sum() == whole
    assert analysis.categories["self_device_ns"].sum() == whole
    assert analysis.streams["sum_ns"].sum() == whole
    for device in analysis.devices:
        assert 0 <= device.busy_ns <= device.sum_ns
        assert sum(device.idle.by_cause().values()) == device.idle_ns


def small_traces() -> list[dict[str, Any]]:
    names = ("square_variants", "cudagraph_replay", "cdist")
    recorded = [json.loads(gzip.decompress((DATA / "traces" / f"{name}.json.gz").read_bytes())) for name in names]
    return [*recorded, *(json.loads(built.text()) for built in (tiny.inference(), tiny.training()))]


@pytest.mark.slow
def test_poisoned_traces_are_refused_or_add_up(tmp_path: Path) -> None:
    path, random_, traces = tmp_path / "trace.json", chance("traces"), small_traces()
    for _ in range(examples(120)):
        trace = random_.choice(traces)
        for _ in range(random_.choice((1, 2, 10, 50))):
            trace = poisoned(trace, random_)
        path.write_text(json.dumps(trace))
        try:
            analysis = analyze(read(path))
        except BadInputError:
            continue
        assert_adds_up(analysis)
        build_trace_document(Measured(analysis), FUNCTIONS)


COMMANDS: dict[str, Callable[[Path, Path], tuple[str, ...]]] = {
    "analyze": lambda trace, _: ("analyze", str(trace)),
    "analyze --format json": lambda trace, _: ("analyze", "--format", "json", str(trace)),
    "analyze --format csv": lambda trace, _: ("analyze", "--by", "module", "--format", "csv", str(trace)),
    "explain": lambda trace, _: ("explain", "aten::addmm", "--in", str(trace)),
    "dossier": lambda trace, _: ("explain", "--in", str(trace)),
    "export": lambda trace, out: ("export", str(trace), "--chrome", str(out / "out.json"), "--max-size", "20KB"),
    "convert": lambda trace, out: ("export", str(trace), "--parquet", str(out / "store")),
    "sql": lambda trace, _: ("sql", "select * from operators", str(trace)),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_ends_in_a_traceback(command: str, tmp_path: Path) -> None:
    path, random_, traces = tmp_path / "trace.json", chance("commands", command), small_traces()
    for number in range(examples(5)):
        trace = random_.choice(traces)
        for _ in range(random_.choice((1, 5, 50))):
            trace = poisoned(trace, random_)
        text = json.dumps(trace).encode()
        at = random_.randrange(len(text))
        path.write_bytes(text if random_.random() < 0.5 else text[:at] + random_.randbytes(3) + text[at + 1 :])
        (tmp_path / str(number)).mkdir()
        result = opscope(*COMMANDS[command](path, tmp_path / str(number)))
        assert result.returncode in EXIT_CODES, result.stderr
        assert "Traceback" not in result.stderr
        assert "\x1b[2J" not in result.stdout + result.stderr
        if command == "analyze --format json" and result.stdout:
            json.loads(result.stdout)


# ---------------------------------------------------------------- stores


VALUES: dict[Any, tuple[Any, ...]] = {
    pl.Int32: (None, 0, -1, 2**31 - 1, -(2**31)),
    pl.Int64: (None, 0, -1, 2**63 - 1, -(2**63), 1 << 61),
    pl.Float64: (None, 0.0, -1.0, float("nan"), float("inf"), 1e308),
    pl.Categorical: (None, "", "[", "[[2, 2]]", '["float"]', "kernel", "x" * 5_000, "\x1b[2J", "1,1,1", "a,b"),
}


def poison_store(store: Path, random_: random.Random) -> None:
    """Change values, columns, rows or bytes of a table, or the manifest; the digests stay true."""
    manifest, table = json.loads((store / "store.json").read_text()), random_.choice(list(SCHEMAS))
    path = store / f"{table}.parquet"
    frame, kind = pl.read_parquet(path), random_.random()
    if kind < 0.6:
        name, dtype = random_.choice(list(SCHEMAS[table].items()))
        values = [random_.choice(VALUES[dtype]) if random_.random() < 0.3 else old for old in frame[name]]
        frame.with_columns(pl.Series(name, values, dtype=dtype)).write_parquet(path)
    elif kind < 0.7:
        others = (frame.drop(frame.columns[0]), frame.with_columns(more=1), frame.reverse(), frame.head(1))
        random_.choice(others).write_parquet(path)
    elif kind < 0.8:
        content = path.read_bytes()
        at = random_.randrange(len(content))
        path.write_bytes(content[:at] + random_.randbytes(random_.choice((0, 1, 4))) + content[at + 1 :])
    else:
        manifest = poisoned(manifest, random_)
    if isinstance(manifest, dict) and isinstance(manifest.get("digests"), dict):
        manifest["digests"][table] = hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()
    (store / "store.json").write_text(json.dumps(manifest))


def test_poisoned_stores_are_refused_or_add_up(tmp_path: Path) -> None:
    whole, store, random_ = tmp_path / "whole", tmp_path / "store", chance("stores")
    parquet.write(read(tiny.training().write(tmp_path / "trace.json")), whole)
    for _ in range(examples(60)):
        shutil.copytree(whole, store)
        for _ in range(random_.choice((1, 1, 3))):
            try:
                poison_store(store, random_)
            except (pl.exceptions.PolarsError, OSError, ValueError):
                break  # an earlier one broke what this one would change
        try:
            analysis = analyze(read(store))
            assert_adds_up(analysis)
            build_trace_document(Measured(analysis), FUNCTIONS)
        except BadInputError:
            pass
        shutil.rmtree(store)


# ---------------------------------------------------------------- run directories


def test_poisoned_run_directories_are_refused_or_add_up(tmp_path: Path) -> None:
    random_, run = chance("runs"), tmp_path / "run"
    for _ in range(examples(25)):
        shutil.copytree(DATA / "h200_bert_small", run)
        jsons = [run / "manifest.json", *sorted((run / "raw").glob("capture_*.json"))]
        for _ in range(random_.choice((1, 1, 4))):
            path = random_.choice(jsons)
            path.write_text(json.dumps(poisoned(json.loads(path.read_text()), random_)))
        try:
            for file in traces_below([run]):
                measured, _ = measured_of(file, read(file.path), FUNCTIONS)
                assert_adds_up(measured.analysis)
                build_trace_document(measured, FUNCTIONS)
        except OpscopeError:
            pass
        shutil.rmtree(run)


# ---------------------------------------------------------------- commands that are killed


def killed_after(seconds: float, *words: str | Path) -> None:
    """Start a command, and kill it and what it started after some time."""
    command = started(*map(str, words))
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        os.killpg(command.pid, signal.SIGKILL)
    command.finish()


def test_who_kills_a_command_finds_the_old_or_the_new_and_never_half(tmp_path: Path) -> None:
    random_ = chance("kills")
    old, new = DATA / "traces" / "square_variants.json.gz", DATA / "traces" / "resnet50_train_fp32.json.gz"
    operators = {read(path).operators.height for path in (old, new)}
    store, target = tmp_path / "store", tmp_path / "out.json"
    opscope("export", str(old), "--parquet", str(store))
    opscope("export", str(old), "--chrome", str(target))
    for _ in range(examples(6)):
        killed_after(random_.uniform(0.02, 0.5), "export", new, "--parquet", store)
        assert not store.exists() or read(store).operators.height in operators
        killed_after(random_.uniform(0.02, 0.5), "export", new, "--chrome", target)
        assert read(target).operators.height in operators
        assert read(target).source.damage is None


def test_who_kills_a_report_finds_documents_that_are_whole(tmp_path: Path) -> None:
    random_, run = chance("reports"), tmp_path / "run"
    shutil.copytree(DATA / "h200_bert_small", run)
    for _ in range(examples(4)):
        killed_after(random_.uniform(0.05, 1.0), "export", "--reports", run)
        for path in run.glob("*.json"):
            json.loads(path.read_text())
    assert opscope("export", "--reports", str(run)).returncode == 0
