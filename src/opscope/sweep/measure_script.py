"""Measure a script in this process: run it as it is, profile steps of its steady state, write its raw files."""

import atexit
import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opscope.base.errors import NOT_SET, OpscopeError, UsageError, unset_variable
from opscope.base.units import format_share
from opscope.collect.script.children import Children, WorkElsewhereError
from opscope.collect.script.found import Found, current_device, torch_is_idle
from opscope.collect.script.plain_clock import PlainClock
from opscope.collect.script.running import (
    after_import,
    listen_to_watchdog,
    run_script,
    start_watchdog,
    tell_without_steps,
)
from opscope.collect.script.signals import install, record_triton_launches
from opscope.collect.script.watcher import EnoughMeasured, Watcher
from opscope.record.capture import Benchmark, CaptureRecord, ScriptRun, StepKind, StepsFound, WorkloadInfo
from opscope.record.codec import decode, encode
from opscope.record.configuration import CaptureOptions, Configuration
from opscope.record.sweep import EntryFiles
from opscope.runs.store import RunDirectory

_AT_WORK: Final = 0.02  # of the recording; who only hands work to other processes is busy for less


class ScriptTask(Struct, frozen=True):
    """What a run of a script is to measure, and where it goes.

    Attributes:
        configuration: with the script as its target, and its arguments as they are written down.
        arguments: the arguments as the script gets them, quoted as in a shell.
        options: what is collected; ``schedule.active`` is the number of steps.
        directory: the run directory.
        files: the names of its files there.
        run: which run of the script it is, and what it makes up for.
        among_ranks: whether it is one of several ranks that are all measured.
        restart: begins the process that measures anew, with some environment; None where it cannot be.
    """

    configuration: Configuration
    arguments: str
    options: CaptureOptions
    directory: RunDirectory
    files: EntryFiles
    run: ScriptRun
    among_ranks: bool = False
    restart: Callable[[Mapping[str, str]], None] | None = None


class OutOfMemoryError(OpscopeError):
    """A script ended after its GPU ran out of memory, and a snapshot of that was kept.

    Attributes:
        script_code: the script's exit code.
    """

    def __init__(self, script: Path, error: BaseException) -> None:
        code = error.code if isinstance(error, SystemExit) else 1
        self.script_code = code if isinstance(code, int) else 1
        how = f"exit code {self.script_code}" if isinstance(error, SystemExit) else _one_line(error)
        if isinstance(error, SystemExit) and isinstance(error.code, str):
            how = error.code
        super().__init__(f"{script} ran out of the GPU's memory before anything was measured ({how})")


def _is_of_memory(error: BaseException | None) -> bool:
    """Tell whether a script ended because its GPU was out of memory, or with what it did when it caught that."""
    while error is not None:
        if type(error).__name__ == "OutOfMemoryError":
            return True
        error = error.__cause__ or error.__context__
    return False


class RunAgain(Struct, frozen=True):
    """A script that has to run again.

    Attributes:
        run: the run that makes up for the one that ended without a profile.
        error: what the script raised in that one; None if it ended by itself.
    """

    run: ScriptRun
    error: str | None


