"""A comparison as a leader board, and as a table and a plot for every scenario.

All of it is one page; Markdown has the tables, for documents.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ostraka import files
from ostraka.config import MASKINGS
from ostraka_lab.baselines import PLAIN
from ostraka_lab.compare import (
    Comparison,
    Result,
    Scenario,
    Spread,
    checks,
    within,
    write_json,
)
from ostraka_lab.report import (
    Block,
    Code,
    Column,
    Notice,
    Page,
    Paragraph,
    Plot,
    Section,
    Table,
    drawing,
    format,
    write_page,
)
from ostraka_lab.report.drawing import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
)
from ostraka_lab.run_report import SIMULATED, leaders

WORST = "worst case"

_COLOURS = {PLAIN: VERMILLION, "multi-krum": MUTED, "exact": BLUE, "gaussian": GREEN}
_OTHER_COLOURS = (SKY, ORANGE, PURPLE, YELLOW, GREEN, INK)
_BAR = 0.8  # of the room that an attack has
_BARS = 6  # defences that can be told apart by colour
_INCHES_A_ROW, _MAP_INCHES = 0.3, 1.8
_INCHES_A_BAR, _INCHES_A_LINE = 0.17, 0.2
_FIGURE_SIZE = 8.0  # points, of figures beside bars and in cells
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


def publish(comparison: Comparison, name: Path) -> list[Path]:
    """Write NAME.md and NAME.json, for documents and for programs. Gives both paths.

    The figures of single runs stay behind: the tables say what is needed to make them again.
    """
    results = comparison.results()
    document, data = (name.with_name(name.name + ending) for ending in (".md", ".json"))
    head = f"# {_title(comparison)}\n\n{_lead(comparison)}\n\n"
    parts = [f"\n## The attackers' part\n\n{_PART}\n"]
    parts += [each.markdown() for each in _part_tables(comparison, results)]
    text = head + _markdown(comparison, results) + "\n".join(parts)
    files.write(document, [text.encode()], mode=_PUBLIC)
    write_json(data, figures(comparison, results))
    return [document, data]


def figures(comparison: Comparison, results: Sequence[Result]) -> dict[str, Any]:
    """What the tables show, for programs."""
    return {
        "command": comparison.command,
        "spreads": spreads(comparison, results),
        "leaders": leaders.figures(comparison, results),
        "shares": _shares(comparison, results),
        "checks": [asdict(check) for check in checks.load(comparison)],
    }


def headings(comparison: Comparison) -> list[str]:
    return [_heading(defence) for defence in comparison.defences]


def rows(comparison: Comparison, results: Sequence[Result]) -> list[list[str]]:
    """A row for each attack, its name and what each defence makes of it, and the worst case.

    results: of one scenario.
    """
    table = []
    for attack in comparison.attacks:
        found = [comparison.spread(results, attack, each) for each in comparison.defences]
        table.append([attack, *map(leaders.percent, found)])
        successes = [_success(results, attack, each) for each in comparison.defences]
        if any(successes):
            table.append([f"{attack}: its success", *(each or "-" for each in successes)])
    if len(comparison.attacks) > 1:
        worst = [comparison.worst(results, defence) for defence in comparison.defences]
        table.append([WORST, *map(leaders.percent, worst)])
    return table


def spreads(comparison: Comparison, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The figures of the tables. The worst case of a defence names the attack that is its worst."""
    found = []
    for scenario in comparison.scenarios:
        here = within(results, scenario)
        found += [
            {**asdict(scenario), "defence": defence, "worst_case": worst, **asdict(spread)}
            for defence in comparison.defences
            for worst, spread in (
                *((False, comparison.spread(here, each, defence)) for each in comparison.attacks),
                (True, comparison.worst(here, defence)),
            )
            if spread is not None
        ]
    return found


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
    if comparison.worst_seeds > len(comparison.seeds):
        said.append(
            f"Cells with a range, and the worst case, have {comparison.worst_seeds} seeds: those "
            "of every defence's worst attack."
        )
    if not all(
        comparison.stands(*each) for each in product(comparison.scenarios, comparison.defences)
    ):
        said.append("A dash is for a rule that needs more clients.")
    return " ".join(said)


def _markdown(comparison: Comparison, results: Sequence[Result]) -> str:
    parts = []
    if _has_board(comparison):
        parts.append(leaders.table(comparison, results).markdown())
    for scenario in comparison.scenarios:
        caption = _caption(comparison, scenario)
        parts.append(_table(comparison, within(results, scenario), caption).markdown())
    notices = [*_notices(comparison), *_checks(comparison)]
    parts += [explanation(comparison) + "\n", *(f"{each.title} {each.text}\n" for each in notices)]
    return "\n".join([*parts, f"Made by `{comparison.command}`.\n"])


