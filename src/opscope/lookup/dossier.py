"""The dossier of an operator: evidence is gathered here for `opscope.analysis.costs.statements`."""

from collections.abc import Callable, Iterator

import polars as pl
from msgspec import Struct
from msgspec.structs import fields

from opscope.analysis.costs import statements as rules
from opscope.analysis.costs.occupancy import occupancy_of, parallelism
from opscope.analysis.costs.statements import OperatorEvidence
from opscope.analysis.costs.sums import launch_shape_rows
from opscope.analysis.structure.arrays import costliest_first
from opscope.base.errors import OpscopeError, UsageError
from opscope.base.text import lazy_pattern
from opscope.documents.explain import Dossier, DossierDocument
from opscope.documents.statements import OperatorStatements, Statement
from opscope.documents.verdict import BoundKind
from opscope.knowledge.calls import RecordedCall
from opscope.knowledge.costs import cost_of
from opscope.knowledge.kernels.decode import decode_name
from opscope.knowledge.kernels.kinds import pattern_of
from opscope.knowledge.kernels.names import base_name
from opscope.lookup.explain import Lookup
from opscope.record.counters import Counters, OperatorCall
from opscope.render.sentences import worded

_NOT_ASKED = "hardware counters were not asked for"
# Anonymous namespaces, as Nsight Compute writes (and cuts) them.
_UNNAMED = lazy_pattern(r"^(?:\w+ )?[\w:<]*unnamed>::")
# Replays a call and returns the hardware counters of its kernels.
MeasureCounters = Callable[[OperatorCall], tuple[Counters, ...]]


class _Inputs(Struct, frozen=True):
    """The inputs of a call as JSON text; the fields are columns of `Analysis.launch_shapes`."""

    input_dims: str | None = None
    input_types: str | None = None
    input_strides: str | None = None
    concrete_inputs: str | None = None


def build_dossier(lookup: Lookup, top: int | None, measure: MeasureCounters | None = None) -> DossierDocument:
    """Build the dossiers of the operators that took the most device time.

    Args:
        lookup: with a trace.
        top: how many operators; None for all.
        measure: replays a call and reads hardware counters; None to leave them out.

    Raises:
        UsageError: there is no trace.
    """
    analysis = lookup.analysis
    if analysis is None:
        raise UsageError("a dossier needs a trace")
    names = analysis.operators.filter(pl.col("activities") > 0)["name"].to_list()[:top]
    return DossierDocument(
        trace=lookup.trace_name or analysis.source.path,
        bound=f"{lookup.step_bound.kind}. {lookup.step_bound.sentence}",
        failed_checks=lookup.failed_checks,
        actions=() if lookup.measured is None else lookup.measured.findings,
        operators=tuple(Dossier(lookup.explain(name), statements_on(lookup, name, measure)) for name in names),
    )


def statements_on(lookup: Lookup, operator: str, measure: MeasureCounters | None = None) -> OperatorStatements:
    """Collect what is known of an operator with those inputs that took most of its time.

    Args:
        lookup: with a trace.
        operator: its name in the trace.
        measure: replays a call and reads hardware counters; None to leave them out.
    """
    rows = lookup.sources.launches_of(operator)
    inputs = _most_expensive_inputs(rows)
    # What was not recorded is null, and equals null here.
    same = (pl.col(name).eq_missing(pl.lit(getattr(inputs, name))) for name in _columns())
    kernels = rows.filter(pl.all_horizontal(same)).filter(pl.col("kind") == "kernel")
    counters, reason = _counters(lookup, operator, inputs, measure)
    # The rows of `Analysis.launch_shapes` begin with the most expensive one.
    first = kernels["name"][0] if kernels.height else None
    evidence = _evidence(lookup, operator, inputs, kernels, _of_kernel(counters, first))
    if counters and not evidence.counters:
        reason = "the replay ran other kernels than the trace: their counters are listed, no statement rests on them"
    result = evidence.parallelism

    def statements(rule: Callable[[OperatorEvidence], Iterator[Statement]]) -> tuple[Statement, ...]:
        return tuple(worded(statement) for statement in rule(evidence))

    return OperatorStatements(
        inputs=inputs.input_dims,
        kernel=None if evidence.launch is None else evidence.launch.name,
        parallel=dict(result.parallel) if result else {},
        reduced=dict(result.reduced) if result else {},
        parallelism=statements(rules.parallel_work),
        coverage=statements(rules.coverage),
        resources=statements(rules.resource_statements),
        memory_access=statements(rules.memory_access),
        synchronisation=statements(rules.synchronisation),
        gains=statements(rules.gains),
        counters=counters,
        counters_reason=reason,
    )


def _columns() -> list[str]:
    return [field.name for field in fields(_Inputs)]


def _most_expensive_inputs(rows: pl.DataFrame) -> _Inputs:
    costs = rows.group_by(_columns()).agg(pl.col("total_ns").sum())
    costs = costliest_first(costs, ["total_ns"], _columns()).drop("total_ns")
    return _Inputs(*costs.row(0)) if costs.height else _Inputs()


def _evidence(
    lookup: Lookup,
    operator: str,
    inputs: _Inputs,
    kernels: pl.DataFrame,
    counters: tuple[Counters, ...],
) -> OperatorEvidence:
    analysis = lookup.analysis
    assert analysis is not None
    launch = next(launch_shape_rows(kernels), None)
    call = RecordedCall.read(
        inputs.input_dims,
        inputs.input_types,
        inputs.concrete_inputs,
        inputs.input_strides,
        names=lookup.argument_names(operator, inputs.input_types),
    )
    category = lookup.classifier.classify(operator).category
    decoded = decode_name(launch.name) if launch else None
    devices = {device.index: device for device in analysis.trace.devices}
    device = devices.get(launch.device) if launch and launch.device is not None else None
    time = int(analysis.operators.filter(pl.col("name") == operator)["self_device_ns"].sum())
    steps = lookup.step_count
    return OperatorEvidence(
        operator=operator,
        call_ns=None if launch is None else float(kernels["total_ns"].sum()) / launch.operator_calls,
        kernels=kernels["name"].n_unique(),
        share=time / analysis.accounting.activities_ns if analysis.accounting.activities_ns else None,
        per_step_ns=time / (steps or 1),
        kernel_per_step_ns=0.0 if launch is None else launch.total_ns / (steps or 1),
        per="step" if steps else "recording",
        parallelism=None if call is None else parallelism(operator, category, call),
        cost=None if call is None else cost_of(operator, category, call),
        launch=launch,
        decoded=decoded,
        pattern=pattern_of(decoded.operation) if decoded else None,
        occupancy=occupancy_of(launch, device) if launch else None,
        device=device,
        counters=counters,
        launch_bound=lookup.step_bound.kind is BoundKind.DISPATCH,
    )


def _counters(
    lookup: Lookup, operator: str, inputs: _Inputs, measure: MeasureCounters | None
) -> tuple[tuple[Counters, ...], str | None]:
    """Replay the operator with these inputs; return its counters. Never raises: a failure becomes the reason."""
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
