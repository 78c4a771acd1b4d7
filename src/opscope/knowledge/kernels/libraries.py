"""Which library a kernel belongs to, by its name: for libraries whose source is closed, or not ATen's.

The rules are in ``data/kernel_names/libraries.toml``.
"""

import re
from functools import cache
from itertools import groupby
from typing import Final

from opscope.base.text import lazy_pattern
from opscope.knowledge.kernels.names import base_name
from opscope.knowledge.rules import NameRule, compiled, entries_of

_WRAPPED: Final = lazy_pattern(r"cutlass\w*::Kernel2?<(?P<inner>cutlass_\w+)>")


@cache
def library_rules(subject: str) -> tuple[tuple[str, NameRule], ...]:
    """Return libraries with a rule on the names of their kernels, in the order in which the rules are tried.

    Args:
        subject: what the rule looks at: ``names`` of functions, or types of ``parameters``.
    """
    entries = entries_of("libraries.toml")[subject]
    return tuple((str(entry["library"]), NameRule.of_entry(entry)) for entry in entries)


@cache
def _patterns(subject: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return one pattern for each run of rules that lead to the same library: fewer searches for every name."""
    runs = groupby(library_rules(subject), key=lambda rule: rule[0])
    return tuple((library, compiled(rule for _, rule in rules)) for library, rules in runs)


def library_of(name: str) -> str | None:
    """Return the library that a kernel's name belongs to; None if no rule knows it.

    What decides is the function's own qualified name: the parameters of an ATen kernel may well mention cuDNN. Those of
    a function without a namespace are the library's own types, and tell more than a name such as ``scal_kernel``.
    """
    plain = name.strip().removeprefix("void ")
    base = base_name(plain)
    if "::" not in base and (place := plain.find(base)) >= 0:
        rest = plain[place + len(base) :]
        for library, pattern in _patterns("parameters"):
            if rest and pattern.search(rest):
                return library
    wrapped = _WRAPPED.match(plain)
    names = (wrapped["inner"], base) if wrapped else (base,)
    for library, pattern in _patterns("names"):
        if any(pattern.search(candidate) for candidate in names):
            return library
    return None
