"""opscope: which operators and kernels a PyTorch program runs, what they cost, and what bounds them.

The public names are imported on first use, so that ``import opscope`` is quick and needs no PyTorch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from opscope._version import __version__

if TYPE_CHECKING:
    from opscope.analysis.analyzed import Analysis, analyze
    from opscope.api import ProfileSession, Run, profile
    from opscope.bench_api import Comparison, bench
    from opscope.diff_api import Diff, diff
    from opscope.errors import BadInputError, EnvironmentLacksError, InconclusiveError, OpscopeError, UsageError
    from opscope.model import Trace
    from opscope.readers import read
    from opscope.report.page.frame import Page
    from opscope.toolchain.operators import Requires, load_kernel

__all__ = [
    "Analysis",
    "BadInputError",
    "Comparison",
    "Diff",
    "EnvironmentLacksError",
    "InconclusiveError",
    "OpscopeError",
    "Page",
    "ProfileSession",
    "Requires",
    "Run",
    "Trace",
    "UsageError",
    "__version__",
    "analyze",
    "bench",
    "diff",
    "load_kernel",
    "profile",
    "read",
]

_HOMES = {
    "Analysis": "opscope.analysis.analyzed",
    "analyze": "opscope.analysis.analyzed",
    "ProfileSession": "opscope.api",
    "Run": "opscope.api",
    "profile": "opscope.api",
    "Comparison": "opscope.bench_api",
    "bench": "opscope.bench_api",
    "Diff": "opscope.diff_api",
    "diff": "opscope.diff_api",
    "BadInputError": "opscope.errors",
    "EnvironmentLacksError": "opscope.errors",
    "OpscopeError": "opscope.errors",
    "InconclusiveError": "opscope.errors",
    "UsageError": "opscope.errors",
    "Trace": "opscope.model",
    "read": "opscope.readers",
    "Page": "opscope.report.page.frame",
    "Requires": "opscope.toolchain.operators",
    "load_kernel": "opscope.toolchain.operators",
}


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'opscope' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
