"""Findings: what could make a step faster, where, by how much, how that is known and verified. What is read first."""

from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct

from opscope.base.summary import Summarised, Summary
from opscope.documents.statements import Basis

# ---------------------------------------------------------------- findings


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
    EXPANDED_COPY = "expanded_copy"
    DENSE_GRADIENT = "dense_gradient"
    FLOAT32_LOGITS = "float32_logits"
    FULL_SORT = "full_sort"
    ONE_HOT_PRODUCT = "one_hot_product"
    SLICED_PRODUCT = "sliced_product"
    EXCESS_TRAFFIC = "excess_traffic"
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

    @property
    def is_promised(self) -> bool:
        """Whether it promises something: that its lowest saving is above 0, or that nothing is saved."""
        return not self.saving_ns.high or self.saving_ns.low > 0

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


# ---------------------------------------------------------------- what is read first
# Every part of a brief has the address of its evidence, which ``opscope show TRACE#ADDRESS`` prints.


class StepFigure(Struct, frozen=True, kw_only=True):
    """How long a step takes: the one figure that every screen shows.

    Attributes:
        ns: the mean of many consecutive steps without the profiler; else that of the recorded ones, which is their
            window over their number.
        basis: which of these: an unprofiled step, or a recorded one.
        steps: how many; null where the user gave the time.
        low_ns, high_ns: the 95 % interval of an unprofiled step; null where it is not known.
        estimate_ns: what a recorded step would take without the profiler, as replayed for the findings; null where
            nothing tells.
        sentence: what recurs between steps, and why the median is another; null where neither is worth a word.
    """

    ns: float
    basis: StepBasis
    steps: int | None
    low_ns: float | None = None
    high_ns: float | None = None
    estimate_ns: float | None = None
    sentence: str | None = None


class BriefFinding(Struct, frozen=True, kw_only=True):
    """A finding to begin with.

    Attributes:
        id: its id in the trace.
        title: the problem in one line.
        todo: what to do, in a few words.
        where: the line of Python, module, operator or range, as far as recorded; null if nothing is known.
        place: the same in a few characters, such as ``train.py:59``.
        saving_ns: the time that a step could save; low is nearly certain.
        saving: the same in words; empty if it saves nothing by itself.
        saves: the same in a few characters, such as ``0.33 to 2.63 ms``.
        likely_ns: the likely saving.
        of_step: what step that is of, and how its length is known.
        overlaps: numbers of findings above it that would save some of the same time; the first is 1.
        evidence: the first facts, each with its basis.
        action: the change to make.
        prove: a command that tests it.
        address: where all of it is.
    """

    id: str
    title: str
    todo: str
    where: str | None
    place: str | None
    saving_ns: SavingRange
    saving: str
    saves: str
    likely_ns: float
    of_step: StepBasis
    overlaps: tuple[int, ...] = ()
    evidence: tuple[str, ...]
    action: str
    prove: str
    address: str


class BriefPart(Struct, frozen=True):
    """A part of a step: how long it is, in nanoseconds a step, and its share."""

    name: str
    ns: float
    share: float


class Unmeasured(Struct, frozen=True):
    """What was not measured, and why."""

    what: str
    why: str


class NextCommand(Struct, frozen=True):
    """A command to run next, and what it is for."""

    command: str
    gives: str


class FirstScreen(Struct, frozen=True, kw_only=True):
    """What is read first of a trace. Built once; terminal, reports, briefs, page and Python print it.

    Attributes:
        bound: what bounds a step.
        sentence: that in at most 25 words.
        step: how long a step takes, and how that is known; null where no steps are known.
        step_address: where it is; null where ``step`` is.
        step_count: how many steps were recorded; 0 if none are marked.
        parts_of: what the parts make up: a recorded step, the recording, or the operators' CPU time.
        parts: where that goes on the busiest device, or by category of operators where nothing ran on one.
        parts_address: where these are; null where there are none.
        trust: the verdict of the trust checks.
        failed: the checks that fail, in a sentence each, and what opscope could not compute.
        doubts: the checks that fail, then those that warn, in a sentence each.
        findings: those to begin with, the largest likely saving first.
        findings_reason: why there are none; null if there are some.
        further_findings: ids of the others.
        together: what all of them save, in a sentence; null where no replay tells.
        left: the same in a few words; null likewise.
        not_measured: what was not, and why.
        memory: the highest peak of a GPU's memory, and what saves most of it; null where it was not recorded.
    """

    bound: str
    sentence: str
    step: StepFigure | None
    step_address: str | None
    step_count: int
    parts_of: str
    parts: tuple[BriefPart, ...]
    parts_address: str | None
    trust: str
    failed: tuple[str, ...]
    doubts: tuple[str, ...]
    findings: tuple[BriefFinding, ...]
    findings_reason: str | None
    further_findings: tuple[str, ...]
    together: str | None
    left: str | None
    not_measured: tuple[Unmeasured, ...]
    memory: str | None = None


class BriefDocument(FirstScreen, frozen=True, kw_only=True):
    """A trace in a few lines.

    Attributes:
        trace: its path.
        next: commands to run.
    """

    schema: Literal["opscope.brief/1"] = "opscope.brief/1"
    trace: str
    next: tuple[NextCommand, ...]


class ShownValue(Struct, frozen=True, kw_only=True):
    """One value of a document.

    Attributes:
        address: where it is in the document.
        value: what JSON holds there.
        text: the value for people.
        means: what the field stands for; null where that is not written down.
        inside: the addresses of the parts of a value that has some.
    """

    address: str
    value: Any
    text: str
    means: str | None
    inside: tuple[str, ...] = ()


class ShownDocument(Struct, frozen=True, kw_only=True):
    """Some values of the document of a trace."""

    schema: Literal["opscope.shown/1"] = "opscope.shown/1"
    trace: str
    values: tuple[ShownValue, ...]
