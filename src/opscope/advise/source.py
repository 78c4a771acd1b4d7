"""A file of the user's source, read as a syntax tree and changed in places. Needs no PyTorch."""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from msgspec import Struct, field

from opscope.base.errors import OpscopeError
from opscope.base.files import is_users

# ---------------------------------------------------------------- places


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


# ---------------------------------------------------------------- source


LOOPS: Final = (ast.For, ast.While, ast.AsyncFor)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
# What takes a dot or an operator without parentheses.
SIMPLE: Final = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)


class NotWritableError(OpscopeError):
    """A change cannot be written into the source by itself."""


class EditedFile:
    """One file, with the edits that are to be made.

    Args:
        path: the file.

    Raises:
        NotWritableError: it cannot be read, or is not Python.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._text = path.read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(self._text).readline)
            self.tree = ast.parse(self._text, str(path))
        except (OSError, SyntaxError, ValueError) as error:
            raise NotWritableError(f"{path} cannot be read: {error}") from error
        if encoding != "utf-8":  # utf-8-sig begins with a mark, which shifts the first line
            raise NotWritableError(f"{path} is in {encoding}, not in UTF-8")
        self._end_of_line = b"\r\n" if b"\r\n" in self._text else b"\n"
        self._starts = [0]
        for line in self._text.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._starts[-1] = len(self._text)
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._edits: list[tuple[int, int, bytes]] = []

    @property
    def text(self) -> str:
        """The text as it is."""
        return self._text.decode()

    def edited(self) -> str:
        """Return the text with all edits made.

        Raises:
            NotWritableError: two of them are in each other's way.
        """
        result, last = [], 0
        # Stable: of edits in one place the first comes first.
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2]):
            if start < last:
                raise NotWritableError(f"two changes meet in {self.path.name}")
            result += [self._text[last:start], new]
            last = end
        return b"".join([*result, self._text[last:]]).decode()

    # ---------------------------------------------------------------- where

    def call_at(self, place: CallSite) -> ast.Call:
        """Return the call that is at a place."""
        wanted = (place.line, place.end_line, place.column, place.end_column)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _span(node) == wanted:
                return node
        raise NotWritableError(f"line {place.line} of {self.path.name} holds no plain call")

    def statement_at(self, place: CallSite) -> ast.stmt:
        """Return the innermost statement around a place."""
        best: ast.stmt | None = None
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and _holds(node, place) and (best is None or _inside(node, best)):
                best = node
        if best is None:
            raise NotWritableError(f"line {place.line} of {self.path.name} is in no statement")
        return best

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node is in, the innermost first, as far as the function or class that it is in."""
        while (node := self._parents.get(node)) is not None:  # type: ignore[assignment]
            yield node
            if isinstance(node, _FUNCTIONS):
                return

    def outermost_loop(self, node: ast.AST) -> ast.stmt | None:
        """Return the outermost loop of the function, or module, that a node is in; None if it is in no loop there."""
        loops = [one for one in self.around(node) if isinstance(one, LOOPS)]
        return loops[-1] if loops else None

    def last_assignment(self, name: str, node: ast.AST) -> ast.stmt | None:
        """Return the last statement of a node's function before the node that binds a name; None without one."""
        around = [node, *self.around(node)]
        scope = around[-1]
        before = [
            one
            for one in ast.walk(scope)
            if isinstance(one, ast.Assign)
            and one.lineno < node.lineno  # type: ignore[attr-defined]
            and any(ast.unparse(target) == name for target in one.targets)
            and next((outer for outer in self.around(one) if isinstance(outer, _FUNCTIONS)), self.tree)
            in (scope, self.tree)
        ]
        last = max(before, key=lambda one: one.lineno, default=None)
        if last is not None and any(
            outer not in around for outer in self.around(last) if isinstance(outer, ast.stmt) and outer is not scope
        ):
            raise NotWritableError(f"{name} gets its value in a branch, in line {last.lineno} of {self.path.name}")
        return last

    def common_block(self, first: ast.stmt, last: ast.stmt) -> tuple[ast.stmt, ast.stmt]:
        """Return the two statements of one block that hold two statements; one twice where that is the innermost."""
        firsts = [first, *(one for one in self.around(first) if isinstance(one, ast.stmt))]
        lasts = [last, *(one for one in self.around(last) if isinstance(one, ast.stmt))]
        for one in firsts:
            for other in lasts:
                if one is other or self._block(one) == self._block(other):
                    return one, other
        raise NotWritableError(f"lines {first.lineno} and {last.lineno} of {self.path.name} are in no block together")

    def _block(self, statement: ast.stmt) -> tuple[int, str]:
        parent = self._parents[statement]
        for name, value in ast.iter_fields(parent):
            if isinstance(value, list) and statement in value:
                return id(parent), name
        return id(parent), ""

    def before(self, statement: ast.stmt) -> ast.stmt:
        """Return the statement before another one in its block."""
        parent = self._parents[statement]
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list) and statement in value and value.index(statement):
                return value[value.index(statement) - 1]  # type: ignore[no-any-return]
        raise NotWritableError(f"nothing comes before line {statement.lineno} of {self.path.name}")

    # ---------------------------------------------------------------- edits

    def insert_before(self, statement: ast.stmt, line: str) -> None:
        """Write a line before a statement."""
        self._insert_at(statement.lineno, self._indent(statement), line)

    def insert_after(self, statement: ast.stmt, line: str) -> None:
        """Write a line after a statement."""
        end = statement.end_lineno or statement.lineno
        self._insert_at(end + 1, self._indent(statement), line)

    def insert_after_imports(self, line: str) -> None:
        """Write a line behind the last import of the file's own block."""
        leading: ast.stmt | None = None
        for one in self.tree.body:
            is_text = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
            if not isinstance(one, ast.Import | ast.ImportFrom) and not is_text:
                break
            leading = one
        # Imports that come later may come after the work. But without PyTorch the line means nothing.
        torch = next((one for one in self.tree.body if _imports_torch(one)), None)
        last = torch if torch is not None and (leading is None or torch.lineno > leading.lineno) else leading
        if last is None:
            raise NotWritableError(f"{self.path.name} does not begin with imports")
        self._insert_at((last.end_lineno or last.lineno) + 1, b"", line)

    def name_of_torch(self) -> str:
        """Return the name by which the file knows PyTorch; one that does not know it gets an import."""
        for one in self.tree.body:
            for alias in one.names if isinstance(one, ast.Import) else ():
                if alias.name == "torch" or (alias.name.startswith("torch.") and alias.asname is None):
                    return alias.asname or "torch"
        if not any(new == b"import torch\n" for _, _, new in self._edits):
            self.insert_after_imports("import torch")
        return "torch"

    def name_of_functional(self) -> str:
        """Return the name by which the file knows ``torch.nn.functional``."""
        for one in self.tree.body:
            for alias in one.names if isinstance(one, ast.Import | ast.ImportFrom) else ():
                full = f"{one.module}.{alias.name}" if isinstance(one, ast.ImportFrom) else alias.name
                if full == "torch.nn.functional" and (alias.asname or isinstance(one, ast.ImportFrom)):
                    return alias.asname or alias.name
        return f"{self.name_of_torch()}.nn.functional"

    def delete(self, statement: ast.stmt) -> None:
        """Take a statement out, with its lines; comments in them stay, each in its own line."""
        self._check_alone(statement, statement)
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        tokens = tokenize.tokenize(io.BytesIO(self._text).readline)
        comments = [one.string for one in tokens if one.type == tokenize.COMMENT and first <= one.start[0] <= last]
        kept = b"".join(self._indent(statement) + one.encode() + self._end_of_line for one in comments)
        self._edits.append((self._starts[first - 1], self._starts[last], kept))

    def wrap(self, first: ast.stmt, last: ast.stmt, header: str) -> None:
        """Put statements of one block, from the first to the last, inside a ``with`` statement."""
        self._check_alone(first, last)
        indent = self._indent(first)
        step = b"\t" if b"\t" in indent else b"    "
        inside_strings = self._lines_inside_strings()
        self._insert_at(first.lineno, indent, f"{header}:")
        for line in range(first.lineno, (last.end_lineno or last.lineno) + 1):
            start = self._starts[line - 1]
            if line not in inside_strings and self._text[start : self._starts[line]].strip():
                self._edits.append((start, start, step))

    def set_keywords(self, call: ast.Call, values: Mapping[str, str], without: Sequence[str] = ()) -> None:
        """Give a call keyword arguments, in place of those of the same names.

        Args:
            call: the call.
            values: source by name.
            without: names of keyword arguments to take out.
        """
        options = {one.arg: one for one in call.keywords}
        taken_out = [name for name in without if name in options]
        if taken_out:
            self._rewrite(call, values, taken_out)
            return
        for name, value in values.items():
            if name in options:
                self._replace(options[name].value, value)
        new = ", ".join(f"{name}={value}" for name, value in values.items() if name not in options)
        if new:
            arguments = [*call.args, *(one.value for one in call.keywords)]
            if arguments:
                end = max(self._end(one) for one in arguments)
                end = self._behind_parentheses(end, call)
                self._edits.append((end, end, f", {new}".encode()))
            else:
                end = self._end(call) - 1
                self._edits.append((end, end, new.encode()))

    def without_argument(self, call: ast.Call, name: str) -> None:
        """Take an argument out of a call: the keyword, or else the only positional one."""
        if any(one.arg == name for one in call.keywords):
            self._rewrite(call, {}, [name])
        else:
            self._edits.append((self._end(call.func), self._end(call), b"()"))

    def append_to(self, expression: ast.expr, suffix: str) -> None:
        """Put something behind an expression, such as a method's call."""
        if isinstance(expression, ast.Starred):
            raise NotWritableError(f"the inputs in line {expression.lineno} of {self.path.name} are unpacked")
        start, end = self._start(expression), self._end(expression)
        if isinstance(expression, SIMPLE):
            self._edits.append((end, end, suffix.encode()))
        else:
            self._edits += [(start, start, b"("), (end, end, f"){suffix}".encode())]

    def rename(self, expression: ast.expr, name: str) -> None:
        """Write another expression in the place of one."""
        self._replace(expression, name)

    def segment(self, node: ast.AST) -> str:
        """Return the text of a node."""
        return self._text[self._start(node) : self._end(node)].decode()

    # ---------------------------------------------------------------- inside

    def _rewrite(self, call: ast.Call, values: Mapping[str, str], without: Sequence[str]) -> None:
        left = {one.arg: self.segment(one.value) for one in call.keywords if one.arg and one.arg not in without}
        unpacked = [f"**{self.segment(one.value)}" for one in call.keywords if one.arg is None]
        words = [f"{name}={value}" for name, value in {**left, **values}.items()]
        arguments = ", ".join([*(self.segment(one) for one in call.args), *words, *unpacked])
        self._edits.append((self._end(call.func), self._end(call), f"({arguments})".encode()))

    def _replace(self, node: ast.AST, new: str) -> None:
        text = new.encode().replace(b"\r\n", b"\n").replace(b"\n", self._end_of_line)
        self._edits.append((self._start(node), self._end(node), text))

    def _behind_parentheses(self, end: int, call: ast.Call) -> int:
        """Return where an argument ends with the parentheses around it."""
        close = self._end(call) - 1
        while (rest := self._text[end:close].lstrip()).startswith(b")"):
            end = close - len(rest) + 1
        return end

    def _insert_at(self, line: int, indent: bytes, text: str) -> None:
        start = self._starts[min(line, len(self._starts)) - 1]
        new = indent + text.encode() + self._end_of_line
        if start and self._text[start - 1 : start] != b"\n":  # the file's last line has no end
            new = self._end_of_line + new
        self._edits.append((start, start, new))

    def _check_alone(self, first: ast.stmt, last: ast.stmt) -> None:
        """Refuse statements that share a line with others of their block."""
        parent = self._parents[first]
        block = next(value for _, value in ast.iter_fields(parent) if isinstance(value, list) and first in value)
        inside = block[block.index(first) : block.index(last) + 1]
        for one in block:
            if one not in inside and one.lineno <= (last.end_lineno or 0) and (one.end_lineno or 0) >= first.lineno:
                raise NotWritableError(f"line {one.lineno} of {self.path.name} holds several statements")

    def _indent(self, statement: ast.stmt) -> bytes:
        start = self._starts[statement.lineno - 1]
        indent = self._text[start : start + statement.col_offset]
        if indent.strip():
            raise NotWritableError(f"line {statement.lineno} of {self.path.name} holds several statements")
        return indent

    def _start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined, no-any-return]

    def _end(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined, no-any-return]

    def _lines_inside_strings(self) -> set[int]:
        """Return the lines that begin inside of a string, which indentation would change."""
        inside: set[int] = set()
        opened: list[int] = []
        for token in tokenize.tokenize(io.BytesIO(self._text).readline):
            name = tokenize.tok_name[token.type]
            if name == "STRING":
                inside |= set(range(token.start[0] + 1, token.end[0] + 1))
            elif name == "FSTRING_START":  # from Python 3.12 on
                opened.append(token.start[0])
            elif name == "FSTRING_END":
                inside |= set(range(opened.pop() + 1, token.end[0] + 1))
        return inside


def _imports_torch(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import) and any(alias.name == "torch" for alias in statement.names)


def _span(node: ast.expr) -> tuple[int, int | None, int, int | None]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _holds(node: ast.stmt, place: CallSite) -> bool:
    begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return begin <= (place.line, place.column) and (place.end_line, place.end_column) <= end


def _inside(node: ast.stmt, other: ast.stmt) -> bool:
    return (other.lineno, other.col_offset) <= (node.lineno, node.col_offset)
