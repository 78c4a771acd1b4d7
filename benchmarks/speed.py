"""From the shell to the answer: whole commands of two source trees in turn, and other tools on the same file.

    python benchmarks/speed.py OLD_SRC NEW_SRC OUTPUT.json --rounds 7 --peers PYTHON

OLD_SRC and NEW_SRC are ``src`` folders with their compiled libraries. Files are made in a temporary folder: the
recorded GPT-2 training trace sixteen and 95 times, as gzip and as a store, one operator, and 100,000 distinct
names. ``--peers`` names a Python that has orjson and HolisticTraceAnalysis (HTA); they are timed on the large files.
Compare only figures of one run.
"""

import argparse
import compileall
import gzip
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks")]

from tests.kineto import KinetoTrace  # noqa: E402
from trace_speed import HTA, machine, repeated, run  # noqa: E402

GPT2 = ROOT / "tests" / "data" / "traces" / "gpt2_train_amp_stacks.json.gz"
_ORJSON = "import orjson, sys; orjson.loads(open(sys.argv[1], 'rb').read())"


def files(folder: Path) -> dict[str, Path]:
    made = {name: folder / f"{name}.json" for name in ("tiny", "small", "large", "names")}
    tiny = KinetoTrace()
    tiny.operator("aten::add", 1_000, 900)
    tiny.launched_kernel("void add<float>(float*)", (1_100, 50), (1_300, 400))
    tiny.write(made["tiny"])
    repeated(GPT2, 16, made["small"])
    repeated(GPT2, 95, made["large"])
    names = KinetoTrace()
    for number in range(100_000):
        names.operator(f"aten::op{number}", number * 1_000, 900)
        times = (number * 1_000 + 100, 50), (number * 1_000 + 300, 400)
        names.launched_kernel(f"void kernel_{number}<float, {number}>(float*)", *times)
    names.write(made["names"])
    made["gzip"] = folder / "small.json.gz"
    made["gzip"].write_bytes(gzip.compress(made["small"].read_bytes(), 6))
    return made


def rows(made: dict[str, Path], folder: Path) -> dict[str, tuple[Path | None, list[str]]]:
    page = ["-o", str(folder / "page.html"), "--overwrite"]
    return {
        "help": (None, ["--help"]),
        "tiny": (made["tiny"], ["analyze", str(made["tiny"])]),
        "small_table": (made["small"], ["analyze", str(made["small"])]),
        "small_json": (made["small"], ["analyze", str(made["small"]), "--format", "json"]),
        "small_gzip": (made["gzip"], ["analyze", str(made["gzip"])]),
        "small_store": (made["small"], ["analyze", str(folder / "store")]),
        "large_table": (made["large"], ["analyze", str(made["large"])]),
        "large_json": (made["large"], ["analyze", str(made["large"]), "--format", "json"]),
        "small_page": (made["small"], ["page", str(made["small"]), *page]),
        "large_page": (made["large"], ["page", str(made["large"]), *page]),
        "names": (made["names"], ["analyze", str(made["names"])]),
    }


def measured(commands: dict[str, tuple[list[str], dict[str, str]]], rounds: int) -> dict[str, object]:
    """Run commands in turn; return all samples, their medians, and the median of the pairs' ratios to the first."""
    samples: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, (command, environment) in commands.items():
            sample = run(command, {**os.environ, **environment, "PYTHONDONTWRITEBYTECODE": ""})
            if number:  # the first round only warms the disk's cache up
                samples[name].append(sample)
    first = next(iter(samples))
    return {
        "seconds": {name: [round(seconds, 4) for seconds, _ in of] for name, of in samples.items()},
        "median_seconds": {name: round(statistics.median(s for s, _ in of), 4) for name, of in samples.items()},
        "peak_bytes": {name: max(peak for _, peak in of) for name, of in samples.items()},
        "ratio": {
            name: round(statistics.median(b[0] / a[0] for a, b in zip(samples[first], of, strict=True)), 3)
            for name, of in samples.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", help="a Python that has orjson and HTA")
    parser.add_argument("--peer-rounds", type=int, default=2)
    given = parser.parse_args()
    trees = {"before": given.old.resolve(), "after": given.new.resolve()}
    for tree in trees.values():
        compileall.compile_dir(tree, quiet=2)
    opscope = [sys.executable, "-P", "-m", "opscope"]
    result: dict[str, object] = {"machine": machine(), "rows": {}, "peers": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a process of its own: a process that is started counts what its parent holds into its own peak.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            made = pool.submit(files, folder).result()
        environment = {**os.environ, "PYTHONPATH": str(trees["after"])}
        convert = [*opscope, "export", str(made["small"]), "--parquet", str(folder / "store")]
        subprocess.run(convert, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for row, (file, arguments) in rows(made, folder).items():
            commands = {name: ([*opscope, *arguments], {"PYTHONPATH": str(tree)}) for name, tree in trees.items()}
            rounds = given.rounds if file != made["large"] else max(given.rounds // 2, 3)
            found = measured(commands, rounds)
            shown = [argument.replace(f"{folder}/", "") for argument in arguments]
            result["rows"][row] = {"command": shown, "bytes": file.stat().st_size if file else None, **found}  # type: ignore[index]
            print(row, found["median_seconds"], found["ratio"], found["peak_bytes"], flush=True)
        for size in ("small", "large") if given.peers else ():
            path = str(made[size])
            own = ([*opscope, "analyze", path, "--format", "json"], {"PYTHONPATH": str(trees["after"])})
            peers = {"opscope": own, "orjson.loads": ([given.peers, "-c", _ORJSON, path], {})}
            if size == "small":  # HTA needs minutes for more
                peers["HTA"] = ([given.peers, "-c", HTA, path], {})
            found = measured(peers, given.peer_rounds)
            result["peers"][size] = {"bytes": made[size].stat().st_size, **found}  # type: ignore[index]
            print(size, found["median_seconds"], found["ratio"], flush=True)
    given.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
