"""The process of one variant: builds it, then times or records it as often as it is asked."""

import atexit
import contextlib
import cProfile
import functools
import hashlib
import multiprocessing
import os
import shlex
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import (  # as they are, whatever clock a script sees  # as they are, whatever clock a script sees
    perf_counter,
    perf_counter_ns,
    sleep,
    thread_time_ns,
    time_ns,
)
from typing import Any, Final

import msgspec
import torch
from msgspec import Struct
from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from opscope.advise.changes.listed import BY_NAME, in_order
from opscope.advise.loaders import Loaders, Wait
from opscope.advise.messages import (
    FAILED,
    FIRST_STEPS,
    NO_WEIGHTS,
    AskLosses,
    Broken,
    Built,
    Compiling,
    Load,
    Loaded,
    Profile,
    Record,
    Time,
    Turn,
    VariantJob,
    Work,
    Worked,
)
from opscope.advise.recording import keep_weights, losses, record, take_weights
from opscope.advise.routine import Ran, Routine, whole_step
from opscope.advise.simulated import compute_in_float64
from opscope.advise.stages import Fetched, ProfiledFunction, RunningFunction, StageTime, stage_of_each
from opscope.advise.variant import Variant, prepare
from opscope.advise.variants import FunctionVariant, ScriptEndedError, ScriptVariant
from opscope.base.errors import NOT_SET, OpscopeError, unset_variable
from opscope.base.files import is_users
from opscope.base.processes import end_with_parent, waited_for_cpu_ns
from opscope.base.units import NS_PER_S
from opscope.collect.environment import cpu_name
from opscope.collect.script.running import use_sources
from opscope.measuring.clock import Mark, synchronize
from opscope.measuring.pinning import pinned
from opscope.record.capture import WantedSteps
from opscope.record.configuration import CaptureOptions, Schedule
from opscope.torch_support.tensors import current, resolve_device
from opscope.workloads.catalog import is_script

# ---------------------------------------------------------------- the clock of a worker's stages


_PROFILED_EVERY: Final = 4  # batches; a profile slows down what it measures, so the others give the times
_KEPT_FUNCTIONS: Final = 12
# From Python 3.12 on a profile sees all threads, also the one that passes a worker's batches on. Its waits look like
# calls of the dataset; a dataset that waits for a process itself does so through a manager or a queue.
_OF_OTHER_THREADS: Final = ("multiprocessing/resource_sharer.py", "multiprocessing/connection.py")
_OF_DATASETS: Final = ("multiprocessing/managers.py", "multiprocessing/queues.py")


