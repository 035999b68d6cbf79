import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from ostraka.crypto import sealing
from ostraka.crypto.sealing import Sealer
from ostraka.crypto.stream import SecretStream
from ostraka.encoding import pack
from ostraka.errors import LocalProtocolError, OpenError

KEY = bytes(range(32))
CODE_ID = b"i" * 32
SEALER = Sealer(KEY, CODE_ID)
SEALED = SEALER.seal("model", b"a secret of the enclave")
MARK = b"ostraka/sealed/v2\n"
HEADER = len(MARK) + 32
MIB = 1 << 20


def opened(sealed, purpose="model", sealer=SEALER):
    return sealer.open(purpose, sealed)


@given(st.binary(max_size=200))
def test_opening_undoes_sealing(plaintext):
    assert opened(SEALER.seal("model", plaintext)) == plaintext


@pytest.mark.parametrize("length", [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 5])
def test_opening_undoes_sealing_at_every_edge_of_a_segment(length):
    plaintext = SecretStream(bytes(32)).bytes(length)
    sealed = SEALER.seal("model", plaintext)
    assert len(sealed) == HEADER + length + 16 * max(1, -(-length // MIB))
    assert opened(sealed) == plaintext


def test_a_blob_is_what_its_format_says():
    """Written here once more from the description, with nothing of the module."""
    salt = SEALED[len(MARK) : HEADER]
    body = SEALED[HEADER:]
    length = len(body).to_bytes(8, "big")
    info = pack(b"ostraka/sealed-state/v2", CODE_ID, b"model", length)
    cipher = AESGCM(HKDF(SHA256(), 32, salt=salt, info=info).derive(KEY))
    assert SEALED.startswith(MARK)
    assert cipher.decrypt(bytes(12), body, None) == b"a secret of the enclave"


def test_views_are_sealed_like_bytes():
    entropy = SecretStream(bytes(32)).bytes
    view = memoryview(bytearray(b"abcd" * 100))[4:]
    assert opened(Sealer(KEY, CODE_ID, entropy).seal("model", view)) == b"abcd" * 99


def test_no_two_blobs_share_a_salt():
    assert len({SEALER.seal("model", b"")[len(MARK) : HEADER] for _ in range(100)}) == 100


def test_pieces_are_the_blob_bit_by_bit():
    plaintext = bytes(2 * MIB + 1)
    one, other = (Sealer(KEY, CODE_ID, SecretStream(bytes(32)).bytes) for _ in range(2))
    pieces = list(one.pieces("model", plaintext))
    assert b"".join(pieces) == other.seal("model", plaintext)
    assert [len(piece) for piece in pieces] == [HEADER, MIB + 16, MIB + 16, 17]


THREE = SEALER.seal("model", bytes(2 * MIB + 9))
SEGMENT = MIB + 16
FIRST, SECOND, LAST = (
    THREE[HEADER : HEADER + SEGMENT],
    THREE[HEADER + SEGMENT : HEADER + 2 * SEGMENT],
    THREE[HEADER + 2 * SEGMENT :],
)
OTHER_SALT = SEALER.seal("model", b"a secret of the enclave")[len(MARK) : HEADER]

FAILURES = {
    "another purpose": (SEALED, "identity", SEALER),
    "a purpose that is longer": (SEALED, "models", SEALER),
    "another enclave with the same key": (SEALED, "model", Sealer(KEY, b"j" * 32)),
    "another key": (SEALED, "model", Sealer(bytes(32), CODE_ID)),
    "nothing": (b"", "model", SEALER),
    "a header alone": (SEALED[:HEADER], "model", SEALER),
    "a byte too many": (SEALED + b"\0", "model", SEALER),
    "another version": (SEALED.replace(b"/v2", b"/v1", 1), "model", SEALER),
    "another blob's salt": (MARK + OTHER_SALT + SEALED[HEADER:], "model", SEALER),
    "segments exchanged": (THREE[:HEADER] + SECOND + FIRST + LAST, "model", SEALER),
    "a segment dropped": (THREE[:HEADER] + FIRST + LAST, "model", SEALER),
    "the last segment dropped": (THREE[:HEADER] + FIRST + SECOND, "model", SEALER),
    "a segment twice": (THREE[:HEADER] + FIRST + FIRST + LAST, "model", SEALER),
    "another blob behind it": (SEALED + SEALED, "model", SEALER),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_is_one_error(what):
    sealed, purpose, sealer = FAILURES[what]
    with pytest.raises(OpenError) as caught:
        sealer.open(purpose, sealed)
    assert str(caught.value) == str(OpenError(f"sealed {purpose}"))
    assert caught.value.__suppress_context__


def test_every_changed_byte_is_refused():
    for at in range(len(SEALED)):
        with pytest.raises(OpenError):
            opened(SEALED[:at] + bytes([SEALED[at] ^ 1]) + SEALED[at + 1 :])


def test_every_length_but_the_whole_is_refused():
    for length in range(len(SEALED)):
        with pytest.raises(OpenError):
            opened(SEALED[:length])


@pytest.mark.parametrize(("key", "code_id"), [(b"", CODE_ID), (KEY[1:], CODE_ID), (KEY, b"")])
def test_a_key_or_code_id_of_another_length_is_a_misuse(key, code_id):
    with pytest.raises(LocalProtocolError, match="got"):
        Sealer(key, code_id)


def test_the_key_does_not_print():
    assert repr(SEALER) == f"Sealer(code_id={CODE_ID.hex()[:16]}, <secret>)"
    assert sealing.Sealer.__str__ is object.__str__
