"""Python files among the user's traces: a command that reads data runs none of them, nor does a process it starts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import PYTHONPATH
from tests.conftest import DATA
from tests.jobs import Job, Lateness, Shape, write_job
from tests.tiny import inference

OTHERS = ("numpy", "polars", "msgspec", "click", "rich", "torch", "pygments", "zstandard", "sitecustomize")
# What the interpreter imports for ``-m`` before it looks for the module that it is to run.
STARTED = "import sys; print(*sys.modules)"
# As an installed ``opscope`` begins: the folder of the script is on the module path, and the current one is not.
SCRIPT = "from opscope.cli import main\nif __name__ == '__main__':\n    main()\n"
OF_USER = "import opscope\nif __name__ == '__main__':\n    print(opscope.ranks('job', jobs=2).document.world)\n"
LARGE = 2_000_000  # bytes of a trace; more is read by processes and threads of its own
PLANTED = "import pathlib\npathlib.Path({!r}).touch()\nraise ImportError('planted')\n"

COMMANDS = [
    "analyze large.json", "analyze job/rank0.json.gz job/rank1.json.gz", "analyze --brief large.json",
    "show large.json bound", "page large.json -o page.html", "page job -o job.html", "analyze --stats all large.json",
    "explain aten::mm", "explain --in large.json", "limits large.json", "whatif large.json --scale aten::addmm=0.5",
    "ranks job", "ranks job --by late", "ranks other --shard 1/1", "diff job other",
    "diff job/rank0.json.gz other/rank0.json.gz", "runs .", "export --reports sweep",
    "export large.json --parquet store", "analyze store", "export large.json -o exported.json.gz",
    ("sql", "select count(*) from operators", "large.json"), ("sql", "select count(*) from operators", "job"), "gpus",
    "kernel launch --help", "skill", "--version",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of traces, as somebody unpacks it."""
    made = tmp_path / "unpacked"
    for name, late in (("job", "kernels"), ("other", "host")):
        (made / name).mkdir(parents=True)
        write_job(Job(Shape(2), {1: Lateness(late, 3_000_000)}), made / name)
    trace = inference()
    for number in range(5_500):
        begin = 200_000 + number * 20_000
        trace.operator("aten::mm", begin, 8_000)
        trace.launched_kernel(f"_Z3add{'x' * (number % 7)}PfS_i", (begin + 1_000, 1_000), (begin + 3_000, 4_000))
    assert trace.write(made / "large.json").stat().st_size > LARGE
    shutil.copytree(DATA / "h200_bert_small", made / "sweep")
    return made


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | {"PYTHONPATH": PYTHONPATH}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


def plant(folder: Path, spared: set[str]) -> Path:
    """Write modules that say that they were run into a folder; return the folder where they say it."""
    told = folder.parent / "told"
    told.mkdir()
    for name in ({*sys.stdlib_module_names, *OTHERS}) - spared:
        (folder / f"{name}.py").write_text(PLANTED.format(str(told / name)))
    return told


def written(script: str, folder: Path) -> Path:
    path = folder.parent / "bin" / "started.py"
    path.parent.mkdir()
    path.write_text(script)
    return path


def started(folder: Path) -> set[str]:
    (folder / "started.py").write_text(STARTED)
    return set(run(folder, "-m", "started").stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("start", ["script", "module"])
def test_no_command_runs_python_files_of_the_current_folder(start: str, folder: Path) -> None:
    script = written(SCRIPT, folder)
    spared = started(folder) if start == "module" else set()
    assert not spared & {"socket", "selectors", "random", "json", "subprocess", "typing", "inspect", "logging"}
    told = plant(folder, spared)
    before = ["-m", "opscope"] if start == "module" else [str(script)]
    for command in COMMANDS:
        done = run(folder, *before, *(command.split() if isinstance(command, str) else command))
        assert done.returncode == 0, (command, done.stderr)
        assert not {path.name for path in told.iterdir()}, command


@pytest.mark.parametrize("script", [SCRIPT, OF_USER])
def test_processes_that_read_ranks_run_no_python_files_of_the_current_folder(script: str, folder: Path) -> None:
    told = plant(folder, set())
    done = run(folder, str(written(script, folder)), "ranks", "job", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert not {path.name for path in told.iterdir()}
