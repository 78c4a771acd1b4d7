"""The Python API of profiles: ``opscope.profile``, called with a step or a module, or used in a ``with`` block."""

import copy
import operator
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args, overload

from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.measured import Measured
from opscope.api.analyze import Analysis, notebook_analysis, to_do
from opscope.base.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.base.files import kept_scratch
from opscope.base.summary import Summarised, Summary
from opscope.documents.trace import TraceDocument
from opscope.record.capture import CaptureRecord, RawTrace, WorkloadInfo
from opscope.record.configuration import Activity, CaptureOptions, Configuration, Dtype, Mode, Schedule
from opscope.record.sweep import Manifest
from opscope.render.markdown import render
from opscope.report.brief import first_screen
from opscope.report.kernel_report import kernel_report
from opscope.report.page.html import Page
from opscope.report.step_parts import step_line
from opscope.runs.pipeline import PageParts, functions_of, write_outputs
from opscope.runs.store import RunDirectory, with_entry
from opscope.sweep.plan import new_manifest
from opscope.sweep.runner import described, written_sweep
from opscope.trace.model import Trace
from opscope.workloads.catalog import target_name

if TYPE_CHECKING:
    import torch
    from torch.profiler import ProfilerActivity


class Run(Summarised, Struct, frozen=True, weakref=True):
    """The results of one profile.

    Attributes:
        record: the request, the environment, unprofiled step times and peak memory.
        trace: the trace's tables (of the first cycle).
        analysis: everything computed from the trace.
        measured: the analysis joined with the record: bound, trust, throughput.
        statistics: the figures of ``profiling_stats_*.json`` (schema ``opscope.analysis/1``).
        directory: the run directory; without ``output_dir``, a temporary one that is removed with this object.
    """

    record: CaptureRecord
    trace: Trace
    analysis: Analysis
    measured: Measured
    statistics: TraceDocument
    directory: Path

    def summary(self) -> Summary:
        """Summarise the step time, the bound, the trust in it, and the most expensive operators."""
        of_trace, step = self.analysis.summary(), self.measured.step_time
        # By the unprofiled step, which a trace alone does not know.
        first = [row for row in of_trace.rows if not row[0].startswith("to do ")]
        joined = {
            "step": " ".join(filter(None, (step_line(step), None if step is None else step.sentence))),
            "bound": self.measured.bound.sentence,
            "trust": str(self.measured.trust.verdict),
        }
        doubts = {f"{check.verdict} {check.name}": check.sentence for check in self.measured.trust.doubts()}
        joined |= dict(to_do(first_screen(self.measured))) | doubts
        rows = (*joined.items(), *((name, value) for name, value in first if name not in joined))
        title = f"Run of {self.record.workload.name} in {self.directory}"
        return Summary(title, rows, of_trace.bars, of_trace.bars_title)

    def report(self) -> str:
        """Return the Markdown report."""
        return render(kernel_report(self.statistics))

    def page(self) -> Page:
        """Return a page that opens offline; a notebook shows it in a frame."""
        parts = PageParts(1)
        directory = RunDirectory(self.directory)
        parts.add(self.measured, functions_of(directory, self.record), self.statistics.trace, directory)
        return Page(parts.page())

    def save(self, directory: str | Path) -> Path:
        """Copy the run directory (trace, statistics, report, manifest) to another place and return its path.

        Raises:
            UsageError: that folder is not empty; results are never replaced unasked.
        """
        target = Path(directory)
        if target.resolve() == self.directory.resolve():
            return target
        RunDirectory(target).refuse_if_used("name another folder")
        return shutil.copytree(self.directory, target, dirs_exist_ok=True)


