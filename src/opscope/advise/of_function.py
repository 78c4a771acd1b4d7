"""The variant of a function's step, which can be called."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from opscope.advise.found import Reached, python_state, reached_from, tensors_held
from opscope.advise.loaders import Loaders
from opscope.advise.routine import Routine, T, drive, seed
from opscope.advise.variant import Variant
from opscope.record.configuration import Configuration
from opscope.workloads.choice import build_workload

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
        workload = build_workload(configuration, device)
        super().__init__(workload.device, loaders)
        self._step: Callable[[], object] = workload.step
        self._graph: torch.cuda.CUDAGraph | None = None
        self._returned: object = None

    def drive(self, routine: Routine[T]) -> T:
        """Call the step as often as the routine waits for one."""
        return drive(routine, self._run)

    def reached(self) -> Reached:
        """Return what the step refers to."""
        return reached_from(self._step)

    def python_state(self) -> dict[str, object]:
        """Return the values other than tensors that the step reaches, by the way to them."""
        return python_state(self._step)

    def held_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the step reaches, by the way to them, without those of modules."""
        return tensors_held(self._step)

    def capture(self) -> None:
        """Have the step replayed as one CUDA graph from now on; what it returns is overwritten by the next replay.

        No step is taken: what those change that run before the capture is put back.
        """
        for optimizer in self.optimizers:  # counts of steps must be on the device
            state = optimizer.state_dict()
            for group in state["param_groups"]:
                if "capturable" in group:
                    group["capturable"] = True
            optimizer.load_state_dict(state)
        with self._unchanged():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_BEFORE_CAPTURE):
                    self._run_as_it_is()
            torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.capturing = True
        try:
            with torch.cuda.graph(graph):
                self._returned = self._run_as_it_is()
        except RuntimeError as error:
            # What ends the capture complains, too, and about nothing that helps.
            raise error.__context__ or error from None
        finally:
            self.capturing = False
        self._graph = graph

    def capture_again(self) -> None:
        """Capture a step that is one graph anew, with what listens to it by now."""
        if self._graph is not None:
            self.capture()

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Put back what steps that run inside change: parameters, buffers, gradients, optimizers, generators."""
        of_optimizers = [
            one for optimizer in self.optimizers for group in optimizer.param_groups for one in group["params"]
        ]
        held = [tensor for top in self.tops for tensor in (*top.parameters(), *top.buffers())] + of_optimizers
        held += [one.grad for one in (*self.parameters, *of_optimizers) if one.grad is not None]
        held += [
            value
            for optimizer in self.optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]
        held = list({id(tensor): tensor for tensor in held}.values())
        copies = [tensor.detach().clone() for tensor in held]
        self.preparing = True
        try:
            with torch.random.fork_rng(devices=[self.device]), torch.no_grad():
                with torch.enable_grad():
                    yield
                for tensor, copy in zip(held, copies, strict=True):
                    tensor.copy_(copy)
        finally:
            self.preparing = False

    def _run(self) -> object:
        if self._graph is None:
            return self._run_as_it_is()
        self._graph.replay()
        return self._returned

    def _run_as_it_is(self) -> object:
        with self.changed():
            return self._step()
