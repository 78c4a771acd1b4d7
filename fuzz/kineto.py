"""The target of the coverage-guided fuzzer: whatever the bytes, the compiled reader reads them in one way only.

`tools/fuzz.py` builds the reader so that it reports what it reaches, and starts this on it with libFuzzer's options.
Every input is read whole by one thread and in pieces by two, with the same result; of some, the rows are compared with
those of the reader in Python, its slow and obvious reference.
"""

import ctypes
import sys
import tempfile
import zlib
from pathlib import Path
from unittest import mock

import atheris
from atheris import core_with_libfuzzer
from tests.reading import assert_nothing_lost_in_silence, fed

from opscope.base.errors import BadInputError
from opscope.readers.native import library as native
from opscope.readers.reading import read

_HOOKS = ("8bit_counters_init", "pcs_init", "trace_cmp1", "trace_cmp2", "trace_cmp4", "trace_cmp8", "trace_switch")
_COMPARED_WITH_PYTHON = 16  # one in so many: it takes ten times as long


def report_coverage() -> None:
    """Connect the compiled reader with libFuzzer; see coverage.cpp."""
    fuzzer, library = ctypes.CDLL(core_with_libfuzzer.__file__), native.load_kineto()
    assert library is not None, f"{native.LIBRARY} cannot be loaded"
    hooks = (ctypes.cast(getattr(fuzzer, f"__sanitizer_cov_{name}"), ctypes.c_void_p) for name in _HOOKS)
    library.opscope_fuzz((ctypes.c_void_p * len(_HOOKS))(*hooks))


def read_in_several_ways(content: bytes) -> None:
    """Raise AssertionError where two ways of reading differ."""
    chance = zlib.crc32(content)  # the same for the same input, so that what was found is found again
    size, block = 1 + chance % 97, 16 + chance % 301
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    assert fed(pieces, 2, block) == fed([content], 1, 1 << 20)
    if chance % _COMPARED_WITH_PYTHON == 0:
        compare_with_python(content)


def compare_with_python(content: bytes) -> None:
    """Raise AssertionError where one reader lacks a row that the other reads, and does not say so."""
    path = Path(tempfile.gettempdir()) / f"opscope-fuzz-{zlib.crc32(content):08x}.json"
    path.write_bytes(content)
    try:
        with mock.patch.object(native, "load_kineto", return_value=None):
            python = read(path)
        assert_nothing_lost_in_silence(python, read(path))
    except BadInputError:
        pass
    finally:
        path.unlink()


if __name__ == "__main__":
    report_coverage()
    atheris.Setup(sys.argv, read_in_several_ways)
    atheris.Fuzz()
