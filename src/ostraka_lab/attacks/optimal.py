"""Attacks that are as strong as the very rule allows: the attackers try it out beforehand.

All of them send v(s) = a + s b, on a course of their own: -s mu for IPM, mu - s sigma for ALIE.
They choose the s that moves the aggregate furthest from the honest mean mu, clipping and all:

    s* = argmax |A(w_1, ..., w_m, v(s), ..., v(s)) - mu|

As in the optimised attacks of Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing
Model Poisoning Attacks and Defenses for Federated Learning", NDSS 2021, and of the library ByzFL.
Xie, Koyejo and Gupta, and Baruch, Baruch and Goldberg proposed the lines (see `informed`).

A rule of weights needs no row for that. The rows of a round are combinations of the known updates,
a and b, so the (n, n) inner products for any s follow from theirs, and the aggregate is another
such combination. A column-wise rule is tried out on a sample of the columns. A round that fails
moves nothing: its aggregate is 0.

The search is the same for all who know the same: a geometric grid of lengths up to the longest that
the enclave does not shorten, a golden section around the best, and the steps of fixed forms.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ostraka.arrays import Float32, Float64, Int64
from ostraka.core.rules import Columnwise
from ostraka.errors import OstrakaError
from ostraka_lab.attacks import informed
from ostraka_lab.attacks.attack import Course, Scene
from ostraka_lab.defence import Defence, Products, combined, inner_products

_OCTAVES, _A_OCTAVE = 9, 4  # of the grid: from 1/512 of the longest step, four steps an octave
_SECTIONS = 6  # of the golden search, which ends within a fiftieth of an octave
_GOLDEN = (math.sqrt(5) - 1) / 2
_SAMPLE = 2048  # columns on which column-wise rules are tried out
_OTHERS = 3  # vectors of the basis after the known updates


def tried_out(course: Callable[[Scene], Course]) -> Callable[[Scene], Float32]:
    """The attack that sends v(s) on this course, with s = scale x s*."""

    def send(scene: Scene) -> Float32:
        line = course(scene)
        return line.at(scene.scale * best(Line.through(scene, line)))

    return send


def _back(scene: Scene) -> Course:
    """-s mu, as IPM."""
    centre = informed.mean(scene.honest(2))
    return Course(np.zeros_like(centre), -centre, (1.0,))


def _off(scene: Scene) -> Course:
    """mu - s sigma, as ALIE, Min-Max and Min-Sum."""
    course = informed.bounded(scene, informed.inverse_deviation)
    return replace(course, usual=(*course.usual, informed.quiet(scene.clients, scene.byzantine)))


ipm, alie = tried_out(_back), tried_out(_off)


@dataclass(frozen=True, eq=False)
class Line:
    """What attackers can send, and what they know of what becomes of it.

    Everything is a combination of a basis: the m known updates, a, b, and the last aggregate.
    products: (m + 3, m + 3), of the basis. sample: (m + 3, c), some columns of it. usual: steps to
    try besides those of the search. copies: how many send the same.
    """

    defence: Defence
    products: Float64
    sample: Float64
    usual: tuple[float, ...]
    copies: int
    root: int | None
    has_last: bool
    order: Int64

    @classmethod
    def through(cls, scene: Scene, course: Course) -> "Line":
        known = scene.known
        m, d = known.shape
        defence, copies = _imagined(scene)
        last = np.zeros(d) if scene.last is None else scene.last
        others = np.vstack([course.start, course.direction, last])
        columns = np.random.default_rng(d).permutation(d)[:_SAMPLE]
        return cls(
            defence=defence,
            products=_basis_products(known, others),
            sample=np.vstack([known[:, columns], others[:, columns]]).astype(float),
            usual=course.usual,
            copies=copies,
            root=scene.root,
            has_last=scene.last is not None,
            # Nobody foresees the order of bucketing: attackers try it out on another one.
            order=np.random.default_rng(scene.round).permutation(m + copies),
        )

    @property
    def known(self) -> int:
        return len(self.products) - _OTHERS

    @property
    def mean(self) -> Float64:
        """The honest mean in the basis."""
        mean = np.zeros(len(self.products))
        mean[: self.known] = 1 / self.known
        return mean

    def rows(self, scale: float) -> Float64:
        """All rows (n, m + 3) of the round in the basis, honest ones first."""
        size = len(self.products)
        sent = np.zeros(size)
        sent[self.known : self.known + 2] = 1, scale
        return np.vstack([np.eye(self.known, size), *[sent] * self.copies])

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
        step = math.sqrt(self.products[self.known + 1, self.known + 1])
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
    found = float(longest * 2 ** (exponent if harm > max(harms) else top))
    # So that no attack that chooses its step is weaker than its fixed form.
    return max((found, *line.usual), key=line.harm)


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


def _basis_products(known: Float32, others: Float64) -> Float64:
    m = len(known)
    products = np.zeros((m + _OTHERS, m + _OTHERS))
    products[:m, :m] = inner_products(known)
    products[m:, m:] = others @ others.T
    for place, vector in enumerate(others, m):
        products[place, :m] = products[:m, place] = informed.dots(known, vector)
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
