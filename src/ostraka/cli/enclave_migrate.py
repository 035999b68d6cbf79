"""`ostraka enclave migrate`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from ostraka import federation_file, files
from ostraka.attestation.policy import Policy, toml_line
from ostraka.attestation.verify import Circumstances
from ostraka.cli.enclave import (
    BrokerOption,
    ConfigOption,
    ReleaseOption,
    SimulateOption,
    platform_for,
)
from ostraka.cli.output import Json, help_without_command, pairs, show
from ostraka.config import succession
from ostraka.crypto.sealing import Sealer
from ostraka.enclave import migration
from ostraka.enclave.platform.choose import Platform
from ostraka.enclave.storage.state import EnclaveState
from ostraka.encoding import decode
from ostraka.errors import ConfigError
from ostraka.federation_file import FederationFile, charter_path
from ostraka.files import read_policy
from ostraka.messages import Charter, Evidence
from ostraka.transport import collateral

PolicyOption = Annotated[
    Path,
    typer.Option("--policy", help="What is accepted as the other enclave, such as policy.toml."),
]

FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="HEX",
        help="The old enclave's receipt key. `ostraka status` shows it; a client has proof of it.",
    ),
]

_KEY_BYTES = 32


def migrate(ctx: typer.Context) -> None:
    """Hand an enclave's sealed state to other code, or to another machine.

    The federation's authority decides about it: it must have listed the hand-over under
    `successors`, in the revision that is in force. Clients agree to it in their policies. The old
    enclave is stopped, and retires for good.

    \b
    Examples:
      ostraka enclave migrate request --from HEX --config new/federation.toml --out request.bin
      ostraka enclave migrate export request.bin --config old/federation.toml \\
        --policy policy.toml --out bundle.bin
      ostraka enclave migrate import bundle.bin --config new/federation.toml --policy policy.toml
    """
    help_without_command(ctx)


def request(
    *,
    predecessor: FromOption,
    out: Annotated[Path, typer.Option(help="Where to write the request.")],
    config: ConfigOption = Path("federation.toml"),
    simulate: SimulateOption = False,
    key_release: ReleaseOption = None,
    key_broker: BrokerOption = None,
    as_json: Json = False,
) -> None:
    """In the new enclave: ask for the state of the old one.

    Its folder must be empty, and keeps the key that the answer is sealed to. It prints the line
    that the authority has to sign, and clients to agree to; after a new revision, ask again.

    \b
    Examples:
      ostraka enclave migrate request --from HEX --config federation.toml --out request.bin
    """
    platform = platform_for(config.resolve(), simulate, key_release, key_broker)
    agreed = succession(_receipt_key(predecessor), platform.code_id)
    file, charter = _signed(config)
    federation = charter.federation
    with _opened(file, platform) as state:
        asked = migration.request(state, platform.provider, federation=federation.digest())
    _write(out, asked)
    listed = agreed in federation.successors
    show(
        pairs([("code id", platform.code_id.hex()), ("revision", str(federation.revision))]),
        f"Take {out} to the old enclave: ostraka enclave migrate export {out}"
        if listed
        else _to_be_listed(agreed),
        figures={
            "code_id": platform.code_id.hex(),
            "succession": agreed.hex(),
            "revision": federation.revision,
            "listed": listed,
        },
        as_json=as_json,
    )


def export(
    path: Annotated[Path, typer.Argument(metavar="REQUEST", help="The new enclave's request.")],
    *,
    policy: PolicyOption,
    out: Annotated[Path, typer.Option(help="Where to write the bundle.")],
    config: ConfigOption = Path("federation.toml"),
    simulate: SimulateOption = False,
    key_release: ReleaseOption = None,
    key_broker: BrokerOption = None,
    as_json: Json = False,
) -> None:
    """In the old enclave: hand everything over, and retire.

    It never starts again, whether or not the bundle arrives. The same request can be exported
    again; no other can.

    \b
    Examples:
      ostraka enclave migrate export request.bin --policy policy.toml --out bundle.bin
    """
    platform = platform_for(config.resolve(), simulate, key_release, key_broker)
    asked, accepted = _read(path), read_policy(policy)
    evidence = decode(migration.Request, asked).evidence
    with _opened(federation_file.load(config), platform) as state:
        done = migration.export(
            state,
            asked,
            provider=platform.provider,
            policy=accepted,
            circumstances=_circumstances(evidence, accepted, policy, simulate),
        )
        rounds = len(state.receipts())
    _write(out, done.bundle)
    show(
        pairs([("handed over to", done.successor.hex()), ("after round", str(rounds))]),
        "The same successor had it before." if done.again else "This enclave is retired.",
        f"Take {out} to the new enclave: ostraka enclave migrate import {out}",
        figures={"successor": done.successor.hex(), "rounds": rounds, "again": done.again},
        as_json=as_json,
    )


def take_over(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="What the old enclave exported.")],
    *,
    policy: PolicyOption,
    config: ConfigOption = Path("federation.toml"),
    simulate: SimulateOption = False,
    key_release: ReleaseOption = None,
    key_broker: BrokerOption = None,
    as_json: Json = False,
) -> None:
    """In the new enclave: go on where the old one stopped.

    \b
    Examples:
      ostraka enclave migrate import bundle.bin --policy policy.toml
    """
    platform = platform_for(config.resolve(), simulate, key_release, key_broker)
    bundle, accepted = _read(path), read_policy(policy)
    evidence = decode(migration.Bundle, bundle).evidence
    file, charter = _signed(config)
    with _opened(file, platform) as state:
        taken = migration.take_over(
            state,
            bundle,
            charter=charter,
            provider=platform.provider,
            policy=accepted,
            circumstances=_circumstances(evidence, accepted, policy, simulate),
        )
    figures = {
        "origin": taken.origin.hex(),
        "receipt_key": taken.receipt_key.hex(),
        "rounds": taken.rounds,
        "revision": taken.revision,
    }
    show(
        pairs([(name.replace("_", " "), str(value)) for name, value in figures.items()]),
        f"Start it: ostraka enclave run --config {config}",
        figures=figures,
        as_json=as_json,
    )


def _to_be_listed(agreed: bytes) -> str:
    line = toml_line("successors", (agreed,))
    return (
        "The authority has not agreed to this hand-over yet. Under [federation] of the old "
        f"enclave's federation.toml, write:\n{line}\n"
        "Every client's policy needs the same line, under [federation] as well: clients refuse a "
        "federation with a successor that they did not agree to. Then sign a new revision, let the "
        "old enclave adopt it, bring its files here, and ask again."
    )


def _receipt_key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"--from is a receipt key, {2 * _KEY_BYTES} hex digits; got {text!r}")
    return key


def _signed(config: Path) -> tuple[FederationFile, Charter]:
    """This enclave's own files, which must agree."""
    file = federation_file.load(config)
    charter = federation_file.load_charter(charter_path(config))
    federation_file.require_signed(file, charter)
    return file, charter


def _opened(file: FederationFile, platform: Platform) -> EnclaveState:
    sealer = Sealer(platform.keys.key(), platform.code_id)
    return EnclaveState.open(file.state, sealer, keep=file.storage.keep_models)


def _circumstances(
    evidence: Evidence, policy: Policy, policy_path: Path, simulate: bool
) -> Circumstances:
    """Who plays a TEE has said so, and then the other may, too, if the policy allows it."""
    found = collateral.for_evidence(evidence, policy, beside=policy_path)
    return Circumstances(int(time.time()), found, unsafe_simulation=simulate)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None


def _write(path: Path, content: bytes) -> None:
    try:
        files.write(path, [content])
    except OSError as failed:
        raise ConfigError(f"{path}: {failed.strerror}; run the same command again") from None
