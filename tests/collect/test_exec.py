"""``opscope exec`` and what reads its recordings: real ones of an H200, and programs that play one with CUDA here."""

import contextlib
import json
import lzma
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from opscope.analysis.part import merged
from opscope.base.errors import BadInputError, EnvironmentLacksError, UsageError
from opscope.collect.cuda import command as building
from opscope.collect.cuda.command import Command, CudaCollector
from opscope.documents.stats import Stats
from opscope.machine.programs import Cupti, find_cupti
from opscope.readers.reading import read
from opscope.record.capture import Execution
from opscope.record.codec import decode
from opscope.runs.inputs import traces_below
from opscope.trace.model import Trace
from tests import collector
from tests.collector import FakeCuda
from tests.command import PYTHONPATH, fresh_opscope
from tests.conftest import DATA

RECORDED = DATA / "exec"


def _recorded(name: str) -> Trace:
    return read(RECORDED / f"{name}.cudarec.xz")


# ---------------------------------------------------------------- recordings of an H200


def test_a_graph_is_recorded_by_node() -> None:
    trace = _recorded("graph")
    kernels = trace.activities.filter(pl.col("kind").cast(pl.String) == "kernel")
    nodes = kernels.filter(pl.col("graph_node_id").is_not_null())
    assert (kernels.height, nodes.height) == (16, 15)  # five replays of three kernels, and one launched alone
    assert nodes.group_by("graph_node_id").len()["len"].to_list() == [5, 5, 5]
    assert nodes["correlation"].n_unique() == 5
    fills = trace.activities.filter(pl.col("kind").cast(pl.String) == "memset")
    assert fills["bytes"].sum() == 1_024 + 5 * 512
    failed = trace.launches.filter(pl.col("status") != 0).select(pl.col("name").cast(pl.String), "status")
    assert failed.rows() == [("cudaMalloc", 2), ("cudaGetLastError", 2)]
    (device,) = trace.devices
    assert (device.name, device.compute_capability, device.multiprocessors) == ("NVIDIA H200", "9.0", 132)


def test_unified_memory_moves_what_the_program_touches() -> None:
    """Two arrays of 4 MiB go to the device, and the one that the host looks at comes back."""
    moved = (
        _recorded("seed_add").migrations.group_by(pl.col("name").cast(pl.String)).agg(pl.col("bytes", "faults").sum())
    )
    sums = {name: (size, faults) for name, size, faults in moved.iter_rows()}
    assert sums["Unified memory HtoD"][0] == 2 * 4 * 2**20
    assert sums["Unified memory DtoH"][0] == 4 * 2**20
    assert sums["CPU page fault"][1] > 0
    assert sums["GPU page fault"][1] > 0


def test_names_of_streams_and_threads_are_kept() -> None:
    metadata = _recorded("nvtx").source.metadata
    assert metadata["stream 13"] == "copies"
    assert "main thread" in metadata.values()


def test_a_killed_program_says_what_is_lost() -> None:
    trace = _recorded("kill")
    assert trace.activities.height == 1_000  # of 1,010
    assert trace.source.not_recorded[0].startswith("The process ended without a last flush")


def test_torch_profiler_is_named() -> None:
    trace = _recorded("torchlater")
    assert trace.activities.height == 81
    assert trace.source.not_recorded[0].startswith("torch.profiler (libtorch_cpu.so) began to use CUPTI ")


def test_processes_of_a_run_become_one_trace_on_one_clock() -> None:
    first, second = _recorded("two0"), _recorded("two1")
    whole = merged([first, second])
    assert whole.activities.height == first.activities.height + second.activities.height
    assert whole.activities["start_ns"].is_sorted()
    assert len(whole.threads) == len(first.threads) + len(second.threads)
    # Calls of one process never launch activities of another, though both count from 1.
    launched = whole.activities.join(whole.launches, on="correlation", how="left")
    assert launched.height == whole.activities.height
    assert launched["name_right"].null_count() == 0
    own = {trace.source.metadata["process"]: trace for trace in (first, second)}
    for (process, _), launches in zip(whole.threads, range(len(whole.threads)), strict=True):
        mine = whole.launches.filter(pl.col("thread") == launches)
        assert mine.height == own[process].launches.height
    assert merged([first]) is first
    # The first process's graph is node by node what it was, and no node of the other's.
    assert whole.activities.filter(pl.col("graph_node_id").is_not_null())["graph_node_id"].n_unique() == 4
    streams = whole.activities.group_by("stream").len().sort("stream").rows()
    own_streams = [trace.activities.group_by("stream").len().sort("stream").rows() for trace in (first, second)]
    assert streams == [*own_streams[0], *((1_000_000 + stream, count) for stream, count in own_streams[1])]


