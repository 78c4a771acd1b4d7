"""The Python API of differences: ``opscope.diff``."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.difference.compared import difference, worst_gate
from opscope.analysis.difference.unprofiled import devices_of
from opscope.analysis.measured import Measured
from opscope.api.profile import Run
from opscope.base.errors import BadInputError, InconclusiveError, UsageError
from opscope.base.summary import Bar, Summarised, Summary
from opscope.documents.difference import DiffBy, DiffDocument, Gate, PairDiff
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers.reading import read
from opscope.readers.unpacked import MAX_UNPACKED_BYTES
from opscope.render.markdown import render
from opscope.report.difference_sections import change, difference_section
from opscope.report.page.html import Page
from opscope.runs.inputs import TraceFile, measured_of, traces_below, unmeasured_of
from opscope.runs.pipeline import new_page
from opscope.trace.model import Trace

_BARS = 8


class Diff(Summarised, Struct, frozen=True):
    """What changed between two runs.

    Attributes:
        document: all changes, by the schema ``opscope.diff/1``.
    """

    document: DiffDocument

    @property
    def pairs(self) -> tuple[PairDiff, ...]:
        """The configurations that both runs have, compared."""
        return self.document.pairs

    def to_dict(self) -> dict[str, Any]:
        """Return the document as ``opscope diff --format json`` prints it."""
        results: dict[str, Any] = msgspec.to_builtins(self.document)
        return results

    def report(self) -> str:
        """Return all changes as Markdown."""
        return render(difference_section(self.document), level=2)

    def page(self, title: str | None = None) -> Page:
        """Return a page that opens offline; a notebook shows it in a frame.

        Args:
            title: None takes the names of both runs.
        """
        default = f"{self.document.before} and {self.document.after}"
        return Page(new_page(title or default, difference=self.document))

    def summary(self) -> Summary:
        """Summarise each pair (whether the step changed, what grew most), with a chart of the first pair's parts."""
        rows: list[tuple[str, str]] = []
        for pair in self.pairs:
            rows.append((pair.name, pair.unprofiled.sentence))
            rows += [("differs", f"{one.name}: {one.before or '-'}, then {one.after or '-'}") for one in pair.differing]
            if pair.culprit is not None:
                rows.append(("grew most", pair.culprit))
        step = self.pairs[0].step
        parts = [(row.operator or "work of no operator", row.change_ns) for row in step.work]
        parts += [(part.name, part.change_ns) for part in step.parts]
        parts.sort(key=lambda part: -abs(part[1]))
        bars = tuple(Bar(name, ns, change(ns)) for name, ns in parts[:_BARS])
        title = f"{self.pairs[0].name}: the largest parts of the change of {change(step.change_ns)}"
        return Summary(f"{self.document.before}, then {self.document.after}", tuple(rows), bars, title)


Side = Run | Analysis | Trace | str | Path


def diff(
    before: Side,
    after: Side,
    *,
    fail_over: float | None = None,
    any_device: bool = False,
    any_steps: bool = False,
    by: Literal["kernel", "module", "category"] | None = None,
) -> Diff:
    """Compare two runs: whether the step changed, and what the change is made of.

    Args:
        before: a run, an analysis, a trace, or the path of a trace, a converted trace or a run directory.
        after: the other side, in the same forms.
        fail_over: by how much longer a step may take, as a share (0.05 is 5 %); ``document.gate`` then has the result.
            None for no gate.
        any_device: whether to compare even if they ran on different devices.
        any_steps: whether to compare even if their steps are of different kinds.
        by: adds groups of work to each pair, by kernel, by module (needs recorded stacks) or by category.

    Raises:
        UsageError: they ran on different devices, or have no configuration in common.
        InconclusiveError: their steps are of different kinds.
        BadInputError, EnvironmentLacksError: as ``opscope.read``.
    """
    sides = dict(_traces(before)), dict(_traces(after))
    return compare_sides(
        _named(before),
        _named(after),
        *sides,
        fail_over=fail_over,
        any_device=any_device,
        any_steps=any_steps,
        by=None if by is None else DiffBy(by),
        without_result=(_without_result(before), _without_result(after)),
    )


def _without_result(side: Side) -> dict[str, str]:
    return unmeasured_of([Path(side)]) if isinstance(side, str | Path) else {}


