"""What the server does."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from cifar import task
from ostraka.flower import PrivateMultiKrum

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, and test the model of each."""
    config = context.run_config
    images, labels = task.load_test(config["data"])

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = task.new_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": task.accuracy(model, images, labels)})

    strategy = PrivateMultiKrum(
        enclave=config["enclave"],
        num_nodes_to_select=8,
        num_malicious_nodes=config["num-malicious-nodes"],
        fraction_evaluate=0.0,
        min_available_nodes=10,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.new_model().state_dict()),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
