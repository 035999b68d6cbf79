"""The examples say that two lines make the difference: so they do."""

import difflib
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CIFAR, DIGITS = ROOT / "examples/flower-cifar10", ROOT / "examples/flower-digits"


def changed(name: str) -> set[str]:
    """Lines of code that are only in one of the two apps."""
    plain, private = (
        (CIFAR / kind / "cifar" / name).read_text().splitlines() for kind in ("plain", "private")
    )
    lines = difflib.ndiff(plain, private)
    return {line for line in lines if line[0] in "+-" and line[2:].strip()}


def test_the_private_app_is_the_plain_one_with_two_lines_changed():
    assert changed("task.py") == changed("__init__.py") == set()
    assert changed("client_app.py") == {
        "- app = ClientApp()",
        "+ from ostraka.flower import sealing_mod",
        '+ app = ClientApp(mods=[sealing_mod(policy="unsafe-simulation")])',
    }
    assert changed("server_app.py") == {
        "- from flwr.serverapp.strategy import MultiKrum",
        "+ from ostraka.flower import PrivateMultiKrum",
        "-     strategy = MultiKrum(",
        "+     strategy = PrivateMultiKrum(",
        '+         enclave=config["enclave"],',
    }


def test_the_cifar_example_trains_on_files_of_the_official_form(tmp_path):
    """Files of zeros, of the right size, which take no room on the disk."""
    torch = pytest.importorskip("torch")
    for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(10_000 * 3073)
    task = runpy.run_path(str(CIFAR / "private/cifar/task.py"))
    with torch.random.fork_rng():
        model = task["new_model"]()
        assert sum(each.numel() for each in model.parameters()) == 136_874
        images, labels = task["load"](tmp_path, partition=3, partitions=10, most=64)
        assert images.shape == (64, 3, 32, 32)
        first = task["train"](model, images, labels, lr=0.05)
        assert task["train"](model, images, labels, lr=0.05) < first
    assert task["accuracy"](model, *task["load_test"](tmp_path, most=32)) == 1


@pytest.mark.parametrize(
    ("readme", "source"),
    [
        (CIFAR / "README.md", CIFAR / "private/cifar/server_app.py"),
        (CIFAR / "README.md", CIFAR / "private/cifar/client_app.py"),
        (DIGITS / "README.md", DIGITS / "digits/client_app.py"),
    ],
)
def test_the_lines_that_a_readme_shows_are_in_the_app(readme, source):
    shown = [line[1:].strip() for line in readme.read_text().splitlines() if line.startswith("+")]
    assert any(line in source.read_text() for line in shown)


def test_the_strategies_that_the_documents_show_can_be_made():
    flower = pytest.importorskip("ostraka.flower", reason="needs Flower")
    text = (ROOT / "docs/flower.md").read_text()
    (block,) = re.findall(r"```py\n(PrivateRobust.*?)```", text, re.DOTALL)
    lines = block.splitlines()
    made = [eval(line, vars(flower).copy()) for line in lines]
    assert all(isinstance(each, flower.PrivateRobust) for each in made)
    assert str(made[0].composition) == "arc+nnm+geometric-median"
    assert made[0].fraction_evaluate == 0
