"""Compiles the C++ sources while a wheel is built; without a compiler the wheel is pure Python."""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FLAGS = ["-O3", "-std=c++2a", "-Wall", "-Wextra", "-pthread", "-fPIC", "-shared", "-Isrc/opscope/trace"]
# The sources, and the library that each becomes. Both are optional: without them the same rules run in Python.
_SOURCES = {
    Path("src/opscope/readers/native/kineto.cpp"): "libkineto.so",
    Path("src/opscope/readers/native/snapshot.cpp"): "libsnapshot.so",
    Path("src/opscope/analysis/structure/native/nesting.cpp"): "libnesting.so",
    Path("src/opscope/analysis/replay/native/replay.cpp"): "libreplay.so",
}


class CustomBuildHook(BuildHookInterface):
    """Adds the libraries to the wheel; they need no Python header, so one wheel serves every version of Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Compile, and mark the wheel as one for this platform."""
        if self.target_name != "wheel":
            return
        for source, name in _SOURCES.items():
            if _compiled(Path(self.root), source, source.with_name(name)):
                build_data["artifacts"].append(str(source.with_name(name)))
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _compiled(root: Path, source: Path, library: Path) -> bool:
    command = [*shlex.split(os.environ.get("CXX", "c++")), *_FLAGS, *shlex.split(os.environ.get("CXXFLAGS", ""))]
    partial = (root / library).with_suffix(f".{os.getpid()}")
    try:
        subprocess.run(
            [*command, "-o", str(partial), str(source)], check=True, capture_output=True, text=True, cwd=root
        )
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        print(f"opscope: large traces will be slow, {source.name} could not be compiled: {reason}", file=sys.stderr)
        return False
    partial.replace(root / library)
    return True
