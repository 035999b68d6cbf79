"""Rounds of the real strategy and the real mod, in one process."""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-env")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy.multikrum import select_multikrum

from ostraka.core import rules
from ostraka.flower import UNSAFE_SIMULATION, PrivateMultiKrum, sealing_mod
from ostraka.flower.records import RECORD

NAMES = ("weight", "bias")


def model_of(result):
    return {name: array.numpy() for name, array in result.arrays.items()}


def flat(model):
    return np.concatenate([model[name].reshape(-1).astype(np.float64) for name in NAMES])


def multi_krum(rows, f, k):
    """Rows kept and their mean in float64, from the paper: clip, score, keep k, average."""
    rows = rows.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    limit = np.exp2(np.ceil(np.log2(4 * np.median(norms))))
    rows = rows * np.minimum(1, limit / norms)[:, None]
    n = len(rows)
    squares = np.array([[np.square(a - b).sum() for b in rows] for a in rows])
    scores = [np.sort(np.delete(squares[i], i))[: n - f - 2].sum() for i in range(n)]
    kept = sorted(np.argsort(scores, kind="stable")[:k].tolist())
    return kept, rows[kept].mean(axis=0)


def test_three_rounds_move_the_model_by_the_mean_of_the_kept(flower):
    federation = flower()
    result = federation.start(3)
    assert [receipt.number for receipt in federation.receipts] == [1, 2, 3]
    np.testing.assert_allclose(model_of(result)["bias"], 3, atol=0.3)
    assert dict(result.train_metrics_clientapp[3]) == {"participants": 7, "kept": 6, "rejected": 0}


def test_selections_and_models_are_those_of_multi_krum_in_the_clear(flower):
    """Equal weights: the example counts of 10^12 that these apps claim weigh nothing."""
    updates = {}

    def recorded(node, number, model):
        rng = np.random.default_rng([7, node, number])
        spread = 0.02 + 0.01 * node  # so that no two scores are within rounding of each other
        moves = {name: rng.normal(0.1, spread, value.shape) for name, value in model.items()}
        if node >= 8:
            moves = {name: -3 * move for name, move in moves.items()}
        after = {name: (value + moves[name]).astype("<f4") for name, value in model.items()}
        updates[node, number] = np.concatenate(
            [(after[name].astype(np.float64) - model[name]).reshape(-1) for name in NAMES]
        )
        return after

    five = rules.parse("multi-krum(k=5)")
    federation = flower(n=10, f=2, update=recorded, terms={"composition": five})
    result = federation.start(3)
    expected = flat(federation.model)
    for receipt in federation.receipts:
        rows = np.stack([updates[node, receipt.number] for node in range(10)])
        kept, mean = multi_krum(rows, 2, 5)
        assert {f"node-{node}" for node in kept} == set(receipt.selected)
        expected = expected + mean
    np.testing.assert_allclose(flat(model_of(result)), expected, atol=1e-5, rtol=0)


def test_small_updates_fool_flowers_own_multi_krum_and_not_this_one(flower):
    """Updates of 3e-4 of the weights, a plain sign flip: float32 distances of weights cancel."""
    n, f, d = 32, 6, 20_000
    rng = np.random.default_rng(1)
    weights = rng.normal(size=d).astype("<f4")
    scale = 3e-4 * np.linalg.norm(weights) / np.sqrt(d)
    common = rng.normal(size=d)
    updates = (scale / np.sqrt(2)) * (common + rng.normal(size=(n, d)))
    updates[n - f :] *= -1
    trained = (weights + updates).astype("<f4")

    replies = [RecordDict({"arrays": ArrayRecord([row])}) for row in trained]
    chosen = select_multikrum(replies, num_malicious_nodes=f, num_nodes_to_select=n - f)
    fooled = sum(reply is attacker for reply in chosen for attacker in replies[n - f :])

    def send(node, number, model):
        return {"0": trained[node]}

    federation = flower(n=n, f=f, update=send)
    federation.model = {"0": weights}
    federation.start(1)
    (receipt,) = federation.receipts
    attackers = {f"node-{node}" for node in range(n - f, n)}
    assert fooled > 0
    assert not attackers & set(receipt.selected)


def test_nothing_but_a_sealed_update_leaves_a_node(flower):
    federation = flower()
    federation.start(2)
    trainings = [reply for _, message, reply in federation.grid.log if "arrays" in message.content]
    assert len(trainings) == 14
    for reply in trainings:
        assert set(reply.content) == {RECORD}
        assert federation.is_sealed(reply)
        ((name, array),) = reply.content[RECORD].items()
        assert (name, array.stype) == (RECORD, RECORD)
        with pytest.raises(TypeError, match=RECORD):  # so that no other strategy can average it
            array.numpy()


