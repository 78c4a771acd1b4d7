"""Figures of a `ProfileDocument` as text. Documents count in milliseconds and microseconds, people in what fits."""

from opscope.units import NS_PER_MS, NS_PER_US, format_ns


def ms(value: float | None) -> str:
    """Format milliseconds in the unit that fits; ``-`` for unknown."""
    return "-" if value is None else format_ns(value * NS_PER_MS)


def us(value: float | None) -> str:
    """Format microseconds in the unit that fits; ``-`` for unknown."""
    return "-" if value is None else format_ns(value * NS_PER_US)


def percent(value: float | None) -> str:
    """Format a percentage; ``-`` for unknown."""
    return "-" if value is None else f"{value:.1f} %"
