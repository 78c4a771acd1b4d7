"""Formats figures that documents hold in units other than nanoseconds."""

from opscope.base.units import NS_PER_MS, format_ns


def ms(value: float | None) -> str:
    """Format a duration of ``value`` milliseconds in a suitable unit; ``-`` for unknown."""
    return "-" if value is None else format_ns(value * NS_PER_MS)


def percent(value: float | None) -> str:
    """Format a percentage; ``-`` for unknown."""
    return "-" if value is None else f"{value:.1f} %"
