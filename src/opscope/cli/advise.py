"""``opscope advise TARGET``: try known changes on a step, time them, prove them."""

import importlib.util
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from opscope.advise.changes.listed import BY_NAME
from opscope.base.errors import EnvironmentLacksError, InconclusiveError, OpscopeError, UsageError
from opscope.base.files import scratch
from opscope.base.processes import cores
from opscope.cli.emit import Output, emit
from opscope.cli.options import DTYPES, INCONCLUSIVE, ListOf, Positive, WantedStepsType, format_option, values_of
from opscope.cli.say import say
from opscope.cli.targets import (
    TargetCommand,
    interrupted_code,
    refuse_others_options,
    say_why_failed,
    stopped_like_ctrl_c,
)
from opscope.documents.advise import INPUT, LARGER_BATCH, AdviseDocument, Ended, ErrorClass
from opscope.record.configuration import SETTINGS
from opscope.sweep.plan import default_sizes, expand, refused_launcher
from opscope.workloads.catalog import is_script

_POSITIVE = click.IntRange(min=1)
_LAST_LINES = 3  # of what a target printed before it failed


_NOT_OF_SCRIPTS: Final = (
    *("batch-size", "seq-len", "hidden-size", "layers", "image-size", "dtype", "attention", "mode", "set", "device"),
)


