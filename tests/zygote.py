"""Runs the command line in processes that are forked from a warm one: as separate as users' own, without the imports.

``python -m tests.zygote plain`` has imported what an analysis needs, ``... torch`` PyTorch and the operator table too,
``... jobs`` PyTorch and Dynamo, ``... kernels`` PyTorch without Triton, whose interpreter is chosen before its import;
the processes that their commands start are forked from them. Scripts that these run import PyTorch as if for the first
time, see `_HiddenTorch`.
Each request is a JSON line on standard input; each answer is one on standard output. Sweeps fork their workers as well.
"""

import atexit
import contextlib
import functools
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


# ---------------------------------------------------------------- the side of the tests


class Zygote:
    """A warm process; it is started when it is first needed and ends with the tests."""

    def __init__(self, kind: str) -> None:
        paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "src"), str(ROOT)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote", kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True,
        )  # fmt: skip
        self._lock = threading.Lock()
        atexit.register(self._process.kill)

    def run(self, args: tuple[str, ...], code: str | None, cwd: Path | None, env: Mapping[str, str], stdin: bytes | None
            ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        return self.start(args, code, cwd, env, stdin).finish()

    def start(self, args: tuple[str, ...], code: str | None, cwd: Path | None, env: Mapping[str, str],
              stdin: bytes | None = None, terminal: str | None = None, output: bool = False) -> "Command":  # fmt: skip
        """Start a command in a session of its own; a terminal that is named gets its errors, or all its output."""
        folder = tempfile.mkdtemp()
        if stdin is not None:
            (Path(folder) / "in").write_bytes(stdin)
        where = {"cwd": str(cwd or Path.cwd()), "folder": folder, "terminal": terminal, "output": output}
        pid = self.ask({"args": args, "code": code, "env": dict(env), **where})
        return Command(self, args, pid, Path(folder))

    def ask(self, request: Mapping[str, Any]) -> int:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return int(json.loads(self._process.stdout.readline()))


class Command:
    """A command that was started."""

    def __init__(self, parent: Zygote, args: tuple[str, ...], pid: int, folder: Path) -> None:
        self._parent, self._args, self._folder, self.pid = parent, args, folder, pid

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Wait until it ends."""
        returncode = self._parent.ask({"wait": self.pid})
        # A command that was killed at once may not have come to open them.
        files = [self._folder / name for name in ("out", "err")]
        out, errors = (file.read_text(errors="surrogateescape") if file.exists() else "" for file in files)
        shutil.rmtree(self._folder)
        return subprocess.CompletedProcess(self._args, returncode, out, errors)


@functools.cache
def zygote(kind: str) -> Zygote:
    return Zygote(kind)


# ---------------------------------------------------------------- the side of the warm process


class _Forked:
    """What of `subprocess.Popen` the sweep needs of a worker."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    kill = terminate


class _NoWarmProcess:
    """Stands for a process that workers are forked from: this one is."""

    def __init__(self, target: str) -> None:
        pass

    def fork(self, request: Any, log: Path) -> None:
        pass

    def close(self) -> None:
        pass


def fork_worker(request: Any, log: Path) -> _Forked:
    """Start a worker as `opscope.sweep.process` does, by forking this process."""
    import msgspec

    from opscope.sweep import worker

    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reading)
        os.write(writing, msgspec.json.encode(request))
        os.close(writing)
        return _Forked(pid)
    try:
        os.close(writing)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for target, source in ((0, reading), (1, output), (2, output)):
            os.dup2(source, target)
        _reopen_streams()
        worker.main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


