"""A signed revision, brought to a running enclave."""

import time
from pathlib import Path
from typing import Annotated

import click
import grpc
import typer

from ostraka import federation_file
from ostraka.cli import federation_folder
from ostraka.cli.federation_folder import Plan
from ostraka.cli.output import Json, show
from ostraka.config import MASKINGS
from ostraka.enclave import measurement
from ostraka.encoding import encode
from ostraka.errors import ServiceError
from ostraka.federation_file import charter_path, require_newer
from ostraka.files import read_identity
from ostraka.messages import Charter
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2 import AdoptRequest
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

_SECONDS = 30.0


def bring(charter: Charter, address: str, tls_ca: Path | None = None) -> None:
    """It comes into force with the next round. Raises ServiceError if the enclave refuses it."""
    with dial(address, tls_ca=tls_ca) as channel:
        try:
            request = AdoptRequest(charter=encode(charter))
            EnclaveStub(channel).Adopt(request, timeout=_SECONDS)
        except grpc.RpcError as refused:
            raise ServiceError(f"{address} did not take it: {refused.details()}") from None


_SIMULATED = (
    "warning: this federation runs on a SIMULATED enclave, whose host can read all updates: "
    "good for trying things out, and for nothing else"
)


def init(
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or an empty folder.")],
    *,
    clients: Annotated[int, typer.Option(help="Clients to enrol.")] = 12,
    workers: Annotated[int, typer.Option(help="Workers to enrol.")] = 2,
    f: Annotated[int, typer.Option("--f", help="How many clients may be Byzantine.")] = 3,
    dimension: Annotated[
        int | None, typer.Option(help="Values in an update; the first model is zero.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="First model, as safetensors; a small one unless given.")
    ] = None,
    masking: Annotated[
        str,
        typer.Option(click_type=click.Choice(MASKINGS), help="How updates are masked."),
    ] = "exact",
    no_simulation: Annotated[
        bool, typer.Option("--no-simulation", help="Make no simulated platform.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a federation's folder for a first run.

    It holds the config, its signed charter, a policy for clients, a key for every party, and a
    simulated platform, so that everything can be tried on one machine. Every setting is in
    federation.toml, with what it does beside it.

    \b
    Examples:
      ostraka init first-run
      ostraka init first-run --clients 20 --f 5 --workers 3 --dimension 100000
      ostraka init hospitals --model model.safetensors --no-simulation --json
    """
    plan = Plan(clients, workers, f, masking, dimension, model, simulation=not no_simulation)
    file = federation_folder.create(target, plan, now=int(time.time()))
    federation = file.federation()
    simulated = plan.simulation
    figures = {
        "folder": str(target),
        "clients": clients,
        "workers": workers,
        "f": f,
        "dimension": federation.terms.dimension,
        "revision": federation.revision,
        "authority": federation.authority.hex(),
        "config_digest": federation.digest().hex(),
        "simulation": simulated,
        "measurement": measurement.measure().digest.hex() if simulated else None,
    }
    show(
        f"Made {target}: {clients} clients, of which {f} may be Byzantine, and {workers} workers.",
        _contents(simulated),
        f"Next: ostraka enclave run --config {file.path}{' --unsafe-simulate' * simulated}",
        figures=figures,
        as_json=as_json,
    )
    if simulated:
        click.echo(_SIMULATED, err=True)


def sign(
    federation: Annotated[
        Path, typer.Argument(metavar="FEDERATION", help="Such as federation.toml.")
    ],
    *,
    key: Annotated[Path, typer.Option(help="The authority's key file.")],
    push: Annotated[
        str | None, typer.Option(help="Bring it to the running enclave at HOST:PORT, too.")
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="TLS, with the certificates in this PEM file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Sign a federation's rules and roster again, after a change.

    Writes the charter beside the file. The enclave finds it there before its next round, or has
    it brought by --push. A change under a revision that was signed before is
    refused, because clients follow revisions upwards only. Settings of the operator's own, such
    as deadlines and limits, need no new signature.

    \b
    Examples:
      ostraka sign federation.toml --key keys/authority.key
      ostraka sign federation.toml --key keys/authority.key --push enclave.example:7420
    """
    file = federation_file.load(federation)
    beside = charter_path(federation)
    charter = federation_file.sign(file, read_identity(key))
    before = federation_file.load_charter(beside).federation if beside.exists() else None
    if before is not None:
        require_newer(file, before)
    federation_file.write_charter(beside, charter)
    if push is not None:
        bring(charter, push, tls_ca)
    signed = charter.federation
    figures = {
        "charter": str(beside),
        "revision": signed.revision,
        "previous_revision": None if before is None else before.revision,
        "changed": signed != before,
        "config_digest": signed.digest().hex(),
        "pushed": push is not None,
    }
    words = f"Signed revision {signed.revision} of {file.about.name}, into {beside}."
    same = "Rules and roster are those that were signed before." if signed == before else ""
    brought = f"Brought to {push}: in force from its next round." if push is not None else ""
    show(words, *filter(None, [same, brought]), figures=figures, as_json=as_json)


def _contents(simulated: bool) -> str:
    lines = [
        "  federation.toml      rules, roster and settings; after a change: ostraka sign",
        "  federation.charter   rules and roster, signed",
        "  policy.toml          what clients accept as an enclave",
        "  keys/                one private key each, to hand to its owner and to delete here",
    ]
    if simulated:
        lines.append("  simulation/          a platform that only plays a TEE")
    return "\n".join(lines)
