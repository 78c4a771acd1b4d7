"""How long the traces of a job take to be read: by processes of this machine, and by workers of a Dask cluster.

python benchmarks/ranks_read.py make FOLDER --ranks 64 --steps 150
python benchmarks/ranks_read.py processes FOLDER --ranks 8 --save benchmarks/results/ranks-processes.json
python benchmarks/ranks_read.py dask FOLDER --workers 1 2 4 --save benchmarks/results/ranks-dask.json

Eight ranks are made; further ones are copies of these under their own numbers, in groups of all ranks. Each Dask worker
has one core of its own. With the last number of workers the traces are read twice: the second time a worker is killed
each time that an eighth of them are there.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from saved import save

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.jobs import Job, Shape, write_job

from opscope.base.processes import cores
from opscope.distributed.engines import Lost, engine_for
from opscope.distributed.job import document_of, read_job
from opscope.distributed.kept import kept_summary
from opscope.record.codec import encode
from opscope.record.sweep import KEPT

_MADE = 8


def make(folder: Path, ranks: int, steps: int, layers: int, ending: str) -> None:
    """Write the traces of a job; each rank of the first eight is a rank of its own, the others are their copies."""
    job = Job(Shape(_MADE), steps=steps, layers=layers, bucket=25, seed=3)
    made = write_job(job, folder, ending)
    print(f"made {_MADE} ranks of {made[0].stat().st_size / 1e6:.0f} MB", flush=True)
    if ranks == _MADE:
        return
    members = str(list(range(_MADE))).encode()
    listed = (str(list(range(30)))[:-1] + ", ...]" if ranks > 30 else str(list(range(ranks)))).encode()
    for path in made:
        first = int(path.name.removeprefix("rank").partition(".")[0])
        content = path.read_bytes()
        content = content.replace(b'"Group size": %d' % _MADE, b'"Group size": %d' % ranks).replace(members, listed)
        content = content.replace(b'"world_size": %d' % _MADE, b'"world_size": %d' % ranks)
        for rank in range(first, ranks, _MADE):
            (folder / f"rank{rank}{ending}").write_bytes(
                content.replace(b'"rank": %d,' % first, b'"rank": %d,' % rank, 1)
            )


def forget(folder: Path) -> None:
    shutil.rmtree(folder / KEPT, ignore_errors=True)


def traces(folder: Path, ranks: int) -> list[Path]:
    return sorted(folder.glob("rank*.json*"))[:ranks]


def by_processes(options: argparse.Namespace) -> dict[str, Any]:
    """Time the whole command in turn: with one process, and with one per core."""
    files = traces(options.folder, options.ranks)
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for jobs in dict.fromkeys((1, cores())):
            forget(options.folder)
            began = time.monotonic()
            command = [sys.executable, "-m", "opscope", "ranks", *map(str, files), "--jobs", str(jobs)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found.setdefault(str(jobs), []).append(time.monotonic() - began)
    return {
        "ranks": options.ranks,
        "megabytes of each": files[0].stat().st_size / 1e6,
        "cores": cores(),
        "seconds by processes": found,
    }


class Cluster:
    """A scheduler and workers, each of which has a core of its own."""

    def __init__(self, workers: int) -> None:
        port = 18_700 + workers
        self.address = f"tcp://127.0.0.1:{port}"
        program = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
        self._run = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.scheduler = subprocess.Popen([*program, "--no-dashboard"], **self._run)  # type: ignore[call-overload]
        here = sorted(os.sched_getaffinity(0))
        self.cores = here[1:] if len(here) > workers else here  # the scheduler and this process have the first
        self.workers = [self._started(number) for number in range(workers)]

    def _started(self, number: int) -> "subprocess.Popen[bytes]":
        core = self.cores[number % len(self.cores)]
        program = [sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--nthreads", "1"]
        environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
        # Without a nanny: what is killed stays away.
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            ["taskset", "-c", str(core), *program, "--no-nanny", "--no-dashboard"], env=environment, **self._run
        )

    def kill_and_replace(self, number: int) -> None:
        self.workers[number].send_signal(signal.SIGKILL)
        self.workers[number].wait()
        self.workers[number] = self._started(number)

    def end(self) -> None:
        for one in (*self.workers, self.scheduler):
            one.kill()
            one.wait()


def read_by(cluster: Cluster, files: list[Path], *, kill: bool) -> tuple[float, int]:
    """Read all traces; return how long that took, and of how many there is a summary."""
    from distributed import Client

    with Client(cluster.address, timeout="60s") as client:
        client.wait_for_workers(len(cluster.workers), timeout=60)
        # Imports are not what is measured.
        client.run(lambda: __import__("opscope.distributed.one_rank"))
    began, whole = time.monotonic(), 0
    for done, (_, found) in enumerate(engine_for(len(files), 1, cluster.address).run(kept_summary, files), 1):
        whole += not isinstance(found, Lost)
        if kill and done % (len(files) // 8) == 0 and done < len(files):
            cluster.kill_and_replace(done * 8 // len(files) % len(cluster.workers))
    return time.monotonic() - began, whole


def by_dask(options: argparse.Namespace) -> dict[str, Any]:
    files = [path.absolute() for path in traces(options.folder, options.ranks)]
    seconds, recovered = {}, {}
    for workers in options.workers:
        for kill in (False, True) if workers == options.workers[-1] else (False,):
            forget(options.folder)
            cluster = Cluster(workers)
            try:
                took, whole = read_by(cluster, files, kill=kill)
            finally:
                cluster.end()
            killed = " of which 7 are killed" if kill else ""
            print(f"{workers} workers{killed}: {took:.1f} s, {whole} of {len(files)}", flush=True)
            if kill:
                recovered = {"workers killed": 7, "summaries": whole, "of": len(files), "seconds": took}
            else:
                seconds[str(workers)] = took
    began = time.monotonic()
    # All are kept now.
    document = document_of(read_job(files, engine_for(len(files), 1, None)))
    reduced = time.monotonic() - began
    base = seconds[str(min(options.workers))] * min(options.workers)
    return {
        "ranks": options.ranks,
        "megabytes of each": files[0].stat().st_size / 1e6,
        "cores": cores(),
        "seconds by workers": seconds,
        "of linear": {workers: base / (int(workers) * took) for workers, took in seconds.items()},
        "with killed workers": recovered,
        "seconds to put kept summaries together": reduced,
        "bytes of the document": len(encode(document)),
        "bytes of a summary": sum(one.stat().st_size for one in (options.folder / KEPT).iterdir()) / len(files),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "processes", "dask"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    if options.what == "make":
        options.folder.mkdir(parents=True, exist_ok=True)
        make(options.folder, options.ranks, options.steps, options.layers, ".json")
        return
    result = by_processes(options) if options.what == "processes" else by_dask(options)
    print(result)
    if options.save:
        save(options.save, **result)


if __name__ == "__main__":
    main()
