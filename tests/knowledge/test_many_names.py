"""Patterns looked for in many names at once: the answer is the one that Python's engine gives for each name alone."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.knowledge.categories import _PATTERNS, Classifier
from opscope.knowledge.kernels.kinds import collective_rules, communicates, learn_communication, word_rules
from opscope.knowledge.many_names import unmatched
from opscope.knowledge.native_functions import NativeFunctions
from opscope.knowledge.rules import MANY_NAMES
from tests.budget import examples

PATTERNS = [
    *(re.compile(pattern.pattern) for pattern in _PATTERNS),
    *(re.compile(rule.pattern, re.IGNORECASE) for rule in collective_rules()),
    *(re.compile(rule.rule.pattern) for rule in word_rules()),
    re.compile(r"^a(?!b)"),
    re.compile(r"(a)\1"),
    re.compile(r"x$"),
]
WORDS = st.sampled_from(
    [
        "all_reduce",
        "ncclDevKernel",
        "mm",
        "conv2d",
        "attn",
        "softmax",
        "fused",
        "moe",
        "topk",
        "aa",
        "ab",
        "x",
        "::",
        "_",
    ]
)
NAMES = st.lists(st.lists(WORDS | st.text(max_size=3), max_size=5).map("".join), max_size=20)


@settings(max_examples=examples(200), deadline=None)
@given(NAMES)
def test_both_engines_find_the_same(names: list[str]) -> None:
    silent = unmatched(names, PATTERNS)
    for name in names:
        found = any(pattern.search(name) for pattern in PATTERNS)
        plain = name.isascii() and name.isprintable()
        assert (name in silent) == (plain and not found)


@pytest.mark.parametrize("base", ["my_op_{}", "all_reduce_{}", "foo{}_conv2d", "softmax_{}", "über_{}"])
def test_what_was_learned_changes_no_answer(base: str) -> None:
    names = [f"mylib::{base.format(number)}" for number in range(MANY_NAMES)]
    functions = NativeFunctions.shipped()
    learned = Classifier(functions)
    learned.learn(names)
    alone = Classifier(functions)
    assert [learned.classify(name) for name in names[:50]] == [alone.classify(name) for name in names[:50]]
    before = [communicates(name) for name in names[:50]]
    communicates.cache_clear()
    learn_communication(names)
    assert [communicates(name) for name in names[:50]] == before


def test_a_pattern_that_only_python_knows_is_left_to_it() -> None:
    assert unmatched(["a_b", "b"], [re.compile(r"a\_b")]) == frozenset({"b"})
