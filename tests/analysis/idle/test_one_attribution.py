"""The cause of idle time: the same in the document, in the verdict and in the findings, whatever was recorded."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import analyze
from opscope.analysis.idle.steps import CAUSES
from opscope.analysis.measured import Measured
from opscope.documents.findings import Rule
from opscope.documents.verdict import BoundKind
from opscope.readers.reading import read
from tests.budget import examples
from tests.kineto import KinetoTrace

US = 1_000
WAITS = {Rule.BLOCKING_READ, Rule.BLOCKING_COPY, Rule.EXPLICIT_SYNC, Rule.BLOCKING_CALL}
RULES = {
    # Where a wait of the host emptied the queue, it is the wait that can be left out: launches in a graph come as late.
    BoundKind.DISPATCH: {Rule.DISPATCH_BOUND, *WAITS},
    BoundKind.BLOCKING: WAITS,
    BoundKind.ALLOCATION: {Rule.ALLOCATOR_CHURN},
    BoundKind.HOST_WORK: {Rule.HOST_WORK},
    BoundKind.INPUT: {Rule.INPUT_PIPELINE},
    BoundKind.COLD_START: {Rule.COLD_START},
}
CALLS = ("cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc", "cudaFree", "cudaEventQuery", "cuModuleLoadData")
OPERATORS = ("aten::mul", "aten::sort", "aten::item", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
PAUSE = st.sampled_from((0, 5, 20, 90, 150, 600, 3_000))
EVENT = st.one_of(
    st.tuples(st.just("kernel"), st.integers(1, 30), st.sampled_from((2, 10, 80, 400)), PAUSE, st.integers(0, 60)),
    st.tuples(st.just("call"), st.sampled_from(CALLS), st.sampled_from((3, 40, 200, 4_000)), PAUSE, st.just(0)),
    st.tuples(st.just("operator"), st.sampled_from(OPERATORS), st.sampled_from((3, 40, 2_000)), PAUSE, st.just(0)),
)


def trace_of(events: list[tuple[str, object, int, int, int]]) -> KinetoTrace:
    """Make a trace of one thread and one stream, whose kernels begin in order."""
    trace, now, free = KinetoTrace(), 0, 0
    for kind, what, length, pause, delay in [("kernel", 5, 10, 5, 2), *events, ("kernel", 5, 10, 5, 2)]:
        if kind == "kernel":
            took = int(str(what)) * US
            free = max(free, now + took + delay * US)
            trace.operator("aten::mul", now, took + 4 * US)
            trace.launched_kernel("void mul_kernel(float*)", (now + US, took), (free, length * US))
            free, now = free + length * US, now + took + 4 * US
        elif kind == "call":
            trace.launch(now, length * US, name=str(what))
            now += length * US
            if "Synchronize" in str(what):
                now = max(now, free)
        elif str(what).startswith("aten"):
            trace.operator(str(what), now, length * US)
            now += length * US
        else:
            trace.annotation(str(what), now, length * US)
            now += length * US
        now += pause * US
    return trace


@pytest.mark.parametrize(("loading_us", "cause"), [(3, "host work"), (80, "host work"), (120, "data loading")])
def test_waits_are_for_data_where_most_of_them_is_loading(tmp_path: Path, loading_us: int, cause: str) -> None:
    """The host pauses for 200 us, and loads data in the middle of that."""
    rest = (200 - loading_us) // 2
    events = [
        ("call", "cudaStreamSynchronize", 3, rest, 0),
        ("operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", loading_us, rest, 0),
    ]
    analysis = analyze(read(trace_of(events).write(tmp_path / "t.json")))
    (device,) = analysis.devices
    idle = {str(found): time for found, time in device.idle.by_cause().items() if time}
    assert max(idle, key=idle.__getitem__) == cause
    assert Measured(analysis).bound.idle_cause == cause


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(EVENT, min_size=1, max_size=25))
def test_document_verdict_and_findings_name_one_cause(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, object, int, int, int]]
) -> None:
    analysis = analyze(read(trace_of(events).write(tmp_path_factory.mktemp("t") / "t.json")))
    measured = Measured(analysis)
    (device,) = analysis.devices
    idle = device.idle.by_cause()
    assert sum(idle.values()) == device.idle_ns
    by_kind = {kind: sum(idle[cause] for cause in causes) for kind, causes in CAUSES.items()}
    assert analysis.waits is not None
    assert {kind: time for kind, time in by_kind.items() if time} == analysis.waits.by_kind
    bound = measured.bound
    if device.idle_ns and max(by_kind.values()) > 0:
        largest = {str(cause) for kind in by_kind if by_kind[kind] == max(by_kind.values()) for cause in CAUSES[kind]}
        assert bound.idle_cause in largest
    assert len(bound.sentence.split()) <= 25
    if bound.kind in RULES:
        assert RULES[BoundKind(bound.kind)] & {finding.rule for finding in measured.findings}
    # There is one stream alone: what its queued work waits for is nothing that the program could leave out.
    assert Rule.STREAM_DEPENDENCY not in {finding.rule for finding in measured.findings}
