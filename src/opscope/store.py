"""A run directory: which files it holds, and how they are written so that an interruption loses nothing.

::

    profiling_results/quick/
        manifest.json                                what was run, with what, and what became of it
        comparison.json, comparison.md               all configurations side by side
        profiling_stats_bs8_seq128.json              statistics of one configuration (schema opscope.profile/1)
        kernel_analysis_report_bs8_seq128.md         its report
        bert_trace_bs8_seq128.json                   its Chrome trace; later cycles have _cycle2 and so on
        raw/capture_bs8_seq128.json                  what else was measured: step times, memory, environment
        raw/log_bs8_seq128.txt                       what its process printed
        raw/native_functions-2.11.0+cu130-cuda.json.gz   the operators of the PyTorch that ran
"""

import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from opscope.errors import BadInputError, EnvironmentLacksError
from opscope.files import PARTIAL, write_whole
from opscope.record import CaptureRecord, Configuration, Entry, Manifest, decode, encode

_RESULT_ENDING = re.compile(r"(_cycle\d+)?\.(json|json\.gz|md)")


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

    def remove_reports(self, configuration: Configuration) -> None:
        """Remove what was computed for a configuration; its raw files stay.

        Raises:
            EnvironmentLacksError: a file cannot be removed.
        """
        self._remove(configuration, "profiling_stats_", "kernel_analysis_report_")

    def remove_results(self, configuration: Configuration) -> None:
        """Remove what earlier runs left of a configuration: results of all cycles, raw files, its log.

        Raises:
            EnvironmentLacksError: a file cannot be removed.
        """
        names = (record_name(configuration), log_name(configuration))
        self._remove(configuration, "profiling_stats_", "kernel_analysis_report_", "*_trace_", files=names)

    def _remove(self, configuration: Configuration, *prefixes: str, files: tuple[str, ...] = ()) -> None:
        name = configuration.id
        found = (path for prefix in prefixes for path in self.path.glob(f"{prefix}{name}*"))
        try:
            for path in [path for path in found if _RESULT_ENDING.fullmatch(path.name.rpartition(name)[2])]:
                path.unlink()
            for file in files:
                self.inside(file).unlink(missing_ok=True)
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
        if entry.record is None:
            raise BadInputError(f"{self.manifest} names no capture record of {entry.configuration.id}")
        path = self.inside(entry.record)
        record = decode(path, CaptureRecord)
        if record.configuration != entry.configuration:
            raise BadInputError(f"{path} is of another configuration than {self.manifest} says")
        if not record.traces or (record.benchmark and min(record.benchmark.wall_ns, default=0) <= 0):
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
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise BadInputError(f"{self.manifest} names a file outside its directory: {name}")
        return path

    def trace_path(self, name: str) -> Path:
        """Return the path of a trace, packed where only that is there."""
        path = self.inside(name)
        packed = path.with_name(f"{path.name}.gz")
        return packed if packed.is_file() and not path.is_file() else path


def trace_name(workload: str, configuration: Configuration, cycle: int) -> str:
    """Return the name of a configuration's trace; the first cycle's has no suffix."""
    return f"{workload}_trace_{configuration.id}{_suffix(cycle)}.json"


def statistics_name(configuration: Configuration, cycle: int = 0) -> str:
    """Return the name of a configuration's statistics file."""
    return f"profiling_stats_{configuration.id}{_suffix(cycle)}.json"


def report_name(configuration: Configuration, cycle: int = 0) -> str:
    """Return the name of a configuration's report."""
    return f"kernel_analysis_report_{configuration.id}{_suffix(cycle)}.md"


def record_name(configuration: Configuration) -> str:
    """Return the name of a configuration's capture record."""
    return f"raw/capture_{configuration.id}.json"


def functions_name(torch_version: str, device_key: str) -> str:
    """Return the name of the operator table of a PyTorch build and a device."""
    return f"raw/native_functions-{torch_version}-{device_key.lower()}.json.gz"


def log_name(configuration: Configuration) -> str:
    """Return the name of the file with what a configuration's process printed."""
    return f"raw/log_{configuration.id}.txt"


def _suffix(cycle: int) -> str:
    return f"_cycle{cycle + 1}" if cycle else ""


def with_entry(manifest: Manifest, entry: Entry) -> Manifest:
    """Return the manifest with one configuration's entry replaced."""
    entries = tuple(entry if old.configuration == entry.configuration else old for old in manifest.entries)
    return replace(manifest, entries=entries)
