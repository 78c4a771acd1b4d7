"""Renders the comparison of a sweep as a table and as a report; every figure is in `SweepComparison`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import fields

from opscope.base.units import format_bytes, format_count, format_ns, format_share
from opscope.documents.comparison import ComparisonRow, LawRow, ScalingRow, SweepComparison
from opscope.documents.verdict import Verdict
from opscope.record.configuration import SETTINGS, heading_of, is_count
from opscope.render.blocks import Block, Bullets, Inline, Name, Paragraph, Section, Table
from opscope.render.table_formats import Column, field_values, table_of
from opscope.report.brief import findings_section
from opscope.report.comparison import IN_PROCESS, ON_DEVICE, size_in_words
from opscope.report.step_parts import of_trust

_LAWS = (
    "n is the size; an operator's time is its self time. Each size between the smallest and the largest is left out "
    "in turn, the law fitted to the others, and its time predicted: the last column is the worst error of these, and "
    "of the fit at both ends. Where it exceeds 10 %, no law is given: of those that so many sizes can tell apart "
    "(constant, linear, quadratic, cubic and sums of them; from five sizes on, flat until a size; from six, stairs "
    "that rise at least twice, as with waves of blocks, and from eight sloping ones) none holds. The law is the "
    "simplest one that predicts about as well as the best. Beyond the measured sizes another regime may begin. A "
    "regime turns where another term becomes the largest."
)
_NESTED = ("categories_ns", "top_operators", "axes")
_MEMORY_KINDS = {
    ON_DEVICE: "most bytes that tensors took on the device",
    IN_PROCESS: "most memory resident in the process, libraries included",
}


class BoundChange(Struct, frozen=True):
    """A change of the step's bound between two neighbouring sizes of a sweep.

    Attributes:
        along: the axis.
        others: the values of all other axes, as text.
        smaller, larger: the sizes.
        before, after: what bounds the step at the smaller and at the larger size.
    """

    along: str
    others: str
    smaller: int
    larger: int
    before: str
    after: str


def comparison_table(comparison: SweepComparison) -> Table:
    """Build the table for people: a row per configuration, without columns that apply to none."""
    rows = comparison.rows
    on_device = comparison.measured_on == "device"
    counts_sequences = any(row.sequences_per_second is not None for row in rows)
    counts_tokens = any(row.tokens_per_second is not None for row in rows)
    columns: tuple[tuple[Column[ComparisonRow], bool], ...] = (
        (Column("Config", lambda row: row.id), True),
        (Column("Wall/step", lambda row: format_ns(row.wall_ns), numeric=True), True),
        (Column("Device sum", lambda row: format_ns(row.device_sum_ns), numeric=True), on_device),
        (Column("Busy share", lambda row: format_share(row.device_share, 1), numeric=True), on_device),
        (Column("CPU self", lambda row: format_ns(row.cpu_self_ns), numeric=True), True),
        (
            Column(
                f"{comparison.unit.capitalize()}/s",
                lambda row: format_count(row.sequences_per_second),
                numeric=True,
            ),
            counts_sequences,
        ),
        (Column("Tokens/s", lambda row: format_count(row.tokens_per_second), numeric=True), counts_tokens),
        (Column("Peak memory", lambda row: format_bytes(row.peak_memory_bytes), numeric=True), True),
        (Column("Bound", lambda row: row.bound), True),
        (Column("Trust", _trust), True),
    )
    return table_of([column for column, applies in columns if applies], rows)


def _trust(row: ComparisonRow) -> str:
    return of_trust(row.trust if row.trust is Verdict.PASS else row.trust.upper(), row.trust)


def comparison_values(comparisons: Mapping[str, SweepComparison]) -> Table:
    """Build the table for programs: all figures of every configuration in their exact units, empty if unknown.

    Args:
        comparisons: by the name of the sweep.
    """
    names = [field.name for field in fields(ComparisonRow) if field.name not in _NESTED]
    rows = ((sweep, *field_values(row, names)) for sweep, comparison in comparisons.items() for row in comparison.rows)
    return Table(("sweep", *names), tuple(rows))


def comparison_report(comparison: SweepComparison) -> Section:
    """Build the report that compares all configurations."""
    dtype = f", {comparison.dtype}" if comparison.dtype else ""
    return Section(
        (f"Comparison: {comparison.description}, {comparison.mode}{dtype}",),
        (Paragraph.of(*_where(comparison)), *_overview(comparison)),
        tuple(_sections(comparison)),
    )


def _overview(comparison: SweepComparison) -> tuple[Block, ...]:
    if not comparison.rows:
        return (Paragraph.of("No configuration has a result."),)
    return (comparison_table(comparison), Bullets(_legend(comparison)))


def _where(comparison: SweepComparison) -> Inline:
    machine, framework = comparison.machine, comparison.framework
    if machine is None or framework is None:
        return ("Measured with ", Name(" ".join(comparison.command)), ".")
    gpu = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
    device = f"{framework.device} ({gpu or machine.cpu})"
    return (
        f"Measured on {device}, PyTorch {framework.torch}, with ",
        Name(" ".join(comparison.command)),
        ".",
    )


def _legend(comparison: SweepComparison) -> tuple[Inline, ...]:
    lines = ["Wall/step: mean of consecutive steps without the profiler. Throughput follows from it."]
    if comparison.measured_on == "device":
        lines.append(
            "Device sum: durations of all kernels, copies and fills per step. Busy share: busy time over wall, or over "
            "the profiled step where wall was not measured."
        )
    lines.append("CPU self: self CPU time of all operators per profiled step (recorded threads, profiling included).")
    kinds = dict.fromkeys(row.peak_memory_kind for row in comparison.rows)
    lines.append(f"Peak memory: {', '.join(_MEMORY_KINDS.get(kind, kind) for kind in kinds)}; profiling excluded.")
    contended = [row.id for row in comparison.rows if row.contended]
    if contended:
        lines.append(f"Measured on a busy machine, and left out of the scaling: {', '.join(contended)}.")
    return tuple((line,) for line in (*lines, *comparison.notes))


def sections_on_page(comparison: SweepComparison) -> Iterator[Section]:
    """Yield what the page shows in words beside its pictures and its table of configurations."""
    if comparison.rows:
        if len(comparison.rows) > 1:
            yield Section(("What bounds each configuration, and where that changes",), tuple(_bounds(comparison.rows)))
        yield Section(("How to read the figures",), (Bullets(_legend(comparison)),))
    else:
        yield Section(("No configuration has a result.",))
    yield from _grown(comparison)


def _bounds(rows: Sequence[ComparisonRow]) -> Iterator[Block]:
    """Yield what bounds each configuration as a grid, where two axes have several sizes, and where that turns."""
    varying = [axis for axis in _axes(rows) if len({row.axes.get(axis) for row in rows}) > 1]
    sizes = [axis for axis in varying if all(is_count(row.axes.get(axis)) for row in rows)]
    if len(sizes) == 2:
        yield _bound_grid(rows, sizes[0], sizes[1], [axis for axis in varying if axis not in sizes])
    found = tuple(map(_turn, turns(rows)))
    yield Bullets(found) if found else Paragraph.of("The bound does not change between neighbouring sizes.")


def _bound_grid(rows: Sequence[ComparisonRow], down: str, across: str, others: Sequence[str]) -> Table:
    sizes = {axis: sorted({row.axes[axis] for row in rows}) for axis in (down, across)}
    cells: dict[tuple[object, object], list[str]] = {}
    for row in rows:
        share = "" if row.device_share is None else f" {100 * row.device_share:.0f} %"
        named = "".join(f"{row.axes.get(axis, '-')}: " for axis in others)
        cells.setdefault((row.axes[down], row.axes[across]), []).append(f"{named}{_bound_name(row.bound)}{share}")
    lines = ((f"{one}", *(", ".join(cells.get((one, other), ["-"])) for other in sizes[across])) for one in sizes[down])
    return Table((f"{axis_name(down)} \\ {axis_name(across)}", *map(str, sizes[across])), tuple(lines))


def _turn(turn: BoundChange) -> Inline:
    others = f" ({turn.others})" if turn.others else ""
    between = f"Between {axis_name(turn.along)} {turn.smaller} and {turn.larger}{others}"
    return (f"{between} the bound changes from {_bound_name(turn.before)} to {_bound_name(turn.after)}.",)


def turns(rows: Sequence[ComparisonRow]) -> Iterator[BoundChange]:
    """Yield neighbouring sizes between which the step's bound changes, along each axis with all others fixed."""
    for along in _axes(rows):
        groups: dict[str, dict[int, ComparisonRow]] = {}
        for row in rows:
            size = row.axes.get(along)
            if is_count(size):  # only whole numbers have neighbours
                others = ", ".join(f"{axis_name(name)} {value}" for name, value in row.axes.items() if name != along)
                groups.setdefault(others, {})[size] = row
        for others, own in groups.items():
            for smaller, larger in pairwise(sorted(own)):
                before, after = own[smaller].bound, own[larger].bound
                if before != after:
                    yield BoundChange(along, others, smaller, larger, before, after)


