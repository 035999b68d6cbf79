"""A comparison as one table and one plot: a page, and Markdown for documents."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ostraka import files
from ostraka.config import MASKINGS
from ostraka_lab.compare import Comparison, Result
from ostraka_lab.report import Code, Column, Page, Paragraph, Plot, Section, Table, write_page
from ostraka_lab.report.drawing import BLUE, GREEN, MUTED, ORANGE, VERMILLION

_COLOURS = {
    "plain": VERMILLION,
    "multi-krum": MUTED,
    "exact": BLUE,
    "gaussian": GREEN,
    "none": ORANGE,
}
_BAR = 0.8  # of the room that an attack has
_INCHES_A_BAR = 0.17
_PUBLIC = 0o644

_EXPLANATION = (
    "Accuracy on test data after the last round; in brackets, the share of the attackers' updates "
    "that were averaged. Where Multi-Krum itself is misled, so is Ostraka: it applies the same "
    "rule, to updates that only the enclave sees."
)


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
    """A row for each attack: its name, and the result of each defence."""
    found = {(each.attack, each.defence): each for each in results}
    return [
        [attack, *(_cell(found.get((attack, defence))) for defence in comparison.defences)]
        for attack in comparison.attacks
    ]


def _markdown(comparison: Comparison, results: Sequence[Result]) -> str:
    heads = ["attack", *headings(comparison)]
    lines = [heads, ["---", *("---:" for _ in comparison.defences)], *rows(comparison, results)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table}\n\n{_EXPLANATION}\n\nMade by `{comparison.command}`.\n"


def _page(comparison: Comparison, results: Sequence[Result]) -> Page:
    experiment = comparison.experiment
    columns = [Column("attack"), *(Column(name, number=True) for name in headings(comparison))]
    bars = len(comparison.attacks) * (len(comparison.defences) + 1)
    plot = Plot(
        "Accuracy after the last round",
        "Each attack against each defence, on the same data with the same seeds.",
        lambda figure: _paint(figure, comparison, results),
        height=1 + _INCHES_A_BAR * bars,
    )
    return Page(
        kind="Ostraka · comparison",
        title=f"Defences on {experiment.dataset}",
        lead=(
            f"{experiment.clients} clients, of which {experiment.byzantine} attack, train "
            f"{experiment.architecture} for {experiment.rounds} rounds."
        ),
        sections=[
            Section(
                "Results",
                [Paragraph(_EXPLANATION), Table(columns, rows(comparison, results)), plot],
            ),
            Section("Run it again", [Code(comparison.command)]),
        ],
    )


def _paint(figure: Figure, comparison: Comparison, results: Sequence[Result]) -> None:
    axes = figure.subplots()
    places, width = np.arange(len(comparison.attacks)), _BAR / len(comparison.defences)
    found = {(each.attack, each.defence): each.accuracy or 0.0 for each in results}
    for index, defence in enumerate(comparison.defences):
        heights = [100 * found.get((attack, defence), 0.0) for attack in comparison.attacks]
        offsets = places - _BAR / 2 + (index + 0.5) * width
        axes.barh(offsets, heights, width, label=_heading(defence), color=_COLOURS.get(defence))
    axes.set_yticks(places, comparison.attacks)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy, %")
    figure.legend(loc="outside upper left", ncols=2)


def _heading(defence: str) -> str:
    return f"Ostraka {defence}" if defence in MASKINGS else defence


def _cell(result: Result | None) -> str:
    if result is None or result.accuracy is None:
        return "-"
    success = result.attack_success
    backdoor = "" if success is None else f", backdoor {100 * success:.0f} %"
    share = 100 * result.selected / max(1, result.sent)
    return f"{100 * result.accuracy:.1f} % ({share:.0f} %{backdoor})"
