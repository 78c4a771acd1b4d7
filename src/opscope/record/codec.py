"""Records as JSON: written by field names, read in every version that opscope ever wrote.

Version 2 of a capture and of a sweep has named settings and axes, machine and framework apart, and all
file names in the manifest. Version 1 had one bag of settings, one environment, and names that followed a pattern.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from opscope.base.errors import BadInputError
from opscope.record.settings import SETTINGS

T = TypeVar("T")
_Json = dict[str, Any]  # a record of an older version on its way to today's types


# What a file that is no record, or a damaged one, makes decoding raise.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, AttributeError)


def encode(value: object) -> bytes:
    """Encode a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def decode(path: Path, kind: type[T]) -> T:
    """Read a record of a given kind.

    Raises:
        BadInputError: the file is missing, damaged, or something else.
    """
    try:
        return decode_bytes(path.read_bytes(), kind)
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror or error}") from error
    except UNREADABLE as error:
        raise BadInputError(f"{path} is not what opscope wrote there: {error}") from error


def decode_bytes(content: bytes, kind: type[T]) -> T:
    """Decode a record of any version.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, AttributeError: it is none.
    """
    upgrade = _UPGRADES.get(msgspec.json.decode(content, type=Versioned).schema)
    if upgrade is None:
        return msgspec.json.decode(content, type=kind)
    return msgspec.convert(upgrade(msgspec.json.decode(content)), type=kind)


class Versioned(msgspec.Struct):
    """What every document says of itself; those that do not say their version are of the first."""

    schema: str = ""
    version: int = 1


# ---------------------------------------------------------------- version 1


def _capture_1(old: _Json) -> _Json:
    environment = old.pop("environment")
    traces, replaced = old.pop("traces"), old.pop("replaced_bytes", ())
    return {
        **old,
        "schema": "opscope.capture/2",
        "configuration": named_settings_1(old["configuration"]),
        **environment_1(environment),
        "opscope": environment["opscope"],
        "git_revision": environment["git_revision"],
        "traces": [
            {"file": name, "replaced_bytes": replaced[cycle] if cycle < len(replaced) else 0}
            for cycle, name in enumerate(traces)
        ],
    }


def named_settings_1(old: Mapping[str, Any]) -> _Json:
    """Turn a configuration of version 1 into named settings and axes."""
    values = {name: value for name, value in old.items() if name != "target" and value not in (None, False)}
    sizes = {name for name, setting in SETTINGS.items() if setting.is_size}
    return {
        "target": old["target"],
        "settings": {name: value for name, value in values.items() if name not in sizes},
        "axes": {name: value for name, value in values.items() if name in sizes},
    }


def environment_1(old: Mapping[str, Any]) -> _Json:
    """Part an environment of version 1 into machine and framework."""
    machine = ("platform", "cpu", "cpu_count", "gpus", "driver")
    framework = (
        *("python", "torch", "torch_git", "torch_threads", "device", "cuda", "cudnn", "triton", "transformers"),
        *("float32_matmul_precision", "cudnn_allow_tf32"),
    )
    return {
        "machine": {name: old[name] for name in machine},
        "framework": {
            **{name: old[name] for name in framework},
            "torch_libraries": old.get("torch_libraries", {}),
        },
    }


def _sweep_1(old: _Json) -> _Json:
    environment = old.pop("environment")
    parts = {} if environment is None else environment_1(environment)
    return {
        **old,
        "schema": "opscope.sweep/2",
        **parts,
        "entries": [_entry_1(entry) for entry in old["entries"]],
    }


def _entry_1(old: _Json) -> _Json:
    """Version 1 named the files of the first cycle of a configuration that was measured, and no others."""
    configuration = named_settings_1(old["configuration"])
    axes = configuration["axes"]
    name = "_".join(f"{SETTINGS[axis].label}{axes[axis]}" for axis in SETTINGS if axis in axes) or "default"
    record = old.pop("record")
    cycle = {
        "trace": old.pop("trace") or f"workload_trace_{name}.json",
        "statistics": old.pop("statistics") or f"profiling_stats_{name}.json",
        "report": old.pop("report") or f"kernel_analysis_report_{name}.md",
    }
    return {
        **old,
        "configuration": configuration,
        "measured": record is not None,
        "files": {
            "record": record or f"raw/capture_{name}.json",
            "log": f"raw/log_{name}.txt",
            "cycles": [cycle],
        },
    }


_UPGRADES: Final[Mapping[str, Callable[[_Json], _Json]]] = {
    "opscope.capture/1": _capture_1,
    "opscope.sweep/1": _sweep_1,
}
