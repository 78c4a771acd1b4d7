"""Measure one configuration in this process: build it, time it, profile it, write its raw files. Needs PyTorch."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass

import torch

from opscope.bench.steps import benchmark, time_once
from opscope.capture.environment import describe_environment, peak_memory
from opscope.capture.native_functions import installed_table
from opscope.capture.profiler import capture, collected_activities
from opscope.errors import EnvironmentLacksError
from opscope.record import CaptureOptions, CaptureRecord, Configuration, encode
from opscope.store import RunDirectory, functions_name, record_name, trace_name
from opscope.workloads.build import build
from opscope.workloads.building import Workload, resolve_device


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a configuration is: the phase, and the fraction of the phase that is done."""

    phase: str
    fraction: float


Report = Callable[[Progress], None]


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
    return measure_workload(build(configuration, device), configuration, options, directory, report)


def measure_workload(
    workload: Workload,
    configuration: Configuration,
    options: CaptureOptions,
    directory: RunDirectory,
    report: Report,
) -> CaptureRecord:
    """Measure a workload that is already built. The cold step comes first, the profile last."""
    device = workload.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    report(Progress("first step", 0.0))
    cold = time_once(workload.step, device)
    timed = None
    if options.benchmark:
        timed = benchmark(workload.step, device, lambda done: report(Progress("timing", done)))
    memory = peak_memory(device)
    cycles = options.schedule.repeat if options.schedule else 1
    names = tuple(trace_name(workload.info.name, configuration, cycle) for cycle in range(cycles))
    capture(
        workload.step,
        device,
        options,
        [directory.inside(name) for name in names],
        lambda done: report(Progress("profiling", done)),
    )
    report(Progress("operators", 0.0))
    functions, functions_reason = write_functions(directory, device)
    record = CaptureRecord(
        configuration=configuration,
        options=options,
        workload=workload.info,
        environment=describe_environment(device),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        cold_step_ns=cold,
        benchmark=timed,
        memory=memory,
        traces=names,
        functions=functions,
        functions_reason=functions_reason,
    )
    directory.write(record_name(configuration), encode(record))
    return record


def write_functions(directory: RunDirectory, device: torch.device) -> tuple[str | None, str | None]:
    """Write the operator table of this PyTorch beside the traces; return its name, or None and why not."""
    device_key = "CUDA" if device.type == "cuda" else "CPU"
    name = functions_name(str(torch.__version__), device_key)
    if not directory.inside(name).is_file():
        try:
            table = installed_table(device_key)
        except EnvironmentLacksError as error:
            return None, str(error)
        directory.write(name, table.packed())
    return name, None
