"""``opscope kernel ptx TARGET``: PTX and SASS of kernels of Triton and torch.compile."""

from pathlib import Path

import click

from opscope.base.errors import UsageError
from opscope.base.files import refuse_output
from opscope.cli.listing import echo_listing
from opscope.cli.options import WORDS, Positive, format_option, output_option, overwrite_option
from opscope.record.bench import ListingRequest
from opscope.workbench.jobs.bench_process import compiled_kernels


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.option(
    "--inductor", is_flag=True, help="Compile the function with torch.compile and show the kernels that it generates."
)
@click.option("--inputs", help="The function that makes the arguments.  [default: inputs in the file]")
@click.option(
    "--signature", type=WORDS, help="Types of the kernel's arguments: *fp32,*fp32,i32. With them no GPU is needed."
)
@click.option(
    "--constant",
    "constants",
    multiple=True,
    metavar="NAME=VALUE",
    help="The value of a constexpr argument. May be repeated.",
)
@click.option("--arch", help="Compile for this architecture: sm_90.  [default: the GPU of this machine]")
@click.option(
    "--emit", type=click.Choice(["ptx", "sass"]), default="ptx", show_default=True, help="Which code to show."
)
@click.option("--kernel", help="Show only kernels whose name contains this.")
@output_option("Write it to a file.")
@overwrite_option("the file of --output")
@click.option(
    "--timeout",
    type=Positive(1),
    default=600.0,
    show_default=True,
    help="End the compilation after this many seconds.",
)
@format_option
def command(
    target: str,
    inductor: bool,
    inputs: str | None,
    signature: tuple[str, ...] | None,
    constants: tuple[str, ...],
    arch: str | None,
    emit: str,
    kernel: str | None,
    output: Path | None,
    overwrite: bool,
    timeout: float,
    output_format: str,
) -> None:
    """Show the PTX or the machine code of kernels that Python code launches, under the lines of its source.

    TARGET is file.py:function or package.module:function: it is called once with what the file's function inputs
    returns, on the GPU here. Or it is a kernel of Triton, which --signature compiles without calling it. opscope kernel
    build --emit does the same for a CUDA source.
    """
    pairs = [constant.partition("=") for constant in constants]
    if any(not separator for _, separator, _ in pairs):
        raise UsageError("--constant is written as NAME=VALUE: --constant BLOCK=1024")
    if inductor and signature is not None:
        raise UsageError("--inductor compiles a function, --signature a kernel of Triton: give one of them")
    if (constants or arch) and signature is None:
        raise UsageError("--constant and --arch go with --signature; a function that is called decides them itself")
    if output is not None:
        refuse_output(output, [Path(target.partition(":")[0])], overwrite=overwrite)
    request = ListingRequest(
        target=target,
        inputs=inputs,
        inductor=inductor,
        signature=signature,
        constants={name: value for name, _, value in pairs},
        arch=arch,
    )
    echo_listing(compiled_kernels(request, emit, timeout), kernel, output, output_format)
