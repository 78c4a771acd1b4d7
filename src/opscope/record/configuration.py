"""What runs, with which settings, and how it is collected."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias, TypeGuard, cast

from msgspec import Struct, field

from opscope.base.text import lazy_pattern

# ---------------------------------------------------------------- settings
# A user's own target may have further settings (``--set NAME=VALUE``), of which only the names are known.


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


# ---------------------------------------------------------------- configurations


Activity = Literal["cpu", "cuda"]
DEVICE_NAME = r"auto|cpu|cuda(:\d+)?"  # the names by which users choose a device


class Configuration(Struct, frozen=True):
    """One point of a sweep. A setting without a value is left to the workload.

    Attributes:
        target: what runs: a built-in workload, a function, a script, a command.
        settings: values that are the same for the whole sweep, by name.
        axes: values that the sweep varies, by name; also the sizes of a single configuration.
    """

    target: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    axes: Mapping[str, Value] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The configuration's part of file names, from the axes: ``bs8_seq128``; ``default`` without axes."""
        names = sorted(self.axes, key=order_of)
        return "_".join(in_file_names(name, self.axes[name]) for name in names) or "default"

    def get(self, name: str) -> Value | None:
        """Return the value of a setting or an axis; None if it has none."""
        return self.axes.get(name, self.settings.get(name))

    def items(self) -> Iterator[tuple[str, Value]]:
        """Yield all settings and axes, in the order of the table of settings."""
        values = {**self.settings, **self.axes}
        return iter(sorted(values.items(), key=lambda item: order_of(item[0])))

    def count(self, name: str) -> int | None:
        """Return the value of a setting whose kind is a count; None if it has none."""
        return cast("int | None", self.get(name))

    @property
    def mode(self) -> Mode:
        """Whether a step infers or trains."""
        return cast("Mode", self.get("mode") or "inference")

    @property
    def dtype(self) -> Dtype | None:
        """The data type; None leaves it to the workload."""
        return cast("Dtype | None", self.get("dtype"))

    @property
    def attention(self) -> Attention | None:
        """The attention implementation; None leaves it to the workload."""
        return cast("Attention | None", self.get("attention"))

    @property
    def compiled(self) -> bool:
        """Whether the model runs through torch.compile."""
        return bool(self.get("compile"))

    def __hash__(self) -> int:  # the generated one would hash the mappings, which cannot be hashed
        return hash((self.target, frozenset(self.settings.items()), frozenset(self.axes.items())))


class Schedule(Struct, frozen=True):
    """torch.profiler's schedule, in steps: ``repeat`` cycles of ``wait``, ``warmup`` and ``active``."""

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1


class CaptureOptions(Struct, frozen=True):
    """How a configuration is measured.

    Attributes:
        device: ``auto`` is the first GPU, else the CPU.
        activities: what torch.profiler collects.
        schedule: its schedule; None for a ``with`` block, which is collected whole.
        with_stack: whether Python stacks are recorded.
        profile_memory: whether allocations are recorded.
        memory: whether PyTorch's history of a GPU's memory is recorded over a few more steps, and a snapshot kept.
        benchmark: whether unprofiled steps are timed beside the profile.
        steps: which steps of a script: ``training``, ``calls``, ``replays``, ``evaluation``, ``operators`` or
            ``annotation:NAME``; None lets opscope choose.
        once: whether a script may run only once.
        quick: whether a script's steps are timed for a second or two only.
        check_clock: whether a script is run once more with nothing but a clock at its boundaries.
    """

    device: str = "auto"
    activities: tuple[Activity, ...] = ("cpu", "cuda")
    schedule: Schedule | None = Schedule()
    with_stack: bool = False
    profile_memory: bool = False
    benchmark: bool = True
    steps: str | None = None
    once: bool = False
    quick: bool = False
    check_clock: bool = False
    memory: bool = False
