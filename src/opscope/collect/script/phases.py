"""The phases of a watched script as a state machine of pure functions: an event and facts in, actions out.

The watcher gathers the facts, asks here what follows, and does it. Nothing here has an effect, reads a clock or needs
PyTorch.
"""

import math
from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.collect.script.finder import CYCLES_OF_OTHERS
from opscope.collect.script.step_events import settled

_ATTEMPTS: Final = 3  # how often profiling is tried when something interrupts it
_SETTLING: Final = 12  # cycles that are remembered while steps settle: after so many, waiting for more does not help
# A choice: what takes the place of steps for longer, such as another part of the training, is measured instead of them.
_LOST_S: Final = 20.0
# A program is taken for one without boundaries where none came for so long since it imported PyTorch. Choices: to
# prepare data takes minutes, and leaves a GPU alone; what has a model may load it for long, and will call it.
_NO_BOUNDARY_S: Final = 300.0
_NO_BOUNDARY_ON_DEVICE_S: Final = 15.0  # without a model, and with many allocations of device memory
_AT_WORK_ON_DEVICE_S: Final = 60.0  # without a model, and with any allocation since the question was asked before
_ALLOCATIONS: Final = 1_000
# Recordings of programs without boundaries. Choices, but for the operators: PyTorch takes 14 s to prepare 200,000 of
# them, and it takes 13 s to write and read them (two cores of 2.5 GHz, PyTorch 2.13).
_FIRST_WINDOW_S: Final = 1.0
_LONGEST_WINDOW_S: Final = 8.0
_OPERATORS_OF_A_WINDOW: Final = 300_000
_LOOKS_FOR_S: Final = 60.0  # from the first operator on: then no repetition is found, and what there is has to do
_WHOLE_S: Final = 2.0  # a script that ends by itself within that is recorded in one window
_SLOWED: Final = 3.0  # by which factor recording may make a script longer
_FASTER: Final = 2.0  # by which factor operators may come faster than in the window before


class Phase(Enum):
    """Where the watcher stands."""

    WATCH = "no repetition yet"
    SETTLE = "a repetition was found, and settles"
    TIME = "unprofiled cycles are timed"
    READY = "to be profiled as soon as a cycle begins"
    RECORD = "profiling"
    DONE = "done"


class Effect(Enum):
    """What the watcher does."""

    START_CLOCK = "the clock takes the running cycle from here on"
    SKIP_CYCLE = "the running cycle is dropped"
    CLOCK_CYCLE = "the clock takes the cycle that ended"
    TIME = "begin to time steps, or begin anew"
    KEEP_TIMES = "what the clock measured is kept"
    STEADY = "the steps are steady: time them, or profile them"
    PROFILE = "profile, as soon as all ranks of the job are here"
    RECORD_CYCLE = "the passes take the cycle that ended"
    KEEP_PASSES = "stop the running pass, and keep what it recorded"
    ABANDON = "stop the running pass, and keep nothing of it"
    FORGET_EVENTS = "the events until now are no repetition any more"
    LOOK_AGAIN = "look for another repetition"
    OPEN_WINDOW = "record a window"
    CLOSE_WINDOW = "stop recording the window, and look for a repetition in it"
    KEEP_WINDOW = "keep the window that was written last"
    RUN_AGAIN = "leave the script to another run"
    KEEP_OWN = "keep what the script's own profiler recorded"


class State(Struct, frozen=True):
    """What the machine remembers.

    Attributes:
        phase: where it stands.
        graphs: how many compiled graphs there were when it was asked last.
        settling: durations of the last cycles since an interruption or a compilation, in nanoseconds.
        attempts: how often profiling was interrupted.
        lost_at: when the first event came since the last whole cycle that is none of the repetition's, in seconds; 0
            for none.
    """

    phase: Phase = Phase.WATCH
    graphs: int = 0
    settling: tuple[int, ...] = ()
    attempts: int = 0
    lost_at: float = 0.0

    @property
    def settled(self) -> bool | None:
        """Whether the last cycles took alike; None while more may do so."""
        return settled(self.settling, enough=_SETTLING)

    def lost_for_long(self, now: float) -> bool:
        """Tell whether something else has taken the place of the steps for long."""
        return bool(self.lost_at) and now - self.lost_at > _LOST_S


Transition = tuple[State, tuple[Effect, ...]]


def taken(graphs: int) -> State:
    """Return the state after a repetition was taken for the steps."""
    return State(Phase.SETTLE, graphs)


