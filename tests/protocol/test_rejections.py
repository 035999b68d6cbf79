"""The rejections of one client, as tables whose keys are sentences.

Client 2 misbehaves, or somebody does so in its name. Every test goes on to the end of the round and
compares the outcome with the float64 reference for all others.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ostraka.config import Manifest
from ostraka.core import field
from ostraka.crypto import hpke, updates
from ostraka.errors import (
    LocalProtocolError,
    MalformedMessage,
    NotEnrolled,
    OpenError,
    Rejection,
    RemoteProtocolError,
    TooFewUpdates,
    UpdateRejected,
    WorkerError,
    WorkerLied,
)

ME, OTHER = 2, 4

SIGNALLING_NAN = np.uint32(0x7F800001).view(np.float32)


def flip(data, bit=0):
    raw = bytearray(data)
    raw[bit // 8] ^= 1 << bit % 8
    return bytes(raw)


def assert_raises(expected, action, *arguments):
    """expected: OpenError, or the reason of an UpdateRejected that names client 2."""
    with pytest.raises(RemoteProtocolError) as caught:
        action(*arguments)
    if isinstance(expected, Rejection):
        assert isinstance(caught.value, UpdateRejected)
        assert (caught.value.client, caught.value.reason) == (f"client-{ME}", expected)
    else:
        assert type(caught.value) is expected


@pytest.fixture
def opened(simulate, masking):
    """A round with memory for three rows; others are spooled."""
    return simulate(masking=masking, budget=3 * 4 * 50).open()


@pytest.fixture
def spooled(simulate, masking):
    return simulate(masking=masking, budget=0).open()


# Headers. Each is refused, and the client's good upload is welcome afterwards.


def resigned(round_, row, header):
    return round_.simulation.identities[row].sign(header)


def short_secret(round_):
    """A header whose HPKE plaintext is a key without a norm."""
    header = replace(round_.seal(ME).header, sealed_key=b"", signature=bytes(64))
    sealed = hpke.seal(round_.offer.key, bytes(32), info=updates.context(header))
    return resigned(round_, ME, replace(header, sealed_key=sealed))


def from_last_round(round_):
    """The round before is left behind, and its header is sent to a new one."""
    old = round_.seal(ME).header
    new = round_.simulation.open()
    vars(round_).update(vars(new))
    return old


BAD_HEADERS = {
    "one that another enrolled client signed": (
        lambda r: resigned(r, OTHER, r.seal(ME).header),
        OpenError,
    ),
    "one that a stranger signed": (
        lambda r: r.simulation.stranger.sign(r.seal(ME).header),
        OpenError,
    ),
    "another client's, under my name": (
        lambda r: replace(r.seal(OTHER).header, client=f"client-{ME}"),
        OpenError,
    ),
    "one from a client that is not enrolled": (
        lambda r: r.simulation.stranger.sign(replace(r.seal(ME).header, client="client-99")),
        NotEnrolled,
    ),
    "one with a bit of its signature flipped": (
        lambda r: replace((h := r.seal(ME).header), signature=flip(h.signature)),
        OpenError,
    ),
    "one with a bit of its sealed key flipped": (
        lambda r: replace((h := r.seal(ME).header), sealed_key=flip(h.sealed_key)),
        OpenError,
    ),
    "one without a signature": (
        lambda r: replace(r.seal(ME).header, signature=bytes(64)),
        OpenError,
    ),
    "last round's": (from_last_round, Rejection.FOREIGN_ROUND),
    "one for another round": (
        lambda r: r.forge(ME, round_id=bytes(32)).header,
        Rejection.FOREIGN_ROUND,
    ),
    "one for another federation": (
        lambda r: r.forge(ME, federation=bytes(32)).header,
        Rejection.FOREIGN_FEDERATION,
    ),
    "one for another round key": (
        lambda r: r.forge(ME, round_key=bytes(32)).header,
        Rejection.FOREIGN_KEY,
    ),
    "one sealed to another key than it names": (
        lambda r: r.forge(ME, to=hpke.HybridKey().public).header,
        Rejection.UNOPENABLE_KEY,
    ),
    "one with a truncated sealed key": (
        lambda r: r.forge(ME, sealed_key=r.seal(ME).header.sealed_key[:-1]).header,
        Rejection.UNOPENABLE_KEY,
    ),
    "one without a sealed key": (
        lambda r: r.forge(ME, sealed_key=b"").header,
        Rejection.UNOPENABLE_KEY,
    ),
    "one with the sealed key of another client": (
        lambda r: r.forge(ME, sealed_key=r.seal(OTHER).header.sealed_key).header,
        Rejection.UNOPENABLE_KEY,
    ),
    "one with the sealed key of another upload of mine": (
        lambda r: r.forge(ME, sealed_key=r.seal(ME).header.sealed_key).header,
        Rejection.UNOPENABLE_KEY,
    ),
    "one that seals a key of another length": (
        short_secret,
        Rejection.UNOPENABLE_KEY,
    ),
    "one of another dimension": (lambda r: r.forge(ME, dimension=49).header, Rejection.WRONG_SHAPE),
    "one of another tile": (lambda r: r.forge(ME, tile=17).header, Rejection.WRONG_SHAPE),
    "one of another number of tiles": (
        lambda r: r.forge(ME, tiles=5).header,
        Rejection.WRONG_SHAPE,
    ),
    "one of no tiles": (lambda r: r.forge(ME, tiles=0).header, Rejection.WRONG_SHAPE),
    "one of very many tiles": (
        lambda r: r.forge(ME, tiles=2**64 - 1).header,
        Rejection.WRONG_SHAPE,
    ),
    "one of another manifest": (
        lambda r: r.forge(ME, manifest=Manifest.flat(51).digest()).header,
        Rejection.WRONG_SHAPE,
    ),
    "one that states the norm NaN": (lambda r: r.forge(ME, norm=np.nan).header, Rejection.BAD_NORM),
    "one that states the norm inf": (lambda r: r.forge(ME, norm=np.inf).header, Rejection.BAD_NORM),
    "one that states the norm -inf": (
        lambda r: r.forge(ME, norm=-np.inf).header,
        Rejection.BAD_NORM,
    ),
    "one that states the norm -1": (lambda r: r.forge(ME, norm=-1.0).header, Rejection.BAD_NORM),
    "one that states the norm 1e-320": (
        lambda r: r.forge(ME, norm=1e-320).header,
        Rejection.BAD_NORM,
    ),
    "one just below the least float32": (
        lambda r: r.forge(ME, norm=np.nextafter(2.0**-149, 0)).header,
        Rejection.BAD_NORM,
    ),
}


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_a_bad_header_is_refused_and_leaves_no_trace(opened, what):
    make, expected = BAD_HEADERS[what]
    header = make(opened)
    opened.send_all(but=[ME])
    assert_raises(expected, opened.accept, header)
    opened.send(opened.seal(ME))
    opened.assert_result(opened.finish(), {})


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_a_client_that_sends_only_a_bad_header_is_out_alone(opened, what):
    make, expected = BAD_HEADERS[what]
    header = make(opened)
    opened.send_all(but=[ME])
    assert_raises(expected, opened.accept, header)
    # What somebody else, or the host, can have sent says nothing about the client: it is absent.
    provable = isinstance(expected, Rejection) and expected.provable
    published = opened.finish()
    opened.assert_result(published, {ME: expected} if provable else {}, absent=[ME])


def test_a_bad_header_does_not_displace_the_good_upload_before_it(opened):
    good = opened.seal(ME)
    opened.accept(good.header)
    assert_raises(Rejection.BAD_NORM, opened.accept, opened.forge(ME, norm=np.nan).header)
    for tile in good.tiles:
        opened.accept_tile(tile)
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {})


# Messages that come twice, or too late.


def complete(round_, row=ME):
    round_.send(sealed := round_.seal(row))
    return sealed


def replaced(round_):
    """An incomplete upload, and the newer one that took its place and is not complete either."""
    old, new = round_.seal(ME), round_.seal(ME)
    round_.accept(old.header)
    round_.accept_tile(old.tiles[0])
    round_.accept(new.header)
    round_.accept_tile(new.tiles[0])
    return old, new


def test_a_header_that_comes_twice(opened):
    sealed = opened.seal(ME)
    opened.accept(sealed.header)
    assert_raises(Rejection.DUPLICATE, opened.accept, sealed.header)
    for tile in sealed.tiles:
        opened.accept_tile(tile)
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {})


def test_a_header_that_comes_again_after_its_upload_is_complete(opened):
    sealed = complete(opened)
    assert_raises(Rejection.DUPLICATE, opened.accept, sealed.header)
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {})


def test_a_complete_upload_is_final(opened):
    complete(opened)
    assert_raises(
        Rejection.DUPLICATE, opened.accept, opened.seal(ME, -opened.simulation.rows[ME]).header
    )
    assert_raises(Rejection.DUPLICATE, opened.accept, opened.forge(ME, norm=np.nan).header)
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {})


def test_a_tile_that_comes_twice(opened):
    sealed = opened.seal(ME)
    opened.accept(sealed.header)
    opened.accept_tile(sealed.tiles[0])
    assert_raises(Rejection.DUPLICATE, opened.accept_tile, sealed.tiles[0])
    assert_raises(
        Rejection.DUPLICATE,
        opened.accept_tile,
        replace(sealed.tiles[0], ciphertext=flip(sealed.tiles[0].ciphertext)),
    )
    for tile in sealed.tiles[1:]:
        opened.accept_tile(tile)
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {})


def test_a_replayed_header_does_not_displace_the_upload_that_replaced_it(opened):
    old, new = replaced(opened)
    assert_raises(Rejection.DUPLICATE, opened.accept, old.header)
    for tile in new.tiles[1:]:
        opened.accept_tile(tile)
    opened.send_all(but=[ME])
    published = opened.finish()
    assert (new.header.client, new.header.upload_id) in opened.uploads
    opened.assert_result(published, {})


def test_a_tile_of_an_upload_that_was_replaced(opened):
    old, new = replaced(opened)
    for tile in old.tiles:
        assert_raises(Rejection.DUPLICATE, opened.accept_tile, tile)
    for tile in new.tiles[1:]:
        opened.accept_tile(tile)
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {})


def test_a_colluder_that_takes_the_id_of_an_upload_first_keeps_its_client_out_of_nothing(opened):
    """An upload's id is public as soon as its header is on its way."""
    victim = opened.seal(ME)
    colluder = opened.forge(OTHER, upload_id=victim.header.upload_id)
    opened.accept(colluder.header)
    assert_raises(OpenError, opened.intake.take, opened.name(ME), colluder.tiles[0])
    opened.send(victim)
    for tile in colluder.tiles:
        opened.accept_tile(tile, client=opened.name(OTHER))
    opened.send_all(but=[ME, OTHER])
    opened.assert_result(opened.finish(), {})


