"""Runs a command with the collector in each of its processes that uses CUDA or NVTX.

The collector is a library in C++, which is compiled here, once, into the user's cache. ``make collector`` runs this.
"""

import datetime
import errno
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope._version import __version__
from opscope.base.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.base.files import PRIVATE_FILE, digest_of, is_own, kept_scratch, path_text, private_folder, written_whole
from opscope.base.text import lazy_pattern
from opscope.base.units import utc_timestamp
from opscope.collect.collector import Collected
from opscope.machine.driver import driver_release
from opscope.machine.programs import Cupti, find_cupti
from opscope.record.capture import RECORDING_ENDING, Execution, OtherTool

# The driver loads the library that the first names in cuInit; a program's NVTX loads that of the second.
_INJECTION, _NVTX_INJECTION = "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"
_FOLDER, _CUPTI = "OPSCOPE_CUDA_FOLDER", "OPSCOPE_CUPTI"
# Tools that need what the collector uses: while it is loaded, they end with an error or record nothing.
_OTHER_TOOLS: Final = (
    *("ncu", "nsys", "nv-nsight-cu-cli", "nvprof", "compute-sanitizer", "cuda-memcheck", "cuda-gdb"),
)
_ASIDE: Final = "aside.txt"
# A script with a tool's name, found on the PATH before it. It logs that the tool starts, removes our variables and our
# folder from the environment, and runs the tool. PATH gets a colon at both ends, so that the folder is found anywhere.
_STAND_IN: Final = """#!/bin/sh
printf '%s %s\\n' "$(date +%s.%N 2> /dev/null)" {program} >> {log}
unset {variables}
aside={aside}
PATH=":$PATH:"
PATH="${{PATH%%":$aside:"*}}:${{PATH#*":$aside:"}}"
PATH=${{PATH#:}}
PATH=${{PATH%:}}
export PATH
exec {program} "$@"
"""
_MOMENT: Final = lazy_pattern(
    r"\d{1,12}(\.\d+)?"
)  # the log has something else where `date` is missing, or knows no fractions
_SIGNALLED: Final = 128  # plus the signal's number is the exit code, as in shells
SOURCES: Final = Path(__file__).with_name("native")
_COLLECTOR_SOURCE: Final = SOURCES / "collector.cpp"
# The C++ library is linked statically: the programs that load the collector bring their own, of any version.
_COMPILER_FLAGS: Final = (
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    *("-static-libstdc++", "-static-libgcc"),
)
_COMPILE_S: Final = 300


