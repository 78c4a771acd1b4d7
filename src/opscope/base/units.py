"""Formats numbers, moments and recorded shapes for people, and reads times that they write.

Only renderers format: every stored figure keeps its exact unit in its name.
"""

import json
from datetime import UTC, datetime

from opscope.base.text import lazy_pattern

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_TIME = lazy_pattern(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?(ns|us|ms|s)")
_TIME_STEPS = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "us"))
_SIZE_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
# So many tensors of a list are written out, as `torch.cat` of query, key and value has them. An optimizer's lists hold
# hundreds, which would make every other row of a table as wide.
_WRITTEN_OUT = 3


def tensor_shapes(dims: str | None) -> str:
    """Format the shapes of a call's tensors; of a long list of tensors, only the first ones and their number.

    Args:
        dims: the shapes as a trace has them, JSON text (``[[8,768],[],[[768],[768]]]``); None if not recorded.

    Returns:
        ``[8,768], [[768],[768]]``; empty if no input is a tensor.
    """
    shapes = json.loads(dims) if dims else []
    return ", ".join(_text(shape) for shape in shapes if shape)


def input_shapes(dims: str | None) -> str:
    """Format shapes as `tensor_shapes` does; ``not recorded`` or ``scalars`` where it would return nothing."""
    if dims is None:
        return "not recorded"
    return tensor_shapes(dims) or "scalars"


def _text(shape: object) -> str:
    # A scalar has the shape [], such as each step counter in the lists of a fused optimizer.
    if isinstance(shape, list) and len(shape) > _WRITTEN_OUT and isinstance(shape[0], list):
        first = ",".join(_text(one) for one in shape[:_WRITTEN_OUT])
        return f"[{first}, ... {len(shape):,} tensors]"
    return str(shape).replace(" ", "")


def format_ns(value: float | None) -> str:
    """Format a duration of ``value`` nanoseconds with three to four significant digits; ``-`` for unknown."""
    if value is None:
        return "-"
    for size, unit in _TIME_STEPS:
        if abs(value) >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{value:.0f} ns"


def parse_ns(text: str) -> int | None:
    """Return the nanoseconds of a time with its unit (``1.5s``, ``20 ms``); None if it is not such a time."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    return round(float(match[1]) * next((size for size, unit in _TIME_STEPS if unit == match[2]), 1))


def format_bytes(value: float | None) -> str:
    """Format a size in bytes with binary units; ``-`` for unknown."""
    if value is None:
        return "-"
    for size, unit in _SIZE_STEPS:
        if abs(value) >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{value:.0f} B"


def signed_bytes(change: int) -> str:
    """Format a change of a size, with its sign."""
    return f"{'+' if change > 0 else '-' if change < 0 else ''}{format_bytes(abs(change))}"


def format_share(part: float | None, whole: float | None) -> str:
    """Format ``part / whole`` as a percentage; ``-`` where either is unknown or the whole is zero."""
    if part is None or not whole:
        return "-"
    return f"{100 * part / whole:.1f} %"


def format_rate(value: float | None) -> str:
    """Format a rate of ``value`` bytes per second in GB/s; ``-`` for unknown."""
    return "-" if value is None else f"{value / 1e9:.4g} GB/s"


def format_count(value: float | None) -> str:
    """Format a count or a rate with thousands separators; ``-`` for unknown."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.4g}"


def format_times(number: float) -> str:
    """Format how often something happens in a step on average: a whole number, or a small one with a decimal."""
    whole = round(number)
    return f"{whole:,}" if number >= 10 or abs(number - whole) < 0.05 else f"{number:.1f}"


def _digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def utc_timestamp(moment: datetime | None = None) -> str:
    """Return a moment (now if None) as ISO 8601 in UTC, with milliseconds.

    Runs are ordered by this text, and two runs can begin within one second: hence the milliseconds.
    """
    return (moment or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds")


def percentage(value: float | None) -> str:
    """Format a percentage; ``-`` for unknown."""
    return "-" if value is None else f"{value:.1f} %"
