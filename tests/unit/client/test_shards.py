"""A client of an enclave with shards: its tiles and the model's slices each go their own way."""

import signal
import socket
import threading
from contextlib import suppress
from dataclasses import replace

import grpc
import numpy as np
import pytest

from ostraka.carried.messages import SealedReply, read_hello
from ostraka.carried.node import enrolled_node
from ostraka.carried.relay import PublishedModel
from ostraka.carried.remote import RemoteEnclave
from ostraka.client import connection, upload
from ostraka.client.events import Reconnecting, Sending, Uploading
from ostraka.config import Manifest
from ostraka.encoding import encode
from ostraka.errors import MalformedMessage, ReceiptRefused, ServiceError
from ostraka.transport import dial
from ostraka.transport import ostraka_pb2 as wire

D, TILES = 40_001, 10
UPDATE = np.linspace(-1, 1, D).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch):
    """Whatever happens, no thread and no lane of the client outlives its call."""
    lanes = []

    def dial_lane(*arguments, **options):
        lanes.append(dial.dial_lane(*arguments, **options))
        return lanes[-1]

    monkeypatch.setattr(connection, "dial_lane", dial_lane)
    yield lanes
    assert [lane.fileno() for lane in lanes] == [-1] * len(lanes)
    assert not [each for each in threading.enumerate() if each.name.startswith("ostraka-client")]


def came(service):
    return [tile for shard in service.shards for tile in shard.came]


def reasons(told):
    return [each.why for each in told if isinstance(each, Reconnecting)]


@pytest.mark.parametrize("count", [2, 3])
def test_each_shard_gets_its_own_tiles_and_gives_its_slice(count, sharded, told):
    service, alice = sharded(count)
    before = service.state.model
    for number in (1, 2):
        assert np.array_equal(alice.fetch().vector, service.state.model)
        assert alice.submit(UPDATE).accepted
        assert Uploading(number, TILES, TILES) in told
    assert np.allclose(service.state.model, before + UPDATE / 2, atol=1e-5)
    for shard in service.shards:
        assert shard.came == 2 * list(range(shard.span.first, shard.end))


def test_a_single_shard_is_dialled_where_it_is_said_to_be(sharded):
    service, alice = sharded(1)
    alice.fetch()
    assert alice.submit(UPDATE).accepted
    assert came(service) == list(range(TILES))


@pytest.mark.parametrize("tiles", [0, 1, 3])
def test_a_lane_that_breaks_ends_the_others_and_each_shard_goes_on_where_it_stopped(
    tiles, sharded, sealed
):
    service, alice = sharded(3)
    alice.fetch()
    service.shards[1].cuts = [tiles]
    assert alice.submit(UPDATE).accepted
    assert len(sealed) == 1
    assert service.calls.count("Upload") == 2
    for shard in service.shards:
        assert shard.came == list(range(shard.span.first, shard.end))


def test_only_shards_that_lack_tiles_are_dialled_again(sharded, told, nothing_is_left_behind):
    service, alice = sharded(2)
    alice.fetch()
    one, other = service.shards
    one_is_there = threading.Event()
    real, one.watch = service.take, lambda tile: None

    def take(client, tile):
        real(client, tile)
        if client == "alice" and tile.index == one.end - 1:
            one_is_there.set()

    service.take = take
    other.watch = lambda tile: tile < 6 or one_is_there.wait(60)
    other.cuts = [3]
    assert alice.submit(UPDATE).accepted
    assert [each.tiles for each in told if isinstance(each, Uploading)] == [TILES, 3]
    models = 2 * 2  # Two of them, in two slices each.
    leads = 2  # Both tries have a lane to the lead.
    assert len(nothing_is_left_behind) == models + leads + 3


def test_a_shard_that_is_down_for_a_while(sharded, told, when):
    service, alice = sharded(2)
    shard = service.shards[1].host
    shard.down()
    when(lambda: len(reasons(told)) >= 3, shard.up)
    alice.fetch()
    assert all(f"the shard at {shard.address}" in each for each in reasons(told))
    told.clear()
    shard.down()
    when(lambda: len(reasons(told)) >= 3, shard.up)
    assert alice.submit(UPDATE).accepted
    assert any(f"no lane to {shard.address}" in each for each in reasons(told))


def test_slices_that_are_here_are_not_asked_for_again(sharded):
    service, alice = sharded(3)
    asked = []

    def asking(shard):
        def lie(honest):
            asked.append(shard)
            return honest

        return lie

    for shard in service.shards:
        shard.lie = asking(shard)
    service.shards[2].refusals = 3
    alice.fetch()
    assert sorted(map(service.shards.index, asked)) == [0, 1, 2]
    assert service.calls.count("GetModel") == 4


