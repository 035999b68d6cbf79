"""Services that fail, stop, restart and come back. The update arrives once, or its end is told."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace

import grpc
import numpy as np
import pytest

from ostraka.client import connection, upload
from ostraka.client.events import AlreadySent, Reconnecting, Resending, Uploading, Waiting
from ostraka.client.upload import ENDED, WITHOUT
from ostraka.config import Member
from ostraka.crypto import updates
from ostraka.errors import LocalProtocolError, ReceiptRefused, Rejection, ServiceError
from ostraka.transport import LENGTH, dial
from ostraka.transport import ostraka_pb2 as wire

pytestmark = pytest.mark.slow  # in make test, not in make check

D, TILES = 17, 5
UPDATE = np.linspace(-1, 1, D).astype(np.float32)
UNAVAILABLE = (grpc.StatusCode.UNAVAILABLE, "stopping")


def outcome_is_awaited(service):
    """Then all of the update has arrived."""
    return lambda: "AwaitOutcome" in service.calls


def mean_of(update):
    """Three others send zeros."""
    return update / 4


@pytest.mark.parametrize("breaks", [[0], [1], [4], [5], [1, 0, 2], [2, 2, 0]])
def test_a_broken_upload_goes_on_where_it_stopped_with_the_same_bytes(
    breaks, alice, service, sealed
):
    alice.fetch()
    service.breaks = breaks
    before = service.state.model
    assert alice.submit(UPDATE).accepted
    (one,) = sealed
    assert {stream[0] for stream in service.arrived} == {one.header}
    arrived = [tile for stream in service.arrived for tile in stream[1:]]
    assert arrived == list(one.tiles)
    assert np.allclose(service.state.model, before + mean_of(UPDATE), atol=1e-6)


def test_all_tiles_go_over_one_lane(alice, service, told):
    alice.fetch()
    alice.submit(UPDATE)
    assert Uploading(1, TILES, TILES) in told
    (stream,) = service.arrived
    assert len(stream) == 1 + TILES


@pytest.mark.parametrize("tiles", [0, 2])
def test_a_lane_that_breaks_alone_is_opened_again(tiles, alice, service, told):
    """The call goes on, until its service notices."""
    alice.fetch()
    service.cuts = [tiles]
    assert alice.submit(UPDATE).accepted
    assert [each.tiles for each in told if isinstance(each, Uploading)] == [TILES, TILES - tiles]


def test_a_lane_that_cannot_be_opened_is_tried_again(alice, service, told, monkeypatch):
    alice.fetch()
    real, refused = dial.dial_lane, [ConnectionRefusedError(111, "refused")] * 2

    def dial_lane(*arguments, **options):
        if refused:
            raise refused.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(connection, "dial_lane", dial_lane)
    assert alice.submit(UPDATE).accepted
    reasons = [each.why for each in told if isinstance(each, Reconnecting)]
    assert len(reasons) == 2
    assert all("no lane to 127.0.0.1" in each for each in reasons)


def test_an_array_that_changes_is_not_sent_again_under_the_same_key(
    alice, service, sealed, monkeypatch
):
    """Two seals under one key and nonce would show the difference of two updates."""
    alice.fetch()
    service.breaks = [3]
    real, arrays = updates.seal, []

    def seal(update, **options):
        arrays.append(update.values)
        return real(update, **options)

    def change(honest):
        arrays[0].flags.writeable = True
        arrays[0][0] += 1
        return honest

    def from_the_start(honest):
        return wire.UploadReply(granted=wire.Granted(next=0))

    monkeypatch.setattr(updates, "seal", seal)
    service.lies |= {"AwaitOutcome": change, "Granted": from_the_start}
    with pytest.raises(LocalProtocolError, match="changed while it was being sent"):
        alice.submit(UPDATE.copy())
    sent = [tile for stream in service.arrived for tile in stream[1:]]
    assert sent == list(sealed[0].tiles[:3])  # Nothing came over the second lane.


def test_an_interrupt_half_way_leaves_no_lane_behind(alice, service, monkeypatch):
    alice.fetch()
    real, lanes = upload.frames, []

    def interrupted(sealed, numbers):
        for number, frame in zip(numbers, real(sealed, numbers), strict=True):
            if number == 2:
                raise KeyboardInterrupt
            yield frame

    def dial_lane(*arguments, **options):
        lanes.append(dial.dial_lane(*arguments, **options))
        return lanes[-1]

    monkeypatch.setattr(connection, "dial_lane", dial_lane)
    monkeypatch.setattr(upload, "frames", interrupted)
    with pytest.raises(KeyboardInterrupt):
        alice.submit(UPDATE)
    monkeypatch.setattr(upload, "frames", real)
    assert alice.submit(UPDATE).accepted
    assert [lane.fileno() for lane in lanes] == [-1, -1]


def test_a_tile_that_was_changed_on_the_way_is_sent_again(alice, service, sealed):
    alice.fetch()
    denied = (grpc.StatusCode.PERMISSION_DENIED, "tile does not open")
    service.spoils = [denied] * 3
    assert alice.submit(UPDATE).accepted
    assert len(sealed) == 1


def test_an_upload_that_makes_progress_is_not_given_up(alice, service):
    """Whoever changes one bit of each lane delays it, and ends nothing."""
    alice.fetch()
    service.spoils = [(grpc.StatusCode.PERMISSION_DENIED, "tile does not open")] * 9
    steps = iter(range(9))

    def one_tile_further(honest):
        if not service.spoils:
            return honest
        behind = next(steps) // 3
        return wire.UploadReply(granted=wire.Granted(next=behind))

    service.lies["Granted"] = one_tile_further
    assert alice.submit(UPDATE).accepted


def test_tiles_that_never_open_are_given_up(alice, service):
    alice.fetch()
    denied = (grpc.StatusCode.PERMISSION_DENIED, "tile does not open")
    service.spoils = [denied] * 100
    with pytest.raises(ServiceError, match="tile does not open"):
        alice.submit(UPDATE)
    assert len(service.spoils) == 96


def test_an_enclave_that_restarts_gets_the_same_update_under_a_fresh_key(
    alice, service, sealed, told
):
    alice.fetch()
    service.restart()
    before = service.state.model
    assert alice.submit(UPDATE).accepted
    assert np.allclose(service.state.model, before + mean_of(UPDATE), atol=1e-6)
    first, second = sealed
    assert first.header.round_id != second.header.round_id
    assert first.header.upload_id != second.header.upload_id
    assert not {tile.ciphertext for tile in first.tiles} & {t.ciphertext for t in second.tiles}
    assert Resending(1) in told
    # Nothing of the first one was sent but its header.
    assert service.arrived[0] == [first.header]
    assert service.arrived[1] == [second.header, *second.tiles]


def test_a_restart_after_the_upload_is_complete(alice, service, sealed, when):
    alice.fetch()
    service.auto = False

    def restart():
        service.auto = True
        service.restart()

    when(outcome_is_awaited(service), restart)
    outcome = alice.submit(UPDATE)
    assert outcome.accepted
    assert len(sealed) == len(service.arrived) == 2
    assert len(service.receipts) == 1


def test_an_update_is_not_sent_again_without_end(alice, service, sealed):
    """Each time, a host may have seen an aggregate with it; it needs a few to solve for it."""
    alice._resends = 2
    alice.fetch()
    service.auto = False

    def void(honest):
        service.restart()
        return wire.OutcomeReply(void=wire.Void())

    service.lies["AwaitOutcome"] = void
    with pytest.raises(ServiceError, match="sent 3 times"):
        alice.submit(UPDATE)
    assert len(sealed) == 3


def test_a_restart_in_the_middle_of_the_upload(alice, service, sealed):
    alice.fetch()
    service.breaks = [3]
    service.lies["AwaitOutcome"] = lambda honest: (
        service.lies.clear(),
        service.restart(),
        wire.OutcomeReply(pending=wire.Pending()),
    )[-1]
    assert alice.submit(UPDATE).accepted
    assert len(sealed) == 2
    assert [each[0].upload_id for each in service.arrived] == [
        sealed[0].header.upload_id,
        sealed[0].header.upload_id,
        sealed[1].header.upload_id,
    ]


def test_terms_that_changed_with_the_restart_are_adopted_first(alice, service, charter, sealed):
    alice.fetch()
    service.adopt(charter(revision=2))
    outcome = alice.submit(UPDATE)
    assert outcome.accepted
    assert outcome.receipt.revision == 2
    assert [each.header.federation for each in sealed] == [
        charter().federation.digest(),
        charter(revision=2).federation.digest(),
    ]


def has_failed(told, times):
    return lambda: sum(isinstance(each, Reconnecting) for each in told) >= times


def test_a_service_that_is_away_is_waited_for(alice, host, service, told, when):
    host.down()
    when(has_failed(told, 3), host.up)
    assert alice.fetch().round == 1
    host.down()
    when(has_failed(told, 6), host.up)
    assert alice.submit(UPDATE).accepted


def test_a_service_that_dies_while_the_outcome_is_awaited(alice, host, service, told, when):
    alice.fetch()
    service.auto = False

    def die():
        host.down()
        when(has_failed(told, 1), come_back)

    def come_back():
        host.up()
        service.publish()

    when(outcome_is_awaited(service), die)
    assert alice.submit(UPDATE).accepted


def test_a_service_that_dies_and_forgets_while_the_outcome_is_awaited(
    alice, host, service, sealed, when
):
    alice.fetch()
    service.auto = False

    def die():
        host.down()
        service.auto = True
        service.restart()
        host.up()

    when(outcome_is_awaited(service), die)
    assert alice.submit(UPDATE).accepted
    assert len(sealed) == 2


@pytest.mark.parametrize("method", ["Introduce", "GetModel"])
@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    ],
)
def test_what_may_pass_is_tried_again(method, code, alice, service, told):
    service.failures[method] = [(code, "later")] * 3
    assert alice.fetch().round == 1
    failed = [each for each in told if isinstance(each, Reconnecting)]
    assert [each.attempt for each in failed] == [1, 2, 3]
    assert failed[0].why == "later"


@pytest.mark.parametrize("method", ["Upload", "AwaitOutcome", "GetModel", "GetChain"])
def test_a_submission_survives_failures_of_every_step(method, alice, service):
    alice.fetch()
    service.failures[method] = [UNAVAILABLE] * 3
    assert alice.submit(UPDATE).accepted
    assert alice.fetch().round == 2


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "enrolled"),
        (grpc.StatusCode.INVALID_ARGUMENT, "same version"),
        (grpc.StatusCode.UNIMPLEMENTED, "address"),
        (grpc.StatusCode.FAILED_PRECONDITION, "refuses: no"),
    ],
)
def test_what_does_not_pass_is_told_with_advice(code, word, alice, service):
    service.failures["Introduce"] = [(code, "no")]
    with pytest.raises(ServiceError, match=word) as caught:
        alice.fetch()
    assert (caught.value.status, caught.value.said) == (code.name, "no")


def test_a_service_that_always_fails_in_odd_ways_is_given_up(alice, service):
    service.failures["Introduce"] = [(grpc.StatusCode.UNKNOWN, "bug")] * 100
    with pytest.raises(ServiceError, match="refuses: bug"):
        alice.fetch()
    assert len(service.failures["Introduce"]) > 90


def test_patience_ends(connect, host):
    host.down()
    with connect(timeout=0.3) as client, pytest.raises(ServiceError, match=r"within 0.3 s .*run"):
        client.fetch()


def test_patience_ends_while_a_round_is_open_and_the_update_can_be_submitted_again(
    connect, service
):
    service.auto = False
    with connect(timeout=2) as client:
        client.fetch()
        received = "the update for round 1 was received; .* not published within 2 s: .*same update"
        for _ in range(2):
            with pytest.raises(ServiceError, match=received):
                client.submit(UPDATE)
        service.publish()
        outcome = client.submit(UPDATE)
        assert (outcome.round, outcome.accepted) == (1, True)
    assert len(service.receipts) == 1


def test_patience_that_ends_after_the_vote_does_not_claim_that_nobody_is_there(connect, service):
    """A vote is answered when others have voted, too."""
    service.auto_voters = ()
    enough = threading.Event()
    service.lies["Confirm"] = lambda reply: enough.wait(60) and reply
    with connect(timeout=2) as client:
        client.fetch()
        with pytest.raises(ServiceError, match="the update for round 1 was received"):
            client.submit(UPDATE)
        enough.set()
        service.release()
        assert client.submit(UPDATE).accepted


def test_patience_that_ends_before_all_is_sent_does_not_claim_that_it_was(connect, service):
    service.breaks = [2] + [0] * 1000
    with connect(timeout=2) as client:
        client.fetch()
        with pytest.raises(ServiceError, match="has not served this client within 2 s"):
            client.submit(UPDATE)


def test_patience_ends_with_a_service_that_keeps_saying_void(connect, service):
    service.auto = False
    service.lies["AwaitOutcome"] = lambda _: wire.OutcomeReply(void=wire.Void())
    with connect(timeout=2) as client:
        client.fetch()
        with pytest.raises(ServiceError, match="within 2 s"):
            client.submit(UPDATE)


def test_an_update_counts_even_if_the_word_that_it_is_complete_was_lost(alice, service):
    alice.fetch()
    service.lies["Complete"] = lambda _: 1 / 0
    assert alice.submit(UPDATE).accepted


def test_an_update_that_comes_too_late_is_told_so(alice, service, when):
    alice.fetch()
    service.auto = False
    service.failures["Upload"] = [(grpc.StatusCode.FAILED_PRECONDITION, str(Rejection.LATE))]
    when(outcome_is_awaited(service), service.publish)
    outcome = alice.submit(UPDATE)
    assert (outcome.accepted, outcome.reason) == (False, WITHOUT)
    assert outcome.receipt == service.head
    assert alice.fetch().round == 2


def test_an_update_whose_round_was_published_meanwhile(alice, service, sealed):
    """The service still has the model, and the receipt is of the round that was joined."""
    alice.fetch()
    service.publish()
    outcome = alice.submit(UPDATE)
    assert (outcome.round, outcome.accepted, outcome.reason) == (1, False, WITHOUT)
    assert outcome.receipt == service.receipts[0]
    assert alice.fetch().round == 2


def test_an_update_whose_round_is_long_gone(alice, service):
    """Its model is not kept any more; the chain is followed instead."""
    alice.fetch()
    for _ in range(3):
        service.publish()
    outcome = alice.submit(UPDATE)
    assert (outcome.round, outcome.accepted) == (1, False)
    assert outcome.receipt == service.receipts[0]
    assert alice.fetch().round == 4


def test_a_round_that_was_opened_again_and_published_without_this_update(alice, service):
    alice.fetch()
    service.restart()
    service.publish()
    outcome = alice.submit(UPDATE)
    assert (outcome.round, outcome.accepted, outcome.reason) == (1, False, WITHOUT)
    assert outcome.receipt == service.head
    assert alice.fetch().round == 2


def test_a_round_that_is_published_while_this_client_joins_again(alice, service, sealed):
    alice.fetch()
    service.restart()
    honest = service.introduction

    def publish_first(nonce):
        service.introduction = honest
        service.publish()
        return honest(nonce)

    service.introduction = publish_first
    assert alice.submit(UPDATE).reason == WITHOUT
    assert len(sealed) == 1


def test_a_round_that_is_called_void_and_published_all_the_same(alice, service, sealed):
    """The update is in it, whatever the service said in between."""
    alice.fetch()

    def void_once(honest):
        if honest.WhichOneof("outcome") == "certified":
            service.lies.clear()
            return wire.OutcomeReply(void=wire.Void())
        return honest

    service.lies["AwaitOutcome"] = void_once
    outcome = alice.submit(UPDATE)
    assert (outcome.accepted, outcome.receipt) == (True, service.head)
    assert len(sealed) == 1


def test_a_federation_that_ends_without_the_round(alice, service):
    alice.fetch()
    service.restart()
    service.finished = True
    outcome = alice.submit(UPDATE)
    assert (outcome.accepted, outcome.reason, outcome.receipt) == (False, ENDED, None)
    assert outcome.model is None


def test_an_upload_to_a_federation_that_has_finished(alice, service):
    alice.fetch()
    service.publish()
    service.finished = True
    service.failures["Upload"] = [(grpc.StatusCode.FAILED_PRECONDITION, "finished")]
    assert not alice.submit(UPDATE).accepted
    assert alice.fetch().finished


@pytest.mark.parametrize(
    "answer",
    [
        (grpc.StatusCode.ALREADY_EXISTS, "complete"),
        (grpc.StatusCode.FAILED_PRECONDITION, str(Rejection.DUPLICATE)),
    ],
)
def test_an_upload_that_was_complete_before_counts(answer, alice, service, told, when):
    alice.fetch()
    service.auto = False
    service.failures["Upload"] = [answer]
    when(outcome_is_awaited(service), service.publish)
    assert alice.submit(UPDATE).accepted
    assert AlreadySent(1) in told


def test_a_client_that_died_after_its_upload_finds_its_update_counted(connect, service, told, when):
    service.auto = False
    service.failures["AwaitOutcome"] = [(grpc.StatusCode.PERMISSION_DENIED, "die")]
    with connect() as first:
        first.fetch()
        with pytest.raises(ServiceError, match="die"):
            first.submit(UPDATE)
    service.calls.clear()
    when(outcome_is_awaited(service), service.publish)
    with connect() as second:
        second.fetch()
        assert second.submit(UPDATE).accepted
    assert AlreadySent(1) in told


def test_an_update_rejected_while_measured_is_told_with_the_receipt_s_reason(alice, service):
    alice.fetch()
    take = service.take

    def spoil(client, tile):
        """The host changes a bit of what it stores of alice's."""
        take(client, tile)
        if client == "alice" and tile.index == 0:
            names = [member.name for member in service.charter.federation.clients]
            row = names.index(client)
            stored = service.spool.read(row, 0, 0, len(tile.ciphertext))
            service.spool.write(row, 0, bytes([stored[0] ^ 1]) + stored[1:])

    service.take = spoil
    outcome = alice.submit(UPDATE)
    assert (outcome.accepted, outcome.reason) == (False, Rejection.CHANGED)


