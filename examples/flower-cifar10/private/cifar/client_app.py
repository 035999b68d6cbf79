"""What a node does."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cifar import task
from ostraka.flower import sealing_mod

app = ClientApp(mods=[sealing_mod(policy="unsafe-simulation")])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's images. An attacker turns what it has learned into its opposite."""
    torch.set_num_threads(1)
    config, partition = context.run_config, int(context.node_config["partition-id"])
    before = message.content["arrays"].to_torch_state_dict()
    model = task.new_model()
    model.load_state_dict(before)
    images, labels = task.load(
        config["data"], partition, int(context.node_config["num-partitions"]), config["examples"]
    )
    loss = task.train(model, images, labels, lr=config["lr"])
    after = model.state_dict()
    if partition < config["attackers"]:
        after = {name: 4 * before[name] - 3 * value for name, value in after.items()}
    content = RecordDict(
        {
            "arrays": ArrayRecord(after),
            "metrics": MetricRecord({"num-examples": len(labels), "loss": loss}),
        }
    )
    return Message(content, reply_to=message)
