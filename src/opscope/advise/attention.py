"""Attention that is written out in a module's forward, found in its traced graph and computed by one fused operator.

What is looked for is ``softmax(q @ k.T * scale + mask) @ v``, with or without scale, mask and dropout, as products of
matrices or as ``einsum``. Nothing else of the module changes, and nothing in its class: the new forward is the
instance's own.
"""

import copy
import dis
import inspect
import math
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 (as PyTorch's own documents name it)
from msgspec import Struct
from torch import fx, nn
from torch.utils._pytree import tree_leaves

_SOFTMAX: Final = (torch.softmax, F.softmax, "softmax")
_PRODUCTS: Final = (operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm")
_OF_PRODUCTS: Final = (*_PRODUCTS, operator.mul, torch.mul, "mul", operator.truediv, torch.div, "div", torch.einsum)
_SUMS: Final = (operator.add, torch.add, "add")
_FACTORS: Final = (operator.mul, torch.mul, "mul")
_QUOTIENTS: Final = (operator.truediv, torch.div, torch.true_divide, "div")
_FILLS: Final = (torch.masked_fill, "masked_fill", "masked_fill_")
_LEAST_HIDDEN: Final = -1e4  # what masks fill in for "not seen": -inf, or a number whose exponential is zero
_WRITES: Final = ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_SUBSCR")
_UNTRACED: Final = (
    *("append", "extend", "insert", "update", "setdefault", "pop", "setattr", "register_buffer"),
    *("no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast"),
    *("isinstance", "type", "hasattr", "is_tensor"),
)
_FACTORIES: Final = ("ones", "zeros", "full", "arange", "eye", "empty", "linspace")
_CONSTANT: Final = "_tensor_constant"  # how the tracer names tensors that are not parameters or buffers
_LAST: Final = -1  # the dimension that softmax sums over


class WrittenOut(Struct, frozen=True):
    """A module whose forward computes attention step by step.

    Attributes:
        module: the module.
        forward: a function of the module and its inputs that computes the same with the fused operator, for calls that
            are like the one that was traced.
        count: how many attentions that are.
        absent: inputs that were taken to be None, by name, with their position.
        constants: tensors that the function reads as attributes of the module.
    """

    module: nn.Module
    forward: Callable[..., Any]
    count: int
    absent: dict[str, int]
    constants: dict[str, torch.Tensor]

    @property
    def at(self) -> tuple[str, int]:
        """Where its forward is: file and line."""
        code = type(self.module).forward.__code__
        return code.co_filename, code.co_firstlineno

    @property
    def place(self) -> str:
        """Where that is, for people: class, file and line."""
        return f"{type(self.module).__name__}, {self.at[0]}:{self.at[1]}"

    def fuse(self, note: Callable[[], None] = lambda: None) -> None:
        """Have the module use the fused operator from now on, in calls that are like the one that was traced.

        Args:
            note: called where a call does so, but not while it is compiled.
        """
        vars(self.module).update(self.constants)
        as_written, fused = self.module.forward, types.MethodType(self.forward, self.module)
        trains, absent = self.module.training, tuple(self.absent.items())

        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            has_other = any(
                kwargs.get(name) is not None or (len(args) > place and args[place] is not None)
                for name, place in absent
            )
            if has_other or module.training is not trains:
                return as_written(*args, **kwargs)
            if not torch.compiler.is_compiling():
                note()
            return fused(*args, **kwargs)

        self.module.forward = types.MethodType(forward, self.module)


def written_out(tops: Sequence[nn.Module]) -> list[WrittenOut]:
    """Return the modules inside of some, themselves among them, that compute attention step by step."""
    parts = dict.fromkeys(part for top in tops for part in top.modules())
    result = (_fused(part) for part in parts if _may_compute_attention(part))
    return [one for one in result if one is not None]


def _may_compute_attention(module: nn.Module) -> bool:
    """Tell, without tracing it, whether a module's own forward may: it is the user's, and says "softmax"."""
    forward = type(module).forward
    if type(module).__module__.startswith("torch.") or "forward" in vars(module):
        return False
    code = getattr(forward, "__code__", None)
    if code is None or not all(map(_may_be_traced, _codes(type(module), code))):
        return False
    return any("softmax" in name.lower() for name in code.co_names) or any(
        isinstance(child, nn.Softmax) for child in module.children()
    )


def _codes(kind: type, code: types.CodeType, seen: tuple[types.CodeType, ...] = ()) -> Iterator[types.CodeType]:
    """Yield a method's code, that of functions in it, and that of the class's own methods that it names."""
    yield code
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    methods = [getattr(getattr(kind, name, None), "__code__", None) for name in code.co_names]
    for one in (*inner, *methods):
        if isinstance(one, types.CodeType) and one not in (*seen, code) and "torch" not in Path(one.co_filename).parts:
            yield from _codes(kind, one, (*seen, code))


def _may_be_traced(code: types.CodeType) -> bool:
    """Tell whether a trace says all that code does.

    It does not where objects are written to, which would keep what stands for a tensor; where a context such as
    ``no_grad`` is entered; and where types are asked for, as what stands for a tensor has another one.
    """
    writes = any(one.opname in _WRITES for one in dis.get_instructions(code))
    return not writes and not any(name in _UNTRACED for name in code.co_names)


class _Tracer(fx.Tracer):  # type: ignore[misc]
    """Traces a module's own forward alone: the modules in it are called as they are."""

    proxy_buffer_attributes = True  # masks are buffers, of which as much is taken as the input is long

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Go through what a tensor was cut into, where the number of pieces is known."""
        node = obj.node
        pieces = node.kwargs.get("chunks", node.args[1] if len(node.args) > 1 else None)
        if node.target in ("chunk", torch.chunk) and isinstance(pieces, int):
            return iter([obj[place] for place in range(pieces)])
        return super().iter(obj)  # type: ignore[no-any-return]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 (as PyTorch calls it)
        return True


def _fused(module: nn.Module) -> WrittenOut | None:
    """Return a module with its attention fused; None where it cannot be traced, or computes none."""
    try:
        return _traced_and_fused(module)
    except Exception:  # whatever the user's code does with what stands for a tensor, or comes of that
        return None


def _traced_and_fused(module: nn.Module) -> WrittenOut | None:
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]  # without self
    absent = {one.name: place for place, one in enumerate(parameters) if one.default is None}
    traced, again = _trace(module, absent), _trace(module, absent)
    if traced is None or again is None or not _are_same(traced, again):  # what is random would be frozen
        return None
    graph, constants = traced
    for node in graph.find_nodes(op="placeholder"):  # the tracer numbers those that are taken to be None
        node.target = next((name for name in absent if node.target.rpartition("_")[0] == name), node.target)
    children = dict(module.named_modules())
    count = sum(_fuse_at(node, graph, children) for node in list(graph.nodes) if _is_softmax(node, children))
    if not count:
        return None
    code = graph.python_code("self")
    names: dict[str, Any] = dict(code.globals)
    exec(compile(code.src, "<attention, fused>", "exec"), names)  # what PyTorch wrote of the user's own code
    return WrittenOut(module, names["forward"], count, absent, constants)


Traced = tuple[fx.Graph, dict[str, torch.Tensor]]


def _trace(module: nn.Module, absent: Mapping[str, int]) -> Traced | None:
    """Return the graph of a module's forward, and tensors that it holds; None where the forward keeps something."""
    stand_in = copy.copy(module)  # which gets what the forward, or the tracer, leaves in it
    held = {name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, list | dict | set)}
    try:
        with _factories_traced():
            graph = _Tracer().trace(stand_in, concrete_args=dict.fromkeys(absent))
    finally:
        changed = [name for name, value in held.items() if not _is_same_container(vars(module)[name], value)]
        for name in changed:
            setattr(module, name, held[name])
    left = {name: value for name, value in vars(stand_in).items() if vars(module).get(name) is not value}
    constants = {name: value for name, value in left.items() if name.startswith(_CONSTANT)}
    return None if changed or left.keys() - constants.keys() else (graph, constants)


def _is_same_container(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _are_same(one: Traced, other: Traced) -> bool:
    """Tell whether two traces are of the same computation, with the same numbers in it."""
    codes = [graph.python_code("self").src for graph, _ in (one, other)]
    equal = (torch.equal(value, other[1][name]) for name, value in one[1].items() if name in other[1])
    return codes[0] == codes[1] and one[1].keys() == other[1].keys() and all(equal)


@contextmanager
def _factories_traced() -> Iterator[None]:
    """Trace functions that make tensors of a size that is traced, such as masks: by themselves they are not."""
    made = {name: getattr(torch, name) for name in _FACTORIES}
    for name, factory in made.items():
        setattr(torch, name, _traced_factory(factory))
    try:
        yield
    finally:
        for name, factory in made.items():
            setattr(torch, name, factory)


def _traced_factory(factory: Callable[..., Any]) -> Callable[..., Any]:
    def traced(*args: Any, **kwargs: Any) -> Any:
        proxy = next((one for one in (*tree_leaves(args), *kwargs.values()) if isinstance(one, fx.Proxy)), None)
        if proxy is None:
            return factory(*args, **kwargs)
        return proxy.tracer.create_proxy("call_function", factory, args, kwargs)

    return traced


# ---------------------------------------------------------------- what is looked for


class _Scores(Struct):
    """What softmax is taken of.

    Attributes:
        query, key: what is multiplied, the key not transposed.
        scale: the product is multiplied by; a number, or a node that is one.
        hidden: where it is true, nothing is seen; None without.
        added: what is added to the product; None without.
    """

    query: fx.Node
    key: fx.Node
    scale: float | fx.Node = 1.0
    hidden: fx.Node | None = None
    added: fx.Node | None = None


def _is(node: object, kinds: Sequence[object]) -> bool:
    return isinstance(node, fx.Node) and node.op in ("call_function", "call_method") and node.target in kinds


def _is_softmax(node: fx.Node, children: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        child = children.get(str(node.target))
        return isinstance(child, nn.Softmax) and child.dim == _LAST
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    has_type = len(node.args) > 2 or node.kwargs.get("dtype") is not None
    return _is(node, _SOFTMAX) and bool(node.args) and dim == _LAST and not has_type


def _fuse_at(softmax: fx.Node, graph: fx.Graph, children: dict[str, nn.Module]) -> bool:
    """Replace one attention around a softmax; tell whether there is one."""
    weights, dropout = softmax, None
    if (after := _only_user(weights)) is not None and (dropout := _dropout(after, children)) is not None:
        weights = after
    product = _only_user(weights)
    if product is None or not isinstance(softmax.args[0], fx.Node):
        return False
    with graph.inserting_before(product):
        writer = _Writer(graph)
        scores = _scores(softmax.args[0], writer)
        values = None if scores is None else _values_of(product, weights, writer)
        if scores is None or values is None:
            return False
        value, shape = values
        attended = graph.call_function(
            _attend,
            (scores.query, scores.key, value),
            {
                "attn_mask": writer.mask(scores),
                "dropout_p": 0.0 if dropout is None else dropout(writer),
                "scale": scores.scale,
            },
        )
        product.replace_all_uses_with(shape(attended))
    _erase(graph, product)
    return True


def _attend(*args: Any, **kwargs: Any) -> Any:
    """Call PyTorch's attention by its name, as written by hand: proofs turn its dropout off there."""
    return F.scaled_dot_product_attention(*args, **kwargs)


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """Take a node out that no one uses, and whatever was computed for it alone."""
    if node.users or node.op == "placeholder":
        return
    inputs = node.all_input_nodes
    graph.erase_node(node)
    for one in inputs:
        _erase(graph, one)


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _dropout(node: fx.Node, children: dict[str, nn.Module]) -> "Callable[[_Writer], Any] | None":
    """Return what gives a dropout's probability; None where a node is not a dropout."""
    if node.op == "call_module" and isinstance(children.get(str(node.target)), nn.Dropout):
        return lambda writer: writer.graph.call_function(_probability, (writer.graph.get_attr(str(node.target)),))
    if _is(node, (F.dropout, torch.dropout)):
        values = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        p, training = values.get("p", 0.5), values.get("training", True)
        if isinstance(training, bool) and isinstance(p, float | int):
            return lambda _: float(p) if training else 0.0
    return None


def _probability(dropout: nn.Dropout) -> float:
    return dropout.p if dropout.training else 0.0


def _scores(node: fx.Node, writer: "_Writer") -> _Scores | None:
    """Read what softmax is taken of: a mask at most, then a scale at most, then a product.

    Each of them must be used once: other uses may change it in place, or want it.
    """
    hidden = added = None
    if _only_user(node) is None:
        return None
    if _is(node, _FILLS):
        inner, hidden, value = _arguments(node, ("self", "mask", "value"))
        if not isinstance(value, float | int) or value > _LEAST_HIDDEN:
            return None
        node = inner
    elif _is(node, _SUMS):
        values = [one for one in node.args if isinstance(one, fx.Node)]
        product = next((one for one in values if _is(one, _OF_PRODUCTS)), None)
        if len(values) != 2 or len(node.args) != 2 or node.kwargs or product is None or values[0] is values[1]:
            return None
        added = values[1] if product is values[0] else values[0]
        node = product
    result = _scaled_product(node, writer)
    if result is not None:
        result.hidden, result.added = hidden, added
    return result


def _arguments(node: fx.Node, names: Sequence[str]) -> list[Any]:
    values = dict(zip(names, node.args, strict=False)) | node.kwargs
    return [values.get(name) for name in names]


def _scaled_product(node: object, writer: "_Writer") -> _Scores | None:
    scale: Any = 1.0
    if not isinstance(node, fx.Node) or _only_user(node) is None:
        return None
    if _is(node, (*_FACTORS, *_QUOTIENTS)) and len(node.args) == 2 and not node.kwargs:
        one, other = node.args
        if _is(node, _FACTORS) and _is_number(one):
            one, other = other, one
        if not _is_number(other):
            return None
        scale = other if _is(node, _FACTORS) else writer.inverse(other)
        node = one
        if not isinstance(node, fx.Node) or _only_user(node) is None:
            return None
    if _is(node, _PRODUCTS) and len(node.args) == 2:
        query, transposed = node.args
        return _Scores(query, writer.swapped(transposed), scale)
    if (letters := _einsum(node)) is not None:
        (of_query, of_key, out), (query, key) = letters, node.args[1:]
        batch, row, column, depth = out[:-2], out[-2], out[-1], "".join(set(of_query) - set(out))
        if len(depth) == 1 and set(of_query) == {*batch, row, depth} and set(of_key) == {*batch, column, depth}:
            return _Scores(
                writer.ordered(query, of_query, batch + row + depth),
                writer.ordered(key, of_key, batch + column + depth),
                scale,
            )
    return None


def _values_of(
    product: fx.Node, weights: fx.Node, writer: "_Writer"
) -> tuple[fx.Node, Callable[[fx.Node], fx.Node]] | None:
    """Return the values that weights are multiplied with, and what gives the result the shape that is expected."""
    if (
        _is(product, _PRODUCTS)
        and len(product.args) == 2
        and product.args[0] is weights
        and isinstance(product.args[1], fx.Node)
    ):
        return product.args[1], lambda attended: attended
    if (letters := _einsum(product)) is not None and product.args[1] is weights:
        of_weights, of_values, out = letters
        batch, row, column = of_weights[:-2], of_weights[-2], of_weights[-1]
        depth = "".join(set(out) - set(of_weights))
        if len(depth) == 1 and set(of_values) == {*batch, column, depth} and set(out) == {*batch, row, depth}:
            values = writer.ordered(product.args[2], of_values, batch + column + depth)
            return values, lambda attended: writer.ordered(attended, batch + row + depth, out)
    return None


def _einsum(node: object) -> tuple[str, str, str] | None:
    """Return the letters of two operands and of the result; None where a node is not a product of two by letters."""
    if not _is(node, (torch.einsum,)) or len(node.args) != 3 or not isinstance(node.args[0], str):  # type: ignore[attr-defined]
        return None
    operands, _, out = node.args[0].replace(" ", "").partition("->")  # type: ignore[attr-defined]
    first, _, second = operands.partition(",")
    letters = (first, second, out)
    plain = all(part.isalpha() and len(set(part)) == len(part) for part in letters)
    return letters if plain and len(out) == len(first) else None


def _is_number(value: object) -> bool:
    """Tell whether a value is a number, or a node that is computed of numbers and sizes alone."""
    if not isinstance(value, fx.Node):
        return isinstance(value, int | float)
    if value.op == "call_method":
        return value.target == "size" and bool(value.args[1:] or value.kwargs)
    if value.op != "call_function":
        return False
    if value.target is operator.getitem:
        of = value.args[0]
        return isinstance(of, fx.Node) and (of.target == "size" or (of.target is getattr and of.args[1] == "shape"))
    is_arithmetic = getattr(value.target, "__module__", "") in ("_operator", "math", "builtins")
    return is_arithmetic and value.target is not getattr and all(map(_is_number, value.args))


class _Writer(Struct):
    """Writes what the fused operator needs into a graph."""

    graph: fx.Graph

    def swapped(self, transposed: fx.Node) -> fx.Node:
        """Return a key of which only the transposed one is there."""
        if _is(transposed, ("transpose", torch.transpose)) and set(transposed.args[1:]) == {-1, -2}:
            return transposed.args[0]
        return self.graph.call_method("transpose", (transposed, -2, -1))

    def ordered(self, node: Any, letters: str, wanted: str) -> fx.Node:
        """Return a tensor with its dimensions in another order."""
        if letters == wanted:
            return node
        return self.graph.call_method("permute", (node, *map(letters.index, wanted)))

    def inverse(self, number: float | fx.Node) -> float | fx.Node:
        """Return one over a number."""
        if isinstance(number, fx.Node):
            return self.graph.call_function(operator.truediv, (1.0, number))
        return 1.0 / number if number else math.inf

    def mask(self, scores: _Scores) -> fx.Node | None:
        """Return the mask as the operator takes it: true where something is seen, or what is added to scores."""
        if scores.hidden is not None:
            return self.graph.call_function(_seen, (scores.hidden,))
        return None if scores.added is None else self.graph.call_function(_added, (scores.added, scores.query))


def _seen(hidden: torch.Tensor) -> torch.Tensor:
    return torch.logical_not(torch.atleast_2d(hidden))


def _added(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    return torch.atleast_2d(mask).to(query.dtype)
