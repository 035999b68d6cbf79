"""The parties of a made-up federation, and their updates.

Keys and updates are functions of a party's name alone, so that two processes agree on them without
a word. Nothing here is secret.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from ostraka.arrays import Float32
from ostraka.attestation.claims import in_process
from ostraka.config import (
    MAX_TILE_VALUES,
    Federation,
    Manifest,
    Member,
    Terms,
    default_tile,
)
from ostraka.core import optimiser, rules
from ostraka.core.optimiser import ServerState
from ostraka.core.sketch import MIN_SIZE
from ostraka.crypto.identity import Identity
from ostraka.crypto.offline import OfflineMask, OfflineNoise
from ostraka.crypto.stream import SecretStream
from ostraka.crypto.updates import SealedUpdate
from ostraka.errors import ConfigError
from ostraka.messages import RoundOffer
from ostraka.protocol.client import Client
from ostraka.protocol.worker import Worker

_SKETCH = 16_384


@dataclass(frozen=True)
class Cast:
    """Everybody's identity, and the federation that pins them."""

    federation: Federation
    enclave: Identity

    @property
    def terms(self) -> Terms:
        return self.federation.terms

    def seal(self, row: int, offer: RoundOffer, values: Float32 | None = None) -> SealedUpdate:
        """The upload of one client. Its tiles open under `upload_key(row)`.

        values: (d,) instead of `update`.
        """
        name = self.federation.clients[row].name

        def entropy(count: int) -> bytes:
            return upload_key(row)[:count]

        client = Client(name, _identity(name), self.federation, entropy=entropy)
        joined = client.join(offer, in_process(offer, self.enclave.public))
        return joined.seal(update(row, self.terms.dimension) if values is None else values).sealed

    def offline(self) -> OfflineNoise | OfflineMask:
        """What the enclave makes before a round. Every call gives the same, under the same key.

        Its entropy is replayed, so that what one process has made and sealed, another can spend:
        nothing but a benchmark may do this.
        """
        kind = OfflineNoise if self.terms.masking == "gaussian" else OfflineMask
        return kind(self.terms, len(self.federation.clients), SecretStream(_seed("noise")).bytes)

    def state(self) -> ServerState:
        """The model before the first round: nothing but zeros."""
        return optimiser.start(np.zeros(self.terms.dimension, np.float32), self.terms.optimiser)

    def workers(self) -> dict[str, Worker]:
        return {
            member.name: Worker(_identity(member.name), receipt_key=self.enclave.public)
            for member in self.federation.workers
        }


def cast(clients: int, dim: int, *, masking: str, sketch: int | None = None) -> Cast:
    """A federation of the given size, with two workers. ConfigError if there can be none."""
    terms = Terms(
        Manifest.flat(dim),
        f=byzantine(clients),
        masking=masking,
        sketch=sketch,
        tile=default_tile(clients, dim),
    )
    federation = Federation(
        terms,
        tuple(_member(f"client-{row}") for row in range(clients)),
        tuple(_member(f"worker-{number}") for number in (1, 2)),
        _identity("authority").public,
    )
    return Cast(federation, _identity("enclave"))


def sketch_size(clients: int, dim: int) -> int | None:
    """The columns to fold to: 16,384, or 4 Mi values of all clients together; None if too few."""
    columns = min(_SKETCH, dim, max(MIN_SIZE, MAX_TILE_VALUES // clients))
    return columns if columns >= MIN_SIZE else None


def byzantine(clients: int) -> int:
    """The f to plan for: a fifth of the clients, or as many as the default rule allows."""
    least = rules.rule(rules.DEFAULT).least
    return max((f for f in range(clients // 5 + 1) if least(f) <= clients), default=0)


def update(row: int, dim: int) -> Float32:
    """One client's update (d,): standard normals."""
    return np.random.default_rng(row).standard_normal(dim, dtype=np.float32)


def upload_key(row: int) -> bytes:
    """Whatever 32 bytes a client draws, it draws these: the key of its upload among them."""
    return _seed(f"upload-{row}")


def _member(name: str) -> Member:
    return Member(name, _identity(name).public)


def _identity(name: str) -> Identity:
    return Identity(_seed(name))


def _seed(name: str) -> bytes:
    return hashlib.sha256(b"ostraka/bench/" + name.encode()).digest()


GAUSSIAN, EXACT, SKETCH, SKETCH_INSIDE = "gaussian", "exact", "sketch", "sketch-inside"
_MASKINGS = {GAUSSIAN: "gaussian", EXACT: "exact", SKETCH: "exact", SKETCH_INSIDE: "none"}


def terms_of(name: str, clients: int, dim: int, *, f: int | None = None) -> Terms:
    """f: None for a fifth of the clients. Raises ConfigError if there can be no such round."""
    columns = sketch_size(clients, dim) if name in (SKETCH, SKETCH_INSIDE) else dim
    if columns is None:
        raise ConfigError(f"updates of {dim} values are too short for a sketch")
    return Terms(
        Manifest.flat(dim),
        f=byzantine(clients) if f is None else f,
        masking=_MASKINGS[name],
        sketch=None if name in (GAUSSIAN, EXACT) else columns,
        tile=default_tile(clients, dim),
    )
