"""`ostraka demo`."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated

import click
import typer
from rich.table import Table

from ostraka.cli.output import Json, progress, show, table
from ostraka.config import DISTANCES, MASKINGS
from ostraka.demo import ATTACKS, DEFAULT_MASKING, MIXED, Demo, DemoRound, Summary, run, summarise
from ostraka.events import DistancesChosen

_AVERAGED_IN, _INTERRUPTED = 1, 130
_LEGEND = """\
Rejected: the update itself was not valid. Dropped: left out by Multi-Krum.
Distances are to the optimum, 1 at the start."""


def demo(
    *,
    clients: Annotated[int, typer.Option(help="Clients that take part.")] = 12,
    byzantine: Annotated[int, typer.Option(help="How many of them attack.")] = 3,
    dim: Annotated[int, typer.Option(help="Values in an update.")] = 20_000,
    rounds: Annotated[int, typer.Option(help="Rounds to run.")] = 5,
    attack: Annotated[
        str, typer.Option(click_type=click.Choice([*ATTACKS, MIXED]), help="What attackers do.")
    ] = MIXED,
    masking: Annotated[
        str,
        typer.Option(click_type=click.Choice(MASKINGS), help="How updates are masked."),
    ] = DEFAULT_MASKING,
    distances: Annotated[
        str,
        typer.Option(
            click_type=click.Choice([*DISTANCES, "auto"]),
            help="Who measures distances; auto: whatever is cheaper here, and why.",
        ),
    ] = "workers",
    seed: Annotated[int, typer.Option(help="Of the synthetic task; secrets are always new.")] = 0,
    as_json: Json = False,
) -> None:
    """Run rounds with attackers on a synthetic task.

    Shows who attacked, who was left out and why, that the result is the mean of the selected
    updates, and where plain averaging would have ended. The exit code is 1 if an attacker was
    ever averaged in.

    \b
    Examples:
      ostraka demo
      ostraka demo --attack sign-flip --clients 20 --byzantine 8
      ostraka demo --distances auto --rounds 2 --json
    """
    settings = Demo(clients, byzantine, dim, rounds, attack, masking, distances, seed)
    done: list[DemoRound] = []
    interrupted = False
    with progress(rounds) as step:
        try:
            for each in run(settings):
                done.append(each)
                step(f"round {each.number}", each.number, rounds)
        except KeyboardInterrupt:
            interrupted = True
    if done:
        _show(settings, done, as_json=as_json)
    if interrupted:
        raise typer.Exit(_INTERRUPTED)
    if any(each.byzantine_selected for each in done):
        raise typer.Exit(_AVERAGED_IN)


def _show(settings: Demo, done: Sequence[DemoRound], *, as_json: bool) -> None:
    summary = summarise(settings, done)
    show(
        f"{settings.clients} clients, {settings.byzantine} of them attack: "
        f"{_attackers(done[0]) or 'none'}.\n"
        f"Synthetic task, {settings.dim} values an update; masking: {settings.masking}.",
        *_reasons(done[0]),
        _table(done),
        _LEGEND,
        *_rejections(done),
        *_verdict(summary),
        figures=asdict(settings) | asdict(summary),
        as_json=as_json,
    )


def _table(rounds: Sequence[DemoRound]) -> Table:
    rows = table("round", "Rejected", "Dropped", "Ostraka", "plain averaging")
    rows.columns[3].justify = "right"
    for each in rounds:
        rows.add_row(
            str(each.number),
            _names(each.rejected),
            _names(each.dropped),
            f"{each.ostraka_left:.2g}",
            f"{each.plain_left:.2g}",
        )
    return rows


def _reasons(one: DemoRound) -> list[str]:
    """Why distances were measured where they were, if that was left to the machine."""
    return [f"Automatic: {each.why}." for each in one.events if isinstance(each, DistancesChosen)]


def _rejections(rounds: Sequence[DemoRound]) -> list[str]:
    """Each reason once, with the clients that it was given for in any round."""
    clients: dict[str, set[int]] = {}
    for each in rounds:
        for row, reason in each.rejected.items():
            clients.setdefault(str(reason), set()).add(row)
    return [f"Rejected {_names(rows)}: {reason}." for reason, rows in clients.items()]


def _verdict(summary: Summary) -> list[str]:
    averaged = summary.byzantine_selected
    first = f"Attackers averaged in: {averaged}." if averaged else "No attacker was averaged in."
    return [
        f"{first} What is left of the way to the optimum: {summary.ostraka_left:.2g} with Ostraka, "
        f"{summary.plain_left:.2g} by plain averaging of all finite updates.",
        f"The result is the mean of the selected updates to {summary.max_relative_difference:.1g} "
        "of its length.",
    ]


def _attackers(one: DemoRound) -> str:
    return ", ".join(f"{row} ({attack})" for row, attack in sorted(one.attackers.items()))


def _names(rows: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(rows))) or "-"
