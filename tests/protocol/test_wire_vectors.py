"""The wire is what the known-answer vectors say, and they are what docs/protocol.md says.

The second half computes some of them by hand, from hashlib and the primitives of cryptography.
"""

import hashlib
import json
import math
import re
import struct
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

wire_vectors = pytest.importorskip("wire_vectors", reason="only the source tree has tools/")

from wire_vectors.messages import kinds, labels  # noqa: E402

P = 2**31 - 1
WRITTEN = wire_vectors.read()
README = wire_vectors.FOLDER / "README.md"
PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")

# Labels that no vector shows, and why.
UNSHOWN = {
    "ostraka/charter/v1": "of version 0.1, which is recognised and refused",
    "ostraka/client-memory/v%d": "of older versions, which are recognised and refused",
    "ostraka/flower-joins/v1": "of version 0.1, which is recognised and refused",
    "ostraka/sealed/v1\n": "of version 0.1, which is recognised and refused",
    "ostraka/slice-file/v1": "in the name of a shard's own file",
    "ostraka/simulated-platform/v1": "heads a file that only a simulation reads",
}

# Who signs the messages of the round; the authority signs those that are made up.
SIGNERS = {
    "UpdateHeader": "client-1",
    "Confirmation": "client-1",
    "ChannelAccept": "worker-1",
    "RoundOffer": "enclave",
    "ChannelOffer": "enclave",
    "Receipt": "enclave",
    "Proposal": "enclave",
}


@pytest.fixture(scope="module")
def made():
    return wire_vectors.make(WRITTEN[wire_vectors.RECORDED])


@pytest.mark.parametrize("area", [*wire_vectors.AREAS, wire_vectors.RECORDED])
def test_every_vector_comes_out_as_it_is_written(made, area):
    now = {each["name"]: each for each in json.loads(json.dumps(made[area]))}
    before = {each["name"]: each for each in WRITTEN[area]}
    changed = [name for name in now | before if now.get(name) != before.get(name)]
    written = (wire_vectors.FOLDER / f"{area}.json").read_text("utf-8")
    if wire_vectors.text(area, made[area]) != written:
        changed = changed or ["the form of the file"]
    assert changed == [], (
        f"{area}.json, {'; '.join(changed)}: run make vectors if the wire was meant to change, and "
        "say so in CHANGELOG.md"
    )


def test_there_is_no_file_that_nothing_writes():
    assert WRITTEN.keys() == {*wire_vectors.AREAS, wire_vectors.RECORDED}
    text = README.read_text("utf-8")
    assert [area for area in WRITTEN if f"`{area}.json`" not in text] == []


def test_every_vector_has_a_name_of_its_own_and_says_what_it_shows():
    for area, vectors in WRITTEN.items():
        assert len({each["name"] for each in vectors}) == len(vectors), area
        assert [each["shows"] for each in vectors if not names_a_section(each["shows"])] == []


def names_a_section(shows):
    """Such as Law 7, Laws 1 to 4 or Confirmed rounds 2, each of which docs/protocol.md has."""
    place, colon, what = shows.partition(": ")
    section = re.sub(r" [\d, toand]+$", "", place)
    known = section in ("Law", "Laws", "ostraka.proto") or f"\n## {section}\n" in PROTOCOL
    return known and bool(colon and what)


def test_every_message_and_every_label_is_in_a_vector():
    shown = json.dumps(WRITTEN)
    named = {each["name"] for each in WRITTEN["messages"]}
    assert {kind.__name__ for kind in kinds()} <= named
    assert len(kinds()) > 45
    missing = {
        label
        for label in labels()
        if label not in shown and label.encode("latin-1").hex() not in shown
    }
    assert missing == set(UNSHOWN), "show it in tools/wire_vectors, or list it with a reason"


def parts(area, name):
    """The inputs and the outputs of one vector, bytes as bytes."""
    each = next(each for each in WRITTEN[area] if each["name"] == name)
    return read(each["inputs"]), read(each["outputs"])


def read(value):
    if isinstance(value, dict):
        return {name: read(each) for name, each in value.items()}
    if isinstance(value, list):
        return [read(each) for each in value]
    if isinstance(value, str) and value.startswith("0x"):
        return bytes.fromhex(value[2:])
    return value


