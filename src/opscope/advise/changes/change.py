"""What a change is: when it makes sense, how it is made in a process, and how it is written into source.

Needs no PyTorch where nothing is made: the process that asks reads the list, those that it starts make the changes.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from opscope.base.processes import cores
from opscope.documents.advise import ChangeName, ErrorClass, Facts

if TYPE_CHECKING:
    from opscope.advise.loaders import Loaders
    from opscope.advise.source import Call
    from opscope.advise.variant import Variant
    from opscope.advise.writer import Writer

_MOST_WORKERS: Final = 8  # of one loader: more are seldom better, and each has the dataset once more

Refuses = Callable[[Facts], str | None]


class SourceEdit(Struct, frozen=True):
    """How a change is written.

    Attributes:
        lines: what people are told to write. Words in capitals stand for what `settings_of` returns.
        write: writes it into the source; None where that is left to people.
    """

    lines: tuple[str, ...]
    write: "Callable[[Writer], None] | None" = None


class Arithmetic(Struct, frozen=True):
    """How a change computes, as `simulated` simulates it in float64. Bits are those behind the point.

    Attributes:
        bits: that operands of products of matrices keep; None where products are as before.
        results: whether results of products keep no more, as 16-bit products return 16-bit numbers.
        everything: whether results of all other operators keep no more.
        weight_bits: that the modules' parameters and buffers keep; None for all.
        rows_of_eight_bits: whether rows of linear layers' weights are multiples of a 127th of their largest element.
    """

    bits: int | None = None
    results: bool = False
    everything: bool = False
    weight_bits: int | None = None
    rows_of_eight_bits: bool = False


class Change(Struct, frozen=True, kw_only=True):
    """One change.

    Attributes:
        name: its name on the command line and in results.
        slots: what it decides; changes that decide the same exclude each other.
        refuses: returns why it makes no sense for a step; None where it may.
        edit: how it is written.
        error_class: how precise arithmetic is with it. Only EXACT has no `arithmetic`. LOWER is for changes
            that round weights alone; the ``bits`` of their `arithmetic` are None.
        arithmetic: how it computes; None for as precisely as before.
        caveat: what to know of it; empty where there is nothing.
        alone: whether it is tried alone; others, which take minutes or seldom are the best, only in place of another
            change of the best combination.
        compiles: whether it compiles, which takes much longer than all else.
        prepare: makes what has to be made before the user's code runs.
        apply: makes it in a variant.
        took_effect: returns why it changed nothing after all, once the step has run with it; None where it did.
    """

    name: ChangeName
    slots: tuple[str, ...]
    refuses: Refuses
    edit: SourceEdit
    error_class: ErrorClass = ErrorClass.EXACT
    arithmetic: Arithmetic | None = None
    caveat: str = ""
    alone: bool = True
    compiles: bool = False
    prepare: "Callable[[Loaders], None]" = lambda _: None
    apply: "Callable[[Variant], None]" = lambda _: None
    took_effect: "Callable[[Variant], str | None]" = lambda _: None


def workers_tried() -> int:
    """Return how many workers a loader without any is tried with: one for each core that this process may use."""
    return max(1, min(_MOST_WORKERS, cores()))


# ---------------------------------------------------------------- how it is written


def by_hand(*lines: str) -> SourceEdit:
    """Return what only people can write."""
    return SourceEdit(lines)


def for_process(line: str) -> SourceEdit:
    """Return a line behind the imports of the script; TORCH in it stands for the name of PyTorch there."""
    return SourceEdit((_told(line),), lambda writer: writer.for_process(line))


def for_model(line: str, own_class: str | None = None) -> SourceEdit:
    """Return a line where each model has its name; MODEL and TORCH in it stand for the names there.

    Args:
        line: what is written.
        own_class: what is written instead for a model whose class is the user's; None for the same.
    """

    def line_of(call: "Call", name: str, torch: str) -> str:
        chosen = own_class if own_class is not None and call.own_class else line
        # At once: a name may hold the words that stand for others.
        return re.sub("MODEL|TORCH", lambda word: name if word[0] == "MODEL" else torch, chosen)

    return SourceEdit((_told(line),), lambda writer: writer.for_model(line_of))


def around_forward(header: str) -> SourceEdit:
    """Return a context around forward pass and loss; TORCH in it stands for the name of PyTorch there."""
    told = f"{_told(header)}:  # around forward pass and loss"
    return SourceEdit((told,), lambda writer: writer.around_forward(header))


def _told(line: str) -> str:
    return line.replace("MODEL", "model").replace("TORCH", "torch")


# ---------------------------------------------------------------- why not

Condition = tuple[Callable[[Facts], bool], str]


def needs(*conditions: Condition) -> Refuses:
    """Return what refuses a step for the first condition that does not hold.

    Args:
        conditions: each with the reason that is given where it does not hold.
    """

    def refuses(facts: Facts) -> str | None:
        return next((reason for holds, reason in conditions if not holds(facts)), None)

    return refuses


ON_GPU: Final[Condition] = (lambda facts: facts.device == "cuda", "it is for GPUs")
ON_CPU: Final[Condition] = (lambda facts: facts.device == "cpu", "it is for CPUs")
A_MODULE: Final[Condition] = (lambda facts: facts.modules > 0, "the step calls no module that it could be applied to")
INFERENCE: Final[Condition] = (lambda facts: not facts.training, "the step trains")
TRAINING: Final[Condition] = (lambda facts: facts.training and bool(facts.optimizers), "the step has no optimizer")
IN_FP32: Final[Condition] = (lambda facts: "float32" in facts.parameter_types, "no parameter is in float32")
CONVOLVES: Final[Condition] = (lambda facts: facts.convolutions > 0, "the model has no convolutions")
LOADS: Final[Condition] = (lambda facts: facts.loaders > 0, "the step takes no batches from a DataLoader")
