import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ostraka.config import LEAF_VALUES, Manifest, Terms, spans_from
from ostraka.crypto import hpke, updates
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity, check_signature
from ostraka.crypto.stream import SecretStream
from ostraka.encoding import UNSIGNED, encode
from ostraka.errors import ConfigError, LocalProtocolError, OpenError
from ostraka.messages import RoundOffer

ENCLAVE, CLIENT, KEY = Identity(bytes(32)), Identity(bytes([1]) * 32), HybridKey()
TERMS = Terms(Manifest.flat(50), f=1, masking="none", tile=16)
OFFER = ENCLAVE.sign(
    RoundOffer(
        1, b"r" * 32, b"c" * 32, bytes(32), bytes(32), KEY.public, shards=(0,), signature=UNSIGNED
    )
)
UPDATE = np.random.default_rng(0).normal(size=50).astype(np.float32)


def entropy(seed):
    return SecretStream(bytes([seed]) * 32).bytes


def sealing(update=UPDATE, seed=1, client="alice", terms=TERMS):
    return updates.seal(
        updates.rounded(update, terms),
        offer=OFFER,
        terms=terms,
        client=client,
        identity=CLIENT,
        entropy=entropy(seed),
    )


def seal(update=UPDATE, seed=1, client="alice"):
    return sealing(update, seed, client).whole()


def opener_of(header, span=TERMS.span):
    """What opens the tiles of a span, once the enclave has opened the header."""
    key = updates.open_header(header, KEY).key
    return updates.TileOpener(key.of(span), key.bound, span.first)


def open_all(header, tiles):
    opener, norm = opener_of(header), updates.open_header(header, KEY).norm
    out = np.empty(50, np.float32)
    for tile in tiles:
        opener.open_into(tile.index, tile.ciphertext, out[TERMS.tiling.part(tile.index)])
    return out, norm


def test_the_enclave_opens_what_the_client_sealed():
    sealed = seal()
    out, norm = open_all(sealed.header, sealed.tiles)
    assert np.array_equal(out, UPDATE)
    assert norm == pytest.approx(np.linalg.norm(UPDATE.astype(np.float64)), rel=1e-15)


@pytest.mark.parametrize("values", [4, 8, 16])
def test_a_tile_opens_again_in_parts_without_its_tag(values):
    sealed, out = seal(), np.empty(50, np.float32)
    opener = opener_of(sealed.header)
    for tile in sealed.tiles:
        part = out[TERMS.tiling.part(tile.index)]
        for start in range(0, len(part), values):
            some = part[start : start + values]
            raw = tile.ciphertext[4 * start : 4 * start + some.nbytes]
            opener.open_part(tile.index, 4 * start, raw, some)
    assert np.array_equal(out, UPDATE)
    raw = sealed.tiles[0].ciphertext[:64]
    for wrong in (b"", raw[:-1], raw + b"0"):
        with pytest.raises(OpenError):
            opener.open_part(0, 0, wrong, np.empty(16, np.float32))


def test_the_header_says_what_it_is_for_and_is_signed():
    header = seal().header
    check_signature(header, CLIENT.public)
    assert (header.federation, header.round_id) == (OFFER.federation, OFFER.round_id)
    assert header.round_key == hpke.fingerprint(KEY.public)
    assert header.client == "alice"
    assert header.manifest == TERMS.manifest.digest()
    assert (header.dimension, header.tile, header.tiles) == (50, 16, 4)


def test_the_tiles_are_those_of_the_update():
    sealed = seal()
    assert [tile.index for tile in sealed.tiles] == [0, 1, 2, 3]
    assert [len(tile.ciphertext) for tile in sealed.tiles] == [80, 80, 80, 24]
    assert {tile.upload_id for tile in sealed.tiles} == {sealed.header.upload_id}


def test_every_upload_has_a_key_of_its_own():
    """Under one key the XOR of two ciphertexts would be that of the updates."""
    one, two = seal(seed=1), seal(seed=2)
    assert one.header.upload_id != two.header.upload_id
    xor = np.frombuffer(one.tiles[0].ciphertext, np.uint8) ^ np.frombuffer(
        two.tiles[0].ciphertext, np.uint8
    )
    assert np.count_nonzero(xor[:64]) > 48
    opener = opener_of(one.header)
    with pytest.raises(OpenError):
        opener.open_into(0, two.tiles[0].ciphertext, np.empty(16, np.float32))


