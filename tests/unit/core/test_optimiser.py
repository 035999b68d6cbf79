"""Law 13: how an aggregate moves the model."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.core.optimiser import KINDS, Optimiser, ServerState, advance, start
from ostraka.errors import ConfigError

RNG = np.random.default_rng(0)
LONG = 2**16 + 3  # more than one block


def reference(kind, optimiser, model, aggregates):
    """The whole vector at once, in float64 but for the model."""
    m = v = np.zeros(model.shape)
    for a in (each.astype(np.float64) for each in aggregates):
        if kind == "fedavg":
            step = a
        elif kind == "sgd":
            m = optimiser.momentum * m + a
            step = m
        else:
            m = optimiser.beta1 * m + (1 - optimiser.beta1) * a
            v = optimiser.beta2 * v + (1 - optimiser.beta2) * a**2
            step = m / (np.sqrt(v) + optimiser.epsilon)
        model = (model + optimiser.learning_rate * step).astype(np.float32)
    return model


@pytest.mark.parametrize("d", [1, 7, LONG])
@pytest.mark.parametrize("kind", KINDS)
def test_law13_over_several_rounds(kind, d):
    optimiser = Optimiser(kind, learning_rate=0.3, momentum=0.8, beta1=0.7, beta2=0.95)
    model = RNG.normal(size=d).astype(np.float32)
    aggregates = [RNG.normal(size=d).astype(np.float32) for _ in range(4)]
    state = start(model, optimiser)
    for aggregate in aggregates:
        state = advance(state, aggregate, optimiser)
    np.testing.assert_array_equal(state.model, reference(kind, optimiser, model, aggregates))
    assert state.model.dtype == np.float32


@given(st.integers(0, 2**32))
def test_one_sum_in_float32_has_the_bits_of_one_in_float64(seed):
    """Over all of float32's range, where a step of 1 takes the short way."""
    bits = np.random.default_rng(seed).integers(0, 2**32, (2, 1000), np.uint32)
    model, aggregate = bits.view(np.float32)
    model[~np.isfinite(model)] = aggregate[~np.isfinite(aggregate)] = 0
    near = model * np.float32(1 + 2**-20)
    with np.errstate(over="ignore"):
        for step in (aggregate, -near, near):
            moved = advance(start(model, Optimiser()), step, Optimiser()).model
            expected = reference("fedavg", Optimiser(), model, [step])
            assert moved.tobytes() == expected.tobytes()


def test_plain_averaging_from_zero_gives_the_aggregate_itself():
    aggregate = RNG.normal(size=LONG).astype(np.float32)
    optimiser = Optimiser()
    state = advance(start(np.zeros(LONG, np.float32), optimiser), aggregate, optimiser)
    np.testing.assert_array_equal(state.model, aggregate)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_leaves_the_state_before_it_alone(kind):
    optimiser = Optimiser(kind)
    before = start(np.ones(5, np.float32), optimiser)
    advance(before, np.ones(5, np.float32), optimiser)
    assert before.model.tolist() == [1] * 5
    assert all(not moment.any() for moment in before.moments)


def test_the_moments_of_another_optimiser_are_refused():
    state = start(np.ones(5, np.float32), Optimiser("sgd"))
    for kind in ("fedavg", "fedadam"):
        with pytest.raises(ConfigError, match="does not go on from 1 moments"):
            advance(state, np.ones(5, np.float32), Optimiser(kind))


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown kind": ({"kind": "magic"}, "fedavg, sgd, fedadam"),
    "no step at all": ({"learning_rate": 0.0}, "learning_rate must be positive"),
    "an infinite step": ({"learning_rate": float("inf")}, "learning_rate must be positive"),
    "a step that is no number": ({"learning_rate": float("nan")}, "learning_rate must be positive"),
    "a momentum that never fades": ({"momentum": 1.0}, "momentum < 1"),
    "a momentum that grows": ({"momentum": 1.5}, "momentum < 1"),
    "a negative memory": ({"beta1": -0.1}, "beta1 < 1"),
    "a second memory that never fades": ({"beta2": 1.0}, "beta2 < 1"),
    "a division by zero": ({"epsilon": 0.0}, "epsilon must be positive"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_impossible_numbers_are_refused(what):
    fields, why = IMPOSSIBLE[what]
    with pytest.raises(ConfigError, match=why):
        Optimiser(**fields)


@given(
    kind=st.sampled_from(KINDS),
    values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=5),
)
def test_an_aggregate_of_zeros_moves_nothing_that_stood_still(kind, values):
    optimiser = Optimiser(kind)
    model = np.array(values, np.float32)
    after = advance(start(model, optimiser), np.zeros_like(model), optimiser)
    assert isinstance(after, ServerState)
    np.testing.assert_array_equal(after.model, model)
