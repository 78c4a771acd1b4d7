"""Writes attention that a function computes step by step as one call, in the user's source. Needs no PyTorch.

What is looked for is what `opscope.advise.attention` finds in traces: ``softmax(q @ k.transpose(-2, -1) * scale + mask)
@ v``, in one expression or in statements of one block that each go on from the one before.
"""

import ast
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from opscope.advise.source import NotWritableError, Source

T = TypeVar("T")
_TRANSPOSED: Final = ({-1, -2}, {2, 3})  # the dimensions of keys that are swapped; they may have four
_LEAST_HIDDEN: Final = -1e4  # what masks fill in for "not seen": as in `opscope.advise.attention`
_INFINITE: Final = ("float('-inf')", "-float('inf')", "-math.inf", "-torch.inf", "-np.inf", "-inf")
_LONG: Final = 90  # characters of a line
_SIMPLE: Final = (
    ast.Name,
    ast.Attribute,
    ast.Call,
    ast.Subscript,
    ast.Constant,
)  # take an operator without parentheses


def fuse_attention(source: Source, line: int) -> None:
    """Have a function call the fused operator.

    Args:
        source: the file.
        line: where the function begins, with its decorators.

    Raises:
        NotWritableError: its attention is not written as one of the known ways.
    """
    found = [one for block in _blocks(_function_at(source, line)) for one in _attentions(source, block)]
    if not found:
        said = f"the attention in line {line} of {source.path.name} is written in a way that opscope cannot rewrite"
        raise NotWritableError(f"{said}: fused_attention has to be written by hand")
    for one in found:
        source.rename(one.product, one.call(source, next(part.col_offset for part in _around(source, one.product))))
        for statement in one.steps:
            source.delete(statement)


def _function_at(source: Source, line: int) -> ast.FunctionDef:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == line:
                return node
    raise NotWritableError(f"no function begins in line {line} of {source.path.name}")


