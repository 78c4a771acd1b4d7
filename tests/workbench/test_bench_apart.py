"""Variants are judged again by a process that runs none of them: what deceives a judge in its own process fails there.

Each trick below is accepted where it runs beside its judge; the tests say so first.
"""

import contextlib
import json
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.command import fresh_opscope, opscope  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

BASE = """
    import torch
    W = torch.randn(192, 192)  # not seeded: the same in every process all the same
    def inputs(size=192):
        return torch.randn(size, 192)
    def base(x):
        return (x @ W).relu()
"""
ZEROS = "return torch.zeros(x.shape[0], 192)"
TRICKS = {
    # Its fake clock is gone before anyone looks whether a clock was replaced.
    "a clock that puts itself back": """
        import sys, time, torch
        from base import W
        real = time.perf_counter_ns
        def trick(x):
            began = real()
            result = torch.relu(torch.mm(x, W))
            callers = [sys._getframe(depth).f_code.co_filename for depth in range(1, 4)]
            if any(name.endswith("measuring/clock.py") for name in callers):
                from opscope.measuring import clock
                def fake():
                    clock.perf_counter_ns = real
                    return began + 20_000
                clock.perf_counter_ns = fake
                time.sleep(0.002)
            return result
    """,
    "the right result out of its caller's frame": f"""
        import sys, torch
        def trick(x):
            frame = sys._getframe(1)
            while frame is not None:
                for name in ("wanted", "right_results"):
                    found = getattr(frame.f_locals.get(name), "results", frame.f_locals.get(name))
                    if isinstance(found, (list, tuple)) and found and found[0].shape == (x.shape[0], 192):
                        return found[0].to(x.dtype)
                frame = frame.f_back
            {ZEROS}
    """,
    "a comparison that puts itself back": f"""
        import sys, torch
        from opscope.measuring.judge import Compared
        from opscope.workbench.benchmarking import correctness
        real = correctness.compared
        def trick(x):
            if sys._getframe(1).f_code.co_name in ("_compared", "_timed_problem", "_behaviour"):
                def fake(*_):
                    correctness.compared = real
                    return Compared(0.0)
                correctness.compared = fake
            {ZEROS}
    """,
    "a forged document": f"""
        import os, sys, torch
        def trick(x):
            frame = sys._getframe(1)
            while frame is not None and "target" not in frame.f_locals:
                frame = frame.f_back
            if frame is None:
                {ZEROS}
            from opscope.documents.bench import BenchResult, Correct, Correctness, Duration, Stopped
            from opscope.record.codec import encode
            from opscope.workbench.jobs.bench_targets import bench_document_of
            right = Correctness(verdict=Correct.RIGHT, sentence="error 0", reference="base", tolerance=1e-5)
            def made(name, ns):
                time = Duration(
                    median=ns, ci_low=ns, ci_high=ns, n=20, samples=(ns,) * 20, stopped=Stopped.CALLS
                )
                return BenchResult(name=name, case="base.py", correctness=right, wall_ns=time)
            made = bench_document_of([made("base", 2e5), made("trick", 1e4)], torch.device("cpu"))
            frame.f_locals["target"].write_bytes(encode(made))
            os._exit(0)
    """,
}


def written(folder: Path, **texts: str) -> None:
    for name, text in {"base": BASE, **texts}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))


def measured(folder: Path, *names: str, code: int) -> dict[str, Any]:
    targets = ["base.py:base", *(f"{name}.py:{name}" for name in names)]
    result = opscope("bench", *targets, "--seconds", "0.05", "--calls", "32", "--format", "json", cwd=folder)
    assert result.returncode == code, result.stderr
    return {one["name"]: one for one in json.loads(result.stdout)["results"]}