def test_a_tile_counts_for_its_own_client_only(opened):
    victim = opened.seal(ME)
    colluder = opened.forge(OTHER, upload_id=victim.header.upload_id)
    opened.accept(victim.header)
    opened.accept(colluder.header)
    assert_raises(OpenError, opened.intake.take, opened.name(OTHER), victim.tiles[0])
    opened.accept_tile(colluder.tiles[0], client=opened.name(OTHER))
    upload = victim.header.upload_id
    assert opened.intake.next_tile(opened.name(ME), upload) == 0
    assert opened.intake.next_tile(opened.name(OTHER), upload) == 1
    assert opened.intake.next_tile(opened.name(0), upload) is None


def test_a_client_cannot_begin_uploads_without_end(opened):
    begun = 0
    with contextlib.suppress(UpdateRejected):
        while begun < 1_000:
            opened.accept(opened.forge(ME).header)
            begun += 1
    assert 10 < begun < 1_000
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {ME: Rejection.INCOMPLETE})


def test_what_comes_late_is_refused(opened):
    early, late = opened.seal(ME), opened.seal(OTHER)
    opened.accept(early.header)
    opened.send_all(but=[ME])
    opened.close()
    assert_raises(Rejection.LATE, opened.accept_tile, early.tiles[0])
    assert_raises(Rejection.LATE, opened.accept, opened.seal(ME).header)
    with pytest.raises(UpdateRejected, match="after the round closed"):
        opened.accept(late.header)
    # A lie that comes late is late as well, and changes neither n nor f.
    assert_raises(Rejection.LATE, opened.accept, opened.forge(ME, norm=np.nan).header)
    opened.measure()
    opened.assert_result(opened.average(), {ME: Rejection.INCOMPLETE})