def measure_script(
    task: ScriptTask,
    phase: Callable[[str], None],
    kept: Callable[[], None],
    waits: Callable[[str], None],
    again: Callable[[ScriptRun], None],
) -> RunAgain | None:
    """Run a script, and write the trace of some of its steps, and its record.

    Args:
        task: what is measured.
        phase: called with what is going on.
        kept: called once everything is written; the script may go on after that, or be ended.
        waits: called with where the script is while no step comes, and with nothing once one has come.
        again: called with the run that makes up for this one, where the process is ended before this returns.

    Returns:
        What makes up for this run, where it ended without a profile; None where it has one.

    Raises:
        UsageError: there is no such script, or it does not use PyTorch.
        OpscopeError: it failed before anything could be measured.
    """
    configuration, options, directory, files = task.configuration, task.options, task.directory, task.files
    script = Path(configuration.target)
    if not script.is_file():
        raise UsageError(f"there is no file {script}")
    written: list[Found] = []
    failures: list[Exception] = []

    def keep(result: Found) -> None:
        if children.sentence is not None and (does := _does_nothing(result, trace)) is not None:
            failures.append(WorkElsewhereError(f"{script} itself {does}; {children.sentence}"))
            return
        try:
            _write(configuration, options, directory, files, result)
        except Exception as error:  # it is not the script's, which may catch whatever is raised in it
            failures.append(error)
            return
        written.append(result)
        kept()

    trace = directory.inside(files.cycles[0].trace).absolute()
    light, snapshot, memory = _further_paths(options, directory, files)
    run_on = bool(configuration.get("run_on"))
    watcher = Watcher(
        options,
        trace,
        keep,
        run=task.run,
        light=light,
        snapshot=snapshot,
        memory=memory,
        run_on=run_on,
        among_ranks=task.among_ranks,
        progress=phase,
        ends=again,
    )
    rank, is_patient = _rank() if task.among_ranks else None, task.run.wanted.kind is not None
    seen, worked = lambda: watcher.saw_something, lambda: watcher.has_worked
    children = Children(script, seen, worked, rank, task.restart, is_patient=is_patient)
    # Processes that the script forks inherit the watcher, and are not measured.
    os.register_at_fork(after_in_child=lambda: setattr(watcher, "active", False))

    def torch_imported() -> None:
        # The watcher hooks into PyTorch, which is not there before the script imports it.
        install(watcher, ranges=task.run.wanted.annotation is not None)
        after_import("triton.runtime.jit", record_triton_launches)
        watcher.torch_imported()
        children.torch_imported()
        start_watchdog(watcher, at_first_use=task.run.records)

    phase("running the script")
    listen_to_watchdog(watcher)
    children.listen()
    tell_without_steps(watcher, waits)
    error = run_script(script, shlex.split(task.arguments), torch_imported)
    error = children.ended(error, is_early=isinstance(error, EnoughMeasured))
    failed = error is not None and not isinstance(error, EnoughMeasured) and not _is_plain_exit(error)
    if failed:
        _as_python_would(error)
    _finish(watcher, error if failed else None, failures)
    _run_exit_functions()
    # What was measured counts, however the script ended; then opscope's own failures, if the script has none.
    if written:
        return None
    if failures and not failed:
        raise failures[0]
    if isinstance(error, WorkElsewhereError):
        raise error
    return _unmeasured(script, watcher, children, error if failed else None)


def _finish(watcher: Watcher, error: BaseException | None, failures: list[Exception]) -> None:
    """Keep what there is when the script has ended.

    Args:
        watcher: what has watched it.
        error: what it failed with; None if it did not.
        failures: gets opscope's own failure.
    """
    why = None if error is None else f"The script itself failed then ({_reason(error)}; the log has more)"
    try:
        watcher.finish(why, may_repeat=not (watcher.has_refused and _is_of_memory(error)))
    except Exception as failure:  # the script's own error, if there is one, says more
        traceback.print_exc()
        failures.append(failure)


def _further_paths(
    options: CaptureOptions, directory: RunDirectory, files: EntryFiles
) -> tuple[Path | None, Path | None, Path | None]:
    """Return where the light pass, a snapshot of memory and the trace of its steps go; None for what is not asked."""
    wanted = (files.light if options.benchmark else None, *((files.snapshot, files.memory) if options.memory else ()))
    paths = [None if name is None else directory.inside(name).absolute() for name in wanted]
    light, snapshot, memory = (*paths, None, None)[:3]
    return light, snapshot, memory


def _unmeasured(script: Path, watcher: Watcher, children: Children, error: BaseException | None) -> RunAgain:
    """Return what makes up for a run in which nothing was measured.

    Args:
        script: its path.
        watcher: what has watched it.
        children: the processes that it started.
        error: what ended the script; None if it ended by itself.

    Raises:
        UsageError: nothing can: what it does with PyTorch is in other processes, or it does not use PyTorch.
        OpscopeError: it failed before anything could be measured.
    """
    elsewhere = None if watcher.saw_something else children.sentence
    if elsewhere is not None and error is None and torch_is_idle():
        raise WorkElsewhereError(f"{script} itself does nothing on the GPU; {elsewhere}")
    if watcher.again is not None:
        return RunAgain(watcher.again, None if error is None else _one_line(error))
    if error is None:
        raise UsageError(f"{script} ended, and {watcher.missed}{'' if elsewhere is None else f'; {elsewhere}'}")
    if watcher.has_refused and _is_of_memory(error):
        raise OutOfMemoryError(script, error)
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            raise OpscopeError(f"{script} ended before anything was measured: {error.code}") from error
        raise OpscopeError(f"{script} ended with exit code {error.code} before anything was measured") from error
    raise error