def message(name):
    return parts("messages", name)[1]["encoded"]


def pack(*fields):
    return b"".join(len(each).to_bytes(8, "big") + each for each in fields)


def unpack(data):
    fields = []
    while data:
        size = int.from_bytes(data[:8], "big")
        fields.append(data[8 : 8 + size])
        data = data[8 + size :]
    return fields


def sha256(data):
    return hashlib.sha256(data).digest()


def hkdf(secret, info, salt=None, size=32):
    return HKDF(SHA256(), size, salt=salt, info=info).derive(secret)


def keystream(key, stream, size):
    """AES-256 in counter mode over zeros, from block 2 on."""
    start = stream.to_bytes(12, "big") + (2).to_bytes(4, "big")
    return Cipher(AES(key), CTR(start)).encryptor().update(bytes(size))


def residues(key, stream, count, modulus=P):
    mask = (1 << (modulus - 1).bit_length()) - 1
    words = struct.unpack(f"<{2 * count}I", keystream(key, stream, 8 * count))
    return [word & mask for word in words if word & mask < modulus][:count]


def by_rows(values, rows):
    width = len(values) // rows
    return [values[row * width : (row + 1) * width] for row in range(rows)]


def end_to_end(tiles):
    """Rows, from tiles of all of them."""
    return [list(chain.from_iterable(row)) for row in zip(*tiles, strict=True)]


def upper(rows):
    """The inner products modulo p on and above the diagonal."""
    n = len(rows)
    return [dot(rows[i], rows[j]) % P for i in range(n) for j in range(i, n)]


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def symmetric(entries, n):
    left = iter(entries)
    matrix = [[0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i, n):
            matrix[i][j] = matrix[j][i] = next(left)
    return matrix


def root(leaves):
    while len(leaves) > 1:
        pairs = [leaves[at : at + 2] for at in range(0, len(leaves), 2)]
        leaves = [sha256(b"\1" + b"".join(each)) if len(each) == 2 else each[0] for each in pairs]
    return leaves[0] if leaves else bytes(32)


def test_a_message_by_hand():
    given, result = parts("encoding", "a message of every type of field")
    inner = pack("é".encode(), pack((1).to_bytes(8, "big"), (258).to_bytes(8, "big")))
    fields = pack(
        b"\x00\xff",
        b"text",
        b"\1",
        (258).to_bytes(8, "big"),
        struct.pack(">d", 0.5),
        b"",
        bytes(8),
        inner,
        pack(inner, inner),
    )
    assert result["encoded"] == pack(given["label"].encode(), fields)
    assert result["digest"] == sha256(result["encoded"])


def test_every_signature_by_hand():
    """The receipt's is one of them. A signature is the last field, and covers 64 zeros there."""
    checked = set()
    for each in WRITTEN["messages"]:
        name = each["name"]
        if "signature" in each["inputs"].get("fields", ()) and "encoded" in each["outputs"]:
            encoded = read(each["outputs"]["encoded"])
            given, result = parts("round", SIGNERS.get(name, "authority"))
            key = Ed25519PrivateKey.from_private_bytes(given["Ed25519 seed"])
            assert key.public_key().public_bytes_raw() == result["public"]
            assert key.sign(encoded[:-64] + bytes(64)) == encoded[-64:], name
            checked.add(name)
    assert {*SIGNERS, "Charter"} <= checked


def test_digests_by_hand():
    hashes = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}
    preimages = 0
    for vectors in WRITTEN.values():
        for each in vectors:
            given, result = each["inputs"], each["outputs"]
            if "preimage" in given:
                ((kind, digest),) = result.items()
                assert hashes[kind](read(given["preimage"])).digest() == read(digest), each["name"]
                preimages += 1
    assert preimages >= 10


