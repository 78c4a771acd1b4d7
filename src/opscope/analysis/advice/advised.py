"""What could make a step faster: one function per rule, ranked by the saving that can be defended."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from opscope.analysis.advice import communication, memory_bound, needless, products, repeated
from opscope.analysis.advice.blocking import blocking_calls, stream_dependency, waits_for_the_device
from opscope.analysis.advice.communication import devices_take_turns
from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range, Recording, Remedy
from opscope.analysis.advice.device_work import (
    DEAREST_WORK,
    FAR_FROM_LIMIT,
    dearest,
    dominant,
    eager_attention,
    far_from_limit,
)
from opscope.analysis.advice.host_copies import copies
from opscope.analysis.advice.host_work import dispatch_bound, host_work, input_pipeline
from opscope.analysis.advice.optimizer import unfused_optimizer
from opscope.analysis.advice.preparation import allocator_churn, cold_start, recompilation
from opscope.analysis.advice.remedies import NOTHING_SURE, saving_text
from opscope.analysis.advice.replayed import ONLY_TOGETHER, Replayed, all_of_them, pairs
from opscope.analysis.advice.rule import AdviceRule, RuleDescription, derived, measured, percent, share_of
from opscope.analysis.advice.small_copies import small_copies
from opscope.analysis.advice.timed import between_steps, garbage_collection, long_steps
from opscope.analysis.costs.limits import MODELLED_SHARE, MOSTLY_MOVING, least_ns, moving_share
from opscope.analysis.replay.changes import ReplayedChange
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.verdict.bounds import BUSY_SHARE
from opscope.base.errors import UsageError
from opscope.base.parts import Stage, staged
from opscope.base.processes import together
from opscope.base.text import or_unknown, shell_path
from opscope.base.units import format_share
from opscope.documents.advise import INPUT, ChangeName
from opscope.documents.findings import Finding, Rule, SavingRange, Source, StepBasis, Together, Where
from opscope.documents.verdict import CheckName
from opscope.knowledge.categories import OF_LIBRARIES
from opscope.knowledge.devices import Assumed
from opscope.record.configuration import SETTINGS, Configuration
from opscope.trace.model import Trace

# ---------------------------------------------------------------- the command that proves a finding


# What `opscope advise` tries of each rule's change, without an edit.
TRIED: Final[Mapping[Rule, tuple[str, ...]]] = {
    Rule.FP32_PRODUCTS: (ChangeName.TF32, ChangeName.AUTOCAST_BF16),
    Rule.EAGER_ATTENTION: (ChangeName.SDPA,),
    Rule.DISPATCH_BOUND: (ChangeName.COMPILE, ChangeName.COMPILE_REDUCE_OVERHEAD),
    Rule.FUSIBLE_CHAIN: (ChangeName.COMPILE,),
    Rule.UNFUSED_OPTIMIZER: (ChangeName.FUSED_OPTIMIZER,),
    Rule.LAYOUT_CONVERSION: (ChangeName.CHANNELS_LAST,),
    Rule.INPUT_PIPELINE: (INPUT,),
}
# What `opscope advise` takes, by the setting; it tries no other configurations.
_OF_ADVISE: Final[Mapping[str, str]] = {
    "batch_size": "--batch-size", "seq_len": "--seq-len", "hidden_size": "--hidden-size", "layers": "--layers",
    "image_size": "--image-size", "dtype": "--dtype", "attention": "--attention", "mode": "--mode",
}  # fmt: skip
_ARGUMENTS: Final = "arguments"  # of a script, as one text
_COMPARED: Final = "# with the change made: compare the unprofiled step"
_RECORDED: Final = "# no replay tells: record the change and compare the traces with opscope diff"


def proving_command(
    rule: Rule | str, name: str, path: str, recorded: Configuration | None, *, replays: Sequence[str]
) -> str:
    """Return a command that shows whether a finding's change helps.

    Where opscope ran the program, it tries the change or measures the program again. Of a trace by others it replays
    the steps with the change, or shows the evidence where no replay tells.

    Args:
        rule: the finding's rule.
        name: the finding's id.
        path: the trace.
        recorded: what opscope ran; None for a trace that it did not record.
        replays: the findings with whose changes the steps can be replayed; empty where no replay tells.
    """
    if recorded is None:
        if replays:
            return f"opscope whatif {shell_path(path)} {' '.join(f'--finding {one}' for one in replays)}"
        return f"opscope show {shell_path(path)} findings/{name}  {_RECORDED}"
    try:
        # A record may come from anyone, and what is printed here is pasted into a shell.
        arguments = shlex.split(str(recorded.get(_ARGUMENTS) or ""))
    except ValueError:
        return f"opscope show {shell_path(path)} findings/{name}  {_RECORDED}"
    tried = TRIED.get(Rule(rule))
    options = None if tried is None else _options(recorded, of_advise=True)
    program = [recorded.target, *arguments]
    if tried is None or options is None:
        words = ["opscope", "profile", *(_options(recorded, of_advise=False) or ()), "--", *program]
        return f"{shlex.join(words)}  {_COMPARED}"
    return shlex.join(["opscope", "advise", "--only", *tried, *options, "--", *program])


def _options(recorded: Configuration, *, of_advise: bool) -> list[str] | None:
    """Return the options that say which configuration of a workload or function was run; a script has none.

    Returns:
        None where `opscope advise` has no option for one of its settings.
    """
    words: list[str] = []
    for name, value in () if recorded.target.endswith(".py") else recorded.items():
        setting = SETTINGS.get(name)
        if name == _ARGUMENTS or value is None or (setting is not None and setting.kind == "flag" and not value):
            continue
        if setting is None:
            words += ["--set", f"{name}={value}"]
        elif of_advise and name not in _OF_ADVISE:
            return None
        elif setting.kind == "flag":
            words.append(setting.option)
        else:
            words += [_OF_ADVISE[name] if of_advise else setting.option, str(value)]
    return words


# ---------------------------------------------------------------- all findings


RULES: Final[tuple[AdviceRule, ...]] = (
    products.fp32_products,
    products.unaligned_sizes,
    products.slow_product_kernel,
    products.small_grid,
    dispatch_bound,
    small_copies,
    waits_for_the_device,
    blocking_calls,
    copies,
    input_pipeline,
    allocator_churn,
    host_work,
    between_steps,
    long_steps,
    garbage_collection,
    stream_dependency,
    devices_take_turns,
    communication.exposed_communication,
    communication.late_rank,
    communication.small_collectives,
    communication.buffer_broadcast,
    cold_start,
    recompilation,
    memory_bound.fusible_chain,
    eager_attention,
    unfused_optimizer,
    memory_bound.layout_conversion,
    memory_bound.repeated_casts,
    repeated.recomputation,
    memory_bound.contiguous_copies,
    memory_bound.device_copies,
    memory_bound.grown_copies,
    needless.expanded_copies,
    needless.dense_gradient,
    needless.float32_logits,
    needless.full_sort,
    needless.one_hot_product,
    needless.sliced_product,
    needless.excess_traffic,
    repeated.duplicate_work,
)
FIRST: Final = 3  # findings on the first screen
# Savings from this share of a step on count; a step without any is near its limit.
_CHEAP: Final = 0.05
_NEAR: Final = 0.4  # of the limit: below it there is something to gain that no rule knows
_NEAR_LIMIT: Final = RuleDescription(
    Rule.NEAR_LIMIT,
    f"nothing likely saves {percent(_CHEAP)} of a step, the device is busy {percent(BUSY_SHARE)} of it, "
    f"{percent(MODELLED_SHARE)} of its work has a model, and that runs at {percent(_NEAR)} of its limit or more; or "
    "half of its work is sorting, transforming or factorising by a library",
    "0",
    "most work has no recorded shapes; of a device that mostly moves data it says that whether they must be moved no "
    "trace tells",
)
STATEMENTS: Final = (
    *(statement for rule in RULES for statement in rule.statements),
    *(_NEAR_LIMIT, FAR_FROM_LIMIT, DEAREST_WORK, ONLY_TOGETHER),
)
_OF_THE_HOST: Final = frozenset(statement.rule for statement in STATEMENTS if statement.of_host)


class Named(Protocol):
    """What findings are made for, beside what a rule found."""

    @property
    def trace(self) -> Trace:
        """The trace."""

    @property
    def recorded(self) -> Configuration | None:
        """What opscope ran; None for a trace that it did not record."""

    @property
    def step_ns(self) -> float:
        """The step that savings refer to."""

    @property
    def step_kind(self) -> StepBasis:
        """The kind of step that savings refer to."""


class Advice(Struct, frozen=True):
    """What could make a step faster.

    Attributes:
        findings: the largest likely saving first.
        together: what those save together that a replay tells; None for fewer than two of them.
        remedies: per id of a finding its change; of those that a replay can tell.
        pieces: per id of a finding about idle time which pieces of the busiest device's idle time it is about.
        replayed: the steps; None where no replay may promise anything, or none was needed.
    """

    findings: tuple[Finding, ...] = ()
    together: Together | None = None
    remedies: Mapping[str, Remedy] = field(default_factory=dict)
    pieces: Mapping[str, Ints] = field(default_factory=dict)
    replayed: Replayed | None = None

    def change(self, name: str) -> ReplayedChange:
        """Return the change that a finding advises, with likely assumptions.

        Args:
            name: the finding's id.

        Raises:
            UsageError: there is no such finding, or no replay can tell what it saves.
        """
        if name not in self.remedies:
            known = ", ".join(self.remedies) or "none here"
            raise UsageError(f"--finding {name}: no such finding with a change to replay; there are: {known}")
        remedy = self.remedies[name]
        return ReplayedChange(f"--finding {name}", remedy.assumes, lambda edit: remedy.apply(edit, Assumed.LIKELY))


@staged(Stage.FINDINGS)
def advice_on(recording: Recording) -> Advice:
    """Return what could make a step faster.

    Empty where no device worked, the file is damaged, mostly a capture was recorded, or no activity has a duration.
    """
    evidence = recording.evidence
    if not evidence.devices or evidence.waits is None or evidence.trust.failed(CheckName.FILE_IS_VALID) is not None:
        return Advice()
    if evidence.is_capture or evidence.timeless is not None:
        return Advice()
    context, losses = Context(recording), recording.losses
    if evidence.is_warm_up:
        return Advice(as_findings(context, list(cold_start(context)) or [_warm_up(context)]))
    drafts = [context.beside_others(draft) for result in _drafts(context) for draft in result]
    replayed = _replayed(context) if any(draft.remedy for draft in drafts) else None
    drafts = _as_replayed(context, replayed, drafts)
    if evidence.host_unknown is not None:
        drafts = [draft for draft in drafts if draft.rule not in _OF_THE_HOST]  # what the host did is unknown
    elif replayed is not None:
        drafts += losses.part("pairs of findings", partial(_pairs, context, replayed, drafts), list)
    drafts = [context.beside_data(draft) for draft in drafts]
    drafts = [draft for draft in drafts if draft.saving.high >= LEAST_SHARE * context.step_ns]
    if context.busy_ns >= BUSY_SHARE * context.step_ns:
        # After all other rules: far_from_limit leaves out the work that their findings claim.
        far = losses.part("the rule far_from_limit", partial(_far, context, drafts), list[Draft])
        if far and replayed is None:
            replayed = _replayed(context)
        drafts += _as_replayed(context, replayed, [context.beside_others(draft) for draft in far])
    drafts = ranked([_as_sure(context, draft) for draft in drafts])
    kernel = losses.part("the rule dominant", partial(_dominant, context, drafts), list[Draft])
    promised = [draft for draft in drafts if is_promise(draft)]
    first: list[Draft] = []
    if not kernel and sum(draft.saving.likely for draft in promised) < _CHEAP * context.step_ns:
        possible = any(draft.saving.high >= _CHEAP * context.step_ns for draft in drafts)
        first = list(near_limit(context, possible=possible))
    # What it saves is not known, so it comes behind what is promised, and is read in any case.
    at = min(len(promised), FIRST - 1)
    if not (first or kernel or promised):
        kernel = _instead(context, drafts)
    drafts = [*first, *drafts[:at], *kernel, *drafts[at:]]
    advice = Advice(as_findings(context, drafts, replayed=replayed is not None))
    named = {finding.id: draft for draft, finding in zip(drafts, advice.findings, strict=True)}
    remedies = {name: draft.remedy for name, draft in named.items() if draft.remedy is not None}
    pieces = {name: draft.pieces for name, draft in named.items() if len(draft.pieces)}
    advice = replace(advice, remedies=remedies, pieces=pieces, replayed=replayed)
    if replayed is None:
        return advice
    joined = partial(_together, replayed, drafts, advice, context.unprofiled_ns)
    return losses.part("what findings save together", joined, lambda: advice)


# What changes the program's own source, where several rules explain the same time: the general ones stand behind these.
_OF_SOURCE: Final = frozenset(
    {
        *(Rule.RECOMPUTATION, Rule.BLOCKING_READ, Rule.BLOCKING_COPY, Rule.EXPANDED_COPY, Rule.DENSE_GRADIENT),
        *(Rule.FLOAT32_LOGITS, Rule.FULL_SORT, Rule.ONE_HOT_PRODUCT, Rule.SLICED_PRODUCT),
        *(Rule.FP32_PRODUCTS, Rule.LAYOUT_CONVERSION),
    }
)
_GENERAL: Final = frozenset({Rule.DISPATCH_BOUND, Rule.FUSIBLE_CHAIN, Rule.ONLY_TOGETHER, Rule.HOST_WORK})
_MUCH_OF_GENERAL: Final = 1 / 3  # of what a general rule likely saves: with less, the source is not what it is about


def is_promise(draft: Draft) -> bool:
    """Tell whether a finding promises something: that its lowest saving is above 0, or that nothing is saved."""
    return not draft.saving.high or draft.saving.low >= NOTHING_SURE * draft.saving.high


def ranked(drafts: Sequence[Draft]) -> list[Draft]:
    """Return drafts in their order: what is promised before what may be, the largest likely saving first.

    Of what is promised, what acts on the program's source stands before general changes that may explain the same time.
    """
    order = sorted(drafts, key=lambda draft: -draft.rank)
    promised, possible = ([draft for draft in order if is_promise(draft) is sure] for sure in (True, False))
    source = [draft for draft in promised if draft.rule in _OF_SOURCE]
    result: list[Draft] = []
    taken: set[int] = set()  # by identity: drafts hold arrays
    for draft in promised:
        before = source if draft.rule in _GENERAL else []
        due = [one for one in before if one.rank >= _MUCH_OF_GENERAL * draft.rank]
        for one in (*due, draft):
            if id(one) not in taken:
                taken.add(id(one))
                result.append(one)
    return [*result, *possible]


def _as_sure(context: Context, draft: Draft) -> Draft:
    """Return a finding with a saving no surer than the step allows.

    A graph is not sure to save anything where the device has hardly anything to wait for.
    """
    if draft.rule is Rule.DISPATCH_BOUND and context.busy_ns >= BUSY_SHARE * context.step_ns:
        # A profiler slows launches down: without it the host may be ahead of a device that is busy nearly all the time.
        saving = Range(0.0, draft.saving.high, draft.saving.likely)
        return replace(draft, saving=saving, derivation=f"{draft.derivation}; the device is busy {_MOSTLY}: low is 0")
    return draft


_MOSTLY: Final = f"{percent(BUSY_SHARE)} of the step and more"


# What these may save rests on no more than that the work is there.
_MERELY_POSSIBLE: Final = frozenset(
    {
        *(Rule.FAR_FROM_LIMIT, Rule.SMALL_GRID, Rule.DEVICE_COPIES, Rule.CONTIGUOUS_COPIES, Rule.FUSIBLE_CHAIN),
        *(Rule.DISPATCH_BOUND, Rule.DUPLICATE_WORK, Rule.EXCESS_TRAFFIC),
    }
)


def _instead(context: Context, drafts: Sequence[Draft]) -> list[Draft]:
    """Return what is said first where nothing is promised and no limit is known: what the device mostly does."""
    if not drafts:
        return list(dearest(context))
    is_busy = context.busy_ns >= BUSY_SHARE * context.step_ns
    return list(dearest(context))[:1] if is_busy and drafts[0].rule in _MERELY_POSSIBLE else []


def _replayed(context: Context) -> Replayed | None:
    return context.losses.part("the replay of a step", lambda: Replayed.of(context), lambda: None)


def _as_replayed(context: Context, replayed: Replayed | None, drafts: Sequence[Draft]) -> list[Draft]:
    """Return drafts with the savings that a replay tells; one whose replay fails keeps its own."""
    if replayed is None:
        return list(drafts)
    return [
        context.losses.part(f"the replay of {draft.rule}", partial(replayed.replayed, draft), partial(_same, draft))
        for draft in drafts
    ]


def _pairs(context: Context, replayed: Replayed, drafts: Sequence[Draft]) -> list[Draft]:
    return list(pairs(context, replayed, drafts))


def _far(context: Context, drafts: Sequence[Draft]) -> list[Draft]:
    return list(far_from_limit(context, drafts))


def _dominant(context: Context, drafts: Sequence[Draft]) -> list[Draft]:
    return list(dominant(context, drafts))


def _same(draft: Draft) -> Draft:
    return draft


def _together(replayed: Replayed, drafts: Sequence[Draft], advice: Advice, unprofiled_ns: float | None) -> Advice:
    """Return findings with what each adds to those before it, and what all of them save."""
    joint = all_of_them(replayed, drafts)
    if joint is None:
        return advice
    places, together = joint.places, joint.together
    adds = dict(zip(places, together.adds, strict=True))
    findings = tuple(replace(finding, adds_ns=adds.get(place)) for place, finding in enumerate(advice.findings))
    if len(places) < 2:
        return replace(advice, findings=findings)
    saving, first = SavingRange(round(together.saving.low), round(together.saving.high)), findings[places[0]]
    joined = Together(
        findings=tuple(findings[place].id for place in places),
        saving_ns=saving,
        saving=saving_text(saving, first.of_step_ns, first.of_step),
        likely_ns=together.saving.likely,
        of_step_ns=unprofiled_ns or replayed.base_ns,
        of_step=first.of_step,
    )
    return replace(advice, findings=findings, together=joined)


def _drafts(context: Context) -> list[list[Draft]]:
    """Return what each rule finds, in the order of the rules."""
    # Two at a time: more of them hold more memory, and wait for Python's lock and for what others are computing.
    result = (partial(_found, rule, context) for rule in RULES)
    return together(result, events=context.trace.source.event_count, most=2)


def _found(rule: AdviceRule, context: Context) -> list[Draft]:
    return context.losses.part(
        f"the rule {getattr(rule.find, '__name__', rule.find)}", lambda: list(rule(context)), list
    )


def _warm_up(context: Context) -> Draft:
    """Return the finding that a warm-up was recorded, whatever it took."""
    return Draft(
        rule=Rule.COLD_START,
        title=f"{format_share(context.evidence.warm_up, 1)} of the recording is in ranges that call themselves warm-up",
        where=Where(),
        saving=Range(0.0, 0.0),
        derivation="what a warm-up takes says nothing of later steps",
        evidence=(measured("the ranges' own names", source=Source.HOST),),
        todo="profile later steps",
        action="profile later steps",
        wrong_if="these steps are what counts",
    )


def near_limit(context: Context, *, possible: bool) -> Iterator[Draft]:
    """Yield the finding that nothing is cheap to gain, where the device is busy nearly all the time.

    Args:
        context: what rules look at.
        possible: whether the most that another finding may save is worth it after all.
    """
    if context.busy_ns < BUSY_SHARE * context.step_ns:
        return
    if (of_library := _of_libraries(context)) is not None:
        yield of_library
        return
    if not context.knows_shapes:
        return
    known = [row for row in context.rows if row.ideal_ns is not None]
    time = sum(row.device_ns for row in known)
    ideal = sum(map(least_ns, known))
    if ideal < _NEAR * time:
        return
    share = f"{format_share(min(ideal / time, 1.0), 1)} of the limit"
    sure = "certain" if possible else "cheap"
    # A copy at its limit may still be one that no one needs.
    moves = moving_share(context.rows) >= MOSTLY_MOVING
    how = " in how it is done" if moves else ""
    action = "to go further, change what is computed: a lower precision, fewer operations, or another device"
    if moves:
        action = "whether these data must be moved at all, no trace tells: find out who reads the copy"
    busy = format_share(min(context.busy_ns / context.step_ns, 1.0), 1)
    yield Draft(
        rule=Rule.NEAR_LIMIT,
        title=f"Nothing {sure} to gain{how}: the device is busy {busy} {context.words.of_the}, at {share}",
        where=Where(),
        saving=Range(0.0, 0.0),
        derivation=f"no rule finds more than {percent(_CHEAP)} {context.words.of_the}",
        evidence=(derived(f"work with a model runs at {share} of the device, by time", source=Source.LIMITS),),
        todo="find who reads the copies" if moves else "compute less, or less precisely",
        action=action,
        wrong_if="a cause that no rule knows",
    )


def _of_libraries(context: Context) -> Draft | None:
    """Return the finding that a library does most of the work, which no rule can promise to do sooner."""
    rows = [row for row in context.rows if row.category in OF_LIBRARIES]
    time, whole = (sum(row.device_ns for row in some) for some in (rows, context.rows))
    if not time or time < _OF_LIBRARY * whole:
        return None
    first = max(rows, key=lambda row: row.device_ns)
    share = share_of(time, whole)
    return Draft(
        rule=Rule.NEAR_LIMIT,
        title=f"Nothing to promise: {format_share(time, whole)} of the device's work is sorting, transforming or "
        f"factorising ({or_unknown(first.operator, 'by a library')})",
        where=context.where_of_row(first),
        saving=Range(0.0, 0.0),
        derivation="sorts, transforms and factorisations pass over their data several times, and no rule knows a "
        "quicker way",
        evidence=(
            measured(share, " of the device's work is sorting, transforming or factorising", source=Source.LIMITS),
        ),
        todo="compute less, or another way",
        action="sort, transform or factorise less, in a lower precision, or choose an algorithm that does without",
        wrong_if="only a part of the result is used",
    )


_OF_LIBRARY: Final = 0.5  # of the device's work


def as_findings(context: Named, drafts: Sequence[Draft], *, replayed: bool = False) -> tuple[Finding, ...]:
    """Return what rules found as findings, in its order."""
    first = first_screen_of(drafts)
    ids = _ids(drafts)
    return tuple(
        Finding(
            id=own,
            rule=str(draft.rule),
            title=draft.title,
            where=draft.where,
            # What is printed as "up to" promises nothing.
            saving_ns=(
                saving := SavingRange(round(draft.saving.low) if is_promise(draft) else 0, round(draft.saving.high))
            ),
            saving=saving_text(saving, *(step := _step_of(context, draft))),
            likely_ns=draft.saving.likely,
            is_first=place in first,
            of_step_ns=step[0],
            of_step=step[1],
            derivation=draft.derivation,
            evidence=draft.evidence,
            todo=draft.todo,
            action=draft.action,
            prove=proving_command(
                draft.rule,
                own,
                context.trace.source.path,
                context.recorded,
                replays=_replayable(draft, own, drafts, ids) if replayed else (),
            ),
            wrong_if=draft.wrong_if,
            overlaps=tuple(
                name for name, other in zip(ids, drafts, strict=True) if name != own and draft.claims & other.claims
            ),
        )
        for place, (own, draft) in enumerate(zip(ids, drafts, strict=True))
    )


def _replayable(draft: Draft, own: str, drafts: Sequence[Draft], ids: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the findings whose changes make up a draft's; empty where no replay can tell."""
    if draft.remedy is not None:
        return (own,)
    return tuple(name for name, other in zip(ids, drafts, strict=True) if any(other is part for part in draft.parts))


