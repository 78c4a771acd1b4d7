"""Writes attention that a function computes step by step as one call, in the user's source. Needs no PyTorch.

What is looked for is what `opscope.advise.attention` finds in traces: ``softmax(q @ k.transpose(-2, -1) * scale + mask)
@ v``, in one expression or in statements of one block that each go on from the one before.
"""

import ast
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from opscope.advise.source import LOOPS, SIMPLE, EditedFile, NotWritableError

T = TypeVar("T")
_TRANSPOSED: Final = ({-1, -2}, {2, 3})  # the dimensions of keys that are swapped; they may have four
_LEAST_HIDDEN: Final = -1e4  # what masks fill in for "not seen": as in `opscope.advise.attention`
_INFINITE: Final = ("float('-inf')", "-float('inf')", "-math.inf", "-torch.inf", "-np.inf", "-inf")
_FUNCTIONAL: Final = "torch.nn.functional"
# What has names of its own.
_SCOPES: Final = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_LONG: Final = 90  # characters of a line


def fuse_attention(source: EditedFile, line: int) -> None:
    """Have a function call the fused operator.

    Args:
        source: the file.
        line: where the function begins, with its decorators.

    Raises:
        NotWritableError: its attention is not written as one of the known ways.
    """
    function = _function_at(source, line)
    results = [one for block in _blocks(function) for one in _attentions(source, function, block)]
    if not results:
        text = f"the attention in line {line} of {source.path.name} is written in a way that opscope cannot rewrite"
        raise NotWritableError(f"{text}: fused_attention has to be written by hand")
    for one in results:
        source.rename(one.product, one.call(source))
        for statement in one.steps:
            source.delete(statement)


def _function_at(source: EditedFile, line: int) -> ast.FunctionDef:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == line:
                return node
    raise NotWritableError(f"no function begins in line {line} of {source.path.name}")


