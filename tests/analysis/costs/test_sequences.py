"""Sequences of work that streams run again and again, by hand and on recorded traces."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import Analysis, analyze
from opscope.readers.reading import read
from opscope.trace.model import Trace
from tests.analysis.test_recorded_traces import NAMES
from tests.budget import examples
from tests.kineto import KinetoTrace

Analyze = Callable[[KinetoTrace], Analysis]


def running(names: list[str], *, steps: int = 0, **where: int) -> KinetoTrace:
    """A trace that runs operators one after the other, each with one kernel of 1 us."""
    trace = KinetoTrace()
    for number in range(steps):
        trace.step(number + 1, number * 1_000_000, 900_000)
    for place, name in enumerate(names):
        at = 10_000 + place * 10_000
        dims = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
        trace.operator(name, at, 5_000, **dims)
        trace.launched_kernel(f"kernel_of_{name[6:]}", (at + 1_000, 500), (at + 2_000, 1_000), **where)
    return trace


def rows(analysis: Analysis) -> list[tuple[str, str, int, int]]:
    return [
        (row["sequence"], row["kind"], row["count"], row["total_ns"])
        for row in analysis.sequences.iter_rows(named=True)
    ]


def test_chains_of_elementwise_work_and_what_repeats(analyzed: Analyze) -> None:
    layer = ["aten::mm", "aten::add", "aten::mul", "aten::mm", "aten::softmax"]
    found = rows(analyzed(running(layer * 5)))
    assert [row for row in found if row[1] == "elementwise"] == [
        ("aten::add > aten::mul", "elementwise", 5, 10_000),
    ]
    assert all(count >= 3 for _, kind, count, _ in found if kind == "mixed")
    assert max(time for *_, time in found) >= 15_000  # three activities of the layer, five times


def test_what_runs_once_a_step_is_no_sequence(analyzed: Analyze) -> None:
    names = ["aten::mm", "aten::softmax", "aten::bmm"] * 4
    assert any(kind == "mixed" for _, kind, _, _ in rows(analyzed(running(names))))
    assert not [row for row in rows(analyzed(running(names, steps=4))) if row[1] == "mixed" and row[2] <= 4]


def test_bytes_are_those_of_the_calls(analyzed: Analyze) -> None:
    analysis = analyzed(running(["aten::mm", "aten::add", "aten::mul"] * 3))
    table = {row["sequence"]: row for row in analysis.sequences.iter_rows(named=True)}
    # Each of the two reads two float tensors of 64 x 64 and writes one.
    assert table["aten::add > aten::mul"]["least_bytes"] == 3 * 2 * 3 * 64 * 64 * 4
    unknown = analyzed(running(["my::thing", "aten::mm"] * 3))
    assert unknown.sequences["least_bytes"].to_list() == [None]


def test_streams_are_not_mixed(analyzed: Analyze) -> None:
    trace = KinetoTrace()
    for place in range(8):  # in turns on two streams: each of them runs one thing only
        at = 10_000 + place * 10_000
        trace.launched_kernel(("gemm", "softmax")[place % 2], (at, 500), (at + 2_000, 1_000), stream=7 + place % 2)
    assert [row for row in rows(analyzed(trace)) if row[1] == "mixed"] == []


@pytest.mark.parametrize("name", NAMES)
def test_recorded_sequences_are_where_the_table_says(recorded: Callable[[str], Trace], name: str) -> None:
    analysis = analyze(recorded(name))
    table = analysis.sequences
    assert (table["count"] * table["length"]).sum() <= 2 * analysis.trace.activities.height
    for row in table.iter_rows(named=True):
        assert row["total_ns"] == pytest.approx(row["mean_ns"] * row["count"])
        assert len(row["sequence"].split(" > ")) >= row["length"]


NAMES_OF = ("aten::mm", "aten::add", "aten::mul", "aten::softmax")


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.sampled_from(NAMES_OF), max_size=60))
def test_counts_are_those_of_a_plain_search(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    analysis = analyze(read(running(names).write(tmp_path_factory.mktemp("s") / "t.json")))
    for row in analysis.sequences.iter_rows(named=True):
        parts = row["sequence"].split(" > ")
        if row["kind"] == "elementwise" and len(parts) > 8:
            continue
        found, place = 0, 0
        while place + len(parts) <= len(names):
            if names[place : place + len(parts)] == parts:
                found += 1
                place += len(parts)
            else:
                place += 1
        assert found >= row["count"] >= 1
        if row["kind"] == "mixed":
            assert found == row["count"] >= 3
            assert len(set(parts)) > 1
