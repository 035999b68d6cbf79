"""What each client computes, as a function of the settings, the round and the global model.

The task is a quadratic: each client pulls the model towards an optimum of its own, and these lie
around one that all share. An update is a step that way, measured with noise. Nothing is trained on
real data here. Clients are counted from 1, as in their names.
"""

import math

import numpy as np

from ostraka.arrays import Float32, Float64
from ostraka.demo.attacks import ATTACKS
from ostraka.demo.settings import Demo

_STEP = 0.5  # of the way to the optimum, in one round
_DIVERSITY = 0.1  # how far the clients' optima lie apart, for a way of length 1
_NOISE = 0.1  # of one update, likewise

# What a stream of numbers is for: each has one of its own.
_SHARED, _OWN, _JITTER, _ATTACK, _CAST = range(5)


def update(demo: Demo, client: int, number: int, model: Float32 | Float64) -> Float32:
    """What a client sends (d,) in this round, from this model (d,): its step, or its attack."""
    jitter = _NOISE * _spread(_stream(demo, _JITTER, client, number), demo.dim)
    step: Float64 = _STEP * (_own_optimum(demo, client) - model + jitter)
    attack = attackers(demo).get(client)
    if attack is not None:
        step = ATTACKS[attack](step, _stream(demo, _ATTACK, client, number))
    # A model that runs away leaves float32 in the end.
    with np.errstate(over="ignore"):
        return step.astype(np.float32)


def updates(demo: Demo, number: int, model: Float32 | Float64) -> Float32:
    """What all clients send (n, d)."""
    return np.stack([update(demo, client, number, model) for client in range(1, demo.clients + 1)])


def attackers(demo: Demo) -> dict[int, str]:
    """Who attacks, and how."""
    everybody = np.arange(1, demo.clients + 1)
    cast = _stream(demo, _CAST).choice(everybody, size=demo.byzantine, replace=False)
    return dict(zip(sorted(cast.tolist()), demo.attacks(), strict=True))


def honest(demo: Demo) -> list[int]:
    return [client for client in range(1, demo.clients + 1) if client not in attackers(demo)]


def first_model(demo: Demo) -> Float32:
    """The global model (d,) before the first round."""
    return np.zeros(demo.dim, np.float32)


def optimum(demo: Demo) -> Float64:
    """The one (d,) that all share, at a distance of 1 from the first model."""
    vector = _stream(demo, _SHARED).normal(size=demo.dim)
    direction: Float64 = vector / length(vector)
    return direction


def plain_average(updates: Float32) -> Float64:
    """The mean of all finite rows: even a careless server leaves out the rest."""
    finite = updates[np.isfinite(updates).all(axis=1)]
    if not len(finite):
        return np.full(updates.shape[1], np.nan)
    mean: Float64 = finite.mean(axis=0, dtype=np.float64)
    return mean


def length(vector: Float64) -> float:
    """Without BLAS, whose sums differ in the last bit from one number of threads to another."""
    return math.sqrt(np.square(vector).sum())


def _own_optimum(demo: Demo, client: int) -> Float64:
    return optimum(demo) + _DIVERSITY * _spread(_stream(demo, _OWN, client), demo.dim)


def _spread(stream: np.random.Generator, d: int) -> Float64:
    """Noise (d,) whose length is about 1."""
    return stream.normal(scale=d**-0.5, size=d)


def _stream(demo: Demo, *purpose: int) -> np.random.Generator:
    """Numbers that every process draws alike."""
    return np.random.default_rng([demo.seed, *purpose])
