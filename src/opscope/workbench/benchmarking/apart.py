"""Runs a variant in a process of its own, while this one makes the inputs, checks the results and holds the clock.

Code that runs in one process with its judge can reach the judge: its clock, its inputs, the right results. Here only
inputs go to the variant and only the bytes of tensors come back; nothing that it sends is unpickled or run. It is no
sandbox: a process of the same user can still open files and signal others.
"""

import multiprocessing
import os
import pickle
import random
import signal
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec
import torch
from msgspec import Struct, field
from msgspec.structs import replace

from opscope.base.processes import end_with_parent
from opscope.documents.bench import CONFIRMED_WITHIN, Confirmation, Correct, Correctness
from opscope.measuring.clock import synchronize
from opscope.record.bench import Claim
from opscope.torch_support.tensors import copy_of, current, tensors_of
from opscope.workbench.benchmarking.case import Case, Function, TimedInputs
from opscope.workbench.benchmarking.correctness import (
    Inputs,
    VariantError,
    check_as_timed,
    check_timed,
    check_variants,
    refused,
)

_SLACK_NS: Final = 10e3  # a pipe wakes a process up that much earlier or later, once for each batch
_VARIES: Final = 0.25  # of the time that changing the inputs takes, which is taken off
_AGAIN: Final = 3  # times that a gain is measured before it is doubted
_CHECKED: Final = 3  # batches whose last result is checked
_BATCH_NS: Final = 20e6  # how long a batch of calls takes, so that the pipe hardly counts
_MOST_CALLS: Final = 500  # of a batch
_ROUNDS: Final = 12
_LARGEST: Final = 1 << 34  # bytes of one result that are read
_DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}


class _Head(Struct, frozen=True):
    """What comes back, before the bytes of the tensors.

    Attributes:
        problem: how the call failed; None if it did not.
        shapes, dtypes: of the tensors.
        results: how many of them are results; the others are the inputs after the call.
    """

    problem: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    results: int = 0


# ---------------------------------------------------------------- the process of the variant


class _Served(Struct):
    """The variant's side: holds inputs and the last result."""

    function: Function
    device: torch.device
    inputs: Inputs = ()
    changes: TimedInputs = field(default_factory=lambda: TimedInputs(()))
    last: object = None
    shapes: list[torch.Size] = field(default_factory=list)

    def take(self, values: Inputs) -> None:
        """Take over inputs: into the same memory where they are of the same kind, so that addresses tell nothing."""
        if len(values) == len(self.inputs):
            values = tuple(map(_into, self.inputs, values))
        self.inputs = values
        self.changes = TimedInputs(self.inputs)

    def call(self) -> list[torch.Tensor]:
        """Call the variant; return its results, cloned at once: what is written later does not belong to the call."""
        # Free memory that holds NaN is used again, so results that are not written show.
        held = [torch.full(shape, float("nan"), device=self.device) for shape in self.shapes]
        del held
        results = [result.detach().clone() for result in tensors_of(self.function(*self.inputs))]
        synchronize(self.device)
        self.shapes = [result.shape for result in results]
        return results

    def many(self, calls: int) -> None:
        """Call it often, with inputs that change each time: a result that was kept is then wrong."""
        for _ in range(calls):
            self.changes.scale()
            self.last = self.function(*self.inputs)
        synchronize(self.device)

    def once(self, _calls: int) -> None:
        """Call it once, with the inputs as they are."""
        self.last = self.function(*self.inputs)
        synchronize(self.device)

    def idle(self, calls: int) -> None:
        """Change the inputs as often, without a call."""
        for _ in range(calls):
            self.changes.scale()
        synchronize(self.device)


def _into(own: object, value: object) -> object:
    """Return a value: written into the memory of an earlier one if both are tensors of one kind, else as it came."""
    if not isinstance(own, torch.Tensor) or not isinstance(value, torch.Tensor) or not _fits(own, value):
        return value
    own.detach().copy_(value.detach())
    return own


