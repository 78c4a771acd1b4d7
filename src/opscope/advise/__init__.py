"""Tries known changes on the user's own step, times them, proves them, and only then recommends them.

The package can be called: ``opscope.advise(...)`` is `opscope.api.advise.advise`, also once a module of it was imported
and has taken the place of the function.
"""

import importlib
import sys
from types import ModuleType

# Not from typing: processes of variants import this package before anything else.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Callable(ModuleType):
    __module__ = "opscope"

    def __call__(self, *args: "Any", **kwargs: "Any") -> "Any":
        # By name, as `opscope` itself names what it offers: nothing here depends on it.
        return importlib.import_module("opscope.api.advise").advise(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
