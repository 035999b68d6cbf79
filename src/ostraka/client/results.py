"""Named arrays, and the one vector that they make up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ostraka.arrays import Float32
from ostraka.config import Manifest, Tensor
from ostraka.errors import ConfigError
from ostraka.messages import SIMULATION, Receipt
from ostraka.model_file import named_tensors
from ostraka.protocol.client import Joined

Update: TypeAlias = Mapping[str, npt.ArrayLike] | npt.ArrayLike


def flatten(update: Update, manifest: Manifest) -> Float32:
    """An update as one new vector (d,). Raises ConfigError, which names the tensor at fault.

    update: arrays by the names of the manifest, or the vector itself.
    """
    if not isinstance(update, Mapping):
        return _flat(update, Tensor("update", (manifest.dimension,))).copy()
    _require_names(update, manifest)
    parts = [_flat(update[tensor.name], tensor) for tensor in manifest.tensors]
    return np.concatenate(parts)


def _require_names(update: Mapping[str, npt.ArrayLike], manifest: Manifest) -> None:
    known = {tensor.name for tensor in manifest.tensors}
    missing = [tensor.name for tensor in manifest.tensors if tensor.name not in update]
    extra = [name for name in update if name not in known]
    if missing or extra:
        wrong = [f"lacks {_listed(missing)}"] * bool(missing)
        wrong += [f"has {_listed(extra)}, which the model has not"] * bool(extra)
        expected = [tensor.name for tensor in manifest.tensors]
        raise ConfigError(
            f"the update {' and '.join(wrong)}: got {_names([*update])}; "
            f"expected {_names(expected)}, as in model.arrays"
        )


def _flat(value: npt.ArrayLike, tensor: Tensor) -> Float32:
    """One tensor as float32, end to end."""
    try:
        given = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as bad:
        raise ConfigError(f"tensor {tensor.name!r} is no array of numbers: {bad}") from None
    if given.dtype.kind not in "fiub":
        raise ConfigError(f"tensor {tensor.name!r} holds {given.dtype}, not real numbers")
    if given.shape != tensor.shape:
        raise ConfigError(f"tensor {tensor.name!r} is {tensor.shape}; got {given.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.ascontiguousarray(given, dtype="<f4").reshape(-1)
    if not np.isfinite(narrow).all():
        raise ConfigError(
            f"tensor {tensor.name!r} holds a NaN, an infinity or a value beyond float32: "
            "the enclave would reject the whole update"
        )
    return narrow


def _listed(names: list[str]) -> str:
    return f"tensor {_names(names)}"


def _names(names: list[str]) -> str:
    """The first few are enough to see what is wrong."""
    shown = ", ".join(repr(name) for name in names[:3]) or "nothing"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


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
        offer, manifest = joined.offer, joined.client.federation.terms.manifest
        simulated = joined.attested.kind == SIMULATION
        last = joined.client.last
        made = last if isinstance(last, Receipt) else None
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

    accepted: it took part in the round; whether it was selected is not told, unless the
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
