"""The built-in workloads by name: which sizes and options each takes. Read before PyTorch is imported."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.machinery import PathFinder
from pathlib import Path

from opscope.errors import UsageError
from opscope.record import Configuration


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One built-in workload.

    Attributes:
        summary: one line for ``--help``.
        options: the fields of `Configuration`, beyond mode, dtype and compile, that it takes.
        batch_sizes: default sweep.
        seq_lens: default sweep; empty where there is no sequence.
    """

    summary: str
    options: frozenset[str]
    batch_sizes: tuple[int, ...]
    seq_lens: tuple[int, ...] = ()


_TRANSFORMER = frozenset({"batch_size", "seq_len", "hidden_size", "layers", "attention"})

BUILT_IN: Mapping[str, CatalogEntry] = {
    "bert": CatalogEntry(
        "BERT (transformers' BertModel, or a simplified Transformer encoder from torch.nn)",
        _TRANSFORMER | {"simplified", "pretrained"},
        batch_sizes=(1, 8, 16),
        seq_lens=(128, 256),
    ),
    "gpt2": CatalogEntry(
        "GPT-2 with its language-model head (transformers)", _TRANSFORMER, batch_sizes=(1, 4), seq_lens=(512,)
    ),
    "resnet50": CatalogEntry(
        "ResNet-50 image classifier (transformers)",
        frozenset({"batch_size", "image_size"}),
        batch_sizes=(1, 32),
    ),
}

_OPTION_NAMES = {
    "batch_size": "--batch-sizes",
    "seq_len": "--seq-lens",
    "image_size": "--image-size",
    "hidden_size": "--hidden-size",
    "layers": "--layers",
    "attention": "--attention",
    "simplified": "--simplified",
    "pretrained": "--use-real-bert",
}


def option_name(field: str) -> str:
    """Return the command-line option behind a field of `Configuration`."""
    return _OPTION_NAMES[field]


def is_built_in(target: str) -> bool:
    """Tell whether a target is a built-in workload; anything else names a function."""
    return target in BUILT_IN


def target_file(target: str) -> Path | None:
    """Return the file that defines a target of the user's, without importing it; None for a built-in or a lost one."""
    place, _, _ = target.rpartition(":")
    if not place:
        return None
    if place.endswith(".py"):
        return Path(place)
    path: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    for end, _ in enumerate(place.split("."), 1):
        spec = PathFinder.find_spec(".".join(place.split(".")[:end]), path)
        path = None if spec is None else spec.submodule_search_locations
        if spec is None:
            return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def short_name(target: str) -> str:
    """Return a target's name for file names: the function's, or the file's where the function has a common name."""
    place, _, function = target.rpartition(":")
    return re.sub(r"\W+", "_", function or Path(place).stem).strip("_") or "workload"


def set_options(configuration: Configuration) -> frozenset[str]:
    """Return the workload options that a configuration sets away from their defaults."""
    return frozenset(
        field.name
        for field in fields(Configuration)
        if field.name in _OPTION_NAMES and getattr(configuration, field.name) not in (None, False)
    )


def check(configuration: Configuration) -> None:
    """Refuse what can be known to be wrong before anything runs.

    Raises:
        UsageError: the target does not exist, or an option does not apply to it.
    """
    target = configuration.target
    if not is_built_in(target):
        if ":" not in target:
            known = ", ".join(BUILT_IN)
            raise UsageError(
                f"unknown target {target!r}: expected one of {known}, "
                "or package.module:function, or path/to/file.py:function"
            )
        for field in ("simplified", "pretrained"):
            if getattr(configuration, field) not in (None, False):
                raise UsageError(f"{option_name(field)} applies to the target bert only, not to {target}")
        return
    foreign = sorted(set_options(configuration) - BUILT_IN[target].options)
    if foreign:
        raise UsageError(f"{option_name(foreign[0])} does not apply to the target {target}")
    if configuration.pretrained is not None:
        fixed = sorted(set_options(configuration) & {"hidden_size", "layers", "simplified"})
        if fixed:
            raise UsageError(
                f"{option_name(fixed[0])} cannot be combined with --use-real-bert: the weights fix the model"
            )
