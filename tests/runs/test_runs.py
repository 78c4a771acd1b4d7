"""Results are never lost: a folder for every run; what opscope did not write is not removed, nor what it reads."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from opscope.base import files
from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.runs import folders as runs
from opscope.runs.store import RunDirectory
from tests.command import ROOT, fresh_opscope, opscope, toy
from tests.conftest import DATA
from tests.kineto import KinetoTrace

CHANGES = DATA / "changes"
GPT2 = DATA / "traces" / "gpt2_train_amp_stacks.json.gz"
STEP = ("--skip-benchmark", "--active", "1")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------- a folder for every run


@pytest.mark.torch
def test_every_run_has_a_folder_and_a_typo_removes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copy(toy("step").partition(":")[0], tmp_path / "mine.py")
    first = opscope("profile", "mine.py:step", "--active", "1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    results = tmp_path / "profiling_results"
    (made,) = (path for path in results.iterdir() if not path.is_symlink())
    assert made.name.startswith("step-20")
    assert (results / "latest").resolve() == made.resolve()
    before = contents(made)
    typo = opscope("profile", "mien.py:step", *STEP, cwd=tmp_path)
    assert typo.returncode == 2
    assert "is mine.py meant?" in typo.stderr
    failing = opscope("profile", "mine.py:no_such_function", *STEP, cwd=tmp_path)
    assert failing.returncode == 2
    assert contents(made) == before
    assert (results / "latest").resolve() == made.resolve()
    second = opscope("profile", "mine.py:step", "--active", "1", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert contents(made) == before
    listed = json.loads(opscope("runs", "--format", "json", cwd=tmp_path).stdout)["runs"]
    assert [run["target"] for run in listed] == ["mine.py:step", "mine.py:no_such_function", "mine.py:step"]
    assert [run["step_ns"] is None for run in listed] == [False, True, False]
    assert "host_only" in opscope("runs", cwd=tmp_path).stdout
    compared = opscope("diff", "--format", "json", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    document = json.loads(compared.stdout)
    assert (document["before"], document["after"]) == (listed[0]["folder"], listed[2]["folder"])


@pytest.mark.torch
def test_a_folder_with_a_name_is_replaced_only_where_that_was_said(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = ("profile", toy("step"), *STEP, "--output-dir", str(tmp_path / "r"), "--batch-sizes")
    assert opscope(*run, "1", "2").returncode == 0
    before = contents(tmp_path / "r")
    unasked = opscope(*run, "3")
    assert unasked.returncode == 2
    assert "--resume" in unasked.stderr
    assert "--overwrite" in unasked.stderr
    # The first configuration of the new run fails: what is there stays.
    failing = opscope(
        "profile", toy("ill"), *STEP, "--batch-sizes", "3", "--output-dir", str(tmp_path / "r"), "--overwrite"
    )
    assert failing.returncode == 1, failing.stderr
    kept = contents(tmp_path / "r")
    assert {name: kept[name] for name in before} == before
    (log,) = (name for name in kept if name not in before)  # it is named, and replaces none
    assert log in failing.stderr
    (tmp_path / "r" / "notes.txt").write_text("mine")
    assert opscope(*run, "3", "--overwrite").returncode == 0
    after = contents(tmp_path / "r")
    assert after["notes.txt"] == b"mine"
    assert "profiling_stats_bs3.json" in after
    assert not [name for name in after if "bs1" in name or "bs2" in name]
    (tmp_path / "r" / "comparison.md").write_text("changed by hand")
    changed = opscope(*run, "3", "--overwrite")
    assert changed.returncode == 2
    assert "comparison.md has been changed" in changed.stderr


@pytest.mark.parametrize("victim", ["src/main.py", ".git/config", "important.log"])
@pytest.mark.parametrize("command", ["profile", "report"])
def test_a_manifest_of_anybodys_deletes_and_writes_nothing(victim: str, command: str, tmp_path: Path) -> None:
    """A manifest names a file of its user's as one of opscope's, with its digest."""
    folder = tmp_path / "r"
    shutil.copytree(CHANGES / "before", folder)
    (folder / victim).parent.mkdir(exist_ok=True)
    (folder / victim).write_text("precious")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["entries"][0]["files"]["cycles"][0]["statistics"] = victim
    manifest["digests"] = {victim: files.digest_of(folder / victim)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if command == "report":
        done = opscope("export", "--reports", str(folder))
        assert done.returncode == 4
    else:
        for how in ("--overwrite", "--resume"):
            done = opscope("profile", toy("step"), *STEP, "--output-dir", str(folder), how)
            assert done.returncode in (2, 4), done.stderr
    assert (folder / victim).read_text() == "precious"


def test_only_what_still_is_as_opscope_wrote_it_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    shutil.copytree(CHANGES / "before", folder)
    directory = RunDirectory(folder)
    manifest = directory.read_manifest()
    with pytest.raises(UsageError, match="did not note what its files hold"):
        directory.replaceable()
    manifest = directory.with_digests(manifest, manifest.entries)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "log_bs8.txt").write_text("mine")
    name = next(name for name in manifest.digests if name.startswith("raw/capture"))
    (outside / Path(name).name).write_bytes((folder / name).read_bytes())
    (folder / "raw").rename(folder / "raw-moved")
    (folder / "raw").symlink_to(outside)
    directory.remove_written(manifest)
    assert (outside / Path(name).name).exists()
    with pytest.raises(EnvironmentLacksError, match="is a link"):
        directory.create()


def test_a_run_that_was_killed_before_its_first_result_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    shutil.copy(CHANGES / "before" / "manifest.json", tmp_path)
    directory = RunDirectory(tmp_path)
    manifest = directory.replaceable()
    assert not manifest.digests
    shutil.copy(CHANGES / "before" / manifest.entries[0].files.record, tmp_path / "raw")
    with pytest.raises(UsageError, match="did not note what its files hold"):
        directory.replaceable()


def test_the_same_result_twice_is_no_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    shutil.copytree(CHANGES / "before", folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["entries"] *= 2000
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for words in (("export", "--reports", str(folder)), ("diff", str(folder), str(folder))):
        done = opscope(*words)
        assert done.returncode == 4
        assert "twice" in done.stderr


# ---------------------------------------------------------------- ranks


RANKS = [
    {"RANK": "1", "WORLD_SIZE": "2"},
    {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
    {"PMI_RANK": "1", "PMI_SIZE": "2"},
    {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
]


@pytest.mark.parametrize("variables", RANKS, ids=lambda found: next(iter(found)))
def test_each_rank_has_a_place(variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for found in RANKS for name in found}:
        monkeypatch.delenv(name, raising=False)
    assert runs.rank_here() is None
    assert runs.named_folder(tmp_path) == tmp_path
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert runs.named_folder(tmp_path) == tmp_path / "rank1"
    first = runs.new_folder("train", tmp_path)
    monkeypatch.setenv(next(iter(variables)), "0")
    second = runs.new_folder("train", tmp_path)
    assert (first.name, second.name) == ("rank1", "rank0")
    assert first.parent == second.parent  # both were started by one launcher
    assert runs.new_folder("train", tmp_path).name == "rank0-2"  # a restart
    monkeypatch.setenv(list(variables)[1], "1")
    assert runs.rank_here() is None


@pytest.mark.torch
def test_both_ranks_of_a_job_are_kept(tmp_path: Path) -> None:
    """Two processes as torchrun starts them: with RANK and WORLD_SIZE, at the same time."""
    pytest.importorskip("torch")
    script = f"""
