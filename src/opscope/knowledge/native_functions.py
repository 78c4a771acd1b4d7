"""What PyTorch says of its operators: schema, tags, dispatch. Read from a table, never from an imported PyTorch.

A capture writes the table of the PyTorch that ran (`opscope.collect.native_functions`); for traces without one,
tables of the releases since 2.6 are shipped in ``data/`` (built by ``tools/build_native_functions.py``).
"""

import functools
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opscope.base.errors import BadInputError
from opscope.base.files import unpacked_gzip
from opscope.base.text import lazy_pattern

# ---------------------------------------------------------------- releases


T = TypeVar("T")
_VERSION = lazy_pattern(r"(?P<release>\d+(?:\.\d+)*)(?P<rest>[^+]*)(?:\+(?P<local>.*))?")


class TorchVersion(Struct, frozen=True):
    """A version of PyTorch: ``2.11.0+cu130``.

    Attributes:
        release: its numbers, (2, 11, 0).
        local: what stands after the plus sign, ``cu130``; None where nothing does.
        final: whether it is a release and no development version (``2.12.0a0``, ``2.12.0.dev2026``).
    """

    release: tuple[int, ...]
    local: str | None
    final: bool

    @classmethod
    def parse(cls, text: str) -> "TorchVersion | None":
        """Read a version; None if the text is none."""
        match = _VERSION.fullmatch(text.strip().removeprefix("v"))
        if match is None:
            return None
        numbers = tuple(int(part) for part in match["release"].split("."))
        # Builds from source carry the commit: 2.11.0a0+git70d99e9.
        built = (match["local"] or "").startswith("git")
        return cls((*numbers, 0, 0)[:3], match["local"], final=not match["rest"] and not built)


# Stands for traces that do not tell which PyTorch wrote them.
DEFAULT = TorchVersion((2, 13, 0), None, final=True)


def data_files(ending: str) -> list[Traversable]:
    """Return the shipped data files whose names have an ending, sorted by name."""
    folder = resources.files("opscope.knowledge").joinpath("data")
    return sorted((file for file in folder.iterdir() if file.name.endswith(ending)), key=lambda file: file.name)


def nearest_first(
    candidates: Iterable[T], version_of: Callable[[T], TorchVersion], wanted: TorchVersion | None
) -> list[T]:
    """Sort things by how near their version is to a wanted one; of two that are equally near, the newer is first.

    Args:
        candidates: the things.
        version_of: returns the version of one.
        wanted: the wanted version; None stands for `DEFAULT`.
    """

    def distance(candidate: T) -> tuple[int, ...]:
        release = version_of(candidate).release
        return (abs(_position(release) - _position((wanted or DEFAULT).release)), *(-number for number in release))

    return sorted(candidates, key=distance)


def _position(release: tuple[int, ...]) -> int:
    major, minor, patch = release
    return (major * 1000 + minor) * 1000 + patch


@cache
def version_in(name: str) -> TorchVersion:
    """Return the version in a shipped file's name: ``native_functions-2.11.0.json.gz``.

    Raises:
        ValueError: the name has none.
    """
    match = re.search(r"-(\d[^-]*?)\.json\.gz$", name)
    version = TorchVersion.parse(match[1]) if match else None
    if version is None:
        raise ValueError(f"{name} names no version of PyTorch")
    return version


# ---------------------------------------------------------------- native functions


# What serves a device that has no kernel of its own registered, in the dispatcher's order.
_COMPOSITE_KEYS = (
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)
# Registrations that torchgen generated stand in files named after the dispatch key.
_GENERATED_REGISTRATION = lazy_pattern(r"Register(?P<key>[A-Za-z]+)(_\d+)?\.cpp")


class Argument(msgspec.Struct, frozen=True, gc=False):
    """One argument of a schema, or one return value (then the name may be empty)."""

    name: str
    type: str


