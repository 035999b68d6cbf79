"""Measure what Ostraka costs on this machine, in rounds of the plain and the private app.

    python examples/flower-cifar10/overhead.py --rounds 3 --examples 1000

Both run by ray, with the same nodes and the same training. In the private rounds the enclave and
its two workers are in the ServerApp's process, and share this machine's processors with the nodes.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import MultiKrum
from flwr.simulation import run_simulation

sys.path.insert(0, str(Path(__file__).parent / "plain"))

from cifar import client_app, task

from ostraka.flower import UNSAFE_SIMULATION, PrivateMultiKrum, sealing_mod


def main():
    arguments = parse()
    taken = {"plain": [], "private": []}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "times"
        # Back and forth, so that a change in the machine's load affects both alike.
        for kind in ("plain", "private", "private", "plain"):
            taken[kind] += rounds(arguments, log, kind)
        times = read(log)
    plain, private = (statistics.median(taken[kind]) for kind in ("plain", "private"))
    epochs = {kind: statistics.median(times[f"{kind} epoch"]) for kind in taken}
    # A node's first round has a challenge, and every round has a training and a confirmation.
    sealing = (sum(times["private node"]) - sum(times["private epoch"])) / len(
        times["private epoch"]
    )
    # In the median: the first round of the private app waits for challenges. All of its rounds wait
    # for nodes to confirm.
    server = {
        kind: sum(
            statistics.median(times[f"{kind} {step}"])
            for step in ("configure_train", "aggregate_train")
        )
        for kind in taken
    }
    figures = {
        "nodes": arguments.nodes,
        "examples": arguments.examples,
        "parameters": sum(each.numel() for each in task.new_model().parameters()),
        "plain_rounds_s": [round(each, 3) for each in taken["plain"]],
        "private_rounds_s": [round(each, 3) for each in taken["private"]],
        "plain_epoch_s": round(epochs["plain"], 4),
        "private_epoch_s": round(epochs["private"], 4),
        "plain_server_s": round(server["plain"], 4),
        "private_server_s": round(server["private"], 4),
        "sealing_s": round(sealing, 4),
        "sealing_share": round(sealing / epochs["private"], 4),
    }
    print(f"a round with Flower's MultiKrum:  {spread(taken['plain'])}")
    print(f"a round with PrivateMultiKrum:    {spread(taken['private'])}")
    print(f"one to the other:                 {private / plain:.2f}")
    print(f"a local epoch, in each:           {epochs['plain']:.3f} s, {epochs['private']:.3f} s")
    print(f"in the strategy itself, in each:  {server['plain']:.3f} s, {server['private']:.3f} s")
    print(f"verifying, sealing, confirming:   {sealing:.3f} s at a node")
    print(f"which is, of its local epoch:     {sealing / epochs['private']:.1%}")
    print(json.dumps(figures))


def spread(seconds):
    low, high = min(seconds), max(seconds)
    return f"{statistics.median(seconds):.2f} s ({low:.2f} to {high:.2f}, {len(seconds)} rounds)"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=1000, help="of each node, at most")
    parser.add_argument("--data", default="~/.cache/ostraka/data/cifar10")
    return parser.parse_args()


def rounds(arguments, log, kind):
    """Return the seconds of each round but the first, which also starts the nodes' processes."""
    private = kind == "private"
    sealing = [sealing_mod(policy=UNSAFE_SIMULATION)] if private else []
    nodes = ClientApp(
        mods=[
            timed(log, f"{kind} node"),
            *sealing,
            timed(log, f"{kind} epoch"),
            configured({"data": arguments.data, "examples": arguments.examples}),
        ]
    )
    nodes.train()(client_app.train)
    f, n = 2, arguments.nodes
    chosen = {"num_malicious_nodes": f, "num_nodes_to_select": n - f, "fraction_evaluate": 0.0}
    strategy = (
        PrivateMultiKrum(**chosen, min_available_nodes=n, enclave=UNSAFE_SIMULATION)
        if private
        else MultiKrum(**chosen, min_available_nodes=n)
    )
    for step in ("configure_train", "aggregate_train"):
        setattr(strategy, step, clocked(getattr(strategy, step), log, f"{kind} {step}"))
    ends, aggregated = [], []
    server = ServerApp()

    @server.main()
    def run(grid, context):
        result = strategy.start(
            grid,
            ArrayRecord(task.new_model().state_dict()),
            arguments.rounds + 1,
            evaluate_fn=lambda number, arrays: ends.append(time.perf_counter()),
        )
        aggregated.extend(result.train_metrics_clientapp)

    run_simulation(
        server, nodes, n, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    )
    if len(aggregated) != arguments.rounds + 1:
        sys.exit(
            f"{kind}: only rounds {aggregated} were aggregated, so there is nothing to compare"
        )
    return [after - before for before, after in pairwise(ends[1:])]


def configured(config):
    """Make a mod that shows the app a run's config: `run_simulation` has none."""

    def mod(message, context, call_next):
        # Flower takes a reply for an error if its node's own context has another config.
        settings = {"attackers": 0, "lr": 0.05, **config}
        shown = Context(
            context.run_id, context.node_id, context.node_config, context.state, settings
        )
        return call_next(message, shown)

    return mod


def clocked(step, log, what):
    """Wrap a strategy's step, and write down how long it takes."""

    def run(*arguments):
        start = time.perf_counter()
        done = step(*arguments)
        with log.open("a") as file:
            file.write(f"{what}\t{time.perf_counter() - start}\n")
        return done

    return run


def timed(log, what):
    """Make a mod that writes to a file how long the mods and the app behind it take."""

    def mod(message, context, call_next):
        start = time.perf_counter()
        reply = call_next(message, context)
        with log.open("a") as file:
            file.write(f"{what}\t{time.perf_counter() - start}\n")
        return reply

    return mod


def read(log):
    times = {}
    for line in log.read_text().splitlines():
        what, seconds = line.split("\t")
        times.setdefault(what, []).append(float(seconds))
    return times


if __name__ == "__main__":
    main()