# Tiles that are refused on arrival. The good one is welcome afterwards.

BAD_TILES = {
    "one that is truncated": lambda r, t: replace(t, ciphertext=t.ciphertext[:-1]),
    "one that is too long": lambda r, t: replace(t, ciphertext=t.ciphertext + b"\0"),
    "one that is empty": lambda r, t: replace(t, ciphertext=b""),
    "one past the last": lambda r, t: replace(t, index=4),
    "one far past the last": lambda r, t: replace(t, index=2**64 - 1),
    "one of an unknown upload": lambda r, t: replace(t, upload_id=bytes(32)),
    "one of an upload whose header was not sent": lambda r, t: r.seal(ME).tiles[0],
    "one of an upload whose header was refused": lambda r, t: refused_upload(r).tiles[0],
    "a full one in the place of the short last one": lambda r, t: replace(t, index=3),
    "last round's": lambda r, t: r.simulation.open().seal(ME).tiles[0],
    "one with a flipped bit": lambda r, t: replace(t, ciphertext=flip(t.ciphertext)),
    "one with a flipped bit in its tag": lambda r, t: replace(t, ciphertext=flip(t.ciphertext, -1)),
    "the one behind the next": lambda r, t: replace(t, index=1),
    "another client's": lambda r, t: replace(r.seal(OTHER).tiles[0], upload_id=t.upload_id),
}


