"""Requests to processes that run kernels: for a benchmark, and for a listing."""

from msgspec import Struct, field

# ---------------------------------------------------------------- listings


class ListingRequest(Struct, frozen=True, kw_only=True):
    """Which kernels to list: those of a function, or one Triton kernel.

    Attributes:
        target: ``file.py:function`` or ``package.module:kernel``.
        inputs: the function that makes the arguments; None takes the file's own ``inputs``.
        inductor: whether to compile the function with torch.compile.
        signature: types of a Triton kernel's arguments, in order: ``*fp32``, ``i32``; None if it is called instead.
        constants: values of its constexpr arguments, by name.
        arch: the compute capability to compile a Triton kernel for; None takes the device's.
    """

    target: str
    inputs: str | None = None
    inductor: bool = False
    signature: tuple[str, ...] | None = None
    constants: dict[str, str] = field(default_factory=dict)
    arch: str | None = None


# ---------------------------------------------------------------- benchmarks


class BenchRequest(Struct, frozen=True, kw_only=True):
    """One benchmark.

    Attributes:
        targets: gallery cases, files, ``file.py:function`` or ``package.module:function``.
        inputs: the function that makes the arguments, as ``file.py:function``; None takes the file's own ``inputs``.
        reference: the function that computes the right result; None takes the file's own ``reference``, or the
            baseline.
        axes: values of the parameters of ``inputs``, as text; every combination is measured.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        seconds: the time limit for one measure of one variant.
        half_width: measuring stops when half of the median's 95 % interval is at most this share of the median.
        calls: the most calls of one measure.
        trials: comparisons of a function with itself; 0 measures the targets instead.
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


class BenchJob(Struct, frozen=True):
    """What one process does.

    Attributes:
        request: what was asked for.
        refused: by case and variant, why it is not run: it ended a process before this one.
    """

    request: BenchRequest
    refused: dict[str, dict[str, str]] = field(default_factory=dict)


class Claim(Struct, frozen=True):
    """What was measured of calls in a row where variants ran beside their judge.

    Attributes:
        baseline_ns, variant_ns: the time of a call, by one measure.
    """

    baseline_ns: float
    variant_ns: float


class Judged(Struct, frozen=True):
    """One variant with one choice of parameters, which is checked and timed again in a process of its own.

    Attributes:
        case, name: of the variant.
        parameters: by which it was measured, as text.
        claims: what was measured, by measure; empty if it was not timed.
    """

    case: str
    name: str
    parameters: dict[str, str]
    claims: tuple[Claim, ...] = ()


class JudgeJob(Struct, frozen=True):
    """What the process does that judges variants in other processes.

    Attributes:
        request: what was measured.
        judged: the variants to confirm.
        timeout_s: the longest wait for one call.
    """

    request: BenchRequest
    judged: tuple[Judged, ...]
    timeout_s: float