class StageClock:
    """Writes a line for each batch that is fetched, in whichever process.

    Args:
        path: the file that gets the lines; workers add to it as well.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0

    def listen(self) -> None:
        """Begin; for the rest of the process, and for workers that are forked from now on."""
        for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
            fetcher.fetch = self._timed(fetcher.fetch)

    def _timed(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fetch)
        def fetched(self_: Any, indices: Any) -> Any:
            self._count += 1
            profile = _profile() if self._count % _PROFILED_EVERY == 0 else None
            collating = [0]
            collate = self_.collate_fn

            def collated(samples: Any) -> Any:
                if profile is not None:
                    profile.disable()
                began = perf_counter_ns()
                try:
                    return collate(samples)
                finally:
                    collating[0] += perf_counter_ns() - began

            self_.collate_fn = collated
            began, worked = perf_counter_ns(), thread_time_ns()
            try:
                batch = fetch(self_, indices)
            finally:
                if profile is not None:
                    profile.disable()
                self_.collate_fn = collate
            wall, cpu = perf_counter_ns() - began, thread_time_ns() - worked
            self._write(wall, cpu, collating[0], collate, profile)
            return batch

        return fetched

    def _write(
        self, wall: int, cpu: int, collating: int, collate: Callable[..., Any], profile: cProfile.Profile | None
    ) -> None:
        worker = get_worker_info()
        result = Fetched(
            worker=None if worker is None else worker.id,
            ended_ns=time_ns(),
            wall_ns=wall,
            cpu_ns=cpu,
            collate_ns=collating,
            collate=_function_of(collate),
            stages=() if profile is None else _stages(profile),
        )
        with self._path.open("ab", buffering=0) as file:  # one write: lines of several workers do not mix
            file.write(msgspec.json.encode(result) + b"\n")


def _profile() -> cProfile.Profile | None:
    """Return a profile that runs; None where another one does, from Python 3.12 on."""
    profile = cProfile.Profile()
    try:
        profile.enable()
    except ValueError:
        return None
    return profile


def _function_of(collate: Callable[..., Any]) -> RunningFunction:
    code = getattr(collate, "__code__", None)
    name = getattr(collate, "__qualname__", type(collate).__name__)
    return RunningFunction(name) if code is None else RunningFunction(name, code.co_filename, code.co_firstlineno)


def _stages(profile: cProfile.Profile) -> tuple[StageTime, ...]:
    entries = _entries(profile.getstats())
    files = {one.function.file for one in entries}
    passed_on = any(file.endswith(_OF_OTHER_THREADS) for file in files)
    if sys.version_info >= (3, 12) and passed_on and not any(file.endswith(_OF_DATASETS) for file in files):
        return ()
    own = os.path.dirname(__file__)
    result = stage_of_each([entry for entry in entries if not entry.function.file.startswith(own)])
    longest = sorted(result.items(), key=lambda item: -item[1])[:_KEPT_FUNCTIONS]
    return tuple(StageTime(stage, function, seconds) for (stage, function), seconds in longest)


def _entries(stats: Sequence[Any]) -> list[ProfiledFunction]:
    callers: dict[RunningFunction, dict[RunningFunction, float]] = {}
    for one in stats:
        caller = _function(one.code)
        for callee in one.calls or ():
            into = callers.setdefault(_function(callee.code), {})
            into[caller] = into.get(caller, 0.0) + callee.inlinetime
    result = ((_function(one.code), one.inlinetime) for one in stats)
    return [ProfiledFunction(function, own, callers.get(function, {})) for function, own in result]


def _function(code: Any) -> RunningFunction:
    return (
        RunningFunction(code)
        if isinstance(code, str)
        else RunningFunction(code.co_name, code.co_filename, code.co_firstlineno)
    )


# ---------------------------------------------------------------- the worker


_MOST_TIMES: Final = 10  # as long as asked for, where batches take long to come
_AHEAD: Final = 8  # steps by which the host may run ahead of the device
_OUT_OF_MEMORY: Final = "out of memory"  # libraries of CUDA raise errors of other classes
_COMES_S: Final = 60.0  # for so long one process waits for the weights that another one writes
_LONGEST: Final = 200  # characters of a reason


def serve_variant(job: VariantJob, connection: Connection) -> None:
    """Build a variant and answer what is asked, until no one asks any more. Ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    end_with_parent(signal.SIGKILL)
    os.setpgid(0, 0)  # what the user's code starts ends with it: see `Worker.close`
    multiprocessing.set_start_method(None, force=True)  # that of this process is inherited, and is not the user's
    _leave_exits_to_libraries()
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    end = partial(_end, connection)
    try:
        _serve(job, connection, end)
        end(None)
    except BaseException as error:  # the boundary of code that is the user's: whatever it raises is a result
        end(error)


def _leave_exits_to_libraries() -> None:
    """Have functions of the user's that are to run at exit, such as those that save, not registered at all."""
    register = atexit.register

    def registering(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        code = getattr(function, "__code__", None)
        if code is None or not is_users(code.co_filename):
            register(function, *args, **kwargs)
        return function

    atexit.register = registering  # type: ignore[assignment]


def _end(connection: Connection, error: BaseException | None) -> None:
    """Say what went wrong, if anything did, and end the process."""
    if error is not None and not isinstance(error, EOFError | BrokenPipeError):  # those mean that no one asks any more
        if not isinstance(error, OpscopeError):
            traceback.print_exception(error)
        with contextlib.suppress(OSError):
            lacks = isinstance(error, torch.OutOfMemoryError) or _OUT_OF_MEMORY in str(error)
            connection.send(
                Broken(_described(error), lacks_memory=lacks, has_ended=isinstance(error, ScriptEndedError))
            )
    for child in _children():  # exit functions would wait for them
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGTERM)  # which the process that removes semaphores at the end leaves alone
    # What was compiled leaves processes and semaphores. But threads that the user's code left running shall not keep
    # the process alive.
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _children() -> list[int]:
    """Return the numbers of the processes that this one has started, and on Linux of those that a library has."""
    pids = {child.pid for child in multiprocessing.active_children() if child.pid is not None}
    with contextlib.suppress(OSError, ValueError):
        for listed in Path("/proc/self/task").glob("*/children"):
            pids |= {int(number) for number in listed.read_text().split()}
    return sorted(pids)