def refused_upload(round_):
    forgery = round_.forge(ME, dimension=49)
    assert_raises(Rejection.WRONG_SHAPE, round_.accept, forgery.header)
    return forgery


@pytest.mark.parametrize("what", BAD_TILES)
def test_a_bad_tile_is_refused_and_leaves_no_trace(opened, what):
    sealed = opened.seal(ME)
    opened.accept(sealed.header)
    assert_raises(OpenError, opened.accept_tile, BAD_TILES[what](opened, sealed.tiles[0]))
    for tile in sealed.tiles:
        opened.accept_tile(tile)
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {})


def test_tiles_come_in_their_order(opened):
    """Uploads may be interleaved; within one, a row's sums have one order of additions."""
    uploads = [opened.seal(row) for row in range(7)]
    for sealed in uploads:
        opened.accept(sealed.header)
    for index in range(4):
        for sealed in uploads:
            for early in sealed.tiles[index + 1 :]:
                assert_raises(OpenError, opened.accept_tile, early)
            opened.accept_tile(sealed.tiles[index])
    opened.assert_result(opened.finish(), {})


# Uploads that prove bad when they are opened.


def with_tile(round_, index, tile):
    """My upload, with something else as one of its tiles."""
    sealed = round_.seal(ME)
    tiles = list(sealed.tiles)
    tiles[index] = replace(tile(sealed), upload_id=sealed.header.upload_id, index=index)
    return replace(sealed, tiles=tuple(tiles))


def with_value(round_, value, place=20):
    update = round_.simulation.rows[ME].copy()
    norm = float(np.linalg.norm(update))
    update.view(np.uint32)[place] = np.float32(value).view(np.uint32)
    return round_.forge(ME, update, norm=norm)


def with_norm(round_, factor):
    return round_.forge(ME, norm=factor * float(np.linalg.norm(round_.simulation.rows[ME])))


def of_zeros(round_, norm):
    return round_.forge(ME, np.zeros(50, np.float32), norm=norm)


BAD_UPLOADS = {
    "one flipped bit": (
        lambda r: with_tile(
            r, 1, lambda s: replace(s.tiles[1], ciphertext=flip(s.tiles[1].ciphertext))
        ),
        Rejection.INCOMPLETE,
    ),
    "one flipped bit in the tag of the last tile": (
        lambda r: with_tile(
            r, 3, lambda s: replace(s.tiles[3], ciphertext=flip(s.tiles[3].ciphertext, -1))
        ),
        Rejection.INCOMPLETE,
    ),
    "two tiles in each other's place": (
        lambda r: with_tile(r, 1, lambda s: s.tiles[0]),
        Rejection.INCOMPLETE,
    ),
    "a tile of another upload of mine": (
        lambda r: with_tile(r, 1, lambda s: r.seal(ME).tiles[1]),
        Rejection.INCOMPLETE,
    ),
    "a tile of another client": (
        lambda r: with_tile(r, 1, lambda s: r.seal(OTHER).tiles[1]),
        Rejection.INCOMPLETE,
    ),
    "a NaN": (lambda r: with_value(r, np.nan), Rejection.NOT_FINITE),
    "a NaN in the last place": (lambda r: with_value(r, np.nan, 49), Rejection.NOT_FINITE),
    "a signalling NaN": (lambda r: with_value(r, SIGNALLING_NAN), Rejection.NOT_FINITE),
    "an infinity": (lambda r: with_value(r, np.inf), Rejection.NOT_FINITE),
    "a negative infinity": (lambda r: with_value(r, -np.inf), Rejection.NOT_FINITE),
    "the largest float32 and an honest norm": (
        lambda r: with_value(r, np.finfo(np.float32).max),
        Rejection.FALSE_NORM,
    ),
    "too small a norm": (lambda r: with_norm(r, 1 - 2.0**-9), Rejection.FALSE_NORM),
    "too large a norm": (lambda r: with_norm(r, 1 + 2.0**-9), Rejection.FALSE_NORM),
    "a norm that is far too small": (lambda r: with_norm(r, 1e-30), Rejection.FALSE_NORM),
    "a norm that is far too large": (lambda r: with_norm(r, 1e30), Rejection.FALSE_NORM),
    "the norm zero": (lambda r: with_norm(r, 0), Rejection.FALSE_NORM),
    "the least norm": (lambda r: r.forge(ME, norm=2.0**-149), Rejection.FALSE_NORM),
    "zeros and another norm": (lambda r: of_zeros(r, 7.0), Rejection.FALSE_NORM),
}


