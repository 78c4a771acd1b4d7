"""Workers that are forked from the warm process, and runs that another process follows."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opscope.runs.folders import in_progress, is_in_progress
from tests.command import opscope
from tests.zygote import ROOT

# A worker's request and log get other descriptors in the warm process than here, and its messages the one they have
# here: with more and more files open, that is the number of each of the others once.
FORKS = """
import os, sys
from pathlib import Path
from opscope.record.configuration import CaptureOptions, Configuration
from opscope.record.sweep import EntryFiles
from opscope.sweep.warm import WarmProcess
from opscope.sweep.worker import Request

warm, held = WarmProcess(("opscope.sweep.worker",)), []
for number in range(8):
    reading, writing = os.pipe()
    files = EntryFiles(record="r", log="l", cycles=())
    request = Request(Configuration("nowhere.py:step"), CaptureOptions(), sys.argv[1], files, writing)
    forked = warm.fork(request, Path(sys.argv[1]) / "log")
    os.close(writing)
    told = os.fdopen(reading, "rb").read()
    print(number, forked.wait(60), b"nowhere.py" in told)  # 1: there is no such file, as was told
    held.append(os.open(os.devnull, os.O_RDONLY))
warm.close()
"""


def test_workers_get_their_request_whatever_files_are_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, tmp_path],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()] == ["1 True"] * 8, (
        done.stdout,
        (tmp_path / "log").read_text(),
    )


WARM = """
import os, sys
from pathlib import Path
from opscope.record.configuration import CaptureOptions, Configuration
from opscope.record.sweep import EntryFiles
from opscope.sweep.warm import WarmProcess
from opscope.sweep.worker import Request

warm = WarmProcess(("opscope.sweep.worker", "loud"))
reading, writing = os.pipe()
files = EntryFiles(record="r", log="l", cycles=())
request = Request(Configuration("here.py:step"), CaptureOptions(), ".", files, writing)
forked = warm.fork(request, Path("log"))
os.close(writing)
print(os.fdopen(reading, "rb").read().decode(), forked.wait(60))
warm.close()
"""
STEP = """
import multiprocessing, os, sys

def step():
    process = multiprocessing.current_process().name
    method = multiprocessing.get_start_method(allow_none=True)
    ours = sorted({"PYTHONSAFEPATH", "PYTORCH_NVML_BASED_CUDA_CHECK"} & set(os.environ))
    raise RuntimeError(f"{process}, {method}, {'loud' in sys.modules}, {ours}, {sys.stdin.read()!r}, {os.getcwd()}")
"""


@pytest.mark.torch
def test_a_forked_worker_is_as_one_that_was_started(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text(STEP)
    (tmp_path / "loud.py").write_text(
        "print('imported', flush=True)\nimport sys\nprint('too', file=sys.stderr, flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", WARM],
        env={"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(tmp_path)]), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")  # what modules print as they are imported, no one sees
    assert f"RuntimeError: MainProcess, None, True, [], '', {tmp_path}" in done.stdout
    assert done.stdout.endswith(" 1\n")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three configurations, of which the last one is not measured yet."""
    folder = tmp_path / "results" / "bert-1"
    shutil.copytree(ROOT / "tests" / "data" / "h200_bert_small", folder)
    assert opscope("export", "--reports", str(folder)).returncode == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["entries"][-1]["status"] = "pending"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_run_is_in_progress_as_long_as_a_process_measures_it(tmp_path: Path) -> None:
    assert not is_in_progress(tmp_path)
    with in_progress(tmp_path):
        assert is_in_progress(tmp_path)
        with in_progress(tmp_path):  # a second one, of another process, takes nothing away
            pass
        assert is_in_progress(tmp_path)
    assert not is_in_progress(tmp_path)
    assert not is_in_progress(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_does_not_keep_a_run_in_progress(tmp_path: Path) -> None:
    """Workers of a DataLoader outlive what they were forked from, at times."""
    with in_progress(tmp_path):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(writing)
            os.read(reading, 1)  # until the test lets it go
            os._exit(0)
        assert is_in_progress(tmp_path)
    assert not is_in_progress(tmp_path)
    os.close(writing)
    os.waitpid(child, 0)


def test_earlier_results_are_not_shown_as_those_of_a_run_that_replaces_them(run: Path) -> None:
    """Until the first new result is there, the earlier manifest stays (``--overwrite``)."""
    manifest = json.loads((run / "manifest.json").read_text())
    for entry in manifest["entries"]:
        entry["status"] = "done"
    (run / "manifest.json").write_text(json.dumps(manifest))
    code = (
        "import json, sys, time\nfrom pathlib import Path\nfrom opscope.runs.folders import in_progress\n"
        "run = Path(sys.argv[1])\n"
        "with in_progress(run):\n    print('held', flush=True)\n    time.sleep(2)\n"
        "    manifest = json.loads((run / 'manifest.json').read_text())\n"
        "    manifest['created'] = '2030-01-01T00:00:00+00:00'\n"
        "    manifest['entries'] = manifest['entries'][:1]\n"
        "    (run / 'manifest.json').write_text(json.dumps(manifest))\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, run],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    seen = opscope("runs", str(run.parent), "--watch")
    holder.wait()
    assert [line.split(":")[0].strip() for line in seen.stdout.splitlines()[1:]] == ["1 of 1  bs1_seq128"]


def test_watching_shows_what_ends_and_what_is_left_when_the_process_is_gone(run: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom pathlib import Path\nfrom opscope.runs.folders import in_progress\n"
            "with in_progress(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(3)",
            run,
        ],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    seen = opscope("runs", str(run.parent), "--watch")
    holder.wait()
    assert seen.returncode == 0, seen.stderr
    lines = [line.strip() for line in seen.stdout.splitlines()]
    assert lines[0] == f"{run}:"
    assert lines[1] == "1 of 3  bs1_seq128: 872.3 us per step, dispatch"
    assert lines[2].startswith("2 of 3  bs8_seq128: 864.7 us per step")
    assert lines[3] == "The process that measured it has ended. Not measured: bs16_seq128."


def test_watching_needs_a_run_in_progress(run: Path) -> None:
    for folder in (run.parent, run, run.parent / "nowhere"):
        refused = opscope("runs", str(folder), "--watch")
        assert (refused.returncode, "no run in" in refused.stderr) == (2, True)
    assert opscope("runs", str(run), "--watch", "--format", "json").returncode == 2
