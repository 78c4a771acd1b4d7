"""Rules, owners and steps on small made histories: what must be said, and above all what must not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from opscope.analysis.memory.allocator import Settings
from opscope.analysis.memory.answered import answer
from opscope.documents.memory import MemoryDocument, Owner
from opscope.readers.snapshot import read_snapshot
from opscope.trace.snapshot import Action, DeviceMemory, Events, Snapshot
from tests.analysis.memory.test_recorded_memory import DATA, TRUTH, snapshot
from tests.snapshots import IN_MODULE, MIB, SEGMENTS_AT, TORCH, MadeSnapshot, frame

USER = "/home/me/train.py"
MAIN = frame(USER, 90, "<module>")
ADAM = [frame(f"{TORCH}/optim/adamw.py", 200, "step"), frame(f"{TORCH}/optim/optimizer.py", 500, "wrapper")]
PARAMETERS, LAYERS = 4, 4
Frames = list[dict[str, Any]]


class Training:
    """Steps of a small model: every tensor has an address of its own, so that sizes are those that are asked for."""

    def __init__(self, *, user: str = USER, within: Frames | None = None, steps: int = 4) -> None:
        self.made = MadeSnapshot()
        self.user, self.within, self.steps = user, within or [], steps
        self.alive: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.at = SEGMENTS_AT

    def line(self, number: int, name: str = "main") -> Frames:
        return [*self.within, frame(self.user, number, name), frame(self.user, 90, "<module>")]

    def alloc(self, name: str, mib: int, frames: Frames) -> None:
        if name not in self.sizes:
            self.sizes[name] = mib * MIB
            self.made.event("segment_alloc", self.at, mib * MIB, frames)
            self.alive[name] = self.at
            self.at += mib * MIB
        self.made.alloc(self.alive[name], mib * MIB, frames)
        self.made.segments = [one for one in self.made.segments if one["address"] != self.alive[name]]
        self.made.segment(self.alive[name], mib * MIB, [(mib * MIB, mib * MIB, "active_allocated")])

    def free(self, name: str, frames: Frames) -> None:
        self.made.free(self.alive[name], self.sizes[name], frames)
        self.made.segments = [one for one in self.made.segments if one["address"] != self.alive[name]]
        self.made.segment(self.alive[name], self.sizes[name], [(self.sizes[name], 0, "inactive")])

    def parameters(self, frames: Frames | None = None, mib: int = 12) -> None:
        for number in range(PARAMETERS):
            made = frames or [frame(f"{TORCH}/nn/modules/module.py", 930, "_apply"), *self.line(10)]
            self.alloc(f"p{number}", mib, made)

    def step(self, number: int, backward: Frames | None = None) -> None:
        self.alloc("x", 8, self.line(20))
        for layer in range(LAYERS):
            self.alloc(f"a{layer}", 40 + layer, [*IN_MODULE, *self.line(40 + layer, "forward")])
        for layer in reversed(range(LAYERS)):
            self.alloc(f"g{layer}", 12, backward or [])
            self.free(f"a{layer}", [])
        for layer in range(PARAMETERS):
            if not number:
                self.alloc(f"s{layer}", 24, [*ADAM, *self.line(60)])
        self.made.end_of_step("Optimizer.step#AdamW.step")
        for layer in range(LAYERS):
            self.free(f"g{layer}", [frame(f"{TORCH}/optim/optimizer.py", 1000, "zero_grad"), *self.line(61)])
        self.free("x", self.line(20))

    def run(self) -> None:
        for number in range(self.steps):
            self.step(number)

    def answer(self, tmp_path: Path) -> MemoryDocument:
        return answer(read_snapshot(self.made.write(tmp_path / "s.pickle")))


def owners(document: MemoryDocument) -> dict[str, int]:
    return {str(entry.owner): entry.bytes // MIB for entry in document.devices[0].owners if entry.bytes >= MIB}


def rules(document: MemoryDocument) -> set[str]:
    return {str(finding.rule) for finding in document.findings}


PLAIN = {"activations": 40 + 41 + 42 + 43, "optimizer state": 96, "parameters": 48, "gradients": 12, "inputs": 8}


def test_a_plain_step_has_its_owners(tmp_path: Path) -> None:
    made = Training()
    made.parameters()
    made.run()
    found = made.answer(tmp_path)
    assert owners(found) == PLAIN
    assert found.devices[0].steps == 4
    assert not rules(found) - {"optimizer_states"}


CLOSURE = [
    frame("/venv/lib/python3.12/site-packages/lightning/loops.py", 30, "closure"),
    frame(f"{TORCH}/optim/adamw.py", 220, "step"),
    frame(f"{TORCH}/optim/optimizer.py", 500, "wrapper"),
]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: Training(user="/home/me/optimizer/train.py"), id="a folder of the user's named optimizer"),
        pytest.param(lambda: Training(within=CLOSURE), id="steps within the closure of an optimizer"),
    ],
)
def test_other_surroundings_change_no_owner(tmp_path: Path, made: Callable[[], Training]) -> None:
    one = made()
    one.parameters([frame(f"{TORCH}/nn/modules/module.py", 930, "_apply"), frame(one.user, 10, "main")])
    one.run()
    found = one.answer(tmp_path)
    assert owners(found)["activations"] == PLAIN["activations"]
    assert "optimizer_temporaries" not in rules(found)


@pytest.mark.parametrize(
    "backward",
    [
        [frame("/venv/lib/python3.12/site-packages/flash_attn/interface.py", 70, "backward")],
        [frame(f"{TORCH}/distributed/fsdp/_runtime_utils.py", 700, "_post_backward_hook")],
    ],
    ids=["a function of autograd's in Python", "a hook of FSDP"],
)
def test_backward_work_in_python_is_backward_work(tmp_path: Path, backward: Frames) -> None:
    made = Training()
    made.parameters()
    for number in range(4):
        made.step(number, [*backward, frame(f"{TORCH}/autograd/function.py", 300, "apply")])
    assert owners(made.answer(tmp_path)) == PLAIN


@pytest.mark.parametrize(
    "frames",
    [
        [frame("/home/me/model.py", 12, "__init__"), MAIN],
        [frame("/venv/lib/python3.12/site-packages/safetensors/torch.py", 300, "load_file"), MAIN],
        [frame("/usr/lib/python3.12/copy.py", 150, "deepcopy"), MAIN],
    ],
    ids=["made in the user's __init__", "loaded", "copied"],
)
def test_parameters_are_no_data_and_copies_on_purpose_no_mistake(tmp_path: Path, frames: Frames) -> None:
    made = Training()
    made.parameters()
    for number in range(PARAMETERS):
        made.alloc(f"copy{number}", 12, frames)
    made.alloc("large", 200, frames)
    made.run()
    found = made.answer(tmp_path)
    assert owners(found)["parameters"] == 48 + 48 + 200
    assert not rules(found) & {"whole_dataset", "zeroed_gradients"}


def test_a_second_copy_needs_most_of_the_parameters(tmp_path: Path) -> None:
    for copied, is_said in ((PARAMETERS, True), (1, False)):
        made = Training()
        for number in range(PARAMETERS):
            made.alloc(f"p{number}", 12 + number, [frame(f"{TORCH}/nn/modules/module.py", 930, "_apply"), MAIN])
        for number in range(copied):
            made.alloc(f"copy{number}", 12 + number, [frame("/home/me/train.py", 15, "load"), MAIN])
        made.run()
        assert ("loaded_copy" in rules(made.answer(tmp_path))) == is_said


def test_what_lies_there_all_the_time_is_advised_upon_only_with_a_condition(tmp_path: Path) -> None:
    made = Training()
    made.parameters()
    made.alloc("cache", 400, [frame("/home/me/cache.py", 12, "allocate"), MAIN])
    made.run()
    (finding,) = [one for one in made.answer(tmp_path).findings if one.rule == "whole_dataset"]
    assert finding.action.startswith("If each step uses a part")
    assert "cache.py:12 (allocate)" in finding.title


def test_two_optimizers_of_one_class_are_one_step(tmp_path: Path) -> None:
    made = Training(steps=6)
    made.parameters()
    made.alloc("kept", 8, made.line(80))
    for number in range(6):
        made.step(number)
        made.alloc(f"t{number}", 2, [*ADAM, *made.line(70)])
        made.free(f"t{number}", [*ADAM, *made.line(70)])
        made.made.end_of_step("Optimizer.step#AdamW.step")
        made.alloc(f"leak{number}", 10, made.line(80))
    found = made.answer(tmp_path)
    assert found.devices[0].steps in (6, 7)
    assert found.findings[0].rule == "growth"
    assert "10.00 MiB more in each step" in found.findings[0].title


def forward_only(tmp_path: Path, *, kept: int, statistics: bool) -> MemoryDocument:
    made = Training()
    made.parameters()
    for number in range(4):
        made.alloc("x", 8, made.line(20))
        for layer in range(20):
            made.alloc(f"a{layer}", 30, [*IN_MODULE, *made.line(40 + layer, "forward")])
            if layer >= kept:
                made.free(f"a{layer}", [*IN_MODULE, *made.line(40 + layer, "forward")])
        if statistics:
            norm = frame(f"{TORCH}/nn/functional.py", 2900, "layer_norm")
            made.alloc("mean", 1, [norm, *IN_MODULE, *made.line(66, "forward")])
            made.free("mean", made.line(70))
        for layer in range(kept):
            made.free(f"a{layer}", made.line(70))
        made.free("x", made.line(21 + number % 2))
    return made.answer(tmp_path)


def test_a_forward_pass_that_keeps_its_results(tmp_path: Path) -> None:
    assert "evaluation_graph" not in rules(forward_only(tmp_path, kept=6, statistics=False))
    (unsure,) = [
        one for one in forward_only(tmp_path, kept=18, statistics=False).findings if one.rule == "evaluation_graph"
    ]
    assert unsure.action.endswith("if it does not yet.")


def test_a_limit_of_the_programs_own_is_said_only_if_a_segment_would_have_fitted(tmp_path: Path) -> None:
    for free, is_said in ((12, False), (19, False), (20, True)):
        made = MadeSnapshot()
        made.event("segment_alloc", SEGMENTS_AT, 40 * MIB)
        made.alloc(SEGMENTS_AT, 40 * MIB, [MAIN])
        made.event("oom", free * MIB, 4 * MIB, [MAIN])
        made.segment(SEGMENTS_AT, 40 * MIB, [(40 * MIB, 40 * MIB, "active_allocated")])
        oom = answer(read_snapshot(made.write(tmp_path / "s.pickle"))).devices[0].oom
        assert oom is not None
        assert ("set_per_process_memory_fraction" in oom.sentence) == is_said


# ---------------------------------------------------------------- histories that lack something


def changed(whole: Snapshot, change: Callable[[DeviceMemory], DeviceMemory]) -> MemoryDocument:
    return answer(replace(whole, devices=tuple(change(device) for device in whole.devices)))


def without(action: Action) -> Callable[[DeviceMemory], DeviceMemory]:
    def change(memory: DeviceMemory) -> DeviceMemory:
        kept = memory.events.action != action
        names = Events.__struct_fields__
        return replace(memory, events=Events(*(getattr(memory.events, name)[kept] for name in names)))

    return change


def apart(memory: DeviceMemory) -> DeviceMemory:
    """Write each release as a request and its completion, as the file has them."""
    events = memory.events
    rows = np.repeat(np.arange(len(events)), np.where(events.action == Action.FREED, 2, 1))
    action = events.action[rows].copy()
    second = np.append(False, rows[1:] == rows[:-1])
    action[action == Action.FREED] = Action.FREE_REQUESTED
    action[second] = Action.FREE_COMPLETED
    columns = {name: getattr(events, name)[rows] for name in Events.__struct_fields__}
    return replace(memory, events=Events(**{**columns, "action": action}))


RECORDED = ("activations", "kept_outputs", "optimizer_states", "several_streams", "growing_cache", "evaluation_graph")


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("action", [Action.FREE_REQUESTED, Action.FREE_COMPLETED])
def test_releases_of_which_half_was_recorded_give_the_same_peak(name: str, action: Action) -> None:
    found = changed(snapshot(name), lambda memory: without(action)(apart(memory)))
    assert found.devices[0].peak_bytes == TRUTH[name]["as_is"]["devices"][0]["max_allocated"]


@pytest.mark.parametrize("name", RECORDED)
def test_without_stacks_nothing_is_said_of_whose_memory_it_is(name: str) -> None:
    def change(memory: DeviceMemory) -> DeviceMemory:
        return replace(memory, events=replace(memory.events, stack=np.zeros_like(memory.events.stack)))

    found = changed(snapshot(name), change)
    assert found.devices[0].peak_bytes == TRUTH[name]["as_is"]["devices"][0]["max_allocated"]
    # What is alive at the end has stacks of its own: so growth is seen.
    assert not rules(found) - {"fragmentation", "several_streams", "growing_cache", "optimizer_states", "growth"}
    assert all(entry.owner != Owner.GRADIENT for entry in found.devices[0].owners)


def test_a_history_that_lacks_releases_proposes_nothing() -> None:
    def change(memory: DeviceMemory) -> DeviceMemory:
        large = (memory.events.action == Action.FREED) & (memory.events.bytes > MIB)
        kept = ~large | (np.arange(len(large)) % 2 == 0)
        events = Events(*(getattr(memory.events, name)[kept] for name in Events.__struct_fields__))
        moved = events.address + np.arange(len(events)) * 4096 * MIB  # no address comes again
        return replace(memory, events=replace(events, address=moved))

    found = changed(snapshot("activations"), change)
    assert not found.findings
    assert any("some are missing" in note for note in found.devices[0].notes)


# ---------------------------------------------------------------- sizes


def by_hand(size: int, division: int) -> int:
    """Round as the allocator's documentation says: to the next of ``division`` parts of a power of two."""
    if size <= 512 * division or size & (size - 1) == 0:
        return max(-(-size // 512) * 512, 512)
    power = 1 << (size.bit_length() - 1)
    return next(
        power + part * power // division for part in range(1, division + 1) if power + part * power // division >= size
    )


@pytest.mark.parametrize("division", [2, 4, 8])
def test_sizes_are_rounded_to_parts_of_powers_of_two(division: int) -> None:
    settings = Settings(divisions=(division,) * 16)
    sizes = np.array([1, 511, 512, 513, 1200, 5000, 1 << 20, (1 << 20) + 1, 3_000_000, 100_000_001])
    assert settings.rounded(sizes).tolist() == [by_hand(int(size), division) for size in sizes]
    assert Settings().rounded(sizes).tolist() == [max(-(-int(size) // 512) * 512, 512) for size in sizes]


def test_every_recording_is_there() -> None:
    assert {path.name.split(".")[0] for path in DATA.glob("*.pickle*")} == set(TRUTH)


# ---------------------------------------------------------------- gradients that are there for nothing


ZEROED = frame(f"{TORCH}/optim/optimizer.py", 1000, "zero_grad")
DDP = [frame(f"{TORCH}/nn/parallel/distributed.py", 800, "__init__")]


class Loop(Training):
    """A training loop whose parts come in any order; gradients take 48 MiB, activations 166."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters()

    def forward(self, line: int = 40, mib: int = 40) -> None:
        for layer in range(LAYERS):
            self.alloc(f"a{layer}{line}", mib + layer, [*IN_MODULE, *self.line(line, "forward")])

    def backward(self, frames: Frames | None = None, *, is_first: bool = True) -> None:
        for layer in reversed(range(LAYERS)):
            self.alloc(f"g{layer}" if is_first else "more", 12, frames or [])
            if not is_first:  # added to the gradient that is there
                self.free("more", [])
            self.free(f"a{layer}40", [])

    def evaluation(self, line: int = 70) -> None:
        self.forward(line, 90)
        for layer in range(LAYERS):
            self.free(f"a{layer}{line}", [*IN_MODULE, *self.line(line, "forward")])

    def optimizer(self) -> None:
        self.made.end_of_step("Optimizer.step#SGD.step")

    def zero_grad(self) -> None:
        for layer in range(LAYERS):
            self.free(f"g{layer}", [ZEROED, *self.line(61)])


def late(made: Loop, tmp_path: Path) -> list[tuple[str, int]]:
    return [(one.title, one.then_bytes) for one in made.answer(tmp_path).findings if one.rule == "late_zero_grad"]


def test_gradients_over_the_next_forward_pass_are_named(tmp_path: Path) -> None:
    made = Loop()
    for number in range(3):
        made.forward()
        if number:
            made.zero_grad()
        made.backward()
        made.optimizer()
    without = (48 + 166 + 12) * MIB  # one gradient is there before the first activations go
    assert late(made, tmp_path) == [("48.00 MiB of gradients stay allocated during a forward pass", without)]


@pytest.mark.parametrize("is_over", [True, False])
def test_gradients_over_an_evaluation_are_named(tmp_path: Path, is_over: bool) -> None:
    made = Loop()
    for number in range(3):
        if number:
            made.zero_grad()
        made.forward()
        made.backward()
        made.optimizer()
        if number < 2 or not is_over:  # the recording may end in an evaluation
            made.evaluation()
    without = (48 + 366) * MIB
    assert late(made, tmp_path) == [("48.00 MiB of gradients stay allocated during an evaluation", without)]


def accumulation(*, steps: int) -> Loop:
    made = Loop()
    for _ in range(steps):
        made.forward()
        made.backward()
        made.forward()
        made.backward(is_first=False)
        made.optimizer()
        made.zero_grad()
    return made


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("ending", ["whole", "cut", "refused"])
def test_gradients_that_are_added_up_are_needed(tmp_path: Path, steps: int, ending: str) -> None:
    made = accumulation(steps=steps)
    if ending != "whole":
        made.forward()
        made.backward()
        made.forward()
    if ending == "refused":
        made.made.event("oom", 0, 500 * MIB, [*IN_MODULE, *made.line(40, "forward")])
    found = made.answer(tmp_path)
    assert not late(made, tmp_path)
    assert ending != "refused" or (found.devices[0].oom and "zero_grad" not in found.devices[0].oom.sentence)


def test_gradients_that_the_optimizer_still_uses_are_needed(tmp_path: Path) -> None:
    made = Loop()
    for _ in range(3):
        made.forward()
        made.backward()
        made.evaluation(line=80)  # such as what clips gradients by a module
        made.optimizer()
        made.zero_grad()
    assert not late(made, tmp_path)


def test_gradients_of_distributed_data_parallel_stay_in_their_buckets(tmp_path: Path) -> None:
    made = Loop()
    for number in range(3):
        made.forward()
        if number:
            made.zero_grad()
        made.backward(DDP)
        made.optimizer()
    assert not late(made, tmp_path)
