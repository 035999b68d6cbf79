"""Exact masking through all roles: integers decode exactly, and sacrifices buy nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka import run_round
from ostraka.arrays import cut
from ostraka.core import exact, field, leakage, loops
from ostraka.core.rules.krum import multi_krum
from ostraka.crypto.stream import SecretStream
from ostraka.errors import Rejection
from ostraka.protocol.enclave import masking
from ostraka.protocol.enclave.encoders import ExactEncoder


class Recording(ExactEncoder):
    """Keeps the quantised rows, and the inner products that are decoded from the workers."""

    last: "Recording"

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        Recording.last = self
        self.q: list[list[np.ndarray]] = [[] for _ in self._s]

    def witness(self, thread, rows):
        super().witness(thread, rows)
        scratch = self._scratch[thread]
        dither = cut(scratch._dither_words, len(rows), len(scratch._values[0]))
        for row, values, scale, words in zip(
            rows, scratch._values, scratch._scales, dither, strict=True
        ):
            self.q[row].append((np.rint(values * scale).astype(np.int64) + words) >> 16)

    def decode(self, matrices):
        check = self._scratch[0].check
        accepts = check.accepts

        def record(residues):
            self.decoded = field.signed(residues)
            return accepts(residues)

        check.accepts = record  # type: ignore[method-assign]
        return super().decode(matrices)


@pytest.fixture(scope="module", autouse=True)
def _recorded():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "ExactEncoder", Recording)
        yield


@st.composite
def federations(draw):
    n, d = draw(st.integers(5, 40)), draw(st.integers(1, 3_000))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = rng.normal(size=d) + draw(st.sampled_from([0, 1e-4, 0.3, 3])) * rng.normal(size=(n, d))
    rows *= 10.0 ** draw(st.integers(-6, 6))
    long = rng.random(n) < draw(st.sampled_from([0, 0.2]))
    rows[long] *= 10 ** rng.uniform(0, 6, size=(int(long.sum()), 1))
    return rows.astype(np.float32)


@pytest.mark.slow
@given(rows=federations(), workers=st.integers(2, 7), threads=st.integers(1, 2))
def test_decoded_inner_products_are_those_of_the_quantised_rows(rows, workers, threads):
    run_round(rows, f=1, workers=workers, threads=threads)
    q = np.array([np.concatenate(row) for row in Recording.last.q])
    inner = q @ q.T
    assert np.abs(inner).max() <= (field.P - 1) // 2
    np.testing.assert_array_equal(Recording.last.decoded, inner)


def attackers_kept(rows, f, attackers):
    return len(set(run_round(rows, f=f, rule="multi-krum").selected) & set(attackers))


def in_the_clear(rows, f, attackers):
    """float64 Multi-Krum on the clipped rows."""
    wide = rows.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1)
    clip = np.exp2(np.ceil(np.log2(4 * np.median(norms))))
    wide *= np.minimum(1, clip / norms)[:, None]
    distances = np.array([np.square(wide - row).sum(axis=1) for row in wide])
    return len(set(multi_krum(distances, f, len(rows) - f)) & set(attackers))


@pytest.mark.parametrize("sacrifice", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("shift", [0.0, 0.05, 0.3])
def test_a_sacrificial_client_does_not_make_the_others_pass(sacrifice, shift):
    """With one step for all rows, one row at 10^4 x the honest norm would make the rest coarse."""
    rng = np.random.default_rng(1)
    n, f, d = 24, 6, 3_000
    rows = 1 + rng.normal(size=(n, d))
    rows[:f] = 1 + shift + 1.2 * rng.normal(size=(f, d))
    rows[0] *= sacrifice
    rows = rows.astype(np.float32)
    kept = attackers_kept(rows, f, range(f))
    assert kept <= in_the_clear(rows, f, range(f))


def test_a_copy_shifted_by_half_the_modulus_does_not_wrap_into_place():
    """Half the modulus in one coordinate, in steps of its norm: it must not come out as near."""
    rng = np.random.default_rng(2)
    n, f, d = 12, 3, 500
    rows = (1 + 0.1 * rng.normal(size=(n, d))).astype(np.float32)
    norm = np.linalg.norm(rows[5])
    step = norm / (np.sqrt((field.P - 1) / 2 - d / 4) - 64)
    for row, coordinate in enumerate((0, 7, 400)):
        rows[row] = rows[5]
        rows[row, coordinate] += field.P / 2 * step
    assert attackers_kept(rows, f, range(f)) == 0


@pytest.mark.parametrize("lie", [2.0**-9, 0.5, 1e-3, 2, 1e4])
def test_a_false_norm_is_rejected_and_spoils_nobody(simulate, lie):
    round_ = simulate(masking="exact").open()
    rows = round_.simulation.rows
    true = float(np.linalg.norm(rows[2].astype(np.float64)))
    norm = true * (1 - lie) if lie < 0.5 else true * lie
    round_.send_all(but=[2])
    round_.send(round_.forge(2, norm=norm))
    round_.assert_result(round_.finish(), {2: Rejection.FALSE_NORM})


@pytest.mark.parametrize("word", [2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_word_of_the_stream_that_is_no_residue_is_skipped_by_all(
    simulate, monkeypatch, word, workers
):
    """It happens once in 2^31 words. The worker that has the seed skips it, so the enclave must."""
    real, planted = SecretStream.fill, []

    def fill(self, out):
        first = self._cipher is None
        real(self, out)
        if first and out.dtype == np.uint32 and out.size > 5:
            out.reshape(-1)[5] = word
            planted.append(out.shape)

    monkeypatch.setattr(SecretStream, "fill", fill)
    round_ = simulate(masking="exact", workers=workers).open()
    round_.send_all()
    round_.assert_result(round_.finish(), {})
    assert planted


def exact_share(updates, point, seed):
    """What one worker sees of exact masking, as the numbers that it is tempted to take them for."""
    n, d = updates.shape
    stream = SecretStream(seed.to_bytes(32, "big"))
    steps = exact.step(np.ones(n), d)
    dither = np.frombuffer(stream.bytes(2 * n * d), np.uint16).reshape(n, d)
    shares = np.empty((2, n, d), np.uint32)
    mask = stream.uniform((n, d), field.P)
    rows = list(updates.astype(np.float32))
    loops.share(rows, exact.scale(steps), dither, mask[None], shares)
    return field.signed(shares[point]) * steps[0]


@pytest.mark.parametrize("point", [0, 1])
def test_the_matched_filter_and_the_polar_attack_are_blind_to_exact_masking(point):
    """Both succeed against Gaussian masking: tests/protocol/test_worker_view.py."""
    rng = np.random.default_rng(5)
    n, d = 64, 2_000
    sigma = field.P / np.sqrt(12) * exact.step(np.ones(1), d)[0]
    filters: dict[str, list] = {"matched": [], "polar": []}
    for seed in range(16):
        updates, others = rng.choice([-1.0, 1.0], (2, n, d)) / np.sqrt(d)
        share = exact_share(updates, point, seed)
        for name, score in (
            ("matched", lambda rows: np.vecdot(share, rows)),  # noqa: B023
            ("polar", lambda rows: leakage.polar_filter(share, rows, sigma=sigma)),  # noqa: B023
        ):
            filters[name].append((score(updates), score(others)))
    for trials in filters.values():
        true, false = (np.concatenate(part) for part in zip(*trials, strict=True))
        assert len(true) == 1024
        assert abs(leakage.auc(true, false) - 0.5) < 0.05


def test_the_same_tiles_are_read_whoever_was_selected(simulate):
    """The host sees which ciphertexts the second pass asks for: all of them, in order."""
    seen = []
    for seed in (0, 1):
        round_ = simulate(masking="exact", defence="multi-krum", seed=seed, budget=0).open()
        round_.send_all()
        round_.close()
        round_.measure()
        round_.reads.clear()
        published = round_.try_to_average()
        seen.append((round_.reads, published.selected))
    assert len(seen[0][0]) == 7 * round_.terms.tiling.count
    assert seen[0][1] != seen[1][1], "pick seeds with different selections"
    assert seen[0][0] == seen[1][0]
