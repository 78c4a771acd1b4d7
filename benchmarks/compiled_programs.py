"""Compiled programs with one planted cause each, and with its remedy: traces, PyTorch's logs of compiling, the truth.

    python benchmarks/compiled_programs.py OUTPUT_FOLDER [PROGRAM ...]    # on an NVIDIA GPU; most run on a CPU too

For each program and its remedy (``NAME`` and ``NAME.fixed``) this writes ``NAME.trace.json`` (four steady steps),
``NAME.torch_trace.log`` (what ``TORCH_TRACE`` wrote), ``NAME.torch_logs.txt`` (``TORCH_LOGS``), and into ``truth.json``
the cause, the line that has it, and the median of steps by the host's clock without a profiler.
"""

import argparse
import concurrent.futures
import contextlib
import fcntl
import inspect
import json
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WARM_UP, TIMED, RECORDED = 24, 20, 4
ALONGSIDE = 14
WAIT_S = 300
LOGS = "recompiles,graph_breaks,perf_hints,cudagraphs"
Step = Callable[[int], Any]
Cause = Literal[
    "graph_break", "recompilation", "recompile_limit", "cuda_graph_skipped", "cuda_graph_recorded_again", "autotuning",
    "guards", "compilation_in_step", "slower_than_eager",
]  # fmt: skip

LOG = logging.getLogger("model")
SCALE = 1


class Block(nn.Module):
    """A feed-forward block with a normalisation at its end; what it does between the two is planted."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.up, self.down, self.gain = nn.Linear(512, 2048), nn.Linear(2048, 512), nn.Parameter(torch.ones(512))
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual's sum."""
        h = self.down(functional.gelu(self.up(x)))
        if self.between is not None:
            h = self.between(h)
        return x + self.gain * h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)


def rows(count: int = 64) -> torch.Tensor:
    """Return an input."""
    return torch.randn(count, 512, device=DEVICE)


def model(between: Callable[[torch.Tensor], torch.Tensor] | None = None, depth: int = 6) -> nn.Module:
    """Return several blocks."""
    return nn.Sequential(*[Block(between) for _ in range(depth)]).to(DEVICE)


def inference(between: Callable[[torch.Tensor], torch.Tensor] | None = None, **settings: Any) -> Step:
    """Return a step of a compiled model without gradients."""
    compiled, x = torch.compile(model(between), **settings), rows()

    def step(_: int) -> torch.Tensor:
        with torch.no_grad():
            return compiled(x)

    return step


# ---------------------------------------------------------------- graph breaks


def plain(fixed: bool) -> Step:  # noqa: ARG001 - both are alike
    return inference()


def break_print(fixed: bool) -> Step:
    def between(h: torch.Tensor) -> torch.Tensor:
        print("", end="")  # cause
        return h

    return inference(None if fixed else between)


def break_item(fixed: bool) -> Step:
    def between(h: torch.Tensor) -> torch.Tensor:
        if h.sum().item() > 1e9:  # cause
            h = h * 2
        return h

    return inference((lambda h: torch.where(h.sum() > 1e9, h * 2, h)) if fixed else between)


def break_branch(fixed: bool) -> Step:
    def between(h: torch.Tensor) -> torch.Tensor:
        if h.max() > 1e9:  # cause
            h = h.clamp(max=1.0)
        return h

    return inference((lambda h: torch.where(h.max() > 1e9, h.clamp(max=1.0), h)) if fixed else between)


def break_unsupported(fixed: bool) -> Step:
    began: list[float] = []

    def between(h: torch.Tensor) -> torch.Tensor:
        began.append(time.perf_counter())  # cause
        began.clear()
        return h

    return inference(None if fixed else between)


def break_disabled(fixed: bool) -> Step:
    @torch._dynamo.disable
    def clipped(h: torch.Tensor) -> torch.Tensor:
        return h.clamp(-8.0, 8.0)

    def between(h: torch.Tensor) -> torch.Tensor:
        return clipped(h)  # cause

    return inference((lambda h: h.clamp(-8.0, 8.0)) if fixed else between)


def break_context(fixed: bool) -> Step:
    lock = threading.Lock()

    def between(h: torch.Tensor) -> torch.Tensor:
        with lock:  # cause
            return h * 1.5

    return inference((lambda h: h * 1.5) if fixed else between)


def break_logging(fixed: bool) -> Step:
    def between(h: torch.Tensor) -> torch.Tensor:
        LOG.warning("%s", h.shape)  # cause
        return h

    LOG.addHandler(logging.NullHandler())
    LOG.propagate = False
    return inference(None if fixed else between)


def break_list(fixed: bool) -> Step:
    def between(h: torch.Tensor) -> torch.Tensor:
        weights = h[0, :4].tolist()  # cause
        return h * weights[0]

    return inference((lambda h: h * h[0, 0]) if fixed else between)


