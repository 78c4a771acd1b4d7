"""Plots benchmarks: durations over a parameter, or bars. Needs matplotlib (the extra ``plot``)."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.units import NS_PER_US
from opscope.documents.bench import BenchDocument, BenchResult, Duration, Measure, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMATS: Final = (".png", ".svg", ".pdf")
_WIDTH, _HEIGHT = 8.0, 4.5  # inches


def check_format(target: Path) -> None:
    """Check that a file name shows a supported format.

    Raises:
        UsageError: it does not end in ``.png``, ``.svg`` or ``.pdf``.
    """
    if target.suffix.lower() not in _FORMATS:
        raise UsageError(f"a plot is written as {', '.join(_FORMATS)}, not as {target.name}")


def drawn(document: BenchDocument, suffix: str) -> bytes:
    """Draw one plot per case, below each other; return the content of the file.

    Args:
        document: the benchmark.
        suffix: ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        EnvironmentLacksError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentLacksError("plots need matplotlib, which is missing: pip install 'opscope[plot]'") from error
    cases = list(dict.fromkeys(result.case for result in document.results))
    figure = Figure(figsize=(_WIDTH, _HEIGHT * max(len(cases), 1)), layout="constrained")
    for number, case in enumerate(cases, start=1):
        axes = figure.add_subplot(len(cases), 1, number)
        _draw(axes, case, [result for result in document.results if result.case == case])
    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=suffix.lower().removeprefix("."))
    return content.getvalue()


_WHAT: Final = {Measure.KERNEL: "kernels, L2 flushed", Measure.EVENT: "between events, L2 flushed"}


def _draw(axes: "Axes", case: str, results: Sequence[BenchResult]) -> None:
    measure = headline(results)
    axes.set_title(f"{case}: {_WHAT.get(measure, 'wall')}, medians with 95 % intervals")
    parameter = _parameter(results)
    if parameter is None:
        _bars(axes, results, measure)
    else:
        _lines(axes, results, measure, parameter)


def _parameter(results: Sequence[BenchResult]) -> str | None:
    """Return the numeric parameter with the most values; None if no numeric parameter has more than one."""
    names = dict.fromkeys(name for result in results for name in result.parameters)
    values = {name: {r.parameters[name] for r in results if name in r.parameters} for name in names}
    numeric = {name: len(result) for name, result in values.items() if len(result) > 1 and all(map(_is_number, result))}
    return max(numeric, key=lambda name: numeric[name]) if numeric else None


def _is_number(text: str) -> bool:
    # Documents hold parameters as text, whatever their type was.
    return text.replace(".", "", 1).isdecimal()


def _bars(axes: "Axes", results: Sequence[BenchResult], measure: Measure) -> None:
    timed = [(result, outcome) for result in results if (outcome := result.duration(measure)) is not None]
    labels = [_label(result, results) for result, _ in timed]
    middles = [result.median / NS_PER_US for _, result in timed]
    errors = [[_below(result) for _, result in timed], [_above(result) for _, result in timed]]
    axes.barh(labels, middles, xerr=errors, color="#4c78a8", ecolor="black", capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel("us")


def _lines(axes: "Axes", results: Sequence[BenchResult], measure: Measure, parameter: str) -> None:
    for name, points in _series(results, measure, parameter):
        x = [float(result.parameters[parameter]) for result, _ in points]
        y = [result.median / NS_PER_US for _, result in points]
        errors = [[_below(result) for _, result in points], [_above(result) for _, result in points]]
        axes.errorbar(x, y, yerr=errors, marker="o", markersize=4, capsize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(parameter)
    axes.set_ylabel("us")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()


def _series(
    results: Sequence[BenchResult], measure: Measure, parameter: str
) -> Iterator[tuple[str, list[tuple[BenchResult, Duration]]]]:
    lines: dict[str, list[tuple[BenchResult, Duration]]] = {}
    for result in results:
        if (outcome := result.duration(measure)) is not None:
            lines.setdefault(_label(result, results, without=parameter), []).append((result, outcome))
    for name, points in lines.items():
        yield name, sorted(points, key=lambda point: float(point[0].parameters[parameter]))


def _label(result: BenchResult, results: Sequence[BenchResult], without: str | None = None) -> str:
    """Return the variant's name with the parameters that differ between results, except ``without``."""
    differs = [
        f"{name}={value}"
        for name, value in result.parameters.items()
        if name != without and any(other.parameters.get(name) != value for other in results)
    ]
    return ", ".join([result.name, *differs])


def _below(result: Duration) -> float:
    return 0.0 if result.ci_low is None else (result.median - result.ci_low) / NS_PER_US


def _above(result: Duration) -> float:
    return 0.0 if result.ci_high is None else (result.ci_high - result.median) / NS_PER_US
