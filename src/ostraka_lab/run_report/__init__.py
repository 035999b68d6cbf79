"""The report of a run: one file that shows what happened, and how to make it happen again.

run_record      what a run's folder holds
summary         what to know if nothing else
learning        accuracy, loss and attack success per round
participation   who was selected, dropped, rejected or absent
stages          where the time went
leakage         what a worker learned
partition       who held what
record_table    every round and setting in figures
"""

from pathlib import Path

from ostraka_lab.report import page
from ostraka_lab.report.blocks import Block, Code, Folded, Grid, Paragraph, Stack
from ostraka_lab.report.page import Page, Section
from ostraka_lab.run_report import leakage, learning, participation, summary, tables
from ostraka_lab.run_report.run_record import RunRecord, load

REPORT = "report.html"


def write(folder: Path) -> Path:
    """Makes or replaces report.html from what the folder holds now. Raises ConfigError."""
    path = folder / REPORT
    page.write(describe(load(folder)), path)
    return path


def describe(run: RunRecord) -> Page:
    return Page(
        kind="Ostraka · report of a run",
        title=summary.title(run),
        lead=summary.lead(run),
        notices=summary.notices(run),
        figures=summary.figures(run),
        sections=_sections(run),
        footer="Drawn from experiment.json, metrics.jsonl and baseline.jsonl in the run's folder.",
    )


def _sections(run: RunRecord) -> list[Section]:
    """Those that have something to show."""
    clients = (
        participation.plot(run),
        participation.plot_partition(run),
        participation.rejections(run),
    )
    secrets = (Stack(leakage.text(run.experiment)), *leakage.plots(run), leakage.table(run))
    grids: dict[str, list[Block]] = {
        "Learning": _present(*learning.plots(run)),
        "Clients": _present(*clients),
        "Time": _present(tables.plot(run), tables.table(run)),
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
        Folded("All settings", [tables.settings(run)]),
        Folded("Every round in figures", [tables.rounds(run)]),
    ]


def _present(*blocks: Block | None) -> list[Block]:
    return [block for block in blocks if block is not None]
