"""The one way from raw files through `Measured` to documents and reports, for every command. Needs no PyTorch.

Everything here can be repeated at any time from the files of a run directory.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opscope._version import __version__
from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.measured import LightPass, Measured, MemoryFiles, light_pass
from opscope.analysis.memory.difference import difference_of
from opscope.analysis.structure.origin import producer_of
from opscope.base.errors import BadInputError, OpscopeError
from opscope.base.parts import Losses, raises
from opscope.base.processes import together
from opscope.base.units import utc_timestamp
from opscope.documents.advise import AdviseDocument
from opscope.documents.bench import BenchDocument
from opscope.documents.comparison import SweepComparison
from opscope.documents.difference import DiffDocument
from opscope.documents.memory import MemoryDocument, MemoryPicture
from opscope.documents.page import PageDocument, PageTrace, SectionEntry
from opscope.documents.ranks import RanksDocument
from opscope.documents.stats import CountersDocument
from opscope.documents.trace import TraceDocument
from opscope.documents.verdict import CheckName, IdleCause
from opscope.knowledge.kernels.index import SourceIndex
from opscope.knowledge.kernels.installed import build_ids, installed_torch, torch_index
from opscope.knowledge.kernels.kernel_source import SourceResolver
from opscope.knowledge.native_functions import NativeFunctions, TorchVersion
from opscope.lookup.explain import Lookup
from opscope.readers.reading import read
from opscope.record.capture import CaptureRecord
from opscope.record.codec import UNREADABLE, encode
from opscope.record.sweep import CycleFiles, Entry, Manifest
from opscope.render.blocks import Paragraph, Section
from opscope.render.markdown import render
from opscope.report.advise_document import advise_section
from opscope.report.bench_document import bench_section_of_page
from opscope.report.comparison import comparison_of
from opscope.report.comparison_report import comparison_report
from opscope.report.difference_sections import pair_sections
from opscope.report.guide_keys import statistics_json
from opscope.report.kernel_report import kernel_report
from opscope.report.memory_document import memory_difference_section, memory_section
from opscope.report.page.html import page_html, section_entry
from opscope.report.page.roofs import counted_roofline
from opscope.report.page.traces import MOST_ROWS, MOST_SLICES, page_trace, pictures_of, sweep_entry
from opscope.report.ranks_document import ranks_section
from opscope.report.step_parts import or_reason
from opscope.report.trace_document import build_trace_document
from opscope.runs.store import COMPARISON, COMPARISON_REPORT, PAGE, RunDirectory
from opscope.trace.model import Trace


class Result(Struct, frozen=True):
    """One trace of a capture, joined with its record, and its document.

    Attributes:
        measured: the trace.
        document: its document.
        cuda_file: returns the file that an operator has on a CUDA device, by its name alone, for runs on a CPU.
    """

    measured: Measured
    document: TraceDocument
    cuda_file: Callable[[str], str | None]

    @property
    def analysis(self) -> Analysis:
        """The trace's analysis."""
        return self.measured.analysis


class Reported(Struct, frozen=True):
    """A configuration whose statistics and reports were written: its updated entry, and the results of its cycles."""

    entry: Entry
    results: tuple[Result, ...]


def write_outputs(directory: RunDirectory, entry: Entry, *, allow_damaged: bool = False) -> Reported:
    """Write the statistics and the report of every cycle of a configuration.

    Args:
        directory: the run directory.
        entry: the configuration, with its raw files.
        allow_damaged: whether traces that are cut off are accepted.

    Raises:
        BadInputError: a raw file is missing or unreadable, or a trace is cut off and that is not allowed.
        EnvironmentLacksError: a file cannot be written.
    """
    record = directory.read_record(entry)
    entry = replace(entry, files=replace(entry.files, cycles=_cycles(entry, record)))
    results = []
    for number, cycle in enumerate(entry.files.cycles):
        result = result_of(directory, record, number, allow_damaged=allow_damaged)
        directory.write(cycle.statistics, statistics_json(result.document, result.cuda_file))
        losses = result.analysis.losses
        directory.write(cycle.report, render(kernel_report(result.document, losses)).encode())
        _log(directory, entry, losses)
        results.append(result)
    first = results[0].document
    return Reported(replace(entry, trust=first.trust.verdict, problem=_problem(first)), tuple(results))


