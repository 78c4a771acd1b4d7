"""The difference of two measurements. Pairs worked out by hand, recorded ones with one known change, and sums."""

import json
import shutil
import statistics
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import opscope
from opscope.analysis.analyzed import analyze
from opscope.analysis.difference.compared import IDLE, OUTSIDE, RECORDING, SIDE_BY_SIDE, difference
from opscope.analysis.difference.work import DifferenceSide, apportioned, work_changes
from opscope.analysis.measured import Measured
from opscope.base.errors import UsageError
from opscope.documents.difference import ChangeVerdict, DiffBy, DiffDocument, Gate, MatchedBy, PairDiff, WorkChange
from opscope.readers.reading import read
from opscope.render.markdown import render
from opscope.report.difference_sections import difference_section
from tests.budget import examples
from tests.conftest import DATA
from tests.kineto import KinetoTrace

CHANGES = DATA / "changes"
Build = Callable[[KinetoTrace], Measured]
_REASONS = ("calls_ns", "inputs_ns", "launches_ns", "kernel_changed_ns", "same_kernel_ns", "clocks_ns")


@pytest.fixture
def measured(tmp_path: Path) -> Build:
    def build(trace: KinetoTrace) -> Measured:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        return Measured(analyze(read(trace.write(path))))

    return build


def assert_adds_up(pair: PairDiff) -> None:
    step = pair.step
    for row in step.work:
        assert sum(getattr(row, name) for name in _REASONS) == row.change_ns
        assert abs(row.change_ns - (row.after_ns - row.before_ns)) < 1
    assert step.work_ns == sum(row.change_ns for row in step.work)
    if step.reason is None:
        assert step.work_ns + sum(part.change_ns for part in step.parts) == step.change_ns
    idle = next((part.change_ns for part in step.parts if part.name == IDLE), 0)
    assert sum(part.change_ns for part in step.idle) == idle
    assert abs(step.change_ns - (step.after_ns - step.before_ns)) <= 0.5
    if pair.host is not None:
        assert sum(part.change_ns for part in pair.host.parts) == pair.host.change_ns
    if pair.memory is not None and pair.memory.parts:
        grown = (pair.memory.recorded_after_bytes or 0) - (pair.memory.recorded_before_bytes or 0)
        assert sum(part.change_bytes for part in pair.memory.parts) == grown


def parts(pair: PairDiff) -> dict[str, int]:
    return {part.name: part.change_ns for part in pair.step.parts}


def row(pair: PairDiff, operator: str | None) -> WorkChange:
    (found,) = [one for one in pair.step.work if one.operator == operator]
    return found


MATRIX: dict[str, Any] = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}


def steps(*works: list[tuple[str, str, int, dict[str, Any]]], length: int = 100_000) -> KinetoTrace:
    """Steps of one length, with operators one after the other: name, kernel, its duration, its arguments."""
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "Tiny GPU"}])
    for number, work in enumerate(works):
        begin = number * length
        trace.step(number + 1, begin, length)
        for place, (operator, kernel, duration, arguments) in enumerate(work):
            at = begin + 1_000 + place * 10_000
            trace.operator(operator, at, 4_000, **arguments)
            trace.launched_kernel(kernel, (at + 1_000, 1_000), (at + 3_000, duration))
    return trace


# ---------------------------------------------------------------- worked out by hand


