"""The process that benchmarks: reads a request from standard input, prints its progress, and writes a document."""

import functools
import mmap
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import torch
from msgspec.structs import replace

from opscope.base.errors import OpscopeError, UsageError
from opscope.base.processes import end_with_parent
from opscope.documents.bench import BenchDocument, BenchResult, FalseAlarms
from opscope.measuring.rounds import MeasuringLimits
from opscope.record.bench import BenchJob
from opscope.record.codec import encode
from opscope.torch_support.tensors import current, resolve_device
from opscope.workbench.benchmarking.case import Case, Function
from opscope.workbench.benchmarking.host_timing import measure_false_alarms
from opscope.workbench.benchmarking.instruments import Instruments
from opscope.workbench.benchmarking.run import bench_case
from opscope.workbench.gallery.cases import TIMERS
from opscope.workbench.jobs.bench_targets import bench_document_of, cases_of, points_of

_NOTED: Final = 4096  # bytes of the file that tells which variant runs


def run(
    job: BenchJob, progress: Callable[[str], None], note: Callable[[str, str], None]
) -> BenchDocument | FalseAlarms:
    """Benchmark what a job asks for.

    Args:
        job: with ``trials``, a function is compared with itself that often, and targets are not measured.
        progress: called with a line of text on what goes on.
        note: called with a case and the name of its variant before that runs.

    Raises:
        UsageError: a target, a parameter or the device's name is wrong.
        EnvironmentLacksError: the device or nvcc is missing.
    """
    request = job.request
    device = resolve_device(request.device)
    limits = MeasuringLimits(half_width=request.half_width, seconds=request.seconds, calls=request.calls)
    with current(device):
        if request.trials:
            return measure_false_alarms(device, limits, request.trials, progress)
        results: list[BenchResult] = []
        if TIMERS in request.targets:
            from opscope.workbench.gallery.timers import measure

            results += measure(device, limits, progress)
        instruments = Instruments()
        guard = functools.partial(_loaded, instruments, note, job.refused)
        cases = [_without(case, job.refused) for case in cases_of(request, device, guard)]
        _refuse_replaced(instruments)
        for case in cases:
            # The baseline and the reference are not candidates: without them nothing is compared.
            names = frozenset(case.variants) - {case.baseline}
            instruments.note = functools.partial(_note_candidate, note, case.name, names)
            for point in points_of(request.axes):
                results += bench_case(case, point, device, limits, progress, instruments)
        return bench_document_of(results, device, request)


def _refuse_replaced(instruments: Instruments) -> None:
    if (replaced := instruments.mended()) is not None:
        raise UsageError(f"importing the targets replaces {replaced}, by which they are judged: nothing was measured")


def _loaded(
    instruments: Instruments,
    note: Callable[[str, str], None],
    refused: Mapping[str, Mapping[str, str]],
    case: str,
    name: str,
    load: Callable[[], Function],
) -> Function | str:
    """Import one candidate's function; return why it is refused if importing it replaces what it is judged by."""
    _refuse_replaced(instruments)  # by what was imported before: the baseline's file, or that of the inputs
    if (why := refused.get(case, {}).get(name)) is not None:
        return why
    note(case, name)
    try:
        function = load()
    finally:
        note(case, "")
    replaced = instruments.mended()
    return function if replaced is None else f"importing it replaces {replaced}, by which it is judged"


def _note_candidate(note: Callable[[str, str], None], case: str, candidates: frozenset[str], name: str) -> None:
    note(case, name if name in candidates else "")


def _without(case: Case, refused: Mapping[str, Mapping[str, str]]) -> Case:
    """Return a case without the variants that ended a process before this one."""
    own = refused.get(case.name, {})
    runs = {name: function for name, function in case.variants.items() if name not in own}
    return replace(case, variants=runs, refused={**case.refused, **own})


def _noting(path: Path) -> Callable[[str, str], None]:
    """Return what writes into a file which variant of which case runs; it takes less than a microsecond."""
    path.write_bytes(b" " * _NOTED)
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), _NOTED)

    @functools.cache
    def text(case: str, name: str) -> bytes:
        result = msgspec.json.encode((case, name)) if name else b""
        return (result if len(result) <= _NOTED else b"").ljust(_NOTED)

    def note(case: str, name: str) -> None:
        memory[:] = text(case, name)

    return note


def main() -> None:
    """Serve one job: write the document to the file that the first argument names, progress to standard output.

    The second argument names a file that tells which variant runs, should this process end or never return.
    """
    end_with_parent(signal.SIGKILL)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=BenchJob)
    target, noted = map(Path, sys.argv[1:3])

    def progress(text: str) -> None:
        print(text, flush=True)  # noqa: T201

    try:
        document = run(job, progress, _noting(noted))
    except OpscopeError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    except SystemExit as error:
        sys.stderr.write(f"a function called sys.exit({error.code!r})\n")
        sys.exit(1)
    except torch.OutOfMemoryError as error:
        sys.stderr.write(f"not enough memory on the device: {str(error).splitlines()[0]}\n")
        sys.exit(3)  # the code of EnvironmentLacksError
    target.write_bytes(encode(document))


if __name__ == "__main__":
    main()
