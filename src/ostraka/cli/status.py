"""`ostraka status`."""

import json
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from ostraka import federation_file
from ostraka.cli.output import Json, show, table
from ostraka.errors import ConfigError, ServiceError
from ostraka.events import named
from ostraka.files import read_private
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2 import StatusRequest
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

TOKEN_FILE = "status.token"  # as the service names it # noqa: S105

_PATIENCE_S = 10.0
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
    as_json: Json = False,
) -> None:
    """Show where a federation stands: the round, who is in, who was refused and why.

    Strangers are shown numbers. The operator reads a token in the service's state folder.

    \b
    Examples:
      ostraka status --config federation.toml
      ostraka status --enclave 127.0.0.1:7420 --json
    """
    file = federation_file.load(config) if config else None
    if address is None:
        if file is None:
            raise ConfigError("give --config, --enclave, or both")
        address = _reachable(file.enclave.listen)
    request = StatusRequest(token=_token(file.state) if file else "")
    with dial(address, tls_ca=tls_ca) as channel:
        try:
            reply = EnclaveStub(channel).GetStatus(request, timeout=_PATIENCE_S)
        except grpc.RpcError as failed:
            raise ServiceError(f"{address} does not answer: {failed.details()}") from None
    figures: dict[str, Any] = json.loads(reply.json)
    shown = table("What", "Now")
    shown.add_row("doing", _doing(figures))
    for name, value in figures.items():
        words = _reported(value) if name == "metrics" else _words(value)
        shown.add_row(name.replace("_", " "), words)
    show(shown, figures=figures, as_json=as_json)


def _reachable(listen: str) -> str:
    """Return where a service of this machine is reached that listens there."""
    host, _, port = listen.rpartition(":")
    return f"{_LOOPBACK.get(host, host)}:{port}"


def _token(state: Path) -> str:
    try:
        return read_private(state / TOKEN_FILE)
    except ConfigError as unreadable:
        raise ConfigError(f"{unreadable}: is the service running, and as this user?") from None


def _doing(figures: dict[str, Any]) -> str:
    """Say what the service waits for. Strangers are told how many, and not who."""
    who, phase = named(figures["awaited"]), figures["phase"]
    if phase == "collecting" and figures.get("quorum_reached"):
        return f"quorum reached, waiting {figures['deadline_in_s']:.0f} s more for {who}"
    if phase == "collecting":
        return f"waiting for {who}"
    return f"waiting for {who} to confirm" if phase == "confirming" else str(phase)


def _reported(rounds: list[dict[str, float]]) -> str:
    """Say what clients have reported in the last round that published anything of it."""
    if not rounds:
        return "-"
    means = dict(rounds[-1])
    number, clients = means.pop("round"), means.pop("clients")
    said = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    return f"{said} (round {number}, the mean of {clients} clients)"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {each}" for name, each in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