# Sealing as tiles are sent.


def test_tiles_that_are_sealed_one_by_one_are_the_same_bytes():
    whole, one_by_one = seal(), sealing()
    out = memoryview(bytearray(one_by_one.largest))
    assert (one_by_one.count, one_by_one.largest) == (whole.count, whole.largest)
    for index in (3, 0, 1, 0, 2, 3):  # A resumed upload begins anywhere.
        size = one_by_one.put(index, out)
        assert bytes(out[:size]) == whole.tiles[index].ciphertext
        assert whole.put(index, out) == size
        assert bytes(out[:size]) == whole.tiles[index].ciphertext


@pytest.mark.parametrize(("tile", "values"), [(16, 16), (50, 50), (64, 50)])
def test_the_largest_tile_is_said_before_any_is_sealed(tile, values):
    assert sealing(terms=replace(TERMS, tile=tile)).largest == 4 * values + 16


def test_an_update_is_not_copied():
    update = UPDATE.copy()
    held = sealing(update)
    update[0] = 7.0
    out = memoryview(bytearray(held.largest))
    size = held.put(0, out)
    opener = opener_of(held.header)
    opened = np.empty(16, np.float32)
    opener.open_into(0, out[:size], opened)
    assert opened[0] == 7.0


def test_a_strided_or_read_only_update_is_sealed_as_its_values():
    strided = np.repeat(UPDATE, 2)[::2]
    fixed = UPDATE.copy()
    fixed.flags.writeable = False
    for update in (strided, fixed):
        assert sealing(update).whole().tiles == seal().tiles


@pytest.mark.parametrize("place", [0, 15, 16, 49])
def test_a_changed_array_is_never_given_out_under_the_same_key(place):
    """GCM under one key and nonce would show the XOR of the two, and forge tags."""
    update = UPDATE.copy()
    held = sealing(update)
    out = memoryview(bytearray(held.largest))
    first = [bytes(out[: held.put(index, out)]) for index in range(held.count)]
    update[place] = np.nextafter(update[place], np.float32(np.inf))
    changed = next(i for i in range(held.count) if place in range(50)[TERMS.tiling.part(i)])
    with pytest.raises(LocalProtocolError, match="changed while it was being sent"):
        held.put(changed, out)
    assert not any(out[: len(first[changed])])
    with pytest.raises(LocalProtocolError):
        held.whole()
    update[place] = UPDATE[place]
    assert bytes(out[: held.put(changed, out)]) == first[changed]


def test_what_holds_a_key_does_not_show_it():
    assert repr(sealing()) == "Sealing(4 tiles, <secret>)"


def test_by_default_the_key_is_the_system_s():
    sealed = [
        updates.seal(
            updates.rounded(UPDATE, TERMS),
            offer=OFFER,
            terms=TERMS,
            client="alice",
            identity=CLIENT,
        ).whole()
        for _ in range(2)
    ]
    assert sealed[0].tiles[0].ciphertext != sealed[1].tiles[0].ciphertext


def test_the_key_is_in_no_message():
    drawn = []
    source = entropy(5)

    def recording(n):
        drawn.append(source(n))
        return drawn[-1]

    sealed = updates.seal(
        updates.rounded(UPDATE, TERMS, recording),
        offer=OFFER,
        terms=TERMS,
        client="alice",
        identity=CLIENT,
        entropy=recording,
    ).whole()
    upload_id, key = drawn
    assert upload_id == sealed.header.upload_id
    assert key not in sealed.header.sealed_key
    assert not any(key in tile.ciphertext for tile in sealed.tiles)


BOUND = {
    "federation": b"F" * 32,
    "round_id": b"R" * 32,
    "round_key": b"K" * 32,
    "client": "bob",
    "upload_id": b"U" * 32,
    "manifest": b"M" * 32,
    "dimension": 51,
    "tile": 17,
    "tiles": 5,
}


