"""Converted traces read back as they were, in every command; and SQL over many of them."""

import csv
import gzip
import io
import json
from decimal import Decimal
from pathlib import Path

import pytest

from opscope.base.errors import BadInputError
from opscope.readers import parquet
from opscope.readers.reading import read
from opscope.trace.schema import SCHEMAS
from tests import tiny
from tests.command import opscope
from tests.conftest import DATA

TRACES = sorted((DATA / "traces").glob("*.json.gz"))
RUN = str(DATA / "h200_bert_small")


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_converted_trace_is_the_trace(path: Path, tmp_path: Path) -> None:
    trace = read(path)
    parquet.write(trace, tmp_path)
    again = read(tmp_path)
    assert (again.source, again.devices, again.threads) == (trace.source, trace.devices, trace.threads)
    for table in SCHEMAS:
        assert getattr(again, table).equals(getattr(trace, table))
        assert getattr(again, table).schema == getattr(trace, table).schema


def test_every_figure_is_the_same_from_either(tmp_path: Path) -> None:
    path = str(DATA / "traces" / "resnet50_train_fp32.json.gz")
    converted = opscope("export", path, "--parquet", str(tmp_path / "store"))
    assert converted.returncode == 0, converted.stderr
    documents = [opscope("analyze", item, "--format", "json").stdout for item in (path, str(tmp_path / "store"))]
    assert documents[0] == documents[1]


def test_a_run_directory_is_its_traces(tmp_path: Path) -> None:
    document = json.loads(opscope("analyze", RUN, "--format", "json").stdout)
    assert len(document["traces"]) == 3
    assert opscope("export", RUN, "--parquet", str(tmp_path)).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bert_trace_bs16_seq128",
        "bert_trace_bs1_seq128",
        "bert_trace_bs8_seq128",
    ]
    several = opscope("export", RUN, "--chrome", str(tmp_path / "x.json"))
    assert several.returncode == 2
    assert "holds 3 traces: name one" in several.stderr


@pytest.mark.parametrize(
    "damage",
    [
        lambda store: (store / "operators.parquet").unlink(),
        lambda store: (store / "operators.parquet").write_bytes(b"PAR1"),
        lambda store: (store / "launches.parquet").write_bytes((store / "operators.parquet").read_bytes()),
        lambda store: (store / "store.json").write_text("{}"),
    ],
)
def test_a_damaged_store_is_a_bad_input(damage: object, tmp_path: Path) -> None:
    parquet.write(read(tiny.inference().write(tmp_path / "t.json")), tmp_path / "store")
    damage(tmp_path / "store")  # type: ignore[operator]
    with pytest.raises(BadInputError):
        read(tmp_path / "store")


def test_a_directory_of_another_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"is a directory without store\.json"):
        read(tmp_path)
    assert (
        opscope("export", str(tiny.inference().write(tmp_path / "t.json")), "--parquet", "/proc/none").returncode == 3
    )


def sum_of_durations(path: Path) -> int:
    """Add up the device activities of a raw file."""
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    return sum(int(e["dur"] * 1000) for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))


def test_sql_sees_records_and_costs_of_all_runs() -> None:
    query = "select trace, sum(total_ns) as ns from kernel_costs group by trace order by ns"
    rows = list(csv.DictReader(io.StringIO(opscope("sql", query, RUN, "--format", "csv").stdout)))
    assert {Path(row["trace"]).name: int(row["ns"]) for row in rows} == {
        path.name: sum_of_durations(path) for path in Path(RUN).glob("*.json.gz")
    }
    answer = json.loads(opscope("sql", "select count(*) as n from operators", RUN, "--format", "json").stdout)
    assert answer["schema"] == "opscope.sql/1"
    assert answer["columns"] == ["n"]
    counted = sum(read(path).operators.height for path in Path(RUN).glob("*.json.gz"))
    assert answer["rows"] == [[counted]]


