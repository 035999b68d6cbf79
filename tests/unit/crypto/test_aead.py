from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.crypto.aead import TAG_BYTES, nonce, open_into, pair_nonce, seal_into
from ostraka.errors import OpenError

CIPHER = AESGCM(bytes(range(32)))
VALUES = np.arange(10, dtype=np.float32)


def sealed(bound=None):
    out = bytearray(VALUES.nbytes + TAG_BYTES)
    seal_into(CIPHER, nonce(3), VALUES, out, bound=bound)
    return bytes(out)


def test_nonces_of_one_form_differ():
    assert nonce(5) == bytes(11) + b"\5"
    assert pair_nonce(5, 6) == bytes(5) + b"\5" + bytes(5) + b"\6"
    pairs = {pair_nonce(i, j) for i in range(300) for j in range(300)}
    assert len(pairs) == 90_000
    assert {len(each) for each in pairs} == {12}
    assert len({nonce(i) for i in range(70_000)}) == 70_000


def test_a_counter_that_does_not_fit_is_no_nonce():
    with pytest.raises(OverflowError):
        pair_nonce(2**48, 0)


def test_sealing_is_aes_gcm():
    assert sealed(b"bound") == CIPHER.encrypt(nonce(3), VALUES.tobytes(), b"bound")


def test_opening_undoes_sealing():
    out = np.empty_like(VALUES)
    open_into(CIPHER, nonce(3), sealed(b"bound"), out, what="values", bound=b"bound")
    assert np.array_equal(out, VALUES)


FAILURES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "a flipped bit": (bytes([sealed()[0] ^ 1]) + sealed()[1:], {}),
    "a flipped bit in the tag": (sealed()[:-1] + bytes([sealed()[-1] ^ 1]), {}),
    "a byte too few": (sealed()[:-1], {}),
    "a byte too many": (sealed() + b"\0", {}),
    "nothing": (b"", {}),
    "less than a tag": (bytes(8), {}),
    "another nonce": (sealed(), {"nonce": nonce(4)}),
    "another key": (sealed(), {"cipher": AESGCM(bytes(32))}),
    "another context": (sealed(), {"bound": b"bound"}),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_is_one_error_and_leaves_zeros(what):
    """The cipher writes plaintext before it has checked the tag."""
    data, changes = FAILURES[what]
    out = np.full(10, 7, np.float32)
    arguments = {"cipher": CIPHER, "nonce": nonce(3), "sealed": data, "out": out, **changes}
    with pytest.raises(OpenError, match=r"^values does not open") as caught:
        open_into(what="values", **arguments)
    assert not out.any()
    assert caught.value.__suppress_context__
