"""Files that cost out of proportion, lead elsewhere, wait for ever or run something: refused, bounded, or inert."""

import json
import lzma
import os
import resource
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opscope.cli import COMMANDS
from opscope.readers.native import library as native
from opscope.readers.reading import read
from tests.command import PYTHONPATH, opscope
from tests.conftest import DATA
from tests.kineto import KinetoTrace

MEMORY = 4 << 30  # of address space: libraries alone take some 2 GiB; what is refused took 6 and more
HANGS = 120  # seconds after which something is said never to end


def limited(*words: object, stdin: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run the command line with a limit of memory."""
    with (stdin or Path(os.devnull)).open("rb") as given:
        return subprocess.run(
            [sys.executable, "-m", "opscope", *map(str, words)], stdin=given, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": PYTHONPATH}, check=False, timeout=HANGS, errors="replace",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        )  # fmt: skip


# ---------------------------------------------------------------- exports of Nsight Systems


BASE = """
create table StringIds(id integer primary key, value text);
create table TARGET_INFO_GPU(id integer, name text);
create table NVTX_EVENTS(start integer, end integer, eventType integer, globalTid integer, textId integer,
    domainId integer);
create table CUPTI_ACTIVITY_KIND_KERNEL(start integer, end integer, deviceId integer, streamId integer,
    correlationId integer, globalPid integer, demangledName integer, shortName integer);
insert into StringIds values (1, 'k');
insert into TARGET_INFO_GPU values (0, 'GPU');
insert into CUPTI_ACTIVITY_KIND_KERNEL values (1000, 2000, 0, 7, 1, 0, 1, 1);
"""
MANY = "with recursive n(i) as (select 2 union all select i + 1 from n where i < 20000)"


def database(path: Path, more: str = "", page: int = 4096) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(f"pragma page_size={page}")
    connection.executescript(BASE + more)
    connection.commit()
    connection.close()
    return path


@pytest.mark.parametrize(
    "more",
    [
        f"drop table StringIds; create table StringIds(id integer primary key); {MANY} insert into StringIds select i "
        "from n; alter table StringIds add column value text default '{long}';",
        f"{MANY} insert into NVTX_EVENTS(start, end, eventType) select i, i + 1, 59 from n; "
        "alter table NVTX_EVENTS add column text text default '{long}';",
    ],
    ids=["StringIds", "NVTX_EVENTS"],
)
def test_a_long_default_of_a_column_is_refused(more: str, tmp_path: Path) -> None:
    path = database(tmp_path / "r.sqlite", more.replace("{long}", "x" * 900_000))
    done = limited("analyze", path)
    assert done.returncode == 4, done.stderr
    assert "more text than its bytes can" in done.stderr


def varint(value: int) -> bytes:
    out = [value & 0x7F]
    while value := value >> 7:
        out.append(value & 0x7F | 0x80)
    return bytes(reversed(out))


def tangled(path: Path, table: str, levels: int = 3, page: int = 65536) -> Path:
    """Let a table's root be a page whose children are all one page, and so on: rows without end."""
    connection = sqlite3.connect(path)
    (root,) = connection.execute("select rootpage from sqlite_master where name=?", (table,)).fetchone()
    connection.close()
    data = bytearray(path.read_bytes())
    count = len(data) // page
    last = count + levels
    pages = {last: bytes(data[(root - 1) * page : root * page])}
    numbers = [root, *range(count + 1, last)]
    for number, child in zip(numbers, [*numbers[1:], last], strict=True):
        cell = struct.pack(">I", child) + varint(1 << 6)
        cells = (page - 12) // (len(cell) + 2)
        begin = page - cells * len(cell)
        body = bytearray(page)
        struct.pack_into(">BHHHBI", body, 0, 5, 0, cells, begin & 0xFFFF, 0, child)
        for at in range(cells):
            struct.pack_into(">H", body, 12 + 2 * at, begin + at * len(cell))
        body[begin:] = cell * cells
        pages[number] = bytes(body)
    data += bytes(page * levels)
    for number, content in pages.items():
        data[(number - 1) * page : number * page] = content
    struct.pack_into(">I", data, 28, last)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"])
def test_pages_that_point_to_one_child_are_refused(table: str, tmp_path: Path) -> None:
    done = limited("analyze", tangled(database(tmp_path / "r.sqlite", page=65536), table))
    assert done.returncode == 4, done.stderr
    assert "is not an export that Nsight Systems wrote" in done.stderr


@pytest.mark.slow
def test_rows_that_share_one_long_text_end(tmp_path: Path) -> None:
    long = f"insert into CUPTI_ACTIVITY_KIND_KERNEL(start, end) values ('{'x' * 900_000}', 2);"
    done = limited("analyze", tangled(database(tmp_path / "r.sqlite", long, 512), "CUPTI_ACTIVITY_KIND_KERNEL", 3, 512))
    assert done.returncode in (0, 4), done.stderr


def test_a_database_comes_from_standard_input_too(tmp_path: Path) -> None:
    done = limited("analyze", "-", "--format", "json", stdin=database(tmp_path / "r.sqlite"))
    assert done.returncode == 0, done.stderr
    assert [kernel["name"] for kernel in json.loads(done.stdout)["kernels"]] == ["k"]


def test_reading_a_database_that_is_written_writes_nothing(tmp_path: Path) -> None:
    writer = sqlite3.connect(database(tmp_path / "w.sqlite"))
    writer.execute("pragma journal_mode=wal")
    writer.execute("insert into StringIds values (77, 'later')")
    writer.commit()
    copy = tmp_path / "copy"
    copy.mkdir()
    for ending in ("", "-wal"):
        (copy / f"r.sqlite{ending}").write_bytes((tmp_path / f"w.sqlite{ending}").read_bytes())
    writer.close()
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    done = limited("analyze", copy / "r.sqlite")
    assert done.returncode == 4
    assert "what is in r.sqlite-wal is not read" in done.stdout + done.stderr
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


# ---------------------------------------------------------------- recordings of opscope exec


RECORDING = lzma.decompress((DATA / "exec" / "first.cudarec.xz").read_bytes())
GOOD = {
    "schema": "opscope.exec/1", "command": ["./add"], "folder": "/", "created": "2026-01-01T00:00:00+00:00",
    "seconds": 1.0, "exit_code": 0, "opscope": "1", "cupti": "13", "cupti_library": "/x",
    "recordings": ["process-1.cudarec"],
}  # fmt: skip


def folder(tmp_path: Path, **changed: object) -> Path:
    made = tmp_path / "run"
    (made / "raw").mkdir(parents=True)
    (made / "raw" / "process-1.cudarec").write_bytes(RECORDING)
    (made / "exec.json").write_text(json.dumps({**GOOD, **changed}))
    return made


def _link_out(made: Path) -> None:
    (made / "raw" / "process-1.cudarec").rename(made.parent / "secret")
    (made / "raw" / "process-1.cudarec").symlink_to(made.parent / "secret")


def _folder_out(made: Path) -> None:
    (made / "raw").rename(made.parent / "elsewhere")
    (made / "raw").symlink_to(made.parent / "elsewhere")


def _record_out(made: Path) -> None:
    (made / "exec.json").rename(made.parent / "other.json")
    (made / "exec.json").symlink_to(made.parent / "other.json")


def _pipe(made: Path) -> None:
    (made / "raw" / "process-1.cudarec").unlink()
    os.mkfifo(made / "raw" / "process-1.cudarec")


def _loop(made: Path) -> None:
    (made / "raw" / "process-1.cudarec").unlink()
    (made / "raw" / "process-1.cudarec").symlink_to("process-1.cudarec")


@pytest.mark.parametrize("change", [_link_out, _folder_out, _record_out, _pipe, _loop])
@pytest.mark.parametrize("more", [(), ("--stats", "all")])
def test_a_recording_that_leads_out_or_never_ends_is_refused(
    change: Callable[[Path], None], more: tuple[str, ...], tmp_path: Path
) -> None:
    made = folder(tmp_path)
    assert limited("analyze", *more, made).returncode == 0
    change(made)
    done = limited("analyze", *more, made)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name", ["a\0b", "", ".", "..", "x" * 5000, "../../../etc/passwd", "/etc/passwd", "a/b.cudarec"]
)
def test_names_of_recordings_that_cannot_be_are_refused(name: str, tmp_path: Path) -> None:
    done = limited("analyze", "--stats", "cuda_gpu_sum", folder(tmp_path, recordings=[name]))
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("changed", [{"command": [], "recordings": []}, {"recordings": ["process-1.cudarec"] * 2}])
def test_records_that_say_nothing_or_twice_the_same_are_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    done = limited("analyze", "--stats", "cuda_gpu_sum", folder(tmp_path, **changed))
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr


