"""How far a trace's device time is from what the device allows: the schema ``opscope.limits/1``."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from opscope.knowledge.costs import Product


class LimitedBy(StrEnum):
    """What an ideal time follows from."""

    COMPUTE = "compute"
    MEMORY = "memory"
    FLOOR = "one kernel"


@dataclass(frozen=True, slots=True)
class PeaksEntry:
    """What a device can do at most, and how that is known.

    Attributes:
        device: its number in the trace.
        name: its name.
        origin: ``datasheet``, or how it was measured; null where nothing is known of the device.
        flop_per_s: by precision, dense, a multiplication and an addition counted as two.
        memory_bytes_per_s: to and from its memory.
        l2_bytes: its cache.
        measured: which precisions were measured; the others' peaks are the datasheet's.
    """

    device: int | None
    name: str
    origin: str | None
    flop_per_s: dict[str, float]
    memory_bytes_per_s: float | None
    l2_bytes: int | None
    measured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """The calls of an operator with the same inputs on one device. What refers to a call is its mean.

    Attributes:
        operator: its name; null for what no operator launched.
        category: what kind of work it is.
        device: where it ran.
        input_dims, input_types, input_strides: as recorded, JSON text.
        kernel: the kernel that took most of the time.
        thread_blocks: of its launch.
        calls: calls that launched anything.
        device_ns: all their device time.
        call_ns: device time of a call.
        flop: floating-point operations of a call as ``torch.utils.flop_counter`` counts them; null without a model.
        least_flop: those that must be done.
        least_bytes: bytes that a call reads and writes at least; null without a model.
        product: the sizes of a matrix product; null for other work.
        precision: in which products ran, by the kernel's name: ``fp32``, ``tf32``, ``bf16``; also where
            there is no model; null for other work.
        compute_ns: how long a call's products take at the peak of their unit, of the fastest one where the name does
            not say which that is; 0 without products, null without a model.
        ideal_ns: the least time of a call: by operations or bytes, but not below one short kernel's, nor above what it
            took where its data fit into the cache. Null without a model.
        limited_by: which of these decides.
        share: ``ideal_ns`` over ``call_ns``.
        lost_ns: ``device_ns`` less the ideal time of all calls.
        lower_precision: the next lower one of products that the device is faster at; null for other work.
        lower_ideal_ns: the ideal time at that.
        reason: why there is no model; null where there is one.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTotal:
    """Rows added up: by operator, category, module or step.

    Attributes:
        name: of what they have in common.
        device_ns: their device time.
        modelled_ns: the part of it that a model exists for; the following refer to that part.
        ideal_ns: the least time.
        lost_ns: ``modelled_ns`` less ``ideal_ns``.
        share: ``ideal_ns`` over ``modelled_ns``; null where nothing is modelled.
        flop: operations of products that must be done (``least_flop``).
    """

    name: str
    device_ns: int
    modelled_ns: int
    ideal_ns: float
    lost_ns: float
    share: float | None
    flop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """What a step makes of a device.

    Attributes:
        device: its number.
        of_ns: the time that the shares refer to: the unprofiled step, else the profiled one.
        unprofiled: which of the two.
        hfu: operations of all products, each over the peak of its precision and that time. Recomputed ones count.
        mfu: the same without what the backward pass computes again of the forward pass, as far as its operators were
            recorded.
        achieved_bytes_per_s: the least bytes of all modelled work over that time: a lower bound of what was moved.
    """

    device: int | None
    of_ns: float
    unprofiled: bool
    hfu: float | None
    mfu: float | None
    achieved_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsEntry:
    """The limits of one trace.

    Attributes:
        peaks: of the devices.
        device_sum_ns: the durations of all activities.
        modelled_ns: the part that models exist for.
        rows: the work, with the most time lost first; what has no model after it, by its time.
        utilisation: per device that has known peaks, where steps are known.
        over_limit: operators whose calls were more than 5 % above the limit: a model or a peak is wrong.
    """

    peaks: tuple[PeaksEntry, ...]
    device_sum_ns: int
    modelled_ns: int
    rows: tuple[LimitRow, ...]
    utilisation: tuple[Utilisation, ...]
    over_limit: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsDocument:
    """One trace.

    Attributes:
        trace: its file.
        limits: of all of its work.
        by: what ``totals`` are by.
        totals: the same added up.
    """

    schema: Literal["opscope.limits/1"] = "opscope.limits/1"
    trace: str
    limits: LimitsEntry
    by: str
    totals: tuple[LimitTotal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsDocuments:
    """Several traces: the schema ``opscope.limits-list/1``."""

    schema: Literal["opscope.limits-list/1"] = "opscope.limits-list/1"
    traces: tuple[LimitsDocument, ...]
