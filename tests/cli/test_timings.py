"""``--timings``: every stage of a command once, on standard error, and nothing of it in the result."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from opscope.base.parts import Stage, record_stages, recorded_stages, stage, staged, stop_recording
from tests.command import opscope
from tests.conftest import DATA

TRACE = DATA / "traces" / "bert4_bf16_compiled.json.gz"
LINE = re.compile(r"^(\w+) +[\d.]+ \w+ +[\d.]+ \w+ +([\d.]+ \w+) +[\d.]+ \w+$", re.MULTILINE)


@pytest.fixture(autouse=True)
def _nothing_recorded() -> Iterator[None]:
    yield
    stop_recording()


def test_each_stage_of_a_document_is_timed() -> None:
    plain, timed = (
        opscope("analyze", str(TRACE), "--format", "json"),
        opscope("analyze", str(TRACE), "--format", "json", "--timings"),
    )
    assert timed.stdout == plain.stdout
    found = [match[1] for match in LINE.finditer(timed.stderr)]
    assert found == [str(one) for one in Stage]
    assert timed.stderr.splitlines()[-1].startswith("all ")


def test_a_store_is_read_too(tmp_path: Path) -> None:
    assert opscope("export", str(TRACE), "--parquet", str(tmp_path / "store")).returncode == 0
    timed = opscope("analyze", str(tmp_path / "store"), "--timings")
    assert "read" in [match[1] for match in LINE.finditer(timed.stderr)]


def test_stages_inside_count_for_themselves() -> None:
    record_stages()
    with stage(Stage.LINK):
        with stage(Stage.NEST):
            sum(range(200_000))
        with stage(Stage.NEST):
            pass
    first, second, outer = recorded_stages()
    assert (first.stage, second.stage, outer.stage) == (Stage.NEST, Stage.NEST, Stage.LINK)
    whole = outer.end_ns - outer.begin_ns
    assert outer.own_ns == whole - (first.end_ns - first.begin_ns) - (second.end_ns - second.begin_ns)
    assert outer.begin_ns <= first.begin_ns <= first.end_ns <= second.begin_ns <= outer.end_ns


def test_a_stage_that_fails_ends() -> None:
    record_stages()

    @staged(Stage.READ)
    def fails() -> None:
        raise ValueError("no file")

    with pytest.raises(ValueError, match="no file"), stage(Stage.LINK):
        fails()
    assert [span.stage for span in recorded_stages()] == [Stage.READ, Stage.LINK]
    with stage(Stage.NEST):
        pass
    assert recorded_stages()[-1].stage is Stage.NEST


def test_nothing_is_recorded_unless_asked() -> None:
    with stage(Stage.READ):
        pass
    assert recorded_stages() == ()


def test_help_shows_no_stages() -> None:
    assert opscope("analyze", "--timings", "--help").stderr == ""
