"""The Python API: ``opscope.profile``, as a call on a step or a module, or around any code with ``with``."""

import datetime
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from opscope.analysis import Analysis
from opscope.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.model import Trace
from opscope.record import (
    Activity,
    CaptureOptions,
    CaptureRecord,
    Configuration,
    Dtype,
    Entry,
    Mode,
    Schedule,
    WorkloadInfo,
    encode,
)
from opscope.report.document import ProfileDocument
from opscope.report.kernel_report import kernel_report
from opscope.report.markdown import render
from opscope.store import RunDirectory, record_name, trace_name
from opscope.sweep.outputs import result_of, write_comparison, write_outputs
from opscope.sweep.plan import new_manifest
from opscope.workloads.catalog import short_name

if TYPE_CHECKING:
    import torch
    from torch.profiler import ProfilerActivity


@dataclass(frozen=True)
class Run:
    """What one profile measured.

    Attributes:
        record: what was asked for, the environment, unprofiled step times and peak memory.
        trace: the trace's tables (of the first cycle).
        analysis: everything computed from it.
        statistics: the same figures as in ``profiling_stats_*.json`` (schema ``opscope.profile/1``).
        directory: the run directory; a temporary one, gone with this object, unless ``output_dir`` was given.
    """

    record: CaptureRecord
    trace: Trace
    analysis: Analysis
    statistics: ProfileDocument
    directory: Path

    def report(self) -> str:
        """Return the Markdown report."""
        return render(kernel_report(self.statistics))

    def save(self, directory: str | Path) -> Path:
        """Copy the run directory (trace, statistics, report, manifest) to a new place and return its path."""
        return shutil.copytree(self.directory, Path(directory), dirs_exist_ok=True)


@overload
def profile(
    workload: "Callable[[], object] | torch.nn.Module",
    inputs: Any = None,
    *,
    mode: Mode = "inference",
    dtype: Dtype = "float32",
    compile: bool = False,
    batch_size: int | None = None,
    seq_len: int | None = None,
    device: str = "auto",
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    repeat: int = 1,
    benchmark: bool = True,
    activities: Iterable[Activity] = ("cpu", "cuda"),
    with_stack: bool = False,
    profile_memory: bool = False,
    name: str = "workload",
    output_dir: str | Path | None = None,
) -> Run: ...


@overload
def profile(
    *,
    device: str = "auto",
    activities: Iterable[Activity] = ("cpu", "cuda"),
    with_stack: bool = False,
    profile_memory: bool = False,
    name: str = "workload",
    output_dir: str | Path | None = None,
) -> "ProfileSession": ...


def profile(
    workload: "Callable[[], object] | torch.nn.Module | None" = None,
    inputs: Any = None,
    *,
    mode: Mode = "inference",
    dtype: Dtype = "float32",
    compile: bool = False,  # noqa: A002
    batch_size: int | None = None,
    seq_len: int | None = None,
    device: str = "auto",
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    repeat: int = 1,
    benchmark: bool = True,
    activities: Iterable[Activity] = ("cpu", "cuda"),
    with_stack: bool = False,
    profile_memory: bool = False,
    name: str = "workload",
    output_dir: str | Path | None = None,
) -> "Run | ProfileSession":
    """Profile a step or a module, or any code.

    Called with a workload, it runs a cold step, unprofiled steps and a profiler schedule, and returns a `Run`. Called
    without one, it returns a `ProfileSession` to be used with ``with``.

    Args:
        workload: a callable without arguments that does one step, or a module (then ``inputs`` are its inputs).
        inputs: the module's inputs: a tensor, a tuple of positional or a dict of keyword arguments.
        mode: for a module, one inference or one training step (AdamW).
        dtype: for a module, the type of its parameters (inference) or of autocast (training).
        compile: run it through ``torch.compile``.
        batch_size: sequences in one step, for throughput.
        seq_len: tokens per sequence, for throughput.
        device: ``auto`` (first GPU, else CPU), ``cpu``, ``cuda`` or ``cuda:N``; a module is moved there.
        wait: profiler schedule: steps left out.
        warmup: profiler schedule: steps not kept.
        active: profiler schedule: steps recorded.
        repeat: profiler schedule: cycles, one trace each.
        benchmark: whether unprofiled steps are timed too.
        activities: what the profiler collects.
        with_stack: whether Python stacks are recorded.
        profile_memory: whether allocations are recorded.
        name: for file names and titles.
        output_dir: where the run directory is made; a temporary one if left out.

    Raises:
        UsageError: the workload is neither a step nor a module with inputs, or a setting does not apply to it.
        EnvironmentLacksError: PyTorch is missing, or the device is not there.
    """
    _require_torch()
    options = CaptureOptions(
        device=device,
        activities=tuple(dict.fromkeys(activities)),
        schedule=Schedule(wait, warmup, active, repeat),
        with_stack=with_stack,
        profile_memory=profile_memory,
        benchmark=benchmark,
    )
    configuration = Configuration(name, mode, dtype, batch_size=batch_size, seq_len=seq_len, compile=compile)
    directory, temporary = _run_directory(output_dir)
    if workload is None:
        return ProfileSession(configuration, replace(options, schedule=None), directory, temporary=temporary)
    record = _measure(workload, inputs, configuration, options, directory)
    return _finish(record, directory, temporary=temporary)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise EnvironmentLacksError(f"profiling needs PyTorch: {error}. pip install 'opscope[torch]'") from error


