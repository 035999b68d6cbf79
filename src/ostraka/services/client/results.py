"""What a client gets: models, and what became of its updates."""

from dataclasses import dataclass, field
from functools import cached_property

from ostraka.arrays import Float32
from ostraka.config import Manifest
from ostraka.messages import SIMULATION, Receipt
from ostraka.model_file import named_tensors
from ostraka.protocol.client import Joined


@dataclass(frozen=True, eq=False)
class Model:
    """The global model to train from.

    round: the round that it is for, or the last one if `finished`: then there is none left to take
    part in. vector: (d,) float32, not to be written to. simulated: no TEE protects the enclave.
    receipt: of the round that made it, None for the first one and for a client that joined since.
    """

    round: int
    vector: Float32 = field(repr=False)
    manifest: Manifest = field(repr=False)
    digest: bytes = field(repr=False)
    simulated: bool
    finished: bool = False
    receipt: Receipt | None = field(default=None, repr=False)

    @cached_property
    def arrays(self) -> dict[str, Float32]:
        """Copies of its parts, by name."""
        views = named_tensors(self.manifest, self.vector)
        return {name: view.copy() for name, view in views.items()}

    @classmethod
    def before(cls, joined: Joined, vector: Float32) -> "Model":
        """Of a round that is open."""
        offer, manifest = joined.offer, joined.client.federation.rules.manifest
        simulated = joined.attested.kind == SIMULATION
        made = joined.client.last
        return cls(offer.number, vector, manifest, offer.model, simulated, receipt=made)

    @classmethod
    def last(cls, receipt: Receipt, vector: Float32, manifest: Manifest) -> "Model":
        """When all rounds are over."""
        simulated = receipt.evidence == SIMULATION
        return cls(
            receipt.number,
            vector,
            manifest,
            receipt.model,
            simulated,
            finished=True,
            receipt=receipt,
        )


@dataclass(frozen=True)
class Outcome:
    """What became of an update.

    accepted: it took part in the round; whether it was selected is not told to anybody, unless the
    federation discloses it. reason: why it did not. receipt: of the round, None if there was none.
    """

    round: int
    accepted: bool
    reason: str | None
    receipt: Receipt | None = field(repr=False)

    @property
    def model(self) -> bytes | None:
        """The digest of the global model after the round."""
        return self.receipt.model if self.receipt else None
