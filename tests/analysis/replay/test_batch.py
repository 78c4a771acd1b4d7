"""Another batch size: costs fitted to two traces, worked out by hand and held to recorded ones."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from opscope.analysis.replay.batch import other_batch
from opscope.analysis.replay.build import Steps, replayed_steps
from opscope.analysis.replay.edit import Edit
from opscope.analysis.replay.graph import EdgeKind
from opscope.analysis.structure.links import link
from opscope.api.whatif import whatif
from opscope.base.errors import UsageError
from opscope.readers.reading import read
from opscope.trace.model import Trace
from tests.command import opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace

Load = Callable[[KinetoTrace], Trace]
US = 1_000


def steps_in(trace: Trace) -> Steps:
    found = replayed_steps(trace, link(trace))
    assert found is not None
    return found


def batch_of(
    rows: int,
    times_us: tuple[int, ...],
    names: tuple[str, ...] = ("aten::mm", "aten::relu"),
    width: int = 64,
    of: str = "float",
) -> KinetoTrace:
    """Each of two steps: operators with a batch of some rows, each of whose kernels takes some time, and a wait."""
    built = KinetoTrace()
    for number in range(2):
        begin = number * 20_000 * US
        built.step(number, begin, 19_000 * US)
        end = begin + 40 * US
        for place, (name, took) in enumerate(zip(names, times_us, strict=True)):
            at = begin + 10 * US * place
            shapes = {"Input Dims": [[rows, width], []], "Input type": [of, ""]} if rows else {}
            built.operator(name, at, 9 * US, **shapes)
            end = max(end, at + 8 * US)
            built.launched_kernel(f"kernel_{place}", (at + US, 5 * US), (end, took * US))
            end += (took + 1) * US
        waits = begin + (15 + 10 * len(names)) * US
        built.launch(waits, end + 5 * US - waits, name="cudaDeviceSynchronize")
    return built


@pytest.mark.parametrize(
    ("factor", "times_us"),
    [
        (2, (160, 60)),  # the other trace's own batch
        (4, (280, 80)),  # 100 + 60 for each batch more, 50 + 10
        (1, (100, 50)),
        (0.5, (70, 45)),
        (0.1, (46, 41)),
    ],
)
def test_calls_take_what_the_line_through_both_tells(load: Load, factor: float, times_us: tuple[int, ...]) -> None:
    steps, other = (steps_in(load(batch_of(8 * n, times))) for n, times in ((1, (100, 50)), (2, (160, 60))))
    change = other_batch(steps, factor, other)
    edit = Edit(steps)
    assert change.apply(edit) == 4
    assert edit.lag[edit.graph.kind == EdgeKind.ACTIVITY].tolist() == [time * US for time in (*times_us, *times_us)]
    assert ("between" if 1 <= factor <= 2 else "beyond") in change.assumption
    # From the other trace's side it is the same.
    edit = Edit(other)
    other_batch(other, factor / 2, steps).apply(edit)
    assert edit.lag[edit.graph.kind == EdgeKind.ACTIVITY][:2] == pytest.approx([time * US for time in times_us], abs=1)


def test_no_call_gets_cheaper_than_what_was_seen(load: Load) -> None:
    """A kernel that is quicker with the larger batch tells nothing of larger ones; small batches have their share."""
    steps, other = (steps_in(load(batch_of(8 * n, times))) for n, times in ((1, (100, 50)), (2, (160, 20))))
    edit = Edit(steps)
    other_batch(steps, 8, other).apply(edit)
    assert edit.lag[edit.graph.kind == EdgeKind.ACTIVITY].tolist()[:2] == [520 * US, 20 * US]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (batch_of(16, (160, 60), ("aten::mm", "aten::gelu")), "do not run the same operators: aten::relu here"),
        (batch_of(8, (160, 60)), "no input differs in size"),
        (batch_of(0, (160, 60)), "needs traces with shapes"),
        (batch_of(16, (160, 60), width=192), "more than the batch changed"),
        (batch_of(16, (160, 60), of="c10::BFloat16"), "aten::mm takes .*float.* here, .*BFloat16.* there"),
        (batch_of(16, (), ()), "no work of a device"),
    ],
)
def test_what_cannot_be_fitted_is_refused(load: Load, other: KinetoTrace, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        other_batch(steps_in(load(batch_of(8, (100, 50)))), 2, steps_in(load(other)))


def test_calls_that_only_one_trace_has_are_left_out(load: Load) -> None:
    """24 equal layers, and one more call after two of them in the other trace: all others find their partner."""
    layer = tuple(f"aten::op{place}" for place in range(10))
    here, there = layer * 24, (*layer * 4, "aten::more", *layer * 16, "aten::more", *layer * 4)
    times = {name: 10 + place for place, name in enumerate((*layer, "aten::more"))}
    steps, other = (
        steps_in(load(batch_of(rows, tuple(factor * times[name] for name in names), names)))
        for rows, names, factor in ((8, here, 1), (16, there, 2))
    )
    edit = Edit(steps)
    assert other_batch(steps, 4, other).apply(edit) == 2 * 240
    assert edit.lag[edit.graph.kind == EdgeKind.ACTIVITY].tolist() == [4 * times[name] * US for name in here * 2]


def test_recorded_batches_are_predicted() -> None:
    """Device time of a small BERT with 16 by those with 1 and 8, and with 8 by those with 1 and 16, within 10 %."""
    folder = DATA / "h200_bert_small"
    steps = {size: steps_in(read(folder / f"bert_trace_bs{size}_seq128.json.gz")) for size in (1, 8, 16)}

    def work(edit: Edit) -> float:
        return float(edit.lag[edit.graph.kind == EdgeKind.ACTIVITY].sum()) / edit.graph.count

    for size, others in ((16, (8, 1)), (8, (16, 1))):
        edit = Edit(steps[others[0]])
        other_batch(steps[others[0]], size / others[0], steps[others[1]]).apply(edit)
        assert work(edit) == pytest.approx(work(Edit(steps[size])), rel=0.1)
        assert np.isclose(edit.step_ns, edit.graph.step_ns, rtol=0.01)  # the host is the bound


def test_in_python_and_on_the_command_line() -> None:
    before = DATA / "changes" / "before" / "encoder_trace_bs8.json.gz"
    other = DATA / "changes" / "batch16" / "encoder_trace_bs16.json.gz"
    document = whatif(before, batch_size=2, fitted_to=other, as_recorded=True)
    assert document.changed_ns is not None
    assert document.changed_ns == pytest.approx(whatif(other, as_recorded=True).step_ns, rel=0.05)
    done = opscope(
        *("whatif", str(before), "--batch-size", "2x", "--fitted-to", str(other), "--as-recorded", "--format", "json")
    )
    assert json.loads(done.stdout)["changed_ns"] == document.changed_ns
    over = opscope("whatif", str(before), "--batch-size", "2x", "--fitted-to", str(other), "--chrome", str(other),
                   "--overwrite")  # fmt: skip
    assert over.returncode == 2  # a trace that is read is not written
    alone = opscope("whatif", str(before), "--batch-size", "2x")
    assert alone.returncode == 2
    assert "--fitted-to go together" in alone.stderr
    with pytest.raises(UsageError, match="go together"):
        whatif(before, fitted_to=other)