def cycle_begins(state: State) -> Transition:
    """A cycle begins after something other than a whole cycle."""
    actions = {Phase.READY: (Effect.PROFILE,), Phase.TIME: (Effect.START_CLOCK,)}
    return state, actions.get(state.phase, ())


class Cycle(Struct, frozen=True):
    """A whole cycle has ended.

    Attributes:
        duration_ns: how long it took; 0 where its beginning was not seen.
        graphs: how many compiled graphs there are.
        is_prelude: whether the steps are not yet those to measure, as the tokens of a first generation.
        hindered: whether a profiler of the script's own runs.
    """

    duration_ns: int
    graphs: int = 0
    is_prelude: bool = False
    hindered: bool = False


def cycle_ends(state: State, cycle: Cycle) -> Transition:
    """A whole cycle has ended, and the next one begins."""
    state = replace(state, lost_at=0.0)
    if state.phase is Phase.SETTLE:
        return _settle(state, cycle)
    actions = {
        Phase.TIME: (Effect.CLOCK_CYCLE,),
        Phase.READY: (Effect.PROFILE,),
        Phase.RECORD: (Effect.RECORD_CYCLE,),
    }
    return state, actions.get(state.phase, ())


def _settle(state: State, cycle: Cycle) -> Transition:
    if cycle.graphs != state.graphs or cycle.is_prelude:  # of a cycle in which something was compiled: settle anew
        return replace(state, graphs=cycle.graphs, settling=()), ()
    if cycle.duration_ns:
        state = replace(state, settling=(*state.settling, cycle.duration_ns)[-_SETTLING:])
    return state, (Effect.STEADY,) if state.settled is not None and not cycle.hindered else ()


def clocked(state: State, *, graphs: int, enough: bool) -> Transition:
    """The clock has taken a cycle.

    Args:
        state: the state.
        graphs: how many compiled graphs there are: a step in which something was compiled is not steady.
        enough: whether enough cycles were timed.
    """
    if graphs != state.graphs:
        return replace(state, graphs=graphs), (Effect.TIME,)
    return state, (Effect.KEEP_TIMES, Effect.PROFILE) if enough else ()


class Interruption(Struct, frozen=True):
    """An event came that the repetition does not predict.

    Attributes:
        now: when, in seconds.
        usable: whether a pass runs and has recorded a step.
        may_resume: whether the repetition may go on after it.
        astray: how many events came since the last whole cycle.
    """

    now: float
    usable: bool = False
    may_resume: bool = True
    astray: int = 0


def interrupted(state: State, event: Interruption) -> Transition:
    """Something else comes between the steps, or these were none."""
    state = replace(state, lost_at=state.lost_at or event.now)
    actions: tuple[Effect, ...] = ()
    if state.phase is Phase.RECORD:
        # Where no further attempt will follow, what was recorded is better than nothing.
        if event.usable and (state.attempts + 1 >= _ATTEMPTS or not event.may_resume):
            return state, (Effect.KEEP_PASSES,)
        state = replace(state, phase=Phase.READY, attempts=state.attempts + 1)
        actions = (Effect.ABANDON,)
    is_over = event.astray >= CYCLES_OF_OTHERS and state.lost_for_long(event.now)
    if is_over:
        return State(), (*actions, Effect.LOOK_AGAIN)
    if not event.may_resume or state.attempts >= _ATTEMPTS:  # what went on for long may do so again
        return State(), (*actions, Effect.FORGET_EVENTS, Effect.LOOK_AGAIN)
    return replace(state, settling=()), (*actions, Effect.SKIP_CYCLE)


def profiler_starts(state: State) -> Transition:
    """A profiler of the script's own is about to start: steps under it are slower, and PyTorch runs one at a time."""
    actions = {Phase.TIME: (Effect.LOOK_AGAIN,), Phase.RECORD: (Effect.ABANDON, Effect.LOOK_AGAIN)}
    return (State(), actions[state.phase]) if state.phase in actions else (state, ())


# ---------------------------------------------------------------- programs without boundaries


class Question(Struct, frozen=True):
    """The watchdog asks, as it does every second.

    Attributes:
        records: whether windows are recorded.
        window_s: how long a window is.
        is_open: whether one is recorded now.
        seconds: how long that has been going on.
        marked: whether events of the wanted kind are marked while they are recorded.
        awaits: whether an optimizer was made, whose steps will be boundaries.
        no_boundaries: whether the program is taken for one without boundaries.
        may_repeat: whether the script may be run once more.
    """

    records: bool
    window_s: float
    is_open: bool = False
    seconds: float = 0.0
    marked: bool = False
    awaits: bool = False
    no_boundaries: bool = False
    may_repeat: bool = False


