"""Rules on several devices: data that move exposed, in small messages or needlessly, and devices that take turns."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range
from opscope.analysis.advice.rule import (
    RuleDescription,
    count_of,
    derived,
    general,
    measured,
    nanoseconds,
    of_bytes,
    percent,
    share_of,
    span,
    states,
)
from opscope.analysis.costs.limits import BETWEEN_DEVICES
from opscope.analysis.structure.api_masks import any_name, names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of, nesting_of
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.base.text import lazy_pattern
from opscope.base.units import format_bytes, format_count, format_ns
from opscope.documents.findings import Fact, Rule, Source, Where
from opscope.knowledge.collectives import Collective, collective_of
from opscope.knowledge.kernels.kinds import communicates

_STEPS_THAT_TELL: Final = 3
_MANY: Final = 16  # messages a step
_SMALL_BYTES: Final = 1 << 20  # nccl-tests: from a few MiB on, messages reach the speed of the links
_SHORT_NS: Final = 30_000  # the slowest links in use, 200 Gbit/s or 16 lanes of PCIe 4, move less than 1 MiB in it
_SLOW: Final = 3.0  # times as long as usual: no message varies that much by itself
_CLAIM: Final = frozenset({"communication"})
_MOSTLY: Final = 0.5  # of the busiest device's idle time: the least that lies beside work of others
_TURNS: Final = 0.2  # of the other devices' work: the most that lies beside work of the busiest, if they take turns
_IN_TURNS: Final = (
    "cut the batch into micro-batches, so that all stages work at once (torch.distributed.pipelining), or keep the "
    "model on one device where it fits"
)


@states(
    RuleDescription(
        Rule.DEVICES_TAKE_TURNS,
        f"idle time of the busiest device of which {percent(_MOSTLY)} and more lies beside other devices' work",
        "0 to all of it",
        "there is one device, or they work at once",
    ),
)
def devices_take_turns(context: Context) -> Iterator[Draft]:
    """Find devices that wait for each other; those of a split model take turns, one batch at a time."""
    own, others = context.own_work, context.work_of_others
    if not others.length:
        return
    idle = context.waits.idle.pieces
    waiting = idle.within(others)
    time = waiting.length / context.steps
    if time < LEAST_SHARE * context.step_ns or waiting.length < _MOSTLY * idle.length:
        return
    count, ours = len(context.evidence.devices), context.device.device
    in_turns = others.within(own).length <= _TURNS * others.length
    yield Draft(
        rule=Rule.DEVICES_TAKE_TURNS,
        title=f"{count} devices {'take turns' if in_turns else 'wait for each other'}: for {format_ns(time)} "
        f"{context.words.of} others work and device {ours} does not",
        where=Where(),
        saving=Range(0.0, time).within(context.step_ns),
        derivation="the idle time of the busiest device in which others work (high)",
        evidence=(
            measured(
                share_of(waiting.length, idle.length), " of its idle time lies beside their work", source=Source.IDLE
            ),
            derived(
                share_of(others.within(own).length, others.length),
                " of their work lies beside its own",
                source=Source.STEP,
            ),
        ),
        todo="keep all devices busy at once",
        action=_IN_TURNS if in_turns else "share the work out more evenly between the devices",
        wrong_if="each stage needs the whole batch of the one before, and there is only one batch",
        claims=context.claims_of_pieces(context.beside_others_work),
        pieces=np.flatnonzero(context.beside_others_work),
    )


class _Messages(Struct, frozen=True):
    """The kernels of a step's work that communicate: their rows, sizes in bytes (-1 where unknown) and collectives."""

    rows: Ints
    size: Ints
    duration: Ints
    kind: list[Collective | None]

    @classmethod
    def of(cls, context: Context) -> "_Messages":
        activities = context.trace.activities
        rows = context.work[names_that(activities, communicates)[context.work]]
        operators = context.links.activity_operator[rows]
        sizes = activities["bytes"].gather(rows).fill_null(-1).to_numpy().copy()
        # -1, no operator, picks the appended -1: an unknown size.
        of_operator = np.append(context.trace.operators["message_bytes"].fill_null(-1).to_numpy(), -1)
        # One operator with several kernels sends its message once, in parts.
        used, count = np.unique(operators, return_counts=True)
        alone = np.isin(operators, used[count == 1])
        sizes = np.where((sizes < 0) & alone, of_operator[operators], sizes)
        names, recorded = (activities[column].gather(rows).cast(pl.String) for column in ("name", "collective"))
        ranges = _ranges_of(context, rows)
        # What the record itself says counts first: NCCL does all-to-all with the kernel that sends and receives.
        kinds = [
            collective_of(own or "") or collective_of(f"{name} {around or ''}")
            for own, name, around in zip(recorded, names, ranges, strict=True)
        ]
        return cls(rows, sizes, column(activities, "duration_ns")[rows], kinds)

    def main(self) -> Collective | None:
        """Return the collective that takes most of the time."""
        time: dict[Collective | None, int] = {}
        for kind, duration in zip(self.kind, self.duration.tolist(), strict=True):
            time[kind] = time.get(kind, 0) + duration
        return max(time, key=lambda kind: time[kind], default=None)

    def largest(self) -> Iterator[Fact]:
        """Yield how fast the largest messages move; nothing where no size is known."""
        if not (self.size > 0).any():
            return
        most = int(self.size.max())
        took = float(np.median(self.duration[self.size == most]))
        # Bytes per nanosecond are GB/s.
        speed = f"{most / max(took, 1.0):,.1f} GB/s"
        yield measured(
            "the largest messages hold ",
            of_bytes(most),
            " and take ",
            nanoseconds(took),
            f" in the median, {speed}",
            source=Source.ACTIVITIES,
        )


