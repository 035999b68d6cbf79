"""An app whose only link to Ostraka is its mod."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from held import task  # type: ignore[import-not-found]
from ostraka.flower import UNSAFE_SIMULATION, sealing_mod

app = ClientApp(mods=[sealing_mod(policy=UNSAFE_SIMULATION)])


@app.train()
def train(message, context):
    partition = int(context.node_config["partition-id"])
    number = int(message.content["config"]["server-round"])
    if context.node_config.get("hold-in") == number:
        (Path(str(context.run_config["folder"])) / f"held-{partition}").touch()
        time.sleep(600)
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    step = task.update(partition, number, int(context.run_config["malicious"]))
    # By name: a service has the order of its model file, which need not be the app's.
    parts = dict(zip(task.NAMES, np.split(step, [task.D]), strict=True))
    after = {name: (array + parts[name]).astype("<f4") for name, array in model.items()}
    record = ArrayRecord({name: Array(array) for name, array in after.items()})
    metrics = MetricRecord({"num-examples": 10 ** (12 if partition == 0 else 2)})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)