def _blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements of a function: its own and those in branches and loops, not of other functions."""
    waiting: list[ast.AST] = [function]
    while waiting:
        node = waiting.pop()
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, _SCOPES)]


class _Found(Struct, frozen=True):
    """One attention, as far as it was read: from its last product backwards.

    Attributes:
        product: of the weights with the values, which is replaced.
        indent: of the statement that it is in, in characters.
        steps: statements that are deleted: each is folded into the next.
        query, key, value: what is multiplied, the key not transposed.
        mask, dropout, scale: source of the arguments; empty without.
        moved: names in all of that, each with the number of the statement that it was read in.
    """

    product: ast.expr
    value: ast.expr
    indent: int
    steps: tuple[ast.stmt, ...] = ()
    query: ast.expr | None = None
    key: ast.expr | None = None
    mask: str = ""
    dropout: str = ""
    scale: str = "1.0"
    moved: tuple[tuple[str, int], ...] = ()

    def call(self, source: EditedFile) -> str:
        """Return the call of the fused operator, in several lines where one would be long."""
        assert self.query is not None
        assert self.key is not None
        tensors = ", ".join(source.segment(one) for one in (self.query, self.key, self.value))
        named = {"attn_mask": self.mask, "dropout_p": self.dropout, "scale": self.scale}
        parts = [tensors, *(f"{name}={text}" for name, text in named.items() if text)]
        called = f"{source.name_of_functional()}.scaled_dot_product_attention"
        if self.indent + len(called) + sum(map(len, parts)) < _LONG:
            return f"{called}({', '.join(parts)})"
        lines = "".join(f"{' ' * (self.indent + 4)}{part},\n" for part in parts)
        return f"{called}(\n{lines}{' ' * self.indent})"


def _attentions(source: EditedFile, function: ast.FunctionDef, block: list[ast.stmt]) -> Iterator[_Found]:
    for place, statement in enumerate(block):
        if any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement)):
            continue
        for product in _own_expressions(statement):
            factors = _product(source, product)
            if factors is None:
                continue
            weights, value = factors
            reading = _Reading(source, function, block, place, _Found(product, value, statement.col_offset))
            result = reading.weights(weights)
            if result is not None:
                yield result


def _own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement, without those of statements, lambdas and comprehensions in it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, (ast.stmt, *_SCOPES))]


class _Reading(Struct, frozen=True):
    """Goes backwards from a product.

    Attributes:
        source: the file.
        function: the product is in.
        block: the statements.
        place: the number of the statement that is read now; those behind it that were read are deleted.
        seen: what was read.
    """

    source: EditedFile
    function: ast.FunctionDef
    block: list[ast.stmt]
    place: int
    seen: _Found

    def with_(self, read: ast.expr, **values: object) -> "_Reading":
        """Add what was read, and from which expression of the statement."""
        moved = ((name, self.place) for name in _names(read, ast.Load))
        return replace(self, seen=replace(self.seen, moved=(*self.seen.moved, *moved), **values))

    def followed(self, node: ast.expr, read: Callable[["_Reading", ast.expr], T | None]) -> T | None:
        """Read an expression, or what a name was given in a statement before, if nothing else uses that."""
        result = read(self, node)
        if result is not None or not isinstance(node, ast.Name):
            return result
        for place in reversed(range(self.place)):
            statement = self.block[place]
            if node.id not in _names(statement, ast.Store):
                continue
            has_other = any(isinstance(one, ast.NamedExpr) for one in ast.walk(statement))
            if has_other or not _gives(statement, node.id) or not self._is_used_here_alone(node.id, place):
                return None
            before = replace(self, place=place, seen=replace(self.seen, steps=(*self.seen.steps, statement)))
            return before.followed(statement.value, read)  # type: ignore[attr-defined]
        return None

    def _is_used_here_alone(self, name: str, uses: int) -> bool:
        """Tell whether a value that a statement gives a name is read by the statement in question, and nowhere else."""
        here = self.block[self.place]
        last = next((place for place in range(self.place, len(self.block)) if _gives(self.block[place], name)), None)
        statements = {id(node): place for place, one in enumerate(self.block) for node in ast.walk(one)}
        repeats = any(isinstance(one, LOOPS) for one in self.source.around(here))
        scopes = (one for one in ast.walk(self.function) if isinstance(one, _SCOPES) and one is not self.function)
        inner = {id(node) for one in scopes for node in ast.walk(one)}
        for node in ast.walk(self.function):
            if not isinstance(node, ast.Name) or node.id != name or isinstance(node.ctx, ast.Store):
                continue
            place = statements.get(id(node))
            is_before = place is not None and place <= uses and not repeats  # the value that it had before
            is_behind = place is not None and last is not None and place > last  # one that it is given later
            if id(node) in inner or not (place == self.place or is_before or is_behind):
                return False
        return _loads(here, name) == 1

    def weights(self, node: ast.expr) -> _Found | None:
        """Read what is multiplied with the values: dropout at most, then softmax."""
        return self.followed(node, _Reading._dropped) or self.followed(node, _Reading._softmax)

    def _dropped(self, node: ast.expr) -> _Found | None:
        if not isinstance(node, ast.Call) or not node.args or not _is_plain(node):
            return None
        called = ast.unparse(node.func)
        if called in (f"{module}.dropout" for module in _modules(self.source)):
            values = _arguments(node, ("input", "p", "training"))
            text = {key: self._in_parentheses(value) for key, value in values.items()}
            training = text.get("training", text.get("train", "True"))
            dropout = f"{text.get('p', '0.5')} if {training} else 0.0"
        elif self._is_made_as(node, "Dropout"):
            dropout = f"{called}.p if {called}.training else 0.0"
        else:
            return None
        given_too = ast.Tuple([node.func, *node.args[1:], *(one.value for one in node.keywords)], ast.Load())
        return self.with_(given_too, dropout=dropout).followed(node.args[0], _Reading._softmax)

    def _softmax(self, node: ast.expr) -> _Found | None:
        if not isinstance(node, ast.Call) or not _is_plain(node):
            return None
        scores = None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "softmax" and not self._is_own(node.func):
            values = _of_tensor(self.source, node, ("dim", "dtype"))
            scores = values.get("self") if "dtype" not in values and _number(values.get("dim")) == -1 else None
        elif (made := self._is_made_as(node, "Softmax")) is not None and _number(made) == -1:
            scores = node.args[0]
        return None if scores is None else self.followed(scores, _Reading._scores)

    def _is_own(self, node: ast.expr) -> bool:
        """Tell whether an expression is an attribute of the object itself."""
        own = self.function.args.args[0].arg if self.function.args.args else ""
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own

    def _is_made_as(self, call: ast.Call, kind: str) -> ast.expr | None:
        """Return the argument with which the class makes the module that is called; None for one of another kind."""
        if not self._is_own(call.func) or len(call.args) != 1 or call.keywords:
            return None
        name = call.func.attr  # type: ignore[attr-defined]
        owner = next((one for one in ast.walk(self.source.tree) if _holds(one, self.function)), None)
        made = [
            one.value
            for one in ast.walk(owner or self.function)
            if isinstance(one, ast.Assign)
            and any(isinstance(target, ast.Attribute) and target.attr == name for target in one.targets)
        ]
        if len(made) != 1 or not isinstance(made[0], ast.Call):
            return None
        if ast.unparse(made[0].func).rpartition(".")[2] != kind or not _is_plain(made[0]):
            return None
        values = [*made[0].args, *(one.value for one in made[0].keywords if one.arg in ("p", "dim"))]
        return values[0] if values else ast.Constant(None)

    def _scores(self, node: ast.expr) -> _Found | None:
        """Read what softmax is taken of: a mask at most, then a scale at most, then a product."""
        return self._masked(node) or self._added(node) or self._scaled(node) or self._multiplied(node)

    def _unmasked(self, node: ast.expr) -> _Found | None:
        return self._scaled(node) or self._multiplied(node)

    def _masked(self, node: ast.expr) -> _Found | None:
        if (
            not isinstance(node, ast.Call)
            or _called(node) not in ("masked_fill", "masked_fill_")
            or not _is_plain(node)
        ):
            return None
        values = _of_tensor(self.source, node, ("mask", "value"))
        if set(values) != {"self", "mask", "value"} or not _hides(values["value"]):
            return None
        masked = self.with_(values["mask"], mask=self._seen(values["mask"]))
        return masked.followed(values["self"], _Reading._unmasked)

    def _seen(self, hidden: ast.expr) -> str:
        """Return a mask that is true where something is seen, of one that is true where nothing is."""
        if isinstance(hidden, ast.Compare) and len(hidden.ops) == 1 and _number(hidden.comparators[0]) == 0:
            other = {ast.Eq: "!=", ast.NotEq: "=="}.get(type(hidden.ops[0]))
            if other is not None:
                return f"{self._in_parentheses(hidden.left)} {other} 0"
        if isinstance(hidden, ast.UnaryOp) and isinstance(hidden.op, ast.Invert):
            return self.source.segment(hidden.operand)
        return f"~{self._in_parentheses(hidden)}"

    def _added(self, node: ast.expr) -> _Found | None:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return None
        if not isinstance(node.right, ast.Name | ast.Attribute | ast.Subscript):  # a number, or a comparison
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
            result = self.with_(scale, scale=self.source.segment(scale)).followed(scores, _Reading._multiplied)
            if result is not None:
                return result
        return None

    def _multiplied(self, node: ast.expr) -> _Found | None:
        factors = _product(self.source, node)
        if factors is None:
            return None
        query, keys = factors
        return self.with_(query, query=query).followed(keys, _Reading._transposed)

    def _transposed(self, node: ast.expr) -> _Found | None:
        key = _not_transposed(self.source, node)
        if key is None:
            return None
        result = self.with_(key, key=key).seen
        return result if self._holds_to_the_end(result) else None

    def _holds_to_the_end(self, result: _Found) -> bool:
        """Tell whether names in what was read still stand for the same where the product is: all of it moves there."""
        last = next(place for place, one in enumerate(self.block) if result.product in _own_expressions(one))
        between = [one for one in self.block[self.place : last] if one not in result.steps]
        if not all(map(_is_harmless, between)):
            return False
        return not any(name in _names(one, ast.Store) for name, place in result.moved for one in self.block[place:last])

    def _in_parentheses(self, node: ast.expr) -> str:
        text = self.source.segment(node)
        return text if isinstance(node, SIMPLE) else f"({text})"


def _gives(statement: ast.stmt, name: str) -> bool:
    """Tell whether a statement gives a name a value, and does nothing else."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def _names(node: ast.AST, kind: type[ast.expr_context]) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, kind)}


