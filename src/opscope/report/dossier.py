"""The dossier of an operator: statements from its shapes, its launches and, where there are any, its counters."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

import polars as pl

from opscope.analysis.bounds import BoundKind
from opscope.analysis.launch_shapes import LaunchShape, rows_of
from opscope.analysis.occupancy import Occupancy, dimensions, occupancy_of
from opscope.analysis.parallelism import Parallelism, RecordedCall, parallelism
from opscope.errors import OpscopeError, UsageError
from opscope.knowledge.kernels.decode import decode
from opscope.knowledge.kernels.decoded import FP32_CORES, DecodedKernel
from opscope.knowledge.kernels.names import base_name
from opscope.knowledge.kernels.patterns import Pattern, pattern_of
from opscope.model import DeviceProperties
from opscope.record import Counters, OperatorCall
from opscope.report.dossier_document import Dossier, DossierDocument
from opscope.report.explain import Lookup
from opscope.report.findings import Basis, Findings, Statement
from opscope.units import format_bytes, format_count, format_ns

_NOT_ASKED = "hardware counters were not asked for"
_STALLS_SHOWN = 3
_UNNAMED = re.compile(r"^(?:\w+ )?[\w:<]*unnamed>::")  # anonymous namespaces, as Nsight Compute writes (and cuts) them
Measure = Callable[[OperatorCall], tuple[Counters, ...]]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a call was given, as JSON text; the fields are columns of `Analysis.launch_shapes`."""

    input_dims: str | None = None
    input_types: str | None = None
    input_strides: str | None = None
    concrete_inputs: str | None = None


@dataclass(frozen=True)
class _Evidence:
    """What the statements on one operator rest on.

    ``call_ns`` is its mean device time per call with these inputs, ``kernels`` how many different ones it launches.
    """

    call_ns: float | None
    kernels: int
    share: float | None
    parallelism: Parallelism | None
    launch: LaunchShape | None
    decoded: DecodedKernel | None
    pattern: Pattern | None
    occupancy: Occupancy | None
    device: DeviceProperties | None
    counters: tuple[Counters, ...]
    launch_bound: bool


def build_dossier(lookup: Lookup, top: int, measure: Measure | None = None) -> DossierDocument:
    """Build the dossiers of the operators that took the most device time.

    Args:
        lookup: with a trace.
        top: how many operators.
        measure: replays a call and reads hardware counters; None to leave them out.

    Raises:
        UsageError: there is no trace.
    """
    analysis = lookup.analysis
    if analysis is None:
        raise UsageError("a dossier needs a trace")
    names = analysis.operators.filter(pl.col("activities") > 0)["name"].head(top).to_list()
    return DossierDocument(
        trace=lookup.trace_name or analysis.source.path,
        bound=f"{lookup.step_bound.kind}. {lookup.step_bound.sentence}",
        operators=tuple(Dossier(lookup.explain(name), findings_of(lookup, name, measure)) for name in names),
    )


def findings_of(lookup: Lookup, operator: str, measure: Measure | None = None) -> Findings:
    """Collect what is known of an operator's inputs that took most of its time.

    Args:
        lookup: with a trace.
        operator: its name in the trace.
        measure: replays a call and reads hardware counters; None to leave them out.
    """
    rows = lookup.launches_of(operator)
    columns = [field.name for field in fields(_Inputs)]
    costs = rows.group_by(columns).agg(pl.col("total_ns").sum())
    costs = costs.sort("total_ns", "input_dims", descending=True).drop("total_ns")
    inputs = _Inputs(*costs.row(0)) if costs.height else _Inputs()
    same = (pl.col(name).eq_missing(pl.lit(getattr(inputs, name))) for name in columns)
    kernels = rows.filter(pl.all_horizontal(same)).filter(pl.col("kind") == "kernel")
    counters, reason = _counters(lookup, operator, inputs, measure)
    first = kernels["name"][0] if kernels.height else None
    evidence = _evidence(lookup, operator, inputs, kernels, _of_kernel(counters, first))
    if counters and not evidence.counters:
        reason = "the replay ran other kernels than the trace: their counters are listed, no statement rests on them"
    found = evidence.parallelism
    return Findings(
        inputs=inputs.input_dims,
        kernel=None if evidence.launch is None else evidence.launch.name,
        parallel=dict(found.parallel) if found else {},
        reduced=dict(found.reduced) if found else {},
        parallelism=tuple(_parallelism(evidence)),
        coverage=tuple(_coverage(evidence)),
        resources=tuple(_resources(evidence)),
        memory_access=tuple(_memory_access(evidence)),
        synchronisation=tuple(_synchronisation(evidence)),
        gains=tuple(_gains(evidence)),
        counters=counters,
        counters_reason=reason,
    )


