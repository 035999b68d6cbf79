"""The report of a run: one page that shows what happened, and how to make it happen again.

This file has the page and what stands on top of it. The other parts:

    run_record      what a run's folder holds
    rounds          accuracy, loss, attack success and time per round; the figures behind them
    participation   who was selected, dropped, rejected or absent, and who held which examples
    leakage         what a worker learned
    comparison      the page of a comparison, which has several runs
"""

from pathlib import Path

from ostraka_lab.report import (
    Block,
    Code,
    Folded,
    Grid,
    KeyFigure,
    Notice,
    Page,
    Paragraph,
    Section,
    Stack,
    Tone,
    format,
    write_page,
)
from ostraka_lab.run_report import leakage, participation, rounds
from ostraka_lab.run_report.run_record import RunRecord, load

REPORT = "report.html"

_NOISE = 0.02  # of accuracy: a smaller difference means nothing
_UNKNOWN = "not measured"

SIMULATED = Notice(
    "SIMULATED enclave.",
    "All processes ran without a trusted execution environment. The protocol, its messages and "
    "its arithmetic are the real ones; the protection by hardware is not.",
)


def write(folder: Path) -> Path:
    """Make or replace report.html from what the folder holds now. Raises ConfigError."""
    path = folder / REPORT
    write_page(describe(load(folder)), path)
    return path


def describe(run: RunRecord) -> Page:
    return Page(
        kind="Ostraka · report of a run",
        title=_title(run),
        lead=_lead(run),
        notices=_notices(run),
        figures=_figures(run),
        sections=_sections(run),
        footer="Drawn from experiment.json, metrics.jsonl and baseline.jsonl in the run's folder.",
    )


def _sections(run: RunRecord) -> list[Section]:
    """The sections that have something to show."""
    clients = (
        participation.plot(run),
        participation.plot_partition(run),
        participation.rejections(run),
    )
    secrets = (Stack(leakage.text(run.experiment)), *leakage.plots(run), leakage.table(run))
    grids: dict[str, list[Block]] = {
        "Learning": _present(*rounds.plots(run)),
        "Clients": _present(*clients),
        "Time": _present(rounds.time_plot(run), rounds.time_table(run)),
        "Leakage": _present(*secrets),
    }
    sections = [Section(title, [Grid(blocks)]) for title, blocks in grids.items() if blocks]
    return [*sections, Section("Run it again", _once_more(run))]


def _once_more(run: RunRecord) -> list[Block]:
    command = run.experiment.command
    return [
        *_present(
            Paragraph("This command makes the run again:") if command else None,
            Code(command) if command else None,
        ),
        Folded("All settings", [rounds.settings(run)]),
        Folded("Every round in figures", [rounds.table(run)]),
    ]


def _present(*blocks: Block | None) -> list[Block]:
    return [block for block in blocks if block is not None]


def _title(run: RunRecord) -> str:
    experiment = run.experiment
    return (
        f"{experiment.model} on {experiment.dataset}, {format.count(experiment.clients, 'client')}"
    )


def _lead(run: RunRecord) -> str:
    return " ".join(filter(None, (_what_ran(run), _who_attacked(run), _how_it_went(run))))


def _notices(run: RunRecord) -> list[Notice]:
    simulated = SIMULATED if run.experiment.simulated else None
    found = [simulated, _unfinished(run), leakage.notice(run.experiment)]
    return [notice for notice in found if notice is not None]


def _figures(run: RunRecord) -> list[KeyFigure]:
    """The cards on top, the most important first."""
    leaked = leakage.figure(run.experiment)
    found = [_accuracy(run), _baseline(run), _attack_success(run), _attackers(run), leaked]
    return [figure for figure in found if figure is not None]


def _what_ran(run: RunRecord) -> str:
    experiment = run.experiment
    return (
        f"{format.count(experiment.clients, 'client')} trained {experiment.model} on "
        f"{experiment.dataset} together for {format.count(len(run.rounds), 'round')}"
        f"{f' under {experiment.rule}' if experiment.rule else ''}."
    )


def _who_attacked(run: RunRecord) -> str:
    experiment = run.experiment
    if not experiment.attacked:
        return "There was no attack."
    scale, attack = experiment.attack_scale, experiment.attack
    if scale is not None:
        attack = f"{attack}{format.SPACE}×{format.SPACE}{scale:g}"
    return f"{len(experiment.attackers)} of them attacked ({attack})."


def _how_it_went(run: RunRecord) -> str:
    if run.accuracy is None:
        return ""
    ours = f"Ostraka reached an accuracy of {_percent(run.accuracy)}"
    if run.baseline_accuracy is None:
        return f"{ours}."
    plain = _percent(run.baseline_accuracy)
    return f"{ours}; plain averaging, on the same data and seeds, {plain}."


def _unfinished(run: RunRecord) -> Notice | None:
    if run.finished:
        return None
    return Notice(
        "Unfinished.",
        f"{len(run.rounds)} of {format.count(run.experiment.rounds, 'round')} are on record. "
        "“ostraka train --resume” goes on with the run.",
    )


def _percent(part: float | None) -> str:
    return _UNKNOWN if part is None else format.percent(part, decimals=1)


def _accuracy(run: RunRecord) -> KeyFigure:
    ahead = _ahead(run)
    tone: Tone = "plain" if abs(ahead) < _NOISE else "good" if ahead > 0 else "bad"
    return KeyFigure("Accuracy", _percent(run.accuracy), "Ostraka, on test data", tone)


def _baseline(run: RunRecord) -> KeyFigure | None:
    if not run.baseline:
        return None
    tone: Tone = "bad" if _ahead(run) > _NOISE else "plain"
    plain = _percent(run.baseline_accuracy)
    return KeyFigure("Plain averaging", plain, "same data, seeds and attackers", tone)


def _ahead(run: RunRecord) -> float:
    """How much Ostraka is ahead of plain averaging in accuracy; 0 if that is not known."""
    if run.accuracy is None or run.baseline_accuracy is None:
        return 0.0
    return run.accuracy - run.baseline_accuracy


def _attack_success(run: RunRecord) -> KeyFigure | None:
    if run.attack_success is None:
        return None
    plain = run.baseline_attack_success
    note = "" if plain is None else f"plain averaging: {_percent(plain)}"
    return KeyFigure("Attack success", _percent(run.attack_success), note)


def _attackers(run: RunRecord) -> KeyFigure | None:
    if not (run.experiment.attackers and run.selective):
        return None
    chances = f"{run.byzantine_selected} of {run.byzantine_chances:,}"
    attackers = format.count(len(run.experiment.attackers), "attacker")
    note = f"{attackers}, {format.count(len(run.rounds), 'round')}"
    tone: Tone = "bad" if run.byzantine_selected else "good"
    return KeyFigure("Attackers selected", chances, note, tone)