def test_calls_kernels_and_times_are_told_apart(measured: Build) -> None:
    # Before: two calls of 4,000 ns with kernel k. After: three calls, of k with 5,000 ns and then c with 1,000.
    before = steps([("aten::mm", "k", 4_000, MATRIX)] * 2)
    after = steps([("aten::mm", "k", 5_000, MATRIX)] * 3)
    for place in range(3):
        at = 1_000 + place * 10_000
        after.launched_kernel("c", (at + 2_500, 500), (at + 8_500, 1_000))
    pair = difference("pair", measured(before), measured(after))
    mm = row(pair, "aten::mm")
    assert (mm.calls_before, mm.calls_after, mm.before_ns, mm.after_ns) == (2, 3, 8_000, 18_000)
    assert mm.calls_ns == 4_000  # one more call of 4,000
    assert mm.same_kernel_ns == 3_000  # three calls whose k takes 1,000 longer
    assert mm.kernel_changed_ns == 3_000  # three new kernels of 1,000
    assert mm.change_ns == 10_000
    assert (pair.step.change_ns, parts(pair)) == (0, {IDLE: -10_000})
    assert [(one.before, one.after) for one in mm.kernels] == [("k", "k"), (None, "c")]
    assert_adds_up(pair)


def test_work_is_compared_by_the_step(measured: Build) -> None:
    work = [("aten::mm", "k", 4_000, MATRIX)]
    pair = difference("pair", measured(steps(work, work, work)), measured(steps(work)))
    assert (pair.step.steps_before, pair.step.steps_after, pair.step.per_step) == (3, 1, True)
    assert row(pair, "aten::mm").change_ns == 0
    assert pair.step.change_ns == 0
    assert_adds_up(pair)


def test_what_is_on_one_side_only_is_named(measured: Build) -> None:
    before = steps([("aten::mm", "k", 4_000, MATRIX), ("aten::add", "a", 1_000, {})])
    after = steps([("aten::mm", "k", 4_000, MATRIX), ("my::mixer", "m", 2_500, {})])
    pair = difference("pair", measured(before), measured(after))
    assert (row(pair, "aten::add").matched, row(pair, "aten::add").change_ns) == (MatchedBy.GONE, -1_000)
    assert (row(pair, "my::mixer").matched, row(pair, "my::mixer").change_ns) == (MatchedBy.NEW, 2_500)
    assert row(pair, "aten::mm").matched is MatchedBy.SAME
    assert_adds_up(pair)


def test_other_sizes_of_an_operator_belong_together(measured: Build) -> None:
    larger = {"Input Dims": [[128, 32], [32, 16]], "Input type": ["float", "float"]}
    vector = {"Input Dims": [[64]], "Input type": ["float"]}
    before = steps([("aten::mm", "k", 4_000, MATRIX), ("aten::sum", "s", 1_000, vector)])
    after = steps([("aten::mm", "k", 7_000, larger), ("aten::sum", "s", 1_000, MATRIX)])
    pair = difference("pair", measured(before), measured(after))
    mm = row(pair, "aten::mm")
    assert (mm.matched, mm.inputs_ns, mm.change_ns) == (MatchedBy.INPUTS, 3_000, 3_000)
    assert mm.why == "the inputs have other sizes"
    # Nothing says that the sum of a vector became that of two matrices.
    assert {one.matched for one in pair.step.work if one.operator == "aten::sum"} == {MatchedBy.GONE, MatchedBy.NEW}
    assert_adds_up(pair)


def test_a_product_is_the_same_work_under_another_operator(measured: Build) -> None:
    bias = {"Input Dims": [[16], [64, 32], [32, 16], [], []], "Input type": ["float"] * 3 + ["Scalar"] * 2}
    before = steps([("aten::addmm", "gemm", 4_000, bias)])
    after = steps([("aten::mm", "gemm", 3_000, MATRIX)])
    mm = row(difference("pair", measured(before), measured(after)), "aten::addmm")
    assert (mm.renamed_to, mm.matched, mm.same_kernel_ns) == ("aten::mm", MatchedBy.DOES, -1_000)
    assert mm.why == "both multiply 64 x 32 by 32 x 16, equally often, and nothing else does"


def test_a_kernel_in_another_spelling_is_the_same(measured: Build) -> None:
    names = (
        "void at::native::f<4, at::detail::Array<char*, 3> >(int)",
        "void at::native::f<4, std::array<char*, 3ul> >(int)",
    )
    pair = difference("pair", *(measured(steps([("aten::mm", name, 4_000, MATRIX)])) for name in names))
    assert row(pair, "aten::mm").kernel_changed_ns == 0
    (kernel,) = row(pair, "aten::mm").kernels
    assert (kernel.before, kernel.after) == names


