"""opscope.profile from Python: a step, a module, a with block. On the CPU."""

import gc
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import opscope
from opscope.base.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.base.units import format_ns

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def small() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def test_a_step_gives_a_run_with_all_its_figures() -> None:
    left = torch.randn(64, 64)
    run = opscope.profile(lambda: left @ left, device="cpu", active=2, batch_size=64, name="product")
    assert run.record.benchmark is not None
    assert len(run.record.benchmark.wall_ns) >= 6
    assert run.record.cold_step_ns is not None
    assert run.statistics.step_count == 2
    assert run.analysis.operators.filter(pl.col("name") == "aten::mm")["calls"].item() == 2
    assert run.trace.operators.height > 0
    assert "what the step does itself" in run.report()
    assert run.analysis.trust.verdict != "fail"
    shown = repr(run)
    assert shown.startswith("Run of product in ")
    assert run.statistics.step_time is not None
    assert f"unprofiled step {format_ns(run.statistics.step_time.ns)} (" in shown
    assert len(shown) < 2000
    assert "aten::mm" in run._repr_html_()


def test_a_module_is_run_on_its_inputs_in_each_mode() -> None:
    inference = opscope.profile(small(), torch.randn(4, 8), device="cpu", benchmark=False)
    names = set(inference.analysis.operators["name"])
    assert "aten::addmm" in names
    assert not any("Backward" in name for name in names)
    training = opscope.profile(small(), torch.randn(4, 8), device="cpu", benchmark=False, mode="training")
    assert any("AddmmBackward" in name for name in training.analysis.operators["name"])
    assert inference.record.benchmark is None
    assert inference.statistics.measurement.benchmark_reason


def test_a_temporary_run_goes_with_its_object_and_a_saved_one_stays(tmp_path: Path) -> None:
    run = opscope.profile(small(), torch.randn(4, 8), device="cpu", benchmark=False, name="kept")
    folder = run.directory
    saved = run.save(tmp_path / "saved")
    assert folder.is_dir()
    del run
    assert not folder.exists()
    assert {path.name for path in saved.iterdir()} >= {
        "manifest.json",
        "kept_trace_default.json",
        "profiling_stats_default.json",
        "kernel_analysis_report_default.md",
        "comparison.json",
    }


def test_an_output_directory_is_a_run_directory_like_any_other(tmp_path: Path) -> None:
    from tests.command import WITHOUT_TORCH
    from tests.command import opscope as command

    opscope.profile(small(), torch.randn(4, 8), device="cpu", benchmark=False, output_dir=tmp_path / "run")
    assert command("export", "--reports", str(tmp_path / "run"), code=WITHOUT_TORCH).returncode == 0


def test_a_folder_of_the_users_outlives_the_run_and_a_temporary_one_does_not(tmp_path: Path) -> None:
    left = torch.randn(8, 8)

    def profiled(folder: Path | None) -> Path:
        with opscope.profile(device="cpu", output_dir=folder) as session, session.step():
            left @ left
        whole = opscope.profile(lambda: left @ left, device="cpu", benchmark=False, output_dir=folder and folder / "2")
        assert whole.directory.is_dir()
        return session.run.directory

    for folder in (tmp_path / "run", None):
        path = profiled(folder)
        gc.collect()
        assert path.is_dir() == (folder is not None)
        assert folder is None or (path == folder and (folder / "2" / "manifest.json").is_file())


def test_what_cannot_be_profiled_is_refused() -> None:
    with pytest.raises(UsageError, match="a module needs its inputs"):
        opscope.profile(small(), device="cpu")
    with pytest.raises(UsageError, match="inputs belong to a module"):
        opscope.profile(lambda: None, torch.randn(1), device="cpu")
    with pytest.raises(UsageError, match="cannot be applied to a step"):
        opscope.profile(lambda: None, device="cpu", mode="training")
    with pytest.raises(EnvironmentLacksError, match="device cuda:63 is not there"):
        opscope.profile(lambda: None, device="cuda:63")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "train"}, "mode takes 'inference', 'training', not 'train'"),
        ({"dtype": "fp32"}, "dtype takes 'float32'"),
        ({"activities": ("gpu",)}, "activities takes 'cpu', 'cuda', not 'gpu'"),
        ({"activities": ()}, "activities takes 'cpu', 'cuda'"),
        ({"device": "tpu"}, "a device is auto, cpu, cuda or cuda:N, not 'tpu'"),
        ({"active": 0}, "active takes whole numbers from 1 on, not 0"),
        ({"wait": -1}, "wait takes whole numbers from 0 on, not -1"),
        ({"batch_size": 2.5}, "batch_size takes whole numbers, not 2.5"),
    ],
)
def test_settings_are_checked_before_anything_runs(settings: dict[str, Any], message: str) -> None:
    def never() -> None:
        raise AssertionError("the step was run")

    with pytest.raises(UsageError, match=message):
        opscope.profile(never, **{"device": "cpu", **settings})


