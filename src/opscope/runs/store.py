"""A run directory: its files, and how they are written so that an interruption loses nothing.

::

    profiling_results/quick/
        manifest.json                                what was run, with what, and what became of it
        comparison.json, comparison.md               all configurations side by side
        report.html                                  everything on one page, for a browser
        profiling_stats_bs8_seq128.json              statistics of one configuration (schema opscope.analysis/1)
        kernel_analysis_report_bs8_seq128.md         its report
        bert_trace_bs8_seq128.json                   its Chrome trace; later cycles have _cycle2 and so on
        bert_memory_bs8_seq128.pickle                its memory snapshot, where one was asked for
        raw/capture_bs8_seq128.json                  what else was measured: step times, memory, machine, framework
        raw/log_bs8_seq128.txt                       what its process printed
        raw/native_functions-2.11.0+cu130-cuda.json.gz   the operators of the PyTorch that ran

The manifest names the files of every configuration before it runs, and only `allot` makes these names. A manifest may
come from anyone. So names that `allot` would not make are refused, and only files that still have the digest in the
manifest are ever removed.
"""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.base.errors import BadInputError, EnvironmentLacksError, UsageError
from opscope.base.files import digest_of, partial_prefix, regular, sweep, write_whole
from opscope.base.text import lazy_pattern
from opscope.base.units import NS_PER_S
from opscope.record.capture import CaptureRecord, MemoryRecording
from opscope.record.codec import decode, encode
from opscope.record.configuration import Configuration
from opscope.record.sweep import KEPT, MANIFEST, TRACE_NAME, WORD, CycleFiles, Entry, EntryFiles, Manifest

COMPARISON, COMPARISON_REPORT, PAGE = "comparison.json", "comparison.md", "report.html"
# The names of each kind of file; no other file in a run directory is opscope's.
_FORMS: Final = {
    "record": lazy_pattern(rf"raw/capture_{WORD}\.json"),
    "log": lazy_pattern(rf"raw/log_{WORD}\.txt"),
    "light": lazy_pattern(rf"raw/light_{WORD}\.json"),
    "memory": lazy_pattern(rf"raw/memory_{WORD}\.json"),
    "snapshot": lazy_pattern(rf"{WORD}_memory_{WORD}\.pickle"),
    "trace": TRACE_NAME,
    "statistics": lazy_pattern(rf"profiling_stats_{WORD}\.json"),
    "report": lazy_pattern(rf"kernel_analysis_report_{WORD}\.md"),
    "functions": lazy_pattern(rf"raw/native_functions-{WORD}\.json\.gz"),
    "sweep": lazy_pattern(r"comparison\.(json|md)|report\.html|manifest\.json"),
}
_LONGEST_STEP_NS = 30 * 24 * 3_600 * NS_PER_S  # longer ones are taken for damage


