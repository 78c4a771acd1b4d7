"""Statements on one operator, from its shapes, its launches and, if there are any, its counters.

Each function is one rule. It yields evidence, not text, and states nothing that the evidence does not force.
"""

import math
from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from opscope.analysis.costs.occupancy import Occupancy, Parallelism, dimensions
from opscope.analysis.costs.sums import LaunchShape
from opscope.documents import statements as doc
from opscope.documents.statements import Action, ActionKind, Basis, Gain, Statement
from opscope.knowledge.costs import Cost
from opscope.knowledge.kernels.decoded import FP32_CORES, DecodedKernel, Operation
from opscope.knowledge.kernels.kinds import KernelPattern
from opscope.record.counters import UPPER_BOUND, Counters
from opscope.trace.model import DeviceProperties

_STALLS_KEPT = 3
_FULL_WAVE: Final = 0.8  # of the waves' capacity: a launch that fills less gets a statement
_MULTIPLE: Final = 8  # elements of 16 bits in an access of 16 bytes
_PRODUCTS: Final = (Operation.GEMM, Operation.FPROP, Operation.DGRAD, Operation.WGRAD)


class OperatorEvidence(Struct, frozen=True):
    """What the statements on one operator rest on.

    Attributes:
        operator: its name.
        call_ns: its mean device time per call with the inputs in question; None if it launched nothing.
        kernels: how many different kernels a call launches.
        share: of the device sum; None without device times.
        per_step_ns: its self device time, per step where the trace has steps, else over the recording.
        kernel_per_step_ns: the part of it that the kernel of ``launch`` took.
        per: what these two times refer to.
        parallelism: what is independent; None if no rule knows the operator.
        cost: what a call must do at least; None if no rule knows the operator.
        launch: the launch of the kernel that took most of the time; most statements are about it.
        decoded: what that kernel's name says.
        pattern: how kernels of its kind usually work.
        occupancy: the theoretical occupancy of that launch.
        device: the device that it ran on.
        counters: hardware counters of that kernel; empty without any.
        launch_bound: whether the step waits for the host.
    """

    operator: str
    call_ns: float | None
    kernels: int
    share: float | None
    per_step_ns: float
    kernel_per_step_ns: float
    per: Literal["step", "recording"]
    parallelism: Parallelism | None
    cost: Cost | None
    launch: LaunchShape | None
    decoded: DecodedKernel | None
    pattern: KernelPattern | None
    occupancy: Occupancy | None
    device: DeviceProperties | None
    counters: tuple[Counters, ...]
    launch_bound: bool

    def gain_up_to(self, high_ns: float, derivation: str) -> Gain:
        """Return a gain of 0 to ``high_ns`` nanoseconds: none of it is certain before the change was run."""
        return Gain(0.0, high_ns, self.per, derivation)


def _derived(evidence: doc.AnyEvidence, gain: Gain | None = None, action: Action | None = None) -> Statement:
    return Statement(basis=Basis.DERIVED, evidence=evidence, gain=gain, action=action)


def _measured(evidence: doc.AnyEvidence) -> Statement:
    return Statement(basis=Basis.MEASURED, evidence=evidence)


def _general(evidence: doc.AnyEvidence, gain: Gain | None = None, action: Action | None = None) -> Statement:
    return Statement(basis=Basis.GENERAL, evidence=evidence, gain=gain, action=action)


# ---------------------------------------------------------------- why it runs in parallel


def parallel_work(evidence: OperatorEvidence) -> Iterator[Statement]:
    """State what is independent, and what is combined."""
    result = evidence.parallelism
    if result is None:
        yield _derived(doc.DivisionUnknown())
        return
    yield _derived(doc.Independent(result.elements, result.unit, dict(result.parallel), result.reason))
    if result.reduced:
        yield _derived(doc.Combined(math.prod(result.reduced.values()), dict(result.reduced)))


# ---------------------------------------------------------------- how grid and block cover it


def coverage(evidence: OperatorEvidence) -> Iterator[Statement]:
    """State the launch geometry, and how it divides the work."""
    launch, result = evidence.launch, evidence.parallelism
    grid, block = (dimensions(launch.grid), dimensions(launch.block)) if launch else (None, None)
    if grid is None or block is None:
        yield _measured(doc.GeometryUnknown())
        return
    blocks, threads = math.prod(grid), math.prod(block)
    yield _measured(doc.Geometry(blocks, grid, threads, block))
    if result is not None and result.elements:
        tiles = list(_tiles(evidence, result, grid))
        if not tiles and evidence.kernels == 1:
            yield _derived(doc.PerBlock(result.unit, result.elements / blocks, result.elements / (blocks * threads)))
        yield from tiles
    if evidence.occupancy and evidence.occupancy.waves is not None:
        waves = evidence.occupancy.waves
        yield _derived(doc.Waves(waves, blocks / waves))


