"""A comparison as one table and one plot: a page, and Markdown for documents."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ostraka import files
from ostraka.config import MASKINGS
from ostraka_lab.baselines import PLAIN
from ostraka_lab.compare import Comparison, Result, Spread
from ostraka_lab.report import (
    Block,
    Code,
    Column,
    Page,
    Paragraph,
    Plot,
    Section,
    Table,
    write_page,
)
from ostraka_lab.report.drawing import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
)

WORST = "worst case"

_COLOURS = {PLAIN: VERMILLION, "multi-krum": MUTED, "exact": BLUE, "gaussian": GREEN}
_OTHER_COLOURS = (SKY, ORANGE, PURPLE, YELLOW, GREEN, INK)
_BAR = 0.8  # of the room that an attack has
_INCHES_A_BAR, _INCHES_A_LINE = 0.17, 0.2
_ABREAST = 36  # letters of names that a line of the legend takes
_PUBLIC = 0o644


def write(comparison: Comparison) -> Path:
    """Write compare.html and table.md to the comparison's folder. Gives the path of the page."""
    results = comparison.results()
    path = comparison.root / "compare.html"
    write_page(_page(comparison, results), path)
    text = _markdown(comparison, results).encode()
    files.write(comparison.root / "table.md", [text], mode=_PUBLIC)
    return path


def headings(comparison: Comparison) -> list[str]:
    return [_heading(defence) for defence in comparison.defences]


def rows(comparison: Comparison, results: Sequence[Result]) -> list[list[str]]:
    """A row for each attack, its name and what each defence makes of it, and the worst case."""
    table = []
    for attack in comparison.attacks:
        found = [comparison.spread(results, attack, each) for each in comparison.defences]
        table.append([attack, *map(_percent, found)])
        successes = [_success(results, attack, each) for each in comparison.defences]
        if any(successes):
            table.append([f"{attack}: its success", *(each or "-" for each in successes)])
    if len(comparison.attacks) > 1:
        worst = [comparison.worst(results, defence) for defence in comparison.defences]
        table.append([WORST, *map(_percent, worst)])
    return table


