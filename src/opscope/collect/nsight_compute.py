"""Hardware counters of single operators, through Nsight Compute (``ncu``)."""

import csv
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from opscope.collect.collector import Collected
from opscope.errors import EnvironmentLacksError
from opscope.record.counters import Counters, OperatorCall

_TIMEOUT_S = 180
_METRICS: Final[Mapping[str, str]] = {
    "duration_ns": "gpu__time_duration.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "load_sectors_per_request": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "store_sectors_per_request": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    "shared_load_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "threads_per_instruction": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "achieved_occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm_throughput_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_throughput_percent": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
_STALL: Final = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_STALLS: Final = (
    "long_scoreboard", "short_scoreboard", "barrier", "membar", "math_pipe_throttle", "mio_throttle", "lg_throttle",
    "tex_throttle", "wait", "not_selected", "no_instruction", "branch_resolving", "dispatch_stall", "drain", "sleeping",
    "imc_miss", "gmma",
)  # fmt: skip
# What ncu writes beside a number, as a factor to the unit that the fields have.
_UNITS: Final[Mapping[str, float]] = {
    "nsecond": 1, "ns": 1, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9,
    "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
}  # fmt: skip


def find_ncu() -> str:
    """Return the path of ``ncu``.

    Raises:
        EnvironmentLacksError: it is not installed.
    """
    program = shutil.which("ncu")
    if program is None:
        raise EnvironmentLacksError("ncu (Nsight Compute) is not on the PATH: hardware counters cannot be read")
    return program


@dataclass(frozen=True, slots=True)
class NsightCompute:
    """Replays one operator alone under Nsight Compute and reads the counters of the kernels that it launches."""

    def collect(self, subject: OperatorCall, folder: Path) -> Collected[tuple[Counters, ...]]:
        """Replay a call; the raw file is what ncu printed.

        Raises:
            EnvironmentLacksError: ncu is missing, may not read counters, or the operator could not be replayed.
        """
        log = folder / "counters.csv"
        stderr = self._run(subject, folder, log)
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        found = tuple(read_counters(text))
        if not found:
            raise EnvironmentLacksError(f"ncu measured no kernel of {subject.operator}: {_why(text, stderr)}")
        return Collected((log,), found)

    def _run(self, call: OperatorCall, folder: Path, log: Path) -> bytes:
        """Run ncu on the replay; return its standard error."""
        metrics = [*_METRICS.values(), *(_STALL.format(reason) for reason in _STALLS)]
        command = [
            *(find_ncu(), "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off"),
            *("--target-processes", "all", "--log-file", str(log), "--metrics", ",".join(metrics)),
            *(sys.executable, "-m", "opscope.collect.replay"),
        ]
        try:
            result = subprocess.run(
                command,
                input=msgspec.json.encode(call),
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                env={**os.environ, "TMPDIR": str(folder)},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentLacksError(f"ncu could not be run: {error}") from error
        return result.stderr


def counters_of(call: OperatorCall) -> tuple[Counters, ...]:
    """Return the counters of the kernels that an operator launches, replayed alone; its raw file is not kept.

    Raises:
        EnvironmentLacksError: see `NsightCompute.collect`.
    """
    with tempfile.TemporaryDirectory(prefix="opscope-ncu-") as folder:
        return NsightCompute().collect(call, Path(folder)).record


def _why(log: str, stderr: bytes) -> str:
    """Return the line that says what went wrong."""
    lines = [*stderr.decode("utf-8", "replace").splitlines(), *log.splitlines()]
    for mark in ("replay:", "ERR_", "==ERROR=="):
        for line in lines:
            if mark in line:
                return line.strip()
    return lines[-1].strip() if lines else "it printed nothing"


def read_counters(text: str) -> Iterator[Counters]:
    """Read what ``ncu --csv --page raw`` printed: a line of names, a line of units, a line per kernel."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    if len(rows) < 3 or "Kernel Name" not in rows[0]:
        return
    names, units = rows[0], rows[1]
    for row in rows[2:]:
        values = dict(zip(names, zip(row, units, strict=False), strict=False))
        yield Counters(
            kernel=values["Kernel Name"][0],
            **{field: _number(values.get(metric)) for field, metric in _METRICS.items()},
            stalls=_stalls(values),
        )


def _number(cell: Sequence[str] | None) -> float | None:
    if cell is None:
        return None
    try:
        return float(cell[0].replace(",", "")) * _UNITS.get(cell[1], 1)
    except ValueError:  # "n/a" where a kernel made no such access
        return None


def _stalls(values: Mapping[str, Sequence[str]]) -> dict[str, float]:
    found = {reason: _number(values.get(_STALL.format(reason))) for reason in _STALLS}
    known = {reason: value for reason, value in found.items() if value}
    return dict(sorted(known.items(), key=lambda item: -item[1]))
