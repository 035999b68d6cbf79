"""Rounds over the wire: all arrive, some stay away, the service crashes and goes on."""

import threading
import time
from dataclasses import replace

import grpc
import numpy as np
import pytest

from ostraka import events, federation_file, run_round
from ostraka.attestation.policy import FederationPolicy, Policy
from ostraka.client.following import begin_with
from ostraka.config import Member
from ostraka.core import rules, uploads
from ostraka.enclave.storage.models import Models
from ostraka.encoding import UNSIGNED, decode, digest, encode
from ostraka.errors import ReceiptRefused
from ostraka.messages import Certified, Challenge, Charter, Introduction, vector_digest
from ostraka.protocol.client import Client
from ostraka.transport import ostraka_pb2 as wire

RNG = np.random.default_rng(0)


def rows(n=5, d=100):
    return RNG.normal(size=(n, d)).astype(np.float32)


@pytest.mark.parametrize(
    "defence", ["arc+nnm+geometric-median", "multi-krum", "nnm+krum", "clip+mean"]
)
def test_a_round_gives_what_the_specification_gives(start, speaker, defence):
    composition = rules.parse(defence)
    service, updates = start(composition=composition), rows()
    speakers, receipt = play(service, speaker, updates)
    expected = run_round(updates, f=1, rule=composition.name, pre=composition.pre, masking="none")
    assert (receipt.rule, receipt.kept) == (defence, len(expected.selected))
    model = speakers[0].model(receipt.model)
    np.testing.assert_allclose(model, expected.aggregate, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("upload", ["bfloat16", "float16", "int8"])
def test_a_round_in_a_shorter_format(start, speaker, upload):
    """Values that each format has. Their tiles are stored, and read twice, at their own size."""
    service = start(composition=rules.parse("multi-krum"), upload=upload)
    updates = RNG.integers(-126, 126, size=(5, 100)).astype(np.float32)
    updates[:, 3] = 127
    speakers, receipt = play(service, speaker, updates)
    expected = run_round(updates, f=1, rule="multi-krum", masking="none")
    np.testing.assert_array_equal(speakers[0].model(receipt.model), expected.aggregate)


def test_a_round_ends_when_everybody_has_arrived(start, speaker):
    service = start(composition=rules.parse("multi-krum"))
    updates = rows()
    speakers = [speaker(service, i + 1) for i in range(5)]
    joined = [each.send(update) for each, update in zip(speakers, updates, strict=True)]
    receipts = [each.follow(one) for each, one in zip(speakers, joined, strict=True)]
    assert len(set(map(digest, receipts))) == 1
    assert (receipts[0].participants, receipts[0].kept) == (5, 4)
    assert receipts[0].evidence == "simulation"
    model = speakers[0].model(receipts[0].model)
    assert vector_digest(model) == receipts[0].model
    means = [np.delete(updates, out, axis=0).mean(axis=0) for out in range(5)]
    assert min(np.abs(model - mean).max() for mean in means) < 1e-6
    assert speakers[0].join().offer.number == 2


def play(service, speaker, updates, but=()):
    """One round of everybody but these. Gives the speakers and the receipt."""
    here = [i for i in range(len(updates)) if i not in but]
    speakers = {i: speaker(service, i + 1) for i in here}
    joined = {i: speakers[i].send(updates[i]) for i in here}
    receipts = {i: speakers[i].follow(joined[i]) for i in here}
    assert len(set(map(digest, receipts.values()))) == 1
    return speakers, receipts[here[0]]


def test_a_charter_is_not_sent_to_who_holds_it(start, speaker):
    one = speaker(start(), 1)
    newest = one.charter()
    challenge = encode(one.identity.sign(Challenge(b"n" * 32, one.name, UNSIGNED)))
    for holds, sent in ((b"", encode(newest)), (b"x" * 32, encode(newest)), (digest(newest), b"")):
        reply = one.stub.Introduce(wire.IntroduceRequest(challenge=challenge, holds=holds))
        assert reply.charter == sent
        offer = decode(Introduction, reply.introduction).offer
        assert offer.federation == newest.federation.digest()


def test_who_has_a_receipt_may_ask_for_the_next_round_at_once(start, speaker, monkeypatch):
    """The receipt can be read a little before the service has put its ballot away."""
    asked = threading.Event()
    prune = Models.prune

    def prune_later(self: Models, newest: int) -> None:
        assert asked.wait(60)
        time.sleep(0.2)  # It is asked while this lasts.
        prune(self, newest)

    monkeypatch.setattr(Models, "prune", prune_later)
    service = start(settings={"count": 2})
    speakers, _ = play(service, speaker, rows())
    asked.set()
    assert speakers[0].introduce().offer.number == 2


@pytest.mark.slow
def test_stragglers_cost_no_more_than_the_deadline(start, speaker):
    service = start(clients=7, settings={"deadline_s": 4})
    _, receipt = play(service, speaker, rows(7), but=[2, 5])
    assert receipt.participants == 5
    assert set(service.wait_for("RoundClosed").missing) == {"client-3", "client-6"}
    assert not service.named("QuorumMissed")


def test_two_dead_clients_of_seven_cost_the_grace_and_not_the_deadline(start, speaker):
    alive, dead = (1, 2, 4, 5, 7), ("client-3", "client-6")
    voters = tuple(f"client-{number}" for number in alive)
    # The quorum is all who live, so that a slow machine leaves nobody else out.
    settings = {"deadline_s": 6000, "quorum": 5, "grace_s": 0.5, "count": 1, "linger_s": 600}
    service = start(clients=7, settings=settings, voters=voters)
    _, receipt = play(service, speaker, rows(7), but=[2, 5])
    assert receipt.participants == 5
    service.wait_for("Finished")
    steps = (events.RoundOpened, events.QuorumReached, events.RoundClosed, events.Finished)
    opened, reached, closed, finished = (e for e in service.events if isinstance(e, steps))
    assert str(opened) == "waiting for 7 clients"
    assert reached == events.QuorumReached(1, 5, 0.5, dead)
    assert closed == events.RoundClosed(1, 5, dead)
    assert str(finished) == "finished: round 1 was the last one"


@pytest.mark.slow
def test_a_missed_quorum_extends_the_round_and_then_skips_it(start, speaker):
    extensions = 14  # for a client that may be slow: it comes before the last of them
    service = start(settings={"deadline_s": 0.2, "extensions": extensions})
    early = speaker(service, 1)
    joined = early.send(rows()[0])
    skipped = service.wait_for("RoundSkipped")
    assert skipped.number == 1
    assert "quorum" in skipped.why
    missed = service.named("QuorumMissed")[: extensions + 1]
    assert [each.extensions_left for each in missed] == list(range(extensions, -1, -1))
    assert (missed[-1].arrived, missed[-1].quorum) == (1, 4)
    assert early.outcome(joined).WhichOneof("outcome") == "void"
    # The next round has the same number, and other keys.
    again = early.join().offer
    assert again.number == 1
    assert again.round_id != joined.offer.round_id
    assert again.key != joined.offer.key


@pytest.mark.slow
def test_a_client_that_comes_in_the_extension_completes_the_quorum(start, speaker):
    service = start(settings={"deadline_s": 1.0, "extensions": 60, "quorum": 5})
    updates = rows()
    speakers = [speaker(service, i + 1) for i in range(5)]
    joined = [speakers[i].send(updates[i]) for i in range(4)]
    service.wait_for("QuorumMissed")
    joined.append(speakers[4].send(updates[4]))
    assert {speakers[i].follow(joined[i]).participants for i in range(5)} == {5}
    assert not service.named("RoundSkipped")


def test_a_spoilt_update_does_not_hold_up_the_others(start, speaker):
    service = start(clients=6, settings={"deadline_s": 600})
    updates = rows(6)
    updates[3, 7] = np.nan
    speakers = [speaker(service, i + 1) for i in range(6)]
    joined = [speakers[i].send(updates[i]) for i in range(6) if i != 3]
    with pytest.raises(grpc.RpcError) as caught:
        speakers[3].send(updates[3])
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "stated norm" in str(caught.value.details())
    receipt = speakers[0].follow(joined[0])
    assert receipt.participants == 5
    assert [each.client for each in receipt.rejected] == ["client-4"]


@pytest.mark.slow
def test_f_liars_and_an_absent_client_do_not_end_a_round(start, speaker):
    """What its own client has spoilt is an answer: five updates and two lies are the quorum."""
    service = start(clients=8, f=2, settings={"deadline_s": 5, "extensions": 0, "quorum": 7})
    updates = rows(8)
    updates[:2, 7] = np.nan
    speakers = [speaker(service, i + 1) for i in range(7)]
    for liar in (0, 1):
        with pytest.raises(grpc.RpcError, match="stated norm"):
            speakers[liar].send(updates[liar])
    joined = [speakers[i].send(updates[i]) for i in range(2, 7)]
    receipt = speakers[2].follow(joined[0])
    assert receipt.participants == 5
    assert {each.client for each in receipt.rejected} == {"client-1", "client-2"}
    assert not service.named("RoundSkipped")


SPOILT = {
    "a NaN where the norm does not show it": (np.nan, "NaN or an infinity"),
    "an infinity": (-np.inf, "NaN or an infinity"),
    "more than the stated norm": (100.0, "norm is not the stated one"),
}


@pytest.fixture
def seal_stating(monkeypatch):
    """seal_stating(norm, joined, update) is sealed with a norm that may be a lie."""

    def seal(norm, joined, update):
        with monkeypatch.context() as lying:
            lying.setattr("ostraka.core.uploads.norm", lambda _: norm)
            return joined.seal(update).sealed

    return seal


@pytest.mark.parametrize(("value", "why"), SPOILT.values(), ids=SPOILT.keys())
def test_what_a_client_spoils_in_a_tile_it_hears_at_once_and_may_correct(
    start, speaker, seal_stating, value, why
):
    """The tile is refused as it arrives, and none behind it is waited for."""
    service = start(dimension=1000, settings={"tile": 64, "deadline_s": 600})
    update, liar = rows(1, 1000)[0], speaker(service, 1)
    spoilt = update.copy()
    spoilt[200] = value  # in tile 3
    joined = liar.join()
    sealed = seal_stating(uploads.norm(update), joined, spoilt)
    for sent in (4, 0):  # It cannot go on with it either.
        with pytest.raises(grpc.RpcError, match=why) as refused:
            liar.upload(sealed, sealed.tiles[:sent])
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert liar.status()["awaited"] == [f"client-{i}" for i in range(2, 6)]
    assert liar.upload(joined.seal(update).sealed)[-1].WhichOneof("answer") == "complete"
    assert liar.status()["arrived"] == ["client-1"]
    for i in range(2, 6):
        speaker(service, i).send(rows(1, 1000)[0])
    receipt = liar.follow(joined)
    assert (receipt.participants, receipt.rejected) == (5, ())


def test_a_norm_that_is_too_short_is_known_when_the_last_tile_is_there(
    start, speaker, seal_stating
):
    service = start(dimension=1000, settings={"tile": 64})
    update, liar = rows(1, 1000)[0], speaker(service, 1)
    sealed = seal_stating(1.01 * uploads.norm(update), liar.join(), update)
    with pytest.raises(grpc.RpcError, match="before it was complete"):
        liar.upload(sealed, sealed.tiles[:-1])
    with pytest.raises(grpc.RpcError, match="norm is not the stated one"):
        liar.upload(sealed, sealed.tiles[-1:])


def test_an_upload_that_is_complete_is_told_so_again(start, speaker):
    """Its client may not have heard it."""
    service = start(dimension=1000, settings={"tile": 64})
    one = speaker(service, 1)
    sealed = one.join().seal(rows(1, 1000)[0]).sealed
    assert one.upload(sealed)[0].granted.next == 0
    for _ in range(2):
        first, complete = one.upload(sealed)
        assert first.granted.next == 16
        assert complete.WhichOneof("answer") == "complete"
    assert one.status()["arrived"] == ["client-1"]


ROOMS = {
    "none": (0, 5),
    "too little for one row": (1, 5),
    "two rows": (3, 3),
    "all rows": (8, 0),
    "the default": (None, 0),
}


@pytest.mark.parametrize(("mib", "spooled"), ROOMS.values(), ids=ROOMS.keys())
def test_rows_that_find_no_room_in_memory_are_spooled_and_the_round_goes_on(
    start, speaker, mib, spooled
):
    d, settings = 300_000, {} if mib is None else {"memory_mib": mib}  # 1.14 MiB a row
    service = start(dimension=d, settings=settings | {"tile": 2**14})
    updates = np.random.default_rng(5).normal(size=(5, d)).astype(np.float32)
    speakers = [speaker(service, i + 1) for i in range(5)]
    joined = [speakers[i].send(updates[i]) for i in range(4)]
    seen = speakers[0].status()["spooled"]
    assert len(seen) == max(0, spooled - 1)
    joined.append(speakers[4].send(updates[4]))
    receipt = speakers[0].follow(joined[0])
    assert (receipt.participants, receipt.rejected) == (5, ())
    expected = run_round(updates, f=1, masking="none").aggregate
    np.testing.assert_allclose(speakers[0].model(receipt.model), expected, rtol=1e-6, atol=1e-8)
    assert speakers[0].status()["spooled"] == []


def test_an_upload_goes_on_where_it_broke_off(start, speaker):
    service = start(dimension=1000, settings={"tile": 64})
    updates = rows(5, 1000)
    broken = speaker(service, 1)
    joined = broken.join()
    sealed = joined.seal(updates[0]).sealed
    with pytest.raises(grpc.RpcError, match="before it was complete"):
        broken.upload(sealed, sealed.tiles[:7])
    (first, complete) = broken.upload(sealed, sealed.tiles[7:])
    assert first.granted.next == 7
    assert complete.WhichOneof("answer") == "complete"
    for i in range(1, 5):
        speaker(service, i + 1).send(updates[i])
    assert broken.follow(joined).participants == 5


def test_after_a_crash_the_service_goes_on_after_the_last_published_round(start, speaker):
    service = start(settings={"count": 5})
    updates = rows()
    _, first = play(service, speaker, updates)
    open_now = speaker(service, 1)
    open_now.client = None
    joined = open_now.send(updates[0])
    service.crash()
    service.events.clear()
    service.start()

    again = speaker(service, 1)
    again.client = joined.client
    reply = again.outcome(joined)
    assert reply.WhichOneof("outcome") == "void"
    offer = again.join().offer
    assert (offer.number, offer.previous, offer.model) == (2, digest(first), first.model)
    assert offer.key != joined.offer.key
    links = list(again.stub.GetChain(wire.ChainRequest(after=0)))
    assert [link.WhichOneof("link") for link in links] == ["charter", "certified"]
    _, second = play(service, speaker, updates)
    assert (second.number, second.previous) == (2, digest(first))


def test_what_was_sent_before_a_crash_counts_for_nothing_after_it(start, speaker):
    service = start()
    updates = rows()
    before = speaker(service, 1)
    sealed = before.join().seal(updates[0]).sealed
    before.upload(sealed)
    service.crash()
    service.events.clear()
    service.start()
    after = speaker(service, 1)
    with pytest.raises(grpc.RpcError) as caught:
        after.upload(sealed)
    assert "another round" in str(caught.value.details())
    _, receipt = play(service, speaker, updates)
    assert receipt.participants == 5


@pytest.mark.slow
def test_the_service_ends_by_itself_after_the_last_round(start, speaker):
    service = start(settings={"count": 2, "linger_s": 3})
    updates = rows()
    play(service, speaker, updates)
    speakers, receipt = play(service, speaker, updates)
    assert receipt.number == 2
    late = speaker(service, 1)
    with pytest.raises(grpc.RpcError) as caught:
        late.introduce()
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "finished",
    )
    assert speakers[0].model(receipt.model).shape == (100,)
    assert service.wait_for("Stopping").why == "finished"


