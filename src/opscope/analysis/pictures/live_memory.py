"""Memory over time and, where addresses were recorded, what was alive when most was allocated."""

from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import costliest_first
from opscope.analysis.structure.links import Links, operators_of_allocations
from opscope.analysis.structure.modules import MODULE_FRAME, Origins
from opscope.analysis.structure.nesting import Ints
from opscope.trace.model import Trace

_GROUPS: Final = ("operator", "input_dims", "module", "python")


class LiveMemory(Struct, frozen=True):
    """Memory of one device as PyTorch's allocator counts it.

    Attributes:
        device: its number; None for the host.
        time_ns: when each allocation or release was, on the trace's clock.
        allocated_bytes: how much was allocated in all after each of these.
        peak_ns: when most was allocated, for the first time.
        peak_bytes: how much that was, by the allocator's figure.
        before_bytes: the part of the peak that no recorded allocation explains: it was made before the recording. With
            ``alive`` it adds up to the peak. None where addresses were not recorded.
        alive: the recorded allocations that were alive at the peak: ``operator``, ``input_dims``, ``module``,
            ``python`` (null where not recorded), ``allocations``, ``bytes``; the largest first. The operator is the
            innermost that does more than allocate.
    """

    device: int | None
    time_ns: Ints
    allocated_bytes: Ints
    peak_ns: int
    peak_bytes: int
    before_bytes: int | None
    alive: pl.DataFrame


def live_memory(trace: Trace, links: Links, origins: Origins) -> tuple[LiveMemory, ...]:
    """Return the memory of the host and of each device; empty where totals were not recorded."""
    on_host = trace.allocations["device_type"].fill_null(0) == 0
    events = (
        trace.allocations.with_columns(
            device=pl.when(on_host).then(None).otherwise(pl.col("device").fill_null(0)),
            owner=pl.Series(operators_of_allocations(trace, links)),
        )
        .drop_nulls(["total_allocated_bytes", "bytes"])
        .sort("time_ns", maintain_order=True)
    )
    groups = {device: group for (device,), group in events.group_by("device", maintain_order=True)}
    ordered = sorted(groups, key=lambda device: (device is not None, device or 0))
    return tuple(_of_device(trace, origins, device, groups[device]) for device in ordered)


def _of_device(trace: Trace, origins: Origins, device: object, events: pl.DataFrame) -> LiveMemory:
    total = events["total_allocated_bytes"].to_numpy()
    peak = int(np.argmax(total))
    # Without its address a release cannot be matched with its allocation.
    known = not events["address"].head(peak + 1).null_count()
    alive = _alive(events.head(peak + 1)) if known else events.clear()
    return LiveMemory(
        device=None if device is None else int(str(device)),
        time_ns=events["time_ns"].to_numpy(),
        allocated_bytes=total,
        peak_ns=int(events["time_ns"][peak]),
        peak_bytes=int(total[peak]),
        before_bytes=int(total[peak]) - int(alive["bytes"].sum()) if known else None,
        alive=_described(trace, origins, alive),
    )


def _alive(events: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations that were not released: an address is alive if its last event is an allocation."""
    return events.unique("address", keep="last", maintain_order=True).filter(pl.col("bytes") > 0)


def _texts(column: pl.Series, rows: pl.Series) -> pl.Series:
    return column.gather(rows).cast(pl.String)


def _described(trace: Trace, origins: Origins, alive: pl.DataFrame) -> pl.DataFrame:
    owner = alive["owner"].to_numpy()
    operator = pl.Series(owner, dtype=pl.Int64).replace(-1, None)
    module, frame = (
        _texts(trace.frames["name"], pl.Series(np.append(rows, -1)[owner], dtype=pl.Int64).replace(-1, None))
        for rows in (origins.module, origins.frame)
    )
    table = pl.DataFrame(
        {
            "operator": _texts(trace.operators["name"], operator),
            "input_dims": _texts(trace.operators["input_dims"], operator),
            "module": module.str.strip_prefix(MODULE_FRAME),
            "python": frame,
            "bytes": alive["bytes"],
        }
    )
    rows = table.group_by(_GROUPS).agg(pl.len().alias("allocations"), pl.col("bytes").sum())
    return costliest_first(rows.select(*_GROUPS, "allocations", "bytes"), ["bytes"], _GROUPS)
