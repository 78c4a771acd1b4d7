"""Reads what ``TORCH_TRACE`` and ``TORCH_LOGS`` write while ``torch.compile`` compiles.

A ``TORCH_TRACE`` file has a line of JSON per record; its payload, if any, follows on lines that begin with a tab.
The first key of the JSON names the record, or ``artifact`` does by its ``name``
(``torch/_logging/_internal.py``, ``trace_structured``). The records are no stable interface: each has a function here,
one that has none is counted, and what cannot be read costs nothing but itself. ``TORCH_LOGS`` is text for people, of
which the lines of four channels are read.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from opscope.base.errors import BadInputError
from opscope.base.files import is_users
from opscope.readers.unpacked import MAX_UNPACKED_BYTES, InputFile, WholeReader
from opscope.trace.compile_log import (
    CodePlace,
    Compilation,
    CompiledKernel,
    CompileLog,
    FailedGuard,
    GraphBreak,
    Recompilation,
    SkippedGraph,
)

# One record or line of text, as glog writes it: level and day, time, thread, source line; then what it says.
_LINE: Final = re.compile(
    rb"^(?:\[rank\d+\]:)?[VIWEC](?P<when>\d{4} \d\d:\d\d:\d\d\.\d+) (?P<thread>\d+) (?P<at>\S+:\d+)\] ?(?P<says>.*)$"
)
_TAGS: Final = re.compile(r"^((?:\[[^\]\s]+\] ?)+)(.*)$", re.DOTALL)
_ID: Final = re.compile(r"\d+/\d+")
_ATTEMPT: Final = re.compile(r"_\d+$")  # 0/1_2 is the third attempt at 0/1
_CHANNELS: Final = ("__graph_breaks", "__recompiles", "__cudagraphs")
_SUFFIXES: Final = (".log", ".txt")
_PACKED: Final = (".gz", ".xz", ".zst")
_MAX_FILES: Final = 1_000
# What leads from a message to the next part of it; the words are those of `torch/_dynamo/exc.py`.
_FRAME: Final = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>.+)(?:\n +(?P<text>.+))?', re.M
)
# A line of a printed graph: a node's name, perhaps its type, and what it calls.
_NODE: Final = re.compile(r"^ *(\w+)(?:: [^=\n]*)? = ([\w.]+)\(", re.M)
_BREAK: Final = re.compile(r"Graph break in user code at (?P<file>.+):(?P<line>\d+)\s*$", re.M)
_EXPLAINED: Final = re.compile(r"^ +Explanation: (.+)$", re.M)
_HINT: Final = re.compile(r"^ +Hint: (.+)$", re.M)
_OLD_REASON: Final = re.compile(r"^(?:Graph Break )?Reason: (.+)$", re.M)
_GUARD: Final = re.compile(r"^(?P<of>\d+/\d+): (?P<text>.*)$", re.DOTALL)
_MISMATCH: Final = re.compile(r"^(?P<what>.+?)[.,] expected (?P<expected>.+?), actual (?P<actual>.+)$")
_EQUAL: Final = re.compile(r"^(?P<what>.+?) == (?P<expected>.+)$")
_HINTED: Final = re.compile(r"\(HINT: (.*?)\)?$", re.DOTALL)
_SKIPPED: Final = re.compile(r"skipping cudagraphs due to (?P<reason>.+?)(?:\. Found from|\n|$)")
_RECORDED: Final = re.compile(r"Recording cudagraph tree for symint key (.+)")
_BEGINNINGS: Final = ("Graph break in user code", "Recompiling function", "skipping cudagraphs", "Recording cuda")
_LIMIT: Final = re.compile(r"hit config\.\w*(?:recompile|cache_size)_limit")


def read_compile_log(paths: Iterable[Path], *, max_bytes: int = MAX_UNPACKED_BYTES) -> CompileLog:
    """Read what one process wrote while it compiled.

    Args:
        paths: files, packed or not, and folders, of which the files ``*.log`` and ``*.txt`` are read.
        max_bytes: the most that a file may unpack to.

    Raises:
        BadInputError: a file cannot be read, nothing in them is of a compilation, or they are of several processes.
    """
    paths = tuple(paths)
    processes: list[tuple[Path, _Collected]] = []
    texts = _Collected()
    for file in (file for path in paths for file in _files_of(path)):
        own = _Collected()
        for record in _records(_content(file, max_bytes)):
            own.take(record)
        if own.structured:
            processes.append((file, own))
        texts.messages += own.messages
        texts.broken += own.broken if not own.structured else 0
    compiling = [(file, one) for file, one in processes if one.compilations or one.started]
    if len(compiling) > 1:
        raise BadInputError(
            f"{compiling[0][0]} and {compiling[1][0]} are of two processes, whose compilations have the same numbers: "
            "name the file of one"
        )
    whole = compiling[0][1] if compiling else processes[0][1] if processes else texts
    if whole is not texts:
        whole.messages, whole.broken = texts.messages, whole.broken + texts.broken
    named = ", ".join(map(str, paths))
    if not whole.structured and not whole.messages:
        raise BadInputError(f"{named} has nothing that TORCH_TRACE or TORCH_LOGS writes of compiling")
    return whole.finished(named)


def _files_of(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    files = sorted(file for file in path.iterdir() if _is_log(file))
    if not files:
        raise BadInputError(f"{path} has no file *.log or *.txt: name the folder that TORCH_TRACE was set to")
    if len(files) > _MAX_FILES:
        raise BadInputError(f"{path} has {len(files):,} logs: name those of one process")
    yield from files


def _is_log(file: Path) -> bool:
    name = file.with_suffix("") if file.suffix in _PACKED else file
    return name.suffix in _SUFFIXES and file.is_file()


def _content(file: Path, max_bytes: int) -> bytes:
    source, reader = InputFile(file, max_bytes), WholeReader()
    for _ in source.feed(lambda _: reader):
        pass  # damage ends the content early; what was read until then counts
    return reader.content()


# ---------------------------------------------------------------- records


class _Record(Struct, frozen=True):
    """A line, with the lines of its payload."""

    says: bytes
    payload: bytes
    where: bytes  # time, thread and source: the lines of one message have the same


def _records(content: bytes) -> Iterator[_Record]:
    begun: tuple[bytes, bytes] | None = None
    payload: list[bytes] = []
    for line in content.split(b"\n"):
        if line.startswith(b"\t"):
            payload.append(line[1:])
        elif (match := _LINE.match(line)) is not None:
            if begun is not None:
                yield _Record(begun[0], b"\n".join(payload), begun[1])
            begun, payload = (match["says"], b" ".join(match.group("when", "thread", "at"))), []
    if begun is not None:
        yield _Record(begun[0], b"\n".join(payload), begun[1])


class _Collected(Struct):
    """What was read so far of one process."""

    structured: int = 0
    broken: int = 0
    files: dict[int, str] = field(default_factory=dict)
    started: dict[str, CodePlace | None] = field(default_factory=dict)
    compilations: dict[str, Compilation] = field(default_factory=dict)
    breaks: dict[tuple[str, str, int], GraphBreak] = field(default_factory=dict)
    recompilations: dict[str, Recompilation] = field(default_factory=dict)
    calls: dict[str, dict[str, str]] = field(default_factory=dict)
    open_graphs: dict[str, "_Graph"] = field(default_factory=dict)
    graphs: list["_Graph"] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    messages: list[tuple[bytes, str]] = field(default_factory=list)

    def take(self, record: _Record) -> None:
        """Take a record, or a line of text."""
        if not record.says.startswith(b"{"):
            self._text(record)
            return
        try:
            head = msgspec.json.decode(record.says, type=dict[str, Any])
            name = _name_of(head)
            self.structured += 1
            if (reads := _READERS.get(name)) is None:
                self.unknown[name] += 1
            else:
                reads(self, head, record.payload)
        except (msgspec.MsgspecError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            self.broken += 1

    def _text(self, record: _Record) -> None:
        says = record.says.decode(errors="replace")
        match = _TAGS.match(says)
        if match is None or (not any(channel in match[1] for channel in _CHANNELS) and not _LIMIT.search(says)):
            return
        # The lines of one message follow one another, with the same tags: the first line ends the one before.
        if self.messages and self.messages[-1][0] == record.where + match[1].encode() and not _begins(match[2]):
            self.messages[-1] = (self.messages[-1][0], f"{self.messages[-1][1]}\n{match[2]}")
        else:
            self.messages.append((record.where + match[1].encode(), says))

    def finished(self, path: str) -> CompileLog:
        """Return all of it."""
        skipped, recorded, limited = list[SkippedGraph](), Counter[str](), list[str]()
        for _, message in self.messages:
            match = _TAGS.match(message)
            tags, text = (match[1], match[2]) if match else ("", message)
            number = _ID.search(tags)
            compiled = None if number is None else number[0]
            if "__graph_breaks" in tags and compiled is not None:
                self.add_break(compiled, text)
            elif "__recompiles" in tags and compiled is not None and compiled not in self.recompilations:
                self._add_guards(compiled, [line.lstrip(" -") for line in text.splitlines()])
            elif (skip := _SKIPPED.search(text)) is not None:
                skipped.append(SkippedGraph(compiled, skip["reason"].strip(), _innermost(text)))
            elif (graph := _RECORDED.search(text)) is not None:
                recorded[graph[1].strip()] += 1
            elif _LIMIT.search(text) and compiled is not None:
                limited.append(compiled)
        return CompileLog(
            path=path,
            compilations=tuple(self.compilations.values()),
            breaks=tuple(self.breaks.values()),
            recompilations=tuple(self.recompilations.values()),
            skipped=tuple(dict.fromkeys(skipped)),
            recorded=dict(recorded),
            limited=tuple(dict.fromkeys(limited)),
            kernels=tuple(self._kernels()),
            records=self.structured,
            unknown=dict(self.unknown),
            broken=self.broken,
        )

    # ------------------------------------------------------------ what a record says

    def add_file(self, head: dict[str, Any]) -> None:
        """Take an entry of the table of file names."""
        name, number = head["str"]
        self.files[int(number)] = str(name)

    def add_start(self, head: dict[str, Any]) -> None:
        """Take where a function was called that is compiled now."""
        frames = (
            CodePlace(
                self._file(frame["filename"]), int(frame["line"]), str(frame["name"]), str(frame.get("loc") or "")
            )
            for frame in reversed(head["dynamo_start"].get("stack") or ())
        )
        self.started[_id_of(head)] = next((frame for frame in frames if _is_programs(frame.file)), None)

    def _file(self, name: str | int) -> str:
        return self.files[name] if isinstance(name, int) else name

    def add_compilation(self, head: dict[str, Any]) -> None:
        """Take what PyTorch measured of a compilation."""
        own = head["compilation_metrics"]
        compiled = _ATTEMPT.sub("", str(own.get("compile_id") or _id_of(head)))
        if own.get("co_name") is None:
            return  # of a backward graph that is compiled later, which has its own records
        seconds = own.get("entire_frame_compile_time_s")
        self.compilations[compiled] = Compilation(
            id=compiled,
            place=CodePlace(str(own["co_filename"]), int(own["co_firstlineno"]), str(own["co_name"])),
            called_from=self.started.get(compiled),
            duration_ns=None if seconds is None else round(float(seconds) * 1e9),
            guards=own.get("guard_count"),
            operators=own.get("graph_op_count"),
            failure=own.get("fail_reason"),
        )

    def add_break(self, compiled: str, text: str) -> None:
        """Take the reason of a break."""
        if (at := _BREAK.search(text)) is None:
            return
        explained, old = _EXPLAINED.search(text), _OLD_REASON.search(text)
        # The title stands alone on the line before the explanation (PyTorch 2.7 and newer).
        before = text[: explained.start()].rstrip().splitlines() if explained else []
        title = before[-1].strip().removeprefix("Graph Break Reason: ") if before else old[1].strip() if old else ""
        hints = () if explained is None else tuple(_HINT.findall(text))
        # What follows the program's own lines is a traceback of PyTorch's.
        place = _innermost(text.partition("\nTraceback (most recent call last)")[0])
        place = place or CodePlace(at["file"], int(at["line"]))
        said = GraphBreak(compiled, place, title, explained[1].strip() if explained else "", hints)
        self.breaks.setdefault((compiled, place.file, place.line), said)

    def add_recompilation(self, compiled: str, payload: bytes) -> None:
        """Take the guards that failed: a list as JSON, or one as text."""
        listed = payload.lstrip().startswith(b"[")
        texts = msgspec.json.decode(payload, type=list[str]) if listed else [payload.decode(errors="replace")]
        self._add_guards(compiled, texts)

    def _add_guards(self, compiled: str, texts: Iterable[str]) -> None:
        guards = tuple(guard for text in texts if (guard := _guard(text)) is not None)
        if guards:
            self.recompilations[compiled] = Recompilation(compiled, guards)

    def add_nodes(self, compiled: str, payload: bytes) -> None:
        """Take what the nodes of the traced graph call."""
        calls = _NODE.findall(payload.decode(errors="replace"))
        self.calls.setdefault(compiled, {}).update((node, call.rpartition(".")[2]) for node, call in calls)

    def add_to_graph(self, compiled: str, payload: bytes, *, kernels: bool) -> None:
        """Take what one graph's kernels compute. A function's forward and backward graphs have records of their own."""
        decoded = msgspec.json.decode(payload, type=dict[str, Any])
        graph = self.open_graphs.get(compiled)
        if graph is None or (graph.stacks if kernels else graph.nodes):
            graph = self.open_graphs[compiled] = _Graph(compiled)
            self.graphs.append(graph)
        if kernels:
            graph.stacks = decoded
        else:
            graph.nodes = decoded

    def end_graph(self, compiled: str, payload: bytes) -> None:
        """Take the key of the graph, which is written when it was compiled or taken from the cache."""
        if (graph := self.open_graphs.pop(compiled, None)) is not None:
            graph.key = msgspec.json.decode(payload, type=_CacheEntry).key

    def _kernels(self) -> Iterator[CompiledKernel]:
        # Two compilations may have the same graph.
        graphs = {(graph.key or at): graph for at, graph in enumerate(self.graphs)}
        for graph in graphs.values():
            calls = self.calls.get(graph.compiled, {})
            after, before = graph.nodes.get("cppCodeToPost") or {}, graph.nodes.get("postToPre") or {}
            for key, frames in graph.stacks.items():
                kernel, _, number = key.rpartition(":")
                operators = [pre for post in after.get(key) or () for pre in before.get(post) or (post,)]
                places = (_innermost(str(text)) for text in frames)
                known = tuple(dict.fromkeys(place for place in places if place is not None))
                fused = tuple(dict.fromkeys(calls.get(name, name) for name in operators))
                yield CompiledKernel(graph.compiled, kernel, graph.key, int(number), known, fused)


class _Graph(Struct):
    """What is known of one graph's kernels."""

    compiled: str
    key: str | None = None
    stacks: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, Any] = field(default_factory=dict)


