"""What figures and words mean to their reader: which trust and which changes are good, and which are not."""

from typing import Final

from opscope.documents.trust import Verdict
from opscope.render.blocks import Tone, Toned

_TRUST: Final = {Verdict.PASS: Tone.GOOD, Verdict.WARN: Tone.DOUBT, Verdict.FAIL: Tone.BAD}
_COUNTS: Final = 0.01  # of the step


def of_trust(text: str, verdict: Verdict) -> str:
    """Mark words on how far figures can be trusted."""
    return Toned(text, _TRUST[verdict]) if verdict in _TRUST else text


def of_change(text: str, ns: float, step_ns: float) -> str:
    """Mark a change of a time: less is good, more is not, and what hardly counts is neither.

    Args:
        text: the change in words.
        ns: the change, in nanoseconds.
        step_ns: the length of the step that it is a part of.
    """
    return Toned(text, Tone.GOOD if ns < 0 else Tone.BAD) if abs(ns) >= _COUNTS * step_ns > 0 else text