def _evidence(
    lookup: Lookup,
    operator: str,
    inputs: _Inputs,
    kernels: pl.DataFrame,
    counters: tuple[Counters, ...],
) -> _Evidence:
    analysis = lookup.analysis
    assert analysis is not None
    launch = next(rows_of(kernels), None)
    call = RecordedCall.read(inputs.input_dims, inputs.input_types, inputs.concrete_inputs, inputs.input_strides)
    category = str(lookup.classifier.classify(operator).category)
    decoded = decode(launch.name) if launch else None
    devices = {device.index: device for device in analysis.trace.devices}
    device = devices.get(launch.device) if launch and launch.device is not None else None
    cost = analysis.operators.filter(pl.col("name") == operator)["self_device_ns"].sum()
    return _Evidence(
        call_ns=None if launch is None else float(kernels["total_ns"].sum()) / launch.operator_calls,
        kernels=kernels["name"].n_unique(),
        share=float(cost / analysis.accounting.activities_ns) if analysis.accounting.activities_ns else None,
        parallelism=None if call is None else parallelism(operator, category, call),
        launch=launch,
        decoded=decoded,
        pattern=pattern_of(decoded.operation) if decoded else None,
        occupancy=occupancy_of(launch, device) if launch else None,
        device=device,
        counters=counters,
        launch_bound=lookup.step_bound.kind is BoundKind.LAUNCH,
    )


def _counters(
    lookup: Lookup, operator: str, inputs: _Inputs, measure: Measure | None
) -> tuple[tuple[Counters, ...], str | None]:
    """Replay the operator with these inputs. What does not work is a reason, not an error."""
    if measure is None:
        return (), _NOT_ASKED
    if inputs.input_dims is None or inputs.input_types is None:
        return (), "the trace does not record the operator's inputs"
    native = lookup.explain(operator).native_function
    overload = native.name.partition(".")[2] if native else ""
    call = OperatorCall(
        operator,
        overload,
        inputs.input_dims,
        inputs.input_types,
        inputs.input_strides,
        inputs.concrete_inputs,
        lookup.precision,
    )
    try:
        return measure(call), None
    except OpscopeError as error:
        return (), str(error)


def _of_kernel(counters: tuple[Counters, ...], name: str | None) -> tuple[Counters, ...]:
    """Return the counters of one kernel: statements are about the kernel that took most of the time.

    Nsight Compute writes arguments in its own way, so the function's name is what can be compared.
    """
    return tuple(one for one in counters if name is not None and _function(one.kernel) == _function(name))


def _function(name: str) -> str:
    return base_name(_UNNAMED.sub("", name)).rpartition("::")[2]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit if count != 1 else unit.replace('elements', 'element').replace('rows', 'row')}"


def _by_name(dimensions_of: Mapping[str, int]) -> str:
    return f" ({_sizes(dimensions_of)})" if len(dimensions_of) > 1 else ""


def _sizes(dimensions_of: Mapping[str, int]) -> str:
    return " x ".join(f"{size:,} {name}" for name, size in dimensions_of.items())


def _parallelism(evidence: _Evidence) -> Iterator[Statement]:
    found = evidence.parallelism
    if found is None:
        yield Statement("Schema and recorded shapes do not tell how this operator's work divides.", Basis.DERIVED)
        return
    text = (
        f"Independent of each other: {_counted(found.elements, found.unit)}{_by_name(found.parallel)}; {found.reason}."
    )
    yield Statement(text, Basis.DERIVED)
    if found.reduced:
        count = math.prod(found.reduced.values())
        yield Statement(f"Each combines {count:,} values ({_sizes(found.reduced)}).", Basis.DERIVED)


def _coverage(evidence: _Evidence) -> Iterator[Statement]:
    launch, found = evidence.launch, evidence.parallelism
    grid, block = (dimensions(launch.grid), dimensions(launch.block)) if launch else (None, None)
    if grid is None or block is None:
        yield Statement("The trace does not record the launch geometry.", Basis.MEASURED)
        return
    blocks, threads = math.prod(grid), math.prod(block)
    text = f"{blocks:,} thread block{'s' * (blocks > 1)} ({_by(grid)}) of {threads:,} threads ({_by(block)})."
    yield Statement(text, Basis.MEASURED)
    if found is not None and found.elements:
        tiles = list(_tiles(evidence, found, grid))
        if not tiles and evidence.kernels == 1:
            per_block, per_thread = found.elements / blocks, found.elements / (blocks * threads)
            text = f"{_number(per_block)} {found.unit} per thread block, {_number(per_thread)} per thread."
            yield Statement(text, Basis.DERIVED)
        yield from tiles
    if evidence.occupancy and evidence.occupancy.waves is not None:
        waves = evidence.occupancy.waves
        shown = f"{waves:.2f}" if waves >= 0.01 else "Under 0.01"
        used = f"{shown} waves: the device holds {blocks / waves:,.0f} of these thread blocks at a time."
        yield Statement(used, Basis.DERIVED)