@pytest.mark.parametrize("field", BOUND)
def test_every_field_is_bound_to_the_sealed_key_and_to_the_tiles(field):
    sealed = seal()
    changed = replace(sealed.header, **{field: BOUND[field]})
    with pytest.raises(OpenError):
        updates.open_header(changed, KEY)
    assert updates.tile_context(changed) != updates.tile_context(sealed.header)


def test_a_header_opens_with_its_own_key_only():
    with pytest.raises(OpenError):
        updates.open_header(seal().header, HybridKey())


@pytest.mark.parametrize("length", [0, 8, 40, 47, 49, 80])
def test_a_secret_of_another_length_is_refused(length):
    header = replace(seal().header, sealed_key=b"")
    sealed_key = hpke.seal(KEY.public, bytes(length), info=updates.context(header))
    with pytest.raises(OpenError):
        updates.open_header(replace(header, sealed_key=sealed_key), KEY)


def test_the_secret_is_a_key_a_norm_and_a_step():
    header = replace(seal().header, sealed_key=b"")
    secret = struct.pack(">32sdd", bytes(32), -3.5, 0.25)
    sealed_key = hpke.seal(KEY.public, secret, info=updates.context(header))
    opened = updates.open_header(replace(header, sealed_key=sealed_key), KEY)
    assert opened.key == updates.UploadKey(bytes(32), updates.tile_context(header))
    assert (opened.norm, opened.step, opened.report) == (-3.5, 0.25, b"")


BAD_UPDATES: dict[str, Any] = {
    "too short": np.zeros(49, np.float32),
    "too long": np.zeros(51, np.float32),
    "a matrix": np.zeros((5, 10), np.float32),
    "of float64": np.zeros(50),
    "of float16": np.zeros(50, np.float16),
    "of integers": np.zeros(50, np.int32),
    "of the other byte order": np.zeros(50, ">f4"),
}


@pytest.mark.parametrize("what", BAD_UPDATES)
def test_what_is_no_update_is_not_sealed(what):
    with pytest.raises(ConfigError, match=r"float32|shape"):
        updates.rounded(BAD_UPDATES[what], TERMS)


def test_an_update_may_be_a_view():
    sealed = seal(np.stack([UPDATE, UPDATE], axis=1)[:, 1])
    assert np.array_equal(open_all(sealed.header, sealed.tiles)[0], UPDATE)


FORMATS = ["bfloat16", "float16", "int8"]


@pytest.mark.parametrize("name", FORMATS)
def test_tiles_hold_the_values_of_the_format_and_the_step_is_sealed(name):
    terms = replace(TERMS, upload=name)
    encoded = updates.rounded(UPDATE, terms, entropy(9))
    sealed = updates.seal(
        encoded, offer=OFFER, terms=terms, client="alice", identity=CLIENT
    ).whole()
    opener, opened = opener_of(sealed.header), updates.open_header(sealed.header, KEY)
    norm, step = opened.norm, opened.step
    out = np.empty(50, terms.format.dtype)
    for tile in sealed.tiles:
        assert len(tile.ciphertext) == terms.tile_bytes(tile.index) + 16
        opener.open_into(tile.index, tile.ciphertext, out[terms.tiling.part(tile.index)])
    assert np.array_equal(out, encoded.values)
    assert (norm, step) == (encoded.norm, encoded.step)
    assert bool(step) == (name == "int8")


def sealed_bytes(name, d):
    """What an upload of d values takes on its way, header and tags included."""
    terms = Terms(Manifest.flat(d), f=1, masking="none", upload=name)
    encoded = updates.rounded(np.ones(d, np.float32), terms)
    sealed = updates.seal(
        encoded, offer=OFFER, terms=terms, client="alice", identity=CLIENT
    ).whole()
    return len(encode(sealed.header)) + sum(len(encode(tile)) for tile in sealed.tiles)


def test_shorter_formats_take_a_half_and_a_quarter_of_the_bytes():
    d = 3_500_000
    whole = sealed_bytes("float32", d)
    assert sealed_bytes("int8", d) <= 0.27 * whole
    for name in ("bfloat16", "float16"):
        assert sealed_bytes(name, d) <= 0.52 * whole


