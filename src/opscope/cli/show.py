"""``opscope show TRACE#ADDRESS``: single values of a trace's document, with what they mean. Needs no PyTorch."""

import os
from pathlib import Path
from threading import Event

import click

from opscope.base.errors import UsageError
from opscope.base.parts import Stage, stage
from opscope.cli.options import Positive, format_option
from opscope.cli.reading import Doubted, damage_option, end_with, gpu_option, input_option, traces_of
from opscope.cli.startup import import_libraries, tune_for_one_analysis
from opscope.knowledge.devices import Device
from opscope.runs.inputs import measured_of


def _asked(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the trace and the addresses that are asked for.

    A first word that names something by itself is the trace: its name may hold a number sign.

    Raises:
        UsageError: there is no address.
    """
    first, *others = words
    if others and (os.path.lexists(first) or "#" not in first):
        return first, tuple(others)
    # Names of traces and addresses may both hold number signs: the first one after something that exists counts.
    ends = [place for place, sign in enumerate(first) if sign == "#"]
    end = next((place for place in ends if os.path.lexists(first[:place])), ends[0] if ends else 0)
    if not end:
        raise UsageError(f"{first}: name a trace and an address, such as trace.json.gz#bound")
    return first[:end], (first[end + 1 :], *others)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("addresses", metavar="TRACE#ADDRESS [ADDRESS]...", nargs=-1, required=True)
@click.option(
    "--step-time",
    type=Positive(),
    metavar="MS",
    help="The time of a step without the profiler, in milliseconds. The verdict and all savings then refer to it.",
)
@gpu_option
@input_option
@damage_option
@format_option
def command(
    addresses: tuple[str, ...],
    step_time: float | None,
    gpu: Device | None,
    max_input: int,
    allow_damaged: bool,
    output_format: str,
) -> None:
    """Show values of what opscope analyze --format json prints, each with what the field stands for.

    TRACE ADDRESS, as two words, is the same. An address goes from field to field: bound, devices/0/busy_ns,
    operators/aten::mm/calls, findings/dispatch_bound/saving_ns/low. Entries of lists are named by their id or name
    where no other has it, or by their number from 1 on. Further addresses are of the same trace.
    """
    path, wanted = _asked(addresses)
    tune_for_one_analysis()
    libraries_imported = Event()
    traces = traces_of([Path(path)], max_input, [], libraries_imported)
    import_libraries(libraries_imported)
    with stage(Stage.IMPORT):
        from opscope.cli.emit import Output, emit
        from opscope.documents.findings import ShownDocument
        from opscope.knowledge.native_functions import NativeFunctions
        from opscope.render.blocks import Name, Table
        from opscope.report.addresses import shown_section, value_at
        from opscope.report.trace_document import build_trace_document

        shipped = NativeFunctions.shipped()
    file, trace = next(traces)
    if (other := next(traces, None)) is not None:
        raise UsageError(f"{path} has several traces: name one, such as {file.name} or {other[0].name}")
    measured, functions = measured_of(file, trace, shipped, step_time_ms=step_time, gpu=gpu)
    whole = build_trace_document(measured, functions)
    document = ShownDocument(trace=path, values=tuple(value_at(whole, one) for one in wanted))
    cells = tuple((Name(one.address), Name(one.text), one.means or "") for one in document.values)
    table = Table(("address", "value", "means"), cells)
    sections = tuple(shown_section(one) for one in document.values)
    emit(
        Output(document=lambda: document, values=lambda: table, sections=lambda: sections),
        output_format,
    )
    end_with((Doubted.of(str(file), measured.trust),), told=False, allow_damaged=allow_damaged)
