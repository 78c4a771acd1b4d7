"""What figures and words mean to their reader: which trust and which changes are good, and which are not."""

from typing import Final

from opscope.documents.trust import Verdict
from opscope.render.blocks import Tone, Toned

_TRUST: Final = {Verdict.PASS: Tone.GOOD, Verdict.WARN: Tone.DOUBT, Verdict.FAIL: Tone.BAD}


def of_trust(text: str, verdict: Verdict) -> str:
    """Mark words on how far figures can be trusted."""
    return Toned(text, _TRUST[verdict]) if verdict in _TRUST else text


def of_change(text: str, ns: float) -> str:
    """Mark a change of a time in nanoseconds: less is good, more is not."""
    return Toned(text, Tone.GOOD if ns < 0 else Tone.BAD) if ns else text
