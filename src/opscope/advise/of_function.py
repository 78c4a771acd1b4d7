"""The variant of a function's step, which can be called."""

from collections.abc import Callable

import torch

from opscope.advise.found import Reached, reached_from
from opscope.advise.loaders import Loaders
from opscope.advise.routine import Routine, T, drive
from opscope.advise.seeds import seed
from opscope.advise.variant import Variant
from opscope.record.configuration import Configuration
from opscope.workloads.choice import build


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

    def _run(self) -> object:
        with self.changed():
            return self._step()
