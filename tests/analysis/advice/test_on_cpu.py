"""Findings on steps that ran on a CPU, by hand: what fills them, and what is silent where nothing is to be said."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from opscope.analysis.analyzed import analyze
from opscope.analysis.measured import Measured
from opscope.analysis.trust.step_time import step_time
from opscope.documents.findings import Finding, Rule
from opscope.record.capture import Benchmark, Between
from tests.kineto import KinetoTrace


class Trace(KinetoTrace):
    """Two steps of a millisecond; slices from when to when."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(2):
            self.step(number, number * 1_000_000, 1_000_000)

    def range(self, name: str, begin: int, end: int) -> None:
        self.annotation(name, begin, end - begin)

    def runs(self, name: str, begin: int, end: int, types: Sequence[str] = ("float",)) -> None:
        self.operator(name, begin, end - begin, **{"Input Dims": [[4]] * len(types), "Input type": list(types)})

    def frame(self, name: str, begin: int, end: int) -> None:
        self.slice("python_function", name, begin, end - begin)


def findings(built: KinetoTrace, tmp_path: Path) -> dict[str, Finding]:
    measured = Measured(analyze(built.write(tmp_path / "t.json")))
    return {finding.rule: finding for finding in measured.findings}


@pytest.mark.parametrize(
    ("iterator", "todo"),
    [
        ("_SingleProcessDataLoaderIter", "load batches in worker processes"),
        ("_MultiProcessingDataLoaderIter", "give the loader more workers"),
    ],
)
def test_a_step_that_loads_names_the_loader(iterator: str, todo: str, tmp_path: Path) -> None:
    built = Trace()
    for number in range(2):
        begin = number * 1_000_000
        built.range(f"enumerate(DataLoader)#{iterator}.__next__", begin, begin + 650_000)
        built.runs("aten::mm", begin + 700_000, begin + 1_000_000)
    found = findings(built, tmp_path)
    loading = found[Rule.INPUT_PIPELINE]
    assert "650.0 us of a step in a DataLoader" in loading.title
    assert loading.todo == todo
    assert (loading.saving_ns.low, loading.saving_ns.high) == (0, 650_000)
    assert loading.is_first
    assert Rule.HOST_WORK not in found


def test_a_range_in_which_no_operator_runs_is_named_and_its_operators_are_not_counted(tmp_path: Path) -> None:
    built = Trace()
    for number in range(2):
        begin = number * 1_000_000
        built.range("tokenize", begin, begin + 800_000)
        built.runs("aten::add", begin + 100_000, begin + 200_000)  # within the range
        built.runs("aten::mm", begin + 800_000, begin + 1_000_000)
    found = findings(built, tmp_path)[Rule.HOST_WORK]
    assert "`tokenize` takes 700.0 us of a step in which no operator runs" in found.title
    assert found.where.annotation == "tokenize"
    assert found.saving_ns.high == 700_000


def test_opscopes_own_ranges_between_steps_are_no_ranges_of_the_users(tmp_path: Path) -> None:
    built = Trace()
    for number in range(2):
        begin = number * 1_000_000
        built.range(f"opscope: after training {number}", begin, begin + 1_000_000)
        built.runs("aten::mm", begin + 600_000, begin + 1_000_000)
    found = findings(built, tmp_path)[Rule.HOST_WORK]
    assert "Nothing was recorded on the main thread for 600.0 us of a step" in found.title


def test_stacks_that_were_recorded_are_not_asked_for_again(tmp_path: Path) -> None:
    built = Trace()
    for number in range(2):
        begin = number * 1_000_000
        built.frame("json/__init__.py(1): dumps", begin, begin + 100_000)
        built.range("tokenize", begin, begin + 800_000)
        built.runs("aten::mm", begin + 800_000, begin + 1_000_000)
    found = findings(built, tmp_path)[Rule.HOST_WORK]
    assert found.where.annotation == "tokenize"
    assert "stacks" not in found.action
    assert "record_function" in found.action


