"""Who holds what: the training examples of each class at each client."""

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure

from ostraka.lab.report import clients_axis
from ostraka.lab.report.run_record import RunRecord
from ostraka.report import axes as axis_style
from ostraka.report.blocks import Plot
from ostraka.report.shapes import Box, rectangles
from ostraka.report.style import INK, MUTED, PAPER

_AROUND = 66.0  # points
_SHADES = 12
_NUMBERS_UP_TO = (24, 10)  # clients and classes; in smaller cells they could not be read
_PALE, _DEEP = "#eef5fa", "#08456e"
_DARK_FROM = 0.55
_CLASS_TICKS = 20


def plot(run: RunRecord) -> Plot | None:
    """A row for every client, a column for every class, and the sums beside them."""
    holdings = run.experiment.holdings
    if not holdings or not max(map(max, holdings)):
        return None

    def paint(figure: Figure) -> None:
        cells, sums = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
        clients_axis.mark(cells, len(holdings), run.experiment.attackers)
        _draw_cells(cells, holdings)
        _draw_sums(sums, [sum(row) for row in holdings])

    totals = [sum(row) for row in holdings]
    caption = (
        f"Training examples of each class at each client: the darker, the more. A client holds "
        f"{min(totals):,} to {max(totals):,} of {sum(totals):,} examples."
    )
    tall = clients_axis.height(len(holdings), around=_AROUND)
    return Plot("Who holds what", caption, paint, height=tall)


def _draw_cells(axes: Axes, holdings: tuple[tuple[int, ...], ...]) -> None:
    clients, classes = len(holdings), len(holdings[0])
    most = max(map(max, holdings))
    for colour, boxes in _by_shade(holdings, most).items():
        rectangles(axes, boxes, colour=colour)
    if clients <= _NUMBERS_UP_TO[0] and classes <= _NUMBERS_UP_TO[1]:
        _write_counts(axes, holdings, most)
    axes.set_xlim(-0.5, classes - 0.5)
    axes.set_xlabel("class")
    if classes <= _CLASS_TICKS:
        axes.set_xticks(range(classes))
    else:
        axis_style.whole_numbers(axes.xaxis, 0, classes - 1)
    axes.tick_params(axis="x", length=0)
    axes.spines[:].set_visible(False)


def _draw_sums(axes: Axes, sums: list[int]) -> None:
    bars: list[Box] = [(0, row - 0.38, total, 0.76) for row, total in enumerate(sums, 1)]
    rectangles(axes, bars, colour=MUTED)
    axes.set_xlim(0, 1.05 * max(sums))
    axes.set_xlabel("examples")
    axes.locator_params(axis="x", nbins=2)
    axes.tick_params(axis="y", labelleft=False)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def _by_shade(holdings: tuple[tuple[int, ...], ...], most: int) -> dict[str, list[Box]]:
    """Cells of one colour together. An empty cell is left out, and so is as white as paper."""
    shades = LinearSegmentedColormap.from_list("holdings", [_PALE, _DEEP])
    boxes: dict[str, list[Box]] = defaultdict(list)
    for client, row in enumerate(holdings, 1):
        for label, held in enumerate(row):
            if held:
                level = round(_SHADES * held / most) / _SHADES
                boxes[to_hex(shades(level))].append((label - 0.46, client - 0.44, 0.92, 0.88))
    return dict(boxes)


def _write_counts(axes: Axes, holdings: tuple[tuple[int, ...], ...], most: int) -> None:
    for client, row in enumerate(holdings, 1):
        for label, held in enumerate(row):
            colour = PAPER if held > _DARK_FROM * most else INK
            axes.text(
                label, client, str(held), ha="center", va="center", fontsize=7.5, color=colour
            )
