"""Makes PyTorch operators from CUDA or C++ sources: built, checked before each call, usable with ``torch.compile``."""

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final, get_type_hints

import torch
from msgspec import Struct

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.files import PRIVATE_FILE, alone_in, digest_of, is_own, private_folder, write_whole
from opscope.base.text import lazy_pattern
from opscope.workbench.toolchain.listing import first_error
from opscope.workbench.toolchain.nvcc import BuildFailedError, installed

_Function = Callable[..., object]
# Python annotations -> types of the C++ declarations.
_TYPES: Final = {torch.Tensor: "torch::Tensor", int: "int64_t", float: "double", bool: "bool"}
_NAME: Final = lazy_pattern(r"[A-Za-z_]\w*")
_ANY_NAME: Final = "TORCH_EXTENSION_NAME"
_MODULE: Final = lazy_pattern(r"^[ \t]*PYBIND11_MODULE\s*\(\s*(\w+)", re.MULTILINE)
_INCLUDE: Final = lazy_pattern(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
# Sources need not include these headers themselves.
_INCLUDED: Final = ("-include", "torch/types.h")
_INCLUDED_CUDA: Final = (*_INCLUDED, "-include", "cuda_runtime.h")


class Requires(Struct, frozen=True, kw_only=True):
    """What a tensor must be for a kernel to read it.

    Attributes:
        dtypes: the data types that it may have; None allows all.
        dims: its number of dimensions; None allows any.
        contiguous: whether it must be contiguous.
        shape_of: the name of the argument whose shape it must have; None allows any shape.
    """

    dtypes: tuple[torch.dtype, ...] | None = None
    dims: int | None = None
    contiguous: bool = True
    shape_of: str | None = None

    def problem(self, name: str, value: torch.Tensor, arguments: Mapping[str, object]) -> str | None:
        """Return what is wrong with an argument; None if nothing is.

        Args:
            name: of the argument.
            value: the argument.
            arguments: all arguments of the call, by name.
        """
        if self.dtypes is not None and value.dtype not in self.dtypes:
            return f"{name} is of {_short(value.dtype)}, not of {' or '.join(map(_short, self.dtypes))}"
        if self.dims is not None and value.dim() != self.dims:
            return f"{name} has {value.dim()} dimensions, not {self.dims}"
        if self.contiguous and not value.is_contiguous():
            return f"{name} is not contiguous: its strides are {tuple(value.stride())}; {name}.contiguous() copies it"
        other = arguments.get(self.shape_of) if self.shape_of is not None else None
        if isinstance(other, torch.Tensor) and value.shape != other.shape:
            return f"{name} has the shape {tuple(value.shape)}, {self.shape_of} has {tuple(other.shape)}"
        return None


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Operators:
    """The operators of one source, as attributes; each is also ``torch.ops.<namespace>.<name>``.

    Attributes:
        namespace: the operators' namespace in ``torch.ops``.
        source: the file that they were built from, or a name for a text.
    """

    def __init__(self, namespace: str, source: Path, operators: Mapping[str, _Function]) -> None:
        self.namespace, self.source = namespace, source
        self._operators = dict(operators)

    def __getattr__(self, name: str) -> _Function:
        try:
            return self.__dict__["_operators"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"there is no operator {name}; there are {', '.join(self._operators)}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._operators]

    def __repr__(self) -> str:
        return f"<operators {', '.join(self._operators)} of {self.source.name}, torch.ops.{self.namespace}>"


def load_kernel(
    source: str | Path,
    functions: Mapping[str, _Function],
    *,
    requires: Mapping[str, Requires] | None = None,
    name: str = "kernels",
    flags: tuple[str, ...] = (),
) -> Operators:
    """Build operators from a source, unless they are in the cache, and register them with PyTorch.

    Each call first checks that all tensors are on one device (a GPU for a CUDA source) and are what ``requires`` asks
    for, by default contiguous. The operators work under ``torch.compile`` and pass ``torch.library.opcheck``.

    Args:
        source: a ``.cu`` or ``.cpp`` file, or the text of one (CUDA, where it has a ``__global__``). It defines C++
            functions that take and return ``torch::Tensor``, ``int64_t``, ``double`` and ``bool``. A source with its
            own ``PYBIND11_MODULE`` is built as an extension without changes.
        functions: per function of the source (or of its module, if it has one), the fake kernel: an annotated Python
            function with the same parameters, which returns empty tensors like the results.
        requires: per parameter, what it must be; for all functions that have the parameter. None for the defaults.
        name: the operators' namespace in ``torch.ops``.
        flags: further flags for the compiler.

    Raises:
        UsageError: a signature cannot be translated, the source lacks a function, or another source has registered an
            operator of that name.
        EnvironmentLacksError: PyTorch has no CUDA, or a compiler or ninja is missing.
        BuildFailedError: the source cannot be compiled; the message has the compiler's first error, with its line.
    """
    if not functions or not _NAME.fullmatch(name):
        raise UsageError(f"load_kernel needs functions, and a name that is one of C++: {name!r}")
    declarations = {function: declaration(function, fake) for function, fake in functions.items()}
    known = {one for fake in functions.values() for one in inspect.signature(fake).parameters}
    if unknown := [one for one in requires or {} if one not in known]:
        raise UsageError(
            f"requires names {unknown[0]!r}, which no function takes; there are {', '.join(sorted(known))}"
        )
    text, file = _text(source)
    is_cuda = "__global__" in text or (file is not None and file.suffix == ".cu")
    _refuse_taken(name, functions, file, text)
    module = _built(name, text, file, declarations, flags, is_cuda=is_cuda)
    for function in functions:
        if not hasattr(module, function):
            bound = ", ".join(one for one in vars(module) if not one.startswith("_")) or "none"
            raise UsageError(f"the module of {file or 'the source'} has no function {function}; it has: {bound}")
    operators = {
        function: _registered(f"{name}::{function}", getattr(module, function), fake, requires or {}, is_cuda=is_cuda)
        for function, fake in functions.items()
    }
    for function in functions:
        _taken[f"{name}::{function}"] = _origin(file, text)
    return Operators(name, file or Path(f"{name}.{'cu' if is_cuda else 'cpp'}"), operators)


_taken: dict[str, str] = {}  # operator -> the path or digest of the source that it was built from, in this process


def _origin(file: Path | None, text: str) -> str:
    return str(file) if file is not None else hashlib.sha256(text.encode()).hexdigest()


def _refuse_taken(name: str, functions: Mapping[str, _Function], file: Path | None, text: str) -> None:
    """Check that no operator of another source is replaced: code that holds the old one would call the new one.

    Raises:
        UsageError: another source has registered an operator of that name.
    """
    for function in functions:
        before = _taken.get(f"{name}::{function}")
        if before is not None and before != _origin(file, text):
            raise UsageError(
                f"{name}::{function} is there already, of another source: name= gives this one another name"
            )


def _text(source: str | Path) -> tuple[str, Path | None]:
    if isinstance(source, Path) or ("\n" not in source and source.endswith((".cu", ".cpp"))):
        path = Path(source).resolve()
        if not path.is_file():
            raise UsageError(f"there is no source {path}")
        return path.read_text(encoding="utf-8"), path
    return source, None


def declaration(name: str, fake: _Function) -> str:
    """Return the C++ declaration of a function, from its fake kernel's annotations.

    Args:
        name: the C++ function's name.
        fake: a Python function whose parameters and result are all annotated.

    Raises:
        UsageError: an annotation is missing, or cannot be translated to C++.
    """
    hints = get_type_hints(fake)
    parameters = list(inspect.signature(fake).parameters)
    kinds = {parameter.kind for parameter in inspect.signature(fake).parameters.values()}
    if kinds - {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}:
        raise UsageError(f"the fake kernel of {name} has parameters that C++ has not: keyword-only, or *arguments")
    if not _NAME.fullmatch(name) or "return" not in hints or any(one not in hints for one in parameters):
        raise UsageError(f"the fake kernel of {name} needs annotations of all its parameters and of its result")
    types = {one: _TYPES.get(hints[one]) for one in parameters}
    unknown = [one for one, cpp in types.items() if cpp is None]
    result = _result_type(hints["return"])
    if unknown or result is None:
        what = f"its parameter {unknown[0]}" if unknown else "its result"
        raise UsageError(f"{name}: {what} is none of Tensor, int, float and bool (and tuples of Tensor as results)")
    return f"{result} {name}({', '.join(f'{cpp} {one}' for one, cpp in types.items())});"


def _result_type(hint: object) -> str | None:
    if isinstance(hint, type) and hint in _TYPES:
        return _TYPES[hint]
    parts = getattr(hint, "__args__", ())
    if getattr(hint, "__origin__", None) is tuple and parts and all(part is torch.Tensor for part in parts):
        return f"std::tuple<{', '.join(['torch::Tensor'] * len(parts))}>"
    return None


def _built(
    name: str, text: str, file: Path | None, declarations: Mapping[str, str], flags: tuple[str, ...], *, is_cuda: bool
) -> ModuleType:
    if is_cuda and torch.version.cuda is None:
        raise EnvironmentLacksError("a CUDA source needs a PyTorch with CUDA; this one is built for the CPU")
    capability = torch.cuda.get_device_capability() if is_cuda and torch.cuda.is_available() else None
    bound = _MODULE.search(text)
    binding = None if bound is not None else _binding(declarations)
    # All that decides what is built; each combination gets a folder of its own.
    parts = [text, binding or "", *flags, torch.__version__, str(capability)]
    parts.append(installed().version if is_cuda else "")
    if file is not None:  # the same text with other headers beside it is another program
        parts += [str(file), *_included(file, text)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = private_folder(f"operators/{name}-{key}")
    own = file or folder / f"{name}.{'cu' if is_cuda else 'cpp'}"
    if file is None:
        _keep(own, text)
    sources, called = [own], f"{name}_{key}"
    if binding is not None:
        sources.append(folder / f"opscope_binding_{key}.cpp")
        _keep(sources[-1], binding)
    elif bound is not None and bound[1] != _ANY_NAME:
        called = bound[1]  # Python looks for an initialisation of this name, so the library must have it
    with alone_in(folder, lambda: _say_waiting(folder)):
        _clear(folder, called)
        module = _compiled(called, folder, sources, flags, capability, is_cuda=is_cuda)
        library = folder / f"{called}.so"
        if library.is_file():
            write_whole(_digest_of(library), digest_of(library).encode(), PRIVATE_FILE)
    return module


def _included(source: Path, text: str) -> Iterator[str]:
    """Yield the path and digest of each header beside a source that it includes, directly or through others."""
    waiting, seen = [(source.parent, text)], set[Path]()
    while waiting:
        folder, content = waiting.pop()
        for name in _INCLUDE.findall(content):
            header = (folder / name).resolve()
            if header in seen or not header.is_file():
                continue
            seen.add(header)
            inner = header.read_text(encoding="utf-8", errors="replace")
            yield f"{header} {hashlib.sha256(inner.encode()).hexdigest()}"
            waiting.append((header.parent, inner))


def _clear(folder: Path, name: str) -> None:
    """Remove what a killed build left behind; no other process may build in the folder meanwhile.

    PyTorch's own lock is a file that stays when its process is killed, and a library may be incomplete.
    """
    (folder / "lock").unlink(missing_ok=True)
    library = folder / f"{name}.so"
    if not library.exists():
        return
    kept = _digest_of(library)
    whole = kept.is_file() and is_own(library) and kept.read_text() == digest_of(library)
    if not whole:
        library.unlink()
        kept.unlink(missing_ok=True)


def _digest_of(library: Path) -> Path:
    return library.with_name(f"{library.name}.digest")


def _say_waiting(folder: Path) -> None:
    sys.stderr.write(f"opscope: another process builds in {folder}; waiting for it\n")


def _keep(path: Path, text: str) -> None:
    """Write a file unless it has that text already: ninja would rebuild what depends on a newer file."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_whole(path, text.encode())


def _binding(declarations: Mapping[str, str]) -> str:
    names = "\n".join(f'    module.def("{name}", &{name});' for name in declarations)
    lines = "\n".join(declarations.values())
    # Not torch/extension.h: it has all of PyTorch's C++ interface, which takes twice as long to compile.
    headers = "#include <torch/csrc/utils/pybind.h>\n#include <torch/types.h>"
    return f"{headers}\n\n{lines}\n\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {{\n{names}\n}}\n"


def _compiled(
    name: str, folder: Path, sources: list[Path], flags: tuple[str, ...], capability: tuple[int, int] | None, *,
    is_cuda: bool,
) -> ModuleType:  # fmt: skip
    from torch.utils import cpp_extension

    try:
        with _for_architecture(capability):
            module: ModuleType = cpp_extension.load(
                name=name,
                sources=[str(source) for source in sources],
                build_directory=str(folder),
                extra_cflags=["-O3", *(_INCLUDED if not is_cuda else ()), *(flags if not is_cuda else ())],
                extra_cuda_cflags=["-O3", "-lineinfo", *_INCLUDED_CUDA, *flags],
                with_cuda=is_cuda,
            )
    except ImportError as error:
        raise BuildFailedError(
            f"{sources[0].name} does not define a function as its fake kernel declares it: {error}; int is int64_t "
            "there, float double"
        ) from error
    except (RuntimeError, OSError) as error:
        message = str(error)
        if "Ninja is required" in message or "CUDA_HOME" in message or "No such file or directory: 'which'" in message:
            raise EnvironmentLacksError(f"operators cannot be built here: {message.splitlines()[0]}") from error
        raise BuildFailedError(f"{sources[0].name} cannot be built: {first_error(message)}") from error
    return module


@contextmanager
def _for_architecture(capability: tuple[int, int] | None) -> Iterator[None]:
    """In a ``with`` block, build for this machine's device only, and with the ninja of this Python environment.

    Args:
        capability: of the device; None leaves the architectures to PyTorch.
    """
    # pip installs ninja beside Python's executable, which need not be on the PATH.
    wanted = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
    if capability is not None and "TORCH_CUDA_ARCH_LIST" not in os.environ:
        wanted["TORCH_CUDA_ARCH_LIST"] = f"{capability[0]}.{capability[1]}"
    before = {variable: os.environ.get(variable) for variable in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


def _registered(
    qualified: str, built: _Function, fake: _Function, requires: Mapping[str, Requires], *, is_cuda: bool
) -> _Function:
    signature = inspect.signature(fake)

    def call(*arguments: object, **named: object) -> object:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        if (problem := check_arguments(bound.arguments, requires, is_cuda=is_cuda)) is not None:
            raise UsageError(f"{qualified}: {problem}")
        device = next((one.device for one in bound.args if isinstance(one, torch.Tensor) and one.is_cuda), None)
        if device is None:
            return built(*bound.args)
        with torch.cuda.device(device):  # launches go to the current device
            return built(*bound.args)

    call.__name__, call.__doc__ = fake.__name__, fake.__doc__
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = dict(get_type_hints(fake))
    schema = torch.library.infer_schema(fake, mutates_args=())
    operator = torch.library.custom_op(qualified, call, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    return operator  # type: ignore[no-any-return]


def check_arguments(arguments: Mapping[str, object], requires: Mapping[str, Requires], *, is_cuda: bool) -> str | None:
    """Return what is wrong with the arguments of a call; None if nothing is.

    Args:
        arguments: all arguments, by name.
        requires: what tensors must be, by the argument's name; others must be contiguous.
        is_cuda: whether tensors must be on a GPU.
    """
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    for name, value in tensors.items():
        if is_cuda and not value.is_cuda:
            return f"{name} is on {value.device}: the kernel runs on a GPU; {name}.cuda() copies it there"
    devices = {value.device for value in tensors.values()}
    if len(devices) > 1:
        return f"the tensors are on {' and '.join(sorted(map(str, devices)))}: they must be on one device"
    for name, value in tensors.items():
        problem = requires.get(name, Requires()).problem(name, value, arguments)
        if problem is not None:
            return problem
    return None