def test_trees_and_models_by_hand():
    for count in (0, 1, 2, 3, 5):
        given, result = parts("digests", f"a tree of {count}")
        assert result["leaves"] == [sha256(b"\0" + each) for each in given["contents"]]
        assert result["root"] == root(result["leaves"])
    given, result = parts("digests", "the cohort of the round")
    assert given["leaves"][0] == sha256(b"\0" + message("UpdateHeader"))
    assert result["root"] == root(given["leaves"])
    _, after = parts("round", "the outcome")
    for name, values in (
        ("the model after the round", after["model"]),
        ("a model of three parts", [k % 251 for k in range(32_769)]),
    ):
        each = [values[at : at + 16_384] for at in range(0, len(values), 16_384)]
        leaves = [sha256(b"\0" + struct.pack(f"<{len(part)}f", *part)) for part in each]
        length = len(values).to_bytes(8, "big")
        digest = sha256(pack(b"ostraka/vector/v2", length, root(leaves)))
        assert parts("digests", name)[1]["digest"] == digest


def test_a_path_leads_to_the_root():
    for place in (2, 4):
        given, result = parts("digests", f"the path of leaf {place} of 5")
        node = given["leaf"]
        for each in result["path"]:
            left, right = (each[1:], node) if each[:1] == b"\0" else (node, each[1:])
            node = sha256(b"\1" + left + right)
        assert node == given["root"]


def test_sealed_tiles_by_hand():
    for name, kind in (("float32", "<f4"), ("float16", "<f2"), ("bfloat16", "<u2"), ("int8", "i1")):
        given, result = parts("updates", f"an upload of {name}")
        values = np.frombuffer(result["values"], kind)
        key = range_key(given["key"], given["additional_data"], 0, 3)
        for index, sealed in enumerate(result["tiles"]):
            tile = values[16 * index : 16 * index + 16].tobytes()
            nonce = index.to_bytes(12, "big")
            assert AESGCM(key).encrypt(nonce, tile, given["additional_data"]) == sealed
        step = result["step"] or 1.0
        wide = values.astype("<u4") << 16 if kind == "<u2" else values
        wide = wide.astype("<u4").view("<f4") if kind == "<u2" else wide * np.float64(step)
        assert result["widened"] == wide.astype(float).tolist()
        assert math.isclose(result["norm"], math.sqrt(float((wide.astype(float) ** 2).sum())))


def range_key(secret, bound, first, count):
    """Of the tiles that one shard has."""
    tiles = first.to_bytes(8, "big"), count.to_bytes(8, "big")
    return hkdf(secret, pack(b"ostraka/upload-range/v1", bound, *tiles))


def test_keys_of_ranges_by_hand():
    given, result = parts("updates", "the keys of two shards")
    secret, bound = given["key"], given["additional_data"]
    assert given["tiles"] == [[0, 2], [2, 1]]
    assert result["keys"] == [range_key(secret, bound, 0, 2), range_key(secret, bound, 2, 1)]


def test_the_cut_in_an_offer_by_hand():
    """An enclave without shards has all tiles, from number 0 on."""
    *_, key, shards, signature = unpack(unpack(message("RoundOffer"))[1])
    assert (len(key), len(signature)) == (1216, 64)
    assert unpack(shards) == [bytes(8)]


def test_integers_of_an_upload_by_hand():
    """Law 19: the smallest step of 16 bits, and q = floor(x / step + u)."""
    given, result = parts("updates", "an upload of int8")
    words = struct.unpack("<40I", keystream(given["rounding_key"], 0, 160))
    each = zip(given["update"], words, strict=True)
    q = [math.floor(x / result["step"] + word / 2**32) for x, word in each]
    assert struct.pack("40b", *q) == result["values"]
    largest = max(map(abs, given["update"])) / 127
    assert largest <= result["step"] < largest * (1 + 2**-15)
    assert (math.frexp(result["step"])[0] * 2**16).is_integer()


def test_what_an_upload_is_bound_to_by_hand():
    _, result = parts("updates", "what an upload is bound to")
    label, body = unpack(message("UpdateHeader"))
    *fields, _, _ = unpack(body)
    assert result["info"] == pack(label, pack(*fields, b"", bytes(64)))
    assert result["additional_data"] == sha256(result["info"])
    given, round_key = parts("updates", "an upload of float32")[0], message("RoundOffer")
    assert len(given["additional_data"]) == 32
    key = unpack(unpack(round_key)[1])[5]
    assert fields[2] == sha256(b"ostraka/hybrid-key/v1" + key)