def test_a_line_of_the_users_python_is_named_with_what_it_takes_itself(tmp_path: Path) -> None:
    built = Trace()
    built.frame("train.py(3): <module>", -10_000, 2_100_000)
    for number in range(2):
        begin = number * 1_000_000
        built.frame("train.py(9): tokenize", begin, begin + 600_000)
        built.frame("json/__init__.py(1): dumps", begin + 100_000, begin + 500_000)
        built.runs("aten::mm", begin + 500_000, begin + 550_000)  # in tokenize, and not of its own time
        built.runs("aten::mm", begin + 650_000, begin + 1_000_000)
    found = findings(built, tmp_path)[Rule.HOST_WORK]
    assert found.where.python == "train.py(9): tokenize"
    assert "takes 550.0 us of a step in Python" in found.title


def test_code_at_the_top_level_has_no_line(tmp_path: Path) -> None:
    """The frame was open when recording began: its line is where it stood then."""
    built = Trace()
    built.frame("train.py(11): <module>", -10_000, 2_100_000)
    for number in range(2):
        built.runs("aten::mm", number * 1_000_000 + 600_000, (number + 1) * 1_000_000)
    found = findings(built, tmp_path)[Rule.HOST_WORK]
    assert (
        found.title == "Code at the top level of `train.py` takes 600.0 us of a step in Python, outside of any operator"
    )
    assert found.where.python is None
    assert "record_function" in found.action


def test_time_of_which_nothing_is_recorded_is_said(tmp_path: Path) -> None:
    built = Trace()
    for number in range(2):
        built.runs("aten::mm", number * 1_000_000 + 600_000, (number + 1) * 1_000_000)
    found = findings(built, tmp_path)[Rule.HOST_WORK]
    assert "Nothing was recorded on the main thread for 600.0 us of a step" in found.title
    assert "--with-stack" in found.action


def test_float64_short_operators_and_items(tmp_path: Path) -> None:
    built = Trace()
    for number in range(2):
        begin = number * 1_000_000
        built.runs("aten::mm", begin, begin + 300_000, types=["double", "double"])
        for call in range(100):
            at = begin + 300_000 + call * 7_000
            built.runs("aten::item", at, at + 6_000)
    found = findings(built, tmp_path)
    assert found[Rule.DOUBLE_PRECISION].saving_ns.high == 150_000
    assert "item() is called 100 times a step" in found[Rule.SCALAR_READS].title
    assert "100 short operator calls a step take 600.0 us" in found[Rule.DISPATCH_BOUND].title


@pytest.mark.parametrize("trains", [False, True])
def test_dropout_is_a_finding_where_nothing_goes_backward(tmp_path: Path, *, trains: bool) -> None:
    built = Trace()
    for number in range(2):
        begin = number * 1_000_000
        built.runs("aten::dropout", begin, begin + 200_000)
        built.runs("aten::bernoulli_", begin + 10_000, begin + 150_000)
        built.runs("aten::mm", begin + 200_000, begin + 900_000)
        if trains:
            built.runs("autograd::engine::evaluate_function: MmBackward0", begin + 900_000, begin + 1_000_000)
    found = findings(built, tmp_path)
    assert (Rule.ACTIVE_DROPOUT in found) is not trains
    if not trains:
        assert found[Rule.ACTIVE_DROPOUT].saving_ns.high == 140_000


def test_a_step_full_of_products_has_nothing_to_be_said(tmp_path: Path) -> None:
    built = Trace()
    for number in range(2):
        built.runs("aten::mm", number * 1_000_000, (number + 1) * 1_000_000)
    measured = Measured(analyze(built.write(tmp_path / "t.json")))
    assert measured.findings == ()
    assert measured.findings_reason is not None
    assert "lines of Python were not recorded" in measured.findings_reason


