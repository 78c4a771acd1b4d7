"""The built-in models: BERT, GPT-2 and ResNet-50 from transformers, and a plain Transformer encoder from torch.nn.

Weights are random unless pretrained ones are asked for: time does not depend on their values.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.record.capture import WorkloadInfo
from opscope.record.configuration import Configuration
from opscope.workloads.catalog import check, is_built_in
from opscope.workloads.custom import build_custom
from opscope.workloads.stepping import Model, StepFunction, Workload, make_step, parameter_count, precision_notes

# ---------------------------------------------------------------- models


_BERT_HUB_NAME = "google-bert/bert-base-uncased"
_HEAD_SIZE = 64
# What a checkpoint of BERT may lack, depending on what it was saved from: a few layers after the encoder.
_HEADS = ("cls.", "pooler.", "bert.pooler.")
_SEED = 0  # random weights are the same in every process


def build_bert(configuration: Configuration, device: torch.device) -> Workload:
    """Build BERT, simplified or with transformers, random or pretrained.

    Raises:
        UsageError: a size does not fit the model.
        EnvironmentLacksError: transformers or pretrained weights are missing.
    """
    have_transformers = importlib.util.find_spec("transformers") is not None
    if configuration.get("simplified") or (not have_transformers and configuration.get("pretrained") is None):
        return _build_simplified(configuration, device, because_absent=not configuration.get("simplified"))
    _require_transformers()
    import transformers

    batch, length = _sizes(configuration)
    training = configuration.mode == "training"
    model_class = transformers.BertForMaskedLM if training else transformers.BertModel
    if configuration.get("pretrained") is not None:
        module, notes = _load_pretrained_bert(model_class, configuration)
        positions = module.config.max_position_embeddings
        if length > positions:
            raise UsageError(f"sequence length {length} exceeds the {positions} positions of the pretrained model")
    else:
        hidden, layers = configuration.count("hidden_size") or 768, configuration.count("layers") or 12
        config = transformers.BertConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=_heads(hidden),
            intermediate_size=4 * hidden,
            max_position_embeddings=max(512, length),
        )
        module = _from_config(model_class, config, configuration)
        notes = ["random weights", *_stretched(length, 512)]
    ids = torch.randint(0, module.config.vocab_size, (batch, length), device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if training:
        inputs["labels"] = ids
        notes.append("training uses BertForMaskedLM, loss over all tokens, AdamW")
    return _transformers_workload("bert", module, inputs, configuration, device, notes)


def build_gpt2(configuration: Configuration, device: torch.device) -> Workload:
    """Build GPT-2 with its language-model head.

    Raises:
        UsageError: the hidden size is not a multiple of the head size.
        EnvironmentLacksError: transformers is missing.
    """
    _require_transformers()
    import transformers

    batch, length = _sizes(configuration)
    hidden, layers = configuration.count("hidden_size") or 768, configuration.count("layers") or 12
    config = transformers.GPT2Config(
        n_embd=hidden, n_layer=layers, n_head=_heads(hidden), n_positions=max(1024, length), use_cache=False
    )
    module = _from_config(transformers.GPT2LMHeadModel, config, configuration)
    ids = torch.randint(0, config.vocab_size, (batch, length), device=device)
    training = configuration.mode == "training"
    inputs = {"input_ids": ids, "labels": ids} if training else {"input_ids": ids}
    notes = ["random weights", *_stretched(length, 1024)]
    if training:
        notes.append("next-token loss, AdamW")
    return _transformers_workload("gpt2", module, inputs, configuration, device, notes)


def build_resnet50(configuration: Configuration, device: torch.device) -> Workload:
    """Build the ResNet-50 image classifier.

    Raises:
        EnvironmentLacksError: transformers is missing.
    """
    _require_transformers()
    import transformers

    batch, side = configuration.count("batch_size") or 1, configuration.count("image_size") or 224
    torch.manual_seed(_SEED)
    module = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)).to(device)
    inputs: dict[str, Any] = {"pixel_values": torch.randn(batch, 3, side, side, device=device)}
    notes = ["random weights"]
    if configuration.mode == "training":
        inputs["labels"] = torch.randint(0, 1000, (batch,), device=device)
        notes.append("cross-entropy loss, SGD with momentum")
    model = Model(module, (), inputs, _output_loss, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))
    info = WorkloadInfo(
        name="resnet50",
        description=f"ResNet-50, {side}x{side} images",
        parameters=parameter_count(module),
        sequences_per_step=batch,
        unit="images",
        notes=(*notes, *precision_notes(configuration)),
        dtype=configuration.dtype,
    )
    return Workload(info, make_step(model, configuration, device), device)


BUILDERS: Mapping[str, Callable[[Configuration, torch.device], Workload]] = {
    "bert": build_bert,
    "gpt2": build_gpt2,
    "resnet50": build_resnet50,
}


def _require_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise EnvironmentLacksError(
            "this target needs transformers, which is not installed: pip install 'opscope[models]'"
        )


def _sizes(configuration: Configuration) -> tuple[int, int]:
    return configuration.count("batch_size") or 1, configuration.count("seq_len") or 128


def _heads(hidden: int) -> int:
    if hidden < _HEAD_SIZE:
        return 1
    if hidden % _HEAD_SIZE:
        raise UsageError(f"hidden size {hidden} is not a multiple of the head size {_HEAD_SIZE}")
    return hidden // _HEAD_SIZE


def _stretched(length: int, positions: int) -> list[str]:
    return [f"position embeddings extended from {positions} to {length}"] if length > positions else []


def _attention(configuration: Configuration) -> str:
    return configuration.attention or "sdpa"


def _from_config(model_class: Any, config: Any, configuration: Configuration) -> torch.nn.Module:
    torch.manual_seed(_SEED)
    config._attn_implementation = _attention(configuration)
    return model_class(config)


def _load_pretrained_bert(model_class: Any, configuration: Configuration) -> tuple[Any, list[str]]:
    """Load real weights from a directory, the local cache or the hub; never fall back to random ones.

    Returns:
        The model, and notes on where its weights come from.
    """
    directory_name = str(configuration.get("pretrained") or "")
    wanted = directory_name or _BERT_HUB_NAME
    directory = Path(wanted)
    if directory_name and not directory.is_dir():
        raise EnvironmentLacksError(f"--use-real-bert {wanted}: there is no such directory")
    # The hub is asked only for what the local cache does not have.
    attempts = ({"local_files_only": True},) if directory.is_dir() else ({"local_files_only": True}, {})
    problem = ""
    for attempt in attempts:
        try:
            return _from_pretrained(model_class, wanted, _attention(configuration), attempt)
        except EnvironmentLacksError:
            raise
        except Exception as error:  # transformers, huggingface_hub and safetensors raise many kinds
            problem = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if directory.is_dir():
        raise EnvironmentLacksError(
            f"--use-real-bert {wanted}: the directory holds no BERT weights that transformers can load ({problem})"
        )
    raise EnvironmentLacksError(
        f"no weights of {wanted}: not in the local cache, and the hub cannot be reached ({problem}). "
        f"Where there is a network, run 'hf download {wanted} --local-dir bert-base-uncased', copy the folder here and "
        "pass --use-real-bert bert-base-uncased; or leave the option out: random weights take the same time."
    )


def _from_pretrained(
    model_class: Any, wanted: str, attention: str, attempt: Mapping[str, bool]
) -> tuple[Any, list[str]]:
    """Load a checkpoint and refuse one whose weights are not this model's: transformers fills gaps at random."""
    import transformers

    kind = transformers.AutoConfig.from_pretrained(wanted, **attempt).model_type
    if kind != "bert":
        raise EnvironmentLacksError(f"--use-real-bert {wanted}: the weights are of a {kind} model, not of BERT")
    module, loaded = model_class.from_pretrained(
        wanted, attn_implementation=attention, output_loading_info=True, **attempt
    )
    missing = sorted(loaded["missing_keys"])
    encoder = [key for key in missing if not key.startswith(_HEADS)]
    if encoder or loaded["mismatched_keys"]:
        wrong = encoder or sorted(str(key) for key in loaded["mismatched_keys"])
        raise EnvironmentLacksError(
            f"--use-real-bert {wanted}: {len(wrong)} of the model's weights are not in it, such as {wrong[0]}"
        )
    notes = [f"pretrained weights from {wanted}"]
    if missing:
        notes.append(f"random weights for what the checkpoint lacks: {', '.join(missing)}")
    return module, notes