def open_hpke(seeds, sealed, info):
    """RFC 9180 in base mode; the KEM is ML-KEM-768 and X25519, joined by SHA3-256."""
    mlkem = MLKEM768PrivateKey.from_seed_bytes(seeds["mlkem_seed"])
    x25519 = X25519PrivateKey.from_private_bytes(seeds["x25519_private"])
    sent, ciphertext = sealed[1088:1120], sealed[1120:]
    shared = mlkem.decapsulate(sealed[:1088]) + x25519.exchange(
        X25519PublicKey.from_public_bytes(sent)
    )
    own = x25519.public_key().public_bytes_raw()
    secret = hashlib.sha3_256(shared + sent + own + b"\\.//^\\").digest()
    suite = b"HPKE" + bytes.fromhex("647a00010002")

    def extract(salt, label, key):
        return HKDF.extract(SHA256(), salt or bytes(32), b"HPKE-v1" + suite + label + key)

    def expand(prk, label, context, size):
        bound = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + context
        return HKDFExpand(SHA256(), size, bound).derive(prk)

    context = b"\0" + extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", info)
    prk = extract(secret, b"secret", b"")
    key, nonce = (
        expand(prk, *each) for each in ((b"key", context, 32), (b"base_nonce", context, 12))
    )
    return AESGCM(key).decrypt(nonce, ciphertext, b"")


def test_what_hpke_sealed_by_hand():
    infos = {"the channel secret of worker-1": message("ChannelOffer")}
    opened = 0
    for each in WRITTEN["hpke"]:
        given, sealed = read(each["inputs"]), read(each["outputs"]["sealed"])
        info = given.get("info") or infos.get(each["name"])
        if info is not None:
            assert open_hpke(given, sealed, info) == given["plaintext"], each["name"]
            opened += 1
    assert opened == 5
    given, _ = parts("hpke", "the sealed key of client-1")
    _, result = parts("updates", "an upload of float32")
    assert struct.unpack(">dd", given["plaintext"][32:48]) == (result["norm"], 0.0)
    assert given["plaintext"][48:] == parts("updates", "the report of client-1")[1]["sealed"]


def test_reports_and_their_mean_by_hand():
    """Law 21: levels 31 and 1000 of a loss up to 10, in place of 27; client-3 reports nothing."""
    sealed = {
        name: parts("updates", f"the report of {name}")[1]["sealed"]
        for name in ("client-1", "client-2", "client-3")
    }
    assert [struct.unpack(">2H", each) for each in sealed.values()] == [
        (31, 750),
        (1000, 500),
        (65535, 65535),
    ]
    (receipt,) = (each for each in WRITTEN["messages"] if each["name"] == "Receipt")
    assert receipt["inputs"]["fields"]["metrics"] == {
        "clients": 2,
        "loss": 10 * ((31 + 1000) / 2000),
        "accuracy": (750 + 500) / 2000,
        "examples": None,
    }


@pytest.mark.parametrize(("t", "index"), [(1, 0), (1, 1), (1, 2), (2, 2)])
def test_shares_by_hand(t, index):
    """Laws 7 and 8, in integers."""
    given, result = parts("shares", f"t = {t}, tile {index}")
    count, stream = 3 * len(given["values"][0]), index << 32
    dither = struct.unpack(f"<{count}H", keystream(given["dither_key"], stream, 2 * count))
    assert by_rows([*dither], 3) == result["dither"]
    masks = [residues(seed, stream, count) for seed in given["mask_seeds"]]
    assert [by_rows(each, 3) for each in masks] == result["masks"]
    for row, (values, scale) in enumerate(zip(given["values"], given["scales"], strict=True)):
        variance = 0
        for k, value in enumerate(values):
            fixed = round(float(np.float32(value) * np.float32(scale)))
            variance += fixed % 2**16 * (2**16 - fixed % 2**16)
            q = (fixed + result["dither"][row][k]) >> 16
            assert result["q"][row][k] == q
            terms = [q, *(mask[row][k] for mask in result["masks"])]
            points = [sign * x for x in range(1, t + 1) for sign in (1, -1)]
            assert [share[row][k] for share in result["shares"]] == [
                sum(term * x**power for power, term in enumerate(terms)) % P for x in points
            ]
        assert result["s"][row] == sum(q * q for q in result["q"][row])
        assert result["v"][row] == variance


