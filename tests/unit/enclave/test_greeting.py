"""What a client signed can be replayed by anyone. It costs its sender, and keeps nobody out."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from ostraka.client.connection import Connection, Greeting, Patience
from ostraka.crypto.identity import Identity
from ostraka.enclave.reception import Quoting
from ostraka.encoding import UNSIGNED, encode
from ostraka.messages import Challenge, ClientHello
from ostraka.transport import PROVED
from ostraka.transport import ostraka_pb2 as wire

RNG = np.random.default_rng(0)
N, D = 5, 100
PATIENCE_S = 60.0
DENIED = grpc.StatusCode.PERMISSION_DENIED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
LATE = grpc.StatusCode.DEADLINE_EXCEEDED
REFUSED = grpc.StatusCode.FAILED_PRECONDITION
UNPROVED = grpc.StatusCode.UNAUTHENTICATED


def rows() -> np.ndarray:
    return RNG.normal(size=(N, D)).astype(np.float32)


def code_of(call: Any, *arguments: Any, **named: Any) -> grpc.StatusCode:
    """How a call ends. Streams are read to their end."""
    try:
        reply = call(*arguments, **named)
        if isinstance(reply, Iterator):
            list(reply)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def replay(who: Any, header: Any) -> grpc.StatusCode:
    """How an upload ends of which nothing is sent but the header."""
    try:
        sending = who.begin(header)
    except grpc.RpcError as refused:  # It is not even given a ticket.
        return refused.code()
    with sending:
        with suppress(grpc.RpcError):
            sending.hear()
            sending.hang_up()
        return sending.ends_with()


@pytest.fixture
def service(start):
    running = start(clients=N, dimension=D, settings={"deadline_s": 600, "requests_per_minute": 20})
    running.wait_for("RoundOpened")
    return running


@pytest.fixture
def stranger(service, speaker):
    """A connection that nobody has proved to be its own, from the same address as all clients."""
    return speaker(service, 1, greets=False)


def test_a_replayed_challenge_does_not_keep_its_client_out(service, speaker, stranger):
    identity = service.identity("client-1")
    old = identity.sign(Challenge(b"n" * 32, "client-1", UNSIGNED))
    request = wire.IntroduceRequest(challenge=encode(old))
    codes = {
        code_of(stranger.stub.Introduce, request, timeout=PATIENCE_S) for _ in range(8 * N + 2)
    }
    assert codes == {grpc.StatusCode.OK, EXHAUSTED}  # The address has had what it may have.
    for number in range(1, N + 1):
        assert speaker(service, number).send(rows()[number - 1])


def test_a_header_of_an_old_round_does_not_end_its_client_s_stream(service, speaker, stranger):
    updates = rows()
    clients = [speaker(service, number) for number in range(1, N + 1)]
    joined = [client.join() for client in clients]
    sealed = [each.seal(row).sealed for each, row in zip(joined, updates, strict=True)]
    for client, each in zip(clients, sealed, strict=True):
        client.upload(each)
    for client, each in zip(clients, joined, strict=True):
        client.follow(each)
    service.wait_for("RoundOpened", 2)

    ours = clients[0].join().seal(updates[0]).sealed
    upload = clients[0].begin(ours.header)
    assert upload.hear().HasField("granted")
    assert replay(stranger, sealed[0].header) == REFUSED
    assert {replay(stranger, sealed[0].header) for _ in range(8 * N + 2)} == {REFUSED, EXHAUSTED}
    with upload:
        assert upload.finish(ours) == "complete"
    told = service.named("UploadRefused")
    assert {(each.client, each.address) for each in told} == {("client-1", "127.0.0.1")}
    assert len(told) <= 20  # as often as strangers are told of


def test_a_header_of_this_round_does_not_end_its_client_s_stream(service, speaker, stranger):
    client = speaker(service, 1)
    sealed = client.join().seal(rows()[0]).sealed
    with client.begin(sealed.header) as upload:
        assert upload.hear().HasField("granted")
        assert {replay(stranger, sealed.header) for _ in range(10)} == {EXHAUSTED}
        other = speaker(service, 2)  # Another client's connection is not client 1's either.
        assert replay(other, sealed.header) == EXHAUSTED
        assert upload.finish(sealed) == "complete"


def test_its_client_ends_a_stream_that_somebody_else_began(service, speaker, stranger):
    client = speaker(service, 1)
    sealed = client.join().seal(rows()[0]).sealed
    with stranger.begin(sealed.header) as replayed:
        assert replayed.hear().HasField("granted")
        with client.begin(sealed.header) as ours:
            assert ours.hear().HasField("granted")
            assert ours.finish(sealed) == "complete"
        assert replayed.ends_with() == LATE


@pytest.mark.parametrize("first", ["its client", "a stranger"])
def test_a_header_that_was_held_back_does_not_replace_its_client_s_upload(
    service, speaker, stranger, first
):
    """On a stream of its own the client would find its upload gone, as if it were complete.

    first: who brings the header of that upload at first.
    """
    client = speaker(service, 1)
    joined = client.join()
    held_back, sealed = (joined.seal(rows()[0]).sealed for _ in range(2))
    if first == "a stranger":
        assert replay(stranger, sealed.header) != REFUSED
    with pytest.raises(grpc.RpcError, match="before it was complete"):
        client.upload(sealed, sealed.tiles[:0])
    assert replay(stranger, held_back.header) == REFUSED
    answers = [each.WhichOneof("answer") for each in client.upload(sealed)]
    assert answers == ["granted", "complete"]


def test_a_relay_that_never_greets_delivers_for_all(service, speaker):
    updates = rows()
    relay = [speaker(service, number, greets=False) for number in range(1, N + 1)]
    joined = [each.send(row) for each, row in zip(relay, updates, strict=True)]
    assert relay[0].follow(joined[0]).participants == N


COSTLY = {
    "Confirm": wire.ConfirmRequest,
    "Remind": wire.RemindRequest,
    "Prove": wire.ProveRequest,
    "Introduce": wire.IntroduceRequest,
}


@pytest.mark.parametrize("what", COSTLY)
def test_whatever_takes_a_signature_to_check_is_charged(service, stranger, what):
    call, request = getattr(stranger.stub, what), COSTLY[what]()
    codes = [code_of(call, request, timeout=PATIENCE_S) for _ in range(8 * N + 2)]
    assert codes[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert codes[-1] == EXHAUSTED


def test_one_stranger_at_a_time_is_in_line_for_evidence_with_the_enrolled():
    order: list[bytes] = []
    provider: Any = SimpleNamespace(evidence=order.append)

    async def main() -> None:
        quoting = Quoting(provider)

        def ask(name: bytes, *, stranger: bool) -> asyncio.Task[Any]:
            bound: Any = SimpleNamespace(report_data=lambda: name)
            return asyncio.create_task(quoting.evidence(bound, stranger=stranger))

        async with quoting.turn(stranger=False):
            asked = [ask(b"stranger", stranger=True) for _ in range(5)]
            await asyncio.sleep(0.01)
            asked.append(ask(b"client", stranger=False))
            await asyncio.sleep(0.01)
        await asyncio.gather(*asked)

    asyncio.run(main())
    assert order.index(b"client") == 1


def test_what_a_client_does_wrong_itself_is_told_in_its_name(service, speaker, stranger):
    client = speaker(service, 1)
    header = replace(client.join().seal(rows()[0]).sealed.header, round_id=bytes(32))
    for who in (client, stranger):
        assert replay(who, client.identity.sign(header)) == REFUSED
    told = service.named("UploadRefused")
    assert [each.address for each in told] == ["", "127.0.0.1"]


# Greetings.

WRONG_HELLOS: dict[str, tuple[dict[str, Any], grpc.StatusCode]] = {
    "of another connection": ({"nonce": bytes(32)}, UNPROVED),
    "of another federation": ({"federation": bytes(32)}, DENIED),
    "of another client": ({"client": "client-2"}, DENIED),
    "of a worker": ({"client": "worker-1"}, DENIED),
    "of nobody who is enrolled": ({"client": "mallory"}, DENIED),
}


@pytest.mark.parametrize("what", WRONG_HELLOS)
def test_a_wrong_hello_proves_nothing(service, speaker, what):
    lies, code = WRONG_HELLOS[what]
    client = speaker(service, 1, greets=False)
    with pytest.raises(grpc.RpcError) as caught:
        client.greet(**lies)
    assert caught.value.code() == code
    claim = ((PROVED, "1"),)
    assert code_of(client.stub.GetStatus, wire.StatusRequest(), metadata=claim) == UNPROVED
    client.greet()
    assert code_of(client.stub.GetStatus, wire.StatusRequest(), metadata=claim).name == "OK"


def test_a_hello_proves_its_own_connection_only(service, speaker):
    client, other = (speaker(service, 1, greets=False) for _ in range(2))
    nonce = client.stub.Greet(wire.GreetRequest()).nonce
    assert nonce != other.stub.Greet(wire.GreetRequest()).nonce
    hello = ClientHello(client.charter().federation.id, nonce, "client-1", UNSIGNED)
    request = wire.GreetRequest(hello=encode(client.identity.sign(hello)))
    assert code_of(other.stub.Greet, request) == UNPROVED
    assert code_of(client.stub.Greet, request) == grpc.StatusCode.OK


def test_a_connection_is_heard_a_few_times_only(service, speaker):
    """Greetings are charged to nobody, and each takes a signature to check."""
    client = speaker(service, 1, greets=False)
    nonce = client.stub.Greet(wire.GreetRequest()).nonce
    hello = ClientHello(client.charter().federation.id, nonce, "client-1", UNSIGNED)
    codes = [
        code_of(client.stub.Greet, wire.GreetRequest(hello=encode(each)))
        for each in [hello] * 8 + [client.identity.sign(hello)]
    ]
    assert codes == [DENIED] * 8 + [EXHAUSTED]
    other = speaker(service, 1, greets=False)
    other.greet()
    assert "client-2" in other.stub.GetStatus(wire.StatusRequest()).json


def connect(service: Any, **changed: Any) -> Connection:
    """As a client of this package connects."""
    federation = changed.pop("federation")
    greeting = Greeting("client-1", service.identity("client-1"), federation)
    return Connection(
        f"127.0.0.1:{service.port}",
        tls_ca=None,
        patience=Patience(PATIENCE_S),
        tell=lambda event: None,
        greeting=replace(greeting, **changed),
    )


def sees_names(connection: Connection) -> bool:
    return "client-2" in connection.ask("GetStatus", wire.StatusRequest()).json


def test_a_client_greets_once_and_again_on_a_new_connection(service, speaker):
    federation = speaker(service, 1).charter().federation.id
    with connect(service, federation=federation) as connection:
        assert sees_names(connection)
        proved = connection.stub
        assert sees_names(connection)
        assert connection.stub is proved
        service.crash()
        service.events.clear()
        service.start()
        assert sees_names(connection)
        assert connection.stub is not proved


def test_a_client_whose_greeting_is_refused_is_a_stranger(service, speaker):
    federation = speaker(service, 1).charter().federation.id
    for lies in ({"name": "mallory"}, {"identity": Identity.generate()}):
        with connect(service, federation=federation, **lies) as connection:
            assert not sees_names(connection)
