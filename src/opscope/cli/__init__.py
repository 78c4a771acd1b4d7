"""The command line: one module per command, imported only when that command runs."""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import ClassVar, Final

import click

from opscope._version import __version__
from opscope.base.errors import DEBUG, OpscopeError
from opscope.base.text import printable
from opscope.cli.say import say

# heading -> command -> (module with a `command`, one line for --help). A module is imported only when its command runs.
GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Start here": {
        "profile": ("opscope.cli.profile", "Run a script or function; show what a step costs, and what to do first."),
        "analyze": (
            "opscope.cli.analyze",
            "Read a trace of torch.profiler or Nsight Systems: verdict, findings, tables.",
        ),
        "advise": ("opscope.cli.advise", "Try known changes on a script or function; time and prove them."),
    },
    "Measure": {
        "exec": ("opscope.cli.exec", "Run any program and record what it does with CUDA."),
        "bench": ("opscope.cli.bench", "Benchmark functions: are they right, how long do they take, which is faster?"),
    },
    "Read": {
        "page": ("opscope.cli.page", "Write everything on one page that opens offline in a browser."),
        "memory": ("opscope.cli.memory", "Read a memory snapshot of PyTorch: what fills the device, and what to do."),
        "ranks": ("opscope.cli.ranks", "Read a job's traces together: which ranks are late, and why."),
        "explain": ("opscope.cli.explain", "Explain an operator or kernel: what it is, and where its source is."),
        "limits": ("opscope.cli.limits", "Show how far work is from what the device allows."),
        "whatif": ("opscope.cli.whatif", "Replay a step with changes: how long would it take?"),
        "show": ("opscope.cli.show", "Show single values of a trace by their addresses, with what they mean."),
        "sql": ("opscope.cli.sql", "Run SQL over the tables of one or many traces."),
        "export": ("opscope.cli.export", "Write a trace for Perfetto, as Parquet files, or its reports again."),
    },
    "Compare": {
        "diff": ("opscope.cli.diff", "Compare two runs, jobs or benchmarks: did it change, and what caused it?"),
        "runs": ("opscope.cli.runs", "List past runs: target, date, what bounds the step, its time."),
    },
    "Kernels": {
        "kernel": ("opscope.cli.kernel", "Build kernels, show their PTX or SASS, check launches and results."),
    },
    "Machine": {
        "doctor": ("opscope.cli.doctor", "Test this machine: driver, GPUs, PyTorch, nvcc, profiler, counters."),
        "gpus": ("opscope.cli.gpus", "Show facts about GPUs; detect those of this machine, measure their peak rates."),
    },
    "Agents": {
        "skill": ("opscope.cli.skill", "Print or install the skill that teaches agents to use opscope."),
        "mcp": ("opscope.cli.mcp", "Serve opscope's tools to agents (Model Context Protocol)."),
    },
}
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    name: entry for commands in GROUPS.values() for name, entry in commands.items()
}


class Commands(click.Group):
    """Finds commands in a table, so that ``--help`` imports none of them.

    Attributes:
        groups: the table, by heading.
    """

    groups: ClassVar[Mapping[str, Mapping[str, tuple[str, str]]]] = GROUPS

    @property
    def table(self) -> dict[str, tuple[str, str]]:
        """The module and the summary of each command."""
        return {name: entry for commands in self.groups.values() for name, entry in commands.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, in the order of the help."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in self.table:
            return None
        command: click.Command = importlib.import_module(self.table[cmd_name][0]).command
        command.name = cmd_name  # they are all called `command` in their modules
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for an unknown one, say which may be meant."""
        if args and args[0] not in self.table:
            import difflib

            if near := difflib.get_close_matches(args[0], self.table, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands under their headings."""
        for heading, commands in self.groups.items():
            with formatter.section(heading):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="opscope %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """opscope: a profiler's workbench for PyTorch and CUDA."""
    if debug:
        os.environ[DEBUG] = "1"


def main() -> None:
    """Run the command line.

    Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 something is missing, 4 bad input, 5 inconclusive.
    """
    # polars' allocator keeps freed memory for ten seconds, longer than most commands run; it reads this when loaded.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    try:
        cli(prog_name="opscope")
    except OpscopeError as error:
        if os.environ.get(DEBUG):
            raise
        say(f"opscope: {printable(str(error))}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has seen enough. What is still buffered goes nowhere: Python flushes it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if os.environ.get(DEBUG):
            raise
        say(f"opscope: {printable(str(error))}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(3)
