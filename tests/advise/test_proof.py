"""Whether comparison tells right variants from wrong ones: with numbers, and with planted mistakes."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opscope.advise.changes.listed import BY_NAME
from opscope.advise.loaders import Loaders
from opscope.advise.messages import ComputedStep, VariantRecording
from opscope.advise.proof import judged, losses_agree, runs_agree, tensor_differences
from opscope.advise.recording import losses, record
from opscope.advise.simulated import Rounding, compute_in_float64, round_weights, rounded
from opscope.advise.variant import Variant, prepare
from opscope.advise.variants import FunctionVariant
from opscope.record.configuration import Configuration

CPU = torch.device("cpu")
TRAINING = """
import torch

def train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(32),
        torch.nn.Linear(32, 4),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, foreach=False)
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step

def keeps():
    torch.manual_seed(0)
    model, outputs = torch.nn.Linear(4, 4), []

    def step():
        with torch.no_grad():
            outputs.append(model(torch.randn(2, 4)))
        return outputs[-1]

    return step

def vocabulary():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1001))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    x, y = torch.randn(8, 16), torch.randint(0, 1001, (8,))

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step

def updated():
    torch.manual_seed(0)
    model, x = torch.nn.Linear(16, 4), torch.randn(8, 16)

    def step():
        with torch.no_grad():
            model(x)
            x.mul_(1.1)

    return step

def infer():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)), torch.randn(8, 16)
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Configuration]:
    file = tmp_path_factory.mktemp("advised") / "advised_target.py"
    file.write_text(TRAINING)
    return lambda name: Configuration(target=f"{file}:{name}")


def worst_of(found: VariantRecording, reference: VariantRecording, when: str = "step 1") -> float:
    return max(one.error for key, one in tensor_differences(found, reference).items() if key.when == when)


def recorded(configuration: Configuration, change: Callable[[Variant], None] = lambda _: None) -> VariantRecording:
    variant = observed(configuration)
    prepare(variant)
    change(variant)
    return variant.drive(record(variant))


def observed(configuration: Configuration) -> FunctionVariant:
    variant = FunctionVariant(configuration, CPU, Loaders())
    variant.drive(variant.observe())
    return variant


def of_module(wrong: Callable[[Any], Any]) -> Callable[[Variant], None]:
    """Plant a mistake in what the modules return."""

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: wrong(call(*args, **kwargs))

    return lambda variant: variant.wrap(around)


def kept(variant: Variant) -> None:
    """Return the first result ever after."""
    first: list[Any] = []

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def keeping(*args: Any, **kwargs: Any) -> Any:
            first.append(call(*args, **kwargs))
            return first[0]

        return keeping

    variant.wrap(around)


def shared_buffer(variant: Variant) -> None:
    """Return the same memory each time, as a captured graph does."""
    buffer = torch.empty(2, 4)

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: buffer.copy_(call(*args, **kwargs))

    variant.wrap(around)


def without_dropout(variant: Variant) -> None:
    for top in variant.tops:
        for part in top.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0


def later_wrong(variant: Variant) -> None:
    """Be right in the first step only."""
    calls = [0]

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            return call(*args, **kwargs) * (1.0 if calls[0] == 1 else 1.01)

        return counting

    variant.wrap(around)


def without_update(variant: Variant) -> None:
    for optimizer in variant.optimizers:
        optimizer.step = lambda *_: None  # type: ignore[method-assign]


def other_rate(variant: Variant) -> None:
    for optimizer in variant.optimizers:
        for group in optimizer.param_groups:
            group["lr"] *= 1.05


def frozen_statistics(variant: Variant) -> None:
    for top in variant.tops:
        for part in top.modules():
            if isinstance(part, torch.nn.BatchNorm1d):
                part.eval()


def in_bfloat16(variant: Variant) -> None:
    variant.contexts.append(lambda: torch.autocast("cpu", dtype=torch.bfloat16))


def fused(variant: Variant) -> None:
    BY_NAME["fused_optimizer"].apply(variant)
    assert all(group["fused"] for one in variant.optimizers for group in one.param_groups)


