"""What the server does: it carries messages, and tests the model of each round."""

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from digits import task
from ostraka.flower import PrivateMultiKrum

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    config = context.run_config
    strategy = PrivateMultiKrum(
        enclave=config["enclave"], num_malicious_nodes=config["num-malicious-nodes"]
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(a) for name, a in task.first_model().items()}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The published model, on images that no node has."""
    model = {name: array.numpy() for name, array in arrays.items()}
    return MetricRecord({"accuracy": task.accuracy(model)})
