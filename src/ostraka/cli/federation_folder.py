"""A federation's folder for a first run on one machine: terms, charter, policy and keys.

    federation.toml         terms, roster and the operator's settings
    federation.charter      terms and roster, signed by the authority
    policy.toml             which enclaves clients accept
    model.safetensors       the first model, unless it is zero
    keys/authority.key      signs every change of the terms and the roster
    keys/client-1.key ...   one for each client and each worker
    keys/observer.key       shows the federation to `ostraka dashboard`
    simulation/             a platform that only plays a TEE, and what it says of itself
    shards.toml             what shards have to prove, if there are any
    shard-0/ ...            the folder of each: copies, with a port and a state of its own

In production every party makes its own key (`ostraka client enrol`) and keeps it to itself.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ostraka import federation_file
from ostraka.arrays import Float32
from ostraka.attestation import policy_file
from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.cli.templates import SHARDS, federation_toml, policy_toml, shards_toml
from ostraka.config import (
    MAX_WORKERS,
    MIN_WORKERS,
    Federation,
    Manifest,
    Member,
    Tensor,
    Terms,
    cut_into_spans,
    default_tile,
)
from ostraka.core import rules, uploads
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.enclave import measurement
from ostraka.enclave.platform.simulated import save_platform
from ostraka.errors import ConfigError
from ostraka.federation_file import FederationFile, Storage, charter_path
from ostraka.files import write_identity
from ostraka.model_file import read_model, write_model

FEDERATION, POLICY, MODEL = "federation.toml", "policy.toml", "model.safetensors"
KEYS, AUTHORITY, OBSERVER = "keys", "authority", "observer"
CLIENT = "client-"  # before a client's number
SHARD = "shard-"  # before a shard's number
IGNORED = ".gitignore"  # keeps secrets from being committed by mistake
SIMULATION, PLATFORM, COLLATERAL = "simulation", "platform.json", "collateral.json"

# A linear classifier of the 8 x 8 digits, small enough for any machine.
_EXAMPLE = Manifest((Tensor("bias", (10,)), Tensor("weight", (10, 64))))
_SEED = _ID = 32
_FIRST_PORT = 7430  # of the first shard
_USUAL = rules.compose(rules.DEFAULT, rules.DEFAULT_PRE)


@dataclass(frozen=True)
class Plan:
    """What to make.

    dimension: values in an update; the first model is zero. model: a safetensors file to start from
    instead. With neither, an example model is made. composition: the rule and what comes before it.
    disclose_values: aggregates may hold single values of single clients. upload: the format of
    uploads. report_metrics: those of which a mean over clients is published. grace_s: seconds
    for the other clients once the quorum is there, None for as long as the deadline is. reasons:
    for all this, to be written into the federation file. shards: among how many the values of
    updates are divided.
    """

    clients: int = 12
    workers: int = 2
    f: int = 3
    masking: str = "exact"
    dimension: int | None = None
    model: Path | None = None
    simulation: bool = True
    composition: rules.Composition = _USUAL
    disclose_values: bool = False
    upload: str = uploads.DEFAULT
    report_metrics: tuple[str, ...] = ()
    grace_s: float | None = None
    reasons: tuple[str, ...] = ()
    shards: int = 1

    def __post_init__(self) -> None:
        if self.dimension is not None and self.model is not None:
            raise ConfigError(
                "a model starts from --dimension zeros or from --model, not from both"
            )
        if min(self.clients, self.workers) < 0:
            raise ConfigError(
                f"clients and workers must be at least 0; got {self.clients} and {self.workers}"
            )
        if self.shards > 1 and not self.simulation:
            raise ConfigError(
                "--shards makes a federation to try things out with, on a simulated platform; for "
                "a real one write shards.toml yourself (docs/attestation.md)"
            )

    @property
    def working(self) -> int:
        """How many workers take part in a round. Others are spares; Gaussian masking uses two."""
        most = MIN_WORKERS if self.masking == "gaussian" else MAX_WORKERS
        return min(max(MIN_WORKERS, self.workers), most)

    def names(self) -> tuple[list[str], list[str]]:
        """Name the clients and the workers."""
        return (
            [client_name(i) for i in range(1, self.clients + 1)],
            [f"worker-{i}" for i in range(1, self.workers + 1)],
        )


def client_name(which: int | str) -> str:
    """The name of a client in a new folder, by its number. A name stays as it is."""
    return f"{CLIENT}{which}" if str(which).isdecimal() else str(which)


def create(folder: Path, plan: Plan, *, now: int, entropy: Entropy = os.urandom) -> FederationFile:
    """Make the folder, as a whole or not at all. Raises ConfigError.

    now: seconds since 1970 from which a simulated platform's certificates are valid.
    """
    _require_free(folder)
    model = _model(plan)
    _rehearse(plan, model)
    federation_id = entropy(_ID)
    with _whole(folder) as partial:
        clients, workers, observer, authority = _write_keys(partial / KEYS, plan, entropy)
        if model is not None:
            write_model(partial / MODEL, *model)
        text = federation_toml(
            name=_federation_name(folder),
            id=federation_id,
            authority=authority.public,
            model=f"dimension = {plan.dimension}" if model is None else f'initial = "{MODEL}"',
            f=plan.f,
            masking=plan.masking,
            working=plan.working,
            clients=clients,
            workers=workers,
            observer=observer,
            composition=plan.composition,
            disclose_values=plan.disclose_values,
            upload=plan.upload,
            report_metrics=plan.report_metrics,
            grace_s=plan.grace_s,
            reasons=plan.reasons,
            shards=plan.shards,
            tile=_tile(plan, model),
        )
        (partial / FEDERATION).write_text(text, "utf-8")
        simulated = (
            _write_simulation(partial / SIMULATION, now, entropy) if plan.simulation else None
        )
        agreed = shards_toml(simulated) if plan.shards > 1 and simulated else ""
        if agreed:
            (partial / SHARDS).write_text(agreed, "utf-8")
        (partial / IGNORED).write_text(f"/{KEYS}/\n/{SIMULATION}/\n/{Storage().folder}/\n", "utf-8")
        file = federation_file.load(partial / FEDERATION)
        charter = federation_file.sign(file, authority)
        federation_file.write_charter(charter_path(file.path), charter)
        policy = policy_toml(
            id=federation_id,
            authority=authority.public,
            workers=workers,
            masking=plan.masking,
            simulation=simulated,
            composition=plan.composition,
            disclose_values=plan.disclose_values,
            report_metrics=plan.report_metrics,
            shard_policy=agreed,
        )
        policy_file.parse(policy, POLICY)
        (partial / POLICY).write_text(policy, "utf-8")
        for number in range(plan.shards if plan.shards > 1 else 0):
            _write_shard(partial, number)
    return federation_file.load(folder / FEDERATION)


def _tile(plan: Plan, model: tuple[Manifest, Float32] | None) -> int | None:
    """A tile that can be divided among the shards; None if there are none."""
    if plan.shards == 1:
        return None
    d = plan.dimension if model is None else model[0].dimension
    return default_tile(d or 0, plan.shards)


def shard_folder(folder: Path, number: int) -> Path:
    """Where a shard's files are, before they are copied to its machine."""
    return folder / f"{SHARD}{number}"


