"""Recorded steps that are unlike the others, on steps of 2 ms worked out by hand. Times in nanoseconds."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.measured import Measured
from opscope.analysis.part import Part, read_part
from opscope.documents.verdict import BoundKind
from opscope.readers.reading import read
from opscope.report.brief import first_screen
from tests.budget import examples
from tests.kineto import KinetoTrace

US, MS = 1_000, 1_000_000
LENGTH = 2 * MS
WORK = 1_900 * US


class Steps:
    """Steps one after the other, each with one kernel of 1.9 ms for which the host waits."""

    def __init__(self) -> None:
        self.trace, self.now, self.count = KinetoTrace(), 0, 0

    def add(self, *, more: int = 0, within: str | None = None, work: int = WORK) -> None:
        """Add a step.

        Args:
            more: how much longer it takes, after its work.
            within: the range in which it spends that.
            work: how long the kernel takes.
        """
        begin, self.count = self.now, self.count + 1
        self.trace.step(self.count, begin, LENGTH - WORK + work + more)
        self.trace.operator("aten::mm", begin + 5 * US, 10 * US)
        self.trace.launched_kernel("gemm", (begin + 8 * US, 4 * US), (begin + 20 * US, work))
        self.trace.launch(begin + 20 * US, work + 2 * US, name="cudaDeviceSynchronize")
        if within is not None:
            self.trace.annotation(within, begin + work + 30 * US, more)
        self.now = begin + LENGTH - WORK + work + more + 10 * US

    def analyzed(self, path: Path) -> Analysis:
        return analyze(self.trace.write(path))


def steps_with(path: Path, *longer: int, count: int = 5, within: str = "save_checkpoint") -> Analysis:
    steps = Steps()
    for number in range(1, count + 1):
        if number in longer:
            steps.add(more=500 * MS, within=within)
        else:
            steps.add()
    return steps.analyzed(path)


def test_a_step_that_saves_a_checkpoint_stands_apart(tmp_path: Path) -> None:
    analysis = steps_with(tmp_path / "t.json", 3)
    (odd,) = analysis.odd_steps
    assert (odd.number, odd.span_ns, odd.typical_ns) == (3, 502 * MS, 2 * MS)
    assert (odd.cause, odd.where) == ("host work", "save_checkpoint")
    assert odd.beyond_ns == pytest.approx(500 * MS, rel=1e-3)
    assert odd.sentence == (
        "Step 3 is left out: 502.0 ms, 500.1 ms more host work than the others, in `save_checkpoint`."
    )
    measured = Measured(analysis)
    assert measured.bound.kind is BoundKind.DEVICE
    assert measured.bound.share_low == pytest.approx(0.95)
    screen = first_screen(measured)
    assert screen.step is not None
    assert (screen.step.ns, screen.step.steps, screen.step.sentence) == (2 * MS, 4, odd.sentence)
    # Tables and lists are of the same steps, so that sums over the number of steps are of one; checks of all of them.
    assert analysis.accounting.activities_ns == 4 * WORK
    assert [step.number for step in analysis.steps] == [1, 2, 4, 5]
    assert analysis.operators["calls"].to_list() == [4]
    assert analysis.trust.verdict == "pass"
    assert measured.step_count == 4


def test_a_step_with_far_more_work_stands_apart(tmp_path: Path) -> None:
    """Kernels are tuned in the first step."""
    steps = Steps()
    steps.trace.annotation("autotuning", 1 * US, 50 * US)
    steps.add(work=40 * MS)
    for _ in range(2):
        steps.add()
    (odd,) = steps.analyzed(tmp_path / "t.json").odd_steps
    assert (odd.number, odd.cause, odd.where) == (1, "device work", "autotuning")
    assert odd.beyond_ns == pytest.approx(40 * MS - WORK)


def test_without_a_device_the_length_alone_tells(tmp_path: Path) -> None:
    trace, begin = KinetoTrace(), 0
    for number in range(1, 5):
        length = 100 * MS if number == 2 else LENGTH
        trace.step(number, begin, length)
        trace.operator("aten::mm", begin, LENGTH)
        begin += length
    analysis = analyze(trace.write(tmp_path / "t.json"))
    (odd,) = analysis.odd_steps
    assert odd.sentence == "Step 2 is left out: 100.0 ms."
    step = Measured(analysis).step_time
    assert step is not None
    assert step.ns == LENGTH


@pytest.mark.parametrize(
    ("longer", "count", "within"),
    [
        ((2,), 2, "save_checkpoint"),  # of two steps neither is the typical one
        ((1, 3), 5, "save_checkpoint"),  # what comes in two of five belongs to what a step takes
        ((4, 8, 12), 40, "evaluate"),  # and so does what comes in every fourth
        ((3,), 5, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),  # waits for data come in bursts
    ],
)
def test_what_recurs_belongs_to_a_step(tmp_path: Path, longer: tuple[int, ...], count: int, within: str) -> None:
    analysis = steps_with(tmp_path / "t.json", *longer, count=count, within=within)
    assert analysis.odd_steps == ()
    assert analysis.step_count == count
    assert Measured(analysis).bound.kind is (BoundKind.INPUT if "DataLoader" in within else BoundKind.HOST_WORK)


def test_a_step_that_is_asked_for_is_shown(tmp_path: Path) -> None:
    steps_with(tmp_path / "t.json", 3)
    part = analyze(read_part(tmp_path / "t.json", Part(steps=(3, 3))))
    assert part.odd_steps == ()
    assert (part.step_count, part.window.duration_ns) == (1, 502 * MS)
    every = analyze(read(tmp_path / "t.json"), as_marked=True)
    assert every.step_count == 5
    assert every.bound.kind is BoundKind.HOST_WORK


def test_several_odd_steps_are_one_sentence(tmp_path: Path) -> None:
    analysis = steps_with(tmp_path / "t.json", 3, 20, count=40)
    step = Measured(analysis).step_time
    assert step is not None
    assert step.sentence == (
        "2 of 40 steps are left out, 1.004 s in all; the longest is step 3: 502.0 ms, 500.1 ms more host work than the "
        "others, in `save_checkpoint`."
    )


def test_steps_that_cannot_be_parted_stay(tmp_path: Path) -> None:
    """A step of another thread begins within the long one; and a device that works behind the host's steps."""
    steps = Steps()
    for number in range(6):
        if number == 2:
            steps.trace.annotation("ProfilerStep#10", steps.now + 100 * MS, MS, tid=7)
        steps.add(more=500 * MS if number == 2 else 0, within="save_checkpoint" if number == 2 else None)
    assert steps.analyzed(tmp_path / "a.json").odd_steps == ()
    trace, begin, busy = KinetoTrace(), 0, 20 * US
    for number in range(16):  # eight steps run ahead of the device, the long one waits for their work, eight wait
        length = 100 * MS if number == 8 else MS if number < 8 else 3 * MS
        trace.step(number, begin, length)
        trace.operator("aten::mm", begin + 5 * US, 10 * US)
        trace.launched_kernel("gemm", (begin + 8 * US, 4 * US), (max(busy, begin + 20 * US), 2 * MS))
        busy = max(busy, begin + 20 * US) + 2 * MS
        begin += length
    assert analyze(trace.write(tmp_path / "b.json")).odd_steps == ()


@settings(deadline=None, max_examples=examples(10))
@given(position=st.integers(1, 6), more=st.integers(3 * MS, 900 * MS))
def test_figures_are_those_of_the_trace_without_it(
    tmp_path_factory: pytest.TempPathFactory, position: int, more: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    odd, plain = Steps(), Steps()
    for number in range(1, 7):
        if number == position:
            odd.add(more=more, within="evaluation")
        else:
            odd.add()
            plain.add()
    with_it, without = Measured(odd.analyzed(folder / "a.json")), Measured(plain.analyzed(folder / "b.json"))
    assert [one.number for one in with_it.analysis.odd_steps] == [position]
    first, second = with_it.bound, without.bound
    assert (first.kind, first.share_low, first.idle_cause) == (second.kind, second.share_low, second.idle_cause)
    # The first step of a recording follows no wait of the host.
    assert first.share_high == pytest.approx(second.share_high, abs=0.01)
    assert [one.title for one in with_it.findings] == [one.title for one in without.findings]
    assert with_it.step_time is not None
    assert without.step_time is not None
    assert with_it.step_time.ns == without.step_time.ns
