"""`ostraka compare`.

What loads PyTorch is imported in the functions that need it: it takes seconds, and --help works
without it.
"""

import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.table import Table

from ostraka.cli.output import Json, progress, show, table
from ostraka.core import rules, uploads
from ostraka.errors import ConfigError, RoundFailed, ServiceError
from ostraka_lab.commands import experiment_options as options
from ostraka_lab.commands import stoppable
from ostraka_lab.commands.round_view import percent

if TYPE_CHECKING:
    from ostraka_lab.compare import Comparison, Result
    from ostraka_lab.experiment import Experiment

_ATTACKS = ("sign-flip", "gaussian", "alie", "ipm", "optimal-alie", "optimal-ipm")
_DEFENCES = ("plain", "multi-krum", rules.compose(rules.DEFAULT, rules.DEFAULT_PRE).plain, "exact")
_OF_THE_GRID = ("attack", "defence", "seeds", "worst_seeds", "spot_checks", "jobs")
_SHOWN = 5  # columns of the leader board that a terminal has room for
_NOT_OF_A_RUN = ("out", "resume", "tables", "as_json", *_OF_THE_GRID)


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
    worst_seeds: Annotated[
        int | None,
        typer.Option(
            help="Seeds for the worst attack on each defence, once that attack is known.",
            min=1,
            show_default="as many as all",
        ),
    ] = None,
    spot_checks: Annotated[
        int | None,
        typer.Option(
            help="Runs in the clear to repeat through the services, for two rounds each.",
            min=0,
            show_default="one for every 50",
        ),
    ] = None,
    dataset: options.Dataset = "digits",
    model: options.Model = None,
    app: options.App = None,
    clients: options.Clients = 12,
    byzantine: Annotated[
        list[int],
        typer.Option(help="How many of them attack; repeatable."),
    ] = [3],  # noqa: B006
    f: options.Tolerated = None,
    attack_scale: options.AttackScale = None,
    know: options.Know = "all",
    partition: Annotated[
        list[str],
        typer.Option(
            help="How data are split: iid, dirichlet:ALPHA, shards:N or quantity:SKEW; repeatable."
        ),
    ] = ["iid"],  # noqa: B006
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
    jobs: Annotated[
        int | None,
        typer.Option(help="Runs in the clear at a time.", min=1, show_default="one a core"),
    ] = None,
    out: options.Out = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Resume a comparison.")
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="NAME", help="Publish the tables as NAME.md and NAME.json."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare defences over a list of attacks.

    All runs have the same data and seeds. Defences in the clear run in one process each: plain
    averaging, or pre-aggregations and a rule, joined by +, on the updates that the enclave would
    see. Ostraka runs as its real services, under --rule. Writes one table and one plot: accuracy
    after the last round, the mean of all seeds and their range, and the worst case of each defence.
    With several splits of the data or numbers of attackers, it does so for each pair of them. A
    leader board has the defences by their worst case.

    Some runs in the clear are drawn at random and run again through the services. If the models
    differ, the comparison fails.

    \b
    Examples:
      ostraka compare
      ostraka compare --attack alie:1.5 --attack min-max --client-momentum 0.9
      ostraka compare --defence multi-krum --defence arc+caf --defence arc+nnm+geometric-median
      ostraka compare --defence fltrust --defence exact --root-images 100 --seeds 3
      ostraka compare --upload int8 --defence arc+nnm+geometric-median --client-momentum 0.9
      ostraka compare --rule multi-krum --defence multi-krum --defence exact --defence gaussian
      ostraka compare --partition iid --partition dirichlet:0.3 --byzantine 2 --byzantine 4
      ostraka compare --defence multi-krum --defence arc+caf --worst-seeds 3 --spot-checks 2
      ostraka compare --app my_task:app --attack alie --attack optimal-ipm --seeds 3
      ostraka compare --resume runs/compare-digits-20260101-120000
      ostraka compare --resume runs/compare-digits-20260101-120000 --tables docs/results/digits
    """
    from ostraka_lab.compare import Comparison, running

    if resume is None:
        fields = {name: value for name, value in ctx.params.items() if name not in _NOT_OF_A_RUN}
        fields["pre"] = options.pre_aggregations(pre)
        fields["root"] = options.root_client(root)
        grid = {name: ctx.params[name] for name in _OF_THE_GRID}
        comparison = _found(fields, grid, out)
    else:
        options.require_alone(ctx, "resume", "jobs", "tables", "as_json")
        comparison = Comparison.load(resume)
    if tables is not None and not tables.parent.is_dir():
        raise ConfigError(f"--tables: there is no folder {tables.parent}")
    pace = _Pace(comparison)
    try:
        with (
            stoppable() as ended,
            progress() as step,
            closing(
                running.run(comparison, jobs=jobs or _cores(), tell=pace.telling(step))
            ) as runs,
        ):
            for result in runs:
                pace.over(result)
    except (ServiceError, RoundFailed) as failed:
        from ostraka_lab.run_report import comparison as pages

        pages.write(comparison)
        raise ServiceError(f"{failed}\n{_further(comparison)}") from None
    _show(comparison, tables, as_json=as_json)
    if ended:
        raise typer.Exit(ended[0])


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _found(fields: dict[str, Any], grid: dict[str, Any], out: Path | None) -> "Comparison":
    """Make the folder of a new comparison."""
    from ostraka_lab.compare import Comparison, checks
    from ostraka_lab.experiment import Experiment
    from ostraka_lab.task import load_task

    first, *others = fields["partition"]
    attackers = tuple(fields["byzantine"])
    of_all = Experiment.asked(**fields | {"partition": first, "byzantine": max(attackers)})
    partitions = (of_all.partition, *others)
    fields = fields | {"partition": partitions}
    if of_all.sketch is not None or of_all.app is not None:
        of_all.require_sketch(load_task(of_all).first()[0].dimension)
    comparison = Comparison(
        options.new_folder(out, "compare", of_all.dataset),
        of_all,
        tuple(grid["attack"]),
        tuple(grid["defence"]),
        tuple(range(of_all.seed, of_all.seed + grid["seeds"])),
        _command(of_all, fields, grid),
        partitions,
        attackers,
        grid["worst_seeds"] or 0,
    )
    count = grid["spot_checks"]
    if count is None:
        count = checks.usual(sum(cell.in_the_clear for cell in comparison.cells()))
    comparison = replace(comparison, spot_checks=count)
    comparison.save()
    return comparison


def _command(of_all: "Experiment", fields: dict[str, Any], grid: dict[str, Any]) -> str:
    """What makes the same comparison again."""
    given = {name: of_all.to_json()[name] for name in fields}
    for name in ("partition", "byzantine"):
        first, *others = fields[name]
        given[name] = (first, *others) if others else first
    words = [f"--attack {name}" for name in grid["attack"]]
    words += [f"--defence {shlex.quote(name)}" for name in grid["defence"]]
    words += [f"--seeds {grid['seeds']}"] if grid["seeds"] > 1 else []
    words += [f"--worst-seeds {grid['worst_seeds']}"] if grid["worst_seeds"] else []
    words += [f"--spot-checks {grid['spot_checks']}"] if grid["spot_checks"] is not None else []
    usual = type(of_all).asked(app=of_all.app).to_json() | {"app": None}
    return " ".join([options.command("compare", given, usual), *words])


class _Pace:
    """Tells how a comparison goes on, and how long it will take."""

    def __init__(self, comparison: "Comparison") -> None:
        self._of = comparison.runs
        self._begun = time.monotonic()
        self._runs = 0  # that were over since then
        self._done = 0

    def telling(self, step: Callable[[str, int, int], None]) -> Callable[[str, int, int], None]:
        def tell(what: str, done: int, of: int) -> None:
            self._done = done
            step(f"{what}{self._left()}", done, of)

        return tell

    def over(self, result: "Result") -> None:
        """Write a line for a run that is over, where no terminal shows a bar."""
        self._runs += 1
        self._done += 1
        if not sys.stderr.isatty():
            # A worst case may change with more seeds, and then there are more runs.
            of = max(self._done, self._of)
            click.echo(
                f"[RUN {self._done} of {of}] {result.attack} on {result.defence} "
                f"({result.scenario}), seed {result.seed}: accuracy {percent(result.accuracy)}, "
                f"{result.seconds:.1f} s{self._left()}",
                err=True,
            )

    def _left(self) -> str:
        """How long the rest takes, at the pace of those that are over."""
        left = self._of - self._done
        if not (self._runs and left > 0):
            return ""
        minutes = left * (time.monotonic() - self._begun) / self._runs / 60
        return f"; about {minutes:.0f} min left" if minutes >= 1 else "; less than a minute left"


def _further(comparison: "Comparison") -> str:
    return f"To resume: ostraka compare --resume {comparison.root}"


def _show(comparison: "Comparison", tables: Path | None, *, as_json: bool) -> None:
    """Write the page, and the tables where they are asked for. Half a comparison has none."""
    from ostraka_lab.run_report import comparison as pages

    results = comparison.results()
    path = pages.write(comparison)
    whole = comparison.is_whole(results)
    published = pages.publish(comparison, tables) if whole and tables is not None else []
    figures = {
        "results": [asdict(result) for result in results],
        **pages.figures(comparison, results),
        "report": str(path),
        "tables": list(map(str, published)),
    }
    show(
        _table(comparison, results),
        pages.explanation(comparison),
        f"Report: {path}",
        *(f"Tables: {each}" for each in published),
        *([] if whole else [_further(comparison)]),
        figures=figures,
        as_json=as_json,
    )


def _table(comparison: "Comparison", results: list["Result"]) -> Table:
    """The leader board, or for one scenario its table. Long names break where they can be read."""
    from ostraka_lab.run_report import comparison as pages
    from ostraka_lab.run_report import leaders

    if len(comparison.scenarios) > 1:
        board = leaders.table(comparison, results)
        shown = table(*(column.heading.capitalize() for column in board.columns[:_SHOWN]))
        rows = [list(row[:_SHOWN]) for row in board.rows]
    else:
        names = (name.replace("+", "+\n") for name in pages.headings(comparison))
        shown, rows = table("Attack", *names), pages.rows(comparison, results)
    for row in rows:
        shown.add_row(*(cell.replace(" (", "\n").rstrip(")") for cell in row))
    return shown