def _write_shard(folder: Path, number: int) -> None:
    """A shard's folder, as it would be on another machine: it has no key of anybody."""
    place = shard_folder(folder, number)
    place.mkdir()
    text = (folder / FEDERATION).read_text("utf-8")
    listen = f'listen = "127.0.0.1:{_FIRST_PORT + number}"'
    (place / FEDERATION).write_text(re.sub(r'listen = "[^"]*"', listen, text), "utf-8")
    for name in (charter_path(folder / FEDERATION).name, SHARDS, MODEL):
        if (folder / name).exists():
            shutil.copy(folder / name, place / name)
    shutil.copytree(folder / SIMULATION, place / SIMULATION)


def _require_free(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: nothing in it is touched; name a new folder")


def _model(plan: Plan) -> tuple[Manifest, Float32] | None:
    if plan.model is not None:
        return read_model(plan.model)
    if plan.dimension is None:
        return _EXAMPLE, np.zeros(_EXAMPLE.dimension, "<f4")
    return None


def _rehearse(plan: Plan, model: tuple[Manifest, Float32] | None) -> None:
    """Refuse what cannot work before anything is written, by an error that names no file."""
    manifest = Manifest.flat(plan.dimension or 0) if model is None else model[0]
    terms = Terms(
        manifest,
        f=plan.f,
        masking=plan.masking,
        rule=plan.composition.name,
        pre=plan.composition.pre,
        options=plan.composition.options,
        disclose_values=plan.disclose_values,
        workers=plan.working,
        upload=plan.upload,
        report_metrics=plan.report_metrics,
        tile=default_tile(manifest.dimension, plan.shards),
    )
    cut_into_spans(terms.tiling, plan.shards)
    names = [name for each in plan.names() for name in each]
    members = tuple(Member(name, bytes(28) + i.to_bytes(4)) for i, name in enumerate(names))
    Federation(terms, members[: plan.clients], members[plan.clients :], bytes(32), bytes(32))


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Yield a folder beside this one, which takes its place at the end or is removed."""
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        partial.mkdir(parents=True)
    except OSError as failure:
        raise ConfigError(f"{partial} cannot be made: {failure.strerror}") from None
    try:
        yield partial
        partial.rename(folder)
    except OSError as failure:
        raise ConfigError(f"{folder} cannot be made: {failure.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _federation_name(folder: Path) -> str:
    name = folder.resolve().name
    return name if re.fullmatch(r"[\w.-]{1,64}", name) else "federation"


def _write_keys(
    folder: Path, plan: Plan, entropy: Entropy
) -> tuple[list[Member], list[Member], Member, Identity]:
    folder.mkdir(mode=0o700)

    def enrol(names: list[str]) -> list[Member]:
        paths = {name: folder / f"{name}.key" for name in names}
        return [Member(name, write_identity(paths[name], name, entropy).public) for name in names]

    clients, workers = plan.names()
    authority = write_identity(folder / f"{AUTHORITY}.key", "the federation's authority", entropy)
    return enrol(clients), enrol(workers), enrol([OBSERVER])[0], authority


def _write_simulation(folder: Path, now: int, entropy: Entropy) -> tuple[bytes, bytes]:
    """Make a simulated platform. Returns its root's digest and the measurement to expect."""
    folder.mkdir(mode=0o700)
    platform = UnsafeSimulatedPlatform(entropy(_SEED), issued=now)
    save_platform(folder / PLATFORM, platform)
    (folder / COLLATERAL).write_bytes(platform.collateral())
    return platform.root_digest, measurement.measure().digest
