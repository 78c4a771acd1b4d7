"""``opscope profile TARGET``: measure a model over a sweep of sizes, write reports, compare."""

import contextlib
import importlib.util
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click

from opscope.cli.options import ListCommand, ListOf, format_option
from opscope.cli.progress import SweepProgress
from opscope.cli.results import print_sweep
from opscope.errors import EnvironmentLacksError, UsageError
from opscope.record import DEVICE_NAME, CaptureOptions, Configuration, Manifest, Schedule
from opscope.store import RunDirectory
from opscope.sweep.plan import PRESETS, Sizes, default_sizes, expand, leftovers, new_manifest, resumed
from opscope.sweep.runner import Plan, failed_entries, run_sweep, worthless_entries
from opscope.workloads.catalog import BUILT_IN

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_FATAL_EXIT_CODES = {"usage": 2, "environment": 3}
_POSITIVE = click.IntRange(min=1)
_COUNT = click.IntRange(min=0)

_TARGETS = "\n".join(f"\b\n  {name}: {entry.summary}" for name, entry in BUILT_IN.items())
_HELP = f"""Profile TARGET over a sweep of sizes and write reports.

TARGET is a built-in workload:

{_TARGETS}

or a function of yours, package.module:function or path/to/file.py:function, that returns a step (a callable without
arguments) or (module, example inputs). Parameters named batch_size, seq_len, image_size, hidden_size, layers,
attention, mode, dtype or device get the values of the options.

Each configuration runs in its own process. One that fails is recorded with its reason and the others go on; the exit
code is then 1, and also where a trace holds no work (no operator, or no GPU activity of a GPU workload).

\b
Examples:
  opscope profile bert --batch-sizes 1 8 16 --seq-lens 128 256
  opscope profile gpt2 --mode training --dtype bf16 --batch-sizes 4 --seq-lens 512
  opscope profile train.py:make_step --with-stack
"""


