"""What the commands of the enclave's own entry do. `__main__` reads their arguments."""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from ostraka import events, federation_file, files, logs
from ostraka.attestation.policy import Policy, toml_line
from ostraka.attestation.verify import Circumstances
from ostraka.config import succession
from ostraka.crypto.sealing import Sealer
from ostraka.enclave import hardening, migration
from ostraka.enclave.platform.choose import Platform, detect, real, unsafe_simulated
from ostraka.enclave.platform.interface import REPORT_DATA_BYTES, EvidenceProvider
from ostraka.enclave.platform.simulated import KEY_FILE, PLATFORM_FILE
from ostraka.enclave.service import serve, serve_shard
from ostraka.enclave.shard import Settings
from ostraka.enclave.storage.state import EnclaveState
from ostraka.encoding import decode, encode
from ostraka.errors import ConfigError
from ostraka.events import Event
from ostraka.federation_file import FederationFile, charter_path
from ostraka.files import read_policy
from ostraka.messages import Charter, Evidence
from ostraka.transport import collateral

_LOG = logging.getLogger("ostraka.enclave")
_KEY_BYTES = 32


@dataclass(frozen=True)
class Report:
    """What a command tells at its end: text for people, figures for programs."""

    text: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hardened:
    """An event: what this process gave up, or could not give up, before it serves anybody."""

    measure: str


@dataclass(frozen=True)
class Machine:
    """The federation file that a command is for, and the platform that it finds itself on.

    key_release, key_broker: on TDX and Nitro, the command that asks a key broker, and the broker's
    public key in hex.
    """

    config: Path
    unsafe_simulation: bool = False
    key_release: str | None = None
    key_broker: str | None = None

    @cached_property
    def platform(self) -> Platform:
        """The TEE that is here, or the simulated one that was asked for."""
        if self.unsafe_simulation:
            folder = self.config.resolve().parent
            return unsafe_simulated(folder / PLATFORM_FILE, folder / KEY_FILE)
        return real(tuple((self.key_release or "").split()), _broker_key(self.key_broker))

    @property
    def provider(self) -> EvidenceProvider:
        """The source of this enclave's evidence. It needs no sealing key."""
        return self.platform.provider if self.unsafe_simulation else detect()

    def signed(self) -> tuple[FederationFile, Charter]:
        """The enclave's own files, which must agree. Raises ConfigError."""
        file = federation_file.load(self.config)
        charter = federation_file.load_charter(charter_path(self.config))
        federation_file.require_signed(file, charter)
        return file, charter

    def open(self, file: FederationFile) -> EnclaveState:
        """The sealed state of this file's enclave. Raises StateError."""
        sealer = Sealer(self.platform.keys.key(), self.platform.code_id)
        return EnclaveState.open(file.state, sealer, keep=file.storage.keep_models)


def run(machine: Machine, *, log_json: bool) -> None:
    """Run the federation's rounds. What happens is logged."""
    _run_hardened(machine, serve, machine.config.resolve(), log_json=log_json)


def run_shard(
    machine: Machine,
    *,
    lead: str,
    number: int,
    advertise: str | None,
    tls_ca: Path | None,
    log_json: bool,
) -> None:
    """Serve a lead as one of its shards. What happens is logged."""
    settings = Settings(machine.config.resolve(), lead, number, advertise, tls_ca)
    _run_hardened(machine, serve_shard, settings, log_json=log_json)


def _run_hardened(
    machine: Machine,
    service: Callable[..., Coroutine[Any, Any, None]],
    what: Any,
    *,
    log_json: bool,
) -> None:
    """Run a service in a process that may reach no more than it needs. what: it is run with."""
    logs.setup(json=log_json, simulated=machine.unsafe_simulation)
    path = machine.config.resolve()
    state = federation_file.load(path).state  # Its mistakes are told before those of the machine.
    platform = machine.platform

    def tell(event: Event) -> None:
        logs.event(_LOG, event, _level(event))

    sockets = Path(mkdtemp(prefix="ostraka-"))
    try:
        for measure in _harden(path.parent, [state, sockets], machine.unsafe_simulation):
            logs.event(_LOG, Hardened(measure))
        gc.freeze()  # What is loaded stays: collections between rounds need not look at it.
        asyncio.run(service(what, platform, tell, sockets=sockets))
    finally:
        # A process that may write nowhere else cannot remove the folder itself, only what is in it.
        rmtree(sockets, ignore_errors=True)


def _level(event: Event) -> int:
    if isinstance(event, events.ERRORS):
        return logging.ERROR
    return logging.WARNING if isinstance(event, events.WARNINGS) else logging.INFO


