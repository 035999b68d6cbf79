"""What a peer brings to the contest."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ostraka.arrays import AnyArray

Details: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Entrant:
    """run: inputs in, aggregate (d,) out; all that is timed, unless `details` times it better.

    from_weights: the aggregate is whole weights. details: figures of its own, after the run.
    """

    run: Callable[[], AnyArray]
    from_weights: bool = False
    details: Callable[[], Details] = field(default=dict)
