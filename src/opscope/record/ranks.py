"""How launchers tell a process its rank and how many processes there are."""

from collections.abc import Mapping
from typing import Final

# Variables with the rank, each with one that has the number of processes: torchrun; Open MPI; MPICH and Intel MPI; a
# step of srun, whose number of tasks may be smaller than the whole job's; srun without that.
_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_RANK_ALONE: Final = "PMIX_RANK"  # PMIx has no variable for the number of processes


def rank_and_world(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the rank of a process and the number of processes; None for what its environment does not say.

    A launcher of one process may itself be one of several processes, so the first launcher of several counts.
    """
    told = [
        (int(number), int(count))
        for rank, world in _VARIABLES
        if (number := environment.get(rank, "")).isdecimal() and (count := environment.get(world, "")).isdecimal()
    ]
    if told:
        return next((found for found in told if found[1] > 1), told[0])
    for name in (*(rank for rank, _ in _VARIABLES), _RANK_ALONE):
        if (number := environment.get(name, "")).isdecimal():
            return int(number), None
    return None, None
