"""Memory snapshots are read alike by both readers, whatever wrote them; and nothing that a file names is run."""

import base64
import gzip
import io
import json
import lzma
import os
import pickle
import pickletools
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opscope.base.errors import BadInputError, NotATraceError
from opscope.readers import snapshot as module
from opscope.readers.snapshot import read_snapshot
from opscope.trace.snapshot import UNKNOWN, Action, Snapshot
from tests.snapshots import MIB, SEGMENTS_AT, MadeSnapshot, frame

DATA = Path(__file__).parent.parent / "data" / "memory"


@pytest.fixture(params=["compiled", "Python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "Python":
        monkeypatch.setattr(module, "load_native", lambda: None)
    elif module.load_native() is None:
        pytest.skip("the compiled reader was not built")
    return str(request.param)


def read_by_python(path: Path) -> Snapshot:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load_native", lambda: None)
        return read_snapshot(path)


def assert_same(one: Snapshot, other: Snapshot) -> None:
    for name in ("settings", "streams", "frames", "contexts", "bytes_read"):
        assert getattr(one, name) == getattr(other, name), name
    assert np.array_equal(one.stacks.ends, other.stacks.ends)
    assert np.array_equal(one.stacks.frames, other.stacks.frames)
    assert [device.device for device in one.devices] == [device.device for device in other.devices]
    for left, right in zip(one.devices, other.devices, strict=True):
        assert left.segments == right.segments
        assert left.annotations == right.annotations
        for name in left.events.__struct_fields__:
            assert np.array_equal(getattr(left.events, name), getattr(right.events, name)), name


def small() -> MadeSnapshot:
    made = MadeSnapshot()
    made.event("segment_alloc", SEGMENTS_AT, 2 * MIB, [frame("train.py", 3, "main")])
    made.alloc(SEGMENTS_AT, 1000, [frame("train.py", 3, "main"), frame("train.py", 9, "<module>")])
    made.free(SEGMENTS_AT, 1000, [frame("train.py", 5, "main")])
    made.alloc(SEGMENTS_AT, 700)
    made.event("oom", 123, 4096)
    made.end_of_step()
    made.segment(SEGMENTS_AT, 2 * MIB, [(1024, 700, "active_allocated"), (2 * MIB - 1024, 0, "inactive")], large=False)
    return made


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_a_snapshot_holds_is_read(reader: str, tmp_path: Path, protocol: int) -> None:
    found = read_snapshot(small().write(tmp_path / "s.pickle", protocol))
    (device,) = found.devices
    assert device.device == 0
    assert [Action(action).name for action in device.events.action] == [
        "SEGMENT_ALLOC",
        "ALLOC",
        "FREED",
        "ALLOC",
        "OOM",
    ]
    assert device.events.bytes.tolist() == [2 * MIB, 1000, 1000, 700, 4096]
    assert device.events.address.tolist()[-1] == 123
    stack = found.stacks[int(device.events.stack[1])]
    assert [(found.frames[at].file, found.frames[at].line) for at in stack] == [("train.py", 3), ("train.py", 9)]
    (segment,) = device.segments
    assert (segment.bytes, segment.is_large, segment.pool) == (2 * MIB, False, (0, 0))
    assert [(block.bytes, block.requested, block.is_allocated) for block in segment.blocks] == [
        (1024, 700, True), (2 * MIB - 1024, 0, False),
    ]  # fmt: skip
    assert [note.name for note in device.annotations] == ["Optimizer.step#SGD.step"]
    assert found.settings["max_split_size"] == -1


def test_both_readers_agree_on_every_recording() -> None:
    recordings = sorted(DATA.glob("*.pickle*"))
    assert len(recordings) > 30
    for path in recordings:
        assert_same(read_snapshot(path), read_by_python(path))


@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), ("", bytes)], ids=["gzip", "xz", "plain"]
)
def test_packed_files_are_unpacked(reader: str, tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"s.pickle{ending}"
    path.write_bytes(pack(pickle.dumps(small().content())))
    assert len(read_snapshot(path).devices[0].events) == 5


def test_a_page_of_memory_viz_holds_its_snapshot(reader: str, tmp_path: Path) -> None:
    raw = pickle.dumps(small().content()) + b"\0\0"
    listed = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(raw).decode()}])
    path = tmp_path / "page.html"
    path.write_text(f"<!DOCTYPE html>\n<script>add_local_files({listed}, 'Active Memory Timeline')</script>")
    assert len(read_snapshot(path).devices[0].events) == 5
    path.write_text("<html><script src='https://example.com/viz.js'></script></html>")
    with pytest.raises(BadInputError, match="the page holds no snapshot"):
        read_snapshot(path)


