"""Files that people write: read as a whole, or refused in words that name them."""

from pathlib import Path

from ostraka.attestation import policy_file
from ostraka.attestation.policy import Policy
from ostraka.errors import ConfigError


def read_text(path: Path) -> str:
    """Raises ConfigError."""
    try:
        return path.read_text("utf-8")
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None


def read_policy(path: Path) -> Policy:
    """A client's policy, such as policy.toml. Raises ConfigError with the line at fault."""
    return policy_file.parse(read_text(path), str(path))
