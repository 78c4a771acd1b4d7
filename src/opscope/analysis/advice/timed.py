"""Rules on what was timed with the unprofiled steps: what comes between them, long ones, and collections of garbage.

A few recorded steps rarely hold any of that, wherever they run.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from opscope.analysis.advice.context import CLAIM_BETWEEN, LEAST_SHARE, Context, Draft, Range, StepWords, idle_claim
from opscope.analysis.advice.rule import RuleDescription, measured, nanoseconds, percent, share_of, states
from opscope.analysis.trust.step_time import EVALUATION
from opscope.analysis.verdict.step_evidence import StepEvidence
from opscope.base.units import format_ns
from opscope.documents.findings import Fact, Rule, Source, Where
from opscope.documents.verdict import BoundKind

_HALF: Final = 0.5  # of what comes between steps goes where it is done half as often
BETWEEN_STEPS: Final = RuleDescription(
    Rule.BETWEEN_STEPS,
    f"evaluations, or anything else between the steps, take {percent(LEAST_SHARE)} of the time, as measured without "
    "the profiler, and came twice while steps were timed",
    f"{percent(_HALF)} (done half as often) to all of that time",
)
LONG_STEPS: Final = RuleDescription(
    Rule.LONG_STEPS,
    "a few steps take more than twice as long as the median one, as measured without the profiler, which no wait for "
    f"data and no collection of garbage explains, and cost {percent(LEAST_SHARE)} of the time",
    "0 to all that they take longer",
)
GARBAGE_COLLECTION: Final = RuleDescription(
    Rule.GARBAGE_COLLECTION,
    f"Python collects garbage for {percent(LEAST_SHARE)} of a step, as measured without the profiler",
    "0 to all of that time",
)


@states(BETWEEN_STEPS)
def between_steps(context: Context) -> Iterator[Draft]:
    """Find what takes time between the steps."""
    if context.unprofiled_ns is not None:
        yield from what_comes_between(context.evidence, context.step_ns, context.words)


@states(LONG_STEPS)
def long_steps(context: Context) -> Iterator[Draft]:
    """Find a few steps that take much longer than the others."""
    if context.unprofiled_ns is not None:
        yield from what_takes_long(context.evidence, context.step_ns, context.words)


@states(GARBAGE_COLLECTION)
def garbage_collection(context: Context) -> Iterator[Draft]:
    """Find collections of garbage."""
    # While the device works, collecting costs nothing: no more can be saved than the device idles.
    if context.unprofiled_ns is not None:
        for draft in what_is_collected(context.evidence, context.step_ns, context.words):
            how = f"{draft.derivation}; no more than the device idles"
            saving, claims = draft.saving.within(context.least_idle_ns), draft.claims | idle_claim(BoundKind.HOST_WORK)
            yield replace(draft, saving=saving, derivation=how, claims=claims)


def what_comes_between(evidence: StepEvidence, step_ns: float, words: StepWords) -> Iterator[Draft]:
    """Yield the finding on what comes between the steps.

    Args:
        evidence: what was timed.
        step_ns: the step that savings refer to.
        words: the words for it.
    """
    time = evidence.between_ns
    if time < LEAST_SHARE * step_ns:
        return
    only = evidence.between == EVALUATION
    yield Draft(
        rule=Rule.BETWEEN_STEPS,
        title=f"{evidence.between.capitalize()} between the steps takes {format_ns(time)} {words.of}",
        where=Where(),
        saving=Range(_HALF * time, time, _HALF * time),
        derivation="all of that time (high); half, where it comes half as often (low)",
        evidence=(_timed(time, " between steps, spread over all of them, ", step_ns, words),),
        todo="evaluate less often" if only else "do less between the steps",
        action="evaluate less often, on fewer batches, or in larger ones without gradients (torch.inference_mode())"
        if only
        else "evaluate, and write checkpoints, images and logs less often, or from another thread or process",
        wrong_if="it has to come as often as it does",
        claims=frozenset({CLAIM_BETWEEN}),
    )


def what_takes_long(evidence: StepEvidence, step_ns: float, words: StepWords) -> Iterator[Draft]:
    """Yield the finding on a few steps that take much longer than the others.

    Args:
        evidence: what was timed.
        step_ns: the step that savings refer to.
        words: the words for it.
    """
    if evidence.long is None or evidence.long.beyond_ns < LEAST_SHARE * step_ns:
        return
    time = evidence.long.beyond_ns
    yield Draft(
        rule=Rule.LONG_STEPS,
        title=evidence.long.sentence,
        where=Where(),
        saving=Range(0.0, time),
        derivation="none to all that they take longer than the median step: the cause is not known",
        evidence=(_timed(time, " longer than the median step, spread over all of them, ", step_ns, words),),
        todo="see what these steps do",
        action="look at what the script does in these steps, such as writing a checkpoint: do that less often, or on "
        "another thread or process",
        wrong_if="other programs kept the machine busy meanwhile",
        claims=frozenset({"long steps"}),
    )


def what_is_collected(evidence: StepEvidence, step_ns: float, words: StepWords) -> Iterator[Draft]:
    """Yield the finding on collections of garbage.

    Args:
        evidence: what was timed.
        step_ns: the step that savings refer to.
        words: the words for it.
    """
    time = evidence.collecting_ns
    if time < LEAST_SHARE * step_ns:
        return
    yield Draft(
        rule=Rule.GARBAGE_COLLECTION,
        title=f"Python collects garbage for {format_ns(time)} {words.of}",
        where=Where(),
        saving=Range(0.0, time),
        derivation="none to all of that time: what is freed by collecting has to be freed in another way then",
        evidence=(_timed(time, ", ", step_ns, words),),
        todo="gc.freeze() once all is set up",
        action="gc.freeze() once all is set up, and no gc.collect() in the loop",
        wrong_if="objects that refer to each other hold much memory: then it grows without collections",
        claims=frozenset({"garbage"}),
    )


def _timed(time: float, which: str, step_ns: float, words: StepWords) -> Fact:
    return measured(nanoseconds(time), which, share_of(time, step_ns), f" {words.of_the}", source=Source.UNPROFILED)
