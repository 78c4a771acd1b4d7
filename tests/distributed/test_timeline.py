"""Whether some steps of all ranks come out as one trace, on one clock, with nothing of one rank in another."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from opscope.analysis.structure.step_work import step_table
from opscope.base.errors import UsageError
from opscope.distributed.job import Job as ReadJob
from opscope.distributed.timeline import one_timeline
from tests.command import opscope
from tests.conftest import DATA
from tests.distributed.recorded import summaries
from tests.jobs import Job, Lateness, Shape, write_job

MANY = 1 << 30


def test_a_made_job_is_one_trace_on_the_true_clock(tmp_path: Path) -> None:
    job = Job(Shape(4), {2: Lateness("kernels", 3_000_000, (3,))}, steps=4, per_host=1, jitter_ns=20_000, bias_ns=0)
    ranks = summaries(write_job(job, tmp_path))
    trace, untied = one_timeline(ReadJob(ranks, 4, [], {}), None, MANY)
    assert untied == []
    assert step_table(trace)["step"].to_list() == [3] * 4 + [4] * 4
    assert [one.name for one in trace.devices] == [f"rank {rank}: NVIDIA H200" for rank in range(4)]
    assert {process for process, _ in trace.threads} == {json.dumps(f"rank {rank}") for rank in range(4)}
    # Hosts are 300 us apart; on one clock all leave a collective within the noise of the job.
    nccl = trace.activities.filter(pl.col("name").cast(pl.String).str.starts_with("nccl")).sort("start_ns")
    ends = (nccl["start_ns"] + nccl["duration_ns"]).to_numpy().reshape(-1, 4).copy()
    ends.sort(axis=1)
    assert nccl.height == 2 * 3 * 4
    assert (ends.max(axis=1) - ends.min(axis=1)).max() < 5_000
    assert trace.operators["start_ns"].min() == 0 or trace.annotations["start_ns"].min() == 0
    # Calls and kernels of one rank stay linked to each other alone.
    linked = trace.activities.join(trace.launches.select("correlation", "thread"), on="correlation", how="left")
    assert linked.height == trace.activities.height
    threads = {number: process for number, (process, _) in enumerate(trace.threads)}
    assert all(
        threads[thread] == json.dumps(f"rank {trace.devices[device].name.split(':')[0].removeprefix('rank ')}")
        for device, thread in linked.select("device", "thread").rows()
    )


def test_named_steps_are_written_and_others_refused(tmp_path: Path) -> None:
    ranks = summaries(write_job(Job(Shape(2)), tmp_path))
    trace, _ = one_timeline(ReadJob(ranks, 2, [], {}), (2, 2), MANY)
    assert step_table(trace)["step"].to_list() == [2, 2]
    with pytest.raises(UsageError, match="no such step"):
        one_timeline(ReadJob(ranks, 2, [], {}), (9, 9), MANY)


def test_the_command_writes_what_viewers_and_opscope_read(tmp_path: Path) -> None:
    shutil.copytree(DATA / "ranks" / "late_backward_kernels", tmp_path / "job")
    done = opscope("export", "--ranks", str(tmp_path / "job"), "-o", str(tmp_path / "all.json"), "--steps", "4..5")
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "all.json").read_text())
    names = [event["args"]["name"] for event in content["traceEvents"] if event["name"] == "process_name"]
    assert [name for name in names if "rank 1" in name]
    assert "baseTimeNanoseconds" not in content
    again = opscope("analyze", str(tmp_path / "all.json"), "--format", "json")
    assert again.returncode == 0, again.stderr
    assert len(json.loads(again.stdout)["devices"]) == 2
    refused = opscope("export", "--ranks", str(tmp_path / "job"), "-o", str(tmp_path / "all.json"))
    assert refused.returncode == 2
    assert "--overwrite" in refused.stderr
