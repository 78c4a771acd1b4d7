"""Parts of traces: what is read is what a look at the whole would have chosen, in every reader."""

import gzip
import json
import random
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest
from click.testing import CliRunner

from opscope.analysis.part import Part, read_part
from opscope.base.errors import UsageError
from opscope.base.units import parse_ns
from opscope.cli import cli
from opscope.readers import unpacked
from opscope.readers.native import library as native
from opscope.readers.reading import read
from opscope.trace.columns import TABLES
from opscope.trace.model import Trace
from tests.budget import examples
from tests.conftest import DATA
from tests.kineto import KinetoTrace

GPT2 = DATA / "traces" / "gpt2_train_amp_stacks.json.gz"


def steps_of_ten(path: Path) -> Path:
    """Ten steps of 1 ms; each launches a kernel that runs half a step later. The first begins at 5 ms."""
    built = KinetoTrace()
    for number in range(10):
        begin = 5_000_000 + number * 1_000_000
        built.step(number, begin, 1_000_000)
        built.operator(f"aten::op{number}", begin + 100_000, 300_000)
        built.launched_kernel(f"kernel{number}", (begin + 200_000, 50_000), (begin + 900_000, 400_000))
    return built.write(path)


def rows(trace: Trace) -> dict[str, list[tuple[Any, ...]]]:
    """Tables as rows of plain values, threads by their names."""
    threads = pl.Series([" ".join(pair) for pair in trace.threads], dtype=pl.String)
    shown = {}
    for name in TABLES:
        table: pl.DataFrame = getattr(trace, name)
        if "thread" in table.columns:
            table = table.with_columns(thread=threads.gather(table["thread"]))
        shown[name] = table.rows()
    return shown


def without_library(path: Path, part: Part) -> Trace:
    with mock.patch.object(native, "load_kineto", return_value=None):
        return read_part(path, part)


def test_steps_are_what_began_in_them_and_what_they_launched(tmp_path: Path) -> None:
    trace = read_part(steps_of_ten(tmp_path / "t.json"), Part(steps=(3, 4)))
    assert trace.operators["name"].to_list() == ["aten::op3", "aten::op4"]
    assert trace.activities["name"].to_list() == ["kernel3", "kernel4"]  # kernel2 still runs when step 3 begins
    (told,) = trace.source.not_recorded
    assert told.startswith("Only steps 3 to 4 were read, as asked: 2.000 ms from 3.000 ms on, of 10.30 ms")


def test_time_counts_from_the_beginning_of_the_trace(tmp_path: Path) -> None:
    trace = read_part(steps_of_ten(tmp_path / "t.json"), Part(time_ns=(1_150_000, 3_100_000)))
    # 6.15 ms to 8.1 ms of the clock: steps 2 and 3 begin there, operators at 7.1 ms; the call at 6.2 ms does too.
    assert trace.annotations["name"].to_list() == ["ProfilerStep#2", "ProfilerStep#3"]
    assert trace.operators["name"].to_list() == ["aten::op2"]
    assert trace.activities["name"].to_list() == ["kernel1", "kernel2"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part(steps=(10, 12)), r"--steps 10\.\.12: the trace marks no such step; it marks 0, 1, 2"),
        (Part(time_ns=(20_000_000, 30_000_000)), "--window: the trace is 10.30 ms long, and ends before"),
    ],
)
def test_what_a_trace_does_not_have_is_refused(tmp_path: Path, part: Part, message: str) -> None:
    path = steps_of_ten(tmp_path / "t.json")
    for read_it in (read_part, without_library):
        with pytest.raises(UsageError, match=message):
            read_it(path, part)


def test_what_the_reader_leaves_out_is_what_the_part_does_not_need() -> None:
    for part in (Part(steps=(2, 2)), Part(time_ns=(10_000_000, 40_000_000)), Part(time_ns=(0, 1 << 60))):
        quick, whole = read_part(GPT2, part), without_library(GPT2, part)
        assert rows(quick) == rows(whole)
        assert quick.source == whole.source
        assert quick.operators.height


