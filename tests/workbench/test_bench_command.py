"""``opscope bench``, ``opscope diff`` of its files, the Python API, the pytest plugin: on a CPU, as users run them."""

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from opscope.documents.bench import BenchDocument, RegressionVerdict
from opscope.measuring.verdicts import changes, differences, worst_change
from tests.command import PYTHONPATH, fresh_opscope, opscope

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

WAYS = """
import torch
def inputs(size=256, dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    return torch.randn(size, 64, device=device).to(dtype)
def doubled(x):
    return x * 2
def added(x):
    return x + x
def slowly(x):
    y = x
    for _ in range(20):
        y = y * 1.0
    return y * 2
"""
# Tests run side by side, and a verdict is withheld where that shows: by waiting for a core, or by a measurement that
# differs from itself. That a clear difference gets its verdict is tested with given samples (test_bench_statistics.py).
BUSY = "for a CPU core"
WITHHELD = (BUSY, "more rounds or processes tell")
QUICK = ("--device", "cpu", "--seconds", "0.05")


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "ways.py"
    path.write_text(text)
    return str(path)


def measured(tmp_path: Path, *args: str, text: str = WAYS, code: int = 0) -> dict[str, Any]:
    result = opscope("bench", written(tmp_path, text), *QUICK, "--format", "json", *args, cwd=tmp_path)
    assert result.returncode == code, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_functions_of_a_file_are_compared_with_the_first(tmp_path: Path) -> None:
    document = measured(tmp_path, "--set", "size=128,256", "--save", "saved.json")
    assert document["schema"] == "opscope.bench/1"
    assert [(r["name"], r["parameters"]["size"]) for r in document["results"]] == [
        (name, size) for size in ("128", "256") for name in ("doubled", "added", "slowly")
    ]
    first = document["results"][0]
    assert first["wall_ns"]["ci_low"] <= first["wall_ns"]["median"] <= first["wall_ns"]["ci_high"]
    assert len(first["wall_ns"]["samples"]) == first["wall_ns"]["n"] >= 16
    assert first["kernel_ns"] is None
    assert "not a GPU" in first["reasons"]["kernel_ns"]
    compared = {(c["variant"], c["parameters"]["size"]): c for c in document["comparisons"]}["slowly", "256"]
    assert compared["verdict"] == "slower" or any(withheld in compared["sentence"] for withheld in WITHHELD)
    assert compared["baseline"] == "doubled"
    assert compared["measure"] == "wall_ns"
    assert msgspec.json.decode((tmp_path / "saved.json").read_bytes(), type=BenchDocument).request is not None


def test_the_table_says_what_was_not_measured_and_what_is_wrong(tmp_path: Path) -> None:
    text = WAYS + "def wrong(x):\n    return x * 2.1\n"
    result = fresh_opscope("bench", written(tmp_path, text), *QUICK, cwd=tmp_path)
    assert result.returncode == 1
    assert "not measured" in result.stdout
    assert "wrong is wrong" in result.stdout
    assert "times as long" in result.stdout or BUSY in result.stdout  # also in "Inconclusive: .. times as long"
    markdown = opscope("bench", "square", "--size", "4k", *QUICK, "--format", "md", cwd=tmp_path)
    assert markdown.returncode == 0
    assert "| Variant |" in markdown.stdout


ENDS = {
    "while True: pass": "did not return within",
    "import os; os.abort()": "was ended by signal 6",
    "import os; os._exit(0)": "failed while it said",
    "import os; os._exit(2)": "failed while it said",
    "import sys; sys.exit(2)": "failed while it said",
}


@pytest.mark.parametrize(("body", "sentence"), ENDS.items())
def test_a_variant_that_never_returns_or_ends_the_process_costs_no_other_its_result(
    tmp_path: Path, body: str, sentence: str
) -> None:
    text = WAYS.replace("def slowly", f"def bad(x):\n    {body}\ndef slowly")
    found = measured(tmp_path, "--timeout", "60" if "while" not in body else "30", text=text, code=1)
    results = {one["name"]: one for one in found["results"]}
    assert list(results) == ["doubled", "added", "slowly", "bad"]
    assert results["bad"]["correctness"]["verdict"] == "wrong"
    assert sentence in results["bad"]["correctness"]["sentence"]
    for name in ("doubled", "added", "slowly"):
        assert results[name]["correctness"]["verdict"] == "right"
        assert results[name]["wall_ns"]["n"] >= 6