def _does_nothing(result: Found, trace: Path) -> str | None:
    """Return in words that a script hardly works itself; None where it does, or has steps."""
    if result.kind is StepKind.RUN and not result.at_work and _has_no_operator(trace):
        return "runs no operator"
    if result.kind not in (StepKind.RUN, StepKind.OPERATORS) or result.at_work is None or result.at_work >= _AT_WORK:
        return None
    return f"is busy for less than {format_share(_AT_WORK, 1)} of the time"


def _has_no_operator(trace: Path) -> bool:
    """Tell whether a trace that was just written holds neither an operator nor work of a device."""
    content = trace.read_bytes()
    return b'"cpu_op"' not in content and b'"kernel"' not in content


def _rank() -> tuple[int, int] | None:
    """Return which rank of a launcher this process is, and how many there are; None where it does not say."""
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdecimal() and world.isdecimal() else None


def check_clock(task: ScriptTask) -> None:
    """Run a script with only a clock at the boundaries of the steps that its record names; keep the times there.

    Does nothing if the record has no timed steps.

    Raises:
        BadInputError: there is no record.
    """
    path = task.directory.inside(task.files.record)
    record = decode(path, CaptureRecord)
    if record.steps is None or not record.steps.timed:
        return
    interrupted = record.benchmark is not None and bool(record.benchmark.between)
    clock = PlainClock(record.steps, interrupted, task.run.wanted.annotation)
    ranges = task.run.wanted.annotation is not None
    error = run_script(
        Path(task.configuration.target), shlex.split(task.arguments), lambda: install(clock, ranges=ranges)
    )
    if error is not None and not isinstance(error, EnoughMeasured):
        _as_python_would(error)
    task.directory.write(task.files.record, encode(replace(record, own_clock=clock.result())))


def _as_python_would(error: BaseException | None) -> None:
    """Print into the log what ended the script."""
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif error.code is not None and not isinstance(error.code, int):
        sys.stderr.write(f"{error.code}\n")


def _run_exit_functions() -> None:
    """Run what the script registered with atexit: this process ends in another way than a script's."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()


def _reason(error: BaseException | None) -> str:
    if isinstance(error, SystemExit):
        return f"exit code {error.code}" if isinstance(error.code, int) else "exit code 1"
    return type(error).__name__


def _one_line(error: BaseException | None) -> str:
    text = str(error).splitlines()[:1]
    message = ": ".join([_reason(error), *text]) if text and not isinstance(error, SystemExit) else _reason(error)
    unset = None if error is None else unset_variable(error)
    return message if unset is None else f"{message} ({NOT_SET.format(unset)})"


def _is_plain_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _write(
    configuration: Configuration, options: CaptureOptions, directory: RunDirectory, files: EntryFiles, result: Found
) -> None:
    """Write down what was measured."""
    from opscope.collect.environment import peak_memory
    from opscope.sweep.measure import MeasurementResult, Task, write_record

    assert result.trace is not None
    device = current_device()
    name = Path(configuration.target).name
    info = WorkloadInfo(
        name=Path(configuration.target).stem,
        description=shlex.join([name, *shlex.split(str(configuration.get("arguments") or ""))]),
        own_step=True,
    )
    benchmark, untimed = None, result.untimed
    if result.times.wall_ns and options.benchmark:
        benchmark, untimed = _benchmark_of(result), None
    light = None if result.light is None or files.light is None else replace(result.light, file=files.light)
    memory = result.memory
    if memory is not None and memory.snapshot is not None:
        pass_of_its_own = memory.trace is not None and bool(memory.with_ns)
        memory = replace(memory, snapshot=files.snapshot, trace=files.memory if pass_of_its_own else memory.trace)
    steps = StepsFound(
        result.kind, result.source, result.also, result.events, result.before, result.timed, result.ranks, result.part
    )
    outcome = MeasurementResult(
        None,
        benchmark,
        peak_memory(device),
        (result.trace,),
        result.sentence(),
        light,
        steps,
        benchmark_reason=untimed,
        memory_recording=memory,
    )
    write_record(Task(configuration, options, directory, files), device, info, outcome)


def _benchmark_of(result: Found) -> Benchmark:
    reason = "clocks are not sampled while a script runs"
    return Benchmark(
        warmup_steps=0,
        wall_ns=result.times.wall_ns,
        event_ns=None,
        clocks=None,
        clocks_reason=reason,
        waited_for_cpu_ns=result.waited_for_cpu_ns,
        synchronised=False,
        between_marks=result.times.by_device,
        steps_each=result.times.steps_each,
        data_ns=result.times.data_ns,
        collecting_ns=result.times.collecting_ns,
        between=result.times.between,
        elapsed_ns=result.times.elapsed_ns,
    )