def _on(trace: Trace, **changes: object) -> Trace:
    return replace(trace, devices=tuple(replace(device, **changes) for device in trace.devices))  # type: ignore[arg-type]


def test_devices_are_told_apart_by_what_they_are() -> None:
    """Under CUDA_VISIBLE_DEVICES every rank's device is number 0: the same one, or another."""
    first, second = _recorded("graph"), _recorded("seed_add")
    assert len(merged([first, second]).devices) == 1  # recorded on one GPU
    apart = merged([first, _on(second, uuid="another")])
    assert [device.index for device in apart.devices] == [0, 1]
    counts = dict(apart.activities.group_by("device").len().iter_rows())
    assert counts == {0: first.activities.height, 1: second.activities.height}
    assert set(apart.migrations["device"].drop_nulls().to_list()) == {1}
    again = merged([first, _on(second, uuid="another"), _on(_recorded("nvtx"), uuid="another")])
    assert len(again.devices) == 2


def test_ranges_come_back_from_an_export(tmp_path: Path) -> None:
    """Those that nest and those that need not, with their threads; streams have the names that they were given."""
    target = tmp_path / "out.json"
    assert fresh_opscope("export", str(RECORDED / "nvtx.cudarec.xz"), "--chrome", str(target)).returncode == 0
    before, after = _recorded("nvtx"), read(target)
    for table in ("annotations", "ranges", "launches"):
        own = getattr(before, table).select(pl.col("name").cast(pl.String), "start_ns", "duration_ns", "thread")
        assert (
            getattr(after, table)
            .select(pl.col("name").cast(pl.String), "start_ns", "duration_ns", "thread")
            .equals(own)
        )
    assert "stream 13 (copies)" in target.read_text()


def test_a_recording_travels(tmp_path: Path) -> None:
    """Converted, nothing is lost; exported, all processes stand in one file that says what each lacks."""
    source = tmp_path / "kill.cudarec.xz"
    shutil.copy(RECORDED / "kill.cudarec.xz", source)
    assert fresh_opscope("export", str(source), "--parquet", str(tmp_path / "store")).returncode == 0
    before, after = read(source), read(tmp_path / "store")
    assert after.source.not_recorded == before.source.not_recorded
    assert after.launches.equals(before.launches)
    assert fresh_opscope("export", str(source), "--chrome", str(tmp_path / "out.json")).returncode == 0
    exported = read(tmp_path / "out.json")
    assert exported.source.not_recorded[0] == before.source.not_recorded[0]
    assert "in the original alone" in exported.source.not_recorded[1]  # what waited for what
    assert exported.activities["duration_ns"].sum() == before.activities["duration_ns"].sum()
    found = fresh_opscope(
        "sql", "select count(*) as n, sum(status) as failed from launches", str(source), "--format", "json"
    )
    assert json.loads(found.stdout)["rows"] == [[before.launches.height, 0]]


# ---------------------------------------------------------------- broken recordings


@pytest.mark.parametrize("kept", [0, 13, 40, 700, 1_900, 2_500, 5_000])
def test_a_recording_that_is_cut_short_is_read_as_far_as_it_goes(tmp_path: Path, kept: int) -> None:
    whole = lzma.decompress((RECORDED / "graph.cudarec.xz").read_bytes())
    path = tmp_path / "cut.cudarec"
    path.write_bytes(whole[:kept])
    header = whole.index(b"\n\n") + 2
    if kept < header:
        with pytest.raises(BadInputError):
            read(path)
        return
    trace = read(path)
    assert trace.source.damage is not None or kept >= len(whole)
    assert trace.activities.height <= 24