def _harden(folder: Path, write: list[Path], simulation: bool) -> list[str]:
    """In a TEE its devices are needed, wherever they are; elsewhere only these folders."""
    if not simulation:
        return hardening.harden()
    for each in write:
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    return hardening.harden(read=[folder], write=write)


def evidence(machine: Machine, *, out: Path) -> Report:
    """Write evidence about nothing in particular into a file."""
    provider = machine.provider
    _write(out, encode(provider.evidence(bytes(REPORT_DATA_BYTES))))
    return Report(f"{out}: evidence of kind {provider.kind}")


def request(machine: Machine, *, predecessor: str, out: Path) -> Report:
    """In the new enclave: ask for the state of the one with this receipt key, in hex."""
    old = _key(predecessor, "--from is a receipt key")
    platform = machine.platform
    agreed = succession(old, platform.code_id)
    file, charter = machine.signed()
    federation = charter.federation
    with machine.open(file) as state:
        asked = migration.request(state, platform.provider, federation=federation.digest())
    _write(out, asked)
    listed = agreed in federation.successors
    code_id, revision = platform.code_id.hex(), federation.revision
    told = _pairs([("code id", code_id), ("revision", str(revision))])
    next_step = f"Take {out} to the old enclave: ostraka enclave migrate export {out}"
    return Report(
        f"{told}\n{next_step if listed else _to_be_listed(agreed)}",
        {
            "code_id": code_id,
            "succession": agreed.hex(),
            "revision": revision,
            "listed": listed,
        },
    )


def export(machine: Machine, path: Path, *, policy: Path, out: Path) -> Report:
    """In the old enclave: answer the request in this file, and retire."""
    platform = machine.platform
    asked, accepted = _read(path), read_policy(policy)
    circumstances = _circumstances(
        machine, decode(migration.Request, asked).evidence, accepted, policy
    )
    with machine.open(federation_file.load(machine.config)) as state:
        done = migration.export(
            state,
            asked,
            provider=platform.provider,
            policy=accepted,
            circumstances=circumstances,
        )
        rounds = state.head.number if state.head else 0
    _write(out, done.bundle)
    successor = done.successor.hex()
    told = _pairs([("handed over to", successor), ("after round", str(rounds))])
    retired = "The same successor had it before." if done.again else "This enclave is retired."
    next_step = f"Take {out} to the new enclave: ostraka enclave migrate import {out}"
    return Report(
        f"{told}\n{retired}\n{next_step}",
        {"successor": successor, "rounds": rounds, "again": done.again},
    )


def take_over(machine: Machine, path: Path, *, policy: Path) -> Report:
    """In the new enclave: go on with the bundle in this file."""
    platform = machine.platform
    bundle, accepted = _read(path), read_policy(policy)
    circumstances = _circumstances(
        machine, decode(migration.Bundle, bundle).evidence, accepted, policy
    )
    file, charter = machine.signed()
    with machine.open(file) as state:
        taken = migration.take_over(
            state,
            bundle,
            charter=charter,
            provider=platform.provider,
            policy=accepted,
            circumstances=circumstances,
        )
    figures = {
        "origin": taken.origin.hex(),
        "receipt_key": taken.receipt_key.hex(),
        "rounds": taken.rounds,
        "revision": taken.revision,
    }
    told = _pairs([(name.replace("_", " "), str(value)) for name, value in figures.items()])
    return Report(f"{told}\nStart it: ostraka enclave run --config {machine.config}", figures)


def _to_be_listed(agreed: bytes) -> str:
    line = toml_line("successors", (agreed,))
    return (
        "The authority has not agreed to this hand-over yet. Under [federation] of the old "
        f"enclave's federation.toml, write:\n{line}\n"
        "Every client's policy needs the same line, under [federation] as well: clients refuse a "
        "federation with a successor that they did not agree to. Then sign a new revision, let the "
        "old enclave adopt it, bring its files here, and ask again."
    )


def _circumstances(
    machine: Machine, evidence: Evidence, policy: Policy, policy_path: Path
) -> Circumstances:
    """A simulated enclave accepts a simulated one, if the policy does."""
    found = collateral.for_evidence(evidence, policy, beside=policy_path)
    return Circumstances(int(time.time()), found, unsafe_simulation=machine.unsafe_simulation)


def _broker_key(text: str | None) -> bytes | None:
    if text is None:
        return None
    return _key(text, "--key-broker is an Ed25519 public key")


def _key(text: str, what: str) -> bytes:
    """The key that these hex digits stand for. Raises ConfigError."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"{what}, {2 * _KEY_BYTES} hex digits; got {len(text)} characters")
    return key


def _pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, one pair a line."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


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