def built_collector(cupti: Cupti) -> Path:
    """Return the collector's library from the cache; build it first if it is not there.

    Raises:
        EnvironmentLacksError: there is no C++ compiler, the build fails, or the cache cannot be written to.
    """
    command = [*_compiler(), *_COMPILER_FLAGS, *(f"-I{folder}" for folder in cupti.headers)]
    target = private_folder("cuda") / f"collector-{cupti.api_version}-{_digest(command)}.so"
    if is_own(target):  # otherwise it may be another user's, and is built anew
        return target
    with written_whole(target, PRIVATE_FILE) as partial:
        _compile([*command, "-o", str(partial), str(_COLLECTOR_SOURCE), "-ldl"])
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
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    except OSError as error:
        raise EnvironmentLacksError(f"the C++ compiler {command[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentLacksError(f"the collector could not be compiled in {_COMPILE_S} s") from error
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


class Command(Struct, frozen=True):
    """A program with its arguments."""

    arguments: tuple[str, ...]

    def found(self) -> str:
        """Return the program's path.

        Raises:
            UsageError: the program is not on the PATH, or is not executable.
        """
        program = self.arguments[0]
        path = shutil.which(program)
        if path is None:
            what = "is not executable" if Path(program).is_file() else "is not there"
            if Path(program).is_dir() and "/" in program:
                what = "is a folder"
            hint = f"; ./{program} is: name it so" if "/" not in program and os.access(program, os.X_OK) else ""
            raise UsageError(f"{program} {what}, and cannot be run{hint}")
        return path


class CudaCollector(Struct, frozen=True):
    """Records the CUDA activities of every process that a command starts.

    Attributes:
        cupti: the CUPTI to use.
        library: the collector's library, built for that CUPTI.
    """

    cupti: Cupti
    library: Path

    @classmethod
    def here(cls) -> "CudaCollector":
        """Return the collector for this machine; build its library if necessary.

        Raises:
            EnvironmentLacksError: CUPTI or a compiler is missing, or the driver is too old.
        """
        cupti = find_cupti(driver_release())
        return cls(cupti, built_collector(cupti))

    def collect(
        self, subject: Command, folder: Path, begun: Callable[[Execution], None] = lambda _: None
    ) -> Collected[Execution]:
        """Run a command on the standard streams of this process, and collect what its processes write.

        Args:
            subject: the command.
            folder: where its processes write their raw files; made if it is not there.
            begun: called just before the command starts, with a record that has no duration and no exit code yet.

        Raises:
            UsageError: there is no such program, or the environment names another tool to inject.
            EnvironmentLacksError: the program cannot be started.
        """
        program = subject.found()
        if other := os.environ.get(_INJECTION):
            raise UsageError(f"{_INJECTION} is set to {other}: another tool is to be loaded in its place. Unset it")
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        stand_ins = kept_scratch()  # not in the folder, whose path may hold colons: these separate entries of a PATH
        log = folder / _ASIDE
        variables = self._variables(folder)
        _write_stand_ins(stand_ins, log, sorted(variables), str(Path(program).absolute()))
        # Where the command itself is such a tool, its stand-in is run.
        if (named := stand_ins / Path(program).name).is_file():
            program = str(named)
        path = os.pathsep.join(filter(None, (str(stand_ins), os.environ.get("PATH"))))
        created, began = datetime.datetime.now(datetime.UTC), time.time()
        record = Execution(
            command=tuple(map(_as_text, subject.arguments)),
            folder=_here(),
            created=utc_timestamp(created),
            seconds=None,
            exit_code=None,
            opscope=__version__,
            cupti=str(self.cupti.api_version),
            cupti_library=str(self.cupti.library),
            recordings=(),
        )
        begun(record)
        before = set(folder.iterdir())  # files of earlier runs are neither read nor removed
        try:
            code = _run(subject.arguments, program, {**os.environ, **variables, "PATH": path})
        except OSError as error:
            raise EnvironmentLacksError(f"{program} cannot be run: {error.strerror or error}") from error
        finally:
            shutil.rmtree(stand_ins, ignore_errors=True)
        seconds = time.time() - began
        tools = tuple(_other_tools(log, began))
        taken = (file for file in folder.glob(f"*{RECORDING_ENDING}") if file not in before)
        # Names are process-PID-NANOSECONDS: by the last part, processes are in the order in which they began.
        files = sorted(taken, key=lambda file: file.stem.rpartition("-")[2])
        record = replace(
            record,
            seconds=seconds,
            exit_code=code,
            recordings=tuple(file.name for file in files),
            other_tools=tools,
            digests={file.name: digest_of(file) for file in files},
        )
        return Collected(tuple(files), record)

    def _variables(self, folder: Path) -> dict[str, str]:
        variables = {_INJECTION: str(self.library), _FOLDER: str(folder), _CUPTI: str(self.cupti.library)}
        if not os.environ.get(_NVTX_INJECTION):  # another tool's listener is kept
            variables[_NVTX_INJECTION] = str(self.library)
        return variables


def _as_text(argument: str) -> str:
    """Return an argument as text that JSON can hold: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(argument).decode("utf-8", "replace")


def _here() -> str:
    try:
        return path_text(Path.cwd())
    except OSError:
        return "?"  # the current folder was removed


def _write_stand_ins(folder: Path, log: Path, variables: Sequence[str], program: str) -> None:
    """Write a stand-in for each tool on the PATH, and for the program itself if it is one of the tools."""
    for name in _OTHER_TOOLS:
        real = program if Path(program).name == name else shutil.which(name)
        if real is None:
            continue
        text = _STAND_IN.format(
            program=shlex.quote(real),
            log=shlex.quote(str(log)),
            variables=" ".join(variables),
            aside=shlex.quote(str(folder)),
        )
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)


def _other_tools(log: Path, began: float) -> Iterator[OtherTool]:
    if not log.is_file():
        return
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        moment, _, program = line.partition(" ")
        if program:
            yield OtherTool(program, float(moment) - began if _MOMENT.fullmatch(moment) else None)
    log.unlink()


def _run(arguments: Sequence[str], program: str, environment: dict[str, str]) -> int:
    """Run a program and return its exit code. Signals that the terminal does not send to it are passed on."""
    with _signals_for_child() as children:
        # The child inherits all descriptors: `cat <(echo x)` reads from one that the shell opened.
        try:
            child = subprocess.Popen(arguments, executable=program, env=environment, close_fds=False)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without a #! line: shells run it with /bin/sh.
            child = subprocess.Popen(["/bin/sh", program, *arguments[1:]], env=environment, close_fds=False)
        children.started(child)
        code = children.wait_for(child)
    return code if code >= 0 else _SIGNALLED - code


class _Signals:
    """Passes signals on to a child; signals that come before it has started are kept until then."""

    def __init__(self, woken: int) -> None:
        self._woken = woken  # the read end of a pipe that gets a byte with each signal
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def started(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        while self._early:
            child.send_signal(self._early.pop(0))

    def wait_for(self, child: "subprocess.Popen[bytes]") -> int:
        """Wait for the child's end, and return its exit code.

        A blocking waitpid could miss a signal that comes just before it: Python would pass that signal on only after
        the child's end. Here every signal leaves a byte in the pipe, so the read returns even if the signal came first.
        """
        while (code := child.poll()) is None:
            os.read(self._woken, 1)
        return code

    def pass_on(self, number: int, _: object) -> None:
        if self._child is None:
            self._early.append(number)
        else:
            self._child.send_signal(number)

    def unless_of_terminal(self, number: int, frame: object) -> None:
        if not _in_foreground():
            self.pass_on(number, frame)


@contextmanager
def _signals_for_child() -> Iterator[_Signals]:
    """Pass signals on to the child, except those of the terminal, which the child gets itself."""
    woken, waking = os.pipe()
    os.set_blocking(waking, False)  # as `signal.set_wakeup_fd` requires
    signals = _Signals(woken)
    handlers = {
        signal.SIGCHLD: lambda _number, _frame: None,  # without a handler the child's end would leave no byte
        **dict.fromkeys((signal.SIGINT, signal.SIGQUIT), signals.unless_of_terminal),
        **dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2), signals.pass_on),
    }
    wakeup = signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(woken)
        os.close(waking)


def _in_foreground() -> bool:
    """Tell whether the terminal sends its signals to this process and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


if __name__ == "__main__":
    sys.exit(main())