def test_any_damage_is_refused_or_said(tmp_path: Path) -> None:
    """One byte in 37 is overwritten: no other error comes out."""
    whole = bytearray(lzma.decompress((RECORDED / "nvtx.cudarec.xz").read_bytes()))
    path = tmp_path / "damaged.cudarec"
    for at in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[at] ^= 0xA5
        path.write_bytes(damaged)
        try:
            trace = read(path)
        except BadInputError:
            continue
        assert trace.launches["duration_ns"].min() is None or trace.launches["duration_ns"].min() >= 0  # type: ignore[operator]


def test_files_of_a_later_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.cudarec"
    path.write_bytes(b"opscope.cuda/2\nstrings\n\n")
    with pytest.raises(BadInputError, match="another version"):
        read(path)


_LISTED = "facts key:u4 value:u4"


def _file(header: str, *blocks: tuple[int, bytes]) -> bytes:
    body = b"".join(struct.pack("<II", number, len(content)) + content for number, content in blocks)
    return b"opscope.cuda/1\n" + header.encode() + b"\n\n" + body


@pytest.mark.parametrize(
    "content",
    [
        _file(f"strings\n{_LISTED} key:u4"),  # a column twice
        _file(f"strings\nstrings\n{_LISTED}"),
        _file(_LISTED),  # no texts
        _file(f"strings\n{_LISTED}"),  # none of the tables
        _file("strings\nfacts key:f8"),
        b"opscope.cuda/1\nstrings\n" + b"x" * 70_000,
    ],
)
def test_files_of_odd_columns_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.cudarec"
    path.write_bytes(content)
    with pytest.raises(BadInputError):
        read(path)


@pytest.mark.parametrize(
    "table", ["clocks", "api", "kernels", "copies", "unified_memory", "devices", "range_ends", "events"]
)
def test_numbers_that_cannot_be_are_refused_or_left_out(tmp_path: Path, table: str) -> None:
    """All bits of a table's rows set: times of the year 2554, devices that no one has."""
    whole = bytearray(lzma.decompress((RECORDED / "nvtx.cudarec.xz").read_bytes()))
    header, at = whole.index(b"\n\n") + 2, 0
    names = [line.split(" ")[0] for line in whole[: header - 2].decode().split("\n")[1:]]
    at = header
    while at < len(whole):
        number, size = struct.unpack_from("<II", whole, at)
        if names[number] == table:
            whole[at + 8 : at + 8 + size] = b"\xff" * size
        at += 8 + size
    path = tmp_path / "odd.cudarec"
    path.write_bytes(whole)
    try:
        trace = read(path)
    except BadInputError:
        return
    assert trace.activities.height <= 3


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    return collector.build(tmp_path_factory.mktemp("fake"), sanitized=False)


@pytest.fixture
def collecting(cuda: FakeCuda) -> CudaCollector:
    return CudaCollector(find_cupti(None), cuda.collector)


def test_a_command_runs_as_it_would_and_is_recorded(cuda: FakeCuda, collecting: CudaCollector, tmp_path: Path) -> None:
    script = (
        f"RANK=0 WORLD_SIZE=2 {cuda.program} launches 3 & RANK=1 WORLD_SIZE=2 {cuda.program} launches 4; wait; exit 9"
    )
    found = collecting.collect(Command(("sh", "-c", script)), tmp_path / "raw_new")
    assert found.record.exit_code == 9
    traces = [read(file) for file in found.files]
    ranks = {json.loads(trace.source.metadata["distributedInfo"])["rank"]: trace.activities.height for trace in traces}
    assert ranks == {0: 3, 1: 4}
    assert found.record.recordings == tuple(file.name for file in found.files)


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, {"rank": 3, "world_size": 4}),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, {"rank": 1, "world_size": 2}),
        ({"PMIX_RANK": "5"}, {"rank": 5}),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "8"}, {"rank": 7, "world_size": 8}),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0"}, {"rank": 1, "world_size": 2}),
        ({"RANK": "9" * 5_000}, None),
    ],
)
def test_ranks_of_every_launcher(
    cuda: FakeCuda, tmp_path: Path, variables: dict[str, str], rank: dict[str, int] | None
) -> None:
    (trace,) = cuda.play(tmp_path, "launches", "1", **variables).traces
    found = trace.source.metadata.get("distributedInfo")
    assert (None if found is None else json.loads(found)) == rank