def _ranges_of(context: Context, rows: Ints) -> list[str | None]:
    """Return the innermost named range around each activity's launch; PyTorch names its own like nccl:all_reduce."""
    launch, launches = context.links.activity_launch[rows], context.trace.launches
    ranges = context.trace.annotations
    if not launches.height or not ranges.height:
        return [None] * len(rows)
    thread, start = column(launches, "thread")[launch], column(launches, "start_ns")[launch]
    around = np.where(launch >= 0, nesting_of(ranges).innermost_at(thread, start), -1)
    return [None if row < 0 else str(ranges["name"][row]) for row in around.tolist()]


@states(
    RuleDescription(
        Rule.EXPOSED_COMMUNICATION,
        "communication beside which nothing is computed",
        f"0 to all of it, but for what calls take beyond {_SLOW:.0f} times what such calls usually take: then other "
        "ranks are "
        "late",
    ),
)
def exposed_communication(context: Context) -> Iterator[Draft]:
    """Find data that move between devices while nothing is computed."""
    time = context.device.exposed_communication_ns / context.steps
    if time < LEAST_SHARE * context.step_ns:
        return
    rows = [row for row in context.rows if row.reason == BETWEEN_DEVICES]
    # Waiting for late ranks may lie beside other work; only the exposed time can be subtracted.
    late = min(_late(context) / context.steps, time)
    waiting = f" ({format_ns(late)} of it waiting for other ranks)" if late >= LEAST_SHARE * context.step_ns else ""
    messages = _Messages.of(context)
    yield Draft(
        rule=Rule.EXPOSED_COMMUNICATION,
        title=f"Ranks exchange data or wait for each other for {format_ns(time)} {context.words.of}{waiting}, and "
              "nothing is computed meanwhile",
        where=context.where_of_row(max(rows, key=lambda row: row.device_ns)) if rows else Where(),
        saving=Range(0.0, time - late).within(context.step_ns),
        derivation="all of that time, if it overlapped with work (high), but for what calls take beyond three times "
        "what such calls usually take: then other ranks are late",
        evidence=(measured(share_of(time, context.step_ns), f' {context.words.of_the}', source=Source.STEP),
                  *messages.largest(),
                  general("a rank that waits for the others spends that time in the same kernels")),
        todo="overlap communication",
        action=_overlap(context, messages.main()),
        wrong_if="the ranks wait for a slower one",
        claims=_CLAIM,
    )  # fmt: skip


