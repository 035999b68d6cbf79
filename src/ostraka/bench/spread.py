"""What repeated runs say: a median, and how far to trust it."""

import math
import statistics
from collections.abc import Sequence

# The mean range of n normal samples, in standard deviations.
_MEAN_RANGE = {2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326, 6: 2.534, 7: 2.704, 8: 2.847, 9: 2.970}
# The standard error of a median is so much larger than that of a mean.
_MEDIAN = 1.253


def spread(runs: Sequence[float]) -> float:
    """(max - min) / median: 0.1 is ten per cent between the best and the worst run."""
    middle = statistics.median(runs)
    return (max(runs) - min(runs)) / middle if middle else 0.0


def noise(relative_range: float, runs: int) -> float:
    """The relative standard error of a median of so many runs that lie so far apart."""
    if runs < 2:
        return math.inf
    deviation = relative_range / _MEAN_RANGE[min(runs, max(_MEAN_RANGE))]
    return _MEDIAN * deviation / math.sqrt(runs)
