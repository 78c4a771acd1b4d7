"""What could make a step faster: what, where, how that is known, how much, what to write, and how to prove it."""

from dataclasses import dataclass
from enum import StrEnum

from opscope.documents.statements import Basis


class StepBasis(StrEnum):
    """Of what a saving is."""

    UNPROFILED = "unprofiled step"
    RECORDED = "recorded step"
    RECORDING = "recording"


class Rule(StrEnum):
    """The rules that find something. docs/findings.md has a row on each."""

    FP32_PRODUCTS = "fp32_products"
    UNALIGNED_SIZES = "unaligned_sizes"
    DISPATCH_BOUND = "dispatch_bound"
    BLOCKING_READ = "blocking_read"
    BLOCKING_COPY = "blocking_copy"
    INPUT_PIPELINE = "input_pipeline"
    ALLOCATOR_CHURN = "allocator_churn"
    EXPLICIT_SYNC = "explicit_sync"
    BLOCKING_CALL = "blocking_call"
    HOST_WORK = "host_work"
    STREAM_DEPENDENCY = "stream_dependency"
    DEVICES_TAKE_TURNS = "devices_take_turns"
    FUSIBLE_CHAIN = "fusible_chain"
    EAGER_ATTENTION = "eager_attention"
    UNFUSED_OPTIMIZER = "unfused_optimizer"
    LAYOUT_CONVERSION = "layout_conversion"
    REPEATED_CASTS = "repeated_casts"
    DUPLICATE_WORK = "duplicate_work"
    SMALL_GRID = "small_grid"
    RECOMPUTATION = "recomputation"
    SMALL_BATCH = "small_batch"
    EXPOSED_COMMUNICATION = "exposed_communication"
    LATE_RANK = "late_rank"
    SMALL_COLLECTIVES = "small_collectives"
    BUFFER_BROADCAST = "buffer_broadcast"
    DEVICE_COPIES = "device_copies"
    EXPOSED_COPY = "exposed_copy"
    CONTIGUOUS_COPIES = "contiguous_copies"
    GROWN_COPY = "grown_copy"
    COLD_START = "cold_start"
    RECOMPILATION = "recompilation"
    SLOW_PRODUCT_KERNEL = "slow_product_kernel"
    NEAR_LIMIT = "near_limit"
    FAR_FROM_LIMIT = "far_from_limit"
    DEAREST_WORK = "dearest_work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where it is, as far as that was recorded.

    Attributes:
        operator: the operator that costs most of it.
        input_dims: its recorded shapes, JSON text.
        module: the innermost ``nn.Module``.
        python: the innermost Python frame of the user's.
        kernel: the kernel that takes most of it.
        source_file: the file that instantiates that kernel; null where it is not known for certain.
        call: the call of the CUDA or HIP API that the host sits in.
        annotation: the innermost named range.
    """

    operator: str | None = None
    input_dims: str | None = None
    module: str | None = None
    python: str | None = None
    kernel: str | None = None
    source_file: str | None = None
    call: str | None = None
    annotation: str | None = None


@dataclass(frozen=True, slots=True)
class SavingRange:
    """Nanoseconds a step: what is nearly certain, and what the step would lose if the change did all that it can."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fact:
    """One piece of evidence, and what it rests on."""

    text: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to do.

    Attributes:
        id: unique in its list: the rule, with a number where it found several.
        rule: which rule found it; see `Rule`.
        title: what is the matter, in one line.
        where: where.
        saving_ns: what a step could lose.
        saving: that in words; empty where it is nothing.
        likely_ns: what it likely loses, by which findings are ranked.
        is_first: whether it is one of the three to begin with: of those that save the same time, the dearest only.
        of_step_ns: how long the step takes that this refers to.
        of_step: whether that is an unprofiled step, a recorded one, or all of a recording that marks no steps.
        derivation: how the saving follows.
        evidence: what was seen.
        action: what to write.
        prove: a command that shows whether it helped.
        wrong_if: what would make it wrong.
        overlaps: ids of findings that would save some of the same time; their savings do not add up.
    """

    id: str
    rule: str
    title: str
    where: Where
    saving_ns: SavingRange
    saving: str = ""
    likely_ns: float = 0.0
    is_first: bool = False
    of_step_ns: float
    of_step: StepBasis
    derivation: str
    evidence: tuple[Fact, ...]
    action: str
    prove: str
    wrong_if: str
    overlaps: tuple[str, ...] = ()