def test_any_range_reads_the_same_as_the_whole_and_a_choice(tmp_path: Path) -> None:
    random_ = random.Random(30)
    events = json.loads(gzip.decompress(GPT2.read_bytes()))["traceEvents"]
    timed = [event for event in events if "ts" in event and event["ph"] in "Xi"]
    for number in range(examples(12)):
        some = [dict(event) for event in random_.sample(timed, random_.choice((3, 40, 400)))]
        for event in some:
            if random_.random() < 0.05:
                event[random_.choice(("ts", "dur", "tid", "name", "cat"))] = random_.choice((None, "12", -3, "x", 1e9))
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({"traceEvents": some}))
        length = random_.choice((1_000_000, 20_000_000, 1 << 50))
        part = Part(time_ns=(low := random_.randrange(30_000_000), low + length))
        with mock.patch.object(unpacked, "QUEUED_NS", 1 << 60):
            answers = []
            for read_it in (read_part, without_library):
                try:
                    answers.append(rows(read_it(path, part)))
                except UsageError as error:
                    answers.append({"refused": [(str(error),)]})
        assert answers[0] == answers[1]


def test_memory_holds_no_more_than_is_wanted(tmp_path: Path) -> None:
    path = steps_of_ten(tmp_path / "t.json")
    with mock.patch.multiple(unpacked, QUEUED_NS=500_000, NEAR_NS=0):
        kept = read(path, wanted=unpacked.Wanted(begin_ns=7_000_000, end_ns=8_000_000))
    if native.load_kineto() is None:
        assert kept.operators.height == 10
        return
    assert kept.operators["name"].to_list() == ["aten::op2"]
    # Calls and kernels half a millisecond around: that of step 3 is launched at 8.2 ms, its kernel begins at 8.9 ms.
    assert kept.launches.height == 2
    assert kept.activities["name"].to_list() == ["kernel1", "kernel2"]


@pytest.mark.parametrize("times", [["0.5ms", "500us"], ["1.5 s", "1500ms"], ["20ns", "0.02us"]])
def test_times_are_read_with_their_units(times: list[str]) -> None:
    assert parse_ns(times[0]) == parse_ns(times[1]) is not None


@pytest.mark.parametrize("text", ["", "5", "-1s", "1 m", "1e3s", "s", "1..2s", "nan s", "9" * 30 + "s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    assert parse_ns(text) is None


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_commands_take_a_part(tmp_path: Path) -> None:
    path = steps_of_ten(tmp_path / "t.json")
    code, text = run("analyze", path, "--steps", "3..4", "--by", "operator")
    assert code == 0
    assert "aten::op3" in text
    assert "aten::op5" not in text
    assert "Only steps 3 to 4 were read" in text
    code, text = run("export", path, "--window", "1.15ms..3.1ms", "--parquet", tmp_path / "store")
    assert code == 0
    stored = read(tmp_path / "store")
    assert stored.operators["name"].to_list() == ["aten::op2"]
    assert "Only a part of the trace was read" in stored.source.not_recorded[0]


def test_a_part_of_a_converted_trace_is_the_same(tmp_path: Path) -> None:
    path = steps_of_ten(tmp_path / "t.json")
    assert run("export", path, "--parquet", tmp_path / "store")[0] == 0
    part = Part(steps=(3, 4))
    assert rows(read_part(tmp_path / "store", part)) == rows(read_part(path, part))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "1", "--window", "0s..1s"], "--steps and --window both name a part"),
        (["--window", "2s..1s"], "takes two times with units"),
        (["--window", "1s"], "takes two times with units"),
        (["--steps", "a"], "takes a number or a range"),
    ],
)
def test_parts_that_mean_nothing_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    path = steps_of_ten(tmp_path / "t.json")
    result = CliRunner().invoke(cli, ["analyze", str(path), *options])
    assert result.exit_code
    assert message in result.output + str(result.exception)


def test_a_run_is_not_taken_in_parts() -> None:
    result = CliRunner().invoke(cli, ["analyze", str(DATA / "h200_bert_small"), "--steps", "1"])
    assert isinstance(result.exception, UsageError)
    assert "belongs to a run" in str(result.exception)