@click.command(cls=TargetCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.argument("arguments", metavar="[SCRIPT ARGUMENTS]...", nargs=-1)
@click.option("--batch-size", type=_POSITIVE, help="The batch size.")
@click.option("--seq-len", type=_POSITIVE, help="The sequence length.")
@click.option("--hidden-size", type=_POSITIVE, help="The hidden size of the model.")
@click.option("--layers", type=_POSITIVE, help="The number of layers.")
@click.option("--image-size", type=_POSITIVE, help="Height and width of images.")
@click.option("--dtype", type=click.Choice([*DTYPES, *DTYPES.values()]), help="The data type as written.")
@click.option("--attention", type=click.Choice(SETTINGS["attention"].choices), help="Attention as written.")
@click.option("--mode", type=click.Choice(SETTINGS["mode"].choices), default="inference", show_default=True)
@click.option(
    "--set", "own", multiple=True, metavar="NAME=VALUE", help="A parameter of the function's own. May be repeated."
)
@click.option(
    "--step-kind",
    "steps",
    type=WantedStepsType(operators=False),
    metavar="KIND",
    help="Which steps of a script: training, calls (of modules, with gradients), replays (of CUDA graphs), evaluation, "
    "or annotation:NAME.  [default: the first of these that repeats]",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--only",
    type=ListOf(click.Choice([*(str(name) for name in BY_NAME), INPUT, LARGER_BATCH])),
    metavar="CHANGE...",
    help=f"Try these changes, and combinations of them: {', '.join(BY_NAME)}; or find out whether steps wait for their "
    "data (input), or what larger batches give (larger_batch).",
)
@click.option(
    "--precision",
    type=click.Choice([str(one) for one in ErrorClass]),
    metavar="PRECISION",
    help="Try nothing of lower precision than exact, tf32, bf16 (any 16-bit numbers) or lower.  [default: lower]",
)
@click.option(
    "--patch",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the fastest of what is proven on a script as a patch, for git apply. Without one, the exit code is 5.",
)
@click.option(
    "--traces",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write a trace of the step as written, and one of the fastest that is proven, for opscope diff.",
)
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep each measurement in FILE. If the command is ended, the same command goes on from there.",
)
@click.option(
    "--budget",
    type=Positive(),
    default=180,
    show_default=True,
    metavar="SECONDS",
    help="How long to take. Known combinations are tried first, and a clear gain is proven at once. When the time is "
    "over, or at Ctrl-C, what is known by then is printed.",
)
@click.option(
    "--timeout",
    type=Positive(),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="Give up a variant that takes longer than this to run its first steps, or to be measured.",
)
@click.option("--dry-run", is_flag=True, help="Run the step as written, and list what would be tried and what not.")
@format_option
def command(
    target: str,
    arguments: tuple[str, ...],
    batch_size: int | None,
    seq_len: int | None,
    hidden_size: int | None,
    layers: int | None,
    image_size: int | None,
    dtype: str | None,
    attention: str | None,
    mode: str,
    own: tuple[str, ...],
    steps: str | None,
    device: str,
    only: tuple[str, ...] | None,
    precision: str | None,
    patch: Path | None,
    traces: Path | None,
    resume: Path | None,
    budget: float,
    timeout: float,
    dry_run: bool,
    output_format: str,
) -> None:
    """Try known changes on TARGET without an edit: time them, prove them, and print the lines to write.

    TARGET is what opscope profile takes: a built-in workload; a function of yours, package.module:function or
    path/to/file.py:function, which returns a step or (module, example inputs); or a script, path/to/script.py, with the
    arguments after its name. Options of opscope stand before a script.

    Every variant runs in a process of its own. A script therefore runs many times in the current folder, and overwrites
    the files that it writes: use a copy of the folder if they matter.

    Changes are tried alone and together, and timed in turns with the step as written. The best of each precision are
    timed again in new processes and compared with float64: results, gradients and state of some steps, other inputs of
    the same shapes, and for training a longer run. What is not proven is not recommended.
    --format json prints a document of the schema opscope.advise/1.
    """
    if (refusal := refused_launcher(target, arguments)) is not None:
        raise UsageError(refusal)
    refuse_others_options(target, arguments, not_of_scripts=_NOT_OF_SCRIPTS, of_scripts=("steps", "patch"))
    _check_patch(patch)
    if traces is not None:
        _make_folder(traces)
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentLacksError("advice needs PyTorch, which is not installed: pip install 'opscope[torch]'")
    options: dict[str, Any] = {
        "batch_size": batch_size, "seq_len": seq_len, "hidden_size": hidden_size, "layers": layers,
        "image_size": image_size, "dtype": dtype, "attention": attention, "mode": None if is_script(target) else mode,
    }  # fmt: skip
    sizes = {name: values[:1] for name, values in default_sizes(target).items()}
    configuration = expand(target, {**sizes, **values_of(options, own)})[0]
    from opscope.advise.trying import SearchPlan, foreseen, try_changes
    from opscope.report.advise_document import advise_section, advise_values

    with scratch() as folder:
        log = folder / "log.txt"
        plan = SearchPlan(
            configuration=configuration,
            device=device,
            arguments=shlex.join(arguments),
            steps=steps,
            only=tuple(only or ()),
            precision=ErrorClass(precision or ErrorClass.LOWER),
            budget_s=budget,
            timeout_s=timeout,
            width=max(1, min(8, cores() // 2)),
            log=str(log),
            journal=resume,
            traces=traces,
        )
        try:
            if dry_run:
                for line in foreseen(plan, say):
                    say(line, err=False)
                return
            began = time.monotonic()
            with stopped_like_ctrl_c() as signals:
                document = try_changes(plan, lambda line: say(f"{time.monotonic() - began:4.0f} s  {line}"))
        except KeyboardInterrupt as interrupt:
            say("opscope: interrupted")
            sys.exit(interrupted_code(interrupt))
        except OpscopeError as error:
            _say_last_lines(log)
            if not isinstance(error, InconclusiveError):  # the script has not failed
                say_why_failed(target, arguments, [str(error)])
            raise
    emit(Output.of_section(document, lambda: advise_values(document), lambda: advise_section(document)), output_format)
    written = patch is None or _write_patch(patch, document)
    if document.ended is Ended.INTERRUPT:
        sys.exit(128 + (signals[-1] if signals else signal.SIGINT))
    if not written:
        sys.exit(INCONCLUSIVE)


def _say_last_lines(log: Path) -> None:
    """Print the last lines that the target printed: they may say what it lacks."""
    if log.exists():
        for line in log.read_text(errors="replace").splitlines()[-_LAST_LINES:]:
            say(f"  {line}")


def _check_patch(path: Path | None) -> None:
    """Refuse a file that is there: it may be what an earlier run took minutes to find."""
    if path is not None and path.exists():
        raise UsageError(f"{path} is there already: name another file for the patch")
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for the patch")


def _make_folder(path: Path) -> None:
    """Make the folder for traces, and refuse one that holds some."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentLacksError(f"cannot make {path}: {error.strerror or error}") from error
    if any((path / name).exists() for name in ("before.json", "after.json")):
        raise UsageError(f"{path} holds traces already: name another folder")


def _write_patch(path: Path, document: AdviseDocument) -> bool:
    """Write the fastest patch, and tell whether there is one."""
    proven = [document.results[place] for place in document.best.values()]
    patched = [(one.patch.ratio or 0.0, one) for one in proven if one.patch is not None and one.patch.diff is not None]
    ratio, best = max(patched, key=lambda one: one[0], default=(0.0, None))
    if best is None or best.patch is None or best.patch.diff is None:
        reasons = [one.patch.reason for one in proven if one.patch is not None and one.patch.reason]
        why = "nothing is proven" if not proven else next(iter(reasons), "time ran out before one was written")
        say(f"{path} was not written: {why}")
        return False
    try:
        path.write_bytes(best.patch.diff.encode())  # with the source's own line ends
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write {path}: {error.strerror or error}") from error
    gain = f"{' + '.join(best.changes)}, {ratio:.2f} times as fast"
    say(f"{path}: {gain}; apply it with git apply, in {best.patch.folder}")
    return True
