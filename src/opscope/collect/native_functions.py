"""The operators of the installed PyTorch: ``native_functions.yaml`` through torchgen, plus its dispatcher."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from opscope._version import __version__
from opscope.base.errors import EnvironmentLacksError, OpscopeError
from opscope.base.files import PRIVATE_FILE, digest_of, is_own, private_folder, write_whole
from opscope.knowledge.native_functions import Argument, NativeFunction, NativeFunctionTable
from opscope.record.codec import UNREADABLE

_REGISTRATION = re.compile(r"^(?P<key>\w+): registered at (?P<where>.+?)(?::(?P<line>\d+))? \[(?P<kind>.+)\]$")


def installed_table(device_key: str) -> NativeFunctionTable:
    """Read the operators of the installed PyTorch and what its dispatcher has for a device.

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
    """Return what `listed_functions` does, from the cache: reading the files takes more than a second.

    Raises:
        ImportError: torchgen or PyYAML is missing.
    """
    import torchgen

    listed = Path(next(iter(torchgen.__path__))) / "packaged" / "ATen" / "native" / "native_functions.yaml"
    try:
        name = f"{digest_of(listed)}-{__version__}.msgpack"
        kept = private_folder("operators") / name
        if is_own(kept):
            return msgspec.msgpack.decode(kept.read_bytes(), type=list[NativeFunction])
    except (OSError, OpscopeError, *UNREADABLE):
        return listed_functions()
    functions = listed_functions()
    with contextlib.suppress(OpscopeError):
        write_whole(kept, msgspec.msgpack.encode(functions), PRIVATE_FILE)
    return functions


def listed_functions() -> list[NativeFunction]:
    """Read the files that come with torchgen: ``native_functions.yaml`` and ``derivatives.yaml``. Needs no PyTorch.

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
    """Read the derivative formulas: overload (``addmm``, ``add.Tensor``) -> differentiated inputs -> formula."""
    import yaml

    if not path.is_file():
        return {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the former takes a tenth of the time, where it was built
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
    """Return the formulas of gradients of inputs; the file has forward derivatives of results too."""
    arguments = {argument.name for argument in function.func.schema_order_arguments()}
    return {inputs: text for inputs, text in formulas.items() if {i.strip() for i in inputs.split(",")} <= arguments}


def _cpp_function(metadata: Any) -> str:
    if metadata.structured:
        return f"{metadata.cpp_namespace}::structured_{metadata.kernel}::impl"
    return f"{metadata.cpp_namespace}::{metadata.kernel}"


def _registered_elsewhere(device_key: str) -> Iterator[NativeFunction]:
    """Yield the operators that libraries registered: torchvision, c10d, the user's own."""
    import torch

    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(("prim::", "aten::", "static_runtime::", "_test::")):
            continue
        yield NativeFunction(
            name=schema.name,
            overload=schema.overload_name,
            schema=str(schema).rpartition("::")[2] if "::" in str(schema) else str(schema),
            arguments=tuple(Argument(item.name, str(item.type)) for item in schema.arguments),
            returns=tuple(Argument(item.name, str(item.type)) for item in schema.returns),
            registrations=_registrations(schema.name, schema.overload_name, device_key),
        )


def _registrations(name: str, overload: str, device_key: str) -> dict[str, str]:
    """Ask the dispatcher what serves the device: "RegisterCUDA_0.cpp:123 (kernel)"."""
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
