"""What a client gets: models, and what became of its updates."""

from dataclasses import dataclass, field

from ostraka.arrays import Float32
from ostraka.config import Manifest
from ostraka.messages import SIMULATION, Receipt, RoundOffer
from ostraka.services.model_file import named_tensors


@dataclass(frozen=True, eq=False)
class Model:
    """The global model to train from.

    round: the round that it is for, or the last one if `finished`: then there is none left to take
    part in. vector: (d,) float32, not to be written to. arrays: copies of its parts, by name.
    simulated: no TEE protects the enclave.
    """

    round: int
    vector: Float32 = field(repr=False)
    manifest: Manifest = field(repr=False)
    digest: bytes = field(repr=False)
    simulated: bool
    finished: bool = False
    arrays: dict[str, Float32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        views = named_tensors(self.manifest, self.vector)
        object.__setattr__(self, "arrays", {name: view.copy() for name, view in views.items()})

    @classmethod
    def before(cls, offer: RoundOffer, vector: Float32, manifest: Manifest, kind: str) -> "Model":
        """Of a round that is open. kind: of the evidence that its enclave has shown."""
        return cls(offer.number, vector, manifest, offer.model, kind == SIMULATION)

    @classmethod
    def last(cls, receipt: Receipt, vector: Float32, manifest: Manifest) -> "Model":
        """When all rounds are over."""
        simulated = receipt.evidence == SIMULATION
        return cls(receipt.number, vector, manifest, receipt.model, simulated, finished=True)


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
