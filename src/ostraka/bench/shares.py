"""What one worker is given of made-up updates, by masking, and how precisely they decode."""

import math
from collections.abc import Sequence

import numpy as np

from ostraka.arrays import AnyArray, Float64, UInt32
from ostraka.core import exact, field, gaussian, gram
from ostraka.core.exact import Quantised
from ostraka.crypto.stream import SecretStream

TILE = 1024
_KEY_BYTES = 32


def even_updates(n: int, d: int, rng: np.random.Generator) -> Float64:
    """Random signs of norm 1: by Jensen's inequality the updates that leak most."""
    return np.asarray(rng.choice([-1.0, 1.0], (n, d)) / math.sqrt(d))


def grid_noise(n: int, d: int, sigma: float, rng: np.random.Generator) -> Float64:
    """Law 4, on the grid of the shares."""
    rows = gaussian.constant_distance(rng.standard_normal((n, d)), sigma=sigma)
    return gaussian.to_grid(rows, gaussian.grid_step(sigma), out=rows)


def gaussian_shares(updates: Float64, mask: Float64, sigma: float) -> tuple[Float64, Float64]:
    """Law 1: what the two workers see."""
    plus, minus = np.empty_like(mask), np.empty_like(mask)
    gaussian.encode(updates, mask, step=gaussian.grid_step(sigma), plus=plus, minus=minus)
    return plus, minus


def gaussian_error(updates: Float64, shares: Sequence[AnyArray], sigma: float) -> float:
    """The largest error of a decoded distance, from shares and sums of the shares' type."""
    matrices = [_distances(share) for share in shares]
    decoded = gaussian.decode(*matrices, sigma=sigma, d=updates.shape[1])
    return float(np.abs(decoded - gram.naive(updates)).max())


def exact_share(updates: Float64, rng: np.random.Generator) -> tuple[Float64, float]:
    """Laws 7 to 10: one worker's residues as signed numbers, and the largest error of a distance.

    updates: (n, d). Returns (n, d).
    """
    n, d = updates.shape
    stream = SecretStream(rng.bytes(_KEY_BYTES))
    steps = exact.step(np.linalg.norm(updates, axis=1), d)
    quantised = Quantised.empty(n, d)
    dither = np.frombuffer(stream.bytes(2 * n * d), np.uint16).reshape(n, d)
    s, v = exact.quantise(updates.astype(np.float32), exact.scale(steps), dither, quantised)
    mask = stream.uniform((n, d), field.P)
    plus, minus = np.empty_like(mask), np.empty_like(mask)
    exact.shares(quantised.residues, [mask], [plus, minus], np.empty_like(mask))
    leading, *grams = (_field_gram(each) for each in (mask, plus, minus))
    decoded = exact.decode(dict(zip(exact.points(1), grams, strict=True)), leading)
    measured = exact.distances(field.signed(decoded), steps, s, v)
    error = float(np.abs(measured - gram.naive(updates)).max())
    return field.signed(plus).astype(np.float64), error


def _distances(share: AnyArray) -> Float64:
    products: AnyArray = np.zeros((len(share), len(share)), share.dtype)
    for start in range(0, share.shape[1], TILE):
        part = share[:, start : start + TILE]
        products += part @ part.T
    return gram.from_gram(products).astype(np.float64)


def _field_gram(rows: UInt32) -> UInt32:
    products = np.zeros((len(rows), len(rows)), np.uint32)
    field.add_gram(products, rows)
    return products
