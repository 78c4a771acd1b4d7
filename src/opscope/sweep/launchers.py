"""Commands that start the ranks of a job (torchrun, mpirun, srun, accelerate), with opscope put before their script."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from opscope.base.errors import EnvironmentLacksError, UsageError
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
_ALONE: Final = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0"
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


def needs_launcher(script: str, arguments: Sequence[str], reasons: Iterable[str]) -> str | None:
    """Return what to do where a script failed as it expects what a launcher of ranks sets.

    Args:
        script: the script's path.
        arguments: the words behind it.
        reasons: what it failed with.
    """
    unset = [name for reason in reasons for name in re.findall(r"\w+", reason) if name in _VARIABLES]
    if not unset:
        return None
    command = shlex.join([script, *arguments])
    return (
        f"{script} is written for a launcher: it reads {unset[0]}, which torchrun sets and nothing has set here. "
        f"opscope profile --nproc 2 {command} runs it in two processes. {_one_process(command)}"
    )


def not_several(launcher: str, arguments: Sequence[str]) -> str:
    """Return why ``opscope advise`` takes no launcher, and what to do instead.

    Args:
        launcher: what it was given.
        arguments: the words behind it.
    """
    launch = _launch_of((launcher, *arguments))
    command = "train.py" if launch is None else shlex.join([launch.script, *launch.arguments])
    return (
        f"opscope advise tries changes in one process, and {launcher} starts several: opscope profile "
        f"{shlex.join([launcher, *arguments])} says what they cost. {_one_process(command)}"
    )


def _one_process(command: str) -> str:
    return f"If it can run as the only process of a job: {_ALONE} opscope advise {command}"


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