def test_a_signed_revision_is_adopted_before_the_next_round(start, speaker):
    service = start(clients=6, settings={"count": 5})
    updates = rows(6)
    play(service, speaker, updates)
    leaver = speaker(service, 6)
    assert "client-1" in leaver.stub.GetStatus(wire.StatusRequest()).json
    text = service.config.read_text().replace("revision = 1", "revision = 2")
    revoked = text.replace('name = "client-6"\n', 'name = "client-6"\nrevoked = "left us"\n')
    service.config.write_text(revoked)
    service.sign()  # Round 2 is open under the old terms by now, and ends under them.
    _, second = play(service, speaker, updates)
    assert (second.revision, second.participants) == (1, 6)
    adopted = service.wait_for("FederationAdopted", 2)
    assert (adopted.revision, adopted.clients, adopted.revoked) == (2, 5, ("client-6",))
    with pytest.raises(grpc.RpcError) as caught:
        speaker(service, 6).introduce()
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert service.named("UploadRefused")[-1].client == "client-6"
    assert "revoked" in service.named("UploadRefused")[-1].why
    assert "client-1" not in leaver.stub.GetStatus(wire.StatusRequest()).json
    _, third = play(service, speaker, updates, but=[5])
    assert (third.revision, third.participants) == (2, 5)
    links = speaker(service, 1).stub.GetChain(wire.ChainRequest(after=1))
    assert [link.WhichOneof("link") for link in links] == ["certified", "charter", "certified"]


