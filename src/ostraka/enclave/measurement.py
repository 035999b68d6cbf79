"""The measurement to expect of this release: a digest of the code that an enclave runs.

It is the same wherever the same release is installed, with the same versions of Python and of the
libraries beside it. A simulated platform reports it as MRENCLAVE. Real platforms measure their
whole image instead, this code and everything below it, and docs/attestation.md says how to compute
what they report.

The federation is not in it. Report data binds that, so a new client needs no new measurement.
"""

import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ostraka.encoding import pack

# The modules of ours that `python -m ostraka.enclave` loads: all of them, and no other. A test runs
# a whole round and compares this list with what is loaded then.
MEASURED = (
    "ostraka",
    "ostraka.arrays",
    "ostraka.attestation",
    "ostraka.attestation.certificates",
    "ostraka.attestation.claims",
    "ostraka.attestation.dcap",
    "ostraka.attestation.nitro",
    "ostraka.attestation.policy",
    "ostraka.attestation.policy_file",
    "ostraka.attestation.revocation",
    "ostraka.attestation.simulated_pki",
    "ostraka.attestation.simulation",
    "ostraka.attestation.snp",
    "ostraka.attestation.tees",
    "ostraka.attestation.verify",
    "ostraka.config",
    "ostraka.core",
    "ostraka.core.columns",
    "ostraka.core.exact",
    "ostraka.core.field",
    "ostraka.core.gaussian",
    "ostraka.core.gram",
    "ostraka.core.leakage",
    "ostraka.core.loops",
    "ostraka.core.loops.native",
    "ostraka.core.loops.twin",
    "ostraka.core.metrics",
    "ostraka.core.optimiser",
    "ostraka.core.rules",
    "ostraka.core.rules.averaging",
    "ostraka.core.rules.centres",
    "ostraka.core.rules.columns",
    "ostraka.core.rules.composition",
    "ostraka.core.rules.flame",
    "ostraka.core.rules.krum",
    "ostraka.core.rules.pre",
    "ostraka.core.rules.seam",
    "ostraka.core.rules.spectral",
    "ostraka.core.rules.subsets",
    "ostraka.core.rules.trusted",
    "ostraka.core.sketch",
    "ostraka.core.uploads",
    "ostraka.crypto",
    "ostraka.crypto.aead",
    "ostraka.crypto.channel",
    "ostraka.crypto.hpke",
    "ostraka.crypto.identity",
    "ostraka.crypto.masks",
    "ostraka.crypto.sealing",
    "ostraka.crypto.stream",
    "ostraka.crypto.updates",
    "ostraka.enclave",
    "ostraka.enclave.__main__",
    "ostraka.enclave.budget",
    "ostraka.enclave.commands",
    "ostraka.enclave.downloads",
    "ostraka.enclave.engine",
    "ostraka.enclave.front",
    "ostraka.enclave.hardening",
    "ostraka.enclave.lane",
    "ostraka.enclave.lead",
    "ostraka.enclave.limits",
    "ostraka.enclave.link",
    "ostraka.enclave.measurement",
    "ostraka.enclave.migration",
    "ostraka.enclave.open_round",
    "ostraka.enclave.passage",
    "ostraka.enclave.peering",
    "ostraka.enclave.platform",
    "ostraka.enclave.platform.choose",
    "ostraka.enclave.platform.gramine",
    "ostraka.enclave.platform.interface",
    "ostraka.enclave.platform.key_release",
    "ostraka.enclave.platform.linux",
    "ostraka.enclave.platform.nitro",
    "ostraka.enclave.platform.sev_guest",
    "ostraka.enclave.platform.simulated",
    "ostraka.enclave.platform.tsm",
    "ostraka.enclave.reception",
    "ostraka.enclave.service",
    "ostraka.enclave.servicer",
    "ostraka.enclave.shard",
    "ostraka.enclave.status",
    "ostraka.enclave.storage",
    "ostraka.enclave.storage.ledger",
    "ostraka.enclave.storage.models",
    "ostraka.enclave.storage.sealed_file",
    "ostraka.enclave.storage.spool",
    "ostraka.enclave.storage.state",
    "ostraka.enclave.uploads",
    "ostraka.enclave.workers",
    "ostraka.encoding",
    "ostraka.errors",
    "ostraka.events",
    "ostraka.federation_file",
    "ostraka.files",
    "ostraka.logs",
    "ostraka.merkle",
    "ostraka.messages",
    "ostraka.model_file",
    "ostraka.protocol",
    "ostraka.protocol.confirm",
    "ostraka.protocol.enclave",
    "ostraka.protocol.enclave.arrival",
    "ostraka.protocol.enclave.cohort",
    "ostraka.protocol.enclave.combine",
    "ostraka.protocol.enclave.decide",
    "ostraka.protocol.enclave.enclave",
    "ostraka.protocol.enclave.encoders",
    "ostraka.protocol.enclave.folding",
    "ostraka.protocol.enclave.intake",
    "ostraka.protocol.enclave.keeping",
    "ostraka.protocol.enclave.masking",
    "ostraka.protocol.enclave.measure",
    "ostraka.protocol.enclave.propose",
    "ostraka.protocol.enclave.rows",
    "ostraka.protocol.enclave.shard",
    "ostraka.protocol.enclave.threads",
    "ostraka.protocol.host",
    "ostraka.settings",
    "ostraka.transport",
    "ostraka.transport.collateral",
    "ostraka.transport.dial",
    "ostraka.transport.ostraka_pb2",
    "ostraka.transport.ostraka_pb2_grpc",
)

