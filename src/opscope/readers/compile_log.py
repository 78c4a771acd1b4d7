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
from msgspec.structs import replace

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

# One record or line of text: level and day, time, process, source line; then what it says.
_LINE: Final = re.compile(
    rb"^(?:\[rank(?P<rank>\d{1,9})\]:)?[VIWEC](?P<when>\d{4} \d\d:\d\d:\d\d\.\d+) (?P<process>\d{1,18}) "
    rb"(?P<at>\S+:\d+)\] ?(?P<says>.*)$"
)
_TAGS: Final = re.compile(r"^((?:\[[^\]\s]+\] ?)+)(.*)$", re.DOTALL)
_ID: Final = re.compile(r"(?:!\d+/)?\d+/\d+")
_ATTEMPT: Final = re.compile(r"_\d+$")  # 0/1_2 is the third attempt at 0/1
_CHANNELS: Final = ("__graph_breaks", "__recompiles", "__cudagraphs")
_SUFFIXES: Final = (".log", ".txt")
_PACKED: Final = (".gz", ".xz", ".zst")
_MAX_FILES: Final = 1_000
_MAX_GUARD: Final = 10_000  # characters of one condition; patterns are tried at each place of a text
_MAX_SECONDS: Final = 1e9
_MAX_LINE: Final = 999_999_999
# What leads from a message to the next part of it; the words are those of `torch/_dynamo/exc.py`.
_FRAME: Final = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<function>.+)(?:\n +(?P<text>.+))?', re.M
)
# A printed graph: above its nodes the line of the program, and of each node its name, perhaps its type, and its call.
_GRAPH_LINE: Final = re.compile(
    r"^ *(?:# (?:File: (?P<file>.+?):(?P<line>\d{1,9}) in (?P<function>\S+), code: (?P<text>.*)|No stacktrace.*)"
    r"|(?P<node>\w+)(?:: [^=\n]*)? = (?:(?P<call>[\w.]+)\()?.*)$",
    re.M,
)
# Code that Inductor wrote: above a call what it is of, perhaps its number, and the call. Where a kernel sums over two
# dimensions at once, PyTorch adds up the parts afterwards (``torch/_inductor/codegen/simd.py``, mix order reduction).
_CODE_LINE: Final = re.compile(
    r"^ *(?:# Topologically Sorted Source Nodes: \[(?P<nodes>[^\]\n]*)\](?:, Original ATen: \[(?P<aten>[^\]\n]*)\])?.*"
    r"|# \[Provenance debug handles\] (?P<handle>\S+):(?P<number>\d{1,9})"
    r"|(?P<triton>\w+)\.run\(.*"
    r"|(?:\w+ = )?(?P<library>extern_kernels\.\w+|torch\.ops\.\w+\.\w+\.\w+)\(.*"
    r"|\w+ = workspace_\d+\[.*(?P<sum>\.sum\(dim=0\)).*)$",
    re.M,
)
_BREAK: Final = re.compile(r"^Graph break in user code at (?P<file>.+):(?P<line>\d{1,9})\s*$", re.M)
_EXPLAINED: Final = re.compile(r"^ +Explanation: (.+)$", re.M)
_HINT: Final = re.compile(r"^ +Hint: (.+)$", re.M)
_OLD_REASON: Final = re.compile(r"^(?:Graph Break )?Reason: (.+)$", re.M)
_GUARD: Final = re.compile(r"^(?P<of>\d+/\d+): (?P<text>.*)$", re.DOTALL)
_MISMATCH: Final = re.compile(r"^(?P<what>.+?)[.,] expected (?P<expected>.+?), actual (?P<actual>.+)$")
_EQUAL: Final = re.compile(r"^(?P<what>.+?) == (?P<expected>.+)$")
_HINTED: Final = re.compile(r"\(HINT: (.*?)\)?$", re.DOTALL)
_SKIPPED: Final = re.compile(r"skipping cudagraphs due to (?P<reason>.+?)(?:\. Found from|\n|$)")
_LEFT_OUT: Final = re.compile(r"^ *op\S+: reason=(?P<reason>[^,]+), ir=")
_NO_GRAPHS: Final = "partition includes all ops when cudagraphs is disabled"  # they were not asked for
_RECORDED: Final = re.compile(r"Recording cudagraph tree for symint key (.+)")
_BEGINNINGS: Final = (
    "Graph break in user code",
    "Recompiling function",
    "skipping cudagraphs",
    "Recording cuda",
    "    op",
)
_LIMIT: Final = re.compile(r"hit config\.\w*(?:recompile|cache_size)_limit")


