"""Which library a kernel belongs to, by its name: for libraries whose source is closed, or not ATen's."""

import re
from typing import Final

from opscope.knowledge.kernels.library_rules import LIBRARY_RULES, PARAMETER_RULES
from opscope.knowledge.kernels.names import base_name
from opscope.knowledge.rules import compiled

_BY_NAME: Final = tuple((library, compiled(rules)) for library, rules in LIBRARY_RULES)
_BY_PARAMETERS: Final = tuple((library, compiled(rules)) for library, rules in PARAMETER_RULES)
_WRAPPED = re.compile(r"cutlass\w*::Kernel2?<(?P<inner>cutlass_\w+)>")


def library_of(name: str) -> str | None:
    """Return the library that a kernel's name belongs to; None if no rule knows it.

    What decides is the function's own qualified name: the parameters of an ATen kernel may well mention cuDNN. Those of
    a function without a namespace are the library's own types, and tell more than a name such as ``scal_kernel``.
    """
    plain = name.strip().removeprefix("void ")
    base = base_name(plain)
    if "::" not in base and (place := plain.find(base)) >= 0:
        rest = plain[place + len(base) :]
        for library, rule in _BY_PARAMETERS:
            if rest and rule.search(rest):
                return library
    wrapped = _WRAPPED.match(plain)
    names = (wrapped["inner"], base) if wrapped else (base,)
    for library, rule in _BY_NAME:
        if any(rule.search(candidate) for candidate in names):
            return library
    return None
