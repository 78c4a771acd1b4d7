"""The command line: one module per command, imported only when that command runs."""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Final

import click

from opscope._version import __version__
from opscope.base.errors import DEBUG, OpscopeError
from opscope.base.text import printable
from opscope.cli.say import say

# command -> (module with a `command`, one line for --help). The module is imported only when the command runs.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "profile": ("opscope.cli.profile", "Profile a model over a sweep of sizes and write reports."),
    "exec": ("opscope.cli.exec", "Run any program, record what it does with CUDA, and sum it up."),
    "analyze": ("opscope.cli.analyze", "Analyse traces of torch.profiler: costs, idle time, trust."),
    "brief": ("opscope.cli.brief", "Say in a few lines what a trace or run shows, and what to do next."),
    "show": ("opscope.cli.show", "Show single values of a trace by their addresses, with what they mean."),
    "page": ("opscope.cli.page", "Write everything on one page that opens offline in a browser."),
    "stats": ("opscope.cli.stats", "Sum up API calls, kernels, memory operations and ranges."),
    "explain": ("opscope.cli.explain", "Explain an operator or kernel: what it is, and where its source is."),
    "dossier": ("opscope.cli.dossier", "Show how the most expensive operators run and what could be gained."),
    "limits": ("opscope.cli.limits", "Show how far work is from what the device allows."),
    "whatif": ("opscope.cli.whatif", "Replay a step with changes: how long would it take?"),
    "advise": ("opscope.cli.advise", "Try known changes on a step, time them, prove them, print the lines to write."),
    "ranks": ("opscope.cli.ranks", "Read a job's traces together: which ranks are late, and why."),
    "bench": ("opscope.cli.bench", "Benchmark functions: are they right, how long do they take, which is faster?"),
    "runs": ("opscope.cli.runs", "List past runs: target, date, what bounds the step, its time."),
    "compare": ("opscope.cli.compare", "Compare two saved benchmarks: does anything take longer now?"),
    "diff": ("opscope.cli.diff", "Compare two runs: did the step change, and what caused it?"),
    "peaks": ("opscope.cli.peaks", "Measure the peak rates of this machine's GPUs and keep them."),
    "gpus": ("opscope.cli.gpus", "Show facts about GPUs, and which ones this machine has."),
    "launch": ("opscope.cli.launch", "Check a launch configuration and its occupancy."),
    "doctor": ("opscope.cli.doctor", "Test this machine: driver, GPUs, PyTorch, nvcc, profiler, counters."),
    "build": ("opscope.cli.build", "Build a CUDA source; show its kernels' resources, PTX or SASS."),
    "ptx": ("opscope.cli.ptx", "Show the PTX or SASS of Triton and torch.compile kernels under their source."),
    "triton-check": (
        "opscope.cli.triton_check",
        "Check Triton kernels in the interpreter: results and memory accesses.",
    ),
    "convert": ("opscope.cli.convert", "Convert traces to Parquet files, which every command reads faster."),
    "export": ("opscope.cli.export", "Export a trace, or some of its steps, for Perfetto and Chrome."),
    "sql": ("opscope.cli.sql", "Run SQL over the tables of one or many traces."),
    "skill": ("opscope.cli.skill", "Print or install the skill that teaches agents to use opscope."),
    "mcp": ("opscope.cli.mcp", "Serve opscope's tools to agents (Model Context Protocol)."),
    "report": ("opscope.cli.report", "Write the reports of a run directory again from its raw traces."),
}


class _Commands(click.Group):
    """Finds commands in the table, so that ``--help`` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        command.name = cmd_name  # they are all called `command` in their modules
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for an unknown one, say which may be meant."""
        if args and args[0] not in COMMANDS:
            import difflib

            if near := difflib.get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
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
