"""torch.profiler around a step: one raw Chrome trace per cycle of the schedule."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from opscope._version import __version__
from opscope.bench.steps import synchronize
from opscope.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.files import PARTIAL
from opscope.readers.repair import repaired
from opscope.record import Activity, CaptureOptions, Schedule
from opscope.units import format_bytes

ACTIVITIES: Mapping[Activity, ProfilerActivity] = {"cpu": ProfilerActivity.CPU, "cuda": ProfilerActivity.CUDA}
_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def collected_activities(activities: Sequence[Activity], device: torch.device) -> list[ProfilerActivity]:
    """Return what to collect on a device: there is no CUDA activity without a GPU.

    Raises:
        UsageError: nothing is left to collect.
    """
    chosen = [ACTIVITIES[name] for name in activities if name != "cuda" or device.type == "cuda"]
    if not chosen:
        raise UsageError(f"only CUDA activities are to be collected, but the workload runs on {device}")
    return chosen


def capture(
    step: Callable[[], object],
    device: torch.device,
    options: CaptureOptions,
    traces: Sequence[Path],
    progress: Callable[[float], None],
) -> tuple[int, ...]:
    """Run a step under torch.profiler's schedule and write one trace per cycle.

    Every step ends with a synchronise, so that its device work lies in its own ``ProfilerStep`` range and nothing is
    left over from the step before. Shapes are always recorded.

    Args:
        step: does the work once.
        device: where it runs.
        options: what is collected, and the schedule.
        traces: where the traces go, one path per cycle.
        progress: called with the fraction done.

    Returns:
        Per trace, how many bytes of names that were no text were replaced.

    Raises:
        UsageError: a profiler is already running.
        OpscopeError: the profiler finished fewer cycles than it was asked for.
        EnvironmentLacksError: a trace could not be written whole.
    """
    refuse_second_profiler()
    plan = options.schedule or Schedule()
    replaced: list[int] = []

    def save(profiler: profile) -> None:
        replaced.append(write_trace(profiler, traces[len(replaced)]))

    steps = (plan.wait + plan.warmup + plan.active) * plan.repeat
    with profile(
        activities=collected_activities(options.activities, device),
        schedule=schedule(wait=plan.wait, warmup=plan.warmup, active=plan.active, repeat=plan.repeat),
        on_trace_ready=save,
        record_shapes=True,
        profile_memory=options.profile_memory,
        with_stack=options.with_stack,
    ) as profiler:
        for done in range(1, steps + 1):
            if profiler.current_action in _RECORDING:
                describe(profiler, device)
            step()
            synchronize(device)
            profiler.step()
            progress(done / steps)
    if len(replaced) != plan.repeat:
        raise OpscopeError(
            f"the profiler finished {len(replaced)} of {plan.repeat} cycles: no trace of the others exists"
        )
    return tuple(replaced)


def refuse_second_profiler() -> None:
    """Refuse to start where a profiler is running: PyTorch has one at a time, and crashes over a second.

    Raises:
        UsageError: one is running.
    """
    if torch.autograd._profiler_enabled():
        raise UsageError("a profiler is already running in this process, and PyTorch can only run one at a time")


def describe(profiler: profile, device: torch.device) -> None:
    """Write into the trace what its reader cannot know otherwise: Kineto records no PyTorch version."""
    facts = {
        "opscope": __version__,
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
        "device": str(device),
    }
    profiler.add_metadata_json("opscope", json.dumps(facts))


def write_trace(profiler: profile, target: Path) -> int:
    """Export a trace into a temporary folder beside its place and move it there.

    Some versions of PyTorch write bytes that no viewer can read into names of Python frames; those are replaced.

    Returns:
        How many bytes were replaced.

    Raises:
        EnvironmentLacksError: it could not be written whole.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=target.parent) as folder:
            partial = Path(folder) / target.name
            profiler.export_chrome_trace(str(partial))
            # On a full disk Kineto only logs; what it leaves behind is no file, or half of one.
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
