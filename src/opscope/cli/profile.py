"""``opscope profile TARGET``: measure a model over a sweep of sizes, write reports, compare."""

import contextlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.cli.options import (
    DTYPES,
    ListOf,
    Positive,
    WantedStepsType,
    folder_option,
    format_option,
    redaction_options,
    redactor_of,
    values_of,
)
from opscope.cli.progress import SweepProgress
from opscope.cli.say import say
from opscope.cli.targets import (
    TargetCommand,
    interrupted_code,
    refuse_others_options,
    say_why_failed,
    stopped_like_ctrl_c,
)
from opscope.record.configuration import DEVICE_NAME, SETTINGS, CaptureOptions, Configuration, Schedule, Value
from opscope.record.redaction import Redactor
from opscope.record.sweep import Manifest
from opscope.runs.folders import named_folder, new_folder, point_latest, rank_here
from opscope.runs.store import RunDirectory
from opscope.sweep.plan import PRESETS, default_sizes, expand, is_size, launch_named, new_manifest, resumed
from opscope.sweep.process import InProcess
from opscope.sweep.warm import warm_process
from opscope.workloads.catalog import BUILT_IN, is_script, target_name

# Failures that would hit every configuration alike, by their kind: the command ends with the exit code of their cause.
_FATAL_EXIT_CODES = {"usage": 2, "environment": 3}
if TYPE_CHECKING:
    from opscope.sweep.job import JobPlan
    from opscope.sweep.runner import Measurer, Plan

F = TypeVar("F", bound=Callable[..., Any])
_POSITIVE = click.IntRange(min=1)
_COUNT = click.IntRange(min=0)

_TARGETS = "\n".join(f"\b\n  {name}: {entry.summary}" for name, entry in BUILT_IN.items())
_HELP = f"""Profile TARGET over a sweep of sizes and write reports.

TARGET is a built-in workload:

{_TARGETS}

or a function of yours, package.module:function or path/to/file.py:function. It returns a step (a callable without
arguments) or (module, example inputs), or is itself the step. Parameters named batch_size, seq_len, image_size,
hidden_size, layers, attention, mode, dtype or device get the values of the options, others those of --set;

or a script, path/to/script.py, which is run as it is, with the arguments after its name. Its steps are found by
themselves, timed before any profiler runs, and then a few of them are profiled. A script that ends too soon for that,
or has no boundaries of steps, is run a second time and recorded. Options of opscope stand before the script;

or, behind --, the command that launches a script as the ranks of a job (torchrun, mpirun, srun, accelerate). Each rank
measures itself, on steps that the ranks choose together, and gets a folder of its own. --nproc N launches N ranks here.

Options that take lists are swept over, and every combination is a configuration. Each configuration runs in its own
process. One that fails is recorded with its reason and the others go on; the exit code is then 1, and also where a
trace holds no work (no operator, or no GPU activity of a GPU workload).

\b
Examples:
  opscope profile bert --batch-sizes 1 8 16 --seq-lens 128 256
  opscope profile gpt2 --mode training --dtype bf16 --batch-sizes 4 --seq-lens 512
  opscope profile gpt2 --hidden-size 768 1024 --dtype fp32 bf16
  opscope profile train.py:make_step --with-stack --set width=64,128
  opscope profile --with-stack train.py --epochs 1
  opscope profile --nproc 8 train.py --epochs 1
  opscope profile -- torchrun --nproc-per-node 8 train.py --epochs 1
"""


def _listed(name: str, kind: click.ParamType[Any], **attributes: Any) -> Callable[[F], F]:
    """Add the option of a setting that can be swept over."""
    return click.option(SETTINGS[name].option, name, type=ListOf(kind), **attributes)


