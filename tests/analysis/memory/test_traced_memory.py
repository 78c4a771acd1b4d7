"""Memory by a trace's own records, and by a snapshot that is joined with the trace of the same steps."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.analyzed import Analysis
from opscope.analysis.analyzed import analyze as opscope_analysis
from opscope.analysis.measured import Measured
from opscope.analysis.memory.answered import Answered, answered
from opscope.analysis.memory.traced import Recorded, joined_cases, recorded_in
from opscope.documents.memory import MemoryDocument
from opscope.readers.reading import read
from opscope.readers.snapshot import read_snapshot
from opscope.trace.model import Trace
from tests.kineto import KinetoTrace
from tests.snapshots import IN_MODULE, MIB, SEGMENTS_AT, MadeSnapshot, frame

Analyze = Callable[[KinetoTrace], Analysis]
DATA = Path(__file__).parent.parent.parent / "data"
CUDA = 1
STACKS = "gpt2_train_amp_stacks"
MODEL = [*IN_MODULE, frame("/home/user/train.py", 5, "forward")]


def memory_event(
    trace: KinetoTrace,
    time: int,
    size: int,
    totals: tuple[int, int | None],
    address: int,
    *,
    tid: int = 100,
    **more: Any,
) -> None:
    """Add an allocation, or a release; ``totals`` are allocated and reserved."""
    args = {"Device Type": CUDA, "Device Id": 0, "Bytes": size, "Total Allocated": totals[0], "Addr": address}
    if totals[1] is not None:
        args["Total Reserved"] = totals[1]
    event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": tid, "ts": time / 1000}
    trace.events.append({**event, "args": {**args, **more}})


def said_of(analysis: Analysis) -> Answered | None:
    return Measured(analysis).memory


def document_of(analysis: Analysis) -> MemoryDocument:
    found = said_of(analysis)
    assert found is not None
    return found.document


def training(*, losing: int | None = None) -> KinetoTrace:
    """Two steps: 1,024 bytes of a forward pass live until the backward pass, which makes 512 bytes of gradients.

    4,096 bytes were there before.
    """
    trace = KinetoTrace()
    total, now, row = 4_096, 0, 0

    def allocate(size: int, address: int, time: int, tid: int = 100) -> None:
        nonlocal total, row
        total += size
        if row != losing:
            memory_event(trace, time, size, (total, 20_480), address, tid=tid)
        row += 1

    for number in range(2):
        trace.step(number + 1, now, 90_000)
        trace.operator("aten::linear", now + 1_000, 9_000, **{"Sequence number": 7 + number})
        trace.operator("aten::addmm", now + 2_000, 5_000)
        allocate(1_024, 0xA000, now + 3_000)
        trace.operator(
            "autograd::engine::evaluate_function: AddmmBackward0", now + 20_000, 20_000, tid=200,
            **{"Sequence number": 7 + number, "Fwd thread id": 1},
        )  # fmt: skip
        trace.operator("aten::mm", now + 22_000, 5_000, tid=200)
        allocate(512, 0xB000, now + 23_000, 200)
        allocate(-1_024, 0xA000, now + 39_000, 200)
        trace.annotation("Optimizer.step#SGD.step", now + 50_000, 10_000)
        trace.annotation("Optimizer.zero_grad#SGD.zero_grad", now + 70_000, 10_000)
        allocate(-512, 0xB000, now + 72_000)
        now += 100_000
    return trace


def test_owners_follow_from_operators_autograd_and_ranges(analyzed: Analyze) -> None:
    found = document_of(analyzed(training()))
    (device,) = found.devices
    assert (device.device, device.peak_bytes, device.peak_reserved_bytes) == (0, 4_096 + 1_024 + 512, 20_480)
    assert (device.allocated_bytes, device.fragmentation_bytes, device.peak_step) == (4_096, None, 0)
    assert device.peak_phase == "in the backward pass"
    assert {str(one.owner): one.bytes for one in device.owners if one.bytes} == {
        "unknown": 4_096,
        "activations": 1_024,
        "gradients": 512,
    }
    assert {(one.operator, one.bytes) for one in device.peak} == {
        (None, 4_096),
        ("aten::addmm", 1_024),
        ("aten::mm", 512),
    }
    assert found.sentence == "peak memory 5.500 KiB on GPU 0"


def test_a_lost_record_is_said_and_the_peak_stays_the_allocators(analyzed: Analyze) -> None:
    (device,) = document_of(analyzed(training(losing=2))).devices
    assert device.peak_bytes == 4_096 + 1_024 + 512
    assert any("do not add up" in note for note in device.notes)
    assert not document_of(analyzed(training(losing=2))).findings


@pytest.mark.parametrize("key", ["Total Allocated", "Total Reserved", "Addr"])
def test_nothing_is_said_without_totals_or_addresses(analyzed: Analyze, key: str) -> None:
    trace = training()
    for event in trace.events:
        event["args"].pop(key, None)
    assert said_of(analyzed(trace)) is None


def test_a_recorded_trace_has_the_peak_of_a_plain_simulation(recorded: Callable[[str], Trace]) -> None:
    found = document_of(opscope_analysis(recorded(STACKS)))
    (device,) = found.devices
    raw = json.loads(gzip.decompress((DATA / "traces" / f"{STACKS}.json.gz").read_bytes()))["traceEvents"]
    mine = [e["args"] for e in raw if e.get("name") == "[memory]" and e["args"]["Device Type"] == CUDA]
    assert device.peak_bytes == max(args["Total Allocated"] for args in mine)
    assert device.peak_reserved_bytes == max(args["Total Reserved"] for args in mine)
    assert sum(one.bytes for one in device.owners) == sum(one.bytes for one in device.peak) == device.peak_bytes
    logits = 1 * 2048 * 50257 * 4  # as the shapes in the trace say
    loss = next(one for one in found.findings if one.rule == "vocabulary_loss")
    assert loss.where == "loss_utils.py:32 (fixed_cross_entropy)"
    layers = next(one for one in found.findings if one.rule == "checkpoint")
    assert layers.title.startswith("6 blocks keep ")  # the model has six layers
    assert {one.bytes for one in device.peak if one.operator == "aten::_log_softmax"} == {_rounded(logits)}


def _rounded(size: int) -> int:
    return -(-size // 512) * 512


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), min_size=1, max_size=40), st.integers(0, 9))
def test_owners_add_up_to_the_allocators_peak_whatever_happens(moves: list[tuple[int, int]], before: int) -> None:
    trace, held = KinetoTrace(), dict.fromkeys(range(before), 512)  # addresses 0 to 5 may be released without a begin
    total = peak = 512 * before
    trace.operator("aten::mm", 0, 1_000_000)
    for row, (address, units) in enumerate(moves):
        size = -held.pop(address) if address in held else units * 512
        if size > 0:
            held[address] = size
        total += size
        peak = max(peak, total)
        memory_event(trace, 1_000 + row, size, (total, 1 << 20), address)
    (device,) = document_of(opscope_analysis(_read(trace))).devices
    assert device.peak_bytes == peak
    assert sum(one.bytes for one in device.owners) == peak
    assert not any("do not add up" in note for note in device.notes)


def _read(trace: KinetoTrace) -> Trace:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return read(trace.write(Path(folder) / "trace.json"))


# ---------------------------------------------------------------- joined


ZEROED = [frame("/venv/lib/python3.12/site-packages/torch/optim/optimizer.py", 9, "zero_grad")]


def snapshot_of_training(tmp_path: Path, *, warm_up: int = 1) -> Path:
    """Return the snapshot of the steps of `training`, with smaller ones before that are not in the trace."""
    made = MadeSnapshot()
    begin = made.now
    for number in range(warm_up + 2):
        size = 512 if number < warm_up else 1_024
        for at_us, address, of, frames in (
            (3, 0xA000, size, MODEL), (23, 0xB000, 512, None), (39, 0xA000, -size, None), (72, 0xB000, -512, ZEROED),
        ):  # fmt: skip
            made.now = begin + 100 * number + at_us - 10
            if of > 0:
                made.alloc(address, of, frames)
            else:
                made.event("free_completed", address, -of, frames)
    made.segment(
        SEGMENTS_AT, 2 * MIB, [(4_096, 4_096, "active_allocated"), (2 * MIB - 4_096, 0, "inactive")], large=False
    )
    return made.write(tmp_path / "s.pickle")


def joined(tmp_path: Path, analysis: Analysis, **how: int) -> MemoryDocument:
    recorded = Recorded(analysis.trace, analysis.links, analysis.origins, analysis.backward_pass)
    cases, apart = joined_cases(read_snapshot(snapshot_of_training(tmp_path, **how)), recorded)
    assert apart is None
    return answered("s.pickle", cases).document


@pytest.mark.parametrize("warm_up", [0, 1, 3])
def test_a_snapshot_gets_operators_and_lines_of_the_backward_pass(
    tmp_path: Path, analyzed: Analyze, warm_up: int
) -> None:
    # All steps have the same addresses, and what is recorded last is the trace's.
    (device,) = joined(tmp_path, analyzed(training()), warm_up=warm_up).devices
    assert device.peak_bytes == 4_096 + 1_024 + 512
    found = {(one.operator, one.line) for one in device.peak if one.bytes < 4_096}
    line = "train.py:5 (forward)"
    assert found == {("aten::addmm", line), ("aten::mm", line)}


@pytest.mark.parametrize("lost", range(6))
def test_what_one_of_the_two_has_lost_stays_alone(tmp_path: Path, lost: int) -> None:
    """Every operator allocates at one address, as a loop does: times and sizes tell which is which."""
    trace, made, count, at_ns = KinetoTrace(), MadeSnapshot(), 300, 0
    begin = made.now
    for number in range(count):
        size = 512 * (1 + number % 7)
        at_ns += 30_000 + 1_000 * (number * number % 53)
        trace.operator(f"aten::op{number}", at_ns, 9_000)
        if number != 50 * lost:
            memory_event(trace, at_ns + 5_000, size, (size, 1 << 20), 0xA000)
            memory_event(trace, at_ns + 8_000, -size, (0, 1 << 20), 0xA000)
        if number != 50 * lost + 7:
            made.now = begin + at_ns // 1_000 + 5 - 10
            made.alloc(0xA000, size, [*IN_MODULE, frame("/home/user/train.py", number + 1, "forward")])
            made.event("free_completed", 0xA000, size)
    made.segment(SEGMENTS_AT, 2 * MIB, [(2 * MIB, 0, "inactive")], large=False)
    cases, apart = joined_cases(read_snapshot(made.write(tmp_path / "s.pickle")), recorded_in(_read(trace)))
    assert apart is None
    (case,) = cases
    numbers = [case.table.stacks[stack] for stack in case.lives.stack.tolist()]
    right = [one.operator == f"aten::op{int(str(one.line).split(':')[1].split()[0]) - 1}" for one in numbers]
    assert right.count(True) == count - 2
    assert [one.operator for one, is_right in zip(numbers, right, strict=True) if not is_right] == [None]


def test_a_trace_of_other_steps_is_not_joined(tmp_path: Path, analyzed: Analyze) -> None:
    trace = training()
    for event in trace.events:
        if "Addr" in event["args"]:
            event["args"]["Addr"] += 0x100_000
    analysis = analyzed(trace)
    recorded = Recorded(analysis.trace, analysis.links, analysis.origins, analysis.backward_pass)
    cases, apart = joined_cases(read_snapshot(snapshot_of_training(tmp_path)), recorded)
    assert apart == "The trace of these steps could not be joined with the snapshot: operators are unknown."
    assert {one.operator for one in answered("s", cases).document.devices[0].peak} == {None}


def test_a_trace_without_memory_is_not_joined(tmp_path: Path, load: Callable[[KinetoTrace], Trace]) -> None:
    cases, apart = joined_cases(read_snapshot(snapshot_of_training(tmp_path)), recorded_in(load(KinetoTrace())))
    assert apart is not None
    assert answered("s", cases).document.devices[0].peak_bytes == 4_096 + 1_024 + 512


# ---------------------------------------------------------------- under autocast

FLOAT32 = DATA / "memory_float32"
UNDER_AUTOCAST = {"layers": 480_757_248, "attention": 4_269_705_216, "convolutions": 2_199_383_040}  # see its README


def recorded_float32(tmp_path: Path, name: str, edit: Callable[[str], str] = str) -> tuple[MemoryDocument, str | None]:
    trace = tmp_path / f"{name}.json"
    trace.write_text(edit(gzip.decompress((FLOAT32 / f"{name}.json.gz").read_bytes()).decode()))
    cases, apart = joined_cases(read_snapshot(FLOAT32 / f"{name}.pickle.xz"), recorded_in(read(trace)))
    return answered(name, cases).document, apart


def low_precision(document: MemoryDocument) -> list[int]:
    return [one.then_bytes for one in document.findings if one.rule == "low_precision"]


@pytest.mark.parametrize("name", UNDER_AUTOCAST)
def test_what_autocast_leaves_was_measured(tmp_path: Path, name: str) -> None:
    document, apart = recorded_float32(tmp_path, name)
    assert apart is None
    assert low_precision(document) == [pytest.approx(UNDER_AUTOCAST[name], rel=0.02)]
    assert all(one.operator or "activations" not in one.owner for one in document.devices[0].peak)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"float"', '"double"'),
        ('"float"', '"c10::Half"'),
        ('"aten::mm"', "one BFloat16"),  # the program sets types itself
        # Tensor Cores multiply bfloat16 from compute capability 8.0 on.
        ('"computeMajor":9', '"computeMajor":7'),
    ],
)
def test_autocast_is_not_proposed_for_other_types_and_devices(tmp_path: Path, old: str, new: str) -> None:
    def edit(text: str) -> str:
        assert old in text
        if "BFloat16" not in new:
            return text.replace(old, new)
        at = text.index('"float"', text.index('"aten::mm"'))
        return f'{text[:at]}"c10::BFloat16"{text[at + 7 :]}'

    document, _ = recorded_float32(tmp_path, "layers", edit)
    assert document.findings
    assert not low_precision(document)


def test_autocast_is_not_proposed_where_types_were_not_recorded(tmp_path: Path) -> None:
    document, _ = recorded_float32(tmp_path, "layers", lambda text: text.replace('"Input type"', '"Type"'))
    assert document.findings
    assert not low_precision(document)


def chain(*operators: tuple[str, list[list[int]], int]) -> KinetoTrace:
    """Two steps of operators that each keep one result for the backward pass: name, shapes of inputs, bytes."""
    trace, total, now = KinetoTrace(), 1 << 20, 0
    for step in range(2):
        trace.step(step + 1, now, 900_000)
        held = []
        for at, (name, dims, size) in enumerate(operators):
            begin = now + 1_000 + 10_000 * at
            types = ["float" if shape else "Scalar" for shape in dims]
            given: dict[str, Any] = {"Input Dims": dims, "Input type": types, "Concrete Inputs": [""] * len(dims)}
            if name == "aten::cat":
                given = {"Input Dims": [dims, []], "Input type": ["TensorList", "Scalar"], "Concrete Inputs": ["", "1"]}
            trace.operator(name, begin, 9_000, **{"Sequence number": 100 * step + at, **given})
            if size:
                total += size
                memory_event(trace, begin + 5_000, size, (total, 1 << 26), 0xA0000 + 0x10000 * at)
                held.append((at, size))
        for place, (at, size) in enumerate(reversed(held)):
            begin = now + 500_000 + 10_000 * place
            trace.operator(
                f"autograd::engine::evaluate_function: Node{at}", begin, 9_000, tid=200,
                **{"Sequence number": 100 * step + at, "Fwd thread id": 1},
            )  # fmt: skip
            total -= size
            memory_event(trace, begin + 5_000, -size, (total, 1 << 26), 0xA0000 + 0x10000 * at, tid=200)
        trace.annotation("Optimizer.step#SGD.step", now + 800_000, 10_000)
        now += 1_000_000
    return trace


ODD = 1_043_968  # 255 x 1,023 x 4 = 1,043,460 bytes, in blocks of 512
X = [256, 1_024]  # 1 MiB of float32
PRODUCT, HALF = ("aten::mm", [X, [1_024, 1_024]], MIB), MIB // 2


@pytest.mark.parametrize(
    ("operators", "left"),
    [
        # A product's result, and what an activation function makes of it, have 16 bits.
        ((PRODUCT, ("aten::gelu", [X], MIB), PRODUCT), 3 * HALF),
        # A normalisation keeps a copy in 32 bits; its own result is there for the next product alone.
        ((PRODUCT, ("aten::native_layer_norm", [X, [1_024], [1_024]], MIB), PRODUCT), MIB + HALF + HALF),
        # A softmax keeps its result in 32 bits, and the product a copy in 16 bits besides.
        ((PRODUCT, ("aten::_softmax", [X, [], []], MIB), PRODUCT), HALF + MIB + HALF + HALF),
        # A sum with float32 has float32.
        ((("aten::native_layer_norm", [X], MIB), PRODUCT, ("aten::add", [X, X, []], MIB)), HALF + HALF + MIB),
        # What an embedding returns has float32, and so has what keeps its own result; the product keeps a copy.
        (
            (("aten::embedding", [[9, 1_024]], MIB), ("aten::tanh", [X], MIB), PRODUCT, PRODUCT),
            MIB + MIB + HALF + HALF + HALF,
        ),
        # A mask has one byte a number.
        ((PRODUCT, ("aten::native_dropout", [X], MIB // 4), PRODUCT), HALF + MIB // 4 + HALF),
        # What is put together of two has 16 bits if both have.
        ((PRODUCT, PRODUCT, ("aten::cat", [X, X], 2 * MIB), PRODUCT), HALF + HALF + MIB + HALF),
        # Sizes of blocks are rounded up to 512 bytes.
        (
            (("aten::mm", [[255, 1_023], [1_023, 1_023]], ODD), ("aten::gelu", [[255, 1_023]], ODD), PRODUCT),
            ODD // 2 + ODD // 2 + HALF,
        ),
    ],
)
def test_which_results_have_half_the_size_under_autocast(
    analyzed: Analyze, operators: tuple[tuple[str, list[list[int]], int], ...], left: int
) -> None:
    whole = (1 << 20) + sum(size for _, _, size in operators)
    document = document_of(analyzed(chain(*operators)))
    assert document.devices[0].peak_bytes == whole
    assert low_precision(document) == [(1 << 20) + left]


def test_without_a_backward_pass_autocast_is_not_proposed(analyzed: Analyze) -> None:
    trace = chain(PRODUCT, ("aten::gelu", [X], MIB), PRODUCT)
    trace.events = [one for one in trace.events if not one["name"].startswith("autograd")]
    assert not low_precision(document_of(analyzed(trace)))


def test_a_few_halves_are_not_worth_other_results(analyzed: Analyze) -> None:
    whole = tuple(("aten::embedding", [[9, 1_024]], MIB) for _ in range(24))
    assert not low_precision(document_of(analyzed(chain(*whole, PRODUCT))))
    assert low_precision(document_of(analyzed(chain(*whole, PRODUCT, PRODUCT, PRODUCT))))


Q, SCORES = [1, 4, 256, 64], [4, 256, 256]  # 256 KiB and 1 MiB


@pytest.mark.parametrize(
    ("mask", "width", "left", "words"),
    [
        # One kernel makes no scores; it keeps queries, keys and values of 128 KiB each, and a result of as many.
        ([], 64, HALF + 4 * (MIB // 8), "one kernel can compute it"),
        # With a mask it stays in parts, and in float32; so it does with heads that no kernel takes.
        ([256, 256], 64, HALF + 2 * MIB + MIB // 8, "its scores keep float32"),
        ([], 63, HALF + 2 * MIB + MIB // 8, "its scores keep float32"),
    ],
)
def test_attention_in_parts_is_fused_under_autocast_where_a_kernel_can(
    analyzed: Analyze, mask: list[int], width: int, left: int, words: str
) -> None:
    q = [*Q[:3], width]
    size = 4 * 4 * 256 * width
    trace = chain(
        PRODUCT,
        ("aten::bmm", [[4, 256, width], [4, width, 256]], MIB),
        ("aten::_softmax", [SCORES, [], []], MIB),
        ("aten::bmm", [SCORES, [4, 256, width]], size),
    )
    for begin in (0, 1_000_000):
        dims: dict[str, Any] = {"Input Dims": [q, q, q, mask], "Input type": ["float"] * 4, "Concrete Inputs": [""] * 4}
        trace.operator("aten::_scaled_dot_product_attention_math", begin + 10_500, 30_400, **dims)
    document = document_of(analyzed(trace))
    (found,) = (one for one in document.findings if one.rule == "low_precision")
    assert found.then_bytes == (1 << 20) + left - (MIB // 8 - size // 2 if width == 63 else 0)
    assert any(words in text for text in found.evidence)


def test_the_guide_says_how_well_it_is_known() -> None:
    root = DATA.parent.parent
    models = json.loads((root / "benchmarks" / "results" / "h200-autocast-memory.json").read_text())["models"]
    guide = " ".join((root / "docs" / "guides" / "memory.md").read_text().split())
    numbers = {4: "four", 16: "sixteen", 20: "twenty"}
    off = sorted(abs(one["off"]) for one in models.values())
    within = [one for one in off if one <= 0.02]
    assert f"Of {numbers[len(models)]} models of PyTorch, timm and transformers" in guide
    assert f"{numbers[len(within)]} have a peak within 2 % of the estimate and the other" in guide
    assert f"the other {numbers[len(off) - len(within)]} within {off[-1]:.1%}".replace("%", " %") in guide
    assert all(one["measured"] == one["recorded"] for one in models.values())


def test_a_request_that_waited_for_the_device_is_joined_by_its_neighbours(tmp_path: Path) -> None:
    trace, made, late_us = KinetoTrace(), MadeSnapshot(), 3_000
    begin = made.now
    for number in range(40):
        at_ns = 40_000 * number + (late_us * 1_000 if number >= 20 else 0)
        # The snapshot has the request's begin, the trace when the device had given memory for it.
        waited = late_us if number == 20 else 0
        # Every other one is at the address of the one that waited, so that only its neighbours tell which it is.
        address = 0xA000 + 512 * (number if number % 2 else 0)
        trace.operator(f"aten::op{number}", at_ns, 9_000)
        memory_event(trace, at_ns + 5_000, 512, (512 * (number // 2 + 2), 1 << 20), address)
        made.now = begin + at_ns // 1_000 - waited + 5 - 10
        made.alloc(address, 512, MODEL)
        if not number % 2:
            memory_event(trace, at_ns + 8_000, -512, (512 * (number // 2 + 1), 1 << 20), address)
            made.event("free_completed", address, 512)
    made.segment(SEGMENTS_AT, 2 * MIB, [(2 * MIB, 0, "inactive")], large=False)
    cases, apart = joined_cases(read_snapshot(made.write(tmp_path / "s.pickle")), recorded_in(_read(trace)))
    assert apart is None
    (case,) = cases
    assert [case.table.stacks[stack].operator for stack in case.lives.stack.tolist()] == [
        f"aten::op{number}" for number in range(40)
    ]