def test_steps_by_hand():
    given, result = parts("shares", "steps")
    radius = math.sqrt((P - 1) // 2 - given["d"] / 4) - 64
    scales = [np.float32(2**16 / (norm / radius)) for norm in given["norms"]]
    assert result["scales"] == [float(each) for each in scales]
    assert result["steps"] == [2**16 / float(each) for each in scales]


def test_gaussian_shares_by_hand():
    given, result = parts("shares", "gaussian")
    rows, noise = np.array(given["rows"]), np.array(given["noise"])
    assert (np.array(result["plus"]) == rows + noise).all()
    assert (np.array(result["minus"]) == rows - noise).all()
    assert (np.array(result["distances"]) == np.square(rows[:, None] - rows).sum(axis=2)).all()


def test_a_fold_by_hand():
    """Law 12, coordinate by coordinate."""
    given, result = parts("folds", "a row that is folded")
    m, tile, values = given["m"], given["tile"], given["values"]
    stream = keystream(given["key"], 0, 200)
    shifts = [word & 15 for (word,) in struct.iter_unpack("<I", stream[6:198]) if word & 15 < m]
    sketch = [0.0] * m
    for k, value in enumerate(values):
        index, place = divmod(k, tile)
        turned = stream[2 * index + place // 8] >> 7 - place % 8 & 1
        shift = shifts[2 * index + place // m]
        sketch[(place % m + shift) % m] += -value if turned else value
    assert result["sketch"] == sketch


def test_answers_and_what_they_decode_to_by_hand():
    """Law 9: the matrices at 1 and -1 give G + RR^T twice; law 11 for the outcome."""
    _, result = parts("grams", "answers, and what they decode to")
    made = [parts("shares", f"t = 1, tile {index}")[1] for index in range(3)]
    q = end_to_end([tile["q"] for tile in made])
    plus, minus = (upper(end_to_end([tile["shares"][at] for tile in made])) for at in (0, 1))
    mask = upper(end_to_end([tile["masks"][0] for tile in made]))
    assert [struct.unpack("<6I", each) for each in result["answers"]] == [(*plus,), (*minus,)]
    assert struct.unpack("<6I", result["leading"]) == (*mask,)
    half = pow(2, -1, P)
    g = [((a + b) * half - c) % P for a, b, c in zip(plus, minus, mask, strict=True)]
    assert [each % P for row in result["decoded"] for each in row] == [
        each for row in symmetric(g, 3) for each in row
    ]
    assert result["decoded"] == [[dot(x, y) for y in q] for x in q]


def test_inner_products_by_hand():
    """Law 10: v is what the dither has added, and is taken off the diagonal."""
    given, result = parts("grams", "inner products")
    tiles = [parts("shares", f"t = 1, tile {index}")[1] for index in range(3)]
    for name in ("s", "v"):
        assert given[name] == [sum(tile[name][row] for tile in tiles) for row in range(3)]
    steps, products = given["steps"], result["products"]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert products[i][j] == products[j][i] == steps[i] * steps[j] * given["gram"][i][j]
    for i, step in enumerate(steps):
        assert products[i][i] == step**2 * (given["s"][i] - given["v"][i] / 2**32)


def test_freivalds_check_by_hand():
    given, result = parts("grams", "Freivalds' check")
    v, g = given["challenge"], given["gram"]
    assert v == by_rows(residues(given["key"], 0, 6), 3)
    assert result["check"] == [
        [sum(v[i][a] * g[i][j] * v[j][b] for i in range(3) for j in range(3)) % P for b in (0, 1)]
        for a in (0, 1)
    ]
    assert (result["accepts"], result["accepts the lie"]) == (True, False)


def test_a_channel_by_hand():
    """From the transcript to the answer: a worker needs no more than this."""
    given, result = parts("channels", "the channel of worker-1")
    transcript = pack(message("ChannelOffer"), message("ChannelAccept"))
    assert unpack(unpack(message("ChannelAccept"))[1])[0] == sha256(message("ChannelOffer"))
    to_worker, to_enclave = (
        AESGCM(hkdf(given["secret"], pack(given[name].encode(), transcript)))
        for name in ("to_worker", "to_enclave")
    )
    tiles = []
    for index, sealed in enumerate(result["sealed shares"]):
        opened = to_worker.decrypt((index << 48).to_bytes(12, "big"), sealed, None)
        tiles.append(by_rows([*struct.unpack(f"<{len(opened) // 4}I", opened)], 3))
    assert tiles == result["opened shares"]
    assert struct.pack("<6I", *upper(end_to_end(tiles))) == result["opened answer"]
    assert to_enclave.encrypt(bytes(12), result["opened answer"], None) == result["sealed answer"]


def test_the_worker_at_infinity_by_hand():
    given, result = parts("channels", "the seed of the worker at infinity")
    label = b"ostraka/channel/v1/to-worker"
    key = hkdf(given["secret"], pack(label, given["transcript"]))
    nonce = ((2**48 - 1) << 48).to_bytes(12, "big")
    assert AESGCM(key).encrypt(nonce, given["mask seed"], None) == result["sealed seed"]
    widths = (16, 16, 8)
    tiles = [
        by_rows(residues(given["mask seed"], index << 32, 3 * width), 3)
        for index, width in enumerate(widths)
    ]
    assert upper(end_to_end(tiles)) == result["answer"]


def test_state_on_disk_by_hand():
    given, result = parts("state", "state on disk, short")
    key = hkdf(given["key"], given["info"], given["salt"])
    sealed = AESGCM(key).encrypt(bytes(12), given["content"], None)
    assert result["blob"] == result["mark"].encode() + given["salt"] + sealed
    given, result = parts("state", "state on disk, longer than a segment")
    cipher = AESGCM(hkdf(given["key"], given["info"], given["salt"]))
    first = cipher.encrypt(bytes(12), bytes(2**20), None)
    second = cipher.encrypt((1).to_bytes(12, "big"), bytes(3), None)
    blob = result["mark"].encode() + given["salt"] + first + second
    assert result["sha256"] == sha256(blob)


def test_a_certificate_by_hand():
    """What a client checks of a receipt: the proposal commits to it, and a quorum signed that."""
    receipt = message("Receipt")
    proposal, salt, votes = unpack(unpack(message("Certificate"))[1])
    outcome = sha256(pack(b"ostraka/outcome/v1", salt, receipt))
    assert unpack(proposal)[3] == outcome
    assert unpack(unpack(message("Proposal"))[1]) == unpack(proposal)
    digest, federation = sha256(message("Proposal")), unpack(proposal)[0]
    assert len(unpack(votes)) == 3
    for vote in unpack(votes):
        voter, signature = unpack(vote)
        fields = pack(federation, (1).to_bytes(8, "big"), digest, voter, bytes(64))
        public = parts("round", voter.decode())[1]["public"]
        Ed25519PublicKey.from_public_bytes(public).verify(
            signature, pack(b"ostraka/confirmation/v1", fields)
        )


def test_the_outcome_of_the_round_by_hand():
    given, result = parts("round", "the outcome")
    rows = np.array(parts("round", "updates and their headers")[0]["updates"], np.float64)
    products = np.array(given["products"])
    distances = np.diagonal(products)[:, None] + np.diagonal(products) - 2 * products
    scores = [sorted(np.delete(each, row))[0] for row, each in enumerate(distances)]
    kept = sorted(sorted(range(3), key=lambda row: scores[row])[:2])
    assert result["selected"] == [f"client-{row + 1}" for row in kept]
    assert result["aggregate"] == rows[kept].mean(axis=0).astype(np.float32).tolist()
    assert result["receipt"] == sha256(message("Receipt"))
    quorums_given, quorums = parts("round", "quorums")
    least = [next(q for q in range(20) if 2 * q > n + f) for n, f in quorums_given["n, f"]]
    assert quorums["quorums"] == least
