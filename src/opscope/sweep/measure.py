"""Measure one configuration in this process: build it, time it, profile it, write its raw files. Needs PyTorch."""

import datetime
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch

from opscope.bench.steps import benchmark, time_once
from opscope.capture.environment import describe_environment, peak_memory, reset_peak_memory
from opscope.capture.native_functions import installed_table
from opscope.capture.profiler import capture, collected_activities
from opscope.errors import EnvironmentLacksError, UsageError
from opscope.record import (
    Benchmark,
    CaptureOptions,
    CaptureRecord,
    Configuration,
    PeakMemory,
    WorkloadInfo,
    encode,
)
from opscope.store import RunDirectory, functions_name, record_name, trace_name
from opscope.workloads.build import build
from opscope.workloads.building import Workload, current, resolve_device


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a configuration is: the phase, and the fraction of the phase that is done."""

    phase: str
    fraction: float


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a measurement has besides what was asked for.

    Attributes:
        cold_step_ns, benchmark, memory: see `CaptureRecord`.
        traces: names of the traces that were written.
        replaced_bytes: per trace, how many bytes of its names were no text.
    """

    cold_step_ns: int | None
    benchmark: Benchmark | None
    memory: PeakMemory
    traces: tuple[str, ...]
    replaced_bytes: tuple[int, ...]


def measure(
    configuration: Configuration, options: CaptureOptions, directory: RunDirectory, report: Report
) -> CaptureRecord:
    """Measure a configuration and write its trace and its record.

    Raises:
        OpscopeError: it cannot be built or measured.
    """
    report(Progress("building", 0.0))
    device = resolve_device(options.device)
    collected_activities(options.activities, device)
    with current(device):
        return measure_workload(build(configuration, device), configuration, options, directory, report)


def measure_workload(
    workload: Workload,
    configuration: Configuration,
    options: CaptureOptions,
    directory: RunDirectory,
    report: Report,
) -> CaptureRecord:
    """Measure a workload that is already built. The cold step comes first, the profile last."""
    step, device = workload.step, workload.device
    with current(device):
        reset_peak_memory(device)
        report(Progress("first step", 0.0))
        results: list[object] = []
        cold = time_once(lambda: results.append(step()), device)
        _refuse_unstarted(results.pop())
        timed = None
        if options.benchmark:
            timed = benchmark(step, device, lambda done: report(Progress("timing", done)))
        memory = peak_memory(device)
        cycles = options.schedule.repeat if options.schedule else 1
        names = tuple(trace_name(workload.info.name, configuration, cycle) for cycle in range(cycles))
        paths = [directory.inside(name) for name in names]
        replaced = capture(step, device, options, paths, lambda done: report(Progress("profiling", done)))
        report(Progress("operators", 0.0))
        measured = Measured(cold, timed, memory, names, replaced)
        return write_record(directory, device, configuration, options, workload.info, measured)


def _refuse_unstarted(result: object) -> None:
    """Refuse a step whose call only makes something that would have to be run: its time would mean nothing."""
    if inspect.isgenerator(result) or inspect.isawaitable(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # or Python warns that it was never awaited
        raise UsageError(
            f"the step returned a {type(result).__name__}, so nothing was run: a step does its work when it is called"
        )


def write_record(
    directory: RunDirectory,
    device: torch.device,
    configuration: Configuration,
    options: CaptureOptions,
    info: WorkloadInfo,
    measured: Measured,
) -> CaptureRecord:
    """Write down what was measured, where and of what, and the operators of this PyTorch."""
    functions, functions_reason = _write_functions(directory, device)
    record = CaptureRecord(
        configuration=configuration,
        options=options,
        workload=info,
        environment=describe_environment(device),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        cold_step_ns=measured.cold_step_ns,
        benchmark=measured.benchmark,
        memory=measured.memory,
        traces=measured.traces,
        replaced_bytes=measured.replaced_bytes,
        functions=functions,
        functions_reason=functions_reason,
    )
    directory.write(record_name(configuration), encode(record))
    return record


def _write_functions(directory: RunDirectory, device: torch.device) -> tuple[str | None, str | None]:
    """Write the operator table of this PyTorch beside the traces; return its name, or None and why not."""
    device_key = "CUDA" if device.type == "cuda" else "CPU"
    name = functions_name(str(torch.__version__), device_key)
    try:
        table = installed_table(device_key)
    except EnvironmentLacksError as error:
        return None, str(error)
    directory.write(name, table.packed())
    return name, None
