"""The Python API of traces: ``opscope.analyze``, whose result shows itself in a notebook."""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import polars as pl

from opscope.analysis import analyzed
from opscope.analysis.measured import Measured
from opscope.base.summary import Bar, Summarised, Summary
from opscope.base.units import format_ns, format_share
from opscope.documents.findings import Finding, FirstScreen
from opscope.documents.limits import LimitRow
from opscope.knowledge.devices import Device
from opscope.knowledge.kernels.kinds import short_name
from opscope.knowledge.native_functions import NativeFunctions
from opscope.report.brief import first_screen
from opscope.report.page.html import Page
from opscope.report.step_parts import step_line
from opscope.runs.pipeline import PageParts
from opscope.trace.model import Trace

_SHOWN = 10  # rows of a summary
T = TypeVar("T", bound=msgspec.Struct)


def _frame(rows: Iterable[T], kind: type[T]) -> pl.DataFrame:
    """Return rows as a table; of the fields that have parts, their JSON text."""
    texts = [{name: _plain(getattr(row, name)) for name in kind.__struct_fields__} for row in rows]
    return pl.DataFrame(texts, schema=list(kind.__struct_fields__), infer_schema_length=None)


def _plain(value: object) -> object:
    return (
        value if value is None or isinstance(value, bool | int | float | str) else msgspec.json.encode(value).decode()
    )


class Findings(Summarised, tuple[Finding, ...]):
    """What could make a step faster, the largest likely saving first. A notebook shows it as a table."""

    __slots__ = ()

    def table(self) -> pl.DataFrame:
        """Return a row per finding: the fields of `Finding`, those with parts as JSON text."""
        return _frame(self, Finding)

    def summary(self) -> Summary:
        """Return each finding's title, what it could save, and the change to make."""
        rows = [(one.id, f"{one.saving or 'saves nothing by itself'}: {one.title}. {one.action}") for one in self]
        bars = tuple(Bar(one.id, one.likely_ns, format_ns(one.likely_ns)) for one in self if one.likely_ns > 0)
        return Summary(f"{len(self)} findings", tuple(rows), bars, "Likely saving a step; they may overlap")


class Limits(Summarised, tuple[LimitRow, ...]):
    """How far work is from what the device allows, the most time lost first. A notebook shows it as a table."""

    __slots__ = ()

    def table(self) -> pl.DataFrame:
        """Return a row per operator and inputs: the fields of `LimitRow`, those with parts as JSON text."""
        return _frame(self, LimitRow)

    def summary(self) -> Summary:
        """Return the work that loses most time, with its share of the limit."""
        known = [row for row in self if row.lost_ns is not None][:_SHOWN]
        names = [row.operator or short_name(row.kernel) for row in known]
        rows = [
            (name, f"{format_ns(row.call_ns)} a call, {format_share(row.share, 1)} of the limit ({row.limited_by})")
            for name, row in zip(names, known, strict=True)
        ]
        rows.append(("without a model", f"{sum(row.ideal_ns is None for row in self):,} of {len(self):,} rows"))
        bars = tuple(
            Bar(name, row.lost_ns or 0.0, format_ns(row.lost_ns)) for name, row in zip(names, known, strict=True)
        )
        return Summary("Limits", tuple(rows), bars, "Time lost: device time less the ideal time")


# What a prompt completes. The rest is there for opscope itself.
_MEMBERS = (
    *(
        "annotations",
        "backward",
        "bound",
        "callers",
        "captured",
        "categories",
        "devices",
        "findings",
        "gaps",
        "graph_nodes",
    ),
    *("iterations", "kernels", "kernels_of", "launches", "limits", "memory", "modules", "operators", "page", "phases"),
    *(
        "odd_steps",
        "shapes",
        "source",
        "step_count",
        "steps",
        "steps_from",
        "streams",
        "summary",
        "trace",
        "trust",
        "window",
    ),
)


def to_do(screen: FirstScreen) -> list[tuple[str, str]]:
    """Return what to do first as rows of a summary: in a few words, with what it saves and where it is."""
    return [
        (f"to do {number}", ", ".join(filter(None, (one.todo, one.saves and f"saves {one.saves}", one.place))))
        for number, one in enumerate(screen.findings, 1)
    ]


class Analysis(analyzed.Analysis, frozen=True, dict=True):  # noqa: D101 (its base has the words)
    __doc__ = analyzed.Analysis.__doc__

    @functools.cached_property
    def findings(self) -> Findings:
        """What could make a step faster, as far as the trace alone tells; the largest likely saving first."""
        return Findings(super().findings)

    @functools.cached_property
    def limits(self) -> Limits:
        """All device work with how long it would take at the device's limits; the most time lost first."""
        return Limits(super().limits)

    def summary(self) -> Summary:
        """Return the verdict, what a step takes, what to do first, the trust, and the work that costs most."""
        result, screen = super().summary(), first_screen(Measured(self))
        rest = [row for row in result.rows if row[0] != "bound"]
        rows = [("bound", screen.sentence), ("step", step_line(screen.step)), *to_do(screen)]
        return Summary(result.title, (*rows, *rest), result.bars, result.bars_title)

    def __dir__(self) -> list[str]:
        """Return what users need: the figures and tables, and not what opscope computes them with."""
        return [*_MEMBERS, *(name for name in super().__dir__() if name.startswith("_"))]

    def page(self) -> Page:
        """Return a page that opens offline, with timeline, flame view and roofline; a notebook shows it in a frame."""
        parts = PageParts(1)
        parts.add(Measured(self), self.functions)
        return Page(parts.page())


def analyze(
    trace: Trace | str | Path,
    functions: NativeFunctions | None = None,
    *,
    expect_device_work: bool | None = None,
    graph_capture: Trace | str | Path | None = None,
    gpu: Device | None = None,
    every_step: bool = False,
) -> Analysis:
    """Analyse one trace. Records with impossible durations are left out of every figure, and counted by a check.

    Args:
        trace: what `opscope.read` returned, or a file that it reads.
        functions: the operators of the PyTorch that ran; None for those of the release that opscope ships.
        expect_device_work: whether the workload ran on a GPU and its activities were collected; None if unknown.
        graph_capture: another trace, or its file, in which CUDA graphs were captured that this one replays.
        gpu: what the devices are, whatever the trace says; None to believe the trace.
        every_step: whether figures are of all steps; else those that are unlike the others, such as one that saves a
            checkpoint, are left out and stand in ``odd_steps``.

    Raises:
        BadInputError: a file cannot be read, or durations add up to more than 64 bits of nanoseconds hold.
        EnvironmentLacksError: as `opscope.read`, where a file was named.
    """
    result = analyzed.analyze(
        trace,
        functions,
        expect_device_work=expect_device_work,
        graph_capture=graph_capture,
        gpu=gpu,
        every_step=every_step,
    )
    return notebook_analysis(result)


def notebook_analysis(analysis: analyzed.Analysis) -> Analysis:
    """Return an analysis that shows itself in a notebook; what was computed of it is kept."""
    fields: dict[str, Any] = {name: getattr(analysis, name) for name in analysis.__struct_fields__}
    result = Analysis(**fields)
    result.__dict__.update({name: value for name, value in analysis.__dict__.items() if name not in _OWN})
    return result


_OWN = frozenset(("findings", "limits"))  # have a class of their own here
