"""Where the source of an operator is: the one answer that statistics, reports and ``explain`` give.

It comes as documents say it, with the native function behind an operator of a trace.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import polars as pl
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.analysis.analyzed import Analysis
from opscope.documents.explain import NativeFunctionDetail, PlaceEntry, SourceEntry
from opscope.knowledge.kernels.kernel_source import How, KernelSource, SourceResolver, repository_link
from opscope.knowledge.native_functions import NativeFunctions, RecordedCalls, Resolution
from opscope.render.blocks import Inline, Name

_GENERATED = "Triton"  # kernels that have a file of their own, and call nothing
_SITES_SHOWN = 3
_CANDIDATES_SHOWN = 8


def native_function_of(
    name: str, shapes: pl.DataFrame, functions: NativeFunctions, device_key: str, weight: str
) -> tuple[NativeFunctionDetail, str | None]:
    """Resolve an operator by the input types that were recorded of its calls.

    Args:
        name: the operator.
        shapes: its rows of `Analysis.shapes`.
        functions: the operators of a PyTorch build.
        device_key: the dispatch key of the device, ``CPU`` or ``CUDA``.
        weight: the column of ``shapes`` that says which overload matters most.

    Returns:
        The detail, and the name in ``native_functions.yaml``, or None where it has no entry there.
    """
    calls = [
        RecordedCalls(
            input_types=None if row["input_types"] is None else tuple(json.loads(row["input_types"])),
            time_ns=row[weight] or 0,
        )
        for row in shapes.iter_rows(named=True)
    ]
    return detail_of(functions.resolve(name, calls, device_key), functions)


def detail_of(resolution: Resolution, functions: NativeFunctions) -> tuple[NativeFunctionDetail, str | None]:
    """Return what documents say of a resolution, and the name in ``native_functions.yaml``; None if not listed."""
    function = resolution.function
    detail = NativeFunctionDetail(
        schema=function.schema if function else None,
        yaml_line=function.yaml_line if function else None,
        dispatch_key=resolution.dispatch_key,
        cpp_function=resolution.cpp_function,
        torch_version=functions.torch_version,
        how=resolution.how,
        other_overloads=resolution.other_overloads,
    )
    listed = function is not None and function.yaml_line is not None
    return detail, function.yaml_name if function and listed else None


def source_entry(source: KernelSource) -> SourceEntry:
    """Return what a document says of a kernel's source."""
    sites = tuple(
        PlaceEntry(
            site.file, site.line or None, site.function or None, repository_link(site.file, site.line, source.git)
        )
        for site in source.launch_sites
    )
    place = source.definition
    return SourceEntry(
        file=source.file,
        line=source.line,
        how=source.how,
        basis=source.basis,
        definition=None
        if place is None
        else PlaceEntry(place.file, place.line or None, None, repository_link(place.file, place.line, source.git)),
        launch_site=sites[0] if len(sites) == 1 else None,
        launch_sites=sites,
        library=source.library,
        candidates=source.candidates[:_CANDIDATES_SHOWN],
        candidate_count=len(source.candidates),
        url=source.url,
        torch=source.torch,
        git=source.git,
    )


def source_facts(source: SourceEntry) -> Iterator[Inline]:
    """Yield what is known of a kernel's source: what instantiates it, what defines it, and what launches it."""
    if source.file:
        line = f" line {source.line}" if source.line else ""
        calls = f", which calls {source.library}" if source.library not in (None, "Triton") else ""
        yield ("Source: ", Name(source.file), f"{line}{calls} ({source.how}: {source.basis})")
    elif source.library:
        yield (f"Source: {source.library} (library: {source.basis})",)
    elif source.candidates:
        hidden = source.candidate_count - len(source.candidates)
        more = f" and {hidden} more" if hidden else ""
        yield ("Source: one of ", Name(", ".join(source.candidates)), f"{more} ({source.how}: {source.basis})")
    else:
        yield (f"Source: {source.how} ({source.basis})",)
    if source.url:
        yield ("At the exact commit: ", Name(source.url))
    if source.definition and source.definition.file != source.file:
        line = f" line {source.definition.line}" if source.definition.line else ""
        yield ("Kernel template defined in ", Name(source.definition.file), line)
    for site in source.launch_sites[:_SITES_SHOWN]:
        function = (" in ", Name(site.function)) if site.function else ()
        place = f"{site.file}:{site.line}" if site.line else site.file
        yield ("Launched from ", Name(place), *function)


