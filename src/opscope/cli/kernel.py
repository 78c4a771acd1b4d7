"""``opscope kernel COMMAND``: what belongs to single kernels: their code, their launch, whether they are right."""

from collections.abc import Mapping
from typing import ClassVar

import click

from opscope.cli import Commands


class _KernelCommands(Commands):
    groups: ClassVar[Mapping[str, Mapping[str, tuple[str, str]]]] = {
        "Commands": {
            "build": ("opscope.cli.build", "Build a CUDA source; show its kernels' resources, PTX or SASS."),
            "ptx": ("opscope.cli.ptx", "Show PTX or SASS of Triton and torch.compile kernels under their source."),
            "launch": ("opscope.cli.launch", "Check a launch configuration and its occupancy."),
            "check": ("opscope.cli.triton_check", "Check Triton kernels in the interpreter: results, memory accesses."),
        }
    }


@click.group(cls=_KernelCommands, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Build kernels, show the code that is made of them, check how they are launched and what they compute."""
