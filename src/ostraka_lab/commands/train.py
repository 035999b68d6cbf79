"""`ostraka train`, and `ostraka demo`, which is one such run.

What loads PyTorch is imported in the functions that need it: it takes seconds, and --help works
without it.
"""

import statistics
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click.core import ParameterSource
from rich.table import Table

from ostraka.cli.output import Json, show, table
from ostraka.cli.rules import warn_of_copies
from ostraka.core import rules, uploads
from ostraka.errors import FAILED, RoundFailed, ServiceError
from ostraka_lab.commands import experiment_options as options
from ostraka_lab.commands import stoppable
from ostraka_lab.commands.round_view import RoundView, percent

if TYPE_CHECKING:
    from ostraka_lab.experiment import Experiment
    from ostraka_lab.metrics import RoundMetrics

_SIMULATED = (
    "No TEE protects this run: its enclave is simulated, and this machine could read every update."
)
_NOISE = 0.02  # of accuracy: a smaller difference means nothing
_NOT_OF_A_RUN = ("out", "resume", "live", "as_json")


def train(
    ctx: typer.Context,
    *,
    dataset: options.Dataset = "digits",
    model: options.Model = None,
    app: options.App = None,
    clients: options.Clients = 12,
    byzantine: options.Byzantine = 3,
    f: options.Tolerated = None,
    attack: options.Attack = "sign-flip",
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
    masking: options.Masking = "exact",
    distances: options.Distances = "workers",
    workers: options.Workers = 2,
    sketch: options.Sketch = None,
    upload: options.Upload = uploads.DEFAULT,
    seed: options.Seed = 0,
    processes: options.Processes = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Run plain averaging as well, to compare with.")
    ] = False,
    report_metrics: Annotated[
        bool,
        typer.Option(
            "--report-metrics", help="Have receipts hold the mean of clients' loss and accuracy."
        ),
    ] = False,
    evaluate_every: options.EvaluateEvery = 1,
    deadline: options.Deadline = 900.0,
    out: options.Out = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Resume a run; only --rounds may be changed."),
    ] = None,
    live: options.Live = False,
    as_json: Json = False,
) -> None:
    """Train a model in a federation under attack, on this machine.

    The enclave (simulated) and the workers are the real services, over sockets; clients are real
    clients, each a process of its own or many in turn in one process. Every round is shown as it is
    published: how good the model is, and which clients were left out. The run's folder gets
    metrics.jsonl, TensorBoard files, model.safetensors and report.html.

    \b
    Examples:
      ostraka train --baseline
      ostraka train --live
      ostraka train --attack optimal-ipm --client-momentum 0.9 --partition dirichlet:0.5
      ostraka train --attack ipm --rule multi-krum
      ostraka train --rule fltrust --root-images 100 --attack optimal-ipm
      ostraka train --dataset cifar10 --clients 64 --byzantine 12 --steps 4 --rounds 30
      ostraka train --dataset cifar10 --model mobilenetv2 --clients 64 --byzantine 0 --attack none
      ostraka train --app my_task:app --attack alie --baseline
      ostraka train --resume runs/digits-mlp-20260101-120000
    """
    if resume is not None:
        options.require_alone(ctx, "resume", "rounds", "live", "as_json")
        asked = ctx.get_parameter_source("rounds") is ParameterSource.COMMANDLINE
        _run(resume, rounds=rounds if asked else None, live=live, as_json=as_json)
        return
    fields = {name: value for name, value in ctx.params.items() if name not in _NOT_OF_A_RUN}
    fields["deadline_s"] = fields.pop("deadline")
    fields["pre"] = options.pre_aggregations(pre)
    fields["root"] = options.root_client(root)
    fields["report_metrics"] = report_metrics or live  # The page shows what clients report.
    _run(_found(fields, out), live=live, as_json=as_json)


