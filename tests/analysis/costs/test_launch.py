"""Launch configurations: what a device refuses, occupancy, waves and tail, by hand and beside a recorded trace."""

import csv
import io
import json

import pytest

from opscope.analysis.costs.occupancy import LaunchConfiguration, check_launch
from opscope.knowledge.devices import compute_capabilities
from tests.command import opscope

HOPPER = compute_capabilities()["9.0"]


def check(**changes: object):  # type: ignore[no-untyped-def]
    launch = {"grid": (1000, 1, 1), "block": (256, 1, 1), "registers_per_thread": 40, "shared_memory_bytes": 0}
    return check_launch(LaunchConfiguration(**{**launch, **changes}), HOPPER, 132)  # type: ignore[arg-type]


def test_occupancy_waves_and_tail_by_hand() -> None:
    """40 registers x 32 = 1280 a warp; 65536 / 1280 = 51 warps, in fours 48, six blocks of 8 warps: 75 %.

    6 x 132 = 792 blocks at a time; 1000 / 792 = 1.263 waves, two of which are begun: 36.9 % of the places stay empty.
    """
    found = check()
    assert not found.problems
    assert found.occupancy is not None
    assert (found.occupancy.blocks_per_multiprocessor, found.occupancy.limiter) == (6, "registers")
    assert found.occupancy.percent == 75
    assert found.occupancy.waves == pytest.approx(1000 / 792)
    assert found.occupancy.tail == pytest.approx(1 - 1000 / 1584)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grid": (2**31, 1, 1)}, "the grid's x is 2,147,483,648: 1 to 2,147,483,647"),
        ({"grid": (1, 65_536, 1)}, "the grid's y is 65,536: 1 to 65,535"),
        ({"grid": (0, 1, 1)}, "the grid's x is 0"),
        ({"block": (1, 1, 65)}, "the block's z is 65: 1 to 64"),
        ({"block": (32, 33, 1)}, "a block of 1,056 threads: at most 1,024"),
        ({"registers_per_thread": 256}, "256 registers a thread: at most 255"),
        ({"block": (1024, 1, 1), "registers_per_thread": 65}, "suffice for 28 warps, not for 32"),
        ({"shared_memory_bytes": 232_449}, "232,449 bytes of shared memory: a block has at most 232,448"),
    ],
)
def test_what_a_device_refuses(changes: dict[str, object], said: str) -> None:
    found = check(**changes)
    assert any(said in problem for problem in found.problems), found.problems
    assert found.occupancy is None


def test_what_it_accepts_at_its_limits() -> None:
    assert not check(grid=(2**31 - 1, 65_535, 65_535)).problems
    assert not check(block=(1024, 1, 1), registers_per_thread=64).problems
    most = check(shared_memory_bytes=232_448)
    assert not most.problems
    assert "cudaFuncSetAttribute" in most.remarks[0]
    assert most.occupancy is not None
    assert most.occupancy.blocks_per_multiprocessor == 1
    assert "28 lanes of the last idle" in check(block=(100, 1, 1)).remarks[0]


@pytest.mark.parametrize(("threads", "registers"), [(288, 224), (257, 213), (385, 129), (565, 103)])
def test_registers_are_given_to_quarters_of_a_multiprocessor(threads: int, registers: int) -> None:
    """As NVIDIA's cuda_occupancy.h counts: 9 warps of 7,168 registers are 64,512, but no quarter holds a third one."""
    found = check(block=(threads, 1, 1), registers_per_thread=registers)
    assert any("registers of a block suffice" in problem for problem in found.problems)


def test_every_compute_capability_holds_a_block_of_its_largest_size() -> None:
    for capability in compute_capabilities().values():
        limits = capability.multiprocessor
        assert capability.block_shared_memory_bytes + limits.reserved_shared_memory_bytes <= limits.shared_memory_bytes
        launch = LaunchConfiguration((1, 1, 1), (1024, 1, 1), 64, capability.block_shared_memory_bytes)
        found = check_launch(launch, capability, None)
        assert found.occupancy is not None
        assert found.occupancy.blocks_per_multiprocessor == 1
        assert found.occupancy.waves is None
        assert found.occupancy.tail is None


def test_the_command() -> None:
    fine = opscope("kernel", "launch", "--grid", "1000", "--block", "16x16", "--registers", "40", "--gpu", "h200")
    assert fine.returncode == 0, fine.stderr
    assert "It can be launched." in fine.stdout
    assert "Theoretical occupancy 75 %" in fine.stdout
    refused = opscope("kernel", "launch", "--grid", "1", "--block", "2048", "--arch", "sm_90", "--format", "json")
    assert refused.returncode == 1
    document = json.loads(refused.stdout)
    assert document["schema"] == "opscope.launch/1"
    assert not document["can_launch"]
    assert opscope("kernel", "launch", "--grid", "1", "--block", "x", "--arch", "sm_90").returncode == 2
    assert opscope("kernel", "launch", "--grid", "1", "--block", "1", "--arch", "hopper").returncode == 2
    assert "may be" in opscope("kernel", "launch", "--grid", "1", "--block", "1", "--gpu", "rtx").stderr


def test_the_answer_as_one_row_of_values() -> None:
    words = ("kernel", "launch", "--grid", "1000", "--block", "16x16", "--registers", "40", "--gpu", "h200")
    (row,) = csv.DictReader(io.StringIO(opscope(*words, "--format", "csv").stdout))
    assert (row["grid"], row["block"], row["can_launch"]) == ("1000,1,1", "16,16,1", "true")
    assert (row["occupancy_percent"], row["blocks_per_multiprocessor"], row["limiter"]) == ("75", "6", "registers")
    assert float(row["waves"]) == pytest.approx(1000 / (6 * 132), rel=1e-4)
    assert opscope(*words, "--format", "md").stdout.startswith("## Launch\n\n- NVIDIA H200")
