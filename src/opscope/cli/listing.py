"""Shows listings of kernels: on the terminal, into a file, or as JSON."""

from pathlib import Path

from msgspec.structs import replace

from opscope.base.errors import UsageError
from opscope.base.files import write_output
from opscope.base.text import printable
from opscope.cli.say import say, show
from opscope.documents.build import ListingDocument
from opscope.record.codec import encode
from opscope.report.build_document import listing_lines


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
