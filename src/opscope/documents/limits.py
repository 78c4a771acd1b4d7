"""How far a trace's device time is from what the device allows: the schema ``opscope.limits/1``."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from opscope.knowledge.costs import Product


class LimitedBy(StrEnum):
    """What determines an ideal time."""

    COMPUTE = "compute"
    MEMORY = "memory"
    FLOOR = "one kernel"


class PeaksEntry(Struct, frozen=True):
    """The peaks of a device, and how they are known.

    Attributes:
        device: its number in the trace.
        name: its name.
        origin: ``datasheet``, or how it was measured; null if no peaks are known.
        flop_per_s: by precision, dense, a multiplication and an addition counted as two.
        memory_bytes_per_s: to and from its memory.
        l2_bytes: its cache.
        measured: the precisions that were measured; the other peaks are the datasheet's.
    """

    device: int | None
    name: str
    origin: str | None
    flop_per_s: dict[str, float]
    memory_bytes_per_s: float | None
    l2_bytes: int | None
    measured: tuple[str, ...] = ()


class LimitRow(Struct, frozen=True, kw_only=True):
    """The calls of an operator with the same inputs on one device. Figures of a call are means over the calls.

    Attributes:
        operator: its name; null for work that no operator launched.
        category: the kind of work.
        device: the device that it ran on.
        input_dims, input_types, input_strides: as recorded, JSON text.
        kernel: the kernel that took most of the time.
        thread_blocks: of that kernel's launch.
        calls: calls that launched anything.
        device_ns: device time of all calls.
        call_ns: device time of a call.
        flop: floating-point operations of a call as ``torch.utils.flop_counter`` counts them; null without a model.
        least_flop: the operations that must be done.
        least_bytes: the bytes that a call must at least read and write; null without a model.
        achieved_flop_per_s: ``flop`` over ``call_ns``; null without a model.
        achieved_bytes_per_s: ``least_bytes`` over ``call_ns``: a lower bound of the bytes moved; null without a model.
        product: the sizes of a matrix product; null for other work.
        precision: of products, by the kernel's name: ``fp32``, ``tf32``, ``bf16``; known even without a model. Null for
            other work.
        compute_ns: how long a call's products take at the peak of their unit, or of the fastest unit if the name does
            not tell the unit; 0 without products, null without a model.
        ideal_ns: the least time of a call, by operations or bytes; at least that of one short kernel, and at most the
            measured time if its data fit into the cache. Null without a model.
        limited_by: what determines ``ideal_ns``; see `LimitedBy`.
        share: ``ideal_ns`` over ``call_ns``.
        lost_ns: ``device_ns`` less the ideal time of all calls.
        lower_precision: for products, the next lower precision at which the device is faster; null for other work.
        lower_ideal_ns: the ideal time at that precision.
        reason: why there is no model; null if there is one.
    """

    operator: str | None
    category: str
    device: int | None
    kernel: str
    calls: int
    device_ns: int
    call_ns: float
    input_dims: str | None = None
    input_types: str | None = None
    input_strides: str | None = None
    thread_blocks: int | None = None
    flop: int | None = None
    least_flop: int | None = None
    least_bytes: int | None = None
    achieved_flop_per_s: float | None = None
    achieved_bytes_per_s: float | None = None
    product: Product | None = None
    precision: str | None = None
    compute_ns: float | None = None
    ideal_ns: float | None = None
    limited_by: str | None = None
    share: float | None = None
    lost_ns: float | None = None
    lower_precision: str | None = None
    lower_ideal_ns: float | None = None
    reason: str | None = None


class LimitTotal(Struct, frozen=True, kw_only=True):
    """Rows added up: by operator, category, module or step.

    Attributes:
        name: the operator, category, module or step.
        device_ns: device time of the rows.
        modelled_ns: the part of it that models exist for; the following figures refer to that part.
        ideal_ns: the least time.
        lost_ns: ``modelled_ns`` less ``ideal_ns``.
        share: ``ideal_ns`` over ``modelled_ns``; null if nothing is modelled.
        flop: operations of products that must be done (``least_flop``).
    """

    name: str
    device_ns: int
    modelled_ns: int
    ideal_ns: float
    lost_ns: float
    share: float | None
    flop: int


class Utilisation(Struct, frozen=True, kw_only=True):
    """How much of a device's peaks a step uses.

    Attributes:
        device: its number.
        of_ns: the time that the shares refer to: that of the unprofiled step, else of the profiled one.
        unprofiled: whether it is the unprofiled step.
        hfu: operations of all products over the peak of their precision in that time, including recomputed ones.
        mfu: the same without forward work that the backward pass computes again, as far as its operators were recorded.
        achieved_bytes_per_s: the least bytes of all modelled work over that time: a lower bound of the bytes moved.
    """

    device: int | None
    of_ns: float
    unprofiled: bool
    hfu: float | None
    mfu: float | None
    achieved_bytes_per_s: float | None


class LimitsEntry(Struct, frozen=True, kw_only=True):
    """The limits of one trace.

    Attributes:
        peaks: of the devices.
        device_sum_ns: sum of the durations of all activities.
        modelled_ns: the part of it that models exist for.
        rows: the work that loses most time first; work without a model follows, by its time.
        utilisation: of each device with known peaks; empty if the number of steps is unknown.
        over_limit: operators whose calls were more than 5 % faster than the limit: a model or a peak is wrong.
        nothing: why no work has a limit, in a sentence; null where some has.
    """

    peaks: tuple[PeaksEntry, ...]
    device_sum_ns: int
    modelled_ns: int
    rows: tuple[LimitRow, ...]
    utilisation: tuple[Utilisation, ...]
    over_limit: tuple[str, ...]
    nothing: str | None = None


class LimitsDocument(Struct, frozen=True, kw_only=True):
    """One trace.

    Attributes:
        trace: its file.
        limits: of all its work.
        by: how ``totals`` are grouped: ``shape``, ``operator``, ``category``, ``module`` or ``step``.
        totals: sums over the groups.
    """

    schema: Literal["opscope.limits/1"] = "opscope.limits/1"
    trace: str
    limits: LimitsEntry
    by: str
    totals: tuple[LimitTotal, ...]


class LimitsDocuments(Struct, frozen=True, kw_only=True):
    """Several traces: the schema ``opscope.limits-list/1``."""

    schema: Literal["opscope.limits-list/1"] = "opscope.limits-list/1"
    traces: tuple[LimitsDocument, ...]
