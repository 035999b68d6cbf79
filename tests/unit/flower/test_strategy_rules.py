"""PrivateRobust: any rule through Flower gives what one round as a function gives."""

import re

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-env")

import ostraka
from ostraka.carried.in_process import UnsafeInProcessEnclave
from ostraka.core import rules
from ostraka.errors import ConfigError
from ostraka.flower import UNSAFE_SIMULATION, PrivateMultiKrum, PrivateRobust

N, F = 9, 2
USUAL = "arc+nnm+geometric-median"

# By kind: the arguments of the strategy, and of the same round as a function.
KINDS = {
    "the usual rule": ({}, {}),
    "weights alone": ({"rule": "multi-krum", "k": 5}, {"rule": "multi-krum", "k": 5}),
    "weights after clipping": (
        {"rule": "CAF", "pre": ["ARC"]},
        {"rule": "caf", "pre": ("arc",)},
    ),
    "columns, by Flower's name": (
        {"rule": "FedTrimmedAvg", "beta": 0.3},
        {"rule": "trimmed-mean", "beta": 0.3},
    ),
    "columns that disclose values": (
        {"rule": "FedMedian", "disclose_values": True},
        {"rule": "median", "disclose_values": True},
    ),
    "columns after mixing": (
        {"rule": "FedMedian", "pre": ["nnm"]},
        {"rule": "median", "pre": ("nnm",)},
    ),
    "a trusted root": (
        {"rule": "fltrust", "root": "node-0"},
        {"rule": "fltrust", "root": "client-0"},
    ),
}


def attacked(node, number, model):
    """The last F nodes send the opposite, three times as long."""
    rng = np.random.default_rng([3, node, number])
    sign = -3 if node >= N - F else 1
    return {
        name: (value + sign * rng.normal(0.1, 0.05, value.shape)).astype("<f4")
        for name, value in model.items()
    }


def simulated(**arguments):
    return PrivateRobust(
        enclave=UNSAFE_SIMULATION,
        num_malicious_nodes=F,
        masking="none",
        **({"client_momentum": 0.0} | arguments),
    )


@pytest.fixture
def federation(flower):
    return flower(n=N, f=F, update=attacked)


def flat(arrays):
    return np.concatenate([arrays[name].reshape(-1) for name in ("bias", "weight")])


@pytest.mark.parametrize(("given", "same"), KINDS.values(), ids=KINDS.keys())
def test_a_rule_moves_the_model_as_in_one_round_as_a_function(federation, given, same):
    federation.strategy = simulated(**given)
    result = federation.start(1)
    first = flat(federation.model)
    rows = [flat(attacked(node, 1, federation.model)) - first for node in range(N)]
    expected = ostraka.run_round(rows, f=F, masking="none", **same)
    (receipt,) = federation.receipts
    assert receipt.rule.replace("node-0", "client-0") == expected.receipt.rule
    moved = flat({name: array.numpy() for name, array in result.arrays.items()}) - first
    assert np.abs(expected.aggregate).max() > 0.05
    np.testing.assert_allclose(moved, expected.aggregate, atol=1e-6)


def test_the_usual_rule_and_momentum_are_founded_unless_given(federation):
    strategy = PrivateRobust(enclave=UNSAFE_SIMULATION, num_malicious_nodes=F)
    federation.strategy = strategy
    federation.start(1)
    enclave = strategy._enclave
    assert isinstance(enclave, UnsafeInProcessEnclave)
    terms = enclave._founded.federation.terms
    assert (str(terms.composition), terms.client_momentum) == (USUAL, 0.9)
    assert (strategy.min_train_nodes, strategy.min_available_nodes) == (6, 6)
    multi_krum = PrivateMultiKrum(enclave=UNSAFE_SIMULATION, num_malicious_nodes=F)
    assert (multi_krum.min_train_nodes, str(multi_krum.composition)) == (7, "multi-krum")


def test_multi_krum_is_what_it_was(federation):
    """As Flower's, round for round: nodes keep no momentum."""
    federation.strategy = PrivateMultiKrum(
        enclave=UNSAFE_SIMULATION, num_malicious_nodes=F, num_nodes_to_select=5, masking="none"
    )
    result = federation.start(2)
    model = flat(federation.model)
    for receipt in federation.receipts:
        named = {"weight": model[6:].reshape(6, 10), "bias": model[:6]}
        rows = [flat(attacked(node, receipt.number, named)) - model for node in range(N)]
        once = ostraka.run_round(rows, f=F, rule="multi-krum", k=5, masking="none")
        model = model + once.aggregate
        assert receipt.rule == "multi-krum(k=5)"
    after = flat({name: array.numpy() for name, array in result.arrays.items()})
    np.testing.assert_allclose(after, model, atol=1e-5)