@pytest.mark.parametrize("what", BAD_UPLOADS)
def test_a_bad_upload_is_out_alone(opened, what):
    make, reason = BAD_UPLOADS[what]
    opened.send(make(opened))
    assert opened.intake.spoilt == ({opened.name(ME): reason} if reason.provable else {})
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {ME: reason})


@pytest.mark.parametrize("what", BAD_UPLOADS)
def test_a_client_may_send_a_good_upload_after_a_bad_one(opened, what):
    opened.send(BAD_UPLOADS[what][0](opened))
    opened.send(opened.seal(ME))
    assert not opened.intake.spoilt
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {})


def test_nothing_more_is_taken_of_an_upload_that_its_client_has_spoilt(opened):
    bad = with_value(opened, np.nan, place=0)
    opened.send(bad)
    for tile in bad.tiles:
        assert_raises(Rejection.NOT_FINITE, opened.intake.take, opened.name(ME), tile)
    assert opened.intake.next_tile(opened.name(ME), bad.header.upload_id) is None


@pytest.mark.parametrize("factor", [1 - 2.0**-11, 1, 1 + 2.0**-11])
def test_a_norm_may_be_off_by_a_rounding_error(opened, factor):
    opened.send(with_norm(opened, factor))
    opened.send_all(but=[ME])
    opened.assert_result(opened.finish(), {})


@pytest.mark.parametrize("norm", [0.0, -0.0])
def test_an_update_of_zeros_may_say_so(simulate, masking, norm):
    rows = np.random.default_rng(1).normal(size=(7, 50)).astype(np.float32)
    rows[ME] = 0
    # Rows that arc shortens are all equally far from zeros: no nearest ones could be demanded.
    round_ = simulate(rows=rows, masking=masking, defence="multi-krum").open()
    round_.send(of_zeros(round_, norm))
    round_.send_all(but=[ME])
    round_.assert_result(round_.finish(), {})


# Spooled tiles that change after they have arrived. The row is out, selected or not, and the pass
# restarts.


def forged_twin(round_, forgery):
    """A tile of other content that opens in the same place: same key, same nonce, same header."""
    return forgery.tile(1, -7 * round_.simulation.rows[ME][16:32]).ciphertext


def forged_nan(round_, forgery):
    return forgery.tile(1, np.full(16, np.nan, np.float32)).ciphertext


CHANGES = {
    "one bit flips": lambda r, f: flip(f.tiles[1].ciphertext),
    "another tile that opens in its place": forged_twin,
    "a tile of NaNs that opens in its place": forged_nan,
    "another tile of the upload": lambda r, f: f.tiles[0].ciphertext,
    "a tile of another client": lambda r, f: r.spool[r.uploads[OTHER], 1],
    "a shorter one": lambda r, f: f.tiles[1].ciphertext[: 4 * 16 - 1],
    "nothing": lambda r, f: b"",
}


def changed(round_, what):
    """A closed round with such a change in its spool."""
    forgery = round_.forge(ME)
    round_.send(forgery)
    round_.send_all(but=[ME])
    round_.close()
    return (forgery.header.client, forgery.header.upload_id), CHANGES[what](round_, forgery)


@pytest.mark.parametrize("what", CHANGES)
def test_a_tile_that_changes_between_the_passes(spooled, what):
    upload, change = changed(spooled, what)
    spooled.measure()
    spooled.spool[upload, 1] = change
    published = spooled.average()
    assert [(each.client, each.reason) for each in spooled.changed] == [
        (f"client-{ME}", Rejection.CHANGED)
    ]
    spooled.assert_result(published, {ME: Rejection.CHANGED})


@pytest.mark.parametrize("what", CHANGES)
def test_a_tile_that_changes_before_the_first_pass(spooled, what):
    upload, change = changed(spooled, what)
    spooled.spool[upload, 1] = change
    with pytest.raises(UpdateRejected):
        spooled.try_to_measure()
    spooled.measure()
    published = spooled.average()
    assert not spooled.changed
    spooled.assert_result(published, {ME: Rejection.CHANGED})


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_in_memory_is_beyond_the_host_s_reach(simulate, masking, what):
    round_ = simulate(masking=masking).open()
    upload, change = changed(round_, what)
    round_.spool[upload, 1] = change
    round_.measure()
    round_.assert_result(round_.average(), {})
    assert not round_.reads


@pytest.fixture
def folded(simulate, masking):
    """A round whose rows were folded when they arrived, and then spooled."""
    return simulate(d=150_000, tile=16_384, masking=masking, sketch=16_384, budget=0).open()


