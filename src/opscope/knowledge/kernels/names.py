"""Kernel names as keys: profilers, demanglers and compilers write the same C++ name in different ways.

By its name a kernel also belongs to a library, where that library's source is closed or not ATen's
(``data/kernel_names/libraries.toml``).
"""

import re
from functools import cache
from itertools import groupby
from typing import Final

from opscope.base.text import lazy_pattern
from opscope.knowledge.rules import NameRule, compiled, entries_of

_SPELLINGS = (
    ("(anonymous namespace)", "{anonymous}"),
    ("__cxx11::", ""),
    ("std::array<", "at::detail::Array<"),  # c10's own array was replaced by the standard one in PyTorch 2.6
    ("'lambda'", "{lambda"),
)
_TRAILING_INT = lazy_pattern(r"\b(unsigned )?(long|short) int\b")  # long int is long
_SUFFIXED = lazy_pattern(r"(\d)(?:ull|ul|ll|u|l)\b")  # 4ul is 4
_CLONE = lazy_pattern(r"\[clone [^\[\]]*\]")
_BOOL = lazy_pattern(r"\(bool\)([01])")  # (bool)1 is true
_CAST = lazy_pattern(r"\((?:unsigned |signed )?(?:int|long|short|char|long long)\)(-?\d)")  # (int)4 is 4
_SPACE = lazy_pattern(r"\s+")
_QUALIFIED = lazy_pattern(r"(?:[A-Za-z_~]\w*|\{anonymous\})(?:::(?:[A-Za-z_~]\w*|\{anonymous\}))*")
# What `common_spelling` brings into one form.
_LAMBDA = lazy_pattern(r"\[lambda(\((?:[^()]|\([^()]*\))*\))\(instance(\d+)\)\]")
_NAMESPACE = lazy_pattern(r"(?:\b[A-Za-z_]\w*|\{anonymous\})::(?!\{lambda)")
_NAMED_SPACE = lazy_pattern(r"\b(?!T\d+::)([A-Za-z_]\w*)::")  # T1 is a parameter of a template
_CONST = lazy_pattern(r"\bconst\b")
_RESULT = lazy_pattern(r"\bvoid (?=[A-Za-z_{])")
_EMPTY_PACK = lazy_pattern(r",(?=>)")
_TRUTH = lazy_pattern(r"\b(?:true|false)\b")
_PARENTHESIS = lazy_pattern(r"([()])")
_RETURN_TYPE = lazy_pattern(r"^(?:static )?(?:void|int|float|bool) ")
_IDENTIFIER = lazy_pattern(r"[A-Za-z_]\w*")
_LENGTH = lazy_pattern(r"\d{1,9}")
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


def canonical(name: str) -> str:
    """Return a readable kernel name in one spelling, without spaces."""
    name = name.strip().removeprefix("void ")
    for result, written in _SPELLINGS:
        name = name.replace(result, written)
    name = _TRAILING_INT.sub(r"\1\2", name)
    name = _SUFFIXED.sub(r"\1", name)
    if "[" in name:
        name = _CLONE.sub("", name)
    if ")" in name:
        name = _BOOL.sub(lambda match: "true" if match[1] == "1" else "false", name)
        name = _CAST.sub(r"\1", name)
    return _SPACE.sub("", name)


def common_spelling(name: str) -> str:
    """Return the part of a readable kernel name that all profilers write, in one spelling.

    Nsight Compute leaves out some of the namespaces, and writes parameters of templates as ``T1``, truth values as
    numbers and lambdas as ``[lambda(int) (instance 1)]``. So namespaces, ``void`` before a function, and parameters of
    templates are dropped; template arguments stay, and the parameters of lambdas and of functions without any.
    """
    name = _CONST.sub("", _RESULT.sub("", name.replace("<unnamed>", "{anonymous}")))
    name = _LAMBDA.sub(r"{lambda\1#\2}", canonical(name))
    name = _EMPTY_PACK.sub("", _NAMESPACE.sub("", name))
    head, bracket, _ = name.partition("(")
    if "<" in head or not bracket:
        name = _without_parameters(name)
    return _TRUTH.sub(lambda match: "1" if match[0] == "true" else "0", name)


def namespaces(name: str) -> frozenset[str]:
    """Return the namespaces and classes in which a readable kernel name says that something lies."""
    return frozenset(_NAMED_SPACE.findall(name))


def _without_parameters(name: str) -> str:
    """Drop what stands in parentheses, except where it belongs to a lambda."""
    kept: list[str] = []
    inside: list[bool] = []  # per open parenthesis: whether its text is kept
    for part in _PARENTHESIS.split(name):
        if part == "(":
            inside.append(bool(kept) and kept[-1].endswith("{lambda"))
        if all(inside[-1:]):
            kept.append(part)
        if part == ")" and inside:
            inside.pop()
    return "".join(kept)


def base_name(name: str) -> str:
    """Return the kernel function's qualified name without template arguments and parameters.

    ``void at::native::vectorized_elementwise_kernel<4, ...>(int, ...)`` gives
    ``at::native::vectorized_elementwise_kernel``.
    """
    name = name.strip()
    if name.startswith("_ZN"):
        return _base_of_mangled(name)
    # The type of the result stands first, and may be a template of its own.
    if name.startswith("std::enable_if") and ">::type " in name:
        name = name[name.rindex(">::type ") + len(">::type ") :]
    name = _RETURN_TYPE.sub("", name).replace("(anonymous namespace)", "{anonymous}")
    match = _QUALIFIED.match(name)
    return match[0] if match else name[:80]


def _base_of_mangled(name: str) -> str:
    """Read the length-prefixed parts of a nested name that a demangler gave up on."""
    parts, place = [], 3
    while match := _LENGTH.match(name, place):
        place = match.end() + int(match[0])
        part = name[match.end() : place]
        parts.append("{anonymous}" if part.startswith("_GLOBAL__N") else part)
    return "::".join(parts) or name


def identifiers(name: str) -> frozenset[str]:
    """Return all identifiers in a readable name."""
    return frozenset(_IDENTIFIER.findall(name))
