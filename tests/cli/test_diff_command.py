"""``opscope diff`` as a command, and the action for pull requests."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opscope.cli import COMMANDS
from tests.command import WITHOUT_TORCH, opscope
from tests.conftest import DATA, ROOT
from tests.kineto import KinetoTrace

yaml = pytest.importorskip("yaml")
CHANGES = DATA / "changes"


def diff(before: object, after: object, *options: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    return opscope("diff", str(before), str(after), *options, code=code)


@pytest.mark.parametrize(
    ("after", "limit", "code", "words"),
    [
        ("again", "20%", 0, ""),
        ("extra", "5%", 1, "regression. The unprofiled step is slower"),
        ("extra", "8%", 5, "inconclusive"),
        ("batch16", "5", 1, "What grew most: `aten::addmm`"),
        ("tf32", "5%", 0, ""),
    ],
)
def test_the_exit_code_says_what_is_proven(after: str, limit: str, code: int, words: str) -> None:
    done = diff(CHANGES / "before", CHANGES / after, "--fail-over", limit)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert diff(CHANGES / "before", CHANGES / after).returncode == 0  # without a limit nothing fails


def test_a_compiled_region_is_opened_to_its_kernels(tmp_path: Path) -> None:
    sides = []
    for name, reduction in (("before", 20_000), ("after", 45_000)):
        built = KinetoTrace()
        for number in range(3):
            at = number * 1_000_000
            built.step(number + 1, at, 900_000)
            built.operator("## Call CompiledFxGraph fabc ##", at + 2_000, 490_000)
            kernels = (("triton_poi_fused_add_0", 10_000), ("triton_red_fused_sum_1", reduction), ("gemm", 30_000))
            for place, (kernel, length) in enumerate(kernels):
                start = at + 600_000 + place * 50_000
                built.launched_kernel(kernel, (at + 5_000 + place * 1_000, 500), (start, length))
        sides.append(built.write(tmp_path / f"{name}.json"))
    text = diff(*sides).stdout
    opened = text[text.index("Kernels of ## Call CompiledFxGraph fabc ##, a step:") :].splitlines()
    assert [" ".join(line.split()) for line in opened[4:7]] == [
        "torch.compile reduction: sum +25.00 us 20.00 us 45.00 us 1",
        "gemm (matrix product, likely) 0 ns 30.00 us 30.00 us 1",
        "torch.compile pointwise: add 0 ns 10.00 us 10.00 us 1",
    ]
    (pair,) = json.loads(diff(*sides, "--format", "json").stdout)["pairs"]
    assert [(row["name"], row["change_ns"], row["after_ns"]) for row in pair["kernels"]] == [
        ("triton_red_fused_sum_1", 25_000, 45_000),
        ("gemm", 0, 30_000),
        ("triton_poi_fused_add_0", 0, 10_000),
    ]


def test_formats_say_the_same(tmp_path: Path) -> None:
    sides = CHANGES / "before", CHANGES / "tf32"
    document = json.loads(diff(*sides, "--format", "json").stdout)
    assert document["schema"] == "opscope.diff/1"
    (pair,) = document["pairs"]
    rows = list(csv.DictReader(diff(*sides, "--format", "csv").stdout.splitlines()))
    assert [int(row["change_ns"]) for row in rows] == [row["change_ns"] for row in pair["step"]["work"]]
    table, markdown = (diff(*sides, "--format", name).stdout for name in ("table", "md"))
    for text in (table, markdown):
        assert "The unprofiled step is faster: 580.7 us before, 373.8 us after" in text
        assert "FP32 GEMM" in text
        assert "TF32 GEMM" in text
    assert table.index("float32 matmul precision") < table.index("The unprofiled step is faster")
    assert "| `aten::addmm` |" in markdown
    few = diff(*sides, "--top", "2", "--format", "md").stdout
    assert "6 other groups of work" in few
    done = diff(*sides, "--page", str(tmp_path / "diff.html"))
    assert (tmp_path / "diff.html").stat().st_size < 1_500_000
    assert "diff.html" in done.stderr


def test_configurations_of_sweeps_are_paired(tmp_path: Path) -> None:
    sweep = shutil.copytree(DATA / "h200_bert_small", tmp_path / "sweep")
    fewer = shutil.copytree(sweep, tmp_path / "fewer")
    manifest = json.loads((fewer / "manifest.json").read_bytes())
    manifest["entries"] = manifest["entries"][:2]
    (fewer / "manifest.json").write_text(json.dumps(manifest))
    document = json.loads(diff(sweep, fewer, "--format", "json").stdout)
    assert [pair["name"] for pair in document["pairs"]] == ["bs1_seq128", "bs8_seq128"]
    assert (document["only_before"], document["only_after"]) == (["bs16_seq128"], [])
    assert {pair["step"]["change_ns"] for pair in document["pairs"]} == {0}
    assert {pair["unprofiled"]["verdict"] for pair in document["pairs"]} == {"no difference found"}


def with_entries(sweep: Path, name: str, kept: tuple[int, ...], failed: tuple[int, ...] = ()) -> Path:
    """A copy of a sweep that has only some configurations, of which some have no result."""
    copy = shutil.copytree(sweep, sweep.parent / name)
    manifest = json.loads((copy / "manifest.json").read_bytes())
    for number in failed:
        failure = {"kind": "error", "message": "it broke"}
        manifest["entries"][number] |= {"status": "failed", "measured": False, "failure": failure, "trust": None}
    manifest["entries"] = [manifest["entries"][number] for number in (*kept, *failed)]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def test_configurations_of_other_names_are_paired_only_where_each_side_has_one_and_no_other(tmp_path: Path) -> None:
    sweep = shutil.copytree(DATA / "h200_bert_small", tmp_path / "sweep")
    one, other = with_entries(sweep, "one", (0,)), with_entries(sweep, "other", (2,))
    (pair,) = json.loads(diff(one, other, "--any-steps", "--format", "json").stdout)["pairs"]
    assert pair["name"] == "bs1_seq128, bs16_seq128"
    # What failed may be what the other side has, so the two that are left need not belong together.
    for sides in (
        (with_entries(sweep, "lost", (0,), (1,)), other),
        (other, with_entries(sweep, "lost_after", (0,), (1,))),
        (with_entries(sweep, "two", (0, 1)), other),
    ):
        refused = diff(*sides, "--any-steps")
        assert (refused.returncode, "no configuration in common" in refused.stderr) == (2, True), refused.stdout


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    sweep = shutil.copytree(DATA / "h200_bert_small", tmp_path / "sweep")
    apart = diff(sweep, CHANGES / "before")
    assert (apart.returncode, "no configuration in common" in apart.stderr) == (2, True)
    trace = KinetoTrace()
    trace.step(1, 0, 10_000)
    trace.operator("aten::mm", 1_000, 3_000)
    host = trace.write(tmp_path / "host.json")
    told = diff(host, DATA / "traces" / "cdist.json.gz", "--fail-over", "5%")
    assert told.returncode == 5
    assert "not taken apart: one of the two ran on a device" in told.stdout
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(host, folder / "host.json")
    (folder / "notes.json").write_text("no trace")
    some = diff(folder, folder)
    assert (some.returncode, "host.json" in some.stdout, "notes.json" in some.stderr) == (4, True, True)
    for limit in ("nan", "inf", "-5%", "much"):
        assert diff(host, host, "--fail-over", limit).returncode == 2
    assert diff(host, host, "--page", str(tmp_path / "no" / "page.html")).returncode == 3
    assert diff(tmp_path / "nothing.json", host).returncode in (3, 4)
    (tmp_path / "cut.json").write_text(host.read_text()[:-60])
    assert diff(host, tmp_path / "cut.json").returncode == 4
    assert diff(host, tmp_path / "cut.json", "--allow-damaged").returncode == 0


def test_a_difference_needs_no_pytorch() -> None:
    assert diff(CHANGES / "before", CHANGES / "again", code=WITHOUT_TORCH).returncode == 0


# ---------------------------------------------------------------- the action


def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


def step(name: str) -> dict[str, Any]:
    (found,) = [one for one in action()["runs"]["steps"] if one["name"] == name]
    return found


def in_shell(name: str, folder: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """Run a step as the runner does, with the values that its expressions would have."""
    files = {key: str(folder / key) for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    places = {"RUNNER_TEMP": str(folder), "FOLDER": str(folder), "GITHUB_REPOSITORY": "someone/model"}
    checkout = folder / "checkout"
    checkout.mkdir(exist_ok=True)
    for module in ("json", "venv", "msgspec", "opscope"):  # what a pull request may put there
        (checkout / f"{module}.py").write_text(f"open({str(folder / 'executed')!r}, 'w')\n")
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]],
        env={**os.environ, **files, **places, **values}, cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A runner's folder with a Python that has opscope, and a gh that writes down how it is called."""
    tools = tmp_path / "python" / "bin"
    tools.mkdir(parents=True)
    (tools / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tools / "gh").write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/gh-called"\n')
    for name in ("python", "gh"):
        (tools / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(("after", "gate"), [("again", "inconclusive"), ("extra", "regression")])
def test_the_action_compares_comments_and_decides(runner: Path, after: str, gate: str) -> None:
    sides = {
        "BEFORE": str(CHANGES / "before"),
        "AFTER": str(CHANGES / after),
        "FAIL_OVER": "5%",
        "PAGE": str(runner / "p.html"),
    }
    compared = in_shell("Compare", runner, **sides)
    assert compared.returncode == 0, compared.stderr
    assert (runner / "GITHUB_OUTPUT").read_text() == f"gate={gate}\n"
    assert "## What changed" in (runner / "GITHUB_STEP_SUMMARY").read_text()
    assert (runner / "p.html").is_file()
    assert not (runner / "executed").exists()
    path = f"{runner / 'python' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    commented = in_shell("Comment", runner, NUMBER="12", GH_TOKEN="t", PATH=path)
    assert commented.returncode == 0, commented.stderr
    calls = (runner / "gh-called").read_text()
    assert "api --silent --method POST repos/someone/model/issues/12/comments --field body=@" in calls
    assert "PATCH" not in calls  # there was no comment of its own yet
    assert (runner / "comment.md").read_text().startswith("<!-- opscope diff -->\n## What changed")
    assert in_shell("Decide", runner, GATE=gate, STRICT="false").returncode == (1 if gate == "regression" else 0)
    assert in_shell("Decide", runner, GATE="inconclusive", STRICT="false").returncode == 0
    assert in_shell("Decide", runner, GATE="inconclusive", STRICT="true").returncode == 1
    assert in_shell("Decide", runner, GATE="incomplete", STRICT="false").returncode == 1


GH = """#!/bin/sh
echo "$@" >> "{folder}/gh-called"
case "$*" in
  "api user --jq .login") [ -n "$LOGIN" ] && echo "$LOGIN" || exit 1 ;;
  *--jq*)
    [ -z "$AUTHOR" ] && exit 1
    case "$*" in *'select(.user.login == env.AUTHOR)'*) ;; *) exit 1 ;; esac
    [ "$AUTHOR" = "$WROTE" ] && echo 77 ;;
esac
exit 0
"""


@pytest.mark.parametrize(
    ("login", "wrote", "method"),
    [("", "stranger", "POST"), ("", "github-actions[bot]", "PATCH"), ("me", "github-actions[bot]", "POST")],
)
def test_only_a_comment_of_ones_own_is_replaced(runner: Path, login: str, wrote: str, method: str) -> None:
    tools = runner / "python" / "bin"
    (tools / "gh").write_text(GH.format(folder=runner))
    (runner / "diff.md").write_text("## What changed\n")
    values = {"NUMBER": "12", "GH_TOKEN": "t", "LOGIN": login, "WROTE": wrote}
    done = in_shell("Comment", runner, **values, PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert f"--method {method}" in (runner / "gh-called").read_text()


def test_a_second_use_shows_nothing_of_the_first(runner: Path) -> None:
    again = {"BEFORE": str(CHANGES / "before"), "AFTER": str(CHANGES / "again"), "FAIL_OVER": "5%"}
    assert in_shell("Compare", runner, **again, PAGE=str(runner / "p.html")).returncode == 0
    shown = (runner / "GITHUB_STEP_SUMMARY").read_text()
    second = runner / "second"
    (second / "python").mkdir(parents=True)
    (second / "python" / "bin").symlink_to(runner / "python" / "bin")
    failing = {**again, "AFTER": str(runner / "nothing"), "PAGE": str(runner / "p.html"), "FOLDER": str(second)}
    assert in_shell("Compare", runner, **failing).returncode not in (0, 1, 5)
    assert (runner / "GITHUB_STEP_SUMMARY").read_text() == shown


def test_each_use_of_the_action_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert "mktemp -d" in step("Install opscope")["run"]
    for one in action()["runs"]["steps"]:
        for command in re.findall(r"(?m)^.*python.*$", one["run"]):
            if not command.lstrip().startswith("#"):
                assert " -I " in command or "folder" in command, command


def test_the_action_fails_where_opscope_does(runner: Path) -> None:
    sides = {
        "BEFORE": str(runner / "nothing"),
        "AFTER": str(CHANGES / "again"),
        "FAIL_OVER": "5%",
        "PAGE": str(runner / "p.html"),
    }
    assert in_shell("Compare", runner, **sides).returncode not in (0, 1, 5)


def test_expressions_of_the_action_reach_the_shell_as_variables_only() -> None:
    """What a pull request names must not become part of a script."""
    known = set(action()["inputs"])
    for one in action()["runs"]["steps"]:
        assert "${{" not in one["run"]
        for value in one.get("env", {}).values():
            for name in re.findall(r"inputs\.([\w-]+)", str(value)):
                assert name in known
    example = yaml.safe_load((ROOT / "examples" / "github" / "opscope-diff.yml").read_text())
    (used,) = [one for one in example["jobs"]["step-time"]["steps"] if str(one.get("uses", "")).startswith("opscope/")]
    assert set(used["with"]) <= known
    assert "diff" in COMMANDS


def test_what_changed_most_stands_first_and_small_rows_are_folded() -> None:
    shown = diff(CHANGES / "before", CHANGES / "compiled").stdout
    document = json.loads(diff(CHANGES / "before", CHANGES / "compiled", "--format", "json").stdout)
    step = document["pairs"][0]["step"]
    parts = [(row["change_ns"], row["operator"]) for row in step["work"]]
    parts += [(part["change_ns"], part["name"]) for part in step["parts"]]
    largest = sorted(parts, key=lambda part: -abs(part[0]))[:3]
    first = next(line for line in shown.splitlines() if line.startswith("What changed most"))
    places = [first.index(name) for _, name in largest]
    assert places == sorted(places)
    assert "idle +43.74 us (mostly dispatch)" in first
    assert shown.index(first) < shown.index("Work by operator and inputs:")
    small = [row for row in step["work"] if abs(row["change_ns"]) < 0.01 * abs(largest[0][0])]
    assert len(small) == 1
    assert "1 other group of work" in shown
    assert small[0]["operator"] not in shown.partition("Work by operator")[2]


@pytest.mark.parametrize("by", ["kernel", "category"])
def test_work_by_kernel_or_category_is_that_of_each_side(by: str) -> None:
    sides = CHANGES / "before", CHANGES / "compiled"
    (pair,) = json.loads(diff(*sides, "--by", by, "--format", "json").stdout)["pairs"]
    assert pair["by"] == by
    for side, name in zip(sides, ("before_ns", "after_ns"), strict=True):
        shown = opscope("analyze", str(side), "--by", by, "--format", "csv").stdout
        rows = list(csv.DictReader(shown.splitlines()))
        column = "total_ns" if by == "kernel" else "self_device_ns"
        steps = pair["step"]["steps_before" if name == "before_ns" else "steps_after"]
        assert sum(one[name] for one in pair["groups"]) == pytest.approx(sum(int(row[column]) for row in rows) / steps)
    values = list(csv.DictReader(diff(*sides, "--by", by, "--format", "csv").stdout.splitlines()))
    assert [int(row["change_ns"]) for row in values] == [one["change_ns"] for one in pair["groups"]]
    assert f"By {by}" in diff(*sides, "--by", by).stdout


def test_modules_that_were_not_recorded_are_said_to_be_missing() -> None:
    done = diff(CHANGES / "before", CHANGES / "compiled", "--by", "module")
    assert done.returncode == 0
    assert "Not both sides recorded modules" in done.stdout
