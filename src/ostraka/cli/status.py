"""`ostraka status`."""

import json
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from ostraka.cli.output import Json, show, table
from ostraka.errors import ServiceError
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2 import StatusRequest
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

_PATIENCE_S = 10.0


def status(
    *,
    address: Annotated[str, typer.Option("--enclave", help="HOST:PORT of the service.")],
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM file with the certificate authority of the service.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show where a federation stands: the round, who is in, who was refused and why.

    \b
    Examples:
      ostraka status --enclave 127.0.0.1:7420
      ostraka status --enclave 127.0.0.1:7420 --json
    """
    with dial(address, tls_ca=tls_ca) as channel:
        try:
            reply = EnclaveStub(channel).GetStatus(StatusRequest(), timeout=_PATIENCE_S)
        except grpc.RpcError as failed:
            raise ServiceError(f"{address} does not answer: {failed.details()}") from None
    figures: dict[str, Any] = json.loads(reply.json)
    shown = table("What", "Now")
    for name, value in figures.items():
        shown.add_row(name.replace("_", " "), _words(value))
    show(shown, figures=figures, as_json=as_json)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {each}" for name, each in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
