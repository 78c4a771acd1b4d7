"""Archives of a job's traces: read as folders are, and refused where they are hostile."""

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from opscope.base.errors import BadInputError
from opscope.distributed.inputs import files_of
from opscope.readers.archives import is_archive, unpacked
from opscope.readers.reading import read
from opscope.runs.inputs import traces_below
from tests.tiny import inference

TRACE = inference().text().encode()


def zipped(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def taped(path: Path, files: Mapping[str, bytes]) -> Path:
    mode = "w:gz" if path.name.endswith("gz") else "w"
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


RANKS = {"job/rank0.json": TRACE, "job/rank1.json": TRACE, "job/notes.txt": b"by hand"}


@pytest.mark.parametrize("name", ["job.zip", "job.tar", "job.tar.gz", "job.tgz"])
def test_the_traces_of_an_archive_are_those_of_its_folder(tmp_path: Path, name: str) -> None:
    archive = (zipped if name.endswith("zip") else taped)(tmp_path / name, RANKS)
    assert is_archive(archive)
    for paths in ([file.path for file in traces_below([archive])], files_of([str(archive)])):
        assert [path.name for path in paths] == ["rank0.json", "rank1.json"]
        assert all(path.read_bytes() == TRACE for path in paths)


def test_traces_in_several_folders_are_found(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "job.zip", {f"node{node}/rank{node}.json": TRACE for node in (0, 1)})
    assert [file.path.name for file in traces_below([archive])] == ["rank0.json", "rank1.json"]


def test_the_archive_stays_as_it_is_and_nothing_is_put_beside_it(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "job.zip", RANKS)
    before = archive.read_bytes()
    list(traces_below([archive]))
    assert archive.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["job.zip"]


@pytest.mark.parametrize("name", ["../out.json", "/out.json", "a/../../out.json", "..\\out.json"])
@pytest.mark.parametrize("make", [zipped, taped])
def test_files_that_lead_out_are_refused(tmp_path: Path, name: str, make: object) -> None:
    path = tmp_path / ("job.zip" if make is zipped else "job.tar")
    archive = zipped(path, {name: TRACE}) if make is zipped else taped(path, {name: TRACE})
    with pytest.raises(BadInputError, match="leads out of the archive"):
        unpacked(archive)
    assert not (tmp_path.parent / "out.json").exists()


def test_what_systems_add_is_left_out_and_odd_names_are_read(tmp_path: Path) -> None:
    files = {"__MACOSX/job/._rank0.json": b"x", "job/.DS_Store": b"x", "job/._rank0.json": b"x"}
    archive = zipped(tmp_path / "job.zip", {**files, "job/2024-01-01T12:00:00.json": TRACE})
    assert [file.path.name for file in traces_below([archive])] == ["2024-01-01T12:00:00.json"]


def test_of_files_of_one_name_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "job.tar"
    for mode, content in (("w", b"{}"), ("a", TRACE)):
        with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
            entry = tarfile.TarInfo("rank0.json")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    assert [file.path.read_bytes() for file in traces_below([path])] == [TRACE]


def test_traces_are_shown_by_the_name_of_their_archive(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "job.zip", RANKS)
    assert [str(file) for file in traces_below([archive])] == [f"{archive}/job/rank{rank}.json" for rank in (0, 1)]
    (file, *_) = traces_below([archive])
    assert read(file.path).source.path == f"{archive}/job/rank0.json"


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    archive = taped(tmp_path / "job.tar.gz", {"rank0.json": TRACE})
    content = bytearray(archive.read_bytes())
    content[-6] ^= 0xFF  # in the checksum behind everything
    archive.write_bytes(content)
    with pytest.raises(BadInputError, match="cannot be unpacked"):
        unpacked(archive)


def test_a_description_that_is_larger_than_its_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        entry = tarfile.TarInfo("rank0.json")
        entry.pax_headers = {"comment": "x" * (1 << 20)}
        archive.addfile(entry)
    with pytest.raises(BadInputError, match="too long"):
        unpacked(path)


def test_links_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "job.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("rank0.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(BadInputError, match="holds no trace"):
        list(traces_below([path]))


def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "job.zip", {"rank0.json": bytes(80 << 20)})
    with pytest.raises(BadInputError, match="holds more than archives of traces do"):
        unpacked(archive)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and nothing else", b"\x1f\x8b\x08 no gzip"])
@pytest.mark.parametrize("name", ["job.zip", "job.tar.gz"])
def test_what_is_no_archive_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=rf"{name} cannot be unpacked"):
        unpacked(path)
