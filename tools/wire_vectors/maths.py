"""Areas: shares, folds, Gram matrices, and what rules and optimisers make of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ostraka.arrays import AnyArray, Float32, UInt32
from ostraka.config import Tiling
from ostraka.core import exact, field, gaussian, gram, loops, optimiser, rules, uploads
from ostraka.core.field import P
from ostraka.core.optimiser import Optimiser, ServerState
from ostraka.core.rules import Columnwise, Gram, Options
from ostraka.crypto.masks import mask_stream, mask_tile
from ostraka.crypto.stream import SecretStream
from ostraka.protocol.enclave.folding import Folds, scale_of
from wire_vectors.notation import DECIMALS, Drawn, Seals, Vector, fixed, vector
from wire_vectors.played import TILE, D, Round, terms, updates
from wire_vectors.sealed import upper_in


@dataclass(frozen=True)
class Shared:
    """One tile of exact shares, and what they were made of."""

    dither: Any
    masks: Any
    q: Any
    shares: Any
    s: Any
    v: Any


def shared(rows: Sequence[Float32], index: int, seeds: Sequence[bytes], scales: Float32) -> Shared:
    """One tile of rows (n, d) by laws 7 and 8. seeds: of R_1 ... R_t."""
    tiling, n, t = Tiling(D, TILE), len(rows), len(seeds)
    shape = (n, tiling.size(index))
    dither = np.empty(shape, np.uint16)
    SecretStream(fixed("dither key"), stream=mask_stream(index, range(n))).fill(dither)
    masks = np.stack([mask_tile(each, n, tiling, index) for each in seeds])
    shares = np.empty((2 * t, *shape), np.uint32)
    parts = [np.ascontiguousarray(row[tiling.part(index)]) for row in rows]
    s, v, _ = loops.share(parts, scales, dither, masks, shares)
    # Behind a mask of zeros, a share is q itself.
    bare, nothing = np.empty((2, *shape), np.uint32), np.zeros((1, *shape), np.uint32)
    loops.share(parts, scales, dither, nothing, bare)
    return Shared(dither, masks, field.signed(bare[0]), shares, s, v)


def shares(played: Round, seals: Seals) -> list[Vector]:
    rows = updates()
    norms = np.array([uploads.norm(row) for row in rows])
    steps = exact.step(norms, D)
    scales, seeds = exact.scale(steps), [fixed("mask seed 1"), fixed("mask seed 2")]
    law7 = vector(
        "steps",
        "Law 7: one step a row, and 2^16 steps in float32, which rows are multiplied by",
        {"norms": norms, "d": D},
        {"steps": steps, "scales": scales},
    )
    tiles = [
        vector(
            f"t = {t}, tile {index}",
            "Laws 7 and 8: q = (rint(value * scale) + dither) >> 16, and the shares at 1, -1, ...; "
            "dither and masks are the keystreams (tile * 2^32 + first row) of their keys",
            {
                "values": [row[Tiling(D, TILE).part(index)] for row in rows],
                "scales": scales,
                "dither_key": fixed("dither key"),
                "mask_seeds": seeds[:t],
            },
            vars(shared(rows, index, seeds[:t], scales)),
        )
        for t, index in ((1, 0), (1, 1), (1, 2), (2, 2))
    ]
    return [law7, *tiles, *_gaussian()]


# Constant-distance noise of sigma = 2: orthogonal rows of norm sigma sqrt(d).
_NOISE = 2.0 * np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1]])
_ROWS = np.array([[0.5, 0, 0, 0], [0.5, 0.25, 0, 0], [-0.5, 0, 0.125, 0]])


def _gaussian() -> list[Vector]:
    plus, minus, step = np.empty((3, 4)), np.empty((3, 4)), gaussian.grid_step(2.0)
    for row, noise, *out in zip(_ROWS, _NOISE, plus, minus, strict=True):
        gaussian.encode(row, noise, step=step, plus=out[0], minus=out[1])
    answers = [gram.from_gram(each @ each.T) for each in (plus, minus)]
    decoded = gaussian.decode(*answers, sigma=2.0, d=4)
    return [
        vector(
            "gaussian",
            "Laws 1 to 4: noise at constant distance cancels; an answer is the distances above the "
            "diagonal, row after row, in little-endian float64",
            {"rows": _ROWS, "noise": _NOISE, "sigma": 2.0, "grid_step": step},
            {
                "plus": plus,
                "minus": minus,
                "answers": [gram.to_upper(each).tobytes() for each in answers],
                "distances": decoded,
            },
        )
    ]


def folds(played: Round, seals: Seals) -> list[Vector]:
    m, drawn, tiling, row = 12, Drawn("a fold"), Tiling(D, TILE), updates()[0]
    made, sketch = Folds(tiling, m, drawn), np.zeros(m, np.float32)
    secrets, into = made.tiles, loops.Sketch(sketch, 1.0)
    for index, fold in enumerate(secrets):
        loops.absorb(row[tiling.part(index)], fold, into)
    norms = [0.0, 2.0**-41, 2.0**-40, 1.0, 2.0**40, 2.0**50]
    return [
        vector(
            "a row that is folded",
            "Law 12: of the key's stream 0, first the bits of the signs, tile after tile and each "
            "tile in whole bytes, then the shifts modulo m",
            {"values": row, "tile": TILE, "m": m, "key": drawn.log[0]},
            {
                "bits": [fold.bits for fold in secrets],
                "shifts": [fold.shifts for fold in secrets],
                "sketch": sketch,
            },
        ),
        vector(
            "scales",
            "Law 12: what a row of this norm is multiplied by before it is folded",
            {"norms": norms},
            {"scales": [scale_of(norm) for norm in norms]},
        ),
    ]


def grams(played: Round, seals: Seals) -> list[Vector]:
    rows = updates()
    norms = np.array([uploads.norm(row) for row in rows])
    steps = exact.step(norms, D)
    tiles = [shared(rows, index, [fixed("mask seed 1")], exact.scale(steps)) for index in range(3)]
    answers = [field.gram(np.hstack([tile.shares[point] for tile in tiles])) for point in (0, 1)]
    leading = field.gram(np.hstack([tile.masks[0] for tile in tiles]))
    decoded = exact.decode(dict(zip(exact.points(1), answers, strict=True)), leading)
    s, v = sum(tile.s for tile in tiles), sum(tile.v for tile in tiles)
    products = exact.products(field.signed(decoded), steps, s, v)
    clip = terms().clipping_norm(norms)
    return [
        vector(
            "answers, and what they decode to",
            "Law 9: with t = 1, from the matrices at 1, -1 and infinity; an answer is the entries "
            "on and above the diagonal, row after row, in little-endian uint32",
            {"see": "shares.json, t = 1", "points": exact.points(1)},
            {
                "answers": [gram.to_upper(each, diagonal=True).tobytes() for each in answers],
                "leading": gram.to_upper(leading, diagonal=True).tobytes(),
                "decoded": field.signed(decoded),
            },
        ),
        vector(
            "inner products",
            "Law 10: of the rows themselves, from s, v (times 2^32) and the steps",
            {"s": s, "v": v, "steps": steps, "gram": field.signed(decoded)},
            {
                "products": products,
                "deviation": exact.deviation(gram.from_gram(products), steps, D),
            },
        ),
        _freivalds(tiles, decoded),
        vector(
            "the clipping norm",
            "Our laws: the power of two at or above four times the median, and what rows are "
            "multiplied by to lie in the unit ball",
            {"norms": norms},
            {"clip": clip, "factors": 1.0 / np.maximum(clip, norms)},
        ),
        vector(
            "what the workers of the round measured",
            "Laws 9 and 10: in units of the squared clipping norm; channels.json has the shares, "
            "and dither and masks are the enclave's own",
            {"answers": [upper_in(line) for line in played.lines]},
            {"products": played.measured.gram.products},
        ),
    ]


def _freivalds(tiles: Sequence[Shared], decoded: UInt32) -> Vector:
    challenge = SecretStream(fixed("challenge key")).uniform((3, 2), P)
    check = exact.Freivalds(challenge, TILE)
    for tile in tiles:
        _witness(check, tile.q)
        check.end_block()
    lie = decoded.copy()
    lie[0, 1] = lie[1, 0] = (int(lie[0, 1]) + 1) % P
    claimed = field.matmul(field.matmul(challenge.T, decoded), challenge)
    return vector(
        "Freivalds' check",
        "Law 11: V^T G V of the decoded matrix, and of one that is off by one in one pair",
        {"key": fixed("challenge key"), "challenge": challenge, "gram": field.signed(decoded)},
        {
            "check": claimed,
            "accepts": check.accepts(decoded),
            "accepts the lie": check.accepts(lie),
        },
    )


def _witness(check: exact.Freivalds, q: AnyArray) -> None:
    """Gather evidence of all rows (n, b) of a block, as masking does."""
    check.expect(range(len(q)), q.shape[1])[...] = q


def plans(played: Round, seals: Seals) -> list[Vector]:
    rows = np.array(
        [[-20, 16, 0], [8, 0, 1], [19, 1, 0], [8, 3, 1], [7, -9, 0], [12, 2, 1], [9, 0, 5]], float
    )
    products = rows @ rows.T / 2**10
    measured = Gram(products, np.zeros(()), 32.0)
    asked: tuple[tuple[str, tuple[str, ...], Options], ...] = (
        ("multi-krum", (), Options()),
        ("multi-krum", (), Options(k=3)),
        ("krum", ("nnm",), Options()),
        (rules.DEFAULT, rules.DEFAULT_PRE, Options()),
        ("trimmed-mean", ("nnm",), Options()),
    )
    compositions = [rules.compose(*each) for each in asked]
    made = vector(
        "plans",
        "Laws 5, 14, 15 and 16: what compositions make of seven rows of which one may be "
        f"Byzantine; weights to {DECIMALS} places",
        {"products": products, "f": 1},
        {str(each): _plan(each.plan(measured, 1, np.arange(len(rows)))) for each in compositions},
    )
    start, step = np.array([1.0, -2.0, 0.5], "<f4"), np.array([0.5, 0.25, -1.0], "<f4")
    moved = [
        vector(
            kind,
            "Law 13: two rounds of the same aggregate",
            {"optimiser": Optimiser(kind), "model": start, "aggregate": step},
            {"models": [each.model for each in _advanced(start, step, Optimiser(kind))]},
        )
        for kind in optimiser.KINDS
    ]
    return [made, *moved]


def _plan(plan: rules.Plan) -> dict[str, Any]:
    if isinstance(plan, Columnwise):
        matrix = plan.matrix.round(DECIMALS)
        return {"matrix": matrix, "reducer": plan.reducer, "count": plan.count}
    return {"weights": plan.values.round(DECIMALS)}


def _advanced(start: Float32, step: Float32, by: Optimiser) -> tuple[ServerState, ServerState]:
    first = optimiser.advance(optimiser.start(start, by), step, by)
    return first, optimiser.advance(first, step, by)
