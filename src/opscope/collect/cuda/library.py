"""Builds the collector's library for the installed CUPTI, once: ``python -m opscope.collect.cuda.library``."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from opscope.base.errors import EnvironmentLacksError, OpscopeError
from opscope.base.files import PRIVATE_FILE, is_own, private_folder, written_whole
from opscope.machine.cupti import Cupti, find_cupti
from opscope.machine.driver import driver_release

SOURCES: Final = Path(__file__).with_name("native")
_MAIN: Final = SOURCES / "collector.cpp"
# The C++ library is linked statically: the programs that load the collector bring their own, of any version.
_FLAGS: Final = (
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    *("-static-libstdc++", "-static-libgcc"),
)
_SECONDS: Final = 300


def built_collector(cupti: Cupti) -> Path:
    """Return the collector's library from the cache; build it first if it is not there.

    Raises:
        EnvironmentLacksError: there is no C++ compiler, the build fails, or the cache cannot be written to.
    """
    command = [*_compiler(), *_FLAGS, *(f"-I{folder}" for folder in cupti.headers)]
    target = private_folder("cuda") / f"collector-{cupti.api_version}-{_digest(command)}.so"
    if is_own(target):  # otherwise it may be another user's, and is built anew
        return target
    with written_whole(target, PRIVATE_FILE) as partial:
        _compile([*command, "-o", str(partial), str(_MAIN), "-ldl"])
    return target


def _compiler() -> list[str]:
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise EnvironmentLacksError(f"$CXX is not a command: {error}") from error
    if named:
        return named
    result = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    if result is None:
        raise EnvironmentLacksError(
            "the collector has to be compiled once, and there is no C++ compiler here (c++, g++, clang++, or $CXX)"
        )
    return [result]


def _digest(command: list[str]) -> str:
    """Return a digest of all that a build is made of: the command and every source."""
    made_of = hashlib.blake2b("\0".join(command).encode(), digest_size=8)
    for source in sorted(SOURCES.iterdir()):
        made_of.update(source.read_bytes())
    return made_of.hexdigest()


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except OSError as error:
        raise EnvironmentLacksError(f"the C++ compiler {command[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentLacksError(f"the collector could not be compiled in {_SECONDS} s") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise EnvironmentLacksError(
            f"the collector could not be compiled: {errors[0].strip() if errors else 'the compiler did not say why'} "
            f"({shlex.join(command[:1])})"
        )


def main() -> int:
    """Build the library and print its path; return the exit code."""
    try:
        cupti = find_cupti(driver_release())
        sys.stdout.write(f"{built_collector(cupti)} (for {cupti.library})\n")
    except OpscopeError as error:
        sys.stderr.write(f"opscope: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