def test_a_round_that_opens_between_two_questions(alice, service, charter):
    """The terms change after the charter was given, and before the enclave introduces itself."""
    honest = service.introduction

    def adopt_first(nonce):
        service.introduction = honest
        service.adopt(charter(revision=2))
        return honest(nonce)

    service.introduction = adopt_first
    assert alice.fetch().round == 1
    assert alice.submit(UPDATE).receipt.revision == 2


def test_rounds_and_terms_that_pass_between_two_questions(alice, connect, service, charter):
    """A receipt under the old terms is followed before the new ones are agreed to."""
    alice.fetch()
    alice.submit(UPDATE)

    def pass_by():
        service.watch.clear()
        service.publish()
        service.adopt(charter(revision=2))
        service.publish()
        service.adopt(charter(revision=3))

    service.watch["Introduce"] = pass_by
    assert alice.fetch().round == 4
    assert alice.submit(UPDATE).receipt.revision == 3
    with connect() as again:
        assert again.fetch().round == 5


def test_rounds_that_pass_before_and_after_the_enclave_has_introduced_itself(alice, service):
    alice.fetch()
    alice.submit(UPDATE)
    honest = service.introduction

    def pass_by(nonce):
        service.introduction = honest
        service.publish()
        told = honest(nonce)
        service.publish()
        return told

    service.introduction = pass_by
    assert alice.fetch().round == 4