def test_signals_and_codes_are_the_programs(cuda: FakeCuda, collecting: CudaCollector, tmp_path: Path) -> None:
    assert collecting.collect(Command((str(cuda.program), "without CUDA")), tmp_path / "a").record.exit_code == 7
    assert collecting.collect(Command((str(cuda.program), "kill")), tmp_path / "b").record.exit_code == 128 + 9


def test_other_tools_run_without_the_collector_and_are_named(
    cuda: FakeCuda, collecting: CudaCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ncu").write_text('#!/bin/sh\necho "injection: $CUDA_INJECTION64_PATH $NVTX_INJECTION64_PATH"\n"$@"\n')
    (tools / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    said = tmp_path / "said"
    script = f"ncu {cuda.program} 'without CUDA' > {said}; {cuda.program} launches 2"
    for number, wanted in enumerate(
        (Command(("sh", "-c", script)), Command(("ncu", str(cuda.program), "launches", "2")))
    ):
        found = collecting.collect(wanted, tmp_path / f"raw{number}")
        assert [tool.program for tool in found.record.other_tools] == [str(tools / "ncu")]
        assert len(found.files) == (1 if number == 0 else 0)
    assert said.read_text() == "injection:  \n"


def test_what_cannot_be_run_is_said_before_anything_runs(collecting: CudaCollector, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        collecting.collect(Command(("no-such-program",)), tmp_path / "a")
    plain = tmp_path / "plain"
    plain.write_text("no program")
    with pytest.raises(UsageError, match="is not executable"):
        collecting.collect(Command((str(plain),)), tmp_path / "b")


def test_a_tool_that_is_injected_already_is_not_replaced(
    collecting: CudaCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/other.so")
    with pytest.raises(UsageError, match="another tool"):
        collecting.collect(Command(("true",)), tmp_path / "raw")


def test_without_a_compiler_or_cupti_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cupti = find_cupti(None)
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EnvironmentLacksError, match="cannot be run"):
        building.built_collector(cupti)
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentLacksError, match="no C\\+\\+ compiler"):
        building.built_collector(cupti)
    monkeypatch.setattr("opscope.machine.programs._all", lambda: iter(()))
    with pytest.raises(EnvironmentLacksError, match="CUPTI is not installed"):
        find_cupti(None)


def test_an_old_driver_gets_the_cupti_that_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    twelve, thirteen = (Cupti((Path("include"),), Path(f"libcupti.so.{n}"), v) for n, v in ((12, 26), (13, 130001)))
    monkeypatch.setattr("opscope.machine.programs._all", lambda: iter((thirteen, twelve)))
    assert find_cupti("580.159.04") is thirteen
    assert find_cupti("550.54.15") is twelve
    assert find_cupti(None) is thirteen
    with pytest.raises(EnvironmentLacksError, match="too old for the CUPTI here"):
        find_cupti("470.82.01")


def test_descriptors_and_odd_scripts_are_passed_on(collecting: CudaCollector, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    os.write(write_end, b"given")
    os.close(write_end)
    out = tmp_path / "out"
    script = tmp_path / "script"
    script.write_text(f"cat /dev/fd/{read_end} > {out}\nexit 3\n")  # says not by what it is run
    script.chmod(0o755)
    assert collecting.collect(Command((str(script),)), tmp_path / "raw").record.exit_code == 3
    assert out.read_text() == "given"


def test_a_request_that_comes_early_is_not_lost(
    collecting: CudaCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the program is being started."""
    start = subprocess.Popen

    def starting(*args: object, **given: object) -> object:
        child = start(*args, **given)  # type: ignore[call-overload]
        os.kill(os.getpid(), signal.SIGTERM)
        return child

    monkeypatch.setattr(subprocess, "Popen", starting)
    assert collecting.collect(Command(("sleep", "20")), tmp_path / "raw").record.exit_code == 128 + signal.SIGTERM


def test_a_request_that_comes_just_before_waiting_is_not_lost(
    collecting: CudaCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, so that it does not interrupt what the main one waits in."""
    start = subprocess.Popen

    def ask() -> None:
        time.sleep(0.3)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    def starting(*args: object, **given: object) -> object:
        threading.Thread(target=ask).start()
        return start(*args, **given)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", starting)
    assert collecting.collect(Command(("sleep", "20")), tmp_path / "raw").record.exit_code == 128 + signal.SIGTERM


def test_a_request_to_end_reaches_the_program(collecting: CudaCollector, tmp_path: Path) -> None:
    script = "trap 'exit 6' TERM HUP; kill -TERM $PPID; sleep 5 & wait"
    assert collecting.collect(Command(("sh", "-c", script)), tmp_path / "raw").record.exit_code == 6


def test_the_command_line(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = fresh_opscope(
        "exec", "--stats", "cuda_api_sum,cuda_gpu_sum", "-o", "run", "--", str(cuda.program), "everything"
    )
    assert done.returncode == 0, done.stderr
    assert "CUDA API (cuda_api_sum)" in done.stdout
    assert "`cudaMalloc` failed once with error 2." in done.stdout
    record = decode(tmp_path / "run" / "exec.json", Execution)
    assert record.command == (str(cuda.program), "everything")
    assert len(list(traces_below([tmp_path / "run"]))) == 1
    again = fresh_opscope("analyze", "run", "--stats", "all", "--format", "json")
    stats = json.loads(again.stdout)
    assert stats["schema"] == Stats(processes=(), reports=()).schema
    assert stats["reports"][0]["name"] == "cuda_api_sum"
    assert fresh_opscope("analyze", "run").returncode == 0
    taken = fresh_opscope("exec", "-o", "run", str(cuda.program))
    assert (taken.returncode, "--overwrite" in taken.stderr) == (2, True)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "raw" / "changed.cudarec").write_text("mine")
    before = set(record.recordings)
    replaced = fresh_opscope("exec", "-o", "run", "--overwrite", "--", str(cuda.program), "everything")
    assert replaced.returncode == 0, replaced.stderr
    left = {path.name for path in (tmp_path / "run" / "raw").iterdir()}
    assert not left & before
    assert "changed.cudarec" in left
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    nothing = fresh_opscope("exec", sys.executable, "-c", "print('hello'); raise SystemExit(4)")
    assert (nothing.returncode, nothing.stdout) == (4, "hello\n")
    assert "was seen to use CUDA or NVTX: nothing was recorded" in nothing.stderr
    assert not (tmp_path / "profiling_results").exists()
    assert fresh_opscope("exec", "--stats", "no_such_sum", "true").returncode == 2


def test_what_was_recorded_is_read_where_opscope_was_killed(cuda: FakeCuda, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-m", "opscope", "exec", "-o", "run", "--redact", "seed", "--", "sh", "-c",
               f"{cuda.program} everything; sleep 60", "--token", "s3cr3tt0ken", "--seed", "77777777"]  # fmt: skip
    running = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    until = time.monotonic() + 60
    while not list(tmp_path.glob("run/raw/*.cudarec")) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1)
    running.kill()
    running.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    record = decode(tmp_path / "run" / "exec.json", Execution)
    assert record.cut_off
    assert record.recordings == ()
    assert "s3cr3tt0ken" not in (tmp_path / "run" / "exec.json").read_text()
    assert "77777777" not in (tmp_path / "run" / "exec.json").read_text()
    for path in tmp_path.glob("run/raw/*"):
        assert b"s3cr3tt0ken" not in path.read_bytes()
    assert len(list(traces_below([tmp_path / "run"]))) == 1
    assert fresh_opscope("analyze", "run", cwd=tmp_path).returncode == 0
    listed = json.loads(fresh_opscope("runs", ".", "--format", "json", cwd=tmp_path).stdout)["runs"]
    assert "was cut off" in listed[0]["outcome"]


def test_the_exit_code_is_the_programs_whatever_it_does_to_its_folder(cuda: FakeCuda, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = fresh_opscope(
        "exec", "-o", "../run", "sh", "-c", f"{cuda.program} everything; rm -rf {gone}; exit 7", cwd=gone
    )
    assert done.returncode == 7, done.stderr
    assert decode(tmp_path / "run" / "exec.json", Execution).exit_code == 7
    odd = subprocess.run(
        [sys.executable, "-m", "opscope", "exec", "-o", "odd", "sh", "-c", "exit 3", b"\xff\xfe"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PYTHONPATH}, capture_output=True, check=False,
    )  # fmt: skip
    assert odd.returncode == 3, odd.stderr
    assert decode(tmp_path / "odd" / "exec.json", Execution).command[-1] == "\ufffd\ufffd"