def _tiles(evidence: OperatorEvidence, result: Parallelism, grid: tuple[int, int, int]) -> Iterator[Statement]:
    """Compare the grid with the tiles that the result divides into."""
    sides = evidence.decoded.tile if evidence.decoded else None
    if sides is None or "columns" not in result.parallel or sides[0] is None or sides[1] is None:
        return
    tile = (sides[0], sides[1])
    blocks, batch = math.prod(grid), result.parallel.get("batch", 1)
    rows, columns = result.parallel["rows"], result.parallel["columns"]
    # Libraries differ in which side of the result a tile's first number goes along: the grid decides, if it can.
    ways = [(-(-rows // tile[0]), -(-columns // tile[1])), (-(-rows // tile[1]), -(-columns // tile[0]))]
    # A way fits if both of its counts are sides of the grid and, times the batch, make up all thread blocks.
    fitting = [way for way in ways if set(way) <= {*grid, 1} and math.prod(way) * batch == blocks]
    equal = {math.prod(way) for way in ways if blocks % (math.prod(way) * batch) == 0}
    if fitting:
        down, across = fitting[0] if len(set(fitting)) == 1 else (None, None)
        yield _derived(doc.BlockPerTile(tile, math.prod(fitting[0]) * batch, down, across, batch))
    elif equal:
        count = max(equal) * batch
        yield _derived(doc.BlocksPerTile(tile, count, blocks // count))
    else:
        yield _derived(doc.TilesDiffer(tile, tuple(sorted({math.prod(way) * batch for way in ways}))))


# ---------------------------------------------------------------- registers, shared memory, occupancy


def resource_statements(evidence: OperatorEvidence) -> Iterator[Statement]:
    """State what the kernel takes of a multiprocessor, and how full it is."""
    launch, result = evidence.launch, evidence.occupancy
    if launch is None or launch.registers_per_thread is None:
        yield _measured(doc.ResourcesUnknown())
        return
    yield _measured(doc.Resources(launch.registers_per_thread, launch.shared_memory_bytes))
    if result is not None:
        blocks, warps = result.blocks_per_multiprocessor, result.warps_per_multiprocessor
        yield _derived(doc.TheoreticalOccupancy(result.percent, blocks, warps, result.limiter))
    for counters in evidence.counters[:1]:
        if counters.achieved_occupancy_percent is not None:
            yield _measured(doc.AchievedOccupancy(counters.achieved_occupancy_percent))


# ---------------------------------------------------------------- memory access


def memory_access(evidence: OperatorEvidence) -> Iterator[Statement]:
    """State what must be moved, what was, and how."""
    least = evidence.cost.least_bytes if evidence.cost else None
    if least and evidence.call_ns:
        rate = least / evidence.call_ns  # bytes per nanosecond are GB/s
        yield _derived(doc.LeastTraffic(least, evidence.call_ns, rate))
    for counters in evidence.counters[:1]:
        yield from _measured_access(counters)
        yield from _executed(counters, evidence)
    if evidence.decoded and evidence.decoded.vector_width:
        yield _derived(doc.VectorWidth(evidence.decoded.vector_width))
    if evidence.pattern:
        yield _general(doc.UsualMemory(evidence.pattern.memory))


def _measured_access(counters: Counters) -> Iterator[Statement]:
    read, written = counters.dram_read_bytes, counters.dram_write_bytes
    if read is not None and written is not None:
        yield _measured(doc.MemoryTraffic(read, written, counters.dram_throughput_percent))
    if counters.load_sectors_per_request:
        yield _measured(doc.Sectors("load", counters.load_sectors_per_request))
    if counters.store_sectors_per_request:
        yield _measured(doc.Sectors("store", counters.store_sectors_per_request))
    if counters.shared_load_bank_conflicts is not None:
        conflicts = counters.shared_load_bank_conflicts + (counters.shared_store_bank_conflicts or 0)
        yield _measured(doc.BankConflicts(conflicts))


def _executed(counters: Counters, evidence: OperatorEvidence) -> Iterator[Statement]:
    if counters.operations_not_counted or not counters.operations:
        return
    total = sum(count for unit, count in counters.operations.items() if unit != UPPER_BOUND)
    both = counters.dram_read_bytes, counters.dram_write_bytes
    moved = None if None in both else sum(count for count in both if count is not None)
    # Only of a call that is this one launch does the model say what the launch must do.
    is_call = evidence.cost is not None and evidence.kernels == len(evidence.counters) == 1
    modelled = evidence.cost.flop if evidence.cost is not None and is_call else 0
    yield _measured(
        doc.ExecutedOperations(
            counters.operations, total / moved if moved else None, total / modelled if modelled else None
        )
    )


# ---------------------------------------------------------------- synchronisation


def synchronisation(evidence: OperatorEvidence) -> Iterator[Statement]:
    """State what waits for what."""
    for counters in evidence.counters[:1]:
        if counters.stalls:
            yield _measured(doc.Stalls(dict(list(counters.stalls.items())[:_STALLS_KEPT])))
        if counters.threads_per_instruction is not None:
            yield _measured(doc.ActiveThreads(counters.threads_per_instruction))
    if evidence.pattern:
        yield _general(doc.UsualSynchronisation(evidence.pattern.synchronisation))
    elif not evidence.counters:
        yield _general(doc.SynchronisationUnknown())


# ---------------------------------------------------------------- what could be gained


def gains(evidence: OperatorEvidence) -> Iterator[Statement]:
    """State how much could be gained at most, and by what."""
    result, decoded, name = evidence.parallelism, evidence.decoded, evidence.operator
    if evidence.share is not None:
        gain = evidence.gain_up_to(evidence.per_step_ns, "the operator's whole self device time")
        yield _derived(doc.Share(100 * evidence.share), gain)
    if evidence.launch_bound:
        yield _derived(doc.LaunchBound(), action=Action(ActionKind.FEWER_LAUNCHES, name))
    flop = evidence.cost.least_flop if evidence.cost else None
    if flop and evidence.call_ns:
        rate = flop / evidence.call_ns / 1000  # operations per nanosecond are GFLOP/s
        yield _derived(doc.Rate(flop, evidence.call_ns, evidence.kernels, rate))
    if decoded and decoded.unit == FP32_CORES and decoded.operation in _PRODUCTS:
        gain = evidence.gain_up_to(evidence.kernel_per_step_ns, "the whole time of this kernel with these inputs")
        yield _general(doc.OnFp32Cores(decoded.summary), gain, Action(ActionKind.LOWER_PRECISION, name))
    if decoded and result and ("alignment in elements", "1") in decoded.details:
        yield _alignment(result, name)
    yield from _filling(evidence)
    if evidence.pattern:
        yield _general(doc.UsualGain(evidence.pattern.gain))


def _alignment(result: Parallelism, operator: str) -> Statement:
    sizes = {**result.parallel, **result.reduced}
    multiples = all(size % _MULTIPLE == 0 for size in sizes.values())
    change = ActionKind.CONTIGUOUS_OPERANDS if multiples else ActionKind.PAD_SIZES
    return _general(doc.AnyAlignment(sizes, multiples), action=Action(change, operator))


def _filling(evidence: OperatorEvidence) -> Iterator[Statement]:
    launch, device = evidence.launch, evidence.device
    waves, tail = (evidence.occupancy.waves, evidence.occupancy.tail) if evidence.occupancy else (None, None)
    grid = dimensions(launch.grid) if launch else None
    if waves is None or tail is None or grid is None or device is None or device.multiprocessors is None:
        return
    if evidence.decoded and evidence.decoded.family == "NCCL":
        return  # it leaves the rest of the device to other kernels on purpose
    blocks = math.prod(grid)
    if blocks < device.multiprocessors:
        idle = device.multiprocessors - blocks
        action = Action(ActionKind.MORE_BLOCKS, evidence.operator)
        yield _derived(doc.IdleMultiprocessors(idle, device.multiprocessors), action=action)
    elif waves > 1 and 1 - tail < _FULL_WAVE:
        full = 100 * (waves - math.floor(waves))
        gain = evidence.gain_up_to(evidence.kernel_per_step_ns * tail, "what the empty part of the last wave takes")
        yield _derived(doc.LastWave(waves, full), gain, Action(ActionKind.EVEN_WAVES, evidence.operator))