def read_compile_log(
    paths: Iterable[Path], processes: Iterable[int] = (), *, max_bytes: int = MAX_UNPACKED_BYTES
) -> CompileLog:
    """Read what one process wrote while it compiled.

    Args:
        paths: files, packed or not, and folders, of which the files ``*.log`` and ``*.txt`` are read.
        processes: the numbers of the trace's processes. Where several processes wrote logs, theirs is taken.
        max_bytes: the most that a file may unpack to.

    Raises:
        BadInputError: a file cannot be read, nothing in them is of a compilation, or they are of several processes of
            which none, or more than one, is the trace's.
    """
    paths = tuple(paths)
    logs = _Logs()
    for file in (file for path in paths for file in _files_of(path)):
        logs.read(file, max_bytes)
    named = ", ".join(map(str, paths))
    found = logs.of_processes()
    if not found:
        raise BadInputError(f"{named} has nothing that TORCH_TRACE or TORCH_LOGS writes of compiling")
    wanted = set(processes)
    theirs = [one for one in found if one.process in wanted] if len(found) > 1 else found
    if len(theirs) != 1:
        listed = ", ".join(f"{one.file or 'text'} of process {one.process}" for one in (theirs or found)[:4])
        raise BadInputError(
            f"{named} has logs of {len(found)} processes or runs that compiled, and {'several' if theirs else 'none'} "
            f"of them can be the trace's: name the file of one ({listed})"
        )
    return replace(theirs[0].collected.finished(named), process=theirs[0].process, damage=logs.damage)


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


class _OfProcess(Struct):
    """What one process wrote: a file of records with the text of the same process, or text alone.

    Attributes:
        process: its number.
        ranks: its ranks, as lines are marked once a group of processes is set up; those of several mean several.
        file: the file of records; None for text alone.
        collected: what it says.
    """

    process: int
    ranks: set[int]
    file: Path | None
    collected: "_Collected"


class _Logs(Struct):
    """What was read of all files. Each process writes a file of records of its own; text may be mixed."""

    records: dict[tuple[Path, int], _OfProcess] = field(default_factory=dict)
    texts: dict[tuple[int, int | None], "_Collected"] = field(default_factory=dict)
    damage: str | None = None

    def read(self, file: Path, max_bytes: int) -> None:
        """Read one file."""
        opened, reader = InputFile(file, max_bytes), WholeReader()
        for _ in opened.feed(lambda _: reader):
            pass  # damage ends the content early; what was read until then counts
        if opened.damage is not None:
            self.damage = f"{file}: {opened.damage}"
        for record in _records(reader.take()):
            if not record.says.startswith(b"{"):
                self.texts.setdefault((record.process, record.rank), _Collected()).take_text(record)
                continue
            own = self.records.setdefault((file, record.process), _OfProcess(record.process, set(), file, _Collected()))
            own.collected.take(record)
            if record.rank is not None:
                own.ranks.add(record.rank)

    def of_processes(self) -> list[_OfProcess]:
        """Return what each process wrote that compiled."""
        result, taken = list(self.records.values()), set[tuple[int, int | None]]()
        for one in result:
            for (process, rank), text in self.texts.items():
                if process == one.process and (rank is None or not one.ranks or rank in one.ranks):
                    one.collected.messages += text.messages
                    taken.add((process, rank))
        alone: dict[int, _OfProcess] = {}
        for (process, rank), text in self.texts.items():
            if (process, rank) not in taken:
                own = alone.setdefault(process, _OfProcess(process, set(), None, _Collected()))
                own.collected.messages += text.messages
        return [one for one in (*result, *alone.values()) if one.collected.says_something]