def test_values_of_another_format_are_not_sealed():
    encoded = updates.rounded(UPDATE, replace(TERMS, upload="float16"))
    with pytest.raises(ConfigError, match=r"50 values of float32; got .* float16"):
        updates.seal(encoded, offer=OFFER, terms=TERMS, client="alice", identity=CLIENT)


def test_a_tile_that_fails_leaves_zeros():
    sealed = seal()
    opener = opener_of(sealed.header)
    out = np.full(16, 7, np.float32)
    with pytest.raises(OpenError):
        opener.open_into(1, sealed.tiles[0].ciphertext, out)
    assert not out.any()


def test_the_key_does_not_print():
    header = seal().header
    opened = updates.open_header(header, KEY)
    assert repr(opener_of(header)) == "TileOpener(<secret>)"
    assert repr(opened) == "Opened()"
    assert repr(opened.key.key)[2:-1] not in repr(opened.key)


# Shards: each has the key of its own tiles.


WIDE = Terms(Manifest.flat(3 * LEAF_VALUES + 5), f=1, masking="none", tile=LEAF_VALUES)
LONG = np.random.default_rng(1).normal(size=WIDE.dimension).astype(np.float32)


def cut(*first):
    """An upload that is cut into spans which begin with these tiles."""
    offer = ENCLAVE.sign(replace(OFFER, shards=first))
    return updates.seal(
        updates.rounded(LONG, WIDE),
        offer=offer,
        terms=WIDE,
        client="alice",
        identity=CLIENT,
        entropy=entropy(1),
    )


@pytest.mark.parametrize("first", [(0,), (0, 1), (0, 3), (0, 1, 2, 3)])
def test_each_span_opens_with_its_own_key(first):
    sealed = cut(*first).whole()
    out, spans = np.empty_like(LONG), spans_from(WIDE.tiling, first)
    for span in spans:
        opener, own = opener_of(sealed.header, span), out[span.part]
        for index in range(span.tiling.count):
            tile = sealed.tiles[span.first + index]
            opener.open_into(index, tile.ciphertext, own[span.tiling.part(index)])
            again = np.empty(span.tiling.size(index) - 4, np.float32)
            opener.open_part(index, 16, tile.ciphertext[16:-16], again)
            assert np.array_equal(again, own[span.tiling.part(index)][4:])
    assert np.array_equal(out, LONG)


def test_a_key_of_one_span_opens_no_other_tile():
    sealed, spans = cut(0, 1, 2).whole(), spans_from(WIDE.tiling, (0, 1, 2))
    for span in spans:
        for tile in sealed.tiles:
            if not span.first <= tile.index < span.first + span.tiling.count:
                out = np.empty(WIDE.tiling.size(tile.index), np.float32)
                with pytest.raises(OpenError):
                    opener_of(sealed.header, span).open_into(
                        tile.index - span.first, tile.ciphertext, out
                    )


def test_keys_of_spans_are_all_different_and_bound_to_the_upload():
    key = updates.UploadKey(b"k" * 32, b"b" * 32)
    spans = [
        span
        for first in ((0,), (0, 1), (0, 2), (0, 3), (0, 1, 3))
        for span in spans_from(WIDE.tiling, first)
    ]
    keys = {key.of(span) for span in spans}
    assert len(keys) == len(set(spans)) == 8
    others = updates.UploadKey(b"K" * 32, key.bound), updates.UploadKey(key.key, b"B" * 32)
    for other in others:
        assert not keys & {other.of(span) for span in spans}


def test_another_cut_seals_other_bytes_where_spans_differ():
    """Under one key and nonce two cuts could otherwise be mixed."""
    one, two = cut(0, 1).whole(), cut(0, 2).whole()
    assert one.header.upload_id == two.header.upload_id
    assert updates.tile_context(one.header) == updates.tile_context(two.header)
    same = [a.ciphertext == b.ciphertext for a, b in zip(one.tiles, two.tiles, strict=True)]
    assert same == [False] * 4