MISTAKES = {
    "a rule that is not there": ({"rule": "FedMedia"}, "did you mean median?"),
    "one name where a list belongs": ({"pre": "arc"}, "pre is a list of names"),
    "a pre-aggregation that is not there": ({"pre": ["NNNM"]}, "did you mean nnm?"),
    "an option that is not there": ({"betta": 0.2}, "there is no option 'betta'"),
    "an option of another rule": ({"beta": 0.2}, "beta is no option of arc+nnm+geometric-median"),
    "an option that is no number": (
        {"rule": "multi-krum", "k": 2.5},
        "k is a whole number; got 2.5",
    ),
    "an option out of range": (
        {"rule": "FedTrimmedAvg", "beta": 0.5},
        "beta must be from 0 to below 0.5; got 0.5",
    ),
    "k that isolates a client": ({"rule": "multi-krum", "k": 3}, "k >= f + 2"),
    "no root client": ({"rule": "fltrust"}, "name that client as root"),
    "values of single clients": ({"rule": "FedMedian"}, "put nnm before it"),
}


@pytest.mark.parametrize(("given", "why"), MISTAKES.values(), ids=MISTAKES.keys())
def test_what_cannot_work_is_refused_before_a_run(given, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        simulated(**given)


def test_too_few_nodes_for_a_rule_open_no_round(federation, said):
    federation.strategy = simulated(rule="bulyan")
    federation.strategy.challenge_timeout = 0
    federation.start(1, timeout=1)
    assert federation.receipts == []
    assert "9 nodes are connected, and 12 are needed" in said


def test_a_root_that_is_no_node_opens_no_round(federation, said):
    federation.strategy = simulated(rule="fltrust", root="node-77")
    federation.start(1)
    assert federation.receipts == []
    assert any("root is 'node-77', and no client of that name is enrolled" in each for each in said)


def test_a_root_that_stays_away_is_noted(flower, said):
    def update(node, number, model):
        if node == 0:
            raise RuntimeError("the root is out of order")
        return attacked(node, number, model)

    federation = flower(n=N, f=F, update=update)
    federation.strategy = simulated(rule="fltrust", root="node-0")
    federation.start(1)
    (receipt,) = federation.receipts
    assert receipt.note == f"the root client took no part: {USUAL} decided"
    assert any(f"were kept ({receipt.note})" in each for each in said)


SIGNED = rules.parse("arc+nnm+geometric-median(iterations=16)")
DISAGREEING = {
    "another rule": {"rule": "multi-krum"},
    "another company": {"rule": "geometric-median", "pre": [], "iterations": 16},
    "other options": {"rule": "geometric-median", "iterations": 17},
    "no options": {"rule": "geometric-median"},
    "options alone": {"smoothing": 0.5},
}


@pytest.mark.parametrize("given", DISAGREEING.values(), ids=DISAGREEING.keys())
def test_a_rule_other_than_the_terms_is_refused_before_a_round(flower, given):
    federation = flower(terms={"composition": SIGNED})
    federation.strategy = PrivateRobust(enclave=federation.strategy._enclave, **given)
    with pytest.raises(ConfigError, match=r"terms have the rule .*iterations=16.*was given"):
        federation.start(1)
    assert federation.grid.log == []


AGREEING = {
    "nothing": {},
    "the same rule": {"rule": "geometric-median", "iterations": 16},
    "the same, by another name": {
        "rule": "GeometricMedian",
        "pre": ("ARC", "nnm"),
        "iterations": 16,
    },
}


@pytest.mark.parametrize("given", AGREEING.values(), ids=AGREEING.keys())
def test_the_rule_of_the_terms_is_accepted(flower, given):
    federation = flower(terms={"composition": SIGNED})
    federation.strategy = PrivateRobust(enclave=federation.strategy._enclave, **given)
    federation.start(1)
    assert [receipt.rule for receipt in federation.receipts] == [str(SIGNED)]


def test_multi_krum_is_refused_where_the_terms_have_another_rule(flower):
    federation = flower(terms={"composition": SIGNED})
    with pytest.raises(ConfigError, match="this strategy is for multi-krum: take PrivateRobust"):
        federation.start(1)