def _blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements of a function, its own and those in branches and loops."""
    for node in ast.walk(function):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


class _Found(Struct, frozen=True):
    """One attention, as far as it was read: from its last product backwards.

    Attributes:
        product: of the weights with the values, which is replaced.
        steps: statements that are left out: each is gone into by the one behind it.
        query, key, value: what is multiplied, the key not transposed.
        mask, dropout, scale: source of the arguments; empty without.
        moved: names in all of that, each with the number of the statement that it was read in.
    """

    product: ast.expr
    value: ast.expr
    steps: tuple[ast.stmt, ...] = ()
    query: ast.expr | None = None
    key: ast.expr | None = None
    mask: str = ""
    dropout: str = ""
    scale: str = "1.0"
    moved: tuple[tuple[str, int], ...] = ()

    def call(self, source: Source, indent: int) -> str:
        """Return the call of the fused operator, in several lines where one would be long."""
        assert self.query is not None
        assert self.key is not None
        tensors = ", ".join(source.segment(one) for one in (self.query, self.key, self.value))
        named = {"attn_mask": self.mask, "dropout_p": self.dropout, "scale": self.scale}
        parts = [tensors, *(f"{name}={text}" for name, text in named.items() if text)]
        called = f"{source.name_of_functional()}.scaled_dot_product_attention"
        if indent + len(called) + sum(map(len, parts)) < _LONG:
            return f"{called}({', '.join(parts)})"
        lines = "".join(f"{' ' * (indent + 4)}{part},\n" for part in parts)
        return f"{called}(\n{lines}{' ' * indent})"


def _around(source: Source, node: ast.expr) -> Iterator[ast.stmt]:
    return (one for one in source.around(node) if isinstance(one, ast.stmt))


def _attentions(source: Source, block: list[ast.stmt]) -> Iterator[_Found]:
    for place, statement in enumerate(block):
        for product in _own_expressions(statement):
            factors = _product(product)
            if factors is None:
                continue
            weights, value = factors
            found = _Reading(source, block, place, _Found(product, value)).weights(weights)
            if found is not None:
                yield found


def _own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement, without those of statements in it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


class _Reading(Struct, frozen=True):
    """Where the reader is: what is read so far holds at a statement, and only those before it were left out.

    Attributes:
        source: the file.
        block: the statements.
        place: the number of the statement that is read.
        found: what was read.
    """

    source: Source
    block: list[ast.stmt]
    place: int
    found: _Found

    def with_(self, read: ast.expr, **values: object) -> "_Reading":
        """Add what was read, and from which expression of the statement."""
        moved = ((name, self.place) for name in _names(read, ast.Load))
        return replace(self, found=replace(self.found, moved=(*self.found.moved, *moved), **values))

    def followed(self, node: ast.expr, read: Callable[["_Reading", ast.expr], T | None]) -> T | None:
        """Read an expression, or what a name was given in a statement before, if nothing else uses that."""
        result = read(self, node)
        if result is not None or not isinstance(node, ast.Name):
            return result
        for place in reversed(range(self.place)):
            statement = self.block[place]
            if node.id not in _names(statement, ast.Store):
                continue
            if not _gives(statement, node.id) or not self._is_used_here_alone(node.id, place):
                return None
            before = replace(self, place=place, found=replace(self.found, steps=(*self.found.steps, statement)))
            return before.followed(statement.value, read)  # type: ignore[attr-defined]
        return None

    def _is_used_here_alone(self, name: str, given: int) -> bool:
        """Tell whether a value that a statement gives a name is read by the statement in question, and nowhere else."""
        here = self.block[self.place]
        between = self.block[given + 1 : self.place]
        if any(name in _names(one, ast.Load) for one in between) or _loads(here, name) != 1:
            return False
        if name in _names(here, ast.Store):
            return True
        for one in self.block[self.place + 1 :]:
            if name in _names(one, ast.Load):
                return False
            if _gives(one, name):
                return True
        end = self.block[-1].end_lineno or 0
        function = next(one for one in self.source.around(here) if isinstance(one, ast.FunctionDef))
        return not any(
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) and node.lineno > end
            for node in ast.walk(function)
        )

    def weights(self, node: ast.expr) -> _Found | None:
        """Read what is multiplied with the values: dropout at most, then softmax."""
        return self.followed(node, _Reading._dropped) or self.followed(node, _Reading._softmax)

    def _dropped(self, node: ast.expr) -> _Found | None:
        if not isinstance(node, ast.Call) or not node.args:
            return None
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2].lower()
        if name == "dropout" and not called.startswith("self."):
            given = _arguments(node, ("input", "p", "training"))
            text = {key: self.source.segment(value) for key, value in given.items()}
            p, training = text.get("p", "0.5"), text.get("training", "True")
            dropout = f"{p} if {training} else 0.0"
        elif called.startswith("self.") and "drop" in name and len(node.args) == 1 and not node.keywords:
            dropout = f"{called}.p if {called}.training else 0.0"
        else:
            return None
        given_too = ast.Tuple([node.func, *node.args[1:], *(one.value for one in node.keywords)], ast.Load())
        return self.with_(given_too, dropout=dropout).followed(node.args[0], _Reading._softmax)

    def _softmax(self, node: ast.expr) -> _Found | None:
        if not isinstance(node, ast.Call) or "softmax" not in ast.unparse(node.func).rpartition(".")[2].lower():
            return None
        if ast.unparse(node.func).startswith("self."):
            scores = node.args[0] if len(node.args) == 1 else None
        else:
            given = _of_tensor(node, ("dim", "dtype"))
            scores = given.get("self") if "dtype" not in given and _number(given.get("dim")) == -1 else None
        return None if scores is None else self.followed(scores, _Reading._scores)

    def _scores(self, node: ast.expr) -> _Found | None:
        """Read what softmax is taken of: a mask at most, then a scale at most, then a product."""
        return self._masked(node) or self._added(node) or self._scaled(node) or self._multiplied(node)

    def _unmasked(self, node: ast.expr) -> _Found | None:
        return self._scaled(node) or self._multiplied(node)

    def _masked(self, node: ast.expr) -> _Found | None:
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(("masked_fill", "masked_fill_")):
            return None
        given = _of_tensor(node, ("mask", "value"))
        if set(given) != {"self", "mask", "value"} or not _hides(given["value"]):
            return None
        masked = self.with_(given["mask"], mask=self._seen(given["mask"]))
        return masked.followed(given["self"], _Reading._unmasked)

    def _seen(self, hidden: ast.expr) -> str:
        """Return a mask that is true where something is seen, of one that is true where nothing is."""
        if isinstance(hidden, ast.Compare) and len(hidden.ops) == 1 and _number(hidden.comparators[0]) == 0:
            other = {ast.Eq: "!=", ast.NotEq: "=="}.get(type(hidden.ops[0]))
            if other is not None:
                return f"{self.source.segment(hidden.left)} {other} 0"
        if isinstance(hidden, ast.UnaryOp) and isinstance(hidden.op, ast.Invert):
            return self.source.segment(hidden.operand)
        return f"~{self._in_parentheses(hidden)}"

    def _added(self, node: ast.expr) -> _Found | None:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return None
        added = self.with_(node.right, mask=self.source.segment(node.right))
        return added.followed(node.left, _Reading._unmasked)

    def _scaled(self, node: ast.expr) -> _Found | None:
        if not isinstance(node, ast.BinOp):
            return None
        if isinstance(node.op, ast.Div):
            divided = self.with_(node.right, scale=f"1 / {self._in_parentheses(node.right)}")
            return divided.followed(node.left, _Reading._multiplied)
        if not isinstance(node.op, ast.Mult):
            return None
        for scores, scale in ((node.left, node.right), (node.right, node.left)):
            found = self.with_(scale, scale=self.source.segment(scale)).followed(scores, _Reading._multiplied)
            if found is not None:
                return found
        return None

    def _multiplied(self, node: ast.expr) -> _Found | None:
        factors = _product(node)
        if factors is None:
            return None
        query, keys = factors
        return self.with_(query, query=query).followed(keys, _Reading._transposed)

    def _transposed(self, node: ast.expr) -> _Found | None:
        key = _not_transposed(node)
        if key is None:
            return None
        found = self.with_(key, key=key).found
        return found if self._holds_to_the_end(found) else None

    def _holds_to_the_end(self, found: _Found) -> bool:
        """Tell whether names in what was read still stand for the same where the product is: all of it moves there."""
        last = next(place for place, one in enumerate(self.block) if found.product in _own_expressions(one))
        return not any(name in _names(one, ast.Store) for name, place in found.moved for one in self.block[place:last])

    def _in_parentheses(self, node: ast.expr) -> str:
        text = self.source.segment(node)
        return text if isinstance(node, _SIMPLE) else f"({text})"


def _gives(statement: ast.stmt, name: str) -> bool:
    """Tell whether a statement gives a name a value, and does nothing else."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def _names(node: ast.AST, kind: type[ast.expr_context]) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, kind)}


