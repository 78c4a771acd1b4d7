"""The variant of a function's step, which can be called."""

from collections.abc import Callable
from typing import Final

import torch

from opscope.advise.found import Reached, python_state, reached_from
from opscope.advise.loaders import Loaders
from opscope.advise.routine import Routine, T, drive
from opscope.advise.seeds import seed
from opscope.advise.variant import Variant
from opscope.record.configuration import Configuration
from opscope.workloads.choice import build

_BEFORE_CAPTURE: Final = 3  # steps on another stream, in which libraries set up what a capture must not


class FunctionVariant(Variant):
    """The step of a function, or of a built-in workload.

    Args:
        configuration: what is built.
        device: where.
        loaders: hears of what it loads data with.

    Raises:
        Exception: whatever the function raises.
    """

    def __init__(self, configuration: Configuration, device: torch.device, loaders: Loaders) -> None:
        seed(0)
        workload = build(configuration, device)
        super().__init__(workload.device, loaders)
        self._step: Callable[[], object] = workload.step

    def drive(self, routine: Routine[T]) -> T:
        """Call the step as often as the routine waits for one."""
        return drive(routine, self._run)

    def reached(self) -> Reached:
        """Return what the step refers to."""
        return reached_from(self._step)

    def python_state(self) -> dict[str, object]:
        """Return the values other than tensors that the step reaches, by the way to them."""
        return python_state(self._step)

    def capture(self) -> None:
        """Have the step replayed as one CUDA graph from now on; what it returns is overwritten by the next replay."""
        for optimizer in self.optimizers:  # counts of steps must be on the device
            state = optimizer.state_dict()
            for group in state["param_groups"]:
                if "capturable" in group:
                    group["capturable"] = True
            optimizer.load_state_dict(state)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_BEFORE_CAPTURE):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            returned = self._run()

        def replay() -> object:
            graph.replay()
            return returned

        self._step = replay
        self.contexts.clear()  # they are in the graph
        self.before_step.clear()

    def _run(self) -> object:
        with self.changed():
            return self._step()
