"""A run directory: which files it holds, and how they are written so that an interruption loses nothing.

::

    profiling_results/quick/
        manifest.json                                what was run, with what, and what became of it
        comparison.json, comparison.md               all configurations side by side
        report.html                                  everything on one page, for a browser
        profiling_stats_bs8_seq128.json              statistics of one configuration (schema opscope.analysis/1)
        kernel_analysis_report_bs8_seq128.md         its report
        bert_trace_bs8_seq128.json                   its Chrome trace; later cycles have _cycle2 and so on
        raw/capture_bs8_seq128.json                  what else was measured: step times, memory, machine, framework
        raw/log_bs8_seq128.txt                       what its process printed
        raw/native_functions-2.11.0+cu130-cuda.json.gz   the operators of the PyTorch that ran

The manifest names the files of every configuration before it runs; `allot` is the one place that makes the names. A
manifest may be anyone's: names that `allot` would not make are refused, and only files that the manifest has a digest
of, and that still have it, are ever removed.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from opscope.base.errors import BadInputError, EnvironmentLacksError, UsageError
from opscope.base.files import digest_of, partial_prefix, regular, sweep, write_whole
from opscope.base.units import NS_PER_S
from opscope.record.capture import CaptureRecord
from opscope.record.codec import decode, encode
from opscope.record.configuration import Configuration
from opscope.record.sweep import CycleFiles, Entry, EntryFiles, Manifest

COMPARISON, COMPARISON_REPORT, PAGE = "comparison.json", "comparison.md", "report.html"
_MANIFEST: Final = "manifest.json"
_WORD: Final = r"[^/\x00-\x1f]+"
# How the names of each kind of file are made; nothing else in a run directory is opscope's.
_FORMS: Final = {
    "record": re.compile(rf"raw/capture_{_WORD}\.json"),
    "log": re.compile(rf"raw/log_{_WORD}\.txt"),
    "light": re.compile(rf"raw/light_{_WORD}\.json"),
    "trace": re.compile(rf"{_WORD}_trace_{_WORD}\.json"),
    "statistics": re.compile(rf"profiling_stats_{_WORD}\.json"),
    "report": re.compile(rf"kernel_analysis_report_{_WORD}\.md"),
    "functions": re.compile(rf"raw/native_functions-{_WORD}\.json\.gz"),
    "sweep": re.compile(r"comparison\.(json|md)|report\.html|manifest\.json"),
}
_LONGEST_STEP_NS = 30 * 24 * 3_600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one sweep. Names are relative to ``path`` wherever they are stored."""

    path: Path

    @property
    def manifest(self) -> Path:
        """The manifest's path."""
        return self.path / _MANIFEST

    def create(self) -> None:
        """Make the directory, and clear away what an earlier run that was killed left half written.

        Raises:
            EnvironmentLacksError: it cannot be made or written to, or its folder ``raw`` is a link.
        """
        raw = self.path / "raw"
        try:
            if raw.is_symlink():
                raise EnvironmentLacksError(f"{raw} is a link: results are written into folders of their own")
            raw.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=raw):
                pass
        except OSError as error:
            raise EnvironmentLacksError(
                f"cannot write to {self.path}: {error.strerror or error}. Choose another folder with --output-dir."
            ) from error
        for folder in (self.path, raw):
            sweep(folder)

    def refuse_if_used(self, instead: str) -> None:
        """Refuse a directory that holds anything.

        Args:
            instead: what its user can do, as an order.

        Raises:
            UsageError: it does.
        """
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UsageError(f"{self.path} is there already, and is not replaced unasked: {instead}")

    def replaceable(self) -> Manifest:
        """Return the manifest of results that may be replaced: each file in their place is opscope's, as written.

        Raises:
            UsageError: there is no manifest with digests, or a file has been changed since.
        """
        try:
            manifest = self.read_manifest()
        except BadInputError as error:
            raise UsageError(f"{self.path} cannot be overwritten: {error}. Choose another --output-dir") from error
        if not manifest.digests:
            raise UsageError(
                f"{self.path} cannot be overwritten: an earlier version wrote it, which did not note what its files "
                "hold. Remove it, or choose another --output-dir"
            )
        written = set(self._as_written(manifest))
        for name in manifest.digests:
            if name not in written and (self.path / name).exists():
                raise UsageError(f"{self.path} cannot be overwritten: {name} has been changed since it was written")
        return manifest

    def refuse_foreign(self, manifest: Manifest, entries: Iterable[Entry]) -> None:
        """Refuse to measure where files that a manifest does not know have the names of what is to be written.

        Raises:
            UsageError: there is such a file.
        """
        for name in (name for entry in entries for name in _names(entry.files)):
            if name not in manifest.digests and (self.path / name).exists():
                raise UsageError(f"{self.path / name} is there, and opscope did not write it: move it away")

    def staging(self) -> "RunDirectory":
        """Make a folder here to measure in, so that what is here stays until `take` moves the results to their places.

        Raises:
            EnvironmentLacksError: it cannot be made.
        """
        path = self.path / f"{partial_prefix()}run"
        try:
            (path / "raw").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentLacksError(f"cannot write to {path}: {error.strerror or error}") from error
        return RunDirectory(path)

    def take(self, staged: "RunDirectory") -> None:
        """Move the files of a folder that `staging` made to their places, and remove the folder.

        Raises:
            EnvironmentLacksError: a file cannot be moved.
        """
        try:
            for path in [path for path in staged.path.rglob("*") if path.is_file()]:
                path.replace(self.path / path.relative_to(staged.path))
        except OSError as error:
            raise EnvironmentLacksError(f"cannot replace {error.filename2}: {error.strerror or error}") from error
        staged.discard()

    def discard(self) -> None:
        """Remove a folder that `staging` made, with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_written(self, manifest: Manifest, keep: Iterable[str] = ()) -> None:
        """Remove the files of a manifest that still are what opscope wrote; links are not followed.

        Args:
            manifest: what was read of this directory.
            keep: names of files that stay.

        Raises:
            EnvironmentLacksError: a file cannot be removed.
        """
        self._remove(set(self._as_written(manifest)) - set(keep))

    def _as_written(self, manifest: Manifest) -> Iterator[str]:
        """Yield the names of files that have the digest of the manifest and a name of ours, and are no links."""
        for name, digest in manifest.digests.items():
            path = self.path / name
            plain = name.removesuffix(".gz") if name.endswith(".json.gz") else name
            ours = any(form.fullmatch(one) for form in _FORMS.values() for one in (name, plain))
            if not ours or path.is_symlink() or path.parent.is_symlink() or not path.is_file():
                continue
            if digest_of(path) == digest:
                yield name

    def with_digests(self, manifest: Manifest, entries: Iterable[Entry] = ()) -> Manifest:
        """Return a manifest with the digests of what was written: of some entries, and of the whole sweep."""
        names = [COMPARISON, COMPARISON_REPORT, PAGE, *(name for entry in entries for name in _names(entry.files))]
        tables = (path.relative_to(self.path) for path in (self.path / "raw").glob("native_functions-*.json.gz"))
        names += [str(table) for table in tables if str(table) not in manifest.digests]
        there = {name: path for name in names if (path := self.path / name).is_file() and not path.is_symlink()}
        kept = {name: digest for name, digest in manifest.digests.items() if name not in names}
        return replace(manifest, digests={**kept, **{name: digest_of(path) for name, path in there.items()}})

    def remove_reports(self, entry: Entry) -> None:
        """Remove what was computed for a configuration; its raw files stay.

        Raises:
            EnvironmentLacksError: a file cannot be removed.
        """
        self._remove(name for cycle in entry.files.cycles for name in (cycle.statistics, cycle.report))

    def remove_page(self) -> None:
        """Remove the page: it would be of what was there before.

        Raises:
            EnvironmentLacksError: it cannot be removed.
        """
        self._remove((PAGE,))

    def _remove(self, names: Iterable[str]) -> None:
        try:
            for name in names:
                self.inside(name).unlink(missing_ok=True)  # of a link, the link
        except OSError as error:
            raise EnvironmentLacksError(f"cannot replace {error.filename}: {error.strerror or error}") from error

    def read_manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            BadInputError: there is none, it is damaged, names one configuration twice, or files that opscope would not
                name so.
        """
        if not self.manifest.is_file():
            raise BadInputError(f"{self.path} is not a run directory: it has no {_MANIFEST}")
        manifest = decode(self.manifest, Manifest)
        seen: set[str] = set()
        for entry in manifest.entries:
            for name, form in _formed(entry.files):
                if not form.fullmatch(name):
                    raise BadInputError(f"{self.manifest} names a file as opscope does not: {name}")
                if name in seen:
                    raise BadInputError(f"{self.manifest} names {name} twice")
                seen.add(name)
        return manifest

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest."""
        self.write(_MANIFEST, encode(manifest))

    def read_record(self, entry: Entry) -> CaptureRecord:
        """Read what was measured beside the traces of a configuration."""
        path = self.inside(entry.files.record)
        record = decode(path, CaptureRecord)
        if record.configuration != entry.configuration:
            raise BadInputError(f"{path} is of another configuration than {self.manifest} says")
        if not record.traces or not _plausible_times(record):
            raise BadInputError(f"{path} names no trace, or step times that cannot be true")
        names = [trace.file for trace in record.traces]
        if len(set(names)) < len(names) or not all(_FORMS["trace"].fullmatch(name) for name in names):
            raise BadInputError(f"{path} names traces as opscope does not: {', '.join(names[:3])}")
        return record

    def write(self, name: str, content: bytes) -> None:
        """Write a file under a temporary name and rename it: it is there whole, or as it was before.

        Raises:
            EnvironmentLacksError: it cannot be written (no room, no permission).
        """
        self.inside(name)
        write_whole(self.path / name, content)

    def inside(self, name: str) -> Path:
        """Return the path of a file of the run.

        Raises:
            BadInputError: the name leads out of the directory. Names come from a manifest, which may be anyone's.
        """
        path = self.path / name
        try:
            if not path.resolve().is_relative_to(self.path.resolve()):
                raise BadInputError(f"{self.manifest} names a file outside its directory: {name}")
            return regular(path)
        except (OSError, ValueError, RuntimeError) as error:  # loops of links, names that no file can have
            raise BadInputError(f"{self.manifest} names a file that there cannot be, {name!r}: {error}") from error

    def trace_path(self, name: str) -> Path:
        """Return the path of a trace, packed where only that is there."""
        path, packed = self.inside(name), self.inside(_packed(name))
        return packed if packed.is_file() and not path.is_file() else path


def _formed(files: EntryFiles) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield each file of a configuration with the form that its name must have."""
    yield files.record, _FORMS["record"]
    yield files.log, _FORMS["log"]
    if files.light is not None:
        yield files.light, _FORMS["light"]
    for cycle in files.cycles:
        yield from ((getattr(cycle, kind), _FORMS[kind]) for kind in ("trace", "statistics", "report"))


