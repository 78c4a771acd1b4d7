"""What ``explain`` looks names up in: a trace, a run, or PyTorch as it is installed or shipped."""

from pathlib import Path

from msgspec import Struct

from opscope.analysis.analyzed import analyze
from opscope.analysis.measured import Measured
from opscope.analysis.structure.producer import Producer, producer_of
from opscope.base.errors import BadInputError, OpscopeError, UsageError
from opscope.base.files import path_text
from opscope.base.text import printable
from opscope.cli.say import say
from opscope.knowledge.kernels.index import SourceIndex
from opscope.knowledge.kernels.installed import (
    InstalledTorch,
    build_ids,
    installed_torch,
    library_index,
    torch_in,
    torch_in_wheel,
    torch_index,
)
from opscope.knowledge.kernels.kernel_source import SourceResolver
from opscope.knowledge.kernels.shipped import (
    by_nearness,
    parse_version,
    same_build,
    same_release,
    shipped_index,
    shipped_names,
)
from opscope.knowledge.native_functions import NativeFunctions
from opscope.knowledge.releases import TorchVersion
from opscope.lookup.explain import Lookup
from opscope.readers.reading import read
from opscope.record.capture import CaptureRecord
from opscope.record.counters import Precision
from opscope.runs.pipeline import functions_of, measured_capture, run_resolver
from opscope.runs.store import RunDirectory


class LookupOptions(Struct, frozen=True):
    """What the user asked for.

    Attributes:
        input_path: a trace, a converted trace or a run directory; None to look names up without one.
        configuration: the id of one of a run directory; None for its first.
        torch: a version of PyTorch to look up in; None for the one of the input, or the installed one.
        libraries: further libraries with CUDA kernels.
        max_bytes: limit on what a trace may unpack to.
    """

    input_path: Path | None
    configuration: str | None
    torch: str | None
    libraries: tuple[Path, ...]
    max_bytes: int


def build_lookup(options: LookupOptions) -> Lookup:
    """Read the input and choose the indexes.

    Raises:
        UsageError: no index of the version is shipped, or the run has no such configuration.
        BadInputError: an input or a library cannot be read.
        EnvironmentLacksError: C++ names in a library cannot be read on this system.
    """
    # What the user named is asked before what is installed.
    named = [_named(path) for path in options.libraries]
    torch = next((result for result, _ in named if result is not None), None)
    lookup = _of_input(options) if options.input_path else _without_input(options, torch)
    lookup.resolver.installed = (*(index for _, result in named for index in result), *lookup.resolver.installed)
    return lookup


def _named(path: Path) -> tuple[InstalledTorch | None, list[SourceIndex]]:
    """Index what the user named: a library, or the PyTorch of a folder or a wheel, of this or another platform."""
    if path.is_dir():
        result = torch_in(path)
        if result is None:
            raise BadInputError(f"{path} holds no PyTorch: torch/version.py is not there, or does not say its version")
        return result, torch_index(result)
    if path.suffix == ".whl":
        with torch_in_wheel(path) as result:  # its libraries are there only as long as this block
            return result, torch_index(result)
    return None, [_library(path)]


def _library(path: Path) -> SourceIndex:
    """Index a library that the user named; its build id tells whether it is PyTorch's own, and which."""
    name = same_build(build_ids([path]).values())
    return library_index(path, torch=name or "", git=shipped_index(name).git if name else None)


def _without_input(options: LookupOptions, named: InstalledTorch | None) -> Lookup:
    installed = installed_torch()
    if options.torch is None and named is not None:
        version = TorchVersion.parse(named.version)
        resolver = SourceResolver(version, named.git)
    elif options.torch is None and installed is not None:
        version = TorchVersion.parse(installed.version)
        resolver = SourceResolver(version, installed.git, _installed_indexes(installed))
    else:
        version = None if options.torch is None else _asked(options.torch)
        resolver = SourceResolver(version)
    return Lookup(resolver, NativeFunctions.shipped(version), _host_index(version))


def _installed_indexes(installed: InstalledTorch) -> list[SourceIndex]:
    """Index the installed libraries. Where they tell nothing, say so; the shipped indexes answer then."""
    try:
        indexes = torch_index(installed)
        reason = None if indexes else f"the installed PyTorch {installed.version} has no CUDA kernels"
    except OpscopeError as error:
        indexes, reason = [], str(error)
    if reason:
        say(f"opscope: {printable(reason)}: answers come from the shipped indexes")
    return indexes


def _of_input(options: LookupOptions) -> Lookup:
    path = options.input_path
    assert path is not None
    directory = RunDirectory(path)
    if directory.manifest.is_file():
        return _of_run(directory, options)
    if options.configuration is not None:
        raise UsageError(f"--configuration belongs to a run directory; {path} is none")
    trace = read(path, max_bytes=options.max_bytes)
    producer = producer_of(trace.source)
    version = _version(options, producer)
    functions = NativeFunctions.shipped(version)
    measured = Measured(analyze(trace, functions))
    resolver = SourceResolver(version, producer.git, doubt=_doubt(options, producer))
    return Lookup(resolver, functions, _host_index(version), trace.source.path, measured)


def _of_run(directory: RunDirectory, options: LookupOptions) -> Lookup:
    record = _record(directory, options.configuration)
    functions = functions_of(directory, record)
    path = directory.trace_path(record.traces[0].file)
    measured = measured_capture(read(path, max_bytes=options.max_bytes), record, 0, functions, directory=directory)
    framework = record.framework
    producer = Producer(framework.torch, framework.torch_git) if framework else Producer(None, None)
    version = _version(options, producer)
    resolver = run_resolver(record)
    if options.torch is not None:
        resolver = SourceResolver(version, doubt=_doubt(options, producer))
        functions = NativeFunctions.shipped(version)
    precision = Precision(framework.float32_matmul_precision, framework.cudnn_allow_tf32) if framework else None
    return Lookup(resolver, functions, _host_index(version), path_text(path), measured, precision)


def _record(directory: RunDirectory, configuration: str | None) -> CaptureRecord:
    entries = [entry for entry in directory.read_manifest().entries if entry.measured]
    if not entries:
        raise BadInputError(f"{directory.path} holds no configuration that was measured")
    chosen = [entry for entry in entries if configuration in (None, entry.configuration.id)]
    if not chosen:
        known = ", ".join(entry.configuration.id for entry in entries)
        raise UsageError(f"{directory.path} has no configuration {configuration}; there are {known}")
    return directory.read_record(chosen[0])


def _version(options: LookupOptions, producer: Producer) -> TorchVersion | None:
    if options.torch is not None:
        return _asked(options.torch)
    return TorchVersion.parse(producer.torch) if producer.torch else None


def _asked(text: str) -> TorchVersion:
    version = parse_version(text)
    if same_release(version) is None:
        raise UsageError(f"no index of PyTorch {text} is shipped; there are {', '.join(sorted(shipped_names()))}")
    return version


def _doubt(options: LookupOptions, producer: Producer) -> str | None:
    """Say why answers about the version that the user named may not hold for the trace; None if they do."""
    recorded = TorchVersion.parse(producer.torch) if producer.torch else None
    if options.torch is None or recorded is None:
        return None
    if same_release(recorded) is not None and same_release(recorded) == same_release(_asked(options.torch)):
        return None
    return f"the trace was recorded with PyTorch {producer.torch}"


def _host_index(version: TorchVersion | None) -> SourceIndex:
    # Only shipped indexes know the files of C++ functions: that of the same release, else of the nearest one.
    name = (same_release(version) if version else None) or by_nearness(version)[0]
    return shipped_index(name)
