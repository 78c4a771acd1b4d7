"""Compiles the reader of trace events while a wheel is built; without a compiler the wheel is pure Python."""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FLAGS = ["-O3", "-std=c++17", "-Wall", "-Wextra", "-fPIC", "-shared"]
_FOLDER = Path("src/opscope/readers/native")


class CustomBuildHook(BuildHookInterface):
    """Adds ``libkineto.so`` to the wheel; it needs no Python header, so one wheel serves every version of Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Compile, and mark the wheel as one for this platform."""
        folder = Path(self.root) / _FOLDER
        if self.target_name != "wheel" or not _compiled(folder / "kineto.cpp", folder / "libkineto.so"):
            return
        build_data["artifacts"].append(str(_FOLDER / "libkineto.so"))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _compiled(source: Path, library: Path) -> bool:
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    partial = library.with_suffix(f".{os.getpid()}")
    try:
        subprocess.run(
            [*compiler, *_FLAGS, "-o", str(partial), str(source)], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        print(f"opscope: reading traces will be slow, {source.name} could not be compiled: {reason}", file=sys.stderr)
        return False
    partial.replace(library)
    return True
