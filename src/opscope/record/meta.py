"""Messages to and from the process that repeats recorded calls with tensors that have no data."""

from msgspec import Struct


class MetaCall(Struct, frozen=True):
    """A recorded call: the operator, and its inputs as JSON lists, as the profiler records them."""

    operator: str
    input_dims: str
    input_types: str
    input_strides: str
    concrete_inputs: str


class Rebuilt(Struct, frozen=True):
    """The costs of a repeated call.

    Attributes:
        flop: as ``torch.utils.flop_counter`` counts.
        read_bytes: size of all tensor arguments.
        new_bytes: size of the returned tensors that are not arguments.
        rewritten_bytes: size of the arguments that it writes.
    """

    flop: int
    read_bytes: int
    new_bytes: int
    rewritten_bytes: int


class MetaAnswer(Struct, frozen=True):
    """One line of the answer: the costs of a call, or None if it was refused or failed.

    The first line answers no call; it says that the process is ready.
    """

    rebuilt: Rebuilt | None = None