@click.command(cls=ListCommand, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.option("--batch-sizes", type=ListOf(_POSITIVE), help="Batch sizes to sweep over.")
@click.option("--seq-lens", type=ListOf(_POSITIVE), help="Sequence lengths to sweep over.")
@click.option("--hidden-size", type=_POSITIVE, help="Hidden size of the model.  [default: 768]")
@click.option("--layers", type=_POSITIVE, help="Number of layers.  [default: 12]")
@click.option("--image-size", type=_POSITIVE, help="Height and width of images.  [default: 224]")
@click.option(
    "--dtype",
    type=click.Choice([*_DTYPES, *_DTYPES.values()]),
    help="Data type: of the parameters in inference, of autocast in training.  [default: the model's own]",
)
@click.option("--attention", type=click.Choice(["eager", "sdpa"]), help="Attention implementation.  [default: sdpa]")
@click.option("--mode", type=click.Choice(["inference", "training"]), default="inference", show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Run the model through torch.compile.")
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
@click.option("--wait", type=_COUNT, default=1, show_default=True, help="Profiler schedule: steps left out.")
@click.option("--warmup", type=_COUNT, default=1, show_default=True, help="Profiler schedule: steps not kept.")
@click.option("--active", type=_POSITIVE, default=3, show_default=True, help="Profiler schedule: steps recorded.")
@click.option(
    "--repeat",
    type=_POSITIVE,
    default=1,
    show_default=True,
    help="Profiler schedule: cycles, one trace each.",
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
@click.option("--skip-benchmark", is_flag=True, help="Do not time unprofiled steps beside the profile.")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("profiling_results"),
    show_default=True,
    help="Where the results go.",
)
@click.option("--resume", is_flag=True, help="Run only what the output directory has no result of yet.")
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    help="Fixed sweeps into sub-folders: quick (batch 1 8, length 128), or comprehensive (quick, then batch 1 4 8 16 "
    "with length 128 256 512 into full).",
)
@click.option(
    "--in-process", is_flag=True, help="Run everything in this process: easier to debug, nothing is isolated."
)
@format_option
def command(
    target: str,
    batch_sizes: tuple[int, ...] | None,
    seq_lens: tuple[int, ...] | None,
    preset: str | None,
    output_dir: Path,
    resume: bool,
    in_process: bool,
    output_format: str,
    **settings: Any,
) -> None:
    """Profile a target; see ``_HELP``."""
    base, options = _base_configuration(target, settings), _capture_options(settings)
    sweeps = _sweeps(base, batch_sizes, seq_lens, preset, output_dir)
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentLacksError(
            "profiling needs PyTorch, which is not installed: pip install 'opscope[torch]' (or your own build of it). "
            "Results that exist can be analysed without: opscope report RUN_DIRECTORY"
        )
    finished = []
    try:
        with _stopped_like_ctrl_c():
            for directory, configurations in sweeps:
                manifest = new_manifest(configurations, options, ["opscope", *sys.argv[1:]])
                finished.append((directory, _run(directory, manifest, resume=resume, isolate=not in_process)))
    except KeyboardInterrupt as interrupt:
        click.echo("opscope: interrupted; what is done is kept, and the same command with --resume goes on", err=True)
        sys.exit(128 + (interrupt.number if isinstance(interrupt, _Stopped) else signal.SIGINT))
    print_sweep(finished, output_format)
    sys.exit(_exit_code([manifest for _, manifest in finished]))


class _Stopped(KeyboardInterrupt):
    """A signal other than Ctrl-C's asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _stopped_like_ctrl_c() -> Iterator[None]:
    """Let a closed terminal and a plain ``kill`` end the sweep as Ctrl-C does: workers ended, what is done kept."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise _Stopped(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup wants SIGHUP ignored
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _base_configuration(target: str, settings: dict[str, Any]) -> Configuration:
    return Configuration(
        target=target,
        mode=settings["mode"],
        dtype=_DTYPES.get(settings["dtype"], settings["dtype"]),
        image_size=settings["image_size"],
        hidden_size=settings["hidden_size"],
        layers=settings["layers"],
        attention=settings["attention"],
        compile=settings["compiled"],
        simplified=settings["simplified"],
        pretrained=settings["pretrained"],
    )


def _capture_options(settings: dict[str, Any]) -> CaptureOptions:
    device = settings["device"]
    if not DEVICE_NAME.fullmatch(device):
        raise UsageError(f"--device takes auto, cpu, cuda or cuda:N, not {device!r}")
    return CaptureOptions(
        device=device,
        activities=tuple(dict.fromkeys(settings["activities"])),
        schedule=Schedule(settings["wait"], settings["warmup"], settings["active"], settings["repeat"]),
        with_stack=settings["with_stack"],
        profile_memory=settings["profile_memory"],
        benchmark=not settings["skip_benchmark"],
    )


def _sweeps(
    base: Configuration,
    batch_sizes: tuple[int, ...] | None,
    seq_lens: tuple[int, ...] | None,
    preset: str | None,
    output_dir: Path,
) -> list[tuple[RunDirectory, tuple[Configuration, ...]]]:
    if preset is None:
        default = default_sizes(base.target)
        sizes = Sizes(
            default.batch_sizes if batch_sizes is None else batch_sizes,
            default.seq_lens if seq_lens is None else seq_lens,
        )
        return [(RunDirectory(output_dir), expand(base, sizes))]
    if batch_sizes is not None or seq_lens is not None:
        raise UsageError(f"--preset {preset} fixes the sizes: leave out --batch-sizes and --seq-lens, or the preset")
    return [(RunDirectory(output_dir / sweep.folder), expand(base, sweep.sizes)) for sweep in PRESETS[preset]]


def _run(directory: RunDirectory, manifest: Manifest, *, resume: bool, isolate: bool) -> Manifest:
    directory.create()
    if resume:
        manifest = resumed(manifest, directory)
    elif old := leftovers(directory, manifest):
        click.echo(
            f"{directory.path} keeps {len(old)} result files of another sweep, such as {old[0].name}",
            err=True,
        )
    with SweepProgress(manifest) as progress:
        return run_sweep(Plan(manifest, directory, isolate), progress)


def _exit_code(manifests: Sequence[Manifest]) -> int:
    failed = [entry for manifest in manifests for entry in failed_entries(manifest)]
    kinds = {entry.failure.kind for entry in failed if entry.failure}
    for kind, code in _FATAL_EXIT_CODES.items():
        if kind in kinds:
            return code
    worthless = any(worthless_entries(manifest) for manifest in manifests)
    return 1 if failed or worthless else 0
