"""What figures and words mean to their reader: which trust, verdicts and changes are good, and which are not."""

from typing import Final

from opscope.documents.bench import RegressionVerdict, SpeedVerdict
from opscope.documents.trust import Verdict
from opscope.render.blocks import Tone, Toned

_TRUST: Final = {Verdict.PASS: Tone.GOOD, Verdict.WARN: Tone.DOUBT, Verdict.FAIL: Tone.BAD}
_SPEED: Final = {
    SpeedVerdict.FASTER: Tone.GOOD,
    SpeedVerdict.SLOWER: Tone.BAD,
    SpeedVerdict.WRONG: Tone.BAD,
    SpeedVerdict.INCONCLUSIVE: Tone.DOUBT,
}
_REGRESSION: Final = {
    RegressionVerdict.FINE: Tone.GOOD,
    RegressionVerdict.REGRESSION: Tone.BAD,
    RegressionVerdict.WRONG: Tone.BAD,
    RegressionVerdict.MISSING: Tone.DOUBT,
    RegressionVerdict.INCONCLUSIVE: Tone.DOUBT,
}


def of_trust(text: str, verdict: Verdict) -> str:
    """Mark words on how far figures can be trusted."""
    return Toned(text, _TRUST[verdict]) if verdict in _TRUST else text


def of_change(text: str, ns: float) -> str:
    """Mark a change of a time in nanoseconds: less is good, more is not."""
    return Toned(text, Tone.GOOD if ns < 0 else Tone.BAD) if ns else text


def of_speed(text: str, verdict: SpeedVerdict) -> str:
    """Mark words on whether a variant is faster."""
    return Toned(text, _SPEED[verdict]) if verdict in _SPEED else text


def of_regression(text: str, verdict: RegressionVerdict) -> str:
    """Mark words on how a benchmark changed since it was saved."""
    return Toned(text, _REGRESSION[verdict])
