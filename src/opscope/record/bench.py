"""What a benchmark is asked for: sent to the process that measures."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """One benchmark.

    Attributes:
        targets: gallery cases, files, ``file.py:function`` or ``package.module:function``.
        inputs: what makes the arguments, as ``file.py:function``; None takes the file's own ``inputs``.
        reference: what computes the right result; None takes the file's own ``reference``, or the baseline.
        axes: values of the inputs' parameters, as text; every combination is measured.
        device: where.
        seconds: the most time for one measure of one variant.
        half_width: of the interval over the median, that is narrow enough.
        calls: the most calls of one measure.
        trials: of comparisons of a function with itself; 0 for none (then targets are measured).
    """

    targets: tuple[str, ...] = ()
    inputs: str | None = None
    reference: str | None = None
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    device: str = "auto"
    seconds: float = 0.5
    half_width: float = 0.01
    calls: int = 2_000
    trials: int = 0
