"""What follows from an event of a watched script, without a script: the state machine of its phases."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.collect.script import phases
from opscope.collect.script.phases import Cycle, Effect, Ending, Interruption, Phase, Question, State, Unrepeated

MS = 1_000_000


def settled_after(durations_ms: Sequence[int], graphs: Sequence[int] = (), prelude: int = 0) -> int | None:
    """Return after how many cycles steps were steady; None for never. ``graphs`` are compiled by the end of each."""
    state = phases.taken(0)
    for number, duration in enumerate(durations_ms):
        compiled = graphs[number] if number < len(graphs) else (graphs[-1] if graphs else 0)
        state, actions = phases.cycle_ends(state, Cycle(duration * MS, compiled, is_prelude=number < prelude))
        if actions == (Effect.STEADY,):
            return number + 1
    return None


@pytest.mark.parametrize(
    ("durations", "graphs", "prelude", "after"),
    [
        ([10, 10, 10], [], 0, 3),
        ([90, 40, 10, 11, 12], [], 0, 5),  # the last three are alike within 1.3 times
        ([10, 10, 14, 10, 10], [], 0, None),
        ([10, 20] * 6, [], 0, 12),  # they never are: after twelve, waiting for more does not help
        ([10, 10, 10, 10, 10, 10], [0, 0, 1], 0, 6),  # what compiled in its third cycle settles anew
        ([10] * 6, [], 2, 5),  # tokens of a first generation do not count
        ([0, 10, 10, 10], [], 0, 4),  # nor does a cycle whose beginning was not seen
    ],
)
def test_steps_settle(durations: list[int], graphs: list[int], prelude: int, after: int | None) -> None:
    assert settled_after(durations, graphs, prelude) == after


def test_nothing_is_timed_while_the_script_profiles_itself() -> None:
    state = phases.taken(0)
    for _ in range(5):
        state, actions = phases.cycle_ends(state, Cycle(10 * MS, hindered=True))
        assert actions == ()
    assert phases.cycle_ends(state, Cycle(10 * MS))[1] == (Effect.STEADY,)


def test_each_phase_takes_a_cycle_its_own_way() -> None:
    ends = {phase: phases.cycle_ends(State(phase), Cycle(MS))[1] for phase in Phase if phase is not Phase.SETTLE}
    assert ends == {
        Phase.WATCH: (),
        Phase.TIME: (Effect.CLOCK_CYCLE,),
        Phase.READY: (Effect.PROFILE,),
        Phase.RECORD: (Effect.RECORD_CYCLE,),
        Phase.DONE: (),
    }
    begins = {phase: phases.cycle_begins(State(phase))[1] for phase in Phase}
    assert begins == {
        **dict.fromkeys(Phase, ()),
        Phase.TIME: (Effect.START_CLOCK,),
        Phase.READY: (Effect.PROFILE,),
    }


def test_a_step_that_compiles_is_not_timed() -> None:
    timing = State(Phase.TIME, graphs=3)
    assert phases.clocked(timing, graphs=3, enough=False) == (timing, ())
    assert phases.clocked(timing, graphs=3, enough=True)[1] == (Effect.KEEP_TIMES, Effect.PROFILE)
    state, actions = phases.clocked(timing, graphs=4, enough=True)
    assert (state.graphs, actions) == (4, (Effect.TIME,))


def test_profiling_is_tried_three_times_and_what_the_last_one_has_is_kept() -> None:
    state, results = State(Phase.RECORD), []
    for now in (1.0, 2.0, 3.0):
        state, actions = phases.interrupted(state, Interruption(now, usable=True))
        results.append(actions)
        if state.phase is Phase.READY:
            state, _ = phases.cycle_ends(state, Cycle(MS))
            state = State(Phase.RECORD, attempts=state.attempts)
    assert results == [(Effect.ABANDON, Effect.SKIP_CYCLE)] * 2 + [(Effect.KEEP_PASSES,)]


def test_what_has_recorded_nothing_after_three_attempts_looks_for_other_steps() -> None:
    state = State(Phase.RECORD, attempts=2)
    state, actions = phases.interrupted(state, Interruption(1.0))
    assert state == State()
    assert actions == (Effect.ABANDON, Effect.FORGET_EVENTS, Effect.LOOK_AGAIN)


def test_what_cannot_resume_is_kept_or_looked_for_again() -> None:
    kept = phases.interrupted(State(Phase.RECORD), Interruption(1.0, usable=True, may_resume=False))
    assert kept[1] == (Effect.KEEP_PASSES,)
    gone = phases.interrupted(State(Phase.TIME), Interruption(1.0, may_resume=False))
    assert gone == (State(), (Effect.FORGET_EVENTS, Effect.LOOK_AGAIN))


@pytest.mark.parametrize(
    ("seconds", "astray", "actions"),
    [
        (20.0, 1_000, (Effect.SKIP_CYCLE,)),  # an evaluation, after which training goes on
        (21.0, 1_000, (Effect.LOOK_AGAIN,)),  # its events may be a repetition still: they are not forgotten
        (21.0, 6, (Effect.LOOK_AGAIN,)),
        (21.0, 5, (Effect.SKIP_CYCLE,)),  # hardly anything came meanwhile: a checkpoint is written
    ],
)
def test_what_takes_the_place_of_steps_for_long_is_measured_instead(
    seconds: float, astray: int, actions: tuple[Effect, ...]
) -> None:
    state, _ = phases.interrupted(State(Phase.TIME, settling=(1, 2)), Interruption(100.0, astray=1))
    assert state.settling == ()
    state, result = phases.interrupted(state, Interruption(100.0 + seconds, astray=astray))
    assert result == actions


def test_a_whole_cycle_ends_an_interruption() -> None:
    state, _ = phases.interrupted(State(Phase.TIME), Interruption(100.0, astray=1))
    state, _ = phases.cycle_ends(state, Cycle(MS))
    assert phases.interrupted(state, Interruption(121.0, astray=1_000))[1] == (Effect.SKIP_CYCLE,)


def test_a_profiler_of_the_scripts_own_stops_timing_and_profiling() -> None:
    results = {phase: phases.profiler_starts(State(phase, attempts=1)) for phase in Phase}
    assert results[Phase.TIME] == (State(), (Effect.LOOK_AGAIN,))
    assert results[Phase.RECORD] == (State(), (Effect.ABANDON, Effect.LOOK_AGAIN))
    assert all(results[one] == (State(one, attempts=1), ()) for one in (Phase.WATCH, Phase.SETTLE, Phase.READY))


# ---------------------------------------------------------------- without boundaries


@pytest.mark.parametrize(
    ("question", "actions"),
    [
        (Question(records=True, window_s=1.0), (Effect.OPEN_WINDOW,)),
        (Question(records=True, window_s=1.0, awaits=True), ()),
        (Question(records=True, window_s=1.0, marked=True), ()),
        (Question(records=True, window_s=1.0, is_open=True, seconds=0.9), ()),
        (Question(records=True, window_s=1.0, is_open=True, seconds=1.0), (Effect.CLOSE_WINDOW,)),
        (Question(records=False, window_s=1.0, no_boundaries=True), (Effect.OPEN_WINDOW,)),
        (Question(records=False, window_s=1.0, no_boundaries=True, may_repeat=True), (Effect.RUN_AGAIN,)),
        (Question(records=False, window_s=1.0, may_repeat=True), ()),
    ],
)
def test_what_the_watchdog_has_done(question: Question, actions: tuple[Effect, ...]) -> None:
    state, result = phases.asked(State(), question)
    assert result == actions
    assert (state.phase is Phase.DONE) is (Effect.RUN_AGAIN in actions)
    assert all(phases.asked(State(phase), question)[1] == () for phase in Phase if phase is not Phase.WATCH)


def recorded(
    at_work_s: float | None = 1.0, operators_per_s: float = 1.0, ended_after_s: float | None = None, **more: bool
) -> Unrepeated:
    return Unrepeated(at_work_s, more.get("may_step", False), more.get("awaits", False), operators_per_s, ended_after_s)


def test_windows_grow_until_eight_seconds() -> None:
    length, lengths = phases.first_window_s(None), []
    for _ in range(5):
        length, actions = phases.after_window(length, recorded())
        assert actions == (Effect.OPEN_WINDOW,)
        lengths.append(length)
    assert lengths == [2.0, 4.0, 8.0, 8.0, 8.0]


def test_a_window_is_shorter_where_many_operators_run() -> None:
    assert phases.after_window(4.0, recorded(operators_per_s=50_000.0))[0] == 3.0  # 300,000 of twice as many a second


@pytest.mark.parametrize(("ended_after_s", "first", "second"), [(1.9, 6.0, math.inf), (2.0, 1.0, math.inf)])
def test_what_ended_soon_is_recorded_to_its_end(ended_after_s: float, first: float, second: float) -> None:
    assert phases.first_window_s(ended_after_s) == first
    assert phases.after_window(1.0, recorded(ended_after_s=ended_after_s))[0] == second


def test_but_not_where_that_would_be_more_operators_than_a_window_takes() -> None:
    """At 50,000 a second, a window of three seconds: recording makes a second of the script three."""
    for ended_after_s, length in ((0.9, math.inf), (1.1, 2.0)):
        following, _ = phases.after_window(1.0, recorded(operators_per_s=50_000.0, ended_after_s=ended_after_s))
        assert following == length


def test_after_a_minute_at_work_the_last_window_has_to_do() -> None:
    assert phases.after_window(8.0, recorded(60.0))[1] == (Effect.KEEP_WINDOW,)
    assert phases.after_window(8.0, recorded(59.0))[1] == (Effect.OPEN_WINDOW,)
    assert phases.after_window(8.0, recorded(None))[1] == (Effect.OPEN_WINDOW,)
    assert phases.after_window(8.0, recorded(60.0, may_step=True))[1] == (Effect.OPEN_WINDOW,)
    assert phases.after_window(8.0, recorded(59.0, awaits=True))[1] == ()


@pytest.mark.parametrize(
    ("waited_s", "allocations", "has_model", "lacks"),
    [
        (15.0, (0, 6_000), False, False),
        (15.1, (0, 6_000), False, True),
        (15.1, (0, 1_000), False, False),
        (15.1, (0, 1_001), False, True),
        (60.0, (50, 60), False, False),
        (60.1, (50, 60), False, True),
        (60.1, (0, 60), False, False),  # it was asked for the first time
        (60.1, (1, 2), False, True),
        (60.1, (60, 60), False, False),  # it prepares data, and leaves the GPU alone
        (60.1, (5_000, 6_000), True, False),  # a large model is loaded: it will be called
        (300.0, (60, 60), True, False),
        (300.1, (60, 60), True, True),
        (300.0, None, False, False),
        (300.1, None, False, True),
    ],
)
def test_when_a_program_is_taken_for_one_without_boundaries(
    waited_s: float, allocations: tuple[int, int] | None, has_model: bool, lacks: bool
) -> None:
    assert phases.lacks_boundaries(waited_s, allocations, has_model=has_model) is lacks


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("ending", "actions"),
    [
        (Ending(), ()),
        (Ending(may_repeat=True), (Effect.RUN_AGAIN,)),
        (Ending(may_repeat=True, failed=True), ()),  # it failed before any event, and would again
        (Ending(may_repeat=True, failed=True, seen=True), (Effect.RUN_AGAIN,)),
        (Ending(recorded=True, may_repeat=True), (Effect.KEEP_WINDOW,)),
        (Ending(own=True, may_repeat=True), (Effect.KEEP_OWN, Effect.RUN_AGAIN)),
        (Ending(own=True, recorded=True), (Effect.KEEP_OWN, Effect.KEEP_WINDOW)),
        (Ending(own=True, failed=True, recorded=True), (Effect.KEEP_WINDOW,)),
    ],
)
def test_what_is_kept_of_a_script_that_has_ended(ending: Ending, actions: tuple[Effect, ...]) -> None:
    assert phases.what_is_kept(ending) == actions


# ---------------------------------------------------------------- any order of events

EVENTS = st.one_of(
    st.builds(Cycle, st.integers(0, 50 * MS), st.integers(0, 2), st.booleans(), st.booleans()),
    st.builds(Interruption, st.floats(1, 100), st.booleans(), st.booleans(), st.integers(0, 50)),
)


@given(st.sampled_from(Phase), st.lists(EVENTS, max_size=40))
def test_no_order_of_events_profiles_before_steps_are_steady(phase: Phase, events: list[Cycle | Interruption]) -> None:
    """And what is abandoned was being recorded; a repetition is dropped with all that is known of it."""
    state = State(phase)
    for event in events:
        before = state
        step = phases.cycle_ends if isinstance(event, Cycle) else phases.interrupted
        state, actions = step(state, event)  # type: ignore[arg-type]
        assert (Effect.PROFILE in actions) <= (before.phase is Phase.READY)
        assert ({Effect.ABANDON, Effect.KEEP_PASSES} & set(actions) != set()) <= (before.phase is Phase.RECORD)
        assert (Effect.LOOK_AGAIN in actions) <= (state == State())
        assert state.attempts <= 3
        assert len(state.settling) <= 12