def test_sql_counts_are_signed_and_no_trace_counts_twice() -> None:
    trace = str(next(Path(RUN).glob("*bs1_*.gz")))
    query = "select min(calls - 100000) as least, count(*) as n from operator_costs"
    once, twice = (json.loads(opscope("sql", query, *paths, "--format", "json").stdout)["rows"]
                   for paths in ((trace,), (trace, trace)))  # fmt: skip
    assert once == twice
    assert once[0][0] < 0


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("drop table operators", "one query is run"),
        ("select 1", "reads no table; there are operators, launches, "),
        ("select nothing from operators", "cannot be run: "),
        ("select count(*) fro operators", "cannot be "),
    ],
)
def test_wrong_queries_are_wrong_usage(query: str, message: str) -> None:
    result = opscope("sql", query, RUN)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


HOSTILE = {
    "select * from read_csv('{secret}') -- operators": "no other files",
    "select * from operators, read_csv('{secret}')": "no other files",
    "select name from operators where name in (select * from scan_csv('{secret}'))": "no other files",
    "select * from '{secret}' -- operators": "there is no table",
    'select * from "{secret}" /* operators */': "there is no table",
    "select * from operators, 'http://127.0.0.1:9/x.csv'": "there is no table",
    "select * from main.operators": "nothing else",
    "select 1 as operators": "reads no table",
    "drop table operators": "one query is run",
    "select name from operators; select name from operators": "one query is run",
    "with t as (select * from t) select * from t, operators": "not defined before it",
    "with recursive t as (select 1 as x union all select x + 1 from t) select * from t, operators": "may never end",
    "select E'\\' from read_csv(''{secret}'') --' from operators": "single quotes",
    "select $$x$$ from operators": "single quotes",
    "select cast(duration_ns as decimal(100,50)) as x from operators": "cannot be run",
    "select " + "(" * 300 + "duration_ns" + ")" * 300 + " as x from operators": "cannot be",
    "select " + "+".join(["duration_ns"] * 20_000) + " as x from operators": "characters",
    "select " + "+".join(["1"] * 20_000) + " as x from operators": "words",
}


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
def test_a_query_reads_the_tables_of_its_traces_and_nothing_else(query: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\ntop secret\n")
    result = opscope("sql", query.format(secret=secret), RUN)
    assert result.returncode == 2
    assert HOSTILE[query] in result.stderr
    assert "Traceback" not in result.stderr
    assert "panicked" not in result.stderr
    assert "top secret" not in result.stdout + result.stderr


@pytest.mark.parametrize(("option", "limit"), [("--timeout", "0.05"), ("--max-memory", "50MB")])
def test_a_query_that_takes_too_much_is_ended(option: str, limit: str) -> None:
    tables = " cross join ".join(f"operators t{i}" for i in range(3))
    query = f"select t0.start_ns, t1.name, t2.name as other from {tables} order by t2.start_ns, t0.name"
    result = opscope("sql", "--timeout", "60", option, limit, query, RUN)
    assert result.returncode == 2
    assert f"({option}), and was ended" in result.stderr


def test_text_in_a_query_may_look_like_a_comment_or_a_file() -> None:
    query = "select 'it''s -- read_csv(1)' as \"a name\" from operators limit 1 -- the end"
    answer = json.loads(opscope("sql", "--format", "json", query, RUN).stdout)
    assert (answer["columns"], answer["rows"]) == (["a name"], [["it's -- read_csv(1)"]])


def test_steps_and_gaps_are_tables_like_all_others() -> None:
    """Their rows are those of ``analyze``, whatever prints them."""
    trace = str(DATA / "findings" / "logged_losses.json.xz")
    document = json.loads(opscope("analyze", trace, "--format", "json").stdout)
    query = "select number, span_ns, busy_ns, idle_ns from steps order by number"
    steps = json.loads(opscope("sql", "--format", "json", query, trace).stdout)["rows"]
    assert steps == [[step[key] for key in ("number", "span_ns", "busy_ns", "idle_ns")] for step in document["steps"]]
    query = "select start_ns, duration_ns, cause, cause_ns from gaps order by duration_ns desc, start_ns"
    gaps = json.loads(opscope("sql", "--format", "json", query, trace).stdout)["rows"]
    expected = [
        [gap["start_ns"], gap["duration_ns"], gap["cause"], gap["causes"][gap["cause"]]] for gap in document["gaps"]
    ]
    assert gaps == sorted(expected, key=lambda row: (-row[1], row[0]))
    assert json.loads(opscope("sql", "--format", "json", "select * from iterations", trace).stdout)["rows"] == []