def _step_of(context: Named, draft: Draft) -> tuple[float, StepBasis]:
    """Return the step that a finding's saving is of, and which step that is."""
    if draft.of_estimate_ns is None:
        return context.step_ns, context.step_kind
    whole = context.step_kind is StepBasis.RECORDING
    return draft.of_estimate_ns, StepBasis.ESTIMATED_RECORDING if whole else StepBasis.ESTIMATED


def _ids(drafts: Sequence[Draft]) -> list[str]:
    """Return an id for each draft: its rule, with a number from the second draft of a rule on."""
    counts: dict[Rule, int] = {}
    ids = []
    for draft in drafts:
        number = counts[draft.rule] = counts.get(draft.rule, 0) + 1
        ids.append(str(draft.rule) if number == 1 else f"{draft.rule}-{number}")
    return ids


def first_screen_of(drafts: Sequence[Draft]) -> frozenset[int]:
    """Return which findings the first screen shows, as positions in ``drafts``.

    Findings that claim no time of an earlier one come first; duplicate work, which is merely possible, comes last.

    Args:
        drafts: in the order of the ranking.
    """
    apart: list[int] = []
    # Duplicate work goes last, so that it keeps no finding with evidence out of `apart`.
    order = sorted(range(len(drafts)), key=lambda place: drafts[place].rule is Rule.DUPLICATE_WORK)
    for place in order:
        if not any(drafts[place].claims & drafts[other].claims for other in apart):
            apart.append(place)
    preferred = sorted(order, key=lambda place: (drafts[place].rule is Rule.DUPLICATE_WORK, place not in apart))
    return frozenset(preferred[:FIRST])
