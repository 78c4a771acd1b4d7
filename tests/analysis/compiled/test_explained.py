"""What ``torch.compile`` did, joined with the steps of a trace: every figure by hand, and recorded programs."""

import lzma
from pathlib import Path

import pytest

from opscope.analysis.analyzed import analyze
from opscope.analysis.compiled.explained import explained
from opscope.analysis.measured import Measured
from opscope.analysis.structure.links import link
from opscope.documents.compiled import CompileDocument
from opscope.knowledge.native_functions import NativeFunctions
from opscope.readers.compile_log import read_compile_log
from opscope.readers.reading import read
from opscope.trace.compile_log import (
    CodePlace,
    Compilation,
    CompiledKernel,
    CompileLog,
    FailedGuard,
    GraphBreak,
    Recompilation,
)
from tests.kineto import KinetoTrace

DATA = Path(__file__).parent.parent.parent / "data" / "compiled"
FORWARD = CodePlace("/project/model.py", 10, "forward")
BROKEN = CodePlace("/project/model.py", 12, "forward", "print(x)")
SUM = CodePlace("/project/model.py", 14, "forward", "y = x @ w")
US = 1_000


def two_steps(*, breaks: bool = True) -> KinetoTrace:
    """Two steps of a function that breaks once.

    Per step, from its start b, in us: guards b+5 .. b+10 and b+130 .. b+140; function 0/0 b+10 .. b+600, in it graph
    ``first`` b+20 .. b+120 with a product (kernel of 30) and a Triton kernel (10), and function 1/0 b+140 .. b+400, in
    it graph ``second`` b+160 .. b+260 with a Triton kernel of the same name (20). So 40 lie between the graphs.
    """
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "Tiny GPU"}])
    for number, base in ((1, 0), (2, 1_000 * US)):
        at = lambda us, base=base: base + us * US  # noqa: E731
        trace.step(number, base, 1_000 * US)
        trace.operator("TorchDynamo Cache Lookup", at(5), 5 * US)
        trace.operator("Torch-Compiled Region: 0/0", at(10), 590 * US)
        trace.annotation("## Call CompiledFxGraph first ##", at(20), 100 * US)
        trace.operator("aten::mm", at(30), 30 * US)
        trace.launched_kernel("gemm", (at(40), 5 * US), (at(50), 30 * US))
        trace.operator("triton_poi_fused_0", at(70), 20 * US)
        trace.launched_kernel("triton_poi_fused_0", (at(75), 5 * US), (at(85), 10 * US))
        if breaks:
            trace.operator("TorchDynamo Cache Lookup", at(130), 10 * US)
            trace.operator("Torch-Compiled Region: 1/0", at(140), 260 * US)
            trace.annotation("## Call CompiledFxGraph second ##", at(160), 100 * US)
            trace.operator("triton_poi_fused_0", at(170), 20 * US)
            trace.launched_kernel("triton_poi_fused_0", (at(180), 4 * US), (at(190), 20 * US))
    return trace


def compilation(number: str, function: str = "forward", ms: int = 3) -> Compilation:
    place = CodePlace("/project/model.py", 10, function)
    return Compilation(number, place, CodePlace("/project/train.py", 3, "step"), ms * 1_000_000, 7, 2, None)


LOG = CompileLog(
    path="log",
    compilations=(compilation("0/0"), compilation("1/0", "torch_dynamo_resume_in_forward_at_12", 2)),
    breaks=(GraphBreak("0/0", BROKEN, "Failed to trace builtin operator", "", ("Remove it.",)),),
    kernels=(
        CompiledKernel("0/0", "extern_kernels.mm", "first", 1, (SUM,), ("linear",)),
        CompiledKernel("0/0", "triton_poi_fused_0", "first", 2, (SUM, BROKEN), ("gelu",)),
        CompiledKernel("1/0", "triton_poi_fused_0", "second", 1, (), ("add",)),
    ),
)


def of(trace: KinetoTrace, folder: Path, log: CompileLog = LOG) -> CompileDocument:
    opened = read(trace.write(folder / "trace.json"))
    return explained(log, opened, link(opened))


