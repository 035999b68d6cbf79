"""An honest service: rounds from the first model to the last, and what is left behind."""

import threading
import time

import numpy as np
import pytest

from ostraka.errors import ConfigError, LocalProtocolError, ServiceError
from ostraka.messages import vector_digest

D, TILES = 17, 5


def as_arrays(vector):
    return {"weight": vector[:12].reshape(4, 3), "bias": vector[12:]}


def test_a_round_from_the_model_to_the_receipt(alice, service):
    model = alice.fetch()
    assert (model.round, model.simulated, model.finished) == (1, True, False)
    assert np.array_equal(model.vector, service.state.model)
    before = service.state.model.copy()
    outcome = alice.submit(as_arrays(np.full(D, 4, np.float32)))
    assert (outcome.round, outcome.accepted, outcome.reason) == (1, True, None)
    assert outcome.receipt == service.head
    assert outcome.model == vector_digest(service.state.model)
    assert np.allclose(service.state.model, before + 1)  # the mean of 4, 0, 0 and 0
    assert np.array_equal(alice.fetch().vector, service.state.model)


def test_arrays_are_copies_by_the_names_of_the_manifest(alice):
    model = alice.fetch()
    assert {name: each.shape for name, each in model.arrays.items()} == {
        "weight": (4, 3),
        "bias": (5,),
    }
    assert np.array_equal(model.arrays["bias"], model.vector[12:])
    model.arrays["bias"] += 1
    assert not np.array_equal(model.arrays["bias"], model.vector[12:])
    with pytest.raises(ValueError, match="read-only"):
        model.vector[0] = 1


def test_many_rounds_with_one_client_and_with_a_new_one_each_time(alice, connect, service):
    for number in (1, 2):
        assert alice.fetch().round == number
        alice.submit(np.ones(D))
    for number in (3, 4):
        with connect() as again:
            assert again.fetch().round == number
            again.submit(np.ones(D))
    assert len(service.receipts) == 4


@pytest.mark.parametrize(("comes_with_votes", "downloads"), [(True, 1), (False, 4)])
def test_the_next_model_is_not_downloaded_twice(comes_with_votes, downloads, alice, service):
    def without(reply):
        reply.ClearField("model")
        return reply

    if not comes_with_votes:
        service.lies["Confirm"] = without
    for _ in range(3):
        alice.fetch()
        alice.submit(np.ones(D))
    assert service.calls.count("GetModel") == downloads


def test_rounds_that_a_client_missed_are_followed_first(alice, connect, service):
    alice.fetch()
    alice.submit(np.ones(D))
    for _ in range(3):
        service.publish()
    assert alice.fetch().round == 5
    with connect() as again:
        assert again.fetch().round == 5


def test_a_newcomer_may_join_at_any_round(connect, service):
    service.publish()
    service.publish()
    with connect("bob") as bob:
        assert bob.fetch().round == 3


def test_fetching_twice_joins_the_round_that_is_open_now(alice, service):
    assert alice.fetch().round == 1
    service.publish()
    assert alice.fetch().round == 2
    assert alice.submit(np.ones(D)).round == 2


def test_an_update_can_be_submitted_once(alice):
    with pytest.raises(LocalProtocolError, match="fetch a model first"):
        alice.submit(np.ones(D))
    alice.fetch()
    alice.submit(np.ones(D))
    with pytest.raises(LocalProtocolError, match="fetch a model first"):
        alice.submit(np.ones(D))


def test_a_wrong_update_is_the_caller_s_mistake_and_the_right_one_still_counts(alice, service):
    alice.fetch()
    with pytest.raises(ConfigError, match="lacks tensor 'bias'"):
        alice.submit({"weight": np.ones((4, 3))})
    assert service.arrived == []
    assert alice.submit(np.ones(D)).accepted


def test_a_closed_client_says_so(connect):
    with connect() as client:
        pass
    with pytest.raises(LocalProtocolError, match="closed"):
        client.fetch()


def test_when_all_rounds_are_over_the_last_model_is_there(alice, connect, service):
    alice.fetch()
    alice.submit(np.ones(D))
    service.publish()
    service.finished = True
    model = alice.fetch()
    assert (model.round, model.finished, model.simulated) == (2, True, True)
    assert np.array_equal(model.vector, service.state.model)
    with pytest.raises(ServiceError, match="finished"):
        alice.submit(np.ones(D))
    with connect() as again:
        assert again.fetch().finished


def test_a_stranger_to_the_chain_cannot_tell_which_model_was_the_last(connect, service):
    service.publish()
    service.finished = True
    with connect("bob") as bob, pytest.raises(ServiceError, match="holds no receipt"):
        bob.fetch()


def test_a_new_revision_is_followed_and_remembered(alice, connect, service, charter):
    alice.fetch()
    alice.submit(np.ones(D))
    service.adopt(charter(revision=2))
    assert alice.fetch().round == 2
    assert alice.submit(np.ones(D)).receipt.revision == 2
    service.adopt(charter(revision=3))
    service.publish()
    service.adopt(charter(revision=5))
    with connect() as again:
        assert again.fetch().round == 4
        assert again.submit(np.ones(D)).receipt.revision == 5


def test_no_thread_is_left_behind(alice, service):
    def threads():
        return {each for each in threading.enumerate() if not each.name.startswith("fake-service")}

    def fail_slowly(_):
        service.lies.clear()
        time.sleep(0.2)  # until the client waits for its ticket
        raise RuntimeError

    before = threads()
    alice.fetch()
    service.lies["Granted"] = fail_slowly
    service.breaks = [TILES, 1]
    alice.submit(np.ones(D))
    deadline = time.monotonic() + 60
    while threads() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() <= before


def test_a_client_shows_no_key(alice):
    assert repr(alice).startswith("Client('127.0.0.1:")
    assert "alice" in repr(alice)
    assert "01" * 32 not in repr(vars(alice))
