"""Build the wheel, install it into an empty environment, and run its commands there, away from the sources."""

import json
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "tests" / "data" / "traces" / "bert4_bf16_compiled.json.gz"
COMPILED = (
    "opscope/readers/native/libkineto.so",
    "opscope/analysis/structure/native/libnesting.so",
    "opscope/analysis/replay/native/libreplay.so",
)
PURE = (
    "opscope/trace/columns.h",
    "opscope/collect/cuda/native/collector.cpp",
    "opscope/collect/cuda/native/tables.h",
    "opscope/report/page/assets/echarts.min.js",
    "opscope/report/page/assets/LICENSES.txt",
)
NEEDED = (*PURE, *COMPILED)
RECORDING = ROOT / "tests" / "data" / "exec" / "graph.cudarec.xz"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def built(folder: Path, *, compiler: str | None = None) -> Path:
    """Build a wheel.

    Args:
        folder: where to.
        compiler: the C++ compiler; None takes that of the environment. Where it fails, the wheel is a pure one.
    """
    environment = os.environ if compiler is None else {**os.environ, "CXX": compiler}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"the wheel was not built:\n{done.stdout}{done.stderr}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_wheel(wheel: Path, folder: Path, needed: Iterable[str] = NEEDED) -> None:
    """Install a wheel into an empty environment, and run its commands there.

    Args:
        wheel: the file.
        folder: where the environment is made.
        needed: files that it must hold.
    """
    missing = set(needed) - set(zipfile.ZipFile(wheel).namelist())
    if missing:
        sys.exit(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    venv.create(folder / "env", with_pip=True)
    binaries = folder / "env" / "bin"
    run(binaries / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=folder)
    opscope = binaries / "opscope"
    print(run(opscope, "--version", cwd=folder).strip())
    document = json.loads(run(opscope, "analyze", TRACE, "--format", "json", cwd=folder))
    assert document["schema"] == "opscope.analysis/1", document["schema"]
    run(opscope, "analyze", TRACE, "--by", "kernel", cwd=folder)
    run(opscope, "explain", "aten::softmax", cwd=folder)
    run(opscope, "analyze", RECORDING, "--stats", "all", cwd=folder)
    run(opscope, "page", TRACE, "-o", folder / "page.html", cwd=folder)
    run(opscope, "diff", TRACE, TRACE, cwd=folder)
    run(opscope, "export", TRACE, "--parquet", folder / "store", cwd=folder)
    assert "activities" in run(opscope, "sql", "--schema", cwd=folder)
    run(opscope, "sql", "SELECT count(*) FROM activities", folder / "store", cwd=folder)
    run(opscope, "export", folder / "store", "--chrome", folder / "out.json", cwd=folder)
    print(f"{wheel.name}: installed, and its commands run")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try_wheel(built(folder), folder)


if __name__ == "__main__":
    main()