class OperatorSources(Struct, dict=True):
    """Answers for one PyTorch, and one trace where there is one.

    Attributes:
        resolver: finds the source of kernels and of C++ functions.
        analysis: of the trace; None without one.
        native_of: returns what is known of an operator's native function; None where nothing is.
    """

    resolver: SourceResolver
    analysis: Analysis | None
    native_of: Callable[[str], NativeFunctionDetail | None]
    _answers: dict[str, SourceEntry] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"OperatorSources({self.resolver!r})"  # without its answers

    def of_operator(self, name: str) -> SourceEntry:
        """Return where an operator's source is.

        It is the file of the operator's kernel that took most time. If that is a library's, or none was launched, it is
        the file of its C++ function; if that is not known, the library, or the answer of an operator that it calls.
        """
        if name not in self._answers:
            self._answers[name] = source_entry(self._of(name, frozenset()))
        return self._answers[name]

    def of_kernel(self, name: str, rows: pl.DataFrame | None) -> SourceEntry:
        """Return where a kernel's source is.

        Args:
            name: the kernel's.
            rows: its rows of `Analysis.launch_shapes`, which know the files of generated kernels; None without a trace.
        """
        return source_entry(self._kernel(name, rows))

    def launches_of(self, operator: str) -> pl.DataFrame:
        """Return an operator's rows of `Analysis.launch_shapes`; empty without a trace."""
        if self.analysis is None:
            return pl.DataFrame()
        return self._by_operator.get(operator, self.analysis.launch_shapes.clear())

    def _kernel(self, name: str, rows: pl.DataFrame | None) -> KernelSource:
        source = self.resolver.resolve(name)
        files = set() if rows is None else set(rows["kernel_file"].drop_nulls())
        # Kernels of one name may be generated into several files: only a single one is certain.
        if source.library == _GENERATED and len(files) == 1:
            return KernelSource(
                How.VERIFIED,
                "the trace names the Python file that torch.compile generated for the launch",
                file=files.pop(),
                library=_GENERATED,
            )
        return source

    def _of(self, name: str, seen: frozenset[str]) -> KernelSource:
        # ``seen`` are the operators on the way here: where operators call each other, the search ends.
        kernel = self._dearest_kernel(name)
        if kernel is not None and (kernel.file or kernel.candidates or kernel.library == _GENERATED):
            return kernel
        detail = self.native_of(name)
        function = None if detail is None else detail.cpp_function
        host = None if function is None else self.resolver.host_source(function)
        if host is not None:
            basis = _why_host(kernel, host, launched=self.launches_of(name).height > 0)
            return replace(host, basis=basis, library=kernel.library if kernel else None)
        if kernel is not None and kernel.library:
            return kernel
        for called in self._called(name):
            if called not in seen and called != name:
                inner = self._of(called, seen | {name})
                if inner.how is not How.UNKNOWN:
                    return replace(inner, basis=f"it calls {called}: {inner.basis}")
        return kernel or KernelSource(How.UNKNOWN, self._why_unknown(detail))

    def _dearest_kernel(self, operator: str) -> KernelSource | None:
        name = self._dearest.get(operator)
        if name is None:
            return None
        source = self.resolver.resolve(name)
        if source.library != _GENERATED:
            return source
        return self._kernel(name, self.launches_of(operator).filter(kind="kernel", name=name))

    def _called(self, name: str) -> Iterator[str]:
        """Yield the operators that an operator calls: PyTorch's own first, and those that take most device time."""
        if self.analysis is None:
            return
        calls = self._calls.get(name, [])
        yield from (called for called, _ in sorted(calls, key=self._rank))

    def _rank(self, call: tuple[str, int]) -> tuple[bool, float, int]:
        name, count = call
        return not name.startswith("aten::"), -self._device_ns.get(name, 0.0), -count

    def _why_unknown(self, detail: NativeFunctionDetail | None) -> str:
        if self.analysis is None:
            if detail is not None and detail.dispatch_key == "CompositeImplicitAutograd":
                return "it decomposes into other operators"
            return "a trace tells which kernels it launches"
        if detail is None or detail.cpp_function is None:
            return "it launched no kernel and is not in PyTorch's operator table"
        return f"it launched no kernel, and no release's libraries tell the file of {detail.cpp_function}"

    @cached_property
    def _by_operator(self) -> Mapping[str, pl.DataFrame]:
        rows = pl.DataFrame() if self.analysis is None else self.analysis.launch_shapes.drop_nulls("operator")
        return {str(name): group for (name,), group in rows.group_by("operator", maintain_order=True)}

    @cached_property
    def _dearest(self) -> Mapping[str, str]:
        """Operator -> its kernel that took most time."""
        if self.analysis is None:
            return {}
        kernels = self.analysis.launch_shapes.drop_nulls("operator").filter(kind="kernel")
        totals = kernels.group_by("operator", "name").agg(pl.col("total_ns").sum())
        # The last one of each operator stays.
        ordered = totals.sort("total_ns", "name").select(pl.col("operator", "name").cast(pl.String))
        return dict(ordered.iter_rows())

    @cached_property
    def _calls(self) -> Mapping[str, list[tuple[str, int]]]:
        results: dict[str, list[tuple[str, int]]] = {}
        if self.analysis is not None:
            table = self.analysis.called_operators.select("operator", "called", "calls")
            for operator, called, calls in table.iter_rows():
                results.setdefault(str(operator), []).append((str(called), int(calls)))
        return results

    @cached_property
    def _device_ns(self) -> Mapping[str, float]:
        """Operator -> mean device time of one call in nanoseconds, with all that it calls."""
        if self.analysis is None:
            return {}
        table = self.analysis.operators.select("name", "total_device_ns", "calls")
        return {str(name): (total or 0) / max(calls, 1) for name, total, calls in table.iter_rows()}


def _why_host(kernel: KernelSource | None, host: KernelSource, *, launched: bool) -> str:
    if kernel is not None and kernel.library:
        whose = f"its kernels are {kernel.library}'s"
        return f"{whose}, and this is the file of its C++ function, which calls it: {host.basis}"
    if kernel is not None:
        return f"where its kernel is from is not known ({kernel.basis}); of its C++ function: {host.basis}"
    if launched:
        return f"it launches copies and fills alone, which are the driver's; of its C++ function: {host.basis}"
    return f"no kernel of it is recorded; this is the file of its C++ function: {host.basis}"


def file_text(source: SourceEntry, native: NativeFunctionDetail) -> str:
    """Return where an operator's source is, in a few words for people; never empty.

    That is a file, with the library that it calls; a library alone; the possible files; or the C++ function.
    """
    if source.file:
        calls = source.library if source.library not in (None, _GENERATED) else None
        return f"{source.file} (calls {calls})" if calls else source.file
    if source.library:
        return source.library
    if source.candidates:
        more = source.candidate_count - len(source.candidates)
        return f"one of {', '.join(source.candidates)}" + (f" and {more} more" if more else "")
    return f"no kernel ({native.cpp_function})" if native.cpp_function else "no kernel"
