"""Rules on names: each has a real name that it is for and says where that was seen, and is needed for it."""

import re

import pytest

from opscope.knowledge.api_calls import API_RULES, api_call
from opscope.knowledge.categories import COLLECTIVE_RANGES, COMPILED_NAMES, Category, Classifier
from opscope.knowledge.kernels.kinds import collective_rules, communicates, kind_of
from opscope.knowledge.kernels.names import base_name, library_of, library_rules
from opscope.knowledge.native_functions import NativeFunctions
from opscope.knowledge.rules import NameRule

LIBRARIES = [*library_rules("names"), *library_rules("parameters")]
EVERY = [*(rule for _, rule in LIBRARIES), *collective_rules(), *COLLECTIVE_RANGES, *COMPILED_NAMES]


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.pattern)
def test_every_rule_has_an_example_that_it_finds_and_an_origin(rule: NameRule) -> None:
    assert len(rule.origin.split()) >= 2
    name = rule.example.removeprefix("void ")
    flags = re.IGNORECASE if rule in collective_rules() else re.NOFLAG
    # A function's name stands at the beginning, after its return type, or within a wrapper's brackets.
    places = [0, *(match.end() for match in re.finditer(r"::type |Kernel2?<", name))]
    candidates = [base_name(name), *(name[place:] for place in places)]
    assert any(re.search(rule.pattern, candidate, flags) for candidate in candidates)


@pytest.mark.parametrize(("library", "rule"), LIBRARIES, ids=lambda part: getattr(part, "pattern", part))
def test_the_library_of_every_example_is_that_of_its_rule(library: str, rule: NameRule) -> None:
    assert library_of(rule.example) == library


def test_no_rule_has_alternatives_without_an_example_of_their_own() -> None:
    """An alternative at the top of a pattern would be a rule without an example."""
    for rule in EVERY:
        depth, top = 0, []
        for character in rule.pattern:
            depth += (character in "([") - (character in ")]")
            top.append(character == "|" and depth == 0)
        assert not any(top), rule.pattern


@pytest.mark.parametrize("rule", collective_rules(), ids=lambda rule: rule.pattern)
def test_kernels_between_devices_are_known_by_name(rule: NameRule) -> None:
    assert communicates(rule.example)
    kind = kind_of(rule.example)
    assert kind is not None
    assert kind.category is Category.COMMUNICATION


@pytest.mark.parametrize("name", ["void dpsk::ep::internode::dispatch<false, 3>(int4*)", "aiter::allgather_vec"])
def test_communication_has_one_owner(name: str) -> None:
    """What a table calls communication is not computation in the accounting of exposed time."""
    kind = kind_of(name)
    assert kind is not None
    assert kind.category is Category.COMMUNICATION
    assert communicates(name)


def test_computation_is_not_communication() -> None:
    assert not communicates(
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
    )
    assert not communicates("ampere_sgemm_128x64_nn")


@pytest.mark.parametrize("rule", [*COMPILED_NAMES, *COLLECTIVE_RANGES], ids=lambda rule: rule.pattern)
def test_names_of_ranges_and_of_compiled_code_have_their_category(rule: NameRule) -> None:
    found = Classifier(NativeFunctions.shipped()).classify(rule.example).category
    assert found is (Category.COMPILED if rule in COMPILED_NAMES else Category.COMMUNICATION)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("void at::native::foo<cudnnHandle_t>(int)", None),  # ATen's, whatever its parameters mention
        ("void my_kernel(float*)", None),
        ("void scal_kernel<float, float, float, 1, true, 6, 5, 5, 3>(cudnnTransposeParams<float>, float)", "cuDNN"),
        ("void scal_kernel<float, float, 1, true, 6, 5, 5, 3>(cublasTransposeParams<float>, float const*)", "cuBLAS"),
        ("", None),
    ],
)
def test_parameters_decide_only_for_functions_without_a_namespace(name: str, library: str | None) -> None:
    assert library_of(name) == library


def test_every_rule_on_calls_has_examples_that_it_decides() -> None:
    for rule in API_RULES:
        assert rule.examples
        for name in rule.examples:
            assert api_call(name) == rule.call, name


@pytest.mark.parametrize(
    "name",
    [
        "void pplx::a2a_dispatch_recv_kernel<7168>",
        "a2a_combine_send",
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, 16>(Params)",
    ],
)
def test_exchanges_by_words_are_communication_in_bars_and_tables(name: str) -> None:
    kind = kind_of(name)
    assert kind is not None
    assert kind.category is Category.COMMUNICATION
    assert communicates(name)
