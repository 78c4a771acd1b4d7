"""What the command line accepts, refuses and imports. Nothing is measured here."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import opscope as package
from opscope.base.errors import OpscopeError, UsageError
from opscope.cli import COMMANDS, cli
from opscope.cli.options import ListCommand, ListOf, Positive
from opscope.cli.targets import TargetCommand
from opscope.record.configuration import CaptureOptions, Configuration
from opscope.sweep.plan import PRESETS, default_sizes, expand
from opscope.workloads.catalog import BUILT_IN, check
from tests.command import ROOT, WITHOUT_TORCH, fresh_opscope, opscope, toy
from tests.conftest import DATA


@click.command(cls=ListCommand)
@click.argument("target")
@click.option("--sizes", "-s", type=ListOf(click.IntRange(min=1)))
@click.option("--kinds", type=ListOf(click.Choice(["cpu", "cuda"])))
@click.option("--flag", is_flag=True)
def listing(target: str, sizes: object, kinds: object, flag: bool) -> None:
    click.echo(f"{target} {sizes} {kinds} {flag}")


@pytest.mark.parametrize(
    "line",
    [
        "--sizes 1 8 16 --kinds cpu cuda --flag model",
        "--sizes 1,8,16 --kinds cpu,cuda --flag model",
        "--sizes=1,8,16 --kinds=cpu,cuda --flag model",
        "model --sizes 1, 8, 16 --kinds cpu cuda --flag",
        "--flag model -s 1 8 16 --kinds cpu,cuda",
        "--kinds cpu cuda --sizes 1 8 16 model --flag",
        "--sizes 1 8 16 --kinds cpu cuda --flag -- model",
        "--sizes 1 --kinds cpu --flag -s 8 16 --kinds=cuda model",
    ],
)
def test_all_spellings_of_a_list_mean_the_same(line: str) -> None:
    result = CliRunner().invoke(listing, line.split())
    assert result.output == "model (1, 8, 16) ('cpu', 'cuda') True\n"


@click.command(cls=TargetCommand)
@click.argument("target")
@click.argument("arguments", nargs=-1)
@click.option("--sizes", "-s", type=ListOf(click.IntRange(min=1)))
def aiming(target: str, arguments: tuple[str, ...], sizes: object) -> None:
    click.echo(f"{target} {arguments} {sizes}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--sizes 1 8 train.py --sizes 2 4 --flag", "train.py ('--sizes', '2', '4', '--flag') (1, 8)"),
        ("train.py --sizes=2 -- -s 4 8", "train.py ('--sizes=2', '--', '-s', '4', '8') None"),
        ("--sizes 1 -s=8 -- train.py 3 --sizes 2 4", "train.py ('3', '--sizes', '2', '4') (1, 8)"),
        ("torchrun --sizes 2 4 train.py", "torchrun ('--sizes', '2', '4', 'train.py') None"),
        ("module:function --sizes 2 4", "module:function () (2, 4)"),
    ],
)
def test_a_script_gets_its_words_as_they_were_given(line: str, expected: str) -> None:
    """Though opscope has a list option of the same name."""
    result = CliRunner().invoke(aiming, line.split())
    assert result.output == f"{expected}\n"


@pytest.mark.parametrize(
    "line", ["--sizes 0 model", "--sizes model", "--sizes 1,x model", "--sizes , model", "--sizes"]
)
def test_a_bad_list_is_wrong_usage(line: str) -> None:
    result = CliRunner().invoke(listing, line.split())
    assert result.exit_code == 2, result.output


def commands_of(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command below one, with the words that call it."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands_of(inner, (*words, name))


NO_NUMBERS = (
    "nan",
    "-nan",
    "inf",
    "-inf",
    "infinity",
    "-1",
    "0",
    "1e400",
    "1e300",
    "1e-300",
    "\u00b2",
    "",
    "9" * 5_000,
)


@pytest.mark.parametrize(("words", "command"), [pytest.param(*one, id=" ".join(one[0])) for one in commands_of(cli)])
def test_no_number_is_taken_that_cannot_be_computed_with(words: tuple[str, ...], command: click.Command) -> None:
    context = click.Context(command, info_name=words[-1])
    for option in command.params:
        kind = option.type.element if isinstance(option.type, ListOf) else option.type
        if isinstance(kind, click.types.FloatParamType):
            assert isinstance(kind, Positive), f"{words} {option.opts}: nan would be taken"
        for text in NO_NUMBERS:
            named = {"times": f"{text}x", "faster": f"nvlink={text}x", "scaling": f"aten::mm={text}"}
            takes_zero = kind.name in ("percent", "scaling", "size") and text == "0"
            if takes_zero or not (isinstance(kind, Positive) or kind.name in (*named, "percent", "size")):
                continue
            if kind.name in ("percent", "scaling") and text == "1e-300":  # as good as 0
                continue
            with pytest.raises(click.BadParameter):
                kind.convert(named.get(kind.name, text), option, context)


@pytest.mark.parametrize("given", ["nan", "inf", "-1", "0", "1e400"])
def test_the_time_of_a_step_is_a_number(given: str) -> None:
    result = CliRunner().invoke(cli, ["analyze", "no_such_trace.json", "--step-time", given])
    assert result.exit_code == 2
    assert "--step-time" in result.output
    assert "Traceback" not in result.output


def test_a_list_ends_where_its_values_end() -> None:
    result = CliRunner().invoke(listing, ["--sizes", "1", "2", "model"])
    assert result.output == "model (1, 2) None False\n"


def test_the_sweep_is_the_product_in_the_order_given() -> None:
    configurations = expand("bert", {"batch_size": (8, 1), "seq_len": (256, 128)})
    assert [c.id for c in configurations] == ["bs8_seq256", "bs8_seq128", "bs1_seq256", "bs1_seq128"]


def test_repeated_sizes_are_run_once_and_no_size_is_one_configuration() -> None:
    assert [c.id for c in expand("bert", {"batch_size": (1, 1), "seq_len": (128,)})] == ["bs1_seq128"]
    assert [c.id for c in expand("a:b", {})] == ["default"]


def test_presets_are_the_guides_two_sweeps() -> None:
    quick, full = PRESETS["comprehensive"]
    assert PRESETS["quick"] == (quick,)
    assert (quick.folder, quick.sizes) == ("quick", {"batch_size": (1, 8), "seq_len": (128,)})
    assert (full.folder, len(expand("bert", full.sizes))) == ("full", 12)


@pytest.mark.parametrize("target", list(BUILT_IN))
def test_every_built_in_target_has_a_default_sweep(target: str) -> None:
    assert len(expand(target, default_sizes(target))) >= 2


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        (Configuration("bret"), "unknown target 'bret'.*bert, gpt2, resnet50"),
        (Configuration("resnet50", axes={"seq_len": 128}), "--seq-lens does not apply to the target resnet50"),
        (Configuration("gpt2", {"simplified": True}), "--simplified does not apply to the target gpt2"),
        (Configuration("bert", {"image_size": 224}), "--image-size does not apply to the target bert"),
        (Configuration("bert", {"pretrained": "", "layers": 2}), "--layers cannot be combined with --use-real-bert"),
        (Configuration("a.py:f", {"pretrained": ""}), "--use-real-bert applies to the target bert only"),
    ],
)
def test_options_that_do_not_apply_are_refused(configuration: Configuration, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(configuration)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["profile"], 2, "Missing argument 'TARGET'"),
        (["profile", "bret"], 2, "unknown target 'bret'"),
        (["profile", "bert", "--batchsizes", "1"], 2, "Did you mean"),
        (["profile", "bert", "--batch-sizes", "0"], 2, "not in the range"),
        (["profile", "bert", "--batch-sizes", "many"], 2, "--batch-sizes"),
        (["profile", "bert", "--preset", "quick", "--seq-lens", "128"], 2, "--preset quick fixes the sizes"),
        (["profile", "bert", "--device", "tpu"], 2, "--device takes auto, cpu, cuda or cuda:N, not 'tpu'"),
        (["profile", "bert", "--dtype", "int8"], 2, "'int8' is not one of"),
        (["frobnicate"], 2, "No such command 'frobnicate'"),
        (["export", "--reports", "no/such/folder"], 2, "is not a run"),
    ],
)
def test_wrong_usage_is_said_in_words(args: list[str], code: int, message: str, tmp_path: Path) -> None:
    result = opscope(*args, cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_without_pytorch_profiling_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    result = opscope("profile", "bert", cwd=tmp_path, code=WITHOUT_TORCH)
    assert result.returncode == 3
    assert result.stderr.startswith("opscope: profiling needs PyTorch, which is not installed: pip install")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", ["proc", "file"])
def test_an_unwritable_folder_is_an_environment_error(bad: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = {"proc": "/proc/opscope", "file": str(tmp_path / "file" / "results")}[bad]
    result = opscope("profile", toy("step"), "--output-dir", target)
    assert result.returncode == 3
    assert "cannot write to" in result.stderr
    assert "--output-dir" in result.stderr


def test_a_folder_without_a_manifest_is_a_bad_input(tmp_path: Path) -> None:
    result = opscope("export", "--reports", str(tmp_path))
    assert result.returncode == 4
    assert "has no manifest.json" in result.stderr


def test_a_damaged_manifest_is_a_bad_input(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema": "opscope.sweep/1", "entries": 5')
    result = opscope("export", "--reports", str(tmp_path))
    assert result.returncode == 4
    assert "is not what opscope wrote there" in result.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in opscope("--debug", "export", "--reports", str(tmp_path)).stderr


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys\nfrom opscope.cli import cli\n"
        "try: cli(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'polars', 'numpy', 'rich', 'msgspec', 'opscope.cli.profile'} & set(sys.modules)))"
    )
    result = fresh_opscope(code=code)
    assert result.stdout.splitlines()[-1] == "[]"
    for name in COMMANDS:
        assert name in result.stdout


def test_analyze_reads_its_first_trace_before_it_imports_what_the_analysis_needs(tmp_path: Path) -> None:
    # Whoever imports one of these waits until the reading has begun; if that needs the import, it never does.
    code = (
        "import sys, threading\nimport opscope.readers.reading as readers\n"
        "read, begun = readers.read_content, threading.Event()\n"
        "def noting(source):\n"
        "    begun.set()\n"
        "    return read(source)\n"
        "readers.read_content = noting\n"
        "class Waits:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name in ('polars', 'numpy', 'opscope.analysis') and not begun.wait(20):\n"
        "            print('too early:', name, file=sys.stderr)\n"
        "sys.meta_path.insert(0, Waits)\n"
        "from opscope.cli import cli\n"
        f"cli(['analyze', {str(tmp_path / 'trace.json')!r}])"
    )
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    result = fresh_opscope(code=code)
    assert result.returncode == 0
    assert "too early" not in result.stderr


def test_every_command_has_help_that_says_what_it_does() -> None:
    for name in COMMANDS:
        result = CliRunner().invoke(cli, [name, "--help"])
        assert result.exit_code == 0
        assert len(result.output.splitlines()) > 8, f"opscope {name} --help needs a paragraph on what the command does"


def test_every_option_of_profile_has_an_explanation() -> None:
    from opscope.cli.profile import command

    silent = [p.name for p in command.params if isinstance(p, click.Option) and not p.help and p.name != "mode"]
    assert silent == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("analyze", "{trace}", "--stats", "all", "--brief", "--format", "json"), "is of traces: leave out one"),
        (("export", "{trace}", "-o", "{out}", "--format", "json"), "--format is for --reports"),
        (("export", "--reports", "{run}", "--max-input", "1MB"), "--max-input is not for --reports"),
        (("export", "{trace}"), "choose what to write"),
        (("export", "{trace}", "-o", "{out}", "--parquet", "{out}"), "choose what to write"),
        (("diff", "{bench}", "{trace}"), "compare two of a kind"),
        (("diff", "{run}", "{bench}"), "compare two of a kind"),
        (("diff", "{bench}", "{bench}", "--by", "kernel"), "of benchmarks there are"),
        (("diff", "{trace}", "{trace}", "--again"), "are for two benchmarks"),
        (("explain", "aten::mm", "--top", "3"), "are for the most expensive operators"),
        (("explain",), "name an operator or a kernel"),
        (("gpus", "--device", "cuda:0"), "--device is for --measure"),
        (("kernel", "buld"), "Did you mean 'build'?"),
    ],
)
def test_what_a_command_does_not_do_together_is_refused(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    places = {
        "trace": DATA / "traces" / "cdist.json.gz",
        "run": DATA / "changes" / "before",
        "bench": ROOT / "benchmarks" / "results" / "h200-bench-gelu.json",
        "out": tmp_path / "out.json",
    }
    done = opscope(*(word.format(**places) for word in words))
    assert done.returncode == 2, done.stderr
    assert says in done.stderr


def test_version_is_printed() -> None:
    assert opscope("--version").stdout == f"opscope {package.__version__}\n"


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import opscope, sys; print(sorted({'torch', 'polars', 'numpy', 'msgspec'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "src", check=True)
    assert result.stdout == "[]\n"


def test_public_names_are_the_ones_promised() -> None:
    assert package.__all__ == sorted(package.__all__, key=lambda name: (not name[0].isupper(), name))
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = package.nonsense


def test_every_error_has_its_exit_code() -> None:
    kinds = (OpscopeError, *OpscopeError.__subclasses__())
    codes = {kind.__name__: kind.exit_code for kind in kinds if kind.__module__ == OpscopeError.__module__}
    assert codes == {
        "OpscopeError": 1, "UsageError": 2, "EnvironmentLacksError": 3, "BadInputError": 4, "InconclusiveError": 5,
    }  # fmt: skip


def test_default_capture_is_a_short_schedule_with_a_benchmark() -> None:
    options = CaptureOptions()
    assert options.schedule is not None
    assert (options.schedule.wait, options.schedule.warmup, options.schedule.active, options.schedule.repeat) == (
        1,
        1,
        3,
        1,
    )
    assert options.benchmark


@pytest.mark.parametrize(("typed", "meant"), [("analyse", "analyze"), ("profle", "profile"), ("explan", "explain")])
def test_a_command_that_is_nearly_one_gets_a_hint(typed: str, meant: str) -> None:
    result = opscope(typed, "trace.json")
    assert result.returncode == 2
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in result.stderr
    assert "Did you mean" not in opscope("zzz").stderr