def test_pinned_memory_and_several_devices_are_apart(reader: str, tmp_path: Path) -> None:
    content = small().content()
    other = small()
    for segment in other.segments:
        segment["device"] = 1
    content["segments"] += other.segments
    content["device_traces"].append(other.trace[:2])
    content["host_segments"] = [{**small().segments[0], "device": -1}]
    content["host_traces"] = small().trace[:1]
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(content))
    devices = read_snapshot(path).devices
    assert [device.device for device in devices] == [0, 1, None]
    assert [len(device.events) for device in devices] == [5, 2, 1]
    assert [len(device.segments) for device in devices] == [1, 1, 1]


def test_what_an_entry_lacks_is_unknown(reader: str, tmp_path: Path) -> None:
    made = MadeSnapshot()
    made.trace = [{"action": "alloc", "addr": 512, "size": 10, "stream": 0}, {"action": "annotate", "size": 1}]
    made.segment(0, 2 * MIB, [(2 * MIB, 0, "inactive")])
    found = read_snapshot(made.write(tmp_path / "s.pickle"))
    assert found.devices[0].events.time_us.tolist() == [UNKNOWN, UNKNOWN]
    assert Action(found.devices[0].events.action[1]) == Action.OTHER
    assert found.contexts[0].pool is None


# ---------------------------------------------------------------- as PyTorch's C++ writes them


def as_from_cpp(value: Any) -> bytes:
    """Write a value as PyTorch's own pickler does: protocol 2, all of a container at once, and no number for most."""
    out = io.BytesIO()

    def put(item: Any) -> None:
        match item:
            case bool():
                out.write(b"\x88" if item else b"\x89")
            case int():
                out.write(b"K" + bytes([item]) if 0 <= item < 256 else b"\x8a\x08" + struct.pack("<q", item))
            case float():
                out.write(b"G" + struct.pack(">d", item))
            case str():
                out.write(b"X" + struct.pack("<I", len(item.encode())) + item.encode())
            case dict():
                out.write(b"}(")
                for key, one in item.items():
                    put(key)
                    put(one)
                out.write(b"u")
            case list():
                out.write(b"](")
                for one in item:
                    put(one)
                out.write(b"e")
            case tuple():
                for one in item:
                    put(one)
                out.write(b"\x86")

    out.write(b"\x80\x02")
    put(value)
    return out.getvalue() + b"."


def test_a_pickle_of_cpp_reads_like_one_of_python(reader: str, tmp_path: Path) -> None:
    content = small().content()
    (tmp_path / "cpp.pickle").write_bytes(as_from_cpp(content))
    (tmp_path / "python.pickle").write_bytes(pickle.dumps(content))
    cpp, python = (read_snapshot(tmp_path / name) for name in ("cpp.pickle", "python.pickle"))
    assert cpp.devices[0].segments == python.devices[0].segments
    assert cpp.devices[0].events.bytes.tolist() == python.devices[0].events.bytes.tolist()


