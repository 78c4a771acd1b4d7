"""gzip is unpacked by zlib-ng where that is installed, else by zlib: what is read is the same, of damaged files too."""

import gzip
import zlib
from pathlib import Path
from unittest import mock

import pytest

from opscope.readers import unpacked
from opscope.readers.unpacked import InputFile
from tests.budget import chance, examples
from tests.conftest import DATA

pytest.importorskip("zlib_ng")
TRACE = DATA / "traces" / "square_variants.json.gz"


class _Collects:
    """Takes a file's content as it comes."""

    def __init__(self) -> None:
        self.content = b""

    def feed(self, piece: bytes) -> list[bytes]:
        self.content += piece
        return []


def content(path: Path) -> tuple[bytes, str | None]:
    """Return what is read of a file, and the damage without its details."""
    collects, source = _Collects(), InputFile(path)
    list(source.feed(lambda _: collects))  # type: ignore[arg-type,return-value]
    return collects.content, None if source.damage is None else source.damage.partition(" (")[0]


def test_both_libraries_read_the_same_of_damaged_files(tmp_path: Path) -> None:
    random_, plain = chance("inflating"), gzip.decompress(TRACE.read_bytes())[:300_000]
    path, damaged = tmp_path / "t.json.gz", 0
    for _ in range(examples(60)):
        members = [plain] if random_.random() < 0.5 else [plain[:1_000], plain[1_000:]]
        packed = bytearray(b"".join(gzip.compress(member, random_.choice((1, 6, 9))) for member in members))
        for _ in range(random_.choice((0, 1, 1, 3))):
            packed[random_.randrange(2, len(packed))] ^= 1 << random_.randrange(8)
        packed += random_.choice((b"", b"", b"\0" * 512, b"more"))
        path.write_bytes(packed[: random_.choice((len(packed), random_.randrange(20, len(packed))))])
        with mock.patch.object(unpacked, "_inflating", return_value=zlib):
            expected = content(path)
        assert content(path) == expected
        damaged += expected[1] is not None
    assert damaged


def test_without_zlib_ng_zlib_unpacks(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(TRACE.read_bytes())
    with mock.patch.dict("sys.modules", {"zlib_ng.zlib_ng": None}):
        assert unpacked._inflating() is zlib
        assert content(path) == (gzip.decompress(TRACE.read_bytes()), None)