import os, subprocess, sys
args = [sys.executable, "-m", "opscope", "profile", {toy("step")!r}, "--skip-benchmark", "--active", "1"]
ranks = [subprocess.Popen(args, env={{**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}}) for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (run,) = (path for path in (tmp_path / "profiling_results").iterdir() if not path.is_symlink())
    assert sorted(path.name for path in run.iterdir()) == ["rank0", "rank1"]
    assert all((run / name / "profiling_stats_default.json").is_file() for name in ("rank0", "rank1"))
    analysed = opscope("analyze", str(run), "--format", "json")
    assert len(json.loads(analysed.stdout)["traces"]) == 2


# ---------------------------------------------------------------- no output destroys an input or a device


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    made = KinetoTrace()
    made.operator("aten::mm", 0, 10_000)
    return made.write(tmp_path / "t.json")


def test_no_command_replaces_its_own_input(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "u.json"
    other.write_bytes(trace.read_bytes())
    (tmp_path / "link.json").symlink_to(trace)
    before = trace.read_bytes()
    for target in (trace, tmp_path / "link.json", tmp_path / "." / "t.json"):
        for words in (
            ("page", trace, "-o", target),
            ("diff", trace, other, "--page", target),
            ("diff", trace, other, "--report", target),
            ("diff", other, trace, "--report", target),
            ("export", trace, "-o", target),
        ):
            done = opscope(*map(str, words), "--overwrite")
            assert done.returncode == 2, words
            assert "is what is read" in done.stderr
    run = tmp_path / "run"
    shutil.copytree(CHANGES / "before", run)
    inside = next(run.glob("*_trace_*"))
    assert opscope("page", str(run), "-o", str(inside), "--overwrite").returncode == 2
    assert opscope("export", str(trace), "--parquet", str(tmp_path), "--overwrite").returncode == 2
    assert trace.read_bytes() == before


def test_what_is_there_is_replaced_only_where_that_was_said(trace: Path, tmp_path: Path) -> None:
    for words, target in (
        (("page", trace, "-o"), tmp_path / "p.html"),
        (("export", trace, "-o"), tmp_path / "e.json"),
        (("export", trace, "--parquet"), tmp_path / "store"),
        (("diff", trace, trace, "--report"), tmp_path / "d.md"),
    ):
        assert opscope(*map(str, words), str(target)).returncode == 0
        again = opscope(*map(str, words), str(target))
        assert again.returncode == 2, words
        assert "--overwrite" in again.stderr
        assert opscope(*map(str, words), str(target), "--overwrite").returncode == 0
    (tmp_path / "store" / "operators.parquet").write_bytes(b"mine")
    changed = opscope("export", str(trace), "--parquet", str(tmp_path / "store"), "--overwrite")
    assert changed.returncode == 2
    assert (tmp_path / "store" / "operators.parquet").read_bytes() == b"mine"


def test_two_results_need_two_names(trace: Path, tmp_path: Path) -> None:
    same = str(tmp_path / "x")
    (tmp_path / "folder").symlink_to(tmp_path)
    for words in (
        ("diff", str(trace), str(trace), "--page", same, "--report", str(tmp_path / "folder" / "x")),
        ("bench", "square", "-o", same, "--pytest-benchmark-json", same),
    ):
        done = opscope(*words)
        assert done.returncode == 2, words
        assert "two results" in done.stderr
        assert not Path(same).exists()


def test_parts_of_an_export_replace_nothing_unasked(tmp_path: Path) -> None:
    notes, output = tmp_path / "e.part3.json", tmp_path / "e.json"
    notes.write_text("mine")
    words = ("export", str(GPT2), "-o", str(output), "--max-size", "2MB")
    unasked = opscope(*words)
    assert unasked.returncode == 2
    assert "e.part3.json is there already" in unasked.stderr
    assert not output.exists()
    notes.rename(tmp_path / "e.part999.json")
    assert opscope(*words, "--overwrite").returncode == 0
    assert (tmp_path / "e.part999.json").read_text() == "mine"  # no export
    parts = len(list(tmp_path.glob("e.part*.json")))
    assert parts > 2
    assert opscope("export", str(GPT2), "-o", str(output), "--overwrite").returncode == 0
    assert [path.name for path in tmp_path.glob("e.part*.json")] == ["e.part999.json"]


def test_pipes_and_standard_output_are_written_to(trace: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert opscope("page", str(trace), "-o", str(pipe)).returncode == 0
    reader.join(timeout=60)
    assert pipe.is_fifo()
    assert read[0].lstrip().startswith(b"<!")
    for name in ("-", "/dev/stdout"):
        shown = fresh_opscope("page", str(trace), "-o", name)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.lstrip().startswith("<!")
    exported = fresh_opscope("export", str(trace), "-o", "-")
    assert "aten::mm" in {event.get("name") for event in json.loads(exported.stdout)["traceEvents"]}
    out = tmp_path / "out.txt"
    with out.open("w") as file:  # what stood there before stays
        file.write("before\n")
        file.flush()
        environment = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2])}
        command = [sys.executable, "-m", "opscope", "page", str(trace), "-o", "/dev/stdout"]
        subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, env=environment, check=True)
    assert out.read_text().startswith("before\n<!")


