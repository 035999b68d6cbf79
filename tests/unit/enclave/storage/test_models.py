import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest

from ostraka.core import optimiser
from ostraka.core.optimiser import Optimiser, ServerState
from ostraka.enclave.storage.models import Models, content_digest, from_bytes, to_bytes
from ostraka.errors import ConfigError, MalformedMessage, StateError


@pytest.fixture
def kept(life, tmp_path):
    return Models(tmp_path, life.sealer(), keep=2)


def same(one, other):
    assert one.model.dtype == other.model.dtype == np.dtype("<f4")
    assert np.array_equal(one.model, other.model)
    assert len(one.moments) == len(other.moments)
    for left, right in zip(one.moments, other.moments, strict=True):
        assert left.dtype == right.dtype == np.float64
        assert np.array_equal(left, right)
    assert (one.last is None) == (other.last is None)
    if one.last is not None:
        assert one.last.dtype == other.last.dtype == np.dtype("<f4")
        assert np.array_equal(one.last, other.last)


def vectors(content):
    """A state that is not with shards."""
    state = from_bytes(content)
    assert isinstance(state, ServerState)
    return state


@pytest.mark.parametrize("kind", optimiser.KINDS)
def test_the_optimiser_goes_on_from_what_was_stored(kind):
    rule = Optimiser(kind)
    update = np.linspace(-1, 1, 7, dtype=np.float32)
    state = optimiser.advance(optimiser.start(np.zeros(7, "<f4"), rule), update, rule)
    stored = vectors(to_bytes(state))
    same(stored, state)
    same(optimiser.advance(stored, update, rule), optimiser.advance(state, update, rule))


@pytest.mark.parametrize("moments", [0, 1, 2])
def test_stored_arrays_are_aligned_whatever_the_dimension(life, moments):
    for d in (1, 2, 3, 5):
        state = ServerState(np.ones(d, "<f4"), tuple(np.ones(d) for _ in range(moments)))
        stored = vectors(to_bytes(state))
        same(stored, state)
        assert stored.model.flags.aligned
        assert all(moment.flags.aligned for moment in stored.moments)


@pytest.mark.parametrize("moments", [0, 1, 2])
def test_the_last_aggregate_is_stored_beside_the_model(life, moments):
    state = replace(life.state_of(3, moments), last=np.linspace(-1, 1, 5, dtype="<f4"))
    stored = vectors(to_bytes(state))
    same(stored, state)
    assert stored.last is not None
    assert stored.last.flags.aligned
    assert stored.model.tolist() != stored.last.tolist()
    other = replace(state, last=state.last + 1)
    assert content_digest(to_bytes(other)) != content_digest(to_bytes(state))


def test_what_was_stored_before_there_was_a_last_aggregate_is_read_as_it_was(life):
    state = life.state_of(3, moments=2)
    older = struct.pack("<QQ", 5, 2) + b"".join(
        [*(moment.tobytes() for moment in state.moments), state.model.tobytes()]
    )
    same(from_bytes(older), state)
    assert to_bytes(state) == older


@pytest.mark.parametrize("last", [None, np.ones(5, "<f4")])
def test_any_other_length_is_malformed(life, last):
    content = to_bytes(replace(life.state_of(3), last=last))
    for length in range(len(content)):
        with pytest.raises(MalformedMessage):
            from_bytes(content[:length])
    with pytest.raises(MalformedMessage):
        from_bytes(content + b"\0")


def test_two_last_aggregates_are_malformed():
    with pytest.raises(MalformedMessage, match="2 aggregates"):
        from_bytes(struct.pack("<QII", 1, 0, 2) + bytes(12))


def test_loading_undoes_saving(kept, life, tmp_path):
    content = to_bytes(life.state_of(3))
    kept.save(3, content)
    same(kept.load(3, content_digest(content)), life.state_of(3))
    assert [path.name for path in tmp_path.iterdir()] == ["model-00000003.sealed"]


def test_an_older_model_in_the_place_of_a_newer_one_does_not_open(kept, life, tmp_path):
    for number in (3, 4):
        kept.save(number, to_bytes(life.state_of(number)))
    shutil.copy(tmp_path / "model-00000003.sealed", tmp_path / "model-00000004.sealed")
    with pytest.raises(StateError, match=r"model-00000004\.sealed: does not open"):
        kept.load(4, content_digest(to_bytes(life.state_of(4))))


def test_another_state_of_the_same_round_is_refused(kept, life):
    kept.save(4, to_bytes(life.state_of(4, moments=2)))
    with pytest.raises(StateError, match="not the state after round 4 that the ledger names"):
        kept.load(4, content_digest(to_bytes(life.state_of(4))))


def test_a_missing_model_is_named(kept):
    with pytest.raises(StateError, match=r"model-00000004\.sealed: is missing"):
        kept.load(4, bytes(32))


def test_the_last_ones_are_kept(kept, life):
    for number in range(6):
        kept.save(number, to_bytes(life.state_of(number)))
    kept.prune(4)
    assert kept.numbers() == [3, 4, 5]


def test_a_model_that_cannot_be_deleted_is_in_nobody_s_way(kept, life, monkeypatch):
    for number in range(4):
        kept.save(number, b"")

    def denied(*_, **__):
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr("os.unlink", denied)
        kept.prune(3)
    assert kept.numbers() == [0, 1, 2, 3]
    kept.prune(3)
    assert kept.numbers() == [2, 3]


def test_keeping_none_is_refused(life, tmp_path):
    with pytest.raises(ConfigError, match="at least one"):
        Models(tmp_path, life.sealer(), keep=0)