@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"mode": "training"}, {}])
def test_the_callers_module_stays_as_it_is(settings: dict[str, Any]) -> None:
    model = small()
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    opscope.profile(model, torch.randn(4, 8), device="cpu", benchmark=False, **settings)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model] == [False, True, True]


def test_a_module_is_measured_in_its_own_data_type() -> None:
    run = opscope.profile(small().to(torch.bfloat16), torch.randn(4, 8).bfloat16(), device="cpu", benchmark=False)
    assert run.record.workload.dtype == "bfloat16"
    assert "| Data type | bfloat16 |" in run.report()
    types = run.analysis.shapes.filter(pl.col("name") == "aten::addmm")["input_types"].cast(pl.String).item(0)
    assert "c10::BFloat16" in types


def test_there_must_be_something_to_train() -> None:
    frozen = small().requires_grad_(False)
    with pytest.raises(UsageError, match="nothing to train"):
        opscope.profile(frozen, torch.randn(4, 8), device="cpu", mode="training")
    with pytest.raises(UsageError, match="float32 parameters"):
        opscope.profile(small().double(), torch.randn(4, 8), device="cpu", mode="training", dtype="bfloat16")


def test_a_step_that_only_makes_a_generator_or_coroutine_is_refused() -> None:
    def generates() -> Any:
        yield torch.ones(8)

    async def awaits() -> Any:
        return torch.ones(8)

    for step, kind in ((generates, "generator"), (awaits, "coroutine")):
        with pytest.raises(UsageError, match=f"returned a {kind}, so nothing was run"):
            opscope.profile(step, device="cpu")


@pytest.mark.slow
def test_one_profiler_at_a_time() -> None:
    left = torch.randn(8, 8)
    with opscope.profile(device="cpu") as session:
        with session.step():
            left @ left
        with pytest.raises(UsageError, match="already running"), opscope.profile(device="cpu"):
            pass
        with pytest.raises(UsageError, match="already running"):
            opscope.profile(lambda: left @ left, device="cpu")
    assert "aten::mm" in set(session.run.analysis.operators["name"])


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say which threads the program has beside the main one; tests before this one may have left some."""

    def beside(*others: threading.Thread) -> None:
        monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), *others])

    return beside


@pytest.fixture
def running() -> Iterator[threading.Thread]:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, daemon=True)
    thread.start()
    yield thread
    ended.set()
    thread.join()


def test_a_program_with_threads_has_one_profiler_at_a_time_too(
    threads: Callable[..., None], running: threading.Thread
) -> None:
    """Then all threads are recorded, of which PyTorch's own question whether a profiler runs knows nothing."""
    threads(running)
    with opscope.profile(device="cpu") as session:
        torch.ones(8) + 1
        with pytest.raises(UsageError, match="already running"), opscope.profile(device="cpu"):
            pass
        for switch in (session.start, session.stop):
            with pytest.raises(UsageError, match="threads of its own"):
                switch("cpu")
    assert "aten::add" in set(session.run.analysis.operators["name"])


def test_threads_of_a_notebook_do_not_count(threads: Callable[..., None]) -> None:
    kind = type("Heartbeat", (threading.Thread,), {"__module__": "ipykernel.heartbeat", "is_alive": lambda _: True})
    threads(kind())
    with opscope.profile(device="cpu") as session:
        session.stop("cpu")
        torch.relu(torch.ones(8))
        session.start("cpu")
        torch.ones(8) + 1
    assert "aten::relu" not in set(session.run.analysis.operators["name"])


