"""SQL over a job's ranks, what changed between two jobs, and ranks whose reason for being missing is known."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import opscope as package
from opscope.api.ranks import JobOfRanks
from opscope.distributed.difference import job_gate_of
from opscope.documents.difference import Gate
from tests.budget import examples
from tests.command import opscope
from tests.jobs import Job, Lateness, Shape, write_job
from tests.kineto import KinetoTrace

MS = 1_000_000


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("late")
    write_job(Job(Shape(4), {2: Lateness("kernels", 3 * MS)}), folder)
    return folder


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    write_job(Job(Shape(4)), folder)
    return folder


def rows_of(query: str, job: Path) -> list[dict[str, str]]:
    done = opscope("sql", "--ranks", query, str(job), "--format", "csv")
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_a_query_over_all_ranks_finds_the_late_one(late: Path) -> None:
    found = rows_of("select rank, median(late_ns) as late from steps group by rank order by late desc", late)
    assert len(found) == 4
    assert found[0]["rank"] == "2"
    assert float(found[0]["late"]) == pytest.approx(3 * MS, rel=0.01)


def test_tables_of_ranks_can_be_joined_and_are_on_one_clock(late: Path) -> None:
    query = """select c.call, max(c.finish_ns) - min(c.finish_ns) as apart, count(*) as n from communications c
        join ranks r on c.rank = r.rank where r.state = 'whole' and c.call is not null group by c.call"""
    found = rows_of(query, late)
    assert found
    assert {row["n"] for row in found} == {"4"}
    # No one leaves before the last enters: ends are close on one clock, and milliseconds apart on four.
    assert max(float(row["apart"]) for row in found) < 0.1 * MS


def test_every_column_has_a_meaning(late: Path) -> None:
    done = opscope("sql", "--ranks", "--schema", "--format", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    tables = {row["table"] for row in told}
    assert tables == {"ranks", "steps", "communications", "work", "gaps"}
    assert all(row["meaning"] for row in told)
    for table in tables:
        columns = [row["column"] for row in told if row["table"] == table and row["column"]]
        assert list(rows_of(f"select * from {table} limit 1", late)[0]) == columns


def test_tables_of_single_traces_are_not_there(late: Path) -> None:
    done = opscope("sql", "--ranks", "select * from kernels", str(late))
    assert done.returncode == 2
    assert "there is no table 'kernels'" in done.stderr


def difference(before: Path, after: Path, *more: str) -> Any:
    done = opscope("diff", "--ranks", str(before), str(after), "--format", "json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_parts_of_a_step_add_up_to_the_mean_step(healthy: Path, late: Path) -> None:
    found = difference(healthy, late)
    for side, job in (("before_ns", healthy), ("after_ns", late)):
        mean = package.ranks(job).steps["device_ns"].mean()
        assert isinstance(mean, float)
        assert sum(part[side] for part in found["parts"]) == pytest.approx(mean, abs=len(found["parts"]))


def test_what_changed_is_named(healthy: Path, late: Path) -> None:
    found = difference(healthy, late)
    assert found["step"] == "longer"
    assert [(one["rank"], one["cause"], one["before_ns"]) for one in found["late"]] == [(2, "kernels", None)]
    assert {part["part"] for part in found["parts"][:2]} == {"exposed communication", "compute"}
    assert found["work"][0]["operator"] == "aten::sort"
    back = difference(late, healthy)
    assert back["step"] == "shorter"
    assert back["late"][0]["after_ns"] is None
    assert [part["before_ns"] for part in back["parts"]] == [part["after_ns"] for part in found["parts"]]


def test_a_job_has_not_changed_from_itself(late: Path) -> None:
    found = difference(late, late)
    assert found["step"] == "undecided"
    assert all(one["before_ns"] == one["after_ns"] for one in (*found["parts"], *found["work"], *found["late"]))


@pytest.mark.parametrize(("order", "over", "code"), [(0, "5%", 1), (0, "500%", 0), (1, "5%", 0), (2, "5%", 0)])
def test_a_gate_on_jobs(healthy: Path, late: Path, order: int, over: str, code: int) -> None:
    sides = [(healthy, late), (late, healthy), (late, late)][order]
    assert opscope("diff", "--ranks", *map(str, sides), "--fail-over", over).returncode == code


def copied(job: Path, target: Path, times: float = 1.0) -> Path:
    """Copy the traces of a job, in which everything takes so many times as long."""
    target.mkdir()
    for path in job.glob("*.json.gz"):
        told = json.loads(gzip.decompress(path.read_bytes()))
        for event in told["traceEvents"]:
            event |= {key: round(event[key] * times, 3) for key in ("ts", "dur") if key in event}
        (target / path.name).write_bytes(gzip.compress(json.dumps(told).encode(), 1))
    return target


def gated(before: Path, after: Path) -> tuple[int, str]:
    done = opscope("diff", "--ranks", str(before), str(after), "--fail-over", "5%")
    return done.returncode, done.stderr


def test_a_gate_decides_on_whole_jobs_alone_and_names_what_lacks(healthy: Path, tmp_path: Path) -> None:
    part = copied(healthy, tmp_path / "part")
    for rank in (1, 2, 3):
        (part / f"rank{rank}.json.gz").unlink()
    for sides in ((healthy, part), (part, healthy), (part, part)):
        code, said = gated(*sides)
        assert code == 5
        assert all(f"rank {rank} is missing" in said for rank in (1, 2, 3))
    damaged = copied(healthy, tmp_path / "damaged")
    content = gzip.decompress((damaged / "rank2.json.gz").read_bytes())
    (damaged / "rank2.json.gz").write_bytes(gzip.compress(content[: len(content) * 9 // 10]))
    code, said = gated(healthy, damaged)
    assert code == 5
    assert "rank 2 is damaged" in said
    (damaged / "rank2.json.gz").write_bytes(b"no trace")
    code, said = gated(damaged, healthy)
    assert code == 5
    assert "rank 2 is missing" in said
    assert "rank2.json.gz is not read" in said
    assert opscope("diff", "--ranks", str(part), str(healthy)).returncode == 0  # without a gate nothing fails


def test_a_rank_that_no_header_counts_is_missing_where_the_other_job_has_it(tmp_path: Path) -> None:
    for name, ranks in (("before", 2), ("after", 1)):
        (tmp_path / name).mkdir()
        for rank in range(ranks):
            made = KinetoTrace()
            for step in range(4):
                made.step(step, step * 100_000, step * 100_000 + 90_000)
                began = step * 100_000
                made.launched_kernel("busy", (began + 1_000, began + 5_000), (began + 10_000, began + 50_000))
            made.write(tmp_path / name / f"rank{rank}.json")
    assert gated(tmp_path / "before", tmp_path / "before")[0] == 0
    code, said = gated(tmp_path / "before", tmp_path / "after")
    assert code == 5
    assert "rank 1 is missing" in said


def test_other_files_beside_a_whole_job_do_not_stop_its_gate(healthy: Path, tmp_path: Path) -> None:
    job = copied(healthy, tmp_path / "job")
    (job / "notes.json").write_text("{}")
    assert gated(healthy, job)[0] == 0


def test_six_percent_more_in_every_step_fails_and_four_do_not(tmp_path: Path) -> None:
    # Steps that differ by more than the change, as those of real jobs do.
    write_job(Job(Shape(4), jitter_ns=100_000), tmp_path / "before")
    for times, code in ((1.06, 1), (1.04, 0), (0.9, 0)):
        after = copied(tmp_path / "before", tmp_path / str(times), times)
        assert gated(tmp_path / "before", after)[0] == code


@pytest.mark.parametrize("steps", [1, 3])
def test_fewer_than_four_steps_decide_nothing_and_that_is_said(healthy: Path, tmp_path: Path, steps: int) -> None:
    write_job(Job(Shape(4), steps=steps, seed=2), tmp_path / "few")
    code, said = gated(healthy, tmp_path / "few")
    assert code == 5
    assert f"4 and {steps} steps" in said
    assert gated(tmp_path / "few", tmp_path / "few")[0] == 0  # one recording has not changed, however short it is


def longer(job: JobOfRanks, times: list[float]) -> JobOfRanks:
    """Return a job of as many steps as there are numbers, each so many times as long as the job's first one."""
    ranks = {}
    for rank, one in job.job.ranks.items():
        first = one.steps.head(1)
        rows = [
            first.with_columns(
                pl.lit(row, pl.Int32).alias("row"),
                pl.lit(row, pl.Int64).alias("step"),
                (pl.col("device_ns") * by).round().cast(pl.Int64),
            )
            for row, by in enumerate(times)
        ]
        ranks[rank] = one.changed(steps=pl.concat(rows), communications=one.communications.clear())
    changed = replace(job.job, ranks=ranks)
    return JobOfRanks(job.document, changed)