class _CacheEntry(Struct):
    """The one field that is needed of a long record."""

    key: str | None = None


def _name_of(head: dict[str, Any]) -> str:
    name = next(iter(head))
    return str(head[name]["name"]) if name == "artifact" else name


def _id_of(head: dict[str, Any]) -> str:
    return f"{head['frame_id']}/{head['frame_compile_id']}"


def _is_programs(file: str) -> bool:
    """Tell whether a file is the program's, and not PyTorch's; other libraries' models count as the program's."""
    return is_users(file) or not ("/torch/" in file or file.startswith("<") or "/importlib/" in file)


def _innermost(text: str) -> CodePlace | None:
    """Return the last line of the program that a text lists, else the last line."""
    last = own = None
    for frame in _FRAME.finditer(text):
        code = (frame["text"] or "").strip()
        last = CodePlace(frame["file"], int(frame["line"]), frame["function"].strip(), code)
        own = last if _is_programs(last.file) else own
    return own or last


def _guard(text: str) -> FailedGuard | None:
    """Read one reason of a recompilation: the guard, then comments with the source line, its place and a hint."""
    if (match := _GUARD.match(text.strip())) is None:
        return None
    first, _, rest = match["text"].partition("\n")
    condition = re.split(r"\s{2,}# ", first, maxsplit=1)[0].strip()
    hint = _HINTED.search(first)
    expected = actual = None
    if (values := _MISMATCH.match(condition) or _EQUAL.match(condition)) is not None:
        condition, expected = values["what"], values["expected"]
        actual = values.groupdict().get("actual")
    return FailedGuard(match["of"], condition, expected, actual, _innermost(rest), hint[1] if hint else "")