def asked(state: State, question: Question) -> Transition:
    """The watchdog asks what is to be done while no boundary comes."""
    if state.phase is not Phase.WATCH:
        return state, ()
    if question.records:
        return state, _windows(question)
    if not question.no_boundaries:
        return state, ()
    if not question.may_repeat:
        return state, (Effect.OPEN_WINDOW,)
    return replace(state, phase=Phase.DONE), (Effect.RUN_AGAIN,)


def _windows(question: Question) -> tuple[Effect, ...]:
    if question.marked:  # until they repeat, or the script ends
        return ()
    if question.is_open:
        return (Effect.CLOSE_WINDOW,) if question.seconds >= question.window_s else ()
    return () if question.awaits else (Effect.OPEN_WINDOW,)


class Unrepeated(Struct, frozen=True):
    """A window was recorded in which nothing repeats.

    Attributes:
        at_work_s: for how long the program has been at work; None where it has not yet been.
        may_step: whether steps may yet come: there are boundaries, an optimizer or a model.
        awaits: as in `Question`.
        operators_per_s: how many operators ran in a second.
        ended_after_s: when the run before ended by itself; None where it did not.
    """

    at_work_s: float | None
    may_step: bool
    awaits: bool
    operators_per_s: float
    ended_after_s: float | None


def after_window(window_s: float, recorded: Unrepeated) -> tuple[float, tuple[Effect, ...]]:
    """Return how long the next window is; or that this one has to do."""
    if lasts_long(recorded.at_work_s) and not recorded.may_step:
        return window_s, (Effect.KEEP_WINDOW,)
    most = _OPERATORS_OF_A_WINDOW / (_FASTER * max(recorded.operators_per_s, 1.0))
    next_s = min(2 * window_s, _LONGEST_WINDOW_S, most)
    if recorded.ended_after_s is not None and _SLOWED * recorded.ended_after_s < most:
        next_s = math.inf  # to the script's end
    return next_s, () if recorded.awaits else (Effect.OPEN_WINDOW,)


def lasts_long(at_work_s: float | None) -> bool:
    """Tell whether a program has been at work for so long that what repeats would have done so."""
    return at_work_s is not None and at_work_s >= _LOOKS_FOR_S


def first_window_s(ended_after_s: float | None) -> float:
    """Return how long the first window is, where the run before ended after so long by itself; None if it did not."""
    whole = ended_after_s is not None and ended_after_s < _WHOLE_S
    return _SLOWED * _WHOLE_S if whole else _FIRST_WINDOW_S


def lacks_boundaries(waited_s: float, allocations: tuple[int, int] | None, *, has_model: bool) -> bool:
    """Tell whether a program in which no boundary has come is taken for one without any.

    Args:
        waited_s: since it imported PyTorch.
        allocations: of device memory, when they were counted before and now; None where no device is in use.
        has_model: whether it has a model, which it may load for long, and will call.
    """
    if waited_s > _NO_BOUNDARY_S or allocations is None:
        return waited_s > _NO_BOUNDARY_S
    before, now = allocations
    many = waited_s > _NO_BOUNDARY_ON_DEVICE_S and now > _ALLOCATIONS
    more = waited_s > _AT_WORK_ON_DEVICE_S and 0 < before < now
    return (many or more) and not has_model


# ---------------------------------------------------------------- the end


class Ending(Struct, frozen=True):
    """The script has ended before any pass had recorded a step.

    Attributes:
        failed: whether by an error.
        own: whether the script has used a profiler of its own.
        recorded: whether windows were recorded.
        may_repeat: whether another run may make up for this one.
        seen: whether any event was seen; what fails before that would fail again.
    """

    failed: bool = False
    own: bool = False
    recorded: bool = False
    may_repeat: bool = False
    seen: bool = False


def what_is_kept(ending: Ending) -> tuple[Effect, ...]:
    """Return what is kept of a script that has ended: the first action that yields anything."""
    own = (Effect.KEEP_OWN,) if ending.own and not ending.failed else ()
    if ending.recorded:
        return (*own, Effect.KEEP_WINDOW)
    return (*own, Effect.RUN_AGAIN) if ending.may_repeat and (ending.seen or not ending.failed) else own
