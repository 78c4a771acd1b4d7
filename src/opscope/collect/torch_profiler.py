"""torch.profiler as a collector: one raw Chrome trace per cycle of the schedule, or one of a block of code."""

import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch.profiler import ProfilerAction, ProfilerActivity, _ExperimentalConfig, profile, schedule

from opscope._version import __version__
from opscope.base.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.base.files import partial_prefix
from opscope.base.units import format_bytes
from opscope.collect.collector import Collected
from opscope.collect.memory_history import MemoryHistory
from opscope.measuring.clock import synchronize, time_once
from opscope.readers.content import repaired
from opscope.record.capture import MemoryRecording, RawTrace
from opscope.record.configuration import Activity, CaptureOptions, Schedule
from opscope.workloads.stepping import Workload

ACTIVITIES: Mapping[Activity, ProfilerActivity] = {"cpu": ProfilerActivity.CPU, "cuda": ProfilerActivity.CUDA}
_INDUCTOR = "_inductor"
_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


# Which work of one stream another stream waits for stands in no other record. They make a profiled step of two streams
# 2.7 % longer (benchmarks/results/h100-waits-recorded.json).
# Packages whose threads run no operators.
_COMPUTE_NOTHING: Final = frozenset(("ipykernel", "IPython", "zmq", "tornado", "debugpy", "tqdm"))
_WAITS: Final = _ExperimentalConfig(enable_cuda_sync_events=True)
_ALL_THREADS_FROM: Final = (2, 13)  # of PyTorch; before, threads that a program starts itself are not recorded


def collected_activities(activities: Sequence[Activity], device: torch.device) -> list[ProfilerActivity]:
    """Return the activities to collect on a device; CUDA is left out without a GPU.

    Raises:
        UsageError: nothing is left to collect.
    """
    chosen = [ACTIVITIES[name] for name in activities if name != "cuda" or device.type == "cuda"]
    if not chosen:
        raise UsageError(f"only CUDA activities are to be collected, but the workload runs on {device}")
    return chosen


class _Profile(profile):  # type: ignore[misc]
    """torch.profiler.profile that starts without importing Inductor.

    PyTorch's own imports Inductor to ask whether compiled code uses CUDA graphs: 3.3 s of the first start on an H200's
    host, 1.5 s elsewhere. An Inductor that was not imported has compiled nothing.

    Attributes:
        of_all_threads: whether it records all threads; what it collects cannot be switched then.
    """

    of_all_threads = False

    def prepare_trace(self) -> None:
        """Prepare as PyTorch does."""
        with _without_inductor():
            super().prepare_trace()


@contextmanager
def _without_inductor() -> Iterator[None]:
    # PyTorch imports the modules in this set at their first use as attributes of torch.
    lazy = getattr(torch, "_lazy_modules", None)
    if "torch._inductor" in sys.modules or not isinstance(lazy, set) or _INDUCTOR not in lazy:
        yield
        return
    lazy.discard(_INDUCTOR)
    try:
        yield
    finally:
        lazy.add(_INDUCTOR)


