"""What would take less memory: one function a rule. Each edits the lives of blocks and looks at the peak that is left.

A rule speaks only of what the history shows; what else must be true stands in ``wrong_if``.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.memory.allocator import UNLIMITED, Change
from opscope.analysis.memory.autocast import halved
from opscope.analysis.memory.case import Case
from opscope.analysis.memory.growth import growth_of, replaced_chains
from opscope.analysis.memory.history import BEFORE
from opscope.analysis.memory.owners import Phase
from opscope.analysis.memory.repeats import Blocks, repeated_blocks
from opscope.analysis.memory.stacks import Part
from opscope.analysis.memory.steps import steps_of_optimizers
from opscope.base.parts import Losses
from opscope.base.units import format_bytes
from opscope.documents.memory import MemoryRule, Owner
from opscope.trace.snapshot import Action, Ints

LEAST_SHARE: Final = 0.02  # of the peak: less is not worth a change
_LEAST_UNUSED: Final = 32 << 20  # bytes: less is the rest of the last segments
_MUCH: Final = 0.1  # of what is reserved
_LEAST_HALVED: Final = 0.05  # of the peak: other results are not worth less
_ALIKE: Final = 0.9  # of the parameters have a tensor of the same size in a copy
_MUCH_DATA: Final = 0.2  # of the peak
_CHUNKS: Final = 8
# States in 8 bits have a scale of 32 bits for each 256 values, as bitsandbytes keeps them.
_IN_8_BITS: Final = (1 + 4 / 256) / 4


class Draft(Struct, frozen=True, kw_only=True):
    """A finding without its number; the fields are those of `MemoryFinding`."""

    rule: MemoryRule
    title: str
    where: str | None
    then_bytes: int
    action: str
    costs: str
    evidence: tuple[str, ...]
    wrong_if: str
    of: Literal["allocated", "reserved"] = "allocated"
    is_certain: bool = (
        True  # whether the history forces that it can be done; else ``action`` says under which condition
    )
    always: bool = False  # whether it is said even if no change is known that saves anything


def drafts(case: Case, losses: Losses) -> list[Draft]:
    """Return what is found, in no order.

    Args:
        case: the device.
        losses: notes the rules that fail.
    """
    return [
        draft
        for rule in RULES
        for draft in losses.part(f"the rule {rule.__name__}", lambda rule=rule: list(rule(case)), list[Draft])  # type: ignore[misc]
    ]


def _sum(case: Case, mask: np.ndarray) -> int:
    return int(case.lives.bytes[mask].sum())


def _main_line(case: Case, mask: np.ndarray) -> str | None:
    """Return the line that holds most of some lives."""
    by_line: Counter[str | None] = Counter()
    for life in np.flatnonzero(mask).tolist():
        by_line[case.line_of(life)] += int(case.lives.bytes[life])
    return by_line.most_common(1)[0][0] if by_line else None


# ---------------------------------------------------------------- training


def checkpoint(case: Case) -> Iterator[Draft]:
    """Keep only the inputs of repeated blocks, and compute the rest again in the backward pass."""
    blocks = repeated_blocks(case)
    if blocks is None:
        return
    begin, end, sizes = _checkpointed(case, blocks)
    again = case.lives.end[blocks.dropped] > blocks.forward_end
    more = (begin[again], np.maximum(blocks.last_use, begin)[again], sizes[again])
    then = case.peak_with(end=end, more=more)
    held = _sum(case, np.isin(np.arange(len(case.lives)), blocks.dropped) & case.alive)
    yield Draft(
        rule=MemoryRule.CHECKPOINT,
        title=f"{blocks.count} blocks keep {format_bytes(held)} of activations for the backward pass",
        where=blocks.where,
        then_bytes=then,
        action="Checkpoint each of these blocks: x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).",
        costs="The forward pass of these blocks runs twice, about a third more of their time in a step.",
        evidence=(
            f"The same {blocks.period} allocations repeat {blocks.count} times in the forward pass, and live until the "
            "backward pass.",
        ),
        wrong_if="a block takes or returns more than its main input and output, which are kept as well",
    )


def _checkpointed(case: Case, blocks: Blocks) -> tuple[Ints, Ints, Ints]:
    """Return where what is dropped lives again, where it ends for the first time, and its sizes."""
    end = case.lives.end.copy()
    end[blocks.dropped] = np.minimum(blocks.forward_end, end[blocks.dropped])
    return blocks.backward_begin, end, case.sizes[blocks.dropped]


def low_precision(case: Case) -> Iterator[Draft]:
    """Keep activations in 16 bits."""
    first, last = case.peak_step
    if not (case.owned.phase[first : last + 1] == Phase.BACKWARD).any() or (then := halved(case)) is None:
        return
    if then.bytes < _LEAST_HALVED * case.history.peak_bytes:
        return
    yield Draft(
        rule=MemoryRule.LOW_PRECISION,
        title=f"{format_bytes(2 * then.bytes)} of float32 tensors at the peak would be in bfloat16 under autocast",
        where=_main_line(case, (then.sizes < case.sizes) & case.alive),
        then_bytes=case.peak_with(sizes=then.sizes, more=then.more),
        is_certain=False,
        action='Run the forward pass and the loss under torch.autocast("cuda", dtype=torch.bfloat16).',
        costs="bfloat16 keeps 8 significant bits, so compare the loss. The effect on time was not estimated.",
        evidence=(
            "Estimated from the operators, the types and sizes of their inputs, and autocast's lists of operators; the "
            "copies that autocast keeps are included.",
            *((then.attention,) if then.attention else ()),
        ),
        wrong_if="the model sets types itself, or convolutions then use algorithms with larger workspaces",
    )


def optimizer_temporaries(case: Case) -> Iterator[Draft]:
    """Update parameters without temporary tensors."""
    mask = (case.table.parts[case.lives.stack] & int(Part.OF_TORCH)) > 0
    mask &= case.owned.of(Owner.TEMPORARY) & (case.owned.phase[np.maximum(case.lives.begin, 0)] == Phase.OPTIMIZER)
    if not (mask & case.alive).any():
        return
    yield Draft(
        rule=MemoryRule.OPTIMIZER_TEMPORARIES,
        title=f"The optimizer's step takes {format_bytes(_sum(case, mask & case.alive))} for temporary tensors",
        where=_main_line(case, mask & case.alive),
        then_bytes=case.peak_with(sizes=np.where(mask, 0, case.sizes)),
        action="Pass fused=True to the optimizer, or foreach=False where it has no fused kernel.",
        costs="fused=True costs nothing, it saves launches; foreach=False launches kernels for each parameter.",
        evidence=("They are allocated in the optimizer's functions and freed in the same step.",),
        wrong_if="the optimizer has neither argument",
    )


def optimizer_states(case: Case) -> Iterator[Draft]:
    """Keep the optimizer's states in 8 bits."""
    in_torch = (case.table.parts[case.lives.stack] & int(Part.OF_TORCH)) > 0  # others may be in 8 bits already
    mask = case.owned.of(Owner.OPTIMIZER_STATE) & (case.lives.bytes > 1 << 14) & in_torch
    held = _sum(case, mask & case.alive)
    names = {_of_file(case, life) for life in np.flatnonzero(mask & case.alive).tolist()}
    if held < 0.2 * case.history.peak_bytes or not names or not names <= _WITH_8_BITS.keys():
        return
    sizes = np.where(mask, (case.sizes * _IN_8_BITS).astype(np.int64), case.sizes)
    yield Draft(
        rule=MemoryRule.OPTIMIZER_STATES,
        title=f"The optimizer's states take {format_bytes(held)}",
        where=_main_line(case, mask & case.alive),
        then_bytes=case.peak_with(sizes=sizes),
        action=f"Use an optimizer with states in 8 bits ({', '.join(_WITH_8_BITS[name] for name in sorted(names))}).",
        costs="Quantising takes some time in the optimizer's step; the loss has to be compared.",
        evidence=("They are allocated in the optimizer's first step, and live on.",),
        wrong_if="the states are not in 32 bits now",
    )