# ---------------------------------------------------------------- records


# What data of another shape than expected raise.
_MISSHAPEN: Final = (msgspec.MsgspecError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class _Record(Struct, frozen=True):
    """A line, with the lines of its payload."""

    process: int
    rank: int | None
    says: bytes
    payload: bytes
    where: bytes  # time, process and place: the lines of one message have the same


def _records(content: bytes) -> Iterator[_Record]:
    begun: re.Match[bytes] | None = None
    payload: list[bytes] = []
    for line in content.split(b"\n"):
        if line.startswith(b"\t"):
            payload.append(line[1:])
        elif (match := _LINE.match(line)) is not None:
            if begun is not None:
                yield _record(begun, payload)
            begun, payload = match, []
    if begun is not None:
        yield _record(begun, payload)


def _record(line: re.Match[bytes], payload: list[bytes]) -> _Record:
    where = b" ".join(line.group("when", "process", "at"))
    rank = None if line["rank"] is None else int(line["rank"])
    return _Record(int(line["process"]), rank, line["says"], b"\n".join(payload), where)


class _Collected(Struct):
    """What was read so far of one process."""

    structured: int = 0
    broken: int = 0
    files: dict[int, str] = field(default_factory=dict)
    started: dict[str, CodePlace | None] = field(default_factory=dict)
    compilations: dict[str, Compilation] = field(default_factory=dict)
    breaks: dict[tuple[str, str, int], GraphBreak] = field(default_factory=dict)
    recompilations: dict[str, Recompilation] = field(default_factory=dict)
    traced: dict[str, "_Printed"] = field(default_factory=dict)
    lowered: dict[str, "_Printed"] = field(default_factory=dict)
    open_graphs: dict[str, "_Graph"] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    graphs: list["_Graph"] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    messages: list[tuple[bytes, list[str]]] = field(default_factory=list)

    @property
    def says_something(self) -> bool:
        """Whether the process compiled, or tried to."""
        return bool(self.started or self.compilations or self.messages or self.breaks)

    def take(self, record: _Record) -> None:
        """Take a record."""
        try:
            head = msgspec.json.decode(record.says, type=dict[str, Any])
            name = _name_of(head)
            self.structured += 1
            if (reads := _READERS.get(name)) is None:
                self.unknown[name] += 1
            else:
                reads(self, head, record.payload)
        except _MISSHAPEN:
            self.broken += 1

    def take_text(self, record: _Record) -> None:
        """Take a line of text."""
        says = record.says.decode(errors="replace")
        match = _TAGS.match(says)
        if match is None or (not any(channel in match[1] for channel in _CHANNELS) and not _LIMIT.search(says)):
            return
        # The lines of one message follow one another, with the same tags: the first line ends the one before.
        tagged = record.where + match[1].encode()
        if self.messages and self.messages[-1][0] == tagged and not match[2].startswith(_BEGINNINGS):
            self.messages[-1][1].append(match[2])
        else:
            self.messages.append((tagged, [says]))

    def finished(self, path: str) -> CompileLog:
        """Return all of it."""
        skipped, recorded, limited = list[SkippedGraph](), Counter[str](), list[str]()
        for _, lines in self.messages:
            message = "\n".join(lines)
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
            elif (part := _LEFT_OUT.match(text)) is not None:
                if part["reason"] != _NO_GRAPHS:
                    skipped.append(SkippedGraph(compiled, part["reason"], _innermost(text), is_part=True))
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
            tells_skipped=any(b"__cudagraphs" in tagged for tagged, _ in self.messages),
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
                self._file(frame["filename"]), _line(frame["line"]), str(frame["name"]), str(frame.get("loc") or "")
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
        if seconds is not None and not 0 <= float(seconds) <= _MAX_SECONDS:
            raise ValueError
        self.compilations[compiled] = Compilation(
            id=compiled,
            place=CodePlace(str(own["co_filename"]), _line(own["co_firstlineno"]), str(own["co_name"])),
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

    def add_traced(self, compiled: str, payload: bytes) -> None:
        """Take the printed graph that Dynamo traced."""
        self.traced.setdefault(compiled, _Printed()).add(payload)

    def add_lowered(self, compiled: str, payload: bytes) -> None:
        """Take the printed graph of which code is written next."""
        self.lowered[compiled] = _Printed()
        self.lowered[compiled].add(payload)

    def add_code(self, compiled: str, payload: bytes) -> None:
        """Take the calls of kernels in the code of a graph; its other records follow."""
        lowered = self.lowered.pop(compiled, _Printed())
        graph = self.open_graphs[compiled] = _Graph(compiled, is_first=compiled not in self.written, lowered=lowered)
        self.written.add(compiled)
        self.graphs.append(graph)
        nodes, aten, handle = "", "", ("", 0)
        for one in _CODE_LINE.finditer(payload.decode(errors="replace")):
            if one["nodes"] is not None:
                nodes, aten = one["nodes"], one["aten"] or ""
            elif one["handle"] is not None:
                handle = one["handle"], int(one["number"])
                graph.runs.append(_Run(*handle, _listed(nodes), _listed(aten)))
            elif one["sum"] is not None:
                graph.runs.append(_Run("aten.sum", None, _listed(nodes), _listed(aten)))
            elif (name := one["triton"] or one["library"]) == handle[0]:
                handle = "", 0
            else:
                graph.runs.append(_Run(name, None, _listed(nodes), _listed(aten)))

    def add_to_graph(self, compiled: str, payload: bytes, *, kernels: bool) -> None:
        """Take what one graph's kernels compute. A function's forward and backward graphs have records of their own."""
        if not payload:
            return  # as of graphs for the CPU
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
        # A compilation that is repeated has its graph again.
        graphs = {(graph.compiled, graph.key or at): graph for at, graph in enumerate(self.graphs)}
        for graph in graphs.values():
            try:
                yield from [self._kernel(graph, run, number) for number, run in enumerate(graph.calls, 1)]
            except _MISSHAPEN:
                self.broken += 1

    def _kernel(self, graph: "_Graph", run: "_Run", number: int) -> CompiledKernel:
        key = f"{run.name}:{run.handle}"
        traced = self.traced.get(graph.compiled, _Printed())
        stacks = [_innermost(str(text)) for text in graph.stacks.get(key) or ()]
        places = [place for place in stacks if place is not None]
        # What has no record of its own is known by the nodes that the code names above its call. For the first graph
        # of a compilation these are Dynamo's. In later ones, a node that both have with different lines is not known.
        by_nodes: list[CodePlace] = []
        for node in () if places else run.nodes:
            lines = [printed.places[node] for printed in (traced, graph.lowered) if node in printed.places]
            by_nodes += lines[:1] if graph.is_first or len(set(lines)) == 1 else ()
        # A library's call is the last of them: the others compute its inputs.
        places += by_nodes[-1:] if "." in run.name else by_nodes
        after, before = graph.nodes.get("cppCodeToPost") or {}, graph.nodes.get("postToPre") or {}
        names = [pre for post in after.get(key) or () for pre in before.get(post) or ()]
        operators = [traced.calls.get(name, name) for name in names] or [
            name.removeprefix("aten.") for name in run.aten
        ]
        # A call of a library fuses nothing: what else is named computes its inputs.
        operators = [name for name in operators if name == _operator_of(run.name)] or operators
        known, fused = tuple(dict.fromkeys(places)), tuple(dict.fromkeys(operators))
        return CompiledKernel(graph.compiled, run.name, graph.key, number, known, fused)


class _Printed(Struct):
    """The nodes of a printed graph: what each calls, and its line."""

    calls: dict[str, str] = field(default_factory=dict)
    places: dict[str, CodePlace] = field(default_factory=dict)

    def add(self, payload: bytes) -> None:
        """Take the text of a graph."""
        place: CodePlace | None = None
        for one in _GRAPH_LINE.finditer(payload.decode(errors="replace")):
            if one["node"] is None:
                place = CodePlace(one["file"], int(one["line"]), one["function"], one["text"]) if one["file"] else None
                continue
            if one["call"]:
                self.calls[one["node"]] = _operator_of(one["call"])
            if place is not None:
                self.places[one["node"]] = place


class _Run(Struct):
    """A call in generated code: its number in the records on kernels, and the nodes and operators that it is of."""

    name: str
    handle: int | None
    nodes: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()


class _Graph(Struct):
    """What is known of one graph's kernels."""

    compiled: str
    is_first: bool = True
    key: str | None = None
    lowered: _Printed = field(default_factory=_Printed)
    runs: list[_Run] = field(default_factory=list)
    stacks: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, Any] = field(default_factory=dict)

    @property
    def calls(self) -> "list[_Run]":
        """The calls of kernels in their order; without the code, those that have records."""
        named = (key.rpartition(":") for key in self.stacks)
        listed = [_Run(name, int(number)) for name, _, number in named]
        return self.runs or sorted(listed, key=lambda run: run.handle or 0)


def _operator_of(call: str) -> str:
    """Return the operator that a call in printed code is of, without its namespace and overload."""
    parts = call.split(".")
    return parts[3] if call.startswith("torch.ops.") and len(parts) > 3 else parts[-1]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(", ") if part)