def demo(
    *,
    dataset: options.Dataset = "digits",
    model: options.Model = None,
    clients: options.Clients = 12,
    byzantine: options.Byzantine = 3,
    attack: options.Attack = "sign-flip",
    attack_scale: options.AttackScale = None,
    rounds: options.Rounds = 15,
    rule: options.Rule = rules.DEFAULT,
    pre: options.Pre = None,
    masking: options.Masking = "exact",
    seed: options.Seed = 0,
    out: options.Out = None,
    live: options.Live = False,
    as_json: Json = False,
) -> None:
    """Watch a federation learn under attack, beside plain averaging.

    Starts one enclave (simulated), two workers and the clients, each as a process of its own, and
    trains on real data. The digits need no download. Writes a report, and names it. The exit code
    is 1 if plain averaging does better, because the attack misleads the rule.

    \b
    Examples:
      ostraka demo
      ostraka demo --live
      ostraka demo --attack gaussian --byzantine 4
      ostraka demo --attack optimal-ipm --rule multi-krum
      ostraka demo --dataset cifar10 --model mobilenetv2 --rounds 3
    """
    fields = {
        "dataset": dataset,
        "model": model,
        "clients": clients,
        "byzantine": byzantine,
        "attack": attack,
        "attack_scale": attack_scale,
        "rounds": rounds,
        "rule": rule,
        "pre": options.pre_aggregations(pre),
        "masking": masking,
        "seed": seed,
        "baseline": True,
        "report_metrics": live,
    }
    figures = _run(_found(fields, out, name="demo"), live=live, as_json=as_json)
    if figures["misled"]:
        raise typer.Exit(FAILED)


def _found(fields: dict[str, Any], out: Path | None, name: str | None = None) -> Path:
    """Make the folder of a new run."""
    from ostraka_lab import run as runs
    from ostraka_lab.experiment import Experiment
    from ostraka_lab.folder import RunFolder

    experiment = Experiment.asked(**fields)
    warn_of_copies(experiment.composition, experiment.clients, experiment.tolerated)
    words = [name or experiment.dataset]
    if not (name or experiment.app):
        words.append(experiment.architecture)
    folder = options.new_folder(out, *words)
    runs.found_run(RunFolder(folder), experiment, command=_command(experiment))
    return folder


def _command(experiment: "Experiment") -> str:
    """Write the command that makes this run again."""
    usual = type(experiment).asked(app=experiment.app).to_json() | {"app": None}
    return options.command("train", experiment.to_json(), usual)


def _run(root: Path, *, rounds: int | None = None, live: bool, as_json: bool) -> dict[str, Any]:
    """Run what is left of a run, and show all of it. Returns its figures."""
    from ostraka_lab import metrics, run_report
    from ostraka_lab import run as runs
    from ostraka_lab.folder import RunFolder

    folder = RunFolder(root)
    experiment, facts = folder.load()
    if rounds is not None and rounds != experiment.rounds:
        experiment = experiment.with_rounds(rounds)
        folder.save(experiment, **facts | {"rounds": rounds, "command": _command(experiment)})
    view = RoundView(
        experiment.rounds,
        frozenset(experiment.attackers),
        lambda: {row.round: row.accuracy for row in metrics.read_baseline(root)},
    )
    view.rows.extend(metrics.read(root))
    try:
        with (
            stoppable() as ended,
            view.watching(),
            closing(
                runs.run(folder, tell=view.tell, live=view.show_page if live else None)
            ) as each_round,
        ):
            for row in each_round:
                view.add(row)
    except (ServiceError, RoundFailed) as failed:
        raise ServiceError(
            f"{failed}\nAll logs are in {folder.logs}. To resume: ostraka train --resume {root}"
        ) from None
    if ended:
        view.rows[:] = metrics.read(root)  # The last one may be on record and not shown yet.
    report = run_report.write(root) if view.rows else None
    experiment, facts = folder.load()
    figures = _figures(view, facts) | {
        "rule": str(experiment.composition),
        "masking": experiment.masking,
        "simulated": facts["simulated"],
        "report": str(report) if report else None,
        "folder": str(root),
    }
    interrupted = bool(ended) and not _is_finished(view, experiment)
    parts = _parts(view, experiment, facts, figures, interrupted=interrupted)
    show(*parts, figures=figures, as_json=as_json)
    if interrupted:
        raise typer.Exit(ended[0])
    return figures


def _is_finished(view: RoundView, experiment: "Experiment") -> bool:
    """Whether all rounds are on record, and those of plain averaging if they were asked for."""
    done = [len(view.rows), *([len(view.plain())] if experiment.baseline else [])]
    return min(done) >= experiment.rounds


