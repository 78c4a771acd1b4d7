"""Tells whether a module's parameters were updated between two of its calls, by whatever means.

Optimizers compiled by torch.compile, and updates written by hand, call no ``step()`` that could be observed. PyTorch
counts the changes of each tensor in its version; the version of one parameter per module is watched.
"""

import weakref
from typing import Any


class Updates:
    """Knows the last version of one parameter of each module."""

    def __init__(self) -> None:
        # By the module's number; None for a module without trainable parameters.
        self._watched: dict[int, tuple[weakref.ref[Any], int] | None] = {}

    def since_last(self, number: int, module: Any) -> bool:
        """Tell whether a module's parameters have changed since the last time this was asked; False the first time.

        Args:
            number: the module's number; see `opscope.collect.script.step_events.Identities`.
            module: the module.
        """
        known = self._watched.get(number, False)
        if known is False:
            parameter = next((one for one in module.parameters() if one.requires_grad), None)
            self._watched[number] = None if parameter is None else (weakref.ref(parameter), _version(parameter))
            return False
        if not known:
            return False
        parameter = known[0]()  # type: ignore[index]
        if parameter is None:  # it was replaced by another: watch one anew at the next call
            self._watched.pop(number)
            return False
        version = _version(parameter)
        self._watched[number] = (known[0], version)  # type: ignore[index]
        return version != known[1]  # type: ignore[index]


def _version(parameter: Any) -> int:
    try:
        return int(parameter._version)
    except RuntimeError:  # tensors made in inference mode have no version
        return 0