@states(
    RuleDescription(
        Rule.LATE_RANK,
        f"collectives that take more than {_SLOW:.0f} times as long as such ones usually do: of as large messages, "
        "of the same "
        "inputs, or at the same place of other steps",
        "0 to all that they take beyond that",
        "all calls are slow, or nothing tells which are alike",
    ),
)
def late_rank(context: Context) -> Iterator[Draft]:
    """Find collectives that take far longer than similar ones: data move only once the last rank has joined."""
    exposed = context.device.exposed_communication_ns / context.steps
    late = min(_late(context) / context.steps, exposed)
    if late < LEAST_SHARE * context.step_ns:
        return
    calls = _usual(context).filter(pl.col("duration_ns") > _SLOW * pl.col("usual"))
    slowest = calls.sort("duration_ns", descending=True).row(0, named=True)
    yield Draft(
        rule=Rule.LATE_RANK,
        title=f"This rank waits {format_ns(late)} {context.words.of} for other ranks to join it in a collective",
        where=Where(kernel=str(slowest["name"])),
        saving=Range(0.0, late).within(context.step_ns),
        derivation="what these calls take beyond three times what such calls usually take (high)",
        evidence=(
            measured(
                count_of(calls.height),
                " of ",
                count_of(len(_Messages.of(context).rows)),
                " calls; the slowest takes ",
                nanoseconds(slowest["duration_ns"]),
                ", where calls like it take ",
                nanoseconds(slowest["usual"]),
                source=Source.ACTIVITIES,
            ),
            general("a collective ends when all ranks have joined it"),
        ),
        todo="profile the other ranks too",
        action="profile the other ranks too, the same steps, and see what the late one does meanwhile: a larger batch, "
        "loading data, a log or a checkpoint",
        wrong_if="the links are shared with other jobs and were busy then",
        claims=_CLAIM,
    )


# All-to-all has several uses, which names tell: of operators, ranges, kernels and frames.
_ALL_TO_ALL: Final = (
    (
        lazy_pattern(r"(?i:embedding_?bag|torchrec|fbgemm|sparse_?dist|dlrm|KeyedJagged)"),
        "send the embeddings of the next batch while the dense layers of this one compute (TorchRec: "
        "TrainPipelineSparseDist), or send them in fewer bits",
    ),
    (
        lazy_pattern(r"(?i:(?<![a-z])(moe|experts?)(?![a-z])|deep_?ep|topk_?gating|EpDispatch)"),
        "send the tokens of one micro-batch while another one's experts compute, or keep more of them on their own "
        "node",
    ),
    (
        lazy_pattern(r"(?i:ulysses|sequence_?parallel|context_?parallel|SeqAllToAll)"),
        "send the heads of one tensor while the next one is computed, or shard the sequence over fewer devices",
    ),
)
_ANY_ALL_TO_ALL: Final = (
    "send one part of the data while another one is computed (experts' tokens, embeddings), or send fewer bytes "
    "(bf16, fewer devices)"
)
_BUBBLE: Final = "cut the batch into more micro-batches, so that stages wait less for each other (the bubble)"
_ONE_SHOT: Final = lazy_pattern(r"(?i:one_?shot|cross_device_reduce|two_?shot|multimem_all_?reduce)")
_SHARDED: Final = (
    "prefetch the next parameters while layers compute (FSDP: forward_prefetch=True, backward_prefetch), or shard in "
    "larger units"
)
_DATA_PARALLEL: Final = (
    "overlap it with the backward pass (DistributedDataParallel's buckets: bucket_cap_mb, "
    "gradient_as_bucket_view=True), or communicate less (no_sync() while gradients accumulate, bf16 compression)"
)
_TENSOR_PARALLEL: Final = "fewer devices for a batch of this size, or an all-reduce in one kernel with what follows"