def test_whole_numbers_of_any_kind_are_numbers(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    left = torch.randn(8, 8)
    run = opscope.profile(lambda: left @ left, device="cpu", benchmark=False, batch_size=numpy.int64(4), active=True,
                          output_dir=tmp_path / "r")  # fmt: skip
    assert run.record.configuration.count("batch_size") == 4
    assert run.statistics.step_count == 1
    assert run.save(tmp_path / "r") == tmp_path / "r"


def test_collection_is_switched_inside_the_block_only() -> None:
    with pytest.raises(OpscopeError, match="inside the with block"):
        opscope.profile(device="cpu").start("cpu")


def test_steps_within_steps_are_not_counted() -> None:
    left = torch.randn(8, 8)
    with opscope.profile(device="cpu") as session, session.step():
        for _ in range(2):
            with session.step():
                left @ left
    assert session.run.statistics.step_count == 1


def test_settings_of_a_workload_do_not_apply_to_a_with_block() -> None:
    with pytest.raises(UsageError, match="without a workload"):
        opscope.profile(mode="training", device="cpu")  # type: ignore[call-overload]


def test_failures_leave_no_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        opscope.profile(fails, device="cpu")
    with pytest.raises(ZeroDivisionError), opscope.profile(device="cpu"):
        fails()
    opscope.profile(device="cpu")  # never entered
    assert list(tmp_path.glob("opscope-*")) == []


def test_a_session_is_for_one_block() -> None:
    with opscope.profile(device="cpu") as session:
        torch.ones(8) + 1
    with pytest.raises(OpscopeError, match="one with block"), session:
        pass


def test_a_with_block_collects_only_what_is_switched_on(threads: Callable[..., None]) -> None:
    threads()
    left = torch.randn(64, 64)
    with opscope.profile(device="cpu", name="parts") as session:
        session.stop("cpu")
        torch.relu(left)
        session.start("cpu")
        with session.step():
            left @ left
        session.stop("cpu")
        torch.sigmoid(left)
    names = set(session.run.analysis.operators["name"])
    assert "aten::mm" in names
    assert not names & {"aten::relu", "aten::sigmoid"}
    assert [step.number for step in session.run.analysis.steps] == [1]
    assert session.run.record.options.schedule is None


def test_a_with_block_needs_no_steps() -> None:
    with opscope.profile(device="cpu") as session:
        torch.ones(8) + 1
    assert session.run.statistics.step_count == 0
    assert session.run.statistics.window.kind == "host window"


def test_a_session_has_no_result_before_it_ends_or_when_it_fails() -> None:
    session = opscope.profile(device="cpu")
    with pytest.raises(OpscopeError, match="no result yet"):
        _ = session.run
    with pytest.raises(ZeroDivisionError), session:
        _ = 1 / 0
    with pytest.raises(OpscopeError, match="no result yet"):
        _ = session.run


def test_activities_must_be_named_to_be_switched() -> None:
    with opscope.profile(device="cpu") as session, pytest.raises(UsageError, match="name the activities"):
        session.start()


def test_tables_become_pandas_frames_with_the_extra() -> None:
    pytest.importorskip("pandas")
    run = opscope.profile(small(), torch.randn(4, 8), device="cpu", benchmark=False)
    frame = run.analysis.operators.to_pandas()
    assert list(frame["name"]) == run.analysis.operators["name"].to_list()


def test_figures_equal_pytorchs_own_table() -> None:
    """Calls and self CPU time of every operator of a training step, against ``key_averages()`` of the same profile."""
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(32, 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        analysis = opscope.analyze(opscope.read(path), every_step=True)  # PyTorch leaves out no odd ones
    ours = {row["name"]: row for row in analysis.operators.iter_rows(named=True)}
    theirs = {row.key: row for row in profiler.key_averages() if row.key in ours}
    assert len(theirs) > 20
    for name, row in theirs.items():
        assert ours[name]["calls"] == row.count, name
        assert ours[name]["self_cpu_ns"] == pytest.approx(row.self_cpu_time_total * 1000, abs=50 + 2 * row.count), name
