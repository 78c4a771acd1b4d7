"""Rules with their statements: what they fire on, save and skip. The table of docs/findings.md is made of these."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from opscope.analysis.advice.context import Context, Draft
from opscope.analysis.verdict.step_evidence import STACKS
from opscope.base.text import or_unknown
from opscope.base.units import NS_PER_US, format_bytes, format_count, format_ns, format_share
from opscope.documents.findings import Fact, Figure, Rule, Source, Unit, Where
from opscope.documents.statements import Basis

# ---------------------------------------------------------------- evidence


_STACKS: Final = "record stacks to see the line (with_stack=True, opscope profile --with-stack)"


def seen(context: Context, where: Where) -> tuple[Fact, ...]:
    """State where the host was, or how to record that; empty where stacks were recorded or would not help."""
    places = [place for place in (where.python, where.module, where.annotation, where.operator) if place]
    if places:
        return (measured(f"the host was in {', '.join(map(or_unknown, places))}", source=Source.HOST),)
    if context.cost is STACKS or not context.runs_pytorch:
        return ()
    return (general(f"where was not recorded: {_STACKS}"),)


class Amount(str):
    """A figure as it stands in a sentence."""

    __slots__ = ("figure",)
    figure: Figure

    def __new__(cls, text: str, value: float, unit: Unit) -> "Amount":
        """Make an amount."""
        made = super().__new__(cls, text)
        made.figure = Figure(text, value, unit)
        return made


def nanoseconds(value: float | None) -> str:
    """Say a time; "-" if it is not known."""
    return format_ns(None) if value is None else Amount(format_ns(value), float(value), Unit.NANOSECONDS)


def of_bytes(value: float | None) -> str:
    """Say a size; "-" if it is not known."""
    return format_bytes(None) if value is None else Amount(format_bytes(value), float(value), Unit.BYTES)


def share_of(part: float | None, whole: float | None) -> str:
    """Say which share of the whole a part is; "-" if either is not known."""
    text = format_share(part, whole)
    return Amount(text, float(part / whole), Unit.SHARE) if part is not None and whole else text


def count_of(value: float | None, digits: int = 0) -> str:
    """Say a count, or how many there are in a step; "-" if it is not known.

    Args:
        value: the count.
        digits: behind the decimal point.
    """
    if value is None:
        return format_count(None)
    return Amount(f"{value:,.{digits}f}", float(value), Unit.COUNT)


def measured(*parts: str, source: Source) -> Fact:
    """State figures of the trace.

    Args:
        parts: the sentence; amounts in it become figures.
        source: where they come from.
    """
    return _fact(parts, Basis.MEASURED, source)


def derived(*parts: str, source: Source) -> Fact:
    """State what follows from figures of the trace, or from schema and shapes; arguments as for `measured`."""
    return _fact(parts, Basis.DERIVED, source)


def general(text: str) -> Fact:
    """State what is known in general and was not checked on this trace."""
    return Fact(text, Basis.GENERAL)


def _fact(parts: Sequence[str], basis: Basis, source: Source) -> Fact:
    figures = tuple(part.figure for part in parts if isinstance(part, Amount))
    return Fact("".join(parts), basis, figures, source)


# ---------------------------------------------------------------- rules


Find = Callable[[Context], Iterator[Draft]]


class RuleDescription(Struct, frozen=True):
    """A row of the table in docs/findings.md.

    Attributes:
        rule: the rule whose findings these are.
        fires_on: what must be seen.
        saves: the range of the saving, from low to high. Shares come from the constants that the rule computes with.
        silent_where: what keeps it silent although the rest holds; empty where nothing does.
        of_host: whether it rests on what the host did and when it launched; there is no finding where that is unknown.
    """

    rule: Rule
    fires_on: str
    saves: str
    silent_where: str = ""
    of_host: bool = False


class AdviceRule(Struct, frozen=True):
    """The function of a rule, and a statement for each kind of finding that it makes."""

    find: Find
    statements: tuple[RuleDescription, ...]

    def __call__(self, context: Context) -> Iterator[Draft]:
        """Find what the rule looks for."""
        return self.find(context)


def states(*statements: RuleDescription) -> Callable[[Find], AdviceRule]:
    """Decorate the function of a rule with its statements."""

    def joined(find: Find) -> AdviceRule:
        return AdviceRule(find, statements)

    return joined


def percent(share: float) -> str:
    """Return a share as the table and derivations print it."""
    return f"{100 * share:.0f} %"


def span(nanoseconds: float) -> str:
    """Return a rule's constant as text, in microseconds or milliseconds."""
    us = nanoseconds / NS_PER_US
    return f"{us:g} us" if us < 1_000 else f"{us / 1_000:g} ms"