def _transformers_workload(
    name: str,
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    configuration: Configuration,
    device: torch.device,
    notes: Sequence[str],
) -> Workload:
    module = module.to(device)
    config: Any = module.config
    batch, length = _sizes(configuration)
    model = Model(module, (), inputs, _output_loss, lambda parameters: torch.optim.AdamW(parameters, lr=1e-4))
    info = WorkloadInfo(
        name=name,
        description=f"{type(module).__name__}, {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{_attention(configuration)} attention",
        parameters=parameter_count(module),
        sequences_per_step=batch,
        tokens_per_step=batch * length,
        notes=(*notes, *precision_notes(configuration)),
        dtype=configuration.dtype,
    )
    return Workload(info, make_step(model, configuration, device), device)


def _output_loss(output: Any) -> torch.Tensor:
    return output.loss


class _SimplifiedEncoder(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """Token and position embeddings, then torch.nn's Transformer encoder: BERT's shapes without its details."""

    def __init__(self, hidden: int, layers: int, positions: int, vocabulary: int = 30522) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, hidden)
        self.positions = torch.nn.Embedding(positions, hidden)
        layer = torch.nn.TransformerEncoderLayer(
            hidden, _heads(hidden), 4 * hidden, activation="gelu", batch_first=True
        )
        self.encoder = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.encoder(self.tokens(ids) + self.positions(places))


