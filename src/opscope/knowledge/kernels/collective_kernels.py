"""Kernels that move data between devices, by their names: for records that carry no collective's arguments.

The rules are in ``data/kernel_names/collectives.toml``.
"""

import re
from functools import cache

from opscope.knowledge.rules import NameRule, compiled, entries_of


@cache
def collective_rules() -> tuple[NameRule, ...]:
    """Return the rules, each with a real name that it is for."""
    return tuple(NameRule.of_entry(entry) for entry in entries_of("collectives.toml")["names"])


@cache
def _pattern() -> re.Pattern[str]:
    return compiled(collective_rules(), re.IGNORECASE)


def is_named_communication(name: str) -> bool:
    """Tell whether a kernel has the name of one that moves data between devices; see `kinds.communicates`."""
    return _pattern().search(name) is not None