# What a module of ours loads by itself. It is there if the package was built with a compiler, and
# code that was built otherwise measures otherwise.
LIBRARIES = ("core/loops/_native.so",)

# The distributions whose code it loads as well.
DEPENDENCIES = (
    "cbor2",
    "cffi",
    "cryptography",
    "dcap-qvl",
    "grpcio",
    "numpy",
    "prometheus-client",
    "protobuf",
    "safetensors",
    "typing-extensions",
)

_LOADED = (".py", ".pyc", ".so")
_GENERATED = ("_pb2", "_pb2_grpc")
_CODE = b"ostraka/measured-code/v2"
_MEASUREMENT = b"ostraka/measurement/v1"
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Measurement:
    """code: digest of the measured files. dependencies: versions, by name.

    lines: how many those files have, without the code that protoc generated.
    """

    code: bytes
    dependencies: tuple[tuple[str, str], ...]
    lines: int

    @property
    def digest(self) -> bytes:
        """Code and versions together, in 32 bytes: what a simulated platform reports."""
        parts = (text.encode() for each in self.dependencies for text in each)
        return hashlib.sha256(pack(_MEASUREMENT, self.code, *parts)).digest()


def measure(
    package: Path = _PACKAGE,
    *,
    modules: Sequence[str] = MEASURED,
    libraries: Sequence[str] = LIBRARIES,
    versions: Sequence[tuple[str, str]] | None = None,
) -> Measurement:
    """Measure the code in this folder as it lies on the disk.

    package: the folder of the package `ostraka`. modules, libraries: the lists of the release in
    it. versions: of Python and the dependencies, in order; those of this process unless given.
    """
    texts = {path: _text(path) for path in measured_files(package, modules, libraries)}
    parts = (part for path, text in texts.items() for part in (_name(path, package), text))
    return Measurement(
        hashlib.sha256(pack(_CODE, *parts)).digest(),
        installed_versions() if versions is None else tuple(versions),
        sum(
            len(text.splitlines())
            for path, text in texts.items()
            if path.suffix == ".py" and not path.stem.endswith(_GENERATED)
        ),
    )


def measured_files(
    package: Path = _PACKAGE,
    modules: Sequence[str] = MEASURED,
    libraries: Sequence[str] = LIBRARIES,
) -> list[Path]:
    """Every file that is measured, in the order of their names on every file system."""
    code = (path for name in modules for path in _files(name, package))
    loaded = (package / name for name in libraries if (package / name).is_file())
    return sorted((*code, *loaded), key=lambda path: _name(path, package))


def installed_versions() -> tuple[tuple[str, str], ...]:
    """Versions of this process's Python and of the libraries that it would load."""
    return ("python", platform.python_version()), *((each, _version(each)) for each in DEPENDENCIES)


def _files(module: str, package: Path) -> Iterator[Path]:
    """Each file that Python could load as this module, but for caches of what we wrote."""
    place = package.joinpath(*module.split(".")[1:])
    beside = place.parent.glob(f"{place.name}.*") if place != package else ()
    for path in (*beside, *place.glob("__init__.*")):
        if path.suffix in _LOADED:
            yield path


def _name(path: Path, package: Path) -> bytes:
    return path.relative_to(package).as_posix().encode()


def _text(path: Path) -> bytes:
    """Without the line ends of another system: they are no difference in the code."""
    content = path.read_bytes()
    return content.replace(b"\r\n", b"\n") if path.suffix == ".py" else content


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
