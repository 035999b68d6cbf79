"""What was measured: inner products of the clipped rows, and how far off they may be."""

import numpy as np
import pytest

from ostraka.core import gaussian


@pytest.mark.parametrize("sketch", [None, 4096])
def test_a_rule_is_given_the_inner_products_of_clipped_rows(simulate, reference, masking, sketch):
    """Krum sees distances only, which a shift of all rows or a factor would leave in order."""
    rows = 1 + np.random.default_rng(2).normal(size=(6, 5_000))
    rows = (rows * [[1], [1], [1], [2], [3], [20]]).astype(np.float32)  # the last one is clipped
    terms = {"sketch": sketch, "defence": "multi-krum"}  # nnm takes no sketch as short as this
    round_ = simulate(rows=rows, f=1, masking=masking, tile=1024, **terms).open()
    round_.send_all()
    published, gram = round_.finish(), round_.measured.gram
    clipped = reference.clip(rows, reference.norms(rows)) / gram.unit
    products, norms = clipped @ clipped.T, reference.norms(clipped)
    folded = 6 * (2 / sketch) ** 0.5 * np.outer(norms, norms) if sketch else 0
    assert (abs(gram.products - products) <= 1e-4 + folded).all()

    distances = np.square(clipped[:, None] - clipped).sum(axis=2)
    error = abs(gram.distances() - distances)
    assert (error <= gram.deviation + 1e-12).all()
    if sketch:  # Six of its deviations are allowed for, beside what is left of masks.
        six = 6 * (2 / sketch) ** 0.5 * abs(gram.distances())
        np.testing.assert_allclose(gram.deviation, six, rtol=0.01, atol=1e-4)
    assert error.max() * gram.unit**2 <= published.distance_error
    every = np.broadcast_to(gram.deviation, error.shape)
    assert published.distance_error == pytest.approx(every.max() * gram.unit**2)


def test_law6_a_sketch_is_masked_within_the_unit_ball(simulate, reference, monkeypatch):
    """The sketch of a row on the sphere is longer than the row half of the time."""
    longest, real = [], gaussian.encode

    def encode(rows, mask, **how):
        longest.append(reference.norms(rows).max())
        real(rows, mask, **how)

    monkeypatch.setattr(gaussian, "encode", encode)
    rows = np.random.default_rng(3).normal(size=(7, 5_000)).astype(np.float32)
    terms = {"masking": "gaussian", "sketch": 4096, "tile": 4096, "clip_norm": 1.0}
    round_ = simulate(rows=rows, defence="multi-krum", **terms).open()
    round_.send_all()
    round_.finish()
    assert longest
    assert max(longest) <= 1