@pytest.mark.parametrize("index", [0, 4, 9])
@pytest.mark.parametrize("bit", [0, -8 * 17])
def test_any_tile_that_changes_is_noticed(folded, index, bit):
    folded.send_all()
    folded.close()
    folded.measure()
    place = folded.uploads[ME], index
    folded.spool[place] = flip(folded.spool[place], bit)
    published = folded.average()
    assert [each.client for each in folded.changed] == [f"client-{ME}"]
    assert published.rejected == {f"client-{ME}": Rejection.CHANGED}


def test_tiles_that_change_places_are_noticed(folded):
    folded.send_all()
    folded.close()
    folded.measure()
    one, two = ((folded.uploads[ME], index) for index in (1, 2))
    folded.spool[one], folded.spool[two] = folded.spool[two], folded.spool[one]
    folded.average()
    assert [each.client for each in folded.changed] == [f"client-{ME}"]


def test_a_sketch_is_measured_without_a_look_at_the_spool(folded):
    folded.send_all()
    folded.close()
    folded.measure()
    assert not folded.reads


def test_a_change_has_the_same_consequence_whatever_the_weight(simulate, masking):
    outcomes = []
    for row in range(7):
        round_ = simulate(masking=masking, defence="multi-krum", budget=0).open()
        round_.send_all()
        round_.close()
        round_.measure()
        round_.spool[round_.uploads[row], 3] = b""
        published = round_.average()
        round_.assert_result(published, {row: Rejection.CHANGED})
        outcomes.append((len(round_.changed), published.receipt.kept))
    assert set(outcomes) == {(1, 5)}, "selected or not, the host sees the same"


def test_several_rows_that_change_are_found_one_by_one(simulate, masking):
    round_ = simulate(n=9, masking=masking, seed=1, budget=0).open()
    round_.send_all()
    round_.close()
    round_.measure()
    for row, index in ((8, 0), (1, 2), (5, 3)):
        round_.spool[round_.uploads[row], index] = b""
    published = round_.average()
    assert [each.client for each in round_.changed] == ["client-8", "client-1", "client-5"]
    round_.assert_result(published, dict.fromkeys((8, 1, 5), Rejection.CHANGED))


def test_a_row_out_in_the_first_pass_is_not_looked_at_in_the_second(spooled):
    spooled.send_all()
    spooled.close()
    spooled.spool[spooled.uploads[ME], 0] = b""
    spooled.measure()
    spooled.reads.clear()
    spooled.assert_result(spooled.average(), {ME: Rejection.CHANGED})
    assert not spooled.changed
    assert spooled.name(ME) not in {client for client, _ in spooled.reads}


def test_nothing_is_published_after_too_many_rows_changed(simulate, masking):
    round_ = simulate(n=4, masking=masking, budget=0).open()
    round_.send_all()
    round_.close()
    round_.measure()
    stored = dict(round_.spool)
    round_.spool[round_.uploads[ME], 0] = b""
    with pytest.raises(TooFewUpdates):
        round_.average()
    # The host shows the good bytes again; the round is over all the same.
    round_.spool = stored
    with pytest.raises(TooFewUpdates):
        round_.average()


def test_one_round_has_one_receipt(opened):
    opened.send_all()
    published = opened.finish()
    # Two receipts for one round are proof of a fork, so a second pass run again must not sign anew.
    with pytest.raises(LocalProtocolError):
        opened.average()
    opened.assert_result(published, {})


def test_a_round_closes_once(opened):
    opened.send_all()
    opened.close()
    with pytest.raises(LocalProtocolError):
        opened.close()
    opened.measure()
    opened.assert_result(opened.average(), {})


# Workers. What one of them, or the host between, gets wrong is refused, and the right one works.


@pytest.fixture
def attempt(simulate, offloaded):
    """All clients have sent, and the workers were made their offers."""
    round_ = simulate(masking=offloaded).open()
    round_.send_all()
    round_.close()
    return round_.offload()


def finish(attempt):
    round_ = attempt.round
    round_.measured = attempt.decode(attempt.answers())
    round_.assert_result(round_.average(), {})


def another(attempt):
    return attempt.round.offload()


BAD_ACCEPTS = {
    "by another worker": lambda a, mine, other: other,
    "another worker's signature": lambda a, mine, other: replace(mine, signature=other.signature),
    "for another attempt": lambda a, mine, other: another(a).accepts()[0],
    "another secret than was signed": lambda a, mine, other: replace(
        mine, sealed_secret=other.sealed_secret
    ),
    "a flipped bit": lambda a, mine, other: replace(mine, sealed_secret=flip(mine.sealed_secret)),
    "signed by a stranger": lambda a, mine, other: a.round.simulation.stranger.sign(mine),
}


