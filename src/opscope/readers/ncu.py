"""Reads Nsight Compute's CSV (``ncu --csv``) of either page: a row per metric (details), or per kernel (raw)."""

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opscope.base.text import lazy_pattern
from opscope.record.counters import KernelCounters

_BEGIN: Final = lazy_pattern(r'^"ID","Process ID",', re.MULTILINE)
_DETAILS: Final = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
# Columns that are not metrics, in one version or another.
_IDENTITY: Final = frozenset(
    {
        *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream"),
        *("Block Size", "Grid Size", "Device", "CC"),
    }
)
_PREFIXES: Final = (("", 1), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
# ncu's units, with the factor to the unit that is kept: nanoseconds, bytes, or something per second.
_FACTORS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("nsecond", "ns"), 1),
    **dict.fromkeys(("usecond", "us"), 1e3),
    **dict.fromkeys(("msecond", "ms"), 1e6),
    **dict.fromkeys(("second", "s"), 1e9),
    **{f"{prefix}{what}": factor for prefix, factor in _PREFIXES for what in ("byte", "inst")},
    **{f"{prefix}byte/{second}": factor for prefix, factor in _PREFIXES for second in ("second", "s")},
    **{f"{prefix}{hertz}": factor for prefix, factor in _PREFIXES for hertz in ("hz", "Hz")},
    **dict.fromkeys(("cycle/second", "cycle/s"), 1),
    **dict.fromkeys(("cycle/msecond", "cycle/ms"), 1e3),
    **dict.fromkeys(("cycle/usecond", "cycle/us"), 1e6),
    **dict.fromkeys(("cycle/nsecond", "cycle/ns"), 1e9),
}
_NUMBER: Final = lazy_pattern(r"-?(\d{1,3}(,\d{3})+|\d{1,300})(\.\d+)?([eE][+-]?\d{1,2})?")
_CAPABILITY: Final = lazy_pattern(r"\d{1,2}\.\d")
_DIMENSIONS: Final = lazy_pattern(r"\(?\s*(\d+),\s*(\d+),\s*(\d+)\s*\)?")


def is_counters(beginning: str) -> bool:
    """Tell from its beginning whether a text holds such a table; the program's own output may precede it."""
    return _BEGIN.search(beginning) is not None


def read_kernel_counters(text: str) -> tuple[KernelCounters, ...]:
    """Read all kernels in launch order; none if the text holds no table."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    begin = next((at for at, row in enumerate(rows) if row[:1] == ["ID"] and "Kernel Name" in row), None)
    if begin is None:
        return ()
    names = rows[begin]
    of_page = _details if all(name in names for name in _DETAILS) else _raw
    # The output of several runs may be concatenated; each repeats the line of headings.
    begins = [at for at, row in enumerate(rows) if row == names]
    parts = (rows[at + 1 : end] for at, end in zip(begins, [*begins[1:], len(rows)], strict=True))
    return tuple(one for part in parts for one in of_page(names, part) if one.kernel)


def _raw(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[KernelCounters]:
    """Read the raw page: a line of units, then a line per kernel."""
    if not rows:
        return
    units, kernels = rows[0], rows[1:]
    metrics = [at for at, name in enumerate(names) if name not in _IDENTITY]
    for row in kernels:
        cells = dict(zip(names, row, strict=False))
        values = {
            names[at]: number
            for at in metrics
            if at < len(row) and (number := number_of(row[at], units[at] if at < len(units) else "")) is not None
        }
        yield _kernel(cells, values)


def _details(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[KernelCounters]:
    """Read the details page: a line per metric, and lines of rules, which have no metric."""
    cells: Mapping[str, str] | None = None
    values: dict[str, float] = {}
    for row in rows:
        current = dict(zip(names, row, strict=False))
        if cells is not None and _launch(current) != _launch(cells):
            yield _kernel(cells, values)
            values = {}
        cells = current
        name, unit = current.get("Metric Name", ""), current.get("Metric Unit", "")
        number = number_of(current.get("Metric Value", ""), unit)
        if name and number is not None:
            # "Memory Throughput" is a percentage in one section, and a rate in another.
            values.setdefault(f"{name} per second" if "byte/" in unit and "__" not in name else name, number)
    if cells is not None:
        yield _kernel(cells, values)


def _launch(cells: Mapping[str, str]) -> tuple[str, str]:
    return cells.get("ID", ""), cells.get("Process ID", "")


def _kernel(cells: Mapping[str, str], values: Mapping[str, float]) -> KernelCounters:
    return KernelCounters(
        kernel=cells.get("Kernel Name", ""),
        process=cells.get("Process ID", ""),
        grid=_dimensions(cells.get("Grid Size", "")),
        block=_dimensions(cells.get("Block Size", "")),
        metrics=dict(values),
        device=cells.get("device__attribute_display_name") or None,
        compute_capability=_capability(cells, values),
    )


def _capability(cells: Mapping[str, str], values: Mapping[str, float]) -> str | None:
    """Return the compute capability, ``9.0``; None if neither the table's column nor its metrics have it."""
    if _CAPABILITY.fullmatch(cells.get("CC", "")):
        return cells["CC"]
    major, minor = (values.get(f"device__attribute_compute_capability_{part}") for part in ("major", "minor"))
    return None if major is None or minor is None else f"{major:.0f}.{minor:.0f}"


def number_of(cell: str, unit: str) -> float | None:
    """Return a cell as a number, or None if it is not a number (``n/a``).

    Times are in nanoseconds, sizes in bytes, and what is per second stays per second, without a prefix.

    Commas must separate thousands. Cells such as ``1,5``, as some locales write decimals, are None.

    Args:
        cell: the number, as ncu writes it.
        unit: ncu's unit; numbers in unknown units are returned as they are.
    """
    if not _NUMBER.fullmatch(cell.strip()):
        return None
    number = float(cell.replace(",", "")) * _FACTORS.get(unit, 1)
    return number if math.isfinite(number) else None


def _dimensions(cell: str) -> str | None:
    match = _DIMENSIONS.fullmatch(cell.strip())
    return ",".join(match.groups()) if match else None
