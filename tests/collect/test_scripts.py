"""Scripts that know nothing of opscope: their steps are found, a few are profiled, and which ones is said."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.analyzed import analyze
from opscope.collect.script.signals import record_triton_launches
from opscope.collect.script.step_events import Identities, StepEvents, candidate_periods, find_pattern, settled
from opscope.collect.script.windows import busiest_thread, outermost, steps_by_operators, within, work_in
from opscope.readers.reading import read
from opscope.record.configuration import CaptureOptions, Schedule
from tests.command import ROOT, opscope

pytestmark = pytest.mark.slow

SCRIPTS = ROOT / "tests" / "workloads" / "scripts"


def found(text: str, **how: Any) -> Any:
    return find_pattern(list(text), [float(end) for end in range(1, len(text) + 1)], **how)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("A", None),
        ("AA", None),
        ("AAA", (0, 1, 3)),
        ("ABAB", None),
        ("ABABAB", (0, 2, 3)),
        ("ABABABA", (0, 2, 3)),  # a started cycle at the end
        ("XYABABAB", (2, 2, 3)),
        ("DDDGDDDGDDDG", (0, 4, 3)),
        ("AAAAAABCBCBC", (6, 2, 3)),  # as many keys, but the first one has no known start: less time
        ("ABBBBABBBBABBBB", (0, 5, 3)),  # the outer loop
        ("ABCDEFG", None),
    ],
)
def test_the_repetition_that_covers_most_time_is_found(text: str, expected: tuple[int, int, int] | None) -> None:
    pattern = found(text)
    assert (pattern and (pattern.first, pattern.period, pattern.count)) == expected


def test_a_repetition_at_the_end_is_not_one_that_is_over() -> None:
    assert found("AAAAB", at_end=True) is None
    assert found("BAAA", at_end=True).first == 1


def test_time_decides_and_not_the_number_of_events() -> None:
    pattern = find_pattern(list("AAAAABCBCBC"), [1, 2, 3, 4, 5, 100, 200, 300, 400, 500, 600])
    assert pattern is not None
    assert pattern.period == 2


def test_lengths_and_repeats_are_checked() -> None:
    with pytest.raises(ValueError, match="times"):
        find_pattern([1], [])
    with pytest.raises(ValueError, match="twice"):
        find_pattern([], [], repeats=1)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(2, 4), st.booleans())
def test_what_is_returned_repeats_and_is_maximal(keys: list[int], repeats: int, at_end: bool) -> None:
    pattern = find_pattern(keys, list(range(len(keys))), repeats=repeats, at_end=at_end)
    if pattern is None:
        return
    first, period = pattern.first, pattern.period
    assert pattern.count >= repeats
    assert period * pattern.count <= pattern.end - first < period * (pattern.count + 1)
    assert all(keys[index] == pattern.keys[(index - first) % period] for index in range(first, pattern.end))
    assert pattern.end == len(keys) or (not at_end and keys[pattern.end] != keys[pattern.end - period])
    shorter = [size for size in range(1, period) if period % size == 0]
    assert not any(pattern.keys == pattern.keys[:size] * (period // size) for size in shorter)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9),
    st.integers(3, 8),
    st.lists(st.integers(5, 9), max_size=6, unique=True),
)
def test_a_planted_repetition_is_found(cycle: list[int], times: int, prefix: list[int]) -> None:
    keys = prefix + cycle * times
    ends = list(range(1, len(keys) + 1))
    pattern = find_pattern(keys, ends, at_end=True)
    assert pattern is not None
    assert pattern.first <= len(prefix)
    assert len(cycle) % pattern.period == 0 or pattern.covered >= len(cycle) * (times - 1)
    quick = find_pattern(keys, ends, at_end=True, periods=candidate_periods(keys))
    assert quick is not None
    assert quick.covered >= 0.5 * pattern.covered


def test_steps_are_settled_when_the_last_ones_took_alike() -> None:
    assert settled([1.0, 1.0, 1.0]) is True
    assert settled([9.0, 1.0]) is None
    assert settled([9.0, 1.1, 1.0, 1.2]) is True
    assert settled([1.0, 9.0] * 8) is False


def test_objects_are_told_apart_after_their_address_was_used_again() -> None:
    class Thing:
        pass

    names, seen = Identities(), set()
    for _ in range(50):
        thing = Thing()
        assert names.of(thing) == names.of(thing)
        seen.add(names.of(thing)[0])
        del thing
    assert len(seen) == 50


def test_an_inner_loop_is_not_taken_for_the_step() -> None:
    """One G follows four D's, for ever: the repetition is of five, also when the D's alone repeat."""
    events, level = StepEvents(), None
    for number in range(40):
        key = "G" if number % 5 == 4 else "D"
        events.add((key, key, key), float(number))
        repetition = events.repetition(3)
        if repetition is not None and number > 6:
            level, pattern = repetition
            break
    assert level == 0
    assert sorted(pattern.keys) == ["D", "D", "D", "D", "G"]


def test_a_cycle_begins_as_the_script_did() -> None:
    """D and G in turns; after the first pair something else is called, so that D, G, D ... is found from a G on."""
    events = StepEvents()
    for number in range(20):
        name = "DG"[number % 2]
        events.add(((name, "and others") if number == 2 else name, name, "type"), float(number))
        found = events.repetition(3)
    assert found is not None
    level, pattern = found
    assert (level, pattern.keys, pattern.first) == (0, ("D", "G"), 4)
    assert pattern.count == 8
    assert pattern.end == 20


def test_a_cycle_begins_anywhere_where_the_script_began_otherwise() -> None:
    events = StepEvents()
    for number, name in enumerate("GG" + "DG" * 10):
        events.add((name, name, name), float(number))
        found = events.repetition(3)
    assert found is not None
    assert found[1].first == 1
    assert found[1].keys == ("G", "D")


def test_steps_are_found_among_operators_by_hand() -> None:
    """Three warm-up operators, then five times (mm 10 us, gap, tanh 5 us) on the busier of two threads."""
    slices = [("aten::zeros", 0.0), ("aten::rand", 10.0), ("aten::cat", 20.0)]
    for cycle in range(5):
        slices += [("aten::mm", 100.0 + 50 * cycle), ("aten::tanh", 120.0 + 50 * cycle)]
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 10.0} for name, ts in slices
    ]
    events.append({"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1, "ts": 101.0, "dur": 2.0})
    events.append({"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 2, "ts": 101.0, "dur": 2.0})

    def of(*events: dict[str, Any]) -> list[Any]:
        return busiest_thread(work_in(json.dumps({"traceEvents": events}).encode())[0])

    steps = steps_by_operators(of(*events), minimum=4)
    assert steps is not None
    pattern, spans = steps
    assert pattern.keys == ("aten::mm", "aten::tanh")
    assert spans == [(100.0, 150.0), (150.0, 200.0), (200.0, 250.0), (250.0, 300.0), (300.0, 330.0)]
    assert steps_by_operators([]) is None
    assert steps_by_operators(of(*events), 4, at_end=True, least_us=200.0) is not None
    assert steps_by_operators(of(*events), 4, least_us=1_000.0) is None  # too little of the recording
    on_device = [
        {"ph": "X", "cat": cat, "name": "n", "pid": 0, "tid": 7, "ts": 100.0, "dur": us}
        for cat, us in (("kernel", 10.0), ("gpu_memcpy", 5.0), ("gpu_memset", 1.0), ("gpu_user_annotation", 200.0))
    ]
    operators, device_us = work_in(json.dumps({"traceEvents": [*events, *on_device]}).encode())
    assert (len(operators), device_us) == (len(events), 16.0)
    later = {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "pid": 1, "tid": 1, "ts": 340.0, "dur": 2.0}
    assert steps_by_operators(of(*events, later), 4, at_end=True) is None  # it is over


def test_what_was_before_the_steps_is_not_charged_to_them() -> None:
    def event(cat: str, ts: float, **args: int) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": "n", "pid": 1, "tid": 1, "ts": ts, "dur": 1.0, "args": args}

    meta = {"ph": "M", "name": "process_name", "pid": 1}
    early = [event("cpu_op", 5.0), event("cuda_runtime", 6.0, correlation=1), event("kernel", 12.0, correlation=1)]
    inside = [event("cpu_op", 10.0), event("cuda_runtime", 11.0, correlation=2), event("kernel", 40.0, correlation=2)]
    kept = within([meta, *early, *inside, event("cpu_op", 20.0)], 10.0, 20.0)
    assert sorted(map(str, kept)) == sorted(map(str, [meta, *inside]))
    assert [name for name, _, _ in outermost([("b", 1, 2), ("a", 0, 5), ("c", 5, 6)])] == ["a", "c"]


@pytest.fixture
def profiled(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], str, str]]:
    pytest.importorskip("torch")

    def run(*words: str, patient: bool = False) -> tuple[dict[str, Any], str, str]:
        done = opscope("profile", *([] if patient else ["--quick"]), "--output-dir", str(tmp_path), *words)
        assert done.returncode == 0, done.stderr
        log = (tmp_path / "raw" / "log_default.txt").read_text()
        return json.loads((tmp_path / "profiling_stats_default.json").read_text()), log, done.stdout

    return run


@pytest.mark.torch
def test_training_steps_of_a_script_are_found_and_profiled(profiled: Callable[..., Any]) -> None:
    document, log, printed = profiled(str(SCRIPTS / "train.py"), "--steps", "10000000", patient=True)
    told = document["capture"]["steady_state"]
    assert told.startswith("Steps were found automatically: a repeating cycle (optimizer steps: SGD.step), seen ")
    assert "3 steps were profiled" in told
    assert told in printed
    assert document["measurement"]["wall"]["count"] >= 3
    assert document["step_count"] == 3
    calls = {row["name"]: row["calls"] for row in document["operators"]}
    assert calls["aten::addmm"] == 3 * 2 * 2  # steps, micro-batches, layers
    assert calls["aten::add_"] == 3 * 4 * 2  # of each parameter: the second micro-batch, and the optimizer
    assert "its finally block ran" in log
    assert "the whole script ran" not in log
    assert document["capture"]["configuration"]["settings"]["arguments"] == "--steps 10000000"


@pytest.mark.torch
def test_a_script_may_run_on_after_its_steps_were_profiled(profiled: Callable[..., Any]) -> None:
    document, log, _ = profiled("--run-on", "--active", "2", str(SCRIPTS / "train.py"), "--steps", "5000")
    assert document["step_count"] == 2
    assert "the whole script ran" in log


@pytest.mark.torch
def test_calls_of_modules_are_steps_where_there_is_no_optimizer(profiled: Callable[..., Any]) -> None:
    document, _, _ = profiled(str(SCRIPTS / "serve.py"))
    assert (
        "a repeating cycle of 3 events (module calls without gradients: Linear, Linear, Linear)"
        in document["capture"]["steady_state"]
    )
    calls = {row["name"]: row["calls"] for row in document["operators"]}
    assert calls["aten::addmm"] == 3 * 3


@pytest.mark.torch
def test_the_first_steps_of_a_short_script_are_labelled_as_cold(profiled: Callable[..., Any]) -> None:
    document, log, _ = profiled(str(SCRIPTS / "train.py"), "--steps", "3", "--fail")
    told = document["capture"]["steady_state"]
    assert "The script was run twice" in told
    assert "The script ended after 3 of them, so the profile is of its first ones, with warm-up" in told
    assert "The script itself failed then (ValueError; the log has more)" in told
    assert "ValueError: the script's own" in log
    assert document["step_count"] == 2
    assert "its finally block ran" in log


@pytest.mark.torch
def test_the_scripts_own_profiler_goes_first(profiled: Callable[..., Any]) -> None:
    document, log, _ = profiled("--run-on", str(SCRIPTS / "own_profiler.py"))
    assert "its own profile was whole" in log
    assert document["step_count"] == 3
    assert document["measurement"]["wall"] is None  # what runs after a profiler is slower
    assert "had started a profiler of its own" in document["measurement"]["benchmark_reason"]


KINDS = {
    "accumulation": ("training", "(optimizer steps: AdamW.step)"),
    "gan": ("training", "a repeating cycle of 2 events (optimizer steps: Adam.step, Adam.step)"),
    "lbfgs": ("training", "(optimizer steps: LBFGS.step)"),
    "scaler": ("training", "(optimizer steps: SGD.step)"),
    "by_hand": ("training", "(module calls: Sequential)"),
    "unheard": ("training", "a repeating cycle of 2 events (module calls: Sequential, Sequential)"),
    "tokens": ("evaluation", "(module calls without gradients: Linear)"),
    "workers": ("training", "(optimizer steps: SGD.step)"),
    "bursts": ("training", "(optimizer steps: SGD.step)"),
    "evaluation_first": ("training", "Also seen: 199 evaluations of "),
}


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_many_kinds_are_found_and_timed_before_any_profiler(kind: str, profiled: Callable[..., Any]) -> None:
    document, log, _ = profiled(str(SCRIPTS / "kinds.py"), kind, patient=kind == "bursts")
    steps, told = KINDS[kind]
    assert document["capture"]["steps"]["kind"] == steps
    assert told in document["capture"]["steady_state"]
    assert "run twice" not in document["capture"]["steady_state"]
    assert document["measurement"]["wall"]["count"] >= 10
    assert document["step_count"] == 3
    # Once; but a new generation, or an evaluation, that begins meanwhile ends that attempt, and there are three.
    assert log.count("profiler_start") <= (3 if kind in ("tokens", "evaluation_first") else 1)
    steady = next(check for check in document["trust"]["checks"] if check["name"] == "steady_steps")
    if kind == "bursts":
        assert steady["verdict"] == "warn"
        assert "took longer and longer" in steady["sentence"]


@pytest.mark.torch
@pytest.mark.parametrize(("generations", "before"), [("20000", 61), ("1", 6)])
def test_tokens_of_a_first_generation_are_not_the_steady_ones(
    generations: str, before: int, profiled: Callable[..., Any]
) -> None:
    """Where there is only one, they are measured in another run of the script, and it is said."""
    document, _, _ = profiled(str(SCRIPTS / "kinds.py"), "tokens", generations)
    assert document["capture"]["steps"]["before"] >= before
    told = document["capture"]["steady_state"]
    assert ("They are tokens of the script's first generation" in told) == (generations == "1")
    assert ("run twice" in told) == (generations == "1")


@pytest.mark.torch
def test_an_evaluation_is_taken_where_no_optimizer_ever_steps(profiled: Callable[..., Any]) -> None:
    """No one knows that before the script has ended; so it is run again."""
    document, log, _ = profiled(str(SCRIPTS / "kinds.py"), "evaluation_only")
    assert document["capture"]["steps"]["kind"] == "evaluation"
    assert "The script was run twice" in document["capture"]["steady_state"]
    assert "the script runs again" in log
    assert document["measurement"]["wall"]["count"] >= 10


@pytest.mark.torch
@pytest.mark.parametrize(
    ("options", "words", "kind"),
    [
        (("--step-kind", "evaluation"), ("evaluation_first",), "evaluation"),
        (("--step-kind", "calls"), ("accumulation",), "calls"),
        (("--step-kind", "annotation:my_step"), ("annotated",), "annotation"),
        (("--step-kind", "operators"), ("functional", "3000"), "operators"),
        ((), ("functional", "3000"), "operators"),
    ],
)
def test_other_steps_can_be_asked_for(
    options: tuple[str, ...], words: tuple[str, ...], kind: str, profiled: Callable[..., Any]
) -> None:
    document, _, _ = profiled(*options, str(SCRIPTS / "kinds.py"), *words)
    assert document["capture"]["steps"]["kind"] == kind
    assert document["step_count"] == 3
    assert (document["measurement"]["wall"] is None) == (kind == "operators")


@pytest.mark.torch
def test_steps_that_a_script_does_not_have_are_no_result(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ("--output-dir", str(tmp_path / "r"), "--step-kind", "replays", str(SCRIPTS / "kinds.py"), "gan", "20")
    done = opscope("profile", *words)
    assert done.returncode == 2
    assert (
        "it has no steps as --step-kind replays asks for; seen were 40 optimizer steps, 100 module calls" in done.stderr
    )


@pytest.mark.torch
def test_a_short_script_is_not_run_twice_where_that_is_forbidden(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ("profile", "--output-dir", str(tmp_path / "r"), "--once", str(SCRIPTS / "train.py"), "--steps", "8")
    done = opscope(*words)
    assert done.returncode == 2
    assert "Without --once it is run again" in done.stderr
    assert (tmp_path / "r" / "raw" / "log_default.txt").read_text().count("the whole script ran") == 1


@pytest.mark.torch
def test_a_clock_alone_says_the_same(profiled: Callable[..., Any]) -> None:
    document, _, printed = profiled("--check-clock", str(SCRIPTS / "kinds.py"), "gan")
    own, wall = document["measurement"]["own_clock"], document["measurement"]["wall"]
    assert own["count"] == wall["count"]
    assert own["median_ns"] > 0
    assert "By a clock alone, in another run of the script, a step takes" in printed


@pytest.mark.torch
@pytest.mark.parametrize("words", [(), ("export",)])
def test_the_trace_of_a_bare_profiler_is_taken(words: tuple[str, ...], tmp_path: Path) -> None:
    """As the founding guide has it: one call under torch.profiler, and the script is over."""
    pytest.importorskip("torch")
    script = str(SCRIPTS / "bare_profiler.py")
    done = opscope("profile", "--output-dir", "r", script, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The script has a profiler of its own" in done.stdout
    document = json.loads((tmp_path / "r" / "profiling_stats_default.json").read_text())
    assert "aten::mm" in {row["name"] for row in document["operators"]}
    assert (tmp_path / "trace.json").exists() == bool(words)  # the script's own file is its own


@pytest.mark.torch
def test_launches_of_a_triton_kernel_have_the_sizes_of_its_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch itself needs a GPU (tests/gpu); what is recorded of it does not."""
    torch, jit = pytest.importorskip("torch"), pytest.importorskip("triton.runtime.jit")
    launched = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        launched.append((self.__name__, len(args), grid, warmup, named))

    monkeypatch.setattr(jit.JITFunction, "run", run)
    record_triton_launches()

    @jit.jit
    def add_columns(x, y, rows, tile):  # type: ignore[no-untyped-def]
        pass

    class Unprintable:
        def __repr__(self) -> str:
            raise AssertionError("a tensor's text waits for the device")

    class Descriptor(Unprintable):
        def __init__(self, base: Any) -> None:
            self.base = base

    x, y = torch.ones(4, 8), torch.ones(8, dtype=torch.bfloat16)
    add_columns[(1, 2)](x, y, 4, tile=16)  # without a profiler: as it was
    with torch.profiler.profile(record_shapes=True) as profiler:
        add_columns[(3,)](x, y, 4, tile=None)
        add_columns.run(x, y, 4, grid=(3,), warmup=True, tile=16)
        add_columns[(4,)]((x, y), Descriptor(x), 2**64, tile=Unprintable())
    assert [one[2] for one in launched] == [(1, 2), (3,), (3,), (4,)]
    assert [one[3] for one in launched] == [False, False, True, False]
    assert launched[0][4] == {"tile": 16}
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    operators = read(tmp_path / "trace.json").operators
    row, other = operators.filter(pl.col("name") == "triton::add_columns").iter_rows(named=True)
    assert json.loads(row["input_dims"]) == [[4, 8], [8], [], []]
    assert json.loads(row["input_types"])[:2] == ["float", "c10::BFloat16"]
    assert json.loads(row["concrete_inputs"])[2] == "4"
    assert json.loads(other["input_dims"]) == [[4, 8], [8], [4, 8], [], []]  # a tuple's, and a descriptor's base