def _loads(node: ast.AST, name: str) -> int:
    return sum(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load) for one in ast.walk(node))


def _product(source: EditedFile, node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Return the two matrices that are multiplied; None where an expression is not such a product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if not isinstance(node, ast.Call) or _called(node) not in ("matmul", "bmm") or not _is_plain(node):
        return None
    values = _of_tensor(source, node, ("other",))
    values = {{"mat2": "other"}.get(name, name): value for name, value in values.items()}
    return (values["self"], values["other"]) if set(values) == {"self", "other"} else None


def _not_transposed(source: EditedFile, node: ast.expr) -> ast.expr | None:
    """Return a tensor whose last two dimensions an expression swaps; None where it does not."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value
    if not isinstance(node, ast.Call) or _called(node) not in ("transpose", "swapaxes") or not _is_plain(node):
        return None
    values = _of_tensor(source, node, ("dim0", "dim1"))
    dims = {_number(values.get("dim0")), _number(values.get("dim1"))}
    return values.get("self") if dims in _TRANSPOSED else None


def _holds(node: ast.AST, function: ast.FunctionDef) -> bool:
    return isinstance(node, ast.ClassDef) and function in node.body


def _is_harmless(statement: ast.stmt) -> bool:
    """Tell whether a statement gives names values, and changes nothing else that can be seen in it."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [name for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
    in_place = (isinstance(one, ast.Call) and _called(one).endswith("_") for one in ast.walk(statement))
    return bool(names) and all(isinstance(one, ast.Name) for one in names) and not any(in_place)


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _is_plain(call: ast.Call) -> bool:
    """Tell whether a call's arguments are all there to see, none of them unpacked."""
    return not any(isinstance(one, ast.Starred) for one in call.args) and all(one.arg for one in call.keywords)


def _arguments(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
    values = dict(zip(names, call.args, strict=False))
    return values | {one.arg: one.value for one in call.keywords if one.arg is not None}


def _of_tensor(source: EditedFile, call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
    """Return arguments of an operator that is called as a function, or as a method of what it works on ("self")."""
    function = call.func
    if isinstance(function, ast.Attribute) and ast.unparse(function.value) not in _modules(source):
        return {"self": function.value} | _arguments(call, names)
    values = _arguments(call, ("self", *names))
    return {{"input": "self"}.get(name, name): value for name, value in values.items()}


def _modules(source: EditedFile) -> set[str]:
    """Return the names by which a file knows ``torch`` and ``torch.nn.functional``."""
    names: dict[str, str] = {}
    for one in ast.walk(source.tree):
        for alias in one.names if isinstance(one, ast.Import | ast.ImportFrom) else ():
            whole = f"{one.module}.{alias.name}" if isinstance(one, ast.ImportFrom) else alias.name
            names[alias.asname or alias.name] = whole
            if isinstance(one, ast.Import) and alias.asname is None:  # ``import torch.nn`` binds torch
                names[whole.partition(".")[0]] = whole.partition(".")[0]
    results = {name for name, module in names.items() if module in ("torch", _FUNCTIONAL)}
    results |= {f"{name}.nn.functional" for name, module in names.items() if module == "torch"}
    return results | {f"{name}.functional" for name, module in names.items() if module == "torch.nn"}


def _number(node: ast.expr | None) -> float | None:
    try:
        value = None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _hides(value: ast.expr) -> bool:
    """Tell whether what a mask fills in for "not seen" becomes zero."""
    number, text = _number(value), ast.unparse(value)
    if text in _INFINITE or (text.startswith(("torch.finfo(", "finfo(")) and text.endswith(".min")):
        return True
    return number is not None and number <= _LEAST_HIDDEN
