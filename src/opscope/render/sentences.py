"""Writes statements as sentences: one per kind of evidence, made from the evidence alone."""

from collections.abc import Mapping

from msgspec.structs import replace

from opscope.base.units import format_bytes, format_count, format_ns
from opscope.documents import statements as doc
from opscope.documents.statements import Statement


def worded(statement: Statement) -> Statement:
    """Return the statement with its ``text`` filled."""
    return replace(statement, text=sentence(statement.evidence))


def sentence(evidence: doc.AnyEvidence) -> str:
    """Return the sentence of a piece of evidence.

    Raises:
        TypeError: there is no sentence for evidence of this type.
    """
    for words in (_on_work, _on_launch, _on_memory, _on_gains):
        if (text := words(evidence)) is not None:
            return text
    raise TypeError(f"no sentence says {type(evidence).__name__}")


def _on_work(evidence: doc.AnyEvidence) -> str | None:
    match evidence:
        case doc.DivisionUnknown():
            return "Schema and recorded shapes do not tell how this operator's work divides."
        case doc.Independent(count, unit, dimensions, reason):
            return f"Independent of each other: {_counted(count, unit)}{_by_name(dimensions)}; {reason}."
        case doc.Combined(count, dimensions):
            return f"Each combines {count:,} values ({_sizes(dimensions)})."
        case doc.PerBlock(unit, per_block, per_thread):
            return f"{_number(per_block)} {unit} per thread block, {_number(per_thread)} per thread."
        case doc.BlockPerTile(tile, tiles, None, _, _):
            return f"One thread block per tile of {_tile(tile)}: {tiles:,} tiles."
        case doc.BlockPerTile(tile, _, down, across, batch):
            times = f", {batch:,} times" if batch > 1 else ""
            along = f"{down:,} tiles along the rows by {across:,} along the columns"
            return f"One thread block per tile of {_tile(tile)}: {along}{times}."
        case doc.BlocksPerTile(tile, tiles, each):
            blocks = f"{each} thread block{'s' * (each != 1)}"
            return f"The result divides into {tiles:,} tiles of {_tile(tile)}: {blocks} per tile."
        case doc.TilesDiffer(tile, tiles):
            counts = " or ".join(sorted(f"{count:,}" for count in tiles))
            return (
                f"The result divides into {counts} tiles of {_tile(tile)}, which is not the grid: thread blocks may "
                "take several tiles each, or the kernel pads the grid."
            )
    return None


def _on_launch(evidence: doc.AnyEvidence) -> str | None:
    match evidence:
        case doc.GeometryUnknown():
            return "The trace does not record the launch geometry."
        case doc.Geometry(blocks, grid, threads, block):
            return f"{blocks:,} thread block{'s' * (blocks > 1)} ({_by(grid)}) of {threads:,} threads ({_by(block)})."
        case doc.Waves(waves, at_a_time):
            shown = f"{waves:.2f}" if waves >= 0.01 else "Under 0.01"
            return f"{shown} waves: the device holds {at_a_time:,.0f} of these thread blocks at a time."
        case doc.ResourcesUnknown():
            return "The trace records neither registers nor shared memory."
        case doc.Resources(registers, shared):
            return f"{format_count(registers)} registers per thread, {format_bytes(shared)} shared memory per block."
        case doc.TheoreticalOccupancy(percent, blocks, warps, limiter):
            resident = f"{blocks} block{'s' * (blocks != 1)} ({warps} warp{'s' * (warps != 1)})"
            return f"{percent:.0f} % theoretical occupancy: {resident} per multiprocessor, limited by {limiter}."
        case doc.AchievedOccupancy(percent):
            return f"{percent:.0f} % of the warps were active on average (counters)."
        case doc.Stalls(reasons):
            shown = ", ".join(f"{reason.replace('_', ' ')} {value:.2f}" for reason, value in reasons.items())
            return f"Warps waited most for (warps per issued instruction): {shown} (counters)."
        case doc.ActiveThreads(threads):
            return f"{threads:.1f} of 32 threads were active per instruction (counters)."
        case doc.UsualSynchronisation(text):
            return text
        case doc.SynchronisationUnknown():
            return "Nothing is known of this kernel's synchronisation."
    return None