def axis_name(name: str) -> str:
    """Return what a sweep's axis is called within a sentence."""
    return heading_of(name).lower() if name in SETTINGS else name.replace("_", " ")


def _bound_name(bound: str) -> str:
    return bound.replace("_", " ")


def _axes(rows: Sequence[ComparisonRow]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in rows for name in row.axes))


def _sections(comparison: SweepComparison) -> Iterator[Section]:
    if comparison.rows:
        yield Section(("Time by category and step",), (_category_table(comparison),))
        yield Section(("The three most expensive operators",), (_top_table(comparison),))
    if comparison.findings:
        yield findings_section(comparison.findings)
    yield from _grown(comparison)


def _grown(comparison: SweepComparison) -> Iterator[Section]:
    if comparison.scaling:
        text = (
            "Exponent of the growth from one size to the next: 0 means no growth, 1 in proportion, 2 with the square."
        )
        yield Section(("Scaling",), (Paragraph.of(text), _scaling_table(comparison)))
    if comparison.laws:
        yield Section(("Laws of growth",), (Paragraph.of(_LAWS), _law_table(comparison)))
    if comparison.rows and comparison.measured_on == "device":
        yield Section(("Launch-bound configurations",), (Paragraph.of(_launch_bound(comparison)),))
    if comparison.failed or comparison.pending:
        rows = tuple((row.id, row.kind, row.message) for row in comparison.failed)
        rows += tuple((name, "not run", "the sweep ended before it; --resume runs it") for name in comparison.pending)
        yield Section(("Without a result",), (Table(("Config", "Reason", "What happened"), rows),))