@click.command(cls=TargetCommand, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.argument("arguments", metavar="[SCRIPT ARGUMENTS]...", nargs=-1)
@_listed("batch_size", _POSITIVE, help="Batch sizes.")
@_listed("seq_len", _POSITIVE, help="Sequence lengths.")
@_listed("hidden_size", _POSITIVE, help="Hidden sizes of the model.  [default: 768]")
@_listed("layers", _POSITIVE, help="Numbers of layers.  [default: 12]")
@_listed("image_size", _POSITIVE, help="Heights and widths of images.  [default: 224]")
@_listed(
    "dtype",
    click.Choice([*DTYPES, *DTYPES.values()]),
    help="Data types: of the parameters in inference, of autocast in training.  [default: the model's own]",
)
@_listed("attention", click.Choice(SETTINGS["attention"].choices), help="Attention implementation.  [default: sdpa]")
@_listed("mode", click.Choice(SETTINGS["mode"].choices), default="inference", show_default=True)
@click.option(
    "--set",
    "own",
    multiple=True,
    metavar="NAME=VALUE[,VALUE...]",
    help="A parameter of the function's own: numbers, true or false, or text. May be repeated.",
)
@click.option("--compile", is_flag=True, help="Run the model through torch.compile.")
@click.option("--simplified", is_flag=True, help="bert: the simplified Transformer encoder from torch.nn.")
@click.option(
    "--use-real-bert",
    "pretrained",
    is_flag=False,
    flag_value="",
    metavar="[DIR]",
    help="bert: real weights, from DIR, else from the local cache or the hub. Never falls back to random ones.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--wait", type=_COUNT, default=1, show_default=True, help="Steps to skip before each profiling cycle.")
@click.option(
    "--warmup", type=_COUNT, default=1, show_default=True, help="Steps to run under the profiler before recording."
)
@click.option("--active", type=_POSITIVE, default=3, show_default=True, help="Steps to record.")
@click.option(
    "--repeat",
    type=_POSITIVE,
    default=1,
    show_default=True,
    help="How often to repeat this cycle, one trace each.",
)
@click.option(
    "--activities",
    type=ListOf(click.Choice(["cpu", "cuda"])),
    default="cpu,cuda",
    show_default=True,
    help="What the profiler collects.",
)
@click.option("--with-stack", is_flag=True, help="Record Python stacks, to show where operators are called from.")
@click.option("--profile-memory", is_flag=True, help="Record allocations, to show which operators allocate.")
@click.option(
    "--memory",
    is_flag=True,
    help="Record what fills the GPU over a few more steps, and what would take less (see opscope memory). Where a "
    "script runs out of memory, a snapshot is kept and explained, and the exit code is the script's.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Time a script's steps for a second or two, instead of 200 steps or thirty seconds: waits that come in bursts "
    "may be missed.",
)
@click.option("--skip-benchmark", is_flag=True, help="Do not time unprofiled steps beside the profile.")
@folder_option("Where the results go.  [default: profiling_results/TARGET-DATE-TIME]")
@click.option(
    "--timeout",
    type=Positive(),
    metavar="SECONDS",
    help="End a configuration that takes longer; it is recorded as failed, and the others go on.",
)
@click.option(
    "--run-on",
    is_flag=True,
    help="Let a script run on to its end after its steps were profiled, instead of ending it. A script that is ended "
    "has five minutes for what it does then.",
)
@click.option(
    "--step-kind",
    "steps",
    type=WantedStepsType(),
    metavar="KIND",
    help="Which steps of a script: training, calls (of modules, with gradients), replays (of CUDA graphs), evaluation, "
    "operators, or annotation:NAME.  [default: the first of these that repeats; evaluations and calls give way to an "
    "optimizer's steps that are still to come]",
)
@click.option("--once", is_flag=True, help="Never run a script twice, even if its steps then cannot be found or timed.")
@click.option(
    "--check-clock",
    is_flag=True,
    help="Run a script once more with nothing but a clock at the same boundaries, and show both step times.",
)
@click.option("--resume", is_flag=True, help="Run only what the output directory has no result of yet.")
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace the results in the output directory once the first new ones are there; files that opscope did not "
    "write stay.",
)
@redaction_options
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    help="Fixed sweeps into sub-folders: quick (batch 1 8, length 128), or comprehensive (quick, then batch 1 4 8 16 "
    "with length 128 256 512 into full).",
)
@click.option(
    "--nproc",
    type=_POSITIVE,
    metavar="N",
    help="Start a script as N ranks on this machine, with torchrun, and measure the same steps on all of them. For "
    "other launchers, put -- and their command in place of the script.",
)
@click.option(
    "--in-process", is_flag=True, help="Run everything in this process: easier to debug, nothing is isolated."
)
@format_option
def command(
    target: str,
    arguments: tuple[str, ...],
    own: tuple[str, ...],
    preset: str | None,
    nproc: int | None,
    output_dir: Path | None,
    timeout: float | None,
    run_on: bool,
    resume: bool,
    overwrite: bool,
    redact: tuple[str, ...],
    keep_arguments: bool,
    in_process: bool,
    output_format: str,
    **settings: Any,
) -> None:
    """Profile a target; see ``_HELP``."""
    launch = launch_named(target, arguments, nproc)
    if launch is not None:
        target, arguments = launch.script, launch.arguments
        _check_job(settings, resume=resume)
    values, options = values_of(_given(target, settings), own), _capture_options(settings)
    _check_script(target, arguments, run_on=run_on, in_process=in_process)
    redactor = redactor_of(redact, keep_arguments=keep_arguments)
    written = _written(values, redactor)
    # Values that are written down as *** reach the workload apart from what is written.
    actual = {name: result[0] for name, result in values.items() if result != written[name]}
    if is_script(target):
        # The arguments count as one setting, so runs with other arguments are told apart.
        written["arguments"], actual["arguments"] = (shlex.join(redactor.arguments(arguments)),), shlex.join(arguments)
        written |= {"run_on": (True,)} if run_on else {}
    if resume and overwrite:
        raise UsageError("--resume keeps what is there, and --overwrite replaces it: choose one")
    if resume and output_dir is None:
        raise UsageError("--resume goes on with a run: name its folder with --output-dir")
    sweeps = _sweeps(target, written, preset)
    if launch is not None and len(sweeps[0].configurations) != 1:
        raise UsageError("the ranks of a job run one configuration: give each option one value")
    if in_process and timeout is not None:
        raise UsageError("--timeout ends a process, and --in-process has none to end: leave one of them out")
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentLacksError(
            "profiling needs PyTorch, which is not installed: pip install 'opscope[torch]' (or your own build of it). "
            "Results that exist can be analysed without: opscope export --reports RUN_DIRECTORY"
        )
    command_line = ("opscope", *redactor.arguments(sys.argv[1:]))
    if launch is not None:
        from opscope.sweep.job import JobPlan

        job = JobPlan(launch, Path(), new_manifest(sweeps[0].configurations, options, command_line), timeout, redactor)
        sys.exit(_exit_code(_of_job(job, output_dir, output_format, overwrite=overwrite)))
    measurer = _measurer(target, timeout, actual, in_process=in_process)
    plans = [
        _planned(
            _directory(output_dir, sweep.folder, resume=resume, overwrite=overwrite),
            new_manifest(sweep.configurations, options, command_line),
            measurer,
            redactor,
            resume=resume,
        )
        for sweep in sweeps
    ]
    # Made only now: a command that is refused above leaves no folder behind.
    root = new_folder(target_name(target)) if output_dir is None else None
    finished = []
    try:
        with stopped_like_ctrl_c() as signals:
            for sweep, plan in zip(sweeps, plans, strict=True):
                placed = plan if root is None else replace(plan, directory=RunDirectory(root / sweep.folder))
                finished.append((placed.directory, _run(placed)))
    except KeyboardInterrupt as interrupt:
        where = "" if root is None else f" --output-dir {root if rank_here() is None else root.parent}"
        say(f"opscope: interrupted; what is done is kept, and the same command with --resume{where} goes on")
        sys.exit(interrupted_code(interrupt))
    if root is not None and any(entry.measured for _, manifest in finished for entry in manifest.entries):
        point_latest(root)
    from opscope.cli.results import print_sweep

    print_sweep(finished, output_format)
    code = _exit_code([manifest for _, manifest in finished], target, arguments)
    sys.exit(128 + signals[0] if signals else code)  # it came once everything was measured


