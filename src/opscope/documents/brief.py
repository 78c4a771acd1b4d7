"""What one trace says in a few lines: the schema ``opscope.brief/1``; and one value of a document: ``opscope.shown/1``.

Every part of a brief has the address of what it rests on, which ``opscope show TRACE#ADDRESS`` prints.
"""

from typing import Any, Literal

from msgspec import Struct

from opscope.documents.findings import SavingRange, StepBasis


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
