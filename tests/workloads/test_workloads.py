"""The built-in models and the user's own: what is built, and that its step does what it says. On the CPU."""

from pathlib import Path

import pytest

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.record.configuration import Configuration
from tests.configured import configured

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from opscope.torch_support.tensors import resolve_device  # noqa: E402
from opscope.workloads.catalog import target_name  # noqa: E402
from opscope.workloads.models import build_workload  # noqa: E402

CPU = torch.device("cpu")
SMALL = {"batch_size": 2, "seq_len": 16, "hidden_size": 64, "layers": 2}


def seen_operators(configuration: Configuration) -> set[str]:
    step = build_workload(configuration, CPU).step
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    return {event.key for event in profiler.key_averages()}


@pytest.mark.parametrize(
    ("configuration", "parameters"),
    [
        # Published sizes: BERT base without heads, GPT-2 small, ResNet-50 with 1000 classes.
        (configured("bert", batch_size=1, seq_len=8), 109_482_240),
        (configured("gpt2", batch_size=1, seq_len=8), 124_439_808),
        (configured("resnet50", batch_size=1, image_size=32), 25_557_032),
    ],
)
def test_default_sizes_are_the_published_models(configuration: Configuration, parameters: int) -> None:
    assert build_workload(configuration, CPU).info.parameters == parameters


@pytest.mark.parametrize("target", ["bert", "gpt2", "resnet50"])
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_built_in_model_runs_in_every_mode(target: str, mode: str, dtype: str) -> None:
    sizes = {"batch_size": 2, "image_size": 32} if target == "resnet50" else SMALL
    configuration = configured(target, mode=mode, dtype=dtype, **sizes)  # type: ignore[arg-type]
    workload = build_workload(configuration, CPU)
    workload.step()
    result = workload.step()
    if mode == "training":
        assert isinstance(result, torch.Tensor)
        assert result.ndim == 0
        assert torch.isfinite(result)
    assert workload.info.sequences_per_step == 2
    assert workload.info.tokens_per_step == (None if target == "resnet50" else 32)
    assert any(dtype in note for note in workload.info.notes) == (dtype != "float32")


@pytest.mark.parametrize("target", ["bert", "gpt2", "resnet50"])
def test_training_learns(target: str) -> None:
    sizes = {"batch_size": 2, "image_size": 32} if target == "resnet50" else SMALL
    step = build_workload(configured(target, mode="training", **sizes), CPU).step  # type: ignore[arg-type]
    losses = [float(step()) for _ in range(12)]  # type: ignore[arg-type]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("simplified", [False, True])
def test_attention_is_the_one_asked_for(simplified: bool) -> None:
    base = {"simplified": simplified, **SMALL}  # type: ignore[arg-type]
    fused = {"aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_attention_math"}
    eager = seen_operators(configured("bert", attention="eager", **base))
    sdpa = seen_operators(configured("bert", attention="sdpa", **base))
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in sdpa
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" not in eager
    assert {"aten::bmm", "aten::_softmax"} <= eager or {"aten::bmm", "aten::_safe_softmax"} <= eager
    assert sdpa & fused


def test_simplified_is_a_plain_encoder_that_shows_its_operators() -> None:
    configuration = configured("bert", simplified=True, **SMALL)  # type: ignore[arg-type]
    assert "simplified Transformer encoder" in build_workload(configuration, CPU).info.description
    seen = seen_operators(configuration)
    assert "aten::_transformer_encoder_layer_fwd" not in seen
    assert {"aten::addmm", "aten::gelu", "aten::native_layer_norm"} <= seen


def test_without_transformers_bert_is_simplified_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    info = build_workload(configured("bert", **SMALL), CPU).info  # type: ignore[arg-type]
    assert any("transformers is not installed" in note for note in info.notes)
    for target in ("gpt2", "resnet50"):
        with pytest.raises(EnvironmentLacksError, match=r"needs transformers.*opscope\[models\]"):
            build_workload(configured(target), CPU)
    with pytest.raises(EnvironmentLacksError, match="needs transformers"):
        build_workload(configured("bert", pretrained=""), CPU)


def test_real_weights_come_from_a_directory(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64)
    saved = transformers.BertModel(config)
    saved.save_pretrained(tmp_path)
    workload = build_workload(configured("bert", batch_size=1, seq_len=8, pretrained=str(tmp_path)), CPU)
    assert workload.info.notes[0] == f"pretrained weights from {tmp_path}"
    assert workload.info.parameters == sum(p.numel() for p in saved.parameters())
    with pytest.raises(UsageError, match="sequence length 513 exceeds the 512 positions"):
        build_workload(configured("bert", batch_size=1, seq_len=513, pretrained=str(tmp_path)), CPU)


def test_missing_weights_are_never_replaced_by_random_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentLacksError, match="there is no such directory"):
        build_workload(configured("bert", pretrained=str(tmp_path / "absent")), CPU)
    with pytest.raises(EnvironmentLacksError, match="holds no BERT weights"):
        build_workload(configured("bert", pretrained=str(tmp_path)), CPU)
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EnvironmentLacksError, match=r"no weights of google-bert/bert-base-uncased.*hf download"):
        build_workload(configured("bert", pretrained=""), CPU)


def test_weights_of_another_model_or_with_gaps_are_refused(tmp_path: Path) -> None:
    import transformers
    from safetensors.torch import load_file, save_file

    other = transformers.GPT2Model(transformers.GPT2Config(n_embd=64, n_layer=1, n_head=1))
    other.save_pretrained(tmp_path / "gpt2")
    with pytest.raises(EnvironmentLacksError, match="gpt2"):
        build_workload(configured("bert", pretrained=str(tmp_path / "gpt2")), CPU)
    config = transformers.BertConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64)
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    weights = load_file(tmp_path / "bert" / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "attention.self.query" not in name}
    save_file(kept, tmp_path / "bert" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EnvironmentLacksError, match=r"query"):
        build_workload(configured("bert", pretrained=str(tmp_path / "bert")), CPU)


def test_long_sequences_extend_the_positions_and_say_so() -> None:
    workload = build_workload(configured("bert", batch_size=1, seq_len=520, hidden_size=32, layers=1), CPU)
    assert "position embeddings extended from 512 to 520" in workload.info.notes
    workload.step()


def test_a_hidden_size_that_does_not_split_into_heads_is_refused() -> None:
    with pytest.raises(UsageError, match="hidden size 100 is not a multiple of the head size 64"):
        build_workload(configured("bert", hidden_size=100), CPU)


def test_devices_are_named_or_refused() -> None:
    assert resolve_device("cpu").type == "cpu"
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(EnvironmentLacksError, match="device cuda:63 is not there"):
        resolve_device("cuda:63")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("train.py:make_step", "make_step"),
        ("pkg.mod:Class.method", "Class_method"),
        ("my run", "my_run"),
        (":", "workload"),
    ],
)
def test_targets_have_short_names_that_are_safe_in_file_names(target: str, name: str) -> None:
    assert target_name(target) == name
