"""Private and Byzantine-robust aggregation for federated learning."""

from typing import TYPE_CHECKING, Any

from ostraka.protocol.round import RoundResult, run_round

if TYPE_CHECKING:
    from ostraka.client.api import Client
else:

    def __getattr__(name: str) -> Any:
        """The network is loaded with the first use of what needs it."""
        if name == "Client":
            from ostraka.client.api import Client  # noqa: PLC0415

            return Client
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Client", "RoundResult", "run_round"]
