"""What PyTorch says of collectives: read alike by both readers, kept by selections, stores and exports."""

import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import polars as pl
import pytest

from opscope.analysis.structure.selection import select_time
from opscope.readers import parquet
from opscope.readers.native import library as native
from opscope.readers.reading import read
from opscope.trace.model import Trace
from tests.export.test_export import files
from tests.kineto import KinetoTrace

TOLD = {
    "Collective name": "allreduce", "In msg nelems": 4, "Out msg nelems": 8, "Group size": 2, "dtype": "Float",
    "Process Group Name": "7", "Process Group Description": "dp", "Process Group Ranks": "[0, 3]", "Seq": 9,
    "In split size": "[1, 3]", "Out split size": [], "Rank": 1, "Global rank start": 0, "Global rank stride": 3,
    "Src Rank": 0, "Dst Rank": 1,
}  # fmt: skip


def made(**changed: object) -> KinetoTrace:
    trace = KinetoTrace()
    told = {**TOLD, **changed}
    trace.operator("record_param_comms", 1_000, 500, **told, **{"External id": 5})
    launch = trace.launch(1_100, 100, **{"External id": 5})
    trace.kernel("ncclDevKernel", 2_000, 3_000, launch, **told, **{"External id": 5})
    trace.operator("aten::add", 9_000, 500, **{"External id": 6, "Rank": 3})  # no collective
    return trace


@pytest.fixture(params=["compiled", "python"])
def reader(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled" and native.load_kineto() is None:
        pytest.skip("the compiled reader was not built")
    with mock.patch.object(native, "load_kineto", native.load_kineto if request.param == "compiled" else lambda: None):
        yield


def rows(trace: Trace) -> list[dict[str, object]]:
    return trace.communications.with_columns(pl.col(pl.Categorical).cast(pl.String)).to_dicts()


KEPT = {
    "collective": "allreduce", "external_id": 5, "group": "7", "group_description": "dp", "group_ranks": "[0, 3]",
    "group_size": 2, "first_rank": 0, "rank_stride": 3, "group_rank": 1, "sequence": 9, "element_type": "Float",
    "elements_in": 4, "elements_out": 8, "splits_in": "[1, 3]", "splits_out": "[]", "source": 0, "destination": 1,
}  # fmt: skip
CALL = {**KEPT, "start_ns": 1_000, "duration_ns": 500, "correlation": None}
KERNEL = {**KEPT, "start_ns": 2_000, "duration_ns": 3_000, "correlation": 1}


@pytest.mark.usefixtures("reader")
def test_a_collective_has_a_row_for_its_call_and_one_for_its_kernel(tmp_path: Path) -> None:
    trace = read(made().write(tmp_path / "trace.json"))
    assert rows(trace) == [CALL, KERNEL]
    assert trace.activities["bytes"].to_list() == [32]


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("name", [None, 3, ["allreduce"]])
def test_what_names_no_collective_is_none(tmp_path: Path, name: object) -> None:
    assert rows(read(made(**{"Collective name": name}).write(tmp_path / "trace.json"))) == []


@pytest.mark.usefixtures("reader")
def test_odd_values_are_unknown_and_the_rest_is_read(tmp_path: Path) -> None:
    odd = {
        "Group size": "many",
        "Process Group Ranks": [0, 3],
        "dtype": 5,
        "Seq": 1 << 70,
        "Process Group Name": "d\u00fc",
    }
    (call, _) = rows(read(made(**odd).write(tmp_path / "trace.json")))
    changed = {"group_size": None, "group_ranks": "[0, 3]", "element_type": None, "sequence": None, "group": "d\u00fc"}
    assert call == {**CALL, **changed}


def test_selections_keep_the_calls_and_kernels_that_they_keep_elsewhere(tmp_path: Path) -> None:
    trace = read(made().write(tmp_path / "trace.json"))
    assert rows(select_time(trace, 0, 1_600)) == [CALL, KERNEL]  # the kernel was launched within
    assert rows(select_time(trace, 1_600, 10_000)) == []


def test_stores_and_exports_keep_them(tmp_path: Path) -> None:
    trace = read(made().write(tmp_path / "trace.json"))
    parquet.write(trace, tmp_path / "store")
    assert rows(read(tmp_path / "store")) == [CALL, KERNEL]
    (tmp_path / "again.json").write_bytes(files(trace)[0])
    assert rows(read(tmp_path / "again.json")) == [CALL, KERNEL]


def test_stores_of_earlier_versions_have_none(tmp_path: Path) -> None:
    trace = read(made().write(tmp_path / "trace.json"))
    parquet.write(trace, tmp_path / "store")
    manifest = tmp_path / "store" / "store.json"
    content = json.loads(manifest.read_text())
    del content["rows"]["communications"], content["digests"]["communications"]
    manifest.write_text(json.dumps(content))
    (tmp_path / "store" / "communications.parquet").unlink()
    assert rows(read(tmp_path / "store")) == []
