"""Who a node is and what it trusts: from the node's own config, or otherwise from the app.

The operator of the SuperLink ships the app, arguments included. So if a node's own config says
anything about Ostraka, the arguments of the app do not count:

flower-supernode ... --node-config 'ostraka-policy="policy.toml" ostraka-key="hospital-a.key"'
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from ostraka.carried.node import DEFAULT_RESENDS, Node, enrolled_node, unsafe_simulated_node
from ostraka.core.metrics import require_known
from ostraka.errors import ConfigError
from ostraka.flower.records import RECORD

UNSAFE_SIMULATION = "unsafe-simulation"
"""In place of a policy and of an enclave's address: a trial that protects nothing."""

_PREFIX = "ostraka-"
_PARTITION = "partition-id"
_KEYS = {"examples": "num-examples"}  # Flower's names, where they are not ours


@dataclass(frozen=True)
class NodeOptions:
    """The arguments of `sealing_mod`, which explains them."""

    policy: str | None = None
    key: str | None = None
    name: str | None = None
    memory: str | None = None
    unsafe_simulation: bool = False
    disclose_metrics: bool = False
    resends: int = DEFAULT_RESENDS
    report_metrics: str = ""

    def at(self, context: Context) -> "NodeOptions":
        """Return the options of the node's own config, or these. Raises ConfigError."""
        own = {
            key.removeprefix(_PREFIX).replace("-", "_"): value
            for key, value in context.node_config.items()
            if key.startswith(_PREFIX)
        }
        return _from_config(own) if own else self

    def reported(self) -> dict[str, str]:
        """Return the app's key of each metric that is reported. Raises ConfigError."""
        words = (word.partition("=") for word in self.report_metrics.split())
        keys = {name: key or _KEYS.get(name, name) for name, _, key in words}
        for name in keys:
            require_known(name)
        return keys

    def node(self, context: Context) -> Node:
        """Return the node that these options describe. Raises ConfigError or StateError."""
        if self.policy == UNSAFE_SIMULATION:
            number = context.node_config.get(_PARTITION, context.node_id)
            name = self.name or f"node-{number}"
            return unsafe_simulated_node(name, _scratch(context), self.resends)
        if self.policy is None or self.key is None:
            raise ConfigError(
                "this node has no policy or no key: start it with --node-config "
                '\'ostraka-policy="..." ostraka-key="..."\', or give both to sealing_mod'
            )
        return enrolled_node(
            Path(self.key),
            Path(self.policy),
            _scratch(context),
            name=self.name,
            memory=Path(self.memory) if self.memory else None,
            unsafe_simulation=self.unsafe_simulation,
            resends=self.resends,
        )


def _from_config(own: Mapping[str, Any]) -> NodeOptions:
    types = {field.name: type(field.default) for field in fields(NodeOptions)}
    for name, value in own.items():
        if name not in types:
            known = ", ".join(_PREFIX + each.replace("_", "-") for each in types)
            raise ConfigError(f"the node's config has an unknown {_PREFIX}{name}; known: {known}")
        wanted = str if types[name] is type(None) else types[name]
        if type(value) is not wanted:
            raise ConfigError(f"{_PREFIX}{name} in the node's config is a {wanted.__name__}")
    return NodeOptions(**own)


def _scratch(context: Context) -> ConfigRecord:
    """Return what Ostraka keeps in the context. It stays at the node, and ends with the run."""
    record = context.state.get(RECORD)
    if not isinstance(record, ConfigRecord):
        record = ConfigRecord()
        context.state[RECORD] = record
    return record
