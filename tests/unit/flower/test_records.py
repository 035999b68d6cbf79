"""Models as Flower's records: order, integers, and what is refused."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-env")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from ostraka.errors import ConfigError, MalformedMessage, RemoteProtocolError
from ostraka.flower import records
from ostraka.flower.records import RECORD


def test_a_model_comes_back_in_the_order_of_its_app():
    arrays = {"z": np.ones((2, 3)), "count": np.zeros(2, np.int64), "a": np.arange(4, dtype="<f4")}
    manifest = records.manifest_of({"a": arrays["a"], "z": arrays["z"]})  # another order
    vector = records.vector_of(arrays, manifest)
    np.testing.assert_array_equal(vector, [0, 1, 2, 3, 1, 1, 1, 1, 1, 1])
    record = records.Template(arrays).record(manifest, vector)
    assert list(record) == ["z", "count", "a"]
    assert [array.dtype for array in record.values()] == ["float32", "int64", "float32"]


def test_numbered_arrays_are_put_in_order():
    """Apps that number their arrays rely on the order: two of one shape could be exchanged."""
    mixed = {name: np.full(2, int(name)) + 0.5 for name in ("10", "2", "0", "1")}
    manifest = records.manifest_of(mixed)
    assert list(records.for_app(mixed, {}, manifest)) == ["0", "1", "2", "10"]
    more = {"x": np.zeros(2, np.int64), **mixed, "3": np.zeros(2, np.int64)}
    assert list(records.for_app(more, {}, manifest)) == ["0", "1", "2", "3", "10", "x"]


def test_named_arrays_are_in_the_order_of_the_signed_terms():
    """An app with `to_numpy_ndarrays` would train on a model that the sender has permuted."""
    named = {name: np.zeros(2) for name in ("b", "c", "a")}
    manifest = records.manifest_of(named)
    sent = {"n": np.zeros(2, np.int64), **dict(sorted(named.items()))}
    assert list(records.for_app(sent, {}, manifest)) == ["b", "c", "a", "n"]


def test_integers_that_a_server_sends_are_not_taken():
    arrays = {"w": np.zeros(2), "n": np.ones(2, np.int64)}
    manifest = records.manifest_of(arrays)
    with pytest.raises(RemoteProtocolError, match="does not vouch for"):
        records.for_app(arrays, {}, manifest)
    kept = records.for_app(arrays, {"n": np.array([5, 6])}, manifest)
    np.testing.assert_array_equal(kept["n"].numpy(), [5, 6])


def test_differences_are_taken_in_float64():
    manifest = records.manifest_of({"w": np.zeros(1)})
    model = np.array([1.0], "<f4")
    update, stays = records.difference({"w": np.array([1 + 1e-9])}, model, manifest)
    assert update[0] == pytest.approx(1e-9, rel=1e-6)
    assert stays == {}


@pytest.mark.parametrize(
    "array",
    [
        Array("float32", (2,), "numpy.ndarray", b"no numpy file"),
        Array("float32", (2,), "pickle", b""),
        Array(np.array(["text"])),
        Array(np.array([1j])),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(array):
    with pytest.raises(ConfigError):
        records.read_arrays(ArrayRecord({"w": array}))


CONTENTS = {
    "nothing": RecordDict(),
    "plain arrays": RecordDict({"arrays": ArrayRecord([np.zeros(3)])}),
    "plain arrays under our name": RecordDict({RECORD: ArrayRecord([np.zeros(3)])}),
    "a plain array under both names": RecordDict(
        {RECORD: ArrayRecord({RECORD: Array(np.ones(3))})}
    ),
    "another kind of record": RecordDict({RECORD: ConfigRecord({RECORD: b"x"})}),
    "words": RecordDict({RECORD: ConfigRecord({"hello": "hello", "proof": 3})}),
}


@pytest.mark.parametrize("what", CONTENTS)
def test_what_is_no_message_of_ours_is_malformed(what):
    with pytest.raises(MalformedMessage):
        records.read_message(CONTENTS[what])


@pytest.mark.parametrize("message", [b"", b"a message"])
def test_a_message_comes_back_from_its_record(message):
    assert records.read_message(RecordDict({RECORD: records.message_record(message)})) == message