def test_terms_that_change_again_between_two_questions(alice, service, charter):
    """The round was given up, and is opened again under newer terms."""
    alice.fetch()
    alice.submit(UPDATE)
    service.adopt(charter(revision=2))

    def pass_by():
        service.watch.clear()
        service.adopt(charter(revision=3))

    service.watch["GetChain"] = pass_by
    assert alice.fetch().round == 2
    assert alice.submit(UPDATE).receipt.revision == 3


def test_the_last_round_that_is_published_while_a_client_asks_for_it(alice, service):
    alice.fetch()
    alice.submit(UPDATE)

    def finish():
        service.publish(value=1.0)
        service.finished = True

    service.watch["Introduce"] = finish
    model = alice.fetch()
    assert (model.round, model.finished) == (2, True)


def test_a_model_that_is_replaced_before_it_is_asked_for(alice, service):
    honest = service.introduction

    def publish_after(nonce):
        service.introduction = honest
        told = honest(nonce)
        service.publish(value=1.0)
        return told

    service.introduction = publish_after
    assert alice.fetch().round == 2


def test_a_model_that_is_never_there_is_no_endless_loop(alice, service):
    service.failures["GetModel"] = [(grpc.StatusCode.NOT_FOUND, "gone")] * 10
    with pytest.raises(ServiceError, match="gone"):
        alice.fetch()
    assert len(service.failures["GetModel"]) == 8


