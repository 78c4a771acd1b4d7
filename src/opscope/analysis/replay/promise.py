"""When a replay may promise a saving."""

from typing import Final

# Of 75 recorded traces ten had more residual than this; their replay without residuals was up to 98 % off.
MOST_RESIDUAL: Final = 0.05
# Nine in ten of the same traces replay within 0.4 %: what is further off is not understood.
MOST_ERROR: Final = 0.02
# The estimated step without a profiler was within 8 % of the measured one in nine of ten programs.
MOST_MISSED: Final = 0.1
