"""What is kept of one rank: so little that a job's ranks can be looked at together, however long their traces are."""

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.origin import can_be_rank
from opscope.base.errors import BadInputError
from opscope.base.text import lazy_pattern
from opscope.documents.verdict import IdleCause

# The version of what is kept: a summary of another one is made again.
VERSION: Final = 5

_DIGEST_BYTES: Final = 16
_LATEST_NS: Final = 1 << 62
_LONGEST_NS: Final = 1 << 55  # a year: sums over steps and ranks stay within 64 bits
_MOST_COUNTED: Final = 1 << 48
_MOMENTS: Final = ("begin_ns", "start_ns", "end_ns")
_RANK_IN_NAME: Final = lazy_pattern(r"(?:^|[^a-z]|global[-_]?)rank[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)
# As SGLang names its traces (1764131213.5-TP-3.trace.json.gz): the place in a group of tensor parallelism, which is the
# rank where the name has no other place.
_PLACE_IN_NAME: Final = lazy_pattern(r"(?:^|[-_.])(TP|DP|PP|EP|CP)[-_](\d{1,9})(?!\d)")
_TIMES: Final = (
    *("begin_ns", "host_ns", "host_waits_ns", "host_loading_ns", "device_ns"),
    *("compute_ns", "communication_ns", "hidden_communication_ns", "memcpy_ns"),
)
IDLE_COLUMNS: Final = {cause: f"idle_{cause.name.lower()}_ns" for cause in IdleCause}
# One row per step, in order; ``step`` is the profiler's number, null where no steps are marked. ``communication_ns`` is
# time in which the device communicates and does nothing else, ``hidden_communication_ns`` in which it computes as well;
# ``host_loading_ns`` is time in which the host fetched batches.
STEPS: Final[dict[str, type[pl.DataType]]] = {
    "row": pl.Int32,
    "step": pl.Int64,
    **dict.fromkeys((*_TIMES, *IDLE_COLUMNS.values()), pl.Int64),
}
# One row per collective or message that ran on the device, in the order in which the host issued them.
COMMUNICATIONS: Final[dict[str, type[pl.DataType]]] = {
    "row": pl.Int32,
    "collective": pl.Categorical,
    "group": pl.Categorical,
    "description": pl.Categorical,
    "members": pl.Categorical,
    "size": pl.Int32,
    "sequence": pl.Int64,
    "ordinal": pl.Int32,
    "peer": pl.Categorical,
    "type": pl.Categorical,
    "elements_in": pl.Int64,
    "elements_out": pl.Int64,
    "is_uneven": pl.Boolean,
    "bytes": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "exposed_ns": pl.Int64,
}
# When the device communicated and did nothing else, by the step in which that was, whatever step launched it; ``place``
# is the row of `COMMUNICATIONS` that it did so for. Where several ran at once, it is the first of them.
EXPOSED: Final[dict[str, type[pl.DataType]]] = {
    "row": pl.Int32,
    "place": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
# One row per step in which the device ran it, whatever step launched it, and kind of work: how often and how long.
WORK: Final[dict[str, type[pl.DataType]]] = {
    "row": pl.Int32,
    "operator": pl.String,
    "kernel": pl.String,
    "grid": pl.String,
    "dims": pl.String,
    "calls": pl.Int64,
    "total_ns": pl.Int64,
}
# The longest gaps of the device within steps, and where the host was.
GAPS: Final[dict[str, type[pl.DataType]]] = {
    "row": pl.Int32,
    "cause": pl.String,
    "duration_ns": pl.Int64,
    "operator": pl.String,
    "annotation": pl.String,
    "module": pl.String,
    "python": pl.String,
    "call": pl.String,
}
# The longest stretches of each step in which no thread of the host ran an operator or a call, and where it was.
PAUSES: Final[dict[str, type[pl.DataType]]] = {
    "row": pl.Int32,
    "duration_ns": pl.Int64,
    "annotation": pl.String,
    "module": pl.String,
    "python": pl.String,
}
# Where the host waited for the device: the operator around such calls.
WAITS: Final[dict[str, type[pl.DataType]]] = {"row": pl.Int32, "operator": pl.String, "calls": pl.Int64}
_TABLES: Final = {
    "steps": STEPS,
    "communications": COMMUNICATIONS,
    "exposed": EXPOSED,
    "work": WORK,
    "gaps": GAPS,
    "pauses": PAUSES,
    "waits": WAITS,
}


class RankFacts(Struct, frozen=True, kw_only=True):
    """What a rank's trace says of itself.

    Attributes:
        path: the file.
        rank: the rank that its header says; null where it says none.
        world: how many ranks there are; null where the header does not say it.
        host: the host; null where the header does not say it.
        device: the device's name; null where nothing ran on one.
        untrue: what the header says of rank and world that cannot be; null where it says no such thing.
        damage: what is wrong with the file; null where nothing is.
        host_collectives: collectives that the host takes part in itself, as those of gloo.
        impossible: records that were left out, as their times cannot be true.
        unlabelled: kernels of collectives of which nothing is known, as those launched before the recording.
    """

    path: str
    rank: int | None = None
    world: int | None = None
    host: str | None = None
    device: str | None = None
    untrue: str | None = None
    damage: str | None = None
    unlabelled: int = 0
    impossible: int = 0
    host_collectives: int = 0

    @property
    def number(self) -> int | None:
        """The rank, by the header or else by the name of the file or its folder; None where these do not say it."""
        if self.rank is not None:
            return self.rank
        path = Path(self.path)
        match = _RANK_IN_NAME.search(path.name) or _RANK_IN_NAME.search(path.parent.name)
        if match is None and [kind for kind, _ in _PLACE_IN_NAME.findall(path.name)] == ["TP"]:
            match = _PLACE_IN_NAME.search(path.name)
        number = int(match[match.lastindex or 1]) if match else None
        return number if can_be_rank(number, None) else None


class RankSummary:
    """What is kept of one rank: tables with the columns of this module; times are of the rank's own clock.

    A table is unpacked when it is first asked for: of most ranks only steps and communications are.

    Attributes:
        facts: what its trace says of itself.
    """

    def __init__(self, facts: RankFacts, tables: Mapping[str, pl.DataFrame | bytes]) -> None:
        self.facts = facts
        self._tables = dict(tables)

    @classmethod
    def empty(cls) -> "RankSummary":
        """Return the summary of a trace without events."""
        return cls(RankFacts(path=""), {name: pl.DataFrame(schema=columns) for name, columns in _TABLES.items()})

    def changed(self, facts: RankFacts | None = None, **tables: pl.DataFrame) -> "RankSummary":
        """Return the summary with other facts, or some other tables."""
        return RankSummary(facts or self.facts, {**self._tables, **tables})

    @property
    def steps(self) -> pl.DataFrame:
        """One row per step."""
        return self._table("steps")

    @property
    def communications(self) -> pl.DataFrame:
        """One row per collective or message."""
        return self._table("communications")

    @property
    def exposed(self) -> pl.DataFrame:
        """When the device only communicated."""
        return self._table("exposed")

    @property
    def work(self) -> pl.DataFrame:
        """One row per step and kind of work."""
        return self._table("work")

    @property
    def gaps(self) -> pl.DataFrame:
        """The longest gaps of the device."""
        return self._table("gaps")

    @property
    def pauses(self) -> pl.DataFrame:
        """The longest pauses of the host."""
        return self._table("pauses")

    @property
    def waits(self) -> pl.DataFrame:
        """Where the host waited for the device."""
        return self._table("waits")

    def _table(self, name: str) -> pl.DataFrame:
        result = self._tables[name]
        if isinstance(result, bytes):
            result = self._tables[name] = _unpacked(result, _TABLES[name])
        return result

    def to_bytes(self) -> bytes:
        """Return the summary as bytes, packed."""
        packed = {name: one if isinstance(one, bytes) else _packed(one) for name, one in self._tables.items()}
        content = msgspec.msgpack.encode(_Kept(VERSION, self.facts, packed))
        return _digest(content) + content

    @classmethod
    def from_bytes(cls, content: bytes) -> "RankSummary":
        """Read a summary back.

        Raises:
            BadInputError: the bytes are none, of another version, or damaged.
        """
        packed = memoryview(content)[_DIGEST_BYTES:]
        if content[:_DIGEST_BYTES] != _digest(packed):
            raise BadInputError("the summary of a rank is damaged")
        try:
            kept = msgspec.msgpack.decode(packed, type=_Kept)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadInputError(f"no summary of a rank: {error}") from error
        if kept.version != VERSION or kept.tables.keys() != _TABLES.keys():
            raise BadInputError(f"a summary of version {kept.version}, and not {VERSION}")
        return cls(kept.facts, kept.tables)

    def check(self) -> None:
        """Check that what was read back can be of a trace: a digest only tells that it is what somebody wrote.

        Raises:
            BadInputError: it cannot.
        """
        facts, steps = self.facts, self.steps.height
        counts = (facts.unlabelled, facts.impossible, facts.host_collectives)
        if not can_be_rank(facts.rank, facts.world) or not all(0 <= count < _MOST_COUNTED for count in counts):
            raise BadInputError("the summary of a rank says what no trace does")
        if not self.steps["row"].equals(pl.Series("row", range(steps), dtype=pl.Int32)):
            raise BadInputError("the summary of a rank has steps out of order")
        for name, columns in _TABLES.items():
            one = self._tables[name]  # not kept unpacked: few are looked at
            table = _unpacked(one, columns) if isinstance(one, bytes) else one
            if name == "exposed" and not self._is_within(table):
                raise BadInputError("the summary of a rank communicates when no trace does")
            if not table.select(sound=pl.all_horizontal(_sound(columns, steps)))["sound"].all():
                raise BadInputError(f"the summary of a rank has {name} that no trace has")

    def _is_within(self, exposed: pl.DataFrame) -> bool:
        """Tell whether stretches of communication have an end behind their beginning, and a row that they are of."""
        length, place = pl.col("end_ns") - pl.col("start_ns"), pl.col("place")
        sound = length.is_between(0, _LONGEST_NS) & place.is_between(0, self.communications.height - 1)
        return bool(exposed.select(sound=sound.fill_null(value=False))["sound"].all())


class _Kept(Struct, frozen=True):
    version: int
    facts: RankFacts
    tables: dict[str, bytes]


def _digest(content: bytes | memoryview) -> bytes:
    import hashlib  # loads OpenSSL

    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _sound(columns: Mapping[str, type[pl.DataType]], steps: int) -> Iterator[pl.Expr]:
    """Yield what holds in every row of a table that was made from a trace."""
    for name, kind in columns.items():
        if not kind.is_integer():
            continue
        value = pl.col(name)
        if name == "row":
            yield value.is_between(0, steps - 1).fill_null(value=False)
        elif name in _MOMENTS:
            yield value.is_between(-_LATEST_NS, _LATEST_NS).fill_null(value=False)
        elif name.endswith("_ns"):
            yield value.is_between(0, _LONGEST_NS).fill_null(value=False)
        elif name in ("ordinal", "calls", "place"):
            yield value.is_between(0, _MOST_COUNTED).fill_null(value=False)
        else:  # what the trace's author wrote
            yield value.is_between(-_LATEST_NS, _LATEST_NS).fill_null(value=True)


def _packed(table: pl.DataFrame) -> bytes:
    target = io.BytesIO()
    table.write_ipc_stream(target, compression="zstd")  # a stream, which is read in an eighth of a file's time
    return target.getvalue()


def _unpacked(content: bytes, schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    try:
        table = pl.read_ipc_stream(io.BytesIO(content))
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise BadInputError(f"the summary of a rank is damaged: {error}") from error
    if {name: one.base_type() for name, one in table.schema.items()} != schema:
        raise BadInputError("the summary of a rank has other columns")
    return table
