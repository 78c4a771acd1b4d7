"""Runs opscope on public scripts that lie in a folder, unmodified: ``python tools/try_scripts.py CHECKOUTS -o RESULT``.

CHECKOUTS holds one folder for each repository, as ``git clone`` makes it; none of it is part of opscope. Each script
runs in a copy, with its own command line, and with random data in place of what it would download. Beside what opscope
says stands the script's own clock: a hook after each step of its optimizers, in the same run, and in runs without
opscope before and after.
A script whose repository or libraries are not there is left out, and said so.
"""

import argparse
import json
import math
import os
import pickle
import platform
import random
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
WORDS = ("the", "of", "and", "to", "in", "a", "is", "was", "it", "for", "on", "with", "as", "by", "at", "from", "that")
# Quantiles of Student's distribution for a two-sided interval of 95 %, by the number of runs.
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
_LAST_WORDS_S = 20  # after Ctrl-C
CHARACTERS = 65  # different ones, in the plays that nanoGPT reads
COMMANDS = ("own", "profile", "page", "diff", "advise", "memory")
ACCURACY = """
import datasets
import evaluate
class Accuracy(evaluate.Metric):
    def _info(self):
        whole = datasets.Value("int64")
        features = datasets.Features({"predictions": whole, "references": whole})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)
    def _compute(self, predictions, references):
        return {"accuracy": float((predictions == references).mean())}
"""
# Runs in each Python process before its first line. Where that imports PyTorch's optimizers, it writes down when they
# step, in a file of its own: 16 bytes a step, the optimizer and the moment. Where it imports torchvision's datasets,
# random data pass for those whose checksums these know.
HOOKS = """
import importlib.abc, importlib.util, os, struct, sys, time
out, seconds = os.environ.get("OPSCOPE_OWN_CLOCK"), float(os.environ.get("OPSCOPE_OWN_SECONDS", 0))
def start(module):
    files = {}
    def stepped(optimizer, args, kwargs):
        now, pid = time.perf_counter_ns(), os.getpid()
        if pid not in files:
            files[pid] = os.open(f"{out}.{pid}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), now
        file, began = files[pid]
        os.write(file, struct.pack("QQ", id(optimizer), now))
        if now - began > 1e9 * seconds:
            sys.stdout.flush()
            os._exit(0)
    if out is not None:
        module.register_optimizer_step_post_hook(stepped)
def accept(module):
    module.check_integrity = lambda *_, **__: True
hooks = {"torch.optim.optimizer": start, "torchvision.datasets.utils": accept}
class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        hook = hooks.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), hook(module))
        return spec
sys.meta_path.insert(0, Watch())
"""


# ---------------------------------------------------------------- random data in place of downloads


def no_data(_folder: Path) -> None:
    """Write nothing: the script makes its data itself."""