def test_an_edit_that_nobody_signed_changes_nothing(start, speaker):
    service = start(settings={"count": 5})
    updates = rows()
    play(service, speaker, updates)
    text = service.config.read_text()
    service.config.write_text(text.replace("revision = 1", "revision = 2"))
    play(service, speaker, updates)
    _, third = play(service, speaker, updates)
    assert third.revision == 1
    assert "ostraka sign" in service.wait_for("FederationIgnored").why
    service.config.write_text("nonsense")
    play(service, speaker, updates)
    assert "line 1" in service.wait_for("FederationIgnored", 2).why
    assert len(service.named("FederationIgnored")) == 2


def test_a_tile_that_does_not_open_is_refused_when_it_arrives(start, speaker):
    service = start(clients=7)
    updates = rows(7)
    liar = speaker(service, 7)
    joined = liar.join()
    honest, other = joined.seal(updates[6]).sealed, joined.seal(2 * updates[6]).sealed
    wrong = [replace(tile, upload_id=honest.header.upload_id) for tile in other.tiles]
    with pytest.raises(grpc.RpcError, match="tile does not open"):
        liar.upload(honest, wrong)
    assert service.named("UploadRefused")[-1].client == "client-7"
    # The upload is not spoilt by that, and can go on.
    assert liar.upload(honest)[-1].WhichOneof("answer") == "complete"
    _, receipt = play(service, speaker, updates, but=[6])
    assert receipt.participants == 7