def test_what_is_waited_for_is_told(alice, service, told, when):
    alice.fetch()
    service.auto = False
    when(outcome_is_awaited(service), service.publish)
    alice.submit(UPDATE)
    assert Waiting("an open round") in told
    assert Waiting("round 1 to be published") in told
    assert all(str(each) for each in told)


@pytest.mark.parametrize(
    ("who", "word"),
    [
        ({"revoked": True}, "is revoked"),
        ({"absent": True}, "is not enrolled"),
        ({"rekeyed": True}, "another key"),
    ],
)
def test_a_client_that_is_not_on_the_roster_learns_why(who, word, alice, service, charter):
    """From the charter, whether the service refuses to introduce itself or not."""
    everybody = charter().federation.clients
    alice_herself, *others = everybody
    newcomer = Member("erin", b"\x55" * 32)
    if "revoked" in who:
        changes = {"clients": (*others, newcomer), "revoked": (alice_herself,)}
    elif "absent" in who:
        changes = {"clients": (*others, newcomer)}
    else:
        changes = {"clients": (replace(alice_herself, key=b"\x44" * 32), *others)}
    service.adopt(charter(revision=2, **changes))
    with pytest.raises(ServiceError, match=word):
        alice.fetch()
    service.failures["Introduce"] = [(grpc.StatusCode.PERMISSION_DENIED, "no")]
    with pytest.raises(ServiceError, match=word):
        alice.fetch()