def _run_directory(output_dir: str | Path | None) -> tuple[RunDirectory, bool]:
    path = Path(tempfile.mkdtemp(prefix="opscope-")) if output_dir is None else Path(output_dir)
    directory = RunDirectory(path)
    directory.create()
    return directory, output_dir is None


def _measure(
    workload: "Callable[[], object] | torch.nn.Module",
    inputs: Any,
    configuration: Configuration,
    options: CaptureOptions,
    directory: RunDirectory,
) -> CaptureRecord:
    import torch

    from opscope.sweep.measure import measure_workload
    from opscope.workloads.building import resolve_device
    from opscope.workloads.custom import from_object

    if inputs is None and isinstance(workload, torch.nn.Module):
        raise UsageError("a module needs its inputs: opscope.profile(module, inputs)")
    if inputs is not None and not isinstance(workload, torch.nn.Module):
        raise UsageError(
            f"inputs belong to a module, not to {type(workload).__name__}: pass a callable without arguments"
        )
    built = from_object(
        workload if inputs is None else (workload, inputs), configuration, resolve_device(options.device)
    )
    return measure_workload(built, configuration, options, directory, lambda _: None)


def _finish(record: CaptureRecord, directory: RunDirectory, *, temporary: bool) -> Run:
    """Write the run directory's results and read them back as a run."""
    manifest = new_manifest([record.configuration], record.options, ["opscope.profile"])
    entry = write_outputs(directory, Entry(record.configuration, "done", record=record_name(record.configuration)))
    manifest = replace(
        manifest,
        entries=(entry,),
        environment=record.environment,
        git_revision=record.environment.git_revision,
    )
    directory.write_manifest(manifest)
    write_comparison(directory, manifest)
    result = result_of(directory, record, record.traces[0])
    run = Run(record, result.trace, result.analysis, result.document, directory.path)
    if temporary:
        weakref.finalize(run, shutil.rmtree, directory.path, ignore_errors=True)
    return run


class ProfileSession:
    """Profiles the code of a ``with`` block, or chosen parts of it.

    ::

        with opscope.profile(activities=("cpu", "cuda")) as session:
            session.stop("cpu", "cuda")
            inputs = make_inputs()          # not collected
            session.start("cpu", "cuda")
            with session.step():
                model(inputs)
        print(session.run.report())

    Nothing is run before: what a first use costs (loading code to the device) is in the trace, and named as such by
    the trust checks.
    """

    def __init__(
        self,
        configuration: Configuration,
        options: CaptureOptions,
        directory: RunDirectory,
        *,
        temporary: bool,
    ) -> None:
        self._configuration, self._options = configuration, options
        self._directory, self._temporary = directory, temporary
        self._run: Run | None = None
        self._profiler: Any = None
        self._device: Any = None
        self._steps = 0

    @property
    def run(self) -> Run:
        """The result, once the ``with`` block has ended.

        Raises:
            OpscopeError: it has not.
        """
        if self._run is None:
            raise OpscopeError("the session has no result yet: it is there after the with block")
        return self._run

    def __enter__(self) -> "ProfileSession":
        from torch.profiler import profile as torch_profile

        from opscope.capture.profiler import collected_activities, describe
        from opscope.workloads.building import resolve_device

        self._device = resolve_device(self._options.device)
        self._profiler = torch_profile(
            activities=collected_activities(self._options.activities, self._device),
            record_shapes=True,
            profile_memory=self._options.profile_memory,
            with_stack=self._options.with_stack,
        )
        self._profiler.__enter__()
        describe(self._profiler, self._device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from opscope.bench.steps import synchronize

        synchronize(self._device)
        self._profiler.__exit__(kind, error, trace)
        if error is None:
            self._run = _finish(self._record(), self._directory, temporary=self._temporary)

    def start(self, *activities: Activity) -> None:
        """Collect these activities (``"cpu"``, ``"cuda"``) from here on."""
        self._toggle(activities, enable=True)

    def stop(self, *activities: Activity) -> None:
        """Do not collect these activities from here on."""
        self._toggle(activities, enable=False)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Mark a step of the workload: ``with session.step(): ...``.

        It ends with a wait for the device, so that the step's work lies in its own range of the trace.
        """
        from torch.profiler import record_function

        from opscope.bench.steps import synchronize

        self._steps += 1
        with record_function(f"ProfilerStep#{self._steps}"):
            yield
            synchronize(self._device)

    def _toggle(self, activities: tuple[Activity, ...], *, enable: bool) -> None:
        from opscope.capture.profiler import collected_activities

        chosen: list[ProfilerActivity] = collected_activities(activities, self._device) if activities else []
        if not chosen:
            raise UsageError("name the activities to start or stop: 'cpu', 'cuda', or both")
        self._profiler.toggle_collection_dynamic(enable, chosen)

    def _record(self) -> CaptureRecord:
        from opscope.capture.environment import describe_environment, peak_memory
        from opscope.capture.profiler import write_trace
        from opscope.sweep.measure import write_functions

        target = self._configuration.target
        name = trace_name(short_name(target), self._configuration, 0)
        write_trace(self._profiler, self._directory.inside(name))
        functions, reason = write_functions(self._directory, self._device)
        record = CaptureRecord(
            configuration=self._configuration,
            options=self._options,
            workload=WorkloadInfo(short_name(target), f"{target} (a with block)", own_step=True),
            environment=describe_environment(self._device),
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            cold_step_ns=None,
            benchmark=None,
            memory=peak_memory(self._device),
            traces=(name,),
            functions=functions,
            functions_reason=reason,
        )
        self._directory.write(record_name(self._configuration), encode(record))
        return record