def _on_memory(evidence: doc.AnyEvidence) -> str | None:
    match evidence:
        case doc.LeastTraffic(least, call_ns, rate):
            moved = f"At least {format_bytes(least)} must be moved; in {format_ns(call_ns)} that is"
            return f"{moved} {_number(rate)} GB/s, from memory or the L2 cache."
        case doc.MemoryTraffic(read, written, used):
            share = "" if used is None else f", {used:.0f} % of its peak"
            moved = f"{format_bytes(read)} read, {format_bytes(written)} written"
            return f"Device memory: {moved}{share} (counters, caches empty at the start)."
        case doc.ExecutedOperations(by_unit, per_byte, of_model):
            units = ", ".join(f"{_operations(count)} in {unit}" for unit, count in by_unit.items())
            byte = "" if per_byte is None else f"; {_number(per_byte)} a byte of the device's memory"
            model = "" if of_model is None else f"; {_number(of_model)} times those of the operator's model"
            return f"Operations executed: {units}{byte}{model} (counters)."
        case doc.Sectors(access, per_request):
            return f"{per_request:.1f} sectors of 32 bytes per {access} of a warp (counters)."
        case doc.BankConflicts(conflicts):
            return f"{conflicts:,.0f} bank conflicts in shared memory (counters)."
        case doc.VectorWidth(elements):
            return f"Each thread loads {elements} elements at a time, as the kernel's name says."
        case doc.UsualMemory(text):
            return text
    return None


def _on_gains(evidence: doc.AnyEvidence) -> str | None:
    match evidence:
        case doc.Share(percent):
            return f"At most {percent:.1f} % of the device sum, if it took no time at all."
        case doc.LaunchBound():
            return "The step is launch-bound: a faster kernel alone does not shorten it; fewer launches do."
        case doc.Rate(_, _, kernels, rate):
            over = "" if kernels == 1 else f", over the {kernels} kernels of a call"
            shown = f"{_number(rate)} TFLOP/s" if rate >= 0.1 else f"{_number(1000 * rate)} GFLOP/s"
            return f"It runs at {shown}{over}."
        case doc.OnFp32Cores():
            return (
                "It runs on the FP32 cores. TF32 (torch.set_float32_matmul_precision('high')) or bfloat16 use the "
                "Tensor Cores, at lower precision."
            )
        case doc.AnyAlignment(_, multiples):
            takes = "The kernel takes operands of any alignment"
            if multiples:
                return f"{takes}, though all sizes are multiples of 8: look at the strides."
            return f"{takes}: sizes that are multiples of 8 elements allow a faster one."
        case doc.IdleMultiprocessors(idle, all_):
            return f"It leaves {idle} of {all_} multiprocessors without work."
        case doc.LastWave(_, full):
            return (
                f"Its last wave is {full:.0f} % full: thread blocks of another size, or larger inputs, would use the "
                "device more evenly."
            )
        case doc.UsualGain(text):
            return text
    return None


def _operations(count: float) -> str:
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{_number(count / size)} {prefix}"
    return f"{count:,.0f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit if count != 1 else unit.replace('elements', 'element').replace('rows', 'row')}"


def _by_name(dimensions: Mapping[str, int]) -> str:
    return f" ({_sizes(dimensions)})" if len(dimensions) > 1 else ""


def _sizes(dimensions: Mapping[str, int]) -> str:
    return " x ".join(f"{size:,} {name}" for name, size in dimensions.items())


def _by(sizes: tuple[int, int, int]) -> str:
    return " x ".join(f"{size:,}" for size in sizes)


def _tile(sides: tuple[int, int]) -> str:
    return f"{sides[0]} x {sides[1]}"
