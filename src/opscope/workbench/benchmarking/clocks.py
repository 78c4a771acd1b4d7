"""GPU clocks during a measurement, sampled by ``nvidia-smi`` in a separate process so that ours is not disturbed."""

import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final

import torch

from opscope.record.capture import Clocks

_PERIOD_MS = 100
_FIELDS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "temperature.gpu", "power.draw")
# The field was renamed in driver 535; newer drivers know both names, older ones the second.
_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
# NVML's clock event reasons (nvml.h), as bits. Idling (0x1) is left out: it is not a limit, but the absence of work.
_REASONS: Final[Mapping[int, str]] = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}


class ClockSampler:
    """Samples a GPU's clocks while the ``with`` block runs.

    Attributes:
        clocks: the summary, after the block; None if there is none.
        reason: why there is no summary; None if there is one.
    """

    def __init__(self, device: torch.device) -> None:
        self.clocks: Clocks | None = None
        self.reason: str | None = None
        self._device = device
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "ClockSampler":
        if self._device.type != "cuda":
            self.reason = "the device is not a GPU"
        elif (program := shutil.which("nvidia-smi")) is None:
            self.reason = "nvidia-smi is not installed"
        else:
            self._process = _start(program, self._device)
            if self._process is None:
                self.reason = "nvidia-smi does not report clocks here"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        output, _ = self._process.communicate()
        self.clocks = summarise_clocks(output.splitlines())
        if self.clocks is None:
            self.reason = "nvidia-smi gave no sample in time"


def _start(program: str, device: torch.device) -> subprocess.Popen[str] | None:
    which = _identifier(device)
    for reasons in _REASON_FIELDS:
        query = [
            program,
            f"--id={which}",
            f"--query-gpu={','.join((*_FIELDS, reasons))}",
            "--format=csv,noheader,nounits",
        ]
        # One sample first: an nvidia-smi that does not know a field says so, and the older name is tried.
        try:
            probe = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if probe.returncode == 0 and _parse(probe.stdout.strip()) is not None:
            return subprocess.Popen(
                [*query, f"--loop-ms={_PERIOD_MS}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
    return None


def _identifier(device: torch.device) -> str:
    """Return an identifier of the GPU for nvidia-smi, whose numbering CUDA_VISIBLE_DEVICES does not change."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else str(device.index or 0)


def _parse(line: str) -> tuple[int, int, int, int, float, int] | None:
    parts = [part.strip() for part in line.split(",")]
    try:
        sm, memory, limit, temperature, power, reasons = parts
        return int(sm), int(memory), int(limit), int(temperature), float(power), int(reasons, 16)
    except ValueError:
        return None


def summarise_clocks(lines: Sequence[str]) -> Clocks | None:
    """Summarise nvidia-smi's lines, one per sample; return None if no line could be read."""
    samples = [sample for line in lines if (sample := _parse(line)) is not None]
    if not samples:
        return None
    sm, memory, limit, temperature, power, reasons = zip(*samples, strict=True)
    seen = 0
    for mask in reasons:
        seen |= mask
    return Clocks(
        samples=len(samples),
        sm_mhz_min=min(sm),
        sm_mhz_median=round(statistics.median(sm)),
        sm_mhz_max=max(sm),
        sm_mhz_limit=max(limit),
        memory_mhz=round(statistics.median(memory)),
        temperature_c=max(temperature),
        power_w=statistics.median(power),
        limited_by=tuple(name for bit, name in _REASONS.items() if seen & bit),
    )
