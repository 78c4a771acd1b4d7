"""From a name, and what it is looked up in, to an `ExplainDocument`; for a name that is not known, others like it."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.analyzed import Analysis
from opscope.analysis.costs.occupancy import entry_of, occupancy_of
from opscope.analysis.costs.sums import launch_shape_rows
from opscope.analysis.measured import Measured
from opscope.base.errors import UsageError
from opscope.base.text import lazy_pattern
from opscope.documents.explain import (
    CandidateEntry,
    ContextEntry,
    CostEntry,
    DeviceKernelsEntry,
    ExplainDocument,
    HostFileEntry,
    LaunchRow,
    NativeFunctionDetail,
    NativeFunctionEntry,
)
from opscope.documents.verdict import Bound, Check
from opscope.knowledge.categories import Category, Classification, Classifier, classifier_of
from opscope.knowledge.kernels.candidates import KernelCandidates, kernel_candidates, namesakes
from opscope.knowledge.kernels.decode import decode_name
from opscope.knowledge.kernels.index import SourceIndex
from opscope.knowledge.kernels.kernel_source import How, SourceResolver, repository_link
from opscope.knowledge.kernels.kinds import classification_of
from opscope.knowledge.native_functions import NativeFunction, NativeFunctions, Resolution
from opscope.lookup.operator_source import OperatorSources, detail_of, file_text, native_function_of
from opscope.record.counters import Precision

_OPERATOR = lazy_pattern(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.\w+)?|autograd::.*|\w+Backward\d*|record_param_comms")
# Ranges that are not operators of PyTorch's tables, and yet known by their names.
_NOT_OPERATORS = (Category.FRAMEWORK, Category.COMMUNICATION, Category.COMPILED)
_YAML = "aten/src/ATen/native/native_functions.yaml"
_ALIKE: Final = 0.75  # difflib's ratio; below it, what is found has little to do with what was asked
_MOST_SUGGESTED: Final = 3


class Lookup(Struct, dict=True):
    """What names are looked up in.

    Attributes:
        resolver: finds kernels' source.
        functions: the operators of the PyTorch in question.
        index: the kernel index of that PyTorch, which also knows C++ functions' files; None if there is none.
        trace_name: what the trace is called; None without one.
        measured: the trace, with the record of its capture where there is one; None without a trace.
        precision: PyTorch's precision settings when the trace was recorded; None if unknown.
    """

    resolver: SourceResolver
    functions: NativeFunctions
    index: SourceIndex | None = None
    trace_name: str | None = None
    measured: Measured | None = None
    precision: Precision | None = None

    @property
    def analysis(self) -> Analysis | None:
        """The trace's analysis."""
        return self.measured.analysis if self.measured else None

    @property
    def failed_checks(self) -> tuple[Check, ...]:
        """The trust checks that the trace fails."""
        return self.measured.trust.failures() if self.measured else ()

    @property
    def device_key(self) -> str:
        """The dispatch key of the device, ``CUDA`` or ``CPU``."""
        return self.measured.device_key if self.measured else "CUDA"

    @property
    def step_count(self) -> int:
        """How many steps the trace holds; 0 if unknown, or without a trace."""
        return self.measured.step_count if self.measured else 0

    @property
    def step_bound(self) -> Bound:
        """What bounds the steps.

        Raises:
            UsageError: there is no trace.
        """
        if self.measured is None:
            raise UsageError("nothing bounds a step without a trace")
        return self.measured.bound

    def argument_names(self, operator: str, input_types: str | None) -> tuple[str | None, ...]:
        """Return the names that the schema gives the arguments of a recorded call; None for uncertain ones.

        Args:
            operator: its name.
            input_types: the call's ``Input type`` list as JSON text; None if it was not recorded.
        """
        types = json.loads(input_types) if input_types else []
        return self.functions.argument_names(operator, types)

    @cached_property
    def sources(self) -> OperatorSources:
        """Finds the source of operators and kernels."""
        return OperatorSources(self.resolver, self.analysis, lambda name: self._resolved(name)[0])

    @cached_property
    def classifier(self) -> Classifier:
        """Says what kind of work an operator does."""
        return classifier_of(self.functions)

    def explain(self, name: str) -> ExplainDocument:
        """Explain an operator or a kernel.

        Args:
            name: an operator (``aten::addmm``, ``addmm``, ``add.Tensor``) or a kernel's name, as a trace has it.

        Raises:
            UsageError: the name is empty.
        """
        name = name.strip()
        if not name:
            raise UsageError("an empty name cannot be explained")
        operator = self._operator_name(name)
        return self._kernel(name) if operator is None else self._operator(operator)

    def cuda_file(self, name: str) -> str | None:
        """Return where an operator's source for CUDA is, in a few words; None where that is not known."""
        explained = self.explain(name)
        source, native = explained.source, explained.native_function
        if native is None or not (source.file or source.library or source.candidates):
            return None
        return file_text(source, native.detail)

    def _operator_name(self, name: str) -> str | None:
        """Return the operator that is meant, with its namespace; None for a kernel."""
        # What the trace recorded decides before the table of operators does.
        if self.analysis is not None:
            recorded = set(self.analysis.operators["name"])
            for candidate in (name, f"aten::{name}"):
                if candidate in recorded:
                    return candidate
            if name in set(self.analysis.kernels["name"].cast(pl.String)):
                return None
        for candidate in (name, f"aten::{name}"):
            if self.functions.overloads(candidate):
                return candidate
        return name if _OPERATOR.fullmatch(name) else None

    # ------------------------------------------------------------ kernels

    def _kernel(self, name: str) -> ExplainDocument:
        decoded = decode_name(name)
        rows = self._launches(pl.col("name") == name)
        classification = self._classification_of_kernel(rows, name)
        source, cost = self.sources.of_kernel(name, rows), self._cost_of_kernel(name)
        known = cost is not None or source.how is not How.UNKNOWN or decoded.family is not None
        return ExplainDocument(
            kind="kernel",
            name=name,
            summary=decoded.summary,
            category=str(classification.category),
            category_rule=classification.rule,
            decoded=decoded,
            native_function=None,
            source=source,
            launches=tuple(self._rows(rows)),
            cost=cost,
            context=self._context(),
            known=known,
            did_you_mean=() if known else self._similar(name),
        )

    def _similar(self, name: str) -> tuple[str, ...]:
        recorded = [] if self.analysis is None else self.analysis.operators["name"].to_list()
        return similar_operators(name, {*self.functions.names(), *recorded})

    def _classification_of_kernel(self, rows: pl.DataFrame | None, name: str) -> Classification:
        """Classify a kernel as the operator is that launched it most, else by what its name says."""
        operators = [] if rows is None else rows["operator"].drop_nulls().to_list()
        if operators:
            result = self.classifier.classify(operators[0])
            return replace(result, rule=f"as {operators[0]}, which launched it: {result.rule}")
        return classification_of(name)

    def _cost_of_kernel(self, name: str) -> CostEntry | None:
        if self.analysis is None:
            return None
        rows = self.analysis.kernels.filter(pl.col("name").cast(pl.String) == name)
        if not rows.height:
            return None
        total = int(rows["total_ns"].sum())
        return CostEntry(int(rows["calls"].sum()), total, None, None, self._share(total))

    # ------------------------------------------------------------ operators

    def _operator(self, name: str) -> ExplainDocument:
        rows = self.sources.launches_of(name)
        classification = self.classifier.classify(name)
        native_function, cost = self._native_function(name), self._cost_of_operator(name)
        known = native_function is not None or cost is not None or classification.category in _NOT_OPERATORS
        return ExplainDocument(
            kind="operator",
            name=name,
            summary=_summary_of_operator(name, native_function),
            category=str(classification.category),
            category_rule=classification.rule,
            decoded=None,
            native_function=native_function,
            source=self.sources.of_operator(name),
            launches=tuple(self._rows(rows)),
            cost=cost,
            context=self._context(),
            known=known,
            did_you_mean=() if known else self._similar(name),
            device_kernels=None if rows.height or native_function is None else self._device_kernels(name),
        )

    def _device_kernels(self, name: str) -> DeviceKernelsEntry | None:
        """Return where an operator's kernels may be, none of which was recorded; None without an index."""
        if self.index is None:
            return None
        result, of = self._candidates(name, self.index), ""
        if result.decomposes:  # the operator that does its work is often named like it
            for namesake in namesakes(name):
                if (other := self._candidates(namesake, self.index)).files:
                    result, of = other, f"of {namesake}, which is named like it: "
                    break
        entries = (
            CandidateEntry(one.file, f"{of}{one.basis}{f' ({one.named})' if one.named else ''}", self._link(one.file))
            for one in result.files
        )
        return DeviceKernelsEntry(tuple(entries), result.reason or None)

    def _candidates(self, name: str, index: SourceIndex) -> KernelCandidates:
        return kernel_candidates(
            [self.functions.on_device(one, "CUDA") for one in self.functions.overloads(name)], index
        )

    def _native_function(self, name: str) -> NativeFunctionEntry | None:
        detail, listed = self._resolved(name)
        if detail is None:
            return None
        function = self._overload(name, listed)
        git = self.index.git if self.index else self.resolver.git
        return NativeFunctionEntry(
            name=listed or name,
            detail=detail,
            yaml_url=repository_link(_YAML, detail.yaml_line, git) if detail.yaml_line else None,
            host_file=self._host_file(detail.cpp_function),
            derivatives=dict(function.derivatives) if function else {},
            calls=self._calls(name),
        )

    def _resolved(self, name: str) -> tuple[NativeFunctionDetail | None, str | None]:
        overloads = self.functions.overloads(name)
        if not overloads:
            return None, None
        shapes = self._shapes(name)
        if not shapes.height:
            return detail_of(self._usual(overloads), self.functions)
        # The overload that took most time counts: on the device, or on the host where no device was recorded.
        weight = "self_device_ns" if self.analysis and self.analysis.has_device_times else "self_cpu_ns"
        return native_function_of(name, shapes, self.functions, self.device_key, weight)

    def _usual(self, overloads: Sequence[NativeFunction]) -> Resolution:
        """Resolve the overload that is usually meant where no call is recorded: the first that returns a new tensor."""
        first = next((f for f in overloads if "out" not in f.overload.split("_")), overloads[0])
        resolution = self.functions.on_device(first, self.device_key)
        if len(overloads) == 1:
            return resolution
        others = tuple(function.yaml_name for function in overloads if function is not first)
        how = f"{resolution.how}; the first of {len(overloads)} overloads, as no call is recorded"
        return replace(resolution, how=how, other_overloads=others)

    def _shapes(self, name: str) -> pl.DataFrame:
        return pl.DataFrame() if self.analysis is None else self.analysis.shapes.filter(pl.col("name") == name)

    def _overload(self, name: str, listed: str | None) -> NativeFunction | None:
        overloads = self.functions.overloads(name)
        return next((function for function in overloads if function.yaml_name == listed), None)

    def _link(self, file: str) -> str | None:
        return repository_link(file, None, self.index.git) if self.index else None

    def _host_file(self, cpp_function: str | None) -> HostFileEntry | None:
        result = None if cpp_function is None else self.resolver.host_source(cpp_function)
        if result is None or result.file is None:
            return None
        return HostFileEntry(result.file, result.how, result.basis, repository_link(result.file, None, result.git))

    def _calls(self, name: str) -> dict[str, int]:
        if self.analysis is None:
            return {}
        rows = self.analysis.called_operators.filter(pl.col("operator") == name)
        return dict(zip(rows["called"], rows["calls"], strict=True))

    def _cost_of_operator(self, name: str) -> CostEntry | None:
        if self.analysis is None:
            return None
        rows = self.analysis.operators.filter(pl.col("name") == name)
        if not rows.height:
            return None
        row = rows.row(0, named=True)
        return CostEntry(
            row["calls"],
            row["self_device_ns"],
            row["total_device_ns"],
            row["self_cpu_ns"],
            self._share(row["self_device_ns"]),
        )

    # ------------------------------------------------------------ both

    def _share(self, nanoseconds: int) -> float | None:
        total = self.analysis.accounting.activities_ns if self.analysis else 0
        return nanoseconds / total if total else None

    def _launches(self, chosen: pl.Expr) -> pl.DataFrame | None:
        return None if self.analysis is None else self.analysis.launch_shapes.filter(chosen)

    def _rows(self, rows: pl.DataFrame | None) -> Iterator[LaunchRow]:
        devices = {} if self.analysis is None else {device.index: device for device in self.analysis.trace.devices}
        for row in () if rows is None else launch_shape_rows(rows):
            result = occupancy_of(row, devices.get(row.device) if row.device is not None else None)
            yield LaunchRow(
                operator=row.operator,
                input_dims=row.input_dims,
                input_types=row.input_types,
                kernel=row.name,
                summary=decode_name(row.name).summary,
                kind=row.kind,
                device=row.device,
                grid=row.grid,
                block=row.block,
                registers_per_thread=row.registers_per_thread,
                shared_memory_bytes=row.shared_memory_bytes,
                occupancy=entry_of(result),
                calls=row.calls,
                total_ns=row.total_ns,
                mean_ns=row.mean_ns,
                min_ns=row.min_ns,
                max_ns=row.max_ns,
            )

    def _context(self) -> ContextEntry:
        installed: Mapping[str, str] = {k: v for index in self.resolver.installed for k, v in index.build_ids.items()}
        return ContextEntry(self.trace_name, self.functions.torch_version, dict(installed), self.failed_checks)


def _summary_of_operator(name: str, native_function: NativeFunctionEntry | None) -> str:
    if native_function is None:
        return f"{name}: not an operator of this PyTorch"
    return native_function.detail.schema or f"{name}: several overloads"


def similar_operators(name: str, operators: Iterable[str]) -> tuple[str, ...]:
    """Return the operators that may be meant, the likeliest first.

    Underscores and case count for nothing, and of ``gelu``, ``gelu_`` and ``_gelu`` one is returned: the shortest.
    """
    bare: dict[str, str] = {}
    for operator in sorted(operators, key=lambda operator: (len(operator), operator)):
        bare.setdefault(_bare(operator), operator)
    asked = _bare(name)
    if len(asked) < 2:
        return ()
    like = difflib.get_close_matches(asked, bare, _MOST_SUGGESTED, _ALIKE)
    starting = [other for other in bare if other.startswith(asked) and other not in like] if len(asked) > 2 else []
    return tuple(bare[other] for other in (*like, *starting)[:_MOST_SUGGESTED])


def _bare(operator: str) -> str:
    """Return a name without namespace and underscores, in lower case."""
    return operator.rpartition("::")[2].replace("_", "").lower()
