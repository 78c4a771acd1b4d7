"""What kind of work a kernel does, by its name.

A name that a family of names explains is certain; else its words make a kind likely. The rules on words are in
``data/kernel_names/words.toml``, each with a real name that it is for.

How kernels of a kind move data, and what waits for what, is general knowledge, checked on no single kernel.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache, lru_cache
from itertools import islice
from typing import Final

from msgspec import Struct

from opscope.base.text import lazy_pattern
from opscope.knowledge.categories import Category, Classification
from opscope.knowledge.kernels.decode import decode_name
from opscope.knowledge.kernels.decoded import Operation
from opscope.knowledge.kernels.names import base_name, library_of
from opscope.knowledge.rules import MANY_NAMES, NameRule, compiled, entries_of


class KernelPattern(Struct, frozen=True):
    """How kernels of a kind usually work, in sentences.

    Attributes:
        memory: how they read and write.
        synchronisation: what waits for what.
        gain: what usually makes them faster.
    """

    memory: str
    synchronisation: str
    gain: str


_PRODUCT = KernelPattern(
    "Thread blocks stage tiles of both operands in shared memory, so that each loaded element is used for a whole row "
    "or column of the tile.",
    "The threads of a block wait for each other once per step in depth; blocks do not wait, except where split-K adds "
    "up their parts.",
    "Lower precision on Tensor Cores, sizes that are multiples of the tile, and products that are batched together.",
)
_ROWS = KernelPattern(
    "A row is read by one warp or thread block, neighbouring threads reading neighbouring elements.",
    "Threads combine their partial results through warp shuffles, and through shared memory with a barrier where a "
    "block shares a row.",
    "Fusion with the elementwise operators around it: torch.compile, or a fused kernel.",
)
_EACH = KernelPattern(
    "Neighbouring threads read and write neighbouring elements, several at a time where the kernel is vectorised.",
    "None: no thread waits for another.",
    "Fusion with its neighbours: the time is that of reading and writing, which fused operators do once.",
)
_ATTENTION = KernelPattern(
    "A block keeps a tile of queries and passes over the keys and values in tiles staged in shared memory; the "
    "matrix of scores is never written out.",
    "The threads of a block wait for each other once per tile of keys; blocks do not wait for each other.",
    "Lower precision, and masks that let whole tiles be skipped.",
)
_INDEXED = KernelPattern(
    "Reads follow the indices: neighbouring threads read neighbouring elements within a row, rows lie anywhere.",
    "None when reading; scattered writes to one place are atomic or sorted first.",
    "Indices in ascending order, and rows that are multiples of 128 bytes.",
)
_PATTERNS: Final[Mapping[Operation, KernelPattern]] = {
    **dict.fromkeys((Operation.GEMM, Operation.GEMV, Operation.FPROP, Operation.DGRAD, Operation.WGRAD), _PRODUCT),
    **dict.fromkeys((Operation.ATTENTION, Operation.ATTENTION_BACKWARD), _ATTENTION),
    **dict.fromkeys((Operation.SOFTMAX, Operation.SOFTMAX_BACKWARD), _ROWS),
    **dict.fromkeys((Operation.NORMALIZATION, Operation.NORMALIZATION_BACKWARD), _ROWS),
    **dict.fromkeys((Operation.REDUCTION, Operation.LOSS, Operation.LOSS_BACKWARD), _ROWS),
    **dict.fromkeys((Operation.ELEMENTWISE, Operation.POINTWISE, Operation.FOREACH), _EACH),
    **dict.fromkeys((Operation.COPY, Operation.FILL, Operation.LAYOUT_CHANGE), _EACH),
    **dict.fromkeys((Operation.DROPOUT, Operation.RANDOM), _EACH),
    Operation.INDEXING: _INDEXED,
}


def pattern_of(operation: Operation | None) -> KernelPattern | None:
    """Return how kernels with this operation in their name usually work; None if that is not known."""
    return None if operation is None else _PATTERNS.get(operation)


@cache
def collective_rules() -> tuple[NameRule, ...]:
    """Return the rules, each with a real name that it is for."""
    return tuple(NameRule.of_entry(entry) for entry in entries_of("collectives.toml")["names"])


@cache
def _pattern() -> re.Pattern[str]:
    return compiled(collective_rules(), re.IGNORECASE)


def is_named_communication(name: str) -> bool:
    """Tell whether a kernel has the name of one that moves data between devices; see `communicates`."""
    return _pattern().search(name) is not None


class WordRule(Struct, frozen=True):
    """A rule on the words of a name; the first that fits decides."""

    category: Category
    words: str
    rule: NameRule


class KernelKind(Struct, frozen=True):
    """What kind of work a kernel does.

    Attributes:
        category: the kind, as of operators.
        words: in short.
        likely: whether only words of the name say so; else its whole name is understood.
    """

    category: Category
    words: str
    likely: bool


@cache
def word_rules() -> tuple[WordRule, ...]:
    """Return the rules on words, in the order in which they are tried."""
    entries = entries_of("words.toml")["words"]
    return tuple(
        WordRule(Category(str(entry["category"])), str(entry["words"]), NameRule.of_entry(entry)) for entry in entries
    )


@cache
def _patterns() -> tuple[tuple[WordRule, re.Pattern[str]], ...]:
    return tuple((rule, re.compile(rule.rule.pattern, re.IGNORECASE)) for rule in word_rules())


@cache
def _of_communication() -> re.Pattern[str]:
    return compiled((rule.rule for rule in word_rules() if rule.category is Category.COMMUNICATION), re.IGNORECASE)


# Templates that hold another kernel: what they run is the first argument.
_WRAPPER: Final = lazy_pattern(
    r"^(?:void )?(?:cutlass::device_kernel|ck_tile::kentry|cutlass::Kernel2?|fused_moe::run_global)<(?:\d+, )*"
    r"(?:flash::enable_\w+<)?(.*)"
)
_MANGLED_KERNEL: Final = lazy_pattern(r"\d{1,3}([A-Z][A-Za-z0-9]{0,200}Kernel)")
# Characters of a name that are looked at, and of what is left of it without templates: the patterns take their square.
_LOOKED_AT: Final = 1_000
_WORDS: Final = 160
_OF_OPERATION: Final[dict[Operation, Category]] = {
    **dict.fromkeys((Operation.GEMM, Operation.GEMV, Operation.DOT, Operation.SPLIT_K_REDUCTION), Category.MATRIX),
    Operation.TEMPLATE: Category.MATRIX,
    **dict.fromkeys((Operation.FPROP, Operation.DGRAD, Operation.WGRAD), Category.CONVOLUTION),
    **dict.fromkeys((Operation.ATTENTION, Operation.ATTENTION_BACKWARD), Category.ATTENTION),
    **dict.fromkeys((Operation.SOFTMAX, Operation.SOFTMAX_BACKWARD), Category.ACTIVATION),
    **dict.fromkeys((Operation.NORMALIZATION, Operation.NORMALIZATION_BACKWARD), Category.NORMALIZATION),
    **dict.fromkeys((Operation.DROPOUT, Operation.RANDOM), Category.RANDOM),
    Operation.EMBEDDING_BACKWARD: Category.EMBEDDING,
    **dict.fromkeys((Operation.LOSS, Operation.LOSS_BACKWARD), Category.LOSS),
    **dict.fromkeys((Operation.POOLING, Operation.POOLING_BACKWARD), Category.POOLING),
    **dict.fromkeys((Operation.ELEMENTWISE, Operation.POINTWISE, Operation.FOREACH), Category.ELEMENTWISE),
    Operation.REDUCTION: Category.REDUCTION,
    **dict.fromkeys((Operation.INDEXING, Operation.SCATTER_GATHER), Category.INDEXING),
    **dict.fromkeys((Operation.COPY, Operation.FILL, Operation.LAYOUT_CHANGE), Category.MEMORY),
    Operation.SCAN: Category.SCAN,
    **dict.fromkeys((Operation.SORT, Operation.SELECTION), Category.SORT),
    Operation.COLLECTIVE: Category.COMMUNICATION,
}


@lru_cache(maxsize=1 << 16)
def kind_of(name: str) -> KernelKind | None:
    """Return what kind of work a kernel does; None where its name tells nothing."""
    if is_named_communication(name):
        return KernelKind(Category.COMMUNICATION, "communication", likely=False)
    operation = decode_name(name).operation
    if operation in _OF_OPERATION:
        return KernelKind(_OF_OPERATION[operation], str(operation), likely=False)
    subject = _subject(name[:_LOOKED_AT])[:_WORDS]
    last = subject.rpartition("::")[2]
    for text in (_words(last), last, _words(subject), subject):
        for rule, pattern in _patterns():
            if pattern.search(text):
                return KernelKind(rule.category, rule.words, likely=True)
    return None


_OF_FAMILY: Final[Mapping[str, Category]] = {"NCCL": Category.COMMUNICATION, "Inductor": Category.COMPILED}


def classification_of(name: str) -> Classification:
    """Classify a kernel by its name, for kernels of which no operator is known that launched them."""
    family = decode_name(name).family
    if (by_family := _OF_FAMILY.get(family or "")) is not None:
        return Classification(by_family, f"kernel of {family}", by_fact=False)
    if (kind := kind_of(name)) is None:
        return Classification(Category.OTHER, "the kernel's name does not say what it does", by_fact=False)
    says = "words of the kernel's name make it likely" if kind.likely else "the kernel's name says"
    return Classification(kind.category, f"{says}: {kind.words}", by_fact=False)


def learn_communication(names: Collection[str]) -> None:
    """Look at many names at once, so that `communicates` answers for them sooner."""
    if len(names) >= MANY_NAMES:
        from opscope.knowledge.many_names import unmatched  # needs polars

        named = (lazy_pattern(rule.pattern, re.IGNORECASE) for rule in collective_rules())
        _silent.update(unmatched(names, (*named, _of_communication())))
        for name in names:
            communicates(name)  # which remembers its answers
        _silent.clear()


_silent: set[str] = set()


@lru_cache(maxsize=1 << 17)  # asked for every name of a trace, several times
def communicates(name: str) -> bool:
    """Tell whether a kernel moves data between devices, by its name or its words: the one place that says so."""
    if name in _silent:
        return False
    if is_named_communication(name):
        return True
    if not _of_communication().search(name):  # most names, told quickly
        return False
    kind = kind_of(name)
    return kind is not None and kind.category is Category.COMMUNICATION


def short_name(name: str) -> str:
    """Return a kernel's name as people read it: what the name says, else its words, said to be likely."""
    decoded = decode_name(name)
    kind = kind_of(name)
    return f"{decoded.summary} ({kind.words}, likely)" if kind is not None and kind.likely else decoded.summary


