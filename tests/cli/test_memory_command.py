"""``opscope memory``: what people read, JSON by its schema, CSV, and what it refuses."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.command import WITHOUT_TORCH, opscope
from tests.snapshots import IN_MODULE, MIB, SEGMENTS_AT, MadeSnapshot, frame

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data" / "memory"


def words(*args: str, code: int = 0) -> str:
    result = opscope("memory", *args)
    assert result.returncode == code, result.stderr
    return result.stdout if code == 0 else result.stderr


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(words(str(path), "--format", "json"))
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schema" / "memory-1.json").read_text()))
    return found


def test_the_first_lines_say_the_peak_whose_it_is_and_what_to_do() -> None:
    lines = words(str(DATA / "activations.pickle.xz")).splitlines()
    assert lines[1] == "GPU 0: at most 4.132 GiB allocated (step 1, in the backward pass), 4.355 GiB reserved."
    assert lines[2].startswith("  Alive then: activations 3.720 GiB (90.0 %), temporaries 224.0 MiB (5.3 %)")
    assert "12 blocks keep 3.376 GiB of activations for the backward pass: saves 3.158 GiB" in lines[3]
    assert "torch.utils.checkpoint.checkpoint" in lines[4]
    assert "memory_programs.py" in lines[4]


def test_it_runs_where_pytorch_is_not_installed() -> None:
    result = opscope("memory", str(DATA / "kept_graphs.pickle.xz"), code=WITHOUT_TORCH)
    assert result.returncode == 0, result.stderr
    assert "328.1 MiB more in each step: whole graphs of earlier steps are kept" in result.stdout


@pytest.mark.parametrize("name", ["two_devices", "oom_fragments", "growing_cache", "graph_pools"])
def test_json_follows_its_schema(name: str) -> None:
    found = document(DATA / f"{name}.pickle.xz")
    assert found["schema"] == "opscope.memory/1"
    for device in found["devices"]:
        assert sum(entry["bytes"] for entry in device["peak"]) == device["peak_bytes"]


def test_csv_has_the_peak_in_bytes() -> None:
    rows = list(csv.DictReader(io.StringIO(words(str(DATA / "two_devices.pickle.xz"), "--format", "csv"))))
    assert {row["device"] for row in rows} == {"0", "1"}
    found = document(DATA / "two_devices.pickle.xz")
    assert sum(int(row["bytes"]) for row in rows) == sum(device["peak_bytes"] for device in found["devices"])


def test_a_small_history_is_told_as_it_was(tmp_path: Path) -> None:
    made = MadeSnapshot()
    made.event("segment_alloc", SEGMENTS_AT, 24 * MIB)
    weights = [frame("/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", 930, "_apply")]
    made.alloc(SEGMENTS_AT, 12 * MIB, [*weights, frame("/home/me/train.py", 4, "main")])
    made.alloc(SEGMENTS_AT + 12 * MIB, 10 * MIB, [*IN_MODULE, frame("/home/me/model.py", 30, "forward")])
    made.free(SEGMENTS_AT + 12 * MIB, 10 * MIB)
    made.segment(SEGMENTS_AT, 24 * MIB, [(12 * MIB, 12 * MIB, "active_allocated"), (12 * MIB, 0, "inactive")])
    found = document(made.write(tmp_path / "s.pickle"))
    (device,) = found["devices"]
    assert device["peak_bytes"] == 22 * MIB
    assert (device["reserved_bytes"], device["fragmentation_bytes"]) == (24 * MIB, 12 * MIB)
    assert [(entry["owner"], entry["line"], entry["bytes"]) for entry in device["peak"]] == [
        ("parameters", "train.py:4 (main)", 12 * MIB),
        ("temporaries", "model.py:30 (forward)", 10 * MIB),
    ]
    assert device["pins"][0]["line"] is None


def test_without_a_history_only_what_is_alive_is_said(tmp_path: Path) -> None:
    made = MadeSnapshot()
    made.segment(SEGMENTS_AT, 20 * MIB, [(8 * MIB, 8 * MIB, "active_allocated"), (12 * MIB, 0, "inactive")])
    text = words(str(made.write(tmp_path / "s.pickle")))
    assert "GPU 0: at most 8.000 MiB allocated, 20.00 MiB reserved." in text
    assert "No history was recorded" in text
    assert "_record_memory_history()" in text


def test_names_from_a_file_are_escaped(tmp_path: Path) -> None:
    made = MadeSnapshot()
    made.event("segment_alloc", SEGMENTS_AT, 20 * MIB)
    made.alloc(SEGMENTS_AT, 4 * MIB, [frame("/home/me/\x1b[31mtrain.py", 4, "ma\nin")])
    made.segment(SEGMENTS_AT, 20 * MIB, [(4 * MIB, 4 * MIB, "active_allocated"), (16 * MIB, 0, "inactive")])
    text = words(str(made.write(tmp_path / "s.pickle")))
    assert "\x1b" not in text
    assert "ma\nin" not in text


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "is empty"), (b"{}", "is no memory snapshot"), (b"\x80\x04cos\nsystem\n.", "nothing was run")],
)
def test_what_is_no_snapshot_ends_with_code_4(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    assert why in words(str(path), code=4)
    assert "No such file" in words(str(tmp_path / "missing.pickle"), code=4)


def test_analyze_names_the_command_for_a_snapshot(tmp_path: Path) -> None:
    made = MadeSnapshot()
    made.segment(SEGMENTS_AT, 20 * MIB, [(20 * MIB, 0, "inactive")])
    result = opscope("analyze", str(made.write(tmp_path / "s.pickle")))
    assert result.returncode == 4
    assert "opscope memory reads those" in result.stderr


# ---------------------------------------------------------------- two snapshots

ACTIVATIONS, CHECKPOINTED = (str(DATA / f"activations{part}.pickle.xz") for part in ("", ".fixed"))


def test_two_snapshots_are_compared_at_their_peaks() -> None:
    result = opscope("diff", ACTIVATIONS, CHECKPOINTED)
    assert result.returncode == 0, result.stderr
    assert (
        "GPU 0: The peak is 3.157 GiB lower (4.132 GiB, then 998.3 MiB): activations -3.220 GiB, temporaries +64.00 MiB"
        in result.stdout
    )
    assert "Only before:" in result.stdout
    assert "12 blocks keep 3.376 GiB of activations" in result.stdout


def test_a_difference_adds_up_and_follows_its_schema(tmp_path: Path) -> None:
    result = opscope("diff", ACTIVATIONS, CHECKPOINTED, "--format", "json", "--report", str(tmp_path / "report.md"))
    found = json.loads(result.stdout)
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schema" / "memory-diff-1.json").read_text()))
    (device,) = found["devices"]
    for rows in (device["owners"], device["lines"]):
        assert sum(row["before_bytes"] for row in rows) == device["before_peak_bytes"]
        assert sum(row["after_bytes"] for row in rows) == device["after_peak_bytes"]
    assert "The peak is 3.157 GiB lower" in (tmp_path / "report.md").read_text()


def test_a_line_that_moved_is_the_same_place(tmp_path: Path) -> None:
    paths = []
    for number, size in ((30, 4), (35, 6)):
        made = MadeSnapshot()
        made.event("segment_alloc", SEGMENTS_AT, 20 * MIB)
        made.alloc(SEGMENTS_AT, size * MIB, [frame("/home/me/train.py", number, "main")])
        left = (20 - size) * MIB
        made.segment(SEGMENTS_AT, 20 * MIB, [(size * MIB, size * MIB, "active_allocated"), (left, 0, "inactive")])
        paths.append(str(made.write(tmp_path / f"{number}.pickle")))
    (device,) = json.loads(opscope("diff", *paths, "--format", "json").stdout)["devices"]
    assert [(row["line"], row["before_bytes"], row["after_bytes"]) for row in device["lines"]] == [
        ("train.py:35 (main)", 4 * MIB, 6 * MIB)
    ]


def test_a_snapshot_is_not_compared_with_something_else() -> None:
    result = opscope("diff", ACTIVATIONS, str(ROOT / "examples" / "training_step.json.xz"))
    assert result.returncode == 2
    assert "compare two of a kind" in result.stderr
    assert opscope("diff", ACTIVATIONS, CHECKPOINTED, "--by", "kernel").returncode == 2
