"""Attention that is written out: found in the forms that people write, computed the same by the fused operator."""

import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from torch import nn

from opscope.advise.attention import written_out
from opscope.advise.attention_edit import fuse_attention
from opscope.advise.changes.listed import BY_NAME
from opscope.advise.source import EditedFile, NotWritableError

BATCH, LENGTH, HEADS, DEPTH = 2, 7, 3, 4
WIDTH = HEADS * DEPTH


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = DEPTH**-0.5
        self.dropout, self.normalised = nn.Dropout(0.1), nn.Softmax(dim=-1)
        self.temperature = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("tril", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def parts(self, x: torch.Tensor) -> Any:
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        return (one.view(b, t, HEADS, c // HEADS).transpose(1, 2) for one in (q, k, v))

    def merged(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        return self.out(y.transpose(1, 2).contiguous().view(b, t, c))


class Causal(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, t, _ = x.size()
        q, k, v = self.parts(x)
        weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        weights = weights.masked_fill(self.tril[:, :, :t, :t] == 0, float("-inf"))
        weights = self.dropout(F.softmax(weights, dim=-1))
        return self.merged(weights @ v, x)


class Plain(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        weights = self.normalised(torch.matmul(q, k.transpose(2, 3)) / math.sqrt(DEPTH))
        return self.merged(torch.matmul(weights, v), x)


class Scaled(Base):
    def forward(self, x: torch.Tensor, mask: Any = None) -> torch.Tensor:
        q, k, v = self.parts(x)
        weights = self.scale * q.matmul(k.mT)
        if mask is not None:
            weights = weights + mask
        return self.merged(F.dropout(weights.softmax(-1), 0.0, self.training) @ v, x)


class Added(Base):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        weights = torch.softmax((q * self.scale) @ k.transpose(-1, -2) + mask, dim=-1)
        return self.merged(weights @ v, x)


class Einsum(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, c // HEADS).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / (c // HEADS) ** 0.5
        y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)
        return self.out(y.reshape(b, t, c))


class Unscaled(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return self.merged(torch.softmax(q @ k.transpose(-2, -1), -1) @ v, x)


class ByKeyword(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return self.merged(F.softmax(input=q @ k.mT, dim=-1) @ v, x)


class Chunked(Base):
    """Goes through pieces, and makes its mask of the length that it sees, as much published code does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (one.view(b, t, HEADS, c // HEADS).transpose(1, 2) for one in self.qkv(x).chunk(3, dim=-1))
        hidden = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weights = (q @ k.transpose(-1, -2) * self.scale).masked_fill(hidden, float("-inf"))
        return self.merged(weights.softmax(dim=-1) @ v, x)


class OfOneDimension(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return self.merged((q @ k.mT + torch.arange(x.size(1))).softmax(-1) @ v, x)


FORMS: dict[str, Callable[[], Base]] = {
    one.__name__: one for one in (Causal, Plain, Scaled, Added, Einsum, Unscaled, ByKeyword, Chunked, OfOneDimension)
}


@pytest.mark.parametrize("name", FORMS)
def test_the_fused_operator_computes_the_same(name: str) -> None:
    torch.manual_seed(0)
    module = FORMS[name]()
    module.dropout.p = 0.0
    x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    inputs = (x, torch.randn(1, 1, LENGTH, LENGTH)) if name == "Added" else (x,)
    wanted = module(*inputs)
    (gradient,) = torch.autograd.grad(wanted.square().sum(), x)
    (found,) = written_out([nn.Sequential(module)])
    assert found.count == 1
    assert f"{name}, {__file__}:" in found.place
    with torch.profiler.profile() as profile:
        found.fuse()
        fused = module(*inputs)
    assert "aten::scaled_dot_product_attention" in {event.key for event in profile.key_averages()}
    torch.testing.assert_close(fused, wanted)
    torch.testing.assert_close(torch.autograd.grad(fused.square().sum(), x)[0], gradient)
    # Other sizes, another type: nothing of the traced inputs is in it.
    if name != "Added":
        assert module.double()(torch.randn(1, LENGTH + 2, WIDTH, dtype=torch.float64)).dtype is torch.float64
    assert written_out([module]) == []  # it is fused


def test_dropout_of_the_weights_stays() -> None:
    torch.manual_seed(0)
    module = Causal()
    module.dropout.p = 0.5
    (found,) = written_out([module])
    found.fuse()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


class Dropping(Base):
    """Drops weights by the function, which is told whether the module trains."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return self.merged(F.dropout(torch.softmax(q @ k.mT, -1), 0.5, self.training) @ v, x)


class OwnMask(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.tril(torch.ones(LENGTH, LENGTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        weights = (q @ k.mT / 2).masked_fill(self.mask == 0, float("-inf"))
        return self.merged(torch.softmax(weights, -1) @ v, x)


class Returned(Base):
    """Returns the weights, which the fused operator does not know."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.parts(x)
        weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
        return weights @ v, weights


class OverQueries(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return torch.softmax(q @ k.transpose(-2, -1), dim=-2) @ v


class Learned(Base):
    """Scales by a parameter, which the fused operator takes no gradient of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return torch.softmax(q @ k.transpose(-2, -1) * self.temperature, dim=-1) @ v


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layer(x), dim=-1)


class Lightly(Base):
    """Masks with a number that is seen through."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        weights = (q @ k.transpose(-2, -1)).masked_fill(self.tril[:, :, :LENGTH, :LENGTH] == 0, -1.0)
        return torch.softmax(weights, dim=-1) @ v


class MaskedInPlace(Base):
    """Masks in place: what softmax is taken of is not what the product returned."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        weights = q @ k.transpose(-2, -1)
        weights.masked_fill_(self.tril[:, :, :LENGTH, :LENGTH] == 0, float("-inf"))
        return torch.softmax(weights, dim=-1) @ v


class OfOneKey(Base):
    """All heads share one key, and so the letters of the operands differ."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        weights = torch.softmax(torch.einsum("bhid,bjd->bhij", q, k[:, 0]), dim=-1)
        return torch.einsum("bhij,bjd->bhid", weights, v[:, 0])


class Doubled(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        scores = q @ k.mT
        return torch.softmax(scores + scores, dim=-1) @ v


class InDoublePrecision(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return torch.softmax(q @ k.mT, -1, torch.float64).to(v.dtype) @ v


class Keeping(Base):
    """Keeps its weights, for others to look at."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        self.weights = torch.softmax(q @ k.mT, -1)
        return self.weights @ v


class KeepingElsewhere(Base):
    """Keeps its weights by a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[torch.Tensor] = []

    def note(self, weights: torch.Tensor) -> None:
        self.maps.append(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        weights = torch.softmax(q @ k.mT, -1)
        self.note(weights)
        return weights @ v


class Random(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return torch.softmax(q @ k.mT, -1) @ v * (torch.rand(()) + 0.5)


class WithoutGradient(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        with torch.no_grad():
            bias = self.temperature * 2
        return torch.softmax(q @ k.mT + bias, -1) @ v


class AsksForTypes(Base):
    def forward(self, x: torch.Tensor, mask: Any = 0) -> torch.Tensor:
        q, k, v = self.parts(x)
        weights = q @ k.mT
        if isinstance(mask, torch.Tensor):
            weights = weights + mask
        return torch.softmax(weights, -1) @ v


class OverTheThird(Base):
    """Sums over the third dimension, of five."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unsqueeze(1) for one in self.parts(x))
        return torch.softmax(q @ k.mT, 3) @ v


class Branching(Base):
    """Cannot be traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
        return weights @ v if x.mean() > 0 else x


WITHOUT = (
    Returned, OverQueries, Learned, Classifier, Lightly, MaskedInPlace, OfOneKey, Doubled, InDoublePrecision,
    Keeping, KeepingElsewhere, Random, WithoutGradient, AsksForTypes, OverTheThird, Branching,
)  # fmt: skip


@pytest.mark.parametrize("module", WITHOUT)
def test_what_is_no_such_attention_is_left_alone(module: Callable[[], nn.Module]) -> None:
    made = module()
    before = dict(vars(made))
    assert written_out([made]) == []
    assert vars(made) == before


def test_calls_that_are_not_like_the_traced_one_run_as_written() -> None:
    torch.manual_seed(0)
    module = Scaled()
    x, mask = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(1, 1, LENGTH, LENGTH)
    wanted, masked = module(x), module(x, mask)
    (found,) = written_out([module])
    found.fuse()
    for given, right in (({}, wanted), ({"mask": None}, wanted), ({"mask": mask}, masked)):
        torch.testing.assert_close(module(x, **given), right)
    torch.testing.assert_close(module(x, None), wanted)
    torch.testing.assert_close(module(x, mask), masked)


def test_what_no_call_of_the_step_uses_took_no_effect() -> None:
    torch._dynamo.utils.counters.clear()  # of what other tests compile
    variant: Any = SimpleNamespace(tops=[Scaled()], notes={})
    change = BY_NAME["fused_attention"]
    change.apply(variant)
    x, mask = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(1, 1, LENGTH, LENGTH)
    variant.tops[0](x, mask)
    reason = change.took_effect(variant)
    assert reason == "the step calls its attention with arguments that the fused form does not take, such as a mask"
    variant.tops[0](x)
    assert change.took_effect(variant) is None


def test_an_evaluation_runs_as_written() -> None:
    torch.manual_seed(0)
    module = Dropping()
    (found,) = written_out([module])
    found.fuse()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


def test_tensors_that_are_no_buffers_are_read_where_they_are() -> None:
    torch.manual_seed(0)
    module = OwnMask()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    wanted = module(x)
    (found,) = written_out([module])
    assert not any(name.startswith("_tensor_constant") for name in vars(module))  # nothing is left by tracing it
    found.fuse()
    torch.testing.assert_close(module(x), wanted)


# ---------------------------------------------------------------- written into source

HEAD = """import math
import torch
import torch.nn.functional as F


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_drop = torch.nn.Dropout(0.9)
        self.softmax, self.columns = torch.nn.Softmax(-1), torch.nn.Softmax(-2)
        self.weights_of = torch.nn.Softmax(dim=-1)
        self.scale = 0.25
        self.register_buffer("bias", torch.tril(torch.ones(1, 1, 6, 6)))

    def forward(self, q, k, v):
"""
WRITABLE = {
    "statements": """
att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
att = att.masked_fill(self.bias[:, :, :6, :6] == 0, float("-inf"))
att = F.softmax(att, dim=-1)
att = self.attn_drop(att)
y = att @ v  # of each head
return y * 2
""",
    "one expression": """
return torch.matmul(F.dropout((q @ k.mT / math.sqrt(16)).softmax(-1), 0.9, self.training), v).sum(1)
""",
    "names of their own": """
keys = k.transpose(2, 3)
scores = torch.matmul(q, keys) / k.size(-1) ** 0.5
hidden = self.bias < 0.5
masked = scores.masked_fill(hidden, -1e9)
weights = self.weights_of(masked)
return torch.matmul(weights, v)
""",
    "added mask, in a branch": """
mask = torch.zeros(6, 6).masked_fill(self.bias[0, 0] == 0, torch.finfo(q.dtype).min)
if q.shape[0]:
    scores = self.scale * (q @ k.transpose(-1, -2)) + mask
    y = torch.softmax(scores, dim=-1) @ v
    scores = None
else:
    y = v
return y
""",
    "dropout of torch's own, and comments": """
att = (q @ k.mT).softmax(-1)  # scores
att = torch.dropout(att, 0.9 if self.scale else 0.1, train=self.training)
y = v * 2
return att @ v + y
""",
    "a mask that is compared": """
return (q @ k.mT).masked_fill((self.bias > 0) == 0, -1e9).softmax(-1) @ v
""",
    "not hidden": """
w = q.matmul(k.transpose(-2, -1)).masked_fill(~(self.bias > 0), -math.inf).softmax(dim=-1)
return w.matmul(v)
""",
}
NOT_WRITABLE = {
    "weights are returned": "w = (q @ k.transpose(-2, -1)).softmax(-1)\nreturn w @ v, w",
    "scores are read": "s = q @ k.transpose(-2, -1)\nself.last = s.max()\nreturn s.softmax(-1) @ v",
    "read in the loop behind": "w = (q @ k.mT).softmax(-1)\nfor _ in range(2):\n    v = w @ v\nreturn v",
    "read by a loop's test": "w = None\nwhile w is None:\n    w = (q @ k.mT).softmax(-1)\n    y = w @ v\nreturn y",
    "read in the next turn": "w = v\nfor _ in q:\n    y = w.sum()\n    w = (q @ k.mT).softmax(-1)\n    y += w @ v",
    "read by a function": "def most():\n    return s.max()\ns = q @ k.mT\nreturn s.softmax(-1) @ v + most()",
    "deleted": "w = (q @ k.mT).softmax(-1)\ny = w @ v\ndel w\nreturn y",
    "in a comprehension": "w = (q @ k.mT).softmax(-1)\nreturn sum(w @ k for k in (v, v))",
    "in a lambda": "w = (q @ k.mT).softmax(-1)\nreturn (lambda: w @ v)()",
    "another name meanwhile": "s = q @ k.transpose(-2, -1)\nq = q * 2\nreturn s.softmax(-1) @ v + q.sum()",
    "another attribute meanwhile": "s = q @ self.k.mT\nself.k = k\nreturn s.softmax(-1) @ v",
    "changed in place meanwhile": "s = q @ k.mT\nz = k.zero_()\nreturn s.softmax(-1) @ v + z",
    "changed in part meanwhile": "s = q @ k.mT\nk[:, 0] = 0\nreturn s.softmax(-1) @ v",
    "a name that is made in between": "s = (x := q * 2) @ k.mT\ny = x.sum()\nreturn s.softmax(-1) @ v + y",
    "another dimension": "return (q @ k.transpose(-2, -1)).softmax(-2) @ v",
    "a module's other dimension": "return self.columns(q @ k.transpose(-2, -1)) @ v",
    "another softmax": "return F.log_softmax(q @ k.transpose(-2, -1), dim=-1) @ v",
    "in another type": "return F.softmax(q @ k.transpose(-2, -1), dim=-1, dtype=torch.float32) @ v",
    "keys that are not transposed": "return (q @ k).softmax(-1) @ v",
    "dimensions that are not numbers": "return (q @ k.transpose({[]}, 1)).softmax(-1) @ v",
    "what hides nothing": "return (q @ k.mT).masked_fill(self.bias == 0, -1.0).softmax(-1) @ v",
    "a mask in a branch": "s = q @ k.mT\nif self.training:\n    s = s + 1\nreturn s.softmax(-1) @ v",
    "a number that is added": "return (q @ k.mT + 1e-6).softmax(-1) @ v",
    "scaled before and after": "return ((q @ k.mT) * 2 * q.size(-1)).softmax(-1) @ v",
    "dropout of unknown strength": "kw = {}\nreturn F.dropout((q @ k.mT).softmax(-1), **kw) @ v",
    "another's dropout": "dropout = self.attn_drop\nreturn dropout((q @ k.mT).softmax(-1)) @ v",
}


def source_of(tmp_path: Path, body: str) -> tuple[EditedFile, int]:
    file = tmp_path / "model.py"
    file.write_text(HEAD + textwrap.indent(body.strip(), "        ") + "\n")
    return EditedFile(file), HEAD.count("\n")


def result_of(text: str, *tensors: torch.Tensor, trains: bool) -> torch.Tensor:
    names: dict[str, Any] = {}
    exec(text, names)
    found: torch.Tensor = names["Attention"]().train(trains)(*tensors)
    return found


@pytest.mark.parametrize("name", WRITABLE)
def test_attention_is_written_as_one_call(tmp_path: Path, name: str) -> None:
    source, line = source_of(tmp_path, WRITABLE[name])
    fuse_attention(source, line)
    text = source.edited()
    assert text.count("F.scaled_dot_product_attention(") == 1
    assert "softmax(" not in text.partition("def forward")[2]
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, 6, 16) for _ in range(3)]
    as_written = result_of(source.text, *tensors, trains=False)
    torch.testing.assert_close(result_of(text, *tensors, trains=False), as_written)
    never = text.replace("0.9", "0.0")  # then nothing is drawn
    torch.testing.assert_close(result_of(never, *tensors, trains=True), as_written)
    if "0.9" in text.partition("def forward")[2] or "attn_drop" in WRITABLE[name]:
        assert not torch.allclose(result_of(text, *tensors, trains=True), as_written)


@pytest.mark.parametrize("name", NOT_WRITABLE)
def test_attention_that_cannot_be_rewritten_is_left_alone(tmp_path: Path, name: str) -> None:
    source, line = source_of(tmp_path, NOT_WRITABLE[name])
    with pytest.raises(NotWritableError, match=r"model\.py is written in a way that opscope cannot rewrite"):
        fuse_attention(source, line)


def test_dropout_is_as_probable_as_written(tmp_path: Path) -> None:
    source, line = source_of(tmp_path, WRITABLE["statements"])
    fuse_attention(source, line)
    assert "            dropout_p=self.attn_drop.p if self.attn_drop.training else 0.0,\n" in source.edited()
    source, line = source_of(tmp_path, WRITABLE["one expression"])
    fuse_attention(source, line)
    assert "dropout_p=0.9 if self.training else 0.0" in source.edited()


def test_comments_and_ends_of_lines_stay(tmp_path: Path) -> None:
    source, line = source_of(tmp_path, WRITABLE["dropout of torch's own, and comments"])
    fuse_attention(source, line)
    assert "\n        # scores\n        y = v * 2\n" in source.edited()
    file = tmp_path / "model.py"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    source = EditedFile(file)
    fuse_attention(source, line)
    text = source.edited()
    assert text.count("\n") == text.count("\r\n")
    assert "scaled_dot_product_attention(\r\n" in text


def test_attention_in_other_functions_is_left_alone(tmp_path: Path) -> None:
    body = "class Inner:\n    def f(self, q, k, v):\n        return (q @ k.mT).softmax(-1) @ v\nreturn v"
    source, line = source_of(tmp_path, body)
    with pytest.raises(NotWritableError):
        fuse_attention(source, line)
