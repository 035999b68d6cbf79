"""`ostraka demo`."""

import shlex
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import click
import typer
from rich.table import Table

from ostraka.cli.exit_codes import FAILED, INTERRUPTED
from ostraka.cli.output import Json, progress, show, table
from ostraka.config import DISTANCES, MASKINGS
from ostraka.demo.attacks import ATTACKS, MIXED
from ostraka.demo.review import DemoRound, Summary, summarise
from ostraka.demo.run import run
from ostraka.demo.settings import AUTO, DEFAULT_MASKING, Demo, resolve
from ostraka.errors import RoundFailed, ServiceError
from ostraka.services import federation_file
from ostraka.services.folder import FEDERATION

_SIMULATED = (
    "No TEE protects this run: its enclave is simulated, and this machine could read every update."
)
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
            click_type=click.Choice([*DISTANCES, AUTO]),
            help="Who measures distances; auto: whatever is cheaper here, and why.",
        ),
    ] = "workers",
    seed: Annotated[int, typer.Option(help="Of the synthetic task; secrets are always new.")] = 0,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A new folder, to keep configs, logs and models in."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a federation on this machine, with attackers in it.

    Starts one enclave (simulated), two workers and the clients, each as a process of its own, runs
    all rounds on a synthetic task, and ends them. Shows who attacked, who was left out and why,
    that the result is the mean of the selected updates, and where plain averaging would have ended.
    The exit code is 1 if an attacker was ever averaged in.

    \b
    Examples:
      ostraka demo
      ostraka demo --attack sign-flip --clients 20 --byzantine 8
      ostraka demo --distances auto --rounds 2 --json
      ostraka demo --keep look-inside
    """
    asked = Demo(clients, byzantine, dim, rounds, attack, masking, distances, seed)
    settings, why = resolve(asked)
    done: list[DemoRound] = []
    interrupted = False
    with progress(rounds) as step:
        try:
            with closing(run(settings, keep=keep, tell=step)) as each_round:
                for each in each_round:
                    done.append(each)
        except KeyboardInterrupt:
            interrupted = True
        except (ServiceError, RoundFailed) as failed:
            raise ServiceError(f"{failed}\n{_logs(keep)}") from None
    if done:
        _show(settings, why, done, keep, as_json=as_json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if any(each.byzantine_selected for each in done):
        raise typer.Exit(FAILED)


def _show(
    settings: Demo, why: str | None, done: Sequence[DemoRound], keep: Path | None, *, as_json: bool
) -> None:
    summary = summarise(settings, done)
    show(
        *_cast(settings, done),
        *([f"Automatic: {why}."] if why else []),
        _table(done),
        _LEGEND,
        *_rejections(done),
        *_verdict(summary),
        *([_further(keep)] if keep else []),
        figures=asdict(settings) | asdict(summary) | {"kept": str(keep) if keep else None},
        as_json=as_json,
    )


def _cast(settings: Demo, done: Sequence[DemoRound]) -> list[str]:
    workers = f"{settings.workers} workers" if settings.workers else "no workers"
    # Where a worker is too slow, the enclave finishes by itself: that is to be seen.
    measured = dict.fromkeys(" and ".join(each.workers) or "the enclave itself" for each in done)
    return [
        f"1 enclave, {workers} and {settings.clients} clients, each a process of its own. "
        f"Attackers: {_attackers(done[0]) or 'none'}.",
        f"Synthetic task, {settings.dim} values an update; masking: {settings.masking}; "
        f"distances are measured by {', then by '.join(measured)}.",
        *([_SIMULATED] if done[0].simulated else []),
    ]


def _logs(keep: Path | None) -> str:
    return f"All logs are in {keep / 'logs'}." if keep else "To keep all logs: --keep FOLDER"


def _further(keep: Path) -> str:
    """Commands that work after everything has ended."""
    address = federation_file.load(keep / FEDERATION).enclave.listen
    config, evidence = (shlex.quote(str(keep / name)) for name in (FEDERATION, "evidence.bin"))
    return f"""\
Kept in {keep}: federation.toml, policy.toml, keys/, logs/, models/ and the enclave's sealed state/.
What its enclave would prove itself by:
  ostraka enclave evidence --config {config} --unsafe-simulate --out {evidence}
  ostraka attest show {evidence}
Start the enclave again, to go on where it stopped, and ask it in another terminal:
  ostraka enclave run --config {config} --unsafe-simulate
  ostraka status --enclave {address}"""


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
