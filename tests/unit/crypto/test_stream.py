import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import (
    AEADEncryptionContext,
    Cipher,
    algorithms,
    modes,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ostraka.crypto import stream as module
from ostraka.crypto.stream import SecretStream, accept, box_muller
from ostraka.errors import ConfigError, LocalProtocolError

KEY = bytes(range(32))
P = 2**31 - 1


def aes_ctr(stream: int, n: int) -> bytes:
    iv = stream.to_bytes(12, "big") + (2).to_bytes(4, "big")
    return Cipher(algorithms.AES(KEY), modes.CTR(iv)).encryptor().update(bytes(n))


class Scripted(SecretStream):
    """Reads its words from a list instead of a cipher."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(KEY)
        self.words = np.array(words, np.uint32)

    def fill(self, out: np.ndarray) -> None:
        out[:] = self.words[: out.size]
        self.words = self.words[out.size :]


@pytest.fixture(params=[False, True], ids=["counter mode", "gcm"])
def source(request, monkeypatch):
    """Streams from one or the other, whichever is faster here."""
    monkeypatch.setattr(module, "gcm_is_faster", lambda: request.param)
    monkeypatch.setattr(module, "_LONG", 0)


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("stream", [0, 1, 2**63, 2**96 - 1])
def test_bytes_are_aes_ctr_with_the_stream_in_the_nonce(stream):
    assert SecretStream(KEY, stream=stream).bytes(70_001) == aes_ctr(stream, 70_001)


@pytest.mark.parametrize("stream", [0, 7])
def test_bytes_are_those_of_aes_gcm_over_zeros(stream):
    sealed = AESGCM(KEY).encrypt(stream.to_bytes(12, "big"), bytes(70_001), None)
    assert SecretStream(KEY, stream=stream).bytes(70_001) == sealed[:-16]


def test_the_faster_source_is_chosen_and_both_give_the_same_values(monkeypatch):
    drawn = []
    for gcm in (False, True):
        monkeypatch.setattr(module, "gcm_is_faster", lambda gcm=gcm: gcm)
        s = SecretStream(KEY, stream=5)
        parts = [s.bytes(n) for n in (140_001, 0, 1, 15, 16, 17, 65_535, 65_537)]
        assert isinstance(s._cipher, AEADEncryptionContext) == gcm
        s.seek(6)
        parts += [s.uniform(1001, P).tobytes(), s.normal(77).tobytes()]
        s.seek(5)
        drawn.append([*parts, s.bytes(33)])
    assert drawn[0] == drawn[1]


def test_short_reads_do_not_pay_for_a_new_context(monkeypatch):
    monkeypatch.setattr(module, "gcm_is_faster", lambda: True)
    s = SecretStream(KEY)
    short = s.bytes(module._LONG - 1) + s.bytes(1)
    assert not isinstance(s._cipher, AEADEncryptionContext)
    s.seek(0)
    assert s.bytes(module._LONG) == short
    assert isinstance(s._cipher, AEADEncryptionContext)


def test_the_choice_is_made_once():
    assert module.gcm_is_faster() is module.gcm_is_faster()
    assert module.gcm_is_faster.cache_info().currsize == 1


@pytest.mark.usefixtures("source")
def test_a_stream_ends_before_its_counter_would_wrap(monkeypatch):
    assert module._STREAM_BYTES == 16 * (2**32 - 2)
    monkeypatch.setattr(module, "_STREAM_BYTES", 70_000)
    s = SecretStream(KEY)
    with pytest.raises(LocalProtocolError, match="seek another"):
        s.bytes(70_001)
    assert s.bytes(70_000) == aes_ctr(0, 70_000)
    with pytest.raises(LocalProtocolError, match="0 bytes left"):
        s.bytes(1)
    s.seek(1)
    assert s.bytes(70_000) == aes_ctr(1, 70_000)


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 100_000), max_size=6), gcm=st.booleans())
def test_bytes_do_not_depend_on_how_they_are_asked_for(cuts, gcm):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "gcm_is_faster", lambda: gcm)
        patched.setattr(module, "_LONG", 0)
        s = SecretStream(KEY)
        assert b"".join(s.bytes(n) for n in cuts) == aes_ctr(0, sum(cuts))


@pytest.mark.usefixtures("source")
def test_seek_goes_to_the_start_of_the_other_stream():
    s = SecretStream(KEY, stream=3)
    s.bytes(33)
    s.seek(9)
    assert s.bytes(40) == aes_ctr(9, 40)
    s.seek(3)
    assert s.bytes(40) == aes_ctr(3, 40)


def test_fill_takes_any_type_and_shape_but_never_a_copy():
    out = np.empty((3, 5), np.int16)
    SecretStream(KEY).fill(out)
    assert out.tobytes() == aes_ctr(0, 30)
    with pytest.raises(LocalProtocolError):
        SecretStream(KEY).fill(np.empty((4, 4), np.uint32)[:, :2])


@pytest.mark.parametrize("word", [np.uint8, np.uint16])
def test_every_residue_is_the_image_of_equally_many_words(word):
    bits = 8 * np.dtype(word).itemsize
    moduli = range(1, 257) if bits == 8 else (1, 2, 3, 5, 257, 32767, 32768, 32769, 65521, 65536)
    for modulus in moduli:
        words = np.arange(2**bits).astype(word)
        kept = words[: accept(words, modulus)]
        counts = np.bincount(kept, minlength=modulus)
        assert counts.size == modulus
        assert counts.min() == counts.max() > 2**bits / (2 * modulus)


def test_accepted_words_keep_their_order():
    words = np.array([9, 7, 4, 5, 3, 6, 12], np.uint8)  # modulo 8: 1, 7, 4, 5, 3, 6, 4
    assert accept(words, 5) == 4
    assert words[:4].tolist() == [1, 4, 3, 4]


def test_modulo_p_only_the_value_p_is_rejected_and_the_next_word_takes_its_place():
    top = 1 << 31
    words = [5, P, 7, P | top, P - 1 | top, top, P, 8, 9, 10]
    out = np.empty(5, np.uint32)
    s = Scripted(words)
    s.uniform_into(out, P)
    assert out.tolist() == [5, 7, P - 1, 0, 8]
    assert s.words.tolist() == [9, 10]


@settings(deadline=None)
@given(a=st.integers(0, 300), b=st.integers(0, 300), modulus=st.integers(1, 2**32))
def test_uniform_is_sequential_and_in_range(a, b, modulus):
    s = SecretStream(KEY)
    parts = np.concatenate([s.uniform(a, modulus), s.uniform(b, modulus)])
    assert parts.dtype == np.uint32
    np.testing.assert_array_equal(parts, SecretStream(KEY).uniform(a + b, modulus))
    assert not parts.size or int(parts.max()) < modulus


def test_uniform_passes_a_chi_square():
    counts = np.bincount(SecretStream(KEY).uniform((50, 1000), 5).reshape(-1), minlength=5)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_normals_are_box_muller_of_the_stream():
    words = np.frombuffer(aes_ctr(0, 16 * 3), "<u8").reshape(3, 2)
    u, v = (((words >> np.uint64(11)).astype(float) + 1) / 2**53).T
    radius = np.sqrt(-2 * np.log(u))
    pairs = np.stack([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)], axis=1)
    np.testing.assert_allclose(SecretStream(KEY).normal(5), pairs.reshape(-1)[:5], rtol=1e-14)


def test_normals_are_normal_and_uncorrelated():
    x = SecretStream(KEY).normal((2, 100_000))
    assert stats.kstest(x.reshape(-1), "norm").pvalue > 1e-3
    for one, other in ((x[0], x[1]), (x[0, 0::2], x[0, 1::2])):
        assert abs(np.mean(one * other)) < 4 / np.sqrt(len(one))


def test_even_normal_draws_do_not_depend_on_the_chunk(monkeypatch):
    whole = SecretStream(KEY).normal(1000)
    monkeypatch.setattr(module, "_PAIRS", 7)
    np.testing.assert_array_equal(SecretStream(KEY).normal(1000), whole)


def test_box_muller_is_finite_at_both_ends():
    extremes = np.array([0, 2**64 - 1], np.uint64)
    normals = box_muller(np.array(np.meshgrid(extremes, extremes)).reshape(2, -1).T.copy())
    assert np.isfinite(normals).all()
    assert np.abs(normals).max() == pytest.approx(np.sqrt(106 * np.log(2)))


REFUSED = {
    "a short key": lambda: SecretStream(KEY[:-1]),
    "a negative stream": lambda: SecretStream(KEY, stream=-1),
    "a stream of 97 bits": lambda: SecretStream(KEY, stream=2**96),
    "seeking a stream of 97 bits": lambda: SecretStream(KEY).seek(2**96),
    "modulus zero": lambda: SecretStream(KEY).uniform(3, 0),
    "a modulus beyond the words": lambda: SecretStream(KEY).uniform(3, 2**32 + 1),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    with pytest.raises(ConfigError):
        REFUSED[case]()


def test_repr_shows_no_key():
    text = repr(SecretStream(b"K" * 32, stream=4))
    assert text == "SecretStream(<secret>, stream=4)"
