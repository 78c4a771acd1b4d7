"""``opscope show TRACE#ADDRESS``: single values of a trace's document, with what they mean. Needs no PyTorch."""

from pathlib import Path
from threading import Event

import click

from opscope.base.errors import UsageError
from opscope.base.stages import Stage, stage
from opscope.cli.options import format_option
from opscope.cli.reading import gpu_option, input_option, traces_of
from opscope.cli.startup import import_libraries, tune_for_one_analysis
from opscope.cli.trust import Doubted, damage_option, end_with
from opscope.knowledge.devices import Device
from opscope.runs.inputs import measured_of


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("addresses", metavar="TRACE#ADDRESS [ADDRESS]...", nargs=-1, required=True)
@click.option(
    "--step-time",
    type=click.FloatRange(min=0, min_open=True),
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

    An address goes from field to field: bound, devices/0/busy_ns, operators/aten::mm/calls,
    findings/dispatch_bound/saving_ns/low. Entries of lists are named by their id or name, or by their number from 1 on.
    Further addresses are of the same trace.
    """
    path, hash_sign, first = addresses[0].partition("#")
    if not hash_sign or not path:
        raise UsageError(f"{addresses[0]}: name a trace, # and an address, such as trace.json.gz#bound")
    tune_for_one_analysis()
    libraries_imported = Event()
    traces = traces_of([Path(path)], max_input, [], libraries_imported)
    import_libraries(libraries_imported)
    with stage(Stage.IMPORT):
        from opscope.cli.emit import Output, emit
        from opscope.documents.brief import ShownDocument
        from opscope.knowledge.native_functions import NativeFunctions
        from opscope.render.blocks import Name, Section, Table
        from opscope.report.addresses import shown
        from opscope.report.shown import shown_section
        from opscope.report.trace_document import build_trace_document

        shipped = NativeFunctions.shipped()
    (file, trace), *others = list(traces)
    if others:
        raise UsageError(f"{path} has {len(others) + 1} traces: name one, such as {file}")
    measured, functions = measured_of(file, trace, shipped, step_time_ms=step_time, gpu=gpu)
    whole = build_trace_document(measured, functions)
    document = ShownDocument(trace=path, values=tuple(shown(whole, one) for one in (first, *addresses[1:])))
    cells = tuple((Name(one.address), Name(one.text), one.means or "") for one in document.values)
    table = Table(("address", "value", "means"), cells)
    sections = tuple(shown_section(one) for one in document.values)
    emit(
        Output(document=lambda: document, values=lambda: table, sections=lambda: sections or (Section(("",)),)),
        output_format,
    )
    end_with((Doubted.of(str(file), measured.trust),), told=False, allow_damaged=allow_damaged)
