"""Tells whether a module's parameters were updated between two of its calls, whoever did it.

Optimizers that torch.compile has compiled, and updates written by hand, call no ``step()`` that could be heard. PyTorch
counts the changes of each tensor, and of one parameter that count is looked at.
"""

import weakref
from typing import Any


class Updates:
    """Knows the last version of one parameter of each module."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[weakref.ref[Any], int] | None] = {}

    def since_last(self, number: int, module: Any) -> bool:
        """Tell whether the parameters have changed since this was asked last.

        Args:
            number: the module's own; see `opscope.collect.script.step_events.Identities`.
            module: whose parameters.
        """
        known = self._watched.get(number, False)
        if known is False:
            parameter = next((one for one in module.parameters() if one.requires_grad), None)
            self._watched[number] = None if parameter is None else (weakref.ref(parameter), _version(parameter))
            return False
        if not known:
            return False
        parameter = known[0]()  # type: ignore[index]
        if parameter is None:
            self._watched.pop(number)
            return False
        version = _version(parameter)
        self._watched[number] = (known[0], version)  # type: ignore[index]
        return version != known[1]  # type: ignore[index]


def _version(parameter: Any) -> int:
    try:
        return int(parameter._version)
    except RuntimeError:  # tensors of inference mode count nothing
        return 0