def test_a_break_has_its_passes_and_the_time_between_its_graphs(tmp_path: Path) -> None:
    (one,) = of(two_steps(), tmp_path).breaks
    assert (one.place.file, one.place.line, one.place.text) == ("/project/model.py", 12, "print(x)")
    assert one.passes == 1
    assert one.between_ns == 40 * US
    assert one.sentence == (
        "Failed to trace builtin operator. The line runs once in a step. Between the graphs that it separates the host "
        "spends 40.00 us of a step, as recorded."
    )


def test_a_break_that_no_step_passes_has_no_time(tmp_path: Path) -> None:
    elsewhere = GraphBreak("7/0", CodePlace("/project/setup.py", 1, "prepare"), "Once", "", ())
    log = CompileLog(path="log", compilations=LOG.compilations, breaks=(*LOG.breaks, elsewhere))
    first, second = of(two_steps(), tmp_path, log).breaks
    assert (first.place.line, first.between_ns) == (12, 40 * US)
    assert (second.place.file, second.passes, second.between_ns) == ("/project/setup.py", 0, None)


def test_functions_have_their_own_host_time_and_the_device_time_of_what_they_launch(tmp_path: Path) -> None:
    outer, inner = of(two_steps(), tmp_path).regions
    assert (outer.compilation, outer.executions, outer.host_ns, outer.device_ns, outer.launches) == (
        "0/0", 1, 330 * US, 40 * US, 2,
    )  # fmt: skip
    assert (inner.compilation, inner.executions, inner.host_ns, inner.device_ns, inner.launches) == (
        "1/0", 1, 260 * US, 20 * US, 1,
    )  # fmt: skip
    assert inner.function == "torch_dynamo_resume_in_forward_at_12"


def test_a_backward_graph_on_another_thread_is_of_the_function_that_it_belongs_to(tmp_path: Path) -> None:
    trace = two_steps(breaks=False)
    trace.annotation("## Call CompiledFxGraph second ##", 650 * US, 100 * US, tid=200)
    trace.operator("triton_poi_fused_0", 660 * US, 20 * US, tid=200)
    trace.launched_kernel("triton_poi_fused_0", (665 * US, 4 * US), (700 * US, 20 * US), tid=200)
    kernels = (*LOG.kernels[:2], CompiledKernel("0/0", "triton_poi_fused_0", "second", 1, (SUM,), ("add",)))
    log = CompileLog(path="log", compilations=LOG.compilations[:1], kernels=kernels)
    (region,) = of(trace, tmp_path, log).regions
    assert (region.device_ns, region.elsewhere_ns, region.launches) == (40 * US, 10 * US, 2)


def test_only_compilations_that_break_at_the_line_count(tmp_path: Path) -> None:
    """Another compilation of the function does not break, as with another flag; a method has the same name."""
    flagged, method = (
        Compilation(number, CodePlace("/project/model.py", line, "forward"), None, None, None, None, None)
        for number, line in (("0/1", 10), ("1/0", 3))
    )
    log = CompileLog(path="log", compilations=(LOG.compilations[0], flagged, method), breaks=LOG.breaks)
    trace = two_steps()
    trace.operator("Torch-Compiled Region: 0/1", 700 * US, 10 * US)
    trace.operator("Torch-Compiled Region: 1/0", 720 * US, 10 * US)
    (one,) = of(trace, tmp_path, log).breaks
    assert (one.compilations, one.passes) == (("0/0",), 1)


def test_what_the_limit_stopped_is_said_and_not_counted(tmp_path: Path) -> None:
    guard = FailedGuard("0/0", "name", "'a'", None, BROKEN, "")
    log = CompileLog(
        path="log",
        compilations=(compilation("0/0"),),
        recompilations=(Recompilation("0/1", (guard,)),),
        limited=("0/1", "3/8"),
    )
    stopped, unknown = of(two_steps(breaks=False), tmp_path, log).recompilations
    assert (stopped.compilations, stopped.limited) == ((), True)
    assert stopped.sentence == (
        "forward was not compiled again. A guard failed: name (values: 'a'). PyTorch reached its limit of "
        "compilations: calls that none of them fits run uncompiled."
    )
    assert (unknown.guard, unknown.limited) == ("", True)