def test_a_package_that_is_called_triton_and_is_another_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    for name in [name for name in sys.modules if name.startswith("triton.")]:
        monkeypatch.delitem(sys.modules, name)
    record_triton_launches()


@pytest.mark.torch
def test_the_last_lines_of_a_script_that_failed_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse, torch\np = argparse.ArgumentParser()\np.add_argument('--x', required=True)\np.parse_args()\n"
    )
    done = opscope("profile", "--output-dir", str(tmp_path / "r"), str(script), "--y", "1")
    assert done.returncode == 1
    assert "  | train.py: error: the following arguments are required: --x" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.torch
def test_the_last_lines_of_a_script_of_which_nothing_was_recorded_are_shown(tmp_path: Path) -> None:
    """They say what it lacks, as examples for several GPUs do. What it printed in the first run is not shown again."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint('Unable to locate 2 GPUs. Exiting.')\n")
    done = opscope("profile", "--output-dir", str(tmp_path / "r"), str(script))
    assert done.returncode == 1
    assert "records no operator and no device activity" in done.stderr
    assert done.stderr.count("  | Unable to locate 2 GPUs. Exiting.") == 1


@pytest.mark.torch
def test_a_script_that_ends_before_anything_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = opscope("profile", "--output-dir", str(tmp_path), str(SCRIPTS / "train.py"), "--unknown", "1")
    assert done.returncode == 1
    assert "train.py ended with exit code 2 before anything was measured" in done.stderr
    empty = tmp_path / "empty.py"
    empty.write_text("print('nothing')\n")
    done = opscope("profile", "--output-dir", str(tmp_path / "empty"), str(empty))
    assert done.returncode == 2
    assert "PyTorch did nothing in it that could be recorded" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "cpu", "train.py"), "--device cannot be applied to a script"),
        (("--warmup", "2", "train.py"), "--warmup cannot be applied to a script"),
        (("--in-process", "train.py"), "--in-process"),
        (("--batch-sizes", "4", "train.py"), "--batch-sizes cannot be applied to a script"),
        (("--run-on", "bert"), "--run-on is for scripts"),
        (("--once", "bert"), "--once is for scripts"),
        (("--step-kind", "sometimes", "train.py"), "takes training, calls"),
        (("--step-kind", "annotation:", "train.py"), "takes training, calls"),
        (("bert", "extra"), "only a script takes arguments"),
        (("missing.py",), "there is no file missing.py"),
    ],
)
def test_options_that_a_script_has_no_use_for_are_refused(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = opscope("profile", "--output-dir", str(tmp_path / "out"), *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.torch
def test_the_light_pass_of_a_script_comes_before_the_one_with_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a warm-up, and with one cycle more. (Without a GPU a pass of host activities stands for the light one.)"""
    torch = pytest.importorskip("torch")
    from opscope.collect.script.passes import Passes
    from opscope.collect.torch_profiler import TorchProfiler

    monkeypatch.setattr(TorchProfiler, "of_device_only", lambda self: self)
    passes = Passes(CaptureOptions(schedule=Schedule(active=2)), tmp_path / "names.json", tmp_path / "light.json")
    passes.begin()
    done = []
    for number in range(7):
        torch.ones(8).add(number)
        done.append(passes.cycle(number))
    assert done == [False] * 6 + [True]
    assert passes.durations_ns == [5, 6]
    assert passes.light is not None
    assert passes.trace is not None
    for file, steps in ((passes.light.file, 3), (passes.trace.file, 2)):
        assert analyze(read(tmp_path / file), as_marked=True).step_count == steps
    passes.begin()  # a repetition that breaks off in the light pass leaves nothing
    assert not passes.usable
    passes.abandon()
    assert not passes.running
    assert passes.light is None