class _ForkingPopen(subprocess.Popen):  # type: ignore[type-arg]
    """Starts opscope's own modules (see `opscope.base.processes.own_process`) by forking this process, not anew."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
                       env: Any, startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int,
                       c2pread: int, c2pwrite: int, errread: int, errwrite: int, *rest: Any) -> None:  # fmt: skip
        if shell or list(args[:3]) != [sys.executable, "-P", "-m"]:
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
                                   creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
                                   *rest)  # fmt: skip
            return
        self.pid = os.fork()
        if not self.pid:
            if rest[-2]:  # start_new_session
                os.setsid()
            streams = (p2cread, c2pwrite, errwrite)
            _end_after(functools.partial(_become_module, args[3:], streams, pass_fds, cwd, env))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def _become_module(words: list[str], streams: tuple[int, ...], kept: Any, cwd: Any, env: Any) -> None:
    """Run a module of opscope in this forked process."""
    for target, source in enumerate(streams):
        if source not in (-1, target):
            os.dup2(source, target)
    last = 3
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    for descriptor in (*sorted(kept), 1024):
        os.closerange(last, descriptor)
        last = descriptor + 1
    _reopen_streams()
    if cwd is not None:
        os.chdir(cwd)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = [str(word) for word in words]
    sys.orig_argv = [sys.executable, "-P", "-m", *sys.argv]  # begins it anew
    if sys.argv[0] == "opscope.sweep.worker":
        _hide_torch()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


class _HiddenTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Has the first import of PyTorch, and of Dynamo, find what is in memory, and be heard of as any import."""

    _PARTS = ("torch._dynamo", "torch")  # each comes with all modules in it; the first one that fits counts

    def __init__(self) -> None:
        self._hidden: dict[str, dict[str, ModuleType]] = {part: {} for part in self._PARTS}
        for name in list(sys.modules):
            if part := next((one for one in self._PARTS if f"{name}.".startswith(f"{one}.")), None):
                self._hidden[part][name] = sys.modules.pop(name)

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self._hidden:
            return None
        module = self._hidden[name][name]
        spec = importlib.machinery.ModuleSpec(name, self, origin=module.__file__, is_package=True)
        spec.submodule_search_locations = list(module.__path__)
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        modules = self._hidden[spec.name]
        sys.modules.update({name: module for name, module in modules.items() if name != spec.name})
        return modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """The module has run."""


def _hide_torch() -> None:
    sys.meta_path.insert(0, _HiddenTorch())


def _end_after(run: Callable[[], None]) -> None:
    """Run something, and end this forked process as Python ends after it."""
    code = 1
    atexit._clear()  # what the parent would clean up is still needed
    try:
        run()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _reopen_streams() -> None:
    # The old ones must not close what they refer to when they are forgotten.
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode, closefd=False) for fd, mode in enumerate("rww"))


def _child(request: Mapping[str, Any]) -> None:
    """Become the command: the environment, folder, streams and arguments of the request."""
    os.setsid()
    os.closerange(3, 1024)  # what the warm process has open is none of the command's business
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    folder = Path(request["folder"])
    given = folder / "in"
    reading = os.open(given if given.exists() else os.devnull, os.O_RDONLY)
    streams = [reading, *(os.open(folder / name, os.O_WRONLY | os.O_CREAT) for name in ("out", "err"))]
    if request["terminal"] is not None:
        streams[2] = os.open(request["terminal"], os.O_RDWR | os.O_NOCTTY)
        if request["output"]:
            streams[1] = streams[2]
    for target, source in enumerate(streams):
        os.dup2(source, target)
    _reopen_streams()
    sys.argv = ["opscope", *request["args"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # where the tests run under nohup, a hangup is ignored
        signal.signal(number, signal.SIG_DFL)
    exec(compile(request["code"] or "from opscope.cli import main; main()", "<command>", "exec"), {})


def _remember_operators(native_functions: Any) -> None:
    """Ask for the operators of the CPU once: they are the same wherever a workload registers none of its own."""
    import torch
    import torch._inductor  # the profiler imports it when it first starts

    from opscope.sweep import measure

    read, registered = native_functions.installed_table, torch._C._dispatch_get_all_op_names
    count, remembered = len(registered()), read("CPU")

    def installed_table(device_key: str) -> Any:
        return remembered if device_key == "CPU" and len(registered()) == count else read(device_key)

    measure.installed_table = installed_table


def main() -> None:
    import opscope.cli.analysis_output
    import opscope.cli.explain
    import opscope.cli.sql
    import opscope.runs.pipeline

    if sys.argv[1] in ("jobs", "kernels"):
        import torch

        import opscope.cli.bench
        import opscope.cli.triton_check

        subprocess.Popen = _ForkingPopen  # type: ignore[misc]
    if sys.argv[1] == "jobs":
        import torch._dynamo  # noqa: F401 (an optimizer imports it, and it Triton)

        import opscope.cli.profile
        import opscope.sweep.measure_script

    if sys.argv[1] == "torch":
        import opscope.cli.profile
        import opscope.sweep.measure
        import opscope.sweep.process
        from opscope.collect import native_functions

        opscope.sweep.process.start_worker = fork_worker
        opscope.cli.profile.warm_process = _NoWarmProcess
        opscope.cli.profile.InProcess = functools.partial(opscope.sweep.process.InProcess, start=fork_worker)
        _remember_operators(native_functions)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        elif not (answer := os.fork()):
            _end_after(functools.partial(_child, request))
        answers.write(f"{answer}\n")


if __name__ == "__main__":
    main()