def _overlap(context: Context, kind: Collective | None) -> str:
    """Return advice on how to hide or reduce communication, as far as names show which parallelism is used."""
    trains = context.trains
    if kind is Collective.ALL_TO_ALL:
        return next((advice for names, advice in _ALL_TO_ALL if context.has_name(names.search)), _ANY_ALL_TO_ALL)
    if kind is Collective.SEND:
        return _BUBBLE
    if kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) and trains and _names(context, "FullyShardedDataPar"):
        return _SHARDED
    if trains and _names(context, "DistributedDataParallel"):
        return _DATA_PARALLEL
    if kind is Collective.ALL_REDUCE and not trains:
        runs = any_name(context.trace.activities, lambda name: _ONE_SHOT.search(name) is not None)
        return _TENSOR_PARALLEL + (" (fused)" if runs else " (fused, one-shot)")
    return "overlap it with computation on another stream, or communicate less"


def _names(context: Context, part: str) -> bool:
    """Tell whether the name of any operator or range contains a text."""
    tables = (context.trace.operators, context.trace.annotations)
    return any(any_name(table, lambda text: part in text) for table in tables)


@states(
    RuleDescription(
        Rule.SMALL_COLLECTIVES,
        f"{_MANY} and more messages a step of less than {_SMALL_BYTES >> 20} MiB (where sizes were not recorded: "
        "of less "
        f"than {span(_SHORT_NS)}), beside which nothing is computed",
        "0 to all but one message's share, less waiting for late ranks",
    ),
)
def small_collectives(context: Context) -> Iterator[Draft]:
    """Find many messages that are too small for the links: each takes as long as its start, whatever its size."""
    messages = _Messages.of(context)
    names = context.trace.activities["name"]
    small = np.where(messages.size >= 0, messages.size < _SMALL_BYTES, messages.duration < _SHORT_NS)
    count = float(small.sum()) / context.steps
    if count < _MANY:
        return
    exposed = _exposed(context, messages.rows[small])
    late = min(_late(context) / context.steps, exposed)
    if exposed - late < LEAST_SHARE * context.step_ns:
        return
    sizes = messages.size[small & (messages.size >= 0)]
    held = f" of {format_bytes(float(np.median(sizes)))} in the median" if len(sizes) else ""
    took = nanoseconds(float(np.median(messages.duration[small])))
    yield Draft(
        rule=Rule.SMALL_COLLECTIVES,
        title=f"{format_count(round(count))} small messages {context.words.each}{held} take {format_ns(exposed)}, "
        "and nothing is "
        "computed meanwhile",
        where=Where(kernel=str(names[int(messages.rows[small][0])])),
        # All in one message still cost one message.
        saving=Range(0.0, (exposed - late) * (1 - 1 / count)).within(context.step_ns),
        derivation="that time but for one message's share, if all went in one (high), less waiting for late ranks",
        evidence=(
            measured("the median one takes ", took, source=Source.ACTIVITIES),
            measured("their sizes were recorded", source=Source.ACTIVITIES)
            if len(sizes)
            else derived(
                f"their sizes were not recorded; in {span(_SHORT_NS)} no link in use moves much",
                source=Source.ACTIVITIES,
            ),
            *messages.largest(),
        ),
        todo="put small messages into one",
        action="put several tensors into one message: gradients in buckets (DistributedDataParallel does), else one "
        "flat buffer",
        wrong_if="each is needed before the next can be made",
        claims=_CLAIM,
    )


