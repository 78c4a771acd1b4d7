"""Which combinations are tried, and which of them are the best."""

import subprocess
import sys

from opscope.advise.changes.change import Change, by_hand
from opscope.advise.changes.listed import BY_NAME, CHANGES, class_of, fit_together, in_order
from opscope.advise.search import best_of, first_tries, likeliest, second_tries, to_prove_first, without_broken
from opscope.advise.simulated import rounding
from opscope.documents.advise import ChangeName, ErrorClass
from tests.advise.facts import facts

FACTS = facts(convolutions=3, attention_choices=1)


def test_every_change_can_be_made_and_says_what_to_write() -> None:
    assert set(BY_NAME) == set(ChangeName)
    assert len(BY_NAME) == len(CHANGES)
    assert all(change.edit.lines for change in CHANGES)
    nothing = Change(name=ChangeName.TF32, slots=(), refuses=lambda _: None, edit=by_hand())
    assert all(one.apply is not nothing.apply or one.prepare is not nothing.prepare for one in CHANGES)
    # What is less precise has arithmetic that can be simulated, or weights that are rounded.
    assert {one.name for one in CHANGES if rounding(one.name) is not None} == {
        one.name for one in CHANGES if one.error_class not in (ErrorClass.EXACT, ErrorClass.LOWER)
    }
    assert all((one.arithmetic is None) == (one.error_class is ErrorClass.EXACT) for one in CHANGES)


def test_who_reads_the_list_needs_no_pytorch() -> None:
    code = "import sys, opscope.advise.changes.listed as listed; sys.exit('torch' in sys.modules or not listed.CHANGES)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_makes_no_sense_is_refused() -> None:
    refused = {change.name for change in CHANGES if change.refuses(FACTS) is not None}
    training = {"fused_optimizer", "foreach_optimizer", "set_to_none", "no_anomaly_detection", "autocast_fp16"}
    on_cpus, of_loaders = {"half_threads", "all_threads"}, {"loader_workers", "pinned_memory", "persistent_workers"}
    not_found = {"fused_attention", "padded_products", "deferred_items", "int8_weights"}
    assert refused == training | on_cpus | of_loaders | not_found


def test_first_known_combinations_then_each_alone() -> None:
    possible = [change.name for change in CHANGES if change.refuses(FACTS) is None]
    tries, alone = first_tries(possible), [name for name in possible if BY_NAME[name].alone]
    assert {names for names in tries if len(names) == 1} == {(name,) for name in alone}
    assert not any("compile_max_autotune" in names for names in tries)  # it takes minutes
    assert set(possible) - set(alone) == {"compile_max_autotune", "compile_dynamic"}
    # What is most often the best comes first, as time may be up before all is tried.
    assert tries.index(("sdpa", "tf32", "compile_reduce_overhead")) < tries.index(("tf32",))
    assert tries.index(("sdpa", "compile")) > tries.index(("tf32",))
    assert len(set(tries)) == len(tries)
    assert all(fit_together(names) and names == in_order(names) for names in tries)
    assert first_tries(["compile"]) == [("compile",)]
    assert first_tries(["compile_max_autotune"]) == [("compile_max_autotune",)]  # nothing that it could stand in for


def test_what_fails_alone_is_left_out_of_the_rest() -> None:
    tries = [("sdpa",), ("sdpa", "tf32"), ("tf32",), ("sdpa", "compile"), ("compile",)]
    assert without_broken(tries, {"sdpa"}) == [("sdpa",), ("tf32",), ("compile",)]
    assert without_broken(tries, set()) == tries
    assert without_broken([("sdpa", "tf32")], {"sdpa", "tf32"}) == []


def test_the_best_of_each_class_is_the_shortest_of_the_fastest() -> None:
    gains = {
        ("compile",): 1.99,
        ("compile", "inference_mode"): 2.0,
        ("sdpa",): 1.01,
        ("tf32", "compile"): 1.5,
        ("autocast_bf16",): 0.7,
    }
    assert best_of(gains, 1.02) == {ErrorClass.EXACT: ("compile",), ErrorClass.TF32: ("tf32", "compile")}
    assert best_of({("compile",): 1.01}, 1.02) == {}
    assert class_of(("compile", "tf32")) is ErrorClass.TF32
    assert class_of(("weights_fp16", "tf32")) is ErrorClass.BF16


def test_then_what_lies_around_the_best() -> None:
    gains = {
        ("tf32",): 1.2,
        ("sdpa",): 1.0,
        ("compile",): 1.5,
        ("compile_reduce_overhead",): 1.4,
        ("channels_last",): 0.8,
        ("tf32", "compile"): 2.0,
    }
    possible = ["sdpa", "tf32", "channels_last", "compile", "compile_reduce_overhead"]
    tries = second_tries([("tf32", "compile")], possible, gains, 1.02, 10)
    # Each part was tried alone. What alone costs time is not added; another of its slot takes a change's place.
    assert set(tries) == {("sdpa", "tf32", "compile"), ("tf32", "compile_reduce_overhead")}
    assert second_tries([("tf32", "compile")], possible, gains, 1.02, 1) == tries[:1]
    # What is not tried alone may take the place of another change.
    assert ("tf32", "compile_max_autotune") in second_tries(
        [("tf32", "compile")], [*possible, "compile_max_autotune"], gains, 1.02, 10
    )


def test_of_what_is_nearly_as_fast_the_most_precise_is_proven_first() -> None:
    tf32, bf16, exact = ("tf32", "compile"), ("autocast_bf16", "compile"), ("compile",)
    assert to_prove_first({bf16: 3.95, tf32: 3.74, exact: 2.8}, 1.1) == tf32
    assert to_prove_first({bf16: 3.95, tf32: 3.0, exact: 2.8}, 1.1) == bf16
    assert to_prove_first({exact: 2.0, ("compile", "fused_optimizer"): 2.1}, 1.1) == ("compile", "fused_optimizer")
    assert to_prove_first({}, 1.1) is None


def test_what_most_likely_helps_depends_on_what_the_device_waits_for() -> None:
    transformer = ("fused_attention", "tf32", "autocast_bf16", "fused_optimizer", "compile", "compile_reduce_overhead")
    assert likeliest(transformer, launch_bound=True) == (
        "fused_attention",
        "tf32",
        "fused_optimizer",
        "compile_reduce_overhead",
    )
    assert likeliest(transformer, launch_bound=False) == ("fused_attention", "tf32", "fused_optimizer")
    # A script that has all of that, and is only not compiled.
    assert likeliest(("tf32", "compile", "compile_reduce_overhead"), launch_bound=False) == (
        "tf32",
        "compile_reduce_overhead",
    )
    # Lower precision than TF32 may be undecidable.
    assert likeliest(("autocast_bf16", "channels_last"), launch_bound=False) is None
    assert likeliest(("tf32",), launch_bound=True) is None