def test_a_lower_clock_explains_at_most_what_it_can(measured: Build) -> None:
    # 4,000 ns at 1,800 MHz would be 4,800 at 1,500; it took 5,000.
    sides = [
        DifferenceSide.of_device(measured(steps([("aten::mm", "k", ns, MATRIX)])).analysis, 0, 1, clock)
        for ns, clock in ((4_000, (1_790, 1_800, 1_810)), (5_000, (1_490, 1_500, 1_510)))
    ]
    (mm,) = work_changes(*sides)
    changed = mm.document(1_000)
    assert (changed.clocks_ns, changed.same_kernel_ns) == (800, 200)
    # Clocks whose ranges touch say nothing.
    touching = replace(sides[1], clock_mhz=(1_490, 1_500, 1_795))
    assert work_changes(sides[0], touching)[0].document(1_000).clocks_ns == 0
    # A lower clock does not explain why something got faster.
    assert work_changes(sides[1], replace(sides[0], clock_mhz=(1_190, 1_200, 1_210)))[0].document(-1_000).clocks_ns == 0


def test_streams_side_by_side_and_work_outside_add_up(measured: Build) -> None:
    before = steps([("aten::mm", "k", 60_000, MATRIX)])
    after = steps([("aten::mm", "k", 60_000, MATRIX)])
    after.kernel("other stream", 5_000, 2_000, after.launch(4_000, 100), stream=20)  # at once with k, from 4,000 on
    after.kernel("late", 101_000, 3_000, after.launch(99_000, 500))  # after the window
    pair = difference("pair", measured(before), measured(after))
    assert pair.step.work_ns == 5_000
    assert parts(pair) == {SIDE_BY_SIDE: -2_000, OUTSIDE: -3_000}
    assert_adds_up(pair)


def test_a_wait_shows_in_idle_time_by_cause(measured: Build) -> None:
    # The second launch begins at 12,000; the device is idle from 8,000 on. The thread waits from 8,500 to 10,500.
    before, after = (steps([("aten::mm", "k", 4_000, MATRIX)] * 2) for _ in range(2))
    after.slice("cuda_runtime", "cudaDeviceSynchronize", 8_500, 2_000)
    pair = difference("pair", measured(before), measured(after))
    assert {part.name: part.change_ns for part in pair.step.idle} == {"dispatch": -2_000, "blocking call": 2_000}
    assert pair.step.change_ns == 0
    assert_adds_up(pair)


def test_on_a_cpu_operators_own_time_is_compared(measured: Build) -> None:
    def run(first: int, second: int, length: int) -> KinetoTrace:
        trace = KinetoTrace()
        trace.step(1, 0, length)
        trace.operator("aten::mm", 1_000, first, **MATRIX)
        trace.operator("aten::add", 40_000, second)
        return trace

    pair = difference("pair", measured(run(10_000, 3_000, 60_000)), measured(run(14_000, 3_000, 70_000)))
    assert pair.step.measured_on == "cpu"
    assert (row(pair, "aten::mm").change_ns, row(pair, "aten::add").change_ns) == (4_000, 0)
    assert (pair.step.change_ns, parts(pair)) == (10_000, {"no operator ran": 6_000})
    assert_adds_up(pair)


def test_one_on_a_device_and_one_without_are_not_taken_apart(measured: Build) -> None:
    host = KinetoTrace()
    host.step(1, 0, 50_000)
    host.operator("aten::mm", 1_000, 3_000)
    pair = difference("pair", measured(steps([("aten::mm", "k", 4_000, MATRIX)])), measured(host))
    assert pair.step.reason is not None
    assert pair.step.work == pair.step.parts == ()
    assert pair.unprofiled.verdict is ChangeVerdict.UNKNOWN


