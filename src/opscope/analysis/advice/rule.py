"""Rules with their statements: what they fire on, save and skip. The table of docs/findings.md is made of these."""

from collections.abc import Callable, Iterator

from msgspec import Struct

from opscope.analysis.advice.context import Context, Draft
from opscope.base.units import NS_PER_US
from opscope.documents.findings import Rule

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
