"""Attacks that are as strong as the very rule allows: the attackers try it out beforehand.

All of them send v(s) = a + s b, along a line through what is known: -s mu for IPM, mu - s sigma for
ALIE. They choose the s that moves the aggregate furthest from the honest mean mu, clipping and all:

    s* = argmax |A(w_1, ..., w_m, v(s), ..., v(s)) - mu|

As in the optimised attacks of Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing
Model Poisoning Attacks and Defenses for Federated Learning", NDSS 2021, and of the library ByzFL.
Xie, Koyejo and Gupta, and Baruch, Baruch and Goldberg proposed the lines (see `informed`).

A rule of weights needs no row for that. The rows of a round, a and b included, are combinations of
the known updates and one more vector, so the (n, n) inner products for any s follow from theirs,
and the aggregate is another such combination. A column-wise rule is tried out on a sample of the
columns. A round that fails moves nothing: its aggregate is 0.

The search is the same for all who know the same: a geometric grid of lengths up to the longest that
the enclave does not shorten, and a golden section around the best.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ostraka.arrays import Float32, Float64, Int64
from ostraka.core.rules import Columnwise
from ostraka.errors import OstrakaError
from ostraka_lab.attacks import informed
from ostraka_lab.attacks.attack import Scene
from ostraka_lab.defence import Defence, Products, combined, inner_products

_OCTAVES, _A_OCTAVE = 9, 4  # of the grid: from 1/512 of the longest step, four steps an octave
_SECTIONS = 6  # of the golden search, which ends within a fiftieth of an octave
_GOLDEN = (math.sqrt(5) - 1) / 2
_SAMPLE = 2048  # columns on which column-wise rules are tried out


def ipm(scene: Scene) -> Float32:
    """-s mu, with s = scale x s*."""
    rows = scene.honest(2)
    line = Line.through(scene, at_mean=0.0, direction=None)
    return (-scene.scale * best(line) * informed.mean(rows)).astype(np.float32)


def alie(scene: Scene) -> Float32:
    """mu - s sigma, with s = scale x s*."""
    rows = scene.honest(2)
    centre = informed.mean(rows)
    sigma = informed.deviation(rows, centre)
    line = Line.through(scene, at_mean=1.0, direction=-sigma)
    return (centre - scene.scale * best(line) * sigma).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Line:
    """What attackers can send, and what they know of what becomes of it.

    Everything is a combination of a basis: the m known updates, the direction b, and the last
    aggregate. products: (m + 2, m + 2), of the basis. start: (m + 2,), of a. step: (m + 2,), of b.
    sample: (m + 2, c), some columns of the basis. copies: how many send the same.
    """

    defence: Defence
    products: Float64
    start: Float64
    step: Float64
    sample: Float64
    copies: int
    root: int | None
    has_last: bool
    order: Int64

    @classmethod
    def through(cls, scene: Scene, *, at_mean: float, direction: Float64 | None) -> "Line":
        """From at_mean x mu along `direction` (d,), or against mu if that is None."""
        known = scene.known
        m, d = known.shape
        defence, copies = _imagined(scene)
        last = np.zeros(d) if scene.last is None else scene.last
        towards = np.zeros(d) if direction is None else direction
        mean = np.zeros(m + 2)
        mean[:m] = 1 / m
        along = np.zeros(m + 2)
        along[m] = 1
        columns = np.random.default_rng(d).permutation(d)[:_SAMPLE]
        return cls(
            defence=defence,
            products=_basis_products(known, towards, last),
            start=at_mean * mean,
            step=-mean if direction is None else along,
            sample=np.vstack([known[:, columns], towards[columns], last[columns]]).astype(float),
            copies=copies,
            root=scene.root,
            has_last=scene.last is not None,
            # Nobody foresees the order of bucketing: attackers try it out on another one.
            order=np.random.default_rng(scene.round).permutation(m + copies),
        )

    @property
    def known(self) -> int:
        return len(self.start) - 2

    @property
    def mean(self) -> Float64:
        """The honest mean in the basis."""
        mean = np.zeros(len(self.start))
        mean[: self.known] = 1 / self.known
        return mean

    def rows(self, scale: float) -> Float64:
        """All rows (n, m + 2) of the round in the basis, honest ones first."""
        honest = np.eye(self.known, len(self.start))
        return np.vstack([honest, *[self.start + scale * self.step] * self.copies])

    def harm(self, scale: float) -> float:
        """The squared distance of the aggregate from the honest mean."""
        rows, mean = self.rows(scale), self.mean
        sent = Products(
            rows @ self.products @ rows.T,
            rows @ self.products[:, -1] if self.has_last else None,
            float(self.products[-1, -1]),
            self.root,
        )
        try:
            plan, scales = self.defence.decide(sent, len(rows), self.order)
        except OstrakaError:
            return _square(self.products, mean)
        if isinstance(plan, Columnwise):
            off = combined(plan, scales, rows @ self.sample) - mean @ self.sample
            return float(off @ off)
        aggregate = rows.T @ (plan.values * scales)
        aggregate[-1] += plan.last
        return _square(self.products, aggregate - mean)

    def longest(self) -> float:
        """The scale whose step is as long as the longest row that the enclave does not shorten."""
        step = math.sqrt(_square(self.products, self.step))
        norms = np.sqrt(np.diagonal(self.products)[: self.known])
        limit = self.defence.clipping_norm(norms)
        return limit / step if math.isfinite(limit) and step > 0 else 0.0


def best(line: Line) -> float:
    """The scale of most harm. 0 if there is no step, or the model has run away."""
    if not (np.isfinite(line.products).all() and (longest := line.longest())):
        return 0.0
    exponents = np.arange(-_OCTAVES * _A_OCTAVE, 1) / _A_OCTAVE
    harms = [line.harm(longest * 2**exponent) for exponent in exponents]
    top = float(exponents[int(np.argmax(harms))])
    exponent, harm = _golden(
        lambda at: line.harm(longest * 2**at), top - 1 / _A_OCTAVE, min(top + 1 / _A_OCTAVE, 0)
    )
    return float(longest * 2 ** (exponent if harm > max(harms) else top))


def _golden(value: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Where a function is largest between these two, if it has one peak; and how large."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = value(left), value(right)
    for _ in range(_SECTIONS):
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = value(right)
    return (left, at_left) if at_left >= at_right else (right, at_right)


def _basis_products(known: Float32, towards: Float64, last: Float64) -> Float64:
    m = len(known)
    products = np.zeros((m + 2, m + 2))
    products[:m, :m] = inner_products(known)
    for place, vector in ((m, towards), (m + 1, last)):
        products[place, :m] = products[:m, place] = informed.dots(known, vector)
        products[place, place] = vector @ vector
    products[m, m + 1] = products[m + 1, m] = towards @ last
    return products


def _square(products: Float64, combination: Float64) -> float:
    return max(float(combination @ products @ combination), 0.0)


def _imagined(scene: Scene) -> tuple[Defence, int]:
    """The defence to try out, and how many send the same.

    Attackers that do not know all honest updates imagine a smaller federation, with as large a part
    of attackers as there is, or as the rule bears.
    """
    m, honest = len(scene.known), scene.clients - scene.byzantine
    if m >= honest:
        return scene.defence, max(scene.byzantine, 1)
    copies = max(scene.byzantine * m // honest, 1)
    least = scene.defence.composition.least
    bearable = (f for f in range(scene.defence.f * m // honest, 0, -1) if least(f) <= m + copies)
    return replace(scene.defence, f=next(bearable, 0)), copies