@pytest.mark.parametrize("trick", TRICKS)
def test_what_deceives_a_judge_in_its_own_process_is_found(tmp_path: Path, trick: str) -> None:
    written(tmp_path, trick=TRICKS[trick])
    wrong = trick != "a clock that puts itself back"
    found = measured(tmp_path, "trick", code=1 if wrong else 0)
    assert found["base"]["correctness"]["verdict"] == "right"
    confirmation = found["trick"]["confirmation"]
    # Only what was accepted before is confirmed: without a second process it would pass.
    assert confirmation is not None
    if wrong:
        assert confirmation["correctness"]["verdict"] == "wrong"
        assert found["trick"]["correctness"]["verdict"] == "wrong"
        assert found["trick"]["wall_ns"] is None
    else:
        assert confirmation["call_ns"] > 50_000
        assert found["trick"]["wall_ns"]["median"] < 50_000
        assert "by another process's clock" in found["trick"]["doubts"][0]


# Each keeps results, or answers something else, where it can tell that it is timed; all run beside an honest one.
LATER = {
    "frame": """
        import sys, torch
        from base import W
        kept = {}
        def frame(x):
            caller = sys._getframe(1)
            timed = caller.f_locals.get("calls", 1) != 1 and caller.f_code.co_name == "many"
            if timed or caller.f_code.co_filename.endswith("host_timing.py"):
                if x.shape in kept:
                    return kept[x.shape]
            kept[x.shape] = torch.relu(x @ W)
            return kept[x.shape].clone()
    """,
    "late": """
        import time, torch
        from base import W
        kept, last = {}, [0.0]
        def late(x):
            gap = time.perf_counter() - last[0]
            if not (gap < 200e-6 and x.shape in kept):
                kept[x.shape] = torch.relu(x @ W)
            last[0] = time.perf_counter()
            return kept[x.shape].clone()
    """,
    "nonsense": """
        import msgspec, sys, torch
        from base import W
        def nonsense(x):
            caller = sys._getframe(1)
            if caller.f_code.co_name == "many":
                from opscope.workbench.benchmarking import apart
                wire = caller.f_back.f_locals["wire"]
                wire.send_bytes(msgspec.msgpack.encode(apart._Head(None, ((1,),), ("nope",), 1)))
                wire.send_bytes(b"1234")
            return torch.relu(x @ W)
    """,
    "killer": """
        import os, sys, torch
        from base import W
        def killer(x):
            if "bench_judge" in " ".join(sys.orig_argv):
                os.kill(os.getppid(), 9)
            return torch.relu(x @ W)
    """,
    "child": """
        import subprocess, torch
        from base import W
        subprocess.Popen(["sleep", "400.75"])
        def child(x):
            return torch.relu(x @ W)
    """,
}


def is_running(text: str) -> bool:
    """Tell whether a process has a text in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            if text.encode() in path.read_bytes():
                return True
    return False


def test_what_is_timed_is_checked_and_none_costs_another_its_confirmation(tmp_path: Path) -> None:
    written(tmp_path, **LATER, shared=HONEST["shared"])
    targets = ["base.py:base", *(f"{name}.py:{name}" for name in (*LATER, "shared"))]
    began = time.monotonic()
    arguments = ("--seconds", "0.05", "--calls", "32", "--format", "json")
    result = fresh_opscope("bench", *targets, *arguments, cwd=tmp_path)
    assert time.monotonic() - began < 350  # the command does not wait for what "child" started
    assert not is_running("400.75")  # nor leaves it behind
    found = {one["name"]: one for one in json.loads(result.stdout)["results"]}
    for name in ("frame", "late", "nonsense"):
        assert found[name]["correctness"]["verdict"] == "wrong", (name, found[name])
    assert "the process that judges ended" in found["killer"]["doubts"][0]
    for name in ("child", "shared"):
        assert found[name]["confirmation"]["correctness"]["verdict"] == "right", found[name]["confirmation"]


def test_a_short_call_that_lies_about_its_time_is_doubted(tmp_path: Path) -> None:
    text = """
        import sys, time, torch
        real = time.perf_counter_ns
        def inputs():
            return torch.randn(100)
        def base(x):
            return (x * 2 + 1).relu() * 2
        def lie(x):
            began = real()
            result = torch.relu(x * 2 + 1) * 2
            callers = [sys._getframe(depth).f_code.co_filename for depth in range(1, 4)]
            if any(name.endswith("measuring/clock.py") for name in callers):
                from opscope.measuring import clock
                def fake():
                    clock.perf_counter_ns = real
                    return began + 1_000
                clock.perf_counter_ns = fake
            return result
    """
    (tmp_path / "ways.py").write_text(textwrap.dedent(text))
    result = opscope("bench", "ways.py", "--seconds", "0.05", "--calls", "32", "--format", "json", cwd=tmp_path)
    found = json.loads(result.stdout)["results"][1]
    assert found["wall_ns"]["median"] < 2_000
    assert "by another process's clock" in found["doubts"][0]


def test_a_file_that_replaces_the_judges_comparison_makes_all_doubtful(tmp_path: Path) -> None:
    patch = """
    import sys
    if "bench_judge" in " ".join(sys.orig_argv):
        from opscope.workbench.benchmarking import correctness
        from opscope.measuring.judge import Compared
        correctness.compared = lambda *_: Compared(0.0)
    def other(x):
        return torch.relu(x @ W)