def test_who_replays_a_header_can_bring_nothing_but_what_its_client_sealed(start, speaker):
    """Without TLS, whoever is on the path has seen the header, and needs no key to send it."""
    service = start(dimension=1000, settings={"tile": 64})
    updates = rows(5, 1000)
    victim, attacker = speaker(service, 1), speaker(service, 2)
    sealed = victim.join().seal(updates[0]).sealed
    with pytest.raises(grpc.RpcError, match="before it was complete"):
        victim.upload(sealed, sealed.tiles[:3])
    rubbish = [replace(tile, ciphertext=bytes(len(tile.ciphertext))) for tile in sealed.tiles]
    with pytest.raises(grpc.RpcError, match="tile does not open"):
        attacker.upload(sealed, rubbish[3:])
    assert victim.upload(sealed, sealed.tiles[3:])[-1].WhichOneof("answer") == "complete"
    _, receipt = play(service, speaker, updates, but=[0])
    assert (receipt.participants, receipt.rejected) == (5, ())


def test_a_header_reaches_no_upload_but_its_own_client_s(start, speaker):
    service = start()
    updates = rows()
    victim, attacker = speaker(service, 1), speaker(service, 2)
    sealed = victim.join().seal(updates[0]).sealed
    with pytest.raises(grpc.RpcError, match="before it was complete"):
        victim.upload(sealed, [])
    mine = attacker.join().seal(updates[1]).sealed
    stolen = attacker.identity.sign(replace(mine.header, upload_id=sealed.header.upload_id))
    with pytest.raises(grpc.RpcError, match="does not open"):
        attacker.upload(replace(mine, header=stolen))
    assert victim.upload(sealed)[-1].WhichOneof("answer") == "complete"
    _, receipt = play(service, speaker, updates, but=[0])
    assert (receipt.participants, receipt.rejected) == (5, ())


