"""Evidence is figures: each number in a sentence can be had unrounded, with its unit and where it comes from."""

from pathlib import Path

import pytest

import opscope
from opscope.analysis.advice.rule import count_of, derived, general, measured, nanoseconds, of_bytes, share_of
from opscope.base.units import format_bytes, format_ns, format_share
from opscope.documents.findings import Fact, Source, Unit
from opscope.documents.statements import Basis

DATA = Path(__file__).parents[2] / "data"
TRACES = sorted((DATA / "traces").glob("*.json.gz"))


def test_amounts_keep_what_they_were_written_from() -> None:
    fact = measured(count_of(633), " launches, ", nanoseconds(19749.85), " of work each", source=Source.ACTIVITIES)
    assert fact.text == "633 launches, 19.75 us of work each"
    assert [(one.text, one.value, one.unit) for one in fact.figures] == [
        ("633", 633, Unit.COUNT),
        ("19.75 us", 19749.85, Unit.NANOSECONDS),
    ]
    assert (fact.basis, fact.source) == (Basis.MEASURED, Source.ACTIVITIES)
    shares = derived(share_of(1, 3), " of ", of_bytes(2048), source=Source.LIMITS)
    assert [(one.value, one.unit) for one in shares.figures] == [(1 / 3, Unit.SHARE), (2048, Unit.BYTES)]


def test_what_is_not_known_is_no_figure() -> None:
    unknown = measured(nanoseconds(None), share_of(None, 3), share_of(1, 0), of_bytes(None), source=Source.STEP)
    assert (unknown.text, unknown.figures) == ("----", ())
    assert general("fused attention never writes the scores") == Fact(
        "fused attention never writes the scores", Basis.GENERAL
    )


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_figures_of_recorded_traces_say_what_their_sentences_say(path: Path) -> None:
    written = {Unit.NANOSECONDS: format_ns, Unit.BYTES: format_bytes, Unit.SHARE: lambda value: format_share(value, 1)}
    for finding in opscope.analyze(path).findings:
        for fact in finding.evidence:
            assert (fact.source is None) == (fact.basis is Basis.GENERAL), fact
            at = 0
            for figure in fact.figures:
                at = fact.text.index(figure.text, at) + len(figure.text)  # in their order
                if figure.unit in written:
                    assert written[figure.unit](figure.value) == figure.text
                else:
                    assert float(figure.text.replace(",", "")) == pytest.approx(figure.value, abs=0.5)
