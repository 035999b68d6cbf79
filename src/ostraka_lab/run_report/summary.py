"""What a reader should know who reads nothing else."""

from ostraka_lab.report import format
from ostraka_lab.report.blocks import KeyFigure, Notice, Tone
from ostraka_lab.run_report import leakage
from ostraka_lab.run_report.run_record import RunRecord

_NOISE = 0.02  # of accuracy: less is no difference to speak of


def title(run: RunRecord) -> str:
    experiment = run.experiment
    return (
        f"{experiment.model} on {experiment.dataset}, {format.count(experiment.clients, 'client')}"
    )


def lead(run: RunRecord) -> str:
    return " ".join(filter(None, (_what_ran(run), _who_attacked(run), _how_it_went(run))))


def notices(run: RunRecord) -> list[Notice]:
    found = [_simulated(run), _unfinished(run), leakage.notice(run.experiment)]
    return [notice for notice in found if notice is not None]


def figures(run: RunRecord) -> list[KeyFigure]:
    """The cards on top, the most important first."""
    leaked = leakage.figure(run.experiment)
    found = [_accuracy(run), _baseline(run), _attack_success(run), _attackers(run), leaked]
    return [figure for figure in found if figure is not None]


def _what_ran(run: RunRecord) -> str:
    experiment = run.experiment
    return (
        f"{format.count(experiment.clients, 'client')} trained {experiment.model} on "
        f"{experiment.dataset} together for {format.count(len(run.rounds), 'round')}."
    )


def _who_attacked(run: RunRecord) -> str:
    experiment = run.experiment
    if not experiment.attacked:
        return "Nobody attacked."
    scale = format.scaled(experiment.attack_scale)
    return f"{len(experiment.attackers)} of them attacked ({experiment.attack}{scale})."


def _how_it_went(run: RunRecord) -> str:
    if run.accuracy is None:
        return ""
    ours = f"Ostraka reached an accuracy of {format.exact_percent(run.accuracy)}"
    if run.baseline_accuracy is None:
        return f"{ours}."
    plain = format.exact_percent(run.baseline_accuracy)
    return f"{ours}; plain averaging, on the same data and seeds, {plain}."


def _simulated(run: RunRecord) -> Notice | None:
    if not run.experiment.simulated:
        return None
    return Notice(
        "SIMULATED enclave.",
        "All processes ran without a trusted execution environment. The protocol, its messages and "
        "its arithmetic are the real ones; the protection by hardware is not.",
    )


def _unfinished(run: RunRecord) -> Notice | None:
    if run.finished:
        return None
    return Notice(
        "Unfinished.",
        f"{len(run.rounds)} of {format.count(run.experiment.rounds, 'round')} are on record. "
        "“ostraka train --resume” goes on with the run.",
    )


def _accuracy(run: RunRecord) -> KeyFigure:
    ahead = _ahead(run)
    tone: Tone = "plain" if abs(ahead) < _NOISE else "good" if ahead > 0 else "bad"
    return KeyFigure("Accuracy", format.exact_percent(run.accuracy), "Ostraka, on test data", tone)


def _baseline(run: RunRecord) -> KeyFigure | None:
    if not run.baseline:
        return None
    tone: Tone = "bad" if _ahead(run) > _NOISE else "plain"
    plain = format.exact_percent(run.baseline_accuracy)
    return KeyFigure("Plain averaging", plain, "same data, seeds and attackers", tone)


def _ahead(run: RunRecord) -> float:
    """By how much we beat plain averaging; 0 if that is not known."""
    if run.accuracy is None or run.baseline_accuracy is None:
        return 0.0
    return run.accuracy - run.baseline_accuracy


def _attack_success(run: RunRecord) -> KeyFigure | None:
    if run.attack_success is None:
        return None
    plain = run.baseline_attack_success
    note = "" if plain is None else f"plain averaging: {format.exact_percent(plain)}"
    return KeyFigure("Attack success", format.exact_percent(run.attack_success), note)


def _attackers(run: RunRecord) -> KeyFigure | None:
    if not run.experiment.attackers:
        return None
    chances = f"{run.byzantine_selected} of {run.byzantine_chances:,}"
    attackers = format.count(len(run.experiment.attackers), "attacker")
    note = f"{attackers}, {format.count(len(run.rounds), 'round')}"
    tone: Tone = "bad" if run.byzantine_selected else "good"
    return KeyFigure("Attackers selected", chances, note, tone)
