"""Benchmarks in separate processes, which may crash or never return. Needs no PyTorch here."""

import contextlib
import functools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar

import msgspec
from msgspec.structs import replace

from opscope.base.errors import EnvironmentLacksError, OpscopeError, UsageError
from opscope.base.files import PRIVATE_FILE, cache_folder, private_folder, scratch, write_whole
from opscope.base.processes import own_environment, own_process
from opscope.documents.bench import BenchDocument, BenchResult, Confirmation, Correct, Duration, FalseAlarms, Measure
from opscope.measuring.rounds import duration_of
from opscope.measuring.verdicts import compare, in_a_row_ns, pairs_of
from opscope.record.bench import BenchJob, BenchRequest, Claim, Judged, JudgeJob
from opscope.record.codec import encode
from opscope.workbench.gallery.cases import TIMERS

_Progress = Callable[[str], None]
_Refused = dict[str, dict[str, str]]
T = TypeVar("T", BenchDocument, FalseAlarms)
JUDGE = "opscope.workbench.jobs.bench_judge"
_LAST_WORDS_S = 1.0  # how long a process that has ended is listened to: what it started may keep its pipes open
_LAST_LINES = 15  # of a process's errors, which a failure shows


def benchmark_in_processes(
    request: BenchRequest, processes: int, timeout_s: float, progress: _Progress
) -> BenchDocument:
    """Benchmark in one fresh process, or in several, of which each is one sample.

    Args:
        request: what to benchmark.
        processes: how many processes, at least 1.
        timeout_s: the most for each process, in seconds.
        progress: called with a line of text on what goes on.

    Raises:
        UsageError: a target or parameter is wrong.
        EnvironmentLacksError: the machine lacks something, such as memory.
        OpscopeError: a process failed, or did not return in time, while the baseline ran or none of the others. One
            that ended because of another variant is followed by one without it.
    """
    documents = []
    refused: _Refused = {}
    # It is started first, so that it is ready in time.
    with _started(JUDGE) as judge:
        for number in range(processes):
            prefix = f"process {number + 1} of {processes}: " if processes > 1 else ""
            say = functools.partial(_prefixed, progress, prefix)
            documents.append(_without_those_that_end_it(request, refused, timeout_s, say))
        result = documents[0] if processes == 1 else one_document(documents)
        result = _confirmed(result, request, judge, timeout_s, progress)
    return replace(result, false_alarms=kept_false_alarms(result))


def _confirmed(
    document: BenchDocument,
    request: BenchRequest,
    judge: "subprocess.Popen[str] | None",
    timeout_s: float,
    progress: _Progress,
) -> BenchDocument:
    """Have the user's variants confirmed in processes of their own, by one that runs none of them."""
    firsts: dict[str, str] = {}
    for one in document.results:
        firsts.setdefault(one.case, one.name)
    confirmable = _cases_of_the_user(request)
    asked = {
        _variant(one): Judged(one.case, one.name, one.parameters, _claims(_baseline(document.results, one), one))
        for one in document.results
        if one.case in confirmable and one.name != firsts[one.case] and _may_be_right(one)
    }
    if not asked:
        return document
    result: dict[tuple[object, ...], Confirmation] = {}
    while len(result) < len(asked):
        left = {variant: one for variant, one in asked.items() if variant not in result}
        result |= _judged(JudgeJob(request, tuple(left.values()), timeout_s), tuple(left), judge, progress)
        judge = None  # a further one is started: this one has ended
    results = tuple(_with(one, result.get(_variant(one))) for one in document.results)
    timed = [one for one in results if one.case != TIMERS]
    return replace(document, results=results, comparisons=compare(pairs_of(timed)))


def _judged(
    job: JudgeJob,
    variants: Sequence[tuple[object, ...]],
    judge: "subprocess.Popen[str] | None",
    progress: _Progress,
) -> dict[tuple[object, ...], Confirmation]:
    """Have variants judged; of a judge that ended, return a doubt about the one that was judged then.

    Args:
        job: what is judged.
        variants: what stands for each of its variants in the result.
        judge: a process that waits for the job; None starts one.
        progress: called with lines on the progress.
    """
    answers: list[str] = []
    at, ended = [-1], "the process that judges ended before it was done with it"

    def heard(line: str) -> None:
        if line.startswith("[{"):  # lines of progress are text, the answer is a list
            answers.append(line)
            return
        at[0] += 1
        progress(line)

    most = job.timeout_s * (1 + len(variants))
    try:
        with contextlib.nullcontext(judge) if judge is not None else _started(JUDGE) as process:
            _, errors = _followed(process, encode(job).decode(), most, heard)
            if process.returncode == 0:  # what another process said in its place does not count
                result = msgspec.json.decode(answers[-1] if answers else "", type=tuple[Confirmation, ...])
                return dict(zip(variants, result, strict=True))
            if process.returncode > 0 and errors.strip():
                ended = errors.strip().splitlines()[-1]  # it says why it cannot judge
    except OpscopeError as error:
        return dict.fromkeys(variants, Confirmation(reason=str(error)))
    except (OSError, ValueError):
        pass
    doubtful = Confirmation(reason=ended, doubt=ended)
    # Which one it was busy with, it says; before it says any, none can be judged.
    return {variants[at[0]]: doubtful} if 0 <= at[0] < len(variants) else dict.fromkeys(variants, doubtful)


