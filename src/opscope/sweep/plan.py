"""What a sweep consists of: the product of its sizes, presets, and what is left of one that was interrupted."""

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from opscope._version import __version__
from opscope.errors import UsageError
from opscope.record import CaptureOptions, Configuration, Entry, Manifest
from opscope.store import RunDirectory
from opscope.workloads.catalog import BUILT_IN, check, target_file


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes to sweep over. An empty list leaves a size to the workload."""

    batch_sizes: tuple[int, ...] = ()
    seq_lens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedSweep:
    """One sweep of a preset: the folder under the output directory, and the sizes."""

    folder: str
    sizes: Sizes


_QUICK = NamedSweep("quick", Sizes((1, 8), (128,)))
_FULL = NamedSweep("full", Sizes((1, 4, 8, 16), (128, 256, 512)))
PRESETS = {"quick": (_QUICK,), "comprehensive": (_QUICK, _FULL)}


def default_sizes(target: str) -> Sizes:
    """Return the sizes that a built-in target is swept over when none are given."""
    entry = BUILT_IN.get(target)
    return Sizes() if entry is None else Sizes(entry.batch_sizes, entry.seq_lens)


def expand(base: Configuration, sizes: Sizes) -> tuple[Configuration, ...]:
    """Return one configuration per batch size and sequence length, in the order given, each checked.

    Raises:
        UsageError: a size does not apply to the target, is not positive, or occurs twice.
    """
    for name, values in (("--batch-sizes", sizes.batch_sizes), ("--seq-lens", sizes.seq_lens)):
        for value in values:
            if value < 1:
                raise UsageError(f"{name} takes positive numbers, not {value}")
    batches: Sequence[int | None] = tuple(dict.fromkeys(sizes.batch_sizes)) or (None,)
    lengths: Sequence[int | None] = tuple(dict.fromkeys(sizes.seq_lens)) or (None,)
    configurations = tuple(replace(base, batch_size=batch, seq_len=length) for batch in batches for length in lengths)
    for configuration in configurations:
        check(configuration)
    return configurations


def new_manifest(configurations: Sequence[Configuration], options: CaptureOptions, command: Sequence[str]) -> Manifest:
    """Return the manifest of a sweep that has not begun."""
    return Manifest(
        command=tuple(command),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        opscope=__version__,
        options=options,
        entries=tuple(Entry(configuration) for configuration in configurations),
        target_digest=_digest(target_file(configurations[0].target)),
    )


def _digest(path: Path | None) -> str | None:
    return None if path is None or not path.is_file() else hashlib.sha256(path.read_bytes()).hexdigest()


def resumed(manifest: Manifest, directory: RunDirectory) -> Manifest:
    """Return the manifest with the results that the directory already holds.

    Results of other sizes stay in the sweep, so that a sweep can be extended.

    Raises:
        UsageError: what is there was measured with other settings, or is of another workload.
        BadInputError: its manifest is damaged.
    """
    if not directory.manifest.is_file():
        return manifest
    before = directory.read_manifest()
    if before.options != manifest.options:
        raise _different(directory, _differences(before.options, manifest.options))
    asked = {entry.configuration for entry in manifest.entries}
    for entry in before.entries:
        difference = _differences(_without_sizes(entry), _without_sizes(manifest.entries[0]))
        if difference:
            raise _different(directory, difference)
    if before.target_digest != manifest.target_digest:
        raise UsageError(
            f"{target_file(manifest.entries[0].configuration.target)} has changed since {directory.path} was measured: "
            "measure anew without --resume, or choose another --output-dir"
        )
    done = {entry.configuration: entry for entry in before.entries if _is_whole(directory, entry)}
    entries = tuple(done.get(entry.configuration, entry) for entry in manifest.entries)
    kept = tuple(entry for configuration, entry in done.items() if configuration not in asked)
    return replace(
        manifest,
        entries=(*kept, *entries),
        environment=before.environment,
        git_revision=before.git_revision,
        clocks=before.clocks,
        notes=before.notes,
    )


def _without_sizes(entry: Entry) -> Configuration:
    return replace(entry.configuration, batch_size=None, seq_len=None)


def _different(directory: RunDirectory, difference: str) -> UsageError:
    return UsageError(
        f"{directory.path} was measured with other settings ({difference}): resume with the same ones, or choose "
        "another --output-dir"
    )


def _differences(before: CaptureOptions | Configuration, now: CaptureOptions | Configuration) -> str:
    names = [field.name for field in fields(before) if getattr(before, field.name) != getattr(now, field.name)]
    return ", ".join(f"{name}: {getattr(before, name)} there, {getattr(now, name)} now" for name in names)


def _is_whole(directory: RunDirectory, entry: Entry) -> bool:
    names = (entry.record, entry.statistics, entry.report)
    if entry.status != "done" or entry.trace is None or not all(names):
        return False
    files = [directory.inside(name) for name in names if name is not None]
    return all(path.is_file() for path in (*files, directory.trace_path(entry.trace)))


def leftovers(directory: RunDirectory, manifest: Manifest) -> list[Path]:
    """Return result files of the directory that belong to no configuration of the manifest."""
    ids = {entry.configuration.id for entry in manifest.entries}
    found = directory.path.glob("profiling_stats_*.json")
    return sorted(path for path in found if path.stem.removeprefix("profiling_stats_").split("_cycle")[0] not in ids)
