"""Client momentum through Flower: the sealing mod applies it, and an app knows nothing of it."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.common.serde import recorddict_from_proto, recorddict_to_proto


def by(values):
    """All nodes move every value by the same, so that the aggregate is what each has sent."""

    def update(node, number, model):
        return {name: value + np.float32(values[number]) for name, value in model.items()}

    return update


def moved(federation, result):
    """How far the model has moved."""
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    (by,) = {round(float(x), 4) for x in np.ravel(arrays["bias"] - federation.model["bias"])}
    return by


def test_rounds_move_the_model_by_the_running_mean(flower):
    federation = flower(update=by({1: 8, 2: 4, 3: -3}), terms={"client_momentum": 0.5})
    assert moved(federation, federation.start(3)) == 8 + 6 + 1.5


def test_a_process_for_each_message_goes_on_from_what_flower_keeps(flower):
    """Flower starts one, and brings a node's context to it as bytes."""
    federation = flower(update=by({1: 8, 2: 4, 3: -3}), terms={"client_momentum": 0.5})
    contexts = federation.grid.contexts

    def bring(node, message):
        contexts[node].state = recorddict_from_proto(recorddict_to_proto(contexts[node].state))
        return message

    federation.grid.down = bring
    assert moved(federation, federation.start(3)) == 8 + 6 + 1.5


def test_without_it_by_the_updates_themselves(flower):
    federation = flower(update=by({1: 8, 2: 4, 3: -3}), terms={"client_momentum": 0.0})
    assert moved(federation, federation.start(3)) == 8 + 4 - 3


def test_a_round_whose_replies_are_lost_is_opened_again_and_counts_once(flower):
    federation = flower(update=by({1: 8, 2: 4, 3: 4}), terms={"client_momentum": 0.5})
    lost = []

    def lose(node, reply):
        """All sealed replies of Flower's second round, so that number 2 is opened again."""
        if federation.is_sealed(reply) and federation.trained[node] == 2:
            lost.append(node)
            return None
        return reply

    federation.grid.up = lose
    result = federation.start(3)
    assert sorted(lost) == list(range(7))
    assert [receipt.number for receipt in federation.receipts] == [1, 2]
    assert moved(federation, result) == 8 + 6


def test_statistics_of_batch_norm_are_sent_as_they_were_measured(flower):
    values = {1: {"bias": 8, "bn.running_var": -0.5}, 2: {"bias": 0, "bn.running_var": -0.25}}

    def update(node, number, model):
        return {name: each + np.float32(values[number][name]) for name, each in model.items()}

    federation = flower(update=update, terms={"client_momentum": 0.5})
    federation.model = {"bias": np.zeros(3, "<f4"), "bn.running_var": np.ones(3, "<f4")}
    arrays = {name: each.numpy() for name, each in federation.start(2).arrays.items()}
    np.testing.assert_allclose(arrays["bias"], 8 + 4, atol=1e-5)
    np.testing.assert_allclose(arrays["bn.running_var"], 1 - 0.5 - 0.25, atol=1e-5)


@pytest.mark.parametrize("upload", ["bfloat16", "float16", "int8"])
def test_formats_are_the_mod_s_business_and_residuals_outlive_a_message(flower, upload):
    """Over six rounds all of every update arrives but the last residual, in each format."""

    def update(node, number, model):
        return {
            name: value + np.linspace(0.1, 1, value.size, dtype="<f4").reshape(value.shape) / 7
            for name, value in model.items()
        }

    federation = flower(update=update, terms={"client_momentum": 0.0, "upload": upload})
    arrays = {name: each.numpy() for name, each in federation.start(6).arrays.items()}
    for name, first in federation.model.items():
        wanted = 6 * np.linspace(0.1, 1, first.size).reshape(first.shape) / 7
        assert abs(arrays[name] - first - wanted).max() < 0.003


def test_a_value_beyond_float16_keeps_the_node_out_and_its_size_at_the_node(flower, said):
    replies = []

    def update(node, number, model):
        return {name: each + np.float32(7e4 if node == 3 else 1) for name, each in model.items()}

    def note(node, reply):
        if node == 3 and reply.has_error():
            replies.append(reply.error.reason)
        return reply

    federation = flower(update=update, terms={"client_momentum": 0.0, "upload": "float16"})
    federation.grid.up = note
    federation.start(1)
    assert federation.receipts[0].participants == 6
    assert replies == ["the app failed; the node's log says why"]
    assert any("value of 7e+04, and float16 ends at 65504" in line for line in said)
