"""Limits added up by operator, category, module and step, and how well a step uses a device."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import polars as pl

from opscope.analysis.costs.sums import NO_OPERATOR, inputs_of_activities
from opscope.analysis.structure.arrays import column
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.modules import NO_MODULE, module_of_activities
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.step_work import step_of_activities, step_table
from opscope.base.units import NS_PER_S, tensor_shapes
from opscope.documents.limits import LimitRow, LimitTotal, Utilisation
from opscope.trace.model import Trace

NO_STEP: Final = "(in no step)"
_KEY: Final = ("operator", "input_dims", "input_types", "device")


def totals_by_name(rows: Sequence[LimitRow], by: str) -> tuple[LimitTotal, ...]:
    """Add rows up; the most time lost first.

    Args:
        rows: the limits of single calls.
        by: ``operator``, ``category``, or ``shape`` for operator and input shapes.
    """
    groups: dict[tuple[str, str | None], list[LimitRow]] = {}
    for row in rows:
        name = row.category if by == "category" else row.operator or NO_OPERATOR
        # Grouped by what was recorded, not by the text that is printed: long lists of tensors may be shortened alike.
        groups.setdefault((name, row.input_dims if by == "shape" else None), []).append(row)
    return _sorted(_total(f"{name} {tensor_shapes(dims)}".rstrip(), result) for (name, dims), result in groups.items())


def _total(name: str, rows: Iterable[LimitRow]) -> LimitTotal:
    every = list(rows)
    known = [row for row in every if row.ideal_ns is not None]
    time, ideal = sum(row.device_ns for row in known), sum(least_ns(row) for row in known)
    return LimitTotal(
        name=name,
        device_ns=sum(row.device_ns for row in every),
        modelled_ns=time,
        ideal_ns=ideal,
        lost_ns=sum(row.lost_ns or 0.0 for row in known),
        share=min(ideal / time, 1.0) if time else None,
        flop=sum(row.calls * (row.least_flop or 0) for row in known),
    )


def least_ns(row: LimitRow) -> float:
    """Return the least time of all calls in nanoseconds; at most what they took, as a model or peak may be wrong."""
    return min(row.calls * (row.ideal_ns or 0.0), float(row.device_ns))


def _sorted(totals: Iterable[LimitTotal]) -> tuple[LimitTotal, ...]:
    return tuple(sorted(totals, key=lambda total: (-total.lost_ns, -total.device_ns, total.name)))


def totals_by_module(
    trace: Trace, links: Links, backward: BackwardPass, rows: Sequence[LimitRow]
) -> tuple[LimitTotal, ...] | None:
    """Add up by the innermost module that launched the work; None where no modules were recorded."""
    result = module_of_activities(trace, links, backward)
    if result is None:
        return None
    names, module = result
    labels = [*names.to_list(), NO_MODULE]
    # -1, in no module, picks the last label.
    return _sorted(_by_activity(trace, links, rows, [labels[at] for at in module.tolist()]))


def totals_by_step(trace: Trace, links: Links, rows: Sequence[LimitRow]) -> tuple[LimitTotal, ...]:
    """Add up by the step that launched the work, in order."""
    table = step_table(trace)
    labels = [f"step {number}" for number in table["step"].to_list()] + [NO_STEP]
    step = step_of_activities(trace, links, table)
    # -1, in no step, picks the last label.
    totals = {total.name: total for total in _by_activity(trace, links, rows, [labels[at] for at in step.tolist()])}
    return tuple(totals[label] for label in dict.fromkeys(labels) if label in totals)


def _by_activity(trace: Trace, links: Links, rows: Sequence[LimitRow], label: Sequence[str]) -> Iterator[LimitTotal]:
    """Add limits up by label: each activity gets the part of its row's limit that its duration is of the row's."""
    share, flop = _per_nanosecond(trace, links, rows)
    duration = column(trace.activities, "duration_ns")
    known = ~np.isnan(share)
    table = pl.DataFrame(
        {
            "label": label,
            "device_ns": duration,
            "modelled_ns": np.where(known, duration, 0),
            "ideal_ns": np.where(known, duration * np.minimum(share, 1.0), 0.0),
            "flop": np.where(known, duration * flop, 0.0),
        }
    )
    for name, device, modelled, ideal, operations in table.group_by("label", maintain_order=True).sum().iter_rows():
        yield LimitTotal(
            name=name,
            device_ns=device,
            modelled_ns=modelled,
            ideal_ns=ideal,
            lost_ns=modelled - ideal,
            share=ideal / modelled if modelled else None,
            flop=round(operations),
        )


def _per_nanosecond(trace: Trace, links: Links, rows: Sequence[LimitRow]) -> tuple[Ints, Ints]:
    """Return per activity its row's share of the limit and operations per nanosecond; NaN without a model."""
    known = [row for row in rows if row.ideal_ns is not None and row.device_ns]
    keys = pl.DataFrame(
        {
            **{name: [getattr(row, name) for row in known] for name in _KEY},
            "time": [row.device_ns for row in known],
            "ideal": [least_ns(row) for row in known],
            "flop": [float(row.calls * (row.least_flop or 0)) for row in known],
        },
        schema={**dict.fromkeys(_KEY[:3], pl.String), "device": pl.Int32, "time": pl.Int64, "ideal": pl.Float64,
                "flop": pl.Float64},
    )  # fmt: skip
    keys = keys.group_by(_KEY).sum().with_columns(pl.col("ideal", "flop") / pl.col("time"))
    inputs = inputs_of_activities(trace, links).select(pl.col(_KEY[:3]).cast(pl.String))
    activities = inputs.with_columns(device=trace.activities["device"].cast(pl.Int32))
    joined = activities.join(keys, on=_KEY, how="left", nulls_equal=True, maintain_order="left")
    return joined["ideal"].fill_null(np.nan).to_numpy(), joined["flop"].fill_null(np.nan).to_numpy()


def utilisation(
    device: int,
    rows: Sequence[LimitRow],
    needed: Sequence[LimitRow],
    of_ns: float,
    steps: int,
    *,
    unprofiled: bool,
) -> Utilisation:
    """Return how well steps use a device.

    Args:
        device: its number.
        rows: the limits of the steps' work on all devices.
        needed: the same without what the backward pass computes again.
        of_ns: how long a step takes, in nanoseconds.
        steps: how many steps the rows cover.
        unprofiled: whether ``of_ns`` was measured without a profiler.
    """
    own = [row for row in rows if row.device == device and row.ideal_ns is not None]
    moved = sum(row.calls * (row.least_bytes or 0) for row in own)
    seconds = of_ns * steps / NS_PER_S
    # What is computed again keeps the device busy (HFU), but is not needed (MFU).
    hfu = _products(own) / of_ns / steps if of_ns else 0.0
    return Utilisation(
        device=device,
        of_ns=of_ns,
        unprofiled=unprofiled,
        hfu=hfu or None,
        mfu=None if not hfu else _products(row for row in needed if row.device == device) / of_ns / steps,
        achieved_bytes_per_s=moved / seconds if seconds and moved else None,
    )


def _products(rows: Iterable[LimitRow]) -> float:
    """Return how long all products of the rows take at the peaks of their units, in nanoseconds."""
    return sum(row.calls * (row.compute_ns or 0.0) for row in rows)