def test_traces_alone_cannot_say_whether_the_step_changed(measured: Build) -> None:
    trace = measured(steps([("aten::mm", "k", 4_000, MATRIX)]))
    pair = difference("pair", trace, trace, fail_over=0.05)
    assert pair.unprofiled.verdict is ChangeVerdict.UNKNOWN
    assert "cannot be known: no unprofiled steps were timed before and after" in pair.unprofiled.sentence
    assert pair.gate is Gate.INCONCLUSIVE
    assert pair.culprit is None
    assert pair.differing == ()


def test_an_empty_trace_beside_itself(measured: Build) -> None:
    pair = difference("pair", measured(KinetoTrace()), measured(KinetoTrace()))
    assert (pair.step.change_ns, pair.step.work, pair.host) == (0, (), None)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_parts_add_up_whatever_ran(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("pair")
    sides = []
    for name in ("before", "after"):
        trace = KinetoTrace()
        for number in range(data.draw(st.integers(0, 3))):
            trace.step(number, number * 50_000, data.draw(st.integers(1_000, 60_000)))
        for _ in range(data.draw(st.integers(0, 8))):
            at = data.draw(st.integers(0, 120_000))
            dims = data.draw(st.sampled_from([{}, MATRIX, {"Input Dims": [[8], []], "Input type": ["float", ""]}]))
            trace.operator(data.draw(st.sampled_from(["aten::mm", "aten::add", "x"])), at, 3_000, **dims)
            kernel = data.draw(st.sampled_from(["k", "c", "sgemm"]))
            where = {"stream": data.draw(st.sampled_from([7, 8])), "device": data.draw(st.sampled_from([0, 0, 1]))}
            if data.draw(st.booleans()):
                begin = at + data.draw(st.integers(0, 9_000))
                linked = trace.launch(at + 500, 500) if data.draw(st.booleans()) else None
                trace.kernel(kernel, begin, data.draw(st.integers(1, 9_000)), linked, **where)
        sides.append(Measured(analyze(read(trace.write(folder / f"{name}.json")))))
    assert_adds_up(difference("pair", *sides))
    assert_adds_up(difference("pair", sides[0], sides[0]))


@given(st.lists(st.fractions(min_value=-1_000, max_value=1_000), max_size=20))
def test_rounded_parts_add_up_and_are_near(exact: list[Fraction]) -> None:
    whole = round(sum(exact, Fraction()))
    rounded = apportioned(exact, whole)
    assert sum(rounded) == whole
    assert all(abs(one - other) < 1 for one, other in zip(exact, rounded, strict=True))


# ---------------------------------------------------------------- recorded on an H200


def recorded(name: str, fail_over: float | None = 0.05) -> PairDiff:
    (pair,) = opscope.diff(CHANGES / "before", CHANGES / name, fail_over=fail_over).pairs
    assert_adds_up(pair)
    return pair


def walls(name: str) -> list[int]:
    (path,) = (CHANGES / name / "raw").glob("capture_*.json")
    return list(json.loads(path.read_text())["benchmark"]["wall_ns"])


def test_the_same_thing_twice_shows_no_difference() -> None:
    pair = recorded("again")
    assert pair.unprofiled.verdict is ChangeVerdict.NO_DIFFERENCE
    assert (pair.gate, pair.culprit, pair.differing) == (
        Gate.INCONCLUSIVE,
        None,
        (),
    )  # for a while it took 730 us a step: -3 % to +15 %
    assert {row.matched for row in pair.step.work} == {MatchedBy.SAME}
    assert all(abs(row.change_ns) < 1_000 for row in pair.step.work)


def test_tf32_changes_the_kernels_of_products_alone() -> None:
    pair = recorded("tf32")
    assert pair.unprofiled.verdict is ChangeVerdict.FASTER
    assert ("float32 matmul precision", "highest", "high") in [(d.name, d.before, d.after) for d in pair.differing]
    # The change of the step is that of the means of the raw samples.
    before, after = statistics.mean(walls("before")), statistics.mean(walls("tf32"))
    assert pair.step.unprofiled
    assert pair.step.change_ns == round(after - before)
    changed = {row.operator: 0 for row in pair.step.work}
    for row in pair.step.work:
        changed[row.operator] += row.kernel_changed_ns
    assert changed.pop("aten::addmm") < -300_000
    assert set(changed.values()) == {0}
    assert RECORDING in {part.name for part in pair.step.idle}


def test_another_batch_is_other_inputs_of_every_operator() -> None:
    pair = recorded("batch16")
    assert (pair.unprofiled.verdict, pair.gate) == (ChangeVerdict.SLOWER, Gate.REGRESSION)
    assert ("Batch size", "8", "16") in [(d.name, d.before, d.after) for d in pair.differing]
    assert {row.matched for row in pair.step.work} == {MatchedBy.INPUTS}
    assert pair.culprit is not None
    assert pair.culprit.startswith("`aten::addmm`")
    assert pair.memory is not None
    assert (pair.memory.after_bytes or 0) > (pair.memory.before_bytes or 0)


def test_twenty_more_additions_are_found() -> None:
    pair = recorded("extra")
    assert pair.gate is Gate.REGRESSION
    assert pair.culprit is not None
    assert "aten::add" in pair.culprit
    assert "24 calls instead of 4" in pair.culprit


def test_compiled_products_are_found_under_another_operator() -> None:
    pair = recorded("compiled")
    assert pair.unprofiled.verdict is ChangeVerdict.FASTER
    products = [row for row in pair.step.work if row.operator == "aten::addmm"]
    assert {row.matched for row in products} == {MatchedBy.DOES}
    assert {row.renamed_to for row in products} == {None, "aten::mm"}
    assert {row.matched for row in pair.step.work if (row.operator or "").startswith("triton_")} == {MatchedBy.NEW}
    gone = {row.operator for row in pair.step.work if row.matched is MatchedBy.GONE}
    assert {"aten::gelu", "aten::native_layer_norm", "aten::add"} == gone


def test_a_regression_that_is_smaller_than_allowed_is_not_one() -> None:
    assert recorded("extra", 0.20).gate is Gate.FINE
    assert recorded("extra", 0.08).gate is Gate.INCONCLUSIVE


def test_two_versions_of_pytorch_run_the_same_operators() -> None:
    paths = [DATA / "old_traces" / f"cpu_train_torch-{version}.json.gz" for version in ("1.13.1", "2.3.1")]
    (pair,) = opscope.diff(*paths).pairs
    assert_adds_up(pair)
    of = {matched: [row.operator for row in pair.step.work if row.matched is matched] for matched in MatchedBy}
    assert len(of[MatchedBy.SAME]) > 40
    assert "aten::convolution_backward" in of[MatchedBy.SAME]  # with more arguments that are not tensors
    assert not of[MatchedBy.INPUTS]


def test_other_devices_are_refused_unless_told(tmp_path: Path) -> None:
    paths = []
    for name in ("Tiny GPU", "Huge GPU"):
        trace = steps([("aten::mm", "k", 4_000, MATRIX)])
        trace.header["deviceProperties"][0]["name"] = name
        paths.append(trace.write(tmp_path / f"{name}.json"))
    with pytest.raises(UsageError, match="different devices: Tiny GPU; Huge GPU"):
        opscope.diff(*paths)
    (pair,) = opscope.diff(*paths, any_device=True).pairs
    assert [(one.name, one.before, one.after) for one in pair.differing] == [("device", "Tiny GPU", "Huge GPU")]


# ---------------------------------------------------------------- what an attack found


def test_a_kernel_that_a_call_launches_twice_is_no_slower(measured: Build) -> None:
    before = steps([("my::op", "k", 4_000, MATRIX)])
    after = steps([("my::op", "k", 4_000, MATRIX)])
    after.launched_kernel("k", (3_500, 500), (8_000, 4_000))
    op = row(difference("pair", measured(before), measured(after)), "my::op")
    assert (op.launches_ns, op.same_kernel_ns, op.calls_ns, op.change_ns) == (4_000, 0, 0, 4_000)


def test_inputs_that_one_side_did_not_record_are_not_other_inputs(measured: Build) -> None:
    small = {"Input Dims": [[16, 16], [16, 16]], "Input type": ["float", "float"]}
    before = steps([("aten::mm", "k", 4_000, MATRIX), ("aten::mm", "k", 1_000, small)])
    after = steps([("aten::mm", "k", 4_000, {}), ("aten::mm", "k", 1_000, {})])
    pair = difference("pair", measured(before), measured(after))
    mm = row(pair, "aten::mm")
    assert (mm.matched, mm.calls_before, mm.calls_after, mm.change_ns) == (MatchedBy.OPERATOR, 2, 2, 0)
    assert ("input shapes", "recorded", "not recorded") in [(d.name, d.before, d.after) for d in pair.differing]
    assert_adds_up(pair)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("aten::sum", "aten::argmax", False),
        ("aten::add", "aten::mul", False),
        ("aten::max_pool2d", "aten::avg_pool2d", False),
        ("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention", True),
        ("aten::cudnn_convolution", "aten::mkldnn_convolution", True),
        ("aten::add", "aten::add_", True),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_3", True),
        ("triton_poi_fused_add_0", "triton_poi_fused_mul_0", False),
    ],
)
def test_only_what_must_be_the_same_work_is_matched(measured: Build, one: str, other: str, same: bool) -> None:
    pair = difference("pair", *(measured(steps([(name, f"{name}_kernel", 4_000, MATRIX)])) for name in (one, other)))
    assert ({row.matched for row in pair.step.work} == {MatchedBy.DOES}) is same
    assert_adds_up(pair)