def test_a_device_is_never_replaced(tmp_path: Path) -> None:
    """As root a rename over a device would put a file in its place."""
    if os.geteuid():
        pytest.skip("only root makes devices")
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o600 | 0o020000, os.makedev(1, 3))
        null.write_bytes(b"x")
    except OSError:
        pytest.skip("devices cannot be made or used here")
    files.write_output(null, b"content")
    assert null.is_char_device()
    with pytest.raises(EnvironmentLacksError, match="not a regular file"):
        files.write_whole(null, b"content")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    files.write_output(tmp_path / "link", b"1")
    files.write_output(tmp_path / "link", b"2")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"2"


def test_a_page_has_a_name_of_its_own(trace: Path, tmp_path: Path) -> None:
    for expected in ("t.html", "t-2.html"):
        assert opscope("page", str(trace), cwd=tmp_path).returncode == 0
        assert (tmp_path / expected).is_file()


def test_a_page_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opscope.runs import pipeline
    from opscope.sweep.runner import written_sweep

    shutil.copytree(CHANGES / "before", tmp_path / "r")
    assert opscope("export", "--reports", str(tmp_path / "r")).returncode == 0
    directory = RunDirectory(tmp_path / "r")
    monkeypatch.setattr(pipeline, "page_html", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # so do the tests learn of it
        written_sweep(directory, directory.read_manifest())
    monkeypatch.delenv("OPSCOPE_RAISE")
    written = written_sweep(directory, directory.read_manifest())
    assert written.page_failure == "ZeroDivisionError: division by zero"
    assert directory.read_manifest().page_failure == written.page_failure


# ---------------------------------------------------------------- what killed processes leave


@pytest.fixture
def killed() -> int:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child.send_signal(signal.SIGKILL)
    child.wait()
    return child.pid


def test_what_killed_processes_left_is_swept_and_nothing_else(
    killed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = files.partial_prefix()
    dead = mine.replace(f"-{os.getpid()}-", f"-{killed}-")
    alive = mine.replace(f"-{os.getpid()}-", f"-{os.getppid()}-")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / f"{dead}a").write_text("half")
    (folder / f"{dead}b").mkdir()
    (folder / f"{dead}b" / "inner").write_text("half")
    (folder / f"{dead}link").symlink_to(outside)
    (folder / f"{alive}c").write_text("being written")
    (folder / ".opscope-partial-other").write_text("of another machine")
    files.sweep(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted([".opscope-partial-other", f"{alive}c"])
    assert (outside / "file").read_text() == "mine"
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    scratch = folder / dead.removeprefix(files.PARTIAL).join(("opscope-", "z"))
    scratch.mkdir()
    files._sweep_temporary.cache_clear()
    with files.scratch() as made:
        assert made.is_dir()
        assert not scratch.exists()
    assert not made.exists()


def test_a_file_of_somebody_else_with_a_name_of_ours_stays(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copy(toy("step").partition(":")[0], tmp_path / "mine.py")
    words = ("profile", "mine.py:step", *STEP, "--output-dir", "q")
    assert opscope(*words, cwd=tmp_path).returncode == 0
    manifest = json.loads((tmp_path / "q" / "manifest.json").read_bytes())
    name = next(name for name in manifest["digests"] if name.startswith("profiling_stats"))
    manifest["digests"].pop(name)
    (tmp_path / "q" / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "q" / name).write_text("my own notes")
    again = opscope(*words, "--overwrite", cwd=tmp_path)
    assert again.returncode == 2, again.stderr
    assert "opscope did not write it" in again.stderr
    assert (tmp_path / "q" / name).read_text() == "my own notes"


@pytest.mark.parametrize("other", ["rank0", "rank1"])
def test_the_last_two_runs_are_not_two_parts_of_one(other: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a-20260101-000000", tmp_path / "a-20260102-000000"
    sources = sorted(path.parent for path in CHANGES.rglob("manifest.json"))[:1] * 2
    for source, folder in zip(sources, ("rank0", other), strict=True):
        shutil.copytree(source, second / folder, dirs_exist_ok=True)
    with pytest.raises(UsageError, match="one run"):
        runs.last_two(tmp_path)
    shutil.copytree(sources[0], first / other)
    assert runs.last_two(tmp_path) == (first / other, second / other)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm here")
def test_a_file_in_shared_memory_is_a_file() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        trace = Path(folder) / "t.json.gz"
        shutil.copy(GPT2, trace)
        done = opscope("export", str(trace), "-o", str(trace), "--overwrite")
        assert done.returncode == 2, done.stderr
        assert trace.read_bytes() == GPT2.read_bytes()


def test_an_input_with_the_name_of_a_part_stays(tmp_path: Path) -> None:
    trace = tmp_path / "run.part2.json.gz"
    shutil.copy(GPT2, trace)
    done = opscope("export", str(trace), "-o", str(tmp_path / "run.json.gz"), "--overwrite")
    assert done.returncode == 2, done.stderr
    assert trace.read_bytes() == GPT2.read_bytes()


def test_opscopes_own_documents_are_no_traces(tmp_path: Path) -> None:
    shutil.copy(DATA / "traces" / "cudagraph_replay.json.gz", tmp_path)
    shutil.copy(ROOT / "benchmarks" / "results" / "h200-bench-gelu.json", tmp_path / "gelu.json")
    done = opscope("analyze", str(tmp_path), "--format", "json")
    assert "gelu" not in done.stderr
    assert json.loads(done.stdout)["schema"].startswith("opscope.analysis")
    (tmp_path / "job.json").write_text("no JSON")  # but what is of someone else is named
    done = opscope("analyze", str(tmp_path))
    assert done.returncode == 4
    assert "job.json is not a trace" in done.stderr