MISTAKES = {
    "zeros": ("infer", of_module(torch.zeros_like)),
    "scaled": ("infer", of_module(lambda output: output * 1.001)),
    "kept result": ("infer", kept),
    "wrong later": ("infer", later_wrong),
    "shared buffer": ("keeps", shared_buffer),
    "no update": ("train", without_update),
    "another learning rate": ("train", other_rate),
    "frozen statistics": ("train", frozen_statistics),
    "scaled loss": ("train", of_module(lambda output: output * 1.001)),
    "lower precision, said to be exact": ("train", in_bfloat16),
    "not a number": ("infer", of_module(lambda output: output / 0)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistakes_are_refused(target: Callable[[str], Configuration], name: str) -> None:
    which, mistake = MISTAKES[name]
    configuration = target(which)
    written, reference = recorded(configuration), recorded(configuration, compute_in_float64)
    found = judged(recorded(configuration, mistake), written, reference, [], name)
    assert found.right is False, found


@pytest.mark.parametrize(("which", "change"), [("infer", lambda _: None), ("train", lambda _: None), ("train", fused)])
def test_what_is_right_is_proven(
    target: Callable[[str], Configuration], which: str, change: Callable[[Variant], None]
) -> None:
    configuration = target(which)
    written, reference = recorded(configuration), recorded(configuration, compute_in_float64)
    found = judged(recorded(configuration, change), written, reference, [], "it")
    assert found.right, found
    assert 0 < found.own_error < 1e-5
    assert found.error < 1e-5


def test_a_lower_precision_is_explained_by_simulated_arithmetic(target: Callable[[str], Configuration]) -> None:
    configuration = target("infer")
    written, reference = recorded(configuration), recorded(configuration, compute_in_float64)
    simulated = recorded(configuration, lambda variant: compute_in_float64(variant, ["autocast_bf16"]))
    found = judged(recorded(configuration, in_bfloat16), written, reference, [simulated], "autocast")
    assert found.right, found
    explained = worst_of(simulated, reference)
    assert explained / 3 < found.error < 3 * explained
    scaled = of_module(lambda output: output * 1.1)
    wrong = judged(recorded(configuration, scaled), written, reference, [simulated], "scaled")
    assert wrong.right is False


@pytest.mark.parametrize(
    ("which", "name"), [("infer", "weights_bf16"), ("train", "autocast_fp16"), ("infer", "int8_weights")]
)
def test_changes_of_precision_are_explained_by_their_own_simulation(
    target: Callable[[str], Configuration], which: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are rounded, too; gradients are those of the loss, and not of what it is scaled to."""
    if name == "int8_weights":
        pytest.importorskip("torchao", reason="torchao, which holds weights in 8 bits, is not installed")
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # put back what the change puts there
    configuration = target(which)
    written, reference = recorded(configuration), recorded(configuration, compute_in_float64)
    simulated = recorded(configuration, lambda variant: compute_in_float64(variant, [name]))
    changed = recorded(configuration, BY_NAME[name].apply)
    found = judged(changed, written, reference, [simulated], name)
    assert found.right, found
    assert changed.updates == written.updates
    assert judged(changed, written, reference, [], name).right is False


def test_outputs_that_only_a_change_holds_may_be_overwritten(target: Callable[[str], Configuration]) -> None:
    """PyTorch's own cache of a captured graph's outputs holds them, too."""
    configuration = target("updated")  # whose results change with each step, and which keeps none
    cache = torch.empty(8, 4)

    def caching(variant: Variant) -> None:
        variant.wrap(lambda call: lambda *args, **kwargs: cache.copy_(call(*args, **kwargs)))

    written, reference = recorded(configuration), recorded(configuration, compute_in_float64)
    found = recorded(configuration, caching)
    assert found.overwritten
    assert not written.held
    assert judged(found, written, reference, [], "it").right


def test_padded_products_are_the_same(target: Callable[[str], Configuration]) -> None:
    configuration = target("vocabulary")
    written, reference = recorded(configuration), recorded(configuration, compute_in_float64)
    found = recorded(configuration, BY_NAME["padded_products"].apply)
    assert observed(configuration).facts.odd_products == 1
    assert observed(target("infer")).facts.odd_products == 0
    assert judged(found, written, reference, [], "it").right
    assert found.state.keys() == written.state.keys()


def test_what_comes_between_steps_is_not_compiled(target: Callable[[str], Configuration]) -> None:
    variant = observed(target("infer"))
    BY_NAME["compile"].apply(variant)
    (root,) = variant.roots
    variant.interrupted = True
    root.module(torch.randn(3, 16))
    assert BY_NAME["compile"].took_effect(variant) == "nothing was compiled"
    variant.interrupted = False
    root.module(*root.args, **root.kwargs)
    assert BY_NAME["compile"].took_effect(variant) is None


def test_rounding_keeps_so_many_bits() -> None:
    values = torch.tensor([1 + 2.0**-10, 1 + 2.0**-11, 1 + 2.0**-12, -3.0], dtype=torch.float64)
    assert rounded(values, 10).tolist() == [1 + 2.0**-10, 1 + 2.0**-10, 1.0, -3.0]
    assert rounded([values, 7], 10)[1] == 7
    a = torch.full((2, 2), 1 + 2.0**-9, dtype=torch.float64)
    with Rounding(7, results=False, everything=False):
        assert (a @ torch.eye(2, dtype=torch.float64)).tolist() == [[1.0, 1.0], [1.0, 1.0]]
        assert (a + 0).tolist() == a.tolist()


def test_weights_in_eight_bits_are_multiples_of_a_127th_of_the_largest_of_their_row() -> None:
    layer = torch.nn.Linear(3, 2).double()
    layer.weight.data = torch.tensor([[127.0, 0.4, -63.6], [0.0, 0.0, 0.0]], dtype=torch.float64)
    round_weights("int8_weights", [layer])
    assert layer.weight.tolist() == [[127.0, 0.0, -64.0], [0.0, 0.0, 0.0]]
    round_weights("compile", [layer])
    assert layer.weight.tolist() == [[127.0, 0.0, -64.0], [0.0, 0.0, 0.0]]


def computed(*values: float) -> VariantRecording:
    return VariantRecording([ComputedStep({"call 1": np.array(values)})], {}, {}, [])


def test_errors_are_relative_and_what_is_missing_is_wrong() -> None:
    right = computed(3.0, 4.0)
    assert worst_of(computed(3.0, 4.5), right) == pytest.approx(0.1)
    assert worst_of(computed(3.0), right) == float("inf")
    assert worst_of(computed(3.0, float("nan")), right) == float("inf")
    more = copy.deepcopy(right)
    more.steps[0].gradients["0"] = np.array([1.0])
    assert worst_of(right, more) == float("inf")
    # Where the step as written is far from float64 itself, nothing can be decided.
    assert judged(computed(1.0, 2.0), computed(5.0, 1.0), right, [], "it").right is None


def test_what_weights_that_train_apart_hide_in_a_later_step_is_decided_in_the_first() -> None:
    """In float64, with simulated rounding, and found: relative errors of 2 % in the first step and of 30 % later."""
    right = np.linspace(1.0, 2.0, 64)

    def one(first: float, later: float) -> VariantRecording:
        steps = [ComputedStep({"call 1": right}, gradients={"0.0.0": right * (1 + error)}) for error in (first, later)]
        return VariantRecording(steps, {}, {}, [2])

    reference, own, simulated = one(0.0, 0.0), one(1e-6, 1e-5), one(0.02, 0.3)
    found = judged(one(0.03, 0.3), own, reference, [simulated], "it")
    assert found.right
    assert found.reason.startswith("it: error 3.0e-02 at most against float64 (step 1, gradient 0.0.0)")
    wrong = judged(one(0.1, 0.3), own, reference, [simulated], "it")
    assert wrong.right is False
    assert wrong.reason.startswith("step 1, gradient 0.0.0: error 1.0e-01 against float64")
    # What cannot be decided in a later step explains nothing of the first.
    assert judged(one(0.29, 0.3), own, reference, [one(1e-6, 0.3)], "it").right is False
    assert judged(one(0.29, 0.0), one(1e-6, 0.3), reference, [], "it").right is False
    hidden = judged(one(0.3, 0.3), own, reference, [one(0.3, 0.3)], "it")
    assert hidden.right is None
    assert hidden.reason.endswith("rounding alone explains an error of 3.0e-01 in call 1: a mistake would not show")


def test_longer_runs_are_held_to_the_spread_of_seeds() -> None:
    falling = [2.0 - 0.05 * step for step in range(30)]
    assert losses_agree(falling, [falling, falling]) is None
    assert losses_agree([loss + 0.5 for loss in falling], [falling, falling]) is not None
    assert losses_agree([loss + 0.5 for loss in falling], [falling, [loss + 0.6 for loss in falling]]) is None
    assert losses_agree([float("nan")] * 30, [falling, falling]) is not None
    # As a GAN's, which is chaotic: from the same seed it ended above all others.
    seeds = [[loss + add for loss in falling] for add in (0.5, 0.4, 0.35)]
    assert losses_agree([loss + 0.34 for loss in falling], seeds) is None
    assert losses_agree([loss + 0.25 for loss in falling], seeds) is not None
    assert losses_agree([loss + 0.7 for loss in falling], seeds) is not None
    assert losses_agree([1.0], [[float("nan")]]) is None


def test_dropout_that_is_gone_is_noticed(target: Callable[[str], Configuration]) -> None:
    """The proof itself runs without dropout; a longer run does not."""
    written, same, other = (observed(target("train")) for _ in range(3))
    without_dropout(other)
    as_written = [written.drive(losses(written, 5, 0))]
    assert runs_agree(same.drive(losses(same, 5, 0)), as_written) is None
    assert "is its dropout gone?" in str(runs_agree(other.drive(losses(other, 5, 0)), as_written))


def test_losses_are_those_of_the_backward_pass(target: Callable[[str], Configuration]) -> None:
    variant = observed(target("train"))
    found = variant.drive(losses(variant, 5, 0)).losses
    assert len(found) == 5
    assert found[-1] < found[0]
    assert not hasattr(torch.autograd.backward, "__closure__") or torch.autograd.backward.__name__ == "backward"


def test_what_a_step_is_like(target: Callable[[str], Configuration], tmp_path: Path) -> None:
    facts = observed(target("train")).facts
    assert (facts.training, facts.modules, facts.optimizers, facts.unfused_optimizers) == (True, 1, ("Adam",), 1)
    assert facts.draws_random_numbers  # its dropout
    facts = observed(target("infer")).facts
    assert (facts.training, facts.optimizers, facts.parameter_types) == (False, (), ("float32",))


def test_what_rounding_alone_decides_is_no_error() -> None:
    def with_state(*values: float) -> VariantRecording:
        steps = [
            ComputedStep({"call 1": np.array([1.0])}, gradients={"0.0.0": np.array([1.0, 1e-9])}) for _ in range(2)
        ]
        state = {"0.weight": np.array(values)}
        return VariantRecording(steps, {}, state, [2], updated={"0.weight": "0.0.0"}, moved={"0.weight": 1e-3})

    right = with_state(1.0, 1.0)
    # A gradient of 1e-9 is less than its error, so Adam may move its element either way,
    assert judged(with_state(1.0, 1.0015), right, right, [], "other").right
    # but not farther than it moves any,
    assert judged(with_state(1.0, 1.0025), right, right, [], "other").right is False
    # and an element whose gradient is known moves as far as in the step as written.
    assert judged(with_state(1.0015, 1.0), right, right, [], "other").right is False


def test_an_update_that_is_missing_is_an_error_where_steps_update_different_elements() -> None:
    def with_state(*values: float) -> VariantRecording:
        gradients = ([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0])
        steps = [ComputedStep({"call 1": np.array([1.0])}, gradients={"0.0.0": np.array(one)}) for one in gradients]
        state = {"0.weight": np.array(values)}
        return VariantRecording(steps, {}, state, [2], updated={"0.weight": "0.0.0"}, moved={"0.weight": 0.1})

    right = with_state(0.9, 0.9, 0.9, 0.9)
    assert judged(right, right, right, [], "other").right
    assert judged(with_state(1.0, 1.0, 1.0, 1.0), right, right, [], "other").right is False


# The bias moves all results alike, which softmax takes out again: its gradient is rounding.
SHIFTED = """
import torch

class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 16))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return ((x @ self.weight.T + self.bias).softmax(1) * torch.arange(8.0)).sum(1)

def train():
    torch.manual_seed(0)
    model = Attends()
    optimizer, x = torch.optim.Adam(model.parameters(), 1e-2), torch.randn(32, 16)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
"""


def test_a_parameter_whose_true_gradient_is_zero_does_not_refuse_right_changes(tmp_path: Path) -> None:
    source = tmp_path / "shifted.py"
    source.write_text(SHIFTED)
    configuration = Configuration(target=f"{source}:train")
    written, reference = recorded(configuration), recorded(configuration, compute_in_float64)
    found = recorded(configuration, of_module(lambda output: output + 1e-7 * torch.randn_like(output)))
    assert judged(found, written, reference, [], "other").right, judged(found, written, reference, [], "other")
