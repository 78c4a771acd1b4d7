"""``opscope kernel ptx TARGET``: PTX and SASS of kernels of Triton and torch.compile."""

from pathlib import Path

import click
from msgspec.structs import replace

from opscope.base.errors import UsageError
from opscope.base.files import refuse_output, write_output
from opscope.base.text import printable
from opscope.cli.options import WORDS, Positive, format_option, output_option, overwrite_option
from opscope.cli.say import say, show
from opscope.documents.build import ListingDocument
from opscope.record.bench import ListingRequest
from opscope.record.codec import encode
from opscope.report.build_document import listing_lines
from opscope.workbench.jobs.listing_process import compiled_kernels

# ---------------------------------------------------------------- listings


def echo_listing(document: ListingDocument, kernel: str | None, output: Path | None, output_format: str) -> None:
    """Show the kernels of a listing.

    Args:
        document: all of them.
        kernel: a part of the names of those to show; None shows all.
        output: a file to write to; None prints.
        output_format: ``json``, or anything else for text.

    Raises:
        UsageError: no kernel has such a name, or there are no kernels.
        EnvironmentLacksError: the file cannot be written.
    """
    results = tuple(one for one in document.kernels if kernel is None or kernel in one.name or kernel == one.symbol)
    if not results:
        names = ", ".join(one.name for one in document.kernels[:10])
        raise UsageError(
            f"no kernel's name holds {kernel!r}; there are: {names}"
            if document.kernels
            else f"{document.origin} has no kernels"
        )
    document = replace(document, kernels=results)
    if output_format == "json":
        content = encode(document)
    else:
        lines = "\n\n".join("\n".join(map(printable, listing_lines(one))) for one in results)
        content = f"{lines}\n".encode()
    if output is None:
        show(content)
    else:
        write_output(output, content)
        say(f"opscope: written to {printable(str(output))}")


# ---------------------------------------------------------------- the command


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