def _table(comparison: Comparison, results: Sequence[Result], caption: str = "") -> Table:
    return Table(_columns(comparison), rows(comparison, results), caption)


def _has_board(comparison: Comparison) -> bool:
    return len(comparison.defences) > 1 and len(comparison.attacks) > 1


def _page(comparison: Comparison, results: Sequence[Result]) -> Page:
    board = [Section("Leader board", leaders.blocks(comparison, results))]
    return Page(
        kind="Ostraka · comparison",
        title=_title(comparison),
        lead=_lead(comparison),
        notices=_notices(comparison),
        sections=[
            *(board if _has_board(comparison) else []),
            Section("Results", _results(comparison, results)),
            Section("The attackers' part", _attackers_part(comparison, results)),
            *([Section("Spot checks", found)] if (found := _checks(comparison)) else []),
            Section("Run it again", [Code(comparison.command)]),
        ],
    )


def _title(comparison: Comparison) -> str:
    return f"Defences on {comparison.experiment.dataset}"


def _lead(comparison: Comparison) -> str:
    experiment = comparison.experiment
    attackers = " or ".join(map(str, comparison.attackers or (experiment.byzantine,)))
    return (
        f"{experiment.clients} clients, of which {attackers} attack, train "
        f"{experiment.architecture} for {experiment.rounds} rounds."
    )


def _notices(comparison: Comparison) -> list[Notice]:
    """That the services of Ostraka ran without protection by hardware, where they ran at all."""
    served = [_heading(each) for each in comparison.defences if each in MASKINGS]
    served += ["the spot checks"] if checks.load(comparison) else []
    if not served:
        return []
    return [Notice(SIMULATED.title, f"{SIMULATED.text} This concerns {format.listed(served)}.")]


def _results(comparison: Comparison, results: Sequence[Result]) -> list[Block]:
    """A table and a plot for every scenario."""
    blocks: list[Block] = [Paragraph(explanation(comparison))]
    for scenario in comparison.scenarios:
        here = within(results, scenario)
        blocks += [
            _table(comparison, here, _caption(comparison, scenario)),
            _plot(comparison, here, scenario),
        ]
    return blocks


def _caption(comparison: Comparison, scenario: Scenario) -> str:
    return str(scenario) if len(comparison.scenarios) > 1 else ""


def _plot(comparison: Comparison, results: Sequence[Result], scenario: Scenario) -> Plot:
    """Bars, or where there are many defences a map, of which each cell is a run."""
    groups = len(comparison.attacks) + (len(comparison.attacks) > 1)
    caption = _caption(comparison, scenario)
    title = "Accuracy after the last round" + (f": {caption}" if caption else "")
    text = "Each attack against each defence, on the same data with the same seeds."
    if len(comparison.defences) > _BARS:
        return Plot(
            title,
            f"{text} Figures are percentages: the stronger the colour, the higher.",
            lambda figure: _paint_map(figure, comparison, results),
            height=_MAP_INCHES + _INCHES_A_ROW * groups,
        )
    if _ranges(results):
        text += " Thin lines reach from the lowest to the highest of all seeds."
    bars = groups * (len(comparison.defences) + 1)
    return Plot(
        title,
        text,
        lambda figure: _paint(figure, comparison, results),
        height=1 + _INCHES_A_BAR * bars + _INCHES_A_LINE * _legend_lines(comparison),
    )


def _checks(comparison: Comparison) -> list[Notice]:
    """What the spot checks found. Empty if there are none yet."""
    done = checks.load(comparison)
    if not done:
        return []
    worst, bad = max(done, key=lambda each: each.difference), [e for e in done if not e.equal]
    cells = "; ".join(each.cell for each in done)
    if bad:
        said = "; ".join(map(str, bad))
        return [
            Notice("Spot checks failed.", f"The services came to another model: {said}.", "bad")
        ]
    text = (
        f"The first {worst.rounds} rounds of {len(done)} cells, drawn at random, were run again "
        "through the services, with exact masks. In any one round, their models differ from those "
        f"in the clear by {worst.difference:.0e} of their length at most; {checks.ALLOWED:.0e} is "
        f"allowed. {_in_a_row(done)}These were: {cells}."
    )
    return [Notice("Spot checks passed.", text, "good")]


def _in_a_row(done: Sequence[checks.Check]) -> str:
    """How far models were apart after all rounds of a check. Empty for checks of before."""
    if not (drifts := [each.drift for each in done if each.drift is not None]):
        return ""
    text = f"After all rounds in a row it is {max(drifts):.0e} at most. "
    if unmasked := [each.unmasked for each in done if each.unmasked is not None]:
        text += (
            f"Beyond {checks.ALLOWED:.0e} that has to be what training makes of the rounding of "
            f"masks: without masks, {len(unmasked)} of the cells were run once more, and their "
            f"models are {_tiny(max(unmasked))} apart at most. "
        )
    return text


