"""One schema per table: column name -> polars type. Readers produce exactly these, analyses may rely on them.

``thread`` numbers the (process, thread) pairs of a file from 0; ``device`` and ``stream`` are the producer's own
numbers. Times are nanoseconds of the trace's clock, durations nanoseconds.
"""

from collections.abc import Mapping
from typing import TypeAlias

import polars as pl

Schema: TypeAlias = Mapping[str, pl.DataType | type[pl.DataType]]

_SLICE: Schema = {"thread": pl.Int32, "name": pl.Categorical, "start_ns": pl.Int64, "duration_ns": pl.Int64}

OPERATORS: Schema = {
    **_SLICE,
    "external_id": pl.Int64,
    "sequence_number": pl.Int64,
    "forward_thread": pl.Int64,
    # JSON text of the recorded lists; null where shapes were not recorded.
    "input_dims": pl.Categorical,
    "input_types": pl.Categorical,
    "input_strides": pl.Categorical,
    "concrete_inputs": pl.Categorical,  # the values of inputs that are no tensors
    "kernel_file": pl.Categorical,  # the Python file of a Triton kernel that torch.compile generated
}

LAUNCHES: Schema = {**_SLICE, "correlation": pl.Int64, "external_id": pl.Int64}

ACTIVITIES: Schema = {
    "kind": pl.Categorical,  # kernel, memcpy or memset
    "name": pl.Categorical,
    "device": pl.Int32,
    "stream": pl.Int64,
    "start_ns": pl.Int64,
    "duration_ns": pl.Int64,
    "correlation": pl.Int64,
    "external_id": pl.Int64,
    "graph_id": pl.Int64,
    "graph_node_id": pl.Int64,
    "bytes": pl.Int64,
    "grid": pl.Categorical,  # "x,y,z"
    "block": pl.Categorical,  # "x,y,z"
    "registers_per_thread": pl.Int32,
    "shared_memory_bytes": pl.Int64,
    "theoretical_occupancy_percent": pl.Float64,  # Kineto calls it "est. achieved occupancy %"; it is theoretical
    "collective": pl.Categorical,
}

ANNOTATIONS: Schema = dict(_SLICE)

FRAMES: Schema = dict(_SLICE)

ALLOCATIONS: Schema = {
    "thread": pl.Int32,
    "time_ns": pl.Int64,
    "device_type": pl.Int32,  # 0 is the host, 1 CUDA (c10::DeviceType)
    "device": pl.Int32,
    "bytes": pl.Int64,  # negative for a release
    "total_allocated_bytes": pl.Int64,
}

OVERHEADS: Schema = {"name": pl.Categorical, "start_ns": pl.Int64, "duration_ns": pl.Int64}
