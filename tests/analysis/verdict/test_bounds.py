"""What bounds a step, on steps of 10 ms worked out by hand; times in nanoseconds."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.verdict.bounds import bound_of, waiting_per_step
from opscope.documents.verdict import Bound, BoundKind
from opscope.readers.reading import read
from tests.conftest import DATA
from tests.kineto import KinetoTrace

US, MS = 1_000, 1_000_000
STEP = 10 * MS
Analyze = Callable[[KinetoTrace], Analysis]


def step() -> KinetoTrace:
    trace = KinetoTrace()
    trace.step(1, 0, STEP)
    return trace


def busy_until(trace: KinetoTrace, end: int, begin: int = 10 * US) -> None:
    """One kernel, launched just before it begins; the host waits for it."""
    trace.operator("aten::mm", begin - 9 * US, 8 * US)
    trace.launched_kernel("gemm", (begin - 5 * US, 2 * US), (begin, end - begin))
    trace.launch(begin, end - begin + 2 * US, name="cudaDeviceSynchronize")


def dispatching(trace: KinetoTrace, begin: int, end: int, *, kernel: int = 2 * US) -> None:
    """An operator with a short kernel every 20 us."""
    for start in range(begin, end, 20 * US):
        trace.operator("aten::add", start, 18 * US)
        trace.launched_kernel("add", (start + 8 * US, 4 * US), (start + 14 * US, kernel))


def of(analysis: Analysis, wall: float | None = None) -> Bound:
    return analysis.bound_with(steps=1, wall_ns=wall, ran_on_gpu=True)


def test_a_device_that_is_busy_under_the_profiler_is_so_without(analyzed: Analyze) -> None:
    trace = step()
    busy_until(trace, 9 * MS)
    bound = of(analyzed(trace))
    assert bound.kind is BoundKind.DEVICE
    assert bound.share_low == pytest.approx(0.899)
    assert bound.share_high == 1.0


@pytest.mark.parametrize(
    ("recorded", "high"),
    [(None, 0.1 * 2.8), ({"Input Dims": [[2, 2]], "Input type": ["float"]}, 0.1 * 2.8)],
)
def test_the_range_follows_from_what_was_recorded(
    analyzed: Analyze, recorded: dict[str, object] | None, high: float
) -> None:
    trace = step()
    dispatching(trace, 0, STEP)
    trace.operator("aten::add", STEP - US, 500, **(recorded or {}))
    bound = of(analyzed(trace))
    assert bound.kind is BoundKind.DISPATCH
    assert bound.share_low == pytest.approx(0.1)
    assert bound.share_high == pytest.approx(high, rel=1e-3)
    assert "faster kernels do not" not in bound.evidence


def test_a_step_that_may_be_either_is_unknown_until_it_is_timed(analyzed: Analyze) -> None:
    trace = step()
    dispatching(trace, 0, STEP, kernel=12 * US)
    analysis = analyzed(trace)
    assert of(analysis).kind is BoundKind.UNKNOWN
    assert "--step-time" in of(analysis).sentence
    busy, starved = of(analysis, 6.2 * MS), of(analysis, 10 * MS)
    assert (busy.kind, busy.share_low) == (BoundKind.DEVICE, pytest.approx(6 / 6.2, rel=2e-3))
    assert (starved.kind, starved.share_low, starved.share_high) == (BoundKind.DISPATCH, 0.5994, 0.5994)
    assert "faster kernels do not" in starved.evidence


@pytest.mark.parametrize(
    ("computing", "kind", "says"),
    [
        (7 * MS, BoundKind.DEVICE, "of the profiled step, then host work (28.0 %): faster or fewer kernels help most."),
        (6 * MS, BoundKind.HOST_WORK, "For 38.0 % of the profiled step the device waits for the host's other work."),
    ],
)
def test_the_largest_part_is_the_verdict_where_waiting_counts_twice(
    analyzed: Analyze, computing: int, kind: BoundKind, says: str
) -> None:
    """Waiting can be taken away, computing hardly by half: 2.8 ms beside 7.2 are the next part, 3.8 beside 6.2 more."""
    trace = step()
    busy_until(trace, computing)
    busy_until(trace, 9_990 * US, 9_800 * US)
    bound = of(analyzed(trace))
    assert bound.kind is kind
    assert says in bound.sentence


def test_a_wait_that_a_faster_host_may_hide_is_the_verdict_with_its_doubt(analyzed: Analyze) -> None:
    """Data are loaded for 3 ms while nothing is queued: a host that launches faster could load while kernels run."""
    trace = step()
    dispatching(trace, 0, 4_400 * US, kernel=19 * US)
    trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 4_450 * US, 3_000 * US)
    dispatching(trace, 7_460 * US, STEP, kernel=10 * US)
    bound = of(analyzed(trace))
    assert bound.kind is BoundKind.INPUT
    assert bound.sentence.startswith("For 30.5 % of the profiled step (")
    assert " unprofiled) the device waits for data to be loaded" in bound.sentence


def test_the_hosts_other_work_is_named(analyzed: Analyze) -> None:
    trace = step()
    busy_until(trace, 1 * MS)
    busy_until(trace, 9900 * US, 9 * MS)
    bound = of(analyzed(trace))
    assert bound.kind is BoundKind.HOST_WORK
    # The host's other work of 8 ms takes as long without the profiler, and begins with an empty queue.
    assert bound.share_high == pytest.approx(1.89 / (1.89 + 8.0), rel=0.01)


@pytest.mark.parametrize("by_stack", [False, True])
def test_loading_data_is_told_from_other_work(analyzed: Analyze, by_stack: bool) -> None:
    trace = step()
    busy_until(trace, 1 * MS)
    if by_stack:
        trace.slice("python_function", "torch/utils/data/dataloader.py(740): __next__", 1_100 * US, 7_500 * US)
    else:
        trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1_100 * US, 7_500 * US)
    busy_until(trace, 9900 * US, 9 * MS)
    assert of(analyzed(trace)).kind is BoundKind.INPUT


@pytest.mark.parametrize(
    ("name", "cause", "says", "rule"),
    [
        ("_compile.compile_inner (dynamo_timed)", "compilation", "torch.compile to compile", "recompilation"),
        # A warm-up of the compiler's is not one of the program's.
        ("AsyncCompile.warm_up (dynamo_timed)", "compilation", "torch.compile to compile", "recompilation"),
        ("TorchDynamo Cache Lookup", "guard checks", "guards of compiled code to be checked", "host_work"),
    ],
)
def test_what_torch_compile_does_has_a_cause_of_its_own(
    analyzed: Analyze, name: str, cause: str, says: str, rule: str
) -> None:
    trace = step()
    busy_until(trace, 1 * MS)
    trace.annotation(name, 1_100 * US, 8_600 * US)
    busy_until(trace, 9900 * US, 9_800 * US)
    analysis = analyzed(trace)
    bound = of(analysis)
    assert (bound.kind, bound.idle_cause) == (BoundKind.HOST_WORK, cause)
    assert bound.sentence.endswith(f"% of the profiled step the device waits for {says}.")
    assert analysis.findings[0].rule == rule
    assert not any("move that work out of the step" in finding.action for finding in analysis.findings)


def test_the_compilers_time_is_not_that_of_all_other_work(analyzed: Analyze) -> None:
    trace = step()
    busy_until(trace, 1 * MS)
    trace.annotation("_compile.compile_inner (dynamo_timed)", 1_100 * US, 5 * MS)
    busy_until(trace, 6_300 * US, 6_200 * US)
    busy_until(trace, 9900 * US, 9_800 * US)
    sentence = of(analyzed(trace)).sentence
    assert sentence.endswith("the device waits for the host's other work, mostly compilation.")


@pytest.mark.parametrize(
    ("waited", "typical", "kind", "says"),
    [
        (
            12 * MS,
            None,
            BoundKind.INPUT,
            "For 60.0 % of the unprofiled step the device waits for data to be loaded, then dispatch (35.0 %).",
        ),
        # Without these waits it would still be half as long again.
        (5 * MS, None, BoundKind.DISPATCH, "of the profiled step"),
        (0, None, BoundKind.DISPATCH, "of the profiled step"),
        # A median stands for the step: what counts is how long such a step waits, here not at all, or for 4 of 14 ms.
        (12 * MS, (14 * MS, 0), BoundKind.DISPATCH, "of the profiled step"),
        (12 * MS, (14 * MS, 4 * MS), BoundKind.INPUT, "For 60.0 % of the unprofiled step"),
    ],
)
def test_a_step_that_is_longer_by_its_waits_for_data_is_one_of_those_recorded(
    waited: int, typical: tuple[int, int] | None, kind: BoundKind, says: str, analyzed: Analyze
) -> None:
    """Recorded are 10 ms of which the device works for one; timed are 20 ms, and most of that waits for data."""
    trace = step()
    dispatching(trace, 0, STEP, kernel=2 * US)
    evidence = analyzed(trace).evidence_with(steps=1, wall_ns=20 * MS, ran_on_gpu=True)
    evidence = replace(evidence, data_ns=float(waited))
    if typical is not None:
        evidence = replace(evidence, typical_ns=float(typical[0]), typical_data_ns=float(typical[1]))
    bound = bound_of(evidence)
    assert bound.kind is kind
    assert says in bound.sentence


def test_waits_that_the_device_hides_make_no_step_longer(analyzed: Analyze) -> None:
    """A device that is busy for 9 of 10 recorded ms: of 14 ms it can idle for 5, however long the host waits."""
    trace = step()
    busy_until(trace, 9 * MS)
    evidence = analyzed(trace).evidence_with(steps=1, wall_ns=14 * MS, ran_on_gpu=True)
    assert evidence.not_theirs is not None
    waits = replace(evidence, data_ns=8.0 * MS)
    assert waits.waits_beyond_recorded_ns == pytest.approx(14 * MS - evidence.busy_ns)
    busy = replace(evidence, wall_ns=9 * MS, data_ns=8.0 * MS)
    assert busy.waits_beyond_recorded_ns == pytest.approx(0, abs=20 * US)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("cudaMalloc", BoundKind.ALLOCATION),
        ("cudaFree", BoundKind.ALLOCATION),
        ("hipFree", BoundKind.ALLOCATION),
        ("cudaMemcpy", BoundKind.BLOCKING),
        ("cuLibraryLoadData", BoundKind.COLD_START),
    ],
)
def test_a_call_in_which_the_host_sits_is_named(analyzed: Analyze, call: str, kind: BoundKind) -> None:
    trace = step()
    busy_until(trace, 1 * MS)
    trace.launch(1_010 * US, 7_900 * US, name=call)
    busy_until(trace, 9900 * US, 9 * MS)
    bound = of(analyzed(trace))
    assert bound.kind is kind
    assert bound.share_high == pytest.approx(bound.share_low, rel=0.2)  # blocking takes as long without a profiler


def test_launches_that_are_late_for_waiting_only_are_blocking(analyzed: Analyze) -> None:
    """60 us of device work an iteration, 20 us to issue it, and a read of the result each time."""
    late, early = step(), step()
    for begin in range(0, STEP, 100 * US):
        late.operator("aten::mm", begin, 18 * US)
        late.launched_kernel("gemm", (begin + 8 * US, 4 * US), (begin + 20 * US, 60 * US))
        late.launch(begin + 22 * US, 60 * US, name="cudaStreamSynchronize")
    assert of(analyzed(late)).kind is BoundKind.UNKNOWN  # it may be busy all the time without a profiler
    assert of(analyzed(late), STEP).kind is BoundKind.BLOCKING
    for begin in range(0, STEP, 100 * US):  # here the host alone takes as long as all: reading costs nothing
        early.operator("aten::mm", begin, 78 * US)
        early.launched_kernel("gemm", (begin + 68 * US, 4 * US), (begin + 75 * US, 15 * US))
        early.launch(begin + 80 * US, 12 * US, name="cudaStreamSynchronize")
    assert of(analyzed(early), STEP).kind is BoundKind.DISPATCH


def test_waiting_for_another_stream_is_a_dependency(analyzed: Analyze) -> None:
    trace = step()
    trace.launched_kernel("first", (10 * US, 5 * US), (20 * US, 500 * US))
    trace.launched_kernel("second", (30 * US, 5 * US), (9 * MS, 500 * US), stream=9)
    trace.launch(40 * US, 9_900 * US, name="cudaDeviceSynchronize")
    assert of(analyzed(trace), STEP).kind is BoundKind.DEPENDENCY


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", "communication"),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", "memcpy"),
    ],
)
def test_a_device_that_only_moves_data_is_said_to(analyzed: Analyze, name: str, category: str, kind: str) -> None:
    trace = step()
    trace.launched_kernel("gemm", (10 * US, 5 * US), (20 * US, 500 * US))
    trace.launched_kernel(name, (30 * US, 5 * US), (520 * US, 9 * MS), category=category)
    trace.launch(40 * US, 9_900 * US, name="cudaDeviceSynchronize")
    assert of(analyzed(trace)).kind == kind


def test_a_failed_check_widens_the_range_and_no_more(analyzed: Analyze) -> None:
    """Of a device that is busy 90 % of the time, launches without activity change nothing that matters."""
    trace = step()
    busy_until(trace, 9 * MS)
    for start in range(9_100 * US, 9_900 * US, 20 * US):
        trace.launch(start, 5 * US)
    analysis = analyzed(trace)
    assert analysis.trust.verdict == "fail"
    bound = of(analysis, STEP)
    assert bound.kind is BoundKind.DEVICE
    assert bound.share_low == pytest.approx(0.899)
    assert bound.share_high == pytest.approx(0.99, abs=0.02)
    starved = step()
    busy_until(starved, 4 * MS)
    for start in range(4_100 * US, 9_900 * US, 20 * US):
        starved.launch(start, 5 * US)
    assert of(analyzed(starved), STEP).kind is BoundKind.UNKNOWN  # what is missing may fill it


def test_incomplete_replays_widen_the_range_by_what_is_missing(analyzed: Analyze) -> None:
    trace = step()
    for replay, nodes in enumerate((3, 3, 2)):
        begin = 100 * US + replay * 3 * MS
        correlation = trace.launch(begin - 20 * US, 5 * US, name="cudaGraphLaunch")
        for node in range(nodes):
            start = begin + node * 900 * US
            trace.kernel("k", start, 890 * US, correlation, **{"graph node id": node + 1, "graph id": 1})
    analysis = analyzed(trace)
    check = next(check for check in analysis.trust.checks if check.name == "graph_replays_complete")
    assert (check.verdict, check.time_ns) == ("fail", 890 * US)
    bound = of(analysis, STEP)
    assert (bound.share_low, bound.share_high) == (pytest.approx(0.712), pytest.approx(0.801))


def test_the_profilers_own_time_is_no_part_of_the_step(analyzed: Analyze) -> None:
    trace = step()
    busy_until(trace, 4 * MS)
    trace.slice("overhead", "Activity Buffer Request", 4_010 * US, 5 * MS)
    busy_until(trace, 9_950 * US, 9_100 * US)
    bound = of(analyzed(trace))
    assert bound.kind is BoundKind.DEVICE
    assert bound.share_low == pytest.approx(4.84 / 5, rel=0.01)


def test_what_a_device_needs_from_one_queued_kernel_to_the_next_is_no_dependency(analyzed: Analyze) -> None:
    """Four microseconds after each of a thousand queued kernels: nothing else could fill them."""
    trace = step()
    for number in range(1_000):
        trace.operator("aten::add", number * 2 * US, 1_900)
        trace.launched_kernel("add", (number * 2 * US + 100, US), (10 * US + number * 9_900, 5_900))
    trace.launch(2_100 * US, 7_880 * US, name="cudaDeviceSynchronize")
    bound = of(analyzed(trace), wall=STEP)
    assert bound.kind is not BoundKind.DEPENDENCY


def test_copies_between_devices_are_named_where_the_device_is_the_bound(analyzed: Analyze) -> None:
    trace = step()
    busy_until(trace, 7 * MS)
    trace.launched_kernel("Memcpy DtoH (Device -> Pinned)", (7 * MS, 2 * US), (7_010 * US, 2_900 * US),
                          category="gpu_memcpy")  # fmt: skip
    bound = of(analyzed(trace), wall=STEP)
    assert bound.kind is BoundKind.DEVICE
    assert "For 2.900 ms of it only data move." in bound.evidence


def test_work_of_recorded_operators_is_slowed_as_dispatch_is(analyzed: Analyze) -> None:
    """Recorded are 4 ms of launches, then 4 ms of operators on the host, then 2 ms without any record.

    The device works for 0.4 ms. Of an unprofiled step of 5.4 ms it idles for 5: for the 2 ms without a record, which no
    profiler makes longer, and of the other 3 ms half for launches and half for the operators.
    """
    trace = step()
    dispatching(trace, 0, 4 * MS)
    for start in range(4 * MS, 8 * MS, 20 * US):
        trace.operator("aten::select", start, 18 * US)
    trace.operator("aten::select", STEP - 20 * US, 18 * US)
    evidence = analyzed(trace).evidence_with(steps=1, wall_ns=5_400 * US, ran_on_gpu=True)
    assert evidence.waits is not None
    parts = waiting_per_step(evidence, evidence.waits)
    assert parts[BoundKind.HOST_WORK] == pytest.approx(3.5 * MS, rel=0.05)
    assert parts[BoundKind.DISPATCH] == pytest.approx(1.5 * MS, rel=0.15)
    assert bound_of(evidence).kind is BoundKind.HOST_WORK


def test_launches_come_before_work_of_recorded_operators_where_they_are_more(analyzed: Analyze) -> None:
    # As a small model whose batches are put together by hundreds of operators: 7 ms of launches, 3 ms of these.
    trace = step()
    dispatching(trace, 0, 7 * MS)
    for start in range(7 * MS, STEP, 20 * US):
        trace.operator("aten::select", start, 18 * US)
    dispatching(trace, STEP - 40 * US, STEP)
    bound = of(analyzed(trace), wall=4 * MS)
    assert bound.kind is BoundKind.DISPATCH


def test_what_to_record_is_said_as_the_recorder_can() -> None:
    """A program in CUDA whose calls cover next to nothing of its time, recorded by opscope exec."""
    bound = of(analyze(read(DATA / "exec" / "nvtx.cudarec.xz")))
    assert bound.kind is BoundKind.UNKNOWN
    assert "between its CUDA calls" in bound.sentence
    assert len(bound.sentence.split()) <= 25