def _log(directory: RunDirectory, entry: Entry, losses: Losses) -> None:
    """Add the tracebacks of the parts that failed to the configuration's log."""
    if losses.found:
        text = "".join(f"\nopscope: left out of the report: {loss.part}\n{loss.traceback}" for loss in losses.found)
        log = directory.inside(entry.files.log)
        before = log.read_bytes() if log.is_file() else b""
        directory.write(entry.files.log, before + text.encode())


def _cycles(entry: Entry, record: CaptureRecord) -> tuple[CycleFiles, ...]:
    """Return the files of every recorded cycle; manifests of version 1 named only those of the first."""
    cycles = entry.files.cycles
    further = (f"_cycle{number + 1}" for number in range(len(cycles), len(record.traces)))
    named = (
        *cycles,
        *(
            replace(cycles[0], statistics=_with(cycles[0].statistics, s), report=_with(cycles[0].report, s))
            for s in further
        ),
    )
    return tuple(replace(cycle, trace=trace.file) for cycle, trace in zip(named, record.traces, strict=False))


def _with(name: str, suffix: str) -> str:
    stem, dot, ending = name.rpartition(".")
    return f"{stem}{suffix}{dot}{ending}"


def _problem(document: TraceDocument) -> str | None:
    """Return why a result is worthless, or None: a workload without recorded device work is an error, not 0.000 ms."""
    failed = document.trust.failed(CheckName.DEVICE_WORK_RECORDED)
    return failed.sentence if failed else None


def write_comparison(directory: RunDirectory, manifest: Manifest) -> SweepComparison:
    """Write the comparison of all configurations: the results of those that are done, and why others have none.

    Raises:
        BadInputError: the statistics of a configuration are missing or damaged.
        EnvironmentLacksError: a file cannot be written.
    """
    comparison = comparison_of(list(read_documents(directory, manifest)), manifest)
    directory.write(COMPARISON, encode(comparison))
    directory.write(COMPARISON_REPORT, render(comparison_report(comparison)).encode())
    return comparison


def read_documents(directory: RunDirectory, manifest: Manifest) -> Iterator[TraceDocument]:
    """Yield the statistics of the first cycle of every configuration that is done.

    Raises:
        BadInputError: a file is missing or damaged.
    """
    for entry in manifest.entries:
        if entry.status != "done":
            continue
        path = directory.inside(entry.files.cycles[0].statistics)
        try:
            yield msgspec.json.decode(path.read_bytes(), type=TraceDocument)
        except (OSError, *UNREADABLE) as error:
            raise BadInputError(
                f"cannot read {path}: {error}. 'opscope export --reports {directory.path}' writes it anew."
            ) from error


# ---------------------------------------------------------------- the page

_SLICES_OF_SWEEP: Final = 60_000  # of the timelines of all configurations together
_LEAST_SLICES: Final = 3_000
_MOST_RESULTS: Final = 1_000  # of a benchmark: more cannot be drawn usefully