def test_a_compilation_without_a_record_is_not_counted(tmp_path: Path) -> None:
    """As in a log of TORCH_TRACE alone, which does not tell of the limit."""
    guards = tuple(FailedGuard("0/0", "name", str(number), None, None, "") for number in range(2))
    log = CompileLog(
        path="log",
        compilations=(compilation("0/0"), compilation("0/1")),
        recompilations=(Recompilation("0/1", guards[:1]), Recompilation("0/2", guards[1:])),
    )
    (one,) = of(two_steps(breaks=False), tmp_path, log).recompilations
    assert one.compilations == ("0/1",)
    assert one.sentence.startswith("forward was compiled once more, which took 3.000 ms. A guard failed: name")


def test_a_graph_that_two_functions_share_is_of_the_function_around_its_call(tmp_path: Path) -> None:
    trace = two_steps()
    kernels = (*LOG.kernels, CompiledKernel("5/0", "triton_poi_fused_0", "second", 1, (SUM,), ("other",)))
    log = CompileLog(path="log", compilations=LOG.compilations, kernels=kernels)
    rows = {(one.compilation, one.operators): one.device_ns for one in of(trace, tmp_path, log).kernels}
    assert rows["1/0", ("add",)] == 20 * US
    assert not any(compiled == "5/0" for compiled, _ in rows)


def test_a_log_of_another_process_is_said_to_be_one(tmp_path: Path) -> None:
    log = CompileLog(path="log", process=4711, compilations=LOG.compilations)
    assert "The log is of process 4711, which the trace does not have." in " ".join(
        of(two_steps(), tmp_path, log).notes
    )


def test_without_steps_the_figures_are_of_the_recording(tmp_path: Path) -> None:
    trace = KinetoTrace(deviceProperties=[{"id": 0, "name": "Tiny GPU"}])
    for base in (0, 1_000 * US, 2_000 * US):
        trace.operator("Torch-Compiled Region: 0/0", base, 500 * US)
    document = of(trace, tmp_path)
    assert document.of == "the recording"
    assert document.breaks[0].passes == 3
    assert "The line runs 3 times in the recording." in document.breaks[0].sentence


def test_kernels_of_one_name_have_the_lines_of_their_own_graph(tmp_path: Path) -> None:
    document = of(two_steps(), tmp_path)
    rows = {(one.compilation, one.name): (one.device_ns, one.operators, len(one.places)) for one in document.kernels}
    assert rows == {
        ("0/0", "extern_kernels.mm"): (30 * US, ("linear",), 1),
        ("0/0", "triton_poi_fused_0"): (10 * US, ("gelu",), 2),
        ("1/0", "triton_poi_fused_0"): (20 * US, ("add",), 0),
    }
    assert (document.graphs_ns, document.known_ns) == (60 * US, 40 * US)
    assert document.guards_ns == 15 * US
    assert document.compile_ns == 5_000_000


def test_kernels_of_a_name_that_ran_more_often_than_the_code_calls_it_have_no_lines(tmp_path: Path) -> None:
    trace = two_steps()
    trace.operator("aten::mm", 62 * US, 5 * US)
    trace.launched_kernel("gemm", (63 * US, 1 * US), (300 * US, 5 * US))
    document = of(trace, tmp_path)
    product = next(one for one in document.kernels if one.name == "extern_kernels.mm")
    assert product.device_ns == 15 * US  # of the second step only, over two steps


def test_a_recompilation_has_its_values_and_what_it_took(tmp_path: Path) -> None:
    guards = [FailedGuard(f"0/{n}", "self.calls", str(n), None, BROKEN, "Make it dynamic.") for n in range(3)]
    log = CompileLog(
        path="log",
        compilations=tuple(compilation(f"0/{number}", ms=4) for number in range(4)),
        recompilations=(
            *(Recompilation(f"0/{n + 1}", tuple(reversed(guards[: n + 1]))) for n in range(3)),
            Recompilation("0/8", tuple(guards[:1])),  # beyond the limit, so it was not made
        ),
        limited=("0/8",),
    )
    trace = two_steps(breaks=False)
    trace.annotation("dynamo_data: compile_id=0/2", 700 * US, 50 * US)
    (one,) = of(trace, tmp_path, log).recompilations
    assert (one.guard, one.expected, one.compilations) == ("self.calls", ("0", "1", "2"), ("0/1", "0/2", "0/3"))
    assert (one.compile_ns, one.in_steps, one.limited, one.hint) == (12_000_000, 1, True, "Make it dynamic.")
    assert one.place is not None
    assert one.place.line == 12
    assert one.sentence == (
        "forward was compiled 3 times more, which took 12.00 ms. A guard failed: self.calls (values: 0, 1, 2). "
        "1 of 3 took place in the recorded steps. PyTorch reached its limit of compilations: calls that none of them "
        "fits run uncompiled."
    )


