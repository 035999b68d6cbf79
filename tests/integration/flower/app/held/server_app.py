"""Run all rounds, and write down the model of each."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from held import task  # type: ignore[import-not-found]
from ostraka.flower import PrivateMultiKrum

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    folder = Path(str(config["folder"]))
    strategy = PrivateMultiKrum(
        enclave=config["enclave"],
        num_malicious_nodes=config["malicious"],
        min_available_nodes=config["first"],
        straggler_grace=15.0,
        disclose_selection=True,
    )

    def keep(number, arrays):
        vector = np.concatenate([arrays[name].numpy().reshape(-1) for name in task.NAMES])
        np.save(folder / f"model-{number}.npy", vector)
        receipts = {receipt.number: list(receipt.selected) for receipt in strategy.receipts}
        (folder / "selected.json").write_text(json.dumps(receipts))

    first = {name: Array(array) for name, array in task.first_model().items()}
    strategy.start(grid, ArrayRecord(first), config["rounds"], timeout=240, evaluate_fn=keep)
