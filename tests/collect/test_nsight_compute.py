"""What is asked of Nsight Compute, and what becomes of its refusals, with a program that answers in its place."""

from pathlib import Path

import pytest

from opscope.base.errors import EnvironmentLacksError
from opscope.collect.nsight_compute import NsightCompute
from opscope.record.counters import OperatorCall
from tests.conftest import DATA

CALL = OperatorCall("aten::addmm", "", "[[2], [2, 2], [2, 2]]", '["float", "float", "float"]', None, None)


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Put a program called ncu on the PATH; it notes the metrics of each call, and then does what the body says."""
    asked = folder / "asked"
    program = folder / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'while [ $# -gt 0 ]; do case "$1" in --log-file) log=$2;; --metrics) metrics=$2;; esac; shift; done\n'
        f'echo "$metrics" >> {asked}\n{body}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return asked


def test_operations_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in(tmp_path, monkeypatch, f'cp {DATA / "counters" / "addmm.csv"} "$log"')
    (found,) = NsightCompute().collect(CALL, tmp_path).record
    assert found.duration_ns == 58_304
    (metrics,) = asked.read_text().splitlines()
    assert "dram__bytes_read.sum" in metrics
    assert "dram__bytes(_op)?_(read|write)" in metrics
    assert "sm__ops_path_tensor_src_" in metrics


def test_an_ncu_without_metrics_of_operations_measures_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = DATA / "counters" / "addmm.csv"
    asked = stand_in(
        tmp_path,
        monkeypatch,
        f'case "$metrics" in *regex:*) echo "==ERROR== Failed to find metric regex:x" > "$log"; exit 1;; esac\n'
        f'cp {recorded} "$log"',
    )
    (found,) = NsightCompute().collect(CALL, tmp_path).record
    assert found.dram_read_bytes == 5_578_240
    assert found.operations == {}
    assert found.operations_not_counted
    first, second = asked.read_text().splitlines()
    assert "regex:" in first
    assert "regex:" not in second
    assert "dram__bytes_read.sum" in second


def test_names_that_a_device_has_not_are_asked_for_as_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that spells the bytes of its memory in another way, and lacks a reason of stalls."""
    recorded = tmp_path / "recorded.csv"
    recorded.write_text(
        (DATA / "counters" / "addmm.csv").read_text().replace("dram__bytes_read", "dram__bytes_op_read")
    )
    asked = stand_in(
        tmp_path,
        monkeypatch,
        'case "$metrics" in *,gpu__time_duration.sum,*|gpu__time_duration.sum,*) '
        'echo "==ERROR== Failed to find metric x" > "$log"; exit 1;; esac\n'
        f'cp {recorded} "$log"',
    )
    (found,) = NsightCompute().collect(CALL, tmp_path).record
    assert found.dram_read_bytes == 5_578_240
    assert asked.read_text().splitlines()[2].startswith("regex:^gpu__time_duration[.]sum$,")


def test_a_refusal_of_another_kind_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in(tmp_path, monkeypatch, 'echo "==ERROR== ERR_NVGPUCTRPERM - no permission" > "$log"; exit 1')
    with pytest.raises(EnvironmentLacksError, match=r"no kernel of aten::addmm: ==ERROR== ERR_NVGPUCTRPERM"):
        NsightCompute().collect(CALL, tmp_path)
    assert len(asked.read_text().splitlines()) == 1
