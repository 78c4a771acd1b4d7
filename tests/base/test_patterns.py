"""Patterns that wait: they answer as compiled ones do, and are compiled when they are first asked."""

import copy
import pickle
import re
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from opscope.base.text import lazy_pattern

TEXT = r"(?P<word>[a-c]+)-(\d+)"


@given(st.text("abc-123 "))
def test_answers_are_those_of_a_compiled_pattern(text: str) -> None:
    lazy, compiled = lazy_pattern(TEXT, re.IGNORECASE), re.compile(TEXT, re.IGNORECASE)
    assert lazy.findall(text) == compiled.findall(text)
    assert [match.span() for match in lazy.finditer(text)] == [match.span() for match in compiled.finditer(text)]
    assert (lazy.search(text) is None) == (compiled.search(text) is None)
    assert lazy.sub("", text) == compiled.sub("", text)
    assert (lazy.pattern, lazy.flags, lazy.groups) == (compiled.pattern, compiled.flags, compiled.groups)


def test_it_is_compiled_once_and_not_before_it_is_used() -> None:
    with mock.patch("opscope.base.text.re.compile", wraps=re.compile) as compiling:
        pattern = lazy_pattern(rb"\d+")
        assert compiling.call_count == 0
        assert pattern.search(b"a1") is not None
        assert pattern.match(b"a1") is None
        assert compiling.call_count == 1


def test_it_can_be_copied_and_sent() -> None:
    pattern = lazy_pattern("a+", re.IGNORECASE)
    for other in (copy.copy(pattern), copy.deepcopy(pattern), pickle.loads(pickle.dumps(pattern))):
        assert other.search("xA") is not None
    assert repr(pattern).startswith("lazy_pattern('a+'")
