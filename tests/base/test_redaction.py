"""Secrets on a command line: they reach the program, and nothing that is written, shown or sent."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.record.redaction import HIDDEN, Redactor
from tests.budget import examples
from tests.command import opscope

# Twelve kinds of secrets: the words of a command line, and what of them must not be seen again.
PLANTED = {
    "an option's value": (["--token", "tok3nval"], ["tok3nval"]),
    "after an equals sign": (["--api-key=k3yvalue"], ["k3yvalue"]),
    "a setting of a configuration": (["model.db_password=p4ssw0rd"], ["p4ssw0rd"]),
    "two words in a value": (["--client-secret", "s3cr3t phr4se"], ["s3cr3t phr4se"]),
    "the user of an address": (["--data", "https://us3rname:pw0fuser@host/data"], ["us3rname", "pw0fuser"]),
    "the query of an address": (["--store", "https://host/blob?sv=2024&sig=sign4ture"], ["sign4ture", "sv=2024"]),
    "a database": (["postgresql://dbus3r:dbp4ss@db:5432/runs"], ["dbus3r", "dbp4ss"]),
    "a header": (["--header", "Authorization: Bearer b3arert0ken"], ["b3arert0ken"]),
    "JSON": (["--config", '{"lr": 0.1, "password": "js0npass"}'], ["js0npass"]),
    "a token of GitHub": (["ghp_" + "aB3" * 12], ["ghp_" + "aB3" * 12]),
    "a key of AWS": (["--id", "AKIA" + "Q7" * 8], ["AKIA" + "Q7" * 8]),
    "a JSON Web Token": (["x=eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl"], ["eyJhbGciOiJI"]),
}
SCRIPT = """
import sys, torch
print("arguments:", sys.argv[1:])
with open("seen.txt", "w") as file:
    file.write("\\n".join(sys.argv[1:]))
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("kind", PLANTED)
def test_each_kind_is_hidden_and_what_is_beside_it_stays(kind: str) -> None:
    words, secrets = PLANTED[kind]
    redactor = Redactor()
    shown = " ".join(redactor.arguments(["--epochs", "3", *words, "--lr", "0.1"]))
    assert HIDDEN in shown
    assert shown.startswith("--epochs 3 ")
    assert shown.endswith(" --lr 0.1")
    for secret in secrets:
        assert secret not in shown
        assert secret not in redactor.scrubbed(f"Namespace({words})")
    assert Redactor(keep=True).arguments(words) == tuple(words)


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "128"], ["--tokenizer", "gpt2"], ["--key-dim", "64"], ["--num-key-value-heads", "8"],
        ["--pad-token-id", "0"], ["--keyboard", "us"], ["s3://bucket/path"], ["https://host/path"], ["--time=12:30"],
        ["a=1", "b=c:d"], ["--batch-size", "8", "data/monkeys"], ["aten::addmm"], ["--author", "somebody"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_is_no_secret_is_kept(words: list[str]) -> None:
    assert Redactor().arguments(words) == tuple(words)


def test_of_a_command_within_a_word_only_secrets_are_hidden() -> None:
    redactor = Redactor()
    (shown,) = redactor.arguments(["python t.py --epochs 30 --token ab1cd2 --password '' --lr 0.1"])
    assert shown == f"python t.py --epochs 30 --token {HIDDEN} --password '' --lr 0.1"


def test_what_stood_in_an_addresss_query_is_hidden_in_logs_by_its_name() -> None:
    redactor = Redactor()
    redactor.arguments(["https://host/blob?token=hellothere&page=second"])
    assert redactor.scrubbed("said hellothere on the second page") == f"said {HIDDEN} on the second page"


def test_further_names_can_be_hidden() -> None:
    redactor = Redactor(frozenset({"project"}))
    assert redactor.arguments(["--project", "titan", "--data.project=x"]) == (
        "--project",
        HIDDEN,
        f"--data.project={HIDDEN}",
    )
    assert redactor.settings({"project": ("titan",), "width": (8, 16), "token": (7,)}) == {
        "project": (HIDDEN,), "width": (8, 16), "token": (HIDDEN,),
    }  # fmt: skip


@settings(max_examples=examples(200))
@given(st.lists(st.text(max_size=40), max_size=6))
def test_any_words_are_taken_and_none_is_added(words: list[str]) -> None:
    redactor = Redactor()
    shown = redactor.arguments(words)
    assert len(shown) == len(words)
    assert redactor.arguments(shown) == shown  # what is hidden stays so


@pytest.mark.slow
@pytest.mark.torch
def test_no_output_of_a_run_holds_a_secret(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [word for found, _ in PLANTED.values() for word in found]
    secrets = [secret for _, found in PLANTED.values() for secret in found]
    runs = []
    for _ in range(2):
        runs.append(opscope("profile", "--active", "1", "train.py", *words, cwd=tmp_path))
        assert runs[-1].returncode == 0, runs[-1].stderr
    assert (tmp_path / "seen.txt").read_text().split("\n") == words  # the program itself got them
    runs.append(opscope("diff", "--format", "md", "--page", "diff.html", "--report", "diff.md", cwd=tmp_path))
    runs.append(opscope("page", "profiling_results/latest", cwd=tmp_path))
    runs.append(opscope("runs", "--format", "json", cwd=tmp_path))
    assert [run.returncode for run in runs] == [0] * 5, runs[2].stderr
    (tmp_path / "seen.txt").unlink()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"report.html", "diff.html", "diff.md", "log_default.txt"} <= {path.name for path in written}
    for path in written:
        content = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in content], path
    for run in runs:
        assert not [secret for secret in secrets if secret in run.stdout + run.stderr]
    (manifest, _) = sorted(tmp_path.glob("profiling_results/train-*/manifest.json"))
    command = json.loads(manifest.read_text())["command"]
    assert command[:4] == ["opscope", "profile", "--active", "1"]
    assert len(command) == 5 + len(words)


