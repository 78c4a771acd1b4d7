"""Which command shows whether a finding's change helps: one that tries it, or one that measures it once it is made."""

import shlex
from collections.abc import Mapping
from typing import Final

from opscope.documents.change_names import INPUT, ChangeName
from opscope.documents.findings import Rule

# What `opscope advise` tries of each rule's change, without an edit.
TRIED: Final[Mapping[Rule, tuple[str, ...]]] = {
    Rule.FP32_PRODUCTS: (ChangeName.TF32, ChangeName.AUTOCAST_BF16),
    Rule.EAGER_ATTENTION: (ChangeName.SDPA,),
    Rule.DISPATCH_BOUND: (ChangeName.COMPILE, ChangeName.COMPILE_REDUCE_OVERHEAD),
    Rule.FUSIBLE_CHAIN: (ChangeName.COMPILE,),
    Rule.UNFUSED_OPTIMIZER: (ChangeName.FUSED_OPTIMIZER,),
    Rule.LAYOUT_CONVERSION: (ChangeName.CHANNELS_LAST,),
    Rule.INPUT_PIPELINE: (INPUT,),
}


def proving_command(rule: Rule | str, target: str | None) -> str:
    """Return a command that shows whether a rule's change helps.

    Args:
        rule: the rule.
        target: what opscope profiled; None for a trace that it did not record.
    """
    known = "SCRIPT.py" if target is None else shlex.quote(target)  # it is pasted into a shell
    tried = TRIED.get(Rule(rule))
    if tried is None:
        return f"opscope profile {known}  # with the change: compare the unprofiled step"
    return f"opscope advise --only {' '.join(tried)} -- {known}"