def test_only_the_first_round_has_to_ask(flower):
    """A sealed reply brings the next challenge along: each message may cost a process."""
    federation = flower()
    federation.start(3)
    asked = [node for node, message, _ in federation.grid.log if "arrays" not in message.content]
    polled = [node for node, message, _ in federation.grid.log if federation.polls(message)]
    assert sorted(asked) == sorted([*range(7), *polled])
    assert sorted(polled) == sorted([*range(7)] * 3)


def test_the_app_sees_an_ordinary_message(flower):
    seen = []
    federation = flower()

    def looking(message: Message, context: Context, call_next):
        seen.append(message)
        return call_next(message, context)

    federation.add(0, mods=[sealing_mod(UNSAFE_SIMULATION), looking])
    federation.start(1)
    (message,) = seen  # and not the challenge
    assert set(message.content) == {"arrays", "config"}
    assert message.content.config_records["config"]["server-round"] == 1
    np.testing.assert_array_equal(
        message.content.array_records["arrays"]["weight"].numpy(), federation.model["weight"]
    )


def test_clipping_and_local_privacy_act_on_the_update_before_it_is_sealed(flower):
    def mods(node):
        dp = LocalDpMod(clipping_norm=0.5, sensitivity=0.0, epsilon=1.0, delta=1e-5)
        return [sealing_mod(UNSAFE_SIMULATION), dp if node % 2 else fixedclipping_mod]

    federation = flower(mods=mods)
    result = federation.start(1, train_config=ConfigRecord({"clipping_norm": 0.5}))
    (receipt,) = federation.receipts
    assert receipt.participants == 7
    moved = flat(model_of(result)) - flat(federation.model)
    assert 0.4 < np.linalg.norm(moved) < 0.5 + 1e-6  # and not about 8, as it would be unclipped


def test_integer_arrays_stay_at_their_node(flower):
    counts: dict[int, list[int]] = {}

    def counting(node, number, model):
        after = federation.honest(node, number, {name: model[name] for name in NAMES})
        counts.setdefault(node, []).append(int(model["batches"]))
        return after | {"batches": model["batches"] + node + 1}

    federation = flower(update=counting)
    federation.model["batches"] = np.zeros((), np.int64)
    result = federation.start(3)
    assert counts == {node: [0, node + 1, 2 * node + 2] for node in range(7)}
    assert int(result.arrays["batches"].numpy()) == 0
    assert len(federation.receipts) == 3


def test_newcomers_are_enrolled_in_a_new_revision(flower):
    federation = flower(n=6, newcomers=True)
    federation.start(1)
    federation.add(6)
    federation.start(3)
    revisions = [(receipt.revision, receipt.participants) for receipt in federation.receipts]
    assert revisions == [(1, 6), (2, 7), (2, 7)]


def test_a_second_start_goes_on_where_the_enclave_is(flower, said):
    federation = flower()
    federation.start(2)
    evaluated = []

    def evaluate(number, arrays):
        evaluated.append(number)

    result = federation.start(3, evaluate_fn=evaluate)
    assert [receipt.number for receipt in federation.receipts] == [1, 2, 3]
    assert evaluated == [2, 3]
    assert list(result.train_metrics_clientapp) == [3]
    assert "going on after round 2: 1 rounds are left" in said
    again = federation.start(3)
    np.testing.assert_array_equal(model_of(again)["bias"], model_of(result)["bias"])


def test_a_fraction_of_the_nodes_is_enough(flower):
    federation = flower(n=10, f=1, fraction_train=0.6, newcomers=True)
    federation.start(3)
    assert [receipt.participants for receipt in federation.receipts] == [6, 6, 6]


@pytest.mark.parametrize(
    ("key", "metrics"), [(None, "equal"), ("trust", "as claimed under 'trust'")]
)
def test_the_log_tells_of_the_weights_that_are_used(key, metrics, flower):
    lines: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    handler = Listening()
    logger = logging.getLogger("flwr")  # and what is below it
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        flower(weighted_by_key=key).start(0)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert any("Starting PrivateMultiKrum" in line for line in lines)
    assert any(line.endswith("Rule: multi-krum") for line in lines)
    assert any(line.endswith("Updates: by the rule") for line in lines)
    assert any(line.endswith(f"Disclosed metrics: {metrics}") for line in lines)
    assert not any("num-examples" in line for line in lines)


def test_the_two_lines_of_the_quick_start(flower):
    federation = flower()
    federation.strategy = PrivateMultiKrum(enclave=UNSAFE_SIMULATION, num_malicious_nodes=1)
    federation.start(2)
    assert [receipt.number for receipt in federation.receipts] == [1, 2]
    assert not any(receipt.disclosed for receipt in federation.receipts)
    assert all("simulated" in receipt.cautions[0] for receipt in federation.receipts)
