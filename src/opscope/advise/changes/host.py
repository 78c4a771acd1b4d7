"""Changes of what the host does beside launching work: autograd's records, waits for the device, checks and threads."""

import ast
from functools import partial
from typing import TYPE_CHECKING, Final

from opscope.advise.changes.change import (
    INFERENCE,
    ON_CPU,
    ON_GPU,
    Change,
    Condition,
    SourceEdit,
    by_hand,
    for_process,
    needs,
)
from opscope.base.processes import cores
from opscope.documents.advise import ChangeName

if TYPE_CHECKING:
    from opscope.advise.variant import Variant
    from opscope.advise.writer import Writer

_WAITS: Final[Condition] = (lambda facts: bool(facts.waits), "no number is fetched from the GPU by item() in a step")
_DETECTS_ANOMALIES: Final[Condition] = (lambda facts: facts.detects_anomalies, "anomaly detection is off")
_IDLE_CORES: Final[Condition] = (
    lambda facts: facts.threads < cores(),
    "PyTorch uses a thread for each core already",
)
_SEVERAL_THREADS: Final[Condition] = (lambda facts: facts.threads > 1, "PyTorch uses one thread already")


def _inference_mode(variant: "Variant") -> None:
    import torch

    variant.within(torch.inference_mode)


INFERENCE_MODE: Final = Change(
    name=ChangeName.INFERENCE_MODE,
    slots=("autograd",),
    refuses=needs(INFERENCE),
    edit=SourceEdit(("with torch.inference_mode():",), lambda writer: writer.without_gradients()),
    caveat="what is made inside takes no part in autograd later",
    apply=_inference_mode,
)


def _defer(variant: "Variant") -> None:
    from opscope.advise.deferring import defer

    variant.deferred = defer(variant.device.type)


def _is_put_off(variant: "Variant") -> str | None:
    counted = variant.deferred
    assert counted is not None
    return None if counted.fetched < counted.made else "each number is looked at in the step that fetches it"


DEFERRED_ITEMS: Final = Change(
    name=ChangeName.DEFERRED_ITEMS,
    slots=("waits",),
    refuses=needs(ON_GPU, _WAITS),
    edit=by_hand(
        "total += loss.detach()  # instead of loss.item(), in WAITS",
        "print(total.item())  # where it is looked at",
    ),
    caveat="the host runs ahead of the GPU then, and errors of the GPU are reported later",
    apply=_defer,
    took_effect=_is_put_off,
)


def _without_anomaly_detection(_: "Variant") -> None:
    import torch

    torch.autograd.set_detect_anomaly(False)


def _detects_none(_: "Variant") -> str | None:
    import torch

    return "the step turns it on again" if torch.is_anomaly_enabled() else None


def _write_no_anomaly_detection(writer: "Writer") -> None:
    """Turn it off where the script turns it on."""
    from opscope.advise.source import NotWritableError

    source = writer.source(writer.script)
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    turned_on = [call for call in calls if ast.unparse(call.func).endswith("set_detect_anomaly")]
    if not turned_on:
        raise NotWritableError("anomaly detection is not turned on by set_detect_anomaly in the script")
    for call in turned_on:
        values = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "mode")]
        if not values:
            raise NotWritableError(f"line {call.lineno} of {source.path.name} does not say on or off")
        source.rename(values[0], "False")


NO_ANOMALY_DETECTION: Final = Change(
    name=ChangeName.NO_ANOMALY_DETECTION,
    slots=("checks",),
    refuses=needs(_DETECTS_ANOMALIES),
    edit=SourceEdit(("torch.autograd.set_detect_anomaly(False)",), _write_no_anomaly_detection),
    caveat="NaN in a backward pass is no longer reported where it arises",
    apply=_without_anomaly_detection,
    took_effect=_detects_none,
)


def _all_threads(_: "Variant") -> None:
    import torch

    torch.set_num_threads(cores())


ALL_THREADS: Final = Change(
    name=ChangeName.ALL_THREADS,
    slots=("threads",),
    refuses=needs(ON_CPU, _IDLE_CORES),
    edit=for_process("TORCH.set_num_threads(CORES)"),
    apply=_all_threads,
)


def _share_of_threads(share: float, variant: "Variant") -> None:
    import torch

    variant.notes["threads"] = torch.get_num_threads()
    torch.set_num_threads(max(1, round(torch.get_num_threads() * share)))


HALF_THREADS: Final = Change(
    name=ChangeName.HALF_THREADS,
    slots=("threads",),
    refuses=needs(ON_CPU, _SEVERAL_THREADS),
    edit=for_process("TORCH.set_num_threads(THREADS)"),
    apply=partial(_share_of_threads, 0.5),
)