class RunDirectory(Struct, frozen=True):
    """The files of one sweep. Names are relative to ``path`` wherever they are stored."""

    path: Path

    @property
    def manifest(self) -> Path:
        """The manifest's path."""
        return self.path / MANIFEST

    def create(self) -> None:
        """Make the directory, and remove temporary files of earlier runs that were killed.

        Raises:
            EnvironmentLacksError: it cannot be made or written to, or its folder ``raw`` is a link.
        """
        raw = self.path / "raw"
        try:
            if raw.is_symlink():
                raise EnvironmentLacksError(f"{raw} is a link: results are written into folders of their own")
            raw.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=raw):  # tells now, and not after measuring, that nothing can be written
                pass
        except OSError as error:
            raise EnvironmentLacksError(
                f"cannot write to {self.path}: {error.strerror or error}. Choose another folder with --output-dir."
            ) from error
        for folder in (self.path, raw):
            sweep(folder)

    def refuse_if_used(self, instead: str) -> None:
        """Refuse a directory that is not empty, once what runs that were killed left there is removed.

        Args:
            instead: what the user can do, as an imperative clause for the message.

        Raises:
            UsageError: the directory holds anything, or is a file.
        """
        sweep(self.path)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UsageError(f"{self.path} is there already, and is not replaced unasked: {instead}")

    def replaceable(self) -> Manifest:
        """Return the manifest if the results may be replaced, because all of their files are as opscope wrote them.

        Raises:
            UsageError: there is no readable manifest with digests, or a file was changed since.
        """
        try:
            manifest = self.read_manifest()
        except BadInputError as error:
            raise UsageError(f"{self.path} cannot be overwritten: {error}. Choose another --output-dir") from error
        if not manifest.digests and any(
            (self.path / name).exists() for one in manifest.entries for name in _names(one.files)
        ):
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
        """Refuse to measure if files that opscope did not write have the names of files to be written.

        Args:
            manifest: names the files that opscope wrote.
            entries: the configurations to measure.

        Raises:
            UsageError: there is such a file.
        """
        for name in (name for entry in entries for name in _names(entry.files)):
            if name not in manifest.digests and (self.path / name).exists():
                raise UsageError(f"{self.path / name} is there, and opscope did not write it: move it away")

    def staging(self) -> "RunDirectory":
        """Make a temporary folder to measure in; existing results stay until `take` moves the new ones here.

        Raises:
            EnvironmentLacksError: the folder cannot be made.
        """
        path = self.path / f"{partial_prefix()}run"
        try:
            (path / "raw").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentLacksError(f"cannot write to {path}: {error.strerror or error}") from error
        return RunDirectory(path)

    def take(self, staged: "RunDirectory") -> None:
        """Move the files of a folder from `staging` to their final places, and remove the folder.

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
        """Remove a folder from `staging` with its content."""
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_run(self) -> None:
        """Remove the manifest, what was kept of the traces, and the directory, if nothing else is in it.

        What the manifest names has to be removed before.
        """
        self.manifest.unlink(missing_ok=True)
        shutil.rmtree(self.path / KEPT, ignore_errors=True)
        for folder in (self.path / "raw", self.path):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def remove_written(self, manifest: Manifest, keep: Iterable[str] = ()) -> None:
        """Remove the files of a manifest that are still as opscope wrote them; links are not followed.

        Args:
            manifest: this directory's manifest.
            keep: names of files to keep.

        Raises:
            EnvironmentLacksError: a file cannot be removed.
        """
        self._remove(set(self._as_written(manifest)) - set(keep))

    def _as_written(self, manifest: Manifest) -> Iterator[str]:
        """Yield the names of regular files, not links, with a name of opscope's and the manifest's digest."""
        for name, digest in manifest.digests.items():
            path = self.path / name
            # A packed trace is ours too (see `trace_path`), and the forms are those of plain names.
            plain = name.removesuffix(".gz") if name.endswith(".json.gz") else name
            ours = any(form.fullmatch(one) for form in _FORMS.values() for one in (name, plain))
            if not ours or path.is_symlink() or path.parent.is_symlink() or not path.is_file():
                continue
            if digest_of(path) == digest:
                yield name

    def with_digests(self, manifest: Manifest, entries: Iterable[Entry] = ()) -> Manifest:
        """Return a manifest with updated digests of the files of some entries and of the whole sweep.

        Args:
            manifest: the manifest.
            entries: the configurations whose files were written.
        """
        names = [COMPARISON, COMPARISON_REPORT, PAGE, *(name for entry in entries for name in _names(entry.files))]
        tables = (path.relative_to(self.path) for path in (self.path / "raw").glob("native_functions-*.json.gz"))
        names += [str(table) for table in tables if str(table) not in manifest.digests]
        there = {name: path for name in names if (path := self.path / name).is_file() and not path.is_symlink()}
        # Of files that were to be written and are not there, the old digests go too.
        kept = {name: digest for name, digest in manifest.digests.items() if name not in names}
        return replace(manifest, digests={**kept, **{name: digest_of(path) for name, path in there.items()}})

    def remove_reports(self, entry: Entry) -> None:
        """Remove the statistics and reports of a configuration; its raw files stay.

        Raises:
            BadInputError: a name leads out of the directory.
            EnvironmentLacksError: a file cannot be removed.
        """
        self._remove(name for cycle in entry.files.cycles for name in (cycle.statistics, cycle.report))

    def remove_page(self) -> None:
        """Remove the page, which would show outdated results.

        Raises:
            EnvironmentLacksError: it cannot be removed.
        """
        self._remove((PAGE,))

    def _remove(self, names: Iterable[str]) -> None:
        try:
            for name in names:
                self.inside(name).unlink(missing_ok=True)  # a link itself is removed, not its target
        except OSError as error:
            raise EnvironmentLacksError(f"cannot replace {error.filename}: {error.strerror or error}") from error

    def read_manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            BadInputError: there is none, it is damaged, or it names a file twice or by a name that `allot` would not
                make.
        """
        if not self.manifest.is_file():
            raise BadInputError(f"{self.path} is not a run directory: it has no {MANIFEST}")
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

    def with_snapshots(self, manifest: Manifest) -> dict[Path, Entry]:
        """Return the configurations that have a memory snapshot, by its path."""
        named = {self.inside(entry.files.snapshot): entry for entry in manifest.entries if entry.files.snapshot}
        return {path: entry for path, entry in named.items() if path.is_file()}

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest.

        Raises:
            EnvironmentLacksError: it cannot be written.
        """
        self.write(MANIFEST, encode(manifest))

    def read_record(self, entry: Entry) -> CaptureRecord:
        """Read the capture's record of a configuration.

        Raises:
            BadInputError: the record is missing or damaged, is of another configuration, or holds impossible times or
                names of traces.
        """
        path = self.inside(entry.files.record)
        record = decode(path, CaptureRecord)
        if record.configuration != entry.configuration:
            raise BadInputError(f"{path} is of another configuration than {self.manifest} says")
        if not record.traces or not _plausible_times(record):
            raise BadInputError(f"{path} names no trace, or step times that cannot be true")
        names = [trace.file for trace in record.traces]
        if len(set(names)) < len(names) or not all(_FORMS["trace"].fullmatch(name) for name in names):
            raise BadInputError(f"{path} names traces as opscope does not: {', '.join(names[:3])}")
        kept = record.memory_recording or MemoryRecording()
        for name, form in ((kept.snapshot, "snapshot"), (kept.trace, "memory")):
            if name is not None and not (_FORMS[form].fullmatch(name) or name in names):
                raise BadInputError(f"{path} names a file as opscope does not: {name}")
        return record

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the run atomically: on failure it stays as it was.

        Args:
            name: its name relative to the directory.
            content: its content.

        Raises:
            BadInputError: the name leads out of the directory.
            EnvironmentLacksError: the file cannot be written (no room, no permission).
        """
        self.inside(name)
        write_whole(self.path / name, content)

    def inside(self, name: str) -> Path:
        """Return the path of a file of the run.

        Names come from a manifest, which may come from anyone.

        Raises:
            BadInputError: the name leads out of the directory, or to something that is neither a file nor a folder.
        """
        path = self.path / name
        try:
            if not path.resolve().is_relative_to(self.path.resolve()):
                raise BadInputError(f"{self.manifest} names a file outside its directory: {name}")
            return regular(path)
        except (OSError, ValueError, RuntimeError) as error:  # loops of links, names that no file can have
            raise BadInputError(f"{self.manifest} names a file that there cannot be, {name!r}: {error}") from error

    def trace_path(self, name: str) -> Path:
        """Return the path of a trace; if only its packed form exists, that one.

        Raises:
            BadInputError: the name leads out of the directory.
        """
        path, packed = self.inside(name), self.inside(_packed(name))
        return packed if packed.is_file() and not path.is_file() else path