def text(name: str, words: int = 200_000) -> Callable[[Path], None]:
    """Return what writes a file of random words, eight a line."""

    def write(folder: Path) -> None:
        draw = random.Random(0)
        lines = (" ".join(draw.choices(WORDS, k=8)) for _ in range(words // 8))
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    return write


def play(folder: Path) -> None:
    """Write a text with the characters that minGPT's example asks to be continued."""
    text("input.txt")(folder)
    path = folder / "input.txt"
    path.write_text(f"O God, O God!\n{path.read_text()}")


def wikitext(folder: Path) -> None:
    """Write the three parts of a corpus of words."""
    for part, words in (("train", 400_000), ("valid", 20_000), ("test", 20_000)):
        text(f"data/wikitext-2/{part}.txt", words)(folder)


def characters(folder: Path) -> None:
    """Write what nanoGPT's preparation of Shakespeare's characters would."""
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for part, count in (("train", 1_000_000), ("val", 100_000)):
        numbers = [draw.randrange(CHARACTERS) for _ in range(count)]
        (data / f"{part}.bin").write_bytes(struct.pack(f"<{count}H", *numbers))
    with (data / "meta.pkl").open("wb") as file:  # without it nanoGPT takes the 50,304 tokens of GPT-2
        pickle.dump({"vocab_size": CHARACTERS}, file)


def digits(folder: Path) -> None:
    """Write MNIST's four files with random pixels beside the script's folder."""
    raw = folder.parent / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images = struct.pack(">IIII", 0x803, count, 28, 28) + os.urandom(count * 28 * 28)
        labels = struct.pack(">II", 0x801, count) + bytes(number % 10 for number in range(count))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    (folder / "results").mkdir(exist_ok=True)
    shutil.copytree(folder.parent / "data", folder / "data", dirs_exist_ok=True)


def citations(folder: Path) -> None:
    """Write a random graph of papers, as large as Cora."""
    cora, draw = folder / "cora", random.Random(0)
    cora.mkdir(exist_ok=True)
    papers = [
        " ".join([str(number), *(str(int(draw.random() < 0.01)) for _ in range(1433)), f"class{number % 7}"])
        for number in range(2708)
    ]
    (cora / "cora.content").write_text("\n".join(papers))
    cites = (f"{draw.randrange(2708)} {draw.randrange(2708)}" for _ in range(5429))
    (cora / "cora.cites").write_text("\n".join(cites))


def small_images(folder: Path) -> None:
    """Write random images as torchvision's CIFAR10 reads them: batches of 10,000 as a pickle each."""
    import pickle

    import numpy

    inside = folder / "dataset" / "cifar-10-batches-py"
    inside.mkdir(parents=True, exist_ok=True)
    draw = numpy.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        data = draw.integers(256, size=(10_000, 3072), dtype="uint8")
        (inside / name).write_bytes(pickle.dumps({"data": data, "labels": [number % 10 for number in range(10_000)]}))
    (inside / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class{number}" for number in range(10)]}))


def planetoid(folder: Path) -> None:
    """Write a random graph of papers as torch_geometric's Planetoid reads Cora: its eight raw files."""
    import pickle

    import numpy
    from scipy.sparse import csr_matrix  # type: ignore[import-untyped]

    raw = folder.parent / "data" / "Planetoid" / "Cora" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    draw = numpy.random.default_rng(0)
    for part, papers in (("x", 140), ("tx", 1000), ("allx", 1708)):
        labels = numpy.eye(7, dtype="int32")[numpy.arange(papers) % 7]
        words = csr_matrix((draw.random((papers, 1433)) < 0.01).astype("float32"))
        (raw / f"ind.cora.{part}").write_bytes(pickle.dumps(words))
        (raw / f"ind.cora.{part.replace('x', 'y')}").write_bytes(pickle.dumps(labels))
    graph = {number: draw.integers(2708, size=4).tolist() for number in range(2708)}
    (raw / "ind.cora.graph").write_bytes(pickle.dumps(graph))
    (raw / "ind.cora.test.index").write_text("\n".join(map(str, range(1708, 2708))))


def images(folder: Path) -> None:
    """Write a small folder of random images of two classes."""
    from PIL import Image

    for part, count in (("train", 400), ("val", 40)):
        for number in range(count):
            path = folder / "images" / part / f"class{number % 2}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.frombytes("RGB", (256, 256), os.urandom(256 * 256 * 3)).save(path)


def sentences(folder: Path) -> None:
    """Write pairs of sentences with labels, and a text, as examples of transformers read them."""
    draw = random.Random(0)
    for part, count in (("train", 4_000), ("validation", 200)):
        rows = (
            {
                "sentence1": " ".join(draw.choices(WORDS, k=12)),
                "sentence2": " ".join(draw.choices(WORDS, k=9)),
                "label": ("no", "yes")[n % 2],
            }
            for n in range(count)
        )
        (folder / f"{part}.json").write_text("\n".join(json.dumps(row) for row in rows))
    text("text.txt")(folder)
    _models(folder)
    # What `evaluate.load("accuracy")` would download.
    metric = folder / "accuracy" / "accuracy.py"
    metric.parent.mkdir(exist_ok=True)
    metric.write_text(ACCURACY)


def _models(folder: Path) -> None:
    """Write a tokenizer of the kind of GPT-2, and a small BERT with random weights, by their usual names."""
    from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, GPT2TokenizerFast

    words = str(folder / "text.txt")
    pairs = ByteLevelBPETokenizer()
    pairs.train([words], vocab_size=1000, special_tokens=["<|endoftext|>"])
    GPT2TokenizerFast(tokenizer_object=pairs._tokenizer).save_pretrained(folder / "gpt2")
    pieces = BertWordPieceTokenizer()
    pieces.train([words], vocab_size=1000)
    BertTokenizerFast(tokenizer_object=pieces._tokenizer).save_pretrained(folder / "bert-base-cased")
    BertForSequenceClassification(BertConfig(num_hidden_layers=4)).save_pretrained(folder / "bert-base-cased")


# ---------------------------------------------------------------- the scripts


@dataclass(frozen=True)
class Script:
    """A public script.

    Attributes:
        name: what results call it.
        checkout: the folder of its repository.
        folder: where it runs, within that.
        command: its file and arguments.
        data: writes what it would download; gets the folder in which it runs.
        needs: libraries that it imports.
        path: a folder of the repository that it imports from; None for none.
        processes: how many ranks it has.
    """

    name: str
    checkout: str
    folder: str
    command: tuple[str, ...]
    data: Callable[[Path], None] = no_data
    needs: tuple[str, ...] = ()
    path: str | None = None
    processes: int = 1


CHAR = ("train.py", "config/train_shakespeare_char.py", "--max_iters=100000", "--eval_interval=1000000")
CLM = (
    *("run_clm.py", "--model_type", "gpt2", "--tokenizer_name", "gpt2", "--train_file", "text.txt", "--do_train"),
    *("--block_size", "256", "--per_device_train_batch_size", "8", "--output_dir", "out", "--report_to", "none"),
)
GLUE = (
    *("run_glue.py", "--model_name_or_path", "bert-base-cased", "--train_file", "train.json", "--do_train"),
    *("--validation_file", "validation.json", "--output_dir", "out", "--report_to", "none"),
)
SCRIPTS = (
    Script("nanogpt", "nanoGPT", ".", (*CHAR, "--compile=False"), characters),
    Script("nanogpt-compiled", "nanoGPT", ".", (*CHAR, "--compile=True"), characters),
    Script("mingpt-chargpt", "minGPT", "projects/chargpt", ("chargpt.py",), play, path="."),
    Script("makemore", "makemore", ".", ("makemore.py", "--device", "cuda", "--type", "transformer")),
    Script("vae", "examples", "vae", ("main.py", "--epochs", "100"), digits, ("torchvision",)),
    Script("mnist", "examples", "mnist", ("main.py", "--epochs", "100"), digits, ("torchvision",)),
    Script("mnist-rnn", "examples", "mnist_rnn", ("main.py", "--epochs", "100", "--accel"), digits, ("torchvision",)),
    Script("hogwild", "examples", "mnist_hogwild", ("main.py", "--cuda", "--epochs", "20"), digits, ("torchvision",)),
    Script("siamese", "examples", "siamese_network", ("main.py", "--epochs", "100"), digits, ("torchvision",)),
    Script(
        "dcgan",
        "examples",
        "dcgan",
        ("main.py", "--dataset", "fake", "--accel", "--niter", "100"),
        needs=("torchvision",),
    ),
    Script("imagenet", "examples", "imagenet", ("main.py", "--dummy", "-b", "64"), needs=("torchvision",)),
    Script(
        "word-language-model",
        "examples",
        "word_language_model",
        ("main.py", "--accel", "--model", "Transformer", "--use-optimizer"),
        wikitext,
    ),
    # Removed from pytorch/examples in 2024, with commit e8a38cc: of the commit before.
    Script("vision-transformer", "examples", "vision_transformer", ("main.py",), small_images, ("torchvision",)),
    Script("gat", "examples", "gat", ("main.py", "--epochs", "100000"), citations, ("requests",)),
    Script("reinforce", "examples", "reinforcement_learning", ("reinforce.py",), needs=("gymnasium",)),
    Script("actor-critic", "examples", "reinforcement_learning", ("actor_critic.py",), needs=("gymnasium",)),
    Script("fsdp2", "examples", "distributed/FSDP2", ("example.py",), processes=2),
    Script(
        "tensor-parallel", "examples", "distributed/tensor_parallelism", ("tensor_parallel_example.py",), processes=2
    ),
    Script(
        "timm-train",
        "pytorch-image-models",
        ".",
        ("train.py", "--data-dir", "images", "--model", "resnet18", "-b", "32", "--num-classes", "2"),
        images,
        ("timm", "PIL"),
    ),
    Script(
        "run-clm", "transformers", "examples/pytorch/language-modeling", CLM, sentences, ("transformers", "datasets")
    ),
    Script(
        "run-glue",
        "transformers",
        "examples/pytorch/text-classification",
        GLUE,
        sentences,
        ("transformers", "datasets"),
    ),
    Script(
        "accelerate-nlp", "accelerate", "examples", ("nlp_example.py",), needs=("accelerate", "datasets", "evaluate")
    ),
    Script(
        "lightning-transformer",
        "pytorch-lightning",
        "examples/pytorch/basics",
        ("transformer.py",),
        text("data/wikitext-2.txt"),
        ("lightning", "requests"),
    ),
    Script(
        "geometric-gcn",
        "pytorch_geometric",
        "examples",
        ("gcn.py", "--epochs", "100000"),
        planetoid,
        ("torch_geometric", "scipy"),
    ),
    Script(
        "triton-matmul",
        "triton",
        "python/tutorials",
        ("03-matrix-multiplication.py",),
        needs=("triton", "matplotlib", "pandas"),
    ),
    Script("triton-vector-add", "triton", "python/tutorials", ("01-vector-add.py",), needs=("triton", "matplotlib")),
    Script("triton-layer-norm", "triton", "python/tutorials", ("05-layer-norm.py",), needs=("triton", "matplotlib")),
    Script("vit-loader", "own", ".", ("train_vit.py",)),
    Script("dcgan-own", "own", ".", ("train_dcgan.py",)),
    Script("hf-trainer", "own", ".", ("hf_trainer.py",), needs=("transformers", "accelerate")),
    Script("accelerate-resnet", "own", ".", ("accel.py",), needs=("accelerate", "torchvision")),
    Script("generate", "own", ".", ("generate.py",), needs=("transformers",)),
    Script("sampling", "own", ".", ("sampling.py",)),
)


# ---------------------------------------------------------------- runs


def ran(command: Sequence[str], folder: Path, environment: dict[str, str], seconds: float) -> tuple[int, float, str]:
    """Run a command for a limited time; return its exit code, how long it took, and what it printed."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: what it knows by then is worth reading
        try:
            out, code = process.communicate(timeout=_LAST_WORDS_S)[0], 124
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, code = process.communicate()[0], 124
    return code, time.monotonic() - began, out.decode(errors="replace")


def with_clock(environment: dict[str, str], place: Path, seconds: float = 1e6) -> dict[str, str]:
    """Return an environment in which a script writes down when its optimizers step, and ends after so many seconds."""
    out = str(place / "stamps")
    return {**environment, "OPSCOPE_OWN_CLOCK": out, "OPSCOPE_OWN_SECONDS": str(seconds)}


def steps_of(place: Path) -> list[list[float]]:
    """Return the milliseconds between an optimizer's steps, of each process in which one stepped."""
    results = []
    for path in place.glob("stamps.*"):
        stamps = list(struct.iter_unpack("QQ", path.read_bytes()))
        # Of several optimizers that step in turn, one marks the steps.
        busiest, _ = Counter(number for number, _ in stamps).most_common(1)[0]
        moments = [moment for number, moment in stamps if number == busiest]
        results.append([(after - before) / 1e6 for before, after in pairwise(moments)])
    return results


def own_clock(script: Script, folder: Path, environment: dict[str, str], seconds: float) -> list[float]:
    """Run a script without opscope; return the milliseconds between its optimizer's steps, without the first third."""
    with tempfile.TemporaryDirectory() as place:
        own = with_clock(environment, Path(place), seconds)
        ran([sys.executable, *script.command], folder, own, 4 * seconds + 120)
        steps = max(steps_of(Path(place)), key=len, default=[])
    return steps[len(steps) // 3 :]


def step_of(folder: Path) -> dict[str, Any] | None:
    """Return the step that a run's statistics say; None where there is none."""
    found = sorted(folder.glob("profiling_stats_*.json"))
    return json.loads(found[0].read_text())["measurement"]["step"] if found else None


def same_steps(run: Path, processes: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    """Compare the steps that opscope timed with the script's own clock, over the same steps of the same run.

    The two clocks tick at different places of a step, so each pair of steps differs a little, and the sums by less than
    one step. On a device the host runs ahead of it, so that sums differ by what that changes over the run.

    Args:
        run: the folder of the run.
        processes: the milliseconds between the optimizer's steps, all of the run, of each process.

    Returns:
        How many steps were compared, how long they took on average, in milliseconds, by both, and by how many percent
        opscope's time is longer; None where opscope timed no steps.
    """
    records = sorted((run / "raw").glob("capture_*.json"))
    timed = json.loads(records[0].read_text()).get("benchmark") if records else None
    if timed is None or timed["steps_each"] != 1 or timed["between"]:
        return None
    steps = [one / 1e6 for one in timed["wall_ns"]]
    # The boundary that begins the first of them is the one before which so many came; the hook's may be one off.
    found = json.loads(records[0].read_text())["steps"]
    before = found["before"] // found["events"]
    starts = range(max(0, before - 3), before + 2)
    parts = [own[start : start + len(steps)] for own in processes for start in starts]
    parts = [part for part in parts if len(part) == len(steps)]
    if not parts:
        return None
    alike = min(parts, key=lambda part: sum(abs(one - other) for one, other in zip(steps, part, strict=True)))
    mean, by_script = fmean(steps), fmean(alike)
    percent = round(100 * (mean / by_script - 1), 3)
    return {"steps": len(steps), "opscope_ms": mean, "own_ms": by_script, "percent": percent}


@dataclass(frozen=True)
class Wanted:
    """What is run of each script.

    Attributes:
        commands: names of `COMMANDS`.
        seconds: how long each run of the script's own clock times.
        budget: of ``opscope advise``, in seconds.
        rounds: how often ``opscope profile`` runs between runs of the own clock.
    """

    commands: Sequence[str]
    seconds: float
    budget: float
    rounds: int


def tried(script: Script, checkouts: Path, wanted: Wanted, place: int = 0) -> dict[str, Any]:
    """Run opscope's commands on a script; return what came of them.

    Args:
        script: the script.
        checkouts: the folder with its repository.
        wanted: what is run.
        place: among those that run at the same time.
    """
    lacking = [name for name in script.needs if find_spec(name) is None]
    if script.processes > max(1, gpus()):
        lacking.append(f"{script.processes} GPUs")
    source = checkouts / script.checkout
    if lacking or not (source / script.folder / script.command[0]).is_file():
        return {"name": script.name, "left_out": f"needs {', '.join(lacking)}" if lacking else f"no {script.checkout}"}
    with tempfile.TemporaryDirectory(prefix="try-") as outer:
        copy = Path(outer) / script.checkout
        shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        folder = copy / script.folder
        script.data(folder)
        (Path(outer) / "sitecustomize.py").write_text(HOOKS)
        parts = [outer, *([str(copy / script.path)] if script.path else [])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*parts, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        if script.processes == 1 and gpus() > 1:
            environment["CUDA_VISIBLE_DEVICES"] = str(place % gpus())
        return _tried(script, folder, environment, wanted, Path(outer))


def gpus() -> int:
    """Return how many GPUs there are."""
    import torch

    return int(torch.cuda.device_count())


def _tried(script: Script, folder: Path, environment: dict[str, str], wanted: Wanted, place: Path) -> dict[str, Any]:
    opscope = [sys.executable, "-m", "opscope"]
    with_opscope = {**environment, "PYTHONPATH": os.pathsep.join([str(SOURCE), environment["PYTHONPATH"]])}
    ranks = ["--nproc", str(script.processes)] if script.processes > 1 else []
    result: dict[str, Any] = {"name": script.name, "command": shlex.join(script.command)}
    commands, rounds = wanted.commands, wanted.rounds
    has_own = "own" in commands and not ranks
    clocks = [own_clock(script, folder, environment, wanted.seconds)] if has_own else []

    def run(name: str, words: Sequence[str], limit: float) -> None:
        where = with_clock(with_opscope, place) if name == "profile-1" and not ranks else with_opscope
        code, took, out = ran([*opscope, *words], folder, where, limit)
        sys.stdout.write(f"{script.name}: {name} exit {code}, {took:.1f} s\n")  # where it is ended, that much is known
        sys.stdout.flush()
        crashed = "Traceback (most recent call last)" in out
        result[name] = {"exit": code, "seconds": round(took, 1), "traceback": crashed, "says": out.splitlines()[-60:]}

    for number in range(1, max(rounds, 2 if "diff" in commands else 1) + 1):
        if "profile" in commands:
            words = ["profile", *ranks, "--output-dir", str(place / f"run{number}"), *script.command]
            run(f"profile-{number}", words, 300)
        if number <= rounds and has_own:
            clocks.append(own_clock(script, folder, environment, wanted.seconds))
    if "memory" in commands:
        recorded = place / "with-memory"
        run(
            "profile-memory",
            ["profile", "--memory", "--quick", *ranks, "--output-dir", str(recorded), *script.command],
            300,
        )
        if not ranks:
            run("memory", ["memory", str(recorded), "--top", "8"], 60)
    result["step"] = step_of(place / "run1")
    result["clock"] = same_steps(place / "run1", steps_of(place))
    if any(clocks):
        result["own_ms"] = [{"mean": fmean(one), "median": median(one), "steps": len(one)} for one in clocks if one]
        steps = [step for number in range(1, rounds + 1) if (step := step_of(place / f"run{number}")) is not None]
        result["opscope_ms"] = [step["ns"] / 1e6 for step in steps]
        result["differs"] = differs([step["ns"] / 1e6 for step in steps], [fmean(one) for one in clocks if one])
    if "page" in commands:
        run("page", ["page", str(place / "run1"), "-o", str(place / "page.html")], 120)
    if "diff" in commands:
        run("diff", ["diff", str(place / "run1"), str(place / "run2")], 120)
    if "advise" in commands and not ranks:
        run("advise", ["advise", "--budget", str(wanted.budget), *script.command], 2 * wanted.budget + 60)
    return result


def differs(steps: Sequence[float], own: Sequence[float]) -> dict[str, Any] | None:
    """Return by how much opscope's steps differ from the script's own clock in other runs, before and after each.

    Args:
        steps: what opscope says that a step takes, of each run.
        own: the means of the script's own clock, of one more run than these: they alternate.

    Returns:
        By how many percent opscope's time is longer, with its 95 % interval over runs where there are three and more:
        each run is compared with its two neighbours. And by how many percent neighbours of the own clock differ, half
        of them one way: what the host alone does.
    """
    if not steps or len(own) != len(steps) + 1:
        return None
    beside = [100 * (step / fmean(around) - 1) for step, around in zip(steps, pairwise(own), strict=True)]
    found: dict[str, Any] = {
        "percent": round(fmean(beside), 2),
        "own_runs_differ_percent": round(fmean(100 * abs(after / before - 1) for before, after in pairwise(own)), 2),
    }
    if len(beside) in STUDENT:
        half = STUDENT[len(beside)] * stdev(beside) / math.sqrt(len(beside))
        found |= {"low_percent": round(found["percent"] - half, 2), "high_percent": round(found["percent"] + half, 2)}
    return found


def machine() -> dict[str, str]:
    """Return what it was tried on."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    cores = str(len(os.sched_getaffinity(0)))
    return {"gpu": gpu, "cores": cores, "torch": str(torch.__version__), "python": platform.python_version()}


def main() -> None:
    """Try the scripts that the command line names; write results as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, help="the folder with a checkout of each repository")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the JSON file for the results")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in SCRIPTS], help="these scripts")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS, help="what is run of each")
    parser.add_argument("--seconds", type=float, default=40, help="how long each run of the script's own clock times")
    parser.add_argument("--budget", type=float, default=120, help="of opscope advise, in seconds")
    parser.add_argument("--rounds", type=int, default=1, help="how often profile runs between runs of the own clock")
    parser.add_argument(
        "--at-once",
        type=int,
        default=1,
        help="so many scripts at a time; each has own cores, and they share the GPUs out",
    )
    given = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "scripts": []}
    scripts = [script for script in SCRIPTS if not given.only or script.name in given.only]
    cores = sorted(os.sched_getaffinity(0))
    at_once = min(given.at_once, len(cores))
    wanted = Wanted(given.commands, given.seconds, given.budget, given.rounds)
    places, here = iter(range(at_once)), threading.local()

    def pin() -> None:
        """Give each script that runs at the same time cores of its own, which its processes inherit."""
        here.place = next(places)
        os.sched_setaffinity(0, cores[here.place :: at_once])

    def work(script: Script) -> dict[str, Any]:
        try:
            return tried(script, given.checkouts.resolve(), wanted, here.place)
        except Exception as error:  # one script that cannot be prepared must not cost the others
            return {"name": script.name, "left_out": f"{type(error).__name__}: {error}"}

    with ThreadPoolExecutor(at_once, initializer=pin) as pool:
        for done in as_completed([pool.submit(work, script) for script in scripts]):
            results["scripts"].append(done.result())
            given.output.write_text(json.dumps(results, indent=1) + "\n")
            sys.stdout.write(line_of(done.result()) + "\n")
            sys.stdout.flush()


def line_of(found: dict[str, Any]) -> str:
    """Return what came of a script, as a line."""
    if "left_out" in found:
        return f"{found['name']}: {found['left_out']}"
    ran_ = {name: one for name, one in found.items() if isinstance(one, dict) and "exit" in one}
    shown: dict[str, Any] = {name: f"exit {one['exit']}, {one['seconds']} s" for name, one in ran_.items()}
    return f"{found['name']}: {json.dumps({**shown, 'clock': found['clock'], 'differs': found.get('differs')})}"


if __name__ == "__main__":
    main()
