"""What a node does."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits import task
from ostraka.flower import UNSAFE_SIMULATION, sealing_mod

# A node's own config (ostraka-policy, ostraka-key) replaces this argument.
app = ClientApp(mods=[sealing_mod(policy=UNSAFE_SIMULATION)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's digits. An attacker turns what it has learned into its opposite."""
    partition = int(context.node_config["partition-id"])
    before = {name: array.numpy() for name, array in message.content["arrays"].items()}
    images, labels = task.load(partition, int(context.node_config["num-partitions"]))
    after = task.train(before, images, labels, steps=5)
    if partition < context.run_config["attackers"]:
        after = {name: 4 * before[name] - 3 * value for name, value in after.items()}
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(value) for name, value in after.items()}),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content, reply_to=message)
