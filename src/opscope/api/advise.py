"""The Python API of advice: ``opscope.advise``."""

import shlex
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from opscope.base.errors import EnvironmentLacksError, UsageError
from opscope.base.files import scratch
from opscope.base.processes import cores
from opscope.documents.advise import INPUT, LARGER_BATCH, AdviseDocument, ErrorClass
from opscope.record.configuration import Value
from opscope.sweep.plan import default_sizes, expand
from opscope.workloads.catalog import is_script

_MOST_AT_ONCE = 8  # processes that start at once


def advise(
    target: str | Path,
    *,
    arguments: Sequence[str] = (),
    only: Sequence[str] = (),
    precision: str = ErrorClass.LOWER,
    budget_s: float = 180.0,
    device: str = "auto",
    steps: str | None = None,
    say: Callable[[str], None] | None = None,
    **parameters: Value,
) -> AdviseDocument:
    """Try known changes on a program without an edit: time them, prove them, and return the lines to write.

    Every variant runs in a process of its own, so the program is named, not passed: what a notebook defines cannot be
    tried. A script runs many times in the current folder, and overwrites the files that it writes.

    Args:
        target: a script, ``train.py``; a function that returns a step or (module, example inputs), ``file.py:function``
            or ``package.module:function``; or a built-in workload.
        arguments: of a script.
        only: names of the changes to try; empty for all.
        precision: nothing of a lower precision is tried: ``exact``, ``tf32``, ``bf16`` or ``lower``.
        budget_s: how long it may take, in seconds.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; a script decides that itself.
        steps: which steps of a script, as ``--step-kind`` of the command names them.
        say: gets a line for each thing that is tried, and every ten seconds.
        **parameters: the workload's, or the function's own, such as ``batch_size=8``.

    Returns:
        The document of ``opscope advise --format json``: what is proven, how many times as fast it is, and its lines.

    Raises:
        UsageError: there is no such change, or the target does not take what was asked for.
        EnvironmentLacksError: PyTorch is not installed.
        AdviseError: the step as written does not run.
        InconclusiveError: the time was over before anything was measured.
    """
    if find_spec("torch") is None:
        raise EnvironmentLacksError("advice needs PyTorch, which is not installed: pip install 'opscope[torch]'")
    from opscope.advise.changes.listed import BY_NAME
    from opscope.advise.trying import SearchPlan
    from opscope.advise.trying import try_changes as tried

    if unknown := [name for name in only if name not in (*BY_NAME, INPUT, LARGER_BATCH)]:
        raise UsageError(f"unknown change {unknown[0]!r}: choose from {', '.join((*BY_NAME, INPUT, LARGER_BATCH))}")
    if precision not in list(ErrorClass):
        raise UsageError(f"unknown precision {precision!r}: choose from {', '.join(ErrorClass)}")
    name = str(target)
    for option, value in (("arguments", arguments), ("steps", steps)):
        if value and not is_script(name):
            raise UsageError(f"{name} is not a script: {option} is for scripts")
    if is_script(name) and (parameters or device != "auto"):
        raise UsageError(f"{name} is a script: it decides device and sizes itself; arguments=[...] go to it")
    sizes = {one: values[:1] for one, values in default_sizes(name).items()}
    with scratch() as folder:
        plan = SearchPlan(
            configuration=expand(name, {**sizes, **{one: (value,) for one, value in parameters.items()}})[0],
            device=device,
            arguments=shlex.join(arguments),
            steps=steps,
            only=tuple(only),
            precision=ErrorClass(precision),
            budget_s=budget_s,
            width=max(1, min(_MOST_AT_ONCE, cores() // 2)),
            log=str(folder / "log.txt"),
        )
        return tried(plan, say or (lambda _: None))