def _tiny(distance: float) -> str:
    return f"{distance:.0e}" if distance else "0"


_PART = (
    "How much of the aggregates was the attackers', on average over all rounds. A rule of weights "
    "may give them a small part, which does little harm. Ostraka publishes no weights, and "
    "column-wise rules have none: there, the share of the attackers' updates that had any part is "
    "in brackets."
)


def _attackers_part(comparison: Comparison, results: Sequence[Result]) -> list[Block]:
    """What the attackers had of the aggregates."""
    return [Paragraph(_PART), *_part_tables(comparison, results)]


def _part_tables(comparison: Comparison, results: Sequence[Result]) -> list[Table]:
    """One for every scenario."""
    tables = []
    for scenario in comparison.scenarios:
        here = within(results, scenario)
        rows = [
            [attack, *(_part(here, attack, each) for each in comparison.defences)]
            for attack in comparison.attacks
        ]
        tables.append(Table(_columns(comparison), rows, _caption(comparison, scenario)))
    return tables


def _shares(comparison: Comparison, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The attackers' part for programs; only where rules have weights that are known."""
    found = []
    for each in product(comparison.scenarios, comparison.defences, comparison.attacks):
        scenario, defence, attack = each
        shares = _known_shares(within(results, scenario), attack, defence)
        if shares:
            names = {"defence": defence, "attack": attack}
            found.append({**asdict(scenario), **names, "share": statistics.fmean(shares)})
    return found


def _columns(comparison: Comparison) -> list[Column]:
    return [Column("attack"), *(Column(name, number=True) for name in headings(comparison))]


def _part(results: Sequence[Result], attack: str, defence: str) -> str:
    of = [each for each in results if (each.attack, each.defence) == (attack, defence)]
    shares, sent = _known_shares(results, attack, defence), sum(each.sent for each in of)
    if not sent:
        return "-"
    if shares:
        return f"{100 * sum(shares) / len(shares):.0f} %"
    return f"({100 * sum(each.selected for each in of) / sent:.0f} %)"


def _known_shares(results: Sequence[Result], attack: str, defence: str) -> list[float]:
    of = [each for each in results if (each.attack, each.defence) == (attack, defence)]
    return [each.attackers_share for each in of if each.sent and each.attackers_share is not None]


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
        for offset, each in zip(offsets, found, strict=True):
            _write_value(axes, offset, each)
    axes.set_yticks(places, groups)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy, %")
    lines = _legend_lines(comparison)
    figure.legend(loc="outside upper left", ncols=-(-len(defences) // lines))


def _write_value(axes: Axes, height: float, value: Spread | None) -> None:
    """Write a value beside its bar, with a line from the lowest to the highest of its seeds."""
    if value is None:
        return
    if value.seeds > 1:
        # On a bar of any colour, the thin line is seen against the thick one.
        for colour, width in ((PAPER, 2.7), (INK, 0.9)):
            ends = [100 * value.least, 100 * value.most]
            axes.plot(ends, [height] * 2, color=colour, linewidth=width)
    axes.annotate(
        leaders.percent(value),
        (100 * max(value.mean, value.most), height),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=_FIGURE_SIZE,
    )


def _ranges(results: Sequence[Result]) -> bool:
    """Whether anything was run with several seeds."""
    return len({each.seed for each in results}) > 1


def _paint_map(figure: Figure, comparison: Comparison, results: Sequence[Result]) -> None:
    """Accuracies as shades, with their figures: what fails is faint."""
    axes = figure.subplots()
    attacks, defences = list(comparison.attacks), comparison.defences
    found = [
        [comparison.spread(results, each, defence) for defence in defences] for each in attacks
    ]
    if len(attacks) > 1:
        attacks.append(WORST)
        found.append([comparison.worst(results, defence) for defence in defences])
    means = {
        (column, row): each.mean
        for row, line in enumerate(found)
        for column, each in enumerate(line)
        if each
    }
    drawing.shaded(
        axes, (((x - 0.48, y - 0.46, 0.96, 0.92), mean) for (x, y), mean in means.items())
    )
    for place, mean in means.items():
        axes.text(
            *place,
            f"{100 * mean:.0f}",
            ha="center",
            va="center",
            color=drawing.ink_on(mean),
            fontsize=_FIGURE_SIZE,
        )
    axes.set_xlim(-0.5, len(defences) - 0.5)
    axes.set_ylim(len(attacks) - 0.5, -0.5)
    axes.set_xticks(range(len(defences)), headings(comparison), rotation=45, ha="right")
    axes.set_yticks(range(len(attacks)), attacks)
    axes.grid(visible=False)


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
    return leaders.percent(Spread.of(found, attack)) if found else ""
