"""Commands whose target may be a script with arguments of its own."""

import contextlib
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import click
from click.core import ParameterSource

from opscope.base.errors import UsageError
from opscope.cli.options import ListCommand
from opscope.cli.say import say
from opscope.sweep.plan import KNOWN, needs_launcher
from opscope.workloads.catalog import functions_alone, is_script

_SHOWN = 8  # functions in a message
_NOT_FOR_A_WORD = ("ModuleNotFoundError", "ImportError", "SyntaxError")  # which a word seldom causes


class TargetCommand(ListCommand):
    """Hands everything behind the name of a script to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the target, and keep click from reading what belongs to a script."""
        words = self.with_origins(args)
        # A first pass that ends at the first word which is not an option's finds the target; click's own follows.
        ctx.allow_interspersed_args = False
        values, _, _ = self.make_parser(ctx).parse_args(args=[word for word, *_ in words])
        ctx.allow_interspersed_args = True
        target, arguments = values.get("target"), values.get("arguments")
        if isinstance(target, str) and (is_script(target) or target in KNOWN):
            # Behind -- click reads no options, so those of the script reach the script, and as they were given.
            rest = 1 + (len(arguments) if isinstance(arguments, Sequence) else 0)
            _, begins, _ = words[len(words) - rest]
            own = (word for word in args[:begins] if word != "--")
            args = [*own, "--", *args[begins:]]
        return super().parse_args(ctx, args)


def refuse_others_options(
    target: str, arguments: Sequence[str], *, not_of_scripts: Sequence[str], of_scripts: Sequence[str] = ()
) -> None:
    """Refuse options of the running command that the target does not take.

    Args:
        target: what the command is for.
        arguments: the words behind it.
        not_of_scripts: names of options that a script decides itself.
        of_scripts: names of parameters whose options only a script takes.

    Raises:
        UsageError: there is one, or a word that no result could hold.
    """
    context = click.get_current_context()
    refuse_what_is_no_text(target, *arguments, *(str(one) for one in [context.params.get("output_dir")] if one))
    if is_script(target) and (names := functions_alone(Path(target))):
        command = context.command.name
        targets = ", ".join(f"{target}:{name}" for name in names[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UsageError(
            f"{target} only defines functions, and nothing happens when it is run: name one of them, "
            f"{targets}{more} (opscope {command} {shlex.quote(f'{target}:{names[0]}')}). It returns a step to run, or "
            "(module, example inputs)"
        )
    if not is_script(target):
        if arguments:
            raise UsageError(f"only a script takes arguments, not {target}: {shlex.join(arguments)}")
        for option in context.command.params:
            if option.name in of_scripts and context.params[option.name]:
                raise UsageError(f"{option.opts[0]} is for scripts: the steps of other targets are known")
        return
    for name in not_of_scripts:  # a default is not refused, only what the command line says
        if context.get_parameter_source(name.replace("-", "_")) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name} cannot be applied to a script: it chooses for itself, and is run as it is")


def refuse_what_is_no_text(*words: str) -> None:
    """Refuse words, and a current folder, that results could not name.

    Args:
        words: the target, the words behind it, where results go.

    Raises:
        UsageError: one of them holds bytes that are not text.
    """
    for word in (*words, os.path.realpath(".")):
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(word).decode("utf-8", "backslashreplace")
            raise UsageError(f"{shown} is not UTF-8, and results are written in UTF-8: use another name") from None


def say_why_failed(target: str, arguments: Sequence[str], reasons: Sequence[str]) -> None:
    """Say, of a script that failed, what the command line may lack.

    Args:
        target: the script.
        arguments: the words behind it, of which some may be options of the running command.
        reasons: what it failed with.
    """
    command = click.get_current_context().command
    if is_script(target) and (way := needs_launcher(command.name or "", target, arguments, reasons)) is not None:
        say(f"opscope: {way}")
    if any(f"{kind}: " in reason for kind in _NOT_FOR_A_WORD for reason in reasons):
        return
    own = {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
    values = dict.fromkeys(word.partition("=")[0] for word in arguments)
    if words := [word for word in values if word in own]:
        comes, it = ("comes", "it") if len(words) == 1 else ("come", "them")
        say(
            f"opscope: {', '.join(words)} {comes} after the script, so the script gets {it} as its own. "
            f"To give {it} to opscope, put {it} before the script"
        )


class EndedBySignal(KeyboardInterrupt):
    """A signal other than Ctrl-C's asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def stopped_like_ctrl_c() -> Iterator[list[int]]:
    """Let a closed terminal and a plain ``kill`` end the command as Ctrl-C does: workers ended, what is done kept."""
    signals: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        raise EndedBySignal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup wants SIGHUP ignored
            signal.signal(number, stop)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupted_code(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code of a command that was ended by a signal."""
    return 128 + (interrupt.number if isinstance(interrupt, EndedBySignal) else signal.SIGINT)
