"""The compiled reader with several threads against itself with one: whatever the text and the cuts, all is the same."""

import gzip
import json
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from opscope.readers.native import library as native
from opscope.readers.native.library import NativeReader
from opscope.readers.reading import read
from opscope.readers.unpacked import InputFile
from opscope.trace.schema import SCHEMAS
from tests.budget import chance, examples
from tests.conftest import DATA
from tests.reading import everything, fed

pytestmark = pytest.mark.skipif(native.load_kineto() is None, reason="the compiled reader was not built")

TRACES = sorted(DATA.glob("*traces/*.json.gz"))
# What makes blocks begin in the wrong place, events go on for ever, or the list end.
_STRAYS = (
    b'{"traceEvents": [', b'}, {"', b"]", b'"', b"\\", b"{", b"}", b",", b"[", b"]}", b"NaN", b"\x00\xff", b"null",
    b"{}", b" " * 70, b'}  ,\n {  "', b'"args": {"list": [{"a": 1}, {"b": 2}, {"c": 3}]}', b'"' + b"y" * 3000 + b'"',
    b'"' + b'z}, {"' * 100 + b'"',
)  # fmt: skip
_VALUES = (
    None, 1, -1, "x", 1.5, '}, {"', {"a": [{"b": 1}, {"c": {}}, {"d": []}]}, [], True, "12", 2**70, float("nan"),
    "\u00e9",
)  # fmt: skip


def read_from(path: Path, piece: int, threads: int, block: int) -> dict[str, Any]:
    library = native.load_kineto()
    assert library is not None
    reader = NativeReader(library, threads, block)
    with mock.patch("opscope.readers.unpacked._PIECE", piece):
        return everything(reader, list(InputFile(path).feed(lambda _: reader)))


def odd_trace(document: Mapping[str, Any], random_: random.Random) -> bytes:
    """Some events of a trace with odd values, then damaged."""
    count = random_.choice((5, 20, 60, 200))
    first = random_.randrange(max(1, len(document["traceEvents"]) - count))
    events = [dict(event) for event in document["traceEvents"][first : first + count]]
    for _ in range(random_.choice((0, 1, 5, 30))):
        event = random_.choice(events)
        event[random_.choice([*event, "args", "cat", "ts", "tid"])] = random_.choice(_VALUES)
    if random_.random() < 0.3:
        for event in events:
            event["more"] = [{"x": i} for i in range(random_.randrange(12))]
    text = json.dumps({**document, "traceEvents": events}, indent=random_.choice((None, None, 0, 2, 40))).encode()
    for _ in range(random_.choice((0, 0, 1, 2, 6))):
        at = random_.randrange(len(text))
        text = text[:at] + random_.choice(_STRAYS) + text[at + random_.choice((0, 0, 1, 3, 40)) :]
    return text[: random_.randrange(len(text))] if random_.random() < 0.1 else text


def pieces_of(text: bytes, random_: random.Random) -> list[bytes]:
    size = random_.choice((50, 300, 1000, 4096, 20000, len(text)))
    ends = [*range(size, len(text), size), len(text)]
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_odd_and_damaged_traces_read_the_same_with_several_threads(path: Path, tmp_path: Path) -> None:
    random_, target = chance(path.name), tmp_path / "trace.json"
    document = json.loads(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"), strict=False)
    for _ in range(examples(12)):
        text = odd_trace(document, random_)
        pieces = pieces_of(text, random_)
        expected = fed(pieces, 1, 1 << 20)
        threads, block = random_.choice((2, 3, 4)), random_.choice((64, 100, 256, 700, 1024, 4096))
        assert fed(pieces, threads, block) == expected
        target.write_bytes(text)
        assert read_from(target, len(pieces[0]), threads, block) == expected


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_recorded_traces_read_the_same_with_several_threads(path: Path) -> None:
    text = gzip.decompress(path.read_bytes())
    assert fed([text], 4, 1 << 14) == fed([text], 1, 1 << 14)


def test_a_string_that_is_never_closed_ends_where_it_does_for_one_thread() -> None:
    event = b'{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}, '
    text = b'{"traceEvents": [' + event * 40_000 + b'{"ph": "X", "name": "' + event * 300_000 + b'{"ph": "i"}]}'
    pieces = [text[at : at + (1 << 22)] for at in range(0, len(text), 1 << 22)]
    expected = fed(pieces, 1, 1 << 20)
    assert (expected["plain_count"], len(expected["odd"])) != (340_001, 0)
    assert fed(pieces, 4, 1 << 20) == expected


def test_cuts_that_are_always_wrong_cost_no_more_than_their_own_reading() -> None:
    # Only what is within an event looks like the beginning of one: after a while no one tries any more.
    event = b'{"ph":"i","more":[' + b'{"x": 1}, ' * 20 + b"1]}\n\n;\n"
    text = b'{"traceEvents": [' + event * 5000 + b"]}"
    assert fed([text], 2, 4096) == fed([text], 1, 4096)


def test_without_threads_the_file_is_read_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.decompress((DATA / "traces" / "cdist.json.gz").read_bytes()))
    whole = read(path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    alone = read(path)
    assert all(getattr(whole, table).equals(getattr(alone, table)) for table in SCHEMAS)


@pytest.fixture
def small_blocks() -> Iterator[None]:
    def reader(library: Any) -> NativeReader:
        return NativeReader(library, 3, 2048)

    with mock.patch.object(native, "NativeReader", reader):
        yield


@pytest.mark.parametrize("path", TRACES[:8], ids=lambda path: path.name)
@pytest.mark.parametrize("packed", [True, False])
def test_a_trace_is_the_same_trace(path: Path, packed: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    target = tmp_path / "trace.json"
    target.write_bytes(path.read_bytes() if packed else gzip.decompress(path.read_bytes()))
    expected = read(target)
    request.getfixturevalue("small_blocks")
    trace = read(target)
    assert trace.source == expected.source
    assert (trace.threads, trace.devices) == (expected.threads, expected.devices)
    assert all(getattr(trace, table).equals(getattr(expected, table)) for table in SCHEMAS)


def test_events_that_come_with_the_end_of_the_file_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("some text")
    reader = mock.Mock(**{"feed.return_value": [b"1"], "read.side_effect": [(7, [b"2"]), (0, [b"3"])]})
    assert list(InputFile(path).feed(lambda _: reader)) == [b"1", b"2", b"3"]


def test_a_folder_cannot_be_read(tmp_path: Path) -> None:
    library = native.load_kineto()
    assert library is not None
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            NativeReader(library).read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)
