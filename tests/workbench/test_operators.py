"""Operators from C++ and CUDA sources: declarations, checks before each call, and a real build for the CPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import opscope  # noqa: E402
from opscope.base.errors import EnvironmentLacksError, UsageError  # noqa: E402
from opscope.machine.programs import find_program  # noqa: E402
from opscope.workbench.toolchain.load_kernel import Requires, check_arguments, declaration, load_kernel  # noqa: E402
from opscope.workbench.toolchain.nvcc import BuildFailedError  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]
QUICK = ("-O0",)  # most of a build's time goes into optimising what PyTorch's headers hold
SOURCE = """
torch::Tensor scaled(torch::Tensor x, double factor, int64_t times) {
    auto result = torch::empty_like(x);
    for (int64_t i = 0; i < x.numel(); ++i) {
        result.data_ptr<float>()[i] = x.data_ptr<float>()[i] * factor * times;
    }
    return result;
}
"""


def scaled(x: torch.Tensor, factor: float, times: int = 1) -> torch.Tensor:
    """Multiply."""
    return torch.empty_like(x)


def two(a: torch.Tensor, b: torch.Tensor, on: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(a), torch.empty_like(b)


def test_declarations() -> None:
    assert declaration("scaled", scaled) == "torch::Tensor scaled(torch::Tensor x, double factor, int64_t times);"
    pair = "std::tuple<torch::Tensor, torch::Tensor>"
    assert declaration("two", two) == f"{pair} two(torch::Tensor a, torch::Tensor b, bool on);"

    def bare(x):  # type: ignore[no-untyped-def]
        return x

    def text(x: str) -> torch.Tensor:
        return torch.empty(1)

    def keyword_only(x: torch.Tensor, *, times: int = 1) -> torch.Tensor:
        return x

    with pytest.raises(UsageError, match="keyword-only"):
        declaration("keyword_only", keyword_only)
    with pytest.raises(UsageError, match="needs annotations"):
        declaration("bare", bare)
    with pytest.raises(UsageError, match="its parameter x is none of Tensor"):
        declaration("text", text)


def problem(requires: dict[str, Requires], *, is_cuda: bool = False, **arguments: object) -> str:
    return check_arguments(arguments, requires, is_cuda=is_cuda) or ""


def test_arguments_are_checked_before_the_launch() -> None:
    x, matrix = torch.randn(8), torch.randn(4, 6)
    assert problem({}, x=x, factor=2.0) == ""
    assert "x is on cpu: the kernel runs on a GPU" in problem({}, is_cuda=True, x=x)
    assert "x is not contiguous: its strides are (1, 6)" in problem({}, x=matrix.t())
    assert problem({"x": Requires(contiguous=False)}, x=matrix.t()) == ""
    floats = {"x": Requires(dtypes=(torch.float32, torch.float16))}
    assert problem(floats, x=x.double()) == "x is of float64, not of float32 or float16"
    assert problem({"x": Requires(dims=2)}, x=x) == "x has 1 dimensions, not 2"
    same = {"y": Requires(shape_of="x")}
    assert problem(same, x=x, y=torch.randn(9)) == "y has the shape (9,), x has (8,)"
    assert "must be on one device" in problem({}, x=x, y=torch.empty(8, device="meta"))


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or find_program("ninja") is None, reason="g++ and ninja build extensions"
)


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> object:
    patch = pytest.MonkeyPatch()
    patch.setenv("OPSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield load_kernel(
        SOURCE, {"scaled": scaled}, requires={"x": Requires(dtypes=(torch.float32,))}, name="tests_cpu", flags=QUICK
    )
    patch.undo()


@needs_compiler
def test_an_operator_is_built_checked_and_known_to_pytorch(operators: object) -> None:
    run = operators.scaled  # type: ignore[attr-defined]
    x = torch.randn(16)
    assert torch.equal(run(x, 2.0, 3), x * 6)
    assert torch.equal(run(x, factor=2.0), x * 2)
    assert torch.equal(torch.ops.tests_cpu.scaled(x, 2.0, 1), x * 2)
    with pytest.raises(UsageError, match="tests_cpu::scaled: x is of float64, not of float32"):
        run(x.double(), 2.0)
    torch.library.opcheck(run, (x, 2.0, 3))
    assert run(torch.empty(16, device="meta"), 2.0).shape == (16,)
    assert "tests_cpu" in repr(operators)
    with pytest.raises(UsageError, match="tests_cpu::scaled is there already, of another source"):
        load_kernel(f"{SOURCE}\n// changed\n", {"scaled": scaled}, name="tests_cpu")
    with pytest.raises(AttributeError, match="there is no operator other"):
        _ = operators.other  # type: ignore[attr-defined]


@needs_compiler
def test_it_is_benchmarked_like_any_function(operators: object) -> None:
    run = operators.scaled  # type: ignore[attr-defined]
    x = torch.randn(64)
    found = opscope.bench(
        {"pytorch": lambda x: x * 2.0, "own": lambda x: run(x.contiguous(), 2.0)}, inputs=(x,), seconds=0.05
    )
    assert [str(one.correctness.verdict) for one in found.results if one.correctness] == ["right", "right"]


@needs_compiler
def test_the_compilers_first_error_is_shown_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "broken.cpp"
    source.write_text("torch::Tensor scaled(torch::Tensor x, double factor, int64_t times) {\n    return y;\n}\n")
    with pytest.raises(BuildFailedError, match=r"broken.cpp:2: .*y.* was not declared"):
        load_kernel(source, {"scaled": scaled}, flags=QUICK)


def test_what_cannot_be_built_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no source"):
        load_kernel(tmp_path / "none.cu", {"scaled": scaled})
    with pytest.raises(UsageError, match="needs functions"):
        load_kernel(SOURCE, {})
    with pytest.raises(UsageError, match="requires names 'y', which no function takes"):
        load_kernel(SOURCE, {"scaled": scaled}, requires={"y": Requires()})
    if torch.version.cuda is None:
        with pytest.raises(EnvironmentLacksError, match="needs a PyTorch with CUDA"):
            load_kernel("__global__ void k() {}\n", {"scaled": scaled})


# ---------------------------------------------------------------- what builds keep, and what may be loaded of it


OWN_BINDING = """
#include <torch/csrc/utils/pybind.h>
#include <torch/types.h>
torch::Tensor twice(torch::Tensor x) { return x * 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("doubled", &twice, "Twice as much"); }
"""


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@needs_compiler
def test_a_source_with_a_binding_of_its_own_is_built_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own.cpp").write_text(OWN_BINDING)
    run = load_kernel(tmp_path / "own.cpp", {"doubled": doubled}, name="tests_own", flags=QUICK)
    assert torch.equal(run.doubled(torch.ones(3)), 2 * torch.ones(3))
    with pytest.raises(UsageError, match="has no function twice; it has: doubled"):
        load_kernel(tmp_path / "own.cpp", {"twice": doubled}, name="tests_own", flags=QUICK)


@needs_compiler
def test_the_headers_of_a_source_belong_to_it_and_killed_builds_hinder_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("OPSCOPE_CACHE", str(cache))
    old = os.umask(0)
    try:
        found = []
        for factor in (2, 3):
            folder = tmp_path / str(factor)
            folder.mkdir()
            (folder / "factor.h").write_text('#include "inner.h"\n')
            (folder / "inner.h").write_text(f"#define FACTOR {factor}\n")
            (folder / "s.cpp").write_text(
                '#include "factor.h"\ntorch::Tensor doubled(torch::Tensor x) { return x * FACTOR; }\n'
            )
            run = load_kernel(folder / "s.cpp", {"doubled": doubled}, name=f"tests_header{factor}", flags=QUICK)
            found.append(float(run.doubled(torch.ones(1))))
    finally:
        os.umask(old)
    assert found == [2.0, 3.0]
    for path in [cache, *cache.rglob("*")]:
        if path.is_dir():
            assert path.stat().st_mode & 0o077 == 0, path
    (built,) = cache.glob("operators/tests_header2-*")
    (built / "lock").write_text("")  # PyTorch's, of a process that was killed
    (library,) = built.glob("*.so")
    beginning = library.read_bytes()[:1000]
    library.unlink()  # this process has it mapped
    library.write_bytes(beginning)  # a full disk
    script = f"""
