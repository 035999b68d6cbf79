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

_AVERAGED_IN = 1
_LEGEND = """\
Dropped: by Multi-Krum. Rejected: before it, for what the update is.
off selected: distance of the result from the mean of the selected updates,
  in multiples of that mean's length. off honest: likewise, all honest updates.
way left: distance of the model from the optimum, 1 at the start.
plain: the same by plain averaging of all updates that are finite."""


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
    done = []
    with progress(rounds) as step:
        for each in run(settings):
            done.append(each)
            step(f"round {each.number}", each.number, rounds)
    summary = summarise(settings, done)
    show(
        f"Synthetic task of {dim} values, {clients} clients, masking: {masking}.\n"
        f"Attackers: {_attackers(done[0]) or 'none'}.",
        *_reasons(done[0]),
        _table(done),
        *_rejections(done),
        _verdict(summary),
        figures=asdict(summary),
        as_json=as_json,
    )
    if summary.byzantine_selected:
        raise typer.Exit(_AVERAGED_IN)


def _table(rounds: Sequence[DemoRound]) -> Table:
    rows = table(
        "round",
        "Dropped",
        "Rejected",
        "off selected",
        "off honest",
        "plain",
        "way left",
        "plain",
        caption=_LEGEND,
        caption_justify="left",
    )
    for each in rounds:
        numbers = (
            each.relative_difference,
            each.ostraka_error,
            each.plain_error,
            each.ostraka_left,
            each.plain_left,
        )
        rows.add_row(
            str(each.number),
            _names(each.dropped),
            _names(each.rejected),
            *(f"{number:.2g}" for number in numbers),
        )
    return rows


def _reasons(one: DemoRound) -> list[str]:
    """Why distances were measured where they were, if that was left to the machine."""
    return [f"Automatic: {each.why}." for each in one.events if isinstance(each, DistancesChosen)]


def _rejections(rounds: Sequence[DemoRound]) -> list[str]:
    """Each reason once, however many rounds it held in."""
    lines = [
        f"Client {row} was rejected: {reason}."
        for each in rounds
        for row, reason in sorted(each.rejected.items())
    ]
    return list(dict.fromkeys(lines))


def _verdict(summary: Summary) -> str:
    if summary.byzantine_selected:
        return f"Attackers were averaged in {summary.byzantine_selected} times."
    return (
        f"No attacker was averaged in. The result is the mean of the selected updates to "
        f"{summary.max_relative_difference:.1g} of its length."
    )


def _attackers(one: DemoRound) -> str:
    return ", ".join(f"{row} ({attack})" for row, attack in sorted(one.attackers.items()))


def _names(rows: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(rows))) or "-"