@pytest.mark.torch
def test_the_setting_of_a_function_gets_its_value_and_is_not_written(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(
        "import torch\ndef step(api_key='', width=4):\n"
        "    assert api_key == 'k3yvalue', api_key\n    return lambda: torch.ones(width) + 1\n"
    )
    run = ("profile", "mine.py:step", "--skip-benchmark", "--active", "1", "--output-dir", "r")
    done = opscope(*run, "--set", "api_key=k3yvalue", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not [path for path in (tmp_path / "r").rglob("*") if path.is_file() and b"k3yvalue" in path.read_bytes()]
    swept = opscope(*run[:-1], "s", "--set", "api_key=one,two", cwd=tmp_path)
    assert swept.returncode == 2
    assert "looks like a secret" in swept.stderr
    kept = opscope(*run[:-1], "k", "--set", "api_key=k3yvalue", "--keep-arguments", cwd=tmp_path)
    assert kept.returncode == 0, kept.stderr
    assert b"k3yvalue" in (tmp_path / "k" / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        ["bash", "-c", "curl --token S3cretVal99 http://h; x --password 'S3cretVal99'"],
        ["-H", "Authorization: token S3cretVal99"],
        ["https://user:pa@S3cretVal99@h/x"],
        ["postgresql://user:pa/S3cretVal99@h/x"],
        ["https://h/?q='S3cretVal99'"],
        ["--pass", "S3cretVal99"],
        ["--jwt", "S3cretVal99"],
        ["gsk_S3cretVal99S3cretVal99"],
        ["curl", "-u", "bob:S3cretVal99"],
        ["--token={S3cretVal99}"],
        ["--token=[S3cretVal99]"],
        ["--password", "--S3cretVal99"],
    ],
)
def test_further_ways_to_write_secrets(words: list[str]) -> None:
    assert "S3cretVal99" not in " ".join(Redactor().arguments(words))


def test_a_name_of_one_letter_is_a_secrets_where_that_was_said() -> None:
    assert Redactor(frozenset({"p"})).arguments(["mysql", "-p", "S3cretVal99"])[2] == HIDDEN


def test_ordinary_words_stay_in_logs() -> None:
    redactor = Redactor()
    assert HIDDEN in redactor.arguments(["https://host/x?revision=default&sig=sign4ture"])[0]
    assert redactor.scrubbed("default options; sign4ture") == f"default options; {HIDDEN}"


@pytest.mark.parametrize(
    "words",
    [
        ["risk-assessment-model-large"],
        ["sk-learn-ensemble-method-forest"],
        ["--mode", "basic training"],
        ["--token-dropout", "0.1"],
        ["http://localhost:8080/@scope/x"],
        ["--tokenizer", "gpt2", "--num-keys", "8", "--author", "bob"],
        ["--sort-key", "kernel"],
        ["--image-key=jpg", "data.label_key=label"],
        ["--pad-token", "[PAD]", "--eos_token", "</s>", "--unk_token=[UNK]"],
        ["--auth-type", "none"],
        ["--token-ids", "1,2,3"],
        ["--key-padding-mask", "f.pt"],
        ["file.py::test[key=3]"],
        ["--use-auth-token", "true"],
        ["--password", "--verbose"],
        ["-u", "1000:1000", "-u", "train.py"],
    ],
)
def test_ordinary_words_stay(words: list[str]) -> None:
    assert Redactor().arguments(words) == tuple(words)
