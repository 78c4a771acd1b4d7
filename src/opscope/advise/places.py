"""Where in the user's source something happens: read off the frames that are running. Needs no PyTorch."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from msgspec import Struct, field

from opscope.base.files import is_users


class CallSite(Struct, frozen=True):
    """A call that is running, in the user's source.

    Attributes:
        file: the absolute path.
        line, end_line: where the call's expression begins and ends, from 1.
        column, end_column: the same within these lines, in bytes from 0.
        frame: which run of the function it is; while that goes on, the same number is the same run.
        function: the function's name, with those that it is in.
        names: expressions that stand for the object of interest there, such as ``model`` or ``self.model``.
    """

    file: str
    line: int
    end_line: int
    column: int
    end_column: int
    frame: int
    function: str
    names: tuple[str, ...] = ()

    def is_same_run(self, other: "CallSite") -> bool:
        """Tell whether two places are in the same run of a function."""
        return (self.frame, self.file, self.function) == (other.frame, other.file, other.function)

    @property
    def at(self) -> tuple[str, int, int]:
        """What tells it from other places in the source, whichever run of the function it is."""
        return self.file, self.line, self.column


Stack = tuple[CallSite, ...]  # the innermost first


class Call(Struct, frozen=True):
    """A call of a root module.

    Attributes:
        stack: where.
        own_class: whether its class is the user's, and not one of PyTorch's.
        floats: the positions and names of its inputs that are floating-point tensors.
        images: the same of those with four dimensions.
        nested: whether floating-point tensors are inside of other inputs.
    """

    stack: Stack
    own_class: bool
    floats: tuple[int | str, ...] = ()
    images: tuple[int | str, ...] = ()
    nested: bool = False


class ScriptPlaces(Struct):
    """Where a script does what changes concern.

    Attributes:
        calls: of root modules.
        backward: of backward passes.
        kept_gradients: where gradients are set to zero instead of None.
        optimizers: where those that step were made, with the names of their classes.
        loaders: where those that a step reads from were made.
        attention: where functions that compute attention step by step begin: file and line.
    """

    calls: list[Call] = field(default_factory=list)
    backward: list[Stack] = field(default_factory=list)
    kept_gradients: list[Stack] = field(default_factory=list)
    optimizers: list[tuple[str, Stack]] = field(default_factory=list)
    loaders: list[Stack] = field(default_factory=list)
    attention: list[tuple[str, int]] = field(default_factory=list)


def here(of: object = None) -> Stack:
    """Return where this is called from, as far as that is the user's source.

    Args:
        of: the object of interest, see `CallSite.names`.
    """
    return tuple(_place(frame, of) for frame in _frames() if is_users(frame.f_code.co_filename))


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType, of: object) -> CallSite:
    code = frame.f_code
    positions = list(code.co_positions())[frame.f_lasti // 2]
    line, end_line, column, end_column = (one if one is not None else 0 for one in positions)
    names = () if of is None else tuple(_names_of(of, frame))
    file = str(Path(code.co_filename).absolute())
    return CallSite(file, line, end_line, column, end_column, id(frame), code.co_qualname, names)


def _names_of(of: object, frame: FrameType) -> Iterator[str]:
    for name, value in list(frame.f_locals.items()):
        if value is of:
            yield name
        elif (own := getattr(value, "__dict__", None)) and isinstance(own, dict):
            modules = own.get("_modules")  # of a module, whose attributes they are
            held = {**own, **modules} if isinstance(modules, dict) else own
            yield from (f"{name}.{key}" for key, one in held.items() if one is of and key.isidentifier())