def _category_table(comparison: SweepComparison) -> Table:
    categories = list(dict.fromkeys(name for row in comparison.rows for name in row.categories_ns))
    kind = "self device time" if comparison.measured_on == "device" else "self CPU time"
    columns: tuple[Column[ComparisonRow], ...] = (
        Column("Config", lambda row: row.id),
        *(_category_column(name) for name in categories),
        Column(f"Sum ({kind})", lambda row: format_ns(sum(row.categories_ns.values())), numeric=True),
    )
    return table_of(columns, comparison.rows)


def _category_column(name: str) -> Column[ComparisonRow]:
    return Column(name, lambda row: format_ns(row.categories_ns.get(name)), numeric=True)


def _top_table(comparison: SweepComparison) -> Table:
    rows = tuple((row.id, *(Name(name) for name in (*row.top_operators, "", "", "")[:3])) for row in comparison.rows)
    return Table(("Config", "First", "Second", "Third"), rows)


def _scaling_table(comparison: SweepComparison) -> Table:
    columns: tuple[Column[ScalingRow], ...] = (
        Column("Quantity", lambda row: row.quantity),
        Column("Along", lambda row: axis_name(row.along)),
        Column("At", _fixed),
        Column("From", lambda row: str(row.smaller), numeric=True),
        Column("To", lambda row: str(row.larger), numeric=True),
        Column("Ratio", lambda row: f"{row.ratio:.2f}", numeric=True),
        Column("95 % interval", _interval, numeric=True),
        Column("Exponent", lambda row: f"{row.exponent:.2f}", numeric=True),
    )
    return table_of(columns, comparison.scaling)


def _law_table(comparison: SweepComparison) -> Table:
    columns: tuple[Column[LawRow], ...] = (
        Column("Time per step", lambda row: Name(row.quantity) if row.is_operator else row.quantity),
        Column("Along", lambda row: axis_name(row.along)),
        Column("At", _fixed),
        Column("Law", lambda row: row.formula or f"none of these ({len(row.sizes)} sizes)"),
        Column("Turns at", lambda row: ", ".join(map(size_in_words, row.turns)) or "-", numeric=True),
        Column("Off by up to", lambda row: f"{format_share(row.off, 1)} (at {row.off_at})", numeric=True),
    )
    return table_of(columns, comparison.laws)


def _fixed(row: ScalingRow | LawRow) -> str:
    return ", ".join(f"{axis_name(name)} {value}" for name, value in row.others.items()) or "-"


def _interval(row: ScalingRow) -> str:
    return "-" if row.ratio_low is None else f"{row.ratio_low:.2f} to {row.ratio_high:.2f}"


def _launch_bound(comparison: SweepComparison) -> str:
    bound = [row.id for row in comparison.rows if row.launch_bound]
    unknown = [row.id for row in comparison.rows if row.launch_bound is None]
    text = f"The host's launching limits: {', '.join(bound)}." if bound else "No configuration is limited by launching."
    return f"{text} Unknown for: {', '.join(unknown)}." if unknown else text