def _described(error: BaseException) -> str:
    """Return an exception as one short line."""
    text = " ".join(str(error).split())
    if isinstance(error, OpscopeError):
        return text
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    message = f"{type(error).__name__}: {short}" if short else type(error).__name__
    if unset := unset_variable(error):
        message = f"{message} ({NOT_SET.format(unset)})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return f"{message} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else message


def _serve(job: VariantJob, connection: Connection, end: Callable[[BaseException | None], None]) -> None:
    loaders = Loaders(seeded=job.proving, replay=job.replay)
    loaders.listen()
    if job.stages:
        StageClock(Path(job.stages)).listen()
    for name in in_order(job.changes):
        BY_NAME[name].prepare(loaders)
    if is_script(job.configuration.target):
        use_sources(job.sources)
        wanted = WantedSteps.named(job.steps)
        script = ScriptVariant(Path(job.configuration.target), shlex.split(job.arguments), wanted, loaders, end)
        script.drive(_conversation(script, job, connection))
        return
    device = resolve_device(job.device)
    with current(device):
        function = FunctionVariant(job.configuration, device, loaders)
        function.drive(_conversation(function, job, connection))


def _conversation(variant: Variant, job: VariantJob, connection: Connection) -> Routine[None]:
    """Observe the step as written, make the changes, then answer what is asked; ends with the connection."""
    yield from variant.observe()
    if job.compiles:
        connection.send(Compiling())
    facts = variant.facts
    if job.proving:
        prepare(variant)
        if job.begin and job.is_as_written and facts.training:
            keep_weights(variant, Path(job.begin))
    if job.reference:
        compute_in_float64(variant, job.rounding)
    changes = [BY_NAME[name] for name in in_order(job.changes)]
    for change in changes:
        change.apply(variant)
    began, variant.warming_up = perf_counter(), True
    for _ in range(FIRST_STEPS):
        yield from whole_step()
        synchronize(variant.device)
    took, variant.warming_up = perf_counter() - began, False
    if job.begin and facts.training:
        _wait_for(Path(job.begin))
        take_weights(variant, Path(job.begin))
    idle = next((reason for change in changes if (reason := change.took_effect(variant)) is not None), None)
    if idle is not None:
        connection.send(Broken(idle, took_no_effect=True))
        return
    on_gpu = variant.device.type == "cuda"
    memory = torch.cuda.max_memory_reserved(variant.device) if on_gpu else None
    free = torch.cuda.mem_get_info(variant.device)[0] if on_gpu else None
    name = torch.cuda.get_device_name(variant.device) if on_gpu else cpu_name()
    connection.send(Built(facts, name, took, memory, variant.places, _digest(), free))
    while True:
        with variant.waiting():
            asked = connection.recv()
        connection.send((yield from _answer(variant, asked)))


def _wait_for(path: Path) -> None:
    """Wait for a file that another process writes."""
    until, failed = perf_counter() + _COMES_S, Path(f"{path}{FAILED}")
    while not path.exists():
        if perf_counter() > until or failed.exists():
            raise OpscopeError(NO_WEIGHTS)
        sleep(0.05)


