"""Makes memory snapshots as PyTorch writes them, from what a program does."""

import pickle
from pathlib import Path
from typing import Any

MIB = 1 << 20
SEGMENTS_AT = 1 << 40
TORCH = "/venv/lib/python3.12/site-packages/torch"


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


IN_MODULE = [
    frame(f"{TORCH}/nn/modules/module.py", 1790, "_call_impl"),
    frame(f"{TORCH}/nn/modules/module.py", 1779, "_wrapped_call_impl"),
]


class MadeSnapshot:
    """A history of one device. Blocks lie where the test says; segments too."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self.segments: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {"expandable_segments": False, "max_split_size": -1}
        self.now = 1_700_000_000_000_000

    def event(
        self, action: str, address: int, size: int, frames: list[dict[str, Any]] | None = None, **more: Any
    ) -> None:
        self.now += 10
        where = "device_free" if action == "oom" else "addr"
        entry = {
            "action": action,
            where: address,
            "size": size,
            "stream": 0,
            "time_us": self.now,
            "frames": frames or [],
        }
        self.trace.append({**entry, **more})

    def alloc(self, address: int, size: int, frames: list[dict[str, Any]] | None = None) -> None:
        self.event("alloc", address, size, frames)

    def free(self, address: int, size: int, frames: list[dict[str, Any]] | None = None) -> None:
        self.event("free_requested", address, size, frames)
        self.event("free_completed", address, size, frames)

    def end_of_step(self, name: str = "Optimizer.step#SGD.step") -> None:
        self.now += 10
        self.annotations.append({"stage": "END", "name": name, "device": 0, "time_us": self.now})

    def segment(self, address: int, size: int, blocks: list[tuple[int, int, str]], *, large: bool = True) -> None:
        """Add a segment at the end: blocks are size, requested size and state, one after the other."""
        at, made = address, []
        for whole, requested, state in blocks:
            made.append({"address": at, "size": whole, "requested_size": requested, "state": state, "frames": []})
            at += whole
        held = sum(whole for whole, _, state in blocks if state != "inactive")
        self.segments.append(
            {
                "device": 0, "address": address, "total_size": size, "allocated_size": held, "active_size": held,
                "requested_size": held, "stream": 0, "segment_type": "large" if large else "small",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": made,
            }
        )  # fmt: skip

    def content(self) -> dict[str, Any]:
        return {
            "segments": self.segments,
            "device_traces": [self.trace],
            "allocator_settings": self.settings,
            "external_annotations": self.annotations,
        }

    def write(self, path: Path, protocol: int = 4) -> Path:
        path.write_bytes(pickle.dumps(self.content(), protocol=protocol))
        return path