def _cases_of_the_user(request: BenchRequest) -> frozenset[str]:
    """Return the names of cases whose code is the user's: files, and the place of the first of several functions."""
    # All functions are one case, which has the place of the first one as its name.
    functions = [target.rpartition(":")[0] for target in request.targets if ":" in target]
    return frozenset({*(target for target in request.targets if target.endswith(".py")), *functions[:1]})


def _may_be_right(result: BenchResult) -> bool:
    checked = result.correctness
    return checked is not None and checked.verdict in (Correct.RIGHT, Correct.LOWER_PRECISION)


def _baseline(results: Sequence[BenchResult], variant: BenchResult) -> BenchResult:
    return next(one for one in results if one.case == variant.case and one.parameters == variant.parameters)


def _claims(baseline: BenchResult, variant: BenchResult) -> tuple[Claim, ...]:
    """Return the times of both by each measure that another process can bear out."""
    at_full_speed = tuple(None if one.steady is None else one.steady.ns for one in (baseline, variant))
    pairs = ((in_a_row_ns(baseline), in_a_row_ns(variant)), at_full_speed)
    return tuple(Claim(own, theirs) for own, theirs in pairs if own and theirs)


def _with(result: BenchResult, outcome: Confirmation | None) -> BenchResult:
    """Return a result with what was found in its own process, which counts."""
    if outcome is None:
        return result
    result = replace(result, confirmation=outcome)
    if outcome.doubt is not None:
        return replace(result, doubts=(*result.doubts, outcome.doubt))
    if outcome.correctness is None or outcome.correctness.verdict is not Correct.WRONG:
        return result
    missing = dict.fromkeys(map(str, Measure), "its result is wrong in its own process")
    durations: dict[str, None] = dict.fromkeys(map(str, Measure))
    return replace(result, correctness=outcome.correctness, steady=None, limit=None, reasons=missing, **durations)


def _without_those_that_end_it(
    request: BenchRequest, refused: _Refused, timeout_s: float, progress: _Progress
) -> BenchDocument:
    """Benchmark in one process, and again without each variant that ended it or never returned; these are noted."""
    while True:
        try:
            return _one(BenchJob(request, refused), timeout_s, progress, BenchDocument)
        except _EndedError as error:
            case, name = error.variant
            if name in refused.get(case, {}):
                raise OpscopeError(str(error)) from error
            progress(f"{name} is not measured: {_short(error)}")
            refused.setdefault(case, {})[name] = _short(error)


def _short(error: "_EndedError") -> str:
    """Return one line: how the process ended, or the last one that it wrote where it lacked something."""
    lines = str(error).splitlines() or [""]
    return lines[-1 if isinstance(error.__cause__, EnvironmentLacksError) else 0]


class _EndedError(OpscopeError):
    """A process did not return, or failed, while a variant ran.

    Attributes:
        variant: its case and its name.
    """

    def __init__(self, text: str, variant: tuple[str, str]) -> None:
        super().__init__(text)
        self.variant = variant


def _prefixed(progress: _Progress, prefix: str, text: str) -> None:
    progress(prefix + text)


def calibrate(request: BenchRequest, timeout_s: float, progress: _Progress) -> tuple[FalseAlarms, Path]:
    """Measure how often equal functions are said to differ on this machine, and keep the result.

    Args:
        request: with ``trials`` of at least 1; its targets are not measured.
        timeout_s: the most for the process, in seconds.
        progress: called with a line of text on what goes on.

    Returns:
        The result, and the file where it is kept.

    Raises:
        OpscopeError: the process failed, or did not return in time.
    """
    result = _one(BenchJob(request), timeout_s, progress, FalseAlarms)
    target = private_folder("bench") / _calibration(result.device, result.torch).name
    write_whole(target, encode(result), PRIVATE_FILE)
    return result, target


def kept_false_alarms(document: BenchDocument) -> FalseAlarms | None:
    """Return what `calibrate` measured on a document's device with its PyTorch; None if it did not."""
    device = document.device if document.framework.on_gpu else "cpu"
    try:
        return msgspec.json.decode(_calibration(device, document.framework.torch).read_bytes(), type=FalseAlarms)
    except (OSError, msgspec.MsgspecError):
        return None


def _calibration(device: str, torch: str) -> Path:
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{device}-{torch}")
    return cache_folder() / "bench" / f"{name[:120]}.json"


def one_document(documents: Sequence[BenchDocument]) -> BenchDocument:
    """Join documents of the same benchmark from several processes; each process's median is one sample."""
    first = documents[0]
    # One that was refused in a later process stands at the end there.
    by_variant = [{_variant(result): result for result in document.results} for document in documents]
    shared = [one for one in by_variant[0] if all(one in results for results in by_variant)]
    results = tuple(_joined([results[one] for results in by_variant]) for one in shared)
    return replace(first, processes=len(documents), results=results, comparisons=compare(pairs_of(results)))