class PageParts:
    """Builds a page trace by trace, so that no trace has to stay in memory.

    Args:
        count: the number of traces to come; their timelines share a page's limit on slices.
        steps: the first and last step of the timelines; None for as many as fit.
    """

    def __init__(self, count: int, steps: tuple[int, int] | None = None) -> None:
        self._most = MOST_SLICES if count == 1 else max(_LEAST_SLICES, _SLICES_OF_SWEEP // max(count, 1))
        self._steps = steps
        self._traces: list[PageTrace] = []
        self._runs: dict[Path, list[TraceDocument]] = {}
        self._names: dict[Path, str] = {}
        self._snapshots: list[tuple[MemoryDocument, tuple[MemoryPicture, ...]]] = []

    def add(
        self,
        measured: Measured,
        functions: NativeFunctions,
        name: str | None = None,
        directory: RunDirectory | None = None,
        cycle: int = 0,
    ) -> None:
        """Add an analysed trace.

        Args:
            measured: the trace, with its record if it has one.
            functions: the operator table of the PyTorch that ran.
            name: the trace's file name relative to its run directory; None for a trace that stands alone.
            directory: its run directory; None for a trace that stands alone.
            cycle: the number of the cycle (from 0) of its configuration.

        Raises:
            UsageError: the trace does not mark the steps of the timelines.
        """
        # Computed before the threads begin, because both need it, or because it takes threads itself.
        _ = measured.analysis.origins, measured.bound
        pictures, result = together(
            (
                lambda: pictures_of(measured.analysis, most_slices=self._most, steps=self._steps),
                lambda: with_document(measured, functions, name, most_rows=MOST_ROWS),
            ),
            events=measured.analysis.source.event_count,
        )
        document: TraceDocument = result.document
        called, sweep = document.name, None
        if directory is not None:
            sweep = self._called(directory.path)
            called = f"{called}, cycle {cycle + 1}" if cycle else called
            documents = self._runs.setdefault(directory.path, [])
            if cycle == 0:
                documents.append(document)
        self._traces.append(page_trace(measured, document, pictures, name=called, sweep=sweep))
        if cycle == 0 and (memory := measured.memory) is not None and memory.cases:
            drawn = measured.analysis.losses.part(
                "the picture of memory", lambda: memory.pictures, tuple[MemoryPicture]
            )
            self._snapshots.append((memory.document, drawn))

    def _called(self, path: Path) -> str:
        """Return the name of a run: its folder's name, or the whole path if another run has that name."""
        name = path.resolve().name
        taken = name in (other for run, other in self._names.items() if run != path)
        return self._names.setdefault(path, str(path.resolve()) if taken else name)

    def page(
        self,
        title: str | None = None,
        benchmarks: Sequence[BenchDocument] = (),
        advice: Sequence[AdviseDocument] = (),
        jobs: Sequence[RanksDocument] = (),
        counters: CountersDocument | None = None,
        snapshots: Sequence[tuple[MemoryDocument, tuple[MemoryPicture, ...]]] = (),
    ) -> PageDocument:
        """Return the page of all added traces, with the comparisons of their runs.

        Args:
            title: None makes one from the runs, traces and benchmarks.
            benchmarks: to show on the page.
            advice: what was tried on steps.
            jobs: what was said of the ranks of jobs.
            counters: what Nsight Compute counted; None without.
            snapshots: what memory snapshots say, and their pictures.

        Raises:
            BadInputError: the manifest of a run cannot be read.
        """
        drawn = (*self._snapshots, *snapshots)
        sweeps = tuple(
            sweep_entry(self._called(path), comparison_of(documents, RunDirectory(path).read_manifest()))
            for path, documents in self._runs.items()
        )
        names = [sweep.comparison.description for sweep in sweeps] or [trace.name for trace in self._traces]
        others = [
            *(f"benchmark of {one.created}" for one in benchmarks),
            *(f"advice on {one.target}" for one in advice),
            *(f"job of {one.world or len(one.ranks)} ranks" for one in jobs),
            *(f"counters of {Path(file).name}" for file in (counters.files if counters else ())),
            *(f"memory of {Path(document.snapshot).name}" for document, _ in snapshots),
        ]
        default = ", ".join([*names, *others])
        shown = [_first_results(one) for one in benchmarks]
        more = [len(one.results) - len(first.results) for one, first in zip(benchmarks, shown, strict=True)]
        return new_page(
            title or default,
            self._traces,
            sweeps=sweeps,
            benchmarks=tuple(shown),
            advice=tuple(advice),
            jobs=tuple(jobs),
            # The page shows kernels; each launch has hundreds of metrics.
            counters=None if counters is None else replace(counters, launches=()),
            counted=None if counters is None else counted_roofline(counters),
            benchmark_sections=tuple(map(section_entry, map(bench_section_of_page, shown, more))),
            snapshots=tuple(pictures for _, pictures in drawn),
            snapshot_sections=tuple(map(section_entry, _of_snapshots([document for document, _ in drawn]))),
        )


def _of_snapshots(documents: Sequence[MemoryDocument]) -> Iterator[Section]:
    """Yield what snapshots say, and what changed where there are two."""
    for document in documents:
        yield memory_section(document, _MOST_ALIVE)
    if len(documents) == 2:
        yield memory_difference_section(difference_of(*documents), _MOST_ALIVE)


_MOST_ALIVE: Final = 40  # rows


def _first_results(document: BenchDocument) -> BenchDocument:
    """Return a benchmark with only its first results and their comparisons."""
    results = document.results[:_MOST_RESULTS]
    shown = {(one.case, one.name, tuple(one.parameters.items())) for one in results}
    comparisons = (c for c in document.comparisons if (c.case, c.variant, tuple(c.parameters.items())) in shown)
    return replace(document, results=results, comparisons=tuple(comparisons))


def new_page(title: str, traces: Sequence[PageTrace] = (), **parts: Any) -> PageDocument:
    """Return the document of a page, with the current time; ``parts`` are further fields of `PageDocument`."""
    created, difference = utc_timestamp(), parts.get("difference")

    def written(name: str, make: Callable[[], Section]) -> SectionEntry:
        (section,) = or_reason(Losses(), name, lambda: (make(),), lambda why: Section((name,), (Paragraph.of(why),)))
        return section_entry(section)

    def written_pairs(difference: DiffDocument) -> Iterator[SectionEntry]:
        reason = lambda why: Section(("What changed",), (Paragraph.of(why),))  # noqa: E731
        sections = or_reason(Losses(), "the difference", lambda: pair_sections(difference), reason)
        yield from map(section_entry, sections)
        yield from (SectionEntry((), (), ()) for _ in range(1 + len(difference.pairs) - len(sections)))

    return PageDocument(
        title=title,
        opscope=__version__,
        created=created,
        traces=tuple(traces),
        cause_colors={str(cause): cause.color for cause in IdleCause},
        advice_sections=tuple(
            written("advice", functools.partial(advise_section, one, with_table=False))
            for one in parts.get("advice", ())
        ),
        job_sections=tuple(
            written("the job", functools.partial(ranks_section, one, on_page=True)) for one in parts.get("jobs", ())
        ),
        pair_sections=() if difference is None else tuple(written_pairs(difference)),
        **parts,
    )


def write_page(
    directory: RunDirectory, manifest: Manifest, *, allow_damaged: bool = False, parts: PageParts | None = None
) -> str | None:
    """Write the page of a run into its directory, if any configuration is done.

    A failure costs only the page: it is returned and not raised, unless `opscope.base.parts.raises`.

    Args:
        directory: the run directory.
        manifest: its manifest.
        allow_damaged: whether traces that are cut off are accepted.
        parts: the traces, if they were added already; None reads them.

    Returns:
        Why there is no page; None if there is one, or nothing to show.
    """
    try:
        _write_page(directory, manifest, parts, allow_damaged=allow_damaged)
    except OpscopeError as error:
        return str(error)
    except Exception as error:
        if raises():
            raise
        return f"{type(error).__name__}: {error}"
    return None


def _write_page(directory: RunDirectory, manifest: Manifest, parts: PageParts | None, *, allow_damaged: bool) -> None:
    directory.remove_page()
    done = [entry for entry in manifest.entries if entry.status == "done"]
    if parts is None:
        parts = PageParts(len(done))
        for entry in done:
            record = directory.read_record(entry)
            measured, functions = measured_cycle(directory, record, 0, allow_damaged=allow_damaged)
            parts.add(measured, functions, record.traces[0].file, directory)
    if done:
        directory.write(PAGE, page_html(parts.page()))


# ---------------------------------------------------------------- one trace


def with_document(
    measured: Measured, functions: NativeFunctions, name: str | None = None, *, most_rows: int = sys.maxsize
) -> Result:
    """Build the document of an analysed trace, with the details of its operators and kernels.

    Args:
        measured: the trace, with its record if it has one.
        functions: the operator table of the PyTorch that ran.
        name: the trace's file name relative to its run directory; None for a trace that stands alone.
        most_rows: the most operators, and the most kernels; the most expensive ones are kept.
    """
    if measured.record is not None:
        resolver = run_resolver(measured.record)
    else:
        producer = producer_of(measured.analysis.source)
        version = TorchVersion.parse(producer.torch) if producer.torch else None
        resolver = SourceResolver(version, producer.git)
    lookup = Lookup(resolver, functions, measured=measured)
    document = build_trace_document(measured, functions, lookup=lookup, trace=name, most_rows=most_rows)
    # Not the table of the PyTorch that ran: that may know no CUDA.
    return Result(measured, document, Lookup(resolver, NativeFunctions.shipped()).cuda_file)


def result_of(directory: RunDirectory, record: CaptureRecord, cycle: int, *, allow_damaged: bool) -> Result:
    """Read and analyse the trace of one cycle (from 0) of a capture, and build its document.

    Raises:
        BadInputError: a raw file is missing or unreadable, or the trace is cut off and that is not allowed.
    """
    measured, functions = measured_cycle(directory, record, cycle, allow_damaged=allow_damaged)
    return with_document(measured, functions, record.traces[cycle].file)


def measured_cycle(
    directory: RunDirectory, record: CaptureRecord, cycle: int, *, allow_damaged: bool
) -> tuple[Measured, NativeFunctions]:
    """Read and analyse the trace of one cycle (from 0) of a capture; return it with its operator table.

    Raises:
        BadInputError: as `result_of`.
    """
    trace = read(directory.trace_path(record.traces[cycle].file))
    if trace.source.damage is not None and not allow_damaged:
        raise BadInputError(f"{trace.source.path}: {trace.source.damage}. Measure it again.")
    functions = functions_of(directory, record)
    return measured_capture(trace, record, cycle, functions, directory=directory), functions


def measured_capture(
    trace: Trace,
    record: CaptureRecord,
    cycle: int,
    functions: NativeFunctions,
    graph_capture: Trace | None = None,
    *,
    directory: RunDirectory,
) -> Measured:
    """Analyse the trace of one cycle of a capture, and join it with its record and its light pass.

    Args:
        trace: the trace.
        record: the capture's record.
        cycle: the cycle's number, from 0.
        functions: the operator table of the PyTorch that ran.
        graph_capture: another trace, in which the CUDA graphs were captured; None without.
        directory: the run directory.
    """
    # Bytes that were replaced when the trace was written no longer show in the file.
    replaced = trace.source.replaced_bytes + record.traces[cycle].replaced_bytes
    trace = replace(trace, source=replace(trace.source, replaced_bytes=replaced))
    analysis = analyze(
        trace,
        functions,
        expect_device_work=_expects_device_work(record),
        graph_capture=graph_capture,
        as_marked=True,  # what was timed beside it is of all steps
    )
    light = _light(record, analysis, directory)
    return Measured(analysis, record, light=light, kept=_memory_files(record, directory))


def _memory_files(record: CaptureRecord, directory: RunDirectory) -> MemoryFiles | None:
    """Return the memory snapshot of a capture, and the trace of its steps where that is another than the capture's."""
    recording = record.memory_recording
    if recording is None or recording.snapshot is None:
        return None
    own = any(recording.trace == trace.file for trace in record.traces)
    try:
        trace = None if own or recording.trace is None else directory.trace_path(recording.trace)
        return MemoryFiles(directory.inside(recording.snapshot), trace)
    except BadInputError as error:
        return MemoryFiles(None, None, str(error))


def _light(record: CaptureRecord, analysis: Analysis, directory: RunDirectory) -> LightPass | None:
    if record.light is None or not analysis.step_count or not analysis.has_device_times:
        return None
    try:
        return light_pass(read(directory.trace_path(record.light.file)), analysis)
    except BadInputError as error:
        return LightPass(None, f"The light pass cannot be read: {error}.")


def _expects_device_work(record: CaptureRecord) -> bool | None:
    """Tell whether the trace must hold device activities; None for a ``with`` block, which may stop collecting them."""
    if record.options.schedule is None:
        return None
    return record.ran_on_gpu and "cuda" in record.options.activities


def functions_of(directory: RunDirectory, record: CaptureRecord) -> NativeFunctions:
    """Return the operator table of the PyTorch that ran; if the run did not keep it, the one that opscope ships.

    Raises:
        BadInputError: the run's table cannot be read.
    """
    path = None if record.functions is None else directory.inside(record.functions)
    if path is not None and path.is_file():
        return NativeFunctions.read(path)
    return NativeFunctions.shipped(TorchVersion.parse(record.framework.torch) if record.framework else None)


def run_resolver(record: CaptureRecord) -> SourceResolver:
    """Return a resolver for a capture's kernels, which reads the libraries that ran if they are installed here."""
    framework = record.framework
    if framework is None:
        return SourceResolver()
    installed = _installed_indexes(tuple(sorted(framework.torch_libraries.items())))
    return SourceResolver(TorchVersion.parse(framework.torch), framework.torch_git, installed)


@functools.cache
def _installed_indexes(libraries: tuple[tuple[str, str], ...]) -> tuple[SourceIndex, ...]:
    """Return the indexes of the installed PyTorch if its libraries have these build ids, else none."""
    installed = installed_torch()
    if installed is None or not libraries or tuple(sorted(build_ids(installed.libraries).items())) != libraries:
        return ()
    try:
        return tuple(torch_index(installed))
    except OpscopeError:
        return ()