def _begins(text: str) -> bool:
    """Tell whether a line is the first of a message."""
    return text.startswith(
        ("Graph break in user code", "Recompiling function", "skipping cudagraphs", "Recording cuda")
    )


_READERS: Final[dict[str, Callable[[_Collected, dict[str, Any], bytes], None]]] = {
    "str": lambda collected, head, _: collected.add_file(head),
    "dynamo_start": lambda collected, head, _: collected.add_start(head),
    "compilation_metrics": lambda collected, head, _: collected.add_compilation(head),
    "dynamo_graph_break_reason": lambda collected, head, payload: collected.add_break(
        _id_of(head), payload.decode(errors="replace")
    ),
    "recompile_reasons": lambda collected, head, payload: collected.add_recompilation(_id_of(head), payload),
    "dynamo_output_graph": lambda collected, head, payload: collected.add_nodes(_id_of(head), payload),
    "before_pre_grad_graph": lambda collected, head, payload: collected.add_nodes(_id_of(head), payload),
    "inductor_provenance_tracking_kernel_stack_traces": lambda collected, head, payload: collected.add_to_graph(
        _id_of(head), payload, kernels=True
    ),
    "inductor_provenance_tracking_node_mappings": lambda collected, head, payload: collected.add_to_graph(
        _id_of(head), payload, kernels=False
    ),
    **{
        f"fx_graph_cache_{outcome}": lambda collected, head, payload: collected.end_graph(_id_of(head), payload)
        for outcome in ("hit", "miss", "bypass")
    },
}