def _by(sizes: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in sizes)


def _tiles(evidence: _Evidence, found: Parallelism, grid: tuple[int, int, int]) -> Iterator[Statement]:
    """Compare the grid with the tiles that the result divides into."""
    tile = evidence.decoded.tile if evidence.decoded else None
    if tile is None or "columns" not in found.parallel or tile[0] is None or tile[1] is None:
        return
    blocks, batch = math.prod(grid), found.parallel.get("batch", 1)
    rows, columns = found.parallel["rows"], found.parallel["columns"]
    # Libraries differ in which side of the result a tile's first number goes along: the grid decides, if it can.
    ways = [(-(-rows // tile[0]), -(-columns // tile[1])), (-(-rows // tile[1]), -(-columns // tile[0]))]
    fitting = [way for way in ways if set(way) <= {*grid, 1} and math.prod(way) * batch == blocks]
    equal = {math.prod(way) for way in ways if blocks % (math.prod(way) * batch) == 0}
    name = f"{tile[0]} x {tile[1]}"
    if len(set(fitting)) == 2:
        text = f"One thread block per tile of {name}: {math.prod(fitting[0]) * batch:,} tiles."
        yield Statement(text, Basis.DERIVED)
    elif fitting:
        down, across = fitting[0]
        text = f"One thread block per tile of {name}: {down:,} tiles along the rows by {across:,} along the columns"
        yield Statement(f"{text}{f', {batch:,} times' if batch > 1 else ''}.", Basis.DERIVED)
    elif equal:
        count = max(equal) * batch
        text = f"The result divides into {count:,} tiles of {name}: {blocks // count} thread block(s) per tile."
        yield Statement(text, Basis.DERIVED)
    else:
        counts = " or ".join(sorted({f"{math.prod(way) * batch:,}" for way in ways}))
        text = (
            f"The result divides into {counts} tiles of {name}, which is not the grid: thread blocks may take several "
        )
        yield Statement(f"{text}tiles each, or the kernel pads the grid.", Basis.DERIVED)


def _resources(evidence: _Evidence) -> Iterator[Statement]:
    launch, found = evidence.launch, evidence.occupancy
    if launch is None or launch.registers_per_thread is None:
        yield Statement("The trace records neither registers nor shared memory.", Basis.MEASURED)
        return
    shared = format_bytes(launch.shared_memory_bytes)
    text = f"{format_count(launch.registers_per_thread)} registers per thread, {shared} shared memory per block."
    yield Statement(text, Basis.MEASURED)
    if found is not None:
        resident = f"{found.blocks_per_multiprocessor} blocks ({found.warps_per_multiprocessor} warps)"
        text = (
            f"{found.percent:.0f} % theoretical occupancy: {resident} per multiprocessor, limited by {found.limiter}."
        )
        yield Statement(text, Basis.DERIVED)
    for counters in evidence.counters[:1]:
        if counters.achieved_occupancy_percent is not None:
            text = f"{counters.achieved_occupancy_percent:.0f} % of the warps were active on average (counters)."
            yield Statement(text, Basis.MEASURED)


def _memory_access(evidence: _Evidence) -> Iterator[Statement]:
    found = evidence.parallelism
    if found and found.least_bytes and evidence.call_ns:
        rate = found.least_bytes / evidence.call_ns  # bytes per nanosecond are GB/s
        text = f"At least {format_bytes(found.least_bytes)} must be moved; in {format_ns(evidence.call_ns)} that is "
        yield Statement(f"{text}{_number(rate)} GB/s, from memory or the L2 cache.", Basis.DERIVED)
    for counters in evidence.counters[:1]:
        yield from _measured_access(counters)
    if evidence.decoded and evidence.decoded.vector_width:
        text = f"Each thread loads {evidence.decoded.vector_width} elements at a time, as the kernel's name says."
        yield Statement(text, Basis.DERIVED)
    if evidence.pattern:
        yield Statement(evidence.pattern.memory, Basis.GENERAL)


def _measured_access(counters: Counters) -> Iterator[Statement]:
    if counters.dram_read_bytes is not None and counters.dram_write_bytes is not None:
        text = (
            f"Device memory: {format_bytes(counters.dram_read_bytes)} read, {format_bytes(counters.dram_write_bytes)}"
        )
        used = counters.dram_throughput_percent
        share = "" if used is None else f", {used:.0f} % of its peak"
        yield Statement(f"{text} written{share} (counters, caches empty at the start).", Basis.MEASURED)
    for what, sectors in (
        ("load", counters.load_sectors_per_request),
        ("store", counters.store_sectors_per_request),
    ):
        if sectors:
            yield Statement(f"{sectors:.1f} sectors of 32 bytes per {what} of a warp (counters).", Basis.MEASURED)
    conflicts = (counters.shared_load_bank_conflicts or 0) + (counters.shared_store_bank_conflicts or 0)
    if counters.shared_load_bank_conflicts is not None:
        yield Statement(f"{conflicts:,.0f} bank conflicts in shared memory (counters).", Basis.MEASURED)


def _synchronisation(evidence: _Evidence) -> Iterator[Statement]:
    for counters in evidence.counters[:1]:
        if counters.stalls:
            shown = list(counters.stalls.items())[:_STALLS_SHOWN]
            reasons = ", ".join(f"{reason.replace('_', ' ')} {value:.2f}" for reason, value in shown)
            text = f"Warps waited most for (warps per issued instruction): {reasons} (counters)."
            yield Statement(text, Basis.MEASURED)
        if counters.threads_per_instruction is not None:
            text = f"{counters.threads_per_instruction:.1f} of 32 threads were active per instruction (counters)."
            yield Statement(text, Basis.MEASURED)
    if evidence.pattern:
        yield Statement(evidence.pattern.synchronisation, Basis.GENERAL)
    elif not evidence.counters:
        yield Statement("Nothing is known of this kernel's synchronisation.", Basis.GENERAL)


def _gains(evidence: _Evidence) -> Iterator[Statement]:
    if evidence.share is not None:
        text = f"At most {100 * evidence.share:.1f} % of the device sum, if it took no time at all."
        yield Statement(text, Basis.DERIVED)
    if evidence.launch_bound:
        text = "The step is launch-bound: a faster kernel alone does not shorten it; fewer launches do."
        yield Statement(text, Basis.DERIVED)
    found, decoded = evidence.parallelism, evidence.decoded
    if found and found.flop and evidence.call_ns:
        rate = found.flop / evidence.call_ns / 1000  # operations per nanosecond are GFLOP/s
        kernels = "" if evidence.kernels == 1 else f", over the {evidence.kernels} kernels of a call"
        shown = f"{_number(rate)} TFLOP/s" if rate >= 0.1 else f"{_number(1000 * rate)} GFLOP/s"
        yield Statement(f"It runs at {shown}{kernels}.", Basis.DERIVED)
    if decoded and decoded.unit == FP32_CORES and decoded.operation in ("gemm", "fprop", "dgrad", "wgrad"):
        text = (
            "It runs on the FP32 cores. TF32 (torch.set_float32_matmul_precision('high')) or bfloat16 use the Tensor "
        )
        yield Statement(f"{text}Cores, at lower precision.", Basis.GENERAL)
    if decoded and found and ("alignment in elements", "1") in decoded.details:
        yield _alignment(found)
    yield from _filling(evidence)
    if evidence.pattern:
        yield Statement(evidence.pattern.gain, Basis.GENERAL)


def _alignment(found: Parallelism) -> Statement:
    sides = [*found.parallel.values(), *found.reduced.values()]
    text = "The kernel takes operands of any alignment: sizes that are multiples of 8 elements allow a faster one."
    if all(side % 8 == 0 for side in sides):
        text = "The kernel takes operands of any alignment, though all sizes are multiples of 8: look at the strides."
    return Statement(text, Basis.GENERAL)


def _filling(evidence: _Evidence) -> Iterator[Statement]:
    launch, device = evidence.launch, evidence.device
    waves = evidence.occupancy.waves if evidence.occupancy else None
    grid = dimensions(launch.grid) if launch else None
    if waves is None or grid is None or device is None or device.multiprocessors is None:
        return
    if evidence.decoded and evidence.decoded.family == "NCCL":
        return  # it leaves the device to others on purpose
    blocks = math.prod(grid)
    if blocks < device.multiprocessors:
        text = f"It leaves {device.multiprocessors - blocks} of {device.multiprocessors} multiprocessors without work."
        yield Statement(text, Basis.DERIVED)
    elif waves > 1 and waves / math.ceil(waves) < 0.8:
        text = f"Its last wave is {100 * (waves - math.floor(waves)):.0f} % full: thread blocks of another size, or "
        yield Statement(f"{text}larger inputs, would use the device more evenly.", Basis.DERIVED)