def test_collections_of_garbage_that_were_measured_are_a_finding(tmp_path: Path) -> None:
    """Measured with the unprofiled steps, beside the trace: 2 ms in each tenth step of 1 ms."""
    built = Trace()
    for number in range(2):
        built.runs("aten::mm", number * 1_000_000, (number + 1) * 1_000_000)
    benchmark = Benchmark(
        warmup_steps=0,
        wall_ns=(*[1_000_000] * 9, 3_000_000) * 2,
        event_ns=None,
        clocks=None,
        collecting_ns=(*[0] * 9, 2_000_000) * 2,
    )
    step = step_time(benchmark, None)
    assert step is not None
    assert (step.ns, step.collecting_ns) == (1_200_000, 200_000)
    analysis = analyze(built.write(tmp_path / "t.json"))
    evidence = replace(
        analysis.evidence_with(steps=2, wall_ns=step.ns, ran_on_gpu=False), collecting_ns=step.collecting_ns
    )
    (found,) = analysis.advice_on_cpu(evidence, None, None).findings
    assert found.rule == Rule.GARBAGE_COLLECTION
    assert found.title == "Python collects garbage for 200.0 us of a step"
    assert found.saving_ns.high == 200_000


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize(
    ("evaluating_ns", "title"),
    [
        ((4_000_000, 2_000_000), "Evaluation between the steps takes 500.0 us of a step"),
        # One call takes no time of its own: what else is there may be a checkpoint.
        ((4_000_000, 0), "Evaluation and other work between the steps takes 500.0 us of a step"),
        ((None, None), "Something else between the steps takes 500.0 us of a step"),
    ],
)
def test_what_comes_between_the_steps_is_a_finding(
    evaluating_ns: tuple[int | None, ...], title: str, on_gpu: bool, tmp_path: Path
) -> None:
    """Measured without the profiler: 20 steps of 1 ms, and twice something else for 5 ms."""
    built = Trace()
    for number in range(2):
        begin = number * 1_000_000
        built.runs("aten::mm", begin, begin + 1_000_000)
        if on_gpu:
            built.launched_kernel("gemm", (begin + 1_000, 5_000), (begin + 10_000, 980_000))
    benchmark = Benchmark(
        warmup_steps=0,
        wall_ns=(1_000_000,) * 20,
        event_ns=None,
        clocks=None,
        between=tuple(Between(5_000_000, 0.0, one is not None, one or 0) for one in evaluating_ns),
    )
    step = step_time(benchmark, None)
    assert step is not None
    assert (step.ns, step.between_ns) == (1_500_000, 500_000)
    analysis = analyze(built.write(tmp_path / "t.json"))
    evidence = replace(
        analysis.evidence_with(steps=2, wall_ns=step.ns, ran_on_gpu=on_gpu),
        between_ns=step.between_ns,
        between=step.between,
        typical_ns=step.typical_ns,
    )
    advice = analysis.advice_with(evidence, None) if on_gpu else analysis.advice_on_cpu(evidence, None, None)
    found = next(finding for finding in advice.findings if finding.rule == Rule.BETWEEN_STEPS)
    assert found.title == title
    # Done half as often, it costs half; no more than all of it can go.
    assert (found.saving_ns.low, found.saving_ns.high) == (250_000, 500_000)
    assert found.is_first
    assert (found.todo == "evaluate less often") is title.startswith("Evaluation between")


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_few_long_steps_are_a_finding_though_their_cause_is_not_known(on_gpu: bool, tmp_path: Path) -> None:
    """Measured without the profiler: 40 steps of 1 ms, but every tenth of 21 ms."""
    built = Trace()
    for number in range(2):
        begin = number * 1_000_000
        built.runs("aten::mm", begin, begin + 1_000_000)
        if on_gpu:
            built.launched_kernel("gemm", (begin + 1_000, 5_000), (begin + 10_000, 980_000))
    wall_ns = (*[1_000_000] * 9, 21_000_000) * 4
    step = step_time(Benchmark(warmup_steps=0, wall_ns=wall_ns, event_ns=None, clocks=None), None)
    assert step is not None
    assert step.sentence is not None
    assert "4 of 40 steps (every 10th) take 21.00 ms on average: 70.0 % of the time" in step.sentence
    analysis = analyze(built.write(tmp_path / "t.json"))
    evidence = replace(
        analysis.evidence_with(steps=2, wall_ns=step.ns, ran_on_gpu=on_gpu), long=step.long, typical_ns=step.typical_ns
    )
    advice = analysis.advice_with(evidence, None) if on_gpu else analysis.advice_on_cpu(evidence, None, None)
    found = next(finding for finding in advice.findings if finding.rule == Rule.LONG_STEPS)
    assert found.title == "4 of 40 steps (every 10th) take 21.00 ms on average"
    # They take 20 ms longer than the others: 2 ms of each step.
    assert (found.saving_ns.low, found.saving_ns.high) == (0, 2_000_000)
