"""Whom a node is and whom it trusts: from the node's own config, or else from the app.

Whoever runs the SuperLink ships the app, arguments and all. So a node whose own config says
anything about Ostraka goes by that alone:

flower-supernode ... --node-config 'ostraka-policy="policy.toml" ostraka-key="hospital-a.key"'
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flwr.app import Context

from ostraka.carried.node import Node
from ostraka.carried.node_state import ContextNotebook, FileNotebook, scratch
from ostraka.carried.trust import Listed, UnsafeFirstSeen
from ostraka.client.attesting import Verifier
from ostraka.client.memory import SUFFIX, MemoryFile
from ostraka.crypto.identity import Identity
from ostraka.errors import ConfigError
from ostraka.files import read_identity, read_policy

UNSAFE_SIMULATION = "unsafe-simulation"
"""In place of a policy, and of an enclave's address: a trial that protects nobody."""

DEFAULT_RESENDS = 8

_PREFIX = "ostraka-"
_PARTITION = "partition-id"
_SEED = "seed"
_SEED_BYTES = 32


@dataclass(frozen=True)
class Options:
    """What `sealing_mod` takes. See there."""

    policy: str | None = None
    key: str | None = None
    name: str | None = None
    memory: str | None = None
    unsafe_simulation: bool = False
    disclose_metrics: bool = False
    resends: int = DEFAULT_RESENDS

    def at(self, context: Context) -> "Options":
        """These, or what the node's own config says. Raises ConfigError."""
        own = {
            key.removeprefix(_PREFIX).replace("-", "_"): value
            for key, value in context.node_config.items()
            if key.startswith(_PREFIX)
        }
        return _from_config(own) if own else self

    def node(self, context: Context) -> Node:
        """The node that this mod speaks for. Raises ConfigError or StateError."""
        if self.policy == UNSAFE_SIMULATION:
            return self._simulated(context)
        if self.policy is None or self.key is None:
            raise ConfigError(
                "this node has no policy or no key: start it with --node-config "
                '\'ostraka-policy="..." ostraka-key="..."\', or give both to sealing_mod'
            )
        key, policy = Path(self.key), Path(self.policy)
        who = Verifier(
            name=self.name or key.stem,
            identity=read_identity(key),
            policy=read_policy(policy),
            policy_file=policy,
            unsafe_simulation=self.unsafe_simulation,
        )
        file = MemoryFile(Path(self.memory) if self.memory else key.with_suffix(SUFFIX), who.name)
        return Node(who.name, who.identity, Listed(who), FileNotebook(file), self.resends)

    def _simulated(self, context: Context) -> Node:
        """A node with an identity of its own making, which lasts as long as the run."""
        notebook = ContextNotebook(context)
        memory = notebook.load().memory
        standards = UnsafeFirstSeen(context, memory.charter if memory else None)
        number = context.node_config.get(_PARTITION, context.node_id)
        name = self.name or f"node-{number}"
        return Node(name, _own_identity(context), standards, notebook, self.resends)


def _from_config(own: Mapping[str, Any]) -> Options:
    types = {field.name: type(field.default) for field in fields(Options)}
    for name, value in own.items():
        if name not in types:
            known = ", ".join(_PREFIX + each.replace("_", "-") for each in types)
            raise ConfigError(f"the node's config has an unknown {_PREFIX}{name}; known: {known}")
        wanted = str if types[name] is type(None) else types[name]
        if type(value) is not wanted:
            raise ConfigError(f"{_PREFIX}{name} in the node's config is a {wanted.__name__}")
    return Options(**own)


def _own_identity(context: Context) -> Identity:
    record = scratch(context)
    seed = record.get(_SEED)
    if not isinstance(seed, bytes):
        seed = os.urandom(_SEED_BYTES)
        record[_SEED] = seed
    return Identity(seed)