def break_hook(fixed: bool) -> Step:
    seen: list[torch.Tensor] = []

    def between(h: torch.Tensor) -> torch.Tensor:
        h.register_hook(seen.append)  # cause
        return h

    compiled, x = torch.compile(model(None if fixed else between)), rows()

    def step(_: int) -> None:
        compiled(x).square().mean().backward()
        seen.clear()

    return step


# ---------------------------------------------------------------- recompilations


class Counting(nn.Module):
    """Uses a number that changes with each call."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind, self.calls = model(depth=1), kind, 0
        self.register_buffer("count", torch.zeros((), device=DEVICE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the inner model's result, scaled."""
        if self.kind == "buffer":
            self.count += 1
            return self.inner(x) / (1 + self.count)
        self.calls += 1
        if self.kind == "float":
            return self.inner(x) * (1.0 / (1 + self.calls))  # cause: float
        return self.inner(x) / (1 + self.calls)  # cause


def recompile_integer(fixed: bool) -> Step:
    torch._dynamo.config.recompile_limit = 10_000  # or it ends as in `recompile_limit`
    compiled, x = torch.compile(Counting("buffer" if fixed else "integer")), rows()

    def step(_: int) -> torch.Tensor:
        with torch.no_grad():
            return compiled(x)

    return step


def recompile_shapes(fixed: bool) -> Step:
    compiled, x = torch.compile(model()), rows()

    def step(number: int) -> torch.Tensor:
        part = x[: 32 + 4 * (number % 8)]
        if fixed:
            torch._dynamo.mark_dynamic(part, 0, min=2, max=64)
        with torch.no_grad():
            return compiled(part)  # cause

    return step


