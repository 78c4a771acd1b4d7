"""Which command shows whether a finding's change helps: each runs as it is printed."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from opscope.base.text import shell_path
from opscope.documents.advise import INPUT, ChangeName
from opscope.documents.findings import Rule
from opscope.record.configuration import Configuration
from opscope.record.settings import SETTINGS

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
# What `opscope advise` takes, by the setting; it tries no other configurations.
_OF_ADVISE: Final[Mapping[str, str]] = {
    "batch_size": "--batch-size", "seq_len": "--seq-len", "hidden_size": "--hidden-size", "layers": "--layers",
    "image_size": "--image-size", "dtype": "--dtype", "attention": "--attention", "mode": "--mode",
}  # fmt: skip
_ARGUMENTS: Final = "arguments"  # of a script, as one text
_COMPARED: Final = "# with the change made: compare the unprofiled step"
_RECORDED: Final = "# no replay tells: record the change and compare the traces with opscope diff"


def proving_command(
    rule: Rule | str, name: str, path: str, recorded: Configuration | None, *, replays: Sequence[str]
) -> str:
    """Return a command that shows whether a finding's change helps.

    Where opscope ran the program, it tries the change or measures the program again. Of a trace by others it replays
    the steps with the change, or shows the evidence where no replay tells.

    Args:
        rule: the finding's rule.
        name: the finding's id.
        path: the trace.
        recorded: what opscope ran; None for a trace that it did not record.
        replays: the findings with whose changes the steps can be replayed; empty where no replay tells.
    """
    if recorded is None:
        if replays:
            return f"opscope whatif {shell_path(path)} {' '.join(f'--finding {one}' for one in replays)}"
        return f"opscope show {shell_path(path)} findings/{name}  {_RECORDED}"
    try:
        # A record may come from anyone, and what is printed here is pasted into a shell.
        arguments = shlex.split(str(recorded.get(_ARGUMENTS) or ""))
    except ValueError:
        return f"opscope show {shell_path(path)} findings/{name}  {_RECORDED}"
    tried = TRIED.get(Rule(rule))
    options = None if tried is None else _options(recorded, of_advise=True)
    program = [recorded.target, *arguments]
    if tried is None or options is None:
        words = ["opscope", "profile", *(_options(recorded, of_advise=False) or ()), "--", *program]
        return f"{shlex.join(words)}  {_COMPARED}"
    return shlex.join(["opscope", "advise", "--only", *tried, *options, "--", *program])


def _options(recorded: Configuration, *, of_advise: bool) -> list[str] | None:
    """Return the options that say which configuration of a workload or function was run; a script has none.

    Returns:
        None where `opscope advise` has no option for one of its settings.
    """
    words: list[str] = []
    for name, value in () if recorded.target.endswith(".py") else recorded.items():
        setting = SETTINGS.get(name)
        if name == _ARGUMENTS or value is None or (setting is not None and setting.kind == "flag" and not value):
            continue
        if setting is None:
            words += ["--set", f"{name}={value}"]
        elif of_advise and name not in _OF_ADVISE:
            return None
        elif setting.kind == "flag":
            words.append(setting.option)
        else:
            words += [_OF_ADVISE[name] if of_advise else setting.option, str(value)]
    return words