def test_what_the_steps_did_not_launch_is_no_work_of_theirs(measured: Build) -> None:
    def run(count: int) -> KinetoTrace:
        trace = steps(*[[("aten::mm", "k", 60_000, MATRIX)]] * count)
        for event in trace.events:
            event["ts"] += 100
        trace.operator("aten::randn", 1_000, 3_000)
        trace.launched_kernel("init", (2_000, 500), (4_000, 5_000))
        return trace

    pair = difference("pair", measured(run(4)), measured(run(2)))
    assert [row.operator for row in pair.step.work] == ["aten::mm"]
    assert row(pair, "aten::mm").change_ns == 0
    assert_adds_up(pair)


def queued(count: int) -> KinetoTrace:
    """Steps of 100 us every 1 ms that do not wait: 200 us of work each, after their ranges."""
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "Tiny GPU"}])
    for number in range(count):
        begin = number * 1_000_000
        trace.step(number + 1, begin, 100_000)
        trace.operator("aten::mm", begin + 1_000, 4_000, **MATRIX)
        trace.launched_kernel("k", (begin + 2_000, 1_000), (begin + 300_000, 200_000))
    return trace


def test_windows_that_are_not_the_same_thing_are_not_subtracted(measured: Build) -> None:
    fewer = difference("pair", measured(queued(2)), measured(queued(4)))
    assert "different numbers of them" in (fewer.step.reason or "")
    assert fewer.step.work == ()
    assert difference("pair", measured(queued(3)), measured(queued(3))).step.reason is None
    waiting = steps(*[[("aten::mm", "k", 60_000, MATRIX)]] * 2)
    other = difference("pair", measured(waiting), measured(queued(2)))
    assert "measured differently" in (other.step.reason or "")


