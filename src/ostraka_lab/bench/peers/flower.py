"""Flower's MultiKrum, as a ServerApp calls it: `aggregate_train` on the replies of all nodes.

Replies are real messages with one ArrayRecord of whole weights each, because that is what Flower's
clients send. Timed is `aggregate_train` alone: checking the replies, reading their arrays,
distances, selection and the mean. Their way over the network is not, nor is making them.
"""

import logging

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import MultiKrum
from flwr.supercore.task_identity import TaskIdentity

from ostraka.arrays import AnyArray, Float32
from ostraka.errors import LocalProtocolError
from ostraka_lab.bench.peers.contest import Contest
from ostraka_lab.bench.peers.entrant import Entrant

_WHAT = "model"


def enter(contest: Contest) -> Entrant:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    # What a SuperLink tells a ServerApp. No message can be made without it.
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    strategy = MultiKrum(
        num_malicious_nodes=contest.f,
        num_nodes_to_select=contest.k,
        min_train_nodes=contest.clients,
        min_available_nodes=contest.clients,
    )
    replies = [_reply(row, contest.trained(row)) for row in range(contest.clients)]

    def run() -> AnyArray:
        arrays, _ = strategy.aggregate_train(1, replies)
        if arrays is None:
            raise LocalProtocolError("Flower aggregated nothing")
        return np.asarray(arrays[_WHAT].numpy())

    return Entrant(run, from_weights=True)


def _reply(row: int, weights: Float32) -> Message:
    """What a node answers. The question has no content, as it plays no part."""
    question = Message(RecordDict(), dst_node_id=row + 1, message_type="train")
    content = RecordDict(
        {
            "arrays": ArrayRecord({_WHAT: Array(weights)}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
    )
    return Message(content, reply_to=question)
