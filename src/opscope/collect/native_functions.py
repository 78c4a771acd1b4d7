"""The operators of the installed PyTorch, from ``native_functions.yaml`` (through torchgen) and from its dispatcher."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from opscope._version import __version__
from opscope.base.errors import EnvironmentLacksError, OpscopeError
from opscope.base.files import PRIVATE_FILE, digest_of, is_own, private_folder, write_whole
from opscope.base.text import lazy_pattern
from opscope.knowledge.native_functions import Argument, NativeFunction, NativeFunctionTable
from opscope.record.codec import UNREADABLE

# A line of the dispatcher's table: "CUDA: registered at build/RegisterCUDA_0.cpp:123 [kernel]".
_REGISTRATION = lazy_pattern(r"^(?P<key>\w+): registered at (?P<where>.+?)(?::(?P<line>\d+))? \[(?P<kind>.+)\]$")

# Types of elements are followed by this, in ``native_functions.yaml``.
_OF_ELEMENTS = {"OptionalType": "?", "ListType": "[]"}
_YAML_NAMES = {"number": "Scalar"}


def installed_table(device_key: str) -> NativeFunctionTable:
    """Read the operators of the installed PyTorch, with the kernels that its dispatcher has for a device.

    Args:
        device_key: the dispatch key of the device, ``CPU`` or ``CUDA``.

    Raises:
        EnvironmentLacksError: PyTorch or PyYAML, which torchgen needs, is missing.
    """
    try:
        import torch

        listed = _kept_functions()
    except ImportError as error:
        raise EnvironmentLacksError(
            f"native_functions.yaml cannot be read: {error}. Install opscope[torch]."
        ) from error
    functions = [
        msgspec.structs.replace(function, registrations=_registrations(function.name, function.overload, device_key))
        for function in listed
    ]
    known = {(function.name, function.overload) for function in functions}
    functions += [
        function for function in _registered_elsewhere(device_key) if (function.name, function.overload) not in known
    ]
    return NativeFunctionTable(str(torch.__version__), tuple(functions))


def _kept_functions() -> list[NativeFunction]:
    """Return `listed_functions` from the cache, because reading the files takes more than a second.

    Raises:
        ImportError: torchgen or PyYAML is missing.
    """
    import torchgen

    listed = Path(next(iter(torchgen.__path__))) / "packaged" / "ATen" / "native" / "native_functions.yaml"
    try:
        # The digest changes with PyTorch, the version with what opscope reads from the file.
        name = f"{digest_of(listed)}-{__version__}.msgpack"
        kept = private_folder("operators") / name
        if is_own(kept):
            return msgspec.msgpack.decode(kept.read_bytes(), type=list[NativeFunction])
    except (OSError, OpscopeError, *UNREADABLE):
        return listed_functions()
    functions = listed_functions()
    # A cache that cannot be written costs time, not the result.
    with contextlib.suppress(OpscopeError):
        write_whole(kept, msgspec.msgpack.encode(functions), PRIVATE_FILE)
    return functions


def listed_functions() -> list[NativeFunction]:
    """Read torchgen's ``native_functions.yaml`` and ``derivatives.yaml``, without importing PyTorch.

    Raises:
        ImportError: torchgen or PyYAML is missing.
    """
    import torchgen
    from torchgen.gen import parse_native_yaml

    packaged = Path(next(iter(torchgen.__path__))) / "packaged"
    folder = packaged / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    derivatives = _derivatives(packaged / "autograd" / "derivatives.yaml")
    return [_from_yaml(function, parsed.backend_indices, derivatives) for function in parsed.native_functions]


def _derivatives(path: Path) -> Mapping[str, Mapping[str, str]]:
    """Map each overload (``addmm``, ``add.Tensor``) to its differentiated inputs and their formulas."""
    import yaml

    if not path.is_file():
        return {}
    # CSafeLoader takes a tenth of the time, but not every PyYAML is built with it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return {
        entry["name"].partition("(")[0]: {
            inputs: " ".join(formula.split()) for inputs, formula in entry.items() if isinstance(formula, str)
        }
        for entry in entries
    }


def _from_yaml(function: Any, backend_indices: Any, derivatives: Mapping[str, Mapping[str, str]]) -> NativeFunction:
    name = f"{function.namespace}::{function.func.name.name}"
    overload = function.func.name.overload_name
    return NativeFunction(
        name=name,
        overload=overload,
        schema=str(function.func),
        arguments=tuple(
            Argument(argument.name, str(argument.type)) for argument in function.func.schema_order_arguments()
        ),
        returns=tuple(Argument(item.name or "", str(item.type)) for item in function.func.returns),
        tags=frozenset(function.tags),
        python_module=function.python_module,
        is_view=function.is_view_op,
        elementwise_iterator=function.structured_inherits is not None,
        dispatch={
            str(key): _cpp_function(metadata)
            for key, index in backend_indices.items()
            if (metadata := index.get_kernel(function)) is not None
        },
        delegate=None if function.structured_delegate is None else str(function.structured_delegate),
        composite_implicit=function.has_composite_implicit_autograd_kernel,
        yaml_line=function.loc.line,
        derivatives=_gradients(function, derivatives.get(str(function.func.name), {})),
    )


def _gradients(function: Any, formulas: Mapping[str, str]) -> dict[str, str]:
    """Return the formulas of the inputs' gradients, without the forward derivatives that the file has as well."""
    # Forward derivatives are filed under names of results, which are not arguments.
    arguments = {argument.name for argument in function.func.schema_order_arguments()}
    return {inputs: text for inputs, text in formulas.items() if {i.strip() for i in inputs.split(",")} <= arguments}


