"""Flower: a strategy and a client mod that make an existing federation private and robust.

strategy = PrivateRobust(enclave="enclave.example:7420")
app = ClientApp(mods=[sealing_mod(policy="policy.toml", key="hospital-a.key")])

This is an adapter: the rounds and the node are in `ostraka.carried`.

strategy     PrivateRobust, in the ServerApp: carries messages, and is trusted with nothing
grid         messages to nodes, and how long to wait for their replies
metrics      which of the metrics that nodes disclose fit together
mod          sealing_mod, at a node: verifies, lets the app train, seals
options      who a node is and what it trusts: from its own config or the app's arguments
records      models and Ostraka's messages as Flower's records
"""

from ostraka.errors import installing

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"ostraka.flower needs Flower: {installing('flower')}", name=missing.name
    ) from None

from ostraka.flower.mod import sealing_mod
from ostraka.flower.options import UNSAFE_SIMULATION
from ostraka.flower.strategy import PrivateMultiKrum, PrivateRobust

__all__ = ["UNSAFE_SIMULATION", "PrivateMultiKrum", "PrivateRobust", "sealing_mod"]
