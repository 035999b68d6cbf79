"""How the aggregate of a round moves the global model: law 13.

(13) fedavg:  w' = w + lr a
     sgd:     v' = momentum v + a,  w' = w + lr v'
     fedadam: m' = b1 m + (1 - b1) a,  v' = b2 v + (1 - b2) a²,  w' = w + lr m' / (√v' + epsilon)

a is the aggregate: the mean of the selected clients' differences from w, so it already points
downhill. FedAdam is that of Reddi et al. 2021 (adaptive federated optimization), without bias
correction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ostraka.arrays import Float32, Float64, freeze, is_frozen
from ostraka.errors import ConfigError

KINDS = ("fedavg", "sgd", "fedadam")
_BLOCK = 2**16
MOMENTS = {"fedavg": 0, "sgd": 1, "fedadam": 2}  # that a kind keeps from round to round


@dataclass(frozen=True)
class Optimiser:
    """The server's step. A kind ignores the fields that it does not use.

    kind: fedavg, sgd (with momentum) or fedadam. learning_rate: how far the model moves along what
    the kind makes of the aggregate. momentum: what sgd keeps of its last step. beta1, beta2: what
    fedadam keeps of its mean and of its mean square. epsilon: what fedadam adds to a root, so that
    nothing is divided by zero.
    """

    kind: str = "fedavg"
    learning_rate: float = 1.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"the optimiser is one of {', '.join(KINDS)}; got {self.kind!r}")
        if not 0 < self.learning_rate < float("inf"):
            raise ConfigError(f"learning_rate must be positive; got {self.learning_rate}")
        for name in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"0 <= {name} < 1; got {getattr(self, name)}")
        if not 0 < self.epsilon < float("inf"):
            raise ConfigError(f"epsilon must be positive; got {self.epsilon}")


FEDAVG = Optimiser()


@dataclass(frozen=True)
class ServerState:
    """The global model (d,) and the optimiser's moments, each (d,).

    last: the last aggregate (d,), zeros before the first; None if the rule does not start from it.
    """

    model: Float32
    moments: tuple[Float64, ...] = field(default=(), repr=False)
    last: Float32 | None = field(default=None, repr=False)


def start(model: Float32, optimiser: Optimiser) -> ServerState:
    """Returns the state before the first round, with moments of zero."""
    return ServerState(model, tuple(np.zeros(model.shape) for _ in range(MOMENTS[optimiser.kind])))


def keeping_last(state: ServerState, keep: bool) -> ServerState:
    """Returns the state for a rule that starts from the last aggregate, or for one that does not.

    Where none was kept, it is zeros. So all outcomes of a round, null steps too, have states of the
    same size.
    """
    if keep == (state.last is not None):
        return state
    return replace(state, last=np.zeros_like(state.model) if keep else None)


def joined(parts: Sequence[ServerState]) -> ServerState:
    """Returns the state whose consecutive parts these are, with a frozen model."""
    model = np.concatenate([part.model for part in parts])
    freeze(model)
    moments = zip(*(part.moments for part in parts), strict=True)
    lasts = [part.last for part in parts if part.last is not None]
    return ServerState(
        model,
        tuple(np.concatenate(each) for each in moments),
        np.concatenate(lasts) if lasts else None,
    )


def part_of(state: ServerState, part: slice) -> ServerState:
    """Returns the state of some values, with a frozen model of its own."""
    model = state.model[part].copy()
    freeze(model)
    return ServerState(
        model,
        tuple(moment[part].copy() for moment in state.moments),
        None if state.last is None else state.last[part].copy(),
    )


def frozen(state: ServerState) -> ServerState:
    """Returns the state with a model that nobody writes to: its own, or a copy of it."""
    if is_frozen(state.model):
        return state
    model = state.model.copy()
    freeze(model)
    return replace(state, model=model)


def advance(
    state: ServerState,
    aggregate: Float32,
    optimiser: Optimiser,
    *,
    model: Float32 | None = None,
) -> ServerState:
    """Returns the state after a round with this aggregate (d,), by law 13. Its model is frozen.

    model: memory for it (d,), which nobody else writes to.
    """
    if len(state.moments) != MOMENTS[optimiser.kind]:
        raise ConfigError(f"{optimiser.kind} does not go on from {len(state.moments)} moments")
    after = ServerState(
        np.empty_like(state.model) if model is None else model,
        tuple(map(np.empty_like, state.moments)),
        None if state.last is None else aggregate.copy(),
    )
    if optimiser.kind == "fedavg" and optimiser.learning_rate == 1:
        # One sum of two float32, rounded once: by way of float64 it has the same bits.
        np.add(state.model, aggregate, out=after.model)
    else:
        _advance_by_blocks(state, aggregate, optimiser, after)
    freeze(after.model)
    return after


def _advance_by_blocks(
    state: ServerState, aggregate: Float32, optimiser: Optimiser, after: ServerState
) -> None:
    """By blocks, so that the memory for float64 does not grow with d, and is touched once."""
    space = np.empty(min(_BLOCK, len(aggregate)))
    for start in range(0, len(aggregate), _BLOCK):
        part = slice(start, start + _BLOCK)
        before = [moment[part] for moment in state.moments]
        wide = space[: len(aggregate[part])]
        np.copyto(wide, aggregate[part])
        step, moments = _step(wide, before, optimiser)
        np.multiply(step, optimiser.learning_rate, out=wide)
        np.add(state.model[part], wide, out=wide)
        after.model[part] = wide
        for out, moment in zip(after.moments, moments, strict=True):
            out[part] = moment


def _step(
    a: Float64, moments: list[Float64], optimiser: Optimiser
) -> tuple[Float64, tuple[Float64, ...]]:
    """Returns the step, before the learning rate, and the next moments."""
    if optimiser.kind == "fedavg":
        return a, ()
    if optimiser.kind == "sgd":
        v = optimiser.momentum * moments[0] + a
        return v, (v,)
    m = optimiser.beta1 * moments[0] + (1 - optimiser.beta1) * a
    v = optimiser.beta2 * moments[1] + (1 - optimiser.beta2) * a * a
    return m / (np.sqrt(v) + optimiser.epsilon), (m, v)
