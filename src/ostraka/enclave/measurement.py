"""The measurement to expect of this release: a digest of the code that an enclave runs.

It is the same wherever the same release is installed, with the same versions of Python and of the
libraries beside it. A simulated platform reports it as MRENCLAVE. Real platforms measure their
whole image instead, this code and everything below it, and docs/attestation.md says how to compute
what they report.

The config is not in it. Report data binds that, so a new client needs no new measurement.
"""

import hashlib
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ostraka.encoding import pack

# Modules and packages that the enclave's process loads, from ostraka itself. What measures, shows
# and demonstrates is not among them: bench, cli, demo, lab, flower, dashboard, and the backends of
# workers.
MEASURED = (
    "__init__",
    "arrays",
    "attestation",
    "calibration",
    "config",
    "core",
    "crypto",
    "encoding",
    "errors",
    "events",
    "host",
    "messages",
    "roles",
    "round",
    "services",
    "settings",
    "transport",
)

# Distributions whose code it loads as well.
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
_CODE = b"ostraka/measured-code/v1"
_MEASUREMENT = b"ostraka/measurement/v1"
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Measurement:
    """code: digest of the measured files. dependencies: versions, by name."""

    code: bytes
    dependencies: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> bytes:
        """Both together, in 32 bytes: what a simulated platform reports as MRENCLAVE."""
        parts = (text.encode() for each in self.dependencies for text in each)
        return hashlib.sha256(pack(_MEASUREMENT, self.code, *parts)).digest()


def measure(package: Path = _PACKAGE) -> Measurement:
    """Of the code in this folder, as it lies on the disk, and of the libraries of this process."""
    parts = (
        part for each in measured_files(package) for part in (_name(each, package), _text(each))
    )
    return Measurement(
        hashlib.sha256(pack(_CODE, *parts)).digest(),
        (("python", platform.python_version()), *((each, _version(each)) for each in DEPENDENCIES)),
    )


def measured_files(package: Path = _PACKAGE) -> list[Path]:
    """In the order of their names, so that no file system's order shows."""
    return sorted(_files(package), key=lambda path: _name(path, package))


def _files(package: Path) -> Iterator[Path]:
    """Whatever Python would load under a measured name, even in place of what we wrote."""
    for name in MEASURED:
        for path in (*package.glob(f"{name}.*"), *(package / name).rglob("*")):
            if path.suffix in _LOADED and path.parent.name != "__pycache__":
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
