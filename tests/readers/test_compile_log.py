"""What PyTorch writes while it compiles is read as it stands there, and broken records cost only themselves."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.base.errors import BadInputError
from opscope.readers.compile_log import read_compile_log
from opscope.trace.compile_log import CodePlace, CompileLog, FailedGuard, SkippedGraph

DATA = Path(__file__).parent.parent / "data" / "compiled"
BREAK = """Graph break in user code at /project/model.py:12
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Unsupported Tensor.item() call with capture_scalar_outputs=False
  Explanation: Dynamo does not support tracing `Tensor.item()`.
  Hint: Set `torch._dynamo.config.capture_scalar_outputs = True`.

User code traceback:
  File "/project/train.py", line 3, in step
    return model(x)
  File "/project/model.py", line 12, in forward
    if x.sum().item() > 0: pass
  File "/venv/lib/python3.12/site-packages/torch/nn/functional.py", line 9, in inner
    pass

Traceback (most recent call last):
  File "/venv/lib/python3.12/site-packages/torch/_dynamo/symbolic_convert.py", line 1001, in wrapper
    return inner_fn(self, inst)
"""


def line(record: dict[str, Any], payload: str = "") -> str:
    text = f"V1126 21:42:25.898000 1008 torch/_dynamo/utils.py:2126] {json.dumps(record)}\n"
    return text + "".join(f"\t{one}\n" for one in payload.splitlines())


def artifact(name: str, payload: str, compiled: tuple[int, int] = (0, 0), attempt: int = 0) -> str:
    frame, number = compiled
    head = {"artifact": {"name": name}, "frame_id": frame, "frame_compile_id": number, "attempt": attempt}
    return line(head, payload)


def metrics(compiled: str, function: str = "forward", seconds: float = 0.25, **more: object) -> str:
    own = {"compile_id": compiled, "co_name": function, "co_filename": "/project/model.py", "co_firstlineno": 10}
    return line({"compilation_metrics": {**own, "entire_frame_compile_time_s": seconds, **more}})


def read(folder: Path, *texts: str) -> CompileLog:
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"{number}.log")
        paths[-1].write_text(text)
    return read_compile_log(paths)


def test_a_break_is_at_the_innermost_line_of_the_program(tmp_path: Path) -> None:
    (one,) = read(tmp_path, artifact("dynamo_graph_break_reason", BREAK, (3, 1), attempt=2) + metrics("3/1_2")).breaks
    assert one.id == "3/1"
    assert one.place == CodePlace("/project/model.py", 12, "forward", "if x.sum().item() > 0: pass")
    assert one.title == "Unsupported Tensor.item() call with capture_scalar_outputs=False"
    assert one.explanation == "Dynamo does not support tracing `Tensor.item()`."
    assert one.hints == ("Set `torch._dynamo.config.capture_scalar_outputs = True`.",)


def test_attempts_at_one_compilation_count_once(tmp_path: Path) -> None:
    text = artifact("dynamo_graph_break_reason", BREAK) + artifact("dynamo_graph_break_reason", BREAK, attempt=1)
    log = read(tmp_path, text + metrics("0/0_1", guard_count=7, graph_op_count=3))
    assert len(log.breaks) == 1
    (compilation,) = log.compilations
    assert (compilation.id, compilation.duration_ns, compilation.guards, compilation.operators) == (
        "0/0",
        250_000_000,
        7,
        3,
    )


def test_a_break_of_pytorch_2_6_has_its_reason(tmp_path: Path) -> None:
    old = (
        "Graph break in user code at /project/model.py:12\nReason: Unsupported: call_function BuiltinVariable(print)\n"
        'User code traceback:\n  File "/project/model.py", line 12, in forward\n    print(x)\n'
    )
    (one,) = read(tmp_path, artifact("dynamo_graph_break_reason", old) + metrics("0/0")).breaks
    assert (one.title, one.explanation, one.place.text) == (
        "Unsupported: call_function BuiltinVariable(print)",
        "",
        "print(x)",
    )


@pytest.mark.parametrize(
    ("reason", "guard"),
    [
        (
            "0/0: tensor 'x' size mismatch at index 0. expected 32, actual 36",
            FailedGuard("0/0", "tensor 'x' size mismatch at index 0", "32", "36", None, ""),
        ),
        (
            "0/2: len(parts) == 3                  # total = parts[0]  # roject/model.py:4 in run\n"
            'User stack trace:\n  File "/project/model.py", line 4, in run\n    total = parts[0]',
            FailedGuard(
                "0/2", "len(parts)", "3", None, CodePlace("/project/model.py", 4, "run", "total = parts[0]"), ""
            ),
        ),
        (
            "0/0: self.calls == 0        # self.calls += 1  # model.py:8 in forward (HINT: Make it dynamic.)",
            FailedGuard("0/0", "self.calls", "0", None, None, "Make it dynamic."),
        ),
        (
            "1/0: GLOBAL_STATE changed: grad_mode ",
            FailedGuard("1/0", "GLOBAL_STATE changed: grad_mode", None, None, None, ""),
        ),
    ],
)
@pytest.mark.parametrize("listed", [False, True], ids=["text", "list"])
def test_a_failed_guard_has_its_values_and_its_line(
    tmp_path: Path, reason: str, guard: FailedGuard, *, listed: bool
) -> None:
    payload = json.dumps([reason, "0/0: older == 1"]) if listed else reason
    (one,) = read(tmp_path, artifact("recompile_reasons", payload, (0, 3)) + metrics("0/3")).recompilations
    assert one.id == "0/3"
    assert one.guards[0] == guard
    assert len(one.guards) == 1 + listed


def test_kernels_have_lines_and_operators_per_graph(tmp_path: Path) -> None:
    stack = '  File "/project/model.py", line 12, in forward\n    y = f(x)\n'
    nodes = {
        "cppCodeToPost": {"triton_poi_fused_0:1": ["mul_1", "add"]},
        "postToPre": {"mul_1": ["y"], "add": ["y", "z"]},
    }
    graph = '    y: "f32[4]" = torch._C._nn.gelu(x);  x = None\n    z = torch.relu(y)\n'
    text = (
        artifact("before_pre_grad_graph", graph)
        + artifact("inductor_provenance_tracking_node_mappings", json.dumps(nodes))
        + artifact("inductor_provenance_tracking_kernel_stack_traces", json.dumps({"triton_poi_fused_0:1": [stack]}))
        + artifact("fx_graph_cache_miss", json.dumps({"key": "forward_key"}))
        + metrics("0/0")
        + artifact("inductor_provenance_tracking_kernel_stack_traces", json.dumps({"triton_poi_fused_0:1": []}))
        + artifact("fx_graph_cache_hit", json.dumps({"key": "backward_key"}))
    )
    first, second = read(tmp_path, text).kernels
    assert (first.graph, first.number, first.operators) == ("forward_key", 1, ("gelu", "relu"))
    assert first.places == (CodePlace("/project/model.py", 12, "forward", "y = f(x)"),)
    assert (second.graph, second.places) == ("backward_key", ())


def test_text_alone_has_breaks_recompilations_and_skipped_graphs(tmp_path: Path) -> None:
    prefix = "V1126 21:42:25.898000 1008 torch/_dynamo/symbolic_convert.py:5127] [0/1] "
    text = "".join(f"{prefix}[__graph_breaks] {one}\n" for one in BREAK.splitlines())
    text += f"{prefix.replace('898', '899')}[__recompiles] Recompiling function run in /project/model.py:10\n"
    text += f"{prefix.replace('898', '899')}[__recompiles]     triggered by the following guard failure(s):\n"
    text += f"{prefix.replace('898', '899')}[__recompiles]     - 0/0: x == 2\n"
    graphs = "W1126 21:42:26.898000 1008 torch/_inductor/cudagraph_utils.py:207] [__cudagraphs] "
    text += f"{graphs}skipping cudagraphs due to mutated inputs (1 instances). Found from : \n"
    text += f'{graphs}   File "/project/model.py", line 30, in run\n{graphs}     total.add_(y)\n'
    text += (
        "W1126 21:42:27.0 1008 torch/_dynamo/convert_frame.py:1] [0/8] torch._dynamo hit config.recompile_limit (8)\n"
    )
    log = read(tmp_path, text)
    assert [(one.id, one.place.line) for one in log.breaks] == [("0/1", 12)]
    assert [(one.id, one.guards[0].text, one.guards[0].expected) for one in log.recompilations] == [("0/1", "x", "2")]
    (skipped,) = log.skipped
    assert skipped.reason == "mutated inputs (1 instances)"
    assert skipped.place == CodePlace("/project/model.py", 30, "run", "total.add_(y)")
    assert log.limited == ("0/8",)


def test_unknown_records_are_counted_and_broken_ones_cost_only_themselves(tmp_path: Path) -> None:
    text = (
        "no record at all\n"
        + line({"a_new_record": {}}, "payload")
        + line({"a_new_record": {}})
        + artifact("another", "")
        + 'V1126 21:42:25.898000 1008 torch/_dynamo/utils.py:2126] {"cut\n'
        + artifact("recompile_reasons", '["0/0: cut')
        + line({"dynamo_start": {"stack": [{"line": "x", "name": "f", "filename": 9}]}, "frame_id": 0})
        + metrics("0/0")
    )
    log = read(tmp_path, text)
    assert log.unknown == {"a_new_record": 2, "another": 1}
    assert log.broken == 3
    assert [one.id for one in log.compilations] == ["0/0"]


@given(st.binary(max_size=400), st.integers(0, 2000), st.integers(0, 2000))
def test_no_damage_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int, cut: int
) -> None:
    whole = (
        artifact("dynamo_graph_break_reason", BREAK) + metrics("0/0") + artifact("recompile_reasons", "0/0: a == 1")
    ).encode()
    path = tmp_path_factory.mktemp("logs") / "damaged.log"
    path.write_bytes(whole[: at % len(whole)] + noise + whole[cut % len(whole) :])
    try:
        log = read_compile_log([path])
    except BadInputError:
        return
    assert log.path == str(path)


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("inductor_provenance_tracking_kernel_stack_traces", {"triton_without_a_number": []}),
        ("inductor_provenance_tracking_kernel_stack_traces", {"triton_poi:1": 7}),
        ("inductor_provenance_tracking_kernel_stack_traces", [1, 2]),
        ("inductor_provenance_tracking_node_mappings", {"cppCodeToPost": [], "postToPre": 3}),
    ],
)
def test_records_of_another_shape_cost_only_themselves(tmp_path: Path, name: str, payload: object) -> None:
    stacks = artifact("inductor_provenance_tracking_kernel_stack_traces", json.dumps({"triton_a:1": []}))
    log = read(
        tmp_path,
        artifact(name, json.dumps(payload)) + metrics("0/0") + stacks.replace('"frame_id": 0', '"frame_id": 1'),
    )
    assert log.broken <= 1
    assert [one.id for one in log.compilations] == ["0/0"]
    assert ("1/0", "triton_a") in {(one.id, one.name) for one in log.kernels}


def test_numbers_that_no_file_has_are_broken(tmp_path: Path) -> None:
    text = metrics("0/0", co_firstlineno=10**30) + metrics("0/1", seconds=1e300) + metrics("0/2")
    log = read(tmp_path, text + artifact("dynamo_graph_break_reason", BREAK.replace(":12", ":" + "9" * 5000)))
    assert [one.id for one in log.compilations] == ["0/2"]
    assert log.broken >= 2
    assert log.breaks == ()


def of_process(text: str, process: int) -> str:
    return text.replace(" 1008 ", f" {process} ")


def test_of_two_processes_the_one_of_the_trace_is_taken(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(of_process(metrics("0/0", "first"), 41))
    (tmp_path / "two.log").write_text(of_process(metrics("0/0", "second"), 42))
    (tmp_path / "worker.log").write_text(of_process(line({"chromium_event": {}}), 43))
    log = read_compile_log([tmp_path], [42, 43])
    assert [one.place and one.place.function for one in log.compilations] == ["second"]
    for processes in ((), (44,), (41, 42)):
        with pytest.raises(BadInputError, match=r"logs of 2 processes or runs.*one\.log of process 41"):
            read_compile_log([tmp_path], processes)


def test_two_runs_whose_processes_have_one_number_are_not_merged(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(metrics("0/0", "first"))
    (tmp_path / "two.log").write_text(metrics("0/0", "second"))
    with pytest.raises(BadInputError, match="several of them can be the trace's"):
        read_compile_log([tmp_path], [1008])
    assert len(read_compile_log([tmp_path / "two.log"], [1008]).compilations) == 1


def test_lines_that_are_marked_with_a_rank_are_of_the_same_process(tmp_path: Path) -> None:
    text = "V1126 21:42:25.898000 1008 torch/_dynamo/a.py:1] [0/1] [__recompiles]     - 0/0: x == 2\n"
    later = "[rank0]:" + text.replace("0/1", "0/2")
    log = read(tmp_path, metrics("0/0") + "[rank0]:" + metrics("0/1"), text + later)
    assert [one.id for one in log.compilations] == ["0/0", "0/1"]
    assert [one.id for one in log.recompilations] == ["0/1", "0/2"]


def test_a_log_that_is_cut_says_so(tmp_path: Path) -> None:
    whole = gzip.compress((metrics("0/0") + metrics("0/1") * 5_000).encode())
    (tmp_path / "cut.log.gz").write_bytes(whole[: len(whole) // 2])
    log = read_compile_log([tmp_path / "cut.log.gz"])
    assert log.damage is not None
    assert "cut.log.gz" in log.damage


def test_a_part_that_is_left_out_of_a_graph_is_skipped_with_its_reason(tmp_path: Path) -> None:
    prefix = "V1126 21:42:26.898000 1008 torch/_inductor/scheduler.py:6580] [0/0] [__cudagraphs] "
    text = f"{prefix}    op0: reason=cpu ops, ir=ComputedBuffer\n"
    text += f"{prefix}    op1: reason=partition includes all ops when cudagraphs is disabled, ir=ComputedBuffer\n"
    log = read(tmp_path, text)
    assert log.skipped == (SkippedGraph("0/0", "cpu ops", None, is_part=True),)
    assert log.tells_skipped
    assert not read(tmp_path, metrics("0/0")).tells_skipped


def test_nodes_of_one_name_in_two_graphs_are_of_their_own_graph(tmp_path: Path) -> None:
    def printed(line: int) -> str:
        return (
            f'  # File: /project/model.py:{line} in forward, code: y\n  mul: "f32[4]" = torch.ops.aten.mul.Tensor(a, b)'
        )

    def code(name: str) -> str:
        return f"# Topologically Sorted Source Nodes: [mul], Original ATen: [aten.mul]\n{name}.run(a)"

    log = read(
        tmp_path,
        artifact("inductor_post_grad_graph", printed(10))
        + artifact("inductor_output_code", code("triton_a"))
        + artifact("fx_graph_cache_miss", '{"key": "forward"}')
        + artifact("inductor_post_grad_graph", printed(20))
        + artifact("inductor_output_code", code("triton_b"))
        + artifact("fx_graph_cache_miss", '{"key": "backward"}')
        + metrics("0/0"),
    )
    assert [(one.name, [place.line for place in one.places]) for one in log.kernels] == [
        ("triton_a", [10]),
        ("triton_b", [20]),
    ]


def test_a_librarys_call_has_the_line_of_its_own_node_and_not_those_of_its_inputs(tmp_path: Path) -> None:
    graph = (
        '  # File: /project/model.py:10 in forward, code: g\n  gelu: "f32[4]" = torch.ops.aten.gelu.default(a)\n'
        '  # File: /project/model.py:20 in forward, code: m\n  mm_1: "f32[4]" = torch.ops.aten.mm.default(gelu, b)'
    )
    nodes = "# Topologically Sorted Source Nodes: [gelu, mm_1], Original ATen: [aten.gelu, aten.mm]"
    code = f"{nodes}\ntriton_a.run(a)\n{nodes}\nextern_kernels.mm(buf0, b, out=buf1)"
    texts = (artifact("inductor_post_grad_graph", graph), artifact("inductor_output_code", code), metrics("0/0"))
    triton, product = read(tmp_path, "".join(texts)).kernels
    assert ([place.line for place in triton.places], triton.operators) == ([10, 20], ("gelu", "mm"))
    assert ([place.line for place in product.places], product.operators) == ([20], ("mm",))


def test_a_graph_that_two_compilations_share_has_the_lines_of_each(tmp_path: Path) -> None:
    texts = []
    for frame, line in ((0, 10), (1, 20)):
        graph = f'  # File: /project/model.py:{line} in f, code: y\n  mul: "f32[4]" = torch.ops.aten.mul.Tensor(a, b)'
        code = "# Topologically Sorted Source Nodes: [mul], Original ATen: [aten.mul]\ntriton_a.run(a)"
        texts.append(artifact("inductor_post_grad_graph", graph, (frame, 0)))
        texts.append(artifact("inductor_output_code", code, (frame, 0)))
        texts.append(artifact("fx_graph_cache_hit", '{"key": "shared"}', (frame, 0)) + metrics(f"{frame}/0"))
    kernels = read(tmp_path, "".join(texts)).kernels
    assert [(one.id, one.graph, one.places[0].line) for one in kernels] == [
        ("0/0", "shared", 10),
        ("1/0", "shared", 20),
    ]


def test_a_folder_without_logs_and_a_file_without_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no file"):
        read_compile_log([tmp_path])
    (tmp_path / "other.txt").write_text("hello\n")
    with pytest.raises(BadInputError, match="nothing that TORCH_TRACE"):
        read_compile_log([tmp_path])


@pytest.mark.parametrize(
    ("program", "compilations", "breaks", "recompilations", "skipped"),
    [
        ("break_print", 5, {92}, 0, []),
        ("break_hook", 6, {170}, 2, []),
        ("recompile_dtype", 4, set(), 3, []),
        ("graph_mutation", 1, set(), 0, [354]),
        ("graph_plain", 1, set(), 0, []),
        ("compiled_late", 2, set(), 1, []),
    ],
)
def test_recorded_logs_have_what_was_planted(
    program: str, compilations: int, breaks: set[int], recompilations: int, skipped: list[int]
) -> None:
    log = read_compile_log(DATA / f"{program}.{kind}.xz" for kind in ("torch_trace.log", "torch_logs.txt"))
    assert len(log.compilations) == compilations
    assert {one.place.line for one in log.breaks} == breaks
    assert len(log.recompilations) == recompilations
    assert [one.place.line for one in log.skipped if one.place] == skipped
    assert log.broken == 0
    assert all(one.graph for one in log.kernels)
