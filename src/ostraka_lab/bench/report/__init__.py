"""The page of a folder of results.

words      numbers as people read them
targets    what we want, and what was reached
peers      the same updates through everybody
paper      the paper's figures and its headline, drawn by paper_plots
scale      how cost grows
leakage    what one worker learns
check      has anything become slower
machines   what it was measured on
"""

from pathlib import Path

from ostraka_lab.bench import results
from ostraka_lab.bench.process import Figures
from ostraka_lab.bench.report import check, leakage, paper, peers, scale, targets
from ostraka_lab.report import page
from ostraka_lab.report.page import Block, Code, KeyFigure, Page, Paragraph, Section

_LEAD = (
    "Every comparison is a ratio inside one run: all that is compared ran in turn, in every "
    "repetition. Figures are medians; spread is from the fastest to the slowest run, as a part of "
    "the median. Below each section is the command that makes it again."
)


def write(folder: Path) -> Path:
    """Draw the page anew from all results in the folder. Raises ConfigError."""
    path = folder / results.REPORT
    page.write(describe(results.load(folder)), path)
    return path


def describe(found: dict[str, Figures]) -> Page:
    return Page(
        kind="Ostraka · benchmarks",
        title="What it costs",
        lead=_LEAD,
        figures=_key_figures(found),
        sections=[
            *([Section("Targets", wanted)] if (wanted := targets.blocks(found)) else []),
            *(_section(name, found[name]) for name in results.BENCHMARKS if name in found),
            Section("Machine", [check.table(found)]),
        ],
        footer="Drawn from the JSON files beside this page.",
    )


_TITLES = {
    "peers": "Beside its peers",
    "paper": "The paper's figures",
    "scale": "How cost grows",
    "leakage": "What one worker learns",
    "check": "Has anything become slower?",
}
_BLOCKS = {
    "peers": peers.blocks,
    "paper": paper.blocks,
    "scale": scale.blocks,
    "leakage": leakage.blocks,
    "check": check.blocks,
}


def _section(name: str, figures: Figures) -> Section:
    blocks: list[Block] = _BLOCKS[name](figures)
    again = Paragraph(f"Measured {figures.get('measured', '')}, by:")
    return Section(_TITLES[name], [*blocks, again, Code(figures.get("command", ""))])


def _key_figures(found: dict[str, Figures]) -> list[KeyFigure]:
    figures: list[KeyFigure] = []
    if "peers" in found:
        figures += peers.key_figures(found["peers"])
    if "paper" in found:
        figures += paper.key_figures(found["paper"])
    return figures
