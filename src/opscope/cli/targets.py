"""Commands whose target may be a script with arguments of its own."""

import shlex
from collections.abc import Sequence

import click
from click.core import ParameterSource

from opscope.base.errors import UsageError
from opscope.cli.options import ListCommand
from opscope.sweep.launchers import KNOWN
from opscope.workloads.catalog import is_script


class TargetCommand(ListCommand):
    """Hands everything behind the name of a script to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the target, and keep click from reading what belongs to a script."""
        joined = self.joined(args)
        # A first pass that ends at the first word which is no option's finds the target; click's own follows.
        ctx.allow_interspersed_args = False
        given, _, _ = self.make_parser(ctx).parse_args(args=list(joined))
        ctx.allow_interspersed_args = True
        target, arguments = given.get("target"), given.get("arguments")
        if isinstance(target, str) and (is_script(target) or target in KNOWN):
            rest = [target, *(arguments if isinstance(arguments, Sequence) else ())]
            # Behind -- click reads no options, so those of the script reach the script.
            before = len(joined) - len(rest)
            joined = [*(word for word in joined[:before] if word != "--"), "--", *rest]
        return super().parse_args(ctx, joined)


def refuse_others_options(
    target: str, arguments: Sequence[str], *, not_of_scripts: Sequence[str], of_scripts: Sequence[str] = ()
) -> None:
    """Refuse options of the running command that the target does not take.

    Args:
        target: what the command is for.
        arguments: the words behind it.
        not_of_scripts: names of options that a script decides itself.
        of_scripts: names of options that only a script takes.

    Raises:
        UsageError: there is one.
    """
    context = click.get_current_context()
    if not is_script(target):
        if arguments:
            raise UsageError(f"only a script takes arguments, not {target}: {shlex.join(arguments)}")
        for name in of_scripts:
            if context.params[name.replace("-", "_")]:
                raise UsageError(f"--{name} is for scripts: the steps of other targets are known")
        return
    for name in not_of_scripts:  # a default is not refused, only what the command line says
        if context.get_parameter_source(name.replace("-", "_")) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name} cannot be applied to a script: it chooses for itself, and is run as it is")
