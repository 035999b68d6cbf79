"""Nodes that fail in every way: each is left out with a reason, and the run goes on."""

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-env")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from ostraka.core import rules
from ostraka.errors import ConfigError, LocalProtocolError
from ostraka.flower import UNSAFE_SIMULATION, sealing_mod


def foreign_keys(node, number, model):
    return {**model, "head.weight": np.ones(3, "<f4")}


def missing_keys(node, number, model):
    return {"bias": model["bias"]}


def foreign_shape(node, number, model):
    return {**model, "weight": model["weight"].T.copy()}


def broadcast_shape(node, number, model):
    return {**model, "bias": np.ones(1, "<f4")}


def foreign_dtype(node, number, model):
    return {**model, "bias": model["bias"].astype(np.int32)}


def complex_dtype(node, number, model):
    return {**model, "bias": model["bias"].astype(np.complex64)}


def text_dtype(node, number, model):
    return {**model, "bias": np.array(["a"] * 6)}


def a_nan(node, number, model):
    return {**model, "bias": np.full(6, np.nan, "<f4")}


def an_infinity(node, number, model):
    return {**model, "bias": np.full(6, 1e300)}


def raises(node, number, model):
    raise ValueError("row 17: patient 4711")


UNFIT = {
    "has foreign keys": (foreign_keys, "'head.weight'"),
    "lacks keys": (missing_keys, "lacks tensor 'weight'"),
    "has a foreign shape": (foreign_shape, "(6, 10); got (10, 6)"),
    "has a shape that would broadcast": (broadcast_shape, "(6,); got (1,)"),
    "has integers for floats": (foreign_dtype, "holds int32"),
    "has complex numbers": (complex_dtype, "holds complex64"),
    "has text": (text_dtype, "holds <U1"),
    "has a NaN": (a_nan, "holds a NaN"),
    "has an infinity": (an_infinity, "an infinity"),
    "raises": (raises, "the app failed"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_node_whose_reply(what, flower, said):
    unfit, reason = UNFIT[what]
    federation = flower()
    federation.add(3, unfit)
    result = federation.start(2)
    assert [receipt.participants for receipt in federation.receipts] == [6, 6]
    assert any(line.startswith("the app") and reason in line for line in said), said
    replies = [reply for node, _, reply in federation.grid.log if node == 3 and reply.has_error()]
    # The same words each time: shapes, types and overflows tell about the data.
    assert {reply.error.reason for reply in replies} == {"the app failed; the node's log says why"}
    np.testing.assert_allclose(result.arrays["bias"].numpy(), 2, atol=0.3)


def test_the_text_of_an_apps_exception_stays_at_the_node(flower, said):
    federation = flower()
    federation.add(3, raises)
    federation.start(1)
    replies = [reply for node, _, reply in federation.grid.log if node == 3 and reply.has_error()]
    assert len(replies) == 1
    assert "4711" not in str(replies[0].error)


def several_records(message, context, call_next):
    reply = call_next(message, context)
    reply.content["more"] = ArrayRecord([np.zeros(3)])
    return reply


def no_arrays(message, context, call_next):
    return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)


@pytest.mark.parametrize("mod", [several_records, no_arrays])
def test_a_reply_without_one_record_of_arrays_is_refused(mod, flower, said):
    federation = flower()
    federation.add(3, mods=[sealing_mod(UNSAFE_SIMULATION), mod])
    federation.start(1)
    assert federation.receipts[0].participants == 6
    assert any("one record of arrays" in line for line in said)


def sealed_nan(node):
    """A Byzantine node: its own mod seals what ours would have refused."""
    from ostraka.flower import records

    def mod(message, context, call_next):
        kept = records.difference
        records.difference = lambda *_: (np.full(66, np.nan, "<f4"), {})
        try:
            return sealing_mod(UNSAFE_SIMULATION)(message, context, call_next)
        finally:
            records.difference = kept

    return mod


def test_a_byzantine_nodes_sealed_nan_is_rejected_by_the_enclave(flower, said):
    federation = flower()
    federation.add(3, mods=[sealed_nan(3)])
    federation.start(2)
    assert [receipt.participants for receipt in federation.receipts] == [6, 6]
    assert [each.client for each in federation.receipts[0].rejected] == ["node-3"]
    assert any(line.startswith("client node-3 was rejected by the enclave") for line in said)


def test_a_node_that_dies_in_the_middle_of_a_round_is_not_waited_for(flower, said):
    federation = flower()
    federation.grid.up = lambda node, reply: (
        None if node == 3 and federation.is_sealed(reply) else reply
    )
    federation.start(2)
    assert [receipt.participants for receipt in federation.receipts] == [6, 6]
    assert "node 3 has not answered in time: left out" in said


def test_a_node_that_never_comes_back_is_not_waited_for(flower, said):
    federation = flower()
    federation.start(1)
    federation.grid.down = lambda node, message: None if node == 3 else message
    federation.start(2)
    del federation.grid.apps[4]
    federation.start(3)
    assert [receipt.participants for receipt in federation.receipts] == [7, 6, 5]


def test_a_node_that_cannot_be_reached_is_not_waited_for(flower, said):
    federation = flower()
    push = federation.grid.push_messages
    federation.grid.push_messages = lambda messages: [
        name for name, each in zip(push(messages), messages, strict=True) if node_of(each) != 3
    ]
    federation.start(1, timeout=3600)
    assert federation.receipts[0].participants == 6
    assert "node 3 cannot be reached: left out" in said


def node_of(message):
    return message.metadata.dst_node_id


def test_too_few_nodes_end_a_round_and_not_the_run(flower, said):
    federation = flower()
    federation.start(1)
    federation.grid.down = lambda node, message: message if node < 4 else None
    result = federation.start(2)
    assert len(federation.receipts) == 1
    assert "4 nodes take part, and 5 are needed: no round" in said
    assert federation.trained[0] == 1  # for nothing is trained in vain
    federation.grid.down = lambda node, message: message
    result = federation.start(3)
    assert [receipt.number for receipt in federation.receipts] == [1, 2, 3]
    np.testing.assert_allclose(result.arrays["bias"].numpy(), 3, atol=0.3)


def test_stragglers_get_their_grace_and_no_more(flower, said):
    federation = flower(straggler_grace=0.05)
    federation.grid.up = lambda node, reply: (
        None if node == 3 and federation.is_sealed(reply) else reply
    )
    federation.start(1, timeout=3600)  # It would take an hour.
    assert federation.receipts[0].participants == 6


def test_stragglers_of_an_evaluation_get_the_grace_and_no_more(flower, said):
    mods = lambda node: [sealing_mod(UNSAFE_SIMULATION, disclose_metrics=True)]  # noqa: E731
    federation = flower(straggler_grace=0.05, fraction_evaluate=1.0, mods=mods)
    federation.grid.up = lambda node, reply: (
        None if node == 3 and reply.metadata.message_type == "evaluate" else reply
    )
    result = federation.start(1, timeout=3600)  # It would take an hour.
    assert said.count("node 3 has not answered in time: left out") == 1
    assert 1 in result.evaluate_metrics_clientapp


def test_a_reply_that_is_far_too_large_is_left_out(flower, said):
    federation = flower()
    limit = 8 * 66 + 2**20

    def swell(node, reply):
        if node == 3 and federation.is_sealed(reply):
            reply.content["more"] = ArrayRecord({"x": Array(np.zeros(limit, np.uint8))})
        return reply

    federation.grid.up = swell
    federation.start(1)
    assert federation.receipts[0].participants == 6
    (why,) = [each for each in said if each.startswith("node 3 is left out: its reply has ")]
    assert why.endswith(f" bytes; at most {limit} are taken")


DISCLOSED = {True: "7 updates, 1 left out (node-6), 6 were kept", False: "7 updates, 1 left out, 6"}


@pytest.mark.parametrize("disclosed", [True, False])
def test_the_log_says_how_many_were_left_out_and_who_where_that_is_disclosed(
    disclosed, flower, said
):
    def update(node, number, model):
        sign = -9 if node == 6 else 1
        return {name: value + np.float32(0.1 * sign) for name, value in model.items()}

    federation = flower(update=update, terms={"disclose_selection": disclosed})
    federation.start(1)
    assert any(DISCLOSED[disclosed] in each for each in said)
    assert any("node-6" in each for each in said) == disclosed


def test_a_node_that_is_slow_to_answer_the_greeting_gets_the_grace_and_no_more(flower, said):
    """Node 7 answers when it was asked for eight times, which takes some seconds."""
    federation = flower(straggler_grace=0.05)
    federation.strategy.challenge_timeout = 2
    federation.add(7)
    pull = federation.grid.pull_messages
    pulls: Counter[str] = Counter()

    def slowly(names):
        pulls.update(names)
        waiting = federation.grid.replies
        return pull([each for each in names if pulls[each] >= 8 or not is_of(waiting, each, 7)])

    def much_time(number, arrays):
        if number == 1:
            federation.strategy.challenge_timeout = 60

    federation.grid.pull_messages = slowly
    federation.start(3, evaluate_fn=much_time)
    assert [receipt.participants for receipt in federation.receipts] == [7, 7, 7]
    assert said.count("node 7 has not answered in time: left out") == 3


def is_of(replies, message, node):
    return message in replies and replies[message].metadata.src_node_id == node


def test_metrics_of_training_are_dropped_unless_their_owner_discloses_them(flower):
    federation = flower()
    federation.add(2, mods=[sealing_mod(UNSAFE_SIMULATION, disclose_metrics=True)])
    federation.start(1)
    shown = {
        node: list(reply.content.metric_records)
        for node, message, reply in federation.grid.log
        if "arrays" in message.content
    }
    assert shown == {node: ["metrics"] if node == 2 else [] for node in range(7)}


@pytest.mark.parametrize("kind", ["query", "query.properties", "train.other"])
def test_what_is_no_training_with_a_proof_is_refused(kind, flower, said):
    federation = flower()
    app, context = federation.grid.apps[0], federation.grid.contexts[0]
    app.query()(lambda message, context: Message(message.content, reply_to=message))
    app.query("properties")(lambda message, context: Message(message.content, reply_to=message))
    app.train("other")(lambda message, context: Message(message.content, reply_to=message))
    content = RecordDict({"config": ConfigRecord({"secret": 1})})
    reply = app(Message(content, 0, kind), context)
    assert reply.has_error()
    assert "unsealed" in reply.error.reason or "no record 'ostraka'" in reply.error.reason


def test_what_cannot_work_is_told_at_once(flower):
    federation = flower()
    federation.model["counts"] = np.ones(3, np.int64)
    with pytest.raises(ConfigError, match="integers that are not zero"):
        federation.start(1)
    with pytest.raises(LocalProtocolError, match="start"):
        flower().strategy.configure_train(1, ArrayRecord(), ConfigRecord(), federation.grid)
    with pytest.raises(ConfigError, match="k >= f \\+ 2"):
        flower(terms={"composition": rules.parse("multi-krum(k=2)")})
