"""What every collector is: a workload or a command in, raw files and a record out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

SubjectT_contra = TypeVar("SubjectT_contra", contravariant=True)
RecordT_co = TypeVar("RecordT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Collected(Generic[RecordT_co]):
    """What a collector leaves behind.

    Attributes:
        files: the raw files, as the collecting tool wrote them; readers make traces and counters of them.
        record: what the files do not say of themselves.
    """

    files: tuple[Path, ...]
    record: RecordT_co


class Collector(Protocol[SubjectT_contra, RecordT_co]):
    """Runs something once, under observation.

    torch.profiler takes a `Workload` and leaves Chrome traces; Nsight Compute takes an `OperatorCall` and leaves a
    table of counters. What collects from any executable will take a command.
    """

    def collect(self, subject: SubjectT_contra, folder: Path) -> Collected[RecordT_co]:
        """Run the subject and write the raw files into a folder.

        Raises:
            OpscopeError: it cannot be run or observed.
        """
