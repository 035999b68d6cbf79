"""Scenes: honest updates around a common direction, and an attacker that sees some of them."""

from collections.abc import Callable

import numpy as np
import pytest

from ostraka.arrays import Float32, Float64
from ostraka.core import rules
from ostraka_lab.attacks import Scene
from ostraka_lab.defence import Defence


def honest_updates(m: int, d: int, *, seed: int = 0, noise: float = 2.0) -> Float32:
    """m updates (m, d) of a common part of length 1, and parts of their own of length `noise`."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=d)
    own = rng.normal(scale=noise * d**-0.5, size=(m, d))
    return (common / np.linalg.norm(common) + own).astype(np.float32)


def build(
    known: Float32,
    *,
    own: Float32 | None = None,
    scale: float = 1.0,
    byzantine: int = 2,
    clients: int | None = None,
    seed: int = 1,
    rule: str = "arc+nnm+geometric-median",
    number: int = 1,
    root: int | None = None,
    last: Float64 | None = None,
    model: Float32 | None = None,
    layers: tuple[int, ...] = (),
    memory: object = None,
    works: Callable[[Float32], float] = lambda model: 1.0,
) -> Scene:
    """By default the attacker knows all honest updates, and its own would have been the first.

    The model is then ones, and one tensor: no coordinate is more than another.
    """
    d = (known[0] if own is None else own).size
    return Scene(
        own=known[0] if own is None else own,
        known=known,
        round=number,
        clients=len(known) + byzantine if clients is None else clients,
        byzantine=byzantine,
        scale=scale,
        rng=np.random.default_rng(seed),
        defence=Defence(rules.parse(rule), byzantine, root),
        model=np.ones(d, np.float32) if model is None else model,
        layers=layers or (d,),
        root=root,
        last=last,
        memory=memory,
        works=works,
    )


@pytest.fixture(scope="session")
def updates():
    return honest_updates


@pytest.fixture(scope="session")
def scene():
    return build
