"""A configuration -> the workload to measure."""

import torch
from msgspec.structs import replace

from opscope.record.configuration import Configuration
from opscope.workloads.catalog import check, is_built_in
from opscope.workloads.custom import build_custom
from opscope.workloads.models import BUILDERS
from opscope.workloads.stepping import Workload


def build_workload(configuration: Configuration, device: torch.device) -> Workload:
    """Build the workload of a configuration on a device.

    Raises:
        UsageError: the target or one of its options is wrong.
        EnvironmentLacksError: a library or weights are missing.
    """
    check(configuration)
    if is_built_in(configuration.target):
        settings = {"dtype": "float32", **configuration.settings}
        return BUILDERS[configuration.target](replace(configuration, settings=settings), device)
    return build_custom(configuration, device)