SCRIPT = """
import sys, ostraka
import numpy as np
address, folder = sys.argv[1:]
client = ostraka.Client(
    address,
    name="alice",
    key=f"{folder}/alice.key",
    policy=f"{folder}/policy.toml",
    unsafe_simulation=True,
    on_event=lambda each: print(each, flush=True),
)
with client:
    client.fetch()
    client.submit(np.ones(17))
"""


def test_ctrl_c_ends_a_script_that_waits(host, service, folder):
    service.auto = False
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, host.address, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if "to be published" in line:
                process.send_signal(signal.SIGINT)
                break
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt\nthe update for round 1 is already in, and stays there" in errors


def test_a_receipt_that_names_other_evidence_is_refused(alice, service, when):
    alice.fetch()
    service.auto = False
    service.intake._context = replace(service.intake._context, evidence="sgx")
    when(outcome_is_awaited(service), service.publish)
    with pytest.raises(ReceiptRefused, match="other evidence"):
        alice.submit(UPDATE)


@contextmanager
def odd_peer(act):
    """Where a service seems to be, that does this with a lane. Gives its address."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            near, _ = listening.accept()
            with near, suppress(OSError):
                near.recv(64)
                act(near, over)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


def never_read(near, over):
    over.wait(600)


def read_little(near, over):
    while not over.wait(0.05):
        near.recv(1024)


def drip(near, over):
    near.sendall(LENGTH.pack(2**24))
    while not over.wait(0.05):
        near.sendall(b"\0")


ODD_PEERS = {
    "takes nothing": (never_read, lambda talk: talk.send(tiles(), talk.near)),
    "takes little": (read_little, lambda talk: talk.send(tiles(), talk.near)),
    "says nothing": (never_read, lambda talk: talk.hear("granted")),
    "drips": (drip, lambda talk: talk.hear("granted")),
}


def tiles():
    return [memoryview(bytes(2**23))] * 8


@pytest.mark.parametrize("sentence", ODD_PEERS)
def test_no_service_keeps_a_client_longer_than_its_patience(sentence):
    act, work = ODD_PEERS[sentence]
    with (
        odd_peer(act) as address,
        connection.Lanes(address, None, connection.Patience(0.5), dial.Sockets()) as lanes,
        pytest.raises(connection.LaneBroken),
    ):
        work(upload._Talk(lanes, bytes(32), wire.UploadRequest(header=b"h")))


def test_a_connection_that_is_closed_opens_no_lane():
    made = connection.Connection(
        "127.0.0.1:1", tls_ca=None, patience=connection.Patience(60), tell=lambda event: None
    )
    made.close()
    with made.lanes() as lanes, pytest.raises(connection.LaneBroken, match="ended"):
        lanes.open(bytes(32))
