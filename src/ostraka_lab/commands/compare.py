"""`ostraka compare`."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ostraka.cli.exit_codes import INTERRUPTED
from ostraka.cli.output import Json, progress, show, table
from ostraka.errors import RoundFailed, ServiceError
from ostraka_lab.commands import lab_options as options
from ostraka_lab.commands.lab_options import lab

_ATTACKS = ("sign-flip", "gaussian", "alie", "ipm")
_DEFENCES = ("plain", "multi-krum", "exact")
_NOT_OF_A_RUN = ("out", "resume", "as_json", "attack", "defence", "jobs")


def compare(
    ctx: typer.Context,
    *,
    attack: Annotated[
        list[str], typer.Option(help="Once for each attack, or none.", show_default=True)
    ] = list(_ATTACKS),  # noqa: B006 (typer copies it)
    defence: Annotated[
        list[str],
        typer.Option(help="Once for each: plain, multi-krum, exact, gaussian, none (inside)."),
    ] = list(_DEFENCES),  # noqa: B006
    dataset: options.Dataset = "digits",
    model: options.Model = None,
    clients: options.Clients = 12,
    byzantine: options.Byzantine = 3,
    attack_scale: options.AttackScale = None,
    know: options.Know = "all",
    partition: options.Partition = "iid",
    rounds: options.Rounds = 15,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    batch: options.Batch = 32,
    learning_rate: options.LearningRate = 0.1,
    momentum: options.Momentum = 0.0,
    worker_momentum: options.WorkerMomentum = 0.0,
    k: options.Keep = None,
    sketch: options.Sketch = None,
    seed: options.Seed = 0,
    processes: options.Processes = None,
    evaluate_every: options.EvaluateEvery = 1,
    jobs: Annotated[int, typer.Option(help="Runs in the clear at a time.", min=1)] = 2,
    out: options.Out = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with a comparison.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare defences over a list of attacks, with the same data and seeds.

    Plain averaging and Multi-Krum in the clear run in one process each; Ostraka runs as its real
    services, in each masking that is asked for. Writes one table and one plot.

    \b
    Examples:
      ostraka compare
      ostraka compare --attack alie --attack min-max --worker-momentum 0.9
      ostraka compare --defence multi-krum --defence exact --defence gaussian --rounds 5
      ostraka compare --resume runs/compare-digits-20260101-120000
    """
    if resume is None:
        fields = {name: value for name, value in ctx.params.items() if name not in _NOT_OF_A_RUN}
        comparison = _found(fields, tuple(attack), tuple(defence), out)
    else:
        options.require_alone(ctx, "resume", "jobs", "as_json")
        comparison = lab("compare").Comparison.load(resume)
    interrupted = False
    try:
        with (
            progress() as step,
            closing(lab("compare").run(comparison, jobs=jobs, tell=step)) as runs,
        ):
            for _ in runs:
                pass
    except KeyboardInterrupt:
        interrupted = True
    except (ServiceError, RoundFailed) as failed:
        raise ServiceError(f"{failed}\n{_further(comparison)}") from None
    _show(comparison, as_json=as_json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _found(
    fields: dict[str, Any], attacks: tuple[str, ...], defences: tuple[str, ...], out: Path | None
) -> Any:
    of_all = lab("experiment").Experiment(**fields, attack=attacks[0])
    usual = lab("experiment").Experiment().to_json()
    given = {name: of_all.to_json()[name] for name in fields}
    words = [f"--attack {name}" for name in attacks] + [f"--defence {name}" for name in defences]
    comparison = lab("compare").Comparison(
        options.new_folder(out, "compare", of_all.dataset),
        of_all,
        attacks,
        defences,
        " ".join([options.command("compare", given, usual), *words]),
    )
    comparison.save()
    return comparison


def _further(comparison: Any) -> str:
    return f"To go on: ostraka compare --resume {comparison.root}"


def _show(comparison: Any, *, as_json: bool) -> None:
    pages, results = lab("comparison_page"), comparison.results()
    path = pages.write(comparison)
    shown = table("Attack", *pages.headings(comparison))
    for row in pages.rows(comparison, results):
        shown.add_row(*row)
    whole = len(results) == len(list(comparison.cells()))
    figures = {
        "results": [asdict(result) for result in results],
        "report": str(path),
        "command": comparison.command,
    }
    show(
        shown,
        "Accuracy after the last round; in brackets, how many attackers' updates were averaged in.",
        f"Report: {path}",
        *([] if whole else [_further(comparison)]),
        figures=figures,
        as_json=as_json,
    )
