"""On a real SuperLink: simulated nodes, and SuperNodes as processes of their own."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("flwr", reason="needs Flower: make test-env")

from ostraka.core import rules

# Flower starts a process for every message, which on a busy machine can take longer than it waits.
pytestmark = pytest.mark.soak

EXAMPLES = Path(__file__).parents[3] / "examples"


def model(folder, number):
    return np.load(folder / f"model-{number}.npy").astype(np.float64)


def selected(folder):
    return {int(k): v for k, v in json.loads((folder / "selected.json").read_text()).items()}


def test_ten_simulated_nodes_of_which_two_attack(superlink, app, task, multi_krum, tmp_path):
    """Nodes run by ray, and the enclave is in the ServerApp's process."""
    pytest.importorskip("ray", reason="needs ray: pip install 'flwr[simulation]'")
    superlink.start("--simulation")
    run = superlink.run(
        app,
        *("--federation-config", "num-supernodes=10"),
        folder=str(tmp_path),
        malicious=2,
        first=10,
    )
    run.wait_for("Strategy execution finished")
    for number in (1, 2):
        rows = np.stack([task.update(node, number, 2) for node in range(10)])
        kept, mean = multi_krum(rows, 2)
        assert set(selected(tmp_path)[number]) == {f"node-{node}" for node in kept}
        assert not {0, 1} & set(kept)
        moved = model(tmp_path, number) - model(tmp_path, number - 1)
        np.testing.assert_allclose(moved, mean, atol=1e-5)


def test_six_supernodes_of_which_one_attacks_and_one_is_killed(  # noqa: PLR0917 (fixtures)
    deploy, superlink, app, task, multi_krum, wait_for, tmp_path
):
    """Node 0 is Byzantine; node 4 is killed in the middle of round 2. The run ends all the same."""
    save_file(task.first_model(), tmp_path / "first.safetensors")
    federation = deploy(
        clients=6,
        f=1,
        workers=2,
        model=tmp_path / "first.safetensors",
        composition=rules.parse("multi-krum"),
        settings={"count": 3, "grace_s": 3, "client_momentum": 0.0, "disclose_selection": True},
    )
    federation.enclave()
    federation.workers()
    superlink.start()
    for node in range(6):
        own = {
            "ostraka-policy": str(federation.policy),
            "ostraka-key": str(federation.key(f"client-{node + 1}")),
            "ostraka-unsafe-simulation": True,
        }
        superlink.add_node(node, **own, **({"hold-in": 2} if node == 4 else {}))
    run = superlink.run(
        app, folder=str(tmp_path), enclave=federation.address, rounds=3, malicious=1, first=6
    )
    wait_for(tmp_path / "held-4")
    superlink.nodes[4].kill()
    run.wait_for("Strategy execution finished")
    for number, nodes in ((1, range(6)), (2, (0, 1, 2, 3, 5)), (3, (0, 1, 2, 3, 5))):
        rows = np.stack([task.update(node, number, 1) for node in nodes])
        kept, mean = multi_krum(rows, 1)
        names = [f"client-{list(nodes)[row] + 1}" for row in kept]
        assert selected(tmp_path)[number] == names
        assert "client-1" not in names
        # The manifest's order is that of the model's file.
        moved = model(tmp_path, number) - model(tmp_path, number - 1)
        np.testing.assert_allclose(moved, mean, atol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "private"])
def test_the_cifar_example_runs_on_files_of_the_official_form(superlink, tmp_path, kind):
    """On zeros, which take no room on the disk; what is learned from images is another matter."""
    pytest.importorskip("ray", reason="needs ray: pip install 'flwr[simulation]'")
    for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(10_000 * 3073)
    superlink.start("--simulation")
    run = superlink.run(
        EXAMPLES / "flower-cifar10" / kind,
        *("--federation-config", "num-supernodes=10"),
        **{"data": str(tmp_path), "examples": 32, "num-server-rounds": 1},
    )
    run.wait_for("Strategy execution finished")


def test_the_digits_example_learns_while_two_of_ten_attack(superlink):
    """It runs as its README says."""
    pytest.importorskip("ray", reason="needs ray: pip install 'flwr[simulation]'")
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    superlink.start("--simulation")
    run = superlink.run(EXAMPLES / "flower-digits", "--federation-config", "num-supernodes=10")
    run.wait_for("Strategy execution finished")
    accuracies = re.findall(r"MetricRecord: {'accuracy': ([0-9.]+)}", run.log.read_text())
    assert len(accuracies) == 5
    assert float(accuracies[-1]) > 0.85
