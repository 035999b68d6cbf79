"""Private and Byzantine-robust aggregation for federated learning.

Importing this package loads nothing else: each name below is loaded with its first use, so that
the command starts fast and the enclave's process holds only what the enclave needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

__all__ = ["Client", "RoundResult", "__version__", "errors", "run_round"]

_HOMES = {
    "Client": "ostraka.client.api",
    "RoundResult": "ostraka.protocol.round",
    "run_round": "ostraka.protocol.round",
}

if TYPE_CHECKING:
    from ostraka import errors
    from ostraka.client.api import Client
    from ostraka.protocol.round import RoundResult, run_round
else:

    def __getattr__(name: str) -> Any:
        """Load a public name (PEP 562)."""
        if name == "errors":
            return import_module("ostraka.errors")
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
