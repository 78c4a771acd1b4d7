"""Figures of the two tiny traces, worked out by hand in tests/tiny.py, through the analysis and into the report."""

from collections.abc import Callable

import polars as pl
import pytest

from opscope.analysis.analyzed import Analysis
from opscope.analysis.measured import Measured
from opscope.analysis.structure.step_work import WindowKind
from opscope.documents.verdict import BoundKind, IdleCause, Verdict
from opscope.knowledge.kernels.kernel_source import SourceResolver
from opscope.knowledge.native_functions import NativeFunctions
from opscope.lookup.explain import Lookup
from opscope.render.markdown import render
from opscope.report.kernel_report import kernel_report
from opscope.report.trace_document import build_trace_document
from tests import tiny
from tests.kineto import KinetoTrace

US = 1000


@pytest.fixture
def inference(analyzed: Callable[[KinetoTrace], Analysis]) -> Analysis:
    return analyzed(tiny.inference())


@pytest.fixture
def training(analyzed: Callable[[KinetoTrace], Analysis]) -> Analysis:
    return analyzed(tiny.training())


def rows(table: pl.DataFrame, *columns: str) -> dict[str, tuple[object, ...]]:
    return {row[0]: row[1:] for row in table.select(columns).rows()}


def test_inference_operators(inference: Analysis) -> None:
    times = rows(
        inference.operators, "name", "calls", "self_device_ns", "total_device_ns", "self_cpu_ns", "total_cpu_ns"
    )
    assert times == {
        "aten::addmm": (2, 40 * US, 40 * US, 42 * US, 52 * US),
        "aten::gelu": (2, 18 * US, 18 * US, 12 * US, 20 * US),
        "aten::linear": (2, 0, 40 * US, 8 * US, 60 * US),
    }
    assert inference.operators["name"].to_list() == ["aten::addmm", "aten::gelu", "aten::linear"]


def test_inference_device(inference: Analysis) -> None:
    (device,) = inference.devices
    assert (device.name, device.activities, device.sum_ns, device.busy_ns) == ("Tiny GPU", 4, 58 * US, 58 * US)
    assert (device.window.kind, device.window.duration_ns) == (WindowKind.STEPS, 200 * US)
    assert (device.idle_ns, device.compute_ns, device.outside_window_ns) == (142 * US, 58 * US, 0)
    assert {cause: time for cause, time in device.idle.by_cause().items() if time} == {
        IdleCause.DISPATCH: 75 * US,
        IdleCause.LATENCY: 20 * US,
        IdleCause.BLOCKING: 5 * US,
        IdleCause.QUEUED: 2 * US,
        IdleCause.TAIL: 40 * US,
    }


def test_inference_steps(inference: Analysis) -> None:
    first, second = inference.steps
    assert (first.number, first.span_ns, first.activities, first.device_sum_ns) == (1, 100 * US, 2, 29 * US)
    assert (first.busy_ns, first.idle_ns, first.launch_bound_ns) == (29 * US, 71 * US, 65 * US)
    assert (second.busy_ns, second.idle_ns, second.launch_bound_ns) == (29 * US, 71 * US, 30 * US)
    assert not first.cold


def test_inference_launches(inference: Analysis) -> None:
    launches = inference.launches
    assert rows(launches.calls, "name", "calls", "total_ns") == {
        "cudaDeviceSynchronize": (2, 20 * US),
        "cudaLaunchKernel": (4, 18 * US),
    }
    assert launches.latency is not None
    assert launches.backlog is not None
    assert (launches.latency.count, launches.latency.total_ns) == (2, 10 * US)
    assert (launches.backlog.count, launches.backlog.total_ns) == (2, 6 * US)
    assert launches.without_activity == 0


def test_inference_verdicts(inference: Analysis) -> None:
    assert inference.trust.verdict is Verdict.PASS
    assert inference.accounting.holds
    assert inference.operator_time_ns == 80 * US
    bound = inference.bound
    assert (bound.kind, bound.idle_cause, bound.device_share) == (BoundKind.DISPATCH, IdleCause.DISPATCH, 0.29)
    # Against an unprofiled step of 30 us the same 29 us of work keep the device busy.
    assert inference.bound_with(steps=2, wall_ns=30 * US, ran_on_gpu=True).kind is BoundKind.DEVICE


def test_training_operators(training: Analysis) -> None:
    engine = "autograd::engine::evaluate_function: MmBackward0"
    assert rows(training.operators, "name", "calls", "self_device_ns", "total_device_ns", "self_cpu_ns") == {
        "aten::mm": (2, 20 * US, 20 * US, 14 * US),
        "record_param_comms": (1, 15 * US, 15 * US, 3 * US),
        "aten::_foreach_add_": (1, 4 * US, 4 * US, 4 * US),
        "MmBackward0": (1, 0, 25 * US, 6 * US),
        engine: (1, 0, 25 * US, 2 * US),
    }


def test_training_device(training: Analysis) -> None:
    (device,) = training.devices
    assert (device.sum_ns, device.busy_ns) == (42 * US, 37 * US)
    assert (device.window.kind, device.window.duration_ns) == (WindowKind.DEVICE, 55 * US)
    parts = (device.compute_ns, device.exposed_communication_ns, device.exposed_memcpy_ns, device.idle_ns)
    assert parts == (24 * US, 10 * US, 3 * US, 18 * US)
    causes = {cause: length for cause, length in device.idle.by_cause().items() if length}
    assert causes == {IdleCause.DISPATCH: 7 * US, IdleCause.LATENCY: 9 * US, IdleCause.UNKNOWN: 2 * US}


def test_training_accounting_categories_and_phases(training: Analysis) -> None:
    accounting = training.accounting
    assert (accounting.operators_ns, accounting.unlinked_ns, accounting.unlinked_activities) == (39 * US, 3 * US, 1)
    assert accounting.activities_ns == 42 * US
    assert accounting.holds
    assert rows(training.categories, "category", "self_device_ns") == {
        "Matrix Operations": (20 * US,),
        "Communication": (15 * US,),
        "Elementwise": (4 * US,),
        "Memory": (3 * US,),
        "Framework": (0,),
    }
    assert training.phases == {
        "forward": 10 * US,
        "backward": 25 * US,
        "optimizer": 4 * US,
        "launch not recorded": 3 * US,
    }


def test_training_names_the_lost_launch(training: Analysis) -> None:
    check = next(check for check in training.trust.checks if check.name == "launch_recorded")
    assert (check.verdict, check.count, check.time_ns) == (Verdict.FAIL, 1, 3 * US)
    assert check.share == pytest.approx(3 / 42)


@pytest.mark.parametrize("name", ["inference", "training"])
def test_reports_are_as_worked_out_by_hand(
    name: str, analyzed: Callable[[KinetoTrace], Analysis], is_golden: Callable[[str, str], bool]
) -> None:
    """The whole report; its figures were compared with tests/tiny.py by hand when the file was written."""
    functions = NativeFunctions.shipped()
    measured = Measured(analyzed(getattr(tiny, name)()))
    lookup = Lookup(SourceResolver(), functions, measured=measured)
    document = build_trace_document(measured, functions, lookup=lookup, trace=f"tiny_{name}.json")
    # Commands name the file, which lies elsewhere each time.
    report = render(kernel_report(document)).replace(measured.analysis.source.path, f"tiny_{name}.json")
    assert is_golden(f"tiny_{name}.md", report)
