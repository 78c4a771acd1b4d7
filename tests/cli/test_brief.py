"""``opscope analyze --brief``, ``opscope show`` and ``--brief``: short, whole, and every number can be found again."""

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.base.text import count_tokens
from opscope.render.blocks import Bullets, Name, Paragraph, Section, Table, Whole
from opscope.render.brief import MOST_TOKENS, render_brief
from tests.analysis.test_recorded_traces import NAMES
from tests.budget import examples
from tests.command import WITHOUT_TORCH, opscope
from tests.conftest import DATA, ROOT
from tests.kineto import KinetoTrace

GPT2 = DATA / "traces" / "gpt2_train_amp_stacks.json.gz"


def brief(*words: object) -> str:
    done = opscope("analyze", "--brief", *map(str, words))
    assert done.returncode == 0, done.stderr
    return done.stdout


def document_of(*words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(opscope(*map(str, words), "--format", "json").stdout)
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return shutil.copy(GPT2, tmp_path / "gpt2.json.gz")


# ---------------------------------------------------------------- brief


@pytest.mark.parametrize("name", NAMES)
def test_it_is_short_and_begins_with_the_verdict(name: str, tmp_path: Path) -> None:
    path = shutil.copy(DATA / "traces" / f"{name}.json.gz", tmp_path)
    text = brief(path)
    document = document_of("analyze", path)
    assert count_tokens(text) <= MOST_TOKENS
    assert text.splitlines()[1] == f"{document['bound']['sentence']} [bound: {document['bound']['kind']}]"
    assert len(document["bound"]["sentence"].split()) <= 25
    for one in (found for found in document["findings"] if found["is_first"]):
        assert f"[findings/{one['id']}]" in text
        assert f"prove: `{one['prove']}`" in text


def test_every_address_of_it_leads_to_a_value(trace: Path) -> None:
    text = brief(trace)
    addresses = {found.split(":")[0] for found in re.findall(r"\[([a-z_]+(?:/[\w:-]+)*(?:: \w+)?)\]", text)}
    assert {
        "bound",
        "step_time/ns",
        "devices/0",
        "trust",
        "findings/dispatch_bound",
    } <= addresses
    for address in addresses:
        done = opscope("show", f"{trace}#{address}")
        assert done.returncode == 0, (address, done.stderr)
        assert done.stdout.splitlines()[0] == address


def test_what_was_not_measured_is_said_with_its_reason(trace: Path, tmp_path: Path) -> None:
    found = {one["what"]: one["why"] for one in document_of("analyze", "--brief", trace)["not_measured"]}
    assert found == {"a step without the profiler": "a trace holds no unprofiled steps"}
    built = KinetoTrace()
    built.operator("aten::mm", 0, 5_000)
    built.launched_kernel("k", (1_000, 1_000), (3_000, 9_000))
    bare = document_of("analyze", "--brief", built.write(tmp_path / "bare.json"))
    assert {one["what"] for one in bare["not_measured"]} == {
        *("a step without the profiler", "steps", "lines of Python and modules", "limits of operators", "memory"),
    }
    assert (bare["step"], bare["step_address"], bare["step_count"]) == (None, None, 0)


def test_of_a_run_the_unprofiled_step_counts_and_the_program_is_named(tmp_path: Path) -> None:
    run = shutil.copytree(DATA / "changes" / "before", tmp_path / "before")
    found = document_of("analyze", "--brief", run)
    assert (found["step"]["basis"], found["step"]["steps"]) == ("unprofiled step", 848)
    assert found["step"]["ns"] == pytest.approx(580_735, rel=1e-3)
    assert found["findings"][0]["prove"] == (
        "opscope advise --only tf32 autocast_bf16 --batch-size 8 --mode inference -- benchmarks/changes.py:encoder"
    )


@pytest.mark.parametrize("name", [*NAMES])
def test_commands_that_prove_run_as_they_are_printed(name: str, tmp_path: Path) -> None:
    path = shutil.copy(DATA / "traces" / f"{name}.json.gz", tmp_path / "a trace.json.gz")
    found = document_of("analyze", "--brief", path)
    commands = [one["prove"] for one in found["findings"]] + [one["command"] for one in found["next"]]
    for command in commands:
        words = shlex.split(command, comments=True)
        assert words[0] == "opscope"
        if words[1] == "page":
            words += ["-o", str(tmp_path / "page.html"), "--overwrite"]
        done = opscope(*words[1:])
        assert done.returncode == 0, (command, done.stderr)


def test_what_the_brief_of_a_run_names_is_the_run_with_its_record(tmp_path: Path) -> None:
    run = shutil.copytree(DATA / "changes" / "before", tmp_path / "a run")
    found = document_of("analyze", "--brief", run)
    assert found["trace"] == f"{run}/bs8"
    for command in [one["command"] for one in found["next"]]:
        words = shlex.split(command)[1:]
        more = ("-o", str(tmp_path / "page.html"), "--overwrite") if words[0] == "page" else ()
        done = opscope(*words, *more)
        assert done.returncode == 0, (command, done.stderr)
    (wall,) = document_of("show", f"{found['trace']}#{found['step_address']}")["values"]
    assert wall["value"] == found["step"]["ns"]
    (bound,) = document_of("show", f"{found['trace']}#bound/kind")["values"]
    assert bound["value"] == found["bound"] != "unknown"
    assert document_of("analyze", "--brief", found["trace"]) == found
    gone = opscope("analyze", "--brief", f"{run}/bs9")
    assert gone.returncode != 0


def test_a_number_sign_in_a_name_is_a_part_of_it(trace: Path, tmp_path: Path) -> None:
    odd = shutil.copy(trace, tmp_path / "a#b.json.gz")
    assert document_of("show", f"{odd}#bound/kind")["values"][0]["value"] == "unknown"
    assert document_of("show", odd, "bound/kind")["values"][0]["value"] == "unknown"
    for command in [
        one["command"] for one in document_of("analyze", "--brief", odd)["next"] if "page" not in one["command"]
    ]:
        assert opscope(*shlex.split(command)[1:]).returncode == 0, command


@pytest.mark.parametrize(
    "name", ["-dash.json.gz", "two  words'.json.gz", "new\nline\x1b[1m.json.gz", "漢.json.gz", "a`b.json.gz"]
)
def test_commands_for_odd_names_run_in_a_shell(trace: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(trace, tmp_path / name)
    text = opscope("analyze", "--brief", f"./{name}", cwd=tmp_path).stdout
    command = next(line for line in text.splitlines() if "opscope whatif" in line and "--finding" in line)
    words = command.split("`")[1].removeprefix("opscope ")
    shell = ["bash", "-c", f"{sys.executable} -P -m opscope {words}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    found = opscope("analyze", "--brief", f"./{name}", "--format", "json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["schema"] == "opscope.brief/1"


def test_a_name_that_is_not_utf8_is_answered(trace: Path, tmp_path: Path) -> None:
    """Such a name cannot stand in text that is UTF-8, so no command can be printed that names it."""
    shutil.copy(trace, tmp_path / "caf\udce9.json.gz")
    found = opscope("analyze", "--brief", "./caf\udce9.json.gz", "--format", "json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["schema"] == "opscope.brief/1"


def test_arguments_of_a_record_are_words_and_nothing_else() -> None:
    from opscope.analysis.advice.advised import proving_command
    from opscope.record.configuration import Configuration

    def command(settings: dict[str, Any], target: str = "train.py", rule: str = "host_work") -> str:
        return proving_command(rule, "x", "t.json", Configuration(target, settings), replays=())

    evil = command({"arguments": "$(touch hit) `id` ; rm -rf x"})
    assert shlex.split(evil, comments=True)[3:] == ["train.py", "$(touch", "hit)", "`id`", ";", "rm", "-rf", "x"]
    assert "'$(touch'" in evil
    assert command({"arguments": "it's"}).startswith("opscope show t.json findings/x")
    assert shlex.split(command({"arguments": "--name 'two words'"}), comments=True)[-1] == "two words"
    compiled = command({"mode": "training", "compile": True, "simplified": False}, "bert", "dispatch_bound")
    assert compiled.startswith("opscope profile --mode training --compile -- bert  #")  # advise has no --compile
    own = command({"mode": "training", "width": 8}, "m.py:make", "dispatch_bound")
    assert own == "opscope advise --only compile compile_reduce_overhead --mode training --set width=8 -- m.py:make"


def test_a_damaged_trace_says_so_in_every_format(tmp_path: Path) -> None:
    built = KinetoTrace()
    built.operator("aten::mm", 0, 5_000)
    built.launched_kernel("k", (1_000, 1_000), (3_000, 9_000))
    whole = built.write(tmp_path / "whole.json").read_bytes()
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[:-30])
    for form in ("brief", "csv", "json"):
        done = opscope("analyze", "--brief", str(cut), "--format", form)
        assert done.returncode == 4
        assert "file_is_valid" in done.stdout + done.stderr, form
    doubts = json.loads(opscope("analyze", "--brief", str(cut), "--format", "json").stdout)["doubts"]
    assert doubts[0].startswith("fail ")


def test_two_formats_at_once_are_refused(trace: Path) -> None:
    for words in (("--brief", "--format", "json"), ("--format", "csv", "--brief")):
        done = opscope("limits", str(trace), *words)
        assert done.returncode == 2
        assert "are two formats: give one" in done.stderr


def test_the_document_of_the_brief_is_of_whole_traces(trace: Path) -> None:
    refused = opscope("analyze", str(trace), "--brief", "--format", "json", "--by", "kernel")
    assert refused.returncode == 2
    assert "--brief --format json is of whole traces: leave out --by" in refused.stderr
    csv = opscope("analyze", str(trace), "--brief", "--format", "csv").stdout
    assert csv.splitlines()[0] == "id,likely_ns,title,prove"


def test_several_traces_have_a_line_each(tmp_path: Path) -> None:
    for name in ("cudagraph_replay", "gpt2_train_amp_stacks"):
        shutil.copy(DATA / "traces" / f"{name}.json.gz", tmp_path)
    text = brief(tmp_path)
    listed = opscope("analyze", str(DATA / "h200_bert_small"), "--brief").stdout
    assert "h200_bert_small/bs8_seq128` | " in listed  # a run's configuration, with its record, and no file of it
    assert "cudagraph_replay.json.gz` | " in text
    assert "gpt2_train_amp_stacks.json.gz` | " in text


def test_it_needs_no_pytorch(trace: Path) -> None:
    for words in (("analyze", str(trace), "--brief"), ("show", f"{trace}#bound")):
        done = opscope(*words, code=WITHOUT_TORCH)
        assert done.returncode == 0, done.stderr


def test_names_without_end_do_not_make_it_long(tmp_path: Path) -> None:
    built = KinetoTrace()
    built.step(1, 0, 4_000_000)
    for place in range(40):
        at = 1_000 + place * 90_000
        built.operator(f"my::{'x' * 50_000}{place}", at, 9_000)
        built.launched_kernel(f"{'k' * 50_000}{place}", (at + 2_000, 1_000), (at + 5_000, 50_000))
    path = built.write(tmp_path / "long.json")
    for words in (("analyze", path, "--brief"), ("analyze", path, "--by", "kernel", "--brief")):
        done = opscope(*map(str, words))
        assert done.returncode == 0, done.stderr
        assert count_tokens(done.stdout) <= MOST_TOKENS


# ---------------------------------------------------------------- show


def leaves(value: object, address: str = "") -> list[tuple[str, object]]:
    """Return the address and value of everything in a document that has no parts."""
    parts: list[tuple[str, object]] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            parts += leaves(inner, f"{address}/{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value, start=1):
            parts += leaves(inner, f"{address}/{number}")
    else:
        parts.append((address.lstrip("/"), value))
    return parts


def test_any_value_of_the_document_is_found_by_its_address(trace: Path) -> None:
    document = document_of("analyze", trace)
    # Entries by number; a name that is a number itself would mean another entry.
    every = [(address, value) for address, value in leaves(document) if not address.startswith(("devices", "steps"))]
    chosen = random.Random(7).sample(every, 200)
    found = document_of("show", f"{trace}#{chosen[0][0]}", *(address for address, _ in chosen[1:]))
    for (address, value), shown in zip(chosen, found["values"], strict=True):
        assert shown["value"] == value, address


def test_a_value_comes_with_its_unit_and_what_it_means(trace: Path) -> None:
    done = opscope("show", f"{trace}#devices/0/busy_ns")
    assert done.stdout.splitlines() == [
        "devices/0/busy_ns",
        "the time in which at least one of them ran: the union of their intervals.",
        "25.10 ms (25,104,876 ns)",
    ]
    (shown,) = document_of("show", f"{trace}#operators/aten::mm/calls")["values"]
    assert (shown["value"], shown["means"]) == (102, "number of calls.")
    (cause,) = document_of("show", f"{trace}#devices/0/idle_by_cause_ns/dispatch")["values"]
    assert cause["text"] == f"28.20 ms ({cause['value']:,} ns)"
    (whole,) = document_of("show", f"{trace}#findings/dispatch_bound")["values"]
    assert "findings/dispatch_bound/saving_ns" in whole["inside"]


def test_a_name_that_several_have_is_no_address(tmp_path: Path) -> None:
    built = KinetoTrace()
    for device in (0, 1):
        built.launched_kernel("gemm", (1_000 + device, 1), (3_000, 9_000 + device), device=device)
    path = built.write(tmp_path / "two.json")
    (kernels,) = document_of("show", f"{path}#kernels")["values"]
    assert kernels["inside"] == ["kernels/1", "kernels/2"]
    shown = document_of("show", path, *(f"{address}/total_ns" for address in kernels["inside"]))["values"]
    assert [one["value"] for one in shown] == [row["total_ns"] for row in kernels["value"]] == [9_001, 9_000]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nix", "there is no nix in the document; it has schema"),
        ("operators/aten::nix", "there is no aten::nix in operators"),
        ("operators/0", "there is no 0 in operators"),
        ("bound/kind/x", "there is no x in bound/kind; it has no parts"),
        ("operators/²", "there is no ² in operators"),
    ],
)
def test_what_is_not_there_is_said(trace: Path, address: str, words: str) -> None:
    done = opscope("show", f"{trace}#{address}")
    assert done.returncode == 2
    assert words in done.stderr
    assert opscope("show", str(trace)).returncode == 2
    assert opscope("show", "#bound").returncode == 2


# ---------------------------------------------------------------- --brief of other commands


def test_every_command_that_prints_a_result_has_a_brief_form(trace: Path, tmp_path: Path) -> None:
    before, after = (shutil.copytree(DATA / "changes" / name, tmp_path / name) for name in ("before", "tf32"))
    for words in (
        ("analyze", trace), ("analyze", trace, "--by", "kernel"), ("analyze", before, after), ("limits", trace),
        ("explain", "--in", trace), ("explain", "aten::mm", "--in", trace), ("whatif", trace, "--remove", "aten::add"),
        ("diff", before, after), ("analyze", "--stats", "all", trace), ("sql", "select * from operators", trace),
        ("gpus",), ("runs", tmp_path), ("export", "--reports", before),
        ("kernel", "launch", "--gpu", "h100 pcie", "--grid", "64", "--block", "256"),
    ):  # fmt: skip
        done = opscope(*map(str, words), "--brief")
        assert done.returncode == 0, (words, done.stderr)
        assert 20 < count_tokens(done.stdout) <= MOST_TOKENS, words
        assert opscope(*map(str, words), "--format", "brief").stdout == done.stdout


WORDS = st.text(alphabet="abcXYZ 0123_:<>,\n|#é漢", max_size=60)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(WORDS, min_size=3, max_size=3), max_size=80),
    st.lists(WORDS, max_size=60),
    st.integers(60, 600),
)
def test_sections_fit_whatever_they_hold(rows: list[list[str]], lines: list[str], most: int) -> None:
    table = Table(("a", "b", "c"), tuple(tuple(Name(cell) for cell in row) for row in rows), optional=frozenset({2}))
    blocks = (table, Bullets(tuple((line,) for line in lines)), Paragraph.of(*map(Name, lines)))
    text = render_brief([Section(("Title",), blocks)], most)
    assert count_tokens(text) <= most
    assert text.startswith("# Title")


def test_commands_are_never_cut_within() -> None:
    command = Whole(f"opscope whatif {'/long' * 60} --finding x")
    names = tuple((Name("y" * 3_000),) for _ in range(30))
    text = render_brief([Section(("t",), (Bullets(((command,),)), Bullets(names)))], 400)
    assert str(command) in text
    assert count_tokens(text) <= 400
    assert "more)" in text


def test_tokens_are_counted_rather_too_high() -> None:
    assert count_tokens("") == 0
    # Tokens by the published vocabularies, cl100k_base and Anthropic's: the larger of both.
    for text, tokens in (
        ("The device waits for the host to issue launches.", 10),
        ("aten::_log_softmax_backward_data", 10),
        ("void at::native::elementwise_kernel<128, 4>(int)", 16),
    ):
        assert tokens <= count_tokens(text) <= 2 * tokens
