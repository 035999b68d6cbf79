"""Where a federation is, from what its enclave logs."""

import pytest

from ostraka.demo.progress import Progress
from ostraka.errors import RoundFailed


def event(name, **fields):
    return {"event": name, "simulated": True, **fields}


STORY = [
    (event("ServiceStarted"), "starting the enclave and 2 workers"),
    (event("WorkerJoined", worker="worker-1"), "starting the enclave and 2 workers"),
    (event("WorkerJoined", worker="worker-2"), "starting 5 clients"),
    (event("RoundOpened", number=1), "starting 5 clients"),
    (event("UploadStarted", client="client-1"), "starting 5 clients"),
    (event("UploadCompleted", client="client-1"), "round 1 of 2: 1 of 5 clients are in"),
    (
        event("UploadRefused", client="client-4", why="a NaN"),
        "round 1 of 2: 2 of 5 clients are in, waiting for client-2, client-3, client-5",
    ),
    (event("RoundClosed", number=1), "round 1 of 2: measuring"),
    (
        event("AttemptStarted", workers=["worker-1", "worker-2"]),
        "round 1 of 2: worker-1 and worker-2 measure",
    ),
    (event("RoundPublished", number=1), "round 2 of 2: 0 of 5 clients are in"),
    (event("RoundOpened", number=2), "round 2 of 2: 0 of 5 clients are in"),
    (event("AttemptStarted", workers=[]), "round 2 of 2: 0 of 5 clients are in"),
    (event("RoundPublished", number=2), "ending all processes"),
]


def test_a_demo_as_it_is_told():
    progress = Progress(tuple(f"client-{i}" for i in range(1, 6)), workers=2, rounds=2)
    for said, shown in STORY:
        progress.note(said)
        assert str(progress) == shown, said
    assert progress.measured_by == {1: ("worker-1", "worker-2"), 2: ()}
    assert progress.published == 2


def test_clients_can_come_when_enclave_and_workers_are_there():
    progress = Progress(("client-1",), workers=1, rounds=1)
    progress.note(event("WorkerJoined", worker="worker-1"))
    assert not progress.ready
    progress.note(event("ServiceStarted"))
    assert progress.ready


def test_a_round_that_is_given_up_ends_the_demo():
    progress = Progress(("client-1",), workers=0, rounds=1)
    with pytest.raises(RoundFailed, match="round 3 was given up: no quorum"):
        progress.note(event("RoundSkipped", number=3, why="no quorum"))
