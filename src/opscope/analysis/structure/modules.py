"""Device time per ``nn.Module``, and where operator calls come from: the module and line of the user's program.

Both need recorded stacks.
"""

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import column, costliest_first, nesting_of
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints, Nesting
from opscope.analysis.structure.stacks import user_frame_of_operators
from opscope.trace.model import Trace

MODULE_FRAME = "nn.Module: "
NO_MODULE = "(in no module)"


class Origins(Struct, frozen=True):
    """Rows of ``trace.frames`` per operator, or -1; a backward operator has those of its forward operator.

    Attributes:
        module: the innermost call of an ``nn.Module``.
        frame: the innermost Python frame of the user's program.
    """

    module: Ints
    frame: Ints

    @classmethod
    def of(cls, trace: Trace, backward: BackwardPass) -> "Origins":
        """Find the origins of all operators; all -1 where no stacks were recorded."""
        if not trace.frames.height:
            nowhere = np.full(trace.operators.height, -1, np.int64)
            return cls(nowhere, nowhere)
        rows = trace.frames.with_row_index("row").filter(pl.col("name").cat.starts_with(MODULE_FRAME))
        module = module_of_operators(trace, backward, nesting_of(rows))
        # -1, no module, picks the appended -1.
        row = np.append(rows["row"].cast(pl.Int64).to_numpy(), -1)
        return cls(row[module], user_frame_of_operators(trace, backward))


def module_table(trace: Trace, links: Links, backward: BackwardPass) -> pl.DataFrame | None:
    """Return the device time per module instance: ``module``, ``calls``, ``self_device_ns``, ``total_device_ns``.

    An activity belongs to the innermost module around its operator; one of the backward pass to the module of the
    forward operator with its sequence number. ``total_device_ns`` adds the modules inside. What no module launched is a
    row of its own, so that ``self_device_ns`` adds up to the device sum. None where no modules were recorded.
    """
    modules = trace.frames.filter(pl.col("name").cat.starts_with(MODULE_FRAME))
    if not modules.height:
        return None
    nesting = nesting_of(modules)
    module = _innermost(trace, links, backward, nesting)
    self_device = np.zeros(modules.height, np.int64)
    durations = trace.activities["duration_ns"].to_numpy()
    np.add.at(self_device, module[module >= 0], durations[module >= 0])
    code = modules["name"].to_physical().cast(pl.Int64).to_numpy()
    # Of a module nested in itself, only the outermost call counts in calls and totals.
    outermost = ~nesting.inside_same(code)
    rows = (
        pl.DataFrame(
            {
                "module": modules["name"].cast(pl.String).str.strip_prefix(MODULE_FRAME),
                "outermost": outermost,
                "self_device_ns": self_device,
                "total_device_ns": np.where(outermost, nesting.subtree_sums(self_device), 0),
            }
        )
        .group_by("module")
        .agg(pl.col("outermost").sum().alias("calls"), pl.col("self_device_ns", "total_device_ns").sum())
    )
    rows = costliest_first(rows, ["total_device_ns", "self_device_ns"], ["module"])
    elsewhere = int(durations.sum()) - int(self_device.sum())
    if not elsewhere:
        return rows
    rest = pl.DataFrame([(NO_MODULE, 0, elsewhere, elsewhere)], schema=rows.schema, orient="row")
    return pl.concat([rows, rest]).sort("total_device_ns", descending=True, maintain_order=True)


def module_of_activities(trace: Trace, links: Links, backward: BackwardPass) -> tuple[pl.Series, Ints] | None:
    """Return the module names of all module calls, and per activity the position of its call, or -1.

    None where no modules were recorded.
    """
    modules = trace.frames.filter(pl.col("name").cat.starts_with(MODULE_FRAME))
    if not modules.height:
        return None
    names = modules["name"].cast(pl.String).str.strip_prefix(MODULE_FRAME)
    return names, _innermost(trace, links, backward, nesting_of(modules))


def module_of_operators(trace: Trace, backward: BackwardPass, nesting: Nesting) -> Ints:
    """Return per operator the innermost module call around it or its forward operator, as a row of ``nesting``; or -1.

    Args:
        trace: the trace.
        backward: its backward pass.
        nesting: the nesting of the module calls alone.
    """
    own = nesting.innermost_at(column(trace.operators, "thread"), column(trace.operators, "start_ns"))
    return backward.through_forward(np.where(backward.inside, -1, own))


def _innermost(trace: Trace, links: Links, backward: BackwardPass, nesting: Nesting) -> Ints:
    """Return per activity the innermost call of a module around its operator, or -1."""
    module_of = module_of_operators(trace, backward, nesting)
    result = np.full(trace.activities.height, -1, np.int64)
    launched = np.flatnonzero(links.activity_operator >= 0)
    result[launched] = module_of[links.activity_operator[launched]]
    return result