REAL = lzma.decompress((DATA / "exec" / "nvtx.cudarec.xz").read_bytes())
HEAD = REAL[: REAL.index(b"\n\n") + 2]
LINES = HEAD.decode().rstrip().split("\n")[1:]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("table", ["threads", "devices", "facts", "events", "kernels"])
def test_equal_rows_that_unpack_to_much_are_refused(table: str, padded: bool, tmp_path: Path) -> None:
    """With random bytes beside them, so that the file is large enough, their number is what is refused."""
    columns = next(line.split(" ")[1:] for line in LINES if line.startswith(f"{table} "))
    dtype = np.dtype([(c.split(":")[0], "<" + c.split(":")[1]) for c in columns])
    rows = np.zeros((150 << 20) // dtype.itemsize, dtype).tobytes()
    number = [line.split(" ")[0] for line in LINES].index(table)
    content = HEAD + struct.pack("<II", number, len(rows)) + rows
    path = tmp_path / "r.cudarec.xz"
    noise = np.random.default_rng(0).bytes(4 << 20) if padded else b""
    path.write_bytes(lzma.compress(content + noise, preset=0))
    done = limited("analyze", "--stats", "cuda_gpu_sum", path)
    assert done.returncode in ((4,) if table != "kernels" or not padded else (0, 4)), done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- traces


EVENT = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {}}'