def _digest() -> str:
    """Return a digest of the user's files that this process has imported, and of its script."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    result = hashlib.sha256()
    for file in sorted(str(Path(file).absolute()) for file in files if file and is_users(file)):
        with contextlib.suppress(OSError):
            result.update(Path(file).read_bytes())
    return result.hexdigest()


def _answer(variant: Variant, asked: object) -> Routine[object]:
    match asked:
        case Time(seconds, cores):
            with pinned(cores):
                return (yield from _timed(variant, seconds))
        case Load(seconds, batches):
            return (yield from _loaded(variant, seconds, batches))
        case Profile(path, steps):
            return (yield from _profiled(variant, Path(path), steps))
        case Work(steps):
            return (yield from _worked(variant, steps))
        case Record(steps):
            return (yield from record(variant, steps))
        case AskLosses(steps, number):
            return (yield from losses(variant, steps, number))
    raise TypeError(f"no one answers {type(asked).__name__}")


def _timed(variant: Variant, seconds: float) -> Routine[Turn]:
    """Return what a step takes: the mean of steps that follow each other as they do in the user's loop.

    The device is waited for at the ends of a stretch alone: where the host runs ahead of it, its work hides behind that
    of the device, and loading too. Not the median: batches of several workers come in bursts, one slow step and then as
    many fast ones.
    """
    # Workers of loaders went on while others were timed: what they hold ready was not waited for.
    for _ in range(1 + variant.prefetched):
        yield from whole_step()
    steps, took_ns, passed = 0, 0, 0.0
    began, waited = perf_counter(), waited_for_cpu_ns()
    while passed < seconds or (steps < variant.least_steps and (not steps or passed < _MOST_TIMES * seconds)):
        left = Stretch(seconds - passed, variant.least_steps - steps, _MOST_TIMES * seconds - passed)
        more, stretch_ns = yield from _stretch(variant, left)
        steps, took_ns, passed = steps + more, took_ns + stretch_ns, perf_counter() - began
    after = waited_for_cpu_ns()
    share = None if waited is None or after is None else max(0, after - waited) / (passed * NS_PER_S)
    return Turn(took_ns / steps, share)


class Stretch(Struct, frozen=True):
    """How long steps follow each other.

    Attributes:
        seconds: at least so long.
        steps: and at least so many.
        longest_s: but no longer than this.
    """

    seconds: float
    steps: int
    longest_s: float


def _stretch(variant: Variant, wanted: Stretch) -> Routine[tuple[int, int]]:
    """Return how many steps followed each other, and what they took together, in nanoseconds.

    What comes in between ends a stretch: the step that it interrupts is not counted, and its time neither.
    """
    synchronize(variant.device)
    begin = last = Mark(variant.device)
    steps, ahead = 0, deque[Mark]()
    while True:
        returned = yield
        if returned is Ran.INTERRUPTED:
            return steps, last.since(begin)
        steps, last = steps + 1, Mark(variant.device)
        ahead.append(last)
        if len(ahead) > _AHEAD:  # else the host's clock says nothing of how long the device still works
            ahead.popleft().wait()
        passed = (perf_counter_ns() - begin.host_ns) / NS_PER_S
        if passed > wanted.longest_s or (passed >= wanted.seconds and steps >= wanted.steps):
            break
    synchronize(variant.device)
    return steps, perf_counter_ns() - begin.host_ns


def _loaded(variant: Variant, seconds: float, batches: int) -> Routine[Loaded]:
    """Take whole steps, and tell what loading takes in them."""
    for _ in range(1 + variant.prefetched):
        yield from whole_step()
    synchronize(variant.device)
    waits, reads = variant.loaders.waits, variant.loaders.reads()
    results: list[Wait] = []
    seen, steps, began = len(waits), 0, perf_counter()
    while (passed := perf_counter() - began) < seconds or (len(results) < batches and passed < _MOST_TIMES * seconds):
        returned = yield
        if returned is not Ran.INTERRUPTED:
            steps, results = steps + 1, [*results, *waits[seen:]]
        seen = len(waits)
    synchronize(variant.device)
    # The first batch of an epoch is waited for longer than others: that belongs to the start of its workers.
    others = [one.wall_ns for one in results if not one.start_ns]
    usual = round(median(others)) if others else 0
    return Loaded(
        steps,
        [min(one.wall_ns, usual) if one.start_ns else one.wall_ns for one in results],
        [one.cpu_ns for one in results],
        [one.start_ns + max(0, one.wall_ns - usual) for one in results if one.start_ns],
        variant.loaders.epoch(reads),
    )


def _profiled(variant: Variant, path: Path, steps: int) -> Routine[bool]:
    """Write a trace of some whole steps."""
    from opscope.collect.torch_profiler import TorchProfiler, write_trace

    profiler = TorchProfiler(CaptureOptions(), variant.device).profiler(Schedule(0, 1, steps, 1))
    synchronize(variant.device)
    profiler.start()
    for number in range(steps + 1):
        yield from whole_step()
        synchronize(variant.device)
        if number < steps:
            profiler.step()
    profiler.stop()
    write_trace(profiler, path)
    return True


def _worked(variant: Variant, steps: int) -> Routine[Worked]:
    """Record the device's activities alone, and return how long it works in a step."""
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    synchronize(variant.device)
    profiler.start()
    for _ in range(steps):
        yield from whole_step()
    synchronize(variant.device)
    profiler.stop()
    events = profiler.profiler.kineto_results.events() if profiler.profiler is not None else []
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.device_type() == torch.autograd.DeviceType.CUDA
    )
    worked, ended = 0, 0
    for begin, end in spans:
        worked += max(0, end - max(begin, ended))
        ended = max(ended, end)
    return Worked(worked / steps if spans else None)
