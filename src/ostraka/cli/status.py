"""`ostraka status`."""

import json
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ostraka import federation_file
from ostraka.cli.output import Json, show, table
from ostraka.dashboard.told import doing
from ostraka.errors import INTERRUPTED, ConfigError, ServiceError
from ostraka.files import read_private
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2 import StatusRequest
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

TOKEN_FILE = "status.token"  # as the service names it # noqa: S105

_PATIENCE_S = 10.0
_EVERY_S = 1.0
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 (looked up, not bound)


def status(
    *,
    config: Annotated[
        Path | None,
        typer.Option(help="The service's federation.toml, on its machine: shows names as well."),
    ] = None,
    address: Annotated[
        str | None, typer.Option("--enclave", help="HOST:PORT of the service.")
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM file with the certificate authority of the service.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show where a federation stands: the round, who is in, who was refused and why.

    Strangers are shown numbers. The operator reads a token in the service's state folder. With
    --watch it goes on when the service is away or restarts; the same as a page is: ostraka
    dashboard.

    \b
    Examples:
      ostraka status --config federation.toml
      ostraka status --config federation.toml --watch
      ostraka status --enclave 127.0.0.1:7420 --json
    """
    file = federation_file.load(config) if config else None
    if address is None:
        if file is None:
            raise ConfigError("give --config, --enclave, or both")
        address = _reachable(file.enclave.listen)
    if watch and as_json:
        raise ConfigError("--watch is for people: leave out --json")
    service = _Service(address, tls_ca, file.state if file else None)
    if watch:
        _watch(service)
        return
    figures = service.ask()
    show(_table(figures), figures=figures, as_json=as_json)


@dataclass(frozen=True)
class _Service:
    """Where the status is asked for. state: the folder with the operator's token, if that is here.

    The token is read each time: a service that restarts makes another one.
    """

    address: str
    tls_ca: Path | None
    state: Path | None

    def ask(self) -> dict[str, Any]:
        """Raises ServiceError, and ConfigError if there is no token to be read."""
        request = StatusRequest(token=_token(self.state) if self.state else "")
        with dial(self.address, tls_ca=self.tls_ca) as channel:
            try:
                reply = EnclaveStub(channel).GetStatus(request, timeout=_PATIENCE_S)
            except grpc.RpcError as failed:
                raise ServiceError(f"{self.address} does not answer: {failed.details()}") from None
        figures: dict[str, Any] = json.loads(reply.json)
        return figures


def _watch(service: _Service) -> None:
    """Show the status again and again until the user ends it, also while the service is away.

    Without a terminal, a line is printed whenever it does something else.
    """
    console, figures, said = Console(highlight=False), service.ask(), ""
    screen = Live(console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), screen if console.is_terminal else nullcontext():
        while True:
            away = ""
            try:
                figures = service.ask()
            except (ServiceError, ConfigError) as failed:
                away = f"connection lost, trying again: {failed}"
            if console.is_terminal:
                screen.update(Group(Text(away, style="bold red"), _table(figures)), refresh=True)
            doing_now = away or f"round {figures['round']}: {_doing(figures, timed=False)}"
            if doing_now != said and not console.is_terminal:
                console.print(doing_now, soft_wrap=True, markup=False)
            said = doing_now
            time.sleep(_EVERY_S)
    raise typer.Exit(INTERRUPTED)


def _table(figures: dict[str, Any]) -> Table:
    """Show what there is to be seen: rows without a value, and long histories, are for --json."""
    shown = table("What", "Now")
    shown.add_row("doing", _doing(figures))
    for name, value in figures.items():
        words = _SAID.get(name, _words)(value)
        if words:
            shown.add_row(name.replace("_", " "), words)
    return shown


def _reachable(listen: str) -> str:
    """Return where a service of this machine is reached that listens there."""
    host, _, port = listen.rpartition(":")
    return f"{_LOOPBACK.get(host, host)}:{port}"


def _token(state: Path) -> str:
    try:
        return read_private(state / TOKEN_FILE)
    except ConfigError as unreadable:
        raise ConfigError(f"{unreadable}: is the service running, and as this user?") from None


def _doing(figures: dict[str, Any], *, timed: bool = True) -> str:
    """Say what the service waits for. Strangers are told how many, and not who."""
    return doing(
        str(figures["phase"]),
        figures["awaited"],
        quorate=bool(figures.get("quorum_reached")),
        left_s=figures["deadline_in_s"] if timed else None,
        shards=figures.get("shards_missing", ()),
    )


def _reported(rounds: list[dict[str, float]]) -> str:
    """Say what clients have reported in the last round that published anything of it."""
    if not rounds:
        return ""
    means = dict(rounds[-1])
    number, clients = means.pop("round"), means.pop("clients")
    said = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    return f"{said} (round {number}, the mean of {clients} clients)"


def _moment(since_1970_s: float) -> str:
    return datetime.fromtimestamp(since_1970_s, UTC).isoformat(" ", "seconds")


def _words(value: Any) -> str:
    """Write a value for people; nothing for what is empty."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_words(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _records(workers: dict[str, dict[str, int]] | int) -> str:
    """Say how each worker has done. Strangers are told how many there are."""
    if isinstance(workers, int):
        return ""
    return "\n".join(
        f"{worker}: " + ", ".join(f"{count} {what}" for what, count in record.items())
        for worker, record in workers.items()
    )


_SAID: dict[str, Callable[[Any], str]] = {
    "metrics": _reported,
    "started_at": _moment,
    "worker_record": _records,
    "history": lambda _: "",
}