def recompile_global(fixed: bool) -> Step:
    inner, factor = model(), torch.ones((), device=DEVICE)

    @torch.compile
    def run(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return inner(x) * (factor if fixed else SCALE)  # cause

    x = rows()

    def step(number: int) -> torch.Tensor:
        global SCALE  # noqa: PLW0603 - that is the cause
        SCALE = 1.0 + number / 7
        factor.fill_(SCALE)
        with torch.no_grad():
            return run(x, factor)

    return step


def recompile_list(fixed: bool) -> Step:
    inner = model()

    @torch.compile
    def run(parts: list[torch.Tensor]) -> torch.Tensor:
        total = inner(parts[0])
        for part in parts[1:]:  # cause
            total = total + part
        return total

    x = rows()

    def step(number: int) -> torch.Tensor:
        count = 1 + number % 12
        parts = [x] * count
        with torch.no_grad():
            return run([x, torch.stack([*parts, x]).sum(0)] if fixed else parts)

    return step


def recompile_dtype(fixed: bool) -> Step:
    inner, x = model(), rows()
    compiled = torch.compile(lambda x: inner(x.float()))
    inputs = [x, x.bfloat16(), x.half(), x.double()]

    def step(number: int) -> torch.Tensor:
        given = inputs[number % 4]
        with torch.no_grad():
            return compiled(given.float() if fixed else given)  # cause

    return step


def recompile_grad_mode(fixed: bool) -> Step:
    compiled, x = torch.compile(model()), rows()

    def step(number: int) -> torch.Tensor:
        with torch.set_grad_enabled(bool(number % 2) and not fixed):
            return compiled(x)  # cause

    return step


def recompile_closure(fixed: bool) -> Step:
    inner, x = model(depth=1), rows()
    functions = [functional.relu, functional.gelu, functional.silu, functional.elu]
    once = torch.compile(lambda x: functional.relu(inner(x)))

    def step(number: int) -> torch.Tensor:
        function = functions[number % 4]
        with torch.no_grad():
            return once(x) if fixed else torch.compile(lambda x: function(inner(x)))(x)  # cause

    return step


def recompile_limit(fixed: bool) -> Step:
    inner = model()

    @torch.compile
    def run(x: torch.Tensor, name: str, factor: torch.Tensor) -> torch.Tensor:
        return inner(x) * (factor if fixed else float(name))  # cause

    x, factors = rows(), [torch.full((), float(number), device=DEVICE) for number in range(64)]

    def step(number: int) -> torch.Tensor:
        with torch.no_grad():
            return run(x, "" if fixed else str(number % 64), factors[number % 64])

    return step


def recompile_float(fixed: bool) -> Step:
    torch._dynamo.config.recompile_limit = 10_000
    compiled, x = torch.compile(Counting("buffer" if fixed else "float")), rows()

    def step(_: int) -> torch.Tensor:
        with torch.no_grad():
            return compiled(x)

    return step


# ---------------------------------------------------------------- CUDA graphs


def graph_plain(fixed: bool) -> Step:  # noqa: ARG001 - both are alike
    return inference(mode="reduce-overhead")


def graph_cpu_tensor(fixed: bool) -> Step:
    compiled = torch.compile(lambda net, x, scale: net(x) * scale, mode="reduce-overhead")
    net, x, scale = model(), rows(), torch.tensor(1.5, device=DEVICE if fixed else "cpu")

    def step(_: int) -> torch.Tensor:
        with torch.no_grad():
            return compiled(net, x, scale)  # cause

    return step


def graph_mutation(fixed: bool) -> Step:
    def run(net: nn.Module, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        y = net(x)
        if fixed:
            return y
        total.add_(y)  # cause
        return y

    compiled = torch.compile(run, mode="reduce-overhead")
    net, x, total = model(), rows(), torch.zeros(64, 512, device=DEVICE)

    def step(_: int) -> torch.Tensor:
        with torch.no_grad():
            y = compiled(net, x, total.clone() if not fixed else total)
            return total.add_(y) if fixed else y

    return step


def graph_shapes(fixed: bool) -> Step:
    compiled, x = torch.compile(model(), mode="reduce-overhead", dynamic=True), rows(512)

    def step(number: int) -> torch.Tensor:
        count = 64 if fixed else 32 + 4 * (number % 100)
        with torch.no_grad():
            return compiled(x[:count])  # cause

    return step


def graph_data_dependent(fixed: bool) -> Step:
    def run(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = net(x)
        if fixed:
            return torch.where(y > 0, y, 0).sum()
        return y[y > 0].sum()  # cause

    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    compiled, net, x = torch.compile(run, mode="reduce-overhead"), model(), rows()

    def step(_: int) -> torch.Tensor:
        with torch.no_grad():
            return compiled(net, x)

    return step


# ---------------------------------------------------------------- what compiling costs


def autotuned(fixed: bool) -> Step:
    settings = {} if fixed else {"mode": "max-autotune-no-cudagraphs"}
    return inference(**settings)  # cause


def many_guards(fixed: bool) -> Step:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gains = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(1 if fixed else 400))
            self.whole = nn.Parameter(torch.ones(400, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gains = self.whole if fixed else torch.stack(list(self.gains))  # cause
            return x * gains.sum(0)

    compiled, x = torch.compile(Many().to(DEVICE)), torch.randn(64, 16, device=DEVICE)

    def step(_: int) -> torch.Tensor:
        with torch.no_grad():
            return compiled(x)

    return step


def compiled_late(fixed: bool) -> Step:
    early, late, x = torch.compile(model()), torch.compile(model(depth=2)), rows()

    def step(number: int) -> torch.Tensor:
        with torch.no_grad():
            y = early(x)
            if fixed or number == WARM_UP + TIMED + 1:  # in the second recorded step
                y = late(y)  # cause
            return y

    return step


def many_small_calls(fixed: bool) -> Step:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + 1.0

    compiled, x = torch.compile(shifted), rows(4)

    def step(_: int) -> torch.Tensor:
        y = x
        with torch.no_grad():
            for _ in range(200):
                y = shifted(y) if fixed else compiled(y)  # cause
        return y

    return step


PROGRAMS: dict[str, tuple[Callable[[bool], Step], Cause | None]] = {
    "plain": (plain, None),
    "graph_plain": (graph_plain, None),
    "break_print": (break_print, "graph_break"),
    "break_item": (break_item, "graph_break"),
    "break_branch": (break_branch, "graph_break"),
    "break_unsupported": (break_unsupported, "graph_break"),
    "break_disabled": (break_disabled, "graph_break"),
    "break_context": (break_context, "graph_break"),
    "break_logging": (break_logging, "graph_break"),
    "break_list": (break_list, "graph_break"),
    "break_hook": (break_hook, "graph_break"),
    "recompile_integer": (recompile_integer, "recompilation"),
    "recompile_float": (recompile_float, "recompilation"),
    "recompile_shapes": (recompile_shapes, "recompilation"),
    "recompile_global": (recompile_global, "recompilation"),
    "recompile_list": (recompile_list, "recompile_limit"),
    "recompile_dtype": (recompile_dtype, "recompilation"),
    "recompile_grad_mode": (recompile_grad_mode, "recompilation"),
    "recompile_closure": (recompile_closure, "recompilation"),
    "recompile_limit": (recompile_limit, "recompile_limit"),
    "graph_cpu_tensor": (graph_cpu_tensor, "cuda_graph_skipped"),
    "graph_mutation": (graph_mutation, "cuda_graph_skipped"),
    "graph_data_dependent": (graph_data_dependent, "cuda_graph_skipped"),
    "graph_shapes": (graph_shapes, "cuda_graph_recorded_again"),
    "autotuned": (autotuned, "autotuning"),
    "many_guards": (many_guards, "guards"),
    "compiled_late": (compiled_late, "compilation_in_step"),
    "many_small_calls": (many_small_calls, "slower_than_eager"),
}


# ---------------------------------------------------------------- recording


_IN_COUNTING = {"recompile_integer": "# cause\n", "recompile_float": "# cause: float\n"}


def line_of(name: str) -> str | None:
    """Return the line that has the cause, as ``FILE:LINE``."""
    source, _ = PROGRAMS[name]
    lines, first = inspect.getsourcelines(source)
    marked = [first + at for at, line in enumerate(lines) if "# cause" in line]
    if not marked and name in _IN_COUNTING:
        lines, first = inspect.getsourcelines(Counting)
        marked = [first + at for at, line in enumerate(lines) if line.endswith(_IN_COUNTING[name])]
    return f"{Path(__file__).name}:{marked[0]}" if marked else None


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def record(name: str, folder: Path, *, fixed: bool) -> None:
    """Run one program in this process, time its steps, and record some."""
    began = time.perf_counter()
    step = PROGRAMS[name][0](fixed)
    for number in range(WARM_UP):
        step(number)
    synchronize()
    compiled = time.perf_counter() - began
    times = []
    _wait_for_the_others(folder, _file(name, fixed=fixed))
    with (folder / "device.lock").open("w") as lock:  # the programs compile side by side, but are timed one by one
        fcntl.flock(lock, fcntl.LOCK_EX)
        for number in range(WARM_UP, WARM_UP + TIMED):
            start = time.perf_counter()
            step(number)
            synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        _profile(step, folder / f"{_file(name, fixed=fixed)}.trace.json")
    print(json.dumps({"step_ms": statistics.median(times), "steps_ms": times, "until_warm_s": compiled}))


def _wait_for_the_others(folder: Path, own: str) -> None:
    """Wait until all programs that run alongside have compiled: compiling takes all cores, waiting none."""
    (folder / f"{own}.ready").touch()
    others = os.environ.get("ALONGSIDE", "").split()
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and not all((folder / f"{one}.ready").exists() for one in others):
        time.sleep(0.2)


def _profile(step: Step, into: Path) -> None:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
    with profile(activities=activities, record_shapes=True) as profiler:
        for number in range(WARM_UP + TIMED, WARM_UP + TIMED + RECORDED):
            with record_function(f"ProfilerStep#{number}"):
                step(number)
        synchronize()
    profiler.export_chrome_trace(str(into))


def _file(name: str, *, fixed: bool) -> str:
    return f"{name}.fixed" if fixed else name


def _apart(name: str, folder: Path, alongside: str, *, fixed: bool) -> dict[str, Any]:
    own = folder / f"{_file(name, fixed=fixed)}.torch_trace"
    own.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "ALONGSIDE": alongside,
        "TORCH_TRACE": str(own),
        "TORCH_LOGS": LOGS,
        "INDUCTOR_PROVENANCE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(own / "cache"),  # nothing that another program compiled
    }
    command = [sys.executable, __file__, str(folder), "--one", name, *(["--fixed"] if fixed else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    (folder / f"{_file(name, fixed=fixed)}.ready").touch()  # one that failed keeps nobody waiting
    (folder / f"{_file(name, fixed=fixed)}.torch_logs.txt").write_text(done.stderr)
    logs = sorted(own.glob("*.log"))
    (folder / f"{_file(name, fixed=fixed)}.torch_trace.log").write_text("".join(one.read_text() for one in logs))
    with contextlib.suppress(IndexError, ValueError):
        return dict(json.loads(done.stdout.splitlines()[-1]))
    return {"failed": done.stderr[-1500:]}


def main() -> None:
    """Record the programs that were named, or all that this machine has a device for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--fixed", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        record(asked.one, asked.folder, fixed=asked.fixed)
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    names = asked.names or [name for name in PROGRAMS if DEVICE == "cuda" or not name.startswith("graph_")]
    runs = [(name, fixed) for name in names for fixed in (False, True)]
    with concurrent.futures.ThreadPoolExecutor(ALONGSIDE) as pool:
        results = []
        for first in range(0, len(runs), ALONGSIDE):
            batch = runs[first : first + ALONGSIDE]
            names = " ".join(_file(name, fixed=fixed) for name, fixed in batch)
            results += pool.map(lambda run, names=names: _apart(run[0], asked.folder, names, fixed=run[1]), batch)
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    truth: dict[str, Any] = {"torch": torch.__version__, "device": device}
    for (name, fixed), result in zip(runs, results, strict=True):
        entry = truth.setdefault(name, {"cause": PROGRAMS[name][1], "line": line_of(name)})
        entry["fixed" if fixed else "as_is"] = result
        print(name, "fixed" if fixed else "as is", result.get("failed") or f"{result['step_ms']:.3f} ms", flush=True)
    (asked.folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main()
