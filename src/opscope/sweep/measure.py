"""Measure one configuration in this process: build it, time it, profile it, write its raw files. Needs PyTorch."""

from collections.abc import Callable
from pathlib import Path

import torch
from msgspec import Struct, field
from msgspec.structs import replace

from opscope._version import __version__
from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.units import utc_timestamp
from opscope.collect.environment import (
    describe_framework,
    describe_machine,
    describe_rank,
    git_revision,
    peak_memory,
    reset_peak_memory,
)
from opscope.collect.memory_history import MemoryHistory
from opscope.collect.native_functions import installed_table
from opscope.collect.torch_profiler import TorchProfiler, collected_activities
from opscope.measuring.clock import time_once
from opscope.record.capture import (
    Benchmark,
    CaptureRecord,
    MemoryRecording,
    PeakMemory,
    RawTrace,
    StepKind,
    StepsFound,
    WorkloadInfo,
)
from opscope.record.codec import encode
from opscope.record.configuration import CaptureOptions, Configuration
from opscope.record.sweep import EntryFiles
from opscope.runs.store import RunDirectory, functions_name
from opscope.torch_support.tensors import current, resolve_device
from opscope.workbench.benchmarking.steady import benchmark
from opscope.workloads.models import build_workload
from opscope.workloads.stepping import Workload, refuse_unstarted


class PhaseProgress(Struct, frozen=True):
    """How far a configuration is: the phase, and the fraction of the phase that is done."""

    phase: str
    fraction: float


_Report = Callable[[PhaseProgress], None]


class Task(Struct, frozen=True):
    """What is measured, and where it goes.

    Attributes:
        configuration, options: what was asked for, as it is written down.
        directory: the run directory.
        files: the names of its files there.
        actual: the configuration with values that are not written down; None where all are.
    """

    configuration: Configuration
    options: CaptureOptions
    directory: RunDirectory
    files: EntryFiles
    actual: Configuration | None = None


class MeasurementResult(Struct, frozen=True):
    """What a measurement found, beside what was asked for; the fields are those of `CaptureRecord`."""

    cold_step_ns: int | None
    benchmark: Benchmark | None
    memory: PeakMemory
    traces: tuple[RawTrace, ...]
    steady_state: str | None = None
    light: RawTrace | None = None
    steps: StepsFound = field(default_factory=lambda: StepsFound(StepKind.FUNCTION))
    benchmark_reason: str | None = None
    memory_recording: MemoryRecording | None = None


def measure(task: Task, report: _Report) -> CaptureRecord:
    """Measure a configuration and write its trace and its record.

    Raises:
        OpscopeError: it cannot be built or measured.
    """
    report(PhaseProgress("building", 0.0))
    device = resolve_device(task.options.device)
    if task.options.memory and device.type != "cuda":
        raise UsageError(f"--memory records what a GPU holds, but the workload runs on {device}: try --profile-memory")
    collected_activities(task.options.activities, device)  # refuses what cannot be collected before anything is built
    with current(device):
        history = _memory_history(task)
        return measure_workload(build_workload(task.actual or task.configuration, device), task, report, history)


def _memory_history(task: Task) -> MemoryHistory | None:
    """Begin the history of a GPU's memory, if that is asked for."""
    if not task.options.memory or task.files.snapshot is None or task.files.memory is None:
        return None
    history = MemoryHistory(task.directory.inside(task.files.snapshot))
    history.begin()
    return history


def measure_workload(
    workload: Workload, task: Task, report: _Report, history: MemoryHistory | None = None
) -> CaptureRecord:
    """Measure a workload that is already built, and write its trace and its record.

    The cold step comes first, then steps without a profiler, then the profile, then memory.

    Args:
        workload: what is measured.
        task: how, and where it goes.
        report: called with how far it is.
        history: the history of a GPU's memory, which was begun before; None without.

    Raises:
        OpscopeError: it cannot be measured.
    """
    step, device = workload.step, workload.device
    with current(device):
        reset_peak_memory(device)
        report(PhaseProgress("first step", 0.0))
        cold = workload.first_step_ns
        if cold is None:
            results: list[object] = []
            cold = time_once(lambda: results.append(step()), device)
            refuse_unstarted(results.pop())
        timed = None
        if history is not None:
            history.pause()
        if task.options.benchmark:
            timed = benchmark(step, device, lambda done: report(PhaseProgress("timing", done)))
        memory = peak_memory(device)
        names = tuple(cycle.trace for cycle in task.files.cycles)
        collector = TorchProfiler(task.options, device, names, lambda done: report(PhaseProgress("profiling", done)))
        # A process that was profiled stays slower: so first the steps without a profiler, then the light pass.
        light = None
        if task.files.light is not None and task.options.benchmark:
            light = collector.light(workload, task.directory.path, task.files.light)
        collected = collector.collect(workload, task.directory.path)
        recording = None
        if history is not None and task.files.memory is not None and task.files.snapshot is not None:
            report(PhaseProgress("memory", 0.0))
            recording = collector.memory(workload, task.directory.path, task.files.memory, history)
            if recording.reason is None:
                recording = replace(recording, snapshot=task.files.snapshot)
        report(PhaseProgress("operators", 0.0))
        outcome = MeasurementResult(cold, timed, memory, collected.record, light=light, memory_recording=recording)
        return write_record(task, device, workload.info, outcome)


def write_record(task: Task, device: torch.device, info: WorkloadInfo, outcome: MeasurementResult) -> CaptureRecord:
    """Write down what was measured, where and of what, and the operators of this PyTorch.

    Raises:
        EnvironmentLacksError: the run directory cannot be written to.
    """
    functions, functions_reason = _write_functions(task.directory, device)
    record = CaptureRecord(
        configuration=task.configuration,
        options=task.options,
        workload=info,
        machine=describe_machine(device),
        framework=describe_framework(device),
        rank=describe_rank(),
        opscope=__version__,
        git_revision=git_revision(Path.cwd()),
        created=utc_timestamp(),
        cold_step_ns=outcome.cold_step_ns,
        benchmark=outcome.benchmark,
        memory=outcome.memory,
        traces=outcome.traces,
        light=outcome.light,
        functions=functions,
        functions_reason=functions_reason,
        steady_state=outcome.steady_state,
        steps=outcome.steps,
        benchmark_reason=outcome.benchmark_reason,
        memory_recording=outcome.memory_recording,
    )
    task.directory.write(task.files.record, encode(record))
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
