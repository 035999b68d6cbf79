"""An enclave without a TEE, for first steps and tests. It is asked for by name, or not at all."""

from pathlib import Path

from ostraka.services import measurement
from ostraka.services.enclave.platform import Platform, identity_of
from ostraka.services.platform import UnsafeDevelopmentKey
from ostraka.services.platform.simulated import UnsafeSimulatedProvider, load_platform


def unsafe_simulated(platform_file: Path, key_file: Path) -> Platform:
    """Evidence under a private root about the code as it is, and state under a key in a file."""
    provider = UnsafeSimulatedProvider(load_platform(platform_file), measurement.measure().digest)
    create = UnsafeDevelopmentKey if key_file.exists() else UnsafeDevelopmentKey.create
    return Platform(provider, create(key_file), identity_of(provider))
