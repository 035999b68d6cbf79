"""Ed25519 identities in files: one key each, for its owner alone, never written over."""

import os
import re
from pathlib import Path

from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.errors import ConfigError
from ostraka.services.platform import private_file

_SEED = 32
_LABEL = "ostraka-ed25519-key-v1"
_LINE = re.compile(rf"{_LABEL} ([0-9a-f]{{{2 * _SEED}}})")


def write_identity(path: Path, owner: str, entropy: Entropy = os.urandom) -> Identity:
    """A new identity, in a new file. Raises ConfigError if there is one.

    owner: whose key it is, for whoever finds the file.
    """
    seed = entropy(_SEED)
    identity = Identity(seed)
    private_file.create(
        path,
        f"# Ostraka: the private key of {owner}. Whoever has it can act as {owner}: keep it here.\n"
        f"# Its public key, which may be known: {identity.public.hex()}\n"
        f"{_LABEL} {seed.hex()}\n",
    )
    return identity


def read_identity(path: Path) -> Identity:
    """The identity in a file. Raises ConfigError, also if others can read it."""
    lines = [line for line in private_file.read(path).splitlines() if not line.startswith("#")]
    match = _LINE.fullmatch(lines[0]) if len(lines) == 1 else None
    if match is None:
        # Without a word of what is in it: that may be a secret all the same.
        raise ConfigError(f"{path} is no key file of Ostraka: it needs one line, {_LABEL} and hex")
    return Identity(bytes.fromhex(match[1]))
