"""Large traces are analysed on several threads: the answers are those of one thread."""

from pathlib import Path

import pytest

from opscope.analysis.analyzed import analyze
from opscope.analysis.measured import Measured
from opscope.base import processes
from opscope.base.errors import BadInputError
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers.parquet import write
from opscope.readers.reading import read
from opscope.record.codec import encode
from opscope.report.trace_document import build_trace_document
from opscope.runs.pipeline import PageParts
from tests.conftest import DATA

TRACES = sorted((DATA / "traces").glob("*.json.gz"))


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_WORTH_IT", 0)
    monkeypatch.setattr(processes, "cores", lambda: 4)


def document(path: Path) -> bytes:
    measured = Measured(analyze(read(path)))
    return encode(build_trace_document(measured, NativeFunctions.shipped()))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_documents_are_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = document(path)
    monkeypatch.setattr(processes, "_WORTH_IT", 0)
    monkeypatch.setattr(processes, "cores", lambda: 4)
    assert document(path) == alone


@pytest.mark.usefixtures("on_threads")
def test_stores_are_read_and_refused_as_ever(tmp_path: Path) -> None:
    trace = read(TRACES[0])
    write(trace, tmp_path / "store")
    back = read(tmp_path / "store")
    assert back.operators.equals(trace.operators)
    assert back.activities.equals(trace.activities)
    (tmp_path / "store" / "launches.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInputError, match="launches"):
        read(tmp_path / "store")


@pytest.mark.usefixtures("on_threads")
def test_a_page_is_made() -> None:
    parts = PageParts(1, None)
    parts.add(Measured(analyze(read(TRACES[0]))), NativeFunctions.shipped())
    assert parts.page(None, []).traces[0].document.operators