def compare_sides(
    before: str,
    after: str,
    first: Mapping[str, Measured],
    second: Mapping[str, Measured],
    *,
    fail_over: float | None,
    any_device: bool,
    any_steps: bool = False,
    by: DiffBy | None = None,
    without_result: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
) -> Diff:
    """Compare traces of equal names; if each side has only one trace, compare these two whatever their names.

    Args:
        before: the name of the first side.
        after: the name of the second side.
        first: the traces of the first side by name.
        second: the traces of the second side by name.
        fail_over: as for `diff`.
        any_device: as for `diff`.
        any_steps: as for `diff`.
        by: as for `diff`.
        without_result: for each side, its configurations that have no result, with the reason.

    Raises:
        UsageError, InconclusiveError: as `diff`.
    """
    names = [(name, name) for name in first if name in second]
    # Not if a configuration has no result: the two that are left over need not belong together.
    if len(first) == len(second) == 1 and not any(without_result):
        names = [(next(iter(first)), next(iter(second)))]
    if not names:
        raise UsageError(f"the two have no configuration in common: {', '.join(first)}; {', '.join(second)}")
    if not any_device:
        for one, other in names:
            _check_devices(first[one], second[other])
    if not any_steps:
        for one, other in names:
            _check_steps(first[one], second[other])
    pairs = tuple(
        difference(one if one == other else f"{one}, {other}", first[one], second[other], fail_over, by)
        for one, other in names
    )
    paired = {one for one, _ in names}, {other for _, other in names}
    gates = [pair.gate for pair in pairs if pair.gate is not None]
    # What is new after is not a regression; what is missing after, or failed on either side, leaves the gate
    # incomplete.
    incomplete = {name: "it is missing after" for name in first if name not in paired[0]}
    incomplete |= {name: f"before, {reason}" for name, reason in without_result[0].items()}
    incomplete |= {name: f"after, {reason}" for name, reason in without_result[1].items()}
    if incomplete and fail_over is not None:
        gates.append(Gate.INCOMPLETE)
    return Diff(
        DiffDocument(
            before=before,
            after=after,
            pairs=pairs,
            only_before=tuple(name for name in first if name not in paired[0]),
            only_after=tuple(name for name in second if name not in paired[1]),
            fail_over=fail_over,
            gate=worst_gate(gates) if gates else None,
            incomplete=tuple(f"{name}: {reason}" for name, reason in incomplete.items()),
        )
    )


def _check_devices(before: Measured, after: Measured) -> None:
    one, other = devices_of(before), devices_of(after)
    if one and other and set(one) != set(other):
        raise UsageError(
            f"these ran on different devices: {', '.join(one) or 'none'}; {', '.join(other) or 'none'}. Times say "
            "nothing of the program then; any_device (--any-device) compares them all the same"
        )


def _check_steps(before: Measured, after: Measured) -> None:
    """Refuse to compare steps of different kinds, such as an evaluation with a training step."""
    records = [one.record for one in (before, after) if one.record is not None]
    kinds = [record.steps.kind for record in records if record.steps is not None]
    if len(set(kinds)) > 1:
        raise InconclusiveError(
            f"these are different steps: {kinds[0]} before, {kinds[1]} after. Which one took longer says nothing; "
            "--step-kind of opscope profile chooses, and any_steps (--any-steps) compares them all the same"
        )


def _traces(side: Side) -> Iterator[tuple[str, Measured]]:
    if isinstance(side, Run):
        yield side.record.configuration.id, side.measured
    elif isinstance(side, Analysis | Trace):
        analysis = side if isinstance(side, Analysis) else analyze(side)
        yield Path(analysis.source.path).name, Measured(analysis)
    else:
        yield from traces_by_name([Path(side)], MAX_UNPACKED_BYTES)


def traces_by_name(
    paths: list[Path], max_bytes: int, unreadable: Callable[[str, BadInputError], None] | None = None
) -> Iterator[tuple[str, Measured]]:
    """Yield every trace of some paths with a unique name: its configuration's, or its file's.

    Args:
        paths: traces, run directories, folders.
        max_bytes: refuse traces that unpack to more than this.
        unreadable: called with the name and error of files in a folder that are not traces; these are skipped.

    Raises:
        BadInputError: a file that was named by itself, or every file of a folder, cannot be read.
    """
    functions, taken = NativeFunctions.shipped(), set[str]()
    for file in traces_below(paths):
        try:
            trace = read(file.path, max_bytes=max_bytes)
        except BadInputError as error:
            if not file.guessed:
                raise
            if unreadable is not None:
                unreadable(str(file), error)
            continue
        name = next(name for name in _names_of(file) if name not in taken)
        taken.add(name)
        yield name, measured_of(file, trace, functions)[0]
    if not taken:
        raise BadInputError("no file of the folder is a trace")


def _names_of(file: TraceFile) -> Iterator[str]:
    """Yield possible names of a trace, the shortest first; longer ones add folders, which tell equal names apart."""
    folders, name = file.path.parent, file.path.name or file.path.resolve().name
    if file.capture is not None:
        cycle = f", cycle {file.capture.cycle + 1}" if file.capture.cycle else ""
        folders, name = file.capture.directory.path, f"{file.capture.record.configuration.id}{cycle}"
    yield name
    for folder in (folders, *folders.absolute().parents):
        if folder.name:
            name = f"{folder.name}/{name}"
            yield name
    yield from (f"{name} ({number})" for number in itertools.count(2))


def _named(side: Side) -> str:
    if isinstance(side, Run):
        return str(side.directory)
    return side.source.path if isinstance(side, Analysis | Trace) else str(side)
