"""Commands that start the ranks of a job (torchrun, mpirun, srun, accelerate), with opscope put before their script."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from opscope.base.errors import NOT_SET, EnvironmentLacksError, UsageError
from opscope.base.text import lazy_pattern
from opscope.workloads.catalog import is_built_in, is_script

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
