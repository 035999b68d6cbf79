"""Models and Ostraka's messages as Flower's records.

A model's floating arrays make up the one vector of a federation, as float32. Its integer arrays (a
batch norm's count of batches) stay at each node: they are neither averaged nor vouched for, so they
begin at zero. A message of Ostraka is an Array of a kind that other strategies cannot read, and so
cannot average.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from ostraka.arrays import AnyArray, Float32
from ostraka.client.results import flatten
from ostraka.config import Manifest, Tensor
from ostraka.errors import ConfigError, MalformedMessage, RemoteProtocolError
from ostraka.model_file import named_tensors

RECORD = "ostraka"
"""The name of the record with a message of Ostraka, and the kind of its Array."""

_INTEGERS = "iub"
_NUMBER_BYTES = 8


def message_record(message: bytes) -> ArrayRecord:
    """Wrap a message of `ostraka.carried`."""
    return ArrayRecord({RECORD: Array("uint8", (len(message),), RECORD, message)})


def read_message(content: RecordDict) -> bytes:
    """Return the message of `ostraka.carried` in this content. Raises MalformedMessage."""
    record = content.get(RECORD)
    array = record.get(RECORD) if isinstance(record, ArrayRecord) else None
    if array is None or array.stype != RECORD:
        raise MalformedMessage(
            f"there is no record {RECORD!r}: is the strategy one of ostraka.flower, and "
            "sealing_mod the first mod?"
        )
    return array.data


def size_of(content: RecordDict) -> int:
    """Return about how many bytes a message's content has."""
    arrays = (array for record in content.array_records.values() for array in record.values())
    metrics = (value for record in content.metric_records.values() for value in record.values())
    config = (value for record in content.config_records.values() for value in record.values())
    return sum(len(array.data) for array in arrays) + sum(map(_size, (*metrics, *config)))


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else _NUMBER_BYTES


def read_arrays(record: ArrayRecord) -> dict[str, AnyArray]:
    """Return the arrays of a model. Raises ConfigError unless they hold numbers."""
    try:
        arrays = {name: array.numpy() for name, array in record.items()}
    except (TypeError, ValueError, OSError, EOFError):
        raise ConfigError("an array cannot be read") from None
    for name, array in arrays.items():
        if array.dtype.kind not in "f" + _INTEGERS:
            raise ConfigError(f"array {name!r} holds {array.dtype}, not real numbers")
    return arrays


def manifest_of(arrays: Mapping[str, AnyArray]) -> Manifest:
    """Return what the vector of such a model consists of. Raises ConfigError."""
    floating = {name: array for name, array in arrays.items() if not is_local(array)}
    return Manifest(tuple(Tensor(name, array.shape) for name, array in floating.items()))


def is_local(array: AnyArray) -> bool:
    """Tell whether an array stays at its node."""
    return array.dtype.kind in _INTEGERS


def vector_of(arrays: Mapping[str, AnyArray], manifest: Manifest) -> Float32:
    """Return a model (d,). Raises ConfigError, which names the array at fault."""
    return flatten({name: a for name, a in arrays.items() if not is_local(a)}, manifest)


class Template:
    """The form of a model as its app made it: names, their order, and integers.

    A federation's manifest may have another order, and some apps rely on their own.
    """

    def __init__(self, arrays: Mapping[str, AnyArray]) -> None:
        self._local = {name: array for name, array in arrays.items() if is_local(array)}
        self._names = tuple(arrays)
        for name, array in self._local.items():
            if array.any():
                raise ConfigError(
                    f"array {name!r} holds integers that are not zero. The enclave does not vouch "
                    "for them, so nodes would refuse them: leave them out of the record"
                )

    def record(self, manifest: Manifest, vector: Float32) -> ArrayRecord:
        """Return this model (d,) in that form. Raises ConfigError if it has other names."""
        tensors: dict[str, Any] = named_tensors(manifest, vector) | self._local
        if set(tensors) != set(self._names):
            odd = sorted(set(tensors) ^ set(self._names))
            raise ConfigError(f"the app's model and the federation's differ in {', '.join(odd)}")
        return ArrayRecord({name: _array(tensors[name]) for name in self._names})


def for_app(
    arrays: Mapping[str, AnyArray], local: Mapping[str, AnyArray], manifest: Manifest
) -> ArrayRecord:
    """Return a verified model for the app, with this node's own integers."""
    own = {name: _own(name, arrays[name], local) for name in _ordered(arrays, manifest)}
    return ArrayRecord({name: _array(array) for name, array in own.items()})


def _ordered(names: Iterable[str], manifest: Manifest) -> list[str]:
    """Put names in the manifest's order, and integers last. Apps may rely on the order.

    Names that are numbers are sorted, since an app that numbers its arrays relies on that.
    """
    known = [tensor.name for tensor in manifest.tensors]
    ordered = known + sorted(set(names) - set(known))
    if all(map(_is_number, known)):
        ordered.sort(key=lambda name: (0, int(name)) if _is_number(name) else (1, 0))
    return ordered


def _is_number(name: str) -> bool:
    return name.isdecimal() and name == str(int(name))


def _own(name: str, array: AnyArray, local: Mapping[str, AnyArray]) -> AnyArray:
    if not is_local(array):
        return array
    kept = local.get(name)
    if kept is not None and (kept.shape, kept.dtype) == (array.shape, array.dtype):
        return kept
    if array.any():
        raise RemoteProtocolError(
            f"array {name!r} holds integers that the enclave does not vouch for"
        )
    return array


def difference(
    trained: Mapping[str, AnyArray], model: Float32, manifest: Manifest
) -> tuple[Float32, dict[str, AnyArray]]:
    """Return an update (d,), and the integers that stay. Raises ConfigError, naming the array.

    The difference is taken in float64, in which some apps train.
    """
    before = named_tensors(manifest, model)
    moved: dict[str, Any] = {}
    for name, array in trained.items():
        if name not in before:
            if not is_local(array):
                moved[name] = array  # `flatten` refuses it.
        elif is_local(array):
            raise ConfigError(f"array {name!r} holds {array.dtype}, and the model's is float32")
        elif array.shape != before[name].shape:
            raise ConfigError(f"array {name!r} is {before[name].shape}; got {array.shape}")
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                moved[name] = array.astype(np.float64) - before[name]
    stays = {name: a for name, a in trained.items() if is_local(a)}
    return flatten(moved, manifest), stays


def _array(array: AnyArray) -> Array:
    return Array(np.ascontiguousarray(array).reshape(array.shape))
