"""Raw files of a run directory -> statistics, reports and comparison. Needs no PyTorch; can be repeated at any time."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from opscope.analysis.analyzed import Analysis, analyze
from opscope.analysis.trust import Verdict
from opscope.errors import BadInputError, OpscopeError
from opscope.knowledge.kernels.index import SourceIndex
from opscope.knowledge.kernels.installed import build_ids, installed_torch, torch_index
from opscope.knowledge.kernels.source import SourceResolver
from opscope.knowledge.native_functions import NativeFunctions
from opscope.knowledge.releases import TorchVersion
from opscope.model import Trace
from opscope.readers import read
from opscope.record import CaptureRecord, Entry, Manifest, encode
from opscope.report.build import build_document
from opscope.report.comparison import Comparison, compare
from opscope.report.comparison_report import comparison_report
from opscope.report.document import ProfileDocument
from opscope.report.kernel_report import kernel_report
from opscope.report.markdown import render
from opscope.store import RunDirectory, report_name, statistics_name


def write_outputs(directory: RunDirectory, entry: Entry) -> Entry:
    """Write the statistics and the report of every cycle of a configuration; return its entry with the file names.

    Raises:
        BadInputError: a raw file is missing or damaged.
        EnvironmentLacksError: a file cannot be written.
    """
    record = directory.read_record(entry)
    documents = []
    for cycle in range(len(record.traces)):
        document = result_of(directory, record, cycle).document
        directory.write(statistics_name(record.configuration, cycle), encode(document))
        directory.write(report_name(record.configuration, cycle), render(kernel_report(document)).encode())
        documents.append(document)
    return replace(
        entry,
        statistics=statistics_name(record.configuration),
        report=report_name(record.configuration),
        trace=record.traces[0],
        trust=documents[0].trust.verdict,
        problem=_problem(documents[0]),
    )


def _problem(document: ProfileDocument) -> str | None:
    """Say why a result is worthless: a workload without recorded work is an error and not 0.000 ms."""
    failed = (c for c in document.trust.checks if c.name == "device_work_recorded" and c.verdict is Verdict.FAIL)
    return next((check.sentence for check in failed), None)


def write_comparison(directory: RunDirectory, manifest: Manifest) -> Comparison:
    """Write the comparison over all configurations: those that are done, and why the others are not."""
    comparison = compare(list(read_documents(directory, manifest)), manifest)
    directory.write("comparison.json", encode(comparison))
    directory.write("comparison.md", render(comparison_report(comparison)).encode())
    return comparison


def read_documents(directory: RunDirectory, manifest: Manifest) -> Iterator[ProfileDocument]:
    """Read the statistics of every configuration that is done.

    Raises:
        BadInputError: a file is missing or damaged.
    """
    for entry in manifest.entries:
        if entry.status != "done" or entry.statistics is None:
            continue
        path = directory.inside(entry.statistics)
        try:
            yield msgspec.json.decode(path.read_bytes(), type=ProfileDocument)
        except (OSError, msgspec.DecodeError) as error:
            raise BadInputError(
                f"cannot read {path}: {error}. 'opscope report {directory.path}' writes it anew."
            ) from error


@dataclass(frozen=True, slots=True)
class Result:
    """One trace of a capture, analysed."""

    trace: Trace
    analysis: Analysis
    document: ProfileDocument
    functions: NativeFunctions


def result_of(directory: RunDirectory, record: CaptureRecord, cycle: int = 0) -> Result:
    """Read and analyse the trace of one cycle (from 0) of a capture.

    Raises:
        BadInputError: a raw file is missing or damaged.
    """
    functions = _functions(directory, record)
    trace_name = record.traces[cycle]
    trace = read(directory.trace_path(trace_name))
    if trace.source.damage is not None:
        raise BadInputError(f"{trace.source.path}: {trace.source.damage}. Measure it again.")
    if cycle < len(record.replaced_bytes):
        replaced = trace.source.replaced_bytes + record.replaced_bytes[cycle]
        trace = replace(trace, source=replace(trace.source, replaced_bytes=replaced))
    analysis = analyze(trace, functions, expect_device_work=_expects_device_work(record))
    document = build_document(analysis, functions, record, trace_name, run_resolver(record))
    return Result(trace, analysis, document, functions)


def run_resolver(record: CaptureRecord) -> SourceResolver:
    """Return what finds the source of a capture's kernels: the very libraries that ran, where this machine has them."""
    environment = record.environment
    installed = _installed_indexes(tuple(sorted(environment.torch_libraries.items())))
    return SourceResolver(TorchVersion.parse(environment.torch), environment.torch_git, installed)


@functools.cache
def _installed_indexes(libraries: tuple[tuple[str, str], ...]) -> tuple[SourceIndex, ...]:
    """Index the installed PyTorch if its libraries have these build ids. Libraries that cannot be read tell nothing."""
    installed = installed_torch()
    if installed is None or not libraries or tuple(sorted(build_ids(installed.libraries).items())) != libraries:
        return ()
    try:
        return tuple(torch_index(installed))
    except OpscopeError:
        return ()


def _expects_device_work(record: CaptureRecord) -> bool | None:
    """Tell whether the trace must hold device activities; in a ``with`` block collection may have been stopped."""
    if record.options.schedule is None:
        return None
    return record.environment.device.startswith("cuda") and "cuda" in record.options.activities


def _functions(directory: RunDirectory, record: CaptureRecord) -> NativeFunctions:
    """Return the operators of the PyTorch that ran; where they were not kept, those of the release opscope ships."""
    path = None if record.functions is None else directory.inside(record.functions)
    return (
        NativeFunctions.read(path)
        if path is not None and path.is_file()
        else NativeFunctions.shipped(TorchVersion.parse(record.environment.torch))
    )
