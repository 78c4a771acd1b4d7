"""The settings of workloads: one table for command-line options, file names, reports and function parameters.

A user's own target may have further settings (``--set NAME=VALUE``), of which only the names are known.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, TypeGuard

from msgspec import Struct

from opscope.base.text import lazy_pattern

Value: TypeAlias = bool | int | float | str
Mode = Literal["inference", "training"]
Dtype = Literal["float32", "bfloat16", "float16"]
Attention = Literal["eager", "sdpa"]


class Setting(Struct, frozen=True):
    """One setting.

    Attributes:
        name: of the function's parameter, and of the field in files: ``batch_size``.
        option: on the command line: ``--batch-sizes``.
        heading: in reports.
        label: stands before the value in file names: ``bs`` in ``bs8``; empty if the value needs none.
        kind: a count takes whole numbers from 1 on, a choice takes one of ``choices``, a flag is present or absent.
        choices: the allowed values of a choice.
        is_size: whether it is always part of file names (as in the first reports), not only when it varies.
        built_in_only: whether only built-in workloads receive it, and users' functions do not.
    """

    name: str
    option: str
    heading: str
    label: str = ""
    kind: Literal["count", "choice", "flag", "text"] = "count"
    choices: tuple[str, ...] = ()
    is_size: bool = False
    built_in_only: bool = False


SETTINGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting("batch_size", "--batch-sizes", "Batch size", "bs", is_size=True),
        Setting("seq_len", "--seq-lens", "Sequence length", "seq", is_size=True),
        Setting("image_size", "--image-size", "Image size", "image"),
        Setting("hidden_size", "--hidden-size", "Hidden size", "hidden"),
        Setting("layers", "--layers", "Layers", "layers"),
        Setting("mode", "--mode", "Mode", kind="choice", choices=("inference", "training")),
        Setting("dtype", "--dtype", "Data type", kind="choice", choices=("float32", "bfloat16", "float16")),
        Setting("attention", "--attention", "Attention", kind="choice", choices=("eager", "sdpa")),
        Setting("compile", "--compile", "torch.compile", kind="flag"),
        Setting("simplified", "--simplified", "Simplified", kind="flag", built_in_only=True),
        Setting("pretrained", "--use-real-bert", "Weights", kind="text", built_in_only=True),
    )
}
# How data types are written on the command line and in file names.
SHORT_DTYPES: Final[Mapping[str, str]] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_UNSAFE = lazy_pattern(r"[^\w.+-]+")  # in a file name


def is_count(value: object) -> TypeGuard[int]:
    """Tell whether a setting's value is a whole number: in Python a bool is an int, but it counts nothing."""
    return isinstance(value, int) and not isinstance(value, bool)


def option_of(name: str) -> str:
    """Return the command-line option that sets a setting, whether the table has it or not."""
    return SETTINGS[name].option if name in SETTINGS else f"--set {name}=..."


def heading_of(name: str) -> str:
    """Return the heading of a setting in reports."""
    return SETTINGS[name].heading if name in SETTINGS else name


def in_file_names(name: str, value: Value) -> str:
    """Format an axis's value for file names: ``bs8``, ``bf16``, ``width64``."""
    text = SHORT_DTYPES.get(str(value), str(value)) if name == "dtype" else str(value)
    label = SETTINGS[name].label if name in SETTINGS else name
    return _UNSAFE.sub("-", f"{label}{text}")


def order_of(name: str) -> int:
    """Return a setting's sort key: its position in the table, with users' own settings last."""
    return list(SETTINGS).index(name) if name in SETTINGS else len(SETTINGS)