def _parts(
    view: RoundView,
    experiment: "Experiment",
    facts: dict[str, Any],
    figures: dict[str, Any],
    *,
    interrupted: bool,
) -> list[Table | str]:
    """What is shown at the end, in order."""
    done, rounds = len(view.rows), experiment.rounds
    parts: list[Table | str] = [_cast(experiment, facts), _SIMULATED]
    if done:
        parts += [view.table(), _legend(figures)]
    if figures["stages_s"]:
        parts.append(_stages(figures["stages_s"]))
    if figures["start_s"] is not None:
        parts.append(f"Start-up, which is no part of a round: {figures['start_s']:.1f} s.")
    if interrupted:
        parts.append(_interruption(done, len(view.plain()), rounds))
    if done:
        parts += _verdict(figures, experiment)
    if figures["report"]:
        parts.append(f"Report: {figures['report']}")
    if done < rounds or interrupted:
        parts.append(f"To resume: ostraka train --resume {figures['folder']}")
    return parts


def _interruption(done: int, averaged: int, rounds: int) -> str:
    if done < rounds:
        return f"Interrupted after round {done} of {rounds}."
    return (
        f"All {rounds} rounds are done. Interrupted after round {averaged} of plain averaging, "
        "which runs beside them."
    )


def _figures(view: RoundView, facts: dict[str, Any]) -> dict[str, Any]:
    """Compute the figures. Both accuracies are of the last round that was evaluated."""
    from ostraka_lab.metrics import start_up

    judged = [row for row in view.rows if row.accuracy is not None]
    last = judged[-1] if judged else None
    accuracy, plain = (last.accuracy, view.plain().get(last.round)) if last else (None, None)
    return {
        "accuracy": accuracy,
        "baseline_accuracy": plain,
        "misled": plain is not None and plain > (accuracy or 0.0) + _NOISE,
        "selective": any(row.selective for row in view.rows),
        "rounds": len(view.rows),
        "byzantine_selected": sum(row.byzantine_selected for row in view.rows),
        "attack_success": last.attack_success if last else None,
        "dimension": facts["dimension"],
        "stages_s": _medians([row for row in view.rows if row.stages_s]),
        "start_s": start_up(view.rows),
    }


def _medians(rows: Sequence["RoundMetrics"]) -> dict[str, float]:
    """Compute the median seconds of each stage, over rounds that were timed."""
    stages = dict.fromkeys(stage for row in rows for stage in row.stages_s)
    return {
        stage: round(statistics.median(row.stages_s.get(stage, 0.0) for row in rows), 4)
        for stage in stages
    }


def _cast(experiment: "Experiment", facts: dict[str, Any]) -> str:
    attackers = ", ".join(map(str, experiment.attackers)) or "none"
    how = f" ({experiment.attack}, scale {experiment.scale:g})" if experiment.attackers else ""
    return (
        f"{experiment.clients} clients train {experiment.architecture} "
        f"({facts['dimension']} values) on {experiment.dataset}, {experiment.partition}; "
        f"rule: {experiment.composition}; masking: {experiment.masking}. "
        f"Attackers: {attackers}{how}."
    )


def _legend(figures: dict[str, Any]) -> str:
    from ostraka_lab.run_report.participation import nobody_left_out

    rule = figures["rule"]
    if not figures["selective"]:
        return nobody_left_out(rule)
    return f"Left out: by {rule}, unless it says more. A star marks an attacker."


def _stages(stages: dict[str, float]) -> Table:
    shown = table("Stage", "median seconds")
    for stage, seconds in stages.items():
        shown.add_row(stage, f"{seconds:.3f}")
    return shown


def _verdict(figures: dict[str, Any], experiment: "Experiment") -> list[str]:
    count, first = figures["byzantine_selected"], ""
    if figures["selective"] and experiment.attackers:
        averaged = f"Attackers averaged in: {count} times."
        first = averaged if count else "No attacker was averaged in."
    after = "1 round" if figures["rounds"] == 1 else f"{figures['rounds']} rounds"
    reached = f"Accuracy after {after}: {percent(figures['accuracy'])}"
    beside = figures["baseline_accuracy"]
    plain = f", by plain averaging {percent(beside)}" if beside is not None else ""
    success = figures["attack_success"]
    backdoor = f" The backdoor works on {percent(success)}." if success is not None else ""
    told = [f"This attack misleads {figures['rule']} itself: see docs/attacks.md."]
    return [f"{first} {reached}{plain}.{backdoor}".strip(), *(told if figures["misled"] else [])]
