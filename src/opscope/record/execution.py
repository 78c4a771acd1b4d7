"""What ``opscope exec`` leaves beside what it recorded: which command ran, and what became of it."""

from dataclasses import dataclass, field
from typing import Final, Literal

EXECUTION: Final = "exec.json"  # of a run directory
RAW: Final = "raw"  # the folder of its recordings
RECORDING_ENDING: Final = ".cudarec"


@dataclass(frozen=True, slots=True)
class OtherTool:
    """A profiler or debugger that the command started, which the collector made way for.

    Attributes:
        program: its path.
        after_seconds: when, from the command's start on; None where the system has no ``date`` that tells.
    """

    program: str
    after_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One command that ran under the collector.

    Attributes:
        command: the program and its arguments.
        folder: where it ran.
        created: when, UTC, ISO 8601.
        seconds: how long it ran; None until it has ended.
        exit_code: its own; 128 and the signal's number where a signal ended it, as shells have it. None until it has
            ended: where that stays so, opscope was killed before the command ended.
        opscope: the version that collected.
        cupti: the version of the CUPTI that the collector was built for.
        cupti_library: that CUPTI's path, which processes load that have none of their own.
        recordings: the files of the processes that used CUDA or NVTX, in the order in which they began.
        other_tools: what the collector made way for.
        digests: the BLAKE2b digest of each recording, by its name; only files that still have it are ever removed.
    """

    schema: Literal["opscope.exec/1"] = "opscope.exec/1"
    command: tuple[str, ...]
    folder: str
    created: str
    seconds: float | None
    exit_code: int | None
    opscope: str
    cupti: str
    cupti_library: str
    recordings: tuple[str, ...]
    other_tools: tuple[OtherTool, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def cut_off(self) -> bool:
        """Whether opscope was killed before the command ended: its recordings are what was written until then."""
        return self.exit_code is None
