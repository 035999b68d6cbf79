"""The options of an experiment, as `train`, `demo` and `compare` share them."""

import re
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from click.core import ParameterSource

from ostraka.cli.federation_folder import CLIENT
from ostraka.config import DISTANCES, MASKINGS
from ostraka.core import rules, uploads
from ostraka.errors import ConfigError

_RUNS = Path("runs")
_NO_PRE = "none"
# Options that are not called like the fields that they set.
_FLAGS = {"learning_rate": "--lr", "deadline_s": "--deadline"}

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
App = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="A model, data and training of your own (see docs/lab.md), such as my_task:app.",
        show_default="the lab's",
    ),
]
Clients = Annotated[int, typer.Option(help="Clients that take part.")]
Byzantine = Annotated[int, typer.Option(help="How many of them attack.")]
Tolerated = Annotated[
    int | None,
    typer.Option("--f", help="How many attackers are tolerated.", show_default="all of them"),
]
Attack = Annotated[str, typer.Option(help="What attackers do, or none (see docs/attacks.md).")]
AttackScale = Annotated[
    float | None, typer.Option(help="Strength of the attack.", show_default="the attack's own")
]
Know = Annotated[
    str, typer.Option(help="Whose updates attackers know: all honest ones, or only their own.")
]
Partition = Annotated[
    str,
    typer.Option(help="How data are split: iid, dirichlet:ALPHA, shards:N or quantity:SKEW."),
]
Rounds = Annotated[int, typer.Option(help="Rounds to run.")]
Steps = Annotated[int | None, typer.Option(help="Local steps a round.", show_default="an epoch")]
Epochs = Annotated[int | None, typer.Option(help="Local epochs a round.", show_default="1")]
Batch = Annotated[int, typer.Option(help="Images a step.")]
LearningRate = Annotated[float, typer.Option("--lr", help="Learning rate of local training.")]
Momentum = Annotated[float, typer.Option(help="Momentum of local training.")]
ClientMomentum = Annotated[
    float,
    typer.Option(
        "--client-momentum",
        "--worker-momentum",
        help="How much of its last updates every client keeps in the next one.",
    ),
]
Rule = Annotated[
    str, typer.Option(help="The aggregation rule, such as multi-krum (see: ostraka rules).")
]
Pre = Annotated[
    list[str] | None,
    typer.Option(
        help="Comes before the rule; may be repeated, and none is for nothing.",
        show_default=f"{', '.join(rules.DEFAULT_PRE)} before {rules.DEFAULT}, else none",
    ),
]
Keep = Annotated[
    int | None,
    typer.Option("--k", help="Updates that multi-krum averages.", show_default="all but f"),
]
Root = Annotated[
    str | None,
    typer.Option(
        help="The client that fltrust or monna trusts, by name or by number.",
        show_default="an honest one, drawn from the seed",
    ),
]
RootImages = Annotated[
    int | None,
    typer.Option(
        help="Images of the root client, drawn from all.", show_default="its part of the data"
    ),
]
Masking = Annotated[
    str, typer.Option(click_type=click.Choice(MASKINGS), help="How updates are masked.")
]
Distances = Annotated[
    str, typer.Option(click_type=click.Choice(DISTANCES), help="Who measures distances.")
]
Workers = Annotated[int, typer.Option(help="Workers, 2 to 7.")]
Sketch = Annotated[
    int | None, typer.Option(help="Columns to measure distances on.", show_default="all")
]
Upload = Annotated[str, typer.Option(help=f"How values are sent: {', '.join(uploads.FORMATS)}.")]
Seed = Annotated[
    int, typer.Option(help="Seed of data, models and attacks; secrets are always new.")
]
Processes = Annotated[
    int | None,
    typer.Option(
        help="Processes that the clients share; each trains one client at a time.",
        show_default="one a client up to 16 clients, then 2",
    ),
]
EvaluateEvery = Annotated[int, typer.Option(help="Rounds from one test of the model to the next.")]
Deadline = Annotated[
    float, typer.Option(help="Seconds that the first round waits for missing clients.")
]
Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Serve the federation's live page while it runs, and open it. Clients report metrics.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="A new folder for the run.", show_default="runs/..."),
]


def require_alone(ctx: typer.Context, *allowed: str) -> None:
    """Raise ConfigError for an option that would change a run that is resumed."""
    for option in ctx.command.params:
        given = ctx.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if given and option.name not in allowed:
            raise ConfigError(f"{option.opts[0]} cannot be changed in a run that is resumed")


def new_folder(out: Path | None, *words: str) -> Path:
    """Choose the folder of a run. Unless given, its name says what it is and when it began."""
    words = tuple(re.sub(r"[^\w.-]+", "-", word) for word in words)
    return out or _RUNS / "-".join([*words, f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"])


def command(name: str, given: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Write the command line that asks for the same, without options that have their default."""
    words = ["ostraka", name]
    for option, value in given.items():
        if value == usual[option]:
            continue
        flag = _FLAGS.get(option, f"--{option.replace('_', '-')}")
        each_of = (value or (_NO_PRE,)) if isinstance(value, tuple) else (value,)
        for each in each_of:
            words += [flag] if each is True else [flag, shlex.quote(f"{each}")]
    return " ".join(words)


def root_client(given: str | None) -> int | None:
    """Read --root: a client's name, such as client-3, or its number. Raises ConfigError."""
    if given is None:
        return None
    number = given.removeprefix(CLIENT)
    if not number.isdecimal():
        raise ConfigError(
            f"--root is a client, by its name or its number, such as client-3 or 3; got {given!r}"
        )
    return int(number)


def pre_aggregations(given: list[str] | None) -> tuple[str, ...] | None:
    """Read --pre: None for the usual ones. Raises ConfigError."""
    if given and _NO_PRE in given and len(given) > 1:
        raise ConfigError("--pre none means that nothing comes before the rule: give it alone")
    return None if not given else tuple(each for each in given if each != _NO_PRE)
