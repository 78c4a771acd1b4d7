"""Mistakes that stand in the place of changes, in every process that a session starts once this was imported there.

Each takes the name of a change that computes exactly: nothing but the comparison can tell it from one that is right.
"""

from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace

from opscope.advise.changes.listed import BY_NAME
from opscope.advise.variant import Variant

Call = Callable[..., Any]


def zeros(variant: Variant) -> None:
    variant.wrap(lambda call: lambda *args, **kwargs: call(*args, **kwargs) * 0.0)


def ignores_input(variant: Variant) -> None:
    """Computes with what it was given first."""

    def around(call: Call) -> Call:
        first: list[Any] = []

        def ignoring(*args: Any, **kwargs: Any) -> Any:
            first.append((args, kwargs))
            return call(*first[0][0], **first[0][1])

        return ignoring

    variant.wrap(around)


def drops_dropout(variant: Variant) -> None:
    for top in variant.tops:
        for part in top.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0


def shares_a_buffer(variant: Variant) -> None:
    def around(call: Call) -> Call:
        buffer: list[torch.Tensor] = []

        def sharing(*args: Any, **kwargs: Any) -> torch.Tensor:
            output = call(*args, **kwargs)
            if not buffer:
                buffer.append(output.clone())
            return buffer[0].copy_(output)

        return sharing

    variant.wrap(around)


def right_for_one_batch(variant: Variant) -> None:
    """Returns what came out for the first batch; gradients flow as if it were this one's."""

    def around(call: Call) -> Call:
        first: list[torch.Tensor] = []

        def remembering(*args: Any, **kwargs: Any) -> torch.Tensor:
            output = call(*args, **kwargs)
            first.append(output.detach().clone())
            return output + (first[0] - output.detach())

        return remembering

    variant.wrap(around)


def right_in_the_first_step(variant: Variant) -> None:
    def around(call: Call) -> Call:
        calls = [0]

        def later_wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
            calls[0] += 1
            # The steps that come before the comparison, and the first one that is compared, are right.
            return call(*args, **kwargs) * (1.0 if calls[0] <= 4 else 1.001)

        return later_wrong

    variant.wrap(around)


MISTAKES = {
    "half_threads": zeros,
    "all_threads": ignores_input,
    "no_anomaly_detection": drops_dropout,
    "channels_last": shares_a_buffer,
    "set_to_none": right_for_one_batch,
    "foreach_optimizer": right_in_the_first_step,
}
for name, mistake in MISTAKES.items():
    BY_NAME[name] = replace(BY_NAME[name], apply=mistake, took_effect=lambda _: None)
