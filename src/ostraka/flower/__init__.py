"""Flower: a strategy and a client mod that make an existing federation private and robust.

strategy = PrivateMultiKrum(enclave="enclave.example:7420", num_malicious_nodes=2)
app = ClientApp(mods=[sealing_mod(policy="policy.toml", key="hospital-a.key")])

strategy     PrivateMultiKrum, in the ServerApp: carries, and is trusted with nothing
relay        its rounds: who is asked, who answers, what comes out
courier      messages to nodes, and how long their replies are waited for
pulling      replies, each pulled in a thread of its own
metrics      what nodes disclose: which of it fits together
enclave      what a strategy needs of an enclave
remote       the enclave's service, across a network
in_process   or an enclave in the same process, for simulations
mod          sealing_mod, at a node: verifies, lets the app train, seals
options      whom a node is and whom it trusts: its own config, or the app's arguments
node         a node that doubts: challenge, verify, join
standards    what a node accepts as an enclave
notebook     what a node remembers
messages     what the strategy and the mod say to each other
records      models as Flower's records
"""

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "ostraka.flower needs Flower: pip install 'ostraka[flower]'", name=missing.name
    ) from None

from ostraka.flower.mod import sealing_mod
from ostraka.flower.options import UNSAFE_SIMULATION
from ostraka.flower.strategy import PrivateMultiKrum

__all__ = ["UNSAFE_SIMULATION", "PrivateMultiKrum", "sealing_mod"]