@overload
def profile(
    workload: "Callable[[], object] | torch.nn.Module",
    inputs: Any = None,
    *,
    mode: Mode = "inference",
    dtype: Dtype | None = None,
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
    dtype: Dtype | None = None,
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
    """Profile a step, a module, or any code.

    With a workload, run a cold step, unprofiled steps and a profiler schedule, and return a `Run`. Without one, return
    a `ProfileSession` for a ``with`` block.

    Args:
        workload: a callable without arguments that does one step, or a module (then ``inputs`` are its inputs). A copy
            of a module is measured, so its mode, data type, device and weights stay as they are. None for a ``with``
            block.
        inputs: the module's inputs: a tensor, a tuple of positional or a dict of keyword arguments.
        mode: for a module, whether a step is one inference or one training step (AdamW).
        dtype: for a module, the type of its parameters (inference) or of autocast (training); None keeps its own.
        compile: whether to run it through ``torch.compile``.
        batch_size: sequences in one step, for throughput; None if unknown.
        seq_len: tokens per sequence, for throughput; None if unknown.
        device: ``auto`` (first GPU, else CPU), ``cpu``, ``cuda`` or ``cuda:N``; the copy of a module is moved there.
        wait: profiler schedule: steps left out.
        warmup: profiler schedule: steps not kept.
        active: profiler schedule: steps recorded.
        repeat: profiler schedule: cycles, one trace each.
        benchmark: whether to time unprofiled steps too.
        activities: what the profiler collects.
        with_stack: whether to record Python stacks.
        profile_memory: whether to record allocations.
        name: for file names and titles.
        output_dir: the run directory; None makes a temporary one.

    Raises:
        UsageError: the workload is neither a step nor a module with inputs, or a setting does not apply to it.
        EnvironmentLacksError: PyTorch is missing, or the device does not exist.
    """
    _require_torch()
    schedule = _schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    sizes = {"batch_size": batch_size, "seq_len": seq_len}
    configuration = Configuration(
        name,
        settings={
            "mode": mode,
            **({} if dtype is None else {"dtype": dtype}),
            **({"compile": True} if compile else {}),
        },
        axes={size: _whole(size, value) for size, value in sizes.items() if value is not None},
    )
    options = CaptureOptions(
        device=device,
        activities=tuple(dict.fromkeys(activities)),
        schedule=None if workload is None else schedule,
        with_stack=with_stack,
        profile_memory=profile_memory,
        benchmark=benchmark,
    )
    _check(configuration, options)
    if workload is not None:
        return _profile_workload(workload, inputs, configuration, options, output_dir)
    # What a with block does not take must still have its default.
    if inputs is not None or configuration != Configuration(name, {"mode": "inference"}) or schedule != Schedule():
        raise UsageError(
            "without a workload, profile() is for a with block, which takes only device, activities, with_stack, "
            "profile_memory, name and output_dir"
        )
    return ProfileSession(configuration, options, output_dir)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise EnvironmentLacksError(f"profiling needs PyTorch: {error}. pip install 'opscope[torch]'") from error


def _schedule(**values: Any) -> Schedule:
    return Schedule(**{setting: _whole(setting, value) for setting, value in values.items()})


def _whole(name: str, value: Any) -> int:
    """Return a whole number of any type (NumPy's too) as an ``int``."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise UsageError(f"{name} takes whole numbers, not {value!r}") from error


def _check(configuration: Configuration, options: CaptureOptions) -> None:
    """Raise UsageError for a setting with an invalid value."""
    for setting, chosen, choices in (
        ("mode", [configuration.mode], get_args(Mode)),
        ("dtype", [] if configuration.dtype is None else [configuration.dtype], get_args(Dtype)),
        ("activities", options.activities or [""], get_args(Activity)),
    ):
        for word in chosen:
            if word not in choices:
                raise UsageError(f"{setting} takes {', '.join(map(repr, choices))}, not {word!r}")
    schedule = options.schedule or Schedule()
    numbers: dict[str, tuple[int | None, int]] = {
        "wait": (schedule.wait, 0),
        "warmup": (schedule.warmup, 0),
        "active": (schedule.active, 1),
        "repeat": (schedule.repeat, 1),
        "batch_size": (configuration.count("batch_size"), 1),
        "seq_len": (configuration.count("seq_len"), 1),
    }
    for setting, (value, least) in numbers.items():
        if value is not None and value < least:
            raise UsageError(f"{setting} takes whole numbers from {least} on, not {value!r}")


@contextmanager
def _run_directory(output_dir: str | Path | None) -> Iterator[RunDirectory]:
    """Make the run directory; if the block fails, remove a temporary one again."""
    path = kept_scratch() if output_dir is None else Path(output_dir)
    directory = RunDirectory(path)
    if output_dir is not None:
        directory.refuse_if_used("name another output_dir")
    try:
        directory.create()
        yield directory
    except BaseException:
        if output_dir is None:
            shutil.rmtree(path, ignore_errors=True)
        raise


def _profile_workload(
    workload: "Callable[[], object] | torch.nn.Module",
    inputs: Any,
    configuration: Configuration,
    options: CaptureOptions,
    output_dir: str | Path | None,
) -> Run:
    import torch

    from opscope.sweep.measure import Task, measure_workload
    from opscope.torch_support.tensors import resolve_device
    from opscope.workloads.custom import from_object

    module = isinstance(workload, torch.nn.Module)
    if inputs is None and module:
        raise UsageError("a module needs its inputs: opscope.profile(module, inputs)")
    if inputs is not None and not module:
        raise UsageError(
            f"inputs belong to a module, not to {type(workload).__name__}: pass a callable without arguments"
        )
    device = resolve_device(options.device)
    built = from_object((_copied(workload), inputs) if module else workload, configuration, device)
    with _run_directory(output_dir) as directory:
        manifest = new_manifest([configuration], options, ["opscope.profile"])
        task = Task(configuration, options, directory, manifest.entries[0].files)
        record = measure_workload(built, task, lambda _: None)
        return _finish(record, manifest, directory, temporary=output_dir is None)


def _copied(module: Any) -> Any:
    """Copy a module, because measuring trains, converts and moves it."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise UsageError(
            f"{type(module).__name__} cannot be copied ({error}): pass a step, a callable that runs the module"
        ) from error


