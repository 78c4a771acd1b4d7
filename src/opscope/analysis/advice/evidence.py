"""Evidence of findings: sentences for people, and the figures in them for programs."""

from collections.abc import Sequence

from opscope.base.units import format_bytes, format_count, format_ns, format_share
from opscope.documents.findings import Fact, Figure, Source, Unit
from opscope.documents.statements import Basis


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
