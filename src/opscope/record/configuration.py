"""What runs, and how it is collected."""

from collections.abc import Iterator, Mapping
from typing import Literal, cast

from msgspec import Struct, field

from opscope.record.settings import Attention, Dtype, Mode, Value, in_file_names, order_of

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