def _finish(record: CaptureRecord, manifest: Manifest, directory: RunDirectory, *, temporary: bool) -> Run:
    """Write the results into the run directory and return them as a `Run`."""
    reported = write_outputs(directory, replace(manifest.entries[0], status="done", measured=True))
    manifest = described(with_entry(manifest, reported.entry), record)
    manifest = written_sweep(directory, directory.with_digests(manifest, manifest.entries))
    first = reported.results[0]
    run = Run(
        record, first.analysis.trace, notebook_analysis(first.analysis), first.measured, first.document, directory.path
    )
    if temporary:  # the directory lives as long as the run that refers to it
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

    There is no warm-up, so the trace contains the costs of first use (loading code to the device); the trust checks
    point them out.
    """

    def __init__(
        self,
        configuration: Configuration,
        options: CaptureOptions,
        output_dir: str | Path | None,
    ) -> None:
        self._configuration, self._options, self._output_dir = configuration, options, output_dir
        self._run: Run | None = None
        self._profiler: Any = None
        self._device: Any = None
        self._steps = 0

    @property
    def run(self) -> Run:
        """The result, available after the ``with`` block.

        Raises:
            OpscopeError: the block has not ended, or it failed.
        """
        if self._run is None:
            raise OpscopeError("the session has no result yet: it is there after the with block")
        return self._run

    def __enter__(self) -> "ProfileSession":
        from opscope.collect.environment import reset_peak_memory
        from opscope.collect.torch_profiler import TorchProfiler
        from opscope.torch_support.tensors import current, resolve_device

        if self._profiler is not None:
            raise OpscopeError("a session is for one with block: call opscope.profile() again")
        self._device = resolve_device(self._options.device)
        collector = TorchProfiler(self._options, self._device)
        with ExitStack() as stack:
            self._directory = stack.enter_context(_run_directory(self._output_dir))
            stack.enter_context(current(self._device))
            reset_peak_memory(self._device)
            # Apart from the other contexts: the profiler must stop before the results are written, and the device stay
            # current until then.
            block = ExitStack()
            self._profiler = block.enter_context(collector.block())
            self._block = block
            self._contexts = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from opscope.measuring.clock import synchronize

        try:
            # Work that the block launched belongs to it, even if it still runs on the device.
            synchronize(self._device)
            self._block.__exit__(kind, error, trace)
            if error is None:
                self._run = self._finished()
        except BaseException as failure:
            self._contexts.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._contexts.__exit__(kind, error, trace)

    def start(self, *activities: Activity) -> None:
        """Collect these activities (``"cpu"``, ``"cuda"``) from here on.

        Raises:
            UsageError: no activity is named, or the program runs threads of its own.
            OpscopeError: the ``with`` block has not begun.
        """
        self._toggle(activities, enable=True)

    def stop(self, *activities: Activity) -> None:
        """Stop collecting these activities from here on.

        Raises:
            UsageError: no activity is named, or the program runs threads of its own.
            OpscopeError: the ``with`` block has not begun.
        """
        self._toggle(activities, enable=False)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Mark a step of the workload: ``with session.step(): ...``.

        It ends with a wait for the device, so that the step's work lies within its range in the trace.
        """
        from torch.profiler import record_function

        from opscope.measuring.clock import synchronize

        self._steps += 1
        with record_function(f"ProfilerStep#{self._steps}"):
            yield
            synchronize(self._device)

    def _toggle(self, activities: tuple[Activity, ...], *, enable: bool) -> None:
        from opscope.collect.torch_profiler import collected_activities

        if self._profiler is None:
            raise OpscopeError("collection can be switched inside the with block only")
        chosen: list[ProfilerActivity] = collected_activities(activities, self._device) if activities else []
        if not chosen:
            raise UsageError("name the activities to start or stop: 'cpu', 'cuda', or both")
        if self._profiler.of_all_threads:
            raise UsageError(
                "the program runs threads of its own, so all threads are recorded, and PyTorch cannot switch that: "
                "begin the block where recording is to start, or end these threads before it"
            )
        self._profiler.toggle_collection_dynamic(enable, chosen)

    def _finished(self) -> Run:
        """Write the collected trace and the record, and read them back as a `Run`."""
        from opscope.collect.environment import peak_memory
        from opscope.collect.torch_profiler import write_trace
        from opscope.sweep.measure import MeasurementResult, Task, write_record

        manifest = new_manifest([self._configuration], self._options, ["opscope.profile"])
        files, target = manifest.entries[0].files, self._configuration.target
        name = files.cycles[0].trace
        replaced = write_trace(self._profiler, self._directory.inside(name))
        outcome = MeasurementResult(None, None, peak_memory(self._device), (RawTrace(name, replaced),))
        info = WorkloadInfo(target_name(target), f"{target} (a with block)", own_step=True)
        task = Task(self._configuration, self._options, self._directory, files)
        record = write_record(task, self._device, info, outcome)
        return _finish(record, manifest, self._directory, temporary=self._output_dir is None)