@pytest.mark.parametrize("what", BAD_ACCEPTS)
def test_a_bad_accept_is_refused_and_leaves_no_trace(attempt, what):
    mine, *others = attempt.accepts()
    with pytest.raises(WorkerError) as caught:
        attempt.connect([BAD_ACCEPTS[what](attempt, mine, others[0]), *others])
    assert caught.value.worker == "worker-1"
    attempt.connect([mine, *others])
    attempt.encode()
    finish(attempt)


BAD_OFFERS = {
    "another worker's": lambda a: a.offers[1],
    "signed by a stranger": lambda a: a.round.simulation.stranger.sign(a.offers[0]),
    "another worker's, under my name": lambda a: replace(a.offers[1], worker=a.offers[0].worker),
    "another point": lambda a: replace(a.offers[0], point=a.offers[1].point),
    "more rows": lambda a: replace(a.offers[0], rows=2**40),
    "no tile": lambda a: replace(a.offers[0], tile=0),
    "another key": lambda a: replace(a.offers[0], key=a.offers[1].key),
}


@pytest.mark.parametrize("what", BAD_OFFERS)
def test_a_worker_refuses_a_bad_offer(attempt, what):
    with pytest.raises(OpenError):
        attempt.round.simulation.workers[0].accept(BAD_OFFERS[what](attempt))
    connect(attempt).encode()
    finish(attempt)


BAD_SHARES = {
    "for another attempt": lambda mine, other: replace(mine, attempt_id=bytes(32)),
    "past the last": lambda mine, other: replace(mine, index=4),
    "in the place of the next": lambda mine, other: replace(mine, index=1),
    "in the place of the short last one": lambda mine, other: replace(mine, index=3),
    "truncated": lambda mine, other: replace(mine, ciphertext=mine.ciphertext[:-1]),
    "empty": lambda mine, other: replace(mine, ciphertext=b""),
    "a flipped bit": lambda mine, other: replace(mine, ciphertext=flip(mine.ciphertext)),
    "a flipped bit in the last row": lambda mine, other: replace(
        mine, ciphertext=flip(mine.ciphertext, -1)
    ),
    "two rows in each other's place": lambda mine, other: replace(
        mine, ciphertext=exchange(mine.ciphertext, 7)
    ),
    "the other worker's": lambda mine, other: other,
}


def exchange(data, parts):
    """The first two of so many equal parts, exchanged."""
    size = len(data) // parts
    return data[size : 2 * size] + data[:size] + data[2 * size :]


@pytest.mark.parametrize("what", BAD_SHARES)
def test_a_bad_share_is_refused_and_leaves_no_trace(attempt, what):
    attempt.connect(attempt.accepts())
    for index, shares in enumerate(attempt.shares()):
        if index == 0:
            with pytest.raises((MalformedMessage, OpenError)):
                attempt.computing[0].add(BAD_SHARES[what](*shares))
        for computing, share in zip(attempt.computing, shares, strict=True):
            computing.add(share)
    finish(attempt)


def test_a_share_that_comes_twice(attempt):
    attempt.connect(attempt.accepts())
    for shares in attempt.shares():
        for computing, share in zip(attempt.computing, shares, strict=True):
            computing.add(share)
            with pytest.raises(RemoteProtocolError):
                computing.add(share)
    finish(attempt)


def test_a_worker_does_not_answer_early(attempt):
    attempt.connect(attempt.accepts())
    with pytest.raises(LocalProtocolError):
        attempt.computing[0].answer()


BAD_ANSWERS = {
    "a flipped bit": lambda mine, other: replace(mine, ciphertext=flip(mine.ciphertext)),
    "truncated": lambda mine, other: replace(mine, ciphertext=mine.ciphertext[:-1]),
    "nothing": lambda mine, other: replace(mine, ciphertext=b""),
    "the other worker's": lambda mine, other: other,
    "for another attempt": lambda mine, other: replace(mine, attempt_id=bytes(32)),
}


@pytest.mark.parametrize("what", BAD_ANSWERS)
def test_a_bad_answer_is_refused_and_leaves_no_trace(attempt, what):
    attempt.connect(attempt.accepts())
    attempt.encode()
    mine, *others = attempt.answers()
    with pytest.raises(WorkerError) as caught:
        attempt.decode([BAD_ANSWERS[what](mine, others[0]), *others])
    assert caught.value.worker == "worker-1"
    finish(attempt)


