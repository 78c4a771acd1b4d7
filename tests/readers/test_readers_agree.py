"""The compiled reader against the one in Python, its slow and obvious reference; and both against fuzzed files."""

import gzip
import json
import random
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.analyzed import analyze
from opscope.base.errors import BadInputError
from opscope.readers.native import library as native
from opscope.readers.reading import read
from opscope.trace.model import Trace
from opscope.trace.schema import SCHEMAS
from tests.budget import chance, examples
from tests.conftest import DATA
from tests.readers.test_reader_kineto import ODD_EVENT
from tests.reading import assert_nothing_lost_in_silence, rows_of

pytestmark = pytest.mark.skipif(native.load_kineto() is None, reason="the compiled reader was not built")

RECORDED = sorted((DATA / "traces").glob("*.json.gz"))


def in_python(path: Path) -> Trace:
    with mock.patch.object(native, "load_kineto", return_value=None):
        return read(path)


def assert_same(one: Trace, other: Trace) -> None:
    assert one.source == other.source
    assert one.devices == other.devices
    for table in SCHEMAS:
        mine, theirs = getattr(one, table), getattr(other, table)
        assert mine.schema == theirs.schema
        # Among equal starts, events that are not plain come last in the compiled reader.
        rows = [sorted(frame.rows(), key=repr) for frame in (mine, theirs)]
        assert rows[0] == rows[1], table


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_recorded_traces_read_the_same(path: Path) -> None:
    assert_same(read(path), in_python(path))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(ODD_EVENT, max_size=12), st.sampled_from([None, 0, 2]))
def test_any_events_read_the_same(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, object]], indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("t") / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "record_shapes": 1}, indent=indent))
    try:
        expected = in_python(path)
    except BadInputError:
        with pytest.raises(BadInputError):
            read(path)
        return
    assert_same(read(path), expected)


TOKEN = st.sampled_from(
    ['"GPU 1 Counters"', '"GP\\u0055 2 Counters"',
     "inf", "-nan", "+inf", "Infinity", "NaN", "nan", '"12"', '"1.5"', '"-7"', '"1e5"', '" 3"', '""', '"Stream 7"',
     '"-"', '"."', '"1."', '"0012"', '"12345678901234567890"', '"99999999999999999999999"', '"9.9999"', "null", "5",
     "1.5", "true",
     "1e2", "[1]", '"nan"', '"\\u0031"']
)  # fmt: skip
FIELDS = ("ts", "dur", "pid", "tid")
ARGUMENTS = (
    "device", "stream", "correlation", "External id", "graph id", "bytes", "registers per thread", "shared memory",
    "est. achieved occupancy %", "grid", "Sequence number", "Input Dims", "cbid", "Device Type", "Total Allocated",
    "Addr", "Seq", "Rank", "Group size", "In msg nelems", "Collective name", "", "original_stream", "host process",
)  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    '"X", "cat": "kernel"',
                    '"X", "cat": "cpu_op"',
                    '"X", "cat": "cuda_runtime"',
                    '"i"',
                    '"C"',
                    '"X", "cat": "graph_host_node"',
                ]
            ),
            st.dictionaries(st.sampled_from(FIELDS), TOKEN),
            st.dictionaries(st.sampled_from(ARGUMENTS), TOKEN),
        ),
        max_size=6,
    )
)
def test_numbers_that_are_text_or_none_read_the_same(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, dict[str, str], dict[str, str]]]
) -> None:
    path = tmp_path_factory.mktemp("t") / "trace.json"
    written = []
    for kind, fields, args in events:
        values = {"ts": "1.5", "dur": "2", "pid": "1", "tid": "1", **fields}
        given_ = ", ".join(f'"{key}": {token}' for key, token in args.items())
        written.append(
            f'{{"ph": {kind}, "name": "[memory]", "args": {{{given_}}}, '
            + ", ".join(f'"{key}": {token}' for key, token in values.items())
            + "}"
        )
    path.write_text('{"traceEvents": [' + ",".join(written) + "]}")
    assert_same(read(path), in_python(path))


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("packed", [True, False])
def test_where_a_file_is_cut_into_pieces_does_not_matter(size: int, packed: bool, tmp_path: Path) -> None:
    content = (DATA / "traces" / "square_variants.json.gz").read_bytes()
    path = tmp_path / "trace.json"
    path.write_bytes(content if packed else gzip.decompress(content))
    whole = read(path)
    with mock.patch("opscope.readers.unpacked._PIECE", size):
        assert_same(read(path), whole)
        assert_same(in_python(path), whole)


def mutated(content: bytes, random_: random.Random) -> bytes:
    """Damage a file in one place, as disks, editors and producers do."""
    at, length = random_.randrange(len(content)), random_.choice((1, 1, 2, 30))
    piece = bytes(random_.choice(b'{}[],:"\\0a9-.\x00\xff\n') for _ in range(random_.choice((0, 1, 3))))
    if random_.random() < 0.1:
        return content[:at]
    return content[:at] + piece + content[at + random_.choice((0, length)) :]


@pytest.mark.parametrize("name", ["square_variants", "cudagraph_replay", "cdist", "gelu_variants"])
def test_damaged_files_are_read_in_part_or_refused_and_never_wrong_in_silence(name: str, tmp_path: Path) -> None:
    whole = gzip.decompress((DATA / "traces" / f"{name}.json.gz").read_bytes())
    path, random_ = tmp_path / "trace.json", chance(name)
    path.write_bytes(whole)
    expected = {table: set(getattr(read(path), table).rows()) for table in SCHEMAS}
    for _ in range(examples(60)):
        path.write_bytes(mutated(mutated(whole, random_), random_))
        try:
            trace = read(path)
        except BadInputError:
            continue
        analysis = analyze(trace)
        assert analysis.accounting.holds
        lost = sum(len(expected[table]) for table in SCHEMAS) - sum(getattr(trace, table).height for table in SCHEMAS)
        source = trace.source
        # A lost event shows: two damages can make at most two events into others that no table wants.
        if lost > 2:
            assert source.damage or source.unreadable_bytes or source.odd_events


@pytest.mark.parametrize("name", ["square_variants", "cudagraph_replay", "cdist", "gelu_variants"])
def test_of_damaged_files_no_reader_loses_in_silence_what_the_other_reads(name: str, tmp_path: Path) -> None:
    whole = gzip.decompress((DATA / "traces" / f"{name}.json.gz").read_bytes())
    path, random_, same = tmp_path / "trace.json", chance(name, "twice"), 0
    for _ in range(examples(25)):
        path.write_bytes(mutated(mutated(whole, random_), random_))
        try:
            python, compiled = in_python(path), read(path)
        except BadInputError:
            continue
        assert_nothing_lost_in_silence(python, compiled)
        same += rows_of(python) == rows_of(compiled)
    assert same > 0.7 * examples(25)