def _check_job(settings: Mapping[str, Any], *, resume: bool) -> None:
    if resume:
        raise UsageError("--resume goes on with a sweep: a job is measured as a whole")
    if settings["check_clock"]:
        raise UsageError("--check-clock runs one process with a clock alone: leave it out for a job")


def _of_job(job: "JobPlan", output_dir: Path | None, output_format: str, *, overwrite: bool) -> list[Manifest]:
    """Profile the ranks of a job into their folders; return their manifests."""
    from opscope.cli.profile_job import Replaced, job_folder, profile_job

    replaced = Replaced({}) if output_dir is None else job_folder(output_dir, job.entry, overwrite=overwrite)
    root = new_folder(target_name(job.entry.configuration.target)) if output_dir is None else output_dir
    try:
        root.mkdir(parents=True, exist_ok=True)
        with stopped_like_ctrl_c():
            manifests = profile_job(replace(job, folder=root), replaced, output_format)
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write to {root}: {error.strerror or error}") from error
    except KeyboardInterrupt as interrupt:
        with contextlib.suppress(OSError):
            root.rmdir()  # if it is empty, as a new one is
        say("opscope: interrupted; all ranks were ended, and nothing of them is kept")
        sys.exit(interrupted_code(interrupt))
    if output_dir is None and any(entry.measured for manifest in manifests for entry in manifest.entries):
        point_latest(root)
    return manifests


def _measurer(target: str, timeout: float | None, actual: Mapping[str, Value], *, in_process: bool) -> "Measurer":
    """Return what measures. The process that workers are forked from starts to import at once, while this one does."""
    if in_process:
        from opscope.sweep.runner import Here

        return Here(actual)
    if is_script(target):
        return InProcess(timeout, actual)
    warm = warm_process(target)
    click.get_current_context().call_on_close(warm.close)
    return InProcess(timeout, actual, warm=warm)


class _Sweep(Struct, frozen=True):
    """A sweep and the folder that it has in that of the run."""

    folder: str
    configurations: tuple[Configuration, ...]