NUMBERS = st.integers(-(1 << 62), 1 << 62)
SIZES = st.integers(0, 1 << 49)
TEXTS = st.text(max_size=6)
FRAMES = st.lists(st.fixed_dictionaries({"filename": TEXTS, "line": st.integers(0, 99), "name": TEXTS}), max_size=3)
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"action": st.sampled_from(["alloc", "free_requested", "free_completed", "oom", "odd"]), "size": SIZES},
        optional={
            "addr": NUMBERS,
            "frames": FRAMES,
            "time_us": NUMBERS,
            "stream": NUMBERS,
            "pool_id": st.tuples(NUMBERS, NUMBERS),
            "user_metadata": TEXTS,
        },
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    traces=st.lists(ENTRIES, max_size=3), protocol=st.integers(2, 5), extra=st.dictionaries(TEXTS, NUMBERS, max_size=3)
)
def test_readers_agree_on_any_entries(tmp_path: Path, traces: list[Any], protocol: int, extra: dict[str, int]) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({**extra, "segments": [], "device_traces": traces}, protocol=protocol))
    assert_same(read_snapshot(path), read_by_python(path))


# ---------------------------------------------------------------- what is refused


class Runs:
    """Unpickled by Python, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_that_a_file_names_is_run(reader: str, tmp_path: Path, protocol: int) -> None:
    content = small().content()
    content["device_traces"].append(Runs(tmp_path / "was_run"))
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(BadInputError, match=r"opcode 0x.*, which no snapshot needs; nothing was run"):
        read_snapshot(path)
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\x80\x04.", "lacks its values"),
        (b"\x80\x04]\x94.", "no dictionary"),
        (b"\x80\x04}\x94.", "has no segments"),
        (b"\x80\x09}.", "is no memory snapshot"),
        (b"\x80\x04}\x94(\x8c\x01a", "ends early, after 8 bytes"),
        (b"\x80\x04h\x05.", "not there"),
        (b"\x80\x04}r\xff\xff\xff\x7f.", "numbers its objects"),
        (b"\x80\x04e.", "lacks its mark"),
        (b"\x80\x04(u.", "lacks its dictionary|no dictionary"),
        (b"\x80\x04](Ne", "ends early"),
        (b"\x80\x04\x8a\x10" + b"\x01" * 16 + b".", "more than 64 bits"),
        (b"\x80\x04X\xff\xff\xff\xff", "text of 4294967295 bytes"),
        (b"hello", "is no memory snapshot"),
    ],
)
def test_what_is_no_snapshot_is_refused_in_a_sentence(reader: str, tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    with pytest.raises((BadInputError, NotATraceError), match=why):
        read_snapshot(path)


def outcome(path: Path, read: Callable[[Path], Snapshot]) -> str:
    try:
        return f"{len(read(path).devices)} devices"
    except BadInputError as error:
        return str(error)


def test_damaged_pickles_end_alike_in_both_readers(tmp_path: Path) -> None:
    if module.load_native() is None:
        pytest.skip("the compiled reader was not built")
    whole, chance = pickle.dumps(small().content()), random.Random(5)
    codes = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
    path = tmp_path / "s.pickle"
    for _ in range(1000):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(2, len(damaged))
            damaged[at : at + chance.randrange(3)] = chance.choice(codes) if chance.random() < 0.5 else os.urandom(1)
        path.write_bytes(bytes(damaged))
        assert outcome(path, read_snapshot) == outcome(path, read_by_python), bytes(damaged)


@pytest.mark.parametrize(
    "bomb", [b"]\x94", b"}\x94", b"(", b")", b"N", b"]\x94h\x00", b"(t\x94", b"\x94", b"X\0\0\0\0\x94"], ids=repr
)
def test_a_bomb_ends_with_little_memory(reader: str, tmp_path: Path, bomb: bytes) -> None:
    size = 40 << 20 if reader == "compiled" else 3 << 20
    path = tmp_path / "s.pickle"
    path.write_bytes(b"\x80\x04]\x94" + bomb * (size // len(bomb)))
    with pytest.raises(BadInputError):
        read_snapshot(path)
