"""How launchers tell a process its rank and how many processes there are.

Where ``opscope profile`` started the ranks, a record says how many there were and what became of each.
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

# Per launcher the variable with the rank, and those with the number of processes, the first of which is of the same
# launch: torchrun; Open MPI; MPICH and Intel MPI; PMIx, which has none; srun. SLURM_NTASKS is the whole job's number: a
# batch script that starts a single process has it too.
_LAUNCHERS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("RANK", ("WORLD_SIZE",)),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("PMI_RANK", ("PMI_SIZE",)),
    ("PMIX_RANK", ()),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)


class RankEnd(Struct, frozen=True):
    """What became of a rank.

    Attributes:
        rank: its number.
        host: the name of its machine; None if it never began.
        failure: why it has no result; None if it has one.
    """

    rank: int
    host: str | None
    failure: str | None


class JobRecord(Struct, frozen=True, kw_only=True):
    """The ranks of one job.

    Attributes:
        command: the command line, without secrets.
        created: UTC, ISO 8601.
        opscope: the version that measured.
        world: how many ranks there were.
        first_failed: the rank that failed before all others; None if all have results.
        ranks: each of them, in order.
    """

    schema: Literal["opscope.job/1"] = "opscope.job/1"
    command: tuple[str, ...]
    created: str
    opscope: str
    world: int
    first_failed: int | None
    ranks: tuple[RankEnd, ...]


def rank_and_size(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the rank that the first launcher gave a process, and the number of processes; None for what is not said.

    Args:
        environment: the variables of the process.
    """
    ranks = [(rank, sizes) for name, sizes in _LAUNCHERS if (rank := _number(environment, name)) is not None]
    if not ranks:
        return None, None
    first = ranks[0][0]
    # Of PMIx itself there is none; what it ran under may give the same rank, and one.
    of_first = (name for rank, sizes in ranks if rank == first for name in sizes)
    return first, next((size for name in of_first if (size := _number(environment, name)) is not None), None)


def rank_among_several(environment: Mapping[str, str]) -> int | None:
    """Return the rank of a process that was certainly launched together with others; None for any other process.

    Args:
        environment: the variables of the process.
    """
    for name, sizes in _LAUNCHERS:
        rank, size = _number(environment, name), _number(environment, sizes[0]) if sizes else None
        if rank is not None and size is not None and size > 1:
            return rank
    return None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None