@settings(deadline=None, max_examples=examples(25))
@given(
    st.integers(4, 40),
    st.integers(4, 40),
    st.floats(0.9, 1.03),
    st.floats(0.0, 0.006),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_noise_below_the_gate_is_never_a_change_and_a_change_above_it_is_never_green(
    healthy: Path, before: int, after: int, change: float, noise: float, seed: int, same: bool
) -> None:
    job, chance = package.ranks(healthy), random.Random(seed)
    after = before if same else after
    first, second = ([1 + chance.uniform(-2, 2) * noise for _ in range(count)] for count in (before, after))
    sides = longer(job, first), longer(job, [change * one for one in second])
    found = sides[0].difference(sides[1])
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    assert found.ratio_low <= found.ratio_high
    assert job_gate_of(found, 0.05) in (Gate.FINE, Gate.INCONCLUSIVE)
    back = longer(job, [1.08 * one for one in second])
    assert job_gate_of(sides[0].difference(back), 0.05) in (Gate.REGRESSION, Gate.INCONCLUSIVE)


def test_text_names_the_late_rank_and_what_is_lacking(healthy: Path, late: Path, tmp_path: Path) -> None:
    done = opscope("diff", "--ranks", str(healthy), str(late), "--report", str(tmp_path / "diff.md"))
    assert done.returncode == 0, done.stderr
    assert "longer" in done.stdout
    assert "steps ran under a profiler" in done.stdout
    assert "aten::sort" in (tmp_path / "diff.md").read_text()
    assert opscope("diff", "--ranks", str(late)).returncode == 2


def test_a_rank_without_a_trace_is_missing_for_the_reason_that_the_record_gives(late: Path, tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.json.gz").write_bytes((late / f"rank{rank}.json.gz").read_bytes())
    record = {
        **{"schema": "opscope.job/1", "command": ["opscope"], "created": "", "opscope": "", "world": 4},
        "first_failed": 3,
        "ranks": [
            {"rank": rank, "host": "a", "failure": None if rank < 3 else "killed by SIGKILL"} for rank in range(4)
        ],
    }
    (tmp_path / "job.json").write_text(json.dumps(record))
    done = opscope("ranks", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Missing: rank 3: killed by SIGKILL" in done.stdout
    assert rows_of("select rank, state from ranks", tmp_path)[3] == {"rank": "3", "state": "missing"}


def test_the_values_of_ranks_hold_what_the_table_shows(late: Path) -> None:
    done = opscope("ranks", str(late), "--by", "rank", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert float(rows[2]["late_ns"]) == pytest.approx(3 * MS, rel=0.01)
    assert rows[0]["late_ns"] == rows[0]["cause"] == ""
    assert all(float(row["error_ns"]) > 0 for row in rows)


@pytest.mark.parametrize(
    "text", ['{"name": "mine"}', "[]", "no JSON", '{"schema": "opscope.job/1", "world": 10}', "\x00\xff"]
)
def test_a_file_job_json_that_is_no_record_of_ours_keeps_nothing_from_being_read(
    late: Path, tmp_path: Path, text: str
) -> None:
    for path in late.glob("*.json.gz"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "job.json").write_bytes(text.encode("latin-1"))
    done = opscope("ranks", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Ranks: 4 whole" in done.stdout
    assert ("job.json" in done.stdout) is ("opscope.job" in text)


def test_a_record_of_another_world_does_not_overrule_what_traces_say(late: Path, tmp_path: Path) -> None:
    for path in late.glob("*.json.gz"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    record = {"schema": "opscope.job/1", "command": [], "created": "", "opscope": "", "world": 5, "first_failed": None}
    ends = [{"rank": rank, "host": None, "failure": None} for rank in range(5)]
    (tmp_path / "job.json").write_text(json.dumps({**record, "ranks": ends}))
    assert "Ranks: 4 whole" in opscope("ranks", str(tmp_path)).stdout


@pytest.mark.parametrize(
    "command",
    [
        ("diff", "--ranks", "--any-steps"),
        ("diff", "--ranks", "--by", "kernel"),
        ("diff", "--ranks", "--page", "x.html"),
    ],
)
def test_options_that_do_not_apply_to_jobs_are_refused(late: Path, command: tuple[str, ...]) -> None:
    assert opscope(*command, str(late), str(late)).returncode == 2


def test_sql_over_ranks_refuses_options_of_single_traces(late: Path) -> None:
    for option in (("--strict",), ("--max-input", "1GiB")):
        assert opscope("sql", "--ranks", *option, "select * from ranks", str(late)).returncode == 2
