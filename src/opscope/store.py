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

The manifest names the files of every configuration before it runs; `allot` is the one place that makes the names.
"""

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from opscope.errors import BadInputError, EnvironmentLacksError
from opscope.files import PARTIAL, regular, write_whole
from opscope.record.capture import CaptureRecord
from opscope.record.codec import decode, encode
from opscope.record.configuration import Configuration
from opscope.record.sweep import CycleFiles, Entry, EntryFiles, Manifest
from opscope.units import NS_PER_S

COMPARISON, COMPARISON_REPORT, PAGE = "comparison.json", "comparison.md", "report.html"
_LONGEST_STEP_NS = 30 * 24 * 3_600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one sweep. Names are relative to ``path`` wherever they are stored."""

    path: Path

    @property
    def manifest(self) -> Path:
        """The manifest's path."""
        return self.path / "manifest.json"

    def create(self) -> None:
        """Make the directory, and clear away what an earlier run that was killed left half written.

        Raises:
            EnvironmentLacksError: it cannot be made or written to.
        """
        try:
            (self.path / "raw").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path / "raw"):
                pass
            for folder in (self.path, self.path / "raw"):
                for partial in folder.glob(f"{PARTIAL}*"):
                    shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
        except OSError as error:
            raise EnvironmentLacksError(
                f"cannot write to {self.path}: {error.strerror or error}. Choose another folder with --output-dir."
            ) from error

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

    def remove_results(self, entry: Entry) -> None:
        """Remove all files of a configuration: results of all cycles, raw files, its log.

        Raises:
            EnvironmentLacksError: a file cannot be removed.
        """
        self.remove_reports(entry)
        self._remove((entry.files.record, entry.files.log))
        if entry.files.light is not None:
            self._remove((entry.files.light, _packed(entry.files.light)))
        self._remove(name for cycle in entry.files.cycles for name in (cycle.trace, _packed(cycle.trace)))

    def _remove(self, names: Iterable[str]) -> None:
        try:
            for name in names:
                self.inside(name).unlink(missing_ok=True)
        except OSError as error:
            raise EnvironmentLacksError(f"cannot replace {error.filename}: {error.strerror or error}") from error

    def read_manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            BadInputError: there is none, or it is damaged.
        """
        if not self.manifest.is_file():
            raise BadInputError(f"{self.path} is not a run directory: it has no manifest.json")
        return decode(self.manifest, Manifest)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest."""
        self.write("manifest.json", encode(manifest))

    def read_record(self, entry: Entry) -> CaptureRecord:
        """Read what was measured beside the traces of a configuration."""
        path = self.inside(entry.files.record)
        record = decode(path, CaptureRecord)
        if record.configuration != entry.configuration:
            raise BadInputError(f"{path} is of another configuration than {self.manifest} says")
        if not record.traces or not _plausible_times(record):
            raise BadInputError(f"{path} names no trace, or step times that cannot be true")
        return record

    def write(self, name: str, content: bytes) -> None:
        """Write a file under a temporary name and rename it: it is there whole, or as it was before.

        Raises:
            EnvironmentLacksError: it cannot be written (no room, no permission).
        """
        write_whole(self.inside(name), content)

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