class TorchProfiler(Struct, frozen=True):
    """Collects with torch.profiler. Shapes are always recorded.

    Attributes:
        options: what is collected, and the schedule.
        device: where the workload runs.
        traces: file names of the traces, one per cycle.
        progress: called with the fraction done, 0 to 1.
    """

    options: CaptureOptions
    device: torch.device
    traces: Sequence[str] = ()
    progress: Callable[[float], None] = lambda _: None

    def collect(self, subject: Workload, folder: Path) -> Collected[tuple[RawTrace, ...]]:
        """Run a workload's step under the schedule and write one trace per cycle.

        Every step ends with a synchronise, so that its device work lies in its own ``ProfilerStep`` range and nothing
        is left over from the step before.

        Args:
            subject: the workload.
            folder: where the traces go.

        Raises:
            UsageError: a profiler is already running, or nothing is left to collect on the device.
            OpscopeError: the profiler finished fewer cycles than it was asked for.
            EnvironmentLacksError: a trace could not be written whole.
        """
        refuse_second_profiler()
        plan = self.options.schedule or Schedule()
        written: list[RawTrace] = []

        def save(profiler: profile) -> None:
            name = self.traces[len(written)]
            written.append(RawTrace(name, write_trace(profiler, folder / name)))

        steps = (plan.wait + plan.warmup + plan.active) * plan.repeat
        with self.profiler(plan, save) as profiler:
            for done in range(1, steps + 1):
                if profiler.current_action in _RECORDING:
                    self.describe(profiler)
                subject.step()
                synchronize(self.device)
                profiler.step()
                self.progress(done / steps)
        if len(written) != plan.repeat:
            raise OpscopeError(
                f"the profiler finished {len(written)} of {plan.repeat} cycles: no trace of the others exists"
            )
        return Collected(tuple(folder / trace.file for trace in written), tuple(written))

    def light(self, subject: Workload, folder: Path, name: str) -> RawTrace | None:
        """Collect device activities only, over one step more than a cycle has.

        Without host ranges, only the end of the additional first step tells where the second one begins.

        Returns:
            The trace; None if `of_device_only` returns None.

        Raises:
            OpscopeError: see `collect`.
        """
        alone = self.of_device_only()
        if alone is None:
            return None
        plan = self.options.schedule or Schedule()
        plan = replace(plan, wait=0, repeat=1, active=plan.active + 1)
        alone = replace(alone, options=replace(alone.options, schedule=plan), traces=(name,), progress=lambda _: None)
        return alone.collect(subject, folder).record[0]

    def memory(self, subject: Workload, folder: Path, name: str, history: MemoryHistory) -> MemoryRecording:
        """Collect operators and allocations over the steps of a cycle, beside the history of a GPU's memory.

        As many steps without that history come before, under the same profiler: what they take is compared.

        Args:
            subject: the workload.
            folder: where the trace goes.
            name: the trace's file.
            history: what records the history; it writes the snapshot.

        Returns:
            What was recorded, without the snapshot's name.

        Raises:
            OpscopeError: see `collect`.
        """
        plan = self.options.schedule or Schedule()
        with_memory = replace(self, options=replace(self.options, profile_memory=True))

        def steps(begin: Callable[[], None], save: Callable[[profile], None] | None) -> tuple[int, ...]:
            took = []
            with with_memory.profiler(Schedule(0, 1, plan.active, 1), save) as profiler:
                subject.step()
                synchronize(self.device)
                begin()
                for _ in range(plan.active):
                    profiler.step()
                    self.describe(profiler)
                    took.append(time_once(subject.step, self.device))
                profiler.step()
            return tuple(took)

        refuse_second_profiler()
        without_ns = steps(lambda: None, None)
        history.only_alive()

        def save(profiler: profile) -> None:
            write_trace(profiler, folder / name)

        with_ns = steps(history.anew, save)
        if not history.keep():
            return MemoryRecording(reason=history.reason)
        history.end()
        return MemoryRecording(None, name, with_ns, without_ns)

    def of_device_only(self) -> "TorchProfiler | None":
        """Return a collector of device activities only, which costs the host the least.

        Returns:
            The collector; None without a GPU, or unless the options ask for both CPU and CUDA activities. The pass with
            names, which records both, tells what the activities of this one are.
        """
        if self.device.type != "cuda" or set(self.options.activities) != {"cpu", "cuda"}:
            return None
        options = replace(self.options, activities=("cuda",), with_stack=False, profile_memory=False)
        return replace(self, options=options)

    @contextmanager
    def block(self) -> Iterator[profile]:
        """Collect all that runs in a ``with`` block; `write_trace` writes it afterwards.

        Raises:
            UsageError: a profiler is already running, or nothing is left to collect.
        """
        refuse_second_profiler()
        with self.profiler() as profiler:
            self.describe(profiler)
            yield profiler

    def profiler(self, plan: Schedule | None = None, on_ready: Callable[[profile], None] | None = None) -> profile:
        """Set up torch.profiler; no other place does.

        Args:
            plan: the schedule; None records everything from start to stop.
            on_ready: called at the end of each cycle.

        Raises:
            UsageError: nothing is left to collect on the device.
        """
        timing = None
        if plan is not None:
            timing = schedule(wait=plan.wait, warmup=plan.warmup, active=plan.active, repeat=plan.repeat)
        extras = _extras() if "cpu" in self.options.activities else None
        result = _Profile(
            activities=collected_activities(self.options.activities, self.device),
            schedule=timing,
            on_trace_ready=on_ready,
            record_shapes="cpu" in self.options.activities,
            profile_memory=self.options.profile_memory,
            with_stack=self.options.with_stack,
            experimental_config=extras,
        )
        result.of_all_threads = extras not in (None, _WAITS)
        return result

    def describe(self, profiler: profile) -> None:
        """Write into the trace what Kineto does not record: the versions of opscope and PyTorch, and the device."""
        facts = {
            "opscope": __version__,
            "torch": str(torch.__version__),
            "torch_git": torch.version.git_version,
            "device": str(self.device),
        }
        profiler.add_metadata_json("opscope", json.dumps(facts))


def _extras() -> _ExperimentalConfig:
    """Return what else is recorded: waits of streams, and operators on threads that the program has started itself."""
    release = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    if release < _ALL_THREADS_FROM or not _has_threads():
        return _WAITS
    return _ExperimentalConfig(enable_cuda_sync_events=True, profile_all_threads=True)


def _has_threads() -> bool:
    """Tell whether the program runs Python threads of its own, beside those that show progress or serve a notebook."""
    others = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    return any(
        thread.is_alive()
        and not thread.name.startswith("opscope")
        and _COMPUTE_NOTHING.isdisjoint((_package(type(thread)), _package(getattr(thread, "_target", None))))
        for thread in others
    )


def _package(one: object) -> str:
    return str(getattr(one, "__module__", "")).partition(".")[0]


def refuse_second_profiler() -> None:
    """Check that no profiler is running: PyTorch can have one at a time, and crashes on a second.

    Raises:
        UsageError: a profiler is running.
    """
    # The first knows nothing of a profiler of all threads, the second nothing of one that was started from C++.
    if torch.autograd._profiler_enabled() or getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
        raise UsageError("a profiler is already running in this process, and PyTorch can only run one at a time")


def write_trace(profiler: profile, target: Path) -> int:
    """Export a trace into a temporary folder beside its target and move it there.

    Some versions of PyTorch write bytes that no viewer can read into names of Python frames; those are replaced.

    Args:
        profiler: a profiler that has stopped, or whose cycle has ended.
        target: the trace's file; its folder must exist.

    Returns:
        How many bytes were replaced.

    Raises:
        EnvironmentLacksError: the trace could not be written whole.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=partial_prefix(), dir=target.parent) as folder:
            partial = Path(folder) / target.name
            profiler.export_chrome_trace(str(partial))
            # On a full disk Kineto only logs an error, and leaves no file or half of one.
            raw = partial.read_bytes() if partial.is_file() else b""
            if not raw.rstrip().endswith(b"}"):
                free = format_bytes(shutil.disk_usage(target.parent).free)
                raise EnvironmentLacksError(f"the trace {target} could not be written whole ({free} free there)")
            content, replaced = repaired(raw)
            if replaced:
                partial.write_bytes(content)
            partial.replace(target)
            return replaced
    except (OSError, RuntimeError) as error:
        raise EnvironmentLacksError(f"the trace {target} could not be written: {error}") from error
