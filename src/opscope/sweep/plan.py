"""What a sweep consists of: the product of its axes, presets, and what is left of one that was interrupted."""

import hashlib
import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import fields, replace

from opscope._version import __version__
from opscope.base.errors import NOT_SET, EnvironmentLacksError, UsageError
from opscope.base.text import lazy_pattern
from opscope.base.units import utc_timestamp
from opscope.record.configuration import SETTINGS, CaptureOptions, Configuration, Value, heading_of, option_of
from opscope.record.sweep import Entry, Manifest
from opscope.runs.store import RunDirectory, allot
from opscope.workloads.catalog import BUILT_IN, check, is_built_in, is_script, target_file, target_name

# ---------------------------------------------------------------- launchers


# Those that may follow `opscope profile` without `--` before them; behind `--` it may be any program.
KNOWN: Final = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "jsrun", "flux"})
RANK_MODULE: Final = "opscope.sweep.rank"
JOB_OPTION: Final = "--opscope-job="
# What torchrun sets for each rank (PyTorch's documentation of torchrun, "Environment Variables").
_VARIABLES: Final = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)
# The same for the only rank of a job; with port 0 the system gives each process a free one.
_ALONE: Final = "RANK=0 LOCAL_RANK=0 GROUP_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0"
_SAID: Final = NOT_SET.format(r"(\w+)")
_NOT_SET: Final = lazy_pattern(rf"{_SAID}|environment variable (\w+) expected, but not set")
_MODULES: Final = ("torch.distributed.", "accelerate.commands.")  # behind python -m
_TAKE_A_PATH: Final = frozenset({"torchrun", "accelerate", "deepspeed"})  # they start Python themselves
_MODULE_OPTION: Final = {"deepspeed": "--module"}  # others take -m, as Python itself does


class Launch(Struct, frozen=True):
    """A command that starts the ranks of a job.

    Attributes:
        before: its words before the script.
        script: the script's path.
        arguments: the words behind it.
    """

    before: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]

    def of_ranks(self, folder: Path) -> list[str]:
        """Return the command that starts opscope's process of each rank instead of the script.

        Args:
            folder: of the job, where each rank finds what it is to do.
        """
        names = [Path(word).name for word in self.before]
        option = next((_MODULE_OPTION[name] for name in names if name in _MODULE_OPTION), "-m")
        return [*self.before, option, RANK_MODULE, f"{JOB_OPTION}{folder}", *self.arguments]


def needs_launcher(command: str, script: str, arguments: Sequence[str], reasons: Iterable[str]) -> str | None:
    """Return what to do when a script failed because it expects variables that a launcher sets.

    Args:
        command: the command of opscope that ran it.
        script: the script's path.
        arguments: the words behind it.
        reasons: what it failed with.
    """
    missing = [name for reason in reasons for match in _NOT_SET.findall(reason) for name in match if name in _VARIABLES]
    unset = [name for name in missing if name not in os.environ]
    if not unset:
        return None
    run = shlex.join([script, *arguments])
    return (
        f"{script} expects to be started by a launcher such as torchrun: {unset[0]} is not set. To profile it as two "
        f"processes: opscope profile --nproc 2 {run}. {_one_process(command, run)}"
    )


def refused_launcher(target: str, arguments: Sequence[str]) -> str | None:
    """Return why ``opscope advise`` does not take a launcher, and what to do instead; None where the target is none.

    Args:
        target: what it was given.
        arguments: the words behind it.
    """
    if is_script(target) or is_built_in(target) or ":" in target:
        return None
    launch = None
    with suppress(UsageError):  # a script that is started as a program
        launch = _launch_of((target, *arguments))
    words = [target, *(() if launch is None else launch.before)]
    starter = next((word for word in words if Path(word).name in KNOWN or word.startswith(_MODULES)), None)
    if starter is None:
        return None
    reason = f"opscope advise tries changes in one process, and {starter} starts several"
    if launch is None:
        return f"{reason}: name the script that it starts"
    run = shlex.join([launch.script, *launch.arguments])
    whole = shlex.join([*(() if Path(target).name in KNOWN else ("--",)), target, *arguments])
    return f"{reason}. To profile them: opscope profile {whole}. {_one_process('advise', run)}"


def _one_process(command: str, run: str) -> str:
    return f"If it also runs as a single process: {_ALONE} opscope {command} {run}"


def launch_named(target: str, arguments: Sequence[str], processes: int | None) -> Launch | None:
    """Return how the ranks of a job are started, as the command line says it; None if it names no job.

    Args:
        target: what is profiled: a script, or a launcher.
        arguments: the words behind it.
        processes: how many ranks opscope is to start itself; None if it is not to.

    Raises:
        UsageError: the command line is contradictory, or no script is started.
    """
    if processes is not None:
        if not is_script(target):
            raise UsageError(
                f"--nproc starts the ranks of a script, and {target} is none: name a file that ends in .py"
            )
        return _on_this_machine(processes, target, arguments)
    if is_script(target) or is_built_in(target) or ":" in target or not arguments:
        return None
    launch = _launch_of((target, *arguments))
    if launch is None and Path(target).name in KNOWN:
        raise UsageError(
            f"{target} is to start no script: name a file that ends in .py (a module behind -m cannot be profiled so)"
        )
    if launch is not None and shutil.which(target) is None:
        raise EnvironmentLacksError(f"cannot start {target}: there is no such program")
    return launch


def _launch_of(words: Sequence[str]) -> Launch | None:
    """Read a command that starts a script; None if no word of it but the first is a script.

    Args:
        words: of the command.

    Raises:
        UsageError: the script is started in a way that opscope cannot take the place of.
    """
    place = next((place for place, word in enumerate(words) if place and is_script(word)), None)
    if place is None:
        return None
    before = tuple(words[:place])
    if not any(_is_python(word) or Path(word).name in _TAKE_A_PATH for word in before):
        raise UsageError(f"{words[place]} is started as a program: put python before it, as in python {words[place]}")
    return Launch(before, words[place], tuple(words[place + 1 :]))


def _on_this_machine(processes: int, script: str, arguments: Sequence[str]) -> Launch:
    """Return how PyTorch's own launcher starts a script as several ranks on this machine.

    Args:
        processes: how many ranks.
        script: the script's path.
        arguments: what it is started with.
    """
    torchrun = (sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    return Launch(torchrun, script, tuple(arguments))


def _is_python(word: str) -> bool:
    name = Path(word).name
    return name.startswith(("python", "pypy")) and not name.endswith(".py")


# ---------------------------------------------------------------- plans


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