def is_own(name: str) -> bool:
    """Tell whether a kernel is likely the program's own: neither a family of names nor a library is known for it."""
    return decode_name(name).family is None and library_of(name) is None


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the short name of each kernel of a trace.

    Where several kernels have one, products get the transposes of their operands behind it: nn, nt, tn or tt.

    Args:
        names: of the kernels, those that take most time first; of very many, the first count.
    """
    short = {name: short_name(name) for name in islice(names, _MOST_NAMES)}
    shared = Counter(short.values())
    return {name: _with_layout(name, text) if shared[text] > 1 else text for name, text in short.items()}


def _with_layout(name: str, text: str) -> str:
    layout = decode_name(name).layout
    return f"{text}, {layout}" if layout in _TRANSPOSES else text


_TRANSPOSES: Final = ("nn", "nt", "tn", "tt")
_MOST_NAMES: Final = 2_000
_CUTLASS_KERNELS: Final = (("4gemm6kernel", "gemm"), ("4fmha", "fmha"))


def _subject(name: str) -> str:
    """Return the part of a name that says what runs, without the arguments of templates."""
    if (wrapped := _WRAPPER.match(name)) is not None:
        inner = wrapped[1].replace("(anonymous namespace)", "anonymous")
        return re.split(r"[<(,>]", inner)[0]
    if name.startswith("_ZN7ck_tile6kentryI"):
        match = _MANGLED_KERNEL.search(name)
        return match[1] if match else name
    if name.startswith("_ZN7cutlass13device_kernel"):
        return next((word for part, word in _CUTLASS_KERNELS if part in name), name)
    if "kernel_cutlass_" in name:  # CuTe's Python DSL appends the types of all arguments
        return name.split("_object_at_", maxsplit=1)[0].split("_tensorptr", maxsplit=1)[0]
    return base_name(name).replace("{anonymous}", "")


def _words(name: str) -> str:
    """Split words that are told apart by capitals only."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
