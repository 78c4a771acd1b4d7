"""Where each operator call comes from: its module and line of the user's program, where stacks were recorded."""

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import nesting_of
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.modules import MODULE_FRAME, module_of_operators
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.stacks import user_frame_of_operators
from opscope.trace.model import Trace


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
