"""What the environment of a process says of its rank, per launcher."""

import pytest

from opscope.record.sweep import rank_among_several, rank_and_size


@pytest.mark.parametrize(
    ("environment", "recorded", "among_several"),
    [
        ({}, (None, None), None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2), 1),
        ({"RANK": "2"}, (2, None), None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1), None),
        ({"PMIX_RANK": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, None), None),
        # One process of a batch script that asked for four tasks; a step of one task in such a job.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 4), None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"}, (0, 1), None),
        # Each of two tasks runs a torchrun of one process.
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (0, 1), 1),
        ({"RANK": "one", "WORLD_SIZE": "2"}, (None, None), None),
    ],
)
def test_launchers(environment: dict[str, str], recorded: tuple[int | None, int | None], among_several: int | None
                   ) -> None:  # fmt: skip
    assert rank_and_size(environment) == recorded
    assert rank_among_several(environment) == among_several