@pytest.mark.parametrize("field", ['"ts": 1', '"dur": 2', '"pid": 1', '"tid": 1'])
@pytest.mark.parametrize("reads", ["compiled", "python"])
def test_exponents_beyond_all_bounds_are_no_numbers(
    field: str, reads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reads == "python":
        monkeypatch.setattr(native, "load_kineto", lambda: None)
    odd = EVENT.replace(field, f"{field}e1000000")
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{EVENT}, {odd}, {odd.replace("e1000000", "e-1000000")}]}}')
    trace = read(path)
    times = field.startswith(('"ts', '"dur'))
    assert trace.operators.height == (2 if times else 3)
    assert trace.source.odd_events == (1 if times else 0)


@pytest.mark.parametrize("place", ["name", "cat"])
def test_half_a_surrogate_pair_is_counted_by_both_readers(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    odd = EVENT.replace("aten::mm" if place == "name" else "cpu_op", "a?b").encode().replace(b"?", b"\xed\xa0\x80")
    path.write_bytes(b'{"traceEvents": [' + EVENT.encode() + b", " + odd + b"]}")
    compiled = read(path).source.replaced_bytes
    monkeypatch.setattr(native, "load_kineto", lambda: None)
    assert compiled == read(path).source.replaced_bytes == 3


def test_a_page_of_many_threads_folds_them(tmp_path: Path) -> None:
    trace = KinetoTrace()
    for thread in range(500):
        trace.operator("aten::mm", 1_000 * thread, 500 + thread, tid=thread)
    path = trace.write(tmp_path / "t.json")
    done = opscope("page", str(path), "-o", str(tmp_path / "p.html"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p.html").stat().st_size < 2_000_000


def test_links_to_one_file_are_two_traces(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    made = trace.write(tmp_path / "t.json")
    links = tmp_path / "links"
    for name in ("a", "b"):
        (links / name).mkdir(parents=True)
        (links / name / "t.json").symlink_to(made)
    (links / "x.json").symlink_to(made)
    (links / "y.json").symlink_to(made)
    found = json.loads(opscope("analyze", str(links), "--format", "json").stdout)["traces"]
    assert len(found) == 2
    several = [str(links / name / "t.json") for name in ("a", "b")]
    stored = opscope("export", *several, "--parquet", str(tmp_path / "stores"))
    assert stored.returncode == 0, stored.stderr
    assert sorted(path.name for path in (tmp_path / "stores").iterdir()) == ["b-t", "t"]
    compared = json.loads(opscope("diff", str(links), str(links), "--format", "json").stdout)
    assert [pair["name"] for pair in compared["pairs"]] == ["x.json", "y.json"]


def test_sql_leaves_out_what_is_no_trace_and_names_it(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.operator("aten::mm", 0, 10_000)
    made = trace.write(tmp_path / "t.json")
    (tmp_path / "other.json").write_text('{"accuracy": 0.9}')
    words = ("select name from operators", str(made), str(tmp_path / "other.json"))
    done = opscope("sql", *words)
    assert done.returncode == 0, done.stderr
    assert "aten::mm" in done.stdout
    assert "other.json is not a trace" in done.stderr
    assert opscope("sql", "--strict", *words).returncode == 4
    assert opscope("sql", words[0], words[2]).returncode == 4  # nothing else is there
    swapped = opscope("sql", str(made), "select name from operators")
    assert swapped.returncode == 2
    assert "the query comes first" in swapped.stderr
    broken = opscope("sql", "select (name from operators", str(made))
    assert broken.returncode == 2
    assert "sqlglot" not in broken.stderr


# ---------------------------------------------------------------- what no command does


# Those that run what their user names, try the machine, or make calls in a confined process (SECURITY.md).
RUNS = {
    "advise",
    "profile",
    "exec",
    "bench",
    "kernel",
    "doctor",
    "limits",
    "mcp",
}
WORDS = {
    "analyze": ("{trace}",), "page": ("{trace}", "-o", "{out}/p.html"), "runs": ("{runs}",),
    "explain": ("aten::addmm", "--in", "{trace}"),
    "diff": ("{bench}", "{bench}"), "gpus": ("h100",),
    "export": ("{trace}", "-o", "{out}/e.json"), "sql": ("select name from operators", "{trace}"),
    "skill": (), "show": ("{trace}#bound",),
    "whatif": ("{trace}",), "ranks": ("{ranks}", "--jobs", "1"), "memory": ("{snapshot}",),
}  # fmt: skip
FORBIDDEN = """
import sys
forbidden = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "pty.spawn"}
def hook(event, arguments):
    if event in forbidden or (event == "import" and arguments[0] in ("torch", "torch._ops", "victim")):
        raise RuntimeError(f"{event} {arguments[:1]}")
sys.addaudithook(hook)
from opscope.cli import main
main()
"""


# Further things that commands do with files.
ALSO = [
    ("analyze", "--stats", "all", "{trace}"), ("analyze", "--brief", "{trace}"), ("explain", "--in", "{trace}"),
    ("diff", "{trace}", "{trace}"), ("diff", "{snapshot}", "{snapshot}"), ("page", "{snapshot}", "-o", "{out}/s.html"),
    ("export", "{trace}", "--parquet", "{out}/store"), ("export", "--reports", "{run}"),
]  # fmt: skip


def test_the_two_lists_are_all_commands() -> None:
    assert RUNS | set(WORDS) == set(COMMANDS)
    assert not RUNS & set(WORDS)


@pytest.mark.parametrize("words", [*((name, *more) for name, more in WORDS.items()), *ALSO], ids=" ".join)
def test_a_command_that_reads_files_starts_no_process_and_imports_nothing_of_theirs(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(DATA / "changes" / "before", tmp_path / "runs" / "one")
    (tmp_path / "victim.py").write_text("open('ran', 'w')\n")
    bench = json.loads((DATA.parents[1] / "benchmarks" / "results" / "h200-bench-gelu.json").read_text())
    bench["request"] = {"targets": ["victim:f"], "inputs": "subprocess:getoutput", "axes": {"cmd": ["touch ran"]}}
    (tmp_path / "bench.json").write_text(json.dumps(bench))
    places = {
        "trace": DATA / "traces" / "gpt2_train_amp_stacks.json.gz", "out": tmp_path, "runs": tmp_path / "runs",
        "run": tmp_path / "runs" / "one", "bench": tmp_path / "bench.json",
        "ranks": tmp_path / "ranks", "snapshot": DATA / "memory" / "kept_graphs.pickle.xz",
    }  # fmt: skip
    shutil.copytree(DATA / "ranks" / "healthy_ddp", tmp_path / "ranks")
    done = opscope(*(word.format(**places) for word in words), cwd=tmp_path, code=FORBIDDEN)
    assert done.returncode in (0, 5), done.stderr
    assert not (tmp_path / "ran").exists()
