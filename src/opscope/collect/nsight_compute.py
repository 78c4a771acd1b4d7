"""Hardware counters of single operators, through Nsight Compute (``ncu``)."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from opscope.base.errors import EnvironmentLacksError
from opscope.base.files import scratch
from opscope.base.processes import own_environment, own_process
from opscope.collect.collector import Collected
from opscope.knowledge.counted_work import READ, WORK_METRICS, WRITTEN, counted_operations, first_of
from opscope.readers.ncu import read_kernel_counters
from opscope.record.counters import Counters, OperatorCall

_TIMEOUT_S = 180
# Fields of `Counters` -> the metrics that ncu is asked for.
_METRICS: Final[Mapping[str, str]] = {
    "duration_ns": "gpu__time_duration.sum",
    "load_sectors_per_request": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "store_sectors_per_request": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    "shared_load_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "threads_per_instruction": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "achieved_occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm_throughput_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_throughput_percent": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
# Per reason of a stall: how many warps wait, per issued instruction.
_STALL: Final = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_STALLS: Final = (
    "long_scoreboard", "short_scoreboard", "barrier", "membar", "math_pipe_throttle", "mio_throttle", "lg_throttle",
    "tex_throttle", "wait", "not_selected", "no_instruction", "branch_resolving", "dispatch_stall", "drain", "sleeping",
    "imc_miss", "gmma",
)  # fmt: skip
_OTHERS: Final = (*_METRICS.values(), *(_STALL.format(reason) for reason in _STALLS))
# One after the other, until ncu knows all names: one that it does not know for a device makes it measure nothing. A
# pattern that fits no name is not a mistake.
_ATTEMPTS: Final = (
    (*_OTHERS, READ[0], WRITTEN[0], *WORK_METRICS),
    (*_OTHERS, READ[0], WRITTEN[0]),
    (*(f"regex:^{name.replace('.', '[.]')}$" for name in _OTHERS), *WORK_METRICS),
)


def find_ncu() -> str:
    """Return the path of ``ncu``.

    Raises:
        EnvironmentLacksError: ``ncu`` is not on the PATH.
    """
    program = shutil.which("ncu")
    if program is None:
        raise EnvironmentLacksError("ncu (Nsight Compute) is not on the PATH: hardware counters cannot be read")
    return program


class NsightCompute(Struct, frozen=True):
    """Replays one operator alone under Nsight Compute and reads the counters of the kernels that it launches."""

    def collect(self, subject: OperatorCall, folder: Path) -> Collected[tuple[Counters, ...]]:
        """Replay a call; the raw file is what ncu printed.

        Args:
            subject: the recorded call.
            folder: where the raw file goes, and ncu's temporary files.

        Raises:
            EnvironmentLacksError: ncu is missing, may not read counters, or the operator could not be replayed.
        """
        log = folder / "counters.csv"
        for metrics in _ATTEMPTS:
            log.unlink(missing_ok=True)
            stderr = self._run(subject, metrics, folder, log)
            text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
            if result := tuple(read_counters(text)):
                return Collected((log,), result)
            why = _why(text, stderr)
            if not ("==ERROR==" in why and "metric" in why):
                break
        raise EnvironmentLacksError(f"ncu measured no kernel of {subject.operator}: {why}")

    def _run(self, call: OperatorCall, metrics: Sequence[str], folder: Path, log: Path) -> bytes:
        """Run ncu on the replay; return its standard error."""
        command = [
            *(find_ncu(), "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off"),
            *("--target-processes", "all", "--log-file", str(log), "--metrics", ",".join(metrics)),
            *own_process("opscope.collect.replay"),
        ]
        try:
            result = subprocess.run(
                command,
                input=msgspec.json.encode(call),
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                env=own_environment(TMPDIR=str(folder)),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentLacksError(f"ncu could not be run: {error}") from error
        return result.stderr


def counters_of(call: OperatorCall) -> tuple[Counters, ...]:
    """Replay an operator alone and return the counters of its kernels; the raw file is not kept.

    Raises:
        EnvironmentLacksError: see `NsightCompute.collect`.
    """
    with scratch() as folder:
        return NsightCompute().collect(call, folder).record


def _why(log: str, stderr: bytes) -> str:
    """Return the line that says what went wrong."""
    # The most specific first: the replay's own error, then ncu's refusals, then any error of ncu.
    lines = [*stderr.decode("utf-8", "replace").splitlines(), *log.splitlines()]
    for mark in ("replay:", "ERR_", "==ERROR=="):
        for line in lines:
            if mark in line:
                return line.strip()
    return lines[-1].strip() if lines else "it printed nothing"


def read_counters(text: str) -> Iterator[Counters]:
    """Yield the counters of each kernel in the output of ``ncu --csv --page raw``; a missing metric is None."""
    for result in read_kernel_counters(text):
        operations = counted_operations(result.metrics, result.compute_capability)
        yield Counters(
            kernel=result.kernel,
            dram_read_bytes=first_of(result.metrics, READ),
            dram_write_bytes=first_of(result.metrics, WRITTEN),
            **{field: result.metrics.get(metric) for field, metric in _METRICS.items()},
            stalls=_stalls(result.metrics),
            operations=operations.by_unit,
            operations_not_counted=operations.not_counted,
        )


def _stalls(metrics: Mapping[str, float]) -> dict[str, float]:
    known = {reason: value for reason in _STALLS if (value := metrics.get(_STALL.format(reason)))}
    return dict(sorted(known.items(), key=lambda item: -item[1]))
