"""Formats figures of hardware counters, which come as percentages and not as shares."""


def percent(value: float | None) -> str:
    """Format a percentage; ``-`` for unknown."""
    return "-" if value is None else f"{value:.1f} %"
