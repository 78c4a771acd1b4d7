"""torch.profiler around a step: one raw Chrome trace per cycle of the schedule."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from opscope._version import __version__
from opscope.bench.steps import synchronize
from opscope.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.readers.repair import repaired
from opscope.record import Activity, CaptureOptions, Schedule

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
) -> None:
    """Run a step under torch.profiler's schedule and write one trace per cycle.

    Every step ends with a synchronise, so that its device work lies in its own ``ProfilerStep`` range and nothing is
    left over from the step before. Shapes are always recorded.

    Args:
        step: does the work once.
        device: where it runs.
        options: what is collected, and the schedule.
        traces: where the traces go, one path per cycle.
        progress: called with the fraction done.

    Raises:
        OpscopeError: the profiler finished fewer cycles than it was asked for.
        EnvironmentLacksError: a trace could not be written whole.
    """
    plan = options.schedule or Schedule()
    written: list[Path] = []

    def save(profiler: profile) -> None:
        target = traces[len(written)]
        write_trace(profiler, target)
        written.append(target)

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
    if len(written) != plan.repeat:
        raise OpscopeError(
            f"the profiler finished {len(written)} of {plan.repeat} cycles: no trace of the others exists"
        )


def describe(profiler: profile, device: torch.device) -> None:
    """Write into the trace what its reader cannot know otherwise: Kineto records no PyTorch version."""
    facts = {
        "opscope": __version__,
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
        "device": str(device),
    }
    profiler.add_metadata_json("opscope", json.dumps(facts))


def write_trace(profiler: profile, target: Path) -> None:
    """Export a trace into a temporary folder beside its place and move it there.

    Some versions of PyTorch write bytes that no viewer can read into names of Python frames; those are replaced.

    Raises:
        EnvironmentLacksError: it could not be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent) as folder:
            partial = Path(folder) / target.name
            profiler.export_chrome_trace(str(partial))
            content, replaced = repaired(partial.read_bytes())
            if replaced:
                partial.write_bytes(content)
            partial.replace(target)
    except (OSError, RuntimeError) as error:
        raise EnvironmentLacksError(f"the trace {target} could not be written: {error}") from error
