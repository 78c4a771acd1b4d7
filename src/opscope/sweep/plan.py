"""What a sweep consists of: the product of its axes, presets, and what is left of one that was interrupted."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import fields, replace

from opscope._version import __version__
from opscope.base.errors import UsageError
from opscope.base.units import utc_timestamp
from opscope.record.configuration import CaptureOptions, Configuration
from opscope.record.settings import SETTINGS, Value, heading_of, option_of
from opscope.record.sweep import Entry, Manifest
from opscope.runs.store import RunDirectory, allot
from opscope.workloads.catalog import BUILT_IN, check, target_file, target_name

_Values = Mapping[str, Sequence[Value]]  # what a setting may take, by its name


class NamedSweep(Struct, frozen=True):
    """One sweep of a preset: the folder under the output directory, and its sizes."""

    folder: str
    sizes: _Values


_QUICK = NamedSweep("quick", {"batch_size": (1, 8), "seq_len": (128,)})
_FULL = NamedSweep("full", {"batch_size": (1, 4, 8, 16), "seq_len": (128, 256, 512)})
PRESETS = {"quick": (_QUICK,), "comprehensive": (_QUICK, _FULL)}


def default_sizes(target: str) -> _Values:
    """Return the sizes that a built-in target is swept over by default; empty for other targets."""
    entry = BUILT_IN.get(target)
    return {} if entry is None else entry.sizes


def expand(target: str, values: _Values) -> tuple[Configuration, ...]:
    """Return one configuration per combination of values, in the order given, each checked.

    A setting with one value is the same for the whole sweep; one with several is an axis, and so are sizes.

    Raises:
        UsageError: a value does not apply to the target, is not positive, or two configurations would have one name.
    """
    distinct = {name: tuple(dict.fromkeys(result)) for name, result in values.items() if result}
    for name, result in distinct.items():
        _check_counts(name, result)
    axes = {name: result for name, result in distinct.items() if len(result) > 1 or is_size(name)}
    settings = {name: result[0] for name, result in distinct.items() if name not in axes}
    configurations = tuple(
        Configuration(target, settings, dict(zip(axes, point, strict=True)))
        for point in itertools.product(*axes.values())
    )
    for configuration in configurations:
        check(configuration)
    # An id becomes part of file names, and different values may be written alike there.
    if len({configuration.id for configuration in configurations}) < len(configurations):
        raise UsageError("two configurations would have the same file names: choose values that differ as file names")
    return configurations


def is_size(name: str) -> bool:
    """Tell whether a setting is a size of the inputs; users' own settings are none."""
    return name in SETTINGS and SETTINGS[name].is_size


def _check_counts(name: str, values: Sequence[Value]) -> None:
    if name in SETTINGS and SETTINGS[name].kind == "count":
        for value in values:
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{option_of(name)} takes positive numbers, not {value}")


def new_manifest(configurations: Sequence[Configuration], options: CaptureOptions, command: Sequence[str]) -> Manifest:
    """Return the manifest of a sweep that has not begun.

    Args:
        configurations: at least one, all of one target.
        options: how each is measured.
        command: the words of the command line, as they may be written down.
    """
    cycles = options.schedule.repeat if options.schedule else 1
    return Manifest(
        command=tuple(command),
        created=utc_timestamp(),
        opscope=__version__,
        options=options,
        entries=tuple(
            Entry(configuration, allot(target_name(configuration.target), configuration, cycles))
            for configuration in configurations
        ),
        target_digest=_digest(target_file(configurations[0].target)),
    )


def _digest(path: Path | None) -> str | None:
    return None if path is None or not path.is_file() else hashlib.sha256(path.read_bytes()).hexdigest()


def resumed(manifest: Manifest, directory: RunDirectory) -> Manifest:
    """Return the manifest with the results that the directory already holds.

    Results of other sizes stay in the sweep, so that a sweep can be extended.

    Raises:
        UsageError: what is there was measured with other settings, is of another workload, or is not opscope's.
        BadInputError: its manifest is damaged.
    """
    if not directory.manifest.is_file():
        return manifest
    before = directory.read_manifest()
    if before.options != manifest.options:
        raise _different(directory, _differing_options(before.options, manifest.options))
    asked = {entry.configuration for entry in manifest.entries}
    for entry in before.entries:
        difference = _differing_settings(entry.configuration, manifest.entries[0].configuration)
        if difference:
            raise _different(directory, difference)
    if before.target_digest != manifest.target_digest:
        raise UsageError(
            f"{target_file(manifest.entries[0].configuration.target)} has changed since {directory.path} was measured: "
            "measure anew without --resume, or choose another --output-dir"
        )
    done = {entry.configuration: entry for entry in before.entries if _is_whole(directory, entry)}
    entries = tuple(done.get(entry.configuration, entry) for entry in manifest.entries)
    if before.digests:  # earlier versions kept none
        directory.refuse_foreign(before, (entry for entry in entries if entry.status != "done"))
    kept = tuple(entry for configuration, entry in done.items() if configuration not in asked)
    return replace(
        manifest,
        entries=(*kept, *entries),
        machine=before.machine,
        framework=before.framework,
        git_revision=before.git_revision,
        clocks=before.clocks,
        notes=before.notes,
        digests=before.digests,
    )


def _different(directory: RunDirectory, difference: str) -> UsageError:
    return UsageError(
        f"{directory.path} was measured with other settings ({difference}): resume with the same ones, or choose "
        "another --output-dir"
    )


def _differing_options(before: CaptureOptions, now: CaptureOptions) -> str:
    names = [field.name for field in fields(before) if getattr(before, field.name) != getattr(now, field.name)]
    return ", ".join(f"{name}: {getattr(before, name)} there, {getattr(now, name)} now" for name in names)


def _differing_settings(before: Configuration, now: Configuration) -> str:
    """Say what differs beside the values of the axes."""
    there, here = {"target": before.target, **before.settings}, {"target": now.target, **now.settings}
    names = [name for name in dict.fromkeys((*there, *here)) if there.get(name) != here.get(name)]
    return ", ".join(f"{heading_of(name)}: {there.get(name)} there, {here.get(name)} now" for name in names)


def _is_whole(directory: RunDirectory, entry: Entry) -> bool:
    if entry.status != "done":
        return False
    files = entry.files
    names = [files.record, *(name for cycle in files.cycles for name in (cycle.statistics, cycle.report))]
    traces = [directory.trace_path(cycle.trace) for cycle in files.cycles]
    return all(path.is_file() for path in (*map(directory.inside, names), *traces))