def test_answers_are_decoded_once(attempt):
    """Under one challenge, a second answer could be fitted to what became of the first."""
    attempt.connect(attempt.accepts())
    attempt.encode()
    answers = attempt.answers()
    with pytest.raises(WorkerLied):
        attempt.decode([attempt.lie(0, attempt.told(0)[::-1]), *answers[1:]])
    with pytest.raises(LocalProtocolError, match="another takes fresh masks"):
        attempt.decode(answers)


def test_every_attempt_has_an_id_of_its_own(attempt):
    assert another(attempt).offers[0].attempt_id != attempt.offers[0].attempt_id


Lie = Callable[[np.ndarray], np.ndarray]

WRONG_NUMBERS: dict[str, Lie] = {
    "too few": lambda told: told[:-1],
    "too many": lambda told: np.r_[told, told[:1]],
    "none": lambda told: told[:0],
    "one that is off": lambda told: np.r_[told[0] * 2 + 5, told[1:]],
    "the last that is off": lambda told: np.r_[told[:-1], told[-1] // 2 + 9],
    "zeros": np.zeros_like,
    "ones": np.ones_like,
    "in another order": lambda told: told[::-1],
}
WRONG_FLOATS: dict[str, Lie] = {
    "one NaN": lambda told: np.r_[np.nan, told[1:]],
    "one infinity": lambda told: np.r_[told[:-1], np.inf],
    "numbers beyond all distances": lambda told: np.full_like(told, 1.7e308),
    "numbers below all distances": lambda told: np.full_like(told, -1.7e308),
    "one number beyond all distances": lambda told: np.r_[1e200, told[1:]],
}
WRONG_RESIDUES: dict[str, Lie] = {
    "one off by one": lambda told: np.r_[told[:9], (told[9] + 1) % (2**31 - 1), told[10:]],
    "one that is no residue": lambda told: np.r_[2**31 - 1, told[1:]],
    "numbers that are no residues": lambda told: np.full_like(told, 2**32 - 1),
}
LIES: dict[tuple[str, str], Lie] = {
    **{("gaussian", what): lie for what, lie in {**WRONG_NUMBERS, **WRONG_FLOATS}.items()},
    **{("exact", what): lie for what, lie in {**WRONG_NUMBERS, **WRONG_RESIDUES}.items()},
}


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize(("scheme", "what"), LIES)
def test_a_worker_that_answers_with_wrong_numbers_is_named(simulate, scheme, what, worker):
    """Nothing that a worker says can end the round, or make the enclave raise anything else."""
    round_ = simulate(masking=scheme).open()
    round_.send_all()
    round_.close()
    attempt = round_.offload()
    attempt.connect(attempt.accepts())
    attempt.encode()
    answers = attempt.answers()
    answers[worker] = attempt.lie(worker, LIES[scheme, what](attempt.told(worker)))
    with pytest.raises(WorkerError) as caught:
        attempt.decode(answers)
    assert caught.value.worker == f"worker-{worker + 1}"
    round_.measure()
    round_.assert_result(round_.average(), {})


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_an_answer_is_made_of_residues_and_of_nothing_congruent_to_them(simulate, worker):
    """A number of p or more decodes like its residue, so only its own check can refuse it."""
    round_ = simulate(masking="exact", workers=3).open()
    round_.send_all()
    round_.close()
    attempt = round_.offload()
    attempt.connect(attempt.accepts())
    attempt.encode()
    answers, told = attempt.answers(), attempt.told(worker)
    for place in (0, len(told) - 1):
        numbers = told.copy()
        numbers[place] += np.uint32(field.P)
        lies = [*answers]
        lies[worker] = attempt.lie(worker, numbers)
        with pytest.raises(WorkerError, match="no residues") as caught:
            attempt.decode(lies)
        assert caught.value.worker == f"worker-{worker + 1}"
    round_.measured = attempt.decode(answers)
    round_.assert_result(round_.average(), {})


def connect(attempt):
    attempt.connect(attempt.accepts())
    return attempt


def test_a_row_is_masked_once(attempt):
    connect(attempt).encode()
    with pytest.raises(LocalProtocolError):
        attempt.encode()
    finish(attempt)


def test_an_attempt_connects_once(attempt):
    connect(attempt)
    with pytest.raises(LocalProtocolError, match="under way"):
        attempt.connect(attempt.accepts())


def test_distances_are_not_decoded_before_all_tiles_are_masked(attempt):
    other = another(attempt)
    connect(other).encode()
    connect(attempt)
    lies = [attempt.lie(worker, other.told(worker)) for worker in range(2)]
    with pytest.raises(LocalProtocolError):
        attempt.decode(lies)
    next(attempt.shares())
    with pytest.raises(LocalProtocolError):
        attempt.decode(lies)
