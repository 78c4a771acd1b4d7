"""``opscope mcp ROOT...``: opscope's tools for agents, over the Model Context Protocol. Needs the extra ``mcp``."""

from pathlib import Path

import click

from opscope.base.errors import EnvironmentLacksError
from opscope.cli.options import Positive


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "roots", metavar="ROOT...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--allow-run", is_flag=True, help="Offer a tool that runs Python scripts below the ROOTs, to profile them."
)
@click.option(
    "--timeout",
    type=Positive(1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="End a command that takes longer.",
)
def command(roots: tuple[Path, ...], allow_run: bool, timeout: float) -> None:
    """Answer an agent's requests on standard input: overview, findings, table, explain, diff, whatif.

    Only files below the ROOTs are read (explain also looks into the installed PyTorch); relative paths are of the
    first. Answers have at most 2,000 tokens. No program of yours is run unless --allow-run says so. Each tool is a
    command of opscope with --brief, and answers what that prints.

    To add it to an agent: {"command": "opscope", "args": ["mcp", "/path/to/traces"]}.
    """
    from opscope.agents.calls import Caller

    caller = Caller.of(roots, allow_run=allow_run, seconds=timeout)
    try:
        from opscope.agents.server import serve
    except ImportError as error:
        raise EnvironmentLacksError(
            f"opscope mcp needs the package mcp ({error.name} is missing): pip install 'opscope[mcp]'"
        ) from error
    serve(caller)
