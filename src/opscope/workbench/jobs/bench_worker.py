"""The process that benchmarks: reads a request from standard input, prints its progress, and writes a document."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from opscope.base.errors import OpscopeError
from opscope.documents.bench import BenchDocument, BenchResult, FalseAlarms
from opscope.record.bench import BenchRequest
from opscope.record.codec import encode
from opscope.torch_support.device import current, resolve_device
from opscope.workbench.benchmarking.calibration import measure_false_alarms
from opscope.workbench.benchmarking.run import bench_case
from opscope.workbench.benchmarking.stopping import Limits
from opscope.workbench.gallery import TIMERS
from opscope.workbench.jobs.bench_targets import cases_of, points_of
from opscope.workbench.jobs.bench_written import document_of


def run(request: BenchRequest, progress: Callable[[str], None]) -> BenchDocument | FalseAlarms:
    """Benchmark what a request asks for.

    Args:
        request: with ``trials``, a function is compared with itself that often, and targets are not measured.
        progress: called with a line of text on what goes on.

    Raises:
        UsageError: a target, a parameter or the device's name is wrong.
        EnvironmentLacksError: the device or nvcc is missing.
    """
    device = resolve_device(request.device)
    limits = Limits(half_width=request.half_width, seconds=request.seconds, calls=request.calls)
    with current(device):
        if request.trials:
            return measure_false_alarms(device, limits, request.trials, progress)
        results: list[BenchResult] = []
        if TIMERS in request.targets:
            from opscope.workbench.gallery.timers import measure

            results += measure(device, limits, progress)
        for case in cases_of(request, device):
            for point in points_of(request.axes):
                results += bench_case(case, point, device, limits, progress)
        return document_of(results, device, request)


def main() -> None:
    """Serve one request: write the document to the file that the first argument names, progress to standard output."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=BenchRequest)

    def progress(text: str) -> None:
        print(text, flush=True)  # noqa: T201

    try:
        document = run(request, progress)
    except OpscopeError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    except torch.OutOfMemoryError as error:
        sys.stderr.write(f"not enough memory on the device: {str(error).splitlines()[0]}\n")
        sys.exit(3)  # the code of EnvironmentLacksError
    Path(sys.argv[1]).write_bytes(encode(document))


if __name__ == "__main__":
    main()