def _cpp_function(metadata: Any) -> str:
    if metadata.structured:
        return f"{metadata.cpp_namespace}::structured_{metadata.kernel}::impl"
    return f"{metadata.cpp_namespace}::{metadata.kernel}"


def _registered_elsewhere(device_key: str) -> Iterator[NativeFunction]:
    """Yield operators from outside ``native_functions.yaml``: torchvision's, c10d's, the user's own."""
    import torch

    def writes(item: Any) -> bool:
        return item.alias_info is not None and bool(item.alias_info.is_write)

    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(("prim::", "aten::", "static_runtime::", "_test::")):
            continue
        yield NativeFunction(
            name=schema.name,
            overload=schema.overload_name,
            schema=str(schema).rpartition("::")[2] if "::" in str(schema) else str(schema),
            arguments=tuple(Argument(item.name, _declared(item.type, item.alias_info)) for item in schema.arguments),
            returns=tuple(Argument(item.name, _declared(item.type, item.alias_info)) for item in schema.returns),
            is_view=not any(map(writes, schema.arguments)) and any(item.alias_info for item in schema.returns),
            registrations=_registrations(schema.name, schema.overload_name, device_key),
        )


def _declared(kind: Any, alias: Any) -> str:
    """Return a type as ``native_functions.yaml`` writes it, with what it aliases: ``Tensor(a!)?``, ``int[]``.

    Args:
        kind: the type, as PyTorch's schemas have it.
        alias: what a schema says of aliasing and writing; None if it says nothing.
    """
    if kind.kind() in _OF_ELEMENTS:
        return _declared(kind.getElementType(), alias) + _OF_ELEMENTS[kind.kind()]
    name = _YAML_NAMES.get(str(kind), str(kind))
    if alias is None:
        return name
    return f"{name}({'|'.join(sorted(alias.before_set)) or 'a'}{'!' if alias.is_write else ''})"


def _registrations(name: str, overload: str, device_key: str) -> dict[str, str]:
    """Map the device's dispatch key to where its kernel was registered: ``RegisterCUDA_0.cpp:123 (kernel)``."""
    import torch

    qualified = f"{name}.{overload}" if overload else name
    try:
        table = torch._C._dispatch_dump_table(qualified)
    except RuntimeError:  # known to the schema registry but not to the dispatcher
        return {}
    for line in table.splitlines():
        match = _REGISTRATION.match(line)
        if match and match["key"] == device_key:
            where = Path(match["where"]).name
            return {device_key: f"{where}:{match['line']} ({match['kind']})"}
    return {}