def test_the_device_that_works_most_is_the_same_one_on_both_sides(measured: Build) -> None:
    def run(second: int) -> KinetoTrace:
        trace = steps([("aten::mm", "k", 20_000, MATRIX)])
        trace.operator("aten::mul", 30_000, 4_000, **MATRIX)
        trace.kernel("k", 33_000, second, trace.launch(31_000, 500), device=1)
        return trace

    pair = difference("pair", measured(run(15_000)), measured(run(40_000)))
    assert (pair.step.device_before, pair.step.device_after) == (1, 1)
    assert row(pair, "aten::mul").change_ns == 25_000
    assert_adds_up(pair)


def edited(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a recorded run whose record says something else."""
    copy = shutil.copytree(CHANGES / name, folder / name)
    (path,) = (copy / "raw").glob("capture_*.json")
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return copy


def test_unprofiled_steps_that_are_not_those_recorded_say_nothing(tmp_path: Path) -> None:
    def third(record: dict[str, Any]) -> None:
        record["benchmark"]["wall_ns"] = [time // 3 for time in record["benchmark"]["wall_ns"]]

    (pair,) = opscope.diff(CHANGES / "before", edited(tmp_path, "again", third), fail_over=0.05).pairs
    assert (pair.unprofiled.verdict, pair.gate) == (ChangeVerdict.UNKNOWN, Gate.INCONCLUSIVE)
    assert "is shorter than the device's work in a recorded one (" in pair.unprofiled.sentence
    assert "other programs may have run meanwhile, or other steps were timed" in pair.unprofiled.sentence
    assert not pair.step.unprofiled


def test_steps_that_wait_are_not_compared_with_steps_that_do_not(tmp_path: Path) -> None:
    def as_they_come(record: dict[str, Any]) -> None:
        record["benchmark"]["synchronised"] = False

    (pair,) = opscope.diff(CHANGES / "before", edited(tmp_path, "again", as_they_come)).pairs
    assert pair.unprofiled.verdict is ChangeVerdict.UNKNOWN
    assert "unprofiled steps" in [one.name for one in pair.differing]


def test_too_few_or_disturbed_samples_say_nothing(tmp_path: Path) -> None:
    def few(record: dict[str, Any]) -> None:
        record["benchmark"]["wall_ns"] = record["benchmark"]["wall_ns"][:5]

    def disturbed(record: dict[str, Any]) -> None:
        record["benchmark"]["waited_for_cpu_ns"] = sum(record["benchmark"]["wall_ns"])

    for number, change in enumerate((few, disturbed)):
        (pair,) = opscope.diff(
            CHANGES / "before", edited(tmp_path / str(number), "extra", change), fail_over=0.05
        ).pairs
        assert (pair.unprofiled.verdict, pair.gate, pair.culprit) == (ChangeVerdict.UNKNOWN, Gate.INCONCLUSIVE, None)


def test_traces_that_are_read_already_can_be_compared(tmp_path: Path) -> None:
    trace = read(steps([("aten::mm", "k", 4_000, MATRIX)]).write(tmp_path / "t.json"))
    assert opscope.diff(trace, trace).pairs[0].step.change_ns == 0
    assert opscope.diff(analyze(trace), trace).pairs[0].step.change_ns == 0


def test_kernels_of_a_side_whose_device_was_not_recorded_are_not_none(measured: Build) -> None:
    recorded, unknown = KinetoTrace(), KinetoTrace()
    for built in (recorded, unknown):
        built.operator("aten::mm", 0, 5_000)
    recorded.launched_kernel("k", (1_000, 1_000), (3_000, 9_000))
    sides = [measured(built) for built in (recorded, unknown)]
    pair = difference("pair", *sides, by=DiffBy.KERNEL)
    assert (pair.kernels, pair.groups) == ((), None)
    assert [row.before_ns for row in difference("pair", sides[0], sides[0]).kernels] == [9_000]
    document = DiffDocument(before="a", after="b", pairs=(pair,))
    assert "Not both sides recorded work of a device." in render(difference_section(document, top=5))