class NativeFunction(msgspec.Struct, frozen=True, gc=False):
    """One overload of an operator.

    Attributes:
        name: namespace and base name, as a trace has it: ``aten::add``.
        overload: ``Tensor`` in ``add.Tensor``; empty for the default overload.
        schema: the signature as PyTorch writes it.
        arguments: in schema order, the order in which profilers record inputs.
        returns: the results.
        tags: PyTorch's own facts (``pointwise``, ``reduction``, ``view_copy``, ...).
        python_module: ``nn``, ``linalg``, ``fft``, ... where it is not the top module.
        is_view: whether the result aliases an input (from the schema's alias annotations).
        elementwise_iterator: whether its kernels are built on TensorIterator (``structured_inherits``).
        dispatch: dispatch key -> C++ function, as ``native_functions.yaml`` lists it.
        delegate: the overload whose structured kernel does the work (``addmm.out``), if any.
        composite_implicit: whether PyTorch decomposes it by default into other operators.
        yaml_line: line of its entry in ``native_functions.yaml``; None for operators registered elsewhere.
        derivatives: differentiated inputs -> the formula of their gradients, as ``derivatives.yaml`` has it.
        registrations: device key (``CPU``, ``CUDA``) -> what the dispatcher of the captured PyTorch has there.
    """

    name: str
    overload: str
    schema: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]
    tags: frozenset[str] = frozenset()
    python_module: str | None = None
    is_view: bool = False
    elementwise_iterator: bool = False
    dispatch: dict[str, str] = {}
    delegate: str | None = None
    composite_implicit: bool = False
    yaml_line: int | None = None
    derivatives: dict[str, str] = {}
    registrations: dict[str, str] = {}

    @property
    def base(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition("::")[2]

    @property
    def yaml_name(self) -> str:
        """The name as it stands after ``- func:`` in ``native_functions.yaml``: ``add.Tensor``."""
        return f"{self.base}.{self.overload}" if self.overload else self.base


class NativeFunctionTable(msgspec.Struct, frozen=True, gc=False):
    """The operators of one PyTorch build."""

    torch_version: str
    functions: tuple[NativeFunction, ...]

    def packed(self) -> bytes:
        """Return the table as packed JSON, the same bytes for the same table."""
        return gzip.compress(msgspec.json.encode(self, order="deterministic"), mtime=0)


class _Stored(msgspec.Struct, gc=False):
    """A packed table, its functions not yet decoded."""

    torch_version: str
    functions: list[msgspec.Raw]


class _Name(msgspec.Struct, gc=False):
    name: str


class _Names(msgspec.Struct, gc=False):
    """The same table, only for the names."""

    functions: list[_Name]


class Resolution(Struct, frozen=True):
    """Which native function an operator's recorded calls ran, and how that is known.

    Attributes:
        function: the one overload that fits, or None.
        cpp_function: the C++ function for the device, or None with the reason in ``how``.
        dispatch_key: the key under which it is registered.
        how: one sentence on where the answer comes from, or why there is none.
        other_overloads: further overloads that calls of the operator used, for less time.
    """

    function: NativeFunction | None
    cpp_function: str | None
    dispatch_key: str | None
    how: str
    other_overloads: tuple[str, ...] = ()


class RecordedCalls(Struct, frozen=True):
    """Calls of one operator with the same input types (the profiler's ``Input type`` list; None if not recorded)."""

    input_types: tuple[str, ...] | None
    time_ns: int


def matching_overloads(functions: Iterable[NativeFunction], input_types: Sequence[str]) -> list[NativeFunction]:
    """Return the overloads whose arguments fit the recorded ``Input type`` list of one call.

    Profilers record no overload names, but one entry per schema argument: a dtype for a tensor, ``Scalar``,
    ``ScalarList``, ``TensorList``, or nothing.
    """
    functions = list(functions)
    # What requires an argument that was recorded as nothing is taken only where nothing else fits.
    results = [function for function in functions if _fits(function.arguments, input_types, undefined=False)]
    return results or [function for function in functions if _fits(function.arguments, input_types, undefined=True)]


def _fits(arguments: Sequence[Argument], input_types: Sequence[str], *, undefined: bool) -> bool:
    if len(arguments) != len(input_types):
        return False
    pairs = zip(arguments, input_types, strict=True)
    return all(_fits_one(argument.type, seen, undefined=undefined) for argument, seen in pairs)


# What autograd's own code records without a namespace (torch/csrc/autograd/VariableTypeManual.cpp).
_SHORT_NAMES = {"detach": "aten::detach", "detach_": "aten::detach_"}
_ENGINE = "autograd::engine::evaluate_function:"
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_NODE = lazy_pattern(r"(?P<forward>\w+?)Backward\d*")
_LARGEST_TABLE = 32 << 20  # ten times the largest that PyTorch gives
_TENSOR_LIST = lazy_pattern(r"^Tensor\??(\(.*?\))?\??\[")
_TENSOR = lazy_pattern(r"^Tensor(\(.*?\))?\??$")


# The profiler records these as nothing, and those as Scalar (torch/csrc/profiler/util.cpp, inputTypes).
_NO_NUMBERS = frozenset({"str", "Dimname", "Device", "Generator", "Stream", "Storage"})
_NUMBERS = frozenset({"int", "SymInt", "float", "bool", "Scalar", "ScalarType", "Layout", "MemoryFormat"})


def _fits_one(declared: str, seen: str, *, undefined: bool) -> bool:
    """Tell whether a recorded type fits an argument.

    Args:
        declared: the argument's type in the schema.
        seen: what was recorded.
        undefined: whether a tensor or a number that is required may have been recorded as nothing.
    """
    plain = declared.rstrip("?")
    if not seen:  # left out, undefined, a text, or a list of more than 30 numbers
        return undefined or declared.endswith("?") or not (declared in _NUMBERS or declared.startswith("Tensor"))
    if seen == "Scalar":
        return not declared.startswith("Tensor") and not plain.endswith("]") and plain not in _NO_NUMBERS
    if seen == "ScalarList":
        is_list = not declared.startswith("Tensor") and plain.endswith("]")
        return is_list and plain.partition("[")[0] not in _NO_NUMBERS
    if seen in ("TensorList", "GenericList"):
        return _TENSOR_LIST.match(declared) is not None
    return _TENSOR.match(declared) is not None


class NativeFunctions:
    """A table, indexed for look-ups."""

    def __init__(self, torch_version: str, functions: Iterable[tuple[str, NativeFunction | msgspec.Raw]]) -> None:
        """Index functions by name.

        Args:
            torch_version: of the PyTorch whose operators these are.
            functions: pairs of name and function; a function in JSON is decoded when it is first asked for.
        """
        self.torch_version = torch_version
        self._by_name: dict[str, list[NativeFunction | msgspec.Raw]] = {}
        for name, function in functions:
            self._by_name.setdefault(name, []).append(function)

    @classmethod
    def of(cls, table: NativeFunctionTable) -> "NativeFunctions":
        """Index a table."""
        return cls(table.torch_version, ((function.name, function) for function in table.functions))

    @classmethod
    def read(cls, path: Path) -> "NativeFunctions":
        """Read a table that `NativeFunctionTable.packed` made.

        Raises:
            BadInputError: the file is missing or damaged.
        """
        try:
            return cls._unpacked(unpacked_gzip(path, _LARGEST_TABLE))
        except (OSError, EOFError, zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInputError(f"cannot read the operator table {path}: {error}") from error

    @classmethod
    @functools.cache
    def shipped(cls, version: TorchVersion | None = None) -> "NativeFunctions":
        """Return the operators of the shipped release that is nearest to a version.

        Args:
            version: of the PyTorch that ran; None where it is unknown.
        """
        files = data_files(".json.gz")
        nearest = nearest_first(files, lambda file: version_in(file.name), version)
        return cls._unpacked(gzip.decompress(nearest[0].read_bytes()))

    @classmethod
    def _unpacked(cls, content: bytes) -> "NativeFunctions":
        stored = msgspec.json.decode(content, type=_Stored)
        names = (function.name for function in msgspec.json.decode(content, type=_Names).functions)
        return cls(stored.torch_version, zip(names, stored.functions, strict=True))

    def names(self) -> Sequence[str]:
        """Return the names of all operators."""
        return list(self._by_name)

    def _decoded(self, name: str) -> list[NativeFunction]:
        entries = self._by_name.get(name, [])
        for position, entry in enumerate(entries):
            if isinstance(entry, msgspec.Raw):
                entries[position] = msgspec.json.decode(entry, type=NativeFunction)
        return entries  # type: ignore[return-value]  # all decoded above

    def _by_yaml_name(self, name: str) -> NativeFunction | None:
        base, _, overload = name.partition(".")
        listed = (function for function in self._decoded(f"aten::{base}") if function.yaml_line is not None)
        return next((function for function in listed if function.overload == overload), None)

    def overloads(self, name: str) -> Sequence[NativeFunction]:
        """Return all overloads of an operator (``aten::add``); empty where the table does not know it.

        A profiler that was asked to record overload names (``aten::add.Tensor``) gets that overload alone.
        """
        if result := self._decoded(name):
            return result
        base, _, overload = name.rpartition(".")
        return [function for function in self._decoded(base) if function.overload == overload]

    def argument_names(self, name: str, input_types: Sequence[str]) -> tuple[str | None, ...]:
        """Return the schema's name of every recorded argument of a call; None where overloads that fit disagree.

        Another release's table may have further arguments: where none fits whole, those whose first arguments fit are
        asked, or else all.
        """
        overloads = self.overloads(name)
        begins = [
            function
            for function in overloads
            if _fits(function.arguments[: len(input_types)], input_types, undefined=True)
        ]
        fitting = matching_overloads(overloads, input_types) or begins or overloads
        results = []
        for position in range(len(input_types)):
            names = {f.arguments[position].name for f in fitting if position < len(f.arguments)}
            results.append(names.pop() if len(names) == 1 else None)
        return tuple(results)

    def resolve(self, name: str, calls: Iterable[RecordedCalls], device_key: str) -> Resolution:
        """Find the native function that an operator's calls ran on a device.

        Where calls used several overloads, the one that took the most time is returned and the others are named.

        Args:
            name: the operator's name in the trace.
            calls: the operator's calls, by the types of their inputs.
            device_key: the dispatch key of the device, ``CUDA`` or ``CPU``.
        """
        overloads = self.overloads(_SHORT_NAMES.get(name, name))
        if not overloads:
            return self._of_autograd(name)
        if len(overloads) == 1:
            return self.on_device(overloads[0], device_key)
        weights: dict[str, int] = {}
        fitting: dict[str, NativeFunction] = {}
        for call in calls:
            matches = [] if call.input_types is None else matching_overloads(overloads, call.input_types)
            if len(matches) == 1:
                fitting[matches[0].yaml_name] = matches[0]
                weights[matches[0].yaml_name] = weights.get(matches[0].yaml_name, 0) + call.time_ns
        if not fitting:
            names = ", ".join(sorted(function.yaml_name for function in overloads))
            return Resolution(None, None, None, f"the recorded inputs do not tell the overload: one of {names}")
        first, *others = sorted(fitting, key=lambda name: (-weights[name], name))
        result = self.on_device(fitting[first], device_key)
        return replace(result, other_overloads=tuple(others))

    def _of_autograd(self, name: str) -> Resolution:
        """Resolve the ranges of autograd's engine, which are not operators: they compute gradients of operators."""
        node = name.removeprefix(_ENGINE).strip()
        if node == _ACCUMULATES:
            return Resolution(None, f"{node}::apply", "Autograd", "autograd's node that adds up gradients")
        match = _NODE.fullmatch(node)
        forward = None if match is None else self._forward_names.get(match["forward"])
        if forward is None:
            return Resolution(None, None, None, "PyTorch's dispatcher has no operator of this name")
        listed = [one for one in self.overloads(forward) if one.derivatives]
        function = listed[0] if len(listed) == 1 else None
        of = forward.removeprefix("aten::") if function is None else function.yaml_name
        how = f"autograd's node for the gradient of {of} (derivatives.yaml)"
        return Resolution(function, f"torch::autograd::generated::{node}::apply", "Autograd", how)

    @functools.cached_property
    def _forward_names(self) -> dict[str, str]:
        """Return operators by the names that torchgen gives their autograd nodes: ``NativeLayerNorm``."""
        # From the last to the first, so that of operators whose nodes are named alike the one listed first stays.
        return {
            "".join(part.title() for part in name.removeprefix("aten::").split("_")): name
            for name in reversed(self._by_name)
            if name.startswith("aten::")
        }

    def on_device(self, function: NativeFunction, device_key: str) -> Resolution:
        """Find what serves one overload on a device.

        Args:
            function: the overload.
            device_key: the dispatch key of the device, ``CUDA`` or ``CPU``.
        """
        registered = function.registrations.get(device_key)
        known_by = f"dispatcher: {registered}" if registered else "native_functions.yaml"
        keys: Sequence[str] = (device_key, *_COMPOSITE_KEYS)
        if registered:
            generated = _GENERATED_REGISTRATION.match(registered)
            if generated is None:
                return Resolution(function, None, device_key, f"registered outside ATen: {registered}")
            keys = (generated["key"],)  # the dispatcher itself says what serves the device: no other key is tried
        delegate = self._by_yaml_name(function.delegate) if function.delegate else None
        for key in keys:
            if kernel := function.dispatch.get(key):
                return Resolution(function, kernel, key, known_by)
            if delegate is not None and (kernel := delegate.dispatch.get(key)):
                return Resolution(function, kernel, key, f"structured, via {delegate.yaml_name}; {known_by}")
        if function.composite_implicit:
            how = f"decomposes into other operators; {known_by}"
            return Resolution(function, f"at::native::{function.base}", "CompositeImplicitAutograd", how)
        return Resolution(function, None, None, f"no {device_key} function listed; {known_by}")