def _formed(files: EntryFiles) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield the name of each file of a configuration with the pattern that it must match."""
    yield files.record, _FORMS["record"]
    yield files.log, _FORMS["log"]
    for kind in ("light", "snapshot", "memory"):
        if (name := getattr(files, kind)) is not None:
            yield name, _FORMS[kind]
    for cycle in files.cycles:
        yield from ((getattr(cycle, kind), _FORMS[kind]) for kind in ("trace", "statistics", "report"))


def _names(files: EntryFiles) -> Iterator[str]:
    """Yield the names of all files that a configuration may have, including packed ones."""
    for name, form in _formed(files):
        yield name
        if form in (_FORMS["trace"], _FORMS["light"], _FORMS["memory"]):
            yield _packed(name)


def _plausible_times(record: CaptureRecord) -> bool:
    measured = record.benchmark
    wall = (1,) if measured is None else measured.wall_ns
    others = ((measured and measured.event_ns) or ()) + (
        record.cold_step_ns or 0,
    )  # these may be 0: the device may have had nothing to do
    return (
        bool(wall)
        and all(0 < time < _LONGEST_STEP_NS for time in wall)
        and all(0 <= time < _LONGEST_STEP_NS for time in others)
    )


def _packed(name: str) -> str:
    return f"{name}.gz"


def allot(workload: str, configuration: Configuration, cycles: int) -> EntryFiles:
    """Return the names of a configuration's files.

    Args:
        workload: the workload's short name, for the names of traces.
        configuration: its id is part of all names.
        cycles: number of cycles of the profiler's schedule; the names of the first have no suffix.
    """
    name = configuration.id
    return EntryFiles(
        record=f"raw/capture_{name}.json",
        log=f"raw/log_{name}.txt",
        cycles=tuple(_cycle_files(workload, f"{name}{suffix}") for suffix in _suffixes(cycles)),
        light=f"raw/light_{name}.json",
        snapshot=f"{workload}_memory_{name}.pickle",
        memory=f"raw/memory_{name}.json",
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
    """Return the file name of the operator table for a PyTorch build and a dispatch key (``CUDA``)."""
    return f"raw/native_functions-{torch_version}-{device_key.lower()}.json.gz"


def with_entry(manifest: Manifest, entry: Entry) -> Manifest:
    """Return the manifest with the entry of one configuration replaced."""
    entries = tuple(entry if old.configuration == entry.configuration else old for old in manifest.entries)
    return replace(manifest, entries=entries)
