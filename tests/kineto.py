"""Builds tiny Kineto traces for tests. All times are nanoseconds and become microseconds with three decimals."""

import gzip
import json
from pathlib import Path
from typing import Any

HOST, THREAD = 100, 100


class KinetoTrace:
    """Collects events; ``write`` makes the file. Methods return what later events refer to."""

    def __init__(self, **header: Any) -> None:
        self.header = header
        self.events: list[dict[str, Any]] = []
        self._correlation = 0

    def slice(
        self, category: str, name: str, start: int, duration: int, *, pid: Any = HOST, tid: Any = THREAD, **args: Any
    ) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start / 1000}
        self.events.append({**event, "dur": duration / 1000, "args": args})

    def operator(self, name: str, start: int, duration: int, *, tid: int = THREAD, **args: Any) -> None:
        self.slice("cpu_op", name, start, duration, tid=tid, **args)

    def annotation(self, name: str, start: int, duration: int, *, tid: int = THREAD) -> None:
        self.slice("user_annotation", name, start, duration, tid=tid)

    def step(self, number: int, start: int, duration: int) -> None:
        self.annotation(f"ProfilerStep#{number}", start, duration)

    def launch(
        self, start: int, duration: int, *, name: str = "cudaLaunchKernel", tid: int = THREAD, **args: Any
    ) -> int:
        self._correlation += 1
        self.slice("cuda_runtime", name, start, duration, tid=tid, correlation=self._correlation, **args)
        return self._correlation

    def kernel(
        self, name: str, start: int, duration: int, correlation: int | None = None, *, device: int = 0, stream: int = 7,
        category: str = "kernel", **args: Any,
    ) -> None:  # fmt: skip
        if correlation is not None:
            args["correlation"] = correlation
        self.slice(category, name, start, duration, pid=device, tid=stream, device=device, stream=stream, **args)

    def launched_kernel(
        self, name: str, launch: tuple[int, int], run: tuple[int, int], *, tid: int = THREAD, **where: Any
    ) -> None:
        """A kernel with its launch; both given as (start, duration)."""
        self.kernel(name, *run, self.launch(*launch, tid=tid), **where)

    def text(self) -> str:
        return json.dumps({"schemaVersion": 1, **self.header, "traceEvents": self.events})

    def write(self, path: Path) -> Path:
        content = self.text().encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path