import sys, torch
sys.path.insert(0, {str(ROOT)!r})
from opscope.workbench.toolchain.load_kernel import load_kernel
def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
run = load_kernel({str(tmp_path / "2" / "s.cpp")!r}, {{"doubled": doubled}}, name="tests_header2", flags={QUICK!r})
print(float(run.doubled(torch.ones(1))))
"""
    again = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert again.stdout.strip() == "2.0", again.stderr


def test_a_library_that_another_user_could_have_written_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opscope.base import files

    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    folder = files.private_folder("cuda")
    assert folder.stat().st_mode & 0o777 == 0o700
    library = folder / "planted.so"
    files.write_whole(library, b"x", files.PRIVATE_FILE)
    assert files.is_own(library)
    library.chmod(0o666)
    assert not files.is_own(library)
    library.chmod(0o600)
    folder.chmod(0o777)
    assert not files.is_own(library)
    assert files.private_folder("cuda").stat().st_mode & 0o777 == 0o700  # ours, and made private again
    (folder / "link.so").symlink_to(library)
    assert not files.is_own(folder / "link.so")
    if os.geteuid() == 0:
        os.chown(library, 65534, 65534)
        assert not files.is_own(library)
        os.chown(tmp_path / "cache", 65534, 65534)
        elsewhere = files.private_folder("cuda")
        assert not elsewhere.is_relative_to(tmp_path / "cache")