def test_a_charter_that_nobody_signed_is_not_even_read(start, speaker, monkeypatch):
    service = start()
    charter = speaker(service, 1).charter()
    unsigned = encode(replace(charter, signature=UNSIGNED))
    read: list[object] = []
    bringer = speaker(service, 1)
    monkeypatch.setattr("ostraka.enclave.servicer.decode", lambda *a: read.append(a))
    for raw in (unsigned, b"", b"rubbish", encode(charter)[:-1]):
        with pytest.raises(grpc.RpcError):
            bringer.stub.Adopt(wire.AdoptRequest(charter=raw))
    assert not read


def test_a_revision_can_be_brought_over_the_wire(start, speaker):
    """An enclave whose files are measured cannot read another one from its disk."""
    service = start(clients=6, settings={"count": 5})
    updates = rows(6)
    play(service, speaker, updates)
    old = federation_file.load(service.config).federation()
    newer = replace(old, revision=2, clients=old.clients[:-1], revoked=old.clients[-1:])
    stub = speaker(service, 1).stub

    def bring(federation, by):
        charter = by.sign(Charter(federation, UNSIGNED))
        return stub.Adopt(wire.AdoptRequest(charter=encode(charter)))

    for federation, by, code in (
        (newer, service.identity("client-1"), grpc.StatusCode.PERMISSION_DENIED),
        (old, service.identity("authority"), grpc.StatusCode.FAILED_PRECONDITION),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            bring(federation, by)
        assert caught.value.code() == code
    bring(newer, service.identity("authority"))
    _, second = play(service, speaker, updates)
    assert second.revision == 1  # Round 2 was open by then.
    _, third = play(service, speaker, updates, but=[5])
    assert (third.revision, third.participants) == (2, 5)


def test_a_charter_of_ten_thousand_members_is_brought_and_followed(start, speaker):
    """Most of them are revoked: a charter of so many clients has the same size."""
    service = start(clients=6, settings={"count": 5})
    old = federation_file.load(service.config).federation()
    gone = tuple(
        Member(f"{'x' * 58}{number:06}", number.to_bytes(32, "big")) for number in range(10_000)
    )
    newer = replace(old, revision=2, revoked=gone)
    charter = service.identity("authority").sign(Charter(newer, UNSIGNED))
    assert len(encode(charter)) > 2**20
    speaker(service, 1).stub.Adopt(wire.AdoptRequest(charter=encode(charter)))
    play(service, speaker, rows(6))
    _, second = play(service, speaker, rows(6))
    assert second.revision == 2
    assert speaker(service, 1).charter() == charter


def test_a_charter_that_this_machine_has_no_memory_for_is_not_adopted(start, speaker, monkeypatch):
    monkeypatch.setattr("ostraka.enclave.service.spare", lambda: 2**29)
    service = start(clients=6, settings={"count": 5})
    old = federation_file.load(service.config).federation()
    more = tuple(Member(f"more-{number}", number.to_bytes(32, "big")) for number in range(1, 4000))
    charter = service.identity("authority").sign(
        Charter(replace(old, revision=2, clients=old.clients + more), UNSIGNED)
    )
    with pytest.raises(grpc.RpcError) as caught:
        speaker(service, 1).stub.Adopt(wire.AdoptRequest(charter=encode(charter)))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "this machine has 512 MiB to spare: give it" in str(caught.value.details())
    play(service, speaker, rows(6))


def test_a_charter_of_another_federation_is_not_adopted(start, speaker):
    """The same authority has signed it, and any stranger can bring it."""
    service = start()
    old = federation_file.load(service.config).federation()
    other = replace(old, id=b"o" * 32, revision=2)
    charter = service.identity("authority").sign(Charter(other, UNSIGNED))
    with pytest.raises(grpc.RpcError) as caught:
        speaker(service, 1).stub.Adopt(wire.AdoptRequest(charter=encode(charter)))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "a revision of the federation" in str(caught.value.details())


def test_a_newcomer_is_shown_what_proves_the_newest_receipt_and_no_more(start, speaker):
    """Six rounds, and another roster from the fourth on."""
    service = start(clients=6, settings={"count": 9})
    updates = rows(6)
    for _ in range(2):
        play(service, speaker, updates)
    federation = federation_file.load(service.config).federation()
    newer = replace(
        federation, revision=2, clients=federation.clients[:-1], revoked=federation.clients[-1:]
    )
    stub = speaker(service, 1).stub
    charter = service.identity("authority").sign(Charter(newer, UNSIGNED))
    stub.Adopt(wire.AdoptRequest(charter=encode(charter)))
    play(service, speaker, updates)  # Round 3 was open by then.
    for _ in range(3):
        play(service, speaker, updates, but=[5])
    links = list(stub.GetChain(wire.ChainRequest(newest=True)))
    shown = [decode(Certified, each.certified).receipt for each in links if each.certified]
    assert [(each.number, each.revision) for each in shown] == [(1, 1), (3, 1), (4, 2), (6, 2)]
    assert [each.WhichOneof("link") for each in links].count("charter") == 2
    told = speaker(service, 1).introduce()
    blank = Client("client-1", service.identity("client-1"), newer, told.receipt_key)
    pinned = FederationPolicy(
        authority=federation.authority, id=federation.id, maskings=(federation.terms.masking,)
    )
    begun = begin_with(links, blank, policy=Policy(federation=pinned))
    assert begun.last == shown[-1]
    assert begun.electors == newer
    for at in range(len(links) - 1):
        with pytest.raises(ReceiptRefused):
            begin_with(links[:at] + links[at + 1 :], blank, policy=Policy(federation=pinned))


def test_settings_that_are_taken_back_with_a_revision_that_cannot_follow(start, speaker):
    """Files are changed while a round is open, and are read before the next one opens."""
    service = start(settings={"count": 5, "deadline_s": 100})
    updates = rows()

    def deadline_after_a_round(number):
        play(service, speaker, updates)
        return service.wait_for("RoundOpened", number).deadline_s

    assert deadline_after_a_round(2) == 100
    charter = federation_file.charter_path(service.config)
    before = [(path, path.read_bytes()) for path in (service.config, charter)]
    service.set(revision=2, dimension=101, deadline_s=200)
    service.sign()
    assert deadline_after_a_round(3) == 200
    assert "another model" in service.wait_for("FederationIgnored").why
    for path, content in before:
        path.write_bytes(content)
    assert deadline_after_a_round(4) == 100