def granted(change):
    """A lie about the lanes."""

    def lie(honest):
        lanes = list(honest.granted.shards)
        return wire.UploadReply(granted=wire.Granted(shards=change(lanes)))

    return lie


def with_first(**changes):
    def change(lanes):
        first = wire.ShardLane(address=lanes[0].address, ticket=lanes[0].ticket, next=lanes[0].next)
        for name, value in changes.items():
            setattr(first, name, value)
        return [first, *lanes[1:]]

    return change


REFUSED = {
    "too few lanes": (lambda lanes: lanes[:-1], "2 shards was given 1 lanes"),
    "too many lanes": (lambda lanes: [*lanes, lanes[0]], "2 shards was given 3 lanes"),
    "no lanes": (lambda lanes: [], "2 shards was given 0 lanes"),
    "a tile of another shard": (with_first(next=5), "asked for 5"),
    "a tile that there is not": (with_first(next=2**63), "asked for"),
    "a ticket that is too short": (with_first(ticket=b"short"), "a ticket has 32 bytes"),
    "no address": (with_first(address=""), "said to be at"),
    "an address without a port": (with_first(address="localhost"), "said to be at"),
    "a port that there is not": (with_first(address="localhost:65536"), "said to be at"),
    "an address that is too long": (with_first(address=f"{'a' * 300}:80"), "said to be at"),
    "an address with a null": (with_first(address="a\0b:80"), "said to be at"),
    "an address in other letters": (with_first(address="ä:80"), "said to be at"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_lanes_that_cannot_be_are_refused_and_the_update_can_be_sent_again(what, sharded):
    change, match = REFUSED[what]
    service, alice = sharded(2)
    alice.fetch()
    service.lies["Granted"] = granted(change)
    with pytest.raises(MalformedMessage, match=match):
        alice.submit(UPDATE)
    service.lies.clear()
    assert alice.submit(UPDATE).accepted


def nobody():
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


WRONG = {
    "nobody is there": lambda service: nobody(),
    "the other shard is there": lambda service: service.shards[1].host.address,
    "a name that nobody has": lambda service: "a..b:80",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_address_costs_time_and_nothing_else(what, sharded, told):
    service, alice = sharded(2)
    alice.fetch()
    service.idle_s = 0.5
    address = WRONG[what](service)
    lie = granted(with_first(address=address))
    service.lies["Granted"] = lambda honest: lie(honest) if len(reasons(told)) < 2 else honest
    assert alice.submit(UPDATE).accepted
    assert sorted(came(service)) == list(range(TILES))


def test_a_shard_that_is_nearer_than_the_service_is_not_dialled(sharded, told, monkeypatch):
    """A host could otherwise have clients connect to what listens on their own machines."""
    _, alice = sharded(2)

    def far(address):
        return 3 if len(reasons(told)) < 2 else 0

    monkeypatch.setattr(connection, "reach", far)
    alice.fetch()
    assert all("is nearer to this machine" in each for each in reasons(told))
    told.clear()
    assert alice.submit(UPDATE).accepted
    assert any("no lane to" in each and "is nearer" in each for each in reasons(told))


def test_patience_ends_while_a_shard_is_away(sharded):
    service, alice = sharded(2, timeout=2)
    alice.fetch()
    service.shards[0].host.down()
    with pytest.raises(ServiceError, match="has not served this client within 2 s"):
        alice.submit(UPDATE)


def slices(change):
    def lie(honest):
        return change(honest)

    return lie


def of_length(*lengths):
    return lambda honest: [like(honest[0], length=each) for each in lengths]


def like(honest, **changes):
    made = wire.ModelSlice.FromString(honest.SerializeToString())
    for name, value in changes.items():
        setattr(made, name, value)
    return made


BAD_SLICES = {
    "too many values": (of_length(D, 1), "larger"),
    "more values than fit anywhere": (of_length(2**64 - 1), "larger"),
    "too few values": (of_length(D - 1), "smaller"),
    "an empty slice": (of_length(D, 0), "none of them empty"),
    "more slices than leaves": (of_length(*[1] * 3, D - 3), "at most 3 slices"),
    "in another order": (lambda honest: honest[::-1], "the model is"),
    "an address that is none": (
        lambda honest: [honest[0], like(honest[1], address="localhost")],
        "an address that is none",
    ),
    "no ticket": (lambda honest: [honest[0], like(honest[1], ticket=b"")], "a ticket has 32"),
    "a ticket too long": (lambda honest: [like(e, ticket=bytes(33)) for e in honest], "got 33"),
}


@pytest.mark.parametrize("what", BAD_SLICES)
def test_slices_that_are_not_the_model_s_are_refused(what, sharded):
    change, match = BAD_SLICES[what]
    service, alice = sharded(2)
    service.lies["Slices"] = slices(change)
    with pytest.raises(ReceiptRefused, match=match):
        alice.fetch()
    service.lies.clear()
    assert alice.fetch().round == 1


BAD_SLICE = {
    "of another model": lambda raw: bytes([raw[0] ^ 1]) + raw[1:],
    "with a byte swapped at its end": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "with its values in another order": lambda raw: raw[4:] + raw[:4],
    "no numbers": lambda raw: b"\xff" * len(raw),
}


@pytest.mark.parametrize("what", BAD_SLICE)
def test_a_slice_that_is_not_the_model_s_is_refused(what, sharded):
    """As if somebody on the path had changed it."""
    service, alice = sharded(3)
    service.shards[1].lie = BAD_SLICE[what]
    with pytest.raises(ReceiptRefused, match="model"):
        alice.fetch()
    service.shards[1].lie = lambda honest: honest
    assert np.array_equal(alice.fetch().vector, service.state.model)


def test_a_host_that_mixes_slices_of_two_models_is_found_out(sharded):
    """Each slice is genuine, and of the length that the lead says."""
    service, alice = sharded(2)
    older = service.shards[0].slice().ticket
    part = service.state.model[service.shards[0].span.part].tobytes()
    alice.fetch()
    service.shards[0].lanes[older]._refused = lambda: False
    service.shards[0].lanes[older]._raw = lambda: part
    service.lies["Slices"] = lambda honest: [like(honest[0], ticket=older), honest[1]]
    with pytest.raises(ReceiptRefused, match="model"):
        alice.submit(UPDATE)
    service.lies.clear()
    assert alice.fetch().round == 2


@pytest.mark.parametrize("left", [0, 1, 4, 30_000])
def test_a_slice_that_ends_early_is_asked_for_again(left, sharded, told):
    service, alice = sharded(3)
    service.shards[1].lie = lambda raw: raw[:left] if len(reasons(told)) < 2 else raw
    assert np.array_equal(alice.fetch().vector, service.state.model)
    word = f"{4 * service.shards[1].span.length - left} bytes before" if left else "was refused"
    assert all(word in each for each in reasons(told))


def test_what_follows_a_slice_is_not_read(sharded):
    service, alice = sharded(3)
    service.shards[1].lie = lambda raw: raw + bytes(2**20)
    assert np.array_equal(alice.fetch().vector, service.state.model)


def test_a_ticket_of_an_older_model_is_refused_and_the_lead_is_asked_again(sharded, told):
    service, alice = sharded(2)
    alice.fetch()
    older = service._slices()
    service.lies["Slices"] = lambda honest: older if len(reasons(told)) < 2 else honest
    assert alice.submit(UPDATE).accepted
    assert len(reasons(told)) == 2
    assert all("was refused" in each for each in reasons(told))
    assert np.array_equal(alice.fetch().vector, service.state.model)


def test_a_model_that_is_not_kept_any_more(sharded):
    service, alice = sharded(2)
    service.failures["GetModel"] = [(grpc.StatusCode.NOT_FOUND, "gone")]
    assert alice.fetch().round == 1
    service.failures["GetModel"] = [(grpc.StatusCode.NOT_FOUND, "gone")] * 4
    alice.submit(UPDATE)
    with pytest.raises(ServiceError, match="gone"):
        alice.fetch()


def garbage(near):
    with suppress(OSError):
        near.sendall(b"this is no model" * 100)
        near.recv(1000)
    near.close()


def test_a_shard_that_speaks_something_else_is_away(sharded, told):
    service, alice = sharded(2)
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve():
            with suppress(OSError):
                while True:
                    garbage(other.accept()[0])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"127.0.0.1:{other.getsockname()[1]}"

        def lie(honest):
            if len(reasons(told)) >= 2:
                return honest
            return [like(honest[0], address=address), honest[1]]

        service.lies["Slices"] = lie
        alice.fetch()
        assert f"the shard at {address}" in reasons(told)[0]
        other.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_progress_is_that_of_all_lanes_and_is_told_in_the_caller_s_thread(
    sharded, told, monkeypatch
):
    service, alice = sharded(3, on_event=lambda event: told.append((threading.get_ident(), event)))
    monkeypatch.setattr(upload, "_TELL_S", 0.0)
    monkeypatch.setattr(connection, "_MEANWHILE_S", 0.01)
    alice.fetch()
    go_on = threading.Event()
    service.shards[2].watch = lambda tile: tile < service.shards[2].end - 1 or go_on.wait(60)
    real = upload.frames

    def slowly(sealed, numbers):
        for number, frame in zip(numbers, real(sealed, numbers), strict=True):
            if number == TILES - 1:  # All others are out.
                go_on.wait(60)
            yield frame

    monkeypatch.setattr(upload, "frames", slowly)
    timer = threading.Timer(0.5, go_on.set)
    timer.start()
    assert alice.submit(UPDATE).accepted
    timer.join()
    sent = [(thread, event) for thread, event in told if isinstance(event, Sending)]
    assert sent
    assert {thread for thread, _ in sent} == {threading.get_ident()}
    assert all(event.sent < event.of for _, event in sent)
    assert len({event.sent for _, event in sent}) == len(sent)  # A lane that stands says nothing.


def interrupt():
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_ctrl_c_ends_all_lanes_and_their_threads(
    sharded, when, nothing_is_left_behind, monkeypatch
):
    service, alice = sharded(3, timeout=600)
    alice.fetch()
    held, let_go, go_on = [], [], threading.Event()

    def hold(tile):
        held.append(tile)
        let_go.append(go_on.wait(60))

    for shard in service.shards:
        shard.host._door._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        shard.watch = hold

    def narrow(*arguments, **options):
        """Whoever sends is held up, as by a slow network."""
        lane = dial.dial_lane(*arguments, **options)
        nothing_is_left_behind.append(lane)
        lane.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return lane

    monkeypatch.setattr(connection, "dial_lane", narrow)
    when(lambda: len(held) == 3, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            alice.submit(UPDATE)
    finally:
        go_on.set()
    assert [lane.fileno() for lane in nothing_is_left_behind] == [
        -1
    ] * 7  # and of the lead and the model
    assert alice.submit(UPDATE).accepted
    assert all(let_go)  # Nobody had to wait for a shard.


def test_ctrl_c_ends_the_downloads_of_all_slices(sharded, when):
    service, alice = sharded(3, timeout=600)
    held, let_go, go_on = [], [], threading.Event()

    def hold(raw):
        held.append(raw)
        let_go.append(go_on.wait(60))
        return raw

    for shard in service.shards:
        shard.lie = hold
    when(lambda: len(held) == 3, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            alice.fetch()
    finally:
        go_on.set()
    assert not [each for each in threading.enumerate() if each.name.startswith("ostraka-client")]
    assert alice.fetch().round == 1
    assert all(let_go)  # Nobody had to wait for a shard.


def test_a_relay_carries_an_update_to_shards_and_the_model_from_them(sharded, folder):
    service, alice = sharded(2)
    node = enrolled_node(folder / "alice.key", folder / "policy.toml", {}, unsafe_simulation=True)
    enclave = RemoteEnclave(alice._address, seconds=60)
    head = enclave.start(Manifest.flat(D), np.zeros(D, "<f4"))
    assert np.array_equal(head.model, service.state.model)
    hello = read_hello(node.greet())
    enclave.open([hello])
    service.shards[1].cuts = [1]
    reply = node.seal(node.join(encode(enclave.introduce(hello))), UPDATE)
    enclave.deliver(SealedReply.from_bytes(reply).sealed)
    assert sorted(came(service)) == list(range(TILES))
    service.release()
    published = enclave.outcome(seconds=60)
    enclave.close()
    assert isinstance(published, PublishedModel)
    assert np.array_equal(published.model, service.state.model)


def test_a_relay_refuses_an_offer_of_impossible_shards(sharded, folder):
    service, alice = sharded(2)
    node = enrolled_node(folder / "alice.key", folder / "policy.toml", {}, unsafe_simulation=True)
    enclave = RemoteEnclave(alice._address, seconds=60)
    enclave.start(Manifest.flat(D), np.zeros(D, "<f4"))
    hello = read_hello(node.greet())
    enclave.open([hello])
    service.intake.offer = service.identity.sign(replace(service.intake.offer, shards=(0, 99)))
    with pytest.raises(ReceiptRefused, match="impossible shards"):
        enclave.introduce(hello)
    enclave.close()
