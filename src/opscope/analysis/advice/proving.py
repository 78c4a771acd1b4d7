"""Which command shows whether a finding's change helps: each runs as it is printed."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opscope.documents.change_names import INPUT, ChangeName
from opscope.documents.findings import Rule
from opscope.record.configuration import Configuration

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
# Options of both `opscope advise` and `opscope profile` -> those of the latter that are called otherwise.
_OPTIONS: Final[Mapping[str, str]] = {
    "batch_size": "--batch-sizes", "seq_len": "--seq-lens", "hidden_size": "--hidden-size", "layers": "--layers",
    "image_size": "--image-size", "dtype": "--dtype", "attention": "--attention", "mode": "--mode",
}  # fmt: skip
_FLAGS: Final[Mapping[str, str]] = {"compiled": "--compile", "simplified": "--simplified"}  # of `opscope profile`
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
            return f"opscope whatif {shlex.quote(path)} {' '.join(f'--finding {one}' for one in replays)}"
        return f"opscope show {shlex.quote(f'{path}#findings/{name}')}  {_RECORDED}"
    tried = TRIED.get(Rule(rule))
    words = ["opscope", "profile"] if tried is None else ["opscope", "advise", "--only", *tried]
    words += _options(recorded, of_profile=tried is None)
    # The arguments of a script are written down as a shell takes them.
    arguments = str(recorded.get(_ARGUMENTS) or "")
    command = f"{' '.join(words)} -- {shlex.quote(recorded.target)} {arguments}".rstrip()
    return command if tried else f"{command}  {_COMPARED}"


def _options(recorded: Configuration, *, of_profile: bool) -> Iterator[str]:
    """Yield the options that say which configuration of a workload or function was run; a script has none."""
    if recorded.target.endswith(".py"):
        return
    for name, value in recorded.items():
        if name in _OPTIONS:
            yield from (_OPTIONS[name] if of_profile else f"--{name.replace('_', '-')}", shlex.quote(str(value)))
        elif name in _FLAGS:
            yield from [_FLAGS[name]] if value and of_profile else []
        elif name != _ARGUMENTS and value is not None:
            yield from ("--set", shlex.quote(f"{name}={value}"))
