"""``opscope kernel launch``: check a launch configuration, and how it fills the device."""

import sys

import click

from opscope.analysis.costs.occupancy import LaunchConfiguration
from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.text import printable
from opscope.cli.emit import Output, emit
from opscope.cli.options import format_option
from opscope.cli.terminal import echo_lines
from opscope.documents.build import LaunchDocument
from opscope.documents.machine import GpuFacts
from opscope.knowledge.devices import capability_of
from opscope.machine.driver import driver
from opscope.render.blocks import Bullets, Section
from opscope.report.build_document import build_launch, launch_lines, launch_on, launch_values
from opscope.report.gpus_document import chosen_gpus, gpus_here, known_gpus


class _Dimensions(click.ParamType[tuple[int, int, int]]):
    name = "x[,y[,z]]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int, int]:
        """Read ``256`` or ``16,16,4``."""
        if isinstance(value, tuple):
            return value
        parts = str(value).lower().replace("x", ",").split(",")
        if not 1 <= len(parts) <= 3 or not all(part.strip().isdecimal() for part in parts):
            self.fail(f"{value!r} are not dimensions", param, ctx)
        # Sides that are not named are 1.
        x, y, z = (int(part) for part in (*parts, "1", "1")[:3])
        return (x, y, z)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--grid", type=_Dimensions(), required=True, help="Number of thread blocks: 4096, or 64,64,1.")
@click.option("--block", type=_Dimensions(), required=True, help="Threads per block: 256, or 16,16.")
@click.option("--registers", type=click.IntRange(min=1), default=32, show_default=True, help="Registers per thread.")
@click.option(
    "--shared",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Bytes of shared memory per block, static and dynamic together.",
)
@click.option("--gpu", help="Check for this model: 'NVIDIA H200'.  [default: the first GPU of this machine]")
@click.option("--arch", help="Check for this compute capability: sm_90.")
@format_option
def command(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    registers: int,
    shared: int,
    gpu: str | None,
    arch: str | None,
    output_format: str,
) -> None:
    """Check a launch configuration: whether the device accepts it, its occupancy and what limits that, waves and tail.

    opscope kernel build shows the registers and the shared memory of a kernel. Exits with code 1 if the kernel cannot
    be launched.
    """
    launch = LaunchConfiguration(grid, block, registers, shared)
    document = _checked(launch, gpu, arch)
    lines = tuple(launch_lines(document))
    output = Output(
        document=lambda: document,
        values=lambda: launch_values(document),
        sections=lambda: (Section(("Launch",), (Bullets(tuple((line,) for line in lines)),)),),
        text=lambda: echo_lines(lines),
    )
    emit(output, output_format)
    if not document.can_launch:
        sys.exit(1)


def _checked(launch: LaunchConfiguration, gpu: str | None, arch: str | None) -> LaunchDocument:
    if arch is not None:
        if gpu is not None:
            raise UsageError("--gpu and --arch say different things: give one of them")
        number = capability_of(arch)
        if number is None:
            raise UsageError(f"{arch!r} is not a compute capability; an example is sm_90")
        return build_launch(launch, f"any sm_{number.replace('.', '')}", number, None)
    return launch_on(launch, _model(gpu) if gpu is not None else _first_here())


def _model(name: str) -> GpuFacts:
    result = chosen_gpus(known_gpus(), [name], None) if name.strip() else ()
    # A name that a model ends with is that model, although others contain it too. A name without a number is a line of
    # models: rtx.
    has_number = any(character.isdigit() for character in name)
    exact = [model for model in result if has_number and f" {model.name}".lower().endswith(f" {name}".lower())]
    if len(exact or result) != 1:
        names = ", ".join(printable(model.name) for model in result) or "no model of opscope gpus"
        raise UsageError(f"{name!r} may be: {names}")
    return (exact or list(result))[0]


def _first_here() -> GpuFacts:
    here = gpus_here(driver())
    if not here.gpus:
        raise EnvironmentLacksError(f"{here.problem}; --gpu or --arch names what to check for")
    return here.gpus[0]