# By the file of torch/optim that allocates the states. Source: bitsandbytes/optim/__init__.py.
_WITH_8_BITS: Final = {
    "adam": "bitsandbytes.optim.AdamW8bit, torchao.optim.AdamW8bit",
    "adamw": "bitsandbytes.optim.AdamW8bit, torchao.optim.AdamW8bit",
    "adagrad": "bitsandbytes.optim.Adagrad8bit",
    "rmsprop": "bitsandbytes.optim.RMSprop8bit",
    "sgd": "bitsandbytes.optim.SGD8bit",
}


def _of_file(case: Case, life: int) -> str:
    """Return the name of the innermost file of torch/optim that a block was allocated in; empty if unknown."""
    lines = case.table.stacks[int(case.lives.stack[life])].lines
    files = [file.replace("\\", "/") for file, _, _ in reversed(lines)]
    return next((file.rpartition("/")[2].removesuffix(".py") for file in files if "/torch/optim/" in file), "")


def vocabulary_loss(case: Case) -> Iterator[Draft]:
    """Compute the loss in parts, so that logits never exist as a whole."""
    in_loss = (case.table.parts[case.lives.stack] & int(Part.LOSS)) > 0
    at_peak = np.flatnonzero(in_loss & case.alive & (case.lives.begin >= 0))
    if not len(at_peak):
        return
    size = int(case.lives.requested[at_peak].max())
    first, last = case.peak_step
    step = (case.lives.begin >= first) & (case.lives.begin <= last)
    same = (case.requests == size) & (case.lives.begin > BEFORE)
    held = _sum(case, same & case.alive & step)
    if held < 0.1 * case.history.peak_bytes:
        return
    yield Draft(
        rule=MemoryRule.VOCABULARY_LOSS,
        title=f"Logits and their loss take {format_bytes(held)}: {int((same & case.alive & step).sum())} tensors of "
        f"{format_bytes(size)}",
        where=_main_line(case, in_loss & case.alive),
        then_bytes=_in_parts(case, same, in_loss),
        action="Compute the head and the loss together for a part of the rows at a time, each part checkpointed, or "
        f"with a fused kernel (Liger's or Cut Cross-Entropy). The figure is for {_CHUNKS} parts.",
        costs="The head's product runs once more in the backward pass, if parts are checkpointed.",
        evidence=(f"They have the size of what {case.line_of(int(at_peak[0])) or 'the loss'} allocates for the loss.",),
        wrong_if="the logits are needed as a whole",
    )


