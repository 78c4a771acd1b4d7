"""Benchmarks on a real GPU: four durations, what is wrong or doubtful, and the gallery."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.command import fresh_opscope
from tests.conftest import gpu_is_missing

if reason := gpu_is_missing():
    pytest.skip(reason, allow_module_level=True)

import torch

import opscope
from opscope.documents.bench import SpeedVerdict

pytestmark = pytest.mark.gpu


def bench(*args: str, code: int = 0) -> dict[str, Any]:
    result = fresh_opscope("bench", *args, "--format", "json")
    assert result.returncode == code, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_four_durations_and_graph_replays_of_the_gallery() -> None:
    document = bench("gelu", "--seconds", "0.2")
    results = {result["name"]: result for result in document["results"]}
    assert {"by hand", "pytorch", "triton", "torch.compile"} <= set(results)
    for result in results.values():
        assert result["correctness"]["verdict"] == "right"
        assert result["kernel_ns"]["median"] <= result["event_ns"]["median"] <= result["wall_ns"]["median"]
        assert result["graph_ns"] is not None
        assert 0 < result["limit"]["share"] <= 1.0
    assert results["by hand"]["kernels"] == 5
    assert results["pytorch"]["kernels"] == 1
    verdicts = {c["variant"]: c["verdict"] for c in document["comparisons"]}
    assert set(verdicts.values()) == {"faster"}


@pytest.mark.parametrize("name", ["square", "add", "softmax", "layer_norm", "cdist", "timers"])
def test_every_case_of_the_gallery_runs_and_is_right(name: str) -> None:
    document = bench(name, "--seconds", "0.1")
    for result in document["results"]:
        checked = result["correctness"]
        assert checked is None or checked["verdict"] in ("right", "not checked"), checked


def test_a_gain_by_precision_is_said_to_be_one() -> None:
    document = bench("matmul", "--seconds", "0.2")
    results = {result["name"]: result for result in document["results"]}
    assert results["tf32"]["correctness"]["verdict"] == "lower precision"
    assert results["tf32"]["correctness"]["precision"] == "tf32"
    assert results["float32"]["limit"]["share"] <= 1.05
    assert results["tf32"]["limit"]["share"] <= 1.05
    said = {c["variant"]: c["sentence"] for c in document["comparisons"]}
    alone = re.search(r"The precision alone makes ([0-9.]+) times", said["tf32"])
    assert alone is not None
    assert float(alone[1]) > 3
    assert "float32 at tf32" in said


def test_spin_kernels_of_known_length() -> None:
    calls = {str(n): (lambda n=n: torch.cuda._sleep(n)) for n in (20_000, 2_000_000, 8_000_000)}
    found = opscope.bench(calls, seconds=0.1)
    times = {int(result.name): result.kernel_ns.median for result in found.results if result.kernel_ns}
    per_ns = 6_000_000 / (times[8_000_000] - times[2_000_000])
    # What a kernel takes beside its loop: 0.53 to 0.66 us on an H200, 0.87 us on an H100.
    assert abs(times[20_000] - 20_000 / per_ns) < 1_000


def test_work_on_another_stream_is_doubted() -> None:
    x, stream = torch.randn(1 << 20, device="cuda"), torch.cuda.Stream()

    def beside(x: torch.Tensor) -> torch.Tensor:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = x * 2
        torch.cuda.current_stream().wait_stream(stream)
        return y

    found = opscope.bench({"here": lambda x: x * 2, "there": beside}, inputs=(x,), seconds=0.1)
    assert "other streams" in found.results[1].doubts[0]
    assert found.comparisons[0].verdict is SpeedVerdict.INCONCLUSIVE


def test_what_waits_for_the_device_cannot_be_captured_and_is_timed_all_the_same() -> None:
    x = torch.randn(1 << 20, device="cuda")
    found = opscope.bench({"waits": lambda x: x * float(x.sum().item() * 0 + 2)}, inputs=(x,), seconds=0.1)
    (result,) = found.results
    assert result.kernel_ns is not None
    assert "CUDA graph" in result.reasons["graph_ns"] or "host" in result.reasons["graph_ns"]


def test_what_launches_nothing_does_not_take_the_times_of_the_others() -> None:
    x, kept = torch.randn(1 << 20, device="cuda"), []

    def keeps(x: torch.Tensor) -> torch.Tensor:
        if not kept:
            kept.append(x * 2)
        return kept[0]

    found = opscope.bench({"works": lambda x: x * 2, "keeps": keeps}, inputs=lambda: x, seconds=0.1)
    works, nothing = found.results
    assert works.kernel_ns is not None
    assert nothing.kernel_ns is None
    assert found.comparisons[0].verdict not in (SpeedVerdict.FASTER, SpeedVerdict.SLOWER)


def test_saved_benchmarks_are_compared(tmp_path: Path) -> None:
    saved = tmp_path / "a.json"
    bench("add", "--seconds", "0.1", "--save", str(saved))
    assert fresh_opscope("diff", str(saved), str(saved)).returncode == 0


def test_no_trick_of_streams_or_kept_results_is_accepted() -> None:
    side = torch.cuda.Stream()
    kept: dict[Any, Any] = {}
    buffers: dict[Any, Any] = {}

    def not_joined(x: Any) -> Any:
        result = torch.empty_like(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(20):
                torch.mm(x, x, out=result)
        return result

    def by_pointer(x: Any) -> Any:
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype)
        if key not in kept:
            kept[key] = x @ x
        return kept[key] * 1

    def one_call_late(x: Any) -> Any:
        before = buffers.get(x.shape)
        buffers[x.shape] = x @ x
        return buffers[x.shape] if before is None else before

    def no_synchronize(x: Any) -> Any:
        torch.cuda.synchronize = lambda *_: None
        return x @ x

    def half_a_time(x: Any) -> Any:
        torch.cuda.Event.elapsed_time = lambda *_: 1e-3
        return x @ x

    before = torch.cuda.synchronize, torch.cuda.Event.elapsed_time
    tricks = {
        **{"not joined": not_joined, "by pointer": by_pointer, "one call late": one_call_late},
        **{"no synchronize": no_synchronize, "half a time": half_a_time},
        "float16 within": lambda x: (x.half() @ x.half()).float(),
    }
    variants = {"product": lambda x: x @ x, "same": lambda x: torch.mm(x, x), **tricks}
    found = {one.name: one for one in opscope.bench(variants, inputs=torch.randn(1024, 1024), seconds=0.1).results}
    for name in tricks:
        checked = found[name].correctness
        assert checked is not None
        assert checked.verdict != "right" or found[name].doubts, name
    for name in ("product", "same"):
        checked = found[name].correctness
        assert checked is not None
        assert checked.verdict == "right", checked.sentence
        assert found[name].kernel_ns is not None
        assert found[name].graph_ns is not None
    assert (torch.cuda.synchronize, torch.cuda.Event.elapsed_time) == before
