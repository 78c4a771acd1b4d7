"""Checks a launch configuration against a device, as a `LaunchDocument` and as text."""

from collections.abc import Iterator

from opscope.analysis.costs.occupancy import LaunchConfiguration, check_launch, entry_of
from opscope.base.errors import EnvironmentLacksError
from opscope.base.units import format_count
from opscope.documents.build import LaunchDocument, OccupancyEntry
from opscope.documents.gpus import GpuFacts
from opscope.knowledge.compute_capabilities import compute_capabilities
from opscope.render.blocks import Name, Table


def build_launch(launch: LaunchConfiguration, device: str, number: str, multiprocessors: int | None) -> LaunchDocument:
    """Build the document.

    Args:
        launch: the launch configuration.
        device: the device's name, as shown to the user.
        number: its compute capability, ``9.0``.
        multiprocessors: their number; None for a compute capability without a certain device.

    Raises:
        EnvironmentLacksError: the limits of the compute capability are not known.
    """
    capability = compute_capabilities().get(number)
    if capability is None:
        raise EnvironmentLacksError(f"the limits of compute capability {number} are not known ({device})")
    result = check_launch(launch, capability, multiprocessors)
    return LaunchDocument(
        device=device,
        compute_capability=number,
        multiprocessors=multiprocessors,
        grid=launch.grid,
        block=launch.block,
        registers_per_thread=launch.registers_per_thread,
        shared_memory_bytes=launch.shared_memory_bytes,
        can_launch=not result.problems,
        problems=result.problems,
        remarks=result.remarks,
        occupancy=entry_of(result.occupancy),
    )


def launch_on(launch: LaunchConfiguration, gpu: GpuFacts) -> LaunchDocument:
    """Build the document of a launch on a GPU of the table, or on a device of this machine.

    Raises:
        EnvironmentLacksError: the limits of its compute capability are not known.
    """
    return build_launch(launch, gpu.name, gpu.compute_capability, gpu.sms)


def launch_lines(document: LaunchDocument) -> Iterator[str]:
    """Yield the document as sentences."""
    yield (
        f"{document.device} (compute capability {document.compute_capability}): grid {_shown(document.grid)}, block "
        f"{_shown(document.block)}, {document.registers_per_thread} registers a thread, "
        f"{document.shared_memory_bytes:,} bytes of shared memory a block"
    )
    if not document.can_launch:
        yield "It cannot be launched:"
        yield from (f"  {problem}" for problem in document.problems)
        return
    yield "It can be launched."
    yield from (f"  {remark}" for remark in document.remarks)
    result = document.occupancy
    if result is not None:
        yield (
            f"Theoretical occupancy {result.percent:.0f} %: a multiprocessor holds {result.blocks_per_multiprocessor} "
            f"{'block' if result.blocks_per_multiprocessor == 1 else 'blocks'} at a time, limited by {result.limiter}."
        )
        yield from _waves(document, result)


def launch_values(document: LaunchDocument) -> Table:
    """Build a table of one row with the document's values, for CSV."""
    result = document.occupancy
    values = {
        "device": Name(document.device),
        "compute_capability": document.compute_capability,
        "grid": ",".join(map(str, document.grid)),
        "block": ",".join(map(str, document.block)),
        "registers_per_thread": str(document.registers_per_thread),
        "shared_memory_bytes": str(document.shared_memory_bytes),
        "can_launch": str(document.can_launch).lower(),
        "problems": Name("; ".join(document.problems)),
        "occupancy_percent": "" if result is None else f"{result.percent:g}",
        "blocks_per_multiprocessor": "" if result is None else str(result.blocks_per_multiprocessor),
        "limiter": "" if result is None else result.limiter,
        "waves": "" if result is None or result.waves is None else f"{result.waves:g}",
        "tail": "" if result is None or result.tail is None else f"{result.tail:g}",
    }
    return Table(tuple(values), (tuple(values.values()),))


def _waves(document: LaunchDocument, result: OccupancyEntry) -> Iterator[str]:
    if result.waves is None or document.multiprocessors is None or result.tail is None:
        return
    blocks = document.grid[0] * document.grid[1] * document.grid[2]
    held = result.blocks_per_multiprocessor * document.multiprocessors
    yield (
        f"{result.waves:.2f} waves: {format_count(blocks)} blocks, of which the device's {document.multiprocessors} "
        f"multiprocessors hold {format_count(held)} at a time; {100 * result.tail:.1f} % of the places in these waves "
        "stay empty."
    )
    if blocks < document.multiprocessors:
        yield f"{document.multiprocessors - blocks} of {document.multiprocessors} multiprocessors have no block."


def _shown(dimensions: tuple[int, int, int]) -> str:
    return " x ".join(f"{number:,}" for number in dimensions)