@states(
    RuleDescription(
        Rule.BUFFER_BROADCAST,
        "broadcasts within DistributedDataParallel's forward pass",
        "0 to all of it",
    ),
)
def buffer_broadcast(context: Context) -> Iterator[Draft]:
    """Find DistributedDataParallel sending its buffers in each forward pass."""
    messages = _Messages.of(context)
    sends = np.array([kind is Collective.BROADCAST for kind in messages.kind], np.bool_)
    rows = messages.rows[sends & _within_ddp_forward(context, messages.rows)]
    time = _exposed(context, rows)
    if len(rows) < context.steps or time < LEAST_SHARE * context.step_ns:
        return
    yield Draft(
        rule=Rule.BUFFER_BROADCAST,
        title=f"DistributedDataParallel sends its buffers in each forward pass, {format_ns(time)} {context.words.of}",
        where=Where(annotation="DistributedDataParallel.forward"),
        saving=Range(0.0, time).within(context.step_ns),
        derivation="the time of these broadcasts beside which nothing is computed (high)",
        evidence=(
            measured(
                count_of(len(rows) / context.steps, 1),
                f" broadcasts {context.words.each} within its forward pass",
                source=Source.ACTIVITIES,
            ),
        ),
        todo="DDP(broadcast_buffers=False)",
        action="DistributedDataParallel(model, broadcast_buffers=False)",
        wrong_if="ranks must use the same running statistics (BatchNorm) in training",
        claims=_CLAIM,
    )


def _within_ddp_forward(context: Context, rows: Ints) -> Bools:
    """Tell per activity whether it was launched within DistributedDataParallel's forward pass."""
    ranges = context.trace.annotations
    own = np.flatnonzero(names_that(ranges, lambda name: name == "DistributedDataParallel.forward"))
    spans = Intervals.union_of(column(ranges, "start_ns")[own], end_of(ranges)[own])
    launch = context.links.activity_launch[rows]
    start = np.append(column(context.trace.launches, "start_ns"), 0)[launch]
    # `holds` takes intervals: a launch stands for the nanosecond in which it begins.
    result: Bools = (launch >= 0) & spans.holds(start, start + 1)
    return result


def _exposed(context: Context, rows: Ints) -> float:
    """Return how long some activities run per step while no other work of the device does, in nanoseconds."""
    if not len(rows):
        return 0.0
    activities = context.trace.activities
    start, end = column(activities, "start_ns"), end_of(activities)
    others = np.setdiff1d(context.work, rows)
    spans = Intervals.union_of(start[rows], end[rows])
    within = spans.within(Intervals.union_of(start[others], end[others])).length
    return (spans.length - within) / context.steps


def _late(context: Context) -> float:
    """Return how long communication takes beyond `_SLOW` times the usual, in nanoseconds of the whole recording."""
    beyond = (pl.col("duration_ns") - _SLOW * pl.col("usual")).clip(0).sum()
    return float(_usual(context).select(beyond).item() or 0.0)


def _usual(context: Context) -> pl.DataFrame:
    """Return ``name``, ``duration_ns`` and the ``usual`` duration of each kernel that communicates.

    ``usual`` is the median of calls with messages of the same size, or with the same inputs; where neither is known or
    too few are alike, of those at the same place in other steps: a large message that repeats is not a wait for a late
    rank. Null where nothing tells.
    """
    messages = _Messages.of(context)
    result = context.trace.activities.select("name", "start_ns", "duration_ns")[messages.rows].with_columns(
        bytes=pl.Series(messages.size), inputs=context.inputs_of(messages.rows)
    )
    known = pl.when(pl.col("bytes") >= 0).then(pl.col("bytes").cast(pl.String))
    count, number = pl.len().over("name"), pl.int_range(pl.len()).over("name")
    several = context.steps >= _STEPS_THAT_TELL
    # The place of a call in its step is only known where every step has as many calls of the name.
    place = pl.when((count % context.steps == 0) & several).then(number % (count // context.steps))
    result = result.sort("start_ns").with_columns(size=pl.coalesce(known, pl.col("inputs")), place=place)
    alike = pl.len().over("name", "size") >= _STEPS_THAT_TELL
    by_size = pl.when(pl.col("size").is_not_null() & alike).then(pl.col("duration_ns").median().over("name", "size"))
    by_place = pl.when(pl.col("place").is_not_null()).then(pl.col("duration_ns").median().over("name", "place"))
    return result.select("name", "duration_ns", usual=pl.coalesce(by_size, by_place))
