"""`ostraka enclave run` and `ostraka status`."""

import asyncio
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from ostraka import events, federation_file, logs
from ostraka.cli.output import Json, help_without_command, show, table
from ostraka.enclave import hardening
from ostraka.enclave.platform.choose import Platform, detect, real, unsafe_simulated
from ostraka.enclave.platform.interface import EvidenceProvider
from ostraka.enclave.service import serve
from ostraka.encoding import encode
from ostraka.errors import ConfigError, ServiceError
from ostraka.events import Event
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2 import StatusRequest
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

_LOG = logging.getLogger("ostraka.enclave")
_STATUS_S = 10.0
_KEY_BYTES = 32
_REPORT_DATA = 64
_SIMULATION = Path("simulation")

ConfigOption = Annotated[Path, typer.Option("--config", help="The federation file.")]
SimulateOption = Annotated[
    bool,
    typer.Option(
        "--unsafe-simulate", help="No TEE: use simulation/ beside the file. Hides nothing."
    ),
]
ReleaseOption = Annotated[
    str | None,
    typer.Option("--key-release", help="TDX and Nitro: the command that asks a key broker."),
]
BrokerOption = Annotated[
    str | None, typer.Option("--key-broker", help="The key broker's public key, in hex.")
]


@dataclass(frozen=True)
class Hardened:
    """What this process gave up, or could not give up, before it serves anybody."""

    measure: str


def enclave(ctx: typer.Context) -> None:
    """Run the enclave's service, or hand its state to a successor.

    \b
    Examples:
      ostraka enclave run --config federation.toml
      ostraka enclave migrate request --from HEX --config federation.toml --out request.bin
    """
    help_without_command(ctx)


def run(
    *,
    config: ConfigOption = Path("federation.toml"),
    simulate: SimulateOption = False,
    key_release: ReleaseOption = None,
    key_broker: BrokerOption = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")] = False,
) -> None:
    """Run a federation's rounds: collect, measure, publish, until all are done.

    The platform is detected. Without a TEE the enclave does not start, unless simulation is asked
    for by name. SIGTERM and Ctrl-C end it cleanly: a round that is being measured is finished, an
    open one is given up. After a crash, start it again: it goes on after the last published round.

    \b
    Examples:
      ostraka enclave run --config federation.toml
      ostraka enclave run --config federation.toml --unsafe-simulate
    """
    logs.setup(json=log_json, level=logging.INFO, simulated=simulate)
    path = config.resolve()
    state = federation_file.load(path).state  # Its mistakes are told before those of the machine.
    platform = platform_for(path, simulate, key_release, key_broker)
    for measure in _harden(path.parent, state, simulate):
        logs.event(_LOG, Hardened(measure))

    def tell(event: Event) -> None:
        logs.event(_LOG, event, _level(event))

    asyncio.run(serve(path, platform, tell))


def _level(event: Event) -> int:
    if isinstance(event, events.ERRORS):
        return logging.ERROR
    return logging.WARNING if isinstance(event, events.WARNINGS) else logging.INFO


def _harden(folder: Path, state: Path, simulate: bool) -> list[str]:
    """In a TEE its own devices are needed, wherever they are; elsewhere only these folders."""
    if not simulate:
        return hardening.harden()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return hardening.harden(read=[folder], write=[state])


def evidence(
    *,
    out: Annotated[Path, typer.Option("--out", help="Where to write it.")] = Path("evidence.bin"),
    config: ConfigOption = Path("federation.toml"),
    simulate: SimulateOption = False,
) -> None:
    """Write what this machine's platform says of the enclave, to look at and to compare.

    It is bound to nothing, so no client accepts it: each asks for its own. `ostraka attest show`
    reads it out.

    \b
    Examples:
      ostraka enclave evidence --out evidence.bin
      ostraka enclave evidence --config federation.toml --unsafe-simulate
    """
    provider = provider_for(config.resolve(), simulate)
    said = encode(provider.evidence(bytes(_REPORT_DATA)))
    try:
        out.write_bytes(said)
    except OSError as failed:
        raise ConfigError(f"{out}: {failed.strerror}") from None
    show(f"{out}: evidence of kind {provider.kind}", figures={}, as_json=False)


def platform_for(
    config: Path, simulate: bool, key_release: str | None, key_broker: str | None
) -> Platform:
    """The TEE that is here, or the simulated one that was asked for."""
    if simulate:
        folder = config.parent / _SIMULATION
        return unsafe_simulated(folder / "platform.json", folder / "UNSAFE-development.key")
    return real(tuple((key_release or "").split()), _broker(key_broker))


def provider_for(config: Path, simulate: bool) -> EvidenceProvider:
    """Who vouches for this enclave. No sealing key is needed for that."""
    return platform_for(config, True, None, None).provider if simulate else detect()


def status(
    *,
    address: Annotated[str, typer.Option("--enclave", help="HOST:PORT of the service.")],
    tls_ca: Annotated[Path | None, typer.Option(help="PEM file that vouches for it.")] = None,
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
            reply = EnclaveStub(channel).GetStatus(StatusRequest(), timeout=_STATUS_S)
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


def _broker(text: str | None) -> bytes | None:
    try:
        key = bytes.fromhex(text) if text is not None else None
    except ValueError:
        key = b""
    if key is not None and len(key) != _KEY_BYTES:
        raise ConfigError("--key-broker is an Ed25519 public key: 64 hex digits")
    return key