def _names(files: EntryFiles) -> Iterator[str]:
    """Yield the names of the files that a configuration may have, packed ones too."""
    for name, form in _formed(files):
        yield name
        if form in (_FORMS["trace"], _FORMS["light"]):
            yield _packed(name)


def _plausible_times(record: CaptureRecord) -> bool:
    measured = record.benchmark
    wall = (1,) if measured is None else measured.wall_ns
    others = ((measured and measured.event_ns) or ()) + (
        record.cold_step_ns or 0,
    )  # on a device, nothing takes no time
    return (
        bool(wall)
        and all(0 < time < _LONGEST_STEP_NS for time in wall)
        and all(0 <= time < _LONGEST_STEP_NS for time in others)
    )


def _packed(name: str) -> str:
    return f"{name}.gz"


def allot(workload: str, configuration: Configuration, cycles: int) -> EntryFiles:
    """Name the files of a configuration.

    Args:
        workload: short name of what runs, for the traces.
        configuration: whose id the names carry.
        cycles: of the profiler's schedule; the first one's names have no suffix.
    """
    name = configuration.id
    return EntryFiles(
        record=f"raw/capture_{name}.json",
        log=f"raw/log_{name}.txt",
        cycles=tuple(_cycle_files(workload, f"{name}{suffix}") for suffix in _suffixes(cycles)),
        light=f"raw/light_{name}.json",
    )


def _cycle_files(workload: str, name: str) -> CycleFiles:
    return CycleFiles(
        trace=f"{workload}_trace_{name}.json",
        statistics=f"profiling_stats_{name}.json",
        report=f"kernel_analysis_report_{name}.md",
    )


def _suffixes(cycles: int) -> Iterable[str]:
    return (f"_cycle{cycle + 1}" if cycle else "" for cycle in range(cycles))


def functions_name(torch_version: str, device_key: str) -> str:
    """Return the name of the operator table of a PyTorch build and a device."""
    return f"raw/native_functions-{torch_version}-{device_key.lower()}.json.gz"


def with_entry(manifest: Manifest, entry: Entry) -> Manifest:
    """Return the manifest with one configuration's entry replaced."""
    entries = tuple(entry if old.configuration == entry.configuration else old for old in manifest.entries)
    return replace(manifest, entries=entries)
