"""Builds the collector, and a program that plays one with CUDA, against a CUPTI that needs no GPU."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from opscope.base.errors import EnvironmentLacksError
from opscope.collect.cuda.command import SOURCES
from opscope.machine.programs import find_cupti
from opscope.readers.reading import read
from opscope.trace.model import Trace

_FAKE = Path(__file__).parent / "data" / "collector"
_FLAGS = ("-std=c++17", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-pthread")
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")


@dataclass(frozen=True)
class Played:
    """A program that was run, and what was recorded of it."""

    code: int
    out: str
    errors: str
    traces: tuple[Trace, ...]


@dataclass(frozen=True)
class FakeCuda:
    """What was built.

    Attributes:
        program: takes as its argument what shall happen.
        collector: the library.
    """

    program: Path
    collector: Path

    def play(self, folder: Path, *arguments: str, **environment: str) -> Played:
        """Run the program with the collector, and read what it leaves."""
        records = folder / "records"
        records.mkdir()
        given = {"CUDA_INJECTION64_PATH": str(self.collector), "OPSCOPE_CUDA_FOLDER": str(records), **environment}
        done = subprocess.run(
            [self.program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **given},
            timeout=100,
        )
        files = sorted(records.iterdir(), key=lambda file: file.stem.rpartition("-")[2])
        return Played(done.returncode, done.stdout, done.stderr, tuple(read(file) for file in files))


def build(folder: Path, *, sanitized: bool = True) -> FakeCuda:
    """Build all of it, with AddressSanitizer and UndefinedBehaviorSanitizer where these are wanted."""
    try:
        headers = [f"-I{path}" for path in find_cupti(None).headers]
    except EnvironmentLacksError as error:
        pytest.skip(str(error))
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    command = [compiler, *_FLAGS, *(_SANITIZERS if sanitized else ()), *headers]
    cupti, collector, program = folder / "libcupti.so.13", folder / "collector.so", folder / "program"
    shared = ["-shared", "-Wl,-soname,libcupti.so.13"]
    subprocess.run([*command, *shared, "-o", str(cupti), str(_FAKE / "fake_cupti.cpp")], check=True)
    own = ["-shared", "-fvisibility=hidden", "-o", str(collector), str(SOURCES / "collector.cpp"), "-ldl"]
    subprocess.run([*command, *own], check=True)
    link = [str(_FAKE / "program.cpp"), f"-L{folder}", "-l:libcupti.so.13", f"-Wl,-rpath,{folder}", "-ldl"]
    subprocess.run([*command, "-o", str(program), *link], check=True)
    return FakeCuda(program, collector)