def _loads(node: ast.AST, name: str) -> int:
    return sum(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load) for one in ast.walk(node))


def _product(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Return the two matrices that are multiplied; None where an expression is no such product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] not in ("matmul", "bmm"):
        return None
    given = _of_tensor(node, ("other",))
    return (given["self"], given["other"]) if set(given) == {"self", "other"} else None


def _not_transposed(node: ast.expr) -> ast.expr | None:
    """Return a tensor whose last two dimensions an expression swaps; None where it does not."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value
    if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] not in ("transpose", "swapaxes"):
        return None
    given = _of_tensor(node, ("dim0", "dim1"))
    dims = {_number(given.get("dim0")), _number(given.get("dim1"))}
    return given.get("self") if dims in _TRANSPOSED else None


def _arguments(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
    if any(isinstance(one, ast.Starred) for one in call.args):
        return {}
    given = dict(zip(names, call.args, strict=False))
    return given | {one.arg: one.value for one in call.keywords if one.arg is not None}


def _of_tensor(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
    """Return arguments of an operator that is called as a function, or as a method of what it works on ("self")."""
    function = call.func
    if isinstance(function, ast.Attribute) and not _is_module(function.value):
        return {"self": function.value} | _arguments(call, names)
    given = _arguments(call, ("self", *names))
    return {{"input": "self"}.get(name, name): value for name, value in given.items()}


def _is_module(node: ast.expr) -> bool:
    return ast.unparse(node) in ("torch", "F", "nn.functional", "torch.nn.functional", "functional", "th")


def _number(node: ast.expr | None) -> float | None:
    try:
        value = None if node is None else ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _hides(value: ast.expr) -> bool:
    """Tell whether what a mask fills in for "not seen" becomes zero."""
    number, text = _number(value), ast.unparse(value)
    if text in _INFINITE or (text.startswith(("torch.finfo(", "finfo(")) and text.endswith(".min")):
        return True
    return number is not None and number <= _LEAST_HIDDEN
