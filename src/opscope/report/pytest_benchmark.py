"""Writes benchmarks as JSON of pytest-benchmark, which dashboards and GitHub actions read.

Its statistics are in seconds, and its keys are those of pytest-benchmark 5, which need not be installed.
"""

import statistics
from collections.abc import Sequence
from typing import TypedDict

import msgspec

from opscope._version import __version__
from opscope.base.units import NS_PER_S
from opscope.documents.bench import BenchDocument, BenchResult, Duration, Measure, headline


class _Stats(TypedDict):
    min: float
    max: float
    mean: float
    stddev: float
    rounds: int
    median: float
    iqr: float
    q1: float
    q3: float
    ops: float
    total: float
    iterations: int
    data: list[float]


def pytest_benchmark_json(document: BenchDocument) -> bytes:
    """Return a file with one benchmark per timed variant, by the best measure that all results have (`headline`)."""
    measure = headline(document.results)
    machine = document.machine
    content = {
        "machine_info": {
            "node": "",
            "processor": machine.cpu,
            "machine": machine.platform,
            "python_version": document.framework.python,
            "cpu": {"brand_raw": machine.cpu, "count": machine.cpu_count},
            "gpus": [gpu.name for gpu in machine.gpus],
        },
        "commit_info": {"id": None, "dirty": None},
        "benchmarks": [
            _entry(result, measure, outcome)
            for result in document.results
            if (outcome := result.duration(measure)) is not None
        ],
        "datetime": document.created,
        "version": f"opscope {__version__}",
    }
    return msgspec.json.encode(content) + b"\n"


def _entry(result: BenchResult, measure: Measure, outcome: Duration) -> dict[str, object]:
    parameters = "-".join(result.parameters.values())
    name = f"{result.name}[{parameters}]" if parameters else result.name
    return {
        "group": result.case,
        "name": name,
        "fullname": f"{result.case}::{name}",
        "params": result.parameters or None,
        "param": parameters or None,
        "extra_info": {"measure": str(measure)},
        "options": {"disable_gc": False, "timer": str(measure), "min_rounds": outcome.n, "warmup": True},
        "stats": _stats(outcome.samples),
    }


def _stats(samples: Sequence[float]) -> _Stats:
    seconds = [sample / NS_PER_S for sample in samples]
    # Quartiles need two samples; a single one is all three of them.
    q1, median, q3 = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    mean = statistics.fmean(seconds)
    return {
        "min": min(seconds),
        "max": max(seconds),
        "mean": mean,
        "stddev": statistics.stdev(seconds) if len(seconds) > 1 else 0.0,
        "rounds": len(seconds),
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "ops": 1 / mean if mean else 0.0,
        "total": sum(seconds),
        "iterations": 1,
        "data": seconds,
    }
