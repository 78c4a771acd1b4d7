import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from opscope.analysis.analyzed import Analysis, analyze
from opscope.readers.reading import read
from opscope.trace.model import Trace
from tests.kineto import KinetoTrace

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
# Tests run side by side, one process per core: more threads than cores would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Peaks that were measured on this machine must not count; the processes of a run share one cache.
os.environ["OPSCOPE_CACHE"] = os.environ.setdefault("OPSCOPE_TESTS_CACHE", tempfile.mkdtemp(prefix="opscope-tests-"))
# A page that cannot be made is a defect here, and no note in a manifest.
os.environ["OPSCOPE_RAISE"] = "1"
with suppress(ImportError):  # GPU tests run without it
    from hypothesis import settings

    # How long an example takes says how busy the machine is.
    settings.register_profile("opscope", deadline=None)
    settings.load_profile("opscope")


def gpu_is_missing() -> str | None:
    """Return why tests that need a GPU cannot run here."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA"
    return None if torch.cuda.is_available() else "PyTorch sees no GPU"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write what is printed now as what is expected")


@pytest.fixture
def is_golden(pytestconfig: pytest.Config) -> Callable[[str, str], bool]:
    """Compare a text with the file that holds the expected one; ``--update-goldens`` writes it instead."""

    def compare(name: str, text: str) -> bool:
        path = DATA / "golden" / name
        if pytestconfig.getoption("--update-goldens"):
            path.write_text(text, encoding="utf-8")
        return text == path.read_text(encoding="utf-8")

    return compare


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Files go to the processes one by one, in this order: a long one must not begin when all others are done.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = gpu_is_missing() if marked else None
    for item in marked if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def data() -> Path:
    return DATA


@pytest.fixture
def load(tmp_path: Path) -> Callable[[KinetoTrace], Trace]:
    """Write a built trace and read it back, as every trace is."""
    return lambda trace: read(trace.write(tmp_path / "trace.json"))


@pytest.fixture
def analyzed(load: Callable[[KinetoTrace], Trace]) -> Callable[[KinetoTrace], Analysis]:
    return lambda trace: analyze(load(trace))


@pytest.fixture
def recorded() -> Callable[[str], Trace]:
    """Read one of the recorded traces by name."""
    return lambda name: read(DATA / "traces" / f"{name}.json.gz")
