"""The record of one ``opscope exec``: which command ran, how it ended, and its recordings."""

from typing import Final, Literal

from msgspec import Struct, field

EXECUTION: Final = "exec.json"  # the record's file in a run directory
RAW: Final = "raw"  # the folder of the recordings in a run directory
RECORDING_ENDING: Final = ".cudarec"


class OtherTool(Struct, frozen=True):
    """A profiler or debugger that the command started, and that ran without the collector.

    Attributes:
        program: its path.
        after_seconds: seconds from the command's start to its own; None if the system has no suitable ``date``.
    """

    program: str
    after_seconds: float | None


class Execution(Struct, frozen=True, kw_only=True):
    """One command that ran under the collector.

    Attributes:
        command: the program and its arguments.
        folder: where it ran.
        created: UTC, ISO 8601.
        seconds: how long it ran; None until it has ended.
        exit_code: its exit code, or 128 plus the signal's number if a signal ended it, as in shells. None until it has
            ended, and for good if opscope was killed before that.
        opscope: the version that collected.
        cupti: the version of the CUPTI that the collector was built for.
        cupti_library: that CUPTI's path; processes that have no CUPTI of their own load it.
        recordings: the files of the processes that used CUDA or NVTX, in the order in which they began.
        other_tools: tools that ran without the collector.
        digests: the BLAKE2b digest of each recording by file name. Only files that still have it are ever removed.
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
        """Whether opscope was killed before the command ended; the recordings are then incomplete."""
        return self.exit_code is None
