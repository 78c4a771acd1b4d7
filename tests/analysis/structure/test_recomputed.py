"""When checkpointing itself runs: by Python frames, worked out by hand."""

from collections.abc import Callable

from opscope.analysis.structure.modules import checkpointing
from opscope.trace.model import Trace
from tests.kineto import KinetoTrace

Load = Callable[[KinetoTrace], Trace]
US = 1_000
CHECKPOINT = "torch/utils/checkpoint.py(348): checkpoint"


def test_checkpointing_is_what_its_frames_do_themselves(load: Load) -> None:
    built = KinetoTrace()
    built.slice("python_function", "train.py(3): step", 0, 1_000 * US)
    built.slice("python_function", CHECKPOINT, 100 * US, 500 * US)
    built.slice("python_function", "contextlib.py(132): __enter__", 110 * US, 40 * US)  # is called by it: its own time
    built.slice("python_function", "<built-in method empty of type object>", 160 * US, 10 * US)
    # What it wraps is not, but the hook that it runs for a tensor that is saved there is; and so on.
    built.slice("python_function", "model.py(7): layer", 200 * US, 300 * US)
    built.slice("python_function", "torch/nn/functional.py(9): linear", 220 * US, 200 * US)
    built.slice("python_function", "torch/utils/checkpoint.py(1129): pack_hook", 300 * US, 20 * US)
    built.slice("python_function", "torch/nn/parameter.py(1): __new__", 305 * US, 5 * US)
    # On autograd's thread the backward pass that a hook calls is none of it.
    built.slice("python_function", "torch/utils/checkpoint.py(311): backward", 2_000 * US, 100 * US, tid=200)
    built.slice("python_function", "torch/autograd/__init__.py(244): backward", 2_050 * US, 30 * US, tid=200)
    trace = load(built)
    origin = int(trace.frames["start_ns"].to_numpy().min())
    spans = [
        [((int(a) - origin) // US, (int(b) - origin) // US) for a, b in zip(time.start, time.end, strict=True)]
        for _, time in sorted(checkpointing(trace), key=lambda one: int(one[1].start[0]))
    ]
    assert spans == [
        [(100, 200), (300, 305), (310, 320), (500, 600)],
        [(2_000, 2_050), (2_080, 2_100)],
    ]


def test_without_stacks_nothing_is_known(load: Load) -> None:
    built = KinetoTrace()
    built.launched_kernel("k", (0, US), (2 * US, US))
    assert checkpointing(load(built)) == []
    built.slice("python_function", "train.py(3): step", 0, US)
    assert checkpointing(load(built)) == []