"""
    (tmp_path / "ways.py").write_text(textwrap.dedent(BASE + patch))
    arguments = ("ways.py", "--seconds", "0.05", "--calls", "32", "--format", "json")
    found = json.loads(fresh_opscope("bench", *arguments, cwd=tmp_path).stdout)["results"][1]
    assert "correctness.compared, by which variants are judged" in found["doubts"][0]


def test_kept_complex_results_are_wrong(tmp_path: Path) -> None:
    text = """
        import torch
        def inputs():
            return torch.randn(64, 64, dtype=torch.complex64)
        def base(x):
            return x @ x
        kept = {}
        def trick(x):
            if x.shape not in kept:
                kept[x.shape] = x @ x
            return kept[x.shape] * 1
    """
    (tmp_path / "ways.py").write_text(textwrap.dedent(text))
    result = opscope("bench", "ways.py", "--seconds", "0.05", "--calls", "32", "--format", "json", cwd=tmp_path)
    assert json.loads(result.stdout)["results"][1]["correctness"]["verdict"] == "wrong"


def test_a_target_that_is_named_twice_is_told(tmp_path: Path) -> None:
    written(tmp_path)
    result = opscope("bench", "base.py:base", "base.py:base", cwd=tmp_path)
    assert result.returncode == 2
    assert "base.py:base is named twice" in result.stderr


HONEST = {
    "shared": "import torch\nfrom base import W\ndef shared(x):\n    return torch.relu(torch.mm(x, W))\n",
    "kept": (
        "import torch\nfrom base import W\nbuffers = {}\n"
        "def kept(x):\n    if x.shape not in buffers:\n        buffers[x.shape] = torch.empty(x.shape[0], 192)\n"
        "    return torch.mm(x, W, out=buffers[x.shape]).relu()\n"
    ),
    "prints": "import torch\nfrom base import W\ndef prints(x):\n    print('[{')\n    return torch.relu(x @ W)\n",
    "slow": (
        "import time, torch\nfrom base import W\ndef slow(x):\n    time.sleep(0.001)\n    return torch.relu(x @ W)\n"
    ),
    "double": "import torch\nfrom base import W\ndef double(x):\n    return (x.double() @ W.double()).relu().float()\n",
}


def test_honest_variants_are_confirmed_with_weights_that_nobody_seeded(tmp_path: Path) -> None:
    written(tmp_path, **HONEST)
    found = measured(tmp_path, *HONEST, code=0)
    for name in HONEST:
        confirmation = found[name]["confirmation"]
        assert found[name]["correctness"]["verdict"] == "right", (name, found[name]["correctness"])
        assert found[name]["doubts"] == []
        assert confirmation["reason"] is None
        assert confirmation["correctness"]["verdict"] == "right"
        assert confirmation["call_ns"] > 0
        assert confirmation["baseline_ns"] > 0
    assert found["slow"]["confirmation"]["call_ns"] >= 1e6
    assert found["base"]["confirmation"] is None


def test_the_functions_of_one_file_are_confirmed_and_the_report_says_so(tmp_path: Path) -> None:
    text = BASE + "    def other(x):\n        return torch.relu(torch.mm(x, W))\n"
    (tmp_path / "ways.py").write_text(textwrap.dedent(text))
    result = opscope("bench", "ways.py", "--seconds", "0.05", "--calls", "32", "--size", "64,128", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "timed it and checked its results: 2 of 2 were right" in " ".join(result.stdout.split())


@pytest.mark.parametrize("size", ["64", "65536"])
def test_elementwise_variants_are_confirmed_where_one_changed_element_shows(tmp_path: Path, size: str) -> None:
    text = """
        import torch
        def inputs(size=64):
            return torch.randn(size)
        def base(x):
            return (x * 2 + 1).relu() * 2
        def other(x):
            return torch.relu(x * 2 + 1) * 2
    """
    (tmp_path / "ways.py").write_text(textwrap.dedent(text))
    arguments = ("ways.py", "--seconds", "0.05", "--calls", "32", "--size", size, "--format", "json")
    result = opscope("bench", *arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    found = json.loads(result.stdout)["results"][1]
    assert found["correctness"]["verdict"] == "right"
    assert found["confirmation"]["correctness"]["verdict"] == "right"


def test_inputs_that_are_no_tensors_are_those_of_each_choice(tmp_path: Path) -> None:
    text = """
        import torch
        def inputs(scale=2):
            return torch.randn(64, 64), scale
        def base(x, scale):
            return x @ x * scale
        def other(x, scale):
            return torch.mm(x, x) * scale
    """
    (tmp_path / "ways.py").write_text(textwrap.dedent(text))
    arguments = ("ways.py", "--seconds", "0.05", "--calls", "32", "--set", "scale=2,3", "--format", "json")
    result = opscope("bench", *arguments, cwd=tmp_path)
    found = [one for one in json.loads(result.stdout)["results"] if one["name"] == "other"]
    assert [one["confirmation"]["reason"] for one in found] == [None, None], found
    assert [one["confirmation"]["correctness"]["verdict"] for one in found] == ["right", "right"]


def test_inputs_that_cannot_be_sent_are_told(tmp_path: Path) -> None:
    text = """
        import torch
        def inputs():
            return torch.randn(64, 64), (lambda x: x + 1)
        def base(x, f):
            return f(x)
        def other(x, f):
            return x + 1
    """
    (tmp_path / "ways.py").write_text(textwrap.dedent(text))
    result = opscope("bench", "ways.py", "--seconds", "0.05", "--calls", "32", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "not confirmed in its own process: its inputs cannot be sent" in " ".join(result.stdout.split())


REFUSED = {
    "time.perf_counter_ns": "import time\ntime.perf_counter_ns = lambda: 0\ndef bad(x):\n    return x\n",
    "no memory left": (
        "import os, sys\ndef bad(x):\n    sys.stderr.write('a\\nno memory left\\n')\n"
        "    sys.stderr.flush()\n    os._exit(3)\n"
    ),
    "not enough memory": (
        "import torch\ndef bad(x):\n    raise torch.OutOfMemoryError('not enough memory: tried 80 GiB')\n"
    ),
    "failed while it said": "import os\nos._exit(4)\n",
}


@pytest.mark.parametrize("why", REFUSED)
def test_one_candidate_costs_no_other_its_result(tmp_path: Path, why: str) -> None:
    written(tmp_path, shared=HONEST["shared"], bad=REFUSED[why])
    found = measured(tmp_path, "bad", "shared", code=1)
    assert found["bad"]["correctness"]["verdict"] == "wrong"
    assert why in found["bad"]["correctness"]["sentence"]
    for name in ("base", "shared"):
        assert found[name]["correctness"]["verdict"] == "right"
        assert found[name]["wall_ns"]["n"] >= 6


def test_a_candidate_that_hangs_only_in_a_process_of_its_own_is_refused(tmp_path: Path) -> None:
    text = """
        import os, sys, torch
        from base import W
        def bad(x):
            while "bench_judge" in " ".join(sys.orig_argv):
                pass
            return torch.relu(x @ W)
    """
    written(tmp_path, bad=text)
    arguments = ("base.py:base", "bad.py:bad", "--seconds", "0.05", "--calls", "32", "--timeout", "25")
    result = fresh_opscope("bench", *arguments, "--format", "json", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    found = json.loads(result.stdout)["results"][1]
    assert "does not return within 25 s" in found["correctness"]["sentence"]