def _in_parts(case: Case, same: np.ndarray, in_loss: np.ndarray) -> int:
    """Return the peak if what has the size of the logits is made in parts.

    The logits of a part are freed as soon as its loss is computed. The head's gradient is there from the first part on,
    not only at the end.
    """
    lives, end = case.lives, case.lives.end.copy()
    losses = np.sort(lives.begin[same & in_loss])
    logits = np.flatnonzero(same & ~in_loss & (case.owned.phase[np.maximum(lives.begin, 0)] == Phase.FORWARD))
    for life in logits.tolist():
        later = losses[losses > lives.begin[life]]
        end[life] = min(int(end[life]), int(later[0]) + 1) if len(later) else int(end[life])
    backward = same & (case.owned.phase[np.maximum(lives.begin, 0)] == Phase.BACKWARD)
    gradients = np.flatnonzero(case.owned.of(Owner.GRADIENT) & (lives.requested > 1 << 16))
    begins, earlier = [], []
    for number in np.unique(np.searchsorted(np.array(case.steps.ends), lives.begin[backward], "left")).tolist():
        of_step = np.searchsorted(np.array(case.steps.ends), lives.begin, "left") == number
        first = int(lives.begin[backward & of_step].min())
        after = gradients[(lives.begin[gradients] > first) & of_step[gradients]]
        if len(after):
            earlier.append(int(after[0]))
            begins.append(first)
    chosen = np.array(earlier, dtype=np.int64)
    more = (np.array(begins, dtype=np.int64), lives.begin[chosen] - 1, case.sizes[chosen])
    return case.peak_with(end=end, sizes=np.where(same, case.sizes // _CHUNKS, case.sizes), more=more)


def zeroed_gradients(case: Case) -> Iterator[Draft]:
    """Set gradients to None."""
    lives, ends = case.lives, np.array(case.steps.ends, dtype=np.int64)
    if not len(ends):
        return
    crossed = np.searchsorted(ends, lives.end, "left") - np.searchsorted(ends, lives.begin, "left")
    kept = case.owned.of(Owner.GRADIENT) & (crossed > 1)
    kept &= (case.table.parts[lives.stack] & int(Part.BUCKET)) == 0
    held = _sum(case, kept & case.alive)
    if held < LEAST_SHARE * case.history.peak_bytes:
        return
    begin, end, sizes = _set_to_none(case, kept)
    yield Draft(
        rule=MemoryRule.ZEROED_GRADIENTS,
        title=f"Gradients of {format_bytes(held)} are kept over the forward pass",
        where=_main_line(case, kept & case.alive),
        then_bytes=case.peak_with(begin=begin, end=end, sizes=sizes),
        action="Call optimizer.zero_grad(set_to_none=True), which is the default, before the forward pass.",
        costs="Nothing: it also saves filling them with zeros.",
        evidence=("They are allocated in a backward pass and live on through later steps.",),
        wrong_if="gradients are added up over several batches on purpose",
    )


def _set_to_none(case: Case, kept: np.ndarray) -> tuple[Ints, Ints, Ints]:
    """Let kept gradients end with their first step; what is added to them then becomes the gradient itself."""
    lives = case.lives
    begin, end, sizes = lives.begin.copy(), lives.end.copy(), case.sizes.copy()
    end[kept] = np.minimum(case.steps.after(lives.begin[kept]), end[kept])
    count = Counter(lives.requested[kept].tolist())
    temporaries = case.owned.of(Owner.TEMPORARY) & (lives.begin >= 0)
    temporaries &= case.owned.phase[np.maximum(lives.begin, 0)] == Phase.BACKWARD
    number = np.searchsorted(np.array(case.steps.ends), lives.begin, "left")
    for size, most in count.items():
        same = np.flatnonzero(temporaries & (lives.requested == size))
        for step in set(number[same].tolist()):
            of_step = same[number[same] == step]
            # A gradient is added to the kept one and freed soon: those that live shortest.
            chosen = of_step[np.argsort(lives.end[of_step] - lives.begin[of_step], kind="stable")][:most]
            end[chosen] = case.steps.after(lives.begin[chosen])
    return begin, np.minimum(end, case.count), sizes


def late_zero_grad(case: Case) -> Iterator[Draft]:
    """Free gradients once the optimizer has used them, before the next forward pass or an evaluation."""
    lives, row = case.lives, case.peak_row
    if row < 0 or case.owned.phase[row] in (Phase.BACKWARD, Phase.OPTIMIZER):
        return
    kept, begins = _over_a_forward_pass(case)
    held = _sum(case, kept & case.alive)
    if not held or held < LEAST_SHARE * case.history.peak_bytes:
        return
    later = case.phase_rows(Phase.BACKWARD)
    later = later[later > row]
    made = case.alive & case.owned.of(Owner.ACTIVATION) & (lives.begin > begins[kept & case.alive].min())
    evaluates = bool(len(later)) and not (made & (lives.end > later[:1])).any()
    yield Draft(
        rule=MemoryRule.LATE_ZERO_GRAD,
        title=f"{format_bytes(held)} of gradients stay allocated during "
        f"{'an evaluation' if evaluates else 'a forward pass'}",
        where=None,
        then_bytes=case.peak_with(end=np.where(kept, np.minimum(begins, lives.end), lives.end)),
        action="Call optimizer.zero_grad() right after optimizer.step()"
        + (", or at least before the evaluation." if evaluates else "."),
        costs="Nothing.",
        evidence=("They are freed after it, with no backward pass and no optimizer step in between.",),
        wrong_if="the program reads them in between, for example to log their norm",
    )


def _over_a_forward_pass(case: Case) -> tuple[np.ndarray, Ints]:
    """Return which gradients stay allocated during a forward pass but are not used any more, and where it begins.

    They are freed before any backward pass adds to them, and before an optimizer reads them.
    """
    lives, phase = case.lives, case.owned.phase
    known = np.flatnonzero(phase != Phase.OTHER)
    of = phase[known]
    first = known[1:][(of[1:] == Phase.FORWARD) & (of[:-1] != Phase.FORWARD)]  # of each forward pass
    begins = np.append(first, case.count)[np.searchsorted(first, lives.begin, "right")]
    stack = case.memory.events.stack
    steps = np.flatnonzero(case.table.has(Part.OPTIMIZER)[stack] & ~case.table.has(Part.ZERO_GRADIENTS)[stack])
    uses = np.unique(np.concatenate((case.phase_rows(Phase.BACKWARD), steps, steps_of_optimizers(case.memory))))
    until = np.append(uses, case.count)[np.searchsorted(uses, begins, "left")]
    kept = case.owned.of(Owner.GRADIENT) & (lives.begin >= 0) & (lives.end > begins) & (lives.end <= until)
    kept &= (case.table.parts[lives.stack] & int(Part.BUCKET)) == 0
    # Where the recording ends in a forward pass, the same is assumed that happened at earlier passes of that line.
    place = np.append(case.table.same_as[stack], -1)[begins]
    freed = kept & (lives.end < case.count)
    return freed | (kept & np.isin(place, place[freed])), begins


# ---------------------------------------------------------------- what is kept for too long


def growth(case: Case) -> Iterator[Draft]:
    """Do not keep what grows from step to step."""
    grown = growth_of(case)
    if grown is None:
        return
    # One tensor is kept by itself; those of several lines of forward passes are what a graph keeps.
    with_graph = sum(bool(case.table.stacks[stack].parts & Part.FORWARD) for stack in grown.stacks) > 2
    end = case.lives.end.copy()
    end[grown.lives] = np.minimum(_next_made(case, grown.lives), end[grown.lives])
    line = grown.lines[0]
    others = f" and {len(grown.lines) - 1} other lines" if len(grown.lines) > 1 else ""
    kept = (
        "whole graphs of earlier steps are kept" if with_graph else f"what {line or 'one line'}{others} makes is kept"
    )
    yield Draft(
        rule=MemoryRule.GROWTH,
        title=f"{format_bytes(grown.bytes_per_step)} more in each step: {kept}",
        where=line,
        then_bytes=case.peak_with(end=end),
        action="Keep numbers instead of tensors with a graph: loss.item(), or x.detach()."
        if with_graph
        else "Do not keep it: take what you need of it to the host (x.detach().cpu(), loss.item()), or let it go.",
        costs="A copy to the host waits for the device; once in several steps, or at the end, is enough.",
        evidence=(
            f"It grew in each of the last {grown.steps} steps and holds {format_bytes(grown.bytes)} at their end.",
        ),
        wrong_if="the program needs all of it on the device later",
    )


def _next_made(case: Case, lives: Ints) -> Ints:
    """Return when the step after has made the same: the name that held one step's result then holds the next one's."""
    number = np.searchsorted(np.array(case.steps.ends), case.lives.begin[lives], "left")
    last = {int(step): int(case.lives.begin[lives[number == step]].max()) + 1 for step in np.unique(number)}
    return np.array([last.get(int(step) + 1, case.count) for step in number], dtype=np.int64)


def growing_cache(case: Case) -> Iterator[Draft]:
    """Allocate once what is made again, larger, in each step."""
    chains = replaced_chains(case)
    if not chains:
        return
    lives, sizes = case.lives, case.sizes.copy()
    firsts, lasts, wholes = [], [], []
    for chain in chains:
        first = int(lives.begin[chain].min())
        # What the first one replaced: freed as soon as it was there, and smaller.
        before = (lives.end > first) & (lives.end <= first + 3) & (lives.requested < lives.requested[chain[0]])
        before &= lives.requested > lives.requested[chain[0]] // 2
        sizes[chain] = 0
        if before.any():
            sizes[before], first = 0, int(lives.begin[before].min())
        firsts.append(first)
        lasts.append(int(lives.end[chain].max()))
        wholes.append(int(lives.bytes[chain].max()))
    more = (np.array(firsts, dtype=np.int64), np.array(lasts, dtype=np.int64), np.array(wholes, dtype=np.int64))
    line = case.line_of(int(chains[0][0]))
    yield Draft(
        rule=MemoryRule.GROWING_CACHE,
        title=f"{len(chains)} tensors are made again, larger, step by step: old and new are there at once (up to "
        f"{format_bytes(max(wholes))} each)"
        if len(chains) > 1
        else "A tensor is made again, larger, in each step: old and new are there at once "
        f"({format_bytes(wholes[0])} each)",
        where=line,
        then_bytes=case.peak_with(sizes=sizes, more=more),
        action="Allocate it once at its final size, and write each step's part into it (a static cache).",
        costs="Nothing: it also saves copying it in each step.",
        evidence=(
            f"{line or 'One line'} allocates a larger tensor again and again, and the one before is freed after that.",
        ),
        wrong_if="its final size is not known and cannot be limited",
    )


def evaluation_graph(case: Case) -> Iterator[Draft]:
    """Do not keep a graph where there is no backward pass."""
    first, last = case.peak_step
    phase = case.owned.phase[first : last + 1]
    if (phase == Phase.BACKWARD).any() or not (phase == Phase.FORWARD).any():
        return
    lives = case.lives
    inside = (lives.begin >= first) & (lives.begin <= case.peak_row)
    inside &= case.owned.phase[np.maximum(lives.begin, 0)] == Phase.FORWARD
    made = np.flatnonzero(inside)
    alive = made[case.alive[made]]
    refused = (case.memory.events.action[first : last + 1] == Action.OOM).any()
    if refused or not (lives.end[alive] < case.count).any():  # the step is not over, or keeps them
        return
    held = int(lives.bytes[alive].sum())
    # Without a graph, a forward pass frees most of what it makes before it ends.
    if len(alive) < 8 or held < 0.6 * lives.bytes[made].sum():
        return
    certain = _keeps_for_backward(case, alive)
    never = "for a backward pass that never comes" if certain else "to its end, and no backward pass follows"
    yield Draft(
        rule=MemoryRule.EVALUATION_GRAPH,
        title=f"A forward pass keeps {format_bytes(held)} {never}",
        where=_main_line(case, np.isin(np.arange(len(lives)), alive)),
        then_bytes=_without_graphs(case),
        is_certain=certain,
        action="Run it under torch.no_grad() or torch.inference_mode()" + ("." if certain else ", if it does not yet."),
        costs="Nothing: it also saves building the graph.",
        evidence=(
            f"{len(alive)} of the {len(made)} tensors of the forward pass are alive when it ends, and no backward pass "
            "follows.",
        ),
        wrong_if="the program uses the intermediate results itself",
    )


def _keeps_for_backward(case: Case, alive: Ints) -> bool:
    """Tell whether some of what is alive only a backward pass needs: the statistics of normalisations, and masks."""
    largest = int(case.lives.requested[alive].max())
    for life in alive[case.lives.requested[alive] < largest // 16].tolist():
        stack = case.table.stacks[int(case.lives.stack[life])]
        if any(function in _NEEDED_BACKWARD for _, function, _ in stack.lines):
            return True
    return False


_NEEDED_BACKWARD: Final = frozenset({"layer_norm", "batch_norm", "group_norm", "dropout", "instance_norm", "rms_norm"})


def _without_graphs(case: Case) -> int:
    """Return the peak if each tensor of a forward pass is freed when the next but one is there.

    What a block returns lives until the next block has returned; see `Blocks`.
    """
    lives, end = case.lives, case.lives.end.copy()
    in_forward = (lives.begin >= 0) & (case.owned.phase[np.maximum(lives.begin, 0)] == Phase.FORWARD)
    forward = np.flatnonzero(in_forward & ~case.owned.of(Owner.WORKSPACE, Owner.GRAPH_POOL))
    blocks = repeated_blocks(case, for_backward=False)
    outputs = set() if blocks is None else {int(stack) for stack in case.places[blocks.outputs]}
    large = forward[lives.bytes[forward] >= 1 << 16]
    begins = np.append(lives.begin[large], case.count)
    of_outputs = [at for at, life in enumerate(large) if int(case.places[life]) in outputs]
    for at, life in enumerate(large.tolist()):
        following = at + 2
        if at in of_outputs:
            later = [one for one in of_outputs if one > at]
            following = later[0] + 1 if later else len(large)
        end[life] = min(int(end[life]), int(begins[min(following, len(large))]))
    return case.peak_with(end=end)


def previous_output(case: Case) -> Iterator[Draft]:
    """Let go of the last step's result before the next one is computed."""
    lives, steps = case.lives, case.steps
    if not steps.ends:
        return
    over = case.alive & (steps.after(lives.begin) < case.peak_row) & (lives.begin >= 0)
    over &= ~case.owned.of(Owner.PARAMETER, Owner.OPTIMIZER_STATE, Owner.GRADIENT, Owner.WORKSPACE, Owner.GRAPH_POOL)
    # Replaced by one of the same line soon after the peak: the name still held it.
    replaced = [
        life
        for life in np.flatnonzero(over).tolist()
        if lives.end[life] < case.count
        and (
            (case.places == case.places[life])
            & (lives.begin > steps.after(lives.begin[life : life + 1])[0])
            & (lives.begin <= lives.end[life])
        ).any()
        and lives.end[life] <= steps.after(np.array([case.peak_row]))[0]
    ]
    growing = {life for chain in replaced_chains(case) for life in chain.tolist()}
    chosen = np.array([life for life in replaced if life not in growing], dtype=np.int64)
    held = int(lives.bytes[chosen].sum())
    if held < LEAST_SHARE * case.history.peak_bytes:
        return
    stacks = set(case.places[chosen].tolist())
    end = lives.end.copy()
    same = np.isin(case.places, list(stacks)) & (lives.begin >= 0)
    end[same] = np.minimum(steps.after(lives.begin[same]), end[same])
    line = _main_line(case, np.isin(np.arange(len(lives)), chosen))
    yield Draft(
        rule=MemoryRule.PREVIOUS_OUTPUT,
        title=f"The step before still holds {format_bytes(held)} while this one computes the same again",
        where=line,
        then_bytes=case.peak_with(end=end),
        action="del the variable at the end of the step, or compute inside a function, so that the name ends with it.",
        costs="Nothing.",
        evidence=(f"What {line or 'a line'} allocates is freed only when the next step's is there.",),
        wrong_if="the next step needs it",
    )


def loaded_copy(case: Case) -> Iterator[Draft]:
    """Do not keep a second copy of the parameters."""
    lives = case.lives
    parameters = case.owned.of(Owner.PARAMETER) & case.alive & (lives.bytes > 1 << 14)
    wanted = Counter(lives.requested[parameters].tolist())
    forward = case.phase_rows(Phase.FORWARD)
    if sum(wanted.values()) < 4 or not len(forward):
        return
    # What optimizers and DistributedDataParallel make themselves comes later; a deep copy is made on purpose.
    other = case.alive & ~parameters & (lives.begin < forward[0]) & (lives.bytes > 1 << 14)
    other &= case.owned.of(Owner.INPUT, Owner.KEPT, Owner.UNKNOWN, Owner.PARAMETER)
    other &= (case.table.parts[lives.stack] & int(Part.COPIED)) == 0
    by_line: dict[str | None, list[int]] = {}
    for life in np.flatnonzero(other).tolist():
        by_line.setdefault(case.line_of(life), []).append(life)
    for line, members in by_line.items():
        sizes = Counter(lives.requested[members].tolist())
        if sum((sizes & wanted).values()) < _ALIKE * sum(wanted.values()):
            continue
        mask = np.isin(np.arange(len(lives)), members)
        yield Draft(
            rule=MemoryRule.LOADED_COPY,
            title=f"A second copy of the parameters takes {format_bytes(_sum(case, mask & case.alive))}",
            where=line,
            then_bytes=case.peak_with(sizes=np.where(mask, 0, case.sizes)),
            action='If it is a checkpoint, load it to the host (torch.load(path, map_location="cpu")), and delete it '
            "after load_state_dict.",
            costs="Nothing but the copy to the device, which happens once.",
            evidence=(
                f"{line or 'One line'} holds tensors of the sizes of the parameters, from before the first step on.",
            ),
            wrong_if="it is a copy that the training needs, such as an average of the weights",
        )


def whole_dataset(case: Case) -> Iterator[Draft]:
    """Keep data on the host that is used a part at a time."""
    lives = case.lives
    begin = case.steps.ends[0] if case.steps.ends else case.count
    forward = case.phase_rows(Phase.FORWARD)
    begin = min(begin, int(forward[0])) if len(forward) else begin
    mask = case.alive & case.owned.of(Owner.INPUT, Owner.UNKNOWN) & (lives.begin < begin) & (lives.begin >= 0)
    mask &= lives.end > case.steps.ends[-1] if case.steps.ends else lives.end == case.count
    line = _main_line(case, mask)
    chosen = [life for life in np.flatnonzero(mask).tolist() if case.line_of(life) == line]
    mask = np.isin(np.arange(len(lives)), chosen)
    held = _sum(case, mask)
    if held < _MUCH_DATA * case.history.peak_bytes or not len(forward):
        return
    batches = len(chosen) > 2 and len(set(lives.requested[chosen].tolist())) == 1
    yield Draft(
        rule=MemoryRule.WHOLE_DATASET,
        title=f"{format_bytes(held)} that {line or 'one line'} made lie on the device from before the first step to "
        "after the last one",
        where=line,
        then_bytes=case.peak_with(sizes=np.where(mask & ~_largest(case, mask), 0, case.sizes)),
        is_certain=batches,
        action="If each step uses a part, as of a data set, keep it in pinned memory of the host and copy each step's "
        "part (x.to(device, non_blocking=True)).",
        costs="A copy in each step, which can run beside the step before.",
        evidence=("It is allocated outside of modules before the first forward pass, and not freed while steps run.",),
        wrong_if="each step needs all of it, as of a cache, or copying its part takes longer than a step",
    )


def _largest(case: Case, mask: np.ndarray) -> np.ndarray:
    """Return a mask of the largest of several lives: one batch of those that a step takes; none of a single one."""
    chosen = np.zeros(len(mask), dtype=bool)
    if mask.sum() > 1:
        chosen[int(np.argmax(np.where(mask, case.lives.bytes, 0)))] = True
    return chosen


# ---------------------------------------------------------------- what is reserved


class _Tried(Struct, frozen=True, kw_only=True):
    change: Change
    rule: MemoryRule
    title: str
    action: str
    costs: str
    wrong_if: str


def reserved(case: Case) -> Iterator[Draft]:
    """Replay the allocator with other settings, streams and pools."""
    now, allocated = int(case.history.reserved.max()), case.history.peak_bytes
    if not case.is_replayed_right:
        return
    unused = now - allocated
    drafts = (
        [_replayed(case, tried) for tried in _tried(case)] if unused >= max(LEAST_SHARE * now, _LEAST_UNUSED) else []
    )
    yield from drafts
    best = min((draft.then_bytes for draft in drafts), default=now)
    much = unused >= max(_MUCH * now, _LEAST_UNUSED)
    if best > (1 - LEAST_SHARE) * now and (much or case.refused_by_pieces):
        yield _in_pieces(case)


def _in_pieces(case: Case) -> Draft:
    """Say that memory is fragmented where no change saves any, and whether requests would fit with a setting."""
    row = _most_unused(case)
    held, free = int(case.history.allocated[row]), int(case.history.reserved[row] - case.history.allocated[row])
    then = case.replay(Change(replace(case.settings, is_expandable=True)), limit=case.limit[1] - 1)
    fits = case.refused_by_pieces and not case.settings.is_expandable and not then.refused
    needed = int(then.reserved.max()) if fits else int(case.history.reserved.max())
    return Draft(
        rule=MemoryRule.FRAGMENTATION,
        title=f"{format_bytes(free)} are reserved and free beside {format_bytes(held)} that are allocated, in pieces "
        "that do not fit the requests",
        where=None,
        then_bytes=needed,
        action="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the program starts: all requests then fit "
        f"into {format_bytes(needed)}."
        if fits
        else "Allocate large tensors that live long first, and free those between before the next large request; no "
        "setting of the allocator gives back enough.",
        costs="Mapping and unmapping pages takes time where memory grows and shrinks; it was not measured here."
        if fits
        else "Nothing.",
        evidence=("Every setting was replayed by the allocator's rules; see the table of settings.",),
        wrong_if="the free memory is used again later than the history goes",
        of="reserved",
        always=True,
    )


def _most_unused(case: Case) -> int:
    """Return when most was reserved, after its request; where one was refused, that."""
    refused = np.flatnonzero(case.memory.events.action == Action.OOM)
    if len(refused):
        return int(refused[-1])
    row = int(np.argmax(case.history.reserved))
    return min(row + 1, case.count)


def _replayed(case: Case, tried: _Tried) -> Draft:
    now, allocated = format_bytes(int(case.history.reserved.max())), format_bytes(case.history.peak_bytes)
    left_out = _workspaces_of_streams(case) if tried.change.one_stream else None
    then = case.replay(tried.change, limit=UNLIMITED, left_out=left_out)
    return Draft(
        rule=tried.rule,
        title=tried.title,
        where=None,
        then_bytes=int(then.reserved.max()),
        action=tried.action,
        costs=tried.costs,
        evidence=(
            f"Of {now} reserved, at most {allocated} were allocated.",
            "All requests were replayed by the allocator's rules, with this change alone.",
        ),
        wrong_if=tried.wrong_if,
        of="reserved",
    )


def _tried(case: Case) -> Iterator[_Tried]:
    settings = case.settings
    now, allocated = format_bytes(int(case.history.reserved.max())), format_bytes(case.history.peak_bytes)
    pools = {segment.pool for segment in case.memory.segments if segment.pool[0]}  # made by captures
    streams = set(case.lives.stream[case.lives.begin >= 0].tolist())
    if not settings.is_expandable:
        yield _Tried(
            change=Change(replace(settings, is_expandable=True)),
            rule=MemoryRule.FRAGMENTATION,
            title=f"{now} are reserved for at most {allocated} that are allocated: free blocks do not fit the requests",
            action="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the program starts.",
            costs="Mapping and unmapping pages takes time where memory grows and shrinks; it was not measured here.",
            wrong_if="tensors are shared with other processes, which expandable segments limit",
        )
    if len(pools) > 1:
        yield _Tried(
            change=Change(settings, one_pool=True),
            rule=MemoryRule.GRAPH_POOLS,
            title=f"{len(pools)} private pools of CUDA graphs share nothing",
            action="Capture the graphs with one pool, the largest first: pool = torch.cuda.graph_pool_handle(); "
            "torch.cuda.graph(g, pool=pool).",
            costs="Nothing, if no two of these graphs run at once.",
            wrong_if="graphs run at once, or what one returned is read after another ran",
        )
    if len(streams) > 1:
        yield _Tried(
            change=Change(settings, one_stream=True),
            rule=MemoryRule.SEVERAL_STREAMS,
            title=f"{len(streams)} streams have free blocks of their own, which the others cannot use",
            action="Allocate on one stream, and use others only for work that overlaps with it.",
            costs="What overlapped on several streams then runs in turn.",
            wrong_if="the work on these streams overlaps",
        )
    if (case.memory.events.action == Action.FREE_REQUESTED).any():
        yield _Tried(
            change=Change(settings, at_once=True),
            rule=MemoryRule.RECORDED_STREAMS,
            title="Blocks that another stream used (record_stream) wait before they can be used again",
            action="Let the allocating stream wait for the other one (stream.wait_stream) before the tensor is freed, "
            "instead of calling record_stream.",
            costs="Work that is launched after it waits for the other stream.",
            wrong_if="the work on the other stream has to overlap with what follows",
        )


def _workspaces_of_streams(case: Case) -> np.ndarray:
    """Return a mask of the workspaces that one stream would not need again."""
    mask = case.owned.of(Owner.WORKSPACE)
    seen: set[tuple[int, str]] = set()
    for life in np.flatnonzero(mask).tolist():
        key = (int(case.lives.requested[life]), str(case.owned.phase[max(int(case.lives.begin[life]), 0)]))
        mask[life] = key in seen
        seen.add(key)
    return mask


RULES: Final[tuple[Callable[[Case], Iterator[Draft]], ...]] = (
    checkpoint,
    low_precision,
    optimizer_temporaries,
    optimizer_states,
    vocabulary_loss,
    zeroed_gradients,
    late_zero_grad,
    growth,
    growing_cache,
    evaluation_graph,
    previous_output,
    loaded_copy,
    whole_dataset,
    reserved,
)