def _build_simplified(configuration: Configuration, device: torch.device, *, because_absent: bool) -> Workload:
    batch, length = _sizes(configuration)
    hidden, layers = configuration.count("hidden_size") or 768, configuration.count("layers") or 12
    torch.manual_seed(_SEED)
    # The fused inference path hides the operators that the report is about.
    torch.backends.mha.set_fastpath_enabled(False)
    module = _SimplifiedEncoder(hidden, layers, max(512, length)).to(device)
    ids = torch.randint(0, module.tokens.num_embeddings, (batch, length), device=device)
    model = Model(
        module,
        (ids,),
        {},
        lambda output: output.float().square().mean(),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    )
    notes = ["random weights", "torch.nn.TransformerEncoder with its fused inference path switched off"]
    if because_absent:
        notes.append("transformers is not installed, so this is the simplified encoder and not BertModel")
    if configuration.mode == "training":
        notes.append("mean square of the output as loss, AdamW")
    info = WorkloadInfo(
        name="bert",
        description=f"simplified Transformer encoder, {layers} layers, hidden size {hidden}, "
        f"{_attention(configuration)} attention",
        parameters=parameter_count(module),
        sequences_per_step=batch,
        tokens_per_step=batch * length,
        notes=(*notes, *precision_notes(configuration)),
        dtype=configuration.dtype,
    )
    step = make_step(model, configuration, device)
    return Workload(info, _with_math_attention(step) if configuration.attention == "eager" else step, device)


def _with_math_attention(step: StepFunction) -> StepFunction:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def eager() -> object:
        with sdpa_kernel(SDPBackend.MATH):
            return step()

    return eager


# ---------------------------------------------------------------- the choice


def build_workload(configuration: Configuration, device: torch.device) -> Workload:
    """Build the workload of a configuration on a device.

    Raises:
        UsageError: the target or one of its options is wrong.
        EnvironmentLacksError: a library or weights are missing.
    """
    check(configuration)
    if is_built_in(configuration.target):
        settings = {"dtype": "float32", **configuration.settings}
        return BUILDERS[configuration.target](replace(configuration, settings=settings), device)
    return build_custom(configuration, device)
