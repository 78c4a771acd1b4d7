"""What opscope offers to agents: a skill, and tools that are commands, confined to folders that their user names."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from opscope.agents.calls import Caller
from opscope.agents.tools import Kind
from opscope.base.errors import UsageError
from opscope.base.text import count_tokens
from opscope.cli import cli
from opscope.cli.mcp import tools
from opscope.render.brief import MOST_TOKENS
from opscope.report.by import By
from tests.command import opscope
from tests.conftest import DATA, ROOT

TOOLS = {tool.name: tool for tool in tools(allow_run=False)}
GPT2 = DATA / "traces" / "gpt2_train_amp_stacks.json.gz"
# A call of each tool, and the command that a user would type for it.
CALLS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "overview": ({"trace": "gpt2.json.gz"}, ["analyze", "{gpt2}", "--brief"]),
    "findings": ({"trace": "gpt2.json.gz"}, ["show", "{gpt2}", "findings", "--brief"]),
    "table": (
        {"trace": "gpt2.json.gz", "by": "kernel", "top": 7},
        ["analyze", "{gpt2}", "--by", "kernel", "--top", "7", "--brief"],
    ),
    "explain": ({"name": "aten::mm", "trace": "gpt2.json.gz"}, ["explain", "aten::mm", "--in", "{gpt2}", "--brief"]),
    "diff": (
        {"before": "before", "after": "tf32", "by": "kernel"},
        ["diff", "{before}", "{tf32}", "--by", "kernel", "--brief"],
    ),
    "whatif": (
        {"trace": "gpt2.json.gz", "findings": ["dispatch_bound"], "remove": ["aten::add", "aten::mul"],
         "step_time_ms": 20},
        ["whatif", "{gpt2}", "--finding", "dispatch_bound", "--remove", "aten::add", "--remove", "aten::mul",
         "--step-time", "20", "--brief"],
    ),
}  # fmt: skip


def caller_of(roots: Sequence[Path], *, allow_run: bool = False, seconds: float = 300.0) -> Caller:
    return Caller.of(roots, tools(allow_run=allow_run), seconds=seconds)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    shutil.copy(GPT2, folder / "gpt2.json.gz")
    for name in ("before", "tf32"):
        shutil.copytree(DATA / "changes" / name, folder / name)
    return folder


def printed(root: Path, words: list[str]) -> str:
    places = {"gpt2": root / "gpt2.json.gz", "before": root / "before", "tf32": root / "tf32"}
    done = opscope(*(word.format(**places) for word in words), cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---------------------------------------------------------------- one table for both


def test_options_are_offered_as_their_commands_declare_them() -> None:
    assert set(CALLS) == set(TOOLS)
    whatif = {one.name: one for one in TOOLS["whatif"].parameters}
    assert {name: one.kind for name, one in whatif.items()} == {
        "trace": Kind.PATH,
        **dict.fromkeys(("findings", "remove", "scale", "to_limit", "no_wait"), Kind.TEXTS),
        "step_time_ms": Kind.NUMBER,
    }
    assert whatif["remove"].about == "Without these operators and all that they launch: aten::item."
    assert {one.name: one.kind for one in TOOLS["explain"].parameters} == {"name": Kind.TEXT, "trace": Kind.PATH}
    table = {one.name: one for one in TOOLS["table"].parameters}
    assert (table["top"].kind, table["sort"].kind) == (Kind.COUNT, Kind.TEXT)
    assert table["by"].choices == tuple(map(str, By))
    assert all(one.about for tool in TOOLS.values() for one in tool.parameters)


@pytest.mark.parametrize("name", CALLS)
def test_a_tool_answers_what_its_command_prints(root: Path, name: str) -> None:
    values, words = CALLS[name]
    answer = caller_of([root])(name, values)
    assert not answer.failed, answer.text
    assert answer.text == printed(root, words)
    assert 50 < count_tokens(answer.text) <= MOST_TOKENS


def test_any_value_is_addressed_again(root: Path) -> None:
    caller = caller_of([root])
    text = caller("overview", {"trace": "gpt2.json.gz"}).text
    for address in re.findall(r"\[(findings/\w+)\]", text):
        answer = caller("findings", {"trace": "gpt2.json.gz", "address": address})
        assert not answer.failed
        assert answer.text.startswith(f"# `{address}`")
    low = caller("findings", {"trace": "gpt2.json.gz", "address": "findings/dispatch_bound/saving_ns/low"}).text
    assert low.splitlines()[1] == "what is nearly certain."


def test_schemas_say_what_is_needed() -> None:
    schema = TOOLS["table"].schema()
    assert schema["required"] == ["trace", "by"]
    assert schema["properties"]["top"]["maximum"] == 50
    assert "kernel" in schema["properties"]["by"]["enum"]
    assert [tool.name for tool in tools(allow_run=False)] == list(CALLS)
    assert [tool.name for tool in tools(allow_run=True)] == [*CALLS, "profile"]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("nix", {}, "there is no tool nix"),
        ("profile", {"script": "x.py"}, "there is no tool profile"),
        ("overview", {}, "overview needs trace"),
        ("overview", {"trace": 7}, "trace takes a text"),
        ("overview", {"trace": "gpt2.json.gz", "output": "x"}, "overview takes no output"),
        ("overview", {"trace": "gone.json"}, "there is no gone.json"),
        ("overview", {"trace": "\0"}, "trace takes a text"),
        ("table", {"trace": "gpt2.json.gz", "by": "nix"}, "by is one of kernel"),
        ("table", {"trace": "gpt2.json.gz", "by": "kernel", "top": 51}, "up to 50"),
        ("table", {"trace": "gpt2.json.gz", "by": "kernel", "top": True}, "takes a whole number"),
        ("whatif", {"trace": "gpt2.json.gz", "remove": ["aten::add", 3]}, "takes a list of texts"),
        ("explain", {"name": "x" * 10_000}, "name takes a text"),
        ("explain", {"name": "half \ud800"}, "name takes a text"),
        ("table", {"trace": "gpt2.json.gz", "by": "kernel", "top": 7.5}, "takes a whole number"),
        ("overview", {"trace": "gpt2.json.gz", "step_time_ms": float("inf")}, "takes a number"),
        ("whatif", {"trace": "gpt2.json.gz", "remove": ["x"] * 101}, "at most 100 texts"),
    ],
)
def test_wrong_values_are_refused_with_a_reason(root: Path, name: str, values: dict[str, Any], words: str) -> None:
    answer = caller_of([root])(name, values)
    assert answer.failed
    assert words in answer.text


def test_nothing_outside_of_the_roots_is_read(root: Path, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        shutil.copy(GPT2, folder / "t.json.gz")
    (inside / "link.json.gz").symlink_to(outside / "t.json.gz")
    (inside / "folder").symlink_to(outside)
    caller = caller_of([inside, root])
    for path in (
        "../outside/t.json.gz",
        str(outside / "t.json.gz"),
        "link.json.gz",
        "folder/t.json.gz",
        ".",
        "/etc/passwd",
        "~",
    ):
        answer = caller("overview", {"trace": path})
        assert answer.failed, path
        assert "outside of" in answer.text or "there is no" in answer.text
        assert caller("diff", {"before": "t.json.gz", "after": path}).failed
        assert caller("explain", {"name": "aten::mm", "trace": path}).failed
    # A part of a name that is a link by itself is not followed.
    (inside / "link").symlink_to(outside / "t.json.gz")
    shutil.copy(GPT2, inside / "link#bound")
    (inside / "link#bound.json").write_text("{}")
    assert caller("findings", {"trace": "link#bound.json", "address": "bound"}).failed
    (inside / "circle").mkdir()
    (inside / "circle" / "round").symlink_to(inside / "circle" / "round")
    assert caller("overview", {"trace": "circle"}).failed
    assert caller("overview", {"trace": "t.json.gz/nix"}).failed
    assert not caller("overview", {"trace": "t.json.gz"}).failed
    assert not caller("overview", {"trace": str(root / "gpt2.json.gz")}).failed
    with pytest.raises(UsageError, match="is not a folder"):
        caller_of([inside / "t.json.gz"])


def test_values_cannot_become_options(root: Path) -> None:
    caller = caller_of([root])
    written = root / "written.html"
    for values in (
        {"name": f"--save={written}"}, {"name": "--help"}, {"name": "-"}, {"name": "aten::mm", "trace": "--help"},
    ):  # fmt: skip
        words = TOOLS["explain"].words(values)
        assert words.index("--") < words.index(values["name"])
    answer = caller("whatif", {"trace": "gpt2.json.gz", "remove": [f"--chrome={written}"]})
    assert answer.failed
    assert not written.exists()


def test_a_command_that_takes_too_long_is_ended(root: Path) -> None:
    answer = caller_of([root], seconds=0.05)("overview", {"trace": "gpt2.json.gz"})
    assert answer.failed
    assert "took longer than 0.05 s" in answer.text


def test_a_configuration_of_a_run_is_named_as_the_command_line_does(root: Path) -> None:
    answer = caller_of([root])("overview", {"trace": "before/bs8"})
    assert not answer.failed, answer.text
    assert answer.text.startswith(f"# `{root}/before/bs8`")
    assert caller_of([root])("overview", {"trace": "before/../../x"}).failed


def test_a_program_ends_with_the_server(tmp_path: Path) -> None:
    script = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(120)\n"
    (tmp_path / "train.py").write_text(script)
    code = (
        "import pathlib; from opscope.agents.calls import Caller; from opscope.cli.mcp import tools\n"
        f"caller = Caller.of([pathlib.Path({str(tmp_path)!r})], tools(allow_run=True))\n"
        "caller('profile', {'script': 'train.py'})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    server = subprocess.Popen([sys.executable, "-c", code], env=environment)
    pid = tmp_path / "pid"
    waited(lambda: pid.exists() and pid.read_text() != "")
    server.terminate()
    server.wait(30)
    number = int(pid.read_text())
    waited(lambda: not alive(number))


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def waited(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_programs_run_only_where_that_was_allowed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w').close()\nraise SystemExit(3)\n")
    values = {"script": "train.py", "arguments": ["--lr", "3"]}
    assert caller_of([tmp_path])("profile", values).failed
    assert not (tmp_path / "ran").exists()
    allowed = caller_of([tmp_path], allow_run=True)
    words = allowed.words("profile", values)
    assert words == ["profile", "--brief", "--", str(tmp_path / "train.py"), "--lr", "3"]
    assert allowed("profile", {"script": "../x.py"}).failed
    allowed("profile", values)
    assert (tmp_path / "ran").exists()


# ---------------------------------------------------------------- the server, by the SDK's own client


@pytest.fixture
def mcp() -> Any:
    return pytest.importorskip("mcp", reason="the package mcp is not installed")


def test_the_client_of_the_sdk_lists_and_calls_the_tools(root: Path, mcp: Any) -> None:
    import asyncio

    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    server = StdioServerParameters(
        command=sys.executable, args=["-P", "-m", "opscope", "mcp", str(root)], env=environment
    )

    async def talk() -> tuple[list[Any], dict[str, Any]]:
        async with Client(server) as client:
            listed = (await client.list_tools()).tools
            answers = {name: await client.call_tool(name, values) for name, (values, _) in CALLS.items()}
            answers["outside"] = await client.call_tool("overview", {"trace": "/etc/passwd"})
            return listed, answers

    listed, answers = asyncio.run(asyncio.wait_for(talk(), 180))
    assert [tool.name for tool in listed] == list(CALLS)
    for tool, ours in zip(listed, TOOLS.values(), strict=True):
        assert tool.input_schema == ours.schema()
        assert (tool.description, tool.annotations.read_only_hint) == (ours.about, True)
    assert answers["outside"].is_error
    for name, (_, words) in CALLS.items():
        (content,) = answers[name].content
        assert not answers[name].is_error
        assert content.text == printed(root, words)


def test_no_other_command_loads_what_the_server_needs(root: Path) -> None:
    code = (
        "import sys\nfrom opscope.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = opscope("analyze", "--brief", str(root / "gpt2.json.gz"), code=code)
    assert done.returncode == 0, done.stderr
    assert not {"mcp", "anyio", "pydantic"} & set(re.findall(r"'(\w+)'", done.stdout))


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['mcp'] = None; sys.modules['mcp_types'] = None; from opscope.cli import main; main()"
    )
    done = opscope("mcp", str(tmp_path), code=code)
    assert done.returncode == 3
    assert "pip install 'opscope[mcp]'" in done.stderr


# ---------------------------------------------------------------- the skill


def test_the_skill_names_commands_that_exist(tmp_path: Path) -> None:
    text = opscope("skill").stdout
    assert text.startswith("---\nname: opscope\ndescription: ")
    assert count_tokens(text) <= MOST_TOKENS
    for name in re.findall(r"`opscope (\w+)", text):
        assert cli.get_command(None, name) is not None, name  # type: ignore[arg-type]
    done = opscope("skill", "--install", str(tmp_path / "skills"))
    assert done.returncode == 0
    target = tmp_path / "skills" / "opscope" / "SKILL.md"
    assert target.read_text() == text
    target.write_text("mine")
    assert opscope("skill", "--install", str(tmp_path / "skills")).returncode == 2
    assert target.read_text() == "mine"
    assert opscope("skill", "--install", str(tmp_path / "skills"), "--overwrite").returncode == 0
    assert target.read_text() == text


def test_options_that_the_skill_names_exist() -> None:
    text = opscope("skill").stdout
    for name, rest in re.findall(r"`opscope (\w+)([^`]*)`", text):
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
            assert option in known, (name, option)


# ---------------------------------------------------------------- what never ends

_NO_FILES = {
    "pipe": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(os.fspath(path)),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", _NO_FILES)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_file_is_refused_before_it_is_opened(name: str, kind: str) -> None:
    with tempfile.TemporaryDirectory() as short:  # names of sockets are short
        place = Path(short, "t.json")
        _NO_FILES[kind](place)
        tool = TOOLS[name]
        paths = {one.name: place.name for one in tool.parameters if one.kind is Kind.PATH}
        answer = caller_of([Path(short)], seconds=60)(name, {**CALLS[name][0], **paths})
    assert answer.failed
    assert "not a regular file" in answer.text or "outside of" in answer.text


@pytest.mark.parametrize(
    "place", ["manifest.json", "raw/capture_bs8.json", "encoder_trace_bs8.json.gz", "raw/light_bs8.json.gz"]
)
def test_a_pipe_at_any_place_of_a_run_ends_no_call_by_time(root: Path, tmp_path: Path, place: str) -> None:
    shutil.copytree(root / "before", tmp_path / "run")
    (tmp_path / "run" / place).unlink()
    os.mkfifo(tmp_path / "run" / place)
    caller = caller_of([tmp_path], seconds=60)
    for name, values in (
        ("overview", {"trace": "run"}),
        ("explain", {"name": "aten::mm", "trace": "run"}),
        ("diff", {"before": "run", "after": "run"}),
    ):
        assert "took longer" not in caller(name, values).text


def test_a_pipe_beside_traces_is_left_alone(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "gpt2.json.gz", tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    os.mkfifo(tmp_path / "pipe.csv")
    answer = caller_of([tmp_path], seconds=60)("overview", {"trace": "."})
    assert not answer.failed, answer.text
    assert "dispatch_bound" in answer.text
