"""Findings: what could make a step faster, where, by how much, the evidence, what to change, and how to verify it."""

from enum import StrEnum

from msgspec import Struct

from opscope.base.summary import Summarised, Summary
from opscope.documents.statements import Basis


class StepBasis(StrEnum):
    """What a saving refers to."""

    UNPROFILED = "unprofiled step"
    ESTIMATED = "step without the profiler, as estimated"
    ESTIMATED_RECORDING = "recording without the profiler, as estimated"
    RECORDED = "recorded step"
    RECORDING = "recording"


class Rule(StrEnum):
    """The rules that make findings; docs/findings.md has a row for each."""

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
    BETWEEN_STEPS = "between_steps"
    LONG_STEPS = "long_steps"
    GARBAGE_COLLECTION = "garbage_collection"
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
    LATE_RANKS = "late_ranks"
    SLOW_RANKS = "slow_ranks"
    LATE_IN_TURN = "late_in_turn"
    SLOW_LINK = "slow_link"
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
    ONLY_TOGETHER = "only_together"
    IDLE_CORES = "idle_cores"
    DOUBLE_PRECISION = "double_precision"
    SCALAR_READS = "scalar_reads"
    ACTIVE_DROPOUT = "active_dropout"
    UNUSED_GRAPH = "unused_graph"


class Where(Struct, frozen=True, kw_only=True):
    """Where a finding is, as far as that was recorded; unknown fields are null.

    Attributes:
        operator: the operator with most of its cost.
        input_dims: that operator's recorded shapes, JSON text.
        module: the innermost ``nn.Module``.
        python: the innermost Python frame of the user's code.
        kernel: the kernel that takes most of the time.
        source_file: the file that instantiates that kernel; null if it is not verified.
        call: the CUDA or HIP API call that the host sits in.
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


class SavingRange(Struct, frozen=True):
    """A saving in nanoseconds per step: nearly certain (low), and if the change did all that it can (high).

    Attributes:
        low: what is nearly certain.
        high: what it is if the change does all that it can.
    """

    low: float
    high: float


class Unit(StrEnum):
    """What a figure counts."""

    NANOSECONDS = "ns"
    BYTES = "bytes"
    SHARE = "share"  # of 1
    COUNT = "count"  # in the step or recording that the sentence names; it may be a mean


class Source(StrEnum):
    """Where a piece of evidence comes from, and the command to look with."""

    ACTIVITIES = "the device's recorded work: opscope analyze --by kernel"
    IDLE = "idle time by cause: opscope analyze --by gap"
    HOST = "the host's recorded operators and calls: opscope analyze --by operator"
    LIMITS = "what the device allows for this work: opscope limits"
    STEP = "busy time and length of the step: opscope analyze"
    ESTIMATE = "the step without the profiler, as measured or estimated: opscope profile measures it"
    REPLAY = "the trace replayed with the change: opscope whatif"
    UNPROFILED = "steps measured without the profiler: opscope profile"
    RANKS = "what each rank does of its own: opscope ranks --by late"


class Figure(Struct, frozen=True):
    """A number in a sentence of evidence.

    Attributes:
        text: how the sentence writes it.
        value: the number, not rounded.
        unit: what it counts.
    """

    text: str
    value: float
    unit: Unit


class Fact(Struct, frozen=True):
    """One piece of evidence, and its basis.

    Attributes:
        text: what was observed, in words.
        basis: how it is known.
        figures: the times, sizes, shares and counts that ``text`` states of the run, in their order; not rates, shapes
            and counts within names of work.
        source: where it comes from; null for what is known in general.
    """

    text: str
    basis: Basis
    figures: tuple[Figure, ...] = ()
    source: Source | None = None


class Finding(Summarised, Struct, frozen=True, kw_only=True):
    """One thing to do.

    Attributes:
        id: unique in its list: the rule, with a number if it found several.
        rule: the rule that found it; see `Rule`.
        title: the problem in one line.
        where: where it is.
        saving_ns: the time that a step could save.
        saving: the saving in words; empty if there is none.
        likely_ns: the likely saving, by which findings are ranked; of ``only_together`` what it saves beyond the larger
            of its parts counts.
        is_first: whether it is one of the three to begin with; findings that overlap with a larger one come last.
        of_step_ns: the length of the step that savings refer to.
        of_step: whether that is an unprofiled step, a recorded one, or a whole recording without steps.
        derivation: how the saving was derived.
        evidence: what was observed.
        todo: what to do, in at most 34 characters.
        action: the change to make in the code.
        prove: a command that shows whether the change helped.
        wrong_if: what would make the finding wrong.
        overlaps: ids of findings that would save some of the same time; their savings do not add up.
        adds_ns: what it likely saves once those before it are done, by replay of all of them; null where it has no
            replay, adds nothing, or is about the same work as an earlier one.
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
    todo: str = ""
    action: str
    prove: str
    wrong_if: str
    overlaps: tuple[str, ...] = ()
    adds_ns: float | None = None

    def summary(self) -> Summary:
        """Return what it could save, where, the change to make, the evidence, and how to verify it."""
        place = self.where.python or self.where.module or self.where.operator or self.where.annotation
        rows = (
            ("saves", self.saving or "nothing by itself"),
            ("where", place or "unknown"),
            ("write", self.action),
            *(("evidence", f"{fact.text} ({fact.basis})") for fact in self.evidence),
            ("prove", self.prove),
            ("wrong if", self.wrong_if),
        )
        return Summary(f"{self.id}: {self.title}", rows)


class Together(Struct, frozen=True, kw_only=True):
    """What several findings save if all are done, by one replay.

    Attributes:
        findings: their ids, in the order in which they are done.
        saving_ns: the time that a step could save.
        saving: the saving in words.
        likely_ns: the likely saving.
        of_step_ns: the step without a profiler, of which that is saved.
        of_step: how that is known.
    """

    findings: tuple[str, ...]
    saving_ns: SavingRange
    saving: str
    likely_ns: float
    of_step_ns: float
    of_step: StepBasis
