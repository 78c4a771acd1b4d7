"""``opscope skill``: the skill that teaches agents to use the command line. Needs no PyTorch."""

from importlib.resources import files
from pathlib import Path

import click

from opscope.base.errors import UsageError
from opscope.base.files import refuse_outputs, write_output
from opscope.cli.options import overwrite_option
from opscope.cli.say import say, show

NAME = "opscope/SKILL.md"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--install",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Write it to DIR/{NAME}: DIR is where your agent looks for skills.",
)
@overwrite_option("a skill that is there")
def command(install: Path | None, overwrite: bool) -> None:
    """Print the skill: how to profile, read and prove with opscope, and what not to conclude."""
    text = files("opscope.agents").joinpath("SKILL.md").read_text(encoding="utf-8")
    if install is None:
        show(text)
        return
    target = install / NAME
    for path in (target.parent, target):
        if path.is_symlink():  # DIR is the user's choice, what a repository has put into it is not
            raise UsageError(f"{path} is a link, through which nothing is written: remove it, or name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    refuse_outputs((target,), overwrite=overwrite)
    write_output(target, text.encode())
    say(f"opscope: the skill is {target}")
