"""Programs with one built-in cause, recorded on an H200: the first finding names it, its saving holds the real one."""

import json
from functools import cache
from typing import Final

import msgspec
import pytest

from opscope.analysis.advice.small_batch import small_batches
from opscope.analysis.analyzed import analyze
from opscope.analysis.measured import Measured
from opscope.documents.comparison import SweepComparison
from opscope.documents.findings import Finding
from opscope.readers.reading import read
from tests.conftest import ROOT

DATA = ROOT / "tests" / "data" / "findings"
PROGRAMS: Final = json.loads((DATA / "programs.json").read_text())
NOTHING: Final = {"near_limit", "none"}
# Where the first finding is another true one: see benchmarks/results/h200-findings.json.
OTHERS: Final = {"strided_products": "contiguous_copies", "similarity_per_loss": "near_limit"}
# Fixes that take away more than the cause, or that are another change than the one advised; and a product made again
# outside of any module, of which no trace tells that it is the same.
NOT_COMPARED: Final = {"new_kernels", "new_routines", "similarity_per_loss"}
# Without its copies that step is the host's time alone, which the profiler made more than three times as long.
MISSED: Final = {"cat_cache"}
TOLERANCE: Final = 0.02  # of the step


@cache
def findings(name: str, *, timed: bool = True) -> tuple[Finding, ...]:
    wall = PROGRAMS[name]["wall_ns"] if timed else None
    return Measured(analyze(read(DATA / f"{name}.json.xz"), as_marked=wall is not None), None, wall).findings


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_first_finding_is_the_cause_that_was_built_in(name: str, timed: bool) -> None:
    program, found = PROGRAMS[name], findings(name, timed=timed)
    allowed = {program["expected"], *program["alternatives"], OTHERS.get(name)}
    if program["expected"] in NOTHING:
        # What a graph replays has no shapes, so that it is near its limit does not follow; a copy may be needless.
        assert found[0].rule in allowed | {"near_limit", "dearest_work"}
        assert all(finding.saving_ns.high <= 0.05 * finding.of_step_ns for finding in found)
    else:
        assert found[0].rule in allowed


COMPARED = [name for name, program in PROGRAMS.items() if program["fixed_ns"] and name not in NOT_COMPARED | MISSED]


def test_many_fixes_are_compared() -> None:
    assert len(COMPARED) >= 25


@pytest.mark.parametrize("name", COMPARED)
def test_the_saving_that_was_measured_lies_in_the_range(name: str) -> None:
    program, found = PROGRAMS[name], findings(name)
    own = next((finding for finding in found if finding.rule == program["expected"]), found[0])
    saved = program["wall_ns"] - program["fixed_ns"]
    room = TOLERANCE * program["wall_ns"]
    assert own.saving_ns.low - room <= saved <= own.saving_ns.high + room


@pytest.mark.parametrize("name", PROGRAMS)
def test_savings_are_of_the_step_and_overlaps_are_mutual(name: str) -> None:
    found = {finding.id: finding for finding in findings(name)}
    for finding in found.values():
        assert 0 <= finding.saving_ns.low <= finding.saving_ns.high <= finding.of_step_ns
        # The first steps of some load more code than those that were recorded: they are not the same steps.
        assert finding.of_step_ns == PROGRAMS[name]["wall_ns"] or (
            name == "new_kernels" and finding.of_step != "unprofiled step"
        )
        assert finding.evidence
        assert finding.action
        assert finding.prove.startswith("opscope ")
        assert all(finding.id in found[other].overlaps for other in finding.overlaps)
    apart = [finding for finding in found.values() if not finding.overlaps]
    assert sum(finding.saving_ns.low for finding in apart) <= PROGRAMS[name]["wall_ns"]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("logged_losses", "programs.py("),
        ("copied_table", "programs.py("),
        ("summed_tokens", "programs.py("),
        ("fp32_inference", "programs.py("),
        ("emptied_cache", "programs.py("),
    ],
)
def test_the_line_of_python_is_named(name: str, place: str) -> None:
    assert place in (findings(name)[0].where.python or "")


def test_an_optimizer_of_several_kernels_per_parameter_is_found_beside_launching() -> None:
    """Adam(foreach=False); with fused=True the step took 4.296 ms. Launching is the larger part, and stands first."""
    wall, fixed = 5321876.0, 4296467.0
    found = Measured(analyze(read(DATA / "large_parameters.json.xz")), None, wall).findings
    own = next(finding for finding in found if finding.rule == "unfused_optimizer")
    assert found.index(own) <= 1
    assert "fused=True" in own.action
    assert own.saving_ns.low <= wall - fixed <= own.saving_ns.high


@pytest.mark.parametrize(
    ("name", "rule", "promised"),
    [("communication_step", "exposed_communication", False), ("recompiled_step", "recompilation", True)],
)
def test_steps_of_longer_recordings(name: str, rule: str, promised: bool) -> None:
    """Communication may overlap with work, which no trace promises: it is the first of what only may be."""
    found = Measured(analyze(read(DATA / f"{name}.json.xz")), None, None).findings
    first = next(one for one in found if (one.saving_ns.low > 0) is promised)
    assert first.rule == rule
    assert 0 <= first.saving_ns.low <= first.saving_ns.high <= (first.of_step_ns or 0)


def test_a_recorded_sweep_of_batches_that_are_too_small() -> None:
    """One sequence takes 8.294 ms, eight take 7.276: an eighth of that, 0.910, would replace it."""
    sweep = msgspec.json.decode((DATA / "bert_sweep.json").read_bytes(), type=SweepComparison)
    (found,) = small_batches(sweep.rows, "bert")
    assert (found.rule, found.saving_ns.high) == ("small_batch", round(8_293_842.5 - 7_276_280.5 / 8))
    assert found.saving_ns.low == round(8_132_127 - 7_298_454 / 8)
