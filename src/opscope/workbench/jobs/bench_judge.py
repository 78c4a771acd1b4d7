"""Judges variants that run in other processes: this one has the inputs, the right results and the clock.

It imports the files of the baseline, the inputs and the reference, and never calls a variant.
"""

import functools
import random
import signal
import sys
from collections.abc import Callable
from typing import Final

import msgspec
import torch
from msgspec.structs import replace

from opscope.base.errors import OpscopeError
from opscope.base.processes import end_with_parent
from opscope.documents.bench import Confirmation
from opscope.record.bench import BenchRequest, Judged, JudgeJob
from opscope.torch_support.tensors import current, resolve_device
from opscope.workbench.benchmarking.apart import Apart, Pair, confirmation, ended
from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.benchmarking.instruments import Instruments
from opscope.workbench.benchmarking.run import odd_inputs, shown_parameters
from opscope.workbench.jobs.bench_targets import cases_of, points_of

_SEED: Final = 0  # before the user's files are imported: weights that they draw are then the same in every process


def judge(job: JudgeJob, progress: Callable[[str], None]) -> tuple[Confirmation, ...]:
    """Confirm variants, each in a process of its own beside the baseline in another.

    Args:
        job: what to confirm.
        progress: called with a line of text on what goes on.

    Returns:
        One for each that the job names, in its order.

    Raises:
        OpscopeError: the files of the baseline cannot be imported, or the inputs cannot be made.
    """
    request, names = job.request, dict.fromkeys((one.case, one.name) for one in job.judged)
    processes: dict[tuple[str, str], Apart] = {}
    # All are forked first: this process has neither imported code of the user's nor used a GPU yet.
    for case, name in (*dict.fromkeys((case, "") for case, _ in names), *names):
        load = functools.partial(_loaded, request, case, name)
        processes[case, name] = Apart(load, request.device, job.timeout_s, tuple(processes.values()))
    with ended(tuple(processes.values())):
        device = resolve_device(request.device)
        with current(device):
            _seed()
            instruments = Instruments()
            cases = {case.name: case for case in cases_of(request, device, wanted=())}
            if (replaced := instruments.mended()) is not None:
                raise OpscopeError(f"importing the baseline's file replaces {replaced}, by which variants are judged")
            points = list(points_of(request.axes))
            results: list[Confirmation] = []
            for one in job.judged:
                progress(f"{one.case}: running {one.name} in its own process")
                results.append(_judged(one, cases[one.case], points, processes, device, request.seconds))
    return tuple(results)


def _judged(
    one: Judged,
    case: Case,
    points: list[dict[str, object]],
    processes: dict[tuple[str, str], Apart],
    device: torch.device,
    seconds: float,
) -> Confirmation:
    point = next(point for point in points if shown_parameters(case, point) == one.parameters)
    alone = replace(case, variants={case.baseline: case.variants[case.baseline]}, refused={})
    pair = Pair(alone, one.name, processes[one.case, one.name], processes[one.case, ""], device)
    try:
        torch.manual_seed(_SEED)
        inputs = case.make_inputs(device, point)
        return confirmation(pair, inputs, odd_inputs(case, point, device), one.claims, seconds)
    except torch.OutOfMemoryError:
        return Confirmation(reason="the device does not have enough memory for two processes")


def _loaded(request: BenchRequest, case: str, name: str) -> Function:
    """Return a variant, in the process that runs it; the baseline for an empty name."""
    _seed()
    cases = {one.name: one for one in cases_of(request, resolve_device(request.device), wanted=(name,))}
    return cases[case].variants[name or cases[case].baseline]


def _seed() -> None:
    random.seed(_SEED)
    torch.manual_seed(_SEED)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(_SEED)


def main() -> None:
    """Serve one job from standard input: progress to standard output, line by line, and the result as its last line."""

    def progress(text: str) -> None:
        print(text, flush=True)  # noqa: T201

    end_with_parent(signal.SIGKILL)
    data = sys.stdin.buffer.read()
    if not data:  # there was nothing to judge
        return
    try:
        result = judge(msgspec.json.decode(data, type=JudgeJob), progress)
    except OpscopeError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    progress(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main()