def test_a_baseline_that_never_returns_ends_the_benchmark(tmp_path: Path) -> None:
    text = WAYS.replace("def doubled(x):", "def doubled(x):\n    while True: pass")
    result = opscope("bench", written(tmp_path, text), *QUICK, "--timeout", "20", cwd=tmp_path)
    assert result.returncode == 1
    assert "did not return within" in result.stderr
    assert "checking results" in result.stderr


def test_what_replaces_the_clock_while_it_is_imported_is_refused(tmp_path: Path) -> None:
    text = WAYS + "import time\ntime.perf_counter_ns = lambda: 0\n"
    result = opscope("bench", written(tmp_path, text), *QUICK, cwd=tmp_path)
    assert result.returncode == 2
    assert "importing the targets replaces time.perf_counter_ns" in result.stderr


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        ((), 2, "name what to benchmark"),
        (("nothing_like_it",), 2, "is not a benchmark"),
        (("missing.py",), 2, "there is no file"),
        (("square", "--set", "depth=3"), 2, "take no parameter 'depth'"),
        (("square", "--set", "=3"), 2, "--set takes NAME=VALUE"),
        (("square", "--size", "8..4"), 2, "is empty"),
        (("square", "--device", "cuda"), 3, "is not there"),
        (("square", "--calibrate"), 2, "takes no targets"),
    ],
)
def test_wrong_usage_is_refused(tmp_path: Path, args: tuple[str, ...], code: int, sentence: str) -> None:
    if "cuda" in args and __import__("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    result = opscope("bench", *args, cwd=tmp_path)
    assert result.returncode == code
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_plots_and_what_dashboards_read(tmp_path: Path) -> None:
    document = measured(
        tmp_path, "--set", "size=64,128,256", "--plot", "ways.svg", "--pytest-benchmark-json", "dashboard.json"
    )
    picture = (tmp_path / "ways.svg").read_text()
    assert picture.startswith("<?xml")
    content = json.loads((tmp_path / "dashboard.json").read_text())
    assert len(content["benchmarks"]) == len(document["results"]) == 9
    first, result = content["benchmarks"][0], document["results"][0]
    assert first["name"] == "doubled[64]"
    assert first["stats"]["rounds"] == result["wall_ns"]["n"]
    assert first["stats"]["median"] == pytest.approx(result["wall_ns"]["median"] / 1e9)
    assert first["stats"]["min"] == pytest.approx(min(result["wall_ns"]["samples"]) / 1e9)
    refused = opscope("bench", "square", "--size", "4k", *QUICK, "--plot", "ways.doc", cwd=tmp_path)
    assert refused.returncode == 2
    assert "a plot is written as" in refused.stderr


def test_ways_of_timing_beside_each_other(tmp_path: Path) -> None:
    result = opscope("bench", "timers", *QUICK, "--format", "json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    names = {found["name"]: found for found in document["results"]}
    assert {"perf_counter and synchronize", "torch.utils.benchmark.Timer", "opscope"} <= set(names)
    assert "finding out that it has ended" in names["perf_counter and synchronize"]["about"]
    assert document["comparisons"] == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def f(:\n", "cannot be imported: SyntaxError"),
        ("import nothing_like_it\n", "cannot be imported: ModuleNotFoundError"),
        ("def f(x):\n    return x\n", "there are no inputs"),
        ("def inputs():\n    return {}['x']\ndef f(x):\n    return x\n", "cannot be made: KeyError: 'x'"),
        ("def inputs():\n    return [1, 2]\ndef f(x, y):\n    return x\n", "f cannot be called: missing a required"),
        ("x = 1\n", "has no functions to compare"),
    ],
)
def test_mistakes_in_a_file_are_told_in_a_line(tmp_path: Path, text: str, sentence: str) -> None:
    result = opscope("bench", written(tmp_path, text), *QUICK, cwd=tmp_path)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_processes_are_samples(tmp_path: Path) -> None:
    document = measured(tmp_path, "--processes", "2")
    assert document["processes"] == 2
    assert all(result["wall_ns"]["n"] == 2 for result in document["results"])
    assert {comparison["verdict"] for comparison in document["comparisons"]} == {"inconclusive"}


def test_false_alarms_are_measured_kept_and_told(tmp_path: Path) -> None:
    env = {"OPSCOPE_CACHE": str(tmp_path / "cache")}
    result = opscope("bench", "--calibrate", "--trials", "3", *QUICK, cwd=tmp_path, env=env)
    assert result.returncode == 0, result.stderr
    assert "Of 3 comparisons of a function with itself" in result.stdout
    shown = opscope("bench", "square", "--size", "4k", *QUICK, cwd=tmp_path, env=env)
    assert "Of 3 comparisons of a function with itself on this machine" in shown.stdout


# ---------------------------------------------------------------- compare


@functools.cache
def measured_once() -> str:
    """Return the document of one run, for tests that put durations of their own into it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        return opscope("bench", written(place, WAYS), *QUICK, "--format", "json", cwd=place).stdout


def saved(tmp_path: Path, name: str, factor: float, **more: Any) -> Path:
    """Write a benchmark whose durations are known."""
    document = json.loads(measured_once())
    for one in document["results"]:
        one |= {"doubts": [], "steady": None, "contention": None}
        base = {"doubled": 1_000.0, "added": 2_000.0, "slowly": 30_000.0}[one["name"]] * factor
        samples = [0.99 * base, *[base] * 14, 1.01 * base]
        one["wall_ns"] = {
            "median": base, "ci_low": 0.995 * base, "ci_high": 1.005 * base, "n": 16, "samples": samples,
            "stopped": one["wall_ns"]["stopped"],
        }  # fmt: skip
    document |= {"request": None, **more}
    path = tmp_path / name
    path.write_text(json.dumps(document))
    return path


def test_what_takes_longer_now_is_a_regression(tmp_path: Path) -> None:
    before = saved(tmp_path, "before.json", 1.0)
    code = {}
    for name, factor in (("same", 1.0), ("slower", 1.2), ("between", 1.055)):
        now = saved(tmp_path, f"{name}.json", factor)
        result = opscope("diff", str(before), str(now), "--format", "json")
        code[name] = result.returncode
        document = json.loads(result.stdout)
        assert document["schema"] == "opscope.bench-diff/1"
    assert code == {"same": 0, "slower": 1, "between": 5}
    assert opscope("diff", str(before), str(now), "--fail-over", "10%").returncode == 0
    other = json.loads(before.read_text())
    other["framework"]["torch"] = "1.0"
    (tmp_path / "other.json").write_text(json.dumps(other))
    refused = opscope("diff", str(before), str(tmp_path / "other.json"))
    assert refused.returncode == 2
    assert "PyTorch" in refused.stderr
    assert opscope("diff", str(before), str(tmp_path / "other.json"), "--any-environment").returncode == 0
    assert opscope("diff", str(before), written(tmp_path, WAYS)).returncode == 2


def test_other_inputs_are_not_compared(tmp_path: Path) -> None:
    before = saved(tmp_path, "before.json", 1.0)
    other = json.loads(before.read_text())
    assert all(one["inputs"] and one["inputs"][0].startswith("float32[") for one in other["results"])
    other["results"][0]["inputs"] = ["float32[7]"]
    (tmp_path / "other.json").write_text(json.dumps(other))
    refused = opscope("diff", str(before), str(tmp_path / "other.json"))
    assert refused.returncode == 2
    assert "now float32[7]" in refused.stderr


def test_what_cannot_be_told_is_measured_again(tmp_path: Path) -> None:
    """The intervals that were saved are wide; measured again, it takes a tenth of what was saved before."""
    now = tmp_path / "now.json"
    target = written(tmp_path, WAYS)
    result = opscope("bench", f"{target}:doubled", *QUICK, "--save", str(now), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    document = json.loads(now.read_text())
    document["results"][0] |= {"steady": None, "contention": None}
    wall = document["results"][0]["wall_ns"]
    before = json.loads(now.read_text())
    before["results"][0]["wall_ns"] |= {key: 10 * wall[key] for key in ("median", "ci_low", "ci_high")}
    before["results"][0]["wall_ns"]["samples"] = [10 * sample for sample in wall["samples"]]
    (tmp_path / "before.json").write_text(json.dumps(before))
    wide = [wall["median"] / 2, *[wall["median"]] * (wall["n"] - 2), 20 * wall["median"]]
    ends = {"ci_low": wall["median"] / 2, "ci_high": 15 * wall["median"]}
    document["results"][0]["wall_ns"] |= {"samples": wide, **ends}
    now.write_text(json.dumps(document))
    files = (str(tmp_path / "before.json"), str(now))
    assert opscope("diff", *files).returncode == 5
    again = opscope("diff", *files, "--again", "--target", f"{target}:doubled", cwd=tmp_path)
    assert again.returncode in (0, 5), again.stderr  # 5 where the cores are busy
    assert "again:" in again.stderr


def test_nothing_that_a_saved_benchmark_names_is_run(tmp_path: Path) -> None:
    before = saved(tmp_path, "before.json", 1.0)
    wide = json.loads(saved(tmp_path, "now.json", 1.055).read_text())
    hostile = {
        "targets": ["os:getpid"], "inputs": "subprocess:getoutput", "axes": {"cmd": [f"touch {tmp_path / 'ran'}"]},
        "device": "cpu",
    }  # fmt: skip
    now = tmp_path / "hostile.json"
    now.write_text(json.dumps({**wide, "request": hostile}))
    plain = opscope("diff", str(before), str(now), cwd=tmp_path)
    assert plain.returncode == 5, plain.stderr
    without = opscope("diff", str(before), str(now), "--again", cwd=tmp_path)
    assert without.returncode == 2
    assert "--target" in without.stderr
    for words in (("os:getpid",), ("os:getpid", "--inputs", "subprocess:getoutput"), (written(tmp_path, WAYS),)):
        other = opscope("diff", str(before), str(now), "--again", "--target", *words, cwd=tmp_path)
        assert other.returncode == 2, other.stderr
        assert "is of other" in other.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "poison",
    [
        {"ci_low": 2_000.0, "ci_high": 500.0},
        {"ci_low": -1.0},
        {"median": -5.0},
        {"median": 0.0},
        {"median": 1e-310, "ci_low": 1e-310, "ci_high": 1e-310, "samples": [1e-310] * 16},
        {"n": 17},
        {"samples": [], "n": 0},
        {"ci_low": None},
        {"median": 1e30, "ci_high": 1e30},
    ],
    ids=str,
)
def test_durations_that_nothing_has_are_refused(poison: dict[str, Any], tmp_path: Path) -> None:
    before = saved(tmp_path, "before.json", 1.0)
    document = json.loads(before.read_text())
    document["results"][0]["wall_ns"] |= poison
    poisoned = tmp_path / "poisoned.json"
    poisoned.write_text(json.dumps(document))
    result = opscope("diff", str(poisoned), str(poisoned))
    assert result.returncode == 4, result.stdout
    assert "what no benchmark measures: doubled" in result.stderr


def test_what_is_missing_or_wrong_now_is_no_pass(tmp_path: Path) -> None:
    before = msgspec.json.decode(saved(tmp_path, "before.json", 1.0).read_bytes(), type=BenchDocument)
    now = replace(before, results=before.results[1:])
    assert worst_change(changes(before, now, 0.05)) is RegressionVerdict.MISSING
    assert not differences(before, before)


# ---------------------------------------------------------------- from Python, and in tests


def test_from_python() -> None:
    import torch

    import opscope as package

    x = torch.randn(64, 64)
    found = package.bench({"one": lambda x: x * 2, "two": lambda x: x * 2.5}, inputs=(x,), device="cpu", seconds=0.05)
    assert found.to_dict()["schema"] == "opscope.bench/1"
    assert found.comparisons[0].verdict == "wrong"
    assert "two beside one: two is wrong" in repr(found)
    assert "(right)\ntwo: not timed (wrong)\n" in repr(found)
    with pytest.raises(package.UsageError):
        package.bench({})


PLUGIN = """
import torch
def test_product(opscope_bench):
    x = torch.randn(200, 200)
    opscope_bench(lambda x: BODY, (x,), device="cpu", seconds=0.1, max_regression="30%")
"""


class Measured:
    """What takes the place of measuring: one document after the other, for as long as was asked."""

    def __init__(self, *documents: BenchDocument) -> None:
        self.documents, self.seconds = list(documents), list[float]()

    def __call__(self, *_: object, seconds: float, **__: object) -> SimpleNamespace:
        self.seconds.append(seconds)
        return SimpleNamespace(document=self.documents.pop(0))


@pytest.fixture
def plugin(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Callable[[], BenchDocument]]:
    """The fixture as a test gets it, with a baseline, or with none and one to be saved."""

    def used(measured: Measured, before: BenchDocument | None) -> Callable[[], BenchDocument]:
        path = tmp_path / "baseline.json"
        if before is not None:
            path.write_bytes(msgspec.json.encode({request.node.nodeid: before}))
        monkeypatch.setattr(request.config.option, "opscope_baseline", str(path))
        monkeypatch.setattr(request.config.option, "opscope_save", before is None)
        monkeypatch.setattr("opscope.api.bench.bench", measured)
        bench = request.getfixturevalue("opscope_bench")
        return lambda: bench(None, seconds=1.0, max_regression="5%")

    return used


def times(tmp_path: Path, factor: float) -> BenchDocument:
    return msgspec.json.decode(saved(tmp_path, f"{factor}.json", factor).read_bytes(), type=BenchDocument)


def test_a_regression_of_a_test_counts_once_it_shows_twice(
    plugin: Callable[..., Callable[[], BenchDocument]], tmp_path: Path
) -> None:
    before, slower = times(tmp_path, 1.0), times(tmp_path, 1.2)
    measured = Measured(slower, slower, slower, slower)
    with pytest.raises(pytest.fail.Exception, match="regression: 1,000 ns before, 1,200 ns now"):
        plugin(measured, before)()
    assert measured.seconds == [1.0, 4.0]


def test_a_regression_that_does_not_show_again_is_none(
    plugin: Callable[..., Callable[[], BenchDocument]], tmp_path: Path
) -> None:
    before, slower = times(tmp_path, 1.0), times(tmp_path, 1.2)
    measured = Measured(slower, before)
    assert plugin(measured, before)() is before
    assert measured.seconds == [1.0, 4.0]


def test_what_stays_unclear_is_measured_for_ever_longer(
    plugin: Callable[..., Callable[[], BenchDocument]], tmp_path: Path
) -> None:
    unclear = times(tmp_path, 1.055)
    measured = Measured(unclear, unclear, unclear, unclear)
    with pytest.raises(pytest.xfail.Exception, match=r"not decided: it takes 1\.04"):
        plugin(measured, times(tmp_path, 1.0))()
    assert measured.seconds == [1.0, 4.0, 8.0, 16.0]


def test_a_baseline_that_other_processes_disturbed_is_measured_again_before_it_is_saved(
    plugin: Callable[..., Callable[[], BenchDocument]], tmp_path: Path
) -> None:
    quiet = times(tmp_path, 1.0)
    first, *others = quiet.results
    disturbed = replace(quiet, results=(replace(first, contention="threads waited for a core"), *others))
    measured = Measured(disturbed, quiet)
    assert plugin(measured, None)() is quiet
    assert measured.seconds == [1.0, 4.0]
    (kept,) = msgspec.json.decode((tmp_path / "baseline.json").read_bytes(), type=dict[str, BenchDocument]).values()
    assert kept == quiet


def test_processes_that_save_at_once_lose_nothing(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from opscope.base.files import alone_in, write_whole
path = Path("all")
for n in range(50):
    with alone_in(path.parent):
        write_whole(path, (path.read_bytes() if path.is_file() else b"") + b".")
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": PYTHONPATH}) for _ in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert (tmp_path / "all").read_bytes() == b"." * 150


def test_the_pytest_plugin(tmp_path: Path) -> None:
    installed = any(entry.name == "opscope" for entry in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "opscope.api.pytest_plugin")  # where opscope runs from its tree

    def run(body: str, *args: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_it.py").write_text(PLUGIN.replace("BODY", body))
        return subprocess.run(
            [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "-rfx", *args],
            cwd=tmp_path,
            env={"PYTHONPATH": PYTHONPATH, "PATH": "", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert "no baseline of this test is saved" in run("x * 2").stdout
    assert run("x * 2", "--opscope-save").returncode == 0
    slower = run("sum(x * 2 for _ in range(40)) / 40")
    assert "regression" in slower.stdout or any(withheld in slower.stdout for withheld in WITHHELD)
    baseline = tmp_path / "opscope-baseline.json"
    (document,) = (content := json.loads(baseline.read_text())).values()
    document["framework"]["torch"] = "1.0"
    baseline.write_text(json.dumps(content))
    assert "the baseline was not measured alike" in run("x * 2").stdout


def test_other_numbers_of_threads_are_not_compared(tmp_path: Path) -> None:
    before = msgspec.json.decode(saved(tmp_path, "before.json", 1.0).read_bytes(), type=BenchDocument)
    now = replace(before, framework=replace(before.framework, torch_threads=before.framework.torch_threads + 3))
    (found,) = differences(before, now)
    assert found.startswith("threads of PyTorch: ")