class _CacheEntry(Struct):
    """The one field that is needed of a long record."""

    key: str | None = None


def _line(value: object) -> int:
    if isinstance(value, int) and 0 <= value <= _MAX_LINE:
        return value
    raise ValueError


def _name_of(head: dict[str, Any]) -> str:
    name = next(iter(head))
    return str(head[name]["name"]) if name == "artifact" else name


def _id_of(head: dict[str, Any]) -> str:
    own = f"{head['frame_id']}/{head['frame_compile_id']}"
    within = head.get("compiled_autograd_id")
    return own if within is None else f"!{within}/{own}"


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
    if (match := _GUARD.match(text.strip()[:_MAX_GUARD])) is None:
        return None
    first, _, rest = match["text"].partition("\n")
    condition = re.split(r"\s{2,}# ", first, maxsplit=1)[0].strip()
    hint = _HINTED.search(first)
    expected = actual = None
    if (values := _MISMATCH.match(condition) or _EQUAL.match(condition)) is not None:
        condition, expected = values["what"], values["expected"]
        actual = values.groupdict().get("actual")
    return FailedGuard(match["of"], condition, expected, actual, _innermost(rest), hint[1] if hint else "")


_READERS: Final[dict[str, Callable[[_Collected, dict[str, Any], bytes], None]]] = {
    "str": lambda collected, head, _: collected.add_file(head),
    "dynamo_start": lambda collected, head, _: collected.add_start(head),
    "compilation_metrics": lambda collected, head, _: collected.add_compilation(head),
    "dynamo_graph_break_reason": lambda collected, head, payload: collected.add_break(
        _id_of(head), payload.decode(errors="replace")
    ),
    "recompile_reasons": lambda collected, head, payload: collected.add_recompilation(_id_of(head), payload),
    "dynamo_output_graph": lambda collected, head, payload: collected.add_traced(_id_of(head), payload),
    "before_pre_grad_graph": lambda collected, head, payload: collected.add_traced(_id_of(head), payload),
    "inductor_post_grad_graph": lambda collected, head, payload: collected.add_lowered(_id_of(head), payload),
    "inductor_output_code": lambda collected, head, payload: collected.add_code(_id_of(head), payload),
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