def _written(values: Mapping[str, tuple[Value, ...]], redactor: Redactor) -> dict[str, tuple[Value, ...]]:
    """Return the values as they are written down.

    Raises:
        UsageError: a secret is swept over: its values would stand in the names of files.
    """
    written = redactor.settings(values)
    for name, result in values.items():
        if len(result) > 1 and result != written[name]:
            raise UsageError(
                f"--set {name} looks like a secret, and a sweep writes its values into names of files: give it one "
                "value, or --keep-arguments"
            )
    return written


# Options that scripts decide themselves, and those that only scripts take.
_NOT_OF_SCRIPTS: Final = ("device", "mode", "wait", "warmup", "repeat", "preset")
_OF_SCRIPTS: Final = ("steps", "once", "check_clock")


def _check_script(target: str, arguments: tuple[str, ...], *, run_on: bool, in_process: bool) -> None:
    refuse_others_options(target, arguments, not_of_scripts=_NOT_OF_SCRIPTS, of_scripts=_OF_SCRIPTS)
    if run_on and not is_script(target):
        raise UsageError("--run-on is for scripts: other targets end with their last step")
    if in_process and is_script(target):
        raise UsageError("a script is run in a process of its own, as python would run it: leave out --in-process")


def _given(target: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings that count for a target: the mode of a script is its own."""
    return {**settings, "mode": None} if is_script(target) else settings


def _capture_options(settings: dict[str, Any]) -> CaptureOptions:
    device = settings["device"]
    if not re.fullmatch(DEVICE_NAME, device):
        raise UsageError(f"--device takes auto, cpu, cuda or cuda:N, not {device!r}")
    return CaptureOptions(
        device=device,
        activities=tuple(dict.fromkeys(settings["activities"])),
        schedule=Schedule(settings["wait"], settings["warmup"], settings["active"], settings["repeat"]),
        with_stack=settings["with_stack"],
        profile_memory=settings["profile_memory"],
        benchmark=not settings["skip_benchmark"],
        steps=settings["steps"],
        once=settings["once"],
        quick=settings["quick"],
        check_clock=settings["check_clock"],
        memory=settings["memory"],
    )


def _sweeps(target: str, values: Mapping[str, tuple[Value, ...]], preset: str | None) -> list[_Sweep]:
    if preset is None:
        return [_Sweep("", expand(target, {**default_sizes(target), **values}))]
    for name in values:
        if is_size(name):
            raise UsageError(
                f"--preset {preset} fixes the sizes: leave out --batch-sizes and --seq-lens, or the preset"
            )
    return [_Sweep(sweep.folder, expand(target, {**sweep.sizes, **values})) for sweep in PRESETS[preset]]


def _directory(output_dir: Path | None, folder: str, *, resume: bool, overwrite: bool) -> "_Place":
    """Return the directory that the user named, and what of it may be replaced; nothing is made or removed yet.

    Raises:
        UsageError: it holds something, and the user said neither --resume nor --overwrite.
    """
    if output_dir is None:
        return _Place(RunDirectory(Path()), None)
    directory = RunDirectory(named_folder(output_dir / folder))
    if not resume and not overwrite:
        directory.refuse_if_used(
            "choose another --output-dir, go on with --resume, or replace the results with --overwrite"
        )
    used = overwrite and directory.path.is_dir() and any(directory.path.iterdir())
    return _Place(directory, directory.replaceable() if used else None)


class _Place(Struct, frozen=True):
    """Where a sweep goes, and the manifest of the results there that give way to it."""

    directory: RunDirectory
    replaced: Manifest | None


def _planned(place: _Place, manifest: Manifest, measurer: "Measurer", redactor: Redactor, *, resume: bool) -> "Plan":
    from opscope.sweep.runner import Plan

    manifest = resumed(manifest, place.directory) if resume else manifest
    if place.replaced is not None:
        place.directory.refuse_foreign(place.replaced, manifest.entries)
    return Plan(manifest, place.directory, measurer, place.replaced, redactor)


def _run(plan: "Plan") -> Manifest:
    from opscope.sweep.runner import run_sweep

    plan.directory.create()
    with SweepProgress(plan.manifest) as progress:
        return run_sweep(plan, progress)


def _exit_code(manifests: Sequence[Manifest], target: str = "", arguments: Sequence[str] = ()) -> int:
    from opscope.sweep.runner import failed_entries, worthless_entries

    failed = [entry for manifest in manifests for entry in failed_entries(manifest)]
    kinds = {entry.failure.kind for entry in failed if entry.failure}
    for kind, code in _FATAL_EXIT_CODES.items():
        if kind in kinds:
            return code
    if failed:
        say_why_failed(target, arguments, [entry.failure.message for entry in failed if entry.failure])
    codes = {entry.failure.exit_code for entry in failed if entry.failure}
    if len(codes) == 1 and (of_script := codes.pop()) is not None:
        return of_script
    worthless = any(worthless_entries(manifest) for manifest in manifests)
    return 1 if failed or worthless else 0