def test_a_log_of_another_run_is_said_to_be_one(tmp_path: Path) -> None:
    log = CompileLog(path="log", compilations=(compilation("9/0"),))
    notes = " ".join(of(two_steps(), tmp_path, log).notes)
    assert "does not have the compilations 0/0, 1/0 of the trace" in notes
    assert "the log has no code that Inductor wrote" in notes


def recorded(program: str) -> CompileDocument:
    log = read_compile_log(DATA / f"{program}.{kind}.xz" for kind in ("torch_trace.log", "torch_logs.txt"))
    trace = read(DATA / f"{program}.trace.json.xz")
    return explained(log, trace, link(trace))


@pytest.mark.parametrize(("program", "line"), [("break_print", 92), ("break_hook", 170)])
def test_recorded_breaks_are_passed_once_for_each_of_six_blocks(program: str, line: int) -> None:
    (one,) = recorded(program).breaks
    assert (one.place.line, one.passes) == (line, 6)
    assert one.between_ns is not None
    assert one.between_ns > 0


@pytest.mark.parametrize(
    ("program", "share"), [("break_print", 1.0), ("graph_mutation", 1.0), ("graph_plain", 0.95), ("break_hook", 1.0)]
)
def test_the_lines_of_kernels_are_known_for_most_of_the_time(program: str, share: float) -> None:
    """A replayed graph first copies its inputs, which is of no line."""
    document = recorded(program)
    assert document.known_ns >= share * document.graphs_ns
    lines = {place.line for one in document.kernels for place in one.places}
    assert {56, 59} <= lines


def test_without_provenance_the_generated_code_and_the_printed_graphs_have_the_lines(tmp_path: Path) -> None:
    """A log without the records and comments that INDUCTOR_PROVENANCE=1 adds, as others bring it."""
    whole = lzma.decompress((DATA / "break_hook.torch_trace.log.xz").read_bytes()).decode()
    kept = []
    dropping = False
    for line in whole.split("\n"):
        if not line.startswith("\t"):
            dropping = '"inductor_provenance_tracking' in line
        if not dropping and "[Provenance debug handles]" not in line:
            kept.append(line)
    (tmp_path / "plain.log").write_text("\n".join(kept))
    trace = read(DATA / "break_hook.trace.json.xz")
    bare = explained(read_compile_log([tmp_path / "plain.log"]), trace, link(trace))
    full = recorded("break_hook")
    assert bare.known_ns >= 0.99 * bare.graphs_ns
    lines = {(one.compilation, one.name, one.numbers): {place.line for place in one.places} for one in full.kernels}
    assert {
        (one.compilation, one.name, one.numbers): {place.line for place in one.places} for one in bare.kernels
    } == lines


def test_a_recorded_compilation_in_the_steps_is_counted() -> None:
    (one,) = recorded("compiled_late").recompilations
    assert (one.guard, one.in_steps) == ("len(fn._modules) != 6", 1)
    assert "That was in the recorded steps." in one.sentence


def test_a_compilation_in_a_step_that_is_left_out_is_counted_too() -> None:
    log = read_compile_log([DATA / "compiled_late.torch_trace.log.xz"])
    analysis = analyze(read(DATA / "compiled_late.trace.json.xz"), NativeFunctions.shipped())
    assert [step.number for step in analysis.odd_steps] == [45]
    measured = Measured(analysis, compile_log=log)
    assert measured.compiled is not None
    assert [one.in_steps for one in measured.compiled.recompilations] == [1]