def spreads(comparison: Comparison, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The figures of the table. The worst case of a defence names the attack that is its worst."""
    return [
        {"defence": defence, "worst_case": worst, **asdict(spread)}
        for defence in comparison.defences
        for worst, spread in (
            *((False, comparison.spread(results, each, defence)) for each in comparison.attacks),
            (True, comparison.worst(results, defence)),
        )
        if spread is not None
    ]


def explanation(comparison: Comparison) -> str:
    """What the table shows."""
    several, worst = len(comparison.seeds) > 1, len(comparison.attacks) > 1
    said = ["Accuracy on test data after the last round"]
    said[0] += f": the mean of {len(comparison.seeds)} seeds, and their range." if several else "."
    if worst:
        by_seed = ", seed by seed" if several else ""
        said.append(
            f"The worst case is that of the attack that does most harm{by_seed}; none is no attack."
        )
    if any(each in MASKINGS for each in comparison.defences):
        rule = comparison.experiment.composition.plain
        said.append(
            f"Ostraka runs {rule}, on updates that only the enclave sees; all others run in the "
            "clear."
        )
    else:
        said.append("All defences run in the clear.")
    return " ".join(said)


def _markdown(comparison: Comparison, results: Sequence[Result]) -> str:
    heads = ["attack", *headings(comparison)]
    lines = [heads, ["---", *("---:" for _ in comparison.defences)], *rows(comparison, results)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table}\n\n{explanation(comparison)}\n\nMade by `{comparison.command}`.\n"


def _page(comparison: Comparison, results: Sequence[Result]) -> Page:
    experiment = comparison.experiment
    columns = [Column("attack"), *(Column(name, number=True) for name in headings(comparison))]
    groups = len(comparison.attacks) + (len(comparison.attacks) > 1)
    bars = groups * (len(comparison.defences) + 1)
    several = len(comparison.seeds) > 1
    plot = Plot(
        "Accuracy after the last round",
        "Each attack against each defence, on the same data with the same seeds."
        + (" Lines reach from the lowest to the highest of all seeds." if several else ""),
        lambda figure: _paint(figure, comparison, results),
        height=1 + _INCHES_A_BAR * bars + _INCHES_A_LINE * _legend_lines(comparison),
    )
    blocks: list[Block] = [
        Paragraph(explanation(comparison)),
        Table(columns, rows(comparison, results)),
        plot,
    ]
    return Page(
        kind="Ostraka · comparison",
        title=f"Defences on {experiment.dataset}",
        lead=(
            f"{experiment.clients} clients, of which {experiment.byzantine} attack, train "
            f"{experiment.architecture} for {experiment.rounds} rounds."
        ),
        sections=[
            Section("Results", blocks),
            Section("The attackers' part", _attackers_part(comparison, columns, results)),
            Section("Run it again", [Code(comparison.command)]),
        ],
    )


def _attackers_part(
    comparison: Comparison, columns: Sequence[Column], results: Sequence[Result]
) -> list[Block]:
    """What the attackers had of the aggregates."""
    text = (
        "How much of the aggregates was the attackers', on average over all rounds. A rule of "
        "weights may give them a small part, which does little harm. Ostraka publishes no weights, "
        "and column-wise rules have none: there, the share of the attackers' updates that had any "
        "part is in brackets."
    )
    table = [
        [attack, *(_part(results, attack, each) for each in comparison.defences)]
        for attack in comparison.attacks
    ]
    return [Paragraph(text), Table(columns, table)]


def _part(results: Sequence[Result], attack: str, defence: str) -> str:
    of = [each for each in results if (each.attack, each.defence) == (attack, defence)]
    shares = [each.attackers_share for each in of if each.attackers_share is not None]
    sent = sum(each.sent for each in of)
    if not sent:
        return "-"
    if shares:
        return f"{100 * sum(shares) / len(shares):.0f} %"
    return f"({100 * sum(each.selected for each in of) / sent:.0f} %)"


def _paint(figure: Figure, comparison: Comparison, results: Sequence[Result]) -> None:
    axes = figure.subplots()
    attacks, defences = list(comparison.attacks), comparison.defences
    groups = [*attacks, WORST] if len(attacks) > 1 else attacks
    places, width = np.arange(len(groups)), _BAR / len(defences)
    colours = _colours(defences)
    for index, defence in enumerate(defences):
        found = [comparison.spread(results, attack, defence) for attack in attacks]
        if len(attacks) > 1:
            found.append(comparison.worst(results, defence))
        offsets = places - _BAR / 2 + (index + 0.5) * width
        means = [100 * each.mean if each else 0.0 for each in found]
        axes.barh(offsets, means, width, label=_heading(defence), color=colours[defence])
        if len(comparison.seeds) > 1:
            # The mean of equal numbers may differ from them by a rounding error.
            below = [max(0, 100 * (each.mean - each.least)) if each else 0 for each in found]
            above = [max(0, 100 * (each.most - each.mean)) if each else 0 for each in found]
            axes.errorbar(means, offsets, xerr=[below, above], fmt="none", ecolor=INK, lw=0.9)
    axes.set_yticks(places, groups)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy, %")
    lines = _legend_lines(comparison)
    figure.legend(loc="outside upper left", ncols=-(-len(defences) // lines))


def _legend_lines(comparison: Comparison) -> int:
    """How many lines the legend takes: long names stand one below the other."""
    names = headings(comparison)
    columns = max(1, min(len(names), _ABREAST // max(map(len, names))))
    return -(-len(names) // columns)


def _colours(defences: Sequence[str]) -> dict[str, str]:
    others = cycle(_OTHER_COLOURS)
    return {each: _COLOURS.get(each) or next(others) for each in defences}


def _heading(defence: str) -> str:
    if defence in MASKINGS:
        return f"Ostraka {defence}"
    return "plain averaging" if defence == PLAIN else defence


def _success(results: Sequence[Result], attack: str, defence: str) -> str:
    """How often a backdoor works; empty if there is none."""
    of = [each for each in results if (each.attack, each.defence) == (attack, defence)]
    found = [each.attack_success for each in of if each.attack_success is not None]
    return _percent(Spread.of(found, attack)) if found else ""


def _percent(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    mean = f"{100 * spread.mean:.1f} %"
    if spread.seeds == 1:
        return mean
    return f"{mean} ({100 * spread.least:.1f}–{100 * spread.most:.1f})"
