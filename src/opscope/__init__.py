"""opscope: which operators and kernels a PyTorch program runs, what they cost, and what bounds them.

Functions:

- ``opscope.analyze("trace.json.gz")``: what bounds a trace, what to do first, every table. Needs no PyTorch.
- ``opscope.read("trace.json.gz")``: the records of a trace as tables.
- ``opscope.profile(model, inputs)``, or ``with opscope.profile() as session:``: profile a step, or any code.
- ``opscope.advise("train.py")``: which known changes make a program faster, timed and proven.
- ``opscope.bench({"one": f, "two": g}, inputs=(x,))``: which function is faster, and whether both are right.
- ``opscope.diff(before, after)``: what changed between two runs, traces or analyses.
- ``opscope.ranks("traces/")``: the traces of a job's ranks together: which are late, and why.
- ``opscope.whatif("trace.json.gz", scale={"aten::mm": 0.5})``: a step as it would be with some changes.
- ``opscope.load_kernel("add.cu", {"add": fake})``: an operator from a CUDA source.

The public names are imported on first use, so that ``import opscope`` is quick and needs no PyTorch.
"""

import importlib

from opscope._version import __version__

# Not from typing: under ``python -m opscope`` the current folder is on the module path until `opscope.__main__` runs,
# and so nothing may be imported here that the start of the interpreter has not.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from opscope.analysis.measured import Measured
    from opscope.api.advise import advise
    from opscope.api.analyze import Analysis, analyze
    from opscope.api.bench import Comparison, bench
    from opscope.api.diff import Diff, diff
    from opscope.api.profile import ProfileSession, Run, profile
    from opscope.api.ranks import JobOfRanks, ranks
    from opscope.api.whatif import whatif
    from opscope.base.errors import BadInputError, EnvironmentLacksError, InconclusiveError, OpscopeError, UsageError
    from opscope.documents.findings import Finding
    from opscope.knowledge.devices import Device
    from opscope.readers.reading import read
    from opscope.report.page.html import Page
    from opscope.trace.model import Trace
    from opscope.workbench.toolchain.load_kernel import Requires, load_kernel

__all__ = [
    "Analysis",
    "BadInputError",
    "Comparison",
    "Device",
    "Diff",
    "EnvironmentLacksError",
    "Finding",
    "InconclusiveError",
    "JobOfRanks",
    "Measured",
    "OpscopeError",
    "Page",
    "ProfileSession",
    "Requires",
    "Run",
    "Trace",
    "UsageError",
    "__version__",
    "advise",
    "analyze",
    "bench",
    "diff",
    "load_kernel",
    "profile",
    "ranks",
    "read",
    "whatif",
]

_HOMES = {
    "advise": "opscope.api.advise",
    "Analysis": "opscope.api.analyze",
    "analyze": "opscope.api.analyze",
    "ProfileSession": "opscope.api.profile",
    "Run": "opscope.api.profile",
    "profile": "opscope.api.profile",
    "Comparison": "opscope.api.bench",
    "bench": "opscope.api.bench",
    "Diff": "opscope.api.diff",
    "diff": "opscope.api.diff",
    "JobOfRanks": "opscope.api.ranks",
    "ranks": "opscope.api.ranks",
    "whatif": "opscope.api.whatif",
    "BadInputError": "opscope.base.errors",
    "EnvironmentLacksError": "opscope.base.errors",
    "OpscopeError": "opscope.base.errors",
    "InconclusiveError": "opscope.base.errors",
    "UsageError": "opscope.base.errors",
    "Device": "opscope.knowledge.devices",
    "Finding": "opscope.documents.findings",
    "Measured": "opscope.analysis.measured",
    "Trace": "opscope.trace.model",
    "read": "opscope.readers.reading",
    "Page": "opscope.report.page.html",
    "Requires": "opscope.workbench.toolchain.load_kernel",
    "load_kernel": "opscope.workbench.toolchain.load_kernel",
}


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module 'opscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    value.__module__ = __name__  # where users import it from, whatever the file
    return value
