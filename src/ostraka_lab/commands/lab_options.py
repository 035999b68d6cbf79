"""The options of an experiment, as `train`, `demo` and `compare` share them."""

import importlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import click
import typer
from click.core import ParameterSource

from ostraka.config import DISTANCES, MASKINGS
from ostraka.errors import ConfigError

RUNS = Path("runs")

Dataset = Annotated[
    str, typer.Option(help="digits, mnist, fashion-mnist or cifar10 (see: ostraka data).")
]
Model = Annotated[
    str | None,
    typer.Option(
        help="mlp, lenet5, cnn, mobilenetv1, mobilenetv2, efficientnet-b0 or efficientnet-b1.",
        show_default="one that fits the data",
    ),
]
Clients = Annotated[int, typer.Option(help="Clients that take part.")]
Byzantine = Annotated[int, typer.Option(help="How many of them attack.")]
Attack = Annotated[
    str, typer.Option(help="What attackers do; none: nothing (see docs/attacks.md).")
]
AttackScale = Annotated[
    float | None, typer.Option(help="How strongly.", show_default="the attack's own")
]
Know = Annotated[
    str, typer.Option(help="Whose updates attackers know: all honest ones, or only their own.")
]
Partition = Annotated[
    str, typer.Option(help="Who holds what: iid, dirichlet:ALPHA, shards:N or quantity:SKEW.")
]
Rounds = Annotated[int, typer.Option(help="Rounds to run.")]
Steps = Annotated[int | None, typer.Option(help="Local steps a round.", show_default="an epoch")]
Epochs = Annotated[int | None, typer.Option(help="Local epochs a round.", show_default="1")]
Batch = Annotated[int, typer.Option(help="Images a step.")]
LearningRate = Annotated[float, typer.Option("--lr", help="Of local training.")]
Momentum = Annotated[float, typer.Option(help="Of local training.")]
WorkerMomentum = Annotated[float, typer.Option(help="That every client keeps from round to round.")]
Keep = Annotated[
    int | None, typer.Option("--k", help="Updates to average.", show_default="all but byzantine")
]
Masking = Annotated[
    str, typer.Option(click_type=click.Choice(MASKINGS), help="How updates are masked.")
]
Distances = Annotated[
    str, typer.Option(click_type=click.Choice(DISTANCES), help="Who measures distances.")
]
Workers = Annotated[int, typer.Option(help="Workers, 2 to 7.")]
Sketch = Annotated[
    int | None, typer.Option(help="Measure on so many columns.", show_default="on all")
]
Seed = Annotated[int, typer.Option(help="Of data, models and attacks; secrets are always new.")]
Processes = Annotated[
    int | None,
    typer.Option(
        help="That the clients share, each training one client at a time.",
        show_default="one a client up to 16 clients, then 2",
    ),
]
EvaluateEvery = Annotated[int, typer.Option(help="Test the model after every so many rounds.")]
Deadline = Annotated[
    float, typer.Option(help="Seconds that the first round waits for a client that does not come.")
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="A new folder for the run.", show_default="runs/..."),
]


def lab(module: str) -> ModuleType:
    """A part of the lab. It is loaded when it is needed: PyTorch takes seconds.

    Raises ConfigError if the packages that the lab needs are not installed.
    """
    try:
        return importlib.import_module(f"ostraka_lab.{module}")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("ostraka"):
            raise
        raise ConfigError(
            f"this needs the package {missing.name!r}: pip install 'ostraka[lab]'"
        ) from None


def require_alone(ctx: typer.Context, *allowed: str) -> None:
    """What goes on is as it began. Raises ConfigError for an option that would change it."""
    for option in ctx.command.params:
        given = ctx.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if given and option.name not in allowed:
            raise ConfigError(f"what goes on is as it began: {option.opts[0]} cannot be changed")


def new_folder(out: Path | None, *words: str) -> Path:
    """Where a run goes, if that was left to us: a name that says what it is and when it began."""
    return out or RUNS / "-".join([*words, f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"])


def command(name: str, given: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """The command line that asks for the same. Options that have their usual value are left out."""
    words = ["ostraka", name]
    for option, value in given.items():
        if value == usual[option]:
            continue
        flag = {"learning_rate": "--lr", "deadline_s": "--deadline"}.get(
            option, f"--{option.replace('_', '-')}"
        )
        words += [flag] if value is True else [flag, f"{value}"]
    return " ".join(words)
