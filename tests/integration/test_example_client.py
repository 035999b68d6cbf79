"""The example that users start from, as they run it."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "pytorch_client.py"
CLIENTS = 3
ROUNDS = 6  # With their momentum, clients begin slowly.


@pytest.fixture
def example():
    """What the file defines, without a process of its own."""
    pytest.importorskip("sklearn")
    with torch.random.fork_rng():
        yield runpy.run_path(str(EXAMPLE))


@pytest.fixture
def model(example, tmp_path):
    path = tmp_path / "first.safetensors"
    example["main"](["--write-model", str(path)])
    return path


@pytest.mark.slow
def test_clients_in_plain_torch_learn_together(deploy, logged, model):
    deployment = deploy(
        clients=CLIENTS, f=0, model=model, settings={"count": ROUNDS, "disclose_selection": True}
    )
    enclave = deployment.enclave()
    deployment.workers()
    clients = [
        deployment.spawn(
            f"client-{number}",
            *(str(EXAMPLE), "--address", deployment.address, "--name", f"client-{number}"),
            *("--key", str(deployment.key(f"client-{number}"))),
            *("--policy", str(deployment.policy), "--unsafe-simulation"),
            *("--part", str(number), "--parts", str(CLIENTS)),
        )
        for number in range(1, CLIENTS + 1)
    ]
    for client in clients:
        client.wait_for("after the last round: accuracy")
        assert client.child.wait(300) == 0, client.lines
    place = 0
    for _ in range(ROUNDS):
        place = enclave.wait_for("RoundPublished", after=place)
    assert len(logged(enclave, "RoundPublished")) == ROUNDS
    said = [re.fullmatch(r"round (\d): accuracy (0\.\d+|1\.0+)", each) for each in clients[0].lines]
    accuracies = [float(match[2]) for match in said if match]
    assert len(accuracies) == ROUNDS
    assert accuracies[0] < 0.3
    assert accuracies[-1] > 0.8


def test_the_example_names_what_is_missing(example, capsys):
    with pytest.raises(SystemExit):
        example["main"](["--name", "client-1"])
    assert "--name, --key and --policy" in capsys.readouterr().err


def test_the_first_model_is_the_same_for_everybody(example, model, tmp_path):
    again = tmp_path / "again.safetensors"
    example["main"](["--write-model", str(again)])
    assert again.read_bytes() == model.read_bytes()
    assert sum(value.size for value in load_file(model).values()) == 4_810


def test_every_image_belongs_to_one_client(example):
    parts = [example["digits"](part, CLIENTS)[0] for part in range(1, CLIENTS + 1)]
    assert sum(map(len, parts)) == 1797
    assert {image.numpy().tobytes() for part in parts for image in part} == {
        image.numpy().tobytes() for image in example["digits"](1, 1)[0]
    }


def test_the_example_needs_nothing_of_the_lab():
    assert "ostraka_lab" not in EXAMPLE.read_text()
