"""What servers of language and diffusion models name their iterations: ranges around one forward pass of a batch."""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from opscope.base.text import lazy_pattern


class Iteration(Struct, frozen=True):
    """What a range's name says.

    Attributes:
        kind: ``prefill``, ``decode``, ``mixed``, ``diffusion`` or ``capture``.
        requests: in the batch; None where the name does not say.
        tokens: that are computed; None where the name does not say.
        detail: what else it says: the size of an image, the mode of a captured graph.
    """

    kind: str
    requests: int | None = None
    tokens: int | None = None
    detail: str = ""


def _of_counts(context: int, generation: int) -> str:
    if context and generation:
        return "mixed"
    return "prefill" if context else "decode"


def _vllm_1(result: re.Match[str]) -> Iteration:
    """``execute_context_2(512)_generation_30(30)``: requests, and their new tokens; before, also ``(512_1024)``."""
    context, generation = int(result["context"]), int(result["generation"])
    tokens = int(result["context_tokens"]) + int(result["generation_tokens"])
    return Iteration(_of_counts(context, generation), context + generation, tokens)


def _vllm_2(result: re.Match[str]) -> Iteration:
    """``execute_1_context_2(sq512sk512sqsq...)_generation_30(sq30sk...)``: sq are the tokens that are computed."""
    context, generation = int(result["context"]), int(result["generation"])
    tokens = [re.match(r"sq([0-9]{1,9})", result[part]) for part in ("context_sizes", "generation_sizes")]
    count = sum(int(size[1]) for size in tokens if size)
    return Iteration(_of_counts(context, generation), context + generation, count if any(tokens) else None)


def _vllm_0(result: re.Match[str]) -> Iteration:
    """``execute_new_2_cached_6``: requests that are new, whose prompts are read, and requests that go on."""
    new, cached = int(result["new"]), int(result["cached"])
    return Iteration(_of_counts(new, cached), new + cached)


def _tensorrt(result: re.Match[str]) -> Iteration:
    """``[Executor] _forward_step 12: 1 ctx reqs, 512 ctx tokens, 8 gen reqs``; before, without tokens or number."""
    context, generation = int(result["context"]), int(result["generation"])
    tokens = None if result["tokens"] is None else int(result["tokens"]) + generation
    return Iteration(_of_counts(context, generation), context + generation, tokens if context else generation)


def _sglang(result: re.Match[str]) -> Iteration:
    """``step[DECODE bs=32]``, ``step[EXTEND bs=4 toks=8192]``: a decoding step computes a token for each request."""
    kind = {"DECODE": "decode", "EXTEND": "prefill", "MIXED": "mixed"}.get(result["mode"], result["mode"].lower())
    requests = int(result["requests"])
    if result["tokens"]:
        return Iteration(kind, requests, int(result["tokens"]))
    return Iteration(kind, requests, requests if kind == "decode" else None)


def _diffusion(result: re.Match[str]) -> Iteration:
    """``execute_diffusion_4_1024x1024``: requests, and the size of the image."""
    return Iteration("diffusion", int(result["requests"]), None, result["size"])


def _capture(result: re.Match[str]) -> Iteration:
    """``capture_64_FULL``: a graph is captured for that many requests (or tokens)."""
    return Iteration("capture", int(result["size"]), None, result["mode"].lower())


_N: Final = r"[0-9]{1,9}"
# The pattern of a whole name, what reads it, and an example.
ITERATION_FORMATS: Final[tuple[tuple[str, Callable[[re.Match[str]], Iteration], str], ...]] = (
    (
        rf"execute_context_(?P<context>{_N})\((?P<context_tokens>{_N})(?:_{_N})?\)"
        rf"_generation_(?P<generation>{_N})\((?P<generation_tokens>{_N})(?:_{_N})?\)",
        _vllm_1,
        "execute_context_2(512_1024)_generation_30(30)",
    ),
    (
        rf"execute_{_N}_context_(?P<context>{_N})\((?P<context_sizes>[a-z0-9]*)\)"
        rf"_generation_(?P<generation>{_N})\((?P<generation_sizes>[a-z0-9]*)\)",
        _vllm_2,
        "execute_1_context_2(sq512sk512sqsq131072sqsk131072)_generation_30(sq30sk9000sqsq30sqsk9000)",
    ),
    (
        # Behind these, roofline annotations add what they know of the batch.
        rf"step\[(?P<mode>[A-Z_]{{1,20}}) bs=(?P<requests>{_N})(?: toks=(?P<tokens>{_N}))?(?: [^\]]{{0,400}})?\]",
        _sglang,
        "step[EXTEND bs=4 toks=8192]",
    ),
    (rf"execute_new_(?P<new>{_N})_cached_(?P<cached>{_N})", _vllm_0, "execute_new_2_cached_6"),
    (
        rf"\[Executor\] _forward_step(?: {_N})?: (?P<context>{_N}) ctx reqs, (?:(?P<tokens>{_N}) ctx tokens, )?"
        rf"(?P<generation>{_N}) gen reqs",
        _tensorrt,
        "[Executor] _forward_step 12: 1 ctx reqs, 512 ctx tokens, 8 gen reqs",
    ),
    (rf"execute_diffusion_(?P<requests>{_N})_(?P<size>{_N}x{_N})", _diffusion, "execute_diffusion_4_1024x1024"),
    (rf"capture_(?P<size>{_N})_(?P<mode>FULL|PIECEWISE|DECODE)", _capture, "capture_64_PIECEWISE"),
)
_COMPILED: Final = tuple((lazy_pattern(pattern), read) for pattern, read, _ in ITERATION_FORMATS)


class Server(StrEnum):
    """Programs that serve language models."""

    VLLM = "vLLM"
    SGLANG = "SGLang"
    TENSORRT_LLM = "TensorRT-LLM"


# Files of their engines: a user's own folder may be named after one, and their kernels are used by others too.
_OF_SERVERS: Final = (
    (Server.VLLM, lazy_pattern(r"(?:^|/)vllm/(?:v1|engine|worker|executor|model_executor|entrypoints)/")),
    (Server.SGLANG, lazy_pattern(r"(?:^|/)sglang/srt/")),
    (Server.TENSORRT_LLM, lazy_pattern(r"(?:^|/)tensorrt_llm/(?:_torch|executor|runtime|llmapi)/")),
)
_OF_ITERATIONS: Final[Mapping[Callable[[re.Match[str]], Iteration], Server]] = {
    _vllm_0: Server.VLLM, _vllm_1: Server.VLLM, _vllm_2: Server.VLLM, _sglang: Server.SGLANG,
    _tensorrt: Server.TENSORRT_LLM,
}  # fmt: skip


def server_of_iteration(name: str) -> Server | None:
    """Return which server names its iterations like a range; None for other ranges, and for names of several."""
    return next((_OF_ITERATIONS.get(read) for pattern, read in _COMPILED if pattern.fullmatch(name)), None)


def serving_program(name: str) -> Server | None:
    """Return whose engine a Python frame is of; None for others."""
    return next((server for server, pattern in _OF_SERVERS if pattern.search(name)), None)


@lru_cache(maxsize=1 << 16)
def iteration_of(name: str) -> Iteration | None:
    """Return what a range's name says of an iteration; None for any other range."""
    for pattern, read in _COMPILED:
        if (match := pattern.fullmatch(name)) is not None:
            return read(match)
    return None