def _variant(result: BenchResult) -> tuple[object, ...]:
    return (result.case, result.name, *sorted(result.parameters.items()))


def _joined(results: Sequence[BenchResult]) -> BenchResult:
    def joined(measure: Measure) -> Duration | None:
        entries = [one for result in results if (one := result.duration(measure)) is not None]
        return duration_of([one.median for one in entries]) if len(entries) == len(results) else None

    # What is wrong in one process is wrong, whatever the others say.
    wrong = next((r.correctness for r in results if r.correctness and r.correctness.verdict is Correct.WRONG), None)
    return replace(
        results[0],
        kernel_ns=joined(Measure.KERNEL),
        kernel_warm_ns=joined(Measure.KERNEL_WARM),
        event_ns=joined(Measure.EVENT),
        graph_ns=joined(Measure.GRAPH),
        issue_ns=joined(Measure.ISSUE),
        wall_ns=joined(Measure.WALL),
        doubts=tuple(dict.fromkeys(doubt for result in results for doubt in result.doubts)),
        correctness=wrong or results[0].correctness,
    )


def _one(job: BenchJob, timeout_s: float, progress: _Progress, kind: type[T]) -> T:
    """Run one process and return the document that it wrote.

    Raises:
        _EndedError: it did not return, or failed, while a variant ran that is not the baseline.
        OpscopeError: see `benchmark_in_processes`.
    """
    with scratch() as folder:
        target, noted = folder / "document.json", folder / "variant.json"
        with _started("opscope.workbench.jobs.bench_worker", str(target), str(noted)) as process:
            try:
                last = _followed(process, encode(job).decode(), timeout_s, progress)
                if process.returncode == 0 and target.is_file():
                    return msgspec.json.decode(target.read_bytes(), type=kind)
                raise _failure(process, last)
            except (OpscopeError, msgspec.MsgspecError) as error:
                # Also where it lacked memory: another variant may need less.
                if (variant := _running(noted)) is not None:
                    raise _EndedError(str(error), variant) from error
                raise


@contextlib.contextmanager
def _started(module: str, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """Start a process of opscope's that waits for its request; it does not outlive the ``with`` block."""
    process = subprocess.Popen(
        [*own_process(module), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # It can import what this process can: targets may be modules of the user's.
        env=own_environment(PYTHONPATH=os.pathsep.join(part for part in sys.path if part)),
        start_new_session=True,  # what it starts can be ended with it
    )
    try:
        yield process
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        # The other two may still be read: what the process started keeps them open.
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()


def _running(noted: Path) -> tuple[str, str] | None:
    """Return the case and the name of the variant that a process noted last; None if none of them ran."""
    try:
        return msgspec.json.decode(noted.read_bytes(), type=tuple[str, str])
    except (OSError, msgspec.MsgspecError):
        return None


def _followed(process: "subprocess.Popen[str]", request: str, timeout_s: float, progress: _Progress) -> tuple[str, str]:
    """Send the request and pass on the process's lines; return its last line, and the end of its errors.

    Raises:
        OpscopeError: the process did not return in time.
    """
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    errors: list[str] = []
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    # Both streams are read at the same time: a process whose pipe is full would wait for ever.
    threads = [
        threading.Thread(target=_read, args=(process.stdout, lines.put), daemon=True),
        threading.Thread(target=_read, args=(process.stderr, lambda line: errors.append(line or "")), daemon=True),
    ]
    for thread in threads:
        thread.start()
    process.stdin.write(request)
    process.stdin.close()
    last, until = "starting", time.monotonic() + timeout_s
    while True:
        left = until - time.monotonic()
        try:
            line = lines.get(timeout=max(min(left, _LAST_WORDS_S), 0.0))
        except queue.Empty:
            if process.poll() is not None:  # what it started keeps the pipe open
                break
            if left > _LAST_WORDS_S:
                continue
            process.kill()
            process.wait()
            raise OpscopeError(
                f"it did not return within {timeout_s:.0f} s (--timeout); the last it said: {last}"
            ) from None
        if line is None:  # the stream has ended
            break
        last = line.strip()
        progress(last)
    process.wait()
    threads[1].join(_LAST_WORDS_S)
    return last, "".join(errors[-_LAST_LINES:])


def _read(stream: IO[str], take: Callable[[str | None], None]) -> None:
    for line in stream:
        take(line)
    take(None)


def _failure(process: "subprocess.Popen[str]", output: tuple[str, str]) -> OpscopeError:
    last, errors = output
    text = errors.strip()
    # Without a word, a function of the user's ended the process, and the code is its own.
    if process.returncode == UsageError.exit_code and text:
        return UsageError(text)
    if process.returncode == EnvironmentLacksError.exit_code and text:
        return EnvironmentLacksError(text)
    how = f"was ended by signal {-process.returncode}" if process.returncode < 0 else "failed"
    return OpscopeError(f"the process that measures {how} while it said: {last}\n{text}".rstrip())