def _fits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether a tensor can be written into the memory of another."""
    return (
        type(one) is type(other) and one.layout is torch.strided is other.layout and one.dtype == other.dtype
        and one.shape == other.shape and one.stride() == other.stride() and 0 not in one.stride()
        and one.requires_grad == other.requires_grad
    )  # fmt: skip


def _serve(load: Callable[[], Function], name: str, wire: Connection) -> None:
    """Serve requests until the other side closes its end."""
    device = _resolved(name)
    with current(device):
        try:
            served = _Served(load(), device)
        except Exception as error:
            return _answer(wire, problem=_told(error))
        _answer(wire)
        while True:
            try:
                what, argument = pickle.loads(wire.recv_bytes())
            except EOFError:
                return None
            try:
                _obey(served, what, argument, wire)
            except Exception as error:
                _answer(wire, problem=f"raises {_told(error)}")


def _obey(served: _Served, what: str, argument: Any, wire: Connection) -> None:
    if what == "call":
        served.take(argument)
        results = served.call()
        _answer(wire, results, [one.detach() for one in served.inputs if isinstance(one, torch.Tensor)])
    elif what == "last":
        _answer(wire, [one.detach() for one in tensors_of(served.last)])
    else:
        orders: dict[str, Callable[[Any], None]] = {
            **{"inputs": served.take, "many": served.many, "once": served.once, "idle": served.idle}
        }
        orders[what](argument)
        _answer(wire)


def _answer(
    wire: Connection, results: Sequence[torch.Tensor] = (), inputs: Sequence[torch.Tensor] = (), problem: str = ""
) -> None:
    tensors = [one.to_dense() if one.layout is not torch.strided else one for one in (*results, *inputs)]
    plain = [one.resolve_conj().resolve_neg().contiguous().cpu() for one in tensors]
    head = _Head(
        problem or None,
        tuple(tuple(one.shape) for one in plain),
        tuple(str(one.dtype).removeprefix("torch.") for one in plain),
        len(results),
    )
    wire.send_bytes(msgspec.msgpack.encode(head))
    for one in plain:
        wire.send_bytes(memoryview(one.reshape(-1).view(torch.uint8).numpy()) if one.numel() else b"")


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


def _resolved(name: str) -> torch.device:
    from opscope.torch_support.tensors import resolve_device

    return resolve_device(name)


# ---------------------------------------------------------------- the process that judges


class Apart:
    """One variant in a process of its own, forked from this one.

    Make it before this process uses a GPU, and before it imports any of the user's code.

    Args:
        load: returns the variant, there.
        device: the device's name, as a user gives it.
        timeout_s: the longest wait for an answer.
        others: those that were made before: their pipes are closed there.

    Attributes:
        changes: how often the inputs were changed there since they were sent.
    """

    def __init__(
        self, load: Callable[[], Function], device: str, timeout_s: float, others: "Sequence[Apart]" = ()
    ) -> None:
        self._timeout_s = timeout_s
        self._problem: str | None = None
        self.changes = 0
        self._wire, theirs = multiprocessing.Pipe()
        _limit(self._wire, timeout_s)
        threads = torch.get_num_threads()
        self._pid = os.fork()
        if not self._pid:
            torch.set_num_threads(threads)  # PyTorch would take one in a forked process
            _be_the_variant(load, device, theirs, [self._wire, *(one._wire for one in others)])
        theirs.close()
        self._loaded = False

    def __call__(self, *inputs: object) -> tuple[torch.Tensor, ...]:
        """Call the variant with inputs, which are changed as it changes them; return its results.

        Raises:
            VariantError: it failed.
        """
        results, after = self._asked("call", inputs)
        own = [one for one in inputs if isinstance(one, torch.Tensor)]
        if len(after) == len(own):
            for one, result in zip(own, after, strict=True):
                if one.shape == result.shape and one.layout is torch.strided and 0 not in one.stride():
                    one.detach().copy_(result)
        device = next((one.device for one in own), torch.device("cpu"))
        return tuple(one.to(device) for one in results)

    def take(self, inputs: Inputs) -> None:
        """Send inputs."""
        self._asked("inputs", inputs)
        self.changes = 0

    def last(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return the results of the last of many calls."""
        return tuple(one.to(device) for one in self._asked("last", None)[0])

    def timed(self, what: str, calls: int) -> int:
        """Return how many nanoseconds ``many`` calls take by this process's clock; ``idle`` only changes the inputs."""
        self.changes += 0 if what == "once" else calls
        began = time.perf_counter_ns()
        self._asked(what, calls)
        return time.perf_counter_ns() - began

    @contextmanager
    def alone(self, other: "Apart") -> Iterator[None]:
        """Stop another process in a ``with`` block: threads of OpenMP keep a core busy for 200 ms after their work."""
        with suppress(OSError):
            os.kill(other._pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(OSError):
                os.kill(other._pid, signal.SIGCONT)

    def end(self) -> None:
        """End the process."""
        self._wire.close()
        with suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _asked(self, what: str, argument: object) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        if self._problem is not None:
            raise VariantError(self._problem)
        try:
            if not self._loaded:
                self._read(fatal=True)  # whether it could be imported
                self._loaded = True
            self._wire.send_bytes(pickle.dumps((what, argument)))
            return self._read()
        except VariantError:
            raise
        except (BlockingIOError, TimeoutError) as error:
            raise self._failed(self._late) from error
        except (EOFError, OSError) as error:
            raise self._failed("ends its process") from error
        except Exception as error:  # whatever it sent
            raise self._failed("answers nonsense") from error

    @property
    def _late(self) -> str:
        return f"does not return within {self._timeout_s:.0f} s"

    def _failed(self, problem: str) -> VariantError:
        """Note a failure after which the process is not asked again; return the error."""
        self._problem = problem
        return VariantError(problem)

    def _read(self, *, fatal: bool = False) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        head = msgspec.msgpack.decode(self._received(1 << 20), type=_Head)
        tensors = [_tensor_of(self._received(_LARGEST), *one) for one in zip(head.shapes, head.dtypes, strict=True)]
        if head.problem is not None:
            raise self._failed(head.problem) if fatal else VariantError(head.problem)
        return tensors[: head.results], tensors[head.results :]

    def _received(self, most: int) -> bytes:
        if not self._wire.poll(self._timeout_s):
            raise self._failed(self._late)
        return self._wire.recv_bytes(most)


def _tensor_of(data: bytes, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Return a tensor of bytes that came from a variant.

    Raises:
        KeyError: there is no such data type.
        RuntimeError: so many bytes make no tensor of this shape.
    """
    if not data:
        return torch.empty(0, dtype=_DTYPES[dtype]).reshape(shape)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(_DTYPES[dtype]).reshape(shape)


def _limit(wire: Connection, seconds: float) -> None:
    """Have reading and writing fail after a while: a process may be stopped in the midst of a message."""
    limit = struct.pack("ll", max(1, int(seconds)), 0)
    with socket.socket(fileno=os.dup(wire.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _be_the_variant(load: Callable[[], Function], device: str, wire: Connection, others: Sequence[Connection]) -> None:
    """Serve in this process, which was just forked, and end it."""
    try:
        end_with_parent(signal.SIGKILL)
        for other in others:
            other.close()
        # What it prints must not be taken for an answer of the process that judges.
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        _serve(load, device, wire)
    except BaseException:
        os._exit(1)
    os._exit(0)


class Pair(Struct, frozen=True):
    """A variant and the baseline, each in a process of its own.

    Attributes:
        case: its only variant is the baseline, which runs in this process.
        name: of the variant.
        variant, baseline: their processes.
        device: where they run.
    """

    case: Case
    name: str
    variant: Apart
    baseline: Apart
    device: torch.device


def confirmation(
    pair: Pair, inputs: Inputs, odd: Inputs | None, claims: Sequence[Claim], seconds: float
) -> Confirmation:
    """Check and time one variant in its own process, beside the baseline in another.

    Args:
        pair: the two.
        inputs: their arguments.
        odd: arguments of an odd size; None if their size cannot be chosen.
        claims: what was measured before; without any, nothing is timed.
        seconds: the time limit of the timing.
    """
    try:
        pickle.dumps(inputs)
    except Exception as error:
        return Confirmation(reason=f"its inputs cannot be sent to another process ({_told(error)})")
    own = f"{pair.case.baseline} in a process of its own"
    variants = {**pair.case.variants, own: pair.baseline, pair.name: pair.variant}
    result = check_variants(replace(pair.case, variants=variants), inputs, odd)
    checked = result[pair.name]
    if checked.verdict is Correct.NOT_CHECKED:
        return Confirmation(reason="there is no right result to compare with")
    if result[own].verdict is Correct.WRONG:
        other = f"{pair.case.baseline} itself returns other results in another process"
        return Confirmation(reason=f"{other}: {result[own].sentence}")
    if checked.verdict is Correct.WRONG or not claims:
        return Confirmation(correctness=checked)
    return _checked_and_timed(pair, inputs, checked, claims, seconds)


def _checked_and_timed(
    pair: Pair, inputs: Inputs, checked: Correctness, claims: Sequence[Claim], seconds: float
) -> Confirmation:
    """Time a variant that is right, and check results of the calls that were timed, and of one after them."""
    result = Confirmation(correctness=checked)
    try:
        # What a busy machine does to one measurement, it hardly does to three; a lie stays one.
        for _ in range(_AGAIN):
            timing = _Timing(pair, inputs)
            timing.measure(seconds)
            if timing.wrong is not None:
                return Confirmation(correctness=timing.wrong)
            result = _of_times(checked, claims, timing)
            if result.doubt is None:
                break
        late = _after_many(pair, inputs)
    except VariantError as error:
        return Confirmation(correctness=refused(f"it {error} (in its own process)"))
    return result if late is None else Confirmation(correctness=late)


def _of_times(checked: Correctness, claims: Sequence[Claim], timing: "_Timing") -> Confirmation:
    baseline_ns, call_ns = timing.call_ns(timing.pair.baseline), timing.call_ns(timing.pair.variant)
    if not (baseline_ns and call_ns):  # calls took no longer than the change of their inputs
        return Confirmation(correctness=checked)
    doubts = (_doubt(claim, baseline_ns, call_ns, timing.slack_ns) for claim in claims)
    doubt = next(filter(None, doubts), None)
    return Confirmation(correctness=checked, baseline_ns=baseline_ns, call_ns=call_ns, doubt=doubt)


class _Timing(Struct):
    """Times calls of a variant and of the baseline by this process's clock, in batches, in turns.

    Attributes:
        pair: the two.
        inputs: their arguments.
        calls: of a batch, by process.
        took: nanoseconds of a call, without the change of the inputs before it, by process and batch.
        changing: nanoseconds of such a change, by batch.
        wrong: what is wrong with the last result of a batch; None if nothing is.
    """

    pair: Pair
    inputs: Inputs
    calls: dict[Apart, int] = field(default_factory=dict)
    took: dict[Apart, list[float]] = field(default_factory=dict)
    changing: list[float] = field(default_factory=list)
    wrong: Correctness | None = None

    def measure(self, seconds: float) -> None:
        """Measure for about so long.

        Raises:
            VariantError: one of them failed.
        """
        both = (self.pair.baseline, self.pair.variant)
        for one, other in (both, both[::-1]):
            one.take(self.inputs)
            with one.alone(other):
                one.timed("many", 3)
                self.calls[one], self.took[one] = _calls_of(one), []
        order, until = random.Random(0), time.perf_counter() + 2 * seconds
        for number in range(_ROUNDS):
            if number >= _CHECKED and (self.wrong is not None or time.perf_counter() > until):
                break
            for one, other in order.sample((both, both[::-1]), 2):
                with one.alone(other):
                    self._batch(one, check=number < _CHECKED and one is self.pair.variant)

    def _batch(self, one: Apart, *, check: bool) -> None:
        calls = self.calls[one]
        took = one.timed("many", calls)
        if check and self.wrong is None:
            self.wrong = self._problem(one)
        idle = one.timed("idle", calls)
        self.took[one].append(max(took - idle, 0) / calls)
        self.changing.append(idle / calls)

    def _problem(self, one: Apart) -> Correctness | None:
        """Check the last result of a batch, before the inputs change again."""
        own = tuple(copy_of(value) if isinstance(value, torch.Tensor) else value for value in self.inputs)
        TimedInputs(own).scale(one.changes)
        results = one.last(self.pair.device)
        return check_as_timed(self.pair.case, own, {self.pair.name: lambda: results}).get(self.pair.name)

    def call_ns(self, one: Apart) -> float:
        """Return how long a call took, in nanoseconds."""
        return statistics.median(self.took[one])

    @property
    def slack_ns(self) -> float:
        """By how much that can be off: by the pipe's waking up, and by how the change of the inputs varies."""
        return _SLACK_NS / min(self.calls.values()) + _VARIES * statistics.median(self.changing)


def _calls_of(one: Apart) -> int:
    once = max(min(one.timed("many", 1) for _ in range(3)), 1)
    few = max(1, min(_MOST_CALLS, int(_BATCH_NS / once)))
    # A single call is mostly the pipe's time, so that more of them fit. Of several batches the fastest counts, as the
    # first one may wake up threads and fill caches.
    took = max(min(one.timed("many", few) for _ in range(3)), 1)
    return max(1, min(_MOST_CALLS, int(few * _BATCH_NS / took)))


def _after_many(pair: Pair, inputs: Inputs) -> Correctness | None:
    """Check a call after many others, with other values in the same memory; return what is wrong, or None."""
    own = tuple(copy_of(one) if isinstance(one, torch.Tensor) else one for one in inputs)
    changes = TimedInputs(own)

    def call() -> object:
        pair.variant.take(own)
        pair.variant.timed("once", 1)
        return pair.variant.last(pair.device)

    return check_timed(pair.case, own, {pair.name: call}, changes, lambda _: None).get(pair.name)


def _doubt(claim: Claim, baseline_ns: float, call_ns: float, slack_ns: float) -> str | None:
    """Return a sentence if this process's clock contradicts what was measured before; None if it does not."""
    claimed = claim.baseline_ns / claim.variant_ns
    # Only a gain is worth a doubt.
    if claimed <= 1 or call_ns <= CONFIRMED_WITHIN * baseline_ns / claimed + slack_ns:
        return None
    too_short = call_ns > CONFIRMED_WITHIN * claim.variant_ns + slack_ns
    too_long = claim.baseline_ns > CONFIRMED_WITHIN * baseline_ns + slack_ns
    if not (too_short or too_long):
        return None
    return (
        f"in its own process, by another process's clock, it was {baseline_ns / call_ns:.2f} times as fast as the "
        f"baseline, not {claimed:.2f} times"
    )


@contextmanager
def ended(processes: Sequence[Apart]) -> Iterator[None]:
    """End processes at the end of a ``with`` block."""
    try:
        yield
    finally:
        for one in processes:
            one.end()
