"""`ostraka compare`.

What loads PyTorch is imported in the functions that need it: it takes seconds, and --help works
without it.
"""

import shlex
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from ostraka.cli.output import Json, progress, show, table
from ostraka.core import rules, uploads
from ostraka.errors import RoundFailed, ServiceError
from ostraka_lab.commands import experiment_options as options
from ostraka_lab.commands import stoppable
from ostraka_lab.commands.round_view import percent

if TYPE_CHECKING:
    from ostraka_lab.compare import Comparison, Result

_ATTACKS = ("sign-flip", "gaussian", "alie", "ipm", "optimal-alie", "optimal-ipm")
_DEFENCES = ("plain", "multi-krum", rules.compose(rules.DEFAULT, rules.DEFAULT_PRE).plain, "exact")
_NOT_OF_A_RUN = ("out", "resume", "as_json", "attack", "defence", "seeds", "jobs")


def compare(
    ctx: typer.Context,
    *,
    attack: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[:SCALE]",
            help="An attack, with its own scale if given, or none; repeatable.",
        ),
    ] = list(_ATTACKS),  # noqa: B006 (typer copies it)
    defence: Annotated[
        list[str],
        typer.Option(
            help="plain, any composition of rules in the clear, or Ostraka: exact, gaussian or "
            "none (inside), under --rule; repeatable."
        ),
    ] = list(_DEFENCES),  # noqa: B006
    seeds: Annotated[
        int, typer.Option(help="Run every pair with so many seeds, from --seed on.", min=1)
    ] = 1,
    dataset: options.Dataset = "digits",
    model: options.Model = None,
    clients: options.Clients = 12,
    byzantine: options.Byzantine = 3,
    f: options.Tolerated = None,
    attack_scale: options.AttackScale = None,
    know: options.Know = "all",
    partition: options.Partition = "iid",
    rounds: options.Rounds = 15,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    batch: options.Batch = 32,
    learning_rate: options.LearningRate = 0.1,
    momentum: options.Momentum = 0.0,
    client_momentum: options.ClientMomentum = 0.0,
    rule: options.Rule = rules.DEFAULT,
    pre: options.Pre = None,
    k: options.Keep = None,
    root: options.Root = None,
    root_images: options.RootImages = None,
    sketch: options.Sketch = None,
    upload: options.Upload = uploads.DEFAULT,
    seed: options.Seed = 0,
    processes: options.Processes = None,
    evaluate_every: options.EvaluateEvery = 1,
    jobs: Annotated[int, typer.Option(help="Runs in the clear at a time.", min=1)] = 2,
    out: options.Out = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Resume a comparison.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare defences over a list of attacks.

    All runs have the same data and seeds. Defences in the clear run in one process each: plain
    averaging, or pre-aggregations and a rule, joined by +, on the updates that the enclave would
    see. Ostraka runs as its real services, under --rule. Writes one table and one plot: accuracy
    after the last round, the mean of all seeds and their range, and the worst case of each defence.

    \b
    Examples:
      ostraka compare
      ostraka compare --attack alie:1.5 --attack min-max --client-momentum 0.9
      ostraka compare --defence multi-krum --defence arc+caf --defence arc+nnm+geometric-median
      ostraka compare --defence fltrust --defence exact --root-images 100 --seeds 3
      ostraka compare --upload int8 --defence arc+nnm+geometric-median --client-momentum 0.9
      ostraka compare --rule multi-krum --defence multi-krum --defence exact --defence gaussian
      ostraka compare --resume runs/compare-digits-20260101-120000
    """
    from ostraka_lab import compare as lab

    if resume is None:
        fields = {name: value for name, value in ctx.params.items() if name not in _NOT_OF_A_RUN}
        fields["pre"] = options.pre_aggregations(pre)
        fields["root"] = options.root_client(root)
        comparison = _found(fields, tuple(attack), tuple(defence), seeds, out)
    else:
        options.require_alone(ctx, "resume", "jobs", "as_json")
        comparison = lab.Comparison.load(resume)
    try:
        with (
            stoppable() as ended,
            progress() as step,
            closing(lab.run(comparison, jobs=jobs, tell=step)) as runs,
        ):
            for number, result in enumerate(runs, 1):
                _tell(number, result)
    except (ServiceError, RoundFailed) as failed:
        raise ServiceError(f"{failed}\n{_further(comparison)}") from None
    _show(comparison, as_json=as_json)
    if ended:
        raise typer.Exit(ended[0])


def _found(
    fields: dict[str, Any],
    attacks: tuple[str, ...],
    defences: tuple[str, ...],
    seeds: int,
    out: Path | None,
) -> "Comparison":
    """Make the folder of a new comparison."""
    from ostraka_lab.compare import Comparison
    from ostraka_lab.experiment import Experiment, Task

    of_all = Experiment(**fields)
    if of_all.sketch is not None:
        of_all.require_sketch(Task.load(of_all).first()[0].dimension)
    usual = Experiment().to_json()
    given = {name: of_all.to_json()[name] for name in fields}
    words = [f"--attack {name}" for name in attacks]
    words += [f"--defence {shlex.quote(name)}" for name in defences]
    words += [f"--seeds {seeds}"] if seeds > 1 else []
    comparison = Comparison(
        options.new_folder(out, "compare", of_all.dataset),
        of_all,
        attacks,
        defences,
        tuple(range(of_all.seed, of_all.seed + seeds)),
        " ".join([options.command("compare", given, usual), *words]),
    )
    comparison.save()
    return comparison


def _tell(number: int, result: "Result") -> None:
    """Write a line for a run that is over, where no terminal shows a bar."""
    if not sys.stderr.isatty():
        click.echo(
            f"[RUN {number}] {result.attack} on {result.defence}, seed {result.seed}: accuracy "
            f"{percent(result.accuracy)}, {result.seconds:.1f} s",
            err=True,
        )


def _further(comparison: "Comparison") -> str:
    return f"To resume: ostraka compare --resume {comparison.root}"


def _show(comparison: "Comparison", *, as_json: bool) -> None:
    from ostraka_lab.run_report import comparison as pages

    results = comparison.results()
    path = pages.write(comparison)
    # Long names and ranges break where they can be read.
    shown = table("Attack", *(name.replace("+", "+\n") for name in pages.headings(comparison)))
    for row in pages.rows(comparison, results):
        shown.add_row(*(cell.replace(" (", "\n").rstrip(")") for cell in row))
    whole = len(results) == len(list(comparison.cells()))
    figures = {
        "results": [asdict(result) for result in results],
        "spreads": pages.spreads(comparison, results),
        "report": str(path),
        "command": comparison.command,
    }
    show(
        shown,
        pages.explanation(comparison),
        f"Report: {path}",
        *([] if whole else [_further(comparison)]),
        figures=figures,
        as_json=as_json,
    )
